"""The common part of all exchanges: bindings to queues, the cache of routes, and bindings to other exchanges.

An exchange has bindings, each of a queue under a key, and routes a message to queues: each of them once, however many
of its bindings match. Most types use only the message's routing key. The route for a key is then cached in `routes`, so
that routing a message usually takes one dictionary lookup:

    route = exchange.routes.get(key)
    if route is None:
        route = exchange.find(key)

`routes` is the same dictionary for the lifetime of the exchange. Every change of the bindings empties it, and so does a
route for which there is no room: publishers may send ever new keys, and one key may match very many queues.
`routes_by_key` is False if a lookup is not enough: the type uses more than the key, so that `route` must be called, or
the exchange numbers or keeps messages (`sent`). This costs other exchanges nothing.

A binding is identified by its queue and its key; a queue can be bound with many keys, once with each. Bindings are
created in two steps, so that they can be stored in between: `prepare` checks whether the binding is allowed, `put` adds
it. Nothing here waits, stores or checks rights; names, durability and so on are handled by
`broker.model.topology.topology`.

Source: AMQP 0-10, class exchange.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final, Protocol, TypeAlias, TypeVar

from qstore.broker.model.arguments import INITIAL_VALUE, INTERNAL, NO_POLICY, SEQUENCE, is_switched_on
from qstore.broker.model.counters import Watermark
from qstore.broker.model.errors import NotAllowedError, NotImplementedByBrokerError, RoutingLimitError
from qstore.broker.model.exchanges.matching import MAX_STEPS, Criteria, Steps, TopicIndex, comparable, parse_criteria
from qstore.broker.model.exchanges.origins import Origins
from qstore.broker.model.exchanges.route import Binding, Route, RoutedCounts
from qstore.broker.model.selectors.candidate import Candidate
from qstore.broker.model.selectors.selector import Selector, requested_selector
from qstore.formats.broker_records.topology import DEFAULT_HOST, HOST_SEPARATOR, full_name
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import BOOLEAN, EMPTY_MAP, TypedMap, TypedValue

if TYPE_CHECKING:
    from qstore.broker.model.authorization import Authorization
    from qstore.broker.model.message import Message
    from qstore.broker.model.queues.queue import Queue
    from qstore.broker.model.router import Fanout


#: Limits of keys in the cache, and of all that their routes consist of (`Route.size`): these are dropped together, in
#: some 8 ms in pure Python (`bench_turns`, "ever new routing keys").
MAX_ROUTES: Final = 16_384
MAX_ROUTED: Final = 49_152
MAX_ROUTED_BY_ONE: Final = 262_144
"""Limit of one route that is kept."""

_MAX_INT64: Final = (1 << 63) - 1
_MIN_INT64: Final = -(1 << 63)

_TYPES: Final = ("direct", "topic", "fanout", "headers")
MAX_FOUND: Final = 4096
"""Limit of cached routes of messages matched by more than their key; what they consist of is limited as above."""

SELECTED_PER_STEP: Final = 3
"""Characters that selectors read in one step: 0.3 µs."""

Put: TypeAlias = "Callable[[Message, Sequence[Queue]], bool | Fanout]"
"""Puts a message on queues; returns whether its completion must wait for the disk, or for what. Raises ModelError."""


class Headers:
    """What types that use more than the key see of a message: a call returns its headers, decoded on demand.

    Args:
        message: the message; None if only its key is known: then there are no headers.
    """

    __slots__ = ("_candidate", "_decoded", "message")

    def __init__(self, message: Message | None = None) -> None:
        self.message = message
        self._candidate: Candidate | None = None
        self._decoded: dict[str, Hashable] | None = None

    def __call__(self) -> Mapping[str, Hashable]:
        """Name -> value in the form of `comparable`."""
        found = self._decoded
        if found is None:
            entries = () if self.message is None else self.message.headers().entries
            found = self._decoded = {name: comparable(typed) for name, typed in entries}
        return found

    def match(self, selector: Selector, steps: Steps) -> bool:
        """Whether a selector matches the message; if only its key is known, it may. The work takes from the steps."""
        if self.message is None:
            return True
        if self._candidate is None:
            self._candidate = Candidate(self.message.whole(), is_redelivered=False)
        before = self._candidate.work
        matches = selector.matches(self._candidate)
        steps.left -= max(1, (self._candidate.work - before) // SELECTED_PER_STEP)
        return matches


NO_HEADERS: Final = Headers()
"""Of a message of which only the key is known."""


def with_internal(arguments: TypedMap) -> TypedMap:
    """The arguments of an exchange to which clients of AMQP 0-9-1 cannot publish, which is stored as an argument."""
    return TypedMap((*arguments.entries, (INTERNAL, TypedValue(BOOLEAN, True))))


class BoundResult(NamedTuple):
    """Which part of a queried binding does not match (0-10, struct exchange-bound-result). All False if it exists."""

    queue_not_matched: bool = False
    key_not_matched: bool = False
    args_not_matched: bool = False


class Receiver(Protocol):
    """Takes messages published to an exchange, which then are not routed."""

    def takes(self, message: Message) -> bool:
        """Whether it takes the message."""

    def keeps_nothing(self, message: Message) -> bool:
        """Whether it takes the message, and nothing of it stays in memory: then it is welcome when memory is full."""

    def receive(self, message: Message, put: Put, authorization: Authorization) -> bool | Fanout:
        """Take the message.

        Returns:
            Whether its completion must wait until the records of this tick are on the disk, or what it must wait for.

        Args:
            message: the message.
            put: puts messages on queues.
            authorization: checks operations on behalf of the publisher.

        Raises:
            ModelError: the operation fails.
        """

    def check_transaction(self) -> None:
        """Raise NotImplementedByBrokerError if messages cannot be taken in a transaction."""

    def placed(self, message: Message) -> tuple[Message, Sequence[Queue]] | None:
        """The message as it is put on queues, and these, if nothing else is done: then a transaction can do it.

        None if `receive` does more.

        Raises:
            InvalidArgumentError: the message cannot be put there.
        """


class BoundReply(NamedTuple):
    """Which part of a queried binding does not match; all False if it exists. 0-10: struct exchange-bound-result."""

    exchange_not_found: bool = False
    queue_not_found: bool = False
    queue_not_matched: bool = False
    key_not_matched: bool = False
    args_not_matched: bool = False


class SentMessages:
    """Numbers and keeps the messages published to an exchange. Most exchanges do neither.

    `qpid.msg_sequence`: each message gets a sequence number, an int64, as the application header `qpid.msg_sequence`,
    which replaces an existing one. The first number is 0; after the largest int64 comes the smallest.

    `qpid.ive` (initial value exchange): the last message is kept, with its number, and offered to each later binding.
    Only one message is kept, so its memory is bounded by the maximum message size.

    Rules where the sources leave a choice:

        published   only messages that a client publishes to this exchange: those that arrive because it is an alternate
                    exchange are neither numbered nor kept. A message has the number of the exchange that it was
                    published to
        unroutable  messages are numbered and kept like any other
        refused     by a full queue: the number is not reused, and the last message is unchanged
        commit      a message of a transaction is numbered at commit, so that numbers ascend on every queue
        restart     numbers begin again at 0, and no message is kept: neither is stored, as in qpidd
                    (formats/broker_records/README.md, 4.3). So a decreasing number tells a consumer that the broker was
                    restarted

    Sources: Qpid C++ Broker Book, 1.3.1.1 and 1.3.1.2; MRG 2 Messaging User Guide, 2.2.

    Args:
        numbers: whether messages are numbered.
        keeps_last: whether the last one is kept.

    Attributes:
        next_number: the number of the next message.
        last: the last message, if it is kept and there is one.
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

    def keeping(self, message: Message, queues: Sequence[Queue]) -> Sequence[Queue]:  # noqa: ARG002 – for subclasses
        """The queues that get a message, given those that it is routed to: one may keep it for the exchange."""
        return queues

    def offered(self, after: int = -1) -> Iterator[tuple[int, Message]]:
        """The messages after a position that a new binding is offered, the oldest first, with their positions."""
        if self.last is not None and after < 0:
            yield 0, self.last


def sent_messages(arguments: TypedMap) -> SentMessages | None:
    """The state for an exchange with these arguments; None if it does neither."""
    numbers, keeps_last = is_switched_on(arguments, SEQUENCE), is_switched_on(arguments, INITIAL_VALUE)
    return SentMessages(numbers=numbers, keeps_last=keeps_last) if numbers or keeps_last else None


class Exchange:
    """An exchange.

    Args:
        name: its name.
        durable: whether it survives a restart.
        auto_delete: whether it is deleted with its last binding, or its last sender if that is later.
        alternate: the exchange for messages that match no binding, unless they set discard-unroutable.
        arguments: the declaration's.

    Attributes:
        host: the name of its virtual host.
        kind: the name of its type in the protocols.
        type_name: likewise, of an exchange.
        routes_as: the name of the type as which it routes; empty for its own.
        is_keyed: whether the type uses only the routing key.
        is_even: whether messages with equal keys and headers have one route: then that of a run is looked up once.
        is_destination: whether it can be bound to other exchanges.
        takes_selectors: whether its bindings can have selectors.
        routes_by_key: whether `routes` and `find` are enough to route a message.
        sent: numbers and keeps published messages; None if the exchange does neither.
        receiver: takes some or all published messages, which are then not routed; None for most exchanges.
        routes: routing key -> route, for some keys. Read-only.
        no_route: the route of messages that match no queue, for any key.
        binding_count: number of bindings.
        policy: what policies give it.
        has_policy_alternate: whether its alternate exchange is one by a policy, and not declared.
        store_id: its number in the store; None if it is not stored.
        is_deleted: it was deleted, and routes nothing.
        senders: links of AMQP 1.0 whose target it is, if it is auto-delete.
        is_internal: whether clients of AMQP 0-9-1 cannot publish to it.
        onward: its bindings to other exchanges (`Onward`); None if it has none.
        origins: where its bindings come from; None unless it is federated (`federate`).
        steps: steps taken so far to match messages (`matching.Steps`).
        selectors: binding -> its selector, of those that have one. Then each message is matched anew.
    """

    kind: ClassVar[str]
    routes_as: ClassVar[str] = ""
    is_keyed: ClassVar[bool] = True
    is_even: ClassVar[bool] = True
    is_destination: ClassVar[bool] = False
    takes_selectors: ClassVar[bool] = False

    __slots__ = (
        "__weakref__", "_by_key", "_by_queue", "_counted", "_found", "_live", "_routed", "_sharing", "alternate",
        "arguments", "auto_delete", "binding_count", "durable", "has_policy_alternate", "host", "is_deleted",
        "is_internal", "name", "no_route", "onward", "origins", "policy", "receiver", "routes",
        "routes_by_key", "selectors", "senders", "sent", "steps", "store_id",
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
        self.host = DEFAULT_HOST
        self.sent = sent_messages(arguments)
        self.routes_by_key = self.is_keyed and self.sent is None
        self.receiver: Receiver | None = None
        self.store_id: int | None = None
        self.steps = self.senders = 0
        self.is_deleted = self.has_policy_alternate = False
        self.policy = NO_POLICY
        self.is_internal = arguments.get(INTERNAL) is not None
        self.onward: Onward | None = None
        self.origins: Origins | None = None
        self._sharing: dict[Exchange, None] = {}
        self.routes: dict[str, Route] = {}
        self._found: dict[tuple[Binding, ...], Route] = {}  # of messages that were matched by more than the key
        self.selectors: dict[Binding, Selector] = {}
        self._routed = 0  # sizes of `routes` and `_found`
        self._live: dict[Route, None] = {}  # routes found since the last change of bindings
        self._counted = RoutedCounts()  # sums of dropped routes
        self.no_route = Route()
        self.binding_count = Watermark()
        self._by_queue: dict[Queue, dict[str, Binding]] = {}
        self._by_key: dict[str, dict[Queue, Binding]] = {}
        self._set_up()

    def _set_up(self) -> None:
        """Create what the type keeps besides; the constructor calls it last."""

    def __repr__(self) -> str:
        return f"<{self.type_name} exchange {self.name!r}>"

    @property
    def type_name(self) -> str:
        """The name of its type in the protocols."""
        return self.kind

    @property
    def routing_type(self) -> str:
        """The name of the type as which it routes."""
        return self.routes_as or self.type_name

    # ---- routing ----

    @abstractmethod
    def matched(self, key: str, headers: Headers, steps: Steps) -> Collection[Binding]:
        """The bindings that match this routing key, and headers in the form of `comparable`: one for each queue.

        Raises:
            RoutingLimitError: matching takes more than the steps that are left.
        """

    def match(self, key: str) -> Route:
        """The route for this routing key, computed from the bindings.

        Raises:
            RoutingLimitError: that takes too many steps.
        """
        assert self.is_keyed, f"{self!r} does not route by key ({key!r})"
        steps = Steps()
        try:
            if self.onward is not None:
                return self.onward.route_by_key(key, steps)
            bindings = self.matched(key, NO_HEADERS, steps)
            return Route(tuple(bindings)) if bindings else self.no_route
        finally:
            self.steps += MAX_STEPS - steps.left

    def find(self, key: str) -> Route:
        """As `match`, and cache the route in `routes`."""
        if len(self.routes) >= MAX_ROUTES or self._routed >= MAX_ROUTED:
            self.forget_routes()
        route = self.match(key)
        self._routed += route.size
        if route.size <= MAX_ROUTED_BY_ONE:
            self.routes[key] = route
        return self.register(route)

    def route(self, message: Message) -> Route:
        """The route of a message. Raises as `match`."""
        if self.onward is not None and self.onward.is_dynamic:
            return self.route_onward(message, self.onward)
        if not self.is_keyed or self.selectors:
            return self.route_by_contents(message)
        route = self.routes.get(message.routing_key)
        return self.find(message.routing_key) if route is None else route

    def route_by_contents(self, message: Message) -> Route:
        """The route of a message by more than its key: cached by the bindings that match. Raises as `match`."""
        if not self._by_queue:
            return self.no_route
        steps = Steps()
        try:
            bindings = tuple(self.matched(message.routing_key, Headers(message), steps))
        finally:
            self.steps += MAX_STEPS - steps.left
        return self._found.get(bindings) or self._remember(bindings)

    def _remember(self, bindings: tuple[Binding, ...]) -> Route:
        if not bindings:
            return self.no_route
        if len(self._found) >= MAX_ROUTES or self._routed >= MAX_ROUTED:
            self.forget_routes()
        route = Route(bindings)
        self._routed += route.size
        self._found[bindings] = route
        return self.register(route)

    def selected(self, bindings: Iterable[Binding], headers: Headers, steps: Steps) -> Collection[Binding]:
        """Those of the bindings whose selectors match the message, or that have none: the first one of each queue."""
        first: dict[Queue, Binding] = {}
        for binding in bindings:
            if binding.queue not in first and self.selects(binding, headers, steps):
                first[binding.queue] = binding
        return first.values()

    def selects(self, binding: Binding, headers: Headers, steps: Steps) -> bool:
        """Whether the selector of a binding matches the message, or it has none. Raises RoutingLimitError."""
        selector = self.selectors.get(binding)
        if selector is None:
            return True
        is_match = headers.match(selector, steps)
        if steps.left < 0:
            raise RoutingLimitError(f'exchange "{self.name}": the selectors take more than {MAX_STEPS:,} steps')
        return is_match

    @property
    def uses_contents(self) -> bool:
        """Whether it uses more of a message than its key."""
        return not self.is_keyed or bool(self.selectors)

    def route_onward(self, message: Message, onward: Onward) -> Route:
        """The route of a message whose exchanges use more than its key. Raises as `match`."""
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

    def has_dropped(self, route: Route) -> bool:
        """Whether a route that was found in this tick was dropped since: what it counts from now on is lost."""
        return route not in self._live and route is not self.no_route

    def forget_routes(self) -> None:
        """Empty `routes`, because they may be outdated, here and in exchanges that share some."""
        if not self._sharing:
            self.drop_routes()
            return
        work: dict[Exchange, None] = {self: None}
        while work:
            exchange, _ = work.popitem()
            work.update(exchange.take_sharing())
            exchange.drop_routes()

    def take_sharing(self) -> dict[Exchange, None]:
        """Remove and return the exchanges that share routes with it."""
        others, self._sharing = self._sharing, {}
        return others

    def drop_routes(self) -> None:
        """Empty `routes` and other caches of the type."""
        if self.onward is not None:
            self.onward.forget_routes()
        self.routes.clear()
        self._found.clear()
        self._routed = 0
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
        """Decide again whether the key is enough, and forget the routes: the routing may have changed."""
        is_dynamic = self.onward is not None and self.onward.is_dynamic
        is_keyed = self.is_keyed and not self.selectors
        self.routes_by_key = is_keyed and self.sent is None and self.receiver is None and not is_dynamic
        self.forget_routes()

    @property
    def full_name(self) -> str:
        """Its name and its virtual host's in one (`formats.broker_records.topology`)."""
        if not self.name and self.host != DEFAULT_HOST:
            return self.host + HOST_SEPARATOR  # the default exchange, which no record names
        return full_name(self.host, self.name)

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

    @property
    def is_in_use(self) -> bool:
        """Whether it has bindings or senders: an auto-delete exchange stays."""
        return self.senders > 0 or self.has_bindings

    def bindings_of(self, queue: Queue) -> list[Binding]:
        """The bindings of one queue, in order of creation."""
        return list(self._by_queue.get(queue, {}).values())

    def find_binding(self, queue: Queue, key: str) -> Binding | None:
        """The binding of this queue and key."""
        return self._by_queue.get(queue, {}).get(key)

    def prepare(self, queue: Queue, key: str, arguments: TypedMap) -> Binding | None:
        """A binding for `put`; None if it already exists.

        Raises:
            InvalidArgumentError: its selector is not valid.
            NotAllowedError: it exists with another selector.
            NotImplementedByBrokerError: bindings to exchanges of this type have no selectors.
            ModelError: such a binding is not allowed.
        """
        selector = requested_selector(arguments)
        if selector is not None and not self.takes_selectors:
            text = (
                f"bindings to exchanges of type {self.type_name} have no selectors; declare the queue with qpid.filter"
            )
            raise NotImplementedByBrokerError(text)
        binding = self.find_binding(queue, key)
        if binding is None:
            return Binding(queue, key, arguments)
        existing = self.selectors.get(binding)
        if (None if existing is None else existing.text) != (None if selector is None else selector.text):
            raise NotAllowedError(
                f'queue "{queue.name}" is bound to exchange "{self.name}" with key "{key}" and another selector: '
                "unbind it first, or use another key"
            )
        return None

    def replaced_by(self, key: str, arguments: TypedMap) -> list[Binding]:  # noqa: ARG002 – for subclasses
        """The bindings that a new one with this key and these arguments will replace."""
        return []

    def put(self, binding: Binding) -> list[Binding]:
        """Add a binding that `prepare` created. Returns those that it has replaced."""
        self.add(binding)
        return []

    def add(self, binding: Binding) -> None:
        """Add a binding without replacing any, for example to restore a removed one."""
        assert self.find_binding(binding.queue, binding.key) is None
        self._add(binding)
        binding.queue.bound_to[self] = None
        self.binding_count.change(1)
        binding.queue.binding_count.change(1)
        if self.origins is not None:
            self.origins.bound(binding)

    def _add(self, binding: Binding) -> None:
        selector = requested_selector(binding.arguments)
        if selector is not None:
            self.selectors[binding] = selector
            self.routes_by_key = False
        self._by_queue.setdefault(binding.queue, {})[binding.key] = binding
        self._by_key.setdefault(binding.key, {})[binding.queue] = binding
        self.forget_routes()

    def remove(self, binding: Binding) -> None:
        """Remove an existing binding."""
        self._remove(binding)
        if binding.queue not in self._by_queue:
            binding.queue.bound_to.pop(self, None)
        self.binding_count.change(-1)
        binding.queue.binding_count.change(-1)
        if self.origins is not None:
            self.origins.unbound(binding)

    def federate(self) -> Origins:
        """The origins of its bindings, from now on."""
        if self.origins is None:
            self.origins = Origins(self.routing_type, self.bindings)
        return self.origins

    def _remove(self, binding: Binding) -> None:
        _discard(self._by_queue, binding.queue, binding.key)
        _discard(self._by_key, binding.key, binding.queue)
        if self.selectors.pop(binding, None) is not None and not self.selectors:
            self.look_again()
        else:
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
        """Add a binding to another exchange, which `check_binding` has checked; call `refresh` afterwards."""
        if self.onward is None:
            self.onward = Onward(self)
        self.onward.add(binding)
        self.forget_routes()

    def unbind_exchange(self, binding: ExchangeBinding) -> None:
        """Remove an existing binding to another exchange; call `refresh` afterwards."""
        assert self.onward is not None
        self.onward.remove(binding)
        if not len(self.onward):
            self.forget_routes()
            self.onward = None
        self.look_again()

    # ---- queries ----

    def with_only(self, binding: Binding) -> Exchange:
        """An exchange of its type that has a copy of one binding, and of which the queue knows nothing: to try it."""
        alone = self._another()
        alone._add(Binding(binding.queue, binding.key, binding.arguments))
        return alone

    def _another(self) -> Exchange:
        """An exchange of its type without bindings."""
        return type(self)(self.name)

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
        """Equal for equal bindings of its source."""
        arguments = frozenset((name, comparable(typed)) for name, typed in self.arguments.entries)
        return self.destination, self.key, arguments


class Hop(NamedTuple):
    """An exchange that a message reaches.

    Attributes:
        exchange: the exchange.
        bindings: the matching bindings, one for each queue.
        following: the exchanges that it is passed on to.
    """

    exchange: Exchange
    bindings: tuple[Binding, ...]
    following: tuple[Exchange, ...]


class Onward:
    """The bindings of one exchange to others, which pass on matching messages; each queue gets a message once.

        source      the exchange that has the binding: it matches messages as for queues, by its type
        hops        the exchanges that a message reaches, each once, so that cycles end; the source is the first
        alternate   of an exchange in between gets messages that match neither a queue nor an exchange there; that of
                    the source gets messages that reach no queue at all, as always

    The route of a message is that of its source: it is cached there, and publishing takes no longer than to an exchange
    without such bindings. Only if one of the exchanges uses more than the routing key (type headers), each message is
    matched anew. Exchanges that share a route forget their routes together. Each exchange counts the messages that
    reach it: the routes of the others on the way (`Route.whole`) have the counters of the source's.

    Source: RabbitMQ, "Exchange to Exchange Bindings".

    Args:
        source: the exchange.

    Attributes:
        is_dynamic: whether one of the exchanges that can be reached routes by more than the key.
    """

    __slots__ = (
        "_bindings", "_by_key", "_criteria", "_found", "_found_size", "_index", "_source", "is_dynamic"
    )  # fmt: skip

    def __init__(self, source: Exchange) -> None:
        self._source = source
        self._bindings: dict[Hashable, ExchangeBinding] = {}
        self._by_key: dict[str, dict[ExchangeBinding, None]] = {}
        self._index = TopicIndex(source.name)
        self._criteria: dict[ExchangeBinding, Criteria] = {}
        self._found: dict[tuple[Hop, ...], Route] = {}
        self._found_size = 0  # sizes of `_found`
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
        return _route(_hops(self._source, key, NO_HEADERS, steps))

    def route(self, message: Message, steps: Steps) -> Route:
        """The route of a message."""
        hops = _hops(self._source, message.routing_key, Headers(message), steps)
        route = self._found.get(hops)
        if route is None:
            if len(self._found) >= MAX_FOUND or self._found_size >= MAX_ROUTED:
                self._source.forget_routes()
            route = _route(hops)
            self._found_size += route.size
            self._found[hops] = self._source.register(route)
        return route

    def forget_routes(self) -> None:
        """Forget the routes of messages that were matched by more than their key."""
        self._found.clear()
        self._found_size = 0


def check_binding(binding: ExchangeBinding) -> None:
    """Check that such a binding is possible.

    Raises:
        NotImplementedByBrokerError: exchanges of a type cannot be bound to each other.
        InternalError: the arguments have no valid criteria.
    """
    for exchange in (binding.source, binding.destination):
        is_able = exchange.type_name in _TYPES or (exchange is binding.destination and exchange.is_destination)
        if not is_able or not exchange.name:
            text = f'exchange "{exchange.name}" is of type {exchange.type_name}: other exchanges cannot be bound to it'
            raise NotImplementedByBrokerError(text)
    if requested_selector(binding.arguments) is not None:
        raise NotImplementedByBrokerError("bindings between exchanges have no selectors; bind a queue with one")
    if binding.source.type_name == "headers":
        parse_criteria(binding.arguments)


def refresh(exchanges: Iterable[Exchange]) -> None:
    """Update which exchanges need more than the key: bindings between exchanges, or alternate exchanges, have changed.

    The time it takes grows with the number of all exchanges and bindings between them.
    """
    leads_to: dict[Exchange, list[Exchange]] = {}  # destination or alternate exchange -> exchanges that lead to it
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
        if exchange.uses_contents:
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


HOP_STEPS: Final = 4
"""Steps for each exchange that a message reaches through others: it takes some 3.5 µs (`tests/bench/bench_turns`)."""


def _hops(source: Exchange, key: str, headers: Headers, steps: Steps) -> tuple[Hop, ...]:
    """The exchanges that a message reaches."""
    hops: list[Hop] = []
    reached: dict[Exchange, None] = {source: None}
    work: list[Exchange] = [source]
    for exchange in work:
        if exchange is not source:
            steps.left -= HOP_STEPS
        if steps.left < 0:
            raise RoutingLimitError(
                f'exchange "{source.name}": a message takes more than {MAX_STEPS:,} steps from there'
            )
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
    """The route of the source, which also counts for the other exchanges on the way."""
    source = hops[0]
    if len(hops) == 1 and not source.bindings:
        return source.exchange.no_route
    queues: dict[Queue, None] = {}
    for hop in hops:
        for binding in hop.bindings:
            queues[binding.queue.redirect_peer or binding.queue] = None
    whole = Route(source.bindings, exchanges=len(hops) - 1)
    whole.lead_to(tuple(queues))
    for hop in hops[1:]:
        part = Route(hop.bindings)
        part.whole, part.is_passed_on = whole, bool(hop.following)
        hop.exchange.register(part)
        hop.exchange.share_routes(source.exchange)
        source.exchange.share_routes(hop.exchange)
    return whole
