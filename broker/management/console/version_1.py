"""Requests for the schema in QMF version 1, which brokers answer to consoles of version 2 as well.

    request                     replies
    --------------------------  ---------------------------------------------------
    P                           p for each package: its name; z
    Q package                   q for each class: its kind and identity; z
    S package, class, hash      s: kind, identity, and the schema; or z

Each begins with `AM2`, its opcode and a sequence number (u32), which the reply repeats; a message may have several
replies. Replies come by the exchange amq.direct, whatever the request's reply-to says. A name has one byte of
length, a hash 16 bytes; z is a code (u32, 0 for fine) and a text. Kind 1 is a class of objects: its schema begins with
the numbers of properties, statistics and methods (u16 each); kind 2 is one of events, with the number of arguments. A
map for each follows; that of a method has `argCount`, and is followed by a map for each of its arguments.

Source: MRG Messaging Programming Reference, management protocol.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from qstore.broker.management.console.errors import AnswerError
from qstore.broker.management.console.schema import ACCESS, MAX_ELEMENTS, Argument, Method, Property, Schema
from qstore.broker.management.console.values import SchemaId, mapping, texts
from qstore.formats.amqp_0_10.maps import python_map
from qstore.formats.amqp_0_10.types import Amqp010Error

MAGIC: Final = b"AM2"
_HEADER: Final = struct.Struct(">3scI")
_EVENT: Final = 2
_TYPES: Final = {
    1: "uint8", 2: "uint16", 3: "uint32", 4: "uint64", 6: "sstr", 7: "lstr", 8: "absTime", 9: "deltaTime", 10: "objId",
    11: "bool", 12: "float", 13: "double", 14: "uuid", 15: "map", 16: "int8", 17: "int16", 18: "int32", 19: "int64",
    20: "object", 21: "list", 22: "array",
}  # fmt: skip


class Reply(NamedTuple):
    """A reply: its opcode, its sequence number, and its content: a package, a class, a schema, or code and text."""

    opcode: str
    sequence: int
    content: Any


def request(opcode: str, sequence: int, content: bytes = b"") -> bytes:
    """A request."""
    return _HEADER.pack(MAGIC, opcode.encode(), sequence) + content


def package_bytes(name: str) -> bytes:
    """A name as requests have it."""
    encoded = name.encode("utf-8", "surrogateescape")[:255]
    return bytes((len(encoded),)) + encoded


def class_bytes(of: SchemaId) -> bytes:
    """A class as requests have it."""
    found = of.hash or uuid.UUID(int=0)
    return package_bytes(of.package) + package_bytes(of.name) + found.bytes


def sequence_of(body: bytes) -> int | None:
    """The sequence number of the first reply of a message; None for a message that is none of version 1."""
    if len(body) < _HEADER.size or not body.startswith(MAGIC):
        return None
    return int(_HEADER.unpack_from(body)[2])


def read_replies(body: bytes) -> list[Reply]:
    """The replies of a message, up to one that is not known.

    Raises:
        AnswerError: one of them ends too early, or is none.
    """
    reader = _Reader(body)
    found: list[Reply] = []
    while not reader.is_at_end:
        magic, opcode, sequence = _HEADER.unpack(reader.take(_HEADER.size))
        read = _CONTENTS.get(opcode)
        if magic != MAGIC:
            raise AnswerError("an answer of QMF version 1 does not begin as such")
        if read is None:
            break
        found.append(Reply(opcode.decode("latin-1"), sequence, read(reader)))
    return found


class _Reader:
    """Reads the parts of a reply."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 0

    @property
    def is_at_end(self) -> bool:
        """Whether everything is read."""
        return self._at >= len(self._content)

    def take(self, size: int) -> bytes:
        """So many bytes. Raises AnswerError if there are fewer."""
        found = self._content[self._at : self._at + size]
        if len(found) != size:
            raise AnswerError("an answer of QMF version 1 ends within a value")
        self._at += size
        return found

    def number(self, size: int) -> int:
        """A number of so many bytes."""
        return int.from_bytes(self.take(size), "big")

    def name(self) -> str:
        """A name."""
        return self.take(self.number(1)).decode("utf-8", "surrogateescape")

    def map(self) -> dict[str, Any]:
        """A map."""
        prefix = self.take(4)
        try:
            return mapping(texts(python_map(prefix + self.take(int.from_bytes(prefix, "big")))), "a map")
        except Amqp010Error as error:
            raise AnswerError(f"a map of QMF version 1: {error.what}") from None

    def schema_id(self) -> SchemaId:
        """The kind and the identity of a class."""
        kind = self.number(1)
        return SchemaId(self.name(), self.name(), kind == _EVENT, uuid.UUID(bytes=self.take(16)))


def _end(reader: _Reader) -> tuple[int, str]:
    return reader.number(4), reader.name()


def _schema(reader: _Reader) -> Schema:
    found = reader.schema_id()
    if found.is_event:
        return Schema(found, tuple(_property(reader.map()) for _ in range(reader.number(2))), ())
    properties, statistics, methods = reader.number(2), reader.number(2), reader.number(2)
    return Schema(
        found,
        (
            *(_property(reader.map()) for _ in range(properties)),
            *(_property(reader.map())._replace(is_statistic=True, access="") for _ in range(statistics)),
        ),
        tuple(_method(reader) for _ in range(methods)),
    )


def _word(values: Mapping[str, Any], name: str) -> str:
    value = values.get(name, "")
    return value if isinstance(value, str) else ""


def _type(values: Mapping[str, Any]) -> str:
    code = values.get("type")
    return _TYPES.get(code, str(code)) if isinstance(code, int) else ""


def _property(values: Mapping[str, Any]) -> Property:
    access = values.get("access")
    return Property(
        _word(values, "name"),
        _type(values),
        ACCESS.get(access, "") if isinstance(access, int) else "",
        _word(values, "unit"),
        _word(values, "desc"),
        bool(values.get("index")),
        bool(values.get("optional")),
    )


def _method(reader: _Reader) -> Method:
    values = reader.map()
    size = values.get("argCount")
    if not isinstance(size, int) or not 0 <= size <= MAX_ELEMENTS:
        raise AnswerError("a method of QMF version 1 has no number of arguments")
    arguments = tuple(_argument(reader.map()) for _ in range(size))
    return Method(_word(values, "name"), arguments, _word(values, "desc"))


def _argument(values: Mapping[str, Any]) -> Argument:
    return Argument(_word(values, "name"), _type(values), _word(values, "dir"), _word(values, "desc"))


_CONTENTS: Final[Mapping[bytes, Callable[[_Reader], Any]]] = {
    b"p": _Reader.name,
    b"q": _Reader.schema_id,
    b"s": _schema,
    b"z": _end,
}
