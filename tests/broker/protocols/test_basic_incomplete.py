"""Messages of AMQP 0-9-1 that come frame by frame: what they may take of memory, and frames that must not be there."""

from __future__ import annotations

import pytest

from qstore.broker.protocols.amqp_0_9_1.frame_output import MAX_FRAME
from qstore.broker.settings import BrokerSettings
from qstore.formats.amqp_0_9_1.frames import BODY, HEADER, METHOD, OVERHEAD, encode_frame
from qstore.formats.amqp_0_9_1.methods import encode_method
from qstore.formats.amqp_0_9_1.properties import Properties, encode_header
from qstore.formats.values import typed_map
from tests.broker.protocols.basic_client import PERSISTENT, BasicClient
from tests.broker.protocols.world import World

LIMIT = 1_000_000
SETTINGS = BrokerSettings(auth=False, max_unfinished_bytes=LIMIT, max_message_bytes=500_000)
PUBLISH = encode_method("basic.publish", routing_key="q")


@pytest.fixture
def world() -> World:
    return World(SETTINGS)


@pytest.mark.parametrize("kind", [METHOD, HEADER, BODY])
def test_every_frame_of_an_incomplete_message_counts(world: World, kind: int) -> None:
    channels = range(1, 51)
    client = BasicClient(world).open(*channels, frame_max=MAX_FRAME)
    budget = world.basic_shared.budget  # type: ignore[attr-defined]
    for channel in channels:
        client.send(encode_frame(METHOD, channel, PUBLISH + bytes(100_000 * (kind == METHOD))))
        if kind != METHOD:
            client.send(encode_frame(HEADER, channel, encode_header(200_000, Properties()) + bytes(100_000)))
        if kind == BODY:
            client.send(encode_frame(BODY, channel, bytes(100_000)))
    refused = [each.values["reply_code"] for each in client.take("channel.close")]
    assert LIMIT // 2 < budget.used <= LIMIT
    assert set(refused) == {406}
    assert 40 <= len(refused) <= 46
    client.machine.dismantle()
    assert budget.used == 0


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize("frame_max", [4096, MAX_FRAME])
def test_the_payload_of_a_body_frame_may_have_the_size_of_a_frame(frame_max: int, is_whole: bool) -> None:
    """As in RabbitMQ: there are clients that cut bodies there."""
    client = BasicClient(World()).open(frame_max=frame_max)
    client.call("queue.declare", queue="q")
    payload = encode_method("basic.publish", routing_key="q")
    size = frame_max if is_whole else frame_max + 1
    begin = encode_frame(METHOD, 1, payload) + encode_frame(HEADER, 1, encode_header(size, PERSISTENT))
    data = begin + encode_frame(BODY, 1, bytes(frame_max)) + (b"" if is_whole else encode_frame(BODY, 1, b"x"))
    for _ in range(4):  # the last ones are recognized by their bytes
        client.send(data)
    for at in range(0, len(data), 1000):
        client.send(data[at : at + 1000])
    client.sync()
    assert client.world.broker.queues["q"].message_count == 5
    got = client.call("basic.get", queue="q", no_ack=True)
    assert (got.name, len(got.body)) == ("basic.get-ok", size)
    client.send(begin + encode_frame(BODY, 1, bytes(frame_max + 1)))
    (closed,) = client.take("connection.close")
    assert closed.values["reply_code"] == 501


@pytest.mark.parametrize("kind", [METHOD, HEADER])
def test_other_frames_have_at_most_the_size_that_was_agreed_on(kind: int) -> None:
    client = BasicClient(World()).open(frame_max=4096)
    client.send(encode_frame(METHOD, 1, encode_method("basic.publish", routing_key="q")))
    client.send(encode_frame(kind, 1, bytes(4096 - OVERHEAD + 1)))
    (closed,) = client.take("connection.close")
    assert closed.values["reply_code"] == 501


def test_the_largest_message_has_room() -> None:
    """Also if that is the limit of all incomplete messages."""
    world = World(BrokerSettings(auth=False, max_unfinished_bytes=1, max_message_bytes=500_000))
    client = BasicClient(world).open(frame_max=MAX_FRAME)
    client.call("queue.declare", queue="q")
    headers = typed_map({f"{number}": "x" * 60_000 for number in range(2)})
    for _ in range(2):
        client.publish("q", bytes(500_000), Properties(headers=headers))
        client.sync()
    assert world.broker.queues["q"].message_count == 2
    assert world.basic_shared.budget.used == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("is_whole", [True, False])
def test_an_empty_body_has_no_frame(world: World, is_whole: bool) -> None:
    client = BasicClient(world).open()
    client.call("queue.declare", queue="q")
    begun = [encode_frame(METHOD, 1, PUBLISH), encode_frame(HEADER, 1, encode_header(0, Properties()))]
    data = b"".join([*begun, encode_frame(BODY, 1, b"")])
    for at in range(0, len(data), len(data) if is_whole else OVERHEAD):
        client.send(data[at : at + (len(data) if is_whole else OVERHEAD)])
    client.sync()
    assert client.last(0).values["reply_code"] == 505
    assert world.broker.queues["q"].message_count == 1


@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize(
    ("begin", "code"),
    [(b"\0\x32\0\0", 505), (b"\0\0\0\0", 505), (b"\0\x32\0\1", 505), (b"\0\x3c\0\1", 501)],
)  # fmt: skip
def test_a_content_header_of_another_class_is_an_unexpected_frame(
    world: World, is_whole: bool, begin: bytes, code: int
) -> None:
    """Whether the message comes in one piece or frame by frame; a weight that is not 0 is a syntax error."""
    client = BasicClient(world).open()
    header = begin + encode_header(1, Properties())[4:]
    frames = [encode_frame(METHOD, 1, PUBLISH), encode_frame(HEADER, 1, header), encode_frame(BODY, 1, b"x")]
    for data in [b"".join(frames)] if is_whole else frames:
        client.send(data)
    client.sync()
    assert client.last(0).values["reply_code"] == code
