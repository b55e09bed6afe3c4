"""Ring queues: the oldest messages make room for new ones. They are discarded, or go to the alternate exchange.

    ring          whether or not a consumer holds the oldest message
    ring_strict   if a consumer holds the oldest message, the new one is refused with resource-limit-exceeded

A message larger than the whole ring is refused. One that is published in a transaction takes its place at the commit.
Which message is discarded first is a matter of the queue's order: of a priority queue the oldest of the lowest
priority, which may be the new message itself.

A message that goes to the alternate exchange leaves the ring once it is stored there; until then the ring holds it, but
does not count it. A crash in between leaves it at both places, and the next start moves it again. A message for which
there is no room at its destination is discarded, and so is one that another such move displaces: alternate exchanges
may lead back to the same ring.

Sources: Qpid C++ Broker Book, 1.2.1.1; MRG 2 Messaging User Guide, 3; qpidd, LossyQueue.cpp (alternate exchange).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.model.errors import ResourceLimitExceededError
from qstore.broker.model.exchanges.topic_index import MAX_STEPS
from qstore.broker.model.queues.displacement import Displacement, Displacing
from qstore.broker.model.queues.entry import ACQUIRED, AVAILABLE, Entry
from qstore.broker.model.queues.limits import Limit

if TYPE_CHECKING:
    from qstore.broker.model.message import Message
    from qstore.broker.model.queues.depth import Depth
    from qstore.broker.model.queues.fifo import Fifo


MAX_AT_ONCE: Final = 250
"""Messages that one arriving message displaces in one turn: some milliseconds if they move elsewhere."""


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
    """Discards the oldest messages beyond the limit, or moves them away.

    Args:
        limit: the limit of the queue.
        order: its order.
        divert: moves an acquired message of a queue to its alternate exchange. Returns False if there is none, or no
            room there.
    """

    __slots__ = ("_divert", "_is_diverting", "_is_shrinking", "_leaving", "_leaving_bytes", "_limit", "_order")

    def __init__(self, limit: RingLimit, order: Fifo, divert: Callable[[Any, Entry], bool]) -> None:
        self._limit, self._order, self._divert = limit, order, divert
        self._is_diverting = self._is_shrinking = False
        self._leaving: dict[Entry, None] = {}  # diverted, and still on the queue
        self._leaving_bytes = 0

    def recovered(self, queue: Displacing) -> None:
        """Displace messages until the queue is within its limit, but for what is not committed yet, or leaves it."""
        while self._displaces(queue, MAX_AT_ONCE):
            pass

    def arrived(self, queue: Displacing, entry: Entry) -> None:  # noqa: ARG002
        """As `recovered`; if one message displaces very many, the others go in turns."""
        if self._displaces(queue, MAX_AT_ONCE) and not self._is_shrinking:
            self._is_shrinking = True
            queue.do_in_turns(self._shrink(queue))

    def _shrink(self, queue: Displacing) -> Iterator[None]:
        is_unfinished = True
        while is_unfinished and not queue.is_deleted:
            yield
            is_unfinished = not queue.is_deleted and self._displaces(queue, MAX_AT_ONCE)
        self._is_shrinking = False

    def _displaces(self, queue: Displacing, most: int) -> bool:
        """Displace at most so many messages. Returns whether that was not enough."""
        before = 0
        for number in range(most):
            if not self._limit.is_exceeded(
                queue.message_count - queue.uncommitted - len(self._leaving),
                queue.message_bytes - queue.uncommitted_bytes - self._leaving_bytes,
            ):
                return False
            if number == 1:
                before = queue.moving_steps
            elif number and queue.moving_steps - before > MAX_STEPS:
                return True  # the others in another turn: routing them is expensive
            first = self._order.first_to_discard()
            if first is None or not (self._is_diverted(queue, first) or self.displace(queue, first)):
                return False
            queue.counters.discarded += 1
        return True

    def _is_diverted(self, queue: Displacing, entry: Entry) -> bool:
        """Move a message to the alternate exchange; False if it stays acquired."""
        if self._is_diverting:
            return False
        if entry.state == AVAILABLE:
            queue.acquire(entry, is_consumed=False)
        self._is_diverting = True
        self._leaving[entry] = None
        self._leaving_bytes += entry.message.size
        try:
            is_diverted = self._divert(queue, entry)
        finally:
            self._is_diverting = False
        if not is_diverted:
            self.removed(entry)
        return is_diverted

    def removed(self, entry: Entry) -> None:
        """The message does not leave the queue any more: it has left it, or is discarded instead."""
        if entry in self._leaving:
            del self._leaving[entry]
            self._leaving_bytes -= entry.message.size
