"""The core of a session: commands, settlement and transactions, across reconnects.

An application's session is one AMQP session (`WireSession`) per connection. After a reconnect a new AMQP session is
attached, a new transaction begins, the receivers subscribe again, and the messages that the broker had not completed
are sent again, in the same order and marked as redelivered. The broker redelivers the messages that were received but
not acknowledged; acknowledging a message of the old connection does nothing.

A transaction ends with its connection. Further operations of the application in it are lost: the commit rolls back and
raises TransactionAborted.

Commands are sent on the current connection (`invoke`), and an operation that a lost connection has interrupted is
repeated on the next one (`retry`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from qstore.broker.client.errors import (
    AcknowledgeUnknown,
    ContentError,
    InterruptedByLoss,
    LinkError,
    MessagingError,
    SessionClosedError,
    SessionError,
    Timeout,
    TransactionAborted,
    TransactionError,
    TransactionUnknown,
)
from qstore.broker.client.links import Call, Delivery, ReceiverCore, SenderCore, Transfer, number_ranges
from qstore.broker.client.machine import WireSession
from qstore.broker.client.message import Message, mark_redelivered
from qstore.broker.protocols.amqp_0_10.assembly import FramingError
from qstore.broker.protocols.amqp_0_10.session import State
from qstore.formats.amqp_0_10.types import Amqp010Error

if TYPE_CHECKING:
    from qstore.broker.client.connection import ConnectionCore


_T = TypeVar("_T")


class SessionCore:
    """A session that outlives its connections.

    Args:
        connection: its connection.
        name: its name; from the second attachment on, the attachment's number is appended.
        is_transactional: whether messages and acknowledgements take effect at commit.

    Attributes:
        driver: the connection's driver.
        wire: the current AMQP session, or the last one.
        is_ready: whether the application may use `wire`.
        failure: why the session has ended; None before.
        unsettled: command number -> transfer that the broker has not completed, in order.
        unaccepted: command numbers of the messages fetched and neither acknowledged, released nor rejected, in order.
        senders, receivers: in the order of their creation; receivers by destination.
    """

    wire: WireSession

    def __init__(self, connection: ConnectionCore, name: bytes, *, is_transactional: bool) -> None:
        self.connection = connection
        self.driver = connection.driver
        self.name, self.is_transactional = name, is_transactional
        self.is_ready = False
        self.failure: SessionError | None = None
        self.unsettled: dict[int, Transfer] = {}
        self.unaccepted: dict[int, None] = {}
        self.senders: list[SenderCore] = []
        self.receivers: dict[str, ReceiverCore] = {}
        self._accepted: list[int] = []  # in the current transaction
        self._is_aborted = False
        self._last_settling = -1  # number of the last accept or reject command on `wire`
        self._is_settling_lost = False  # a connection was lost before the broker confirmed such commands
        self._attachments = 0
        self._destinations = 0

    # ---- callbacks of the machine ----

    def on_settled(self, first: int, last: int) -> None:
        """The broker has completed the commands `first` to `last`."""
        unsettled = self.unsettled
        if not unsettled:
            return
        for number in range(max(first, next(iter(unsettled))), last + 1):
            transfer = unsettled.pop(number, None)
            if transfer is not None:
                transfer.is_settled = True
                transfer.sender.unsettled -= 1
                transfer.sender.settled += 1

    def on_transfer(self, number: int, destination: str, header: bytes, body: bytes) -> None:
        """Take a message, received as a command that is not completed until it is fetched.

        Raises:
            FramingError: the broker has ignored the receiver's credit.
        """
        receiver = self.receivers.get(destination)
        if receiver is None:  # closed, but sent before the broker processed the cancel
            self.wire.ledger.complete([[number, number]])
            self.wire.send("message.release", transfers=((number, number),))
            return
        if len(receiver.incoming) >= receiver.most_incoming:
            raise FramingError("the broker has sent more messages than it has credit for")
        receiver.incoming.append(Message.received(header, body, Delivery(receiver, self.wire, number)))

    def after_input(self) -> None:
        """Called after all received data was processed."""
        failure = self.wire.failure
        if self.is_ready and isinstance(failure, SessionError):
            self.fail(failure)

    def on_lost(self) -> None:
        """The connection was lost; the broker will redeliver its messages."""
        self.is_ready = False
        self._is_settling_lost |= self._is_settling
        self._last_settling = -1
        for receiver in self.receivers.values():
            receiver.incoming.clear()
        if self.is_transactional:
            self._is_aborted = True

    # ---- commands, on the current connection ----

    def check_wire(self) -> None:
        """Raise an error if `wire` cannot be used.

        Raises:
            SessionError: the broker has ended the session.
            InterruptedByLoss: the connection was lost.
        """
        if not self.wire.is_usable:
            _raise_end(self.wire)

    async def invoke_all(self, calls: Iterable[Call]) -> list[Mapping[str, Any]]:
        """Send commands and wait until the broker has completed them. Returns their results, empty if they have none.

        Raises:
            ContentError: a field of one cannot be encoded, such as a name that is too long; it is not sent.
            SessionError: the broker has refused one, and ended the session.
            InterruptedByLoss: the connection was lost.
        """
        self.check_wire()
        wire = self.wire
        pending = list(calls)
        if not pending:
            return []
        numbers = []
        for at, (name, values) in enumerate(pending, 1):
            try:
                numbers.append(wire.send(name, sync=at == len(pending), **values))
            except Amqp010Error as error:
                raise ContentError(f"{name} cannot be sent: {error}") from None
        last = numbers[-1]
        await self.driver.wait(lambda: wire.done.below > last or not wire.is_usable)
        if wire.done.below <= last:
            _raise_end(wire)
        return [wire.results.pop(number, {}) for number in numbers]

    async def invoke(self, name: str, **values: Any) -> Mapping[str, Any]:
        """Send one command and wait until the broker has completed it. See `invoke_all`."""
        return (await self.invoke_all([(name, values)]))[0]

    # ---- commands, across connections ----

    def check(self) -> None:
        """Raise an error if the session cannot be used.

        Raises:
            MessagingError: the session or its connection has failed or is closed.
        """
        if self.failure is not None:
            raise type(self.failure)(str(self.failure), self.failure.code)
        self.connection.check()

    async def wait(self, is_ready: Callable[[], bool], deadline: float | None) -> bool:
        """Wait for a condition of this session, across reconnects. Returns whether it is met.

        Raises:
            MessagingError: the session or its connection has failed or is closed.
        """
        found = await self.driver.wait(lambda: is_ready() or not self._may_be_used, deadline)
        if not is_ready():
            self.check()
        return found

    @property
    def _may_be_used(self) -> bool:
        try:
            self.check()
        except MessagingError:
            return False
        return True

    async def retry(self, work: Callable[[], Awaitable[_T]], deadline: float | None = None) -> _T:
        """Do some work with the broker, and repeat it on another connection if this one is lost.

        Raises:
            Timeout: there was no connection until the deadline.
            MessagingError: see `wait`; also any error of `work`.
        """
        while True:
            if not await self.wait(lambda: self.is_ready, deadline):
                raise Timeout("the connection was lost and not restored in time")
            try:
                return await work()
            except InterruptedByLoss:
                # Wait until the driver has reported the loss; otherwise this would loop forever.
                await self.wait(lambda: not self.is_ready, None)
            except SessionError as error:
                if self.failure is None and self.wire.failure is not None:
                    self.fail(error)
                raise

    def fail(self, error: SessionError) -> None:
        """The broker has ended the session."""
        self.is_ready, self.failure = False, error

    # ---- attaching ----

    async def attach(self) -> None:
        """Attach on the current connection.

        Raises:
            SessionError: the broker has refused.
            InterruptedByLoss: the connection was lost.
        """
        connection = self.connection.wire
        assert connection is not None
        self._attachments += 1
        name = self.name if self._attachments == 1 else self.name + b".%d" % self._attachments
        wire = self.wire = connection.begin_session(name, self)
        await self.driver.wait(lambda: wire.state is not State.ATTACHING)
        self.check_wire()
        if self.is_transactional:
            await self.invoke("tx.select")

    async def recover(self) -> None:
        """Attach on a new connection, and restore links and unsettled messages.

        Raises:
            InterruptedByLoss: the new connection was lost as well.
        """
        self.unaccepted.clear()
        self._accepted.clear()
        transfers = list(self.unsettled.values())
        self.unsettled.clear()
        if self.is_transactional:
            for transfer in transfers:  # lost with the transaction, which the commit reports
                transfer.is_settled = True
            transfers.clear()
        try:
            await self.attach()
            for sender in list(self.senders):
                await sender.reattach()
            for receiver in list(self.receivers.values()):
                await receiver.reattach()
        except SessionError as error:
            self.failure = error
            return
        except InterruptedByLoss:
            self.unsettled.update(enumerate(transfers))
            raise
        for sender in self.senders:
            if sender.failure is None:
                sender.unsettled = 0
        for transfer in transfers:
            if transfer.sender.failure is None:  # a failed sender reports its error itself
                transfer.header = mark_redelivered(transfer.header)
                transfer.sender.put(transfer)
        self.is_ready = True

    # ---- links ----

    async def sender(self, address: str, capacity: int) -> SenderCore:
        """Create a sender. Raises as `resolution.resolve` and `wait` do."""
        sender = SenderCore(self, address, capacity)
        await self.retry(sender.attach)
        self.senders.append(sender)
        return sender

    async def receiver(self, address: str, capacity: int) -> ReceiverCore:
        """Create a receiver. Raises as `resolution.resolve` and `wait` do."""
        self._destinations += 1
        receiver = ReceiverCore(self, address, capacity, str(self._destinations))
        self.receivers[receiver.destination] = receiver
        try:
            await self.retry(receiver.attach)
        except BaseException:
            del self.receivers[receiver.destination]
            raise
        receiver.is_attached = True
        return receiver

    def sender_closed(self, sender: SenderCore) -> None:
        """Forget a sender that was closed."""
        if sender in self.senders:
            self.senders.remove(sender)

    def receiver_closed(self, receiver: ReceiverCore) -> None:
        """Forget a receiver that was closed."""
        self.receivers.pop(receiver.destination, None)

    def next_with_message(self) -> ReceiverCore | None:
        """The receiver with the oldest prefetched message; None if there are none."""
        waiting = [receiver for receiver in self.receivers.values() if receiver.incoming]
        return min(waiting, key=lambda receiver: receiver.incoming[0].delivery.number, default=None)

    async def next_receiver(self, deadline: float | None) -> ReceiverCore | None:
        """Wait for a receiver with a message; None if there is none until `deadline`."""
        while True:
            await self.wait(lambda: self.is_ready, deadline)
            for receiver in self.receivers.values():
                receiver.ask()
            await self.wait(lambda: self.next_with_message() is not None or not self.is_ready, deadline)
            found = self.next_with_message()
            if found is not None or (deadline is not None and self.driver.now() >= deadline):
                return found

    # ---- acknowledging ----

    def _take_unaccepted(self, message: Message | None) -> list[int]:
        """Take the numbers of the messages to settle; messages of a lost connection have none."""
        if message is None:
            numbers = list(self.unaccepted)
            self.unaccepted.clear()
            return numbers
        delivery = message.delivery
        if not isinstance(delivery, Delivery) or delivery.wire is not self.wire:
            return []
        if delivery.number not in self.unaccepted:
            return []
        del self.unaccepted[delivery.number]
        return [delivery.number]

    def settle(self, message: Message | None, name: str, **values: Any) -> int | None:
        """Send accept, release or reject for one message, or for all unacknowledged messages.

        Returns:
            the command's number; None if there was nothing to settle.
        """
        self.check()
        numbers = self._take_unaccepted(message)
        if not numbers or not self.is_ready:
            return None
        if self.is_transactional and name == "message.accept":
            self._accepted.extend(numbers)
        number = self.wire.send(name, sync=True, transfers=number_ranges(numbers), **values)
        if not self.is_transactional and name != "message.release":  # a lost connection releases as well
            self._last_settling = number
        return number

    @property
    def _is_settling(self) -> bool:
        """Whether accepts or rejects on this connection are not yet confirmed by the broker."""
        return self._last_settling >= 0 and self.wire.done.below <= self._last_settling

    def _check_settled(self) -> None:
        """Raise AcknowledgeUnknown, once, if a connection was lost with unconfirmed acknowledgements."""
        if self._is_settling_lost:
            self._is_settling_lost = False
            raise AcknowledgeUnknown(
                "the connection was lost before the broker confirmed acknowledgements: messages may be redelivered"
            )

    async def wait_done(self, number: int | None) -> None:
        """Wait until the broker has completed command `number`.

        Raises:
            AcknowledgeUnknown: the connection was lost before that.
            MessagingError: the session has failed.
        """
        if number is None:
            return
        wire = self.wire
        await self.driver.wait(lambda: wire.done.below > number or not wire.is_usable)
        if wire.done.below <= number:
            self.check()
            self._check_settled()

    async def sync(self, deadline: float | None = None) -> None:
        """Wait until the broker has completed all commands.

        Raises:
            AcknowledgeUnknown: a connection was lost before the broker confirmed acknowledgements.
            LinkError: a sender has failed with unconfirmed messages.
            MessagingError: see `retry`.
        """
        await self.retry(lambda: self.invoke("execution.sync"), deadline)
        await self.wait(lambda: not self.unsettled, deadline)
        for sender in self.senders:
            if sender.unsettled:
                sender.check()
        self._check_settled()

    # ---- transactions ----

    def _check_transactional(self) -> None:
        if not self.is_transactional:
            raise TransactionError("the session is not transactional: create it with transactional=True")

    async def commit(self) -> None:
        """Commit the transaction.

        Raises:
            TransactionAborted: it was rolled back.
            TransactionUnknown: the connection was lost during the commit, so the outcome is unknown.
        """
        self._check_transactional()
        await self.wait(lambda: self.is_ready, None)
        if self._is_aborted:
            await self.rollback()
            raise TransactionAborted("the transaction was rolled back, since the connection was lost")
        try:
            await self.invoke("tx.commit")
        except InterruptedByLoss as error:
            await self.retry(self._roll_back)
            raise TransactionUnknown(f"the connection was lost during the commit: {error}") from None
        except SessionError as error:
            self.fail(error)
            raise TransactionAborted(f"the commit was refused: {error}", error.code) from None
        self._accepted.clear()

    async def rollback(self) -> None:
        """Roll the transaction back. Messages received and not committed are delivered again."""
        self._check_transactional()
        await self.retry(self._roll_back)

    async def _roll_back(self) -> None:
        receivers = [receiver for receiver in self.receivers.values() if receiver.is_attached]
        await self.invoke_all(("message.stop", {"destination": each.destination}) for each in receivers)
        fetched = sorted([*self._accepted, *self.unaccepted])
        waiting = sorted(number for each in receivers for number in each.take_waiting())
        calls: list[Call] = [("tx.rollback", {})]
        if waiting:
            calls.append(("message.release", {"transfers": number_ranges(waiting)}))
        if fetched:
            calls.append(("message.release", {"transfers": number_ranges(fetched), "set_redelivered": True}))
        await self.invoke_all(calls)
        self._accepted.clear()
        self.unaccepted.clear()
        self._is_aborted = False
        self.wire.send_completed()
        for receiver in receivers:
            receiver.grant()

    # ---- closing ----

    def _links(self) -> list[SenderCore | ReceiverCore]:
        return [*self.senders, *self.receivers.values()]

    def unfinished(self) -> list[str]:
        """Operations that the broker has not confirmed, as text for the user; empty if there are none."""
        if isinstance(self.failure, SessionClosedError):
            return []
        found = [text for link in self._links() for text in link.unfinished()]
        if self._is_settling or self._is_settling_lost:
            found.append("acknowledgements not confirmed, so messages may be redelivered")
        return found

    async def close(self, deadline: float | None = None) -> None:
        """Wait until the broker has completed all commands, close the links, detach.

        The session is closed even if an error is raised.

        Raises:
            Timeout: the deadline has passed before that.
            MessagingError: the session, one of its links or its connection has failed.
        """
        try:
            if self.is_ready or self.unfinished():
                self.check()
                try:
                    await self._close_links(deadline)
                finally:
                    await self._detach(deadline)
        finally:
            self.is_ready = False
            self.failure = SessionClosedError("the session is closed")
            self.connection.session_closed(self)
            self.driver.changed()

    async def _close_links(self, deadline: float | None) -> None:
        """Close all links, then raise the error of the first one that has failed."""
        problems: list[LinkError] = []
        for link in self._links():
            try:
                await link.close(deadline)
            except LinkError as error:
                problems.append(error)
        if self._is_settling or self._is_settling_lost:
            await self.sync(deadline)
        if problems:
            raise problems[0]

    async def _detach(self, deadline: float | None) -> None:
        wire = self.wire
        if wire.is_usable:
            wire.detach()
            await self.driver.wait(lambda: wire.state is State.DETACHED, deadline)


def _raise_end(wire: WireSession) -> None:
    """Raise the error that has ended `wire`."""
    failure = wire.failure
    if isinstance(failure, SessionError):
        raise SessionError(str(failure), failure.code)
    raise InterruptedByLoss(str(failure))
