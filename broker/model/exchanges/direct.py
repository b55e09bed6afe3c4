"""The direct exchange: routes to queues bound with the message's routing key.

A binding with the argument `qpid.exclusive-binding` atomically replaces all others with the key, including those of its
own queue: every message is routed by the old bindings or by the new one. The argument takes effect only when the
binding is created: a later binding without it is added beside it. So recreating bindings in their original order, as at
recovery, gives the same result.

Sources: AMQP 0-10, class exchange; Qpid C++ Broker Book, 1.3.1.3; MRG 2 Messaging User Guide, 2.3.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, ClassVar

from qstore.broker.model.arguments import EXCLUSIVE_BINDING, is_switched_on
from qstore.broker.model.exchanges.exchange import Exchange, Headers
from qstore.broker.model.exchanges.matching import Steps
from qstore.broker.model.exchanges.route import Binding
from qstore.broker.model.selectors.selector import requested_selector
from qstore.formats.values import TypedMap

if TYPE_CHECKING:
    from qstore.broker.model.queues.queue import Queue


class DirectExchange(Exchange):
    """An exchange of type direct."""

    kind: ClassVar[str] = "direct"
    takes_selectors: ClassVar[bool] = True

    __slots__ = ()

    def matched(self, key: str, headers: Headers, steps: Steps) -> Collection[Binding]:
        """The bindings with exactly this key."""
        found = self._by_key.get(key, {}).values()
        return self.selected(found, headers, steps) if self.selectors else found

    def prepare(self, queue: Queue, key: str, arguments: TypedMap) -> Binding | None:
        """A binding for `put`; None if it already exists, and, if it is exclusive, is the only one."""
        if not is_switched_on(arguments, EXCLUSIVE_BINDING):
            return super().prepare(queue, key, arguments)
        requested_selector(arguments)
        held = self._by_key.get(key, {})
        own = held.get(queue)
        if own is not None and len(held) == 1 and is_switched_on(own.arguments, EXCLUSIVE_BINDING):
            return None
        return Binding(queue, key, arguments)

    def replaced_by(self, key: str, arguments: TypedMap) -> list[Binding]:
        """The bindings that a new one with this key and these arguments will replace."""
        return list(self._by_key.get(key, {}).values()) if is_switched_on(arguments, EXCLUSIVE_BINDING) else []

    def put(self, binding: Binding) -> list[Binding]:
        """Add a binding that `prepare` created. Returns those that it has replaced."""
        replaced = self.replaced_by(binding.key, binding.arguments)
        for each in replaced:
            self.remove(each)
        self.add(binding)
        return replaced
