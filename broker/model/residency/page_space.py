"""Which pages of a paging file are free.

Runs of pages are taken from the lowest free run that is large enough, so that the file's end becomes free again, and is
cut off. Free runs are few: messages leave a queue roughly in the order in which they came.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

_MAX_TRIED: Final = 64  # free runs that are looked at before the file grows


class PageSpace:
    """The pages of one file.

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
        """Free a run that was taken. The end moves to before the free pages there."""
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
