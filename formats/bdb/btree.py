"""Keys and values of a Berkeley DB btree file, in the order of its cursor.

The tree is walked from its root, children left to right, which is the order of the chain of leaves that a
cursor follows; the links of that chain are checked on the way. Each page is read at most once, so a walk terminates,
and yields no more than the file contains, whatever the pages contain.

There are two ways to read: `Btree.items` stops at the first damage with `BdbError`; `salvage` reports damage and
continues, and afterwards searches the whole file for leaves that were not reached through the tree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import itemgetter

from qstore.formats.bdb.pages import (
    INTERNAL_TYPES,
    LEAF_TYPES,
    BdbError,
    Item,
    ItemType,
    Lsn,
    Metadata,
    OnDamage,
    Page,
    PageFile,
    PageType,
    UnsupportedDatabaseError,
    guess_page_file,
    read_metadata,
)

# Root type of a tree -> types of its pages.
_MAIN_TREE = {
    PageType.INTERNAL: frozenset({PageType.INTERNAL, PageType.LEAF}),
    PageType.LEAF: frozenset({PageType.LEAF}),
}
_TREE_OF_DUPLICATES = {
    PageType.INTERNAL: frozenset({PageType.INTERNAL, PageType.DUPLICATE_LEAF}),
    PageType.DUPLICATE_LEAF: frozenset({PageType.DUPLICATE_LEAF}),
    PageType.RECNO_INTERNAL: frozenset({PageType.RECNO_INTERNAL, PageType.RECNO_LEAF}),
    PageType.RECNO_LEAF: frozenset({PageType.RECNO_LEAF}),
}


class Btree:
    """A btree database in the bytes of its file.

    Attributes:
        metadata: page 0.
        pages: the file as pages.
    """

    __slots__ = ("metadata", "pages")

    def __init__(self, buffer: bytes) -> None:
        """Read the metadata of the file `buffer`.

        Raises:
            UnsupportedDatabaseError: a Berkeley DB file of another kind.
            BdbError: not a Berkeley DB file, or its metadata page is damaged.
        """
        self.metadata: Metadata
        self.pages: PageFile
        self.metadata, self.pages = read_metadata(buffer)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """All (key, value) pairs in the order of the database's cursor.

        Raises:
            BdbError: at the first damage.
        """
        return _Walk(self.pages, _raise).tree(self.metadata.root_page)

    def page_lsn(self, number: int) -> Lsn | None:
        """The LSN of the last change to page `number`; None if the file has no such page."""
        return self.pages.lsn(number)

    def newest_change(self) -> tuple[int, Lsn]:
        """The page with the highest LSN, and that LSN."""
        lsns = [(number, self.pages.lsn(number) or Lsn(0, 0)) for number in range(self.pages.page_count)]
        return max(lsns, key=itemgetter(1), default=(0, Lsn(0, 0)))


def salvage(buffer: bytes, on_damage: OnDamage) -> Iterator[tuple[bytes, bytes]]:
    """All (key, value) pairs that can be read in the file `buffer`, damaged or not.

    Pairs reached through the tree are first, in the order of the cursor; then, if anything was damaged, those
    on leaves that are no longer reachable, in the order of the file. Without an intact metadata page the page size
    is guessed. A file of another kind yields nothing.
    """
    try:
        tree = Btree(buffer)
    except BdbError as error:
        on_damage(error)
        pages = None if isinstance(error, UnsupportedDatabaseError) else guess_page_file(buffer)
        if pages is not None:
            yield from _Walk(pages, on_damage).unreached_leaves()
        return
    damaged = False

    def note_damage(error: BdbError) -> None:
        nonlocal damaged
        damaged = True
        on_damage(error)

    walk = _Walk(tree.pages, note_damage)
    yield from walk.tree(tree.metadata.root_page)
    if damaged:
        yield from walk.unreached_leaves()


def _raise(error: BdbError) -> None:
    raise error


@dataclass(slots=True)
class _Walk:
    """One pass over a file. `on_damage` raises (strict) or returns (salvage)."""

    pages: PageFile
    on_damage: OnDamage
    seen: set[int] = field(default_factory=set)  # pages that were read where they belong
    emitted: set[int] = field(default_factory=set)  # leaves of the main tree whose pairs were yielded

    def tree(self, root: int) -> Iterator[tuple[bytes, bytes]]:
        for leaf in self._leaves(root, _MAIN_TREE, context=88):
            yield from self._pairs(leaf)

    def unreached_leaves(self) -> Iterator[tuple[bytes, bytes]]:
        for number in range(1, self.pages.page_count):
            if number in self.emitted:
                continue
            try:
                page = self.pages.page(number)
            except BdbError:
                continue  # any pointer to it was already reported
            if page.type == PageType.LEAF:
                self.seen.add(number)
                yield from self._pairs(page)

    def _leaves(self, root: int, trees: dict[PageType, frozenset[PageType]], context: int) -> Iterator[Page]:
        """The leaves of the tree at page `root`, left to right; `context`: offset of the pointer to it."""
        allowed = frozenset(trees)
        level: int | None = None
        previous: int | None = 0  # the leaf before; None if unknown
        pending = [(root, level, context)]
        while pending:
            number, level, context = pending.pop()
            try:
                page = self._node(number, allowed, level, context)
                if number == root:
                    allowed = trees[page.type]
                if page.type in INTERNAL_TYPES:
                    children = self.pages.children(page, self.on_damage)
                    pending.extend((child, page.level - 1, offset) for child, offset in reversed(children))
                    continue
            except BdbError as error:
                self.on_damage(error)
                previous = None
                continue
            if previous is not None and page.previous != previous:
                what = f"page {number} follows page {previous} in the tree, but page {page.previous} in the chain"
                self.on_damage(BdbError(what, page.start + 12))
            previous = number
            yield page

    def _node(self, number: int, allowed: frozenset[PageType], level: int | None, context: int) -> Page:
        page = self._unseen(number, context)
        if page.type not in allowed:
            what = f"page {number} of type {page.type.name} does not belong in this tree"
            raise BdbError(what, page.start + 25)
        if (level is not None and page.level != level) or (page.level == 1) != (page.type in LEAF_TYPES):
            raise BdbError(f"page {number} of type {page.type.name} is on level {page.level}", page.start + 24)
        self.seen.add(number)
        return page

    def _unseen(self, number: int, context: int) -> Page:
        """Page `number`, marked as seen; `context`: offset of the pointer to it."""
        if number in self.seen:
            raise BdbError(f"page {number} is referenced twice", context)
        return self.pages.page(number, context)

    def _pairs(self, leaf: Page) -> Iterator[tuple[bytes, bytes]]:
        self.emitted.add(leaf.number)
        try:
            items = self.pages.items(leaf, self.on_damage)
        except BdbError as error:
            self.on_damage(error)
            return
        known_key: Item | None = None  # duplicates on the page share one key item
        key: bytes | None = None
        for key_item, data_item in zip(items[::2], items[1::2], strict=False):
            if key_item is None or data_item is None or data_item.deleted:
                continue
            if key_item is not known_key:
                known_key, key = key_item, self._value(key_item)
            if key is not None:
                for value in self._values(data_item):
                    yield key, value

    def _values(self, item: Item) -> Iterator[bytes]:
        """The value of a data item, or those of its duplicates."""
        if item.kind is not ItemType.DUPLICATES:
            value = self._value(item)
            if value is not None:
                yield value
            return
        for leaf in self._leaves(item.page, _TREE_OF_DUPLICATES, item.offset):
            try:
                duplicates = self.pages.items(leaf, self.on_damage)
            except BdbError as error:
                self.on_damage(error)
                continue
            for duplicate in duplicates:
                if duplicate is None or duplicate.deleted:
                    continue
                value = self._value(duplicate)
                if value is not None:
                    yield value

    def _value(self, item: Item) -> bytes | None:
        """The bytes of one item; None if they cannot be read, and then the damage is reported."""
        if item.kind is ItemType.DATA:
            return item.data
        try:
            if item.kind is ItemType.OVERFLOW:
                return self._overflow(item)
            raise BdbError("duplicates where one value belongs", item.offset + 2)
        except BdbError as error:
            self.on_damage(error)
            return None

    def _overflow(self, item: Item) -> bytes:
        parts: list[bytes] = []
        length = 0
        number, context = item.page, item.offset + 4
        while number:
            page = self._unseen(number, context)
            parts.append(self.pages.overflow_data(page))
            length += len(parts[-1])
            if length > item.length:
                raise BdbError(f"an overflow chain is longer than its {item.length:,} bytes", page.start)
            self.seen.add(number)
            number, context = page.next, page.start + 16
        if length != item.length:
            raise BdbError(f"an overflow chain ends after {length:,} of {item.length:,} bytes", context)
        return b"".join(parts)
