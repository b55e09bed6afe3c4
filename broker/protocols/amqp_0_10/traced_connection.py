"""A connection that logs its frames (`broker.protocols.frame_log`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from qstore.broker.model.tick import Tick
from qstore.broker.protocols.amqp_0_10.server_connection import ServerConnection
from qstore.broker.protocols.amqp_0_10.session_registry import SessionRegistry
from qstore.broker.protocols.frame_log import FrameLog, TracedFrame
from qstore.broker.protocols.machine import Host
from qstore.broker.security.authentication import Authentication, Link
from qstore.broker.settings import BrokerSettings
from qstore.formats.amqp_0_10.commands import COMMAND_BY_CODE, CONTROL_BY_CODE
from qstore.formats.amqp_0_10.frames import (
    BODY,
    COMMAND,
    CONTROL,
    FIRST_FRAME,
    FRAME,
    HEADER,
    PROTOCOL_HEADER,
    Frame,
    decode_frame,
)

_NAMED: Final = {CONTROL: CONTROL_BY_CODE, COMMAND: COMMAND_BY_CODE}
_OTHERS: Final = {HEADER: "header", BODY: "body"}


class TracedConnection(ServerConnection):
    """As `ServerConnection`, with the same arguments."""

    __slots__ = ("_incoming", "_outgoing")

    def __init__(
        self,
        host: Host,
        sessions: SessionRegistry,
        tick: Tick,
        settings: BrokerSettings,
        authentication: Authentication,
        *,
        link: Link,
        now: Callable[[], float],
        refusal: str = "",
        peer: str = "",
    ) -> None:
        super().__init__(host, sessions, tick, settings, authentication, link=link, now=now, refusal=refusal, peer=peer)
        self._incoming = FrameLog(f"RECV {self.peer}", traced, PROTOCOL_HEADER)
        self._outgoing = FrameLog(f"SENT {self.peer}", traced, PROTOCOL_HEADER)

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
    frame = decode_frame(data, at)
    if frame is None:
        return None
    size = len(frame.payload)
    return TracedFrame(FRAME.size + size, frame.channel, _kind(frame), size)


def _kind(frame: Frame) -> str:
    names = _NAMED.get(frame.segment_type)
    if names is None:
        return _OTHERS.get(frame.segment_type, f"segment of type {frame.segment_type}")
    if not frame.flags & FIRST_FRAME:
        return "continued"
    named = names.get(int.from_bytes(frame.payload[:2]))
    return f"unknown, code 0x{frame.payload[:2].hex()}" if named is None else named.name
