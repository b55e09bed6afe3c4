"""A queue: whose tick it is, what it holds on to, and what it does when its journal has failed."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from collections.abc import Callable, Iterator

import pytest

from qstore.broker.model.errors import InternalError, ResourceLimitExceededError
from qstore.broker.model.memory import MESSAGE_OVERHEAD
from qstore.broker.model.queues.entry import ACQUIRED, Entry
from qstore.broker.model.queues.queue import Queue
from qstore.broker.settings import BrokerSettings
from tests.broker.wired_broker import PlainMessage
from tests.support import garbage
from tests.support.fake_store import Model, Recorder

OTHERS = 100_000


class TrackedMessage(PlainMessage):
    """A message that can be referred to weakly."""


@pytest.fixture
def no_collector() -> Iterator[None]:
    with garbage.no_collector():
        yield


# ---- fairness ----


def test_consumers_get_one_message_each_in_turn(model: Model) -> None:
    queue = model.queue("q")
    consumers = [model.consumer(queue) for _ in range(3)]
    model.publish("q", *(b"%d" % number for number in range(9)))
    model.run()
    assert [consumer.bodies for consumer in consumers] == [
        [b"0", b"3", b"6"],
        [b"1", b"4", b"7"],
        [b"2", b"5", b"8"],
    ]


def test_the_turn_continues_where_it_was(model: Model) -> None:
    """One message at a time is as fair as all at once."""
    queue = model.queue("q")
    consumers = [model.consumer(queue) for _ in range(3)]
    for number in range(30):
        model.publish("q", b"%d" % number)
        model.run()
    assert [len(consumer.entries) for consumer in consumers] == [10, 10, 10]


def test_a_consumer_without_credit_costs_others_nothing(model: Model) -> None:
    queue = model.queue("q")
    poor, rich, other = model.consumer(queue, 2), model.consumer(queue), model.consumer(queue)
    model.publish("q", *(b"%d" % number for number in range(12)))
    model.run()
    assert len(poor.entries) == 2
    assert abs(len(rich.entries) - len(other.entries)) <= 1
    assert len(rich.entries) + len(other.entries) == 10
    poor.give(100)
    model.publish("q", *(b"%d" % number for number in range(9)))
    model.run()
    assert len(poor.entries) == 5


def test_a_consumer_that_comes_and_goes_does_not_starve_the_others(model: Model) -> None:
    queue = model.queue("q")
    others = [model.consumer(queue), model.consumer(queue)]
    for _ in range(20):
        guest = model.consumer(queue)
        model.publish("q", b"1", b"2", b"3")
        model.run()
        queue.remove_consumer(guest)
        assert len(guest.entries) == 1
    assert [len(consumer.entries) for consumer in others] == [20, 20]


def test_declined_messages_go_to_another_consumer_in_order(model: Model) -> None:
    queue = model.queue("q")
    even = model.consumer(queue, wants=lambda entry: entry.position % 2 == 0)
    model.publish("q", *(b"%d" % number for number in range(1, 8)))
    model.run()
    assert even.bodies == [b"2", b"4", b"6"]
    anything = model.consumer(queue)
    model.run()
    assert anything.bodies == [b"1", b"3", b"5", b"7"]


class Looks:
    """What consumers of one kind can take; counts how often they were asked."""

    def __init__(self, *wanted: bytes) -> None:
        self.wanted, self.count = wanted, 0

    def __call__(self, entry: Entry) -> bool:
        self.count += 1
        return entry.message.body in self.wanted


def test_unwanted_message_is_checked_once_for_each_kind(model: Model) -> None:
    queue = model.queue("q")
    model.publish("q", *[b"stuck"] * 1000)
    some, more = Looks(b"some"), Looks(b"some", b"more")
    consumers = [model.consumer(queue, 1, wants=some), model.consumer(queue, 1, wants=some)]
    model.run()
    assert some.count == 1000
    for _ in range(100):
        model.publish("q", b"some")
        model.run()
        for consumer in consumers:
            if not consumer.credit:
                queue.release(consumer.entries[-1], is_redelivered=True)
                consumer.give(1)
        model.run()
        for consumer in consumers:
            if not consumer.credit:
                queue.dequeue(consumer.entries[-1])
                consumer.give(1)
    assert some.count <= 1000 + 100 * 3
    model.consumer(queue, 5, wants=more)
    model.run()
    assert more.count == 1000
    assert queue.message_count == 1000


def test_message_passed_over_keeps_its_place(model: Model) -> None:
    queue = model.queue("q")
    model.consumer(queue, wants=Looks(b"2"))
    browser = model.consumer(queue, acquires=False)
    model.publish("q", b"1", b"2", b"3", b"4")
    model.run()
    assert browser.bodies == [b"1", b"2", b"3", b"4"]
    assert queue.acquire(browser.entries[2])
    anything = model.consumer(queue, 1)
    model.run()
    assert anything.bodies == [b"1"]
    queue.release(anything.entries[0], is_redelivered=True)
    queue.release(browser.entries[2], is_redelivered=False)
    anything.give(3)
    model.run()
    assert anything.bodies == [b"1", b"1", b"3", b"4"]


def test_message_passed_over_can_be_purged_and_expires(model: Model) -> None:
    queue = model.queue("q")
    model.consumer(queue, wants=Looks())
    queue.publish(model.message("q", b"1", expires_at=model.now + 1))
    model.publish("q", b"2", b"3")
    model.run()
    model.now += 2
    assert queue.expire() == 1
    assert queue.purge(1) == (1, False)
    anything = model.consumer(queue)
    model.run()
    assert anything.bodies == [b"3"]


# ---- the disk ----


def test_a_message_is_offered_when_it_is_on_the_disk_and_nothing_overtakes_it(model: Model) -> None:
    queue = model.queue("q", durable=True)
    consumer = model.consumer(queue)
    model.publish("q", b"1", persistent=False)
    model.publish("q", b"2")
    model.publish("q", b"3", persistent=False)
    model.run()
    assert consumer.bodies == [b"1"]
    model.publish("q", b"4")
    model.run()
    model.store.complete()
    model.run()
    assert consumer.bodies == [b"1", b"2", b"3"]
    model.store.complete()
    model.run()
    assert consumer.bodies == [b"1", b"2", b"3", b"4"]


def test_flushes_that_end_in_another_order(model: Model) -> None:
    queue = model.queue("q", durable=True)
    consumer = model.consumer(queue)
    for body in (b"1", b"2", b"3"):
        model.publish("q", body)
        model.run()
    model.store.complete(2)
    model.run()
    model.store.complete(1)
    model.run()
    assert consumer.bodies == []
    model.store.complete(0)
    model.run()
    assert consumer.bodies == [b"1", b"2", b"3"]


def test_expiry_in_a_failed_journal_does_not_stop_delivery(model: Model) -> None:
    """Its removal cannot be written: it is not delivered, and all others are."""
    failed, other = model.queue("failed", durable=True), model.queue("other")
    model.broker.router.publish(
        model.message("failed", b"old", expires_at=model.now + 1), model.broker.default_host.exchanges[""]
    )
    model.sync()
    model.publish("failed", b"transient", persistent=False)
    model.publish("other", b"1")
    assert failed.journal is not None
    failed.journal.has_failed = True
    model.now += 2
    consumers = [model.consumer(failed), model.consumer(other)]
    model.run()
    assert [consumer.bodies for consumer in consumers] == [[b"transient"], [b"1"]]
    assert model.broker.expire() == 0


def test_expiry_continues_if_one_journal_has_failed(model: Model) -> None:
    for name in ("failed", "healthy"):
        model.queue(name, durable=True)
        model.broker.router.publish(
            model.message(name, b"old", expires_at=model.now + 1), model.broker.default_host.exchanges[""]
        )
    model.sync()
    model.broker.default_host.queues["failed"].journal.has_failed = True
    model.now += 2
    model.broker.expire()
    assert model.broker.default_host.queues["healthy"].is_empty
    assert list(model.broker.default_host.queues["failed"].available()) == []


def test_failed_journal_does_not_stop_other_consumers(model: Model) -> None:
    failed, other = model.queue("failed", durable=True), model.queue("other")
    model.publish("failed", b"1")
    model.sync()
    failed.journal.has_failed = True
    model.publish("other", b"2")
    model.consumer(failed, on_delivery=failed.dequeue)
    consumer = model.consumer(other)
    model.run()
    assert consumer.bodies == [b"2"]
    (entry,) = failed.entries()
    assert entry.state == ACQUIRED  # it comes back after a restart, and not before


def test_a_removal_that_cannot_be_written_is_an_error_of_the_model(model: Model) -> None:
    queue = model.queue("q", durable=True)
    consumer = model.consumer(queue)
    model.publish("q", b"1")
    model.sync()
    queue.journal.has_failed = True
    with pytest.raises(InternalError, match="the disk of q has failed"):
        queue.dequeue(consumer.entries[0])
    assert (queue.message_count, queue.acquired_count) == (1, 1)
    with pytest.raises(InternalError, match="the disk of q has failed"):
        queue.publish(model.message("q", b"2"))
    assert queue.message_count == 1


def test_a_full_journal_takes_nothing_and_reports_it(model: Model) -> None:
    queue = model.queue("q", durable=True)
    queue.journal.is_full = True
    with pytest.raises(ResourceLimitExceededError, match='Enqueue capacity threshold exceeded on queue "q"'):
        queue.publish(model.message("q", b"1"))
    assert queue.is_empty
    assert not model.tick.written
    assert not model.tick.journals


def test_content_has_its_limit() -> None:
    model = Model(BrokerSettings(queue_limit_bytes=3 * MESSAGE_OVERHEAD + 10))
    queue = model.queue("q")
    model.publish("q", b"1234", b"5678")
    with pytest.raises(ResourceLimitExceededError, match='Maximum depth exceeded on queue "q"'):
        model.publish("q", b"abc")
    model.publish("q", b"ab")
    assert (queue.message_count, queue.message_bytes) == (3, 10)
    assert queue.purge() == (3, False)
    model.publish("q", bytes(2 * MESSAGE_OVERHEAD + 10))


def test_messages_without_content_have_their_limit() -> None:
    model = Model(BrokerSettings(queue_limit_bytes=3 * MESSAGE_OVERHEAD))
    queue = model.queue("q")
    model.publish("q", b"", b"", b"")
    with pytest.raises(ResourceLimitExceededError, match='Maximum depth exceeded on queue "q"'):
        model.publish("q", b"")
    assert (queue.message_count, queue.message_bytes, queue.memory) == (3, 0, 3 * MESSAGE_OVERHEAD)


# ---- coming back ----


def test_released_message_returns_to_its_place(model: Model) -> None:
    queue = model.queue("q")
    first = model.consumer(queue, 5)
    model.publish("q", *(b"%d" % number for number in range(6)))
    model.run()
    for index in (3, 1):
        queue.release(first.entries[index], is_redelivered=index == 1)
    second = model.consumer(queue)
    model.run()
    assert second.bodies == [b"1", b"3", b"5"]
    assert [entry.is_redelivered for entry in second.entries] == [True, False, False]


def test_browsed_and_acquired_message_is_not_offered_again(model: Model) -> None:
    queue = model.queue("q")
    browser = model.consumer(queue, acquires=False)
    model.publish("q", b"1", b"2")
    model.run()
    assert queue.acquire(browser.entries[0])
    assert not queue.acquire(browser.entries[0])
    consumer = model.consumer(queue)
    model.run()
    assert consumer.bodies == [b"2"]
    assert not queue.acquire(browser.entries[1])


def test_release_of_a_removed_entry_does_nothing(model: Model) -> None:
    queue = model.queue("q")
    consumer = model.consumer(queue)
    model.publish("q", b"1", b"2")
    model.run()
    entry = consumer.entries[0]
    queue.dequeue(entry)
    queue.release(entry, is_redelivered=True)
    assert (queue.message_count, queue.acquired_count) == (1, 1)
    assert entry not in list(queue.entries())


def test_browser_sees_each_message_once_and_takes_none(model: Model) -> None:
    queue = model.queue("q")
    model.publish("q", *(b"%d" % number for number in range(5)))
    browser = model.consumer(queue, 2, acquires=False)
    model.run()
    assert browser.bodies == [b"0", b"1"]
    taker = model.consumer(queue, on_delivery=queue.dequeue)
    model.run()
    assert queue.is_empty
    queue.remove_consumer(taker)
    model.publish("q", b"5")
    browser.give(10)
    model.run()
    assert browser.bodies == [b"0", b"1", b"5"]
    assert queue.message_count == 1


# ---- the end ----


def test_deleted(model: Model) -> None:
    queue = model.queue("q")
    consumers: list[Recorder] = [model.consumer(queue), model.consumer(queue, acquires=False)]
    model.run()
    queue.begin_deletion()
    assert (queue.is_deleted, queue.deletion is not None, queue.is_gone) == (True, True, False)
    assert set(queue.end_deletion()) == set(consumers)
    assert (queue.is_deleted, queue.deletion is not None, queue.is_gone) == (True, False, True)
    assert queue.consumer_count == 0
    assert not any(consumer.is_waiting for consumer in consumers)
    queue.dispatch()


# ---- what it holds on to ----


@pytest.mark.usefixtures("no_collector")
def test_dequeued_entry_behind_a_stuck_one_is_freed_at_once(model: Model) -> None:
    """A browser waits at the head, a consumer keeps a message there, and another remembers one that is gone: all others
    come and go."""
    queue = model.queue("q")
    stuck_browser = model.consumer(queue, 1, acquires=False)
    stuck_taker = model.consumer(queue, 1)
    publish(queue, 2)
    model.run()
    assert len(stuck_taker.entries) == 1
    assert stuck_browser.cursor.position == 2
    taken: list[Entry] = []
    model.consumer(queue, on_delivery=taken.append)
    model.run()
    remembered = taken.pop()
    queue.dequeue(remembered)
    alive: list[weakref.ref[TrackedMessage]] = []
    most_alive = 0
    for _ in range(OTHERS // 1000):
        alive += publish(queue, 1000)
        model.run()
        for entry in taken:
            queue.dequeue(entry)
        del entry
        taken.clear()
        alive = [reference for reference in alive if reference() is not None]
        most_alive = max(most_alive, len(alive))
    assert most_alive == 0
    assert queue.message_count == 1
    assert stuck_taker.entries[0].position == 1
    assert stuck_browser.cursor.position == OTHERS + 3  # the end
    assert remembered.position == 2
    assert sum(type(each) is Entry for each in gc.get_objects()) < 10


def test_queues_that_are_dropped_leave_nothing_to_be_collected(model: Model, no_collector: None) -> None:
    for number in range(100):
        model.queue(f"q{number}")
        model.broker.default_host.queues.pop(f"q{number}")
    assert sum(type(each) is Entry for each in gc.get_objects()) < 10


def publish(queue: Queue, count: int) -> list[weakref.ref[TrackedMessage]]:
    references = []
    for _ in range(count):
        message = TrackedMessage("q", b"x", persistent=False)
        references.append(weakref.ref(message))
        queue.publish(message)
    return references


@pytest.mark.usefixtures("no_collector")
def test_purged_or_expired_entry_is_freed_at_once(model: Model) -> None:
    queue = model.queue("q")
    references = publish(queue, 10)
    assert queue.purge() == (10, False)
    assert [reference() for reference in references] == [None] * 10
    references = publish(queue, 10)
    for entry in queue.entries():
        entry.message.expires_at = 1.0
    del entry
    assert queue.expire() == 10
    assert [reference() for reference in references] == [None] * 10


@pytest.mark.parametrize("removes", [Queue.purge, Queue.expire])
def test_a_full_queue_is_emptied_without_memory(model: Model, removes: Callable[[Queue], object]) -> None:
    """It may be the way out when all memory is taken."""
    queue = model.queue("q")
    message = PlainMessage("q", b"x", persistent=False)
    message.expires_at = 1.0
    for _ in range(20_000):
        queue.publish(message)
    tracemalloc.start()
    try:
        removes(queue)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert queue.message_count == 0
    assert most < 20_000  # bytes: less than one for each


@pytest.mark.usefixtures("no_collector")
def test_a_subscription_that_is_cancelled_keeps_nothing(model: Model) -> None:
    queue = model.queue("q")
    browser = model.consumer(queue, 0, acquires=False)
    (reference,) = publish(queue, 1)
    model.run()
    queue.remove_consumer(browser)
    queue.purge()
    assert reference() is None


@pytest.mark.usefixtures("no_collector")
def test_a_queue_that_is_deleted_lets_go_of_its_messages(model: Model) -> None:
    """They are linked both ways: the garbage collector would free them only much later."""
    references = publish(model.queue("q"), 100)
    model.run()
    queue = model.broker.default_host.queues.pop("q")
    queue.begin_deletion()
    queue.end_deletion()
    del queue
    assert [reference() for reference in references] == [None] * 100
