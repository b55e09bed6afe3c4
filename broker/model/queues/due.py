"""The queue of messages that wait for their delivery time (`model/schedule`): which of them is due next.

The time until which a message waits has the place of its expiration, in memory and in the store, so that it is known of
a message whose content has left memory, and after a restart without decoding its headers. The queue has no consumers,
and nothing expires on it. Each message takes some 150 bytes here, besides its entry.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from qstore.broker.model.queues.entry import UNCOMMITTED
from qstore.broker.model.queues.limits import Displacement

if TYPE_CHECKING:
    from qstore.broker.model.queues.entry import Entry
    from qstore.broker.model.queues.queue import Queue

WAITING: Final = "amq.scheduled"
"""The name of the queue, which no client can declare."""

HISTORY: Final = "amq.history."
"""Likewise, before the name of an exchange: the queue with its history (`exchanges/history`)."""


def is_brokers_own(name: str) -> bool:
    """Whether a queue of that name is the broker's own: nobody publishes to it, and no policy applies to it."""
    return name == WAITING or name.startswith(HISTORY)


class DueTimes(Displacement):
    """When the messages of the queue are due.

    Args:
        has_earlier: called when another message is due first.
    """

    __slots__ = ("_has_earlier", "_heap")

    def __init__(self, has_earlier: Callable[[], None]) -> None:
        self._has_earlier = has_earlier
        self._heap: list[tuple[float, int, Entry]] = []  # due time, position

    @property
    def refers_to_entries(self) -> bool:
        """True: it references all."""
        return True

    @property
    def first(self) -> float:
        """When the first message is due, in seconds since 1970; 0.0 if there is none."""
        return self._heap[0][0] if self._heap else 0.0

    def arrived(self, queue: Queue, entry: Entry) -> None:  # noqa: ARG002
        """Note when a message is due."""
        self.add(entry, entry.message.expires_at)

    def recovered(self, queue: Queue) -> None:
        """Note when each message is due, but for those of transactions in doubt."""
        for entry in queue.entries():
            if entry.state != UNCOMMITTED:
                self.arrived(queue, entry)

    def add(self, entry: Entry, due: float) -> None:
        """Note that a message is due at a time, in seconds since 1970."""
        heappush(self._heap, (due, entry.position, entry))
        if self._heap[0][2] is entry:
            self._has_earlier()

    def take(self, now: float) -> Entry | None:
        """Remove and return the first message that is due; of those with the same time the oldest. None for none."""
        return heappop(self._heap)[2] if self._heap and self._heap[0][0] <= now else None

    def clear(self) -> None:
        """Forget all messages: the queue was deleted."""
        self._heap.clear()
