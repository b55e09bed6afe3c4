"""One event loop tick: the input of all connections is processed together.

During a tick, commands are read from sockets, messages are routed and enqueued, and records are appended to journals.
At its end, once for all of that:

    0. messages that were gathered are put on their queues, and appended; likewise before 1 is repeated after 3, since
       input that was paused may have been processed meanwhile
    1. the store gets the callbacks that wait for the records of this tick, and the input is drained: it decides what is
       written now (`store/live/commit`)
    2. sessions whose peer waits for a completion report it, and their connections write it
    3. queues with messages are dispatched
    4. each session reports completed commands to its peer
    5. each connection writes its output

While the event loop is idle, messages that do not wait for the disk are delivered before 1; then the store may not
block the loop.

Some ticks later the records are on the disk. Then held commands are completed, the new messages may be delivered, and
another end of tick runs.

Only new messages, callbacks and commands that a peer waits for make a tick urgent. One that has only removed messages,
which were delivered without acknowledgement or accepted without asking for completion, is not: its commands are
completed when the store has its records on the disk for others, or some milliseconds later.

Work whose size a peer chooses, such as rejecting all its messages, is done in turns (`Turns`): one portion in
each iteration of the event loop, with a whole tick between two of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from qstore.broker.log.logs import log_of
from qstore.broker.model.completion import Runs
from qstore.broker.model.errors import ModelError
from qstore.broker.model.memory import MemoryCeiling

if TYPE_CHECKING:
    from qstore.broker.model.queues.barriers import Barrier
    from qstore.broker.model.queues.queue import Queue
    from qstore.broker.model.store_protocol import Store
    from qstore.broker.model.tracing import Tracer

_LOG: Final = log_of("Broker")


class Worker(Protocol):
    """A session, as a tick sees it: it has received commands, and has a `CompletionLedger` for them."""

    @property
    def is_in_step(self) -> bool:
        """Whether its peer, as it seems, sends nothing more until what it has sent is done."""

    def complete_received(self) -> Runs:
        """Complete all its commands that do not wait. Returns the runs of those that wait for the disk."""

    def complete(self, runs: Runs) -> None:
        """Complete commands whose records are on the disk."""

    def fail(self, runs: Runs, error: Exception) -> None:
        """Handle commands whose records could not be written."""

    def report_completed(self) -> None:
        """Report newly completed commands to the peer."""


MAX_DELIVERIES: Final = 4_000
"""Messages that are delivered in one tick, to all consumers together: some 15 ms in pure Python (`bench_turns`). Each
connection has room for so many small ones (`protocols/output`), and there may be many connections."""


class Gathering(Protocol):
    """Messages of this tick that are not on their queues yet."""

    def put(self) -> None:
        """Put them there."""


class Output(Protocol):
    """A connection that has output."""

    def write_output(self) -> None:
        """Write the output to the socket."""


Resume: TypeAlias = Callable[[], None]

Portion: TypeAlias = Callable[[Resume], None] | None
"""Yielded by work in turns after a portion: None, or a function that gets a `Resume`; its call continues the work."""


class Turns:
    """Work in portions: one in each iteration of the event loop, however many there are.

    A piece of work is an iterator that does one portion between two yields. Pieces of one owner, such as a
    channel, are done one after the other, so that a later request of an owner sees the effect of its earlier
    ones; those of several owners share the iterations. A portion takes a few milliseconds at most: the constants that
    limit portions are defined beside the work. Work that waits for the disk yields a function: it is called with
    another one, whose call continues the work.

    Args:
        call_soon: schedules a function to run in the next iteration.

    Attributes:
        portions: number of portions done so far.
    """

    __slots__ = ("_call_soon", "_is_scheduled", "_waiting", "_work", "portions")

    def __init__(self, call_soon: Callable[[Callable[[], None]], Any]) -> None:
        self._call_soon = call_soon
        self._is_scheduled = False
        self._work: dict[object, deque[Iterator[Portion]]] = {}  # owner -> pieces, in order; the first owner is next
        self._waiting: dict[object, deque[Iterator[Portion]]] = {}  # likewise, of owners whose first piece waits
        self.portions = 0

    def __len__(self) -> int:
        """Number of owners with work under way."""
        return len(self._work) + len(self._waiting)

    def has(self, owner: object) -> bool:
        """Whether the owner has work under way."""
        return owner in self._work or owner in self._waiting

    def do(self, owner: object, work: Iterator[Portion]) -> bool:
        """Do work, the first portion at once unless the owner has other work under way.

        Returns:
            Whether it is done.

        Raises:
            Any exception of the first portion, which ends the work.
        """
        pieces = self._pieces(owner)
        if pieces is not None:
            pieces.append(work)
            return False
        pieces = self._work[owner] = deque((work,))
        self._continue(owner, pieces)
        return not pieces or pieces[0] is not work

    def after(self, owner: object, function: Callable[[], None]) -> None:
        """Call a function when the work of an owner is done: at once if it has none under way."""
        pieces = self._pieces(owner)
        if pieces is None:
            function()
        else:
            pieces.append(_calling(function))

    def _pieces(self, owner: object) -> deque[Iterator[Portion]] | None:
        return self._work.get(owner) or self._waiting.get(owner)

    def _go(self) -> None:
        self._is_scheduled = False
        for owner, pieces in self._work.items():
            self._continue(owner, pieces)
            return

    def _continue(self, owner: object, pieces: deque[Iterator[Portion]]) -> None:
        """Do one portion of an owner's first piece of work; the other owners are next."""
        is_over = True
        wait: Portion = None
        try:
            for yielded in pieces[0]:
                is_over, wait = False, yielded
                break
        finally:
            self.portions += 1
            if is_over:
                pieces.popleft()
            del self._work[owner]
            if pieces:
                of_state = self._work if is_over or wait is None else self._waiting
                of_state[owner] = pieces
            if self._work:
                self._schedule()
        if not is_over and wait is not None:
            wait(partial(self._resume, owner))

    def _resume(self, owner: object) -> None:
        """Continue the first piece of an owner, which has waited."""
        pieces = self._waiting.pop(owner, None)
        if pieces is not None:
            self._work[owner] = pieces
            self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._call_soon(self._go)
            self._is_scheduled = True  # not earlier: `call_soon` may raise MemoryError


def _calling(function: Callable[[], None]) -> Iterator[None]:
    """A piece of work that consists of one call."""
    function()
    yield from ()


class _Batch:
    """The work that waits for the records of one tick."""

    __slots__ = ("_barriers", "_is_urgent", "_later", "_store", "_tick", "_workers")

    def __init__(
        self,
        tick: Tick,
        store: Store,
        barriers: list[tuple[Queue, Barrier]],
        workers: list[tuple[Worker, Runs]],
        later: list[Callable[[Exception | None], None]],
        is_urgent: bool,
    ) -> None:
        self._tick, self._store = tick, store
        self._barriers, self._workers, self._later = barriers, workers, later
        self._is_urgent = is_urgent

    def done(self, error: Exception | None) -> None:
        """Finish the batch: its records are on the disk, or have failed with `error`."""
        tick = self._tick
        tick.flushes_under_way -= self._is_urgent
        for queue, barrier in self._barriers:
            if error is None:
                queue.lower(barrier)
            elif len(self._barriers) > 1:  # another queue's journal may be the one that has failed
                self._store.when_synced((queue.journal,), partial(_lower_if_synced, queue, barrier))
        for worker, runs in self._workers:
            if error is None:
                worker.complete(runs)
            else:
                worker.fail(runs, error)
            tick.workers[worker] = None
        for callback in self._later:
            callback(error)
        tick.schedule()


def _lower_if_synced(queue: Queue, barrier: Barrier, error: Exception | None) -> None:
    if error is None:
        queue.lower(barrier)


class Tick:
    """Collects the work of the current tick, and does it at the tick's end.

    Args:
        call_soon: schedules a function to run at the end of the event loop tick.
        store: None without persistence.
        memory: counts the memory of queues; None not to count it.

    Attributes:
        ready: queues with new messages or new consumers.
        written: durable queues with new messages that are not on the disk yet.
        journals: journals written to, of a type that the store chooses -> whether the tick waits for their flush;
            transactions wait for theirs themselves.
        workers: sessions that have received commands, or had some completed.
        awaited: those of them whose peer sends nothing more until it gets a completion that is due now.
        outputs: connections that have output.
        flushes_under_way, transactions_under_way: urgent batches, and transactions, that wait for the disk.
        interrupted: called when the end of a tick ran out of memory half-way: it is unknown which peers were answered.
        is_idle: whether the event loop has nothing else to do, so that the store may block it; gets the number of
            peers with input since the last call that send nothing more until the disk is done, and of flushes that are
            waited for.
        ended: called after a tick when nothing waits for the disk.
        worked: called after a tick that began with completed disk operations.
        is_urgent: a peer waits for everything written so far, in earlier ticks too.
        turns: work whose size a peer chooses.
        tracer: traces sampled messages; None for none.
        gatherings: those that have messages, which are put on their queues first of all.
        deliveries: how many more messages may be delivered in this tick, to all consumers together.
    """

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], Any],
        store: Store | None,
        memory: MemoryCeiling | None = None,
    ) -> None:
        self._call_soon, self._store = call_soon, store
        self._is_wanted = False  # something was scheduled since the last `end` began
        self._memory = memory or MemoryCeiling(0, lambda: 0)
        self.turns = Turns(call_soon)
        self.deliveries = MAX_DELIVERIES
        self._is_scheduled = False
        self._is_ending = self._is_closed = False
        self._later: list[Callable[[Exception | None], None]] = []
        self._unfinished: dict[Queue, None] = {}  # queues to dispatch in the next tick
        self.is_urgent = False
        self.ready: dict[Queue, None] = {}
        self.written: dict[Queue, None] = {}
        self.journals: dict[Any, bool] = {}
        self.workers: dict[Worker, None] = {}
        self.awaited: dict[Worker, None] = {}
        self.outputs: dict[Output, None] = {}
        self.gatherings: dict[Gathering, None] = {}
        self.flushes_under_way = self.transactions_under_way = 0
        self.interrupted: Callable[[], None] = lambda: None
        self.is_idle: Callable[[int, int], bool] = lambda _waiting, _flushes: False
        self.ended: Callable[[], None] = lambda: None
        self.worked: Callable[[], None] = lambda: None
        self.tracer: Tracer | None = None

    def schedule(self) -> None:
        """Schedule the end of the tick."""
        if self._is_ending:
            return
        self._is_wanted = True
        if not self._is_scheduled:
            self._call_soon(self._end_as_scheduled)
            self._is_scheduled = True  # not earlier: `call_soon` may raise MemoryError

    def dispatch_later(self, queue: Queue) -> None:
        """Dispatch a queue again, which has not finished its `dispatch`, after other input has been processed."""
        self._unfinished[queue] = None
        self.schedule()

    def set_aside(self) -> dict[Any, bool]:
        """Begin a new set of journals that were written to. Returns the set so far, for `written_since`."""
        before, self.journals = self.journals, {}
        return before

    def written_since(self, before: dict[Any, bool]) -> dict[Any, bool]:
        """The journals written to since `before` was set aside; both sets are joined again."""
        written, self.journals = self.journals, before
        for journal, is_awaited in written.items():
            if is_awaited or journal not in before:
                before[journal] = is_awaited
        return written

    def when_synced(self, callback: Callable[[Exception | None], None]) -> None:
        """Call back when the records of this tick are on the disk, or with the error that prevented it."""
        self._later.append(callback)
        self.schedule()

    def close(self) -> None:
        """Stop processing, because the store is closed: callbacks that are still scheduled do nothing."""
        self._is_closed = True

    def _end_as_scheduled(self) -> None:
        self._is_scheduled = False
        if self._is_wanted:
            self.end()

    def end(self) -> None:
        """Process everything collected in the tick. May be called before the scheduled end, which then does nothing."""
        if self._is_closed:
            return
        self._is_ending = True
        self.deliveries = MAX_DELIVERIES
        try:
            if self.gatherings:
                self.put_gathered()
            is_early = bool(self.written) and self._is_early()
            if is_early:
                self._dispatch()
                self._write_outputs()
            self._drain(may_block=not is_early)
            if self.awaited:
                self._answer_awaited()
            while self.ready:
                self._dispatch()
                if self.journals or self._later:
                    self._drain()
            if self.workers:
                workers = list(self.workers.keys())
                self.workers.clear()
                for worker in workers:
                    worker.report_completed()
            if self.outputs:
                self._write_outputs()
        except MemoryError:
            self._memory.exhausted("The end of a tick")
            self.interrupted()
        finally:
            self._is_ending = False
        self._is_wanted = False
        if self._unfinished:
            self.ready = {**self._unfinished, **self.ready}
            self._unfinished.clear()
        if self.ready or self.journals or self.workers or self.outputs or self._later or self.gatherings:
            self.schedule()
        if not self.flushes_under_way and not self.transactions_under_way:
            self.ended()

    def collect(self) -> None:
        """The store has completed disk operations: a tick that begins with these.

        What they schedule is done by its end, and needs no iteration of the event loop, nor does it keep it awake.
        """
        assert self._store is not None
        self._is_ending = True
        try:
            self._store.collect(begins=False)  # the end does that, and knows whether the loop is idle
        except MemoryError:
            self._memory.exhausted("The store")
            self.interrupted()
        finally:
            self.end()
        self.worked()

    def put_gathered(self) -> None:
        """Put gathered messages on their queues before the tick ends."""
        gatherings, self.gatherings = self.gatherings, {}
        for gathering in gatherings:
            gathering.put()

    def _is_early(self) -> bool:
        """Whether messages are delivered before anything is written, which they do not wait for.

        The store does not block the event loop then: the next ones do not wait for it either.
        """
        for queue in self.written:
            if queue.is_early:
                return self.flushes_under_way <= 1 and self._is_at_rest(0)
        return False

    def _is_at_rest(self, waiting: int) -> bool:
        """Whether the event loop has nothing else to do: no work in turns, no input but of peers that wait."""
        return not self.turns and self.is_idle(waiting, self.flushes_under_way)

    def _answer_awaited(self) -> None:
        """Answer waiting peers before messages are delivered, so that they continue meanwhile."""
        awaited = list(self.awaited.keys())
        self.awaited.clear()
        if self.ready:
            for worker in awaited:
                worker.report_completed()
            self._write_outputs()

    def _write_outputs(self) -> None:
        outputs = list(self.outputs.keys())  # compiled, it takes a sixth of the time of `list` for the dict itself
        self.outputs.clear()
        for output in outputs:
            output.write_output()

    def _drain(self, *, may_block: bool = True) -> None:
        """Complete commands, or have them wait for the records of this tick; then let the store write."""
        if self.gatherings:
            self.put_gathered()
        held: list[tuple[Worker, Runs]] = []
        waiting = 0
        for worker in self.workers:
            runs = worker.complete_received()
            if runs:
                held.append((worker, runs))
                waiting += worker.is_in_step
        later, self._later = self._later, []
        store = self._store
        if self.journals:
            self._wait_for_disk(held, later)
        else:
            for worker, runs in held:
                worker.complete(runs)
            for callback in later:
                callback(None)
        if store is not None:
            is_urgent, self.is_urgent = self.is_urgent, False
            store.drained(is_idle=may_block and self._is_at_rest(waiting), is_urgent=is_urgent)

    def _wait_for_disk(self, held: list[tuple[Worker, Runs]], later: list[Callable[[Exception | None], None]]) -> None:
        """Tell the store who waits for the records of this tick."""
        assert self._store is not None
        journals, self.journals = self.journals, {}
        is_urgent = self.is_urgent or bool(later) or bool(self.written)
        barriers = [(queue, queue.raise_barrier()) for queue in self.written]
        self.written.clear()
        if barriers or held or later:
            chosen = list(journals) if later else [journal for journal, is_awaited in journals.items() if is_awaited]
            self.flushes_under_way += is_urgent
            batch = _Batch(self, self._store, barriers, held, later, is_urgent)
            self._store.when_synced(chosen, batch.done, is_urgent=is_urgent)

    def _dispatch(self) -> None:
        queues = list(self.ready.keys())
        self.ready.clear()
        for number, queue in enumerate(queues):
            if self.deliveries <= 0:  # the rest is first the next time
                self._unfinished = {**dict.fromkeys(queues[number:]), **self._unfinished}
                break
            try:
                queue.dispatch()
            except ModelError as error:  # a message was delivered, but its dequeue cannot be written
                _LOG.error('Queue "%s": %s', queue.name, error)
            residency, memory = queue.residency, queue.memory
            if residency is not None:
                if memory - queue.counted_memory > residency.stage_at:
                    residency.stage()
                    memory = queue.memory
                if memory > residency.rest_at:
                    residency.rest()
                if memory > residency.budget:
                    residency.keep_within_budget()
                memory = queue.memory
            self._note_memory(queue, memory)
        if self._memory.grown >= self._memory.step:
            self._memory.count()

    def _note_memory(self, queue: Queue, held: int) -> None:
        self._memory.grown += max(0, held - queue.counted_memory)
        queue.counted_memory = held

    def count_memory(self, queue: Queue) -> None:
        """A queue has grown otherwise than by its `dispatch`."""
        self._note_memory(queue, queue.memory)
        if self._memory.grown >= self._memory.step:
            self._memory.count()
