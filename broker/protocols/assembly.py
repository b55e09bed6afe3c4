"""From bytes to frames to contents: the assembler common to all protocols, which add their frame layouts.

    input      the bytes of one read are split into frames; those of a command with content are assembled
    frame      a command that is one frame is passed on at once (`CommandReceiver.frame`)
    message    the frames of most messages are all in one read: they are sliced directly from its buffer
    partial    all other commands are collected, one for each channel; content stays in the pieces in which it arrived
               (`broker.model.message`)

Most messages of a publisher have the same command, and headers and bodies of the same sizes. Two such messages make a
pattern, and later ones are recognized by comparing bytes, without decoding their frames. Where commands alternate, as
when each hundredth one of a publisher asks for its completion, the pattern before the last one is still known:

    begin (fixed) | header (fixed size, may start in the begin) | middle (fixed) | body | end byte

Several that follow each other with the same header as well, but for the size of the body, are a run, and passed on
together (`CommandReceiver.run_of`), whatever the sizes of their bodies.

An error may end a channel while frames for it are in flight: between `drop` and `accept` those with content are
discarded.

**Time.** A connection processes the input of one read, or the rest of it, for `MAX_SECONDS` at a time; what is left
waits until other connections were served. The clock is read once for every `FRAMES_PER_LOOK` frames of the hot path,
and after every other frame, which may be expensive: a declaration, or a message unlike the previous one, whose route
may be new.

**Memory.** The memory of incomplete messages is limited for each message and for all connections of a protocol together
(`Budget`). A message for which there is no room waits: its connection is not read until others are complete. To bound
these waits:

    reserve      messages of more than an eighth of the limit leave an eighth of it to smaller ones, unless the limit
                 is hardly larger than one message may be
    deadlock     a message is refused if it could never get room, because all connections with incomplete messages wait
    stalled      a message is refused if nothing of it arrives for `STALLED_SECONDS` or, while others wait, less than
                 `PROGRESS` bytes in `CONTENDED_SECONDS`; its bytes are then free for others
    timeout      a message that has waited for `STALLED_SECONDS` is refused
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar, cast

from qstore.broker.model.counters import MessageSizes
from qstore.broker.model.run import MAX_BODY, MAX_RUN, MIN_RUN
from qstore.formats.kernels import find_run
from qstore.formats.kernels.bodies import Bodies, SizeField

if TYPE_CHECKING:
    from qstore.broker.model.message import Content
    from qstore.broker.model.tick import Turns

MAX_SECONDS: Final = 0.010
"""Seconds that a connection processes input before it yields to others, after the current command."""

FRAMES_PER_LOOK: Final = 8

LONG_HEADER: Final = 1024
"""Bytes: after a message with a longer header the time is checked. One of 40 kB may take 9 ms (`bench_turns`)."""

STALLED_SECONDS: Final = 60.0
CONTENDED_SECONDS: Final = 10.0
PROGRESS: Final = 64 * 1024

_SMALL: Final = 8  # a small message has at most this fraction (1/8) of the limit
_RESERVED: Final = 8  # this fraction (1/8) of the limit is reserved for small messages


class ProtocolError(Exception):
    """The peer has sent input that is not valid, or not valid in this state."""


# ---- the memory of incomplete messages ----


class Holder(Protocol):
    """Holds incomplete messages of one connection."""

    def found_room(self) -> None:
        """Continue a message that has waited: there may be room now."""


class Budget:
    """A limit of bytes for the incomplete messages of many connections.

    Args:
        max_bytes: the limit.
        largest: bytes that one message may have, for which there is always room; None for the limit.
        turns: resumes waiting connections; None to refuse messages without room instead of waiting.

    Attributes:
        max_bytes: as above.
        used: bytes in use.
        waiting: holder that waits for room -> since when, by the clock of `is_overdue`; 0.0 before its first call.
    """

    __slots__ = ("_holders", "_max_large", "_turns", "max_bytes", "used", "waiting")

    def __init__(self, max_bytes: int, largest: int | None = None, turns: Turns | None = None) -> None:
        self.max_bytes, self._turns = max_bytes, turns
        largest = max_bytes if largest is None else min(largest, max_bytes)
        self._max_large = max(max_bytes - max_bytes // _RESERVED, largest)
        self.used = 0
        self._holders: dict[Holder, None] = {}
        self.waiting: dict[Holder, float] = {}

    def has_room(self, size: int, of_message: int) -> bool:
        """Whether there is room for `size` bytes of a message that has, or will have, `of_message` bytes."""
        limit = self.max_bytes if of_message <= self.max_bytes // _SMALL else self._max_large
        return self.used + size <= limit

    def holds(self, holder: Holder, size: int) -> None:
        """Note that a connection's incomplete messages now have `size` bytes."""
        if size > 0:
            self._holders[holder] = None
        elif holder in self._holders:
            del self._holders[holder]

    def freed(self) -> None:
        """Resume those that wait for room: bytes that were in use are free."""
        if self.waiting and self._turns is not None and not self._turns.has(self):
            self._turns.do(self, self._resume_waiting())

    def _resume_waiting(self) -> Iterator[None]:
        yield  # not at once: the caller that freed them is in the middle of an operation
        for holder in list(self.waiting):
            if holder in self.waiting:
                holder.found_room()  # it keeps waiting if there is not enough
                yield

    def may_wait(self, holder: Holder) -> bool:
        """Have a holder wait for room. False if none would ever be freed: the message must be refused."""
        if self._turns is None or all(each is holder or each in self.waiting for each in self._holders):
            self.waiting.pop(holder, None)
            return False
        self.waiting.setdefault(holder, 0.0)
        return True

    def end_wait(self, holder: Holder) -> None:
        """End the wait of a holder that has found room."""
        self.waiting.pop(holder, None)

    def is_overdue(self, holder: Holder, now: float) -> bool:
        """Whether it has waited for too long."""
        since = self.waiting.get(holder)
        if since is None:
            return False
        if not since:
            self.waiting[holder] = now
        return 0 < since < now - STALLED_SECONDS

    def forget(self, holder: Holder) -> None:
        """A connection is closed, or no longer waits."""
        self._holders.pop(holder, None)
        self.waiting.pop(holder, None)
        self.freed()


class Partial:
    """An incomplete command with its content.

    Attributes:
        since: when it reached its marked size; 0.0 before the first check.
    """

    __slots__ = ("_marked", "since")

    def __init__(self) -> None:
        self._marked, self.since = 0, 0.0

    @property
    @abstractmethod
    def held_bytes(self) -> int:
        """Bytes of its frames that are held."""

    @property
    @abstractmethod
    def known_size(self) -> int:
        """Bytes of its content, as far as the number is known."""

    def has_stalled(self, now: float, budget: Budget, *, is_read: bool) -> bool:
        """Whether its sender has stalled. `is_read`: whether its connection is being read."""
        size, wanted, limit = self.held_bytes, 1, STALLED_SECONDS
        if budget.waiting and size > PROGRESS:
            wanted, limit = PROGRESS, CONTENDED_SECONDS
        if not self.since or not is_read or size - self._marked >= wanted:
            self._marked, self.since = size, now
            return False
        return now - self.since > limit


# ---- the assembler ----


class Receiver(Protocol):
    """Receives the output of an `Assembler`."""

    def begins(self, channel: int) -> bool:
        """A command begins whose frames are not complete. Returns whether it is accepted; otherwise it is discarded.

        Raises:
            ProtocolError: it is not valid now.
        """

    def too_large(self, channel: int, size: int) -> None:
        """A message of `size` bytes exceeds a limit; it was discarded, and later content on the channel will be."""

    def stalled(self, channel: int, size: int) -> None:
        """Likewise, a message whose sender has stalled."""

    def pause(self) -> None:
        """Stop reading: a message waits for room."""

    def unpause(self) -> None:
        """Continue reading."""


class CommandReceiver(Receiver, Protocol):
    """Likewise, in a protocol of commands with a header and a content (0-10 and 0-9-1)."""

    def frame(self, channel: int, payload: bytes) -> None:
        """A frame was received that is complete in itself: a control of 0-10, a method without content of 0-9-1."""

    def command(self, channel: int, payload: bytes, header: bytes | None, body: Content | None) -> None:
        """A command was received, with its header and its content; None if it has none."""

    def run_of(self, channel: int, payload: bytes, header: bytes, bodies: Bodies, field: SizeField | None) -> int:
        """Commands were received that differ only in their contents (`model.run`).

        Args:
            channel: their channel.
            payload: their command.
            header: the header of the first.
            bodies: their contents.
            field: the field in the header that gives the size of the content, if there is one.

        Returns:
            How many of them were taken; if it is 0, the first is passed to `command`.
        """


class Pattern:
    """Messages on one channel with the same command, and with headers and bodies of the same sizes.

    Attributes:
        start: the fixed bytes before any that may differ in a run; empty without a pattern.
        begin: their fixed first bytes.
        middle: the fixed bytes between header and body.
        end_byte: the last byte of each message; 0 if it is not fixed.
        payload: their command.
        header: the header of the message that made it.
        channel: their channel.
        header_at, header_end, body_at, body_end, size: places and the end of a message, relative to its begin.
        field: the field of the header that gives the size of the body, if there is one.
        fields: all fields before the body that give its size.
    """

    __slots__ = (
        "begin", "body_at", "body_end", "channel", "end_byte", "field", "fields", "header", "header_at", "header_end",
        "middle", "payload", "size", "start",
    )  # fmt: skip

    def __init__(self) -> None:
        self.start = self.begin = self.middle = self.payload = self.header = b""
        self.header_at = self.header_end = self.body_at = self.body_end = self.size = 0
        self.channel = self.end_byte = 0
        self.field: SizeField | None = None
        self.fields: tuple[SizeField, ...] = ()


ReceiverT = TypeVar("ReceiverT", bound=Receiver)
PartialT = TypeVar("PartialT", bound=Partial)


class Assembler(Generic[ReceiverT, PartialT]):
    """Assembles the input of one connection.

    Args:
        receiver: receives commands.
        max_frame: maximum size of a frame in bytes; set by the connection when it is negotiated.
        max_body: maximum size in bytes of a body, or of all incomplete commands (see the subclass).
        budget: limits incomplete messages over all connections; None: `max_body` limits those of this connection.
        least: bytes of the smallest frame.

    Attributes:
        max_frame, max_body: as above.
        sizes: counts messages by their sizes, when these change, and by `count_sizes`.
        uncounted: messages that are not in `sizes` yet.
        max_at_once: messages plus other frames processed per call, before yielding to other connections.
        clock: seconds of a monotonic clock, for the time that a call may take; by default it does not advance.
        is_paused: input is buffered until `resume`.
        is_behind: input is left after a full batch, or when its time was used up: `resume` must be called soon.
        frames, messages: frames received, and messages; updated at the end of each read.
        pending_bytes: bytes of incomplete commands.
    """

    __slots__ = (
        "_budget", "_dropping", "_is_expensive", "_last_sizes", "_least", "_other", "_partial", "_pattern", "_receiver",
        "_rest", "_size", "clock", "frames", "is_behind", "is_paused", "max_at_once", "max_body", "max_frame",
        "messages", "pending_bytes", "sizes", "uncounted",
    )  # fmt: skip
    __deletable__ = ("_receiver",)  # mypyc must know what `del` removes

    def __init__(self, receiver: ReceiverT, max_frame: int, max_body: int, budget: Budget | None, least: int) -> None:
        self._receiver, self._least = receiver, least
        self._budget = Budget(max_body) if budget is None else budget
        self.max_frame, self.max_body = max_frame, max_body
        self.sizes = MessageSizes()
        self._size = self.uncounted = 0
        self.max_at_once = sys.maxsize
        self.clock: Callable[[], float] = _no_clock
        self.is_paused = self.is_behind = self._is_expensive = False
        self.pending_bytes = self.frames = self.messages = 0
        self._rest = b""
        self._pattern, self._other = Pattern(), Pattern()
        self._last_sizes = (0, 0)  # of the first frames of the last message that was read frame by frame
        self._partial: dict[int, PartialT] = {}
        self._dropping: set[int] = set()  # channels; none of them is in _partial

    @abstractmethod
    def _take(self, data: bytes, at: int, end: int) -> int:
        """Take a frame, or a message, that begins at a position. Returns where it ends; 0 if it must wait.

        Sets `_is_expensive`, except for frames of the hot path, such as acknowledgements.

        Raises:
            ProtocolError, FormatError: it is not valid.
        """

    def receive(self, data: bytes) -> None:
        """Process bytes from the socket.

        Raises:
            ProtocolError, FormatError: they are not valid; the rest of the stream cannot be parsed.
        """
        if self._rest:
            data = self._rest + data
            self._rest = b""
        end, least = len(data), self._least
        at = taken = messages = alike = 0  # `alike`: those of the pattern that are not in `messages` yet
        receiver = cast(CommandReceiver, self._receiver)  # used with a pattern, which only its protocols set
        pattern, clock = self._pattern, self.clock
        until, look_at = clock() + MAX_SECONDS, 1  # when the time is used up; the frame before which to check
        last = b""  # the header of a message
        run_at, skipped = 0, 1  # where a run may begin, and how many messages are read singly after one was not taken
        self.is_behind = False
        for taken in range(self.max_at_once):
            if end - at < least or self.is_paused:
                break
            if taken >= look_at:
                if clock() >= until:
                    self.is_behind = True
                    break
                look_at = taken + FRAMES_PER_LOOK
            # Slices are compared, since compiled `startswith` at a place takes eight times as many instructions.
            start = pattern.start
            is_known = bool(start) and data[at : at + len(start)] == start
            if not is_known and self._other.start and data.startswith(self._other.start, at):
                if alike:
                    self._note(pattern.body_end - pattern.body_at, alike)
                    messages, alike = messages + alike, 0
                pattern, is_known = self._swap_patterns(), True
            if is_known and pattern.channel not in self._partial:
                following = at + pattern.size
                header_end = at + pattern.header_end
                begin, middle = pattern.begin, pattern.middle
                is_alike = (
                    following <= end
                    and data[at : at + len(begin)] == begin
                    and data[header_end : header_end + len(middle)] == middle
                    and (not pattern.end_byte or data[following - 1] == pattern.end_byte)
                )
                if at >= run_at and (not is_alike or (following < end and data.startswith(pattern.start, following))):
                    run_at = at + 1
                    bodies = self._find_run(data, at, end)
                    if bodies is not None:
                        count = bodies.count
                        if count >= MIN_RUN:
                            header = data[at + pattern.header_at : header_end]
                            count = self._pass_run(data, header, bodies)
                            if count:
                                at += bodies.start(count) - pattern.body_at
                                messages += count
                                if bodies.is_even:
                                    self._note(bodies.largest, count)
                                else:
                                    self.sizes.add_run(bodies, count)
                                last, look_at, skipped = header, 0, 1
                                continue
                            count, skipped = min(skipped, bodies.count), 2 * skipped
                        run_at = at + bodies.start(count) - pattern.body_at
                if is_alike:
                    header = data[at + pattern.header_at : header_end]
                    body = data[at + pattern.body_at : at + pattern.body_end]
                    if header != last or len(header) > LONG_HEADER:  # its route may be new, or its headers are decoded
                        last, look_at = header, 0
                    at = following
                    alike += 1
                    receiver.command(pattern.channel, pattern.payload, header, body)
                    continue
            if alike:  # the pattern may become another one
                self._note(pattern.body_end - pattern.body_at, alike)
                messages, alike = messages + alike, 0
            following = self._take(data, at, end)
            if not following:
                break
            at, pattern = following, self._pattern
            if self._is_expensive:
                self._is_expensive, look_at = False, 0
        else:
            taken = self.max_at_once
            self.is_behind = end - at >= least
        if alike:
            size = pattern.body_end - pattern.body_at
            if size == self._size:
                self.uncounted += alike
            else:
                self._note(size, alike)
            messages += alike
        self.frames += taken + 2 * messages  # `taken` counts a message once, and it has three frames
        self.messages += messages
        self._rest = data[at:] if at < end else b""

    def _note(self, size: int, count: int) -> None:
        """Note messages of a size: they are counted once another size comes, or a timer does."""
        if size != self._size:
            self.count_sizes()
            self._size = size
        self.uncounted += count

    def count_sizes(self) -> None:
        """Count in `sizes` what is not there yet."""
        if self.uncounted:
            self.sizes.add(self._size, self.uncounted)
            self.uncounted = 0

    def _is_repeated(self, command: int, header: int) -> bool:
        """Whether a message read frame by frame has the frame sizes of the previous one, so that the next may, too.

        The sizes of their bodies may differ.
        """
        sizes = (command, header)
        is_repeated = sizes == self._last_sizes
        self._last_sizes = sizes
        return is_repeated

    def _swap_patterns(self) -> Pattern:
        """Make the other pattern the current one, and return it."""
        self._pattern, self._other = self._other, self._pattern
        return self._pattern

    def _find_run(self, data: bytes, at: int, end: int) -> Bodies | None:
        """Find messages that differ only in their bodies, from a position on; None if there is none."""
        pattern = self._pattern
        if at + pattern.body_at >= end:
            return None
        prefix, end_byte = data[at : at + pattern.header_end] + pattern.middle, pattern.end_byte
        largest = min(MAX_BODY, self.max_frame - self._least, self.max_body)
        starts, smallest, largest = find_run(data, at, end, prefix, pattern.fields, end_byte, largest, MAX_RUN)
        if not starts:
            return None
        return Bodies(data, at, starts, pattern.body_at + (1 if end_byte else 0), smallest, largest)

    def _pass_run(self, data: bytes, header: bytes, bodies: Bodies) -> int:
        """Pass on messages that differ only in their bodies. Returns how many of them were taken."""
        pattern = self._pattern
        if 2 * bodies.start(bodies.count) < len(data):  # they must not keep much more than their own bytes in memory
            bodies = bodies.copy(0, bodies.count)
        return cast(CommandReceiver, self._receiver).run_of(
            pattern.channel, pattern.payload, header, bodies, pattern.field
        )

    def convert_rest(self, convert: Callable[[bytes], bytes]) -> None:
        """Convert the bytes that were read and not processed."""
        self._rest = convert(self._rest)

    def resume(self) -> None:
        """Continue after a pause. Raises as `receive` does."""
        self.is_paused = False
        self.receive(b"")

    # ---- channels ----

    def drop(self, channel: int) -> None:
        """A channel is ending: discard its incomplete command, and its content from now on."""
        partial = self._partial.pop(channel, None)
        if partial is not None:
            self._count(-partial.held_bytes)
        self._dropping.add(channel)

    def accept(self, channel: int) -> None:
        """A channel is opened: accept its content. There must be no incomplete command."""
        assert channel not in self._partial
        self._dropping.discard(channel)

    def close(self) -> None:
        """Discard all incomplete commands."""
        for channel in list(self._partial):
            self.drop(channel)
        self._dropping.clear()
        self.count_sizes()
        self._rest = b""
        self._budget.forget(self)

    def drop_receiver(self) -> None:
        """Drop the reference to the receiver, after `close`: it breaks a reference cycle."""
        del self._receiver

    # ---- the budget ----

    def _count(self, size: int) -> None:
        self.pending_bytes += size
        budget = self._budget
        budget.used += size
        budget.holds(self, self.pending_bytes)
        if size < 0:
            budget.freed()

    def _refuse(self, channel: int, size: int) -> None:
        self.drop(channel)
        self._receiver.too_large(channel, size)

    def found_room(self) -> None:
        """As `Holder.found_room`."""
        self._receiver.unpause()

    def on_timer(self, now: float) -> None:
        """Refuse messages whose senders have stalled, and those that have waited for room for too long."""
        budget = self._budget
        if budget.is_overdue(self, now):
            budget.forget(self)
            for channel, partial in list(self._partial.items()):
                self._refuse(channel, partial.known_size)
            self.found_room()
            return
        is_read = not self.is_paused
        for channel, partial in list(self._partial.items()):
            if partial.has_stalled(now, budget, is_read=is_read):
                size = partial.known_size
                self.drop(channel)
                self._receiver.stalled(channel, size)


def _no_clock() -> float:
    return 0.0
