"""Exchanges of type x-delayed-message: they route as the type in `x-delayed-type` does, each message when it is due.

A message with the header x-delay, a positive number of milliseconds, waits for that time in the schedule of its virtual
host (`model/schedule`), which is the receiver of such an exchange; all others are routed at once. So are those that
arrive because it is an alternate or a dead-letter exchange. Exchanges cannot be bound to it, nor it to them.

The types are all those of RabbitMQ and its plug-ins but x-recent-history, which keeps what clients publish and not
what is due. Those of qpidd (xml, replication) and of other packages are not among them, nor is x-delayed-message
itself.

Source: the plug-in rabbitmq_delayed_message_exchange (behaviour).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from qstore.broker.model.arguments import DELAYED_TYPE, as_text, shown
from qstore.broker.model.errors import InvalidArgumentError
from qstore.broker.model.exchanges.direct import DirectExchange
from qstore.broker.model.exchanges.dividing import (
    CONSISTENT_HASH,
    LOCAL_RANDOM,
    MODULUS_HASH,
    RANDOM,
    ConsistentHashByValue,
    ConsistentHashExchange,
    LocalRandomExchange,
    ModulusHashExchange,
    RandomExchange,
    hashed_by,
)
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


class DelayedConsistentHash(ConsistentHashExchange):
    """One that routes as type x-consistent-hash, by the key."""

    kind: ClassVar[str] = DELAYED
    routes_as: ClassVar[str] = CONSISTENT_HASH
    is_destination: ClassVar[bool] = False

    __slots__ = ()


class DelayedConsistentHashByValue(ConsistentHashByValue):
    """Likewise, by a header or a property."""

    kind: ClassVar[str] = DELAYED
    routes_as: ClassVar[str] = CONSISTENT_HASH
    is_destination: ClassVar[bool] = False

    __slots__ = ()


class DelayedModulusHash(ModulusHashExchange):
    """One that routes as type x-modulus-hash."""

    kind: ClassVar[str] = DELAYED
    routes_as: ClassVar[str] = MODULUS_HASH
    is_destination: ClassVar[bool] = False

    __slots__ = ()


class DelayedRandom(RandomExchange):
    """One that routes as type x-random."""

    kind: ClassVar[str] = DELAYED
    routes_as: ClassVar[str] = RANDOM
    is_destination: ClassVar[bool] = False

    __slots__ = ()


class DelayedLocalRandom(LocalRandomExchange):
    """One that routes as type x-local-random."""

    kind: ClassVar[str] = DELAYED
    routes_as: ClassVar[str] = LOCAL_RANDOM
    is_destination: ClassVar[bool] = False

    __slots__ = ()


_CLASSES: Final[dict[object, type[Exchange]]] = {
    each.routes_as: each
    for each in (
        DelayedDirect, DelayedTopic, DelayedFanout, DelayedHeaders, DelayedConsistentHash, DelayedModulusHash,
        DelayedRandom, DelayedLocalRandom,
    )
}  # fmt: skip


def routing_type_in(arguments: TypedMap) -> object:
    """The type that these arguments name, whatever it is; None for none."""
    typed = arguments.get(DELAYED_TYPE)
    return None if typed is None else as_text(typed.value)


def delayed_type(arguments: TypedMap) -> type[Exchange]:
    """The class of an exchange with these arguments. Raises InvalidArgumentError: they are not valid."""
    wanted = routing_type_in(arguments)
    found = _CLASSES.get(wanted) if isinstance(wanted, str) else None
    if found is None:
        given = "is missing" if wanted is None else f"is {shown(wanted)}"
        *others, last = sorted(map(str, _CLASSES))
        raise InvalidArgumentError(
            f"Invalid argument, '{DELAYED_TYPE}' must be {', '.join(others)} or {last}, and {given}"
        )
    return DelayedConsistentHashByValue if wanted == CONSISTENT_HASH and any(hashed_by(arguments)) else found
