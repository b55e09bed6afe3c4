"""A connection: the part common to broker and client.

    client                              broker
    AMQP 1 1 0 10                 ->
                                  <-    AMQP 1 1 0 10, or another header and the end
                                  <-    connection.start       mechanisms
    connection.start-ok           ->
                (secure, secure-ok as often as the mechanism requires)
                                  <-    connection.tune        limits
    connection.tune-ok, open      ->
                                  <-    connection.open-ok
    controls and commands of sessions, on channels; heartbeats while nothing else is sent
    connection.close              <->   connection.close-ok

A connection takes bytes (`receive`) and calls its own methods for what it decodes; its output collects in `output`.
Time is passed to `tick`. A protocol violation by the peer ends in `fail`, which sends connection.close with the reason.

Source: AMQP 0-10, connection and session (attach to detached).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum, auto
from typing import Any, Final, Generic, TypeVar

from qstore.broker.model.message import Buffer, Content
from qstore.broker.protocols.amqp_0_10.assembly import Assembler, FramingError
from qstore.broker.protocols.amqp_0_10.session import Session
from qstore.broker.protocols.budget import Budget
from qstore.formats.amqp_0_10.codes import CloseCode
from qstore.formats.amqp_0_10.commands import decode_control, encode_control
from qstore.formats.amqp_0_10.frames import PROTOCOL_HEADER, encode_control_frame
from qstore.formats.amqp_0_10.types import Amqp010Error

MIN_MAX_FRAME: Final = 4096  # constant MIN-MAX-FRAME-SIZE
MAX_FRAME: Final = 65535
_MISSED_HEARTBEATS: Final = 2  # intervals without a byte after which the peer is presumed dead
_MAX_REPLY_TEXT: Final = 255

_ATTACHING: Final = frozenset({"session.attach", "session.attached", "session.detach", "session.detached"})


SessionT = TypeVar("SessionT", bound=Session)


class Phase(Enum):
    """The phases of a connection."""

    HEADER = auto()  # waiting for the peer's protocol header
    NEGOTIATING = auto()
    OPEN = auto()
    CLOSING = auto()  # connection.close was sent
    CLOSED = auto()


class Connection(ABC, Generic[SessionT]):
    """One end of a connection.

    Args:
        max_message_bytes: limit for all incomplete messages together.
        budget: the same over all connections together.

    Attributes:
        phase: its phase.
        output: buffers to be sent.
        max_frame: maximum size in bytes of a frame that is sent.
        sessions: channel -> attached session.
        close_code, close_text: why it was closed, by either end.
        heartbeat: seconds between heartbeats; 0 for none.
        bytes_received, bytes_sent: including protocol headers.
        frames_sent, transfers_sent: frames put into `output`, and messages among them, except those that subscriptions
            put there directly.
    """

    __slots__ = (
        "_assembler", "_has_received", "_has_sent", "_header", "_last_received", "_last_sent", "bytes_received",
        "bytes_sent", "close_code", "close_text", "frames_sent", "heartbeat", "max_frame", "output", "phase",
        "sessions", "transfers_sent",
    )  # fmt: skip

    def __init__(self, max_message_bytes: int, budget: Budget | None = None) -> None:
        self.phase = Phase.HEADER
        self.output: list[Buffer] = []
        self.max_frame = MIN_MAX_FRAME
        self.sessions: dict[int, SessionT] = {}
        self.close_code = 0
        self.close_text = ""
        self.heartbeat = 0
        self.bytes_received = self.bytes_sent = self.frames_sent = self.transfers_sent = 0
        self._assembler = Assembler(self, MAX_FRAME, max_message_bytes, budget)
        self._header = b""
        self._last_received = self._last_sent = 0.0
        self._has_received = self._has_sent = False

    # ---- callbacks ----

    @abstractmethod
    def on_header(self, header: bytes) -> None:
        """The peer's protocol header was received: eight bytes."""

    @abstractmethod
    def on_control(self, name: str, values: dict[str, Any]) -> None:
        """A control of class connection was received, other than close, close-ok and heartbeat."""

    @abstractmethod
    def on_session_control(self, name: str, channel: int, values: dict[str, Any]) -> None:
        """session.attach, attached, detach or detached was received."""

    @abstractmethod
    def command(self, channel: int, payload: bytes, header: bytes | None, body: Content | None) -> None:
        """A command was received."""

    def begins(self, channel: int) -> bool:
        """An incomplete command begins. Returns whether it is for a session."""
        if self.phase in (Phase.HEADER, Phase.NEGOTIATING):
            raise FramingError("a command before the connection is open")
        return channel in self.sessions

    def stalled(self, channel: int) -> None:
        """As `Receiver.stalled`."""
        self.too_large(channel)

    @abstractmethod
    def too_large(self, channel: int) -> None:
        """A message on `channel` exceeds the limit, and was discarded."""

    def on_closed(self) -> None:
        """The connection is closed or lost."""

    def has_output(self) -> None:
        """Output was added to `output`."""

    # ---- receiving ----

    def receive(self, data: bytes) -> None:
        """Process bytes from the socket."""
        self._has_received = True
        self.bytes_received += len(data)
        if not data or self.phase is Phase.CLOSED:
            return
        try:
            rest = self._receive_header(data) if self.phase is Phase.HEADER else data
            if rest is not None:
                self._assembler.receive(rest)
        except (FramingError, Amqp010Error) as error:
            self.fail(CloseCode.FRAMING_ERROR, str(error))

    def _receive_header(self, data: bytes) -> bytes | None:
        """The bytes after the peer's protocol header; None if it is incomplete or wrong."""
        data = self._header + data
        self._header = data[:8]
        if len(data) < 8 and PROTOCOL_HEADER.startswith(data[:4]):
            return None
        self.phase = Phase.NEGOTIATING
        self.on_header(self._header)
        return data[8:] if self._header == PROTOCOL_HEADER else None

    @property
    def is_paused(self) -> bool:
        """Whether input is buffered until `resume`."""
        return self._assembler.is_paused and self.phase is not Phase.CLOSED

    @property
    def is_behind(self) -> bool:
        """As `Machine.is_behind`."""
        return self._assembler.is_behind and self.phase is not Phase.CLOSED

    def pause(self) -> None:
        """Buffer input from now on."""
        self._assembler.is_paused = True

    def resume(self) -> None:
        """Process the buffered input."""
        if self.phase is Phase.CLOSED:
            return
        try:
            self._assembler.resume()
        except (FramingError, Amqp010Error) as error:
            self.fail(CloseCode.FRAMING_ERROR, str(error))

    def control(self, channel: int, payload: bytes) -> None:
        """A control was received."""
        control, values = decode_control(payload)
        name = control.name
        if name == "connection.heartbeat":
            return
        if name == "connection.close":
            self._peer_closed(values)
        elif name == "connection.close-ok":
            self.closed()
        elif self.phase is Phase.CLOSING:
            return
        elif name.startswith("connection."):
            self.on_control(name, values)
        elif self.phase is not Phase.OPEN:
            raise FramingError(f"{name} before the connection is open")
        elif name in _ATTACHING:
            self.on_session_control(name, channel, values)
        else:
            session = self.sessions.get(channel)
            if session is None:
                self.on_unattached(channel)
            else:
                session.on_control(name, values)

    def on_unattached(self, channel: int) -> None:
        """Input was received on a channel without a session: it was detached by this end, or never attached."""

    def drop_commands(self, channel: int) -> None:
        """The session of a channel has ended: discard its incomplete command, and commands from now on."""
        self._assembler.drop(channel)

    def accept_commands(self, channel: int) -> None:
        """A session is attached to a channel: accept commands from now on."""
        self._assembler.accept(channel)

    # ---- sending ----

    def send_control(self, control: str, /, **values: Any) -> None:
        """Send a control of the connection."""
        self.output.append(encode_control_frame(0, encode_control(control, **values)))
        self.frames_sent += 1
        self.has_output()

    def send_session_control(self, channel: int, control: str, /, **values: Any) -> None:
        """Send a control of a session, which need not be attached."""
        self.output.append(encode_control_frame(channel, encode_control(control, **values)))
        self.frames_sent += 1
        self.has_output()

    def take_output(self) -> bytes:
        """Remove and return the collected output."""
        output = self.output
        if not output:
            return b""
        self._has_sent = True
        data = b"".join(output)
        self.bytes_sent += len(data)
        output.clear()
        return data

    # ---- closing ----

    def close(self, code: int = CloseCode.NORMAL, text: str = "") -> None:
        """Send connection.close; nothing else is sent after it."""
        if self.phase in (Phase.CLOSING, Phase.CLOSED):
            return
        self.close_code, self.close_text = code, text
        self.phase = Phase.CLOSING
        self.send_control("connection.close", reply_code=code, reply_text=_short(text))

    def fail(self, code: int, text: str) -> None:
        """Close the connection after a fatal error of the peer: send the reason, and do not wait for close-ok."""
        self.close(code, text)
        self.closed()

    def _peer_closed(self, values: dict[str, Any]) -> None:
        if self.phase is not Phase.CLOSING:
            self.close_code, self.close_text = values["reply_code"] or 0, values["reply_text"] or ""
        self.send_control("connection.close-ok")
        self.closed()

    def closed(self) -> None:
        """The connection is closed or lost."""
        if self.phase is not Phase.CLOSED:
            self.phase = Phase.CLOSED
            self.pause()  # later input is ignored
            self.on_closed()
            self._assembler.close()

    def dismantle(self) -> None:
        """The socket is closed: drop references in cycles, so that the connection is freed at once."""
        self.closed()
        self._assembler.drop_receiver()

    # ---- time ----

    def on_timer(self, now: float) -> None:
        """Check heartbeats; to be called at least twice in each heartbeat interval.

        Args:
            now: seconds of a monotonic clock.
        """
        if self._has_received or not self._last_received:
            self._last_received, self._has_received = now, False
        if self._has_sent or not self._last_sent:
            self._last_sent, self._has_sent = now, False
        if not self.heartbeat or self.phase is not Phase.OPEN:
            return
        if now - self._last_received > _MISSED_HEARTBEATS * self.heartbeat and not self.is_paused:
            silence = now - self._last_received
            self.fail(CloseCode.CONNECTION_FORCED, f"heartbeat timeout: nothing received for {silence:.0f} seconds")
        elif now - self._last_sent >= self.heartbeat / 2:
            self.send_control("connection.heartbeat")


def _short(text: str) -> str:
    """A text truncated to the length of a str8."""
    return text.encode("utf-8", "replace")[:_MAX_REPLY_TEXT].decode("utf-8", "ignore")
