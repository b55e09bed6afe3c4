"""Queues and messages that exchanges can route, and nothing more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qstore.broker.model.counters import Watermark
from qstore.broker.model.exchanges.exchange import Exchange
from qstore.broker.model.exchanges.route import Binding, Route
from qstore.formats.values import TypedMap, typed_map


class FakeQueue:
    """A queue that has a name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.binding_count = Watermark()
        self.bound_to: dict[Exchange, None] = {}
        self.redirect_peer = None

    def __repr__(self) -> str:
        return self.name


class FakeMessage:
    """A message that has a routing key and headers."""

    def __init__(self, key: str = "", headers: Mapping[str, object] | None = None) -> None:
        self.routing_key = key
        self._headers = headers or {}

    def headers(self) -> TypedMap:
        return typed_map(self._headers)


def fake_queues(names: str) -> Any:
    """One for each letter."""
    return [FakeQueue(name) for name in names]


def unbind_queue(exchange: Exchange, queue: Any) -> list[Binding]:
    """Remove all bindings of a queue, and return them."""
    bindings = exchange.bindings_of(queue)
    for binding in bindings:
        exchange.remove(binding)
    return bindings


def routed(exchange: Exchange, key: str = "", headers: Mapping[str, object] | None = None) -> str:
    """The names of the queues that a message goes to, sorted, each as often as it is named."""
    message: Any = FakeMessage(key, headers)
    return "".join(sorted(queue.name for queue in exchange.route(message).queues))


def names(route: Route) -> str:
    """The names of its queues, sorted."""
    return "".join(sorted(queue.name for queue in route.queues))
