"""Settlement of delivered messages: one rule for each outcome, whatever the protocol; and subscribing.

    accept      the message is dequeued
    reject      it moves to its queue's dead-letter exchange, or else its alternate exchange; without it is dequeued
    release     it is available again, at its old position
    subscribe   adds a consumer: an exclusive one only if it is the first, others only if none is exclusive; and none
                is exclusive where one consumer at a time is active
    purge       waiting messages are dequeued

Messages of a queue that was deleted meanwhile were deleted with it, or moved: nothing is done. Until that is on the
disk, a crash would bring them back, so accept and reject of stored messages wait: for the move, or while the store is
deleting the queue. If the deletion fails, they are dequeued.

Sources: AMQP 0-10, class message; MRG 2 Messaging User Guide, 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import TYPE_CHECKING

from qstore.broker.model.arguments import PRIORITY, Of, shown
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.caller import Caller
from qstore.broker.model.errors import InvalidArgumentError, ModelError, ResourceLockedError
from qstore.broker.model.events import Subscribe, Unsubscribe
from qstore.broker.model.queues.consumer import Consumer
from qstore.broker.model.queues.deletion import Deletion
from qstore.broker.model.queues.entry import ACQUIRED, MOVING, Entry
from qstore.broker.model.queues.queue import Queue
from qstore.formats.values import EMPTY_MAP, TypedMap

if TYPE_CHECKING:
    from qstore.broker.model.broker import Broker
    from qstore.broker.model.tick import Tick

Done = Callable[[Exception | None], None]


class Settled(Enum):
    """When a settlement may be reported to the client as done."""

    NOW = auto()
    SYNCED = auto()  # when the records of this event loop tick are on the disk
    LATER = auto()  # when `done` is called


class _Pending:
    """The parts of a settlement that are done later.

    Args:
        done: called once all are done, or with an error for each that fails.
    """

    __slots__ = ("_done", "_has_returned", "_left")

    def __init__(self, done: Done) -> None:
        self._done = done
        self._left = 0
        self._has_returned = False

    def expect(self) -> Done:
        """One more part. Returns what must be called when it is done."""
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
        """The settlement's result, when all parts have begun: `done` is called only if that is LATER."""
        self._has_returned = True
        return Settled.LATER if self._left else Settled.NOW


def accept(tick: Tick, acquired: Iterable[tuple[Queue, Entry]], done: Done) -> Settled:
    """Dequeue messages.

    Args:
        tick: of the broker.
        acquired: the messages.
        done: if the result is LATER, called once they are gone for good; and with an error for each that cannot be
            dequeued.

    Raises:
        InternalError: a journal cannot be written; this message and those after it stay acquired.
    """
    is_written = False
    pending: _Pending | None = None
    for queue, entry in acquired:
        if queue.is_deleted:
            deletion = _deletion_of(queue, entry)
            if deletion is not None:
                if pending is None:
                    pending = _Pending(done)
                deletion.dequeue(entry, pending.expect())
        elif queue.dequeue(entry):
            is_written = True
    if pending is None:
        return Settled.SYNCED if is_written else Settled.NOW
    if is_written:
        tick.when_synced(pending.expect())
    return pending.settled()


def reject(broker: Broker, acquired: Iterable[tuple[Queue, Entry]], done: Done) -> Settled:
    """Move messages to their queues' dead-letter or alternate exchanges; dequeue those of queues with neither.

    Args:
        broker: the model.
        acquired: the messages.
        done: if the result is LATER, called once all messages have moved; and called with an error for each that could
            not be moved.

    Raises:
        ModelError: a message cannot be moved: it and those after it are available again. Or it cannot be dequeued: it
            stays acquired, and those that were to be moved are available again.
    """
    moves: list[tuple[Queue, Entry]] = []
    pending = _Pending(done)
    is_written = False
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
    for index, (queue, entry) in enumerate(moves):
        was_acquired = entry.state == ACQUIRED
        try:
            if queue.dead_letter is not None:
                queue.dead_letter.reject(queue, entry, pending.expect())
            else:
                assert queue.alternate is not None
                broker.router.move(queue, entry, queue.alternate, pending.expect())
        except ModelError:
            release(moves[index:], is_redelivered=True)
            raise
        queue.counters.rejected += was_acquired
    return pending.settled()


def _deletion_of(queue: Queue, entry: Entry) -> Deletion | None:
    """The deletion that a message of a deleted queue leaves with; None if no crash could bring it back."""
    return queue.deletion if entry.rid and entry.state in (ACQUIRED, MOVING) else None


def release(acquired: Iterable[tuple[Queue, Entry]], *, is_redelivered: bool) -> None:
    """Make messages available again; with `is_redelivered` they are marked as delivered before."""
    for queue, entry in acquired:
        if not queue.is_gone:
            queue.release(entry, is_redelivered=is_redelivered)


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
    """Add a consumer; if it is `exclusive`, the queue accepts no other. The argument x-priority ranks it.

    Raises:
        UnauthorizedError: the caller may not consume.
        InvalidArgumentError: x-priority is not a whole number.
        NotImplementedByBrokerError: an argument asks for something that subscriptions of this protocol do not have.
        ResourceLockedError: the queue has an exclusive consumer; or, for an exclusive one, any consumer, or consumers
            of which one is active.
    """
    broker.authorization.check(caller, Action.CONSUME, ObjectType.QUEUE, queue.name)
    what = f'subscription "{destination}" to queue "{queue.name}"'
    broker.arguments.check(Of.SUBSCRIPTION, what, arguments, protocol=protocol)
    if queue.exclusive_consumer is not None:
        raise ResourceLockedError(f"Queue {queue.name} has an exclusive consumer. No more consumers allowed.")
    priority = _priority(arguments)
    if exclusive and queue.is_single_active:
        raise ResourceLockedError(f"Queue {queue.name} has a single active consumer. Exclusive access denied.")
    if exclusive and queue.consumer_count:
        raise ResourceLockedError(f"Queue {queue.name} already has consumers. Exclusive access denied.")
    queue.add_consumer(consumer, priority)
    if exclusive:
        queue.exclusive_consumer = consumer
    host, user = caller.remote_host, caller.user
    event = Subscribe(host, user, queue.name, destination, exclusive, arguments, not consumer.acquires, queue.durable)
    broker.events.emit(event, caller)


def _priority(arguments: TypedMap) -> int:
    typed = arguments.get(PRIORITY)
    if typed is None:
        return 0
    value = typed.value
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidArgumentError(f"{PRIORITY} is {shown(value)}, not a whole number")
    return value


def unsubscribe(broker: Broker, caller: Caller, queue: Queue, consumer: Consumer, destination: str) -> None:
    """Remove a consumer. A deleted queue has none left to remove."""
    if not queue.is_gone:
        queue.remove_consumer(consumer)
        broker.idle_queues.used(queue)
    broker.events.emit(Unsubscribe(caller.remote_host, caller.user, destination, queue.name), caller)


def purge(broker: Broker, caller: Caller, queue: Queue, max_messages: int = 0) -> tuple[int, Settled]:
    """Remove at most `max_messages` waiting messages; 0 for all. Returns how many, and NOW or SYNCED.

    Raises:
        UnauthorizedError: the caller may not purge the queue.
        InternalError: a journal cannot be written.
    """
    broker.authorization.check(caller, Action.PURGE, ObjectType.QUEUE, queue.name)
    count, is_written = queue.purge(max_messages)
    return count, Settled.SYNCED if is_written else Settled.NOW
