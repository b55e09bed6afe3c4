"""The record of the last clean close: the content of each journal of a version-2 store then, compared with the present.

All readers apply this rule to the journals named in the CLOSED file (`formats.rhm.close_record`):

    the store was closed cleanly    a journal's last flush, and its number of messages, are those of the record; each
                                    queue of the record is in the catalogue
    it was in use, and its broker   a journal's last flush is that of the record or a later one: flush numbers only
    died                            increase, and everything in the record was synced before the record was written

A journal that was rebuilt since, by a start that saved the readable content of a damaged one or by qstore-resize, has
another journal id or, for the prepared list, a higher incarnation. It is not compared: it is newer than the record.

If the STORE file states that there is a record, but none is readable, that is damage too.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Collection, Iterable, Iterator
from typing import Final
from uuid import UUID

from qstore.formats.rhm import store_file
from qstore.formats.rhm.close_record import (
    MAX_SIZE,
    ClosedJournal,
    CloseRecordError,
    decode_close_record,
    encode_close_record,
)
from qstore.formats.rhm.jinf import TPL_BASE_NAME
from qstore.store.catalogue.store_directory import StoreDirectory
from qstore.store.damage import Damage
from qstore.store.damage_effects import Effect
from qstore.store.damage_kinds import DamageKind
from qstore.store.disk import Disk, read_whole
from qstore.store.inspect.layout import StoreLayout
from qstore.store.journal.journal import Journal
from qstore.store.journal.reader import JournalEnd
from qstore.store.live.queue_journal import QueueJournal

NAME: Final = "CLOSED"


class Closing:
    """How a store was closed.

    Args:
        is_clean: whether it was closed cleanly, and nothing was written since.
        journals: their content at the last clean close; empty if unknown.

    Attributes:
        is_clean: as above.
        journals: journal id, 0 for the prepared list -> its content at the last clean close.
    """

    __slots__ = ("is_clean", "journals")

    def __init__(self, *, is_clean: bool, journals: Iterable[ClosedJournal] = ()) -> None:
        self.is_clean = is_clean
        self.journals = {each.journal_id: each for each in journals}

    def of(self, path: str, base_name: str) -> ClosedJournal | None:
        """The recorded content of the journal in the directory `path`; None if unknown."""
        if base_name == TPL_BASE_NAME:
            return self.journals.get(0)
        name = posixpath.basename(path)
        return self.journals.get(int(name)) if name.isdecimal() else None

    def about(self, journal: Journal) -> Closing:
        """The part about one journal, for reading a single file of it without its info file."""
        closed = self.of(journal.path, journal.base_name)
        is_newer = closed is not None and journal.info is not None and journal.info.incarnation > closed.incarnation
        return Closing(is_clean=self.is_clean, journals=() if closed is None or is_newer else (closed,))

    def contradicted(self, journal: Journal, end: JournalEnd | None, messages: int | None) -> Iterator[Damage]:
        """Damage, if a journal does not have its content at the close.

        Args:
            journal: the journal.
            end: where it ends; None if it has no readable record.
            messages: number of its messages, those that open transactions enqueue included; None to compare flushes
                only.
        """
        closed = self.of(journal.path, journal.base_name)
        if closed is None or (journal.info is not None and journal.info.incarnation > closed.incarnation):
            return
        if journal.info is not None and journal.info.incarnation < closed.incarnation:
            recorded, incarnation = journal.info.incarnation, closed.incarnation
            yield Damage(
                journal.path, None, None, DamageKind.OLD_INCARNATION, recorded=recorded, incarnation=incarnation
            )
            return
        flush = 0 if end is None else end.flush
        if flush < closed.flush or (self.is_clean and flush > closed.flush):
            yield _other_flush(journal.path, closed, flush)
        elif self.is_clean and messages is not None and messages != closed.messages:
            held, lost = closed.messages, closed.messages - messages
            effect = Effect.MESSAGES_COUNTED_LOST if lost > 0 else Effect.CONSUMED_MAY_COME_BACK
            kind = DamageKind.OTHER_MESSAGE_COUNT
            yield Damage(journal.path, None, None, kind, effect, messages=held, now=messages, lost=lost)

    def lost_queues(self, catalogue: str, queue_ids: Collection[int]) -> Iterator[Damage]:
        """Damage, if queues of the record are missing in the catalogue at that path, which has only `queue_ids`."""
        for each in self.journals.values() if self.is_clean else ():
            if each.queue_id and each.queue_id not in queue_ids:
                queue, journal, messages = each.queue_id, each.journal_id, each.messages
                kind = DamageKind.QUEUE_GONE
                yield Damage(catalogue, None, None, kind, queue=queue, journal=journal, messages=messages)


def _other_flush(path: str, closed: ClosedJournal, flush: int) -> Damage:
    """The damage of a journal that ends with another flush than at the close."""
    if not closed.flush:
        return Damage(path, None, None, DamageKind.NO_LONGER_EMPTY, now=flush)
    then, held = closed.flush, closed.messages
    if not flush:
        effect = Effect.HELD_LOST if held else Effect.HELD_NO_MESSAGE
        return Damage(path, None, None, DamageKind.NO_RECORD_LEFT, effect, then=then, messages=held)
    effect = Effect.OF_ANOTHER_TIME if flush > then else Effect.WRITTEN_SINCE_LOST
    return Damage(path, None, None, DamageKind.OTHER_FLUSH, effect, then=then, messages=held, now=flush)


# ---- the file ----


def closing_of(disk: Disk, layout: StoreLayout) -> Closing:
    """How a store was closed; empty if that is unreadable, which `surroundings` reports as damage."""
    if layout.store_file is not None:
        with contextlib.suppress(store_file.StoreFileError, OSError):
            mark = store_file.decode(read_whole(disk, layout.store_file, store_file.MAX_SIZE + 1))
            return read_closing(disk, posixpath.dirname(layout.store_file), mark)[0]
    return Closing(is_clean=False)


def read_closing(disk: Disk, root: str, mark: store_file.StoreFile) -> tuple[Closing, list[Damage]]:
    """How the store in `root`, with the STORE file `mark`, was closed, and the damage to that information."""
    path = posixpath.join(root, NAME)
    nothing = Closing(is_clean=mark.clean_close)
    if mark.clean_close and not mark.close_record:
        return nothing, []  # closed by a version without such records
    if not disk.is_file(path):
        if not mark.close_record:
            return nothing, []
        return nothing, [Damage(path, None, None, DamageKind.CLOSE_RECORD_MISSING)]
    try:
        closed = decode_close_record(read_whole(disk, path, MAX_SIZE + 1))
    except CloseRecordError as error:
        kind = DamageKind.CLOSE_RECORD_CHECKSUM if error.fails_checksum else DamageKind.CLOSE_RECORD_BROKEN
        return nothing, [Damage(path, error.offset, None, kind, problem=error.what)]
    except OSError as error:
        reason = error.strerror or str(error)
        return nothing, [Damage(path, None, None, DamageKind.CLOSE_RECORD_UNREADABLE, reason=reason)]
    if closed.store_id != mark.store_id:
        recorded, own = str(closed.store_id), str(mark.store_id)
        return nothing, [Damage(path, 16, None, DamageKind.CLOSE_RECORD_OF_OTHER_STORE, recorded=recorded, store=own)]
    return Closing(is_clean=mark.clean_close, journals=closed.journals), []


def closed_journal(journal: QueueJournal) -> ClosedJournal:
    """The content of a sealed journal."""
    is_queue = journal.queue_id != 0
    return ClosedJournal(
        journal.queue_id,
        int(posixpath.basename(journal.directory)) if is_queue else 0,
        journal.writer.owner.incarnation,
        journal.writer.last_flush,
        journal.depth,
    )


def write_close_record(directory: StoreDirectory, store_id: UUID, journals: Iterable[ClosedJournal]) -> None:
    """Write the record of a store whose journals are sealed. Raises OSError."""
    directory.replace(NAME, encode_close_record(store_id, journals))
