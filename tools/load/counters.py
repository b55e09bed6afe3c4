"""The numbers of a run: one row for each process, in memory that all of them share.

A process writes only its own row, and the process that began the run also the `State`; everybody reads everything. So
nothing is locked, and a sum may be a moment old.
"""

from __future__ import annotations

import mmap
import time
from enum import IntEnum, auto

from qstore.tools.load.latencies import BUCKETS


class Cell(IntEnum):
    """The numbers of a row; the latencies follow."""

    PUBLISHED = 0
    CONFIRMED = auto()
    REFUSED = auto()
    RETURNED = auto()
    CONSUMED = auto()
    OTHERS = auto()
    """Consumed messages whose latency is not known: they are not of this run."""
    READY = auto()
    FINISHED = auto()
    """Publishers that have reached their limits."""
    LAST_NS = auto()
    """When a message was last published, confirmed or consumed, on the monotonic clock."""
    PROCESSOR_NS = auto()
    LATENCIES = auto()


class State(IntEnum):
    """What the process that began the run tells the others."""

    BEGAN_NS = 0
    """When publishers may begin, on the clock of the time stamps; 0 before."""
    IS_OVER = auto()
    SIZE = auto()


_ROW = Cell.LATENCIES + BUCKETS


class Row:
    """The numbers of one process; see `Cell`.

    Attributes:
        cells: its numbers.
        latencies: the counts of latencies (`latencies`).
    """

    def __init__(self, cells: memoryview[int]) -> None:
        self.cells = cells
        self.latencies = cells[Cell.LATENCIES :]

    def touch(self) -> None:
        """Note that something has happened."""
        self.cells[Cell.LAST_NS] = time.monotonic_ns()


class Counters:
    """The numbers of a run.

    Args:
        processes: how many processes there are.
        clients: how many publishers and consumers.

    Attributes:
        rows: one for each process.
        state: see `State`.
        ended_ns: when each client has reached its limit, on the monotonic clock; 0 before.
    """

    def __init__(self, processes: int, clients: int = 0) -> None:
        rows_end = State.SIZE + processes * _ROW
        memory = memoryview(mmap.mmap(-1, 8 * (rows_end + clients))).cast("q")
        self.ended_ns = memory[rows_end : rows_end + clients]
        self.state = memory[: State.SIZE]
        self.rows = [
            Row(memory[State.SIZE + number * _ROW : State.SIZE + (number + 1) * _ROW]) for number in range(processes)
        ]

    def total(self, cell: Cell) -> int:
        """The sum of a number over all processes."""
        return sum(row.cells[cell] for row in self.rows)

    def latencies(self) -> list[int]:
        """The counts of latencies of all processes."""
        return [sum(counts) for counts in zip(*(row.latencies for row in self.rows), strict=True)]

    @property
    def last_ns(self) -> int:
        """When something last happened."""
        return max(row.cells[Cell.LAST_NS] for row in self.rows)
