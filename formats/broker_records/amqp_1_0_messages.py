"""An AMQP 1.0 message in a store: stored raw, its sections listed, its readable parts decoded.

It consists of four zero bytes and the sections, each a descriptor and a value; `_SECTIONS` has their numbers and names
(`formats/broker_records/README.md`, 1.6). A descriptor is the number, or a symbol such as "amqp:data:binary". A broker
that merged annotations into the message dropped its header section. A section with another descriptor is listed, not an
error.

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

from typing import Any, Final, NamedTuple

from qstore.formats.amqp_1_0.neutral import neutral_map, neutral_value
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
from qstore.formats.values import EMPTY_MAP, LIST, TypedMap, TypedValue
from qstore.formats.wording import with_article

#: The header, properties and application-properties sections are decoded up to this size, in bytes: as Python values
#: they take up to a hundred times their size.
MAX_DECODED_SECTION: Final = 4 * 1024 * 1024

#: A stored 1.0 message begins with this many zero bytes, which a 0-10 one never does.
MARK_BYTES: Final = 4

# Descriptor number -> section name and the name of its type, which with the prefix "amqp:" form the symbolic
# descriptor.
_SECTIONS: Final = {
    0x70: ("header", "list"),
    0x71: ("delivery-annotations", "map"),
    0x72: ("message-annotations", "map"),
    0x73: ("properties", "list"),
    0x74: ("application-properties", "map"),
    0x75: ("data", "binary"),
    0x76: ("amqp-sequence", "list"),
    0x77: ("amqp-value", "*"),
    0x78: ("footer", "map"),
}
_CODE_OF_SYMBOL: Final = {f"amqp:{name}:{source}": code for code, (name, source) in _SECTIONS.items()}

_HEADER, _PROPERTIES, _APPLICATION_PROPERTIES = 0x70, 0x73, 0x74
_DATA, _SEQUENCE, _VALUE = 0x75, 0x76, 0x77
_BODY_SECTIONS: Final = frozenset((_DATA, _SEQUENCE, _VALUE))


class _Field(NamedTuple):
    """A field of a composite section: the attribute of `MessageHeader` or `Amqp10Message`, and its possible types."""

    name: str
    type_names: tuple[str, ...]


_MESSAGE_ID_TYPES: Final = ("ulong", "uuid", "binary", "string")

# durable is not a number in 1.0: it fills delivery_mode, as a broker that translates the message does.
_COMPOSITES: Final = {
    _HEADER: (
        _Field("delivery_mode", ("boolean",)),
        _Field("priority", ("ubyte",)),
        _Field("ttl", ("uint",)),
        _Field("first_acquirer", ("boolean",)),
        _Field("delivery_count", ("uint",)),
    ),
    _PROPERTIES: (
        _Field("message_id", _MESSAGE_ID_TYPES),
        _Field("user_id", ("binary",)),
        _Field("to", ("string",)),
        _Field("subject", ("string",)),
        _Field("reply_to", ("string",)),
        _Field("correlation_id", _MESSAGE_ID_TYPES),
        _Field("content_type", ("symbol",)),
        _Field("content_encoding", ("symbol",)),
        _Field("absolute_expiry_time", ("timestamp",)),
        _Field("creation_time", ("timestamp",)),
        _Field("group_id", ("string",)),
        _Field("group_sequence", ("uint",)),
        _Field("reply_to_group_id", ("string",)),
    ),
}

_PERSISTENT, _TRANSIENT = 2, 1


def decode_sections(header: bytes) -> MessageHeader:
    """Decode the header of a stored 1.0 message, which is the whole message.

    Args:
        header: four zero bytes and the sections.

    Raises:
        BrokerRecordError: it does not consist of complete sections; the offset is within `header`.
    """
    values: dict[str, Any] = {"protocol": "1.0", "headers": {}, "header_types": {}, "unknown_structs": ()}
    sections: list[Section] = []
    body_sections: list[tuple[int, int]] = []
    offset, end = MARK_BYTES, len(header)
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
        code = _CODE_OF_SYMBOL.get(code)
    if isinstance(code, int) and code in _SECTIONS:
        return code, _SECTIONS[code][0]
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
    name = _SECTIONS[code][0]
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


def application_properties(header: bytes, message: Amqp10Message) -> TypedMap:
    """The application properties of a message, with their types. `decode_sections` has checked that they are a map."""
    for section in message.sections:
        if section.code == _APPLICATION_PROPERTIES:
            return neutral_map(_value_of(header, section).value)
    return EMPTY_MAP


def _value_of(header: bytes, section: Section) -> Value:
    """The value of a section, without its descriptor."""
    end = section.offset + section.size
    try:
        _, _, begin = read_constructor(header, section.offset, end)
        return read_value(header, begin - 1, end)[0]
    except Amqp10Error as error:
        raise BrokerRecordError(error.what, error.offset) from error
