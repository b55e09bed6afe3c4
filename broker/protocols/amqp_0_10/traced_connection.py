"""A connection that logs its frames, one line each: `--trace`, or `--log-enable trace+:Protocol`.

    RECV 127.0.0.1:41234, channel 1: message.transfer, 31 bytes
    SENT 127.0.0.1:41234, channel 1: session.completed, 14 bytes

A line has the kind and size of a frame, and never its content, which may have passwords and messages. Frames are
decoded from the raw input and output, independently of the broker's own processing. Whether a connection is traced is
decided once, when it is created; others have no overhead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from qstore.broker.log.logs import TRACE, log_of
from qstore.broker.model.tick import Tick
from qstore.broker.protocols.amqp_0_10.server_connection import ServerConnection
from qstore.broker.protocols.amqp_0_10.session_registry import SessionRegistry
from qstore.broker.protocols.machine import Host
from qstore.broker.security.authentication import Authentication, Link
from qstore.broker.settings import BrokerSettings
from qstore.formats.amqp_0_10.commands import COMMAND_BY_CODE, CONTROL_BY_CODE
from qstore.formats.amqp_0_10.errors import Amqp010Error
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

_LOG: Final = log_of("Protocol")

_NAMED: Final = {CONTROL: CONTROL_BY_CODE, COMMAND: COMMAND_BY_CODE}
_OTHERS: Final = {HEADER: "header", BODY: "body"}


def is_wanted() -> bool:
    """Whether the log level enables frame tracing."""
    return _LOG.is_on(TRACE)


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
        self._incoming, self._outgoing = FrameLog(f"RECV {self.peer}"), FrameLog(f"SENT {self.peer}")

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
    """

    __slots__ = ("_begin", "_has_header", "_is_lost", "_kept")

    def __init__(self, begin: str) -> None:
        self._begin = begin
        self._kept = b""  # an incomplete frame
        self._has_header = self._is_lost = False

    def take(self, data: bytes) -> None:
        """Log the frames in these bytes."""
        if self._is_lost:
            return
        data, at = self._kept + data, 0
        if not self._has_header:
            at = self._take_header(data)
        try:
            while self._has_header and (frame := decode_frame(data, at)) is not None:
                at += FRAME.size + len(frame.payload)
                _LOG.trace("%s, channel %d: %s, %d bytes", self._begin, frame.channel, _kind(frame), len(frame.payload))
        except Amqp010Error as error:
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
    names = _NAMED.get(frame.segment_type)
    if names is None:
        return _OTHERS.get(frame.segment_type, f"segment of type {frame.segment_type}")
    if not frame.flags & FIRST_FRAME:
        return "continued"
    named = names.get(int.from_bytes(frame.payload[:2]))
    return f"unknown, code 0x{frame.payload[:2].hex()}" if named is None else named.name
