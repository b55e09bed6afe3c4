r"""Typed values as plain JSON values.

    INTEGER, TIME                 number (time: the seconds as stored)
    FLOAT                         number; "NaN", "Infinity", "-Infinity" if it is not one
    BOOLEAN, NOTHING              true, false; null
    TEXT                          text; hex if the bytes are not text of the type's encoding
    BINARY, OPAQUE                text, if the bytes are UTF-8 without control characters other than
                                  \t \n \r; else hex, lower case
    STRUCT                        hex
    UUID                          canonical text
    DECIMAL                       text of the number, with all decimal places
    MAP, LIST, ARRAY              object, array; for a repeated name the last value

Values are always valid JSON text. A name that is not UTF-8 contains lone surrogates, which a JSON encoder must escape.
"""

from __future__ import annotations

import math
import re
import struct
import uuid
from binascii import hexlify
from decimal import Decimal
from typing import Any, Final, TypeAlias

from qstore.formats.values import Family, TypedArray, TypedMap, TypedValue, UntypedValueError
from qstore.formats.wording import with_article

Plain: TypeAlias = "bool | int | float | str | list[Plain] | dict[str, Plain] | None"

_find_control_character: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]").search
_uuid_groups: Final = struct.Struct("8s4s4s4s12s").unpack
_HEX: Final = frozenset((Family.TEXT, Family.STRUCT))  # bytes of these are hex even if they are readable text


def plain_bytes(raw: bytes) -> str:
    """Bytes as text, or in hex if they are not text (see the module's table)."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return raw.hex()
    return raw.hex() if _find_control_character(text) else text


def plain_uuid(raw: bytes) -> str:
    """The canonical text of a UUID's 16 bytes."""
    return b"-".join(_uuid_groups(hexlify(raw))).decode()


def plain_float(number: float) -> float | str:
    """A number, or the name of a value for which JSON has no number."""
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def plain_value(value: Any) -> Plain:
    """The Python value of a typed one, in plain form. Structs are not accepted: they are always hex."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return plain_float(value)
        case bytes():
            return plain_bytes(value)
        case uuid.UUID():
            return str(value)
        case Decimal():
            return f"{value:f}"
        case TypedMap():
            return plain_map(value)
        case TypedArray(each, values):
            return [plain_typed_value(TypedValue(each, item)) for item in values]
        case tuple():
            return [plain_typed_value(item) for item in value]
    raise UntypedValueError(f"no AMQP type can carry {with_article(type(value).__name__)}")


def plain_typed_value(typed: TypedValue) -> Plain:
    """A typed value in plain form, without its type.

    Raises:
        UntypedValueError: it contains a value without a type.
    """
    if isinstance(typed.value, bytes) and typed.type.family in _HEX:
        return typed.value.hex()
    return plain_value(typed.value)


def plain_map(table: TypedMap) -> dict[str, Plain]:
    """The names and plain values of a field table."""
    return {name: plain_typed_value(typed) for name, typed in table.entries}
