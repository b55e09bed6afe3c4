"""The broker's end of a connection: negotiates, and has its channels.

    client                              broker
    AMQP 0 0 9 1                  ->
                                  <-    connection.start       properties, mechanisms
    connection.start-ok           ->
                (secure, secure-ok as often as the mechanism requires)
                                  <-    connection.tune        limits
    connection.tune-ok, open      ->
                                  <-    connection.open-ok
    channels; heartbeats while nothing else is sent
    connection.close              <->   connection.close-ok

An error of the connection is told with connection.close, and then everything is ignored until the client has answered,
or `CLOSE_SECONDS` are over. Queues that are exclusive to the connection are deleted with it: before close-ok, if the
client closes it.

Source: AMQP 0-9-1, classes connection and channel; RabbitMQ, "Protocol extensions".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Final

from qstore.broker.log.logs import log_of
from qstore.broker.model.caller import Publisher
from qstore.broker.model.content import Content
from qstore.broker.model.errors import ModelError
from qstore.broker.model.events import ClientDisconnect, SessionCreated
from qstore.broker.model.queues.queue import Queue
from qstore.broker.protocols.amqp_0_9_1.assembly import Assembler
from qstore.broker.protocols.amqp_0_9_1.channel import Channel
from qstore.broker.protocols.amqp_0_9_1.errors import HardError, ProtocolError, SoftError, encode_close
from qstore.broker.protocols.amqp_0_9_1.exclusive_queues import ExclusiveQueues
from qstore.broker.protocols.amqp_0_9_1.methods import do_method
from qstore.broker.protocols.amqp_0_9_1.negotiation import Limits, Negotiation
from qstore.broker.protocols.amqp_0_9_1.publish import publish
from qstore.broker.protocols.amqp_0_9_1.publishing import Publishing
from qstore.broker.protocols.amqp_0_9_1.reply_codes import malformed, protocol_error
from qstore.broker.protocols.amqp_0_9_1.sending import Blocker, Phase, SendingConnection
from qstore.broker.protocols.amqp_0_9_1.shared import Shared
from qstore.broker.protocols.machine import ConnectionCounts, Host, Peer, SessionAction
from qstore.broker.security.attempt import LoginAttempt
from qstore.broker.security.authentication import Authentication
from qstore.formats.amqp_0_9_1.codes import ReplyCode
from qstore.formats.amqp_0_9_1.errors import Amqp091Error
from qstore.formats.amqp_0_9_1.frames import (
    HEARTBEAT_FRAME,
    OVERHEAD,
    PROTOCOL_HEADER,
)
from qstore.formats.amqp_0_9_1.methods import decode_method
from qstore.formats.values import EMPTY_MAP, TypedMap

_LOG: Final = log_of("Protocol")

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
_Values = dict[str, Any]


class ServerConnection(SendingConnection):
    """The broker's end.

    Args:
        host: the event loop and socket.
        shared: what all connections share.
        authentication: the available mechanisms.
        peer: the client.
        now: seconds of a monotonic clock.

    Attributes:
        user, peer, created_at, client_properties, protocol, mechanism: as of `Machine`.
        heartbeat: seconds between heartbeats; 0 for none.
        close_code, close_text: why it was closed, by either end; 0 if it was not.
    """

    protocol: ClassVar[str] = "AMQP 0-9-1"
    created_at: float
    client_properties: TypedMap

    __slots__ = (
        "__weakref__", "_assembler", "_channel_max", "_closing_since", "_exclusive_queues", "_has_received", "_header",
        "_is_announced", "_is_deaf", "_last_received", "_last_sent", "_negotiation", "_now", "_pauses", "_shared",
        "bytes_received", "client_properties", "close_code", "close_text", "created_at", "heartbeat",
    )  # fmt: skip

    def __init__(
        self, host: Host, shared: Shared, authentication: Authentication, peer: Peer, now: Callable[[], float]
    ) -> None:
        broker, settings = shared.broker, shared.broker.settings
        super().__init__(host, broker.tick)
        self._shared, self._now, self.peer = shared, now, peer.address
        self.user, self.created_at, self.client_properties = "", broker.clock(), EMPTY_MAP
        self._negotiation = Negotiation(
            self, host, shared, LoginAttempt(authentication, peer.link), peer.refusal, now
        )  # fmt: skip
        self._exclusive_queues = ExclusiveQueues(host, broker, self)
        self.publisher = Publisher(peer.address, broker.next_connection())
        self.publishing = Publishing(
            self.publisher, checks_user_ids=settings.auth, checks_publish=shared.admission.checks_publish
        )
        self.publishing.has_timestamps = broker.has_timestamps
        self.heartbeat = self.close_code = self._pauses = self._channel_max = 0
        self.close_text = ""
        self.bytes_received = 0
        self._assembler = Assembler(self, MAX_NEGOTIATING_FRAME, settings.max_message_bytes, shared.budget)
        self._assembler.max_at_once, self._assembler.clock = AT_ONCE, now
        self._header = b""
        self._last_received = self._last_sent = self._closing_since = 0.0
        self._has_received = False
        self._is_announced = self._is_deaf = False

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
        """As `ChannelConnection.pause`."""
        self._pauses += 1
        self._assembler.is_paused = True

    def unpause(self) -> None:
        """As `ChannelConnection.unpause`."""
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
        """As `SendingConnection.forget_channel`."""
        if channel.number in self.streams:
            channel.is_gone = True  # what is left of the stream has the answer to the client
        elif self.channels.get(channel.number) is channel:
            del self.channels[channel.number]
            self._assembler.accept(channel.number)

    # ---- negotiation ----

    def tuned(self, limits: Limits) -> None:
        """As `NegotiatingConnection.tuned`."""
        self._channel_max, self.heartbeat = limits.channels, limits.heartbeat
        self._assembler.max_frame, self.max_payload = limits.frame, limits.frame - OVERHEAD

    def opened(self) -> None:
        """As `NegotiatingConnection.opened`."""
        self.phase = Phase.OPEN
        self._is_announced = True

    def drop(self, code: int, text: str) -> None:
        """As `NegotiatingConnection.drop`."""
        self.close_code, self.close_text = code, text
        self.closed()

    # ---- what channels need ----

    def fail(self, channel: Channel, error: Exception, payload: bytes = b"") -> None:
        """As `ChannelConnection.fail`."""
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
        """As `ChannelConnection.leave`."""
        if not queue.auto_delete or not queue.is_unused or queue.is_deleted:
            return
        if queue.auto_delete_seconds or (queue.is_kept_until_empty and not queue.is_empty):
            self._shared.broker.idle_queues.begin(queue)
        else:
            self._host.run(self._shared.broker.topology.delete_if_unused(queue), _ignore)

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
