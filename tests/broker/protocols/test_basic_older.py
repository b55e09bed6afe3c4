"""AMQP 0-8 and 0-9: other numbers of some methods, and the rules of Apache's brokers in place of RabbitMQ's.

The rules are those of `methods`. Apache's own tests for its brokers
expect them (`qpid_tests.broker_0_8`, `broker_0_9`).
"""

from __future__ import annotations

from typing import Any

import pytest

from qstore.formats.amqp_0_9_1.codes import ReplyCode
from qstore.formats.amqp_0_9_1.frames import FRAME_MIN_SIZE, HEADER, encode_frame
from qstore.formats.amqp_0_9_1.methods import AMQP_0_8, AMQP_0_8_PUBLISHED, AMQP_0_9, Version
from tests.broker.protocols.basic_client import BasicClient
from tests.broker.protocols.world import World
from tests.broker.test_acl_control import use


@pytest.fixture(params=[AMQP_0_8, AMQP_0_8_PUBLISHED, AMQP_0_9], ids=["0-8", "0-8 as published", "0-9"])
def version(request: pytest.FixtureRequest) -> Version:
    found: Version = request.param
    return found


@pytest.fixture
def client(world: World, version: Version) -> BasicClient:
    return BasicClient(world, version=version).open()


def closed(client: BasicClient, name: str, **values: Any) -> tuple[str, int]:
    """What is closed because of a method, and the reply code."""
    client.method(name, 1, **values)
    client.sync()
    found = client.received[-1]
    assert found.name in ("channel.close", "connection.close"), client.received
    return found.name, found.values["reply_code"]


def bodies(client: BasicClient) -> list[tuple[bytes, bool]]:
    return [(each.body, each.values["redelivered"]) for each in client.take("basic.deliver")]


def test_the_broker_says_which_version_it_speaks(world: World, version: Version) -> None:
    client = BasicClient(world, version=version)
    client.send(version.header)
    client.sync()
    start = client.last(0)
    assert (start.values["version_major"], start.values["version_minor"]) == version.number
    assert start.values["server_properties"].get("capabilities") is None


def test_a_header_of_another_version_is_answered_with_the_broker_s(world: World) -> None:
    client = BasicClient(world, version=AMQP_0_8)
    client.send(AMQP_0_9.header)
    world.run()
    assert bytes(client.host.output) == AMQP_0_8.header


def test_messages_pass(client: BasicClient) -> None:
    client.call("queue.declare", queue="q", durable=True)
    client.publish("q", b"one")
    client.call("basic.consume", queue="q")
    [delivery] = client.take("basic.deliver")
    assert (delivery.body, delivery.values["routing_key"]) == (b"one", "q")
    client.method("basic.ack", delivery_tag=delivery.values["delivery_tag"])
    assert client.call("queue.delete", queue="q").values["message_count"] == 0


def test_channel_and_connection_are_closed_with_the_numbers_of_the_version(client: BasicClient) -> None:
    assert client.call("channel.close").name == "channel.close-ok"
    assert client.call("connection.close", 0).name == "connection.close-ok"


@pytest.mark.parametrize(
    ("name", "values", "code"),
    [
        ("connection.tune-ok", {"frame_max": FRAME_MIN_SIZE - 1}, ReplyCode.NOT_ALLOWED),
        ("connection.tune-ok", {"channel_max": 0xFFFF}, ReplyCode.NOT_ALLOWED),
        ("connection.secure-ok", {}, ReplyCode.COMMAND_INVALID),
        ("connection.open", {"virtual_host": "/"}, ReplyCode.COMMAND_INVALID),
        ("queue.declare", {}, ReplyCode.COMMAND_INVALID),
    ],
)
def test_errors_of_the_negotiation(
    world: World, version: Version, name: str, values: dict[str, Any], code: ReplyCode
) -> None:
    client = BasicClient(world, version=version)
    client.start()
    client.method(name, 0, **values)
    client.sync()
    close = client.last(0)
    assert (close.name, close.values["reply_code"]) == ("connection.close", code)
    client.method("connection.close-ok", 0)
    world.run()
    assert client.host.is_closed


def test_a_client_may_leave_while_it_negotiates(world: World, version: Version) -> None:
    client = BasicClient(world, version=version)
    client.start()
    assert client.call("connection.close", 0).name == "connection.close-ok"
    assert client.host.is_closed


def test_a_failed_login_ends_the_connection(world: World, version: Version) -> None:
    client = BasicClient(world, version=version)
    client.start("PLAIN", b"nothing")
    assert client.host.is_closed
    assert [each.name for each in client.received] == ["connection.start"]


def test_what_is_not_permitted_is_refused_as_that(world: World, client: BasicClient) -> None:
    use(world.broker, "acl deny all create queue", "acl deny all create exchange", "acl allow all all")
    refused = ("channel.close", ReplyCode.ACCESS_REFUSED)
    assert closed(client, "queue.declare", queue="q") == refused
    client.method("channel.close-ok")
    client.call("channel.open")
    assert closed(client, "exchange.declare", exchange="x", type="direct") == refused


def test_every_method_is_answered_or_refused(world: World, version: Version) -> None:
    """With fields that are empty, on a channel and on channel 0; none is a failure of the broker."""
    for name, method in version.by_name.items():
        for channel in (0, 1):
            client = BasicClient(world, version=version).open()
            client.send(client.encode(name, channel))
            if method.has_content:
                client.send(encode_frame(HEADER, channel, bytes((0, 60)) + bytes(12)))
            client.sync()
            codes = {each.values["reply_code"] for each in client.received if "reply_code" in each.values}
            assert ReplyCode.INTERNAL_ERROR not in codes, (name, channel)


def test_a_ticket_is_granted_for_every_realm(client: BasicClient) -> None:
    assert client.call("access.request", realm="/data", active=True).values == {"ticket": 1}


@pytest.mark.parametrize("class_id", [70, 80, 100, 110, 120])
def test_missing_classes_are_refused_by_name(client: BasicClient, version: Version, class_id: int) -> None:
    client.send(encode_frame(1, 1, bytes((0, class_id, 0, 10))))
    client.sync()
    close = client.last(0)
    assert (close.name, close.values["reply_code"]) == ("connection.close", ReplyCode.NOT_IMPLEMENTED)
    assert f"class {version.missing[class_id]} is not implemented" in close.values["reply_text"]


def test_there_are_no_extensions(client: BasicClient) -> None:
    client.send(encode_frame(1, 1, b"\x00\x55\x00\x0a\x00"))  # confirm.select
    client.sync()
    assert client.last(0).values["reply_code"] == ReplyCode.FRAME_ERROR


def test_a_client_is_told_nothing_by_extensions_that_it_claims_to_know(client: BasicClient) -> None:
    client.machine.watch_disk(is_short=True)
    client.machine.watch_disk(is_short=False)
    client.call("queue.declare", queue="q")
    client.call("basic.consume", queue="q")
    client.received.clear()
    assert client.call("queue.delete", queue="q").name == "queue.delete-ok"
    assert [each.name for each in client.received] == ["queue.delete-ok"]


def test_only_the_type_of_an_exchange_has_to_agree(client: BasicClient) -> None:
    assert client.call("exchange.declare", exchange="amq.direct", type="direct").name == "exchange.declare-ok"
    client.call("exchange.declare", exchange="x", type="topic", durable=True)
    assert client.call("exchange.declare", exchange="x", type="topic").name == "exchange.declare-ok"
    found = closed(client, "exchange.declare", exchange="x", type="direct")
    assert found == ("connection.close", ReplyCode.NOT_ALLOWED)


def test_reserved_names_are_not_allowed(client: BasicClient) -> None:
    found = closed(client, "exchange.declare", exchange="amq.mine", type="direct")
    assert found == ("connection.close", ReplyCode.NOT_ALLOWED)


def test_a_queue_may_be_redeclared_otherwise(client: BasicClient) -> None:
    client.call("queue.declare", queue="q", exclusive=True, auto_delete=True)
    client.publish("q", b"x")
    assert client.call("queue.declare", queue="q").values["message_count"] == 1


def test_a_queue_of_all_does_not_become_one_that_ends_with_a_connection(world: World, client: BasicClient) -> None:
    client.call("queue.declare", queue="q", durable=True)
    client.publish("q", b"kept")
    other = BasicClient(world, version=client.version).open()
    assert closed(other, "queue.declare", queue="q", exclusive=True) == ("channel.close", ReplyCode.RESOURCE_LOCKED)
    other.call("connection.close", 0)
    assert client.call("queue.declare", queue="q", passive=True).values["message_count"] == 1


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("queue.declare", {}),
        ("queue.declare", {"passive": True}),
        ("queue.declare", {"exclusive": True}),
        ("basic.consume", {}),
        ("basic.get", {}),
        ("queue.purge", {}),
        ("queue.delete", {}),
        ("queue.bind", {"exchange": "amq.direct", "routing_key": "k"}),
    ],
)
def test_an_exclusive_queue_is_locked_for_others(
    world: World, client: BasicClient, name: str, values: dict[str, Any]
) -> None:
    client.call("queue.declare", queue="mine", exclusive=True)
    client.call("queue.declare", queue="mine")  # it stays exclusive
    other = BasicClient(world, version=client.version).open()
    assert closed(other, name, queue="mine", **values) == ("channel.close", ReplyCode.RESOURCE_LOCKED)


def test_a_queue_without_a_name_was_declared_before(client: BasicClient) -> None:
    assert closed(client, "basic.consume", queue="") == ("connection.close", ReplyCode.NOT_ALLOWED)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("queue.delete", {"queue": "none"}),
        ("exchange.delete", {"exchange": "none"}),
        ("queue.unbind", {"queue": "none", "exchange": "amq.direct", "routing_key": "k"}),
    ],
)
def test_deleting_what_does_not_exist_fails(client: BasicClient, name: str, values: dict[str, Any]) -> None:
    assert closed(client, name, **values) == ("channel.close", ReplyCode.NOT_FOUND)


def test_prefetch_limits_all_consumers_of_the_channel_together(client: BasicClient) -> None:
    for queue in ("a", "b"):
        client.call("queue.declare", queue=queue)
        client.call("basic.consume", queue=queue)
    client.call("basic.qos", prefetch_count=3)
    for _ in range(4):
        client.publish("a")
        client.publish("b")
    delivered = client.take("basic.deliver")
    assert len(delivered) == 3
    client.method("basic.ack", delivery_tag=delivered[-1].values["delivery_tag"], multiple=True)
    assert len(client.take("basic.deliver")) == 3


@pytest.mark.parametrize("requeue", [False, True])
def test_recovered_messages_are_delivered_again(client: BasicClient, requeue: bool) -> None:
    client.call("queue.declare", queue="q")
    for body in (b"1", b"2", b"3"):
        client.publish("q", body)
    client.call("basic.consume", queue="q")
    first, *_ = client.take("basic.deliver")
    client.method("basic.ack", delivery_tag=first.values["delivery_tag"])
    has_answer = client.version is not AMQP_0_8_PUBLISHED
    client.method("basic.recover" if has_answer else "basic.recover-async", requeue=requeue)
    client.sync()
    assert bodies(client) == [(b"2", True), (b"3", True)]
    assert len(client.take("basic.recover-ok")) == has_answer


@pytest.mark.parametrize("count", [3, 1_000])
def test_what_a_rollback_has_given_back_is_delivered_again(client: BasicClient, count: int) -> None:
    client.call("queue.declare", queue="q")
    for number in range(count + 1):
        client.publish("q", str(number).encode())
    client.call("tx.select")
    client.call("basic.consume", queue="q")
    deliveries = client.take("basic.deliver")
    client.method("basic.ack", delivery_tag=deliveries[-2].values["delivery_tag"], multiple=True)
    client.publish("q", b"never")
    client.method("tx.rollback")
    assert bodies(client) == [(str(number).encode(), True) for number in range(count)]
    assert client.take("tx.rollback-ok")
    client.method("basic.ack", delivery_tag=0, multiple=True)
    client.call("tx.commit")
    client.call("channel.close")
    client.call("channel.open")
    assert client.call("queue.declare", queue="q", passive=True).values["message_count"] == 0


def test_content_of_another_class_is_refused(client: BasicClient) -> None:
    client.call("queue.declare", queue="q")
    client.send(client.encode("basic.publish", routing_key="q"))
    client.send(encode_frame(HEADER, 1, bytes((0, 70)) + bytes(12)))
    client.sync()
    assert client.last(0).values["reply_code"] == ReplyCode.UNEXPECTED_FRAME
