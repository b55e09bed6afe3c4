"""Values -> Arrow arrays, including any values that a hostile store may contain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import orjson
import pyarrow as pa

from qstore.tools.console.text import escape_name, escape_names
from qstore.tools.spark.columns import Column

ARROW_TYPES: Final[dict[str, Any]] = {
    "string": pa.string(),
    "long": pa.int64(),
    "int": pa.int32(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "strings": pa.list_(pa.string()),
    "map": pa.map_(pa.string(), pa.string()),
}
_NEGATIVE: Final = 1 << 63
_MODULUS: Final = 1 << 64


def arrow_schema(columns: Iterable[Column]) -> Any:
    """The Arrow schema of some columns."""
    return pa.schema([pa.field(column.name, ARROW_TYPES[column.type]) for column in columns])


def array(kind: str, values: Sequence[Any]) -> Any:
    """An array of one of the types of `columns.TYPES`; maps are dictionaries of JSON values."""
    if kind == "string":
        return pa.array(_names(values), pa.string())
    if kind == "map":
        return _maps(values)
    if kind == "long":
        return _long(values)
    return pa.array(values, ARROW_TYPES[kind])


def constant(kind: str, value: Any, count: int) -> Any:
    """An array that repeats one value."""
    if value is None:
        return pa.nulls(count, ARROW_TYPES[kind])
    return pa.repeat(array(kind, [value])[0], count)


def signed(number: int) -> int:
    """An unsigned 64-bit number as the signed one with the same bits."""
    return number if number < _NEGATIVE else number - _MODULUS


def _long(values: Sequence[int | None]) -> Any:
    try:
        return pa.array(values, pa.int64())
    except (OverflowError, pa.ArrowInvalid):
        return pa.array([None if value is None else signed(value % _MODULUS) for value in values], pa.int64())


def _names(values: Sequence[str | None]) -> Sequence[str | None]:
    for value in set(values):
        if value is not None and ("\\x" in value or not value.isascii()):
            return [None if each is None else escape_name(each) for each in values]
    return values


def _maps(values: Sequence[dict[str, Any] | None]) -> Any:
    """Maps: names escaped, values that are not text as JSON; null stays null."""
    offsets: list[int | None] = []
    keys: list[str] = []
    entries: list[Any] = []
    for value in values:
        offsets.append(None if value is None else len(keys))
        if value:
            keys.extend(value)
            entries.extend(value.values())
    offsets.append(len(keys))
    texts = [entry if type(entry) is str and entry.isascii() else _text(entry) for entry in entries]
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(_names(keys), pa.string()), pa.array(texts, pa.string())
    )


def _text(value: Any) -> str | None:
    if value is None or type(value) is str:
        return value if value is None else escape_name(value) if not value.isascii() else value
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return orjson.dumps(escape_names(value)).decode()
