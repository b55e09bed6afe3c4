"""The client's protocol machines: they report failures as the client's errors, and call back to the session's core.

The owner of a `WireConnection` sends the bytes of `take_output`, passes received bytes to `receive`, calls `on_timer`
at intervals, and then checks `phase` and `failure`. A failure is final: the socket must be closed.

Source: AMQP 0-10, connection, session and execution.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, Protocol

from qstore.broker.client.errors import (
    AuthenticationError,
    ConnectError,
    ConnectionClosedError,
    HeartbeatError,
    MessagingError,
    SessionError,
)
from qstore.broker.client.options import ConnectionOptions, mechanism_chooser
from qstore.broker.model.completion import Done
from qstore.broker.protocols.amqp_0_10.client_connection import ClientConnection, ClientSession
from qstore.broker.protocols.amqp_0_10.session import State, detach_reason, unwrap
from qstore.broker.protocols.connection import Phase
from qstore.broker.security.sasl.table import Credentials
from qstore.formats.amqp_0_10.codes import CreditUnit, ErrorCode, FlowMode
from qstore.formats.amqp_0_10.commands import decode_command, decode_result
from qstore.formats.kernels.bodies import Bodies

_TRANSFER: Final = b"\x04\x01"
_UNLIMITED: Final = 0xFFFFFFFF

_OBEYS_FLOW: Final = "qpid.session_flow"
"""The client property of those that publish no more than message.flow of the empty destination allows."""


class SessionEvents(Protocol):
    """What a session is for."""

    def on_settled(self, first: int, last: int) -> None:
        """The broker has completed these commands."""

    def on_transfer(self, number: int, destination: str, header: bytes, body: bytes) -> None:
        """A message was received; its number is held until it is completed."""


class RunOwner(Protocol):
    """Hears of messages that differ only in their bodies."""

    def on_transfers(self, first: int, header: bytes, bodies: Bodies) -> None:
        """Messages were received, with consecutive numbers from `first` on, which are held until they are completed."""


class WireSession(ClientSession):
    """The client's end of a session, on one connection.

    Attributes:
        run_owner: hears of messages that differ only in their bodies; None: the owner hears of each.
        done: the client's commands that the broker has completed.
        results: command number -> the command's result, until it is taken.
        failure: why the session has ended; None before.
        publish_credit: messages that the broker lets the session publish; -1 for no limit.
    """

    def __init__(self, name: bytes, channel: int, connection: WireConnection, owner: SessionEvents) -> None:
        super().__init__(name, channel, connection)
        self._owner = owner
        self.run_owner: RunOwner | None = None
        self.done = Done()
        self.results: dict[int, Mapping[str, Any]] = {}
        self.failure: MessagingError | None = None
        self.publish_credit = -1

    @property
    def is_usable(self) -> bool:
        """Whether commands can be sent."""
        return self.state is State.ATTACHED and self.failure is None

    def on_peer_completed(self, first: int, last: int) -> None:
        """The broker has completed these commands; some may have been reported before."""
        below = self.done.below
        if last >= below:
            self.done.add(first, last)
            self._owner.on_settled(max(first, below), last)

    def on_command(self, payload: bytes, header: bytes | None, body: bytes | None) -> None:
        """Process a command of the broker.

        Raises:
            FramingError, Amqp010Error: it violates the protocol; the connection must be closed.
        """
        number = self.begin_command()
        if number < 0:
            return
        if payload[:2] == _TRANSFER:
            self.ledger.hold(number)
            self._owner.on_transfer(number, _destination(payload), header or b"", body or b"")
            return
        command, _, values = decode_command(payload)
        if command.name == "execution.result":
            _, result = decode_result(values["value"] or b"")
            self.results[unwrap(values["command_id"] or 0, self.sent)] = result
        elif command.name == "execution.exception" and self.failure is None:
            self.failure = _session_error(values)
        elif not values.get("destination"):
            self._on_publisher_flow(command.name, values)
        # Other commands are irrelevant for a client that publishes and subscribes.

    def _on_publisher_flow(self, command: str, values: Mapping[str, Any]) -> None:
        """The broker limits what the session publishes (`qpid.session_flow`)."""
        if command == "message.set-flow-mode":
            self.publish_credit = 0 if values["flow_mode"] == FlowMode.CREDIT else -1
        elif command == "message.stop":
            self.publish_credit = 0
        elif command == "message.flow" and values["unit"] == CreditUnit.MESSAGE and self.publish_credit >= 0:
            count = values["value"] or 0
            self.publish_credit = -1 if count == _UNLIMITED else self.publish_credit + count

    def on_run(self, payload: bytes, header: bytes, bodies: Bodies) -> int:  # noqa: ARG002
        """As `ClientSession.on_run`; without a `run_owner` none are taken, and `on_transfer` follows for each."""
        if self.run_owner is None:
            return 0
        count = bodies.count
        first = self.begin_commands(count)
        if first < 0:
            return 0
        self.ledger.hold_run(first, first + count - 1)
        self.run_owner.on_transfers(first, header, bodies)
        return count

    def on_detached(self, code: int) -> None:
        """The broker has detached the session, possibly at the client's request."""
        if self.failure is None:
            self.failure = SessionError(f"the broker has detached the session: {detach_reason(code)}")

    def on_lost(self, reason: MessagingError) -> None:
        """The connection was lost."""
        if self.failure is None:
            self.failure = reason
        self.detached()


@lru_cache(maxsize=1024)
def _destination(payload: bytes) -> str:
    """The destination of a transfer. The transfers of one subscription have identical payloads."""
    return decode_command(payload)[2]["destination"] or ""


def _session_error(values: Mapping[str, Any]) -> SessionError:
    code = values["error_code"] or 0
    try:
        name = ErrorCode(code).name.lower().replace("_", "-")
    except ValueError:
        name = f"error {code}"
    return SessionError(f"{name}: {values['description'] or 'no description'}", code)


class WireConnection(ClientConnection):
    """The client's end of one connection.

    Args:
        options: the connection's options.
        credentials: for SASL.
        has_output: called whenever output was added.

    Attributes:
        failure: why the connection has ended; None before, and after a close that the client requested.
    """

    def __init__(self, options: ConnectionOptions, credentials: Credentials, has_output: Callable[[], None]) -> None:
        self._output_came = has_output
        super().__init__(
            mechanism_chooser(options, credentials),
            client_properties={_OBEYS_FLOW: 1, **(options.client_properties or {})},
            virtual_host=options.virtual_host,
            heartbeat=options.heartbeat,
            max_message_bytes=options.max_message_bytes,
        )
        self.failure: MessagingError | None = None
        self._reached = ""  # the last step of the negotiation

    def has_output(self) -> None:
        """Output was added."""
        self._output_came()

    def receive(self, data: bytes) -> None:
        """Process received bytes."""
        super().receive(data)
        for session in self.sessions.values():
            session.complete_received()

    def on_control(self, name: str, values: dict[str, Any]) -> None:
        """Process a control of the broker."""
        self._reached = name
        super().on_control(name, values)

    def on_closed(self) -> None:
        """The connection has ended."""
        if self.failure is None and not self._is_ours:
            self.failure = self._closing_error()
        self._lose_sessions(self.failure or ConnectionClosedError("the connection is closed"))

    @property
    def _is_ours(self) -> bool:
        return self._reached == "connection.open-ok" and not self.close_text and self.close_code == _NORMAL

    def _closing_error(self) -> MessagingError:
        text = self.close_text or f"code {self.close_code}"
        match self._reached:
            case "":
                return ConnectError(text)
            case "connection.start" | "connection.secure":
                return AuthenticationError(f"authentication failed: {text}")
            case "connection.tune":
                return ConnectError(f"the connection was not opened: {text}")
        return ConnectionClosedError(f"the connection was closed: {text}")

    def on_timer(self, now: float) -> None:
        """Check the heartbeat; called at intervals with the time of a monotonic clock, in seconds."""
        was_open = self.phase is Phase.OPEN
        super().on_timer(now)
        if was_open and self.phase is Phase.CLOSED:
            self.failure = HeartbeatError(self.close_text)

    def lost(self, reason: MessagingError) -> None:
        """The socket was closed."""
        if self.phase is not Phase.CLOSED:
            if self.phase is not Phase.CLOSING:
                self.failure = reason
            self.closed()

    def _lose_sessions(self, reason: MessagingError) -> None:
        for session in self.sessions.values():
            if isinstance(session, WireSession):
                session.on_lost(reason)
        self.sessions.clear()

    def begin_session(self, name: bytes, owner: SessionEvents) -> WireSession:
        """Attach a session, which may be used when `is_usable` is true.

        Raises:
            SessionError: the broker's limit of sessions is reached.
        """
        try:
            channel = self.free_channel()
        except ValueError as error:
            raise SessionError(str(error)) from None
        session = WireSession(name, channel, self, owner)
        self.attach(session)
        return session


_NORMAL: Final = 200
