"""A snapshot: the state of a whole store at one moment, kept unchanged while it is copied or followed.

    barrier      everything appended so far is synced
    cut          then, at one moment on the event loop's thread: how far each journal, and the prepared list, is synced.
                 The oldest file that holds live records is pinned, so that it and all later ones are not overwritten
    checkpoint   the catalogue is copied by a background job that is submitted at that same moment

A power loss at the moment of the cut could have left the same state, so recovery's own rules make a consistent store of
it: a transaction is in it completely, in doubt, or not at all.

The catalogue's changes are made in order. So the copy has every change requested before the cut and none requested
after it, and every record id up to the cut is reserved in it. A queue that only the catalogue's copy has was being
created, and is empty; one that only the cut has was being deleted, and is omitted. Directories of queues that are
deleted later stay until the snapshot is released (`held_directories`).

Pins never cause a record to be refused: if a journal is short of room they are broken, and the snapshot is overtaken in
that journal. After copying a journal, check that its pin held all the time.

To follow a journal, start at `end`, after the flush of number `flush`, and take a new snapshot, which is cheap, before
releasing the old one.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from qstore.formats.catalogue import QueueEntry
from qstore.formats.errors import RhmError
from qstore.formats.rhm.geometry import BLOCK_SIZE, Geometry
from qstore.formats.rhm.jinf import DEFAULT_BASE_NAME, MAX_JINF_SIZE, decode_jinf
from qstore.store.catalogue.catalogue import Catalogue
from qstore.store.catalogue.store_directory import StoreDirectory, remove_tree
from qstore.store.disk import WritableDisk, read_whole
from qstore.store.environment import Background
from qstore.store.errors import StoreError
from qstore.store.journal.directory import INFO_SUFFIX, data_path
from qstore.store.journal.write.space import Cut, FileRing
from qstore.store.key_value import CatalogueError
from qstore.store.live.flusher import Flusher
from qstore.store.live.held_directories import HeldDirectories
from qstore.store.live.queue_journal import QueueJournal


class JournalSnapshot(NamedTuple):
    """One journal at the moment of the cut. Files are counted over all laps, as its writer does.

    Attributes:
        queue_id: its queue's number; 0 for the prepared list.
        directory: where it is.
        base_name: the common prefix of its files' names.
        geometry: number and size of its files.
        cut: its extent; None for a queue that was being created.
    """

    queue_id: int
    directory: str
    base_name: str
    geometry: Geometry
    cut: Cut | None

    @property
    def holds(self) -> bool:
        """Whether nothing of it has been overwritten."""
        return self.cut is None or self.cut.pin.holds

    def let_go(self) -> None:
        """Release its pin, so that its files may be overwritten."""
        if self.cut is not None:
            self.cut.pin.holds = False

    @property
    def ring(self) -> FileRing:
        """The order of its files."""
        return FileRing(range(self.geometry.files)) if self.cut is None else self.cut.ring

    def file_at(self, place: int) -> int | None:
        """The file, counted over all laps, at this position in the ring; None if it was never entered."""
        cut = self.cut
        if cut is None or not self.size:
            return None
        last = (cut.end - 1) // self._file_blocks
        file = last - (cut.ring.place(last) - place) % self.geometry.files
        return None if file < cut.first and cut.is_whole else file

    def bytes_in(self, file: int) -> int:
        """Bytes of a file's data area, counted over all laps, that belong to the snapshot; 0 if it is dead."""
        cut = self.cut
        if cut is None or file < cut.first:
            return 0
        blocks = cut.end - file * self._file_blocks
        return max(0, min(blocks, self._file_blocks)) * BLOCK_SIZE

    @property
    def size(self) -> int:
        """Bytes of data area that belong to the snapshot."""
        if self.cut is None:
            return 0
        return max(0, self.cut.end - self.cut.first * self._file_blocks) * BLOCK_SIZE

    def path_of(self, file: int) -> str:
        """The path of a file, counted over all laps."""
        return data_path(self.directory, self.base_name, self.ring.number(file))

    @property
    def _file_blocks(self) -> int:
        return self.geometry.data_size // BLOCK_SIZE


class Snapshot:
    """A store at one moment. All methods but `release` are thread-safe.

    Args:
        store_id: the store's unique id.
        software_version: the version that last marked the store.
        catalogue: the directory of the catalogue's copy, removed when the snapshot is released.
        journals: those of the queues, by number.
        prepared_list: the prepared list's.
        let_go: called once when the snapshot is released.

    Attributes:
        is_released: whether it was released.
        others: as above.
    """

    def __init__(
        self,
        store_id: UUID,
        software_version: str,
        catalogue: str,
        journals: Sequence[JournalSnapshot],
        prepared_list: JournalSnapshot,
        let_go: Callable[[Snapshot], None],
    ) -> None:
        self.store_id, self.software_version = store_id, software_version
        self.catalogue = catalogue
        self.journals, self.prepared_list = journals, prepared_list
        self.is_released = False
        self._let_go = let_go

    @property
    def all_journals(self) -> tuple[JournalSnapshot, ...]:
        """The queues' journals, and the prepared list."""
        return (*self.journals, self.prepared_list)

    @property
    def overtaken(self) -> list[JournalSnapshot]:
        """The journals in which a part of the snapshot may have been overwritten."""
        return [journal for journal in self.all_journals if not journal.holds]

    def release(self) -> None:
        """Release the snapshot. May be called twice, and after the store was closed, which releases it too."""
        if not self.is_released:
            self.is_released = True
            for journal in self.all_journals:
                journal.let_go()
            self._let_go(self)


#: Called in the background with a new snapshot and the content of its catalogue: writes files for other processes.
Describe: TypeAlias = Callable[[Snapshot, Mapping[bytes, bytes]], None]

#: Called once, with a snapshot, or with None and the error.
Taken: TypeAlias = Callable[[Snapshot | None, Exception | None], None]

_CANNOT: Final = "a snapshot cannot be taken"


class Snapshots:
    """Takes the snapshots of one store.

    Args:
        disk: the disk with the store.
        directory: the store's.
        catalogue: its catalogue.
        background: runs the copying of the catalogue.
        flusher: writes the journals to disk.
        journals: queue id -> journal; updated by others.
        prepared_list: the prepared list's journal.
        held: the directories of deleted queues.
    """

    def __init__(
        self,
        disk: WritableDisk,
        directory: StoreDirectory,
        catalogue: Catalogue,
        background: Background,
        flusher: Flusher,
        journals: Mapping[int, QueueJournal],
        prepared_list: QueueJournal,
        held: HeldDirectories,
    ) -> None:
        self._disk, self._directory, self._catalogue = disk, directory, catalogue
        self._background, self._flusher = background, flusher
        self._journals, self._prepared_list, self._held = journals, prepared_list, held
        self._taken: dict[Snapshot, None] = {}
        self._is_closed = False

    def take(self, checkpoint: str, done: Taken, describe: Describe | None = None) -> None:
        """Take a snapshot of everything appended so far.

        Args:
            checkpoint: a directory that does not exist, for the catalogue's copy. It is removed with the snapshot.
            done: called with the snapshot, or with the error: a journal has failed, or the catalogue cannot be copied.
            describe: called before that; it may raise OSError.
        """
        # A failed journal is detected at the cut; it does not matter if its queue is being deleted.
        self._flusher.when_synced(self._everything, lambda _: self._cut(checkpoint, done, describe))
        self._flusher.start()

    def close(self) -> None:
        """Release all snapshots, and refuse new ones."""
        self._is_closed = True
        for snapshot in list(self._taken):
            snapshot.release()

    @property
    def _everything(self) -> tuple[QueueJournal, ...]:
        return (*self._journals.values(), self._prepared_list)

    def _cut(self, checkpoint: str, done: Taken, describe: Describe | None) -> None:
        cuts = {journal.directory: _cut(journal) for journal in self._everything}
        failures = {each.directory: each.writer.failure for each in self._everything if each.writer.failure is not None}

        def work() -> Snapshot:
            self._held.hold()
            try:
                return self._make(checkpoint, cuts, failures, describe)
            except BaseException:
                self._held.let_go()
                raise

        def made(snapshot: Snapshot) -> None:
            kept = {journal.directory for journal in snapshot.all_journals}
            for directory, journal in cuts.items():
                if directory not in kept:
                    journal.let_go()
            self._taken[snapshot] = None
            if self._is_closed:
                snapshot.release()
                done(None, StoreError(f"{_CANNOT}: the store is being closed"))
            else:
                done(snapshot, None)

        def failed(error: Exception) -> None:
            for journal in cuts.values():
                journal.let_go()
            done(None, _told(error))

        self._background.run(work, made, failed)

    def _make(
        self,
        checkpoint: str,
        cuts: Mapping[str, JournalSnapshot],
        failures: Mapping[str, Exception],
        describe: Describe | None,
    ) -> Snapshot:
        """Copy the catalogue, and match its queues with the journals in the cut."""
        directory, disk = self._directory, self._disk
        mark = directory.read_mark()
        if disk.is_directory(checkpoint):
            raise StoreError(f"{checkpoint}: already exists; choose a directory that does not exist")
        try:
            self._catalogue.checkpoint(checkpoint)
            entries = sorted(self._catalogue.queues(), key=lambda entry: entry.queue_id)
            journals = [cuts.get(directory.journal(entry.journal_id)) or self._new(entry) for entry in entries]
            prepared_list = cuts[directory.prepared_list]
            for journal in (*journals, prepared_list):
                if journal.directory in failures:
                    raise StoreError(str(failures[journal.directory]))
            snapshot = Snapshot(
                mark.store_id, mark.software_version, checkpoint, journals, prepared_list, self._released
            )
            if describe is not None:
                describe(snapshot, self._catalogue.content())
        except BaseException:
            with contextlib.suppress(OSError):  # the rest is useless, but harmless
                if disk.is_directory(checkpoint):
                    remove_tree(disk, checkpoint)
            raise
        return snapshot

    def _new(self, entry: QueueEntry) -> JournalSnapshot:
        """The journal of a queue that was being created: its path and size."""
        directory = self._directory.journal(entry.journal_id)
        path = posixpath.join(directory, DEFAULT_BASE_NAME + INFO_SUFFIX)
        try:
            info = decode_jinf(read_whole(self._disk, path, MAX_JINF_SIZE + 1))
        except RhmError as error:
            raise StoreError(f"{path}: {error.what}; the queue's journal is damaged: run qstore-check") from error
        return JournalSnapshot(entry.queue_id, directory, info.base_name, info.geometry, None)

    def _released(self, snapshot: Snapshot) -> None:
        """Release the directories of deleted queues, and remove the catalogue's copy. Errors are ignored."""
        del self._taken[snapshot]

        def work() -> None:
            self._held.let_go()
            if self._disk.is_directory(snapshot.catalogue):
                remove_tree(self._disk, snapshot.catalogue)

        self._background.run(work, lambda _: None, lambda _: None)


def _cut(journal: QueueJournal) -> JournalSnapshot:
    return JournalSnapshot(
        journal.queue_id, journal.directory, journal.base_name, journal.geometry, journal.writer.cut()
    )


def _told(error: Exception) -> Exception:
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return StoreError(f"{_CANNOT}: {where}{error.strerror or error}")
    if isinstance(error, CatalogueError | StoreError):
        return StoreError(f"{_CANNOT}: {error}")
    return error
