"""Priority queues: which message is next, for whom, and how often consumers are asked."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.model.errors import InternalError, ResourceLimitExceededError
from qstore.broker.model.message import PLAIN_HANDLING
from qstore.broker.model.queues.consumers import MAX_DECLINED
from qstore.broker.model.queues.entry import Entry
from qstore.broker.model.queues.priority import FairShare, PriorityOrder, level_of_priority
from qstore.broker.model.queues.queue import Queue
from qstore.formats.values import typed_map
from tests.broker.test_passed_over import MANY, Wanting, check_a_slow_consumer, check_looking_through
from tests.broker.wired_broker import PlainMessage
from tests.support.fake_store import Model, Recorder

HIGH, LOW = 9, 0


def priority_queue(model: Model, levels: int = 10, *, durable: bool = False, **more: Any) -> Queue:
    return model.queue("q", durable=durable, arguments=typed_map({"qpid.priorities": levels, **more}))


def put(model: Model, *messages: tuple[int, bytes], persistent: bool = True, expires_at: float = 0.0) -> None:
    """Publish messages: a priority and a body each."""
    for priority, body in messages:
        message = model.message("q", body, persistent=persistent, expires_at=expires_at)
        message.handling = PLAIN_HANDLING._replace(priority=priority)
        model.broker.router.publish(message, model.broker.default_host.exchanges[""])


def delivered(model: Model, queue: Queue, credit: int = 1 << 30) -> list[bytes]:
    """What a consumer gets, which then has gone."""
    consumer = model.consumer(queue, credit)
    model.sync()
    queue.remove_consumer(consumer)
    bodies = [bytes(each) for each in consumer.bodies]
    for entry in consumer.entries:
        queue.dequeue(entry)
    return bodies


def bodies(queue: Queue) -> list[bytes]:
    return [bytes(entry.message.body) for entry in queue.entries()]


# ---- levels ----


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        (2, [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]),
        (3, [0, 0, 0, 0, 1, 2, 2, 2, 2, 2]),
        (4, [0, 0, 0, 0, 1, 2, 3, 3, 3, 3]),
        (5, [0, 0, 0, 1, 2, 3, 4, 4, 4, 4]),
        (8, [0, 0, 1, 2, 3, 4, 5, 6, 7, 7]),
        (9, [0, 1, 2, 3, 4, 5, 6, 7, 8, 8]),
        (10, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
    ],
)
def test_levels_of_priorities(levels: int, expected: list[int]) -> None:
    assert [level_of_priority(priority, levels) for priority in range(10)] == expected


@pytest.mark.parametrize("durable", [False, True])
def test_higher_levels_are_first_and_browsers_see_the_order_of_arrival(model: Model, durable: bool) -> None:
    queue = priority_queue(model, 3, durable=durable)
    put(model, (4, b"a"), (9, b"b"), (0, b"c"), (5, b"d"), (4, b"e"), (3, b"f"), (200, b"g"))
    browser = model.consumer(queue, acquires=False)
    model.sync()
    assert b"".join(browser.bodies) == b"abcdefg"
    assert b"".join(delivered(model, queue)) == b"bdgaecf"
    assert queue.is_empty


@pytest.mark.parametrize(
    ("highest", "expected"), [(1, b"acdegbf"), (3, b"dgcaebf"), (4, b"dgcaebf"), (255, b"gdcaebf")]
)
def test_with_a_maximum_each_priority_up_to_it_is_a_level(model: Model, highest: int, expected: bytes) -> None:
    queue = model.queue("q", arguments=typed_map({"x-max-priority": highest}))
    put(model, (1, b"a"), (0, b"b"), (2, b"c"), (4, b"d"), (1, b"e"), (0, b"f"), (255, b"g"))
    assert b"".join(delivered(model, queue)) == expected


def test_the_least_urgent_of_many_levels_leaves_a_ring(model: Model) -> None:
    arguments = {"x-max-priority": 255, "qpid.max_count": 2, "qpid.policy_type": "ring"}
    queue = model.queue("q", arguments=typed_map(arguments))
    put(model, (200, b"a"), (7, b"b"), (255, b"c"), (7, b"d"), (100, b"e"))
    assert b"".join(delivered(model, queue)) == b"ca"
    put(model, (0, b"f"))
    assert b"".join(delivered(model, queue)) == b"f"


@pytest.mark.parametrize(
    ("argument", "levels"), [("qpid.priorities", 0), ("qpid.priorities", 1), ("x-max-priority", 0)]
)
def test_a_queue_with_one_level_is_a_plain_one(model: Model, argument: str, levels: int) -> None:
    queue = model.queue("q", arguments=typed_map({argument: levels}))
    assert not isinstance(queue.order, PriorityOrder)
    put(model, (LOW, b"a"), (HIGH, b"b"))
    assert delivered(model, queue) == [b"a", b"b"]


def test_a_later_message_of_a_higher_level_waits_for_the_disk_and_holds_up_nothing(model: Model) -> None:
    queue = priority_queue(model, durable=True)
    consumer = model.consumer(queue)
    put(model, (LOW, b"a"), persistent=False)
    put(model, (HIGH, b"b"))
    put(model, (LOW, b"c"), persistent=False)
    model.run()
    assert consumer.bodies == [b"a"]
    model.sync()
    assert consumer.bodies == [b"a", b"b", b"c"]


def test_released_message_keeps_its_place(model: Model) -> None:
    queue = priority_queue(model)
    put(model, (LOW, b"a"), (HIGH, b"b"), (HIGH, b"c"), (LOW, b"d"))
    first = model.consumer(queue, 3)
    model.run()
    assert first.bodies == [b"b", b"c", b"a"]
    queue.release(first.entries[2], is_redelivered=True)
    queue.release(first.entries[0], is_redelivered=True)
    assert (queue.acquired_count, queue.available_count) == (1, 3)
    second = model.consumer(queue)
    model.run()
    assert [(each.message.body, each.is_redelivered) for each in second.entries] == [
        (b"b", True), (b"a", True), (b"d", False),
    ]  # fmt: skip


def test_consumers_are_served_in_turn(model: Model) -> None:
    queue = priority_queue(model)
    one, two, three, none = (model.consumer(queue, credit) for credit in (9, 9, 1, 0))
    put(model, *((LOW, b"%d" % number) for number in range(4)))
    model.run()
    assert (one.bodies, two.bodies, three.bodies, none.bodies) == ([b"0", b"3"], [b"1"], [b"2"], [])
    three.give(9)
    for number in range(4, 9):
        put(model, (HIGH, b"%d" % number))
        model.run()
    assert (one.bodies[2:], two.bodies[1:], three.bodies[1:]) == ([b"5", b"8"], [b"4", b"7"], [b"6"])


def test_a_consumer_that_declines_keeps_its_turn(model: Model) -> None:
    queue = priority_queue(model)
    first, *others = model.consumer(queue, wants=Wanting(b"a")), model.consumer(queue), model.consumer(queue)
    put(model, (HIGH, b"x1"), (LOW, b"a2"))
    model.run()
    assert (first.bodies, [each.bodies for each in others]) == ([b"a2"], [[b"x1"], []])


def test_expired_messages_are_dropped(model: Model) -> None:
    queue = priority_queue(model)
    put(model, (HIGH, b"a"), (LOW, b"c"), expires_at=model.now + 5)
    put(model, (LOW, b"b"))
    model.now += 10
    assert delivered(model, queue) == [b"b"]
    assert (queue.totals.expired, queue.totals.acquires) == (2, 1)


def test_a_dequeue_that_fails_while_delivering(model: Model) -> None:
    queue = priority_queue(model)

    def fails(entry: Entry) -> None:
        raise InternalError("its journal cannot be written")

    model.consumer(queue, on_delivery=fails)
    put(model, (LOW, b"a"), (HIGH, b"b"))
    with pytest.raises(InternalError):
        queue.dispatch()
    assert (queue.acquired_count, queue.available_count) == (1, 1)
    assert [entry.message.body for entry in queue.available()] == [b"a"]


@pytest.mark.parametrize(("most", "left"), [(1, b"abde"), (2, b"abd"), (3, b"bd"), (0, b"")])
def test_a_purge_begins_with_the_lowest_level(model: Model, most: int, left: bytes) -> None:
    queue = priority_queue(model)
    put(model, (4, b"a"), (9, b"b"), (0, b"c"), (5, b"d"), (0, b"e"))
    assert queue.purge(most)[0] == (most or 5)
    assert b"".join(bodies(queue)) == left


# ---- consumers of several kinds ----


def test_each_kind_is_asked_once_and_gets_its_messages_by_level(model: Model) -> None:
    queue = priority_queue(model)
    odd, even = Wanting(b"o"), Wanting(b"e")
    consumers = [model.consumer(queue, wants=each) for each in (odd, even, odd)]
    put(model, (0, b"o1"), (0, b"e2"), (5, b"o3"), (9, b"e4"), (9, b"x5"), (5, b"o6"))
    model.run()
    assert [each.bodies for each in consumers] == [[b"o3", b"o1"], [b"e4", b"e2"], [b"o6"]]
    assert bodies(queue)[-2:] == [b"x5", b"o6"]
    assert (odd.count, even.count) == (5, 3)  # not for what others have taken
    for _ in range(3):
        put(model, (9, b"x"))
        model.run()
    assert (odd.count, even.count) == (8, 6)


def test_only_released_messages_are_offered_to_a_kind_again(model: Model) -> None:
    queue = priority_queue(model)
    idle = Wanting(b"a")
    model.consumer(queue, wants=idle)
    put(model, *((number % 10, b"b") for number in range(1000)))
    while not queue.is_unfinished and idle.count < 1000:
        model.run()
    model.run()
    assert idle.count == 1000
    slow = model.consumer(queue, 20)
    model.run()
    for entry in list(slow.entries):
        queue.release(entry, is_redelivered=True)
    model.run()
    assert idle.count == 1020
    queue.release(slow.entries[3], is_redelivered=True)
    for entry in slow.entries[:5]:
        queue.acquire(entry)
        queue.release(entry, is_redelivered=True)
    model.run()
    assert idle.count == 1025


def test_a_slow_consumer_beside_one_that_wants_nothing_of_it(model: Model) -> None:
    queue = priority_queue(model, 3)
    check_a_slow_consumer(model, queue, lambda: put(model, *((number % 10, b"b") for number in range(MANY))))


@pytest.mark.parametrize("acquires", [True, False])
def test_a_long_queue_is_looked_through_in_several_ticks(model: Model, acquires: bool) -> None:
    queue = priority_queue(model)
    put(model, *((number % 10, b"a") for number in range(3000)), (LOW, b"b"))
    model.run()
    assert check_looking_through(model, queue, acquires=acquires) >= 6000 // MAX_DECLINED


def test_kinds_that_are_gone_are_forgotten(model: Model) -> None:
    queue = priority_queue(model)
    put(model, (LOW, b"x"))
    stays = model.consumer(queue, wants=Wanting(b"s"))
    for _ in range(2000):
        consumer = model.consumer(queue, wants=Wanting(b"n"))
        model.run()
        queue.remove_consumer(consumer)
    order = queue.order
    assert isinstance(order, PriorityOrder)
    assert len(order._readers) < 30
    put(model, (LOW, b"s"))
    model.run()
    assert stays.bodies == [b"s"]


def test_release_and_removal_leave_nothing_behind(model: Model) -> None:
    """A kind has declined messages, and has no consumer any more: others release and remove them."""
    queue = priority_queue(model)
    put(model, *((LOW, b"n") for _ in range(1000)))
    idle = model.consumer(queue, wants=Wanting(b"m"))
    model.run()
    order = queue.order
    assert isinstance(order, PriorityOrder)
    readers = order._readers[idle.kind]
    queue.remove_consumer(idle)
    consumer = model.consumer(queue, 1)
    while not queue.is_empty:
        model.run()
        entry = consumer.entries.pop()
        queue.release(entry, is_redelivered=True)
        consumer.give(1)
        model.run()
        assert consumer.entries.pop() is entry
        queue.dequeue(entry)
        consumer.give(1)
    assert len(readers[LOW]._positions) < 100
    assert not readers[LOW]._released


def test_holding_a_removed_entry_keeps_no_others_alive(model: Model) -> None:
    queue = priority_queue(model)
    gc.disable()
    try:
        entries = [queue.add(TrackedMessage("q", b"%d" % number), 0) for number in range(3)]
        references = [weakref.ref(entry.message) for entry in entries[1:]]
        for entry in entries:
            queue.acquire(entry)
            queue.dequeue(entry)
        del entry, entries[1:]
        assert [each() for each in references if each() is not None] == []
    finally:
        gc.enable()


class TrackedMessage(PlainMessage):
    """A message that can be referred to weakly."""


def test_a_queue_that_is_dropped_with_messages_frees_them_at_once(model: Model) -> None:
    order = PriorityOrder(4)
    gc.disable()
    try:
        queue = Queue("q", model.tick, order=order)
        del order
        entries = [queue.add(TrackedMessage("q", b"%d" % number), 0) for number in range(10)]
        consumer = model.consumer(queue, 5, wants=Wanting(b"7"))
        queue.dispatch()
        queue.dequeue(consumer.entries.pop())
        queue.remove_consumer(consumer)
        references = [weakref.ref(entry.message) for entry in entries]
        model.tick.ready.clear()
        del entries, queue, consumer
        assert [each() for each in references if each() is not None] == []
    finally:
        gc.enable()


# ---- ring queues ----


def test_a_ring_discards_the_oldest_of_the_lowest_level(model: Model) -> None:
    queue = priority_queue(model, **{"qpid.max_count": 3, "qpid.policy_type": "ring"})
    put(model, (5, b"a"), (0, b"b"), (9, b"c"), (0, b"d"))
    assert bodies(queue) == [b"a", b"c", b"d"]
    put(model, (5, b"e"))
    assert bodies(queue) == [b"a", b"c", b"e"]
    put(model, (4, b"f"))  # is discarded itself
    assert bodies(queue) == [b"a", b"c", b"e"]
    put(model, (5, b"g"))
    assert bodies(queue) == [b"c", b"e", b"g"]
    assert queue.totals.discarded == 4


def full_ring(model: Model, policy: str) -> tuple[Queue, Recorder]:
    """A ring of two messages, and a consumer that holds both."""
    queue = priority_queue(model, **{"qpid.max_count": 2, "qpid.policy_type": policy})
    put(model, (5, b"a"), (9, b"b"))
    consumer = model.consumer(queue, 2)
    model.run()
    return queue, consumer


def test_ring_discards_a_message_held_by_a_consumer(model: Model) -> None:
    queue, consumer = full_ring(model, "ring")
    put(model, (9, b"c"))
    assert bodies(queue) == [b"b", b"c"]
    for entry in consumer.entries:
        queue.release(entry, is_redelivered=True)
    assert delivered(model, queue) == [b"b", b"c"]


def test_strict_ring_keeps_a_message_held_by_a_consumer(model: Model) -> None:
    queue, consumer = full_ring(model, "ring_strict")
    with pytest.raises(ResourceLimitExceededError, match="a consumer holds its oldest message"):
        put(model, (9, b"c"))
    assert bodies(queue) == [b"a", b"b"]
    queue.release(consumer.entries[1], is_redelivered=True)
    put(model, (9, b"d"))
    assert bodies(queue) == [b"b", b"d"]


@pytest.mark.parametrize("limit", ["qpid.max_count", "qpid.max_size"])
def test_commit_discards_no_message_of_higher_priority(model: Model, limit: str) -> None:
    queue = priority_queue(model, **{limit: 2, "qpid.policy_type": "ring"})
    put(model, (5, b"a"), (5, b"b"))
    transaction = model.broker.begin_transaction(0)
    for priority, body in ((9, b"c"), (0, b"d"), (0, b"e")):
        message = model.message("q", body)
        message.handling = PLAIN_HANDLING._replace(priority=priority)
        transaction.publish(message, model.broker.default_host.exchanges[""])
    transaction.commit(lambda _error: None)
    model.sync()
    assert bodies(queue) == [b"b", b"c"]
    assert (queue.uncommitted, queue.uncommitted_bytes) == (0, 0)


# ---- fair share ----


def test_a_level_has_as_many_messages_as_its_limit(model: Model) -> None:
    queue = priority_queue(model, 4, **{"qpid.fairshare": 2, "qpid.fairshare-3": 3})
    put(model, *((9, b"%d" % number) for number in range(8)), (5, b"a"), (5, b"b"), (5, b"c"), (0, b"x"))
    assert b"".join(delivered(model, queue)) == b"012abx345c67"


def test_a_level_without_a_limit_has_its_turn_until_it_is_empty(model: Model) -> None:
    queue = priority_queue(model, 2, **{"x-qpid-fairshare-1": 1})
    put(model, *((9, b"%d" % number) for number in range(4)), *((0, b"abc"[at : at + 1]) for at in range(3)))
    assert b"".join(delivered(model, queue)) == b"0abc123"


def test_a_round_continues_when_consumers_come_back_and_restarts_when_nothing_is_left(model: Model) -> None:
    queue = priority_queue(model, 2, **{"qpid.fairshare": 3})
    put(model, *((9, b"%d" % number) for number in range(4)), (0, b"a"), (0, b"b"))
    found = [delivered(model, queue, 1) for _ in range(5)]
    assert [body for (body,) in found] == [b"0", b"1", b"2", b"a", b"b"]
    assert delivered(model, queue) == [b"3"]
    put(model, (0, b"a"))
    assert delivered(model, queue) == [b"a"]
    put(model, (0, b"b"), (9, b"5"))
    assert delivered(model, queue) == [b"5", b"b"]


def test_a_consumer_that_finds_nothing_begins_no_round_for_the_others(model: Model) -> None:
    queue = priority_queue(model, 2, **{"qpid.fairshare": 2})
    model.consumer(queue, wants=Wanting(b"nothing"))
    put(model, *((9, b"%d" % number) for number in range(4)), *((0, b"abcd"[at : at + 1]) for at in range(4)))
    consumer = model.consumer(queue, 1)
    for _ in range(8):
        model.run()
        consumer.give(1)
    assert b"".join(consumer.bodies) == b"01ab23cd"


def test_declined_messages_do_not_count_for_fairshare(model: Model) -> None:
    queue = priority_queue(model, 2, **{"qpid.fairshare": 2})
    put(model, *((9, b"x") for _ in range(5)), (9, b"1"), (0, b"a"), (9, b"2"), (9, b"3"))
    consumer = model.consumer(queue, wants=lambda entry: entry.message.body != b"x")
    model.run()
    assert b"".join(consumer.bodies) == b"12a3"


@given(st.lists(st.integers(0, 3), max_size=40), st.lists(st.integers(0, 4), min_size=4, max_size=4))
def test_fairshare_rounds_take_each_level_to_its_limit(levels: list[int], limits: list[int]) -> None:
    """Each round takes from each level, the highest first, as many as its limit, or all."""
    waiting = [levels.count(level) for level in range(4)]
    expected: list[int] = []
    left = list(waiting)
    while any(left):
        for level in (3, 2, 1, 0):
            count = min(left[level], limits[level] or left[level])
            expected += [level] * count
            left[level] -= count
    assert _taken(FairShare(limits), waiting) == expected


def _taken(share: FairShare, waiting: Sequence[int]) -> list[int]:
    found, left = [], list(waiting)
    while any(left):
        level = next(each for each in share.sequence() if left[each])
        assert sorted(share.sequence()) == list(range(len(left)))
        share.took(level)
        found.append(level)
        left[level] -= 1
    return found
