"""Frames of AMQP 0-10 over a plain blocking socket: negotiation, and what comes in cut into frames.

It knows `formats/amqp_0_10` and nothing of `broker/`; sessions are `raw_peer`'s.
"""

from __future__ import annotations

import socket
from collections import deque
from typing import Any, Final, NamedTuple, Self

from qstore.formats.amqp_0_10.commands import decode_control, encode_control
from qstore.formats.amqp_0_10.frames import CONTROL, FRAME, PROTOCOL_HEADER, encode_control_frame
from qstore.formats.values import TypedMap
from tests.support.processes import PATIENCE_SECONDS

_RECEIVE: Final = 256 << 10


class PeerGoneError(Exception):
    """The broker has closed the socket, or reset it."""


class ConnectionClosedError(Exception):
    """The broker closed the connection by `connection.close`; its code and text are the arguments."""


class Frame(NamedTuple):
    """A frame that came in."""

    flags: int
    segment: int
    track: int
    channel: int
    payload: bytes


class RawConnection:
    """A socket that sends and receives frames; `connect` negotiates.

    Attributes:
        frames: those that came in and were not looked at.
        frame_limit: bytes of a frame at most, as tuned.
    """

    def __init__(self, port: int, *, host: str = "127.0.0.1", receive_buffer: int | None = None) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(PATIENCE_SECONDS)
        try:
            self.socket.connect((host, port))
        except OSError as error:
            self.socket.close()
            raise PeerGoneError(error) from None
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.frames: deque[Frame] = deque()
        self.frame_limit = 65535
        self._pending = b""

    def close(self) -> None:
        """Close the socket without another word."""
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send_bytes(self, content: bytes) -> None:
        """Raises: PeerGoneError."""
        try:
            self.socket.sendall(content)
        except OSError as error:
            raise PeerGoneError(error) from None

    def receive(self, seconds: float | None = None) -> bool:
        """Read from the socket once; False if nothing came in that time (0: without waiting).

        Raises:
            PeerGoneError: there is nothing more to come.
        """
        self.socket.settimeout(PATIENCE_SECONDS if seconds is None else seconds)
        try:
            more = self.socket.recv(_RECEIVE)
        except (TimeoutError, BlockingIOError):
            assert seconds is not None, "the broker says nothing"
            return False
        except OSError as error:
            raise PeerGoneError(error) from None
        finally:
            if self.socket.fileno() >= 0:
                self.socket.settimeout(PATIENCE_SECONDS)
        if not more:
            raise PeerGoneError("closed")
        self._cut(self._pending + more if self._pending else more)
        return True

    def _cut(self, content: bytes) -> None:
        """Frames out of bytes; what is left waits."""
        offset, length = 0, len(content)
        while length - offset >= FRAME.size:
            flags, segment, size, _, track, channel, _ = FRAME.unpack_from(content, offset)
            assert size >= FRAME.size, f"the broker sent a frame of {size} bytes"
            if length - offset < size:
                break
            self.frames.append(Frame(flags, segment, track, channel, content[offset + FRAME.size : offset + size]))
            offset += size
        self._pending = content[offset:]

    def next_frame(self) -> Frame:
        """The next frame, whenever it comes."""
        while not self.frames:
            self.receive()
        return self.frames.popleft()

    def send_control(self, name: str, channel: int = 0, /, **values: Any) -> None:
        """Send one control."""
        self.send_bytes(encode_control_frame(channel, encode_control(name, **values)))

    def expect(self, name: str) -> dict[str, Any]:
        """The next frame's fields; it is this control."""
        frame = self.next_frame()
        assert frame.segment == CONTROL
        control, values = decode_control(frame.payload)
        if control.name == "connection.close":
            raise ConnectionClosedError(values["reply_code"], values["reply_text"])
        assert control.name == name, f"{control.name}: {values}"
        return values

    def exchange_headers(self, header: bytes = PROTOCOL_HEADER) -> bytes:
        """Send a protocol header; the eight bytes that come back."""
        self.send_bytes(header)
        answer = b""
        while len(answer) < len(PROTOCOL_HEADER):
            try:
                more = self.socket.recv(len(PROTOCOL_HEADER) - len(answer))
            except OSError as error:
                raise PeerGoneError(error) from None
            if not more:
                raise PeerGoneError(f"closed after {answer!r}")
            answer += more
        return answer

    def open(self, mechanism: str = "ANONYMOUS", response: bytes = b"", heartbeat: int = 0) -> None:
        """Negotiate version, security and limits, and open the connection."""
        answer = self.exchange_headers()
        assert answer == PROTOCOL_HEADER, answer
        start = self.expect("connection.start")
        assert mechanism in start["mechanisms"], start
        self.send_control(
            "connection.start-ok", client_properties=TypedMap(), mechanism=mechanism, response=response, locale="en_US"
        )
        tune = self.expect("connection.tune")
        self.frame_limit = tune["max_frame_size"] or 65535
        self.send_control(
            "connection.tune-ok", channel_max=tune["channel_max"], max_frame_size=self.frame_limit, heartbeat=heartbeat
        )
        self.send_control("connection.open", virtual_host="")
        self.expect("connection.open-ok")
