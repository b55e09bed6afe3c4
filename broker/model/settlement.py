"""Settlement of delivered messages: one rule for each outcome, whatever the protocol; and subscribing.

    accept      the message is dequeued
    reject      it moves to its queue's alternate exchange; without one it is dequeued
    release     it is available again, at its old position
    subscribe   adds a consumer: an exclusive one only if it is the first, others only if none is exclusive
    purge       waiting messages are dequeued

Messages of a queue that was deleted meanwhile were deleted with it, or moved: nothing is done.

Sources: AMQP 0-10, class message; MRG 2 Messaging User Guide, 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import TYPE_CHECKING

from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.caller import Caller
from qstore.broker.model.errors import ModelError, ResourceLockedError
from qstore.broker.model.events import Subscribe, Unsubscribe
from qstore.broker.model.queues.consumer import Consumer
from qstore.broker.model.queues.entry import ACQUIRED, Entry
from qstore.broker.model.queues.queue import Queue
from qstore.formats.values import EMPTY_MAP, TypedMap

if TYPE_CHECKING:
    from qstore.broker.model.broker import Broker


class Settled(Enum):
    """When a settlement may be reported to the client as done."""

    NOW = auto()
    SYNCED = auto()  # when the records of this event loop tick are on the disk
    LATER = auto()  # when `done` is called


def accept(acquired: Iterable[tuple[Queue, Entry]]) -> Settled:
    """Dequeue messages. Returns NOW or SYNCED.

    Raises:
        InternalError: a journal cannot be written; this message and those after it stay acquired.
    """
    is_written = False
    for queue, entry in acquired:
        if not queue.is_deleted and queue.dequeue(entry):
            is_written = True
    return Settled.SYNCED if is_written else Settled.NOW


def reject(
    broker: Broker, acquired: Iterable[tuple[Queue, Entry]], done: Callable[[Exception | None], None]
) -> Settled:
    """Move messages to their queues' alternate exchanges; dequeue those of queues without one.

    Args:
        broker: the model.
        acquired: the messages.
        done: if the result is LATER, called once all messages have moved; and called with an error for each that could
            not be moved.

    Raises:
        ModelError: a message cannot be moved or dequeued. It and those after it are available again.
    """
    moves: list[tuple[Queue, Entry]] = []
    is_written = False
    for queue, entry in acquired:
        if queue.is_deleted:
            continue
        if queue.alternate is not None:
            moves.append((queue, entry))
            continue
        was_acquired = entry.state == ACQUIRED
        is_written = queue.dequeue(entry) or is_written
        queue.counters.rejected += was_acquired
    if not moves:
        return Settled.SYNCED if is_written else Settled.NOW
    left = len(moves) + is_written
    has_returned = False

    def one_done(error: Exception | None) -> None:
        nonlocal left
        left -= 1
        if error is not None:
            done(error)
        elif not left and has_returned:
            done(None)

    if is_written:
        broker.tick.when_synced(one_done)
    for index, (queue, entry) in enumerate(moves):
        assert queue.alternate is not None
        was_acquired = entry.state == ACQUIRED
        try:
            broker.router.move(queue, entry, queue.alternate, one_done)
        except ModelError:
            for source, kept in moves[index:]:
                source.release(kept, is_redelivered=True)
            raise
        queue.counters.rejected += was_acquired
    has_returned = True
    return Settled.LATER if left else Settled.NOW


def release(acquired: Iterable[tuple[Queue, Entry]], *, is_redelivered: bool) -> None:
    """Make messages available again; with `is_redelivered` they are marked as delivered before."""
    for queue, entry in acquired:
        if not queue.is_deleted:
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
) -> None:
    """Add a consumer; if it is `exclusive`, the queue accepts no other.

    Raises:
        UnauthorizedError: the caller may not consume.
        ResourceLockedError: the queue has an exclusive consumer; or, for an exclusive one, any consumer.
    """
    broker.authorization.check(caller, Action.CONSUME, ObjectType.QUEUE, queue.name)
    if queue.exclusive_consumer is not None:
        raise ResourceLockedError(f"Queue {queue.name} has an exclusive consumer. No more consumers allowed.")
    if exclusive and queue.consumer_count:
        raise ResourceLockedError(f"Queue {queue.name} already has consumers. Exclusive access denied.")
    queue.add_consumer(consumer)
    if exclusive:
        queue.exclusive_consumer = consumer
    host, user = caller.remote_host, caller.user
    broker.events.emit(Subscribe(host, user, queue.name, destination, exclusive, arguments))


def unsubscribe(broker: Broker, caller: Caller, queue: Queue, consumer: Consumer, destination: str) -> None:
    """Remove a consumer. A deleted queue has none left to remove."""
    if not queue.is_deleted:
        queue.remove_consumer(consumer)
    broker.events.emit(Unsubscribe(caller.remote_host, caller.user, destination))


def purge(broker: Broker, caller: Caller, queue: Queue, max_messages: int = 0) -> tuple[int, Settled]:
    """Remove at most `max_messages` waiting messages; 0 for all. Returns how many, and NOW or SYNCED.

    Raises:
        UnauthorizedError: the caller may not purge the queue.
        InternalError: a journal cannot be written.
    """
    broker.authorization.check(caller, Action.PURGE, ObjectType.QUEUE, queue.name)
    count, is_written = queue.purge(max_messages)
    return count, Settled.SYNCED if is_written else Settled.NOW
