"""Where the chain of a journal's records is broken: the stretches that a walk skipped.

The first of them with all that is known; of the rest, which only a forged journal has, their places alone.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final, NamedTuple

MOST_DESCRIBED: Final = 1000
_NOT_DESCRIBED: Final = "one of very many places where the chain of records is broken"


class Gap(NamedTuple):
    """A stretch of a journal's stream that holds no good record.

    Attributes:
        place: where it begins.
        end: where it ends: a good record stands there.
        rid: record id of what begins there, where it can be told.
        what: what is wrong there.
    """

    place: int
    end: int
    rid: int | None
    what: str


class Gaps:
    """The stretches that were skipped, in the order in which they were met."""

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
        """One more."""
        if len(self._described) < MOST_DESCRIBED:
            self._described.append(gap)
        else:
            self._places.extend((gap.place, gap.end))
