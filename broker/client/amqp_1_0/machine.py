"""The client's protocol machine for AMQP 1.0: as that for 0-10, with the client's errors, and callbacks to the core.

An error of the broker with close ends the connection, one with end the session, one with detach a link (`links`). A
failure is final: the socket must be closed.

Source: AMQP 1.0, part "transport".
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from qstore.broker.client.errors import (
    AuthenticationError,
    ConnectError,
    ConnectionClosedError,
    ConnectionRedirected,
    HeartbeatError,
    MessagingError,
    SessionError,
)
from qstore.broker.client.options import ConnectionOptions, mechanism_chooser
from qstore.broker.protocols.amqp_1_0.client_connection import ClientConnection, ClientSession, error_text
from qstore.broker.protocols.connection import NORMAL, Phase
from qstore.broker.security.sasl.table import Credentials

if TYPE_CHECKING:
    from qstore.formats.amqp_1_0.composites import Composite

NO_SASL: Final = ("NONE",)


class SessionEvents(Protocol):
    """What a session is for."""

    def on_outcome(self, first: int, last: int, state: Composite | None) -> None:
        """As `SessionOwner.on_outcome`."""

    def on_broker_settled(self, first: int, last: int) -> None:
        """As `SessionOwner.on_settled`."""


class WireSession:
    """The client's end of a session, on one connection.

    Attributes:
        session: its machine.
        failure: why the session has ended; None before.
    """

    session: ClientSession

    def __init__(self, owner: SessionEvents) -> None:
        self._owner = owner
        self.failure: MessagingError | None = None

    @property
    def is_usable(self) -> bool:
        """Whether links can be attached and used."""
        return self.session.is_usable and self.failure is None

    @property
    def is_decided(self) -> bool:
        """Whether the broker has begun the session, or it has ended."""
        return self.session.is_usable or self.session.is_ended or self.failure is not None

    def on_begun(self) -> None:
        """As `SessionOwner.on_begun`."""

    def on_ended(self, error: Composite | None) -> None:
        """As `SessionOwner.on_ended`; a lost connection has told its reason before."""
        if self.failure is None:
            text = "the broker has ended the session" if error is None else error_text(error)
            self.failure = SessionError(text)

    def on_outcome(self, first: int, last: int, state: Composite | None) -> None:
        """As `SessionOwner.on_outcome`."""
        self._owner.on_outcome(first, last, state)

    def on_settled(self, first: int, last: int) -> None:
        """As `SessionOwner.on_settled`."""
        self._owner.on_broker_settled(first, last)

    def on_lost(self, reason: MessagingError) -> None:
        """The connection was lost."""
        if self.failure is None:
            self.failure = reason


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
        self._was_open = False
        self._sessions: list[WireSession] = []
        self.failure: MessagingError | None = None
        is_plain = options.sasl_mechanisms == NO_SASL and not credentials.min_ssf
        super().__init__(
            None if is_plain else mechanism_chooser(options, credentials),
            container=options.container_id or str(uuid.uuid4()),
            host_name=options.virtual_host or credentials.host,
            client_properties=options.client_properties,
            heartbeat=options.heartbeat,
            max_message_bytes=options.max_message_bytes,
        )

    def has_output(self) -> None:
        """Output was added."""
        self._output_came()

    def on_open(self) -> None:
        """As `ClientConnection.on_open`."""
        self._was_open = True

    def on_closed(self) -> None:
        """The connection has ended."""
        if self.failure is None and not (self._was_open and self.close_code == NORMAL and not self.close_text):
            self.failure = self._closing_error()
        reason = self.failure or ConnectionClosedError("the connection is closed")
        for session in self._sessions:
            session.on_lost(reason)
        self._sessions.clear()
        self.end_sessions()

    def _closing_error(self) -> MessagingError:
        text = self.close_text or f"code {self.close_code}"
        if self.redirect is not None:
            return ConnectionRedirected(f"the connection was closed: {text}", *self.redirect[:2])
        if self._was_open:
            return ConnectionClosedError(f"the connection was closed: {text}")
        if self.is_logged_in:
            return ConnectError(f"the connection was not opened: {text}")
        return AuthenticationError(f"authentication failed: {text}") if self.is_authenticating else ConnectError(text)

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

    def open_session(self, owner: SessionEvents) -> WireSession:
        """Begin a session, which may be used when `is_usable` is true.

        Raises:
            SessionError: the broker's limit of sessions is reached.
        """
        wire = WireSession(owner)
        try:
            wire.session = self.begin_session(wire)
        except ValueError as error:
            raise SessionError(str(error)) from None
        self._sessions = [each for each in self._sessions if not each.session.is_ended]
        self._sessions.append(wire)
        return wire
