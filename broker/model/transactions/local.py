"""A local transaction: the messages that a session publishes and accepts between two commits.

Commit first checks everything (`planned`), then writes the records of all durable queues as one transaction of the
store. The messages are enqueued at once, after barriers that are lowered when the commit is on the disk (`effects`).
Until then they are not delivered. Neither they nor the commit wait for queues that flow control has stopped
(`flow_control`).

If the store reports that the outcome of a commit is unknown, stored messages stay in place, undelivered, until the next
start determines the outcome; for messages that are not stored, the transaction is undone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING

from qstore.broker.model.errors import InternalError, ModelError, ResourceLimitExceededError
from qstore.broker.model.queues.barriers import Barrier
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.settlement import release, release_in_turns
from qstore.broker.model.transactions.effects import Effects
from qstore.broker.model.transactions.planned import Leaving, Planned, Rids
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
        self._commit(Planned(self, self._router), done)

    def _commit(self, planned: Planned, done: Done) -> None:
        outcome = _Outcome(self._store, self._tick, done)
        rids = self._write(planned, outcome.told)
        outcome.begin(planned, rids)
        if rids is None:
            outcome.known(None)

    def commit_in_turns(self, done: Done) -> Iterator[None]:
        """As `commit`, of a transaction that accepts many messages; `done` is called in any case.

        If it cannot be committed, the accepted messages are available again. The work is over when the commit is
        written: what follows is not part of it.
        """
        leaving = Leaving(self, self._router)
        try:
            yield from leaving.mark()
            self._commit(Planned(self, self._router, leaving), done)
        except ModelError as error:
            failure = error.with_traceback(None)
        else:
            return
        yield from leaving.undo()
        yield from self._release_in_turns()
        done(failure)

    def _release_in_turns(self) -> Iterator[None]:
        """Accepted messages are available again, and marked as redelivered."""
        accepted = self.accepted
        self.clear()
        yield from release_in_turns(((queue, entry) for entry, queue in accepted.items()), is_redelivered=True)

    def discard(self) -> None:
        """Discard all of it: accepted messages are available again, and marked as redelivered."""
        if self.accepts_many:
            self._tick.turns.do(self, self._release_in_turns())
            return
        accepted = self.accepted
        self.clear()
        release(((queue, entry) for entry, queue in accepted.items()), is_redelivered=True)

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
        effects = self._effects
        if effects.are_many:
            self._tick.turns.do(self, self._finish(error))
        elif error is None:
            effects.complete()
            self._end(None)
        else:
            for _ in self._finish(error):
                pass

    def _finish(self, error: Exception | None) -> Iterator[None]:
        self._end((yield from _finished(self._effects, self._store, error)))

    def _end(self, failure: ModelError | None) -> None:
        for queue, barrier in self._barriers:
            queue.lower(barrier)
        self._done(failure)


def _finished(
    effects: Effects, store: Store | None, error: Exception | None
) -> Generator[None, None, ModelError | None]:
    """The store has committed a transaction, or has failed to. Returns the error for the client."""
    if error is None:
        yield from effects.complete_in_turns()
        return None
    if store is not None and isinstance(error, store.full_error):
        yield from effects.undo(releases=True)
        return ResourceLimitExceededError(str(error))
    yield from effects.undo(releases=True, leaves_stored=True)
    return InternalError(f"the outcome of the transaction is unknown: {error}")
