"""The topic exchange: routes to queues whose binding key, a pattern, matches the message's routing key.

`matching` defines patterns and how they match. A binding is identified by its key as given: "#" and "#.#" match the
same messages, but are two bindings. Source: AMQP 0-10, class exchange, type topic.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, ClassVar

from qstore.broker.model.exchanges.exchange import Exchange, Headers
from qstore.broker.model.exchanges.matching import Steps, TopicIndex
from qstore.broker.model.exchanges.route import Binding

if TYPE_CHECKING:
    from qstore.broker.model.queues.queue import Queue


class TopicExchange(Exchange):
    """An exchange of type topic."""

    kind: ClassVar[str] = "topic"
    takes_selectors: ClassVar[bool] = True

    __slots__ = ("_index",)

    def _set_up(self) -> None:
        self._index = TopicIndex(self.name)

    def _add(self, binding: Binding) -> None:
        if binding.key not in self._by_key:
            self._index.add(binding.key)
        super()._add(binding)

    def _remove(self, binding: Binding) -> None:
        super()._remove(binding)
        if binding.key not in self._by_key:
            self._index.remove(binding.key)

    def matched(self, key: str, headers: Headers, steps: Steps) -> Collection[Binding]:
        """The bindings with a pattern that matches this key, one for each queue."""
        patterns = self._index.match(key, steps)
        if self.selectors:
            every = (binding for pattern in patterns for binding in self._by_key[pattern].values())
            return self.selected(every, headers, steps)
        if len(patterns) == 1:
            return self._by_key[patterns[0]].values()
        first: dict[Queue, Binding] = {}
        for pattern in patterns:
            for queue, binding in self._by_key[pattern].items():
                first.setdefault(queue, binding)
        return first.values()
