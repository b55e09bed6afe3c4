"""The schema of a class, in the three forms in which agents tell it.

    QMF version 2, lists     `_properties` and `_methods` are lists of maps with `_name`: agents of qpid's library
    QMF version 2, maps      `_values` are maps by name, and `_subtypes` tells which are methods: the wiki
    QMF version 1            see `version_1`: qpidd's broker, which tells its schema in no other way


Sources: Qpid wiki, "QMFv2 Map Message Protocol"; qpid's library qmf2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from qstore.broker.management.console.errors import AnswerError
from qstore.broker.management.console.values import SchemaId, mapping, read_schema_id, text, texts

MAX_ELEMENTS: Final = 10_000
"""Properties, methods and arguments of a class."""

#: Access, by its number in version 1.
ACCESS: Final = {1: "RC", 2: "RW", 3: "RO"}


class Property(NamedTuple):
    """A property or statistic of a class, or an argument of an event.

    Attributes:
        name, type: its name, and its type in the words of the schema.
        access: RC, RW or RO; empty if it is not told.
        unit, description: for people; may be empty.
        is_index: whether it is a part of an object's name.
        is_optional: whether objects may lack it.
        is_statistic: whether it is counted; told by version 1, and by qstore's agent.
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
        properties: what its objects, or events, tell.
        methods: what its objects can do.
    """

    id: SchemaId
    properties: tuple[Property, ...]
    methods: tuple[Method, ...]


def read_schema(value: object) -> Schema:
    """A class as version 2 tells it. Raises AnswerError."""
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
