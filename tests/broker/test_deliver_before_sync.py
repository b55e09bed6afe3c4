"""Queues that deliver stored messages while their records are written (`qpid.deliver_before_sync`)."""

from __future__ import annotations

from typing import Any

import pytest

from qstore.broker.model.errors import InternalError
from qstore.broker.model.queues.queue import Queue
from qstore.broker.settings import BrokerSettings
from qstore.formats.values import typed_map
from tests.support.fake_store import FakeFailedError, Model

ARGUMENT = "qpid.deliver_before_sync"


def early(model: Model, name: str = "q", **arguments: Any) -> Queue:
    return model.queue(name, durable=True, arguments=typed_map({ARGUMENT: 1, **arguments}))


def test_a_message_is_delivered_at_once_and_its_publisher_waits(model: Model) -> None:
    queue = early(model)
    consumer = model.consumer(queue)
    assert model.publish("q", b"1") == [True]
    reported: list[Exception | None] = []
    model.tick.when_synced(reported.append)
    model.run()
    assert consumer.bodies == [b"1"]
    assert reported == []
    assert len(model.store.waiting) == 1
    model.store.complete()
    assert reported == [None]


def test_an_idle_loop_delivers_first_and_does_not_block(model: Model) -> None:
    """What a consumer that need not accept has taken is removed by the same flush."""
    queue = early(model)
    seen: list[int] = []
    model.consumer(queue, on_delivery=lambda entry: (seen.append(len(model.store.waiting)), queue.dequeue(entry)))
    model.tick.is_idle = lambda _waiting, _flushes: True
    model.publish("q", b"1")
    model.tick.end()
    assert seen == [0]
    assert model.store.may_block == [False]
    assert len(model.store.waiting) == 1
    assert queue.is_empty
    model.sync()
    model.queue("other", durable=True)
    model.publish("other", b"2")
    model.run()
    assert model.store.may_block[-1]


def test_a_message_may_be_accepted_before_it_is_on_the_disk(model: Model) -> None:
    queue = early(model)
    consumer = model.consumer(queue)
    model.publish("q", b"1")
    model.run()
    assert queue.dequeue(consumer.entries[0])
    model.run()
    assert len(model.store.waiting) == 1, "nobody waits for the removal"
    model.sync()
    assert queue.journal.live == {}


def test_messages_of_a_transaction_wait_and_none_overtakes_them(model: Model) -> None:
    queue = early(model)
    consumer = model.consumer(queue)
    transaction = model.broker.begin_transaction(0)
    transaction.publish(model.message("q", b"1"), model.broker.default_host.exchanges[""])
    reported: list[Exception | None] = []
    transaction.commit(reported.append)
    model.publish("q", b"2")
    model.run()
    assert consumer.bodies == []
    assert queue.is_held
    model.sync()
    assert reported == [None]
    assert consumer.bodies == [b"1", b"2"]
    assert not queue.is_held


@pytest.mark.parametrize("is_synced", [False, True])
def test_only_messages_on_the_disk_leave_memory(model: Model, is_synced: bool) -> None:
    queue = early(model)
    assert queue.residency is not None
    model.publish("q", *(b"." * 5000 for _ in range(1200)))
    model.run()
    if is_synced:
        model.sync()
    assert (queue.residency.relieve(1 << 20, is_urgent=True) >= 1 << 20) is is_synced


def test_a_message_whose_record_cannot_be_written_cannot_be_accepted(model: Model) -> None:
    queue = early(model)
    consumer = model.consumer(queue)
    model.publish("q", b"1")
    reported: list[Exception | None] = []
    model.tick.when_synced(reported.append)
    model.run()
    queue.journal.has_failed = True
    model.store.complete(error=FakeFailedError("the disk has failed"))
    assert str(reported[0]) == "the disk has failed"
    with pytest.raises(InternalError, match="failed"):
        queue.dequeue(consumer.entries[0])


@pytest.mark.parametrize(("option", "argument", "is_early"), [
    (False, None, False), (True, None, True), (True, 0, False), (True, "no", False), (False, True, True),
    (False, "yes", True),
])  # fmt: skip
def test_the_argument_goes_before_the_option(option: bool, argument: object, is_early: bool) -> None:
    model = Model(BrokerSettings(deliver_before_sync=option))
    arguments = {} if argument is None else {ARGUMENT: argument}
    assert model.queue("q", durable=True, arguments=typed_map(arguments)).is_early is is_early
