"""The log of AMQP 0-9-1 frames: one line for each, in both directions, without its content."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.log.logs import TRACE
from qstore.broker.protocols.amqp_0_9_1.connection import traced
from qstore.broker.protocols.amqp_0_9_1.message import MAX_FRAME
from qstore.broker.protocols.frame_log import FrameLog
from qstore.formats.amqp_0_9_1.frames import BODY, HEADER, HEARTBEAT, METHOD, PROTOCOL_HEADER, encode_frame
from qstore.formats.amqp_0_9_1.methods import encode_method
from qstore.formats.amqp_0_9_1.properties import Properties, encode_header
from tests.broker.protocols.basic_client import BasicClient
from tests.broker.protocols.world import World

OPEN = encode_method("channel.open")
CONTENT_HEADER = encode_header(6, Properties())
FRAMES = b"".join(
    (
        encode_frame(HEARTBEAT, 0, b""), encode_frame(METHOD, 1, OPEN), encode_frame(HEADER, 2, CONTENT_HEADER),
        encode_frame(BODY, 2, b"secret"), encode_frame(METHOD, 3, b"\0\x09\0\x09"),
    )
)  # fmt: skip
LINES = [
    "RECV me, channel 0: heartbeat, 0 bytes",
    f"RECV me, channel 1: channel.open, {len(OPEN)} bytes",
    f"RECV me, channel 2: content header, {len(CONTENT_HEADER)} bytes",
    "RECV me, channel 2: body, 6 bytes",
    "RECV me, channel 3: unknown, code 0x00090009, 4 bytes",
]


@pytest.mark.parametrize("size", [1, 7, 8, 1000])
def test_each_frame_has_its_line_however_it_is_cut(caplog: pytest.LogCaptureFixture, size: int) -> None:
    caplog.set_level(TRACE, "Protocol")
    log, stream = FrameLog("RECV me", traced, PROTOCOL_HEADER), PROTOCOL_HEADER + FRAMES
    for at in range(0, len(stream), size):
        log.take(stream[at : at + size])
    assert [record.getMessage() for record in caplog.records] == [
        "RECV me: protocol header 41 4d 51 50 00 00 09 01", *LINES
    ]  # fmt: skip


def test_the_largest_body_frame_that_is_accepted_has_its_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(TRACE, "Protocol")
    FrameLog("RECV me", traced, b"").take(encode_frame(BODY, 1, bytes(MAX_FRAME)) + FRAMES)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [f"RECV me, channel 1: body, {MAX_FRAME} bytes", *LINES]


@given(st.lists(st.binary(max_size=100), max_size=5), st.integers(0, len(FRAMES)), st.binary(max_size=3))
def test_any_bytes_are_tolerated(parts: list[bytes], at: int, damage: bytes) -> None:
    log = FrameLog("RECV me", traced, b"")
    for part in (FRAMES[:at] + damage + FRAMES[at + len(damage) :], *parts):
        log.take(part)
    log.take(FRAMES)


def test_a_conversation_is_traced_in_both_directions(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(TRACE, "Protocol")
    BasicClient(World()).open(1)
    lines = [record.getMessage() for record in caplog.records]
    for direction, name in (("SENT", "connection.start"), ("RECV", "connection.open"), ("SENT", "connection.open-ok")):
        assert any(line.startswith(direction) and f": {name}, " in line for line in lines), (direction, name)
