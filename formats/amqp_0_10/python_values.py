"""Maps and lists of AMQP 0-10 as Python values, without their types: for readers of many values.

It reads the same bytes as `maps`, refuses the same ones, and is several times as fast, because nothing is made for a
value but the value itself. A map is a dict (of repeated names the last value counts), a list and an array are lists,
text is `str`, or `bytes` if it is not text of its encoding.
"""

from __future__ import annotations

import struct
import uuid
from typing import Any, Final

from qstore.formats.amqp_0_10.errors import Amqp010Error
from qstore.formats.amqp_0_10.maps import MAX_DEPTH, read_value
from qstore.formats.amqp_0_10.types import type_of
from qstore.formats.values import LIST, TypedArray, TypedMap, TypedValue

_unpack_uint32: Final = struct.Struct(">I").unpack_from
_unpack_uint64: Final = struct.Struct(">Q").unpack_from
_unpack_int64: Final = struct.Struct(">q").unpack_from
_BOOLEAN, _UINT32, _INT64, _UINT64, _UUID, _STR8, _STR16, _MAP, _LIST, _VOID = (
    0x08, 0x22, 0x31, 0x32, 0x48, 0x85, 0x95, 0xA8, 0xA9, 0xF0,
)  # fmt: skip


def python_map(buffer: bytes) -> dict[str, Any]:
    """A buffer that is exactly one map.

    Raises:
        Amqp010Error: it is not.
    """
    try:
        values, end = _read_map(buffer, 0, 0)
    except (IndexError, struct.error):
        raise Amqp010Error("the map ends within a value", len(buffer)) from None
    if end != len(buffer):
        raise Amqp010Error(f"{len(buffer) - end} bytes follow the map", end)
    return values


def python_list(buffer: bytes) -> list[Any]:
    """A buffer that is exactly one list.

    Raises:
        Amqp010Error: it is not.
    """
    try:
        values, end = _read_list(buffer, 0, 0)
    except (IndexError, struct.error):
        raise Amqp010Error("the list ends within a value", len(buffer)) from None
    if end != len(buffer):
        raise Amqp010Error(f"{len(buffer) - end} bytes follow the list", end)
    return values


def python_value(typed: TypedValue) -> Any:
    """The Python value of a typed one."""
    value = typed.value
    if isinstance(value, TypedMap):
        return {name: python_value(each) for name, each in value.entries}
    if isinstance(value, TypedArray):
        return [python_value(TypedValue(value.type, each)) for each in value.values]
    if typed.type is LIST:
        return [python_value(each) for each in value]
    return value


# Nothing may be read beyond a container's end: a value that is would end behind it, which its container notices.


def _read_map(buffer: bytes, at: int, depth: int) -> tuple[dict[str, Any], int]:
    """The map whose size is at `at`, and its end."""
    if depth >= MAX_DEPTH:
        raise Amqp010Error(f"containers are nested more than {MAX_DEPTH} deep", at)
    end = at + 4 + int(_unpack_uint32(buffer, at)[0])
    at += 4
    values: dict[str, Any] = {}
    if at == end:
        return values, end
    if end > len(buffer):
        raise Amqp010Error("a map ends before its size", at)
    count = int(_unpack_uint32(buffer, at)[0])
    at += 4
    for _ in range(count):
        start = at + 1
        at = start + buffer[at]
        name = buffer[start:at].decode("utf-8", "surrogateescape")
        values[name], at = _read_typed(buffer, at, end, depth)
    if at != end:
        raise Amqp010Error(f"a map of {count} values does not end at its size", at)
    return values, end


def _read_list(buffer: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    """The list whose size is at `at`, and its end."""
    if depth >= MAX_DEPTH:
        raise Amqp010Error(f"containers are nested more than {MAX_DEPTH} deep", at)
    end = at + 4 + int(_unpack_uint32(buffer, at)[0])
    at += 4
    values: list[Any] = []
    if at == end:
        return values, end
    if end > len(buffer):
        raise Amqp010Error("a list ends before its size", at)
    count = int(_unpack_uint32(buffer, at)[0])
    at += 4
    for _ in range(count):
        value, at = _read_typed(buffer, at, end, depth)
        values.append(value)
    if at != end:
        raise Amqp010Error(f"a list of {count} values does not end at its size", at)
    return values, end


def _read_typed(buffer: bytes, at: int, end: int, depth: int) -> tuple[Any, int]:
    """The value whose type code is at `at`, within a container that ends at `end`; and its own end."""
    if at >= end:
        raise Amqp010Error("a type code is missing", at)
    code = buffer[at]
    at += 1
    if code == _UINT64:
        return _unpack_uint64(buffer, at)[0], at + 8
    if code == _STR16:
        start = at + 2
        at = start + (buffer[at] << 8 | buffer[at + 1])
        return _text(buffer[start:at]), at
    if code == _UINT32:
        return _unpack_uint32(buffer, at)[0], at + 4
    if code == _INT64:
        return _unpack_int64(buffer, at)[0], at + 8
    if code == _BOOLEAN:
        return buffer[at] != 0, at + 1
    if code == _STR8:
        start = at + 1
        at = start + buffer[at]
        return _text(buffer[start:at]), at
    if code == _MAP:
        return _read_map(buffer, at, depth + 1)
    if code == _LIST:
        return _read_list(buffer, at, depth + 1)
    if code == _UUID:
        if at + 16 > end:
            raise Amqp010Error("a UUID ends beyond its container", at)
        return uuid.UUID(bytes=buffer[at : at + 16]), at + 16
    if code == _VOID:
        return None, at
    wire_type = type_of(code, at - 1)
    value, at = read_value(wire_type, buffer, at, end, depth + 1)
    return python_value(TypedValue(wire_type.value_type, value)), at


def _text(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw
