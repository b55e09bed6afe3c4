"""Settlement of messages while the store is deleting their queue: until that is done, a crash brings them back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from qstore.broker.model.caller import BROKER
from qstore.broker.model.errors import InternalError
from qstore.broker.model.queues.entry import Entry
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.settlement import Settled, accept, reject, release, unsubscribe
from tests.support.fake_store import FakeFailedError, Model, Recorder

Results = list[Exception | None]
Settle = Callable[[Model, list[tuple[Queue, Entry]], Results], Settled]


def _accept(model: Model, acquired: list[tuple[Queue, Entry]], results: Results) -> Settled:
    return accept(model.tick, acquired, results.append)


def _reject(model: Model, acquired: list[tuple[Queue, Entry]], results: Results) -> Settled:
    return reject(model.broker, acquired, results.append)


@pytest.fixture(params=[_accept, _reject])
def settle(request: pytest.FixtureRequest) -> Settle:
    chosen: Settle = request.param
    return chosen


def delivered(model: Model, name: str, *bodies: bytes, durable: bool = True) -> tuple[Queue, Recorder]:
    """A queue whose messages its consumer holds."""
    queue = model.queue(name, durable=durable)
    consumer: Recorder = model.consumer(queue, credit=len(bodies))
    for body in bodies:
        model.publish(name, body)
    model.sync()
    assert len(consumer.entries) == len(bodies)
    return queue, consumer


def test_it_is_done_when_the_queue_is_gone(settle: Settle) -> None:
    model, results = Model(), Results()
    queue, consumer = delivered(model, "q", b"1")
    queue.begin_deletion()
    assert settle(model, [(queue, consumer.entries[0])], results) is Settled.LATER
    model.sync()
    assert results == []
    assert queue.end_deletion() == [consumer]
    assert results == [None]
    assert len(queue.journal.live) == 1, "nothing is written to a journal that is being deleted"


def test_after_a_deletion_that_failed_it_is_dequeued(settle: Settle) -> None:
    model, results = Model(), Results()
    queue, consumer = delivered(model, "q", b"1", b"2")
    queue.begin_deletion()
    assert settle(model, [(queue, consumer.entries[0])], results) is Settled.LATER
    queue.undo_deletion()
    model.run()
    assert results == []
    model.sync()
    assert results == [None]
    assert list(queue.journal.live.values()) == [queue.journal.live[consumer.entries[1].rid]]
    assert queue.message_count == 1


def test_after_a_deletion_that_failed_the_journal_fails_too(settle: Settle) -> None:
    model, results = Model(), Results()
    queue, consumer = delivered(model, "q", b"1")
    queue.begin_deletion()
    settle(model, [(queue, consumer.entries[0])], results)
    queue.journal.has_failed = True
    queue.undo_deletion()
    model.run()
    assert [type(error) for error in results] == [InternalError]


def test_it_waits_for_records_of_other_queues_too(settle: Settle) -> None:
    model, results = Model(), Results()
    leaving, first = delivered(model, "leaving", b"1")
    other, second = delivered(model, "other", b"2")
    leaving.begin_deletion()
    acquired = [(leaving, first.entries[0]), (other, second.entries[0])]
    assert settle(model, acquired, results) is Settled.LATER
    leaving.end_deletion()
    model.run()
    assert results == []
    model.sync()
    assert results == [None]
    assert other.is_empty


def test_a_failed_write_to_another_queue_is_told(settle: Settle) -> None:
    model, results = Model(), Results()
    leaving, first = delivered(model, "leaving", b"1")
    other, second = delivered(model, "other", b"2")
    leaving.begin_deletion()
    settle(model, [(leaving, first.entries[0]), (other, second.entries[0])], results)
    model.run()
    model.store.complete(error=FakeFailedError("broken"))
    leaving.end_deletion()
    assert [str(error) for error in results] == ["broken"]


def test_what_no_crash_brings_back_does_not_wait(settle: Settle) -> None:
    model, results = Model(), Results()
    transient, first = delivered(model, "t", b"1", durable=False)
    gone, second = delivered(model, "g", b"2")
    transient.begin_deletion()
    gone.begin_deletion()
    gone.end_deletion()
    assert settle(model, [(transient, first.entries[0]), (gone, second.entries[0])], results) is Settled.NOW
    transient.end_deletion()
    assert results == []


def test_what_ends_while_the_store_deletes_is_not_restored() -> None:
    """A consumer that has gone gets no messages when the deletion fails, and those that it held are available again."""
    model = Model()
    queue, consumer = delivered(model, "q", b"1")
    stays: Recorder = model.consumer(queue, credit=5)
    queue.exclusive_consumer = consumer
    queue.begin_deletion()
    release([(queue, consumer.entries[0])], is_redelivered=True)
    unsubscribe(model.broker, BROKER, queue, consumer, "d")
    model.run()
    queue.undo_deletion()
    model.sync()
    assert queue.consumer_count == 1
    assert queue.exclusive_consumer is None
    assert stays.bodies == [b"1"]
