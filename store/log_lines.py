"""The store's lines in the broker's log: one function for each event, which returns the text and its level.

Nothing is logged here: the caller passes the lines to its logger, and tools may print them. The wording is qpidd's own
wherever a document gives it, since people search logs, and scripts watch them, for these texts. "own" marks the others:

    event                                   level     wording from
    --------------------------------------  --------  ------------------------------------------------------------
    an option is corrected                  warning   MRG 2 Messaging User Guide, 6.3, below the minimum
    an option is not needed, or idle        notice    own
    the store is ready                      notice    MRG 2 Messaging User Guide, 6.2
    a journal is created                    notice    MRG 2 Messaging User Guide, 6.2
    default sizes of journals               info      formats/rhm/README.md, 5.6
    a queue is recovered                    info      formats/rhm/README.md, 5.6
    the highest record id                   info      formats/rhm/README.md, 5.6
    a transaction is in doubt               notice    own
    the store is truncated                  notice    own
    the store is locked                     critical  MRG 2 Messaging User Guide, 6.2
    no store of a cluster is clean          critical  MRG 2 Messaging User Guide, 7.5.4
    an enqueue is over the threshold        warning   formats/rhm/README.md, 3.5
    a journal is full                       critical  formats/rhm/README.md, 3.5
    a journal has grown or shrunk           info      own
    a journal has failed                    critical  own
    a failure persists, and is over         critical, notice  own
    MST-1001 to MST-1006                    notice    Qpid wiki, "Configure Operational Status Logging"

The last are the messages of the Java broker's stores, in this order; the option `mst-log` enables them:

    1001 created, 1002 location, 1004 recovery starts;
    for each queue: 1004 starts, 1005 number of messages, 1006 complete;
    1006 recovery of the whole store complete; and finally 1003 closed

Clients choose the names of queues, so characters that could break a line or control a terminal are escaped.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import Final

from qstore.formats.named_tuple import NamedTuple
from qstore.formats.wording import printable
from qstore.store.disk import MOVED

MAX_IN_DOUBT_LINES: Final = 20
ENQCAPTHRESH: Final = "RHM_IORES_ENQCAPTHRESH"
"""The name of qpidd's error for a journal that is 80 % full, which its manual and wiki tell operators to search for."""
TPL_NAME: Final = "TplStore"  # the name of the prepared list's journal


class Level(StrEnum):
    """The log levels that the store uses, by the broker's names."""

    INFO = "info"
    NOTICE = "notice"
    WARNING = "warning"
    CRITICAL = "critical"


class LogLine(NamedTuple):
    """One line for the log.

    Attributes:
        level: its severity.
        text: the line, without time and level.
    """

    level: Level
    text: str


# ---- options ----


def below_minimum(parameter: str, value: int, minimum: int) -> LogLine:
    """A number was raised to the smallest legal value."""
    return LogLine(
        Level.WARNING,
        f"parameter {parameter} ({value}) is below allowable minimum ({minimum}); "
        "changing this parameter to minimum value.",
    )


def above_maximum(parameter: str, value: int, maximum: int) -> LogLine:
    """A number was lowered to the largest legal value."""
    return LogLine(
        Level.WARNING,
        f"parameter {parameter} ({value}) is above allowable maximum ({maximum}); "
        "changing this parameter to maximum value.",
    )


def not_legal(parameter: str, value: int, rule: str, corrected: int) -> LogLine:
    """An illegal number within the range was replaced by the nearest legal one.

    Args:
        parameter: its name.
        value: the number given.
        rule: the requirement: "a power of 2".
        corrected: the number used.
    """
    return LogLine(
        Level.WARNING, f"parameter {parameter} ({value}) is not {rule}; changing this parameter to {corrected}."
    )


def not_needed(option: str, reason: str) -> LogLine:
    """An option of another store was given that has no effect here."""
    return LogLine(Level.NOTICE, f"option {option} is not needed here and has no effect: {reason}")


def no_effect(parameter: str, reason: str) -> LogLine:
    """An option, or a queue's argument, has no effect beside others, for a reason."""
    return LogLine(Level.NOTICE, f"parameter {parameter} has no effect: {reason}")


# ---- start ----


def store_initialized(directory: str) -> LogLine:
    """The store is open. `directory` is the store directory, as given in the options."""
    return LogLine(Level.NOTICE, f"Store module initialized; dir={printable(directory)}")


def store_truncated(directory: str) -> LogLine:
    """The content of the store was discarded, as the option `truncate` requires."""
    return LogLine(Level.NOTICE, f"Store truncated; dir={printable(directory)}")


def store_moved(directory: str) -> LogLine:
    """The store directory, or one in it, is not at its path any more."""
    what = f"{MOVED} while the store is open"
    effect = "what is there now is not changed, and the store is not closed cleanly"
    advice = "stop the broker, put the directory back, and start it again"
    return LogLine(Level.CRITICAL, f"{printable(directory)}: {what}: {effect}; {advice}")


def directory_locked() -> LogLine:
    """Another process has the store open. If the broker exits because of it, it prefixes `Exception: `."""
    return LogLine(Level.CRITICAL, "Data directory is locked by another process.")


def no_clean_store() -> LogLine:
    """All stores of a cluster are dirty, so the cluster cannot start from any of them."""
    return LogLine(Level.CRITICAL, "Cannot recover, no clean store")


def journal_created(name: str) -> LogLine:
    """A journal was created. `name` is its queue's, or `TPL_NAME`."""
    return LogLine(Level.NOTICE, f'Journal "{printable(name)}": Created')


def journal_sizes(files: int, file_pages: int, page_kib: int, pages: int) -> tuple[LogLine, ...]:
    """The default size of a queue's journal (formats/rhm/README.md, 5.6).

    Args:
        files: number of files.
        file_pages: size of a file, in pages of 64 KiB.
        page_kib: size of a page of the write cache, in KiB.
        pages: number of pages of the write cache.
    """
    return _sizes("Default", files, file_pages, page_kib, pages)


def tpl_sizes(files: int, file_pages: int, page_kib: int, pages: int) -> tuple[LogLine, ...]:
    """The size of the prepared list's journal; arguments as for `journal_sizes`."""
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
    """A queue's messages were recovered (formats/rhm/README.md, 5.6).

    Args:
        queue: its name.
        messages: those that are on the queue again.
        in_doubt: those that a prepared, undecided transaction holds.
    """
    return LogLine(
        Level.INFO,
        f'Recovered queue "{printable(queue)}": {messages} messages recovered; {in_doubt} messages in-doubt.',
    )


def highest_record_id(rid: int) -> LogLine:
    """The highest record id that recovery found; 0 for none (formats/rhm/README.md, 5.6)."""
    return LogLine(Level.INFO, f"Most recent persistence id found: 0x{rid:x}")


def transactions_in_doubt(path: str, xids: Sequence[bytes]) -> Iterator[LogLine]:
    """Prepared transactions that wait for their transaction manager, with the command that resolves them manually.

    Args:
        path: the store directory.
        xids: their ids; those above `MAX_IN_DOUBT_LINES` are only counted.
    """
    where = shlex.quote(printable(path))
    for xid in xids[:MAX_IN_DOUBT_LINES]:
        yield LogLine(
            Level.NOTICE,
            f"Transaction {xid.hex()} is in doubt: it is prepared, and its messages are kept but not delivered until "
            "its transaction manager decides. To decide manually: qstore-shell amqp://HOST --yes -c "
            f"'resolve {xid.hex()} commit' (or rollback); while the broker is stopped, with {where} instead of amqp://HOST",
        )
    if len(xids) > MAX_IN_DOUBT_LINES:
        yield LogLine(
            Level.NOTICE,
            f"{len(xids) - MAX_IN_DOUBT_LINES} more transactions are in doubt: qstore-shell amqp://HOST -c 'list "
            f"transactions' lists all {len(xids)}; while the broker is stopped, qstore-recover {where} NEW-DIRECTORY "
            "--resolve-all commit (or rollback) creates a store in which all are decided",
        )


def content_damaged(queue: str, rid: int, problem: str) -> LogLine:
    """The compressed content of a message cannot be restored. The record is kept."""
    return LogLine(
        Level.CRITICAL,
        f'Message 0x{rid:x} of queue "{printable(queue)}" is not delivered: {problem}; its record is kept in the '
        "journal: qstore-dump shows what is readable of it, and qstore-recover moves it to a quarantine",
    )


# ---- operation ----


def threshold_exceeded(queue: str) -> LogLine:
    """An enqueue was refused; the client's error starts with the same text, and ends with the same code."""
    return LogLine(
        Level.WARNING, f'Enqueue capacity threshold exceeded on queue "{printable(queue)}" ({ENQCAPTHRESH}).'
    )


def journal_full(queue: str) -> LogLine:
    """A record was refused, `RHM_IORES_FULL`; the client's error has the same text."""
    return LogLine(Level.CRITICAL, f'Journal full on queue "{printable(queue)}".')


def journal_has_files(queue: str, files: int, size: int) -> LogLine:
    """A journal has grown or shrunk to that many files, of `size` bytes in all."""
    return LogLine(Level.INFO, f'The journal of queue "{printable(queue)}" has {files:,} files now, {size >> 20} MiB')


def journal_failed(failure: str) -> LogLine:
    """A journal's disk has failed. `failure` is the error sent to clients: the queue, the cause, the consequences."""
    advice = "see the kernel log, repair the disk, and restart the broker: no acknowledged message is lost"
    return LogLine(Level.CRITICAL, f"{failure}; {advice}")


# ---- the Java broker's operational messages ----


def mst_created(name: str) -> LogLine:
    """MST-1001, the first: the store exists. `name` is its type."""
    return _mst(1001, f"Created : {printable(name)}")


def mst_location(path: str) -> LogLine:
    """MST-1002: the path of the store."""
    return _mst(1002, f"Store location : {printable(path)}")


def mst_closed() -> LogLine:
    """MST-1003, the last: the store was closed cleanly."""
    return _mst(1003, "Closed")


def mst_recovery_start(queue: str | None = None) -> LogLine:
    """MST-1004: recovery of the named queue, or of the store, starts. The latter is logged even for an empty store."""
    return _mst(1004, _of_queue("Recovery Start", queue))


def mst_recovered(queue: str, messages: int) -> LogLine:
    """MST-1005: the number of messages recovered for a queue; also logged for an empty queue."""
    return _mst(1005, f"Recovered {messages} message{'' if messages == 1 else 's'} for queue {printable(queue)}")


def mst_recovery_complete(queue: str | None = None) -> LogLine:
    """MST-1006: recovery of the named queue, or of the whole store, is complete."""
    return _mst(1006, _of_queue("Recovery Complete", queue))


def _mst(number: int, text: str) -> LogLine:
    return LogLine(Level.NOTICE, f"MST-{number} : {text}")


def _of_queue(text: str, queue: str | None) -> str:
    return text if queue is None else f"{text} : {printable(queue)}"


# ---- failures that persist ----


class Outage:
    """Logs a persistent failure twice: when it first occurs, and when it is over.

    Each failing request returns an error; the log, which an operator watches, gets one critical line with advice, and a
    notice when the failure is over.

    Args:
        what: the failure: `the catalogue cannot be written`.
        again: the notice when it is over: `the catalogue can be written again`.
        log: receives log lines.
    """

    __slots__ = ("_again", "_is_out", "_log", "_what")

    def __init__(self, what: str, again: str, log: Callable[[LogLine], None]) -> None:
        self._what, self._again, self._log = what, again, log
        self._is_out = False

    def failed(self, reason: str, to_do: str) -> None:
        """An attempt failed."""
        if not self._is_out:
            self._is_out = True
            self._log(LogLine(Level.CRITICAL, f"{self._what}: {reason}; {to_do}"))

    def worked(self) -> None:
        """An attempt succeeded."""
        if self._is_out:
            self._is_out = False
            self._log(LogLine(Level.NOTICE, self._again))
