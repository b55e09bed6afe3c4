"""The direct exchange: to the queues that are bound with the message's routing key.

A binding with the argument `qpid.exclusive-binding` takes the place of all that the key has, those of its own queue
included, in one step: every message goes by the old bindings or by the new one. It asks for that once, when it is made:
a binding that comes later, and does not ask for it, is made beside it. So bindings that are made again in their old
order, as at recovery, come out the same.

Sources: AMQP 0-10, class exchange; Qpid C++ Broker Book, 1.3.1.3; MRG 2 Messaging User Guide, 2.3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from broker.model.exchanges.arguments import EXCLUSIVE_BINDING, is_switched_on
from broker.model.exchanges.exchange import Exchange
from broker.model.exchanges.route import Binding, Route
from formats.values import TypedMap

if TYPE_CHECKING:
    from broker.model.queues.queue import Queue


class DirectExchange(Exchange):
    """An exchange of type direct."""

    type_name: ClassVar[str] = "direct"

    __slots__ = ()

    def match(self, key: str) -> Route:
        """To the queues that are bound with this very key."""
        return self._route_by(self._by_key.get(key, {}).values())

    def prepare(self, queue: Queue, key: str, arguments: TypedMap) -> Binding | None:
        """A binding for `put`; None if it is there already, and alone if it is to be."""
        if not is_switched_on(arguments, EXCLUSIVE_BINDING):
            return super().prepare(queue, key, arguments)
        held = self._by_key.get(key, {})
        own = held.get(queue)
        if own is not None and len(held) == 1 and is_switched_on(own.arguments, EXCLUSIVE_BINDING):
            return None
        return Binding(queue, key, arguments)

    def put(self, binding: Binding) -> list[Binding]:
        """Have a binding that `prepare` made. Returns those whose place it has taken."""
        replaced: list[Binding] = []
        if is_switched_on(binding.arguments, EXCLUSIVE_BINDING):
            replaced += self._by_key.get(binding.key, {}).values()
        for each in replaced:
            self.remove(each)
        self.add(binding)
        return replaced
