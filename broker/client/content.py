"""Encoding and decoding of a message's content.

    Python        content type     bytes
    None          -                none
    str           text/plain       UTF-8
    bytes         -                unchanged
    dict          amqp/map         a map of formats.amqp_0_10
    list, tuple   amqp/list        a list of formats.amqp_0_10

Properties (application headers) are a map. Maps are decoded to Python values, without their wire types. An int is
encoded as int64, text as str16, a float as double; a `TypedValue` as its own type.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from qstore.broker.client.errors import ContentError
from qstore.formats.amqp_0_10.maps import encode_value, python_list, python_map
from qstore.formats.amqp_0_10.types import BY_NAME, Amqp010Error, add_prefix, encode_name, wire_type_of
from qstore.formats.errors import FormatError
from qstore.formats.values import UINT32, typed_value

TEXT: Final = "text/plain"
MAP: Final = "amqp/map"
LIST: Final = "amqp/list"

_LIST: Final = BY_NAME["list"]
_NAME: Final = BY_NAME["str8"]
_pack_size_and_count: Final = struct.Struct(">II").pack
_pack_int64: Final = struct.Struct(">Bq").pack
_pack_uint32: Final = struct.Struct(">BI").pack
_pack_text_size: Final = struct.Struct(">BH").pack


def encode_content(content: Any) -> tuple[str | None, bytes]:
    """The content type and the bytes of a message's content.

    Raises:
        ContentError: it cannot be encoded.
    """
    match content:
        case bytes():
            return None, content
        case str():
            return TEXT, content.encode("utf-8", "surrogateescape")
        case None:
            return None, b""
        case bytearray() | memoryview():
            return None, bytes(content)
        case Mapping():
            return MAP, encode_map_of(content)
        case list() | tuple():
            try:
                return LIST, encode_value(_LIST, tuple(typed_value(item) for item in content))
            except FormatError as error:
                raise ContentError(f"the list cannot be encoded: {error.what}") from None
    raise ContentError(f"content cannot be a {type(content).__name__}: use str, bytes, dict, list or None")


def decode_content(content_type: str | None, body: bytes) -> Any:
    """Decode a body by its content type. Invalid UTF-8 is returned as bytes.

    Raises:
        ContentError: the body is not of its content type.
    """
    if content_type == MAP:
        return decode_properties(body) if body else {}
    try:
        if content_type == LIST:
            return python_list(body) if body else []
        return body.decode() if content_type is not None and content_type.startswith(TEXT) else body
    except UnicodeDecodeError:
        return body
    except Amqp010Error as error:
        raise ContentError(f"the content is not valid {content_type}: {error.what}") from None


def decode_properties(raw: bytes) -> dict[str, Any]:
    """The Python values of an encoded map, which begins with its size.

    Raises:
        ContentError: it is not a valid map.
    """
    try:
        return python_map(raw)
    except Amqp010Error as error:
        raise ContentError(f"invalid map: {error.what}") from None


# --------------------------------------------------------------------------------------- encoding of maps


def encode_map_of(values: Mapping[str, Any]) -> bytes:
    """Encode a map of Python values; the result begins with its size.

    Raises:
        ContentError: a name or value cannot be encoded.
    """
    parts = [b""]
    try:
        for name, value in values.items():
            parts.append(_encode_name(name))
            kind = type(value)
            if kind is int and -(1 << 63) <= value < 1 << 63:
                parts.append(_pack_int64(0x31, value))
            elif kind is str:
                raw = encode_name(value)
                parts.append(_pack_text_size(0x95, len(raw)) + raw if len(raw) <= 0xFFFF else _long_text(raw))
            else:
                parts.append(_encode_typed(value))
    except FormatError as error:
        raise ContentError(f"{name!r} cannot be encoded: {error.what}") from None
    except (AttributeError, TypeError):
        raise ContentError(f"{name!r} is not a valid name: it must be text of at most 255 bytes") from None
    size = sum(map(len, parts)) + 4
    parts[0] = _pack_size_and_count(size, len(values))
    return b"".join(parts)


@lru_cache(maxsize=1024)
def _encode_name(name: str) -> bytes:
    return add_prefix(_NAME, encode_name(name))


def _long_text(raw: bytes) -> bytes:
    """Text that is too long for str16 is encoded as vbin32."""
    return b"\xa0" + len(raw).to_bytes(4, "big") + raw


def _encode_typed(value: Any) -> bytes:
    value_type, plain = typed_value(value)
    if value_type is UINT32:
        try:
            return _pack_uint32(0x22, plain)
        except struct.error:
            raise Amqp010Error(f"{plain} does not fit in uint32") from None
    wire_type = wire_type_of(value_type)
    assert wire_type.code is not None
    return bytes([wire_type.code]) + encode_value(wire_type, plain)
