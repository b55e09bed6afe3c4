"""The way of a message from an exchange to queues: all of them take it, or none.

    queues = what the exchange finds; if it finds none, what its alternate exchange does
    room   = in all of them, or the publisher is refused
    put    = one record in the journal of each queue that keeps it, and the message on every queue

What is on a queue already moves the same way, to an alternate exchange: it leaves its queue when it is kept where it
goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker.model.errors import InternalError, ResourceLimitExceededError
from broker.model.exchanges.exchange import Exchange
from broker.model.message import Message
from broker.model.queues.entry import ACQUIRED, LEAVING, Entry
from broker.model.queues.queue import Alternate, Queue, Routed
from broker.model.store_protocol import Store
from broker.model.turn import Turn


class Router:
    """Publishes and moves the messages of one broker.

    Args:
        store: what keeps durable messages; None if nothing is kept.
        turn: is told which queues and journals were written to.

    Attributes:
        unroutable: how many messages were dropped since there was no queue for them.
    """

    def __init__(self, store: Store | None, turn: Turn) -> None:
        self._store, self._turn = store, turn
        self.unroutable = 0
        self._store_errors: tuple[type[Exception], ...] = () if store is None else store.errors

    def publish(self, message: Message, exchange: Exchange) -> bool:
        """Put a message on the queues that an exchange finds for it, on all of them or none.

        Returns:
            Whether it is promised only when what was written in this turn is on the disk.

        Raises:
            ResourceLimitExceededError: a queue has no room for it.
            InvalidArgumentError: the exchange numbers messages, and cannot read this one's headers.
            InternalError: a journal cannot be written.
        """
        if not exchange.routes_by_key:
            return self.publish_to(message, exchange, self.route(message, exchange))
        route = exchange.routes.get(message.routing_key)
        if route is None:
            route = exchange.find(message.routing_key)
        queue = route.sole
        if queue is None:
            return self.publish_to(message, exchange, self._or_alternate(message, exchange, route))
        try:  # as `publish_to`, which would be one more call for every message
            is_promised = queue.publish(message)
        except self._store_errors as error:
            raise InternalError(str(error)) from error
        route.messages += 1
        route.bytes += message.size
        return is_promised

    def route(self, message: Message, exchange: Alternate) -> Routed:
        """Where a message goes: to the queues of the exchange, or else of its alternate exchange.

        Whoever sends it there counts it (`count`).
        """
        return self._or_alternate(message, exchange, exchange.route(message))

    @staticmethod
    def _or_alternate(message: Message, exchange: Alternate, route: Routed) -> Routed:
        """The route, or, if there are no queues, that of the alternate exchange: then this one has dropped it."""
        if route.queues or exchange.alternate is None or message.handling.discards_unroutable:
            return route
        route.count(message.size)
        return exchange.alternate.route(message)

    def count(self, message: Message, route: Routed) -> None:
        """A message has gone where it was routed to."""
        route.count(message.size)
        if not route.queues:
            self.unroutable += 1

    def route_immediate(self, message: Message, exchange: Exchange) -> Routed:
        """As `route`, for a message that is immediate.

        Unless all these queues have a consumer that can take it now, it counts as one that no queue wants. Source: AMQP
        0-10, delivery-properties, immediate. (qpidd does not look at that bit.)
        """
        route = exchange.route(message)
        if not all(queue.has_taker() for queue in route.queues):
            route = exchange.no_route
        return self._or_alternate(message, exchange, route)

    def publish_to(self, message: Message, exchange: Exchange, route: Routed) -> bool:
        """As `publish`, by a route that was found before."""
        sent = exchange.sent
        if sent is not None:
            message = sent.number(message)
        is_promised = self.put(message, route.queues)
        if sent is not None:
            sent.keep(message)
        self.count(message, route)
        return is_promised

    def put(self, message: Message, queues: Sequence[Queue]) -> bool:
        """Put a message on these queues, on all of them or none. Returns and raises as `publish`."""
        try:
            if len(queues) == 1:
                return queues[0].publish(message)
            return self._publish_to_all(message, queues)
        except self._store_errors as error:
            raise InternalError(str(error)) from error

    def _publish_to_all(self, message: Message, queues: Sequence[Queue]) -> bool:
        for queue in queues:
            queue.check_room(message)
        kept = [queue for queue in queues if queue.keeps(message)]
        if not kept:
            for queue in queues:
                if queue.admits(message):
                    queue.add(message, 0)
            return False
        assert self._store is not None
        parts, size, crc = message.stored_form()
        try:
            rids = self._store.append.enqueue_all([queue.journal for queue in kept], parts, size, crc)
        except self._store.full_error as error:
            raise ResourceLimitExceededError(str(error)) from error
        by_queue = dict(zip(kept, rids, strict=True))
        for queue in queues:
            rid = by_queue.get(queue, 0)
            if rid:
                queue.add_held(message, rid)
            elif queue.admits(message):
                queue.add(message, 0)
        return True

    def move(self, queue: Queue, entry: Entry, exchange: Alternate, done: Callable[[Exception | None], None]) -> None:
        """Move an acquired message to where an exchange sends it: it leaves its queue when it is kept there.

        If it is being moved already, or gone, nothing happens.

        Raises:
            As `publish`. Then it is still acquired.
        """
        if entry.state != ACQUIRED:
            done(None)
            return
        route = self.route(entry.message, exchange)
        is_held = self.put(entry.message, route.queues)
        self.count(entry.message, route)
        entry.state = LEAVING
        self._turn.schedule()

        def leave(error: Exception | None) -> None:
            is_written = False
            entry.state = ACQUIRED
            if error is None and not queue.is_deleted:
                try:
                    is_written = queue.dequeue(entry)
                except InternalError as failure:
                    error = InternalError(str(failure))  # not the one that has passed this frame, which keeps it
            if is_written:
                self._turn.when_synced(done)
            else:
                done(error)

        if is_held and entry.rid:
            self._turn.when_synced(leave)
        else:
            leave(None)
