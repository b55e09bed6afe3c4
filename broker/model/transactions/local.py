"""A local transaction: the messages that a session publishes and accepts between two commits.

Commit first checks everything, then writes the records of all durable queues as one transaction of the store
(`planned`). The messages take their places on the queues when they are written, after barriers that are lowered when
the commit is on the disk (`effects`). Until then neither they nor later messages are delivered. Neither they nor the
commit wait for queues that flow control has stopped (`flow_control`). Large transactions do all of this in turns; once
begun, it is completed even if the session ends.

If the store reports that the outcome of a commit is unknown, stored messages stay in place, undelivered, until the next
start determines the outcome; for messages that are not stored, the transaction is undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from qstore.broker.model.errors import InternalError, ModelError, ResourceLimitExceededError
from qstore.broker.model.queues.barriers import Barrier
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.settlement import AT_ONCE, release, release_in_turns
from qstore.broker.model.transactions.effects import Effects
from qstore.broker.model.transactions.planned import LargePlan, Planned, Rids
from qstore.broker.model.transactions.work import QUEUES_AT_ONCE, Work

if TYPE_CHECKING:
    from qstore.broker.model.memory import MemoryCeiling
    from qstore.broker.model.router import Router
    from qstore.broker.model.store_protocol import Done as StoreDone
    from qstore.broker.model.store_protocol import Store
    from qstore.broker.model.tick import Portion, Tick

Done = Callable[[ModelError | None], None]


class LocalTransaction(Work):
    """One transaction.

    Args:
        router: of the broker.
        store: persists durable messages; None without persistence.
        tick: of the broker.
        ceiling, max_bytes: as in `Work`.
    """

    __slots__ = ("_store", "_tick")

    def __init__(self, router: Router, store: Store | None, tick: Tick, ceiling: MemoryCeiling, max_bytes: int) -> None:
        super().__init__(router, ceiling, max_bytes)
        self._store, self._tick = store, tick

    def commit(self, done: Done) -> None:
        """Commit the transaction, which is not large.

        Args:
            done: called when it is on the disk; or with an error if there was no room after all, and it was undone, or
                if the outcome is unknown.

        Raises:
            ModelError: it cannot be committed, and nothing was changed.
        """
        planned = Planned(self, self._router)
        outcome = _Outcome(self, self._store, self._tick, done)
        rids = self._write(planned, outcome.written)
        outcome.begin(planned, rids)
        if rids is None:
            outcome.known(None)

    def commit_in_turns(self, done: Done) -> Iterator[Portion]:
        """As `commit`, for a large transaction; `done` is called in any case.

        If it cannot be committed, the client gets the error first, and then the accepted messages are available again.
        The work is over when the commit is written: what follows is not part of it.
        """
        outcome = _Outcome(self, self._store, self._tick, done)
        plan = LargePlan(self, self._router, self._store, self._tick, outcome.effects, outcome.raise_barrier)
        try:
            yield from plan.write()
            plan.end(outcome.known)
        except ModelError as error:
            failure = error.with_traceback(None)
        else:
            return
        yield from plan.undo()
        self.count_end(is_committed=False)
        yield from outcome.end_in_turns(failure)
        yield from self._release_in_turns()

    def _release_in_turns(self) -> Iterator[None]:
        """Make accepted messages available again, marked as redelivered."""
        accepted, messages = self.accepted, self.messages
        self.clear()
        yield from release_in_turns(((queue, entry) for entry, queue in accepted.items()), is_redelivered=True)
        while messages:
            del messages[-AT_ONCE:]
            yield

    def discard(self) -> None:
        """Discard the transaction: accepted messages are available again, marked as redelivered."""
        self.count_end(is_committed=False)
        if self.is_large:
            self._tick.turns.do(self, self._release_in_turns())
            return
        accepted = self.accepted
        self.clear()
        release(((queue, entry) for entry, queue in accepted.items()), is_redelivered=True)

    def _write(self, planned: Planned, done: StoreDone) -> Rids | None:
        """Write the records of durable queues. Returns and raises as `Planned.write`."""
        return None if self._store is None else planned.write(self._store, self._tick, done)


class _Outcome:
    """The completion of a local transaction, after its commit or failure.

    Args:
        work: the transaction.
        store, tick: as in `LocalTransaction`.
        done: as for `LocalTransaction.commit`.

    Attributes:
        effects: its effects on queues.
    """

    __slots__ = ("_barriers", "_done", "_store", "_tick", "_work", "effects")

    def __init__(self, work: Work, store: Store | None, tick: Tick, done: Done) -> None:
        self._work, self._store, self._tick, self._done = work, store, tick, done
        self.effects = Effects()
        self._barriers: list[tuple[Queue, Barrier]] = []

    def begin(self, planned: Planned, rids: Rids | None) -> None:
        """Begin the transaction on its queues, after barriers."""
        for queue in planned.published:
            self.raise_barrier(queue)
        planned.begin(self.effects, rids)

    def raise_barrier(self, queue: Queue) -> None:
        """Block delivery of messages put on the queue from now on, until the outcome is known."""
        self._barriers.append((queue, queue.raise_barrier_at_end()))

    def written(self, error: Exception | None) -> None:
        """Continue after the store has committed it, or failed to."""
        self._tick.transactions_under_way -= 1
        self.known(error)

    def known(self, error: Exception | None) -> None:
        """Complete or undo the effects: it is committed, or has failed."""
        effects = self.effects
        if effects.are_many:
            self._tick.turns.do(self, self._finish(error))
        elif error is None:
            effects.complete()
            self._lower(self._barriers)
            self._work.count_end(is_committed=True)
            self._done(None)
        else:
            for _ in self._finish(error):
                pass

    def _finish(self, error: Exception | None) -> Iterator[None]:
        effects = self.effects
        if error is None:
            yield from effects.complete_in_turns()
            self._work.count_end(is_committed=True)
            yield from self.end_in_turns(None)
            return
        failure: ModelError
        if self._store is not None and isinstance(error, self._store.full_error):
            failure = ResourceLimitExceededError(str(error))
            self._work.count_end(is_committed=False)
            yield from effects.undo()
        else:
            failure = InternalError(f"the outcome of the transaction is unknown: {error}")
            yield from effects.undo(leaves_stored=True)
        yield from self.end_in_turns(failure)
        yield from release_in_turns(iter(effects.accepted), is_redelivered=True)

    def end_in_turns(self, failure: ModelError | None) -> Iterator[None]:
        """End the transaction after its effects: later messages may be delivered, and the client gets the result."""
        barriers = self._barriers
        for begin in range(0, len(barriers) - QUEUES_AT_ONCE, QUEUES_AT_ONCE):
            self._lower(barriers[begin : begin + QUEUES_AT_ONCE])
            yield
        self._lower(barriers[(len(barriers) - 1) // QUEUES_AT_ONCE * QUEUES_AT_ONCE :])
        self._done(failure)

    @staticmethod
    def _lower(barriers: list[tuple[Queue, Barrier]]) -> None:
        for queue, barrier in barriers:
            queue.lower(barrier)
