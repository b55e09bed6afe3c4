"""Which consumer of AMQP 0-9-1 gets which message: priorities of messages and of consumers, single active consumers."""

from __future__ import annotations

from typing import Any

import pytest

from qstore.formats.amqp_0_9_1.properties import Properties
from qstore.formats.values import typed_map
from tests.broker.protocols.basic_client import BasicClient
from tests.broker.protocols.world import World


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


# ---- priorities of consumers ----


def consume(client: BasicClient, channel: int, tag: str, priority: int | None = 0, **values: Any) -> None:
    arguments = {} if priority is None else {"x-priority": priority}
    client.method("basic.consume", channel, queue="q", consumer_tag=tag, arguments=arguments, **values)


def given(client: BasicClient) -> list[tuple[str, bytes]]:
    """Consumer -> the messages that it received."""
    return [(each.values["consumer_tag"], each.body) for each in client.take("basic.deliver")]


@pytest.mark.parametrize(
    "arguments", [{}, {"x-max-priority": 2}, {"qpid.group_header_key": "g", "qpid.shared_msg_group": 1}]
)
def test_consumers_of_a_higher_priority_come_first_while_they_have_credit(
    client: BasicClient, arguments: dict[str, Any]
) -> None:
    client.call("queue.declare", queue="q", arguments=arguments)
    for tag, priority in (("low", -5), ("plain", None), ("a", 1 << 62), ("b", 1 << 62)):
        client.method("basic.qos", prefetch_count=2)
        consume(client, 1, tag, priority)
    for number in range(9):
        client.publish("q", b"%d" % number, Properties(headers=typed_map({"g": str(number)})))
        client.sync()
    found = given(client)
    assert [tag for tag, _ in found] == ["a", "b", "a", "b", "plain", "plain", "low", "low"]
    client.method("basic.ack", delivery_tag=7)  # of the lowest
    assert given(client) == [("low", b"8")]
    client.method("basic.ack", delivery_tag=1)
    client.method("basic.ack", delivery_tag=8)
    client.publish("q", b"x")
    assert given(client) == [("a", b"x")]
    client.method("basic.cancel", consumer_tag="a")
    client.method("basic.ack", delivery_tag=2)
    client.publish("q", b"y", Properties(headers=typed_map({"g": "y"})))
    assert given(client) == [("b", b"y")]


def test_without_any_the_queue_is_a_plain_one_again(world: World, client: BasicClient) -> None:
    client.call("queue.declare", queue="q")
    consume(client, 1, "a", no_ack=True)
    consume(client, 1, "high", 7, no_ack=True)
    client.publish("q", b"0")
    client.sync()
    client.call("basic.cancel", consumer_tag="high")
    consume(client, 1, "b", no_ack=True)
    assert world.broker.default_host.queues["q"]._consumers.ranking is None
    for number in range(1, 5):
        client.publish("q", b"%d" % number)
    assert given(client) == [("high", b"0"), ("a", b"1"), ("b", b"2"), ("a", b"3"), ("b", b"4")]


@pytest.mark.parametrize("priority", ["high", True, 1.5])
def test_a_priority_is_a_whole_number(client: BasicClient, priority: Any) -> None:
    client.call("queue.declare", queue="q")
    consume(client, 1, "c", priority)
    (closed,) = client.take("channel.close")
    assert (closed.values["reply_code"], "x-priority is" in closed.values["reply_text"]) == (406, True)


def test_clients_of_0_10_have_priorities_too(world: World, client: BasicClient) -> None:
    client.call("queue.declare", queue="q")
    other = world.open_client()
    other.subscribe("q", messages=1, arguments=typed_map({"x-priority": 3}))
    consume(client, 1, "c", 2, no_ack=True)
    client.publish("q", b"1")
    client.publish("q", b"2")
    assert given(client) == [("c", b"2")]
    assert other.take() == [b"1"]


def test_declined_message_goes_to_lower_priorities(client: BasicClient) -> None:
    """And what all have declined is offered to the higher ones first among those who come later."""
    client.call("queue.declare", queue="q")
    consume(client, 1, "high", 1, no_local=True)
    client.publish("q", b"1")
    client.publish("q", b"2")
    client.sync()
    client.method("basic.qos", prefetch_count=1)
    consume(client, 1, "low", -1)
    consume(client, 1, "middle", 0)
    assert given(client) == [("middle", b"1"), ("low", b"2")]


# ---- single active consumers ----


@pytest.fixture
def single(client: BasicClient) -> BasicClient:
    client.call("queue.declare", queue="q", arguments={"x-single-active-consumer": True})
    for channel in (2, 3, 4):
        client.call("channel.open", channel)
    return client


def test_one_consumer_gets_all_messages_until_it_has_gone(single: BasicClient) -> None:
    for channel in (1, 2, 3):
        single.method("basic.qos", channel, prefetch_count=2)
        consume(single, channel, f"c{channel}")
    for number in range(6):
        single.publish("q", b"%d" % number, channel=4)
    assert given(single) == [("c1", b"0"), ("c1", b"1")]
    single.method("basic.ack", delivery_tag=1)
    assert given(single) == [("c1", b"2")]
    single.call("basic.cancel", consumer_tag="c1")
    assert given(single) == [("c2", b"3"), ("c2", b"4")]
    single.method("channel.close", 2, reply_code=200, reply_text="")
    assert given(single) == [("c3", b"3"), ("c3", b"4")]  # in order, before later ones
    consume(single, 1, "c1", 9)
    single.method("basic.ack", 3, delivery_tag=2, multiple=True)
    assert given(single) == [("c3", b"5")]


def test_messages_of_a_lost_connection_come_first_in_order(world: World, single: BasicClient) -> None:
    other = BasicClient(world).open()
    consume(other, 1, "lost")
    consume(single, 1, "next")
    for number in range(5):
        single.publish("q", b"%d" % number)
    assert len(given(other)) == 5
    other.method("basic.ack", delivery_tag=2)
    other.machine.closed()
    single.publish("q", b"5")
    found = single.take("basic.deliver")
    assert [each.body for each in found] == [b"0", b"2", b"3", b"4", b"5"]
    assert [each.values["redelivered"] for each in found] == [True] * 4 + [False]


def test_the_first_registered_consumer_of_the_highest_priority_takes_over(single: BasicClient) -> None:
    for tag, priority in (("first", 0), ("low", -1), ("a", 5), ("b", 5)):
        consume(single, 1, tag, priority, no_ack=True)
    single.publish("q", b"0")
    single.sync()
    single.method("basic.cancel", consumer_tag="first")
    single.publish("q", b"1")
    single.sync()
    single.method("basic.cancel", consumer_tag="b")
    single.method("basic.cancel", consumer_tag="a")
    single.publish("q", b"2")
    assert given(single) == [("first", b"0"), ("a", b"1"), ("low", b"2")]


def test_successor_is_offered_declined_messages(single: BasicClient) -> None:
    consume(single, 1, "active", no_local=True)
    single.publish("q", b"0")
    single.sync()
    consume(single, 1, "next")
    assert given(single) == []
    single.method("basic.cancel", consumer_tag="active")
    assert given(single) == [("next", b"0")]


def test_the_active_one_stays_active_when_its_queue_cannot_be_deleted(world: World, single: BasicClient) -> None:
    for priority, tag in enumerate(("first", "second", "high", "top")):
        consume(single, 1, tag, priority)
    single.call("basic.cancel", consumer_tag="first")
    queue = world.broker.default_host.queues["q"]
    queue.begin_deletion()
    queue.undo_deletion()
    single.call("basic.cancel", consumer_tag="high")
    single.publish("q", b"0")
    assert given(single) == [("top", b"0")]


def test_single_active_consumer_allows_get_but_not_exclusive(single: BasicClient) -> None:
    single.publish("q", b"0")
    assert single.call("basic.get", queue="q", no_ack=True).body == b"0"
    single.method("basic.consume", 2, queue="q", exclusive=True)
    (closed,) = single.take("channel.close")
    assert closed.values["reply_code"] == 403
    consume(single, 1, "c")
    single.method("basic.consume", 3, queue="q", exclusive=True)
    (closed,) = single.take("channel.close")
    assert closed.values["reply_code"] == 403
    single.publish("q", b"1")
    assert given(single) == [("c", b"1")]


def test_immediate_messages_need_the_active_one(single: BasicClient) -> None:
    """Those of AMQP 0-10, for which the router asks whether there is a taker."""
    queue = single.world.broker.default_host.queues["q"]
    single.method("basic.qos", prefetch_count=1)
    consume(single, 1, "c")
    consume(single, 1, "next")
    assert queue.has_taker()
    single.publish("q", b"0")
    assert given(single) == [("c", b"0")]
    assert not queue.has_taker()


@pytest.mark.parametrize("value", ["true", 1])
def test_a_single_active_consumer_is_asked_for_or_not(client: BasicClient, value: Any) -> None:
    client.method("queue.declare", queue="s", arguments={"x-single-active-consumer": value})
    (closed,) = client.take("channel.close")
    assert closed.values["reply_code"] == 406
