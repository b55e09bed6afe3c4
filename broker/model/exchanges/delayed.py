"""Exchanges of type x-delayed-message: they route as the type in `x-delayed-type` does, each message when it is due.

A message with the header x-delay, a positive number of milliseconds, waits for that time in the schedule of its virtual
host (`model/schedule`), which is the receiver of such an exchange; all others are routed at once. So are those that
arrive because it is an alternate or a dead-letter exchange. Exchanges cannot be bound to it, nor it to them.

Source: the plug-in rabbitmq_delayed_message_exchange (behaviour).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from qstore.broker.model.arguments import DELAYED_TYPE, as_text, shown
from qstore.broker.model.errors import InvalidArgumentError
from qstore.broker.model.exchanges.direct import DirectExchange
from qstore.broker.model.exchanges.fanout import FanoutExchange
from qstore.broker.model.exchanges.headers import HeadersExchange
from qstore.broker.model.exchanges.topic import TopicExchange

if TYPE_CHECKING:
    from qstore.broker.model.exchanges.exchange import Exchange
    from qstore.formats.values import TypedMap

DELAYED: Final = "x-delayed-message"


class DelayedDirect(DirectExchange):
    """One that routes as type direct."""

    kind: ClassVar[str] = DELAYED
    routes_as: ClassVar[str] = "direct"

    __slots__ = ()


class DelayedTopic(TopicExchange):
    """One that routes as type topic."""

    kind: ClassVar[str] = DELAYED
    routes_as: ClassVar[str] = "topic"

    __slots__ = ()


class DelayedFanout(FanoutExchange):
    """One that routes as type fanout."""

    kind: ClassVar[str] = DELAYED
    routes_as: ClassVar[str] = "fanout"

    __slots__ = ()


class DelayedHeaders(HeadersExchange):
    """One that routes as type headers."""

    kind: ClassVar[str] = DELAYED
    routes_as: ClassVar[str] = "headers"

    __slots__ = ()


_CLASSES: Final[dict[object, type[Exchange]]] = {
    each.routes_as: each for each in (DelayedDirect, DelayedTopic, DelayedFanout, DelayedHeaders)
}


def delayed_type(arguments: TypedMap) -> type[Exchange]:
    """The class of an exchange with these arguments. Raises InvalidArgumentError: they name no type."""
    typed = arguments.get(DELAYED_TYPE)
    wanted = None if typed is None else as_text(typed.value)
    found = _CLASSES.get(wanted) if isinstance(wanted, str) else None
    if found is None:
        given = "is missing" if typed is None else f"is {shown(wanted)}"
        raise InvalidArgumentError(
            f"Invalid argument, '{DELAYED_TYPE}' must be direct, fanout, headers or topic, and {given}"
        )
    return found
