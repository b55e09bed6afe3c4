"""What becomes of a message that was delivered: one rule for each outcome, whatever the protocol.

    accept      it is dequeued
    reject      it moves to its queue's alternate exchange; without one it is dequeued
    release     it is available again, in its old place
    subscribe   who may consume: one alone, or everybody but while there is one alone
    purge       what waits is dequeued

What belongs to a queue that is deleted meanwhile has gone with it, or moved: nothing is done.

Sources: AMQP 0-10, class message; MRG 2 Messaging User Guide, 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import TYPE_CHECKING

from broker.model.authorization import Action, ObjectType
from broker.model.caller import Caller
from broker.model.errors import ModelError, ResourceLockedError
from broker.model.events import Subscribe, Unsubscribe
from broker.model.queues.consumer import Consumer
from broker.model.queues.entry import ACQUIRED, Entry
from broker.model.queues.queue import Queue
from formats.values import EMPTY_MAP, TypedMap

if TYPE_CHECKING:
    from broker.model.broker import Broker


class Settled(Enum):
    """When the client may be told that what it has settled is done."""

    NOW = auto()
    SYNCED = auto()  # when what was written in this event loop tick is on the disk
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
    """Move messages to their queues' alternate exchanges, and dequeue those of queues that have none.

    Args:
        broker: the model.
        acquired: the messages.
        done: called, if the result is LATER, when they are where they go, and nowhere else; and with an error for each
            of them that turns out not to be movable.

    Raises:
        ModelError: a message cannot be moved or dequeued. It, and those after it, are available again.
    """
    moves: list[tuple[Queue, Entry]] = []
    is_written = False
    for queue, entry in acquired:
        if queue.is_deleted:
            continue
        if queue.alternate is not None:
            moves.append((queue, entry))
            continue
        is_there = entry.state == ACQUIRED
        is_written = queue.dequeue(entry) or is_written
        queue.counters.rejected += is_there
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
        broker.turn.when_synced(one_done)
    for index, (queue, entry) in enumerate(moves):
        assert queue.alternate is not None
        is_there = entry.state == ACQUIRED
        try:
            broker.router.move(queue, entry, queue.alternate, one_done)
        except ModelError:
            for source, kept in moves[index:]:
                source.release(kept, is_redelivered=True)
            raise
        queue.counters.rejected += is_there
    has_returned = True
    return Settled.LATER if left else Settled.NOW


def release(acquired: Iterable[tuple[Queue, Entry]], *, is_redelivered: bool) -> None:
    """Make messages available again; `is_redelivered` if the next consumer is to be told that one had them before."""
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
    """Add a consumer, which alone is to have the queue if it is `exclusive`.

    Raises:
        UnauthorizedError: the caller may not consume.
        ResourceLockedError: another one has the queue alone, or this one cannot have it alone.
    """
    broker.authorization.check(caller, Action.CONSUME, ObjectType.QUEUE, queue.name)
    if queue.exclusive_consumer is not None or (exclusive and queue.consumer_count):
        raise ResourceLockedError(f"Queue {queue.name} has an exclusive consumer, or another one")
    queue.add_consumer(consumer)
    if exclusive:
        queue.exclusive_consumer = consumer
    host, user = caller.remote_host, caller.user
    broker.events.emit(Subscribe(host, user, queue.name, destination, exclusive, arguments))


def unsubscribe(broker: Broker, caller: Caller, queue: Queue, consumer: Consumer, destination: str) -> None:
    """Remove a consumer; a queue that is deleted has none any more."""
    if not queue.is_deleted:
        queue.remove_consumer(consumer)
    broker.events.emit(Unsubscribe(caller.remote_host, caller.user, destination))


def purge(broker: Broker, caller: Caller, queue: Queue, most: int = 0) -> tuple[int, Settled]:
    """Remove the messages that wait, at most `most` of them unless that is 0. Returns how many, and NOW or SYNCED.

    Raises:
        UnauthorizedError: the caller may not.
        InternalError: a journal cannot be written.
    """
    broker.authorization.check(caller, Action.PURGE, ObjectType.QUEUE, queue.name)
    count, is_written = queue.purge(most)
    return count, Settled.SYNCED if is_written else Settled.NOW
