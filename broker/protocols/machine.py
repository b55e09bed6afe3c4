"""The interface between a socket and a connection, for every protocol.

A connection is a state machine without I/O. Bytes from the socket are passed to `receive`; output is passed to its host
(`write`) at the end of the event loop tick. A machine that `is_paused` buffers input until it is resumed by the code
that paused it, and one that `is_behind` needs `resume` after other connections were served.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Protocol

from qstore.broker.model.errors import ModelError
from qstore.broker.model.queues.queue import Queue
from qstore.broker.security.authentication import PeerSecurity
from qstore.broker.security.sasl.exchange import Answer, PasswordCheck
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import TypedMap

if TYPE_CHECKING:
    from qstore.broker.protocols.publishing import SessionRate
    from qstore.broker.security.tls import TlsFacts


class Peer(NamedTuple):
    """A client.

    Attributes:
        address: host and port, for the log.
        security: properties of the connection that authentication uses.
        refusal: the reason for refusing the connection, sent to the client; empty if it is allowed.
        host_name: the name of its host, if the firewall has looked it up; else empty.
    """

    address: str
    security: PeerSecurity
    refusal: str = ""
    host_name: str = ""


class ConnectionCounts(NamedTuple):
    """Frames, bytes and messages that a connection has received and sent."""

    frames_received: int
    frames_sent: int
    bytes_received: int
    bytes_sent: int
    messages_received: int
    messages_sent: int


class ConnectionLimits(NamedTuple):
    """What a connection has negotiated.

    Attributes:
        channels: the highest number of a channel, or how many there may be, as the protocol counts.
        frame_bytes: of a frame.
        heartbeat: seconds between heartbeats; 0 for none.
    """

    channels: int
    frame_bytes: int
    heartbeat: int


class SessionModes(NamedTuple):
    """How a session publishes and consumes, and what its open transactions have.

    Attributes:
        confirms: whether the client learns which of its messages are stored.
        is_transactional: whether it publishes and settles in transactions.
        prefetch: unsettled messages of each later consumer; 0 for no limit, or if consumers have their own.
        shared_prefetch: of all its consumers together; 0 for no limit.
        published: messages published in open transactions.
        settled: deliveries settled in them.
    """

    confirms: bool
    is_transactional: bool
    prefetch: int
    shared_prefetch: int
    published: int
    settled: int


class ManagedSubscription(Protocol):
    """A subscription, as management sees it.

    Attributes:
        destination: its name in its session.
        queue: its queue.
        acquires: whether it acquires messages, or browses them.
        is_accepting: whether messages are dequeued only when the client accepts them.
        is_windowed: whether settled messages return their credit.
        arguments: the client's arguments.
    """

    destination: str
    queue: Queue
    acquires: bool
    is_accepting: bool
    is_windowed: bool
    arguments: TypedMap

    @property
    def delivered(self) -> int:
        """Number of messages delivered."""

    @property
    def prefetch(self) -> int:
        """Messages that it may have unsettled; 0 for no limit, or if the client grants each message."""


class ManagedLink(NamedTuple):
    """A link of AMQP 1.0, as management sees it.

    Attributes:
        is_incoming: whether the client sends on it.
        container: the name of the client's container.
        name: its own.
        source, target: addresses; empty for none.
        transfers: messages so far.
    """

    is_incoming: bool
    container: str
    name: str
    source: str
    target: str
    transfers: int


class ManagedSession(Protocol):
    """A session, as management sees it.

    Attributes:
        name: its name, unique among its user's.
        user: its user.
        timeout: seconds that it is kept while detached.
        txn_starts, txn_commits, txn_rejects: local transactions started, committed and rolled back.
        rate: limits how fast it may publish; None for no limit.
        subscriptions: destination -> subscription.
    """

    name: bytes
    user: str
    timeout: int
    txn_starts: int
    txn_commits: int
    txn_rejects: int
    rate: SessionRate | None

    @property
    def vhost(self) -> str:
        """The name of its virtual host."""

    @property
    def subscriptions(self) -> Mapping[str, ManagedSubscription]:
        """Destination -> subscription."""

    @property
    def attached_links(self) -> Iterable[ManagedLink]:
        """Its links; none unless it is one of AMQP 1.0."""

    @property
    def unsettled_count(self) -> int:
        """Number of messages delivered to the client and not settled."""

    def close_subscription(self, destination: str) -> None:
        """End a subscription, if there is one, and tell the client.

        Its deliveries can still be settled, unless the protocol has no other way to tell than to end the session.
        """

    @property
    def credit(self) -> int:
        """Messages that may still be sent to its subscriptions; 0xffffffff for more, or if one has no limit."""

    @property
    def outstanding_commands(self) -> int:
        """Commands of the client that were received and are not completed."""

    @property
    def modes(self) -> SessionModes:
        """How it publishes and consumes now."""


class DetachedSession(NamedTuple):
    """A session that waits to be attached again.

    Attributes:
        session: the session.
        channel, peer: where it was attached.
        expires_at: when it ends, in seconds since 1970.
        end: ends it now.
        extend: restarts its timeout.
    """

    session: ManagedSession
    channel: int
    peer: str
    expires_at: float
    end: Callable[[], None]
    extend: Callable[[], None]


class SessionAction(Enum):
    """An action of management on a session."""

    CLOSE = auto()
    """End it, and send the client the reason."""
    DETACH = auto()
    """Detach it: it waits for its timeout."""
    SOLICIT = auto()
    """Ask the client which commands it has completed."""


class Host(Protocol):
    """The owner of a connection: event loop and socket."""

    def run(self, work: Coroutine[Any, Any, None], done: Callable[[ModelError | None], None]) -> None:
        """Run a coroutine, and call `done` with its error, or None."""

    def check_password(self, check: PasswordCheck, done: Callable[[Answer], None]) -> None:
        """Check a password in a worker, off the event loop; one at a time. A failure is reported after a delay."""

    def resumed(self) -> None:
        """The connection was resumed after a pause."""

    def write(self, data: bytes) -> None:
        """Send bytes."""

    def close(self) -> None:
        """Close the socket after all output was sent."""


class Machine(Protocol):
    """The broker's end of one connection.

    Attributes:
        user: the authenticated user; empty before authentication.
        peer: the client's address.
        client_properties: the properties that the client has sent.
        created_at: when it was made, in seconds since 1970.
    """

    user: str
    peer: str
    created_at: float
    client_properties: TypedMap

    @property
    def protocol(self) -> str:
        """The name of its protocol."""

    @property
    def vhost(self) -> str:
        """The name of its virtual host."""

    @property
    def mechanism(self) -> str:
        """The SASL mechanism; empty before it is chosen."""

    @property
    def sessions(self) -> Mapping[int, ManagedSession]:
        """Channel -> session."""

    @property
    def counts(self) -> ConnectionCounts:
        """Frames, bytes and messages received and sent so far."""

    @property
    def ssf(self) -> int:
        """Its security strength factor: bits of the key of TLS or of the layer of SASL; 1 for integrity, 0 for none."""

    @property
    def tls(self) -> TlsFacts | None:
        """What the handshake of TLS has agreed on, as far as it is known; None without TLS."""

    @property
    def limits(self) -> ConnectionLimits:
        """What was negotiated; before that, what the protocol begins with."""

    @property
    def is_paused(self) -> bool:
        """Whether input is buffered until `resume`."""

    @property
    def is_behind(self) -> bool:
        """Whether input is left after a full batch, or when its time was used up: `resume` must be called soon."""

    @property
    def is_negotiating(self) -> bool:
        """Whether the connection is not open yet."""

    @property
    def is_closing(self) -> bool:
        """Whether close was sent, and the client has not answered yet."""

    @property
    def is_closed(self) -> bool:
        """Whether the connection is closed."""

    @property
    def is_outgoing(self) -> bool:
        """Whether the broker has opened the connection itself: it is a link to another broker."""

    @property
    def end_reason(self) -> str:
        """Why the connection was closed, by either end; empty if no reason was given."""

    def receive(self, data: bytes) -> None:
        """Process bytes from the socket; an empty read is a sign of life only: nothing is processed."""

    def resume(self) -> None:
        """Process the buffered input."""

    def on_timer(self, now: float) -> None:
        """Check heartbeats; `now` is in seconds of a monotonic clock."""

    def pause_sending(self) -> None:
        """The socket's send buffer is full."""

    def resume_sending(self) -> None:
        """The socket accepts output again."""

    def watch_memory(self, *, is_short: bool) -> None:
        """Set whether memory is short, so that each message must be checked against the ceiling."""

    def watch_disk(self, *, is_short: bool) -> None:
        """Set whether the disk is nearly full, which slows its messages down. Notifies the client if possible."""

    def watch_rules(self) -> None:
        """The authorizer has other rules."""

    def take_published(self) -> bool:
        """Whether a message was published while memory was short, since the last call."""

    def force_close(self, text: str) -> None:
        """Close the connection, and send the client the reason."""

    def set_timestamps(self, *, is_on: bool) -> None:
        """Set whether messages get their time of arrival, from the next one on."""

    def manage_session(self, channel: int, action: SessionAction) -> None:
        """Apply the action to the session on a channel, if there is one."""

    def dismantle(self) -> None:
        """The socket is closed."""
