"""The sections of a message: where each of them lies, without decoding more than their sizes.

    header | delivery-annotations | message-annotations | properties | application-properties | body ... | footer

Each of them is optional, but they are in this order. The body is any number of data sections, any number of
amqp-sequence sections, or one amqp-value. Those from the properties on are the sender's, and never change (the bare
message).

Source: the AMQP 1.0 specification as XML, part "messaging", section 3.2.
"""

from __future__ import annotations

from typing import Final

from qstore.formats.amqp_1_0.values import (
    CONSTRUCTORS,
    MAX_DEPTH,
    Amqp10Error,
    Constructor,
    Value,
    encode_value,
    find_payload,
    read_value,
)
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import MAX_VALUES

HEADER: Final = 0x70
DELIVERY_ANNOTATIONS: Final = 0x71
MESSAGE_ANNOTATIONS: Final = 0x72
PROPERTIES: Final = 0x73
APPLICATION_PROPERTIES: Final = 0x74
DATA: Final = 0x75
SEQUENCE: Final = 0x76
VALUE: Final = 0x77
FOOTER: Final = 0x78

#: Descriptor -> name and type of a section, which with the prefix "amqp:" form the symbolic descriptor.
SECTIONS: Final = {
    HEADER: ("header", "list"),
    DELIVERY_ANNOTATIONS: ("delivery-annotations", "map"),
    MESSAGE_ANNOTATIONS: ("message-annotations", "map"),
    PROPERTIES: ("properties", "list"),
    APPLICATION_PROPERTIES: ("application-properties", "map"),
    DATA: ("data", "binary"),
    SEQUENCE: ("amqp-sequence", "list"),
    VALUE: ("amqp-value", "*"),
    FOOTER: ("footer", "map"),
}
CODE_OF_SYMBOL: Final = {f"amqp:{name}:{source}": code for code, (name, source) in SECTIONS.items()}

_SMALL_ULONG: Final = 0x53

DESCRIPTOR_BYTES: Final = 3
BODY_DESCRIPTORS: Final = frozenset(bytes((0, _SMALL_ULONG, code)) for code in (DATA, SEQUENCE, VALUE))
"""How the sections of a body usually begin."""

_DESCRIPTORS: Final = frozenset((0x44, _SMALL_ULONG, 0x80, 0xA3, 0xB3))  # constructors of ulong and symbol
_COMPOUND: Final = {0xC0: 1, 0xD0: 4, 0xC1: 1, 0xD1: 4}  # list and map -> width of size and count
_ARRAYS: Final = {0xE0: 1, 0xF0: 4}
_HOLDERS: Final = frozenset((*_COMPOUND, *_ARRAYS, 0x00))


class Sections(NamedTuple):
    """Where the sections before the body begin and end; both are 0 for one that is absent.

    Attributes:
        header, delivery, annotations, properties, application: header, annotations and so on.
        body_at: where the body begins, or the footer.
    """

    header: tuple[int, int]
    delivery: tuple[int, int]
    annotations: tuple[int, int]
    properties: tuple[int, int]
    application: tuple[int, int]
    body_at: int


_ABSENT: Final = (0, 0)
NO_SECTIONS: Final = Sections(_ABSENT, _ABSENT, _ABSENT, _ABSENT, _ABSENT, 0)


def begin_section(data: bytes, at: int, end: int) -> tuple[int, Constructor, int]:
    """The section at a position: its code, 0 if it is not known, and the constructor of its value, and where that ends.

    The value of an amqp-value may have descriptors of its own.

    Raises:
        Amqp10Error: there is no section.
    """
    if at + 3 < end and data[at] == 0 and data[at + 1] == _SMALL_ULONG:
        code, value_at = data[at + 2], at + 3
    else:
        (kind, descriptor), value_at = _read_descriptor(data, at, end)
        code = CODE_OF_SYMBOL.get(descriptor, 0) if kind == "symbol" else descriptor
    depth = 1
    while code == VALUE and depth < MAX_DEPTH and value_at < end and data[value_at] == 0:
        value_at, depth = _read_descriptor(data, value_at, end)[1], depth + 1
    if value_at >= end:
        raise Amqp10Error("a constructor is missing", value_at)
    constructor = CONSTRUCTORS.get(data[value_at])
    if constructor is None:
        raise Amqp10Error(f"0x{data[value_at]:02x} is not a constructor", value_at)
    value_at += 1
    source = SECTIONS[code][1] if code in SECTIONS else "*"
    if source not in ("*", constructor.type_name):
        raise Amqp10Error(f"section {SECTIONS[code][0]} is of type {constructor.type_name}, not {source}", at)
    return code, constructor, value_at


def _read_descriptor(data: bytes, at: int, end: int) -> tuple[Value, int]:
    """The descriptor at a position, a number or a symbol, and where it ends. Raises Amqp10Error."""
    if at + 1 >= end or data[at] != 0 or data[at + 1] not in _DESCRIPTORS:
        raise Amqp10Error("no descriptor that is a number or a symbol", at)
    return read_value(data, at + 1, end, 1)


def split_sections(data: bytes, begin: int = 0, *, is_whole: bool = True, is_ordered: bool = True) -> Sections:
    """Find the sections of a message.

    Args:
        data: the message, from `begin` on.
        begin: where it begins.
        is_whole: whether it is there to its end; if not, only the sections before the body are checked.
        is_ordered: whether the sections must be known ones, in their order, and at most `MAX_VALUES`; if not, unknown
            ones count as body.

    Raises:
        Amqp10Error: it does not consist of sections in their order.
    """
    found = [_ABSENT] * 5
    at, end, last, body_at, count = begin, len(data), 0, -1, 0
    while at < end:
        count += 1
        code, constructor, value_at = begin_section(data, at, end)
        if is_ordered:
            if count > MAX_VALUES:
                raise Amqp10Error(f"more than {MAX_VALUES:,} sections", at)
            _check_order(code, last, at)
        is_body = code >= DATA or code not in SECTIONS or body_at >= 0
        stop = at if is_body and not is_whole else find_payload(constructor, data, value_at, end)[1]
        if is_body:
            if body_at < 0:
                body_at = at
                if not is_whole:
                    break
        else:
            found[code - HEADER] = (at, stop)
        last, at = code, stop
    header, delivery, annotations, properties, application = found
    return Sections(header, delivery, annotations, properties, application, body_at if body_at >= 0 else at)


def _check_order(code: int, last: int, at: int) -> None:
    """Raise Amqp10Error for an unknown section, or one that cannot follow the last one."""
    if code not in SECTIONS:
        raise Amqp10Error("a section has an unknown descriptor", at)
    is_repeated = code == last and code not in (DATA, SEQUENCE)
    is_mixed = last in (DATA, SEQUENCE) and code in (SEQUENCE, VALUE) and code != last
    if code < last or is_repeated or is_mixed:
        raise Amqp10Error(f"section {SECTIONS[code][0]} after {SECTIONS[last][0]}", at)


def section_value_at(data: bytes, at: int, end: int) -> int:
    """Where the value of a section begins, after its descriptor. Raises Amqp10Error."""
    if data[at + 1] == _SMALL_ULONG:
        return at + 3
    return _read_descriptor(data, at, end)[1]


def section_value(data: bytes, bounds: tuple[int, int]) -> Value:
    """The value of a section, without its descriptor. Raises Amqp10Error."""
    at, end = bounds
    return read_value(data, section_value_at(data, at, end), end)[0]


def encode_section(code: int, value: Value) -> bytes:
    """A section. Raises Amqp10Error."""
    return bytes((0, _SMALL_ULONG, code)) + encode_value(value)


_SHORT_BINARY, _SHORT_STRING = 0xA0, 0xA1


def data_section(size: int) -> bytes:
    """The bytes before the content of a data section."""
    head = bytes((0, _SMALL_ULONG, DATA))
    return head + bytes((_SHORT_BINARY, size)) if size <= 0xFF else head + b"\xb0" + size.to_bytes(4, "big")


def section_head_size(data: bytes, at: int) -> int:
    """How many bytes are before the bytes or text of the section that begins at a position: 5 or 8."""
    return len(data_section(0)) if data[at + 3] in (_SHORT_BINARY, _SHORT_STRING) else len(data_section(1 << 16))


def has_too_many_values(data: bytes, at: int, end: int) -> bool:
    """Whether values at a position, those inside of others included, are more than a peer may send at once.

    Values that are not valid count as none: they are refused when they are decoded.
    """
    if end - at <= MAX_VALUES:
        return False
    left = MAX_VALUES
    while at < end:
        left -= 1
        if left < 0:
            return True
        code = data[at]
        at += 1
        if code == 0:
            continue
        width = _COMPOUND.get(code)
        if width is not None:
            at += 2 * width
            continue
        width = _ARRAYS.get(code)
        if width is not None:
            size = int.from_bytes(data[at : at + width], "big")
            element_at = at + 2 * width
            holds_others = element_at >= end or data[element_at] in _HOLDERS
            left -= size if holds_others else int.from_bytes(data[at + width : at + 2 * width], "big")
            if left < 0:
                return True
            at += width + size
            continue
        constructor = CONSTRUCTORS.get(code)
        if constructor is None:
            return False
        if constructor.fixed is not None:
            at += constructor.fixed
        else:
            at += constructor.prefix + int.from_bytes(data[at : at + constructor.prefix], "big")
    return False
