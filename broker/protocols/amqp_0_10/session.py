"""A session: the part common to broker and client.

A session is two streams of commands, one in each direction, numbered from 0. The numbers are not sent with the
commands: both ends count. On the wire a command number is a u32 that wraps; here it is an int that does not: `unwrap`
maps a wire number to the one nearest to a known number, and `wrap` cuts it to 32 bits. A receiver reports to its peer
which commands are completed (`completed`); on request the peer acknowledges such reports (`known-completed`), so that
they need not be repeated.

    states      ATTACHING (attach sent) -> ATTACHED -> DETACHING (detach sent) -> DETACHED
    sending     `send` numbers a command; while the session is resumable it is kept until the peer completes it
                (`Replay`). The bytes before the last one are bounded; a session that exceeds the bound cannot be
                resumed
    receiving   `received` is the number of the next command. The model's `CompletionLedger` tracks which commands are
                completed, and which wait for the disk or for all before them; `Completed` tracks which completions
                the peer knows
    resuming    after attaching again, each end sends command-point, the number at which its stream continues, and
                replays commands that were not completed; a command whose number was received before is ignored

Invalid or unexpected controls raise FramingError; errors after which only this session cannot continue raise
`DetachError`.

Source: AMQP 0-10, session and execution; session.commands (sequence-set), RFC 1982.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from enum import Enum, auto
from typing import Any, Final, Protocol, TypeAlias

from qstore.broker.model.completion import CompletionLedger, Done, Runs
from qstore.broker.model.message import Buffer, Content
from qstore.broker.protocols.amqp_0_10.assembly import FramingError, content_frames
from qstore.broker.protocols.output import is_large
from qstore.formats.amqp_0_10.codes import DetachCode
from qstore.formats.amqp_0_10.commands import encode_command, encode_completed, encode_control
from qstore.formats.amqp_0_10.frames import encode_command_frames, encode_control_frame

Ranges: TypeAlias = tuple[tuple[int, int], ...]  # first and last, both inclusive

_BITS: Final = 0xFFFFFFFF
_HALF: Final = 0x80000000
_ASK_AFTER: Final = 0x10000  # completed commands after which known-completed is requested


def unwrap(number: int, near: int) -> int:
    """The command number nearest to `near` that equals `number` in its low 32 bits."""
    return near + ((number - near + _HALF) & _BITS) - _HALF


def unwrap_ranges(ranges: Iterable[tuple[int, int]], near: int) -> list[tuple[int, int]]:
    """As `unwrap`, for ranges. Ranges that end before they begin are ignored."""
    found = []
    for first, last in ranges:
        begin, end = unwrap(first, near), unwrap(last, near)
        if begin <= end:
            found.append((begin, end))
    return found


def unwrap_completed(ranges: Iterable[tuple[int, int]], near: int) -> list[tuple[int, int]]:
    """As `unwrap`, for session.completed, whose ranges may span more than half of all numbers."""
    ends = [(first, last, unwrap(last, near)) for first, last in ranges]
    return [(end - ((last - first) & _BITS), end) for first, last, end in ends]


def merge_ranges(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same numbers in ascending ranges that are not adjacent, whatever ranges the peer sent."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged


def wrap_ranges(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Ranges in their wire form."""
    return tuple([(first & _BITS, last & _BITS) for first, last in ranges])


def wrap(number: int) -> int:
    """A command number in its wire form."""
    return number & _BITS


class Completed:
    """The completions that a receiver has to report, because the peer does not know them.

    Args:
        done: the completed commands.

    Attributes:
        known: the peer knows that all below this number are completed.
    """

    __slots__ = ("_done", "known")

    def __init__(self, done: Done) -> None:
        self._done = done
        self.known = done.below

    def peer_knows(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Note that the peer knows these completions, which need not be reported again."""
        for first, last in ranges:
            if first <= self.known:
                self.known = max(self.known, min(last + 1, self._done.below))

    def ranges(self) -> list[tuple[int, int]]:
        """The completions to report."""
        done = self._done
        known = max(self.known, done.below - _HALF + 1)  # a longer range would be ambiguous
        below = [(known, done.below - 1)] if done.below > known else []
        return below + done.beyond

    @property
    def wants_reply(self) -> bool:
        """Whether to request known-completed, so that later reports are shorter."""
        return bool(self._done.beyond) or self._done.below - self.known > _ASK_AFTER


MAX_REPLAY_BYTES: Final = 16 * 1024 * 1024  # before the last command; beyond it, the session cannot be resumed


class Sent:
    """A command that was sent.

    Args:
        number: its command number.
        payload, header, body: its parts.

    Attributes:
        number, payload, header, body: as above.
    """

    __slots__ = ("body", "header", "number", "payload")

    def __init__(self, number: int, payload: bytes, header: bytes | None, body: Content | None) -> None:
        self.number, self.payload, self.header, self.body = number, payload, header, body

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return len(self.payload) + len(self.header or b"") + len(self.body or b"")


class Replay:
    """The replay buffer of one session, in order.

    Attributes:
        size: bytes held.
    """

    __slots__ = ("_sent", "size")

    def __init__(self) -> None:
        self._sent: deque[Sent] = deque()
        self.size = 0

    def __len__(self) -> int:
        return len(self._sent)

    def __iter__(self) -> Iterator[Sent]:
        return iter(self._sent)

    def first_number(self, following: int) -> int:
        """The number of the first command held; `following`, that of the next command, if there is none."""
        return self._sent[0].number if self._sent else following

    def keep(self, sent: Sent) -> bool:
        """Add a command. False if the earlier ones exceed the limit: then the buffer is cleared."""
        if self.size > MAX_REPLAY_BYTES:  # without this one: a single message of any size can be replayed
            self.clear()
            return False
        self._sent.append(sent)
        self.size += sent.size
        return True

    def clear(self) -> None:
        """Discard all commands."""
        self._sent.clear()
        self.size = 0

    def forget(self, ranges: list[tuple[int, int]]) -> None:
        """Discard commands that the peer has completed, in merged ranges."""
        kept = self._sent
        if not kept or not ranges:
            return
        if len(ranges) == 1 and ranges[0][0] <= kept[0].number:
            while kept and kept[0].number <= ranges[0][1]:
                self.size -= kept.popleft().size
            return
        self._sent = deque()
        index = 0
        for each in kept:
            while index < len(ranges) and ranges[index][1] < each.number:
                index += 1
            if index < len(ranges) and ranges[index][0] <= each.number:
                self.size -= each.size
            else:
                self._sent.append(each)

    def forget_before(self, number: int) -> None:
        """Discard all commands before `number`."""
        if self._sent:
            self.forget([(self._sent[0].number, number - 1)])


_UNLIMITED_TIMEOUT: Final = 0xFFFFFFFF  # seconds: the default of an absent timeout field
_RANGE_BYTES: Final = 8  # of a range in a sequence-set
_CONTROL_BYTES: Final = 18  # of a frame with a control whose only field is an empty sequence-set


class DetachError(FramingError):
    """The session cannot continue and must be detached; the connection can.

    Args:
        code: sent to the peer.
        text: the reason.
    """

    def __init__(self, code: DetachCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class State(Enum):
    """The states of a session between attach and detached."""

    ATTACHING = auto()
    ATTACHED = auto()
    DETACHING = auto()
    DETACHED = auto()


class Transport(Protocol):
    """What a session requires of its connection."""

    max_frame: int
    output: list[Buffer]
    frames_sent: int
    messages_sent: int

    def has_output(self) -> None:
        """Output was added to `output`."""


class Session:
    """One end of a session.

    Args:
        name: its name.
        channel: the channel that it is attached to.
        transport: the connection.

    Attributes:
        name, channel, transport: as above; `transport` is None while it is detached.
        state: its state.
        sent: number of the next command to send.
        encoded: number of commands sent with `send_payload`.
        received: number of the next command to receive.
        ledger: which received commands are completed, and which wait.
        completed: the completions to report to the peer.
        timeout: seconds that it is kept while detached, as negotiated; 0 for none.
        is_resumable: whether sent commands are kept for a resumption.
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
        self._seen = 0  # all commands below were received before the peer began to replay
        self._replay = Replay()
        self._has_point = False  # whether the peer has sent command-point since the session was attached
        self._is_known = False  # whether it has ever sent command-point
        self._has_forgotten = False  # whether a sent command could not be kept

    # ---- callbacks ----

    def on_peer_completed(self, first: int, last: int) -> None:
        """The peer has completed the commands `first` to `last` that were sent."""

    def on_peer_completed_ranges(self, ranges: list[tuple[int, int]]) -> None:
        """As `on_peer_completed`, for all ranges of one control, merged."""
        for first, last in ranges:
            self.on_peer_completed(first, last)

    def grant_timeout(self, seconds: int) -> int:
        """The timeout to grant, in seconds, if the peer requests `seconds`."""
        return seconds

    # ---- sending ----

    def send_control(self, control: str, /, **values: Any) -> None:
        """Send a control."""
        self.send_encoded_control(control, encode_control(control, **values))

    def send_encoded_control(self, control: str, payload: bytes) -> None:
        """Send an encoded control."""
        assert self.transport is not None
        del control
        self.transport.output.append(encode_control_frame(self.channel, payload))
        self.transport.frames_sent += 1
        self.transport.has_output()

    def send(self, command: str, /, *, sync: bool = False, **values: Any) -> int:
        """Send a command without content. Returns its number."""
        return self.send_payload(encode_command(command, sync=sync, **values))

    def send_payload(self, payload: bytes, header: bytes | None = None, body: Content | None = None) -> int:
        """Send an encoded command. Returns its number."""
        number = self.sent
        self.sent = number + 1
        self.encoded += 1
        if self.is_resumable:
            self._keep(Sent(number, payload, header, body))
        if self.transport is not None and self.state is State.ATTACHED:
            self._write(payload, header, body)
        return number

    def send_encoded(self, frames: Buffer, count: int) -> int:
        """Send messages that are encoded as frames of this channel. The session is attached, and not resumable.

        Args:
            frames: those of all of them (`encode_command_frames`).
            count: how many they are.

        Returns:
            The number of the first.
        """
        transport, number = self.transport, self.sent
        assert transport is not None
        assert not self.is_resumable
        self.sent = number + count
        self.encoded += count
        transport.output.append(frames)
        transport.frames_sent += 3 * count
        transport.messages_sent += count
        transport.has_output()
        return number

    def _write(self, payload: bytes, header: bytes | None, body: Content | None) -> None:
        transport = self.transport
        assert transport is not None
        transport.messages_sent += header is not None
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
        """Number a received command; -1 if it was received before and must be ignored.

        Raises:
            DetachError: the peer has not sent command-point since the session was attached.
        """
        if not self._has_point:
            raise DetachError(DetachCode.UNKNOWN_IDS, "a command was received before command-point")
        number = self.received
        self.received = number + 1
        return -1 if number < self._seen else number

    def begin_commands(self, count: int) -> int:
        """As `begin_command`, for that many: the number of the first. -1 if they must be numbered one by one."""
        number = self.received
        if not self._has_point or number < self._seen:
            return -1
        self.received = number + count
        return number

    def complete_received(self) -> Runs:
        """Complete all received commands that do not wait. Returns the runs that are held."""
        return self.ledger.complete_below(max(self.received, self._seen))

    def send_completed(self) -> None:
        """Report completions to the peer."""
        ranges = self._completed_ranges()
        if ranges:
            payload = encode_completed(ranges, timely_reply=self.completed.wants_reply)
            self.send_encoded_control("session.completed", payload)

    def _completed_ranges(self) -> Ranges:
        """The completions to report, as many as fit one frame."""
        assert self.transport is not None
        capacity = (self.transport.max_frame - _CONTROL_BYTES) // _RANGE_BYTES
        return wrap_ranges(self.completed.ranges()[:capacity])

    # ---- controls ----

    def on_control(self, name: str, values: dict[str, Any]) -> None:
        """Handle a control of this session, other than attaching and detaching.

        Raises:
            FramingError: it is not valid.
        """
        _CONTROLS[name](self, values)

    def _on_command_point(self, values: dict[str, Any]) -> None:
        if values["command_offset"]:
            raise FramingError("command-point with an offset: a command cannot be resumed in the middle")
        given = values["command_id"] or 0
        expected = max(self.received, self._seen)  # an earlier replay may have been cut off
        number = unwrap(given, expected) if self._is_known else given
        if number > expected and self._is_known:
            raise FramingError(f"command-point {number} skips commands from {expected} on")
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
            raise FramingError(f"command {last} was reported as completed, but never sent")
        return found

    def _on_confirmed(self, values: dict[str, Any]) -> None:
        self._replay.forget(self._ranges_sent(values["commands"] or ()))

    def _on_known_completed(self, values: dict[str, Any]) -> None:
        self.completed.peer_knows(unwrap_ranges(values["commands"] or (), self.received))

    def _on_expected(self, values: dict[str, Any]) -> None:
        """Forget all commands before the one that the peer expects: it has received them."""
        ranges = unwrap_ranges(values["commands"] or (), self.sent)
        if ranges:
            self._replay.forget_before(ranges[0][0])

    def _on_flush(self, values: dict[str, Any]) -> None:
        if values["expected"]:
            following = max(self.received, self._seen)
            expected = [(following, following)] if self._is_known else []  # empty: the session is new
            self.send_control("session.expected", commands=wrap_ranges(expected))
        if values["confirmed"]:
            self.send_control("session.confirmed", commands=self._completed_ranges())
        if values["completed"]:
            ranges = self._completed_ranges()
            payload = encode_completed(ranges, timely_reply=self.completed.wants_reply)
            self.send_encoded_control("session.completed", payload)

    def _on_gap(self, values: dict[str, Any]) -> None:
        """Count commands that the peer will not send as received and completed."""
        for first, last in unwrap_ranges(values["commands"] or (), self.received):
            if first > self.received:
                raise FramingError(f"a gap from {first} on, but command {self.received} is next")
            if last >= self.received:
                self.received = last + 1

    def _on_request_timeout(self, values: dict[str, Any]) -> None:
        self._on_timeout(values)
        self.send_control("session.timeout", timeout=self.timeout)

    def _on_timeout(self, values: dict[str, Any]) -> None:
        wanted = values["timeout"]
        self.timeout = self.grant_timeout(_UNLIMITED_TIMEOUT if wanted is None else wanted)
        if not self.timeout:
            self._replay.clear()
            self.is_resumable = False
        elif not self._has_forgotten:
            self.is_resumable = True

    # ---- attaching, detaching ----

    def attached(self) -> None:
        """Send command-point and replay commands: both ends are attached."""
        self.state = State.ATTACHED
        following = self._replay.first_number(self.sent)
        self.send_control("session.command-point", command_id=wrap(following), command_offset=0)
        for sent in list(self._replay):
            self._send_gap(following, sent.number - 1)
            self._write(sent.payload, sent.header, sent.body)
            following = sent.number + 1
        self._send_gap(following, self.sent - 1)

    def _send_gap(self, first: int, last: int) -> None:
        """Report commands that are not replayed because they were completed, so that the peer counts them."""
        if first <= last:
            self.send_control("session.gap", commands=wrap_ranges([(first, last)]))

    def detach(self) -> None:
        """Ask the peer to detach."""
        if self.state is State.ATTACHED:
            self.send_control("session.detach", name=self.name)
            self.state = State.DETACHING

    def detached(self) -> None:
        """The session is detached. Held commands stay held."""
        self.state = State.DETACHED
        self.transport = None

    def reattach(self, channel: int, transport: Transport) -> None:
        """Attach it to another connection."""
        self.channel, self.transport = channel, transport
        self.state = State.ATTACHING
        self._has_point = False


#: Control -> method; attaching and detaching are handled by the connection.
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
    """A session's name for the log: usually text, but any bytes are allowed."""
    return name.decode(errors="backslashreplace")


def detach_reason(code: int) -> str:
    """The name of a detach code, for the log."""
    try:
        return DetachCode(code).name.lower().replace("_", " ")
    except ValueError:
        return f"code {code}"
