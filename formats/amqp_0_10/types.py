"""All types of AMQP 0-10 as one table, and the codecs of those that contain no other values.

`formats.values` defines the Python value by type; in addition:

    sequence-no                               int
    datetime                                  unsigned, as brokers write it
    byte-ranges, sequence-set                 tuple of (first, last), both included
    bit                                       True
    a code that is not in the table           bytes, of the width that the high nibble of the code gives

Decoding and encoding again gives the same bytes, except for: a boolean byte above 1 (becomes 1), a signalling
NaN in a float (becomes quiet).

Sources: the AMQP 0-10 specification as XML, `<type>` elements; char and str*-latin are ISO 8859-15 and
str*-utf16 are big endian as in the specification's text; formats/broker_records/README.md, 2.2.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from qstore.formats.errors import FormatError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import TYPES, Family, ValueType
from qstore.formats.wording import with_article


class Amqp010Error(FormatError):
    """Bytes that are not AMQP 0-10, or a value that its AMQP 0-10 type cannot carry (then the offset is 0)."""

    format_name = "AMQP 0-10"


class Codec(NamedTuple):
    """Converts between a type's bytes (without any size prefix) and its Python value.

    `struct_format` is the `struct` format of a number, `encoding` that of text: fast paths are derived from them.
    """

    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]
    struct_format: str = ""
    encoding: str = ""


class WireType(NamedTuple):
    """One type of AMQP 0-10.

    Attributes:
        name: the specification's name; for a code that it does not define, the code itself ("0x03").
        code: the type code, None for types that only occur as fields of commands.
        fixed: width of the value in bytes, None for a type of variable width.
        prefix: width of the size before a value of variable width (1, 2 or 4), else 0.
        codec: None for the types that contain other values (map, list, array).
        value_type: the neutral type of its values.
    """

    name: str
    code: int | None
    fixed: int | None
    prefix: int
    codec: Codec | None
    value_type: ValueType


# ---------------------------------------------------------------------------------------------- codecs


def _number(struct_format: str) -> Codec:
    layout = struct.Struct(">" + struct_format)

    def decode(raw: bytes) -> Any:
        return layout.unpack(raw)[0]

    def encode(value: Any) -> bytes:
        return layout.pack(value)

    return Codec(decode, encode, struct_format)


def _text(encoding: str) -> Codec:
    def decode(raw: bytes) -> str | bytes:
        try:
            return raw.decode(encoding)
        except UnicodeDecodeError:
            return raw

    def encode(value: Any) -> bytes:
        raw: bytes = value.encode(encoding) if isinstance(value, str) else _check_bytes(value)
        return raw

    return Codec(decode, encode, encoding=encoding)


def _check_bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError(f"{with_article(type(value).__name__)} is not bytes")
    return value


def _decimal(mantissa_width: int) -> Codec:
    """Decimal places (u8), then the signed digits without the point."""

    def decode(raw: bytes) -> Decimal:
        digits = int.from_bytes(raw[1:], "big", signed=True)
        return Decimal((int(digits < 0), tuple(map(int, str(abs(digits)))), -raw[0]))

    def encode(value: Decimal) -> bytes:
        sign, digits, exponent = value.as_tuple()
        if not isinstance(exponent, int) or exponent > mantissa_width * 3:
            raise ValueError(f"{value} does not fit a decimal of {mantissa_width} bytes")
        mantissa = int("".join(map(str, digits))) * 10 ** max(exponent, 0)
        signed: int = -mantissa if sign else mantissa
        return bytes([max(-exponent, 0)]) + signed.to_bytes(mantissa_width, "big", signed=True)

    return Codec(decode, encode)


def _ranges(struct_format: str) -> Codec:
    """Pairs of first and last, each of them `struct_format`."""
    layout = struct.Struct(">" + struct_format * 2)

    def decode(raw: bytes) -> tuple[tuple[int, int], ...]:
        return tuple(layout.iter_unpack(raw))

    def encode(value: tuple[tuple[int, int], ...]) -> bytes:
        return b"".join(layout.pack(first, last) for first, last in value)

    return Codec(decode, encode)


def _nothing(value: object) -> Codec:
    return Codec(lambda _raw: value, lambda _value: b"")


_RAW: Final = Codec(lambda raw: raw, _check_bytes)
_UUID: Final = Codec(lambda raw: uuid.UUID(bytes=raw), lambda value: value.bytes)
_LATIN: Final = _text("iso8859-15")
_UTF8: Final = _text("utf-8")
_UTF16: Final = _text("utf-16-be")


# ----------------------------------------------------------------------------------------------- table


def _fixed(code: int | None, name: str, width: int, codec: Codec) -> WireType:
    return WireType(name, code, width, 0, codec, _neutral(name))


def _sized(code: int | None, name: str, prefix: int, codec: Codec | None) -> WireType:
    return WireType(name, code, None, prefix, codec, _neutral(name))


def _neutral(name: str) -> ValueType:
    return TYPES.get(name) or ValueType(name, Family.OPAQUE)


#: Every type of the specification, in its order.
TABLE: Final = (
    _fixed(0x00, "bin8", 1, _RAW),
    _fixed(0x01, "int8", 1, _number("b")),
    _fixed(0x02, "uint8", 1, _number("B")),
    _fixed(0x04, "char", 1, _LATIN),
    _fixed(0x08, "boolean", 1, _number("?")),
    _fixed(0x10, "bin16", 2, _RAW),
    _fixed(0x11, "int16", 2, _number("h")),
    _fixed(0x12, "uint16", 2, _number("H")),
    _fixed(0x20, "bin32", 4, _RAW),
    _fixed(0x21, "int32", 4, _number("i")),
    _fixed(0x22, "uint32", 4, _number("I")),
    _fixed(0x23, "float", 4, _number("f")),
    _fixed(0x27, "char-utf32", 4, _text("utf-32-be")),
    _fixed(None, "sequence-no", 4, _number("I")),
    _fixed(0x30, "bin64", 8, _RAW),
    _fixed(0x31, "int64", 8, _number("q")),
    _fixed(0x32, "uint64", 8, _number("Q")),
    _fixed(0x33, "double", 8, _number("d")),
    _fixed(0x38, "datetime", 8, _number("Q")),
    _fixed(0x40, "bin128", 16, _RAW),
    _fixed(0x48, "uuid", 16, _UUID),
    _fixed(0x50, "bin256", 32, _RAW),
    _fixed(0x60, "bin512", 64, _RAW),
    _fixed(0x70, "bin1024", 128, _RAW),
    _sized(0x80, "vbin8", 1, _RAW),
    _sized(0x84, "str8-latin", 1, _LATIN),
    _sized(0x85, "str8", 1, _UTF8),
    _sized(0x86, "str8-utf16", 1, _UTF16),
    _sized(0x90, "vbin16", 2, _RAW),
    _sized(0x94, "str16-latin", 2, _LATIN),
    _sized(0x95, "str16", 2, _UTF8),
    _sized(0x96, "str16-utf16", 2, _UTF16),
    _sized(None, "byte-ranges", 2, _ranges("Q")),
    _sized(None, "sequence-set", 2, _ranges("I")),
    _sized(0xA0, "vbin32", 4, _RAW),
    _sized(0xA8, "map", 4, None),
    _sized(0xA9, "list", 4, None),
    _sized(0xAA, "array", 4, None),
    _sized(0xAB, "struct32", 4, _RAW),
    _fixed(0xC0, "bin40", 5, _RAW),
    _fixed(0xC8, "dec32", 5, _decimal(4)),
    _fixed(0xD0, "bin72", 9, _RAW),
    _fixed(0xD8, "dec64", 9, _decimal(8)),
    _fixed(0xF0, "void", 0, _nothing(None)),
    _fixed(0xF1, "bit", 0, _nothing(True)),
)

# High nibble of a code -> width of the value; and -> width of its size prefix. 0xb and 0xe are in neither.
_FIXED_WIDTHS: Final = {0: 1, 1: 2, 2: 4, 3: 8, 4: 16, 5: 32, 6: 64, 7: 128, 0xC: 5, 0xD: 9, 0xF: 0}
_PREFIX_WIDTHS: Final = {8: 1, 9: 2, 0xA: 4}


def _type_of_code(code: int) -> WireType | None:
    for wire_type in TABLE:
        if wire_type.code == code:
            return wire_type
    nibble, name = code >> 4, f"0x{code:02x}"
    if nibble in _FIXED_WIDTHS:
        return _fixed(code, name, _FIXED_WIDTHS[nibble], _RAW)
    if nibble in _PREFIX_WIDTHS:
        return _sized(code, name, _PREFIX_WIDTHS[nibble], _RAW)
    return None


#: Code -> its type, for all 256 codes; None for the codes without a width.
BY_CODE: Final[tuple[WireType | None, ...]] = tuple(_type_of_code(code) for code in range(256))

#: Name -> its type, for the types of the specification.
BY_NAME: Final[dict[str, WireType]] = {wire_type.name: wire_type for wire_type in TABLE}


def type_of(code: int, offset: int = 0) -> WireType:
    """The type of a code.

    Raises:
        Amqp010Error: codes 0xb_ and 0xe_ have no width; `offset` is the code's position.
    """
    wire_type = BY_CODE[code] if 0 <= code <= 0xFF else None
    if wire_type is None:
        raise Amqp010Error(f"type code 0x{code:02x} has no defined width", offset)
    return wire_type


_BY_VALUE_TYPE: Final = {wire_type.value_type: wire_type for wire_type in BY_CODE if wire_type is not None}


def wire_type_of(value_type: ValueType) -> WireType:
    """The wire type for values of a neutral type.

    Raises:
        Amqp010Error: AMQP 0-10 has no such type.
    """
    wire_type = _BY_VALUE_TYPE.get(value_type)
    if wire_type is None:
        raise Amqp010Error(f"AMQP 0-10 has no type {value_type}")
    return wire_type


def code_of(name: str) -> int:
    """The code of a type name, either in the specification or "0x03" for an undefined one.

    Raises:
        Amqp010Error: there is no such type, or it has no code.
    """
    wire_type = BY_NAME.get(name)
    if wire_type is not None and wire_type.code is not None:
        return wire_type.code
    for candidate in BY_CODE:
        if candidate is not None and candidate.name == name and candidate.code is not None:
            return candidate.code
    raise Amqp010Error(f"there is no type code for {name!r}")


# ---------------------------------------------------------------------------------- bytes of one value


def encode_name(name: str) -> bytes:
    """The bytes of a name that was decoded as UTF-8 with surrogateescape.

    Raises:
        Amqp010Error: it contains other lone surrogates.
    """
    try:
        return name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise Amqp010Error("a name contains a lone surrogate that does not represent a byte") from None


def find_payload(wire_type: WireType, buffer: bytes, offset: int, end: int) -> tuple[int, int]:
    """Begin and end of the bytes of the value at `offset`, without its size prefix.

    Args:
        wire_type: the value's type.
        buffer: the bytes that contain it.
        offset: where it begins.
        end: end of its container; nothing is read beyond it.

    Raises:
        Amqp010Error: the value extends past `end`.
    """
    start = offset + wire_type.prefix
    if wire_type.fixed is not None:
        stop = start + wire_type.fixed
    elif start <= end:
        stop = start + int.from_bytes(buffer[offset:start], "big")
    else:
        stop = start
    if stop > end:
        raise Amqp010Error(f"{wire_type.name} needs {stop - offset} bytes, {end - offset} are left", offset)
    return start, stop


def decode_payload(wire_type: WireType, raw: bytes, offset: int) -> Any:
    """The Python value of `raw`, the bytes of a value that contains no others.

    Raises:
        Amqp010Error: ranges whose bytes are not complete pairs (every other type accepts any bytes of its width).
    """
    assert wire_type.codec is not None
    try:
        return wire_type.codec.decode(raw)
    except struct.error:
        raise Amqp010Error(f"{len(raw)} bytes of {wire_type.name} are not complete pairs", offset) from None


def add_prefix(wire_type: WireType, raw: bytes) -> bytes:
    """`raw` with the size prefix of its type.

    Raises:
        Amqp010Error: `raw` has not the type's width, or is too long for its prefix.
    """
    if wire_type.fixed is not None:
        if len(raw) != wire_type.fixed:
            raise Amqp010Error(f"{wire_type.name} takes {wire_type.fixed} bytes, not {len(raw)}")
        return raw
    if len(raw) >> (8 * wire_type.prefix):
        raise Amqp010Error(f"{len(raw)} bytes are too long for {wire_type.name}")
    return len(raw).to_bytes(wire_type.prefix, "big") + raw


def encode_payload(wire_type: WireType, value: Any) -> bytes:
    """The bytes of a value that contains no others, with size prefix.

    Raises:
        Amqp010Error: the type cannot carry the value.
    """
    assert wire_type.codec is not None
    try:
        raw = wire_type.codec.encode(value)
    except (struct.error, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise Amqp010Error(f"{wire_type.name} cannot carry this {type(value).__name__}: {error}") from None
    return add_prefix(wire_type, raw)
