"""One consumer of a queue: its credit, and sending messages to it.

    no-ack         a message is dequeued when it was sent
    otherwise      it waits for its acknowledgement, and takes one of the consumer's and one of the channel's credit
                   (basic.qos): when either is used up, nothing is sent until messages are acknowledged

`deliver` handles every outgoing message: it adds the frames of a basic.deliver to the connection's output. Their fixed
parts are prepared once: the beginning of the method for each length of exchange and routing key, and the frame headers
for each size of header and body.

Source: AMQP 0-9-1, class basic; RabbitMQ, "Consumer Prefetch".
"""

from __future__ import annotations

import struct
from collections.abc import Hashable
from typing import TYPE_CHECKING, Final

from qstore.broker.model.queues.consumers import NOT_FOR_ME, REFUSED, TAKEN, TAKEN_LAST, PerConsumerOrder
from qstore.broker.model.queues.entry import Entry
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.queues.stream import Stream, StreamRun
from qstore.broker.model.run import KeyedRun, MessageRun, RunEntry
from qstore.broker.protocols.amqp_0_9_1.errors import SoftError
from qstore.broker.protocols.amqp_0_9_1.message import BasicMessage, as_basic, run_as_basic
from qstore.broker.protocols.consumer import FramedConsumer, HeldRun, SelectorCheck, with_numbers
from qstore.broker.protocols.message import native_of
from qstore.broker.protocols.output import CONVERSION_OF_HEADER, COST_OF_CONVERSION, COST_OF_MESSAGE
from qstore.formats.amqp_0_9_1.codes import ReplyCode
from qstore.formats.amqp_0_9_1.frames import BODY, FRAME, FRAME_END, HEADER, METHOD
from qstore.formats.amqp_0_9_1.methods import deliver_start, encode_deliver, encode_get_ok
from qstore.formats.kernels import write_deliveries, write_mixed
from qstore.formats.kernels.bodies import SizeField
from qstore.formats.values import EMPTY_MAP, TypedMap

if TYPE_CHECKING:
    from qstore.broker.protocols.amqp_0_9_1.channel import Channel

UNLIMITED: Final = 1 << 62
_MAX_PREFETCH: Final = 0xFFFF
_STARTS_KEPT: Final = 1024
_END: Final = bytes((FRAME_END,))
_TAG: Final = struct.Struct(">QB")
_pack_frame: Final = FRAME.pack
_pack_tag: Final = _TAG.pack
_NO_TAG: Final = bytes(_TAG.size)  # not redelivered
_MARKED_NO_TAG: Final = _pack_tag(0, True)


class Delivery:
    """A message that was delivered and waits to be acknowledged.

    Args:
        queue, entry: the message.
        consumer: its consumer; None for basic.get.

    Attributes:
        queue, entry, consumer: as above.
    """

    __slots__ = ("consumer", "entry", "queue")

    def __init__(self, queue: Queue, entry: Entry, consumer: BasicConsumer | None) -> None:
        self.queue, self.entry, self.consumer = queue, entry, consumer

    @property
    def is_acquired(self) -> bool:
        """Whether its consumer has acquired the message, and not only read it."""
        return self.consumer is None or self.consumer.acquires


class BasicConsumer(FramedConsumer):
    """A consumer.

    Args:
        channel: its channel.
        tag: its tag.
        queue: the queue that it consumes.
        no_ack: whether messages need no acknowledgement.
        no_local: whether it gets no messages that were published over its own connection.
        limit: how many messages may be unacknowledged.
        arguments: the arguments of basic.consume.

    Attributes:
        channel, tag, queue, no_ack, limit: as above.
        credit: messages that may be delivered to it before some are acknowledged.
        delivered: messages delivered.
    """

    __slots__ = (
        "_no_local", "_start", "_starts", "channel", "credit", "delivered", "is_cancelled", "limit", "no_ack", "tag",
    )  # fmt: skip

    def __init__(
        self,
        channel: Channel,
        tag: str,
        queue: Queue,
        *,
        no_ack: bool,
        no_local: bool,
        limit: int,
        arguments: TypedMap = EMPTY_MAP,
    ) -> None:
        acquires = not queue.is_browse_only
        super().__init__(tag, queue, acquires=acquires, is_accepting=not no_ack, arguments=arguments)
        self.channel, self.tag, self.no_ack, self.limit = channel, tag, no_ack, limit
        self.is_cancelled = False
        self.credit = UNLIMITED if no_ack else limit
        self.delivered = 0
        self._no_local = no_local
        self._start = deliver_start(tag.encode("utf-8", "surrogateescape"))
        self._starts: dict[int, bytes] = {}  # by length of exchange and key: frame header, begin of method

    @property
    def publisher(self) -> object:
        """Identifies messages published over its connection."""
        return self.channel.connection.publisher

    @property
    def kind(self) -> Hashable:
        """Equal for consumers that decline the same messages."""
        return "AMQP 0-9-1", self.channel.connection.max_payload, self.publisher if self._no_local else None

    @property
    def prefetch(self) -> int:
        """As `ManagedSubscription.prefetch`: that of its channel when it began."""
        return self.limit if self.limit <= _MAX_PREFETCH else 0

    @property
    def has_credit(self) -> bool:
        """As `Consumer.has_credit`."""
        return self.credit > 0 and (self.no_ack or self.channel.credit > 0)

    def wake(self) -> None:
        """Mark the consumer as ready, if it can take messages."""
        if self.is_waiting or self.is_cancelled or not self.channel.can_send or not self.has_credit:
            return
        if not self.queue.is_deleted:
            self.queue.wake(self)

    def deliver(self, entry: Entry) -> int:
        """Send a message, if there is credit for it. Returns as `Consumer.deliver` does."""
        channel = self.channel
        connection = channel.connection
        if self.credit <= 0 or connection.room <= 0 or not channel.can_send:
            return REFUSED
        no_ack = self.no_ack
        if not no_ack and channel.credit <= 0:
            return REFUSED
        message = entry.message
        if entry.is_redelivered:
            message = self.queue.as_returned(entry)
        if not isinstance(message, BasicMessage):
            converted = native_of(message, BasicMessage, as_basic)
            if converted is None:
                connection.room -= COST_OF_CONVERSION
                connection.has_output()  # renews its room
                return NOT_FOR_ME
            message = converted
        if message is not entry.message:  # it was converted, or its headers were changed
            connection.room -= COST_OF_CONVERSION + CONVERSION_OF_HEADER * len(message.header)
            connection.has_output()
        header, body, routed = message.header, message.body, message.routed
        if len(header) > connection.max_payload:
            return NOT_FOR_ME
        if self._no_local and message.handling.publisher is connection.publisher:
            return NOT_FOR_ME
        tag = channel.last_tag = channel.last_tag + 1
        length = len(body)
        if 0 < length <= connection.max_payload and isinstance(body, bytes):
            start = self._starts.get(len(routed)) or self._make_start(len(routed))
            header_head = self._heads.get(len(header)) or self.make_head(len(header))
            body_head = self._body_heads.get(length) or self.make_body_head(length)
            connection.output += (
                start, _pack_tag(tag, entry.is_redelivered), routed, header_head, header, body_head, body, _END
            )  # fmt: skip
            connection.frames_sent += 3
            connection.messages_sent += 1
        else:
            channel.send_content(encode_deliver(self._start, tag, entry.is_redelivered, routed), message)
        self.delivered += 1
        connection.room -= length + len(header) + COST_OF_MESSAGE
        connection.has_output()
        if no_ack:
            if self.acquires:
                channel.dequeue(self.queue, entry)
        else:
            channel.unsettled[tag] = Delivery(self.queue, entry, self)
            self.credit -= 1
            channel.credit -= 1
            if self.credit <= 0 or channel.credit <= 0:
                return TAKEN_LAST
        return TAKEN if connection.room > 0 and channel.can_send else TAKEN_LAST

    def room_for(self, run: MessageRun) -> int:
        """As `Consumer.room_for`."""
        channel = self.channel
        connection = channel.connection
        if connection.room <= 0 or not channel.can_send:
            return 0
        found = run_as_basic(run)
        if found is None:
            return 0
        message, bodies, _ = found
        if len(message.header) > connection.max_payload or not 0 < bodies.largest <= connection.max_payload:
            return 0
        if self._no_local and run.may_be_of(connection.publisher):
            return 0
        room = -(-connection.room // (run.largest + COST_OF_MESSAGE))  # until nothing is left: the last may exceed it
        return min(room, self.credit) if self.no_ack else min(room, self.credit, channel.credit)

    def deliver_run(self, run: RunEntry) -> int:
        """As `Consumer.deliver_run`."""
        channel, messages, count = self.channel, run.run, run.count
        connection, found = channel.connection, run_as_basic(messages)
        assert found is not None, "room_for has found it"
        message, bodies, field = found
        header, routed = message.header, message.routed
        if message is not messages.template:
            connection.room -= COST_OF_CONVERSION + CONVERSION_OF_HEADER * len(header)
        start = self._starts.get(len(routed)) or self._make_start(len(routed))
        header_head = self._heads.get(len(header)) or self.make_head(len(header))
        fields: tuple[SizeField, ...] = ()
        body_head = self._body_heads.get(bodies.largest) or self.make_body_head(bodies.largest)
        first = channel.last_tag + 1
        no_tag = _MARKED_NO_TAG if run.is_redelivered else _NO_TAG
        before = b"".join((start, no_tag, routed, header_head))
        frames = b"".join((before, header, body_head))
        if field is not None:
            fields = (field.moved(len(before)), SizeField(len(frames) - 4, 4))
        if isinstance(messages, KeyedRun):
            kinds = messages.kinds[run.first : run.first + count]
            templates = self._templates_of(messages, kinds, no_tag, header_head + header + body_head)
            connection.output.append(
                write_mixed(
                    templates, messages.kinds, len(start), first, fields, bodies.data, bodies.at, bodies.starts,
                    bodies.gap, run.first, count, _END,
                )
            )  # fmt: skip
        else:
            connection.output.append(
                write_deliveries(
                    frames, len(start), first, fields, bodies.data, bodies.at, bodies.starts, bodies.gap, run.first,
                    count, _END,
                )
            )  # fmt: skip
        channel.last_tag += count
        connection.frames_sent += 3 * count
        connection.messages_sent += count
        self.delivered += count
        connection.room -= run.size + count * COST_OF_MESSAGE
        connection.has_output()
        if self.no_ack:
            channel.dequeue_run(self.queue, run)
        else:
            channel.held_runs.add(HeldRun(self.queue, run, self, first))
            self.credit -= count
            channel.credit -= count
            if self.credit <= 0 or channel.credit <= 0:
                return TAKEN_LAST
        return TAKEN if connection.room > 0 and channel.can_send else TAKEN_LAST

    def _templates_of(self, run: KeyedRun, kinds: bytes, no_tag: bytes, after: bytes) -> list[bytes]:
        """The bytes before the bodies of messages of these kinds, between these bytes; the first ones for others."""
        templates: list[bytes] = []
        for number, message in enumerate(run.templates):
            if number and number not in kinds:
                templates.append(templates[0])
                continue
            assert isinstance(message, BasicMessage)
            routed = message.routed
            start = self._starts.get(len(routed)) or self._make_start(len(routed))
            templates.append(b"".join((start, no_tag, routed, after)))
        return templates

    def _make_start(self, length: int) -> bytes:
        """The frame header of the method, and its beginning."""
        size = len(self._start) + _TAG.size + length
        start = _pack_frame(METHOD, self.channel.number, size) + self._start
        if len(self._starts) < _STARTS_KEPT:
            self._starts[length] = start
        return start

    def encode_head(self, length: int) -> bytes:
        """As `FramedConsumer.encode_head`: the end of the method, and the frame header."""
        return _END + _pack_frame(HEADER, self.channel.number, length)

    def encode_body_head(self, length: int) -> bytes:
        """As `FramedConsumer.encode_body_head`: the end of the header, and the frame header."""
        return _END + _pack_frame(BODY, self.channel.number, length)

    def queue_deleted(self) -> None:
        """The queue was deleted: notify the client, and end the consumer, unless it has ended meanwhile."""
        if not self.is_cancelled:
            self.channel.consumer_lost(self)

    def fail(self, error: Exception) -> None:
        """As `Consumer.fail`: close the channel."""
        if not self.is_cancelled and self.channel.is_open:
            self.channel.connection.fail(self.channel, SoftError(ReplyCode.RESOURCE_ERROR, str(error)))


class TracedConsumer(BasicConsumer):
    """A consumer of a broker that traces sampled messages."""

    __slots__ = ()

    def deliver(self, entry: Entry) -> int:
        """As `BasicConsumer.deliver`."""
        tracer, message = self.channel.broker.tick.tracer, entry.message
        result = super().deliver(entry)
        if tracer is not None and result in (TAKEN, TAKEN_LAST) and tracer.samples(message):
            is_settled = self.no_ack or not self.acquires
            tracer.delivered(self.queue, entry, message, self.channel.connection, is_settled=is_settled)
        return result

    def room_for(self, run: MessageRun) -> int:
        """As `BasicConsumer.room_for`: sampled messages are delivered singly."""
        tracer = self.channel.broker.tick.tracer
        return 0 if tracer is not None and tracer.samples(run.template) else super().room_for(run)


class StreamConsumer(TracedConsumer):
    """A consumer of a stream: each message has its offset in a header."""

    __slots__ = ()

    @property
    def numbers_runs(self) -> bool:
        """As `Reader.numbers_runs`."""
        return True

    def room_for(self, run: MessageRun) -> int:
        """As `BasicConsumer.room_for`: messages of other protocols on a stream are converted singly."""
        can_take = isinstance(run.template, BasicMessage) or not isinstance(self.queue, Stream)
        return super().room_for(run) if can_take else 0

    def deliver_run(self, run: RunEntry) -> int:
        """As `BasicConsumer.deliver_run`."""
        if not isinstance(run, StreamRun):
            return super().deliver_run(run)
        first, count, messages, output = run.first, run.count, run.run, self.channel.connection.output
        message, number, place = messages.template, run.position - 1, len(output)
        assert isinstance(message, BasicMessage)
        result = super().deliver_run(run)
        if run.number_at >= 0:
            start = self._starts.get(len(message.routed)) or self._make_start(len(message.routed))
            at = len(start) + len(_NO_TAG) + len(message.routed) + len(self.make_head(len(message.header)))
            output[place] = with_numbers(output[place], at + run.number_at, number, messages.bodies, first, count)
        return result


class SelectiveConsumer(StreamConsumer):
    """A consumer with a selector, or one that only reads, or that ends when there is nothing for it.

    Args:
        channel, tag, queue, no_ack, no_local, limit, arguments: as for `BasicConsumer`.
        check: its selector; None for all messages.
        browses: whether the messages that it gets stay on the queue.
        closes: whether it ends when there is nothing for it on the queue.
    """

    __slots__ = ("_check", "closes")

    def __init__(
        self,
        channel: Channel,
        tag: str,
        queue: Queue,
        *,
        no_ack: bool,
        no_local: bool,
        limit: int,
        arguments: TypedMap,
        check: SelectorCheck | None,
        browses: bool,
        closes: bool,
    ) -> None:
        super().__init__(channel, tag, queue, no_ack=no_ack, no_local=no_local, limit=limit, arguments=arguments)
        self._check, self.closes = check, closes
        if browses:
            self.acquires = False

    @property
    def kind(self) -> Hashable:
        """As `BasicConsumer.kind`, and equal for equal selectors."""
        publisher = self.publisher if self._no_local else None
        if self._check is None:
            return "AMQP 0-9-1", self.channel.connection.max_payload, publisher
        return "AMQP 0-9-1", self.channel.connection.max_payload, publisher, self._check.text

    def wake(self) -> None:
        """As `BasicConsumer.wake`; it may be time to end."""
        super().wake()
        if self.closes:
            self.channel.may_close(self)

    def room_for(self, run: MessageRun) -> int:
        """As `BasicConsumer.room_for`: none if a selector does not match the messages of the run.

        On a stream each is examined: it has its offset among its headers.
        """
        check = self._check
        room = 0 if self.closes or (check is not None and isinstance(self.queue, Stream)) else super().room_for(run)
        return room if not room or check is None or check.admits_run(run, self.channel.connection) else 0

    def deliver(self, entry: Entry) -> int:
        """Send a message if it matches and there is credit for it. Returns as `Consumer.deliver` does."""
        channel, check = self.channel, self._check
        if self.closes:
            channel.may_close(self)
        if check is None:
            return super().deliver(entry)
        connection = channel.connection
        if self.credit <= 0 or connection.room <= 0 or not channel.can_send:
            return REFUSED
        result = super().deliver(entry) if check.admits(entry) else NOT_FOR_ME
        check.answered(entry, connection, is_refused=result == REFUSED)
        return result


class Getter:
    """The consumer of one basic.get: takes one message, or none. channel.flow does not stop it (AMQP 0-9-1).

    Args:
        channel: its channel.
        queue: the queue.
        no_ack: whether the message needs no acknowledgement.

    Attributes:
        channel, queue: as above.
        is_done: whether it has taken a message.
        acquires, cursor, is_waiting: as in `Consumer`.
    """

    __slots__ = ("_no_ack", "acquires", "channel", "cursor", "is_done", "is_waiting", "queue")
    __deletable__ = ("cursor",)  # mypyc must know what `del` removes

    cursor: Entry

    def __init__(self, channel: Channel, queue: Queue, *, no_ack: bool) -> None:
        self.channel, self.queue, self._no_ack = channel, queue, no_ack
        self.acquires = True
        self.is_done = self.is_waiting = False

    @property
    def kind(self) -> Hashable:
        """As `Consumer.kind`."""
        return "AMQP 0-9-1", self.channel.connection.max_payload, None

    @property
    def has_credit(self) -> bool:
        """As `Consumer.has_credit`."""
        return not self.is_done

    def wake(self) -> None:
        """Mark it as ready, if it can take a message."""
        if not self.is_waiting and not self.is_done and self.channel.can_answer and not self.queue.is_deleted:
            self.queue.wake(self)

    def deliver(self, entry: Entry) -> int:
        """Send the message. Returns as `Consumer.deliver` does."""
        channel = self.channel
        connection = channel.connection
        if self.is_done or connection.room <= 0 or not channel.can_answer:
            return REFUSED
        message = native_of(self.queue.as_returned(entry), BasicMessage, as_basic)
        if message is None or len(message.header) > connection.max_payload:
            return NOT_FOR_ME
        self.is_done = True
        tag = channel.last_tag = channel.last_tag + 1
        left = self.queue.available_count
        if isinstance(self.queue.order, PerConsumerOrder):  # the queue counts distributed messages at the end
            left -= 1
        method = encode_get_ok(tag, entry.is_redelivered, message.routed, left)
        channel.send_content(method, message)
        tracer = channel.broker.tick.tracer
        if tracer is not None and tracer.samples(message):
            tracer.delivered(self.queue, entry, message, connection, is_settled=self._no_ack)
        connection.room -= message.size
        if self._no_ack:
            channel.dequeue(self.queue, entry)
        else:
            channel.unsettled[tag] = Delivery(self.queue, entry, None)
        channel.look_again()
        return TAKEN_LAST

    def room_for(self, run: MessageRun) -> int:  # noqa: ARG002
        """As `Consumer.room_for`: it takes one message."""
        return 0

    def deliver_run(self, run: RunEntry) -> int:
        """As `Consumer.deliver_run`."""
        raise NotImplementedError("basic.get takes one message")

    def queue_deleted(self) -> None:
        """The queue was deleted."""
        self.channel.consumer_lost(self)

    def fail(self, error: Exception) -> None:
        """Nothing to do: it ends by itself."""
