"""Unreadable regions of a journal's files.

They are stored as runs of sectors, since a failing disk fails over whole stretches, up to the whole file.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from qstore.formats.rhm.geometry import SECTOR_SIZE


class BadRegion(NamedTuple):
    """A run of unreadable sectors.

    Attributes:
        file: index of the file.
        begin, end: offsets in it.
        why: the system's error text.
    """

    file: int
    begin: int
    end: int
    why: str


class BadRegions:
    """The unreadable regions found so far."""

    __slots__ = ("_new", "_runs", "_why")

    def __init__(self) -> None:
        self._runs: dict[int, list[tuple[int, int]]] = {}  # index of the file -> runs of sectors, in order
        self._new: dict[int, list[tuple[int, int]]] = {}  # those not yet returned by `take_new`
        self._why: dict[int, str] = {}

    def __bool__(self) -> bool:
        return bool(self._runs)

    def add(self, file: int, begin: int, end: int, why: str) -> None:
        """Add the sectors that hold the bytes from `begin` to `end` of a file."""
        first, last = begin // SECTOR_SIZE, -(-end // SECTOR_SIZE)
        runs = self._runs.setdefault(file, [])
        known = _overlapping(runs, first, last)
        if known and known[0][0] <= first and known[-1][1] >= last and len(known) == 1:
            return
        _insert(runs, first, last)
        _insert(self._new.setdefault(file, []), first, last)
        self._why.setdefault(file, why)

    def touches(self, file: int, begin: int, end: int) -> bool:
        """Whether any of the bytes from `begin` to `end` of a file is known to be unreadable."""
        runs = self._runs.get(file)
        return bool(runs) and bool(_overlapping(runs or [], begin // SECTOR_SIZE, -(-end // SECTOR_SIZE)))

    def take_new(self) -> Iterator[BadRegion]:
        """The runs added since the last call."""
        new, self._new = self._new, {}
        for file in sorted(new):
            for first, last in new[file]:
                yield BadRegion(file, first * SECTOR_SIZE, last * SECTOR_SIZE, self._why[file])


def _overlapping(runs: list[tuple[int, int]], first: int, last: int) -> list[tuple[int, int]]:
    """The runs that overlap the one from `first` to `last`."""
    found = []
    index = max(bisect_right(runs, (first, first)) - 1, 0)
    while index < len(runs) and runs[index][0] < last:
        if runs[index][1] > first:
            found.append(runs[index])
        index += 1
    return found


def _insert(runs: list[tuple[int, int]], first: int, last: int) -> None:
    """Insert a run, and merge it with those that it overlaps or touches."""
    at = bisect_right(runs, (first, first))
    begin = at - 1 if at and runs[at - 1][1] >= first else at
    end = begin
    while end < len(runs) and runs[end][0] <= last:
        first, last = min(first, runs[end][0]), max(last, runs[end][1])
        end += 1
    runs[begin:end] = [(first, last)]
