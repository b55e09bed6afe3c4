"""An AMQP 0-9-1 connection, on top of the engine's (`protocols.broker_connection`).

    client                              broker
    AMQP 0 0 9 1                  ->
                                  <-    connection.start       properties, mechanisms
    connection.start-ok           ->                           SASL, as for every protocol (`security/authentication`)
                (secure, secure-ok as often as the mechanism requires)
                                  <-    connection.tune        limits
    connection.tune-ok            ->                           at most the offered ones, 0 for these; heartbeats
    connection.open               ->                           the virtual host, always `/`; whether it is admitted
                                  <-    connection.open-ok
    channels; heartbeats while nothing else is sent
    connection.close              <->   connection.close-ok

The reason for a failed login is sent only to a client with the capability for it; otherwise the socket is just closed,
as the specification says. An error of the connection is sent with connection.close, and all input is ignored until the
client has answered, or some seconds have passed. Queues that are exclusive to the connection are deleted with it:
before close-ok, if the client closes it.

**Capabilities.** A client uses an extension only if the broker lists it; the broker uses one only if the client lists
it. The broker's `product` is its own name, not RabbitMQ: clients that check `product` and `version` do so to adapt to
quirks and queue types of a RabbitMQ release, which it does not have. connection.start has these properties, before
anything is known about the client, so they are the same for all.

One client needs more than a list. kombu, the library below Celery, changes the prefetch count of its running consumers
again and again: for each task that is scheduled for later, and when the pool grows or shrinks. On RabbitMQ 3.3 to 3.13
it does so with `global=true`, on every other broker with `global=false`. RabbitMQ applies the latter to later consumers
only; if this broker did the same, a worker whose prefetch window is full of tasks due in an hour would get nothing else
for an hour. `adjusts_consumers` recognizes such clients, and only these.

Sources: AMQP 0-9-1, classes connection and channel; RabbitMQ, "Protocol extensions" (also
authentication_failure_close), "Blocked Connection Notifications", "Client properties and capabilities" and "Consumer
Prefetch"; kombu 5.7, `transport/pyamqp.py` (qos_semantics_matches_spec); Celery 5.7, `worker/consumer/tasks.py`.
"""

from __future__ import annotations

import platform
import socket
from collections.abc import Callable, Mapping
from enum import Enum, auto
from functools import lru_cache, partial
from typing import Any, ClassVar, Final

from qstore import __version__
from qstore.broker.log.logs import log_of
from qstore.broker.model.broker import Broker
from qstore.broker.model.caller import BROKER
from qstore.broker.model.errors import ModelError
from qstore.broker.model.events import SessionCreated
from qstore.broker.model.queues.flow_control import FlowControl
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.virtual_host import VirtualHost
from qstore.broker.protocols.amqp_0_9_1.acknowledgements import acknowledge, acknowledge_all, acknowledge_up_to
from qstore.broker.protocols.amqp_0_9_1.assembly import MethodAssembler, MixedRun
from qstore.broker.protocols.amqp_0_9_1.channel import Channel
from qstore.broker.protocols.amqp_0_9_1.errors import (
    CodedError,
    HardError,
    SoftError,
    coded_error,
    encode_close,
    malformed,
)
from qstore.broker.protocols.amqp_0_9_1.gathering import Gathering, publish_mixed
from qstore.broker.protocols.amqp_0_9_1.message import MAX_FRAME
from qstore.broker.protocols.amqp_0_9_1.methods import do_method
from qstore.broker.protocols.amqp_0_9_1.publishing import Publishing, publish, publish_run
from qstore.broker.protocols.assembly import ProtocolError
from qstore.broker.protocols.broker_connection import BrokerConnection, Connections, ignore_error
from qstore.broker.protocols.connection import NORMAL, Phase
from qstore.broker.protocols.frame_log import TracedFrame
from qstore.broker.protocols.machine import ConnectionLimits, Host, Peer, SessionAction
from qstore.broker.security.authentication import Authentication
from qstore.broker.security.sasl.exchange import Failure, Refused
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
from qstore.formats.amqp_0_9_1.methods import (
    ACK,
    AMQP_0_8,
    AMQP_0_8_PUBLISHED,
    AMQP_0_9,
    AMQP_0_9_1,
    START_OK,
    Version,
    decode_method,
    decode_start_ok,
    encode_ack,
    encode_method,
)
from qstore.formats.amqp_0_9_1.tables import decode_fields, make_fields
from qstore.formats.errors import FormatError
from qstore.formats.kernels.bodies import Bodies, SizeField
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import TypedMap, typed_map

_LOG: Final = log_of("Protocol")

MAX_NEGOTIATING_FRAME: Final = 16_384
"""Maximum size of a frame before limits are negotiated: client properties and SASL responses."""

MAX_CHANNELS: Final = 2_047
"""Maximum number of channels that is offered, as in RabbitMQ."""

HEARTBEAT_SECONDS: Final = 60
"""The heartbeat interval that is offered, as in RabbitMQ. The client decides."""

_HEADS: Final = 256 * 1024  # bytes: at most two frames, basic.publish and the content header
_MAX_REASON: Final = 255  # bytes
_CLIENTS_KEPT: Final = 32  # programs
_MAX_KEPT_CLIENT: Final = 1024  # bytes of their properties; they take at most 70 KiB of memory when decoded
_STARTS_KEPT: Final = 24  # versions, with mechanisms with and without encryption, before and after a reload
_MEMORY_IS_SHORT: Final = (
    "The broker is short of memory (--broker-memory): publishers are slowed down until messages are consumed"
)
_DISK_IS_SHORT: Final = (
    "The disk of the broker is nearly full (--disk-free-limit): publishers are slowed down until messages are consumed"
)

_Values = dict[str, Any]


class Blocker(Enum):
    """The reasons for which the messages of a client wait."""

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
"""The broker's capabilities: RabbitMQ's extensions that clients check for, and whether it has them."""


_ADJUSTING: Final = "py-amqp"
"""The client library of kombu, whose connections change the prefetch count of running consumers."""


def server_properties(name: str, version: Version = AMQP_0_9_1) -> TypedMap:
    """The broker's properties: those of AMQP 0-9-1, and RabbitMQ's `cluster_name` and `capabilities`.

    The name is one that no other broker has: federations recognize by it where a message has been. Clients of older
    versions cannot read the booleans of `capabilities`.
    """
    return typed_map(
        {
            "product": "qstore",
            "version": __version__,
            "platform": f"Python {platform.python_version()}",
            "copyright": "The authors of qstore",
            "information": "Licensed under the Apache License 2.0",
            "host": socket.gethostname(),
            "cluster_name": name,
            **({} if version.is_older else {"capabilities": CAPABILITIES}),
        }
    )


_PROPERTIES: Final = make_fields("client_properties:table")
_VERSIONS: Final = {each.header: each for each in (AMQP_0_9_1, AMQP_0_9, AMQP_0_8, AMQP_0_8_PUBLISHED)}


@lru_cache(maxsize=_STARTS_KEPT)
def _start_method(mechanisms: tuple[str, ...], name: str, header: bytes) -> bytes:
    """connection.start, which is the same for all clients.

    It was most of the encoding of a login. Kept, it is the larger part of what took a connection with a channel from
    355 µs of processor time to 277 (tests.bench.bench_changes, connect-8).
    """
    version = _VERSIONS[header]
    major, minor = version.number
    return encode_method(
        "connection.start",
        version_major=major,
        version_minor=minor,
        server_properties=server_properties(name, version),
        mechanisms=" ".join(mechanisms).encode(),
        locales=b"en_US",
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


class _Client(NamedTuple):
    """What a client says of itself.

    Attributes:
        properties: its properties.
        capabilities: the names of the capabilities that it has.
        adjusts_consumers: as of `ServerConnection`.
    """

    properties: TypedMap
    capabilities: frozenset[str]
    adjusts_consumers: bool


def _read_client(table: bytes) -> _Client:
    """What the client properties say, which are not larger than a frame of the negotiation. Raises Amqp091Error."""
    properties = decode_fields(_PROPERTIES, table, 0)["client_properties"]
    return _Client(properties, capabilities_of(properties), adjusts_consumers(properties))


@lru_cache(maxsize=_CLIENTS_KEPT)
def _kept_client(table: bytes) -> _Client:
    """As `_read_client`: the connections of a program have equal properties, and share them in memory."""
    return _read_client(table)


class ServerConnection(BrokerConnection):
    """The broker's end.

    Args:
        host: the event loop and socket.
        shared: all connections of the protocol.
        peer: the client.

    Attributes:
        publishing: decodes messages.
        channels: number -> channel, including those that wait for channel.close-ok.
        max_payload: bytes of a frame's payload, as negotiated.
        capabilities: the client's capabilities that it has set; none with an older version, which has no extensions.
        adjusts_consumers: whether its basic.qos changes running consumers, too.
        shared_gathering: gathers its messages.
        gathering: the same, if it has some that are not on their queues yet; otherwise None.
    """

    protocol: ClassVar[str] = AMQP_0_9_1.name
    protocol_header: ClassVar[bytes] = PROTOCOL_HEADER
    version: ClassVar[Version] = AMQP_0_9_1

    __slots__ = (
        "_blocked_by", "_channel_max", "_exclusive_queues", "_is_tuned", "_waiting", "adjusts_consumers",
        "capabilities", "channels", "gathering", "max_payload", "publishing", "shared_gathering",
    )  # fmt: skip

    def __init__(self, host: Host, shared: Amqp091Connections, peer: Peer) -> None:
        super().__init__(host, shared, peer, partial(traced, version=self.version), b"")  # the broker sends no header
        broker = shared.broker
        self.capabilities: frozenset[str] = frozenset()
        self.adjusts_consumers = self._is_tuned = False
        self.channels: dict[int, Channel] = {}
        self._exclusive_queues: dict[Queue, None] = {}
        self.publishing = Publishing(
            self.publisher, checks_user_ids=broker.settings.auth, checks_publish=shared.admission.checks_publish
        )
        self.publishing.has_timestamps = broker.has_timestamps
        self.publishing.trace_by(broker.tick.tracer)
        self.shared_gathering: Gathering = shared.gathering
        self.gathering: Gathering | None = None
        self.max_payload = FRAME_MIN_SIZE - OVERHEAD
        self._channel_max = 0
        self._blocked_by: set[Blocker] = set()  # reasons for which its messages wait
        self._waiting = 0  # messages that wait for stopped queues

    def make_assembler(self) -> MethodAssembler:
        """As `Connection.make_assembler`."""
        shared = self._shared
        return MethodAssembler(self, MAX_NEGOTIATING_FRAME, shared.broker.settings.max_message_bytes, shared.budget)

    # ---- as a machine ----

    @property
    def sessions(self) -> dict[int, Channel]:
        """Number -> channel."""
        return {number: channel for number, channel in self.channels.items() if channel.is_open}

    @property
    def senders(self) -> Mapping[int, Channel]:
        """As `BrokerConnection.senders`."""
        return self.channels

    @property
    def publish_checks(self) -> Publishing:
        """As `BrokerConnection.publish_checks`."""
        return self.publishing

    @property
    def has_consumers(self) -> bool:
        """Whether any of its channels has consumers."""
        return any(channel.consumers for channel in self.channels.values())

    @property
    def limits(self) -> ConnectionLimits:
        """As `Machine.limits`."""
        return ConnectionLimits(self._channel_max, self.max_payload + OVERHEAD, self.heartbeat)

    def watch_memory(self, *, is_short: bool) -> None:
        """As `Machine.watch_memory`; a client that has published is answer."""
        super().watch_memory(is_short=is_short)
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

    def take_published(self) -> bool:
        """As `Machine.take_published`."""
        has_published = super().take_published()
        if has_published:
            self.block(Blocker.MEMORY, _MEMORY_IS_SHORT)
        return has_published

    def force_close(self, text: str) -> None:
        """As `Machine.force_close`."""
        self.close(ReplyCode.CONNECTION_FORCED, f"CONNECTION_FORCED - {text}")

    def set_timestamps(self, *, is_on: bool) -> None:
        """As `Machine.set_timestamps`."""
        self.publishing.stamp(is_on=is_on)

    def manage_session(self, channel: int, action: SessionAction) -> None:
        """As `Machine.manage_session`. A channel cannot be detached: it is closed."""
        found = self.channels.get(channel)
        if found is not None and found.is_open and action is not SessionAction.SOLICIT:
            self.fail(found, SoftError(ReplyCode.CONNECTION_FORCED, "closed by management"))

    # ---- input ----

    def on_header(self, header: bytes) -> None:
        """As `Connection.on_header`: begin to negotiate, or answer with the header of this protocol, and close."""
        if header != self.protocol_header:
            self.output.append(self.protocol_header)
            self.closed()
            return
        broker = self._shared.broker
        name = broker.parameters.cluster_name or broker.federation_tag
        self.send_method(_start_method(self.login.offered, name, header))
        refusal = self.begin_login()
        if refusal:
            self.close(ReplyCode.ACCESS_REFUSED, f"ACCESS_REFUSED - {refusal}")

    def on_violation(self, error: ProtocolError | FormatError) -> None:
        """As `Connection.on_violation`."""
        if self.gathering is not None:
            self.gathering.put()
        if self.phase is Phase.CLOSING:
            self.closed()
            return
        answer = error if isinstance(error, CodedError) else malformed(error)
        self.close(answer.code, answer.reply_text)

    def frame(self, channel: int, payload: bytes) -> None:
        """A method without content was received."""
        if self.gathering is not None and not payload.startswith(ACK):
            self.gathering.put()
        found = self.channels.get(channel)
        if found is not None and found.is_open and self.phase is Phase.OPEN:
            try:
                do_method(found, payload)
            except (ProtocolError, ModelError, Amqp091Error) as error:
                self.fail(found, error, payload)
            return
        try:
            self._do_own_method(channel, payload)
        except (HardError, Amqp091Error) as failure:
            answer = failure if isinstance(failure, HardError) else malformed(failure)
            self.close(answer.code, answer.reply_text, payload)

    def acknowledged(self, channel: int, first: int, count: int) -> None:
        """As `MethodReceiver.acknowledged`."""
        found = self.channels.get(channel)
        if found is None or not found.is_open or self.phase is not Phase.OPEN:
            self.frame(channel, encode_ack(first, multiple=False))  # the others would be ignored or refused likewise
            return
        try:
            if count == 1:
                acknowledge(found, first, multiple=False)
            else:
                acknowledge_all(found, first, count)
        except (ProtocolError, ModelError) as error:
            self.fail(found, error, ACK)

    def acknowledged_up_to(self, channel: int, tags: list[int]) -> int:
        """As `MethodReceiver.acknowledged_up_to`."""
        found = self.channels.get(channel)
        if found is None or not found.is_open or self.phase is not Phase.OPEN:
            self.frame(channel, encode_ack(tags[0], multiple=True))  # as in `acknowledged`
            return 1
        try:
            return acknowledge_up_to(found, tags)
        except (ProtocolError, ModelError) as error:
            self.fail(found, error, ACK)
            return 1

    def command(self, channel: int, payload: bytes, header: Any, body: Any) -> None:
        """A message was received: its basic.publish, content header and body, which are never None."""
        if self.gathering is not None:
            self.gathering.put()
        found = self.channels.get(channel)
        if found is None or not found.is_open or self.phase is not Phase.OPEN:
            self.begins(channel)
            return
        try:
            publish(found, payload, header, body)
        except (ProtocolError, ModelError, Amqp091Error) as error:
            self.fail(found, error, payload)

    def run_of(self, channel: int, payload: bytes, header: bytes, bodies: Bodies, field: SizeField | None) -> int:
        """As `CommandReceiver.run_of`."""
        found = self.channels.get(channel)
        if found is None or not found.is_open or self.phase is not Phase.OPEN:
            return 0
        if self.gathering is not None:
            self.gathering.put()
        return publish_run(found, payload, header, bodies, field)

    def mixed_runs(self, channel: int, header: bytes, runs: list[MixedRun], count: int) -> int:
        """As `MethodReceiver.mixed_runs`."""
        if self.gathering is not None:
            self.gathering.put()
        found = self.channels.get(channel)
        if found is None or not found.is_open or self.phase is not Phase.OPEN:
            return 0
        return publish_mixed(found, header, runs, count)

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
            text = f"the message has {size} bytes; the limit, also for all incomplete messages together, is {limit}"
            self.fail(found, SoftError(ReplyCode.PRECONDITION_FAILED, text))

    def stalled(self, channel: int, size: int) -> None:
        """As `Receiver.stalled`."""
        found = self.channels.get(channel)
        if found is not None and found.is_open:
            text = f"the sender of an incomplete message of {size} bytes has stalled"
            self.fail(found, SoftError(ReplyCode.PRECONDITION_FAILED, text))

    # ---- methods of the connection ----

    def _do_own_method(self, channel: int, payload: bytes) -> None:
        """A method on channel 0, or on a channel that is not open. Raises HardError."""
        if self.phase is Phase.NEGOTIATING and not channel and payload.startswith(START_OK):
            self._on_start_ok(payload)
            return
        method, values = decode_method(payload, self.version)
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
        elif self.phase is Phase.NEGOTIATING and name in _NEGOTIATION:
            _NEGOTIATION[name](self, values)
        elif name == "connection.update-secret" and self.phase is Phase.OPEN:
            self.send("connection.update-secret-ok")  # as for RabbitMQ's own users: a login does not expire
        elif name not in ("connection.blocked", "connection.unblocked"):
            code = ReplyCode.CHANNEL_ERROR if self.phase is Phase.OPEN else ReplyCode.COMMAND_INVALID
            raise HardError(code, f"{name} is unexpected on channel 0 in this state")

    def _do_on_closed_channel(self, number: int, name: str) -> None:
        if self.phase is not Phase.OPEN:
            raise HardError(ReplyCode.CHANNEL_ERROR, f"{name} before the connection is open")
        channel = self.channels.get(number)
        if channel is not None:  # channel.close was sent, and the client may not have seen it
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
        """Confirm the close of a channel, which has released everything."""
        if self.phase is Phase.OPEN:
            channel.send("channel.close-ok")
            self.forget_channel(channel)
        self.unpause()

    def forget_channel(self, channel: Channel) -> None:
        """Free the number of a channel: channel.close-ok was sent or received."""
        if channel.number in self.streams:
            channel.is_gone = True  # the rest of the stream contains the answer
        elif self.channels.get(channel.number) is channel:
            del self.channels[channel.number]
            self._assembler.accept(channel.number)

    # ---- negotiation ----

    @property
    def _offered_channels(self) -> int:
        return min(self._shared.broker.settings.max_channels, MAX_CHANNELS)

    def _on_start_ok(self, payload: bytes) -> None:
        if self.login.mechanism or self.user:
            raise HardError(ReplyCode.COMMAND_INVALID, "connection.start-ok is unexpected in this state")
        table, values = decode_start_ok(payload)
        client = _kept_client(table) if len(table) <= _MAX_KEPT_CLIENT else _read_client(table)
        self.client_properties = client.properties
        if not self.version.is_older:
            self.capabilities = client.capabilities
        self.adjusts_consumers = client.adjusts_consumers
        self.handle_outcome(self.login.start(values["mechanism"], values["response"]))

    def _on_secure_ok(self, values: _Values) -> None:
        if not self.login.mechanism or self.user:
            raise HardError(ReplyCode.COMMAND_INVALID, "connection.secure-ok is unexpected in this state")
        self.handle_outcome(self.login.step(values["response"]))

    def send_challenge(self, data: bytes) -> None:
        """As `BrokerConnection.send_challenge`."""
        self.send("connection.secure", challenge=data)

    def send_limits(self) -> None:
        """As `BrokerConnection.send_limits`."""
        self.send(
            "connection.tune",
            channel_max=self._offered_channels,
            frame_max=MAX_FRAME,
            heartbeat=HEARTBEAT_SECONDS,
        )

    def refuse_login(self, outcome: Refused | Failure) -> None:
        """As `BrokerConnection.refuse_login`."""
        if isinstance(outcome, Refused):
            self.close(ReplyCode.RESOURCE_ERROR, f"RESOURCE_ERROR - {outcome.reason}")
            return
        mechanism = self.login.mechanism or "that is not offered"
        text = f"Login was refused using authentication mechanism {mechanism}"
        if "authentication_failure_close" in self.capabilities:
            self.close(ReplyCode.ACCESS_REFUSED, f"ACCESS_REFUSED - {text}")
        else:
            self.close_code, self.close_text = ReplyCode.ACCESS_REFUSED, text
            self.closed()

    def _on_tune_ok(self, values: _Values) -> None:
        if not self.user or self._is_tuned:
            raise HardError(ReplyCode.COMMAND_INVALID, "connection.tune-ok is unexpected in this state")
        offered = self._offered_channels
        frame, channels = values["frame_max"] or MAX_FRAME, values["channel_max"] or offered
        if not FRAME_MIN_SIZE <= frame <= MAX_FRAME:
            text = f"frame-max {frame} is outside the range of {FRAME_MIN_SIZE} to {MAX_FRAME}"
            raise HardError(ReplyCode.NOT_ALLOWED, text)
        if channels > offered:
            raise HardError(ReplyCode.NOT_ALLOWED, f"channel-max {channels} is above {offered}")
        self._is_tuned = True
        self._channel_max, self.heartbeat = channels, values["heartbeat"]
        self._assembler.max_frame, self.max_payload = frame, frame - OVERHEAD

    def _on_open(self, values: _Values) -> None:
        if not self._is_tuned:
            raise HardError(ReplyCode.COMMAND_INVALID, "connection.open before connection.tune-ok")
        host = self._shared.broker.virtual_hosts.find(values["virtual_host"])
        if host is None:
            raise HardError(ReplyCode.NOT_ALLOWED, f"vhost '{values['virtual_host']}' not found")
        refusal = self.admit(host)
        if refusal:
            raise HardError(ReplyCode.NOT_ALLOWED, refusal)
        self.phase = Phase.OPEN
        self.send("connection.open-ok")
        self.announce()

    # ---- for channels ----

    def fail(self, channel: Channel, error: Exception, payload: bytes = b"") -> None:
        """Close the channel, or the connection, after a method of a channel has failed."""
        if not channel.is_open or self.phase is not Phase.OPEN:
            return
        answer = coded_error(error, self.vhost, self.version)
        _LOG.info("Client %s, channel %d: %s", self.peer, channel.number, answer.reply_text)
        if not isinstance(answer, SoftError):
            self.close(answer.code, answer.reply_text, payload)
            return
        channel.end()
        self._assembler.drop(channel.number)
        channel.send_method(encode_close("channel.close", answer.code, answer.reply_text, payload, self.version))

    def own(self, queue: Queue) -> None:
        """Own a queue declared exclusive to this connection, to delete it with it: at once if it has ended by now."""
        self._exclusive_queues[queue] = None
        if self.phase is not Phase.OPEN:
            self._delete_exclusive_queues(ignore_error)

    def _delete_exclusive_queues(self, done: Callable[[ModelError | None], None]) -> None:
        """Delete the connection's queues, then call `done`; at once if there are none."""
        queues, self._exclusive_queues = list(self._exclusive_queues), {}
        if queues:
            self.run(_delete_queues(self.virtual_host, queues, self), done)
        else:
            done(None)

    def publisher_waits(self, flow: FlowControl) -> None:
        """Note a message that waits for a stopped queue: its confirm or, without confirms, later messages wait."""
        self._waiting += 1
        if self._waiting == 1:
            self.block(Blocker.QUEUE, flow.reason)

    def publisher_continues(self, count: int = 1) -> None:
        """Note that `count` of these messages no longer wait."""
        self._waiting -= count
        if not self._waiting:
            self.unblock(Blocker.QUEUE)

    def block(self, blocker: Blocker, reason: str) -> None:
        """Notify the client, if it has the capability, that its messages wait."""
        if not self._blocked_by and self.phase is Phase.OPEN and "connection.blocked" in self.capabilities:
            self.send("connection.blocked", reason=_shortened(reason))
        self._blocked_by.add(blocker)

    def unblock(self, blocker: Blocker) -> None:
        """Notify the client that its messages no longer wait for that."""
        if blocker in self._blocked_by:
            self._blocked_by.discard(blocker)
            if not self._blocked_by and self.phase is Phase.OPEN and "connection.blocked" in self.capabilities:
                self.send("connection.unblocked")

    # ---- output ----

    def send(self, method: str, /, **values: Any) -> None:
        """Send a method of the connection."""
        self.send_method(encode_method(method, self.version, **values))

    def send_method(self, payload: bytes) -> None:
        """Send an encoded method of the connection."""
        self.send_frame(encode_frame(METHOD, 0, payload))

    def send_heartbeat(self) -> None:
        """As `Connection.send_heartbeat`."""
        self.send_frame(HEARTBEAT_FRAME)

    # ---- end ----

    def close(self, code: int = NORMAL, text: str = "", cause: bytes = b"") -> None:
        """As `Connection.close`; the queues that are exclusive to the connection are deleted."""
        if self.phase not in (Phase.CLOSING, Phase.CLOSED):
            super().close(code, text, cause)
            self._delete_exclusive_queues(ignore_error)

    def send_close(self, code: int, text: str, cause: bytes) -> None:
        """As `Connection.send_close`."""
        self.send_method(encode_close("connection.close", code, text, cause, self.version))

    def begin_closing(self, code: int, text: str) -> None:
        """As `BrokerConnection.begin_closing`; the channels end."""
        super().begin_closing(code, text)
        self.streams.clear()
        for channel in list(self.channels.values()):
            if channel.is_open:
                channel.end()
            self._assembler.drop(channel.number)

    def _client_closes(self, values: _Values) -> None:
        self.begin_closing(values["reply_code"], values["reply_text"])
        self._delete_exclusive_queues(self._confirm_close)

    def _confirm_close(self, _error: ModelError | None) -> None:
        if self.phase is Phase.CLOSING:
            self.send("connection.close-ok")
            self.closed()

    def on_silence(self, text: str) -> None:
        """As `Connection.on_silence`."""
        self.close_code, self.close_text = ReplyCode.CONNECTION_FORCED, text
        self.closed()

    def closed(self) -> None:
        """The connection is closed or lost."""
        if self.phase not in (Phase.CLOSING, Phase.CLOSED):
            self.begin_closing(self.close_code, self.close_text)
        super().closed()

    def release(self) -> None:
        """As `BrokerConnection.release`."""
        self._delete_exclusive_queues(ignore_error)


class Amqp09Connection(ServerConnection):
    """The broker's end of AMQP 0-9."""

    protocol: ClassVar[str] = AMQP_0_9.name
    protocol_header: ClassVar[bytes] = AMQP_0_9.header
    version: ClassVar[Version] = AMQP_0_9

    __slots__ = ()


class Amqp08Connection(ServerConnection):
    """The broker's end of AMQP 0-8."""

    protocol: ClassVar[str] = AMQP_0_8.name
    protocol_header: ClassVar[bytes] = AMQP_0_8.header
    version: ClassVar[Version] = AMQP_0_8

    __slots__ = ()


class Amqp08PublishedConnection(ServerConnection):
    """The broker's end of AMQP 0-8 without the changes of Apache."""

    protocol: ClassVar[str] = AMQP_0_8_PUBLISHED.name
    protocol_header: ClassVar[bytes] = AMQP_0_8_PUBLISHED.header
    version: ClassVar[Version] = AMQP_0_8_PUBLISHED

    __slots__ = ()


_NEGOTIATION: Final[dict[str, Callable[[ServerConnection, _Values], None]]] = {
    "connection.secure-ok": ServerConnection._on_secure_ok,
    "connection.tune-ok": ServerConnection._on_tune_ok,
    "connection.open": ServerConnection._on_open,
}


async def _delete_queues(host: VirtualHost, queues: list[Queue], owner: ServerConnection) -> None:
    for queue in queues:
        if host.queues.get(queue.name) is queue and queue.owner is owner:
            try:
                await host.topology.delete_queue(queue.name, caller=BROKER)
            except ModelError as error:
                _LOG.error('Exclusive queue "%s" was not deleted: %s', queue.name, error)
                queue.owner = None


def _shortened(reason: str) -> str:
    """A reason that fits into a short string."""
    return reason.encode()[:_MAX_REASON].decode(errors="ignore")


# ---- the log of frames ----

_KINDS: Final = {2: "content header", 3: "body", 8: "heartbeat"}


def traced(data: bytes, at: int, version: Version = AMQP_0_9_1) -> TracedFrame | None:
    """The frame at a position, as `DecodeFrame`."""
    frame = decode_frame(data, at, MAX_FRAME + OVERHEAD)  # such large body frames are accepted (`assembly`)
    if frame is None:
        return None
    size = len(frame.payload)
    return TracedFrame(OVERHEAD + size, frame.channel, _kind(frame, version), size)


def _kind(frame: Frame, version: Version) -> str:
    if frame.type != METHOD:
        return _KINDS[frame.type]
    code = int.from_bytes(frame.payload[:4])
    found = version.by_code.get(code)
    return f"unknown, code 0x{code:08x}" if found is None else found.name


class Amqp091Connections(Connections):
    """The connections of AMQP 0-9-1, or an older version of it, of one broker, with their shared state."""

    def __init__(
        self, broker: Broker, authentication: Authentication, connection: type[ServerConnection] = ServerConnection
    ) -> None:
        super().__init__(broker, authentication, broker.settings.max_message_bytes + _HEADS)
        self._connection = connection
        self.gathering = Gathering(broker.tick)

    def connect(self, host: Host, peer: Peer) -> ServerConnection:
        """Create the machine of a new connection."""
        return self._connection(host, self, peer)
