"""The client with coroutines of asyncio: the same calls as in `blocking`, to be awaited.

    async with Connection("localhost:5672") as connection:
        session = await connection.session()
        sender = await session.sender("orders; {create: always}")
        await sender.send("hello")

What arguments mean and what is raised is said there. A connection belongs to the event loop that it was opened in.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from broker.client.asyncio_driver import AsyncioDriver
from broker.client.blocking import SENDER_CAPACITY
from broker.client.core_connection import ConnectionCore, ConnectionState
from broker.client.core_receiver import ReceiverCore
from broker.client.core_sender import SenderCore
from broker.client.core_session import SessionCore
from broker.client.errors import Empty, MessagingError
from broker.client.message import Message


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
        """A new session."""
        return Session(self, await self._core.session(name, is_transactional=transactional))

    @property
    def is_open(self) -> bool:
        """It was opened and not closed, and has not failed."""
        return self._core.state in (ConnectionState.OPEN, ConnectionState.CONNECTING)

    async def close(self, timeout: float | None = None) -> None:
        """Close all sessions and the connection, after the broker has completed what was sent."""
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
        # After an error nothing that is still under way is waited for.
        await self.close(None if error is None else 0)


class Session:
    """A session. See `blocking.Session`.

    Attributes:
        connection: what it belongs to.
    """

    def __init__(self, connection: Connection, core: SessionCore) -> None:
        self.connection = connection
        self._core = core
        self._receivers: dict[ReceiverCore, Receiver] = {}

    async def sender(self, address: str, *, capacity: int = SENDER_CAPACITY) -> Sender:
        """A sender."""
        return Sender(self, await self._core.sender(address, capacity))

    async def receiver(self, address: str, *, capacity: int = 0) -> Receiver:
        """A receiver."""
        core = await self._core.receiver(address, capacity)
        receiver = self._receivers[core] = Receiver(self, core)
        return receiver

    async def next_receiver(self, timeout: float | None = None) -> Receiver:
        """The receiver whose `fetch` has a message."""
        deadline = None if timeout is None else self._core.driver.now() + timeout
        core = await self._core.next_receiver(deadline)
        if core is None:
            raise Empty("no receiver has a message")
        return self._receivers[core]

    async def acknowledge(self, message: Message | None = None, *, sync: bool = True) -> None:
        """Accept a message, or all that were fetched."""
        await self._settle(message, "message.accept", {}, sync=sync)

    async def release(self, message: Message | None = None, *, sync: bool = True) -> None:
        """Put a message back where it was, marked as redelivered; or all that were fetched."""
        await self._settle(message, "message.release", {"set_redelivered": True}, sync=sync)

    async def reject(self, message: Message | None = None, *, sync: bool = True) -> None:
        """Refuse a message, or all that were fetched: the broker drops or reroutes them."""
        await self._settle(message, "message.reject", {"code": 0}, sync=sync)

    async def _settle(self, message: Message | None, name: str, values: Mapping[str, Any], *, sync: bool) -> None:
        number = self._core.settle(message, name, **values)
        if sync:
            await self._core.wait_done(number)

    async def sync(self) -> None:
        """Wait until the broker has done all that was asked of it."""
        await self._core.sync()

    async def commit(self) -> None:
        """Commit the transaction; another begins."""
        await self._core.commit()

    async def rollback(self) -> None:
        """Take the transaction back; another begins. What was received in it is delivered again."""
        await self._core.rollback()

    async def close(self) -> None:
        """Close it, after the broker has completed what was sent."""
        await self._core.close()

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
            return
        # That error is the one to be seen, and nothing that is still under way is waited for.
        with contextlib.suppress(MessagingError):
            await self._core.close(self._core.driver.now())


class Sender:
    """Sends messages to one address. See `blocking.Sender`."""

    def __init__(self, session: Session, core: SenderCore) -> None:
        self.session = session
        self._core = core

    @property
    def capacity(self) -> int:
        """Messages that the broker has not completed, at most."""
        return self._core.capacity

    async def send(self, message: Message | Any, *, sync: bool = True, timeout: float | None = None) -> None:
        """Send a message."""
        if not isinstance(message, Message):
            message = Message(message)
        if sync or self._core.try_send(message) is None:
            await self._core.send(message, sync=sync, timeout=timeout)

    async def sync(self, timeout: float | None = None) -> None:
        """Wait until the broker has completed all that was sent."""
        await self._core.sync(timeout)

    def unsettled(self) -> int:
        """Messages that the broker has not completed."""
        return self._core.unsettled

    @property
    def is_reliable(self) -> bool:
        """The broker confirms messages: the address does not say otherwise."""
        return self._core.target.reliable is not False

    def available(self) -> int:
        """Messages that can be sent without waiting."""
        return max(0, self._core.capacity - self._core.unsettled)

    async def close(self) -> None:
        """Close it, after the broker has completed what was sent."""
        await self._core.close()


class Receiver:
    """Receives messages from one address. See `blocking.Receiver`."""

    def __init__(self, session: Session, core: ReceiverCore) -> None:
        self.session = session
        self._core = core

    @property
    def capacity(self) -> int:
        """Messages that the broker may send ahead of `fetch`."""
        return self._core.capacity

    @property
    def address(self) -> str:
        """The address with the name that it has got, to be used as a reply-to."""
        return self._core.address

    async def fetch(self, timeout: float | None = None) -> Message:
        """The next message."""
        message = self._core.try_fetch()
        return await self._core.fetch(timeout) if message is None else message

    def available(self) -> int:
        """Messages that have come and wait to be fetched."""
        return len(self._core.incoming)

    async def close(self) -> None:
        """Close it; what waits here goes back to its queue."""
        self.session._receivers.pop(self._core, None)
        await self._core.close()
