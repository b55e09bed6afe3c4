"""The broker's end of a link to another broker: a client until the connection is open, then both client and broker.

A session of a link sends commands, as a client's does, and executes what it receives, as the broker's does: messages
that the other broker sends go to an exchange here, and messages of a queue here go to the other broker. So everything
that holds for the broker's clients holds for links: runs, flow control, limits, authorization, and completions that
wait for the disk.

    pull    transfers are received. They are completed, and accepted if acknowledgements are on, when their records are
            on the disk here
    push    a subscription here delivers to the other broker. What that has completed, or accepted, is dequeued here.
            An execution.sync follows the messages, one at a time: qpidd tells only then what it has on its disk

The other broker is no client: it may transfer to the exchange of the session, settle, and answer, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol

from qstore.broker.model.errors import ModelError, NotAllowedError
from qstore.broker.model.message import Content
from qstore.broker.model.queues.entry import Entry
from qstore.broker.model.run import RunEntry
from qstore.broker.model.settlement import Settled, accept
from qstore.broker.protocols.amqp_0_10.assembly import FramingError
from qstore.broker.protocols.amqp_0_10.client_connection import ClientNegotiation
from qstore.broker.protocols.amqp_0_10.commands import COMMANDS
from qstore.broker.protocols.amqp_0_10.message import announced_hosts
from qstore.broker.protocols.amqp_0_10.server_connection import SWEEPS, Amqp010Connections, ServerConnection
from qstore.broker.protocols.amqp_0_10.server_session import MESSAGE_TRANSFER, ServerSession
from qstore.broker.protocols.amqp_0_10.session import State
from qstore.broker.protocols.amqp_0_10.subscription import Subscription
from qstore.broker.protocols.connection import Phase
from qstore.broker.protocols.machine import Host, Peer
from qstore.formats.amqp_0_10.codes import CloseCode, DetachCode
from qstore.formats.amqp_0_10.commands import BY_NAME, decode_command
from qstore.formats.amqp_0_10.frames import PROTOCOL_HEADER


def _codes(*names: str) -> frozenset[bytes]:
    return frozenset(BY_NAME[name].code.to_bytes(2) for name in names)


_SETTLEMENTS: Final = _codes("message.accept", "message.reject", "message.release")
_ANSWERS: Final = _codes("execution.sync", "execution.result", "execution.exception")
_FRAME_BYTES: Final = 65_535
_NO_SYNC: Final = -2
_SYNC_DUE: Final = -1


class LinkEnd(Protocol):
    """The owner of a connection."""

    def link_opened(self, connection: LinkConnection, known_hosts: tuple[str, ...]) -> None:
        """The connection is open: sessions can be attached. The other broker is known at these addresses, too."""

    def link_refused(self, reason: str) -> None:
        """The other broker has refused the login, or none is possible."""

    def link_told(self, known_hosts: tuple[str, ...]) -> None:
        """The other broker is known at these addresses now."""


class SessionOwner(Protocol):
    """The owner of a session."""

    def session_attached(self, session: LinkSession) -> None:
        """Commands can be sent."""

    def session_ended(self, session: LinkSession, reason: str) -> None:
        """The session has ended; `reason` is empty if nobody has given one."""


class LinkSession(ServerSession):
    """A session of a link.

    Args:
        name: its name.
        connection: the link's connection.
        user: the user on whose behalf it publishes and consumes.
        destination: the exchange to which the other broker may send messages; None if it sends none.
        owner: hears of its life.
        batch: how many messages are accepted together, sooner if no more are under way; 0 if they need no acceptance.
        hears_of_hosts: whether the messages that come are those of the exchange `amq.failover`.

    Attributes:
        hears_of_hosts: as above.
        reason: why the session has ended, or will soon; empty if nobody has given a reason.
    """

    __slots__ = ("_destination", "_owner", "_sync_key", "_sync_number", "hears_of_hosts", "reason")

    def __init__(
        self,
        name: bytes,
        connection: LinkConnection,
        user: str,
        destination: str | None,
        owner: SessionOwner,
        batch: int,
        *,
        hears_of_hosts: bool = False,
    ) -> None:
        super().__init__(name, user, connection.broker, connection.virtual_host)
        self.hears_of_hosts = hears_of_hosts
        self._destination, self._owner = destination, owner
        self.accept_batch = batch
        self.reason = ""
        self._sync_key = object()  # the owner of its turns
        self._sync_number = _NO_SYNC

    @property
    def is_usable(self) -> bool:
        """Whether commands can be sent."""
        return self.state is State.ATTACHED and not self.is_failed

    def permits(self, payload: bytes) -> bool:
        """Whether the other broker may send this command."""
        code = payload[:2]
        if code == MESSAGE_TRANSFER:
            if self._destination is None:
                return False
            if payload in self.destinations:
                return True
            return bool((decode_command(payload)[2]["destination"] or "") == self._destination)
        return code in _ANSWERS or (self._destination is None and code in _SETTLEMENTS)

    def attached(self) -> None:
        """As `Session.attached`."""
        super().attached()
        self._owner.session_attached(self)

    def on_exception(self, values: Mapping[str, Any]) -> None:
        """The other broker reports that a command has failed; it ends the session."""
        self.reason = values["description"] or f"error {values['error_code']}"

    # ---- here is the source ----

    def consume(self, queue: str, destination: str, *, is_accepting: bool, window: int) -> None:
        """Send the messages of a queue here to an exchange of the other broker.

        Args:
            queue: the queue.
            destination: the exchange.
            is_accepting: whether a message stays on the queue until the other broker has it.
            window: messages that may be under way.

        Raises:
            ModelError: the queue does not exist, or the user may not consume.
        """
        given: dict[str, Any] = {
            "queue": queue, "destination": destination, "accept_mode": 0 if is_accepting else 1, "acquire_mode": 0,
            "exclusive": False, "resume_id": None, "resume_ttl": None, "arguments": None,
        }  # fmt: skip
        COMMANDS["message.subscribe"](self, -1, given)
        COMMANDS["message.set-flow-mode"](self, -1, {"destination": destination, "flow_mode": 1})
        COMMANDS["message.flow"](self, -1, {"destination": destination, "unit": 0, "value": window})
        COMMANDS["message.flow"](self, -1, {"destination": destination, "unit": 1, "value": 0xFFFFFFFF})
        self.tick.schedule()

    def delivered(self, number: int, subscription: Subscription, entry: Entry, size: int) -> None:
        """As `ServerSession.delivered`."""
        super().delivered(number, subscription, entry, size)
        if self._sync_number == _NO_SYNC:
            self._sync_soon()

    def delivered_run(self, number: int, subscription: Subscription, run: RunEntry, size: int) -> None:
        """As `ServerSession.delivered_run`."""
        super().delivered_run(number, subscription, run, size)
        if self._sync_number == _NO_SYNC:
            self._sync_soon()

    def _sync_soon(self) -> None:
        self._sync_number = _SYNC_DUE
        self.tick.turns.do(self._sync_key, self._sync())

    def _sync(self) -> Iterator[None]:
        yield  # the messages of this tick are before it
        if self.is_usable:
            self._sync_number = self.send("execution.sync", sync=True)  # without the bit qpidd accepts nothing

    def on_peer_completed_ranges(self, ranges: list[tuple[int, int]]) -> None:
        """The other broker has commands of ours, and messages among them on its disk: it answers for these now."""
        super().on_peer_completed_ranges(ranges)
        synced = self._sync_number
        if synced >= 0 and any(first <= synced <= last for first, last in ranges):
            self._sync_number = _NO_SYNC
            if self.sent > synced + 1:
                self._sync_soon()
        if self._destination is None:
            acquired = self.deliveries.settle(ranges, self.sent)
            try:
                settled = accept(self.tick, acquired, self._settled)
            except ModelError as error:
                self._settled(error)
                return
            if settled is not Settled.NOW:
                self.tick.schedule()

    def _settled(self, error: Exception | None) -> None:
        if error is not None:
            self.fail([], error)

    # ---- end ----

    def fail_command(self, number: int, payload: bytes, error: ModelError) -> None:
        """As `ServerSession.fail_command`."""
        self.reason = self.reason or str(error)
        super().fail_command(number, payload, error)

    def end(self) -> None:
        """As `ServerSession.end`."""
        super().end()
        self._owner.session_ended(self, self.reason)

    def drop(self) -> None:
        """End the session: its owner no longer needs it."""
        if self.is_usable:
            self.connection.end_session(self)


class LinkConnection(ServerConnection):
    """The broker's end of a link.

    Args:
        host: the event loop and socket.
        shared: all connections of the protocol.
        peer: the other broker.
        end: the owner.
        negotiation: what is answered until the connection is open.
        user: the user on whose behalf the link was made.

    Attributes:
        peer_tag: the name of the other broker in a federation; empty if it has none.
        peer_sweeps: whether the other broker takes back bindings that a route has not announced again.
    """

    __slots__ = ("_end", "_has_begun", "_negotiation", "peer_sweeps", "peer_tag")

    def __init__(
        self,
        host: Host,
        shared: Amqp010Connections,
        peer: Peer,
        end: LinkEnd,
        negotiation: ClientNegotiation,
        user: str,
    ) -> None:
        super().__init__(host, shared, peer)
        self._end, self._negotiation, self._has_begun = end, negotiation, False
        self.peer_tag = ""
        self.peer_sweeps = False
        self.user = self.publisher.user = user
        self.transfers.trust_user_ids()
        self.output.append(PROTOCOL_HEADER)
        self.has_output()

    @property
    def broker(self) -> Any:
        """The model."""
        return self._shared.broker

    @property
    def is_outgoing(self) -> bool:
        """As `Machine.is_outgoing`."""
        return True

    # ---- negotiation ----

    def on_header(self, header: bytes) -> None:
        """As `ClientConnection.on_header`."""
        if header != PROTOCOL_HEADER:
            self.close_code = CloseCode.FRAMING_ERROR
            self.close_text = f"the peer does not speak AMQP 0-10: it answered {header!r}"
            self.closed()

    def on_control(self, name: str, values: dict[str, Any]) -> None:
        """Answer a negotiation control of the other broker."""
        if self.phase is Phase.OPEN:
            raise FramingError(f"{name} is unexpected from a broker that has opened the connection")
        if name == "connection.open-ok":
            if not self._negotiation.is_logged_in:
                raise FramingError("connection.open-ok is unexpected before the login")
            self._opened(tuple(values["known_hosts"] or ()))
            return
        self._has_begun = True
        try:
            frames = self._negotiation.answer(name, values)
        except ValueError as error:
            self.fail(CloseCode.CONNECTION_FORCED, str(error))
            return
        self.max_frame, self.heartbeat = self._negotiation.max_frame, self._negotiation.heartbeat
        for frame in frames:
            self.send_frame(frame)

    def _opened(self, known_hosts: tuple[str, ...]) -> None:
        self.phase = Phase.OPEN
        self._assembler.max_frame = _FRAME_BYTES
        properties = self._negotiation.server_properties
        if properties is not None:
            tag = properties.get("qpid.federation_tag")
            self.peer_tag = "" if tag is None else str(tag.value)
            self.peer_sweeps = properties.get(SWEEPS) is not None
            self.client_properties = properties
        self._end.link_opened(self, known_hosts)

    def on_closed(self) -> None:
        """As `BrokerConnection.on_closed`."""
        if self._has_begun and not self._negotiation.is_logged_in and self.close_code:
            self._end.link_refused(self.close_text or "Authentication failed")
        super().on_closed()

    # ---- sessions ----

    def begin_session(self, session: LinkSession, channel: int) -> bool:
        """Attach a session to a channel. Whether it is free: the other broker may still have to confirm its end."""
        if channel in self.sessions or self.phase is not Phase.OPEN:
            return False
        self._reported.discard(channel)
        self._assembler.accept(channel)
        self.sessions[channel] = session
        session.attach_to(self, channel)
        session.send_control("session.attach", name=session.name, force=True)
        return True

    def on_session_control(self, name: str, channel: int, values: dict[str, Any]) -> None:
        """The other broker answers that a session is attached, or ends one; it may not attach its own."""
        session = self.sessions.get(channel)
        if name == "session.attach":
            self._send_detached(channel, values["name"] or b"", DetachCode.TRANSPORT_BUSY)
        elif name != "session.attached":
            super().on_session_control(name, channel, values)
        elif session is not None and session.state is State.ATTACHING:
            session.attached()

    def command(self, channel: int, payload: bytes, header: bytes | None, body: Content | None) -> None:
        """As `ServerConnection.command`."""
        session = self.sessions.get(channel)
        if isinstance(session, LinkSession) and not session.is_failed:
            if not session.permits(payload):
                session.fail_command(session.received, payload, NotAllowedError("a link does not take this command"))
                return
            if session.hears_of_hosts and header is not None and (hosts := announced_hosts(header)):
                self._end.link_told(hosts)
        super().command(channel, payload, header, body)
