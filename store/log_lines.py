"""What the store writes to the broker's log: one function for each event, which gives the line and its level.

Nothing is logged here. Who has a logger hands the lines on; a tool may print them, a test compares them. The words are
the documents' own wherever they have them, since people search logs, and scripts watch them, for these:

    event                                   level     words from
    --------------------------------------  --------  ------------------------------------------------------------
    an option is corrected                  warning   MRG 2 Messaging User Guide, 6.3, below the minimum
    an option is not needed                 notice    own
    the store is ready                      notice    MRG 2 Messaging User Guide, 6.2
    a journal is created                    notice    MRG 2 Messaging User Guide, 6.2
    default sizes of journals               info      formats/rhm/README.md, 5.6
    a queue is recovered                    info      formats/rhm/README.md, 5.6
    the highest record id                   info      formats/rhm/README.md, 5.6
    a transaction is in doubt               notice    own
    the store is truncated                  notice    own
    the store belongs to another process    critical  MRG 2 Messaging User Guide, 6.2
    no store of a cluster is clean          critical  MRG 2 Messaging User Guide, 7.5.4
    an enqueue is over the threshold        warning   formats/rhm/README.md, 3.5
    a journal is full                       critical  formats/rhm/README.md, 3.5
    a journal has failed                    critical  own
    MST-1001 to MST-1006                    notice    Qpid wiki, "Configure Operational Status Logging"

The last are what the Java broker's stores say of themselves, in this order; the option `mst-log` turns them on:

    1001 created, 1002 location, 1004 recovery starts,
    for each queue: 1004 it starts, 1005 messages, 1006 it is complete,
    1006 all recovery is complete; and at the end of everything 1003 closed

Names of queues come from clients, so what could break a line or steer a terminal is escaped in every text.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from formats.wording import printable

MAX_IN_DOUBT_LINES: Final = 20
TPL_NAME: Final = "TplStore"  # of the prepared list's journal


class Level(StrEnum):
    """The levels of the broker's log that the store uses, by the broker's names for them."""

    INFO = "info"
    NOTICE = "notice"
    WARNING = "warning"
    CRITICAL = "critical"


class LogLine(NamedTuple):
    """One line for the log.

    Attributes:
        level: how much it matters.
        text: what it says, without time and level.
    """

    level: Level
    text: str


# ---- options ----


def below_minimum(parameter: str, value: int, minimum: int) -> LogLine:
    """A number is raised to the least that is legal."""
    return LogLine(
        Level.WARNING,
        f"parameter {parameter} ({value}) is below allowable minimum ({minimum}); "
        "changing this parameter to minimum value.",
    )


def above_maximum(parameter: str, value: int, maximum: int) -> LogLine:
    """A number is lowered to the largest that is legal."""
    return LogLine(
        Level.WARNING,
        f"parameter {parameter} ({value}) is above allowable maximum ({maximum}); "
        "changing this parameter to maximum value.",
    )


def not_legal(parameter: str, value: int, rule: str, corrected: int) -> LogLine:
    """A number within the range that is not legal is replaced by the nearest that is.

    Args:
        parameter: its name.
        value: what was given.
        rule: what it would have to be: "a power of 2".
        corrected: what is used.
    """
    return LogLine(
        Level.WARNING, f"parameter {parameter} ({value}) is not {rule}; changing this parameter to {corrected}."
    )


def not_needed(option: str, reason: str) -> LogLine:
    """An option of other stores was given that this one has no use for."""
    return LogLine(Level.NOTICE, f"option {option} is not needed here and has no effect: {reason}")


# ---- start ----


def store_initialized(directory: str) -> LogLine:
    """The store is open. `directory` is the store directory, as the options give it."""
    return LogLine(Level.NOTICE, f"Store module initialized; dir={printable(directory)}")


def store_truncated(directory: str) -> LogLine:
    """All that the store held was discarded, as the option `truncate` asks."""
    return LogLine(Level.NOTICE, f"Store truncated; dir={printable(directory)}")


def directory_locked() -> LogLine:
    """Another process has the store open. The broker puts `Exception: ` before it where it ends with it."""
    return LogLine(Level.CRITICAL, "Data directory is locked by another process.")


def no_clean_store() -> LogLine:
    """All stores of a cluster are dirty, so none can be started from."""
    return LogLine(Level.CRITICAL, "Cannot recover, no clean store")


def journal_created(name: str) -> LogLine:
    """A journal was built. `name` is its queue's, or `TPL_NAME`."""
    return LogLine(Level.NOTICE, f'Journal "{printable(name)}": Created')


def journal_sizes(files: int, file_pages: int, page_kib: int, pages: int) -> tuple[LogLine, ...]:
    """The sizes that a queue's journal has if its declaration says nothing else (formats/rhm/README.md, 5.6).

    Args:
        files: number of files.
        file_pages: size of one, in pages of 64 KiB.
        page_kib: KiB of a page of the write cache.
        pages: number of pages of the write cache.
    """
    return _sizes("Default", files, file_pages, page_kib, pages)


def tpl_sizes(files: int, file_pages: int, page_kib: int, pages: int) -> tuple[LogLine, ...]:
    """The sizes of the prepared list's journal; arguments as for `journal_sizes`."""
    return _sizes("TPL", files, file_pages, page_kib, pages)


def _sizes(whose: str, files: int, file_pages: int, page_kib: int, pages: int) -> tuple[LogLine, ...]:
    return (
        LogLine(Level.INFO, f"> {whose} files per journal: {files}"),
        LogLine(Level.INFO, f"> {whose} journal file size: {file_pages} (wpgs)"),
        LogLine(Level.INFO, f"> {whose} write cache page size: {page_kib} (KiB)"),
        LogLine(Level.INFO, f"> {whose} number of write cache pages: {pages}"),
    )


# ---- recovery ----


def queue_recovered(queue: str, messages: int, in_doubt: int) -> LogLine:
    """A queue's messages are back (formats/rhm/README.md, 5.6).

    Args:
        queue: its name.
        messages: those that are on the queue again.
        in_doubt: those that a prepared transaction holds, whose outcome is still to come.
    """
    return LogLine(
        Level.INFO,
        f'Recovered queue "{printable(queue)}": {messages} messages recovered; {in_doubt} messages in-doubt.',
    )


def highest_record_id(rid: int) -> LogLine:
    """The highest record id that recovery found; 0 if there was none (formats/rhm/README.md, 5.6)."""
    return LogLine(Level.INFO, f"Most recent persistence id found: 0x{rid:x}")


def transactions_in_doubt(path: str, xids: Sequence[bytes]) -> Iterator[LogLine]:
    """Transactions that were prepared and wait for their transaction manager, with what settles them by hand.

    Args:
        path: the store directory.
        xids: their ids; so many that they would fill the log are counted.
    """
    where = shlex.quote(printable(path))
    for xid in xids[:MAX_IN_DOUBT_LINES]:
        yield LogLine(
            Level.NOTICE,
            f"Transaction {xid.hex()} is in doubt: it was prepared, and its messages are kept and not delivered until "
            "its transaction manager decides. To decide in its place, stop the broker and build a store that it is "
            f"settled in: qstore-recover {where} NEW-DIRECTORY --resolve {xid.hex()}=commit (or =rollback)",
        )
    if len(xids) > MAX_IN_DOUBT_LINES:
        yield LogLine(
            Level.NOTICE,
            f"{len(xids) - MAX_IN_DOUBT_LINES} more transactions are in doubt; when the broker is stopped, "
            f"qstore-dump {where} --transactions lists all {len(xids)}, and qstore-recover has --resolve-all",
        )


# ---- operation ----


def threshold_exceeded(queue: str) -> LogLine:
    """An enqueue was refused, `RHM_IORES_ENQCAPTHRESH`; the client's error begins with the same text."""
    return LogLine(Level.WARNING, f'Enqueue capacity threshold exceeded on queue "{printable(queue)}".')


def journal_full(queue: str) -> LogLine:
    """A record found no room, `RHM_IORES_FULL`; the client's error has the same text."""
    return LogLine(Level.CRITICAL, f'Journal full on queue "{printable(queue)}".')


def journal_failed(failure: str) -> LogLine:
    """A journal's disk has failed. `failure` is what clients are told: which queue, what happened, what follows."""
    advice = "see the kernel's log, put the disk right, and start the broker again: all that was acknowledged is kept"
    return LogLine(Level.CRITICAL, f"{failure}; {advice}")


# ---- the Java broker's operational messages ----


def mst_created(name: str) -> LogLine:
    """MST-1001, the first: there is a store. `name` is its type."""
    return _mst(1001, f"Created : {printable(name)}")


def mst_location(path: str) -> LogLine:
    """MST-1002: where the store is."""
    return _mst(1002, f"Store location : {printable(path)}")


def mst_closed() -> LogLine:
    """MST-1003, the last: the store is closed cleanly."""
    return _mst(1003, "Closed")


def mst_recovery_start(queue: str | None = None) -> LogLine:
    """MST-1004: recovery starts; of one queue if it is named. The one without is logged even if nothing is there."""
    return _mst(1004, _of_queue("Recovery Start", queue))


def mst_recovered(queue: str, messages: int) -> LogLine:
    """MST-1005: how many messages a queue has again; logged for an empty queue, too."""
    return _mst(1005, f"Recovered {messages} message{'' if messages == 1 else 's'} for queue {printable(queue)}")


def mst_recovery_complete(queue: str | None = None) -> LogLine:
    """MST-1006: recovery is complete; of one queue if it is named, of the whole store if none is."""
    return _mst(1006, _of_queue("Recovery Complete", queue))


def _mst(number: int, text: str) -> LogLine:
    return LogLine(Level.NOTICE, f"MST-{number} : {text}")


def _of_queue(text: str, queue: str | None) -> str:
    return text if queue is None else f"{text} : {printable(queue)}"
