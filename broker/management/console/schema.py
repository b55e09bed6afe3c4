"""The schema of a class, in the three forms in which agents send it.

    QMF version 2, lists     `_properties` and `_methods` are lists of maps with `_name`: agents of qpid's library
    QMF version 2, maps      `_values` are maps by name, and `_subtypes` says which are methods: the wiki
    QMF version 1            binary (`formats.qmf.v1`): qpidd's broker, which describes its schema in no other way

Brokers answer these requests of version 1 to consoles of version 2 as well:

    request                     replies
    --------------------------  ---------------------------------------------------
    P                           p for each package; z
    Q package                   q for each class: its kind, package, name and hash; z
    S package, class, hash      s: likewise, followed by the schema; or z

Replies come by the exchange amq.direct, whatever the request's reply-to is; a message may have several. The schema
of a class of objects begins with the numbers of properties, statistics and methods (u16 each), that of events with the
number of arguments. A map for each follows; that of a method has `argCount`, and is followed by a map for each of its
arguments.

Sources: Qpid wiki, "QMFv2 Map Message Protocol"; qpid's library qmf2; MRG Messaging Programming Reference, management
protocol.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Final

from qstore.broker.management.console.values import AnswerError, SchemaId, mapping, read_schema_id, text, texts
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.qmf.v1 import (
    BY_CODE,
    EVENT,
    HEADER,
    MAGIC,
    Message,
    QmfError,
    decode,
    decode_message,
    encode_message,
)

MAX_ELEMENTS: Final = 10_000
"""Properties, methods and arguments of a class."""


#: Access, by its number in version 1.
ACCESS: Final = {1: "RC", 2: "RW", 3: "RO"}


class Property(NamedTuple):
    """A property or statistic of a class, or an argument of an event.

    Attributes:
        name, type: its name, and its type in the words of the schema.
        access: RC, RW or RO; empty if it is not given.
        unit, description: for people; may be empty.
        is_index: whether it is a part of an object's name.
        is_optional: whether objects may lack it.
        is_statistic: whether it is counted; only version 1 and qstore's agent say so.
    """

    name: str
    type: str
    access: str = ""
    unit: str = ""
    description: str = ""
    is_index: bool = False
    is_optional: bool = False
    is_statistic: bool = False


class Argument(NamedTuple):
    """An argument of a method. `direction` is I (in), O (out) or IO."""

    name: str
    type: str
    direction: str = ""
    description: str = ""


class Method(NamedTuple):
    """A method of a class."""

    name: str
    arguments: tuple[Argument, ...]
    description: str = ""


class Schema(NamedTuple):
    """A class.

    Attributes:
        id: identifies it.
        properties: of its objects, or events.
        methods: the methods of its objects.
    """

    id: SchemaId
    properties: tuple[Property, ...]
    methods: tuple[Method, ...]


# ---- version 2 ----


def read_schema(value: object) -> Schema:
    """A class as version 2 describes it. Raises AnswerError."""
    values = texts(mapping(value, "a schema"))
    found = read_schema_id(values.get("_schema_id"))
    if "_properties" in values or "_methods" in values:
        properties, methods = _named(values.get("_properties")), _named(values.get("_methods"))
    else:
        kinds = mapping(values.get("_subtypes", {}), "the kinds of a schema's elements")
        elements = _named(values.get("_values"))
        methods = [(name, each) for name, each in elements if kinds.get(name) == "qmfMethod"]
        properties = [(name, each) for name, each in elements if kinds.get(name) != "qmfMethod"]
    return Schema(
        found,
        tuple(_property(name, each) for name, each in properties),
        tuple(_method(name, each) for name, each in methods),
    )


def _named(value: object) -> list[tuple[str, Mapping[str, Any]]]:
    """The elements of a map by name, or of a list of maps that have names."""
    if value is None:
        return []
    elements: Iterable[tuple[str, object]]
    if isinstance(value, dict):
        elements = value.items()
    elif isinstance(value, list):
        elements = ((text(mapping(each, "an element of a schema"), "_name"), each) for each in value)
    else:
        raise AnswerError("the elements of a schema are neither a list nor a map")
    if len(value) > MAX_ELEMENTS:
        raise AnswerError(f"a schema has {len(value):,} elements, more than {MAX_ELEMENTS:,}")
    return [(name, mapping(each, f"the element {name} of a schema")) for name, each in elements]


def _property(name: str, values: Mapping[str, Any]) -> Property:
    return Property(
        name,
        _type(values),
        text(values, "_access", ""),
        text(values, "_unit", ""),
        text(values, "_desc", ""),
        bool(values.get("_index")),
        bool(values.get("_optional")),
        bool(values.get("_statistic")),
    )


def _type(values: Mapping[str, Any]) -> str:
    """The more exact one of a type and its subtype."""
    return text(values, "_subtype", "") or text(values, "_type", "").removeprefix("TYPE_").lower()


def _method(name: str, values: Mapping[str, Any]) -> Method:
    arguments = (
        Argument(each, _type(described), text(described, "_dir", ""), text(described, "_desc", ""))
        for each, described in _named(values.get("_arguments"))
    )
    return Method(name, tuple(arguments), text(values, "_desc", ""))


# ---- version 1 ----


def request_bytes(opcode: str, sequence: int, package: str = "", of: SchemaId | None = None) -> bytes:
    """A request of version 1: P; Q for a package; S for a class."""
    if of is not None:
        return encode_message(opcode, sequence, of.package, of.name, (of.hash or uuid.UUID(int=0)).bytes)
    return encode_message(opcode, sequence, *([package] if package else []))


def sequence_of(body: bytes) -> int | None:
    """The sequence number of the first reply of a message, that of its request; None for anything else."""
    if len(body) < HEADER.size or not body.startswith(MAGIC):
        return None
    return int(HEADER.unpack_from(body)[2])


def read_replies(body: bytes) -> list[tuple[str, int, Any]]:
    """The replies of a message, up to an unknown one: opcode, sequence, and package, class, schema, or code and text.

    Raises:
        AnswerError: one of them ends too early, or is not a reply of version 1.
    """
    found: list[tuple[str, int, Any]] = []
    at = 0
    try:
        while at < len(body):
            if body.startswith(MAGIC, at) and body[at + 3 : at + 4] not in _OPCODES:
                break
            reply = decode_message(body, at)
            content, at = _content(reply, body)
            found.append((reply.opcode, reply.sequence, content))
    except QmfError as error:
        raise AnswerError(f"the answer is not valid QMF version 1: {error.what}") from None
    return found


_OPCODES: Final = (b"p", b"q", b"s", b"z")


def _content(reply: Message, body: bytes) -> tuple[Any, int]:
    """The content of a reply, and where it ends."""
    fields = reply.fields
    if reply.opcode == "p":
        return fields["package"], reply.end
    if reply.opcode == "z":
        return (fields["status"], fields["text"]), reply.end
    found = SchemaId(fields["package"], fields["class"], fields["kind"] == EVENT, _hash(fields["hash"]))
    if reply.opcode == "q":
        return found, reply.end
    reader = _Reader(body, reply.end)
    if found.is_event:
        return Schema(found, tuple(_property_1(reader.map()) for _ in range(reader.count())), ()), reader.at
    properties, statistics, methods = reader.count(), reader.count(), reader.count()
    schema = Schema(
        found,
        (
            *(_property_1(reader.map()) for _ in range(properties)),
            *(_property_1(reader.map())._replace(is_statistic=True, access="") for _ in range(statistics)),
        ),
        tuple(_method_1(reader) for _ in range(methods)),
    )
    return schema, reader.at


class _Reader:
    """Reads the parts of a schema one after the other. Raises QmfError."""

    def __init__(self, body: bytes, at: int) -> None:
        self._body, self.at = body, at

    def count(self) -> int:
        """A number of elements."""
        value, self.at = decode("uint16", self._body, self.at)
        return int(value)

    def map(self) -> dict[str, Any]:
        """The map of an element."""
        value, self.at = decode("map", self._body, self.at)
        return mapping(texts({name: typed.value for name, typed in value.entries}), "a map")


def _hash(value: bytes) -> uuid.UUID:
    if len(value) != 16:
        raise AnswerError("the answer ends within a hash")
    return uuid.UUID(bytes=value)


def _word(values: Mapping[str, Any], name: str) -> str:
    value = values.get(name, "")
    return value if isinstance(value, str) else ""


def _type_1(values: Mapping[str, Any]) -> str:
    code = values.get("type")
    if not isinstance(code, int):
        return ""
    found = BY_CODE.get(code)
    return str(code) if found is None else found.name


def _property_1(values: Mapping[str, Any]) -> Property:
    access = values.get("access")
    return Property(
        _word(values, "name"),
        _type_1(values),
        ACCESS.get(access, "") if isinstance(access, int) else "",
        _word(values, "unit"),
        _word(values, "desc"),
        bool(values.get("index")),
        bool(values.get("optional")),
    )


def _method_1(reader: _Reader) -> Method:
    values = reader.map()
    size = values.get("argCount")
    if not isinstance(size, int) or not 0 <= size <= MAX_ELEMENTS:
        raise AnswerError("a method of QMF version 1 has no number of arguments")
    found = tuple(reader.map() for _ in range(size))
    arguments = (
        Argument(_word(each, "name"), _type_1(each), _word(each, "dir"), _word(each, "desc")) for each in found
    )
    return Method(_word(values, "name"), tuple(arguments), _word(values, "desc"))
