"""Ring queues: the oldest messages are discarded to make room for new ones.

    ring          whether or not a consumer holds the oldest message
    ring_strict   if a consumer holds the oldest message, the new one is refused with resource-limit-exceeded

A message larger than the whole ring is refused. One that is published in a transaction takes its place at the commit.
Which message is discarded first is a matter of the queue's order: of a priority queue the oldest of the lowest
priority, which may be the new message itself.

Sources: Qpid C++ Broker Book, 1.2.1.1; MRG 2 Messaging User Guide, 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qstore.broker.model.errors import ResourceLimitExceededError
from qstore.broker.model.queues.displacement import Displacement, Displacing
from qstore.broker.model.queues.entry import ACQUIRED
from qstore.broker.model.queues.limits import Limit

if TYPE_CHECKING:
    from qstore.broker.model.message import Message
    from qstore.broker.model.queues.depth import Depth
    from qstore.broker.model.queues.fifo import Fifo


class RingLimit(Limit):
    """Refuses messages for which no room can be made.

    Args:
        order: the order of the queue.
        max_messages, max_bytes, overhead: as of `Limit`.
        is_strict: whether messages that consumers hold are kept.
    """

    __slots__ = ("_is_strict", "_order")

    def __init__(self, order: Fifo, *, max_messages: int, max_bytes: int, overhead: int, is_strict: bool) -> None:
        super().__init__(max_messages=max_messages, max_bytes=max_bytes, overhead=overhead)
        self._order, self._is_strict = order, is_strict

    def check(self, queue: Depth, message: Message) -> None:
        """Raise ResourceLimitExceededError if there can be no room for the message."""
        if self.is_exceeded(1, message.size):
            self.refused += 1
            size = f"{message.size} of {self.max_bytes} bytes"
            raise ResourceLimitExceededError(f'Message larger than the maximum depth of queue "{queue.name}": {size}')
        self.check_all(queue, 1, message.size)

    def check_all(self, queue: Depth, count: int, size: int) -> None:
        """Raise ResourceLimitExceededError if a consumer holds a message that would have to go, and the ring is strict.

        Args:
            queue: the queue.
            count: how many messages are to be enqueued.
            size: bytes of their headers and content.
        """
        if not self._is_strict or not self.is_exceeded(queue.message_count + count, queue.message_bytes + size):
            return
        first = self._order.first_to_discard()
        if first is not None and first.state == ACQUIRED:
            self.refused += count
            why = "a consumer holds its oldest message"
            raise ResourceLimitExceededError(f'Maximum depth exceeded on queue "{queue.name}": {why}')


class Ring(Displacement):
    """Discards the oldest messages beyond the limit.

    Args:
        limit: the limit of the queue.
        order: its order.
    """

    __slots__ = ("_limit", "_order")

    def __init__(self, limit: RingLimit, order: Fifo) -> None:
        self._limit, self._order = limit, order

    def recovered(self, queue: Displacing) -> None:
        """Discard messages until the queue is within its limit, but for what is not committed yet."""
        while self._limit.is_exceeded(
            queue.message_count - queue.uncommitted, queue.message_bytes - queue.uncommitted_bytes
        ):
            first = self._order.first_to_discard()
            if first is None or not self.displace(queue, first):
                return
            queue.counters.discarded += 1
