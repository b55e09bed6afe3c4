"""A connection that logs its frames (`broker.protocols.frame_log`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from qstore.broker.protocols.amqp_0_9_1.frame_output import MAX_FRAME
from qstore.broker.protocols.amqp_0_9_1.server_connection import ServerConnection
from qstore.broker.protocols.amqp_0_9_1.shared import Shared
from qstore.broker.protocols.frame_log import FrameLog, TracedFrame
from qstore.broker.protocols.machine import Host, Peer
from qstore.broker.security.authentication import Authentication
from qstore.formats.amqp_0_9_1.frames import METHOD, OVERHEAD, PROTOCOL_HEADER, Frame, decode_frame
from qstore.formats.amqp_0_9_1.methods import BY_CODE

_KINDS: Final = {2: "content header", 3: "body", 8: "heartbeat"}


class TracedConnection(ServerConnection):
    """As `ServerConnection`, with the same arguments."""

    __slots__ = ("_incoming", "_outgoing")

    def __init__(
        self, host: Host, shared: Shared, authentication: Authentication, peer: Peer, now: Callable[[], float]
    ) -> None:
        super().__init__(host, shared, authentication, peer, now)
        self._incoming = FrameLog(f"RECV {self.peer}", traced, PROTOCOL_HEADER)
        self._outgoing = FrameLog(f"SENT {self.peer}", traced, b"")  # the broker sends no header

    def receive(self, data: bytes) -> None:
        """Process bytes from the socket."""
        self._incoming.take(data)
        super().receive(data)

    def take_output(self) -> bytes:
        """Remove and return the collected output."""
        data = super().take_output()
        self._outgoing.take(data)
        return data


def traced(data: bytes, at: int) -> TracedFrame | None:
    """The frame at a position, as `DecodeFrame`."""
    frame = decode_frame(data, at, MAX_FRAME + OVERHEAD)  # such large body frames are accepted (`assembly`)
    if frame is None:
        return None
    size = len(frame.payload)
    return TracedFrame(OVERHEAD + size, frame.channel, _kind(frame), size)


def _kind(frame: Frame) -> str:
    if frame.type != METHOD:
        return _KINDS[frame.type]
    code = int.from_bytes(frame.payload[:4])
    found = BY_CODE.get(code)
    return f"unknown, code 0x{code:08x}" if found is None else found.name
