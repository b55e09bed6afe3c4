"""A queue: admits messages, offers them to consumers, and removes them when they are settled.

A queue is composed of parts, chosen by its declaration (`composition`):

    order         an entry for each message, and the choice of the next: `fifo`, `priority`, `groups`
    consumers     takers, which acquire messages, and browsers, which only read them (`consumers`)
    eligibility   which messages it accepts (`limits`)
    limit         how much it may hold, and what happens beyond that (`limits`)
    displacements messages that leave when others arrive (`limits`, `last_value`)
    barriers      the position from which nothing may be delivered yet (`barriers`)
    watch         flow control and alerts (`flow_control`)
    expiries      the timer for messages that expire at its head (`expiry`)
    residency     which of its messages are in memory (`residency`)

The life of a message; the sections of the class have the same order:

    admit     the queue's TTL, its eligibility and its limit are applied
    enqueue   a persistent message is appended to the journal of a durable queue, and gets an entry, AVAILABLE
    sync      it may be delivered once its record is on the disk, and no later message before it: the barriers. A
              message that is not stored may be delivered at once; with `deliver_before_sync` all but those of
              transactions
    deliver   at the end of the tick `dispatch` offers it to ready consumers; for the one that takes it, it is ACQUIRED
    settle    the consumer accepts it (`dequeue`), or releases it: then it returns to its position, AVAILABLE again
    remove    the entry is unlinked, and is GONE; likewise when it expires, is purged or displaced

**Returns** are counted as long as a message is on the queue, also over restarts. The first one is only a mark
(`is_redelivered`), unless the queue has a limit of deliveries; further ones are in `returns`, and noted in the store. A
message that was released without having failed is there with 0. After a crash all messages have the mark, because any
of them may have been delivered; the count is what is known, and a limit goes by that.

Enqueueing a message does not deliver it: the queue is marked as ready, and the tick calls `dispatch` when it has
processed all its input.
"""

from __future__ import annotations

import contextlib
import time
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.model.arguments import NO_POLICY
from qstore.broker.model.counters import QueueCounters, QueueMarks, QueueTotals, Watermark
from qstore.broker.model.errors import (
    InternalError,
    InvalidArgumentError,
    ModelError,
    ResourceLimitExceededError,
)
from qstore.broker.model.exchanges.matching import MAX_STEPS
from qstore.broker.model.memory import MESSAGE_OVERHEAD
from qstore.broker.model.queues.barriers import NO_LIMIT, Barrier, Barriers
from qstore.broker.model.queues.consumers import (
    MAX_DECLINED,
    TAKEN,
    TAKEN_LAST,
    Consumers,
    PerConsumerOrder,
    SingleActive,
)
from qstore.broker.model.queues.entry import (
    ACQUIRED,
    AVAILABLE,
    END,
    FOLDED,
    HELD,
    LEAVING,
    MOVING,
    RUN,
    UNCOMMITTED,
    Entry,
)
from qstore.broker.model.queues.expiry import NO_TIME, NO_TIME_STORED, expire_in_turns
from qstore.broker.model.queues.fifo import Fifo
from qstore.broker.model.queues.flow_control import DepthWatch
from qstore.broker.model.queues.last_value import LastValues
from qstore.broker.model.residency.references import Reference
from qstore.broker.model.residency.stretch import Stretch
from qstore.broker.model.run import MIN_RUN, KeyedRun, MessageRun, RunEntry
from qstore.formats.broker_records.topology import DEFAULT_HOST, full_name
from qstore.formats.values import EMPTY_MAP, TypedMap, TypedValue

if TYPE_CHECKING:
    from qstore.broker.model.dead_letters import QueueDeadLetter
    from qstore.broker.model.exchanges.exchange import Exchange
    from qstore.broker.model.exchanges.route import Alternate
    from qstore.broker.model.message import Message
    from qstore.broker.model.queues.consumers import Consumer
    from qstore.broker.model.queues.expiry import Expiries
    from qstore.broker.model.queues.limits import Displacement, Eligibility, Limit
    from qstore.broker.model.residency.residency import Residency
    from qstore.broker.model.store_protocol import Store
    from qstore.broker.model.tick import Tick


MAX_FREED: Final = 2000
"""Messages that are freed in one turn: about a millisecond."""

MAX_SHARED: Final = 64
"""Messages of a run that one of several ready consumers gets before the next one has its turn."""

MAX_COUNTED: Final = 1 << 18
"""Messages of a queue without a limit of deliveries whose returns are counted one by one: some 25 MB."""

MAX_EXCEEDED: Final = 100
"""Messages that leave in one turn because they have returned too often: some milliseconds if they move elsewhere."""

DELIVERY_COUNT: Final = "x-delivery-count"
"""The header that says how often a message has returned."""

Done = Callable[[Exception | None], None]


class Queue:
    """A queue of the broker.

    Args:
        name: its name.
        tick: dispatches it.
        durable, auto_delete: whether it survives a restart, and whether it is deleted with its last consumer.
        arguments: the declaration's.
        store, journal: the store that persists it, and its journal there, of a type the store chooses; or None.
        order: the order of messages; by default a new `Fifo`.
        limit, displacements, eligibility, watch, residency: its other parts, as above; by default none.
        is_single_active: whether one consumer at a time gets messages.
        clock: seconds since 1970.

    Attributes:
        name, durable, auto_delete, arguments, store, journal, is_single_active: as above.
        order, limit, displacements, eligibility, watch, residency: its parts.
        host: the name of its virtual host.
        created_at: when it was created or recovered, in seconds since 1970.
        creator: the user who declared it.
        messages_enqueued, messages_dequeued: messages enqueued and dequeued so far.
        bytes_enqueued, bytes_dequeued: their headers and content.
        uncommitted, uncommitted_bytes: messages on the queue whose transaction is not committed yet.
        counters: its other counters; `totals` has them all.
        marks: its high and low water marks.
        counted_memory: its `memory` at the last count; maintained by the tick.
        binding_count, consumer_marks: number of bindings, including that to the default exchange, and of consumers.
        bound_to: the exchanges that it is bound to, except the default one; maintained by them.
        owner: the session or channel to which it is exclusive; None if it is not exclusive.
        exclusive_consumer: its exclusive consumer; None if there is none.
        keepers: links of AMQP 1.0 that it ends with, attached or not: it is in use as long as there are any.
        is_private: while it has an owner, whether others may not even browse it or have its messages moved.
        is_browse_only: whether all its consumers are browsers.
        max_consumers: the most consumers that it may have; 0 for no limit.
        message_ttl: seconds that a message may be on it; None for no limit.
        sequence_header: the header in which consumers find a message's number on the queue; empty for none.
        expires_seconds: how long it is kept while it is unused; 0 for ever.
        auto_delete_seconds, is_kept_until_empty: how long an unused auto-delete queue is kept, and whether until empty.
        expiries: removes messages at its head when they expire; None if they stay.
        alternate: the exchange for rejected messages, and for those left when the queue is deleted.
        dead_letter: where its dead messages go; None if they are dropped.
        redirect_peer, is_redirect_source: the queue that gets the messages for this one, None if they are put on it;
            and whether it is the source of this redirection (`topology.redirection`).
        delivery_limit: how often a message may return; -1 for no limit. None for no limit, and consumers of AMQP 0-9-1
            and 0-10 are not told how often it has.
        returns: position -> how often the message there has returned, as above.
        policy: what policies give it in addition to its arguments.
        is_early: whether a message is delivered before its record is on the disk.
        is_deleted: it was deleted, or the store is deleting it: it cannot be used.
        deletion: its deletion while the store carries it out; None otherwise.
    """

    __slots__ = (
        "_acquired", "_append", "_barriers", "_chooser", "_clock", "_consumers", "_exceeded", "_tick",
        "_unsynced", "alternate", "arguments", "auto_delete", "auto_delete_seconds", "binding_count", "bound_to",
        "bytes_dequeued", "bytes_enqueued", "consumer_marks", "counted_memory", "counters", "created_at", "creator",
        "dead_letter", "deletion", "delivery_limit", "displacements", "durable", "eligibility", "exclusive_consumer",
        "expires_seconds", "expiries", "host", "is_browse_only", "is_deleted", "is_early", "is_kept_until_empty",
        "is_private", "is_redirect_source", "is_single_active", "journal", "keepers", "limit", "marks", "max_consumers",
        "message_ttl", "messages_dequeued", "messages_enqueued", "name", "order", "owner", "policy", "redirect_peer",
        "residency", "returns", "sequence_header", "store", "uncommitted", "uncommitted_bytes", "watch",
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
        self.name, self.durable, self.auto_delete, self.arguments = name, durable, auto_delete, arguments
        self._tick, self._clock = tick, clock
        self.host = DEFAULT_HOST
        self.created_at, self.creator = clock(), ""

        self.store, self.journal = store, journal
        self._append = None if store is None else store.append
        self.order: Fifo = Fifo() if order is None else order
        self._chooser = order if isinstance(order, PerConsumerOrder) else None
        self._consumers = Consumers(is_single_active=is_single_active)
        self._unsynced = Barriers()
        self._barriers = self._unsynced  # delivery stops at these
        self.limit, self.displacements, self.eligibility = limit, displacements, eligibility
        self.watch = DepthWatch([]) if watch is None else watch
        self.residency = residency
        self.expiries: Expiries | None = None

        self.messages_enqueued = self.messages_dequeued = self.bytes_enqueued = self.bytes_dequeued = 0
        self.uncommitted = self.uncommitted_bytes = 0
        self._acquired = 0  # count of entries that became ACQUIRED
        self.counters, self.marks = QueueCounters(), QueueMarks()
        self.counted_memory = 0
        self.binding_count, self.consumer_marks = Watermark(1), Watermark()
        self.bound_to: dict[Exchange, None] = {}

        self.owner: object | None = None
        self.exclusive_consumer: Consumer | None = None
        self.keepers = 0
        self.is_single_active = is_single_active
        self.is_private = self.is_browse_only = self.is_early = self.is_kept_until_empty = False
        self.message_ttl: float | None = None
        self.sequence_header = ""
        self.expires_seconds, self.auto_delete_seconds = 0.0, 0
        self.max_consumers = 0
        self.alternate: Alternate | None = None
        self.dead_letter: QueueDeadLetter | None = None
        self.redirect_peer: Queue | None = None
        self.is_redirect_source = False
        self.is_deleted = False
        self.deletion: Deletion | None = None
        self.policy = NO_POLICY
        self.delivery_limit: int | None = None
        self.returns: dict[int, int] = {}
        self._exceeded: list[Entry] = []  # acquired, and returned too often
        for each in displacements:
            if isinstance(each, LastValues):
                self._consumers.hidden = each.hidden
        self.order.replaced = self._consumers.removed
        if residency is not None:
            residency.attach(self, self._consumers, self._unsynced)

    # ---- admit ----

    @property
    def changes_messages(self) -> bool:
        """Whether messages are put on the queue with other headers, or another expiration, than they arrive with."""
        return self.message_ttl is not None or (self.eligibility is not None and self.eligibility.trace_id != "")

    def limited(self, message: Message) -> Message:
        """The message as it is put on the queue: with the queue's own TTL applied, and its name in the trace."""
        if self.eligibility is not None and self.eligibility.trace_id and self.eligibility.admits(self, message):
            message = self.eligibility.marked(message)
        if self.message_ttl is None:
            return message
        end = self._clock() + (self.message_ttl or (NO_TIME_STORED if self.stores(message) else NO_TIME))
        return message if 0 < message.expires_at <= end else message.expiring_at(end)

    def admits(self, message: Message) -> bool:
        """Whether the queue accepts the message; otherwise it is dropped."""
        return self.eligibility is None or self.eligibility.admits(self, message)

    def stores(self, message: Message) -> bool:
        """Whether the message is stored in the queue's journal."""
        return message.is_persistent and self.journal is not None and self.admits(message)

    def check_room(self, message: Message) -> None:
        """Raise ResourceLimitExceededError if the queue has no room for the message."""
        if self.limit is not None and self.admits(message):
            self.limit.check(self, message)

    def check_room_for(self, count: int, size: int) -> None:
        """As `check_room`, for `count` messages with `size` bytes of headers and content."""
        if self.limit is not None:
            self.limit.check_all(self, count, size)

    # ---- enqueue ----

    def publish(self, message: Message) -> bool:
        """Enqueue a message, and append it to the journal if it is stored.

        Returns:
            Whether its completion must wait: for the records of this tick, and for the queue if flow control is on.

        Raises:
            ResourceLimitExceededError: there is no room for it.
            InternalError: its journal cannot be written.
        """
        if self.eligibility is not None:
            if not self.eligibility.admits(self, message):
                return False
            message = self.eligibility.marked(message)
        if self.message_ttl is not None:
            message = self.limited(message)
        if self.limit is not None:
            self.limit.check(self, message)
        is_stored = message.is_persistent and self._append is not None
        entry = self.add_held(message, self._record(message)) if is_stored else self.add(message, 0)
        watch = self.watch
        if self.messages_enqueued > watch.count_mark or self.bytes_enqueued > watch.bytes_mark:
            return watch.risen(self, entry) or is_stored
        return is_stored

    def _record(self, message: Message) -> int:
        """Append a message to the journal. Returns its record id, and raises as `publish`.

        Exception handlers on the path of each message are in small functions: without free memory, CPython cannot leave
        a handler far from the beginning of its function (`tests/broker/test_memory`).
        """
        assert self._append is not None
        assert self.store is not None
        parts, size, crc = message.stored_form()
        try:
            return self._append.enqueue(self.journal, parts, size, crc)
        except self.store.errors as error:
            raise refusal(self.store, error) from error

    def publish_run(self, run: MessageRun) -> int:
        """As `publish`, of a run.

        Returns:
            How many of its messages were enqueued; the others, or all, must be published singly. The completion of
            those that are stored must wait for the records of this tick.
        """
        return self.put_run(run) if self.takes_run(run) else 0

    def put_run(self, run: MessageRun) -> int:
        """As `publish_run`, of a run that the queue takes (`takes_run`)."""
        if self.eligibility is not None:
            if not self.eligibility.admits(self, run.template):
                return run.count
            run = self.eligibility.marked_run(run)
        if run.template.is_persistent and self._append is not None:
            return self._store_run(run)
        if run.count < MIN_RUN:
            for number in range(run.count):
                self.add(run.message(number), 0)
        else:
            self.add_run(run, 0, run.count, 0)
        return run.count

    @property
    def takes_runs(self) -> bool:
        """Whether the queue need not look at single messages."""
        return (
            self.message_ttl is None
            and (self.eligibility is None or self.eligibility.takes_runs)
            and not self.displacements
            and self._chooser is None
            and not self.sequence_header
        )

    def takes_run(self, run: MessageRun) -> bool:
        """Whether the queue need not look at single messages of the run, and has room for all."""
        watch, size = self.watch, run.size(0, run.count)
        return (
            self.takes_runs
            and (self.eligibility is None or not isinstance(run, KeyedRun))
            and (self.residency is None or run.largest <= self.residency.staging)
            and self.messages_enqueued + run.count <= watch.count_mark
            and self.bytes_enqueued + size <= watch.bytes_mark
            and (self.limit is None or self.limit.has_room(self, run.count, size))
        )

    def _store_run(self, run: MessageRun) -> int:
        assert self._append is not None
        assert self.store is not None
        head, field, bodies = run.stored_form()
        appended = 0
        while appended < run.count:
            left = run.count - appended
            try:
                rid, count = self._append.enqueue_run(self.journal, head, field, bodies, appended, left)
            except self.store.errors:
                break  # those that are left are published singly, and refused
            if count < MIN_RUN:
                for number in range(count):
                    self.add_held(run.message(appended + number), rid + number)
            else:
                self.add_run(run, appended, count, rid)
            appended += count
        return appended

    def add_run(self, run: MessageRun, first: int, count: int, rid: int) -> None:
        """Enqueue messages of a run, by number from `first` on; as `add_held`, unless `rid` is 0."""
        entry = RunEntry(run, first, count, self.order.next_position, rid)
        self._tick.ready[self] = None
        if run.template.is_persistent is not self.durable:
            self.counters.atypical_enqueue(entry.size, count)
        self.order.append_run(entry)
        self.messages_enqueued += count
        self.bytes_enqueued += entry.size
        if rid:
            if self._unsynced.held_from == NO_LIMIT:
                self._unsynced.hold(entry.position)
            self._tick.written[self] = None
            self._tick.journals[self.journal] = True

    def add(self, message: Message, rid: int) -> Entry:
        """Enqueue a message that is already in the journal, or is not stored. A MemoryError precedes any change."""
        entry = self.enter(message, rid)
        if self.displacements:
            self._arrived(entry)
        return entry

    def add_held(self, message: Message, rid: int) -> Entry:
        """As `add`, for a record of this tick: the message and later ones are delivered once it is on the disk."""
        entry = self.enter(message, rid)
        if self._unsynced.held_from == NO_LIMIT:
            self._unsynced.hold(entry.position)
        self._tick.written[self] = None
        self._tick.journals[self.journal] = True
        if self.displacements:
            self._arrived(entry)
        return entry

    def enter(self, message: Message, rid: int) -> Entry:
        """As `add`, but the message does not displace others yet."""
        if self.sequence_header:
            message = self.numbered(message, self.order.next_position)
        self._tick.ready[self] = None
        count, enqueued = self.messages_enqueued + 1, self.bytes_enqueued + message.size
        if message.is_persistent is not self.durable:
            self.counters.atypical_enqueue(message.size)
        entry = self.order.append(message, rid)
        self.messages_enqueued, self.bytes_enqueued = count, enqueued
        return entry

    def numbered(self, message: Message, number: int) -> Message:
        """The message with its number on the queue, an int64 from 1, in the `sequence_header`.

        A gap shows that messages were discarded, as by a ring. The number is not stored: a restart numbers the
        remaining messages from 1, as in qpidd. It differs from the number that an exchange assigns
        (`qpid.msg_sequence`), which is stored. A message whose headers cannot be decoded is left unchanged.
        """
        try:
            return message.with_number(self.sequence_header, number)
        except InvalidArgumentError:
            return message

    def _arrived(self, entry: Entry) -> None:
        for displacement in self.displacements:
            displacement.arrived(self, entry)

    def throttles(self, entry: Entry) -> bool:
        """Whether the publisher of the entry must wait because flow control is on."""
        watch = self.watch
        is_beyond = self.messages_enqueued > watch.count_mark or self.bytes_enqueued > watch.bytes_mark
        return is_beyond and watch.risen(self, entry)

    # ---- enqueue: transactions and recovery ----

    def add_uncommitted(self, message: Message, rid: int) -> Entry:
        """As `add`, but the message is not delivered before `commit`."""
        entry = self.enter(message, rid)
        entry.state = UNCOMMITTED
        self.uncommitted += 1
        self.uncommitted_bytes += message.size
        return entry

    def commit(self, entries: list[Entry]) -> None:
        """Make the entries of a committed transaction available."""
        for entry in entries:
            if entry.rid or self.admits(entry.message):
                entry.state = AVAILABLE
                self.uncommitted -= 1
                self.uncommitted_bytes -= entry.message.size
                self.counters.txn_enqueued(entry.message.size)
                self._arrived(entry)
            else:
                self.withdraw(entry)

    def withdraw(self, entry: Entry) -> None:
        """Remove an entry whose transaction has failed, or which the queue does not accept."""
        self.counters.withdrawn += 1
        self.uncommitted -= 1
        self.uncommitted_bytes -= entry.message.size
        for displacement in self.displacements:
            displacement.withdrawn(entry)
        self.remove(entry)

    def lock(self, entry: Entry) -> None:
        """Acquire an entry that a recovered transaction dequeues."""
        self.acquire(entry)
        entry.state = LEAVING

    def end_recovery(self) -> None:
        """End the recovery: all recovered messages were added (`enter`)."""
        for displacement in self.displacements:
            displacement.recovered(self)
            self._tick.schedule()
        self.marks.begin_interval(self)
        self.watch.update(self)

    def change_limit(self, limit: Limit | None, displacements: tuple[Displacement, ...], watch: DepthWatch) -> None:
        """Use another limit from now on, as a policy gives it; messages beyond it leave, if it displaces messages.

        Args:
            limit: refuses messages beyond it.
            displacements: decide which messages leave.
            watch: has the thresholds from now on.
        """
        self.limit, self.displacements = limit, displacements
        self.watch.change(self, watch)
        for displacement in displacements:
            displacement.changed(self)
        self._tick.schedule()

    # ---- wait for the disk ----

    def deliver_before_sync(self) -> None:
        """Deliver messages while their records are written: only those of transactions wait for the disk.

        Call it before there are any messages.
        """
        self._barriers = Barriers()
        self.is_early = True

    @property
    def full_name(self) -> str:
        """Its name and its virtual host's in one (`formats.broker_records.topology`)."""
        return full_name(self.host, self.name)

    @property
    def is_held(self) -> bool:
        """Whether some of its messages wait for the disk before they can be delivered."""
        return self._barriers.limit != NO_LIMIT

    def raise_barrier(self) -> Barrier:
        """Block delivery of the entries held so far until `lower` is called with this barrier."""
        return self._unsynced.raise_held()

    def raise_barrier_at_end(self) -> Barrier:
        """Block delivery of entries added from now on until `lower` is called with this barrier."""
        barrier = self._unsynced.raise_at(self.order.next_position)
        if self.is_early:
            self._barriers.share(barrier)
        return barrier

    def lower(self, barrier: Barrier) -> None:
        """Lower a barrier: its records are on the disk."""
        self._unsynced.lower(barrier)
        if self.is_early:
            self._barriers.lower(barrier)
        self.mark_ready()

    # ---- deliver ----

    def mark_ready(self) -> None:
        """Schedule a dispatch at the end of this tick."""
        self._tick.ready[self] = None
        self._tick.schedule()

    def dispatch(self) -> None:
        """Deliver while there are messages and ready consumers.

        If very many messages are declined or have expired, it stops, and continues in the next tick (`is_unfinished`).
        Each message is offered to the first ready consumer; any answer but TAKEN is left to `Consumers.offer`.
        """
        marks = self.marks
        marks.arrived(self)
        consumers, order, limit, tick = self._consumers, self.order, self._barriers.limit, self._tick
        waiting, consumers.declined, consumers.left = consumers.waiting, 0, tick.deliveries
        acquired = self._acquired
        residency, awaits = self.residency, None
        if residency is not None and residency.messages_out != residency.messages_in:
            awaits = residency.references.awaits
        is_cut = False
        if consumers.browsers:
            kept = consumers.left // 2 if waiting else 0  # takers never wait for browsers
            consumers.left -= kept
            consumers.show(limit, self._clock, awaits, order.unfold_run)
            is_cut = consumers.left <= 0
            consumers.left += kept
        stop = acquired + consumers.left
        if (consumers.has_backlog or self._chooser is not None) and not self._offer_others(limit, awaits):
            limit = 0
        while waiting and self._acquired < stop:
            entry = order.next_available(limit)
            if entry is None:
                run = order.cursor
                if run.state != RUN or run.position >= limit:
                    break
                assert isinstance(run, RunEntry)
                before = self._acquired
                if self._deliver_run(run, limit):
                    stop += (self._acquired - before) * 15 // 16  # a message of a run takes a sixteenth of the time
                else:
                    order.peel(run)
                continue
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
            taker = waiting[0]
            result = taker.deliver(entry)
            if result == TAKEN:
                if len(waiting) > 1:
                    waiting.rotate(-1)
            elif result == TAKEN_LAST and not taker.is_waiting:
                pass  # its session has ended meanwhile: the message could not be dequeued
            elif not consumers.offer(entry, result):
                entry.state = AVAILABLE
                self._acquired -= 1
                if not waiting:  # otherwise it was passed over
                    order.put_back(entry)
                elif consumers.declined >= MAX_DECLINED:
                    break
        tick.deliveries = stop - self._acquired
        held = self.acquired_count
        if held > marks.held_high:
            marks.held_high = held
        if is_cut or tick.deliveries <= 0 or consumers.declined >= MAX_DECLINED:
            consumers.declined = MAX_DECLINED
            tick.ready.pop(self, None)  # not in this tick: dropped messages have made it ready
            tick.dispatch_later(self)
        if residency is not None and residency.messages_out != residency.messages_in:
            residency.serve()
        if self.expiries is not None and order.cursor.state != END:
            self.expiries.look(self)

    def _deliver_run(self, run: RunEntry, limit: int) -> bool:
        """Offer the run at the cursor to the first ready taker; it has a part of it if others are ready too.

        Returns:
            Whether it has taken any; otherwise the first message must be offered by itself.
        """
        waiting = self._consumers.waiting
        most = min(run.count, limit - run.position)
        if len(waiting) > 1:
            most = min(most // len(waiting), MAX_SHARED)
        returns = self.returns  # messages there have a number each
        if most < MIN_RUN or (returns and run.position in returns):
            return False
        taker = waiting[0]
        most = min(most, taker.room_for(run.run))
        if returns:
            most = self._uncounted(run.position, most)
        if most < MIN_RUN:
            return False
        held = self.order.hold(run, most)
        self._acquired += most
        result = taker.deliver_run(held)
        if waiting and waiting[0] is taker:  # otherwise its session has ended meanwhile
            if result != TAKEN:
                self._consumers.offer(held, result)
            elif len(waiting) > 1:
                waiting.rotate(-1)
        return True

    def _uncounted(self, position: int, most: int) -> int:
        """How many messages from a position on, at most `most`, are not in `returns`: in no more steps than that."""
        returns = self.returns
        if len(returns) < MIN_RUN:
            return min(most, min([each - position for each in returns if each >= position], default=most))
        return next((number for number in range(most) if position + number in returns), most)

    def _offer_others(self, limit: int, awaits: Callable[[Entry], bool] | None) -> bool:
        """Deliver messages that are not simply the next one. Returns whether later ones can be delivered then."""
        consumers = self._consumers
        try:
            if self._chooser is None:
                return consumers.offer_backlog(self._clock, self._drop_offered, awaits)
            self._chooser.distribute(consumers, limit, self._clock, self._drop_offered, awaits)
            return False
        finally:
            self._acquired += consumers.taken

    @property
    def is_unfinished(self) -> bool:
        """Whether the last `dispatch` ended before everything was offered, or waits for messages being read back."""
        is_behind = self.residency is not None and self.residency.is_behind(is_ready=self in self._tick.ready)
        return is_behind or self._consumers.declined >= MAX_DECLINED or self._barriers.is_returning

    # ---- settle ----

    def acquire(self, entry: Entry, *, consumer: Consumer | None = None, is_consumed: bool = True) -> bool:
        """Acquire an entry, for a consumer or, unless `is_consumed`, to remove it. Returns whether that succeeded."""
        if entry.state == FOLDED and self.residency is not None:
            self.residency.revive(entry)
        if entry.state != AVAILABLE or not self.order.claim(entry, consumer):
            return False
        entry.state = ACQUIRED
        self._acquired += 1
        if not is_consumed:
            self.counters.internal_acquires += 1
            self._tick.ready[self] = None  # its head may have changed
        self._consumers.acquired(entry)
        return True

    def dequeue(self, entry: Entry) -> bool:
        """Dequeue an acquired message. If it is already gone, only wait for that to be final.

        Returns:
            Whether completion must wait until the records of this tick are on the disk.

        Raises:
            InternalError: its journal cannot be written; the message stays acquired.
        """
        if entry.state not in (ACQUIRED, MOVING):
            if entry.rid:  # moved because the queue is being deleted: its record may not be on the disk yet
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

    def dequeue_run(self, run: RunEntry, count: int) -> bool:
        """Dequeue the first `count` messages of a run that a consumer holds. Returns and raises as `dequeue`.

        If it raises, those that could not be dequeued stay with the consumer.
        """
        is_stored = run.rid != 0
        while count:
            removed = count
            if is_stored:
                assert self._append is not None
                assert self.store is not None
                try:
                    removed = self._append.dequeue_run(self.journal, run.rid, count)
                except self.store.errors as error:
                    raise InternalError(str(error)) from error
                self._tick.journals[self.journal] = True
            self._remove_first(run, removed)
            count -= removed
        return is_stored

    def unfold_run(self, run: RunEntry) -> list[Entry]:
        """The single entries of a run that a consumer holds, or held, which take its place."""
        if run.state == HELD:
            self.order.unfold_run(run)
        return run.entries or []

    def change(self, entry: Entry, changes: Mapping[str, TypedValue]) -> None:
        """Set headers of an acquired message, as its consumer asks for it before it settles the message.

        They are not stored: a restart, or reading the message back from the disk, brings it back as it was, unless it
        has moved to another queue.

        Raises:
            InvalidArgumentError: its headers cannot be changed.
        """
        message = entry.message
        if entry.state != ACQUIRED or isinstance(message, Reference):
            return
        changed = message.with_headers(changes)
        entry.message = changed
        self.bytes_enqueued += changed.size - message.size
        if message.is_persistent is not self.durable:
            self.counters.atypical_enqueue(changed.size - message.size, 0)

    def release(self, entry: Entry, *, is_redelivered: bool, was_delivered: bool = True) -> None:
        """Make an acquired message available again, at its position.

        Args:
            entry: the message.
            is_redelivered: whether it counts as delivered before.
            was_delivered: whether a consumer has had it.
        """
        if entry.state != ACQUIRED:
            return
        if is_redelivered:
            if self._has_returned_too_often(entry):
                return
        elif was_delivered and not entry.is_redelivered and len(self.returns) < MAX_COUNTED:
            self.returns.setdefault(entry.position, 0)
        entry.state = AVAILABLE
        self.counters.releases += 1
        entry.is_redelivered = entry.is_redelivered or is_redelivered
        self.put_back(entry)
        for displacement in self.displacements:
            displacement.released(self, entry)

    def _has_returned_too_often(self, entry: Entry) -> bool:
        """Count the return of a message. One beyond the limit stays acquired, and leaves the queue in a later turn."""
        limit = -1 if self.delivery_limit is None else self.delivery_limit
        count = self._next_return(entry)
        if not 0 <= limit < count:
            is_marked = count == 1 and self.delivery_limit is None and entry.position not in self.returns
            has_room = self.delivery_limit is not None or len(self.returns) < MAX_COUNTED
            if not is_marked and (has_room or entry.position in self.returns):
                self.returns[entry.position] = count
                if entry.rid and self.store is not None:
                    self.store.returned(self.journal, entry.rid, count)
            return False
        self._exceeded.append(entry)
        if len(self._exceeded) == 1:
            self.do_in_turns(self._drop_exceeded())
        return True

    def _drop_exceeded(self) -> Iterator[None]:
        """Dead-letter the messages that have returned too often, or drop them, in turns."""
        while self._exceeded:
            yield
            going, self._exceeded = self._exceeded[:MAX_EXCEEDED], self._exceeded[MAX_EXCEEDED:]
            before = self.moving_steps
            for number, entry in enumerate(going, 1):
                if entry.state == ACQUIRED and not self.is_deleted:
                    self._drop_returned(entry)
                if self.moving_steps - before > MAX_STEPS:  # the others in later turns: moving them is expensive
                    self._exceeded[:0] = going[number:]
                    break
            self._tick.schedule()

    def _drop_returned(self, entry: Entry) -> None:
        with contextlib.suppress(InternalError, MemoryError):  # it stays acquired, so it is not delivered
            if self.dead_letter is None:
                self.dequeue(entry)
            else:
                self.dead_letter.exceed(self, entry)

    def _next_return(self, entry: Entry) -> int:
        """The number that the next return of a message has."""
        count = self.returns.get(entry.position)
        if count is None:
            count = int(entry.is_redelivered) if self.delivery_limit is None else 0
        return count + 1

    def as_returned(self, entry: Entry) -> Message:
        """The message of an entry as it is delivered again: with the number of its returns, if there is a limit."""
        count = self.returns.get(entry.position) if self.delivery_limit is not None else None
        if not count:
            return entry.message
        try:
            return entry.message.whole().with_number(DELIVERY_COUNT, count)
        except InvalidArgumentError:  # its headers cannot be decoded
            return entry.message

    def returns_from(self, release: object, position: int) -> None:
        """Note that a release of many messages in turns continues at this position: none from there on is delivered.

        At NO_LIMIT it is over.
        """
        self._barriers.returns_from(release, position)
        self.mark_ready()

    def put_back(self, entry: Entry) -> None:
        """Offer an available entry that may be before the cursor."""
        if not self._consumers.put_back(entry):
            self.order.put_back(entry)
        self.mark_ready()

    # ---- remove ----

    def remove(self, entry: Entry) -> None:
        """Remove an entry, which is acquired unless it is withdrawn."""
        if self.returns and self.returns.pop(entry.position, None) is not None and entry.rid and self.store is not None:
            self.store.returned(self.journal, entry.rid, None)
        following = self.order.remove(entry)
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
        if self._chooser is not None:  # now that it is gone, other consumers may get messages of its group
            self.mark_ready()
        if self.displacements:
            for displacement in self.displacements:
                displacement.removed(entry)

    def _remove_first(self, run: RunEntry, count: int) -> None:
        """As `remove`, of the first messages of a run that is held."""
        size = run.run.size(run.first, count)
        self.order.remove_first(run, count)
        self.messages_dequeued += count
        self.bytes_dequeued += size
        if run.run.template.is_persistent is not self.durable:
            self.counters.atypical_dequeue(size, count)
        if self.watch.is_high:
            self.watch.fallen(self, run)

    def purge(self, max_messages: int = 0, before: int | None = None) -> tuple[int, bool]:
        """Remove at most `max_messages` of the messages that are available now; 0 for all. Raises as `dequeue`.

        Args:
            max_messages: as above.
            before: only those before this position; None for all.

        Returns:
            Their number, and whether completion must wait until the records of this tick are on the disk.
        """
        count, is_written, end = 0, False, self.order.next_position if before is None else before
        for entry in self.order.to_purge():
            if max_messages and count == max_messages:
                break
            if entry.position >= end or not self.acquire(entry, is_consumed=False):
                continue
            is_written = self.dequeue(entry) or is_written
            self.counters.purged += 1
            count += 1
        return count, is_written

    def expire(self) -> int:
        """Remove available messages that have expired. Returns their number."""
        return sum(expire_in_turns((self,), self._clock()))

    def drop_expired(self, entry: Entry) -> int:
        """Remove an available message that has expired, or move it to the dead-letter exchange.

        Returns:
            The cost: 1, or more if routing was expensive (`QueueDeadLetter.expire`).
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
        """Drop an expired message instead of delivering it; it counts towards the limit of one `dispatch`."""
        self._consumers.declined += self.drop_expired(entry)

    @property
    def moving_steps(self) -> int:
        """Steps taken so far to route messages that leave it (`matching.Steps`)."""
        if self.dead_letter is not None:
            return self.dead_letter.steps
        return 0 if self.alternate is None else self.alternate.steps

    # ---- consumers ----

    @property
    def consumer_count(self) -> int:
        """Number of consumers, takers and browsers."""
        return len(self._consumers)

    @property
    def is_unused(self) -> bool:
        """Whether it has neither an owner nor consumers, and no link keeps it."""
        return self.owner is None and not len(self._consumers) and not self.keepers

    def add_consumer(self, consumer: Consumer, priority: int = 0) -> None:
        """Add a consumer, which gets messages after a call of `wake`; those of a higher priority are first."""
        self._consumers.add(consumer, self.order.first, priority)
        self.consumer_marks.set(self.consumer_count)

    def remove_consumer(self, consumer: Consumer) -> None:
        """Remove a consumer."""
        if self.deletion is not None:
            self.deletion.consumers.pop(consumer, None)
            return
        if self._consumers.remove(consumer):
            self.mark_ready()
        self.consumer_marks.set(self.consumer_count)
        if self.exclusive_consumer is consumer:
            self.exclusive_consumer = None

    def wake(self, consumer: Consumer) -> None:
        """Mark a consumer as ready for messages."""
        if consumer.is_waiting:
            return
        self._consumers.wake(consumer)
        self.mark_ready()

    def has_taker(self) -> bool:
        """Dispatch available messages. Returns whether a consumer can then take one more."""
        self.dispatch()
        return self._consumers.has_credit

    def has_idle_taker(self) -> bool:
        """Whether a consumer, of a priority that is not negative, could take more messages than there are."""
        self.dispatch()
        return not self.available_count and self._consumers.has_credit_above(-1)

    @property
    def oldest_position(self) -> int:
        """The position of its oldest message, whatever its state; `next_position` if there is none."""
        return next((part.position for part in self.order.parts()), self.next_position)

    @property
    def consumers(self) -> list[Consumer]:
        """Its consumers: takers and browsers."""
        return [*self._consumers.takers, *self._consumers.browsers]

    @property
    def single_active(self) -> Consumer | None:
        """The one consumer that gets messages, if there is one at a time; else None."""
        ranking = self._consumers.ranking
        return ranking.active if isinstance(ranking, SingleActive) else None

    def is_active(self, consumer: Consumer) -> bool:
        """Whether a consumer gets messages: it does not wait for another one to end."""
        return self.single_active in (None, consumer) or not consumer.acquires

    def is_browsed(self, entry: Entry) -> bool:
        """Whether a browser has seen the message, or passed it."""
        return entry.position < self._consumers.browsed_to

    # ---- watch ----

    @property
    def next_position(self) -> int:
        """The position of the next message."""
        return self.order.next_position

    @property
    def message_count(self) -> int:
        """Messages on the queue, including those that consumers hold."""
        return self.messages_enqueued - self.messages_dequeued

    @property
    def message_bytes(self) -> int:
        """Bytes of their headers and content."""
        return self.bytes_enqueued - self.bytes_dequeued

    @property
    def is_empty(self) -> bool:
        """Whether no message is on it."""
        return self.messages_enqueued == self.messages_dequeued

    @property
    def acquired_count(self) -> int:
        """Messages held by consumers or transactions."""
        counters = self.counters
        return self._acquired + counters.withdrawn - counters.releases - self.messages_dequeued

    @property
    def available_count(self) -> int:
        """Messages that are available, some of which may still wait for the disk."""
        return self.message_count - self.acquired_count - self.uncommitted

    @property
    def memory(self) -> int:
        """Bytes of memory taken by its messages, as counted for the memory ceiling."""
        count = self.messages_enqueued - self.messages_dequeued
        size = self.bytes_enqueued - self.bytes_dequeued + MESSAGE_OVERHEAD * count
        return size if self.residency is None else size - self.residency.memory_out

    @property
    def refused(self) -> int:
        """Number of messages that its limit has refused."""
        return 0 if self.limit is None else self.limit.refused

    @property
    def totals(self) -> QueueTotals:
        """All its counters."""
        totals = self.counters.totals(
            (self.messages_enqueued, self.bytes_enqueued),
            (self.messages_dequeued, self.bytes_dequeued),
            self._acquired,
            self.refused,
            is_durable=self.durable,
        )
        out = self.residency
        if out is None:
            return totals
        return totals._replace(
            messages_out=out.messages_out, messages_in=out.messages_in, bytes_out=out.bytes_out, bytes_in=out.bytes_in
        )

    def entries(self) -> Iterator[Entry]:
        """All entries, in order; the one yielded last may be removed during iteration."""
        return iter(self.order)

    def available(self) -> Iterator[Entry]:
        """The available entries."""
        for entry in self.order:
            if entry.state == AVAILABLE:
                yield entry

    def outstanding(self) -> Iterator[Entry]:
        """The entries that are available, or acquired and not settled."""
        for entry in self.order:
            if entry.state in (AVAILABLE, ACQUIRED):
                yield entry

    def delivered_rids(self) -> array[int]:
        """Record ids of delivered messages, to be recovered as redelivered."""
        held = (ACQUIRED, LEAVING, MOVING)
        rids = array("Q")
        for part in self.order.parts():
            if isinstance(part, Stretch):
                if part.is_stored:
                    rids.extend(part.redelivered())
            elif isinstance(part, RunEntry):
                if part.rid and (part.is_redelivered or part.state == HELD):
                    rids.extend(range(part.rid, part.rid + part.count))
            elif part.rid and (part.is_redelivered or part.state in held):
                rids.append(part.rid)
        return rids

    def last_returns(self) -> Iterator[tuple[int, int]]:
        """Record ids of messages, and how often each has returned, where neither its mark nor the store says it.

        Those that consumers hold return with the end of the broker.
        """
        returns, is_limited = self.returns, self.delivery_limit is not None
        released = sorted(position for position, count in returns.items() if not count)
        for part in self.order.parts():
            if isinstance(part, RunEntry):
                count = 1 + (part.is_redelivered and not is_limited)
                if part.rid and part.state == HELD and (is_limited or count > 1):
                    yield from [(rid, count) for rid in range(part.rid, part.rid + part.count)]
                elif part.rid and released and part.state != HELD:
                    for position in _between(released, part.position, part.position + part.count - 1):
                        yield part.rid + position - part.position, 0
            elif isinstance(part, Stretch):
                if part.is_stored and released:
                    for position in _between(released, part.position, part.last):
                        yield part.keys[part.number_at(position)], 0
            elif part.rid and part.state in (ACQUIRED, LEAVING, MOVING):
                count = self._next_return(part)
                if is_limited or count > 1:
                    yield part.rid, count
            elif part.rid and returns.get(part.position) == 0:
                yield part.rid, 0

    def recover_returns(self, counts: Mapping[int, int]) -> None:
        """Note how often recovered messages have returned: record id -> count."""
        if not counts:
            return
        rids, returns = sorted(counts), self.returns
        for part in self.order.parts():
            if isinstance(part, Stretch):
                if part.is_stored:
                    for rid in _between(rids, part.keys[0], part.keys[-1]):
                        number = bisect_left(part.keys, rid)
                        if part.keys[number] == rid:
                            returns[part.position_of(number)] = counts[rid]
            elif isinstance(part, RunEntry):
                for rid in _between(rids, part.rid, part.rid + part.count - 1) if part.rid else ():
                    returns[part.position + rid - part.rid] = counts[rid]
            elif part.rid in counts:
                returns[part.position] = counts[part.rid]

    @property
    def refers_to_entries(self) -> bool:
        """Whether one of its parts keeps references to entries of available messages."""
        return any(each.refers_to_entries for each in self.displacements)

    # ---- deletion ----

    @property
    def is_gone(self) -> bool:
        """Whether it was deleted for good."""
        return self.is_deleted and self.deletion is None

    def begin_deletion(self) -> None:
        """Mark the queue as deleted and remove its consumers, while the store deletes it."""
        deletion = Deletion(self, self._tick, self._consumers.with_priorities(), self.exclusive_consumer)
        for consumer in deletion.consumers:
            self.remove_consumer(consumer)
        self.is_deleted, self.deletion = True, deletion

    def end_deletion(self) -> list[Consumer]:
        """End the deletion: the store has deleted the queue. Returns its consumers, which must be notified."""
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

    def undo_deletion(self) -> None:
        """Make the queue usable again, with its remaining consumers: the store could not delete it."""
        deletion, self.deletion = self.deletion, None
        assert deletion is not None
        self.is_deleted = False
        for consumer, priority in deletion.consumers.items():
            self.add_consumer(consumer, priority)
            self.wake(consumer)
        self.exclusive_consumer = deletion.exclusive_consumer
        deletion.ended(is_deleted=False)

    def dissolve(self) -> None:
        """Free the messages of a deleted queue, in turns if they are many."""
        if self.message_count > MAX_FREED:
            self.do_in_turns(self.order.dissolve(MAX_FREED))

    def await_records(self) -> bool:
        """Have the tick wait for all records of the queue, also of earlier ticks. Returns whether it is stored."""
        if self.journal is None:
            return False
        self._tick.journals[self.journal] = True
        return True

    def when_synced(self, done: Done) -> None:
        """Call back when the records of this tick are on the disk, or with the error that prevented it."""
        self._tick.when_synced(done)

    def do_in_turns(self, work: Iterator[None]) -> None:
        """Do work of the queue in turns of the event loop (`tick.Turns`)."""
        self._tick.turns.do(self, work)


def _between(numbers: list[int], first: int, last: int) -> list[int]:
    """Those of ascending numbers that are neither below `first` nor above `last`."""
    return numbers[bisect_left(numbers, first) : bisect_right(numbers, last)]


def refusal(store: Store, error: Exception) -> ModelError:
    """The error for the publisher of a message that the store has refused."""
    return ResourceLimitExceededError(str(error)) if isinstance(error, store.full_error) else InternalError(str(error))


class Deletion:
    """A queue's deletion while the store carries it out: after a crash it may exist again, with all its messages.

    Args:
        queue: the queue.
        tick: calls back when records are on the disk.
        consumers: the queue's consumers, and their priorities.
        exclusive_consumer: its exclusive consumer; None if there is none.

    Attributes:
        consumers: as above, without those that have gone since.
    """

    __slots__ = ("_exclusive_consumer", "_queue", "_tick", "_waiting", "consumers")

    def __init__(
        self, queue: Queue, tick: Tick, consumers: dict[Consumer, int], exclusive_consumer: Consumer | None
    ) -> None:
        self._queue, self._tick, self.consumers = queue, tick, consumers
        self._exclusive_consumer = exclusive_consumer
        self._waiting: list[Callable[[bool], None]] = []

    @property
    def exclusive_consumer(self) -> Consumer | None:
        """The exclusive consumer, unless it has gone."""
        return self._exclusive_consumer if self._exclusive_consumer in self.consumers else None

    def dequeue(self, entry: Entry, done: Done) -> None:
        """Dequeue an acquired message of the queue.

        Nothing may be appended to the journal now: the message is deleted with the queue. If that fails, it is
        dequeued.

        Args:
            entry: the message.
            done: called when no crash can bring it back, or with the error that prevents the dequeue.
        """
        self._waiting.append(partial(self._leave, entry, done))

    def _leave(self, entry: Entry, done: Done, is_deleted: bool) -> None:
        try:
            is_written = not is_deleted and self._queue.dequeue(entry)
        except InternalError as error:
            done(InternalError(str(error)))  # a new one: `error` references this frame
            return
        if is_written:
            self._tick.when_synced(done)
        else:
            done(None)

    def ended(self, *, is_deleted: bool) -> None:
        """End the deletion: the store has deleted the queue, or has failed to."""
        for callback in self._waiting:
            callback(is_deleted)
