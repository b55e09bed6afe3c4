"""The client's end of a connection: negotiates until the connection is open, then attaches sessions.

The user of the connection creates sessions, of a subclass of `Session` that handles received commands, and passes them
to `attach`.

Source: AMQP 0-10, connection and session.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

from qstore.broker.model.message import Content
from qstore.broker.protocols.amqp_0_10.assembly import CommandAssembler, FramingError
from qstore.broker.protocols.amqp_0_10.connection import (
    MAX_FRAME,
    MIN_MAX_FRAME,
    check_is_open,
    close_frame,
    control_frame,
    do_control,
)
from qstore.broker.protocols.amqp_0_10.session import Session, State
from qstore.broker.protocols.assembly import ProtocolError
from qstore.broker.protocols.connection import Connection, Phase
from qstore.broker.security.sasl.exchange import ClientMechanism, SecurityLayer
from qstore.broker.security.sasl.table import layer_of
from qstore.formats.amqp_0_10.codes import CloseCode, DetachCode
from qstore.formats.amqp_0_10.frames import PROTOCOL_HEADER
from qstore.formats.errors import FormatError
from qstore.formats.kernels.bodies import Bodies, SizeField

_LOCALE: Final = "en_US"
_TRANSFER: Final = b"\x04\x01"


class ClientSession(Session):
    """A session of a client, with callbacks for its input."""

    def on_attached(self) -> None:
        """The session is attached, and commands can be sent."""

    def on_detached(self, code: int) -> None:
        """The session is detached."""

    def on_command(self, payload: bytes, header: bytes | None, body: bytes | None) -> None:
        """A command was received."""

    def on_run(self, payload: bytes, header: bytes, bodies: Bodies) -> int:  # noqa: ARG002
        """Messages were received that differ only in their bodies. Returns how many were taken: none here."""
        return 0


class ClientNegotiation:
    """What a client answers until its connection is open.

    Args:
        choose_mechanism: selects one of the mechanisms that the broker offers. Raises ValueError if none is usable.
        properties: sent to the broker.
        virtual_host: the virtual host to open.
        heartbeat: seconds between heartbeats; 0 for none.

    Attributes:
        server_properties: received from the broker.
        max_frame, channels, heartbeat: as negotiated.
        is_logged_in: whether the broker has accepted the login.
    """

    def __init__(
        self,
        choose_mechanism: Callable[[tuple[str, ...]], ClientMechanism],
        properties: Mapping[str, Any],
        virtual_host: str,
        heartbeat: int,
    ) -> None:
        self._choose_mechanism, self._properties, self._virtual_host = choose_mechanism, properties, virtual_host
        self._wanted_heartbeat = heartbeat
        self._mechanism: ClientMechanism | None = None
        self.server_properties: Any = None
        self.max_frame, self.channels, self.heartbeat = MIN_MAX_FRAME, 1, 0
        self.is_logged_in = False

    @property
    def layer(self) -> SecurityLayer | None:
        """The security layer that begins after open-ok; None for none."""
        return layer_of(self._mechanism)

    def answer(self, name: str, values: dict[str, Any]) -> list[bytes]:
        """The frames that answer a control of the broker, other than open-ok.

        Raises:
            ValueError: the connection must be closed, with this reason.
            FramingError: the control is unexpected.
        """
        if name == "connection.start":
            return self._start(values)
        if name == "connection.secure" and self._mechanism is not None:
            response = self._mechanism.step(values["challenge"] or b"")
            return [control_frame(0, "connection.secure-ok", response=response)]
        if name == "connection.tune":
            if self._mechanism is None:
                raise FramingError("connection.tune is unexpected before connection.start")
            if not self._mechanism.is_complete:
                raise ValueError(f"the broker has not completed {self._mechanism.name}")
            return self._tune(values)
        raise FramingError(f"{name} is unexpected from a broker")

    def _start(self, values: dict[str, Any]) -> list[bytes]:
        self.server_properties = values["server_properties"]
        if not values["mechanisms"]:
            return []  # the broker refuses this client, and sends the reason
        mechanism = self._choose_mechanism(tuple(values["mechanisms"]))
        response = mechanism.start()
        self._mechanism = mechanism
        return [
            control_frame(
                0,
                "connection.start-ok",
                client_properties=self._properties,
                mechanism=mechanism.name,
                response=response,
                locale=_LOCALE,
            )
        ]

    def _tune(self, values: dict[str, Any]) -> list[bytes]:
        self.is_logged_in = True
        offered = values["max_frame_size"] or MAX_FRAME
        self.max_frame = max(MIN_MAX_FRAME, min(offered, MAX_FRAME))
        self.channels = (values["channel_max"] or 0) + 1
        minimum, maximum = values["heartbeat_min"] or 0, values["heartbeat_max"]
        heartbeat = max(self._wanted_heartbeat, minimum) if self._wanted_heartbeat else 0
        self.heartbeat = heartbeat if maximum is None else min(heartbeat, maximum)
        tuned = control_frame(
            0,
            "connection.tune-ok",
            channel_max=values["channel_max"] or 0,
            max_frame_size=self.max_frame,
            heartbeat=self.heartbeat,
        )
        return [tuned, control_frame(0, "connection.open", virtual_host=self._virtual_host, insist=True)]


class ClientConnection(Connection):
    """The client's end.

    Args:
        choose_mechanism: selects one of the mechanisms that the broker offers. Raises ValueError if none is usable.
        client_properties: sent to the broker.
        virtual_host: the virtual host to open.
        heartbeat: seconds between heartbeats; 0 for none.
        max_message_bytes: limit for all incomplete messages together.

    Attributes:
        sessions: channel -> attached session.
        max_frame: maximum size in bytes of a frame that is sent.
    """

    protocol_header: ClassVar[bytes] = PROTOCOL_HEADER

    def __init__(
        self,
        choose_mechanism: Callable[[tuple[str, ...]], ClientMechanism],
        *,
        client_properties: Mapping[str, Any] | None = None,
        virtual_host: str = "",
        heartbeat: int = 0,
        max_message_bytes: int,
    ) -> None:
        self._max_message_bytes = max_message_bytes
        super().__init__()
        self.sessions: dict[int, ClientSession] = {}
        self.max_frame = MIN_MAX_FRAME
        properties: dict[str, Any] = {
            "product": "qstore",
            "platform": "Python",
            "host": socket.gethostname(),
            "qpid.client_process": Path(sys.argv[0]).name,
            "qpid.client_pid": os.getpid(),
        }
        properties.update(client_properties or {})
        self._negotiation = ClientNegotiation(choose_mechanism, properties, virtual_host, heartbeat)
        self.output.append(PROTOCOL_HEADER)

    # ---- callbacks ----

    def on_open(self) -> None:
        """The connection is open: sessions can be attached."""

    def on_closed(self) -> None:
        """The connection is closed or lost."""

    def has_output(self) -> None:
        """Output was added to `output`."""

    # ---- as an end of a connection ----

    def make_assembler(self) -> CommandAssembler:
        """As `Connection.make_assembler`."""
        return CommandAssembler(self, MAX_FRAME, self._max_message_bytes)

    def frame(self, channel: int, payload: bytes) -> None:
        """A control was received."""
        do_control(self, channel, payload)

    def send_control(self, control: str, /, **values: Any) -> None:
        """Send a control of the connection."""
        self.send_frame(control_frame(0, control, **values))

    def send_heartbeat(self) -> None:
        """As `Connection.send_heartbeat`."""
        self.send_control("connection.heartbeat")

    def send_close(self, code: int, text: str, cause: bytes) -> None:  # noqa: ARG002 – for other protocols
        """As `Connection.send_close`."""
        self.send_frame(close_frame(code, text))

    def fail(self, code: int, text: str) -> None:
        """Close the connection after a fatal error of the peer: send the reason, and do not wait for close-ok."""
        self.close(code, text)
        self.closed()

    def on_violation(self, error: ProtocolError | FormatError) -> None:
        """As `Connection.on_violation`."""
        self.fail(CloseCode.FRAMING_ERROR, str(error))

    def on_silence(self, text: str) -> None:
        """As `Connection.on_silence`."""
        self.fail(CloseCode.CONNECTION_FORCED, text)

    def on_unattached(self, channel: int) -> None:
        """Input on a channel without a session is ignored."""

    def begins(self, channel: int) -> bool:
        """As `Receiver.begins`."""
        check_is_open(self.phase)
        return channel in self.sessions

    # ---- negotiation ----

    def on_header(self, header: bytes) -> None:
        """Check the broker's protocol header: it must equal the one that was sent."""
        if header != PROTOCOL_HEADER:
            self.close_code = CloseCode.FRAMING_ERROR
            self.close_text = f"the peer does not speak AMQP 0-10: it answered {header!r}"
            self.closed()

    @property
    def server_properties(self) -> Any:
        """Received from the broker."""
        return self._negotiation.server_properties

    def on_control(self, name: str, values: dict[str, Any]) -> None:
        """Answer a negotiation control of the broker."""
        if name == "connection.open-ok":
            self.phase = Phase.OPEN
            self.secure(self._negotiation.layer)
            self.on_open()
            return
        try:
            frames = self._negotiation.answer(name, values)
        except ValueError as error:
            self.fail(CloseCode.CONNECTION_FORCED, str(error))
            return
        self.max_frame, self.heartbeat = self._negotiation.max_frame, self._negotiation.heartbeat
        for frame in frames:
            self.send_frame(frame)

    # ---- sessions ----

    def free_channel(self) -> int:
        """A channel without a session.

        Raises:
            ValueError: all channels are in use.
        """
        channels = self._negotiation.channels
        for channel in range(channels):
            if channel not in self.sessions:
                return channel
        raise ValueError(f"all {channels} channels of the connection are in use")

    def attach(self, session: ClientSession) -> None:
        """Attach a session; its channel must be free."""
        self._assembler.accept(session.channel)
        self.sessions[session.channel] = session
        session.send_control("session.attach", name=session.name)

    def on_session_control(self, name: str, channel: int, values: dict[str, Any]) -> None:
        """Handle the attaching and detaching of sessions."""
        session = self.sessions.get(channel)
        if session is None:
            return
        if name == "session.attached":
            session.attached()
            session.on_attached()
        elif name == "session.detach":
            session.send_control("session.detached", name=session.name, code=DetachCode.NORMAL)
            self._detached(session, DetachCode.NORMAL)
        elif name == "session.detached":
            self._detached(session, values["code"] or 0)
        else:
            raise FramingError(f"{name} is unexpected from a broker")

    def _detached(self, session: ClientSession, code: int) -> None:
        del self.sessions[session.channel]
        self._assembler.drop(session.channel)
        session.detached()
        session.on_detached(code)

    def run_of(self, channel: int, payload: bytes, header: bytes, bodies: Bodies, field: SizeField | None) -> int:  # noqa: ARG002
        """As `CommandReceiver.run_of`: if its session takes runs."""
        session = self.sessions.get(channel)
        if session is None or session.state is State.ATTACHING or payload[:2] != _TRANSFER:
            return 0
        return session.on_run(payload, header, bodies)

    def command(self, channel: int, payload: bytes, header: bytes | None, body: Content | None) -> None:
        """Pass a command to its session."""
        session = self.sessions.get(channel)
        if session is not None and session.state is not State.ATTACHING:
            session.on_command(payload, header, None if body is None else bytes(body))

    def too_large(self, channel: int, size: int) -> None:  # noqa: ARG002 – for other protocols
        """Close the connection: a message is larger than this client accepts."""
        self.fail(CloseCode.FRAMING_ERROR, f"a message on channel {channel} is larger than this client accepts")

    def stalled(self, channel: int, size: int) -> None:
        """As `Receiver.stalled`."""
        self.too_large(channel, size)
