"""The log lines about events, one for each kind of event; and client properties in the log, which are untrusted.

Source: AMQP 0-10, connection.start-ok, client-properties; the names that begin with `qpid.` are those of Qpid clients.
"""

from __future__ import annotations

from typing import Final

from qstore.broker.log.logs import DEBUG, INFO, log_of
from qstore.broker.model.events import (
    Bind,
    ClientConnect,
    Event,
    ExchangeBind,
    ExchangeDeclare,
    ExchangeDelete,
    ExchangeUnbind,
    JournalCreated,
    JournalRecovered,
    QueueConsumerTooSlow,
    QueueDeclare,
    QueueDelete,
    QueueMessageTooLarge,
    QueueMessageTooOld,
    QueueThresholdCrossedDownward,
    QueueThresholdCrossedUpward,
    QueueThresholdExceeded,
    Subscribe,
    Unbind,
    Unsubscribe,
)
from qstore.formats.values import TypedMap
from qstore.formats.wording import printable

#: Property -> its name in the log, in the order of the log.
_SHOWN: Final = {
    "product": "product",
    "version": "version",
    "platform": "platform",
    "qpid.client_process": "process",
    "qpid.client_pid": "pid",
}
_MAX_LENGTH: Final = 64


def described(properties: TypedMap | None) -> str:
    """The properties that identify the program, as " (product …, version …)"; empty if there are none."""
    given = {} if properties is None else {name: typed.value for name, typed in properties.entries}
    found = [f"{called} {_text(given[name])}" for name, called in _SHOWN.items() if name in given]
    return f" ({', '.join(found)})" if found else ""


def _text(value: object) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return printable(text[:_MAX_LENGTH])


# ---- events ----

_ALWAYS: Final = frozenset(
    {
        ClientConnect, QueueConsumerTooSlow, QueueMessageTooLarge, QueueMessageTooOld, QueueThresholdCrossedDownward,
        QueueThresholdExceeded,
    }
)  # fmt: skip
"""Events whose lines have another level than debug."""

_LOG: Final = log_of("Model")
_PROTOCOL: Final = log_of("Protocol")


def log_event(event: Event) -> None:
    """Log an event, if its level is enabled.

    Refused clients are logged where they are refused, since these lines need a rate limit (`LogBudget`). Disconnected
    clients are logged by their socket, which also covers connections that were never opened. That a journal is full is
    logged by the store.
    """
    if type(event) not in _ALWAYS and not _LOG.is_on(DEBUG):
        return
    if isinstance(event, ClientConnect):
        if _PROTOCOL.is_on(INFO):
            who = event.remote_host, event.user, described(event.properties)
            _PROTOCOL.info("Client %s: connection opened by %s%s", *who)
        return
    if isinstance(event, QueueThresholdExceeded):
        _LOG.warning('Queue "%s" has reached its alert threshold: %d messages, %d bytes', *event)
        return
    if isinstance(event, QueueMessageTooLarge):
        _LOG.warning('Queue "%s" has got a message of %d bytes, above its alert threshold of %d bytes', *event)
        return
    if isinstance(event, QueueMessageTooOld):
        _LOG.warning('The oldest message of queue "%s" is older than its alert threshold: %d ms, %d messages', *event)
        return
    if isinstance(event, QueueConsumerTooSlow):
        _LOG.warning('Queue "%s" has too much for its consumers, policy %s: %d messages, %d bytes', *event)
        return
    if isinstance(event, QueueThresholdCrossedDownward):
        _LOG.info('Queue "%s" is down to its lower alert threshold: %d messages, %d bytes', *event)
        return
    match event:
        case QueueThresholdCrossedUpward():
            _LOG.debug('Queue "%s" is up to its alert threshold: %d messages, %d bytes', *event)
        case QueueDeclare(is_new=True):
            durable = "durable" if event.durable else "transient"
            _LOG.debug('Queue "%s" created by "%s", %s', event.queue, event.user, durable)
        case QueueDelete():
            _LOG.debug('Queue "%s" deleted', event.queue)
        case JournalCreated():
            _LOG.debug('Journal of queue "%s" created: %d bytes a file, %d files', *event)
        case JournalRecovered():
            _LOG.debug(
                'Journal of queue "%s" recovered: %d bytes a file, %d files, %d messages, '
                "%d transactions in doubt with %d enqueues and %d dequeues",
                *event,
            )
        case ExchangeDeclare(is_new=True):
            _LOG.debug('Exchange "%s" of type %s created', event.exchange, event.type_name)
        case ExchangeDelete():
            _LOG.debug('Exchange "%s" deleted', event.exchange)
        case Bind():
            _LOG.debug('Queue "%s" bound to "%s" with key "%s"', event.queue, event.exchange, event.key)
        case Unbind():
            _LOG.debug('Queue "%s" unbound from "%s" with key "%s"', event.queue, event.exchange, event.key)
        case ExchangeBind():
            _LOG.debug('Exchange "%s" bound to "%s" with key "%s"', event.destination, event.source, event.key)
        case ExchangeUnbind():
            _LOG.debug('Exchange "%s" unbound from "%s" with key "%s"', event.destination, event.source, event.key)
        case Subscribe():
            _LOG.debug('Consumer "%s" subscribed to queue "%s" by "%s"', event.destination, event.queue, event.user)
        case Unsubscribe():
            _LOG.debug('Consumer "%s" of "%s" unsubscribed', event.destination, event.user)
