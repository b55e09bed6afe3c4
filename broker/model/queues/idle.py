"""Auto-delete queues that nobody uses any more, and that stay for a while.

The time begins when the last consumer or the owner is gone, and anew when that happens again. Whoever asks what is due
looks whether it is used by then. A queue whose time was not over when the broker stopped stays until it was used again:
nobody knows then whether it ever was.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from broker.model.queues.queue import Queue


class IdleQueues:
    """The queues whose time runs.

    Args:
        clock: seconds; when the time of a queue is over is told by it.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: dict[Queue, float] = {}
        self._next = inf  # nothing is due before

    def __contains__(self, queue: Queue) -> bool:
        return queue in self._until

    def __len__(self) -> int:
        return len(self._until)

    def begin(self, queue: Queue) -> None:
        """A queue is not used any more: it stays for its `auto_delete_seconds`, from now on."""
        until = self._until[queue] = self._clock() + queue.auto_delete_seconds
        self._next = min(self._next, until)

    def forget(self, queue: Queue) -> None:
        """A queue is gone."""
        self._until.pop(queue, None)

    def take_due(self) -> list[Queue]:
        """Take those whose time is over."""
        now = self._clock()
        if now < self._next:
            return []
        due = [queue for queue, until in self._until.items() if until <= now]
        for queue in due:
            del self._until[queue]
        self._next = min(self._until.values(), default=inf)
        return due
