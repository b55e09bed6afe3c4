"""Field tables of AMQP 0-9-1, to typed values (`formats.values`) and back.

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

Sources: RabbitMQ, "AMQP 0-9-1 errata", 3 (types that are in use); the AMQP 0-9-1 specification, 4.2.5.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from qstore.formats.amqp_0_9_1.errors import Amqp091Error
from qstore.formats.values import TYPES, Family, TypedArray, TypedMap, TypedValue, ValueType
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
        end: end of what contains it; nothing is read beyond it.
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
            raise Amqp091Error(f"a value of type {chr(code)} ends behind its table", offset)
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


def sized(buffer: bytes, offset: int, end: int, what: str) -> tuple[int, int]:
    """Start and end of what has its size, a u32, at `offset`. Raises Amqp091Error if it ends behind `end`."""
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
            raise Amqp091Error(f"a value of type {chr(code)} ends behind its table", offset)
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
    """The parts behind the first, which is empty, with their size as the first."""
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
