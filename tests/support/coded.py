"""Typed values by the codes that they have in AMQP 0-10."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from qstore.formats.amqp_0_10.types import BY_CODE
from qstore.formats.values import Family, TypedArray, TypedValue, ValueType


def coded_type(code: int) -> ValueType:
    """The type of a code; for one that AMQP 0-10 does not have, an unknown type."""
    wire_type = BY_CODE[code] if code < len(BY_CODE) else None
    return ValueType(f"0x{code:02x}", Family.OPAQUE) if wire_type is None else wire_type.value_type


def coded(code: int, value: Any) -> TypedValue:
    """A value that travels under that code."""
    return TypedValue(coded_type(code), value)


def coded_array(code: int, values: tuple[Any, ...]) -> TypedArray:
    """An array of such values."""
    return TypedArray(coded_type(code), values)


NESTED = st.recursive(
    st.sampled_from([1, True, None, "text", b"bytes"]),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=5),
    max_leaves=20,
)
"""Plain values, and lists and maps of such."""


def amount_of(value: Any) -> int:
    """How many values a plain map or list has, on all levels."""
    if isinstance(value, dict):
        return len(value) + sum(map(amount_of, value.values()))
    return len(value) + sum(map(amount_of, value)) if isinstance(value, list) else 0
