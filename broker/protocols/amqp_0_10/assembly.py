"""From bytes to commands: splits input into frames, and assembles them into controls and commands.

A command has up to three segments (command, header, body), each of one or several frames. Nearly all frequent commands
are either one frame, or a transfer of exactly three; those are sliced directly from the read buffer. All others go
through `_Partial`, one per channel, which collects them; content stays in the pieces in which it arrived
(`broker.model.content`).

Most transfers of a publisher have the same command, and headers and bodies of the same sizes. Two of that kind make a
pattern (`_Pattern`), and those that follow are recognized by comparing bytes, without decoding their frames.

    frame: flags u8 | segment type u8 | size u16 | 0 u8 | track u8 | channel u16 | 0 u32 | payload

The session of a channel may have ended before its peer knows: frames in flight still arrive, and may begin or end in
the middle of a command. Between `drop` and `accept` the command frames of that channel are discarded, in whatever order
they arrive. Controls are still passed on, and so is a command that is complete in the read buffer: the receiver ignores
it.

The other way, a command with large content is cut into frames from the pieces of the content, without copying them
(`content_frames`).

Limits: a frame has at most the negotiated size; command and header segments together have at most 65,523 bytes, the
capacity of one frame of a stored message; all incomplete commands of a connection together have a limit, too.

Source: AMQP 0-10, transport (frames, segments, tracks).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol

from qstore.broker.model.message import Buffer, Content, IncomingContent, LargeContent, pieces_of
from qstore.broker.protocols.budget import FRAMES_PER_LOOK, MAX_SECONDS, Budget, Pace
from qstore.formats.amqp_0_10.frames import (
    BODY,
    COMMAND,
    CONTROL,
    FIRST_FRAME,
    FIRST_SEGMENT,
    FRAME,
    HEADER,
    LAST_FRAME,
    LAST_SEGMENT,
    TRACK_COMMAND,
    TRACK_CONTROL,
    encode_frame,
)

MAX_SEGMENT_BYTES: Final = 0xFFFF - FRAME.size

_HEAD: Final = FRAME.size
_TRANSFER: Final = b"\x04\x01"
_ACCEPT: Final = b"\x04\x02"
_WHOLE_SEGMENT: Final = FIRST_FRAME | LAST_FRAME
_POSITION: Final = FIRST_SEGMENT | LAST_SEGMENT | FIRST_FRAME | LAST_FRAME
_COMMAND_OF_CONTENT: Final = FIRST_SEGMENT | _WHOLE_SEGMENT
_WHOLE_COMMAND: Final = _COMMAND_OF_CONTENT | LAST_SEGMENT
_LAST_WHOLE: Final = LAST_SEGMENT | _WHOLE_SEGMENT
_unpack: Final = FRAME.unpack_from


class FramingError(Exception):
    """The input is not a valid AMQP 0-10 frame, or not valid in this state. The connection must be closed."""


class Receiver(Protocol):
    """Receives the controls and commands that an `Assembler` has put together."""

    def control(self, channel: int, payload: bytes) -> None:
        """A control was received: class, code and fields."""

    def command(self, channel: int, payload: bytes, header: bytes | None, body: Content | None) -> None:
        """A command was received, with its header segment and its body; None if it has none."""

    def begins(self, channel: int) -> bool:
        """An incomplete command begins. Returns whether there is a session for it; otherwise it is discarded.

        Raises:
            FramingError: it is not valid now.
        """

    def too_large(self, channel: int) -> None:
        """The incomplete commands exceed their limit; that of `channel` was discarded, and its session must end.

        Later frames of that channel are discarded.
        """

    def stalled(self, channel: int) -> None:
        """Likewise, a command whose sender has stalled."""

    def pause(self) -> None:
        """Do not read on: a command waits for room."""

    def resume(self) -> None:
        """Read on."""


class PartialMessage(NamedTuple):
    """An incomplete message: its command and header, and the content received so far."""

    payload: bytes
    header: bytes
    body: Content


class _Partial:
    """An incomplete command."""

    __slots__ = ("body", "header", "pace", "payload", "segment", "segment_is_open", "small_bytes")

    def __init__(self) -> None:
        self.pace = Pace()
        self.payload = bytearray()  # not a list of pieces: they may have one byte each
        self.header: bytearray | None = None
        self.body: IncomingContent | None = None
        self.segment = COMMAND
        self.segment_is_open = True
        self.small_bytes = 0

    @property
    def size(self) -> int:
        body = 0 if self.body is None else self.body.size
        return len(self.payload) + len(self.header or b"") + body


class _Pattern:
    """Transfers on one channel with the same command, and with headers and bodies of the same sizes."""

    __slots__ = ("_last", "begin", "body_head", "channel", "header_size", "payload", "rest_size")

    def __init__(self) -> None:
        self.begin = b""  # the command's frame, and the frame header before the header; empty without a pattern
        self.payload = b""  # the command
        self.header_size = 0  # without its frame header
        self.body_head = b""  # the frame header before the body
        self.rest_size = 0  # of the body with its frame header
        self.channel = 0
        self._last = (0, 0, 0)  # sizes of the frames of the last transfer that was read frame by frame

    def learn(self, data: bytes, at: int, header_at: int, body_at: int, after: int, channel: int) -> bytes:
        """A transfer was read frame by frame. Returns its command."""
        payload = data[at + _HEAD : header_at]
        sizes = (header_at - at, body_at - header_at, after - body_at)
        if sizes == self._last:  # otherwise the next one is probably not alike either
            self.channel, self.payload = channel, payload
            self.begin, self.body_head = data[at : header_at + _HEAD], data[body_at : body_at + _HEAD]
            self.header_size, self.rest_size = body_at - header_at - _HEAD, after - body_at
        self._last = sizes
        return payload


class Assembler:
    """Assembles the input of one connection.

    Args:
        receiver: receives controls and commands.
        max_frame: maximum frame size in bytes; set by `Connection` when it is negotiated.
        max_body: limit in bytes for all incomplete commands together, with their bodies.

    Attributes:
        max_at_once: transfers plus other frames processed per call, before yielding to other connections.
        clock: seconds of a monotonic clock, for the time that a call may take (`budget`); by default it stands still.
        is_paused: input is buffered until `resume`; set by code that cannot process more.
        is_behind: a full batch was processed, or its time is used up, and input is left: `resume` must be called soon.
        frames, transfers: frames received, and messages among them; updated at the end of each read.
    """

    __slots__ = (
        "_budget",
        "_dropping",
        "_partial",
        "_pattern",
        "_receiver",
        "_rest",
        "clock",
        "frames",
        "is_behind",
        "is_paused",
        "max_at_once",
        "max_body",
        "max_frame",
        "pending_bytes",
        "transfers",
    )  # fmt: skip
    __deletable__ = ("_receiver",)  # for the compiler

    def __init__(self, receiver: Receiver, max_frame: int, max_body: int, budget: Budget | None = None) -> None:
        self._receiver = receiver
        self.max_frame, self.max_body = max_frame, max_body
        self._budget = Budget(max_body) if budget is None else budget
        self.max_at_once = sys.maxsize
        self.clock: Callable[[], float] = _standing_still
        self.is_paused = self.is_behind = False
        self.pending_bytes = self.frames = self.transfers = 0
        self._rest = b""
        self._pattern = _Pattern()
        self._partial: dict[int, _Partial] = {}
        self._dropping: set[int] = set()  # channels; none of them is in _partial

    def receive(self, data: bytes) -> None:
        """Process bytes from the socket.

        Raises:
            FramingError: they are not valid; the rest of the stream cannot be parsed.
        """
        if self._rest:
            data = self._rest + data
        end = len(data)
        at = taken = transfers = 0
        receiver, pattern, clock = self._receiver, self._pattern, self.clock
        until, look_at = clock() + MAX_SECONDS, 1  # when the time is used up; the frame before which to look
        last = b""  # the header of a transfer
        self.is_behind = False
        for taken in range(self.max_at_once):
            if end - at < _HEAD or self.is_paused:
                break
            if taken >= look_at:
                if clock() >= until:
                    self.is_behind = True
                    break
                look_at = taken + FRAMES_PER_LOOK
            begin = pattern.begin
            if begin and data.startswith(begin, at) and pattern.channel not in self._partial:
                header_at = at + len(begin)
                body_at = header_at + pattern.header_size
                following = body_at + pattern.rest_size
                if following <= end and data.startswith(pattern.body_head, body_at):
                    header, body = data[header_at:body_at], data[body_at + _HEAD : following]
                    if header != last:  # the routing key is in it
                        last, look_at = header, 0
                    receiver.command(pattern.channel, pattern.payload, header, body)
                    at = following
                    transfers += 1
                    continue
            flags, segment, size, _, track, channel, _ = _unpack(data, at)
            if size < _HEAD or size > self.max_frame:
                raise FramingError(f"a frame of {size} bytes, where {_HEAD} to {self.max_frame} are allowed")
            following = at + size
            if following > end:
                break
            position = flags & _POSITION
            if segment == COMMAND and track == TRACK_COMMAND and channel not in self._partial:
                code = data[at + _HEAD : at + _HEAD + 2]
                if position == _WHOLE_COMMAND:
                    if code == _TRANSFER:
                        self.transfers += 1
                    if code != _ACCEPT:
                        look_at = 0
                    receiver.command(channel, data[at + _HEAD : following], None, None)
                    at = following
                    continue
                if position == _COMMAND_OF_CONTENT and code == _TRANSFER:
                    look_at = 0
                    after = self._take_transfer(data, at, following, end, channel)
                    if after:
                        at = after
                        transfers += 1
                        continue
            look_at = 0
            if not self._takes_frame(position, segment, track, channel, data[at + _HEAD : following]):
                break
            at = following
        else:
            taken = self.max_at_once
            self.is_behind = end - at >= _HEAD
        self.frames += taken + 2 * transfers  # `taken` counts a transfer once, and it has three frames
        self.transfers += transfers
        self._rest = data[at:] if at < end else b""

    def resume(self) -> None:
        """Continue after a pause. Raises as `receive` does."""
        self.is_paused = False
        self.receive(b"")

    def _take_transfer(self, data: bytes, at: int, header_at: int, end: int, channel: int) -> int:
        """Pass on a transfer whose three frames are all in the buffer. Returns where it ends; 0 if it is not one."""
        if header_at + _HEAD > end:
            return 0
        flags, segment, size, _, track, header_channel, _ = _unpack(data, header_at)
        body_at = header_at + size
        if (
            segment != HEADER
            or header_channel != channel
            or track != TRACK_COMMAND
            or size < _HEAD
            or size > self.max_frame
            or body_at > end
        ):
            return 0
        position = flags & _POSITION
        if position == _LAST_WHOLE:
            self.frames -= 1  # it has no body frame
            self._receiver.command(channel, data[at + _HEAD : header_at], data[header_at + _HEAD : body_at], None)
            return int(body_at)
        if position != _WHOLE_SEGMENT or body_at + _HEAD > end:
            return 0
        flags, segment, size, _, track, body_channel, _ = _unpack(data, body_at)
        after = body_at + size
        if (
            segment != BODY
            or flags & _POSITION != _LAST_WHOLE
            or body_channel != channel
            or track != TRACK_COMMAND
            or size < _HEAD
            or size > self.max_frame
            or after > end
        ):
            return 0
        payload = self._pattern.learn(data, at, header_at, body_at, after, channel)
        self._receiver.command(channel, payload, data[header_at + _HEAD : body_at], data[body_at + _HEAD : after])
        return int(after)

    def drop(self, channel: int) -> None:
        """The session of `channel` has ended: discard its incomplete command, and its frames from now on."""
        partial = self._partial.pop(channel, None)
        if partial is not None:
            self._count(-partial.size)
        self._dropping.add(channel)

    def accept(self, channel: int) -> None:
        """A session is attached to `channel`: assemble its commands again. There must be no incomplete one."""
        assert channel not in self._partial
        self._dropping.discard(channel)

    def partial_message(self, channel: int) -> PartialMessage | None:
        """The incomplete message on `channel`; None if there is none, or none of its content has arrived."""
        partial = self._partial.get(channel)
        if partial is None or partial.header is None or partial.body is None:
            return None
        return PartialMessage(bytes(partial.payload), bytes(partial.header), partial.body.content())

    def close(self) -> None:
        """Discard all incomplete commands."""
        for channel in list(self._partial):
            self.drop(channel)
        self._dropping.clear()
        self._rest = b""
        self._budget.forget(self)

    def drop_receiver(self) -> None:
        """Drop the reference to the receiver, after `close`: it breaks a reference cycle."""
        del self._receiver

    def _count(self, size: int) -> None:
        self.pending_bytes += size
        budget = self._budget
        budget.used += size
        budget.holds(self, self.pending_bytes)
        if size < 0:
            budget.freed()

    def found_room(self) -> None:
        """As `Holder.found_room`."""
        self._receiver.resume()

    def on_timer(self, now: float) -> None:
        """Refuse commands whose senders have stalled, and what has waited for room for too long."""
        budget = self._budget
        if budget.is_overdue(self, now):
            budget.forget(self)
            for channel in list(self._partial):
                self.drop(channel)
                self._receiver.too_large(channel)
            self.found_room()
            return
        is_read = not self.is_paused
        for channel, partial in list(self._partial.items()):
            if partial.pace.has_stalled(partial.size, now, budget, is_read=is_read):
                self.drop(channel)
                self._receiver.stalled(channel)

    # ---- single frames ----

    def _takes_frame(self, position: int, segment: int, track: int, channel: int, payload: bytes) -> bool:
        """Process a frame. Returns False if it has to wait for room."""
        if segment == CONTROL:
            if track != TRACK_CONTROL or position != _WHOLE_COMMAND:
                raise FramingError("a control must be a single frame on the control track")
            self._receiver.control(channel, payload)
            return True
        if segment > BODY or track != TRACK_COMMAND:
            raise FramingError(f"a frame with segment type {segment} on track {track}")
        partial = self._partial.get(channel)
        has_room = True
        if channel not in self._dropping:
            size, budget = len(payload), self._budget
            has_room = budget.has_room(size, size if partial is None else size + partial.size)
            if not has_room and self.pending_bytes + size <= self.max_body and budget.may_wait(self):
                self._receiver.pause()
                return False
            if budget.waiting:
                budget.has_found(self)
        self._take_frame(partial, position, segment, channel, payload, has_room=has_room)
        return True

    def _take_frame(
        self, partial: _Partial | None, position: int, segment: int, channel: int, payload: bytes, *, has_room: bool
    ) -> None:
        if partial is not None:
            self._check_next(partial, position, segment)
        elif segment == COMMAND and position & FIRST_SEGMENT and position & FIRST_FRAME:
            if not self._receiver.begins(channel):
                self._dropping.add(channel)
                return
            partial = self._partial[channel] = _Partial()
        elif channel in self._dropping:
            return
        else:
            raise FramingError(f"a frame with segment type {segment} where a command must begin")
        if self._keep(partial, channel, segment, payload, has_room=has_room):
            partial.segment_is_open = not position & LAST_FRAME
            if position & LAST_FRAME and position & LAST_SEGMENT:
                self._finish(channel, partial)

    def _check_next(self, partial: _Partial, position: int, segment: int) -> None:
        """Check that a frame continues the open segment, or begins the next."""
        if position & FIRST_SEGMENT and segment != COMMAND:
            raise FramingError("the first segment is not a command segment")
        if partial.segment_is_open:
            if segment != partial.segment or position & FIRST_FRAME:
                raise FramingError("a segment begins inside another segment")
        else:
            if segment <= partial.segment or not position & FIRST_FRAME:
                raise FramingError("a segment continues after its last frame")
            partial.segment = segment

    def _keep(self, partial: _Partial, channel: int, segment: int, payload: bytes, *, has_room: bool) -> bool:
        """Add a frame's payload to its command. Returns whether there was room; otherwise the command is discarded."""
        if segment != BODY:
            partial.small_bytes += len(payload)
            if partial.small_bytes > MAX_SEGMENT_BYTES:
                raise FramingError(f"a command has more than {MAX_SEGMENT_BYTES} bytes before its body")
        if segment == COMMAND:
            partial.payload += payload
        elif segment == HEADER:
            if partial.header is None:
                partial.header = bytearray()
            partial.header += payload
        else:
            if partial.body is None:
                partial.body = IncomingContent()
            partial.body.add(payload)
        self._count(len(payload))
        if self.pending_bytes > self.max_body or not has_room:
            self.drop(channel)
            self._receiver.too_large(channel)
            return False
        return True

    def _finish(self, channel: int, partial: _Partial) -> None:
        self._partial.pop(channel, None)
        self._count(-partial.size)
        header = None if partial.header is None else bytes(partial.header)
        body = None if partial.body is None else partial.body.content()
        if partial.payload.startswith(_TRANSFER):
            self.transfers += 1
        self._receiver.command(channel, bytes(partial.payload), header, body)


def _standing_still() -> float:
    return 0.0


MAX_AT_ONCE: Final = 256 * 1024  # bytes; larger content is sent in portions of this size

_WHOLE: Final = FIRST_FRAME | LAST_FRAME


def is_large(body: Content | None) -> bool:
    """Whether a body is sent in portions, from its pieces."""
    return isinstance(body, LargeContent) or (body is not None and len(body) > MAX_AT_ONCE)


def content_frames(
    channel: int, payload: bytes, header: bytes | None, body: Content, max_frame: int
) -> Iterator[tuple[Buffer, ...]]:
    """The frames of a command and its content, in order, each as the buffers to write.

    Args:
        channel: the session's.
        payload: the command; with its frame header it fits `max_frame`.
        header: the header segment; None for none.
        body: the body segment, not empty; its bytes are not copied.
        max_frame: maximum frame size in bytes.
    """
    room = max_frame - FRAME.size
    yield (encode_frame(FIRST_SEGMENT | _WHOLE, COMMAND, TRACK_COMMAND, channel, payload),)
    segments = [(HEADER, 0, header)] if header is not None else []
    for segment, place, content in (*segments, (BODY, LAST_SEGMENT, body)):
        left = len(content)
        place |= FIRST_FRAME
        if not left:
            yield (FRAME.pack(place | LAST_FRAME, segment, FRAME.size, 0, TRACK_COMMAND, channel, 0),)
        for piece in pieces_of(content):
            for start in range(0, len(piece), room):
                size = min(room, len(piece) - start)
                left -= size
                flags = place if left else place | LAST_FRAME
                head = FRAME.pack(flags, segment, FRAME.size + size, 0, TRACK_COMMAND, channel, 0)
                yield head, piece if size == len(piece) else memoryview(piece)[start : start + size]
                place &= ~FIRST_FRAME
