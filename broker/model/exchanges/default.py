"""The default exchange, whose name is empty: to the queue whose name is the routing key.

Every queue is bound to it under its name from its first day to its last, so it keeps no bindings: it looks the queue
up among the broker's. What it finds it remembers like all exchanges, so a queue that goes is to be forgotten. Whoever
makes a queue sets how many there are. Nothing else can be bound to it, and it can be neither declared nor deleted.
Source: AMQP 0-10, exchange, default-exchange.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from broker.model.errors import NotAllowedError
from broker.model.exchanges.exchange import MAX_ROUTES, BoundResult, Exchange
from broker.model.exchanges.route import Binding, Route
from formats.values import TypedMap

if TYPE_CHECKING:
    from broker.model.queues.queue import Queue


class DefaultExchange(Exchange):
    """The default exchange.

    Args:
        queues: all queues by name, kept up to date by whoever makes and deletes them.
    """

    type_name: ClassVar[str] = "direct"

    __slots__ = ("_queues",)

    def __init__(self, queues: Mapping[str, Queue]) -> None:
        super().__init__("")
        self._queues = queues

    def match(self, key: str) -> Route:
        """To the queue of this name."""
        queue = self._queues.get(key)
        return self.no_route if queue is None else Route((Binding(queue, key),))

    def find(self, key: str) -> Route:
        """As `match`; and remember it in `routes`, unless there is no such queue: there may be one at any time."""
        route = self.match(key)
        if route is self.no_route:
            return route
        if len(self.routes) >= MAX_ROUTES:
            self.forget_routes()
        self.routes[key] = route
        return self._kept(route)

    def forget(self, name: str) -> None:
        """A queue is gone, or its name is another's now."""
        self.binding_count.set(len(self._queues))
        route = self.routes.pop(name, None)
        if route is not None:
            del self._live[route]
            self._take_in(route)

    def prepare(self, queue: Queue, key: str, arguments: TypedMap) -> Binding | None:  # noqa: ARG002 – all are refused
        """Refuse every binding. Raises NotAllowedError."""
        raise NotAllowedError(f'queue "{queue.name}" is bound to the default exchange by its name, not by "{key}"')

    def bound(
        self,
        queue: Queue | None = None,
        key: str | None = None,
        arguments: TypedMap | None = None,  # noqa: ARG002 – its bindings have none
    ) -> BoundResult:
        """Whether there is such a queue; with a queue, whether the key is its name."""
        if key is None:
            return BoundResult()
        return BoundResult(key_not_matched=key not in self._queues if queue is None else key != queue.name)
