"""Packed structs of AMQP 0-10 as tables, and the readers and writers made from them.

    [size] | [u16 code] | 2 flag bytes | the fields that are present, in order

A field is present where its flag is set: field i has bit i % 8 of flag byte i // 8, and a field of type bit is
nothing but its flag. The size, where a struct has one, counts all that follows it; delivery-properties and
message-properties have a u32 size and a code, reply-to has a u16 size and no code, and the fields of
message.transfer have neither.

For each pattern of flags that occurs, a plan is made once from the table and kept: one reader per field, or per
run of numbers side by side. A reader puts what it reads into a list, at the place that its caller chose for the
field, so a struct is decoded without any object per field.

Sources: the AMQP 0-10 specification as XML (`<struct>`, message.transfer); formats page, section 9.1.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Any, Final, NamedTuple, TypeAlias

from formats.amqp_0_10.errors import Amqp010Error
from formats.amqp_0_10.maps import TypedMap, encode_map, encode_value, typed_map
from formats.amqp_0_10.plain import plain_uuid, read_typed_plain_map
from formats.amqp_0_10.types import BY_NAME, encode_name


class Field(NamedTuple):
    """A field: its name in the specification, with underscores, and the name of its type."""

    name: str
    type_name: str


class PackedStruct(NamedTuple):
    """A struct with two flag bytes.

    Attributes:
        name: the specification's name.
        code: class and struct number, None where the struct travels without a code.
        size_width: bytes of the size in front of it, 0 for none.
        fields: in the order of their flags.
    """

    name: str
    code: int | None
    size_width: int
    fields: tuple[Field, ...]


MESSAGE_TRANSFER: Final = PackedStruct(
    "message.transfer",
    None,
    0,
    (Field("destination", "str8"), Field("accept_mode", "uint8"), Field("acquire_mode", "uint8")),
)

DELIVERY_PROPERTIES: Final = PackedStruct(
    "delivery-properties",
    0x0401,
    4,
    (
        Field("discard_unroutable", "bit"),
        Field("immediate", "bit"),
        Field("redelivered", "bit"),
        Field("priority", "uint8"),
        Field("delivery_mode", "uint8"),
        Field("ttl", "uint64"),
        Field("timestamp", "datetime"),
        Field("expiration", "datetime"),
        Field("exchange", "str8"),
        Field("routing_key", "str8"),
        Field("resume_id", "str16"),
        Field("resume_ttl", "uint64"),
    ),
)

MESSAGE_PROPERTIES: Final = PackedStruct(
    "message-properties",
    0x0403,
    4,
    (
        Field("content_length", "uint64"),
        Field("message_id", "uuid"),
        Field("correlation_id", "vbin16"),
        Field("reply_to", "reply-to"),
        Field("content_type", "str8"),
        Field("content_encoding", "str8"),
        Field("user_id", "vbin16"),
        Field("app_id", "vbin16"),
        Field("application_headers", "map"),
    ),
)

REPLY_TO: Final = PackedStruct("reply-to", None, 2, (Field("exchange", "str8"), Field("routing_key", "str8")))

XID: Final = PackedStruct(
    "xid",
    0x0604,
    4,
    (Field("format", "uint32"), Field("global_id", "vbin8"), Field("branch_id", "vbin8")),
)


def flag_of(index: int) -> int:
    """The flag of field number `index` in the two flag bytes read as one u16, big endian."""
    return 1 << (index + 8 if index < 8 else index - 8)


def known_flags(packed: PackedStruct) -> int:
    """The flags of all fields of a struct."""
    return sum(flag_of(index) for index in range(len(packed.fields)))


# ---------------------------------------------------------------------------------------------- reading

#: (places to put values, buffer, offset) -> where the next field begins. Names and text of a struct's own
#: fields are str with surrogateescape. Readers check no bounds: a size that lies past the end raises IndexError
#: or struct.error, and a value that came out short leaves an offset past the struct's end, which never goes back.
Reader: TypeAlias = Callable[[list[Any], bytes, int], int]

_RUN_TYPES: Final = frozenset(["uint8", "uint32", "uint64", "datetime"])
_one_u16: Final = struct.Struct(">H").unpack_from


def make_plan(packed: PackedStruct, flags: int, place_of: Mapping[str, int]) -> tuple[Reader, ...]:
    """The readers for the fields that `flags` announces, in order.

    Args:
        packed: the struct's table.
        flags: its two flag bytes as u16, big endian. Flags that no field has are passed over.
        place_of: field name -> its index in the list that the readers fill. A map takes two places, its plain
            values and, at the next index, its type names.
    """
    present = [field for index, field in enumerate(packed.fields) if flags & flag_of(index)]
    bits = [place_of[field.name] for field in present if field.type_name == "bit"]
    plan = [_bits_reader(bits)] if bits else []
    valued = [field for field in present if field.type_name != "bit"]
    for in_run, fields in groupby(valued, lambda field: field.type_name in _RUN_TYPES):
        if in_run:
            plan.append(_run_reader(list(fields), place_of))
        else:
            plan.extend(_READER_MAKERS[field.type_name](place_of[field.name]) for field in fields)
    return tuple(plan)


def _bits_reader(places: list[int]) -> Reader:
    def read_bits(values: list[Any], _buffer: bytes, offset: int) -> int:
        for place in places:
            values[place] = True
        return offset

    return read_bits


def _run_reader(fields: list[Field], place_of: Mapping[str, int]) -> Reader:
    """A reader for numbers side by side."""
    codecs = [BY_NAME[field.type_name].codec for field in fields]
    layout = struct.Struct(">" + "".join(codec.struct_format for codec in codecs if codec is not None))
    unpack_from, width = layout.unpack_from, layout.size
    places = [place_of[field.name] for field in fields]
    first_place = places[0]

    def read_byte(values: list[Any], buffer: bytes, offset: int) -> int:
        values[first_place] = buffer[offset]
        return offset + 1

    def read_number(values: list[Any], buffer: bytes, offset: int) -> int:
        (values[first_place],) = unpack_from(buffer, offset)
        return offset + width

    def read_run(values: list[Any], buffer: bytes, offset: int) -> int:
        for place, value in zip(places, unpack_from(buffer, offset), strict=True):
            values[place] = value
        return offset + width

    if len(fields) > 1:
        return read_run
    return read_byte if width == 1 else read_number


def _str8_reader(place: int) -> Reader:
    def read_str8(values: list[Any], buffer: bytes, offset: int) -> int:
        end = offset + 1 + buffer[offset]
        values[place] = buffer[offset + 1 : end].decode("utf-8", "surrogateescape")
        return end

    return read_str8


def _str16_reader(place: int) -> Reader:
    def read_str16(values: list[Any], buffer: bytes, offset: int) -> int:
        end: int = offset + 2 + _one_u16(buffer, offset)[0]
        values[place] = buffer[offset + 2 : end].decode("utf-8", "surrogateescape")
        return end

    return read_str16


def _vbin16_reader(place: int) -> Reader:
    def read_vbin16(values: list[Any], buffer: bytes, offset: int) -> int:
        end: int = offset + 2 + _one_u16(buffer, offset)[0]
        values[place] = buffer[offset + 2 : end]
        return end

    return read_vbin16


def _uuid_reader(place: int) -> Reader:
    def read_uuid(values: list[Any], buffer: bytes, offset: int) -> int:
        end = offset + 16
        values[place] = plain_uuid(buffer[offset:end])
        return end

    return read_uuid


def _map_reader(place: int) -> Reader:
    types_place = place + 1

    def read_map(values: list[Any], buffer: bytes, offset: int) -> int:
        values[place], values[types_place], end = read_typed_plain_map(buffer, offset, 1)
        return end

    return read_map


def _reply_to_reader(place: int) -> Reader:
    plans = tuple(make_plan(REPLY_TO, flags << 8, {"exchange": 0, "routing_key": 1}) for flags in range(4))

    def read_reply_to(values: list[Any], buffer: bytes, offset: int) -> int:
        size, flags = _reply_to_head(buffer, offset)
        end: int = offset + 2 + size
        address: list[Any] = ["", ""]
        field_offset = offset + 4
        for read in plans[flags >> 8 & 3]:
            field_offset = read(address, buffer, field_offset)
        if field_offset != end:
            raise Amqp010Error("reply-to does not end where its size says", offset)
        values[place] = (address[0], address[1])
        return end

    return read_reply_to


_reply_to_head: Final = struct.Struct(">HH").unpack_from

_READER_MAKERS: Final[dict[str, Callable[[int], Reader]]] = {
    "str8": _str8_reader,
    "str16": _str16_reader,
    "vbin16": _vbin16_reader,
    "uuid": _uuid_reader,
    "map": _map_reader,
    "reply-to": _reply_to_reader,
}


# ---------------------------------------------------------------------------------------------- writing


def encode_struct(packed: PackedStruct, values: Mapping[str, Any]) -> bytes:
    """The bytes of a struct: its size and code where it has them, flags, and the fields in `values`.

    Args:
        packed: the struct's table.
        values: field name -> value as `types` has it; None or, for a bit, False leaves the field out. text may be
            str with surrogateescape; reply_to is (exchange, routing key); application_headers is a `TypedMap` or
            a mapping of Python values.

    Raises:
        Amqp010Error: a value does not fit its field, or a name is no field of the struct.
    """
    names = [field.name for field in packed.fields]
    for name in values:
        if name not in names:
            raise Amqp010Error(f"{packed.name} has no field {name}")
    flags, parts = 0, []
    for index, (name, type_name) in enumerate(packed.fields):
        value = values.get(name)
        if value is None or (type_name == "bit" and not value):
            continue
        flags |= flag_of(index)
        if type_name != "bit":
            parts.append(_encode_field(type_name, value))
    code = b"" if packed.code is None else packed.code.to_bytes(2, "big")
    body = b"".join([code, flags.to_bytes(2, "big"), *parts])
    return len(body).to_bytes(packed.size_width, "big") + body if packed.size_width else body


def _encode_field(type_name: str, value: Any) -> bytes:
    if type_name == "reply-to":
        exchange, routing_key = value
        return encode_struct(REPLY_TO, {"exchange": exchange, "routing_key": routing_key})
    if type_name == "map":
        return encode_map(value if isinstance(value, TypedMap) else typed_map(value))
    if isinstance(value, str):
        value = encode_name(value)
    return encode_value(BY_NAME[type_name], value)
