"""The core of a receiver: credit, prefetch, and completions.

The capacity is the number of messages to prefetch (message.flow in window mode): fetching a message completes its
transfer, which gives the broker credit for another; completions are sent in batches. With a capacity of 0 each fetch
gives credit for one message.

At the end of its timeout a fetch sends message.flush: the queue is empty only if the flush is completed and no message
has arrived.

Source: AMQP 0-10, message.subscribe, message.flow, message.flush; session.completed.
"""

from __future__ import annotations

import contextlib
import uuid
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from qstore.broker.client.address import Address, format_address, parse_address
from qstore.broker.client.address_options import RECEIVER, address_target
from qstore.broker.client.core_commands import SessionCommands
from qstore.broker.client.errors import Empty, LinkClosedError, LinkError, NotFound
from qstore.broker.client.interruption import InterruptedByLoss
from qstore.broker.client.message import Message
from qstore.broker.client.numbers import number_ranges
from qstore.broker.client.resolution import (
    Call,
    Node,
    bind_calls,
    delete_node,
    delete_queue,
    make_unique,
    resolve,
    subscription_queue,
    unbind_calls,
    with_selector,
)
from qstore.formats.amqp_0_10.codes import AcceptMode, AcquireMode, CreditUnit, FlowMode

if TYPE_CHECKING:
    from qstore.broker.client.machine import WireSession

_SELECTOR: Final = "x-apache-selector"
_UNLIMITED: Final = 0xFFFFFFFF
_REPORTS_PER_CAPACITY: Final = 4  # completions sent per capacity of messages
_CREDITS, _MORE_CREDIT = 4, 64  # times the capacity, and messages, that may arrive while credit is reset


class Delivery:
    """The receiver of a message, and its command number in its session."""

    __slots__ = ("number", "receiver", "wire")

    def __init__(self, receiver: ReceiverCore, wire: WireSession, number: int) -> None:
        self.receiver, self.wire, self.number = receiver, wire, number


class ReceiverCore:
    """A receiver.

    Args:
        session: the commands of its session.
        address: the address to receive from.
        capacity: number of messages to prefetch; 0 for none.
        destination: its name in the session.
        unaccepted: the session's command numbers of messages fetched and not settled.
        on_closed: called when it is closed.

    Attributes:
        incoming: prefetched messages.
        most_incoming: more than a broker that keeps to the credit sends, also when the credit was reset meanwhile.
        failure: why it has failed or is closed; None before.
        is_attached: whether it is attached, or will be at the next reconnect.

    Raises:
        AddressError: the address is invalid.
    """

    def __init__(
        self,
        session: SessionCommands,
        address: str,
        capacity: int,
        destination: str,
        unaccepted: dict[int, None],
        on_closed: Callable[[ReceiverCore], None],
    ) -> None:
        parsed = parse_address(address)
        self.session = session
        self._unaccepted, self._on_closed = unaccepted, on_closed
        self.target = make_unique(parsed, address_target(parsed))
        self.capacity = max(0, capacity)
        self.destination = destination
        self.incoming: deque[Message] = deque()
        self.most_incoming = _CREDITS * self.capacity + _MORE_CREDIT
        self.failure: LinkError | None = None
        self.is_attached = False
        self.is_accepting = self.target.reliable is not False and not self.target.browse
        self._node = Node(self.target.name)
        self._own_queue: str | None = None
        self._bindings: list[Call] = []
        self._credit = 0  # given for a fetch, with a capacity of 0
        self._unreported = 0  # completed, but not yet sent to the broker
        self._is_credit_unknown = False
        self._is_closing = False

    @property
    def address(self) -> str:
        """The address with its actual name, for use as a reply-to."""
        target = self.target
        return format_address(Address(target.name, target.subject))

    # ---- attaching ----

    async def attach(self) -> None:
        """Find or create the queue, and subscribe to it. Raises as `resolve` does, and InterruptedByLoss."""
        target, session = self.target, self.session
        node = self._node = await resolve(session.invoke_all, target, RECEIVER)
        calls: list[Call] = []
        if node.is_queue:
            queue = node.name
            self._bindings = bind_calls(target.link_bindings, node, None, target.subject)
            calls.extend(self._bindings)
        else:
            queue = self._own_queue = target.link_name or f"subscription_{uuid.uuid4()}"
            calls.extend(subscription_queue(target, node, queue))
        subscribe = target.subscribe
        selector = target.selector if node.is_queue else None
        values = {
            "queue": queue,
            "destination": self.destination,
            "accept_mode": AcceptMode.EXPLICIT if self.is_accepting else AcceptMode.NONE,
            "acquire_mode": AcquireMode.NOT_ACQUIRED if target.browse else AcquireMode.PRE_ACQUIRED,
            "exclusive": bool(subscribe.exclusive),
            "resume_id": subscribe.resume_id,
            "resume_ttl": subscribe.resume_ttl,
            "arguments": with_selector(subscribe.arguments, _SELECTOR, selector) or None,
        }
        calls.append(("message.subscribe", values))
        mode = FlowMode.WINDOW if self.capacity else FlowMode.CREDIT
        calls.append(("message.set-flow-mode", {"destination": self.destination, "flow_mode": mode}))
        self._credit = self._unreported = 0
        await session.invoke_all(calls)
        self.grant()

    async def reattach(self) -> None:
        """Attach on a new connection. If the node no longer exists, the receiver fails, but not its session."""
        if self.failure is None and self.is_attached:
            try:
                await self.attach()
            except LinkError as error:
                self.failure = error

    # ---- credit ----

    def _flow(self, messages: int) -> None:
        send, destination = self.session.wire.send, self.destination
        send("message.flow", destination=destination, unit=CreditUnit.BYTE, value=_UNLIMITED)
        send("message.flow", destination=destination, unit=CreditUnit.MESSAGE, value=messages)

    def grant(self) -> None:
        """Give the broker credit when it has none."""
        self._credit = 0
        # Brokers differ in whether completing messages delivered before the credit was reset gives credit back: so the
        # credit is set again when all of them have been fetched.
        self._is_credit_unknown = bool(self.incoming)
        if self.capacity > len(self.incoming):
            self._flow(self.capacity - len(self.incoming))

    def _reset_credit(self) -> None:
        """Set the broker's credit to the capacity, whatever it was."""
        self._is_credit_unknown = False
        self.session.wire.send("message.stop", destination=self.destination)
        self._flow(self.capacity)

    def ask(self) -> None:
        """With a capacity of 0: give credit for one message, unless that was done or a message has arrived."""
        if not self.capacity and not self._credit and not self.incoming and self.failure is None:
            self._flow(1)
            self._credit = 1

    # ---- fetching ----

    def check(self) -> None:
        """Raise an error if the receiver cannot be used."""
        if self.failure is not None:
            raise type(self.failure)(*self.failure.args)
        self.session.check()

    def try_fetch(self) -> Message | None:
        """The next prefetched message; None if there is none."""
        if not self.incoming or not self.session.is_ready:
            return None
        message = self.incoming.popleft()
        wire, number = self.session.wire, message.delivery.number
        wire.ledger.complete([[number, number]])
        if self.is_accepting:
            self._unaccepted[number] = None
        self._credit = 0
        self._unreported += 1
        if self._unreported * _REPORTS_PER_CAPACITY >= self.capacity or not self.incoming:
            self._unreported = 0
            wire.send_completed()
        if self._is_credit_unknown and not self.incoming:
            self._reset_credit()
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
        if session.is_ready:
            try:
                if self.capacity:
                    self._reset_credit()
                await session.invoke("message.flush", destination=self.destination)
                self.grant()
            except InterruptedByLoss:
                pass
        message = self.try_fetch()
        if message is None:
            self.check()
            raise Empty(f"no message from {self.target.name!r}")
        return message

    def take_waiting(self) -> list[int]:
        """Discard the prefetched messages as completed, and return their command numbers."""
        numbers = [message.delivery.number for message in self.incoming]
        self.incoming.clear()
        self.session.wire.ledger.complete([[number, number] for number in numbers])
        return numbers

    # ---- closing ----

    def unfinished(self) -> list[str]:
        """Operations of `close` that the broker has not confirmed, as text for the user; empty if there are none.

        The subscription and auto-delete queues are not included, since they end with the connection.
        """
        name, target = repr(self.target.name), self.target
        if isinstance(self.failure, (LinkClosedError, NotFound)):
            return []
        found = [f"bindings of {name} not removed"] if self._bindings else []
        if RECEIVER in target.delete:
            found.append(f"{name} not deleted")
        if self._own_queue is not None and not target.link_durable and target.link_declare.auto_delete is False:
            found.append(f"queue {self._own_queue!r} not deleted")
        return found

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
                    await self._detach()
                    return
            if self.unfinished():
                await session.retry(self._finish, deadline)
        finally:
            self.is_attached = False
            self._on_closed(self)
            self.incoming.clear()
            self.failure = self.failure or LinkClosedError(f"the receiver from {self.target.name!r} is closed")

    async def _finish(self) -> None:
        """Close on a new connection, on which the receiver was attached again or has failed to."""
        if self.failure is None:
            await self._detach()
        elif self.unfinished():
            self.check()

    async def _detach(self) -> None:
        session, target = self.session, self.target
        calls: list[Call] = [("message.cancel", {"destination": self.destination}), *unbind_calls(self._bindings)]
        await session.invoke_all(calls)
        waiting = self.take_waiting()
        if waiting:
            await session.invoke("message.release", transfers=number_ranges(waiting))
            session.wire.send_completed()
        if RECEIVER in target.delete:
            await delete_node(session.invoke_all, self._node)
        if self._own_queue is not None and not target.link_durable:
            await delete_queue(session.invoke_all, self._own_queue, if_unused=True)
