"""The default exchange, whose name is empty: routes to the queue named by the routing key.

Every queue is bound to it under its name for its whole lifetime, so it stores no bindings, but looks the queue up among
the broker's. Like all exchanges it caches routes, so a deleted queue must be removed with `forget`. The code that
creates a queue updates `binding_count`. Nothing else can be bound to it, and it cannot be declared or deleted. The
queue of scheduled messages (`model/schedule`) is not reached by its name: only the schedule puts messages there.
Source: AMQP 0-10, exchange, default-exchange.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, ClassVar

from qstore.broker.model.errors import NotAllowedError
from qstore.broker.model.exchanges.exchange import MAX_ROUTES, BoundResult, Exchange, Headers
from qstore.broker.model.exchanges.matching import Steps
from qstore.broker.model.exchanges.route import Binding, Route
from qstore.broker.model.queues.due import is_brokers_own
from qstore.formats.values import TypedMap

if TYPE_CHECKING:
    from qstore.broker.model.queues.queue import Queue


class DefaultExchange(Exchange):
    """The default exchange.

    Args:
        queues: all queues by name, maintained by the code that creates and deletes them.

    Attributes:
        replies: likewise, reply queues (`replies`), which only their requesters see.
    """

    kind: ClassVar[str] = "direct"

    __slots__ = ("_queues", "replies")

    def __init__(self, queues: Mapping[str, Queue]) -> None:
        super().__init__("")
        self._queues = queues
        self.replies: Mapping[str, Queue] = {}

    def matched(self, key: str, headers: Headers, steps: Steps) -> Collection[Binding]:  # noqa: ARG002 – only the key counts
        """The binding of the queue with this name; none for the broker's own queues."""
        queue = None if is_brokers_own(key) else self._queues.get(key)
        if queue is None:
            queue = self.replies.get(key)
        return () if queue is None else (Binding(queue, key),)

    def find(self, key: str) -> Route:
        """As `match`, and cache the route in `routes`, unless there is no such queue: it may be created at any time."""
        route = self.match(key)
        if route is self.no_route:
            return route
        if len(self.routes) >= MAX_ROUTES:
            self.forget_routes()
        self.routes[key] = route
        return self.register(route)

    def forget(self, name: str) -> None:
        """Forget the route to a queue that was deleted, or whose name is reused."""
        self.binding_count.set(len(self._queues))
        route = self.routes.pop(name, None)
        if route is not None:
            del self._live[route]
            self._retire(route)

    def prepare(self, queue: Queue, key: str, arguments: TypedMap) -> Binding | None:  # noqa: ARG002 – all are refused
        """Refuse every binding. Raises NotAllowedError."""
        raise NotAllowedError(f'queue "{queue.name}" is bound to the default exchange by its name, not by key "{key}"')

    def bound(
        self,
        queue: Queue | None = None,
        key: str | None = None,
        arguments: TypedMap | None = None,  # noqa: ARG002 – its bindings have none
    ) -> BoundResult:
        """Whether there is such a queue; with a queue, whether the key is its name."""
        if key is None:
            return BoundResult()
        if queue is None:
            return BoundResult(key_not_matched=key not in self._queues and key not in self.replies)
        return BoundResult(key_not_matched=key != queue.name)
