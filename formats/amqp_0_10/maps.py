"""Maps, lists and arrays of AMQP 0-10, to typed values (`formats.values`) and back.

    map      u32 size | u32 count | count x (str8 name | u8 code | value)
    list     u32 size | u32 count | count x (u8 code | value)
    array    u32 size | u8 code | u32 count | count x value

`size` counts the bytes that follow it. Names are UTF-8; other bytes are preserved by surrogateescape. A container of
size 0 (`00 00 00 00`) is decoded as an empty one, because qpidd accepts and stores it: a map remembers this form and is
written back in it; an empty list or array is written in full. Except for the two cases listed in `types`, everything
else is written back as it was read, including repeated names and their order.

Two other decoders of the same bytes, which take a third of the time (tests.bench.bench_tricks), refuse the same ones,
and make nothing for a value but the value itself: field tables as plain JSON values (`formats.plain`), and maps and
lists as Python values without their types, for readers of many values. There a map is a dict (of repeated names the
last value counts), a list and an array are lists, text is `str`, or `bytes` if it is not text of its encoding.

Plain values have one reader per type code: (buffer, offset, depth) -> (plain value, its end). They do not check bounds:
reading a size past the end raises IndexError or struct.error, and a truncated slice returns an end past the
container's, which the container detects, because ends never decrease.

Source: formats/broker_records/README.md, 2.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, TypeAlias

from qstore.formats.amqp_0_10.types import (
    BY_CODE,
    BY_NAME,
    Amqp010Error,
    WireType,
    add_prefix,
    decode_payload,
    encode_name,
    encode_payload,
    find_payload,
    type_of,
    wire_type_of,
)
from qstore.formats.plain import Plain, plain_float, plain_uuid, plain_value
from qstore.formats.values import LIST, MAX_VALUES, VOID, TypedArray, TypedMap, TypedValue, ValueType
from qstore.formats.wording import with_article

#: Deeper nesting of containers is refused: qpid's own clients stay below ten.
MAX_DEPTH: Final = 32

#: Limit for arrays of values without bytes (void, bit), whose count is not bounded by their size.
MAX_EMPTY_VALUES: Final = 16

_MAX_NAMES: Final = 4096  # that are remembered as bytes: a broker writes the same ones again and again
_MAP: Final = BY_NAME["map"]
_NAME: Final = BY_NAME["str8"]


# --------------------------------------------------------------------------------------------- decoding


def read_value(wire_type: WireType, buffer: bytes, offset: int, end: int, depth: int = 0) -> tuple[Any, int]:
    """Decode the value of `wire_type` at `offset`; returns it and its end.

    Args:
        wire_type: its type, from the tables of `types`.
        buffer: the bytes that contain it.
        offset: where it begins, at its size prefix.
        end: end of its container; nothing is read beyond it.
        depth: number of containers around it.

    Raises:
        Amqp010Error: the bytes are not such a value.
    """
    start, stop = find_payload(wire_type, buffer, offset, end)
    if wire_type.codec is not None:
        return decode_payload(wire_type, buffer[start:stop], offset), stop
    if depth >= MAX_DEPTH:
        raise Amqp010Error(f"containers are nested more than {MAX_DEPTH} deep", offset)
    return _CONTAINER_READERS[wire_type.name](buffer, start, stop, depth + 1), stop


def decode_map(buffer: bytes) -> TypedMap:
    """Decode a buffer that is exactly one field table.

    Raises:
        Amqp010Error: the bytes are not one complete field table.
    """
    value, stop = read_map(buffer, 0, len(buffer))
    if stop != len(buffer):
        raise Amqp010Error(f"{len(buffer) - stop} bytes follow the map", stop)
    return value


def read_map(buffer: bytes, offset: int, end: int) -> tuple[TypedMap, int]:
    """Decode the field table at `offset`, starting with its size; returns it and its end. See `read_value`."""
    value, stop = read_value(_MAP, buffer, offset, end)
    assert isinstance(value, TypedMap)
    return value, stop


class TooManyValuesError(Amqp010Error):
    """A map, a list or an array has more values than a peer may send."""


def check_amount(
    wire_type: WireType, buffer: bytes, offset: int, end: int, left: int = MAX_VALUES, depth: int = 0
) -> int:
    """Check that the value at `offset` has at most `left` values in it, those of inner ones included.

    Returns:
        How many more it may have.

    Raises:
        TooManyValuesError: it has more.
        Amqp010Error: the bytes are not such a value.
    """
    at, stop = find_payload(wire_type, buffer, offset, end)
    if wire_type.codec is not None or at == stop:
        return left
    if depth >= MAX_DEPTH:
        raise Amqp010Error(f"containers are nested more than {MAX_DEPTH} deep", offset)
    only: WireType | None = None
    if wire_type.name == "array":
        only = type_of(buffer[at], at)
        at += 1
    count, at = _read_count(buffer, at, stop)
    left -= count
    if left < 0:
        raise TooManyValuesError(f"more than {MAX_VALUES:,} values", offset)
    if only is not None and only.codec is not None:
        return left
    for _ in range(count):
        if wire_type.name == "map":
            _, at = find_payload(_NAME, buffer, at, stop)
        each = only
        if each is None:
            if at >= stop:
                raise Amqp010Error("a type code is missing", at)
            each = type_of(buffer[at], at)
            at += 1
        left = check_amount(each, buffer, at, stop, left, depth + 1)
        _, at = find_payload(each, buffer, at, stop)
    return left


def _read_typed_value(buffer: bytes, offset: int, end: int, depth: int) -> tuple[TypedValue, int]:
    if offset >= end:
        raise Amqp010Error("a type code is missing", offset)
    wire_type = type_of(buffer[offset], offset)
    value, stop = read_value(wire_type, buffer, offset + 1, end, depth)
    return TypedValue(wire_type.value_type, value), stop


def _read_count(buffer: bytes, offset: int, end: int) -> tuple[int, int]:
    if offset + 4 > end:
        raise Amqp010Error("a container ends within its count", offset)
    return int.from_bytes(buffer[offset : offset + 4], "big"), offset + 4


def _check_filled(what: str, count: int, offset: int, end: int) -> None:
    if offset != end:
        raise Amqp010Error(f"{with_article(what)} of {count} values ends {end - offset} bytes before its size", offset)


def _read_entries(buffer: bytes, offset: int, end: int, depth: int) -> TypedMap:
    if offset == end:
        return TypedMap(bare=True)
    count, offset = _read_count(buffer, offset, end)
    entries = []
    for _ in range(count):
        start, stop = find_payload(_NAME, buffer, offset, end)
        value, offset = _read_typed_value(buffer, stop, end, depth)
        entries.append((buffer[start:stop].decode("utf-8", "surrogateescape"), value))
    _check_filled("map", count, offset, end)
    return TypedMap(tuple(entries))


def _read_list(buffer: bytes, offset: int, end: int, depth: int) -> tuple[TypedValue, ...]:
    if offset == end:
        return ()
    count, offset = _read_count(buffer, offset, end)
    values = []
    for _ in range(count):
        value, offset = _read_typed_value(buffer, offset, end, depth)
        values.append(value)
    _check_filled("list", count, offset, end)
    return tuple(values)


def _read_array(buffer: bytes, offset: int, end: int, depth: int) -> TypedArray:
    if offset == end:
        return TypedArray(VOID, ())
    wire_type = type_of(buffer[offset], offset)
    count, offset = _read_count(buffer, offset + 1, end)
    if wire_type.fixed == 0 and count > MAX_EMPTY_VALUES:
        raise Amqp010Error(f"an array claims {count} values that take no bytes", offset)
    values = []
    for _ in range(count):
        value, offset = read_value(wire_type, buffer, offset, end, depth)
        values.append(value)
    _check_filled("array", count, offset, end)
    return TypedArray(wire_type.value_type, tuple(values))


_CONTAINER_READERS: Final[dict[str, Callable[[bytes, int, int, int], Any]]] = {
    "map": _read_entries,
    "list": _read_list,
    "array": _read_array,
}


# --------------------------------------------------------------------------------------------- encoding


def encode_value(wire_type: WireType, value: Any, depth: int = 0) -> bytes:
    """The bytes of `value` as `wire_type`, with size prefix, without type code.

    Raises:
        Amqp010Error: the type cannot carry the value.
    """
    if wire_type.codec is not None:
        return encode_payload(wire_type, value)
    if depth >= MAX_DEPTH:
        raise Amqp010Error(f"containers are nested more than {MAX_DEPTH} deep")
    try:
        return add_prefix(wire_type, _CONTAINER_WRITERS[wire_type.name](value, depth + 1))
    except (AttributeError, TypeError):
        raise Amqp010Error(f"{wire_type.name} cannot carry {with_article(type(value).__name__)}") from None


def encode_map(value: TypedMap) -> bytes:
    """The bytes of a field table, starting with its size. See `encode_value`."""
    return encode_value(_MAP, value)


@lru_cache(_MAX_NAMES)
def _zero_bytes(value_type: ValueType) -> bytes:
    wire_type = wire_type_of(value_type)
    assert wire_type.code is not None
    return bytes([wire_type.code]) + encode_value(wire_type, 0)


def _write_typed_value(typed: TypedValue, depth: int) -> bytes:
    if typed.value.__class__ is int and not typed.value:
        return _zero_bytes(typed.type)  # most values of management
    wire_type = wire_type_of(typed.type)
    assert wire_type.code is not None
    return bytes([wire_type.code]) + encode_value(wire_type, typed.value, depth)


@lru_cache(_MAX_NAMES)
def _name_bytes(name: str) -> bytes:
    return add_prefix(_NAME, encode_name(name))


def _write_entries(value: TypedMap, depth: int) -> bytes:
    if value.bare:
        return b""
    parts = [len(value.entries).to_bytes(4, "big")]
    for name, typed in value.entries:
        parts.append(_name_bytes(name))
        parts.append(_write_typed_value(typed, depth))
    return b"".join(parts)


def _write_list(values: tuple[TypedValue, ...], depth: int) -> bytes:
    return len(values).to_bytes(4, "big") + b"".join(_write_typed_value(typed, depth) for typed in values)


def _write_array(array: TypedArray, depth: int) -> bytes:
    wire_type = wire_type_of(array.type)
    assert wire_type.code is not None
    return (
        bytes([wire_type.code])
        + len(array.values).to_bytes(4, "big")
        + b"".join(encode_value(wire_type, value, depth) for value in array.values)
    )


_CONTAINER_WRITERS: Final[dict[str, Callable[[Any, int], bytes]]] = {
    "map": _write_entries,
    "list": _write_list,
    "array": _write_array,
}


# ---- plain values ----

PlainReader: TypeAlias = Callable[[bytes, int, int], tuple[Plain, int]]

_two_u32: Final = struct.Struct(">II").unpack_from
_one_u32: Final = struct.Struct(">I").unpack_from
_one_u16: Final = struct.Struct(">H").unpack_from


def plain_payload(wire_type: WireType) -> Callable[[bytes], Plain]:
    """Converts the bytes of a value that contains no others to its plain form."""
    assert wire_type.codec is not None
    decode, _, _, encoding = wire_type.codec
    if wire_type.name == "uuid":
        return plain_uuid
    if wire_type.name == "struct32":
        return bytes.hex
    if not encoding:
        return lambda raw: plain_value(decode(raw))

    def plain_text(raw: bytes) -> Plain:
        try:
            return raw.decode(encoding)
        except UnicodeDecodeError:
            return raw.hex()

    return plain_text


def _number_reader(struct_format: str, width: int) -> PlainReader:
    unpack_from = struct.Struct(">" + struct_format).unpack_from

    def read_number(buffer: bytes, offset: int, _depth: int) -> tuple[Plain, int]:
        return unpack_from(buffer, offset)[0], offset + width

    def read_float(buffer: bytes, offset: int, _depth: int) -> tuple[Plain, int]:
        return plain_float(unpack_from(buffer, offset)[0]), offset + width

    return read_float if struct_format in "fd" else read_number


def _fixed_reader(wire_type: WireType, width: int) -> PlainReader:
    payload = plain_payload(wire_type)

    def read_fixed(buffer: bytes, offset: int, _depth: int) -> tuple[Plain, int]:
        end = offset + width
        if end > len(buffer):
            raise Amqp010Error(f"{wire_type.name} extends beyond the end", offset)
        return payload(buffer[offset:end]), end

    return read_fixed


def _text_reader(wire_type: WireType) -> PlainReader:
    """UTF-8 text, the most frequent type."""

    def read_text8(buffer: bytes, offset: int, _depth: int) -> tuple[Plain, int]:
        end = offset + 1 + buffer[offset]
        raw = buffer[offset + 1 : end]
        try:
            return raw.decode(), end
        except UnicodeDecodeError:
            return raw.hex(), end

    def read_text16(buffer: bytes, offset: int, _depth: int) -> tuple[Plain, int]:
        end = offset + 2 + (buffer[offset] << 8 | buffer[offset + 1])
        raw = buffer[offset + 2 : end]
        try:
            return raw.decode(), end
        except UnicodeDecodeError:
            return raw.hex(), end

    return {1: read_text8, 2: read_text16}[wire_type.prefix]


def _sized_reader(wire_type: WireType) -> PlainReader:
    payload = plain_payload(wire_type)

    def read_sized8(buffer: bytes, offset: int, _depth: int) -> tuple[Plain, int]:
        end = offset + 1 + buffer[offset]
        return payload(buffer[offset + 1 : end]), end

    def read_sized16(buffer: bytes, offset: int, _depth: int) -> tuple[Plain, int]:
        end = offset + 2 + _one_u16(buffer, offset)[0]
        return payload(buffer[offset + 2 : end]), end

    def read_sized32(buffer: bytes, offset: int, _depth: int) -> tuple[Plain, int]:
        end = offset + 4 + _one_u32(buffer, offset)[0]
        return payload(buffer[offset + 4 : end]), end

    return {1: read_sized8, 2: read_sized16, 4: read_sized32}[wire_type.prefix]


@lru_cache(maxsize=4096)
def _decode_name(raw: bytes) -> str:
    """A header's name: at most 255 bytes, and usually one in the cache."""
    return raw.decode("utf-8", "surrogateescape")


def read_typed_plain_map(buffer: bytes, offset: int, depth: int) -> tuple[dict[str, Plain], dict[str, str], int]:
    """Decode the field table at `offset` to plain values, type names and its end; used by the hot path.

    Raises:
        Amqp010Error: the bytes are not a field table.
        IndexError, struct.error: `buffer` ends within it; the caller converts these.
    """
    values: dict[str, Plain] = {}
    types: dict[str, str] = {}
    if len(buffer) < offset + 8 and _one_u32(buffer, offset)[0] == 0:
        return values, types, offset + 4
    size, count = _two_u32(buffer, offset)
    end = offset + 4 + size
    if size == 0:
        return values, types, end
    start = offset
    offset += 8
    for _ in range(count):
        stop = offset + 1 + buffer[offset]
        name = _decode_name(buffer[offset + 1 : stop])
        types[name], read = _READERS[buffer[stop]]
        values[name], offset = read(buffer, stop + 1, depth)
    if offset != end:
        raise Amqp010Error(f"a map of {count} values does not end where its size says", start)
    return values, types, end


def _plain_map(buffer: bytes, offset: int, depth: int) -> tuple[Plain, int]:
    _check_depth(offset, depth)
    values, _, end = read_typed_plain_map(buffer, offset, depth + 1)
    return values, end


def _plain_list(buffer: bytes, offset: int, depth: int) -> tuple[Plain, int]:
    _check_depth(offset, depth)
    start = offset
    end: int = offset + 4 + _one_u32(buffer, offset)[0]
    if end == offset + 4:
        return [], end
    count = _one_u32(buffer, offset + 4)[0]
    offset += 8
    values: list[Plain] = []
    for _ in range(count):
        value, offset = _READERS[buffer[offset]][1](buffer, offset + 1, depth + 1)
        values.append(value)
    if offset != end:
        raise Amqp010Error(f"a list of {count} values does not end where its size says", start)
    return values, end


def _plain_array(buffer: bytes, offset: int, depth: int) -> tuple[Plain, int]:
    _check_depth(offset, depth)
    start = offset
    end: int = offset + 4 + _one_u32(buffer, offset)[0]
    if end == offset + 4:
        return [], end
    code = buffer[offset + 4]
    count = _one_u32(buffer, offset + 5)[0]
    if type_of(code, offset + 4).fixed == 0 and count > MAX_EMPTY_VALUES:
        raise Amqp010Error(f"an array claims {count} values that take no bytes", offset)
    read = _READERS[code][1]
    offset += 9
    values: list[Plain] = []
    for _ in range(count):
        value, offset = read(buffer, offset, depth + 1)
        values.append(value)
    if offset != end:
        raise Amqp010Error(f"an array of {count} values does not end where its size says", start)
    return values, end


def _check_depth(offset: int, depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise Amqp010Error(f"containers are nested more than {MAX_DEPTH} deep", offset)


def _read_widthless(buffer: bytes, offset: int, _depth: int) -> tuple[Plain, int]:
    raise Amqp010Error(f"type code 0x{buffer[offset - 1]:02x} has no defined width", offset - 1)


def _reader_of(wire_type: WireType | None) -> tuple[str, PlainReader]:
    if wire_type is None:
        return "", _read_widthless
    if wire_type.codec is None:
        return wire_type.name, {"map": _plain_map, "list": _plain_list, "array": _plain_array}[wire_type.name]
    if wire_type.fixed is None and wire_type.codec.encoding == "utf-8":
        return wire_type.name, _text_reader(wire_type)
    if wire_type.fixed is None:
        return wire_type.name, _sized_reader(wire_type)
    if wire_type.codec.struct_format:
        return wire_type.name, _number_reader(wire_type.codec.struct_format, wire_type.fixed)
    return wire_type.name, _fixed_reader(wire_type, wire_type.fixed)


_READERS: Final[tuple[tuple[str, PlainReader], ...]] = tuple(map(_reader_of, BY_CODE))


# ---- Python values ----

_unpack_uint32: Final = struct.Struct(">I").unpack_from
_unpack_uint64: Final = struct.Struct(">Q").unpack_from
_unpack_int64: Final = struct.Struct(">q").unpack_from
_BOOLEAN, _UINT32, _INT64, _UINT64, _UUID, _STR8, _STR16, _MAP_TYPE, _LIST, _VOID = (
    0x08, 0x22, 0x31, 0x32, 0x48, 0x85, 0x95, 0xA8, 0xA9, 0xF0,
)  # fmt: skip


def python_map(buffer: bytes) -> dict[str, Any]:
    """A buffer that is exactly one map.

    Raises:
        Amqp010Error: it is not.
    """
    try:
        values, end = _python_map(buffer, 0, 0)
    except (IndexError, struct.error):
        raise Amqp010Error("the map ends within a value", len(buffer)) from None
    if end != len(buffer):
        raise Amqp010Error(f"{len(buffer) - end} bytes follow the map", end)
    return values


def python_list(buffer: bytes) -> list[Any]:
    """A buffer that is exactly one list.

    Raises:
        Amqp010Error: it is not.
    """
    try:
        values, end = _python_list(buffer, 0, 0)
    except (IndexError, struct.error):
        raise Amqp010Error("the list ends within a value", len(buffer)) from None
    if end != len(buffer):
        raise Amqp010Error(f"{len(buffer) - end} bytes follow the list", end)
    return values


def python_value(typed: TypedValue) -> Any:
    """The Python value of a typed one."""
    value = typed.value
    if isinstance(value, TypedMap):
        return {name: python_value(each) for name, each in value.entries}
    if isinstance(value, TypedArray):
        return [python_value(TypedValue(value.type, each)) for each in value.values]
    if typed.type is LIST:
        return [python_value(each) for each in value]
    return value


# Nothing may be read beyond a container's end: a value that extends beyond it is detected by its container.


def _python_map(buffer: bytes, at: int, depth: int) -> tuple[dict[str, Any], int]:
    """The map whose size is at `at`, and its end."""
    if depth >= MAX_DEPTH:
        raise Amqp010Error(f"containers are nested more than {MAX_DEPTH} deep", at)
    end = at + 4 + int(_unpack_uint32(buffer, at)[0])
    at += 4
    values: dict[str, Any] = {}
    if at == end:
        return values, end
    if end > len(buffer):
        raise Amqp010Error("a map ends before its size", at)
    count = int(_unpack_uint32(buffer, at)[0])
    at += 4
    for _ in range(count):
        start = at + 1
        at = start + buffer[at]
        name = buffer[start:at].decode("utf-8", "surrogateescape")
        values[name], at = _read_typed(buffer, at, end, depth)
    if at != end:
        raise Amqp010Error(f"a map of {count} values does not end at its size", at)
    return values, end


def _python_list(buffer: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    """The list whose size is at `at`, and its end."""
    if depth >= MAX_DEPTH:
        raise Amqp010Error(f"containers are nested more than {MAX_DEPTH} deep", at)
    end = at + 4 + int(_unpack_uint32(buffer, at)[0])
    at += 4
    values: list[Any] = []
    if at == end:
        return values, end
    if end > len(buffer):
        raise Amqp010Error("a list ends before its size", at)
    count = int(_unpack_uint32(buffer, at)[0])
    at += 4
    for _ in range(count):
        value, at = _read_typed(buffer, at, end, depth)
        values.append(value)
    if at != end:
        raise Amqp010Error(f"a list of {count} values does not end at its size", at)
    return values, end


def _read_typed(buffer: bytes, at: int, end: int, depth: int) -> tuple[Any, int]:
    """The value whose type code is at `at`, within a container that ends at `end`; and its own end."""
    if at >= end:
        raise Amqp010Error("a type code is missing", at)
    code = buffer[at]
    at += 1
    if code == _UINT64:
        return _unpack_uint64(buffer, at)[0], at + 8
    if code == _STR16:
        start = at + 2
        at = start + (buffer[at] << 8 | buffer[at + 1])
        return _text(buffer[start:at]), at
    if code == _UINT32:
        return _unpack_uint32(buffer, at)[0], at + 4
    if code == _INT64:
        return _unpack_int64(buffer, at)[0], at + 8
    if code == _BOOLEAN:
        return buffer[at] != 0, at + 1
    if code == _STR8:
        start = at + 1
        at = start + buffer[at]
        return _text(buffer[start:at]), at
    if code == _MAP_TYPE:
        return _python_map(buffer, at, depth + 1)
    if code == _LIST:
        return _python_list(buffer, at, depth + 1)
    if code == _UUID:
        if at + 16 > end:
            raise Amqp010Error("a UUID ends beyond its container", at)
        return uuid.UUID(bytes=buffer[at : at + 16]), at + 16
    if code == _VOID:
        return None, at
    wire_type = type_of(code, at - 1)
    value, at = read_value(wire_type, buffer, at, end, depth + 1)
    return python_value(TypedValue(wire_type.value_type, value)), at


def _text(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw
