"""Messages of AMQP 0-9-1 that arrive frame by frame: limits of memory, and frames out of order."""

from __future__ import annotations

import pytest

from qstore.broker.protocols.amqp_0_9_1.message import MAX_FRAME
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
    budget = world.basic_connections.budget  # type: ignore[attr-defined]
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
    assert client.world.broker.default_host.queues["q"].message_count == 5
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
    assert world.broker.default_host.queues["q"].message_count == 2
    assert world.basic_connections.budget.used == 0  # type: ignore[attr-defined]


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
    assert world.broker.default_host.queues["q"].message_count == 1


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


# ---- senders that stall, and those that wait for room ----

PIECE = 60_000
LARGE, SMALL = 480_000, 100_000


class Sender:
    """A client that has begun a message, on a connection of its own."""

    def __init__(self, world: World, size: int) -> None:
        self.client = BasicClient(world).open(frame_max=MAX_FRAME)
        self.world, self.left = world, size
        self.client.send(encode_frame(METHOD, 1, PUBLISH))
        self.client.send(encode_frame(HEADER, 1, encode_header(size, Properties(delivery_mode=1))))

    def go_on(self, pieces: int = 100) -> None:
        while self.left and pieces:
            size = min(self.left, PIECE)
            self.client.send(encode_frame(BODY, 1, bytes(size)))
            self.left -= size
            pieces -= 1

    def wait(self, seconds: float) -> None:
        """Time passes, and the connection is looked at as by a timer."""
        until = self.world.now + seconds
        while self.world.now < until:
            self.world.now += 0.5
            for machine in list(self.world.machines):
                machine.on_timer(self.world.now)
            self.world.run()

    @property
    def refusal(self) -> str:
        """Why its channel was closed; empty if it is open."""
        return "".join(each.values["reply_text"] for each in self.client.take("channel.close"))


@pytest.fixture
def queue(world: World) -> str:
    BasicClient(world).open().call("queue.declare", queue="q")
    return "q"


def test_a_message_waits_for_others_to_be_complete(world: World, queue: str) -> None:
    first, second = Sender(world, 425_000), Sender(world, LARGE)
    first.go_on(7)
    second.go_on()
    assert second.refusal == ""
    assert second.client.machine.is_paused
    assert world.broker.default_host.queues[queue].message_count == 0
    first.go_on()
    world.run()
    assert world.broker.default_host.queues[queue].message_count == 2
    assert not second.client.machine.is_paused
    assert world.basic_connections.budget.used == 0  # type: ignore[attr-defined]


def test_large_messages_leave_room_for_small_ones(world: World, queue: str) -> None:
    large = [Sender(world, LARGE) for _ in range(2)]
    large[0].go_on(7)
    large[1].go_on()
    assert large[1].client.machine.is_paused
    small = Sender(world, SMALL)
    small.go_on()
    world.run()
    assert world.broker.default_host.queues[queue].message_count == 1


def test_stalled_sender_makes_room_for_waiting_ones(world: World, queue: str) -> None:
    stalled, other = Sender(world, LARGE), Sender(world, LARGE)
    stalled.go_on(7)
    other.go_on()
    other.wait(5.0)
    assert stalled.refusal == ""
    other.wait(7.0)
    assert "has stalled" in stalled.refusal
    assert other.refusal == ""
    assert world.broker.default_host.queues[queue].message_count == 1


def test_a_sender_that_trickles_has_stalled_too_while_others_wait(world: World, queue: str) -> None:
    slow, other = Sender(world, LARGE), Sender(world, LARGE)
    slow.go_on(7)
    other.go_on()
    for _ in range(12):
        slow.client.send(encode_frame(BODY, 1, b"x"))
        other.wait(1.0)
    assert "has stalled" in slow.refusal
    assert world.broker.default_host.queues[queue].message_count == 1


def test_a_sender_that_continues_has_not_stalled(world: World, queue: str) -> None:
    slow = Sender(world, LARGE)
    for _ in range(6):
        slow.go_on(1)
        slow.wait(50.0)
    slow.go_on()
    world.run()
    assert slow.refusal == ""
    assert world.broker.default_host.queues[queue].message_count == 1


def test_a_stalled_message_is_not_kept_for_ever(world: World, queue: str) -> None:
    stalled = Sender(world, LARGE)
    stalled.go_on(3)
    stalled.wait(62.0)
    assert "has stalled" in stalled.refusal
    assert world.basic_connections.budget.used == 0  # type: ignore[attr-defined]


def test_last_waiting_sender_is_refused_to_make_room(world: World, queue: str) -> None:
    """All that hold incomplete messages wait: the last one makes room for the others."""
    senders = [Sender(world, LARGE) for _ in range(3)]
    for _ in range(4):
        for each in senders:
            each.go_on(1)
    for each in senders:
        each.go_on()
    world.run()
    refusals = [each.refusal for each in senders]
    assert sum(bool(each) for each in refusals) == 1
    assert world.broker.default_host.queues[queue].message_count == 2


def test_a_waiting_publisher_may_leave(world: World, queue: str) -> None:
    first, second = Sender(world, 425_000), Sender(world, LARGE)
    first.go_on(7)
    second.go_on()
    second.client.machine.dismantle()
    first.go_on()
    world.run()
    assert world.broker.default_host.queues[queue].message_count == 1
    assert world.basic_connections.budget.used == 0  # type: ignore[attr-defined]
    assert not world.basic_connections.budget.waiting  # type: ignore[attr-defined]
