"""The log of AMQP 0-10 frames: one line for each, in both directions, without its content."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.log.logs import DEBUG, TRACE
from qstore.broker.protocols.amqp_0_10.server_connection import traced
from qstore.broker.protocols.frame_log import FrameLog
from qstore.formats.amqp_0_10.commands import encode_command, encode_control
from qstore.formats.amqp_0_10.frames import BODY, COMMAND, CONTROL, HEADER, PROTOCOL_HEADER, WHOLE, encode_frame
from tests.support.raw_peer import RawPeer
from tests.support.served import client, served

SYNC = encode_command("execution.sync")
HEARTBEAT = encode_control("connection.heartbeat")
STREAM = PROTOCOL_HEADER + b"".join(
    encode_frame(flags, kind, int(kind != CONTROL), channel, payload)
    for flags, kind, channel, payload in (
        (WHOLE, CONTROL, 0, HEARTBEAT), (WHOLE, COMMAND, 1, SYNC), (0xD, COMMAND, 1, SYNC), (WHOLE, HEADER, 2, b""),
        (WHOLE, BODY, 2, b"secret"), (WHOLE, CONTROL, 3, b"\x77\x77"), (WHOLE, COMMAND, 3, b""),
    )
)  # fmt: skip
LINES = [
    "RECV me: protocol header 41 4d 51 50 01 01 00 0a",
    f"RECV me, channel 0: connection.heartbeat, {len(HEARTBEAT)} bytes",
    f"RECV me, channel 1: execution.sync, {len(SYNC)} bytes",
    f"RECV me, channel 1: continued, {len(SYNC)} bytes",
    "RECV me, channel 2: header, 0 bytes",
    "RECV me, channel 2: body, 6 bytes",
    "RECV me, channel 3: unknown, code 0x7777, 2 bytes",
    "RECV me, channel 3: unknown, code 0x, 0 bytes",
]


def frame_log(begin: str) -> FrameLog:
    return FrameLog(begin, traced, PROTOCOL_HEADER)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("size", [1, 7, 11, 12, 13, 1000])
def test_each_frame_has_its_line_however_it_is_cut(caplog: pytest.LogCaptureFixture, size: int) -> None:
    caplog.set_level(TRACE, "Protocol")
    log = frame_log("RECV me")
    for at in range(0, len(STREAM), size):
        log.take(STREAM[at : at + size])
    assert lines(caplog) == LINES


def test_invalid_frame_stops_the_trace(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(TRACE, "Protocol")
    stranger, broken = frame_log("RECV it"), frame_log("RECV me")
    stranger.take(b"GET / HTTP/1.1\r\n")
    stranger.take(STREAM)
    broken.take(STREAM[:20] + b"\xff" * 30)
    broken.take(STREAM)
    assert lines(caplog)[0] == "RECV it: protocol header 47 45 54 20 2f 20 48 54"
    assert lines(caplog)[1] == LINES[0]
    assert lines(caplog)[-1].startswith("RECV me: not a valid frame, tracing stops: ")
    assert len(caplog.records) <= 4


@given(st.lists(st.binary(max_size=100), max_size=5))
def test_any_bytes_are_tolerated(parts: list[bytes]) -> None:
    log = frame_log("RECV me")
    log.take(PROTOCOL_HEADER)
    for part in parts:
        log.take(part)


@pytest.mark.parametrize("is_on", [True, False])
async def test_a_conversation_with_trace_and_without(caplog: pytest.LogCaptureFixture, is_on: bool) -> None:
    async with served() as found:
        caplog.set_level(TRACE if is_on else DEBUG, "Protocol")
        with await client(RawPeer, found.port) as peer:
            await client(peer.sync)
            await client(peer.end)
    shown = [text.split(", ")[1].partition(": ")[2] for text in lines(caplog) if ", channel " in text]
    wanted = ["connection.start", "connection.start-ok", "session.attach", "session.attached", "execution.sync"]
    assert [name for name in wanted if name in shown] == (wanted if is_on else [])
