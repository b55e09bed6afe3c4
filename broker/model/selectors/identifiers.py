"""What the names in a selector mean.

    name                        alias             value
    --------------------------  ----------------  -----------------------------------------------------------------
    amqp.absolute_expiry_time   JMSExpiration     milliseconds since 1970; 0 if the message does not expire
    amqp.correlation_id         JMSCorrelationID  string
    amqp.creation_time          JMSTimestamp      milliseconds since 1970: timestamp of the delivery-properties; or 0
    amqp.delivery_mode          JMSDeliveryMode   'PERSISTENT' or 'NON_PERSISTENT'
    amqp.durable                                  boolean: whether it is persistent
    amqp.jms_type                                 string: the application header jms-type
    amqp.message_id             JMSMessageID      string; a UUID without "ID:"
    amqp.priority               JMSPriority       0 to 9
    amqp.redelivered            JMSRedelivered    boolean: whether it was delivered before
    amqp.reply_to               JMSReplyTo        string: exchange/key, or the one that is given
    amqp.subject                JMSType           string: the routing key; on the default exchange the application
                                                  header qpid.subject
    amqp.to                     JMSDestination    string: the exchange; on the default exchange the routing key

All other names that begin with "amqp." are NULL. Every other name is an application header; a name in double quotes may
have any characters. What the message does not have is NULL, and so is an empty string in this table.

Source: Apache Qpid C++, Selector, its table of identifiers, and MessageTransfer. There, names that begin with "JMS" and
have no row are NULL; here they are headers, such as JMSXGroupID. `durable` is in that table, but not implemented there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from qstore.broker.model.selectors.candidate import Candidate, Value, as_string
from qstore.broker.model.selectors.nodes import Header, Node, Property

if TYPE_CHECKING:
    from qstore.broker.model.message import MessageId

_PREFIX: Final = "amqp."


def _absolute_expiry_time(candidate: Candidate) -> Value:
    return int(candidate.message.expires_at * 1000)


def _correlation_id(candidate: Candidate) -> Value:
    return _id(candidate.properties.correlation_id)


def _creation_time(candidate: Candidate) -> Value:
    return int((candidate.properties.created_at or 0) * 1000)


def _delivery_mode(candidate: Candidate) -> Value:
    return "PERSISTENT" if candidate.message.is_persistent else "NON_PERSISTENT"


def _durable(candidate: Candidate) -> Value:
    return candidate.message.is_persistent


def _jms_type(candidate: Candidate) -> Value:
    return _text(candidate.header("jms-type"))


def _message_id(candidate: Candidate) -> Value:
    return _id(candidate.properties.message_id)


def _priority(candidate: Candidate) -> Value:
    return candidate.message.handling.priority


def _redelivered(candidate: Candidate) -> Value:
    return candidate.is_redelivered


def _reply_to(candidate: Candidate) -> Value:
    reply_to = candidate.properties.reply_to
    return None if reply_to is None else "/".join(each for each in reply_to if each) or None


def _subject(candidate: Candidate) -> Value:
    message = candidate.message
    if message.exchange:
        return message.routing_key or None
    return candidate.properties.subject or _text(candidate.header("qpid.subject"))


def _to(candidate: Candidate) -> Value:
    return candidate.message.exchange or candidate.message.routing_key or None


def _nothing(_candidate: Candidate) -> Value:
    return None


def _id(value: MessageId | None) -> Value:
    """An id as a string."""
    if value is None or isinstance(value, (str, bytes)):
        return as_string(value) if value else None
    return str(value)


def _text(value: Value) -> Value:
    """A header as a string; None if it is neither a string nor a whole number."""
    if isinstance(value, str):
        return value or None
    return str(value) if type(value) is int else None


_PROPERTIES: Final[dict[str, tuple[str, Callable[[Candidate], Value]]]] = {
    "absolute_expiry_time": ("JMSExpiration", _absolute_expiry_time),
    "correlation_id": ("JMSCorrelationID", _correlation_id),
    "creation_time": ("JMSTimestamp", _creation_time),
    "delivery_mode": ("JMSDeliveryMode", _delivery_mode),
    "durable": ("", _durable),
    "jms_type": ("", _jms_type),
    "message_id": ("JMSMessageID", _message_id),
    "priority": ("JMSPriority", _priority),
    "redelivered": ("JMSRedelivered", _redelivered),
    "reply_to": ("JMSReplyTo", _reply_to),
    "subject": ("JMSType", _subject),
    "to": ("JMSDestination", _to),
}
_BY_NAME: Final = {_PREFIX + name: get for name, (_, get) in _PROPERTIES.items()} | {
    alias: get for alias, get in _PROPERTIES.values() if alias
}


def identifier(name: str) -> Node:
    """The node for a name."""
    get = _BY_NAME.get(name)
    if get is not None:
        return Property(get)
    return Property(_nothing) if name.startswith(_PREFIX) else Header(name)
