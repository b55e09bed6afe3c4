"""The application's message: its content, its properties, and their encoding.

The header segment of a transfer has two structs, delivery-properties and message-properties. Those of a received
message are decoded on first access.

    attribute          AMQP 0-10
    durable            delivery-mode: persistent (2)
    priority, ttl      delivery-properties; ttl is in seconds here and in milliseconds in AMQP
    redelivered        delivery-properties
    subject            application header "qpid.subject"
    id                 message-id, a UUID
    correlation_id     correlation-id
    user_id            user-id
    reply_to           reply-to: an address `queue`, or `exchange/routing key`
    content_type       content-type
    properties         application headers

Received messages have further fields among their properties: "x-amqp-0-10.app-id", "x-amqp-0-10.content-encoding",
"x-amqp-0-10.routing-key" and "x-amqp-0-10.timestamp". The first two are also sent.

The content:

    Python        content type     bytes
    None          -                none
    str           text/plain       UTF-8
    bytes         -                unchanged
    dict          amqp/map         a map of formats.amqp_0_10
    list, tuple   amqp/list        a list of formats.amqp_0_10

Properties (application headers) are a map. Maps are decoded to Python values, without their wire types. An int is
encoded as int64, text as str16, a float as double; a `TypedValue` as its own type.

Source: formats/broker_records/README.md, 1.4; the names of properties are those of the Qpid Messaging API.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from qstore.broker.client.address import Address, format_address, parse_address
from qstore.broker.client.errors import ContentError
from qstore.formats.amqp_0_10.maps import encode_value, python_list, python_map, python_value
from qstore.formats.amqp_0_10.structs import (
    DELIVERY_PROPERTIES,
    MESSAGE_PROPERTIES,
    ReplyTo,
    decode_struct,
    encode_struct,
)
from qstore.formats.amqp_0_10.types import BY_NAME, Amqp010Error, add_prefix, encode_name, wire_type_of
from qstore.formats.errors import FormatError
from qstore.formats.values import UINT32, TypedMap, typed_value

TEXT: Final = "text/plain"
MAP: Final = "amqp/map"
LIST: Final = "amqp/list"

_LIST: Final = BY_NAME["list"]
_NAME: Final = BY_NAME["str8"]
_pack_size_and_count: Final = struct.Struct(">II").pack
_pack_int64: Final = struct.Struct(">Bq").pack
_pack_uint32: Final = struct.Struct(">BI").pack
_pack_text_size: Final = struct.Struct(">BH").pack


def encode_content(content: Any) -> tuple[str | None, bytes]:
    """The content type and the bytes of a message's content.

    Raises:
        ContentError: it cannot be encoded.
    """
    match content:
        case bytes():
            return None, content
        case str():
            return TEXT, content.encode("utf-8", "surrogateescape")
        case None:
            return None, b""
        case bytearray() | memoryview():
            return None, bytes(content)
        case Mapping():
            return MAP, encode_map_of(content)
        case list() | tuple():
            try:
                return LIST, encode_value(_LIST, tuple(typed_value(item) for item in content))
            except FormatError as error:
                raise ContentError(f"the list cannot be encoded: {error.what}") from None
    raise ContentError(f"content cannot be a {type(content).__name__}: use str, bytes, dict, list or None")


def decode_content(content_type: str | None, body: bytes) -> Any:
    """Decode a body by its content type. Invalid UTF-8 is returned as bytes.

    Raises:
        ContentError: the body is not of its content type.
    """
    if content_type == MAP:
        return decode_properties(body) if body else {}
    try:
        if content_type == LIST:
            return python_list(body) if body else []
        return body.decode() if content_type is not None and content_type.startswith(TEXT) else body
    except UnicodeDecodeError:
        return body
    except Amqp010Error as error:
        raise ContentError(f"the content is not valid {content_type}: {error.what}") from None


def decode_properties(raw: bytes) -> dict[str, Any]:
    """The Python values of an encoded map, which begins with its size.

    Raises:
        ContentError: it is not a valid map.
    """
    try:
        return python_map(raw)
    except Amqp010Error as error:
        raise ContentError(f"invalid map: {error.what}") from None


# ---- encoding of maps ----


def encode_map_of(values: Mapping[str, Any]) -> bytes:
    """Encode a map of Python values; the result begins with its size.

    Raises:
        ContentError: a name or value cannot be encoded.
    """
    parts = [b""]
    try:
        for name, value in values.items():
            parts.append(_encode_name(name))
            kind = type(value)
            if kind is int and -(1 << 63) <= value < 1 << 63:
                parts.append(_pack_int64(0x31, value))
            elif kind is str:
                raw = encode_name(value)
                parts.append(_pack_text_size(0x95, len(raw)) + raw if len(raw) <= 0xFFFF else _long_text(raw))
            else:
                parts.append(_encode_typed(value))
    except FormatError as error:
        raise ContentError(f"{name!r} cannot be encoded: {error.what}") from None
    except (AttributeError, TypeError):
        raise ContentError(f"{name!r} is not a valid name: it must be text of at most 255 bytes") from None
    size = sum(map(len, parts)) + 4
    parts[0] = _pack_size_and_count(size, len(values))
    return b"".join(parts)


@lru_cache(maxsize=1024)
def _encode_name(name: str) -> bytes:
    return add_prefix(_NAME, encode_name(name))


def _long_text(raw: bytes) -> bytes:
    """Text that is too long for str16 is encoded as vbin32."""
    return b"\xa0" + len(raw).to_bytes(4, "big") + raw


def _encode_typed(value: Any) -> bytes:
    value_type, plain = typed_value(value)
    if value_type is UINT32:
        try:
            return _pack_uint32(0x22, plain)
        except struct.error:
            raise Amqp010Error(f"{plain} does not fit in uint32") from None
    wire_type = wire_type_of(value_type)
    assert wire_type.code is not None
    return bytes([wire_type.code]) + encode_value(wire_type, plain)


# ---- messages ----

SUBJECT: Final = "qpid.subject"
APP_ID: Final = "x-amqp-0-10.app-id"
CONTENT_ENCODING: Final = "x-amqp-0-10.content-encoding"
ROUTING_KEY: Final = "x-amqp-0-10.routing-key"
TIMESTAMP: Final = "x-amqp-0-10.timestamp"

PERSISTENT: Final = 2
_MAX_PRIORITY: Final = 255
_MAX_TTL: Final = (1 << 64) // 1000 - 1  # seconds: the milliseconds have 64 bits
DEFAULT_PRIORITY: Final = 4  # of a message without a priority, by the specification

_NOT_SENT_AS_HEADERS: Final = frozenset([APP_ID, CONTENT_ENCODING, ROUTING_KEY, TIMESTAMP])
_STRUCT_HEAD: Final = 6  # size and code
_BARE_MAP: Final = TypedMap(bare=True)
_BARE_MAP_BYTES: Final = 4


class Message:
    """A message.

    Args:
        content: str, bytes, dict, list or None. See `content`.
        content_type: the content type; None for that of the content's Python type.
        subject: the subject, which is the routing key at an exchange.
        reply_to: address for replies.
        properties: application headers.
        durable: whether it survives a restart of the broker, on a durable queue.
        ttl: seconds after which the broker drops it; None or 0 for never.
        priority: 0 to 255; None means 4.
        id: a UUID, or the text of one.
        correlation_id: identifies the message that this one replies to.
        user_id: the sender's user id.

    Attributes:
        redelivered: whether it may have been delivered before.
        delivery: its receiver and command number; internal to the client.
    """

    __slots__ = (
        "_body",
        "_content",
        "_decode",
        "_header",
        "content_type",
        "correlation_id",
        "delivery",
        "durable",
        "id",
        "priority",
        "properties",
        "redelivered",
        "reply_to",
        "subject",
        "ttl",
        "user_id",
    )

    _body: bytes | None
    _decode: Callable[[bytes], dict[str, Any]]
    content_type: str | None
    subject: str | None
    reply_to: str | None
    properties: dict[str, Any]
    durable: bool
    ttl: float | None
    priority: int | None
    id: uuid.UUID | str | None
    correlation_id: str | bytes | None
    user_id: str | bytes | None
    redelivered: bool
    delivery: Any

    def __init__(
        self,
        content: Any = None,
        *,
        content_type: str | None = None,
        subject: str | None = None,
        reply_to: str | None = None,
        properties: Mapping[str, Any] | None = None,
        durable: bool = False,
        ttl: float | None = None,
        priority: int | None = None,
        id: uuid.UUID | str | None = None,  # noqa: A002 (the API's name)
        correlation_id: str | bytes | None = None,
        user_id: str | bytes | None = None,
    ) -> None:
        self._content = content
        self._body = None
        self._header = b""
        self._decode = decode_header
        self.content_type = content_type
        self.subject = subject
        self.reply_to = reply_to
        self.properties = {} if properties is None else dict(properties)
        self.durable = durable
        self.ttl = ttl
        self.priority = priority
        self.id = id
        self.correlation_id = correlation_id
        self.user_id = user_id
        self.redelivered = False
        self.delivery = None

    @classmethod
    def received(
        cls, header: bytes, body: bytes | None, delivery: Any, decode: Callable[[bytes], dict[str, Any]] | None = None
    ) -> Message:
        """A received message, which is decoded on first access.

        Args:
            header: its header.
            body: its body; None if that is in its header.
            delivery: its receiver and number.
            decode: decodes the header: attribute -> value; that of AMQP 0-10 if it is None.
        """
        message = cls.__new__(cls)
        message._header = header
        if body is not None:
            message._body = body
        message._decode = decode_header if decode is None else decode
        message.delivery = delivery
        return message

    def __getattr__(self, name: str) -> Any:
        # Called only for an empty slot: of a received message that is not decoded yet.
        if name not in _LAZY_SLOTS:
            raise AttributeError(name)
        if not self._is_decoded:
            for slot, value in self._decode(self._header).items():
                object.__setattr__(self, slot, value)
        if name == "_content" and not self._has("_content"):
            self._content = decode_content(self.content_type, self._body or b"")
        return getattr(self, name)

    def _has(self, name: str) -> bool:
        """Whether a slot is not empty."""
        try:
            object.__getattribute__(self, name)
        except AttributeError:
            return False
        return True

    @property
    def _is_decoded(self) -> bool:
        return self._has("redelivered")

    @property
    def content(self) -> Any:
        """The content; that of a received message is decoded by its content type.

        Raises:
            ContentError: the bytes are not of the content type.
        """
        return self._content

    @content.setter
    def content(self, value: Any) -> None:
        self._content = value
        self._body = None

    @property
    def header(self) -> bytes:
        """The structs of the header segment of a received message as they came, or all its sections of AMQP 1.0.

        Empty for other messages.
        """
        return self._header

    @property
    def raw_body(self) -> bytes | None:
        """The body of a received message as it came; None if it is to be encoded, or was a value of AMQP 1.0."""
        return self._body

    @property
    def body(self) -> bytes:
        """The content as bytes."""
        return encode_content(self._content)[1] if self._body is None else self._body

    def __repr__(self) -> str:
        return f"Message({self.content!r}, subject={self.subject!r}, properties={self.properties!r})"


_LAZY_SLOTS: Final = frozenset(Message.__slots__) - {"_header", "_decode", "delivery"}


# ---- encoding ----


def encode_message(message: Message, routing_key: str, subject: str | None) -> tuple[bytes, bytes]:
    """The header segment and the body of a message.

    Args:
        message: the message to send.
        routing_key: the routing key.
        subject: its subject, or the address's if the message has none.

    Raises:
        ContentError: a part of it cannot be encoded, or its ttl or priority is out of range.
    """
    if message._body is None:
        own_type, body = encode_content(message._content)
        content_type = own_type if message.content_type is None else message.content_type
    else:
        content_type, body = message.content_type, message._body
    properties = message.properties
    if message.ttl is not None or message.priority is not None:
        check_numbers(message.ttl, message.priority)
    try:
        delivery = _delivery_properties(
            routing_key, message.durable, message.priority, milliseconds(message.ttl), message.redelivered
        )
        head = _message_properties(
            len(body),
            message.id,
            message.correlation_id,
            message.reply_to,
            content_type,
            message.user_id,
            properties.get(APP_ID),
            properties.get(CONTENT_ENCODING),
        )
    except Amqp010Error as error:
        raise ContentError(f"the message cannot be encoded: {error.what}") from None
    if subject is not None or not _NOT_SENT_AS_HEADERS.isdisjoint(properties):
        properties = {name: value for name, value in properties.items() if name not in _NOT_SENT_AS_HEADERS}
        if subject is not None:
            properties[SUBJECT] = subject
    if not properties:
        return delivery + head, body
    # The headers are the last field of their struct: they replace the bare map at its end.
    table = encode_map_of(properties)
    size = len(head) - 4 - _BARE_MAP_BYTES + len(table)
    return b"".join((delivery, size.to_bytes(4, "big"), head[4:-_BARE_MAP_BYTES], table)), body


def mark_redelivered(header: bytes) -> bytes:
    """The header of `encode_message` with the redelivered flag set."""
    # Field 2 of delivery-properties, which are first: a bit without further bytes.
    return header[:6] + bytes([header[6] | 4]) + header[7:]


def check_numbers(ttl: float | None, priority: int | None) -> None:
    """Raise ContentError if one of them is out of range: on the wire it would become another number."""
    if ttl is not None and not 0 <= ttl <= _MAX_TTL:
        raise ContentError(f"invalid ttl of {ttl} seconds: use 0 to {_MAX_TTL:,}, or None for no limit")
    if priority is not None and not 0 <= priority <= _MAX_PRIORITY:
        raise ContentError(f"invalid priority {priority}: use 0 to {_MAX_PRIORITY}")


def milliseconds(seconds: float | None) -> int | None:
    """A time to live as AMQP has it; None for no limit."""
    return None if not seconds else max(1, round(seconds * 1000))


@lru_cache(maxsize=256)
def _delivery_properties(
    routing_key: str, durable: bool, priority: int | None, ttl: int | None, redelivered: bool
) -> bytes:
    values = {
        "routing_key": routing_key,
        "delivery_mode": PERSISTENT if durable else None,
        "priority": priority,
        "ttl": ttl,
        "redelivered": redelivered,
    }
    return encode_struct(DELIVERY_PROPERTIES, values)


@lru_cache(maxsize=256)
def _message_properties(
    size: int,
    message_id: uuid.UUID | str | None,
    correlation_id: str | bytes | None,
    reply_to: str | None,
    content_type: str | None,
    user_id: str | bytes | None,
    app_id: str | bytes | None,
    content_encoding: str | None,
) -> bytes:
    values = {
        "content_length": size,
        "message_id": None if message_id is None else _uuid(message_id),
        "correlation_id": _octets(correlation_id),
        "reply_to": None if reply_to is None else _reply_to(reply_to),
        "content_type": content_type,
        "content_encoding": content_encoding,
        "user_id": _octets(user_id),
        "app_id": _octets(app_id),
        "application_headers": _BARE_MAP,
    }
    return encode_struct(MESSAGE_PROPERTIES, values)


def _octets(value: str | bytes | None) -> bytes | None:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


def _uuid(value: uuid.UUID | str) -> uuid.UUID:
    if isinstance(value, uuid.UUID):
        return value
    try:
        return uuid.UUID(value)
    except ValueError:
        raise ContentError(f"invalid message id {value!r}: AMQP 0-10 requires a UUID") from None


def _reply_to(text: str) -> ReplyTo:
    address = parse_address(text)
    node = address.options.get("node")
    kind = node.get("type") if isinstance(node, dict) else None
    is_topic = kind == "topic" or (kind is None and address.subject is not None)
    return ReplyTo(address.name, address.subject or "") if is_topic else ReplyTo("", address.name)


# ---- decoding ----


def decode_header(header: bytes) -> dict[str, Any]:
    """Decode a header segment: attribute of `Message` -> value.

    Raises:
        ContentError: the bytes are not a header segment.
    """
    delivery: Mapping[str, Any] = _NO_DELIVERY_PROPERTIES
    properties: Mapping[str, Any] = _NO_MESSAGE_PROPERTIES
    offset = 0
    try:
        while offset < len(header):
            if len(header) - offset < _STRUCT_HEAD:
                raise Amqp010Error("truncated struct", offset)
            end = offset + 4 + int.from_bytes(header[offset : offset + 4], "big")
            code = int.from_bytes(header[offset + 4 : offset + 6], "big")
            if code == DELIVERY_PROPERTIES.code:
                delivery = decode_struct(DELIVERY_PROPERTIES, header, offset, end)
            elif code == MESSAGE_PROPERTIES.code:
                properties = decode_struct(MESSAGE_PROPERTIES, header, offset, end)
            offset = end
    except Amqp010Error as error:
        raise ContentError(f"the message's header cannot be decoded: {error.what}") from None
    return _message_fields(delivery, properties)


_NO_DELIVERY_PROPERTIES: Final[Mapping[str, Any]] = {field.name: None for field in DELIVERY_PROPERTIES.fields}
_NO_MESSAGE_PROPERTIES: Final[Mapping[str, Any]] = {field.name: None for field in MESSAGE_PROPERTIES.fields}


def _message_fields(delivery: Mapping[str, Any], properties: Mapping[str, Any]) -> dict[str, Any]:
    table = properties["application_headers"]
    headers = {} if table is None else {name: python_value(typed) for name, typed in table.entries}
    subject = headers.pop(SUBJECT, None)
    extra = {
        APP_ID: _text(properties["app_id"]),
        CONTENT_ENCODING: properties["content_encoding"],
        ROUTING_KEY: delivery["routing_key"],
        TIMESTAMP: delivery["timestamp"],
    }
    headers.update((name, value) for name, value in extra.items() if value)
    ttl = delivery["ttl"]
    return {
        "content_type": properties["content_type"],
        "subject": subject if subject is None or isinstance(subject, str) else str(subject),
        "reply_to": _reply_to_address(properties["reply_to"]),
        "properties": headers,
        "durable": delivery["delivery_mode"] == PERSISTENT,
        "ttl": None if ttl is None else ttl / 1000,
        "priority": delivery["priority"],
        "id": properties["message_id"],
        "correlation_id": _text(properties["correlation_id"]),
        "user_id": _text(properties["user_id"]),
        "redelivered": bool(delivery["redelivered"]),
    }


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode("utf-8", "surrogateescape")


def _reply_to_address(reply_to: ReplyTo | None) -> str | None:
    if reply_to is None:
        return None
    exchange, routing_key = reply_to.exchange or "", reply_to.routing_key or ""
    if exchange:
        return format_address(Address(exchange, routing_key or None, {"node": {"type": "topic"}}))
    return format_address(Address(routing_key, None, {"node": {"type": "queue"}}))
