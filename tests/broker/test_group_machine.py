"""Message groups against a list: each consumer gets the oldest message that it may have."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from qstore.broker.model.queues import groups
from qstore.broker.model.queues.barriers import Barrier
from qstore.broker.model.queues.entry import ACQUIRED, AVAILABLE, Entry
from qstore.broker.model.queues.groups import GroupOrder
from qstore.broker.model.queues.queue import Queue
from qstore.formats.values import typed_map
from tests.broker.test_queue_machine import StillTurn, TrackedMessage
from tests.support.compiled import replaces
from tests.support.fake_store import Model, Recorder
from tests.support.profiles import examples

WAITING, HELD, UNCOMMITTED, IN_DOUBT = "waiting", "held", "uncommitted", "in doubt"
GROUPS = (0, 1, 2, 3)  # 0: without the header


@dataclass
class Item:
    """What the model knows of a message. `holder` is the consumer that has it; None also if none has it."""

    place: int
    group: int
    expires_at: float
    entry: Entry
    state: str = WAITING
    holder: Recorder | None = None


class Kind:
    """What consumers of one kind can take: all, or what has an odd place, or an even one."""

    def __init__(self, odd: bool | None) -> None:
        self.odd = odd

    def takes(self, place: int) -> bool:
        return self.odd is None or place % 2 == self.odd

    def __call__(self, entry: Entry) -> bool:
        return self.takes(entry.position)


class GroupMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        gc.disable()
        self.now = 100.0
        self.tick = StillTurn()
        any_tick: Any = self.tick
        self.queue = Queue("q", any_tick, order=GroupOrder("group"), clock=lambda: self.now)
        self.items: dict[int, Item] = {}
        self.places = 0
        self.waits: list[tuple[Barrier, int, list[Item]]] = []
        self.consumers: list[Recorder] = []
        self.kinds = {odd: Kind(odd) for odd in (None, True, False)}
        self.gone: list[weakref.ref[TrackedMessage]] = []
        self.asleep: Recorder | None = None  # settles what it is given at once

    def teardown(self) -> None:
        gc.enable()

    # ---- the model ----

    @property
    def limit(self) -> int:
        return min((first for _, first, _ in self.waits), default=1 << 30)

    def is_expired(self, item: Item) -> bool:
        return 0 < item.expires_at <= self.now

    def owner(self, group: int) -> Recorder | None:
        holders = {item.holder for item in self.items.values() if item.group == group and item.holder is not None}
        assert len(holders) <= 1, "two consumers have messages of one group"
        return next(iter(holders), None)

    def for_consumer(self, consumer: Recorder) -> list[Item]:
        """What it may have now."""
        kind = consumer.kind
        return [
            item
            for item in self.items.values()
            if item.state == WAITING
            and item.place < self.limit
            and not self.is_expired(item)
            and self.owner(item.group) in (None, consumer)
            and (not isinstance(kind, Kind) or kind.takes(item.place))
        ]

    def is_gone(self, place: int) -> None:
        self.gone.append(weakref.ref(self.items.pop(place).entry.message))

    def held(self) -> list[int]:
        return sorted(place for place, item in self.items.items() if item.state == HELD)

    def waiting(self) -> list[int]:
        return sorted(place for place, item in self.items.items() if item.state == WAITING)

    # ---- messages ----

    def new_message(self, group: int, lasts: float = 0) -> TrackedMessage:
        self.places += 1
        message = TrackedMessage("q", b"x", persistent=False)
        message.numbers = {"group": group} if group else {}
        message.expires_at = self.now + lasts if lasts else 0.0
        return message

    @rule(group=st.sampled_from(GROUPS), count=st.integers(1, 3), lasts=st.sampled_from([0, 0, 0, 3]))
    def publish(self, group: int, count: int, lasts: float) -> None:
        for _ in range(count):
            message = self.new_message(group, lasts)
            entry = self.queue.add(message, 0)
            self.items[self.places] = Item(self.places, group, message.expires_at, entry)

    @rule(groups=st.lists(st.sampled_from(GROUPS), min_size=1, max_size=3))
    def commit_begins(self, groups: list[int]) -> None:
        barrier, first = self.queue.raise_barrier_at_end(), self.places + 1
        items = []
        for group in groups:
            entry = self.queue.add_uncommitted(self.new_message(group), 0)
            item = self.items[self.places] = Item(self.places, group, 0.0, entry, UNCOMMITTED)
            items.append(item)
        self.waits.append((barrier, first, items))

    @precondition(lambda self: self.waits)
    @rule(data=st.data())
    def commit_ends(self, data: st.DataObject) -> None:
        barrier, _, items = self.waits.pop(data.draw(st.integers(0, len(self.waits) - 1)))
        for item in items:
            self.queue.commit([item.entry])
            item.state = WAITING
        self.queue.lower(barrier)

    @rule(groups=st.lists(st.sampled_from(GROUPS), min_size=1, max_size=2))
    def branch_is_prepared(self, groups: list[int]) -> None:
        """Later messages do not wait for those of a distributed transaction."""
        for group in groups:
            entry = self.queue.add_uncommitted(self.new_message(group), 0)
            self.items[self.places] = Item(self.places, group, 0.0, entry, IN_DOUBT)

    @precondition(lambda self: any(item.state == IN_DOUBT for item in self.items.values()))
    @rule(data=st.data(), commits=st.booleans())
    def branch_ends(self, data: st.DataObject, commits: bool) -> None:
        in_doubt = sorted(place for place, item in self.items.items() if item.state == IN_DOUBT)
        item = self.items[data.draw(st.sampled_from(in_doubt))]
        if commits:
            self.queue.commit([item.entry])
            self.queue.put_back(item.entry)
            item.state = WAITING
        else:
            self.queue.withdraw(item.entry)
            self.is_gone(item.place)

    @rule(seconds=st.integers(1, 4))
    def time_goes_by(self, seconds: int) -> None:
        self.now += seconds

    # ---- consumers ----

    @rule(credit=st.integers(0, 5), odd=st.sampled_from([None, None, True, False]))
    def subscribe(self, credit: int, odd: bool | None) -> None:
        if len(self.consumers) < 4:
            consumer = Recorder(self.queue, credit, wants=self.kinds[odd])
            consumer.on_delivery = lambda entry: self.got(consumer, entry)
            self.consumers.append(consumer)
            self.queue.add_consumer(consumer)
            self.queue.wake(consumer)

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), credit=st.integers(1, 5))
    def more_credit(self, data: st.DataObject, credit: int) -> None:
        data.draw(st.sampled_from(self.consumers)).give(credit)

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def one_settles_at_once(self, data: st.DataObject) -> None:
        self.asleep = data.draw(st.sampled_from(self.consumers))

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def unsubscribe(self, data: st.DataObject) -> None:
        """What it has stays with it."""
        self.queue.remove_consumer(self.consumers.pop(data.draw(st.integers(0, len(self.consumers) - 1))))

    def got(self, consumer: Recorder, entry: Entry) -> None:
        assert consumer in self.consumers
        first = self.for_consumer(consumer)[0]
        assert entry is first.entry, f"{entry.position} instead of {first.place}"
        first.state, first.holder = HELD, consumer
        if consumer is self.asleep:
            self.queue.dequeue(entry)
            self.is_gone(first.place)

    @rule()
    def dispatch(self) -> None:
        self.tick.ready.clear()
        self.queue.dispatch()
        left = {entry.position for entry in self.queue.entries()}
        for place in [place for place in self.items if place not in left]:
            assert self.is_expired(self.items[place])
            self.is_gone(place)
        for consumer in self.consumers:
            if consumer.credit:
                assert self.for_consumer(consumer) == []

    # ---- what they do with it ----

    @precondition(lambda self: self.held())
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        item = self.items[data.draw(st.sampled_from(self.held()))]
        self.queue.release(item.entry, is_redelivered=True)
        item.state, item.holder = WAITING, None

    @precondition(lambda self: self.held())
    @rule(data=st.data())
    def dequeue(self, data: st.DataObject) -> None:
        place = data.draw(st.sampled_from(self.held()))
        self.queue.dequeue(self.items[place].entry)
        self.is_gone(place)

    @precondition(lambda self: self.consumers and self.waiting())
    @rule(data=st.data())
    def acquire(self, data: st.DataObject) -> None:
        item = self.items[data.draw(st.sampled_from(self.waiting()))]
        consumer = data.draw(st.sampled_from(self.consumers))
        may = self.owner(item.group) in (None, consumer)
        assert self.queue.acquire(item.entry, consumer=consumer) is may
        if may:
            item.state, item.holder = HELD, consumer

    @precondition(lambda self: self.waiting())
    @rule(data=st.data())
    def acquire_for_nobody(self, data: st.DataObject) -> None:
        """As to move it."""
        item = self.items[data.draw(st.sampled_from(self.waiting()))]
        assert self.queue.acquire(item.entry, is_consumed=False)
        item.state = HELD

    @rule(most=st.integers(0, 3))
    def purge(self, most: int) -> None:
        places = self.waiting()
        places = places[:most] if most else places
        assert self.queue.purge(most) == (len(places), False)
        for place in places:
            self.is_gone(place)

    # ---- at any time ----

    @invariant()
    def order_and_counts(self) -> None:
        items = getattr(self, "items", {})
        if not items:
            return
        assert [entry.position for entry in self.queue.entries()] == sorted(items)
        held = {place for place, item in items.items() if item.state == HELD}
        assert {entry.position for entry in self.queue.entries() if entry.state == ACQUIRED} == held
        assert {entry.position for entry in self.queue.entries() if entry.state == AVAILABLE} == {
            place for place, item in items.items() if item.state == WAITING
        }
        assert self.queue.acquired_count == len(held)

    @invariant()
    def the_tick_knows_when_there_is_something_to_deliver(self) -> None:
        if any(consumer.credit and self.for_consumer(consumer) for consumer in getattr(self, "consumers", [])):
            assert self.queue in self.tick.ready

    @invariant()
    def removed_messages_are_freed(self) -> None:
        gone = getattr(self, "gone", [])
        assert [reference() for reference in gone if reference() is not None] == []
        gone.clear()


def grouped(model: Model) -> Queue:
    return model.queue("q", arguments=typed_map({"qpid.group_header_key": "group", "qpid.shared_msg_group": 1}))


def publish(model: Model, queue: Queue, *bodies: bytes) -> None:
    """Messages of one group."""
    for body in bodies:
        message = model.message("q", body, persistent=False)
        message.numbers = {"group": 1}
        queue.add(message, 0)


def test_freed_group_goes_to_a_waiting_consumer() -> None:
    model = Model()
    queue = grouped(model)
    publish(model, queue, b"1", b"2")
    owner = model.consumer(queue, 1)
    model.run()
    other = model.consumer(queue)
    model.run()
    assert (owner.bodies, other.bodies) == ([b"1"], [])
    queue.dequeue(owner.entries[0])
    model.loop.run()
    assert other.bodies == [b"2"]


def test_a_group_that_is_freed_in_the_middle_continues_at_once() -> None:
    """A consumer got nothing while another one had the group; that one settles all it has when it gets more."""
    model = Model()
    queue = grouped(model)
    publish(model, queue, b"1")
    owner = model.consumer(queue, 1)
    model.run()
    other = model.consumer(queue)
    model.run()

    def settle_all(entry: Entry) -> None:
        for each in (owner.entries.pop(), entry):
            queue.dequeue(each)

    owner.on_delivery = settle_all
    owner.give(1)
    publish(model, queue, b"2", b"3")
    queue.dispatch()
    assert other.bodies == [b"3"]


@replaces
def test_kinds_that_are_gone_are_forgotten() -> None:
    model = Model()
    queue = grouped(model)
    publish(model, queue, b"x")
    stays = model.consumer(queue, wants=lambda entry: entry.message.body == b"s")
    for _ in range(200):
        kind = object()
        consumer = model.consumer(queue, wants=lambda _entry, _kind=kind: False)
        model.run()
        queue.remove_consumer(consumer)
    order = queue.order
    assert isinstance(order, GroupOrder)
    assert len(order._free) < 30
    assert all(len(group.cursors) < 30 for group in order._groups.values())
    publish(model, queue, b"s")
    model.run()
    assert stays.bodies == [b"s"]


@replaces
@pytest.mark.parametrize("is_new", [True, False], ids=["of a new group", "of a group that is there"])
def test_a_message_without_memory_was_never_queued(is_new: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    queue = grouped(model)
    consumer = model.consumer(queue)
    model.run()
    if not is_new:
        publish(model, queue, b"0")
        model.run()

    def no_memory(*_: object) -> None:
        raise MemoryError

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(groups, "heappush", no_memory)
            with pytest.raises(MemoryError):
                publish(model, queue, b"lost")
    model.run()
    publish(model, queue, b"1", b"2")
    model.run()
    assert consumer.bodies == [b"0", b"1", b"2"][is_new:]
    for entry in consumer.entries:
        queue.dequeue(entry)
    assert queue.is_empty
    assert list(queue.entries()) == []


TestGroupMachine = replaces(GroupMachine.TestCase)
TestGroupMachine.settings = examples(150, stateful_step_count=60)
