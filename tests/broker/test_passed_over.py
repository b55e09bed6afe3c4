"""Messages that were passed over: how often consumers are asked, and how much a queue walks over them."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from qstore.broker.model.queues.consumers import MAX_DECLINED, PassedOver
from qstore.broker.model.queues.entry import Entry
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.tick import MAX_DELIVERIES
from tests.support.fake_store import Model, Recorder

MANY = 20_000


class Wanting:
    """What consumers of one kind can take, by the first byte of the body; counts how often they were asked."""

    def __init__(self, first: bytes) -> None:
        self.first, self.count = first, 0

    def __call__(self, entry: Entry) -> bool:
        self.count += 1
        return bytes(entry.message.body[:1]) == self.first


def passed_over(queue: Queue) -> PassedOver:
    return queue._consumers._passed_over


def settle(queue: Queue, consumer: Recorder) -> int:
    """Dequeue what a consumer has got, and give it as much credit again."""
    entries = list(consumer.entries)
    consumer.entries.clear()
    for entry in entries:
        queue.dequeue(entry)
    consumer.give(len(entries))
    return len(entries)


def check_a_slow_consumer(model: Model, queue: Queue, publish: Callable[[], object]) -> None:
    """Beside one that wants nothing of `MANY` messages: neither is asked twice, and no dispatch walks over the rest."""
    idle, slow = Wanting(b"a"), Wanting(b"b")
    model.consumer(queue, wants=idle)
    consumer = model.consumer(queue, 2, wants=slow)
    publish()
    model.run()
    begin, count = time.process_time(), 0
    while taken := settle(queue, consumer):
        count += taken
        model.run()
    assert count == MANY
    assert (idle.count, slow.count) == (MANY, MANY)
    assert queue.is_empty
    assert time.process_time() - begin < 5.0


def check_looking_through(model: Model, queue: Queue, *, acquires: bool) -> int:
    """Two consumers look through a queue, of which one wants a single message. In how many ticks."""
    wanted, others = Wanting(b"b"), Wanting(b"c")
    consumers = [model.consumer(queue, wants=each, acquires=acquires) for each in (wanted, others)]
    count = queue.message_count
    ticks = before = 0
    while queue in model.tick.ready or queue.is_unfinished:
        model.tick.ready.clear()
        model.tick._unfinished.clear()
        model.tick.deliveries = MAX_DELIVERIES
        queue.dispatch()
        asked, before = wanted.count + others.count - before, wanted.count + others.count
        assert asked <= MAX_DECLINED + 2
        ticks += 1
    assert [each.bodies for each in consumers] == [[b"b"], []]
    assert wanted.count == count
    return ticks


def test_a_slow_consumer_beside_one_that_wants_no_message(model: Model) -> None:
    check_a_slow_consumer(model, model.queue("q"), lambda: model.publish("q", *[b"b"] * MANY))


@pytest.mark.parametrize("acquires", [True, False])
def test_a_long_queue_is_looked_through_in_several_ticks(model: Model, acquires: bool) -> None:
    queue = model.queue("q")
    model.publish("q", *[b"a"] * MANY, b"b")
    model.run()
    assert check_looking_through(model, queue, acquires=acquires) >= 2 * MANY // (MAX_DECLINED + 2)


def test_new_messages_wait_for_those_that_were_passed_over(model: Model) -> None:
    queue = model.queue("q")
    model.publish("q", *[b"a"] * MANY, b"b1")
    model.consumer(queue, wants=Wanting(b"x"))
    model.run()
    consumer = model.consumer(queue, wants=Wanting(b"b"))
    model.publish("q", b"b2")
    queue.dispatch()
    assert queue.is_unfinished
    assert consumer.bodies == []
    model.run()
    assert consumer.bodies == [b"b1", b"b2"]


def test_few_matches_in_many_messages(model: Model) -> None:
    queue = model.queue("q")
    wanted = Wanting(b"b")
    model.publish("q", *(b"b%d" % number if number % 1000 == 0 else b"a" for number in range(MANY)))
    consumer = model.consumer(queue, 1, wants=wanted)
    model.run()
    bodies = []
    while consumer.entries:
        bodies += consumer.bodies
        settle(queue, consumer)
        model.run()
    assert bodies == [b"b%d" % number for number in range(0, MANY, 1000)]
    assert wanted.count == MANY


def test_a_released_message_is_offered_again_and_nothing_else_is(model: Model) -> None:
    queue = model.queue("q")
    kinds = [Wanting(b"a"), Wanting(b"b")]
    consumers = [model.consumer(queue, 1, wants=kind) for kind in kinds]
    model.publish("q", b"a", *[b"x"] * MANY, b"b", *[b"x"] * MANY)
    model.run()
    assert [consumer.bodies for consumer in consumers] == [[b"a"], [b"b"]]
    for consumer in consumers:
        consumer.give(1)
    model.run()
    counts = [kind.count for kind in kinds]
    begin = time.process_time()
    for _ in range(200):
        for consumer in consumers:
            queue.release(consumer.entries.pop(), is_redelivered=True)
            consumer.give(1)
        model.run()
    assert [consumer.bodies for consumer in consumers] == [[b"a"], [b"b"]]
    assert all(kind.count - before <= 200 * 2 for kind, before in zip(kinds, counts, strict=True))
    assert time.process_time() - begin < 2.0
    assert len(passed_over(queue).entries) == 2 * MANY


def test_a_released_message_is_offered_before_later_ones(model: Model) -> None:
    queue = model.queue("q")
    anything, picky = Wanting(b"a"), Wanting(b"x")
    model.consumer(queue, wants=picky)
    first = model.consumer(queue, 2, wants=anything)
    model.publish("q", b"a1", b"a2", b"a3", b"a4")
    model.run()
    queue.release(first.entries[1], is_redelivered=True)
    queue.release(first.entries[0], is_redelivered=True)
    second = model.consumer(queue, 10, wants=anything)
    model.run()
    assert second.bodies == [b"a1", b"a2", b"a3", b"a4"]
    assert [entry.is_redelivered for entry in second.entries] == [True, True, False, False]


def test_consumers_of_one_kind_share_messages_passed_over(model: Model) -> None:
    queue = model.queue("q")
    kind = Wanting(b"a")
    model.consumer(queue, wants=Wanting(b"x"))
    model.publish("q", *(b"a%d" % number for number in range(6)))
    model.run()
    consumers = [model.consumer(queue, wants=kind) for _ in range(3)]
    model.run()
    assert [consumer.bodies for consumer in consumers] == [[b"a0", b"a3"], [b"a1", b"a4"], [b"a2", b"a5"]]
    assert kind.count == 6


def test_a_consumer_that_does_not_mind_is_offered_new_messages_as_ever(model: Model) -> None:
    """That something was passed over costs those nothing who can take what comes."""
    queue = model.queue("q")
    picky = Wanting(b"x")
    model.consumer(queue, wants=picky)
    model.publish("q", b"stuck")
    model.run()
    anything = model.consumer(queue, wants=Wanting(b"n"))
    model.run()
    model.publish("q", b"new", b"now", b"x")
    model.run()
    assert anything.bodies == [b"new", b"now"]
    assert picky.count <= 4


def test_message_released_during_delivery_goes_to_another(model: Model) -> None:
    """It was passed over before, and another consumer of the same kind gets it."""
    queue = model.queue("q")
    kind = Wanting(b"a")
    model.consumer(queue, wants=Wanting(b"x"))
    model.publish("q", b"a1", b"a2")
    model.run()
    failing = Recorder(queue, 5, wants=kind)

    def end(entry: Entry) -> None:
        queue.remove_consumer(failing)
        queue.release(entry, is_redelivered=False)

    failing.on_delivery = end
    queue.add_consumer(failing)
    queue.wake(failing)
    other = model.consumer(queue, wants=kind)
    model.run()
    assert other.bodies == [b"a1", b"a2"]


def test_nothing_is_kept_of_messages_that_are_gone(model: Model) -> None:
    queue = model.queue("q")
    picky = model.consumer(queue, 1, wants=Wanting(b"x"))
    later = model.consumer(queue, 0, wants=Wanting(b"a"))
    for _ in range(50):
        model.publish("q", *[b"a"] * 100)
        model.run()
        later.give(99)
        model.run()
        for entry in later.entries:
            queue.dequeue(entry)
        later.entries.clear()
    found = passed_over(queue)
    assert len(found.entries) == 50
    assert len(found._positions) <= 2 * 50 + 64 + 100
    queue.purge()
    assert not found.entries
    assert not found._positions
    assert not found._seen
    assert picky.is_waiting


def test_kinds_that_are_gone_are_forgotten_when_they_are_many(model: Model) -> None:
    queue = model.queue("q")
    model.publish("q", b"a")
    lasting = Wanting(b"z")
    model.consumer(queue, wants=lasting)
    model.run()
    for _ in range(1000):
        queue.remove_consumer(model.consumer(queue, wants=Wanting(b"x")))
        consumer = model.consumer(queue, wants=Wanting(b"y"))
        model.run()
        queue.remove_consumer(consumer)
    assert len(passed_over(queue)._seen) < 300
    model.publish("q", b"z")
    model.run()
    assert lasting.count == 2


def test_repeated_releases_do_not_pile_up_for_idle_consumers(model: Model) -> None:
    queue = model.queue("q")
    model.publish("q", b"a", b"stuck")
    waiting = model.consumer(queue, 1, wants=Wanting(b"b"))
    model.run()
    waiting.credit = 0
    queue._consumers.waiting.clear()
    waiting.is_waiting = False
    taker = model.consumer(queue, 1, wants=Wanting(b"a"))
    for _ in range(500):
        model.run()
        queue.release(taker.entries.pop(), is_redelivered=True)
        taker.give(1)
    found = passed_over(queue)
    assert all(len(positions) <= 2 for positions in found._again.values())
    assert len(found._positions) <= 2


def test_browsers_do_not_keep_takers_waiting(model: Model) -> None:
    queue = model.queue("q")
    model.publish("q", *[b"x"] * 100)
    for _ in range(4):
        model.consumer(queue, acquires=False)
    taker = model.consumer(queue)
    model.tick.deliveries = 20
    queue.dispatch()
    assert len(taker.entries) == 10
    model.run()
    assert len(taker.entries) == 100
