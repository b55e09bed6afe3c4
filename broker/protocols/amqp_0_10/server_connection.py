"""The broker's end of a connection: authenticates the client, negotiates limits, and attaches its sessions.

Output is bounded: a session stops delivering when `room` is used up, or when the socket's buffer is full (`can_send`),
and continues once the output was written. A larger message is sent as a stream (`server_session`).

Source: AMQP 0-10, connection and session.
"""

from __future__ import annotations

import platform
import socket
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar, Final

from qstore.broker.log.logs import log_of
from qstore.broker.model.arguments import is_set
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.broker import Broker
from qstore.broker.model.errors import UnauthorizedError
from qstore.broker.model.events import SessionCreated
from qstore.broker.model.message import Content
from qstore.broker.protocols.amqp_0_10.assembly import CommandAssembler, FramingError
from qstore.broker.protocols.amqp_0_10.commands import do_command, do_transfers
from qstore.broker.protocols.amqp_0_10.connection import (
    MAX_FRAME,
    MIN_MAX_FRAME,
    check_is_open,
    close_frame,
    control_frame,
    do_control,
)
from qstore.broker.protocols.amqp_0_10.publishing import TimestampingReader, TransferReader, nothing_interrupted
from qstore.broker.protocols.amqp_0_10.server_session import ServerSession
from qstore.broker.protocols.amqp_0_10.session import DetachError, State, detach_reason, shown_name
from qstore.broker.protocols.amqp_0_10.session_registry import SessionRegistry
from qstore.broker.protocols.assembly import ProtocolError
from qstore.broker.protocols.broker_connection import BrokerConnection, Connections
from qstore.broker.protocols.connection import Phase
from qstore.broker.protocols.frame_log import TracedFrame
from qstore.broker.protocols.machine import ConnectionLimits, DetachedSession, Host, Peer, SessionAction
from qstore.broker.security.authentication import Authentication
from qstore.broker.security.sasl.exchange import Failure, Refused
from qstore.broker.security.sasl.simple import ANONYMOUS
from qstore.formats.amqp_0_10.codes import CloseCode, DetachCode
from qstore.formats.amqp_0_10.commands import COMMAND_BY_CODE, CONTROL_BY_CODE
from qstore.formats.amqp_0_10.frames import (
    BODY,
    COMMAND,
    CONTROL,
    FIRST_FRAME,
    FRAME,
    HEADER,
    PROTOCOL_HEADER,
    Frame,
    decode_frame,
)
from qstore.formats.broker_records.topology import DEFAULT_HOST
from qstore.formats.errors import FormatError
from qstore.formats.kernels.bodies import Bodies, SizeField
from qstore.formats.values import EMPTY_MAP

_LOG: Final = log_of("Protocol")
SWEEPS: Final = "qstore.federation_sweep"
"""A property of brokers that take back what a route has not announced again (`model.exchanges.origins`)."""

_STARTS_KEPT: Final = 8  # combinations of mechanisms: with and without encryption, before and after a reload


@lru_cache(maxsize=_STARTS_KEPT)
def _start_frame(mechanisms: tuple[str, ...], tag: str) -> bytes:
    """connection.start, which is the same for all clients."""
    return control_frame(
        0,
        "connection.start",
        server_properties={
            "product": "qstore",
            "platform": f"Python {platform.python_version()}",
            "host": socket.gethostname(),
            "qpid.federation_tag": tag,
            SWEEPS: 1,
        },
        mechanisms=mechanisms,
        locales=("en_US",),
    )


class ServerConnection(BrokerConnection):
    """The broker's end.

    Args:
        host: the event loop and socket.
        shared: all connections of the protocol, with their sessions.
        peer: the client.

    Attributes:
        sessions: channel -> attached session.
        max_frame: maximum size in bytes of a frame that is sent.
        transfers: decodes received messages.
        is_of_broker: whether the client is a broker, and this its link.
    """

    protocol: ClassVar[str] = "AMQP 0-10"
    has_layers: ClassVar[bool] = True
    protocol_header: ClassVar[bytes] = PROTOCOL_HEADER

    __slots__ = (
        "_channel_max", "_is_tuned", "_registry", "_reported", "_settings", "is_of_broker", "max_frame", "sessions",
        "transfers",
    )  # fmt: skip

    def __init__(self, host: Host, shared: Amqp010Connections, peer: Peer) -> None:
        self._settings, self._registry = shared.broker.settings, shared.sessions
        super().__init__(host, shared, peer, traced, PROTOCOL_HEADER)
        self.sessions: dict[int, ServerSession] = {}
        self.max_frame = MIN_MAX_FRAME
        self._is_tuned = self.is_of_broker = False
        self._channel_max = self._settings.max_channels - 1
        make_reader = TimestampingReader if shared.broker.has_timestamps else TransferReader
        self.transfers = make_reader(
            self.publisher,
            checks_user_ids=self._settings.auth,
            checks_publish=shared.admission.checks_publish,
        )
        self.transfers.take_interrupted = self._take_interrupted
        self.transfers.trace_by(shared.broker.tick.tracer)
        self._reported: set[int] = set()  # channels without a session, after `detached` was sent for them

    def make_assembler(self) -> CommandAssembler:
        """As `Connection.make_assembler`."""
        return CommandAssembler(self, MAX_FRAME, self._settings.max_message_bytes, self._shared.budget)

    # ---- as a machine ----

    @property
    def limits(self) -> ConnectionLimits:
        """As `Machine.limits`."""
        return ConnectionLimits(self._channel_max, self.max_frame, self.heartbeat)

    @property
    def senders(self) -> Mapping[int, ServerSession]:
        """As `BrokerConnection.senders`."""
        return self.sessions

    @property
    def publish_checks(self) -> TransferReader:
        """As `BrokerConnection.publish_checks`."""
        return self.transfers

    @property
    def has_rate(self) -> bool:
        """As `BrokerConnection.has_rate`: none for another broker, whose clients are limited there."""
        return not self.is_of_broker and super().has_rate

    @property
    def obeys_flow(self) -> bool:
        """Whether the client publishes no more than message.flow of the empty destination allows."""
        announced = self.client_properties.get("qpid.session_flow")
        return announced is not None and is_set(announced.value)

    @property
    def plain_messages(self) -> int:
        """As `BrokerConnection.plain_messages`."""
        return sum(session.plain_transfers for session in self.sessions.values())

    def watch_disk(self, *, is_short: bool) -> None:
        """As `Machine.watch_disk`; does nothing, since AMQP 0-10 has no such notification."""

    def force_close(self, text: str) -> None:
        """As `Machine.force_close`."""
        self.close(CloseCode.CONNECTION_FORCED, text)

    def set_timestamps(self, *, is_on: bool) -> None:
        """As `Machine.set_timestamps`."""
        self.transfers = (TimestampingReader if is_on else TransferReader).continuing(self.transfers)

    def manage_session(self, channel: int, action: SessionAction) -> None:
        """As `Machine.manage_session`."""
        if channel in self.sessions:
            self.sessions[channel].manage(action)

    # ---- controls of the connection ----

    def frame(self, channel: int, payload: bytes) -> None:
        """A control was received."""
        do_control(self, channel, payload)

    def send_control(self, control: str, /, **values: Any) -> None:
        """Send a control of the connection."""
        self.send_frame(control_frame(0, control, **values))

    def send_heartbeat(self) -> None:
        """As `Connection.send_heartbeat`."""
        self.send_control("connection.heartbeat")

    def send_close(self, code: int, text: str, cause: bytes) -> None:  # noqa: ARG002 – for other protocols
        """As `Connection.send_close`."""
        self.send_frame(close_frame(code, text))

    def fail(self, code: int, text: str) -> None:
        """Close the connection after a fatal error of the client: send the reason, and do not wait for close-ok."""
        self.close(code, text)
        self.closed()

    def on_violation(self, error: ProtocolError | FormatError) -> None:
        """As `Connection.on_violation`."""
        self.fail(CloseCode.FRAMING_ERROR, str(error))

    def on_silence(self, text: str) -> None:
        """As `Connection.on_silence`."""
        self.fail(CloseCode.CONNECTION_FORCED, text)

    def release(self) -> None:
        """As `BrokerConnection.release`: its sessions wait to be attached again, or end."""
        for session in list(self.sessions.values()):
            self._detach_session(session)

    def dismantle(self) -> None:
        """As `Connection.dismantle`."""
        super().dismantle()
        self.transfers.take_interrupted = nothing_interrupted

    # ---- negotiation ----

    def on_header(self, header: bytes) -> None:
        """Answer the client's protocol header with ours; close the connection if it is not that of 0-10."""
        self.output.append(PROTOCOL_HEADER)
        self.has_output()
        if header != PROTOCOL_HEADER:
            self.closed()
            return
        self.send_frame(_start_frame(self.login.offered, self._shared.broker.federation_tag))
        refusal = self.begin_login()
        if refusal:
            self.fail(CloseCode.CONNECTION_FORCED, refusal)

    def on_control(self, name: str, values: dict[str, Any]) -> None:
        """Handle a negotiation control of the client."""
        if name == "connection.start-ok" and not self.mechanism and not self.user:
            self.client_properties = values["client_properties"] or EMPTY_MAP
            # The links of a qpidd that was built without SASL name no mechanism; with --auth no, qpidd accepts that.
            none = ANONYMOUS if ANONYMOUS in self.login.offered else ""
            self.handle_outcome(self.login.start(values["mechanism"] or none, values["response"]))
        elif name == "connection.secure-ok" and self.mechanism and not self.user:
            self.handle_outcome(self.login.step(values["response"] or b""))
        elif name == "connection.tune-ok" and self.user and not self._is_tuned:
            self._tune(values)
        elif name == "connection.open" and self._is_tuned and self.phase is Phase.NEGOTIATING:
            self._open(values["virtual_host"] or DEFAULT_HOST)
        else:
            raise FramingError(f"{name} is unexpected in this state")

    def _open(self, name: str) -> None:
        """Open the connection to the virtual host of that name; to the default one, if there is none."""
        broker = self._shared.broker
        host = broker.virtual_hosts.find(name)
        if host is None and broker.settings.strict_virtual_hosts:
            self.close(CloseCode.INVALID_PATH, f'there is no virtual host "{name}"')
            return
        refusal = self.admit(host or broker.default_host) or self._refused_link()
        if refusal:  # not earlier: clients would report an authentication failure
            self.close(CloseCode.CONNECTION_FORCED, refusal)
            return
        if host is None:
            why = f"no such virtual host; the client is connected to {DEFAULT_HOST}; see --virtual-hosts"
            broker.arguments.field_ignored(f"Client {self.peer}", "virtual-host", name, why)
        self.phase = Phase.OPEN
        known_hosts = (broker.known_hosts,) if broker.known_hosts else None
        self.send_control("connection.open-ok", known_hosts=known_hosts)
        self.secure(self.negotiated)
        self.announce()

    def _refused_link(self) -> str:
        """Why another broker's link is refused; empty if it is not, or the client is no broker.

        Its messages may have the ids of other users. So with authentication, rules must allow it.
        """
        link = self.client_properties.get("qpid.fed_link")
        if link is None or not is_set(link.value):
            return ""
        authorization = self._shared.broker.authorization
        if not authorization.is_on and self._settings.auth:
            return (
                f"User {self.user} federation connection denied. Systems with authentication enabled must specify ACL "
                "create link rules."
            )
        try:
            authorization.check(self.publisher, Action.CREATE, ObjectType.LINK, "")
        except UnauthorizedError:
            return f"ACL denied {self.user} creating a federation link"
        self.transfers.trust_user_ids()
        self.is_of_broker = True
        return ""

    def send_challenge(self, data: bytes) -> None:
        """As `BrokerConnection.send_challenge`."""
        self.send_control("connection.secure", challenge=data)

    def refuse_login(self, outcome: Refused | Failure) -> None:
        """As `BrokerConnection.refuse_login`."""
        text = outcome.reason if isinstance(outcome, Refused) else "Authentication failed"
        self.fail(CloseCode.CONNECTION_FORCED, text)

    def send_limits(self) -> None:
        """As `BrokerConnection.send_limits`."""
        self.send_control(
            "connection.tune",
            channel_max=self._channel_max,
            max_frame_size=self._settings.max_frame,
            heartbeat_min=0,
            heartbeat_max=self._settings.heartbeat_max_seconds,
        )

    def _tune(self, values: dict[str, Any]) -> None:
        wanted = values["max_frame_size"]
        if wanted is not None and not MIN_MAX_FRAME <= wanted <= self._settings.max_frame:
            offered = f"{MIN_MAX_FRAME} to {self._settings.max_frame}"
            raise FramingError(f"max-frame-size {wanted} is outside the offered range of {offered}")
        self.max_frame = self._settings.max_frame if wanted is None else wanted
        self._assembler.max_frame = MAX_FRAME
        if values["channel_max"] is not None:
            self._channel_max = min(values["channel_max"], self._channel_max)
        self.heartbeat = min(values["heartbeat"] or 0, self._settings.heartbeat_max_seconds)
        self._is_tuned = True

    # ---- sessions ----

    def on_session_control(self, name: str, channel: int, values: dict[str, Any]) -> None:
        """Attach or detach a session."""
        if name == "session.attach":
            self._attach(channel, values["name"] or b"", force=bool(values["force"]))
        elif name == "session.attached":  # qpidd's push routes begin their sessions with it, without attach
            self._attach(channel, values["name"] or b"", force=False, is_asked=False)
        elif name == "session.detach":
            self._detach(channel, values["name"] or b"")
        else:
            self._detached(channel, values["name"] or b"")

    def _attach(self, channel: int, name: bytes, *, force: bool, is_asked: bool = True) -> None:
        if channel > self._channel_max:
            raise FramingError(f"channel {channel} is above the negotiated channel-max {self._channel_max}")
        attached = self.sessions.get(channel)
        if attached is not None and attached.name == name and attached.state is State.ATTACHED:
            if is_asked:
                attached.send_control("session.attached", name=name)  # rule idempotence
            return
        if attached is not None:
            self._send_detached(channel, name, DetachCode.TRANSPORT_BUSY)
            return
        session = self._registry.find(self.user, self.virtual_host, name)
        if session is not None and session.is_failed:  # failed while detached
            self._registry.end(session)
            session = None
        if session is not None and session.transport is not None:
            if not force:
                self._send_detached(channel, name, DetachCode.SESSION_BUSY)
                return
            session.connection.hand_over(session)
            session = self._registry.find(self.user, self.virtual_host, name)
        is_new = session is None
        if session is None:
            session = self._registry.make(self.user, self.virtual_host, name)
        self._registry.take(session)
        self._reported.discard(channel)
        self._assembler.accept(channel)
        self.sessions[channel] = session
        session.attach_to(self, channel)
        if is_new:
            self._shared.broker.events.emit(SessionCreated(), session)
        if is_asked:
            session.send_control("session.attached", name=name)
        session.attached()
        _LOG.debug('Client %s: session "%s" attached to channel %d', self.peer, shown_name(name), channel)

    def hand_over(self, session: ServerSession, code: DetachCode = DetachCode.SESSION_BUSY) -> None:
        """Detach a session that another connection takes over."""
        self._send_detached(session.channel, session.name, code)
        self._reported.add(session.channel)
        self._detach_session(session)

    def _detach(self, channel: int, name: bytes) -> None:
        session = self.sessions.get(channel)
        if session is None or session.name != name:
            self._send_detached(channel, name, DetachCode.NOT_ATTACHED)
            return
        self._send_detached(channel, name, DetachCode.NORMAL)
        self._detach_session(session)

    def _detached(self, channel: int, name: bytes) -> None:
        """The client has detached a session, on request or on its own."""
        session = self.sessions.get(channel)
        if session is not None and name in (b"", session.name):
            self._detach_session(session)
            self._reported.add(channel)  # the client knows; frames in flight may still arrive

    def _send_detached(self, channel: int, name: bytes, code: DetachCode) -> None:
        if self.phase is Phase.CLOSING:  # input that arrives meanwhile is not an error of the session
            return
        self.send_frame(control_frame(channel, "session.detached", name=name, code=code))
        _LOG.debug('Client %s: session "%s" detached: %s', self.peer, shown_name(name), detach_reason(code))

    def on_unattached(self, channel: int) -> None:
        """Handle input on a channel without a session: send `detached`, once."""
        if channel not in self._reported:
            self._reported.add(channel)
            self._send_detached(channel, b"", DetachCode.NOT_ATTACHED)

    def _detach_session(self, session: ServerSession) -> None:
        self.messages_sent += session.plain_transfers
        self.frames_sent += 3 * session.plain_transfers
        self.sessions.pop(session.channel, None)
        self.streams.pop(session.channel, None)
        assembler = self._assembler
        assert isinstance(assembler, CommandAssembler)
        begun = assembler.partial_message(session.channel)
        if begun is not None:
            self._registry.interrupted.keep(self.user, begun, self._now())
        self._assembler.drop(session.channel)
        session.detached()
        self._registry.detached(session, self._now())

    def end_session(self, session: ServerSession) -> None:
        """End a failed session: release what it holds, and ask the client to detach."""
        self._assembler.drop(session.channel)
        self._registry.end(session)
        session.detach()

    def begins(self, channel: int) -> bool:
        """As `Receiver.begins`."""
        check_is_open(self.phase)
        if channel in self.sessions:
            return self.sessions[channel].state is State.ATTACHED
        self.on_unattached(channel)
        return False

    def command(self, channel: int, payload: bytes, header: bytes | None, body: Content | None) -> None:
        """A command was received."""
        session = self.sessions.get(channel)
        if session is None:
            check_is_open(self.phase)
            self.on_unattached(channel)
            return
        if session.state is State.ATTACHED:
            try:
                do_command(session, payload, header, body)
            except DetachError as error:
                _LOG.info('Session "%s" of %s: %s', shown_name(session.name), session.user, error)
                self.hand_over(session, error.code)

    def run_of(self, channel: int, payload: bytes, header: bytes, bodies: Bodies, field: SizeField | None) -> int:
        """As `CommandReceiver.run_of`."""
        session = self.sessions.get(channel)
        if session is None or session.state is not State.ATTACHED:
            return 0
        return do_transfers(session, payload, header, bodies, field)

    # ---- interrupted messages ----

    def resume_message(self, resume_id: str) -> int:
        """The client resumes a message. Returns how many bytes of its content were received."""
        return self._registry.interrupted.resume(self.user, resume_id)

    def _take_interrupted(self, resume_id: str, body: Content | None) -> tuple[bytes, Content] | None:
        return self._registry.interrupted.take(self.user, resume_id, body)

    def too_large(self, channel: int, size: int) -> None:  # noqa: ARG002 – for other protocols
        """A message exceeds the limit."""
        session = self.sessions.get(channel)
        if session is not None:
            session.too_large()

    def stalled(self, channel: int, size: int) -> None:  # noqa: ARG002 – for other protocols
        """The sender of a message has stalled."""
        session = self.sessions.get(channel)
        if session is not None:
            session.stalled()


# ---- the log of frames ----

_NAMED: Final = {CONTROL: CONTROL_BY_CODE, COMMAND: COMMAND_BY_CODE}
_OTHERS: Final = {HEADER: "header", BODY: "body"}


def traced(data: bytes, at: int) -> TracedFrame | None:
    """The frame at a position, as `DecodeFrame`."""
    frame = decode_frame(data, at)
    if frame is None:
        return None
    size = len(frame.payload)
    return TracedFrame(FRAME.size + size, frame.channel, _kind(frame), size)


def _kind(frame: Frame) -> str:
    names = _NAMED.get(frame.segment_type)
    if names is None:
        return _OTHERS.get(frame.segment_type, f"segment of type {frame.segment_type}")
    if not frame.flags & FIRST_FRAME:
        return "continued"
    named = names.get(int.from_bytes(frame.payload[:2]))
    return f"unknown, code 0x{frame.payload[:2].hex()}" if named is None else named.name


class Amqp010Connections(Connections):
    """The AMQP 0-10 connections of one broker, with their shared state.

    Attributes:
        sessions: all sessions, which may outlive a connection.
    """

    def __init__(self, broker: Broker, authentication: Authentication) -> None:
        super().__init__(broker, authentication, broker.settings.max_message_bytes)
        self.sessions = SessionRegistry(broker)

    def connect(self, host: Host, peer: Peer) -> ServerConnection:
        """Create the machine of a new connection."""
        return ServerConnection(host, self, peer)

    def on_timer(self, now: float) -> None:
        """Run periodic work; `now` is in seconds of a monotonic clock."""
        super().on_timer(now)
        self.sessions.on_timer(now)

    def detached_sessions(self) -> list[DetachedSession]:
        """The sessions that wait to be attached again."""
        return self.sessions.list_detached(self.now)

    def user_deleted(self, user: str) -> None:
        """As `Connections.user_deleted`: detached sessions end."""
        self.sessions.end_detached_of(user)

    @property
    def unfinished_bytes(self) -> int:
        """Bytes received of incomplete and interrupted messages."""
        return self.budget.used + self.sessions.interrupted.used

    def close(self) -> None:
        """The broker stops: end all sessions."""
        self.sessions.close()
