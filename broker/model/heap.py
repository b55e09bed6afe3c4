"""Returns the memory of messages that are gone to the system.

glibc keeps freed memory, and gives back only what is at the end of its heap, where something that is still in use is
enough to prevent that. So what a backlog of 5,000,000 messages took while it was out of memory, about 28 bytes each,
stayed with the process after it was drained. `malloc_trim` returns every free page.

It blocks the event loop, for about 0.07 ms for each MiB returned, and so does `mallinfo`, which tells how much is free,
for 0.13 us for each free chunk. So both are called seldom, and take little of the time, measured as processor time of
this thread:

    step        when                                                                      then not again for
    ----------  ------------------------------------------------------------------------  ------------------------------
    resident    each look                                                                 -
    allocated   `STEP` more is resident than was at the least                             5,000 times as long as it took
    trim        `STEP` is free, and so much more is resident without being in use than    300 times as long as it took
                was at the least since the last trim

A trim that returned little, because what is free is in pieces smaller than a page, counts as the second.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from qstore.broker.model.allocator import Allocated, allocated, trim
from qstore.broker.model.memory import resident_bytes

STEP: Final = 16 << 20
"""Bytes that are worth it."""

_PAUSE_ALLOCATED: Final = 5000
_PAUSE_TRIM: Final = 300


class Heap:
    """The memory of this process.

    Args:
        resident: returns the resident bytes.
        told: returns what the allocator tells.
        give_back: returns free memory to the system.
        clock: returns seconds.
        cost: returns seconds of processor time.
    """

    __slots__ = (
        "_clock",
        "_cost",
        "_give_back",
        "_least_resident",
        "_least_unused",
        "_not_before",
        "_resident",
        "_told",
    )

    def __init__(
        self,
        resident: Callable[[], int] = resident_bytes,
        told: Callable[[], Allocated] = allocated,
        give_back: Callable[[], None] = trim,
        clock: Callable[[], float] = time.monotonic,
        cost: Callable[[], float] = time.thread_time,
    ) -> None:
        self._resident, self._told, self._give_back, self._clock, self._cost = resident, told, give_back, clock, cost
        self._least_resident = resident()
        self._least_unused = self._unused(told(), self._least_resident)
        self._not_before = clock()

    def look(self) -> bool:
        """Return free memory if there is enough of it. Call it about every second. Returns whether it was tried."""
        resident = self._resident()
        self._least_resident = min(self._least_resident, resident)
        if resident - self._least_resident < STEP or self._clock() < self._not_before:
            return False
        began = self._cost()
        known = self._told()
        unused = self._unused(known, resident)
        self._least_unused = min(self._least_unused, unused)
        if min(known.fordblks or 0, unused - self._least_unused) < STEP:
            self._pause(began, _PAUSE_ALLOCATED)
            return False
        began = self._cost()
        self._give_back()
        left = self._resident()
        self._least_unused = self._unused(self._told(), left)
        self._pause(began, _PAUSE_TRIM if resident - left >= STEP // 2 else _PAUSE_ALLOCATED)
        return True

    @staticmethod
    def _unused(known: Allocated, resident: int) -> int:
        """Resident bytes that are not in use by what the allocator knows: free ones, and those of others."""
        return resident - (known.uordblks or 0) - (known.hblkhd or 0)

    def _pause(self, began: float, factor: int) -> None:
        self._not_before = self._clock() + (self._cost() - began) * factor
