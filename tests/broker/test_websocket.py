"""AMQP over WebSocket: the opening request, frames in any pieces, and what is refused."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from qstore.broker.network.websocket_layer import (
    FRAMES_IN_A_TURN,
    MAX_REQUEST_BYTES,
    Frames,
    WebSocketError,
    accept,
    frame,
)
from qstore.broker.settings import TlsSettings
from qstore.formats.amqp_0_9_1.frames import PROTOCOL_HEADER as BASIC_HEADER
from qstore.formats.amqp_0_10.frames import PROTOCOL_HEADER
from qstore.formats.amqp_1_0.frames import SASL_HEADER
from tests.support.certificates import Certificates
from tests.support.processes import PATIENCE_SECONDS
from tests.support.served import served

_REQUEST = (
    "GET /any HTTP/1.1\r\nHost: broker:5672\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13"
)
_ACCEPTED = b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"
"""The example of RFC 6455, section 1.3."""
_MASK = b"\x37\xfa\x21\x3d"


def masked(opcode: int, payload: bytes, *, is_last: bool = True) -> bytes:
    """A client's frame."""
    head = bytearray(frame(opcode, payload)[: -len(payload) or None])
    head[0] &= 0xFF if is_last else 0x7F
    head[1] |= 0x80
    return bytes(head) + _MASK + bytes(byte ^ _MASK[place % 4] for place, byte in enumerate(payload))


# ---- the request ----


def test_a_request_is_answered() -> None:
    answer = accept(_REQUEST.encode(), ())
    assert answer.startswith(b"HTTP/1.1 101 ")
    assert _ACCEPTED in answer
    assert b"Sec-WebSocket-Protocol" not in answer
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("offered", "chosen"), [("amqp", "amqp"), ("binary, AMQPWSB10, amqp", "amqp"), ("AMQPWSB10", "AMQPWSB10")]
)
def test_the_subprotocol(offered: str, chosen: str) -> None:
    answer = accept(f"{_REQUEST}\r\nsec-websocket-protocol: {offered}".encode(), ())
    assert f"\r\nSec-WebSocket-Protocol: {chosen}\r\n".encode() in answer


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("HTTP/1.1", "HTTP/1.0", 400),
        ("Upgrade: websocket", "Upgrade: h2c", 426),
        ("keep-alive, Upgrade", "keep-alive", 426),
        ("Version: 13", "Version: 8", 426),
        ("dGhlIHNhbXBsZSBub25jZQ==", "c2hvcnQ=", 400),
        ("dGhlIHNhbXBsZSBub25jZQ==", "é", 400),
        ("Host: broker", "Host : broker", 400),
        ("Host: broker:5672", "no colon", 400),
        ("Host: broker", "Sec-WebSocket-Protocol: mqtt\r\nHost: broker", 400),
        ("Host: broker", "Origin: https://evil.example\r\nHost: broker", 403),
        ("Host: broker", "Origin: null\r\nHost: broker", 403),
        ("Host: broker", "Origin: https://good.example\r\nOrigin: https://evil.example\r\nHost: broker", 403),
    ],
)
def test_a_request_is_refused(old: str, new: str, code: int) -> None:
    assert old in _REQUEST
    with pytest.raises(WebSocketError) as refused:
        accept(_REQUEST.replace(old, new).encode("latin-1"), ("https://good.example",))
    assert refused.value.code == code


@pytest.mark.parametrize("origins", [("https://good.example",), ("*",)])
def test_a_page_of_an_allowed_origin(origins: tuple[str, ...]) -> None:
    assert _ACCEPTED in accept(f"{_REQUEST}\r\nOrigin: https://good.example".encode(), origins)


# ---- frames ----


def _decode(data: bytes, sizes: list[int]) -> tuple[bytes, list[tuple[int, bytes]]]:
    controls: list[tuple[int, bytes]] = []
    frames, content, place = Frames(lambda opcode, payload: controls.append((opcode, payload))), b"", 0
    while place < len(data):
        size = sizes.pop() if sizes else 1
        content += frames.receive(data[place : place + size])
        while frames.is_behind:
            content += frames.receive(b"")
        place += size
    return content, controls


@pytest.mark.parametrize("seed", range(20))
def test_frames_in_any_pieces(seed: int) -> None:
    source = random.Random(seed)
    sent, data, controls = b"", b"", list[tuple[int, bytes]]()
    for _ in range(20):
        parts = [source.randbytes(source.choice((0, 1, 5, 125, 126, 300, 70_000))) for _ in range(source.randint(1, 3))]
        for place, part in enumerate(parts):
            data += masked(0 if place else 2, part, is_last=place == len(parts) - 1)
            if source.random() < 0.3:
                controls.append((source.choice((9, 10)), source.randbytes(source.choice((0, 4, 125)))))
                data += masked(*controls[-1])
        sent += b"".join(parts)
    sizes = [source.choice((1, 2, 7, 100, 65_536)) for _ in range(len(data))]
    assert _decode(data, sizes) == (sent, controls)


def test_nothing_after_a_close_frame_is_decoded() -> None:
    assert _decode(masked(2, b"a") + masked(8, b"") + masked(2, b"b"), [100]) == (b"a", [(8, b"")])


def test_frames_of_one_turn() -> None:
    frames = Frames(lambda opcode, payload: None)
    many = masked(2, b"x") * (FRAMES_IN_A_TURN + 1) + masked(9, b"") * FRAMES_IN_A_TURN
    assert frames.receive(many) == b"x" * FRAMES_IN_A_TURN
    assert frames.is_behind
    assert frames.receive(b"") == b"x"
    assert frames.is_behind
    assert frames.receive(b"") == b""
    assert not frames.is_behind


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(2, b"not masked"), 1002),
        (masked(1, b"text"), 1003),
        (masked(0, b"nothing to continue"), 1002),
        (masked(2, b"a", is_last=False) + masked(2, b"b"), 1002),
        (masked(3, b""), 1002),
        (masked(11, b""), 1002),
        (masked(9, b"", is_last=False), 1002),
        (masked(9, bytes(126)), 1002),
        (bytes((0xC2, 0x80)), 1002),
        (bytes((0x82, 0xFF)) + b"\xff" * 8 + _MASK, 1002),
    ],
)
def test_frames_that_violate_the_protocol(data: bytes, code: int) -> None:
    with pytest.raises(WebSocketError) as refused:
        _decode(data, [len(data)])
    assert refused.value.code == code


# ---- a broker ----


async def _answer(reader: asyncio.StreamReader, size: int = -1) -> bytes:
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await (reader.readexactly(size) if size >= 0 else reader.read())


def _talk(*pieces: bytes, expected: int = -1, **settings: Any) -> bytes:
    """What a broker answers to the pieces: as many bytes as are expected, or all until it closes the connection."""

    async def test() -> bytes:
        async with served(websocket=True, **settings) as found:
            reader, writer = await asyncio.open_connection("127.0.0.1", found.port)
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0.01)
            try:
                return await _answer(reader, expected)
            finally:
                writer.close()

    return asyncio.run(test())


_OPENING = _REQUEST.encode() + b"\r\n\r\n"
_HELLO = b"\x16\x03\x01\x00\x05hello"
"""The begin of a client that speaks TLS."""


@pytest.mark.parametrize("header", [SASL_HEADER, PROTOCOL_HEADER, BASIC_HEADER])
@pytest.mark.parametrize("cut", [1, 3, 4, len(_OPENING) - 1, len(_OPENING)])
def test_every_protocol_is_spoken_inside(header: bytes, cut: int) -> None:
    size = len(accept(_REQUEST.encode(), ()))
    answer = _talk(_OPENING[:cut], _OPENING[cut:] + masked(2, header), expected=size + 10)
    assert _ACCEPTED in answer
    assert answer[size] == 0x82, "a binary message"
    begin = answer[size + (2 if answer[size + 1] < 126 else 4) :]
    assert begin[:1] == b"\x01" if header is BASIC_HEADER else header.startswith(begin[:6])


def test_a_ping_is_answered_and_a_close() -> None:
    answer = _talk(_OPENING, masked(9, b"who"), masked(8, b"\x03\xe8"))
    assert answer.endswith(frame(10, b"who") + frame(8, b"\x03\xe8"))


def test_of_pings_that_come_together_the_last_is_answered() -> None:
    """RFC 6455, section 5.5.3, permits that, and a flood of them costs one answer."""
    pings = b"".join(masked(9, b"%d" % number) for number in range(FRAMES_IN_A_TURN))
    answer = _talk(_OPENING + pings + masked(8, b""))
    assert answer[len(accept(_REQUEST.encode(), ())) :].count(b"\x8a") == 1
    assert answer.endswith(frame(10, b"%d" % (FRAMES_IN_A_TURN - 1)) + frame(8, b"\x03\xe8"))


def test_a_text_message_ends_the_connection() -> None:
    assert _talk(_OPENING + masked(1, b"AMQP")).endswith(frame(8, b"\x03\xeb"))


@pytest.mark.parametrize("inside", [_OPENING, _HELLO])
def test_another_protocol_inside_is_refused(tmp_path: Path, inside: bytes) -> None:
    tls = TlsSettings(Certificates(tmp_path).server(), port=0)  # on the same port
    answer = _talk(_OPENING + masked(2, inside), tls=tls)
    assert answer.endswith(frame(2, PROTOCOL_HEADER) + frame(8, b"\x03\xe8"))


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"426"),
        (_OPENING.replace(b"\r\n\r\n", b"\r\nOrigin: http://evil.example\r\n\r\n"), b"403"),
        (b"GET /" + b"x" * MAX_REQUEST_BYTES, b"431"),
    ],
)
def test_a_refused_request_is_answered_and_logged(
    request_: bytes, status: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    assert _talk(request_).startswith(b"HTTP/1.1 " + status)
    reported = [each.getMessage() for each in caplog.records if each.name == "Protocol"]
    assert len(reported) == 1
    assert ": WebSocket: " in reported[0]


def test_without_the_option_there_is_none() -> None:
    async def test() -> bytes:
        async with served() as found:
            reader, writer = await asyncio.open_connection("127.0.0.1", found.port)
            writer.write(_OPENING)
            try:
                return await _answer(reader)
            finally:
                writer.close()

    assert asyncio.run(test()) == PROTOCOL_HEADER
