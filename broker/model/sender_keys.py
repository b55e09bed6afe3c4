"""Further routing keys of a message, which its sender has selected: the headers CC and BCC.

    CC     a list of texts: the message is routed by each of them as well; consumers see the header
    BCC    likewise, but consumers do not see it

A queue gets the message once, however many of its keys lead there, and delivers it with the key of its publication.
Elements that are no texts do not count, as in RabbitMQ. Source: RabbitMQ, "Sender-selected Distribution".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from qstore.broker.model.errors import InvalidArgumentError, RoutingLimitError
from qstore.broker.model.exchanges.topic_index import MAX_STEPS
from qstore.formats.values import TypedMap, TypedValue

if TYPE_CHECKING:
    from qstore.broker.model.exchanges.route import Alternate, Routed
    from qstore.broker.model.message import Message
    from qstore.broker.model.queues.queue import Queue

CC: Final = "CC"
BCC: Final = "BCC"

MAX_KEYS: Final = 1_000
"""Keys in one of these headers."""


def selected_keys(headers: TypedMap, name: str) -> tuple[str, ...]:
    """The keys in the header CC or BCC; none without it. Raises InvalidArgumentError if it is no list, or too long."""
    typed = headers.get(name)
    if typed is None:
        return ()
    if not isinstance(typed.value, tuple):
        raise InvalidArgumentError(f"invalid message: header '{name}' is of type {typed.type.name}, not a list of keys")
    if len(typed.value) > MAX_KEYS:
        raise InvalidArgumentError(f"invalid message: header '{name}' has more than {MAX_KEYS} keys")
    keys = (_text(each) for each in typed.value)
    return tuple(key for key in keys if key is not None)


def _text(element: object) -> str | None:
    if not isinstance(element, TypedValue):
        return None
    value = element.value
    return value if isinstance(value, str) else None


def route_by_all(message: Message, exchange: Alternate) -> Routed:
    """The route of a message by all of its keys.

    Raises:
        RoutingLimitError: finding it takes too many steps.
    """
    before = exchange.steps
    route, others = exchange.route(message), message.under_further_keys()
    if not others:
        return route
    routes = [route]
    for other in others:
        routes.append(exchange.route(other))
        if exchange.steps - before > MAX_STEPS:
            text = f'exchange "{exchange.name}": the keys in headers CC and BCC take more than {MAX_STEPS:,} steps'
            raise RoutingLimitError(text)
    return SeveralRoutes(routes)


class SeveralRoutes:
    """The routes of one message by each of its keys, as one: each queue once.

    Args:
        routes: the routes, that of the first key first.

    Attributes:
        queues: as of `Routed`.
    """

    __slots__ = ("_counting", "queues")

    def __init__(self, routes: Sequence[Routed]) -> None:
        queues: dict[Queue, None] = {}
        self._counting: list[Routed] = []  # the routes by which it comes to further queues
        for route in routes:
            before = len(queues)
            queues.update(dict.fromkeys(route.queues))
            if len(queues) > before:
                self._counting.append(route)
        self.queues: Sequence[Queue] = tuple(queues)
        if not queues:
            self._counting = [routes[0]]

    def count(self, size: int) -> None:
        """Count a message of `size` bytes, once for each key that it needs."""
        for route in self._counting:
            route.count(size)
