"""Which consumer of AMQP 0-9-1 gets which message: priorities of messages and of consumers, single active consumers."""

from __future__ import annotations

import pytest

from qstore.formats.amqp_0_9_1.properties import Properties
from tests.broker.protocols.basic_client import BasicClient
from tests.broker.protocols.world import World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def client(world: World) -> BasicClient:
    return BasicClient(world).open()


# ---- priorities of messages ----


def test_messages_of_a_higher_priority_are_first_for_clients_of_both_protocols(
    world: World, client: BasicClient
) -> None:
    client.call("queue.declare", queue="q", arguments={"x-max-priority": 20})
    for priority in (None, 3, 20, 255, 9, 4):
        client.publish("q", b"%d" % (priority or 0), Properties(priority=priority))
    other = world.open_client()
    declared = dict(other.call("queue.query", queue="q")["arguments"].entries)
    assert declared["x-max-priority"].value == 20
    other.publish("q", b"of 0-10")
    other.subscribe("q", messages=4)
    assert other.take() == [b"20", b"255", b"9", b"4"]
    client.call("basic.consume", queue="q", no_ack=True)
    assert [each.body for each in client.take("basic.deliver")] == [b"of 0-10", b"3", b"0"]


def test_a_priority_that_0_10_does_not_have_is_its_highest_one_there(world: World, client: BasicClient) -> None:
    client.call("queue.declare", queue="q")
    client.publish("q", b"x", Properties(priority=200))
    other = world.open_client()
    other.subscribe("q")
    assert other.deliveries[0].properties["priority"] == 9
