"""The core of a sender: from a message to a transfer that the broker has completed.

A sender has at most `capacity` messages that the broker has not completed; `try_send` refuses more, and `send` waits.
A completed transfer is on the disk, if the message is durable and so is its queue. With the reliabilities unreliable
and at-most-once nothing is waited for, and nothing is sent again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from broker.client.address import parse_address
from broker.client.address_options import SENDER, address_target
from broker.client.core_commands import SessionCommands
from broker.client.errors import LinkClosedError, LinkError, NotFound, Timeout
from broker.client.message import Message, encode_message
from broker.client.resolution import Call, Node, bind_calls, delete_node, make_unique, resolve, unbind_calls
from formats.amqp_0_10.codes import AcceptMode, AcquireMode
from formats.amqp_0_10.commands import encode_command
from formats.wording import plural

#: Every so many messages one asks the broker to say at once what it has completed: this part of the capacity.
_ASKS_PER_CAPACITY: Final = 4


class Transfer:
    """A message that was sent, until the broker has completed it."""

    __slots__ = ("body", "header", "is_settled", "sender")

    def __init__(self, sender: SenderCore, header: bytes, body: bytes) -> None:
        self.sender, self.header, self.body = sender, header, body
        self.is_settled = False


class SenderCore:
    """A sender.

    Args:
        session: what its session asks of the broker.
        address: where to.
        capacity: messages under way at most, at least 1.
        under_way: what the session has sent and the broker has not completed, by command number.
        on_closed: is told when it is closed.

    Attributes:
        unsettled: messages under way.
        failure: why it can no longer be used.

    Raises:
        AddressError: the address cannot be used.
    """

    def __init__(
        self,
        session: SessionCommands,
        address: str,
        capacity: int,
        under_way: dict[int, Transfer],
        on_closed: Callable[[SenderCore], None],
    ) -> None:
        parsed = parse_address(address)
        self.session = session
        self._under_way, self._on_closed = under_way, on_closed
        self.target = make_unique(parsed, address_target(parsed))
        self.capacity = max(1, capacity)
        self.unsettled = 0
        self.failure: LinkError | None = None
        self._node = Node(self.target.name)
        self._bindings: list[Call] = []
        self._payload = self._asking_payload = b""
        self._until_asking = 0

    # ---- attaching ----

    async def attach(self) -> None:
        """Find where messages go. Raises as `resolve` does, and InterruptedByLoss."""
        target = self.target
        node = self._node = await resolve(self.session.invoke_all, target, SENDER)
        self._bindings = bind_calls(target.link_bindings, node, None, target.subject)
        await self.session.invoke_all(self._bindings)
        values: dict[str, Any] = {
            "destination": "" if node.is_queue else node.name,
            "accept_mode": AcceptMode.NONE,
            "acquire_mode": AcquireMode.PRE_ACQUIRED,
        }
        self._payload = encode_command("message.transfer", **values)
        self._asking_payload = encode_command("message.transfer", sync=True, **values)

    async def attach_again(self) -> None:
        """The same on another connection. A sender whose node is gone fails, its session does not."""
        if self.failure is None:
            try:
                await self.attach()
            except LinkError as error:
                self.failure = error

    # ---- sending ----

    def check(self) -> None:
        """Raise why it cannot be used, if it cannot."""
        if self.failure is not None:
            raise type(self.failure)(*self.failure.args)
        self.session.check()

    def try_send(self, message: Message, *, is_asking: bool = False) -> Transfer | None:
        """Send a message, if that can be done at once.

        Args:
            message: what is sent.
            is_asking: the broker shall say at once when it has completed it.

        Returns:
            what becomes settled; None if nothing was sent: `send` says why, or waits.

        Raises:
            ContentError: there is no encoding for the message.
        """
        session = self.session
        if not session.is_ready or self.unsettled >= self.capacity or self.failure or session.driver.is_full:
            return None
        subject = message.subject
        if subject is None:
            subject = self.target.subject
        if self._node.is_queue:
            header, body = encode_message(message, self._node.name, subject)
        else:
            header, body = encode_message(message, subject or "", subject)
        transfer = Transfer(self, header, body)
        self.put(transfer, is_asking=is_asking)
        return transfer

    def put(self, transfer: Transfer, *, is_asking: bool = False) -> None:
        """Send, or send again."""
        self._until_asking -= 1
        if self._until_asking < 0:
            self._until_asking = self.capacity // _ASKS_PER_CAPACITY
            is_asking = True
        payload = self._asking_payload if is_asking else self._payload
        number = self.session.wire.send_payload(payload, transfer.header, transfer.body)
        if self.target.reliable is False:
            transfer.is_settled = True
        else:
            self._under_way[number] = transfer
            self.unsettled += 1

    async def send(self, message: Message, *, sync: bool, timeout: float | None) -> None:
        """Send a message; with `sync` wait until the broker has completed it.

        Raises:
            Timeout: the time is over. If it was waiting for the broker, the message is sent all the same.
            MessagingError: it cannot be sent.
        """
        session, driver = self.session, self.session.driver
        deadline = None if timeout is None else driver.now() + timeout
        while True:
            self.check()
            transfer = self.try_send(message, is_asking=sync)
            if transfer is not None:
                break
            if not await session.wait(self._has_room, deadline):
                raise Timeout(f"{self.target.name!r} took no message within {timeout:g} seconds")
        if sync and not transfer.is_settled:
            if not await session.wait(lambda: transfer.is_settled or self.failure is not None, deadline):
                raise Timeout(f"the message to {self.target.name!r} was not completed within {timeout:g} seconds")
            if not transfer.is_settled:
                self.check()

    def _has_room(self) -> bool:
        session = self.session
        is_free = session.is_ready and self.unsettled < self.capacity and not session.driver.is_full
        return is_free or self.failure is not None

    async def sync(self, timeout: float | None) -> None:
        """Wait until the broker has completed all that was sent.

        Raises:
            Timeout: the time is over.
            MessagingError: the session or the connection has failed.
        """
        session = self.session
        deadline = None if timeout is None else session.driver.now() + timeout
        self.check()
        if not self.unsettled:
            return
        if session.is_ready:
            session.wire.send("execution.sync", sync=True)
        await self._wait_settled(deadline)

    async def _wait_settled(self, deadline: float | None) -> None:
        """Wait until the broker has completed all that was sent. Raises as `sync` does."""
        if not await self.session.wait(lambda: not self.unsettled or self.failure is not None, deadline):
            raise Timeout(f"{plural(self.unsettled, 'message')} to {self.target.name!r} not confirmed in time")
        if self.unsettled:
            self.check()

    # ---- closing ----

    def undone(self) -> list[str]:
        """What the broker would have to confirm before this is closed, for people; empty if there is nothing."""
        name = repr(self.target.name)
        found: list[str] = []
        if isinstance(self.failure, LinkClosedError):
            return found
        if self.unsettled:
            found.append(f"{plural(self.unsettled, 'message')} to {name} not confirmed")
        if not isinstance(self.failure, NotFound):  # what is gone has no bindings
            found.extend([f"bindings of {name} not removed"] if self._bindings else ())
            found.extend([f"{name} not deleted"] if SENDER in self.target.delete else ())
        return found

    async def close(self, deadline: float | None = None) -> None:
        """Wait until all is completed, take back the link's bindings, and delete the node if the address says so.

        Raises:
            Timeout: the deadline has passed before.
            MessagingError: the sender, its session or its connection failed before. Closed it is all the same.
        """
        session = self.session
        try:
            if self.undone():
                await session.again(lambda: self._finish(deadline), deadline)
        finally:
            self._on_closed(self)
            self.failure = self.failure or LinkClosedError(f"the sender to {self.target.name!r} is closed")

    async def _finish(self, deadline: float | None) -> None:
        await self._wait_settled(deadline)
        if not self.undone():
            return
        self.check()
        session = self.session
        await session.invoke_all(unbind_calls(self._bindings))
        if SENDER in self.target.delete:
            await delete_node(session.invoke_all, self._node)
