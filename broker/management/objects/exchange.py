"""The classes exchange and binding; and this broker's own: exchange_binding, and routing, which tries it out.

Source: the QMF schema of qpidd's broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter as of
from typing import TYPE_CHECKING, Final

from qstore.broker.management.schema import (
    BINDING,
    BROKER,
    BROKER_NAME,
    BROKER_REFERENCE,
    EXCHANGE,
    QUEUE,
    ClassName,
    ManagedClass,
    always,
    arg,
    method,
    prop,
    shown_name,
    stat,
    vhost_reference,
)
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.caller import in_host
from qstore.broker.model.counters import Watermark
from qstore.broker.model.errors import InvalidArgumentError, NotFoundError, UnauthorizedError
from qstore.broker.model.message import NewMessage
from qstore.formats.broker_records.topology import DEFAULT_HOST, split_name
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.plain import plain_map

if TYPE_CHECKING:
    from qstore.broker.management.managed_broker import ManagedBroker
    from qstore.broker.management.request import Arguments
    from qstore.broker.management.schema import Reference, Results
    from qstore.broker.model.broker import Broker
    from qstore.broker.model.caller import Caller
    from qstore.broker.model.exchanges.exchange import Exchange, ExchangeBinding
    from qstore.broker.model.exchanges.route import Binding, RoutedCounts
    from qstore.broker.model.queues.queue import Queue


# ---- exchange ----


class _View(NamedTuple):
    """An exchange and its counters."""

    exchange: Exchange
    counts: RoutedCounts


def _look(exchange: Exchange) -> _View:
    return _View(exchange, exchange.counts)


def _alternate(view: _View) -> Reference | None:
    alternate = view.exchange.alternate
    return None if alternate is None else EXCHANGE.reference(alternate.full_name)


def _exchanges(managed: ManagedBroker) -> Iterable[tuple[str, Exchange]]:
    return [(exchange.full_name, exchange) for exchange in all_exchanges(managed)]


def all_exchanges(managed: ManagedBroker) -> list[Exchange]:
    """The exchanges of all virtual hosts."""
    return [exchange for host in managed.broker.hosts.values() for exchange in host.exchanges.values()]


def _find_exchange(managed: ManagedBroker, key: str) -> Exchange | None:
    host, name = split_name(key)
    found = managed.broker.hosts.get(host)
    return None if found is None else found.exchanges.get(name)


def _stored_id(exchange: Exchange) -> int:
    return exchange.store_id or 0


# fmt: off
EXCHANGE_CLASS: Final = ManagedClass(
    EXCHANGE,
    properties=(
        prop("vhostRef", "objId", "RC index parent", lambda view: vhost_reference(view.exchange.host), "", "", "Vhost"),
        prop("name", "sstr", "RC index", lambda view: shown_name(view.exchange.full_name)),
        prop("type", "sstr", "RO", of("exchange.type_name")),
        prop("durable", "bool", "RO", of("exchange.durable")),
        prop("autoDelete", "bool", "RO", of("exchange.auto_delete")),
        prop("altExchange", "objId", "RO optional", _alternate, "", "", "Exchange"),
        prop("arguments", "map", "RO", of("exchange.arguments"), "Arguments supplied in exchange.declare"),
    ),
    statistics=(
        stat("producerCount", "hilo32", always(Watermark()), "Unused"),
        stat("bindingCount", "hilo32", of("exchange.binding_count"), "Current bindings"),
        stat("msgReceives", "count64", of("counts.messages_received"), "Total messages received"),
        stat("msgDrops", "count64", of("counts.messages_dropped"), "Total messages dropped (no matching key)"),
        stat("msgRoutes", "count64", of("counts.messages_routed"), "Total routed messages"),
        stat("byteReceives", "count64", of("counts.bytes_received"), "Total bytes received"),
        stat("byteDrops", "count64", of("counts.bytes_dropped"), "Total bytes dropped (no matching key)"),
        stat("byteRoutes", "count64", of("counts.bytes_routed"), "Total routed bytes"),
    ),
    objects=_exchanges, find=_find_exchange, look=_look, stored_id=_stored_id,
    belongs=lambda exchange: (exchange.host, ""),
)
# fmt: on


# ---- binding ----


class _Bound(NamedTuple):
    """A binding, and its exchange."""

    exchange: Exchange
    binding: Binding

    @property
    def key(self) -> str:
        """Its key among all objects of the class."""
        names = EXCHANGE.name_of(self.exchange.full_name), QUEUE.name_of(self.binding.queue.full_name), self.binding.key
        return ",".join(names)


def _bindings_of(managed: ManagedBroker, exchange: Exchange) -> Iterable[Binding]:
    if exchange.name:
        return list(exchange.bindings)
    names = list(managed.broker.hosts[exchange.host].queues)
    routes = (exchange.routes.get(name) or exchange.match(name) for name in names)
    return (binding for route in routes for binding in route.bindings)


def _bindings(managed: ManagedBroker) -> Iterator[tuple[str, _Bound]]:
    for exchange in all_exchanges(managed):
        for binding in _bindings_of(managed, exchange):
            bound = _Bound(exchange, binding)
            yield bound.key, bound


def _find_binding(managed: ManagedBroker, key: str) -> _Bound | None:
    """The binding with a key, without a look at all others. Names may contain what separates the parts of the key."""
    begin, queue = EXCHANGE.name_of(""), f",{QUEUE.name_of('')}"
    if not key.startswith(begin):
        return None
    for at in _places(queue, key, len(begin)):
        exchange = _find_exchange(managed, key[len(begin) : at])
        if exchange is None:
            continue
        queues, rest = managed.broker.hosts[exchange.host].queues, key[at + len(queue) :]
        for comma in _places(",", rest):
            host, name = split_name(rest[:comma])
            found = queues.get(name) if host == exchange.host else None
            binding = None if found is None else _binding_of(exchange, found, rest[comma + 1 :])
            if binding is not None:
                return _Bound(exchange, binding)
    return None


def _places(part: str, text: str, begin: int = 0) -> Iterator[int]:
    """Where a part occurs in a text."""
    at = text.find(part, begin)
    while at >= 0:
        yield at
        at = text.find(part, at + 1)


def _binding_of(exchange: Exchange, queue: Queue, key: str) -> Binding | None:
    if exchange.name:
        return exchange.find_binding(queue, key)
    route = exchange.routes.get(key) or exchange.match(key)
    return next((each for each in route.bindings if each.queue is queue and each.key == key), None)


# fmt: off
BINDING_CLASS: Final = ManagedClass(
    BINDING,
    properties=(
        prop("exchangeRef", "objId", "RC index parent", lambda bound: EXCHANGE.reference(bound.exchange.full_name),
             "", "", "Exchange"),
        prop("queueRef", "objId", "RC index", lambda bound: QUEUE.reference(bound.binding.queue.full_name), "", "",
             "Queue"),
        prop("bindingKey", "lstr", "RC index", of("binding.key")),
        prop("arguments", "map", "RC", of("binding.arguments")),
        prop("origin", "sstr", "RO optional", always(None)),
    ),
    statistics=(
        stat("msgMatched", "count64", of("binding.messages_matched")),
    ),
    objects=_bindings, find=_find_binding, belongs=lambda bound: (bound.exchange.host, ""),
)
# fmt: on


# ---- routing ----

MAX_NAMED: Final = 1_000
"""Queues that an answer names."""

CHECKED_AT_ONCE: Final = 100
"""Queues that are asked whether they accept a message between two looks at the clock."""


async def dry_run(managed: ManagedBroker, _broker: Broker, arguments: Arguments, caller: Caller) -> Results:
    """Find the queues that would get a message. The caller needs the permission to publish it.

    They are named for those who may ask for queues; others get their number.

    Source: OpenAMQ, amq_vhost_publish without its publish option.
    """
    host = managed.broker.hosts.get(arguments.text("vhost") or DEFAULT_HOST)
    if host is None:
        raise NotFoundError(f"Virtual host not found: {arguments.text('vhost')}")
    name, key = arguments.text("exchange"), arguments.text("routingKey")
    authorization = managed.broker.authorization
    authorization.check_publish(in_host(caller, host.name), name, key)
    exchange = host.exchanges.get(name)
    if exchange is None:
        raise NotFoundError(f"Exchange not found: {name}")
    content = arguments.get("content", b"")
    content = content.encode() if isinstance(content, str) else content
    if not isinstance(content, bytes):
        raise InvalidArgumentError("the argument content must be a string")
    message = managed.make_message(NewMessage(key, arguments.typed_map("headers"), content=content, exchange=name))
    names: list[str] = []
    for at, queue in enumerate(managed.broker.router.destinations(message, exchange)):
        if at % CHECKED_AT_ONCE == 0 and managed.slices.is_over:
            await managed.slices.next()
        if not queue.is_deleted and queue.admits(message):
            names.append(queue.name)
    try:
        authorization.check(caller, Action.ACCESS, ObjectType.QUERY, "", schemaclass="queue")
    except UnauthorizedError:
        return {"recipients": len(names), "queues": []}
    return {"recipients": len(names), "queues": names[:MAX_NAMED]}


def _routing(managed: ManagedBroker) -> Iterable[tuple[str, Broker]]:
    return ((BROKER.name_of(BROKER_NAME), managed.broker),)


# fmt: off
ROUTING_CLASS: Final = ManagedClass(
    ClassName("qstore", "routing"),
    properties=(
        BROKER_REFERENCE,
    ),
    statistics=(
        stat("unroutable", "count64", of("router.unroutable"), "Messages that no queue has got", "message"),
    ),
    methods=(
        method("dryRun", "Find the queues that would get a message; nothing is published", (
            arg("vhost", "sstr", "I", "The virtual host; empty for the default one"),
            arg("exchange", "sstr", "I", "The exchange; empty for the default one"),
            arg("routingKey", "lstr", "I", "The routing key"),
            arg("headers", "map", "I", "Application headers"),
            arg("content", "lstr", "I", "The content"),
            arg("recipients", "uint32", "O", "The number of queues"),
            arg("queues", "list", "O", "Their names, of at most 1,000; none for a caller that may not query queues"),
        ), dry_run),
    ),
    objects=_routing,
)
# fmt: on


# ---- exchange_binding ----


def _onward(managed: ManagedBroker) -> Iterator[tuple[str, ExchangeBinding]]:
    for exchange in all_exchanges(managed):
        for binding in list(exchange.onward or ()):
            yield _onward_key(binding), binding


def _onward_key(binding: ExchangeBinding) -> str:
    """Its key among all objects of the class: bindings may differ only in their arguments."""
    names = [EXCHANGE.name_of(each.full_name) for each in (binding.source, binding.destination)]
    arguments = [str(plain_map(binding.arguments))] if binding.arguments.entries else []
    return ",".join((*names, binding.key, *arguments))


def _find_onward(managed: ManagedBroker, key: str) -> ExchangeBinding | None:
    return next((binding for each, binding in _onward(managed) if each == key), None)


# fmt: off
EXCHANGE_BINDING_CLASS: Final = ManagedClass(
    ClassName("qstore", "exchange_binding"),
    properties=(
        prop("exchangeRef", "objId", "RC index", lambda bound: EXCHANGE.reference(bound.source.full_name),
             "The source"),
        prop("destinationRef", "objId", "RC index", lambda bound: EXCHANGE.reference(bound.destination.full_name)),
        prop("bindingKey", "lstr", "RC index", of("key")),
        prop("arguments", "map", "RC", of("arguments")),
    ),
    objects=_onward, find=_find_onward, belongs=lambda binding: (binding.source.host, ""),
)
# fmt: on
