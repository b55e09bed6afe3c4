"""Journals of generated linearstores: lines of files, each created when a record reaches it.

A real line returns a file to the pool when none of its messages is left. Here none is ever returned, as if a queue's
very first message were never consumed: it remains. The layout is in formats/qls/README.md.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from typing import Final
from uuid import UUID

from qstore.formats.named_tuple import NamedTuple
from qstore.formats.qls.file_header import DATA_OFFSET, FILE_HEADER_SIZE, KIB, FileHeader, encode_file_header
from qstore.formats.qls.records import SECTOR_SIZE, RecordHeader, encode_record
from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.rhm.records import COMMIT_DECISION, Kind
from qstore.store.disk import WritableFile
from qstore.store.environment import Environment
from qstore.tools.generate.ring_journals import Spot

PARTITION: Final = 1
TPL_QUEUE: Final = "TplStore"
_NANOSECONDS: Final = 1_000_000_000


def pool_directory(root: str, data_size: int) -> str:
    """The pool of files with `data_size` bytes of data, below the store's directory `qls`."""
    return posixpath.join(root, f"p{PARTITION:03}", "efp", f"{data_size // KIB}k")


class LinearJournal:
    """A journal of a linearstore.

    Args:
        environment: disk, clock and random numbers.
        root: the store's directory `qls`, where the pool is.
        queue: the queue's name.
        data_size: bytes of data area in each file.
    """

    def __init__(self, environment: Environment, root: str, queue: str, data_size: int) -> None:
        self._environment = environment
        self._in_use = posixpath.join(pool_directory(root, data_size), "in_use")
        self._data_size = data_size
        self._writer = LineWriter(queue, data_size, self._fresh, partition=PARTITION)
        self._written = 0
        self._pieces: list[bytes] = []
        self._file: WritableFile | None = None
        self._open_number = -1

    @property
    def end(self) -> int:
        """The place of the next record."""
        return self._writer.position

    def enqueue(self, rid: int, data: bytes, xid: bytes) -> int:
        """Append an enqueue. Returns its place. Raises OSError."""
        header = RecordHeader(Kind.ENQUEUE, rid=rid, xid_size=len(xid), data_size=len(data))
        return self._append(header, xid, data)

    def dequeue(self, rid: int, target: int, xid: bytes, *, commit_decision: bool = False) -> None:
        """Append a dequeue. Raises OSError."""
        flags = COMMIT_DECISION if commit_decision else 0
        self._append(RecordHeader(Kind.DEQUEUE, flags, 0, rid, len(xid), dequeued_rid=target), xid)

    def finish_transaction(self, rid: int, xid: bytes, *, commit: bool) -> None:
        """Append the end of a transaction. Raises OSError."""
        self._append(RecordHeader(Kind.COMMIT if commit else Kind.ABORT, rid=rid, xid_size=len(xid)), xid)

    def _append(self, header: RecordHeader, xid: bytes = b"", data: bytes = b"") -> int:
        writer = self._writer
        place, known = writer.position, len(writer.files)
        _, content = writer.append(header, xid, data)
        for file in writer.files[known:]:
            self._create(file)
        self._pieces.append(content)
        return place

    def _fresh(self) -> Fresh:
        environment = self._environment
        name = f"{UUID(int=environment.random_bits(128), version=4)}.jrnl"
        serial = environment.random_bits(64)
        return Fresh(name, serial, *divmod(environment.clock(), _NANOSECONDS))

    def _create(self, new: LineFile) -> None:
        file = self._environment.disk.create(self._path(new), FILE_HEADER_SIZE + self._data_size)
        try:
            file.write(0, encode_file_header(new.header))
        finally:
            file.close()

    def _path(self, file: LineFile) -> str:
        return posixpath.join(self._in_use, file.name)

    def flush(self) -> None:
        """Write the batch, filled up to the end of its sector. Raises OSError."""
        if not self._pieces:
            return
        self._pieces.append(self._writer.pad())
        content = memoryview(b"".join(self._pieces))
        self._pieces.clear()
        while len(content):
            number, offset = divmod(self._written, self._data_size)
            count = min(len(content), self._data_size - offset)
            self._open(number).write(DATA_OFFSET + offset, content[:count])
            content = content[count:]
            self._written += count

    def _open(self, number: int) -> WritableFile:
        if self._file is None or self._open_number != number:
            self._close()
            self._file = self._environment.disk.open_writable(self._path(self._writer.files[number]))
            self._open_number = number
        return self._file

    def _close(self) -> None:
        if self._file is not None:
            self._file.sync()
            self._file.close()
            self._file = None

    def finish(self) -> None:
        """Write and sync everything. Raises OSError."""
        self.flush()
        self._close()

    def spot(self, place: int) -> Spot:
        """File and offset of a place."""
        number, offset = self._writer.locate(place)
        return Spot(self._path(self._writer.files[number]), offset)

    def files(self) -> list[str]:
        """The files of the line."""
        return [self._path(file) for file in self._writer.files]


# ---- the layout of records in a line of files (formats/qls/README.md); no I/O ----
#
# A record that reaches a file's end continues after the header of the next, which is created at that moment; so a file
# that is exactly full has no successor until there is another record. Files are never returned to the pool.
#
# The caller supplies names, serials and times, and writes the bytes: `qstore-generate` to disk, the tests' builder to
# memory.

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
