"""The fields of any packed struct, control or command as a dictionary, decoded from the tables.

Every field of the table is in the dictionary: None for one that is absent, and True or False for a field of type bit.
Values are those that `structs.encode_fields` takes, and encode to the same bytes, with the exceptions of `types` and
except for an array of text that was received as another type than str16:

    str8, str16                        str, with surrogateescape
    str16-array, amqp-host-array       tuple of str; read from an array of any UTF-8 text or bytes
    map, array                         `TypedMap`, `TypedArray`
    sequence-set, byte-ranges          tuple of (first, last), both included
    struct32                           bytes, type code first
    reply-to, xid                      `ReplyTo`, `BranchId`
    all others                         as in `types`

For each combination of flags that occurs, a plan is derived once from the table and cached: the initial dictionary and
one reader per field. Undefined flags are refused, and so are bytes after the last field.

Sources: the AMQP 0-10 specification as XML; formats/broker_records/README.md, 1.3 and 1.4.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias

from qstore.formats.amqp_0_10.errors import Amqp010Error
from qstore.formats.amqp_0_10.maps import read_value
from qstore.formats.amqp_0_10.structs import REPLY_TO, XID, BranchId, PackedStruct, ReplyTo, flag_of, known_flags
from qstore.formats.amqp_0_10.types import BY_NAME, WireType
from qstore.formats.values import TYPES

#: (buffer, offset, end of the struct) -> value, offset of the next field. A reader may look past the end, within the
#: buffer: the offset that it returns is then past the end too, and is refused. Past the buffer's end it may raise
#: IndexError or struct.error.
FieldReader: TypeAlias = Callable[[bytes, int, int], tuple[Any, int]]

#: Limit of cached plans per struct, so that a peer that sends all combinations of flags cannot exhaust the memory.
MAX_PLANS: Final = 32


class FieldPlan(NamedTuple):
    """How the fields for one combination of flags are read.

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


_one_u16: Final = struct.Struct(">H").unpack_from
_ARRAY: Final = BY_NAME["array"]
# Accepted as an array of str16: clients that do not distinguish text from bytes send vbin.
_TEXT_TYPES: Final = frozenset(TYPES[name] for name in ("str8", "str16", "vbin8", "vbin16", "vbin32"))

# Frequent types, and those that the table of `types` does not have.
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
