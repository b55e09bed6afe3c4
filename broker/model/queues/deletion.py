"""A queue's deletion while the store carries it out: after a crash the queue may exist again, with all its messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from qstore.broker.model.errors import InternalError

if TYPE_CHECKING:
    from qstore.broker.model.queues.consumer import Consumer
    from qstore.broker.model.queues.entry import Entry

Done = Callable[[Exception | None], None]


class Deletion:
    """A queue's deletion under way.

    Args:
        consumers: the queue's consumers, and their priorities.
        exclusive_consumer: its exclusive consumer; None if there is none.
        dequeue: as `Queue.dequeue`.
        when_synced: as `Tick.when_synced`.

    Attributes:
        consumers: these, less those that have gone since.
    """

    __slots__ = ("_dequeue", "_exclusive_consumer", "_waiting", "_when_synced", "consumers")

    def __init__(
        self,
        consumers: Mapping[Consumer, int],
        exclusive_consumer: Consumer | None,
        dequeue: Callable[[Entry], bool],
        when_synced: Callable[[Done], None],
    ) -> None:
        self._dequeue, self._when_synced = dequeue, when_synced
        self.consumers = dict(consumers)
        self._exclusive_consumer = exclusive_consumer
        self._waiting: list[Callable[[bool], None]] = []

    @property
    def exclusive_consumer(self) -> Consumer | None:
        """The exclusive consumer, unless it has gone."""
        return self._exclusive_consumer if self._exclusive_consumer in self.consumers else None

    def dequeue(self, entry: Entry, done: Done) -> None:
        """Dequeue an acquired message of the queue.

        Nothing may be appended to the journal now: the message goes with the queue. If the deletion fails, it is
        dequeued.

        Args:
            entry: the message.
            done: called when no crash can bring it back, or with the error for which it cannot be dequeued.
        """
        self._waiting.append(partial(self._leave, entry, done))

    def _leave(self, entry: Entry, done: Done, is_deleted: bool) -> None:
        try:
            is_written = not is_deleted and self._dequeue(entry)
        except InternalError as error:
            done(InternalError(str(error)))  # a new one: `error` references this frame
            return
        if is_written:
            self._when_synced(done)
        else:
            done(None)

    def ended(self, *, is_deleted: bool) -> None:
        """It has ended: the store has deleted the queue, or has failed to."""
        for callback in self._waiting:
            callback(is_deleted)
