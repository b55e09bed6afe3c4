"""A session: what broker and client have in common.

A session is two streams of commands, one each way, numbered from 0. Numbers do not travel with the commands: both ends
count. A receiver tells its peer which commands are completed (`completed`); the peer answers which of them it knows to
be, when it is asked to, so that they need not be told again (`known-completed`).

    states      ATTACHING (attach sent) -> ATTACHED -> DETACHING (detach sent) -> DETACHED
    sending     `send` numbers a command; as long as the session may be resumed it is kept until the peer completes it
    receiving   `received` is the number of the next command. Which commands are completed, and which wait for the disk
                or for all before them, is kept by the model's `CompletionLedger`
    resuming    who attaches again says with command-point where its stream goes on; both replay what was not completed;
                a command whose number was seen before is passed over

Controls that the other end should not send, or that make no sense, raise FramingError; what only this session cannot
go on after raises `DetachError`.

Source: AMQP 0-10, session and execution.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Final, Protocol

from broker.model.completion import CompletionLedger, Runs
from broker.model.content import Buffer, Content
from broker.protocols.amqp_0_10.assembly import FramingError
from broker.protocols.amqp_0_10.large_frames import content_frames, is_large
from broker.protocols.amqp_0_10.replay import Replay, Sent
from broker.protocols.amqp_0_10.sequence import (
    Completed,
    Ranges,
    merge_ranges,
    unwrap,
    unwrap_completed,
    unwrap_ranges,
    wrap,
    wrap_ranges,
)
from formats.amqp_0_10.codes import DetachCode
from formats.amqp_0_10.commands import encode_command, encode_control
from formats.amqp_0_10.frames import encode_command_frames, encode_control_frame

_FOR_EVER: Final = 0xFFFFFFFF  # seconds: what a timeout that is left out asks for
_RANGE_BYTES: Final = 8  # of a range in a sequence-set
_CONTROL_BYTES: Final = 18  # of a frame with a control that has nothing but a sequence-set, without its ranges


class DetachError(FramingError):
    """The session cannot go on, and whoever has it detaches it; the connection can.

    Args:
        code: what the peer is told.
        text: what was wrong.
    """

    def __init__(self, code: DetachCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class State(Enum):
    """Where a session is between attach and detached."""

    ATTACHING = auto()
    ATTACHED = auto()
    DETACHING = auto()
    DETACHED = auto()


class Transport(Protocol):
    """What a session needs of the connection that it is attached to."""

    max_frame: int
    output: list[Buffer]
    frames_sent: int
    transfers_sent: int

    def has_output(self) -> None:
        """Something was put into `output`."""


class Session:
    """One end of a session.

    Args:
        name: its name.
        channel: the channel that it is attached by.
        transport: the connection.

    Attributes:
        name, channel, transport: as above; `transport` is None while it is detached.
        state: where it is.
        sent: number of the next command that is sent.
        encoded: how many of those that were sent were encoded by `send_payload`.
        received: number of the next command that comes.
        ledger: which of the commands received are completed, and which wait.
        completed: what the peer is told of it.
        timeout: seconds that it outlives its connection by, as agreed; 0 for not at all.
        is_resumable: whether what was sent is kept for a resumption.
    """

    __slots__ = (
        "_has_forgotten", "_has_point", "_is_known", "_replay", "_seen", "channel", "completed", "encoded",
        "is_resumable", "ledger", "name", "received", "sent", "state", "timeout", "transport",
    )  # fmt: skip

    def __init__(self, name: bytes, channel: int, transport: Transport | None) -> None:
        self.name, self.channel, self.transport = name, channel, transport
        self.state = State.ATTACHING
        self.sent = self.received = self.encoded = 0
        self.ledger = CompletionLedger()
        self.completed = Completed(self.ledger.done)
        self.timeout = 0
        self.is_resumable = False
        self._seen = 0  # all below had come before the peer began to send again
        self._replay = Replay()
        self._has_point = False  # whether the peer has said where its stream begins, or goes on
        self._is_known = False  # whether it has ever said so
        self._has_forgotten = False  # whether something that was sent could not be kept

    # ---- for those who make it what it is ----

    def on_peer_completed(self, first: int, last: int) -> None:
        """The peer has completed the commands `first` to `last` that were sent."""

    def on_peer_completed_ranges(self, ranges: list[tuple[int, int]]) -> None:
        """As `on_peer_completed`, for all ranges of one control, merged."""
        for first, last in ranges:
            self.on_peer_completed(first, last)

    def grant_timeout(self, seconds: int) -> int:
        """How long the session may outlive its connection, if the peer asks for `seconds`."""
        return seconds

    # ---- sending ----

    def send_control(self, control: str, /, **values: Any) -> None:
        """Send a control."""
        assert self.transport is not None
        self.transport.output.append(encode_control_frame(self.channel, encode_control(control, **values)))
        self.transport.frames_sent += 1
        self.transport.has_output()

    def send(self, name: str, /, *, sync: bool = False, **values: Any) -> int:
        """Send a command without content. Returns its number."""
        return self.send_payload(encode_command(name, sync=sync, **values))

    def send_payload(self, payload: bytes, header: bytes | None = None, body: Content | None = None) -> int:
        """Send a command that is encoded. Returns its number."""
        number = self.sent
        self.sent = number + 1
        self.encoded += 1
        if self.is_resumable:
            self._keep(Sent(number, payload, header, body))
        if self.transport is not None and self.state is State.ATTACHED:
            self._write(payload, header, body)
        return number

    def _write(self, payload: bytes, header: bytes | None, body: Content | None) -> None:
        transport = self.transport
        assert transport is not None
        transport.transfers_sent += header is not None
        if body is None or (isinstance(body, bytes) and not is_large(body)):
            frames = encode_command_frames(self.channel, payload, header, body, transport.max_frame)
            transport.output.extend(frames)
            transport.frames_sent += len(frames)
        else:
            for frame in content_frames(self.channel, payload, header, body, transport.max_frame):
                transport.output.extend(frame)
                transport.frames_sent += 1
        transport.has_output()

    def _keep(self, sent: Sent) -> None:
        if not self._replay.keep(sent):
            self._has_forgotten = True
            self.is_resumable = False

    # ---- receiving ----

    def begin_command(self) -> int:
        """A command has come: its number; -1 if it was seen before and is to be passed over.

        Raises:
            DetachError: the peer has not said where its stream begins, since the session was attached.
        """
        if not self._has_point:
            raise DetachError(DetachCode.UNKNOWN_IDS, "a command before command-point")
        number = self.received
        self.received = number + 1
        return -1 if number < self._seen else number

    def settle(self) -> Runs:
        """All commands that have come are completed, but for those that wait. Returns the runs that are held."""
        return self.ledger.settle(max(self.received, self._seen))

    def send_completed(self) -> None:
        """Tell the peer what is completed."""
        ranges = self._completed_ranges()
        if ranges:
            self.send_control("session.completed", commands=ranges, timely_reply=self.completed.wants_reply)

    def _completed_ranges(self) -> Ranges:
        """What is completed, as far as one frame holds it."""
        assert self.transport is not None
        most = (self.transport.max_frame - _CONTROL_BYTES) // _RANGE_BYTES
        return wrap_ranges(self.completed.ranges()[:most])

    # ---- controls ----

    def on_control(self, name: str, values: dict[str, Any]) -> None:
        """A control of this session has come, but for those that attach and detach.

        Raises:
            FramingError: it makes no sense.
        """
        _CONTROLS[name](self, values)

    def _on_command_point(self, values: dict[str, Any]) -> None:
        if values["command_offset"]:
            raise FramingError("command-point within a command: what was begun on another connection is not kept")
        given = values["command_id"] or 0
        expected = max(self.received, self._seen)  # it may have begun to send again, and not come as far as before
        number = unwrap(given, expected) if self._is_known else given
        if number > expected and self._is_known:
            raise FramingError(f"command-point {number} leaves out commands from {expected} on")
        if not self._is_known:
            self.ledger = CompletionLedger(number)
            self.completed = Completed(self.ledger.done)
            self._seen = number
        self._seen = max(self._seen, self.received)
        self._has_point = self._is_known = True
        self.received = number

    def _on_completed(self, values: dict[str, Any]) -> None:
        ranges = self._ranges_sent(values["commands"] or ())
        self._replay.forget(ranges)
        self.on_peer_completed_ranges(ranges)
        if values["timely_reply"]:
            self.send_control("session.known-completed", commands=values["commands"] or ())

    def _ranges_sent(self, ranges: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
        found = merge_ranges(unwrap_completed(ranges, self.sent))
        last = found[-1][1] if found else -1
        if last >= self.sent:
            raise FramingError(f"command {last} is said to be completed, and was never sent")
        return found

    def _on_confirmed(self, values: dict[str, Any]) -> None:
        self._replay.forget(self._ranges_sent(values["commands"] or ()))

    def _on_known_completed(self, values: dict[str, Any]) -> None:
        self.completed.peer_knows(unwrap_ranges(values["commands"] or (), self.received))

    def _on_expected(self, values: dict[str, Any]) -> None:
        """The peer has all that was sent before what it expects."""
        ranges = unwrap_ranges(values["commands"] or (), self.sent)
        if ranges:
            self._replay.forget_before(ranges[0][0])

    def _on_flush(self, values: dict[str, Any]) -> None:
        if values["expected"]:
            following = max(self.received, self._seen)
            expected = [(following, following)] if self._is_known else []  # none: the session is a new one
            self.send_control("session.expected", commands=wrap_ranges(expected))
        if values["confirmed"]:
            self.send_control("session.confirmed", commands=self._completed_ranges())
        if values["completed"]:
            ranges = self._completed_ranges()
            self.send_control("session.completed", commands=ranges, timely_reply=self.completed.wants_reply)

    def _on_gap(self, values: dict[str, Any]) -> None:
        """The peer will not send these: they count as received, and completed."""
        for first, last in unwrap_ranges(values["commands"] or (), self.received):
            if first > self.received:
                raise FramingError(f"a gap from {first} on, where command {self.received} is next")
            if last >= self.received:
                self.received = last + 1

    def _on_request_timeout(self, values: dict[str, Any]) -> None:
        self._on_timeout(values)
        self.send_control("session.timeout", timeout=self.timeout)

    def _on_timeout(self, values: dict[str, Any]) -> None:
        wanted = values["timeout"]
        self.timeout = self.grant_timeout(_FOR_EVER if wanted is None else wanted)
        if not self.timeout:
            self._replay.clear()
            self.is_resumable = False
        elif not self._has_forgotten:
            self.is_resumable = True

    # ---- attaching, detaching ----

    def attached(self) -> None:
        """Both ends are attached: say where the stream begins, or goes on, and send again what has to be."""
        self.state = State.ATTACHED
        following = self._replay.first_number(self.sent)
        self.send_control("session.command-point", command_id=wrap(following), command_offset=0)
        for sent in list(self._replay):
            self._send_gap(following, sent.number - 1)
            self._write(sent.payload, sent.header, sent.body)
            following = sent.number + 1
        self._send_gap(following, self.sent - 1)

    def _send_gap(self, first: int, last: int) -> None:
        """What was completed in between, if anything was: the stream has to count it all the same."""
        if first <= last:
            self.send_control("session.gap", commands=wrap_ranges([(first, last)]))

    def detach(self) -> None:
        """Ask the peer to detach."""
        if self.state is State.ATTACHED:
            self.send_control("session.detach", name=self.name)
            self.state = State.DETACHING

    def detached(self) -> None:
        """It is detached. What was held goes on being held."""
        self.state = State.DETACHED
        self.transport = None

    def reattach(self, channel: int, transport: Transport) -> None:
        """Another connection has it now."""
        self.channel, self.transport = channel, transport
        self.state = State.ATTACHING
        self._has_point = False


#: Control -> what a session does with it; attaching and detaching are the connection's.
_CONTROLS: Final[dict[str, Callable[[Session, dict[str, Any]], None]]] = {
    "session.command-point": Session._on_command_point,
    "session.completed": Session._on_completed,
    "session.confirmed": Session._on_confirmed,
    "session.known-completed": Session._on_known_completed,
    "session.expected": Session._on_expected,
    "session.flush": Session._on_flush,
    "session.gap": Session._on_gap,
    "session.request-timeout": Session._on_request_timeout,
    "session.timeout": Session._on_timeout,
}


def shown_name(name: bytes) -> str:
    """A session's name, for the log: text as a rule, but any bytes may be one."""
    return name.decode(errors="backslashreplace")


def detach_reason(code: int) -> str:
    """What a detached control says, in words."""
    try:
        return DetachCode(code).name.lower().replace("_", " ")
    except ValueError:
        return f"code {code}"
