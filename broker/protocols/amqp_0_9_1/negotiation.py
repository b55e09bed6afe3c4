"""How a connection begins: the client logs in, limits are agreed on, and the virtual host is opened.

    connection.start-ok, secure-ok    SASL (`security/attempt`), the same as for every protocol
    connection.tune-ok                the client's limits: at most those that were offered, 0 for these; its heartbeats
    connection.open                   the virtual host, which is always `/`; and whether the client is admitted

A client that does not say that it understands it is not told why a login has failed: as the specification has it, the
socket is closed.

Source: AMQP 0-9-1, class connection; RabbitMQ, "Protocol extensions" (authentication_failure_close).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from qstore.broker.log.client_properties import described
from qstore.broker.model.caller import Publisher
from qstore.broker.model.events import ClientConnect, ClientConnectFail
from qstore.broker.protocols.amqp_0_9_1.capabilities import adjusts_consumers, capabilities_of, server_properties
from qstore.broker.protocols.amqp_0_9_1.errors import HardError
from qstore.broker.protocols.amqp_0_9_1.frame_output import MAX_FRAME
from qstore.broker.protocols.amqp_0_9_1.shared import Shared
from qstore.broker.protocols.machine import Host
from qstore.broker.security.attempt import LoginAttempt
from qstore.broker.security.sasl.exchange import Answer, Challenge, Outcome, PasswordCheck, Refused, Success
from qstore.formats.amqp_0_9_1.codes import ReplyCode
from qstore.formats.amqp_0_9_1.frames import FRAME_MIN_SIZE
from qstore.formats.values import TypedMap

MAX_CHANNELS: Final = 2_047
"""Maximum number of channels that is offered; RabbitMQ's."""

HEARTBEAT_SECONDS: Final = 60
"""The interval of heartbeats that is offered; RabbitMQ's. The client decides."""

VIRTUAL_HOST: Final = "/"

_Values = dict[str, Any]


class Limits(NamedTuple):
    """What was agreed on.

    Attributes:
        channels: the highest channel number.
        frame: maximum size of a frame in bytes.
        heartbeat: seconds between heartbeats; 0 for none.
    """

    channels: int
    frame: int
    heartbeat: int


class NegotiatingConnection(Protocol):
    """The connection, as its negotiation sees it.

    Attributes:
        user, peer, publisher, client_properties, capabilities, adjusts_consumers: as of the connection; some are set
            here.
    """

    user: str
    peer: str
    publisher: Publisher
    client_properties: TypedMap
    capabilities: frozenset[str]
    adjusts_consumers: bool

    def send(self, method: str, /, **values: Any) -> None:
        """Send a method on channel 0."""

    def close(self, code: int, text: str) -> None:
        """Send connection.close."""

    def drop(self, code: int, text: str) -> None:
        """Close the socket without telling why."""

    def tuned(self, limits: Limits) -> None:
        """Limits are agreed on."""

    def opened(self) -> None:
        """The connection is open."""

    def pause(self) -> None:
        """Buffer input."""

    def unpause(self) -> None:
        """Process the buffered input."""


class Negotiation:
    """The negotiation of one connection.

    Args:
        connection: the connection.
        host: its event loop and socket.
        shared: what all connections share.
        login: the client's attempt to log in.
        refusal: why the client is refused; empty if it is not.
        now: seconds of a monotonic clock.

    Attributes:
        login: as above.
        is_over: whether the connection has ended or is open: nothing is done any more.
    """

    __slots__ = ("_connection", "_host", "_is_tuned", "_now", "_refusal", "_shared", "is_over", "login")

    def __init__(
        self,
        connection: NegotiatingConnection,
        host: Host,
        shared: Shared,
        login: LoginAttempt,
        refusal: str,
        now: Callable[[], float],
    ) -> None:
        self._connection, self._host, self._shared, self.login = connection, host, shared, login
        self._refusal, self._now = refusal, now
        self._is_tuned = self.is_over = False

    def begin(self) -> None:
        """The client has sent its protocol header."""
        login = self.login
        self._connection.send(
            "connection.start",
            version_major=0,
            version_minor=9,
            server_properties=server_properties(),
            mechanisms=" ".join(login.offered).encode(),
            locales=b"en_US",
        )
        if not login.offered:
            told, logged = login.why_none()
            self._log_failed_login(logged)
            self._connection.close(ReplyCode.ACCESS_REFUSED, f"ACCESS_REFUSED - {told}")

    def method(self, name: str, values: _Values) -> bool:
        """A method of the client. Returns whether it belongs to the negotiation. Raises HardError."""
        handler = _METHODS.get(name)
        if handler is None:
            return False
        handler(self, values)
        return True

    @property
    def _offered_channels(self) -> int:
        return min(self._shared.broker.settings.max_channels, MAX_CHANNELS)

    # ---- login ----

    def _on_start_ok(self, values: _Values) -> None:
        connection = self._connection
        if self.login.mechanism or connection.user:
            raise HardError(ReplyCode.COMMAND_INVALID, "connection.start-ok is unexpected in this state")
        connection.client_properties = values["client_properties"]
        connection.capabilities = capabilities_of(connection.client_properties)
        connection.adjusts_consumers = adjusts_consumers(connection.client_properties)
        self._handle_outcome(self.login.start(values["mechanism"], values["response"]))

    def _on_secure_ok(self, values: _Values) -> None:
        if not self.login.mechanism or self._connection.user:
            raise HardError(ReplyCode.COMMAND_INVALID, "connection.secure-ok is unexpected in this state")
        self._handle_outcome(self.login.step(values["response"]))

    def _handle_outcome(self, outcome: Outcome) -> None:
        connection = self._connection
        if isinstance(outcome, Challenge):
            connection.send("connection.secure", challenge=outcome.data)
        elif isinstance(outcome, Success):
            connection.user = connection.publisher.user = outcome.user_id
            connection.send(
                "connection.tune",
                channel_max=self._offered_channels,
                frame_max=MAX_FRAME,
                heartbeat=HEARTBEAT_SECONDS,
            )
        elif isinstance(outcome, PasswordCheck):
            connection.pause()
            self._host.check_password(outcome, self._checked)
        elif isinstance(outcome, Refused):
            self._log_failed_login(outcome.reason)
            connection.close(ReplyCode.RESOURCE_ERROR, f"RESOURCE_ERROR - {outcome.reason}")
        else:
            self._log_failed_login(outcome.reason)
            mechanism = self.login.mechanism or "that is not offered"
            text = f"Login was refused using authentication mechanism {mechanism}"
            if "authentication_failure_close" in connection.capabilities:
                connection.close(ReplyCode.ACCESS_REFUSED, f"ACCESS_REFUSED - {text}")
            else:
                connection.drop(ReplyCode.ACCESS_REFUSED, text)

    def _checked(self, outcome: Answer) -> None:
        if not self.is_over:
            self._handle_outcome(self.login.limited(outcome))
            self._connection.unpause()

    def _log_failed_login(self, reason: str) -> None:
        connection, reason = self._connection, self.login.failed(reason)
        text = "Client %s: Authentication failed: %s%s"
        properties = connection.client_properties
        self._shared.failed_logins.write(self._now(), text, connection.peer, reason, described(properties))
        event = ClientConnectFail(connection.peer, "", reason, properties)
        self._shared.broker.events.emit(event, connection.publisher.connection)

    # ---- limits, virtual host ----

    def _on_tune_ok(self, values: _Values) -> None:
        if not self._connection.user or self._is_tuned:
            raise HardError(ReplyCode.COMMAND_INVALID, "connection.tune-ok is unexpected in this state")
        offered = self._offered_channels
        frame, channels = values["frame_max"] or MAX_FRAME, values["channel_max"] or offered
        if not FRAME_MIN_SIZE <= frame <= MAX_FRAME:
            text = f"frame-max {frame} is outside the range of {FRAME_MIN_SIZE} to {MAX_FRAME}"
            raise HardError(ReplyCode.NOT_ALLOWED, text)
        if channels > offered:
            raise HardError(ReplyCode.NOT_ALLOWED, f"channel-max {channels} is above {offered}")
        self._is_tuned = True
        self._connection.tuned(Limits(channels, frame, values["heartbeat"]))

    def _on_open(self, values: _Values) -> None:
        if not self._is_tuned:
            raise HardError(ReplyCode.COMMAND_INVALID, "connection.open before connection.tune-ok")
        name = values["virtual_host"]
        if name != VIRTUAL_HOST:
            raise HardError(ReplyCode.NOT_ALLOWED, f"there is no vhost '{name}'; the only one is '{VIRTUAL_HOST}'")
        connection, events = self._connection, self._shared.broker.events
        refusal = self._refusal or self._shared.admission.refusal(connection.publisher)
        if refusal:
            failed = ClientConnectFail(connection.peer, connection.user, refusal, connection.client_properties)
            events.emit(failed, connection.publisher.connection)
            raise HardError(ReplyCode.NOT_ALLOWED, refusal)
        self.is_over = True
        connection.opened()
        connection.send("connection.open-ok")
        connected = ClientConnect(connection.peer, connection.user, connection.client_properties, "AMQP 0-9-1")
        events.emit(connected, connection.publisher.connection)


_METHODS: Final[dict[str, Callable[[Negotiation, _Values], None]]] = {
    "connection.start-ok": Negotiation._on_start_ok,
    "connection.secure-ok": Negotiation._on_secure_ok,
    "connection.tune-ok": Negotiation._on_tune_ok,
    "connection.open": Negotiation._on_open,
}
