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
from qstore.broker.model.transactions.planned import Planned, Rids
from qstore.broker.model.transactions.work import Work

if TYPE_CHECKING:
    from qstore.broker.model.memory import MemoryCeiling
    from qstore.broker.model.router import Router
    from qstore.broker.model.store_protocol import Done as StoreDone
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
        planned = Planned(self, self._router)
        outcome = _Outcome(self._store, self._tick, done)
        rids = self._write(planned, outcome.told)
        outcome.begin(planned, rids)
        if rids is None:
            outcome.known(None)

    def _write(self, planned: Planned, told: StoreDone) -> Rids | None:
        """Write the records of durable queues. Returns and raises as `Planned.write`."""
        return None if self._store is None else planned.write(self._store, self._tick, told)


class _Outcome:
    """What follows when a local transaction is committed, or is not.

    Args:
        store, tick: as of `LocalTransaction`.
        done: as of `LocalTransaction.commit`.
    """

    __slots__ = ("_barriers", "_done", "_effects", "_store", "_tick")

    def __init__(self, store: Store | None, tick: Tick, done: Done) -> None:
        self._store, self._tick, self._done = store, tick, done
        self._effects = Effects()
        self._barriers: list[tuple[Queue, Barrier]] = []

    def begin(self, planned: Planned, rids: Rids | None) -> None:
        """Begin the transaction on its queues, after barriers."""
        self._barriers = [(queue, queue.raise_barrier_at_end()) for queue in planned.published]
        planned.begin(self._effects, rids)

    def told(self, error: Exception | None) -> None:
        """The store has committed it, or has failed to."""
        self._tick.transactions_under_way -= 1
        self.known(error)

    def known(self, error: Exception | None) -> None:
        """It is committed, or is not."""
        failure = commit_once(self._effects, self._store, error)
        for queue, barrier in self._barriers:
            queue.lower(barrier)
        self._done(failure)


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
