"""The walk over the records of a journal, by the rules of the original (formats/qls/README.md, 4).

It begins in the file with the lowest number, at its first record offset, and proceeds from record to record and from
file to file. At each block on which a record should begin:

    magic unknown or 0             the end
    serial not the file's          the end: it is from the file's former life
    tail does not match            the end: the record is torn
    rest missing                   the end: the crash tore the record, or files are missing
    version not 2, or a missing    an error, and the end
    mandatory xid

A record may continue in the next files; the first record after it must then begin where that file's header says.
A file that is entered between two records is entered where its header says. A file whose first record offset is 0, or
its end, is filled by a record that began earlier; so it can only be the first one, or follow a missing one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from qstore.formats.qls.errors import QlsError
from qstore.formats.qls.file_header import DATA_OFFSET
from qstore.formats.qls.records import (
    COMMON,
    HEADER_SIZES,
    MAGICS,
    MAX_HEADER_SIZE,
    SECTOR_SIZE,
    TAIL_SIZE,
    RecordHeader,
    Tail,
    decode_header,
    decode_tail,
)
from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.rhm.records import Kind
from qstore.store.journal.line.records import LinearRecords
from qstore.store.journal.stream import JournalStream
from qstore.tools.qls_analyze.files import JournalFile

_RECORD_MAGICS: Final = frozenset(MAGICS[kind] for kind in HEADER_SIZES)
_FILLER: Final = MAGICS[Kind.FILLER].to_bytes(4, "little")


class WalkError(Exception):
    """The walk cannot continue: bytes that no writer produces.

    Attributes:
        where: the file, and the offset in it.
        what: what is wrong.
    """

    def __init__(self, where: str, what: str) -> None:
        super().__init__(where, what)
        self.where = where
        self.what = what


class FileEntered(NamedTuple):
    """The walk continues in a file: its index."""

    file: int


class Fillers(NamedTuple):
    """Consecutive fillers, at `place`: number of blocks."""

    place: int
    blocks: int


class Record(NamedTuple):
    """A record that is not a filler.

    Attributes:
        place: where it begins.
        header: its header.
        tail: its tail; None if it has none, or one that does not match, and then the walk ends.
    """

    place: int
    header: RecordHeader
    tail: Tail | None

    @property
    def is_valid(self) -> bool:
        """Whether the tail, if there should be one, matches the record."""
        return self.tail is not None or not self.header.has_tail


class Truncated(NamedTuple):
    """The walk ends with a record whose rest is missing."""

    place: int
    header: RecordHeader


class WrongOffset(NamedTuple):
    """The walk ends in a file whose first record is not where its header says.

    Attributes:
        file: its index.
        actual: offset after the record that continues in it.
    """

    file: int
    actual: int


#: Events of a walk.
Event: TypeAlias = FileEntered | Fillers | Record | Truncated | WrongOffset


class Walk:
    """A walk over one journal.

    Attributes:
        end: the place at which the next record would be written; None during the walk, and if that is the end of the
        last
            file, or unknown.
    """

    def __init__(self, stream: JournalStream, files: Sequence[JournalFile]) -> None:
        self._stream = stream
        self._files = files
        self._records = LinearRecords(stream, [file.in_line() for file in files])
        self._entered = -1  # index of the file entered last
        self.end: int | None = None

    def events(self) -> Iterator[Event]:
        """The events of the walk, in order.

        Raises:
            WalkError: it cannot continue.
            OSError: a file cannot be read.
        """
        place: int | None = None
        while True:
            if place is None or place == self._stream.begin(self._entered + 1):
                if self._entered + 1 == len(self._files):
                    return
                yield self._enter_next()
                place = self._first_place()
                continue
            blocks = self._fillers(place)
            if blocks:
                yield Fillers(place, blocks)
                place += blocks * BLOCK_SIZE
                continue
            header = self._header(place)
            if header is None:
                self.end = place
                return
            last = self._entered
            yield from self._enter_rest(place, header)
            record = self.record(place, header)
            yield record or Truncated(place, header)
            if record is None or not record.is_valid:
                self.end = place
                return
            place += header.size
            if self._entered != last and (wrong := self._wrong_offset(place)):
                yield wrong
                return

    def record(self, place: int, header: RecordHeader) -> Record | None:
        """The record at `place` with its tail verified; None if its rest is missing."""
        tail_place = place + header.tail_offset
        if not self._stream.is_backed(place, header.tail_offset + (TAIL_SIZE if header.has_tail else 0)):
            return None
        # A record whose writer had to wait is valid for the store's reader, but neither for qpidd's nor for the
        # original.
        is_valid = self._records.verify(place, header).problem is None and place not in self._records.continued
        tail = decode_tail(self._stream.read_aside(tail_place, TAIL_SIZE)) if header.has_tail and is_valid else None
        return Record(place, header, tail)

    def record_at(self, place: int) -> Record:
        """Read a valid record of the walk at `place` again.

        Raises:
            WalkError: it has changed: the journal is being written to.
            OSError: its file cannot be read.
        """
        header = self._header(place)
        record = None if header is None else self.record(place, header)
        if record is None or not record.is_valid:
            raise WalkError(self.where(place), "the record changed while the journal was read")
        return record

    def where(self, place: int) -> str:
        """The file and the offset of a place."""
        return f"{self._files[self._stream.index(place)].path} at offset 0x{self._stream.locate(place)[1]:x}"

    # ---- files ----

    def _enter_next(self) -> FileEntered:
        self._entered += 1
        return FileEntered(self._entered)

    def _enter_rest(self, place: int, header: RecordHeader) -> Iterator[FileEntered]:
        """Enter the files in which a record continues; all remaining ones, if they do not contain its end."""
        last = min(place + header.size, self._stream.size) - 1
        while self._entered < self._stream.index(last):
            yield self._enter_next()

    def _first_place(self) -> int | None:
        """Where the first record of the current file begins; None if none does."""
        file = self._files[self._entered]
        offset = file.header.first_record_offset
        if offset in (0, file.header.file_size):
            if self._entered and self._files[self._entered - 1].number + 1 == file.number:
                raise WalkError(
                    file.path, "its header says that no record begins in it, but none continues in it either"
                )
            return None
        if not DATA_OFFSET <= offset < file.header.file_size or offset % BLOCK_SIZE:
            raise WalkError(file.path, f"no record can begin at the first record offset 0x{offset:x}")
        return self._stream.begin(self._entered) + offset - DATA_OFFSET

    def _wrong_offset(self, place: int) -> WrongOffset | None:
        if place == self._stream.begin(self._entered + 1):
            return None
        actual = self._stream.locate(place)[1]
        expected = self._files[self._entered].header.first_record_offset
        return None if actual == expected else WrongOffset(self._entered, actual)

    # ---- records ----

    def _fillers(self, place: int) -> int:
        """Number of consecutive fillers from `place`, within this file and the part of it that was read."""
        window, at = self._stream.window(place, BLOCK_SIZE)
        stop = min(len(window), at + self._stream.begin(self._entered + 1) - place)
        begin = at
        while at < stop and window.startswith(_FILLER, at):
            at += BLOCK_SIZE
        return (at - begin) // BLOCK_SIZE

    def _header(self, place: int) -> RecordHeader | None:
        """The header of a record that belongs to the file; None at the end."""
        window, at = self._stream.window(place, MAX_HEADER_SIZE)
        magic, _, _, serial, _ = COMMON.unpack_from(window, at)
        if magic not in _RECORD_MAGICS or serial != self._files[self._stream.index(place)].header.serial:
            return None
        try:
            header = decode_header(window, at)
        except QlsError as error:
            raise WalkError(self.where(place), error.what) from None
        return header if self._stream.is_backed(place, header.header_size) else None


def fillers_to_sector(offset: int) -> int:
    """Number of fillers that a writer puts at `offset` before it continues at a sector."""
    return -offset % SECTOR_SIZE // BLOCK_SIZE
