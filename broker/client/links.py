"""Senders and receivers, for every protocol: what is sent and not confirmed yet, what has come and was not fetched.

**Senders.** A sender has at most `capacity` messages that the broker has not completed; beyond that `try_send` refuses
and `send` waits. A completed message is stored durably if it and its queue are durable. With the reliabilities
unreliable and at-most-once, messages are neither confirmed nor sent again. A broker that takes no more messages, or
does not complete them (flow control), delays `send`: that is logged every `WARN_SECONDS`, and ends at the connection
option `send_timeout`. The time without a connection does not count: reconnecting has limits of its own.

**Receivers.** The capacity is the number of messages to prefetch; fetching one gives the broker credit for another.
With a capacity of 0 each fetch gives credit for one message. At the end of its timeout a fetch asks the broker for what
it has: the queue is empty only if that is answered and no message has arrived.

A protocol (`amqp_0_10.links`, `amqp_1_0.links`) adds how nodes are found and made, and how messages and credit travel.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from qstore.broker.client.address import CLIENT_LOGGER, Address, Target, format_address
from qstore.broker.client.errors import (
    Empty,
    InterruptedByLoss,
    LinkClosedError,
    LinkError,
    MessagingError,
    NotFound,
    Timeout,
)
from qstore.formats.wording import plural

if TYPE_CHECKING:
    from qstore.broker.client.message import Message
    from qstore.broker.client.session import SessionCore


# ---- senders ----

WARN_SECONDS: Final = 5.0
DELAY: Final = "delay_seconds"
"""The attribute of log records that say how long a message is delayed."""
_logger: Final = logging.getLogger(CLIENT_LOGGER)


class Transfer:
    """A message that the broker has not completed yet.

    Attributes:
        sender: its sender.
        header, body: the message, encoded.
        is_settled: whether the broker has completed it.
        error: why the broker has refused it; None if it has not.
    """

    __slots__ = ("body", "error", "header", "is_settled", "sender")

    def __init__(self, sender: SenderCore, header: bytes, body: bytes) -> None:
        self.sender, self.header, self.body = sender, header, body
        self.is_settled = False
        self.error: MessagingError | None = None


class SenderCore(ABC):
    """A sender.

    Args:
        session: its session.
        target: the address to send to.
        capacity: maximum number of unsettled messages, at least 1.

    Attributes:
        unsettled: number of unsettled messages: sent, and not completed by the broker.
        settled: number of messages that the broker has completed.
        failure: why it has failed or is closed; None before.
        refusal: why the broker has refused a message; None if that was told, or there is none.
    """

    def __init__(self, session: SessionCore, target: Target, capacity: int) -> None:
        self.session, self.target = session, target
        self.capacity = max(1, capacity)
        self.unsettled = self.settled = 0
        self.failure: LinkError | None = None
        self.refusal: MessagingError | None = None

    # ---- defined by the protocol ----

    @abstractmethod
    async def attach(self) -> None:
        """Find or create the node. Raises LinkError, SessionError and InterruptedByLoss."""

    @property
    @abstractmethod
    def has_credit(self) -> bool:
        """Whether the broker takes a message now."""

    @abstractmethod
    def make_transfer(self, message: Message) -> Transfer:
        """Encode a message. Raises ContentError."""

    @abstractmethod
    def mark_redelivered(self, transfer: Transfer) -> None:
        """Mark a message as possibly sent before."""

    @abstractmethod
    def transmit(self, transfer: Transfer, *, sync: bool) -> int:
        """Send a message, and return its number; `sync`: ask the broker to complete it at once."""

    @abstractmethod
    def ask_completion(self) -> None:
        """Ask the broker to complete all messages sent."""

    @property
    def must_detach(self) -> bool:
        """Whether the broker has a link that ends with the sender."""
        return False

    @abstractmethod
    def unfinished_node(self) -> list[str]:
        """As `unfinished`, except for messages."""

    @abstractmethod
    async def finish_node(self) -> None:
        """Detach: do what `unfinished_node` says. Raises as `attach` does."""

    # ---- attaching ----

    async def reattach(self) -> None:
        """Attach on a new connection. If the node no longer exists, the sender fails, but not its session."""
        if self.failure is None:
            try:
                await self.attach()
            except LinkError as error:
                self.failure = error

    def set_capacity(self, capacity: int) -> None:
        """Change how many messages may be unsettled."""
        self.capacity = max(1, capacity)
        if self.unsettled and self.session.is_ready and self.failure is None:
            self.ask_completion()
        self.session.driver.changed()

    # ---- sending ----

    def check(self) -> None:
        """Raise an error if the sender cannot be used."""
        if self.failure is not None:
            raise copy.copy(self.failure)
        self.session.check()

    def check_refusal(self) -> None:
        """Raise the error of a message that the broker has refused, once."""
        error, self.refusal = self.refusal, None
        if error is not None:
            raise error

    def subject_of(self, message: Message) -> str | None:
        """The subject of a message: its own, or that of the address."""
        return self.target.subject if message.subject is None else message.subject

    def try_send(self, message: Message, *, sync: bool = False) -> Transfer | None:
        """Send a message if that is possible without waiting.

        Args:
            message: the message.
            sync: whether to request an immediate completion.

        Returns:
            the transfer; None if nothing was sent: `send` waits, or raises the error.

        Raises:
            ContentError: the message cannot be encoded.
        """
        if not self._has_room() or self.failure is not None:
            return None
        transfer = self.make_transfer(message)
        self.put(transfer, sync=sync)
        return transfer

    def put(self, transfer: Transfer, *, sync: bool = False) -> None:
        """Send a transfer, or send it again after a reconnect."""
        number = self.transmit(transfer, sync=sync)
        if self.target.reliable is False:
            transfer.is_settled = True
        else:
            self.session.unsettled[number] = transfer
            self.unsettled += 1

    async def send(self, message: Message, *, sync: bool, timeout: float | None) -> None:
        """Send a message; with `sync` wait until the broker has completed it.

        Args:
            message: the message.
            sync: as above.
            timeout: maximum seconds to wait; None for the connection's `send_timeout`, infinity for no limit.

        Raises:
            Timeout: the time has passed. The message may have been sent.
            MessagingError: the sender, its session or its connection has failed, or the broker has refused the message.
        """
        delay = _Delay(self, timeout)
        while True:
            self.check()
            transfer = self.try_send(message, sync=sync)
            if transfer is not None:
                break
            if not await delay.wait(lambda: self._has_room() or self.failure is not None):
                raise Timeout(f"no message could be sent to {self.target.name!r} within {delay.limit:g} seconds")
        if sync and not transfer.is_settled:
            if not await delay.wait(lambda: transfer.is_settled or self.failure is not None):
                raise Timeout(f"the message to {self.target.name!r} was not completed within {delay.limit:g} seconds")
            if not transfer.is_settled:
                self.check()
        if transfer.error is not None:
            if self.refusal is transfer.error:
                self.refusal = None
            raise transfer.error

    def _has_room(self) -> bool:
        session = self.session
        return session.is_ready and self.unsettled < self.capacity and self.has_credit and not session.driver.is_full

    async def sync(self, timeout: float | None) -> None:
        """Wait until the broker has completed all messages sent.

        Raises:
            Timeout: the time has passed.
            MessagingError: the session or the connection has failed, or the broker has refused a message.
        """
        session = self.session
        deadline = None if timeout is None else session.driver.now() + timeout
        self.check()
        if self.unsettled:
            if session.is_ready:
                self.ask_completion()
            await self._wait_settled(deadline)
        self.check_refusal()

    async def _wait_settled(self, deadline: float | None) -> None:
        """Wait until the broker has completed all messages sent. Raises as `sync` does."""
        if not await self.session.wait(lambda: not self.unsettled or self.failure is not None, deadline):
            raise Timeout(f"{plural(self.unsettled, 'message')} to {self.target.name!r} not confirmed in time")
        if self.unsettled:
            self.check()

    # ---- closing ----

    def unfinished(self) -> list[str]:
        """Operations that the broker has not confirmed, as text for the user; empty if there are none."""
        found: list[str] = []
        if isinstance(self.failure, LinkClosedError):
            return found
        if self.unsettled:
            found.append(f"{plural(self.unsettled, 'message')} to {self.target.name!r} not confirmed")
        if not isinstance(self.failure, NotFound):  # a node that does not exist has no bindings
            found += self.unfinished_node()
        return found

    async def close(self, deadline: float | None = None) -> None:
        """Wait until all messages are completed, detach, and delete the node if the address says so.

        The sender is closed even if an error is raised.

        Raises:
            Timeout: the deadline has passed before that.
            MessagingError: the sender, its session or its connection has failed, or the broker has refused a message.
        """
        session = self.session
        try:
            if self.unfinished() or (self.failure is None and session.is_ready and self.must_detach):
                await session.retry(lambda: self._finish(deadline), deadline)
            self.check_refusal()
        finally:
            session.sender_closed(self)
            self.failure = self.failure or LinkClosedError(f"the sender to {self.target.name!r} is closed")

    async def _finish(self, deadline: float | None) -> None:
        await self._wait_settled(deadline)
        if self.unfinished() or (self.failure is None and self.must_detach):
            self.check()
            await self.finish_node()


class _Delay:
    """The time that a message waits for the broker.

    Args:
        sender: its sender.
        timeout: as of `SenderCore.send`.

    Attributes:
        limit: seconds that it may take; infinity for no limit.
    """

    def __init__(self, sender: SenderCore, timeout: float | None) -> None:
        self._sender, self._driver = sender, sender.session.driver
        self._counts_all = timeout is not None  # also the time without a connection
        option = sender.session.connection.options.send_timeout
        self.limit = (math.inf if option is None else option) if timeout is None else timeout
        self._waited, self._told = 0.0, 0.0

    async def wait(self, is_over: Callable[[], bool]) -> bool:
        """Wait for a condition. Returns whether it is met in time. Raises as `SessionCore.wait`."""
        session, driver = self._sender.session, self._driver
        while True:
            began = driver.now()
            left = min(self.limit - self._waited, self._told + WARN_SECONDS - self._waited)
            if await session.wait(is_over, began + max(0.0, left)):
                self._waited += driver.now() - began
                return True
            if self._counts_all or session.is_ready:
                self._waited += driver.now() - began
            if self._waited >= self.limit:
                return False
            if self._waited >= self._told + WARN_SECONDS:
                self._told += WARN_SECONDS
                name = self._sender.target.name
                text = "A message to %r is delayed by %g seconds: the broker controls the flow"
                _logger.warning(text, name, self._told, extra={DELAY: self._told})


# ---- receivers ----

_CREDITS, _MORE_CREDIT = 4, 64  # times the capacity, and messages, that may arrive while credit is reset


class Delivery:
    """The receiver of a message, and its number in its session on a connection."""

    __slots__ = ("number", "receiver", "wire")

    def __init__(self, receiver: ReceiverCore, wire: object, number: int) -> None:
        self.receiver, self.wire, self.number = receiver, wire, number


class ReceiverCore(ABC):
    """A receiver.

    Args:
        session: its session.
        target: the address to receive from.
        capacity: number of messages to prefetch; 0 for none.
        destination: its name in the session.

    Attributes:
        incoming: prefetched messages.
        most_incoming: more than a broker that keeps to the credit sends, also when the credit was reset meanwhile.
        failure: why it has failed or is closed; None before.
        is_attached: whether it is attached, or will be at the next reconnect.
        is_accepting: whether messages are acknowledged.
    """

    def __init__(self, session: SessionCore, target: Target, capacity: int, destination: str) -> None:
        self.session, self.target = session, target
        self.capacity = max(0, capacity)
        self.destination = destination
        self.incoming: deque[Message] = deque()
        self.most_incoming = _CREDITS * self.capacity + _MORE_CREDIT
        self.failure: LinkError | None = None
        self.is_attached = False
        self.is_accepting = self.target.reliable is not False and not self.target.browse
        self._is_closing = False

    @property
    def address(self) -> str:
        """The address with its actual name, for use as a reply-to."""
        target = self.target
        return format_address(Address(target.name, target.subject))

    # ---- defined by the protocol ----

    @abstractmethod
    async def attach(self) -> None:
        """Find or create the node, and subscribe to it. Raises LinkError, SessionError and InterruptedByLoss."""

    @abstractmethod
    def regrant(self) -> None:
        """The capacity has changed: give the broker credit for it, or take it back."""

    @abstractmethod
    def ask(self) -> None:
        """With a capacity of 0: give credit for one message, unless that was done or a message has arrived."""

    @abstractmethod
    def on_fetched(self, message: Message) -> None:
        """A prefetched message was fetched: give credit for another."""

    @abstractmethod
    async def flush(self) -> None:
        """Have the broker send what it has. Raises InterruptedByLoss."""

    @abstractmethod
    def unfinished(self) -> list[str]:
        """Operations of `close` that the broker has not confirmed, as text for the user; empty if there are none."""

    @abstractmethod
    async def detach(self) -> None:
        """Unsubscribe, and return prefetched messages. Raises as `attach` does."""

    def set_capacity(self, capacity: int) -> None:
        """Change how many messages are prefetched. Those that have come stay."""
        self.capacity = max(0, capacity)
        self.most_incoming = max(self.most_incoming, _CREDITS * self.capacity + _MORE_CREDIT)
        if self.session.is_ready and self.is_attached and self.failure is None:
            self.regrant()
        self.session.driver.changed()

    # ---- attaching ----

    async def reattach(self) -> None:
        """Attach on a new connection. If the node no longer exists, the receiver fails, but not its session."""
        if self.failure is None and self.is_attached:
            try:
                await self.attach()
            except LinkError as error:
                self.failure = error

    # ---- fetching ----

    def check(self) -> None:
        """Raise an error if the receiver cannot be used."""
        if self.failure is not None:
            raise copy.copy(self.failure)
        self.session.check()

    def try_fetch(self) -> Message | None:
        """The next prefetched message; None if there is none."""
        if not self.incoming or not self.session.is_ready:
            return None
        message = self.incoming.popleft()
        if self.is_accepting:
            self.session.unaccepted[message.delivery.number] = self
        self.on_fetched(message)
        return message

    async def fetch(self, timeout: float | None) -> Message:
        """Wait for the next message.

        Args:
            timeout: maximum seconds to wait; None for no limit.

        Raises:
            Empty: no message arrived in time.
            MessagingError: the receiver, its session or its connection has failed.
        """
        session, driver = self.session, self.session.driver
        deadline = None if timeout is None else driver.now() + timeout
        while True:
            self.check()
            await session.wait(lambda: session.is_ready, deadline)
            if session.is_ready and self.failure is None:
                self.ask()
                await session.wait(self._is_decided, deadline)
            message = self.try_fetch()
            if message is not None:
                return message
            if deadline is not None and driver.now() >= deadline:
                return await self._fetch_last()

    def _is_decided(self) -> bool:
        return bool(self.incoming) or self.failure is not None or not self.session.is_ready

    async def _fetch_last(self) -> Message:
        """Fetch at the end of the timeout: flush, and take the next message if there is one."""
        session = self.session
        if session.is_ready and self.failure is None:
            with contextlib.suppress(InterruptedByLoss):
                await self.flush()
        message = self.try_fetch()
        if message is None:
            self.check()
            raise Empty(f"no message from {self.target.name!r}")
        return message

    # ---- closing ----

    async def close(self, deadline: float | None = None) -> None:
        """Unsubscribe, return prefetched messages to the queue, and delete the node if the address says so.

        The receiver is closed even if an error is raised.

        Raises:
            Timeout: the deadline has passed before that.
            MessagingError: the receiver, its session or its connection has failed.
        """
        session = self.session
        if self._is_closing:
            return  # by another task, which waits for the broker
        self._is_closing = True
        try:
            if self.failure is None and session.is_ready:
                with contextlib.suppress(InterruptedByLoss):
                    await self.detach()
                    return
            if self.unfinished():
                await session.retry(self._finish, deadline)
        finally:
            self.is_attached = False
            session.receiver_closed(self)
            self.incoming.clear()
            self.failure = self.failure or LinkClosedError(f"the receiver from {self.target.name!r} is closed")

    async def _finish(self) -> None:
        """Close on a new connection, on which the receiver was attached again or has failed to."""
        if self.failure is None:
            await self.detach()
        elif self.unfinished():
            self.check()


def ranges_of(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Ascending numbers as ranges of first and last."""
    ranges: list[tuple[int, int]] = []
    first = last = -1
    for number in numbers:
        if number == last + 1 and ranges:
            ranges[-1] = (first, number)
        else:
            first = number
            ranges.append((first, number))
        last = number
    return ranges
