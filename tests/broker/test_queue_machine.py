"""A queue against a list: messages keep their places and are offered when they may be, and removed ones are freed at
once, after any operations in any order.

The model knows of each message its place, who has it, and from which place on things wait for the disk. What a consumer
gets is not predicted: it is checked that it was allowed, that the order was kept, and that nobody who could have got
something is left without.
"""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from qstore.broker.model.message import PLAIN_HANDLING
from qstore.broker.model.queues.barriers import Barrier
from qstore.broker.model.queues.consumers import FOREMOST, PerConsumerOrder
from qstore.broker.model.queues.entry import ACQUIRED, AVAILABLE, FOLDED, GONE, Entry
from qstore.broker.model.queues.expiry import expire_heads
from qstore.broker.model.queues.fifo import Fifo
from qstore.broker.model.queues.priority import PriorityOrder
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.residency.residency import Residency
from qstore.broker.model.residency.sources import JournalSource
from qstore.broker.model.residency.stretch import Portions
from tests.broker.wired_broker import PlainMessage
from tests.support.fake_store import FakeStore, Model, Recorder
from tests.support.profiles import examples

WAITING, HELD_BY_SOMEBODY, UNCOMMITTED = "waiting", "held", "uncommitted"
EVER = 0.0


class StillTurn:
    """A tick that never ends by itself."""

    def __init__(self) -> None:
        self.ready: dict[Queue, None] = {}
        self.written: dict[Queue, None] = {}
        self.journals: dict[Any, None] = {}
        self.deliveries = 1 << 60

    def schedule(self) -> None:
        """The test dispatches when it likes."""

    def when_synced(self, done: Any) -> None:
        """Nothing is ever on the disk."""


class TrackedMessage(PlainMessage):
    """A message that can be referred to weakly: it is freed with its entry."""


@dataclass
class Item:
    """What the model knows of a message."""

    place: int
    kept: bool
    expires_at: float
    body_bytes: int
    state: str = WAITING
    is_redelivered: bool = False


@dataclass
class Wait:
    """From `first` on nothing may be delivered. A transaction has its items, a tick none."""

    first: int
    barrier: Barrier
    items: list[Item] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)


class Kind:
    """What consumers of one kind can take: all, or what has an odd place, or an even one. Each is asked once."""

    def __init__(self, odd: bool | None, declined: dict[int, list[Kind]]) -> None:
        self.odd, self.declined = odd, declined

    def takes(self, place: int) -> bool:
        return self.odd is None or place % 2 == self.odd

    def __call__(self, entry: Entry) -> bool:
        if self.takes(entry.position):
            return True
        declined = self.declined.setdefault(entry.position, [])
        assert self not in declined, f"{entry.position} was offered again to those who cannot take it"
        declined.append(self)
        return False


class QueueMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.begin_with_nothing()

    def begin_with_nothing(self) -> None:
        gc.disable()
        self.now = 100.0
        self.tick, self.store = StillTurn(), FakeStore()
        tick, store = self.tick, self.store
        any_turn: Any = tick
        any_store: Any = store
        self.journal = store.journal("q")
        self.queue = Queue(
            "q", any_turn, durable=True, store=any_store, journal=self.journal, order=self.new_order(),
            residency=self.new_residency(), is_single_active=self.is_single_active(), clock=lambda: self.now,
        )  # fmt: skip
        self.items: dict[int, Item] = {}
        self.places = 0
        self.expiries: dict[int, float] = {}
        self.gone: list[weakref.ref[TrackedMessage]] = []
        self.references: dict[int, weakref.ref[TrackedMessage]] = {}
        self.unflushed = 0  # the first place that waits for a flush which has not begun; 0 for none
        self.waits: list[Wait] = []
        self.consumers: list[Recorder] = []
        self.held: dict[int, Entry] = {}  # place -> entry, of acquired messages
        self.seen: dict[Recorder, list[Entry]] = {}
        self.last_seen: dict[Recorder, int] = {}
        self.round: list[int] = []  # the places of what was given since the dispatch began
        self.cursor = 0  # the place before which all that is available was passed over, when it began
        self.declined: dict[int, list[Kind]] = {}  # place -> who could not take it since it was last held
        self.kinds = {odd: Kind(odd, self.declined) for odd in (None, True, False)}

    def teardown(self) -> None:
        gc.enable()

    # ---- the model ----

    def new_order(self) -> Fifo:
        """How the queue is ordered."""
        return Fifo()

    def new_residency(self) -> Residency | None:
        """What goes out of memory."""
        return None

    def is_single_active(self) -> bool:
        """Whether one consumer at a time gets messages."""
        return False

    def may_get(self, consumer: Recorder) -> bool:
        """Whether a consumer may be given messages."""
        return True

    def check_order(self, kind: Kind, item: Item) -> None:
        """A consumer of a kind is given a message: it is the first of those that it can take.

        What was passed over is not in order among kinds: each has its own backlog, and they take turns
        (`test_backlogs_of_different_kinds_take_turns`). All from the cursor on is in order, after all of that.
        """
        there = (place for place, other in self.items.items() if other.state == WAITING and not self.is_expired(other))
        assert item.place == min(place for place in there if kind.takes(place)), "not the first that it can take"
        assert not any(max(self.cursor, item.place) <= place for place in self.round), "out of order"

    def to_purge(self, places: list[int]) -> list[int]:
        """In which order these are purged."""
        return sorted(places)

    @property
    def limit(self) -> int:
        firsts = [wait.first for wait in self.waits] + ([self.unflushed] if self.unflushed else [])
        return min(firsts, default=1 << 30)

    def is_expired(self, item: Item) -> bool:
        return item.expires_at != EVER and item.expires_at <= self.now

    def new_message(self, *, kept: bool, lasts: float) -> tuple[TrackedMessage, Item]:
        self.places += 1
        any_store: Any = self.store
        message = TrackedMessage("q", b"x" * self.places, persistent=kept, store=any_store)
        message.expires_at = self.now + lasts if lasts else EVER
        self.expiries[self.places] = message.expires_at
        item = self.items[self.places] = Item(self.places, kept, message.expires_at, self.places)
        self.references[self.places] = weakref.ref(message)
        return message, item

    def is_gone(self, place: int) -> None:
        item = self.items.pop(place)
        self.gone.append(self.references.pop(place))
        self.held.pop(place, None)
        assert item.state != UNCOMMITTED

    def drop_expired(self) -> None:
        """Dispatch may have dropped what has expired: look which."""
        left = {entry.position for entry in self.queue.entries()}
        for place in [place for place in self.items if place not in left]:
            assert self.items[place].state == WAITING
            assert self.is_expired(self.items[place])
            self.is_gone(place)
        assert left == set(self.items)

    # ---- messages come ----

    @rule(kept=st.booleans(), lasts=st.sampled_from([0, 0, 0, 3]))
    def publish(self, kept: bool, lasts: float) -> None:
        message, item = self.new_message(kept=kept, lasts=lasts)
        assert self.queue.publish(message) is kept
        if kept and not self.unflushed:
            self.unflushed = item.place
        assert (self.queue in self.tick.written) is bool(self.unflushed)

    @precondition(lambda self: self.unflushed)
    @rule()
    def flush_begins(self) -> None:
        self.tick.written.clear()
        self.waits.append(Wait(self.unflushed, self.queue.raise_barrier()))
        self.unflushed = 0

    @rule(kinds=st.lists(st.booleans(), min_size=1, max_size=3))
    def commit_begins(self, kinds: list[bool]) -> None:
        wait = Wait(self.places + 1, self.queue.raise_barrier_at_end())
        for kept in kinds:
            message, item = self.new_message(kept=kept, lasts=0)
            item.state = UNCOMMITTED
            rid = self.store.enqueue(self.journal, *message.stored_form()) if kept else 0
            wait.items.append(item)
            wait.entries.append(self.queue.add_uncommitted(message, rid))
        self.waits.append(wait)

    @precondition(lambda self: self.waits)
    @rule(data=st.data())
    def something_is_on_the_disk(self, data: st.DataObject) -> None:
        wait = self.waits.pop(data.draw(st.integers(0, len(self.waits) - 1)))
        for item, entry in zip(wait.items, wait.entries, strict=True):
            self.queue.commit([entry])
            item.state = WAITING
        self.queue.lower(wait.barrier)
        assert self.queue in self.tick.ready

    @rule(seconds=st.integers(1, 4))
    def time_goes_by(self, seconds: int) -> None:
        self.now += seconds

    # ---- consumers ----

    @rule(credit=st.integers(0, 4), odd=st.sampled_from([None, None, True, False]))
    def subscribe(self, credit: int, odd: bool | None) -> None:
        if len(self.consumers) == 4:
            return
        kind = self.kinds[odd]
        self.add(Recorder(self.queue, credit, wants=kind, on_delivery=partial(self.got, kind)))

    @rule(credit=st.integers(0, 4))
    def look_on(self, credit: int) -> None:
        if len(self.seen) == 2:
            return
        browser = Recorder(self.queue, credit, acquires=False)
        browser.on_delivery = lambda entry: self.saw(browser, entry)
        self.seen[browser], self.last_seen[browser] = [], 0
        self.add(browser)

    def add(self, consumer: Recorder) -> None:
        self.consumers.append(consumer)
        self.queue.add_consumer(consumer)
        self.queue.wake(consumer)

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), credit=st.integers(1, 4))
    def more_credit(self, data: st.DataObject, credit: int) -> None:
        data.draw(st.sampled_from(self.consumers)).give(credit)

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def unsubscribe(self, data: st.DataObject) -> None:
        consumer = self.consumers.pop(data.draw(st.integers(0, len(self.consumers) - 1)))
        self.queue.remove_consumer(consumer)
        self.seen.pop(consumer, None)
        self.last_seen.pop(consumer, None)
        consumer.on_delivery = _nobody  # or it and the browser's entries would hold each other

    def got(self, kind: Kind, entry: Entry) -> None:
        item = self.items[entry.position]
        assert item.state == WAITING
        assert entry.state == ACQUIRED
        assert item.place < self.limit, "offered before it was on the disk, or overtaken"
        assert not self.is_expired(item)
        assert entry.is_redelivered is item.is_redelivered
        self.check_order(kind, item)
        self.round.append(item.place)
        if item.kept and item.place not in self.held:
            assert entry.rid in self.journal.live
        item.state = HELD_BY_SOMEBODY
        self.held[item.place] = entry
        self.declined.pop(item.place, None)

    def saw(self, browser: Recorder, entry: Entry) -> None:
        item = self.items[entry.position]
        assert item.state == WAITING
        assert item.place < self.limit
        assert not self.is_expired(item)
        assert item.place > self.last_seen[browser], "seen twice, or out of order"
        self.last_seen[browser] = item.place
        self.seen[browser].append(entry)

    @rule()
    def dispatch(self) -> None:
        self.dispatch_and_look()

    def dispatch_and_look(self) -> None:
        self.tick.ready.clear()
        self.round.clear()
        self.cursor = self.queue.order.cursor.position
        self.queue.dispatch()
        while self.store.reads or (self.queue in self.tick.ready and self.queue.residency is not None):
            if self.store.reads:  # the next messages are out of memory
                self.store.reads.pop(0)()
            self.tick.ready.clear()
            self.queue.dispatch()
        self.drop_expired()
        for consumer in self.consumers:
            if not consumer.credit or not self.may_get(consumer):
                continue
            behind = self.last_seen.get(consumer, 0)
            for item in self.items.values():
                if item.state != WAITING or item.place >= self.limit or self.is_expired(item) or item.place <= behind:
                    continue
                if consumer.acquires:
                    kind = consumer.kind
                    assert isinstance(kind, Kind)
                    assert not kind.takes(item.place), f"{item.place} waits for nothing"
                else:
                    assert consumer.cursor.position > item.place, f"{item.place} was not shown"

    # ---- what they do with it ----

    @precondition(lambda self: self.held)
    @rule(data=st.data(), marked=st.booleans())
    def release(self, data: st.DataObject, marked: bool) -> None:
        place = data.draw(st.sampled_from(sorted(self.held)))
        self.queue.release(self.held.pop(place), is_redelivered=marked)
        item = self.items[place]
        item.state, item.is_redelivered = WAITING, item.is_redelivered or marked
        assert self.queue in self.tick.ready

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def dequeue(self, data: st.DataObject) -> None:
        place = data.draw(st.sampled_from(sorted(self.held)))
        assert self.queue.dequeue(self.held[place]) is self.items[place].kept
        self.is_gone(place)

    @precondition(lambda self: any(self.seen.values()))
    @rule(data=st.data())
    def acquire(self, data: st.DataObject) -> None:
        browser = data.draw(st.sampled_from([each for each, entries in self.seen.items() if entries]))
        entry = self.seen[browser].pop(0)
        item = self.items.get(entry.position)
        is_free = item is not None and item.state == WAITING
        assert self.queue.acquire(entry) is is_free
        if item is not None and is_free:
            item.state = HELD_BY_SOMEBODY
            self.held[item.place] = entry
            self.declined.pop(item.place, None)

    @rule(most=st.integers(0, 3))
    def purge(self, most: int) -> None:
        places = self.to_purge([place for place, item in self.items.items() if item.state == WAITING])
        places = places[:most] if most else places
        written = any(self.items[place].kept for place in places)
        assert self.queue.purge(most) == (len(places), written)
        for place in places:
            self.is_gone(place)

    @rule()
    def expire(self) -> None:
        places = [place for place, item in self.items.items() if item.state == WAITING and self.is_expired(item)]
        assert self.queue.expire() == len(places)
        for place in places:
            self.is_gone(place)

    @rule()
    def expire_head(self) -> None:
        due, _ = expire_heads(self.queue, self.now)
        left = {entry.position for entry in self.queue.entries()}
        for place in [place for place in self.items if place not in left]:
            assert self.items[place].state == WAITING
            assert self.is_expired(self.items[place])
            self.is_gone(place)
        passed_over = self.queue._consumers._passed_over.entries
        waiting = [item for place, item in self.items.items() if item.state == WAITING and place not in passed_over]
        head = min(waiting, key=lambda item: item.place, default=None)
        if head is None or any(item.state == UNCOMMITTED and item.place < head.place for item in self.items.values()):
            return
        assert not self.is_expired(head)
        if isinstance(self.queue.order, PerConsumerOrder):
            ends = [each.message.expires_at for each in self.queue.order.heads() if each.message.expires_at]
            assert due == min(ends, default=0.0)
            assert not due or due > self.now
        else:
            assert due in (0.0, head.expires_at) or self.queue.residency is not None

    # ---- at any time ----

    @invariant()
    def order_and_counts(self) -> None:
        if not hasattr(self, "queue"):
            return
        queue, items = self.queue, self.items
        entries = list(queue.entries())
        assert [entry.position for entry in entries] == sorted(items)
        assert queue.message_count == len(items)
        assert queue.acquired_count == sum(item.state == HELD_BY_SOMEBODY for item in items.values())
        assert queue.message_bytes == sum(item.body_bytes for item in items.values())
        assert queue.is_empty is (not items)
        available = [place for place in sorted(items) if items[place].state == WAITING]
        assert [entry.position for entry in queue.available()] == available
        assert self.journal.live.keys() == {entry.rid for entry in entries if entry.rid}
        delivered = [
            entry.rid
            for entry in entries
            if items[entry.position].kept
            and (items[entry.position].is_redelivered or items[entry.position].state == HELD_BY_SOMEBODY)
        ]
        assert list(queue.delivered_rids()) == delivered

    @invariant()
    def no_consumer_waits_at_a_removed_message(self) -> None:
        for consumer in getattr(self, "consumers", ()):
            if not consumer.acquires:
                assert consumer.cursor.state != GONE

    @invariant()
    def removed_messages_are_freed(self) -> None:
        if not hasattr(self, "queue"):
            return
        for entries in self.seen.values():  # what a browser's session remembers is its own affair
            entries[:] = [
                entry for entry in entries if entry.position in self.items and entry.state in (AVAILABLE, FOLDED)
            ]
        assert [reference() for reference in self.gone if reference() is not None] == []
        self.gone.clear()


def _nobody(_entry: Entry) -> None:
    raise AssertionError("delivered to one who is gone")


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = examples(150, stateful_step_count=60)


def test_backlogs_of_different_kinds_take_turns() -> None:
    """What was passed over is given in the order of the consumers' turns, so the queue's order is not kept among kinds.

    None of these consumers could tell: none is given a message after a later one. qpidd's consumers have a position in
    the queue each, and take turns as well.
    """
    model = Model()
    queue = model.queue("q")
    given: list[int] = []

    def consumer_of(*places: int) -> None:
        model.consumer(
            queue, wants=lambda entry: entry.position in places, on_delivery=lambda entry: given.append(entry.position)
        )

    consumer_of()
    for _ in range(4):
        queue.publish(model.message("q", b"x", persistent=False))
    model.run()
    assert given == []  # the one who is ready can take none: all four are passed over
    consumer_of(2, 4)
    consumer_of(1, 3)
    model.run()
    assert given == [2, 1, 4, 3]


# ---- priority queues ----
# Each consumer is given the one message that it must get: of those that it can take, the oldest of the level whose turn
# it is.


class Rounds:
    """Whose turn it is, with limits for some levels."""

    def __init__(self, limits: list[int]) -> None:
        self.limits = limits
        self.begin()

    def begin(self) -> None:
        self.level, self.left = len(self.limits) - 1, self.limits[-1]

    def next_level(self, there: set[int]) -> int:
        """Of the levels that have something, which is next."""
        level = self.level
        if self.limits[level] and not self.left:
            level -= 1
        for _ in self.limits:
            level %= len(self.limits)
            if level in there:
                return level
            level -= 1
        raise AssertionError("nothing is there")

    def took(self, level: int) -> None:
        if level != self.level or (self.limits[level] and not self.left):
            self.level, self.left = level, self.limits[level]
        self.left -= 1


class PriorityMachine(QueueMachine):
    @initialize(
        levels=st.integers(2, 10),
        limits=st.none() | st.lists(st.integers(0, 3), min_size=10, max_size=10),
        priorities=st.lists(st.integers(0, 9), min_size=1, max_size=12),
        is_capped=st.booleans(),
    )
    def begin(self, levels: int, limits: list[int] | None, priorities: list[int], is_capped: bool) -> None:
        self.levels, self.priorities, self.is_capped = levels, priorities, is_capped
        self.limits = [0] * levels if limits is None else limits[:levels]
        self.rounds = Rounds(self.limits) if any(self.limits) else None
        self.asked: set[Kind] = set()
        self.begin_with_nothing()

    def new_order(self) -> PriorityOrder:
        return PriorityOrder(self.levels, self.limits, is_capped=self.is_capped)

    def level(self, place: int) -> int:
        """By the rule priority-level-implementation, in its own words."""
        priority, levels = self.priorities[place % len(self.priorities)], self.levels
        if self.is_capped:
            return priority if priority < levels else levels - 1
        distinct = list(range(5 - -(-levels // 2), 4 + levels // 2 + 1))
        assert len(distinct) == levels
        return distinct.index(min(max(priority, distinct[0]), distinct[-1]))

    def new_message(self, *, kept: bool, lasts: float) -> tuple[TrackedMessage, Item]:
        message, item = super().new_message(kept=kept, lasts=lasts)
        message.handling = PLAIN_HANDLING._replace(priority=self.priorities[item.place % len(self.priorities)])
        return message, item

    def to_purge(self, places: list[int]) -> list[int]:
        return sorted(places, key=lambda place: (self.level(place), place))

    @rule(count=st.integers(2, 12))
    def burst(self, count: int) -> None:
        for _ in range(count):
            self.publish(kept=False, lasts=0)

    @rule(count=st.integers(2, 12), credit=st.integers(3, 12))
    def burst_for_all(self, count: int, credit: int) -> None:
        self.burst(count=count)
        for consumer in self.consumers:
            consumer.give(credit)
        self.dispatch()

    def got(self, kind: Kind, entry: Entry) -> None:
        there: dict[int, list[int]] = {}
        for place, item in self.items.items():
            if item.state == WAITING and place < self.limit and not self.is_expired(item) and kind.takes(place):
                there.setdefault(self.level(place), []).append(place)
        level = max(there) if self.rounds is None else self.rounds.next_level(set(there))
        assert entry.position == min(there[level])
        if self.rounds is not None:
            self.rounds.took(level)
        super().got(kind, entry)

    def check_order(self, kind: Kind, item: Item) -> None:
        """Was checked by `got`."""

    @rule()
    def dispatch(self) -> None:
        self.asked.update(
            each.wants
            for each in self.consumers
            if each.acquires and each.is_waiting and self.may_get(each) and isinstance(each.wants, Kind)
        )
        self.dispatch_and_look()
        left = [place for place, item in self.items.items() if item.state == WAITING and place < self.limit]
        if self.rounds is not None and all(
            kind in self.declined.get(place, ()) for place in left for kind in self.asked
        ):
            self.rounds.begin()


TestPriorityMachine = PriorityMachine.TestCase
TestPriorityMachine.settings = examples(150, stateful_step_count=60)


# ---- queues whose messages leave memory at any time and come back ----


class ResidencyMachine(QueueMachine):
    """Stretches of one to three messages."""

    def new_residency(self) -> Residency:
        any_store: Any = self.store
        source = JournalSource(any_store, self.journal, "q", self.restored)
        return Residency(
            source,
            None,
            1 << 40,
            has_stretches=type(self.new_order()) is Fifo,
            portions=Portions(1, 3, 1, 1, 1 << 20, 0),
        )

    def restored(self, data: bytes, begin: int = 0, end: int = -1, /) -> TrackedMessage:
        any_store: Any = self.store
        body = (data if end < 0 else data[begin:end]).partition(b"\0")[2]
        message = TrackedMessage("q", body, store=any_store)
        message.expires_at = self.expiries[len(body)]
        return message

    @property
    def residency(self) -> Residency:
        assert self.queue.residency is not None
        return self.queue.residency

    @rule(excess=st.sampled_from([1, 400, 1 << 40]), is_urgent=st.booleans())
    def memory_is_short(self, excess: int, is_urgent: bool) -> None:
        self.residency.relieve(excess, is_urgent=is_urgent)

    @rule(reads_at_once=st.booleans())
    def the_disk_is_cached(self, reads_at_once: bool) -> None:
        self.store.is_immediate = reads_at_once

    @rule(data=st.data())
    def something_was_read(self, data: st.DataObject) -> None:
        if self.store.reads:
            self.store.reads.pop(data.draw(st.integers(0, len(self.store.reads) - 1)))()

    def dispatch_and_look(self) -> None:
        """Whatever can be out is, first."""
        self.residency.relieve(1 << 40, is_urgent=True)
        super().dispatch_and_look()

    @invariant()
    def order_and_counts(self) -> None:
        """Not each time: it looks at every entry, for which stretches are unfolded."""
        if self.places % 3 == 0:
            super().order_and_counts()

    @invariant()
    def messages_out_of_memory_are_counted(self) -> None:
        if not hasattr(self, "queue"):
            return
        parts = list(self.queue.order.parts())
        inside = self.residency.messages_out - self.residency.messages_in
        assert inside == sum(getattr(part, "count", 0) or type(part.message).__name__ == "Reference" for part in parts)
        assert 0 <= self.residency.memory_out <= self.queue.message_bytes + 320 * self.queue.message_count
        if not inside:
            assert self.residency.memory_out == 0


class PriorityResidencyMachine(ResidencyMachine):
    """Entries stay, references stand for messages."""

    def new_order(self) -> Fifo:
        return PriorityOrder(2)

    def check_order(self, kind: Kind, item: Item) -> None:
        """Priorities have a machine of their own."""


TestResidencyMachine = ResidencyMachine.TestCase
TestResidencyMachine.settings = examples(150, stateful_step_count=60)
TestPriorityResidencyMachine = PriorityResidencyMachine.TestCase
TestPriorityResidencyMachine.settings = examples(50, stateful_step_count=60)


# ---- consumers with priorities, or of which one is active ----
# A consumer is given no message while another one comes before it.


STEPS = 50


class Prioritized(QueueMachine):
    """Consumers with priorities."""

    def begin_with_nothing(self) -> None:
        super().begin_with_nothing()
        self.ranks: dict[Recorder, int] = {}  # in the order in which they came

    @rule(credit=st.integers(0, 4), odd=st.sampled_from([None, None, True, False]), rank=st.integers(-1, 2))
    def subscribe(self, credit: int, odd: bool | None, rank: int = 0) -> None:
        if len(self.ranks) == 5:
            return
        self.take_part(credit, odd, rank)

    def take_part(self, credit: int, odd: bool | None, rank: int) -> Recorder:
        kind = self.kinds[odd]
        consumer = Recorder(self.queue, credit, wants=kind)
        consumer.on_delivery = partial(self.given, consumer, kind)
        self.consumers.append(consumer)
        self.ranks[consumer] = rank
        self.queue.add_consumer(consumer, rank)
        self.queue.wake(consumer)
        return consumer

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def unsubscribe(self, data: st.DataObject) -> None:
        before = list(self.consumers)
        super().unsubscribe(data)
        for consumer in before:
            if consumer not in self.consumers:
                self.ranks.pop(consumer, None)
                self.left(consumer)

    def left(self, consumer: Recorder) -> None:
        """A consumer has left."""

    @precondition(lambda self: not self.seen)  # browsers begin again
    @rule()
    def deletion_fails(self) -> None:
        self.queue.begin_deletion()
        self.queue.undo_deletion()

    @rule(odd=st.sampled_from([None, True]))
    def get_one(self, odd: bool | None) -> None:
        """A client takes one message, and then waits for none."""
        getter = self.take_part(1, odd, FOREMOST)
        self.dispatch()
        self.queue.remove_consumer(getter)
        self.consumers.remove(getter)
        del self.ranks[getter]
        del getter.on_delivery

    def given(self, consumer: Recorder, kind: Kind, entry: Entry) -> None:
        rank = self.ranks[consumer]
        for other, its in self.ranks.items():
            if rank < its < FOREMOST:
                assert not (other.credit and self.kinds_take(other, entry)), "another comes first"
        self.got(kind, entry)

    @staticmethod
    def kinds_take(consumer: Recorder, entry: Entry) -> bool:
        kind = consumer.kind
        assert isinstance(kind, Kind)
        return kind.takes(entry.position)


class OneActive(Prioritized):
    """Consumers of which one is active."""

    def begin_with_nothing(self) -> None:
        super().begin_with_nothing()
        self.active: Recorder | None = None

    def is_single_active(self) -> bool:
        return True

    def may_get(self, consumer: Recorder) -> bool:
        return consumer is self.active or not consumer.acquires or self.ranks[consumer] == FOREMOST

    def take_part(self, credit: int, odd: bool | None, rank: int) -> Recorder:
        consumer = super().take_part(credit, odd, rank)
        if self.active is None and rank != FOREMOST:
            self.active = consumer
        return consumer

    def left(self, consumer: Recorder) -> None:
        if consumer is self.active:
            highest = max(self.ranks.values(), default=0)
            self.active = next((each for each, rank in self.ranks.items() if rank == highest), None)

    def given(self, consumer: Recorder, kind: Kind, entry: Entry) -> None:
        assert self.may_get(consumer), "another is active"
        self.got(kind, entry)


class PrioritizedOfLevels(Prioritized, PriorityMachine):
    """Priorities of messages, too."""


class OneActiveOfLevels(OneActive, PriorityMachine):
    """Likewise."""


TestPrioritized = Prioritized.TestCase
TestOneActive = OneActive.TestCase
TestPrioritizedOfLevels = PrioritizedOfLevels.TestCase
TestOneActiveOfLevels = OneActiveOfLevels.TestCase
TestPrioritized.settings = TestOneActive.settings = examples(25, stateful_step_count=STEPS)
TestPrioritizedOfLevels.settings = TestOneActiveOfLevels.settings = examples(15, stateful_step_count=STEPS)
