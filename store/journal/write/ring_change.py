"""Makes a change of a ring on the disk: adds files, or removes some. A kill at any point leaves one of the two rings.

The info file tells which files belong to the ring, and in which order. It is replaced as a whole, by renaming:

    add       1  the info file lists the new files as spare      remove    1  the file before them becomes a boundary
              2  they are created and synced                               2  the info file has the new ring, and lists
              3  the info file has the new ring                               the removed files as spare
              4  so has its copy                                           3  so has its copy
                                                                           4  they are removed, little by little
                                                                              (`remove_spare`)

The copy is read if the info file is lost, since nothing else tells the order of the files.

So a file that exists and is not in the ring is listed as spare: it is no damage. `settle_ring` removes such files.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Iterable
from dataclasses import replace

from qstore.formats.rhm.errors import RhmError
from qstore.formats.rhm.file_header import SLOT_SIZE, FileHeader, decode_file_header, encode_header_slot, other_slot
from qstore.formats.rhm.geometry import FILE_HEADER_SIZE, Geometry
from qstore.formats.rhm.jinf import MAX_JINF_SIZE, JournalInfo, decode_jinf, encode_jinf, is_plain_ring
from qstore.store.disk import read_whole
from qstore.store.journal.directory import COPY_SUFFIX, INFO_SUFFIX, data_path
from qstore.store.journal.write.growth import UNENTERED, RingChange
from qstore.store.journal.write.storage import write_creation_header
from qstore.store.writable_disk import WritableDisk, write_new

_NEW = ".new"


class RingUnknownError(Exception):
    """The disk failed when the info file was replaced: it is unknown which ring the journal has after a restart.

    Attributes:
        error: what the disk said.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


def make_ring_change(disk: WritableDisk, directory: str, base_name: str, change: RingChange) -> None:
    """Make a change of the ring of the journal in `directory`. Nothing else may replace its info file meanwhile.

    Raises:
        RingUnknownError: it may have been made or not.
        OSError, RhmError: it was not made. Files that were created are removed, if the disk allows it.
    """
    path = posixpath.join(directory, base_name + INFO_SUFFIX)
    info = decode_jinf(read_whole(disk, path, MAX_JINF_SIZE + 1))
    if info.numbers != change.before:
        raise RhmError(f"{path}: the journal has other files than its info file says")
    if change.added:
        _replace(disk, path, replace(info, spare=_sorted({*info.spare, *change.added})))
    try:
        _create(disk, directory, info, change)
        _write(disk, path + _NEW, _changed(info, change))
        boundary = _boundary(disk, directory, info, change)
    except BaseException:
        remove_spare(disk, directory, base_name, change.added)
        raise
    try:
        if boundary is not None:
            _write_header(disk, directory, base_name, boundary)
        _rename(disk, path)
    except OSError as error:
        raise RingUnknownError(error) from error
    _copy(disk, path, _changed(info, change))


def _copy(disk: WritableDisk, path: str, info: JournalInfo) -> None:
    """Replace the copy of the info file. If the disk refuses it there is none: an old one would be wrong."""
    try:
        _write(disk, path + COPY_SUFFIX + _NEW, info)
        disk.rename(path + COPY_SUFFIX + _NEW, path + COPY_SUFFIX)
    except OSError:
        with contextlib.suppress(OSError):
            disk.remove(path + COPY_SUFFIX)


def _changed(info: JournalInfo, change: RingChange) -> JournalInfo:
    files, initial = len(change.after), info.initial_files or len(change.before)
    return replace(
        info,
        geometry=Geometry(files, info.geometry.data_size),
        ring=() if is_plain_ring(change.after) else change.after,
        spare=_sorted({*info.spare, *change.removed}.difference(change.added)),
        initial_files=0 if files == initial else initial,
    )


def settle_ring(disk: WritableDisk, directory: str, info: JournalInfo) -> None:
    """Before a journal is resumed: sync the name of the info file that was read, and remove spare files if possible.

    A process that died in the middle of a change may have renamed the info file, but not synced that.
    """
    if info.has_changed_ring:
        disk.sync_directory(directory)
        remove_spare(disk, directory, info.base_name, info.spare)


def remove_spare(disk: WritableDisk, directory: str, base_name: str, numbers: Iterable[int]) -> None:
    """Remove files that do not belong to the ring, if they are there and the disk allows it."""
    for number in numbers:
        path = data_path(directory, base_name, number)
        with contextlib.suppress(OSError):
            if disk.is_file(path):
                disk.remove(path)


def _create(disk: WritableDisk, directory: str, info: JournalInfo, change: RingChange) -> None:
    """Create the new files, if there are any."""
    if not change.added:
        return
    anchor = _header(disk, data_path(directory, info.base_name, change.anchor)) if change.anchor != UNENTERED else None
    for number in change.added:
        path = data_path(directory, info.base_name, number)
        if disk.is_file(path):
            disk.remove(path)  # a spare one
        with contextlib.closing(disk.create(path, info.geometry.file_size)) as file:
            write_creation_header(file, info, number)
            if anchor is not None:
                header = replace(
                    anchor,
                    file_number=number,
                    overwrite_indicator=change.indicator,
                    first_record_offset=0,
                    slot=0,
                    is_boundary=True,
                )
                file.write(0, encode_header_slot(header))
            file.sync()
    disk.sync_directory(directory)


def _boundary(disk: WritableDisk, directory: str, info: JournalInfo, change: RingChange) -> FileHeader | None:
    """The header that makes a free file a boundary; None if none has to be one."""
    if change.boundary == UNENTERED:
        return None
    header = _header(disk, data_path(directory, info.base_name, change.boundary))
    anchor = _header(disk, data_path(directory, info.base_name, change.anchor))
    slot = other_slot(header.slot)
    return replace(header, first_flush=anchor.first_flush, first_record_offset=0, slot=slot, is_boundary=True)


def _header(disk: WritableDisk, path: str) -> FileHeader:
    header = decode_file_header(read_whole(disk, path, FILE_HEADER_SIZE))
    if header is None:
        raise RhmError(f"{path}: the file has no header")
    return header


def _write_header(disk: WritableDisk, directory: str, base_name: str, header: FileHeader) -> None:
    with contextlib.closing(disk.open_writable(data_path(directory, base_name, header.file_number))) as file:
        file.write(header.slot * SLOT_SIZE, encode_header_slot(header))
        file.sync()


def _replace(disk: WritableDisk, path: str, info: JournalInfo) -> None:
    _write(disk, path + _NEW, info)
    _rename(disk, path)


def _write(disk: WritableDisk, path: str, info: JournalInfo) -> None:
    if disk.is_file(path):
        disk.remove(path)
    write_new(disk, path, encode_jinf(info))


def _rename(disk: WritableDisk, path: str) -> None:
    disk.rename(path + _NEW, path)
    disk.sync_directory(posixpath.dirname(path))


def _sorted(numbers: set[int]) -> tuple[int, ...]:
    return tuple(sorted(numbers))
