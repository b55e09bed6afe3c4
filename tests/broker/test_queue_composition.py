"""Queues with limits, queues with no-local, and how long unused queues stay."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

import qstore.broker.model.queues.composition
from qstore.broker.model.errors import ResourceLimitExceededError
from qstore.broker.model.memory import MESSAGE_OVERHEAD
from qstore.broker.model.message import Handling
from qstore.broker.model.queues.arguments import NO_ARGUMENTS, QueueArguments, read_arguments
from qstore.broker.model.queues.expiry import IdleQueues
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.residency.paging_directory import PagingDirectory
from qstore.broker.settings import QUEUE_LIMIT_BYTES, BrokerSettings
from qstore.formats.values import EMPTY_MAP, typed_map
from tests.broker.wired_broker import PlainMessage, Wired, wired
from tests.support.compiled import replaces
from tests.support.fake_store import Model
from tests.support.paging_disk import MemoryPagingDisk

DEFAULT = QUEUE_LIMIT_BYTES


class Owner:
    """A client with a connection."""

    def __init__(self) -> None:
        self.publisher = object()


def make(model: Model, name: str, *, durable: bool = False, **asked: Any) -> Queue:
    journal = model.store.journal(name) if durable else None
    queue = model.broker.queue_factory.make(
        model.broker.default_host,
        name,
        durable=durable,
        auto_delete=True,
        arguments=EMPTY_MAP,
        parsed=QueueArguments(**asked),
        journal=journal,
    )
    model.broker.default_host.queues[name] = queue
    return queue


def by(owner: Owner, message: PlainMessage) -> PlainMessage:
    message.handling = Handling(owner.publisher)
    return message


def bodies(queue: Queue) -> list[bytes]:
    return [entry.message.body for entry in queue.entries()]


@pytest.mark.parametrize(
    ("asked", "max_messages", "max_bytes"),
    [
        ({}, 0, DEFAULT),
        ({"max_bytes": 10}, 0, 10),
        ({"max_bytes": 10, "policy": "flow_to_disk"}, 0, 10),  # without a disk they are refused
        ({"max_messages": 3, "policy": "flow_to_disk"}, 3, DEFAULT),
        ({"max_messages": 3}, 3, DEFAULT),
        ({"max_messages": 3, "max_bytes": 20}, 3, 20),
        ({"max_messages": 3, "max_bytes": 0}, 3, 0),
    ],
)
@pytest.mark.parametrize("no_local", [False, True])
def test_parts(model: Model, asked: dict[str, Any], max_messages: int, max_bytes: int, no_local: bool) -> None:
    queue = make(model, "q", **asked, no_local=no_local, auto_delete_seconds=7)
    assert queue.limit is not None
    assert queue.limit.max_messages == (max_messages or sys.maxsize)
    assert queue.limit.max_bytes == (max_bytes or sys.maxsize)
    assert queue.limit.overhead == (0 if "max_bytes" in asked else MESSAGE_OVERHEAD)
    assert (queue.eligibility is not None) is no_local
    assert queue.auto_delete_seconds == 7


def test_a_queue_without_any_limit(model: Model) -> None:
    assert make(model, "q", max_bytes=0).limit is None


@pytest.mark.parametrize(
    ("asked", "option", "has_paging", "durable", "expected"),
    [
        ({}, None, True, True, 0),
        ({}, None, True, False, 0),
        ({}, None, False, True, 0),  # its journal has the messages
        ({}, None, False, False, DEFAULT),  # nothing has them but memory
        ({}, 5000, True, True, 5000),  # as qpidd, if the operator asks for it
        ({}, 0, False, False, 0),
        ({"max_messages": 3}, None, True, True, 0),
        ({"max_bytes": 10}, None, True, True, 10),
        ({"policy": "ring"}, None, True, False, DEFAULT),  # nothing would ever be displaced
        ({"policy": "ring", "max_messages": 3}, None, True, False, 0),
        ({"policy": "ring", "overflow": "drop-head"}, None, True, False, 0),  # as in RabbitMQ
        ({"policy": "self-destruct"}, None, True, False, DEFAULT),
        ({"policy": "ring_strict"}, 7, True, True, 7),
    ],
)
def test_a_queue_without_a_limit_of_its_own_has_one_only_where_the_disk_has_none(
    asked: dict[str, Any], option: int | None, has_paging: bool, durable: bool, expected: int
) -> None:
    model = Model(BrokerSettings(queue_limit_bytes=option))
    if has_paging:
        model.broker.queue_factory.use_paging(PagingDirectory(MemoryPagingDisk(), "/paging"), 0)
    capacity = model.broker.queue_factory._capacity(QueueArguments(**asked), durable=durable)
    assert capacity.bytes == expected


# ---- counted ----


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("max_bytes", [None, 0])
def test_max_count_limits_the_depth(model: Model, durable: bool, max_bytes: int | None) -> None:
    queue = make(model, "q", durable=durable, max_messages=2, max_bytes=max_bytes)
    consumer = model.consumer(queue, 1)
    model.publish("q", b"1", b"2")
    model.sync()
    with pytest.raises(ResourceLimitExceededError, match='"q": 2 of 2 messages'):  # one of them is acquired
        model.publish("q", b"3")
    queue.dequeue(consumer.entries[0])
    model.publish("q", b"4")
    model.sync()
    assert bodies(queue) == [b"2", b"4"]


def test_many_messages_and_few_bytes(model: Model) -> None:
    queue = make(model, "q", max_messages=100, max_bytes=10)
    model.publish("q", b"12345", b"67890")
    with pytest.raises(ResourceLimitExceededError, match="10 of 10 bytes"):
        model.publish("q", b"!")
    assert queue.message_count == 2


def test_all_queues_or_none(model: Model) -> None:
    full, other = make(model, "full", max_messages=1), make(model, "other")
    for queue in (full, other):
        model.broker.default_host.exchanges["amq.fanout"].bind(queue, "")
    model.publish("any", b"1", exchange="amq.fanout")
    with pytest.raises(ResourceLimitExceededError, match='"full"'):
        model.publish("any", b"2", exchange="amq.fanout")
    assert bodies(full) == bodies(other) == [b"1"]


def test_transaction_counts_its_own_messages(model: Model) -> None:
    queue = make(model, "q", max_messages=2)
    for many, has_room in ((3, False), (2, True)):
        transaction = model.broker.begin_transaction(0)
        for number in range(many):
            transaction.publish(model.message("q", b"%d" % number), model.broker.default_host.exchanges[""])
        results: list[object] = []
        if has_room:
            transaction.commit(results.append)
            assert results == [None]
        else:
            with pytest.raises(ResourceLimitExceededError, match="0 of 2 messages"):
                transaction.commit(results.append)
        assert queue.message_count == (2 if has_room else 0)


# ---- no-local ----


@pytest.fixture(params=["owner", "exclusive_consumer"])
def owned(model: Model, request: pytest.FixtureRequest) -> tuple[Queue, Owner]:
    queue, owner = make(model, "q", durable=True, no_local=True), Owner()
    setattr(queue, request.param, owner)
    return queue, owner


def test_messages_published_by_the_owner_are_dropped(model: Model, owned: tuple[Queue, Owner]) -> None:
    queue, owner = owned
    for persistent in (False, True):
        for publisher in (owner, Owner()):
            message = by(publisher, model.message("q", b"other" if publisher is not owner else b"own"))
            message.is_persistent = persistent
            is_promised = model.broker.router.publish(message, model.broker.default_host.exchanges[""])
            assert is_promised == (persistent and publisher is not owner)
    model.broker.router.publish(model.message("q", b"unknown"), model.broker.default_host.exchanges[""])
    assert bodies(queue) == [b"other", b"other", b"unknown"]
    assert len(queue.journal.live) == 2
    assert (queue.message_count, queue.message_bytes) == (3, len(b"otherotherunknown"))


def test_other_queues_get_messages_dropped_here(model: Model, owned: tuple[Queue, Owner]) -> None:
    queue, owner = owned
    durable, transient = model.queue("durable", durable=True), model.queue("transient")
    for each in (queue, durable, transient):
        model.broker.default_host.exchanges["amq.fanout"].bind(each, "")
    model.broker.router.publish(by(owner, model.message("", b"own")), model.broker.default_host.exchanges["amq.fanout"])
    model.broker.router.publish(
        by(owner, model.message("", b"passing", persistent=False)), model.broker.default_host.exchanges["amq.fanout"]
    )
    model.sync()
    assert bodies(durable) == bodies(transient) == [b"own", b"passing"]
    assert bodies(queue) == []
    assert (len(durable.journal.live), len(queue.journal.live)) == (1, 0)


def test_dropped_message_needs_no_room(model: Model) -> None:
    queue, owner = make(model, "q", no_local=True, max_messages=1), Owner()
    queue.owner = owner
    model.publish("q", b"1")
    model.broker.router.publish(by(owner, model.message("q", b"own")), model.broker.default_host.exchanges[""])
    with pytest.raises(ResourceLimitExceededError):
        model.publish("q", b"2")
    other = model.queue("other")
    for each in (queue, other):
        model.broker.default_host.exchanges["amq.fanout"].bind(each, "")
    model.broker.router.publish(
        by(owner, model.message("q", b"own")), model.broker.default_host.exchanges["amq.fanout"]
    )
    assert bodies(queue) == [b"1"]
    assert bodies(other) == [b"own"]


def test_without_an_owner_everything_is_taken(model: Model) -> None:
    queue, publisher = make(model, "q", no_local=True), Owner()
    model.broker.router.publish(by(publisher, model.message("q", b"1")), model.broker.default_host.exchanges[""])
    queue.owner = publisher
    model.broker.router.publish(by(publisher, model.message("q", b"2")), model.broker.default_host.exchanges[""])
    queue.owner = None
    model.broker.router.publish(by(publisher, model.message("q", b"3")), model.broker.default_host.exchanges[""])
    assert bodies(queue) == [b"1", b"3"]


@pytest.mark.parametrize("persistent", [False, True])
def test_a_transaction_drops_at_commit(model: Model, owned: tuple[Queue, Owner], persistent: bool) -> None:
    queue, owner = owned
    transaction = model.broker.begin_transaction(0)
    for publisher, body in ((owner, b"own"), (Owner(), b"other")):
        message = by(publisher, model.message("q", body, persistent=persistent))
        transaction.publish(message, model.broker.default_host.exchanges[""])
    results: list[object] = []
    transaction.commit(results.append)
    model.sync()
    assert results == [None]
    assert bodies(queue) == [b"other"]
    assert len(queue.journal.live) == persistent
    consumer = model.consumer(queue)
    model.sync()
    assert consumer.bodies == [b"other"]
    assert (queue.message_count, queue.acquired_count) == (1, 1)


# ---- idle queues ----


@pytest.mark.parametrize("is_turned", [False, True])
def test_idle_queues_are_due_when_their_time_is_over(model: Model, is_turned: bool) -> None:
    queues = IdleQueues(lambda: model.now)
    one, two = make(model, "one", auto_delete_seconds=5), make(model, "two", auto_delete_seconds=9)
    assert queues.take_due() == []
    for queue in (two, one) if is_turned else (one, two):
        queues.begin(queue)
    model.now += 4.9
    assert queues.take_due() == []
    model.now += 0.2
    assert one in queues
    assert queues.take_due() == [one]
    assert one not in queues
    assert (len(queues), queues.take_due()) == (1, [])
    model.now += 4
    assert queues.take_due() == [two]
    assert len(queues) == 0


def test_the_time_of_an_idle_queue_restarts(model: Model) -> None:
    queues = IdleQueues(lambda: model.now)
    queue = make(model, "one", auto_delete_seconds=5)
    queues.begin(queue)
    model.now += 4
    queues.begin(queue)
    model.now += 4
    assert queues.take_due() == []
    model.now += 1
    assert queues.take_due() == [queue]


def test_an_idle_queue_that_is_gone_is_forgotten(model: Model) -> None:
    queues = IdleQueues(lambda: model.now)
    queue = make(model, "one", auto_delete_seconds=5)
    queues.begin(queue)
    queues.forget(queue)
    queues.forget(queue)
    model.now += 6
    assert len(queues) == 0
    assert queues.take_due() == []


# ---- after a restart ----


async def test_a_queue_is_of_its_kind_after_a_restart(tmp_path: Path) -> None:
    arguments = typed_map({"qpid.max_count": 2, "no-local": 1, "qpid.auto_delete_timeout": 9})
    async with wired(tmp_path) as stage:
        await stage.topology.declare_queue("q", durable=True, auto_delete=True, arguments=arguments)
        await stage.publish("", "q", b"1")
    async with wired(tmp_path) as stage:
        queue = stage.broker.default_host.queues["q"]
        assert queue.limit is not None
        assert queue.eligibility is not None
        assert (queue.limit.max_messages, queue.auto_delete_seconds, queue.owner) == (2, 9, None)
        assert len(stage.broker.default_host.idle_queues) == 0
        await stage.publish("", "q", b"2")
        with pytest.raises(ResourceLimitExceededError):
            await stage.publish("", "q", b"3")
        assert stage.bodies("q") == [b"1", b"2"]


@replaces
def test_arguments_that_were_kept_once_and_say_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As qpidd, or an earlier version, has taken them."""
    arguments = typed_map({"qpid.max_count": "many"})

    async def declare(stage: Wired) -> None:
        monkeypatch.setattr(qstore.broker.model.queues.composition, "read_arguments", lambda _: NO_ARGUMENTS)
        await stage.topology.declare_queue("q", durable=True, arguments=arguments)
        monkeypatch.setattr(qstore.broker.model.queues.composition, "read_arguments", read_arguments)
        await stage.publish("", "q", b"1")

    async def scenes() -> None:
        async with wired(tmp_path) as stage:
            await declare(stage)
        async with wired(tmp_path) as stage:
            queue = stage.broker.default_host.queues["q"]
            assert type(queue) is Queue
            assert queue.arguments == arguments
            assert stage.bodies("q") == [b"1"]

    asyncio.run(scenes())
    assert any('"q"' in text and "qpid.max_count" in text for text in caplog.messages)
