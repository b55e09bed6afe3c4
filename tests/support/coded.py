"""Typed values by the codes that they have in AMQP 0-10."""

from __future__ import annotations

from typing import Any

from qstore.formats.amqp_0_10.types import BY_CODE
from qstore.formats.values import Family, TypedArray, TypedValue, ValueType


def coded_type(code: int) -> ValueType:
    """The type of a code; for one that is no code of AMQP 0-10, a type that it does not know."""
    wire_type = BY_CODE[code] if code < len(BY_CODE) else None
    return ValueType(f"0x{code:02x}", Family.OPAQUE) if wire_type is None else wire_type.value_type


def coded(code: int, value: Any) -> TypedValue:
    """A value that travels under that code."""
    return TypedValue(coded_type(code), value)


def coded_array(code: int, values: tuple[Any, ...]) -> TypedArray:
    """An array of such values."""
    return TypedArray(coded_type(code), values)
