"""The topic exchange: to the queues whose binding key, a pattern, matches the message's routing key.

Patterns and the way in which they are matched are those of `topic_index`. A binding is known by its key as it was
given: "#" and "#.#" match the same messages, and are two bindings. Source: AMQP 0-10, class exchange, type topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from broker.model.exchanges.exchange import Binding, Exchange
from broker.model.exchanges.topic_index import TopicIndex
from formats.values import EMPTY_MAP, TypedMap

if TYPE_CHECKING:
    from broker.model.queues.queue import Queue


class TopicExchange(Exchange):
    """An exchange of type topic."""

    type_name: ClassVar[str] = "topic"

    __slots__ = ("_index",)

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
        self._index = TopicIndex()

    def add(self, binding: Binding) -> None:
        """Have a binding, and its pattern if that is new."""
        if binding.key not in self._by_key:
            self._index.add(binding.key)
        super().add(binding)

    def remove(self, binding: Binding) -> None:
        """Do without a binding, and without its pattern if no other has it."""
        super().remove(binding)
        if binding.key not in self._by_key:
            self._index.remove(binding.key)

    def match(self, key: str) -> tuple[Queue, ...]:
        """The queues that are bound with a pattern that matches this key."""
        patterns = self._index.match(key)
        if len(patterns) == 1:
            return tuple(self._by_key[patterns[0]])
        return tuple(dict.fromkeys(queue for pattern in patterns for queue in self._by_key[pattern]))
