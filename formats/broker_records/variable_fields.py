"""Fields in which headers of the same layout differ.

The messages of a publisher have headers of equal sizes that differ in a few fields: a message id, a timestamp, a
number. A reader of many decodes one of them, and of the others only these fields. That is exact: if two headers
have the same bytes apart from `variable_fields` of one of them, they have the same fields, of the same types and sizes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, Final

from qstore.formats.amqp_0_10.maps import plain_payload
from qstore.formats.amqp_0_10.structs import PackedStruct, flag_of
from qstore.formats.amqp_0_10.types import BY_NAME, WireType, find_payload, type_of
from qstore.formats.broker_records.messages import header_structs, struct_of
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.plain import plain_uuid

_HEAD: Final = struct.Struct(">II")
_INTEGERS: Final = frozenset("bBhHiIqQ")
_HEADERS: Final = "application_headers"


class VariableField(NamedTuple):
    """A field, without the size in front of it.

    Attributes:
        name: of the field in a `MessageHeader`.
        key: of an application header, its name; else None.
        begin, end: where it is in the header.
        form: its format in a big-endian `struct`.
        decode: converts what `struct` reads to the value in a `MessageHeader`; None if it is that.
    """

    name: str
    key: str | None
    begin: int
    end: int
    form: str
    decode: Callable[[bytes], Any] | None


def variable_fields(header: bytes) -> tuple[VariableField, ...]:
    """The variable fields of the header of a 0-10 message, in the order of their bytes.

    Args:
        header: one that `decode_message_header` accepts.
    """
    structs = header_structs(header)
    found: list[VariableField] = []
    codes = set()
    offset = len(header) - len(structs)
    while offset < len(header):
        size, code_and_flags = _HEAD.unpack_from(header, offset)
        packed = struct_of(code_and_flags >> 16)
        if code_and_flags >> 16 in codes:
            return ()  # the fields of the second replace those of the first
        codes.add(code_and_flags >> 16)
        if packed is not None:
            found += _of_struct(packed, code_and_flags & 0xFFFF, header, offset + _HEAD.size)
        offset += 4 + size
    return tuple(found)


def _of_struct(packed: PackedStruct, flags: int, header: bytes, offset: int) -> Iterator[VariableField]:
    for index, (name, type_name) in enumerate(packed.fields):
        if not flags & flag_of(index) or type_name == "bit":
            continue
        if type_name == "reply-to":
            offset += 2 + int.from_bytes(header[offset : offset + 2], "big")
            continue
        start, stop = find_payload(BY_NAME[type_name], header, offset, len(header))
        if name == _HEADERS:
            yield from _of_map(header, start, stop)
        elif stop > start:
            yield _field(name, None, BY_NAME[type_name], (start, stop), _DECODERS.get(type_name))
        offset = stop


def _of_map(header: bytes, start: int, end: int) -> list[VariableField]:
    found: list[VariableField] = []
    names = []
    offset = start + 4
    while offset < end:
        stop = offset + 1 + header[offset]
        names.append(header[offset + 1 : stop].decode("utf-8", "surrogateescape"))
        wire_type = type_of(header[stop])
        begin, offset = find_payload(wire_type, header, stop + 1, end)
        if wire_type.codec is not None and offset > begin:
            found.append(_field("headers", names[-1], wire_type, (begin, offset), plain_payload(wire_type)))
    return found if len(set(names)) == len(names) else []  # of repeated names the last one counts


def _field(
    name: str, key: str | None, wire_type: WireType, place: tuple[int, int], decode: Callable[[bytes], Any] | None
) -> VariableField:
    begin, end = place
    form = "" if wire_type.codec is None else wire_type.codec.struct_format
    if form in _INTEGERS:
        return VariableField(name, key, begin, end, form, None)
    return VariableField(name, key, begin, end, f"{end - begin}s", decode)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


#: Type of a struct's field -> how its bytes are converted; others are numbers, or stay bytes.
_DECODERS: Final[dict[str, Callable[[bytes], Any]]] = {"uuid": plain_uuid, "str8": _text, "str16": _text}
