"""What `qpid-config` shows: the summary, queues, exchanges, their bindings, and objects of any class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import click

from qstore.broker.management.console import Console, Data, NoObjectError
from qstore.tools.configuration.options import EXCHANGE, QUEUE, attributes
from qstore.tools.console.tables import Column
from qstore.tools.management.amounts import reference, shown
from qstore.tools.management.listing import json_object, print_json, print_listing

_TYPES: Final = ("topic", "headers", "fanout", "direct", "xml")
_SUMMARY_WIDTH: Final = 15
_MOST_COLUMNS: Final = 6
_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    QUEUE: ("name", "durable", "autoDelete"),
    EXCHANGE: ("name", "type", "durable"),
    "binding": ("exchangeRef", "queueRef", "bindingKey", "msgMatched", "arguments"),
    "connection": ("address", "authIdentity", "remoteProcessName", "remotePid", "saslMechanism"),
    "session": ("name", "connectionRef", "channelId", "attached", "unackedMessages"),
    "subscription": ("name", "sessionRef", "queueRef", "browsing", "acknowledged", "delivered"),
    "broker": ("name", "version", "port", "uptime", "queueCount", "dataDir"),
    "link": ("name", "host", "port", "transport", "durable", "state"),
    "bridge": ("name", "linkRef", "src", "dest", "key", "durable"),
}


def show_summary(console: Console, *, is_json: bool) -> None:
    """How many exchanges and queues there are, and of which kinds."""
    exchanges = Counter(shown(each.get("type")) for each in console.query(EXCHANGE))
    queues = Counter(bool(each.get("durable")) for each in console.query(QUEUE))
    if is_json:
        counts = {"kind": "summary", "exchanges": dict(exchanges), "queues": queues.total()}
        print_json([counts | {"durable_queues": queues[True]}])
        return
    lines: list[tuple[str, object]] = [("Total Exchanges", exchanges.total())]
    lines += [(name, exchanges.pop(name)) for name in _TYPES if name in exchanges]
    lines += sorted(exchanges.items())
    lines += [("", ""), ("Total Queues", queues.total()), ("durable", queues[True]), ("non-durable", queues[False])]
    for name, count in lines:
        click.echo(f"{name:>{_SUMMARY_WIDTH}}: {count}" if name else "")


def show_queues(console: Console, name_filter: str, *, is_recursive: bool, hides_default: bool, is_json: bool) -> None:
    """Queues whose names have a part. Raises NoObjectError if there are none."""
    queues = [each for each in console.query(QUEUE) if name_filter in str(each.get("name"))]
    _check_found(queues, QUEUE, name_filter)
    if is_json or not is_recursive:
        _show(queues, QUEUE, ("Queue Name", "Attributes"), lambda _: (), is_json=is_json)
        return
    bindings = _bindings(console, "queueRef")
    for queue in queues:
        click.echo(f"Queue '{shown(queue.get('name'))}'")
        for binding in bindings.get(str(queue.get("name")), ()):
            exchange = reference(binding.get("exchangeRef"))
            if exchange or not hides_default:
                click.echo(_binding_line(binding, shown(exchange) or "''"))


def show_exchanges(
    console: Console, name_filter: str, *, is_recursive: bool, hides_default: bool, is_json: bool
) -> None:
    """Exchanges whose names have a part. Raises NoObjectError if there are none."""
    exchanges = [
        each
        for each in console.query(EXCHANGE)
        if name_filter in str(each.get("name")) and (each.get("name") or not hides_default)
    ]
    _check_found(exchanges, EXCHANGE, name_filter)
    if is_json or not is_recursive:
        titles = ("Type", "Exchange Name", "Attributes")
        _show(exchanges, EXCHANGE, titles, lambda data: (f"{shown(data.get('type')):<8}",), is_json=is_json)
        return
    bindings, onward = _bindings(console, "exchangeRef"), _bindings(console, "exchangeRef", "exchange_binding")
    for exchange in exchanges:
        click.echo(f"Exchange '{shown(exchange.get('name'))}' ({shown(exchange.get('type'))})")
        for binding in bindings.get(str(exchange.get("name")), ()):
            click.echo(_binding_line(binding, shown(reference(binding.get("queueRef")))))
        for binding in onward.get(str(exchange.get("name")), ()):
            click.echo(_binding_line(binding, f"exchange {shown(reference(binding.get('destinationRef')))}"))


def _check_found(objects: Sequence[Data], kind: str, name_filter: str) -> None:
    if name_filter and not objects:
        raise NoObjectError(f"no {kind} has {name_filter!r} in its name")


def _show(
    objects: Sequence[Data],
    kind: str,
    titles: Sequence[str],
    before: Callable[[Data], tuple[str, ...]],
    *,
    is_json: bool,
) -> None:
    if is_json:
        print_json(json_object(each) for each in objects)
        return
    rows = [(*before(each), shown(each.get("name")), " ".join(attributes(each, kind))) for each in objects]
    print_listing("", [Column(title, folds=True) for title in titles], rows, indent="", rule=13)


def _bindings(console: Console, by: str, kind: str = "binding") -> Mapping[str, list[Data]]:
    """The bindings of each object to which their property `by` refers."""
    found: dict[str, list[Data]] = {}
    for binding in console.query(kind):
        found.setdefault(reference(binding.get(by)), []).append(binding)
    return found


def _binding_line(binding: Data, other: str) -> str:
    arguments = binding.get("arguments")
    more = f" {shown(arguments)}" if arguments else ""
    return f"    bind [{shown(binding.get('bindingKey'))}] => {other}{more}"


def list_objects(console: Console, kind: str, names: Sequence[str], *, is_json: bool) -> None:
    """Objects of a class, with these properties or the usual ones. Raises NoObjectError if there is no such class."""
    objects = list(console.query(kind))
    if not objects and kind.lower() not in {each.name.lower() for each in console.classes() if not each.is_event}:
        raise NoObjectError(f"the broker has no class {kind}")
    if is_json:
        wanted = [json_object(each) for each in objects]
        print_json({name: each[name] for name in ("kind", "object", *names) if name in each} if names else each
                   for each in wanted)  # fmt: skip
    else:
        click.echo(f"Objects of type '{shown(kind)}'")
        if objects:
            _list(objects, names or _usual(kind, objects[0].values))


def _list(objects: Iterable[Data], names: Sequence[str]) -> None:
    rows = [tuple(shown(each[name]) if name in each.values else "n/a" for name in names) for each in objects]
    print_listing("", [Column(name, folds=True) for name in names], rows)


def _usual(kind: str, values: Mapping[str, Any]) -> Sequence[str]:
    """The properties that are shown if none are named: simple ones, a name first."""
    if kind.lower() in _COLUMNS:
        return _COLUMNS[kind.lower()]
    simple = [name for name, value in values.items() if not isinstance(value, (dict, list)) or name.endswith("Ref")]
    return sorted(simple, key=lambda name: name != "name")[:_MOST_COLUMNS]
