"""The client's machines, with what this client makes of them: failures as its errors, and who is told of what.

Whoever owns a `WireConnection` sends what `take_output` gives, hands in what comes, calls `tick` from time to time, and
looks at `phase` and `failure` after that. A failure is final: the socket is of no more use.

Source: AMQP 0-10, connection, session and execution.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, Protocol

from broker.client.errors import (
    AuthenticationError,
    ConnectError,
    ConnectionClosedError,
    HeartbeatError,
    MessagingError,
    SessionError,
)
from broker.client.options import ConnectionOptions
from broker.model.completion import Done
from broker.protocols.amqp_0_10.client_connection import ClientConnection, ClientSession
from broker.protocols.amqp_0_10.connection import Phase
from broker.protocols.amqp_0_10.sequence import unwrap
from broker.protocols.amqp_0_10.session import State, detach_reason
from broker.security.mechanisms import ANONYMOUS, PLAIN, ClientMechanism, choose_mechanism
from formats.amqp_0_10.codes import ErrorCode
from formats.amqp_0_10.commands import decode_command, decode_result

#: Bytes of the messages that the broker has begun to deliver and not ended, together.
MOST_MESSAGE_BYTES: Final = 2 << 30
_TRANSFER: Final = b"\x04\x01"


class SessionOwner(Protocol):
    """What a session tells of itself."""

    def on_settled(self, first: int, last: int) -> None:
        """The broker has completed our commands `first` to `last`."""

    def on_transfer(self, number: int, destination: str, header: bytes, body: bytes) -> None:
        """A message has come, as command `number`, which is held."""


class WireSession(ClientSession):
    """The client's end of a session, on one connection.

    Attributes:
        done: which of our commands the broker has completed.
        results: command number -> what the broker answered, until it is taken.
        failure: why the session is at its end, None before.
    """

    def __init__(self, name: bytes, channel: int, connection: WireConnection, owner: SessionOwner) -> None:
        super().__init__(name, channel, connection)
        self._owner = owner
        self.done = Done()
        self.results: dict[int, Mapping[str, Any]] = {}
        self.failure: MessagingError | None = None

    @property
    def is_usable(self) -> bool:
        """Commands can be sent."""
        return self.state is State.ATTACHED and self.failure is None

    def on_peer_completed(self, first: int, last: int) -> None:
        """The broker has completed these; some of them it may have told before."""
        below = self.done.below
        if last >= below:
            self.done.add(first, last)
            self._owner.on_settled(max(first, below), last)

    def on_command(self, payload: bytes, header: bytes | None, body: bytes | None) -> None:
        """A command of the broker.

        Raises:
            FramingError, Amqp010Error: it makes no sense; the connection cannot go on.
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
        # Others mean nothing to a client that publishes and subscribes.

    def on_detached(self, code: int) -> None:
        """The broker has detached the session, or has done so at our wish (then the owner knows)."""
        if self.failure is None:
            self.failure = SessionError(f"the broker has detached the session: {detach_reason(code)}")

    def on_lost(self, reason: MessagingError) -> None:
        """The connection is gone."""
        if self.failure is None:
            self.failure = reason
        self.detached()


@lru_cache(maxsize=1024)
def _destination(payload: bytes) -> str:
    """Where a transfer goes to. All those of one subscription are the same bytes."""
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
        options: who we are and what we want.
        username, password: for SASL.
        has_output: called whenever something was put into `output`.

    Attributes:
        failure: why the connection is at its end; None before, and after a close that we asked for.
    """

    def __init__(
        self, options: ConnectionOptions, username: str | None, password: str | None, has_output: Callable[[], None]
    ) -> None:
        def choose(offered: tuple[str, ...]) -> ClientMechanism:
            mechanism = choose_mechanism(offered, options.sasl_mechanisms, username, password)
            if mechanism is None:
                hint = "none of these can be used"
                if username is None:
                    hint = "give a user name and a password"
                elif ANONYMOUS in offered and PLAIN not in offered:
                    hint = f"it has no users that {username!r} could be checked against; leave the name out, or start "
                    hint += "the broker with --user-file"
                raise ValueError(f"the broker offers {', '.join(offered) or 'no SASL mechanism'}: {hint}")
            return mechanism

        self._output_came = has_output
        super().__init__(
            choose,
            client_properties=options.client_properties,
            virtual_host=options.virtual_host,
            heartbeat=options.heartbeat,
            max_message_bytes=MOST_MESSAGE_BYTES,
        )
        self.failure: MessagingError | None = None
        self._reached = ""  # the last step of the negotiation

    def has_output(self) -> None:
        """Something was put into `output`."""
        self._output_came()

    def receive(self, data: bytes) -> None:
        """Take what the socket has brought."""
        super().receive(data)
        for session in self.sessions.values():
            session.settle()

    def on_control(self, name: str, values: dict[str, Any]) -> None:
        """The broker asks for something."""
        self._reached = name
        super().on_control(name, values)

    def on_closed(self) -> None:
        """The connection is at its end."""
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
                return AuthenticationError(f"not let in: {text}")
            case "connection.tune":
                return ConnectError(f"the connection was not opened: {text}")
        return ConnectionClosedError(f"the connection was closed: {text}")

    def tick(self, now: float) -> None:
        """Some time has gone by."""
        was_open = self.phase is Phase.OPEN
        super().tick(now)
        if was_open and self.phase is Phase.CLOSED:
            self.failure = HeartbeatError(self.close_text)

    def lost(self, reason: MessagingError) -> None:
        """The socket is gone."""
        if self.phase is not Phase.CLOSED:
            if self.phase is not Phase.CLOSING:
                self.failure = reason
            self.closed()

    def _lose_sessions(self, reason: MessagingError) -> None:
        for session in self.sessions.values():
            if isinstance(session, WireSession):
                session.on_lost(reason)
        self.sessions.clear()

    def begin_session(self, name: bytes, owner: SessionOwner) -> WireSession:
        """Attach a session. It is there when it `is_usable`.

        Raises:
            SessionError: there are as many sessions as the broker lets us have.
        """
        try:
            channel = self.free_channel()
        except ValueError as error:
            raise SessionError(str(error)) from None
        session = WireSession(name, channel, self, owner)
        self.attach(session)
        return session


_NORMAL: Final = 200
