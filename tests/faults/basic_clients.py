"""Clients of AMQP 0-9-1 of a simulated broker: they tell the model what they ask, and what they are told.

What the protocol tells a client, and what it does not:

    publishing with confirms   basic.ack is a promise; after basic.nack nobody gets the message
    tx.commit-ok               a promise for all that is part of it
    basic.ack of a delivery    has no answer: after it the message may be there or not, until the broker is stopped
    basic.nack                 likewise; that it was carried out is known from the answer to a later method
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from qstore.formats.amqp_0_9_1.codes import ReplyCode
from qstore.formats.amqp_0_9_1.frames import (
    BODY,
    HEADER,
    METHOD,
    OVERHEAD,
    PROTOCOL_HEADER,
    decode_frame,
    encode_content,
    encode_frame,
)
from qstore.formats.amqp_0_9_1.methods import decode_method, encode_method
from qstore.formats.amqp_0_9_1.properties import Properties, encode_header
from tests.faults.broker_model import Copy, MessageModel, Model, Move, QueueModel, Transaction
from tests.faults.store_model import require

EXPECTED: Final = frozenset({ReplyCode.NOT_FOUND, ReplyCode.PRECONDITION_FAILED})
"""Why an innocent client's channel is closed: another one has deleted its queue, or a journal is full at commit."""
_MAX_FRAME: Final = 4096

Done = Callable[[], None]


class BasicSession:
    """A connection with one channel.

    Args:
        model: what is expected.
        publisher: who sends its messages.
        queues: what it consumes.
        credit: messages that it may have of all of them together.
        transactional: whether all it does is in transactions; otherwise it publishes with confirms.

    Attributes:
        is_ready, has_ended, has_failed, held, accepts, transaction, is_transactional: as of `ModelSession`, by
            delivery tag.
        waiting: number of a message -> what its confirm means.
    """

    def __init__(
        self, model: Model, publisher: str, queues: list[QueueModel], *, credit: int, transactional: bool
    ) -> None:
        self.model, self.publisher, self.queues, self._credit = model, publisher, queues, credit
        self.is_transactional = transactional
        self.is_ready = self.has_ended = self.has_failed = False
        self.held: dict[int, Copy] = {}
        self.accepts: dict[int, list[Copy]] = {}
        self.waiting: dict[int, MessageModel] = {}
        self.transaction = Transaction()
        self._committing: list[Transaction] = []
        self._accepted: dict[int, Copy] = {}  # in the transaction
        self._answers: list[Done] = []  # to each basic.qos
        self._published = 0
        self._output = bytearray(PROTOCOL_HEADER)
        self._input = bytearray()
        self._delivery: tuple[dict[str, Any], bytes] | None = None

    # ---- as a client of a wire ----

    def take_output(self) -> bytes:
        """What is to be sent."""
        output, self._output = bytes(self._output), bytearray()
        return output

    def receive(self, data: bytes) -> None:
        """Take what the broker has sent."""
        self._input += data
        received, at = bytes(self._input), 0
        while (frame := decode_frame(received, at, 1 << 20)) is not None:
            at += OVERHEAD + len(frame.payload)
            if frame.type == METHOD:
                method, values = decode_method(frame.payload)
                self._method(method.name, values)
            elif frame.type in (HEADER, BODY):
                self._content(frame.type, frame.payload)
        del self._input[:at]

    def _send(self, name: str, channel: int = 1, /, **values: Any) -> None:
        self._output += encode_frame(METHOD, channel, encode_method(name, **values))

    def _method(self, name: str, values: dict[str, Any]) -> None:
        if name == "connection.start":
            self._send("connection.start-ok", 0, mechanism="ANONYMOUS", response=b"", locale="en_US")
        elif name == "connection.tune":
            self._send("connection.tune-ok", 0, channel_max=1, frame_max=_MAX_FRAME, heartbeat=0)
            self._send("connection.open", 0, virtual_host="/")
        elif name == "connection.open-ok":
            self._send("channel.open")
        elif name == "channel.open-ok":
            self._opened()
        elif name == "basic.deliver":
            self._delivery = values, b""
        elif name in ("basic.ack", "basic.nack"):
            self._confirmed(values["delivery_tag"], multiple=values["multiple"], is_done=name == "basic.ack")
        elif name == "basic.qos-ok":
            self._answers.pop(0)()
        elif name == "tx.commit-ok":
            self.model.committed(self._committing.pop(0))
        elif name in ("channel.close", "connection.close"):
            self._closed(name, values)

    def _opened(self) -> None:
        self.is_ready = True
        self._send("tx.select" if self.is_transactional else "confirm.select")
        self._sync(lambda: None)
        for queue in self.queues:
            self._send("basic.consume", queue=queue.name, consumer_tag=queue.name)

    def _sync(self, done: Done) -> None:
        """Ask for something, without an effect, that is answered when all before was done."""
        self._answers.append(done)
        self._send("basic.qos", prefetch_count=self._credit, **{"global": True})

    def _content(self, kind: int, payload: bytes) -> None:
        assert self._delivery is not None
        values, size = self._delivery
        if kind == HEADER:
            self._delivery = values, payload[4:12]
            return
        require(len(payload) == int.from_bytes(size), "a body in several frames")
        self._delivery = None
        queue = next(each for each in self.queues if each.name == values["consumer_tag"])
        number, is_marked = int(payload.partition(b":")[0]), values["redelivered"]
        copy = self.model.delivered(self, queue, number, payload, is_marked=is_marked)
        self.held[values["delivery_tag"]] = copy

    def _confirmed(self, tag: int, *, multiple: bool, is_done: bool) -> None:
        numbers = [each for each in self.waiting if each <= tag] if multiple else [tag]
        for number in numbers:
            require(number in self.waiting, f"{number} is confirmed twice, or never was published")
            message = self.waiting.pop(number)
            if is_done:
                self.model.published(message)
            else:
                self.model.forget([message])

    def _closed(self, name: str, values: dict[str, Any]) -> None:
        self._send(f"{name}-ok", int(name == "channel.close"))
        code = values["reply_code"]
        if name == "channel.close":
            self.has_failed = True
            require(code in EXPECTED, f"{code}: {values['reply_text']}")
            if code == ReplyCode.PRECONDITION_FAILED:
                require(bool(self._committing), values["reply_text"])
                self.model.aborted(self._committing.pop(0))
        else:
            require(code == ReplyCode.CONNECTION_FORCED, f"{code}: {values['reply_text']}")
        self.end()

    def end(self) -> None:
        """It is over: what was not confirmed may be done or not, and what it has goes back."""
        if self.has_ended:
            return
        self.has_ended, self.is_ready = True, False
        if not self.transaction.is_sent:
            self.model.forget(self.transaction.messages)
        for copy in (*self.held.values(), *self._accepted.values()):
            if copy.holder is self:
                self.model.back(self.model.give_back([copy]), is_marked=True)
        self.held.clear()
        self._accepted.clear()

    # ---- what it asks ----

    def publish(self, message: MessageModel) -> None:
        """Send a message that the model has."""
        properties = Properties(
            delivery_mode=2 if message.persistent else 1,
            priority=message.priority,
            expiration=None if message.ttl is None else str(int(message.ttl * 1000)),
        )
        exchange = "" if message.exchange is None else message.exchange.name
        payload = encode_method("basic.publish", exchange=exchange, routing_key=message.key)
        header = encode_header(len(message.body), properties)
        self._output += b"".join(encode_content(1, payload, header, message.body, _MAX_FRAME))
        if message.transaction is None:
            self._published += 1
            self.waiting[self._published] = message

    def accept(self, numbers: list[int]) -> None:
        """Acknowledge messages, with `multiple` where that is the same; in a transaction, at commit."""
        everything = [each for each in self.held if each <= max(numbers)]
        copies = [self.held.pop(number) for number in numbers]
        if self.is_transactional:
            self.transaction.dequeues += copies
            self._accepted.update(zip(numbers, copies, strict=True))
        else:
            token = object()
            for copy in copies:
                copy.leaving.add(token)
            self.accepts[len(self.accepts)] = copies
        if sorted(numbers) == sorted(everything):
            self._send("basic.ack", delivery_tag=max(numbers), multiple=True)
        else:
            for number in numbers:
                self._send("basic.ack", delivery_tag=number)

    def give_back(self, numbers: list[int], *, is_marked: bool) -> None:
        """Give messages back; a transactional client acknowledges them, since it could only do so at commit."""
        if self.is_transactional:
            self.accept(numbers)
            return
        given = self.model.give_back([self.held.pop(number) for number in numbers])
        for number in numbers:
            self._send("basic.nack", delivery_tag=number, requeue=True)
        self._sync(lambda: self.model.back(given, is_marked=True))

    def reject(self, numbers: list[int]) -> None:
        """Have messages moved, or dropped where there is no alternate exchange; those that cannot be are accepted."""
        moves: list[Move] = []
        going: list[int] = []
        for number in numbers:
            copy = self.held[number]
            move = None if copy.queue.alternate is None else self.model.move(copy)
            if move is not None:
                moves.append(move)
            elif copy.queue.alternate is None:
                copy.leaving.add(self)
            else:
                continue
            going.append(number)
        if not going:
            self.accept(numbers)
            return
        for number in going:
            del self.held[number]
            self._send("basic.reject", delivery_tag=number, requeue=False)

    def commit(self) -> None:
        """Commit."""
        transaction, self.transaction = self.transaction, Transaction()
        self.model.commit(transaction)
        self._accepted.clear()
        self._committing.append(transaction)
        self._send("tx.commit")

    def rollback(self) -> None:
        """Roll back: what was acknowledged is held again."""
        transaction, self.transaction = self.transaction, Transaction()
        self.model.forget(transaction.messages)
        self.held.update(self._accepted)
        self._accepted.clear()
        self._send("tx.rollback")

    def complete(self) -> None:
        """There is nothing to tell."""
