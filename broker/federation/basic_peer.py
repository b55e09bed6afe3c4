"""The broker as a client of a broker over AMQP 0-9-1: one side of a shovel, or of a federation link.

A side connects to the first of its URIs that works, or to this broker itself, and opens a channel. It reports once
that it is open (`SideOwner.side_open`), and once that it has failed or has ended (`SideOwner.side_failed`); its owner
closes it then, and makes another one for the next attempt.

    another broker    by the network room (`PeerNetwork.connect`), logged in as the URI says
    this broker       without a socket (`PeerNetwork.connect_directly`), as the user who has set the parameter: each
                      operation is authorized as that user's, as if over a connection of its own

Backpressure: a side that `is_full` (the socket's buffer is full, the broker is short of memory or disk, or its queue is
stopped) takes no more messages for now; a side that is `hold`-ed is not read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from qstore.broker.federation.link import Attempt, Network, Remote
from qstore.broker.federation.uri import AmqpUri
from qstore.broker.model.message import Content
from qstore.broker.protocols.amqp_0_9_1.client_connection import ClientChannel, ClientConnection, Values
from qstore.broker.protocols.amqp_0_9_1.errors import CodedError, HardError
from qstore.broker.protocols.broker_connection import CLOSE_SECONDS
from qstore.broker.protocols.connection import Phase
from qstore.broker.protocols.machine import ConnectionCounts, Host, Machine, ManagedSession, SessionAction
from qstore.broker.security.sasl.exchange import ClientMechanism
from qstore.broker.security.sasl.simple import EXTERNAL
from qstore.broker.security.sasl.table import Credentials, choose_mechanism
from qstore.formats.amqp_0_9_1.codes import ReplyCode
from qstore.formats.values import EMPTY_MAP, TypedMap

if TYPE_CHECKING:
    from qstore.broker.model.broker import Broker
    from qstore.broker.model.tick import Tick

_GUEST: Final = "guest"
_AT_ONCE: Final = 512
"""Frames, and messages, that are processed for one connection before others: about two milliseconds."""


class PeerNetwork(Network, Protocol):
    """Connects sides to other brokers, and to this one."""

    def connect_directly(self, user: str, make: Callable[[Host], Machine], lost: Callable[[str], None]) -> Attempt:
        """Begin to connect to this broker itself, without a socket.

        Args:
            user: who may log in by EXTERNAL.
            make: makes the machine of the client's end.
            lost: called once, with the reason, when the connection has ended.
        """


class BasicPeer(ClientConnection):
    """The client's end of a connection, for the network room.

    Args:
        side: its owner.
        host: the event loop and socket.
        tick: the broker's.
        choose: chooses the mechanism.
        uri: the broker, as its URI describes it.
        name: the connection's name, which the other broker shows.
        max_message_bytes: as of `ClientConnection`.
    """

    protocol: ClassVar[str] = "AMQP 0-9-1"

    def __init__(
        self,
        side: Side,
        host: Host,
        tick: Tick,
        choose: Callable[[tuple[str, ...]], ClientMechanism],
        uri: AmqpUri,
        name: str,
        max_message_bytes: int,
    ) -> None:
        self._side, self._host, self._tick = side, host, tick
        super().__init__(
            side, choose, virtual_host=uri.vhost, client_properties={"connection_name": name},
            heartbeat=uri.heartbeat, max_message_bytes=max_message_bytes,
        )  # fmt: skip
        self._assembler.max_at_once, self._assembler.clock = _AT_ONCE, time.monotonic
        self.user, self.peer, self.created_at = "", uri.shown, time.time()
        self.client_properties: TypedMap = EMPTY_MAP
        self.mechanism, self.vhost = "", uri.vhost
        self._closing_since = 0.0
        self.has_output()

    # ---- output ----

    def has_output(self) -> None:
        """Send the output at the end of the tick."""
        self._tick.outputs[self] = None
        self._tick.schedule()

    def write_output(self) -> None:
        """Send it."""
        data = self.take_output()
        if data:
            self._host.write(data)

    def resume(self) -> None:
        """As `Machine.resume`."""
        if self.phase is Phase.CLOSED or self._pauses:
            return
        super().resume()
        self._host.resumed()

    def on_closed(self) -> None:
        """The connection is closed or lost."""
        super().on_closed()
        self.write_output()
        self._host.close()

    def on_timer(self, now: float) -> None:
        """As `Machine.on_timer`: check heartbeats, and whether the answer to a close is overdue."""
        if self.phase is Phase.CLOSING:
            self._closing_since = self._closing_since or now
            if now - self._closing_since > CLOSE_SECONDS:
                self.closed()
        super().on_timer(now)

    # ---- as a machine ----

    @property
    def sessions(self) -> Mapping[int, ManagedSession]:
        """It has no sessions that management could see."""
        return {}

    @property
    def counts(self) -> ConnectionCounts:
        """As `Machine.counts`."""
        return ConnectionCounts(
            frames_received=self._assembler.frames,
            frames_sent=self.frames_sent,
            bytes_received=self.bytes_received,
            bytes_sent=self.bytes_sent,
            messages_received=self._assembler.messages,
            messages_sent=self.messages_sent,
        )

    @property
    def is_outgoing(self) -> bool:
        """As `Machine.is_outgoing`."""
        return True

    def pause_sending(self) -> None:
        """As `Machine.pause_sending`."""
        self._side.socket_full(is_full=True)

    def resume_sending(self) -> None:
        """As `Machine.resume_sending`."""
        self._side.socket_full(is_full=False)

    def watch_memory(self, *, is_short: bool) -> None:
        """As `Machine.watch_memory`: what it receives is published over other connections, which are slowed down."""

    def watch_disk(self, *, is_short: bool) -> None:
        """As `Machine.watch_disk`: likewise."""

    def watch_rules(self) -> None:
        """As `Machine.watch_rules`: likewise."""

    def take_published(self) -> bool:
        """As `Machine.take_published`: likewise."""
        return False

    def set_timestamps(self, *, is_on: bool) -> None:
        """As `Machine.set_timestamps`: likewise."""

    def manage_session(self, channel: int, action: SessionAction) -> None:
        """As `Machine.manage_session`: it has none."""

    def force_close(self, text: str) -> None:
        """As `Machine.force_close`."""
        if self.phase is Phase.OPEN:
            self._error = HardError(ReplyCode.CONNECTION_FORCED, text)
            self.close(ReplyCode.CONNECTION_FORCED, text)
        else:
            self.lost(text)


class SideOwner(Protocol):
    """What a side is for."""

    def side_open(self, side: Side) -> None:
        """The side is connected, and its channel is open."""

    def side_failed(self, side: Side, reason: str) -> None:
        """The side has failed, or its connection or channel has ended."""

    def side_changed(self, side: Side) -> None:
        """`is_full` has changed."""

    def on_delivery(self, payload: bytes, header: bytes, body: Content) -> None:
        """As `ChannelOwner.on_delivery`."""

    def on_confirmed(self, first: int, last: int, *, is_accepted: bool) -> None:
        """As `ChannelOwner.on_confirmed`."""

    def on_returned(self, values: Values, header: bytes, body: Content) -> None:
        """As `ChannelOwner.on_returned`."""


class Side:
    """A connection to a broker, with a channel.

    Args:
        owner: what it is for.
        broker: this broker.
        network: connects it.
        uris: the broker, and alternatives.
        user: the user who has set the parameter.
        name: the connection's name, which the other broker shows.

    Attributes:
        uri: the one that is used, or was tried last.
        wire: its connection; None before there is one.
        channel: its channel, once it is open.
        is_full: whether it takes no messages for now.
        delivers: whether messages are consumed from it.
        blocked: why the other broker asks for no more messages; empty if it does not.
    """

    def __init__(
        self,
        owner: SideOwner,
        broker: Broker,
        network: PeerNetwork,
        uris: Sequence[AmqpUri],
        user: str,
        name: str,
    ) -> None:
        self._owner, self._broker, self._network, self._uris, self._user = owner, broker, network, uris, user
        self._name = name
        self.uri = uris[0]
        self.wire: BasicPeer | None = None
        self._channel: ClientChannel | None = None
        self._attempt: Attempt | None = None
        self._tried = 0
        self._reasons: list[str] = []  # of the URIs that were tried
        self._is_over = self._is_socket_full = self._is_held = False
        self.is_full = self.delivers = False
        self.blocked = ""

    @property
    def channel(self) -> ClientChannel:
        """Its channel."""
        assert self._channel is not None
        return self._channel

    def connect(self) -> None:
        """Begin to connect to the next URI."""
        uri = self.uri = self._uris[self._tried]
        number = self._tried = self._tried + 1

        def lost(reason: str) -> None:
            if number == self._tried:
                self._lost(reason)

        if uri.host:
            self._attempt = self._network.connect(Remote(uri.host, uri.port, uri.transport), self._make, lost)
        else:
            self._attempt = self._network.connect_directly(self._user, self._make, lost)

    def _make(self, host: Host) -> Machine:
        uri = self.uri
        is_own = not uri.host and uri.user is None
        user = None if is_own else uri.user or _GUEST
        password = None if is_own else uri.password if uri.user is not None else _GUEST
        mechanisms = uri.mechanisms
        is_external = is_own or (mechanisms is not None and EXTERNAL in mechanisms)
        credentials = Credentials(None if is_external else user, password, is_external, uri.host or "localhost")

        def choose(offered: tuple[str, ...]) -> ClientMechanism:
            if is_own and not self._user:
                raise ValueError("the parameter does not record the user who set it: set it again")
            found = choose_mechanism(offered, mechanisms, credentials)
            if found is None:
                raise ValueError(f"no usable SASL mechanism; the broker offers {', '.join(offered)}")
            return found

        limit = self._broker.settings.max_message_bytes
        self.wire = BasicPeer(self, host, self._broker.tick, choose, uri, self._name, limit)
        return self.wire

    def close(self) -> None:
        """End it; nothing is reported any more."""
        self._is_over = True
        wire = self.wire
        if wire is not None and wire.phase is Phase.OPEN:
            if self._is_held:
                self._is_held = False
                wire.unpause()
            if wire.phase is Phase.OPEN:
                wire.close()
                return
        if self._attempt is not None:
            self._attempt.abort()

    def abort(self) -> None:
        """End it at once, without a word to the other broker."""
        self._is_over = True
        if self._attempt is not None:
            self._attempt.abort()

    # ---- backpressure ----

    def hold(self, *, is_held: bool) -> None:
        """Do not read from it, or read again."""
        wire = self.wire
        if is_held is not self._is_held and wire is not None and wire.phase is Phase.OPEN:
            self._is_held = is_held
            if is_held:
                wire.pause()
            else:
                wire.unpause()

    def socket_full(self, *, is_full: bool) -> None:
        """The socket's buffer is full, or has room again."""
        self._is_socket_full = is_full
        self._look()

    def _look(self) -> None:
        is_full = self._is_socket_full or bool(self.blocked)
        if is_full is not self.is_full:
            self.is_full = is_full
            if not self._is_over:
                self._owner.side_changed(self)

    # ---- what happens to it ----

    def _lost(self, reason: str) -> None:
        """The attempt or the connection has ended: try the next URI, if it was not open yet."""
        if self._is_over:
            return
        self._reasons.append(f"{self.uri.shown}: {reason}" if len(self._uris) > 1 else reason)
        if self._channel is None and self._tried < len(self._uris):
            self.wire = None
            self.connect()
            return
        self._fail("; ".join(self._reasons[-len(self._uris) :]) if self._channel is None else reason)

    def _fail(self, reason: str) -> None:
        if not self._is_over:
            self._is_over = True
            self._owner.side_failed(self, reason)

    def on_open(self) -> None:
        """As `ConnectionOwner.on_open`."""
        assert self.wire is not None
        self._channel = self.wire.open_channel(self)
        if not self._is_over:
            self._owner.side_open(self)

    def on_closed(self, error: HardError | None) -> None:
        """As `ConnectionOwner.on_closed`; without an error the network knows why."""
        if error is not None:
            self._lost(str(error))

    def on_blocked(self, reason: str) -> None:
        """As `ConnectionOwner.on_blocked`."""
        self.blocked = reason
        self._look()

    def has_output(self) -> None:
        """As `ConnectionOwner.has_output`: the connection knows by itself."""

    def on_channel_closed(self, error: CodedError | None) -> None:
        """As `ChannelOwner.on_channel_closed`; the end of the connection is reported by itself."""
        if error is not None and not isinstance(error, HardError):
            self._fail(str(error))

    def on_cancelled(self, consumer_tag: str) -> None:  # noqa: ARG002 – there is one consumer
        """As `ChannelOwner.on_cancelled`."""
        self._fail("the broker has cancelled the consumer: its queue was deleted")

    def on_delivery(self, payload: bytes, header: bytes, body: Content) -> None:
        """As `ChannelOwner.on_delivery`."""
        if not self.delivers:
            self._fail("the broker has sent an unexpected message")
        elif not self._is_over:
            self._owner.on_delivery(payload, header, body)

    def on_confirmed(self, first: int, last: int, *, is_accepted: bool) -> None:
        """As `ChannelOwner.on_confirmed`."""
        if not self._is_over:
            self._owner.on_confirmed(first, last, is_accepted=is_accepted)

    def on_returned(self, values: Values, header: bytes, body: Content) -> None:
        """As `ChannelOwner.on_returned`."""
        if not self._is_over:
            self._owner.on_returned(values, header, body)

    # ---- topology ----

    def on_other_channel(
        self,
        call: Callable[[ClientChannel, Callable[[Values, CodedError | None], None]], None],
        done: Callable[[Values, CodedError | None], None],
    ) -> None:
        """Make a call on a channel of its own, which an error closes, and close it."""
        assert self.wire is not None
        try:
            channel = self.wire.open_channel(NO_OWNER)
        except ValueError as error:
            self._fail(str(error))
            return

        def answered(values: Values, error: CodedError | None) -> None:
            if error is None:
                channel.close()
            if not self._is_over and not isinstance(error, HardError):  # otherwise the connection has ended
                done(values, error)

        call(channel, answered)

    def ensure_queue(self, name: str, arguments: TypedMap, done: Callable[[int], None]) -> None:
        """Make sure that a queue exists: one that does not is declared, durable. Calls back with its messages."""

        def looked(values: Values, error: CodedError | None) -> None:
            if error is not None and error.code == ReplyCode.NOT_FOUND:
                self.on_other_channel(
                    lambda channel, answer: channel.declare_queue(name, answer, durable=True, arguments=arguments),
                    partial(self._queue_found, done),
                )
            else:
                self._queue_found(done, values, error)

        self.on_other_channel(lambda channel, answer: channel.declare_queue(name, answer, passive=True), looked)

    def _queue_found(self, done: Callable[[int], None], values: Values, error: CodedError | None) -> None:
        if error is None:
            done(int(values["message_count"]))
        else:
            self._fail(str(error))

    def check_exchange(self, name: str, done: Callable[[], None]) -> None:
        """Make sure that an exchange exists."""
        if not name:
            done()
            return

        def looked(_values: Values, error: CodedError | None) -> None:
            if error is None:
                done()
            else:
                self._fail(str(error))

        self.on_other_channel(
            lambda channel, answer: channel.declare_exchange(name, "direct", answer, passive=True), looked
        )

    def expect(self, done: Callable[[Values], None]) -> Callable[[Values, CodedError | None], None]:
        """The function for an answer on the channel, whose error is reported by itself."""

        def answered(values: Values, error: CodedError | None) -> None:
            if error is None and not self._is_over:
                done(values)

        return answered


class _NoOwner:
    """The owner of channels that only make one call."""

    def on_delivery(self, payload: bytes, header: bytes, body: Content) -> None:
        pass

    def on_confirmed(self, first: int, last: int, *, is_accepted: bool) -> None:
        pass

    def on_returned(self, values: Values, header: bytes, body: Content) -> None:
        pass

    def on_cancelled(self, consumer_tag: str) -> None:
        pass

    def on_channel_closed(self, error: CodedError | None) -> None:
        pass


NO_OWNER: Final = _NoOwner()
