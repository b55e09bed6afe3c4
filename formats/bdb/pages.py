"""Pages of a Berkeley DB btree file: metadata, page headers, entries and items.

`PageFile` divides the bytes of a whole file into pages and checks each one separately (number, type, checksum,
bounds); `btree` handles their structure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from itertools import pairwise
from operator import mul
from struct import Struct

from qstore.formats.errors import FormatError
from qstore.formats.named_tuple import NamedTuple


class BdbError(FormatError):
    """Bytes that are not an intact Berkeley DB btree file or log."""

    format_name = "berkeley db"


class UnsupportedDatabaseError(BdbError):
    """An intact Berkeley DB file of a kind that qpidd does not create: hash, encrypted, partitioned, ..."""


#: Called with each piece of damage; returns to continue, or raises it.
OnDamage = Callable[[BdbError], None]


class PageType(IntEnum):
    """The u8 at offset 25 of a page."""

    INVALID = 0  # free
    INTERNAL = 3
    RECNO_INTERNAL = 4
    LEAF = 5
    RECNO_LEAF = 6
    OVERFLOW = 7
    BTREE_METADATA = 9
    DUPLICATE_LEAF = 12


INTERNAL_TYPES = frozenset({PageType.INTERNAL, PageType.RECNO_INTERNAL})
_PAGE_TYPES = frozenset(PageType)
LEAF_TYPES = frozenset({PageType.LEAF, PageType.RECNO_LEAF, PageType.DUPLICATE_LEAF})


class ItemType(IntEnum):
    """The u8 at offset 2 of an item, without its bit `DELETED`."""

    DATA = 1
    DUPLICATES = 2
    OVERFLOW = 3


_ITEM_TYPES = frozenset(ItemType)
DELETED = 0x80


class MetadataFlag(IntFlag):
    """The u32 at offset 48 of the metadata."""

    DUPLICATES = 0x01
    RECNO = 0x02
    RECORD_NUMBERS = 0x04
    FIXED_LENGTH = 0x08
    RENUMBER = 0x10
    SUBDATABASES = 0x20
    SORTED_DUPLICATES = 0x40
    COMPRESSED = 0x80


METADATA_CHECKSUM = 0x01  # bit of the u8 at offset 26
BTREE_MAGIC = 0x00053162
OTHER_MAGICS = {0x00061561: "hash", 0x00042253: "queue", 0x00074582: "heap", 0x00040988: "log"}
SUPPORTED_VERSION = 9
PAGE_SIZES = tuple(1 << power for power in range(9, 17))
METADATA_SIZE = 512  # field excluded from its checksum

_BYTE_ORDERS = ("<", ">")
# The layouts of formats/bdb/README.md, 2 to 4, in both byte orders.
METADATA = {order: Struct(order + "6I3Bx6I20s5I") for order in _BYTE_ORDERS}
_METADATA_CHECKSUM_OFFSET = 492
HEADER = {order: Struct(order + "5IHHBB") for order in _BYTE_ORDERS}
HEADER_SIZE = 26
_CHECKSUM_OFFSET = 28
_CHECKSUMMED_HEADER_SIZE = 32
DATA_ITEM = {order: Struct(order + "HB") for order in _BYTE_ORDERS}
REFERENCE = {order: Struct(order + "HBxII") for order in _BYTE_ORDERS}  # INTERNAL items begin with it, too
_RECNO_INTERNAL_ITEM = {order: Struct(order + "II") for order in _BYTE_ORDERS}
U16 = {order: Struct(order + "H") for order in _BYTE_ORDERS}
_U32 = {order: Struct(order + "I") for order in _BYTE_ORDERS}

_HASH_CHUNK = 4096
_HASH_POWERS = tuple(pow(33, _HASH_CHUNK - 1 - index, 1 << 32) for index in range(_HASH_CHUNK))


def checksum(data: bytes) -> int:
    """Berkeley DB's checksum of a page or of a log record's body: h = 33 h + byte, modulo 2^32, from 0."""
    value = 0
    for start in range(0, len(data), _HASH_CHUNK):
        chunk = data[start : start + _HASH_CHUNK]
        chunk_value = sum(map(mul, chunk, _HASH_POWERS[_HASH_CHUNK - len(chunk) :]))
        value = (value * pow(33, len(chunk), 1 << 32) + chunk_value) & 0xFFFFFFFF
    return value


class Lsn(NamedTuple):
    """A log sequence number: a position in the log. (0, 1) on a page: no logged change yet."""

    file: int
    offset: int

    def __str__(self) -> str:
        return f"log file {self.file}, offset {self.offset}"


class Metadata(NamedTuple):
    """The metadata page, its fields in the order of the file."""

    lsn_file: int
    lsn_offset: int
    page_number: int
    magic: int
    version: int
    page_size: int
    encryption: int
    page_type: int
    metadata_flags: int
    free_list: int
    last_page: int
    partitions: int
    key_count: int
    record_count: int
    flags: int
    file_id: bytes
    unused: int
    minimum_keys: int
    record_length: int
    record_padding: int
    root_page: int


class Page(NamedTuple):
    """The header of one page, and where the page begins and its entries' offsets begin in the file."""

    lsn: Lsn
    number: int
    previous: int
    next: int
    entries: int
    lowest: int
    level: int
    type: PageType
    start: int
    body: int


class Item(NamedTuple):
    """One item of a leaf.

    Attributes:
        offset: its position in the file.
        kind: its type.
        deleted: whether it is marked for removal.
        data: the value itself (`ItemType.DATA`), else empty.
        page: first overflow page, or root of the tree of duplicates.
        length: bytes in the overflow chain.
    """

    offset: int
    kind: ItemType
    deleted: bool
    data: bytes = b""
    page: int = 0
    length: int = 0


@dataclass(frozen=True, slots=True)
class PageFile:
    """The bytes of a btree file as pages of `page_size` bytes, in byte order `order` ("<" or ">")."""

    buffer: bytes
    order: str
    page_size: int
    checksummed: bool

    @property
    def page_count(self) -> int:
        """Whole pages in the file, page 0 included."""
        return len(self.buffer) // self.page_size

    def page(self, number: int, context: int = 0) -> Page:
        """The checked header of page `number` (> 0); `context` is the offset of the pointer to it.

        Raises:
            BdbError: there is no such page, or it is damaged.
        """
        if not 0 < number < self.page_count:
            raise BdbError(f"page {number} is outside the file of {self.page_count:,} pages", context)
        start = number * self.page_size
        fields = HEADER[self.order].unpack_from(self.buffer, start)
        if fields[2] != number:
            raise BdbError(f"page {number} has the page number {fields[2]}", start + 8)
        if fields[8] not in _PAGE_TYPES:
            raise BdbError(f"page {number} has the unknown type {fields[8]}", start + 25)
        if self.checksummed:
            page = self.buffer[start : start + self.page_size]
            _verify_checksum(page, _CHECKSUM_OFFSET, self.order, start, f"page {number}")
        body = start + (_CHECKSUMMED_HEADER_SIZE if self.checksummed else HEADER_SIZE)
        lsn_file, lsn_offset, number, previous, following, entries, lowest, level, type_number = fields
        lsn, page_type = Lsn(lsn_file, lsn_offset), PageType(type_number)
        return Page(lsn, number, previous, following, entries, lowest, level, page_type, start, body)

    def lsn(self, number: int) -> Lsn | None:
        """The LSN on page `number`; None if there is no such page."""
        if not 0 <= number < self.page_count:
            return None
        return Lsn(*HEADER[self.order].unpack_from(self.buffer, number * self.page_size)[:2])

    def children(self, page: Page, on_damage: OnDamage) -> list[tuple[int, int]]:
        """The targets of an internal page: (page number, offset of the item in the file), left to right.

        Entries that cannot be read are reported to `on_damage` and left out.
        """
        layout = REFERENCE if page.type == PageType.INTERNAL else _RECNO_INTERNAL_ITEM
        field = 2 if page.type == PageType.INTERNAL else 0
        return [
            (layout[self.order].unpack_from(self.buffer, offset)[field], offset)
            for offset in self._entry_offsets(page, layout[self.order].size, on_damage)
            if offset is not None
        ]

    def items(self, page: Page, on_damage: OnDamage) -> list[Item | None]:
        """The items of a leaf, in order. Entries that repeat an offset (keys) are one and the same `Item`.

        Items that are outside the page, of an unknown type, overlap another item or share another entry's data are
        reported to `on_damage`, and are None in the list.
        """
        offsets = self._entry_offsets(page, DATA_ITEM[self.order].size, on_damage)
        items: dict[int | None, Item] = {}
        for offset in sorted({offset for offset in offsets if offset is not None}):
            try:
                items[offset] = self._item(page, offset)
            except BdbError as error:
                on_damage(error)
        _drop_overlaps(page, items, on_damage)
        entries = [items.get(offset) for offset in offsets]
        values = range(1, len(entries), 2) if page.type == PageType.LEAF else range(len(entries))
        used: set[int] = set()
        for index in values:
            item = entries[index]
            if item is not None and item.offset in used:
                on_damage(BdbError(f"entry {index} of page {page.number} shares its data", page.body + 2 * index))
                entries[index] = None
            elif item is not None:
                used.add(item.offset)
        return entries

    def overflow_data(self, page: Page) -> bytes:
        """The data on one overflow page."""
        if page.type != PageType.OVERFLOW:
            raise BdbError(f"page {page.number} is not an overflow page but {page.type.name}", page.start + 25)
        if not 0 < page.lowest <= page.start + self.page_size - page.body:
            raise BdbError(f"overflow page {page.number} claims {page.lowest} bytes", page.start + 22)
        return self.buffer[page.body : page.body + page.lowest]

    def _entry_offsets(self, page: Page, item_header: int, on_damage: OnDamage) -> list[int | None]:
        """File offsets of the page's entries; None if there is no space for an item's header of `item_header` bytes."""
        end = page.start + self.page_size
        items_start = page.body + 2 * page.entries
        if items_start > end:
            raise BdbError(f"page {page.number} claims {page.entries} entries", page.start + 20)
        if page.type == PageType.LEAF and page.entries % 2:
            on_damage(BdbError(f"page {page.number} has a key without data", page.start + 20))
        offsets: list[int | None] = []
        for index, (offset,) in enumerate(U16[self.order].iter_unpack(self.buffer[page.body : items_start])):
            inside = items_start <= page.start + offset <= end - item_header
            offsets.append(page.start + offset if inside else None)
            if not inside:
                what = f"entry {index} of page {page.number} is at {offset}, outside the page's items"
                on_damage(BdbError(what, page.body + 2 * index))
        return offsets

    def _item(self, page: Page, offset: int) -> Item:
        end = page.start + self.page_size
        length, type_byte = DATA_ITEM[self.order].unpack_from(self.buffer, offset)
        deleted, kind = type_byte >= DELETED, type_byte & ~DELETED
        if kind == ItemType.DATA:
            if offset + 3 + length > end:
                raise BdbError(f"an item of {length:,} bytes extends beyond page {page.number}", offset)
            return Item(offset, ItemType.DATA, deleted, self.buffer[offset + 3 : offset + 3 + length])
        if kind not in _ITEM_TYPES:
            raise BdbError(f"page {page.number} has an item of unknown type {kind}", offset + 2)
        if offset + REFERENCE[self.order].size > end:
            raise BdbError(f"a reference extends beyond page {page.number}", offset)
        _, _, target, total = REFERENCE[self.order].unpack_from(self.buffer, offset)
        return Item(offset, ItemType(kind), deleted, page=target, length=total)


def read_metadata(buffer: bytes) -> tuple[Metadata, PageFile]:
    """Read page 0 of a btree file.

    Raises:
        UnsupportedDatabaseError: a Berkeley DB file, but of a kind that is not supported.
        BdbError: not a Berkeley DB file, or a damaged page.
    """
    if len(buffer) < METADATA_SIZE:
        raise BdbError(f"{len(buffer):,} bytes are too short for a metadata page of {METADATA_SIZE:,}", 0)
    order = _byte_order(buffer)
    metadata = Metadata(*METADATA[order].unpack_from(buffer))
    for what, offset in _unsupported(metadata):
        raise UnsupportedDatabaseError(f"{what} not supported", offset)
    if metadata.page_size not in PAGE_SIZES:
        raise BdbError(f"the page size is {metadata.page_size}", 20)
    if metadata.page_type != PageType.BTREE_METADATA or metadata.page_number != 0:
        raise BdbError(f"page 0 has page number {metadata.page_number}, type {metadata.page_type}", 8)
    checksummed = bool(metadata.metadata_flags & METADATA_CHECKSUM)
    if checksummed:
        _verify_checksum(buffer[:METADATA_SIZE], _METADATA_CHECKSUM_OFFSET, order, 0, "the metadata page")
    return metadata, PageFile(buffer, order, metadata.page_size, checksummed)


def guess_page_file(buffer: bytes) -> PageFile | None:
    """The file's pages without the help of page 0: the page size at which page 1 has page number 1."""
    for order in _BYTE_ORDERS:
        for page_size in PAGE_SIZES:
            if len(buffer) < 2 * page_size:
                break
            fields = HEADER[order].unpack_from(buffer, page_size)
            if fields[2] == 1 and fields[8] in _PAGE_TYPES:
                return PageFile(buffer, order, page_size, checksummed=False)
    return None


def _byte_order(buffer: bytes) -> str:
    magics = {order: _U32[order].unpack_from(buffer, 12)[0] for order in _BYTE_ORDERS}
    for order, magic in magics.items():
        if magic == BTREE_MAGIC:
            return order
        if magic in OTHER_MAGICS:
            raise UnsupportedDatabaseError(f"{OTHER_MAGICS[magic]} files are not supported", 12)
    raise BdbError(f"the magic number is {magics['<']:#010x}, not that of a btree", 12)


def _unsupported(metadata: Metadata) -> Iterator[tuple[str, int]]:
    """Unsupported features of this database: (feature, and the verb; offset)."""
    flags = MetadataFlag(metadata.flags & 0xFF)
    if metadata.version != SUPPORTED_VERSION:
        yield f"btree version {metadata.version} is", 16
    if metadata.encryption:
        yield "encryption is", 24
    if metadata.partitions:
        yield "partitioned databases are", 36
    if flags & MetadataFlag.RECNO:
        yield "recno databases are", 48
    if flags & MetadataFlag.SUBDATABASES:
        yield "files of several named databases are", 48
    if flags & MetadataFlag.COMPRESSED:
        yield "compressed databases are", 48


def _verify_checksum(covered: bytes, at: int, order: str, start: int, name: str) -> None:
    stored = _U32[order].unpack_from(covered, at)[0]
    if checksum(covered[:at] + bytes(4) + covered[at + 4 :]) != stored:
        raise BdbError(f"the checksum of {name} does not match", start + at)


def _drop_overlaps(page: Page, items: dict[int | None, Item], on_damage: OnDamage) -> None:
    """Remove each item (they are in the order of their offsets) that overlaps the next."""
    for item, following in pairwise(list(items.values())):
        size = 3 + len(item.data) if item.kind == ItemType.DATA else REFERENCE["<"].size
        if item.offset + size > following.offset:
            on_damage(BdbError(f"two items of page {page.number} overlap", item.offset))
            del items[item.offset]
