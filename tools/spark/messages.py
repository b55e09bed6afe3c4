"""Decodes messages, as far as the requested columns need it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import orjson

from qstore.formats.broker_records.message_header import MessageHeader
from qstore.formats.broker_records.messages import HEADER_SIZE_BYTES, decode_message_header, header_size
from qstore.formats.errors import BrokerRecordError, RhmError
from qstore.formats.plain import plain_bytes
from qstore.formats.rhm.compressed import Decompressor
from qstore.store.journal.journal import MessageData
from qstore.tools.console.text import escape_names

_TOO_SHORT: Final = "the data are shorter than the length of the message header in them"
_EXTERNAL: Final = "the record is external: its data are not in the journal"
_PERSISTENT: Final = 2
_MILLISECONDS: Final = 1000
_new_tuple: Final = tuple.__new__  # what a NamedTuple's constructor calls, without its overhead


class Message(NamedTuple):
    """A decoded stored message.

    Attributes:
        header: its decoded header; None if it cannot be decoded, and then the body is all of the data.
        problem: why it cannot be decoded, or, if it can, what is wrong with the compressed content; None if nothing is.
        body_length: size of the body in bytes.
        body: the body, or the beginning of it; None if not requested.
    """

    header: MessageHeader | None
    problem: str | None
    body_length: int
    body: bytes | None


def decode_message(size: int, read: Callable[[int, int], bytes], body_limit: int) -> Message:
    """A message with data of `size` bytes.

    Args:
        size: size of the record's data in bytes.
        read: reads a range of the data: offset, length.
        body_limit: largest number of bytes of the body; 0 for none.
    """
    if not size:
        return Message(None, _EXTERNAL, 0, b"" if body_limit else None)
    header, problem, start = None, None, 0
    try:
        begin = HEADER_SIZE_BYTES + header_size(read(0, min(HEADER_SIZE_BYTES, size)))
        if begin > size:
            raise BrokerRecordError(_TOO_SHORT)
        header = decode_message_header(read(HEADER_SIZE_BYTES, begin - HEADER_SIZE_BYTES))
        start = begin
    except BrokerRecordError as error:
        problem = error.what
    if header is not None and header.amqp_1_0 is not None:
        sections = header.amqp_1_0.body_sections
        length = sum(count for _, count in sections)
        body = b"".join(read(HEADER_SIZE_BYTES + at, count) for at, count in sections) if body_limit else None
        return Message(header, None, length, None if body is None else body[:body_limit])
    length = size - start
    return Message(header, problem, length, read(start, min(length, body_limit)) if body_limit else None)


def decode_compressed(
    size: int, read: Callable[[int, int], bytes], body_limit: int, decompressor: Decompressor
) -> Message:
    """As `decode_message`, for data whose content is compressed: it is restored only if the body is requested."""
    try:
        data = MessageData(read, size, decompressor)
        return decode_message(data.size, data.read, body_limit)
    except RhmError as error:
        stored = decode_message(size, read, body_limit)
        return stored if stored.header is None else stored._replace(problem=error.what)


def decode_message_at(buffer: bytes, at: int, size: int, body_limit: int) -> Message:
    """As `decode_message`, for data in a buffer from `at` on, which is the usual case and the inner loop of a scan."""
    begin = at + HEADER_SIZE_BYTES
    end = at + size
    if size > HEADER_SIZE_BYTES:
        start = begin + header_size(buffer[at:begin])
        if start <= end:
            try:
                header = decode_message_header(buffer[begin:start])
            except BrokerRecordError:
                pass
            else:
                if header.amqp_1_0 is None:
                    body = buffer[start : min(end, start + body_limit)] if body_limit else None
                    return _new_tuple(Message, (header, None, end - start, body))
    return decode_message(size, lambda offset, length: buffer[at + offset : at + offset + length], body_limit)


def _text(value: bytes | str | None) -> str | None:
    return plain_bytes(value) if isinstance(value, bytes) else value


def _reply_to(header: MessageHeader) -> str | None:
    value = header.reply_to
    if not isinstance(value, tuple):
        return value
    return orjson.dumps(escape_names({"exchange": value[0], "routing_key": value[1]})).decode()


def _durable(header: MessageHeader) -> bool | None:
    return None if header.delivery_mode is None else header.delivery_mode == _PERSISTENT


def _routing_key(header: MessageHeader) -> str | None:
    return header.routing_key if header.amqp_1_0 is None else header.amqp_1_0.subject


def _timestamp(header: MessageHeader) -> int | None:
    made = None if header.amqp_1_0 is None else header.amqp_1_0.creation_time
    return header.timestamp if made is None else made // _MILLISECONDS


def _expiration(header: MessageHeader) -> int | None:
    expires = None if header.amqp_1_0 is None else header.amqp_1_0.absolute_expiry_time
    return header.expiration if expires is None else expires // _MILLISECONDS


#: Column -> its value for a message's header.
VALUES: Final[dict[str, Callable[[MessageHeader], Any]]] = {
    "protocol": lambda header: header.protocol,
    "exchange": lambda header: header.exchange,
    "routing_key": _routing_key,
    "message_id": lambda header: header.message_id,
    "durable": _durable,
    "priority": lambda header: header.priority,
    "ttl": lambda header: header.ttl,
    "expiration": _expiration,
    "timestamp": _timestamp,
    "content_type": lambda header: header.content_type,
    "content_encoding": lambda header: header.content_encoding,
    "correlation_id": lambda header: _text(header.correlation_id),
    "reply_to": _reply_to,
    "user_id": lambda header: _text(header.user_id),
    "app_id": lambda header: _text(header.app_id),
    "headers": lambda header: header.headers,
    "header_types": lambda header: header.header_types,
}


def message_values(name: str, messages: Sequence[Message | None]) -> list[Any]:
    """A column's values; None for records that contain no message, or one that cannot be decoded."""
    if name == "body":
        return [None if message is None else message.body for message in messages]
    if name == "body_length":
        return [None if message is None else message.body_length for message in messages]
    value = VALUES[name]
    return [None if message is None or message.header is None else value(message.header) for message in messages]
