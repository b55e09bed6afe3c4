"""The core of a session: commands, settlement and transactions, across reconnects.

An application's session is one AMQP session (`WireSession`) per connection. After a reconnect a new AMQP session is
attached, a new transaction begins, the receivers subscribe again, and the messages that the broker had not completed
are sent again, in the same order and marked as redelivered. The broker redelivers the messages that were received but
not acknowledged; acknowledging a message of the old connection does nothing.

A transaction ends with its connection. Further operations of the application in it are lost: the commit rolls back and
raises TransactionAborted.
"""

from __future__ import annotations

from typing import Any, Protocol

from qstore.broker.client.core_commands import SessionCommands, UsedConnection
from qstore.broker.client.core_receiver import Delivery, ReceiverCore
from qstore.broker.client.core_sender import SenderCore, Transfer
from qstore.broker.client.errors import (
    AcknowledgeUnknown,
    LinkError,
    SessionClosedError,
    SessionError,
    TransactionAborted,
    TransactionError,
    TransactionUnknown,
)
from qstore.broker.client.interruption import InterruptedByLoss
from qstore.broker.client.message import Message, mark_redelivered
from qstore.broker.client.numbers import number_ranges
from qstore.broker.client.resolution import Call
from qstore.broker.protocols.amqp_0_10.assembly import FramingError
from qstore.broker.protocols.amqp_0_10.session import State


class OwningConnection(UsedConnection, Protocol):
    """The application's connection, as its sessions see it."""

    def session_closed(self, session: SessionCore) -> None:
        """A session was closed."""


class SessionCore:
    """A session that outlives its connections.

    Args:
        connection: its connection.
        name: its name; from the second attachment on, the attachment's number is appended.
        is_transactional: whether messages and acknowledgements take effect at commit.

    Attributes:
        commands: its commands, on the current AMQP session.
        unsettled: command number -> transfer that the broker has not completed, in order.
        unaccepted: command numbers of the messages fetched and neither acknowledged, released nor rejected, in order.
        senders, receivers: in the order of their creation; receivers by destination.
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
        self._accepted: list[int] = []  # in the current transaction
        self._is_aborted = False
        self._last_settling = -1  # number of the last accept or reject command on `wire`
        self._is_settling_lost = False  # a connection was lost before the broker confirmed such commands
        self._attachments = 0
        self._destinations = 0

    # ---- callbacks of the machine ----

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
                transfer.sender.settled += 1

    def on_transfer(self, number: int, destination: str, header: bytes, body: bytes) -> None:
        """See `SessionOwner`. Raises FramingError if the broker ignores the receiver's credit."""
        receiver = self.receivers.get(destination)
        if receiver is None:  # closed, but sent before the broker processed the cancel
            self.commands.wire.ledger.complete([[number, number]])
            self.commands.wire.send("message.release", transfers=((number, number),))
            return
        if len(receiver.incoming) >= receiver.most_incoming:
            raise FramingError("the broker has sent more messages than it has credit for")
        receiver.incoming.append(Message.received(header, body, Delivery(receiver, self.commands.wire, number)))

    def after_input(self) -> None:
        """Called after all received data was processed."""
        failure = self.commands.wire.failure
        if self.commands.is_ready and isinstance(failure, SessionError):
            self.commands.fail(failure)

    def on_lost(self) -> None:
        """The connection was lost; the broker will redeliver its messages."""
        self.commands.is_ready = False
        self._is_settling_lost |= self._is_settling
        self._last_settling = -1
        for receiver in self.receivers.values():
            receiver.incoming.clear()
        if self.is_transactional:
            self._is_aborted = True

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
        wire = self.commands.wire = connection.begin_session(name, self)
        await self.driver.wait(lambda: wire.state is not State.ATTACHING)
        self.commands.check_wire()
        if self.is_transactional:
            await self.commands.invoke("tx.select")

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
            self.commands.failure = error
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
        self.commands.is_ready = True

    # ---- links ----

    async def sender(self, address: str, capacity: int) -> SenderCore:
        """Create a sender. Raises as `resolution.resolve` and `wait` do."""
        sender = SenderCore(self.commands, address, capacity, self.unsettled, self._sender_closed)
        await self.commands.retry(sender.attach)
        self.senders.append(sender)
        return sender

    async def receiver(self, address: str, capacity: int) -> ReceiverCore:
        """Create a receiver. Raises as `resolution.resolve` and `wait` do."""
        self._destinations += 1
        receiver = ReceiverCore(
            self.commands, address, capacity, str(self._destinations), self.unaccepted, self._receiver_closed
        )
        self.receivers[receiver.destination] = receiver
        try:
            await self.commands.retry(receiver.attach)
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
        """The receiver with the oldest prefetched message; None if there are none."""
        waiting = [receiver for receiver in self.receivers.values() if receiver.incoming]
        return min(waiting, key=lambda receiver: receiver.incoming[0].delivery.number, default=None)

    async def next_receiver(self, deadline: float | None) -> ReceiverCore | None:
        """Wait for a receiver with a message; None if there is none until `deadline`."""
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
        """Take the numbers of the messages to settle; messages of a lost connection have none."""
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
        """Send accept, release or reject for one message, or for all unacknowledged messages.

        Returns:
            the command's number; None if there was nothing to settle.
        """
        self.commands.check()
        numbers = self._take_unaccepted(message)
        if not numbers or not self.commands.is_ready:
            return None
        if self.is_transactional and name == "message.accept":
            self._accepted.extend(numbers)
        number = self.commands.wire.send(name, sync=True, transfers=number_ranges(numbers), **values)
        if not self.is_transactional and name != "message.release":  # a lost connection releases as well
            self._last_settling = number
        return number

    @property
    def _is_settling(self) -> bool:
        """Whether accepts or rejects on this connection are not yet confirmed by the broker."""
        return self._last_settling >= 0 and self.commands.wire.done.below <= self._last_settling

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
        wire = self.commands.wire
        await self.driver.wait(lambda: wire.done.below > number or not wire.is_usable)
        if wire.done.below <= number:
            self.commands.check()
            self._check_settled()

    async def sync(self, deadline: float | None = None) -> None:
        """Wait until the broker has completed all commands.

        Raises:
            AcknowledgeUnknown: a connection was lost before the broker confirmed acknowledgements.
            LinkError: a sender has failed with unconfirmed messages.
            MessagingError: see `retry`.
        """
        await self.commands.retry(lambda: self.commands.invoke("execution.sync"), deadline)
        await self.commands.wait(lambda: not self.unsettled, deadline)
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
        await self.commands.wait(lambda: self.commands.is_ready, None)
        if self._is_aborted:
            await self.rollback()
            raise TransactionAborted("the transaction was rolled back, since the connection was lost")
        try:
            await self.commands.invoke("tx.commit")
        except InterruptedByLoss as error:
            await self.commands.retry(self._roll_back)
            raise TransactionUnknown(f"the connection was lost during the commit: {error}") from None
        except SessionError as error:
            self.commands.fail(error)
            raise TransactionAborted(f"the commit was refused: {error}", error.code) from None
        self._accepted.clear()

    async def rollback(self) -> None:
        """Roll the transaction back. Messages received and not committed are delivered again."""
        self._check_transactional()
        await self.commands.retry(self._roll_back)

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

    def unfinished(self) -> list[str]:
        """Operations that the broker has not confirmed, as text for the user; empty if there are none."""
        if isinstance(self.commands.failure, SessionClosedError):
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
            if self.commands.is_ready or self.unfinished():
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
        wire = self.commands.wire
        if wire.is_usable:
            wire.detach()
            await self.driver.wait(lambda: wire.state is State.DETACHED, deadline)
