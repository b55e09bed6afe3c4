"""Starts the source of replication, as the settings of the broker ask for it: a listener, and where its events go.

The listener is registered before the store is recovered, since messages that recovery removes from queues are told too.
Its queue or exchange may be missing: then the log says so, and events are missing until it is created.

Source: Qpid C++ Broker Book, 1.7.1.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

from qstore.broker.log.logs import log_of
from qstore.broker.model.errors import ModelError, NotFoundError
from qstore.broker.model.message import MakeMessage, Message
from qstore.broker.model.replication.listener import ReplicatingListener

if TYPE_CHECKING:
    from qstore.broker.model.broker import Broker

_LOG: Final = log_of("Broker")


def register_listener(broker: Broker, make_message: MakeMessage) -> None:
    """Have the events of queues sent, if the settings name a queue or an exchange for them."""
    settings = broker.settings

    def to_queue(event: Message) -> None:
        queue = broker.queues.get(settings.replication_queue or "")
        if queue is None or queue.is_deleted:
            raise NotFoundError(f'there is no queue "{settings.replication_queue}"; see --create-replication-queue')
        broker.router.put(event, (queue,))

    def to_exchange(event: Message) -> None:
        exchange = broker.exchanges.get(settings.replication_exchange or "")
        if exchange is None:
            raise NotFoundError(f'there is no exchange "{settings.replication_exchange}"')
        route = broker.router.route(event, exchange)
        broker.router.put(event, route.queues)
        broker.router.count(event, route)

    run = uuid.uuid4().hex
    if settings.replication_exchange:
        broker.queue_factory.events.listener = ReplicatingListener(run, to_exchange, make_message)
    elif settings.replication_queue:
        listener = ReplicatingListener(run, to_queue, make_message, settings.replication_queue)
        broker.queue_factory.events.listener = listener


async def prepare_replication(broker: Broker) -> None:
    """Create the queue or exchange for events, if it is missing. What goes wrong is logged."""
    settings = broker.settings
    exchange, queue = settings.replication_exchange, settings.replication_queue
    try:
        if exchange:
            if queue:
                _LOG.warning("--replication-queue is ignored, since --replication-exchange-name is given")
            await broker.topology.declare_exchange(exchange, settings.replication_exchange_type)
            where = f'exchange "{exchange}"'
        elif queue:
            if settings.create_replication_queue or queue in broker.queues:
                await broker.topology.declare_queue(queue)
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
