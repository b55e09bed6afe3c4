"""A snapshot: the state of a whole store at one moment, held still while it is copied or followed.

    barrier      all that was appended so far is brought onto the disk
    cut          then, at one moment of the event loop's thread: how far each journal, and the prepared list, is synced.
                 The oldest file that holds anything live is pinned, so that none from there on is overwritten
    checkpoint   the catalogue is copied by a job of the background that is given at that same moment

A power loss at the moment of the cut could have left just this, so recovery's own rules make a consistent store of it:
a transaction is in it wholly, in doubt, or not at all.

The catalogue's changes are made in order. So the copy has every change that was asked for before the cut, and none that
was asked for after it, and every record id up to the cut is reserved in it. A queue that only the catalogue's copy has
was being made, and is empty; one that only the cut has was being deleted, and is left out. Directories of queues that
are deleted later stay until the snapshot is let go (`held_directories`).

Pins never have a record refused: where a journal is short of room they are broken, and the snapshot is overtaken in
that journal. Who copies a journal looks afterwards whether its pin held all the while.

Who follows a journal begins at `end`, after the flush of number `flush`, and takes a new snapshot, which is cheap,
before it lets go of the old one.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from formats.catalogue import QueueEntry
from formats.rhm.errors import RhmError
from formats.rhm.geometry import BLOCK_SIZE, Geometry
from formats.rhm.jinf import DEFAULT_BASE_NAME, MAX_JINF_SIZE, decode_jinf
from store.background import Background
from store.catalogue.catalogue import Catalogue
from store.catalogue.store_directory import StoreDirectory, remove_tree
from store.disk import read_whole
from store.errors import StoreError
from store.journal.directory import INFO_SUFFIX, data_path
from store.journal.write.space import Cut
from store.key_value import CatalogueError
from store.live.flusher import Flusher
from store.live.held_directories import HeldDirectories
from store.live.queue_journal import QueueJournal
from store.writable_disk import WritableDisk


class JournalSnapshot(NamedTuple):
    """One journal at the moment of the cut. Files are counted over all laps: the number in the ring is the remainder.

    Attributes:
        queue_id: its queue's number; 0 for the prepared list.
        directory: where it is.
        base_name: what its files' names begin with.
        geometry: number and size of its files.
        cut: how far it goes; None for a queue that was being made.
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
        """Let its files be overwritten."""
        if self.cut is not None:
            self.cut.pin.holds = False

    def file_at(self, number: int) -> int | None:
        """Counted over all laps, the file that has this number in the ring; None if it was never entered."""
        cut = self.cut
        if cut is None or not self.size:
            return None
        last = (cut.end - 1) // self._file_blocks
        file = last - (last - number) % self.geometry.files
        return None if file < cut.first and cut.is_whole else file

    def bytes_in(self, file: int) -> int:
        """Bytes of data area of a file, counted over all laps, that belong to the snapshot; 0 if it is dead."""
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
        return data_path(self.directory, self.base_name, file % self.geometry.files)

    @property
    def _file_blocks(self) -> int:
        return self.geometry.data_size // BLOCK_SIZE


class Snapshot:
    """A store at one moment. All but `release` may be used from any thread.

    Args:
        store_id: the store's own name.
        software_version: what the store was last marked by.
        catalogue: the directory of the catalogue's copy, which goes when the snapshot is let go.
        journals: those of the queues, by number.
        prepared_list: the prepared list's.
        let_go: called once when it is let go.

    Attributes:
        is_released: whether it was let go.
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
        """The journals in which something of the snapshot may be overwritten by now."""
        return [journal for journal in self.all_journals if not journal.holds]

    def release(self) -> None:
        """Let it go. Twice is allowed, and so it is after the store was closed, which does it too."""
        if not self.is_released:
            self.is_released = True
            for journal in self.all_journals:
                journal.let_go()
            self._let_go(self)


#: Called once, with a snapshot, or with None and the error.
Taken: TypeAlias = Callable[[Snapshot | None, Exception | None], None]

_CANNOT: Final = "a snapshot cannot be taken"


class Snapshots:
    """Takes the snapshots of one store.

    Args:
        disk: where the store is.
        directory: the store's.
        catalogue: its catalogue.
        background: where the catalogue is copied.
        flusher: brings the journals onto the disk.
        journals: queue id -> journal; kept up to date by others.
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

    def take(self, checkpoint: str, done: Taken) -> None:
        """Take a snapshot of all that was appended so far.

        Args:
            checkpoint: a directory that does not exist, for the catalogue's copy. It goes with the snapshot.
            done: called with the snapshot, or with the error: a journal has failed, or the catalogue cannot be copied.
        """
        # A journal that fails is seen at the cut; it does not matter where its queue is being deleted.
        self._flusher.when_synced(self._everything, lambda _: self._cut(checkpoint, done))
        self._flusher.start()

    def close(self) -> None:
        """Let go of all that are held, and give out none."""
        self._is_closed = True
        for snapshot in list(self._taken):
            snapshot.release()

    @property
    def _everything(self) -> tuple[QueueJournal, ...]:
        return (*self._journals.values(), self._prepared_list)

    def _cut(self, checkpoint: str, done: Taken) -> None:
        cuts = {journal.directory: _cut(journal) for journal in self._everything}
        failures = {each.directory: each.writer.failure for each in self._everything if each.writer.failure is not None}

        def work() -> Snapshot:
            self._held.hold()
            try:
                return self._make(checkpoint, cuts, failures)
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
        self, checkpoint: str, cuts: Mapping[str, JournalSnapshot], failures: Mapping[str, Exception]
    ) -> Snapshot:
        """Copy the catalogue, and match its queues with the journals that were cut."""
        directory, disk = self._directory, self._disk
        mark = directory.read_mark()
        if disk.is_directory(checkpoint):
            raise StoreError(f"{checkpoint}: there is something already; name a directory that does not exist")
        try:
            self._catalogue.checkpoint(checkpoint)
            entries = sorted(self._catalogue.queues(), key=lambda entry: entry.queue_id)
            journals = [cuts.get(directory.journal(entry.journal_id)) or self._new(entry) for entry in entries]
            prepared_list = cuts[directory.prepared_list]
            for journal in (*journals, prepared_list):
                if journal.directory in failures:
                    raise StoreError(str(failures[journal.directory]))
        except BaseException:
            with contextlib.suppress(OSError):  # what cannot be removed is of no use to anybody
                if disk.is_directory(checkpoint):
                    remove_tree(disk, checkpoint)
            raise
        return Snapshot(mark.store_id, mark.software_version, checkpoint, journals, prepared_list, self._released)

    def _new(self, entry: QueueEntry) -> JournalSnapshot:
        """The journal of a queue that was being made: its place and size."""
        directory = self._directory.journal(entry.journal_id)
        path = posixpath.join(directory, DEFAULT_BASE_NAME + INFO_SUFFIX)
        try:
            info = decode_jinf(read_whole(self._disk, path, MAX_JINF_SIZE + 1))
        except RhmError as error:
            raise StoreError(f"{path}: {error.what}; the queue's journal is damaged: see qstore-check") from error
        return JournalSnapshot(entry.queue_id, directory, info.base_name, info.geometry, None)

    def _released(self, snapshot: Snapshot) -> None:
        """Let deleted queues' directories go, and remove the catalogue's copy. What cannot be removed is left."""
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
