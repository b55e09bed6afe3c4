"""The operational log's lines about events: one for each kind."""

from __future__ import annotations

from typing import Final

from broker.log.client_properties import described
from broker.log.logs import DEBUG, log_of
from broker.model.events import (
    Bind,
    ClientConnect,
    Event,
    ExchangeDeclare,
    ExchangeDelete,
    QueueDeclare,
    QueueDelete,
    Subscribe,
    Unbind,
    Unsubscribe,
)

_LOG: Final = log_of("Model")
_PROTOCOL: Final = log_of("Protocol")


def log_event(event: Event) -> None:
    """Write the line of an event, if lines of its level are wanted.

    That a client was not let in is told where it happens, since any peer can fill the log so (`budget`); that one is
    gone, by its socket, which knows it before its connection is open, too.
    """
    if isinstance(event, ClientConnect):
        who = event.remote_host, event.user, described(event.properties)
        _PROTOCOL.info("Client %s: connection opened by %s%s", *who)
        return
    if not _LOG.is_on(DEBUG):
        return
    match event:
        case QueueDeclare(is_new=True):
            durable = "durable" if event.durable else "transient"
            _LOG.debug('Queue "%s" created by "%s", %s', event.queue, event.user, durable)
        case QueueDelete():
            _LOG.debug('Queue "%s" deleted', event.queue)
        case ExchangeDeclare(is_new=True):
            _LOG.debug('Exchange "%s" of type %s created', event.exchange, event.type_name)
        case ExchangeDelete():
            _LOG.debug('Exchange "%s" deleted', event.exchange)
        case Bind():
            _LOG.debug('Queue "%s" bound to "%s" with key "%s"', event.queue, event.exchange, event.key)
        case Unbind():
            _LOG.debug('Queue "%s" unbound from "%s", key "%s"', event.queue, event.exchange, event.key)
        case Subscribe():
            _LOG.debug('Queue "%s" has consumer "%s" of "%s"', event.queue, event.destination, event.user)
        case Unsubscribe():
            _LOG.debug('Consumer "%s" of "%s" is gone', event.destination, event.user)
