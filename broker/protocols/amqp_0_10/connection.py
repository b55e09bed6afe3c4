"""An AMQP 0-10 connection: the part common to both ends, on top of the engine's (`protocols.connection`).

    client                              broker
    AMQP 1 1 0 10                 ->
                                  <-    AMQP 1 1 0 10, or another header and close
                                  <-    connection.start       mechanisms
    connection.start-ok           ->
                (secure, secure-ok as often as the mechanism requires)
                                  <-    connection.tune        limits
    connection.tune-ok, open      ->
                                  <-    connection.open-ok
    controls and commands of sessions, on channels; heartbeats while nothing else is sent
    connection.close              <->   connection.close-ok

A protocol violation by the peer leads to `fail`, which sends connection.close with the reason.

Source: AMQP 0-10, connection and session (attach to detached).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from qstore.broker.protocols.amqp_0_10.assembly import FramingError
from qstore.broker.protocols.amqp_0_10.session import Session
from qstore.broker.protocols.connection import Phase
from qstore.formats.amqp_0_10.commands import decode_control, encode_control
from qstore.formats.amqp_0_10.frames import encode_control_frame

MIN_MAX_FRAME: Final = 4096  # constant MIN-MAX-FRAME-SIZE
MAX_FRAME: Final = 65535
_MAX_REPLY_TEXT: Final = 255

_ATTACHING: Final = frozenset({"session.attach", "session.attached", "session.detach", "session.detached"})


class End(Protocol):
    """One end of a connection, as its controls see it.

    Attributes:
        phase, close_code, close_text: as in `Connection`.
    """

    phase: Phase
    close_code: int
    close_text: str

    @property
    def sessions(self) -> Mapping[int, Session]:
        """Channel -> attached session."""

    def on_control(self, name: str, values: dict[str, Any]) -> None:
        """A control of class connection was received, other than close, close-ok and heartbeat."""

    def on_session_control(self, name: str, channel: int, values: dict[str, Any]) -> None:
        """session.attach, attached, detach or detached was received."""

    def on_unattached(self, channel: int) -> None:
        """Input was received on a channel without a session: it was detached by this end, or never attached."""

    def send_frame(self, frame: bytes) -> None:
        """Send an encoded frame."""

    def closed(self) -> None:
        """The connection is closed or lost."""


def do_control(end: End, channel: int, payload: bytes) -> None:
    """Execute a control that was received.

    Raises:
        FramingError, Amqp010Error: it is not valid.
    """
    control, values = decode_control(payload)
    name = control.name
    if name == "connection.heartbeat":
        return
    if name == "connection.close":
        if end.phase is not Phase.CLOSING:
            end.close_code, end.close_text = values["reply_code"] or 0, values["reply_text"] or ""
        end.send_frame(control_frame(0, "connection.close-ok"))
        end.closed()
    elif name == "connection.close-ok":
        end.closed()
    elif end.phase is Phase.CLOSING:
        return
    elif name.startswith("connection."):
        end.on_control(name, values)
    elif end.phase is not Phase.OPEN:
        raise FramingError(f"{name} before the connection is open")
    elif name in _ATTACHING:
        end.on_session_control(name, channel, values)
    elif channel in end.sessions:
        end.sessions[channel].on_control(name, values)
    else:
        end.on_unattached(channel)


def control_frame(channel: int, control: str, /, **values: Any) -> bytes:
    """The frame of a control; those of the connection are on channel 0."""
    return encode_control_frame(channel, encode_control(control, **values))


def close_frame(code: int, text: str) -> bytes:
    """The frame of connection.close; the text is cut to the size of a str8."""
    short = text.encode("utf-8", "replace")[:_MAX_REPLY_TEXT].decode("utf-8", "ignore")
    return control_frame(0, "connection.close", reply_code=code, reply_text=short)


def check_is_open(phase: Phase) -> None:
    """Raise FramingError for a command before the connection is open."""
    if phase in (Phase.HEADER, Phase.NEGOTIATING):
        raise FramingError("a command before the connection is open")
