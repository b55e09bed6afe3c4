"""A client of AMQP 1.0 of a simulated broker: as those of `broker_clients`, it reports to a model.

What 1.0 tells a client, and what it does not:

    outcome of a message it sent      accepted is a promise; after rejected nobody gets the message
    outcome of a discharge            accepted is a promise for all that is part of it; after rejected nothing was done
    disposition, settled at once      has no answer: the message may be there or not, until the broker is stopped; that
                                      it was released is known from the answer to a later flow
    disposition, not settled          is answered when the outcome is on the disk
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from qstore.formats.amqp_1_0.codes import Condition
from qstore.formats.amqp_1_0.composites import Composite, encode_composite, read_composite
from qstore.formats.amqp_1_0.frames import AMQP_HEADER
from qstore.formats.amqp_1_0.sections import data_section
from qstore.formats.amqp_1_0.values import Value
from tests.faults.broker_model import Copy, MessageModel, Model, QueueModel, Transaction
from tests.faults.simulator import require
from tests.support.sections_peer import ACCEPTED, RECEIVER, REJECTED, RELEASED, SENDER, FrameWire, Received, address

Done = Callable[[], None]

_CONTROL: Final = 0
_RETURNED: Final = Composite("modified", {"delivery_failed": True})
_VALUE: Final = bytes((0, 0x53, 0x77))
_DATA: Final = bytes((0, 0x53, 0x75))
_SHORT: Final = 0xA0
_GONE: Final = (Condition.NOT_FOUND, Condition.RESOURCE_DELETED)
_WINDOW: Final = 1 << 30


class Sender:
    """A link on which it sends. `sent`: messages; `credit`: those that it may still send."""

    def __init__(self, handle: int) -> None:
        self.handle, self.sent, self.credit = handle, 0, 0


class Receiver:
    """A link on which it receives. `seen`: messages that came."""

    def __init__(self, handle: int, queue: QueueModel) -> None:
        self.handle, self.queue, self.seen = handle, queue, 0


class LinksSession:
    """A connection with one session.

    Args:
        model: what is expected.
        publisher: who sends its messages.
        queues: what it consumes.
        credit: messages that it may have of each of them.
        transactional: whether all that it sends and accepts is in transactions.

    Attributes:
        is_ready, has_ended, has_failed, held, accepts, transaction, is_transactional: as of `ModelSession`, by
            delivery-id.
        waiting: delivery-id of a message -> what its outcomes mean.
    """

    def __init__(
        self, model: Model, publisher: str, queues: list[QueueModel], *, credit: int, transactional: bool
    ) -> None:
        self.model, self.publisher, self.queues, self._credit = model, publisher, queues, credit
        self.is_transactional = transactional
        self.is_ready = self.has_ended = self.has_failed = False
        self.held: dict[int, Copy] = {}
        self.accepts: dict[int, list[Copy]] = {}
        self.waiting: dict[int, Callable[[Composite], None]] = {}
        self.transaction = Transaction()
        self._accepted: dict[int, Copy] = {}  # in the transaction; those that were not settled
        self._settled: list[Copy] = []  # likewise, and they were
        self._txn_id: Value | None = None
        self._unsettled: dict[int, Done] = {}  # number -> what it means that the broker has settled it
        self._echoes: list[Done] = []
        self._pending: list[tuple[Sender, bytes, dict[str, Any], Callable[[Composite], None]]] = []
        self._senders: dict[str, Sender] = {}
        self._receivers: dict[int, Receiver] = {}
        self._handles = self._next_id = 0
        self._wire = FrameWire()
        self._output = bytearray(AMQP_HEADER)
        self._send("open", container_id=publisher, max_frame_size=512)
        self._send("begin", next_outgoing_id=0, incoming_window=_WINDOW, outgoing_window=_WINDOW)

    # ---- as a client of a wire ----

    def take_output(self) -> bytes:
        """What is to be sent."""
        output, self._output = bytes(self._output), bytearray()
        return output

    def receive(self, data: bytes) -> None:
        """Take what the broker has sent."""
        self._wire.feed(data)
        for found in self._whole():
            self._received(found)

    def _whole(self) -> Iterator[Received]:
        """What came, with messages of several frames as one."""
        received, self._wire.received = self._wire.received, []
        while received:
            found = received.pop(0)
            if found.name == "transfer" and found.fields["more"]:
                handle = found.fields["handle"]
                rest = (n for n, each in enumerate(received) if each.name == "transfer")
                following = next((n for n in rest if received[n].fields["handle"] == handle), -1)
                if following < 0:
                    self._wire.received = [found, *received]
                    return
                last = received[following]
                fields = found.fields | {"more": last.fields["more"]}
                received[following] = last._replace(fields=fields, content=found.content + last.content)
            else:
                yield found

    def _send(self, name: str, body: bytes = b"", /, **fields: Any) -> None:
        self._output += self._wire.encode(name, 0, body, **fields)

    def _received(self, found: Received) -> None:
        name, fields = found.name, found.fields
        if name == "begin":
            self._opened()
        elif name == "transfer":
            self._delivered(fields, found.content)
        elif name == "disposition":
            self._told(fields)
        elif name == "flow":
            self._flow(fields)
        elif name == "detach":
            self._detached(fields)
        elif name in ("end", "close"):
            error = fields["error"].fields
            is_full = (
                name == "end" and error["condition"] == Condition.RESOURCE_LIMIT_EXCEEDED
            )  # where rejected ones go
            require(is_full or error["condition"] == Condition.CONNECTION_FORCED, f"{name}: {error}")
            self.has_failed = self.has_failed or is_full  # the connection may be closed right after it
            self._send(name)
            self.end()

    def _opened(self) -> None:
        self._handles = _CONTROL + 1
        if self.is_transactional:
            control = self._senders[""] = Sender(_CONTROL)
            self._attach(control.handle, SENDER, target=Composite("coordinator", {}))
            self._declare()
        else:
            self.is_ready = True
        for queue in self.queues:
            receiver = self._receivers[self._handles] = Receiver(self._handles, queue)
            self._handles += 1
            self._attach(receiver.handle, RECEIVER, source=Composite("source", {"address": address(queue.name)}))
            self._give_credit(receiver)

    def _attach(self, handle: int, role: bool, **ends: Composite) -> None:
        ends = {"source": Composite("source", {}), "target": Composite("target", {}), **ends}
        first = None if role else 0
        self._send("attach", name=f"link-{handle}", handle=handle, role=role, initial_delivery_count=first, **ends)

    def _give_credit(self, receiver: Receiver) -> None:
        held = sum(copy.queue is receiver.queue for copy in (*self.held.values(), *self._accepted.values()))
        self._flow_of(receiver, link_credit=max(1, self._credit - held))

    def _flow_of(self, receiver: Receiver, **fields: Any) -> None:
        self._send(
            "flow", next_incoming_id=0, incoming_window=_WINDOW, next_outgoing_id=0, outgoing_window=_WINDOW,
            handle=receiver.handle, delivery_count=receiver.seen, **fields,
        )  # fmt: skip

    def _flow(self, fields: dict[str, Any]) -> None:
        handle = fields.get("handle")
        if handle in self._receivers:
            self._echoes.pop(0)()
            return
        for sender in self._senders.values():
            if sender.handle == handle:
                sender.credit = fields["delivery_count"] + fields["link_credit"] - sender.sent
        self._send_pending()

    def _detached(self, fields: dict[str, Any]) -> None:
        """The broker has ended a link, whose queue is gone."""
        handle, error = fields["handle"], fields["error"].fields
        require(error["condition"] in _GONE, f"detach: {error}")
        self._send("detach", handle=handle, closed=True)
        receiver = self._receivers.pop(handle, None)
        if receiver is not None:
            mine = [number for number, copy in self.held.items() if copy.queue is receiver.queue]
            given = self.model.give_back([self.held.pop(number) for number in mine])
            self.model.back(given, is_marked=True)
            return
        self._senders = {name: each for name, each in self._senders.items() if each.handle != handle}
        gone = [each for each in self._pending if each[0].handle == handle]
        self._pending = [each for each in self._pending if each[0].handle != handle]
        for _, _, _, done in gone:
            done(REJECTED)

    # ---- its messages ----

    def _queue_up(self, sender: Sender, body: bytes, done: Callable[[Composite], None], **fields: Any) -> None:
        self._pending.append((sender, body, fields, done))
        self._send_pending()

    def _send_pending(self) -> None:
        """Send what credit allows, in order."""
        while self._pending and self._pending[0][0].credit > 0:
            sender, body, fields, done = self._pending.pop(0)
            number = self._next_id
            self._next_id, sender.sent, sender.credit = number + 1, sender.sent + 1, sender.credit - 1
            self.waiting[number] = done
            for frame in self._wire.transfers(sender.handle, number, body, **fields):
                self._output += frame

    def publish(self, message: MessageModel) -> None:
        """Send a message that the model has."""
        name = message.key
        if message.exchange is not None:
            name = f"{message.exchange.name}/{name}" if name else message.exchange.name
        sender = self._senders.get(name)
        if sender is None:
            sender = self._senders[name] = Sender(self._handles)
            self._handles += 1
            self._attach(sender.handle, SENDER, target=Composite("target", {"address": address(name)}))
        header = {
            "durable": message.persistent,
            "priority": message.priority,
            "ttl": None if message.ttl is None else int(message.ttl * 1000),
        }
        content = encode_composite("header", header) + data_section(len(message.body)) + message.body
        transaction = message.transaction
        fields = {} if transaction is None else {"state": self._state(None)}

        def done(outcome: Composite) -> None:
            if transaction is None and outcome.name == "accepted":
                self.model.published(message)
            elif transaction is None:
                require(outcome.name == "rejected", f"a message is {outcome.name}")
                self.model.forget([message])
            elif outcome.name != "transactional-state":  # it was never sent
                transaction.messages.remove(message)
                self.model.forget([message])

        self._queue_up(sender, content, done, **fields)

    def _told(self, fields: dict[str, Any]) -> None:
        first = fields["first"]
        numbers = range(first, fields.get("last", first) + 1)
        require(fields["settled"], "an outcome that is not settled")
        for number in numbers:
            if fields["role"] is RECEIVER:
                require(number in self.waiting, f"{number} has an outcome twice, or never was sent")
                self.waiting.pop(number)(fields["state"])
            elif number in self._unsettled:
                self._unsettled.pop(number)()

    def _delivered(self, fields: dict[str, Any], content: bytes) -> None:
        receiver = self._receivers[fields["handle"]]
        receiver.seen += 1
        body = body_of(content)
        header = content[: content.index(_DATA)]
        number = int(body.partition(b":")[0])
        count, is_first = _returns_in(header)
        copy = self.model.delivered(self, receiver.queue, number, body, is_marked=count > 0)
        require(not is_first or copy.deliveries == 1, f"message {number} was acquired before, and does not say so")
        self.held[fields["delivery_id"]] = copy

    def end(self) -> None:
        """It is over: what has no outcome may be done or not, and what it has goes back."""
        if self.has_ended:
            return
        self.has_ended, self.is_ready = True, False
        self._pending.clear()
        if not self.transaction.is_sent:
            self.model.forget(self.transaction.messages)
        had = (*self.held.values(), *self._accepted.values(), *self._settled)
        self.model.left_by(self, had, is_transactional=self.is_transactional)
        self.held.clear()
        self._accepted.clear()
        self._settled.clear()

    # ---- its outcomes ----

    def _dispose(self, numbers: list[int], state: Composite, *, settled: bool) -> None:
        """Send an outcome, as ranges."""
        ordered = sorted(numbers)
        begin = 0
        for at in range(1, len(ordered) + 1):
            if at == len(ordered) or ordered[at] != ordered[at - 1] + 1:
                first, last = ordered[begin], ordered[at - 1]
                self._send(
                    "disposition", role=RECEIVER, first=first, last=None if first == last else last,
                    settled=settled, state=state,
                )  # fmt: skip
                begin = at

    def _expect(self, numbers: list[int], done: Callable[[int], None]) -> None:
        """What is to be done when the broker has settled a delivery."""
        for number in numbers:
            self._unsettled[number] = lambda number=number: done(number)  # type: ignore[misc]

    def accept(self, numbers: list[int]) -> None:
        """Accept messages, settled at once or not; in a transaction, at its commit."""
        copies = {number: self.held.pop(number) for number in numbers}
        settled = min(numbers) % 2 == 0
        if self.is_transactional:
            self.transaction.dequeues += copies.values()
            if settled:
                self._settled += copies.values()
            else:
                self._accepted.update(copies)
            self._dispose(numbers, self._state(ACCEPTED), settled=settled)
            return
        token = object()
        for copy in copies.values():
            copy.leaving.add(token)
        if settled:
            self.accepts[len(self.accepts)] = list(copies.values())
        else:
            self._expect(numbers, lambda number: self.model.gone([copies[number]]))
        self._dispose(numbers, ACCEPTED, settled=settled)

    def give_back(self, numbers: list[int], *, is_marked: bool) -> None:
        """Give messages back: released, or modified if they count as delivered."""
        given = self.model.give_back([self.held.pop(number) for number in numbers])
        self._dispose(numbers, _RETURNED if is_marked else RELEASED, settled=True)
        self._sync(lambda: self.model.back(given, is_marked=is_marked))

    def _sync(self, done: Done) -> None:
        """Ask for something, without an effect, that is answered when all before was done."""
        for receiver in self._receivers.values():
            self._echoes.append(done)
            self._flow_of(receiver, echo=True)
            return

    def reject(self, numbers: list[int]) -> None:
        """Have messages moved, or dropped where there is no alternate exchange; those that cannot be are accepted."""
        ends: dict[int, Done] = {}
        for number in numbers:
            copy = self.held[number]
            move = None if copy.queue.alternate is None else self.model.move(copy)
            if move is not None:
                ends[number] = lambda move=move: self.model.moved(move)  # type: ignore[misc]
            elif copy.queue.alternate is None:
                copy.leaving.add(self)
                ends[number] = lambda copy=copy: self.model.gone([copy])  # type: ignore[misc]
        if not ends:
            self.accept(numbers)
            return
        for number in ends:
            del self.held[number]
        self._expect(list(ends), lambda number: ends[number]())
        self._dispose(list(ends), REJECTED, settled=False)

    # ---- its transactions ----

    def _state(self, outcome: Composite | None) -> Composite:
        return Composite("transactional-state", {"txn_id": self._txn_id, "outcome": outcome})

    def _declare(self) -> None:
        self.is_ready = False

        def declared(outcome: Composite) -> None:
            require(outcome.name == "declared", f"declare: {outcome}")
            self._txn_id = outcome.fields["txn_id"]
            self.is_ready = not self.has_ended

        self._queue_up(self._senders[""], _VALUE + encode_composite("declare", {}), declared)

    def _discharge(self, done: Callable[[Composite], None], *, fail: bool) -> None:
        command = encode_composite("discharge", {"txn_id": self._txn_id, "fail": fail})
        self._queue_up(self._senders[""], _VALUE + command, done)
        self._declare()

    def commit(self) -> None:
        """Commit, once all that is part of it was sent."""
        if self._pending:
            return
        transaction, self.transaction = self.transaction, Transaction()
        self.model.commit(transaction)
        given = self.model.give_back(transaction.dequeues)
        self._accepted.clear()
        self._settled.clear()

        def done(outcome: Composite) -> None:
            if outcome.name == "accepted":
                self.model.committed(transaction)
                return
            condition = outcome.fields["error"].fields["condition"]
            require(condition == Condition.TRANSACTION_ROLLBACK, f"discharge: {outcome}")
            self.model.aborted(transaction)
            self.model.back(given, is_marked=True)

        self._discharge(done, fail=False)

    def rollback(self) -> None:
        """Roll back: what was accepted is held again, but for what was settled."""
        if self._pending:
            return
        transaction, self.transaction = self.transaction, Transaction()
        self.model.forget(transaction.messages)
        self.held.update(self._accepted)
        self._accepted.clear()
        given = self.model.give_back(self._settled)
        self._settled.clear()

        def done(outcome: Composite) -> None:
            require(outcome.name == "accepted", f"discharge: {outcome}")
            self.model.back(given, is_marked=True)

        self._discharge(done, fail=True)

    def complete(self) -> None:
        """Ask for more messages."""
        for receiver in self._receivers.values():
            self._give_credit(receiver)


def body_of(sections: bytes) -> bytes:
    """The content of a message, which has one section with data."""
    data = sections.partition(_DATA)[2]
    return data[2 if data[0] == _SHORT else 5 :]


def _returns_in(header: bytes) -> tuple[int, bool]:
    """How often deliveries of a message have failed, and whether none was before, by its section header."""
    fields = read_composite(header, 0, len(header))[0].fields
    count: int = fields["delivery_count"] or 0
    require(not (fields["first_acquirer"] and count), f"first-acquirer and delivery-count: {fields}")
    return count, bool(fields["first_acquirer"])
