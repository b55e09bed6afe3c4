"""Values of every type that a field of AMQP 0-9-1 has, for hypothesis."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from qstore.formats.amqp_0_9_1.codes import Amqp091Error
from qstore.formats.amqp_0_9_1.properties import PROPERTIES, Properties
from qstore.formats.amqp_0_9_1.tables import Field, check_table, read_table
from qstore.formats.values import TYPES, TypedMap, TypedValue


def decode_table(buffer: bytes) -> TypedMap:
    """A buffer that is exactly one field table, its size first, read and checked. Raises Amqp091Error."""
    try:
        end: int | Amqp091Error = check_table(buffer, 0, len(buffer))
    except Amqp091Error as error:
        end = error
    try:
        table, stop = read_table(buffer, 0, len(buffer))
    except Amqp091Error:
        assert isinstance(end, Amqp091Error), "a table that cannot be read passes the check"
        raise
    assert end == stop, "a table that can be read does not pass the check"
    if stop != len(buffer):
        raise Amqp091Error("bytes follow the table", stop)
    return table


TEXT = st.text(max_size=20) | st.binary(max_size=20).map(lambda raw: raw.decode("utf-8", "surrogateescape"))


def _uint(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, 2**bits - 1)


def _int(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _typed(name: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[TypedValue]:
    return values.map(lambda value: TypedValue(TYPES[name], value))


_DECIMALS = st.builds(
    lambda unscaled, scale: Decimal((unscaled < 0, tuple(map(int, str(abs(unscaled)))), -scale)),
    _int(32), st.integers(0, 255),
)  # fmt: skip

#: Values that are read as what was written.
PLAIN_VALUES = st.one_of(
    _typed("void", st.none()), _typed("boolean", st.booleans()),
    *(_typed(f"int{bits}", _int(bits)) for bits in (8, 16, 32, 64)),
    *(_typed(f"uint{bits}", _uint(bits)) for bits in (8, 16, 32)),
    _typed("float", st.floats(width=32, allow_nan=False)), _typed("double", st.floats(allow_nan=False)),
    _typed("dec32", _DECIMALS), _typed("datetime", _uint(64)), _typed("str16", st.text(max_size=20)),
    _typed("vbin32", st.binary(max_size=20)),
)  # fmt: skip


def _tables(values: st.SearchStrategy[TypedValue]) -> st.SearchStrategy[TypedMap]:
    return st.lists(st.tuples(TEXT, values), max_size=4).map(lambda entries: TypedMap(tuple(entries)))


VALUES = st.recursive(
    PLAIN_VALUES,
    lambda inner: _typed("map", _tables(inner)) | _typed("list", st.lists(inner, max_size=4).map(tuple)),
    max_leaves=8,
)
TABLES = _tables(VALUES)

BY_TYPE: dict[str, st.SearchStrategy[Any]] = {
    "bit": st.booleans(),
    "octet": _uint(8),
    "short": _uint(16),
    "long": _uint(32),
    "longlong": _uint(64),
    "timestamp": _uint(64),
    "shortstr": TEXT,
    "longstr": st.binary(max_size=20),
    "table": TABLES,
}


def fields_of(fields: tuple[Field, ...]) -> st.SearchStrategy[dict[str, Any]]:
    """A value for every field."""
    return st.fixed_dictionaries({name: BY_TYPE[type_name] for name, type_name in fields})


PROPERTY_SETS = st.fixed_dictionaries(
    {name: st.none() | BY_TYPE[type_name] for name, type_name in PROPERTIES}
).map(lambda values: Properties(**values))  # fmt: skip
