"""Direct replies: requests and replies of AMQP 0-9-1 without a queue for the replies, and replies of AMQP 0-10."""

from __future__ import annotations

from typing import Any

import pytest

from qstore.broker.model import replies
from qstore.broker.model.replies import REPLY_TO
from qstore.formats.amqp_0_9_1.properties import Properties
from qstore.formats.amqp_0_10.structs import MESSAGE_PROPERTIES, decode_struct
from tests.broker.protocols.basic_client import BasicClient, Received
from tests.broker.protocols.world import World, header

REQUEST = Properties(reply_to=REPLY_TO, correlation_id="7")


@pytest.fixture
def requester(world: World) -> BasicClient:
    client = BasicClient(world).open(1, 2)
    client.call("queue.declare", queue="work")
    assert client.call("basic.consume", queue=REPLY_TO, consumer_tag="r", no_ack=True).name == "basic.consume-ok"
    client.received.clear()
    return client


def failed(client: BasicClient, name: str, channel: int = 1, **values: Any) -> tuple[int, str]:
    """Code and text of the channel.close that a method leads to."""
    client.method(name, channel, **values)
    (closed,) = client.take("channel.close", "connection.close")
    return closed.values["reply_code"], closed.values["reply_text"]


def address(client: BasicClient, **values: Any) -> str:
    """The reply address that the broker gives a request."""
    client.publish("work", b"request", REQUEST, **values)
    client.sync()
    request = BasicClient(client.world).open().call("basic.get", queue="work", no_ack=True)
    assert request.properties is not None
    assert request.properties._replace(reply_to=REPLY_TO) == REQUEST
    name = request.properties.reply_to
    assert name is not None
    return name


def given(client: BasicClient) -> list[Received]:
    return client.take("basic.deliver")


def test_a_reply_goes_to_the_channel_that_has_asked(world: World, requester: BasicClient) -> None:
    requester.call("basic.consume", 2, queue=REPLY_TO, consumer_tag="other", no_ack=True)
    first, second = address(requester), address(requester, channel=2)
    assert first != second
    assert first.startswith("amq.rabbitmq.reply-to.")
    assert len(first) > 50
    responder = BasicClient(world).open()
    responder.publish(first, b"reply", Properties(correlation_id="7", delivery_mode=2))
    responder.publish(second, b"second")
    reply, other = given(requester)
    assert (reply.channel, reply.body, reply.values["consumer_tag"], reply.values["routing_key"]) == (
        1, b"reply", "r", first,
    )  # fmt: skip
    assert reply.properties == Properties(correlation_id="7", delivery_mode=2)
    assert (other.channel, other.body) == (2, b"second")
    assert world.store.enqueued == []


def test_a_responder_of_0_10_replies_to_the_address_that_it_finds(world: World, requester: BasicClient) -> None:
    responder = world.open_client()
    responder.subscribe("work")
    requester.publish("work", b"request", REQUEST)
    requester.sync()
    responder.sync()
    (request,) = responder.deliveries
    name = _reply_key(request.header)
    assert responder.call("queue.query", queue=name)["queue"] == name
    assert not responder.call("exchange.bound", exchange="", binding_key=name)["key_not_matched"]
    responder.command("message.transfer", header=header({"correlation_id": b"7"}, routing_key=name), body=b"reply")
    responder.sync()
    (reply,) = given(requester)
    assert reply.body == b"reply"
    assert reply.properties is not None
    assert reply.properties.correlation_id == "7"
    requester.call("basic.cancel", consumer_tag="r")
    assert responder.call("queue.query", queue=name)["queue"] is None


def _reply_key(data: bytes) -> str:
    values = decode_struct(MESSAGE_PROPERTIES, data, 4 + int.from_bytes(data[:4], "big"))
    key: str = values["reply_to"].routing_key
    return key


def test_requests_that_are_alike_have_the_address_of_their_channel(requester: BasicClient) -> None:
    requester.call("basic.consume", 2, queue=REPLY_TO, no_ack=True)
    requester.publish("work", b"x", Properties(reply_to="elsewhere"))
    requester.call("basic.get", queue="work", no_ack=True)
    names = [address(requester, channel=channel) for channel in (1, 2, 1, 2)]
    assert names[0] == names[2] != names[1] == names[3]


def test_whether_a_requester_is_there(world: World, requester: BasicClient) -> None:
    name = address(requester)
    responder = BasicClient(world).open(1, 2)
    responder.received.clear()
    for passive in (True, False):
        there = responder.call("queue.declare", queue=name, passive=passive)
        assert there.values == {"queue": name, "message_count": 0, "consumer_count": 1}
        assert responder.call("queue.declare", queue=REPLY_TO, passive=passive).name == "queue.declare-ok"
    responder.call("confirm.select")
    responder.publish(name, b"there", mandatory=True)
    requester.call("channel.close", reply_code=200, reply_text="")
    responder.publish(name, b"gone", mandatory=True)
    responder.publish(name, b"gone")
    assert [each.body for each in responder.take("basic.return")] == [b"gone"]
    assert responder.take("basic.nack") == []
    assert failed(responder, "queue.declare", 2, queue=name, passive=True)[0] == 404


def test_the_reply_address_cannot_be_used_as_a_queue(world: World, requester: BasicClient) -> None:
    name = address(requester)
    for queue in (REPLY_TO, name):
        for method, values in (
            ("basic.get", {}), ("queue.purge", {}), ("queue.bind", {"exchange": "amq.direct", "routing_key": "k"}),
        ):  # fmt: skip
            assert failed(BasicClient(world).open(), method, queue=queue, **values)[0] == 404, (queue, method)
        assert BasicClient(world).open().call("queue.delete", queue=queue).name == "queue.delete-ok"
    assert failed(BasicClient(world).open(), "basic.consume", queue=name, no_ack=True)[0] == 404
    assert list(world.broker.default_host.queues) == ["work"]
    BasicClient(world).open().publish(name, b"still there")
    assert [each.body for each in given(requester)] == [b"still there"]


def test_misuse(world: World, requester: BasicClient) -> None:
    assert failed(requester, "basic.consume", 2, queue=REPLY_TO, no_ack=False) == (
        406, "PRECONDITION_FAILED - reply consumer cannot acknowledge",
    )  # fmt: skip
    assert failed(requester, "basic.consume", queue=REPLY_TO, no_ack=True) == (
        406, "PRECONDITION_FAILED - reply consumer already set",
    )  # fmt: skip
    client = BasicClient(world).open()
    client.publish("work", b"x", REQUEST)
    (closed,) = client.take("channel.close")
    assert closed.values["reply_text"] == "PRECONDITION_FAILED - fast reply consumer does not exist"
    assert world.broker.default_host.replies.queues == {}


def test_after_a_cancel_there_is_another_address(requester: BasicClient) -> None:
    before = address(requester)
    requester.call("basic.cancel", consumer_tag="r")
    requester.call("basic.consume", queue=REPLY_TO, no_ack=True)
    assert address(requester) != before


def test_replies_in_a_transaction_come_when_it_is_committed(world: World, requester: BasicClient) -> None:
    name = address(requester)
    responder = BasicClient(world).open()
    responder.call("tx.select")
    responder.publish(name, b"reply")
    assert given(requester) == []
    responder.call("tx.commit")
    assert [each.body for each in given(requester)] == [b"reply"]


def test_a_requester_that_does_not_read_loses_the_oldest_replies(
    world: World, requester: BasicClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replies, "MAX_REPLIES", 3)
    requester.call("basic.consume", 2, queue=REPLY_TO, consumer_tag="slow", no_ack=True)
    name = address(requester, channel=2)
    requester.call("channel.flow", 2, active=False)
    responder = BasicClient(world).open()
    for number in range(5):
        responder.publish(name, b"%d" % number)
        responder.sync()
    assert world.broker.held_memory() == world.broker.default_host.replies.memory > 0
    requester.call("channel.flow", 2, active=True)
    assert [each.body for each in given(requester)] == [b"2", b"3", b"4"]


def test_nothing_is_left_of_a_requester(world: World, requester: BasicClient) -> None:
    name = address(requester)
    requester.call("channel.flow", active=False)
    BasicClient(world).open().publish(name, b"unread")
    world.run()
    requester.machine.closed()
    world.run()
    assert world.broker.default_host.replies.queues == {}
    assert name not in world.broker.default_host.exchanges[""].routes
    assert world.broker.held_memory() == 0
