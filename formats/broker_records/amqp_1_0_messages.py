"""An AMQP 1.0 message in a store: stored raw, its sections listed, its readable parts decoded.

Its sections follow one of two beginnings:

    of qpidd          u32 0
    of this broker    u32 mark 0x00000100 | u64 expiration | exchange | routing key

The expiration is in milliseconds since 1970, 0 for a message that does not expire; exchange and routing key are strings
of up to 255 bytes after a byte with their size. The mark is not the begin of a 0-10 frame, whose segment type is never
0.

Each section is a descriptor and a value (`formats.amqp_1_0.sections`; `formats/broker_records/README.md`, 1.6 and 1.8).
A descriptor is the number, or a symbol such as "amqp:data:binary". A broker that merged annotations into the message
dropped its header section. A section with another descriptor is listed, not an error.

Source: the AMQP 1.0 specification as XML, part "messaging".

The content of a message, as a neutral value (part "messaging", section 3.2):

    body sections            content
    -----------------------  -----------------------------------------------------------------
    data, any number         their bytes, concatenated
    amqp-sequence, any       one list of all their items
    amqp-value               the value
    none                     no bytes
"""

from __future__ import annotations

import struct
from math import ceil
from typing import Any, Final

from qstore.formats.amqp_1_0.composites import ANY, BY_CODE, Field
from qstore.formats.amqp_1_0.neutral import neutral_value
from qstore.formats.amqp_1_0.sections import (
    APPLICATION_PROPERTIES,
    CODE_OF_SYMBOL,
    DATA,
    HEADER,
    PROPERTIES,
    SECTIONS,
    SEQUENCE,
    VALUE,
)
from qstore.formats.amqp_1_0.values import (
    Amqp10Error,
    Constructor,
    Value,
    find_payload,
    plain_key,
    plain_value,
    read_constructor,
    read_value,
)
from qstore.formats.broker_records.message_header import Amqp10Message, MessageHeader, Section
from qstore.formats.errors import BrokerRecordError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import LIST, TypedValue
from qstore.formats.wording import with_article

#: The header, properties and application-properties sections are decoded up to this size, in bytes: as Python values
#: they take up to a hundred times their size.
MAX_DECODED_SECTION: Final = 4 * 1024 * 1024

#: A stored 1.0 message begins with this many zero bytes, which a 0-10 one never does.
MARK_BYTES: Final = 4

MARK: Final = b"\x00\x00\x01\x00"
"""The first bytes of a message that this broker has stored."""

HEAD: Final = struct.Struct(">4sQ")
"""Mark and expiration."""

_PREFIX: Final = struct.Struct(">I4sQ")
_SIZE: Final = struct.Struct(">I")
_MAX_SHORT: Final = 0xFF

_HEADER, _PROPERTIES, _APPLICATION_PROPERTIES = HEADER, PROPERTIES, APPLICATION_PROPERTIES
_DATA, _SEQUENCE, _VALUE = DATA, SEQUENCE, VALUE
_BODY_SECTIONS: Final = frozenset((_DATA, _SEQUENCE, _VALUE))


class SectionsRecord(NamedTuple):
    """What precedes the sections of a stored message.

    Attributes:
        expires_ms: milliseconds since 1970; 0 if it does not expire, or qpidd stored it.
        exchange, routing_key: to which it was published; None if qpidd stored it.
        routed: both as they are stored; empty if qpidd stored it.
        sections_at: where the sections begin in the header.
    """

    expires_ms: int
    exchange: str | None
    routing_key: str | None
    routed: bytes
    sections_at: int


def encode_routed(exchange: str, routing_key: str) -> bytes:
    """Exchange and routing key as they are stored. Raises BrokerRecordError: one is longer than 255 bytes."""
    parts = [each.encode("utf-8", "surrogateescape") for each in (exchange, routing_key)]
    if max(map(len, parts)) > _MAX_SHORT:
        raise BrokerRecordError(f"exchange or routing key is longer than {_MAX_SHORT} bytes", 0)
    return b"".join(bytes((len(each),)) + each for each in parts)


def encode_begin(expires_ms: int, routed: bytes, sections_bytes: int) -> bytes:
    """The beginning of a stored message, up to its sections; `routed` is empty for the form of qpidd."""
    if not routed:
        return _SIZE.pack(MARK_BYTES + sections_bytes) + bytes(MARK_BYTES)
    return _PREFIX.pack(HEAD.size + len(routed) + sections_bytes, MARK, expires_ms) + routed


def split_record(header: bytes) -> SectionsRecord:
    """What precedes the sections in the header of a stored message. Raises BrokerRecordError."""
    if not header.startswith(MARK):
        return SectionsRecord(0, None, None, b"", MARK_BYTES)
    end, at = len(header), HEAD.size
    if end < at:
        raise BrokerRecordError("the header ends within its expiration", end)
    texts: list[str] = []
    for _ in range(2):
        stop = at + 1 + (header[at] if at < end else end)
        if stop > end:
            raise BrokerRecordError("the header ends within exchange or routing key", end)
        texts.append(header[at + 1 : stop].decode("utf-8", "surrogateescape"))
        at = stop
    expires_ms: int = HEAD.unpack_from(header)[1]
    return SectionsRecord(expires_ms, texts[0], texts[1], header[HEAD.size : at], at)


_MESSAGE_ID_TYPES: Final = ("ulong", "uuid", "binary", "string")
_ADDRESS_TYPES: Final = ("string",)


class _Field(NamedTuple):
    """A field of a composite section: the attribute of `MessageHeader` or `Amqp10Message`, and its possible types."""

    name: str
    type_names: tuple[str, ...]


def _field_of(field: Field) -> _Field:
    """A field of the table; durable, which is not a number in 1.0, fills delivery_mode."""
    if field.base == ANY:
        return _Field(field.name, _MESSAGE_ID_TYPES if field.name.endswith("_id") else _ADDRESS_TYPES)
    return _Field("delivery_mode" if field.name == "durable" else field.name, (field.base,))


_COMPOSITES: Final = {code: tuple(map(_field_of, BY_CODE[code].fields)) for code in (_HEADER, _PROPERTIES)}

_PERSISTENT, _TRANSIENT = 2, 1


def decode_sections(header: bytes) -> MessageHeader:
    """Decode the header of a stored 1.0 message, which is the whole message.

    Args:
        header: what precedes the sections, and these.

    Raises:
        BrokerRecordError: it does not consist of complete sections; the offset is within `header`.
    """
    values: dict[str, Any] = {"protocol": "1.0", "headers": {}, "header_types": {}, "unknown_structs": ()}
    sections: list[Section] = []
    body_sections: list[tuple[int, int]] = []
    record = split_record(header)
    values["exchange"], values["routing_key"] = record.exchange, record.routing_key
    values["expiration"] = ceil(record.expires_ms / 1000) or None
    offset, end = record.sections_at, len(header)
    try:
        while offset < end:
            descriptors, constructor, value_offset = read_constructor(header, offset, end)
            if not descriptors:
                raise BrokerRecordError("a section has no descriptor", offset)
            payload, stop = find_payload(constructor, header, value_offset, end)
            code, name = _name_section(descriptors[0])
            sections.append(Section(code, name, offset, stop - offset))
            if code in _BODY_SECTIONS:
                body_sections.append(_find_body(constructor, value_offset, payload, stop))
            elif code is not None:
                # The value's own constructor byte precedes its size.
                _read_section(values, code, header, value_offset - 1, stop)
            offset = stop
    except Amqp10Error as error:
        raise BrokerRecordError(error.what, error.offset) from error
    values["sections"] = tuple(sections)
    values["body_sections"] = tuple(body_sections)
    values["amqp_1_0"] = Amqp10Message._make(values.get(name) for name in Amqp10Message._fields)
    for flag in ("discard_unroutable", "immediate", "redelivered"):
        values[flag] = False
    return MessageHeader._make(values.get(name) for name in MessageHeader._fields)


def _name_section(descriptor: Value) -> tuple[int | None, str]:
    """The number and the name of a section, from its descriptor."""
    code = descriptor.value
    if descriptor.type_name == "symbol":
        code = CODE_OF_SYMBOL.get(code)
    if isinstance(code, int) and code in SECTIONS:
        return code, SECTIONS[code][0]
    return None, plain_key(descriptor)


def _find_body(constructor: Constructor, value_offset: int, payload: int, stop: int) -> tuple[int, int]:
    """Offset and size of the body in a body section: only its text or bytes, else the whole encoded value."""
    if constructor.type_name in ("binary", "string", "symbol"):
        return payload, stop - payload
    return value_offset - 1, stop - value_offset + 1


def _read_section(values: dict[str, Any], code: int, header: bytes, offset: int, end: int) -> None:
    """Set `values` from the section whose value begins at `offset`, if it is one that is decoded."""
    if code not in _COMPOSITES and code != _APPLICATION_PROPERTIES:
        return
    name = SECTIONS[code][0]
    if end - offset > MAX_DECODED_SECTION:
        raise BrokerRecordError(f"section {name} is larger than {MAX_DECODED_SECTION} bytes: {end - offset}", offset)
    section, _ = read_value(header, offset, end)
    if code in _COMPOSITES:
        if section.type_name != "list":
            raise BrokerRecordError(f"section {name} is {with_article(section.type_name)}, not a list", offset)
        fields = _COMPOSITES[code]
        if len(section.value) > len(fields):
            raise BrokerRecordError(f"section {name} has {len(section.value)} fields", offset)
        for field, typed in zip(fields, section.value, strict=False):
            if typed.value is not None:
                values[field.name] = _read_field(field, typed, offset)
    else:
        if section.type_name != "map":
            raise BrokerRecordError(f"section {name} is {with_article(section.type_name)}, not a map", offset)
        names = [(plain_key(key), typed) for key, typed in section.value]
        values["headers"] = {key: plain_value(typed) for key, typed in names}
        values["header_types"] = {key: typed.type_name for key, typed in names}


def _read_field(field: _Field, typed: Value, offset: int) -> Any:
    if typed.type_name not in field.type_names:
        raise BrokerRecordError(f"{field.name} is {with_article(typed.type_name)}", offset)
    value = typed.value
    if field.name == "delivery_mode":
        return _PERSISTENT if value else _TRANSIENT
    if field.name == "message_id":
        return plain_key(typed)
    if typed.type_name in ("uuid", "ulong"):
        return str(value)
    if isinstance(value, bytes) and "binary" not in field.type_names:
        return value.decode("utf-8", "surrogateescape")
    return value


# ---- content and application properties ----


def content_of(header: bytes, message: Amqp10Message) -> bytes | TypedValue:
    """The content of a message: bytes, or a value.

    Args:
        header: the stored header that `decode_sections` has read.
        message: its result.

    Raises:
        BrokerRecordError: the body sections are of kinds that cannot be combined, or cannot be read.
    """
    sections = [each for each in message.sections if each.code in _BODY_SECTIONS]
    codes = {each.code for each in sections}
    if codes <= {_DATA}:
        return b"".join(header[offset : offset + size] for offset, size in message.body_sections)
    values = [neutral_value(_value_of(header, each)) for each in sections]
    if codes == {_SEQUENCE} and all(each.type is LIST for each in values):
        return TypedValue(LIST, tuple(item for each in values for item in each.value))
    if codes == {_VALUE} and len(values) == 1:
        return values[0]
    names = ", ".join(each.name for each in sections)
    raise BrokerRecordError(f"body sections that cannot be combined: {names}", sections[0].offset)


def _value_of(header: bytes, section: Section) -> Value:
    """The value of a section, without its descriptor."""
    end = section.offset + section.size
    try:
        _, _, begin = read_constructor(header, section.offset, end)
        return read_value(header, begin - 1, end)[0]
    except Amqp10Error as error:
        raise BrokerRecordError(error.what, error.offset) from error
