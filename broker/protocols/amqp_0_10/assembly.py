"""From bytes to commands: frames are cut out of what a socket brought, and put together to controls and commands.

A command has up to three segments (command, header, body), each of one frame or of several. Nearly every command that
comes often is either one frame, or a transfer of exactly three; those are taken from the read buffer as they lie there.
All others go through `_Partial`, one for each channel, which keeps what has come so far; content stays in the pieces
that it came in (`broker.model.content`).

    frame: flags u8 | segment type u8 | size u16 | 0 u8 | track u8 | channel u16 | 0 u32 | payload

The session of a channel may be over before its peer knows: what was under way still comes, and may begin or stop within
a command. From `drop` until `accept` the frames of commands on that channel are passed over one by one, in whatever
order they come, and nothing of them is kept. Controls come as ever, and so does a command that is whole in the read
buffer: the receiver knows that nobody wants it.

Limits: a frame is as large as was agreed at most; command and header segments hold 65,523 bytes, since that is what
one frame of a stored message holds; all commands that a connection has begun, together, hold what its limit says.

Source: AMQP 0-10, transport (frames, segments, tracks).
"""

from __future__ import annotations

import sys
from typing import Final, NamedTuple, Protocol

from broker.model.content import Content, Gathering
from formats.amqp_0_10.frames import (
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
)

MOST_SEGMENT_BYTES: Final = 0xFFFF - FRAME.size

_HEAD: Final = FRAME.size
_TRANSFER: Final = b"\x04\x01"
_WHOLE_SEGMENT: Final = FIRST_FRAME | LAST_FRAME
_POSITION: Final = FIRST_SEGMENT | LAST_SEGMENT | FIRST_FRAME | LAST_FRAME
_COMMAND_OF_CONTENT: Final = FIRST_SEGMENT | _WHOLE_SEGMENT
_WHOLE_COMMAND: Final = _COMMAND_OF_CONTENT | LAST_SEGMENT
_LAST_WHOLE: Final = LAST_SEGMENT | _WHOLE_SEGMENT
_unpack: Final = FRAME.unpack_from


class FramingError(Exception):
    """What came is no AMQP 0-10 frame, or not one that may come here. The connection cannot go on."""


class Budget:
    """What messages may hold of which a part has come, over all connections together.

    Attributes:
        most: bytes that they may hold.
        used: bytes that they hold.
    """

    __slots__ = ("most", "used")

    def __init__(self, most: int) -> None:
        self.most = most
        self.used = 0


class Receiver(Protocol):
    """Takes what an `Assembler` has put together."""

    def control(self, channel: int, payload: bytes) -> None:
        """A control has come: class, code and fields."""

    def command(self, channel: int, payload: bytes, header: bytes | None, body: Content | None) -> None:
        """A command has come, with its header segment and its body; None if it has none."""

    def begins(self, channel: int) -> bool:
        """A command of which not all is here begins. Whether there is a session for it; otherwise it is dropped.

        Raises:
            FramingError: it may not come now.
        """

    def too_large(self, channel: int) -> None:
        """All that has been begun holds more than it may; the command of `channel` was dropped, and its session ends.

        Frames of that channel are dropped from here on.
        """


class Begun(NamedTuple):
    """A message of which a part has come: its command and header, and what there is of its content."""

    payload: bytes
    header: bytes
    body: Content


class _Partial:
    """A command of which not all has come."""

    __slots__ = ("body", "header", "payload", "segment", "segment_is_open", "small_bytes")

    def __init__(self) -> None:
        self.payload = bytearray()  # not a list of what came: that may come in pieces of a byte
        self.header: bytearray | None = None
        self.body: Gathering | None = None
        self.segment = COMMAND
        self.segment_is_open = True
        self.small_bytes = 0

    @property
    def size(self) -> int:
        body = 0 if self.body is None else self.body.size
        return len(self.payload) + len(self.header or b"") + body


class Assembler:
    """Puts together what comes over one connection.

    Args:
        receiver: takes it.
        max_frame: bytes of a frame at most; `Connection` sets it when it is agreed.
        max_body: bytes that all commands in the making have at most, with their bodies.

    Attributes:
        most_at_once: so many transfers, and frames besides, are taken at once; then others are to have their turn.
        is_paused: nothing is put together until `resume`; set by whoever cannot go on.
        is_behind: there was more than may be taken at once: `resume` is to be called soon.
        frames, transfers: how many frames, and messages with them, have come; added to when a read is worked off.
    """

    __slots__ = (
        "_budget", "_dropping", "_partial", "_receiver", "_rest", "frames", "is_behind", "is_paused", "max_body",
        "max_frame", "most_at_once", "pending_bytes", "transfers",
    )  # fmt: skip

    def __init__(self, receiver: Receiver, max_frame: int, max_body: int, budget: Budget | None = None) -> None:
        self._receiver = receiver
        self.max_frame, self.max_body = max_frame, max_body
        self._budget = Budget(max_body) if budget is None else budget
        self.most_at_once = sys.maxsize
        self.is_paused = self.is_behind = False
        self.pending_bytes = self.frames = self.transfers = 0
        self._rest = b""
        self._partial: dict[int, _Partial] = {}
        self._dropping: set[int] = set()  # channels; none of them is in _partial

    def receive(self, data: bytes) -> None:
        """Take what a socket has brought.

        Raises:
            FramingError: it cannot be read; nothing after it can.
        """
        if self._rest:
            data = self._rest + data
        end = len(data)
        at = taken = transfers = 0
        receiver = self._receiver
        self.is_behind = False
        for taken in range(self.most_at_once):  # noqa: B007 – how many were taken, when it is left
            if end - at < _HEAD or self.is_paused:
                break
            flags, segment, size, _, track, channel, _ = _unpack(data, at)
            if size < _HEAD or size > self.max_frame:
                raise FramingError(f"a frame of {size} bytes, where {_HEAD} to {self.max_frame} may come")
            following = at + size
            if following > end:
                break
            position = flags & _POSITION
            if segment == COMMAND and track == TRACK_COMMAND and channel not in self._partial:
                if position == _WHOLE_COMMAND:
                    if data[at + _HEAD : at + _HEAD + 2] == _TRANSFER:
                        self.transfers += 1
                    receiver.command(channel, data[at + _HEAD : following], None, None)
                    at = following
                    continue
                if position == _COMMAND_OF_CONTENT and data[at + _HEAD : at + _HEAD + 2] == _TRANSFER:
                    after = self._take_transfer(data, at, following, end, channel)
                    if after:
                        at = after
                        transfers += 1
                        continue
            self._take_frame(position, segment, track, channel, data[at + _HEAD : following])
            at = following
        else:
            taken = self.most_at_once
            self.is_behind = end - at >= _HEAD
        self.frames += taken + 2 * transfers  # a transfer has two frames more than the one that was taken
        self.transfers += transfers
        self._rest = data[at:] if at < end else b""

    def resume(self) -> None:
        """Go on after a pause. Raises as `receive` does."""
        self.is_paused = False
        self.receive(b"")

    def _take_transfer(self, data: bytes, at: int, header_at: int, end: int, channel: int) -> int:
        """A transfer whose three frames are all here. Returns where it ends; 0 if it is not of that kind."""
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
            self.frames -= 1  # there is none for its body
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
        self._receiver.command(
            channel, data[at + _HEAD : header_at], data[header_at + _HEAD : body_at], data[body_at + _HEAD : after]
        )
        return int(after)

    def drop(self, channel: int) -> None:
        """The session of `channel` is over: forget the command that has been begun, and pass over what comes."""
        partial = self._partial.pop(channel, None)
        if partial is not None:
            self._count(-partial.size)
        self._dropping.add(channel)

    def accept(self, channel: int) -> None:
        """A session is attached to `channel`, and its commands are put together again. None may have been begun."""
        assert channel not in self._partial
        self._dropping.discard(channel)

    def begun(self, channel: int) -> Begun | None:
        """The message that has been begun on `channel`; None if there is none, or nothing of its content."""
        partial = self._partial.get(channel)
        if partial is None or partial.header is None or partial.body is None:
            return None
        return Begun(bytes(partial.payload), bytes(partial.header), partial.body.content())

    def close(self) -> None:
        """Forget all that has been begun."""
        for channel in list(self._partial):
            self.drop(channel)
        self._dropping.clear()
        self._rest = b""

    def leave(self) -> None:
        """Let go of the receiver, after `close`: each holds the other, and nothing else would free them soon."""
        del self._receiver

    def _count(self, size: int) -> None:
        self.pending_bytes += size
        self._budget.used += size

    # ---- frames one by one ----

    def _take_frame(self, position: int, segment: int, track: int, channel: int, payload: bytes) -> None:
        if segment == CONTROL:
            if track != TRACK_CONTROL or position != _WHOLE_COMMAND:
                raise FramingError("a control that is not one frame on the control track")
            self._receiver.control(channel, payload)
            return
        if segment > BODY or track != TRACK_COMMAND:
            raise FramingError(f"a frame of segment type {segment} on track {track}")
        partial = self._partial.get(channel)
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
            raise FramingError(f"a frame of segment type {segment} where a command should begin")
        if self._keep(partial, channel, segment, payload):
            partial.segment_is_open = not position & LAST_FRAME
            if position & LAST_FRAME and position & LAST_SEGMENT:
                self._finish(channel, partial)

    def _check_next(self, partial: _Partial, position: int, segment: int) -> None:
        """A frame has to go on with the segment that is open, or begin the next."""
        if position & FIRST_SEGMENT and segment != COMMAND:
            raise FramingError("a first segment that is not the command")
        if partial.segment_is_open:
            if segment != partial.segment or position & FIRST_FRAME:
                raise FramingError("a segment begins within another")
        else:
            if segment <= partial.segment or not position & FIRST_FRAME:
                raise FramingError("a segment goes on after its last frame")
            partial.segment = segment

    def _keep(self, partial: _Partial, channel: int, segment: int, payload: bytes) -> bool:
        """Add a frame's payload to its command. Whether there was room for it; otherwise the command is dropped."""
        if segment != BODY:
            partial.small_bytes += len(payload)
            if partial.small_bytes > MOST_SEGMENT_BYTES:
                raise FramingError(f"a command with more than {MOST_SEGMENT_BYTES} bytes before its body")
        if segment == COMMAND:
            partial.payload += payload
        elif segment == HEADER:
            if partial.header is None:
                partial.header = bytearray()
            partial.header += payload
        else:
            if partial.body is None:
                partial.body = Gathering()
            partial.body.add(payload)
        self._count(len(payload))
        if self.pending_bytes > self.max_body or self._budget.used > self._budget.most:
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
