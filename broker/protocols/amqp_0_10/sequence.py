"""Sets of command numbers.

On the wire a command number is a u32 that wraps. Here it is a plain int that never does: whoever reads one says near
which number it must be (`unwrap`), and whoever writes one cuts it to 32 bits (`wrap`).

`Completed` is what a receiver tells its peer: nearly always all commands below some number, so that is what it keeps,
and apart from it the few ranges above.

Source: AMQP 0-10, session.commands (sequence-set), RFC 1982.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

Ranges: TypeAlias = tuple[tuple[int, int], ...]  # first and last, both included

_BITS: Final = 0xFFFFFFFF
_HALF: Final = 0x80000000


def unwrap(number: int, near: int) -> int:
    """The command number that is `number` in its low 32 bits and lies nearest to `near`."""
    return near + ((number - near + _HALF) & _BITS) - _HALF


def unwrap_ranges(ranges: Iterable[tuple[int, int]], near: int) -> list[tuple[int, int]]:
    """The same for ranges. One that ends before it begins is left out."""
    found = []
    for first, last in ranges:
        begin, end = unwrap(first, near), unwrap(last, near)
        if begin <= end:
            found.append((begin, end))
    return found


def wrap_ranges(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Ranges as they are written."""
    return tuple((first & _BITS, last & _BITS) for first, last in ranges)


def wrap(number: int) -> int:
    """A command number as it is written."""
    return number & _BITS


class Completed:
    """The commands that are completed.

    Attributes:
        below: all commands below this number are completed.
        known: the peer knows of all below this number.
    """

    __slots__ = ("_beyond", "below", "known")

    def __init__(self, below: int = 0) -> None:
        self.below = self.known = below
        self._beyond: list[tuple[int, int]] = []

    def add(self, first: int, last: int) -> None:
        """Commands `first` to `last` are completed."""
        if first <= self.below and not self._beyond:
            self.below = max(self.below, last + 1)
            return
        merged: list[tuple[int, int]] = []
        for begin, end in self._beyond:
            if end + 1 < first or last + 1 < begin:
                merged.append((begin, end))
            else:
                first, last = min(first, begin), max(last, end)
        merged.append((first, last))
        merged.sort()
        while merged and merged[0][0] <= self.below:
            self.below = max(self.below, merged.pop(0)[1] + 1)
        self._beyond = merged

    def peer_knows(self, ranges: Iterable[tuple[int, int]]) -> None:
        """The peer has said what it knows to be completed: that need not be told again."""
        for first, last in ranges:
            if first <= self.known:
                self.known = max(self.known, min(last + 1, self.below))

    def ranges(self) -> list[tuple[int, int]]:
        """What there is to tell the peer."""
        told = [(self.known, self.below - 1)] if self.below > self.known else []
        return told + self._beyond

    @property
    def has_gaps(self) -> bool:
        """Whether a command is completed after one that is not."""
        return bool(self._beyond)
