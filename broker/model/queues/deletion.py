"""A queue's deletion while the store carries it out: after a crash the queue may exist again, with all its messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qstore.broker.model.queues.consumer import Consumer


class Deletion:
    """A queue's deletion under way.

    Args:
        consumers: the queue's consumers.
        exclusive_consumer: its exclusive consumer; None if there is none.

    Attributes:
        consumers: the consumers, less those that have gone since.
    """

    __slots__ = ("_exclusive_consumer", "_waiting", "consumers")

    def __init__(self, consumers: Iterable[Consumer], exclusive_consumer: Consumer | None) -> None:
        self.consumers = dict.fromkeys(consumers)
        self._exclusive_consumer = exclusive_consumer
        self._waiting: list[Callable[[bool], None]] = []

    @property
    def exclusive_consumer(self) -> Consumer | None:
        """The exclusive consumer, unless it has gone."""
        return self._exclusive_consumer if self._exclusive_consumer in self.consumers else None

    def when_ended(self, callback: Callable[[bool], None]) -> None:
        """Call back at the end: with True if the store has deleted the queue, with False if it has failed to."""
        self._waiting.append(callback)

    def ended(self, *, is_deleted: bool) -> None:
        """Call those who wait for the end."""
        for callback in self._waiting:
            callback(is_deleted)
