"""Large transactions are written and begun in turns; all of it or nothing, as with small ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from unittest.mock import patch

import pytest

from qstore.broker.model.arguments import SEQUENCE
from qstore.broker.model.errors import InternalError, ModelError, ResourceDeletedError, ResourceLimitExceededError
from qstore.broker.model.exchanges.fanout import FanoutExchange
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.transactions import effects, local, planned, work
from qstore.broker.model.transactions.branch import State, Status
from qstore.broker.model.transactions.local import LocalTransaction
from qstore.formats.plain import plain_map
from qstore.formats.values import typed_map
from tests.support.compiled import replaces
from tests.support.fake_store import FakeFailedError, FakeFullError, Model, Recorder

pytestmark = replaces

Results = list[ModelError | None]
XID = b"xid"


@pytest.fixture(autouse=True)
def small_portions() -> Iterator[None]:
    """A transaction of more than four operations is large, and written two at a time."""
    with (
        patch.object(work, "AT_ONCE", 4),
        patch.object(planned, "AT_ONCE", 2),
        patch.object(planned, "WRITTEN_AT_ONCE", 2),
        patch.object(effects, "AT_ONCE", 2),
    ):
        yield


@pytest.fixture
def results() -> Results:
    return []


def publish(model: Model, transaction: LocalTransaction, key: str, *contents: bytes, persistent: bool = True) -> None:
    for body in contents:
        transaction.publish(model.message(key, body, persistent=persistent), model.broker.default_host.exchanges[""])


def begun(model: Model, key: str = "q", count: int = 6) -> LocalTransaction:
    """A transaction with messages 0, 1 … for a queue."""
    transaction = model.broker.begin_transaction(0)
    publish(model, transaction, key, *[b"%d" % number for number in range(count)])
    return transaction


def commit(model: Model, transaction: LocalTransaction, results: Results) -> None:
    assert transaction.is_large
    model.tick.turns.do(transaction, transaction.commit_in_turns(results.append))


def bodies(queue: Queue) -> list[bytes]:
    return [entry.message.body for entry in queue.entries()]


def taken(model: Model, queue: Queue, *contents: bytes) -> Recorder:
    model.publish(queue.name, *contents)
    consumer = model.consumer(queue, len(contents))
    model.sync()
    assert consumer.bodies == list(contents)
    return consumer


def turn(model: Model) -> None:
    """One iteration of the event loop."""
    for call in [model.loop.calls.pop(0) for _ in range(len(model.loop.calls))]:
        call()


def test_portions_are_small_and_seen_together(model: Model, results: Results) -> None:
    source, target = model.queue("source", durable=True), model.queue("q", durable=True)
    consumer = taken(model, source, b"a", b"b", b"c")
    watcher = model.consumer(target, 10)
    transaction = begun(model)
    for entry in consumer.entries:
        transaction.accept(source, entry)
    commit(model, transaction, results)
    model.run()
    assert model.store.portions == [(2, 0), (2, 0), (2, 0), (0, 2), (0, 1)]
    assert (results, watcher.bodies, source.message_count) == ([], [], 3)
    model.sync()
    assert results == [None]
    assert watcher.bodies == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert source.message_count == 0
    assert source.journal.live == {}
    assert model.tick.transactions_under_way == 0


def test_a_message_for_many_queues_counts_for_each(model: Model, results: Results) -> None:
    queues = [model.queue(f"q{number}", durable=True) for number in range(3)]
    fanout = model.broker.default_host.exchanges["amq.fanout"]
    for queue in queues:
        fanout.bind(queue, "")
    transaction = model.broker.begin_transaction(0)
    for body in (b"1", b"2"):
        transaction.publish(model.message("", body), fanout)
    commit(model, transaction, results)
    model.sync()
    assert model.store.portions == [(3, 0), (3, 0)]
    assert [bodies(queue) for queue in queues] == [[b"1", b"2"]] * 3


@pytest.fixture
def two_queues_at_once() -> Iterator[None]:
    """One turn changes at most two queues."""
    with ExitStack() as patches:
        for module in (work, planned, effects, local):
            patches.enter_context(patch.object(module, "QUEUES_AT_ONCE", 2))
        yield


def fanned_out(model: Model, *contents: bytes, count: int, persistent: bool = True) -> LocalTransaction:
    """A transaction with messages for a fanout exchange, to which all of its queues are bound."""
    fanout = model.broker.default_host.exchanges["amq.fanout"]
    for number in range(count):
        fanout.bind(model.queue(f"q{number}", durable=True), "")
    transaction = model.broker.begin_transaction(0)
    for body in contents:
        transaction.publish(model.message("", body, persistent=persistent), fanout)
    return transaction


@pytest.mark.usefixtures("two_queues_at_once")
def test_a_message_for_very_many_queues_is_divided(model: Model, results: Results) -> None:
    transaction = fanned_out(model, b"1", b"2", count=5)
    queues = [model.broker.default_host.queues[f"q{number}"] for number in range(5)]
    consumers = [model.consumer(queue, 2) for queue in queues]
    commit(model, transaction, results)
    model.run()
    assert model.store.portions == [(2, 0), (2, 0), (1, 0)] * 2
    assert [consumer.bodies for consumer in consumers] == [[]] * 5
    model.sync()
    assert results == [None]
    assert [consumer.bodies for consumer in consumers] == [[b"1", b"2"]] * 5


@pytest.mark.usefixtures("two_queues_at_once")
@pytest.mark.parametrize(("messages", "queues", "is_large"), [(1, 3, True), (3, 1, False), (2, 2, False)])
def test_few_operations_are_large_if_they_are_for_many_queues(
    model: Model, messages: int, queues: int, is_large: bool
) -> None:
    assert fanned_out(model, *[b"x"] * messages, count=queues).is_large == is_large


@pytest.mark.usefixtures("two_queues_at_once")
def test_a_turn_changes_few_queues_in_any_transaction(model: Model, results: Results) -> None:
    """Six messages and six accepted ones, each of another queue."""
    transaction = model.broker.begin_transaction(0)
    for number in range(6):
        source = model.queue(f"source{number}", durable=True)
        transaction.accept(source, taken(model, source, b"x").entries[0])
        model.queue(f"q{number}", durable=True)
        publish(model, transaction, f"q{number}", b"y")
    model.store.portions.clear()
    commit(model, transaction, results)
    model.run()
    assert model.store.portions == [(2, 0)] * 3 + [(0, 2)] * 3
    changed, before = [], 0
    model.store.complete()
    while True:
        now = sum([queue.available_count for queue in model.broker.default_host.queues.values()])
        changed.append(now - before)
        before = now
        if not model.loop.calls:
            break
        turn(model)
    assert sum(changed) == 6
    assert max(changed) == 2
    assert results == [None]


@pytest.mark.usefixtures("two_queues_at_once")
@pytest.mark.parametrize("written", [0, 1, 2])
def test_a_message_that_is_refused_on_its_way_to_many_queues_is_on_none(
    model: Model, results: Results, written: int
) -> None:
    transaction = fanned_out(model, b"1", count=5)
    model.store.portions.clear()
    commit(model, transaction, results)
    while len(model.store.portions) < written:
        turn(model)
    model.broker.default_host.queues[f"q{2 * written}"].journal.is_full = True
    model.sync()
    assert isinstance(results[0], ResourceLimitExceededError)
    assert [bodies(queue) for name, queue in model.broker.default_host.queues.items() if name.startswith("q")] == [
        []
    ] * 5
    assert model.store.aborted == 1


@pytest.mark.usefixtures("two_queues_at_once")
def test_an_exchange_numbers_a_message_for_many_queues_once(model: Model, results: Results) -> None:
    exchange = FanoutExchange("numbers", arguments=typed_map({SEQUENCE: 1}))
    model.broker.default_host.exchanges["numbers"] = exchange
    for number in range(5):
        exchange.bind(model.queue(f"q{number}", durable=True), "")
    transaction = model.broker.begin_transaction(0)
    for body in (b"1", b"2"):
        transaction.publish(model.message("", body), exchange)
    commit(model, transaction, results)
    model.sync()
    for number in range(5):
        found = [entry.message for entry in model.broker.default_host.queues[f"q{number}"].entries()]
        assert [plain_map(message.headers())[SEQUENCE] for message in found] == [0, 1]


def test_messages_of_others_may_come_in_between_and_order_is_that_of_record_ids(model: Model, results: Results) -> None:
    queue = model.queue("q", durable=True)
    consumer = model.consumer(queue, 20)
    commit(model, begun(model), results)
    model.publish("q", b"other")
    model.run()
    found = list(queue.entries())
    rids = [entry.rid for entry in found]
    assert rids == sorted(rids)
    ours = [entry.message.body for entry in found if entry.message.body != b"other"]
    assert ours == [b"%d" % number for number in range(6)]
    model.store.complete(len(model.store.waiting) - 1)  # that of the others is done first, and waits
    model.run()
    assert consumer.bodies == []
    model.sync()
    assert consumer.bodies == [entry.message.body for entry in found]


def test_it_waits_for_the_disk_between_portions(model: Model, results: Results) -> None:
    model.store.holds_portions = True
    model.queue("q", durable=True)
    commit(model, begun(model), results)
    for written in (1, 2, 3):
        model.run()
        assert len(model.store.portions) == written
        assert model.tick.turns
        model.store.complete()
    model.sync()
    assert results == [None]
    assert not model.tick.turns


@pytest.mark.parametrize("portions", [0, 1, 2, 3])
@pytest.mark.parametrize("cause", ["full", "failed"])
def test_a_journal_that_refuses_a_portion_undoes_it_all(
    model: Model, results: Results, portions: int, cause: str
) -> None:
    source, target = model.queue("source", durable=True), model.queue("q", durable=True)
    taker = taken(model, source, b"a", b"b")
    watcher = model.consumer(target, 10)
    transaction = begun(model)
    for entry in taker.entries:
        transaction.accept(source, entry)
    model.store.portions.clear()
    commit(model, transaction, results)
    while len(model.store.portions) < portions:
        turn(model)
    if cause == "full" and portions < 3:
        target.journal.is_full = True
    else:
        target.journal.has_failed = source.journal.has_failed = True
    model.sync()
    (error,) = results
    is_full = cause == "full" and portions < 3
    assert isinstance(error, ResourceLimitExceededError if is_full else InternalError)
    assert bodies(target) == []
    assert model.store.aborted == 1
    assert target.journal.live == {}
    assert (source.message_count, source.available_count + source.acquired_count) == (2, 2)
    assert model.tick.transactions_under_way == 0
    target.journal.is_full = target.journal.has_failed = source.journal.has_failed = False
    model.publish("q", b"later")
    again = model.consumer(source, 2)
    model.sync()
    assert watcher.bodies == [b"later"]
    assert again.bodies == [b"a", b"b"]
    assert all(entry.is_redelivered for entry in again.entries)


def test_unknown_outcome_keeps_the_stored_messages(model: Model, results: Results) -> None:
    queue = model.queue("q", durable=True)
    commit(model, begun(model), results)
    model.run()
    model.store.complete(0, FakeFailedError("the disk has failed"))
    model.run()
    assert isinstance(results[0], InternalError)
    assert queue.message_count == 6
    assert queue.available_count == 0


def test_a_limit_is_never_exceeded(model: Model, results: Results) -> None:
    """It is checked for all messages at first; and again, when others have used the room meanwhile."""
    arguments = typed_map({"qpid.max_count": 8, "qpid.policy_type": "reject"})
    queue = model.queue("q", durable=True, arguments=arguments)
    commit(model, begun(model, count=9), results)
    model.sync()
    assert isinstance(results.pop(), ResourceLimitExceededError)
    assert model.store.portions == []
    commit(model, begun(model), results)
    while not model.store.portions:
        turn(model)
    model.publish("q", b"x", b"y", b"z")
    model.sync()
    assert isinstance(results.pop(), ResourceLimitExceededError)
    assert bodies(queue) == [b"x", b"y", b"z"]
    assert model.store.aborted == 1
    commit(model, begun(model, count=5), results)
    model.sync()
    assert results == [None]
    assert queue.message_count == 8


def test_a_queue_that_is_deleted_meanwhile_gets_no_more(model: Model, results: Results) -> None:
    gone, kept = model.queue("q", durable=True), model.queue("kept", durable=True)
    transaction = begun(model, count=3)
    publish(model, transaction, "kept", b"a", b"b")
    commit(model, transaction, results)
    while not model.store.portions:
        turn(model)
    del model.broker.default_host.queues["q"]
    gone.is_deleted = True
    model.sync()
    assert results == [None]
    assert bodies(kept) == [b"a", b"b"]
    assert sum(enqueued for enqueued, _ in model.store.portions) == 4


def test_messages_of_a_queue_that_is_being_deleted_cannot_be_accepted(model: Model, results: Results) -> None:
    source, target = model.queue("source", durable=True), model.queue("q", durable=True)
    consumer = taken(model, source, b"a", b"b")
    transaction = begun(model)
    for entry in consumer.entries:
        transaction.accept(source, entry)
    commit(model, transaction, results)
    while sum(enqueued for enqueued, _ in model.store.portions) < 4:
        turn(model)
    source.begin_deletion()
    model.sync()
    assert isinstance(results[0], ResourceDeletedError)
    assert bodies(target) == []


def test_transient_transaction_needs_no_store(model: Model, results: Results) -> None:
    queue = model.queue("q")
    consumer = model.consumer(queue, 10)
    transaction = begun(model)
    commit(model, transaction, results)
    model.run()
    assert results == [None]
    assert len(consumer.bodies) == 6
    assert model.store.portions == []


def test_a_branch_that_had_no_room_can_be_prepared_again(model: Model) -> None:
    source, queue = model.queue("source", durable=True), model.queue("q", durable=True)
    taker = taken(model, source, b"a")
    answers: list[tuple[Status, ModelError | None]] = []

    def done(status: Status, error: ModelError | None) -> None:
        answers.append((status, error))

    branches = model.broker.distributed
    branch = branches.start(XID)
    publish(model, branch.work, "q", *[b"%d" % number for number in range(6)])
    branch.work.accept(source, taker.entries[0])
    branches.leave(branch, has_failed=False)
    branch.prepare(done)
    while not model.store.portions:
        turn(model)
    assert branch.state is State.PREPARING
    queue.journal.is_full = True
    model.sync()
    assert isinstance(answers.pop()[1], ResourceLimitExceededError)
    assert (branch.state, bodies(queue), queue.journal.live) == (State.ACTIVE, [], {})
    queue.journal.is_full = False
    branch.prepare(done)
    model.sync()
    assert answers == [(Status.OK, None)]
    assert branch.state is State.PREPARED
    assert branches.in_doubt == [XID]
    consumer = model.consumer(queue, 10)
    model.sync()
    assert consumer.bodies == []
    branch.commit(done, one_phase=False)
    model.sync()
    assert consumer.bodies == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert source.message_count == 0


def test_a_branch_that_the_prepared_list_had_no_room_for_keeps_what_it_has_accepted(model: Model) -> None:
    source, queue = model.queue("source", durable=True), model.queue("q", durable=True)
    taker = taken(model, source, b"a", b"b", b"c")
    answers: list[tuple[Status, ModelError | None]] = []

    def done(status: Status, error: ModelError | None) -> None:
        answers.append((status, error))

    branches = model.broker.distributed
    branch = branches.start(XID)
    publish(model, branch.work, "q", b"1", b"2", b"3")
    for entry in taker.entries:
        branch.work.accept(source, entry)
    branches.leave(branch, has_failed=False)
    branch.prepare(done)
    model.run()
    del model.store.prepared[XID]
    queue.journal.live.clear()
    model.store.complete(error=FakeFullError("the prepared list is full"))
    model.run()
    assert isinstance(answers.pop()[1], ResourceLimitExceededError)
    assert (branch.state, bodies(queue), source.acquired_count) == (State.ACTIVE, [], 3)
    branch.prepare(done)
    model.sync()
    branch.commit(done, one_phase=False)
    model.sync()
    assert answers == [(Status.OK, None), (Status.OK, None)]
    assert (bodies(queue), source.message_count, source.journal.live) == ([b"1", b"2", b"3"], 0, {})


def test_a_branch_that_times_out_after_it_had_no_room_releases_what_it_has_accepted(model: Model) -> None:
    source = model.queue("source", durable=True)
    taker = taken(model, source, b"a", b"b", b"c", b"d", b"e")
    branch = model.broker.distributed.start(XID)
    for entry in taker.entries:
        branch.work.accept(source, entry)
    model.broker.distributed.leave(branch, has_failed=False)
    branch.prepare(lambda _status, _error: None)
    model.run()
    model.store.complete(error=FakeFullError("the prepared list is full"))
    model.run()
    branch.time_out()
    model.run()
    assert (branch.state, source.acquired_count, source.message_count) == (State.ROLLBACK_ONLY, 0, 5)


def test_a_large_branch_is_rolled_back(model: Model) -> None:
    queue = model.queue("q", durable=True)
    answers: list[Status] = []
    branches = model.broker.distributed
    branch = branches.start(XID)
    publish(model, branch.work, "q", *[b"%d" % number for number in range(6)])
    branches.leave(branch, has_failed=False)
    branch.prepare(lambda status, _: answers.append(status))
    model.sync()
    branch.roll_back(lambda status, _: answers.append(status))
    model.sync()
    assert answers == [Status.OK, Status.OK]
    assert (bodies(queue), queue.journal.live) == ([], {})


def test_a_transaction_that_is_discarded_is_freed_in_turns(model: Model) -> None:
    source = model.queue("source", durable=True)
    consumer = taken(model, source, b"a", b"b")
    transaction = begun(model)
    for entry in consumer.entries:
        transaction.accept(source, entry)
    transaction.discard()
    model.run()
    assert source.available_count == 2
    assert transaction.messages == []
