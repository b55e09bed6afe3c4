"""Bindings between exchanges: what one exchange matches is routed on by others, and each queue gets a message once.

    source      the exchange that has the binding: it matches messages as for queues, by its type
    hops        the exchanges that a message comes to, each once, so that cycles end; the source is the first
    alternate   of an exchange in between gets what matches neither a queue nor an exchange there; that of the source
                gets what comes to no queue at all, as always

The route of a message is that of its source: it is cached there, and publishing takes no longer than to an exchange
without such bindings. Only if one of the exchanges asks for more than the routing key (type headers), each message is
matched anew. Exchanges that share a route forget their routes together. Each exchange counts what comes to it: the
routes of the others on the way (`Route.whole`) have the counters of the source's.

Source: RabbitMQ, "Exchange to Exchange Bindings".
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from qstore.broker.model.errors import NotImplementedByBrokerError
from qstore.broker.model.exchanges.matching import Criteria, Steps, TopicIndex, comparable, parse_criteria
from qstore.broker.model.exchanges.route import Binding, Route
from qstore.formats.values import EMPTY_MAP, TypedMap

if TYPE_CHECKING:
    from qstore.broker.model.exchanges.exchange import Exchange
    from qstore.broker.model.message import Message
    from qstore.broker.model.queues.queue import Queue

Headers: TypeAlias = Callable[[], Mapping[str, Hashable]]
"""The headers of a message, in the form of `comparable`; decoded when they are asked for."""

_TYPES: Final = ("direct", "topic", "fanout", "headers")
MAX_FOUND: Final = 4096
MAX_FOUND_QUEUES: Final = 65_536
"""Limits of the routes of messages that are matched by more than their key, and of all their queues."""


def no_headers() -> Mapping[str, Hashable]:
    """No headers: of a message of which only the key is known."""
    return {}


@dataclass(slots=True, eq=False)
class ExchangeBinding:
    """An exchange bound to another one.

    Attributes:
        source: the exchange that messages come from.
        destination: the exchange that they go to.
        key: the binding key.
        arguments: as received.
        store_id: its number in the store; None if it is not stored.
    """

    source: Exchange
    destination: Exchange
    key: str
    arguments: TypedMap = EMPTY_MAP
    store_id: int | None = None

    @property
    def identity(self) -> Hashable:
        """What makes it the same binding as another one of its source."""
        arguments = frozenset((name, comparable(typed)) for name, typed in self.arguments.entries)
        return self.destination, self.key, arguments


class Hop(NamedTuple):
    """An exchange that a message comes to.

    Attributes:
        exchange: the exchange.
        bindings: those that match, one for each queue.
        following: the exchanges that it goes on to.
    """

    exchange: Exchange
    bindings: tuple[Binding, ...]
    following: tuple[Exchange, ...]


class Onward:
    """The bindings of one exchange to others.

    Args:
        source: the exchange.

    Attributes:
        is_dynamic: whether one of the exchanges that can be reached routes by more than the key.
    """

    __slots__ = (
        "_bindings", "_by_key", "_criteria", "_found", "_found_queues", "_index", "_source", "is_dynamic"
    )  # fmt: skip

    def __init__(self, source: Exchange) -> None:
        self._source = source
        self._bindings: dict[Hashable, ExchangeBinding] = {}
        self._by_key: dict[str, dict[ExchangeBinding, None]] = {}
        self._index = TopicIndex(source.name)
        self._criteria: dict[ExchangeBinding, Criteria] = {}
        self._found: dict[tuple[Hop, ...], Route] = {}
        self._found_queues = 0  # in `_found`, summed over all routes
        self.is_dynamic = False

    def __iter__(self) -> Iterator[ExchangeBinding]:
        """All bindings, in order of creation."""
        return iter(self._bindings.values())

    def __len__(self) -> int:
        return len(self._bindings)

    def find(self, binding: ExchangeBinding) -> ExchangeBinding | None:
        """The existing binding that is the same as this one."""
        return self._bindings.get(binding.identity)

    def add(self, binding: ExchangeBinding) -> None:
        """Add a binding. Raises InternalError if it has no valid criteria, on a headers exchange."""
        if self._source.type_name == "headers":
            self._criteria[binding] = parse_criteria(binding.arguments)
        if self._source.type_name == "topic" and binding.key not in self._by_key:
            self._index.add(binding.key)
        self._bindings[binding.identity] = binding
        self._by_key.setdefault(binding.key, {})[binding] = None

    def remove(self, binding: ExchangeBinding) -> None:
        """Remove an existing binding."""
        del self._bindings[binding.identity]
        alike = self._by_key[binding.key]
        del alike[binding]
        if not alike:
            del self._by_key[binding.key]
            if self._source.type_name == "topic":
                self._index.remove(binding.key)
        self._criteria.pop(binding, None)

    def matching(self, key: str, headers: Headers, steps: Steps) -> Iterable[ExchangeBinding]:
        """The bindings that match a routing key and headers."""
        kind = self._source.type_name
        if kind == "fanout":
            return self._bindings.values()
        if kind == "direct":
            return self._by_key.get(key, ())
        if kind == "topic":
            return [binding for pattern in self._index.match(key, steps) for binding in self._by_key[pattern]]
        found = headers()
        return [binding for binding, criteria in self._criteria.items() if criteria.match(found)]

    # ---- routes ----

    def route_by_key(self, key: str, steps: Steps) -> Route:
        """The route for a routing key, which the source caches."""
        return _route(_hops(self._source, key, no_headers, steps))

    def route(self, message: Message, steps: Steps) -> Route:
        """The route of a message."""
        decoded: list[Mapping[str, Hashable]] = []

        def headers() -> Mapping[str, Hashable]:
            if not decoded:
                decoded.append({name: comparable(typed) for name, typed in message.headers().entries})
            return decoded[0]

        hops = _hops(self._source, message.routing_key, headers, steps)
        route = self._found.get(hops)
        if route is None:
            route = _route(hops)
            self._found_queues += len(route.queues)
            if len(self._found) >= MAX_FOUND or self._found_queues > MAX_FOUND_QUEUES:
                self._source.forget_routes()
                route = _route(hops)  # again: its parts are forgotten as well
                self._found_queues = len(route.queues)
            self._found[hops] = self._source.register(route)
        return route

    def forget_routes(self) -> None:
        """Forget the routes of messages that were matched by more than their key."""
        self._found.clear()
        self._found_queues = 0


def check_binding(binding: ExchangeBinding) -> None:
    """Check that there can be such a binding.

    Raises:
        NotImplementedByBrokerError: exchanges of a type cannot be bound to each other.
        InternalError: the arguments have no valid criteria.
    """
    for exchange in (binding.source, binding.destination):
        if exchange.type_name not in _TYPES or not exchange.name:
            text = f'exchange "{exchange.name}" is of type {exchange.type_name}: other exchanges cannot be bound to it'
            raise NotImplementedByBrokerError(text)
    if binding.source.type_name == "headers":
        parse_criteria(binding.arguments)


def refresh(exchanges: Iterable[Exchange]) -> None:
    """Bindings between exchanges, or alternate exchanges, have changed: look again which routes need more than the key.

    The time it takes grows with the number of all exchanges and bindings between them.
    """
    leads_to: dict[Exchange, list[Exchange]] = {}  # destination or alternate exchange -> those from where it is reached
    chained: list[tuple[Exchange, Onward]] = []
    work: list[Exchange] = []
    for exchange in exchanges:
        onward = exchange.onward
        if onward is not None:
            chained.append((exchange, onward))
            for binding in onward:
                leads_to.setdefault(binding.destination, []).append(exchange)
        if exchange.alternate is not None:
            leads_to.setdefault(exchange.alternate, []).append(exchange)
        if not exchange.is_keyed:
            work.append(exchange)
    dynamic = dict.fromkeys(work)
    while work:
        for source in leads_to.get(work.pop(), ()):
            if source not in dynamic:
                dynamic[source] = None
                work.append(source)
    for exchange, onward in chained:
        is_dynamic = exchange in dynamic
        if is_dynamic is not onward.is_dynamic:
            onward.is_dynamic = is_dynamic
            exchange.look_again()


def _hops(source: Exchange, key: str, headers: Headers, steps: Steps) -> tuple[Hop, ...]:
    """The exchanges that a message comes to."""
    hops: list[Hop] = []
    reached: dict[Exchange, None] = {source: None}
    work: list[Exchange] = [source]
    for exchange in work:
        bindings = tuple(exchange.matched(key, headers, steps))
        onward = exchange.onward
        matching = () if onward is None else onward.matching(key, headers, steps)
        following: tuple[Exchange, ...] = tuple({binding.destination: None for binding in matching})
        if not bindings and not following and exchange is not source and exchange.alternate is not None:
            following = (exchange.alternate,)
        hops.append(Hop(exchange, bindings, following))
        for other in following:
            if other not in reached:
                reached[other] = None
                work.append(other)
    return tuple(hops)


def _route(hops: tuple[Hop, ...]) -> Route:
    """The route of the source, which the other exchanges on the way count, too."""
    source = hops[0]
    if len(hops) == 1 and not source.bindings:
        return source.exchange.no_route
    queues: dict[Queue, None] = {}
    for hop in hops:
        for binding in hop.bindings:
            queues[binding.queue.redirect_peer or binding.queue] = None
    whole = Route(source.bindings)
    whole.lead_to(tuple(queues))
    for hop in hops[1:]:
        part = Route(hop.bindings)
        part.whole, part.is_passed_on = whole, bool(hop.following)
        hop.exchange.register(part)
        hop.exchange.share_routes(source.exchange)
        source.exchange.share_routes(hop.exchange)
    return whole
