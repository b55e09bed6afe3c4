"""The model: the way of a message to all its queues or none, from one queue to another, and through a restart."""

from __future__ import annotations

import asyncio
import weakref
from pathlib import Path
from typing import Any

import pytest

from qstore.broker.model.broker import Broker
from qstore.broker.model.errors import InternalError, ResourceLimitExceededError
from qstore.broker.model.memory import MESSAGE_OVERHEAD
from qstore.broker.model.message import Message
from qstore.broker.model.queues.queue import Queue
from qstore.broker.settings import BrokerSettings
from qstore.formats.errors import BrokerRecordError
from qstore.store.module import Module
from tests.broker.wired_broker import OPTIONS, PlainMessage, wired
from tests.support.fake_store import FakeFailedError, Model
from tests.support.garbage import no_collector


def bodies(*queues: Queue) -> list[list[bytes]]:
    return [[entry.message.body for entry in queue.entries()] for queue in queues]


def bound(model: Model, exchange: str, *queues: Queue) -> None:
    for queue in queues:
        model.broker.default_host.exchanges[exchange].bind(queue, "")


# ---- all or none ----


def test_a_message_goes_to_all_its_queues_and_is_the_same_on_all(model: Model) -> None:
    queues = [model.queue("a", durable=True), model.queue("b"), model.queue("c", durable=True)]
    bound(model, "amq.fanout", *queues)
    assert model.publish("", b"1", exchange="amq.fanout") == [True]
    assert model.publish("", b"2", exchange="amq.fanout", persistent=False) == [False]
    assert bodies(*queues) == [[b"1", b"2"]] * 3
    assert len({id(next(queue.entries()).message) for queue in queues}) == 1
    assert [len(queue.journal.live) for queue in (queues[0], queues[2])] == [1, 1]
    consumers = [model.consumer(queue) for queue in queues]
    model.run()
    assert [consumer.bodies for consumer in consumers] == [[], [b"1", b"2"], []]  # the transient queue at once
    model.sync()
    assert [consumer.bodies for consumer in consumers] == [[b"1", b"2"]] * 3


def test_a_transient_queue_alone_waits_for_nothing(model: Model) -> None:
    model.queue("q")
    assert model.publish("q", b"1") == [False]
    assert model.publish("nobody's", b"1") == [False]


@pytest.mark.parametrize("trouble", ["is_full", "has_failed"])
def test_no_queue_gets_a_message_that_one_journal_refuses(model: Model, trouble: str) -> None:
    queues = [model.queue("a", durable=True), model.queue("b"), model.queue("c", durable=True)]
    bound(model, "amq.fanout", *queues)
    setattr(queues[2].journal, trouble, True)
    errors = {"is_full": ResourceLimitExceededError, "has_failed": InternalError}
    with pytest.raises(errors[trouble], match="c"):
        model.publish("", b"1", exchange="amq.fanout")
    assert bodies(*queues) == [[], [], []]
    assert queues[0].journal.live == {}
    assert not model.tick.written
    assert model.publish("", b"2", exchange="amq.fanout", persistent=False) == [False]
    assert bodies(*queues) == [[b"2"]] * 3


def test_no_queue_gets_a_message_that_one_full_queue_refuses() -> None:
    model = Model(BrokerSettings(queue_limit_bytes=2 * MESSAGE_OVERHEAD + 5))
    queues = [model.queue("a", durable=True), model.queue("b"), model.queue("c")]
    bound(model, "amq.fanout", *queues)
    model.publish("b", bytes(4), bytes(0))
    for persistent in (True, False):
        with pytest.raises(ResourceLimitExceededError, match='"b"'):
            model.publish("", b"56", exchange="amq.fanout", persistent=persistent)
    assert bodies(*queues) == [[], [bytes(4), b""], []]
    assert queues[0].journal.live == {}


@pytest.mark.parametrize(("trouble", "error"), [("is_full", ResourceLimitExceededError), ("has_failed", InternalError)])
def test_publish_error_names_the_single_queue(model: Model, trouble: str, error: type[Exception]) -> None:
    queue = model.queue("q", durable=True)
    setattr(queue.journal, trouble, True)
    with pytest.raises(error, match="q"):
        model.publish("q", b"1")
    assert queue.is_empty


# ---- the alternate exchange ----


def test_unroutable_message_goes_to_the_alternate_exchange(model: Model) -> None:
    matched, other = model.queue("matched"), model.queue("other")
    direct = model.broker.default_host.exchanges["amq.direct"]
    direct.bind(matched, "key")
    bound(model, "amq.fanout", other)
    model.publish("lost", b"0", exchange="amq.direct")
    direct.alternate = model.broker.default_host.exchanges["amq.fanout"]
    model.publish("key", b"1", exchange="amq.direct")
    model.publish("lost", b"2", exchange="amq.direct")
    assert bodies(matched, other) == [[b"1"], [b"2"]]


def test_an_exchange_that_looks_at_more_than_the_key_has_an_alternate_as_well(model: Model) -> None:
    other = model.queue("other")
    bound(model, "amq.fanout", other)
    model.broker.default_host.exchanges["amq.match"].alternate = model.broker.default_host.exchanges["amq.fanout"]
    model.publish("x", b"1", exchange="amq.match")
    assert bodies(other) == [[b"1"]]


# ---- from one queue to another ----


def moved(model: Model, *, durable: bool) -> tuple[Queue, Any, Queue]:
    """A queue with a message that a consumer has taken, the message's place, and its possible destination."""
    source, target = model.queue("source", durable=durable), model.queue("target", durable=True)
    bound(model, "amq.fanout", target)
    model.publish("source", b"1")
    consumer = model.consumer(source)
    model.sync()
    return source, consumer.entries[0], target


def test_a_message_leaves_when_it_is_kept_where_it_goes(model: Model) -> None:
    source, entry, target = moved(model, durable=True)
    done: list[Exception | None] = []
    model.broker.router.move(source, entry, model.broker.default_host.exchanges["amq.fanout"], done.append)
    model.run()
    assert (len(source.journal.live), len(target.journal.live), done) == (1, 1, [])
    model.store.complete()
    model.run()
    assert (len(source.journal.live), source.message_count, done) == (0, 0, [])
    model.store.complete()
    model.run()
    assert done == [None]
    consumer = model.consumer(target)
    model.run()
    assert consumer.bodies == [b"1"]


def test_transient_message_moves_at_once(model: Model) -> None:
    source, entry, target = moved(model, durable=False)
    done: list[Exception | None] = []
    model.broker.router.move(source, entry, model.broker.default_host.exchanges["amq.fanout"], done.append)
    assert done == [None]
    assert bodies(source, target) == [[], [b"1"]]


def test_a_message_that_goes_nowhere_is_dropped(model: Model) -> None:
    source, entry, _ = moved(model, durable=True)
    done: list[Exception | None] = []
    model.broker.router.move(source, entry, model.broker.default_host.exchanges["amq.topic"], done.append)
    assert source.is_empty
    assert done == []
    model.sync()
    assert done == [None]
    assert source.journal.live == {}


def test_a_message_that_cannot_move_stays(model: Model) -> None:
    source, entry, target = moved(model, durable=True)
    target.journal.is_full = True
    done: list[Exception | None] = []
    with pytest.raises(ResourceLimitExceededError):
        model.broker.router.move(source, entry, model.broker.default_host.exchanges["amq.fanout"], done.append)
    assert (source.acquired_count, len(source.journal.live), done) == (1, 1, [])


def test_a_message_stays_when_it_is_not_known_to_be_kept(model: Model) -> None:
    source, entry, _ = moved(model, durable=True)
    done: list[Exception | None] = []
    model.broker.router.move(source, entry, model.broker.default_host.exchanges["amq.fanout"], done.append)
    model.run()
    failure = FakeFailedError("gone")
    model.store.complete(error=failure)
    model.run()
    assert done == [failure]
    assert (source.acquired_count, len(source.journal.live)) == (1, 1)


def test_a_message_that_cannot_leave_does_not_stop_the_others(model: Model) -> None:
    """The source's journal fails in between: the mover and all waiters of the same flush get the error."""
    source, entry, _ = moved(model, durable=True)
    done: list[Exception | None] = []
    others: list[Exception | None] = []
    model.broker.router.move(source, entry, model.broker.default_host.exchanges["amq.fanout"], done.append)
    model.tick.when_synced(others.append)
    model.run()
    source.journal.has_failed = True
    model.store.complete()
    model.run()
    assert [type(error) for error in done] == [InternalError]
    assert others == [None]


def test_a_message_whose_queue_goes_while_it_moves(model: Model) -> None:
    source, entry, target = moved(model, durable=True)
    done: list[Exception | None] = []
    model.broker.router.move(source, entry, model.broker.default_host.exchanges["amq.fanout"], done.append)
    model.run()
    source.begin_deletion()
    source.end_deletion()
    model.sync()
    assert done == [None]
    assert bodies(target) == [[b"1"]]


def test_expired_messages_of_all_queues(model: Model) -> None:
    queues = [model.queue("a", durable=True), model.queue("b")]
    for queue in queues:
        for seconds in (1, 5, 0):
            expires_at = model.now + seconds if seconds else 0.0
            queue.publish(model.message(queue.name, b"%d" % seconds, expires_at=expires_at))
    model.sync()
    model.now += 1
    assert model.broker.expire() == 2
    assert bodies(*queues) == [[b"5", b"0"]] * 2
    model.sync()
    assert len(queues[0].journal.live) == 2


# ---- the end ----


def test_delivered_messages_are_reported_on_close(model: Model) -> None:
    queues = [model.queue(name, durable=True) for name in ("a", "b", "untouched")]
    for queue in queues:
        model.publish(queue.name, b"1", b"2", b"3")
    model.publish("a", b"transient", persistent=False)
    taker = model.consumer(queues[0], 2)
    model.sync()
    queues[0].release(taker.entries[1], is_redelivered=True)
    giver_back = model.consumer(queues[1], 1)
    model.sync()
    queues[1].release(giver_back.entries[0], is_redelivered=False)
    transaction = model.broker.begin_transaction(0)
    transaction.publish(model.message("untouched", b"4"), model.broker.default_host.exchanges[""])
    transaction.commit(lambda _: None)  # under way: nobody had it
    assert model.broker.close()
    rids = [entry.rid for entry in queues[0].entries()]
    assert model.store.closed_with == {queues[0].journal.queue_id: rids[:2]}


@pytest.mark.parametrize("durable", [False, True])
async def test_a_queue_that_is_deleted_keeps_no_memory(tmp_path: Path, durable: bool) -> None:
    class TrackedMessage(PlainMessage):
        """A message that can be referred to weakly."""

    async with wired(tmp_path if durable else None) as found:
        queue = await found.topology.declare_queue("q", durable=durable)
        references = []
        for _ in range(50):
            message = TrackedMessage("q", b"x", store=found.store)
            references.append(weakref.ref(message))
            found.broker.router.publish(message, found.broker.default_host.exchanges[""])
        await found.synced()
        del message, queue
        with no_collector():
            await found.topology.delete_queue("q")
            await asyncio.sleep(0)
            left = sum(reference() is not None for reference in references)
        assert left == 0


# ---- a restart, with a real store ----


def restored(found: Queue) -> list[tuple[bytes, bool]]:
    return [(entry.message.body, entry.is_redelivered) for entry in found.entries()]


def test_messages_are_there_again_in_order_and_marked_if_they_were_delivered(tmp_path: Path) -> None:
    async def first() -> None:
        async with wired(tmp_path) as found:
            queue = await found.topology.declare_queue("q", durable=True)
            await found.publish("", "q", *(b"%d" % number for number in range(5)))
            await found.publish("", "q", b"transient", persistent=False)
            for _ in range(2):
                await found.consumer(queue)
            entries = list(queue.entries())
            queue.dequeue(entries[0])
            await found.publish("", "q", b"5")

    async def second() -> None:
        async with wired(tmp_path) as found:
            expected = [(b"1", True), (b"2", False), (b"3", False), (b"4", False), (b"5", False)]
            queue = found.broker.default_host.queues["q"]
            assert restored(queue) == expected
            assert queue.message_bytes == 5
            taker = await found.consumer(queue)
            queue.dequeue(taker.taken[0])
            await found.synced()
            await found.publish("", "q", b"6")
            assert restored(queue) == [*expected[1:], (b"6", False)]

    asyncio.run(first())
    asyncio.run(second())


def test_only_committed_transactions_survive_a_restart(tmp_path: Path) -> None:
    async def first() -> None:
        async with wired(tmp_path) as found:
            for name in ("a", "b"):
                await found.topology.declare_queue(name, durable=True)
            await found.publish("", "a", b"old")
            taker = await found.consumer(found.broker.default_host.queues["a"])
            transactions = [found.broker.begin_transaction(0) for _ in range(2)]
            for number, transaction in enumerate(transactions):
                for name in ("a", "b"):
                    transaction.publish(found.message(name, b"%d" % number), found.broker.default_host.exchanges[""])
            transactions[0].accept(found.broker.default_host.queues["a"], taker.taken[0])
            committed: asyncio.Future[object] = asyncio.get_running_loop().create_future()
            transactions[0].commit(committed.set_result)
            assert found.broker.default_host.queues["a"].purge() == (0, False)  # of the store's own rules, too
            assert await committed is None
            assert found.bodies("a") == found.bodies("b") == [b"0"]

    async def second() -> None:
        async with wired(tmp_path) as found:
            assert found.bodies("a") == found.bodies("b") == [b"0"]

    asyncio.run(first())
    asyncio.run(second())


def test_a_record_that_is_not_a_message_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def first() -> None:
        async with wired(tmp_path) as found:
            await found.topology.declare_queue("q", durable=True)
            await found.publish("", "q", b"1", b"bad", b"3")

    def restore(data: bytes, begin: int = 0, end: int = -1, /) -> Message:
        body = (data if end < 0 else data[begin:end]).partition(b"\0")[2]
        if body == b"bad":
            raise BrokerRecordError("not a message", 0)
        return PlainMessage("q", body)

    async def second() -> None:
        store: Any = Module().open(OPTIONS, str(tmp_path), "0", lambda line: None)
        broker = Broker(BrokerSettings(), store, asyncio.get_running_loop().call_soon)
        broker.recover(restore)
        queue = broker.default_host.queues["q"]
        assert restored(queue) == [(b"1", False), (b"3", False)]
        (journal,) = store.journals.values()
        assert journal.depth == 3
        assert broker.close()

    async def third() -> None:
        async with wired(tmp_path) as found:
            assert found.bodies("q") == [b"1", b"bad", b"3"]

    asyncio.run(first())
    asyncio.run(second())
    asyncio.run(third())


async def test_without_a_store_nothing_is_recovered_and_closing_is_clean() -> None:
    broker = Broker(BrokerSettings(), None, asyncio.get_running_loop().call_soon)
    broker.recover(lambda data: PlainMessage("q", data))
    assert broker.default_host.queues == {}
    assert broker.close()
