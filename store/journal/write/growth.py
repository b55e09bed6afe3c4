"""Adds files to the ring of a version-2 journal being written, and gives back files that it does not need.

`RingGrowth` plans a change of the ring, and `make_ring_changes` makes it on the disk, for which the writer does not
wait; it takes effect in the writer when it is on the disk. Until then the writer continues with its files, but does not
enter the *anchor* again, the file before which the ring changes (see `FileRing`).

A new file comes before the oldest one in use. Readers see it as follows (formats/rhm/README.md, 8.7):

    the oldest file is the first of the ring    it was never entered: it comes after the last file, which is entered
                                                before it
    any other                                   it was entered in the lap of the oldest file, by the same flush, and is
                                                a boundary: nothing in it, and nothing before it, is needed any more

Where files are removed, the free file before them becomes such a boundary: otherwise its content would appear to be
followed by the oldest file.

On the disk, the info file says which files belong to the ring, and in which order. It is replaced as a whole, by
renaming, so a kill at any point leaves one of the two rings:

    add       1  the info file lists the new files as spare,     remove    1  the file before them becomes a boundary
                 unless it already did                                     2  the info file has the new ring, and lists
              2  they are created                                             the removed files as spare
              3  the info file has the new ring, and lists the             3  so has its copy
                 next files to be created as spare                         4  they are removed, a few at a time
              4  so has its copy                                              (`remove_spare`)

So a file that exists outside of the ring is listed as spare, and is not damage. `settle_ring` removes such files. The
copy is read if the info file is lost, since nothing else has the order of the files.

**Syncs.** What is added waits for these, one after the other:

    the content of the info file          before it is renamed for 1        only when files are added for the
    its name                              before the first file is created  first time since the journal was opened
    the files, their names, and           before the info file is renamed for 3: what it lists must exist
    the contents of 3 and 4
    the name of the info file             before the writer may enter the files

Nothing waits for the copy's name: if it is lost, so must the info file be for an old copy to be read. Changes of
several journals are made in step, and what they wait for is synced together. So journals that run low at the same time
do not wait for each other.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
from collections.abc import Generator, Iterable, Sequence
from typing import Final, TypeAlias

from qstore.formats.errors import RhmError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.file_header import SLOT_SIZE, FileHeader, decode_file_header, encode_header_slot, other_slot
from qstore.formats.rhm.geometry import FILE_HEADER_SIZE, MAX_RING_FILES, Geometry
from qstore.formats.rhm.jinf import JournalInfo, encode_jinf, is_plain_ring
from qstore.store.disk import SyncGroup, WritableDisk, WritableFile, read_whole
from qstore.store.journal.directory import COPY_SUFFIX, INFO_SUFFIX, data_path, read_named_info
from qstore.store.journal.write.flushes import FlushQueue, WriteBatch
from qstore.store.journal.write.live_records import LiveRecords
from qstore.store.journal.write.space import FileRing, RingSpace
from qstore.store.journal.write.storage import NEW, write_creation_header

# ---- the plan ----

UNENTERED: Final = -1  # the new files follow the last file of the ring, and have never been entered
_ANNOUNCED: Final = 64  # files that an info file lists as spare ahead
_MAX_OPEN: Final = 256  # files that changes in step may have open at once
_OPEN_ANYWAY: Final = 3  # of each change: info file, copy, directory
_KEPT_AHEAD: Final = 2  # free files after the current one that are not removed: the batch may be about to enter them


class RingChange(NamedTuple):
    """A change of a ring that is to be made on the disk.

    Attributes:
        before: the numbers of its files in their order until now.
        after: the same after the change.
        added: the numbers of the files to create.
        removed: the numbers of the files to remove.
        anchor: the number of the file after the new ones, or after the boundary; UNENTERED if new ones follow the last.
        indicator: the overwrite indicator of the new ones, if there is an anchor.
        boundary: the number of the last free file before those to be removed that was entered; UNENTERED for none.
        is_announced: whether the info file already lists the files to create as spare.
        announced: the numbers of files that will be created next, which the info file lists as spare from now on.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    added: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()
    anchor: int = UNENTERED
    indicator: int = 0
    boundary: int = UNENTERED
    is_announced: bool = False
    announced: tuple[int, ...] = ()


class RingGrowth:
    """The changes of one ring, one at a time.

    Args:
        ring, batch, flushes, space, records: the parts of the journal's writer.
        wasted: number of files after the current one that a torn flush had entered before the writer resumed.

    Attributes:
        change: the change being made on the disk; None for none.
    """

    __slots__ = ("_announced", "_batch", "_flushes", "_records", "_ring", "_space", "_wasted", "change")

    def __init__(
        self,
        ring: FileRing,
        batch: WriteBatch,
        flushes: FlushQueue,
        space: RingSpace,
        records: LiveRecords,
        wasted: int,
    ) -> None:
        self._ring, self._batch, self._flushes = ring, batch, flushes
        self._space, self._records = space, records
        self.change: RingChange | None = None
        self._announced: frozenset[int] = frozenset()  # numbers that the info file is known to list as spare
        self._wasted = batch.index + wasted  # the last of them: they are known by their order

    def begin(self, files: int) -> RingChange | None:
        """Plan to add `files` files. Returns None if that is not possible at the moment."""
        anchor = self._fix_anchor()
        if anchor is None:
            return None
        ring = self._ring
        taken = set(ring.numbers)
        if len(taken) + files > MAX_RING_FILES:
            return None
        most = min(len(taken) + files + _ANNOUNCED, MAX_RING_FILES)
        free = [number for number in range(most) if number not in taken]
        numbers, following = tuple(free[:files]), tuple(free[files : files + _ANNOUNCED])
        of_lap = ring.place(anchor) > 0
        return self._begun(
            anchor,
            RingChange(
                tuple(ring.numbers),
                tuple(ring.with_inserted(anchor, numbers).numbers),
                added=numbers,
                anchor=ring.number(anchor) if of_lap else UNENTERED,
                indicator=ring.indicator(anchor),
                is_announced=self._announced.issuperset(numbers),
                announced=following,
            ),
        )

    def begin_removal(self, files: int) -> RingChange | None:
        """Plan to remove at most `files` free files. Returns None if none can be removed at the moment."""
        self._space.reclaim(self._flushes.synced_place)  # a snapshot may have been released since the last flush
        anchor, space, ring = self._fix_anchor(), self._space, self._ring
        current = self._batch.index
        if anchor is None or current < self._wasted or current != (self._flushes.synced_place - 1) // space.file:
            return None  # a file that was entered without its header on the disk would be neither free nor used
        end = anchor + space.files
        files = min(files, end - current - 1 - _KEPT_AHEAD - 1)  # one more, which can be the boundary
        if files < 1:
            return None
        numbers = tuple(ring.number(index) for index in range(end - files, end))
        after = tuple(ring.without(anchor, numbers).numbers)
        kept = [index for index in range(current + 1, end - files) if ring.number(index) in self._batch.slots]
        boundary = max(kept, default=0)
        if boundary and boundary <= current + _KEPT_AHEAD:
            return None  # the batch may be about to enter it
        change = RingChange(
            tuple(ring.numbers),
            after,
            removed=numbers,
            anchor=self._next_entered(boundary) if boundary else UNENTERED,
            boundary=ring.number(boundary) if boundary else UNENTERED,
        )
        self._resize((boundary or end - files) - anchor)  # the boundary must not be entered either
        return self._begun(anchor, change)

    def end(self, *, is_made: bool) -> None:
        """End a change, which is on the disk, or never will be."""
        change, space = self.change, self._space
        assert change is not None
        anchor, self.change, space.anchor = space.anchor, None, -1
        if not is_made:
            self._resize(len(change.before))
            return
        if change.added:
            self._ring.insert(anchor, change.added)
            self._announced = frozenset(change.announced)
            if change.anchor != UNENTERED:
                self._batch.slots.update(dict.fromkeys(change.added, 0))
        else:
            self._ring.remove(anchor, change.removed)
            slots = self._batch.slots
            for number in change.removed:
                slots.pop(number, None)
            if change.boundary in slots:
                slots[change.boundary] = other_slot(slots[change.boundary])
        self._resize(len(change.after))

    def _fix_anchor(self) -> int | None:
        """The oldest file, whose header is on the disk; None if the writer could enter it again before the change."""
        space, file = self._space, self._space.file
        if self.change is not None:
            return None
        anchor = min(space.oldest, max(self._flushes.synced_place - 1, 0) // file)
        return None if self._batch.position > (anchor + space.files) * file else anchor

    def _begun(self, anchor: int, change: RingChange) -> RingChange:
        self._space.anchor = anchor
        self.change = change
        return change

    def _next_entered(self, index: int) -> int:
        """The number of the next file after a free one that was entered."""
        ring, slots = self._ring, self._batch.slots
        index += 1
        while ring.number(index) not in slots:
            index += 1
        return ring.number(index)

    def _resize(self, files: int) -> None:
        space = self._space
        before = space.threshold
        space.resize(files)
        self._records.room += space.threshold - before


# ---- on the disk ----


class RingUnknownError(Exception):
    """The disk failed while the info file was replaced: it is unknown which ring the journal has after a restart.

    Attributes:
        error: the disk's error.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


class JournalChange(NamedTuple):
    """A change of the ring of the journal in `directory`. Nothing else may replace its info file meanwhile."""

    directory: str
    base_name: str
    change: RingChange


def make_ring_changes(disk: WritableDisk, changes: Sequence[JournalChange]) -> list[Exception | None]:
    """Make changes of different journals. They share their syncs.

    Returns:
        For each of them None if it was made, or its error:
        RingUnknownError if it is unknown whether it was made;
        OSError, RhmError if it was not. Files that were created are removed, if the disk allows it.
    """
    results: list[Exception | None] = [None] * len(changes)
    begin = opened = 0
    for end, each in enumerate(changes):
        count = len(each.change.added) + _OPEN_ANYWAY
        if begin < end and opened + count > _MAX_OPEN:
            results[begin:end] = _make_in_step(disk, changes[begin:end])
            begin, opened = end, 0
        opened += count
    results[begin:] = _make_in_step(disk, changes[begin:])
    return results


def _make_in_step(disk: WritableDisk, changes: Sequence[JournalChange]) -> list[Exception | None]:
    """As `make_ring_changes`: each change is made up to its next sync, then all of them are synced, and so on."""
    results: list[Exception | None] = [None] * len(changes)
    under_way = [(number, _steps(disk, *each)) for number, each in enumerate(changes)]
    errors: list[OSError | None] = [None] * len(changes)  # of the syncs that those under way wait for
    while under_way:
        going_on: list[tuple[int, _Steps]] = []
        unsynced: list[SyncGroup] = []
        for (number, steps), failure in zip(under_way, errors, strict=True):
            try:
                unsynced.append(steps.send(failure))
            except StopIteration:
                pass
            except (OSError, RhmError, RingUnknownError) as error:
                results[number] = error
            except MemoryError:
                results[number] = RingUnknownError(OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)))
            else:
                going_on.append((number, steps))
        under_way, errors = going_on, _synced(disk, unsynced)
    return results


def _synced(disk: WritableDisk, unsynced: Sequence[SyncGroup]) -> list[OSError | None]:
    """Sync what several changes wait for. Returns the error of each."""
    if not unsynced:
        return []
    failure: OSError
    try:
        return disk.sync_each(unsynced)
    except OSError as error:
        failure = error
    except MemoryError:
        failure = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    return [failure] * len(unsynced)


_Steps: TypeAlias = Generator[SyncGroup, OSError | None, None]


def _steps(disk: WritableDisk, directory: str, base_name: str, change: RingChange) -> _Steps:
    """Make a change. Yields what is to be synced before it goes on, and is sent the error of that.

    Raises:
        RingUnknownError, OSError, RhmError: see `make_ring_changes`.
    """
    path = posixpath.join(directory, base_name + INFO_SUFFIX)
    names: SyncGroup = (), (directory,)
    info = read_named_info(disk, path)
    if info.numbers != change.before:
        raise RhmError(f"{path}: the journal's files are not those that its info file lists")
    if change.added and not change.is_announced:
        announced = info._replace(spare=_sorted({*info.spare, *change.added}))
        with contextlib.closing(_written(disk, path + NEW, announced)) as file:
            _check((yield (file,), ()))
        disk.rename(path + NEW, path)
        _check((yield names))
    try:
        changed = _changed(info, change)
        with contextlib.ExitStack() as opened:
            files = _create(disk, directory, info, change, opened)
            for new in (path + NEW, path + COPY_SUFFIX + NEW):
                files.append(opened.enter_context(contextlib.closing(_written(disk, new, changed))))
            _check((yield files, names[1] if change.added else ()))
        boundary = _boundary(disk, directory, info, change)
    except (OSError, RhmError, MemoryError):
        remove_spare(disk, directory, base_name, change.added)
        raise
    try:
        if boundary is not None:
            boundary_path = data_path(directory, base_name, boundary.file_number)
            with contextlib.closing(disk.open_writable(boundary_path)) as file:
                file.write(boundary.slot * SLOT_SIZE, encode_header_slot(boundary))
                _check((yield (file,), ()))
        disk.rename(path + NEW, path)
        _check((yield names))
    except OSError as error:
        raise RingUnknownError(error) from error
    _replace_copy(disk, path + COPY_SUFFIX)


def _check(failure: OSError | None) -> None:
    if failure is not None:
        raise failure


def _written(disk: WritableDisk, path: str, info: JournalInfo) -> WritableFile:
    """A new file with the content of an info file, to be synced and closed. Raises OSError."""
    content = encode_jinf(info)
    file = _created(disk, path, len(content))
    try:
        file.write(0, content)
    except BaseException:
        file.close()
        raise
    return file


def _created(disk: WritableDisk, path: str, size: int) -> WritableFile:
    """A new file in place of one that may be there. Raises OSError."""
    try:
        return disk.create(path, size)
    except FileExistsError:
        disk.remove(path)
        return disk.create(path, size)


def _replace_copy(disk: WritableDisk, path: str) -> None:
    """Replace the copy of an info file. If the disk refuses it, the copy is removed: an old one would be wrong."""
    try:
        disk.rename(path + NEW, path)
    except OSError:
        with contextlib.suppress(OSError):
            disk.remove(path)


def _changed(info: JournalInfo, change: RingChange) -> JournalInfo:
    files, initial = len(change.after), info.initial_files or len(change.before)
    return info._replace(
        geometry=Geometry(files, info.geometry.data_size),
        ring=() if is_plain_ring(change.after) else change.after,
        spare=_sorted({*info.spare, *change.removed, *change.announced}.difference(change.added)),
        initial_files=0 if files == initial else initial,
    )


def settle_ring(disk: WritableDisk, directory: str, info: JournalInfo) -> None:
    """Sync the name of the info file before a journal is resumed, and remove spare files if possible.

    A process that died in the middle of a change may have renamed the info file without syncing the name.
    """
    if info.has_changed_ring:
        disk.sync_directory(directory)
        remove_spare(disk, directory, info.base_name, info.spare)


def remove_spare(disk: WritableDisk, directory: str, base_name: str, numbers: Iterable[int]) -> None:
    """Remove files that do not belong to the ring, if they exist and the disk allows it."""
    with contextlib.suppress(OSError):
        names = set(disk.names(directory))  # most of them do not exist: one call instead of one for each
        for number in numbers:
            path = data_path(directory, base_name, number)
            if posixpath.basename(path) in names:
                with contextlib.suppress(OSError):
                    disk.remove(path)


def _create(
    disk: WritableDisk, directory: str, info: JournalInfo, change: RingChange, opened: contextlib.ExitStack
) -> list[WritableFile]:
    """Create the new files, if there are any: to be synced, and closed by `opened`."""
    anchor = None
    if change.added and change.anchor != UNENTERED:
        anchor = _header(disk, data_path(directory, info.base_name, change.anchor))
    files: list[WritableFile] = []
    for number in change.added:
        path = data_path(directory, info.base_name, number)
        file = opened.enter_context(contextlib.closing(_created(disk, path, info.geometry.file_size)))
        files.append(file)
        write_creation_header(file, info, number)
        if anchor is not None:
            header = anchor._replace(
                file_number=number,
                overwrite_indicator=change.indicator,
                first_record_offset=0,
                slot=0,
                is_boundary=True,
            )
            file.write(0, encode_header_slot(header))
    return files


def _boundary(disk: WritableDisk, directory: str, info: JournalInfo, change: RingChange) -> FileHeader | None:
    """The header that makes a free file a boundary; None if none has to be one."""
    if change.boundary == UNENTERED:
        return None
    header = _header(disk, data_path(directory, info.base_name, change.boundary))
    anchor = _header(disk, data_path(directory, info.base_name, change.anchor))
    slot = other_slot(header.slot)
    return header._replace(first_flush=anchor.first_flush, first_record_offset=0, slot=slot, is_boundary=True)


def _header(disk: WritableDisk, path: str) -> FileHeader:
    header = decode_file_header(read_whole(disk, path, FILE_HEADER_SIZE))
    if header is None:
        raise RhmError(f"{path}: the file has no header")
    return header


def _sorted(numbers: set[int]) -> tuple[int, ...]:
    return tuple(sorted(numbers))
