"""Clients of a simulated broker: machines that report their requests, and the answers, to a model.

`ModelSession` speaks AMQP 0-10, `BasicSession` AMQP 0-9-1. What 0-9-1 tells a client, and what it does not:

    publishing with confirms   basic.ack is a promise; after basic.nack nobody gets the message
    tx.commit-ok               a promise for all that is part of it
    basic.ack of a delivery    has no answer: after it the message may be there or not, until the broker is stopped
    basic.nack                 likewise; that it was carried out is known from the answer to a later method
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from qstore.broker.security.sasl.simple import AnonymousClient
from qstore.formats.amqp_0_9_1.codes import ReplyCode
from qstore.formats.amqp_0_9_1.frames import FRAME_MIN_SIZE, PROTOCOL_HEADER
from qstore.formats.amqp_0_9_1.methods import BY_NAME as METHODS_BY_NAME
from qstore.formats.amqp_0_9_1.properties import Properties
from qstore.formats.amqp_0_10.codes import CreditUnit, ErrorCode
from qstore.formats.amqp_0_10.commands import decode_command, encode_command
from qstore.formats.amqp_0_10.structs import DELIVERY_PROPERTIES, decode_struct, encode_struct
from tests.faults.broker_model import Copy, MessageModel, Model, Move, QueueModel, Seen, Transaction
from tests.faults.simulator import require
from tests.support.basic_peer import BasicWire, Received
from tests.support.compiled import ClientConnection, ClientSession
from tests.support.raw_peer import UNLIMITED, ranges_of

EXPECTED: Final = frozenset({ErrorCode.RESOURCE_LIMIT_EXCEEDED, ErrorCode.RESOURCE_DELETED, ErrorCode.NOT_FOUND})
"""Errors that an innocent client may get: a journal is full, or another client has deleted a queue."""

Done = Callable[[], None]


def read_delivery(header: bytes, body: bytes) -> Seen:
    """What a transfer's segments say. The body begins with the message's number."""
    size = 4 + int.from_bytes(header[:4], "big")
    properties = decode_struct(DELIVERY_PROPERTIES, header, 0, size)
    return Seen(int(body.partition(b":")[0]), body, bool(properties["redelivered"]))


class OneSession(ClientConnection):
    """A connection with one session, which is attached when it is open."""

    def __init__(self, session: ClientSession) -> None:
        super().__init__(lambda _: AnonymousClient(), max_message_bytes=1 << 20)
        self.session = session
        session.transport = self

    def on_open(self) -> None:
        self.attach(self.session)


class Watcher(ClientSession):
    """Browses queues."""

    def __init__(self, queues: list[str]) -> None:
        super().__init__(b"watcher", 0, None)
        self._queues = queues
        self.seen: dict[str, list[Seen]] = {name: [] for name in queues}

    def on_attached(self) -> None:
        for name in self._queues:
            subscribe(self, name, acquire_mode=1, credit=UNLIMITED)

    def on_command(self, payload: bytes, header: bytes | None, body: bytes | None) -> None:
        self.begin_command()
        command, _, values = decode_command(payload)
        require(command.name == "message.transfer", f"{command.name}: {values}")
        self.seen[values["destination"]].append(read_delivery(header or b"", body or b""))


def subscribe(session: ClientSession, name: str, *, acquire_mode: int, credit: int) -> None:
    """Subscribe to a queue, under its name, with a window of `credit` messages."""
    session.send("message.subscribe", queue=name, destination=name, accept_mode=acquire_mode, acquire_mode=acquire_mode)
    session.send("message.flow", destination=name, unit=CreditUnit.BYTE, value=UNLIMITED)
    session.send("message.flow", destination=name, unit=CreditUnit.MESSAGE, value=credit)


class ModelSession(ClientSession):
    """A session that reports to the model.

    Args:
        model: what is expected.
        publisher: who sends its messages.
        queues: what it consumes.
        credit: messages that it may have of each of them.
        transactional: whether all it does is in transactions.

    Attributes:
        is_ready: it can be used; `has_ended`: it cannot any more; `has_failed`: the broker has said why.
        held: number of a transfer -> the copy that it brought.
        waiting: number of a command -> what its completion means.
        accepts: those that the broker has to keep, once they have reached it: number -> copies.
        failing: number of a command -> what it means that there is no room for it.
        transaction: what is to be committed next.
    """

    def __init__(
        self, model: Model, name: str, publisher: str, queues: list[QueueModel], *, credit: int, transactional: bool
    ) -> None:
        super().__init__(name.encode(), 0, None)
        self.model, self.publisher, self.queues, self._credit = model, publisher, queues, credit
        self.is_transactional = transactional
        self.is_ready = self.has_ended = self.has_failed = False
        self.held: dict[int, Copy] = {}
        self.waiting: dict[int, Done] = {}
        self.accepts: dict[int, list[Copy]] = {}
        self.failing: dict[int, Done] = {}
        self.transaction = Transaction()
        self._accepted: dict[int, Copy] = {}  # in the transaction

    # ---- what the broker tells ----

    def on_attached(self) -> None:
        self.is_ready = True
        if self.is_transactional:
            self.send("tx.select")
        for queue in self.queues:
            subscribe(self, queue.name, acquire_mode=0, credit=self._credit)

    def on_peer_completed(self, first: int, last: int) -> None:
        for number in [each for each in self.waiting if first <= each <= last]:
            self.failing.pop(number, None)
            self.accepts.pop(number, None)
            self.waiting.pop(number)()

    def on_command(self, payload: bytes, header: bytes | None, body: bytes | None) -> None:
        number = self.begin_command()
        command, _, values = decode_command(payload)
        if command.name == "message.transfer":
            seen = read_delivery(header or b"", body or b"")
            queue = next(each for each in self.queues if each.name == values["destination"])
            self.held[number] = self.model.delivered(self, queue, seen.number, seen.body, is_marked=seen.is_marked)
        elif command.name == "execution.exception":
            self._failed(values)

    def _failed(self, values: dict[str, Any]) -> None:
        self.has_failed = True
        code = values["error_code"]
        require(code in EXPECTED, f"{code}: {values['description']}")
        failing = self.failing.pop(values["command_id"], None)
        if failing is not None and code == ErrorCode.RESOURCE_LIMIT_EXCEEDED:
            self.waiting.pop(values["command_id"], None)
            failing()

    def on_detached(self, code: int) -> None:
        self.end()

    def end(self) -> None:
        """It is over: what was not completed may be done or not, and what it has goes back."""
        if self.has_ended:
            return
        self.has_ended, self.is_ready = True, False
        if not self.transaction.is_sent:
            self.model.forget(self.transaction.messages)
        had = (*self.held.values(), *self._accepted.values())
        self.model.left_by(self, had, is_transactional=self.is_transactional)
        self.held.clear()
        self._accepted.clear()

    # ---- what it asks ----

    def ask(self, name: str, done: Done, **values: Any) -> int:
        """Send a command; `done` is called when it is completed."""
        number = self.send(name, **values)
        self.waiting[number] = done
        return number

    def publish(self, message: MessageModel) -> None:
        """Send a message that the model has."""
        mode = 2 if message.persistent else 1
        fields: dict[str, Any] = {"delivery_mode": mode, "routing_key": message.key, "priority": message.priority}
        if message.ttl is not None:
            fields["ttl"] = int(message.ttl * 1000)
        name = "" if message.exchange is None else message.exchange.name
        payload = encode_command("message.transfer", destination=name, accept_mode=1)
        number = self.send_payload(payload, encode_struct(DELIVERY_PROPERTIES, fields), message.body)
        if message.transaction is None:
            self.waiting[number] = lambda: self.model.published(message)
            self.failing[number] = lambda: self.model.forget([message])

    def _take(self, numbers: list[int]) -> list[Copy]:
        return [self.held.pop(number) for number in numbers]

    def accept(self, numbers: list[int]) -> None:
        """Accept messages; in a transaction, at commit."""
        copies = [self.held[number] for number in numbers]
        if self.is_transactional:
            self._take(numbers)
            self.transaction.dequeues += copies
            self.send("message.accept", transfers=ranges_of(numbers))
            self._accepted.update(zip(numbers, copies, strict=True))
            return
        self._take(numbers)
        token = object()
        for copy in copies:
            copy.leaving.add(token)
        command = self.ask("message.accept", lambda: self.model.gone(copies), transfers=ranges_of(numbers))
        self.accepts[command] = copies

    def give_back(self, numbers: list[int], *, is_marked: bool) -> None:
        """Give messages back."""
        given = self.model.give_back(self._take(numbers))
        done = lambda: self.model.back(given, is_marked=is_marked)  # noqa: E731
        self.ask("message.release", done, transfers=ranges_of(numbers), set_redelivered=is_marked)

    def reject(self, numbers: list[int]) -> None:
        """Have messages moved, or dropped where there is no alternate exchange; those that cannot be are accepted."""
        moves: list[Move] = []
        plain: list[Copy] = []
        going: list[int] = []
        for number in numbers:
            copy = self.held[number]
            move = None if copy.queue.alternate is None else self.model.move(copy)
            if move is not None:
                moves.append(move)
            elif copy.queue.alternate is None:
                plain.append(copy)
            else:
                continue
            going.append(number)
        if not going:
            self.accept(numbers)
            return
        self._take(going)
        token = object()
        for copy in plain:
            copy.leaving.add(token)

        def done() -> None:
            self.model.gone(plain)
            for each in moves:
                self.model.moved(each)

        self.ask("message.reject", done, transfers=ranges_of(going))

    def commit(self) -> None:
        """Commit."""
        transaction, self.transaction = self.transaction, Transaction()
        self.model.commit(transaction)
        self._accepted.clear()
        number = self.ask("tx.commit", lambda: self.model.committed(transaction))
        self.failing[number] = lambda: self.model.aborted(transaction)

    def rollback(self) -> None:
        """Roll back: what was accepted is held again."""
        transaction, self.transaction = self.transaction, Transaction()
        self.model.forget(transaction.messages)
        self.held.update(self._accepted)
        self._accepted.clear()
        self.send("tx.rollback")

    def complete(self) -> None:
        """Tell the broker that what it sent has come: that moves the window."""
        self.complete_received()
        if self.is_ready:
            self.send_completed()


# ---- AMQP 0-9-1 ----

EXPECTED_BASIC: Final = frozenset({ReplyCode.NOT_FOUND, ReplyCode.PRECONDITION_FAILED})
"""Why an innocent client's channel is closed: another one has deleted its queue, or a journal is full.

That is told at commit, or where rejected messages go to another queue.
"""


def _is_rejecting(values: dict[str, Any]) -> bool:
    """Whether a channel is closed since rejected messages have no room where they go: each may be in either place."""
    method = METHODS_BY_NAME["basic.reject"]
    return bool(values["class_id"] == method.class_id and values["method_id"] == method.method_id)


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
        self._wire = BasicWire()
        self._output = bytearray(PROTOCOL_HEADER)

    # ---- as a client of a wire ----

    def take_output(self) -> bytes:
        """What is to be sent."""
        output, self._output = bytes(self._output), bytearray()
        return output

    def receive(self, data: bytes) -> None:
        """Take what the broker has sent."""
        self._wire.feed(data)
        received = self._wire.received
        while received:
            self._received(received.pop(0))

    def _send(self, name: str, channel: int = 1, /, **values: Any) -> None:
        self._output += self._wire.encode(name, channel, **values)

    def _received(self, found: Received) -> None:
        name, values = found.name, found.values
        if name == "connection.start":
            self._send("connection.start-ok", 0, mechanism="ANONYMOUS", response=b"", locale="en_US")
        elif name == "connection.tune":
            self._send("connection.tune-ok", 0, channel_max=1, frame_max=FRAME_MIN_SIZE, heartbeat=0)
            self._send("connection.open", 0, virtual_host="/")
        elif name == "connection.open-ok":
            self._send("channel.open")
        elif name == "channel.open-ok":
            self._opened()
        elif name == "basic.deliver":
            self._delivered(values, found.body)
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

    def _delivered(self, values: dict[str, Any], payload: bytes) -> None:
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
            require(code in EXPECTED_BASIC, f"{code}: {values['reply_text']}")
            if code == ReplyCode.PRECONDITION_FAILED and not _is_rejecting(values):
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
        had = (*self.held.values(), *self._accepted.values())
        self.model.left_by(self, had, is_transactional=self.is_transactional)
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
        self._output += self._wire.message(message.key, message.body, properties, exchange=exchange)
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
