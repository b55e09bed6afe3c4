"""The direct exchange: to the queues that are bound with the message's routing key. Source: AMQP 0-10, exchange."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from broker.exchanges.exchange import Exchange

if TYPE_CHECKING:
    from broker.queues.queue import Queue


class DirectExchange(Exchange):
    """An exchange of type direct."""

    type_name: ClassVar[str] = "direct"

    __slots__ = ()

    def match(self, key: str) -> tuple[Queue, ...]:
        """The queues that are bound with this very key."""
        return tuple(self._by_key.get(key, ()))
