"""The files of one journal: found, their headers read, sorted by number.

A journal's directory contains absolute links into the `in_use` directories of the store's pools. In a copy of a store
they are broken, or worse, lead into another store. So a link's file is searched by its name, which is a UUID, among the
files in use of the store itself, and only then at the link's target.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from qstore.formats.qls.errors import QlsError
from qstore.formats.qls.file_header import FILE_HEADER_SIZE, FileHeader, decode_file_header, linear_geometry
from qstore.formats.qls.records import SECTOR_SIZE
from qstore.store.disk import Disk
from qstore.store.journal.line.file import LinearFile
from qstore.store.journal.line.pool import PooledFile
from qstore.store.journal.stream import JournalStream
from qstore.tools.qls_analyze.problems import Problems

SUFFIX: Final = ".jrnl"  # of the names that are examined
_WINDOW_SIZE: Final = 1 << 18  # bytes read at a time: records are read in order, and most are small


class JournalFile(NamedTuple):
    """A file that was written.

    Attributes:
        name: in the journal's directory.
        path: where it is read.
        header: its header.
        size: its size in bytes.
    """

    name: str
    path: str
    header: FileHeader
    size: int

    @property
    def number(self) -> int:
        """Its number in the journal."""
        return self.header.file_number

    def in_line(self) -> LinearFile:
        """The file as the store's reader takes it."""
        return LinearFile(self.number, self.path, self.size, self.header, self.header.serial)


def open_stream(disk: Disk, files: Sequence[JournalFile]) -> JournalStream:
    """The data areas of a journal's files; each file is as large as its header says."""
    sizes = [file.header.data_size for file in files]
    geometry = linear_geometry(max(len(files), 1), max(sizes, default=SECTOR_SIZE))
    line = [file.in_line() for file in files]
    return JournalStream(disk, line, geometry, sizes=sizes, is_strict=True, window_size=_WINDOW_SIZE, max_open=1)


def read_files(disk: Disk, directory: str, taken: Mapping[str, PooledFile], problems: Problems) -> list[JournalFile]:
    """The files of the journal in `directory` that were written, by number.

    A file that cannot be read or has no usable header is left out and reported; so is the second one with a number. A
    missing number is normal: after a crash qpidd may skip some.

    Args:
        disk: where to read.
        directory: the journal's directory.
        taken: the store's files in use by name.
        problems: collects problems.
    """
    found: dict[int, JournalFile] = {}
    for file in _written(disk, directory, taken, problems):
        other = found.setdefault(file.number, file)
        if other is not file:
            what = f"file number 0x{file.number:x}, which {other.path} has too; it is not read"
            problems.add(file.path, what)
    return [found[number] for number in sorted(found)]


def _written(disk: Disk, directory: str, taken: Mapping[str, PooledFile], problems: Problems) -> Iterator[JournalFile]:
    try:
        names = disk.names(directory)
    except OSError as error:
        problems.add_os_error(error, directory)
        return
    for name in names:
        if not name.endswith(SUFFIX):
            continue
        path = posixpath.join(directory, name)
        try:
            if name in taken and disk.link_target(path) is not None:
                path = taken[name].path
            elif not disk.is_file(path):
                target = disk.link_target(path)
                problems.add(path, "no regular file" if target is None else f"link to {target}, which is not there")
                continue
            file = _read_file(disk, name, path, problems)
        except OSError as error:
            problems.add_os_error(error, path)
        except QlsError as error:
            problems.add(path, error.what)
        else:
            if file is not None:
                yield file


def _read_file(disk: Disk, name: str, path: str, problems: Problems) -> JournalFile | None:
    """The file, or None if it was taken from the pool and never written."""
    opened = disk.open(path)
    try:
        header = decode_file_header(opened.read(0, FILE_HEADER_SIZE))
        size = opened.size
    finally:
        opened.close()
    if header.is_reset:
        return None
    if not header.file_number:
        raise QlsError("file header without a file number", 64)
    if size < header.file_size:
        problems.add(path, f"file has {size} bytes, its header says {header.file_size}")
    return JournalFile(name, path, header, size)
