"""Where on a queue delivery has to stop, because what stands there is not on the disk.

    held       messages that were written, and whose flush has not begun: from the first of them on nothing is delivered
    barrier    what was held becomes one when its flush begins; it is lowered when that is on the disk

Barriers stand in the order of the positions where they begin, and are lowered in any: another journal's flush, which a
transaction waits for as well, may take longer. `limit` is where the first begins that still stands.
"""

from __future__ import annotations

from collections import deque
from typing import Final

NO_LIMIT: Final = 1 << 62


class Barrier:
    """Messages that are not to be delivered before something is on the disk.

    Attributes:
        first: position of the first of them.
        is_open: whether it is.
    """

    __slots__ = ("first", "is_open")

    def __init__(self, first: int) -> None:
        self.first = first
        self.is_open = False


class Barriers:
    """The barriers of one queue.

    Attributes:
        limit: the first position that may not be delivered yet.
    """

    __slots__ = ("_held_from", "_standing", "limit")

    def __init__(self) -> None:
        self.limit = self._held_from = NO_LIMIT
        self._standing: deque[Barrier] = deque()

    def hold(self, position: int) -> None:
        """A message was written: it, and what follows, is held."""
        if self._held_from == NO_LIMIT:
            self._held_from = position
            if self.limit == NO_LIMIT:
                self.limit = position

    def raise_held(self) -> Barrier:
        """What is held is on its way to the disk."""
        barrier = Barrier(self._held_from)
        self._held_from = NO_LIMIT
        standing = self._standing
        at = len(standing)
        while at and standing[at - 1].first > barrier.first:
            at -= 1  # of a transaction, which came later
        standing.insert(at, barrier)
        return barrier

    def raise_at(self, position: int) -> Barrier:
        """What comes at `position`, the end of the queue, and after it, is waited for."""
        barrier = Barrier(position)
        self.limit = min(self.limit, position)
        self._standing.append(barrier)
        return barrier

    def lower(self, barrier: Barrier) -> None:
        """What the barrier was for is on the disk."""
        barrier.is_open = True
        standing = self._standing
        while standing and standing[0].is_open:
            standing.popleft()
        self.limit = min(standing[0].first, self._held_from) if standing else self._held_from
