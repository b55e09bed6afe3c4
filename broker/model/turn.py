"""One turn of the event loop: what all connections brought in it is worked off together.

While a turn lasts, commands are taken from the sockets, messages are routed and put on queues, and records are
appended to journals. At its end, once for all of that:

    1. the journals that were written to are flushed: one sync for each, and all that waits for it is remembered
    2. queues with messages are dispatched
    3. each session is told which of its commands are completed
    4. each connection writes what it has to send

What was written is on the disk some turns later. Then the commands that were held are completed, what was written may
be delivered, and there is another end of a turn. While the disk works the next turns gather: group commit, without a
timer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from broker.log.logs import log_of
from broker.model.completion import Runs
from broker.model.errors import ModelError
from broker.model.memory import MemoryCeiling

if TYPE_CHECKING:
    from broker.model.queues.barriers import Barrier
    from broker.model.store_protocol import Store

_LOG: Final = log_of("Broker")


class Worker(Protocol):
    """A session, as a turn sees it: it has received commands, and has a `CompletionLedger` for them."""

    def settle(self) -> Runs:
        """All its commands but those that wait are completed. Returns the runs of those that wait for the disk."""

    def release(self, runs: Runs) -> None:
        """What these waited for is on the disk."""

    def fail(self, runs: Runs, error: Exception) -> None:
        """It never will be."""

    def tell_completed(self) -> None:
        """Tell the peer what is completed, if that is news."""


class Served(Protocol):
    """A queue, as a turn sees it.

    Attributes:
        name: its name.
        journal: its journal; of any type that the store likes.
        counted_memory: its `memory` when that was last counted; the turn keeps it.
    """

    name: str
    journal: Any
    counted_memory: int

    @property
    def memory(self) -> int:
        """Bytes that its messages take."""

    def raise_barrier(self) -> Barrier:
        """What was written to its journal is on its way to the disk."""

    def lower(self, barrier: Barrier) -> None:
        """It is there."""

    def dispatch(self) -> None:
        """Give messages to consumers. Raises ModelError if that one is gone cannot be written."""


class Output(Protocol):
    """A connection that has something to send."""

    def write_output(self) -> None:
        """Send it."""


class _Batch:
    """What waits for one flush."""

    __slots__ = ("_barriers", "_later", "_store", "_turn", "_workers")

    def __init__(
        self,
        turn: Turn,
        store: Store,
        barriers: list[tuple[Served, Barrier]],
        workers: list[tuple[Worker, Runs]],
        later: list[Callable[[Exception | None], None]],
    ) -> None:
        self._turn, self._store = turn, store
        self._barriers, self._workers, self._later = barriers, workers, later

    def done(self, error: Exception | None) -> None:
        """The flush is on the disk, or never will be."""
        turn = self._turn
        turn.flushes_under_way -= 1
        for queue, barrier in self._barriers:
            if error is None:
                queue.lower(barrier)
            elif len(self._barriers) > 1:  # another queue's journal may be the one that has failed
                self._store.flush((queue.journal,), partial(_lower_if_synced, queue, barrier))
        for worker, runs in self._workers:
            if error is None:
                worker.release(runs)
            else:
                worker.fail(runs, error)
            turn.workers[worker] = None
        for callback in self._later:
            callback(error)
        turn.schedule()


def _lower_if_synced(queue: Served, barrier: Barrier, error: Exception | None) -> None:
    if error is None:
        queue.lower(barrier)


class Turn:
    """The turn that lasts.

    Args:
        call_soon: has a function called at the end of the event loop's turn.
        store: the store; None if nothing is kept.
        memory: is told how queues grow; None where nobody counts.

    Attributes:
        ready: queues that have got messages, or consumers.
        written: durable queues that have got messages which are not on the disk yet.
        journals: journals that were written to; of any type that the store likes.
        workers: sessions that have received commands, or had some completed.
        outputs: connections that have something to send.
        flushes_under_way: batches that wait for the disk.
        interrupted: called when the end of a turn ran out of memory half-way: nobody knows what was told to whom.
        is_idle: says whether the event loop has nothing else to do, so that the disk may be waited for.
    """

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], Any],
        store: Store | None,
        memory: MemoryCeiling | None = None,
    ) -> None:
        self._call_soon, self._store = call_soon, store
        self._memory = memory or MemoryCeiling(0, lambda: 0)
        self._is_scheduled = False
        self._is_ending = False
        self._later: list[Callable[[Exception | None], None]] = []
        self.ready: dict[Served, None] = {}
        self.written: dict[Served, None] = {}
        self.journals: dict[Any, None] = {}
        self.workers: dict[Worker, None] = {}
        self.outputs: dict[Output, None] = {}
        self.flushes_under_way = 0
        self.interrupted: Callable[[], None] = lambda: None
        self.is_idle: Callable[[], bool] = lambda: False

    def schedule(self) -> None:
        """Something has happened: let the turn have an end."""
        if not self._is_scheduled and not self._is_ending:
            self._is_scheduled = True
            self._call_soon(self.end)

    def when_synced(self, callback: Callable[[Exception | None], None]) -> None:
        """Call back when what was written in this turn is on the disk, or never will be."""
        self._later.append(callback)
        self.schedule()

    def end(self) -> None:
        """Work off what has come."""
        self._is_scheduled = False
        self._is_ending = True
        try:
            self._settle()
            while self.ready:
                self._dispatch()
                if self.journals or self._later:
                    self._settle()
            workers = list(self.workers)
            self.workers.clear()
            for worker in workers:
                worker.tell_completed()
            outputs = list(self.outputs)
            self.outputs.clear()
            for output in outputs:
                output.write_output()
        except MemoryError:
            self._memory.exhausted("The end of a turn")
            self.interrupted()
        finally:
            self._is_ending = False
        if self.ready or self.journals or self.workers or self.outputs or self._later:
            self.schedule()

    def _settle(self) -> None:
        """Commands are completed, or wait for the flush that begins here."""
        held = [(worker, runs) for worker in self.workers if (runs := worker.settle())]
        later, self._later = self._later, []
        if not self.journals:
            for worker, runs in held:
                worker.release(runs)
            for callback in later:
                callback(None)
            return
        assert self._store is not None
        barriers = [(queue, queue.raise_barrier()) for queue in self.written]
        self.written.clear()
        journals = list(self.journals)
        self.journals.clear()
        self.flushes_under_way += 1
        self._store.flush(journals, _Batch(self, self._store, barriers, held, later).done, is_idle=self.is_idle())

    def _dispatch(self) -> None:
        queues = list(self.ready)
        self.ready.clear()
        for queue in queues:
            try:
                queue.dispatch()
            except ModelError as error:  # a message went out, and that it is gone cannot be written
                _LOG.error('Queue "%s": %s', queue.name, error)
            held = queue.memory
            self._memory.grown += max(0, held - queue.counted_memory)
            queue.counted_memory = held
        if self._memory.grown >= self._memory.step:
            self._memory.count()
