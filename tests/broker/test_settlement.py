"""Settlement of messages while their queue is being deleted: a crash before the end brings them back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from qstore.broker.model import settlement
from qstore.broker.model.caller import BROKER
from qstore.broker.model.errors import InternalError
from qstore.broker.model.exchanges.route import Binding
from qstore.broker.model.queues.entry import GONE, Entry
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


def test_settlement_ends_when_the_queue_is_deleted(settle: Settle) -> None:
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


def test_settlement_waits_for_records_of_other_queues(settle: Settle) -> None:
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


def test_a_failed_write_to_another_queue_is_reported(settle: Settle) -> None:
    model, results = Model(), Results()
    leaving, first = delivered(model, "leaving", b"1")
    other, second = delivered(model, "other", b"2")
    leaving.begin_deletion()
    settle(model, [(leaving, first.entries[0]), (other, second.entries[0])], results)
    model.run()
    model.store.complete(error=FakeFailedError("broken"))
    leaving.end_deletion()
    assert [str(error) for error in results] == ["broken"]


def test_settling_waits_only_for_recoverable_messages(settle: Settle) -> None:
    model, results = Model(), Results()
    transient, first = delivered(model, "t", b"1", durable=False)
    gone, second = delivered(model, "g", b"2")
    transient.begin_deletion()
    gone.begin_deletion()
    gone.end_deletion()
    assert settle(model, [(transient, first.entries[0]), (gone, second.entries[0])], results) is Settled.NOW
    transient.end_deletion()
    assert results == []


def test_consumer_ended_during_deletion_is_not_restored() -> None:
    """A consumer that has gone gets no messages when the deletion fails, and those that it held are available again."""
    model = Model()
    queue, consumer = delivered(model, "q", b"1")
    stays: Recorder = model.consumer(queue, credit=5)
    queue.exclusive_consumer = consumer
    queue.begin_deletion()
    release([(queue, consumer.entries[0])], is_redelivered=True)
    unsubscribe(model.broker.default_host, BROKER, queue, consumer, "d")
    model.run()
    queue.undo_deletion()
    model.sync()
    assert queue.consumer_count == 1
    assert queue.exclusive_consumer is None
    assert stays.bodies == [b"1"]


def test_a_message_that_cannot_be_dequeued_does_not_keep_those_before_it(settle: Settle) -> None:
    """They are settled nevertheless, without a confirmation."""
    model, results = Model(), Results()
    leaving, first = delivered(model, "leaving", b"1")
    failing, second = delivered(model, "failing", b"2")
    leaving.begin_deletion()
    failing.journal.has_failed = True
    with pytest.raises(InternalError):
        settle(model, [(leaving, first.entries[0]), (failing, second.entries[0])], results)
    leaving.undo_deletion()
    model.sync()
    assert (leaving.is_empty, failing.message_count) == (True, 1)
    assert results == []


# ---- messages that move to the alternate exchange ----


def moving(model: Model) -> tuple[Queue, Entry, Queue]:
    """A message that its consumer holds, of a queue with an alternate exchange; and the queue that it moves to."""
    queue, consumer = delivered(model, "q", b"1")
    target = model.queue("target", durable=True)
    queue.alternate = model.broker.default_host.exchanges["amq.fanout"]
    model.broker.default_host.exchanges["amq.fanout"].add(Binding(target, ""))
    return queue, consumer.entries[0], target


def begin_move(model: Model, queue: Queue, entry: Entry) -> Results:
    """What a deletion does with each message first."""
    moved = Results()
    model.broker.router.move(queue, entry, model.broker.default_host.exchanges["amq.fanout"], moved.append)
    model.run()
    assert moved == []
    return moved


def test_a_rejected_message_that_cannot_be_dequeued_holds_up_none_that_moves() -> None:
    model, results = Model(), Results()
    source, entry, target = moving(model)
    failing, consumer = delivered(model, "failing", b"2")
    failing.journal.has_failed = True
    with pytest.raises(InternalError):
        reject(model.broker, [(source, entry), (failing, consumer.entries[0])], results.append)
    model.sync()
    assert list(source.available()) == [entry]
    assert (target.is_empty, results) == (True, [])


@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_rejected_message_is_still_on_its_way_when_the_store_begins(is_deleted: bool) -> None:
    model, results = Model(), Results()
    queue, entry, target = moving(model)
    assert reject(model.broker, [(queue, entry)], results.append) is Settled.LATER
    queue.begin_deletion()
    model.sync()
    assert results == []
    assert (len(queue.journal.live), len(target.journal.live)) == (1, 1)
    if is_deleted:
        queue.end_deletion()
    else:
        queue.undo_deletion()
        model.run()
        assert results == []
        model.sync()
        assert queue.is_empty
    assert results == [None]
    assert len(queue.journal.live) == is_deleted
    assert not model.broker.router.is_moving(entry)


@pytest.mark.replaces
@pytest.mark.parametrize("when", ["never", "before", "between"])
def test_transient_messages_of_a_deleted_queue_are_not_moved_in_later_turns(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are not if the queue was deleted before they were rejected."""
    monkeypatch.setattr(settlement, "MAX_STEPS", -1)  # a turn for each
    model, results = Model(), Results()
    queue, consumer = delivered(model, "q", b"1", b"2", durable=False)
    target = model.queue("target")
    queue.alternate = model.broker.default_host.exchanges["amq.fanout"]
    queue.alternate.add(Binding(target, ""))
    entries = [(queue, entry) for entry in consumer.entries]
    if when == "before":
        queue.begin_deletion()
        queue.end_deletion()
    settled = reject(model.broker, entries, results.append)
    if when == "between":
        queue.begin_deletion()
        queue.end_deletion()
    model.run()
    assert target.message_count == (2 if when == "never" else 0)
    assert (settled, results) == ((Settled.NOW, []) if when == "before" else (Settled.LATER, [None]))


def test_a_rejected_message_cannot_leave_after_a_deletion_that_failed() -> None:
    """It can be moved once more: by another deletion, for example."""
    model, results = Model(), Results()
    queue, entry, _ = moving(model)
    reject(model.broker, [(queue, entry)], results.append)
    queue.begin_deletion()
    model.sync()
    queue.journal.has_failed = True
    queue.undo_deletion()
    assert [type(error) for error in results] == [InternalError]
    assert list(queue.outstanding()) == [entry]


def test_a_message_is_rejected_while_the_deletion_moves_it() -> None:
    model, results = Model(), Results()
    queue, entry, target = moving(model)
    moved = begin_move(model, queue, entry)
    assert reject(model.broker, [(queue, entry)], results.append) is Settled.LATER
    model.store.complete()
    model.run()
    assert (moved, results) == ([], [])
    model.sync()
    assert (moved, results) == ([None], [None])
    assert len(target.journal.live) == 1


def test_a_message_is_settled_when_it_has_moved_and_that_is_not_synced(settle: Settle) -> None:
    model, results, synced = Model(), Results(), Results()
    queue, entry, _ = moving(model)
    begin_move(model, queue, entry)
    model.store.complete()
    model.run()
    assert (entry.state, len(model.store.waiting)) == (GONE, 1)
    settled = settle(model, [(queue, entry)], results)
    assert settled is not Settled.NOW
    model.tick.when_synced(synced.append)
    model.run()
    assert (results, synced) == ([], [])
    assert queue.journal in model.store.flushed[-1]
    model.sync()
    assert synced == [None]
    assert results == ([None] if settled is Settled.LATER else [])
