"""Berkeley DB files and logs built by hand, for tests on machines without Berkeley DB."""

from __future__ import annotations

import struct
from collections.abc import Sequence

PAGE_SIZE = 512
FILE_ID = b"file id".ljust(20, b"\0")
LEAF, INTERNAL, RECNO_INTERNAL, RECNO_LEAF, OVERFLOW, DUPLICATE_LEAF = 5, 3, 4, 6, 7, 12


def slow_checksum(data: bytes | bytearray) -> int:
    value = 0
    for byte in data:
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value


def inline(data: bytes, deleted: bool = False, order: str = "<") -> bytes:
    return struct.pack(order + "HB", len(data), 0x81 if deleted else 1) + data


def reference(kind: int, page: int, length: int, order: str = "<") -> bytes:
    return struct.pack(order + "HBBII", 0, kind, 0, page, length)


def child(page: int, separator: bytes = b"", order: str = "<") -> bytes:
    return struct.pack(order + "HBBII", len(separator), 1, 0, page, 0) + separator


class BdbFile:
    """Pages that tests put together; `build` makes the file."""

    def __init__(self, *, order: str = "<", page_size: int = PAGE_SIZE, checksummed: bool = False) -> None:
        self.order, self.page_size, self.checksummed = order, page_size, checksummed
        self.body = 32 if checksummed else 26
        self.pages: dict[int, bytes] = {}
        self.root = 1
        self.flags = 0
        self.patches: dict[int, bytes] = {}  # metadata offset -> bytes

    def page(
        self,
        number: int,
        kind: int,
        items: Sequence[bytes | int],
        *,
        level: int = 1,
        previous: int = 0,
        following: int = 0,
        lsn: tuple[int, int] = (0, 1),
    ) -> None:
        """Items from the page's end downwards; an int repeats the offset of the entry of that index."""
        offsets: list[int] = []
        page = bytearray(self.page_size)
        lowest = self.page_size
        for item in items:
            if isinstance(item, int):
                offsets.append(offsets[item])
                continue
            lowest = (lowest - len(item)) & ~3
            page[lowest : lowest + len(item)] = item
            offsets.append(lowest)
        assert self.body + 2 * len(offsets) <= lowest, "the page is full"
        struct.pack_into(f"{self.order}{len(offsets)}H", page, self.body, *offsets)
        self._put(page, number, kind, (previous, following), len(offsets), lowest & 0xFFFF, level, lsn)

    def overflow(self, number: int, data: bytes, following: int = 0) -> None:
        page = bytearray(self.page_size)
        page[self.body : self.body + len(data)] = data
        self._put(page, number, OVERFLOW, (0, following), 1, len(data), 0, (0, 1))

    def _put(
        self,
        page: bytearray,
        number: int,
        kind: int,
        links: tuple[int, int],
        entries: int,
        lowest: int,
        level: int,
        lsn: tuple[int, int],
    ) -> None:
        struct.pack_into(self.order + "5IHHBB", page, 0, *lsn, number, *links, entries, lowest, level, kind)
        if self.checksummed:
            struct.pack_into(self.order + "I", page, 28, slow_checksum(page))
        self.pages[number] = bytes(page)

    def build(self) -> bytes:
        last = max(self.pages, default=0)
        metadata = bytearray(self.page_size)
        values = (0, 1, 0, 0x53162, 9, self.page_size, 0, 9, int(self.checksummed), 0, last, 0, 0, 0, self.flags)
        layout = struct.Struct(self.order + "6I3Bx6I20s5I")
        layout.pack_into(metadata, 0, *values, FILE_ID, 0, 2, 0, 0x20, self.root)
        if self.checksummed:
            struct.pack_into(self.order + "I", metadata, 492, slow_checksum(metadata[:512]))
        for offset, patch in self.patches.items():
            metadata[offset : offset + len(patch)] = patch
        return bytes(metadata) + b"".join(
            self.pages.get(number, bytes(self.page_size)) for number in range(1, last + 1)
        )


class Log:
    """One log file: records of 28 bytes and their arguments, in a chain with checksums."""

    def __init__(self, *, previous: int = 0, version: int = 19) -> None:
        self.data = bytearray()
        self.last = previous
        self._append(struct.pack("<4I", 0x40988, version, 10 << 20, 0))

    def _append(self, body: bytes) -> int:
        offset = len(self.data)
        length = 12 + len(body)
        self.data += struct.pack("<3I", self.last, length, slow_checksum(body) ^ self.last ^ length) + body
        self.last = offset
        return offset

    def record(self, kind: int, transaction: int, *arguments: int | bytes) -> int:
        """Append a record; bytes are preceded by their length. Returns its offset."""
        body = struct.pack("<4I", kind, transaction, 0, 0)
        for argument in arguments:
            if isinstance(argument, int):
                body += struct.pack("<I", argument)
            else:
                body += struct.pack("<I", len(argument)) + argument
        return self._append(body)

    def register(self, number: int, name: str, action: int = 3, file_id: bytes = FILE_ID) -> int:
        return self.record(2, 0, action, name.encode() + b"\0", file_id, number, 1, 0, 0)

    def addrem(self, transaction: int, database: int, page: int) -> int:
        return self.record(41, transaction, 1, database, page, 0, 12, b"", b"an item", 0, 1)

    def commit(self, transaction: int) -> int:
        return self.record(10, transaction, 1, 1_700_000_000, 7, b"")

    def checkpoint(self, file: int, offset: int) -> int:
        return self.record(11, 0, file, offset, 0, 0, 0, 7, 0)

    def build(self, size: int = 4096) -> bytes:
        return bytes(self.data) + bytes(size - len(self.data))


def one_leaf(pairs: Sequence[tuple[bytes, bytes]], lsn: tuple[int, int] = (0, 1), page_size: int = 4096) -> bytes:
    """A database of one leaf."""
    file = BdbFile(page_size=page_size)
    file.page(1, LEAF, [inline(value) for pair in pairs for value in pair], lsn=lsn)
    return file.build()
