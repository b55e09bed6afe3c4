"""The broker's end of a connection: negotiates, and has its channels.

    client                              broker
    AMQP 0 0 9 1                  ->
                                  <-    connection.start       properties, mechanisms
    connection.start-ok           ->                           SASL, as for every protocol (`security/authentication`)
                (secure, secure-ok as often as the mechanism requires)
                                  <-    connection.tune        limits
    connection.tune-ok            ->                           at most those that were offered, 0 for these; heartbeats
    connection.open               ->                           the virtual host, always `/`; whether it is admitted
                                  <-    connection.open-ok
    channels; heartbeats while nothing else is sent
    connection.close              <->   connection.close-ok

A client that does not say that it understands it is not told why a login has failed: as the specification has it, the
socket is closed. An error of the connection is sent with connection.close, and then everything is ignored until the
client has answered, or `CLOSE_SECONDS` are over. Queues that are exclusive to the connection are deleted with it:
before close-ok, if the client closes it.

Output is bounded: channels stop delivering when `room` is used up, or when the socket's buffer is full (`can_send`),
and continue when the output was written. A larger message is sent as a stream (`protocols.streams`).

**Capabilities.** A client uses an extension only if the broker names it; the broker uses one only if the client does.
The broker names itself, and not RabbitMQ: clients that look at `product` and `version` do so to learn which of
RabbitMQ's releases, with their quirks and their kinds of queues, they are talking to, and this is none of them. It is
connection.start that has these properties, before anything is known about the client, so they are the same for all.

One client needs more than names. kombu, on which Celery is built, sets the prefetch count of its running consumers
again and again: for each task that waits for its time, and when the pool grows or shrinks. On RabbitMQ
3.3 to 3.13 it does so with `global=true`, on every other broker with `global=false`. RabbitMQ applies the latter to
later consumers only; if the broker did so here, a worker whose prefetch window is full of tasks that are due in an hour
would get nothing else for an hour. `adjusts_consumers` recognizes such clients, and only these.

Sources: AMQP 0-9-1, classes connection and channel; RabbitMQ, "Protocol extensions" (also
authentication_failure_close), "Blocked Connection Notifications", "Client properties and capabilities" and "Consumer
Prefetch"; kombu 5.7, `transport/pyamqp.py` (qos_semantics_matches_spec); Celery 5.7, `worker/consumer/tasks.py`.
"""

from __future__ import annotations

import platform
import socket
import time
from collections.abc import Callable, Coroutine
from enum import Enum, auto
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple

from qstore import __version__
from qstore.broker.log.event_log import described
from qstore.broker.log.logs import WARNING, LogBudget, log_of
from qstore.broker.model.broker import Broker
from qstore.broker.model.caller import BROKER, Caller, Publisher
from qstore.broker.model.errors import ModelError
from qstore.broker.model.events import ClientConnect, ClientConnectFail, ClientDisconnect, SessionCreated
from qstore.broker.model.message import Buffer, Content
from qstore.broker.model.queues.flow_control import FlowControl
from qstore.broker.model.queues.queue import Queue
from qstore.broker.protocols.admission import Admission
from qstore.broker.protocols.amqp_0_9_1.assembly import Assembler
from qstore.broker.protocols.amqp_0_9_1.channel import Channel
from qstore.broker.protocols.amqp_0_9_1.errors import (
    HardError,
    ProtocolError,
    SoftError,
    encode_close,
    malformed,
    protocol_error,
)
from qstore.broker.protocols.amqp_0_9_1.message import MAX_FRAME
from qstore.broker.protocols.amqp_0_9_1.methods import do_method
from qstore.broker.protocols.amqp_0_9_1.publishing import Publishing, publish
from qstore.broker.protocols.budget import Budget
from qstore.broker.protocols.frame_log import FrameLog, TracedFrame, is_tracing
from qstore.broker.protocols.machine import ConnectionCounts, DetachedSession, Host, Peer, SessionAction
from qstore.broker.protocols.streams import Stream
from qstore.broker.security.authentication import Authentication, LoginAttempt
from qstore.broker.security.sasl.exchange import Answer, Challenge, Outcome, PasswordCheck, Refused, Success
from qstore.formats.amqp_0_9_1.codes import Amqp091Error, ReplyCode
from qstore.formats.amqp_0_9_1.frames import (
    FRAME_MIN_SIZE,
    HEARTBEAT_FRAME,
    METHOD,
    OVERHEAD,
    PROTOCOL_HEADER,
    Frame,
    decode_frame,
    encode_frame,
)
from qstore.formats.amqp_0_9_1.methods import BY_CODE, decode_method, encode_method
from qstore.formats.values import EMPTY_MAP, TypedMap, typed_map

_LOG: Final = log_of("Protocol")

_Values = dict[str, Any]
MAX_NEGOTIATING_FRAME: Final = 16_384
"""The same before limits are negotiated: client properties and SASL responses."""

CLOSE_SECONDS: Final = 5.0
"""How long the answer to connection.close is waited for."""

AT_ONCE: Final = 128
"""Messages plus other frames processed for one connection before yielding to others."""

_MEMORY_IS_SHORT: Final = (
    "The broker is short of memory (--broker-memory): publishers are slowed down until messages are consumed"
)
_DISK_IS_SHORT: Final = (
    "The disk of the broker is nearly full (--disk-free-limit): publishers are slowed down until messages are consumed"
)
_MISSED_HEARTBEATS: Final = 2  # intervals without a byte after which the client is presumed dead

ROOM: Final = 256 * 1024
"""Bytes sent to one connection before yielding to others: as much as is read from one at once."""

_MAX_REASON: Final = 255  # bytes


class Phase(Enum):
    """The phases of a connection."""

    HEADER = auto()  # waiting for the client's protocol header
    NEGOTIATING = auto()
    OPEN = auto()
    CLOSING = auto()  # connection.close was sent or received
    CLOSED = auto()


class Blocker(Enum):
    """What the messages of a client wait for."""

    QUEUE = auto()  # flow control
    MEMORY = auto()
    DISK = auto()


CAPABILITIES: Final = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "consumer_priorities": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
    "direct_reply_to": True,
}
"""Of the broker: the extensions of RabbitMQ that clients ask for, and whether it has them."""


_ADJUSTING: Final = "py-amqp"
"""The product whose connections change the prefetch count of running consumers: the client library of kombu."""


def server_properties() -> TypedMap:
    """The broker's properties: those that AMQP 0-9-1 asks for, and RabbitMQ's `cluster_name` and `capabilities`."""
    host = socket.gethostname()
    return typed_map(
        {
            "product": "qstore",
            "version": __version__,
            "platform": f"Python {platform.python_version()}",
            "copyright": "The authors of qstore",
            "information": "Licensed under the Apache License 2.0",
            "host": host,
            "cluster_name": host,
            "capabilities": CAPABILITIES,
        }
    )


def capabilities_of(properties: TypedMap) -> frozenset[str]:
    """The names of the capabilities that a client has."""
    typed = properties.get("capabilities")
    if typed is None or not isinstance(typed.value, TypedMap):
        return frozenset()
    return frozenset(name for name, each in typed.value.entries if each.value is True)


def adjusts_consumers(properties: TypedMap) -> bool:
    """Whether a client's basic.qos with `global=false` changes its channel's running consumers, too."""
    product = properties.get("product")
    return product is not None and product.value in (_ADJUSTING, _ADJUSTING.encode())


_HEADS: Final = 256 * 1024  # bytes: at most two frames, basic.publish and the content header


class Shared:
    """The shared state.

    Args:
        broker: the model.

    Attributes:
        broker: as above.
        budget: limits incomplete messages over all connections; there is room for at least one of the maximum size.
        admission: admits clients whose user is known.
        failed_logins: log lines about rejected clients.
    """

    def __init__(self, broker: Broker) -> None:
        settings = broker.settings
        self.broker = broker
        largest = settings.max_message_bytes + _HEADS
        self.budget = Budget(max(settings.max_unfinished_bytes, largest), largest, broker.tick.turns)
        self.admission = Admission(broker.authorization, broker.quotas)
        self.failed_logins = LogBudget(log_of("Security"), WARNING, "failed logins")


MAX_CHANNELS: Final = 2_047
"""Maximum number of channels that is offered; RabbitMQ's."""

HEARTBEAT_SECONDS: Final = 60
"""The interval of heartbeats that is offered; RabbitMQ's. The client decides."""

VIRTUAL_HOST: Final = "/"


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
        connection: ServerConnection,
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

Done = Callable[[ModelError | None], None]


class ExclusiveQueues:
    """The exclusive queues of one connection.

    Args:
        host: runs what takes time.
        broker: the model.
        owner: the connection.
    """

    __slots__ = ("_broker", "_host", "_owner", "_queues")

    def __init__(self, host: Host, broker: Broker, owner: Caller) -> None:
        self._host, self._broker, self._owner = host, broker, owner
        self._queues: dict[Queue, None] = {}

    def add(self, queue: Queue) -> None:
        """A queue was declared exclusive to the connection."""
        self._queues[queue] = None

    def delete(self, done: Done) -> None:
        """The connection ends: delete them, and call `done`, at once if there are none."""
        queues, self._queues = list(self._queues), {}
        if queues:
            self._host.run(self._delete(queues), done)
        else:
            done(None)

    async def _delete(self, queues: list[Queue]) -> None:
        for queue in queues:
            if self._broker.queues.get(queue.name) is queue and queue.owner is self._owner:
                try:
                    await self._broker.topology.delete_queue(queue.name, caller=BROKER)
                except ModelError as error:
                    _LOG.error('Exclusive queue "%s" was not deleted: %s', queue.name, error)
                    queue.owner = None


class ServerConnection:
    """The broker's end.

    Args:
        host: the event loop and socket.
        shared: what all connections share.
        authentication: the available mechanisms.
        peer: the client.
        now: seconds of a monotonic clock.

    Attributes:
        user, peer, created_at, client_properties, protocol, mechanism: as of `Machine`.
        publisher: identifies messages published over it.
        publishing: decodes messages.
        tick: of the broker.
        phase: its phase.
        channels: number -> channel, with those that wait for channel.close-ok.
        output: buffers to be sent.
        room: bytes that may be sent before yielding to other connections.
        can_send: whether the socket accepts messages.
        streams: channel -> stream of its large messages.
        max_payload: bytes of a frame's payload, as negotiated.
        bytes_sent, frames_sent, messages_sent: those put into `output`.
        heartbeat: seconds between heartbeats; 0 for none.
        capabilities: those of the client's capabilities that it has.
        adjusts_consumers: whether its basic.qos changes running consumers, too.
        close_code, close_text: why it was closed, by either end; 0 if it was not.
    """

    protocol: ClassVar[str] = "AMQP 0-9-1"

    __slots__ = (
        "__weakref__", "_assembler", "_blocked_by", "_channel_max", "_closing_since", "_exclusive_queues",
        "_has_received", "_has_sent", "_header", "_host", "_is_announced", "_is_deaf", "_last_received", "_last_sent",
        "_negotiation", "_now", "_pauses", "_shared", "_waiting", "adjusts_consumers", "bytes_received", "bytes_sent",
        "can_send", "capabilities", "channels", "client_properties", "close_code", "close_text", "created_at",
        "frames_sent", "heartbeat", "max_payload", "messages_sent", "output", "peer", "phase", "publisher",
        "publishing", "room", "streams", "tick", "user",
    )  # fmt: skip

    def __init__(
        self, host: Host, shared: Shared, authentication: Authentication, peer: Peer, now: Callable[[], float]
    ) -> None:
        broker, settings = shared.broker, shared.broker.settings
        self._host, self.tick = host, broker.tick
        self._shared, self._now, self.peer = shared, now, peer.address
        self.user, self.created_at, self.client_properties = "", broker.clock(), EMPTY_MAP
        self.phase = Phase.HEADER
        self.capabilities: frozenset[str] = frozenset()
        self.adjusts_consumers = False
        self.channels: dict[int, Channel] = {}
        self._negotiation = Negotiation(
            self, host, shared, LoginAttempt(authentication, peer.link), peer.refusal, now
        )  # fmt: skip
        self._exclusive_queues = ExclusiveQueues(host, broker, self)
        self.publisher = Publisher(peer.address, broker.next_connection())
        self.publishing = Publishing(
            self.publisher, checks_user_ids=settings.auth, checks_publish=shared.admission.checks_publish
        )
        self.publishing.has_timestamps = broker.has_timestamps
        self.output: list[Buffer] = []
        self.room, self.can_send = ROOM, True
        self.streams: dict[int, Stream] = {}
        self.max_payload = FRAME_MIN_SIZE - OVERHEAD
        self.heartbeat = self.close_code = self._pauses = self._channel_max = 0
        self.close_text = ""
        self.bytes_received = self.bytes_sent = self.frames_sent = self.messages_sent = 0
        self._assembler = Assembler(self, MAX_NEGOTIATING_FRAME, settings.max_message_bytes, shared.budget)
        self._assembler.max_at_once, self._assembler.clock = AT_ONCE, now
        self._header = b""
        self._last_received = self._last_sent = self._closing_since = 0.0
        self._has_received = self._has_sent = False
        self._is_announced = self._is_deaf = False
        self._blocked_by: set[Blocker] = set()  # why its messages wait
        self._waiting = 0  # messages that wait for stopped queues

    # ---- as a machine ----

    @property
    def mechanism(self) -> str:
        """The SASL mechanism; empty before it is chosen."""
        return self._negotiation.login.mechanism

    @property
    def sessions(self) -> dict[int, Channel]:
        """Number -> channel."""
        return {number: channel for number, channel in self.channels.items() if channel.is_open}

    @property
    def is_paused(self) -> bool:
        """Whether input is buffered until `unpause`."""
        return self._assembler.is_paused and self.phase is not Phase.CLOSED

    @property
    def is_behind(self) -> bool:
        """As `Machine.is_behind`."""
        return self._assembler.is_behind and self.phase is not Phase.CLOSED

    @property
    def is_negotiating(self) -> bool:
        """Whether the connection is not open yet."""
        return self.phase in (Phase.HEADER, Phase.NEGOTIATING)

    @property
    def is_closing(self) -> bool:
        """As `Machine.is_closing`."""
        return self.phase is Phase.CLOSING

    @property
    def is_closed(self) -> bool:
        """Whether the connection is closed."""
        return self.phase is Phase.CLOSED

    @property
    def counts(self) -> ConnectionCounts:
        """Frames, bytes and messages so far; input counts when its read was processed."""
        return ConnectionCounts(
            frames_received=self._assembler.frames,
            frames_sent=self.frames_sent,
            bytes_received=self.bytes_received,
            bytes_sent=self.bytes_sent,
            messages_received=self._assembler.messages,
            messages_sent=self.messages_sent,
        )

    def watch_memory(self, *, is_short: bool) -> None:
        """As `Machine.watch_memory`; a client that has published is told."""
        self.publishing.watch_memory(is_short=is_short)
        if is_short and self._assembler.messages:
            self.block(Blocker.MEMORY, _MEMORY_IS_SHORT)
        elif not is_short:
            self.unblock(Blocker.MEMORY)

    def watch_disk(self, *, is_short: bool) -> None:
        """As `Machine.watch_disk`."""
        if is_short:
            self.block(Blocker.DISK, _DISK_IS_SHORT)
        else:
            self.unblock(Blocker.DISK)

    def watch_rules(self) -> None:
        """As `Machine.watch_rules`."""
        self.publishing.watch_rules(checks_publish=self._shared.admission.checks_publish)

    def take_published(self) -> bool:
        """As `Machine.take_published`."""
        has_published, self.publishing.has_published = self.publishing.has_published, False
        if has_published:
            self.block(Blocker.MEMORY, _MEMORY_IS_SHORT)
        return has_published

    def force_close(self, text: str) -> None:
        """As `Machine.force_close`."""
        self.close(ReplyCode.CONNECTION_FORCED, f"CONNECTION_FORCED - {text}")

    def set_timestamps(self, *, is_on: bool) -> None:
        """As `Machine.set_timestamps`."""
        self.publishing.has_timestamps = is_on

    def manage_session(self, channel: int, action: SessionAction) -> None:
        """As `Machine.manage_session`. A channel cannot be detached: it is closed."""
        found = self.channels.get(channel)
        if found is not None and found.is_open and action is not SessionAction.SOLICIT:
            self.fail(found, SoftError(ReplyCode.CONNECTION_FORCED, "closed by management"))

    # ---- input ----

    def receive(self, data: bytes) -> None:
        """Process bytes from the socket."""
        self._has_received = True
        self.bytes_received += len(data)
        if not data or self.phase is Phase.CLOSED or self._is_deaf:
            return
        try:
            if self.phase is Phase.HEADER:
                data = self._take_header(data)
            self._assembler.receive(data)
        except (ProtocolError, Amqp091Error) as error:
            self._violated(error)
        self.tick.schedule()

    def _take_header(self, data: bytes) -> bytes:
        data = self._header + data
        if len(data) < len(PROTOCOL_HEADER) and PROTOCOL_HEADER.startswith(data):
            self._header = data
            return b""
        self._header = b""
        if not data.startswith(PROTOCOL_HEADER):
            self.output.append(PROTOCOL_HEADER)
            self.closed()
            return b""
        self.phase = Phase.NEGOTIATING
        self._negotiation.begin()
        return data[len(PROTOCOL_HEADER) :]

    def _violated(self, error: ProtocolError | Amqp091Error) -> None:
        """The client's bytes are not valid, and nothing after them can be parsed."""
        self._is_deaf = True
        if isinstance(error, Amqp091Error):
            error = malformed(error)
        if self.phase is Phase.CLOSING:
            self.closed()
        else:
            self.close(error.code, error.reply_text)

    def pause(self) -> None:
        """Buffer input from now on, until as many calls of `unpause`."""
        self._pauses += 1
        self._assembler.is_paused = True

    def unpause(self) -> None:
        """Undo one call of `pause`; after the last, process the buffered input."""
        self._pauses -= 1
        if not self._pauses:
            self.resume()

    def resume(self) -> None:
        """As `Machine.resume`."""
        if self.phase is Phase.CLOSED or self._pauses:
            return
        if not self._is_deaf:
            try:
                self._assembler.resume()
            except (ProtocolError, Amqp091Error) as error:
                self._violated(error)
        self.tick.schedule()
        self._host.resumed()

    def method(self, channel: int, payload: bytes) -> None:
        """A method without content was received."""
        found = self.channels.get(channel)
        if found is not None and found.is_open and self.phase is Phase.OPEN:
            try:
                do_method(found, payload)
            except (ProtocolError, ModelError) as error:
                self.fail(found, error, payload)
            except Amqp091Error as error:
                self.fail(found, malformed(error), payload)
            return
        try:
            self._do_own_method(channel, payload)
        except (HardError, Amqp091Error) as error:
            told = error if isinstance(error, HardError) else malformed(error)
            self.close(told.code, told.reply_text, payload)

    def message(self, channel: int, payload: bytes, header: bytes, body: Content) -> None:
        """A message was received."""
        found = self.channels.get(channel)
        if found is None or not found.is_open or self.phase is not Phase.OPEN:
            self.begins(channel)
            return
        try:
            publish(found, payload, header, body)
        except (ProtocolError, ModelError) as error:
            self.fail(found, error, payload)
        except Amqp091Error as error:
            self.fail(found, malformed(error), payload)

    def begins(self, channel: int) -> bool:
        """As `Receiver.begins`."""
        found = self.channels.get(channel)
        if found is None and self.phase is not Phase.CLOSING:
            raise HardError(ReplyCode.CHANNEL_ERROR, f"channel {channel} is not open")
        return found is not None and found.is_open and self.phase is Phase.OPEN

    def too_large(self, channel: int, size: int) -> None:
        """As `Receiver.too_large`."""
        found = self.channels.get(channel)
        if found is not None and found.is_open:
            limit = self._shared.broker.settings.max_message_bytes
            text = f"the message has {size} bytes; the limit is {limit}, and that of all incomplete messages together"
            self.fail(found, SoftError(ReplyCode.PRECONDITION_FAILED, text))

    def stalled(self, channel: int, size: int) -> None:
        """As `Receiver.stalled`."""
        found = self.channels.get(channel)
        if found is not None and found.is_open:
            text = f"a message of {size} bytes was begun, and its sender has stalled"
            self.fail(found, SoftError(ReplyCode.PRECONDITION_FAILED, text))

    # ---- methods of the connection ----

    def _do_own_method(self, channel: int, payload: bytes) -> None:
        """A method on channel 0, or on a channel that is not open. Raises HardError."""
        method, values = decode_method(payload)
        name = method.name
        if self.phase is Phase.CLOSING:
            if name == "connection.close":
                self.send("connection.close-ok")
            if name in ("connection.close", "connection.close-ok") and not channel:
                self.closed()
        elif channel:
            self._do_on_closed_channel(channel, name)
        elif name == "connection.close":
            self._client_closes(values)
        elif self.phase is Phase.NEGOTIATING and self._negotiation.method(name, values):
            return
        elif name == "connection.update-secret" and self.phase is Phase.OPEN:
            self.send("connection.update-secret-ok")  # as of RabbitMQ's own users: a login does not expire
        elif name not in ("connection.blocked", "connection.unblocked"):
            code = ReplyCode.CHANNEL_ERROR if self.phase is Phase.OPEN else ReplyCode.COMMAND_INVALID
            raise HardError(code, f"{name} is unexpected on channel 0 in this state")

    def _do_on_closed_channel(self, number: int, name: str) -> None:
        if self.phase is not Phase.OPEN:
            raise HardError(ReplyCode.CHANNEL_ERROR, f"{name} before the connection is open")
        channel = self.channels.get(number)
        if channel is not None:  # channel.close was sent, and the client may not know yet
            if name == "channel.close":
                channel.send("channel.close-ok")
            elif name == "channel.close-ok":
                self.forget_channel(channel)
            elif name == "channel.open":
                raise HardError(ReplyCode.CHANNEL_ERROR, f"channel {number}: channel.close was not answered")
        elif name == "channel.open":
            self._open_channel(number)
        elif name != "channel.close-ok":
            raise HardError(ReplyCode.CHANNEL_ERROR, f"channel {number} is not open")

    def _open_channel(self, number: int) -> None:
        if number > self._channel_max:
            raise HardError(ReplyCode.NOT_ALLOWED, f"channel {number} is above channel-max {self._channel_max}")
        channel = self.channels[number] = Channel(number, self, self._shared.broker)
        self._assembler.accept(number)
        self._shared.broker.events.emit(SessionCreated(), channel)
        channel.send("channel.open-ok")

    def channel_closed(self, channel: Channel) -> None:
        """The client closes a channel."""
        channel.end()
        self._assembler.drop(channel.number)
        self.pause()
        self._shared.broker.tick.turns.after(channel, partial(self._confirm_channel_closed, channel))

    def _confirm_channel_closed(self, channel: Channel) -> None:
        """A channel that the client closes has given back what it held."""
        if self.phase is Phase.OPEN:
            channel.send("channel.close-ok")
            self.forget_channel(channel)
        self.unpause()

    def forget_channel(self, channel: Channel) -> None:
        """The answer to channel.close was sent."""
        if channel.number in self.streams:
            channel.is_gone = True  # what is left of the stream has the answer to the client
        elif self.channels.get(channel.number) is channel:
            del self.channels[channel.number]
            self._assembler.accept(channel.number)

    # ---- negotiation ----

    def tuned(self, limits: Limits) -> None:
        """Limits are agreed on."""
        self._channel_max, self.heartbeat = limits.channels, limits.heartbeat
        self._assembler.max_frame, self.max_payload = limits.frame, limits.frame - OVERHEAD

    def opened(self) -> None:
        """The connection is open."""
        self.phase = Phase.OPEN
        self._is_announced = True

    def drop(self, code: int, text: str) -> None:
        """Close the socket without sending the reason."""
        self.close_code, self.close_text = code, text
        self.closed()

    # ---- what channels need ----

    def fail(self, channel: Channel, error: Exception, payload: bytes = b"") -> None:
        """A method of a channel has failed: close the channel, or the connection."""
        if not channel.is_open or self.phase is not Phase.OPEN:
            return
        told = protocol_error(error)
        _LOG.info("Client %s, channel %d: %s", self.peer, channel.number, told.reply_text)
        if not isinstance(told, SoftError):
            self.close(told.code, told.reply_text, payload)
            return
        channel.end()
        self._assembler.drop(channel.number)
        channel.send_method(encode_close("channel.close", told.code, told.reply_text, payload))

    def own(self, queue: Queue) -> None:
        """A queue was declared exclusive to this connection, which may have ended by now."""
        self._exclusive_queues.add(queue)
        if self.phase is not Phase.OPEN:
            self._exclusive_queues.delete(_ignore)

    def leave(self, queue: Queue) -> None:
        """A queue has lost a consumer: delete it if it is auto-delete and unused."""
        if not queue.auto_delete or not queue.is_unused or queue.is_deleted:
            return
        if queue.auto_delete_seconds or (queue.is_kept_until_empty and not queue.is_empty):
            self._shared.broker.idle_queues.begin(queue)
        else:
            self._host.run(self._shared.broker.topology.delete_if_unused(queue), _ignore)

    # ---- output ----

    @property
    def has_consumers(self) -> bool:
        """Whether any of its channels has consumers."""
        return any(channel.consumers for channel in self.channels.values())

    @property
    def remote_host(self) -> str:
        """Address and port of the client."""
        return self.peer

    @property
    def actor(self) -> str:
        """As `Caller.actor`."""
        return self.publisher.connection.actor

    def run(self, work: Coroutine[Any, Any, None], done: Callable[[ModelError | None], None]) -> None:
        """As `Host.run`."""
        self._host.run(work, done)

    # ---- telling that messages wait ----

    def publisher_waits(self, flow: FlowControl) -> None:
        """A message waits for a stopped queue: its confirm, or, without confirms, the next messages."""
        self._waiting += 1
        if self._waiting == 1:
            self.block(Blocker.QUEUE, flow.reason)

    def publisher_goes_on(self, count: int = 1) -> None:
        """That many of these messages no longer wait."""
        self._waiting -= count
        if not self._waiting:
            self.unblock(Blocker.QUEUE)

    def block(self, blocker: Blocker, reason: str) -> None:
        """Tell the client, if it wants to know, that its messages wait."""
        if not self._blocked_by and self.phase is Phase.OPEN and "connection.blocked" in self.capabilities:
            self.send("connection.blocked", reason=_shortened(reason))
        self._blocked_by.add(blocker)

    def unblock(self, blocker: Blocker) -> None:
        """They no longer wait for that."""
        if blocker in self._blocked_by:
            self._blocked_by.discard(blocker)
            if not self._blocked_by and self.phase is Phase.OPEN and "connection.blocked" in self.capabilities:
                self.send("connection.unblocked")

    def send(self, method: str, /, **values: Any) -> None:
        """Send a method of the connection."""
        self.send_method(encode_method(method, **values))

    def send_method(self, payload: bytes) -> None:
        """Send an encoded method of the connection."""
        self.output.append(encode_frame(METHOD, 0, payload))
        self.frames_sent += 1
        self.has_output()

    def has_output(self) -> None:
        """Schedule the output to be sent at the end of the tick."""
        self.tick.outputs[self] = None
        self.tick.schedule()

    def write_output(self) -> None:
        """Send the collected output; channels that had no room continue in the next tick."""
        if self.streams and self.can_send:
            self._take_portions()
        data = self.take_output()
        if data:
            self._has_sent = True
            self._host.write(data)
        if self.room < ROOM:
            had_room = self.room > 0
            self.room = ROOM
            if not had_room and self.can_send:
                self.wake_channels()

    def take_output(self) -> bytes:
        """Remove and return the collected output."""
        data = b"".join(self.output)
        self.output.clear()
        self.bytes_sent += len(data)
        return data

    def _take_portions(self) -> None:
        """Add a portion of the streams, in turn, to the output; the next tick continues with the next stream."""
        streams, left = self.streams, ROOM
        share = ROOM // len(streams)
        while streams and left > 0:
            number = next(iter(streams))
            stream = streams.pop(number)
            before = stream.frames
            left -= stream.take(self.output, share)
            self.frames_sent += stream.frames - before
            if not stream.is_over:
                streams[number] = stream
            elif number in self.channels:
                self._stream_ended(self.channels[number])
        if streams:
            self.has_output()

    def _stream_ended(self, channel: Channel) -> None:
        channel.stream_ended()
        if channel.is_gone:
            self.forget_channel(channel)

    def pause_sending(self) -> None:
        """The socket's send buffer is full."""
        self.can_send = False
        for channel in self.channels.values():
            channel.can_send = False

    def resume_sending(self) -> None:
        """The socket accepts output again."""
        if self.phase is Phase.OPEN:
            self.can_send = True
            self.wake_channels()
            if self.streams:
                self.has_output()

    def wake_channels(self) -> None:
        """Messages may be sent again."""
        for channel in list(self.channels.values()):
            channel.wake_all()

    # ---- end ----

    def close(self, code: int, text: str, payload: bytes = b"") -> None:
        """Send connection.close, with the method that has caused it; nothing else is sent after it."""
        if self.phase in (Phase.CLOSING, Phase.CLOSED):
            return
        self.close_code, self.close_text = code, text
        self._begin_closing()
        self.send_method(encode_close("connection.close", code, text, payload))
        self._exclusive_queues.delete(_ignore)

    def _begin_closing(self) -> None:
        self.phase = Phase.CLOSING
        self._negotiation.is_over = True
        self._closing_since = self._now()
        self.pause_sending()
        self.streams.clear()
        for channel in list(self.channels.values()):
            if channel.is_open:
                channel.end()
            self._assembler.drop(channel.number)

    def _client_closes(self, values: _Values) -> None:
        self.close_code, self.close_text = values["reply_code"], values["reply_text"]
        self._begin_closing()
        self._exclusive_queues.delete(self._confirm_close)

    def _confirm_close(self, _error: ModelError | None) -> None:
        if self.phase is Phase.CLOSING:
            self.send("connection.close-ok")
            self.closed()

    def closed(self) -> None:
        """The connection is closed or lost."""
        if self.phase is Phase.CLOSED:
            return
        if self.phase is not Phase.CLOSING:
            self._begin_closing()
        self.phase = Phase.CLOSED
        if self.close_code not in (0, ReplyCode.SUCCESS):
            _LOG.info("Client %s: connection closed: %d %s", self.peer, self.close_code, self.close_text)
        self._assembler.is_paused = True  # later input is ignored
        self._exclusive_queues.delete(_ignore)
        self._assembler.close()
        self.write_output()
        self._host.close()

    def dismantle(self) -> None:
        """As `Machine.dismantle`."""
        self.closed()
        self._assembler.drop_receiver()
        self._shared.admission.leave(self.publisher)
        if self._is_announced:
            event = ClientDisconnect(self.peer, self.user, self.client_properties)
            self._shared.broker.events.emit(event, self.publisher.connection)

    # ---- time ----

    def on_timer(self, now: float) -> None:
        """Check heartbeats, incomplete messages, and whether a closing connection is overdue."""
        if self._assembler.pending_bytes or self._assembler.is_paused:
            self._assembler.on_timer(now)
        if self._has_received or not self._last_received:
            self._last_received, self._has_received = now, False
        if self._has_sent or not self._last_sent:
            self._last_sent, self._has_sent = now, False
        if self.phase is Phase.CLOSING and now - self._closing_since > CLOSE_SECONDS:
            self.closed()
        if not self.heartbeat or self.phase is not Phase.OPEN:
            return
        silence = now - self._last_received
        if silence > _MISSED_HEARTBEATS * self.heartbeat and not self.is_paused:
            self.close_code = ReplyCode.CONNECTION_FORCED
            self.close_text = f"heartbeat timeout: nothing received for {silence:.0f} seconds"
            self.closed()
        elif now - self._last_sent >= self.heartbeat / 2:
            self.output.append(HEARTBEAT_FRAME)
            self.frames_sent += 1
            self.has_output()


def _ignore(_error: ModelError | None) -> None:
    """For calls whose result is not needed."""


def _shortened(reason: str) -> str:
    """A reason that fits into a short string."""
    return reason.encode()[:_MAX_REASON].decode(errors="ignore")


_KINDS: Final = {2: "content header", 3: "body", 8: "heartbeat"}


class TracedConnection(ServerConnection):
    """As `ServerConnection`, with the same arguments."""

    __slots__ = ("_incoming", "_outgoing")

    def __init__(
        self, host: Host, shared: Shared, authentication: Authentication, peer: Peer, now: Callable[[], float]
    ) -> None:
        super().__init__(host, shared, authentication, peer, now)
        self._incoming = FrameLog(f"RECV {self.peer}", traced, PROTOCOL_HEADER)
        self._outgoing = FrameLog(f"SENT {self.peer}", traced, b"")  # the broker sends no header

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
    frame = decode_frame(data, at, MAX_FRAME + OVERHEAD)  # such large body frames are accepted (`assembly`)
    if frame is None:
        return None
    size = len(frame.payload)
    return TracedFrame(OVERHEAD + size, frame.channel, _kind(frame), size)


def _kind(frame: Frame) -> str:
    if frame.type != METHOD:
        return _KINDS[frame.type]
    code = int.from_bytes(frame.payload[:4])
    found = BY_CODE.get(code)
    return f"unknown, code 0x{code:08x}" if found is None else found.name


class Amqp091Connections:
    """The AMQP 0-9-1 connections of one broker, with their shared state.

    Args:
        broker: the model.
        authentication: how clients log in.
    """

    def __init__(self, broker: Broker, authentication: Authentication) -> None:
        self._authentication, self._shared = authentication, Shared(broker)

    def connect(self, host: Host, peer: Peer) -> ServerConnection:
        """Create the machine of a new connection."""
        make = TracedConnection if is_tracing() else ServerConnection
        return make(host, self._shared, self._authentication, peer, time.monotonic)

    def on_timer(self, now: float) -> None:
        """Run periodic work; `now` is in seconds of a monotonic clock."""
        self._shared.failed_logins.on_timer(now)

    def detached_sessions(self) -> list[DetachedSession]:
        """None: channels end with their connection."""
        return []

    @property
    def unfinished_bytes(self) -> int:
        """Bytes received of incomplete messages."""
        return self._shared.budget.used

    def close(self) -> None:
        """The broker stops: nothing outlives a connection."""
