"""Field tables and fields of AMQP 0-9-1, to values (`formats.values`) and back.

    table    u32 size | entries: u8 size, name | type code | value
    array    u32 size | entries: type code | value

    code  value                     type read and written     written for, too
    ----  ------------------------  ------------------------  -------------------------------------------------
    t     u8: 0 is false            boolean                   bit
    b     i8                        int8
    B     u8                        uint8
    s     i16                       int16
    u     u16                       uint16
    I     i32                       int32
    i     u32                       uint32
    l     i64                       int64                     uint64 up to 2**63 - 1
    f     float                     float
    d     double                    double
    D     u8 scale, i32 unscaled    dec32                     dec64 if it fits
    S     u32 size, bytes           str16; vbin32 (a)         other text; char, uuid, and what does not fit (b)
    A     array                     list                      array
    T     u64 seconds since 1970    datetime
    F     table                     map
    V     nothing                   void
    x     u32 size, bytes           vbin32                    other binary values, structs, unknown types

(a) bytes that are not UTF-8, or more than 65,535 of them, which no text type of AMQP 0-10 can carry. (b) uint64 from
2**63 on and other decimals are written as their digits. `U` (i16) and `L` (i64), which the specification has and some
clients send, are read. A table that was read is not written back byte for byte in these cases only: (a), `U`, `L`, and
a boolean that is neither 0 nor 1. Repeated names and their order are preserved.

Fields of methods and content headers, with a codec for any list of them:

    type        bytes                          Python value
    ----------  -----------------------------  ------------------------------------------------------------
    bit         consecutive ones share an u8,  bool
                the first in its lowest bit
    octet       u8                             int
    short       u16                            int
    long        u32                            int
    longlong    u64                            int
    timestamp   u64, seconds since 1970        int
    shortstr    u8 size, UTF-8                 str; other bytes are preserved by surrogateescape
    longstr     u32 size, bytes                bytes
    table       as above                       `formats.values.TypedMap`

Sources: RabbitMQ, "AMQP 0-9-1 errata", 3 (types that are in use); the AMQP 0-9-1 specification, 4.2.5.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

from qstore.formats.amqp_0_9_1.codes import Amqp091Error
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import EMPTY_MAP, MAX_VALUES, TYPES, Family, TypedArray, TypedMap, TypedValue, ValueType
from qstore.formats.wording import with_article

#: Deeper nesting of tables and arrays is refused; RabbitMQ's own headers (x-death) are 2 deep.
MAX_DEPTH: Final = 32

_MAX_NAME: Final = 0xFF
_MAX_TEXT: Final = 0xFFFF
_MAX_SCALE: Final = 0xFF
_INT32: Final = range(-(1 << 31), 1 << 31)
_INT64: Final = range(-(1 << 63), 1 << 63)

#: Code -> type and layout of the values of fixed size.
_FIXED: Final = {
    code: (TYPES[name], struct.Struct(layout))
    for code, name, layout in (
        ("t", "boolean", ">B"), ("b", "int8", ">b"), ("B", "uint8", ">B"), ("s", "int16", ">h"), ("U", "int16", ">h"),
        ("u", "uint16", ">H"), ("I", "int32", ">i"), ("i", "uint32", ">I"), ("l", "int64", ">q"), ("L", "int64", ">q"),
        ("f", "float", ">f"), ("d", "double", ">d"), ("D", "dec32", ">Bi"), ("T", "datetime", ">Q"), ("V", "void", ">"),
    )
}  # fmt: skip
_FIXED_BY_BYTE: Final = {ord(code): found for code, found in _FIXED.items()}
_SIZES: Final = {code: 1 + layout.size for code, (_, layout) in _FIXED_BY_BYTE.items()}  # with the code

_SIZE: Final = struct.Struct(">I")
_TEXT, _BINARY, _LIST, _MAP = TYPES["str16"], TYPES["vbin32"], TYPES["list"], TYPES["map"]
_DECIMAL, _BOOLEAN, _VOID = TYPES["dec32"], TYPES["boolean"], TYPES["void"]
_S, _X, _A, _F = b"SxAF"


# --------------------------------------------------------------------------------------------- decoding


def read_table(buffer: bytes, offset: int, end: int, depth: int = 0) -> tuple[TypedMap, int]:
    """Decode the field table at `offset`, its size first; returns it and its end.

    Args:
        buffer: the bytes that contain it.
        offset: where it begins.
        end: end of its container; nothing is read beyond it.
        depth: number of tables and arrays around it.

    Raises:
        Amqp091Error: the bytes are not a field table.
    """
    offset, stop = sized(buffer, offset, end, "table")
    _check_depth(depth, offset)
    entries: list[tuple[str, TypedValue]] = []
    while offset < stop:
        start = offset + 1
        offset = start + buffer[offset]
        if offset >= stop:
            raise Amqp091Error("a table ends within an entry", start - 1)
        name = buffer[start:offset].decode("utf-8", "surrogateescape")
        value, offset = _read_value(buffer, offset, stop, depth + 1)
        entries.append((name, value))
    return TypedMap(tuple(entries)), stop


def check_table(buffer: bytes, offset: int, end: int, depth: int = 0) -> int:
    """The end of the field table at `offset`, checked as `read_table` does, without making its values."""
    offset, stop = sized(buffer, offset, end, "table")
    _check_depth(depth, offset)
    while offset < stop:
        at = offset
        offset += 1 + buffer[at]
        if offset >= stop:
            raise Amqp091Error("a table ends within an entry", at)
        offset = _check_value(buffer, offset, stop, depth + 1)
    return stop


def _check_value(buffer: bytes, offset: int, end: int, depth: int) -> int:
    code = buffer[offset]
    size = _SIZES.get(code)
    if size is not None:
        stop = offset + size
        if stop > end:
            raise Amqp091Error(f"a value of type {chr(code)} extends beyond its table", offset)
        return stop
    if code == _F:
        return check_table(buffer, offset + 1, end, depth)
    if code not in (_S, _X, _A):
        raise Amqp091Error(f"unknown type code 0x{code:02x} in a table", offset)
    offset, stop = sized(buffer, offset + 1, end, "array" if code == _A else "string")
    if code != _A:
        return stop
    _check_depth(depth, offset)
    while offset < stop:
        offset = _check_value(buffer, offset, stop, depth + 1)
    return stop


def has_too_many_values(buffer: bytes, offset: int, end: int) -> bool:
    """Whether the table at `offset` has more than `MAX_VALUES`. Bytes that are not a table are left to `read_table`."""
    left = MAX_VALUES
    offset, stop = sized(buffer, offset, end, "table")
    around = [(stop, True)]  # of the containers around: their end, and whether the values have names
    while around:
        stop, is_named = around[-1]
        if offset >= stop:
            around.pop()
            continue
        left -= 1
        if left < 0:
            return True
        if is_named:
            offset += 1 + buffer[offset]
        if offset >= stop:
            return False
        code = buffer[offset]
        size = _SIZES.get(code)
        if size is not None:
            offset += size
        elif code in (_S, _X):
            _, offset = sized(buffer, offset + 1, stop, "string")
        elif code in (_A, _F):
            offset, inner = sized(buffer, offset + 1, stop, "array")
            around.append((inner, code == _F))
        else:
            return False
    return False


def _read_limited_table(buffer: bytes, offset: int, end: int) -> tuple[TypedMap, int]:
    if end - offset > MAX_VALUES and has_too_many_values(buffer, offset, end):
        raise Amqp091Error(f"a table has more than {MAX_VALUES:,} values", offset)
    return read_table(buffer, offset, end)


def sized(buffer: bytes, offset: int, end: int, what: str) -> tuple[int, int]:
    """Start and end of the value whose size, a u32, is at `offset`. Raises Amqp091Error if it ends after `end`."""
    start = offset + _SIZE.size
    stop = start + _SIZE.unpack_from(buffer, offset)[0] if start <= end else start
    if stop > end:
        raise Amqp091Error(f"{with_article(what)} needs {stop - offset} bytes, {end - offset} are left", offset)
    return start, stop


def _check_depth(depth: int, offset: int) -> None:
    if depth >= MAX_DEPTH:
        raise Amqp091Error(f"tables and arrays are nested more than {MAX_DEPTH} deep", offset)


def _read_value(buffer: bytes, offset: int, end: int, depth: int) -> tuple[TypedValue, int]:
    code = buffer[offset]
    offset += 1
    fixed = _FIXED_BY_BYTE.get(code)
    if fixed is not None:
        value_type, layout = fixed
        stop = offset + layout.size
        if stop > end:
            raise Amqp091Error(f"a value of type {chr(code)} extends beyond its table", offset)
        return _fixed_value(value_type, layout.unpack_from(buffer, offset)), stop
    if code == _F:
        table, stop = read_table(buffer, offset, end, depth)
        return TypedValue(_MAP, table), stop
    if code == _A:
        return _read_array(buffer, offset, end, depth)
    if code not in (_S, _X):
        raise Amqp091Error(f"unknown type code 0x{code:02x} in a table", offset - 1)
    start, stop = sized(buffer, offset, end, "string")
    raw = buffer[start:stop]
    if code == _S and len(raw) <= _MAX_TEXT:
        try:
            return TypedValue(_TEXT, raw.decode()), stop
        except UnicodeDecodeError:
            pass
    return TypedValue(_BINARY, raw), stop


def _fixed_value(value_type: ValueType, fields: tuple[Any, ...]) -> TypedValue:
    if value_type is _DECIMAL:
        scale, unscaled = fields
        return TypedValue(value_type, Decimal((unscaled < 0, tuple(map(int, str(abs(unscaled)))), -scale)))
    if value_type is _VOID:
        return TypedValue(value_type, None)
    return TypedValue(value_type, fields[0] != 0 if value_type is _BOOLEAN else fields[0])


def _read_array(buffer: bytes, offset: int, end: int, depth: int) -> tuple[TypedValue, int]:
    offset, stop = sized(buffer, offset, end, "array")
    _check_depth(depth, offset)
    values = []
    while offset < stop:
        value, offset = _read_value(buffer, offset, stop, depth + 1)
        values.append(value)
    return TypedValue(_LIST, tuple(values)), stop


# --------------------------------------------------------------------------------------------- encoding


def encode_table(table: TypedMap, depth: int = 0) -> bytes:
    """The bytes of a field table, its size first.

    Raises:
        Amqp091Error: a name or a value does not fit, or tables are nested too deep.
    """
    _check_depth(depth, 0)
    parts = [b""]
    for name, typed in table.entries:
        raw = name.encode("utf-8", "surrogateescape")
        if len(raw) > _MAX_NAME:
            raise Amqp091Error(f"a name of {len(raw)} bytes is too long for a table")
        parts.append(bytes((len(raw),)) + raw)
        parts.append(_encode_value(typed, depth + 1))
    return _with_size(parts)


def _with_size(parts: list[bytes]) -> bytes:
    """The parts after the first, which is empty, with their size as the first."""
    parts[0] = _SIZE.pack(sum(map(len, parts)))
    return b"".join(parts)


def _encode_value(typed: TypedValue, depth: int) -> bytes:
    try:
        return _WRITERS[typed.type.family](typed, depth)
    except (struct.error, TypeError, AttributeError, ValueError, OverflowError) as error:
        if isinstance(error, Amqp091Error):
            raise
        raise Amqp091Error(f"{typed.type.name} cannot carry this {type(typed.value).__name__}: {error}") from None


def _string(raw: bytes, code: bytes = b"S") -> bytes:
    return code + _SIZE.pack(len(raw)) + raw


def _text(typed: TypedValue, _depth: int) -> bytes:
    value = typed.value
    return _string(value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape"))


def _binary(typed: TypedValue, _depth: int) -> bytes:
    return _string(bytes(typed.value), b"x")


_CODE_OF: Final = {found[0]: code for code, found in _FIXED.items() if code not in "UL"}


def _number(typed: TypedValue, depth: int) -> bytes:
    code = _CODE_OF.get(typed.type)
    if code is None:  # uint64
        if typed.value not in _INT64:
            return _text(typed, depth)
        code = "l"
    return code.encode() + _FIXED[code][1].pack(typed.value)


def _decimal(typed: TypedValue, depth: int) -> bytes:
    sign, digits, exponent = typed.value.as_tuple()
    if isinstance(exponent, int) and -_MAX_SCALE <= exponent <= 0:
        unscaled = int("".join(map(str, digits))) * (-1 if sign else 1)
        if unscaled in _INT32:
            return b"D" + _FIXED["D"][1].pack(-exponent, unscaled)
    return _text(typed, depth)


def _list(values: tuple[TypedValue, ...], depth: int) -> bytes:
    _check_depth(depth, 0)
    return b"A" + _with_size([b"", *(_encode_value(each, depth + 1) for each in values)])


def _array(array: TypedArray, depth: int) -> bytes:
    return _list(tuple(TypedValue(array.type, each) for each in array.values), depth)


_WRITERS: Final[dict[Family, Callable[[TypedValue, int], bytes]]] = {
    Family.NOTHING: lambda _typed, _depth: b"V",
    Family.BOOLEAN: lambda typed, _depth: b"t\x01" if typed.value else b"t\x00",
    Family.INTEGER: _number,
    Family.FLOAT: _number,
    Family.DECIMAL: _decimal,
    Family.TIME: _number,
    Family.TEXT: _text,
    Family.BINARY: _binary,
    Family.UUID: _text,
    Family.MAP: lambda typed, depth: b"F" + encode_table(typed.value, depth),
    Family.LIST: lambda typed, depth: _list(typed.value, depth),
    Family.ARRAY: lambda typed, depth: _array(typed.value, depth),
    Family.STRUCT: _binary,
    Family.OPAQUE: _binary,
}


# ---- fields of methods and content headers ----

_INTEGERS: Final = {
    "octet": struct.Struct(">B"),
    "short": struct.Struct(">H"),
    "long": struct.Struct(">I"),
    "longlong": struct.Struct(">Q"),
    "timestamp": struct.Struct(">Q"),
}
_MAX_SHORT: Final = 0xFF
_BITS_IN_OCTET: Final = 8

#: The default value of a field.
DEFAULTS: Final[dict[str, Any]] = {
    "bit": False, **dict.fromkeys(_INTEGERS, 0), "shortstr": "", "longstr": b"", "table": EMPTY_MAP
}  # fmt: skip

#: Reads the value at an offset: buffer, offset, end of its container -> value, its end.
Reader = Callable[[bytes, int, int], tuple[Any, int]]


class Field(NamedTuple):
    """A field: its name, with underscores, and its type."""

    name: str
    type_name: str


def make_fields(fields: str) -> tuple[Field, ...]:
    """Fields from their names and types, as in "queue:shortstr passive:bit"."""
    return tuple(Field(*field.split(":")) for field in fields.split())


# --------------------------------------------------------------------------------------------- decoding


def _integer_reader(layout: struct.Struct) -> Reader:
    def read(buffer: bytes, offset: int, end: int) -> tuple[Any, int]:
        stop = offset + layout.size
        if stop > end:
            raise Amqp091Error(f"a number needs {layout.size} bytes, {end - offset} are left", offset)
        return layout.unpack_from(buffer, offset)[0], stop

    return read


def read_short_text(buffer: bytes, offset: int, end: int) -> tuple[str, int]:
    """The shortstr at `offset`, and its end. Raises Amqp091Error if it ends after `end`."""
    start = offset + 1
    stop = start + buffer[offset] if start <= end else end + 1
    if stop > end:
        raise Amqp091Error("a short string extends beyond its container", offset)
    return buffer[start:stop].decode("utf-8", "surrogateescape"), stop


def _read_long_string(buffer: bytes, offset: int, end: int) -> tuple[bytes, int]:
    start, stop = sized(buffer, offset, end, "long string")
    return buffer[start:stop], stop


READERS: Final[dict[str, Reader]] = {
    **{name: _integer_reader(layout) for name, layout in _INTEGERS.items()},
    "shortstr": read_short_text,
    "longstr": _read_long_string,
    "table": read_table,
}


def decode_fields(fields: Sequence[Field], buffer: bytes, offset: int) -> dict[str, Any]:
    """The values of fields that begin at `offset` and end with the buffer.

    Raises:
        Amqp091Error: the bytes are not these fields, or others follow.
    """
    values: dict[str, Any] = {}
    end, bit, bits = len(buffer), _BITS_IN_OCTET, 0
    for name, type_name in fields:
        if type_name != "bit":
            read = READERS[type_name] if type_name != "table" else _read_limited_table
            values[name], offset = read(buffer, offset, end)
            bit = _BITS_IN_OCTET
            continue
        if bit == _BITS_IN_OCTET:
            bits, offset = READERS["octet"](buffer, offset, end)
            bit = 0
        values[name] = bool(bits >> bit & 1)
        bit += 1
    if offset != end:
        raise Amqp091Error(f"{end - offset} bytes follow the fields", offset)
    return values


# --------------------------------------------------------------------------------------------- encoding


def encode_value(type_name: str, value: Any) -> bytes:
    """The bytes of a value whose type is not bit.

    Raises:
        Amqp091Error: the type cannot carry the value.
    """
    try:
        if type_name == "shortstr":
            raw = value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")
            if len(raw) > _MAX_SHORT:
                raise Amqp091Error(f"{len(raw)} bytes are too long for a short string")
            return bytes((len(raw),)) + raw
        if type_name == "longstr":
            return _INTEGERS["long"].pack(len(value)) + bytes(value)
        if type_name == "table":
            return encode_table(value)
        return _INTEGERS[type_name].pack(value)
    except (struct.error, AttributeError, TypeError) as error:
        raise Amqp091Error(f"a {type_name} cannot carry {with_article(type(value).__name__)}: {error}") from None


def encode_fields(fields: Sequence[Field], values: dict[str, Any]) -> bytes:
    """The bytes of fields; one that is not given has the value of DEFAULTS.

    Raises:
        Amqp091Error: there is no field of a given name, or a field cannot carry its value.
    """
    parts: list[bytes] = []
    given, bits, bit = dict(values), 0, 0
    for name, type_name in fields:
        value = given.pop(name, DEFAULTS[type_name])
        if type_name == "bit":
            bits |= bool(value) << bit
            bit += 1
            if bit == _BITS_IN_OCTET:
                parts.append(bytes((bits,)))
                bits = bit = 0
            continue
        if bit:
            parts.append(bytes((bits,)))
            bits = bit = 0
        parts.append(encode_value(type_name, value))
    if bit:
        parts.append(bytes((bits,)))
    if given:
        raise Amqp091Error(f"there is no field {next(iter(given))}")
    return b"".join(parts)
