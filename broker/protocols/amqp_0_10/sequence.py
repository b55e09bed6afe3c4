"""Sets of command numbers.

On the wire a command number is a u32 that wraps. Here it is a plain int that never does: whoever reads one says near
which number it must be (`unwrap`), and whoever writes one cuts it to 32 bits (`wrap`).

What is completed is kept by the model (`broker.model.completion`); `Completed` is what a receiver tells its peer of it.

Source: AMQP 0-10, session.commands (sequence-set), RFC 1982.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from broker.model.completion import Done

Ranges: TypeAlias = tuple[tuple[int, int], ...]  # first and last, both included

_BITS: Final = 0xFFFFFFFF
_HALF: Final = 0x80000000
_ASK_AFTER: Final = 0x10000  # commands that are completed, before the peer is asked to say that it knows


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


def unwrap_completed(ranges: Iterable[tuple[int, int]], near: int) -> list[tuple[int, int]]:
    """The same for what a peer has completed, which may go back to its first command: more than half of all numbers."""
    ends = [(first, last, unwrap(last, near)) for first, last in ranges]
    return [(end - ((last - first) & _BITS), end) for first, last, end in ends]


def merge_ranges(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same numbers in ranges that go up and do not touch: to be gone through once, however a peer names them."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged


def wrap_ranges(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Ranges as they are written."""
    return tuple((first & _BITS, last & _BITS) for first, last in ranges)


def wrap(number: int) -> int:
    """A command number as it is written."""
    return number & _BITS


class Completed:
    """What a receiver tells its peer of the commands that are completed: those that the peer does not know of.

    Args:
        done: the commands that are completed.

    Attributes:
        known: the peer knows of all below this number.
    """

    __slots__ = ("_done", "known")

    def __init__(self, done: Done) -> None:
        self._done = done
        self.known = done.below

    def peer_knows(self, ranges: Iterable[tuple[int, int]]) -> None:
        """The peer has said what it knows to be completed: that need not be told again."""
        for first, last in ranges:
            if first <= self.known:
                self.known = max(self.known, min(last + 1, self._done.below))

    def ranges(self) -> list[tuple[int, int]]:
        """What there is to tell the peer."""
        done = self._done
        known = max(self.known, done.below - _HALF + 1)  # more in one range could not be told from less
        told = [(known, done.below - 1)] if done.below > known else []
        return told + done.beyond

    @property
    def wants_reply(self) -> bool:
        """Whether the peer should say what it knows, so that there is less to tell."""
        return bool(self._done.beyond) or self._done.below - self.known > _ASK_AFTER
