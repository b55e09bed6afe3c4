"""Completions of durable messages, on a disk that answers when the test says so."""

from __future__ import annotations

import pytest

from qstore.broker.protocols.amqp_0_10.message import restore_transfer
from qstore.formats.amqp_0_10.codes import ErrorCode
from tests.broker.protocols.world import UNLIMITED, Client, World, header


def durable(*names: str) -> Client:
    """A client, and durable queues."""
    world = World()
    for name in names or ("q",):
        world.durable_queue(name)
    return world.open_client()


def test_a_transfer_is_completed_when_it_is_on_the_disk() -> None:
    client = durable()
    kept = client.publish("q", b"1", b"2", delivery_mode=2)
    plain = client.publish("q", b"3")
    client.sync()
    assert client.completed == set(plain)
    client.world.store.end_flush()
    client.sync()
    assert client.completed == {*kept, *plain}
    assert [restore_transfer(data).body for data in client.world.store.enqueued] == [b"1", b"2"]


def test_one_flush_for_a_turn_and_flushes_end_in_any_order() -> None:
    client = durable()
    numbers: list[int] = []
    for _ in range(3):
        numbers += client.publish("q", b"a", b"b", delivery_mode=2)
        client.world.run()
    flushes = client.world.store.flushes
    assert len(flushes) == 3
    flushes.pop(1)(None)
    client.sync()
    assert client.completed == set(numbers[2:4])
    flushes.pop(1)(None)
    flushes.pop(0)(None)
    client.sync()
    assert client.completed == set(numbers)


def test_nothing_is_delivered_before_it_is_on_the_disk_and_nothing_overtakes_it() -> None:
    client = durable()
    client.subscribe("q")
    client.publish("q", b"kept", delivery_mode=2)
    client.publish("q", b"after")
    assert client.take() == []
    client.world.store.end_flush()
    assert client.take() == [b"kept", b"after"]


@pytest.mark.parametrize("waits", [True, False])
def test_a_sender_that_waits_has_its_completion_before_messages_are_delivered(waits: bool) -> None:
    """So that it goes on meanwhile. One that does not wait has it when everything else was done."""
    client = durable()
    client.subscribe("q")
    client.all.clear()
    head = header(routing_key="q", delivery_mode=2)
    client.command("message.transfer", destination="", header=head, body=b"1", sync=waits)
    client.sync()
    assert client.all == []
    client.world.store.end_flush()
    client.sync()
    came = ["session.completed", "message.transfer"]
    assert [sent.name for sent in client.all] == (came if waits else came[::-1])


@pytest.mark.parametrize("waits", [True, False])
def test_the_loop_learns_which_senders_wait_for_the_disk(waits: bool) -> None:
    """They send nothing more before it has synced, so the loop may wait for it itself."""
    client = durable()
    asked: list[int] = []
    client.world.broker.tick.is_idle = lambda waiting, _flushes: bool(asked.append(waiting))
    head = header(routing_key="q", delivery_mode=2)
    client.command("message.transfer", destination="", header=head, body=b"1", sync=waits)
    client.world.run()
    assert asked[-1] == int(waits)
    client.world.store.end_flush()
    client.sync()
    assert client.session().is_in_step is False


def test_the_messages_of_a_transaction_are_reported_together_with_its_commit() -> None:
    client = durable()
    client.command("tx.select")
    client.sync()
    client.all.clear()
    messages = client.publish("q", b"1", b"2", delivery_mode=2)
    first = client.command("tx.commit")
    client.sync()
    assert client.all == []
    later = client.publish("q", b"3", delivery_mode=2)
    second = client.command("tx.commit")
    client.sync()
    assert client.all == []
    client.world.store.end_flush()
    client.sync()
    assert [sent.name for sent in client.all] == ["session.completed"]
    assert client.completed >= {*messages, first, *later}
    assert second not in client.completed
    client.world.store.end_flush()
    client.sync()
    assert second in client.completed


def test_after_a_commit_completions_are_reported_at_once_again() -> None:
    client = durable()
    client.command("tx.select")
    client.publish("q", b"1", delivery_mode=2)
    client.command("tx.commit")
    client.sync()
    client.world.store.end_flush()
    inside = client.publish("q", b"2", delivery_mode=2)
    client.sync()
    assert client.completed >= set(inside)


def test_an_accept_is_completed_when_it_is_on_the_disk() -> None:
    client = durable()
    client.publish("q", b"kept", delivery_mode=2)
    client.publish("q", b"plain")
    client.world.run()
    client.world.store.end_flush()
    client.subscribe("q")
    kept, plain = (client.command("message.accept", transfers=((number, number),)) for number in (0, 1))
    client.sync()
    assert plain in client.completed
    assert kept not in client.completed
    assert client.world.store.dequeued == [1]
    client.world.store.end_flush()
    client.sync()
    assert kept in client.completed


def test_sync_waits_for_the_disk() -> None:
    client = durable()
    client.publish("q", b"1", delivery_mode=2)
    number = client.command("execution.sync")
    (later,) = client.publish("q", b"2")
    client.sync()
    assert number not in client.completed
    assert later in client.completed
    client.world.store.end_flush()
    client.sync()
    assert number in client.completed


def test_a_purge_is_completed_when_it_is_on_the_disk() -> None:
    client = durable()
    client.publish("q", b"1", delivery_mode=2)
    client.world.run()
    client.world.store.end_flush()
    number = client.command("queue.purge", queue="q")
    client.sync()
    assert number not in client.completed
    client.world.store.end_flush()
    client.sync()
    assert number in client.completed


def test_a_rejected_message_is_kept_where_it_goes_before_it_leaves() -> None:
    client = durable("q", "dead", "plain")
    world, store = client.world, client.world.store
    fanout = world.broker.default_host.exchanges["amq.fanout"]
    world.broker.default_host.queues["q"].alternate = fanout
    fanout.bind(world.broker.default_host.queues["dead"], "")
    client.publish("q", b"moves", delivery_mode=2)
    client.publish("plain", b"goes", delivery_mode=2)
    client.world.run()
    store.end_flush()
    client.subscribe("q")
    client.subscribe("plain")
    number = client.command("message.reject", transfers=((0, 1),))
    client.sync()
    assert len(store.enqueued) == 3
    assert store.dequeued == [2], "only that which goes nowhere"
    assert number not in client.completed
    while store.flushes:
        assert number not in client.completed
        store.end_flush()
        client.sync()
    assert store.dequeued == [2, 1]
    assert number in client.completed


def test_a_reject_that_moves_some_waits_for_those_that_are_dequeued_too() -> None:
    client = durable("gone")
    world, store = client.world, client.world.store
    client.declare("dead")
    client.declare("moved", alternate_exchange="amq.fanout")
    client.command("exchange.bind", queue="dead", exchange="amq.fanout", binding_key="")
    client.publish("moved", b"1")
    client.publish("gone", b"2", delivery_mode=2)
    client.world.run()
    store.end_flush()
    client.subscribe("moved")
    client.subscribe("gone")
    number = client.command("message.reject", transfers=((0, 1),))
    client.sync()
    assert (store.dequeued, len(store.flushes)) == ([1], 1)
    assert number not in client.completed
    store.end_flush()
    client.sync()
    assert number in client.completed
    assert world.broker.default_host.queues["dead"].message_count == 1


def test_a_flush_that_fails_completes_nothing_that_waited_for_it() -> None:
    client = durable()
    waiting = client.publish("q", b"1", b"2", delivery_mode=2)
    client.world.run()
    more = client.publish("q", b"3", delivery_mode=2)
    plain = client.publish("q", b"4")
    client.world.store.end_flush(OSError("the disk is gone"))
    code, number = client.failure()
    assert (code, number) == (ErrorCode.INTERNAL_ERROR, waiting[0])
    assert not {*waiting, *more} & client.completed
    assert client.completed <= set(plain)


def test_a_journal_that_is_full_ends_the_session_that_publishes() -> None:
    client = durable()
    client.world.store.failing = client.world.store.FullError('Enqueue capacity threshold exceeded on queue "q".')
    (number,) = client.publish("q", b"1", delivery_mode=2)
    assert client.failure() == (ErrorCode.RESOURCE_LIMIT_EXCEEDED, number)
    assert client.exceptions[0]["description"] == 'Enqueue capacity threshold exceeded on queue "q".'
    assert client.world.broker.default_host.queues["q"].message_count == 0


@pytest.mark.parametrize("name", ["message.accept", "message.reject"])
def test_a_disk_that_has_failed_ends_the_session_that_settles(name: str) -> None:
    client = durable()
    client.publish("q", b"1", delivery_mode=2)
    client.world.run()
    client.world.store.end_flush()
    client.subscribe("q")
    client.world.store.failing = client.world.store.FailedError("the disk is gone")
    number = client.command(name, transfers=((0, 0),))
    assert client.failure() == (ErrorCode.INTERNAL_ERROR, number)


@pytest.mark.parametrize("messages", [1, UNLIMITED])
@pytest.mark.parametrize("others", [0, 1, 2])
def test_a_failing_disk_under_deliveries_ends_those_sessions_and_the_broker_continues(
    messages: int, others: int
) -> None:
    """Without accepting, the dequeue is written when the message is sent: in the midst of the queue's dispatch."""
    client = durable()
    store = client.world.store
    consumers = [client.world.open_client(name=b"%d" % number) for number in range(others)]
    client.subscribe("q", accept_mode=1, messages=messages)
    for consumer in consumers:
        consumer.subscribe("q", accept_mode=1)
    client.publish("q", b"1", b"2", b"3", delivery_mode=2)
    client.sync()
    store.end_flush()
    store.failing = store.FailedError("the disk is gone")
    client.world.run()
    store.failing = None
    for each in (client, *consumers):
        assert each.failure()[0] == ErrorCode.INTERNAL_ERROR
    queue = client.world.broker.default_host.queues["q"]
    assert queue.consumer_count == 0
    assert not queue._consumers.waiting
    late = client.world.open_client(name=b"late")
    late.publish("q", b"4")
    late.subscribe("q")
    assert b"4" in late.take()


def test_completions_beyond_a_known_gap_are_reported_as_they_come() -> None:
    """The client has acknowledged all below the gap, so the completions to report remain one range, which grows."""
    client = durable()
    known = client.publish("q", b"1")
    client.sync()
    client.control("session.known-completed", on=1, commands=((0, known[-1]),))
    waiting = client.publish("q", b"2", delivery_mode=2)
    client.world.run()
    for body in (b"3", b"4"):
        plain = client.publish("q", body)
        client.sync()
        assert client.completed >= set(plain)
    assert client.completed.isdisjoint(waiting)
