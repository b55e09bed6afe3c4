"""An AMQP 1.0 connection, on top of the engine's (`protocols.broker_connection`).

    client                              broker
    AMQP 3 1 0 0                  ->                           SASL, as for every protocol (`security/authentication`)
                                  <-    AMQP 3 1 0 0, sasl-mechanisms
    sasl-init                     ->
                (sasl-challenge, sasl-response as often as the mechanism requires)
                                  <-    sasl-outcome
    AMQP 0 1 0 0                  ->
                                  <-    AMQP 0 1 0 0
    open                          ->                           the virtual host; whether it is admitted
                                  <-    open
    sessions on channels; empty frames while nothing else is sent
    close                         <->   close

A client may leave out SASL: it is anonymous then, if the broker offers that. It may also send everything that it would
send later without waiting for the answers (pipelined open).

**Virtual host.** A host name of `vhost:NAME` is that of a virtual host, as in RabbitMQ, and so is a host name that is
the name of one. Every other one, usually the name of the broker's own host, means the default one.

**Time-outs.** Each end says in open how long it waits for a frame. The broker waits for twice that time, and sends an
empty frame after half of what the client has said.

An error of the connection is sent with close, and all input is ignored until the client has answered, or some seconds
have passed.

Source: AMQP 1.0, part "transport", section 2.2 to 2.4, and part "security", section 5.3.
"""

from __future__ import annotations

import platform
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from qstore import __version__
from qstore.broker.log.logs import log_of
from qstore.broker.model.broker import Broker
from qstore.broker.model.caller import BROKER
from qstore.broker.model.errors import ModelError
from qstore.broker.model.events import SessionCreated
from qstore.broker.model.message import Content
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.topology.deletion import DELETED_AT_ONCE
from qstore.broker.model.virtual_host import VirtualHost
from qstore.broker.protocols.amqp_1_0.assembly import FrameAssembler, link_of
from qstore.broker.protocols.amqp_1_0.errors import ConditionError, Ends, condition_of, error_value
from qstore.broker.protocols.amqp_1_0.publishing import Publishing
from qstore.broker.protocols.amqp_1_0.resuming import MAX_UNSETTLED, ResumableLinks
from qstore.broker.protocols.amqp_1_0.session import IncomingRun, Session
from qstore.broker.protocols.assembly import ProtocolError
from qstore.broker.protocols.broker_connection import BrokerConnection, Connections, ignore_error
from qstore.broker.protocols.connection import NORMAL, Phase
from qstore.broker.protocols.frame_log import FrameLog, TracedFrame
from qstore.broker.protocols.machine import ConnectionLimits, Host, Peer, SessionAction
from qstore.broker.security.authentication import Authentication
from qstore.broker.security.sasl.exchange import Failure, Refused, Success
from qstore.broker.security.sasl.simple import ANONYMOUS
from qstore.formats.amqp_1_0.codes import Condition
from qstore.formats.amqp_1_0.composites import (
    CHOICES,
    PERFORMATIVES,
    SASL_FRAMES,
    Composite,
    encode_composite,
    read_type,
)
from qstore.formats.amqp_1_0.frames import (
    AMQP,
    AMQP_HEADER,
    FRAME,
    HEARTBEAT_FRAME,
    MIN_MAX_FRAME,
    SASL,
    SASL_HEADER,
    decode_frame,
    encode_frame,
)
from qstore.formats.amqp_1_0.neutral import neutral_map
from qstore.formats.amqp_1_0.values import Amqp10Error, Value
from qstore.formats.errors import FormatError
from qstore.formats.kernels.bodies import Bodies

if TYPE_CHECKING:
    from qstore.broker.federation.interlinks import Interlinks

_LOG: Final = log_of("Protocol")

MAX_FRAME: Final = 131_072
"""Maximum size of a frame that the broker accepts, as in AMQP 0-9-1."""

MAX_NEGOTIATING_FRAME: Final = 16_384
"""Likewise before the connection is open: a SASL response, or open with its properties."""

IDLE_SECONDS: Final = 60
"""How long the broker says that it waits for a frame."""

MIN_IDLE_SECONDS: Final = 1.0
"""The shortest time that a client may wait for a frame: the broker's timer runs twice a second."""

MAX_CHANNELS: Final = 2_047

_CODES: Final = CHOICES["sasl-code"]
_HOST: Final = "vhost:"
_MAX_CONDITION: Final = 128

OFFERED: Final = ("ANONYMOUS-RELAY", "DELAYED_DELIVERY")
"""Capabilities of the broker."""


class ServerConnection(BrokerConnection):
    """The broker's end.

    Args:
        host: the event loop and socket.
        shared: all connections of the protocol.
        peer: the client.

    Attributes:
        publishing: decodes messages.
        all_sessions: channel -> session, including those that wait for the client's end.
        container: the name of the client's container.
        max_frame: bytes of a frame that the client accepts.
        declared: transactions declared so far, in all sessions.
        is_emulating: whether clients are told that this is RabbitMQ.
        resumable: the links of all connections that can be resumed.
        interlinks: the domains to which links can lead; None without a network.
        now: seconds of a monotonic clock.
    """

    protocol: ClassVar[str] = "AMQP 1.0"
    has_layers: ClassVar[bool] = True
    protocol_header: ClassVar[bytes] = AMQP_HEADER

    __slots__ = (
        "_channel_max", "_has_opened", "_sasl", "all_sessions", "container", "declared", "interlinks", "is_emulating",
        "max_frame", "now", "publishing", "resumable",
    )  # fmt: skip

    def __init__(self, host: Host, shared: Amqp10Connections, peer: Peer) -> None:
        super().__init__(host, shared, peer, traced, b"")
        self.resumable, self.now, self.interlinks = shared.resumable, shared.now, shared.interlinks
        if self._received_log is not None:  # a protocol header is as a frame: there may be two
            self._received_log = FrameLog(f"RECV {self.peer}", traced, b"")
        broker = shared.broker
        self.all_sessions: dict[int, Session] = {}
        self.publishing = Publishing(
            self.publisher, checks_user_ids=broker.settings.auth, checks_publish=shared.admission.checks_publish
        )
        self.container = ""
        self.max_frame = MIN_MAX_FRAME
        self._channel_max = self.declared = 0
        self.is_emulating = bool(broker.settings.rabbitmq_version)
        self._sasl = False  # whether SASL is under way
        self._has_opened = False  # whether the broker has sent open

    def make_assembler(self) -> FrameAssembler:
        """As `Connection.make_assembler`."""
        shared = self._shared
        return FrameAssembler(self, MAX_NEGOTIATING_FRAME, shared.broker.settings.max_message_bytes, shared.budget)

    @property
    def assembler(self) -> FrameAssembler:
        """Its assembler."""
        assert isinstance(self._assembler, FrameAssembler)
        return self._assembler

    @property
    def host_name(self) -> str:
        """The name of this machine."""
        return socket.gethostname()

    # ---- as a machine ----

    @property
    def sessions(self) -> dict[int, Session]:
        """Channel -> session."""
        return {channel: session for channel, session in self.all_sessions.items() if session.is_open}

    @property
    def limits(self) -> ConnectionLimits:
        """As `Machine.limits`."""
        return ConnectionLimits(self._channel_max, self.max_frame, self.heartbeat)

    @property
    def senders(self) -> Mapping[int, Session]:
        """As `BrokerConnection.senders`."""
        return self.all_sessions

    @property
    def publish_checks(self) -> Publishing:
        """As `BrokerConnection.publish_checks`."""
        return self.publishing

    def watch_disk(self, *, is_short: bool) -> None:
        """As `Machine.watch_disk`; does nothing, since AMQP 1.0 has no such notification."""

    def force_close(self, text: str) -> None:
        """As `Machine.force_close`."""
        self.fail(ConditionError(Condition.CONNECTION_FORCED, text, Ends.CONNECTION))

    def set_timestamps(self, *, is_on: bool) -> None:
        """As `Machine.set_timestamps`; does nothing: the sender's sections never change."""

    def manage_session(self, channel: int, action: SessionAction) -> None:
        """As `Machine.manage_session`. A session cannot be detached: it ends."""
        session = self.all_sessions.get(channel)
        if session is not None and session.is_open and action is not SessionAction.SOLICIT:
            session.fail_with(ConditionError(Condition.RESOURCE_DELETED, "closed by management", Ends.SESSION))

    # ---- protocol headers ----

    def _take_header(self, data: bytes) -> bytes:
        data = self._header + data
        if len(data) < len(AMQP_HEADER):
            self._header = data
            return b""
        self._header = b""
        self.phase = Phase.NEGOTIATING
        self.on_header(data[: len(AMQP_HEADER)])
        return data[len(AMQP_HEADER) :]

    def on_header(self, header: bytes) -> None:
        """As `Connection.on_header`: that of SASL, or of AMQP without it."""
        if header == SASL_HEADER:
            self._begin_sasl()
        elif header == AMQP_HEADER:
            self._begin_without_sasl()
        else:
            self._answer_header(SASL_HEADER)

    def _answer_header(self, header: bytes) -> None:
        """Send the header that the client must begin with, and close the connection."""
        self.output.append(header)
        self.has_output()
        self.closed()

    def _begin_sasl(self) -> None:
        self.output.append(SASL_HEADER)
        self._sasl = True
        self._send_sasl("sasl-mechanisms", sasl_server_mechanisms=self.login.offered)
        refusal = self.begin_login()
        if refusal:
            self._end_sasl("sys-perm")

    def _begin_without_sasl(self) -> None:
        outcome = self.login.start(ANONYMOUS, None) if ANONYMOUS in self.login.offered else None
        if not isinstance(outcome, Success):
            self._answer_header(SASL_HEADER)
            return
        self.output.append(AMQP_HEADER)
        self.has_output()
        self.user = self.publisher.user = outcome.user_id

    def on_protocol_header(self, header: bytes) -> None:
        """As `FrameReceiver.on_protocol_header`: that of AMQP, after SASL."""
        if header != AMQP_HEADER or self._sasl or not self.user or self.phase is not Phase.NEGOTIATING:
            raise ConditionError(Condition.FRAMING_ERROR, "a protocol header is unexpected here", Ends.CONNECTION)
        self.output.append(AMQP_HEADER)
        self.has_output()

    # ---- SASL ----

    def _send_sasl(self, performative: str, /, **values: Any) -> None:
        self.send_frame(encode_frame(0, encode_composite(performative, values), SASL))

    def _on_sasl(self, performative: Composite) -> None:
        name, fields = performative
        if name == "sasl-init" and self._sasl and not self.login.mechanism:
            self.handle_outcome(self.login.start(fields["mechanism"], fields.get("initial_response")))
        elif name == "sasl-response" and self._sasl and self.login.mechanism:
            self.handle_outcome(self.login.step(fields["response"]))
        else:
            raise ConditionError(Condition.FRAMING_ERROR, f"{name} is unexpected in this state", Ends.CONNECTION)

    def send_challenge(self, data: bytes) -> None:
        """As `BrokerConnection.send_challenge`."""
        self._send_sasl("sasl-challenge", challenge=data)

    def send_limits(self) -> None:
        """As `BrokerConnection.send_limits`: the outcome; the limits are in open."""
        self._sasl = False
        self._send_sasl("sasl-outcome", code=_CODES["ok"])
        self.secure(self.negotiated)

    def refuse_login(self, outcome: Refused | Failure) -> None:
        """As `BrokerConnection.refuse_login`."""
        self.close_text = outcome.reason if isinstance(outcome, Refused) else "Authentication failed"
        self._end_sasl("sys-temp" if isinstance(outcome, Refused) else "auth")

    def _end_sasl(self, code: str) -> None:
        self._sasl = False
        self._send_sasl("sasl-outcome", code=_CODES[code])
        self.closed()

    # ---- input ----

    def performative(self, kind: int, channel: int, performative: Composite) -> None:
        """As `FrameReceiver.performative`."""
        try:
            self._do(kind, channel, performative)
        except ConditionError as error:
            self.fail(error)

    def _do(self, kind: int, channel: int, performative: Composite) -> None:
        name = performative.name
        if kind == SASL and name in SASL_FRAMES:
            if self.phase is Phase.NEGOTIATING:
                self._on_sasl(performative)
            return
        if kind != AMQP or name not in PERFORMATIVES:
            raise ConditionError(Condition.FRAMING_ERROR, f"a frame of type {kind} with {name}", Ends.CONNECTION)
        if self.phase is Phase.CLOSING:
            if name == "close":
                self.closed()
            return
        if name == "close":
            self._client_closes(performative.fields)
        elif name == "open":
            self._open(performative.fields)
        elif self.phase is not Phase.OPEN:
            raise ConditionError(Condition.ILLEGAL_STATE, f"{name} before open", Ends.CONNECTION)
        elif name == "begin":
            self._begin(channel, performative.fields)
        else:
            self._session_frame(channel, performative)

    def empty_frame(self, kind: int) -> None:
        """As `FrameReceiver.empty_frame`."""
        if kind != AMQP:
            raise ConditionError(Condition.FRAMING_ERROR, f"an empty frame of type {kind}", Ends.CONNECTION)

    def on_violation(self, error: ProtocolError | FormatError) -> None:
        """As `Connection.on_violation`."""
        if self.user and not self._sasl:
            self.fail(error)
        self.closed()

    @property
    def max_silence(self) -> float:
        """As `Connection.max_silence`: what the broker has said in open, twice."""
        return 2.0 * IDLE_SECONDS

    def on_silence(self, text: str) -> None:
        """As `Connection.on_silence`."""
        self.fail(ConditionError(Condition.RESOURCE_LIMIT_EXCEEDED, text, Ends.CONNECTION))
        self.closed()

    def begins(self, channel: int) -> bool:  # noqa: ARG002 – for other protocols
        """As `Receiver.begins`."""
        return True

    def takes(self, channel: int, transfer: dict[str, Any], *, is_first: bool) -> bool:
        """As `FrameReceiver.takes`."""
        if self.phase is not Phase.OPEN:
            if self.phase is Phase.NEGOTIATING:
                raise ConditionError(Condition.ILLEGAL_STATE, "transfer before open", Ends.CONNECTION)
            return False
        session = self._session(channel, "transfer")
        return session.is_open and self._guard(session, lambda: session.takes(transfer, is_first=is_first))

    def begin_run(
        self, channel: int, transfer: dict[str, Any], data: bytes, begin: int, end: int
    ) -> IncomingRun | None:
        """As `FrameReceiver.begin_run`."""
        session = self.all_sessions.get(channel)
        if session is None or not session.is_open or self.phase is not Phase.OPEN:
            return None
        return session.begin_run(transfer, data, begin, end)

    def transferred_run(self, incoming: IncomingRun, bodies: Bodies) -> int:
        """As `FrameReceiver.transferred_run`."""
        return incoming.session.transferred_run(incoming, bodies)

    def transferred(self, channel: int, transfer: dict[str, Any], content: Content) -> None:
        """As `FrameReceiver.transferred`."""
        session = self.all_sessions.get(channel)
        if session is not None and session.is_open and self.phase is Phase.OPEN:
            self._guard(session, lambda: session.transferred(transfer, content))

    def too_large(self, channel: int, size: int) -> None:
        """As `Receiver.too_large`; the number is that of a link (`key_of`)."""
        limit = self._shared.broker.settings.max_message_bytes
        text = f"the message has {size} bytes or more; the limit, also for all incomplete messages together, is {limit}"
        self._refuse_message(channel, ConditionError(Condition.MESSAGE_SIZE_EXCEEDED, text))

    def stalled(self, channel: int, size: int) -> None:
        """As `Receiver.stalled`; the number is that of a link."""
        text = f"the sender of an incomplete message of {size} bytes has stalled"
        self._refuse_message(channel, ConditionError(Condition.RESOURCE_LIMIT_EXCEEDED, text))

    def _refuse_message(self, key: int, error: ConditionError) -> None:
        channel, handle = link_of(key)
        session = self.all_sessions.get(channel)
        if session is not None and session.is_open:
            session.fail_link(handle, error)

    def _guard(self, session: Session, work: Any) -> bool:
        """Do something for a session, and end what an error concerns. Returns the result, or False."""
        try:
            return bool(work())
        except (ConditionError, ModelError) as error:
            if isinstance(error, ConditionError) and error.ends is Ends.CONNECTION:
                raise
            session.fail_with(error)
            return False

    # ---- open and close ----

    @property
    def _offered_channels(self) -> int:
        return min(self._shared.broker.settings.max_channels, MAX_CHANNELS)

    def _open(self, fields: dict[str, Any]) -> None:
        if not self.user or self._sasl or self.phase is not Phase.NEGOTIATING:
            raise ConditionError(Condition.ILLEGAL_STATE, "open is unexpected in this state", Ends.CONNECTION)
        self.container = fields["container_id"]
        if "properties" in fields:
            self.client_properties = neutral_map(fields["properties"])
        self.max_frame = min(fields["max_frame_size"], MAX_FRAME)
        idle = fields.get("idle_time_out")
        self._channel_max = min(fields["channel_max"], self._offered_channels)
        self._assembler.max_frame = MAX_FRAME
        if self.max_frame < MIN_MAX_FRAME:
            text = f"a max-frame-size of {self.max_frame}; the least is {MIN_MAX_FRAME}"
            raise ConditionError(Condition.INVALID_FIELD, text, Ends.CONNECTION)
        if idle and idle < 1000 * MIN_IDLE_SECONDS:
            text = f"an idle-time-out of {idle} ms; the least is {1000 * MIN_IDLE_SECONDS:.0f}"
            raise ConditionError(Condition.NOT_ALLOWED, text, Ends.CONNECTION)
        host = self._host_of(fields.get("hostname") or "")
        refusal = self.admit(host)
        if refusal:
            raise ConditionError(Condition.UNAUTHORIZED_ACCESS, refusal, Ends.CONNECTION)
        self._send_open()
        self.heartbeat = (idle or 0) // 1000
        self.phase = Phase.OPEN
        self.announce()

    def _host_of(self, name: str) -> VirtualHost:
        """The virtual host that a host name means. Raises ConditionError."""
        broker = self._shared.broker
        if not name.startswith(_HOST):
            return broker.virtual_hosts.find(name) or broker.default_host
        host = broker.virtual_hosts.find(name.removeprefix(_HOST))
        if host is None:
            text = f"there is no virtual host '{name.removeprefix(_HOST)}'"
            raise ConditionError(Condition.NOT_FOUND, text, Ends.CONNECTION)
        return host

    def _send_open(self) -> None:
        self._has_opened = True
        host = self.host_name
        emulated = self._shared.broker.settings.rabbitmq_version
        texts = {
            "product": "RabbitMQ" if emulated else "qstore",
            "version": emulated or __version__,
            "platform": f"Python {platform.python_version()}",
            "host": host,
        }
        self.send_performative(
            0,
            "open",
            container_id=host,
            max_frame_size=MAX_FRAME,
            channel_max=self._offered_channels - 1,
            idle_time_out=1000 * IDLE_SECONDS,
            offered_capabilities=OFFERED,
            properties=tuple((Value("symbol", name), Value("string", text)) for name, text in texts.items()),
        )

    def _client_closes(self, fields: dict[str, Any]) -> None:
        error = fields.get("error")
        text = "" if error is None else f"{error.fields['condition']}: {error.fields.get('description') or ''}"
        if not self._has_opened:
            self._send_open()
        self.begin_closing(NORMAL, text)
        self._end_sessions(is_orderly=True)
        self.send_performative(0, "close")
        self.closed()

    def fail(self, error: Exception) -> None:
        """Close the connection because of an error."""
        self.close(0, f"{condition_of(error)}: {error}", self.encoded("close", {"error": error_value(error)}))

    def send_close(self, code: int, text: str, cause: bytes) -> None:  # noqa: ARG002 – it is in the cause
        """As `Connection.send_close`; the cause is the encoded performative.

        RabbitMQ refuses an open without a frame. Its client for Python takes any close for the end of a connection that
        was open, and connects again without end.
        """
        if not self._has_opened:
            if self.is_emulating:
                self.closed()
                return
            self._send_open()
        self.send_frame(encode_frame(0, cause or encode_composite("close", {})))

    def begin_closing(self, code: int, text: str) -> None:
        """As `BrokerConnection.begin_closing`."""
        super().begin_closing(code, text)
        self.streams.clear()

    def close(self, code: int = NORMAL, text: str = "", cause: bytes = b"") -> None:
        """As `Connection.close`; its sessions end."""
        if self.phase not in (Phase.CLOSING, Phase.CLOSED):
            super().close(code, text, cause)
            self._end_sessions(is_orderly=False)

    def release(self) -> None:
        """As `BrokerConnection.release`."""
        self._end_sessions(is_orderly=False)

    def _end_sessions(self, *, is_orderly: bool) -> None:
        sessions = [each for each in self.all_sessions.values() if each.is_open]
        for channel in self.all_sessions:
            self._assembler_forgets(channel)
        self.all_sessions.clear()
        ending = self._ending(sessions, is_orderly=is_orderly)
        if sum(each.suspended_count for each in sessions) > MAX_UNSETTLED:
            for each in sessions:
                each.shut()
            self._shared.broker.tick.turns.do(self, ending)
        else:
            for _ in ending:
                pass

    @property
    def is_over(self) -> bool:
        """Whether its sessions have ended, or are ending, for good."""
        return self.phase in (Phase.CLOSING, Phase.CLOSED)

    def _ending(self, sessions: list[Session], *, is_orderly: bool) -> Iterator[None]:
        """End sessions, one in each turn, and then what the connection has kept of links that were detached."""
        for each in sessions:
            each.end(is_orderly=is_orderly)
            yield
        for number, queue in enumerate(self.resumable.end_holder(self, self.now()), 1):
            queue.keepers -= 1
            self.end_queue(queue)
            if number % DELETED_AT_ONCE == 0:
                yield

    def end_queue(self, queue: Queue, done: Callable[[ModelError | None], None] = ignore_error) -> bool:
        """A queue has lost its owner, with which it ends. Returns whether `done` is called, as `leave`."""
        if queue.auto_delete:
            return self.leave(queue, done)
        if queue.is_deleted or self.virtual_host.queues.get(queue.name) is not queue:
            return False
        self.run(self.virtual_host.topology.delete_queue(queue.name, caller=BROKER), done)
        return True

    def _assembler_forgets(self, channel: int) -> None:
        self.assembler.forget_channel(channel)

    # ---- sessions ----

    def _begin(self, channel: int, fields: dict[str, Any]) -> None:
        if channel >= self._channel_max or channel in self.all_sessions:
            text = f"channel {channel} is in use, or above the maximum of {self._channel_max - 1}"
            raise ConditionError(Condition.NOT_ALLOWED, text, Ends.CONNECTION)
        if "remote_channel" in fields:
            text = "begin with a remote channel: the broker begins no sessions"
            raise ConditionError(Condition.INVALID_FIELD, text, Ends.CONNECTION)
        session = self.all_sessions[channel] = Session(channel, self, self._shared.broker, fields)
        self._shared.broker.events.emit(SessionCreated(), session)
        session.begin()

    def _session(self, channel: int, what: str) -> Session:
        session = self.all_sessions.get(channel)
        if session is None:
            raise ConditionError(Condition.NOT_ALLOWED, f"{what} on channel {channel} without begin", Ends.CONNECTION)
        return session

    def _session_frame(self, channel: int, performative: Composite) -> None:
        session = self._session(channel, performative.name)
        if performative.name == "end":
            was_open = session.is_open
            if was_open:
                session.end(is_orderly=True)
                self.send_performative(channel, "end")
            del self.all_sessions[channel]
            self._assembler_forgets(channel)
            self.streams.pop(channel, None)
        elif session.is_open:
            self._guard(session, lambda: session.on(performative))

    # ---- output ----

    def send_performative(self, channel: int, performative: str, /, **values: Any) -> bool:
        """Send a frame without content. Returns whether the client accepts one of its size; if not, nothing is sent.

        Of an error or an outcome that is too large, less is sent.
        """
        encoded = self.encoded(performative, values)
        fits = len(encoded) + FRAME.size <= self.max_frame
        if fits:
            self.send_frame(encode_frame(channel, encoded))
        return fits

    def encoded(self, performative: str, values: dict[str, Any]) -> bytes:
        """A performative; shortened where that is possible and it exceeds the frames of the client."""
        encoded = encode_composite(performative, values)
        excess = len(encoded) + FRAME.size - self.max_frame
        if excess <= 0:
            return encoded
        for name in ("error", "state"):
            whole = values.get(name)
            if isinstance(whole, Composite):
                return encode_composite(performative, {**values, name: _shortened(whole, excess)})
        return encoded

    def send_heartbeat(self) -> None:
        """As `Connection.send_heartbeat`."""
        self.send_frame(HEARTBEAT_FRAME)


_CAN_BE_MISSED: Final = ("info", "message_annotations")


def _shortened(whole: Composite, excess: int) -> Composite:
    """An error with a shorter description, or an outcome with such an error; without all that the client can miss."""
    fields = {name: value for name, value in whole.fields.items() if name not in _CAN_BE_MISSED}
    for name, value in fields.items():
        if isinstance(value, Composite):
            fields[name] = _shortened(value, excess)
        elif name == "description" and isinstance(value, str):
            fields[name] = value.encode("utf-8", "replace")[:-excess].decode("utf-8", "ignore")
        elif name == "condition" and len(value) > _MAX_CONDITION:  # one of the client's own
            return Composite("error", {"condition": str(Condition.INTERNAL_ERROR)})
    return Composite(whole.name, fields)


# ---- the log of frames ----


def traced(data: bytes, at: int) -> TracedFrame | None:
    """The frame at a position, as `DecodeFrame`; a protocol header counts as one."""
    header = data[at : at + len(AMQP_HEADER)]
    if header.startswith(b"AMQP"):
        return TracedFrame(len(header), 0, f"protocol header {header.hex(' ')}", 0) if len(header) == 8 else None
    frame = decode_frame(data, at, MAX_FRAME)
    if frame is None:
        return None
    return TracedFrame(frame.size, frame.channel, _kind(frame.body), len(frame.body))


def _kind(body: bytes) -> str:
    if not body:
        return "empty"
    try:
        found = read_type(body, 0, len(body))[0]
    except Amqp10Error:
        found = None
    return "unknown" if found is None else found.name


class Amqp10Connections(Connections):
    """The AMQP 1.0 connections of one broker, with their shared state.

    Attributes:
        resumable: the links that can be resumed.
        interlinks: the domains to which links can lead; None without a network.
    """

    interlinks: Interlinks | None = None

    def __init__(self, broker: Broker, authentication: Authentication) -> None:
        super().__init__(broker, authentication, broker.settings.max_message_bytes + MAX_FRAME)
        self.resumable = ResumableLinks(broker)

    def on_timer(self, now: float) -> None:
        """As `Connections.on_timer`; ends suspended links whose time is over."""
        super().on_timer(now)
        self.resumable.on_timer(now)

    def user_deleted(self, user: str) -> None:
        """As `Connections.user_deleted`: suspended links end."""
        self.resumable.discard_of(user)

    def close(self) -> None:
        """As `Connections.close`: suspended links end."""
        super().close()
        self.resumable.close()

    def connect(self, host: Host, peer: Peer) -> ServerConnection:
        """Create the machine of a new connection."""
        return ServerConnection(host, self, peer)
