"""A snapshot: the state of a whole store at one moment, kept unchanged while it is copied or followed.

    barrier      everything appended so far is synced
    cut          then, at one moment on the event loop's thread: the synced end of each journal and of the prepared list
                 is noted. The oldest file with live records is pinned, so that it and all later ones are not
                 overwritten
    checkpoint   the catalogue is copied by a background job submitted at the same moment

A power loss at the moment of the cut could have left the same state, so recovery's own rules make a consistent store of
it: a transaction is in it completely, in doubt, or not at all.

The catalogue's changes are made in order. So the copy has every change requested before the cut and none requested
after it, and every record id up to the cut is reserved in it. A queue that is only in the catalogue's copy was being
created, and is empty; one that is only in the cut was being deleted, and is omitted. Directories of queues deleted
later stay until the snapshot is released (`growth`).

Pins never cause a record to be refused: if a journal is short of room they are broken, and the snapshot is overtaken in
that journal. After copying a journal, check that its pin has held all the time.

To follow a journal, start at `end`, after the flush of number `flush`, and take a new snapshot, which is cheap, before
releasing the old one.

**Shared snapshots** are for another process, which reads the store's files itself: the backup of a running broker is
made from one.

    rhm.snapshots/<number>/catalogue/   the catalogue's copy
                           topology     the same in its second form
                           STORE        the mark of the copy: not clean
                           CUT          the extent of each journal in the snapshot (`encode_cut`)

The reader finds all of that, copies the journals (`JournalImage`), and reports each finished one; the answer says
whether the journal's pin has held all the time. The messages never pass through the process that has the store open,
which continues as before, except that its journals grow while they are pinned.

When the snapshot is released, its directory is removed; after a kill, by the next start.

**CUT** describes a snapshot in a file, for another process that reads the journals itself, in JSON.

key                 value
------------------  --------------------------------------------------------------------------------------------
format, version     "qstore-cut", 1
store_id            the store's id, in hex
software            the version that last marked the store
journals            those of the queues, by number, and last the prepared list's. Each has

queue_id        the queue's number; 0 for the prepared list
directory       below the root of the store: jrnl/7
base_name       the common prefix of its files' names
files, size     number of its files, and bytes of data in each
cut             null for a queue that was being created, or: first file, end, flush, whether it is whole, origin
and lap of the ring, blocks that were free; see `journal.write.space.Cut`
ring            the numbers of its files in their order; null for 0, 1, 2 and so on

**Images.** The files of a journal in a copy of a snapshot are described before they are copied: the beginning of each,
and the file with the rest.

A journal's files in the copy, with the same sizes as in the store:

    file                                     in the copy
    ---------------------------------------  ------------------------------------------------------------------
    has live records, or is after one        its header, its bytes up to the cut, zeros
    dead: older than those                   a header that states that no record begins in it, zeros
    never entered                            its creation header, if the journal has such headers, and zeros

Dead files are not read, since they may be overwritten at any time; but if they were blank, the ring would appear never
to have wrapped, or to have lost a file. If one is dead, files that were never entered count as dead too, as files of a
lap before the first: then the ring is full, like every ring with dead files.

The bytes are not verified: damage is copied unchanged, and reported when the copy is opened or checked.

**Copies.** The copy of a snapshot is a backup: a whole store in another directory.

    rhm/STORE         written last, and not clean: the copy opens as after a crash
        catalogue/    a copy of the snapshot's
        topology      the same in its second form
        jrnl/<id>/    the part of each journal before the cut
        tpl/          likewise

It is built in `rhm.new` under the target's lock, synced, and renamed to `rhm` when complete, like every new store. So a
partial copy is never taken for a store; after a crash the next copy to that directory removes it. Journals that the
store had set aside (`orphans`, `quarantine`) are not copied, nor is a converted store.
"""

from __future__ import annotations

import contextlib
import errno
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeAlias
from uuid import UUID

from orjson import dumps, loads

from qstore.formats.catalogue import QueueEntry
from qstore.formats.errors import RhmError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm import store_file
from qstore.formats.rhm.file_header import (
    CREATION_SLOT,
    SLOT_SIZE,
    FileHeader,
    decode_file_header,
    encode_file_header,
    encode_header_slot,
)
from qstore.formats.rhm.geometry import BLOCK_SIZE, DATA_OFFSET, FILE_HEADER_SIZE, MAX_RING_FILES, Geometry
from qstore.formats.rhm.jinf import (
    DEFAULT_BASE_NAME,
    MAX_JINF_SIZE,
    JournalInfo,
    decode_jinf,
    encode_jinf,
    is_plain_ring,
)
from qstore.formats.topology_copy import encode_snapshot
from qstore.store.catalogue.catalogue import Catalogue
from qstore.store.catalogue.store_directory import EPOCH, LOCK, MIN_ROOM, StoreDirectory, remove_tree
from qstore.store.catalogue.topology_copy import NAME as TOPOLOGY
from qstore.store.catalogue.topology_copy import batch_of
from qstore.store.disk import Disk, ReadableFile, WritableDisk, WritableFile, read_whole, write_new
from qstore.store.environment import Background, Environment
from qstore.store.errors import StoreError, disk_advice
from qstore.store.journal.directory import INFO_SUFFIX, data_path
from qstore.store.journal.write.space import Cut, FileRing, Pin
from qstore.store.journal.write.storage import creation_header
from qstore.store.key_value import CatalogueError
from qstore.store.live.commit import Flusher
from qstore.store.live.growth import HeldDirectories
from qstore.store.live.queue_journal import QueueJournal
from qstore.store.unfinished import DISCARDED, LIST, NEW, SNAPSHOTS, STORE


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
        has_hosts: whether there may be virtual hosts other than "/".
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
        has_hosts: bool,
        catalogue: str,
        journals: Sequence[JournalSnapshot],
        prepared_list: JournalSnapshot,
        let_go: Callable[[Snapshot], None],
    ) -> None:
        self.store_id, self.software_version, self.has_hosts = store_id, software_version, has_hosts
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
        name_all: writes the info files that still lack the name of their queue.
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
        name_all: Callable[[], None],
    ) -> None:
        self._disk, self._directory, self._catalogue = disk, directory, catalogue
        self._background, self._flusher = background, flusher
        self._journals, self._prepared_list, self._held = journals, prepared_list, held
        self._name_all = name_all
        self._taken: dict[Snapshot, None] = {}
        self._is_closed = False

    def take(self, checkpoint: str, done: Taken, describe: Describe | None = None) -> None:
        """Take a snapshot of everything appended so far.

        Args:
            checkpoint: a directory that does not exist, for the catalogue's copy. It is removed with the snapshot.
            done: called with the snapshot, or with the error: a journal has failed, or the catalogue cannot be copied.
            describe: called before `done`; may raise OSError.
        """
        # A failed journal is detected at the cut; failures of queues being deleted do not matter.
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
            self._name_all()
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
            done(None, _as_store_error(error))

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
                mark.store_id, mark.software_version, mark.has_hosts, checkpoint, journals, prepared_list,
                self._released,
            )  # fmt: skip
            if describe is not None:
                describe(snapshot, self._catalogue.content())
        except BaseException:
            with contextlib.suppress(OSError):  # leftovers are useless, but harmless
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


def _as_store_error(error: Exception) -> Exception:
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return StoreError(f"{_CANNOT}: {where}{error.strerror or error}")
    if isinstance(error, CatalogueError | StoreError):
        return StoreError(f"{_CANNOT}: {error}")
    return error


CUT: Final = "CUT"


class SharedSnapshot:
    """A snapshot that another process reads.

    Args:
        snapshot: the snapshot.
        directory: the directory of the store.
        name: the path of its own directory below that.
        remove: removes that directory.

    Attributes:
        directory, name: as above.
    """

    def __init__(self, snapshot: Snapshot, directory: str, name: str, remove: Callable[[], None]) -> None:
        self.directory, self.name = directory, name
        self._snapshot, self._remove = snapshot, remove
        self._journals: dict[int, JournalSnapshot] = {each.queue_id: each for each in snapshot.all_journals}

    def copied(self, queue_ids: Iterable[int]) -> list[int]:
        """Unpin the journals of these queues (0: the prepared list), which were copied.

        Returns:
            Those that may have been overwritten in part before, or are not in the snapshot.
        """
        overtaken = []
        for queue_id in queue_ids:
            journal = self._journals.pop(queue_id, None)
            if journal is None or not journal.holds or self._snapshot.is_released:
                overtaken.append(queue_id)
            if journal is not None:
                journal.let_go()
        return overtaken

    def release(self) -> None:
        """Release the snapshot, and remove its directory. May be called twice."""
        if not self._snapshot.is_released:
            self._snapshot.release()
            self._remove()


#: Called once, with a snapshot, or with None and the error.
Shared: TypeAlias = Callable[[SharedSnapshot | None, Exception | None], None]


class SharedSnapshots:
    """Takes the snapshots of one store that other processes read.

    Args:
        environment: disk and clock.
        directory: the store's.
        snapshots: takes them.
        background: makes and removes their directories.
    """

    def __init__(
        self, environment: Environment, directory: StoreDirectory, snapshots: Snapshots, background: Background
    ) -> None:
        self._environment, self._directory, self._background = environment, directory, background
        self._snapshots = snapshots
        self._taken = 0

    def take(self, done: Shared) -> None:
        """Take a snapshot of everything appended so far."""
        self._taken += 1
        name = f"{SNAPSHOTS}/{self._taken}"
        path = self._directory.below(SNAPSHOTS, str(self._taken))

        def begin() -> None:
            for each in (self._directory.below(SNAPSHOTS), path):
                if not self._environment.disk.is_directory(each):
                    self._environment.disk.make_directory(each)

        def describe(snapshot: Snapshot, entries: Mapping[bytes, bytes]) -> None:
            self._describe(path, snapshot, entries)

        def remove() -> None:
            self._background.run(lambda: self._remove(path), lambda _: None, lambda _: None)

        def taken(snapshot: Snapshot | None, error: Exception | None) -> None:
            if snapshot is None:
                remove()
                done(None, error)
            else:
                done(SharedSnapshot(snapshot, self._directory.path, name, remove), None)

        self._background.run(begin, lambda _: None, lambda _: None)  # if this fails, so does the copy of the catalogue
        self._snapshots.take(posixpath.join(path, "catalogue"), taken, describe)

    def _describe(self, path: str, snapshot: Snapshot, entries: Mapping[bytes, bytes]) -> None:
        """Write the files that the other process needs besides the catalogue. Raises OSError."""
        disk = self._environment.disk
        content = encode_snapshot(snapshot.store_id, batch_of(entries), entries)
        write_new(disk, posixpath.join(path, TOPOLOGY), content + bytes(max(MIN_ROOM, len(content))))
        marked_at = EPOCH + timedelta(microseconds=self._environment.clock() // 1000)
        mark = store_file.StoreFile(
            snapshot.store_id, False, marked_at, snapshot.software_version, has_hosts=snapshot.has_hosts
        )
        write_new(disk, posixpath.join(path, STORE), store_file.encode(mark))
        write_new(disk, posixpath.join(path, CUT), encode_cut(snapshot, self._directory.root))

    def _remove(self, path: str) -> None:
        disk = self._environment.disk
        with contextlib.suppress(OSError):  # the next start removes the rest
            if disk.is_directory(path):
                remove_tree(disk, path)
            if not disk.names(posixpath.dirname(path)):
                disk.remove_directory(posixpath.dirname(path))


_FORMAT: Final = "qstore-cut"
_VERSION: Final = 1
_DIRECTORY: Final = re.compile(r"jrnl/[0-9]{1,20}|" + LIST)
_BASE_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_MAX_NUMBER: Final = 1 << 63


class CutDescription(NamedTuple):
    """A snapshot, as another process sees it.

    Attributes:
        store_id: the store's id.
        software: the version that last marked it.
        journals: those of the queues, and last the prepared list.
        free: queue id -> blocks that could be written at the cut without overwriting anything of the snapshot.
    """

    store_id: UUID
    software: str
    journals: list[JournalSnapshot]
    free: dict[int, int]


def encode_cut(snapshot: Snapshot, root: str) -> bytes:
    """Describe a snapshot of the store in `root`."""
    return dumps(
        {
            "format": _FORMAT,
            "version": _VERSION,
            "store_id": snapshot.store_id.hex,
            "software": snapshot.software_version,
            "journals": [_fields(journal, root) for journal in snapshot.all_journals],
        }
    )


def _fields(journal: JournalSnapshot, root: str) -> dict[str, Any]:
    cut, numbers = journal.cut, journal.ring.numbers
    found = None
    if cut is not None:
        blocks = journal.geometry.data_size // BLOCK_SIZE
        free = (cut.first + journal.geometry.files) * blocks - cut.end
        found = [cut.first, cut.end, cut.flush, int(cut.is_whole), *cut.ring.start, free]
    return {
        "queue_id": journal.queue_id,
        "directory": journal.directory.removeprefix(root + "/"),
        "base_name": journal.base_name,
        "files": journal.geometry.files,
        "size": journal.geometry.data_size,
        "cut": found,
        "ring": None if is_plain_ring(tuple(numbers)) else numbers,
    }


def decode_cut(content: bytes, root: str) -> CutDescription:
    """A description of a snapshot of the store in `root`, checked. Raises ValueError."""
    try:
        fields = loads(content)
        if (fields["format"], fields["version"]) != (_FORMAT, _VERSION):
            raise ValueError("unknown version")
        free: dict[int, int] = {}
        journals = [_journal(each, root, free) for each in fields["journals"]]
        if not journals or any(not each.queue_id for each in journals[:-1]) or journals[-1].queue_id:
            raise ValueError("the prepared list is missing")
        return CutDescription(UUID(hex=fields["store_id"]), str(fields["software"]), journals, free)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"missing or invalid field: {error}") from None


def _journal(fields: dict[str, Any], root: str, free: dict[int, int]) -> JournalSnapshot:
    directory, base_name, files, ring = (fields[name] for name in ("directory", "base_name", "files", "ring"))
    if not _DIRECTORY.fullmatch(directory) or not _BASE_NAME.fullmatch(base_name):
        raise ValueError("invalid directory or file name of a journal")
    queue_id, size = _number(fields["queue_id"]), _number(fields["size"])
    if not 1 < _number(files) <= MAX_RING_FILES or not size or size % BLOCK_SIZE:
        raise ValueError("invalid size of a journal")
    numbers = range(files) if ring is None else [_number(each) for each in ring]
    if len(numbers) != files or len(set(numbers)) != files or max(numbers) >= MAX_RING_FILES:
        raise ValueError("invalid files of a journal's ring")
    cut = fields["cut"]
    if cut is not None:
        first, end, flush, is_whole, origin, lap, room = (int(each) for each in cut)
        if not 0 <= first <= _MAX_NUMBER or not 0 <= end <= _MAX_NUMBER or abs(origin) > _MAX_NUMBER:
            raise ValueError("invalid extent of a journal")
        free[queue_id] = room
        cut = Cut(first, end, flush, bool(is_whole), FileRing(numbers, origin, lap), Pin(first))
    return JournalSnapshot(queue_id, posixpath.join(root, directory), base_name, Geometry(files, size), cut)


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_NUMBER:
        raise ValueError("invalid number")
    return value


class ImageFile(NamedTuple):
    """A file of the copy.

    Attributes:
        name: its name in the journal's directory.
        size: its bytes.
        head: its first bytes.
        source: the file with its data area; empty for none.
        copied: bytes of that data area that belong to the snapshot; the rest is zeros.
        is_complete: whether it was full at the cut, so that it is unchanged while its header is.
    """

    name: str
    size: int
    head: bytes
    source: str
    copied: int
    is_complete: bool

    @contextlib.contextmanager
    def open(self, disk: Disk) -> Iterator[ReadableFile | None]:
        """The file with its data area, to be passed to `read`. Raises OSError."""
        if not self.source:
            yield None
            return
        with contextlib.closing(disk.open(self.source)) as file:
            yield file

    def read(self, source: ReadableFile | None, offset: int, length: int) -> bytes:
        """A part of the file. Raises OSError."""
        end = min(offset + length, self.size)
        content = self.head[offset:end]
        at, last = offset + len(content), min(end, DATA_OFFSET + self.copied)
        if source is not None and at < last:
            if at < DATA_OFFSET:
                content, at = content.ljust(DATA_OFFSET - offset, b"\0"), DATA_OFFSET
            found = source.read(at, last - at)
            content = content + found if content else found
        return content if len(content) == end - offset else content.ljust(end - offset, b"\0")


class JournalImage:
    """The files of one journal in a copy.

    Args:
        disk: reads the journal.
        journal: the journal at the moment of the cut.
        check: called after each read from its files: raises StoreError if they may have been overwritten.

    Attributes:
        info_name, info: its info file's name and content.
        described: the info file, decoded; None if it is damaged.

    Raises:
        OSError: the info file cannot be read.
    """

    def __init__(self, disk: Disk, journal: JournalSnapshot, check: Callable[[], None] = lambda: None) -> None:
        self._disk, self._journal, self._check = disk, journal, check
        self.info_name = journal.base_name + INFO_SUFFIX
        content = read_whole(disk, posixpath.join(journal.directory, self.info_name), MAX_JINF_SIZE)
        self.described, self.info = _with_ring(content, journal)

    def files(self) -> Iterator[ImageFile]:
        """Its data files, in the order of the ring. Raises StoreError, OSError."""
        journal, created = self._journal, self.described
        first = self._header(journal.cut.first) if journal.cut is not None and journal.size else None
        for place, number in enumerate(journal.ring.numbers):
            index = journal.file_at(place)
            head, source, copied, is_complete = b"", "", 0, False
            if index is not None:
                copied = journal.bytes_in(index)
                head = encode_file_header(self._header(index)._replace(slot=0)) if copied else self._dead(first, index)
                source = journal.path_of(index) if copied else ""
                is_complete = copied == journal.geometry.data_size
            elif created is not None and created.creation_headers:
                head = bytes(CREATION_SLOT * SLOT_SIZE) + encode_header_slot(creation_header(created, number))
            name = posixpath.basename(data_path(journal.directory, journal.base_name, number))
            yield ImageFile(name, journal.geometry.file_size, head, source, copied, is_complete)

    def _dead(self, first: FileHeader | None, index: int) -> bytes:
        """The header of a dead file; `first` is that of the oldest file copied."""
        assert first is not None
        number, indicator = self._journal.ring.number(index), self._journal.ring.indicator(index)
        return encode_file_header(
            first._replace(overwrite_indicator=indicator, file_number=number, first_record_offset=0, slot=0)
        )

    def _header(self, index: int) -> FileHeader:
        """The header of a file to be copied, counted over all laps."""
        journal = self._journal
        path = journal.path_of(index)
        sector = read_whole(self._disk, path, FILE_HEADER_SIZE)
        self._check()
        number, indicator = journal.ring.number(index), journal.ring.indicator(index)
        try:
            header = decode_file_header(sector)
        except RhmError as error:
            raise StoreError(f"{path}: {error.what}: the journal is damaged and cannot be copied") from error
        if header is None or (header.file_number, header.overwrite_indicator) != (number, indicator):
            raise StoreError(f"{path}: the header belongs to another file: the journal is damaged and cannot be copied")
        return header


def _with_ring(content: bytes, journal: JournalSnapshot) -> tuple[JournalInfo | None, bytes]:
    """An info file, decoded and as bytes, with the ring of the snapshot; None and unchanged if it is damaged."""
    try:
        info = decode_jinf(content)
    except RhmError:
        return None, content
    numbers = tuple(journal.ring.numbers)
    ring = () if is_plain_ring(numbers) else numbers
    if (info.geometry, info.ring, info.spare) != (journal.geometry, ring, ()):
        info = info._replace(geometry=journal.geometry, ring=ring, spare=())
        content = encode_jinf(info)
    return info, content


#: Called periodically with the bytes of journals copied so far, and in total.
Progress = Callable[[int, int], None]

_CHUNK: Final = 1 << 20
_LEFT: Final = frozenset((LOCK, NEW, DISCARDED))  # what an interrupted copy may leave


def copy_snapshot(environment: Environment, snapshot: Snapshot, target: str, progress: Progress | None = None) -> None:
    """Copy a snapshot, from any thread; the store continues to run.

    Args:
        environment: disk, clock and so on.
        snapshot: the snapshot, which must be held until this returns.
        target: the directory of the copy, which must not exist, or be empty; its parent must exist.
        progress: receives the progress.

    Raises:
        StoreError: it cannot be copied; nothing is left of the copy.
    """
    disk = environment.disk
    directory = StoreDirectory(environment, target, snapshot.software_version)
    try:
        before = _names_before(disk, target)
        try:
            _copy_to(environment, snapshot, directory, progress or (lambda _, __: None))
        except BaseException:
            with contextlib.suppress(OSError):  # the remains are not a store
                _remove(disk, directory, before)
            raise
    except OSError as error:
        raise _not_copied(target, error) from error
    except CatalogueError as error:
        raise StoreError(f"{target}: the snapshot cannot be copied: {error}; {disk_advice()}") from error


def _names_before(disk: WritableDisk, target: str) -> list[str] | None:
    """The names in `target`; None if it does not exist. StoreError if it is more than an interrupted copy."""
    if not disk.is_directory(target):
        return None
    names = disk.names(target)
    strange = [name for name in names if name not in _LEFT]
    if strange:
        raise StoreError(f"{target}: is not empty ({strange[0]}); choose a new or empty directory")
    return names


def _copy_to(environment: Environment, snapshot: Snapshot, directory: StoreDirectory, progress: Progress) -> None:
    lock = directory.lock()
    try:
        directory.finish_interrupted()
        if environment.disk.is_directory(directory.root):
            raise StoreError(f"{directory.path}: already contains a complete copy; choose another directory")
        new = directory.in_the_making
        new.has_hosts = snapshot.has_hosts
        _Copy(environment, snapshot, new, progress).make()
        directory.finish_new(new, snapshot.store_id)
    finally:
        lock.release()


def _remove(disk: WritableDisk, directory: StoreDirectory, before: list[str] | None) -> None:
    """Remove the parts of the copy, but first rename it, if it has a store's name already."""
    try:
        directory.discard()
    except OSError:
        remove_tree(disk, directory.root)  # renaming may fail on a full disk; nothing uses this store yet
    if disk.is_directory(directory.in_the_making.root):
        remove_tree(disk, directory.in_the_making.root)
    if before is None:
        remove_tree(disk, directory.path)
    elif LOCK not in before:
        disk.remove(directory.below(LOCK))


def _not_copied(target: str, error: OSError) -> StoreError:
    advice = "; free some space, or choose a directory on another disk" if error.errno == errno.ENOSPC else ""
    return StoreError(f"{error.filename or target}: the snapshot cannot be copied: {error.strerror or error}{advice}")


class _Copy:
    """One copy being made in `directory`."""

    def __init__(
        self, environment: Environment, snapshot: Snapshot, directory: StoreDirectory, progress: Progress
    ) -> None:
        self._environment, self._disk = environment, environment.disk
        self._snapshot, self._directory, self._progress = snapshot, directory, progress
        self._journals = snapshot.all_journals
        self._copied, self._total = 0, sum(journal.size for journal in self._journals)

    def make(self) -> None:
        """Copy everything but the STORE file. Raises StoreError, CatalogueError, OSError."""
        for journal in self._journals:
            self._check(journal)
        self._disk.make_directory(self._directory.root)
        self._disk.make_directory(self._directory.part("jrnl"))
        for journal in self._journals:
            self._copy_journal(journal)
        opened = self._environment.open_key_value(self._snapshot.catalogue, create=False)
        try:
            opened.checkpoint(self._directory.catalogue)
            self._directory.write_topology(self._snapshot.store_id, opened)
        finally:
            opened.close()

    def _copy_journal(self, journal: JournalSnapshot) -> None:
        name = posixpath.basename(journal.directory)
        target = self._directory.journal(int(name)) if journal.queue_id else self._directory.prepared_list
        self._disk.make_directory(target)
        image = JournalImage(self._disk, journal, lambda: self._check(journal))
        self._write(posixpath.join(target, image.info_name), len(image.info), lambda file: file.write(0, image.info))
        for each in image.files():
            self._write(posixpath.join(target, each.name), each.size, partial(self._fill, journal, each))
        self._disk.sync_directory(target)

    def _write(self, path: str, size: int, fill: Callable[[WritableFile], None]) -> None:
        """Create a file, fill it, and sync it."""
        with closing(self._disk.create(path, size)) as file:
            fill(file)
            file.sync()

    def _fill(self, journal: JournalSnapshot, image: ImageFile, file: WritableFile) -> None:
        """Fill a file of a journal's copy."""
        if image.head:
            file.write(0, image.head)
        with image.open(self._disk) as source:
            for offset in range(DATA_OFFSET, DATA_OFFSET + image.copied, _CHUNK):
                content = image.read(source, offset, min(_CHUNK, DATA_OFFSET + image.copied - offset))
                self._check(journal)  # after reading: if the pin did not hold until now, the content is undefined
                file.write(offset, content)
                self._copied += len(content)
                self._progress(self._copied, self._total)

    def _check(self, journal: JournalSnapshot) -> None:
        if self._snapshot.is_released:
            raise StoreError(f"{self._directory.path}: the snapshot was released before it was copied; take a new one")
        if not journal.holds:
            raise StoreError(
                f"{journal.directory}: the journal ran short of room and was overwritten before it was copied; "
                "take another snapshot when there is less traffic, or use larger journals"
            )
