"""The paging file of one queue: stores messages that are out of memory and in no journal.

    keep      messages are written in groups of 64 KiB, each to a run of free pages, its extent (`formats.page_file`);
              a larger message is a group by itself
    load      reads the extents of some messages, and verifies them
    forget    the pages of an extent are free when none of its messages is out of memory any more (`PageSpace`)

The key of a message is the number of its extent's first page, and its index in the extent. The file is created when the
first message leaves memory, truncated when its end is free, and removed when the last one is back. Data in the page
cache is read at once, the rest by a thread.

An extent that cannot be read back affects only its messages: it is logged, and they stay on their queue, where they can
be purged. They are never mistaken for others.
"""

from __future__ import annotations

import contextlib
import errno
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from qstore.broker.model.residency.paging_directory import OpenFile, PagingDirectory, PagingFile, Trouble
from qstore.formats.errors import BrokerRecordError
from qstore.formats.page_file import MAX_COUNT, PAGE_UNIT, Extent, Group, PageFileError, encode_extent

if TYPE_CHECKING:
    from qstore.broker.model.queues.entry import Entry
    from qstore.broker.model.residency.sources import Loaded


GROUP_BYTES: Final = 1 << 16
_INDEX_BITS: Final = 12
_INDEX_MASK: Final = (1 << _INDEX_BITS) - 1
assert MAX_COUNT == _INDEX_MASK  # indices count from 1, so that no key is 0
_UNLIMITED: Final = 1 << 48  # pages
_MAX_CACHED: Final = 1 << 18  # bytes of the last extent read
_CUT_BYTES: Final = 1 << 24  # the file is truncated when this much is free at its end
_MAX_CUT_BYTES: Final = 1 << 27  # at most this much is cut at once
_MAX_TRIED: Final = 64  # free runs examined before the file grows


class PageSpace:
    """The pages of one file, and which of them are free.

    Runs of pages are taken from the lowest free run that is large enough, so that the file's end becomes free again,
    and can be truncated. Free runs are few: messages leave a queue roughly in order of arrival.

    Args:
        limit: the largest number of pages.

    Attributes:
        end: pages up to the end of the file.
        used: pages that are not free.
    """

    __slots__ = ("_counts", "_firsts", "_limit", "end", "used")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.end = self.used = 0
        self._firsts: list[int] = []  # of the free runs, ascending; neighbours are joined
        self._counts: list[int] = []

    def take(self, count: int) -> int | None:
        """Take a run of `count` pages. Returns the first; None if there is none within the limit."""
        must_fit = self.end + count > self._limit
        for index, free in enumerate(self._counts if must_fit else self._counts[:_MAX_TRIED]):
            if free >= count:
                return self._take_from(index, count)
        if must_fit:
            return None
        first = self.end
        self.end += count
        self.used += count
        return first

    def _take_from(self, index: int, count: int) -> int:
        first = self._firsts[index]
        if self._counts[index] == count:
            del self._firsts[index], self._counts[index]
        else:
            self._firsts[index] += count
            self._counts[index] -= count
        self.used += count
        return first

    def give_back(self, first: int, count: int) -> None:
        """Free a run that was taken. If the pages at the end are free, the end moves before them."""
        self.used -= count
        firsts, counts = self._firsts, self._counts
        index = bisect_left(firsts, first)
        if index < len(firsts) and firsts[index] == first + count:
            count += counts[index]
            del firsts[index], counts[index]
        if index and firsts[index - 1] + counts[index - 1] == first:
            index -= 1
            first = firsts[index]
            count += counts[index]
            del firsts[index], counts[index]
        if first + count == self.end:
            self.end = first
            return
        firsts.insert(index, first)
        counts.insert(index, count)


class _ExtentPlace:
    """An extent in the file: its number, pages and bytes, and the number of its messages that are out of memory."""

    __slots__ = ("live", "number", "pages", "size")

    def __init__(self, number: int, pages: int, size: int, live: int) -> None:
        self.number, self.pages, self.size, self.live = number, pages, size, live


class _Pages:
    """A file and its contents.

    Attributes:
        file: the file.
        secret: its random number.
        number: the number of the last extent written.
        space: its pages.
        length: the most pages that it may have on the disk.
        extents: first page -> extent.
    """

    __slots__ = ("extents", "file", "length", "number", "secret", "space")

    def __init__(self, file: OpenFile, secret: int, max_pages: int) -> None:
        self.file, self.secret, self.space = file, secret, PageSpace(max_pages)
        self.number = self.length = 0
        self.extents: dict[int, _ExtentPlace] = {}


class PageFile:
    """The `ContentSource` of one queue. Takes little memory while all messages are in memory.

    Args:
        directory: the directory of the file.
        name: the queue's name.
        page_size: bytes of a page.
        max_bytes: limit of the file's size; 0 for none.
        compresses: whether messages are compressed.

    Attributes:
        has_failed: whether the last messages could not be written.
    """

    __slots__ = (
        "_compresses",
        "_directory",
        "_is_closed",
        "_limit",
        "_max_pages",
        "_name",
        "_page_size",
        "_pages",
        "has_failed",
    )

    def __init__(
        self,
        directory: PagingDirectory,
        name: str,
        *,
        page_size: int = PAGE_UNIT,
        max_bytes: int = 0,
        compresses: bool = False,
    ) -> None:
        self._directory, self._name, self._page_size = directory, name, page_size
        self._max_pages = max_bytes // page_size if max_bytes else _UNLIMITED
        self._compresses = compresses
        self._is_closed = self.has_failed = False
        self._limit = Trouble()
        self._pages: _Pages | None = None

    @property
    def file_bytes(self) -> int:
        """Bytes of the file."""
        return 0 if self._pages is None else self._pages.length * self._page_size

    # ---- out ----

    def keep(self, entries: Sequence[Entry]) -> Sequence[int]:
        """Write the messages; the first one that cannot be written, and all later ones, get 0."""
        keys: list[int] = []
        try:
            for group in _groups(entries):
                key = self._write(group) << _INDEX_BITS
                keys += range(key + 1, key + len(group.sizes) + 1)
            self.has_failed = False
            self._directory.worked(self._name, self._limit)
        except OSError as error:
            self.has_failed = True
            limit = self._limit if error.errno == errno.EFBIG else None
            self._directory.failed(self._name, error.strerror or str(error), limit)
        keys.extend([0] * (len(entries) - len(keys)))
        return keys

    def _write(self, group: Group) -> int:
        """Write an extent. Returns its first page. Raises OSError."""
        directory, pages = self._directory, self._pages
        if pages is None:
            pages = self._pages = _Pages(directory.create(), directory.random_bits(64), self._max_pages)
        pages.number += 1
        compressor = directory.compressor if self._compresses else None
        parts, size = encode_extent(pages.secret, pages.number, group, compressor)
        directory.check_room(size)
        file, count = directory.opened(pages.file), -(-size // self._page_size)
        first = pages.space.take(count)
        if first is None:
            limit = self._max_pages * self._page_size
            raise OSError(errno.EFBIG, f"its paging file would be larger than its limit of {limit:,} bytes")
        pages.length = max(pages.length, first + count)
        try:
            offset = first * self._page_size
            for part in parts:
                file.write(offset, part)
                offset += len(part)
        except OSError:
            pages.space.give_back(first, count)
            raise
        pages.extents[first] = _ExtentPlace(pages.number, count, size, len(group.sizes))
        return first

    # ---- back in ----

    def load(self, keys: Sequence[int]) -> Loaded:
        """Read messages now."""
        found: Loaded = []
        for first, indices in _by_extent(keys):
            found += self._messages(first, indices, self._read(first))
        return found

    def _read(self, first: int) -> Extent | str:
        """The extent, or why it cannot be read."""
        cached, pages = self._directory.cached, self._pages
        if cached is not None and cached[0] is self and cached[1] == first:
            return cached[2]
        place = None if pages is None else pages.extents.get(first)
        if pages is None or place is None:
            return "the page is free"
        try:
            content = self._directory.opened(pages.file).read(first * self._page_size, place.size)
        except OSError as error:
            return error.strerror or str(error)
        return self._extent(pages, first, place, content)

    def _extent(self, pages: _Pages, first: int, place: _ExtentPlace, content: bytes) -> Extent | str:
        try:
            extent = Extent(content, pages.secret, place.number)
        except PageFileError as error:
            return error.what
        if place.size <= _MAX_CACHED:
            self._directory.cached = self, first, extent
        return extent

    def fetch(self, keys: Sequence[int], done: Callable[[Loaded], None]) -> None:
        """Read messages: by a thread, unless they are in the page cache."""
        pages, wanted = self._pages, list(_by_extent(keys))
        if pages is None:
            done(self.load(keys))
            return
        places = [pages.extents.get(first) for first, _ in wanted]
        spans = [
            (first * self._page_size, 0 if place is None else place.size)
            for (first, _), place in zip(wanted, places, strict=True)
        ]
        try:
            file = self._directory.opened(pages.file)
            cached = [content for span in spans if (content := file.read_cached(*span)) is not None]
        except OSError:
            done(self.load(keys))  # logs the error of each extent
            return

        if len(cached) == len(spans):
            done(self._taken(pages, wanted, places, cached))
            return
        pages.file.readers += 1

        def finish(contents: list[bytes | str]) -> None:
            self._directory.has_read(pages.file)
            if not self._is_closed:
                done(self._taken(pages, wanted, places, contents))

        self._directory.run(partial(_read_all, file, spans), finish)

    def _taken(
        self,
        pages: _Pages,
        wanted: Sequence[tuple[int, list[int]]],
        places: Sequence[_ExtentPlace | None],
        contents: Sequence[bytes | str],
    ) -> Loaded:
        """The messages of extents that were read; None for each that is unreadable, or has left the queue meanwhile."""
        found: Loaded = []
        for (first, indices), place, content in zip(wanted, places, contents, strict=True):
            if place is None or pages.extents.get(first) is not place:
                found += [None] * len(indices)
            else:
                extent = self._extent(pages, first, place, content) if isinstance(content, bytes) else content
                found += self._messages(first, indices, extent)
        return found

    def _messages(self, first: int, indices: Sequence[int], extent: Extent | str) -> Loaded:
        if isinstance(extent, str):
            self._directory.unreadable(self._name, len(indices), first, extent)
            return [None] * len(indices)
        found: Loaded = []
        restore, data, ends, expiries = self._directory.restore, extent.data, extent.ends, extent.expiries
        for index in indices:
            try:
                message = restore(data, ends[index - 1], ends[index])
            except BrokerRecordError as error:
                self._directory.unreadable(self._name, 1, first, error.what)
                found.append(None)
            else:
                message.expires_at = expiries[index - 1]
                found.append(message)
        return found

    def will_need(self, keys: Sequence[int]) -> None:
        """Have the system read ahead."""
        pages = self._pages
        if pages is None:
            return
        with contextlib.suppress(OSError):  # reading reports the error
            file = self._directory.opened(pages.file)
            for first, _ in _by_extent(keys):
                place = pages.extents.get(first)
                if place is not None:
                    file.read_ahead(first * self._page_size, place.size)

    # ---- gone ----

    def forget(self, keys: Sequence[int]) -> None:
        """Free the pages of extents without messages out of memory."""
        pages = self._pages
        if pages is None:
            return
        for first, indices in _by_extent(keys):
            place = pages.extents[first]
            place.live -= len(indices)
            assert place.live >= 0, "a message was forgotten twice"
            if not place.live:
                del pages.extents[first]
                pages.space.give_back(first, place.pages)
                cached = self._directory.cached
                if cached is not None and cached[0] is self and cached[1] == first:
                    self._directory.cached = None
        self._give_back_space(pages)

    def _give_back_space(self, pages: _Pages) -> None:
        if not pages.space.end:
            self._pages = None
            self._directory.remove(pages.file)
            return
        if (pages.length - pages.space.end) * self._page_size < _CUT_BYTES or pages.file.readers:
            return
        length = max(pages.space.end, pages.length - _MAX_CUT_BYTES // self._page_size)
        with contextlib.suppress(OSError):  # tried again later
            self._directory.opened(pages.file).truncate(length * self._page_size)
            pages.length = length

    def close(self) -> None:
        """Remove the file."""
        self._is_closed = True
        pages, self._pages = self._pages, None
        if pages is not None:
            self._directory.remove(pages.file)
        cached = self._directory.cached
        if cached is not None and cached[0] is self:
            self._directory.cached = None


def _groups(entries: Sequence[Entry]) -> Iterator[Group]:
    """The messages in groups, each of which becomes an extent."""
    group = Group()
    for entry in entries:
        message = entry.message
        parts, size = message.stored_parts()
        if group.sizes and (group.size + size > GROUP_BYTES or len(group.sizes) == MAX_COUNT):
            yield group
            group = Group()
        group.add(parts, size, message.expires_at)
    if group.sizes:
        yield group


def _by_extent(keys: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """Consecutive keys of one extent together: its first page, and their indices from 1."""
    indices: list[int] = []
    first = -1
    for key in keys:
        if key >> _INDEX_BITS != first:
            if indices:
                yield first, indices
            first, indices = key >> _INDEX_BITS, []
        indices.append(key & _INDEX_MASK)
    if indices:
        yield first, indices


def _read_all(file: PagingFile, spans: Sequence[tuple[int, int]]) -> list[bytes | str]:
    """Read spans, in a thread: the bytes of each, or why they cannot be read."""
    contents: list[bytes | str] = []
    for offset, size in spans:
        try:
            contents.append(file.read(offset, size))
        except OSError as error:
            contents.append(error.strerror or str(error))
    return contents
