"""The common part of all exchanges: bindings, and the cache of routes.

An exchange holds bindings, each of a queue under a key, and routes a message to queues: each of them once, however many
of its bindings match. Most types use only the message's routing key. The route for a key is then cached in `routes`, so
that routing a message usually costs one dictionary look-up:

    route = exchange.routes.get(key)
    if route is None:
        route = exchange.find(key)

`routes` is the same dictionary for the lifetime of the exchange. Every change of the bindings empties it, and so does a
route for which there is no room: publishers may send ever new keys, and one key may match very many queues.
`routes_by_key` is False if a look-up is not enough: the type uses more than the key and must be asked with `route`, or
the exchange numbers or keeps messages (`sent`). Other exchanges pay nothing for that.

A binding is identified by its queue and its key; a queue can be bound with many keys, once with each. Bindings are
created in two steps, so that they can be stored in between: `prepare` checks whether the binding is allowed, `put` adds
it. Nothing here waits, stores or checks rights; names, durability and so on are handled by
`broker.model.topology.topology`.

Source: AMQP 0-10, class exchange.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from qstore.broker.model.arguments import INITIAL_VALUE, INTERNAL, SEQUENCE, is_switched_on
from qstore.broker.model.counters import Watermark
from qstore.broker.model.exchanges.matching import MAX_STEPS, Steps
from qstore.broker.model.exchanges.onward import ExchangeBinding, Headers, Onward, no_headers
from qstore.broker.model.exchanges.route import Binding, Route, RoutedCounts
from qstore.formats.values import BOOLEAN, EMPTY_MAP, TypedMap, TypedValue

if TYPE_CHECKING:
    from qstore.broker.model.authorization import Authorization
    from qstore.broker.model.message import Message
    from qstore.broker.model.queues.queue import Queue


#: Limits of keys in the cache, and of all their queues: in the worst case 6 MiB of references to queues, bindings and
#: back.
MAX_ROUTES: Final = 16_384
MAX_ROUTED_QUEUES: Final = 262_144

_MAX_INT64: Final = (1 << 63) - 1
_MIN_INT64: Final = -(1 << 63)

Put: TypeAlias = "Callable[[Message, Sequence[Queue]], bool]"
"""Puts a message on queues; returns whether its completion must wait for the disk. Raises ModelError."""


def with_internal(arguments: TypedMap) -> TypedMap:
    """The arguments of an exchange to which clients of AMQP 0-9-1 cannot publish: stores keep it as one of them."""
    return TypedMap((*arguments.entries, (INTERNAL, TypedValue(BOOLEAN, True))))


class BoundResult(NamedTuple):
    """Which part of a queried binding does not match (0-10, struct exchange-bound-result). All False if it exists."""

    queue_not_matched: bool = False
    key_not_matched: bool = False
    args_not_matched: bool = False


class Receiver(Protocol):
    """Takes messages that are published to an exchange."""

    def takes(self, message: Message) -> bool:
        """Whether it takes the message."""

    def receive(self, message: Message, queues: Mapping[str, Queue], put: Put, authorization: Authorization) -> bool:
        """Take the message. Returns whether its completion must wait until the records of this tick are on the disk.

        Args:
            message: the message.
            queues: name -> queue.
            put: puts messages on queues.
            authorization: checks what is done for the publisher.

        Raises:
            ModelError: it cannot be done.
        """

    def check_transaction(self) -> None:
        """Raise NotImplementedByBrokerError if messages cannot be taken from a transaction, before its commit."""


class BoundReply(NamedTuple):
    """Which part of a queried binding does not match; all False if it exists. 0-10: struct exchange-bound-result."""

    exchange_not_found: bool = False
    queue_not_found: bool = False
    queue_not_matched: bool = False
    key_not_matched: bool = False
    args_not_matched: bool = False


class SentMessages:
    """What an exchange does with published messages besides routing them. Most exchanges do nothing.

    `qpid.msg_sequence`: each message gets a sequence number, an int64, as the application header `qpid.msg_sequence`,
    which replaces an existing one. The first number is 0; after the largest int64 comes the smallest.

    `qpid.ive` (initial value exchange): the last message is kept, with its number, and offered to each later binding.
    Only one message is kept, so its memory is bounded by the maximum message size.

    Rules where the sources leave a choice:

        published   by a client, to this exchange. Messages that arrive because it is an alternate exchange are neither
                    numbered nor kept: a message has the number of the exchange that it was published to.
        unroutable  messages count like any other.
        refused     by a full queue: the number is not reused, and the last message is unchanged.
        commit      a message of a transaction is numbered at commit, so that numbers ascend on every queue.
        restart     numbers begin again at 0, and no message is kept: neither is stored, as in qpidd
                    (formats/broker_records/README.md, 4.3). So a consumer that sees a number decrease knows that the
                    broker was restarted.

    Sources: Qpid C++ Broker Book, 1.3.1.1 and 1.3.1.2; MRG 2 Messaging User Guide, 2.2.

    Args:
        numbers: whether messages are numbered.
        keeps_last: whether the last one is kept.

    Attributes:
        next_number: the number of the next message.
        last: the last message, if it is kept and there was one.
    """

    __slots__ = ("_keeps_last", "_numbers", "last", "next_number")

    def __init__(self, *, numbers: bool, keeps_last: bool) -> None:
        self._numbers, self._keeps_last = numbers, keeps_last
        self.next_number = 0
        self.last: Message | None = None

    def number(self, message: Message) -> Message:
        """The message with its number, if messages are numbered.

        Raises:
            InvalidArgumentError: its headers cannot be decoded.
        """
        if not self._numbers:
            return message
        number = self.next_number
        numbered = message.with_number(SEQUENCE, number)
        self.next_number = _MIN_INT64 if number == _MAX_INT64 else number + 1
        return numbered

    def keep(self, message: Message) -> None:
        """Keep a message that `number` returned, after it was enqueued."""
        if self._keeps_last:
            self.last = message


def sent_messages(arguments: TypedMap) -> SentMessages | None:
    """The state for an exchange with these arguments; None if it does neither."""
    numbers, keeps_last = is_switched_on(arguments, SEQUENCE), is_switched_on(arguments, INITIAL_VALUE)
    return SentMessages(numbers=numbers, keeps_last=keeps_last) if numbers or keeps_last else None


class Exchange(ABC):
    """An exchange.

    Args:
        name: its name.
        durable: whether it survives a restart.
        auto_delete: whether it is deleted with its last binding.
        alternate: the exchange for messages that match no binding, unless they set discard-unroutable.
        arguments: of its declaration.

    Attributes:
        type_name: the name of its type in the protocols.
        is_keyed: whether the type uses only the routing key.
        routes_by_key: whether `routes` and `find` are all that is needed to route a message.
        sent: numbers and keeps published messages; None if the exchange does neither.
        receiver: takes some or all published messages, which are then not routed; None for most exchanges.
        routes: routing key -> route, for some keys. Read-only.
        no_route: the route of messages that match no queue, for any key.
        binding_count: number of bindings.
        store_id: its number in the store; None if it is not stored.
        is_deleted: it was deleted, and routes nothing.
        is_internal: whether clients of AMQP 0-9-1 cannot publish to it.
        onward: its bindings to other exchanges (`onward`); None if it has none.
        steps: how many steps matching messages has taken so far (`matching.Steps`).
    """

    type_name: ClassVar[str]
    is_keyed: ClassVar[bool] = True

    __slots__ = (
        "__weakref__", "_by_key", "_by_queue", "_counted", "_live", "_routed_queues", "_sharing", "alternate",
        "arguments", "auto_delete", "binding_count", "durable", "is_deleted", "is_internal", "name", "no_route",
        "onward", "receiver", "routes", "routes_by_key", "sent", "steps", "store_id",
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
        self.receiver: Receiver | None = None
        self.store_id: int | None = None
        self.steps = 0
        self.is_deleted = False
        self.is_internal = arguments.get(INTERNAL) is not None
        self.onward: Onward | None = None
        self._sharing: dict[Exchange, None] = {}
        self.routes: dict[str, Route] = {}
        self._routed_queues = 0  # in `routes`, summed over all keys
        self._live: dict[Route, None] = {}  # routes found since the last change of bindings
        self._counted = RoutedCounts()  # sums of dropped routes
        self.no_route = Route()
        self.binding_count = Watermark()
        self._by_queue: dict[Queue, dict[str, Binding]] = {}
        self._by_key: dict[str, dict[Queue, Binding]] = {}

    def __repr__(self) -> str:
        return f"<{self.type_name} exchange {self.name!r}>"

    # ---- routing ----

    @abstractmethod
    def matched(self, key: str, headers: Headers, steps: Steps) -> Collection[Binding]:
        """The bindings that match this routing key, and headers in the form of `comparable`: one for each queue.

        Raises:
            RoutingLimitError: finding them takes more than the steps that are left.
        """

    def match(self, key: str) -> Route:
        """The route for this routing key, computed from the bindings.

        Raises:
            RoutingLimitError: that takes too many steps.
        """
        steps = Steps()
        try:
            if self.onward is not None:
                return self.onward.route_by_key(key, steps)
            bindings = self.matched(key, no_headers, steps)
            return Route(tuple(bindings)) if bindings else self.no_route
        finally:
            self.steps += MAX_STEPS - steps.left

    def find(self, key: str) -> Route:
        """As `match`, and cache the route in `routes`."""
        if len(self.routes) >= MAX_ROUTES:
            self.forget_routes()
        route = self.match(key)
        self._routed_queues += len(route.queues)
        if self._routed_queues > MAX_ROUTED_QUEUES:
            self.forget_routes()
            route = self.match(key)  # again: the one from above may have been dropped
            self._routed_queues = len(route.queues)
        if self._routed_queues <= MAX_ROUTED_QUEUES:
            self.routes[key] = route
        return self.register(route)

    def route(self, message: Message) -> Route:
        """The route of a message. Raises as `match`."""
        if self.onward is not None and self.onward.is_dynamic:
            return self.route_onward(message, self.onward)
        route = self.routes.get(message.routing_key)
        return self.find(message.routing_key) if route is None else route

    def route_onward(self, message: Message, onward: Onward) -> Route:
        """The route of a message whose exchanges ask for more than its key. Raises as `match`."""
        steps = Steps()
        try:
            return onward.route(message, steps)
        finally:
            self.steps += MAX_STEPS - steps.left

    def register(self, route: Route) -> Route:
        """Register a route, so that its counters are included until it is dropped."""
        if route not in self._live and route is not self.no_route:
            self._live[route] = None
            for binding in route.bindings:
                binding.routes.append(route)
        return route

    def forget_routes(self) -> None:
        """Empty `routes`, because they may be outdated; and those of exchanges that share some."""
        if not self._sharing:
            self.drop_routes()
            return
        work: dict[Exchange, None] = {self: None}
        while work:
            exchange, _ = work.popitem()
            work.update(exchange.take_sharing())
            exchange.drop_routes()

    def take_sharing(self) -> dict[Exchange, None]:
        """The exchanges that share routes with it, which do so no longer."""
        others, self._sharing = self._sharing, {}
        return others

    def drop_routes(self) -> None:
        """Empty `routes`, and whatever else the type has found."""
        if self.onward is not None:
            self.onward.forget_routes()
        self.routes.clear()
        self._routed_queues = 0
        for route in self._live:
            self._retire(route)
        self._live.clear()

    def _retire(self, route: Route) -> None:
        """Add the counters of a dropped route to the sums; all routes of its bindings are dropped together."""
        self._counted.add(route)
        for binding in route.bindings:
            binding.matched_before += route.counted.messages
            binding.routes.clear()

    def share_routes(self, other: Exchange) -> None:
        """Forget routes together with another exchange: some of them lead over both."""
        self._sharing[other] = None

    def look_again(self) -> None:
        """How it routes may have changed: decide again whether the key is enough, and forget the routes."""
        is_dynamic = self.onward is not None and self.onward.is_dynamic
        self.routes_by_key = self.is_keyed and self.sent is None and self.receiver is None and not is_dynamic
        self.forget_routes()

    @property
    def counts(self) -> RoutedCounts:
        """Its counters."""
        counts = replace(self._counted)
        for route in (*self._live, self.no_route):
            counts.add(route)
        return counts

    # ---- bindings ----

    @property
    def bindings(self) -> Iterator[Binding]:
        """All bindings, queue by queue. None may be added or removed during iteration."""
        for held in self._by_queue.values():
            yield from held.values()

    @property
    def has_bindings(self) -> bool:
        """Whether any queue or exchange is bound to it."""
        return bool(self._by_queue) or self.onward is not None

    def bindings_of(self, queue: Queue) -> list[Binding]:
        """The bindings of one queue, in order of creation."""
        return list(self._by_queue.get(queue, {}).values())

    def find_binding(self, queue: Queue, key: str) -> Binding | None:
        """The binding of this queue and key."""
        return self._by_queue.get(queue, {}).get(key)

    def prepare(self, queue: Queue, key: str, arguments: TypedMap) -> Binding | None:
        """A binding for `put`; None if it already exists.

        Raises:
            ModelError: such a binding is not allowed.
        """
        return Binding(queue, key, arguments) if self.find_binding(queue, key) is None else None

    def replaced_by(self, key: str, arguments: TypedMap) -> list[Binding]:  # noqa: ARG002 – for subclasses
        """The bindings that a new one with this key and these arguments will replace."""
        return []

    def put(self, binding: Binding) -> list[Binding]:
        """Add a binding that `prepare` created. Returns those that it has replaced."""
        self.add(binding)
        return []

    def add(self, binding: Binding) -> None:
        """Add a binding without replacing any: a removed one that is restored, for example."""
        assert self.find_binding(binding.queue, binding.key) is None
        self._add(binding)
        self.binding_count.change(1)
        binding.queue.binding_count.change(1)

    def _add(self, binding: Binding) -> None:
        self._by_queue.setdefault(binding.queue, {})[binding.key] = binding
        self._by_key.setdefault(binding.key, {})[binding.queue] = binding
        self.forget_routes()

    def remove(self, binding: Binding) -> None:
        """Remove an existing binding."""
        self._remove(binding)
        self.binding_count.change(-1)
        binding.queue.binding_count.change(-1)

    def _remove(self, binding: Binding) -> None:
        _discard(self._by_queue, binding.queue, binding.key)
        _discard(self._by_key, binding.key, binding.queue)
        self.forget_routes()

    def bind(self, queue: Queue, key: str, arguments: TypedMap = EMPTY_MAP) -> Binding | None:
        """Bind a queue. Returns the binding, or None if it already existed. Raises as `prepare` does."""
        binding = self.prepare(queue, key, arguments)
        if binding is not None:
            self.put(binding)
        return binding

    def unbind(self, queue: Queue, key: str) -> Binding | None:
        """Remove a binding, and return it; None if there was none."""
        binding = self.find_binding(queue, key)
        if binding is not None:
            self.remove(binding)
        return binding

    @property
    def bound_queues(self) -> list[Queue]:
        """The queues that are bound to it."""
        return list(self._by_queue)

    def delete(self) -> None:
        """Mark it as deleted: it has no bindings left."""
        self.is_deleted = True

    def bind_exchange(self, binding: ExchangeBinding) -> None:
        """Add a binding to another exchange, which `check_binding` has checked; `refresh` must be called then."""
        if self.onward is None:
            self.onward = Onward(self)
        self.onward.add(binding)
        self.forget_routes()

    def unbind_exchange(self, binding: ExchangeBinding) -> None:
        """Remove an existing binding to another exchange; `refresh` must be called then."""
        assert self.onward is not None
        self.onward.remove(binding)
        if not len(self.onward):
            self.forget_routes()
            self.onward = None
        self.look_again()

    # ---- queries ----

    def would_route(self, message: Message, binding: Binding) -> bool:
        """Whether a binding, on its own, would route this message to its queue."""
        alone = type(self)(self.name)
        alone._add(Binding(binding.queue, binding.key, binding.arguments))
        return bool(alone.route(message).queues)

    def bound(
        self, queue: Queue | None = None, key: str | None = None, arguments: TypedMap | None = None
    ) -> BoundResult:
        """Whether there is a binding like this; None matches anything.

        Each match narrows the next one: the key is looked up among the bindings of the queue, if that has any, and the
        arguments among those of queue and key.
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
        args_not_matched = arguments is not None and not any(self.is_equivalent(each, arguments) for each in alike)
        return BoundResult(queue is not None and held is None, key_not_matched, args_not_matched)

    def is_equivalent(self, binding: Binding, arguments: TypedMap) -> bool:  # noqa: ARG002 – most types ignore them
        """Whether these arguments are equivalent to a binding's for this type of exchange."""
        return True


_Outer = TypeVar("_Outer", bound=Hashable)
_Inner = TypeVar("_Inner", bound=Hashable)


def _discard(index: dict[_Outer, dict[_Inner, Binding]], outer: _Outer, inner: _Inner) -> None:
    """Remove an entry from a dictionary of dictionaries, and the inner dictionary if it becomes empty."""
    held = index[outer]
    del held[inner]
    if not held:
        del index[outer]
