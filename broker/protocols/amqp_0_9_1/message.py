"""A message in its AMQP 0-9-1 form: as received, as stored, and converted from another protocol's.

Content header, exchange, routing key and body are kept as received. Of the properties only those that queues need are
read (delivery mode, priority, expiration); the others are checked, and decoded on demand.

The protocol's expiration is relative; its end, `expires_at`, is stored with the message. A message without a priority
has priority 0, as in RabbitMQ.

A stored message is `u32 header size | u32 mark | u64 expiration | exchange | routing key | content header | body`
(formats/broker_records/README.md, 1.7).

A message may have further routing keys, in its headers CC and BCC (`model/message`). Consumers get its content
header without BCC. It is stored with BCC, so that a dead letter is routed by these keys after a restart, too. Its size
is that of the stored form. The keys are decoded when needed, because they take many times the memory of the header.

README.md has the mapping between the protocols, in both directions. The frames of a large message are built from the
pieces of its body, without copying them.

Source: AMQP 0-9-1, 2.3.5.2 and 4.2.6, class basic.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from math import ceil
from typing import Any, Final

from qstore.broker.model.errors import HeaderTooLargeError, InvalidArgumentError
from qstore.broker.model.message import (
    BCC,
    CC,
    Buffer,
    Content,
    Handling,
    Message,
    ReplyAddress,
    StoredForm,
    selected_keys,
)
from qstore.broker.model.message import Properties as NeutralProperties
from qstore.broker.model.run import MessageRun
from qstore.broker.protocols.message import (
    MESSAGE_ID_HEADER,
    SUBJECT_HEADER,
    NativeMessage,
    SharedHead,
    encoded_content,
    is_long,
    long_header,
)
from qstore.broker.protocols.output import parts_of
from qstore.formats.amqp_0_9_1.codes import Amqp091Error
from qstore.formats.amqp_0_9_1.frames import BODY, FRAME, FRAME_END, HEADER, METHOD, OVERHEAD, encode_frame
from qstore.formats.amqp_0_9_1.methods import encode_routed
from qstore.formats.amqp_0_9_1.properties import Properties, body_size, decode_header, encode_header, read_handling
from qstore.formats.amqp_0_10.types import Amqp010Error
from qstore.formats.broker_records.amqp_0_9_1_messages import encode_begin, milliseconds, split_record
from qstore.formats.broker_records.messages import HEADER_SIZE_BYTES, header_size
from qstore.formats.errors import BrokerRecordError
from qstore.formats.kernels.bodies import Bodies, SizeField
from qstore.formats.values import EMPTY_MAP, STR16, TypedMap, TypedValue

MAX_FRAME: Final = 131_072
"""Maximum frame size in bytes that clients are offered, as in RabbitMQ."""

_END: Final = bytes((FRAME_END,))


def content_frames(
    channel: int, method: bytes, header: bytes, body: Content, max_payload: int
) -> Iterator[tuple[Buffer, ...]]:
    """The frames, in order, each as the buffers to write.

    Args:
        channel: the channel.
        method: the method.
        header: the content header; it fits a frame.
        body: the body; no frames for an empty one.
        max_payload: maximum size of a frame's payload in bytes.
    """
    yield (encode_frame(METHOD, channel, method),)
    yield (FRAME.pack(HEADER, channel, len(header)), header, _END)
    for part in parts_of(body, max_payload):
        yield FRAME.pack(BODY, channel, len(part)), part, _END


_SIZE_AT: Final = 4  # where the size of the body begins in a content header, after class and weight
_SIZE_END: Final = 12
SIZE_FIELD: Final = SizeField(_SIZE_AT, _SIZE_END - _SIZE_AT)
_MAX_HEADER: Final = 0xFFFF  # bytes of a header after additions of the broker: all but small frames have room for it


class BasicMessage(NativeMessage):
    """A message received by basic.publish.

    Args:
        header: the content header.
        body: the body.
        exchange, routing_key: as in `Message`.
        routed: both, encoded as in basic.deliver.
        is_persistent, handling, expires_at: as in `Message`.
        head: shared with other messages that have the same header and routing; None for none.

    Attributes:
        routed: as above.
    """

    __slots__ = ("routed",)

    def __init__(
        self,
        header: bytes,
        body: Content,
        exchange: str,
        routing_key: str,
        routed: bytes,
        is_persistent: bool,
        handling: Handling,
        expires_at: float,
        head: SharedHead | None = None,
    ) -> None:
        self.header, self.routed, self.head = header, routed, head
        self.exchange, self.routing_key, self.body = exchange, routing_key, body
        self.size = len(header) + len(body)
        self.is_persistent, self.handling, self.expires_at = is_persistent, handling, expires_at
        self._crc = -1

    def with_body(self, body: bytes, field: SizeField | None) -> BasicMessage:
        """As `Message.with_body`."""
        header, head = self.header, self.head
        if field is not None:
            header, head = field.set_in(header, len(body)), None
        return BasicMessage(
            header, body, self.exchange, self.routing_key, self.routed, self.is_persistent, self.handling, 0.0, head
        )

    @property
    def size_field(self) -> SizeField | None:
        """As `Message.size_field`."""
        return SIZE_FIELD

    def contents_of(self, bodies: Bodies, lead: bytes) -> Bodies | None:
        """As `Message.contents_of`: the bodies."""
        return None if lead else bodies

    def stored_begin(self) -> bytes:
        """As `NativeMessage.stored_begin`."""
        return encode_begin(ceil(self.expires_at * 1000), self.routed, len(self.header))

    def basic_properties(self) -> Properties:
        """Its properties as AMQP 0-9-1 has them; empty if they cannot be decoded."""
        try:
            return decode_header(self.header)[1]
        except Amqp091Error:
            return Properties()

    def raw_headers(self) -> bytes:
        """As `Message.raw_headers`."""
        return self.header

    def headers(self) -> TypedMap:
        """Its headers."""
        return self.basic_properties().headers or EMPTY_MAP

    def properties(self) -> NeutralProperties:
        """Its properties."""
        values = self.basic_properties()
        return NeutralProperties(
            message_id=values.message_id,
            correlation_id=values.correlation_id,
            user_id=_raw(values.user_id),
            app_id=_raw(values.app_id),
            reply_to=None if values.reply_to is None else ReplyAddress("", values.reply_to),
            content_type=values.content_type,
            content_encoding=values.content_encoding,
            subject=values.type,
            created_at=values.timestamp,
            ttl=milliseconds(values.expiration),
            headers=values.headers or EMPTY_MAP,
        )

    def expiring_at(self, moment: float) -> BasicMessage:
        """As `Message.expiring_at`."""
        return BasicMessage(
            self.header, self.body, self.exchange, self.routing_key, self.routed, self.is_persistent, self.handling,
            moment,
        )  # fmt: skip

    def readdressed(self, exchange: str, routing_key: str, changes: Mapping[str, TypedValue | None]) -> BasicMessage:
        """As `Message.readdressed`."""
        try:
            values = self.basic_properties()._replace(expiration=None)
            header = encode_header(body_size(self.header), _changed(values, changes))
            routed = encode_routed(exchange, routing_key)
        except Amqp091Error as error:
            raise InvalidArgumentError(f"the message cannot be sent to exchange {exchange!a}: {error}") from error
        limit = _MAX_HEADER if len(self.header) <= _MAX_HEADER else MAX_FRAME - OVERHEAD
        if len(header) > limit:
            raise HeaderTooLargeError(len(header), limit)
        return BasicMessage(
            header, self.body, exchange, routing_key, routed, self.is_persistent, self.handling, 0.0
        )  # fmt: skip

    @property
    def likeness(self) -> Hashable:
        """As `Message.likeness`: all of its header but the size of the body."""
        return self.header[:_SIZE_AT], self.header[_SIZE_END:], self.exchange, self.routing_key

    def readdressed_as(self, other: Message) -> BasicMessage:
        """As `Message.readdressed_as`."""
        assert isinstance(other, BasicMessage)
        header = other.header[:_SIZE_AT] + self.header[_SIZE_AT:_SIZE_END] + other.header[_SIZE_END:]
        return BasicMessage(
            header, self.body, other.exchange, other.routing_key, other.routed, self.is_persistent, self.handling, 0.0
        )  # fmt: skip

    def bodiless(self) -> BasicMessage:
        """As `Message.bodiless`."""
        return BasicMessage(
            self.header, b"", self.exchange, self.routing_key, self.routed, self.is_persistent, self.handling, 0.0
        )  # fmt: skip

    def with_headers(self, changes: Mapping[str, TypedValue | None]) -> BasicMessage:
        """As `Message.with_headers`."""
        try:
            size, values = decode_header(self.header)
            header = encode_header(size, _changed(values, changes))
        except Amqp091Error as error:
            raise InvalidArgumentError(f"the header {', '.join(changes)} cannot be added: {error}") from error
        return BasicMessage(
            header, self.body, self.exchange, self.routing_key, self.routed, self.is_persistent, self.handling,
            self.expires_at,
        )  # fmt: skip


def _changed(values: Properties, changes: Mapping[str, TypedValue | None]) -> Properties:
    """Properties with some headers set, or removed where the value is None."""
    kept = [entry for entry in (values.headers or EMPTY_MAP).entries if entry[0] not in changes]
    kept += [(name, value) for name, value in changes.items() if value is not None]
    return values._replace(headers=TypedMap(tuple(kept)))


def handling_priority(priority: int | None) -> int:
    """The priority of a message for queues."""
    return 0 if priority is None else priority


def restore_basic(data: bytes) -> BasicMessage:
    """Decode a stored message of AMQP 0-9-1.

    Raises:
        BrokerRecordError: it cannot be decoded.
    """
    end = HEADER_SIZE_BYTES + header_size(data)
    if end > len(data):
        raise BrokerRecordError(f"a header of {end - HEADER_SIZE_BYTES} bytes in {len(data)} bytes of data", 0)
    record = split_record(data[HEADER_SIZE_BYTES:end])
    try:
        size, read = body_size(record.content_header), read_handling(record.content_header)
    except Amqp091Error as error:
        raise BrokerRecordError(error.what, end - len(record.content_header) + error.offset) from error
    if size != len(data) - end:
        raise BrokerRecordError(f"a body of {len(data) - end} bytes, but its header says {size}", end)
    return BasicMessage(
        record.content_header, data[end:], record.exchange, record.routing_key, record.routed, read.is_persistent,
        Handling(priority=handling_priority(read.priority)), record.expires_ms / 1000,
    )  # fmt: skip


def _raw(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "surrogateescape")


class CopiedMessage(BasicMessage):
    """A message with further routing keys.

    Args:
        whole: the message with all its headers.
        header: its content header without BCC.
    """

    __slots__ = ("_whole",)

    def __init__(self, whole: BasicMessage, header: bytes) -> None:
        super().__init__(
            header, whole.body, whole.exchange, whole.routing_key, whole.routed, whole.is_persistent, whole.handling,
            whole.expires_at,
        )  # fmt: skip
        self._whole, self.size = whole, whole.size

    def under_further_keys(self) -> Sequence[Message]:
        """As `Message.under_further_keys`."""
        return [
            BasicMessage(
                self.header, self.body, self.exchange, key, self.routed, self.is_persistent, self.handling,
                self.expires_at,
            )
            for key in self.keys
        ]  # fmt: skip

    def head_in(self, data: bytes, begin: int, end: int) -> bytes | None:  # noqa: ARG002 – its header is not all
        """As `Message.head_in`."""
        return None

    @property
    def likeness(self) -> Hashable:
        """As `Message.likeness`: None, because its header is not all."""
        return None

    @property
    def keys(self) -> tuple[str, ...]:
        """The further keys."""
        return _keys(self._whole.headers())

    def stored_form(self) -> StoredForm:
        """The bytes that a journal stores."""
        return self._whole.stored_form()

    def stored_parts(self) -> tuple[Sequence[bytes], int]:
        """The same bytes."""
        return self._whole.stored_parts()

    def expiring_at(self, moment: float) -> BasicMessage:
        """As `Message.expiring_at`."""
        return with_keys(self._whole.expiring_at(moment))

    def readdressed(self, exchange: str, routing_key: str, changes: Mapping[str, TypedValue | None]) -> BasicMessage:
        """As `Message.readdressed`."""
        return with_keys(self._whole.readdressed(exchange, routing_key, changes))

    def with_headers(self, changes: Mapping[str, TypedValue | None]) -> BasicMessage:
        """As `Message.with_headers`."""
        return with_keys(self._whole.with_headers(changes))


def with_keys(message: BasicMessage) -> BasicMessage:
    """The message with the further routing keys in its headers, which were not read yet.

    Raises:
        InvalidArgumentError: CC or BCC is not a list, or is too long.
        Amqp091Error: its content header cannot be decoded.
    """
    if b"CC" not in message.header:
        return message
    size, properties = decode_header(message.header)
    headers = properties.headers
    if headers is None:
        return message
    keys, header = _keys(headers), message.header
    if headers.get(BCC) is not None:
        entries = tuple(entry for entry in headers.entries if entry[0] != BCC)
        header = encode_header(size, properties._replace(headers=TypedMap(entries)))
    elif not keys:
        return message
    return CopiedMessage(message, header)


def _keys(headers: TypedMap) -> tuple[str, ...]:
    return *selected_keys(headers, CC), *selected_keys(headers, BCC)


def restored(message: BasicMessage) -> BasicMessage:
    """As `with_keys`, for a message that was stored; without further keys, if its headers are not valid."""
    try:
        return with_keys(message)
    except (InvalidArgumentError, Amqp091Error):
        return message


_PERSISTENT: Final = 2
_TRANSIENT: Final = 1


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


def run_as_basic(run: MessageRun) -> tuple[BasicMessage, Bodies, SizeField | None] | None:
    """What messages of a run have in common in their 0-9-1 form, their bodies, and the field that gives their sizes.

    None if they have to be converted singly, or AMQP 0-9-1 cannot represent them.
    """
    template = run.template
    if isinstance(template, BasicMessage):
        return template, run.bodies, run.field
    bodies = None if template.expires_at else run.contents
    converted = None if bodies is None else template.converted(_template_as_basic)
    if bodies is None or converted is None:
        return None
    header = SIZE_FIELD.set_in(converted.header, bodies.largest)
    return _basic(template, header, b"", converted.routed), bodies, None


def _template_as_basic(template: Message) -> BasicMessage | None:
    """The template of a run in its 0-9-1 form, for bodies of bytes; with the size of an empty one."""
    try:
        header = encode_header(0, _properties(template, template.properties()))
        return _basic(template, header, b"", encode_routed(template.exchange, template.routing_key))
    except (Amqp091Error, Amqp010Error, BrokerRecordError):
        return None


def _basic(message: Message, header: bytes, body: Content, routed: bytes) -> BasicMessage:
    return BasicMessage(
        header, body, message.exchange, message.routing_key, routed, message.is_persistent, message.handling,
        message.expires_at,
    )  # fmt: skip


def _properties(message: Message, neutral: NeutralProperties) -> Properties:
    """The properties; strings that are too long become headers. Raises Amqp091Error."""
    entries = [(name, typed) for name, typed in neutral.headers.entries if name != MESSAGE_ID_HEADER]
    named = dict(neutral.headers.entries)
    message_id = neutral.message_id
    if message_id is None and MESSAGE_ID_HEADER in named:
        message_id = _text(named[MESSAGE_ID_HEADER].value)
    subject = neutral.subject
    if subject is None and SUBJECT_HEADER in named:
        subject = _text(named[SUBJECT_HEADER].value)
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
        if text is not None and is_long(text):
            texts[name] = None
            if name != "type" or SUBJECT_HEADER not in named:
                entries.append((long_header(name), TypedValue(STR16, text)))
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
