"""QMF version 1, in binary form: the types of values, the ids of objects, and the messages.

The types have a name in schemas, a code and bytes in version 1, and an AMQP type that carries them in version 2:

    name                      code   bytes in version 1
    ------------------------  -----  --------------------------------------------------------------------
    uint8 to uint64           1-4    big-endian
    sstr, lstr                6, 7   u8 or u16 length | UTF-8
    absTime, deltaTime        8, 9   u64: nanoseconds, since 1970 or as a duration
    objId                     10     16 bytes (`ObjectId`)
    bool                      11     u8
    float, double             12, 13 IEEE 754
    uuid                      14     16 bytes
    map, list                 15, 21 as in AMQP 0-10
    int8 to int64             16-19  big-endian
    object                    20     u8 code | value; with the code 20 the key of a class, and values
    array                     22     u32 size | u32 count | u8 code | count x value; without a code if the count is 0

    schema              meaning
    ------------------  ------------------------------------------------------------------------------------------
    count8 to count64   uint8 to uint64
    hilo8 to hilo64     three: the value, NAMEHigh and NAMELow, each uint8 to uint64
    mma32, mma64        four: NAMESamples (uint64), NAMEMin, NAMEMax, NAMEAverage, each uint32 or uint64
    mmaTime             likewise, each deltaTime

Text that is too long is cut at the last whole character. A number out of range becomes the nearest in range.

The id of an object:

    bits  4   flags, 0
         12   sequence: number of starts of the agent's process (of durable objects 0)
         20   bank of the broker
         28   bank of the agent; 0 is the broker itself
         64   number of the object

A message:

    'AM2' | u8 opcode | u32 sequence | the fields of the opcode (`FIELDS`) | the rest

A reply has the sequence of its request; unsolicited messages have 0. The body of an AMQP message may contain several.

    opcode  message                 rest
    ------  ----------------------  ----------------------------------------------------------------------------
    B b     broker request, reply
    P p     packages
    Q q     classes of a package
    S s     schema of a class       s: the schema
    A a     attach an agent
    x       a console was added
    z       completion of a request
    h       heartbeat
    c i g   an object: its          the presence of its optional properties, and the values. c has its properties, i its
            values                  statistics, g both
    e       event                   its arguments, in the order of the schema
    G       query
    M m     method call, result     the arguments, in the order of the schema: M those with the direction I and IO, m
                                    those with O and IO, if the status is 0

AM1, the form of Qpid M3, has the magic AM1, no types beyond 19 and no events. Its objects have ids of 64 bits, a
package that is called "qpid", and these fields where they differ (`FIELDS_OF`):

    q       package | class | hash
    s       package | class | hash; the schema has four counts, the last one of events
    A       label | system | bank
    M       object | method
    m       its text is an sstr

    bits  1   0
         15   sequence, as above
         24   bank: 1 of objects that survive a restart, 5 to 9 of others; agents have theirs from 10 on
         24   number; of objects that survive a restart 6 bits of the class, and 18 of the number

The number of an object that needs more bits has the rest in the bank, so ids are unique for 80 million objects of
a life, and for 1.5 million that survive, in each class.

Sources: Qpid wiki, "QMF Protocol" (seed 004, lines 19107-19172, 19553-20121); Qpid management, design and protocol
(seed 001, lines 249-274, 371-901).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, Final, Self
from uuid import UUID

from qstore.formats.amqp_0_10.maps import check_amount, encode_value, read_value
from qstore.formats.amqp_0_10.types import BY_NAME, Amqp010Error
from qstore.formats.errors import FormatError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import BOOLEAN, DOUBLE, LIST, MAP, STR16, TYPES, UINT64, TypedMap, TypedValue, ValueType
from qstore.formats.values import UUID as UUID_TYPE
from qstore.formats.wording import with_article

_PAIR: Final = struct.Struct(">QQ")
_STORED_BITS: Final = 48
"""The number of an object that survives a restart has these bits, and its class above them (`management/publisher`)."""
_BANKS: Final = 5
"""How many banks AM1 has for objects of the broker that need one."""


class ObjectId(NamedTuple):
    """The id of an object; see the module's table."""

    flags: int
    sequence: int
    broker_bank: int
    agent_bank: int
    number: int

    def encoded(self) -> bytes:
        """Its bytes."""
        first = (self.flags & 0xF) << 60 | (self.sequence & 0xFFF) << 48
        first |= (self.broker_bank & 0xFFFFF) << 28 | self.agent_bank & 0xFFFFFFF
        return _PAIR.pack(first, self.number & 0xFFFFFFFFFFFFFFFF)

    def encoded_64(self) -> bytes:
        """Its 8 bytes in AM1."""
        if self.agent_bank:
            bank, number = self.agent_bank, self.number
        elif self.sequence:
            bank, number = 5 + (self.number >> 24) % _BANKS, self.number
        else:
            kind, stored = self.number >> _STORED_BITS, self.number & ((1 << _STORED_BITS) - 1)
            high = stored >> 18
            bank, number = 5 + (high - 1) % _BANKS if high else 1, (kind & 0x3F) << 18 | stored & 0x3FFFF
        return struct.pack(">Q", (self.sequence & 0x7FFF) << 48 | (bank & 0xFFFFFF) << 24 | number & 0xFFFFFF)

    @classmethod
    def decode_64(cls, buffer: bytes) -> Self:
        """The id with these 8 bytes of AM1. Raises struct.error."""
        (bits,) = struct.unpack(">Q", buffer)
        sequence, bank, number = bits >> 48 & 0x7FFF, bits >> 24 & 0xFFFFFF, bits & 0xFFFFFF
        if bank > 4 + _BANKS:
            return cls(0, sequence, 1, bank, number)
        if sequence:
            return cls(0, sequence, 1, 0, max(bank - 5, 0) << 24 | number)
        return cls(0, 0, 1, 0, (number >> 18) << _STORED_BITS | max(bank - 4, 0) << 18 | number & 0x3FFFF)

    @classmethod
    def decode(cls, buffer: bytes) -> Self:
        """The id with these 16 bytes. Raises struct.error."""
        first, number = _PAIR.unpack(buffer)
        return cls(first >> 60, first >> 48 & 0xFFF, first >> 28 & 0xFFFFF, first & 0xFFFFFFF, number)

    def __str__(self) -> str:
        """As consoles show it: `flags-sequence-broker-agent-number`."""
        return "-".join(str(each) for each in self)

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The id with that text, or None."""
        parts = text.split("-")
        if len(parts) != 5 or not all(each.isascii() and each.isdigit() and len(each) <= 20 for each in parts):
            return None
        return cls(*(int(each) for each in parts))


# ---- types ----

_MAX_ARRAY: Final = 10_000
_MAX_DEPTH: Final = 8
_OBJECT_CODE: Final = 20


class QmfError(FormatError):
    """Bytes that are no QMF of version 1, or a value that it cannot carry."""

    format_name = "QMF"


class Embedded(NamedTuple):
    """An object within a message: its class, and its values.

    Attributes:
        package, name, hash: the class.
        values: its values as they are on the wire, without the class; only the class's schema has their types.
    """

    package: str
    name: str
    hash: bytes
    values: bytes


class QmfType(NamedTuple):
    """A type.

    Attributes:
        name: its name in a schema.
        code: its number in version 1.
        amqp: the AMQP type that carries its values in version 2.
        kind: its name in version 2, `TYPE_…`.
    """

    name: str
    code: int
    amqp: ValueType
    kind: str


_INTEGERS: Final = {
    "uint8": (1, "B"), "uint16": (2, "H"), "uint32": (3, "I"), "uint64": (4, "Q"),
    "int8": (16, "b"), "int16": (17, "h"), "int32": (18, "i"), "int64": (19, "q"),
    "absTime": (8, "Q"), "deltaTime": (9, "Q"),
}  # fmt: skip

#: Name -> type.
QMF_TYPES: Final = {
    each.name: each
    for each in (
        *(QmfType(name, code, TYPES.get(name, UINT64), "TYPE_INT") for name, (code, _) in _INTEGERS.items()),
        QmfType("sstr", 6, STR16, "TYPE_STRING"),
        QmfType("lstr", 7, STR16, "TYPE_STRING"),
        QmfType("objId", 10, MAP, "TYPE_MAP"),
        QmfType("bool", 11, BOOLEAN, "TYPE_BOOL"),
        QmfType("float", 12, TYPES["float"], "TYPE_FLOAT"),
        QmfType("double", 13, DOUBLE, "TYPE_FLOAT"),
        QmfType("uuid", 14, UUID_TYPE, "TYPE_UUID"),
        QmfType("map", 15, MAP, "TYPE_MAP"),
        QmfType("object", _OBJECT_CODE, MAP, "TYPE_MAP"),
        QmfType("list", 21, LIST, "TYPE_LIST"),
        QmfType("array", 22, LIST, "TYPE_LIST"),
    )
}
BY_CODE: Final = {each.code: each for each in QMF_TYPES.values()}


def expanded(name: str, kind: str) -> Iterator[tuple[str, str, str]]:
    """The values of a statistic: the suffix, the name, and the type of each. See the module's table."""
    if kind.startswith("count"):
        yield "", name, kind.replace("count", "uint")
    elif kind.startswith("hilo"):
        for suffix in ("", "High", "Low"):
            yield suffix, name + suffix, kind.replace("hilo", "uint")
    elif kind.startswith("mma"):
        each = "deltaTime" if kind == "mmaTime" else kind.replace("mma", "uint")
        yield "Samples", name + "Samples", "uint64"
        for suffix in ("Min", "Max", "Average"):
            yield suffix, name + suffix, each
    else:
        yield "", name, kind


# ---- encoding ----


def encode(kind: str, value: Any, depth: int = 0) -> bytes:
    """The bytes of a value.

    Raises:
        QmfError: the type cannot carry it.
    """
    if depth > _MAX_DEPTH:
        raise QmfError("objects and arrays are nested too deep")
    try:
        return _WRITERS[kind](value, depth)
    except (Amqp010Error, struct.error, AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
        raise QmfError(f"{kind} cannot carry {with_article(type(value).__name__)}: {error}") from None


def _limits(layout: str) -> tuple[int, int]:
    """The lowest and the highest number."""
    bits = 8 * struct.calcsize(">" + layout)
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if layout.islower() else (0, (1 << bits) - 1)


_LIMITS: Final = {name: _limits(layout) for name, (_, layout) in _INTEGERS.items()}


def _integer_writer(layout: str) -> Callable[[Any, int], bytes]:
    packed = struct.Struct(">" + layout)
    low, high = _limits(layout)
    return lambda value, _depth: packed.pack(min(max(int(value), low), high))


def text_bytes(text: str, limit: int) -> bytes:
    """Text as UTF-8, cut at the last whole character if it is longer than that."""
    encoded = text.encode("utf-8", "surrogateescape")
    if len(encoded) <= limit:
        return encoded
    return encoded[:limit].decode("utf-8", "ignore").encode()


def _write_sstr(value: str, _depth: int) -> bytes:
    encoded = text_bytes(value, 0xFF)
    return bytes((len(encoded),)) + encoded


def _write_lstr(value: str, _depth: int) -> bytes:
    encoded = text_bytes(value, 0xFFFF)
    return struct.pack(">H", len(encoded)) + encoded


def _write_array(values: tuple[tuple[str, Any], ...], depth: int) -> bytes:
    if len({kind for kind, _ in values}) > 1:
        raise QmfError("an array has values of one type")
    content = struct.pack(">I", len(values))
    if values:
        content += bytes((QMF_TYPES[values[0][0]].code,))
        content += b"".join(encode(kind, value, depth + 1) for kind, value in values)
    return struct.pack(">I", len(content)) + content


def _write_object(value: Any, depth: int) -> bytes:
    if isinstance(value, Embedded):
        return (
            bytes((_OBJECT_CODE,))
            + _write_sstr(value.package, 0)
            + _write_sstr(value.name, 0)
            + value.hash
            + value.values
        )
    kind, content = value
    return bytes((QMF_TYPES[kind].code,)) + encode(kind, content, depth + 1)


_WRITERS: Final[dict[str, Callable[[Any, int], bytes]]] = {
    **{name: _integer_writer(layout) for name, (_, layout) in _INTEGERS.items()},
    "sstr": _write_sstr,
    "lstr": _write_lstr,
    "objId": lambda value, _: value.encoded(),
    "objId64": lambda value, _: value.encoded_64(),
    "bool": lambda value, _: b"\x01" if value else b"\x00",
    "float": lambda value, _: struct.pack(">f", value),
    "double": lambda value, _: struct.pack(">d", value),
    "uuid": lambda value, _: value.bytes,
    "bin128": lambda value, _: value,
    "map": lambda value, _: encode_value(BY_NAME["map"], value),
    "list": lambda value, _: encode_value(BY_NAME["list"], value),
    "array": _write_array,
    "object": _write_object,
}


# ---- decoding ----


def decode(kind: str, buffer: bytes, offset: int, depth: int = 0) -> tuple[Any, int]:
    """The value at an offset, and where it ends.

    Raises:
        QmfError: there is none.
    """
    if depth > _MAX_DEPTH:
        raise QmfError("objects and arrays are nested too deep", offset)
    try:
        value, end = _READERS[kind](buffer, offset, depth)
    except (Amqp010Error, struct.error, IndexError, UnicodeDecodeError, ValueError) as error:
        raise QmfError(f"{with_article(kind)} is cut or invalid: {error}", offset) from None
    if end > len(buffer):
        raise QmfError(f"{with_article(kind)} is cut", offset)
    return value, end


def _integer_reader(layout: str) -> Callable[[bytes, int, int], tuple[Any, int]]:
    packed = struct.Struct(">" + layout)
    return lambda buffer, offset, _depth: (packed.unpack_from(buffer, offset)[0], offset + packed.size)


def _text_reader(layout: str) -> Callable[[bytes, int, int], tuple[Any, int]]:
    packed = struct.Struct(">" + layout)

    def read(buffer: bytes, offset: int, _depth: int) -> tuple[Any, int]:
        start = offset + packed.size
        end = start + packed.unpack_from(buffer, offset)[0]
        return buffer[start:end].decode("utf-8", "surrogateescape"), end

    return read


def _read_16(buffer: bytes, offset: int, _depth: int) -> tuple[Any, int]:
    return buffer[offset : offset + 16], offset + 16


def _read_uuid(buffer: bytes, offset: int, _depth: int) -> tuple[Any, int]:
    return UUID(bytes=buffer[offset : offset + 16]), offset + 16


def _read_object_id(buffer: bytes, offset: int, _depth: int) -> tuple[Any, int]:
    return ObjectId.decode(buffer[offset : offset + 16]), offset + 16


def _amqp_reader(name: str) -> Callable[[bytes, int, int], tuple[Any, int]]:
    def read(buffer: bytes, offset: int, depth: int) -> tuple[Any, int]:
        check_amount(BY_NAME[name], buffer, offset, len(buffer), depth=depth)
        return read_value(BY_NAME[name], buffer, offset, len(buffer), depth)

    return read


def _read_array(buffer: bytes, offset: int, depth: int) -> tuple[Any, int]:
    size, count = struct.unpack_from(">II", buffer, offset)
    end = offset + 4 + size
    if size < 4 or count > _MAX_ARRAY or end > len(buffer):
        raise QmfError("an array claims more values than it has", offset)
    if not count:
        return (), end
    kind, at, values = _type_with(buffer[offset + 8], offset), offset + 9, []
    for _ in range(count):
        value, at = decode(kind.name, buffer, at, depth + 1)
        values.append((kind.name, value))
    if at != end:
        raise QmfError("an array ends before or after its size", offset)
    return tuple(values), end


def _read_object(buffer: bytes, offset: int, depth: int) -> tuple[Any, int]:
    kind = _type_with(buffer[offset], offset)
    if kind.code == _OBJECT_CODE:
        raise QmfError("an object within a message can be read only with its schema", offset)
    value, end = decode(kind.name, buffer, offset + 1, depth + 1)
    return (kind.name, value), end


def _type_with(code: int, offset: int) -> QmfType:
    found = BY_CODE.get(code)
    if found is None:
        raise QmfError(f"there is no type {code}", offset)
    return found


_READERS: Final[dict[str, Callable[[bytes, int, int], tuple[Any, int]]]] = {
    **{name: _integer_reader(layout) for name, (_, layout) in _INTEGERS.items()},
    "sstr": _text_reader("B"),
    "lstr": _text_reader("H"),
    "objId": _read_object_id,
    "objId64": lambda buffer, offset, _: (ObjectId.decode_64(buffer[offset : offset + 8]), offset + 8),
    "bool": lambda buffer, offset, _: (buffer[offset] != 0, offset + 1),
    "float": _integer_reader("f"),
    "double": _integer_reader("d"),
    "uuid": _read_uuid,
    "bin128": _read_16,
    "map": _amqp_reader("map"),
    "list": _amqp_reader("list"),
    "array": _read_array,
    "object": _read_object,
}

EMPTY: Final[dict[str, Any]] = {
    **dict.fromkeys(_INTEGERS, 0),
    "sstr": "", "lstr": "", "bool": False, "float": 0.0, "double": 0.0, "objId": ObjectId(0, 0, 0, 0, 0),
    "uuid": UUID(int=0), "map": TypedMap(), "list": (), "array": (), "object": ("bool", False),
}  # fmt: skip
"""Type -> the value that means none where one is required."""


def typed(kind: str, value: Any) -> TypedValue:
    """A value with the AMQP type that carries it in version 2. Numbers that do not fit are the nearest that do."""
    limits = _LIMITS.get(kind)
    if limits is not None and not limits[0] <= value <= limits[1]:
        value = limits[0] if value < limits[0] else limits[1]
    return TypedValue(QMF_TYPES[kind].amqp, value)


# ---- messages ----


class Dialect(Enum):
    """The forms of version 1, by their magic."""

    AM1 = b"AM1"
    AM2 = b"AM2"


MAGIC: Final = Dialect.AM2.value
MAX_CODE_OF_AM1: Final = 19
"""The last code of a type that AM1 has."""
HEADER: Final = struct.Struct(">3scI")
_KEY: Final = (("package", "sstr"), ("class", "sstr"), ("hash", "bin128"))
_KEY_WITH_KIND: Final = (("kind", "uint8"), *_KEY)
_OBJECT: Final = (*_KEY, ("sampled", "absTime"), ("created", "absTime"), ("deleted", "absTime"), ("object", "objId"))
TABLE, EVENT = 1, 2
"""The kinds of classes: of objects, of events."""

#: Opcode -> its fields: name and type.
FIELDS: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "B": (),
    "b": (("broker", "uuid"),),
    "P": (),
    "p": (("package", "sstr"),),
    "Q": (("package", "sstr"),),
    "q": _KEY_WITH_KIND,
    "S": _KEY,
    "s": _KEY_WITH_KIND,
    "A": (("label", "sstr"), ("system", "uuid"), ("broker_bank", "uint32"), ("agent_bank", "uint32")),
    "a": (("broker_bank", "uint32"), ("agent_bank", "uint32")),
    "x": (),
    "z": (("status", "uint32"), ("text", "sstr")),
    "h": (("timestamp", "absTime"),),
    "c": _OBJECT,
    "i": _OBJECT,
    "g": _OBJECT,
    "e": (*_KEY, ("timestamp", "absTime"), ("severity", "uint8")),
    "G": (("query", "map"),),
    "M": (("object", "objId"), *_KEY, ("method", "sstr")),
    "m": (("status", "uint32"), ("text", "lstr")),
}

_OBJECT_64: Final = (*_OBJECT[:-1], ("object", "objId64"))
FIELDS_OF: Final[Mapping[Dialect, Mapping[str, tuple[tuple[str, str], ...]]]] = {
    Dialect.AM2: FIELDS,
    Dialect.AM1: {
        **{opcode: fields for opcode, fields in FIELDS.items() if opcode != "e"},
        "q": _KEY,
        "s": _KEY,
        "A": (("label", "sstr"), ("system", "uuid"), ("agent_bank", "uint32")),
        "c": _OBJECT_64,
        "i": _OBJECT_64,
        "g": _OBJECT_64,
        "M": (("object", "objId64"), ("method", "sstr")),
        "m": (("status", "uint32"), ("text", "sstr")),
    },
}


class Message(NamedTuple):
    """A message.

    Attributes:
        opcode, sequence: its header.
        fields: name -> value.
        end: where the fields end, and the rest begins.
    """

    opcode: str
    sequence: int
    fields: dict[str, Any]
    end: int


def encode_message(
    opcode: str, sequence: int, *values: Any, rest: bytes = b"", dialect: Dialect = Dialect.AM2
) -> bytes:
    """The bytes of a message.

    Args:
        opcode: its kind.
        sequence: that of its request, or 0.
        values: of its fields.
        rest: the bytes after them.
        dialect: its form.

    Raises:
        QmfError: a field cannot carry its value.
    """
    fields = zip(FIELDS_OF[dialect][opcode], values, strict=True)
    header = HEADER.pack(dialect.value, opcode.encode(), sequence & 0xFFFFFFFF)
    return b"".join((header, *(encode(kind, value) for (_, kind), value in fields), rest))


def decode_message(buffer: bytes, offset: int = 0, dialect: Dialect = Dialect.AM2) -> Message:
    """The message of this form at an offset.

    Raises:
        QmfError: there is none, or its opcode is unknown.
    """
    try:
        magic, code, sequence = HEADER.unpack_from(buffer, offset)
    except struct.error:
        raise QmfError("a message is cut in its header", offset) from None
    opcode = code.decode("latin-1")
    if magic != dialect.value or opcode not in FIELDS_OF[dialect]:
        raise QmfError("no message of version 1, or one with an unknown opcode", offset)
    at, values = offset + HEADER.size, {}
    for name, kind in FIELDS_OF[dialect][opcode]:
        values[name], at = decode(kind, buffer, at)
    return Message(opcode, sequence, values, at)
