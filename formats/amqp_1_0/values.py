"""AMQP 1.0 values: the table of constructors, and the reader and the writer derived from it.

Python value by type:

    null, boolean                              None, bool
    ubyte ... ulong, byte ... long, timestamp  int (timestamp: milliseconds since 1970)
    float, double                              float
    decimal32, decimal64, decimal128           bytes, IEEE 754, unchanged
    char, string, symbol                       str; bytes if the bytes are not text
    binary                                     bytes
    uuid                                       uuid.UUID
    list, array                                tuple of `Value`
    map                                        tuple of (key, value), both `Value`
    described                                  `Described`

Source: the AMQP 1.0 specification as XML, part "types".
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any, Final

from qstore.formats.errors import FormatError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.plain import Plain, plain_bytes, plain_float
from qstore.formats.wording import with_article

#: Deeper nesting of values (including descriptors) is refused.
MAX_DEPTH: Final = 32

#: Limit for arrays of values without bytes, whose count is not bounded by their size.
MAX_EMPTY_VALUES: Final = 16

_DESCRIBED: Final = 0x00


class Amqp10Error(FormatError):
    """Bytes that are not AMQP 1.0."""

    format_name = "AMQP 1.0"


class Constructor(NamedTuple):
    """One encoding of a type.

    Attributes:
        type_name: the specification's name of the type.
        fixed: width of the value in bytes, None if a size precedes it.
        prefix: width of that size (and of the count of a compound or an array), else 0.
        decode: from the value's bytes to the Python value; None for types that contain other values.
    """

    type_name: str
    fixed: int | None
    prefix: int
    decode: Callable[[bytes], Any] | None


class Value(NamedTuple):
    """A value and the specification's name of its type."""

    type_name: str
    value: Any


class Described(NamedTuple):
    """A value with a descriptor, which defines the meaning of the value."""

    descriptor: Value
    value: Value


# ------------------------------------------------------------------------------------------------ table


def _fixed(type_name: str, width: int, decode: Callable[[bytes], Any]) -> Constructor:
    return Constructor(type_name, width, 0, decode)


def _variable(type_name: str, prefix: int, decode: Callable[[bytes], Any]) -> Constructor:
    return Constructor(type_name, None, prefix, decode)


def _holder(type_name: str, prefix: int) -> Constructor:
    return Constructor(type_name, None, prefix, None)


def _constant(value: Any) -> Callable[[bytes], Any]:
    return lambda _raw: value


def _unsigned(raw: bytes) -> int:
    return int.from_bytes(raw, "big")


def _signed(raw: bytes) -> int:
    return int.from_bytes(raw, "big", signed=True)


def _text(encoding: str) -> Callable[[bytes], str | bytes]:
    def decode(raw: bytes) -> str | bytes:
        try:
            return raw.decode(encoding)
        except UnicodeDecodeError:
            return raw

    return decode


def _float(struct_format: str) -> Callable[[bytes], float]:
    unpack = struct.Struct(struct_format).unpack
    return lambda raw: float(unpack(raw)[0])


def _raw(raw: bytes) -> bytes:
    return raw


_UTF8: Final = _text("utf-8")

#: Constructor byte -> how its values are read; every primitive encoding of the specification, in its order.
CONSTRUCTORS: Final[dict[int, Constructor]] = {
    0x40: _fixed("null", 0, _constant(None)),
    0x56: _fixed("boolean", 1, lambda raw: raw != b"\0"),
    0x41: _fixed("boolean", 0, _constant(True)),
    0x42: _fixed("boolean", 0, _constant(False)),
    0x50: _fixed("ubyte", 1, _unsigned),
    0x60: _fixed("ushort", 2, _unsigned),
    0x70: _fixed("uint", 4, _unsigned),
    0x52: _fixed("uint", 1, _unsigned),
    0x43: _fixed("uint", 0, _constant(0)),
    0x80: _fixed("ulong", 8, _unsigned),
    0x53: _fixed("ulong", 1, _unsigned),
    0x44: _fixed("ulong", 0, _constant(0)),
    0x51: _fixed("byte", 1, _signed),
    0x61: _fixed("short", 2, _signed),
    0x71: _fixed("int", 4, _signed),
    0x54: _fixed("int", 1, _signed),
    0x81: _fixed("long", 8, _signed),
    0x55: _fixed("long", 1, _signed),
    0x72: _fixed("float", 4, _float(">f")),
    0x82: _fixed("double", 8, _float(">d")),
    0x74: _fixed("decimal32", 4, _raw),
    0x84: _fixed("decimal64", 8, _raw),
    0x94: _fixed("decimal128", 16, _raw),
    0x73: _fixed("char", 4, _text("utf-32-be")),
    0x83: _fixed("timestamp", 8, _signed),
    0x98: _fixed("uuid", 16, lambda raw: uuid.UUID(bytes=raw)),
    0xA0: _variable("binary", 1, _raw),
    0xB0: _variable("binary", 4, _raw),
    0xA1: _variable("string", 1, _UTF8),
    0xB1: _variable("string", 4, _UTF8),
    0xA3: _variable("symbol", 1, _text("ascii")),
    0xB3: _variable("symbol", 4, _text("ascii")),
    0x45: _fixed("list", 0, _constant(())),
    0xC0: _holder("list", 1),
    0xD0: _holder("list", 4),
    0xC1: _holder("map", 1),
    0xD1: _holder("map", 4),
    0xE0: _holder("array", 1),
    0xF0: _holder("array", 4),
}


# ---------------------------------------------------------------------------------------------- reading


def read_value(buffer: bytes, offset: int, end: int, depth: int = 0) -> tuple[Value, int]:
    """Decode the value whose constructor is at `offset`; returns it and its end.

    Args:
        buffer: the bytes that contain it.
        offset: where its constructor is.
        end: end of its container; nothing is read beyond it.
        depth: number of values around it.

    Raises:
        Amqp10Error: the bytes are not such a value.
    """
    descriptors, constructor, offset = read_constructor(buffer, offset, end, depth)
    value, stop = _read_bare(constructor, buffer, offset, end, depth + len(descriptors))
    return _describe(descriptors, value), stop


def read_constructor(
    buffer: bytes, offset: int, end: int, depth: int = 0
) -> tuple[tuple[Value, ...], Constructor, int]:
    """The descriptors (outermost first) and the constructor at `offset`, and where the value's bytes begin.

    Raises:
        Amqp10Error: the constructor is incomplete or undefined.
    """
    descriptors: tuple[Value, ...] = ()
    while offset < end and buffer[offset] == _DESCRIBED:
        if depth + len(descriptors) >= MAX_DEPTH:
            raise Amqp10Error(f"values are nested more than {MAX_DEPTH} deep", offset)
        descriptor, offset = read_value(buffer, offset + 1, end, depth + len(descriptors) + 1)
        descriptors += (descriptor,)
    if offset >= end:
        raise Amqp10Error("a constructor is missing", offset)
    constructor = CONSTRUCTORS.get(buffer[offset])
    if constructor is None:
        raise Amqp10Error(f"0x{buffer[offset]:02x} is not a constructor", offset)
    return descriptors, constructor, offset + 1


def find_payload(constructor: Constructor, buffer: bytes, offset: int, end: int) -> tuple[int, int]:
    """Begin and end of the bytes of a value, without its size.

    Args:
        constructor: of the value.
        buffer: the bytes that contain it.
        offset: just after its constructor.
        end: end of its container.

    Raises:
        Amqp10Error: it extends past `end`.
    """
    start = offset + constructor.prefix
    if constructor.fixed is not None:
        stop = start + constructor.fixed
    elif start <= end:
        stop = start + int.from_bytes(buffer[offset:start], "big")
    else:
        stop = start
    if stop > end:
        what = constructor.type_name
        raise Amqp10Error(f"{what} needs {stop - offset} bytes, {end - offset} are left", offset)
    return start, stop


def _describe(descriptors: tuple[Value, ...], value: Value) -> Value:
    for descriptor in reversed(descriptors):
        value = Value("described", Described(descriptor, value))
    return value


def _read_bare(constructor: Constructor, buffer: bytes, offset: int, end: int, depth: int) -> tuple[Value, int]:
    start, stop = find_payload(constructor, buffer, offset, end)
    name = constructor.type_name
    if constructor.decode is not None:
        return Value(name, constructor.decode(buffer[start:stop])), stop
    if depth >= MAX_DEPTH:
        raise Amqp10Error(f"values are nested more than {MAX_DEPTH} deep", offset)
    items_offset = start + constructor.prefix
    if items_offset > stop:
        raise Amqp10Error(f"{with_article(name)} ends within its count", start)
    count = int.from_bytes(buffer[start:items_offset], "big")
    read_items = _read_array_items if name == "array" else _read_items
    items, items_end = read_items(count, buffer, items_offset, stop, depth + 1)
    if items_end != stop:
        raise Amqp10Error(
            f"{with_article(name)} of {count} values ends {stop - items_end} bytes before its size", items_end
        )
    if name != "map":
        return Value(name, items), stop
    if count % 2:
        raise Amqp10Error(f"a map of {count} values has a key without a value", start)
    return Value(name, tuple(zip(items[::2], items[1::2], strict=True))), stop


def _read_items(count: int, buffer: bytes, offset: int, end: int, depth: int) -> tuple[tuple[Value, ...], int]:
    items = []
    for _ in range(count):
        item, offset = read_value(buffer, offset, end, depth)
        items.append(item)
    return tuple(items), offset


def _read_array_items(count: int, buffer: bytes, offset: int, end: int, depth: int) -> tuple[tuple[Value, ...], int]:
    descriptors, constructor, offset = read_constructor(buffer, offset, end, depth)
    if constructor.fixed == 0 and count > MAX_EMPTY_VALUES:
        raise Amqp10Error(f"an array claims {count} values that take no bytes", offset)
    items = []
    for _ in range(count):
        item, offset = _read_bare(constructor, buffer, offset, end, depth + len(descriptors))
        items.append(_describe(descriptors, item))
    return tuple(items), offset


# ---------------------------------------------------------------------------------------------- writing

_LARGEST_SHORT: Final = 0xFF  # bytes, and items, that the short forms have room for


def _find_widest() -> dict[str, int]:
    found: dict[str, tuple[int, int, int]] = {}
    for code, each in CONSTRUCTORS.items():
        width = (each.fixed or 0, each.prefix, code)
        if each.type_name not in found or width[:2] > found[each.type_name][:2]:
            found[each.type_name] = width
    return {name: code for name, (_, _, code) in found.items()}


#: Type -> its constructor of full width, as the elements of an array have it.
_WIDEST: Final = _find_widest()

_SIGNED: Final = frozenset(("byte", "short", "int", "long", "timestamp"))
_UNSIGNED: Final = frozenset(("ubyte", "ushort", "uint", "ulong"))
#: Wide constructor -> that of the same type for values of one byte, and of zero.
_SMALL: Final = {0x70: 0x52, 0x80: 0x53, 0x71: 0x54, 0x81: 0x55}
_ZERO: Final = {0x70: b"\x43", 0x80: b"\x44"}
_ENCODINGS: Final = {"string": "utf-8", "symbol": "ascii", "char": "utf-32-be"}


def encode_value(value: Value) -> bytes:
    """A value with its constructor, in its shortest form. Bytes of a string that are not UTF-8 become question marks.

    Raises:
        Amqp10Error: it does not fit its type.
    """
    name, content = value
    if isinstance(content, Described):
        return b"\0" + encode_value(content.descriptor) + encode_value(content.value)
    if name == "null":
        return b"\x40"
    if name == "boolean":
        return b"\x41" if content else b"\x42"
    if name in ("list", "map"):
        items = content if name == "list" else [item for pair in content for item in pair]
        return _compound(name, len(items), b"".join(map(encode_value, items)))
    if name == "array":
        return _array(content)
    code = _WIDEST.get(name)
    if code is None:
        raise Amqp10Error(f"there is no type {name!a:.64}")
    if not content and code in _ZERO:
        return _ZERO[code]
    small = _SMALL.get(code)
    if small is not None and (0 <= content <= _LARGEST_SHORT if name in _UNSIGNED else -0x80 <= content < 0x80):
        return bytes((small, content & 0xFF))
    payload = _payload(name, content)
    if CONSTRUCTORS[code].prefix and len(payload) <= _LARGEST_SHORT:
        return bytes((code - 0x10, len(payload))) + payload
    return bytes((code,)) + _sized(code, payload)


def _sized(code: int, payload: bytes) -> bytes:
    """The bytes after a constructor of full width."""
    return len(payload).to_bytes(4, "big") + payload if CONSTRUCTORS[code].prefix else payload


def _payload(name: str, content: Any) -> bytes:
    """The bytes of a value that contains no others, without its size, in full width."""
    width = CONSTRUCTORS[_WIDEST[name]].fixed
    try:
        if name == "boolean":
            return b"\1" if content else b"\0"
        if isinstance(content, bytes):
            raw = content
        elif isinstance(content, str):
            raw = content.encode(_ENCODINGS[name], "replace" if name == "string" else "strict")
        elif isinstance(content, uuid.UUID):
            raw = content.bytes
        elif name in ("float", "double"):
            raw = struct.pack(">f" if name == "float" else ">d", content)
        else:
            assert width is not None
            raw = content.to_bytes(width, "big", signed=name in _SIGNED)
    except (OverflowError, UnicodeEncodeError, KeyError, struct.error):
        raise Amqp10Error(f"{content!a:.64} is not {with_article(name)}") from None
    if width is not None and len(raw) != width:
        raise Amqp10Error(f"{content!a:.64} is not {with_article(name)}")
    return raw


def _compound(name: str, count: int, items: bytes) -> bytes:
    if name == "list" and not count:
        return b"\x45"
    code = _WIDEST[name]
    if count <= _LARGEST_SHORT and len(items) < _LARGEST_SHORT:
        return bytes((code - 0x10, len(items) + 1, count)) + items
    return bytes((code,)) + (len(items) + 4).to_bytes(4, "big") + count.to_bytes(4, "big") + items


def _array(values: tuple[Value, ...]) -> bytes:
    """An array, whose elements share a constructor of full width, and its descriptors if they have any."""
    if not values:
        return b"\xe0\x02\x00\x40"
    constructor, name = _element(values[0])
    items = b""
    for each in values:
        own, payload = _element(each)[0], _bare(each)
        if own != constructor:
            raise Amqp10Error(f"{with_article(each.type_name)} in an array of type {name}")
        items += payload
    content = constructor + items
    if len(values) <= _LARGEST_SHORT and len(content) < _LARGEST_SHORT:
        return bytes((0xE0, len(content) + 1, len(values))) + content
    return b"\xf0" + (len(content) + 4).to_bytes(4, "big") + len(values).to_bytes(4, "big") + content


def _element(value: Value) -> tuple[bytes, str]:
    """The constructor of an element of an array, and the name of its type."""
    content = value.value
    if isinstance(content, Described):
        constructor, name = _element(content.value)
        return b"\0" + encode_value(content.descriptor) + constructor, name
    name = value.type_name
    if name == "boolean":
        return b"\x56", name
    code = _WIDEST.get(name)
    if code is None:
        raise Amqp10Error(f"there is no type {name!a:.64}")
    return bytes((code,)), name


def _bare(value: Value) -> bytes:
    """An element of an array without its constructor."""
    name, content = value
    if isinstance(content, Described):
        return _bare(content.value)
    if name == "null":
        return b""
    if name in ("list", "map"):
        items = content if name == "list" else [item for pair in content for item in pair]
        encoded = b"".join(map(encode_value, items))
        return (len(encoded) + 4).to_bytes(4, "big") + len(items).to_bytes(4, "big") + encoded
    if name == "array":
        encoded = _array(content)
        if encoded[0] == 0xE0:
            return (encoded[1] + 3).to_bytes(4, "big") + encoded[2].to_bytes(4, "big") + encoded[3:]
        return encoded[1:]
    if name == "boolean":
        return b"\1" if content else b"\0"
    return _sized(_WIDEST[name], _payload(name, content))


# ------------------------------------------------------------------------------------------------ plain


def plain_value(typed: Value) -> Plain:
    """A value as a plain JSON value: as in `formats.plain`, a described value without descriptor.

    Decimals, and bytes that are not text, are in hex. The key of a map is the text of its plain value.
    """
    name, value = typed
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return plain_float(value)
        case bytes():
            return plain_bytes(value) if name == "binary" else value.hex()
        case uuid.UUID():
            return str(value)
        case Described():
            return plain_value(value.value)
    if name == "map":
        return {plain_key(key): plain_value(item) for key, item in value}
    return [plain_value(item) for item in value]


def plain_key(key: Value) -> str:
    """The key of a map as text."""
    plain = plain_value(key)
    return plain if isinstance(plain, str) else str(plain)
