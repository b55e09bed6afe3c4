"""The core of a sender: transfers until the broker has completed them.

A sender has at most `capacity` messages that the broker has not completed; beyond that `try_send` refuses and `send`
waits. A completed transfer is stored durably if its message and its queue are durable. With the reliabilities
unreliable and at-most-once, messages are neither confirmed nor sent again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from qstore.broker.client.address import parse_address
from qstore.broker.client.address_options import SENDER, address_target
from qstore.broker.client.core_commands import SessionCommands
from qstore.broker.client.errors import LinkClosedError, LinkError, NotFound, Timeout
from qstore.broker.client.message import Message, encode_message
from qstore.broker.client.resolution import Call, Node, bind_calls, delete_node, make_unique, resolve, unbind_calls
from qstore.formats.amqp_0_10.codes import AcceptMode, AcquireMode
from qstore.formats.amqp_0_10.commands import encode_command
from qstore.formats.wording import plural

#: Number of messages per capacity that request an immediate completion (sync flag).
_SYNCS_PER_CAPACITY: Final = 4


class Transfer:
    """A message that the broker has not completed yet."""

    __slots__ = ("body", "header", "is_settled", "sender")

    def __init__(self, sender: SenderCore, header: bytes, body: bytes) -> None:
        self.sender, self.header, self.body = sender, header, body
        self.is_settled = False


class SenderCore:
    """A sender.

    Args:
        session: the commands of its session.
        address: the address to send to.
        capacity: maximum number of unsettled messages, at least 1.
        transfers: the session's unsettled transfers: command number -> transfer.
        on_closed: called when it is closed.

    Attributes:
        unsettled: number of unsettled messages: sent, and not completed by the broker.
        settled: number of messages that the broker has completed.
        failure: why it has failed or is closed; None before.

    Raises:
        AddressError: the address is invalid.
    """

    def __init__(
        self,
        session: SessionCommands,
        address: str,
        capacity: int,
        transfers: dict[int, Transfer],
        on_closed: Callable[[SenderCore], None],
    ) -> None:
        parsed = parse_address(address)
        self.session = session
        self._transfers, self._on_closed = transfers, on_closed
        self.target = make_unique(parsed, address_target(parsed))
        self.capacity = max(1, capacity)
        self.unsettled = self.settled = 0
        self.failure: LinkError | None = None
        self._node = Node(self.target.name)
        self._bindings: list[Call] = []
        self._payload = self._sync_payload = b""
        self._until_sync = 0

    # ---- attaching ----

    async def attach(self) -> None:
        """Find or create the queue or exchange. Raises as `resolve` does, and InterruptedByLoss."""
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
        self._sync_payload = encode_command("message.transfer", sync=True, **values)

    async def reattach(self) -> None:
        """Attach on a new connection. If the node no longer exists, the sender fails, but not its session."""
        if self.failure is None:
            try:
                await self.attach()
            except LinkError as error:
                self.failure = error

    # ---- sending ----

    def check(self) -> None:
        """Raise an error if the sender cannot be used."""
        if self.failure is not None:
            raise type(self.failure)(*self.failure.args)
        self.session.check()

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
        self.put(transfer, sync=sync)
        return transfer

    def put(self, transfer: Transfer, *, sync: bool = False) -> None:
        """Send a transfer, or send it again after a reconnect."""
        self._until_sync -= 1
        if self._until_sync < 0:
            self._until_sync = self.capacity // _SYNCS_PER_CAPACITY
            sync = True
        payload = self._sync_payload if sync else self._payload
        number = self.session.wire.send_payload(payload, transfer.header, transfer.body)
        if self.target.reliable is False:
            transfer.is_settled = True
        else:
            self._transfers[number] = transfer
            self.unsettled += 1

    async def send(self, message: Message, *, sync: bool, timeout: float | None) -> None:
        """Send a message; with `sync` wait until the broker has completed it.

        Raises:
            Timeout: the time has passed. The message may have been sent.
            MessagingError: the sender, its session or its connection has failed.
        """
        session, driver = self.session, self.session.driver
        deadline = None if timeout is None else driver.now() + timeout
        while True:
            self.check()
            transfer = self.try_send(message, sync=sync)
            if transfer is not None:
                break
            if not await session.wait(self._has_room, deadline):
                raise Timeout(f"no message could be sent to {self.target.name!r} within {timeout:g} seconds")
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
        """Wait until the broker has completed all messages sent.

        Raises:
            Timeout: the time has passed.
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
        """Wait until the broker has completed all messages sent. Raises as `sync` does."""
        if not await self.session.wait(lambda: not self.unsettled or self.failure is not None, deadline):
            raise Timeout(f"{plural(self.unsettled, 'message')} to {self.target.name!r} not confirmed in time")
        if self.unsettled:
            self.check()

    # ---- closing ----

    def unfinished(self) -> list[str]:
        """Operations that the broker has not confirmed, as text for the user; empty if there are none."""
        name = repr(self.target.name)
        found: list[str] = []
        if isinstance(self.failure, LinkClosedError):
            return found
        if self.unsettled:
            found.append(f"{plural(self.unsettled, 'message')} to {name} not confirmed")
        if not isinstance(self.failure, NotFound):  # a node that does not exist has no bindings
            found.extend([f"bindings of {name} not removed"] if self._bindings else ())
            found.extend([f"{name} not deleted"] if SENDER in self.target.delete else ())
        return found

    async def close(self, deadline: float | None = None) -> None:
        """Wait until all messages are completed, remove the link's bindings, delete the node if the address says so.

        The sender is closed even if an error is raised.

        Raises:
            Timeout: the deadline has passed before that.
            MessagingError: the sender, its session or its connection has failed.
        """
        session = self.session
        try:
            if self.unfinished():
                await session.retry(lambda: self._finish(deadline), deadline)
        finally:
            self._on_closed(self)
            self.failure = self.failure or LinkClosedError(f"the sender to {self.target.name!r} is closed")

    async def _finish(self, deadline: float | None) -> None:
        await self._wait_settled(deadline)
        if not self.unfinished():
            return
        self.check()
        session = self.session
        await session.invoke_all(unbind_calls(self._bindings))
        if SENDER in self.target.delete:
            await delete_node(session.invoke_all, self._node)
