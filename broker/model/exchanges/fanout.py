"""The fanout exchange: routes to all bound queues, whatever the key.

A queue is bound once: another binding of it, with any key, is the existing one, and any key unbinds it, as in qpidd.
The same holds for recovered bindings (`store.catalogue.topology.effective_bindings`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, ClassVar

from qstore.broker.model.exchanges.exchange import BoundResult, Exchange, Headers
from qstore.broker.model.exchanges.matching import Steps
from qstore.broker.model.exchanges.route import Binding, Route
from qstore.formats.values import TypedMap

if TYPE_CHECKING:
    from qstore.broker.model.queues.queue import Queue


class FanoutExchange(Exchange):
    """An exchange of type fanout."""

    kind: ClassVar[str] = "fanout"
    takes_selectors: ClassVar[bool] = True

    __slots__ = ("_all",)

    def _set_up(self) -> None:
        self._all: Route | None = None

    def matched(self, key: str, headers: Headers, steps: Steps) -> Collection[Binding]:  # noqa: ARG002 – the key does not count
        """All bindings."""
        return self.selected(self.bindings, headers, steps) if self.selectors else tuple(self.bindings)

    def match(self, key: str) -> Route:
        """All queues that are bound: one route for all keys, unless exchanges are bound as well."""
        if self.onward is not None:
            return super().match(key)
        if self._all is None:
            self._all = super().match(key)
        return self._all

    def drop_routes(self) -> None:
        """As `Exchange.drop_routes`."""
        super().drop_routes()
        self._all = None

    def find_binding(self, queue: Queue, key: str) -> Binding | None:  # noqa: ARG002 – the key is ignored
        """The queue's only binding."""
        return next(iter(self._by_queue.get(queue, {}).values()), None)

    def bound(
        self,
        queue: Queue | None = None,
        key: str | None = None,  # noqa: ARG002 – the key is ignored
        arguments: TypedMap | None = None,
    ) -> BoundResult:
        """Whether the queue is bound; any key matches if there is a binding."""
        return super().bound(queue, None, arguments)
