"""Commands that go out in portions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.model.message import Buffer, Content, LargeContent, content_of
from qstore.broker.protocols.amqp_0_10.assembly import CommandAssembler, content_frames
from qstore.broker.protocols.amqp_0_10.server_session import Stream
from qstore.broker.protocols.output import LARGE as MAX_AT_ONCE
from qstore.formats.amqp_0_10.codes import ErrorCode
from qstore.formats.amqp_0_10.commands import encode_command
from qstore.formats.amqp_0_10.frames import FRAME, encode_command_frames
from tests.broker.protocols.test_assembly import Receiver
from tests.broker.protocols.world import Client, World

TRANSFER = encode_command("message.transfer", destination="d")


@given(
    st.lists(st.integers(1, 40_000), min_size=1, max_size=8),
    st.none() | st.binary(max_size=100),
    st.sampled_from([4096, 10_000, 65_535]),
)
def test_frames_of_content_in_pieces(sizes: list[int], header: bytes | None, max_frame: int) -> None:
    pieces = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    body = content_of(pieces)
    frames = list(content_frames(1, TRANSFER, header, body, max_frame))
    assert all(sum(map(len, frame)) <= max_frame for frame in frames)
    receiver = Receiver(max_frame, max_body=1 << 30)
    receiver.assembler.receive(b"".join(b"".join(frame) for frame in frames))
    (came,) = receiver.came
    assert (came.payload, came.header) == (TRANSFER, header)
    assert bytes(came.body or b"") == b"".join(pieces)


def test_frames_of_content_that_is_one_piece() -> None:
    content = bytes(range(256)) * 4000
    frames = b"".join(b"".join(frame) for frame in content_frames(3, TRANSFER, b"", content, 65_535))
    assert frames == b"".join(encode_command_frames(3, TRANSFER, b"", content, 65_535))


def test_nothing_of_a_large_content_is_copied() -> None:
    content = bytes(1_000_000)
    for _, part in list(content_frames(1, TRANSFER, None, content, 65_535))[1:]:
        assert isinstance(part, memoryview)
        assert part.obj is content


def test_content_of_one_frame_is_bytes() -> None:
    room = 65_535 - FRAME.size
    assert content_of([b"a" * (room - 1), b"b"]) == b"a" * (room - 1) + b"b"
    more = content_of([b"a" * room, b"b"])
    assert isinstance(more, LargeContent)
    assert len(more) == room + 1
    assert bytes(more) == b"a" * room + b"b"
    assert content_of([]) == b""


def test_a_stream_gives_portions_in_order() -> None:
    stream = Stream()
    stream.add([(b"1", b"2"), (b"3",)])
    stream.add([(b"45",)])
    taken: list[tuple[int, list[Buffer]]] = []
    while not stream.is_over:
        output: list[Buffer] = []
        taken.append((stream.take(output, 2), output))
    assert taken == [(2, [b"1", b"2"]), (3, [b"3", b"45"]), (0, [])]


def test_a_piece_is_never_split_more_than_a_frame_asks_for() -> None:
    receiver = Receiver(max_body=1 << 30)
    body: Content = content_of([bytes(65_523)] * 10)
    frames = list(content_frames(1, TRANSFER, b"", body, 65_535))
    assert len(frames) == 2 + 10
    assert isinstance(receiver.assembler, CommandAssembler)


def test_a_socket_that_takes_no_more_gets_no_more() -> None:
    world = World()
    client = world.open_client()
    client.declare("q")
    size = 20 * MAX_AT_ONCE
    client.command("message.transfer", header=b"", body=b"x" * size, destination="")
    client.sync()
    client.publish("q", b"x" * size)
    client.sync()
    client.command("message.subscribe", queue="q", destination="q")
    client.command("message.flow", destination="q", unit=1, value=0xFFFFFFFF)
    client.machine.pause_sending()
    client.command("message.flow", destination="q", unit=0, value=1)
    world.run()
    assert len(client.host.output) < 1000
    client.machine.resume_sending()
    for _ in range(3):
        world.soon.pop(0)()
    client.machine.pause_sending()
    world.run()
    assert 0 < len(client.host.output) < 4 * MAX_AT_ONCE
    client.machine.resume_sending()
    assert client.take() == [b"x" * size]
    assert client.machine.streams == {}
    assert client.session().can_send


def test_streams_of_many_sessions_share_one_turn() -> None:
    world = World()
    client = world.open_client()
    client.declare("q")
    channels = range(2, 42)
    content = b"x" * (3 * MAX_AT_ONCE)
    client.publish("q", *[content] * len(channels))
    client.sync()
    client.machine.pause_sending()
    for channel in channels:
        client.attach(b"%d" % channel, on=channel)
        client.subscribe("q", to=str(channel), on=channel, messages=1)
    client.machine.resume_sending()
    most_streams = 0
    while world.soon:
        world.soon.pop(0)()
        assert len(client.host.output) < 2 * MAX_AT_ONCE
        client.read()
        most_streams = max(most_streams, len(client.machine.streams))
    assert client.take() == [content] * len(channels)
    assert most_streams > 5


def test_a_session_that_is_resumed_in_the_middle_gets_all_of_it_again() -> None:
    world = World()
    client = world.open_client(timeout=60)
    client.declare("q")
    bodies = [b"x" * (3 * MAX_AT_ONCE), b"small"]
    client.publish("q", *bodies)
    client.subscribe("q", messages=1)
    client.flow("q", 0, 1)
    client.machine.receive(b"")
    world.soon.pop(0)()
    client.machine.closed()
    assert len(client.host.output) < 3 * MAX_AT_ONCE
    back = world.open_client(name=None)
    back.attach(b"session", point=100)
    assert back.close_code() is not None
    again = world.open_client(name=None)
    again.attach(b"session", point=client.sent[1])
    assert again.take() == bodies


def test_completed_messages_are_not_resent_after_a_large_one() -> None:
    world = World()
    client = world.open_client(timeout=60)
    client.declare("q")
    large = b"x" * (3 * MAX_AT_ONCE)
    client.publish("q", large, b"completed", b"not yet", b"completed too")
    client.subscribe("q")
    first = client.deliveries[0].number
    completed = ((first + 1, first + 1), (first + 3, first + 3))
    client.control("session.completed", on=1, commands=completed)
    client.machine.closed()
    again = world.open_client(name=None)
    again.attach(b"session", point=client.sent[1])
    again.sync()
    assert [(each.number, each.body) for each in again.deliveries] == [(first, large), (first + 2, b"not yet")]
    assert again.received[1] == first + 4
    names = [each.name for each in again.all if each.name in ("message.transfer", "session.gap")]
    assert names == ["message.transfer", "session.gap", "message.transfer", "session.gap"]


def _order(client: Client, number: int) -> list[str]:
    """What came, up to the word that the client's command `number` is completed."""
    names: list[str] = []
    for each in client.all:
        names.append(each.name)
        ranges = each.values["commands"] or () if each.name == "session.completed" else ()
        if any(first <= number <= last for first, last in ranges):
            return names
    raise AssertionError(f"{number} was not completed")


def _streaming(world: World) -> Client:
    """A client to which a large message is on its way."""
    client = world.open_client()
    client.declare("q")
    client.subscribe("q", messages=1)
    client.publish("q", b"x" * (3 * MAX_AT_ONCE))
    world.soon.pop(0)()
    client.read()
    client.all.clear()
    assert client.session()._stream is not None
    return client


@pytest.mark.parametrize("command", ["message.flush", "message.stop", "message.cancel", "execution.sync"])
def test_a_command_that_waits_for_messages_is_completed_after_them(command: str) -> None:
    client = _streaming(World())
    values = {} if command == "execution.sync" else {"destination": "q"}
    number = client.command(command, **values)
    client.sync()
    assert "message.transfer" in _order(client, number)


def test_a_command_is_completed_after_its_result() -> None:
    client = _streaming(World())
    number = client.command("queue.query", queue="q")
    client.sync()
    assert "execution.result" in _order(client, number)


def test_failing_session_sends_completions_before_detaching() -> None:
    client = _streaming(World())
    number = client.command("message.flow", destination="q", unit=0, value=1)
    client.command("message.cancel", destination="nowhere")
    assert client.failure()[0] == ErrorCode.NOT_FOUND
    assert _order(client, number).count("session.detach") == 0
    assert client.names()[-1] == "session.detach"


def test_a_long_stream_gathers_no_completions() -> None:
    world = World()
    client = _streaming(world)
    client.machine.pause_sending()
    numbers = []
    for _ in range(50):
        numbers += client.publish("elsewhere", b"x")
        world.run()
    client.machine.resume_sending()
    client.sync()
    assert client.completed.issuperset(numbers)
    assert len(client.of("session.completed")) < 10
