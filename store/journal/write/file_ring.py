"""The order of a ring's files: which file the writer enters next, and in which lap it is.

The writer counts files through all laps. In a journal that never grew, the remainder by the number of files is the
file's number, and the quotient the lap. A ring that grows or shrinks does so while it is in use, so nothing that is
counted already may change:

    before      0    1    2    3          file 3 is the oldest that holds anything, file 1 is being written
                            ^ oldest
    insert      0    1    2    4    5    3

New files are inserted right before an *anchor*, a file that is not entered again before that is done: the oldest. They
follow the free files of the lap, and are numbered by what is free, so the order is written in the info file. Everything
from the anchor to the current file keeps its count; only free files, which have none yet, get another. Files are
removed from the free ones before the anchor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class FileRing:
    """The files of a ring in order.

    Args:
        numbers: their numbers. The first is where the overwrite indicator changes.
        origin: a file, counted over all laps, that is the first of them.
        lap: the lap that begins there; only its parity counts.

    Attributes:
        numbers: as above.
    """

    __slots__ = ("_lap", "_origin", "numbers")

    def __init__(self, numbers: Sequence[int], origin: int = 0, lap: int = 0) -> None:
        self.numbers = list(numbers)
        self._origin, self._lap = origin, lap

    def number(self, index: int) -> int:
        """The number of a file that is counted over all laps."""
        return self.numbers[(index - self._origin) % len(self.numbers)]

    def place(self, index: int) -> int:
        """Its position in the ring."""
        return (index - self._origin) % len(self.numbers)

    def indicator(self, index: int) -> int:
        """The overwrite indicator of its lap."""
        return (self._lap + (index - self._origin) // len(self.numbers)) & 1

    def insert(self, anchor: int, numbers: Sequence[int]) -> None:
        """Insert new files before the file `anchor`, counted over all laps; before the first means after the last."""
        lap, place = self.indicator(anchor), self.place(anchor)
        if place:
            self.numbers[place:place] = numbers
            place += len(numbers)
        else:
            self.numbers.extend(numbers)
        self._origin, self._lap = anchor - place, lap

    def remove(self, anchor: int, numbers: Iterable[int]) -> None:
        """Remove files that are free; `anchor` is not among them."""
        lap, kept, gone = self.indicator(anchor), self.number(anchor), set(numbers)
        self.numbers = [number for number in self.numbers if number not in gone]
        self._origin, self._lap = anchor - self.numbers.index(kept), lap

    def with_inserted(self, anchor: int, numbers: Sequence[int]) -> FileRing:
        """The ring after `insert`; this one stays as it is."""
        ring = self.copy()
        ring.insert(anchor, numbers)
        return ring

    def without(self, anchor: int, numbers: Iterable[int]) -> FileRing:
        """The ring after `remove`; this one stays as it is."""
        ring = self.copy()
        ring.remove(anchor, numbers)
        return ring

    @property
    def start(self) -> tuple[int, int]:
        """A file, counted over all laps, that is the first of `numbers`, and the lap that begins there."""
        return self._origin, self._lap

    def copy(self) -> FileRing:
        """A ring that does not change with this one."""
        return FileRing(self.numbers, self._origin, self._lap)
