"""The core of a session, for every protocol: settlement and transactions, across reconnects.

An application's session is one AMQP session (`WireSession`) per connection, whatever the protocol. After a reconnect a
new AMQP session is attached, a new transaction begins, the receivers subscribe again, and the messages that the broker
had not completed are sent again, in the same order and marked as redelivered. The broker redelivers the messages that
were received but not acknowledged; acknowledging a message of the old connection does nothing.

A transaction ends with its connection. Further operations of the application in it are lost: the commit rolls back and
raises TransactionAborted.

An operation that a lost connection has interrupted is repeated on the next one (`retry`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from qstore.broker.client.address import RECEIVER, SENDER, plain_address
from qstore.broker.client.errors import (
    AcknowledgeUnknown,
    InterruptedByLoss,
    LinkError,
    MessagingError,
    SessionClosedError,
    SessionError,
    Timeout,
    TransactionAborted,
    TransactionError,
    TransactionUnknown,
    UnsupportedError,
)
from qstore.broker.client.links import Delivery, ReceiverCore, SenderCore, Transfer
from qstore.broker.client.message import Message

if TYPE_CHECKING:
    from qstore.broker.client.connection import ConnectionCore


_T = TypeVar("_T")


class Outcome(Enum):
    """What becomes of a message that was fetched."""

    ACCEPT = auto()
    """It is done, and leaves its queue."""
    RELEASE = auto()
    """It returns to its queue, marked as redelivered."""
    REJECT = auto()
    """The broker drops or reroutes it."""


class WireSession(Protocol):
    """The client's end of an AMQP session, on one connection.

    Attributes:
        failure: why it has ended; None before.
    """

    failure: MessagingError | None

    @property
    def is_usable(self) -> bool:
        """Whether it can be used."""


class SessionCore(ABC):
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
        unsettled: number -> transfer that the broker has not completed, in order.
        unaccepted: number -> receiver, of the messages fetched and neither acknowledged, released nor rejected, in
            order.
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
        self.unaccepted: dict[int, ReceiverCore] = {}
        self.senders: list[SenderCore] = []
        self.receivers: dict[str, ReceiverCore] = {}
        self._accepted: list[int] = []  # in the current transaction
        self._is_aborted = False
        self._is_settling_lost = False  # a connection was lost before the broker confirmed accepts or rejects
        self._unconfirmed: deque[tuple[Any, Mapping[int, ReceiverCore]]] = deque()  # as `send_outcome` has them
        self._attachments = 0
        self._destinations = 0

    # ---- defined by the protocol ----

    @abstractmethod
    async def attach(self) -> None:
        """Attach on the current connection, and begin a transaction if it is transactional.

        Raises:
            SessionError: the broker has refused.
            InterruptedByLoss: the connection was lost.
        """

    @abstractmethod
    def make_sender(self, address: str, capacity: int) -> SenderCore:
        """Make a sender. Raises AddressError."""

    @abstractmethod
    def make_receiver(self, address: str, capacity: int, destination: str) -> ReceiverCore:
        """Make a receiver. Raises AddressError."""

    @abstractmethod
    def send_outcome(self, fetched: Mapping[int, ReceiverCore], outcome: Outcome) -> Any:
        """Settle messages: number, in ascending order -> receiver. Returns what `is_confirmed` takes."""

    @abstractmethod
    def is_confirmed(self, token: Any) -> bool:
        """Whether the broker has confirmed what `send_outcome` has sent."""

    @property
    @abstractmethod
    def is_settling(self) -> bool:
        """Whether accepts or rejects on this connection are not yet confirmed by the broker."""

    @abstractmethod
    def forget_settling(self) -> None:
        """The connection was lost: the broker confirms nothing more on it."""

    @abstractmethod
    async def complete(self) -> None:
        """Have the broker complete what was sent. Raises SessionError and InterruptedByLoss."""

    @abstractmethod
    async def commit_wire(self) -> None:
        """Commit. Raises TransactionAborted, SessionError and InterruptedByLoss."""

    @abstractmethod
    async def roll_back_wire(self, fetched: list[int]) -> None:
        """Roll back, return prefetched messages and those that were fetched, and give credit. Raises likewise."""

    @abstractmethod
    async def detach_wire(self, deadline: float | None) -> None:
        """End the AMQP session, if it can be used."""

    # ---- callbacks of the machine ----

    def on_settled(self, first: int, last: int, error: MessagingError | None = None) -> None:
        """The broker has completed what was sent with the numbers `first` to `last`, or refused it."""
        unsettled = self.unsettled
        if not unsettled:
            return
        for number in range(max(first, next(iter(unsettled))), last + 1):
            transfer = unsettled.pop(number, None)
            if transfer is not None:
                transfer.is_settled, transfer.error = True, error
                transfer.sender.unsettled -= 1
                if error is None:
                    transfer.sender.settled += 1
                else:
                    transfer.sender.refusal = transfer.sender.refusal or error

    def after_input(self) -> None:
        """Called after all received data was processed."""
        failure = self.wire.failure
        if self.is_ready and isinstance(failure, SessionError):
            self.fail(failure)

    def on_lost(self) -> None:
        """The connection was lost; the broker will redeliver its messages."""
        self.is_ready = False
        self._is_settling_lost |= self.is_settling
        self.forget_settling()
        self._unconfirmed.clear()
        for receiver in self.receivers.values():
            receiver.incoming.clear()
        if self.is_transactional:
            self._is_aborted = True

    def check_wire(self) -> None:
        """Raise an error if `wire` cannot be used.

        Raises:
            SessionError: the broker has ended the session.
            InterruptedByLoss: the connection was lost.
        """
        if not self.wire.is_usable:
            raise_end(self.wire)

    # ---- across connections ----

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
        while transfers:
            await self._send_again(transfers[0], transfers)
            del transfers[0]
        self.is_ready = True

    async def _send_again(self, transfer: Transfer, all_left: list[Transfer]) -> None:
        """Send a message again, the first of those that are left, unless its sender has failed, which it reports."""
        sender = transfer.sender
        await self.driver.wait(lambda: self._takes_again(sender))
        if not self.wire.is_usable:
            self.unsettled = dict(enumerate([*self.unsettled.values(), *all_left]))
            raise_end(self.wire)
        if sender.failure is None:
            sender.mark_redelivered(transfer)
            sender.put(transfer)

    def _takes_again(self, sender: SenderCore) -> bool:
        """Whether a message can be sent again, or never will be."""
        return sender.has_credit or sender.failure is not None or not self.wire.is_usable

    async def command(self, name: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Do a command of AMQP 0-10, and return the fields of its result.

        Raises:
            UnsupportedError: the session is one of another protocol.
            MessagingError: see `retry`.
        """
        del values
        raise UnsupportedError(f"{name} is a command of AMQP 0-10: connect with that protocol")

    # ---- links ----

    async def sender(self, address: str, capacity: int) -> SenderCore:
        """Create a sender. Raises AddressError, and as `SenderCore.attach` and `wait` do."""
        sender = self.make_sender(plain_address(address, SENDER), capacity)
        await self.retry(sender.attach)
        self.senders.append(sender)
        return sender

    async def receiver(self, address: str, capacity: int | None) -> ReceiverCore:
        """Create a receiver, as `sender`; a capacity of None is that of the connection's options."""
        self._destinations += 1
        if capacity is None:
            capacity = self.connection.options.receiver_capacity
        receiver = self.make_receiver(plain_address(address, RECEIVER), capacity, str(self._destinations))
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

    def _take_unaccepted(self, message: Message | None, *, up_to: bool) -> dict[int, ReceiverCore]:
        """Take the messages to settle: number -> receiver; messages of a lost connection have none."""
        if message is None:
            found, self.unaccepted = self.unaccepted, {}
            return found
        delivery = message.delivery
        if not isinstance(delivery, Delivery) or delivery.wire is not self.wire:
            return {}
        unaccepted = self.unaccepted
        if up_to and delivery.number in unaccepted:
            found = {}
            for number in list(unaccepted):  # in the order in which they were fetched
                found[number] = unaccepted.pop(number)
                if number == delivery.number:
                    break
            return dict(sorted(found.items()))
        receiver = unaccepted.pop(delivery.number, None)
        return {} if receiver is None else {delivery.number: receiver}

    def settle(self, message: Message | None, outcome: Outcome, *, up_to: bool = False) -> Any:
        """Settle one message, or all unacknowledged messages; `up_to`: also those that were fetched before it.

        Returns:
            for `wait_confirmed`; None if there was nothing to settle.
        """
        self.check()
        found = self._take_unaccepted(message, up_to=up_to)
        if not found or not self.is_ready:
            return None
        if self.is_transactional and outcome is Outcome.ACCEPT:
            self._accepted.extend(found)
        token = self.send_outcome(found, outcome)
        self._forget_confirmed()
        self._unconfirmed.append((token, found))
        return token

    def _forget_confirmed(self) -> None:
        unconfirmed = self._unconfirmed
        while unconfirmed and self.is_confirmed(unconfirmed[0][0]):
            unconfirmed.popleft()

    def unsettled_of(self, receiver: ReceiverCore) -> int:
        """How many messages of a receiver are settled here, but not confirmed by the broker."""
        self._forget_confirmed()
        return sum(sum(each is receiver for each in found.values()) for _, found in self._unconfirmed)

    def _check_settled(self) -> None:
        """Raise AcknowledgeUnknown, once, if a connection was lost with unconfirmed acknowledgements."""
        if self._is_settling_lost:
            self._is_settling_lost = False
            raise AcknowledgeUnknown(
                "the connection was lost before the broker confirmed acknowledgements: messages may be redelivered"
            )

    async def wait_confirmed(self, token: Any) -> None:
        """Wait until the broker has confirmed what `settle` has sent.

        Raises:
            AcknowledgeUnknown: the connection was lost before that.
            MessagingError: the session has failed.
        """
        if token is None:
            return
        wire = self.wire
        await self.driver.wait(lambda: self.is_confirmed(token) or not wire.is_usable)
        if not self.is_confirmed(token):
            self.check()
            self._check_settled()

    async def sync(self, deadline: float | None = None) -> None:
        """Wait until the broker has completed all commands.

        Raises:
            AcknowledgeUnknown: a connection was lost before the broker confirmed acknowledgements.
            LinkError: a sender has failed with unconfirmed messages.
            MessagingError: see `retry`.
        """
        await self.retry(self.complete, deadline)
        await self.wait(lambda: self.is_ready and not self.unsettled, deadline)
        for sender in self.senders:
            if sender.unsettled:
                sender.check()
            sender.check_refusal()
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
            await self.commit_wire()
        except InterruptedByLoss as error:
            await self.retry(self._roll_back)
            raise TransactionUnknown(f"the connection was lost during the commit: {error}") from None
        except TransactionAborted:
            self._accepted.clear()
            raise
        except SessionError as error:
            self.fail(error)
            raise TransactionAborted(f"the commit was refused: {error}", error.code) from None
        self._accepted.clear()

    async def rollback(self) -> None:
        """Roll the transaction back. Messages received and not committed are delivered again."""
        self._check_transactional()
        await self.retry(self._roll_back)

    async def _roll_back(self) -> None:
        await self.roll_back_wire(sorted([*self._accepted, *self.unaccepted]))
        self._accepted.clear()
        self.unaccepted.clear()
        self._is_aborted = False

    # ---- closing ----

    def _links(self) -> list[SenderCore | ReceiverCore]:
        return [*self.senders, *self.receivers.values()]

    def unfinished(self) -> list[str]:
        """Operations that the broker has not confirmed, as text for the user; empty if there are none."""
        if isinstance(self.failure, SessionClosedError):
            return []
        found = [text for link in self._links() for text in link.unfinished()]
        if self.is_settling or self._is_settling_lost:
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
                    await self.detach_wire(deadline)
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
        if self.is_settling or self._is_settling_lost:
            await self.sync(deadline)
        if problems:
            raise problems[0]


def raise_end(wire: WireSession) -> NoReturn:
    """Raise the error that has ended `wire`."""
    failure = wire.failure
    if isinstance(failure, SessionError):
        raise SessionError(str(failure), failure.code)
    raise InterruptedByLoss(str(failure))
