"""Field tables of AMQP 0-10 as plain JSON values (`formats.plain`), decoded directly from the bytes for speed.

One reader per type code: (buffer, offset, depth) -> (plain value, its end). They do not check bounds: reading a size
past the end raises IndexError or struct.error, and a truncated slice returns an end past the container's, which the
container detects, because ends never decrease.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Final, TypeAlias

from qstore.formats.amqp_0_10.errors import Amqp010Error
from qstore.formats.amqp_0_10.maps import MAX_DEPTH, MAX_EMPTY_VALUES
from qstore.formats.amqp_0_10.types import BY_CODE, WireType, type_of
from qstore.formats.plain import Plain, plain_float, plain_uuid, plain_value

PlainReader: TypeAlias = Callable[[bytes, int, int], tuple[Plain, int]]

_two_u32: Final = struct.Struct(">II").unpack_from
_one_u32: Final = struct.Struct(">I").unpack_from
_one_u16: Final = struct.Struct(">H").unpack_from


def _plain_payload(wire_type: WireType) -> Callable[[bytes], Plain]:
    """Converts the bytes of a value that contains no others to its plain form."""
    assert wire_type.codec is not None
    decode, _, _, encoding = wire_type.codec
    if wire_type.name == "uuid":
        return plain_uuid
    if wire_type.name == "struct32":
        return bytes.hex
    if not encoding:
        return lambda raw: plain_value(decode(raw))

    def plain_text(raw: bytes) -> Plain:
        try:
            return raw.decode(encoding)
        except UnicodeDecodeError:
            return raw.hex()

    return plain_text


def _number_reader(struct_format: str, width: int) -> PlainReader:
    unpack_from = struct.Struct(">" + struct_format).unpack_from

    def read_number(buffer: bytes, offset: int, _depth: int) -> tuple[Plain, int]:
        return unpack_from(buffer, offset)[0], offset + width

    def read_float(buffer: bytes, offset: int, _depth: int) -> tuple[Plain, int]:
        return plain_float(unpack_from(buffer, offset)[0]), offset + width

    return read_float if struct_format in "fd" else read_number


def _fixed_reader(wire_type: WireType, width: int) -> PlainReader:
    payload = _plain_payload(wire_type)

    def read_fixed(buffer: bytes, offset: int, _depth: int) -> tuple[Plain, int]:
        end = offset + width
        if end > len(buffer):
            raise Amqp010Error(f"{wire_type.name} extends beyond the end", offset)
        return payload(buffer[offset:end]), end

    return read_fixed


def _text_reader(wire_type: WireType) -> PlainReader:
    """UTF-8 text, the most frequent type."""

    def read_text8(buffer: bytes, offset: int, _depth: int) -> tuple[Plain, int]:
        end = offset + 1 + buffer[offset]
        raw = buffer[offset + 1 : end]
        try:
            return raw.decode(), end
        except UnicodeDecodeError:
            return raw.hex(), end

    def read_text16(buffer: bytes, offset: int, _depth: int) -> tuple[Plain, int]:
        end = offset + 2 + (buffer[offset] << 8 | buffer[offset + 1])
        raw = buffer[offset + 2 : end]
        try:
            return raw.decode(), end
        except UnicodeDecodeError:
            return raw.hex(), end

    return {1: read_text8, 2: read_text16}[wire_type.prefix]


def _sized_reader(wire_type: WireType) -> PlainReader:
    payload = _plain_payload(wire_type)

    def read_sized8(buffer: bytes, offset: int, _depth: int) -> tuple[Plain, int]:
        end = offset + 1 + buffer[offset]
        return payload(buffer[offset + 1 : end]), end

    def read_sized16(buffer: bytes, offset: int, _depth: int) -> tuple[Plain, int]:
        end = offset + 2 + _one_u16(buffer, offset)[0]
        return payload(buffer[offset + 2 : end]), end

    def read_sized32(buffer: bytes, offset: int, _depth: int) -> tuple[Plain, int]:
        end = offset + 4 + _one_u32(buffer, offset)[0]
        return payload(buffer[offset + 4 : end]), end

    return {1: read_sized8, 2: read_sized16, 4: read_sized32}[wire_type.prefix]


@lru_cache(maxsize=4096)
def _decode_name(raw: bytes) -> str:
    """A header's name: at most 255 bytes, and usually one in the cache."""
    return raw.decode("utf-8", "surrogateescape")


def read_typed_plain_map(buffer: bytes, offset: int, depth: int) -> tuple[dict[str, Plain], dict[str, str], int]:
    """Decode the field table at `offset` to plain values, type names and its end; used by the hot path.

    Raises:
        Amqp010Error: the bytes are not a field table.
        IndexError, struct.error: `buffer` ends within it; the caller converts these.
    """
    values: dict[str, Plain] = {}
    types: dict[str, str] = {}
    if len(buffer) < offset + 8 and _one_u32(buffer, offset)[0] == 0:
        return values, types, offset + 4
    size, count = _two_u32(buffer, offset)
    end = offset + 4 + size
    if size == 0:
        return values, types, end
    start = offset
    offset += 8
    for _ in range(count):
        stop = offset + 1 + buffer[offset]
        name = _decode_name(buffer[offset + 1 : stop])
        types[name], read = _READERS[buffer[stop]]
        values[name], offset = read(buffer, stop + 1, depth)
    if offset != end:
        raise Amqp010Error(f"a map of {count} values does not end where its size says", start)
    return values, types, end


def _read_map(buffer: bytes, offset: int, depth: int) -> tuple[Plain, int]:
    _check_depth(offset, depth)
    values, _, end = read_typed_plain_map(buffer, offset, depth + 1)
    return values, end


def _read_list(buffer: bytes, offset: int, depth: int) -> tuple[Plain, int]:
    _check_depth(offset, depth)
    start = offset
    end: int = offset + 4 + _one_u32(buffer, offset)[0]
    if end == offset + 4:
        return [], end
    count = _one_u32(buffer, offset + 4)[0]
    offset += 8
    values: list[Plain] = []
    for _ in range(count):
        value, offset = _READERS[buffer[offset]][1](buffer, offset + 1, depth + 1)
        values.append(value)
    if offset != end:
        raise Amqp010Error(f"a list of {count} values does not end where its size says", start)
    return values, end


def _read_array(buffer: bytes, offset: int, depth: int) -> tuple[Plain, int]:
    _check_depth(offset, depth)
    start = offset
    end: int = offset + 4 + _one_u32(buffer, offset)[0]
    if end == offset + 4:
        return [], end
    code = buffer[offset + 4]
    count = _one_u32(buffer, offset + 5)[0]
    if type_of(code, offset + 4).fixed == 0 and count > MAX_EMPTY_VALUES:
        raise Amqp010Error(f"an array claims {count} values that take no bytes", offset)
    read = _READERS[code][1]
    offset += 9
    values: list[Plain] = []
    for _ in range(count):
        value, offset = read(buffer, offset, depth + 1)
        values.append(value)
    if offset != end:
        raise Amqp010Error(f"an array of {count} values does not end where its size says", start)
    return values, end


def _check_depth(offset: int, depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise Amqp010Error(f"containers are nested more than {MAX_DEPTH} deep", offset)


def _read_widthless(buffer: bytes, offset: int, _depth: int) -> tuple[Plain, int]:
    raise Amqp010Error(f"type code 0x{buffer[offset - 1]:02x} has no defined width", offset - 1)


def _reader_of(wire_type: WireType | None) -> tuple[str, PlainReader]:
    if wire_type is None:
        return "", _read_widthless
    if wire_type.codec is None:
        return wire_type.name, {"map": _read_map, "list": _read_list, "array": _read_array}[wire_type.name]
    if wire_type.fixed is None and wire_type.codec.encoding == "utf-8":
        return wire_type.name, _text_reader(wire_type)
    if wire_type.fixed is None:
        return wire_type.name, _sized_reader(wire_type)
    if wire_type.codec.struct_format:
        return wire_type.name, _number_reader(wire_type.codec.struct_format, wire_type.fixed)
    return wire_type.name, _fixed_reader(wire_type, wire_type.fixed)


_READERS: Final[tuple[tuple[str, PlainReader], ...]] = tuple(map(_reader_of, BY_CODE))
