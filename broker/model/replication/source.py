"""The source of replication: puts an event on the replication queue for each message of a replicated queue.

    qpid.queue_event_generation   events
    ----------------------------  --------------------------------
    1                             of enqueued messages
    2                             of enqueued and dequeued messages

Events are put there in the order in which they happen, each with its number. A message published in a transaction
counts as enqueued at its commit. An event of a persistent message is persistent, so that a durable replication queue
keeps it; the publisher's or consumer's completion waits for its record, too. If an event cannot be put on the
replication queue, the log says that events are missing, and how many, once it is possible again.

The dequeue event of a stored message follows when its dequeue is on the disk: what the other broker has removed does
not come back here. Otherwise a crash can leave a message without its event, or an event without its message, because
their records are in different journals. So after one, each replicated queue repeats first what is in doubt
(`EventGeneration.resume`):

    2         an inventory of its stored messages, so that the other broker removes what has left the queue
    1, 2      the enqueue events of the messages after the last *mark*, which say that they may have been sent before

A mark is the record id of a message; all events up to it are on the disk. It is a configuration record, renewed every
`MARKED_EVERY` messages. A replication queue that is not durable loses its events at any stop; then all messages of
queues with 2 are in doubt.

The listener is registered before the store is recovered, since messages that recovery removes from queues have events
too. If its queue or exchange is missing, this is logged, and events are missing until it is created.

Sources: Qpid C++ Broker Book, 1.7.1; MRG Messaging User Guide, queue state replication.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from qstore.broker.log.logs import log_of
from qstore.broker.model.configuration import Record
from qstore.broker.model.errors import ModelError, NotFoundError
from qstore.broker.model.message import MakeMessage, Message, NewMessage
from qstore.broker.model.queues.entry import UNCOMMITTED
from qstore.broker.model.queues.limits import Displacement
from qstore.broker.model.replication.events import (
    DEQUEUED,
    ENQUEUED,
    Event,
    Inventory,
    MessageId,
    inventories,
    stored_id,
)
from qstore.formats.broker_records.topology import REPLICATION_MARK
from qstore.formats.values import TypedMap

if TYPE_CHECKING:
    from qstore.broker.model.broker import Broker
    from qstore.broker.model.queues.entry import Entry
    from qstore.broker.model.queues.queue import Queue

_LOG: Final = log_of("Broker")

MARKED_EVERY: Final = 1_000
"""Messages of a queue after which it gets another mark: so many events are repeated after a crash."""

WhenSynced: TypeAlias = Callable[[Callable[[Exception | None], None]], None]
Run: TypeAlias = Callable[[Coroutine[Any, Any, None]], None]

_AT_ONCE: Final = 500  # events that are repeated before other work has its turn


class ReplicatingListener:
    """Makes and sends events.

    Args:
        source: identifies this run of the broker.
        send: puts an event on the replication queue. Raises ModelError.
        make_message: encodes messages.
        when_synced: calls back when the records of this tick are on the disk.
        mark: stores the mark of a queue.
        queue: the name of the replication queue, which itself has no events; None if an exchange gets the events.

    Attributes:
        when_synced: as above.
    """

    def __init__(
        self,
        source: str,
        send: Callable[[Message], None],
        make_message: MakeMessage,
        when_synced: WhenSynced,
        mark: Callable[[Queue, int], None],
        queue: str | None = None,
    ) -> None:
        self._source, self._send, self._make_message, self._queue = source, send, make_message, queue
        self.when_synced, self._mark = when_synced, mark
        self._number = 0
        self._missing = 0
        self._is_sending = False

    def enqueued(self, queue: str, entry: Entry, identity: MessageId | None, *, is_again: bool = False) -> None:
        """Send the event that a message was enqueued; `identity` is None if it is not stored."""
        if not self._is_sending and queue != self._queue:
            self._deliver(partial(self._event, ENQUEUED, queue, entry, identity, is_again=is_again), queue)

    def dequeued(self, queue: str, entry: Entry, identity: MessageId | None) -> None:
        """Send the event that a message was dequeued."""
        if not self._is_sending and queue != self._queue:
            self._deliver(partial(self._event, DEQUEUED, queue, entry, identity), queue)

    def has(self, queue: str, inventory: Inventory) -> None:
        """Send an inventory."""
        if queue != self._queue:
            self._deliver(partial(self._inventory, queue, inventory), queue)

    def mark(self, queue: Queue, rid: int) -> None:
        """Store the mark of a queue, unless events are missing."""
        if not self._missing and queue.name != self._queue:
            self._mark(queue, rid)

    def _deliver(self, make: Callable[[], Message], queue: str) -> None:
        self._is_sending = True  # a queue that the exchange routes to may itself generate events
        try:
            self._send(make())
        except (ModelError, MemoryError) as error:
            self._missing += 1
            if self._missing == 1:
                _LOG.error('Events are missing from replication, the first of queue "%s": %s', queue, error)
        else:
            if self._missing:
                _LOG.error("%d events are missing from replication; it continues with the next ones", self._missing)
                self._missing = 0
        finally:
            self._is_sending = False

    def _event(
        self, kind: int, queue: str, entry: Entry, identity: MessageId | None, *, is_again: bool = False
    ) -> Message:
        self._number += 1
        message, position = entry.message, entry.position
        identity = identity or MessageId(self._source, position)
        headers = Event(kind, queue, identity, self._source, self._number, is_again).headers(position)
        if kind == ENQUEUED:
            return message.with_headers(headers)
        present = {name: value for name, value in headers.items() if value is not None}
        return self._make_message(NewMessage(queue, TypedMap(tuple(present.items())), message.is_persistent))

    def _inventory(self, queue: str, inventory: Inventory) -> Message:
        self._number += 1
        nothing = MessageId(inventory.source, 0)
        headers = Event(DEQUEUED, queue, nothing, self._source, self._number, inventory=inventory).headers(0)
        present = {name: value for name, value in headers.items() if value is not None}
        return self._make_message(NewMessage(queue, TypedMap(tuple(present.items())), is_persistent=True))


class EventGeneration(Displacement):
    """Sends the events of one queue's messages; displaces none.

    Args:
        name: the name of the queue.
        listener: sends them.
        with_dequeues: whether dequeued messages have events, too.
    """

    __slots__ = ("_journal", "_listener", "_name", "_unmarked", "_withdrawn", "with_dequeues")

    def __init__(self, name: str, listener: ReplicatingListener, *, with_dequeues: bool) -> None:
        self._name, self._listener, self.with_dequeues = name, listener, with_dequeues
        self._withdrawn: Entry | None = None  # is about to be removed
        self._journal = 0  # the number of the queue in the store
        self._unmarked = 0  # messages since the last mark

    def arrived(self, queue: Queue, entry: Entry) -> None:
        """Send the event that a message was enqueued."""
        if not entry.rid:
            self._listener.enqueued(self._name, entry, None)
            return
        self._journal = queue.journal.queue_id
        self._listener.enqueued(self._name, entry, stored_id(self._journal, entry.rid))
        self._unmarked += 1
        if self._unmarked >= MARKED_EVERY and not queue.uncommitted:  # those may have lower record ids
            self._unmarked = 0
            self._listener.mark(queue, entry.rid)

    def recovered(self, queue: Queue) -> None:
        """Messages from before the start already had their events, but see `resume`."""
        if queue.journal is not None:
            self._journal = queue.journal.queue_id

    def resume(self, queue: Queue, mark: int) -> Iterator[None]:
        """Repeat the events that may be missing after a crash: nothing was published since. Yields after portions."""
        stored = [entry for entry in queue.entries() if entry.rid and entry.state != UNCOMMITTED]
        stored.sort(key=lambda entry: entry.rid)
        if self.with_dequeues:
            for inventory in inventories(stored_id(self._journal, 0).source, (entry.rid for entry in stored)):
                self._listener.has(self._name, inventory)
                yield
        for count, entry in enumerate((entry for entry in stored if entry.rid > mark), 1):
            self._listener.enqueued(self._name, entry, stored_id(self._journal, entry.rid), is_again=True)
            if not count % _AT_ONCE:
                yield

    def withdrawn(self, entry: Entry) -> None:
        """Note a message that never had an event, so that its removal has none either."""
        self._withdrawn = entry

    def removed(self, entry: Entry) -> None:
        """Send the event that a message was dequeued."""
        was_withdrawn, self._withdrawn = entry is self._withdrawn, None
        if not self.with_dequeues or was_withdrawn:
            return
        if entry.rid:
            self._listener.when_synced(partial(self._left, entry))
        else:
            self._listener.dequeued(self._name, entry, None)

    def _left(self, entry: Entry, error: Exception | None) -> None:
        if error is None:
            self._listener.dequeued(self._name, entry, stored_id(self._journal, entry.rid))


class Marks:
    """Stores the marks of replicated queues.

    Args:
        broker: the broker.
        run: runs a coroutine later; None to do it in a task.
    """

    def __init__(self, broker: Broker, run: Run | None = None) -> None:
        self._broker, self._run = broker, run or self._in_a_task
        self._tasks: set[asyncio.Task[None]] = set()

    def _in_a_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def set(self, queue: Queue, rid: int) -> None:
        """Store a mark when the events up to now are on the disk."""
        self._broker.tick.when_synced(partial(self._synced, queue, rid))

    def _synced(self, queue: Queue, rid: int, error: Exception | None) -> None:
        if error is None and not queue.is_deleted:
            self._run(self._store(queue, rid))

    async def _store(self, queue: Queue, rid: int) -> None:
        record = Record(REPLICATION_MARK, (queue.name,))
        try:
            await self._broker.configuration.change({record: {"journal": queue.journal.queue_id, "record": rid}})
        except ModelError as error:
            _LOG.warning('Queue "%s": more events than necessary will be repeated after a crash: %s', queue.name, error)


def _mark_of(broker: Broker, queue: Queue) -> int:
    """The mark of a queue; 0 if it has none."""
    values = broker.configuration.get(Record(REPLICATION_MARK, (queue.name,))) or {}
    record = values.get("record", 0)
    return record if isinstance(record, int) and values.get("journal") == queue.journal.queue_id else 0


def register_listener(broker: Broker, make_message: MakeMessage, run: Run | None = None) -> None:
    """Register the listener that sends the events of queues, if the settings name a queue or an exchange for them.

    Call this before there are queues.

    Args:
        broker: the broker.
        make_message: encodes messages.
        run: as of `Marks`.
    """
    settings, host = broker.settings, broker.default_host

    def to_queue(event: Message) -> None:
        queue = host.queues.get(settings.replication_queue or "")
        if queue is None or queue.is_deleted:
            raise NotFoundError(f'there is no queue "{settings.replication_queue}"; see --create-replication-queue')
        broker.router.put(event, (queue,))

    def to_exchange(event: Message) -> None:
        exchange = host.exchanges.get(settings.replication_exchange or "")
        if exchange is None:
            raise NotFoundError(f'there is no exchange "{settings.replication_exchange}"')
        route = broker.router.route(event, exchange)
        broker.router.put(event, route.queues)
        broker.router.count(event, route)

    process, marks = uuid.uuid4().hex, Marks(broker, run)
    if settings.replication_exchange:
        broker.queue_factory.listener = ReplicatingListener(
            process, to_exchange, make_message, broker.tick.when_synced, marks.set
        )
    elif settings.replication_queue:
        broker.queue_factory.listener = ReplicatingListener(
            process, to_queue, make_message, broker.tick.when_synced, marks.set, settings.replication_queue
        )


async def prepare_replication(broker: Broker) -> None:
    """Create the queue or exchange for events, if it is missing, and repeat events in doubt. Errors are logged.

    Call this after the recovery, and before clients are served.
    """
    settings, host = broker.settings, broker.default_host
    exchange, queue = settings.replication_exchange, settings.replication_queue
    try:
        if exchange:
            if queue:
                _LOG.warning("--replication-queue is ignored, since --replication-exchange-name is given")
            await host.topology.declare_exchange(exchange, settings.replication_exchange_type)
            where = f'exchange "{exchange}"'
        elif queue:
            if settings.create_replication_queue or queue in host.queues:
                await host.topology.declare_queue(queue)
            else:
                raise NotFoundError(f'there is no queue "{queue}"; create it, or see --create-replication-queue')
            where = f'queue "{queue}"'
        else:
            return
        await _resume(broker)
    except ModelError as error:
        _LOG.error("Events of replicated queues cannot be sent: %s", error)
        return
    _LOG.notice(
        'Event listener "%s" registered: events of replicated queues go to %s', settings.replication_listener, where
    )


async def _resume(broker: Broker) -> None:
    """Repeat the events that may be missing since the last stop, and forget the marks of queues that are gone."""
    store, queues = broker.store, broker.default_host.queues
    if store is None:
        return
    events = None if broker.settings.replication_exchange else queues.get(broker.settings.replication_queue or "")
    are_lost = events is not None and events.journal is None
    for queue in list(queues.values()):
        for part in queue.displacements:
            if not isinstance(part, EventGeneration) or queue.journal is None:
                continue
            is_all = are_lost and part.with_dequeues
            if is_all or not store.was_clean:
                for _ in part.resume(queue, 0 if is_all else _mark_of(broker, queue)):
                    await asyncio.sleep(0)
    broker.tick.schedule()
    gone = [name for name in broker.configuration.of(REPLICATION_MARK) if name[0] not in queues]
    if gone:
        await broker.configuration.change({}, [Record(REPLICATION_MARK, name) for name in gone])
