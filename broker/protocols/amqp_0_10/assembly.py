"""From bytes to commands: the frames of AMQP 0-10 for the engine's assembler (`protocols.assembly`); and back.

A command has up to three segments (command, header, body), each of one or several frames. Nearly all frequent commands
are either one frame, or a transfer of exactly three; those are sliced directly from the read buffer. All others go
through `_Partial`.

    frame: flags u8 | segment type u8 | size u16 | 0 u8 | track u8 | channel u16 | 0 u32 | payload

When a session ends, frames of its channel may still be in flight, and may begin or end in the middle of a command. They
are discarded, in whatever order they arrive. Controls are still passed on, and so is a command that is complete in the
read buffer: the receiver ignores it.

Limits: a frame has at most the negotiated size; command and header segments together have at most 65,523 bytes, the
capacity of one frame of a stored message; all incomplete commands of a connection together have a limit, too.

For output, a command with large content is cut into frames from the pieces of the content, without copying them
(`content_frames`).

Source: AMQP 0-10, transport (frames, segments, tracks).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from qstore.broker.model.message import Buffer, Content, IncomingContent
from qstore.broker.protocols.amqp_0_10.message import content_length_field
from qstore.broker.protocols.assembly import Assembler, Budget, CommandReceiver, Partial, ProtocolError
from qstore.broker.protocols.output import parts_of
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
from qstore.formats.kernels.bodies import SizeField
from qstore.formats.named_tuple import NamedTuple

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
_FRAME_SIZE_FIELD: Final = SizeField(2, 2, FRAME.size)


class FramingError(ProtocolError):
    """The input is not a valid AMQP 0-10 frame, or not valid in this state. The connection must be closed."""


class PartialMessage(NamedTuple):
    """An incomplete message: its command and header, and the content received so far."""

    payload: bytes
    header: bytes
    body: Content


class _Partial(Partial):
    """An incomplete command."""

    __slots__ = ("body", "header", "payload", "segment", "segment_is_open", "small_bytes")

    def __init__(self) -> None:
        super().__init__()
        self.payload = bytearray()  # not a list of pieces, which may be one byte each
        self.header: bytearray | None = None
        self.body: IncomingContent | None = None
        self.segment = COMMAND
        self.segment_is_open = True
        self.small_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Bytes of its segments."""
        body = 0 if self.body is None else self.body.size
        return len(self.payload) + len(self.header or b"") + body

    @property
    def known_size(self) -> int:
        """Bytes received so far: frames do not give the size of a segment."""
        return self.held_bytes


class CommandAssembler(Assembler[CommandReceiver, _Partial]):
    """Assembles the input of one connection; `max_body` limits all incomplete commands together, with bodies."""

    __slots__ = ()

    def __init__(self, receiver: CommandReceiver, max_frame: int, max_body: int, budget: Budget | None = None) -> None:
        super().__init__(receiver, max_frame, max_body, budget, _HEAD)

    def _take(self, data: bytes, at: int, end: int) -> int:
        flags, segment, size, _, track, channel, _ = _unpack(data, at)
        if size < _HEAD or size > self.max_frame:
            raise FramingError(f"a frame of {size} bytes, outside the range of {_HEAD} to {self.max_frame}")
        following: int = at + size
        if following > end:
            return 0
        position = flags & _POSITION
        if segment == COMMAND and track == TRACK_COMMAND and channel not in self._partial:
            code = data[at + _HEAD : at + _HEAD + 2]
            if position == _WHOLE_COMMAND:
                if code == _TRANSFER:
                    self.messages += 1
                    self._note(0, 1)
                if code != _ACCEPT:
                    self._is_expensive = True
                self._receiver.command(channel, data[at + _HEAD : following], None, None)
                return following
            if position == _COMMAND_OF_CONTENT and code == _TRANSFER:
                self._is_expensive = True
                after = self._take_transfer(data, at, following, end, channel)
                if after:
                    return after
        self._is_expensive = True
        return following if self._takes_frame(position, segment, track, channel, data[at + _HEAD : following]) else 0

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
            self.frames += 1
            self.messages += 1
            self._note(0, 1)
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
        payload, header = data[at + _HEAD : header_at], data[header_at + _HEAD : body_at]
        if self._is_repeated(header_at - at, body_at - header_at):
            pattern = self._swap_patterns()
            if header != pattern.header or header_at + _HEAD - at != pattern.header_at:
                pattern.header, pattern.field = header, content_length_field(header)
                pattern.header_at, pattern.header_end = header_at + _HEAD - at, body_at - at
                pattern.fields = (_FRAME_SIZE_FIELD.moved(body_at - at),)
                if pattern.field is not None:
                    pattern.fields = (pattern.field.moved(pattern.header_at), *pattern.fields)
            pattern.channel, pattern.payload = channel, payload
            pattern.start = pattern.begin = data[at : header_at + _HEAD]
            pattern.middle = data[body_at : body_at + _HEAD]
            pattern.body_at, pattern.body_end, pattern.size = body_at + _HEAD - at, after - at, after - at
        self.frames += 2
        self.messages += 1
        self._note(size - _HEAD, 1)
        self._receiver.command(channel, payload, header, data[body_at + _HEAD : after])
        return int(after)

    def partial_message(self, channel: int) -> PartialMessage | None:
        """The incomplete message on `channel`; None if there is none, or none of its content has arrived."""
        partial = self._partial.get(channel)
        if partial is None or partial.header is None or partial.body is None:
            return None
        return PartialMessage(bytes(partial.payload), bytes(partial.header), partial.body.content())

    # ---- single frames ----

    def _takes_frame(self, position: int, segment: int, track: int, channel: int, payload: bytes) -> bool:
        """Process a frame. Returns False if it has to wait for room."""
        if segment == CONTROL:
            if track != TRACK_CONTROL or position != _WHOLE_COMMAND:
                raise FramingError("a control must be a single frame on the control track")
            self._receiver.frame(channel, payload)
            return True
        if segment > BODY or track != TRACK_COMMAND:
            raise FramingError(f"a frame with segment type {segment} on track {track}")
        partial = self._partial.get(channel)
        has_room = True
        if channel not in self._dropping:
            size, budget = len(payload), self._budget
            has_room = budget.has_room(size, size if partial is None else size + partial.held_bytes)
            if not has_room and self.pending_bytes + size <= self.max_body and budget.may_wait(self):
                self._receiver.pause()
                return False
            if budget.waiting:
                budget.end_wait(self)
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
            self._refuse(channel, partial.held_bytes)
            return False
        return True

    def _finish(self, channel: int, partial: _Partial) -> None:
        self._partial.pop(channel, None)
        self._count(-partial.held_bytes)
        header = None if partial.header is None else bytes(partial.header)
        body = None if partial.body is None else partial.body.content()
        if partial.payload.startswith(_TRANSFER):
            self.messages += 1
            self._note(0 if partial.body is None else partial.body.size, 1)
        self._receiver.command(channel, bytes(partial.payload), header, body)


_WHOLE: Final = FIRST_FRAME | LAST_FRAME


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
        for part in parts_of(content, room):
            size = len(part)
            left -= size
            flags = place if left else place | LAST_FRAME
            yield FRAME.pack(flags, segment, FRAME.size + size, 0, TRACK_COMMAND, channel, 0), part
            place &= ~FIRST_FRAME
