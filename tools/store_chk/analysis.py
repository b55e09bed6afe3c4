"""The info file and the file headers of a journal, before any record is read.

The file headers are read in the order of their numbers, up to the first file that was never written; the rest counts as
unused, whatever it contains. The walk begins in the first file whose overwrite indicator differs from that of file 0,
since that one was written longest ago; if there is none, in file 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from qstore.formats.rhm.errors import RhmError
from qstore.formats.rhm.file_header import FileHeader, decode_file_header
from qstore.formats.rhm.geometry import BLOCK_SIZE, FILE_HEADER_SIZE, SECTOR_SIZE
from qstore.formats.rhm.jinf import MAX_JINF_SIZE, JournalInfo, decode_jinf
from qstore.formats.rhm.records import COMMON
from qstore.store.disk import Disk, read_whole
from qstore.tools.console.text import one_line
from qstore.tools.store_chk.errors import CheckError
from qstore.tools.store_chk.text import time_text

_OTHER_TOOL: Final = "qpid-store-chk reads version 1 only; use qstore-dump"


class AnalysedFile(NamedTuple):
    """One file of a journal.

    Attributes:
        name: in its directory.
        path: directory and name.
        size: its size in bytes; -1 if it was not examined.
        header: None if the file was never written.
        flags: of the header, all 16 bits.
    """

    name: str
    path: str
    size: int
    header: FileHeader | None
    flags: int


class Analysis(NamedTuple):
    """Properties of a journal before its records are read.

    Attributes:
        directory: as given.
        info_path: the info file's path.
        info: its content.
        leaves: the same as names and printed values, in the order of the file.
        files: all files by number; those after the first unwritten one have no header either.
        first: number of the file in which the walk begins.
    """

    directory: str
    info_path: str
    info: JournalInfo
    leaves: tuple[tuple[str, str], ...]
    files: tuple[AnalysedFile, ...]
    first: int

    @property
    def is_empty(self) -> bool:
        """Whether no file was ever written."""
        return self.files[0].header is None


def analyse(disk: Disk, directory: str, base_name: str) -> Analysis:
    """Read the info file `<base_name>.jinf` in `directory` and the headers of the files that it names.

    Raises:
        CheckError: one of them cannot be decoded.
        OSError: one of them cannot be read.
    """
    info_path = joined(directory, f"{base_name}.jinf")
    content = read_whole(disk, info_path, MAX_JINF_SIZE + 1)
    info = _decode_info(info_path, content)
    names = [f"{info.base_name}.{number:04x}.jdat" for number in range(info.geometry.files)]
    files: list[AnalysedFile] = []
    unused = False
    for name in names:
        path = joined(directory, name)
        file = AnalysedFile(name, path, -1, None, 0) if unused else read_file_header(disk, name, path)
        unused = file.header is None
        files.append(file)
    return Analysis(directory, info_path, info, _leaves(info, content), tuple(files), _first(files))


def joined(directory: str, name: str) -> str:
    """The path of `name` in `directory`, in the form in which it was typed."""
    return f"{directory}{name}" if directory.endswith("/") else f"{directory}/{name}"


def read_file_header(disk: Disk, name: str, path: str) -> AnalysedFile:
    """Read the header of one file.

    Raises:
        CheckError: there is none, or of another version.
        OSError: the file cannot be read.
    """
    file = disk.open(path)
    try:
        size, sector = file.size, file.read(0, min(file.size, FILE_HEADER_SIZE))
    finally:
        file.close()
    try:
        header = decode_file_header(sector)
    except RhmError as error:
        raise CheckError(f"{path}: {error.what}") from None
    if header is not None and header.version != 1:
        raise CheckError(f"{path}: file header of version {header.version}; {_OTHER_TOOL}")
    return AnalysedFile(name, path, size, header, COMMON.unpack_from(sector)[3] if header else 0)


def _decode_info(path: str, content: bytes) -> JournalInfo:
    try:
        info = decode_jinf(content)
    except RhmError as error:
        raise CheckError(f"{path}: {error.what}") from None
    if info.version != 1:
        raise CheckError(f"{path}: a journal of version {info.version}; {_OTHER_TOOL}")
    if not info.base_name or "/" in info.base_name or "\0" in info.base_name:
        raise CheckError(f"{path}: base_filename is not a file name: {info.base_name[:40]!r}")
    return info


def _first(files: list[AnalysedFile]) -> int:
    indicators = [file.header.overwrite_indicator for file in files if file.header]
    return next((number for number, indicator in enumerate(indicators) if indicator != indicators[0]), 0)


def _leaves(info: JournalInfo, content: bytes) -> tuple[tuple[str, str], ...]:
    """Those fields of an info file that are present."""
    values = {
        "journal_version": info.version,
        "id_string": one_line(info.queue_name),
        "directory": one_line(info.directory),
        "base_filename": one_line(info.base_name),
        "seconds": info.seconds,
        "nanoseconds": info.nanoseconds,
        "string": one_line(info.local_time),
        "number_jrnl_files": info.geometry.files,
        "auto_expand": info.auto_expand_limit is not None,
        "auto_expand_max_jrnl_files": info.auto_expand_limit,
        "jrnl_file_size_sblks": info.geometry.data_size // SECTOR_SIZE,
        "JRNL_SBLK_SIZE": SECTOR_SIZE // BLOCK_SIZE,
        "JRNL_DBLK_SIZE": BLOCK_SIZE,
        "wcache_pgsize_sblks": info.write_page_sectors,
        "wcache_num_pages": info.write_pages,
        "JRNL_RMGR_PAGE_SIZE": info.read_page_sectors,
        "JRNL_RMGR_PAGES": info.read_pages,
    }
    present = set(re.findall(rb"<(\w+)\s+value=", content))
    return tuple((name, str(value)) for name, value in values.items() if name.encode() in present)


# ---- lines ----


def info_lines(analysis: Analysis) -> Iterator[str]:
    """The first block of the output: the info file."""
    yield f"Journal info file {analysis.info_path}:"
    yield from (f"  {name} = {value}" for name, value in analysis.leaves)
    yield ""


def file_lines(analysis: Analysis) -> Iterator[str]:
    """The second block: the files."""
    yield f"Journal files analyzed in directory {analysis.directory} (* = earliest full):"
    if analysis.is_empty:
        yield "  <All journal files are empty>"
    else:
        yield from (_file_line(file, star=number == analysis.first) for number, file in enumerate(analysis.files))
    yield ""


def _file_line(file: AnalysedFile, *, star: bool) -> str:
    header = file.header
    name = one_line(file.name)
    if header is None:
        return f"    {name}: <empty>"
    return (
        f"  {'*' if star else ' '} {name}: owi={bool(header.overwrite_indicator)!s:5} rid=0x{header.rid:x},"
        f" fro=0x{header.first_record_offset:x} ts={time_text(header.seconds, header.nanoseconds)}"
    )
