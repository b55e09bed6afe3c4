"""Sets of command numbers.

On the wire a command number is a u32 that wraps. Here it is an int that does not: `unwrap` maps a wire number to the
one nearest to a known number, and `wrap` cuts it to 32 bits.

The model tracks which commands are completed (`broker.model.completion`); `Completed` tracks what the peer knows of it.

Source: AMQP 0-10, session.commands (sequence-set), RFC 1982.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from qstore.broker.model.completion import Done

Ranges: TypeAlias = tuple[tuple[int, int], ...]  # first and last, both inclusive

_BITS: Final = 0xFFFFFFFF
_HALF: Final = 0x80000000
_ASK_AFTER: Final = 0x10000  # completed commands after which the peer is asked for known-completed


def unwrap(number: int, near: int) -> int:
    """The command number nearest to `near` that equals `number` in its low 32 bits."""
    return near + ((number - near + _HALF) & _BITS) - _HALF


def unwrap_ranges(ranges: Iterable[tuple[int, int]], near: int) -> list[tuple[int, int]]:
    """The same for ranges. Ranges that end before they begin are ignored."""
    found = []
    for first, last in ranges:
        begin, end = unwrap(first, near), unwrap(last, near)
        if begin <= end:
            found.append((begin, end))
    return found


def unwrap_completed(ranges: Iterable[tuple[int, int]], near: int) -> list[tuple[int, int]]:
    """The same for session.completed, whose ranges may span more than half of all numbers."""
    ends = [(first, last, unwrap(last, near)) for first, last in ranges]
    return [(end - ((last - first) & _BITS), end) for first, last, end in ends]


def merge_ranges(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same numbers in ascending ranges that are not adjacent, however the peer has sent them."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged


def wrap_ranges(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Ranges in their wire form."""
    return tuple((first & _BITS, last & _BITS) for first, last in ranges)


def wrap(number: int) -> int:
    """A command number in its wire form."""
    return number & _BITS


class Completed:
    """The completions that a receiver has to report: those that the peer does not know of.

    Args:
        done: the completed commands.

    Attributes:
        known: the peer knows that all below this number are completed.
    """

    __slots__ = ("_done", "known")

    def __init__(self, done: Done) -> None:
        self._done = done
        self.known = done.below

    def peer_knows(self, ranges: Iterable[tuple[int, int]]) -> None:
        """The peer knows these completions: they need not be reported again."""
        for first, last in ranges:
            if first <= self.known:
                self.known = max(self.known, min(last + 1, self._done.below))

    def ranges(self) -> list[tuple[int, int]]:
        """The completions to report."""
        done = self._done
        known = max(self.known, done.below - _HALF + 1)  # a longer range would be ambiguous
        below = [(known, done.below - 1)] if done.below > known else []
        return below + done.beyond

    @property
    def wants_reply(self) -> bool:
        """Whether to request known-completed, so that later reports are shorter."""
        return bool(self._done.beyond) or self._done.below - self.known > _ASK_AFTER
