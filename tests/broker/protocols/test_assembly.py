"""Assembly of commands from bytes that are cut anywhere, and bytes that are not AMQP 0-10."""

from __future__ import annotations

import itertools
import tracemalloc
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.protocols.amqp_0_10.assembly import MAX_SEGMENT_BYTES, CommandAssembler, FramingError
from qstore.formats.amqp_0_10.commands import encode_command, encode_control
from qstore.formats.amqp_0_10.frames import (
    BODY,
    COMMAND,
    CONTROL,
    FIRST_FRAME,
    FIRST_SEGMENT,
    FRAME,
    HEADER,
    LAST_FRAME,
    LAST_SEGMENT,
    TRACK_COMMAND,
    TRACK_CONTROL,
    WHOLE,
    encode_command_frames,
    encode_control_frame,
    encode_frame,
)
from qstore.formats.kernels.bodies import Bodies, SizeField

TRANSFER = encode_command("message.transfer", destination="amq.direct")
OTHER_TRANSFER = encode_command("message.transfer", destination="amq.fanout")
ACCEPT = encode_command("message.accept", transfers=((0, 5),))
MAX_BODY = 100_000


class Came(NamedTuple):
    """What an assembler has put together."""

    channel: int
    payload: bytes
    header: bytes | None = None
    body: bytes | None = None


class Receiver:
    """Keeps what it gets; pauses after each, if asked to."""

    def __init__(self, max_frame: int = 65535, max_body: int = MAX_BODY, *, pauses: bool = False) -> None:
        self.came: list[Came] = []
        self.dropped: list[int] = []
        self.pauses = pauses
        self.assembler = CommandAssembler(self, max_frame, max_body)

    def frame(self, channel: int, payload: bytes) -> None:
        self._take(Came(channel, payload))

    def command(self, channel: int, payload: bytes, header: bytes | None, body: bytes | None) -> None:
        self._take(Came(channel, payload, header, body or None))

    def too_large(self, channel: int, size: int) -> None:
        self.dropped.append(channel)

    def begins(self, channel: int) -> bool:
        return True

    def _take(self, came: Came) -> None:
        self.came.append(came)
        self.assembler.is_paused = self.pauses


class Item(NamedTuple):
    """A control or command, and its frames."""

    came: Came
    frames: list[bytes]


@st.composite
def items(draw: st.DrawFn) -> Item:
    channel = draw(st.integers(0, 3))
    kind = draw(st.integers(0, 3))
    if kind == 0:
        payload = encode_control("session.flush", completed=True)
        return Item(Came(channel, payload), [encode_control_frame(channel, payload)])
    max_frame = draw(st.sampled_from([13, 20, 100, 65535]))
    payload = TRANSFER if kind > 1 else ACCEPT
    header = draw(st.none() | st.binary(max_size=60)) if kind > 1 else None
    body = draw(st.binary(max_size=200)) if kind > 1 else b""
    frames = encode_command_frames(channel, payload, header, body, max_frame)
    return Item(Came(channel, payload, header, body or None), frames)


def interleaved(streams: list[Item], order: list[int]) -> list[bytes]:
    """The frames of the items: in order on each channel, mixed between channels."""
    waiting = {
        channel: list(itertools.chain.from_iterable(item.frames for item in of_channel))
        for channel in range(4)
        if (of_channel := [item for item in streams if item.came.channel == channel])
    }
    mixed: list[bytes] = []
    choices = itertools.chain(order, itertools.repeat(0))
    while waiting:
        channel = list(waiting)[next(choices) % len(waiting)]
        mixed.append(waiting[channel].pop(0))
        if not waiting[channel]:
            del waiting[channel]
    return mixed


def by_channel(came: list[Came]) -> dict[int, list[Came]]:
    return {channel: [each for each in came if each.channel == channel] for channel in range(4)}


@given(
    st.lists(items(), max_size=12),
    st.lists(st.integers(0, 3), max_size=60),
    st.lists(st.integers(1, 90)),
    st.booleans(),
)
def test_commands_do_not_depend_on_how_frames_are_cut(
    streams: list[Item], order: list[int], cuts: list[int], pauses: bool
) -> None:
    data = b"".join(interleaved(streams, order))
    receiver = Receiver(pauses=pauses)
    at = 0
    for size in itertools.chain(cuts, [len(data)]):
        receiver.assembler.receive(data[at : at + size])
        at += size
        while receiver.assembler.is_paused:
            count = len(receiver.came)
            receiver.assembler.resume()
            assert len(receiver.came) - count <= 1, "no more than one comes before the next pause"
    assert by_channel(receiver.came) == by_channel([item.came for item in streams])
    assert receiver.assembler.pending_bytes == 0


@given(st.lists(items(), max_size=6), st.lists(st.integers(0, 3), max_size=60))
def test_byte_by_byte(streams: list[Item], order: list[int]) -> None:
    receiver = Receiver()
    for byte in b"".join(interleaved(streams, order)):
        receiver.assembler.receive(bytes((byte,)))
    assert by_channel(receiver.came) == by_channel([item.came for item in streams])


@st.composite
def transfers_much_alike(draw: st.DrawFn) -> list[Item]:
    """Mostly runs of transfers with the same command and sizes, now and then interrupted."""
    found: list[Item] = []
    for _ in range(draw(st.integers(1, 6))):
        channel, payload = draw(st.integers(0, 1)), draw(st.sampled_from([TRANSFER, OTHER_TRANSFER, ACCEPT]))
        if payload is ACCEPT:
            found.append(Item(Came(channel, payload), encode_command_frames(channel, payload, None, None, 65535)))
            continue
        header, body = draw(st.sampled_from([b"", b"header", b"longer header"])), draw(st.sampled_from([1, 9, 40]))
        max_frame = draw(st.sampled_from([65535, 65535, 20]))
        for _ in range(draw(st.integers(1, 5))):
            content = bytes([len(found) % 251]) * body
            frames = encode_command_frames(channel, payload, header, content, max_frame)
            found.append(Item(Came(channel, payload, header, content), frames))
    return found


@given(transfers_much_alike(), st.lists(st.integers(1, 200)), st.lists(st.integers(0, 3), max_size=30), st.booleans())
def test_transfers_that_are_alike(streams: list[Item], cuts: list[int], order: list[int], is_mixed: bool) -> None:
    frames = interleaved(streams, order) if is_mixed else [frame for item in streams for frame in item.frames]
    data, receiver, at = b"".join(frames), Receiver(), 0
    for size in itertools.chain(cuts, [len(data)]):
        receiver.assembler.receive(data[at : at + size])
        at += size
    assert by_channel(receiver.came) == by_channel([item.came for item in streams])
    assert receiver.assembler.frames == len(frames)
    assert receiver.assembler.messages == sum(item.came.header is not None for item in streams)


def test_the_command_of_transfers_that_are_alike_is_one_object() -> None:
    """So that what it is looked up by is hashed once."""
    receiver = Receiver()
    receiver.assembler.receive(b"".join(encode_command_frames(0, TRANSFER, b"h", b"b", 65535)) * 5)
    assert len({id(came.payload) for came in receiver.came[2:]}) == 1


class RunReceiver(Receiver):
    """Notes the sizes of runs, and the channel and command of what comes by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[int] = []

    def run_of(self, channel: int, payload: bytes, header: bytes, bodies: Bodies, field: SizeField | None) -> int:
        self.runs.append(bodies.count)
        return bodies.count


def test_runs_follow_at_once_after_a_transfer_that_asks_for_its_completion() -> None:
    receiver = RunReceiver()
    commands = [encode_command("message.transfer", sync=sync, destination="q") for sync in (False, True)]
    plain, last = (b"".join(encode_command_frames(0, command, b"h", b"b", 65535)) for command in commands)
    receiver.assembler.receive((plain * 9 + last) * 4)
    assert receiver.runs == [7, 9, 9, 9], "the first two make the pattern"
    assert len(receiver.came) == 40 - sum(receiver.runs)


def test_a_paused_assembler_hands_over_nothing() -> None:
    receiver = Receiver(pauses=True)
    frame = encode_control_frame(0, encode_control("session.flush"))
    receiver.assembler.receive(frame * 3)
    receiver.assembler.receive(frame)
    assert len(receiver.came) == 1
    for count in (2, 3, 4):
        receiver.assembler.resume()
        assert len(receiver.came) == count


def command_frame(flags: int, segment: int, payload: bytes = b"x", *, channel: int = 1, track: int = 1) -> bytes:
    return encode_frame(flags, segment, track, channel, payload)


WHOLE_SEGMENT = FIRST_FRAME | LAST_FRAME
BEGUN = FIRST_SEGMENT | WHOLE_SEGMENT  # a command that has content

BAD = {
    "a frame smaller than its head": FRAME.pack(WHOLE, COMMAND, 11, 0, 1, 1, 0),
    "a frame larger than agreed": FRAME.pack(WHOLE, COMMAND, 4097, 0, 1, 1, 0),
    "a control on the command track": command_frame(WHOLE, CONTROL, track=TRACK_COMMAND),
    "a control of two frames": command_frame(FIRST_SEGMENT | LAST_SEGMENT | FIRST_FRAME, CONTROL, track=TRACK_CONTROL),
    "a control of two segments": command_frame(FIRST_SEGMENT | WHOLE_SEGMENT, CONTROL, track=TRACK_CONTROL),
    "a command on the control track": command_frame(WHOLE, COMMAND, track=TRACK_CONTROL),
    "an unknown segment type": command_frame(WHOLE, BODY + 1),
    "an unknown track": command_frame(WHOLE, COMMAND, track=2),
    "a header first": command_frame(WHOLE, HEADER),
    "a body first": command_frame(LAST_SEGMENT | WHOLE_SEGMENT, BODY),
    "a command that is not the first segment": command_frame(LAST_SEGMENT | WHOLE_SEGMENT, COMMAND),
    "a command that begins in its middle": command_frame(FIRST_SEGMENT | LAST_SEGMENT | LAST_FRAME, COMMAND),
    "a command within another": command_frame(BEGUN, COMMAND) * 2,
    "two headers": command_frame(BEGUN, COMMAND) + command_frame(WHOLE_SEGMENT, HEADER) * 2,
    "a header after the body": command_frame(BEGUN, COMMAND)
    + command_frame(WHOLE_SEGMENT, BODY)
    + command_frame(LAST_SEGMENT | WHOLE_SEGMENT, HEADER),
    "a header that is the first segment": command_frame(BEGUN, COMMAND)
    + command_frame(FIRST_SEGMENT | WHOLE_SEGMENT, HEADER),
    "a header before the command ends": command_frame(FIRST_SEGMENT | FIRST_FRAME, COMMAND)
    + command_frame(WHOLE_SEGMENT, HEADER),
    "a body before the header ends": command_frame(BEGUN, COMMAND)
    + command_frame(FIRST_FRAME, HEADER)
    + command_frame(LAST_SEGMENT | WHOLE_SEGMENT, BODY),
    "a body that begins twice": command_frame(BEGUN, COMMAND) + command_frame(LAST_SEGMENT | FIRST_FRAME, BODY) * 2,
    "a body that goes on after its end": command_frame(BEGUN, COMMAND)
    + command_frame(WHOLE_SEGMENT, BODY)
    + command_frame(LAST_SEGMENT | LAST_FRAME, BODY),
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
def test_invalid_or_unexpected_frame_is_refused(data: bytes) -> None:
    receiver = Receiver(max_frame=4096)
    with pytest.raises(FramingError):
        receiver.assembler.receive(data)
    assert receiver.came == []


@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
def test_the_same_in_the_middle_of_a_stream_byte_by_byte(data: bytes) -> None:
    receiver = Receiver(max_frame=4096)
    good = b"".join(encode_command_frames(1, TRANSFER, b"header", b"body", 4096))

    def receive_all() -> None:
        for byte in good + data:
            receiver.assembler.receive(bytes((byte,)))

    with pytest.raises(FramingError):
        receive_all()
    assert receiver.came == [Came(1, TRANSFER, b"header", b"body")]


@pytest.mark.parametrize(
    "sizes", [(12, 12, 12), (12, 4097, 12), (12, 12, 4097), (11, 12, 12), (12, 11, 12), (12, 12, 11)]
)
def test_the_sizes_of_a_whole_transfer(sizes: tuple[int, int, int]) -> None:
    """The way that takes three frames at once has the limits of the others."""
    receiver = Receiver(max_frame=4096)
    command = command_frame(BEGUN, COMMAND, TRANSFER)
    head, body = (
        FRAME.pack(flags, segment, size, 0, 1, 1, 0) + bytes(max(0, size - 12))
        for flags, segment, size in ((WHOLE_SEGMENT, HEADER, sizes[1]), (LAST_SEGMENT | WHOLE_SEGMENT, BODY, sizes[2]))
    )
    if sizes[0] < 12:
        command = command[:2] + sizes[0].to_bytes(2, "big") + command[4:]
    if sizes == (12, 12, 12):
        receiver.assembler.receive(command + head + body)
        assert receiver.came == [Came(1, TRANSFER, b"", None)]
        return
    with pytest.raises(FramingError):
        receiver.assembler.receive(command + head + body)
    assert receiver.came == []


def large_body(size: int, part: int, *, ends: bool = True) -> bytes:
    """The body frames of a message on channel 1."""
    frames = encode_command_frames(1, TRANSFER, b"", b"y" * size, part + FRAME.size)
    return b"".join(frames if ends else frames[:-1])


def test_a_message_as_large_as_may_be_and_one_byte_more() -> None:
    receiver = Receiver()
    size = MAX_BODY - len(TRANSFER)
    receiver.assembler.receive(large_body(size, 1000))
    assert receiver.dropped == []
    assert len(receiver.came[0].body or b"") == size
    receiver.assembler.receive(large_body(size + 1, 1000))
    assert receiver.dropped == [1]
    assert len(receiver.came) == 1
    assert receiver.assembler.pending_bytes == 0
    receiver.assembler.receive(b"".join(encode_command_frames(1, ACCEPT, None, b"", 65535)))
    assert receiver.came[1:] == [Came(1, ACCEPT)]


def test_the_limit_holds_for_all_channels_together() -> None:
    receiver = Receiver(max_body=1000)
    for channel in range(4):
        receiver.assembler.receive(command_frame(BEGUN, COMMAND, TRANSFER, channel=channel))
        receiver.assembler.receive(command_frame(LAST_SEGMENT | FIRST_FRAME, BODY, bytes(300), channel=channel))
    assert receiver.dropped == [3]
    receiver.assembler.receive(command_frame(LAST_SEGMENT | LAST_FRAME, BODY, b"", channel=3))
    receiver.assembler.receive(command_frame(LAST_SEGMENT | LAST_FRAME, BODY, b"", channel=0))
    assert [came.channel for came in receiver.came] == [0]


def test_a_command_that_is_dropped_does_not_come() -> None:
    receiver = Receiver()
    data = large_body(5000, 1000)
    receiver.assembler.receive(data[:-100])
    receiver.assembler.drop(1)
    receiver.assembler.drop(2)
    assert receiver.assembler.pending_bytes == 0
    receiver.assembler.receive(data[-100:])
    assert receiver.came == []
    receiver.assembler.receive(large_body(10, 1000))
    assert len(receiver.came) == 1


@pytest.mark.parametrize("segment", [COMMAND, HEADER])
def test_a_command_and_its_header_are_no_larger_than_a_frame(segment: int) -> None:
    receiver = Receiver(max_body=1 << 30)
    half = bytes(MAX_SEGMENT_BYTES // 2)
    if segment == HEADER:
        receiver.assembler.receive(command_frame(BEGUN, COMMAND, b""))
    first = FIRST_SEGMENT if segment == COMMAND else 0
    receiver.assembler.receive(command_frame(first | FIRST_FRAME, segment, half))
    receiver.assembler.receive(command_frame(first, segment, half))
    receiver.assembler.receive(command_frame(first, segment, b"z"))
    with pytest.raises(FramingError, match="bytes before its body"):
        receiver.assembler.receive(command_frame(first, segment, b"z"))


def growth(receiver: Receiver, data: bytes, times: int) -> int:
    """Bytes that are kept when the same has come so often."""
    tracemalloc.start()
    try:
        for _ in range(times):
            receiver.assembler.receive(data)
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [0, 1, 2, 100])
def test_many_small_frames_take_no_more_room_than_their_bytes(size: int) -> None:
    receiver = Receiver(max_body=200_000)
    receiver.assembler.receive(command_frame(BEGUN, COMMAND, TRANSFER))
    receiver.assembler.receive(command_frame(LAST_SEGMENT | FIRST_FRAME, BODY, b""))
    assert growth(receiver, command_frame(LAST_SEGMENT, BODY, b"w" * size) * 100, 500) < 300_000


def test_commands_that_are_begun_on_many_channels_are_bounded_too() -> None:
    receiver = Receiver(max_body=200_000)
    begun = b"".join(
        command_frame(FIRST_SEGMENT | FIRST_FRAME, COMMAND, bytes(1000), channel=channel) for channel in range(2000)
    )
    assert growth(receiver, begun, 1) < 200_000 + 2000 * 500
    assert receiver.dropped[0] == 200
