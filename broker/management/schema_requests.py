"""The part of QMF version 1 that consoles of both versions use: which packages and classes there are, and their schema.

    request   content                 replies
    --------  ----------------------  -----------------------------------------------------------------------
    B         -                       b: the broker's UUID
    P         -                       p for each package: its name; z
    Q         package                 q for each class: kind, package, class, hash; z
    S         package, class, hash    s: kind, package, class, hash, and the schema
    others                            z: not implemented

Each begins with `AM2`, the opcode and a sequence number (u32), which the reply repeats. Names have one byte of length,
a hash 16 bytes. z is the end: a code (u32) and a text. A schema of a class has the numbers of its properties,
statistics and methods (u16 each), and a map for each of them and for each argument of a method; that of an event the
number of its arguments, and a map for each.

Source: MRG Messaging Programming Reference, management protocol; qpidd, ManagementAgent.cpp and the generated classes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, Final
from uuid import UUID

from qstore.broker.management.event_table import EVENTS, NOT_RAISED, EventClass
from qstore.broker.management.schema import CLASSES, EVENT_ARGUMENTS, PACKAGE, ManagedClass
from qstore.formats.amqp_0_10.maps import encode_value
from qstore.formats.amqp_0_10.types import BY_NAME
from qstore.formats.values import typed_map

MAGIC: Final = b"AM2"
_OK, _UNKNOWN, _NOT_IMPLEMENTED = (0, "OK"), (1, "UnknownObject"), (3, "NotImplemented")
_TABLE, _EVENT = 1, 2
_HEADER: Final = struct.Struct(">3scI")
_MAP: Final = BY_NAME["map"]
_HASH_BYTES: Final = 16
_ACCESS: Final = {"RC": 1, "RW": 2, "RO": 3}
_TYPES: Final = {
    "uint8": 1, "uint16": 2, "uint32": 3, "uint64": 4, "sstr": 6, "lstr": 7, "absTime": 8, "deltaTime": 9, "objId": 10,
    "bool": 11, "uuid": 14, "map": 15, "count32": 3, "count64": 4,
}  # fmt: skip


class SchemaRequests:
    """Answers these requests.

    Args:
        broker_id: the broker's UUID.
    """

    def __init__(self, broker_id: UUID) -> None:
        self._broker_id = broker_id
        self._handlers: dict[bytes, Callable[[bytes], Iterator[tuple[bytes, bytes]]]] = {
            b"B": self._broker,
            b"P": self._packages,
            b"Q": self._classes,
            b"S": self._schema,
        }

    def answer(self, request: bytes) -> list[bytes]:
        """The replies to a request; none if it is no request."""
        if len(request) < _HEADER.size:
            return []
        magic, opcode, sequence = _HEADER.unpack_from(request)
        if magic != MAGIC:
            return []
        handler = self._handlers.get(opcode)
        replies = [_end(_NOT_IMPLEMENTED)] if handler is None else list(handler(request[_HEADER.size :]))
        return [_HEADER.pack(MAGIC, code, sequence) + content for code, content in replies]

    def _broker(self, _content: bytes) -> Iterator[tuple[bytes, bytes]]:
        yield b"b", self._broker_id.bytes

    @staticmethod
    def _packages(_content: bytes) -> Iterator[tuple[bytes, bytes]]:
        yield b"p", _name(PACKAGE)
        yield _end(_OK)

    @staticmethod
    def _classes(content: bytes) -> Iterator[tuple[bytes, bytes]]:
        package, _ = _read_name(content, 0)
        if package == PACKAGE:
            for each in CLASSES.values():
                yield b"q", bytes((_TABLE,)) + _key(each.name, each.hash)
            for event in (*EVENTS.values(), *NOT_RAISED):
                yield b"q", bytes((_EVENT,)) + _key(event.name, event.hash)
        yield _end(_OK)

    @staticmethod
    def _schema(content: bytes) -> Iterator[tuple[bytes, bytes]]:
        package, at = _read_name(content, 0)
        name, at = _read_name(content, at)
        events = {each.name: each for each in (*EVENTS.values(), *NOT_RAISED)}
        found: ManagedClass | EventClass | None = CLASSES.get(name) or events.get(name)
        if found is None or package != PACKAGE or content[at : at + _HASH_BYTES] != found.hash.bytes:
            yield _end(_UNKNOWN)
        elif isinstance(found, EventClass):
            yield b"s", bytes((_EVENT,)) + _key(found.name, found.hash) + _event_schema(found)
        else:
            yield b"s", bytes((_TABLE,)) + _key(found.name, found.hash) + _class_schema(found)


def _class_schema(of: ManagedClass) -> bytes:
    parts = [struct.pack(">HHH", len(of.properties), len(of.statistics), len(of.methods))]
    for prop in of.properties:
        fields: dict[str, Any] = {"name": prop.name, "type": _TYPES[prop.type], "access": _ACCESS[prop.access]}
        fields |= {"index": int(prop.is_index), "optional": int(prop.is_optional)}
        parts.append(_map(fields | _unit(prop.unit)))
    parts += [_map({"name": each.name, "type": _TYPES[each.type], **_unit(each.unit)}) for each in of.statistics]
    for name, arguments in of.methods.items():
        parts.append(_map({"name": name, "argCount": len(arguments)}))
        parts += [_map({"name": each.name, "type": _TYPES[each.type], "dir": each.direction}) for each in arguments]
    return b"".join(parts)


def _event_schema(of: EventClass) -> bytes:
    maps = [_map({"name": each, "type": _TYPES[EVENT_ARGUMENTS[each]]}) for each in of.arguments]
    return struct.pack(">H", len(maps)) + b"".join(maps)


def _unit(unit: str) -> dict[str, str]:
    return {"unit": unit} if unit else {}


def _map(fields: dict[str, Any]) -> bytes:
    return encode_value(_MAP, typed_map(fields))


def _name(text: str) -> bytes:
    encoded = text.encode()
    return bytes((len(encoded),)) + encoded


def _read_name(content: bytes, at: int) -> tuple[str, int]:
    """A name, and its end; what is not there is empty."""
    end = at + 1 + content[at] if at < len(content) else at
    return content[at + 1 : end].decode("utf-8", "replace"), end


def _key(name: str, class_hash: UUID) -> bytes:
    return _name(PACKAGE) + _name(name) + class_hash.bytes


def _end(status: tuple[int, str]) -> tuple[bytes, bytes]:
    code, text = status
    return b"z", struct.pack(">I", code) + _name(text)
