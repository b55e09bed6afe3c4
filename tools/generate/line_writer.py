"""Lays out records in a line of files, as qpidd's linearstore does (formats/qls/README.md); no I/O.

A record that reaches a file's end continues after the header of the next, which is created at that moment; so a file
that is exactly full has no successor until there is another record. Files are never returned to the pool.

The caller supplies names, serials and times, and writes the bytes: `qstore-generate` to disk, the tests' builder to
memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from qstore.formats.qls.file_header import DATA_OFFSET, FileHeader
from qstore.formats.qls.records import SECTOR_SIZE, RecordHeader, encode_record
from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.rhm.records import Kind

_FILLER: Final = encode_record(RecordHeader(Kind.FILLER))


class Fresh(NamedTuple):
    """Data of a new file: its name, the serial of its records, and the time in seconds and nanoseconds since 1970."""

    name: str
    serial: int
    seconds: int
    nanoseconds: int


class LineFile(NamedTuple):
    """A file of the line."""

    name: str
    header: FileHeader


class LineWriter:
    """Lays out one journal.

    Args:
        queue: the queue's name.
        data_size: bytes of data area in each file.
        fresh: returns the data of a new file.
        first_number: of the first file.
        partition: number of the partition to which the files belong.

    Attributes:
        files: those that contain records, oldest first.
        position: place of the next record, in bytes of all data areas.
    """

    def __init__(
        self, queue: str, data_size: int, fresh: Callable[[], Fresh], *, first_number: int = 1, partition: int = 1
    ) -> None:
        self._queue, self._data_size, self._fresh = queue, data_size, fresh
        self._first_number, self._partition = first_number, partition
        self._end = 0  # of the files' data areas
        self.files: list[LineFile] = []
        self.position = 0

    def append(self, header: RecordHeader, xid: bytes = b"", data: bytes = b"") -> tuple[RecordHeader, bytes]:
        """Place a record at `position`; its serial is filled in. Returns its header and its bytes, with padding."""
        if self.position == self._end:
            self._enter(0, header.rid)
        if header.kind is not Kind.FILLER:
            header = header._replace(serial=self.files[-1].header.serial)
        content = encode_record(header, xid, data)
        self.position += len(content)
        while self.position > self._end:
            self._enter(self.position - self._end, header.rid)
        return header, content

    def pad(self) -> bytes:
        """The fillers that end a flush."""
        blocks = self.missing_fillers()
        self.position += blocks * BLOCK_SIZE
        return _FILLER * blocks

    def missing_fillers(self) -> int:
        """Number of fillers that end a flush here, which extends to the next sector."""
        return -self.position % SECTOR_SIZE // BLOCK_SIZE

    def locate(self, place: int) -> tuple[int, int]:
        """The index of a place's file, and the offset from that file's start."""
        index, offset = divmod(place, self._data_size)
        return index, offset + DATA_OFFSET

    def _enter(self, rest: int, rid: int) -> None:
        """Create the header of the next file, into which a record of that id continues for `rest` bytes."""
        fresh = self._fresh()
        header = FileHeader(
            serial=fresh.serial,
            rid=rid,
            partition=self._partition,
            data_size=self._data_size,
            first_record_offset=DATA_OFFSET + rest if rest < self._data_size else 0,
            seconds=fresh.seconds,
            nanoseconds=fresh.nanoseconds,
            file_number=self._first_number + len(self.files),
            queue_name=self._queue,
        )
        self.files.append(LineFile(fresh.name, header))
        self._end += self._data_size
