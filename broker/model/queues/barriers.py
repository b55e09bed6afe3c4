"""Barriers: positions on a queue beyond which delivery must wait for the disk.

    held       appended messages whose flush has not begun: nothing is delivered from the first of them on
    barrier    held messages get a barrier when their flush begins; it is lowered when they are on the disk
    returning  many messages are being released in turns: none after the first one still to be released may overtake it

Barriers are ordered by position, and may be lowered in any order: a transaction also waits for flushes of other
journals, which may take longer. `limit` is the position of the first barrier that is not lowered.

A queue that delivers before the sync has two sets of barriers: one with all that mark unsynced messages, and one with
those of transactions, which alone stop delivery (`Queue.deliver_before_sync`).
"""

from __future__ import annotations

from typing import Final

NO_LIMIT: Final = 1 << 62


class Barrier:
    """Messages that must not be delivered before their records are on the disk.

    Attributes:
        first: position of the first of them.
        is_open: whether the barrier has been lowered.
    """

    __slots__ = ("first", "is_open")

    def __init__(self, first: int) -> None:
        self.first = first
        self.is_open = False


class Barriers:
    """The barriers of one queue.

    Attributes:
        limit: the first position that must not be delivered yet.
        held_from: the first position that was appended and whose flush has not begun; NO_LIMIT for none.
    """

    __slots__ = ("_raised", "_returning", "held_from", "limit")

    def __init__(self) -> None:
        self.limit = self.held_from = NO_LIMIT
        self._returning: dict[object, int] = {}  # release -> the first position that is not released yet
        self._raised: list[Barrier] = []  # few at a time: as many as flushes are under way

    def hold(self, position: int) -> None:
        """Hold a message that was appended, and all later ones; none is held yet."""
        self.held_from = position
        self.limit = min(self.limit, position)

    def raise_held(self) -> Barrier:
        """The flush of the held messages begins: put a barrier before them."""
        barrier = Barrier(self.held_from)
        self.held_from = NO_LIMIT
        raised = self._raised
        at = len(raised)
        while at and raised[at - 1].first > barrier.first:
            at -= 1  # a transaction's barrier, raised later
        raised.insert(at, barrier)
        return barrier

    def raise_at(self, position: int) -> Barrier:
        """Put a barrier at `position`, the end of the queue."""
        barrier = Barrier(position)
        self.share(barrier)
        return barrier

    def share(self, barrier: Barrier) -> None:
        """Put a barrier that was raised on other queues at the end of this queue."""
        self.limit = min(self.limit, barrier.first)
        self._raised.append(barrier)

    def lower(self, barrier: Barrier) -> None:
        """Lower a barrier: its records are on the disk. It need not be one of this queue."""
        barrier.is_open = True
        raised = self._raised
        while raised and raised[0].is_open:
            raised.pop(0)
        self._find_limit()

    def _find_limit(self) -> None:
        raised, returning = self._raised, self._returning
        limit = min(raised[0].first, self.held_from) if raised else self.held_from
        self.limit = min(limit, *returning.values()) if returning else limit

    def returns_from(self, release: object, position: int) -> None:
        """Note that a release of many messages continues at this position; at NO_LIMIT it is over."""
        if position == NO_LIMIT:
            self._returning.pop(release, None)
        else:
            self._returning[release] = position
        self._find_limit()

    @property
    def is_returning(self) -> bool:
        """Whether a release of many messages is under way."""
        return bool(self._returning)
