"""When a walk over a whole queue, in search of messages that can go out of memory, is worth it.

It is made only after so many messages have come, or come back, that it is cheap for each. What has come back until then
takes at most as much memory as the references of the entries that it passes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qstore.broker.model.queues.queue import Queue
    from qstore.broker.model.residency.references import Tally
    from qstore.broker.model.residency.stretch import Portions


class Walks:
    """The walks over one queue.

    Args:
        queue: the queue.
        portions: its `patience`.

    The methods are given the tally of what has gone out of memory, and come back: it has this object, and a reference
    back to it would keep a deleted queue until garbage is collected.
    """

    __slots__ = ("_at", "_portions", "_queue", "_was_urgent")

    def __init__(self, queue: Queue, portions: Portions) -> None:
        self._queue, self._portions = queue, portions
        self._at = 0  # how much must have happened for the next one
        self._was_urgent = False

    def may_begin(self, tally: Tally, *, is_urgent: bool) -> bool:
        """Whether enough has happened since the last one that found little.

        Or more can go out now, because the last one was not urgent.
        """
        return self._happened(tally) >= self._at or (is_urgent and not self._was_urgent)

    def has_ended(self, tally: Tally, steps: int, *, is_enough: bool, is_urgent: bool) -> None:
        """A walk has passed so many entries, and has found enough or not."""
        if not is_enough:
            self._was_urgent = is_urgent
            self._at = self._happened(tally) + max(self._portions.patience, steps // 8)

    def _happened(self, tally: Tally) -> int:
        """Messages that have come, and came back; large ones count as several."""
        queue, portions = self._queue, self._portions
        size = queue.bytes_enqueued + tally.bytes_in
        return (
            queue.messages_enqueued
            + queue.counters.releases
            + tally.messages_in
            + size * portions.patience // portions.bytes
        )
