"""The walk over the records of a journal, by the rules of the original.

It enters the first file at its first record offset and proceeds from record to record and from file to file, once
around the ring. At each block on which a record should begin:

    magic unknown or 0             the end
    first record of its file       its offset must be the first record offset: else an error
    version not 1, big endian      an error
    tail does not match            the end: the record is torn
    overwrite indicator not that   the end, with a warning: the file was overwritten up to here
    of the file

A record may continue in the next files. It counts as one of the file in which it ends; its offset is that of its
beginning. If its rest is not in those files, because a crash tore it (`Torn`), or there are no more files
(`Truncated`), the walk ends. A file that is shorter than it should be ends the walk too. A first file whose first
record offset is 0, because a record that began earlier fills it, is read as by the original: its header as a record,
and what follows it as the next.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Final, NamedTuple, TypeAlias

from qstore.formats.rhm.errors import RhmError
from qstore.formats.rhm.file_header import decode_file_header
from qstore.formats.rhm.geometry import BLOCK_SIZE, DATA_OFFSET, SECTOR_SIZE
from qstore.formats.rhm.records import (
    COMMON,
    MAX_HEADER_SIZE,
    OVERWRITE_INDICATOR,
    RECORD_KINDS,
    TAIL_SIZE,
    Kind,
    RecordHeader,
    decode_header,
)
from qstore.store.disk import Disk
from qstore.store.journal.ring.order import RingFile
from qstore.store.journal.ring.version_1 import Version1Records
from qstore.store.journal.stream import JournalStream
from qstore.tools.store_chk.analysis import AnalysedFile, Analysis, read_file_header
from qstore.tools.store_chk.errors import CheckError
from qstore.tools.store_chk.text import Read, file_header_text, record_text

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


class Walk:
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
        self._stream = JournalStream(disk, files, analysis.info.geometry, is_strict=True, window_size=_WINDOW_SIZE)
        self._records = Version1Records(self._stream, files)
        self._entered: list[AnalysedFile] = []
        self._is_first = False  # the next record is the first that begins in its file

    def close(self) -> None:
        """Close all file descriptors."""
        self._stream.close()

    # ---- content of a record ----

    def where(self, record: Record) -> str:
        """The file and the offset at which the record begins."""
        return f"{self._files[self._stream.index(record.place)].path} at offset 0x{record.offset:x}"

    def text(self, record: Record) -> str:
        """The record as it is printed."""
        return record_text(record.header, record.offset, self.read_xid(record), self._read_data(record))

    def read_xid(self, record: Record) -> Read:
        """Reads from the record's transaction id."""
        begin = record.place + record.header.header_size
        return lambda offset, length: self._stream.read_aside(begin + offset, length)

    def _read_data(self, record: Record) -> Read:
        begin = record.place + record.header.header_size + record.header.xid_size
        return lambda offset, length: self._stream.read_aside(begin + offset, length)

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
