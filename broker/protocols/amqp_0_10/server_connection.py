"""The broker's end of a connection: authenticates the client, negotiates limits, and attaches its sessions.

Output is bounded: a session stops delivering when `room` is used up, or when the socket's buffer is full (`can_send`),
and continues when the output was written. A larger message is sent as a stream (`server_session`).

Source: AMQP 0-10, connection and session.
"""

from __future__ import annotations

import platform
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Final

from qstore.broker.log.event_log import described
from qstore.broker.log.logs import log_of
from qstore.broker.model.broker import Broker
from qstore.broker.model.caller import Publisher
from qstore.broker.model.errors import ModelError
from qstore.broker.model.events import ClientConnect, ClientConnectFail, ClientDisconnect, Event, SessionCreated
from qstore.broker.model.message import Content
from qstore.broker.model.tick import Tick
from qstore.broker.protocols.amqp_0_10.assembly import MAX_AT_ONCE, FramingError
from qstore.broker.protocols.amqp_0_10.commands import do_command
from qstore.broker.protocols.amqp_0_10.connection import MAX_FRAME, MIN_MAX_FRAME, Connection, Phase
from qstore.broker.protocols.amqp_0_10.publishing import TimestampingReader, TransferReader, nothing_interrupted
from qstore.broker.protocols.amqp_0_10.server_session import ServerSession
from qstore.broker.protocols.amqp_0_10.session import DetachError, State, detach_reason, shown_name
from qstore.broker.protocols.amqp_0_10.session_registry import SessionRegistry
from qstore.broker.protocols.frame_log import FrameLog, TracedFrame, is_tracing
from qstore.broker.protocols.machine import ConnectionCounts, DetachedSession, Host, Peer, SessionAction
from qstore.broker.protocols.streams import Stream
from qstore.broker.security.authentication import Authentication, Link, LoginAttempt
from qstore.broker.security.sasl.exchange import Answer, Challenge, Outcome, PasswordCheck, Refused, Success
from qstore.broker.settings import BrokerSettings
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
from qstore.formats.values import EMPTY_MAP

_LOG: Final = log_of("Protocol")
_VIRTUAL_HOST: Final = "/"

ROOM: Final = 256 * 1024  # bytes sent to one connection before yielding to others: as much as is read from one at once
AT_ONCE: Final = 128  # transfers plus other frames processed for one connection, likewise


class ServerConnection(Connection[ServerSession]):
    """The broker's end.

    Args:
        host: the event loop and socket.
        sessions: all sessions of the broker.
        tick: work collected in the event loop tick.
        settings: the limits.
        authentication: the available mechanisms.
        link: what matters of the client's connection for authentication.
        now: seconds of a monotonic clock.
        refusal: the reason for refusing the connection, sent to the client; empty if it is allowed.
        peer: the client's address, for the log.

    Attributes:
        user: the authenticated user; empty before authentication.
        peer: as above.
        protocol, mechanism, client_properties, created_at: as of `Machine`.
        room: bytes that may be sent before yielding to other connections.
        can_send: whether the socket accepts messages.
        transfers: decodes received messages.
        streams: channel -> stream of its session's large messages.
    """

    protocol: ClassVar[str] = "AMQP 0-10"

    __slots__ = (
        "__weakref__", "_channel_max", "_host", "_is_announced", "_is_tuned", "_login", "_now", "_publisher",
        "_refusal", "_registry", "_reported", "_settings", "_tick", "can_send", "client_properties", "created_at",
        "peer", "room", "streams", "transfers", "user",
    )  # fmt: skip

    def __init__(
        self,
        host: Host,
        sessions: SessionRegistry,
        tick: Tick,
        settings: BrokerSettings,
        authentication: Authentication,
        *,
        link: Link,
        now: Callable[[], float],
        refusal: str = "",
        peer: str = "",
    ) -> None:
        super().__init__(settings.max_message_bytes, sessions.budget)
        self.room, self.can_send = ROOM, True
        self.streams: dict[int, Stream] = {}
        self._assembler.max_at_once, self._assembler.clock = AT_ONCE, now
        self._host, self._registry, self._tick, self._settings = host, sessions, tick, settings
        self._login = LoginAttempt(authentication, link)
        self._now, self.created_at = now, sessions.clock()
        self._refusal, self.peer = refusal, peer
        self.client_properties = EMPTY_MAP  # of the client
        self._is_tuned = self._is_announced = False
        self._channel_max = settings.max_channels - 1
        self.user = ""
        self._publisher = Publisher(peer, sessions.next_number())
        make_reader = TimestampingReader if sessions.has_timestamps else TransferReader
        self.transfers = make_reader(
            self._publisher,
            checks_user_ids=settings.auth,
            checks_publish=sessions.admission.checks_publish,
        )
        self.transfers.take_interrupted = self._take_interrupted
        self._reported: set[int] = set()  # channels without a session, after `detached` was sent for them

    # ---- output ----

    def has_output(self) -> None:
        """Schedule the output to be sent at the end of the tick."""
        self._tick.outputs[self] = None
        self._tick.schedule()

    def write_output(self) -> None:
        """Send the collected output; sessions that had no room continue in the next tick."""
        if self.streams and self.can_send:
            self._take_portions()
        data = self.take_output()
        if data:
            self._host.write(data)
        if self.room < ROOM:
            had_room = self.room > 0
            self.room = ROOM
            if not had_room and self.can_send:
                self._wake_sessions()

    def _take_portions(self) -> None:
        """Add a portion of the streams, in turn, to the output; the next tick continues with the next stream."""
        streams, left = self.streams, MAX_AT_ONCE
        share = MAX_AT_ONCE // len(streams)
        while streams and left > 0:
            channel = next(iter(streams))
            stream = streams.pop(channel)
            before = stream.frames
            left -= stream.take(self.output, share)
            self.frames_sent += stream.frames - before
            if stream.is_over:
                self.sessions[channel].stream_ended()
            else:
                streams[channel] = stream
        if streams:
            self.has_output()

    def pause_sending(self) -> None:
        """The socket's send buffer is full."""
        self.can_send = False
        for session in self.sessions.values():
            session.can_send = False

    def resume_sending(self) -> None:
        """The socket accepts output again."""
        if self.phase not in (Phase.CLOSING, Phase.CLOSED):
            self.can_send = True
            self._wake_sessions()
            if self.streams:
                self.has_output()

    @property
    def actor(self) -> str:
        """How the operational log names it."""
        return self._publisher.connection.actor

    @property
    def mechanism(self) -> str:
        """The SASL mechanism; empty before it is chosen."""
        return self._login.mechanism

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
        plain = sum(session.plain_transfers for session in self.sessions.values())
        return ConnectionCounts(
            frames_received=self._assembler.frames,
            frames_sent=self.frames_sent + 3 * plain,
            bytes_received=self.bytes_received,
            bytes_sent=self.bytes_sent,
            messages_received=self._assembler.transfers,
            messages_sent=self.transfers_sent + plain,
        )

    def watch_memory(self, *, is_short: bool) -> None:
        """As `Machine.watch_memory`."""
        self.transfers.watch_memory(is_short=is_short)

    def watch_disk(self, *, is_short: bool) -> None:
        """As `Machine.watch_disk`: AMQP 0-10 has no words for it."""

    def watch_rules(self) -> None:
        """As `Machine.watch_rules`."""
        self.transfers.watch_rules(checks_publish=self._registry.admission.checks_publish)

    def take_published(self) -> bool:
        """As `Machine.take_published`."""
        has_published, self.transfers.has_published = self.transfers.has_published, False
        return has_published

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

    def close(self, code: int = CloseCode.NORMAL, text: str = "") -> None:
        """As `Connection.close`; and no more messages are sent, as they would only be redelivered."""
        super().close(code, text)
        self.pause_sending()

    def _wake_sessions(self) -> None:
        for session in self.sessions.values():
            session.wake_all()

    def run(self, work: Coroutine[Any, Any, None], done: Callable[[ModelError | None], None]) -> None:
        """Run a coroutine; see `Host.run`."""
        self._host.run(work, done)

    def resume(self) -> None:
        """As `Connection.resume`, and notify the host."""
        super().resume()
        self._host.resumed()

    def dismantle(self) -> None:
        """As `Connection.dismantle`."""
        super().dismantle()
        self.transfers.take_interrupted = nothing_interrupted
        self._registry.admission.leave(self._publisher)
        if self._is_announced:
            self._emit(ClientDisconnect(self.peer, self.user, self.client_properties))

    def _emit(self, event: Event) -> None:
        self._registry.events.emit(event, self._publisher.connection)

    def on_closed(self) -> None:
        """The connection is closed or lost: its sessions wait to be attached again, or end."""
        if self.close_code not in (0, CloseCode.NORMAL):
            _LOG.info("Client %s: connection closed: %d %s", self.peer, self.close_code, self.close_text)
        elif self.close_text and not self.close_code:
            _LOG.info("Client %s: connection closed: %s", self.peer, self.close_text)
        for session in list(self.sessions.values()):
            self._detach_session(session)
        self._tick.outputs[self] = None
        self._tick.schedule()
        self.write_output()
        self._host.close()

    # ---- negotiation ----

    def on_header(self, header: bytes) -> None:
        """Answer the client's protocol header with ours; if it is not that of 0-10, close the connection."""
        self.output.append(PROTOCOL_HEADER)
        self.has_output()
        if header != PROTOCOL_HEADER:
            self.closed()
            return
        self.send_control(
            "connection.start",
            server_properties={
                "product": "qstore",
                "platform": f"Python {platform.python_version()}",
                "host": socket.gethostname(),
                "qpid.federation_tag": "",
            },
            mechanisms=self._login.offered,
            locales=("en_US",),
        )
        if not self._login.offered:
            told, logged = self._login.why_none()
            self._log_failed_login(logged)
            self.fail(CloseCode.CONNECTION_FORCED, told)

    def on_control(self, name: str, values: dict[str, Any]) -> None:
        """Handle a negotiation control of the client."""
        if name == "connection.start-ok" and not self.mechanism and not self.user:
            self.client_properties = values["client_properties"] or EMPTY_MAP
            self._handle_outcome(self._login.start(values["mechanism"] or "", values["response"]))
        elif name == "connection.secure-ok" and self.mechanism and not self.user:
            self._handle_outcome(self._login.step(values["response"] or b""))
        elif name == "connection.tune-ok" and self.user and not self._is_tuned:
            self._tune(values)
        elif name == "connection.open" and self._is_tuned and self.phase is Phase.NEGOTIATING:
            refusal = self._refusal or self._registry.admission.refusal(self._publisher)
            if refusal:  # not earlier: clients would report an authentication failure
                self._emit(ClientConnectFail(self.peer, self.user, refusal, self.client_properties))
                self.close(CloseCode.CONNECTION_FORCED, refusal)
                return
            if values["virtual_host"] not in (None, "", _VIRTUAL_HOST):
                why = f"there is one virtual host, {_VIRTUAL_HOST}, and the client is connected to it"
                self._registry.arguments.field_ignored(
                    f"Client {self.peer}", "virtual-host", values["virtual_host"], why
                )
            self.phase = Phase.OPEN
            self.send_control("connection.open-ok")
            self._emit(ClientConnect(self.peer, self.user, self.client_properties, self.protocol))
            self._is_announced = True
        else:
            raise FramingError(f"{name} is unexpected in this state")

    def _handle_outcome(self, outcome: Outcome) -> None:
        if isinstance(outcome, Challenge):
            self.send_control("connection.secure", challenge=outcome.data)
        elif isinstance(outcome, Success):
            self._authenticated(outcome.user_id)
        elif isinstance(outcome, PasswordCheck):
            self.pause()
            self._host.check_password(outcome, self._checked)
        elif isinstance(outcome, Refused):
            self._log_failed_login(outcome.reason)
            self.fail(CloseCode.CONNECTION_FORCED, outcome.reason)
        else:
            self._log_failed_login(outcome.reason)
            self.fail(CloseCode.CONNECTION_FORCED, "Authentication failed")

    def _checked(self, outcome: Answer) -> None:
        if self.phase is Phase.CLOSED:
            return
        self._handle_outcome(self._login.limited(outcome))
        self.resume()

    def _log_failed_login(self, reason: str) -> None:
        reason = self._login.failed(reason)
        text = "Client %s: Authentication failed: %s%s"
        self._registry.failed_logins.write(self._now(), text, self.peer, reason, described(self.client_properties))
        self._emit(ClientConnectFail(self.peer, "", reason, self.client_properties))

    def _authenticated(self, user: str) -> None:
        self.user = self._publisher.user = user
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
        elif name == "session.detach":
            self._detach(channel, values["name"] or b"")
        elif name == "session.detached":
            self._detached(channel, values["name"] or b"")
        else:
            raise FramingError(f"{name} is unexpected from a client")

    def _attach(self, channel: int, name: bytes, *, force: bool) -> None:
        if channel > self._channel_max:
            raise FramingError(f"channel {channel} is above the negotiated channel-max {self._channel_max}")
        attached = self.sessions.get(channel)
        if attached is not None and attached.name == name and attached.state is State.ATTACHED:
            attached.send_control("session.attached", name=name)  # rule idempotence
            return
        if attached is not None:
            self._send_detached(channel, name, DetachCode.TRANSPORT_BUSY)
            return
        session = self._registry.find(self.user, name)
        if session is not None and session.is_failed:  # it failed while it was detached
            self._registry.end(session)
            session = None
        if session is not None and session.transport is not None:
            if not force:
                self._send_detached(channel, name, DetachCode.SESSION_BUSY)
                return
            session.connection.hand_over(session)
            session = self._registry.find(self.user, name)
        is_new = session is None
        if session is None:
            session = self._registry.make(self.user, name)
        self._registry.take(session)
        self._reported.discard(channel)
        self.accept_commands(channel)
        self.sessions[channel] = session
        session.attach_to(self, channel)
        if is_new:
            self._registry.events.emit(SessionCreated(), session)
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
        if self.phase is Phase.CLOSING:  # what the client sends meanwhile is no error of its session
            return
        self.send_session_control(channel, "session.detached", name=name, code=code)
        _LOG.debug('Client %s: session "%s" detached: %s', self.peer, shown_name(name), detach_reason(code))

    def on_unattached(self, channel: int) -> None:
        """Input was received on a channel without a session: send `detached`, once."""
        if channel not in self._reported:
            self._reported.add(channel)
            self._send_detached(channel, b"", DetachCode.NOT_ATTACHED)

    def _detach_session(self, session: ServerSession) -> None:
        self.transfers_sent += session.plain_transfers
        self.frames_sent += 3 * session.plain_transfers
        self.sessions.pop(session.channel, None)
        self.streams.pop(session.channel, None)
        begun = self._assembler.partial_message(session.channel)
        if begun is not None:
            self._registry.interrupted.keep(self.user, begun, self._now())
        self.drop_commands(session.channel)
        session.detached()
        self._registry.detached(session, self._now())

    def end_session(self, session: ServerSession) -> None:
        """End a failed session: release what it holds, and ask the client to detach."""
        self.drop_commands(session.channel)
        self._registry.end(session)
        session.detach()

    def begins(self, channel: int) -> bool:
        """As `Connection.begins`."""
        if super().begins(channel):
            return self.sessions[channel].state is State.ATTACHED
        self.on_unattached(channel)
        return False

    def command(self, channel: int, payload: bytes, header: bytes | None, body: Content | None) -> None:
        """A command was received."""
        session = self.sessions.get(channel)
        if session is None:
            if self.phase is Phase.NEGOTIATING:
                raise FramingError("a command before the connection is open")
            self.on_unattached(channel)
            return
        if session.state is State.ATTACHED:
            try:
                do_command(session, payload, header, body)
            except DetachError as error:
                _LOG.info('Session "%s" of %s: %s', shown_name(session.name), session.user, error)
                self.hand_over(session, error.code)

    # ---- interrupted messages ----

    def resume_message(self, resume_id: str) -> int:
        """The client resumes a message. Returns how many bytes of its content were received."""
        return self._registry.interrupted.resume(self.user, resume_id)

    def _take_interrupted(self, resume_id: str, body: Content | None) -> tuple[bytes, Content] | None:
        return self._registry.interrupted.take(self.user, resume_id, body)

    def too_large(self, channel: int) -> None:
        """A message exceeds the limit."""
        session = self.sessions.get(channel)
        if session is not None:
            session.too_large()

    def stalled(self, channel: int) -> None:
        """The sender of a message has stalled."""
        session = self.sessions.get(channel)
        if session is not None:
            session.stalled()

    def on_timer(self, now: float) -> None:
        """As `Connection.on_timer`, and check incomplete messages."""
        if self._assembler.pending_bytes or self._assembler.is_paused:
            self._assembler.on_timer(now)
        super().on_timer(now)


_NAMED: Final = {CONTROL: CONTROL_BY_CODE, COMMAND: COMMAND_BY_CODE}
_OTHERS: Final = {HEADER: "header", BODY: "body"}


class TracedConnection(ServerConnection):
    """As `ServerConnection`, with the same arguments."""

    __slots__ = ("_incoming", "_outgoing")

    def __init__(
        self,
        host: Host,
        sessions: SessionRegistry,
        tick: Tick,
        settings: BrokerSettings,
        authentication: Authentication,
        *,
        link: Link,
        now: Callable[[], float],
        refusal: str = "",
        peer: str = "",
    ) -> None:
        super().__init__(host, sessions, tick, settings, authentication, link=link, now=now, refusal=refusal, peer=peer)
        self._incoming = FrameLog(f"RECV {self.peer}", traced, PROTOCOL_HEADER)
        self._outgoing = FrameLog(f"SENT {self.peer}", traced, PROTOCOL_HEADER)

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


class Amqp010Connections:
    """The AMQP 0-10 connections of one broker, with their shared state.

    Args:
        broker: the model.
        authentication: how clients log in.

    Attributes:
        sessions: all sessions.
    """

    def __init__(self, broker: Broker, authentication: Authentication) -> None:
        self._broker, self._authentication = broker, authentication
        self.sessions = SessionRegistry(broker)

    def connect(self, host: Host, peer: Peer) -> ServerConnection:
        """Create the machine of a new connection."""
        make = TracedConnection if is_tracing() else ServerConnection
        return make(
            host,
            self.sessions,
            self._broker.tick,
            self._broker.settings,
            self._authentication,
            link=peer.link,
            now=time.monotonic,
            refusal=peer.refusal,
            peer=peer.address,
        )

    def on_timer(self, now: float) -> None:
        """Run periodic work; `now` is in seconds of a monotonic clock."""
        self.sessions.on_timer(now)

    def detached_sessions(self) -> list[DetachedSession]:
        """The sessions that wait to be attached again."""
        return self.sessions.list_detached(time.monotonic)

    @property
    def unfinished_bytes(self) -> int:
        """Bytes received of incomplete and interrupted messages."""
        return self.sessions.budget.used + self.sessions.interrupted.used

    def close(self) -> None:
        """The broker stops: end all sessions."""
        self.sessions.close()
