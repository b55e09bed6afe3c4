"""A queue: messages come, wait, are given to consumers, come back or go.

    order        an entry for each message, and which is next (`fifo`)
    consumers    who is offered the next one, and who only looks on (`consumers`)
    barriers     from where on nothing may be delivered yet (`barriers`)
    limit        how much it holds (`limits`)
    eligibility  which messages it takes (`eligibility`)

A message that a durable queue keeps in its journal may be delivered when its record is on the disk, and none that came
after it before: that is what the barriers are for. Everything else may be delivered at once. A message that comes back
(release, a session that ends) is again where it was.

Nothing is delivered when a message comes: the queue is put among those that the turn has to serve, and `dispatch` is
called when all that came with it is in.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from broker.model.errors import InternalError, ResourceLimitExceededError
from broker.model.memory import MESSAGE_OVERHEAD
from broker.model.queues.barriers import Barrier, Barriers
from broker.model.queues.consumer import TAKEN
from broker.model.queues.consumers import Consumers
from broker.model.queues.counters import QueueCounters, QueueTotals
from broker.model.queues.entry import ACQUIRED, AVAILABLE, LEAVING, UNCOMMITTED, Entry
from broker.model.queues.fifo import Fifo
from broker.model.watermark import Watermark
from formats.values import EMPTY_MAP, TypedMap

if TYPE_CHECKING:
    from broker.model.message import Message
    from broker.model.queues.consumer import Consumer
    from broker.model.queues.eligibility import NoLocal
    from broker.model.queues.limits import Reject
    from broker.model.store_protocol import Store
    from broker.model.turn import Turn


class Routed(Protocol):
    """Where an exchange sends a message."""

    @property
    def queues(self) -> Sequence[Queue]:
        """The queues, each once."""

    def count(self, size: int) -> None:
        """A message of `size` bytes has gone there."""


class Alternate(Protocol):
    """An exchange, as a queue's alternate one: where what is rejected goes, and what is left over."""

    name: str

    @property
    def alternate(self) -> Alternate | None:
        """Where goes in turn what it has no queue for."""

    def route(self, message: Message) -> Routed:
        """Where a message goes."""


class Queue:
    """A queue of the broker.

    Args:
        name: its name.
        turn: serves it.
        durable: whether it is there after a restart.
        auto_delete: whether it goes with its last consumer.
        arguments: of its declaration.
        store: the store that keeps it; None if it is not kept.
        journal: its journal in the store; any type that the store likes.
        order: which message is next (`fifo`); a new `Fifo` unless it is given.
        limit: how much it holds, and what becomes of what is too much (`limits`); None for no limit.
        eligibility: which messages it takes (`eligibility`); None for all.
        clock: seconds since 1970.

    Attributes:
        name, durable, auto_delete, arguments, store, journal, limit, eligibility: as above.
        alternate: the exchange that gets what is rejected, and what is left when the queue is deleted.
        owner: whose it is alone; None if everybody may use it.
        exclusive_consumer: the consumer that alone has it; None if there is none.
        messages_enqueued, messages_dequeued: messages that have come so far, and gone.
        bytes_enqueued, bytes_dequeued: their headers and content.
        counters: what else it counts (`totals`).
        binding_count, consumer_marks: its bindings, that to the default exchange included, and its consumers.
        creator: the user who has declared it.
        counted_memory: its `memory` when that was last counted as growth.
        auto_delete_seconds: how long it stays when it is not used any more, if it is auto-delete.
        is_deleted: it is gone; nothing can be done with it any more.
    """

    __slots__ = (
        "_acquired", "_append", "_barriers", "_clock", "_consumers", "_order", "_turn", "alternate", "arguments",
        "auto_delete", "auto_delete_seconds", "binding_count", "bytes_dequeued", "bytes_enqueued", "consumer_marks",
        "counted_memory", "counters", "creator", "durable", "eligibility", "exclusive_consumer", "is_deleted",
        "journal", "limit", "messages_dequeued", "messages_enqueued", "name", "owner", "store",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        turn: Turn,
        *,
        durable: bool = False,
        auto_delete: bool = False,
        arguments: TypedMap = EMPTY_MAP,
        store: Store | None = None,
        journal: Any = None,
        order: Fifo | None = None,
        limit: Reject | None = None,
        eligibility: NoLocal | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.name, self.durable, self.auto_delete, self.arguments = name, durable, auto_delete, arguments
        self.store, self.journal = store, journal
        self.limit, self.eligibility = limit, eligibility
        self._append = None if store is None else store.append
        self._turn, self._clock = turn, clock
        self.alternate: Alternate | None = None
        self.owner: object | None = None
        self.exclusive_consumer: Consumer | None = None
        self.is_deleted = False
        self.auto_delete_seconds = 0
        self.messages_enqueued = self.messages_dequeued = self.bytes_enqueued = self.bytes_dequeued = 0
        self.counted_memory = 0
        self._acquired = 0  # how often an entry became ACQUIRED
        self.counters = QueueCounters()
        self.binding_count, self.consumer_marks = Watermark(1), Watermark()
        self.creator = ""
        self._order = Fifo() if order is None else order
        self._barriers, self._consumers = Barriers(), Consumers()

    # ---- messages come ----

    def admits(self, message: Message) -> bool:
        """Whether the queue takes the message at all; otherwise it is dropped."""
        return self.eligibility is None or self.eligibility.admits(self, message)

    def keeps(self, message: Message) -> bool:
        """Whether the message is kept in the queue's journal."""
        return message.is_persistent and self.journal is not None and self.admits(message)

    def check_room(self, message: Message) -> None:
        """Raises ResourceLimitExceededError if the queue has no room for the message."""
        if self.limit is not None and self.admits(message):
            self.limit.check(self, message)

    def check_room_for(self, count: int, size: int) -> None:
        """As `check_room`, for `count` messages with `size` bytes of headers and content."""
        if self.limit is not None:
            self.limit.check_all(self, count, size)

    def publish(self, message: Message) -> bool:
        """Put a message at the end, and into the journal if it is kept there.

        Returns:
            Whether it is promised only when what was written in this turn is on the disk.

        Raises:
            ResourceLimitExceededError: there is no room for it.
            The store's `failed_error`, if the journal's disk has failed.
        """
        if self.eligibility is not None and not self.eligibility.admits(self, message):
            return False
        if self.limit is not None:
            self.limit.check(self, message)
        append = self._append
        if append is not None and message.is_persistent:
            assert self.store is not None
            parts, size, crc = message.stored_form()
            try:
                rid = append.enqueue(self.journal, parts, size, crc)
            except self.store.full_error as error:
                raise ResourceLimitExceededError(str(error)) from error
            self.add_held(message, rid)
            return True
        self.add(message, 0)
        return False

    def add(self, message: Message, rid: int) -> Entry:
        """Put a message at the end; it is in the journal already, or is not to be.

        Raises:
            MemoryError: nothing was done: all that takes memory comes first.
        """
        self._turn.ready[self] = None
        count, enqueued = self.messages_enqueued + 1, self.bytes_enqueued + message.size
        if message.is_persistent is not self.durable:
            self.counters.unlike_came(message.size)
        entry = self._order.append(message, rid)
        self.messages_enqueued, self.bytes_enqueued = count, enqueued
        return entry

    # ---- what is on the disk may be delivered ----

    def add_held(self, message: Message, rid: int) -> None:
        """As `add`, for a record of this turn: it, and what follows, is delivered when that is on the disk."""
        self._barriers.hold(self.add(message, rid).position)
        self._turn.written[self] = None
        self._turn.journals[self.journal] = None

    def add_uncommitted(self, message: Message, rid: int) -> Entry:
        """As `add`, but nobody sees it before `commit`."""
        entry = self.add(message, rid)
        entry.state = UNCOMMITTED
        return entry

    def commit(self, entry: Entry) -> None:
        """The transaction that brought it is committed."""
        if entry.rid == 0 and not self.admits(entry.message):
            self.withdraw(entry)
        else:
            entry.state = AVAILABLE
            self.counters.txn_enqueued(entry.message.size)

    def withdraw(self, entry: Entry) -> None:
        """The transaction that brought it has failed, or the queue does not take it."""
        self.counters.withdrawn += 1
        self.remove(entry)

    def raise_barrier(self) -> Barrier:
        """What was added and held so far is waited for, until `lower` is called with this."""
        return self._barriers.raise_held()

    def raise_barrier_at_end(self) -> Barrier:
        """What is added from now on is waited for, until `lower` is called with this."""
        return self._barriers.raise_at(self._order.next_position)

    def lower(self, barrier: Barrier) -> None:
        """What the barrier was for is on the disk."""
        self._barriers.lower(barrier)
        self._turn.ready[self] = None
        self._turn.schedule()

    # ---- messages go ----

    def dequeue(self, entry: Entry) -> bool:
        """A message that somebody had acquired is done with; if it is gone already, nothing happens.

        Returns:
            Whether its removal is promised only when what was written in this turn is on the disk.

        Raises:
            InternalError: its journal cannot be written. Then it stays acquired.
        """
        if entry.state != ACQUIRED:
            return False  # it was moved, or is being moved, since the queue is about to be deleted
        rid = entry.rid
        if rid:
            assert self._append is not None
            assert self.store is not None
            try:
                self._append.dequeue(self.journal, rid)
            except self.store.errors as error:
                raise InternalError(str(error)) from error
            self._turn.journals[self.journal] = None
        self.remove(entry)
        return rid != 0

    def remove(self, entry: Entry) -> None:
        """Remove an entry, which is acquired unless it is withdrawn."""
        following = self._order.remove(entry)
        self.messages_dequeued += 1
        message = entry.message
        self.bytes_dequeued += message.size
        if message.is_persistent is not self.durable:
            self.counters.unlike_went(message.size)
        if self._consumers.browsers:
            self._consumers.removed(entry, following)

    def acquire(self, entry: Entry, *, is_consumed: bool = True) -> bool:
        """Take the message of an entry: for a consumer, unless the broker removes it. False if somebody else has it."""
        if entry.state != AVAILABLE:
            return False
        entry.state = ACQUIRED
        self._acquired += 1
        self.counters.own_acquires += not is_consumed
        self._consumers.acquired(entry)
        return True

    def release(self, entry: Entry, *, is_redelivered: bool) -> None:
        """An acquired message is to be delivered again, from its old place."""
        if entry.state != ACQUIRED:
            return
        entry.state = AVAILABLE
        self.counters.releases += 1
        entry.is_redelivered = entry.is_redelivered or is_redelivered
        self._order.put_back(entry)
        self._turn.ready[self] = None
        self._turn.schedule()

    def entries(self) -> Iterator[Entry]:
        """All entries, in order; the one that was yielded last may be removed meanwhile."""
        return iter(self._order)

    def available(self) -> Iterator[Entry]:
        """The entries that nobody has acquired."""
        return (entry for entry in self._order if entry.state == AVAILABLE)

    def outstanding(self) -> Iterator[Entry]:
        """The entries whose messages wait, or are acquired and not settled."""
        return (entry for entry in self._order if entry.state in (AVAILABLE, ACQUIRED))

    def delivered_rids(self) -> list[int]:
        """Record ids of the messages that were delivered, to be marked if they come back after a restart."""
        held = (ACQUIRED, LEAVING)
        return [each.rid for each in self._order if each.rid and (each.is_redelivered or each.state in held)]

    def purge(self, most: int = 0) -> tuple[int, bool]:
        """Remove the messages that wait, at most `most` of them unless that is 0.

        Returns:
            How many; and whether some of them are promised to be gone only when what was written is on the disk.

        Raises:
            InternalError: as `dequeue`.
        """
        count, is_written = 0, False
        for entry in self.available():
            if most and count == most:
                break
            self.acquire(entry, is_consumed=False)
            is_written = self.dequeue(entry) or is_written
            self.counters.purged += 1
            count += 1
        return count, is_written

    def expire(self) -> int:
        """Remove the messages that wait and have expired. Returns how many."""
        now, count = self._clock(), 0
        for entry in self.available():
            if 0 < entry.message.expires_at <= now:
                self._drop_expired(entry)
                count += 1
        if count:
            self._turn.schedule()
        return count

    def _drop_expired(self, entry: Entry) -> None:
        self.acquire(entry, is_consumed=False)
        with contextlib.suppress(InternalError):  # it stays acquired, so that nobody gets it
            self.dequeue(entry)
            self.counters.expired += 1

    # ---- counts ----

    @property
    def message_count(self) -> int:
        """Messages on it, those that consumers hold included."""
        return self.messages_enqueued - self.messages_dequeued

    @property
    def message_bytes(self) -> int:
        """Their headers and content."""
        return self.bytes_enqueued - self.bytes_dequeued

    @property
    def acquired_count(self) -> int:
        """Messages that consumers or transactions hold."""
        counters = self.counters
        return self._acquired + counters.withdrawn - counters.releases - self.messages_dequeued

    @property
    def totals(self) -> QueueTotals:
        """What it has counted so far."""
        come, gone = (self.messages_enqueued, self.bytes_enqueued), (self.messages_dequeued, self.bytes_dequeued)
        refused = 0 if self.limit is None else self.limit.refused
        return self.counters.totals(come, gone, self._acquired, refused, is_durable=self.durable)

    # ---- consumers ----

    @property
    def consumer_count(self) -> int:
        """How many subscriptions it has."""
        return len(self._consumers)

    @property
    def memory(self) -> int:
        """Bytes of memory that its messages take, as the broker's ceiling counts them."""
        return self.message_bytes + MESSAGE_OVERHEAD * self.message_count

    @property
    def is_empty(self) -> bool:
        """Whether no message is on it."""
        return self.message_count == 0

    @property
    def is_unused(self) -> bool:
        """Whether nobody uses it: it has no owner, and no subscriptions."""
        return self.owner is None and not len(self._consumers)

    def has_taker(self) -> bool:
        """Whether a consumer can take one more message now, when what waits was given to those who can take it."""
        self.dispatch()
        return any(consumer.has_credit for consumer in self._consumers.takers)

    def add_consumer(self, consumer: Consumer) -> None:
        """Offer messages to one more, when `wake` has been called for it."""
        self._consumers.add(consumer, self._order.first)
        self.consumer_marks.set(self.consumer_count)

    def remove_consumer(self, consumer: Consumer) -> None:
        """One is gone."""
        self._consumers.remove(consumer)
        self.consumer_marks.set(self.consumer_count)
        if self.exclusive_consumer is consumer:
            self.exclusive_consumer = None

    def wake(self, consumer: Consumer) -> None:
        """A consumer can take messages."""
        if consumer.is_waiting:
            return
        passed_over = self._consumers.wake(consumer)
        if passed_over is not None:
            self._order.put_back(passed_over)
        self._turn.ready[self] = None
        self._turn.schedule()

    def deleted(self) -> list[Consumer]:
        """The queue is gone. Returns the consumers that it had, which are to be told."""
        self.is_deleted = True
        consumers = self._consumers.takers + self._consumers.browsers
        for consumer in consumers:
            self.remove_consumer(consumer)
        return consumers

    # ---- delivery ----

    def dispatch(self) -> None:
        """Give messages to consumers, as long as there are both; who is first is asked here, which saves a call."""
        consumers, order, limit = self._consumers, self._order, self._barriers.limit
        waiting, declined = consumers.waiting, consumers.declined
        if consumers.browsers:
            consumers.show(limit, self._clock)
        while waiting:
            entry = order.next_available(limit)
            if entry is None:
                break
            expires_at = entry.message.expires_at
            if expires_at and expires_at <= self._clock():
                self._drop_expired(entry)
                continue
            entry.state = ACQUIRED
            self._acquired += 1
            result = None if declined else waiting[0].deliver(entry)
            if result == TAKEN:
                if len(waiting) > 1:
                    waiting.rotate(-1)
            elif not consumers.offer(entry, result):
                entry.state = AVAILABLE
                self._acquired -= 1
                if not waiting:  # else they have passed it over
                    order.put_back(entry)
