"""The known content of a store, recorded outside of its journals, and compared with the content found.

All readers apply these rules to the journals named in the files CLOSED and SYNCED (`formats.rhm.close_record`):

    the store was closed cleanly    a journal's last flush, and its number of messages, are those of CLOSED; each queue
                                    in it is in the catalogue
    in any case                     a journal's last flush is that of CLOSED, and that of SYNCED, or a later one: flush
                                    numbers only increase, and everything in the two files was synced before they were
                                    written
                                    the catalogue and its second copy have the batch named by SYNCED
                                    (`catalogue.topology_copy`)

A journal that was rebuilt since, by a start that saved the readable content of a damaged one or by qstore-resize, has
another journal id or, for the prepared list, a higher incarnation. It is not compared: it is newer than the record. So
is that of a queue which an older version of this software created, and which has no entry. A backup of a running store,
a conversion and qstore-recover make stores without these files; their first start writes them.

If the STORE file states that there is a record of the clean close, but none is readable, that is damage too; so is an
unreadable SYNCED. If that is missing, nothing is known: older software did not write it.

The running store writes SYNCED (`SyncRecorder`).
"""

from __future__ import annotations

import contextlib
import posixpath
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final
from uuid import UUID

from qstore.formats.rhm import store_file
from qstore.formats.rhm.close_record import (
    MAX_JOURNALS,
    MAX_SIZE,
    MAX_SYNCED_SIZE,
    ClosedJournal,
    CloseRecordError,
    SyncedJournal,
    decode_close_record,
    decode_synced,
    encode_close_record,
    encode_synced,
)
from qstore.formats.rhm.jinf import TPL_BASE_NAME
from qstore.store.catalogue.store_directory import EPOCH, StoreDirectory
from qstore.store.damage import Damage, DamageKind, Effect
from qstore.store.disk import Disk, WritableDisk, read_whole
from qstore.store.environment import Background
from qstore.store.errors import disk_advice
from qstore.store.journal.journal import Journal
from qstore.store.journal.reader import JournalEnd
from qstore.store.live.queue_journal import QueueJournal
from qstore.store.log_lines import LogLine, Outage

if TYPE_CHECKING:
    from qstore.store.inspect.layout import StoreLayout

NAME: Final = "CLOSED"
SYNCED: Final = "SYNCED"


class Closing:
    """The way a store was closed, and the point up to which it is known to have been synced.

    Args:
        is_clean: whether it was closed cleanly, and nothing was written since.
        journals: their content at the last clean close; empty if unknown.
        synced: how far they are known to be synced; empty if unknown.
        batch: the number of a batch that the catalogue and its second copy are known to have; 0 if unknown.

    Attributes:
        is_clean, batch: as above.
        journals: journal id, 0 for the prepared list -> its content at the last clean close.
        synced: likewise -> how far it is known to be synced.
    """

    __slots__ = ("batch", "is_clean", "journals", "synced")

    def __init__(
        self,
        *,
        is_clean: bool,
        journals: Iterable[ClosedJournal] = (),
        synced: Iterable[SyncedJournal] = (),
        batch: int = 0,
    ) -> None:
        self.is_clean, self.batch = is_clean, batch
        self.journals = {each.journal_id: each for each in journals}
        self.synced = {each.journal_id: each for each in synced}

    @property
    def has_prepared_list(self) -> bool:
        """Whether the prepared list is known to have existed."""
        return 0 in self.journals or 0 in self.synced

    def list_incarnation(self) -> int:
        """The highest incarnation of the prepared list that is known; 0 if none is."""
        known = (self.journals.get(0), self.synced.get(0))
        return max((each.incarnation for each in known if each is not None), default=0)

    def about(self, journal: Journal) -> Closing:
        """The part about one journal, for reading a single file of it without its info file."""
        number, incarnation = _number_of(journal), None if journal.info is None else journal.info.incarnation
        closed, synced = self.journals.get(number), self.synced.get(number)
        return Closing(
            is_clean=self.is_clean,
            journals=() if closed is None or _is_newer(incarnation, closed) else (closed,),
            synced=() if synced is None or _is_newer(incarnation, synced) else (synced,),
        )

    def contradicted(self, journal: Journal, end: JournalEnd | None, messages: int | None) -> Iterator[Damage]:
        """Damage, if a journal does not have its content at the close.

        Args:
            journal: the journal.
            end: where it ends; None if it has no readable record.
            messages: number of its messages, those that open transactions enqueue included; None to compare flushes
                only.
        """
        number, incarnation = _number_of(journal), None if journal.info is None else journal.info.incarnation
        closed, synced = self.journals.get(number), self.synced.get(number)
        flush = 0 if end is None else end.flush
        found = False
        if closed is not None and not _is_newer(incarnation, closed):
            for damage in self._contradicted(journal.path, closed, incarnation, flush, messages):
                found = True
                yield damage
        if synced is not None and not found and not _is_newer(incarnation, synced):
            yield from _behind(journal.path, synced, incarnation, end)

    def _contradicted(
        self, path: str, closed: ClosedJournal, incarnation: int | None, flush: int, messages: int | None
    ) -> Iterator[Damage]:
        """Damage, if a journal that ends with `flush` does not have its content at the close."""
        if incarnation is not None and incarnation < closed.incarnation:
            yield _of_old_incarnation(path, incarnation, closed.incarnation)
        elif flush < closed.flush or (self.is_clean and flush > closed.flush):
            yield _other_flush(path, closed, flush)
        elif self.is_clean and messages is not None and messages != closed.messages:
            held, lost = closed.messages, closed.messages - messages
            effect = Effect.MESSAGES_COUNTED_LOST if lost > 0 else Effect.CONSUMED_MAY_COME_BACK
            kind = DamageKind.OTHER_MESSAGE_COUNT
            yield Damage(path, None, None, kind, effect, messages=held, now=messages, lost=lost)

    def lost_queues(self, catalogue: str, queue_ids: Collection[int]) -> Iterator[Damage]:
        """Damage, if queues of the record are missing in the catalogue at that path, which has only `queue_ids`."""
        for each in self.journals.values() if self.is_clean else ():
            if each.queue_id and each.queue_id not in queue_ids:
                queue, journal, messages = each.queue_id, each.journal_id, each.messages
                kind = DamageKind.QUEUE_GONE
                yield Damage(catalogue, None, None, kind, queue=queue, journal=journal, messages=messages)


def _number_of(journal: Journal) -> int:
    """The number under which a journal is recorded: that of its directory; -1 if it has none."""
    if journal.base_name == TPL_BASE_NAME:
        return 0
    name = posixpath.basename(journal.path)
    return int(name) if name.isdecimal() else -1


def _is_newer(incarnation: int | None, recorded: ClosedJournal | SyncedJournal) -> bool:
    """Whether a journal was rebuilt since it was recorded."""
    return incarnation is not None and incarnation > recorded.incarnation


def _of_old_incarnation(path: str, recorded: int, incarnation: int) -> Damage:
    kind = DamageKind.OLD_INCARNATION
    return Damage(path, None, None, kind, recorded=recorded, incarnation=incarnation)


def _behind(path: str, synced: SyncedJournal, incarnation: int | None, end: JournalEnd | None) -> Iterator[Damage]:
    """Damage, if a journal ends before the end of a flush that was synced."""
    flush = 0 if end is None else end.flush
    if incarnation is not None and incarnation < synced.incarnation:
        yield _of_old_incarnation(path, incarnation, synced.incarnation)
    elif flush < synced.flush or (flush == synced.flush and end is not None and end.is_cut):
        kind = DamageKind.SYNCED_FLUSHES_LOST if flush else DamageKind.SYNCED_JOURNAL_BLANK
        details = {"then": synced.flush, "now": flush} if flush else {"then": synced.flush}
        yield Damage(path, None, None, kind, **details)


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


# ---- the files ----


def closing_of(disk: Disk, layout: StoreLayout) -> Closing:
    """The record of a store's closing; empty if unreadable, which `inspect.offline` reports as damage."""
    if layout.store_file is not None:
        with contextlib.suppress(store_file.StoreFileError, OSError):
            mark = store_file.decode(read_whole(disk, layout.store_file, store_file.MAX_SIZE + 1))
            return read_closing(disk, posixpath.dirname(layout.store_file), mark)[0]
    return Closing(is_clean=False)


def read_closing(disk: Disk, root: str, mark: store_file.StoreFile) -> tuple[Closing, list[Damage]]:
    """The record of the closing of the store in `root`, with the STORE file `mark`, and the damage to it."""
    journals, damage = _read_closed(disk, posixpath.join(root, NAME), mark)
    batch, synced, more = _read_synced(disk, posixpath.join(root, SYNCED), mark.store_id)
    return Closing(is_clean=mark.clean_close, journals=journals, synced=synced, batch=batch), damage + more


def read_bounds(disk: Disk, root: str, store_id: UUID) -> tuple[Closing, list[Damage]]:
    """As `read_closing`, of a store whose STORE file cannot be read: it counts as not closed cleanly."""
    return read_closing(disk, root, store_file.StoreFile(store_id, False, EPOCH, "unknown"))


def _read_closed(disk: Disk, path: str, mark: store_file.StoreFile) -> tuple[tuple[ClosedJournal, ...], list[Damage]]:
    if mark.clean_close and not mark.close_record:
        return (), []  # closed by a version without such records
    try:
        closed = decode_close_record(read_whole(disk, path, MAX_SIZE + 1))
    except FileNotFoundError:
        return (), [Damage(path, None, None, DamageKind.CLOSE_RECORD_MISSING)] if mark.close_record else []
    except CloseRecordError as error:
        kind = DamageKind.CLOSE_RECORD_CHECKSUM if error.fails_checksum else DamageKind.CLOSE_RECORD_BROKEN
        return (), [Damage(path, error.offset, None, kind, problem=error.what)]
    except OSError as error:
        reason = error.strerror or str(error)
        return (), [Damage(path, None, None, DamageKind.CLOSE_RECORD_UNREADABLE, reason=reason)]
    if closed.store_id != mark.store_id:
        recorded, own = str(closed.store_id), str(mark.store_id)
        return (), [Damage(path, 16, None, DamageKind.CLOSE_RECORD_OF_OTHER_STORE, recorded=recorded, store=own)]
    return closed.journals, []


def _read_synced(disk: Disk, path: str, store_id: UUID) -> tuple[int, tuple[SyncedJournal, ...], list[Damage]]:
    try:
        synced = decode_synced(read_whole(disk, path, MAX_SYNCED_SIZE + 1))
    except FileNotFoundError:
        return 0, (), []  # last opened by a version without such records
    except CloseRecordError as error:
        kind = DamageKind.SYNC_RECORD_CHECKSUM if error.fails_checksum else DamageKind.SYNC_RECORD_BROKEN
        return 0, (), [Damage(path, error.offset, None, kind, problem=error.what)]
    except OSError as error:
        reason = error.strerror or str(error)
        return 0, (), [Damage(path, None, None, DamageKind.SYNC_RECORD_UNREADABLE, reason=reason)]
    if synced.store_id != store_id:
        recorded, own = str(synced.store_id), str(store_id)
        return 0, (), [Damage(path, 16, None, DamageKind.SYNC_RECORD_OF_OTHER_STORE, recorded=recorded, store=own)]
    return synced.batch, synced.journals, []


def closed_journal(journal: QueueJournal) -> ClosedJournal:
    """The content of a sealed journal."""
    return ClosedJournal(
        journal.queue_id,
        _journal_id(journal),
        journal.writer.owner.incarnation,
        journal.writer.last_flush,
        journal.depth,
    )


def _journal_id(journal: QueueJournal) -> int:
    return int(posixpath.basename(journal.directory)) if journal.queue_id else 0


def write_close_record(directory: StoreDirectory, store_id: UUID, journals: Iterable[ClosedJournal]) -> None:
    """Write the record of a store whose journals are sealed. Raises OSError."""
    directory.replace(NAME, encode_close_record(store_id, journals))


def write_synced(directory: StoreDirectory, store_id: UUID, batch: int, journals: Iterable[SyncedJournal]) -> None:
    """Write the record of the synced positions. Raises OSError; the old one remains then."""
    directory.replace(SYNCED, encode_synced(store_id, batch, journals))


def remove_close_record(disk: WritableDisk, directory: StoreDirectory) -> None:
    """Remove the record, if there is one: a journal in it was created anew. Raises OSError."""
    path = directory.part(NAME)
    if disk.is_file(path):
        disk.remove(path)
        disk.sync_directory(directory.root)


# ---- while the store runs ----

INTERVAL_SECONDS: Final = 5.0
"""Between two records while journals are written to; soon after a change of the topology."""
_SOON_SECONDS: Final = 1.0
_PORTION: Final = 1000
"""Journals that are examined in one turn of the event loop."""


class SyncRecorder:
    """Records how far a running store is synced. Nothing waits for that, and no message costs anything.

    Args:
        directory: the store's.
        store_id: its unique id.
        batch: returns the number of the last batch that the catalogue and its second copy have.
        journals: queue id -> journal; updated by others.
        prepared_list: the prepared list's journal.
        background: writes the file.
        log: receives log lines.
        clock: returns seconds.
    """

    def __init__(
        self,
        directory: StoreDirectory,
        store_id: UUID,
        batch: Callable[[], int],
        journals: Mapping[int, QueueJournal],
        prepared_list: QueueJournal,
        background: Background,
        log: Callable[[LogLine], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory, self._store_id, self._batch = directory, store_id, batch
        self._journals, self._prepared_list = journals, prepared_list
        self._background, self._clock = background, clock
        what = "it cannot be recorded how far the store is synced, which a check after a crash compares with its files"
        self._outage = Outage(what, "how far the store is synced can be recorded again", log)
        self._waiting: deque[QueueJournal] = deque()  # journals still to be examined for the next record
        self._next: tuple[int, list[SyncedJournal]] | None = None  # the next record so far
        self._last: tuple[int, list[SyncedJournal]] | None = None  # the record in the file
        self._is_writing = False
        self._written_at = clock()

    def begin(self, *, is_needed: bool) -> None:
        """Record everything at the start of a store. A disk that is full does not keep it from starting.

        Args:
            is_needed: the old record is no longer true.

        Raises:
            OSError: it is needed, and cannot be written.
        """
        try:
            self.record()
        except OSError as error:
            if is_needed:
                raise
            self._failed(error)

    def record(self) -> None:
        """Record everything now. Raises OSError; the old record remains then."""
        found = [_synced_journal(each) for each in self._everything()]
        content = self._batch(), [each for each in found if each is not None]
        write_synced(self._directory, self._store_id, *content)
        self._last = content
        self._written_at = self._clock()

    def look(self) -> None:
        """Record it in the background, if that is due. Call it about every second."""
        if self._is_writing:
            return
        if self._next is None:
            batch, age = self._batch(), self._clock() - self._written_at
            has_changed = self._last is None or batch != self._last[0]
            if age < (_SOON_SECONDS if has_changed else INTERVAL_SECONDS):
                return
            self._next = batch, []
            self._waiting.extend(self._everything())
        found, waiting = self._next[1], self._waiting
        for _ in range(min(_PORTION, len(waiting))):
            each = _synced_journal(waiting.popleft())
            if each is not None:
                found.append(each)
        if not waiting:
            self._write(self._next)
            self._next = None

    def _everything(self) -> Iterator[QueueJournal]:
        """All journals, or as many as a record can have."""
        yield self._prepared_list
        yield from islice(self._journals.values(), MAX_JOURNALS - 1)

    def _write(self, content: tuple[int, list[SyncedJournal]]) -> None:
        self._written_at = self._clock()
        if content == self._last:
            return

        def work() -> None:
            write_synced(self._directory, self._store_id, *content)

        def done(_: None) -> None:
            self._is_writing, self._last = False, content
            self._outage.worked()

        self._is_writing = True
        self._background.run(work, done, self._failed)

    def _failed(self, error: Exception) -> None:
        self._is_writing = False
        reason, to_do = str(error), disk_advice()
        if isinstance(error, OSError):
            reason, to_do = f"{error.filename or SYNCED}: {error.strerror or error}", disk_advice(error)
        self._outage.failed(reason, to_do)


def _synced_journal(journal: QueueJournal) -> SyncedJournal | None:
    """The position up to which a journal is synced; None if there is nothing to record."""
    flush = journal.writer.last_flush
    if journal.is_deleted or not (flush or not journal.queue_id):
        return None
    return SyncedJournal(journal.queue_id, _journal_id(journal), journal.writer.owner.incarnation, flush)
