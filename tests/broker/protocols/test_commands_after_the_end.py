"""Commands under way when a session ends: they are dropped, nothing is kept of them, and the connection goes on.

A client that sends a message in many frames does not look between two of them whether its session is there (qpidd's C++
client, SessionImpl::sendContent): it may answer session.detach from another thread and go on with the message.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.protocols.amqp_0_10.session import State
from qstore.broker.settings import BrokerSettings
from qstore.formats.amqp_0_10.codes import CloseCode, DetachCode, ErrorCode
from qstore.formats.amqp_0_10.commands import encode_command, encode_control
from qstore.formats.amqp_0_10.frames import (
    BODY,
    COMMAND,
    CONTROL,
    FIRST_FRAME,
    FRAME,
    HEADER,
    LAST_FRAME,
    TRACK_COMMAND,
    TRACK_CONTROL,
    encode_command_frames,
    encode_control_frame,
    encode_frame,
)
from tests.broker.protocols.world import Client, World, header

LIMIT: Final = 50_000
TRANSFER: Final = encode_command("message.transfer", destination="")
PARTS: Final = encode_command_frames(1, TRANSFER, header(routing_key="q"), bytes(range(256)) * 100, 4096 + FRAME.size)
"""A message of a command, a header and seven frames of content."""
LARGE_COMMAND: Final = encode_command_frames(1, encode_command("queue.declare", queue="x" * 200), None, b"", 64)
"""A command of four frames."""
DETACHED: Final = encode_control_frame(1, encode_control("session.detached", name=b"session", code=0))


def world_of_two() -> tuple[World, Client]:
    """A broker, and a client with `session` on channel 1 and `other` on channel 2."""
    world = World(BrokerSettings(auth=False, max_message_bytes=LIMIT))
    client = world.open_client(timeout=60)
    client.attach(b"other", on=2)
    client.declare("q", on=2)
    return world, client


def other_lives(client: Client) -> None:
    """The connection is open, the other session works, and nothing is held of what was dropped."""
    assert client.close_code() is None
    queue = client.world.broker.default_host.queues["q"]
    before = queue.message_count
    client.publish("q", b"still here", on=2)
    client.sync()
    assert queue.message_count == before + 1
    assert client.machine._assembler.pending_bytes == 0
    assert client.world.connections.budget.used == 0


# ---- the ways in which a session ends while something is under way ----


def _fails(client: Client) -> None:
    """The disk fails for an earlier command, or whatever else ends the session at a moment of its own."""
    client.session().fail([], RuntimeError("no room"))
    client.sync()
    assert client.exceptions[-1]["error_code"] == ErrorCode.INTERNAL_ERROR


def _fails_and_is_detached(client: Client) -> None:
    _fails(client)
    client.send(DETACHED)


def _detaches(client: Client) -> None:
    client.control("session.detach", on=1, name=b"session")


def _says_detached_unasked(client: Client) -> None:
    client.send(DETACHED)


def _is_taken_over(client: Client) -> None:
    taker = client.world.open_client(name=None)
    taker.attach(b"session", force=True)
    assert client.of("session.detached") == [] or client.of("session.detached")[-1]["code"] == DetachCode.SESSION_BUSY


def _is_told_that_its_queue_is_gone(client: Client) -> None:
    client.session().subscription_lost(next(iter(client.session().subscriptions.values())))
    client.sync()
    assert client.exceptions[-1]["error_code"] == ErrorCode.RESOURCE_DELETED


ENDS: Final = (
    _fails,
    _fails_and_is_detached,
    _detaches,
    _says_detached_unasked,
    _is_taken_over,
    _is_told_that_its_queue_is_gone,
)


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
@pytest.mark.parametrize("frames", [PARTS, LARGE_COMMAND], ids=["message", "command"])
def test_the_rest_of_a_message_or_command_is_dropped_wherever_the_session_ends(
    frames: list[bytes], end: Callable[[Client], None]
) -> None:
    for cut in range(len(frames) + 1):
        _, client = world_of_two()
        client.declare("mine", on=2)
        client.subscribe("mine", messages=0)
        for frame in frames[:cut]:
            client.send(frame)
        end(client)
        for frame in (*frames[cut:], *frames):
            client.send(frame)
        assert client.world.broker.default_host.queues["q"].message_count == (cut == len(PARTS) and frames is PARTS)
        other_lives(client)


@pytest.mark.parametrize("end", [_fails_and_is_detached, _detaches, _says_detached_unasked, _is_taken_over])
def test_reattached_channel_serves_the_new_session(
    end: Callable[[Client], None],
) -> None:
    _, client = world_of_two()
    client.declare("mine", on=2)
    for frame in PARTS[:4]:
        client.send(frame)
    end(client)
    for frame in PARTS[4:]:
        client.send(frame)
    client.attach(b"new")
    for frame in PARTS:
        client.send(frame)
    client.sync()
    assert client.world.broker.default_host.queues["q"].message_count == 1
    other_lives(client)


def test_pending_commands_are_not_answered_after_detached() -> None:
    """Else the answer may come when the channel has its next session, and end that."""
    _, client = world_of_two()
    _fails_and_is_detached(client)
    client.publish("q", b"whole")
    client.control("session.completed", on=1, commands=())
    for frame in PARTS:
        client.send(frame)
    client.attach(b"new")
    assert client.of("session.detached") == []
    other_lives(client)


def test_a_client_that_continues_after_detaching_is_notified_once() -> None:
    _, client = world_of_two()
    _detaches(client)
    for frame in PARTS:
        client.send(frame)
    client.publish("q", b"whole")
    client.sync()
    assert [values["code"] for values in client.of("session.detached")] == [
        DetachCode.NORMAL,
        DetachCode.NOT_ATTACHED,
    ]


def test_detached_of_another_session_does_not_end_this_one() -> None:
    _, client = world_of_two()
    client.control("session.detached", on=1, name=b"elder", code=0)
    client.publish("q", b"x")
    client.sync()
    assert client.session().state is State.ATTACHED
    assert client.world.broker.default_host.queues["q"].message_count == 1


def test_a_message_that_is_too_large_in_many_frames_ends_only_its_session() -> None:
    _, client = world_of_two()
    frames = encode_command_frames(1, TRANSFER, header(routing_key="q"), bytes(3 * LIMIT), 4096)
    for place, frame in enumerate(frames):
        client.send(frame)
        client.sync()
        if client.exceptions and client.machine.sessions.get(1) is not None:
            client.send(DETACHED)
            assert place < len(frames) - 1, "it was told before all had come"
    assert client.exceptions[0]["error_code"] == ErrorCode.RESOURCE_LIMIT_EXCEEDED
    other_lives(client)


def test_controls_that_count_commands_say_nothing_when_those_were_dropped() -> None:
    _, client = world_of_two()
    _fails(client)
    client.publish("q", b"dropped")
    client.control("session.gap", on=1, commands=((5, 9),))
    client.control("session.command-point", on=1, command_id=12, command_offset=0)
    client.control("session.flush", on=1, completed=True)
    other_lives(client)
    assert client.of("session.completed"), "other controls are honoured"
    client.control("session.detach", on=1, name=b"session")
    client.sync()
    assert client.of("session.detached")[-1]["code"] == DetachCode.NORMAL


def test_a_message_that_goes_out_in_portions_ends_before_the_exception() -> None:
    """An exception in the middle of a streamed message: its frames are whole, and commands that come are dropped."""
    world = World()
    client = world.open_client()
    client.attach(b"other", on=2)
    client.declare("q", on=2)
    content = bytes(3_000_000)
    client.publish("q", content, on=2)
    client.sync()
    client.machine.pause_sending()
    client.subscribe("q", messages=1)
    client.machine.resume_sending()
    world.soon.pop(0)()
    assert client.machine.streams
    for frame in PARTS[:4]:
        client.send(frame)
    client.session().fail([], RuntimeError("no room"))
    for frame in PARTS[4:]:
        client.send(frame)
    assert client.take() == [content]
    assert client.failure()[0] == ErrorCode.INTERNAL_ERROR
    other_lives(client)


# ---- a peer that never stops ----


def test_dropped_frames_take_no_memory() -> None:
    _, client = world_of_two()
    for frame in PARTS[:4]:
        client.send(frame)
    _fails(client)
    tracemalloc.start()
    try:
        for _ in range(200):
            for frame in PARTS:
                client.send(frame)
            client.send(PARTS[3] * 10)
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held < 20_000
    other_lives(client)


_PIECES: Final = (*PARTS[:4], PARTS[-1], *LARGE_COMMAND, encode_control_frame(1, encode_control("session.flush")))


@given(st.lists(st.sampled_from(_PIECES), max_size=30), st.sampled_from([*range(1, 60), 70_000]))
def test_frames_of_commands_in_any_order_are_dropped(pieces: list[bytes], cut: int) -> None:
    _, client = world_of_two()
    _fails(client)
    data = b"".join(pieces)
    for at in range(0, len(data), max(cut, len(data) // 200)):
        client.send(data[at : at + max(cut, len(data) // 200)])
    other_lives(client)
    client.send(DETACHED)
    client.attach(b"new")
    client.publish("q", b"x")
    other_lives(client)


MALFORMED: Final = {
    "a frame smaller than its head": FRAME.pack(0, COMMAND, 11, 0, 1, 1, 0),
    "an unknown segment type": encode_frame(FIRST_FRAME | LAST_FRAME, BODY + 1, TRACK_COMMAND, 1, b"x"),
    "a body on the control track": encode_frame(FIRST_FRAME | LAST_FRAME, BODY, TRACK_CONTROL, 1, b"x"),
    "a control on the command track": encode_frame(0x0F, CONTROL, TRACK_COMMAND, 1, b"x"),
    "a control that there is not": encode_frame(0x0F, CONTROL, TRACK_CONTROL, 1, b"\x77\x77"),
    "a header on a channel that never had a session": encode_frame(FIRST_FRAME, HEADER, TRACK_COMMAND, 9, b"x"),
    "a body on the channel of another session": encode_frame(FIRST_FRAME, BODY, TRACK_COMMAND, 2, b"x"),
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_frame_still_ends_the_connection(data: bytes) -> None:
    _, client = world_of_two()
    _fails(client)
    client.send(data)
    assert client.close_code() == CloseCode.FRAMING_ERROR


def test_a_new_session_is_held_to_the_order_of_frames_again() -> None:
    _, client = world_of_two()
    _fails_and_is_detached(client)
    client.send(PARTS[-1])
    client.attach(b"new")
    client.send(PARTS[-1])
    assert client.close_code() == CloseCode.FRAMING_ERROR
