"""The engine of the broker's end of a connection, for every protocol.

    connection  everything that both ends do (`connection`)
    login       by SASL (`security/authentication`); then the client is admitted, or refused
    output      is bounded: sessions stop delivering when `room` is used up, or when the socket's buffer is full
                (`can_send`), and continue once the output was written. A larger message is sent as a stream (`output`)
    closing     `begin_closing` stops messages and waits `CLOSE_SECONDS` for the client's answer
    end         its sessions end or wait to be attached again, and the events are emitted

It implements most of `machine`, the interface to the network.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from qstore.broker.log.event_log import described
from qstore.broker.log.logs import WARNING, LogBudget, log_of
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.caller import Publisher
from qstore.broker.model.counters import MessageSizes
from qstore.broker.model.errors import ModelError, UnauthorizedError
from qstore.broker.model.events import ClientConnect, ClientConnectFail, ClientDisconnect, ConsoleClosed, Event
from qstore.broker.protocols.assembly import Budget
from qstore.broker.protocols.connection import NORMAL, Connection, Phase
from qstore.broker.protocols.frame_log import DecodeFrame, FrameLog, is_tracing
from qstore.broker.protocols.machine import ConnectionCounts, DetachedSession, Host, Machine, Peer
from qstore.broker.protocols.output import ROOM, Stream
from qstore.broker.protocols.publishing import SessionRate
from qstore.broker.security.authentication import LoginAttempt
from qstore.broker.security.sasl.exchange import Answer, Challenge, Failure, Outcome, PasswordCheck, Refused, Success
from qstore.broker.security.tls import TlsFacts
from qstore.formats.broker_records.topology import DEFAULT_HOST
from qstore.formats.values import EMPTY_MAP, TypedMap

if TYPE_CHECKING:
    from qstore.broker.model.broker import Broker
    from qstore.broker.model.queues.queue import Queue
    from qstore.broker.model.virtual_host import VirtualHost
    from qstore.broker.protocols.publishing import PublishChecks
    from qstore.broker.security.authentication import Authentication
    from qstore.broker.security.sasl.exchange import SecurityLayer

_LOG: Final = log_of("Protocol")

CLOSE_SECONDS: Final = 5.0
"""Seconds to wait for the answer to a close."""

AT_ONCE: Final = 128
"""Messages plus other frames processed for one connection before yielding to others."""


class Sender(Protocol):
    """The sender of messages on a connection: a session, or a channel."""

    can_send: bool

    def wake_all(self) -> None:
        """Messages may be sent again."""

    def stream_ended(self) -> None:
        """Its stream, with everything appended to it, was sent."""


def ignore_error(_error: ModelError | None) -> None:
    """For calls whose result is not needed."""


class BrokerConnection(Connection):
    """The broker's end of a connection.

    Args:
        host: the event loop and socket.
        shared: what all connections of the protocol share.
        peer: the client.
        decode_traced: decodes frames for the log.
        sent_header: the protocol header that the broker sends first; empty if it sends none.

    Attributes:
        user, peer, created_at, client_properties, protocol, mechanism: as in `Machine`.
        virtual_host: the virtual host that it has opened; the default one before that.
        publisher: identifies messages published over it.
        login: the client's attempt to log in.
        negotiated: the security layer that it has chosen; None for none.
        tick, router, clock, monotonic: the broker's, within reach of each message.
        room: bytes that may be sent before yielding to other connections.
        can_send: whether the socket accepts messages.
        streams: channel -> stream of its large messages.
    """

    protocol: ClassVar[str]
    has_layers: ClassVar[bool] = False
    """Whether the protocol has a place where a security layer of SASL begins."""

    __slots__ = (
        "__weakref__", "_closing_since", "_host", "_is_announced", "_now", "_refusal", "_shared", "can_send",
        "client_properties", "clock", "created_at", "login", "monotonic", "negotiated", "peer", "publisher", "room",
        "router", "streams", "tick", "user", "virtual_host",
    )  # fmt: skip

    def __init__(
        self, host: Host, shared: Connections, peer: Peer, decode_traced: DecodeFrame, sent_header: bytes
    ) -> None:
        broker = shared.broker
        self._host, self._shared, self._now, self.tick = host, shared, shared.now, broker.tick
        self.router, self.clock, self.monotonic = broker.router, broker.clock, broker.monotonic
        super().__init__()
        self._assembler.max_at_once, self._assembler.clock = AT_ONCE, shared.now
        self._assembler.sizes = broker.message_sizes.setdefault(self.protocol, MessageSizes())
        self.peer, self._refusal = peer.address, peer.refusal
        self.user, self.created_at = "", broker.clock()
        self.virtual_host = broker.default_host
        self.client_properties: TypedMap = EMPTY_MAP
        self.login = LoginAttempt(shared.authentication, peer.security, has_layers=self.has_layers)
        self.negotiated: SecurityLayer | None = None
        self.publisher = Publisher(peer.address, broker.next_connection())
        self.publisher.host_name = peer.host_name
        self.publisher.is_internal = bool(peer.security.internal_user)
        self.room, self.can_send = ROOM, True
        self.streams: dict[int, Stream] = {}
        self._is_announced = False
        self._closing_since = 0.0
        if is_tracing():
            self._received_log = FrameLog(f"RECV {self.peer}", decode_traced, self.protocol_header)
            self._sent_log = FrameLog(f"SENT {self.peer}", decode_traced, sent_header)

    # ---- defined by the protocol ----

    @property
    @abstractmethod
    def senders(self) -> Mapping[int, Sender]:
        """Channel -> the sender of its messages."""

    @property
    @abstractmethod
    def publish_checks(self) -> PublishChecks:
        """The checks of its messages."""

    @property
    def plain_messages(self) -> int:
        """Messages not counted yet: its consumers have put them directly into the output, in three frames each."""
        return 0

    @abstractmethod
    def send_challenge(self, data: bytes) -> None:
        """Send the client a challenge of the mechanism."""

    @abstractmethod
    def send_limits(self) -> None:
        """Offer the limits to the client, which is logged in."""

    @abstractmethod
    def refuse_login(self, outcome: Refused | Failure) -> None:
        """Close the connection of a client whose login failed."""

    # ---- as a machine ----

    def new_rate(self) -> SessionRate | None:
        """The limit of a new session's messages; None if there is none."""
        broker = self._shared.broker
        if not self.has_rate or broker.call_later is None:
            return None
        return SessionRate(broker.settings.max_session_rate, broker.monotonic, broker.call_later)

    @property
    def has_rate(self) -> bool:
        """Whether its sessions have a limit: not those of the broker as its own client."""
        broker = self._shared.broker
        is_limited = bool(broker.settings.max_session_rate) and broker.call_later is not None
        return is_limited and not self.publisher.is_internal

    def limit_rate(self) -> None:
        """Have each message of this connection count for the rate of its session, if there is one."""
        if self.has_rate:
            self.publish_checks.limit_rate()

    @property
    def mechanism(self) -> str:
        """The SASL mechanism; empty before it is chosen."""
        return self.login.mechanism

    @property
    def ssf(self) -> int:
        """As `Machine.ssf`."""
        return self.layer_ssf or self.login.security.ssf

    @property
    def tls(self) -> TlsFacts | None:
        """As `Machine.tls`."""
        security = self.login.security
        if security.tls is None and security.is_encrypted and not security.internal_user:
            return TlsFacts()  # the broker is the client, and the socket's handshake is not known here
        return security.tls

    @property
    def is_outgoing(self) -> bool:
        """As `Machine.is_outgoing`."""
        return False

    @property
    def remote_host(self) -> str:
        """Address and port of the client."""
        return self.peer

    @property
    def actor(self) -> str:
        """As `Caller.actor`."""
        return self.publisher.connection.actor

    @property
    def counts(self) -> ConnectionCounts:
        """Frames, bytes and messages so far; input counts once its read was processed."""
        plain = self.plain_messages
        return ConnectionCounts(
            frames_received=self._assembler.frames,
            frames_sent=self.frames_sent + 3 * plain,
            bytes_received=self.bytes_received,
            bytes_sent=self.bytes_sent,
            messages_received=self._assembler.messages,
            messages_sent=self.messages_sent + plain,
        )

    @property
    def vhost(self) -> str:
        """As `Caller.vhost`."""
        return self.virtual_host.name

    def watch_memory(self, *, is_short: bool) -> None:
        """As `Machine.watch_memory`."""
        self.publish_checks.watch_memory(is_short=is_short)

    def watch_rules(self) -> None:
        """As `Machine.watch_rules`."""
        self.publish_checks.watch_rules(checks_publish=self._shared.admission.checks_publish)

    def take_published(self) -> bool:
        """As `Machine.take_published`."""
        checks = self.publish_checks
        has_published, checks.has_published = checks.has_published, False
        return has_published

    def run(self, work: Coroutine[Any, Any, None], done: Callable[[ModelError | None], None]) -> None:
        """Run a coroutine, and call `done` with its error, or None."""
        self._host.run(work, done)

    def leave(self, queue: Queue, done: Callable[[ModelError | None], None] = ignore_error) -> bool:
        """A queue has lost a consumer or its owner: delete it, at once or later, if it is auto-delete and unused.

        Returns whether `done` is called: after a deletion that has begun now.
        """
        if not queue.auto_delete or not queue.is_unused or queue.is_deleted:
            return False
        host = self.virtual_host
        if queue.auto_delete_seconds or (queue.is_kept_until_empty and not queue.is_empty):
            host.idle_queues.begin(queue)
            return False
        self.run(host.topology.delete_if_unused(queue), done)
        return True

    def receive(self, data: bytes) -> None:
        """Process bytes from the socket."""
        super().receive(data)
        self.tick.schedule()

    def resume(self) -> None:
        """As `Machine.resume`."""
        if self.phase is Phase.CLOSED or self._pauses:
            return
        super().resume()
        self.tick.schedule()
        self._host.resumed()

    # ---- login ----

    def begin_login(self) -> str:
        """Begin the login, after the mechanisms were offered. Returns why the client is refused; empty if it is not."""
        if not self.login.offered:
            reason, logged = self.login.why_none()
            self._log_failed_login(logged)
            return reason
        return ""

    def handle_outcome(self, outcome: Outcome) -> None:
        """Handle the mechanism's outcome for the client's response."""
        if isinstance(outcome, Challenge):
            self.send_challenge(outcome.data)
        elif isinstance(outcome, Success):
            self.user = self.publisher.user = outcome.user_id
            self.negotiated = outcome.layer
            self.send_limits()
        elif isinstance(outcome, PasswordCheck):
            self.pause()
            self._host.check_password(outcome, self._checked)
        else:
            self._log_failed_login(outcome.reason)
            self.refuse_login(outcome)

    def _checked(self, outcome: Answer) -> None:
        if self.phase is Phase.NEGOTIATING:
            self.handle_outcome(self.login.limited(outcome))
        self.unpause()

    def _log_failed_login(self, reason: str) -> None:
        reason = self.login.failed(reason)
        text = "Client %s: Authentication failed: %s%s"
        self._shared.failed_logins.write(self._now(), text, self.peer, reason, described(self.client_properties))
        self._emit(ClientConnectFail(self.peer, "", reason, self.client_properties))

    def admit(self, host: VirtualHost) -> str:
        """Why a client is refused although it is logged in; empty if it is admitted, to a virtual host."""
        refusal = self._refusal or self._shared.admission.refusal(self.publisher, host)
        if not refusal:
            self.virtual_host = host
        else:
            self._emit(ClientConnectFail(self.peer, self.user, refusal, self.client_properties))
        return refusal

    def announce(self) -> None:
        """Emit the event of an open connection, after open-ok was sent."""
        self._is_announced = True
        self._emit(ClientConnect(self.peer, self.user, self.client_properties, self.protocol))

    def _emit(self, event: Event) -> None:
        self._shared.broker.events.emit(event, self.publisher.connection)

    # ---- output ----

    def has_output(self) -> None:
        """Schedule the output to be sent at the end of the tick."""
        self.tick.outputs[self] = None
        self.tick.schedule()

    def write_output(self) -> None:
        """Send the collected output; what had no room continues in the next tick."""
        if self.streams and self.can_send:
            self._take_portions()
        data = self.take_output()
        if data:
            self._host.write(data)
        if self.room < ROOM:
            had_room = self.room > 0
            self.room = ROOM
            if not had_room and self.can_send:
                self._wake_senders()

    def _take_portions(self) -> None:
        """Add a portion of the streams, in turn, to the output; the next tick continues with the next stream."""
        streams, left = self.streams, ROOM
        share = ROOM // len(streams)
        while streams and left > 0:
            channel = next(iter(streams))
            stream = streams.pop(channel)
            before = stream.frames
            left -= stream.take(self.output, share)
            self.frames_sent += stream.frames - before
            if not stream.is_over:
                streams[channel] = stream
            elif channel in self.senders:
                self.senders[channel].stream_ended()
        if streams:
            self.has_output()

    def pause_sending(self) -> None:
        """The socket's send buffer is full."""
        self.can_send = False
        for sender in self.senders.values():
            sender.can_send = False

    def resume_sending(self) -> None:
        """The socket accepts output again."""
        if self.phase not in (Phase.CLOSING, Phase.CLOSED):
            self.can_send = True
            self._wake_senders()
            if self.streams:
                self.has_output()

    def _wake_senders(self) -> None:
        for sender in list(self.senders.values()):
            sender.wake_all()

    # ---- end ----

    def begin_closing(self, code: int, text: str) -> None:
        """As `Connection.begin_closing`; messages are no longer sent, as they would only be redelivered."""
        super().begin_closing(code, text)
        self._closing_since = self._now()
        self.pause_sending()

    @abstractmethod
    def release(self) -> None:
        """The connection is closed or lost: its sessions end, or wait to be attached again."""

    def on_closed(self) -> None:
        """The connection is closed or lost."""
        if self.close_code not in (0, NORMAL):
            _LOG.info("Client %s: connection closed: %d %s", self.peer, self.close_code, self.close_text)
        elif self.close_text and not self.close_code:
            _LOG.info("Client %s: connection closed: %s", self.peer, self.close_text)
        self.release()
        self.has_output()
        self.write_output()
        self._host.close()

    def dismantle(self) -> None:
        """As `Machine.dismantle`."""
        super().dismantle()
        self.publisher.is_closed = True
        self._shared.admission.leave(self.publisher)
        if self.publisher.is_console:
            self._emit(ConsoleClosed())
        if self._is_announced:
            self._emit(ClientDisconnect(self.peer, self.user, self.client_properties))

    def on_timer(self, now: float) -> None:
        """Check heartbeats, incomplete messages, and whether a closing connection is overdue."""
        if self._assembler.uncounted:
            self._assembler.count_sizes()
        if self._assembler.pending_bytes or self._assembler.is_paused:
            self._assembler.on_timer(now)
        if self.phase is Phase.CLOSING and now - self._closing_since > CLOSE_SECONDS:
            self.closed()
        super().on_timer(now)


# ---- all connections ----


class Admission:
    """Whether a client may open its connection, once its user is known; used by every protocol.

    Before that, a client is refused by the rules for all users and by the limits for hosts (`network/clients`).

    Args:
        broker: checks from where a user may connect, and limits the connections of a user.
    """

    def __init__(self, broker: Broker) -> None:
        self._authorization, self._quotas = broker.authorization, broker.quotas
        self._admitted: dict[Publisher, VirtualHost] = {}

    @property
    def checks_publish(self) -> bool:
        """Whether messages are checked at present."""
        return self._authorization.authorizer.checks_publish

    def refusal(self, client: Publisher, virtual_host: VirtualHost) -> str:
        """Why a client is refused; empty if it is admitted to a virtual host, which counts it until it leaves."""
        host, client.vhost = client.remote_host.rpartition(":")[0].strip("[]"), virtual_host.name
        firewall, name = self._authorization.firewall, virtual_host.name
        if firewall is not None and not client.is_internal and not firewall.admits(host, client.host_name, name):
            self._quotas.denied(client.user, client.remote_host)
            return f"access to vhost '{name}' refused from {host} by the firewall"
        try:
            self._authorization.check(client, Action.CREATE, ObjectType.CONNECTION, "", host=host)
            if virtual_host.name != DEFAULT_HOST:
                self._authorization.check(client, Action.ACCESS, ObjectType.VIRTUAL_HOST, virtual_host.name)
        except UnauthorizedError as error:
            self._quotas.denied(client.user, client.remote_host)
            if virtual_host.name == DEFAULT_HOST:
                return f"{error} from {host}"
            return f"access to vhost '{virtual_host.name}' refused for user '{client.user}'"
        if not virtual_host.has_room_for_connection:
            self._quotas.denied(client.user, client.remote_host)
            limit = f"connection limit ({virtual_host.max_connections}) is reached"
            return f"access to vhost '{virtual_host.name}' refused for user '{client.user}': {limit}"
        if not self._quotas.log_in(client.user):
            self._quotas.denied(client.user, client.remote_host)
            return f'the limit of connections of user "{client.user}" is reached'
        self._admitted[client] = virtual_host
        virtual_host.connection_count += 1
        return ""

    def leave(self, client: Publisher) -> None:
        """A client's connection is closed, whether or not it was admitted."""
        host = self._admitted.pop(client, None)
        if host is not None:
            host.connection_count -= 1
            self._quotas.log_out(client.user)


class Connections:
    """The connections of one protocol in a broker, and what they share.

    Args:
        broker: the model.
        authentication: how clients log in.
        largest: bytes that one incomplete message may have at most.

    Attributes:
        broker, authentication: as above.
        now: seconds of a monotonic clock.
        budget: limits incomplete messages over all connections; there is room for at least one of the maximum size.
        admission: admits clients whose user is known.
        failed_logins: log lines about rejected clients.
    """

    def __init__(self, broker: Broker, authentication: Authentication, largest: int) -> None:
        self.broker, self.authentication = broker, authentication
        self.now: Callable[[], float] = time.monotonic
        limit = broker.settings.max_unfinished_bytes
        self.budget = Budget(max(limit, largest), largest, broker.tick.turns)
        self.admission = Admission(broker)
        self.failed_logins = LogBudget(log_of("Security"), WARNING, "failed logins")

    @abstractmethod
    def connect(self, host: Host, peer: Peer) -> Machine:
        """Create the machine of a new connection."""

    def on_timer(self, now: float) -> None:
        """Run periodic work; `now` is in seconds of a monotonic clock."""
        self.failed_logins.on_timer(now)

    def detached_sessions(self) -> list[DetachedSession]:
        """The sessions that wait to be attached again."""
        return []

    def user_deleted(self, user: str) -> None:
        """End what waits for a user, given with the realm, who cannot log in any more."""

    @property
    def unfinished_bytes(self) -> int:
        """Bytes received of incomplete messages."""
        return self.budget.used

    def close(self) -> None:
        """The broker stops: end everything that outlives a connection."""
