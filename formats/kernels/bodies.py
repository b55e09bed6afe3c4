"""Where the bodies of a run are: the columns that the kernels work on."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

_START: Final = struct.Struct("=I")

START_SIZE: Final = _START.size


class SizeField:
    """A field of a fixed number of bytes, big endian, that gives the size of the body that follows. Immutable.

    Args:
        at: its offset in the bytes before the body.
        width: its bytes: 2, 4 or 8.
        added: it gives so much more than the size of the body.
    """

    __slots__ = ("added", "at", "width")

    def __init__(self, at: int, width: int, added: int = 0) -> None:
        self.at, self.width, self.added = at, width, added

    def set_in(self, before: bytes, size: int) -> bytes:
        """The bytes before a body, for one of that size. Raises OverflowError if it does not fit."""
        return before[: self.at] + (size + self.added).to_bytes(self.width, "big") + before[self.at + self.width :]

    def read(self, data: bytes, begin: int) -> int:
        """The size of the body, from bytes before it that begin there; negative if there can be no such body."""
        at = begin + self.at
        return int.from_bytes(data[at : at + self.width], "big") - self.added

    def moved(self, by: int) -> SizeField:
        """The same field, moved by a number of bytes."""
        return SizeField(self.at + by, self.width, self.added)


def are_equal_but(field: SizeField | None, one: bytes, other: bytes) -> bool:
    """Whether two headers are equal, but for this field."""
    if field is None:
        return one == other
    end = field.at + field.width
    return one[: field.at] == other[: field.at] and one[end:] == other[end:]


class Bodies:
    """The bodies of a run, in the buffer in which they were received. Immutable.

    Body k is `data[at + starts[k] : at + starts[k + 1] - gap]`: each but the first begins `gap` bytes after the end of
    the one before it.

    Args:
        data: the buffer.
        at: what the starts count from; negative if the buffer begins with a later body.
        starts: where each body begins, and where one after the last would: 32-bit numbers in the machine's byte order.
        gap: bytes between two of them; at least 1.
        smallest, largest: bytes of the smallest and of the largest one, or beyond.

    Attributes:
        count: number of bodies.
        is_even: whether all have the same size.
    """

    __slots__ = ("at", "count", "data", "gap", "is_even", "largest", "smallest", "starts")

    def __init__(self, data: bytes, at: int, starts: bytes, gap: int, smallest: int, largest: int) -> None:
        self.data, self.at, self.starts, self.gap = data, at, starts, gap
        self.smallest, self.largest = smallest, largest
        self.count = len(starts) // START_SIZE - 1
        self.is_even = smallest == largest

    @classmethod
    def of(cls, bodies: Sequence[bytes]) -> Bodies:
        """These, one or more, in one buffer, each followed by a byte."""
        sizes = list(map(len, bodies))
        starts = array("I", accumulate([size + 1 for size in sizes], initial=0))
        return cls(b"\0".join([*bodies, b""]), 0, starts.tobytes(), 1, min(sizes), max(sizes))

    def start(self, number: int) -> int:
        """Where a body begins, by number from 0, from `at` on."""
        start: int = _START.unpack_from(self.starts, number * START_SIZE)[0]
        return start

    def body(self, number: int) -> bytes:
        """One of them."""
        begin, end = self.start(number), self.start(number + 1) - self.gap
        return self.data[self.at + begin : self.at + end]

    def message(self, before: bytes, field: SizeField | None, number: int) -> tuple[bytes, bytes]:
        """One of them with the bytes before it, in which `field` gives its size."""
        body = self.body(number)
        return before if field is None else field.set_in(before, len(body)), body

    def size(self, first: int, count: int) -> int:
        """Bytes of `count` of them together."""
        if self.is_even:
            return count * self.largest
        return self.start(first + count) - self.start(first) - count * self.gap

    def beginning(self, count: int) -> Bodies:
        """The first `count` of them, in the same buffer."""
        return self._part(self.data, self.at, 0, count)

    def copy(self, first: int, count: int) -> Bodies:
        """Some of them in a buffer of their own."""
        begin, end = self.start(first), self.start(first + count) - self.gap
        data = self.data[self.at + begin : self.at + end]
        return self._part(data, -begin, first, count)

    @staticmethod
    def joined(parts: Sequence[Bodies]) -> Bodies:
        """The bodies of several in one buffer.

        Args:
            parts: those to join, at least one. Their gaps are equal. Each has its buffer for itself, which begins with
                the first body, and ends `gap` bytes after the last.
        """
        gap, smallest, largest = parts[0].gap, parts[0].smallest, parts[0].largest
        for part in parts:
            smallest, largest = min(smallest, part.smallest), max(largest, part.largest)
        starts, end = array("I"), 0
        for part in parts:
            own = array("I")
            own.frombytes(part.starts)
            size = own.pop()
            starts.extend(own if not end else array("I", [end + start for start in own]))
            end += size
        starts.append(end)
        data = b"".join([part.data for part in parts])
        return Bodies(data, 0, starts.tobytes(), gap, smallest, largest)

    def _part(self, data: bytes, at: int, first: int, count: int) -> Bodies:
        if self.is_even and first:  # they have the distances of the first ones, whose places the kernels know (`plain`)
            at, first = at + self.start(first) - self.start(0), 0
        starts = self.starts[first * START_SIZE : (first + count + 1) * START_SIZE]
        return Bodies(data, at, starts, self.gap, self.smallest, self.largest)
