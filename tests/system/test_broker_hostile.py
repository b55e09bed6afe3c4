"""Peers that violate the protocol: the broker answers with a clean exception or closes, and goes on serving."""

from __future__ import annotations

import contextlib
import random
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from qstore.formats.amqp_0_10.commands import encode_command, encode_control
from qstore.formats.amqp_0_10.frames import (
    COMMAND,
    PROTOCOL_HEADER,
    TRACK_COMMAND,
    WHOLE,
    encode_control_frame,
    encode_frame,
)
from qstore.formats.values import TypedMap
from tests.support.processes import PATIENCE_SECONDS
from tests.support.raw_peer import (
    ConnectionClosedError,
    PeerGoneError,
    RawConnection,
    RawPeer,
    SessionEndedError,
    transfer_frames,
)
from tests.support.running_broker import BrokerMaker, allow_open_files
from tests.system.broker_canary import Canary, answer

# ---- before there is a connection ----


@pytest.mark.parametrize(
    "header",
    [
        b"AMQP\x01\x01\x00\x0b",
        b"AMQP\x02\x01\x00\x00",
        b"AMQP\x01\x01\x08\x01",
        b"HTTP/1.1",
        b"\0" * 8,
    ],
)
def test_another_version(canary: Canary, header: bytes) -> None:
    """The answer is the broker's own header, and the end."""
    with RawConnection(canary.broker.port) as connection:
        assert connection.exchange_headers(header) == PROTOCOL_HEADER
        with pytest.raises(PeerGoneError):
            connection.receive()


def test_garbage(canary: Canary) -> None:
    source = random.Random(1)
    for number in range(150):
        with contextlib.suppress(PeerGoneError, OSError), RawConnection(canary.broker.port) as connection:
            begin = PROTOCOL_HEADER if number % 2 else b""
            connection.send_bytes(begin + source.randbytes(source.choice((1, 7, 8, 100, 5_000, 200_000))))
            connection.socket.shutdown(socket.SHUT_WR)
            assert answer(connection), f"number {number} is not hung up on"
        if number % 30 == 0:
            canary.sing()


def test_half_open_connections(make_broker: BrokerMaker) -> None:
    """Some say nothing, some half a header, some half a frame: after a while all of them are hung up on."""
    broker = make_broker("--max-negotiate-time", "1000").start()
    canary = Canary(broker)
    files = broker.open_files()
    held = [RawConnection(broker.port) for _ in range(60)]
    try:
        for number, connection in enumerate(held):
            connection.send_bytes((PROTOCOL_HEADER + b"\x0f\x00\x00\x40")[: number % 13])
        canary.sing()
        for connection in held:
            assert answer(connection, 10.0)
        assert broker.open_files() <= files + 5
    finally:
        for connection in held:
            connection.close()
    canary.close()


def test_connections_beyond_the_maximum(make_broker: BrokerMaker) -> None:
    """Thousands are refused while as many as are allowed work; when one goes another comes in."""
    broker = make_broker("--max-connections", "20").start()
    canary = Canary(broker)
    allow_open_files(4096)
    held = [RawPeer(broker.port) for _ in range(19)]
    files = broker.open_files()
    refused = 0
    try:
        for number in range(3_000):
            try:
                with RawConnection(broker.port) as connection:
                    connection.open()
            except (PeerGoneError, ConnectionClosedError):
                refused += 1
            if number % 500 == 0:
                canary.sing()
        assert refused == 3_000
        assert broker.open_files() <= files + 5
        held.pop().end()
        _wait_until(lambda: _can_open(broker.port))
        for peer in held:
            peer.sync()
    finally:
        for peer in held:
            peer.close()
    canary.close()


def _can_open(port: int) -> bool:
    try:
        with RawPeer(port) as peer:
            peer.end()
    except (PeerGoneError, ConnectionClosedError, SessionEndedError):
        return False
    return True


def _wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


# ---- a conversation with wrong bytes in it ----


def _conversation() -> bytes:
    """What a client sends, from the protocol header to the end."""

    def command(name: str, **values: Any) -> bytes:
        return encode_frame(WHOLE, COMMAND, TRACK_COMMAND, 1, encode_command(name, **values))

    def control(channel: int, name: str, /, **values: Any) -> bytes:
        return encode_control_frame(channel, encode_control(name, **values))

    start = {"client_properties": TypedMap(), "mechanism": "ANONYMOUS", "response": b"", "locale": "en_US"}
    headers = {"application_headers": {"n": 5}}
    return b"".join(
        [
            PROTOCOL_HEADER,
            control(0, "connection.start-ok", **start),
            control(0, "connection.tune-ok", channel_max=100, max_frame_size=4096, heartbeat=0),
            control(0, "connection.open", virtual_host=""),
            control(1, "session.attach", name=b"hostile"),
            control(1, "session.command-point", command_id=0, command_offset=0),
            command("queue.declare", queue="mutated", arguments=TypedMap(), auto_delete=True),
            command("exchange.bind", queue="mutated", exchange="amq.topic", binding_key="a.#", arguments=TypedMap()),
            transfer_frames("a.b", b"x" * 200, exchange="amq.topic", properties=headers, frame_limit=4096),
            command("message.subscribe", queue="mutated", destination="d", accept_mode=0, acquire_mode=0),
            command("message.flow", destination="d", unit=0, value=10),
            command("message.flow", destination="d", unit=1, value=0xFFFFFFFF),
            transfer_frames("mutated", b"y" * 50, durable=False),
            command("message.accept", transfers=((0, 1),)),
            control(1, "session.flush", completed=True, expected=True, confirmed=True),
            command("queue.query", queue="mutated"),
            command("execution.sync", sync=True),
            control(1, "session.detach", name=b"hostile"),
        ]
    )


def _mutated(source: random.Random, whole: bytes) -> bytes:
    """One to five changes: bits flipped, bytes replaced, left out, doubled, or the end cut off."""
    content = bytearray(whole)
    for _ in range(source.randint(1, 5)):
        place = source.randrange(8, len(content))
        kind = source.randrange(6)
        if kind == 0:
            content[place] ^= 1 << source.randrange(8)
        elif kind == 1:
            content[place] = source.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif kind == 2:
            del content[place : place + source.randint(1, 20)]
        elif kind == 3:
            content[place:place] = content[place : place + source.randint(1, 200)]
        elif kind == 4:
            content[place : place + 4] = source.choice((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0"))
        else:
            del content[place:]
        if len(content) < 20:
            break
    return bytes(content)


def _mutate(canary: Canary, seed: int, count: int) -> None:
    """Some conversations end by themselves; in others the broker waits for the rest of a frame that grew."""
    source, whole = random.Random(seed), _conversation()
    for number in range(count):
        with contextlib.suppress(PeerGoneError, OSError), RawConnection(canary.broker.port) as connection:
            connection.send_bytes(_mutated(source, whole))
            if not answer(connection, 0.05):
                connection.socket.shutdown(socket.SHUT_WR)
                assert answer(connection, 5.0), f"conversation {number} of seed {seed} is not ended"
        if number % 50 == 0:
            canary.sing()


def test_mutated_conversations(canary: Canary) -> None:
    _mutate(canary, 2, 300)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_many_mutated_conversations(canary: Canary, seed: int) -> None:
    _mutate(canary, seed, 5_000)


def test_the_conversation_itself_is_sound(canary: Canary) -> None:
    """What is mutated above is accepted as it is."""
    with RawConnection(canary.broker.port) as connection:
        connection.send_bytes(_conversation())
        assert connection.socket.recv(8, socket.MSG_WAITALL) == PROTOCOL_HEADER
        said = b""
        with contextlib.suppress(PeerGoneError):
            while connection.receive(0.5):
                said += b"".join(frame.payload[:2] for frame in connection.frames)
                assert not any(frame.payload[:2] == b"\x03\x03" for frame in connection.frames)
                connection.frames.clear()
    assert b"\x02\x04" in said  # session.detached, and no execution.exception before it
