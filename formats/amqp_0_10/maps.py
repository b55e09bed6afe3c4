"""Maps, lists and arrays of AMQP 0-10, to typed values (`formats.values`) and back.

    map      u32 size | u32 count | count x (str8 name | u8 code | value)
    list     u32 size | u32 count | count x (u8 code | value)
    array    u32 size | u8 code | u32 count | count x value

`size` counts the bytes that follow it. Names are UTF-8; other bytes are preserved by surrogateescape. A container of
size 0 (`00 00 00 00`) is decoded as an empty one, because qpidd accepts and stores it: a map remembers this form and is
written back in it; an empty list or array is written in full. Except for the two cases listed in `types`, everything
else is written back as it was read, including repeated names and their order.

Source: formats/broker_records/README.md, 2.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from qstore.formats.amqp_0_10.errors import Amqp010Error
from qstore.formats.amqp_0_10.types import (
    BY_NAME,
    WireType,
    add_prefix,
    decode_payload,
    encode_name,
    encode_payload,
    find_payload,
    type_of,
    wire_type_of,
)
from qstore.formats.values import VOID, TypedArray, TypedMap, TypedValue, ValueType
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
        return _zero_bytes(typed.type)  # most of what management tells
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
