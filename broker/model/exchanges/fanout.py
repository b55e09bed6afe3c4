"""The fanout exchange: to every queue that is bound, whatever the key.

A queue is bound once: another binding of it, under any key, is the one that is there, and any key unbinds it. qpidd
keeps it so, also when it recovers the bindings of a store (`store.catalogue.wiring.effective_bindings`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from broker.model.exchanges.exchange import BoundResult, Exchange
from broker.model.exchanges.route import Binding, Route
from formats.values import EMPTY_MAP, TypedMap

if TYPE_CHECKING:
    from broker.model.queues.queue import Queue


class FanoutExchange(Exchange):
    """An exchange of type fanout."""

    type_name: ClassVar[str] = "fanout"

    __slots__ = ("_all",)

    def __init__(
        self,
        name: str,
        *,
        durable: bool = False,
        auto_delete: bool = False,
        alternate: Exchange | None = None,
        arguments: TypedMap = EMPTY_MAP,
    ) -> None:
        super().__init__(name, durable=durable, auto_delete=auto_delete, alternate=alternate, arguments=arguments)
        self._all: Route | None = None

    def match(self, key: str) -> Route:  # noqa: ARG002 – the key says nothing
        """To all queues that are bound."""
        if self._all is None:
            self._all = self._route_by(tuple(self.bindings))
        return self._all

    def forget_routes(self) -> None:
        """Empty `routes`, and gather the bindings anew."""
        super().forget_routes()
        self._all = None

    def find_binding(self, queue: Queue, key: str) -> Binding | None:  # noqa: ARG002 – the key says nothing
        """The queue's one binding."""
        return next(iter(self._by_queue.get(queue, {}).values()), None)

    def bound(
        self,
        queue: Queue | None = None,
        key: str | None = None,  # noqa: ARG002 – it says nothing
        arguments: TypedMap | None = None,
    ) -> BoundResult:
        """Whether the queue is bound; the key matches as soon as anything is."""
        return super().bound(queue, None, arguments)
