"""Converts messages of other protocols to AMQP 0-9-1. README.md has the mapping, in both directions."""

from __future__ import annotations

from typing import Any, Final

from qstore.broker.model.content import Content
from qstore.broker.model.errors import InternalError
from qstore.broker.model.message import Message
from qstore.broker.model.message import Properties as NeutralProperties
from qstore.broker.protocols.amqp_0_9_1.message import BasicMessage
from qstore.broker.protocols.amqp_0_10.conversion import encoded_content
from qstore.formats.amqp_0_9_1.errors import Amqp091Error
from qstore.formats.amqp_0_9_1.methods import encode_routed
from qstore.formats.amqp_0_9_1.properties import Properties, encode_header
from qstore.formats.amqp_0_10.errors import Amqp010Error
from qstore.formats.broker_records.errors import BrokerRecordError
from qstore.formats.values import STR16, TypedMap, TypedValue

_PERSISTENT: Final = 2
_TRANSIENT: Final = 1
_MAX_SHORT: Final = 0xFF
_SUBJECT: Final = "qpid.subject"
_MESSAGE_ID: Final = "x-amqp-message-id"
#: Properties that are texts of at most 255 bytes; the headers that have longer ones.
_LONG: Final = {
    name: f"x-amqp-{name.replace('_', '-')}"
    for name in (
        "content_type", "content_encoding", "correlation_id", "reply_to", "message_id", "type", "user_id", "app_id"
    )
}  # fmt: skip


def basic_of(message: Message) -> BasicMessage | None:
    """A message that is on a queue in its 0-9-1 form, read back if it is out of memory.

    None if it cannot be read, or AMQP 0-9-1 cannot represent it.
    """
    try:
        message = message.whole()
    except InternalError:
        return None
    return message if isinstance(message, BasicMessage) else message.converted(as_basic)


def as_basic(message: Message) -> BasicMessage | None:
    """A message of another protocol in its 0-9-1 form; None if AMQP 0-9-1 cannot represent it."""
    try:
        neutral = message.properties()
        content_type, body = encoded_content(message.content(), neutral.content_type)
        properties = _properties(message, neutral._replace(content_type=content_type))
        header = encode_header(len(body), properties)
        routed = encode_routed(message.exchange, message.routing_key)
    except (Amqp091Error, Amqp010Error, BrokerRecordError):
        return None
    return _basic(message, header, body, routed)


def _basic(message: Message, header: bytes, body: Content, routed: bytes) -> BasicMessage:
    return BasicMessage(
        header, body, message.exchange, message.routing_key, routed, message.is_persistent, message.handling,
        message.expires_at,
    )  # fmt: skip


def _properties(message: Message, neutral: NeutralProperties) -> Properties:
    """The properties, with texts that are too long among the headers. Raises Amqp091Error."""
    entries = [(name, typed) for name, typed in neutral.headers.entries if name != _MESSAGE_ID]
    named = dict(neutral.headers.entries)
    message_id = neutral.message_id
    if message_id is None and _MESSAGE_ID in named:
        message_id = _text(named[_MESSAGE_ID].value)
    subject = neutral.subject
    if subject is None and _SUBJECT in named:
        subject = _text(named[_SUBJECT].value)
    reply = neutral.reply_to
    texts: dict[str, Any] = {
        "content_type": neutral.content_type,
        "content_encoding": neutral.content_encoding,
        "correlation_id": _text(neutral.correlation_id),
        "reply_to": None if reply is None else "/".join(filter(None, reply)),
        "message_id": _text(message_id),
        "type": subject,
        "user_id": _text(neutral.user_id),
        "app_id": _text(neutral.app_id),
    }
    for name, text in texts.items():
        if text is not None and len(text.encode("utf-8", "surrogateescape")) > _MAX_SHORT:
            texts[name] = None
            if name != "type" or _SUBJECT not in named:
                entries.append((_LONG[name], TypedValue(STR16, text)))
    created = neutral.created_at
    return Properties(
        headers=TypedMap(tuple(entries)) if entries else None,
        delivery_mode=_PERSISTENT if message.is_persistent else _TRANSIENT,
        priority=message.handling.priority,
        expiration=None if neutral.ttl is None else str(neutral.ttl),
        timestamp=None if created is None or created < 0 else int(created),
        **texts,
    )


def _text(value: object) -> str | None:
    """An id as text."""
    if value is None or isinstance(value, str):
        return value
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)
