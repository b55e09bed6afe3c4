"""Typed values (`formats.values`) as JSON, and back: nothing is lost.

    type                   JSON
    ---------------------  ---------------------------------------------------------------------
    void, boolean          null, true, false
    int64, double          number; a double always has a point or an exponent
    str16                  text
    list                   array, within an object or another array
    map                    {"type": "map", "value": {name: value}}
    array                  {"type": "array", "of": type, "values": [...]}
    other numbers, text    {"type": type, "value": ...}; a decimal and a uuid as text
    bytes of any type      {"type": type, "base64": ...}

A table of arguments or headers is an object {name: value}. What has no such form (a name that occurs twice, NaN) is
refused with `NoJsonFormError`: the caller then writes the bytes of the whole record. Names are escaped as
`tools.console.text` describes.
"""

from __future__ import annotations

import base64
import binascii
import math
import uuid
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from qstore.formats.amqp_0_10.maps import MAX_DEPTH
from qstore.formats.amqp_0_10.types import BY_NAME
from qstore.formats.values import (
    BOOLEAN,
    DOUBLE,
    INT64,
    LIST,
    STR16,
    VOID,
    Family,
    TypedArray,
    TypedMap,
    TypedValue,
    ValueType,
    typed_value,
)
from qstore.tools.console.text import escape_name, printable, unescape_name
from qstore.tools.interchange.items import InterchangeError

_PLAIN: Final = frozenset((VOID, BOOLEAN, INT64, STR16))
_EXPECTED: Final = {
    Family.NOTHING: type(None),
    Family.BOOLEAN: bool,
    Family.INTEGER: int,
    Family.TIME: int,
    Family.TEXT: str,
}


class NoJsonFormError(Exception):
    """A value that has no form in JSON from which it could be read back."""


# ---- writing ----


def table_to_json(table: TypedMap) -> dict[str, Any]:
    """A table as an object. Raises NoJsonFormError."""
    entries = {escape_name(name): value_to_json(value) for name, value in table.entries}
    if table.bare or len(entries) != len(table.entries):
        raise NoJsonFormError
    return entries


def value_to_json(typed: TypedValue) -> Any:
    """A typed value. Raises NoJsonFormError."""
    kind, value = typed
    if isinstance(value, bytes):
        return {"type": kind.name, "base64": base64.b64encode(value).decode()}
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise NoJsonFormError from None
    if kind in _PLAIN:
        return value
    if kind is LIST:
        return [value_to_json(each) for each in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            raise NoJsonFormError
        return value if kind is DOUBLE else {"type": kind.name, "value": value}
    if isinstance(value, TypedMap):
        return {"type": kind.name, "value": table_to_json(value)}
    if isinstance(value, TypedArray):
        values = [value_to_json(TypedValue(value.type, each)) for each in value.values]
        return {"type": kind.name, "of": value.type.name, "values": values}
    if isinstance(value, uuid.UUID | Decimal):
        return {"type": kind.name, "value": str(value)}
    if isinstance(value, bool | int | str):
        return {"type": kind.name, "value": value}
    raise NoJsonFormError


# ---- reading ----


def table_from_json(value: Any, depth: int = 0) -> TypedMap:
    """A table. Raises InterchangeError."""
    if not isinstance(value, dict):
        raise InterchangeError("a table of names and values is not a JSON object")
    _check_depth(depth)
    return TypedMap(tuple((unescape_name(name), value_from_json(each, depth + 1)) for name, each in value.items()))


def value_from_json(value: Any, depth: int = 0) -> TypedValue:
    """A typed value. Raises InterchangeError."""
    _check_depth(depth)
    if isinstance(value, list):
        return TypedValue(LIST, tuple(value_from_json(each, depth + 1) for each in value))
    if not isinstance(value, dict):
        return typed_value(value)
    kind = type_named(value.get("type"))
    try:
        return TypedValue(kind, _value(kind, value, depth))
    except (KeyError, TypeError, ValueError, InvalidOperation, binascii.Error):
        raise InterchangeError(f"a value of type {kind.name} is not valid") from None


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise InterchangeError(f"values are nested more than {MAX_DEPTH} deep")


def type_named(name: Any) -> ValueType:
    """The type of AMQP 0-10 with that name. Raises InterchangeError."""
    found = BY_NAME.get(name) if isinstance(name, str) else None
    if found is None:
        shown = printable(str(name), 40)
        raise InterchangeError(f'{shown!r} is not a type: a value that is an object has a "type" of AMQP 0-10')
    return found.value_type


def _value(kind: ValueType, fields: dict[str, Any], depth: int) -> Any:
    family = kind.family
    if "base64" in fields:
        return base64.b64decode(fields["base64"], validate=True)
    if family is Family.ARRAY:
        of = type_named(fields["of"])
        return TypedArray(of, tuple(_element(of, each, depth + 1) for each in fields["values"]))
    value = fields["value"]
    if family is Family.MAP:
        return table_from_json(value, depth + 1)
    if family is Family.UUID:
        return uuid.UUID(value)
    if family is Family.DECIMAL:
        return Decimal(value)
    if family is Family.FLOAT:
        return float(value)
    if type(value) is not _EXPECTED.get(family):
        raise TypeError
    return value


def _element(of: ValueType, value: Any, depth: int) -> Any:
    """An element of an array, which is written like a value of its type."""
    read = value_from_json(value, depth)
    if read.type is not of:
        raise TypeError
    return read.value
