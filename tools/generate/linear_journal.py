"""The journals of a fleet of linearstores: lines of files, each made when a record comes to it.

A line gives a file back when none of its messages is left. Here none is ever given back, as where a queue's very first
message is never taken: that one is kept. The layout is told at the top of `formats.qls`.
"""

from __future__ import annotations

import posixpath
from typing import Final
from uuid import UUID
from zlib import adler32

from formats.qls.file_header import DATA_OFFSET, FILE_HEADER_SIZE, KIB, FileHeader, encode_file_header
from formats.qls.records import HEADER_SIZES, MAGICS, SECTOR_SIZE, TAIL, TAIL_SIZE, RecordHeader, encode_header
from formats.rhm.geometry import BLOCK_SIZE
from formats.rhm.records import COMMIT_DECISION, PADDING, Kind
from store.environment import Environment
from store.writable_disk import WritableFile
from tools.generate.ring_journals import Spot

PARTITION: Final = 1
TPL_QUEUE: Final = "TplStore"
_NANOSECONDS: Final = 1_000_000_000
_FILLER: Final = encode_header(RecordHeader(Kind.FILLER)).ljust(BLOCK_SIZE, PADDING)


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
        self._queue, self._data_size = queue, data_size
        self._paths: list[str] = []
        self._serial = 0
        self._entered = 0  # bytes of all data areas that were made
        self._position = self._written = 0
        self._pieces: list[bytes] = []
        self._file: WritableFile | None = None
        self._open_number = -1

    @property
    def end(self) -> int:
        """The place where the next record goes."""
        return self._position

    def enqueue(self, rid: int, data: bytes, xid: bytes) -> int:
        """A message. Returns its place. Raises OSError."""
        header = RecordHeader(Kind.ENQUEUE, rid=rid, xid_size=len(xid), data_size=len(data))
        return self._append(header, xid, data)

    def dequeue(self, rid: int, target: int, xid: bytes, *, commit_decision: bool = False) -> None:
        """The removal of a message. Raises OSError."""
        flags = COMMIT_DECISION if commit_decision else 0
        self._append(RecordHeader(Kind.DEQUEUE, flags, 0, rid, len(xid), dequeued_rid=target), xid)

    def finish_transaction(self, rid: int, xid: bytes, *, commit: bool) -> None:
        """The end of a transaction. Raises OSError."""
        self._append(RecordHeader(Kind.COMMIT if commit else Kind.ABORT, rid=rid, xid_size=len(xid)), xid)

    def _append(self, header: RecordHeader, xid: bytes, data: bytes = b"") -> int:
        place = self._position
        has_tail = header.kind is not Kind.DEQUEUE or bool(xid)
        length = HEADER_SIZES[header.kind] + len(xid) + len(data) + (TAIL_SIZE if has_tail else 0)
        size = length + -length % BLOCK_SIZE
        if place == self._entered:
            self._enter(DATA_OFFSET, header.rid)
        serial = self._serial
        content = encode_header(header._replace(serial=serial)) + xid + data
        while place + size > self._entered:
            rest = place + size - self._entered
            self._enter(DATA_OFFSET + rest if rest < self._data_size else 0, header.rid)
        self._pieces.append(content)
        if has_tail:
            checksum = adler32(content)
            self._pieces.append(TAIL.pack(MAGICS[header.kind] ^ 0xFFFFFFFF, checksum, serial, header.rid))
        self._pieces.append(PADDING * (size - length))
        self._position += size
        return place

    def _enter(self, first_record_offset: int, rid: int) -> None:
        """Make the next file, in which the first record begins at that offset."""
        environment, number = self._environment, len(self._paths)
        name = f"{UUID(int=environment.random_bits(128), version=4)}.jrnl"
        path = posixpath.join(self._in_use, name)
        self._serial = environment.random_bits(64)
        seconds, nanoseconds = divmod(environment.clock(), _NANOSECONDS)
        header = FileHeader(
            serial=self._serial,
            rid=rid,
            partition=PARTITION,
            data_size=self._data_size,
            first_record_offset=first_record_offset,
            seconds=seconds,
            nanoseconds=nanoseconds,
            file_number=number + 1,
            queue_name=self._queue,
        )
        file = environment.disk.create(path, FILE_HEADER_SIZE + self._data_size)
        try:
            file.write(0, encode_file_header(header))
        finally:
            file.close()
        self._paths.append(path)
        self._entered += self._data_size

    def flush(self) -> None:
        """Write what is gathered, filled up to the end of its sector. Raises OSError."""
        if not self._pieces:
            return
        fillers = -self._position % SECTOR_SIZE // BLOCK_SIZE
        self._pieces.append(_FILLER * fillers)
        self._position += fillers * BLOCK_SIZE
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
            self._file = self._environment.disk.open_writable(self._paths[number])
            self._open_number = number
        return self._file

    def _close(self) -> None:
        if self._file is not None:
            self._file.sync()
            self._file.close()
            self._file = None

    def finish(self) -> None:
        """Have all of it on the disk. Raises OSError."""
        self.flush()
        self._close()

    def spot(self, place: int) -> Spot:
        """Where a place is."""
        number, offset = divmod(place, self._data_size)
        return Spot(self._paths[number], DATA_OFFSET + offset)

    def files(self) -> list[str]:
        """The files of the line."""
        return list(self._paths)
