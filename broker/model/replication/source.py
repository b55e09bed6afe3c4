"""The source of replication: puts an event on the replication queue for each message of a replicated queue.

    qpid.queue_event_generation   events
    ----------------------------  --------------------------------
    1                             of enqueued messages
    2                             of enqueued and dequeued messages

Events are put there in the order in which they happen, each with its number. A message published in a transaction
counts as enqueued at its commit; recovered messages get no second event. An event of a persistent message is
persistent, so that a durable replication queue keeps it. Publishers do not wait for events: if one cannot be put on the
replication queue, the log says that events are missing, and how many, once it is possible again.

The listener is registered before the store is recovered, since messages that recovery removes from queues have events
too. If its queue or exchange is missing, this is logged, and events are missing until it is created.

Sources: Qpid C++ Broker Book, 1.7.1; MRG Messaging User Guide, queue state replication.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from qstore.broker.log.logs import log_of
from qstore.broker.model.errors import ModelError, NotFoundError
from qstore.broker.model.message import MakeMessage, Message, NewMessage
from qstore.broker.model.queues.limits import Displacement
from qstore.broker.model.replication.events import DEQUEUED, ENQUEUED, Event, MessageId
from qstore.formats.values import TypedMap

if TYPE_CHECKING:
    from qstore.broker.model.broker import Broker
    from qstore.broker.model.queues.entry import Entry
    from qstore.broker.model.queues.queue import Queue

_LOG: Final = log_of("Broker")


class ReplicatingListener:
    """Makes and sends events.

    Args:
        source: identifies this run of the broker.
        send: puts an event on the replication queue. Raises ModelError.
        make_message: encodes messages.
        queue: the name of the replication queue, which itself has no events; None if an exchange gets the events.
    """

    def __init__(
        self, source: str, send: Callable[[Message], None], make_message: MakeMessage, queue: str | None = None
    ) -> None:
        self._source, self._send, self._make_message, self._queue = source, send, make_message, queue
        self._number = 0
        self._missing = 0
        self._is_sending = False

    def enqueued(self, queue: str, entry: Entry) -> None:
        """Send the event that a message was enqueued."""
        if not self._is_sending and queue != self._queue:
            self._deliver(ENQUEUED, queue, entry)

    def dequeued(self, queue: str, entry: Entry) -> None:
        """Send the event that a message was dequeued."""
        if not self._is_sending and queue != self._queue:
            self._deliver(DEQUEUED, queue, entry)

    def _deliver(self, kind: int, queue: str, entry: Entry) -> None:
        self._is_sending = True  # a queue that the exchange routes to may itself generate events
        try:
            self._send(self._event(kind, queue, entry))
        except (ModelError, MemoryError) as error:
            self._missing += 1
            if self._missing == 1:
                _LOG.error('Events are missing from replication, the first of queue "%s": %s', queue, error)
        else:
            if self._missing:
                _LOG.error("%d events are missing from replication; it continues with the next ones", self._missing)
                self._missing = 0
        finally:
            self._is_sending = False

    def _event(self, kind: int, queue: str, entry: Entry) -> Message:
        self._number += 1
        message, rid, position = entry.message, entry.rid, entry.position
        identity = MessageId("", rid) if rid else MessageId(self._source, position)
        headers = Event(kind, queue, identity, self._source, self._number).headers(position)
        if kind == ENQUEUED:
            return message.with_headers(headers)
        present = {name: value for name, value in headers.items() if value is not None}
        return self._make_message(NewMessage(queue, TypedMap(tuple(present.items())), message.is_persistent))


class EventGeneration(Displacement):
    """Sends the events of one queue's messages; displaces none.

    Args:
        name: the name of the queue.
        listener: sends them.
        with_dequeues: whether dequeued messages have events, too.
    """

    __slots__ = ("_listener", "_name", "_with_dequeues", "_withdrawn")

    def __init__(self, name: str, listener: ReplicatingListener, *, with_dequeues: bool) -> None:
        self._name, self._listener, self._with_dequeues = name, listener, with_dequeues
        self._withdrawn: Entry | None = None  # is about to be removed

    def arrived(self, queue: Queue, entry: Entry) -> None:  # noqa: ARG002
        """Send the event that a message was enqueued."""
        self._listener.enqueued(self._name, entry)

    def recovered(self, queue: Queue) -> None:
        """Nothing to do: messages from before the start already had their events."""

    def withdrawn(self, entry: Entry) -> None:
        """Note a message that never had an event, so that its removal has none either."""
        self._withdrawn = entry

    def removed(self, entry: Entry) -> None:
        """Send the event that a message was dequeued."""
        was_withdrawn, self._withdrawn = entry is self._withdrawn, None
        if self._with_dequeues and not was_withdrawn:
            self._listener.dequeued(self._name, entry)


def register_listener(broker: Broker, make_message: MakeMessage) -> None:
    """Register the listener that sends the events of queues, if the settings name a queue or an exchange for them.

    Call this before there are queues.
    """
    settings, host = broker.settings, broker.default_host

    def to_queue(event: Message) -> None:
        queue = host.queues.get(settings.replication_queue or "")
        if queue is None or queue.is_deleted:
            raise NotFoundError(f'there is no queue "{settings.replication_queue}"; see --create-replication-queue')
        broker.router.put(event, (queue,))

    def to_exchange(event: Message) -> None:
        exchange = host.exchanges.get(settings.replication_exchange or "")
        if exchange is None:
            raise NotFoundError(f'there is no exchange "{settings.replication_exchange}"')
        route = broker.router.route(event, exchange)
        broker.router.put(event, route.queues)
        broker.router.count(event, route)

    run = uuid.uuid4().hex
    if settings.replication_exchange:
        broker.queue_factory.listener = ReplicatingListener(run, to_exchange, make_message)
    elif settings.replication_queue:
        listener = ReplicatingListener(run, to_queue, make_message, settings.replication_queue)
        broker.queue_factory.listener = listener


async def prepare_replication(broker: Broker) -> None:
    """Create the queue or exchange for events, if it is missing. Errors are logged."""
    settings, host = broker.settings, broker.default_host
    exchange, queue = settings.replication_exchange, settings.replication_queue
    try:
        if exchange:
            if queue:
                _LOG.warning("--replication-queue is ignored, since --replication-exchange-name is given")
            await host.topology.declare_exchange(exchange, settings.replication_exchange_type)
            where = f'exchange "{exchange}"'
        elif queue:
            if settings.create_replication_queue or queue in host.queues:
                await host.topology.declare_queue(queue)
            else:
                raise NotFoundError(f'there is no queue "{queue}"; create it, or see --create-replication-queue')
            where = f'queue "{queue}"'
        else:
            return
    except ModelError as error:
        _LOG.error("Events of replicated queues cannot be sent: %s", error)
        return
    _LOG.notice(
        'Event listener "%s" registered: events of replicated queues go to %s', settings.replication_listener, where
    )
