"""Local transactions: all of it or nothing, over several queues, and unseen until it is on the disk."""

from __future__ import annotations

import pytest

from qstore.broker.model.errors import InternalError, ModelError, ResourceDeletedError, ResourceLimitExceededError
from qstore.broker.model.exchanges.route import Binding
from qstore.broker.model.memory import MESSAGE_OVERHEAD
from qstore.broker.model.queues.entry import GONE, MOVING, Entry
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.transactions.local import LocalTransaction
from qstore.broker.settings import BrokerSettings
from tests.support.fake_store import FakeFailedError, Model, Recorder

Results = list[ModelError | None]


@pytest.fixture
def results() -> Results:
    return []


def begin(model: Model, max_bytes: int = 0) -> LocalTransaction:
    return model.broker.begin_transaction(max_bytes)


def publish(model: Model, transaction: LocalTransaction, key: str, body: bytes, *, persistent: bool = True) -> None:
    transaction.publish(model.message(key, body, persistent=persistent), model.broker.default_host.exchanges[""])


def bodies(queue: Queue) -> list[bytes]:
    return [entry.message.body for entry in queue.entries()]


def taken(model: Model, queue: Queue, *contents: bytes, persistent: bool = True) -> Recorder:
    """One who has taken these messages."""
    model.publish(queue.name, *contents, persistent=persistent)
    consumer = model.consumer(queue, len(contents))
    model.sync()
    assert consumer.bodies == list(contents)
    return consumer


def test_nothing_happens_before_commit(model: Model) -> None:
    source, target = model.queue("source", durable=True), model.queue("target", durable=True)
    consumer = taken(model, source, b"1")
    transaction = begin(model)
    publish(model, transaction, "target", b"2")
    transaction.accept(source, consumer.entries[0])
    model.sync()
    assert target.is_empty
    assert (source.message_count, source.acquired_count) == (1, 1)
    assert len(source.journal.live) == 1
    assert target.journal.live == {}


def test_commit_is_seen_when_it_is_on_the_disk(model: Model, results: Results) -> None:
    queues = [model.queue(name, durable=True) for name in ("a", "b")] + [model.queue("c")]
    source = model.queue("source", durable=True)
    taker = taken(model, source, b"1", b"2")
    consumers = [model.consumer(queue) for queue in queues]
    transaction = begin(model)
    for name in "abcab":
        publish(model, transaction, name, name.encode())
    for entry in taker.entries:
        transaction.accept(source, entry)
    transaction.commit(results.append)
    model.run()
    assert results == []
    assert [consumer.bodies for consumer in consumers] == [[], [], []]
    assert source.message_count == 2
    model.sync()
    assert results == [None]
    assert [consumer.bodies for consumer in consumers] == [[b"a", b"a"], [b"b", b"b"], [b"c"]]
    assert (source.message_count, source.acquired_count) == (0, 0)
    assert source.journal.live == {}


def test_the_flush_of_a_tick_waits_for_no_journal_that_only_transactions_wrote(model: Model, results: Results) -> None:
    """They share rounds of syncs in the store, which other waiters of one of the journals would break up."""
    model.queue("a", durable=True)
    b, c = model.queue("b", durable=True), model.queue("c", durable=True)

    def commit() -> None:
        transaction = begin(model)
        for name in "ab":
            publish(model, transaction, name, b"1")
        transaction.commit(results.append)

    commit()
    model.loop.run()
    assert model.store.flushed == []
    assert model.store.may_block, "it is written at the end of the tick"
    commit()
    model.publish("c", b"2")
    model.publish("b", b"2")
    commit()
    model.run()
    assert [set(journals) for journals in model.store.flushed] == [{b.journal, c.journal}]
    model.sync()
    assert results == [None] * 3


def test_a_callback_of_a_tick_waits_for_its_transactions(model: Model, results: Results) -> None:
    queue = model.queue("q", durable=True)
    transaction = begin(model)
    publish(model, transaction, "q", b"1")
    transaction.commit(results.append)
    synced: list[Exception | None] = []
    model.tick.when_synced(synced.append)
    model.run()
    assert model.store.flushed == [[queue.journal]]
    assert synced == []
    model.sync()
    assert synced == [None]


def test_nothing_that_came_later_overtakes(model: Model, results: Results) -> None:
    durable, plain = model.queue("durable", durable=True), model.queue("plain")
    consumers = [model.consumer(durable), model.consumer(plain)]
    transaction = begin(model)
    publish(model, transaction, "durable", b"1")
    publish(model, transaction, "plain", b"1")
    transaction.commit(results.append)
    for name in ("durable", "plain"):
        model.publish(name, b"2", persistent=False)
    model.publish("durable", b"3")
    model.run()
    model.store.complete(len(model.store.waiting) - 1)  # the flush of 3 is done first
    model.run()
    assert [consumer.bodies for consumer in consumers] == [[], []]
    model.sync()
    assert [consumer.bodies for consumer in consumers] == [[b"1", b"2", b"3"], [b"1", b"2"]]


def test_transient_commit_does_not_release_unsynced_messages(model: Model, results: Results) -> None:
    """In one tick: a message that waits for the disk, then a commit that need not."""
    queue = model.queue("q", durable=True)
    consumer = model.consumer(queue)
    model.publish("q", b"1")
    transaction = begin(model)
    publish(model, transaction, "q", b"2", persistent=False)
    transaction.commit(results.append)
    model.run()
    assert results == [None]
    assert consumer.bodies == []
    model.sync()
    assert consumer.bodies == [b"1", b"2"]


def test_commit_elsewhere_does_not_release_unsynced_messages(model: Model, results: Results) -> None:
    """As before, but the commit waits for another journal, which is quicker."""
    queue = model.queue("q", durable=True)
    model.queue("other", durable=True)
    consumer = model.consumer(queue)
    model.publish("q", b"1")
    transaction = begin(model)
    publish(model, transaction, "q", b"2", persistent=False)
    publish(model, transaction, "other", b"2")
    transaction.commit(results.append)
    model.run()
    model.store.complete()
    model.run()
    assert results == [None]
    assert consumer.bodies == []
    model.sync()
    assert consumer.bodies == [b"1", b"2"]


def test_quicker_commit_does_not_release_unsynced_messages(model: Model, results: Results) -> None:
    """The flush of what came first begins last, at the end of the tick, and is waited for all the same."""
    queue = model.queue("q", durable=True)
    consumer = model.consumer(queue)
    model.publish("q", b"1")
    for name, body in (("slow", b"2"), ("quick", b"3")):
        model.queue(name, durable=True)
        transaction = begin(model)
        publish(model, transaction, "q", body, persistent=False)
        publish(model, transaction, name, body)
        transaction.commit(results.append)
    model.run()
    model.store.complete(1)
    model.run()
    assert results == [None]
    assert consumer.bodies == []
    model.sync()
    assert consumer.bodies == [b"1", b"2", b"3"]


def test_committing_message_is_not_purged_expired_or_browsed(model: Model, results: Results) -> None:
    queue = model.queue("q", durable=True)
    browser = model.consumer(queue, acquires=False)
    transaction = begin(model)
    publish(model, transaction, "q", b"1")
    message = model.message("q", b"2", expires_at=model.now + 1)
    transaction.publish(message, model.broker.default_host.exchanges[""])
    transaction.commit(results.append)
    model.now += 2
    assert queue.purge() == (0, False)
    assert queue.expire() == 0
    assert list(queue.available()) == []
    assert list(queue.delivered_rids()) == []
    model.sync()
    assert results == [None]
    assert browser.bodies == [b"1"]
    assert queue.expire() == 1


def test_room_is_looked_for_first(results: Results) -> None:
    model = Model(BrokerSettings(queue_limit_bytes=2 * MESSAGE_OVERHEAD + 10))
    durable, small = model.queue("durable", durable=True), model.queue("small")
    consumer = taken(model, durable, b"old")
    model.publish("small", b"1234567", persistent=False)
    transaction = begin(model)
    publish(model, transaction, "durable", b"new")
    publish(model, transaction, "small", b"12")
    publish(model, transaction, "small", b"")
    transaction.accept(durable, consumer.entries[0])
    with pytest.raises(ResourceLimitExceededError, match='Maximum depth exceeded on queue "small"'):
        transaction.commit(results.append)
    model.sync()
    assert results == []
    assert bodies(durable) == [b"old"]
    assert bodies(small) == [b"1234567"]
    assert durable.acquired_count == 1
    assert len(durable.journal.live) == 1


def test_a_full_journal_refuses_the_whole(model: Model, results: Results) -> None:
    queues = [model.queue("a", durable=True), model.queue("full", durable=True), model.queue("plain")]
    queues[1].journal.is_full = True
    consumer = taken(model, queues[0], b"old")
    transaction = begin(model)
    for queue in queues:
        publish(model, transaction, queue.name, b"new")
    transaction.accept(queues[0], consumer.entries[0])
    with pytest.raises(ResourceLimitExceededError, match='threshold exceeded on queue "full"'):
        transaction.commit(results.append)
    model.sync()
    assert [bodies(queue) for queue in queues] == [[b"old"], [], []]
    assert [len(queue.journal.live) for queue in queues[:2]] == [1, 0]
    for queue in queues:  # and no barrier is left standing
        model.publish(queue.name, b"next", persistent=False)
    consumers = [model.consumer(queue) for queue in queues]
    model.sync()
    assert [consumer.bodies for consumer in consumers] == [[b"next"]] * 3


def test_a_journal_that_has_failed_refuses_the_whole(model: Model, results: Results) -> None:
    queue, failed = model.queue("q", durable=True), model.queue("failed", durable=True)
    failed.journal.has_failed = True
    transaction = begin(model)
    publish(model, transaction, "q", b"1")
    publish(model, transaction, "failed", b"1")
    with pytest.raises(InternalError, match="the disk of failed has failed"):
        transaction.commit(results.append)
    assert queue.is_empty
    assert results == []


def test_commit_of_unknown_outcome_hides_only_durable_messages(model: Model, results: Results) -> None:
    """Stored messages reappear only after a restart, others never do, and the rest goes on."""
    durable, plain = model.queue("durable", durable=True), model.queue("plain")
    takers = [taken(model, durable, b"kept"), taken(model, plain, b"not kept")]
    consumers = [model.consumer(durable), model.consumer(plain)]
    transaction = begin(model)
    for queue, taker in zip((durable, plain), takers, strict=True):
        publish(model, transaction, queue.name, b"new")
        transaction.accept(queue, taker.entries[0])
    transaction.commit(results.append)
    model.run()
    model.store.complete(error=FakeFailedError("gone"))
    model.run()
    (result,) = results
    assert isinstance(result, InternalError)
    assert str(result) == "the outcome of the transaction is unknown: gone"
    model.sync()
    for name in ("durable", "plain"):
        model.publish(name, b"next")
    model.sync()
    assert [consumer.bodies for consumer in consumers] == [[b"next"], [b"not kept", b"next"]]
    assert consumers[1].entries[0].is_redelivered
    assert (plain.message_count, plain.acquired_count) == (2, 2)
    assert durable.acquired_count == 2  # kept and next


def test_rollback_is_to_forget(model: Model, results: Results) -> None:
    """A transaction that is not committed has left nothing: what it accepted can be released."""
    source, target = model.queue("source", durable=True), model.queue("target", durable=True)
    consumer = taken(model, source, b"1")
    transaction = begin(model)
    publish(model, transaction, "target", b"2")
    transaction.accept(source, consumer.entries[0])
    del transaction
    source.release(consumer.entries[0], is_redelivered=True)
    again = model.consumer(source)
    model.sync()
    assert target.is_empty
    assert again.bodies == [b"1"]
    assert again.entries[0].is_redelivered


def test_routes_are_those_of_the_publishing(model: Model, results: Results) -> None:
    fanout = model.broker.default_host.exchanges["amq.fanout"]
    before, after = model.queue("before", durable=True), model.queue("after", durable=True)
    fanout.bind(before, "")
    transaction = begin(model)
    transaction.publish(model.message("x", b"1"), fanout)
    fanout.bind(after, "")
    transaction.commit(results.append)
    model.sync()
    assert results == [None]
    assert (bodies(before), bodies(after)) == ([b"1"], [])


@pytest.mark.parametrize("has_change", [False, True], ids=["one route", "two routes"])
def test_messages_for_a_single_queue_are_counted_and_keep_their_order(
    model: Model, results: Results, *, has_change: bool
) -> None:
    queue, exchange = model.queue("a", durable=True), model.broker.default_host.exchanges[""]
    transaction = begin(model)
    publish(model, transaction, "a", b"1")
    publish(model, transaction, "a", b"2")
    if has_change:
        model.queue("b")  # routes are found anew
    publish(model, transaction, "a", b"3")
    assert (exchange.counts.messages_received, exchange.counts.bytes_routed) == (3, 3)
    transaction.commit(results.append)
    model.sync()
    assert (results, bodies(queue)) == ([None], [b"1", b"2", b"3"])


def test_a_queue_that_is_gone_by_then_is_left_out(model: Model, results: Results) -> None:
    gone, other = model.queue("gone", durable=True), model.queue("other", durable=True)
    consumer = taken(model, gone, b"old")
    transaction = begin(model)
    publish(model, transaction, "gone", b"1")
    publish(model, transaction, "other", b"1")
    transaction.accept(gone, consumer.entries[0])
    gone.begin_deletion()
    gone.end_deletion()
    transaction.commit(results.append)
    model.sync()
    assert results == [None]
    assert bodies(other) == [b"1"]


def test_a_message_of_a_queue_that_the_store_is_deleting(model: Model, results: Results) -> None:
    """After a crash it may be there again, and the rest of the transaction must not be without it."""
    leaving, other = model.queue("leaving", durable=True), model.queue("other", durable=True)
    consumer = taken(model, leaving, b"old")
    transaction = begin(model)
    publish(model, transaction, "other", b"1")
    transaction.accept(leaving, consumer.entries[0])
    leaving.begin_deletion()
    with pytest.raises(ResourceDeletedError, match="Queue leaving is being deleted"):
        transaction.commit(results.append)
    model.sync()
    assert (results, bodies(other)) == ([], [])
    leaving.undo_deletion()
    transaction.commit(results.append)
    model.sync()
    assert results == [None]
    assert (bodies(leaving), bodies(other)) == ([], [b"1"])


def test_a_message_that_just_moved_because_its_queue_is_deleted(model: Model, results: Results) -> None:
    """As long as that is not on the disk, a crash could bring it back."""
    leaving = model.queue("leaving", durable=True)
    entry = taken(model, leaving, b"old").entries[0]
    transaction = begin(model)
    transaction.accept(leaving, entry)
    model.broker.router.move(leaving, entry, model.broker.default_host.exchanges["amq.fanout"], lambda _: None)
    model.run()
    assert (entry.state, model.store.waiting != []) == (GONE, True)
    with pytest.raises(ResourceDeletedError, match="Queue leaving is being deleted"):
        transaction.commit(results.append)
    model.sync()
    transaction.commit(results.append)
    assert results == [None]


def test_a_deletion_that_fails_while_it_is_committed(model: Model, results: Results) -> None:
    queue = model.queue("q", durable=True)
    entry = taken(model, queue, b"old").entries[0]
    transaction = begin(model)
    transaction.accept(queue, entry)
    transaction.commit(results.append)
    model.run()
    queue.begin_deletion()
    model.sync()
    queue.undo_deletion()
    assert results == [None]
    assert (entry.state, queue.is_empty, list(queue.delivered_rids())) == (GONE, True, [])


def test_a_queue_that_goes_while_it_is_committed(model: Model, results: Results) -> None:
    gone, other = model.queue("gone", durable=True), model.queue("other", durable=True)
    consumer = taken(model, gone, b"old")
    transaction = begin(model)
    publish(model, transaction, "gone", b"1")
    publish(model, transaction, "other", b"1")
    transaction.accept(gone, consumer.entries[0])
    transaction.commit(results.append)
    model.run()
    gone.begin_deletion()
    gone.end_deletion()
    model.sync()
    assert results == [None]
    assert bodies(other) == [b"1"]


def test_an_empty_transaction_is_done_at_once(model: Model, results: Results) -> None:
    begin(model).commit(results.append)
    assert results == [None]
    assert model.store.waiting == []


def test_a_transaction_has_its_limit(model: Model) -> None:
    model.queue("q")
    limit = MESSAGE_OVERHEAD + 5
    transaction = begin(model, limit)
    publish(model, transaction, "q", b"12345")
    with pytest.raises(ResourceLimitExceededError, match=f"larger than {limit} bytes"):
        publish(model, transaction, "q", b"6")


def test_many_transactions_at_once_end_in_any_order(model: Model) -> None:
    queue = model.queue("q", durable=True)
    consumer = model.consumer(queue)
    results: list[int] = []
    for number in range(6):
        transaction = begin(model)
        publish(model, transaction, "q", b"%d" % number)
        transaction.commit(lambda error, number=number: results.append(number))  # type: ignore[misc]
    model.run()
    commits = list(range(len(model.store.waiting)))
    for index in (5, 3, 4, 1, 2):
        model.store.complete(commits.index(index))
        commits.remove(index)
        model.run()
    assert results == [5, 3, 4, 1, 2]
    assert consumer.bodies == []
    model.sync()
    assert consumer.bodies == [b"%d" % number for number in range(6)]


# ---- messages that are being moved to an alternate exchange ----


def moving(model: Model) -> tuple[Queue, Queue, Entry, list[Exception | None]]:
    """A message that a consumer has acquired, while it moves to another queue and is not yet on the disk there."""
    source, target = model.queue("source", durable=True), model.queue("target", durable=True)
    consumer = model.consumer(source)
    model.publish("source", b"1")
    model.sync()
    (entry,) = consumer.entries
    exchange = model.broker.default_host.exchanges["amq.fanout"]
    exchange.add(Binding(target, ""))
    done: list[Exception | None] = []
    model.broker.router.move(source, entry, exchange, done.append)
    model.run()
    assert entry.state == MOVING
    return source, target, entry, done


def test_an_accept_of_a_message_that_is_being_moved_is_written(model: Model) -> None:
    source, target, entry, done = moving(model)
    assert source.dequeue(entry), "completed when it is on the disk"
    assert entry.rid not in source.journal.live
    model.sync()
    assert done == [None]
    assert source.is_empty
    assert [each.message.body for each in target.entries()] == [b"1"]


def test_a_transaction_accepts_a_message_that_is_being_moved(model: Model) -> None:
    source, _, entry, done = moving(model)
    transaction = begin(model)
    transaction.accept(source, entry)
    committed: Results = []
    transaction.commit(committed.append)
    assert entry.rid not in source.journal.live
    model.sync()
    assert (committed, done) == ([None], [None])
    assert source.is_empty
