r"""`qpid-store-chk`: check a journal of qpidd and show what remains in it; a drop-in replacement for Apache's command.

It reads one journal, counts and matches its records, and shows what remains: the messages that were enqueued and not
dequeued, and the transactions that were neither committed nor aborted. The output is the original's, byte for byte. The
journal's bytes come from `store.journal.stream`, and records are validated by `store.journal.ring.version_1`; but the
order of files and records, and where the journal ends, follow the original. `qstore-dump` shows more, including damage;
use it to examine a store after a crash.

The walk begins in the earliest full file, at its first record offset, and ends silently at the first bytes that are not
a record: unwritten space, bytes of an older lap, or a torn record. A record of another lap than its file ends it with a
warning, shown if all records are (-r). The first record of each file must be where its header says. Transient records
count as any other, and no transaction is looked up in the transaction prepared list.

Exit codes: 0 the journal was read, whatever remains in it; 1 it could not be read, or differs from what a test
expects; 2 usage.

Where the output differs from the original's, and why:

    - The lines of the info file, and the open transactions, were in a dictionary's arbitrary order. Here the
      former are in the order of the file, the latter in that of their first records.
    - Of the info file only what qpidd writes is shown. The original cannot read a queue's name with & or < or a
      quote, nor print one that is not ASCII; such names are shown unchanged, control characters as `\xNN`.
    - Where the original ends in a traceback or in the raw text of an exception, one line on standard error gives that
      text, or our own, with its place. The exit code is 1, as in the original.
    - A crash while a record was written over two files leaves its beginning in the first. The original takes that for
      an error and reports nothing; here the same line is written, the record is left out, and the report is still
      printed. The exit code is 1, as in the original.
    - The last record may have no more files for its rest: it is of an older lap, overwritten from behind, or torn.
      The original counts it as a record and nothing else, but if it has to show it (-r) it fails, or writes `None`
      for its tail. Here it is counted and never shown.
    - A file header of a big-endian writer, of another version or with a damaged magic is an error, not skipped; a
      forged time is shown, however far away, without an error. The unused word after the nanoseconds is ignored.
    - A test (CSV) that compares transaction ids finds size 0 for a missing one, and no messages in an empty journal:
      there the original failed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final, TypeAlias

from qstore.formats.errors import RhmError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.file_header import FileHeader, decode_file_header
from qstore.formats.rhm.geometry import BLOCK_SIZE, DATA_OFFSET, FILE_HEADER_SIZE, SECTOR_SIZE
from qstore.formats.rhm.jinf import MAX_JINF_SIZE, JournalInfo, decode_jinf
from qstore.formats.rhm.records import (
    COMMON,
    EXTERNAL,
    MAX_HEADER_SIZE,
    OVERWRITE_INDICATOR,
    RECORD_KINDS,
    TAIL_SIZE,
    TRANSIENT,
    Kind,
    RecordHeader,
    decode_header,
)
from qstore.store.disk import Disk, OsDisk, read_whole
from qstore.store.journal.recovery import LIVE, LOCKED, PENDING, EnqueueMap
from qstore.store.journal.ring.files import RingFile
from qstore.store.journal.ring.records import Version1Records
from qstore.store.journal.stream import JournalStream
from qstore.tools.console.command import EXIT_FAILED
from qstore.tools.console.text import one_line
from qstore.tools.drop_in import (
    ENQUEUE,
    CheckError,
    JournalOptions,
    JournalWalk,
    OpenTransaction,
    Read,
    Show,
    Transactions,
    exit_code,
    rendering_of,
    run_drop_in,
    shown,
    time_text,
    xid_key,
)

NAME: Final = "qpid-store-chk"

_EPILOG: Final = """
Examples:
  qpid-store-chk /var/lib/qpidd/rhm/jrnl/000a/orders
  qpid-store-chk -r -b tpl /var/lib/qpidd/rhm/tpl

DIR is the directory of one journal. Nothing is ever written to it. For a
whole store, decoded messages and damage see qstore-dump.

Exit codes: 0 the journal was read, 1 it was not, or differs from what a test
expects, 2 unusable options or no such journal.
"""


def parser() -> JournalOptions:
    """The options of the original command."""
    options = JournalOptions(NAME, _EPILOG)
    add = options.add_option
    add(
        "-c",
        "--csv-filename",
        dest="csvfn",
        help="file of comma-separated values with the expectations of tests; requires -t",
    )
    add("-q", "--quiet", action="store_true", help="print nothing but errors")
    add(
        "-r",
        "--records",
        action="store_true",
        help="print every record on the way, not only what remains",
    )
    add(
        "-t",
        "--test-num",
        dest="tnum",
        type="int",
        help="number of the test in that file; requires -c",
    )
    add("-v", "--verbose", action="store_true", help="print the name of each file on the way")
    return options


def run(arguments: Sequence[str]) -> int:
    """Run the command on `sys.stdout` and `sys.stderr`; returns the exit code."""
    values, directory = parser().read(arguments)
    csv = None if values.csvfn is None or values.tnum is None else CsvSelection(values.csvfn, values.tnum)
    checker = Checker(OsDisk(), sys.stdout.write, shown(values))
    try:
        return exit_code(lambda: checker.run(directory, values.bfn, csv), CheckError)
    except CsvFileError as error:
        sys.stdout.write(f"{one_line(str(error))}\n")
        return EXIT_FAILED


# ---- one run ----
#
# Nothing is printed before the analysis has succeeded. An error during the walk ends the output there.

#: Takes text for standard output, which may be buffered until `flush` or a line's end.
Write: TypeAlias = Callable[[str], object]


class CsvSelection(NamedTuple):
    """A test in a file of tests: the file's path, the test's number."""

    path: str
    number: int


class Checker:
    """Runs one check.

    Args:
        disk: where to read.
        write: takes standard output.
        show: how much of the walk is shown.
    """

    def __init__(self, disk: Disk, write: Write, show: Show) -> None:
        self._disk = disk
        self._write = write
        self._show = show
        self._counts = Counts()
        self._maps = Maps()
        self._test: CsvTest | None = None

    def run(self, directory: str, base_name: str, csv: CsvSelection | None) -> str | None:
        """Check the journal `base_name` in `directory`.

        Returns:
            What is wrong with the journal's end; None if nothing.

        Raises:
            CheckError: the check cannot continue, or the journal differs from what the test expects.
            CsvFileError: the test cannot be read.
            OSError: a file of the journal cannot be read.
        """
        analysis = analyse(self._disk, directory, base_name)
        if csv is not None:
            self._test = read_test(self._disk, csv.path, csv.number)
        for lines in (info_lines(analysis), file_lines(analysis)):
            for line in lines:
                self._line(line)
        if analysis.is_empty:
            self._check_count()
            self._finish(None)
            return None
        with closing(Walk(self._disk, analysis)) as walk:
            torn = self._walk(walk)
            self._finish(walk)
        return torn

    # ---- the walk ----

    def _walk(self, walk: Walk) -> str | None:
        """Walk, count and match; returns what is wrong with the journal's end, None if nothing."""
        torn = None
        self._begin()
        try:
            for event in walk.events():
                match event:
                    case FileEntered():
                        self._entered(event)
                    case FirstRecord():
                        self._detail(f" * fro ok: 0x{event.offset:x}")
                    case StrayHeader():
                        self._counts.records += 1
                        self._detail(f" > {event.text}  ")
                    case Record():
                        self._take(walk, event)
                    case Torn():
                        torn = event.message
                    case Truncated():
                        self._counts.records += 1
            self._check_count()
        except (CheckError, OSError):
            if self._show is Show.DOTS:
                self._text("\n")
            raise
        self._text("\n")  # ends the line of dots; after names or records it leaves a blank line
        return torn

    def _take(self, walk: Walk, record: Record) -> None:
        self._counts.records += 1
        warning = "WARNING: OWI mismatch - could be overwrite boundary."
        if not record.is_overwritten:
            if self._test is not None:
                self._test.check_record(record.header)
            try:
                warning = self._maps.apply(record, walk.read_xid(record))
            except CheckError as error:
                raise CheckError(f"{error} ({walk.where(record)})") from None
            self._counts.add(record.header)
        if self._show is Show.RECORDS:
            self._line(f" > {walk.text(record)}  " + (f" ({warning})" if warning else ""))

    def _check_count(self) -> None:
        if self._test is not None:
            self._test.check_count(self._counts.enqueues)

    def _finish(self, walk: Walk | None) -> None:
        if self._show is Show.NOTHING:
            return
        for line in report_lines(self._counts, self._maps, walk):
            self._line(line)

    # ---- output ----

    def _begin(self) -> None:
        if self._show is Show.DOTS:
            self._text("Recovering journals")
        elif self._show is Show.FILES:
            self._line("Recovering journals...")

    def _entered(self, event: FileEntered) -> None:
        file = event.file
        if self._show is Show.DOTS:
            self._text(" .")
        elif self._show is Show.FILES:
            self._line(f"* Reading {file.path}")
        header = "0x00000000: <empty>" if file.header is None else file_header_text(file.header, file.flags)
        self._detail(f"{file.path} :  {header}")

    def _detail(self, line: str) -> None:
        if self._show is Show.RECORDS:
            self._line(line)

    def _line(self, line: str) -> None:
        self._text(f"{line}\n")

    def _text(self, text: str) -> None:
        if self._show is not Show.NOTHING:
            self._write(text)


# ---- the info file and the file headers ----
#
# The file headers are read in the order of their numbers, up to the first file that was never written; the rest counts
# as unused, whatever it contains. The walk begins in the first file whose overwrite indicator differs from that of file
# 0, since that one was written longest ago; if there is none, in file 0.

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


# ---- the walk ----
#
# It enters the first file at its first record offset and proceeds from record to record and from file to file, once
# around the ring. At each block on which a record should begin:
#
#     magic unknown or 0             the end
#     first record of its file       its offset must be the first record offset: else an error
#     version not 1, big endian      an error
#     tail does not match            the end: the record is torn
#     overwrite indicator not that   the end, with a warning: the file was overwritten up to here
#     of the file
#
# A record may continue in the next files. It counts as one of the file in which it ends; its offset is that of its
# beginning. If its rest is not in those files, because a crash tore it (`Torn`), or there are no more files
# (`Truncated`), the walk ends. A file that is shorter than it should be ends the walk too. A first file whose first
# record offset is 0, because a record that began earlier fills it, is read as by the original: its header as a record,
# and what follows it as the next.

_MIN_HEADER: Final = 16  # bytes that the original reads of any value
_FILE_HEADER_FIELDS: Final = 48  # bytes: more than any record's header
_NO_OFFSET: Final = 1 << 44  # bytes: the largest file (ext4); the original fails to seek further
_WINDOW_SIZE: Final = 1 << 16  # bytes read at a time: only headers and tails of messages are read
_FILLER: Final = RecordHeader(Kind.FILLER, 1, 0, blocks=1)  # whatever follows its magic
_MAGICS: Final = frozenset(kind.value for kind in RECORD_KINDS | {Kind.FILE})


class FileEntered(NamedTuple):
    """The walk continues in this file."""

    file: AnalysedFile


class FirstRecord(NamedTuple):
    """The first record of a file is where the file's header says."""

    offset: int


class StrayHeader(NamedTuple):
    """A file header where a record should be; it counts as one."""

    text: str


class Record(NamedTuple):
    """A record.

    Attributes:
        place: where it begins in the stream of the files.
        offset: where it begins in its file.
        file_number: of the file in which it ends, from that file's header.
        header: its header.
        is_overwritten: whether it is of another lap than its file; the walk ends with it.
    """

    place: int
    offset: int
    file_number: int
    header: RecordHeader
    is_overwritten: bool = False


class Torn(NamedTuple):
    """The walk ends at a record whose rest is not in the following files: one line about it."""

    message: str


class Truncated(NamedTuple):
    """The walk ends at a record for whose rest there are no files left. It counts as a record."""


#: Events of a walk.
Event: TypeAlias = FileEntered | FirstRecord | StrayHeader | Record | Torn | Truncated


class Walk(JournalWalk):
    """One walk over a journal that is not empty.

    Args:
        disk: where to read.
        analysis: properties of the journal.
    """

    def __init__(self, disk: Disk, analysis: Analysis) -> None:
        self._disk = disk
        self._files = (*analysis.files[analysis.first :], *analysis.files[: analysis.first])
        self._file_size = analysis.info.geometry.file_size
        files = [_ring_file(number, file) for number, file in enumerate(self._files)]
        super().__init__(JournalStream(disk, files, analysis.info.geometry, is_strict=True, window_size=_WINDOW_SIZE))
        self._records = Version1Records(self._stream, files)
        self._entered: list[AnalysedFile] = []
        self._is_first = False  # the next record is the first that begins in its file

    # ---- content of a record ----

    def where(self, record: Record) -> str:
        """The file and the offset at which the record begins."""
        return f"{self._files[self._stream.index(record.place)].path} at offset 0x{record.offset:x}"

    def text(self, record: Record) -> str:
        """The record as it is printed."""
        return record_text(record.header, record.offset, self.read_xid(record), self.read_data(record))

    def record_at(self, place: int) -> Record:
        """Read a record of the walk at `place` again.

        Raises:
            CheckError: it has changed: the journal is being written to.
            OSError: its file cannot be read.
        """
        file, offset = self._stream.locate(place)
        try:
            header = decode_header(self._stream.read(place, MAX_HEADER_SIZE))
            last = self._last_file(place, header)
        except RhmError:
            last = len(self._entered)
        file_header = self._entered[last].header if last < len(self._entered) else None
        if file_header is None:
            raise CheckError(f"{file.path} at offset 0x{offset:x}: the record changed while it was read")
        return Record(place, offset, file_header.file_number, header)

    # ---- the walk ----

    def events(self) -> Iterator[Event]:
        """The events of the walk, in order.

        Raises:
            CheckError: it cannot continue.
            OSError: a file cannot be read.
        """
        yield self._enter_next()
        place = yield from self._first_place()
        while place is not None and place < self._stream.size:
            if self._stream.index(place) == len(self._entered):
                if self._entered[-1].size < self._file_size:
                    return
                yield self._enter_next()
            if self._entered[-1].header is None:
                return
            place = yield from self._step(place, self._stream.locate(place)[1])

    def _enter_next(self) -> FileEntered:
        name, path, *_ = self._files[len(self._entered)]
        self._entered.append(read_file_header(self._disk, name, path))
        self._is_first = True
        return FileEntered(self._entered[-1])

    def _first_place(self) -> Generator[Event, None, int | None]:
        """Where the first record begins; None if it cannot begin there."""
        file, header = self._files[0], self._files[0].header
        assert header is not None
        offset = header.first_record_offset
        if offset >= _NO_OFFSET:
            raise CheckError(f"{file.path}: first record offset 0x{offset:x} is beyond any file's end")
        if offset >= self._file_size:
            return self._stream.data_size
        if not offset:
            yield self._first_record(offset)
            yield StrayHeader(file_header_text(header, file.flags))
            return 0
        return None if offset % BLOCK_SIZE or offset < DATA_OFFSET else offset - DATA_OFFSET

    def _step(self, place: int, offset: int) -> Generator[Event, None, int | None]:
        """The events at `place`; returns the next place, None at the end."""
        block = self._stream.read(place, _FILE_HEADER_FIELDS)
        magic, version, endian, flags = COMMON.unpack_from(block)
        if magic not in _MAGICS or not self._stream.is_backed(place, _MIN_HEADER):
            return None
        if magic == Kind.FILE:
            if self._is_first:
                yield self._first_record(offset)
            yield self._stray_header(block, flags, offset)
            return place - place % SECTOR_SIZE + SECTOR_SIZE
        header = _FILLER if magic == Kind.FILLER else self._decoded(block, version, endian, offset)
        if header is None:
            return None
        last = self._last_file(place, header)
        # The part in this file comes first, the rest after the first record offset, as in the original.
        is_split = last >= len(self._entered)
        if not (self._entered[-1].size >= self._file_size if is_split else self._is_whole(place, header)):
            return None
        if self._is_first:
            yield self._first_record(offset)
        begun_in = self._entered[-1].header
        if is_split and not (yield from self._enter_rest(place, offset, header, last)):
            return None
        ended_in = self._entered[-1].header
        assert begun_in is not None
        assert ended_in is not None
        indicator = header.flags & OVERWRITE_INDICATOR
        is_overwritten = header.kind is not Kind.FILLER and indicator != begun_in.overwrite_indicator
        yield Record(place, offset, ended_in.file_number, header, is_overwritten)
        return None if is_overwritten else place + header.size

    def _decoded(self, block: bytes, version: int, endian: int, offset: int) -> RecordHeader | None:
        """The header of a record that is not a filler; None if its sizes contradict its kind."""
        if version != 1:
            raise self._error(f"Invalid header version: expected:1, actual:{version}.", offset)
        if endian:
            raise self._error("Endian mismatch: expected little, but current record is big", offset)
        try:
            return decode_header(block)
        except RhmError:
            return None

    def _is_whole(self, place: int, header: RecordHeader) -> bool:
        """Whether the record is complete and its tail matches its header, in this lap or an older one."""
        if not self._stream.is_backed(place, header.tail_offset + (TAIL_SIZE if header.has_tail else 0)):
            return False
        if header.kind is Kind.FILLER:
            return True
        verdict = self._records.verify(place, header)
        return verdict.problem is None or verdict.stale

    def _last_file(self, place: int, header: RecordHeader) -> int:
        """The index of the file in which a record at `place` ends; beyond the last file if there are too few."""
        return self._stream.index(min(place + header.size - 1, self._stream.size))

    def _enter_rest(self, place: int, offset: int, header: RecordHeader, last: int) -> Generator[Event, None, bool]:
        """Enter the files up to `last`, in which a record ends; returns whether its rest is there."""
        path, first = self._entered[-1].path, len(self._entered)
        while len(self._entered) <= last:
            if len(self._entered) == len(self._files):
                yield Truncated()
                return False
            yield self._enter_next()
        if all(file.header for file in self._entered[first:]) and self._is_whole(place, header):
            return True
        yield Torn(_torn_message(path, offset, header))
        return False

    def _first_record(self, offset: int) -> FirstRecord:
        """Check that the first record of the file, at `offset`, is where the file's header says."""
        file_header = self._entered[-1].header
        assert file_header is not None
        expected = file_header.first_record_offset
        if offset != expected:
            what = f"File header first record offset mismatch: fro=0x{expected:x}; actual offs=0x{offset:x}"
            raise CheckError(f"{what} ({self._entered[-1].path})")
        self._is_first = False
        return FirstRecord(offset)

    def _stray_header(self, block: bytes, flags: int, offset: int) -> StrayHeader:
        try:
            header = decode_file_header(block)
        except RhmError as error:
            raise self._error(error.what, offset) from None
        if header is None or header.version != 1:
            raise self._error("file header of another version where a record should be", offset)
        return StrayHeader(file_header_text(header, flags, offset))

    def _error(self, what: str, offset: int) -> CheckError:
        return CheckError(f"{what} ({self._entered[-1].path} at offset 0x{offset:x})")


def _ring_file(number: int, file: AnalysedFile) -> RingFile:
    indicator = None if file.header is None else file.header.overwrite_indicator
    return RingFile(number, file.path, file.size, file.header, used=True, overwrite_indicator=indicator)


def _torn_message(path: str, offset: int, header: RecordHeader) -> str:
    return (
        f"{path}: the rest of the {header.kind.label} record at offset 0x{offset:x}, rid=0x{header.rid:x},"
        " is not in the files that follow; it is left out"
    )


# ---- enqueued records and open transactions ----
#
#     enqueue                   goes into the map; if it already is in the map: an error
#     enqueue, transactional    is pending in its transaction
#     dequeue                   removes the record from the map; not in the map: a warning; locked: an error
#     dequeue, transactional    locks the record, in the map or pending in any transaction; locked already: an
#                               error; not found: ignored. Is pending in its transaction
#     commit                    applies the pending operations, in order: enqueues go into the map and stay locked if
#                               they are; dequeues remove locked records (not locked: an error, not found: a warning)
#     abort                     discards the pending operations; its dequeues unlock: not locked, or not found: an error
#     commit, abort             of an unknown transaction: a warning
#
# Both maps hold places, not records: 18 bytes for each that remains.


class Maps:
    """The state of a journal after the applied records.

    Attributes:
        enqueued: rid → place of the records that were enqueued and not dequeued, LIVE or LOCKED.
        transactions: the open ones, in the order of their first records.
    """

    def __init__(self) -> None:
        self.enqueued = EnqueueMap()
        self.transactions = Transactions()
        self._waiting = EnqueueMap()  # transactional enqueues, PENDING or LOCKED

    def apply(self, record: Record, xid: Read) -> str:
        """Apply a record, whose transaction id `xid` reads; returns a warning, empty for none.

        Raises:
            CheckError: the record contradicts earlier ones.
        """
        header = record.header
        match header.kind:
            case Kind.ENQUEUE if header.xid_size:
                self.transactions.wait(xid_key(xid, header.xid_size), record.place, header.rid, ENQUEUE)
                self._waiting.add(header.rid, record.place, PENDING)
            case Kind.ENQUEUE:
                self._enqueue(header.rid, record.place, LIVE)
            case Kind.DEQUEUE if header.xid_size:
                self._lock(header.dequeued_rid)
                self.transactions.wait(xid_key(xid, header.xid_size), record.place, header.dequeued_rid, 0)
            case Kind.DEQUEUE:
                return self._dequeue(header.dequeued_rid)
            case Kind.COMMIT | Kind.ABORT:
                transaction = self.transactions.pop(xid_key(xid, header.xid_size), None)
                if transaction is None:
                    return f"WARNING: {xid_text(xid, header.xid_size)} not found in transaction map"
                return self._commit(transaction) if header.kind is Kind.COMMIT else self._abort(transaction)
        return ""

    def _enqueue(self, rid: int, place: int, state: int) -> None:
        if self.enqueued.get(rid) is not None:
            raise CheckError(f"Adding duplicate record to EnqMap: rid=0x{rid:x}")
        self.enqueued.add(rid, place, state)

    def _dequeue(self, rid: int) -> str:
        entry = self.enqueued.get(rid)
        if entry is None:
            return f"ERROR: Deleting non-existent rid from EnqMap: rid=0x{rid:x}"
        if entry.state == LOCKED:
            raise CheckError(f"Deleting locked record from EnqMap: rid=0x{rid:x}")
        self.enqueued.remove(rid)
        return ""

    def _lock(self, rid: int) -> None:
        entries = self.enqueued if self.enqueued.get(rid) is not None else self._waiting
        entry = entries.get(rid)
        if entry is None:
            return
        if entry.state == LOCKED:
            raise CheckError(f"Locking record which is already locked in EnqMap: rid=0x{rid:x}")
        entries.set_state(rid, LOCKED)

    def _is_locked(self, rid: int) -> bool:
        """Whether the record is in the map. Raises CheckError if it is and is not locked."""
        entry = self.enqueued.get(rid)
        if entry is None:
            return False
        if entry.state != LOCKED:
            raise CheckError(f"Unlocking record which is not locked in EnqMap: rid=0x{rid:x}")
        return True

    def _commit(self, transaction: OpenTransaction) -> str:
        missing = []
        for place, rid, is_enqueue in transaction.operations():
            if is_enqueue:
                entry = self._waiting.get(rid)
                self._waiting.remove(rid)
                self._enqueue(rid, place, LOCKED if entry is not None and entry.state == LOCKED else LIVE)
            elif self._is_locked(rid):
                self.enqueued.remove(rid)
            else:
                missing.append(f"0x{rid:x}")
        return f"WARNING: transactional dequeues not found in enqueue map; rids={missing}" if missing else ""

    def _abort(self, transaction: OpenTransaction) -> str:
        own = {rid for _, rid, is_enqueue in transaction.operations() if is_enqueue}
        for _, rid, is_enqueue in transaction.operations():
            if is_enqueue:
                self._waiting.remove(rid)
            elif self._is_locked(rid):
                self.enqueued.set_state(rid, LIVE)
            elif rid not in own:
                raise CheckError(f"Operation on non-existent record: operation=unlock; rid=0x{rid:x}")
        return ""


# ---- the report ----


@dataclass(slots=True)
class Counts:
    """Number of records of each kind in the walk.

    Attributes:
        records: of every kind, including fillers.
        plain, transactional: enqueues without and with a transaction id.
        aborts, commits: ends of transactions.
    """

    records: int = 0
    plain: int = 0
    transactional: int = 0
    aborts: int = 0
    commits: int = 0

    @property
    def enqueues(self) -> int:
        """Enqueues, transactional or not."""
        return self.plain + self.transactional

    def add(self, header: RecordHeader) -> None:
        """Count a record by its kind; `records` is not changed."""
        if header.kind is Kind.ENQUEUE:
            if header.xid_size:
                self.transactional += 1
            else:
                self.plain += 1
        elif header.kind is Kind.ABORT:
            self.aborts += 1
        elif header.kind is Kind.COMMIT:
            self.commits += 1


def report_lines(counts: Counts, maps: Maps, walk: Walk | None) -> Iterator[str]:
    """The report, the walk's last line and the blank lines between them; an empty journal has no walk."""
    yield from ("", " === REPORT ====", "")
    yield f"Records:      {counts.plain:8d} non-transactional"
    yield f"              {counts.transactional:8d} transactional"
    yield f"              {counts.enqueues:8d} total"
    yield ""
    yield f"Transactions: {counts.aborts:8d} aborts"
    yield f"              {counts.commits:8d} commits"
    yield f"              {counts.aborts + counts.commits:8d} total"
    yield ""
    if walk is not None and maps.enqueued:
        yield from _enqueued_lines(maps, walk)
    else:
        yield "No remaining enqueued records found (emap empty)."
    yield ""
    if walk is not None and maps.transactions:
        yield from _transaction_lines(maps, walk)
    else:
        yield "No incomplete transactions found (tmap empty)."
    yield ""
    yield f"{counts.enqueues} enqueues, {counts.records} journal records processed."


def _enqueued_lines(maps: Maps, walk: Walk) -> Iterator[str]:
    yield "Remaining enqueued records (sorted by rid): "
    for _, place, state in maps.enqueued.in_rid_order():
        yield _record_line(walk, place) + (" (locked)" if state == LOCKED else "")
    yield f"WARNING: Enqueue-Dequeue mismatch, {len(maps.enqueued)} enqueued records remain."


def _transaction_lines(maps: Maps, walk: Walk) -> Iterator[str]:
    total = 0
    yield "Incomplete transactions: "
    for transaction in maps.transactions.values():
        for place in transaction.places:
            yield _record_line(walk, place)
        first = walk.record_at(transaction.places[0])
        xid = xid_text(walk.read_xid(first), first.header.xid_size)
        yield f" Total: {len(transaction.places)} records for {xid}"
        yield ""
        total += len(transaction.places)
    yield (
        f"WARNING: Incomplete transactions found, {len(maps.transactions)} xids remain"
        f" containing a total of {total} records."
    )


def _record_line(walk: Walk, place: int) -> str:
    record = walk.record_at(place)
    return f"  fid={record.file_number} {walk.text(record)}"


# ---- tests (-c, -t) ----
#
# Columns, from 0: 0 test number; 5 number of messages; 7, 8 smallest and largest message size; 9, 10 the same for
# transaction ids; 11 whether messages are dequeued; 12 transient; 13 external; 20 comment. Others are ignored. A line
# counts if it has a comment and its numbers are numbers; of several with the same test number the first. Cells are
# separated by commas, quotes included. Sizes are compared if smallest and largest are the same and not 0; the size of
# data only if there are data.

MAX_CSV_SIZE: Final = 1 << 24  # bytes: such files have a few hundred lines
_LAST_COLUMN: Final = 20
_FALSE: Final = (b"FALSE", b"0")


class CsvFileError(Exception):
    """The file, or the test in it, does not exist: one line."""


class CsvTest(NamedTuple):
    """The expectations of one test.

    Attributes:
        number: of the test.
        messages: number of enqueues.
        message_size, xid_size: bytes; 0 or less if they are not compared.
        is_dequeued: whether the journal may contain dequeues.
        is_transient, is_external: the flags of every enqueue.
    """

    number: int
    messages: int
    message_size: int
    xid_size: int
    is_dequeued: bool
    is_transient: bool
    is_external: bool

    def check_record(self, header: RecordHeader) -> None:
        """Compare a record with the test.

        Raises:
            CheckError: it differs.
        """
        if header.kind is Kind.DEQUEUE and not self.is_dequeued:
            self._fail(f"WARNING: Dequeue record rid={header.rid} found in non-dequeue test - ignoring.")
        if header.kind is not Kind.ENQUEUE:
            return
        if bool(header.flags & EXTERNAL) != self.is_external:
            self._fail(f"External flag mismatch: expected {self.is_external}")
        if self.message_size > 0 and header.stored_size not in (0, self.message_size):
            self._fail(f"Message length mismatch: expected {self.message_size}; found {header.stored_size}")
        if self.xid_size > 0 and header.xid_size != self.xid_size:
            self._fail(f"Message XID mismatch: expected {self.xid_size}; found {header.xid_size}")
        if bool(header.flags & TRANSIENT) != self.is_transient:
            self._fail(f"Transaction mismatch: expected {self.is_transient}")

    def check_count(self, enqueues: int) -> None:
        """Compare the number of enqueues in the journal with the test.

        Raises:
            CheckError: it differs.
        """
        if enqueues != self.messages:
            self._fail(f"Incorrect number of messages: expected {self.messages}, found {enqueues}")

    def _fail(self, what: str) -> None:
        raise CheckError(f"[CSV {self.number}] {what}")


def read_test(disk: Disk, path: str, number: int) -> CsvTest:
    """The test called `number` in the file at `path`.

    Raises:
        CsvFileError: there is no such file, or no such test in it.
    """
    try:
        content = read_whole(disk, path, MAX_CSV_SIZE)
    except (OSError, ValueError):
        raise CsvFileError(f'ERROR: Unable to open CSV file "{path}"') from None
    for line in content.split(b"\n"):
        test = _parsed(line)
        if test is not None and test.number == number:
            return test
    raise CsvFileError(f'ERROR: Test {number} not found in CSV file "{path}"')


def _parsed(line: bytes) -> CsvTest | None:
    cells = line.split(b",", _LAST_COLUMN + 1)
    if len(cells) <= _LAST_COLUMN:
        return None
    try:
        number, messages, least, most, least_xid, most_xid = (int(cells[column]) for column in (0, 5, 7, 8, 9, 10))
    except ValueError:
        return None
    return CsvTest(
        number=number,
        messages=messages,
        message_size=least if least == most else 0,
        xid_size=least_xid if least_xid == most_xid else 0,
        is_dequeued=cells[11] not in _FALSE,
        is_transient=cells[12] not in _FALSE,
        is_external=cells[13] not in _FALSE,
    )


# ---- records as text ----

_FLAG_TEXTS: Final = {
    0: "",
    TRANSIENT: "*TRANSIENT*",
    EXTERNAL: "*EXTERNAL*",
    TRANSIENT | EXTERNAL: "*TRANSIENT,EXTERNAL*",
}
_RENDERING: Final = rendering_of(bytes(range(0x20, 0x7F)))


def rendering(read: Read, size: int) -> str:
    """The `size` bytes that `read` returns, as they are printed."""
    return _RENDERING.shortened(read, size, is_printable=_RENDERING.is_printable(read, size))


def xid_text(read: Read, size: int) -> str:
    """A transaction id; empty if there is none."""
    return f'xid({size})="{rendering(read, size)}" ' if size else ""


def data_text(read: Read, size: int) -> str:
    """The data of an enqueue; empty if there is none."""
    return f'data({size})="{rendering(read, size)}" ' if size else ""


def file_header_text(header: FileHeader, flags: int, offset: int = 0) -> str:
    """A file header; `flags` are those of its record header, `offset` is its position."""
    return (
        f'0x{offset:08x}: ["RHMf" v={header.version} e=0 f=0x{flags:04x} rid=0x{header.rid:x}]'
        f" fid={header.file_number} lid={header.logical_number} fro=0x{header.first_record_offset:08x}"
        f" t={time_text(header.seconds, header.nanoseconds)}"
    )


def record_text(header: RecordHeader, offset: int, xid: Read, data: Read) -> str:
    """A record that begins at `offset`; `xid` and `data` read what follows its header."""
    magic = header.kind.to_bytes(4, "little").decode()
    if header.kind is Kind.FILLER:
        return f'0x{offset:08x}: ["{magic}"]'
    text = f'0x{offset:08x}: ["{magic}" v={header.version} e=0 f=0x{header.flags:04x} rid=0x{header.rid:x}]'
    text += f" {xid_text(xid, header.xid_size)}"
    if header.kind is Kind.ENQUEUE:
        flags = _FLAG_TEXTS[header.flags & (TRANSIENT | EXTERNAL)]
        return f'{text}{data_text(data, header.stored_size)} ["{magic}" rid=0x{header.rid:x}] {flags}'
    if header.kind is Kind.DEQUEUE:
        return f"{text}drid=0x{header.dequeued_rid:x}"
    return text


def main() -> None:
    """Console script entry point."""
    run_drop_in(run)


if __name__ == "__main__":
    main()
