"""The records of everything that is not a message: queues, exchanges, bindings, links, bridges, general objects.

The tables below are those of `formats/broker_records/README.md`, 4.2 to 4.5, as data. Records of old brokers may lack
fields at the end. Names are str with surrogateescape. Decoding and encoding again gives the same bytes, except that a
flag byte above 1 becomes 1, and for the exceptions of `maps`.

qpidd has no record for bindings between exchanges, and ignores objects of unknown kinds. So they are general objects:

    kind         "exchange-binding"
    name         a JSON list of source, destination and key, and, if there are arguments, the CRC-32C of their map:
                 unique among the bindings of a store
    properties   source, destination, key: text (bytes, if they are not UTF-8); arguments: a map

The exchanges are identified by name, so that tools can copy these objects from one store to another like all others.

**Virtual hosts.** Names are unique in a virtual host. Those of the default host, "/", are stored as they always were;
the record of a queue, exchange or binding of another host has the host's name as its last field. Outside of the
broker's model there is one name for both, the full name: `full_name` joins them with U+001F, which no new name has;
`split_name` separates them, and people see a slash (`formats.wording.printable`). The fields `name`, `queue_name` and
`alternate_exchange` of the classes here are full names, and so are the names in exchange bindings. Software that does
not know the field refuses the whole store by its version (`formats.rhm.store_file`).

What an operator configures while the broker runs is kept in general objects as well (`CONFIGURATION_KINDS`). Their name
is a JSON list of the parts of the record's own name, their properties are texts (str16), numbers (int64) and flags.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from qstore.formats.amqp_0_10.maps import encode_map, encode_value, read_map, read_value
from qstore.formats.amqp_0_10.types import BY_NAME, Amqp010Error, encode_name
from qstore.formats.checksum import extend_crc32c
from qstore.formats.errors import BrokerRecordError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import EMPTY_MAP, MAP, STR16, VBIN16, TypedMap, TypedValue
from qstore.formats.wording import with_article

MAX_NAME: Final = 255
"""Bytes of a name in UTF-8: records, AMQP 0-10 and AMQP 0-9-1 have one byte for its size."""


DEFAULT_HOST: Final = "/"
"""The name of the default virtual host."""

HOST_SEPARATOR: Final = "\x1f"
"""What separates a virtual host from a name in a full name."""


def full_name(host: str, name: str) -> str:
    """The full name of what has a name in a virtual host; empty if the name is empty."""
    if host == DEFAULT_HOST:
        return HOST_SEPARATOR + name if HOST_SEPARATOR in name else name
    return f"{host}{HOST_SEPARATOR}{name}" if name else ""


def split_name(full: str) -> tuple[str, str]:
    """The virtual host and the name in it of a full name."""
    host, separator, name = full.partition(HOST_SEPARATOR)
    return (host or DEFAULT_HOST, name) if separator else (DEFAULT_HOST, full)


@dataclass(frozen=True, slots=True)
class Queue:
    """A durable queue. `None` in a field means that the record does not have it."""

    name: str
    arguments: TypedMap = EMPTY_MAP
    alternate_exchange: str | None = ""
    owner: str | None = ""
    auto_delete: bool | None = False


@dataclass(frozen=True, slots=True)
class Exchange:
    """A durable exchange. `None` in a field means that the record does not have it."""

    name: str
    durable: bool
    type: str
    arguments: TypedMap = EMPTY_MAP
    alternate_exchange: str | None = ""
    auto_delete: bool | None = False


@dataclass(frozen=True, slots=True)
class Binding:
    """A binding of the exchange under whose id the record is stored."""

    queue_id: int
    queue_name: str
    key: str
    arguments: TypedMap = EMPTY_MAP


@dataclass(frozen=True, slots=True)
class Link:
    """A link to another broker. `kind` is "link.v2", or "link" for an old record, which has no name (None)."""

    kind: str
    name: str | None
    host: str
    port: int
    transport: str
    durable: bool
    mechanism: str
    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Bridge:
    """A route over a link. `kind` is "bridge.v2", or "bridge" for an old record.

    A "bridge.v2" has `name` and `link_name`, an old one `link_host` and `link_port` instead; the others are None.
    """

    kind: str
    name: str | None
    link_name: str | None
    link_host: str | None
    link_port: int | None
    durable: bool
    source: str
    destination: str
    key: str
    source_is_queue: bool
    source_is_local: bool
    tag: str
    excludes: str
    dynamic: bool
    sync: int
    credit: int


@dataclass(frozen=True, slots=True)
class GeneralObject:
    """An object of any other kind: `domain`, `topic`, `QueuePolicy`, `TopicPolicy`, ..."""

    kind: str
    name: str
    properties: TypedMap = EMPTY_MAP


def problem_of_new_name(name: str) -> str:
    """Why no new queue, exchange or virtual host can have this name.

    It must have 1 to 255 bytes of UTF-8, and no control character.

    The one rule of names, for the protocols, management and imports. Stored names are not
    checked: earlier versions, and qpidd, took other names.

    Args:
        name: the name; bytes that are not UTF-8 are lone surrogates.

    Returns:
        The reason, to follow a colon; empty if there is no problem.
    """
    if not name:
        return "its name is empty"
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "its name is not valid UTF-8"
    if size > MAX_NAME:
        return f"its name has {size:,} bytes, more than {MAX_NAME}"
    control = next((each for each in name if each < " " or "\x7f" <= each < "\xa0"), "")
    return f"its name contains the control character U+{ord(control):04X}" if control else ""


def is_storable_name(full: str) -> bool:
    """Whether a record can hold a full name, even one that no new queue or exchange can have."""
    try:
        return all(0 < len(encode_name(name)) <= MAX_NAME for name in split_name(full))
    except Amqp010Error:
        return False


# ----------------------------------------------------------------------------------------------- tables


class _Column(NamedTuple):
    """A field of a record: attribute, type (an AMQP 0-10 one, or "flag"), and whether old records lack it."""

    name: str
    type_name: str
    optional: bool = False


_QUEUE: Final = (
    _Column("name", "str8"),
    _Column("arguments", "map"),
    _Column("alternate_exchange", "str8", optional=True),
    _Column("owner", "str8", optional=True),
    _Column("auto_delete", "flag", optional=True),
)

_EXCHANGE: Final = (
    _Column("name", "str8"),
    _Column("durable", "flag"),
    _Column("type", "str8"),
    _Column("arguments", "map"),
    _Column("alternate_exchange", "str8", optional=True),
    _Column("auto_delete", "flag", optional=True),
)

_BINDING: Final = (
    _Column("queue_id", "uint64"),
    _Column("queue_name", "str8"),
    _Column("key", "str8"),
    _Column("arguments", "map"),
)

_OLD_LINK: Final = (
    _Column("host", "str8"),
    _Column("port", "uint16"),
    _Column("transport", "str8"),
    _Column("durable", "flag"),
    _Column("mechanism", "str8"),
    _Column("user", "str8"),
    _Column("password", "str8"),
)

_BRIDGE_FIELDS: Final = (
    _Column("durable", "flag"),
    _Column("source", "str8"),
    _Column("destination", "str8"),
    _Column("key", "str8"),
    _Column("source_is_queue", "flag"),
    _Column("source_is_local", "flag"),
    _Column("tag", "str8"),
    _Column("excludes", "str8"),
    _Column("dynamic", "flag"),
    _Column("sync", "uint16"),
    _Column("credit", "uint32"),
)

_HOST: Final = _Column("virtual_host", "str8")

_GENERAL: Final = (_Column("name", "str16"), _Column("properties", "map"))

_KIND: Final = _Column("kind", "str8")

# Kind -> its class, its columns, and the attributes that records of this kind do not have.
_KINDS: Final[dict[str, tuple[type[Link] | type[Bridge], tuple[_Column, ...], tuple[str, ...]]]] = {
    "link.v2": (Link, (_Column("name", "str8"), *_OLD_LINK), ()),
    "link": (Link, _OLD_LINK, ("name",)),
    "bridge.v2": (
        Bridge,
        (_Column("name", "str8"), _Column("link_name", "str8"), *_BRIDGE_FIELDS),
        ("link_host", "link_port"),
    ),
    "bridge": (
        Bridge,
        (_Column("link_host", "str8"), _Column("link_port", "uint16"), *_BRIDGE_FIELDS),
        ("name", "link_name"),
    ),
}


# --------------------------------------------------------------------------------------------- decoding


def decode_queue(record: bytes) -> Queue:
    """Decode a queue's record.

    Raises:
        BrokerRecordError: the bytes are not one complete record of a queue.
    """
    return Queue(**_decode_of_host("queue", _QUEUE, record))


def decode_exchange(record: bytes) -> Exchange:
    """Decode an exchange's record.

    Raises:
        BrokerRecordError: the bytes are not one complete record of an exchange.
    """
    return Exchange(**_decode_of_host("exchange", _EXCHANGE, record))


def decode_binding(record: bytes) -> Binding:
    """Decode a binding's record.

    Raises:
        BrokerRecordError: the bytes are not one complete record of a binding.
    """
    return Binding(**_decode_of_host("binding", _BINDING, record))


def decode_general(record: bytes) -> Link | Bridge | GeneralObject:
    """Decode a record of the general database, whose kind is its first field.

    Raises:
        BrokerRecordError: the bytes are not one complete record of their kind.
    """
    kind, offset = _read_column(_KIND, record, 0)
    if kind not in _KINDS:
        return GeneralObject(kind=kind, **_decode(kind, _GENERAL, record, offset))
    make, columns, absent = _KINDS[kind]
    values = _decode(kind, columns, record, offset)
    values.update(dict.fromkeys(absent))
    return make(kind=kind, **values)


def _decode_of_host(what: str, columns: tuple[_Column, ...], record: bytes) -> dict[str, Any]:
    """Decode a record that may name a virtual host. The names get full names."""
    values, offset = _read_columns(columns, record, 0)
    host = DEFAULT_HOST
    if offset < len(record) and record[offset] == len(record) - offset - 1:
        host, offset = _read_column(_HOST, record, offset)
        if host in ("", DEFAULT_HOST):
            raise BrokerRecordError(f"the virtual host of {what!r} is {host!r}, which is not stored")
    _check_end(what, record, offset)
    for name in _FULL_NAMES:
        if values.get(name):
            values[name] = full_name(host, values[name])
    return values


_FULL_NAMES: Final = ("name", "queue_name", "alternate_exchange")


def _decode(what: str, columns: tuple[_Column, ...], record: bytes, offset: int = 0) -> dict[str, Any]:
    values, offset = _read_columns(columns, record, offset)
    _check_end(what, record, offset)
    return values


def _read_columns(columns: tuple[_Column, ...], record: bytes, offset: int) -> tuple[dict[str, Any], int]:
    values: dict[str, Any] = {}
    for column in columns:
        if column.optional and offset == len(record):
            values[column.name] = None
            continue
        values[column.name], offset = _read_column(column, record, offset)
    return values, offset


def _check_end(what: str, record: bytes, offset: int) -> None:
    if offset != len(record):
        raise BrokerRecordError(f"{len(record) - offset} bytes follow the record of {what!r}", offset)


def _read_column(column: _Column, record: bytes, offset: int) -> tuple[Any, int]:
    try:
        return _READERS[column.type_name](record, offset)
    except Amqp010Error as error:
        raise BrokerRecordError(f"{column.name}: {error.what}", error.offset) from error


def _number_reader(type_name: str) -> Callable[[bytes, int], tuple[Any, int]]:
    wire_type = BY_NAME[type_name]
    return lambda record, offset: read_value(wire_type, record, offset, len(record))


def _name_reader(type_name: str) -> Callable[[bytes, int], tuple[Any, int]]:
    """Reads the same bytes as `type_name`, as text whether or not they are UTF-8."""
    wire_type = BY_NAME[type_name.replace("str", "vbin")]

    def read_name(record: bytes, offset: int) -> tuple[Any, int]:
        raw, end = read_value(wire_type, record, offset, len(record))
        return raw.decode("utf-8", "surrogateescape"), end

    return read_name


_READERS: Final[dict[str, Callable[[bytes, int], tuple[Any, int]]]] = {
    "str8": _name_reader("str8"),
    "str16": _name_reader("str16"),
    "flag": _number_reader("boolean"),
    "uint16": _number_reader("uint16"),
    "uint32": _number_reader("uint32"),
    "uint64": _number_reader("uint64"),
    "map": lambda record, offset: read_map(record, offset, len(record)),
}


# --------------------------------------------------------------------------------------------- encoding


def encode_queue(queue: Queue) -> bytes:
    """The record of a queue.

    Raises:
        BrokerRecordError: a value does not fit its field, or a field follows one that is absent.
    """
    return _encode_of_host(_QUEUE, queue, queue.name)


def encode_exchange(exchange: Exchange) -> bytes:
    """The record of an exchange. Raises as `encode_queue` does."""
    return _encode_of_host(_EXCHANGE, exchange, exchange.name)


def encode_binding(binding: Binding) -> bytes:
    """The record of a binding. Raises as `encode_queue` does."""
    return _encode_of_host(_BINDING, binding, binding.queue_name)


def encode_general(record: Link | Bridge | GeneralObject) -> bytes:
    """A record of the general database, its kind first. Raises as `encode_queue` does."""
    if isinstance(record, GeneralObject):
        if record.kind in _KINDS:
            raise BrokerRecordError(f"{with_article(record.kind)} is not a general object")
        return _encode((_KIND, *_GENERAL), record)
    make, columns, absent = _KINDS.get(record.kind, (None, (), ()))
    if make is not type(record):
        raise BrokerRecordError(f"{record.kind} is not a kind of {type(record).__name__}")
    for name in absent:
        if getattr(record, name) is not None:
            raise BrokerRecordError(f"{with_article(record.kind)} has no {name}")
    return _encode((_KIND, *columns), record)


def _encode_of_host(columns: tuple[_Column, ...], record: Queue | Exchange | Binding, full: str) -> bytes:
    """The record of an object with a full name."""
    if HOST_SEPARATOR not in full:
        return _encode(columns, record)
    host, _ = split_name(full)
    names = {name: split_name(getattr(record, name, None) or "") for name in _FULL_NAMES}
    for name, (of, local) in names.items():
        if local and of != host:
            raise BrokerRecordError(f"{name}: it is of virtual host {of!r}, and not {host!r}")
    local_names: dict[str, Any] = {}
    for name, (_, local) in names.items():
        if getattr(record, name, None) is not None:
            local_names[name] = local
    encoded = _encode(columns, replace(record, **local_names))
    if host == DEFAULT_HOST:
        return encoded
    if any(column.optional and getattr(record, column.name) is None for column in columns):
        raise BrokerRecordError("a record of a virtual host cannot lack fields")
    return encoded + _write_column(_HOST, host)


def _encode(columns: tuple[_Column, ...], record: object) -> bytes:
    parts: list[bytes] = []
    absent = ""
    for column in columns:
        value = getattr(record, column.name)
        if value is None and column.optional:
            absent = absent or column.name
            continue
        if absent:
            raise BrokerRecordError(f"{column.name} cannot follow {absent}, which is absent")
        parts.append(_write_column(column, value))
    return b"".join(parts)


def _write_column(column: _Column, value: Any) -> bytes:
    try:
        if column.type_name == "map":
            return encode_map(value)
        wire_type = BY_NAME["boolean" if column.type_name == "flag" else column.type_name]
        if isinstance(value, str):
            value = encode_name(value)
        return encode_value(wire_type, value)
    except Amqp010Error as error:
        raise BrokerRecordError(f"{column.name}: {error.what}") from error


# ---- configuration ----

CONFIGURATION_KINDS: Final = frozenset(
    f"qstore.{kind}"
    for kind in (
        "virtual-host", "policy", "operator-policy", "user", "permission", "topic-permission", "parameter",
        "global-parameter", "link", "bridge", "interlink", "replication-mark", "replication-key", "stream",
        "stream-consumer",
    )
)  # fmt: skip
"""The kinds of general objects that are configuration records."""

PARAMETER: Final = "qstore.parameter"
"""The kind of the parameters of components: virtual host, component and name."""

GLOBAL_PARAMETER: Final = "qstore.global-parameter"

REPLICATION_MARK: Final = "qstore.replication-mark"
"""The kind of the marks of replicated queues: record ids up to which all their events are on the disk."""

REPLICATION_KEY: Final = "qstore.replication-key"
"""The kind of the secret with which a broker recognizes its copies of replicated messages."""

LINK_KIND: Final = "qstore.link"
BRIDGE_KIND: Final = "qstore.bridge"
"""The kinds of those that say who has made a link, or a bridge, beside its own record."""

DOMAIN_KIND: Final = "domain"
"""The kind of qpidd's domains: other brokers or containers that links of AMQP 1.0 lead to."""

INTERLINK_KIND: Final = "qstore.interlink"
"""The kind of the links through domains."""

STREAM_KIND: Final = "qstore.stream"
"""The kind of those about streams: record ids with the offsets and times of their messages."""

STREAM_MARKS: Final = "marks"
"""The property with its marks (`decode_marks`)."""

STREAM_CONSUMER_KIND: Final = "qstore.stream-consumer"
"""The kind of the offsets of the consumers of a stream that have a name."""


class StreamMark(NamedTuple):
    """What is stored about a message of a stream: its record id, its offset, and milliseconds since 1970."""

    rid: int
    offset: int
    time: int


def encode_marks(marks: Iterable[StreamMark]) -> str:
    """Marks as text: `RID:OFFSET:TIME`, with spaces between them."""
    return " ".join(f"{mark.rid}:{mark.offset}:{mark.time}" for mark in marks)


def decode_marks(text: object) -> list[StreamMark]:
    """The marks in a text, by record id; those that are not valid are left out."""
    found: list[StreamMark] = []
    for each in text.split() if isinstance(text, str) else ():
        parts = each.split(":")
        if len(parts) == len(StreamMark._fields) and all(part.isascii() and part.isdecimal() for part in parts):
            mark = StreamMark(*map(int, parts))
            if not found or mark.rid > found[-1].rid:
                found.append(mark)
    return found


def marks_of(general: object) -> list[StreamMark]:
    """The marks of a stream that an object is about; none of any other object."""
    if not isinstance(general, GeneralObject) or general.kind != STREAM_KIND:
        return []
    typed = general.properties.get(STREAM_MARKS)
    return [] if typed is None else decode_marks(typed.value)


def with_record_ids(general: GeneralObject, renamed: Mapping[int, int]) -> GeneralObject:
    """The object about a stream whose messages have other record ids now.

    Args:
        general: the object.
        renamed: record id -> the new one; marks whose messages are not here are left out.
    """
    kept = [mark._replace(rid=renamed[mark.rid]) for mark in marks_of(general) if mark.rid in renamed]
    changed = TypedValue(STR16, encode_marks(kept))
    entries = tuple((name, changed if name == STREAM_MARKS else typed) for name, typed in general.properties.entries)
    return replace(general, properties=TypedMap(entries))


LOCAL_KINDS: Final = frozenset(
    (REPLICATION_MARK, REPLICATION_KEY, LINK_KIND, BRIDGE_KIND, INTERLINK_KIND, STREAM_KIND, STREAM_CONSUMER_KIND)
)
"""The kinds that have a meaning only in their own store: definitions do not have them."""

HOST_KIND: Final = "qstore.virtual-host"
"""The kind of those about virtual hosts; the first part of their name is the host's."""


def without_passwords(record: Link | Bridge | GeneralObject) -> Link | Bridge | GeneralObject:
    """The record without its password or key, and without those in AMQP URIs, as parameters of shovels have them."""
    if isinstance(record, Link):
        return replace(record, password="")
    if isinstance(record, GeneralObject) and record.kind == REPLICATION_KEY:
        return replace(record, properties=EMPTY_MAP)
    if isinstance(record, GeneralObject) and record.kind == DOMAIN_KIND:
        kept = tuple(entry for entry in record.properties.entries if entry[0] != "password")
        return replace(record, properties=TypedMap(kept))
    if isinstance(record, Bridge) or not any(_has_uri(typed) for _, typed in record.properties.entries):
        return record
    entries = tuple((name, _without_passwords(typed)) for name, typed in record.properties.entries)
    return replace(record, properties=replace(record.properties, entries=entries))


_URI_PASSWORD: Final = re.compile(r"(?i)(amqps?://[^/?#:]*):[^/?#]*@")


def _has_uri(typed: TypedValue) -> bool:
    return isinstance(typed.value, str) and "amqp" in typed.value.lower()


def _without_passwords(typed: TypedValue) -> TypedValue:
    if not _has_uri(typed):
        return typed
    assert isinstance(typed.value, str)
    try:
        value = json.loads(typed.value)
    except ValueError:
        value = None
    if not isinstance(value, dict | list):
        return typed._replace(value=_URI_PASSWORD.sub(r"\1@", typed.value))
    shown = _without_uri_passwords(value)
    return typed if shown == value else typed._replace(value=json.dumps(shown, separators=(",", ":")))


def _without_uri_passwords(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_uri_passwords(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_without_uri_passwords(entry) for entry in value]
    return _URI_PASSWORD.sub(r"\1@", value) if isinstance(value, str) else value


def names_a_host(record: Queue | Exchange | Link | Bridge | GeneralObject) -> bool:
    """Whether an object is of a virtual host other than the default one, or is about one."""
    if isinstance(record, Queue | Exchange):
        return split_name(record.name)[0] != DEFAULT_HOST
    if not isinstance(record, GeneralObject) or record.kind != HOST_KIND:
        return False
    try:
        name = json.loads(record.name)
    except ValueError:
        return False
    return isinstance(name, list) and name[:1] != [DEFAULT_HOST]


# ---- bindings between exchanges ----

EXCHANGE_BINDING_KIND: Final = "exchange-binding"


class ExchangeBinding(NamedTuple):
    """A binding of an exchange to another one: `destination` gets messages of `source`."""

    source: str
    destination: str
    key: str
    arguments: TypedMap = EMPTY_MAP


def exchange_binding_object(binding: ExchangeBinding) -> GeneralObject:
    """The general object for a binding.

    Raises:
        BrokerRecordError: its arguments cannot be encoded.
    """
    parts: list[object] = [binding.source, binding.destination, binding.key]
    if binding.arguments.entries:
        try:
            parts.append(extend_crc32c(0, encode_map(binding.arguments)))
        except Amqp010Error as error:
            raise BrokerRecordError(f"arguments: {error.what}") from error
    named = (("source", binding.source), ("destination", binding.destination), ("key", binding.key))
    entries = [(name, _typed(value)) for name, value in named]
    entries.append(("arguments", TypedValue(MAP, binding.arguments)))
    return GeneralObject(EXCHANGE_BINDING_KIND, json.dumps(parts), TypedMap(tuple(entries)))


def exchange_binding_of(record: Link | Bridge | GeneralObject) -> ExchangeBinding | None:
    """The binding that a general object represents; None if it is another object, or is not complete."""
    if not isinstance(record, GeneralObject) or record.kind != EXCHANGE_BINDING_KIND:
        return None
    found = {name: _text(record.properties.get(name)) for name in ("source", "destination", "key")}
    source, destination, key = found["source"], found["destination"], found["key"]
    if not source or not destination or key is None:
        return None
    typed = record.properties.get("arguments")
    arguments = typed.value if typed is not None and isinstance(typed.value, TypedMap) else EMPTY_MAP
    return ExchangeBinding(source, destination, key, arguments)


def _typed(name: str) -> TypedValue:
    raw = name.encode("utf-8", "surrogateescape")
    try:
        return TypedValue(STR16, raw.decode())
    except UnicodeDecodeError:
        return TypedValue(VBIN16, raw)


def _text(typed: TypedValue | None) -> str | None:
    if typed is None:
        return None
    value = typed.value
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return value if isinstance(value, str) else None
