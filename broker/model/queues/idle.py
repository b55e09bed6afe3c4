"""Unused queues that are deleted after a timeout: auto-delete queues, and those with `x-expires`.

The timeout starts when the last consumer or the owner is gone, and restarts when that happens again. The code that
takes due queues checks whether they are still unused. If the broker stops before the timeout is over, the queue stays
after the restart until it has been used again, because it is then unknown whether it ever was.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from qstore.broker.model.queues.queue import Queue


class IdleQueues:
    """The queues whose timeout is running.

    Args:
        monotonic: seconds of a monotonic clock: no queue may be deleted because the time of day was set.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._until: dict[Queue, float] = {}
        self._next = inf  # nothing is due before this time

    def __contains__(self, queue: Queue) -> bool:
        return queue in self._until

    def __len__(self) -> int:
        return len(self._until)

    def begin(self, queue: Queue) -> None:
        """Start the timeout of a queue: its `auto_delete_seconds`, from now on."""
        until = self._until[queue] = self._monotonic() + queue.auto_delete_seconds
        self._next = min(self._next, until)

    def used(self, queue: Queue) -> None:
        """Somebody uses a queue, or does not any more: if it expires, its time begins anew."""
        if queue.expires_seconds:
            until = self._until[queue] = self._monotonic() + queue.expires_seconds
            self._next = min(self._next, until)

    def keeps(self, queue: Queue) -> bool:
        """Whether an unused queue stays for now: its timeout runs again, or it is kept until it is empty."""
        if queue.is_kept_until_empty and not queue.is_empty:
            self.begin(queue)
        return queue in self._until

    def forget(self, queue: Queue) -> None:
        """Forget a queue that was deleted."""
        self._until.pop(queue, None)

    def take_due(self) -> list[Queue]:
        """Remove and return the queues whose timeout is over."""
        now = self._monotonic()
        if now < self._next:
            return []
        due = [queue for queue, until in self._until.items() if until <= now]
        for queue in due:
            del self._until[queue]
        self._next = min(self._until.values(), default=inf)
        return due
