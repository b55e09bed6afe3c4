"""The core of a session: its commands, what is settled, transactions; on one connection after the other.

A session of the application is a session of AMQP (`WireSession`) for as long as its connection lasts, and another one
after that: attached anew, its transaction begun, its receivers subscribed again, and what its senders sent and the
broker did not complete sent again, in the same order and marked as redelivered. What was received and not acknowledged
the broker delivers again; acknowledging what came over the old connection does nothing.

A transaction does not outlive its connection. What the application goes on doing in it belongs to nothing: the commit
rolls back and says TransactionAborted.
"""

from __future__ import annotations

from typing import Any, Protocol

from broker.client.core_commands import SessionCommands, UsedConnection
from broker.client.core_receiver import Delivery, ReceiverCore
from broker.client.core_sender import SenderCore, Transfer
from broker.client.errors import (
    AcknowledgeUnknown,
    LinkError,
    SessionClosedError,
    SessionError,
    TransactionAborted,
    TransactionError,
    TransactionUnknown,
)
from broker.client.interruption import InterruptedByLoss
from broker.client.message import Message, mark_redelivered
from broker.client.numbers import number_ranges
from broker.client.resolution import Call
from broker.protocols.amqp_0_10.session import State


class OwningConnection(UsedConnection, Protocol):
    """The connection of the application, as the session that belongs to it sees it."""

    def session_closed(self, session: SessionCore) -> None:
        """The session is closed."""


class SessionCore:
    """A session that outlives its connections.

    Args:
        connection: what it belongs to.
        name: its name; each attachment adds its number.
        is_transactional: all it sends and acknowledges waits for commit.

    Attributes:
        commands: what it asks of the broker, on the session of AMQP that is there.
        unsettled: what was sent and is not completed, by command number, in order.
        unaccepted: command numbers of what was fetched and is neither acknowledged, released nor rejected, in order.
        senders, receivers: by the order in which they were made; receivers by their destination.
    """

    def __init__(self, connection: OwningConnection, name: bytes, *, is_transactional: bool) -> None:
        self.connection = connection
        self.driver = connection.driver
        self.name, self.is_transactional = name, is_transactional
        self.commands = SessionCommands(connection)
        self.unsettled: dict[int, Transfer] = {}
        self.unaccepted: dict[int, None] = {}
        self.senders: list[SenderCore] = []
        self.receivers: dict[str, ReceiverCore] = {}
        self._accepted: list[int] = []  # in the transaction that is open
        self._is_aborted = False
        self._last_settling = -1  # the last command to the broker that accepts or rejects, on `wire`
        self._is_settling_lost = False  # such commands were not confirmed when their connection was lost
        self._attachments = 0
        self._destinations = 0

    # ---- what the machine tells ----

    def on_settled(self, first: int, last: int) -> None:
        """See `SessionOwner`."""
        unsettled = self.unsettled
        if not unsettled:
            return
        for number in range(max(first, next(iter(unsettled))), last + 1):
            transfer = unsettled.pop(number, None)
            if transfer is not None:
                transfer.is_settled = True
                transfer.sender.unsettled -= 1

    def on_transfer(self, number: int, destination: str, header: bytes, body: bytes) -> None:
        """See `SessionOwner`."""
        receiver = self.receivers.get(destination)
        if receiver is None:  # it was closed; the broker did not know yet
            self.commands.wire.ledger.release([[number, number]])
            self.commands.wire.send("message.release", transfers=((number, number),))
            return
        receiver.incoming.append(Message.received(header, body, Delivery(receiver, self.commands.wire, number)))

    def after_input(self) -> None:
        """All that the socket brought is taken."""
        failure = self.commands.wire.failure
        if self.commands.is_ready and isinstance(failure, SessionError):
            self.commands.fail(failure)

    def on_lost(self) -> None:
        """The connection is gone, and what came over it will come again."""
        self.commands.is_ready = False
        self._is_settling_lost |= self._is_settling
        self._last_settling = -1
        for receiver in self.receivers.values():
            receiver.incoming.clear()
        if self.is_transactional:
            self._is_aborted = True

    # ---- attaching ----

    async def attach(self) -> None:
        """Attach on the connection that is there.

        Raises:
            SessionError: the broker does not let us.
            InterruptedByLoss: the connection was lost meanwhile.
        """
        connection = self.connection.wire
        assert connection is not None
        self._attachments += 1
        name = self.name if self._attachments == 1 else self.name + b".%d" % self._attachments
        wire = self.commands.wire = connection.begin_session(name, self)
        await self.driver.wait(lambda: wire.state is not State.ATTACHING)
        self.commands.check_wire()
        if self.is_transactional:
            await self.commands.invoke("tx.select")

    async def recover(self) -> None:
        """Attach on a new connection, with all that was on the old one.

        Raises:
            InterruptedByLoss: that is lost, too.
        """
        self.unaccepted.clear()
        self._accepted.clear()
        transfers = list(self.unsettled.values())
        self.unsettled.clear()
        if self.is_transactional:
            for transfer in transfers:  # gone with the transaction: the commit says so
                transfer.is_settled = True
            transfers.clear()
        try:
            await self.attach()
            for sender in list(self.senders):
                await sender.attach_again()
            for receiver in list(self.receivers.values()):
                await receiver.attach_again()
        except SessionError as error:
            self.commands.failure = error
            return
        except InterruptedByLoss:
            self.unsettled.update(enumerate(transfers))
            raise
        for sender in self.senders:
            if sender.failure is None:
                sender.unsettled = 0
        for transfer in transfers:
            if transfer.sender.failure is None:  # one that failed says so, and has nowhere to send to
                transfer.header = mark_redelivered(transfer.header)
                transfer.sender.put(transfer)
        self.commands.is_ready = True

    # ---- links ----

    async def sender(self, address: str, capacity: int) -> SenderCore:
        """A sender. Raises as `resolution.resolve` and `wait` do."""
        sender = SenderCore(self.commands, address, capacity, self.unsettled, self._sender_closed)
        await self.commands.again(sender.attach)
        self.senders.append(sender)
        return sender

    async def receiver(self, address: str, capacity: int) -> ReceiverCore:
        """A receiver. Raises as `resolution.resolve` and `wait` do."""
        self._destinations += 1
        receiver = ReceiverCore(
            self.commands, address, capacity, str(self._destinations), self.unaccepted, self._receiver_closed
        )
        self.receivers[receiver.destination] = receiver
        try:
            await self.commands.again(receiver.attach)
        except BaseException:
            del self.receivers[receiver.destination]
            raise
        receiver.is_attached = True
        return receiver

    def _sender_closed(self, sender: SenderCore) -> None:
        if sender in self.senders:
            self.senders.remove(sender)

    def _receiver_closed(self, receiver: ReceiverCore) -> None:
        self.receivers.pop(receiver.destination, None)

    def next_with_message(self) -> ReceiverCore | None:
        """The receiver whose first message came first, None if no receiver has one."""
        waiting = [receiver for receiver in self.receivers.values() if receiver.incoming]
        return min(waiting, key=lambda receiver: receiver.incoming[0].delivery.number, default=None)

    async def next_receiver(self, deadline: float | None) -> ReceiverCore | None:
        """The receiver that has a message, or gets one until `deadline`; None if there is none."""
        while True:
            await self.commands.wait(lambda: self.commands.is_ready, deadline)
            for receiver in self.receivers.values():
                receiver.ask()
            await self.commands.wait(
                lambda: self.next_with_message() is not None or not self.commands.is_ready, deadline
            )
            found = self.next_with_message()
            if found is not None or (deadline is not None and self.driver.now() >= deadline):
                return found

    # ---- acknowledging ----

    def _take_unaccepted(self, message: Message | None) -> list[int]:
        """The numbers of what is to be settled; those of another connection are none."""
        if message is None:
            numbers = list(self.unaccepted)
            self.unaccepted.clear()
            return numbers
        delivery = message.delivery
        if not isinstance(delivery, Delivery) or delivery.wire is not self.commands.wire:
            return []
        if delivery.number not in self.unaccepted:
            return []
        del self.unaccepted[delivery.number]
        return [delivery.number]

    def settle(self, message: Message | None, name: str, **values: Any) -> int | None:
        """Send accept, release or reject for one message, or for all that are not acknowledged.

        Returns:
            the command's number, None if there was nothing to be said.
        """
        self.commands.check()
        numbers = self._take_unaccepted(message)
        if not numbers or not self.commands.is_ready:
            return None
        if self.is_transactional and name == "message.accept":
            self._accepted.extend(numbers)
        number = self.commands.wire.send(name, sync=True, transfers=number_ranges(numbers), **values)
        if not self.is_transactional and name != "message.release":  # which a lost connection does as well
            self._last_settling = number
        return number

    @property
    def _is_settling(self) -> bool:
        """The broker has not confirmed all that was accepted or rejected over this connection."""
        return self._last_settling >= 0 and self.commands.wire.done.below <= self._last_settling

    def _check_settled(self) -> None:
        """Raise AcknowledgeUnknown, once, if a lost connection has left something unconfirmed."""
        if self._is_settling_lost:
            self._is_settling_lost = False
            raise AcknowledgeUnknown(
                "the connection was lost before the broker confirmed what was acknowledged: messages may be delivered "
                "again"
            )

    async def wait_done(self, number: int | None) -> None:
        """Wait until the broker has done command `number`.

        Raises:
            AcknowledgeUnknown: the connection was lost before.
            MessagingError: the session has failed.
        """
        if number is None:
            return
        wire = self.commands.wire
        await self.driver.wait(lambda: wire.done.below > number or not wire.is_usable)
        if wire.done.below <= number:
            self.commands.check()
            self._check_settled()

    async def sync(self, deadline: float | None = None) -> None:
        """Wait until the broker has done all that was asked of it.

        Raises:
            AcknowledgeUnknown: a connection was lost before it confirmed all that was acknowledged.
            LinkError: a sender has failed, and messages to it were not confirmed.
            MessagingError: see `again`.
        """
        await self.commands.again(lambda: self.commands.invoke("execution.sync"), deadline)
        await self.commands.wait(lambda: not self.unsettled, deadline)
        for sender in self.senders:
            if sender.unsettled:
                sender.check()
        self._check_settled()

    # ---- transactions ----

    def _check_transactional(self) -> None:
        if not self.is_transactional:
            raise TransactionError("the session is not transactional: make it with transactional=True")

    async def commit(self) -> None:
        """Commit what was sent and acknowledged.

        Raises:
            TransactionAborted: it is rolled back.
            TransactionUnknown: the connection was lost meanwhile, and nobody knows.
        """
        self._check_transactional()
        await self.commands.wait(lambda: self.commands.is_ready, None)
        if self._is_aborted:
            await self.rollback()
            raise TransactionAborted("the connection was lost in the transaction, which is rolled back")
        try:
            await self.commands.invoke("tx.commit")
        except InterruptedByLoss as error:
            await self.commands.again(self._roll_back)
            raise TransactionUnknown(f"the connection was lost while the commit was under way: {error}") from None
        except SessionError as error:
            self.commands.fail(error)
            raise TransactionAborted(f"the commit was refused: {error}", error.code) from None
        self._accepted.clear()

    async def rollback(self) -> None:
        """Take back what was sent and acknowledged. All that was received and not committed is delivered again."""
        self._check_transactional()
        await self.commands.again(self._roll_back)

    async def _roll_back(self) -> None:
        receivers = [receiver for receiver in self.receivers.values() if receiver.is_attached]
        await self.commands.invoke_all(("message.stop", {"destination": each.destination}) for each in receivers)
        fetched = sorted([*self._accepted, *self.unaccepted])
        waiting = sorted(number for each in receivers for number in each.take_waiting())
        calls: list[Call] = [("tx.rollback", {})]
        if waiting:
            calls.append(("message.release", {"transfers": number_ranges(waiting)}))
        if fetched:
            calls.append(("message.release", {"transfers": number_ranges(fetched), "set_redelivered": True}))
        await self.commands.invoke_all(calls)
        self._accepted.clear()
        self.unaccepted.clear()
        self._is_aborted = False
        self.commands.wire.send_completed()
        for receiver in receivers:
            receiver.grant()

    # ---- closing ----

    def _links(self) -> list[SenderCore | ReceiverCore]:
        return [*self.senders, *self.receivers.values()]

    def undone(self) -> list[str]:
        """What the broker would have to confirm before this is closed, for people; empty if there is nothing."""
        if isinstance(self.commands.failure, SessionClosedError):
            return []
        found = [text for link in self._links() for text in link.undone()]
        if self._is_settling or self._is_settling_lost:
            found.append("acknowledged messages not confirmed, which may be delivered again")
        return found

    async def close(self, deadline: float | None = None) -> None:
        """Let the broker complete what was sent and acknowledged, close the links, detach.

        Raises:
            Timeout: the deadline has passed before.
            MessagingError: the session, one of its links or its connection failed before. Closed it is all the same.
        """
        try:
            if self.commands.is_ready or self.undone():
                self.commands.check()
                try:
                    await self._close_links(deadline)
                finally:
                    await self._detach(deadline)
        finally:
            self.commands.is_ready = False
            self.commands.failure = SessionClosedError("the session is closed")
            self.connection.session_closed(self)
            self.driver.changed()

    async def _close_links(self, deadline: float | None) -> None:
        """Close all links, and then raise what was wrong with the first of them that had failed."""
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
        wire = self.commands.wire
        if wire.is_usable:
            wire.detach()
            await self.driver.wait(lambda: wire.state is State.DETACHED, deadline)
