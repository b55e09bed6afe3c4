"""Lays out a linearstore journal the way qpidd would, and whole linearstore trees, for tests.

A record goes into the files as soon as it is appended, where `qstore-generate`'s writer lays it out.

    orders = LinearBuilder("orders", data_size=8)
    orders.enqueue(1, b"hello")
    orders.flush()
    orders.write(store)                # <store>/qls/jrnl2/orders/<uuid>.jrnl, a link; <store>/qls/p001/efp/8k/in_use/…
    add_pooled_files(store, 2, data_size=8)
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID
from zlib import adler32

from qstore.formats.qls.file_header import FILE_HEADER_SIZE, KIB, FileHeader, encode_file_header
from qstore.formats.qls.records import MAGICS, SECTOR_SIZE, TAIL, TAIL_SIZE, RecordHeader
from qstore.formats.rhm.records import Kind
from qstore.tools.generate.linear_journals import Fresh, LineWriter
from tests.support.memory_disk import MemoryDisk

TPL_QUEUE: Final = "TplStore"
ORIGINAL_ROOT: Final = "/var/lib/qpidd"  # where the links of a store point that was copied from elsewhere
DIRECTORY: Final = "/store/qls/jrnl2/q"
_SECONDS: Final = 1_700_000_000
_MAX: Final = 4095  # KiB; a caller that passes bytes notices


class PlacedRecord(NamedTuple):
    """Where a record lies.

    Attributes:
        header: its header, with the serial of the file in which it stands.
        position: in the stream of all data areas, bytes.
        file: index of the file in which it begins, from 0; its number is `first_number` more.
        offset: bytes from that file's start.
        xid, data: what follows the header.
    """

    header: RecordHeader
    position: int
    file: int
    offset: int
    xid: bytes
    data: bytes

    @property
    def size(self) -> int:
        """Bytes, padding included."""
        return self.header.size

    @property
    def used(self) -> int:
        """Bytes of it that mean something: up to the tail's end, or to the end of a header without tail."""
        return self.header.tail_offset + (TAIL_SIZE if self.header.has_tail else 0)


class LinearBuilder:
    """Builds one journal.

    Args:
        queue_name: as the headers say; "TplStore" is the transaction prepared list.
        data_size: data area of each file in KiB, a multiple of 4.
        first_number: number of the first file.
        partition: number of the partition from which the files come.
        seed: of serials and file names; the queue's name goes in too, so builders of one store do not clash.

    Attributes:
        records: every record, fillers too.
    """

    def __init__(
        self, queue_name: str, data_size: int = 8, first_number: int = 1, partition: int = 1, seed: int = 0
    ) -> None:
        assert data_size in range(4, _MAX, 4), "the data size is in KiB"
        self.queue_name = queue_name
        self.kib = data_size
        self.data_size = data_size * KIB
        self.first_number = first_number
        self.partition = partition
        self.records: list[PlacedRecord] = []
        self._random = random.Random(f"{seed} {partition} {queue_name}".encode("utf-8", "surrogateescape"))
        self._writer = LineWriter(
            queue_name, self.data_size, self._fresh, first_number=first_number, partition=partition
        )
        self._contents: list[bytearray] = []

    @property
    def headers(self) -> list[FileHeader]:
        """What each file's header says, by index."""
        return [file.header for file in self._writer.files]

    @property
    def position(self) -> int:
        """Where the next record goes."""
        return self._writer.position

    # ---- records ----

    def enqueue(
        self, rid: int, data: bytes = b"", xid: bytes = b"", flags: int = 0, *, waited_at: int | None = None
    ) -> PlacedRecord:
        """An enqueue; for `waited_at` see `append`."""
        header = RecordHeader(Kind.ENQUEUE, flags, rid=rid, xid_size=len(xid), data_size=len(data))
        return self.append(header, xid, data, waited_at=waited_at)

    def dequeue(self, rid: int, dequeued_rid: int, xid: bytes = b"", flags: int = 0) -> PlacedRecord:
        """A dequeue of the enqueue `dequeued_rid`."""
        return self.append(RecordHeader(Kind.DEQUEUE, flags, 0, rid, len(xid), dequeued_rid=dequeued_rid), xid)

    def commit(self, rid: int, xid: bytes) -> PlacedRecord:
        return self.append(RecordHeader(Kind.COMMIT, rid=rid, xid_size=len(xid)), xid)

    def abort(self, rid: int, xid: bytes) -> PlacedRecord:
        return self.append(RecordHeader(Kind.ABORT, rid=rid, xid_size=len(xid)), xid)

    def fill(self, blocks: int) -> None:
        """Add this many blocks of fillers."""
        for _ in range(blocks):
            self.append(RecordHeader(Kind.FILLER))

    def flush(self) -> None:
        """Fillers up to the next sector."""
        self.fill(self._writer.missing_fillers())

    def append(
        self, header: RecordHeader, xid: bytes = b"", data: bytes = b"", *, waited_at: int | None = None
    ) -> PlacedRecord:
        """Place any record; its serial is filled in. An external record has a data size and no data.

        Args:
            header: the record's header.
            xid: its transaction id.
            data: its data.
            waited_at: bytes into the record, the end of a sector, after which the writer had to wait: the tail then
                covers only what follows, and has the serial of the file in which that begins.
        """
        position = self.position
        header, content = self._writer.append(header, xid, data)
        for file in self._writer.files[len(self._contents) :]:
            self._contents.append(bytearray(encode_file_header(file.header)) + bytes(self.data_size))
        if waited_at is not None:
            content = self._with_late_tail(position, header, content, waited_at)
        self._write(position, content)
        placed = PlacedRecord(header, position, *self.place(position), xid, data)
        self.records.append(placed)
        return placed

    def _with_late_tail(self, position: int, header: RecordHeader, content: bytes, waited_at: int) -> bytes:
        end = header.tail_offset
        assert 0 < waited_at < end
        assert (position + waited_at) % SECTOR_SIZE == 0
        serial = self._writer.files[self.place(position + waited_at)[0]].header.serial
        tail = TAIL.pack(MAGICS[header.kind] ^ 0xFFFFFFFF, adler32(content[waited_at:end]), serial, header.rid)
        return content[:end] + tail + content[end + TAIL_SIZE :]

    # ---- places ----

    def place(self, position: int) -> tuple[int, int]:
        """The index of the file, and the offset from that file's start, of a position."""
        return self._writer.locate(position)

    def room(self) -> int:
        """Bytes up to the end of the present file; 0 where the next record enters another."""
        return -self.position % self.data_size

    def _fresh(self) -> Fresh:
        serial = self._random.getrandbits(64)
        return Fresh(_file_name(self._random), serial, _SECONDS + len(self._writer.files), 123_456_789)

    def _write(self, position: int, content: bytes) -> None:
        at = 0
        while at < len(content):
            index, offset = self.place(position + at)
            count = min(FILE_HEADER_SIZE + self.data_size - offset, len(content) - at)
            self._contents[index][offset : offset + count] = content[at : at + count]
            at += count

    # ---- results ----

    def names(self) -> list[str]:
        """The names of the files, by index."""
        return [file.name for file in self._writer.files]

    def files(self) -> list[bytes]:
        """The whole contents of the files, by index; zeros behind the last record."""
        return [bytes(content) for content in self._contents]

    def patch(self, index: int, offset: int, content: bytes) -> None:
        """Overwrite bytes of a file, `offset` from its start."""
        assert offset + len(content) <= len(self._contents[index])
        self._contents[index][offset : offset + len(content)] = content

    def write(self, store: str | os.PathLike[str], *, link_root: str | os.PathLike[str] = ORIGINAL_ROOT) -> Path:
        """Write the files and their links into the store directory `store`; it need not be there, or not be empty.

        Args:
            store: the directory that holds, or will hold, `qls`.
            link_root: what the links say for `store`; by default they point nowhere.

        Returns:
            The journal's directory: `qls/jrnl2/<queue>`, or `qls/tpl2` for the transaction prepared list.
        """
        qls = make_tree(store)
        pool = _pool(store, self.partition, self.kib)
        journal = qls / "tpl2" if self.queue_name == TPL_QUEUE else qls / "jrnl2" / self.queue_name
        journal.mkdir(parents=True, exist_ok=True)
        for name, content in zip(self.names(), self._contents, strict=True):
            path = pool / "in_use" / name
            path.write_bytes(content)
            (journal / name).symlink_to(Path(link_root, path.relative_to(store)))
        return journal

    def write_plain(self, directory: str | os.PathLike[str]) -> Path:
        """Write plain files, no links, into a directory, which is made if it is not there."""
        path = Path(directory)
        path.mkdir(parents=True, exist_ok=True)
        for name, content in zip(self.names(), self._contents, strict=True):
            (path / name).write_bytes(content)
        return path

    def disk(self, directory: str = DIRECTORY) -> MemoryDisk:
        """A disk that holds the journal, as it is now, as plain files in `directory`."""
        return MemoryDisk(
            {f"{directory}/{name}": bytes(file) for name, file in zip(self.names(), self._contents, strict=True)}
        )


# ---- stores and pools ----


def make_tree(store: str | os.PathLike[str]) -> Path:
    """The directories of a store without journals and without a catalogue; returns `qls`."""
    qls = Path(store) / "qls"
    for name in ("jrnl2", "tpl2"):
        (qls / name).mkdir(parents=True, exist_ok=True)
    return qls


def reset_file(data_size: int = 8, partition: int = 1, content: bytes = b"") -> bytes:
    """A file as it waits in the pool; `content` is what its former life left in its data area."""
    header = FileHeader(0, 0, partition, data_size * KIB, 0, 0, 0, 0, "")
    return encode_file_header(header) + content.ljust(data_size * KIB, b"\0")


def add_pooled_files(
    store: str | os.PathLike[str],
    count: int = 1,
    data_size: int = 8,
    partition: int = 1,
    seed: int = 0,
    where: str = "",
    files: Sequence[bytes] | None = None,
) -> list[Path]:
    """Put files into a pool of the store directory `store`.

    Args:
        store: the directory that holds, or will hold, `qls`.
        count: how many.
        data_size: KiB of data area: chooses the pool.
        partition: number of the partition.
        seed: of the file names.
        where: the pool itself, or "in_use" or "returned" below it.
        files: their contents, instead of `count` reset files.

    Returns:
        The files' paths.
    """
    directory = _pool(store, partition, data_size) / where
    contents = [reset_file(data_size, partition)] * count if files is None else files
    names = random.Random(f"pool {seed} {partition} {data_size} {where}")
    paths = [directory / _file_name(names) for _ in contents]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    return paths


def _pool(store: str | os.PathLike[str], partition: int, kib: int) -> Path:
    pool = Path(store) / "qls" / f"p{partition:03d}" / "efp" / f"{kib}k"
    for name in ("in_use", "returned"):
        (pool / name).mkdir(parents=True, exist_ok=True)
    return pool


def _file_name(source: random.Random) -> str:
    return f"{UUID(int=source.getrandbits(128), version=4)}.jrnl"
