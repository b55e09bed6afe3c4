"""What a class of managed objects is: its properties, statistics and methods, and where its objects are.

A class is declared once, as a table whose rows say what each element is and how it is read:

    prop(NAME, TYPE, FLAGS, READ, DESCRIPTION, UNIT, REFERENCES)
    stat(NAME, TYPE, READ, DESCRIPTION, UNIT)
    method(NAME, DESCRIPTION, ARGUMENTS, CALL)
    arg(NAME, TYPE, DIRECTION, DESCRIPTION)

    FLAGS      RC read, set when the object is created; RO read; RW read and written
               index      a part of the object's name
               optional   objects may lack it: then its value is None
               parent, general   how it refers to another object (`parentRef`, `isGeneralReference`)
    DIRECTION  I argument; O result; IO both
    READ       from the view of an object (`ManagedClass.look`) to the value. A `Reference` for the type objId, a
               `Watermark` for hilo types, a `Samples` for mma types

The types are in `formats.qmf.v1.types`. Everything else (the schema for consoles of both versions, the values of
objects, tools) is derived from these tables. The hash of a class covers all that a console is told of it.

Source: the QMF schemas of qpidd; a test holds the tables against them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from qstore.broker.model.watermark import Watermark
from qstore.formats.qmf.v1.types import expanded, text_bytes, typed
from qstore.formats.values import MAP, STR16, TypedMap, TypedValue

if TYPE_CHECKING:
    from qstore.broker.model.caller import Caller

_MAX_TEXT: Final = 0xFFFF

Read: TypeAlias = Callable[[Any], Any]
Arguments: TypeAlias = Mapping[str, Any]
Results: TypeAlias = dict[str, Any]
Managed: TypeAlias = Any
"""A `ManagedBroker`, which knows the classes."""
Call: TypeAlias = "Callable[[Managed, Any, Arguments, Caller], Awaitable[Results]]"
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


def table(methods: Iterable[Method]) -> Mapping[str, Method]:
    """The methods by name."""
    return {each.name: each for each in methods}


def always(value: Any) -> Read:
    """Reads a value that is always the same."""
    return lambda _: value


def level(read: Read) -> Read:
    """Reads a number whose highest and lowest values are not recorded: they are those of now."""
    return lambda view: Watermark(read(view))


def _no_objects(_broker: Managed) -> Iterable[tuple[str, Any]]:
    return ()


def _itself(target: Any) -> Any:
    return target


def _zero(_target: Any) -> int:
    return 0


@dataclass(frozen=True, slots=True, eq=False)
class ManagedClass:
    """A class of managed objects.

    Attributes:
        package, name: what it is called.
        properties, statistics, methods: its tables; the statistics are the expanded ones.
        objects: its objects now, as key and target. They may come and go between one and the next.
        find: the target with a key; None if there is none.
        look: from a target to the view that the tables read.
        stored_id: the number of an object that is there again after a restart; 0 for others.
        created: when an object was created, in seconds since 1970; 0 if that is not known.
        prepare: what is done in turns before objects are looked at; None for nothing.
        seen_by: for a caller, tells whether that user may see an object; None if all may. If it is given, objects are
            not published unasked where there are access rules.
        declared: the statistics as they are declared, in one row each.
    """

    package: str
    name: str
    properties: tuple[Property, ...]
    declared: tuple[Statistic, ...] = ()
    methods: Mapping[str, Method] = field(default_factory=dict)
    objects: Callable[[Managed], Iterable[tuple[str, Any]]] = _no_objects
    find: Callable[[Managed, str], Any] | None = None
    look: Callable[[Any], Any] = _itself
    stored_id: Callable[[Any], int] = _zero
    created: Callable[[Any], float] = _zero
    prepare: Callable[[Managed], Awaitable[None]] | None = None
    seen_by: Callable[[Managed, Caller], Callable[[Any], bool]] | None = None
    statistics: tuple[Statistic, ...] = field(init=False)
    hash: UUID = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "statistics", tuple(each for row in self.declared for each in _expand(row)))
        object.__setattr__(self, "hash", _hash(self))

    @property
    def prefix(self) -> str:
        """What the names of its objects begin with."""
        return f"{self.package}:{self.name}:"

    def target(self, broker: Managed, key: str) -> Any:
        """The target with a key; None if there is none."""
        if self.find is not None:
            return self.find(broker, key)
        return next((target for own, target in self.objects(broker) if own == key), None)

    def values(self, target: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The values of all properties and of all statistics now, in the order of the tables."""
        view = self.look(target)
        return (
            tuple([each.read(view) for each in self.properties]),
            tuple([each.read(view) for each in self.statistics]),
        )

    def map_of(self, properties: Iterable[Any], statistics: Iterable[Any]) -> dict[str, TypedValue]:
        """Values by name, as a map of version 2 carries them; without those that the object does not have."""
        found = {
            row.name: carried(row.type, value)
            for row, value in zip(self.properties, properties, strict=True)
            if value is not None
        }
        for counted, value in zip(self.statistics, statistics, strict=True):
            if value is not None:
                found[counted.name] = carried(counted.type, value)
        return found


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


def _hash(of: ManagedClass) -> UUID:
    """From all that a console is told."""
    told: list[Any] = [of.package, of.name]
    told += [(each.name, each.type, each.flags, each.unit, each.references) for each in of.properties]
    told += [(each.name, each.type, each.unit) for each in of.statistics]
    for called in of.methods.values():
        told.append((called.name, *((each.name, each.type, each.direction) for each in called.arguments)))
    return UUID(bytes=hashlib.md5(repr(told).encode(), usedforsecurity=False).digest())
