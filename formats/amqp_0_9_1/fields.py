"""Fields of methods and content headers of AMQP 0-9-1: their types, and a codec for any list of them.

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
    table       `tables`                       `formats.values.TypedMap`

Source: the AMQP 0-9-1 specification, 4.2.5.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from qstore.formats.amqp_0_9_1.errors import Amqp091Error
from qstore.formats.amqp_0_9_1.tables import encode_table, read_table, sized
from qstore.formats.values import EMPTY_MAP
from qstore.formats.wording import with_article

_INTEGERS: Final = {
    "octet": struct.Struct(">B"),
    "short": struct.Struct(">H"),
    "long": struct.Struct(">I"),
    "longlong": struct.Struct(">Q"),
    "timestamp": struct.Struct(">Q"),
}
_MAX_SHORT: Final = 0xFF
_BITS_IN_OCTET: Final = 8

#: What a field is if it is not given.
DEFAULTS: Final[dict[str, Any]] = {
    "bit": False, **dict.fromkeys(_INTEGERS, 0), "shortstr": "", "longstr": b"", "table": EMPTY_MAP
}  # fmt: skip

#: Reads the value at an offset: buffer, offset, end of what may be read -> value, its end.
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
    """The shortstr at `offset`, and its end. Raises Amqp091Error if it ends behind `end`."""
    start = offset + 1
    stop = start + buffer[offset] if start <= end else end + 1
    if stop > end:
        raise Amqp091Error("a short string ends behind what contains it", offset)
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
            values[name], offset = READERS[type_name](buffer, offset, end)
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
