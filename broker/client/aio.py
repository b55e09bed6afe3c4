"""The client for asyncio: the same calls as in `blocking`, as coroutines.

    async with Connection("localhost:5672") as connection:
        session = await connection.session()
        sender = await session.sender("orders; {create: always}")
        await sender.send("hello")

`blocking` documents the arguments and errors. A connection belongs to the event loop in which it was opened.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from qstore.broker.client.asyncio_driver import AsyncioDriver
from qstore.broker.client.blocking import SENDER_CAPACITY
from qstore.broker.client.core_connection import ConnectionCore, ConnectionState
from qstore.broker.client.core_receiver import ReceiverCore
from qstore.broker.client.core_sender import SenderCore
from qstore.broker.client.core_session import SessionCore
from qstore.broker.client.errors import Empty, MessagingError
from qstore.broker.client.message import Message


class Connection:
    """A connection to a broker. See `blocking.Connection`."""

    def __init__(self, url: str = "localhost", **options: Any) -> None:
        self._core = ConnectionCore(url, options)

    async def open(self) -> None:
        """Connect."""
        driver = self._core.driver = AsyncioDriver(self._core)
        try:
            await self._core.open()
        except BaseException:
            await driver.finish()
            raise

    async def session(self, name: str | None = None, *, transactional: bool = False) -> Session:
        """Open a session. See `blocking.Connection.session`."""
        return Session(self, await self._core.session(name, is_transactional=transactional))

    @property
    def is_open(self) -> bool:
        """Whether it was opened, and neither closed nor has failed."""
        return self._core.state in (ConnectionState.OPEN, ConnectionState.CONNECTING)

    async def close(self, timeout: float | None = None) -> None:
        """Close all sessions and the connection, after the broker has completed everything sent on them."""
        driver = self._core.driver
        assert isinstance(driver, AsyncioDriver)
        try:
            await self._core.close(timeout)
        finally:
            await driver.finish()

    async def __aenter__(self) -> Connection:
        if not self.is_open:
            await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # After an error do not wait for unfinished operations.
        await self.close(None if error is None else 0)


class Session:
    """A session. See `blocking.Session`.

    Attributes:
        connection: its connection.
    """

    def __init__(self, connection: Connection, core: SessionCore) -> None:
        self.connection = connection
        self._core = core
        self._receivers: dict[ReceiverCore, Receiver] = {}

    async def sender(self, address: str, *, capacity: int = SENDER_CAPACITY) -> Sender:
        """Create a sender. See `blocking.Session.sender`."""
        return Sender(self, await self._core.sender(address, capacity))

    async def receiver(self, address: str, *, capacity: int = 0) -> Receiver:
        """Create a receiver. See `blocking.Session.receiver`."""
        core = await self._core.receiver(address, capacity)
        receiver = self._receivers[core] = Receiver(self, core)
        return receiver

    async def next_receiver(self, timeout: float | None = None) -> Receiver:
        """Wait for a receiver with a message. See `blocking.Session.next_receiver`."""
        deadline = None if timeout is None else self._core.driver.now() + timeout
        core = await self._core.next_receiver(deadline)
        if core is None:
            raise Empty("no receiver has a message")
        return self._receivers[core]

    async def acknowledge(self, message: Message | None = None, *, sync: bool = True) -> None:
        """Accept a message, or all fetched messages."""
        await self._settle(message, "message.accept", {}, sync=sync)

    async def release(self, message: Message | None = None, *, sync: bool = True) -> None:
        """Return a message, or all fetched messages, to the queue, marked as redelivered."""
        await self._settle(message, "message.release", {"set_redelivered": True}, sync=sync)

    async def reject(self, message: Message | None = None, *, sync: bool = True) -> None:
        """Reject a message, or all fetched messages: the broker drops or reroutes them."""
        await self._settle(message, "message.reject", {"code": 0}, sync=sync)

    async def _settle(self, message: Message | None, name: str, values: Mapping[str, Any], *, sync: bool) -> None:
        number = self._core.settle(message, name, **values)
        if sync:
            await self._core.wait_done(number)

    async def invoke(self, command: str, /, **values: Any) -> Mapping[str, Any]:
        """Send any command of AMQP 0-10, such as "queue.declare", and wait until the broker has completed it."""
        commands = self._core.commands
        return (await commands.retry(lambda: commands.invoke_all([(command, values)])))[0]

    async def sync(self) -> None:
        """Wait until the broker has completed all commands of the session."""
        await self._core.sync()

    async def commit(self) -> None:
        """Commit the transaction, and begin another."""
        await self._core.commit()

    async def rollback(self) -> None:
        """Roll the transaction back, and begin another. Messages received in it are delivered again."""
        await self._core.rollback()

    async def close(self) -> None:
        """Close the session, after the broker has completed everything sent on it."""
        await self._core.close()

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
            return
        # Do not hide the error by another one, and do not wait for unfinished operations.
        with contextlib.suppress(MessagingError):
            await self._core.close(self._core.driver.now())


class Sender:
    """Sends messages to one address. See `blocking.Sender`."""

    def __init__(self, session: Session, core: SenderCore) -> None:
        self.session = session
        self._core = core

    @property
    def capacity(self) -> int:
        """Maximum number of messages that the broker has not completed."""
        return self._core.capacity

    async def send(self, message: Message | Any, *, sync: bool = True, timeout: float | None = None) -> None:
        """Send a message."""
        if not isinstance(message, Message):
            message = Message(message)
        if sync or self._core.try_send(message) is None:
            await self._core.send(message, sync=sync, timeout=timeout)

    async def sync(self, timeout: float | None = None) -> None:
        """Wait until the broker has completed all messages sent."""
        await self._core.sync(timeout)

    def unsettled(self) -> int:
        """Number of messages that the broker has not completed."""
        return self._core.unsettled

    @property
    def is_reliable(self) -> bool:
        """Whether messages are confirmed by the broker, which is the default of an address."""
        return self._core.target.reliable is not False

    def available(self) -> int:
        """Number of messages that can be sent without waiting."""
        return max(0, self._core.capacity - self._core.unsettled)

    async def close(self) -> None:
        """Close the sender, after the broker has completed all messages sent."""
        await self._core.close()


class Receiver:
    """Receives messages from one address. See `blocking.Receiver`."""

    def __init__(self, session: Session, core: ReceiverCore) -> None:
        self.session = session
        self._core = core

    @property
    def capacity(self) -> int:
        """Number of messages to prefetch."""
        return self._core.capacity

    @property
    def address(self) -> str:
        """The address with its actual name, for use as a reply-to."""
        return self._core.address

    async def fetch(self, timeout: float | None = None) -> Message:
        """Wait for the next message. See `blocking.Receiver.fetch`."""
        message = self._core.try_fetch()
        return await self._core.fetch(timeout) if message is None else message

    def available(self) -> int:
        """Number of prefetched messages."""
        return len(self._core.incoming)

    async def close(self) -> None:
        """Close the receiver; prefetched messages return to their queue."""
        self.session._receivers.pop(self._core, None)
        await self._core.close()
