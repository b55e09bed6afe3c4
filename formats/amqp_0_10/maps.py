"""Maps, lists and arrays of AMQP 0-10, in values that keep their type codes.

    map      u32 size | u32 count | count x (str8 name | u8 code | value)
    list     u32 size | u32 count | count x (u8 code | value)
    array    u32 size | u8 code | u32 count | count x value

`size` counts the bytes that follow it. Names are UTF-8; a name that is not keeps its bytes by surrogateescape.
A container of size 0 (`00 00 00 00`) is read as an empty one, because qpidd reads and keeps it: a map
remembers that it came so and is written back so; an empty list or array is written in full. With the two
exceptions that `types` lists, all else is written back as it was read, repeated names and their order included.

Source: formats page, section 9.3.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from formats.amqp_0_10.errors import Amqp010Error
from formats.amqp_0_10.types import (
    BY_NAME,
    WireType,
    add_prefix,
    decode_payload,
    encode_name,
    encode_payload,
    find_payload,
    type_of,
)
from formats.wording import with_article

#: Containers inside containers beyond this are refused: qpid's own clients stay below ten.
MAX_DEPTH: Final = 32

#: An array of values that take no bytes (void, bit) may claim at most so many: its bytes justify no count.
MAX_EMPTY_VALUES: Final = 16

_MAP: Final = BY_NAME["map"]
_NAME: Final = BY_NAME["str8"]


class TypedValue(NamedTuple):
    """A value with the type code it travels under. `types` says what Python type each code has."""

    code: int
    value: Any

    @property
    def type_name(self) -> str:
        """The specification's name of the type."""
        return type_of(self.code).name


class TypedArray(NamedTuple):
    """An array: values of one type."""

    code: int
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class TypedMap:
    """A field table: names and typed values in the order they travel in.

    Attributes:
        entries: the pairs; a name may occur twice, as it may on the wire.
        bare: it is empty and travels as the size 0 alone.
    """

    entries: tuple[tuple[str, TypedValue], ...] = ()
    bare: bool = False

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.entries)

    def get(self, name: str) -> TypedValue | None:
        """The last value under `name`, as a reader that fills a dictionary would see it."""
        own_name: str
        value: TypedValue
        for own_name, value in reversed(self.entries):
            if own_name == name:
                return value
        return None


#: The table without entries, as brokers write it.
EMPTY_MAP: Final = TypedMap()


# --------------------------------------------------------------------------------------------- decoding


def read_value(wire_type: WireType, buffer: bytes, offset: int, end: int, depth: int = 0) -> tuple[Any, int]:
    """The value of `wire_type` at `offset`, and where it ends.

    Args:
        wire_type: its type, from the tables of `types`.
        buffer: the bytes that hold it.
        offset: where it begins, its size prefix included.
        end: where what holds it ends; nothing is read from there on.
        depth: containers around it.

    Raises:
        Amqp010Error: the bytes are not such a value.
    """
    start, stop = find_payload(wire_type, buffer, offset, end)
    if wire_type.codec is not None:
        return decode_payload(wire_type, buffer[start:stop], offset), stop
    if depth >= MAX_DEPTH:
        raise Amqp010Error(f"more than {MAX_DEPTH} containers inside each other", offset)
    return _CONTAINER_READERS[wire_type.name](buffer, start, stop, depth + 1), stop


def decode_map(buffer: bytes) -> TypedMap:
    """The field table that `buffer` holds, all of it.

    Raises:
        Amqp010Error: the bytes are not one whole field table.
    """
    value, stop = read_map(buffer, 0, len(buffer))
    if stop != len(buffer):
        raise Amqp010Error(f"{len(buffer) - stop} bytes follow the map", stop)
    return value


def read_map(buffer: bytes, offset: int, end: int) -> tuple[TypedMap, int]:
    """The field table at `offset`, its size first, and where it ends. See `read_value`."""
    value, stop = read_value(_MAP, buffer, offset, end)
    assert isinstance(value, TypedMap)
    return value, stop


def _read_typed_value(buffer: bytes, offset: int, end: int, depth: int) -> tuple[TypedValue, int]:
    if offset >= end:
        raise Amqp010Error("a type code is missing", offset)
    code = buffer[offset]
    value, stop = read_value(type_of(code, offset), buffer, offset + 1, end, depth)
    return TypedValue(code, value), stop


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
        return TypedArray(0xF0, ())
    code = buffer[offset]
    wire_type = type_of(code, offset)
    count, offset = _read_count(buffer, offset + 1, end)
    if wire_type.fixed == 0 and count > MAX_EMPTY_VALUES:
        raise Amqp010Error(f"an array claims {count} values that take no bytes", offset)
    values = []
    for _ in range(count):
        value, offset = read_value(wire_type, buffer, offset, end, depth)
        values.append(value)
    _check_filled("array", count, offset, end)
    return TypedArray(code, tuple(values))


_CONTAINER_READERS: Final[dict[str, Callable[[bytes, int, int, int], Any]]] = {
    "map": _read_entries,
    "list": _read_list,
    "array": _read_array,
}


# --------------------------------------------------------------------------------------------- encoding


def encode_value(wire_type: WireType, value: Any, depth: int = 0) -> bytes:
    """The bytes of `value` as `wire_type`, size prefix included, type code not.

    Raises:
        Amqp010Error: the type cannot carry the value.
    """
    if wire_type.codec is not None:
        return encode_payload(wire_type, value)
    if depth >= MAX_DEPTH:
        raise Amqp010Error(f"more than {MAX_DEPTH} containers inside each other")
    try:
        return add_prefix(wire_type, _CONTAINER_WRITERS[wire_type.name](value, depth + 1))
    except (AttributeError, TypeError):
        raise Amqp010Error(f"{wire_type.name} cannot carry {with_article(type(value).__name__)}") from None


def encode_map(value: TypedMap) -> bytes:
    """The bytes of a field table, its size first. See `encode_value`."""
    return encode_value(_MAP, value)


def _write_typed_value(typed: TypedValue, depth: int) -> bytes:
    encoded = encode_value(type_of(typed.code), typed.value, depth)
    return bytes([typed.code]) + encoded


def _write_entries(value: TypedMap, depth: int) -> bytes:
    if value.bare:
        return b""
    parts = [len(value.entries).to_bytes(4, "big")]
    for name, typed in value.entries:
        parts.append(add_prefix(_NAME, encode_name(name)))
        parts.append(_write_typed_value(typed, depth))
    return b"".join(parts)


def _write_list(values: tuple[TypedValue, ...], depth: int) -> bytes:
    return len(values).to_bytes(4, "big") + b"".join(_write_typed_value(typed, depth) for typed in values)


def _write_array(array: TypedArray, depth: int) -> bytes:
    wire_type = type_of(array.code)
    return (
        bytes([array.code])
        + len(array.values).to_bytes(4, "big")
        + b"".join(encode_value(wire_type, value, depth) for value in array.values)
    )


_CONTAINER_WRITERS: Final[dict[str, Callable[[Any, int], bytes]]] = {
    "map": _write_entries,
    "list": _write_list,
    "array": _write_array,
}


# ---------------------------------------------------------------------------------- from Python values


def typed_value(value: Any) -> TypedValue:
    """`value` under the type code that a broker gives it (formats page, section 9.3, last paragraph).

    Text becomes str16, bytes vbin16 (vbin32 where longer), int int64 (uint64 where larger), dict map.

    Raises:
        Amqp010Error: there is no type for such a value.
    """
    match value:
        case TypedValue():
            return value
        case TypedMap():
            return TypedValue(0xA8, value)
        case None:
            return TypedValue(0xF0, None)
        case bool():
            return TypedValue(0x08, value)
        case int():
            return TypedValue(0x32 if value >> 63 > 0 else 0x31, value)
        case float():
            return TypedValue(0x33, value)
        case str():
            return TypedValue(0x95, value)
        case bytes():
            return TypedValue(0xA0 if len(value) > 0xFFFF else 0x90, value)
        case uuid.UUID():
            return TypedValue(0x48, value)
        case Mapping():
            return TypedValue(0xA8, typed_map(value))
        case list() | tuple():
            return TypedValue(0xA9, tuple(typed_value(item) for item in value))
    raise Amqp010Error(f"no AMQP 0-10 type carries {with_article(type(value).__name__)}")


def typed_map(values: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> TypedMap:
    """A field table of Python values (see `typed_value`), in their order.

    qpidd writes the tables it makes itself in ascending byte order of the names: hand them in sorted for that.
    """
    pairs = values.items() if isinstance(values, Mapping) else values
    return TypedMap(tuple((name, typed_value(value)) for name, value in pairs))
