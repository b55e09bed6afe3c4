"""Decodes stored messages; each stored form has its own decoder.

    form                                                     decoder
    -------------------------------------------------------  ------------------------------------------------
    AMQP 0-10: the frames of a transfer, then the content    `amqp_0_10.message.restore_transfer`
    AMQP 0-9-1: exchange, routing key, content header, body  `amqp_0_9_1.message.restore_basic`
    AMQP 1.0: sections                                       `StoredSections`: keeps the sections, and is
                                                             converted to the consumer's own protocol

Source: formats/broker_records/README.md, 1.
"""

from __future__ import annotations

from collections.abc import Mapping

from qstore.broker.model.errors import InvalidArgumentError
from qstore.broker.model.message import PLAIN_HANDLING, Content, Message, Properties, ReplyAddress, StoredForm
from qstore.broker.protocols.amqp_0_9_1.message import restore_basic, restored
from qstore.broker.protocols.amqp_0_10.message import as_transfer, restore_alike, restore_transfer
from qstore.formats.broker_records.amqp_0_9_1_messages import MARK as BASIC_MARK
from qstore.formats.broker_records.amqp_1_0_messages import (
    MARK_BYTES,
    application_properties,
    content_of,
    decode_sections,
)
from qstore.formats.broker_records.messages import HEADER_SIZE_BYTES, header_size
from qstore.formats.checksum import extend_crc32c
from qstore.formats.errors import BrokerRecordError
from qstore.formats.values import TypedMap, TypedValue

_MARK = bytes(MARK_BYTES)


def restore_message(data: bytes, begin: int = 0, end: int = -1, /) -> Message:
    """Decode a stored message, written by this broker or by qpidd, of any protocol.

    Args:
        data: bytes that contain it.
        begin: its first byte.
        end: its end; -1 for the end of `data`.

    Raises:
        BrokerRecordError: it cannot be decoded.
    """
    message = restore_alike(data, begin, len(data) if end < 0 else end)
    if message is not None:
        return message
    if begin or end >= 0:
        data = data[begin:end]
    if data.startswith(BASIC_MARK, HEADER_SIZE_BYTES):
        return restored(restore_basic(data))
    if data.startswith(_MARK, HEADER_SIZE_BYTES):
        return StoredSections(data)
    return restore_transfer(data)


class StoredSections(Message):
    """An AMQP 1.0 message of a store that qpidd wrote.

    It was routed before it was stored, and its exchange is unknown. So is the start of its ttl: only an absolute expiry
    time makes it expire.

    Args:
        data: the record's data.

    Raises:
        BrokerRecordError: it does not consist of complete sections.
    """

    __slots__ = ("_data", "_properties", "_sections")

    def __init__(self, data: bytes) -> None:
        end = HEADER_SIZE_BYTES + header_size(data)
        if not HEADER_SIZE_BYTES + MARK_BYTES <= end == len(data):
            size = len(data) - HEADER_SIZE_BYTES
            raise BrokerRecordError(f"a header of {end - HEADER_SIZE_BYTES} bytes, but its sections take {size}", 0)
        decoded = decode_sections(data[HEADER_SIZE_BYTES:end])
        assert decoded.amqp_1_0 is not None
        sections = decoded.amqp_1_0
        self._data, self._sections = data, sections
        self._properties = Properties(
            message_id=decoded.message_id,
            correlation_id=decoded.correlation_id,
            user_id=decoded.user_id,
            reply_to=_reply_address(decoded.reply_to),
            content_type=decoded.content_type,
            content_encoding=decoded.content_encoding,
            subject=sections.subject,
            created_at=None if sections.creation_time is None else sections.creation_time / 1000,
        )
        self.exchange = ""
        self.routing_key = sections.subject or ""
        self.body = b""
        self.size = len(data)
        self.is_persistent = True
        self.handling = PLAIN_HANDLING
        if decoded.priority is not None:
            self.handling = PLAIN_HANDLING._replace(priority=decoded.priority)
        self.expires_at = (sections.absolute_expiry_time or 0) / 1000

    def stored_form(self) -> StoredForm:
        """The same bytes that were stored before."""
        return (self._data,), len(self._data), extend_crc32c(0, self._data)

    def headers(self) -> TypedMap:
        """Its application properties."""
        return application_properties(self._data[HEADER_SIZE_BYTES:], self._sections)

    def properties(self) -> Properties:
        """Its properties."""
        return self._properties._replace(headers=self.headers())

    def content(self) -> Content | TypedValue:
        """The content of its body sections. Raises BrokerRecordError."""
        return content_of(self._data[HEADER_SIZE_BYTES:], self._sections)

    def readdressed(self, exchange: str, routing_key: str, changes: Mapping[str, TypedValue | None]) -> Message:
        """As `Message.readdressed`: in its AMQP 0-10 form."""
        converted = as_transfer(self)
        if converted is None:
            raise InvalidArgumentError("a stored AMQP 1.0 message without an AMQP 0-10 form cannot be changed")
        return converted.readdressed(exchange, routing_key, changes)

    def with_headers(self, changes: Mapping[str, TypedValue | None]) -> Message:
        """Raises InvalidArgumentError: its headers cannot be changed."""
        raise InvalidArgumentError(f"the header {', '.join(changes)} cannot be added to a stored AMQP 1.0 message")


def _reply_address(reply_to: object) -> ReplyAddress | None:
    """Translate an address of AMQP 1.0, `node` or `node/subject`, as qpidd does: the node is taken as a queue."""
    return ReplyAddress("", reply_to) if isinstance(reply_to, str) else None
