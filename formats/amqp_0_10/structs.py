"""Packed structs of AMQP 0-10 as tables, and the readers and writers derived from them.

    [size] | [u16 code] | flag bytes | the fields that are present, in order

A field is present if its flag is set: field i has bit i % 8 of flag byte i // 8, and a field of type bit consists of
its flag only. There are two flag bytes, except in session's header (one) and command-fragment (none: every
field is present). The size, if a struct has one, counts all that follows it; structs with a code have a u32
size, reply-to has a u16 size and no code, and the fields of a control or a command have neither.

The readers for message headers return the fields that the tools show; `decode_struct` decodes any struct. For each
combination of flags that occurs, a plan is derived once from the table and cached: one reader per field, or per run of
adjacent numbers. A reader puts its values into a list, at the index that its caller chose for the field, so a struct
is decoded without creating an object per field.

The fields of any packed struct, control or command are decoded as a dictionary. Every field of the table is in it: None
for one that is absent, and True or False for a field of type bit. Values are those that `encode_fields` takes, and
encode to the same bytes, with the exceptions of `types` and except for an array of text that was received as another
type than str16:

    str8, str16                        str, with surrogateescape
    str16-array, amqp-host-array       tuple of str; read from an array of any UTF-8 text or bytes
    map, array                         `TypedMap`, `TypedArray`
    sequence-set, byte-ranges          tuple of (first, last), both included
    struct32                           bytes, type code first
    reply-to, xid                      `ReplyTo`, `BranchId`
    all others                         as in `types`

For each combination of flags that occurs, a plan is derived once from the table and cached: the initial dictionary and
one reader per field. Undefined flags are refused, and so are bytes after the last field.

Sources: the AMQP 0-10 specification as XML (`<struct>`, `<result>`, message.transfer);
formats/broker_records/README.md, 1.3 and 1.4.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import cache
from itertools import groupby
from typing import Any, Final, TypeAlias

from qstore.formats.amqp_0_10.maps import check_amount, encode_map, encode_value, read_typed_plain_map, read_value
from qstore.formats.amqp_0_10.types import BY_NAME, Amqp010Error, WireType, encode_name, find_payload
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.plain import plain_uuid
from qstore.formats.values import STR16, TYPES, TypedArray, TypedMap, UntypedValueError, typed_map
from qstore.formats.wording import with_article


class Field(NamedTuple):
    """A field: its name in the specification, with underscores, and the name of its type."""

    name: str
    type_name: str


class PackedStruct(NamedTuple):
    """A struct with flag bytes.

    Attributes:
        name: the specification's name.
        code: class and struct number, None if the struct is encoded without a code.
        size_width: width of the size in front of it in bytes, 0 for none.
        fields: in the order of their flags.
        pack: number of its flag bytes.
    """

    name: str
    code: int | None
    size_width: int
    fields: tuple[Field, ...]
    pack: int = 2


class ReplyTo(NamedTuple):
    """An address for replies; None for absent parts."""

    exchange: str | None
    routing_key: str | None


class BranchId(NamedTuple):
    """The id of a branch of a distributed transaction (struct xid); None for absent parts."""

    format: int | None
    global_id: bytes | None
    branch_id: bytes | None


def make_fields(table: str) -> tuple[Field, ...]:
    """The fields that `table` lists as "name:type", separated by white space."""
    return tuple(Field(*field.split(":")) for field in table.split())


# ----------------------------------------------------------------------------------------------- tables

#: The fields of the command that carries a message.
MESSAGE_TRANSFER: Final = PackedStruct(
    "message.transfer", None, 0, make_fields("destination:str8 accept_mode:uint8 acquire_mode:uint8")
)
#: Precedes every command's fields.
SESSION_HEADER: Final = PackedStruct("header", None, 1, make_fields("sync:bit"), pack=1)
COMMAND_FRAGMENT: Final = PackedStruct(
    "command-fragment", None, 0, make_fields("command_id:sequence-no byte_ranges:byte-ranges"), pack=0
)
REPLY_TO: Final = PackedStruct("reply-to", None, 2, make_fields("exchange:str8 routing_key:str8"))


def _coded(code: int, name: str, table: str) -> PackedStruct:
    return PackedStruct(name, code, 4, make_fields(table))


XID: Final = _coded(0x0604, "xid", "format:uint32 global_id:vbin8 branch_id:vbin8")

# The structs in a header segment.
DELIVERY_PROPERTIES: Final = _coded(
    0x0401,
    "delivery-properties",
    """discard_unroutable:bit immediate:bit redelivered:bit priority:uint8 delivery_mode:uint8 ttl:uint64
    timestamp:datetime expiration:datetime exchange:str8 routing_key:str8 resume_id:str16 resume_ttl:uint64""",
)
FRAGMENT_PROPERTIES: Final = _coded(0x0402, "fragment-properties", "first:bit last:bit fragment_size:uint64")
MESSAGE_PROPERTIES: Final = _coded(
    0x0403,
    "message-properties",
    """content_length:uint64 message_id:uuid correlation_id:vbin16 reply_to:reply-to content_type:str8
    content_encoding:str8 user_id:vbin16 app_id:vbin16 application_headers:map""",
)
FILE_PROPERTIES: Final = _coded(
    0x0901,
    "file-properties",
    """content_type:str8 content_encoding:str8 headers:map priority:uint8 reply_to:str8 message_id:str8
    filename:str8 timestamp:datetime cluster_id:str8""",
)
STREAM_PROPERTIES: Final = _coded(
    0x0A01,
    "stream-properties",
    "content_type:str8 content_encoding:str8 headers:map priority:uint8 timestamp:datetime",
)

# Results of commands, as the value of execution.result.
ACQUIRED: Final = _coded(0x0404, "acquired", "transfers:sequence-set")
MESSAGE_RESUME_RESULT: Final = _coded(0x0405, "message-resume-result", "offset:uint64")
XA_RESULT: Final = _coded(0x0601, "xa-result", "status:uint16")
GET_TIMEOUT_RESULT: Final = _coded(0x0602, "get-timeout-result", "timeout:uint32")
RECOVER_RESULT: Final = _coded(0x0603, "recover-result", "in_doubt:array")
EXCHANGE_QUERY_RESULT: Final = _coded(
    0x0701, "exchange-query-result", "type:str8 durable:bit not_found:bit arguments:map"
)
EXCHANGE_BOUND_RESULT: Final = _coded(
    0x0702,
    "exchange-bound-result",
    "exchange_not_found:bit queue_not_found:bit queue_not_matched:bit key_not_matched:bit args_not_matched:bit",
)
QUEUE_QUERY_RESULT: Final = _coded(
    0x0801,
    "queue-query-result",
    """queue:str8 alternate_exchange:str8 durable:bit exclusive:bit auto_delete:bit arguments:map
    message_count:uint32 subscriber_count:uint32""",
)


def flag_of(index: int, pack: int = 2) -> int:
    """The flag of field number `index` in the `pack` flag bytes read as one number, big endian."""
    return 1 << (index % 8 + 8 * (pack - 1 - index // 8))


def known_flags(packed: PackedStruct) -> int:
    """The flags of all fields of a struct."""
    return sum(flag_of(index, packed.pack) for index in range(len(packed.fields) if packed.pack else 0))


# ---------------------------------------------------------------------------------------------- reading

#: (list for the values, buffer, offset) -> offset of the next field. Names and text in a struct's own fields are str
#: with surrogateescape. Readers do not check bounds: a size past the end raises IndexError or struct.error, and a
#: truncated value returns an offset past the struct's end, which never decreases.
Reader: TypeAlias = Callable[[list[Any], bytes, int], int]

_RUN_TYPES: Final = frozenset(["uint8", "uint32", "uint64", "datetime"])
_one_u16: Final = struct.Struct(">H").unpack_from


def make_plan(packed: PackedStruct, flags: int, place_of: Mapping[str, int]) -> tuple[Reader, ...]:
    """The readers for the fields that are present according to `flags`, in order.

    Args:
        packed: the struct's table.
        flags: its two flag bytes as u16, big endian. Undefined flags are ignored.
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
    """A reader for adjacent numbers."""
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
    """The bytes of a struct: its size and code if it has them, flags, and the fields in `values`.

    Args:
        packed: the struct's table.
        values: see `encode_fields`.

    Raises:
        Amqp010Error: a value does not fit its field, or the struct has no field of that name.
    """
    code = b"" if packed.code is None else packed.code.to_bytes(2, "big")
    body = code + encode_fields(packed, values)
    return len(body).to_bytes(packed.size_width, "big") + body if packed.size_width else body


def encode_fields(packed: PackedStruct, values: Mapping[str, Any]) -> bytes:
    """The flags of a struct and the fields in `values`, without size and code.

    Args:
        packed: the struct's table.
        values: field name -> value as in `types`; None or, for a bit, False omits the field. Text may be
            str with surrogateescape; a map is a `TypedMap` or a mapping of Python values; an array of str16 is a
            sequence of str; reply-to and xid are `ReplyTo` and `BranchId` or sequences of as many values.

    Raises:
        Amqp010Error: a value does not fit its field, the struct has no field of that name, or the struct has no flags
            and a value is missing.
    """
    flags, given, parts = 0, 0, [b""]
    for index, (name, type_name) in enumerate(packed.fields):
        given += name in values
        value = values.get(name)
        if value is None or (type_name == "bit" and not value):
            continue
        flags |= flag_of(index, packed.pack) if packed.pack else 0
        if type_name != "bit":
            parts.append(_encode_field(type_name, value))
    if given != len(values):
        unknown = sorted(set(values) - {field.name for field in packed.fields})
        raise Amqp010Error(f"{packed.name} has no field {', '.join(unknown)}")
    if not packed.pack and len(parts) <= len(packed.fields):
        raise Amqp010Error(f"{packed.name} needs every field")
    parts[0] = flags.to_bytes(packed.pack, "big")
    return b"".join(parts)


def _encode_field(type_name: str, value: Any) -> bytes:
    writer = _FIELD_WRITERS.get(type_name)
    if writer is not None:
        return writer(value)
    if isinstance(value, str):
        value = encode_name(value)
    return encode_value(BY_NAME[type_name], value)


def _nested_writer(packed: PackedStruct) -> Callable[[Any], bytes]:
    names = [field.name for field in packed.fields]

    def write_nested(value: Any) -> bytes:
        try:
            fields = dict(zip(names, value, strict=True))
        except (TypeError, ValueError):
            raise Amqp010Error(f"{packed.name} takes {len(names)} values") from None
        return encode_struct(packed, fields)

    return write_nested


def _write_map(value: Any) -> bytes:
    if not isinstance(value, TypedMap | Mapping):
        raise Amqp010Error(f"{with_article(type(value).__name__)} cannot be converted to a map")
    try:
        return encode_map(value if isinstance(value, TypedMap) else typed_map(value))
    except UntypedValueError as error:
        raise Amqp010Error(error.what) from None


def _write_str16_array(value: Any) -> bytes:
    if isinstance(value, str | bytes):
        raise Amqp010Error("an array of str16 takes a sequence of text, not one text")
    try:
        values = tuple(encode_name(text) for text in value)
    except (AttributeError, TypeError):
        raise Amqp010Error("an array of str16 takes a sequence of text") from None
    return encode_value(BY_NAME["array"], TypedArray(STR16, values))


# Types that the table of `types` does not have, or that are given in other values here.
_FIELD_WRITERS: Final[dict[str, Callable[[Any], bytes]]] = {
    "map": _write_map,
    "reply-to": _nested_writer(REPLY_TO),
    "xid": _nested_writer(XID),
    "str16-array": _write_str16_array,
    "amqp-host-array": _write_str16_array,
}


# ---- readers of any packed struct ----

#: (buffer, offset, end of the struct) -> value, offset of the next field. A reader may look past the end, within the
#: buffer: the offset that it returns is then past the end too, and is refused. Past the buffer's end it may raise
#: IndexError or struct.error.
FieldReader: TypeAlias = Callable[[bytes, int, int], tuple[Any, int]]

#: Limit of cached plans per struct, so that a peer that sends all combinations of flags cannot exhaust the memory.
MAX_PLANS: Final = 32


class FieldPlan(NamedTuple):
    """The reader of the fields for one combination of flags.

    Attributes:
        blank: all fields, with values only for the bits.
        readers: name and reader of each field that has bytes, in order.
    """

    blank: dict[str, Any]
    readers: tuple[tuple[str, FieldReader], ...]


class FieldDecoder(dict[int, FieldPlan]):
    """Decodes the fields of one struct: a dictionary of its plans by flags, filled on demand."""

    __slots__ = ("_flags_known", "_packed")

    def __init__(self, packed: PackedStruct) -> None:
        super().__init__()
        self._packed = packed
        self._flags_known = known_flags(packed)

    def __missing__(self, flags: int) -> FieldPlan:
        plan = _make_plan(self._packed, flags)
        if len(self) < MAX_PLANS:
            self[flags] = plan
        return plan

    def decode(self, buffer: bytes, offset: int, end: int) -> dict[str, Any]:
        """Decode the fields from the flag bytes at `offset` to `end`, which is within the buffer.

        Raises:
            Amqp010Error: the bytes are not the struct's fields, or there are extra bytes.
        """
        start, offset = offset, offset + self._packed.pack
        flags = int.from_bytes(buffer[start:offset], "big")
        if offset > end or flags & ~self._flags_known:
            raise Amqp010Error(f"undefined flags for {self._packed.name}: {buffer[start:offset].hex(' ')}", start)
        blank, readers = self[flags]
        values = blank.copy()
        try:
            for name, read in readers:
                start = offset
                values[name], offset = read(buffer, offset, end)
                if offset > end:
                    raise Amqp010Error(f"{self._packed.name} ends within {name}", start)
        except (IndexError, struct.error):
            raise Amqp010Error(f"{self._packed.name} ends within {name}", start) from None
        if offset != end:
            raise Amqp010Error(f"{end - offset} bytes follow the fields of {self._packed.name}", offset)
        return values


def _make_plan(packed: PackedStruct, flags: int) -> FieldPlan:
    blank: dict[str, Any] = {}
    readers = []
    for index, (name, type_name) in enumerate(packed.fields):
        present = not packed.pack or bool(flags & flag_of(index, packed.pack))
        blank[name] = present if type_name == "bit" else None
        if present and type_name != "bit":
            readers.append((name, _reader_of(type_name)))
    return FieldPlan(blank, tuple(readers))


def check_amounts(packed: PackedStruct, buffer: bytes, offset: int, end: int) -> None:
    """Check that the maps and arrays among a struct's fields, which `FieldDecoder.decode` decodes, have few values.

    Raises:
        TooManyValuesError: one has more than `MAX_VALUES`.
        Amqp010Error: the bytes are not the struct's fields.
    """
    flags = int.from_bytes(buffer[offset : offset + packed.pack], "big")
    offset += packed.pack
    try:
        for index, (_, type_name) in enumerate(packed.fields):
            if type_name == "bit" or not flags & flag_of(index, packed.pack):
                continue
            wire_type = _CONTAINERS.get(type_name)
            if wire_type is None:
                _, offset = _reader_of(type_name)(buffer, offset, end)
            else:
                check_amount(wire_type, buffer, offset, end)
                _, offset = find_payload(wire_type, buffer, offset, end)
    except (IndexError, struct.error):
        raise Amqp010Error(f"{packed.name} ends within its fields", offset) from None


@cache
def decoder_of(packed: PackedStruct) -> FieldDecoder:
    """The decoder of a struct's fields; cache it for repeated use."""
    return FieldDecoder(packed)


def decode_struct(packed: PackedStruct, raw: bytes, offset: int = 0, end: int | None = None) -> dict[str, Any]:
    """Decode the struct from `offset`, with its size and code if it has them, to `end`.

    Raises:
        Amqp010Error: the bytes are not this struct.
    """
    end = len(raw) if end is None else end
    head = packed.size_width + (0 if packed.code is None else 2)
    if not 0 <= offset <= end - head or end > len(raw):
        raise Amqp010Error(f"{packed.name} ends within its header", offset)
    start, fields_start = offset + packed.size_width, offset + head
    if packed.size_width and int.from_bytes(raw[offset:start], "big") != end - start:
        raise Amqp010Error(f"{packed.name} does not end where its size says", offset)
    if packed.code is not None and int.from_bytes(raw[start:fields_start], "big") != packed.code:
        raise Amqp010Error(f"code {raw[start:fields_start].hex()} is not that of {packed.name}", start)
    return decoder_of(packed).decode(raw, fields_start, end)


# --------------------------------------------------------------------------------------- readers by type


def _number_reader(wire_type: WireType) -> FieldReader:
    assert wire_type.codec is not None
    layout = struct.Struct(">" + wire_type.codec.struct_format)
    unpack_from, width = layout.unpack_from, layout.size

    def read_number(buffer: bytes, offset: int, _end: int) -> tuple[Any, int]:
        return unpack_from(buffer, offset)[0], offset + width

    return read_number


def _read_uint8(buffer: bytes, offset: int, _end: int) -> tuple[int, int]:
    return buffer[offset], offset + 1


def _read_str8(buffer: bytes, offset: int, _end: int) -> tuple[str, int]:
    start = offset + 1
    stop = start + buffer[offset]
    return buffer[start:stop].decode("utf-8", "surrogateescape"), stop


def _read_str16(buffer: bytes, offset: int, end: int) -> tuple[str, int]:
    raw, stop = _read_vbin16(buffer, offset, end)
    return raw.decode("utf-8", "surrogateescape"), stop


def _read_vbin16(buffer: bytes, offset: int, _end: int) -> tuple[bytes, int]:
    start = offset + 2
    stop: int = start + _one_u16(buffer, offset)[0]
    return buffer[start:stop], stop


def _ranges_reader(struct_format: str) -> FieldReader:
    pairs, only_pair = struct.Struct(">" + struct_format * 2), struct.Struct(">H" + struct_format * 2)
    pair_size, unpack_only = pairs.size, only_pair.unpack_from

    def read_ranges(buffer: bytes, offset: int, _end: int) -> tuple[tuple[tuple[int, int], ...], int]:
        start = offset + 2
        (size,) = _one_u16(buffer, offset)
        if size == pair_size:
            _, first, last = unpack_only(buffer, offset)
            return ((first, last),), start + pair_size
        if size % pair_size:
            raise Amqp010Error(f"{size} bytes of ranges are not complete pairs", offset)
        return tuple(pairs.iter_unpack(buffer[start : start + size])), start + size

    return read_ranges


def _general_reader(wire_type: WireType) -> FieldReader:
    def read_general(buffer: bytes, offset: int, end: int) -> tuple[Any, int]:
        return read_value(wire_type, buffer, offset, end)

    return read_general


def _read_str16_array(buffer: bytes, offset: int, end: int) -> tuple[tuple[str, ...], int]:
    array, stop = read_value(_ARRAY, buffer, offset, end)
    if array.values and array.type not in _TEXT_TYPES:
        raise Amqp010Error(f"an array of str16 contains values of type {array.type}", offset)
    # Text that is not UTF-8 is in an array as bytes.
    texts = (item if isinstance(item, str) else item.decode("utf-8", "surrogateescape") for item in array.values)
    return tuple(texts), stop


def _nested_reader(packed: PackedStruct, make: Callable[..., Any]) -> FieldReader:
    size_width = packed.size_width

    def read_nested(buffer: bytes, offset: int, end: int) -> tuple[Any, int]:
        start = offset + size_width
        stop = start + int.from_bytes(buffer[offset:start], "big")
        if stop > end:
            raise Amqp010Error(f"{packed.name} extends beyond its container", offset)
        return make(**decode_struct(packed, buffer, offset, stop)), stop

    return read_nested


def _reader_of(type_name: str) -> FieldReader:
    reader = _READERS.get(type_name)
    return reader if reader is not None else _general_reader(BY_NAME[type_name])


_ARRAY: Final = BY_NAME["array"]
# Accepted as an array of str16: clients that do not distinguish text from bytes send vbin.
_TEXT_TYPES: Final = frozenset(TYPES[name] for name in ("str8", "str16", "vbin8", "vbin16", "vbin32"))

# Frequent types, and those that the table of `types` does not have.
_CONTAINERS: Final = {
    "map": BY_NAME["map"], "array": _ARRAY, "str16-array": _ARRAY, "amqp-host-array": _ARRAY
}  # fmt: skip
_READERS: Final[dict[str, FieldReader]] = {
    "uint8": _read_uint8,
    **{name: _number_reader(BY_NAME[name]) for name in ("uint16", "uint32", "uint64", "datetime", "sequence-no")},
    "str8": _read_str8,
    "str16": _read_str16,
    "vbin16": _read_vbin16,
    "sequence-set": _ranges_reader("I"),
    "byte-ranges": _ranges_reader("Q"),
    "str16-array": _read_str16_array,
    "amqp-host-array": _read_str16_array,
    "reply-to": _nested_reader(REPLY_TO, ReplyTo),
    "xid": _nested_reader(XID, BranchId),
}
