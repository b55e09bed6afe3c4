"""The content header of AMQP 0-9-1: the size of the body, and the properties of the message.

    class u16 | weight u16, 0 | size of the body u64 | flags u16 | the properties whose flags are set, in order

The first property has the highest flag, 0x8000. If the lowest flag is set, another u16 of flags follows; class basic
has none, and nothing that sets it is read.

Source: the AMQP 0-9-1 specification, 4.2.6.1, and its XML (fields of class basic).
"""

from __future__ import annotations

import struct
from typing import Any, Final

from qstore.formats.amqp_0_9_1.codes import Amqp091Error, ContentClassError
from qstore.formats.amqp_0_9_1.tables import (
    READERS,
    check_table,
    encode_value,
    has_too_many_values,
    make_fields,
    read_short_text,
)
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import TypedMap

BASIC: Final = 60

#: Class, weight, size of the body, flags.
HEADER: Final = struct.Struct(">HHQH")

#: The properties of class basic, in the order of their flags.
PROPERTIES: Final = make_fields(
    """content_type:shortstr content_encoding:shortstr headers:table delivery_mode:octet priority:octet
    correlation_id:shortstr reply_to:shortstr expiration:shortstr message_id:shortstr timestamp:timestamp type:shortstr
    user_id:shortstr app_id:shortstr reserved:shortstr"""
)
_FLAGS: Final = {field.name: 0x8000 >> index for index, field in enumerate(PROPERTIES)}
_UNDEFINED: Final = 0xFFFF & ~sum(_FLAGS.values())
_CONTENT_TYPE: Final = _FLAGS["content_type"]
_ENCODING: Final = _FLAGS["content_encoding"]
_HEADERS: Final = _FLAGS["headers"]
_DELIVERY_MODE: Final = _FLAGS["delivery_mode"]
_PRIORITY: Final = _FLAGS["priority"]
_CORRELATION_ID: Final = _FLAGS["correlation_id"]
_REPLY_TO: Final = _FLAGS["reply_to"]
_EXPIRATION: Final = _FLAGS["expiration"]
_MESSAGE_ID: Final = _FLAGS["message_id"]
_TIMESTAMP: Final = _FLAGS["timestamp"]
_LAST: Final = tuple(_FLAGS[name] for name in ("type", "user_id", "app_id", "reserved"))
_LAST_TEXTS: Final = sum(_LAST)
_PERSISTENT: Final = 2

DIRECT_REPLY: Final = b"amq.rabbitmq.reply-to"
"""The reply address that the broker replaces (RabbitMQ, "Direct Reply-to")."""


class Properties(NamedTuple):
    """The properties of a message; None if one is absent."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: TypedMap | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: int | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    reserved: str | None = None


class Handling(NamedTuple):
    """The properties of a message that queues need.

    Attributes:
        is_persistent: it survives a restart on a durable queue.
        priority: None if it has none.
        expiration: milliseconds as text; None if it does not expire.
        wants_direct_reply: whether its reply address is `DIRECT_REPLY`.
    """

    is_persistent: bool
    priority: int | None
    expiration: str | None
    wants_direct_reply: bool


# --------------------------------------------------------------------------------------------- decoding


def body_size(payload: bytes) -> int:
    """Bytes of the body, from a content header.

    Raises:
        ContentClassError: it is of another class.
        Amqp091Error: it is too short, or has flags that class basic does not define.
    """
    if len(payload) < HEADER.size:
        raise Amqp091Error(f"a content header of {len(payload)} bytes is too short")
    content_class, weight, size, flags = HEADER.unpack_from(payload)
    if content_class != BASIC or weight or flags & _UNDEFINED:
        if content_class != BASIC:
            raise ContentClassError(f"a content header of class {content_class}, not {BASIC}")
        raise Amqp091Error(f"not a content header of class basic: {payload[: HEADER.size].hex(' ')}")
    return int(size)


def decode_header(payload: bytes) -> tuple[int, Properties]:
    """The size of the body and the properties, from a content header.

    Raises:
        Amqp091Error: the bytes are not one complete content header of class basic.
    """
    size, end = body_size(payload), len(payload)
    flags, offset = HEADER.unpack_from(payload)[3], HEADER.size
    values: list[Any] = []
    for name, type_name in PROPERTIES:
        value = None
        if flags & _FLAGS[name]:
            value, offset = READERS[type_name](payload, offset, end)
        values.append(value)
    if offset != end:
        raise Amqp091Error(f"{end - offset} bytes follow the properties", offset)
    return size, Properties(*values)


def read_handling(payload: bytes) -> Handling:
    """The properties that queues need. The others are checked, and not decoded.

    Args:
        payload: a content header of which `body_size` has read the fixed part.

    Raises:
        Amqp091Error: the bytes are not one complete content header.
    """
    flags, offset, end = HEADER.unpack_from(payload)[3], HEADER.size, len(payload)
    mode = priority = expiration = None
    wants_direct_reply = False
    if flags & _CONTENT_TYPE:
        offset = _skip_short(payload, offset, end)
    if flags & _ENCODING:
        offset = _skip_short(payload, offset, end)
    if flags & _HEADERS:
        offset = check_table(payload, offset, end)
    octets = (flags & _DELIVERY_MODE != 0) + (flags & _PRIORITY != 0)
    if offset + octets > end:
        raise Amqp091Error("a content header ends within its properties", offset)
    if flags & _DELIVERY_MODE:
        mode = payload[offset]
        offset += 1
    if flags & _PRIORITY:
        priority = payload[offset]
        offset += 1
    if flags & _CORRELATION_ID:
        offset = _skip_short(payload, offset, end)
    if flags & _REPLY_TO:
        begin = offset + 1
        offset = _skip_short(payload, offset, end)
        wants_direct_reply = payload[begin:offset] == DIRECT_REPLY
    if flags & _EXPIRATION:
        expiration, offset = read_short_text(payload, offset, end)
    if flags & _MESSAGE_ID:
        offset = _skip_short(payload, offset, end)
    if flags & _TIMESTAMP:
        offset += 8
    if flags & _LAST_TEXTS:
        for flag in _LAST:
            if flags & flag:
                offset = _skip_short(payload, offset, end)
    if offset != end:
        raise Amqp091Error("a content header does not end with its properties", min(offset, end))
    return Handling(mode == _PERSISTENT, priority, expiration, wants_direct_reply)


def has_too_many_headers(payload: bytes) -> bool:
    """Whether there are more than `MAX_VALUES` headers in a content header, or values in them. Raises Amqp091Error."""
    flags, offset, end = HEADER.unpack_from(payload)[3], HEADER.size, len(payload)
    for flag in (_CONTENT_TYPE, _ENCODING):
        if flags & flag:
            offset = _skip_short(payload, offset, end)
    return bool(flags & _HEADERS) and has_too_many_values(payload, offset, end)


def _skip_short(payload: bytes, offset: int, end: int) -> int:
    stop = offset + 1 + payload[offset] if offset < end else end + 1
    if stop > end:
        raise Amqp091Error("a content header ends within its properties", offset)
    return stop


# --------------------------------------------------------------------------------------------- encoding


def user_id_of(payload: bytes) -> str | None:
    """The user id in a content header that was checked; None if it has none."""
    if not HEADER.unpack_from(payload)[3] & _FLAGS["user_id"]:
        return None
    return decode_header(payload)[1].user_id


def with_reply_to(payload: bytes, reply_to: str) -> bytes:
    """A content header that was checked, with another reply address."""
    size, properties = decode_header(payload)
    return encode_header(size, properties._replace(reply_to=reply_to))


def encode_header(size: int, properties: Properties) -> bytes:
    """The content header of a message.

    Args:
        size: bytes of its body.
        properties: its properties.

    Raises:
        Amqp091Error: a property cannot carry its value.
    """
    flags, parts = 0, [b""]
    for (name, type_name), value in zip(PROPERTIES, properties, strict=True):
        if value is not None:
            flags |= _FLAGS[name]
            parts.append(encode_value(type_name, value))
    parts[0] = HEADER.pack(BASIC, 0, size, flags)
    return b"".join(parts)
