"""Bindings, and the routes built from them, with their message counters.

A route counts its own messages, so that publishing increments two numbers, however many queues and bindings match. The
counters of exchanges and bindings are computed on demand: those of current routes, plus the accumulated ones of routes
that were dropped (`RoutedCounts`).

A message that two bindings would send to the same queue counts only for the first of them, as in qpidd, so that the
matches of all bindings add up to the messages that the exchange has routed.

Source: qpidd, Exchange::doRoute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from qstore.broker.model.errors import RoutingLimitError
from qstore.broker.model.queues.queue import Queue
from qstore.formats.catalogue import BindingEntry
from qstore.formats.values import EMPTY_MAP, TypedMap

if TYPE_CHECKING:
    from qstore.broker.model.message import Message

MAX_KEY_STEPS: Final = 9_000
"""Steps to route a message by all of its keys; each key may take a millisecond more."""

KEY_STEPS: Final = 8
"""Steps that each further key counts for by itself: some 8 µs to read it and to find its route."""


@dataclass(slots=True, eq=False)
class Binding:
    """A queue bound to an exchange.

    Attributes:
        queue: the queue.
        key: the binding key.
        arguments: as received.
        entry: the handle for deleting it from the store; None if it is not stored.
        routes: routes of its exchange that use it; maintained by the exchange.
        matched_before: messages counted by routes that were dropped.
    """

    queue: Queue
    key: str
    arguments: TypedMap = EMPTY_MAP
    entry: BindingEntry | None = None
    routes: list[Route] = field(default_factory=list, repr=False)
    matched_before: int = field(default=0, repr=False)

    @property
    def messages_matched(self) -> int:
        """Number of messages that it has routed to its queue."""
        return self.matched_before + sum(route.counted.messages for route in self.routes)


class Route:
    """The queues that some messages are routed to.

    Args:
        bindings: the bindings that match, one for each queue.
        exchanges: others that the messages reach, each of which has a route that counts with this one.

    Attributes:
        bindings: as above.
        queues: the queues, or those that their messages are redirected to, each once; empty if no binding matches.
        sole: the queue, if there is exactly one.
        whole: the route that counts for it, in the exchange that a message was published to; None if it counts itself.
        is_passed_on: whether its messages are passed on to other exchanges, too.
        messages, bytes: messages routed, or dropped if there are no queues. Incremented by the code that has enqueued a
            message.
    """

    __slots__ = ("_exchanges", "bindings", "bytes", "is_passed_on", "messages", "queues", "sole", "whole")

    def __init__(self, bindings: Sequence[Binding] = (), *, exchanges: int = 0) -> None:
        self.bindings, self._exchanges = bindings, exchanges
        self.queues: tuple[Queue, ...] = tuple(binding.queue for binding in bindings)
        if any(queue.redirect_peer is not None for queue in self.queues):
            self.queues = tuple({queue.redirect_peer or queue: None for queue in self.queues})
        self.sole = self.queues[0] if len(self.queues) == 1 else None
        self.whole: Route | None = None
        self.is_passed_on = False
        self.messages = self.bytes = 0

    def __repr__(self) -> str:
        return f"<route to {self.queues}>"

    def lead_to(self, queues: tuple[Queue, ...]) -> None:
        """Add queues that other exchanges route to; each once."""
        self.queues = queues
        self.sole = queues[0] if len(queues) == 1 else None

    @property
    def size(self) -> int:
        """What it costs to keep and to drop, in queues: the route counts as 2, and each one of others as 16."""
        return 2 + len(self.queues) + 16 * self._exchanges

    @property
    def counted(self) -> Route:
        """The route that has its counters."""
        return self if self.whole is None else self.whole

    def count(self, size: int) -> None:
        """Count a message of `size` bytes."""
        self.messages += 1
        self.bytes += size


class Routed(Protocol):
    """The result of routing a message: a `Route`, or several combined."""

    @property
    def queues(self) -> Sequence[Queue]:
        """The queues, each once."""

    def count(self, size: int) -> None:
        """Count a message of `size` bytes."""


class Alternate(Protocol):
    """A destination of moved messages: an exchange, or the part of it open to a message (`dead_letters`)."""

    name: str

    @property
    def steps(self) -> int:
        """Steps taken so far to route messages."""

    @property
    def alternate(self) -> Alternate | None:
        """The exchange for messages that match no queue here."""

    def route(self, message: Message) -> Routed:
        """The queues for a message."""


class SeveralRoutes:
    """The routes of one message by each of its keys, as one: each queue once.

    Args:
        routes: the routes, that of the first key first.

    Attributes:
        queues: as in `Routed`.
    """

    __slots__ = ("_counting", "queues")

    def __init__(self, routes: Sequence[Routed]) -> None:
        queues: dict[Queue, None] = {}
        self._counting: list[Routed] = []  # the routes that add queues
        for route in routes:
            before = len(queues)
            queues.update(dict.fromkeys(route.queues))
            if len(queues) > before:
                self._counting.append(route)
        self.queues: Sequence[Queue] = tuple(queues)
        if not queues:
            self._counting = [routes[0]]

    def count(self, size: int) -> None:
        """Count a message of `size` bytes, once for each key that adds queues."""
        for route in self._counting:
            route.count(size)


def route_by_all(message: Message, exchange: Alternate) -> Routed:
    """The route of a message by all of its keys.

    Raises:
        RoutingLimitError: routing takes too many steps.
    """
    before = exchange.steps
    route, others = exchange.route(message), message.under_further_keys()
    if not others:
        return route
    routes = [route]
    for other in others:
        routes.append(exchange.route(other))
        if exchange.steps - before + KEY_STEPS * len(routes) > MAX_KEY_STEPS:
            text = f'exchange "{exchange.name}": the keys in headers CC and BCC take more than {MAX_KEY_STEPS:,} steps'
            raise RoutingLimitError(text)
    return SeveralRoutes(routes)


@dataclass(slots=True)
class RoutedCounts:
    """The counters of an exchange since it was created or recovered.

    Attributes:
        messages_received, bytes_received: messages published to it, or routed to it as an alternate exchange.
        messages_dropped, bytes_dropped: those that matched no queue; an alternate exchange may have routed them.
        messages_routed, bytes_routed: messages put on queues, once for each queue.
    """

    messages_received: int = 0
    bytes_received: int = 0
    messages_dropped: int = 0
    bytes_dropped: int = 0
    messages_routed: int = 0
    bytes_routed: int = 0

    def add(self, route: Route) -> None:
        """Add the counters of a route."""
        queues, messages, size = len(route.queues), route.counted.messages, route.counted.bytes
        self.messages_received += messages
        self.bytes_received += size
        self.messages_routed += queues * messages
        self.bytes_routed += queues * size
        if not queues and not route.is_passed_on:
            self.messages_dropped += messages
            self.bytes_dropped += size
