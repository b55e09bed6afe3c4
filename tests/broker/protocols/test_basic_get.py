"""basic.get of AMQP 0-9-1 that cannot be answered at once: why it waits, and the answer in the end."""

from __future__ import annotations

import pytest

from qstore.formats.amqp_0_9_1.properties import Properties
from tests.broker.protocols.basic_client import BasicClient
from tests.broker.protocols.world import World

TRANSIENT = Properties()


@pytest.fixture
def client(world: World) -> BasicClient:
    client = BasicClient(world).open()
    client.call("queue.declare", queue="q")
    return client


def names(client: BasicClient) -> list[str]:
    return [each.name for each in client.take()]


@pytest.mark.parametrize("messages", [0, 1])
def test_flow_does_not_stop_it(client: BasicClient, messages: int) -> None:
    for _ in range(messages):
        client.publish("q", b"x", TRANSIENT)
    client.call("channel.flow", active=False)
    got = client.call("basic.get", queue="q")
    assert got.name == ("basic.get-ok" if messages else "basic.get-empty")
    assert client.call("channel.flow", active=True).name == "channel.flow-ok"


@pytest.mark.parametrize("messages", [0, 1])
def test_get_waits_for_a_full_socket_without_work(client: BasicClient, messages: int) -> None:
    for _ in range(messages):
        client.publish("q", b"x", TRANSIENT)
    client.sync()
    client.received.clear()
    client.machine.pause_sending()
    client.method("basic.get", queue="q")
    assert names(client) == []  # and the event loop comes to rest
    client.machine.resume_sending()
    assert names(client) == ["basic.get-ok" if messages else "basic.get-empty"]
    assert not client.machine.is_paused


def test_get_waits_for_room_in_the_output(client: BasicClient) -> None:
    size = 200_000
    for _ in range(4):
        client.publish("q", bytes(size), TRANSIENT)
    client.sync()
    client.received.clear()
    for _ in range(5):
        client.method("basic.get", queue="q", no_ack=True)
    found = client.take()
    assert [len(each.body) for each in found] == [size] * 4 + [0]
    assert found[-1].name == "basic.get-empty"


def test_a_queue_whose_journal_has_failed(world: World, client: BasicClient) -> None:
    world.durable_queue("d")
    client.publish("d", b"x")
    client.sync()
    world.store.end_flush(world.store.FailedError("the disk is gone"))
    client.method("basic.get", queue="d")
    client.sync()
    world.store.end_flush(world.store.FailedError("the disk is gone"))
    closed = client.take()[-1]
    assert (closed.name, closed.values["reply_code"]) == ("connection.close", 541)
    assert "the disk is gone" in closed.values["reply_text"]
    assert world.broker.default_host.queues["d"].consumer_count == 0


def test_get_takes_no_credit_of_consumers(client: BasicClient) -> None:
    client.call("queue.declare", queue="r")
    client.publish("q", b"got", TRANSIENT)
    for body in (b"1", b"2"):
        client.publish("r", body, TRANSIENT)
    client.call("basic.qos", prefetch_count=1, **{"global": True})
    client.call("basic.get", queue="q")
    client.call("basic.consume", queue="r")
    assert [each.body for each in client.take("basic.deliver")] == [b"1"]
    client.method("basic.ack", delivery_tag=1)
    assert client.take("basic.deliver") == []
    client.method("basic.ack", delivery_tag=2)
    assert [each.body for each in client.take("basic.deliver")] == [b"2"]


def test_get_reports_how_many_messages_are_left(client: BasicClient) -> None:
    for name, arguments in (("q", {}), ("levels", {"x-max-priority": 5})):
        client.call("queue.declare", queue=name, arguments=arguments)
        for priority in (1, 3, 5):
            client.publish(name, b"x", Properties(priority=priority))
        got = [client.call("basic.get", queue=name) for _ in range(3)]
        assert [each.values["message_count"] for each in got] == [2, 1, 0], name
