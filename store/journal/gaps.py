"""Breaks in the chain of a journal's records: the stretches that a walk skipped.

The first ones are stored with all details; of the rest, which only a forged journal has, only the log offsets.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final, NamedTuple

MAX_DESCRIBED: Final = 1000
_NOT_DESCRIBED: Final = "one of very many places where the chain of records is broken"


class Gap(NamedTuple):
    """A stretch of a journal without a valid record.

    Attributes:
        place: log offset where it begins.
        end: log offset where it ends: that of a valid record.
        rid: record id of the record at its beginning, if known.
        what: what is wrong there.
    """

    place: int
    end: int
    rid: int | None
    what: str


class Gaps:
    """The skipped stretches, in order."""

    __slots__ = ("_described", "_places")

    def __init__(self) -> None:
        self._described: list[Gap] = []
        self._places = array("Q")

    def __len__(self) -> int:
        return len(self._described) + len(self._places) // 2

    def __iter__(self) -> Iterator[Gap]:
        yield from self._described
        for index in range(0, len(self._places), 2):
            yield Gap(self._places[index], self._places[index + 1], None, _NOT_DESCRIBED)

    def add(self, gap: Gap) -> None:
        """Add a stretch."""
        if len(self._described) < MAX_DESCRIBED:
            self._described.append(gap)
        else:
            self._places.extend((gap.place, gap.end))
