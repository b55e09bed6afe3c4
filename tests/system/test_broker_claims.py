"""Sizes and counts without data behind them: clean exceptions with their codes, and no memory for them."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from typing import Any, Final

import pytest

from qstore.formats.amqp_0_10.commands import encode_command, encode_control
from qstore.formats.amqp_0_10.frames import (
    BODY,
    COMMAND,
    FIRST_FRAME,
    FIRST_SEGMENT,
    FRAME,
    HEADER,
    TRACK_COMMAND,
    WHOLE,
    encode_control_frame,
    encode_frame,
)
from tests.support.profiles import today
from tests.support.raw_peer import ConnectionClosedError, PeerGoneError, RawConnection, RawPeer, SessionEndedError
from tests.system.broker_canary import Canary, answer

_MESSAGE_LIMIT: Final = 300 << 20
"""Bytes that the broker may hold of a message, and some room."""
_SESSION_BYTES: Final = 8 << 10
"""Bytes that an idle session may cost."""
_LITTLE: Final = 32 << 20
_OVER: Final = (PeerGoneError, ConnectionClosedError, SessionEndedError)


def _nested_map(depth: int) -> bytes:
    """A map in a map in a map, size and count of each right."""
    inner = struct.pack(">II", 4, 0)
    for _ in range(depth):
        content = b"\x01m\xa8" + inner
        inner = struct.pack(">II", len(content) + 4, 1) + content
    return inner


def _command_frame(payload: bytes) -> bytes:
    return encode_frame(WHOLE, COMMAND, TRACK_COMMAND, 1, payload)


def _command(name: str, **values: Any) -> bytes:
    return _command_frame(encode_command(name, **values))


def _control(name: str, channel: int = 1, /, **values: Any) -> bytes:
    return encode_control_frame(channel, encode_control(name, **values))


def _declare_with(arguments: bytes) -> bytes:
    """queue.declare whose arguments are these bytes: fields 1 (queue) and 7 (arguments)."""
    return _command_frame(b"\x08\x01\x01\x00" + b"\x41\x00" + b"\x01q" + arguments)


def _endless(*frames: bytes, times: int = 700) -> Callable[[RawPeer], None]:
    """Sends the frames, and the last one ten times as often as that: some 400 MB of frames that hold something."""

    def send(peer: RawPeer) -> None:
        peer.send_bytes(b"".join(frames))
        for _ in range(times):
            peer.send_bytes(frames[-1] * 10)
            peer.process(0)
        while peer.process(0.5):
            pass

    return send


def _content(flags: int, segment: int, payload: bytes = b"x" * 60_000) -> bytes:
    return encode_frame(flags, segment, TRACK_COMMAND, 1, payload)


def _sender(content: bytes) -> Callable[[RawPeer], None]:
    return lambda peer: peer.send_bytes(content)


_TRANSFER: Final = encode_frame(
    FIRST_SEGMENT | 3, COMMAND, TRACK_COMMAND, 1, encode_command("message.transfer", accept_mode=1, acquire_mode=0)
)
_WRONG_STRUCT: Final = b"\x00\x00\x00\x40\x04\x01\xff\xff" + b"\xff" * 40
_VOIDS: Final = struct.pack(">II", 16, 1) + b"\x01a\xaa" + struct.pack(">IBI", 5, 0xF0, 0xFFFFFFFF)
_ALL: Final = ((0, 0xFFFFFFFF),)

_TWICE: Final = "a second session of the same name"
_CLAIMS: Final[dict[str, Callable[[RawPeer], None]]] = {
    "a frame of 0 bytes": _sender(FRAME.pack(WHOLE, COMMAND, 0, 0, 1, 1, 0)),
    "a frame of 11 bytes": _sender(FRAME.pack(WHOLE, COMMAND, 11, 0, 1, 1, 0)),
    "a segment of type 4": _sender(FRAME.pack(WHOLE, 4, 12, 0, 1, 1, 0)),
    "a body without a command": _sender(_content(WHOLE, BODY, b"x")),
    "a command of no bytes": _sender(_command_frame(b"")),
    "a command that nobody knows": _sender(_command_frame(b"\x77\x77\x01\x00\x00\x00")),
    "a control on the track of commands": _sender(_content(WHOLE, 0, encode_control("session.flush"))),
    "a map of 4 GB": _sender(_declare_with(struct.pack(">II", 0xFFFFFFF0, 0xFFFFFFFF))),
    "a map of 4 G entries": _sender(_declare_with(struct.pack(">II", 4, 0xFFFFFFFF))),
    "an array of 4 G voids": _sender(_declare_with(_VOIDS)),
    "thousands of maps in one another": _sender(_declare_with(_nested_map(5_000))),
    "accepting all that ever will be": _sender(_command("message.accept", transfers=_ALL)),
    "releasing from the end to the beginning": _sender(_command("message.release", transfers=((9, 3),))),
    "acquiring all that ever will be": _sender(_command("message.acquire", transfers=_ALL)),
    "completing all that ever will be": _sender(_control("session.completed", commands=_ALL)),
    "known completions that never were": _sender(_control("session.known-completed", commands=((5, 0x7FFFFFFF),))),
    "a command point in the far future": _sender(
        _control("session.command-point", command_id=0x7FFFFFFF, command_offset=77)
    ),
    "a gap of all commands": _sender(_control("session.gap", commands=_ALL)),
    "a message without an end": _endless(_TRANSFER, _content(3, HEADER, b""), _content(6, BODY), _content(4, BODY)),
    "a header without an end": _endless(_TRANSFER, _content(FIRST_FRAME, HEADER), _content(0, HEADER)),
    "a command without an end": _endless(_content(FIRST_SEGMENT | FIRST_FRAME, COMMAND), _content(8, COMMAND)),
    "empty frames without an end": _endless(  # 2.5 million: at 32 bytes each they would be seen
        _TRANSFER, _content(FIRST_FRAME, HEADER, b""), _content(0, HEADER, b"") * 5_000, times=50
    ),
    "frames on a channel that nobody attached": _sender(
        encode_frame(WHOLE, COMMAND, TRACK_COMMAND, 77, encode_command("execution.sync"))
    ),
    _TWICE: _sender(_control("session.attach", 2, name=_TWICE.encode())),
    "the connection opened again": _sender(_control("connection.open", 0, virtual_host="")),
    "tuned again": _sender(_control("connection.tune-ok", 0, channel_max=1, max_frame_size=13, heartbeat=0)),
    "a header of wrong structs": _sender(_TRANSFER + _content(4 | 3, HEADER, _WRONG_STRUCT)),
}
_ENDLESS: Final = {claim for claim in _CLAIMS if claim.endswith("without an end")}


@pytest.mark.parametrize("claim", today(list(_CLAIMS), 14))
def test_claims(canary: Canary, claim: str) -> None:
    """Nothing is allocated, others are not affected, and the answer is sound to its end."""
    # No other test has that name: the broker may be busy yet with the end of the connection before.
    with RawPeer(canary.broker.port, name=_TWICE.encode() if claim == _TWICE else None) as peer:
        with contextlib.suppress(*_OVER):
            _CLAIMS[claim](peer)
            if claim not in _ENDLESS:
                peer.end()
        if claim == "a message without an end":
            canary.sing(_MESSAGE_LIMIT)
            canary.grant()
        canary.sing()


def test_sessions_without_end(canary: Canary) -> None:
    """One connection attaches a session on every channel, over and over; each costs little, and all go with it."""
    count = 20_000
    for allowed in (count * _SESSION_BYTES, _LITTLE, _LITTLE):
        with RawConnection(canary.broker.port) as connection:
            connection.open()
            with contextlib.suppress(PeerGoneError):
                for number in range(count):
                    connection.send_control("session.attach", number, name=b"s%d" % number)
                    if number % 100 == 0:
                        connection.receive(0)
                        connection.frames.clear()
                answer(connection)
            canary.sing(allowed)
            canary.grant()


# ---- errors that have a code ----

_ERRORS: Final[dict[str, tuple[int, Callable[[RawPeer], object]]]] = {
    "no such exchange": (404, lambda peer: peer.publish("x", b"", exchange="nowhere")),
    "no such queue": (404, lambda peer: peer.subscribe("nowhere")),
    "no such queue to purge": (404, lambda peer: peer.send_command("queue.purge", queue="nowhere")),
    "no such binding": (
        404,
        lambda peer: peer.send_command("exchange.unbind", queue="nowhere", exchange="amq.direct", binding_key="k"),
    ),
    "a reserved name": (530, lambda peer: peer.send_command("exchange.declare", exchange="amq.mine", type="direct")),
    "the wrong type": (530, lambda peer: peer.send_command("exchange.declare", exchange="amq.direct", type="topic")),
    "a type that nobody knows": (404, lambda peer: peer.send_command("exchange.declare", exchange="e", type="odd")),
    "commit without select": (409, lambda peer: peer.send_command("tx.commit")),
    "no such subscription": (404, lambda peer: peer.send_command("message.cancel", destination="nobody")),
    "a queue without a name": (542, lambda peer: peer.send_command("queue.delete", queue="")),
}


@pytest.mark.parametrize("error", _ERRORS)
def test_session_exceptions(canary: Canary, error: str) -> None:
    """The session ends with the code of the specification; the connection lives, and takes a new session."""
    code, fail = _ERRORS[error]
    with RawPeer(canary.broker.port) as peer:
        fail(peer)
        with pytest.raises(SessionEndedError) as ended:
            peer.sync()
        assert ended.value.code == code, ended.value.text
        assert ended.value.text
