"""The core of a receiver: credit, what waits to be fetched, and what the broker is told of it.

With a capacity, the broker may send so many messages ahead of `fetch` (message.flow in window mode): a transfer is
completed as it is fetched, which gives the broker the credit for another; completions go out in batches. With a
capacity of 0 each fetch gives the credit for one message.

A fetch whose time is over asks the broker for all that it has (message.flush): only when that is done, and nothing has
come, is the queue empty.

Source: AMQP 0-10, message.subscribe, message.flow, message.flush; session.completed.
"""

from __future__ import annotations

import contextlib
import uuid
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from broker.client.address import Address, format_address, parse_address
from broker.client.address_options import RECEIVER, address_target
from broker.client.core_commands import SessionCommands
from broker.client.errors import Empty, LinkClosedError, LinkError, NotFound
from broker.client.interruption import InterruptedByLoss
from broker.client.message import Message
from broker.client.numbers import number_ranges
from broker.client.resolution import (
    Call,
    Node,
    bind_calls,
    delete_node,
    delete_queue,
    make_unique,
    resolve,
    subscription_queue,
    unbind_calls,
)
from formats.amqp_0_10.codes import AcceptMode, AcquireMode, CreditUnit, FlowMode

if TYPE_CHECKING:
    from broker.client.machine import WireSession

_UNLIMITED: Final = 0xFFFFFFFF
_TELLS_PER_CAPACITY: Final = 4


class Delivery:
    """Who received a message, and as which command of which session."""

    __slots__ = ("number", "receiver", "wire")

    def __init__(self, receiver: ReceiverCore, wire: WireSession, number: int) -> None:
        self.receiver, self.wire, self.number = receiver, wire, number


class ReceiverCore:
    """A receiver.

    Args:
        session: what its session asks of the broker.
        address: where from.
        capacity: messages that may wait here to be fetched; 0 for none.
        destination: its name in the session.
        unaccepted: command numbers of what was fetched in the session and is not settled.
        on_closed: is told when it is closed.

    Attributes:
        incoming: messages that wait to be fetched.
        failure: why it can no longer be used.
        is_attached: it is, or will be again as soon as there is a connection.

    Raises:
        AddressError: the address cannot be used.
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
        self.failure: LinkError | None = None
        self.is_attached = False
        self.is_accepting = self.target.reliable is not False and not self.target.browse
        self._node = Node(self.target.name)
        self._own_queue: str | None = None
        self._bindings: list[Call] = []
        self._credit = 0  # given for a fetch, of a capacity of 0
        self._untold = 0  # completed, and the broker does not know
        self._is_credit_unknown = False

    @property
    def address(self) -> str:
        """The address with the name that it has got, to be used as a reply-to."""
        target = self.target
        return format_address(Address(target.name, target.subject))

    # ---- attaching ----

    async def attach(self) -> None:
        """Find the queue, or make one, and subscribe to it. Raises as `resolve` does, and InterruptedByLoss."""
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
        values = {
            "queue": queue,
            "destination": self.destination,
            "accept_mode": AcceptMode.EXPLICIT if self.is_accepting else AcceptMode.NONE,
            "acquire_mode": AcquireMode.NOT_ACQUIRED if target.browse else AcquireMode.PRE_ACQUIRED,
            "exclusive": bool(subscribe.exclusive),
            "resume_id": subscribe.resume_id,
            "resume_ttl": subscribe.resume_ttl,
            "arguments": subscribe.arguments or None,
        }
        calls.append(("message.subscribe", values))
        mode = FlowMode.WINDOW if self.capacity else FlowMode.CREDIT
        calls.append(("message.set-flow-mode", {"destination": self.destination, "flow_mode": mode}))
        self._credit = self._untold = 0
        await session.invoke_all(calls)
        self.grant()

    async def attach_again(self) -> None:
        """The same on another connection. A receiver whose node is gone fails, its session does not."""
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
        """Give the broker credit, when it has none."""
        self._credit = 0
        # Whether what was delivered before the credit went gives it back when it is completed is the broker's own
        # matter: it is given anew when all of that has been fetched.
        self._is_credit_unknown = bool(self.incoming)
        if self.capacity > len(self.incoming):
            self._flow(self.capacity - len(self.incoming))

    def _grant_anew(self) -> None:
        """Give the broker all credit that it should have, whatever it has."""
        self._is_credit_unknown = False
        self.session.wire.send("message.stop", destination=self.destination)
        self._flow(self.capacity)

    def ask(self) -> None:
        """With a capacity of 0: let the broker send one message, unless one is asked for or waits here."""
        if not self.capacity and not self._credit and not self.incoming and self.failure is None:
            self._flow(1)
            self._credit = 1

    # ---- fetching ----

    def check(self) -> None:
        """Raise why it cannot be used, if it cannot."""
        if self.failure is not None:
            raise type(self.failure)(*self.failure.args)
        self.session.check()

    def try_fetch(self) -> Message | None:
        """The next message, if one waits."""
        if not self.incoming or not self.session.is_ready:
            return None
        message = self.incoming.popleft()
        wire, number = self.session.wire, message.delivery.number
        wire.ledger.release([[number, number]])
        if self.is_accepting:
            self._unaccepted[number] = None
        self._credit = 0
        self._untold += 1
        if self._untold * _TELLS_PER_CAPACITY >= self.capacity or not self.incoming:
            self._untold = 0
            wire.send_completed()
        if self._is_credit_unknown and not self.incoming:
            self._grant_anew()
        return message

    async def fetch(self, timeout: float | None) -> Message:
        """The next message.

        Args:
            timeout: seconds to wait for one, None for as long as it takes.

        Raises:
            Empty: there is none.
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
        """The next message, if the broker has one now."""
        session = self.session
        if session.is_ready:
            try:
                if self.capacity:
                    self._grant_anew()
                await session.invoke("message.flush", destination=self.destination)
                self.grant()
            except InterruptedByLoss:
                pass
        message = self.try_fetch()
        if message is None:
            self.check()
            raise Empty(f"{self.target.name!r} has no message")
        return message

    def take_waiting(self) -> list[int]:
        """Take the messages that wait out of here; their numbers. They count as completed."""
        numbers = [message.delivery.number for message in self.incoming]
        self.incoming.clear()
        self.session.wire.ledger.release([[number, number] for number in numbers])
        return numbers

    # ---- closing ----

    def undone(self) -> list[str]:
        """What the broker would have to confirm before this is closed, for people; empty if there is nothing.

        The subscription is not among it: it ends with the connection, and so does a queue that deletes itself.
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
        """Unsubscribe; what waits goes back to its queue. Delete the node if the address says so.

        Raises:
            Timeout: the deadline has passed before.
            MessagingError: the receiver, its session or its connection failed before. Closed it is all the same.
        """
        session = self.session
        try:
            if self.failure is None and session.is_ready:
                with contextlib.suppress(InterruptedByLoss):
                    await self._detach()
                    return
            if self.undone():
                await session.again(self._finish, deadline)
        finally:
            self.is_attached = False
            self._on_closed(self)
            self.incoming.clear()
            self.failure = self.failure or LinkClosedError(f"the receiver from {self.target.name!r} is closed")

    async def _finish(self) -> None:
        """Over another connection, on which the receiver was attached again, or failed to be."""
        if self.failure is None:
            await self._detach()
        elif self.undone():
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
