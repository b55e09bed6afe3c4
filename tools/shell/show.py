"""Objects, schemas and agents as text, in the format of qpid-tool."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import click

from qstore.broker.management.console import AgentInfo, Data, ObjectId, Schema, SchemaId
from qstore.tools.console.tables import Column
from qstore.tools.management.amounts import clock, plain, reference, shown
from qstore.tools.management.listing import print_listing
from qstore.tools.shell.identities import Identities

_INDENT: Final = "    "
_RULE: Final = 0
_TYPES: Final[Mapping[str, str]] = {
    "sstr": "short-string", "lstr": "long-string", "objId": "reference", "bool": "boolean", "deltaTime": "delta-time",
    "absTime": "abs-time", "count32": "uint32", "count64": "uint64", "map": "field-table", "string": "long-string",
}  # fmt: skip
_ACCESS: Final = {"RC": "ReadCreate", "RW": "ReadWrite", "RO": "ReadOnly"}


def _table(title: str, titles: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Collection[str] = ()) -> None:
    last = titles[-1]
    columns = [Column(each, folds=each == last and each not in numbers, number=each in numbers) for each in titles]
    print_listing(title, columns, rows, indent=_INDENT, rule=_RULE)


def show_summary(counts: Mapping[tuple[str, str], tuple[int, int]]) -> None:
    """Active and deleted objects of each package and class."""
    rows = [(*map(shown, name), f"{active:,}", f"{deleted:,}") for name, (active, deleted) in sorted(counts.items())]
    numbers = ("Active", "Deleted")
    _table("Summary of Objects by Type:", ("Package", "Class", *numbers), rows, numbers=numbers)


def show_objects(objects: Iterable[Data], numbers: Identities, *, is_long: bool) -> None:
    """The numbers of objects, when they were created and destroyed, and their names."""
    rows = [
        (
            str(numbers.number(identity_of(each))),
            clock(each.created, is_long=is_long),
            clock(each.deleted, is_long=is_long),
            shown(each.key),
        )
        for each in objects
    ]
    _table("Object Summary:", ("ID", "Created", "Destroyed", "Index"), rows, numbers=("ID",))


def show_contents(data: Data, schema: Schema | None, numbers: Identities, *, is_long: bool) -> None:
    """All that an object tells."""
    known = {} if schema is None else {each.name: each for each in schema.properties}
    rows = []
    for name, value in data.values.items():
        described = known.get(name)
        kind = "" if described is None else "inst" if described.is_statistic else "config"
        unit = "" if described is None or isinstance(value, (bool, str)) else shown(described.unit)
        plural = "s" if unit.isalpha() and value != 1 else ""
        rows.append((kind, shown(name), f"{_cell(value, numbers)} {unit}{plural}".rstrip()))
    package = "" if data.schema_id is None else f"{shown(data.schema_id.package)}:"
    time = clock(data.updated, is_long=is_long)
    number = str(numbers.number(identity_of(data)))
    _table(
        f"Object of type {package}{shown(data.class_name)}: (last sample time: {time})",
        ("Type", "Element", number),
        rows,
    )


def _cell(value: Any, numbers: Identities) -> str:
    """A value; a reference as the number of its object, if it has one, and its key."""
    key = reference(value)
    if not key:
        return shown(value)
    known = next((number for number, each in numbers.items() if each.name == value["_object_name"]), None)
    return shown(key) if known is None else f"{known} ({shown(key)})"


def show_identities(numbers: Identities) -> None:
    """Which number is which object."""
    rows = [(str(number), shown(each.name)) for number, each in numbers.items()]
    _table("Translation of Display IDs:", ("ID", "Object"), rows, numbers=("ID",))


def show_agents(agents: Sequence[AgentInfo], chosen: str | None, *, is_long: bool) -> None:
    """The agents; the one that is asked has a mark."""
    rows = [
        (
            "*" if each.name == chosen else "",
            str(index),
            shown(each.name),
            str(each.epoch),
            clock(each.timestamp, is_long=is_long),
        )
        for index, each in enumerate(agents, 1)
    ]
    _table("QMF Agents:", ("", "Number", "Name", "Epoch", "Seen"), rows, numbers=("Number", "Epoch"))


def show_classes(classes: Iterable[SchemaId]) -> None:
    """The classes of objects and of events, by package."""
    rows = [
        (shown(each.package), shown(each.name), "event" if each.is_event else "data", str(each.hash or ""))
        for each in sorted(classes, key=lambda each: (each.package, each.is_event, each.name))
    ]
    _table("QMF Classes:", ("Package", "Class", "Kind", "Hash"), rows)


def show_schema(schema: Schema) -> None:
    """A class: what its objects tell, and its methods."""
    rows = []
    for each in schema.properties:
        notes = [word for word, is_so in (("index", each.is_index), ("optional", each.is_optional)) if is_so]
        access = _ACCESS.get(each.access, each.access)
        cells = (each.name, _TYPES.get(each.type, each.type), each.unit, access, " ".join(notes), each.description)
        rows.append([shown(cell) for cell in cells])
    titles = ("Element", "Type", "Unit", "Access", "Notes", "Description")
    _table(f"Schema for class '{shown(schema.id.name)}':", titles, rows)
    for method in schema.methods:
        click.echo()
        title = f"Method '{shown(method.name)}' {shown(method.description)}".rstrip()
        if not method.arguments:
            click.echo(title)
            continue
        described = [
            [shown(cell) for cell in (each.name, _TYPES.get(each.type, each.type), each.direction, each.description)]
            for each in method.arguments
        ]
        _table(title, ("Argument", "Type", "Direction", "Description"), described)


def show_result(method: str, results: Mapping[str, Any]) -> None:
    """What a method has returned."""
    click.echo(f"OK: {shown(method)}")
    for name, value in results.items():
        click.echo(f"{_INDENT}{shown(name)} = {shown(value)}")


def schema_json(schema: Schema) -> dict[str, Any]:
    """A class as JSON."""
    return {
        "kind": "schema",
        "package": schema.id.package,
        "class": schema.id.name,
        "is_event": schema.id.is_event,
        "hash": None if schema.id.hash is None else str(schema.id.hash),
        "properties": [each._asdict() for each in schema.properties],
        "methods": [
            {"name": each.name, "description": each.description, "arguments": [one._asdict() for one in each.arguments]}
            for each in schema.methods
        ],
    }


def agent_json(agent: AgentInfo) -> dict[str, Any]:
    """An agent as JSON."""
    return {
        "kind": "agent",
        "name": agent.name,
        "vendor": agent.vendor,
        "product": agent.product,
        "instance": agent.instance,
        "epoch": agent.epoch,
        "attributes": plain(agent.attributes),
    }


def identity_of(data: Data) -> ObjectId:
    """The identity of an object; an empty one for values that are no object."""
    return data.object_id or ObjectId("")
