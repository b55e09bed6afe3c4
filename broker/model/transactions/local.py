"""A local transaction: the messages that a session publishes and accepts between two commits.

Commit first checks everything (`planned`), then writes the records of all durable queues as one transaction of the
store. The messages are enqueued at once, after barriers that are lowered when the commit is on the disk (`effects`).
Until then they are not delivered. Neither they nor the commit wait for queues that flow control has stopped
(`flow_control`).

If the store reports that the outcome of a commit is unknown, stored messages stay in place, undelivered, until the next
start determines the outcome; for messages that are not stored, the transaction is undone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from qstore.broker.model.errors import InternalError, ModelError, ResourceLimitExceededError
from qstore.broker.model.queues.barriers import Barrier
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.transactions.effects import Effects
from qstore.broker.model.transactions.planned import Dequeues, Enqueues, Planned, Rids
from qstore.broker.model.transactions.work import Work

if TYPE_CHECKING:
    from qstore.broker.model.memory import MemoryCeiling
    from qstore.broker.model.router import Router
    from qstore.broker.model.store_protocol import Store
    from qstore.broker.model.tick import Tick

Done = Callable[[ModelError | None], None]


class LocalTransaction(Work):
    """One transaction.

    Args:
        router: of the broker.
        store: persists durable messages; None without persistence.
        tick: of the broker.
        ceiling, max_bytes: as of `Work`.
    """

    __slots__ = ("_store", "_tick")

    def __init__(self, router: Router, store: Store | None, tick: Tick, ceiling: MemoryCeiling, max_bytes: int) -> None:
        super().__init__(router, ceiling, max_bytes)
        self._store, self._tick = store, tick

    def commit(self, done: Done) -> None:
        """Commit the transaction.

        Args:
            done: called when it is on the disk; or with an error if there was no room after all, and it was undone, or
                if the outcome is unknown.

        Raises:
            ModelError: it cannot be committed, and nothing was changed.
        """
        planned, effects = Planned(self, self._router), Effects()
        barriers: list[tuple[Queue, Barrier]] = []

        def committed(error: Exception | None) -> None:
            failure = commit_once(effects, self._store, error)
            for queue, barrier in barriers:
                queue.lower(barrier)
            done(failure)

        rids = self._write(planned, committed)
        barriers += [(queue, queue.raise_barrier_at_end()) for queue in planned.published]
        planned.begin(effects, rids)
        if rids is None:
            committed(None)

    def _write(self, planned: Planned, committed: Callable[[Exception | None], None]) -> Rids | None:
        """Write the records of durable queues. Returns and raises as `Planned.write`."""
        store = self._store
        if store is None:
            return None

        def write(enqueues: Enqueues, dequeues: Dequeues) -> list[int]:
            assert store is not None
            return store.transactions.commit(enqueues, dequeues, committed)

        return planned.write(store, self._tick, write, is_listed=False)


def commit_once(effects: Effects, store: Store | None, error: Exception | None) -> ModelError | None:
    """The store has committed a transaction, or has failed to. Returns the error for the client."""
    if error is None:
        effects.complete()
        return None
    if store is not None and isinstance(error, store.full_error):
        effects.undo(releases=True)
        return ResourceLimitExceededError(str(error))
    effects.leave()
    return InternalError(f"the outcome of the transaction is unknown: {error}")
