"""The files of one journal being written: created, written in steps, and read back for the writer.

At most two of them are open while nothing is under way: the one being written, and the one before or after it.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Self

from qstore.formats.errors import RhmError
from qstore.formats.rhm.file_header import CREATION_SLOT, SLOT_SIZE, FileHeader, decode_file_header, encode_header_slot
from qstore.formats.rhm.geometry import BLOCK_SIZE, DATA_OFFSET, FILE_HEADER_SIZE, Geometry
from qstore.formats.rhm.jinf import MAX_JINF_SIZE, JournalInfo, decode_jinf, encode_jinf
from qstore.store.disk import Disk, WritableDisk, WritableFile, read_whole
from qstore.store.journal.directory import COPY_SUFFIX, DELETED, INFO_SUFFIX, data_path, read_info
from qstore.store.journal.write.flushes import Pieces, Step, Write
from qstore.store.journal.write.space import FileRing
from qstore.store.sync.driver import FileWrite, sync_all

NEW: Final = ".new"
"""Suffix of an info file that will replace another."""

NAMED_BYTES: Final = 4096
"""Size of the copy of an info file that gets the name of the queue in place: one block of the file system."""

_OPEN_FILES: Final = 2
_UNSYNCED_FILES: Final = 64  # created before they are synced
_SMALL: Final = 16 * 1024  # after writes up to this size, more follow into the same blocks or the next ones


def create_journal(disk: WritableDisk, directory: str, info: JournalInfo) -> None:
    """Create a journal's directory with its empty files and then its info file, synced except for its own name.

    Each file gets a creation header, if the info file says that files have them.

    Raises:
        OSError: it cannot be created. Nothing is left of it, unless the disk refuses the removal, too.
    """
    create_journals(disk, [(directory, info)])


def create_journals(disk: WritableDisk, journals: Sequence[tuple[str, JournalInfo]]) -> None:
    """As `create_journal`, of several that are synced together: all of them, or none."""
    begun: list[str] = []
    try:
        for directory, _ in journals:
            disk.make_directory(directory)
            begun.append(directory)
        _fill(disk, journals)
    except BaseException:
        for directory in begun:
            with contextlib.suppress(OSError):
                remove_journal(disk, directory)
        raise


def _fill(disk: WritableDisk, journals: Sequence[tuple[str, JournalInfo]]) -> None:
    with _Unsynced(disk) as made:
        for directory, info in journals:
            for number in range(info.geometry.files):
                file = made.create(data_path(directory, info.base_name, number), info.geometry.file_size)
                if info.creation_headers:
                    write_creation_header(file, info, number)
        made.sync()
        for directory, info in journals:
            content = encode_jinf(info)
            path = posixpath.join(directory, info.base_name + INFO_SUFFIX)
            made.create(path, len(content)).write(0, content)
            if info.is_unnamed:
                made.create(path + COPY_SUFFIX, NAMED_BYTES).write(0, content.ljust(NAMED_BYTES))
        made.sync([directory for directory, _ in journals])


def write_name(disk: WritableDisk, directory: str, info: JournalInfo) -> WritableFile | None:
    """Write the copy of the info file of a journal made ahead: with its queue's name, or once more without one.

    It is written in place: a sync of the file is enough. Until that, it may be torn, and then means nothing.

    Returns:
        The file, still to be synced and closed; None if there is no room in it.

    Raises:
        OSError: it cannot be written.
    """
    content = encode_jinf(info)
    if len(content) > NAMED_BYTES:
        return None
    file = disk.open_writable(posixpath.join(directory, info.base_name + INFO_SUFFIX + COPY_SUFFIX))
    try:
        file.write(0, content.ljust(NAMED_BYTES))
    except BaseException:
        file.close()
        raise
    return file


def put_names(disk: WritableDisk, journals: Sequence[tuple[str, str]]) -> None:
    """Put the synced copies with names (`write_name`) in place of the info files, and sync that.

    Args:
        disk: where they are.
        journals: their directories and base names. Those that do not exist are left out.

    Raises:
        OSError, RhmError: it is not certain for any of them that it was done; it may be repeated.
    """
    directories = []
    for directory, base_name in journals:
        path = posixpath.join(directory, base_name + INFO_SUFFIX)
        if not disk.is_file(path):
            continue  # a start reports it
        if decode_jinf(read_whole(disk, path, MAX_JINF_SIZE + 1)).is_unnamed and disk.is_file(path + COPY_SUFFIX):
            disk.rename(path + COPY_SUFFIX, path)
        directories.append(directory)
    disk.sync_all((), directories)


def name_journals(disk: WritableDisk, names: Mapping[str, tuple[str, bytes]]) -> None:
    """Write the info files of journals anew, each with the name and the record of its queue, and sync them.

    A kill leaves each journal with one of its two info files. The copy that a grown ring has is replaced too, and that
    of a journal made ahead removed.

    Args:
        disk: where they are.
        names: the journals' directories -> their queues' names and records. Those that do not exist are left out.

    Raises:
        OSError: it is not certain for any of them that it has the new info file.
    """
    written: list[str] = []
    directories: list[str] = []
    useless: list[str] = []
    with _Unsynced(disk) as made:
        for directory, (name, record) in names.items():
            info = read_info(disk, directory)
            if info is None:
                continue  # a start reports it
            path = posixpath.join(directory, info.base_name + INFO_SUFFIX)
            content = encode_jinf(info._replace(queue_name=name, queue_record=record))
            for each in (path, path + COPY_SUFFIX):
                if each != path and not info.has_changed_ring:
                    useless.append(each)
                elif each == path or disk.is_file(each):
                    if disk.is_file(each + NEW):
                        disk.remove(each + NEW)
                    made.create(each + NEW, len(content)).write(0, content)
                    written.append(each)
            directories.append(directory)
        made.sync()
    for path in written:
        disk.rename(path + NEW, path)
    disk.sync_all((), directories)
    for path in useless:
        if disk.is_file(path):
            disk.remove(path)  # unsynced: it is not read while the info file has a name


class _Unsynced:
    """Files that are created, and synced together. Few are open at any time."""

    def __init__(self, disk: WritableDisk) -> None:
        self._disk = disk
        self._files: list[WritableFile] = []

    def create(self, path: str, size: int) -> WritableFile:
        """Create a file, to be written to before the next call. Raises OSError."""
        if len(self._files) >= _UNSYNCED_FILES:
            self.sync()
        file = self._disk.create(path, size)
        self._files.append(file)
        return file

    def sync(self, directories: Sequence[str] = ()) -> None:
        """Sync them, and these directories. Raises OSError."""
        self._disk.sync_all(self._files, directories)
        self.close()

    def close(self) -> None:
        """Close them."""
        for file in self._files:
            file.close()
        self._files.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def write_creation_header(file: WritableFile, info: JournalInfo, number: int) -> None:
    """Write the creation header of file `number` of a version-2 journal. Raises OSError."""
    file.write(CREATION_SLOT * SLOT_SIZE, encode_header_slot(creation_header(info, number)))


def creation_header(info: JournalInfo, number: int) -> FileHeader:
    """The header that file `number` of a version-2 journal gets at its creation."""
    return FileHeader(
        2,
        0,
        number,
        0,
        info.seconds,
        info.nanoseconds,
        queue_id=info.queue_id,
        incarnation=info.incarnation,
        flush_alignment=info.flush_alignment,
    )


def mark_deleted(disk: WritableDisk, directory: str) -> None:
    """Mark a journal as one whose queue is being deleted: without its queue, its content is not needed."""
    add_deletion_mark(disk, directory)
    disk.sync_directory(directory)


def add_deletion_mark(disk: WritableDisk, directory: str) -> None:
    """As `mark_deleted`, for callers that sync the directory with others. Nothing is left of it after an error."""
    path = posixpath.join(directory, DELETED)
    if not disk.is_file(path):
        disk.create(path, 0).close()


def unmark_deleted(disk: WritableDisk, directory: str) -> None:
    """Remove the mark: the deletion of the queue has failed."""
    disk.remove(posixpath.join(directory, DELETED))
    disk.sync_directory(directory)


def remove_journal(disk: WritableDisk, directory: str) -> None:
    """Remove a journal's directory. Raises OSError if it contains anything but files, which is left with the directory.

    The deletion mark is removed last, so that the remains after a crash still have it.
    """
    names = disk.names(directory)
    for name in names:
        if name != DELETED:
            disk.remove(posixpath.join(directory, name))
    if DELETED in names:
        disk.sync_directory(directory)
        disk.remove(posixpath.join(directory, DELETED))
    disk.remove_directory(directory)


def withdraw_journal(disk: WritableDisk, directory: str, base_name: str) -> None:
    """Free the space of an empty journal whose queue was refused. Its directory stays, with its mark.

    The catalogue's batch failed, but may be on the disk nevertheless. If the next start finds the queue in the
    catalogue, `is_withdrawn` shows that nothing is missing.

    The info file is renamed to the mark: this is atomic, and needs no new file on a full disk.

    Raises:
        OSError: the disk refuses it.
    """
    disk.rename(posixpath.join(directory, base_name + INFO_SUFFIX), posixpath.join(directory, DELETED))
    disk.sync_directory(directory)
    for name in disk.names(directory):
        if name != DELETED:
            disk.remove(posixpath.join(directory, name))
    empty = posixpath.join(directory, DELETED + ".new")
    disk.create(empty, 0).close()  # there is room for it now, and it frees the mark's space
    disk.rename(empty, posixpath.join(directory, DELETED))


def is_withdrawn(disk: Disk, directory: str) -> bool:
    """Whether `withdraw_journal` was begun: an interrupted deletion leaves the info file of a known queue."""
    try:
        names = disk.names(directory)
    except OSError:
        return False  # missing or not listable, which is reported on opening
    return are_of_withdrawn(names)


def are_of_withdrawn(names: Sequence[str]) -> bool:
    """As `is_withdrawn`, given the names in a journal's directory."""
    return DELETED in names and not any(name.endswith(INFO_SUFFIX) for name in names)


class JournalStorage:
    """The files of one journal.

    Args:
        disk: where they are.
        directory: the journal's.
        base_name: the common prefix of their names.
        geometry: their size.
        ring: their order; 0, 1, 2 and so on by default.
    """

    __slots__ = (
        "_base_name",
        "_directory",
        "_disk",
        "_file_blocks",
        "_geometry",
        "_latest",
        "_open",
        "_ring",
        "_small_end",
    )

    def __init__(
        self, disk: WritableDisk, directory: str, base_name: str, geometry: Geometry, ring: FileRing | None = None
    ) -> None:
        self._disk, self._directory, self._base_name, self._geometry = disk, directory, base_name, geometry
        self._ring = FileRing(range(geometry.files)) if ring is None else ring
        self._file_blocks = geometry.data_size // BLOCK_SIZE
        self._open: dict[int, WritableFile] = {}
        self._latest = -1  # number of the file that was used last
        self._small_end: tuple[int, int] | None = None  # file and offset where the last step ended: `_note_end`

    def write(self, step: Step, later: list[FileWrite] | None = None) -> list[WritableFile]:
        """Execute the writes of a step, or append them to `later`. Returns the files to sync. Raises OSError."""
        self._small_end = None
        for write in step.writes:
            file, content = self.file(write.file), write.content
            if later is not None:
                later.append(FileWrite(file, write.offset, _as_pieces(content), len(content)))
            elif isinstance(content, Pieces):
                file.write_all(write.offset, content.pieces, content.size)
            else:
                file.write(write.offset, content)
        if len(step.writes) == 1:
            self._note_end(write, file, len(content))
        return [self.file(number) for number in step.files]

    def write_synced(self, step: Step) -> None:
        """Execute the writes of a step, and sync its files. Raises OSError.

        Most steps are one write that is all there is to sync: what a killed process may have left unsynced in the file
        is synced by a start (`sync_end`).
        """
        writes = step.writes
        if len(writes) > 1 or writes[0].offset < DATA_OFFSET:
            error = sync_all(self.write(step))
            if error is not None:
                raise error
            return
        write = writes[0]
        content, file = write.content, self.file(write.file)
        size, self._small_end = len(content), None
        file.write_synced(write.offset, content.pieces if isinstance(content, Pieces) else (content,), size)
        self._note_end(write, file, size)

    def _note_end(self, write: Write, file: WritableFile, size: int) -> None:
        """Note where a step ends if it is one small write, and the blocks that follow are not prepared."""
        end = write.offset + size
        is_small = size <= _SMALL and write.offset >= DATA_OFFSET and end >= file.filled
        self._small_end = (write.file, end) if is_small else None

    @property
    def wants_filling(self) -> bool:
        """Whether `fill_ahead` may have something to do."""
        return self._small_end is not None

    def fill_ahead(self) -> str:
        """Prepare the blocks after a small step for later ones. Returns the path of the file to sync.

        The path is empty if nothing was written. The sync is optional: without it, the next step's sync takes longer.
        """
        if self._small_end is None:
            return ""
        (number, offset), self._small_end = self._small_end, None
        file = self._open.get(number)
        if file is None or not file.fill_ahead(offset):
            return ""
        return data_path(self._directory, self._base_name, number)

    def reopen(self, step: Step) -> None:
        """Reopen the files of a step at their next use, as new open file descriptions."""
        for number in step.files:
            file = self._open.pop(number, None)
            if file is not None:
                file.close()

    def read(self, block: int, size: int) -> bytes:
        """`size` bytes from a block of the endless stream. Raises OSError."""
        parts = [self.file(number).read(offset, count) for number, offset, count in self._pieces(block, size)]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_cached(self, block: int, size: int) -> bytes | None:
        """As `read`, if all of it is in the page cache; None otherwise. Raises OSError."""
        parts = []
        for number, offset, count in self._pieces(block, size):
            part = self.file(number).read_cached(offset, count)
            if part is None:
                return None
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_ahead(self, block: int, size: int) -> None:
        """Have the system read this part of the stream into its page cache."""
        with contextlib.suppress(OSError):
            for number, offset, count in self._pieces(block, size):
                self.file(number).read_ahead(offset, count)

    def reader(self, extents: Iterable[tuple[int, int]]) -> Callable[[], list[bytes | None]]:
        """A function that reads parts of the stream, each given by block and bytes; any thread may call it.

        It opens the files itself, and returns None for each part that cannot be read.
        """
        disk = self._disk
        wanted = [
            [
                (data_path(self._directory, self._base_name, number), offset, count)
                for number, offset, count in self._pieces(*extent)
            ]
            for extent in extents
        ]
        return lambda: [_read_pieces(disk, pieces) for pieces in wanted]

    def _pieces(self, block: int, size: int) -> Iterator[tuple[int, int, int]]:
        """A part of the endless stream: number of each file, offset and bytes there."""
        index, rest = divmod(block, self._file_blocks)
        offset = DATA_OFFSET + rest * BLOCK_SIZE
        while size > 0:
            count = min(size, self._geometry.file_size - offset)
            yield self._ring.number(index), offset, count
            size -= count
            index, offset = index + 1, DATA_OFFSET

    def sync_end(self, position: int) -> None:
        """Sync the file in which a journal ended, at block `position`, 0 or more: recovery may have read unsynced data.

        The files before it were synced before anything was written after them; but the last block of a record need not
        have been written if it has only zero bytes there, the end of its id. So the file of the block before that is
        synced as well.

        Files after the end that a torn flush had entered are synced too, even the first one of a journal without
        records: the next header written to one of them replaces the older one there, and if a crash tears it, the other
        must not be lost as well.
        """
        index = (position - 1) // self._file_blocks
        for last in sorted({max(0, position - 2) // self._file_blocks, index}) if position else ():
            self.file(self._ring.number(last)).sync()
        for ahead in range(index + 1, index + len(self._ring.numbers)):
            file = self.file(self._ring.number(ahead))
            try:
                header = decode_file_header(file.read(0, FILE_HEADER_SIZE))
            except RhmError:
                header = None
            if header is None or header.overwrite_indicator != self._ring.indicator(ahead):
                break
            file.sync()
        self.trim()

    def trim(self) -> None:
        """Close files that have not been used recently. Nothing may be under way."""
        while len(self._open) > _OPEN_FILES:
            self._open.pop(next(iter(self._open))).close()

    def forget(self, numbers: Iterable[int]) -> None:
        """Close files that are no longer in the ring."""
        for number in numbers:
            file = self._open.pop(number, None)
            if file is not None:
                file.close()

    def close(self) -> None:
        """Close all files. Nothing may be under way."""
        for file in self._open.values():
            file.close()
        self._open.clear()

    def file(self, number: int) -> WritableFile:
        """The file with that number, opened if necessary. Raises OSError."""
        file = self._open.get(number)
        if file is not None and number == self._latest:
            return file
        if file is None:
            file = self._disk.open_writable(data_path(self._directory, self._base_name, number))
        else:
            del self._open[number]
        self._open[number] = file  # the most recently used comes last
        self._latest = number
        return file


def _as_pieces(content: bytes | memoryview | Pieces) -> Sequence[bytes]:
    if isinstance(content, Pieces):
        return content.pieces
    if isinstance(content, memoryview):
        whole = content.obj
        return (whole if isinstance(whole, bytes) and len(whole) == len(content) else bytes(content),)
    return (content,)


def _read_pieces(disk: Disk, pieces: Iterable[tuple[str, int, int]]) -> bytes | None:
    """Read pieces of files, joined; None if one cannot be read."""
    parts = []
    try:
        for path, offset, count in pieces:
            with contextlib.closing(disk.open(path)) as file:
                parts.append(file.read(offset, count))
    except OSError:
        return None
    return b"".join(parts)
