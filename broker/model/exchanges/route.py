"""Bindings, and where they make an exchange send messages: how many has it sent there?

A route counts its own messages, so that whoever publishes adds to two numbers, however many queues and bindings there
are. What an exchange and its bindings have counted is found when somebody asks: what the routes of today have counted,
and what those had that are forgotten (`RoutedCounts`).

A message that two bindings would send to the same queue goes there by the first, which alone has matched it: as in
qpidd, so that what all bindings have matched is what the exchange has routed.

Source: qpidd, Exchange::doRoute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from formats.catalogue import BindingEntry
from formats.values import EMPTY_MAP, TypedMap

if TYPE_CHECKING:
    from broker.model.queues.queue import Queue


@dataclass(slots=True, eq=False)
class Binding:
    """A queue bound to an exchange.

    Attributes:
        queue: the queue.
        key: the binding key.
        arguments: as they came with it.
        entry: what deletes it from the store; None where it is not stored.
        routes: those of its exchange that go by it; the exchange keeps them.
        matched_before: messages that went by routes that are forgotten.
    """

    queue: Queue
    key: str
    arguments: TypedMap = EMPTY_MAP
    entry: BindingEntry | None = None
    routes: list[Route] = field(default_factory=list, repr=False)
    matched_before: int = field(default=0, repr=False)

    @property
    def messages_matched(self) -> int:
        """How many messages have gone to its queue by it."""
        return self.matched_before + sum(route.messages for route in self.routes)


class Route:
    """The queues that some messages go to.

    Args:
        bindings: by which they go there, one for each queue.

    Attributes:
        bindings: as above.
        queues: the queues, each once; empty if no binding matches.
        sole: the queue, if it is only one.
        messages, bytes: what has gone by it, or was dropped if there are no queues. Whoever has put a message on its
            queues adds to them.
    """

    __slots__ = ("bindings", "bytes", "messages", "queues", "sole")

    def __init__(self, bindings: Sequence[Binding] = ()) -> None:
        self.bindings = bindings
        self.queues: tuple[Queue, ...] = tuple(binding.queue for binding in bindings)
        self.sole = self.queues[0] if len(self.queues) == 1 else None
        self.messages = self.bytes = 0

    def __repr__(self) -> str:
        return f"<route to {self.queues}>"

    def count(self, size: int) -> None:
        """A message of `size` bytes has gone by it."""
        self.messages += 1
        self.bytes += size


@dataclass(slots=True)
class RoutedCounts:
    """What an exchange has counted since it is there.

    Attributes:
        messages_received, bytes_received: what was sent to it, or came to it as an alternate exchange.
        messages_dropped, bytes_dropped: for which there was no queue; an alternate exchange may have had one.
        messages_routed, bytes_routed: what it has put on queues, once for each queue.
    """

    messages_received: int = 0
    bytes_received: int = 0
    messages_dropped: int = 0
    bytes_dropped: int = 0
    messages_routed: int = 0
    bytes_routed: int = 0

    def take_in(self, route: Route) -> None:
        """Add what a route has counted."""
        queues = len(route.queues)
        self.messages_received += route.messages
        self.bytes_received += route.bytes
        self.messages_routed += queues * route.messages
        self.bytes_routed += queues * route.bytes
        if not queues:
            self.messages_dropped += route.messages
            self.bytes_dropped += route.bytes
