"""Whole field tables as plain values, as the tests compare them: by the fast reader, and by way of typed values."""

from __future__ import annotations

import struct

from qstore.formats.amqp_0_10.maps import read_typed_plain_map
from qstore.formats.amqp_0_10.types import Amqp010Error
from qstore.formats.plain import Plain
from qstore.formats.values import TypedMap


def decode_plain_map(buffer: bytes) -> tuple[dict[str, Plain], dict[str, str]]:
    """The field table that `buffer` holds, as plain values and as type names, each by name.

    Raises:
        Amqp010Error: the bytes are not one whole field table.
    """
    try:
        values, types, end = read_typed_plain_map(buffer, 0, 1)
    except (IndexError, struct.error):
        raise Amqp010Error("a map ends within a value", len(buffer)) from None
    if end != len(buffer):
        raise Amqp010Error("the map's size is not that of the bytes", min(end, len(buffer)))
    return values, types


def map_types(table: TypedMap) -> dict[str, str]:
    """The names of a field table, each with the name of its value's type."""
    return {name: typed.type.name for name, typed in table.entries}
