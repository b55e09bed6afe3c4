"""From bytes to methods and messages: splits input into frames, and puts a message's frames together.

A message is a basic.publish, a header frame, and body frames until they have the size that the header gives. Nearly all
messages have one body frame; those are sliced directly from the read buffer. All others go through `_Partial`, one per
channel; the body stays in the pieces in which it arrived (`broker.model.content`).

Most messages of a publisher have the same basic.publish, and headers and bodies of the same sizes. Two of that kind
make a pattern (`_Pattern`), and those that follow are recognized by comparing bytes, without decoding their frames.

    frame: type u8 | channel u16 | size u32 | payload | 0xce

After an error of a channel, its frames are in flight until the client knows: between `drop` and `accept` those with
content are discarded. Methods are passed on; the receiver ignores them.

Limits: a frame has at most the negotiated size; the body's size is known from its header, and checked there; all
incomplete messages together have a limit, too, which counts all their frames. What finds no room waits (`budget`). The
payload alone of a body frame may have the negotiated size: some clients cut bodies without room for the frame's own 8
bytes (amqpstorm), and RabbitMQ takes their frames.

Source: AMQP 0-9-1, 2.3.5 and 4.2; RabbitMQ, rabbit_reader.erl (FRAME_SIZE_FUDGE).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final, Protocol

from qstore.broker.model.message import Content, IncomingContent
from qstore.broker.protocols.amqp_0_9_1.errors import HardError
from qstore.broker.protocols.budget import FRAMES_PER_LOOK, MAX_SECONDS, Budget, Pace
from qstore.formats.amqp_0_9_1.codes import ReplyCode
from qstore.formats.amqp_0_9_1.frames import BODY, FRAME, FRAME_END, HEADER, HEARTBEAT, METHOD, OVERHEAD
from qstore.formats.amqp_0_9_1.methods import ACK, PUBLISH
from qstore.formats.amqp_0_9_1.properties import body_size

_HEAD: Final = FRAME.size
_SIZE_END: Final = 12  # in a content header: class, weight, size of the body
_END: Final = bytes((FRAME_END,))
_unpack: Final = FRAME.unpack_from


class Receiver(Protocol):
    """Receives the methods and messages that an `Assembler` has put together."""

    def method(self, channel: int, payload: bytes) -> None:
        """A method without content was received."""

    def message(self, channel: int, payload: bytes, header: bytes, body: Content) -> None:
        """A message was received: its basic.publish, content header and body."""

    def begins(self, channel: int) -> bool:
        """A message begins whose frames are not all here. Returns whether its channel accepts it.

        Raises:
            HardError: there is no such channel.
        """

    def too_large(self, channel: int, size: int) -> None:
        """A message with a body of `size` bytes exceeds a limit; it and later content on the channel are discarded."""

    def stalled(self, channel: int, size: int) -> None:
        """Likewise, a message whose sender has stalled."""

    def pause(self) -> None:
        """Do not read on: a message waits for room."""

    def unpause(self) -> None:
        """Read on."""


class _Partial:
    """An incomplete message."""

    __slots__ = ("body", "header", "pace", "payload", "size")

    def __init__(self, payload: bytes) -> None:
        self.payload, self.header, self.pace = payload, b"", Pace()
        self.body = IncomingContent()
        self.size = -1  # of the body, from the header

    @property
    def held_bytes(self) -> int:
        """Bytes of its frames."""
        return len(self.payload) + len(self.header) + self.body.size


class _Pattern:
    """Messages on one channel with the same basic.publish, and with headers and bodies of the same sizes."""

    __slots__ = (
        "_last", "begin", "body_at", "channel", "header_at", "header_end", "middle", "payload", "size"
    )  # fmt: skip

    def __init__(self) -> None:
        self.begin = b""  # from basic.publish to the size of the body, in the header; empty without a pattern
        self.middle = b""  # the end of the header's frame, and the frame header of the body
        self.payload = b""  # basic.publish
        self.header_at = self.header_end = self.body_at = self.size = 0  # relative to the begin
        self.channel = 0
        self._last = (0, 0, 0)  # sizes of the last message that was read frame by frame

    def learn(self, data: bytes, at: int, header_at: int, body_at: int, after: int, channel: int) -> bytes:
        """A message was read frame by frame; the places are of its frames. Returns its basic.publish."""
        payload = data[at + _HEAD : header_at - 1]
        sizes = (header_at - at, body_at - header_at, after - body_at)
        if sizes == self._last:  # otherwise the next one is probably not alike either
            self.channel, self.payload = channel, payload
            self.begin = data[at : header_at + _HEAD + _SIZE_END]
            self.middle = data[body_at - 1 : body_at + _HEAD]
            self.header_at, self.header_end = header_at + _HEAD - at, body_at - 1 - at
            self.body_at, self.size = body_at + _HEAD - at, after - at
        self._last = sizes
        return payload


class Assembler:
    """Assembles the input of one connection.

    Args:
        receiver: receives methods and messages.
        max_frame: maximum size of a frame in bytes, and of a body frame's payload; set by the connection when it is
            negotiated.
        max_body: maximum size of a body in bytes.
        budget: limits incomplete messages over all connections.

    Attributes:
        max_at_once: messages plus other frames processed per call, before yielding to other connections.
        clock: seconds of a monotonic clock, for the time that a call may take (`budget`); by default it stands still.
        is_paused: input is buffered until `resume`.
        is_behind: a full batch was processed, or its time is used up, and input is left: `resume` must be called soon.
        frames, messages: frames received, and messages.
    """

    __slots__ = (
        "_budget", "_dropping", "_partial", "_pattern", "_receiver", "_rest", "clock", "frames", "is_behind",
        "is_paused", "max_at_once", "max_body", "max_frame", "messages", "pending_bytes",
    )  # fmt: skip
    __deletable__ = ("_receiver",)  # for the compiler

    def __init__(self, receiver: Receiver, max_frame: int, max_body: int, budget: Budget) -> None:
        self._receiver, self._budget = receiver, budget
        self.max_frame, self.max_body = max_frame, max_body
        self.max_at_once = sys.maxsize
        self.clock: Callable[[], float] = _standing_still
        self.is_paused = self.is_behind = False
        self.pending_bytes = self.frames = self.messages = 0
        self._rest = b""
        self._pattern = _Pattern()
        self._partial: dict[int, _Partial] = {}
        self._dropping: set[int] = set()  # channels; none of them is in _partial

    def receive(self, data: bytes) -> None:
        """Process bytes from the socket.

        Raises:
            HardError, Amqp091Error: they are not valid; the rest of the stream cannot be parsed.
        """
        if self._rest:
            data = self._rest + data
            self._rest = b""
        end = len(data)
        at = taken = messages = 0
        receiver, pattern, clock = self._receiver, self._pattern, self.clock
        until, look_at = clock() + MAX_SECONDS, 1  # when the time is used up; the frame before which to look
        self.is_behind = False
        for taken in range(self.max_at_once):
            if end - at < OVERHEAD or self.is_paused:
                break
            if taken >= look_at:
                if clock() >= until:
                    self.is_behind = True
                    break
                look_at = taken + FRAMES_PER_LOOK
            begin = pattern.begin
            if begin and data.startswith(begin, at) and pattern.channel not in self._partial:
                following = at + pattern.size
                header_end = at + pattern.header_end
                if (
                    following <= end
                    and data.startswith(pattern.middle, header_end)
                    and data[following - 1] == FRAME_END
                ):
                    header, body = data[at + pattern.header_at : header_end], data[at + pattern.body_at : following - 1]
                    at = following
                    messages += 1
                    receiver.message(pattern.channel, pattern.payload, header, body)
                    continue
            kind, channel, size = _unpack(data, at)
            following = at + size + OVERHEAD
            if size + OVERHEAD > self.max_frame and (kind != BODY or size > self.max_frame):
                raise HardError(
                    ReplyCode.FRAME_ERROR, f"a frame of {size + OVERHEAD} bytes; the maximum is {self.max_frame}"
                )
            if following > end:
                break
            if data[following - 1] != FRAME_END:
                raise HardError(ReplyCode.FRAME_ERROR, f"a frame ends with 0x{data[following - 1]:02x}")
            if kind == METHOD and channel not in self._partial:
                method = data[at + _HEAD : at + _HEAD + 4]
                if method != PUBLISH:
                    payload = data[at + _HEAD : following - 1]
                    at = following
                    if method != ACK:
                        look_at = 0
                    receiver.method(channel, payload)
                    continue
                look_at = 0
                after = self._take_message(data, at, following, end, channel)
                if after:
                    at = after
                    messages += 1
                    continue
            look_at = 0
            payload = data[at + _HEAD : following - 1]
            if not self._takes_frame(kind, channel, payload):
                break
            at = following
        else:
            taken = self.max_at_once
            self.is_behind = end - at >= OVERHEAD
        self.frames += taken + 2 * messages  # `taken` counts a message once, and it has three frames
        self.messages += messages
        self._rest = data[at:] if at < end else b""

    def resume(self) -> None:
        """Continue after a pause. Raises as `receive` does."""
        self.is_paused = False
        self.receive(b"")

    def _take_message(self, data: bytes, at: int, header_at: int, end: int, channel: int) -> int:
        """Pass on a message whose three frames are all in the buffer. Returns where it ends; 0 if it is not one."""
        if header_at + OVERHEAD > end or channel in self._dropping:
            return 0
        kind, header_channel, size = _unpack(data, header_at)
        body_at = header_at + size + OVERHEAD
        if kind != HEADER or header_channel != channel or size + OVERHEAD > self.max_frame or body_at + OVERHEAD > end:
            return 0
        kind, body_channel, size = _unpack(data, body_at)
        after = body_at + size + OVERHEAD
        if (
            kind != BODY
            or not size
            or body_channel != channel
            or after > end
            or size > self.max_frame
            or data[body_at - 1] != FRAME_END
            or data[after - 1] != FRAME_END
        ):
            return 0
        header = data[header_at + _HEAD : body_at - 1]
        if body_size(header) != size or size > self.max_body:
            return 0
        payload = self._pattern.learn(data, at, header_at, body_at, after, channel)
        self._receiver.message(channel, payload, header, data[body_at + _HEAD : after - 1])
        return int(after)

    def drop(self, channel: int) -> None:
        """A channel is closing: discard its incomplete message, and its content from now on."""
        partial = self._partial.pop(channel, None)
        if partial is not None:
            self._count(-partial.held_bytes)
        self._dropping.add(channel)

    def accept(self, channel: int) -> None:
        """A channel is opened: accept its content."""
        self._dropping.discard(channel)

    def close(self) -> None:
        """Discard all incomplete messages."""
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

    def _has_room(self, size: int, of_message: int) -> bool:
        """Whether so many bytes of an incomplete message can be kept; then they are counted."""
        budget = self._budget
        if not budget.has_room(size, of_message):
            return False
        if budget.waiting:
            budget.has_found(self)
        self._count(size)
        return True

    def _waits(self, channel: int, size: int) -> bool:
        """There is no room for a frame. Whether it waits; otherwise its message is refused."""
        if self._budget.may_wait(self):
            self._receiver.pause()
            return True
        self._refuse(channel, size)
        return False

    def found_room(self) -> None:
        """As `Holder.found_room`."""
        self._receiver.unpause()

    def on_timer(self, now: float) -> None:
        """Refuse messages whose senders have stalled, and what has waited for room for too long."""
        budget = self._budget
        if budget.is_overdue(self, now):
            budget.forget(self)
            for channel, partial in list(self._partial.items()):
                self._refuse(channel, max(partial.size, 0))
            self.found_room()
            return
        is_read = not self.is_paused
        for channel, partial in list(self._partial.items()):
            if partial.pace.has_stalled(partial.held_bytes, now, budget, is_read=is_read):
                size = max(partial.size, 0)
                self.drop(channel)
                self._receiver.stalled(channel, size)

    # ---- single frames ----

    def _takes_frame(self, kind: int, channel: int, payload: bytes) -> bool:
        """Process a frame. Returns False if it has to wait for room."""
        if kind == HEARTBEAT:
            if channel or payload:
                raise HardError(ReplyCode.FRAME_ERROR, "a heartbeat has a channel or a payload")
            return True
        if kind not in (METHOD, HEADER, BODY):
            raise HardError(ReplyCode.FRAME_ERROR, f"unknown frame type {kind}")
        if kind != METHOD and channel in self._dropping:
            return True
        partial = self._partial.get(channel)
        if partial is None:
            if kind != METHOD:
                raise HardError(ReplyCode.UNEXPECTED_FRAME, "content where a method must begin")
            if not self._receiver.begins(channel):
                self._dropping.add(channel)
            elif self._has_room(len(payload), len(payload)):
                self._partial[channel] = _Partial(payload)
            else:
                return not self._waits(channel, len(payload))
        elif kind == METHOD or (kind == HEADER) is (partial.size >= 0):
            raise HardError(ReplyCode.UNEXPECTED_FRAME, f"a frame of type {kind} within a message's content")
        elif kind == HEADER:
            return self._begins_body(partial, channel, payload)
        else:
            return self._adds_body(partial, channel, payload)
        return True

    def _begins_body(self, partial: _Partial, channel: int, header: bytes) -> bool:
        size = body_size(header)
        if size > self.max_body:
            self._refuse(channel, size)
            return True
        if not self._has_room(len(header), size):
            return not self._waits(channel, size)
        partial.header, partial.size = header, size
        if not size:
            self._finish(partial, channel)
        return True

    def _adds_body(self, partial: _Partial, channel: int, piece: bytes) -> bool:
        if partial.body.size + len(piece) > partial.size:
            text = f"a body of more than the {partial.size} bytes that its header gives"
            raise HardError(ReplyCode.UNEXPECTED_FRAME, text)
        if not self._has_room(len(piece), partial.size):
            return not self._waits(channel, partial.size)
        partial.body.add(piece)
        if partial.body.size == partial.size:
            self._finish(partial, channel)
        return True

    def _refuse(self, channel: int, size: int) -> None:
        self.drop(channel)
        self._receiver.too_large(channel, size)

    def _finish(self, partial: _Partial, channel: int) -> None:
        del self._partial[channel]
        self._count(-partial.held_bytes)
        self.messages += 1
        self._receiver.message(channel, partial.payload, partial.header, partial.body.content())


def _standing_still() -> float:
    return 0.0
