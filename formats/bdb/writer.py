"""Creates a Berkeley DB btree file from its keys and values in one pass; and the log that belongs to such files.

    page 0      metadata
    page 1      the root: the only leaf, or the highest internal page
    others      in the order of creation

Everything is known before it is laid out, so pages are filled from left to right, level by level: the leaves first,
then the internal pages that point to them, until one page points to all. Pages are full except for the last of each
level, and the last internal page has at least two children.

A key with several values has them on its leaf, where each repeats the offset of the one key; from a quarter of a page
on they get their own tree, whose internal pages count the values below them, with its root in the field of the link to
the previous page. A key or value of more than nearly a quarter of a page goes to a chain of overflow pages, so that a
page has room for four items. Between two children of an internal page is the shortest prefix of the right one's first
key that is greater than the left one's last key; the separator before the first child is empty, because all smaller
keys belong there anyway.

No page belongs to a log: its LSN means that its change was never logged. So the file can be put into any environment,
like files created by db5.3_load. Its file id must differ from those of the other files of that environment, because
the library identifies files by it. The log of a new environment is its first file with only its own header. The library
would create one itself; a reader that finds none must assume that it was lost.

Sources: formats/bdb/README.md, 1 to 6; where keys and values go, and the counts: files that libdb's db5.3_load creates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Final

from qstore.formats.bdb.log import FILE_HEADER, LOG_MAGIC, LOG_VERSION, RECORD_HEADER
from qstore.formats.bdb.pages import (
    BTREE_MAGIC,
    DATA_ITEM,
    HEADER,
    HEADER_SIZE,
    METADATA,
    REFERENCE,
    SUPPORTED_VERSION,
    U16,
    ItemType,
    Lsn,
    Metadata,
    MetadataFlag,
    PageType,
    checksum,
)
from qstore.formats.named_tuple import NamedTuple

#: Size of a page in qpidd's files (formats/bdb/README.md, 1).
QPIDD_PAGE_SIZE: Final = 4096
#: Largest size of a log file, the library's own setting.
LOG_FILE_SIZE: Final = 10 << 20
#: Bytes of a file's id.
FILE_ID_SIZE: Final = 20

_ORDER: Final = "<"
_NOT_LOGGED: Final = Lsn(0, 1)
_ROOT: Final = 1
_LEAF_LEVEL: Final = 1
_MIN_KEYS: Final = 2  # on a page: the library's own setting
_RECORD_PADDING: Final = 0x20  # of recno databases; the library's own setting in all
_ALIGNMENT: Final = 4
_OFFSET_SIZE: Final = U16[_ORDER].size
_MAX_PAGE: Final = 32768  # with 65,536 an empty page's lowest offset would not fit its field


class _Entry(NamedTuple):
    """An entry that is never split between pages.

    Attributes:
        first, last: its lowest and its highest key; in a tree of duplicates, value.
        items: its items, each aligned. Of a key with values: the key, then the values.
        has_key: whether the first item is a key, which each of the others repeats.
        records: number of values that it counts for.
    """

    first: bytes
    last: bytes
    items: tuple[bytes, ...]
    has_key: bool
    records: int

    @property
    def size(self) -> int:
        """Bytes that it occupies on a page."""
        values = len(self.items) - 1
        offsets = 2 * values if self.has_key else 1
        return sum(map(len, self.items)) + offsets * _OFFSET_SIZE


class _Node(NamedTuple):
    """A page of a level: its number, its separator from the previous one, and the number of values below it."""

    page: int
    separator: bytes
    records: int


def encode_btree(
    pairs: Iterable[tuple[bytes, bytes]],
    file_id: bytes,
    *,
    sorted_duplicates: bool = False,
    page_size: int = QPIDD_PAGE_SIZE,
) -> bytes:
    """The bytes of a database file, little endian and without checksums, like qpidd's.

    Args:
        pairs: keys and values, in any order.
        file_id: unique among the files of the environment.
        sorted_duplicates: whether keys may have several values, which are sorted then, and all different.
        page_size: size of a page in bytes.

    Raises:
        ValueError: a key, or with `sorted_duplicates` a pair, occurs twice; or a size is illegal.
    """
    if len(file_id) != FILE_ID_SIZE:
        raise ValueError(f"a file id has {FILE_ID_SIZE} bytes, not {len(file_id)}")
    if page_size & (page_size - 1) or not 512 <= page_size <= _MAX_PAGE:
        raise ValueError(f"a page has 512 to {_MAX_PAGE} bytes, a power of two, not {page_size}")
    ordered = sorted(pairs)
    unique = itemgetter(slice(None)) if sorted_duplicates else itemgetter(0)
    for before, after in pairwise(map(unique, ordered)):
        if before == after:
            raise ValueError("a key, or a key with the same value, occurs twice")
    writer = _Writer(page_size)
    writer.main_tree(ordered)
    flags = MetadataFlag.DUPLICATES | MetadataFlag.SORTED_DUPLICATES if sorted_duplicates else MetadataFlag(0)
    writer.metadata(flags, file_id)
    return b"".join(writer.pages)


def encode_empty_log() -> bytes:
    """The bytes of a log's first file before anything was logged."""
    body = FILE_HEADER.pack(LOG_MAGIC, LOG_VERSION, LOG_FILE_SIZE, 0)
    length = RECORD_HEADER.size + len(body)
    return RECORD_HEADER.pack(0, length, checksum(body) ^ length) + body


class _Writer:
    """One file that is being laid out.

    Attributes:
        pages: its pages; those that are numbered, but not created yet, are empty.
    """

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._room = page_size - HEADER_SIZE
        # Four items with their offsets fit on a page, including their headers and alignment.
        self._largest_item = self._room // (2 * _MIN_KEYS) - 10
        self.pages = [b"", b""]

    def metadata(self, flags: MetadataFlag, file_id: bytes) -> None:
        """Create page 0, after all others."""
        metadata = Metadata(
            *_NOT_LOGGED,
            page_number=0,
            magic=BTREE_MAGIC,
            version=SUPPORTED_VERSION,
            page_size=self._page_size,
            encryption=0,
            page_type=PageType.BTREE_METADATA,
            metadata_flags=0,
            free_list=0,
            last_page=len(self.pages) - 1,
            partitions=0,
            key_count=0,
            record_count=0,
            flags=flags,
            file_id=file_id,
            unused=0,
            minimum_keys=_MIN_KEYS,
            record_length=0,
            record_padding=_RECORD_PADDING,
            root_page=_ROOT,
        )
        self.pages[0] = METADATA[_ORDER].pack(*metadata).ljust(self._page_size, b"\0")

    # ---- trees ----

    def main_tree(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        """The tree of the keys, from the sorted `pairs`."""
        entries = []
        for key, group in groupby(pairs, itemgetter(0)):
            values = [value for _, value in group]
            items = (self._item(key), *self._values(values))
            entries.append(_Entry(key, key, items, has_key=True, records=0))
        self._tree(entries, PageType.LEAF, _ROOT)

    def _values(self, values: Sequence[bytes]) -> Sequence[bytes]:
        """The items for all values of one key: the values, or a reference to their tree."""
        sizes = (len(value) if len(value) <= self._largest_item else REFERENCE[_ORDER].size for value in values)
        if len(values) == 1 or sum(sizes) + len(values) * (_ALIGNMENT + _OFFSET_SIZE) < self._page_size // 4:
            return [self._item(value) for value in values]
        entries = [_Entry(value, value, (self._item(value),), has_key=False, records=1) for value in values]
        root = self._number()
        self._tree(entries, PageType.DUPLICATE_LEAF, root)
        return [REFERENCE[_ORDER].pack(0, ItemType.DUPLICATES, root, 0)]

    def _tree(self, entries: Sequence[_Entry], leaf_type: PageType, root: int) -> None:
        """The tree with the leaves of `entries`, from left to right."""
        groups = self._groups(entries)
        numbers = [root] if len(groups) == 1 else [self._number() for _ in groups]
        nodes = []
        for at, (number, group) in enumerate(zip(numbers, groups, strict=True)):
            before = numbers[at - 1] if at else 0
            after = numbers[at + 1] if at + 1 < len(numbers) else 0
            self._page(number, leaf_type, _LEAF_LEVEL, group, before, after)
            separator = _separator(groups[at - 1][-1].last, group[0].first) if at else b""
            nodes.append(_Node(number, separator, sum(entry.records for entry in group)))
        level = _LEAF_LEVEL
        while len(nodes) > 1:
            level += 1
            nodes = self._level(nodes, level, root)

    def _level(self, nodes: Sequence[_Node], level: int, root: int) -> list[_Node]:
        """The internal pages that point to `nodes`, as nodes."""
        entries = [
            _Entry(node.separator, b"", (self._child(node),), has_key=False, records=node.records) for node in nodes
        ]
        groups = self._groups(entries)
        if len(groups[-1]) == 1:
            groups[-1].insert(0, groups[-2].pop())
        made = []
        for group in groups:
            number = root if len(groups) == 1 else self._number()
            records = sum(entry.records for entry in group)
            self._page(number, PageType.INTERNAL, level, group, records if number == root else 0)
            made.append(_Node(number, group[0].first, records))
        return made

    def _groups(self, entries: Sequence[_Entry]) -> list[list[_Entry]]:
        """`entries` grouped by page; at least one group."""
        groups: list[list[_Entry]] = [[]]
        room = self._room
        for entry in entries:
            assert entry.size <= self._room
            if entry.size > room:
                groups.append([])
                room = self._room
            groups[-1].append(entry)
            room -= entry.size
        return groups

    # ---- items ----

    def _item(self, content: bytes) -> bytes:
        """A key or a value on a leaf."""
        if len(content) > self._largest_item:
            return self._overflow(content)
        return _aligned(DATA_ITEM[_ORDER].pack(len(content), ItemType.DATA) + content)

    def _child(self, node: _Node) -> bytes:
        """The pointer from an internal page to a page."""
        content, kind = node.separator, ItemType.DATA
        if len(content) > self._largest_item:
            content, kind = self._overflow(content), ItemType.OVERFLOW
        return _aligned(REFERENCE[_ORDER].pack(len(content), kind, node.page, node.records) + content)

    def _overflow(self, content: bytes) -> bytes:
        """Create the chain of overflow pages of `content`; returns the reference to it."""
        pieces = [content[at : at + self._room] for at in range(0, len(content), self._room)]
        numbers = [self._number() for _ in pieces]
        for at, (number, piece) in enumerate(zip(numbers, pieces, strict=True)):
            before = numbers[at - 1] if at else 0
            after = numbers[at + 1] if at + 1 < len(numbers) else 0
            # The field of the number of entries holds the reference count of the chain.
            header = HEADER[_ORDER].pack(*_NOT_LOGGED, number, before, after, 1, len(piece), 0, PageType.OVERFLOW)
            self.pages[number] = (header + piece).ljust(self._page_size, b"\0")
        return REFERENCE[_ORDER].pack(0, ItemType.OVERFLOW, numbers[0], len(content))

    # ---- pages ----

    def _number(self) -> int:
        """The number of a new page."""
        self.pages.append(b"")
        return len(self.pages) - 1

    def _page(
        self, number: int, kind: PageType, level: int, entries: Sequence[_Entry], before: int = 0, after: int = 0
    ) -> None:
        """Create a page: items are placed from its end downwards, and their offsets after the header."""
        items: list[bytes] = []
        offsets: list[int] = []
        lowest = self._page_size
        for entry in entries:
            key_offset = lowest - len(entry.items[0])
            for index, item in enumerate(entry.items):
                items.append(item)
                lowest -= len(item)
                if index or not entry.has_key:
                    offsets += (key_offset, lowest) if entry.has_key else (lowest,)
        header = HEADER[_ORDER].pack(*_NOT_LOGGED, number, before, after, len(offsets), lowest, level, kind)
        body = b"".join(U16[_ORDER].pack(offset) for offset in offsets)
        assert len(header) + len(body) <= lowest
        assert not self.pages[number]
        self.pages[number] = (header + body).ljust(lowest, b"\0") + b"".join(reversed(items))


def _aligned(item: bytes) -> bytes:
    return item + bytes(-len(item) % _ALIGNMENT)


def _separator(left: bytes, right: bytes) -> bytes:
    """The shortest prefix of `right` that is greater than `left`, which is less than `right`."""
    same = next((at for at, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]), len(left))
    return right[: same + 1]
