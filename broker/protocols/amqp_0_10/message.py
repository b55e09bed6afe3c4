"""A message in its AMQP 0-10 form: as received, as stored, and converted from another protocol's.

The structs of the header segment and the body are kept as received. Of the structs only delivery-properties is decoded
on the way through the broker (`publishing`), and the broker sets two of its fields:

    exchange      the exchange that the message was published to, for consumers and recovery
    expiration    end of its ttl, in seconds since 1970

The broker puts this struct first, so that the "redelivered" bit is at the same offset in all messages. Application
headers are decoded only by exchanges that use them, or by a filter.

A stored message is `u32 header size | message.transfer frame | header frame | body`
(formats/broker_records/README.md, 1.1 and 1.2). Most messages of a queue begin alike, up to the end of their
delivery-properties: the decoded beginning of the last one is reused for the next, and caches have parts of others.

Messages of other protocols are converted (`as_transfer`):

    neutral                         AMQP 0-10
    ------------------------------  --------------------------------------------------------------------------
    exchange, routing key           delivery-properties
    persistent, priority            delivery-properties
    time of creation                delivery-properties: timestamp
    message id                      message-id, if it is a UUID, also as text; else the header x-amqp-message-id
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

import struct
import sys
import uuid
from collections.abc import Hashable, Mapping
from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.model.errors import HeaderTooLargeError, InvalidArgumentError, ResourceLimitExceededError
from qstore.broker.model.exchanges.failover import FAILOVER
from qstore.broker.model.message import Content, Handling, Message, NewMessage, Properties, ReplyAddress
from qstore.broker.model.run import MessageRun
from qstore.broker.protocols.message import (
    CONTENT_TYPES,
    MESSAGE_ID_HEADER,
    SUBJECT_HEADER,
    NativeMessage,
    SharedHead,
    encoded_content,
    is_long,
    long_header,
    reply_in,
)
from qstore.formats.amqp_0_10.codes import DeliveryMode
from qstore.formats.amqp_0_10.commands import decode_struct, encode_command
from qstore.formats.amqp_0_10.frames import (
    COMMAND,
    FIRST_FRAME,
    FIRST_SEGMENT,
    FRAME,
    HEADER,
    LAST_FRAME,
    LAST_SEGMENT,
    TRACK_COMMAND,
    encode_frame,
)
from qstore.formats.amqp_0_10.maps import TooManyValuesError, encode_value
from qstore.formats.amqp_0_10.structs import (
    DELIVERY_PROPERTIES,
    MESSAGE_PROPERTIES,
    ReplyTo,
    check_amounts,
    encode_struct,
)
from qstore.formats.amqp_0_10.types import Amqp010Error, wire_type_of
from qstore.formats.broker_records.messages import HEADER_SIZE_BYTES, frames_problem, header_size
from qstore.formats.errors import BrokerRecordError
from qstore.formats.kernels.bodies import Bodies, SizeField
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import (
    EMPTY_MAP,
    MAX_VALUES,
    VBIN16,
    TypedArray,
    TypedMap,
    TypedValue,
    is_utf8,
    typed_value,
)

if TYPE_CHECKING:
    from qstore.broker.model.virtual_host import VirtualHost

DEFAULT_PRIORITY: Final = 4
MAX_HEADER_BYTES: Final = 0xFFFF - FRAME.size - 400  # of a received header: the rest is for additions of the broker

_DELIVERY: Final = 0x0401
_MESSAGE: Final = 0x0403
_FLAGS_AT: Final = 6  # in a struct: size u32, code u16, then the flags
_REDELIVERED: Final = 0x04  # in the first byte of the flags of delivery-properties, like the flags below
_MARKED: Final = tuple(bytes((flags | _REDELIVERED,)) for flags in range(256))
_BEFORE_TIMES: Final = (0x08, 0x10)  # priority and delivery mode: a byte each
_EIGHT_BYTES: Final = {"ttl": 0x20, "timestamp": 0x40, "expiration": 0x80}
_OF_LIFE: Final = ("ttl", "expiration", "resume_id", "resume_ttl")
_LATEST: Final = (1 << 64) - 1
_TIMES: Final = 0xC0  # timestamp and expiration
_USER_ID: Final = 0x40  # in that of message-properties
_CONTENT_LENGTH: Final = 0x01  # likewise; its 8 bytes are the first field
_WHOLE: Final = FIRST_FRAME | LAST_FRAME
_PREFIXES_KEPT: Final = 2048
_MAX_HOSTS: Final = 64
_MAX_TTL: Final = (1 << 64) - 1
_u32: Final = struct.Struct(">I").unpack_from
_two_u32: Final = struct.Struct(">II").unpack_from


class DeliveryProperties(NamedTuple):
    """The decoded delivery-properties that routing and queues need, and the struct as the broker passes it on.

    Attributes:
        encoded: the struct with exchange, but without expiration.
        routing_key: as sent.
        is_persistent: by its delivery mode.
        handling: its priority, and further options.
        ttl: milliseconds; None for a message that does not expire.
        expiration: seconds since 1970; 0 for none.
        resume_id, resume_ttl: identify an interrupted transfer, and the milliseconds it is kept; None and 0 if the
            sender does not request that.
    """

    encoded: bytes
    routing_key: str
    is_persistent: bool
    handling: Handling
    ttl: int | None
    expiration: int
    resume_id: str | None = None
    resume_ttl: int = 0


class TransferMessage(NativeMessage):
    """A message received by message.transfer.

    Attributes:
        header: the structs of its header segment, delivery-properties first.
        has_body: whether it has a body segment, which may be empty.
    """

    __slots__ = ("has_body",)

    def __init__(
        self,
        header: bytes,
        body: Content | None,
        exchange: str,
        properties: DeliveryProperties,
        expires_at: float,
        head: SharedHead | None = None,
    ) -> None:
        self.header, self.exchange, self.head = header, exchange, head
        self.has_body = body is not None
        self.body = body = body or b""
        self.routing_key = properties.routing_key
        self.is_persistent = properties.is_persistent
        self.handling = properties.handling
        self.expires_at = expires_at
        self.size = len(header) + len(body)
        self._crc = -1

    def with_body(self, body: bytes, field: SizeField | None) -> TransferMessage:
        """As `Message.with_body`."""
        properties = DeliveryProperties(b"", self.routing_key, self.is_persistent, self.handling, None, 0)
        header, head = self.header, self.head
        if field is not None:
            header, head = field.set_in(header, len(body)), None
        return TransferMessage(header, body, self.exchange, properties, 0.0, head)

    @property
    def size_field(self) -> SizeField | None:
        """As `Message.size_field`."""
        return content_length_field(self.header)

    def contents_of(self, bodies: Bodies, lead: bytes) -> Bodies | None:
        """As `Message.contents_of`: the bodies."""
        return None if lead else bodies

    def stored_begin(self) -> bytes:
        """As `NativeMessage.stored_begin`."""
        return _prefix(self.exchange, len(self.header), not self.has_body)

    def raw_headers(self) -> bytes:
        """As `Message.raw_headers`."""
        return self.header

    def headers(self) -> TypedMap:
        """Its application headers."""
        headers: TypedMap = self._message_properties().get("application_headers") or EMPTY_MAP
        return headers

    def properties(self) -> Properties:
        """Its message-properties, and the timestamp of its delivery-properties."""
        values = self._message_properties()
        reply_to: ReplyTo | None = values.get("reply_to")
        return Properties(
            message_id=values.get("message_id"),
            correlation_id=values.get("correlation_id"),
            user_id=values.get("user_id"),
            app_id=values.get("app_id"),
            reply_to=None if reply_to is None else ReplyAddress(reply_to.exchange or "", reply_to.routing_key or ""),
            content_type=values.get("content_type"),
            content_encoding=values.get("content_encoding"),
            created_at=_number_of(self.header, "timestamp"),
            ttl=_number_of(self.header, "ttl"),
            headers=values.get("application_headers") or EMPTY_MAP,
        )

    def _message_properties(self) -> dict[str, Any]:
        """The fields of its message-properties; empty if they cannot be decoded."""
        try:
            at = find_struct(self.header, _MESSAGE)
            return {} if at is None else decode_struct(MESSAGE_PROPERTIES, self.header, *at)
        except Amqp010Error:
            return {}

    @property
    def was_redelivered(self) -> bool:
        """As `Message.was_redelivered`."""
        return bool(self.header[_FLAGS_AT] & _REDELIVERED)

    def expiring_at(self, moment: float) -> TransferMessage:
        """As `Message.expiring_at`; stored in whole seconds, rounded up."""
        size = 4 + _two_u32(self.header, 0)[0]
        header = with_property(self.header[:size], "expiration", ceil(moment)) + self.header[size:]
        properties = DeliveryProperties(b"", self.routing_key, self.is_persistent, self.handling, None, 0)
        return TransferMessage(header, self.body if self.has_body else None, self.exchange, properties, moment)

    def with_headers(self, changes: Mapping[str, TypedValue | None]) -> TransferMessage:
        """A copy of the message with some application headers set, or removed where the value is None.

        Raises:
            InvalidArgumentError: its message-properties cannot be decoded.
        """
        try:
            header = _with_application_headers(self.header, changes)
        except Amqp010Error as error:
            names = ", ".join(changes)
            raise InvalidArgumentError(f"the header {names} cannot be added to the message: {error}") from error
        properties = DeliveryProperties(b"", self.routing_key, self.is_persistent, self.handling, None, 0)
        body = self.body if self.has_body else None
        return TransferMessage(header, body, self.exchange, properties, self.expires_at)

    def readdressed(self, exchange: str, routing_key: str, changes: Mapping[str, TypedValue | None]) -> TransferMessage:
        """As `Message.readdressed`."""
        size = 4 + _two_u32(self.header, 0)[0]
        try:
            given = decode_struct(DELIVERY_PROPERTIES, self.header, 0, size)
            left = {name: value for name, value in given.items() if name not in _OF_LIFE and value is not None}
            left["routing_key"] = routing_key
            properties = read_delivery_properties(encode_struct(DELIVERY_PROPERTIES, left), exchange)
            header = properties.encoded + _extended(self.header[size:], changes)
        except Amqp010Error as error:
            raise InvalidArgumentError(f"the message cannot be sent to exchange {exchange!a}: {error}") from error
        if len(header) > MAX_HEADER_BYTES:
            raise HeaderTooLargeError(len(header), MAX_HEADER_BYTES)
        properties = properties._replace(handling=self.handling)
        return TransferMessage(header, self.body if self.has_body else None, exchange, properties, 0.0)

    @property
    def likeness(self) -> Hashable:
        """As `Message.likeness`: its header."""
        return self.header, self.exchange

    def readdressed_as(self, other: Message) -> TransferMessage:
        """As `Message.readdressed_as`."""
        assert isinstance(other, TransferMessage)
        properties = DeliveryProperties(b"", other.routing_key, other.is_persistent, self.handling, None, 0)
        return TransferMessage(other.header, self.body if self.has_body else None, other.exchange, properties, 0.0)

    def bodiless(self) -> TransferMessage:
        """As `Message.bodiless`."""
        properties = DeliveryProperties(b"", self.routing_key, self.is_persistent, self.handling, None, 0)
        return TransferMessage(self.header, None, self.exchange, properties, 0.0)

    def header_for_delivery(self, *, is_redelivered: bool, now: float) -> bytes:
        """Its header for a consumer, with the remaining ttl, and the redelivered bit if it was delivered before."""
        header = self.header
        if self.expires_at:
            header = _with_ttl(header, min(max(1, ceil((self.expires_at - now) * 1000)), _MAX_TTL))
        return _with_mark(header) if is_redelivered else header

    def header_for_redelivery(self) -> bytes:
        """Its header for a consumer, if it was delivered before and does not expire."""
        return _with_mark(self.header)


# ---- header segments ----


def announced_hosts(header: bytes) -> tuple[str, ...]:
    """The URLs in the header segment of a message of the exchange `amq.failover`, 64 at most.

    None are in a message that did not come from there: everybody may publish to the queue of a listener, by its name.
    """
    try:
        delivery, message = find_struct(header, _DELIVERY), find_struct(header, _MESSAGE)
        if delivery is None or message is None:
            return ()
        exchange = decode_struct(DELIVERY_PROPERTIES, header, *delivery)["exchange"]
        headers = decode_struct(MESSAGE_PROPERTIES, header, *message)["application_headers"]
    except Amqp010Error:
        return ()
    found = None if headers is None or exchange != FAILOVER else headers.get(FAILOVER)
    values = found.value.values if found is not None and isinstance(found.value, TypedArray) else ()
    return tuple(each for each in values[:_MAX_HOSTS] if isinstance(each, str))


def split_header(header: bytes) -> tuple[bytes, bytes]:
    """Split a header segment into its delivery-properties, empty if absent, and the other structs.

    Raises:
        Amqp010Error: it is not a sequence of structs.
    """
    length = len(header)
    at, found = 0, b""
    if length >= 8:  # usually the delivery-properties come first, then at most one other struct
        size, code_and_flags = _two_u32(header, 0)
        at = 4 + size
        if code_and_flags >> 16 == _DELIVERY and size >= 4:
            if at == length:
                return header, b""
            if at + 8 <= length and at + 4 + _u32(header, at)[0] == length:
                return header[:at], header[at:]
        at = 0
    others: list[bytes] = []
    while at < length:
        if length - at < 8:
            raise Amqp010Error("the header ends inside a struct", at)
        size, code_and_flags = _two_u32(header, at)
        end = at + 4 + size
        if end > length or size < 4:
            raise Amqp010Error(f"a struct of {size} bytes does not fit the header", at)
        if code_and_flags >> 16 == _DELIVERY and not found:
            found = header[at:end]
        else:
            others.append(header[at:end])
        at = end
    return found, others[0] if len(others) == 1 else b"".join(others)


def find_struct(header: bytes, code: int) -> tuple[int, int] | None:
    """Begin and end of the struct with that code in a header; None if it is absent."""
    at = 0
    while at + 8 <= len(header):
        size, code_and_flags = _two_u32(header, at)
        if code_and_flags >> 16 == code:
            return at, at + 4 + size
        at += 4 + size
    return None


def check_header_amount(header: bytes) -> None:
    """Raise ResourceLimitExceededError if a received header has more than `MAX_VALUES` application headers in all."""
    at = find_struct(header, _MESSAGE)
    if at is None or at[1] > len(header):
        return
    try:
        check_amounts(MESSAGE_PROPERTIES, header, at[0] + _FLAGS_AT, at[1])
    except TooManyValuesError:
        text = f"a message has more than {MAX_VALUES:,} application headers, or values in them"
        raise ResourceLimitExceededError(text) from None
    except Amqp010Error:
        return  # it has no headers then, for any use of them


def content_length_field(header: bytes) -> SizeField | None:
    """The field of a header that gives the size of the body; None if it has none."""
    at = find_struct(header, _MESSAGE)
    if at is None or at[1] > len(header) or at[1] - at[0] < _FLAGS_AT + 10:
        return None
    return SizeField(at[0] + _FLAGS_AT + 2, 8) if header[at[0] + _FLAGS_AT] & _CONTENT_LENGTH else None


def user_id_of(header: bytes) -> str | None:
    """The user id of a message; None if it has none, or an empty one, as qpidd's clients send. Raises Amqp010Error."""
    at = find_struct(header, _MESSAGE)
    if at is None or not header[at[0] + _FLAGS_AT] & _USER_ID:
        return None
    user_id: bytes = decode_struct(MESSAGE_PROPERTIES, header, *at)["user_id"]
    return user_id.decode("utf-8", "replace") or None


def read_delivery_properties(given: bytes, exchange: str) -> DeliveryProperties:
    """Decode delivery-properties; `given` is empty if they are absent. Raises Amqp010Error."""
    values: dict[str, Any] = decode_struct(DELIVERY_PROPERTIES, given, 0, len(given)) if given else {}
    priority = values.get("priority")
    properties = {name: value for name, value in values.items() if value is not None}
    properties["exchange"] = exchange
    return DeliveryProperties(
        encoded=encode_struct(DELIVERY_PROPERTIES, properties),
        routing_key=values.get("routing_key") or "",
        is_persistent=values.get("delivery_mode") == DeliveryMode.PERSISTENT,
        handling=Handling(
            priority=DEFAULT_PRIORITY if priority is None else priority,
            is_immediate=bool(values.get("immediate")),
            discards_unroutable=bool(values.get("discard_unroutable")),
        ),
        ttl=values.get("ttl"),
        expiration=values.get("expiration") or 0,
        resume_id=values.get("resume_id"),
        resume_ttl=values.get("resume_ttl") or 0,
    )


def _with_mark(header: bytes) -> bytes:
    return b"".join((header[:_FLAGS_AT], _MARKED[header[_FLAGS_AT]], header[_FLAGS_AT + 1 :]))


def _with_ttl(header: bytes, milliseconds: int) -> bytes:
    size = 4 + _two_u32(header, 0)[0]
    return with_property(header[:size], "ttl", milliseconds) + header[size:]


def _extended(others: bytes, changes: Mapping[str, TypedValue | None]) -> bytes:
    """As `_with_application_headers`; message-properties that cannot be decoded are lost."""
    try:
        return _with_application_headers(others, changes)
    except Amqp010Error:
        return _with_application_headers(b"", changes)


def _with_application_headers(header: bytes, changes: Mapping[str, TypedValue | None]) -> bytes:
    """A header segment with application headers set, or removed where the value is None. Raises Amqp010Error."""
    begin, end = find_struct(header, _MESSAGE) or (len(header), len(header))
    values = decode_struct(MESSAGE_PROPERTIES, header, begin, end) if begin < end else {}
    properties = {each: given for each, given in values.items() if given is not None}
    headers: TypedMap = properties.get("application_headers", EMPTY_MAP)
    kept = [entry for entry in headers.entries if entry[0] not in changes]
    kept += [(name, value) for name, value in changes.items() if value is not None]
    properties["application_headers"] = TypedMap(tuple(kept))
    return header[:begin] + encode_struct(MESSAGE_PROPERTIES, properties) + header[end:]


def _place_of(flag: int, flags: int) -> int:
    """Offset of the field with `flag`, one of `_EIGHT_BYTES`, in delivery-properties with `flags`."""
    eights = sum(flag > other and flags & other == other for other in _EIGHT_BYTES.values())
    return _FLAGS_AT + 2 + sum(flags & each == each for each in _BEFORE_TIMES) + 8 * eights


_PLACES: Final = {name: bytes(_place_of(flag, flags) for flags in range(256)) for name, flag in _EIGHT_BYTES.items()}
"""Field -> its offset, for each value of the first byte of the flags."""


def with_property(encoded: bytes, name: str, value: int) -> bytes:
    """Valid delivery-properties with one field set: ttl, timestamp or expiration."""
    flags, flag = encoded[_FLAGS_AT], _EIGHT_BYTES[name]
    place, number = _PLACES[name][flags], value.to_bytes(8, "big")
    if flags & flag:
        return encoded[:place] + number + encoded[place + 8 :]
    size = (len(encoded) + 4).to_bytes(4, "big")  # without itself, and with the new field
    return b"".join(
        (size, encoded[4:_FLAGS_AT], bytes((flags | flag,)), encoded[_FLAGS_AT + 1 : place], number, encoded[place:])
    )


def _number_of(header: bytes, name: str) -> int | None:
    """A field of eight bytes in a header whose delivery-properties come first; None if it is absent."""
    flags = header[_FLAGS_AT]
    if not flags & _EIGHT_BYTES[name]:
        return None
    place = _PLACES[name][flags]
    return int.from_bytes(header[place : place + 8], "big")


class Times(NamedTuple):
    """Timestamp and expiration of delivery-properties: the fields in which a publisher's messages differ most.

    Attributes:
        place: offset of the first of them.
        encoded: their bytes.
        expiration: seconds since 1970; 0 for none.
    """

    place: int
    encoded: bytes
    expiration: int

    def put_into(self, encoded: bytes) -> bytes:
        """Replace the same fields of other delivery-properties."""
        return encoded[: self.place] + self.encoded + encoded[self.place + len(self.encoded) :]


def without_times(given: bytes) -> tuple[bytes, Times | None]:
    """Replace timestamp and expiration of delivery-properties by zeros. None if there are none.

    `given` need not be valid; the result is valid if and only if `given` is.
    """
    flags = given[_FLAGS_AT] if given else 0
    if not flags & _TIMES:
        return given, None
    place = _PLACES["timestamp"][flags]
    end = place + (16 if flags & _TIMES == _TIMES else 8)
    if end > len(given):
        return given, None
    expiration = int.from_bytes(given[end - 8 : end], "big") if flags & _EIGHT_BYTES["expiration"] else 0
    return given[:place] + bytes(end - place) + given[end:], Times(place, given[place:end], expiration)


# ---- messages that the broker publishes ----


def new_transfer(new: NewMessage) -> TransferMessage:
    """Encode a message that the broker itself publishes."""
    mode = DeliveryMode.PERSISTENT if new.is_persistent else DeliveryMode.NON_PERSISTENT
    given = encode_struct(DELIVERY_PROPERTIES, {"routing_key": new.routing_key, "delivery_mode": mode})
    properties = read_delivery_properties(given, new.exchange)
    fields: dict[str, Any] = {"application_headers": new.headers}
    fields |= {
        name: value
        for name, value in (("app_id", new.app_id), ("correlation_id", new.correlation_id))
        if value is not None
    }
    if new.reply_to is not None:
        fields["reply_to"] = ReplyTo(*new.reply_to)
    body = new.content if isinstance(new.content, bytes) else None
    if isinstance(new.content, TypedValue):
        fields["content_type"] = CONTENT_TYPES[new.content.type.family]
        body = encode_value(wire_type_of(new.content.type), new.content.value)
    header = properties.encoded + encode_struct(MESSAGE_PROPERTIES, fields)
    return TransferMessage(header, body, new.exchange, properties, new.expires_at)


def received_transfer(header: bytes, body: Content, now: float) -> TransferMessage:
    """A message that a client has received at `now`, in seconds since 1970; its exchange is in its header.

    Raises:
        Amqp010Error: its header cannot be decoded.
    """
    given, others = split_header(header)
    exchange, properties = _stored_properties(given)
    expires_at = float(properties.expiration)
    if properties.ttl is not None:
        expires_at = now + properties.ttl / 1000
    return TransferMessage(properties.encoded + others, body, exchange, properties, expires_at)


# ---- stored messages ----


@lru_cache(maxsize=_PREFIXES_KEPT)
def _prefix(exchange: str, length: int, is_last: bool) -> bytes:
    """The bytes before the header of a stored message."""
    transfer = encode_command("message.transfer", destination=exchange)
    method = encode_frame(FIRST_SEGMENT | _WHOLE, COMMAND, TRACK_COMMAND, 0, transfer)
    flags = _WHOLE | (LAST_SEGMENT if is_last else 0)
    head = FRAME.pack(flags, HEADER, FRAME.size + length, 0, TRACK_COMMAND, 0, 0)
    return (len(method) + len(head) + length).to_bytes(HEADER_SIZE_BYTES, "big") + method + head


_HIGHEST_PRIORITY: Final = 9


class TransferIn:
    """Converts messages to transfers that clients get from a virtual host; one with equal arguments is equal.

    Args:
        host: the virtual host, to whose queues and exchanges reply addresses belong.
        is_run: whether it converts templates of runs, whose contents are bytes.
    """

    __slots__ = ("_host", "_is_run")

    def __init__(self, host: VirtualHost, *, is_run: bool = False) -> None:
        self._host, self._is_run = host, is_run

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TransferIn) and other._host is self._host and other._is_run is self._is_run

    def __hash__(self) -> int:
        return hash(self._host)

    def __call__(self, message: Message) -> TransferMessage | None:
        """As `as_transfer`."""
        return _transfer_with(message, self._host, b"") if self._is_run else as_transfer(message, self._host)


def run_as_transfer(run: MessageRun, host: VirtualHost) -> tuple[TransferMessage, Bodies, SizeField | None] | None:
    """What messages of a run have in common in their 0-10 form, their bodies, and the field that gives their sizes.

    None if they have to be converted singly, or AMQP 0-10 cannot represent them.
    """
    template = run.template
    if isinstance(template, TransferMessage):
        return template, run.bodies, run.field
    bodies = None if template.expires_at else run.contents
    converted = None if bodies is None else template.converted(TransferIn(host, is_run=True))
    return None if bodies is None or converted is None else (converted, bodies, None)


def as_transfer(message: Message, host: VirtualHost | None = None) -> TransferMessage | None:
    """A message of another protocol as a transfer; None if AMQP 0-10 cannot represent it. `host`: see `TransferIn`."""
    try:
        content = message.content()
    except BrokerRecordError:
        return None
    return _transfer_with(message, host, content)


def _transfer_with(message: Message, host: VirtualHost | None, content: Content | TypedValue) -> TransferMessage | None:
    """As `as_transfer`, with this content."""
    try:
        properties = message.properties()
        if host is not None and properties.reply_to is not None:
            properties = properties._replace(reply_to=reply_in(host, properties.reply_to))
        content_type, body = encoded_content(content, properties.content_type)
        fields = _fields(properties._replace(content_type=content_type))
        structs = encode_struct(MESSAGE_PROPERTIES, fields) if fields else b""
        given: dict[str, Any] = {
            "routing_key": message.routing_key,
            "priority": min(message.handling.priority, _HIGHEST_PRIORITY),
            "delivery_mode": DeliveryMode.PERSISTENT if message.is_persistent else DeliveryMode.NON_PERSISTENT,
        }
        if properties.created_at is not None:
            given["timestamp"] = min(max(0, int(properties.created_at)), _LATEST)  # as a float it may be rounded up
        delivery = read_delivery_properties(encode_struct(DELIVERY_PROPERTIES, given), message.exchange)
    except (Amqp010Error, BrokerRecordError):
        return None
    header = delivery.encoded + structs
    if len(header) > MAX_HEADER_BYTES:
        return None
    return TransferMessage(header, body, message.exchange, delivery, message.expires_at)


def _fields(properties: Properties) -> dict[str, Any]:
    """The fields of message-properties."""
    entries = list(properties.headers.entries)
    names = {name for name, _ in entries}
    message_id = _uuid(properties.message_id)
    if message_id is None and properties.message_id is not None and MESSAGE_ID_HEADER not in names:
        entries.append((MESSAGE_ID_HEADER, _header_value(properties.message_id)))
    if properties.subject and SUBJECT_HEADER not in names:
        entries.append((SUBJECT_HEADER, _header_value(properties.subject)))
    reply = properties.reply_to
    texts = {
        "content_type": properties.content_type,
        "content_encoding": properties.content_encoding,
        "reply_to": None if reply is None or not any(map(is_long, reply)) else "/".join(filter(None, reply)),
    }
    longer = {name: text for name, text in texts.items() if text is not None and is_long(text)}
    entries += [(long_header(name), _header_value(text)) for name, text in longer.items()]
    fields = {
        "message_id": message_id,
        "correlation_id": _raw(properties.correlation_id),
        "reply_to": None if "reply_to" in longer else reply,
        "content_type": None if "content_type" in longer else properties.content_type,
        "content_encoding": None if "content_encoding" in longer else properties.content_encoding,
        "user_id": properties.user_id,
        "app_id": properties.app_id,
        "application_headers": TypedMap(tuple(entries)) if entries else None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _header_value(value: object) -> TypedValue:
    """An id or a subject as a header; text that is not UTF-8 as bytes."""
    if isinstance(value, str) and not is_utf8(value):
        return TypedValue(VBIN16, value.encode("utf-8", "surrogateescape"))
    return typed_value(value)


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


_CACHED: Final = 2048
_MAX_CACHED_BYTES: Final = 512  # of a cached item: longer ones are rare


class _Beginning:
    """The common beginning of stored messages that differ only after their delivery-properties, and never expire.

    Attributes:
        encoded: the common bytes: header size, frame headers, delivery-properties.
        header_at, header_end: where the structs of their headers begin and end.
        may_lack_body: whether they have no body segment if nothing follows the header.
        exchange, properties: common to all of them.
        header: the structs of the last one.
        head: shared by messages with the same header as the last one.
    """

    __slots__ = ("encoded", "exchange", "head", "header", "header_at", "header_end", "may_lack_body", "properties")

    def __init__(
        self,
        encoded: bytes,
        header_at: int,
        header_end: int,
        exchange: str,
        properties: DeliveryProperties,
        header: bytes,
        *,
        may_lack_body: bool,
    ) -> None:
        self.encoded, self.header_at, self.header_end, self.header = encoded, header_at, header_end, header
        self.exchange, self.properties, self.may_lack_body = exchange, properties, may_lack_body
        self.head: SharedHead | None = None if may_lack_body else SharedHead()


class _Recent:
    """The beginning of the last message decoded: messages of one queue are decoded one after the other."""

    __slots__ = ("beginning",)

    def __init__(self) -> None:
        nothing = DeliveryProperties(b"", "", False, Handling(), None, 0)
        self.beginning = _Beginning(b"", 0, sys.maxsize, "", nothing, b"", may_lack_body=False)


_RECENT: Final = _Recent()


def restore_transfer(data: bytes) -> TransferMessage:
    """Decode a stored 0-10 message, written by this broker or by qpidd.

    Raises:
        BrokerRecordError: it cannot be decoded.
    """
    return restore_alike(data, 0, len(data)) or _restore_any(data)


def restore_alike(data: bytes, begin: int, end: int) -> TransferMessage | None:
    """Decode a stored 0-10 message that begins like the last one; None if it does not, or may be damaged.

    Args:
        data: bytes that contain it.
        begin: its first byte.
        end: its end.
    """
    known = _RECENT.beginning
    header_end = begin + known.header_end
    if header_end > end or not data.startswith(known.encoded, begin):
        return None
    header, at = known.header, begin + len(known.encoded)
    if at != header_end and not data.startswith(header, begin + known.header_at):
        if at + 8 > header_end or at + 4 + _u32(data, at)[0] != header_end:
            return None
        known.header = header = data[begin + known.header_at : header_end]
        if known.head is not None:
            known.head = SharedHead()
    body = None if known.may_lack_body and header_end == end else data[header_end:end]
    return TransferMessage(header, body, known.exchange, known.properties, 0.0, known.head)


def _restore_any(data: bytes) -> TransferMessage:
    size = len(data)
    header_end = HEADER_SIZE_BYTES + header_size(data)
    if header_end > size:
        raise BrokerRecordError(f"a header of {header_end - HEADER_SIZE_BYTES} bytes in {size} bytes of data", 0)
    header_at = min(HEADER_SIZE_BYTES + int.from_bytes(data[6:8], "big") + FRAME.size, header_end)
    flags = (_flags_alike if header_at <= _MAX_CACHED_BYTES else _frame_flags)(data[:header_at])
    try:
        given, others = split_header(data[header_at:header_end])
        given, times = without_times(given)
        exchange, properties = (_properties_alike if len(given) <= _MAX_CACHED_BYTES else _stored_properties)(given)
    except Amqp010Error as error:
        raise BrokerRecordError(error.what, 0) from error
    may_lack_body = flags & LAST_SEGMENT != 0
    body = None if may_lack_body and header_end == size else data[header_end:]
    encoded, expiration = properties.encoded, properties.expiration
    if times is not None:
        encoded, expiration = times.put_into(encoded), times.expiration
    elif not expiration and encoded + others == data[header_at:header_end]:
        header = encoded + others
        _RECENT.beginning = _Beginning(
            data[: header_at + len(encoded)],
            header_at,
            header_end,
            exchange,
            properties,
            header,
            may_lack_body=may_lack_body,
        )
    return TransferMessage(encoded + others, body, exchange, properties, float(expiration))


def _frame_flags(prefix: bytes) -> int:
    """The flags of the last frame before the content of a stored message, given all bytes before its payload.

    Raises:
        BrokerRecordError: they are not the frames of a 0-10 message.
    """
    header = header_size(prefix)
    problem = frames_problem(prefix, HEADER_SIZE_BYTES + header)
    if problem is not None:
        raise BrokerRecordError(problem, 0)
    if prefix[HEADER_SIZE_BYTES : HEADER_SIZE_BYTES + 4] == b"\0\0\0\0":
        raise BrokerRecordError("an AMQP 1.0 message", 0)
    has_header_frame = int.from_bytes(prefix[6:8], "big") < header
    return prefix[-FRAME.size if has_header_frame else HEADER_SIZE_BYTES]


def _stored_properties(given: bytes) -> tuple[str, DeliveryProperties]:
    """The exchange and the delivery-properties of a stored message. Raises Amqp010Error."""
    values = decode_struct(DELIVERY_PROPERTIES, given, 0, len(given)) if given else {}
    exchange = values.get("exchange") or ""
    return exchange, read_delivery_properties(given, exchange)


# Most messages of a queue begin alike.
_flags_alike: Final = lru_cache(maxsize=_CACHED)(_frame_flags)
_properties_alike: Final = lru_cache(maxsize=_CACHED)(_stored_properties)
