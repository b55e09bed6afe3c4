"""A connection that logs its frames, one line each: `--trace`, or `--log-enable trace+:Protocol`.

    RECV 127.0.0.1:41234, channel 1: basic.publish, 31 bytes
    SENT 127.0.0.1:41234, channel 1: basic.ack, 13 bytes

A line has the kind and size of a frame, and never its content, which may have passwords and messages. Frames are
decoded from the raw input and output, independently of the broker's own processing. Whether a connection is traced is
decided once, when it is created; others have no overhead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from qstore.broker.log.logs import TRACE, log_of
from qstore.broker.protocols.amqp_0_9_1.negotiation import MAX_FRAME
from qstore.broker.protocols.amqp_0_9_1.server_connection import ServerConnection
from qstore.broker.protocols.amqp_0_9_1.shared import Shared
from qstore.broker.protocols.machine import Host, Peer
from qstore.broker.security.authentication import Authentication
from qstore.formats.amqp_0_9_1.errors import Amqp091Error
from qstore.formats.amqp_0_9_1.frames import METHOD, OVERHEAD, PROTOCOL_HEADER, Frame, decode_frame
from qstore.formats.amqp_0_9_1.methods import BY_CODE

_LOG: Final = log_of("Protocol")

_KINDS: Final = {2: "content header", 3: "body", 8: "heartbeat"}


def is_wanted() -> bool:
    """Whether the log level enables frame tracing."""
    return _LOG.is_on(TRACE)


class TracedConnection(ServerConnection):
    """As `ServerConnection`, with the same arguments."""

    __slots__ = ("_incoming", "_outgoing")

    def __init__(
        self, host: Host, shared: Shared, authentication: Authentication, peer: Peer, now: Callable[[], float]
    ) -> None:
        super().__init__(host, shared, authentication, peer, now)
        self._incoming = FrameLog(f"RECV {self.peer}", has_header=False)
        self._outgoing = FrameLog(f"SENT {self.peer}", has_header=True)

    def receive(self, data: bytes) -> None:
        """Process bytes from the socket."""
        self._incoming.take(data)
        super().receive(data)

    def take_output(self) -> bytes:
        """Remove and return the collected output."""
        data = super().take_output()
        self._outgoing.take(data)
        return data


class FrameLog:
    """Logs the frames of one direction, until an invalid one.

    Args:
        begin: prefix of each line.
        has_header: whether the protocol header has passed; the broker sends none.
    """

    __slots__ = ("_begin", "_has_header", "_is_lost", "_kept")

    def __init__(self, begin: str, *, has_header: bool) -> None:
        self._begin = begin
        self._kept = b""  # an incomplete frame
        self._has_header, self._is_lost = has_header, False

    def take(self, data: bytes) -> None:
        """Log the frames in these bytes."""
        if self._is_lost:
            return
        data, at = self._kept + data, 0
        if not self._has_header:
            at = self._take_header(data)
        try:
            while self._has_header and (frame := decode_frame(data, at, MAX_FRAME)) is not None:
                at += OVERHEAD + len(frame.payload)
                _LOG.trace("%s, channel %d: %s, %d bytes", self._begin, frame.channel, _kind(frame), len(frame.payload))
        except Amqp091Error as error:
            self._is_lost = True
            _LOG.trace("%s: not a valid frame, tracing stops: %s", self._begin, error)
        self._kept = b"" if self._is_lost else data[at:]

    def _take_header(self, data: bytes) -> int:
        header = data[: len(PROTOCOL_HEADER)]
        if len(header) < len(PROTOCOL_HEADER):
            return 0
        _LOG.trace("%s: protocol header %s", self._begin, header.hex(" "))
        self._has_header = header == PROTOCOL_HEADER
        self._is_lost = not self._has_header
        return len(header)


def _kind(frame: Frame) -> str:
    if frame.type != METHOD:
        return _KINDS[frame.type]
    code = int.from_bytes(frame.payload[:4])
    found = BY_CODE.get(code)
    return f"unknown, code 0x{code:08x}" if found is None else found.name
