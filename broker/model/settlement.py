"""Settlement of delivered messages: one rule for each outcome, whatever the protocol; and subscribing.

    accept      the message is dequeued
    reject      it moves to its queue's dead-letter or else alternate exchange; without these it is dequeued
    release     it is available again, at its old position
    subscribe   adds a consumer: an exclusive one only if it is the first, others only if none is exclusive. A queue
                with a single active consumer has no exclusive ones
    purge       waiting messages are dequeued

Many messages are settled in turns (`tick.Turns`): each rule has a variant for that, with the same promises. Success is
reported only when all messages are settled; released messages return to their places in the queue, and no later message
overtakes them.

Messages of a deleted queue were deleted with it, or moved: there is nothing to do. Until that is on the disk, a crash
would bring them back, so accept and reject of stored messages wait for the move, or for the store to delete the queue.
If the deletion fails, they are dequeued.

Sources: AMQP 0-10, class message; MRG 2 Messaging User Guide, 5.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from enum import Enum, auto
from heapq import merge
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeVar

from qstore.broker.model.arguments import PRIORITIES, IdleArgument, Of, plain, shown
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.caller import Caller
from qstore.broker.model.errors import (
    InvalidArgumentError,
    ModelError,
    NotImplementedByBrokerError,
    ResourceLimitExceededError,
    ResourceLockedError,
)
from qstore.broker.model.events import Subscribe, Unsubscribe
from qstore.broker.model.exchanges.matching import MAX_STEPS
from qstore.broker.model.queues.barriers import NO_LIMIT
from qstore.broker.model.queues.consumers import Consumer
from qstore.broker.model.queues.entry import ACQUIRED, AVAILABLE, HELD, MOVING, Entry
from qstore.broker.model.queues.queue import Deletion, Queue
from qstore.broker.model.queues.stream import Stream, check_not_of_streams, idle_of_stream
from qstore.broker.model.run import RunEntry
from qstore.formats.values import EMPTY_MAP, TypedMap

if TYPE_CHECKING:
    from qstore.broker.model.broker import Broker
    from qstore.broker.model.message import Message
    from qstore.broker.model.tick import Tick
    from qstore.broker.model.virtual_host import VirtualHost

Done = Callable[[Exception | None], None]


AT_ONCE: Final = 1000
"""Messages that are accepted, released or dropped in one turn: about a millisecond."""

MOVED_AT_ONCE: Final = 100
"""Messages that move to another queue in one turn: likewise about a millisecond."""

RELEASED_AT_ONCE: Final = 250
"""Likewise, of those that are released: each may be cut out of a run, which takes some 25 us."""

PART_OF_RUN: Final = 8
"""A part of a run counts as at least so many messages, for the same reason."""

SECONDS_AT_ONCE: Final = 0.005
"""Seconds that one turn looks at messages, where each may have to be read from the disk."""

_position = attrgetter("position")


class Settled(Enum):
    """When a settlement may be reported to the client as done."""

    NOW = auto()
    SYNCED = auto()  # when the records of this event loop tick are on the disk
    LATER = auto()  # when `done` is called


class _Pending:
    """The parts of a settlement that are not done at once.

    Args:
        done: called once all are done, or with an error for each that fails.
    """

    __slots__ = ("_done", "_has_returned", "_left")

    def __init__(self, done: Done) -> None:
        self._done = done
        self._left = 0
        self._has_returned = False

    def expect(self) -> Done:
        """Add a part. Returns the function to call when it is done."""
        self._left += 1
        return self._one_done

    def _one_done(self, error: Exception | None) -> None:
        if error is not None:
            self._done(error)  # the part stays undone, and so does the whole
            return
        self._left -= 1
        if not self._left and self._has_returned:
            self._done(None)

    @property
    def has_parts(self) -> bool:
        """Whether any part is not done yet."""
        return self._left > 0

    def settled(self) -> Settled:
        """The settlement's result, once all parts have begun: `done` is called only if it is LATER."""
        self._has_returned = True
        return Settled.LATER if self._left else Settled.NOW


def single(acquired: Iterable[tuple[Queue, Entry]]) -> Iterator[tuple[Queue, Entry]]:
    """Messages with an entry for each of those that were in runs."""
    for queue, entry in acquired:
        if isinstance(entry, RunEntry):
            for each in queue.unfold_run(entry):
                yield queue, each
        else:
            yield queue, entry


def accept(tick: Tick, acquired: Iterable[tuple[Queue, Entry]], done: Done) -> Settled:
    """Dequeue messages.

    Args:
        tick: the broker's.
        acquired: the messages; those of a run that is held may have one entry together.
        done: if the result is LATER, called once they are gone for good, or with an error for each that cannot be
            dequeued.

    Raises:
        InternalError: a journal cannot be written; this message and those after it stay acquired.
    """
    is_written = False
    pending: _Pending | None = None
    if tick.tracer is not None:
        acquired = tick.tracer.settling(acquired, "accepted")
    for queue, entry in acquired:
        if queue.is_deleted:
            for _, each in single(((queue, entry),)):
                deletion = _deletion_of(queue, each)
                if deletion is not None:
                    if pending is None:
                        pending = _Pending(done)
                    deletion.dequeue(each, pending.expect())
        elif not isinstance(entry, RunEntry):
            is_written = queue.dequeue(entry) or is_written
        elif entry.state == HELD:
            is_written = queue.dequeue_run(entry, entry.count) or is_written
        else:
            for each in queue.unfold_run(entry):
                is_written = queue.dequeue(each) or is_written
    if pending is None:
        return Settled.SYNCED if is_written else Settled.NOW
    if is_written:
        tick.when_synced(pending.expect())
    return pending.settled()


def reject(broker: Broker, acquired: Iterable[tuple[Queue, Entry]], done: Done) -> Settled:
    """Move messages to their queues' dead-letter or alternate exchanges; dequeue them where there is neither.

    Args:
        broker: the model.
        acquired: the messages.
        done: if the result is LATER, called once all messages have moved, or with an error for each that could
            not be moved.

    Raises:
        ModelError: a message cannot be moved: it and those after it are available again. Or it cannot be dequeued: it
            stays acquired, and those that were to be moved are available again.
    """
    moves: list[tuple[Queue, Entry]] = []
    pending = _Pending(done)
    is_written = False
    if broker.tick.tracer is not None:
        acquired = broker.tick.tracer.settling(acquired, "rejected")
    for queue, entry in acquired:
        if queue.is_deleted:
            deletion = _deletion_of(queue, entry)
            if deletion is not None:
                deletion.dequeue(entry, pending.expect())
            continue
        if queue.dead_letter is not None or queue.alternate is not None:
            moves.append((queue, entry))
            continue
        was_acquired = entry.state == ACQUIRED
        try:
            is_written = queue.dequeue(entry) or is_written
        except ModelError:
            release(moves, is_redelivered=True)
            raise
        queue.counters.rejected += was_acquired
    if not moves and not pending.has_parts:
        return Settled.SYNCED if is_written else Settled.NOW
    if is_written:
        broker.tick.when_synced(pending.expect())
    moving = _move(broker, moves, pending)
    for _ in moving:
        broker.tick.turns.do(pending, _move_others(moving, pending.expect()))
        break
    return pending.settled()


def _move(broker: Broker, moves: list[tuple[Queue, Entry]], pending: _Pending) -> Iterator[None]:
    """Move rejected messages. Yields when this has taken long, because they are routed or changed at great expense.

    Raises:
        ModelError: a message cannot be moved: it and those after it are available again.
    """
    steps = 0
    for index, (queue, entry) in enumerate(moves):
        if steps > MAX_STEPS:
            steps = 0
            yield
        if queue.is_deleted:  # meanwhile
            deletion = _deletion_of(queue, entry)
            if deletion is not None:
                deletion.dequeue(entry, pending.expect())
            continue
        was_acquired = entry.state == ACQUIRED
        steps -= queue.moving_steps
        try:
            if queue.dead_letter is not None:
                queue.dead_letter.reject(queue, entry, pending.expect())
            else:
                assert queue.alternate is not None
                broker.router.move(queue, entry, queue.alternate, pending.expect())
        except ModelError:
            release(moves[index:], is_redelivered=True)
            raise
        steps += queue.moving_steps
        queue.counters.rejected += was_acquired


def _move_others(moving: Iterator[None], done: Done) -> Iterator[None]:
    """Continue to move messages, in later turns."""
    yield
    try:
        yield from moving
    except ModelError as error:
        done(error.with_traceback(None))
    else:
        done(None)


def _deletion_of(queue: Queue, entry: Entry) -> Deletion | None:
    """The pending deletion of a message's queue; None if no crash could bring the message back."""
    return queue.deletion if entry.rid and entry.state in (ACQUIRED, MOVING) else None


def release(acquired: Iterable[tuple[Queue, Entry]], *, is_redelivered: bool) -> None:
    """Make messages available again; with `is_redelivered` they are marked as delivered before."""
    for queue, entry in acquired:
        if not queue.is_gone:
            queue.release(entry, is_redelivered=is_redelivered)


# ---- many messages, in turns ----

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def drained(values: dict[_Key, _Value]) -> Iterator[_Value]:
    """Remove and yield the values in order, so that memory is freed in turns, too."""
    while keys := list(islice(values, AT_ONCE)):
        for key in keys:
            yield values.pop(key)


def accept_in_turns(tick: Tick, acquired: Iterator[tuple[Queue, Entry]], done: Done) -> Iterator[None]:
    """As `accept`, as work in turns; `done` is called in any case.

    Raises:
        InternalError: a journal cannot be written; this message and those after it are available again.
    """
    return _settle_in_turns(tick, acquired, done, AT_ONCE, lambda portion, part: accept(tick, portion, part))


def reject_in_turns(broker: Broker, acquired: Iterator[tuple[Queue, Entry]], done: Done) -> Iterator[None]:
    """As `reject`, as work in turns; `done` is called in any case."""
    return _settle_in_turns(
        broker.tick, acquired, done, MOVED_AT_ONCE, lambda portion, part: reject(broker, portion, part)
    )


def _portion(acquired: Iterator[tuple[Queue, Entry]], at_once: int) -> list[tuple[Queue, Entry]]:
    """The next messages, as many as are settled in one turn."""
    portion: list[tuple[Queue, Entry]] = []
    for queue, entry in acquired:
        portion.append((queue, entry))
        at_once -= max(entry.count, PART_OF_RUN) if isinstance(entry, RunEntry) else 1
        if at_once <= 0:
            break
    return portion


def _settle_in_turns(
    tick: Tick,
    acquired: Iterator[tuple[Queue, Entry]],
    done: Done,
    at_once: int,
    settle: Callable[[list[tuple[Queue, Entry]], Done], Settled],
) -> Iterator[None]:
    pending = _Pending(done)
    all_begun = pending.expect()
    while portion := _portion(acquired, at_once):
        part = pending.expect()
        failure: ModelError | None = None
        try:
            settled = settle(portion, part)
        except ModelError as error:
            failure = error.with_traceback(None)
        if failure is not None:
            release(single(portion), is_redelivered=True)  # those that are still acquired
            yield from release_in_turns(single(acquired), is_redelivered=True)
            raise failure
        if settled is Settled.SYNCED:
            tick.when_synced(part)
        elif settled is Settled.NOW:
            part(None)
        yield
    pending.settled()
    all_begun(None)


def release_in_turns(acquired: Iterator[tuple[Queue, Entry]], *, is_redelivered: bool) -> Iterator[None]:
    """As `release`, as work in turns.

    The messages of each queue return in order. Until the last has returned, no message after one still to be released
    is delivered.
    """
    this = object()
    runs: dict[Queue, list[list[Entry]]] = {}
    first: dict[Queue, int] = {}
    try:
        while portion := list(islice(acquired, RELEASED_AT_ONCE)):
            entries: dict[Queue, list[Entry]] = {}
            for queue, entry in portion:
                entries.setdefault(queue, []).append(entry)
            for queue, run in entries.items():
                run.sort(key=_position)
                of_queue = runs.setdefault(queue, [])
                if of_queue and of_queue[-1][-1].position < run[0].position:  # the usual case: one run
                    of_queue[-1] += run
                else:
                    of_queue.append(run)
                if run[0].position < first.get(queue, NO_LIMIT):
                    first[queue] = run[0].position
                    _continue_release(queue, this, run[0].position)
            yield
        for queue, of_queue in runs.items():
            returning = merge(*of_queue, key=_position)
            while not queue.is_gone and (back := list(islice(returning, AT_ONCE))):
                _continue_release(queue, this, back[-1].position + 1)
                for entry in back:
                    queue.release(entry, is_redelivered=is_redelivered)
                yield
            _continue_release(queue, this, NO_LIMIT)
            del first[queue]
    finally:
        for queue in first:
            _continue_release(queue, this, NO_LIMIT)


def _continue_release(queue: Queue, release: object, position: int) -> None:
    if not queue.is_gone:
        queue.returns_from(release, position)


def subscribe(
    broker: Broker,
    caller: Caller,
    queue: Queue,
    consumer: Consumer,
    destination: str,
    *,
    exclusive: bool,
    arguments: TypedMap = EMPTY_MAP,
    protocol: str = "",
) -> None:
    """Add a consumer; if it is `exclusive`, the queue accepts no other. `PRIORITIES` rank it.

    Raises:
        UnauthorizedError: the caller may not consume.
        InvalidArgumentError: its priority is not a whole number, or it has an argument of streams, or a wrong one.
        NotImplementedByBrokerError: an argument is not supported for subscriptions of this protocol.
        ResourceLimitExceededError: the queue has as many consumers as it may have.
        ResourceLockedError: the queue has an exclusive consumer; or, for an exclusive one, any consumer, or consumers
            of which one is active.
    """
    broker.authorization.check(caller, Action.CONSUME, ObjectType.QUEUE, queue.name)
    what = f'subscription "{destination}" to queue "{queue.name}"'
    broker.arguments.check(Of.SUBSCRIPTION, what, arguments, protocol=protocol)
    if arguments.entries:
        check_not_of_streams(queue, arguments)
    if queue.exclusive_consumer is not None:
        raise ResourceLockedError(f"Queue {queue.name} has an exclusive consumer. No more consumers allowed.")
    if queue.max_consumers and queue.consumer_count >= queue.max_consumers:
        limit = f"the limit of its consumers, {queue.max_consumers}, is reached"
        raise ResourceLimitExceededError(f'queue "{queue.name}" has no room for another consumer: {limit}')
    priority = _priority(arguments)
    if exclusive and queue.is_single_active:
        raise ResourceLockedError(f"Queue {queue.name} has a single active consumer. Exclusive access denied.")
    if exclusive and queue.consumer_count:
        raise ResourceLockedError(f"Queue {queue.name} already has consumers. Exclusive access denied.")
    queue.add_consumer(consumer, priority)
    if arguments.entries:
        broker.arguments.idle(what, _idle_arguments(queue, consumer, arguments))
    if exclusive:
        queue.exclusive_consumer = consumer
    host, user = caller.remote_host, caller.user
    event = Subscribe(host, user, queue.name, destination, exclusive, arguments, not consumer.acquires, queue.durable)
    broker.events.emit(event, caller)


def _idle_arguments(queue: Queue, consumer: Consumer, arguments: TypedMap) -> list[IdleArgument]:
    """The arguments of a consumer that have no effect beside the others, and on this queue."""
    given = plain(arguments)
    found: dict[str, str] = {}
    ranks = [name for name in PRIORITIES if name in given]
    if len(ranks) > 1 and given[ranks[0]] != given[ranks[1]]:
        found[ranks[1]] = f"{ranks[0]} is given, too, and counts"
    if isinstance(queue, Stream):
        found |= idle_of_stream(queue, arguments, getattr(consumer, "destination", ""))
    elif not consumer.acquires:
        found |= dict.fromkeys(ranks, "it browses, and takes messages from nobody")
    return [IdleArgument(name, given[name], why) for name, why in found.items()]


def _priority(arguments: TypedMap) -> int:
    for name in PRIORITIES:
        typed = arguments.get(name)
        if typed is not None:
            value = typed.value
            if not isinstance(value, int) or isinstance(value, bool):
                raise InvalidArgumentError(f"{name} is {shown(value)}, not a whole number")
            return value
    return 0


def unsubscribe(host: VirtualHost, caller: Caller, queue: Queue, consumer: Consumer, destination: str) -> None:
    """Remove a consumer from a queue of a virtual host; nothing to do on a deleted queue."""
    if not queue.is_gone:
        queue.remove_consumer(consumer)
        host.idle_queues.used(queue)
    host.events.emit(Unsubscribe(caller.remote_host, caller.user, destination, queue.name), caller)


# ---- available messages of a queue ----


class Selection:
    """The messages that are available now, or a number of them, in portions.

    Others may take messages between two portions; each begins where the last one has ended.

    Args:
        queue: the queue.
        number: how many; 0 for all.
        selects: which; None for all.
        at_once: the most messages of a portion.
        seconds: roughly, how long a portion may take.

    Raises:
        NotImplementedByBrokerError: the queue is a stream.

    Attributes:
        is_over: whether there are no more.
    """

    __slots__ = ("_at_once", "_end", "_last", "_left", "_passed_to", "_queue", "_seconds", "_selects", "is_over")

    def __init__(
        self,
        queue: Queue,
        number: int = 0,
        selects: Callable[[Message], bool] | None = None,
        at_once: int = AT_ONCE,
        seconds: float = SECONDS_AT_ONCE,
    ) -> None:
        if isinstance(queue, Stream):
            raise NotImplementedByBrokerError(f'messages of stream "{queue.name}" cannot be purged or moved')
        self._queue, self._left, self._selects = queue, number or -1, selects
        self._at_once, self._seconds = at_once, seconds
        self._end = queue.next_position
        self._passed_to = 0  # all messages up to this position were looked at
        self._last: Entry | None = None  # the last of these that was left on the queue
        self.is_over = False

    def portion(self) -> Iterator[Entry]:
        """The next messages; each is to be acquired or left before the iterator is advanced."""
        taken = looked_at = 0
        until = time.monotonic() + self._seconds
        for entry in self._queue.order.since(self._last, self._passed_to):
            looked_at += 1
            if looked_at > 1 and (taken >= self._at_once or time.monotonic() >= until):
                return
            if entry.position >= self._end or self._left == 0 or self._queue.is_deleted:
                break
            if entry.position <= self._passed_to:
                continue  # yielded again later
            self._passed_to = entry.position
            if entry.state == AVAILABLE and (self._selects is None or self._selects(entry.message)):
                taken += 1
                yield entry
                self._left -= entry.state != AVAILABLE
            if entry.state in (AVAILABLE, ACQUIRED):
                self._last = entry
        self.is_over = True


def purge(
    broker: Broker, caller: Caller, queue: Queue, done: Callable[[int, Exception | None], None]
) -> Iterator[None] | None:
    """Remove all messages available now. If they are many, returns the work, which the caller does in turns.

    Args:
        broker: the model.
        caller: the caller.
        queue: the queue.
        done: called with their number when they are gone for good, or with the error that kept some of them.

    Raises:
        UnauthorizedError: the caller may not purge the queue.
        NotImplementedByBrokerError: it is a stream.
        InternalError: a journal cannot be written.
    """
    broker.authorization.check(caller, Action.PURGE, ObjectType.QUEUE, queue.name)
    if isinstance(queue, Stream):
        raise NotImplementedByBrokerError(f'stream "{queue.name}" cannot be purged: its retention drops messages')
    if queue.message_count > AT_ONCE:
        return _purge_in_turns(broker.tick, queue, done)
    count, is_written = queue.purge()
    if is_written:
        broker.tick.when_synced(lambda error: done(count, error))
    else:
        done(count, None)
    return None


def _purge_in_turns(tick: Tick, queue: Queue, done: Callable[[int, Exception | None], None]) -> Iterator[None]:
    selection, count, is_written = Selection(queue), 0, False
    while not selection.is_over:
        try:
            count, is_written = _purge_portion(queue, selection, count, is_written)
        except ModelError as error:
            done(count, error)
            return
        yield
    if is_written:
        tick.journals[queue.journal] = True  # records of earlier ticks
        tick.when_synced(lambda error: done(count, error))
    else:
        done(count, None)


def _purge_portion(queue: Queue, selection: Selection, count: int, is_written: bool) -> tuple[int, bool]:
    for entry in selection.portion():
        if queue.acquire(entry, is_consumed=False):
            is_written = queue.dequeue(entry) or is_written
            queue.counters.purged += 1
            count += 1
    return count, is_written
