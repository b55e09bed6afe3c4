"""Which of a queue's ready takers are asked first, where that is not all of them in turn.

    priorities      those of the highest priority, in turn; the next ones while none of these is ready
    single active   one alone, as long as it is there. Then the one of the highest priority, of these the first, takes
                    over, whether it is ready or not

`Consumers.waiting`, the ring that a queue asks, has only those that are first; the other ready takers are kept here.
A queue without such consumers has no ranking, and one with them delivers to the first as any other.

A taker of priority FOREMOST takes a single message for a client that polls (basic.get). It is never the active one.

Source: RabbitMQ, "Consumer Priorities" and "Consumers" (single active consumer).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Hashable
from typing import Final

from qstore.broker.model.queues.consumer import NOT_FOR_ME, TAKEN, TAKEN_LAST, Consumer
from qstore.broker.model.queues.entry import Entry

FOREMOST: Final = 1 << 64
"""Above every priority that a protocol can express."""


class Ranking(ABC):
    """Ranks the takers of one queue.

    Args:
        waiting: the ring of those that are asked.
    """

    __slots__ = ("_waiting",)

    def __init__(self, waiting: deque[Consumer]) -> None:
        self._waiting = waiting

    @abstractmethod
    def add(self, consumer: Consumer, priority: int) -> None:
        """A taker was added, which is not ready yet."""

    @abstractmethod
    def remove(self, consumer: Consumer) -> bool:
        """A taker that is not ready was removed. Returns whether another one may be asked now that could not before."""

    @abstractmethod
    def priority(self, consumer: Consumer) -> int:
        """The priority of a taker."""

    @abstractmethod
    def ready(self, consumer: Consumer) -> None:
        """A taker is ready: put it into the ring, or keep it until it is its turn."""

    @abstractmethod
    def unready(self, consumer: Consumer) -> None:
        """A ready taker is not ready any more: forget it, wherever it is."""

    @abstractmethod
    def may_take(self, consumer: Consumer) -> bool:
        """Whether messages can go to a taker."""

    def is_behind(self, consumer: Consumer) -> bool:
        """Whether none can."""
        return not self.may_take(consumer)

    @abstractmethod
    def refill(self) -> None:
        """If the ring is empty, put those in who are next."""

    def behind(self) -> list[deque[Consumer]]:
        """The other ready takers that may be asked, in rings; those to be asked first are first."""
        return []


class Priorities(Ranking):
    """Takers with priorities; that of most is 0.

    While the ring is empty, no other taker is ready, either (`refill`).
    """

    __slots__ = ("_behind", "_given", "_top")

    def __init__(self, waiting: deque[Consumer]) -> None:
        super().__init__(waiting)
        self._given: dict[Consumer, int] = {}  # those that are not 0
        self._top = 0  # the priority of all in the ring
        self._behind: dict[int, deque[Consumer]] = {}  # lower priority -> ready takers

    @property
    def is_needed(self) -> bool:
        """Whether any taker has another priority than 0."""
        return bool(self._given)

    def add(self, consumer: Consumer, priority: int) -> None:
        """As `Ranking.add`."""
        if priority:
            self._given[consumer] = priority

    def remove(self, consumer: Consumer) -> bool:
        """As `Ranking.remove`."""
        self._given.pop(consumer, None)
        return False

    def priority(self, consumer: Consumer) -> int:
        """As `Ranking.priority`."""
        return self._given.get(consumer, 0)

    def may_take(self, consumer: Consumer) -> bool:  # noqa: ARG002 – each may
        """As `Ranking.may_take`."""
        return True

    def ready(self, consumer: Consumer) -> None:
        """As `Ranking.ready`."""
        waiting, priority = self._waiting, self.priority(consumer)
        if waiting and priority < self._top:
            self._behind.setdefault(priority, deque()).append(consumer)
            return
        if waiting and priority > self._top:
            self._behind[self._top] = deque(waiting)
            waiting.clear()
        self._top = priority
        waiting.append(consumer)

    def unready(self, consumer: Consumer) -> None:
        """As `Ranking.unready`."""
        priority = self.priority(consumer)
        if priority == self._top:
            self._waiting.remove(consumer)
            self.refill()
            return
        ring = self._behind[priority]
        ring.remove(consumer)
        if not ring:
            del self._behind[priority]

    def refill(self) -> None:
        """As `Ranking.refill`."""
        while not self._waiting and self._behind:  # a ring may have become empty (`ask`)
            self._top = max(self._behind)
            self._waiting.extend(self._behind.pop(self._top))

    def behind(self) -> list[deque[Consumer]]:
        """As `Ranking.behind`."""
        return [self._behind[priority] for priority in sorted(self._behind, reverse=True)]


class SingleActive(Ranking):
    """Takers of which one is active.

    Attributes:
        active: that one; None if there is none.
    """

    __slots__ = ("_registered", "active")

    def __init__(self, waiting: deque[Consumer]) -> None:
        super().__init__(waiting)
        self.active: Consumer | None = None
        self._registered: dict[Consumer, int] = {}  # in the order in which they came -> priority

    def add(self, consumer: Consumer, priority: int) -> None:
        """As `Ranking.add`."""
        if priority == FOREMOST:
            return
        self._registered[consumer] = priority
        if self.active is None:
            self.active = consumer

    def remove(self, consumer: Consumer) -> bool:
        """As `Ranking.remove`."""
        self._registered.pop(consumer, None)
        if consumer is not self.active:
            return False
        self.active = max(self._registered, key=self._registered.__getitem__, default=None)
        if self.active is None or not self.active.is_waiting:
            return False
        self._waiting.append(self.active)
        return True

    def priority(self, consumer: Consumer) -> int:
        """As `Ranking.priority`."""
        return self._registered.get(consumer, FOREMOST)

    def may_take(self, consumer: Consumer) -> bool:
        """As `Ranking.may_take`."""
        return consumer is self.active or consumer not in self._registered

    def refill(self) -> None:
        """As `Ranking.refill`: nobody is, before the active one has gone."""

    def ready(self, consumer: Consumer) -> None:
        """As `Ranking.ready`."""
        if self.may_take(consumer):
            self._waiting.append(consumer)

    def unready(self, consumer: Consumer) -> None:
        """As `Ranking.unready`."""
        if self.may_take(consumer):
            self._waiting.remove(consumer)


def ask(ring: deque[Consumer], count: int, entry: Entry, declined: set[Hashable]) -> bool:
    """Offer an entry to ready takers in turn. Returns whether one has taken it.

    Args:
        ring: the takers. Those that have taken or declined the entry go to its end; others that do not wait for more
            leave it.
        count: how many of them are asked.
        entry: the entry.
        declined: kinds that can never take it; those that decline it now are added.
    """
    for _ in range(count):
        consumer = ring[0]
        result = NOT_FOR_ME if consumer.kind in declined else consumer.deliver(entry)
        if result in (TAKEN, NOT_FOR_ME):
            ring.rotate(-1)
        else:
            ring.popleft()
            consumer.is_waiting = False
        if result in (TAKEN, TAKEN_LAST):
            return True
        if result == NOT_FOR_ME:
            declined.add(consumer.kind)
    return False
