"""A class of managed objects: its properties, statistics and methods as data, and where its objects are.

A class is declared once, as a table whose rows say what each element is and how it is read:

    prop(NAME, TYPE, FLAGS, READ, DESCRIPTION, UNIT, REFERENCES)
    stat(NAME, TYPE, READ, DESCRIPTION, UNIT)
    method(NAME, DESCRIPTION, ARGUMENTS, CALL)
    arg(NAME, TYPE, DIRECTION, DESCRIPTION)

    FLAGS      RC read, set when the object is created; RO read; RW read and written
               index      part of the object's name
               optional   objects may lack it: the value is then None
               parent, general   how it refers to another object (`parentRef`, `isGeneralReference`)
    DIRECTION  I argument; O result; IO both
    READ       from the view of an object (`ManagedClass.look`) to the value. A `Reference` for the type objId, a
               `Watermark` for hilo types, a `Samples` for mma types
    CALL       the operation: a coroutine function of the broker, the object, the arguments and the caller

The types are in `formats.qmf.v1`. Everything else (the schema for consoles of both versions, the values of
objects, tools) is derived from these tables. The hash of a class covers everything that its schema contains.

An object's name is `PACKAGE:CLASS:KEY`; the names of classes that others refer to, and the keys of single objects, are
here as well, so that the tables of classes need not import each other.

Sources: the QMF schemas of qpidd, which a test holds the tables against; names as its code generator makes them
(managementgen, schema.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import UUID

from qstore.broker.model.counters import Watermark
from qstore.broker.model.errors import NotImplementedByBrokerError
from qstore.broker.security.acl.control import control_of
from qstore.formats.broker_records.topology import DEFAULT_HOST, split_name
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.qmf.v1 import expanded, text_bytes, typed
from qstore.formats.values import MAP, STR16, TypedMap, TypedValue

if TYPE_CHECKING:
    from qstore.broker.management.managed_broker import ManagedBroker
    from qstore.broker.management.request import Arguments
    from qstore.broker.model.caller import Caller

_MAX_TEXT: Final = 0xFFFF

Read: TypeAlias = Callable[[Any], Any]
Results: TypeAlias = dict[str, Any]
Call: TypeAlias = "Callable[[ManagedBroker, Any, Arguments, Caller], Awaitable[Results]]"
"""Carries out a method on an object. Raises ModelError."""


class Reference(NamedTuple):
    """Another object, by its name."""

    name: str


class Samples(NamedTuple):
    """The value of an mma type."""

    number: int = 0
    low: int = 0
    high: int = 0
    average: int = 0


# ---- the rows of the tables ----


class Property(NamedTuple):
    """A property. See the module's table for the fields."""

    name: str
    type: str
    flags: tuple[str, ...]
    read: Read
    description: str
    unit: str
    references: str

    @property
    def access(self) -> str:
        """RC, RO or RW."""
        return self.flags[0]

    @property
    def is_index(self) -> bool:
        """Whether it is a part of an object's name."""
        return "index" in self.flags

    @property
    def is_optional(self) -> bool:
        """Whether objects may lack it."""
        return "optional" in self.flags


class Statistic(NamedTuple):
    """A statistic."""

    name: str
    type: str
    read: Read
    description: str
    unit: str


class Argument(NamedTuple):
    """An argument of a method; or of an event, whose direction is empty."""

    name: str
    type: str
    direction: str = ""
    description: str = ""


class Method(NamedTuple):
    """A method."""

    name: str
    description: str
    arguments: tuple[Argument, ...]
    call: Call


def prop(
    name: str, kind: str, flags: str, read: Read, description: str = "", unit: str = "", references: str = ""
) -> Property:
    """A row of the table of properties."""
    return Property(name, kind, tuple(flags.split()), read, description, unit, references)


def stat(name: str, kind: str, read: Read, description: str = "", unit: str = "") -> Statistic:
    """A row of the table of statistics."""
    return Statistic(name, kind, read, description, unit)


def method(name: str, description: str, arguments: Iterable[Argument], call: Call) -> Method:
    """A row of the table of methods."""
    return Method(name, description, tuple(arguments), call)


def arg(name: str, kind: str, direction: str, description: str = "") -> Argument:
    """A row of the table of a method's arguments."""
    return Argument(name, kind, direction, description)


def always(value: Any) -> Read:
    """Reads a value that is always the same."""
    return lambda _: value


def level(read: Read) -> Read:
    """Reads a number whose highest and lowest values are not recorded: they are those of now."""
    return lambda view: Watermark(read(view))


def not_available(reason: str) -> Call:
    """An operation that is refused with this reason: a method of qpidd's schema that this broker cannot carry out."""

    async def refuse(_managed: ManagedBroker, _target: Any, _arguments: Arguments, _caller: Caller) -> Results:
        raise NotImplementedByBrokerError(reason)

    return refuse


# ---- classes ----


class ClassName(NamedTuple):
    """The name of a class."""

    package: str
    name: str

    def name_of(self, key: str) -> str:
        """The name of an object."""
        return f"{self.package}:{self.name}:{key}"

    def reference(self, key: str) -> Reference:
        """A reference to an object."""
        return Reference(f"{self.package}:{self.name}:{key}")


class ManagedClass:
    """A class of managed objects.

    Args:
        name: its package and name.
        properties, statistics, methods: its tables.
        objects: returns its current objects as key and target. They may come and go during the iteration.
        find: returns the target with a key, or None; if omitted, `objects` is searched.
        look: from a target to the view that the tables read.
        stored_id: the number of an object that is there again after a restart; 0 for others.
        created: when an object was created, in seconds since 1970; 0 if unknown.
        prepare: work to do before objects are looked at, in time slices.
        seen_by: returns, for a caller, whether that user may see an object; None if all may. If it is given, objects
            are published only on request where there are access rules.
        belongs: returns the virtual host of an object, and the user whose client it is or belongs to, empty for none:
            permissions decide who sees it. None for objects that belong to no virtual host.

    Attributes:
        package, name, properties, objects, look, stored_id, created, prepare: as above.
        declared: the statistics as they are declared, one row each.
        statistics: the statistics as consoles get them: a `hilo` or `mma` row makes several.
        methods: by name.
        hash: identifies the schema.
    """

    __slots__ = (
        "_belongs", "_find", "_seen_by", "created", "declared", "hash", "look", "methods", "name", "objects",
        "package", "prepare", "properties", "statistics", "stored_id",
    )  # fmt: skip

    def __init__(
        self,
        name: ClassName,
        *,
        properties: tuple[Property, ...],
        statistics: tuple[Statistic, ...] = (),
        methods: tuple[Method, ...] = (),
        objects: Callable[[ManagedBroker], Iterable[tuple[str, Any]]] = lambda _broker: (),
        find: Callable[[ManagedBroker, str], Any] | None = None,
        look: Callable[[Any], Any] = lambda target: target,
        stored_id: Callable[[Any], int] = lambda _target: 0,
        created: Callable[[Any], float] = lambda _target: 0,
        prepare: Callable[[ManagedBroker], Awaitable[None]] | None = None,
        seen_by: Callable[[ManagedBroker, Caller], Callable[[Any], bool]] | None = None,
        belongs: Callable[[Any], tuple[str, str]] | None = None,
    ) -> None:
        self.package, self.name = name
        self.properties, self.declared = properties, statistics
        self.statistics = tuple(each for row in statistics for each in _expand(row))
        self.methods: Mapping[str, Method] = {each.name: each for each in methods}
        self.objects, self._find, self.look = objects, find, look
        self.stored_id, self.created, self.prepare = stored_id, created, prepare
        self._seen_by, self._belongs = seen_by, belongs
        self.hash = self._hash()

    def _hash(self) -> UUID:
        schema: list[Any] = [self.package, self.name]
        schema += [(each.name, each.type, each.flags, each.unit, each.references) for each in self.properties]
        schema += [(each.name, each.type, each.unit) for each in self.statistics]
        for each in self.methods.values():
            schema.append((each.name, *((one.name, one.type, one.direction) for one in each.arguments)))
        return UUID(bytes=hashlib.md5(repr(schema).encode(), usedforsecurity=False).digest())

    @property
    def prefix(self) -> str:
        """The prefix of the names of its objects."""
        return f"{self.package}:{self.name}:"

    def target(self, broker: ManagedBroker, key: str) -> Any:
        """The target with a key, or None."""
        if self._find is not None:
            return self._find(broker, key)
        return next((target for own, target in self.objects(broker) if own == key), None)

    @property
    def is_published_on_request(self) -> bool:
        """Whether objects are published only on request where there are access rules."""
        return self._seen_by is not None

    def sight(self, managed: ManagedBroker, caller: Caller) -> Callable[[Any], bool] | None:
        """Whether a caller may see an object of this class; None if it may see all."""
        if self._seen_by is not None:
            return self._seen_by(managed, caller)
        control, belongs = control_of(managed.broker), self._belongs
        sees = None if control is None or belongs is None else control.sight(caller)
        if sees is None or belongs is None:
            return None
        return lambda target: sees(*belongs(target))

    def is_seen_by(self, managed: ManagedBroker, caller: Caller, target: Any) -> bool:
        """Whether a caller may see an object of this class."""
        sees = self.sight(managed, caller)
        return sees is None or sees(target)

    def values(self, target: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The current values of all properties and of all statistics, in the order of the tables."""
        view = self.look(target)
        return (
            tuple([each.read(view) for each in self.properties]),
            tuple([each.read(view) for each in self.statistics]),
        )

    def map_of(self, properties: Iterable[Any], statistics: Iterable[Any]) -> dict[str, TypedValue]:
        """Values by name, as a map of version 2 carries them; properties that the object lacks are left out."""
        found = {
            row.name: carried(row.type, value)
            for row, value in zip(self.properties, properties, strict=True)
            if value is not None
        }
        for counted, value in zip(self.statistics, statistics, strict=True):
            if value is not None:
                found[counted.name] = carried(counted.type, value)
        return found


def _expand(row: Statistic) -> Iterable[Statistic]:
    parts = list(expanded(row.name, row.type))
    if len(parts) == 1:
        return (row._replace(type=parts[0][2]),)
    return [
        Statistic(name, kind, _part(row.read, suffix), _described(row.description, suffix), row.unit)
        for suffix, name, kind in parts
    ]


_PARTS: Final = {"": "value", "High": "high", "Low": "low", "Samples": "number", "Min": "low", "Max": "high"}


def _part(read: Read, suffix: str) -> Read:
    attribute = _PARTS.get(suffix, "average")
    return lambda view: getattr(read(view), attribute)


def _described(description: str, suffix: str) -> str:
    return f"{description} ({suffix})" if description and suffix else description


def carried(kind: str, value: Any) -> TypedValue:
    """A value as a map of version 2 carries it: a reference as a map, text that is not too long."""
    if value.__class__ is int:
        return typed(kind, value)
    if isinstance(value, Reference):
        return TypedValue(MAP, TypedMap((("_object_name", TypedValue(STR16, _text(value.name))),)))
    if isinstance(value, str):
        return TypedValue(STR16, _text(value))
    return typed(kind, value)


def _text(value: str) -> str:
    return (
        value
        if value.isascii() and len(value) <= _MAX_TEXT
        else text_bytes(value, _MAX_TEXT).decode("utf-8", "replace")
    )


def shown_name(full: str) -> str:
    """A full name as objects show it: `host/name`, or the name alone for the default virtual host."""
    host, name = split_name(full)
    return name if host == DEFAULT_HOST else f"{host}/{name}"


# ---- names ----

PACKAGE: Final = "org.apache.qpid.broker"
BROKER_NAME: Final = "amqp-broker"
AGENT: Final = ClassName(PACKAGE, "agent")
BINDING: Final = ClassName(PACKAGE, "binding")
BROKER: Final = ClassName(PACKAGE, "broker")
CONNECTION: Final = ClassName(PACKAGE, "connection")
EXCHANGE: Final = ClassName(PACKAGE, "exchange")
JOURNAL: Final = ClassName("org.apache.qpid.legacystore", "journal")
MEMORY: Final = ClassName(PACKAGE, "memory")
QUEUE: Final = ClassName(PACKAGE, "queue")
SESSION: Final = ClassName(PACKAGE, "session")
SUBSCRIPTION: Final = ClassName(PACKAGE, "subscription")
SYSTEM: Final = ClassName(PACKAGE, "system")
VHOST: Final = ClassName(PACKAGE, "vhost")


def vhost_key(host: str) -> str:
    """The key of a virtual host among all objects of the class."""
    return f"{BROKER.name_of(BROKER_NAME)},{host}"


def vhost_reference(host: str) -> Reference:
    """The reference to a virtual host."""
    return VHOST.reference(vhost_key(host))


BROKER_REFERENCE: Final = prop(
    "brokerRef", "objId", "RO index parent", always(BROKER.reference(BROKER_NAME)), "", "", f"{PACKAGE}:Broker"
)
"""The row of the broker in classes of other packages of which each broker has one object."""
