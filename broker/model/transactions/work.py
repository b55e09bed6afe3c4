"""The messages published and accepted in a transaction that has not taken effect.

Published messages are on no queue, and accepted messages stay acquired. Messages are routed when they are published; a
queue that is deleted before the commit gets none.

Each queue counts the transactions that it takes part in: from the first message that one publishes to it, or accepts
from it, until the outcome (`count_end`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from qstore.broker.model.errors import NotImplementedByBrokerError, ResourceLimitExceededError
from qstore.broker.model.exchanges.exchange import Exchange, SentMessages
from qstore.broker.model.exchanges.route import Routed
from qstore.broker.model.memory import MESSAGE_OVERHEAD
from qstore.broker.model.message import Message
from qstore.broker.model.queues.entry import Entry
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.queues.stream import Stream
from qstore.broker.model.settlement import AT_ONCE

if TYPE_CHECKING:
    from qstore.broker.model.memory import MemoryCeiling
    from qstore.broker.model.router import Router


LARGE_BYTES: Final = 4 * 1024 * 1024
"""Bytes of a transaction's messages above which it is committed in turns: written in one turn, they take some 0.4 ms a
MiB."""

QUEUES_AT_ONCE: Final = 100
"""Queues that a transaction changes in one turn: with their journals, some 10 ms (`tests/bench/bench_turns`)."""


class Work:
    """The work of one transaction.

    Args:
        router: finds the queues for messages.
        ceiling: counts its growth.
        max_bytes: memory that the messages published in it may take; 0 for no limit.

    Attributes:
        messages: the published messages.
        routes: the queues of each of them.
        sent: index in `messages` -> the numbering of its exchange, if it has one.
        accepted: entry -> its queue.
        memory: bytes of memory that the published messages take.
    """

    __slots__ = (
        "_ceiling", "_dequeuing", "_enqueuing", "_last_accepted", "_last_route", "_max_bytes", "_places", "_router",
        "accepted", "memory", "messages", "routes", "sent",
    )  # fmt: skip

    def __init__(self, router: Router, ceiling: MemoryCeiling, max_bytes: int) -> None:
        self._router, self._ceiling, self._max_bytes = router, ceiling, max_bytes
        self.messages: list[Message] = []
        self.routes: list[Sequence[Queue]] = []
        self.sent: dict[int, SentMessages] = {}
        self.accepted: dict[Entry, Queue] = {}
        self.memory = 0
        self._places = 0  # places that the published messages will take on queues
        self._enqueuing: dict[Queue, None] = {}  # queues that count it
        self._dequeuing: dict[Queue, None] = {}
        self._last_route: Sequence[Queue] = ()
        self._last_accepted: Queue | None = None

    def publish(self, message: Message, exchange: Exchange) -> None:
        """Publish a message at commit, to the queues that it is routed to now.

        Raises:
            ResourceLimitExceededError: the transaction is too large.
            NotImplementedByBrokerError: it is routed to a stream.
        """
        if exchange.routes_by_key:  # the usual case: messages are neither taken nor numbered
            route = exchange.route(message)
            if route.sole is not None and not message.under_further_keys():
                self._add(message, route.queues)
                route.count(message.size)
                return
        self.publish_to(message, exchange, self._router.route(message, exchange))

    def publish_to(self, message: Message, exchange: Exchange, route: Routed) -> None:
        """As `publish`, with a known route. The message is counted as routed even if the transaction fails.

        Raises:
            ResourceLimitExceededError: the transaction is too large.
            ModelError: the exchange takes messages at once, and has failed to.
        """
        if exchange.receiver is not None and exchange.receiver.takes(message):
            exchange.receiver.check_transaction()
            placed = exchange.receiver.placed(message)
            if placed is not None:
                self._add(*placed)
                return
            self._router.publish_to(message, exchange, route)
            return
        sent = exchange.sent
        self._add(message, route.queues if sent is None else sent.keeping(message, route.queues))
        if sent is not None:
            self.sent[len(self.messages) - 1] = sent
        self._router.count(message, route)

    def _add(self, message: Message, queues: Sequence[Queue]) -> None:
        if queues is not self._last_route:
            self.enqueues_to(queues)
            self._last_route = queues
        size = message.size + MESSAGE_OVERHEAD
        self.memory += size
        self._ceiling.grown += size
        if self._max_bytes and self.memory > self._max_bytes:
            raise ResourceLimitExceededError(f"the transaction is larger than {self._max_bytes} bytes")
        self.messages.append(message)
        self.routes.append(queues)
        self._places += len(queues)

    def enqueues_to(self, queues: Sequence[Queue]) -> None:
        """Have queues count it. Raises NotImplementedByBrokerError if one is a stream."""
        for queue in queues:
            if isinstance(queue, Stream):
                raise NotImplementedByBrokerError(f'stream "{queue.name}" takes no messages of transactions')
        for queue in queues:
            if queue not in self._enqueuing:
                self._enqueuing[queue] = None
                queue.counters.enqueue_begun()

    def dequeues_from(self, queue: Queue) -> None:
        """Have a queue count it."""
        if queue not in self._dequeuing:
            self._dequeuing[queue] = None
            queue.counters.dequeue_begun()

    def count_end(self, *, is_committed: bool) -> None:
        """Have its queues count its outcome; called again, it changes nothing."""
        for queue in self._enqueuing:
            if queue.counters.enqueuing is not None:
                queue.counters.enqueuing.ended(is_committed=is_committed)
        for queue in self._dequeuing:
            if queue.counters.dequeuing is not None:
                queue.counters.dequeuing.ended(is_committed=is_committed)
        self._enqueuing, self._dequeuing, self._last_route, self._last_accepted = {}, {}, (), None

    def accept(self, queue: Queue, entry: Entry) -> None:
        """Dequeue an acquired message at commit; one of a stream, which stays, is accepted at once."""
        if queue is not self._last_accepted:
            if isinstance(queue, Stream):
                queue.accepted(entry)
                return
            self.dequeues_from(queue)
            self._last_accepted = queue
        self.accepted[entry] = queue

    def withdraw(self, entry: Entry) -> None:
        """Cancel the acceptance of a message, if it was accepted."""
        self.accepted.pop(entry, None)

    @property
    def is_large(self) -> bool:
        """Whether it is committed or discarded in turns."""
        operations = self._places + len(self.accepted)
        if operations > AT_ONCE or self.memory > LARGE_BYTES:
            return True
        return operations > QUEUES_AT_ONCE and self._is_for_many_queues

    @property
    def _is_for_many_queues(self) -> bool:
        """Whether it changes more queues than one turn should: each journal costs as much as some twenty messages."""
        queues = set(self.accepted.values())
        last: Sequence[Queue] = ()
        for route in self.routes:
            if route is not last:
                queues.update(route)
                last = route
        return len(queues) > QUEUES_AT_ONCE

    def clear(self) -> None:
        """Forget all messages."""
        self.messages, self.routes, self.sent, self.accepted, self.memory = [], [], {}, {}, 0
        self._places = 0
