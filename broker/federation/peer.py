"""The broker as a client of a broker, whatever the protocol: one side of a shovel, or of a federation link.

A side connects to the first of its URIs that works, or to this broker itself. It reports once that it is open
(`SideEvents.side_open`), and once that it has failed or has ended (`side_failed`); its owner closes it then, and makes
another one for the next attempt.

    another broker    by the network room (`PeerNetwork.connect`), logged in as the URI says
    this broker       without a socket (`PeerNetwork.connect_directly`), as the user who has set the parameter: each
                      operation is authorized as that user's, as if over a connection of its own

A protocol adds the client's end of a connection (`make_wire`), and what is done on it: `basic_peer`, `link_peer`,
`transfer_peer`.

Backpressure: a side that `is_full` (the socket's buffer is full, or the broker takes nothing for now) takes no more
messages; a side that is `hold`-ed is not read.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from qstore.broker.federation.link import Attempt, Network, Remote
from qstore.broker.federation.uri import AmqpUri
from qstore.broker.protocols.broker_connection import CLOSE_SECONDS
from qstore.broker.protocols.connection import Connection, Phase
from qstore.broker.protocols.machine import (
    ConnectionCounts,
    ConnectionLimits,
    Host,
    Machine,
    ManagedSession,
    SessionAction,
)
from qstore.broker.security.sasl.exchange import ClientMechanism
from qstore.broker.security.sasl.simple import EXTERNAL
from qstore.broker.security.sasl.table import Credentials, choose_mechanism
from qstore.broker.security.tls import TlsFacts
from qstore.formats.values import EMPTY_MAP, TypedMap

if TYPE_CHECKING:
    from qstore.broker.federation.carrier import Channel
    from qstore.broker.model.broker import Broker
    from qstore.broker.model.tick import Tick

_GUEST: Final = "guest"

AT_ONCE: Final = 512
"""Frames, and messages, that are processed for one connection before others: about two milliseconds."""

Choose = Callable[[tuple[str, ...]], ClientMechanism]


class PeerNetwork(Network, Protocol):
    """Connects sides to other brokers, and to this one."""

    def connect_directly(self, user: str, make: Callable[[Host], Machine], lost: Callable[[str], None]) -> Attempt:
        """Begin to connect to this broker itself, without a socket.

        Args:
            user: who may log in by EXTERNAL.
            make: makes the machine of the client's end.
            lost: called once, with the reason, when the connection has ended.
        """


class PeerMachine:
    """The client's end of a connection, as the network room sees it.

    Args:
        side: its owner.
        host: the event loop and socket.
        tick: the broker's.
        uri: the broker, as its URI describes it.
        protocol: the name of the protocol.

    Attributes:
        wire: the connection, which must be set at once.
        user, peer, created_at, client_properties, protocol, mechanism, vhost: as of `Machine`.
    """

    wire: Connection

    def __init__(self, side: PeerSide, host: Host, tick: Tick, uri: AmqpUri, protocol: str) -> None:
        self._side, self._host, self._tick = side, host, tick
        self.user, self.peer, self.created_at = "", uri.shown, time.time()
        self.client_properties: TypedMap = EMPTY_MAP
        self.protocol, self.mechanism, self.vhost = protocol, "", uri.vhost
        self._closing_since, self._has_tls = 0.0, uri.transport == "ssl"

    def connect(self, wire: Connection) -> None:
        """Set the connection."""
        self.wire = wire
        wire.limit_turns(AT_ONCE, time.monotonic)
        self.has_output()

    # ---- output ----

    def has_output(self) -> None:
        """Send the output at the end of the tick."""
        self._tick.outputs[self] = None
        self._tick.schedule()

    def write_output(self) -> None:
        """Send it."""
        data = self.wire.take_output()
        if data:
            self._host.write(data)

    def wire_closed(self) -> None:
        """The connection is closed or lost."""
        self.write_output()
        self._host.close()

    # ---- as a machine ----

    def receive(self, data: bytes) -> None:
        """As `Machine.receive`."""
        self.wire.receive(data)

    def resume(self) -> None:
        """As `Machine.resume`."""
        self.wire.resume()

    def wire_resumed(self) -> None:
        """The connection has processed what it had buffered, unless it is paused: go on reading."""
        if self.wire.phase is not Phase.CLOSED and not self.wire.is_held:
            self._host.resumed()

    def on_timer(self, now: float) -> None:
        """As `Machine.on_timer`: check heartbeats, and whether the answer to a close is overdue."""
        if self.wire.phase is Phase.CLOSING:
            self._closing_since = self._closing_since or now
            if now - self._closing_since > CLOSE_SECONDS:
                self.wire.closed()
        self.wire.on_timer(now)

    @property
    def is_paused(self) -> bool:
        """As `Machine.is_paused`."""
        return self.wire.is_paused

    @property
    def is_behind(self) -> bool:
        """As `Machine.is_behind`."""
        return self.wire.is_behind

    @property
    def is_negotiating(self) -> bool:
        """As `Machine.is_negotiating`."""
        return self.wire.is_negotiating

    @property
    def is_closing(self) -> bool:
        """As `Machine.is_closing`."""
        return self.wire.is_closing

    @property
    def is_closed(self) -> bool:
        """As `Machine.is_closed`."""
        return self.wire.is_closed

    @property
    def end_reason(self) -> str:
        """As `Machine.end_reason`."""
        return self.wire.end_reason

    @property
    def sessions(self) -> Mapping[int, ManagedSession]:
        """It has no sessions that management could see."""
        return {}

    @property
    def counts(self) -> ConnectionCounts:
        """As `Machine.counts`."""
        wire = self.wire
        frames, messages = wire.received
        return ConnectionCounts(
            frames_received=frames,
            frames_sent=wire.frames_sent,
            bytes_received=wire.bytes_received,
            bytes_sent=wire.bytes_sent,
            messages_received=messages,
            messages_sent=wire.messages_sent,
        )

    @property
    def ssf(self) -> int:
        """As `Machine.ssf`: what it has of its own, not TLS."""
        return self.wire.layer_ssf

    @property
    def tls(self) -> TlsFacts | None:
        """As `Machine.tls`: only whether there is any is known."""
        return TlsFacts() if self._has_tls else None

    @property
    def limits(self) -> ConnectionLimits:
        """As `Machine.limits`; here nothing depends on those of channels and frames."""
        return ConnectionLimits(0, 0, self.wire.heartbeat)

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
        self._side.force_close(text)

    def dismantle(self) -> None:
        """As `Machine.dismantle`."""
        self.wire.dismantle()


class SideEvents(Protocol):
    """What the owner of a side hears of its life."""

    def side_open(self, side: PeerSide) -> None:
        """The side is connected, and can be used."""

    def side_failed(self, side: PeerSide, reason: str) -> None:
        """The side has failed, or its connection has ended."""

    def side_changed(self, side: PeerSide) -> None:
        """`is_full` has changed."""


class PeerSide:
    """A connection to a broker.

    Args:
        events: its owner.
        broker: this broker.
        network: connects it.
        uris: the broker, and alternatives.
        user: the user who has set the parameter.
        name: the connection's name, which the other broker shows.

    Attributes:
        uri: the one that is used, or was tried last.
        wire: its connection; None before there is one.
        is_full: whether it takes no messages for now.
        delivers: whether messages are consumed from it.
        blocked: why the other broker asks for no more messages; empty if it does not.
    """

    def __init__(
        self,
        events: SideEvents,
        broker: Broker,
        network: PeerNetwork,
        uris: Sequence[AmqpUri],
        user: str,
        name: str,
    ) -> None:
        self._events, self._broker, self._network, self._uris, self._user = events, broker, network, uris, user
        self._name = name
        self.uri = uris[0]
        self.wire: Connection | None = None
        self._attempt: Attempt | None = None
        self._tried = 0
        self._reasons: list[str] = []  # of the URIs that were tried
        self._is_over = self._is_socket_full = self._is_held = self._was_open = False
        self.is_full = self.delivers = False
        self.blocked = ""

    # ---- defined by the protocol ----

    @property
    @abstractmethod
    def channel(self) -> Channel:
        """What messages are sent and acknowledged on, once it is open."""

    @abstractmethod
    def make_wire(self, machine_of: Callable[[str], PeerMachine], choose: Choose) -> PeerMachine:
        """Make the connection to `uri`, and its machine, by the name of the protocol."""

    @abstractmethod
    def force_close(self, text: str) -> None:
        """Close the connection, and tell the other broker why."""

    # ---- connecting ----

    def connect(self) -> None:
        """Begin to connect to the next URI."""
        uri = self.uri = self._uris[self._tried]
        number = self._tried = self._tried + 1

        def lost(reason: str) -> None:
            if number == self._tried:
                self.lost(reason)

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

        def machine_of(protocol: str) -> PeerMachine:
            return PeerMachine(self, host, self._broker.tick, uri, protocol)

        return self.make_wire(machine_of, choose)

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
        self.look()

    @property
    def takes_messages(self) -> bool:
        """Whether the other broker takes messages, as far as the protocol says."""
        return True

    def look(self) -> None:
        """See whether `is_full` has changed."""
        is_full = self._is_socket_full or bool(self.blocked) or not self.takes_messages
        if is_full is not self.is_full:
            self.is_full = is_full
            if not self._is_over:
                self._events.side_changed(self)

    # ---- what happens to it ----

    @property
    def now(self) -> float:
        """Seconds since 1970."""
        return self._broker.clock()

    @property
    def is_over(self) -> bool:
        """Whether it was closed or has failed: its owner hears nothing more."""
        return self._is_over

    def opened(self) -> None:
        """It can be used."""
        self._was_open = True
        if not self._is_over:
            self._events.side_open(self)

    def lost(self, reason: str) -> None:
        """The attempt or the connection has ended: try the next URI, if it was not open yet."""
        if self._is_over:
            return
        self._reasons.append(f"{self.uri.shown}: {reason}" if len(self._uris) > 1 else reason)
        if not self._was_open and self._tried < len(self._uris):
            self.wire = None
            self.connect()
            return
        self.fail(reason if self._was_open else "; ".join(self._reasons[-len(self._uris) :]))

    def fail(self, reason: str) -> None:
        """It has failed."""
        if not self._is_over:
            self._is_over = True
            self._events.side_failed(self, reason)
