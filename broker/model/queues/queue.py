"""A queue: enqueues messages, offers them to consumers, and dequeues or releases them.

    order        an entry for each message, and which is next (`fifo`, `per_consumer`)
    consumers    takers, which acquire messages, and browsers (`consumers`)
    barriers     the position from which on nothing may be delivered yet (`barriers`)
    limit        how much it holds (`limits`)
    displaced    messages that leave it when others arrive (`displacement`)
    eligibility  which messages it accepts (`eligibility`)
    residency    which of its messages are in memory (`residency`)

A message stored in the queue's journal may be delivered once its record is on the disk, and no later message before it:
that is what the barriers are for. All others may be delivered at once; on an early queue (`deliver_before_sync`) all
but those of transactions. A message that is released, by its consumer or its session's end, is available in its place.

Enqueueing a message does not deliver it: the queue is marked as ready in the tick, and `dispatch` is called when all
input of the tick was processed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.model.errors import InternalError, ResourceLimitExceededError
from qstore.broker.model.queues.admission import Admitting
from qstore.broker.model.queues.barriers import Barrier
from qstore.broker.model.queues.consumer import TAKEN
from qstore.broker.model.queues.consumers import MAX_DECLINED, Consumers
from qstore.broker.model.queues.deletion import Deletion
from qstore.broker.model.queues.entry import ACQUIRED, AVAILABLE, END, FOLDED, LEAVING, MOVING, UNCOMMITTED, Entry
from qstore.broker.model.queues.expiry import expire_in_turns
from qstore.broker.model.queues.fifo import Fifo
from qstore.broker.model.queues.numbering import numbered
from qstore.broker.model.queues.per_consumer import PerConsumerOrder
from qstore.broker.model.residency.reference import Reference
from qstore.broker.model.watermark import Watermark
from qstore.formats.values import EMPTY_MAP, TypedMap

if TYPE_CHECKING:
    from qstore.broker.model.message import Message
    from qstore.broker.model.queues.alternate import Alternate
    from qstore.broker.model.queues.consumer import Consumer
    from qstore.broker.model.queues.depth_watch import DepthWatch
    from qstore.broker.model.queues.displacement import Displacement
    from qstore.broker.model.queues.eligibility import Eligibility
    from qstore.broker.model.queues.limits import Limit
    from qstore.broker.model.residency.residency import Residency
    from qstore.broker.model.store_protocol import Store
    from qstore.broker.model.tick import Tick


MAX_FREED: Final = 2000
"""Messages that are freed in one turn: about a millisecond."""


class Queue(Admitting):
    """A queue of the broker.

    Args:
        name: its name.
        tick: dispatches it.
        durable, auto_delete: whether it survives a restart, and whether it is deleted with its last consumer.
        arguments: of its declaration.
        store, journal: the store that persists it, and its journal there, of a type the store chooses; or None.
        order: the order of messages (`fifo`, `per_consumer`); by default a new `Fifo`.
        limit: how much it holds, and what happens beyond that (`limits`); None for no limit.
        displacements: which messages leave it when others arrive (`displacement`).
        eligibility: which messages it accepts (`eligibility`); None for all.
        watch: flow control and alerts (`depth_watch`); by default neither.
        residency: which messages are in memory (`residency`); None for all.
        is_single_active: whether one consumer at a time gets messages (`ranking`).
        clock: seconds since 1970.

    Attributes:
        name, durable, auto_delete, arguments, store, is_single_active: as above. More are in `Admitting`.
        alternate: the exchange for rejected messages, and for those left when the queue is deleted.
        binding_count, consumer_marks: number of bindings, including that to the default exchange, and of consumers.
        creator: the user who has declared it.
        counted_memory: its `memory` when growth was last counted.
        sequence_header: the header with each message's number (`numbering`); empty for none.
        auto_delete_seconds, is_kept_until_empty: how long an unused auto-delete queue is kept; at least until empty.
        is_browse_only: whether all its consumers are browsers.
        is_private: while it has an owner, whether others may not even browse it or have its messages moved.
        is_deleted: it was deleted, or the store is deleting it: it cannot be used.
        deletion: its deletion while the store carries it out; None otherwise.
    """

    __slots__ = (
        "_append", "_chooser", "_consumers", "_tick", "alternate", "arguments", "auto_delete",
        "auto_delete_seconds", "binding_count", "consumer_marks", "counted_memory", "creator", "deletion",
        "is_browse_only", "is_deleted", "is_kept_until_empty", "is_private", "is_single_active",
        "sequence_header", "store",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        tick: Tick,
        *,
        durable: bool = False,
        auto_delete: bool = False,
        arguments: TypedMap = EMPTY_MAP,
        store: Store | None = None,
        journal: Any = None,
        order: Fifo | None = None,
        limit: Limit | None = None,
        displacements: tuple[Displacement, ...] = (),
        eligibility: Eligibility | None = None,
        watch: DepthWatch | None = None,
        residency: Residency | None = None,
        is_single_active: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(
            name, Fifo() if order is None else order, durable=durable, watch=watch, journal=journal, limit=limit,
            displacements=displacements, eligibility=eligibility, clock=clock,
        )  # fmt: skip
        self.auto_delete, self.arguments, self.store = auto_delete, arguments, store
        self._append = None if store is None else store.append
        self._chooser = order if isinstance(order, PerConsumerOrder) else None
        self._tick = tick
        self.alternate: Alternate[Queue] | None = None
        self.is_deleted = self.is_browse_only = self.is_kept_until_empty = self.is_private = False
        self.deletion: Deletion | None = None
        self.auto_delete_seconds, self.counted_memory, self.sequence_header = 0, 0, ""
        self.creator, self.binding_count, self.consumer_marks = "", Watermark(1), Watermark()
        self._consumers, self.residency = Consumers(is_single_active=is_single_active), residency
        self.is_single_active = is_single_active
        if residency is not None:
            residency.attach(self, self._order, self._consumers, self._unsynced, self.is_ready)

    # ---- enqueue ----

    def publish(self, message: Message) -> bool:
        """Enqueue a message, and append it to the journal if it is stored.

        Returns:
            Whether its completion must wait: for the records of this tick, and for the queue if it is stopped.

        Raises:
            ResourceLimitExceededError: there is no room for it.
            The store's `failed_error`, if the journal's disk has failed.
        """
        if self.message_ttl is not None:
            message = self.limited(message)
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
            self.has_risen(self.add_held(message, rid))
            return True
        return self.has_risen(self.add(message, 0))

    def add(self, message: Message, rid: int) -> Entry:
        """Enqueue a message that is already in the journal, or is not stored. A MemoryError comes before any change."""
        entry = self.enter(message, rid)
        if self.displacements:
            self._arrived(entry)
        return entry

    def _arrived(self, entry: Entry) -> None:
        for displacement in self.displacements:
            displacement.arrived(self, entry)

    def enter(self, message: Message, rid: int) -> Entry:
        """As `add`, but the message displaces none yet."""
        if self.sequence_header:
            message = numbered(message, self.sequence_header, self._order.next_position)
        self._tick.ready[self] = None
        count, enqueued = self.messages_enqueued + 1, self.bytes_enqueued + message.size
        if message.is_persistent is not self.durable:
            self.counters.atypical_enqueue(message.size)
        entry = self._order.append(message, rid)
        self.messages_enqueued, self.bytes_enqueued = count, enqueued
        return entry

    def has_risen(self, entry: Entry) -> bool:
        """A publisher has added the entry. Returns whether it must wait, because the queue is stopped."""
        watch, count, size = self.watch, self.messages_enqueued, self.bytes_enqueued
        return (count > watch.count_mark or size > watch.bytes_mark) and watch.risen(self, entry)

    # ---- waiting for the disk ----

    def add_held(self, message: Message, rid: int) -> Entry:
        """As `add`, for a record of this tick: it and later messages are delivered once the record is on the disk."""
        entry = self.enter(message, rid)
        self._unsynced.hold(entry.position)
        self._tick.written[self] = None
        self._tick.journals[self.journal] = True
        if self.displacements:
            self._arrived(entry)
        return entry

    def add_uncommitted(self, message: Message, rid: int) -> Entry:
        """As `add`, but the message is not delivered before `commit`."""
        entry = self.enter(message, rid)
        entry.state = UNCOMMITTED
        self.uncommitted += 1
        self.uncommitted_bytes += message.size
        return entry

    def commit(self, entries: list[Entry]) -> None:
        """The transaction that enqueued the entries is committed."""
        for entry in entries:
            if entry.rid or self.eligibility is None or self.admits(entry.message):
                entry.state = AVAILABLE
                self.uncommitted -= 1
                self.uncommitted_bytes -= entry.message.size
                self.counters.txn_enqueued(entry.message.size)
                self._arrived(entry)
            else:
                self.withdraw(entry)

    def lock(self, entry: Entry) -> None:
        """A recovered transaction dequeues the entry."""
        self.acquire(entry)
        entry.state = LEAVING

    def end_recovery(self) -> None:
        """All recovered messages were added (`enter`)."""
        for displacement in self.displacements:
            displacement.recovered(self)
            self._tick.schedule()
        self.watch.update(self)

    def withdraw(self, entry: Entry) -> None:
        """Remove an entry whose transaction has failed, or which the queue does not accept."""
        self.counters.withdrawn += 1
        self.uncommitted -= 1
        self.uncommitted_bytes -= entry.message.size
        for displacement in self.displacements:
            displacement.withdrawn(entry)
        self.remove(entry)

    def lower(self, barrier: Barrier) -> None:
        """The records that this barrier waits for are on the disk."""
        self.lower_barrier(barrier)
        self.is_ready()

    def is_ready(self) -> None:
        """It has something to do: it is dispatched at the end of this tick."""
        self._tick.ready[self] = None
        self._tick.schedule()

    # ---- acquire, release, dequeue ----

    def dequeue(self, entry: Entry) -> bool:
        """Dequeue an acquired message. If it is already gone, only wait for that.

        Returns:
            Whether completion must wait until the records of this tick are on the disk.

        Raises:
            InternalError: its journal cannot be written. Then it stays acquired.
        """
        if entry.state not in (ACQUIRED, MOVING):
            if entry.rid:  # it was moved because the queue is being deleted: that record may not be on the disk yet
                self._tick.journals[self.journal] = True
            return entry.rid != 0
        rid = entry.rid
        if rid:
            assert self._append is not None
            assert self.store is not None
            try:
                self._append.dequeue(self.journal, rid)
            except self.store.errors as error:
                raise InternalError(str(error)) from error
            self._tick.journals[self.journal] = True
        self.remove(entry)
        return rid != 0

    def remove(self, entry: Entry) -> None:
        """Remove an entry, which is acquired unless it is withdrawn."""
        following = self._order.remove(entry)
        self.messages_dequeued += 1
        message = entry.message
        self.bytes_dequeued += message.size
        if self.residency is not None and isinstance(message, Reference):
            self.residency.references.removed(message)
        if message.is_persistent is not self.durable:
            self.counters.atypical_dequeue(message.size)
        if self.watch.is_high:
            self.watch.fallen(self, entry)
        if self._consumers.browsers:
            self._consumers.removed(entry, following)
        if self._chooser is not None:  # other consumers may have messages now that it is gone
            self._tick.ready[self] = None
            self._tick.schedule()
        if self.displacements:
            for displacement in self.displacements:
                displacement.removed(entry)

    def acquire(self, entry: Entry, *, consumer: Consumer | None = None, is_consumed: bool = True) -> bool:
        """Acquire an entry: for a consumer, or, unless `is_consumed`, to remove it. False if that is not possible."""
        if entry.state == FOLDED and self.residency is not None:
            self.residency.revive(entry)
        if entry.state != AVAILABLE or not self._order.claim(entry, consumer):
            return False
        entry.state = ACQUIRED
        self._acquired += 1
        if not is_consumed:
            self.counters.internal_acquires += 1
            self._tick.ready[self] = None  # its head may be another one
        self._consumers.acquired(entry)
        return True

    def release(self, entry: Entry, *, is_redelivered: bool) -> None:
        """Make an acquired message available again, at its position."""
        if entry.state != ACQUIRED:
            return
        entry.state = AVAILABLE
        self.counters.releases += 1
        entry.is_redelivered = entry.is_redelivered or is_redelivered
        self.put_back(entry)
        for displacement in self.displacements:
            displacement.released(self, entry)

    def returns_from(self, release: object, position: int) -> None:
        """A release of many messages, in turns, goes on at this position: none from there on is delivered before.

        At NO_LIMIT it is over.
        """
        self._barriers.returns_from(release, position)
        self.is_ready()

    def put_back(self, entry: Entry) -> None:
        """Offer an available entry that may be before the cursor."""
        if not self._consumers.put_back(entry):
            self._order.put_back(entry)
        self._tick.ready[self] = None
        self._tick.schedule()

    def is_browsed(self, entry: Entry) -> bool:
        """Whether a browser has seen the message, or passed it."""
        return entry.position < self._consumers.browsed_to

    def purge(self, max_messages: int = 0) -> tuple[int, bool]:
        """Remove at most `max_messages` of the messages that are available now; 0 for all. Raises as `dequeue`.

        Returns:
            How many; and whether completion must wait until the records of this tick are on the disk.
        """
        count, is_written, end = 0, False, self._order.next_position
        for entry in self._order.to_purge():
            if max_messages and count == max_messages:
                break
            if entry.position >= end or not self.acquire(entry, is_consumed=False):
                continue
            is_written = self.dequeue(entry) or is_written
            self.counters.purged += 1
            count += 1
        return count, is_written

    def expire(self) -> int:
        """Remove available messages that have expired. Returns how many."""
        return sum(expire_in_turns((self,), self._clock()))

    @property
    def moving_steps(self) -> int:
        """How many steps it has taken so far to find where messages go that leave it (`topic_index`)."""
        if self.dead_letter is not None:
            return self.dead_letter.steps
        return 0 if self.alternate is None else self.alternate.steps

    def drop_expired(self, entry: Entry) -> int:
        """Remove an available message that has expired, or move it to the dead-letter exchange.

        Returns:
            What that has cost: 1, or more if it was dear to route (`DeadLetter.expire`).
        """
        self.acquire(entry, is_consumed=False)
        cost = 1
        with contextlib.suppress(InternalError, MemoryError):  # it stays acquired, so it is not delivered
            if self.dead_letter is None:
                self.dequeue(entry)
            else:
                cost = self.dead_letter.expire(self, entry)
            self.counters.expired += 1
        return cost

    def _drop_offered(self, entry: Entry) -> None:
        """A message that is about to be delivered has expired: one `dispatch` drops so many as can be declined."""
        self._consumers.declined += self.drop_expired(entry)

    # ---- consumers ----

    @property
    def consumer_count(self) -> int:
        """Number of consumers, takers and browsers."""
        return len(self._consumers)

    @property
    def is_unused(self) -> bool:
        """Whether it has neither an owner nor consumers."""
        return self.owner is None and not len(self._consumers)

    def has_taker(self) -> bool:
        """Whether a consumer can take one more message now, after available messages were dispatched."""
        self.dispatch()
        return self._consumers.has_credit

    def add_consumer(self, consumer: Consumer, priority: int = 0) -> None:
        """Add a consumer, which is offered messages after a call of `wake`; those of a higher priority are first."""
        self._consumers.add(consumer, self._order.first, priority)
        self.consumer_marks.set(self.consumer_count)

    def remove_consumer(self, consumer: Consumer) -> None:
        """Remove a consumer."""
        if self.deletion is not None:
            self.deletion.consumers.pop(consumer, None)
            return
        if self._consumers.remove(consumer):
            self.is_ready()
        self.consumer_marks.set(self.consumer_count)
        if self.exclusive_consumer is consumer:
            self.exclusive_consumer = None

    def wake(self, consumer: Consumer) -> None:
        """A consumer is ready for messages."""
        if consumer.is_waiting:
            return
        self._consumers.wake(consumer)
        self._tick.ready[self] = None
        self._tick.schedule()

    # ---- deletion ----

    @property
    def is_gone(self) -> bool:
        """Whether it was deleted for good."""
        return self.is_deleted and self.deletion is None

    def begin_deletion(self) -> None:
        """Mark the queue as deleted, and remove its consumers: the store begins to delete it."""
        everybody = self._consumers.with_priorities()
        deletion = Deletion(everybody, self.exclusive_consumer, self.dequeue, self._tick.when_synced)
        for consumer in deletion.consumers:
            self.remove_consumer(consumer)
        self.is_deleted, self.deletion = True, deletion

    def end_deletion(self) -> list[Consumer]:
        """The store has deleted the queue. Returns its consumers, which must be notified."""
        deletion, self.deletion = self.deletion, None
        assert deletion is not None
        self.watch.release()
        if self.expiries is not None:
            self.expiries.forget(self)
        if self.residency is not None:
            self.residency.close()
            self.residency = None  # it refers to the queue
        deletion.ended(is_deleted=True)
        return list(deletion.consumers)

    def do_in_turns(self, work: Iterator[None]) -> None:
        """Do work of the queue in turns of the event loop (`tick.Turns`)."""
        self._tick.turns.do(self, work)

    def dissolve(self) -> None:
        """It is gone: free its messages, in turns if they are many."""
        if self.message_count > MAX_FREED:
            self.do_in_turns(self._order.dissolve(MAX_FREED))

    def undo_deletion(self) -> None:
        """The store could not delete the queue: it can be used again, with the consumers that are left."""
        deletion, self.deletion = self.deletion, None
        assert deletion is not None
        self.is_deleted = False
        for consumer, priority in deletion.consumers.items():
            self.add_consumer(consumer, priority)
            self.wake(consumer)
        self.exclusive_consumer = deletion.exclusive_consumer
        deletion.ended(is_deleted=False)

    # ---- delivery ----

    def dispatch(self) -> None:
        """Deliver while there are messages and ready consumers; the first consumer is asked here to save a call.

        If very many messages are declined or have expired, it ends, and continues in the next tick (`is_unfinished`).
        """
        consumers, order, limit = self._consumers, self._order, self._barriers.limit
        waiting, consumers.declined = consumers.waiting, 0
        awaits = None if self.residency is None or self.residency.is_all_in else self.residency.references.awaits
        if consumers.browsers:
            consumers.show(limit, self._clock, awaits)
        if consumers.has_backlog or self._chooser is not None:
            try:
                if self._chooser is not None:
                    self._chooser.distribute(consumers, limit, self._clock, self._drop_offered, awaits)
                    limit = 0
                elif not consumers.offer_backlog(self._clock, self._drop_offered, awaits):
                    limit = 0
            finally:
                self._acquired += consumers.taken
        while waiting:
            entry = order.next_available(limit)
            if entry is None:
                break
            expires_at = entry.message.expires_at
            if expires_at and expires_at <= self._clock():
                self._drop_offered(entry)
                if consumers.declined >= MAX_DECLINED:
                    break
                continue
            if awaits is not None and awaits(entry):
                order.put_back(entry)
                break
            entry.state = ACQUIRED
            self._acquired += 1
            result = waiting[0].deliver(entry)
            if result == TAKEN:
                if len(waiting) > 1:
                    waiting.rotate(-1)
            elif not consumers.offer(entry, result):
                entry.state = AVAILABLE
                self._acquired -= 1
                if not waiting:  # otherwise it was passed over
                    order.put_back(entry)
                elif consumers.declined >= MAX_DECLINED:
                    break
        if consumers.declined >= MAX_DECLINED:
            self._tick.ready.pop(self, None)  # not in this tick: what was dropped has made it ready
            self._tick.dispatch_later(self)
        if self.residency is not None and not self.residency.is_all_in:
            self.residency.serve()
        if self.expiries is not None and order.cursor.state != END:
            self.expiries.look(self, order)

    @property
    def is_unfinished(self) -> bool:
        """Whether the last `dispatch` has ended before everything was offered, or waits for what is read back."""
        is_behind = self.residency is not None and self.residency.is_behind(is_ready=self in self._tick.ready)
        return is_behind or self._consumers.declined >= MAX_DECLINED or self._barriers.is_returning
