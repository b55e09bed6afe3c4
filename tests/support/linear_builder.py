"""Builds linearstore journals, byte for byte as qpidd's writer leaves them.

A line of files, each with a header sector that names the queue, a serial of its own, and the first record header in
it; records run on from file to file; a flush ends with fillers up to the next sector.
"""

from __future__ import annotations

import os
import random
import uuid
from pathlib import Path
from typing import Final, NamedTuple

from formats.qls.file_header import FILE_HEADER_SIZE, FileHeader, encode_file_header
from formats.qls.records import SECTOR_SIZE, RecordHeader, encode_record
from formats.rhm.records import Kind

SECONDS: Final = 1_700_000_000
#: Where the links of a built store point: nowhere on this machine.
FAR_AWAY: Final = "/var/lib/qpidd-of-another-machine"


class PlacedRecord(NamedTuple):
    """A record and where it stands.

    Attributes:
        header: its header.
        file: index of the file in which it begins.
        offset: bytes from that file's start.
    """

    header: RecordHeader
    file: int
    offset: int


class LinearBuilder:
    """One journal.

    Args:
        queue_name: whose it is; "TplStore" for the prepared list.
        data_size: bytes of data area of each file.
        first_number: number of the first file; more than 1 if files were given back.
        partition: of the files.
        seed: for serials and file names.

    Attributes:
        records: all records but fillers, in order.
        stream: the data areas, one after another, up to the present end.
        next_rid: the record id that is given out next.
    """

    def __init__(
        self,
        queue_name: str,
        data_size: int = 4 * SECTOR_SIZE,
        *,
        first_number: int = 1,
        partition: int = 1,
        seed: int = 0,
    ) -> None:
        assert data_size % SECTOR_SIZE == 0
        self.queue_name = queue_name
        self.data_size = data_size
        self.first_number = first_number
        self.partition = partition
        self._random = random.Random(f"{queue_name}/{seed}")
        self.records: list[PlacedRecord] = []
        self.stream = bytearray()
        self.serials: list[int] = []
        self.headers: list[FileHeader] = []
        self.names: list[str] = []
        self.next_rid = 1

    # ---- writing ----

    def enqueue(self, data: bytes, *, xid: bytes = b"", flags: int = 0, rid: int | None = None) -> PlacedRecord:
        header = RecordHeader(Kind.ENQUEUE, flags, 0, self._rid(rid), len(xid), len(data))
        return self.append(header, xid, data)

    def dequeue(self, dequeued_rid: int, *, xid: bytes = b"", flags: int = 0, rid: int | None = None) -> PlacedRecord:
        header = RecordHeader(Kind.DEQUEUE, flags, 0, self._rid(rid), len(xid), dequeued_rid=dequeued_rid)
        return self.append(header, xid)

    def commit(self, xid: bytes, *, rid: int | None = None) -> PlacedRecord:
        return self.append(RecordHeader(Kind.COMMIT, 0, 0, self._rid(rid), len(xid)), xid)

    def abort(self, xid: bytes, *, rid: int | None = None) -> PlacedRecord:
        return self.append(RecordHeader(Kind.ABORT, 0, 0, self._rid(rid), len(xid)), xid)

    def append(self, header: RecordHeader, xid: bytes = b"", data: bytes = b"") -> PlacedRecord:
        """Write a record where the journal ends, with the serial of the file in which that is."""
        file, offset = divmod(len(self.stream), self.data_size)
        if file == len(self.headers):
            self._open_file(header.rid, FILE_HEADER_SIZE)
        header = header._replace(serial=self.serials[file])
        record = encode_record(header, xid, data)
        self.stream += record
        end = len(self.stream)
        while len(self.headers) * self.data_size < end:
            rest = end - len(self.headers) * self.data_size
            self._open_file(header.rid, rest + FILE_HEADER_SIZE if rest < self.data_size else 0)
        placed = PlacedRecord(header, file, offset + FILE_HEADER_SIZE)
        self.records.append(placed)
        return placed

    def flush(self) -> None:
        """Fillers up to the next sector."""
        while len(self.stream) % SECTOR_SIZE:
            self.stream += encode_record(RecordHeader(Kind.FILLER))

    def _rid(self, rid: int | None) -> int:
        if rid is None:
            rid = self.next_rid
        self.next_rid = max(self.next_rid, rid + 1)
        return rid

    def _open_file(self, rid: int, first_record_offset: int) -> None:
        number = self.first_number + len(self.headers)
        serial = self._random.getrandbits(64) | 1
        self.serials.append(serial)
        self.names.append(f"{uuid.UUID(int=self._random.getrandbits(128))}.jrnl")
        self.headers.append(
            FileHeader(
                serial,
                rid,
                self.partition,
                self.data_size,
                first_record_offset,
                SECONDS + number,
                0,
                number,
                self.queue_name,
            )
        )

    # ---- results ----

    def contents(self, *, old: bytes = b"\0") -> list[bytes]:
        """The content of each file; `old` fills what was never written."""
        contents = []
        for index, header in enumerate(self.headers):
            data = bytes(self.stream[index * self.data_size : (index + 1) * self.data_size])
            missing = self.data_size - len(data)
            filling = (old * (missing // len(old) + 1))[:missing]
            contents.append(encode_file_header(header) + data + filling)
        return contents

    def offset_of(self, place: int) -> tuple[int, int]:
        """Index of the file and offset in it, of a place in the stream."""
        file, offset = divmod(place, self.data_size)
        return file, offset + FILE_HEADER_SIZE

    def write_plain(self, directory: Path) -> list[Path]:
        """Write the files themselves into a journal's directory."""
        directory.mkdir(parents=True, exist_ok=True)
        paths = [directory / name for name in self.names]
        for path, content in zip(paths, self.contents(), strict=True):
            path.write_bytes(content)
        return paths

    def write(self, store: Path) -> list[Path]:
        """Write the files into a store's partition, and links that point nowhere into the journal's directory."""
        taken = taken_directory(store, self.data_size, self.partition)
        below = "tpl2" if self.queue_name == "TplStore" else f"jrnl2/{self.queue_name}"
        journal = store / "qls" / below
        journal.mkdir(parents=True, exist_ok=True)
        paths = []
        for name, content in zip(self.names, self.contents(), strict=True):
            path = taken / name
            path.write_bytes(content)
            os.symlink(f"{FAR_AWAY}/{path.relative_to(store)}", journal / name)
            paths.append(path)
        return paths


def taken_directory(store: Path, data_size: int, partition: int = 1) -> Path:
    """The directory of a store's taken files of one size, made with those beside it."""
    pool = store / f"qls/p{partition:03d}/efp/{data_size // 1024}k"
    for name in ("in_use", "returned"):
        (pool / name).mkdir(parents=True, exist_ok=True)
    return pool / "in_use"


def reset_file(data_size: int, partition: int = 1) -> bytes:
    """A file as it waits in the pool."""
    return encode_file_header(FileHeader(0, 0, partition, data_size, 0, 0, 0, 0, "")) + bytes(data_size)
