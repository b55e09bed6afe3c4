"""The decoded header of a stored message, for all protocols."""

from __future__ import annotations

from typing import Any

from qstore.formats.named_tuple import NamedTuple


class UnknownStruct(NamedTuple):
    """A struct in the header segment that was skipped: its code, where it begins (its size) and its bytes."""

    code: int
    offset: int
    size: int


class Section(NamedTuple):
    """A section of an AMQP 1.0 message.

    Attributes:
        code: the descriptor's number, None if the specification does not define it.
        name: the descriptor's name ("application-properties"), or the descriptor as text.
        offset: where the section, with its descriptor, begins in the header.
        size: its size in bytes.
    """

    code: int | None
    name: str
    offset: int
    size: int


class Amqp10Message(NamedTuple):
    """Fields that only an AMQP 1.0 message has.

    Attributes:
        to, subject, group_id, group_sequence, reply_to_group_id: from its properties.
        absolute_expiry_time, creation_time: from its properties, milliseconds since 1970.
        first_acquirer, delivery_count: from its header.
        sections: all sections in order.
        body_sections: (offset, size) in the header of the parts of the body: the payload of each data section,
            of an amqp-value that is binary or text; else the encoded value or sequence as a whole.
    """

    to: str | None
    subject: str | None
    absolute_expiry_time: int | None
    creation_time: int | None
    group_id: str | None
    group_sequence: int | None
    reply_to_group_id: str | None
    first_acquirer: bool | None
    delivery_count: int | None
    sections: tuple[Section, ...]
    body_sections: tuple[tuple[int, int], ...]


class MessageHeader(NamedTuple):
    """The decoded header of a stored message. Absent fields are None, False or empty.

    Text is str with surrogateescape, ids and tags that are binary in the protocol are bytes. `ttl` is in
    milliseconds, `timestamp` and `expiration` are in seconds since 1970, all as stored.

    Attributes:
        protocol: "0-10", "0-9-1" or "1.0".
        exchange: delivery-properties.exchange, else the transfer's destination, else "" (1.0: None).
        delivery_mode: 2 for persistent (1.0: 2 or 1 if the header section has a durable field).
        reply_to: (exchange, routing key); for 1.0 the address, for 0-9-1 the text.
        correlation_id: bytes; for 1.0 the text of an id that is not binary, for 0-9-1 the text.
        ttl: for 0-9-1 the number in the property expiration.
        headers: application headers (1.0: application properties) as plain JSON values.
        header_types: the protocol's names of their types.
        destination, accept_mode, acquire_mode: of the transfer.
        unknown_structs: 0-10: structs that were skipped.
        amqp_1_0: fields that only a 1.0 message has, None for others.
        message_type: 0-9-1: the property type.
    """

    protocol: str
    exchange: str | None
    routing_key: str | None
    message_id: str | None
    delivery_mode: int | None
    priority: int | None
    ttl: int | None
    timestamp: int | None
    expiration: int | None
    discard_unroutable: bool
    immediate: bool
    redelivered: bool
    content_type: str | None
    content_encoding: str | None
    correlation_id: bytes | str | None
    reply_to: tuple[str, str] | str | None
    user_id: bytes | None
    app_id: bytes | None
    content_length: int | None
    headers: dict[str, Any]
    header_types: dict[str, str]
    resume_id: str | None
    resume_ttl: int | None
    destination: str | None
    accept_mode: int | None
    acquire_mode: int | None
    unknown_structs: tuple[UnknownStruct, ...]
    amqp_1_0: Amqp10Message | None
    message_type: str | None = None
