"""Lays out a journal the way its writer would, and whole stores of version 2, for tests and benches.

Positions count through an endless stream of data bytes: position // data size is the file, counted over all laps, and
that modulo the number of files is its number in the ring. Records are placed when they are appended and reach the
files at `flush`, so that a test can hold the files before a flush against those after it. The builder overwrites
whatever it comes round to: `entered_by` tells the test which files that would be.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from qstore.formats.broker_records.topology import (
    Binding,
    Exchange,
    Queue,
    encode_binding,
    encode_exchange,
    encode_queue,
)
from qstore.formats.catalogue import BindingEntry, ExchangeEntry, QueueEntry
from qstore.formats.rhm import store_file
from qstore.formats.rhm.file_header import FileHeader, decode_file_header, encode_file_header
from qstore.formats.rhm.geometry import BLOCK_SIZE, DATA_OFFSET, SECTOR_SIZE, Geometry
from qstore.formats.rhm.jinf import DEFAULT_BASE_NAME, TPL_BASE_NAME, JournalInfo, decode_jinf, encode_jinf
from qstore.formats.rhm.records import (
    LAST_OF_FLUSH,
    OVERWRITE_INDICATOR,
    SEAL,
    TAIL_SIZE,
    Kind,
    RecordHeader,
    encode_record,
)
from qstore.formats.topology_copy import encode_snapshot
from qstore.formats.values import typed_map
from qstore.store.catalogue.catalogue import Catalogue
from qstore.store.catalogue.topology_copy import batch_of
from qstore.store.key_value import RocksKeyValue
from tests.support.memory_disk import MemoryDisk

RESTART_STEP = 65536  # flush numbers left out after a restart
DIRECTORY = "/store/jrnl/q"
_SECONDS = 1_700_000_000

Sector = tuple[int, int]  # file number, offset from the file's start


class PlacedRecord(NamedTuple):
    """Where a record lies.

    Attributes:
        header: its header, as it was appended (in version 2 without the mark of a flush's last record).
        position: in the endless stream.
        file: number of the file in which it begins.
        offset: bytes from that file's start.
        size: bytes, padding included.
        flush: number of the flush that wrote it; counted in version 1 too.
        xid: its transaction id.
    """

    header: RecordHeader
    position: int
    file: int
    offset: int
    size: int
    flush: int
    xid: bytes

    @property
    def used(self) -> int:
        """Bytes of it that mean something: up to the tail's end, or to the end of a header without tail."""
        return self.header.tail_offset + (TAIL_SIZE if self.header.has_tail else 0)


class _Pending(NamedTuple):
    header: RecordHeader
    xid: bytes
    data: bytes
    salt: int


class JournalBuilder:
    """Builds one journal.

    Args:
        version: 1 or 2.
        geometry: number and size of the files; tiny ones are fine.
        alignment: bytes to which flushes are padded, in offsets from the file's start; a file's end is aligned too.
        queue_id, incarnation: version 2.
        queue_name, base_name: as the info file has them.
        first_flush: number of the first flush.
        exact_fit_length: where a record fills a file to its end exactly, the next first record offset is the file's
            length (as qpidd's resize tool writes it), not 0.
        seed: of the salts.

    Attributes:
        files: contents of the files, by number.
        records: every record that was appended one by one, fillers too.
        position: where the next record goes.
        flush_number: of the flush that is being gathered.
        flush_start: where it begins.
        last_flush: the sectors that the last flush wrote, in order, in parts of which each is synced before the next is
            written: a file's header is on the disk before anything goes into the file.
    """

    def __init__(
        self,
        version: int,
        geometry: Geometry,
        *,
        alignment: int = SECTOR_SIZE,
        queue_id: int = 7,
        incarnation: int = 1,
        queue_name: str = "q",
        base_name: str = DEFAULT_BASE_NAME,
        first_flush: int = 1,
        exact_fit_length: bool = False,
        seed: int = 0,
    ) -> None:
        self.version = version
        self.geometry = geometry
        self.info = JournalInfo(
            version,
            queue_name,
            base_name,
            geometry,
            directory=DIRECTORY + "/" if version == 1 else "",
            seconds=_SECONDS,
            queue_id=queue_id if version == 2 else 0,
            incarnation=incarnation if version == 2 else 0,
            flush_alignment=alignment if version == 2 else SECTOR_SIZE,
        )
        self.files = [bytearray(geometry.file_size) for _ in range(geometry.files)]
        self.records: list[PlacedRecord] = []
        self.position = 0
        self.flush_number = first_flush
        self.last_flush: list[list[Sector]] = []
        self.next_rid = 1
        self._alignment = alignment
        self._exact_fit_length = exact_fit_length
        self._random = random.Random(seed)
        self._entered = -1  # the file, counted over all laps, up to which headers are made
        self._salt = 0  # of that file
        self._salts: dict[int, int] = {}  # of the files that the last record reaches
        self._pending: list[_Pending] = []
        self._pending_headers: list[tuple[int, bytes]] = []  # file counted over all laps, sector
        self.flush_start = 0

    # ---- records ----

    def enqueue(
        self, data: bytes = b"", *, rid: int | None = None, xid: bytes = b"", flags: int = 0, size: int | None = None
    ) -> PlacedRecord:
        """An enqueue; `size` is the data size where it differs (external records)."""
        header = RecordHeader(
            Kind.ENQUEUE, self.version, flags, self._rid(rid), len(xid), len(data) if size is None else size
        )
        return self.append(header, xid, data)

    def dequeue(self, dequeued_rid: int, *, rid: int | None = None, xid: bytes = b"", flags: int = 0) -> PlacedRecord:
        """A dequeue of the enqueue `dequeued_rid`."""
        header = RecordHeader(Kind.DEQUEUE, self.version, flags, self._rid(rid), len(xid), dequeued_rid=dequeued_rid)
        return self.append(header, xid)

    def commit(self, xid: bytes, *, rid: int | None = None) -> PlacedRecord:
        return self.append(RecordHeader(Kind.COMMIT, self.version, 0, self._rid(rid), len(xid)), xid)

    def abort(self, xid: bytes, *, rid: int | None = None) -> PlacedRecord:
        return self.append(RecordHeader(Kind.ABORT, self.version, 0, self._rid(rid), len(xid)), xid)

    def append(self, header: RecordHeader, xid: bytes = b"", data: bytes = b"") -> PlacedRecord:
        """Place any record; flush number and overwrite indicator are filled in."""
        size = header.size
        first = self.position // self.geometry.data_size
        self._enter(size, header.rid)
        # A record has the indicator, and the salt, of the file in which it begins.
        salt = self._salt if first == self._entered else self._salts[first]
        if self.version == 2:
            header = header._replace(flush=self.flush_number & 0xFFFFFFFF)
        elif header.kind is not Kind.FILLER:
            header = header._replace(flags=header.flags | (first // self.geometry.files & OVERWRITE_INDICATOR))
        placed = PlacedRecord(header, self.position, *self.place(self.position), size, self.flush_number, xid)
        self._pending.append(_Pending(header, xid, data, salt))
        self.records.append(placed)
        self.position += size
        return placed

    def fill(self, blocks: int, *, flags: int = 0) -> None:
        """Fillers over that many blocks: one record each in version 1, one record for all in version 2."""
        if self.version == 2:
            self.append(RecordHeader(Kind.FILLER, 2, flags, blocks=blocks))
            return
        for _ in range(blocks):
            self.append(RecordHeader(Kind.FILLER, 1, 0, blocks=1))

    def place(self, position: int) -> tuple[int, int]:
        """The file number, and the offset from that file's start, of a position."""
        index, offset = divmod(position, self.geometry.data_size)
        return index % self.geometry.files, offset + DATA_OFFSET

    def entered_by(self, size: int) -> list[int]:
        """The numbers of the files that appending `size` bytes would enter, and thereby overwrite."""
        last = (self.position + size - 1) // self.geometry.data_size
        return [index % self.geometry.files for index in range(self._entered + 1, last + 1)]

    def room(self) -> int:
        """Bytes up to the end of the present file; 0 where the next record enters another."""
        return -self.position % self.geometry.data_size

    def _rid(self, rid: int | None) -> int:
        if rid is None:
            rid = self.next_rid
        self.next_rid = max(self.next_rid, rid + 1)
        return rid

    # ---- files ----

    def _enter(self, size: int, rid: int) -> None:
        """Make the headers of the files that a record of `size` bytes at the present position reaches."""
        self._salts = {self._entered: self._salt}
        data_size, end = self.geometry.data_size, self.position + size
        for index in range(self._entered + 1, (end - 1) // data_size + 1):
            rest = end - index * data_size
            if index * data_size == self.position:
                offset = DATA_OFFSET
            elif rest < data_size:
                offset = DATA_OFFSET + rest
            else:
                offset = self.geometry.file_size if rest == data_size and self._exact_fit_length else 0
            self._entered = index
            self._salt = self._salts[index] = self._random.getrandbits(64) if self.version == 2 else 0
            self._pending_headers.append((index, encode_file_header(self._file_header(index, offset, rid))))

    def _file_header(self, index: int, first_record_offset: int, rid: int) -> FileHeader:
        lap, number = divmod(index, self.geometry.files)
        if self.version == 1:
            return FileHeader(
                1, lap & 1, number, first_record_offset, _SECONDS + index, 0, rid=rid, logical_number=number
            )
        return FileHeader(
            2,
            lap & 1,
            number,
            first_record_offset,
            _SECONDS + index,
            0,
            first_flush=self.flush_number,
            salt=self._salt,
            queue_id=self.info.queue_id,
            incarnation=self.info.incarnation,
            flush_alignment=self._alignment,
        )

    # ---- flushes ----

    def flush(self, *, flags: int = 0) -> None:
        """Pad to the alignment and write what was appended; nothing where nothing was."""
        self.last_flush = []
        if not self._pending:
            return
        if blocks := self._blocks_to_alignment():
            self.fill(blocks, flags=flags)
        if self.version == 2:
            last = self._pending[-1]
            self._pending[-1] = last._replace(header=last.header._replace(flags=last.header.flags | LAST_OF_FLUSH))
        self._write(b"".join(encode_record(head, xid, data, salt=salt) for head, xid, data, salt in self._pending))
        self._pending.clear()

    def restart(self, position: int | None = None) -> None:
        """The broker starts again and goes on at `position`, where recovery found the end; by default where it was.

        In version 2 the flush numbers jump, and the first flush is a single filler.
        """
        assert not self._pending
        if position is not None:
            self.position = self.flush_start = position
            self._entered = (position - 1) // self.geometry.data_size
            header = decode_file_header(bytes(self.files[self._entered % self.geometry.files][:DATA_OFFSET]))
            self._salt = header.salt if header is not None else 0
        if self.version == 1:
            if blocks := self._blocks_to_alignment():
                self.fill(blocks)
                self.flush()
            return
        self.flush_number += RESTART_STEP - 1
        self._single_filler(0)

    def seal(self) -> None:
        """A clean close: in version 2 a last flush of one filler, flagged."""
        self.flush()
        if self.version == 2:
            self._single_filler(SEAL)

    def _single_filler(self, flags: int) -> None:
        room = self.room() or self.geometry.data_size
        to_alignment = (room - self.geometry.file_size) % self._alignment or self._alignment
        self.fill(min(to_alignment, room) // BLOCK_SIZE, flags=flags)
        self.flush()

    def _blocks_to_alignment(self) -> int:
        room = self.room()
        if room == 0:
            return 0
        return min(-(self.geometry.file_size - room) % self._alignment, room) // BLOCK_SIZE

    def _write(self, content: bytes) -> None:
        """Put the flush's bytes, and the headers of the files that it entered, where they belong."""
        self.last_flush = [[]]
        headers = dict(self._pending_headers)
        self._pending_headers.clear()
        data_size = self.geometry.data_size
        at = 0
        while at < len(content):
            index, offset = divmod(self.flush_start + at, data_size)
            number = index % self.geometry.files
            if index in headers:
                self.files[number][:DATA_OFFSET] = headers[index]
                self.last_flush[-1].append((number, 0))
                self.last_flush.append([])
            count = min(data_size - offset, len(content) - at)
            start = offset + DATA_OFFSET
            self.files[number][start : start + count] = content[at : at + count]
            self.last_flush[-1].extend(
                (number, sector) for sector in range(start & -SECTOR_SIZE, start + count, SECTOR_SIZE)
            )
            at += count
        self.flush_start = self.position
        self.flush_number += 1

    # ---- many at once ----

    def enqueue_many(self, count: int, data: bytes, *, flush_every: int = 1000) -> None:
        """`count` plain enqueues with the same data and ascending rids, in flushes; they are not in `records`."""
        self.flush()
        kept = len(self.records)
        for start in range(0, count, flush_every):
            for _ in range(min(flush_every, count - start)):
                self.enqueue(data)
            self.flush()
            del self.records[kept:]

    # ---- results ----

    def name(self, number: int) -> str:
        """The name of a file in its directory."""
        return f"{self.info.base_name}.{number:04x}.jdat"

    def contents(self) -> dict[str, bytes]:
        """Name → content of everything in the journal's directory."""
        content = {self.name(number): bytes(file) for number, file in enumerate(self.files)}
        content[f"{self.info.base_name}.jinf"] = encode_jinf(self.info)
        return content

    def disk(self, directory: str = DIRECTORY) -> MemoryDisk:
        """A disk that holds the journal, as it is now, in `directory`."""
        return MemoryDisk({f"{directory}/{name}": content for name, content in self.contents().items()})

    def write_to(self, directory: str | Path) -> None:
        """Write the journal into a directory, which is made if it is not there."""
        path = Path(directory)
        path.mkdir(parents=True, exist_ok=True)
        for name, content in self.contents().items():
            (path / name).write_bytes(content)


STORE_ID: Final = UUID("6d3c2f10-5a0e-4a52-9a7e-0b8f6f2f7a11")
GEOMETRY: Final = Geometry(4, 4096)
ORDERS: Final = Queue("orders", typed_map({"qpid.max_count": 10}), "dead")
BILLS: Final = Queue("bills")


class StoreBuilder:
    """A version-2 store with the queues `orders` (journal 1) and `bills` (journal 2).

    Args:
        path: the store directory, which is made by `write`.
        orders_geometry: number and size of the files of `orders`.

    Attributes:
        rhm: the directory that holds the parts.
        orders, bills, prepared: the journals; each has record ids of its own.
    """

    def __init__(self, path: Path, *, orders_geometry: Geometry = GEOMETRY) -> None:
        self.path = path
        self.rhm = path / "rhm"
        self.orders = JournalBuilder(2, orders_geometry, queue_id=1, queue_name="orders")
        self.bills = JournalBuilder(2, GEOMETRY, queue_id=2, queue_name="bills", seed=1)
        self.prepared = JournalBuilder(2, GEOMETRY, queue_id=0, queue_name="TplStore", base_name=TPL_BASE_NAME, seed=2)
        self.bills.next_rid, self.prepared.next_rid = 1000, 2000

    def write(self, *, clean: bool = True) -> Path:
        """Everything onto disk; the first block of record ids is reserved, and what was closed cleanly is sealed."""
        (self.rhm / "jrnl").mkdir(parents=True)
        for builder, directory in ((self.orders, "jrnl/1"), (self.bills, "jrnl/2"), (self.prepared, "tpl")):
            builder.flush()
            if clean and builder.records:
                builder.seal()
            builder.write_to(self.rhm / directory)
        self._write_info("jrnl/1", ORDERS)
        self._write_info("jrnl/2", BILLS)
        key_value = RocksKeyValue.open(self.rhm / "catalogue", create=True)
        catalogue = Catalogue.create(key_value, STORE_ID)
        catalogue.create_exchange(ExchangeEntry(1, encode_exchange(Exchange("dead", True, "fanout"))))
        catalogue.create_queue(QueueEntry(1, 1, 1, encode_queue(ORDERS)))
        catalogue.create_queue(QueueEntry(2, 2, 1, encode_queue(BILLS)))
        catalogue.create_binding(BindingEntry(1, 1, 1, encode_binding(Binding(1, "orders", "key"))))
        catalogue.reserve_rids()
        entries = dict(key_value.items(b""))
        (self.rhm / "topology").write_bytes(encode_snapshot(STORE_ID, batch_of(entries), entries) + bytes(4096))
        key_value.close()
        content = store_file.StoreFile(STORE_ID, clean, datetime(2026, 11, 20, tzinfo=UTC), "0.1.0")
        (self.rhm / "STORE").write_bytes(store_file.encode(content))
        return self.path

    def _write_info(self, directory: str, queue: Queue) -> None:
        path = self.rhm / directory / "JournalData.jinf"
        info = decode_jinf(path.read_bytes())
        path.write_bytes(encode_jinf(info._replace(queue_record=encode_queue(queue))))
