"""A message in its AMQP 0-9-1 form.

Content header, exchange, routing key and body are kept as received. Of the properties only those are read that queues
need (delivery mode, priority, expiration); the others are checked, and decoded on demand.

The expiration is relative in the protocol; its end, `expires_at`, is stored with the message. A message without a
priority has priority 0, as in RabbitMQ.

A stored message is `u32 header size | u32 mark | u64 expiration | exchange | routing key | content header | body`
(formats/broker_records/README.md, 1.7).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import ceil
from typing import Final

from qstore.broker.model.content import Content, LargeContent
from qstore.broker.model.errors import HeaderTooLargeError, InvalidArgumentError
from qstore.broker.model.message import Handling, Message, ReplyAddress, StoredForm
from qstore.broker.model.message import Properties as NeutralProperties
from qstore.broker.protocols.amqp_0_9_1.frame_output import MAX_FRAME
from qstore.broker.protocols.shared_head import SharedHead
from qstore.formats.amqp_0_9_1.errors import Amqp091Error
from qstore.formats.amqp_0_9_1.frames import OVERHEAD
from qstore.formats.amqp_0_9_1.methods import encode_routed
from qstore.formats.amqp_0_9_1.properties import Properties, body_size, decode_header, encode_header, read_handling
from qstore.formats.broker_records.amqp_0_9_1_messages import encode_begin, milliseconds, split_record
from qstore.formats.broker_records.errors import BrokerRecordError
from qstore.formats.broker_records.messages import HEADER_SIZE_BYTES, header_size
from qstore.formats.checksum import extend_crc32c
from qstore.formats.values import EMPTY_MAP, TypedMap, TypedValue

_SIZE_AT: Final = 4  # where the size of the body begins in a content header, after class and weight
_SIZE_END: Final = 12
_MAX_HEADER: Final = 0xFFFF  # bytes that one may get by what the broker adds: all but small frames have room for it


class BasicMessage(Message):
    """A message received by basic.publish.

    Args:
        header: the content header.
        body: the body.
        exchange, routing_key: as of `Message`.
        routed: both, encoded as in basic.deliver.
        is_persistent, handling, expires_at: as of `Message`.
        head: shared with other messages that have the same header and routing; None for none.

    Attributes:
        header, routed, head: as above.
    """

    __slots__ = ("_crc", "head", "header", "routed")

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

    def stored_form(self) -> StoredForm:
        """The bytes that a journal stores."""
        body, head = self.body, self.head
        if head is not None and isinstance(body, bytes) and len(head.encoded):
            form = head.stored_form(body, self._crc)
            self._crc = form[2]
            return form
        parts, size = self.stored_parts()
        if self._crc < 0:
            crc = 0
            for part in parts:
                crc = extend_crc32c(crc, part)
            self._crc = crc
        return parts, size, self._crc

    def stored_parts(self) -> tuple[Sequence[bytes], int]:
        """As `Message.stored_parts`."""
        header, body, head = self.header, self.body, self.head
        if head is not None:
            if not head.encoded:
                head.encode(encode_begin(0, self.routed, len(header)) + header)
            if not isinstance(body, LargeContent):
                return (head.encoded, body), len(head.encoded) + len(body)
        begin = encode_begin(ceil(self.expires_at * 1000), self.routed, len(header))
        pieces = body.pieces if isinstance(body, LargeContent) else (body,)
        return (begin, header, *pieces), len(begin) + len(header) + len(body)

    def basic_properties(self) -> Properties:
        """Its properties as AMQP 0-9-1 has them; empty if they cannot be decoded."""
        try:
            return decode_header(self.header)[1]
        except Amqp091Error:
            return Properties()

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
            raise InvalidArgumentError(f"the message cannot go to exchange {exchange!a}: {error}") from error
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
