"""From bytes to methods and messages: the frames of AMQP 0-9-1 for the engine's assembler (`protocols.assembly`).

A message is a basic.publish, a header frame, and body frames up to the size that the header gives. Nearly all
messages have one body frame; those are sliced directly from the read buffer. All others go through `_Partial`.

A publisher that uses many routing keys in turns has no two messages in a row that are alike. If two have the same
header, those that follow in the buffer are sorted by basic.publish, and passed on as one run for each
(`MethodReceiver.mixed_runs`); likewise in the next reads, from their first message on.

A client's deliveries differ at least in their delivery tags. Those that follow one with the tags that come next, and
differ in nothing else but bodies of one size, are passed on together to who asks for it
(`DeliveryReceiver.delivered_run`).

    frame: type u8 | channel u16 | size u32 | payload | 0xce

After an error of a channel, its frames are in flight until the client knows: those with content are discarded. Methods
are passed on; the receiver ignores them.

Limits: a frame has at most the negotiated size; the body's size is known from its header, and checked there; all
frames of incomplete messages together have a limit, too. The payload alone of a body frame may have the negotiated
size: some clients (amqpstorm) leave no room for the frame's own 8 bytes, and RabbitMQ accepts their frames.

Source: AMQP 0-9-1, 2.3.5 and 4.2; RabbitMQ, rabbit_reader.erl (FRAME_SIZE_FUDGE).
"""

from __future__ import annotations

import sys
from array import array
from typing import Final, Protocol, cast

from qstore.broker.model.message import IncomingContent
from qstore.broker.model.run import MAX_BODY, MAX_RUN, MIN_RUN
from qstore.broker.protocols.amqp_0_9_1.errors import HardError
from qstore.broker.protocols.amqp_0_9_1.message import SIZE_FIELD
from qstore.broker.protocols.assembly import Assembler, Budget, CommandReceiver, Partial
from qstore.formats.amqp_0_9_1.codes import ReplyCode
from qstore.formats.amqp_0_9_1.frames import BODY, FRAME, FRAME_END, HEADER, HEARTBEAT, METHOD, OVERHEAD
from qstore.formats.amqp_0_9_1.methods import ACK, ACK_FRAME_SIZE, BY_NAME, PUBLISH, count_acks, multiple_acks
from qstore.formats.amqp_0_9_1.properties import body_size
from qstore.formats.kernels import sort_messages
from qstore.formats.kernels.bodies import Bodies, SizeField
from qstore.formats.named_tuple import NamedTuple

_HEAD: Final = FRAME.size
_SIZE_AT: Final = 3  # in the head of a frame
_ACK_HEAD: Final = _HEAD + len(ACK)  # bytes of a frame with basic.ack before the delivery tag
_MULTIPLE_AT: Final = ACK_FRAME_SIZE - 2  # in such a frame
_ACK_BEGIN: Final = (ACK_FRAME_SIZE - OVERHEAD).to_bytes(4, "big") + ACK  # its size, and the method
_SIZE_END: Final = 12  # in a content header: class, weight, size of the body
_FRAME_SIZE_FIELD: Final = SizeField(3, 4)  # in a frame header
_unpack: Final = FRAME.unpack_from
_PUBLISH_SIZE_FIELD: Final = SizeField(3, 4, len(PUBLISH))  # in the header of a frame with basic.publish

_TO_BROKER: Final = frozenset({PUBLISH})
_TO_CLIENT: Final = frozenset(
    BY_NAME[name].code.to_bytes(4, "big") for name in ("basic.deliver", "basic.return", "basic.get-ok")
)

MAX_MIXED: Final = 256
"""Messages that are sorted at once: the work for them takes 2 ms in pure Python."""
_MIN_MIXED: Final = 2 * MIN_RUN  # messages of the present size that have to be in the buffer
_MAX_SINGLE: Final = 256  # messages that are taken singly after some that could not be sorted


class MethodReceiver(CommandReceiver, Protocol):
    """Receives the output of a `MethodAssembler`."""

    def acknowledged(self, channel: int, first: int, count: int) -> None:
        """As `frame`, for basic.ack with each of `count` consecutive delivery tags."""

    def acknowledged_up_to(self, channel: int, tags: list[int]) -> int:
        """As `frame`, for basic.ack with `multiple` and each of these ascending tags. Returns how many were taken."""

    def mixed_runs(self, channel: int, header: bytes, runs: list[MixedRun], count: int) -> int:
        """Messages were received that differ only in their basic.publish and their bodies, sorted by the former.

        Args:
            channel: their channel.
            header: a content header like theirs, but for the size of the body.
            runs: the messages with the same basic.publish.
            count: number of messages in all.

        Returns:
            How many of them were taken, in the order in which they came; if it is 0, they are passed on one by one.
        """


class MixedRun(NamedTuple):
    """Messages with the same basic.publish, among some that have different ones.

    Attributes:
        payload: their basic.publish.
        bodies: their bodies.
        numbers: their numbers among all, from 0, 32 bits each.
    """

    payload: bytes
    bodies: Bodies
    numbers: bytes


class _Mixed(NamedTuple):
    """Messages that differ in their basic.publish and their bodies.

    Attributes:
        channel: their channel.
        lead: the bytes before what differs in their basic.publish.
        prefix: those between it and their bodies.
        fields: the fields in these that give the size of the body.
        header: a content header like theirs, but for the size of the body.
        size: bytes of all frames of one of them.
    """

    channel: int
    lead: bytes
    prefix: bytes
    fields: tuple[SizeField, ...]
    header: bytes
    size: int


class _Partial(Partial):
    """An incomplete message."""

    __slots__ = ("body", "header", "payload", "size")

    def __init__(self, payload: bytes) -> None:
        super().__init__()
        self.payload, self.header = payload, b""
        self.body = IncomingContent()
        self.size = -1  # of the body, from the header

    @property
    def held_bytes(self) -> int:
        """Bytes of its frames."""
        return len(self.payload) + len(self.header) + self.body.size

    @property
    def known_size(self) -> int:
        """The size that its header gives."""
        return max(self.size, 0)


class MethodAssembler(Assembler[MethodReceiver, _Partial]):
    """Assembles the input of one connection; `max_body` is the maximum size of a body."""

    __slots__ = ("_last_header", "_last_tried", "_mixed", "_single", "_with_content")

    def __init__(self, receiver: MethodReceiver, max_frame: int, max_body: int, budget: Budget) -> None:
        super().__init__(receiver, max_frame, max_body, budget, OVERHEAD)
        self._pattern.end_byte = FRAME_END
        self._with_content = _TO_BROKER
        self._last_header = b""  # of a message that was taken frame by frame, without the size of its body
        self._mixed: _Mixed | None = None  # messages that were sorted last, so that the next ones may be, too
        self._single = self._last_tried = 0  # messages to take singly before some are sorted again, now and last time

    def _take(self, data: bytes, at: int, end: int) -> int:
        after = at + ACK_FRAME_SIZE
        if data[at + _SIZE_AT : at + _ACK_HEAD] == _ACK_BEGIN and after <= end and data[after - 1] == FRAME_END:
            taken = self._take_whole_acks(data, at, end)
            if taken:
                return at + taken * ACK_FRAME_SIZE
        kind, channel, size = _unpack(data, at)
        following: int = at + size + OVERHEAD
        if size + OVERHEAD > self.max_frame and (kind != BODY or size > self.max_frame):
            raise HardError(
                ReplyCode.FRAME_ERROR, f"a frame of {size + OVERHEAD} bytes; the maximum is {self.max_frame}"
            )
        if following > end:
            return 0
        if data[following - 1] != FRAME_END:
            raise HardError(ReplyCode.FRAME_ERROR, f"a frame ends with 0x{data[following - 1]:02x}")
        if kind == METHOD and channel not in self._partial:
            method = data[at + _HEAD : at + _HEAD + 4]
            if method == ACK:
                self._receiver.frame(channel, data[at + _HEAD : following - 1])
                return following
            self._is_expensive = True
            if method not in self._with_content:
                self._receiver.frame(channel, data[at + _HEAD : following - 1])
                return following
            mixed = self._mixed
            if mixed is not None and mixed.channel == channel and end - at >= MIN_RUN * mixed.size:
                after = self._take_sorted(data, at, end, mixed)
                if after > at:
                    self.frames -= 1
                    return after
            after = self._take_message(data, at, following, end, channel)
            if after:
                return after
        self._is_expensive = True
        return following if self._takes_frame(kind, channel, data[at + _HEAD : following - 1]) else 0

    def _take_whole_acks(self, data: bytes, at: int, end: int) -> int:
        """Pass on what looks like a frame with basic.ack, with others that follow it. Returns how many; 0 if it is not.

        Consumers that acknowledge each message send as many of these as there are messages.
        """
        channel = data[at + 1] << 8 | data[at + 2]
        if data[at] != METHOD or channel in self._partial:
            return 0
        after, head = at + ACK_FRAME_SIZE, data[at : at + _ACK_HEAD]
        if data[after : after + _ACK_HEAD] == head:
            return self._take_acks(data, at, end, channel)
        if self._with_content is _TO_BROKER and not data[at + _MULTIPLE_AT]:
            self._receiver.acknowledged(channel, int.from_bytes(data[at + _ACK_HEAD : at + _MULTIPLE_AT], "big"), 1)
        else:
            self._receiver.frame(channel, data[at + _HEAD : after - 1])
        return 1

    def _take_acks(self, data: bytes, at: int, end: int, channel: int) -> int:
        """Pass on a basic.ack, with others that follow it. Returns how many."""
        until, receiver, count = min(end, at + MAX_RUN * ACK_FRAME_SIZE), self._receiver, 1
        if data[at + _MULTIPLE_AT]:
            tags = multiple_acks(data, at, until)
            if len(tags) > 1:
                count = receiver.acknowledged_up_to(channel, tags)
                self.frames += count - 1
                return count
        else:
            first, count = count_acks(data, at, until)
            if count > 1:
                receiver.acknowledged(channel, first, count)
                self.frames += count - 1
                return count
        receiver.frame(channel, data[at + _HEAD : at + ACK_FRAME_SIZE - 1])
        return 1

    def _take_message(self, data: bytes, at: int, header_at: int, end: int, channel: int) -> int:
        """Pass on a message whose three frames are all in the buffer. Returns where it ends; 0 if it is not one."""
        if header_at + OVERHEAD > end or channel in self._dropping:
            return 0
        kind, header_channel, size = _unpack(data, header_at)
        body_at = header_at + size + OVERHEAD
        if kind != HEADER or header_channel != channel or size + OVERHEAD > self.max_frame or body_at + OVERHEAD > end:
            return 0
        kind, body_channel, size = _unpack(data, body_at)
        after: int = body_at + size + OVERHEAD
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
        payload = data[at + _HEAD : header_at - 1]
        pattern = self._pattern
        if self._mixed is None and self._is_repeated(header_at - at, body_at - header_at):
            pattern.channel, pattern.payload = channel, payload
            pattern.start = data[at : header_at + _HEAD + SIZE_FIELD.at]
            pattern.field = SIZE_FIELD
            pattern.fields = (SIZE_FIELD.moved(header_at + _HEAD - at), _FRAME_SIZE_FIELD.moved(body_at - at))
            pattern.begin = data[at : header_at + _HEAD + _SIZE_END]
            pattern.middle = data[body_at - 1 : body_at + _HEAD]
            pattern.header_at, pattern.header_end = header_at + _HEAD - at, body_at - 1 - at
            pattern.body_at, pattern.body_end, pattern.size = body_at + _HEAD - at, after - 1 - at, after - at
        self.frames += 2
        self.messages += 1
        self._note(size, 1)
        self._receiver.command(channel, payload, header, data[body_at + _HEAD : after - 1])
        if self._single:
            self._single -= 1
        elif _MIN_MIXED * (after - at) <= end - after and size <= MAX_BODY:
            return self._take_mixed(data, at, header_at, after, end)
        return after

    def _take_mixed(self, data: bytes, at: int, header_at: int, after: int, end: int) -> int:
        """Pass on messages that follow one, if they have its header, sorted by basic.publish. Returns where they end.

        Args:
            data: the buffer.
            at: where that message begins.
            header_at: where its header frame begins.
            after: where it ends.
            end: where the buffer ends.
        """
        channel, size = _unpack(data, header_at)[1:]
        body_at = header_at + size + OVERHEAD
        header = data[header_at + _HEAD : body_at - 1]
        is_alike, self._last_header = SIZE_FIELD.set_in(header, 0) == self._last_header, SIZE_FIELD.set_in(header, 0)
        if not is_alike:
            return after
        lead, prefix = data[at : at + _HEAD] + PUBLISH, data[header_at - 1 : body_at + _HEAD]
        fields = SIZE_FIELD.moved(1 + _HEAD), _FRAME_SIZE_FIELD.moved(body_at - header_at + 1)
        return self._take_sorted(data, after, end, _Mixed(channel, lead, prefix, fields, header, after - at))

    def _take_sorted(self, data: bytes, at: int, end: int, mixed: _Mixed) -> int:
        """Pass on messages that begin at a position, sorted by basic.publish. Returns where they end."""
        channel, self._mixed = mixed.channel, None
        if self.is_paused or channel in self._dropping or channel in self._partial:
            return at
        following, count, runs = self._sorted(data, at, end, mixed, MAX_MIXED)
        if count >= MIN_RUN and len(runs) > 1:
            taken = self._receiver.mixed_runs(channel, mixed.header, runs, count)
            if taken:
                if taken < count:
                    following, _, runs = self._sorted(data, at, end, mixed, taken)
                self.frames += 3 * taken
                self.messages += taken
                for run in runs:
                    self.sizes.add_run(run.bodies, run.bodies.count)
                self._last_tried = 0
                self._mixed = mixed
                self._pattern.start = self._other.start = b""  # its messages would be taken singly
                return following
        self._single = self._last_tried = min(2 * self._last_tried + 1, _MAX_SINGLE)
        return at

    def _sorted(self, data: bytes, at: int, end: int, mixed: _Mixed, most: int) -> tuple[int, int, list[MixedRun]]:
        """Messages that begin at a position, sorted by basic.publish: where they end, their number, and the runs."""
        following, count, kinds = sort_messages(
            data, at, end, mixed.lead, _PUBLISH_SIZE_FIELD, mixed.prefix, mixed.fields, FRAME_END,
            min(MAX_BODY, self.max_frame - OVERHEAD, self.max_body), most,
        )  # fmt: skip
        runs = [
            MixedRun(PUBLISH + kind, Bodies(bodies, 0, starts, 1, smallest, largest), numbers)
            for kind, bodies, starts, smallest, largest, numbers in kinds
        ]
        return following, count, runs

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
            text = f"a body larger than the {partial.size} bytes given in its header"
            raise HardError(ReplyCode.UNEXPECTED_FRAME, text)
        if not self._has_room(len(piece), partial.size):
            return not self._waits(channel, partial.size)
        partial.body.add(piece)
        if partial.body.size == partial.size:
            self._finish(partial, channel)
        return True

    def _has_room(self, size: int, of_message: int) -> bool:
        """Whether there is room for `size` more bytes of an incomplete message; if so, counts them."""
        budget = self._budget
        if not budget.has_room(size, of_message):
            return False
        if budget.waiting:
            budget.end_wait(self)
        self._count(size)
        return True

    def _waits(self, channel: int, size: int) -> bool:
        """Have a frame wait for room. Returns whether it may; otherwise its message is refused."""
        if self._budget.may_wait(self):
            self._receiver.pause()
            return True
        self._refuse(channel, size)
        return False

    def _finish(self, partial: _Partial, channel: int) -> None:
        del self._partial[channel]
        self._count(-partial.held_bytes)
        self.messages += 1
        self._note(partial.size, 1)
        self._receiver.command(channel, partial.payload, partial.header, partial.body.content())


class DeliveryReceiver(MethodReceiver, Protocol):
    """Receives the output of a `DeliveryAssembler`."""

    def takes_runs(self, channel: int) -> bool:
        """Whether deliveries on a channel that are alike may be passed on together."""

    def delivered_run(self, channel: int, first: int, payload: bytes, header: bytes, bodies: Bodies) -> None:
        """Messages were delivered that differ only in their delivery tags and their bodies.

        Args:
            channel: their channel.
            first: the delivery tag of the first; those of the others follow.
            payload: a basic.deliver like theirs, but for the delivery tag.
            header: their content header.
            bodies: their bodies, all of one size.
        """


class DeliveryAssembler(MethodAssembler):
    """Assembles the input of a client, whose methods with content are those that a broker sends.

    Each has a delivery tag of its own: no two are alike, so that there are no patterns of them.
    """

    __slots__ = ()

    def __init__(self, receiver: DeliveryReceiver, max_frame: int, max_body: int, budget: Budget) -> None:
        super().__init__(receiver, max_frame, max_body, budget)
        self._with_content = _TO_CLIENT
        self._single = sys.maxsize

    def _is_repeated(self, command: int, header: int) -> bool:  # noqa: ARG002 – as the other end has it
        """Never."""
        return False

    def _take_message(self, data: bytes, at: int, header_at: int, end: int, channel: int) -> int:
        """As `MethodAssembler._take_message`, with the deliveries that follow it, if they are alike."""
        after = super()._take_message(data, at, header_at, end, channel)
        if (
            not after
            or end - after < MIN_RUN * (after - at)
            or after - at > MAX_BODY
            or data[at + _HEAD : at + _HEAD + 4] != _DELIVER
            or self.is_paused
            or channel in self._dropping
            or not cast(DeliveryReceiver, self._receiver).takes_runs(channel)
        ):
            return after
        return self._take_deliveries(data, at, header_at, after, end, channel)

    def _take_deliveries(self, data: bytes, at: int, header_at: int, after: int, end: int, channel: int) -> int:
        """Pass on the deliveries that follow one, as long as they are alike. Returns where they end.

        Args:
            data: the buffer.
            at: where that delivery begins.
            header_at: where its header frame begins.
            after: where it ends.
            end: where the buffer ends.
            channel: its channel.
        """
        stride, header_size = after - at, _unpack(data, header_at)[2]
        body_at = header_at + header_size + OVERHEAD + _HEAD
        tag_at = at + _HEAD + len(_DELIVER)
        tag_at += 1 + data[tag_at]
        tag = int.from_bytes(data[tag_at : tag_at + _TAG_BYTES], "big")
        before, rest = data[at:tag_at], data[tag_at + _TAG_BYTES : body_at]
        to_tag, to_rest, starts_with = tag_at - at, tag_at + _TAG_BYTES - at, data.startswith
        place, count, most = after, 0, min((end - after) // stride, MAX_RUN, _MAX_TAG - tag)
        while (
            count < most
            and starts_with((tag + count + 1).to_bytes(_TAG_BYTES, "big"), place + to_tag)
            and starts_with(before, place)
            and starts_with(rest, place + to_rest)
            and data[place + stride - 1] == FRAME_END
        ):
            place += stride
            count += 1
        if count < MIN_RUN:
            return after
        size, begin = after - 1 - body_at, body_at - at
        starts = array("I", range(begin, begin + (count + 1) * stride, stride)).tobytes()
        self.frames += 3 * count
        self.messages += count
        self._note(size, count)
        payload, header = data[at + _HEAD : header_at - 1], data[header_at + _HEAD : body_at - _HEAD - 1]
        bodies = Bodies(data, after, starts, stride - size, size, size)
        cast(DeliveryReceiver, self._receiver).delivered_run(channel, tag + 1, payload, header, bodies)
        return place


_DELIVER: Final = BY_NAME["basic.deliver"].code.to_bytes(4, "big")
_TAG_BYTES: Final = 8
_MAX_TAG: Final = (1 << 63) - 1
