"""Converts messages of other protocols to AMQP 0-10.

    neutral                         AMQP 0-10
    ------------------------------  --------------------------------------------------------------------------
    exchange, routing key           delivery-properties
    persistent, priority            delivery-properties
    time of creation                delivery-properties: timestamp
    message id                      message-id, if it is a UUID or the text of one; else the header x-amqp-message-id
    correlation id                  correlation-id: its bytes, or those of its text
    reply address, user id, app id  reply-to, user-id, app-id
    content type and encoding       content-type, content-encoding
    subject                         the header qpid.subject, unless the message has one
    headers                         application-headers
    content: bytes                  the body
             a map, a list          the body, with content type amqp/map or amqp/list
             text                   the body in UTF-8, with content type text/plain unless it has one
             nothing                no bytes
             any other value        the body: its text, with content type text/plain

Source: the AMQP 0-10 specification as XML, message-properties; qpidd's clients for the content types and qpid.subject.
"""

from __future__ import annotations

import uuid
from typing import Any, Final

from qstore.broker.model.content import Content
from qstore.broker.model.errors import InternalError
from qstore.broker.model.message import Message, Properties
from qstore.broker.protocols.amqp_0_10.transfer import (
    CONTENT_TYPES,
    MAX_HEADER_BYTES,
    TransferMessage,
    read_delivery_properties,
)
from qstore.formats.amqp_0_10.codes import DeliveryMode
from qstore.formats.amqp_0_10.errors import Amqp010Error
from qstore.formats.amqp_0_10.maps import encode_value
from qstore.formats.amqp_0_10.structs import DELIVERY_PROPERTIES, MESSAGE_PROPERTIES, encode_struct
from qstore.formats.amqp_0_10.types import wire_type_of
from qstore.formats.broker_records.errors import BrokerRecordError
from qstore.formats.plain import plain_typed_value
from qstore.formats.values import Family, TypedMap, TypedValue, typed_value

TEXT: Final = "text/plain"
_SUBJECT: Final = "qpid.subject"
_MESSAGE_ID: Final = "x-amqp-message-id"
_HIGHEST_PRIORITY: Final = 9


def transfer_of(message: Message) -> TransferMessage | None:
    """A message that is on a queue as a transfer, read back if it is out of memory.

    None if it cannot be read, or AMQP 0-10 cannot represent it.
    """
    try:
        message = message.whole()
    except InternalError:
        return None
    return message if isinstance(message, TransferMessage) else message.converted(as_transfer)


def as_transfer(message: Message) -> TransferMessage | None:
    """A message of another protocol as a transfer; None if AMQP 0-10 cannot represent it."""
    try:
        properties = message.properties()
        content_type, body = encoded_content(message.content(), properties.content_type)
        fields = _fields(properties._replace(content_type=content_type))
        structs = encode_struct(MESSAGE_PROPERTIES, fields) if fields else b""
        given: dict[str, Any] = {
            "routing_key": message.routing_key,
            "priority": min(message.handling.priority, _HIGHEST_PRIORITY),
            "delivery_mode": DeliveryMode.PERSISTENT if message.is_persistent else DeliveryMode.NON_PERSISTENT,
        }
        if properties.created_at is not None:
            given["timestamp"] = max(0, int(properties.created_at))
        delivery = read_delivery_properties(encode_struct(DELIVERY_PROPERTIES, given), message.exchange)
    except (Amqp010Error, BrokerRecordError):
        return None
    header = delivery.encoded + structs
    if len(header) > MAX_HEADER_BYTES:
        return None
    return TransferMessage(header, body, message.exchange, delivery, message.expires_at)


def encoded_content(content: Content | TypedValue, content_type: str | None) -> tuple[str | None, Content]:
    """Content type and body of a content, where a typed value is in the encoding of AMQP 0-10. Raises Amqp010Error."""
    if not isinstance(content, TypedValue):
        return content_type, content
    family, value = content.type.family, content.value
    if family in CONTENT_TYPES:
        return CONTENT_TYPES[family], encode_value(wire_type_of(content.type), value)
    if family is Family.NOTHING:
        return content_type, b""
    if isinstance(value, bytes):
        return content_type, value
    text = value if isinstance(value, str) else str(plain_typed_value(content))
    return content_type or TEXT, text.encode("utf-8", "surrogateescape")


def _fields(properties: Properties) -> dict[str, Any]:
    """The fields of message-properties."""
    entries = list(properties.headers.entries)
    names = {name for name, _ in entries}
    message_id = _uuid(properties.message_id)
    if message_id is None and properties.message_id is not None and _MESSAGE_ID not in names:
        entries.append((_MESSAGE_ID, typed_value(properties.message_id)))
    if properties.subject and _SUBJECT not in names:
        entries.append((_SUBJECT, typed_value(properties.subject)))
    fields = {
        "message_id": message_id,
        "correlation_id": _raw(properties.correlation_id),
        "reply_to": properties.reply_to,
        "content_type": properties.content_type,
        "content_encoding": properties.content_encoding,
        "user_id": properties.user_id,
        "app_id": properties.app_id,
        "application_headers": TypedMap(tuple(entries)) if entries else None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _uuid(message_id: object) -> uuid.UUID | None:
    """A message id as the UUID that AMQP 0-10 requires; None if it is not one."""
    if isinstance(message_id, uuid.UUID):
        return message_id
    try:
        return uuid.UUID(message_id) if isinstance(message_id, str) else None
    except ValueError:
        return None


def _raw(value: object) -> bytes | None:
    """An id as bytes."""
    if value is None or isinstance(value, bytes):
        return value
    return str(value).encode("utf-8", "surrogateescape")
