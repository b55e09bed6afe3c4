"""Stored messages of AMQP 0-9-1: `u32 header size | header | body`.

The header:

    u32 mark 0x00000901 | u64 expiration | exchange | routing key | content header, as it arrived

The expiration is in milliseconds since 1970, 0 for a message that does not expire; exchange and routing key are short
strings, as in basic.publish. The mark is neither the begin of a 0-10 frame, whose segment type is never 0, nor that of
a 1.0 message, which is u32 0. Source: formats/broker_records/README.md, 1.7.
"""

from __future__ import annotations

import struct
from math import ceil
from typing import Any, Final

from qstore.formats.amqp_0_9_1.codes import Amqp091Error
from qstore.formats.amqp_0_9_1.properties import decode_header
from qstore.formats.amqp_0_9_1.tables import read_short_text
from qstore.formats.broker_records.message_header import MessageHeader
from qstore.formats.errors import BrokerRecordError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.plain import plain_map
from qstore.formats.values import EMPTY_MAP

MARK: Final = b"\x00\x00\x09\x01"
"""The first bytes of the header."""

HEAD: Final = struct.Struct(">4sQ")
"""Mark and expiration."""

_PREFIX: Final = struct.Struct(">I4sQ")
_MAX_DIGITS: Final = 20


class BasicRecord(NamedTuple):
    """The parts of the header.

    Attributes:
        expires_ms: milliseconds since 1970; 0 if the message does not expire.
        exchange, routing_key: to which it was published.
        routed: both as they are stored.
        content_header: the properties, and the size of the body.
    """

    expires_ms: int
    exchange: str
    routing_key: str
    routed: bytes
    content_header: bytes


def encode_begin(expires_ms: int, routed: bytes, content_header_bytes: int) -> bytes:
    """The beginning of a stored message, up to its content header; the arguments are as of `BasicRecord`."""
    size = HEAD.size + len(routed) + content_header_bytes
    return _PREFIX.pack(size, MARK, expires_ms) + routed


def split_record(header: bytes) -> BasicRecord:
    """The parts of a header that begins with MARK. Raises BrokerRecordError."""
    end = len(header)
    if end < HEAD.size:
        raise BrokerRecordError("the header ends within its expiration", end)
    expires_ms: int = HEAD.unpack_from(header)[1]
    try:
        exchange, key_at = read_short_text(header, HEAD.size, end)
        routing_key, begin = read_short_text(header, key_at, end)
    except (Amqp091Error, IndexError):
        raise BrokerRecordError("the header ends within exchange or routing key", end) from None
    return BasicRecord(expires_ms, exchange, routing_key, header[HEAD.size : begin], header[begin:])


def decode_basic(header: bytes) -> MessageHeader:
    """Decode a header that begins with MARK. Raises BrokerRecordError."""
    record = split_record(header)
    try:
        size, properties = decode_header(record.content_header)
    except Amqp091Error as error:
        raise BrokerRecordError(error.what, len(header) - len(record.content_header) + error.offset) from error
    table = properties.headers or EMPTY_MAP
    values: dict[str, Any] = properties._asdict()
    values |= {
        "protocol": "0-9-1",
        "exchange": record.exchange,
        "routing_key": record.routing_key,
        "ttl": milliseconds(properties.expiration),
        "expiration": ceil(record.expires_ms / 1000) or None,
        "discard_unroutable": False,
        "immediate": False,
        "redelivered": False,
        "user_id": _raw(properties.user_id),
        "app_id": _raw(properties.app_id),
        "content_length": size,
        "headers": plain_map(table),
        "header_types": {name: typed.type.name for name, typed in table.entries},
        "unknown_structs": (),
        "message_type": properties.type,
    }
    return MessageHeader._make(values.get(name) for name in MessageHeader._fields)


def milliseconds(expiration: str | None) -> int | None:
    """The time to live that the property `expiration` gives; None if it is absent, or no number."""
    if expiration is None or not (expiration.isascii() and expiration.isdigit()) or len(expiration) > _MAX_DIGITS:
        return None
    return int(expiration)


def _raw(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "surrogateescape")
