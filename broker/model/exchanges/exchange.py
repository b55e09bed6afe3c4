"""What all exchanges have in common: bindings, and the routes that were found.

An exchange holds bindings, each of a queue under a key, and says to which queues a message goes: each of them once,
however many of its bindings match. Most types look at nothing but the message's routing key. What was found for a key
is then kept in `routes`, so that a message usually costs one look-up in a dictionary:

    route = exchange.routes.get(key)
    if route is None:
        route = exchange.find(key)

`routes` is the same dictionary for as long as the exchange lives. Every change of the bindings empties it, and so does
a route for which there is no room: publishers may send ever new keys, and one key may lead to very many queues. Where
that is not all, `routes_by_key` is False: the type looks at more than the key, and is asked by `route`, or the exchange
does more with messages than to route them, and has `sent`. Exchanges that do not, pay nothing for those that do.

A binding is known by its queue and its key; a queue can be bound under many keys, each of them once. Two steps make a
binding, because a store may come between them: `prepare` says whether it may be made, `put` makes it. Nothing here
waits, stores or checks rights; names, durability and so on are the business of `broker.model.topology.wiring`.

Source: AMQP 0-10, class exchange.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, TypeVar

from broker.model.exchanges.route import Binding, Route, RoutedCounts
from broker.model.exchanges.sent_messages import sent_messages
from broker.model.watermark import Watermark
from formats.values import EMPTY_MAP, TypedMap

if TYPE_CHECKING:
    from broker.model.message import Message
    from broker.model.queues.queue import Queue

#: So many keys an exchange remembers, and so many queues of theirs: 6 MiB of references in the worst case, to queues,
#: bindings and back.
MAX_ROUTES: Final = 16_384
MAX_ROUTED_QUEUES: Final = 262_144


class BoundResult(NamedTuple):
    """What is not there of a binding that was asked for (0-10, struct exchange-bound-result). All False: it is."""

    queue_not_matched: bool = False
    key_not_matched: bool = False
    args_not_matched: bool = False


class Exchange(ABC):
    """An exchange.

    Args:
        name: its name.
        durable: whether it outlives the broker.
        auto_delete: whether it goes with its last binding.
        alternate: where messages go that match no binding, if they may.
        arguments: as it was declared with.

    Attributes:
        type_name: the name of its type, as clients know it.
        is_keyed: whether the type looks at nothing but the routing key.
        routes_by_key: whether `routes` and `find` say all that is to be done with a message that is sent to it.
        sent: what else is done with it; None for nothing.
        routes: routing key -> where messages go, for some keys. To be read only.
        no_route: where messages go that are dropped, whatever their key.
        binding_count: how many bindings it has.
        store_id: its number in the store; None where it is not stored.
        is_deleted: it is gone, and routes nothing.
    """

    type_name: ClassVar[str]
    is_keyed: ClassVar[bool] = True

    __slots__ = (
        "__weakref__", "_by_key", "_by_queue", "_counted", "_live", "_routed_queues", "alternate", "arguments",
        "auto_delete", "binding_count", "durable", "is_deleted", "name", "no_route", "routes", "routes_by_key", "sent",
        "store_id",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        *,
        durable: bool = False,
        auto_delete: bool = False,
        alternate: Exchange | None = None,
        arguments: TypedMap = EMPTY_MAP,
    ) -> None:
        self.name, self.durable, self.auto_delete = name, durable, auto_delete
        self.alternate, self.arguments = alternate, arguments
        self.sent = sent_messages(arguments)
        self.routes_by_key = self.is_keyed and self.sent is None
        self.store_id: int | None = None
        self.is_deleted = False
        self.routes: dict[str, Route] = {}
        self._routed_queues = 0  # in `routes`, all keys together
        self._live: dict[Route, None] = {}  # routes that were found since the bindings have changed
        self._counted = RoutedCounts()  # what those had counted that are forgotten
        self.no_route = Route()
        self.binding_count = Watermark()
        self._by_queue: dict[Queue, dict[str, Binding]] = {}
        self._by_key: dict[str, dict[Queue, Binding]] = {}

    def __repr__(self) -> str:
        return f"<{self.type_name} exchange {self.name!r}>"

    # ---- routing ----

    @abstractmethod
    def match(self, key: str) -> Route:
        """Where messages with this routing key go, found from the bindings."""

    def find(self, key: str) -> Route:
        """As `match`; and remember it in `routes`."""
        if len(self.routes) >= MAX_ROUTES:
            self.forget_routes()
        route = self.match(key)
        self._routed_queues += len(route.queues)
        if self._routed_queues > MAX_ROUTED_QUEUES:
            self.forget_routes()
            route = self.match(key)  # not the one from above, which may be forgotten now
            self._routed_queues = len(route.queues)
        if self._routed_queues <= MAX_ROUTED_QUEUES:
            self.routes[key] = route
        return self._kept(route)

    def route(self, message: Message) -> Route:
        """Where a message goes."""
        route = self.routes.get(message.routing_key)
        return self.find(message.routing_key) if route is None else route

    def _route_by(self, bindings: Collection[Binding]) -> Route:
        """The route by these bindings, one for each queue."""
        return Route(tuple(bindings)) if bindings else self.no_route

    def _kept(self, route: Route) -> Route:
        """The route, which counts from now on, until it is forgotten."""
        if route not in self._live and route is not self.no_route:
            self._live[route] = None
            for binding in route.bindings:
                binding.routes.append(route)
        return route

    def forget_routes(self) -> None:
        """Empty `routes`: what was found may not hold any more."""
        self.routes.clear()
        self._routed_queues = 0
        for route in self._live:
            self._take_in(route)
        self._live.clear()

    def _take_in(self, route: Route) -> None:
        """Remember what a route has counted that is forgotten, with all others of its bindings."""
        self._counted.take_in(route)
        for binding in route.bindings:
            binding.matched_before += route.messages
            binding.routes.clear()

    @property
    def counts(self) -> RoutedCounts:
        """What it has counted so far."""
        counts = replace(self._counted)
        for route in (*self._live, self.no_route):
            counts.take_in(route)
        return counts

    # ---- bindings ----

    @property
    def bindings(self) -> Iterator[Binding]:
        """All bindings, queue by queue. None may be added or removed meanwhile."""
        return (binding for held in self._by_queue.values() for binding in held.values())

    @property
    def has_bindings(self) -> bool:
        """Whether any queue is bound."""
        return bool(self._by_queue)

    def bindings_of(self, queue: Queue) -> list[Binding]:
        """The bindings of one queue, in the order in which they were made."""
        return list(self._by_queue.get(queue, {}).values())

    def find_binding(self, queue: Queue, key: str) -> Binding | None:
        """The binding that is known by this queue and key."""
        return self._by_queue.get(queue, {}).get(key)

    def prepare(self, queue: Queue, key: str, arguments: TypedMap) -> Binding | None:
        """A binding for `put`; None if it is there already.

        Raises:
            ModelError: there can be no such binding.
        """
        return Binding(queue, key, arguments) if self.find_binding(queue, key) is None else None

    def put(self, binding: Binding) -> list[Binding]:
        """Have a binding that `prepare` made. Returns those whose place it has taken."""
        self.add(binding)
        return []

    def add(self, binding: Binding) -> None:
        """Have a binding that is not there, beside those that are: one that `remove` removed, for example."""
        assert self.find_binding(binding.queue, binding.key) is None
        self._add(binding)
        self.binding_count.change(1)
        binding.queue.binding_count.change(1)

    def _add(self, binding: Binding) -> None:
        self._by_queue.setdefault(binding.queue, {})[binding.key] = binding
        self._by_key.setdefault(binding.key, {})[binding.queue] = binding
        self.forget_routes()

    def remove(self, binding: Binding) -> None:
        """Do without a binding that is there."""
        self._remove(binding)
        self.binding_count.change(-1)
        binding.queue.binding_count.change(-1)

    def _remove(self, binding: Binding) -> None:
        _discard(self._by_queue, binding.queue, binding.key)
        _discard(self._by_key, binding.key, binding.queue)
        self.forget_routes()

    def bind(self, queue: Queue, key: str, arguments: TypedMap = EMPTY_MAP) -> Binding | None:
        """Bind a queue: the binding, or None if it was there. Raises as `prepare` does."""
        binding = self.prepare(queue, key, arguments)
        if binding is not None:
            self.put(binding)
        return binding

    def unbind(self, queue: Queue, key: str) -> Binding | None:
        """Remove a binding: what it was, or None if there was none."""
        binding = self.find_binding(queue, key)
        if binding is not None:
            self.remove(binding)
        return binding

    def unbind_queue(self, queue: Queue) -> list[Binding]:
        """Remove all bindings of a queue: what they were."""
        bindings = self.bindings_of(queue)
        for binding in bindings:
            self.remove(binding)
        return bindings

    def delete(self) -> None:
        """It is gone, with all its bindings."""
        for queue in list(self._by_queue):
            self.unbind_queue(queue)
        self.is_deleted = True

    # ---- what is bound ----

    def is_asked_for(self, message: Message, binding: Binding) -> bool:
        """Whether a binding, on its own, would have this message routed to its queue."""
        alone = type(self)(self.name)
        alone._add(Binding(binding.queue, binding.key, binding.arguments))
        return bool(alone.route(message).queues)

    def bound(
        self, queue: Queue | None = None, key: str | None = None, arguments: TypedMap | None = None
    ) -> BoundResult:
        """Whether there is a binding like this; None for what does not matter.

        What was found so far narrows what comes next: the key is looked for among the bindings of the queue, if that
        has any, and the arguments among those of queue and key.
        """
        held = None if queue is None else self._by_queue.get(queue)
        alike: Iterable[Binding]
        if key is None:
            alike = self.bindings if held is None else held.values()
        elif held is None:
            alike = self._by_key.get(key, {}).values()
        else:
            alike = (held[key],) if key in held else ()
        key_not_matched = key is not None and not alike
        if key_not_matched:
            alike = self.bindings if held is None else held.values()
        args_not_matched = arguments is not None and not any(self.is_alike(each, arguments) for each in alike)
        return BoundResult(queue is not None and held is None, key_not_matched, args_not_matched)

    def is_alike(self, binding: Binding, arguments: TypedMap) -> bool:  # noqa: ARG002 – to most types they say nothing
        """Whether a binding's arguments say the same to exchanges of this type as these."""
        return True


_Outer = TypeVar("_Outer", bound=Hashable)
_Inner = TypeVar("_Inner", bound=Hashable)


def _discard(index: dict[_Outer, dict[_Inner, Binding]], outer: _Outer, inner: _Inner) -> None:
    """Take an entry out of a dictionary of dictionaries, with the inner one if nothing is left of it."""
    held = index[outer]
    del held[inner]
    if not held:
        del index[outer]
