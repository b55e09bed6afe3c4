"""The client for asyncio: the same calls as in `blocking`, as coroutines.

    async with Connection("localhost:5672") as connection:
        session = await connection.session()
        sender = await session.sender("orders; {create: always}")
        await sender.send("hello")

`blocking` documents the arguments and errors. A connection belongs to the event loop in which it was opened.

The driver is an `asyncio.Protocol`; it must be called from the loop's thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Final, cast

from qstore.broker.client.blocking import SENDER_CAPACITY, named
from qstore.broker.client.connection import ConnectionCore, ConnectionState, describe_failure
from qstore.broker.client.errors import ConnectError, Empty, MessagingError
from qstore.broker.client.links import ReceiverCore, SenderCore
from qstore.broker.client.message import Message
from qstore.broker.client.options import Endpoint
from qstore.broker.client.session import Outcome, SessionCore

_FULL_BYTES: Final = 4 * 1024 * 1024  # unsent bytes at which the driver is full
_LAST_SECONDS: Final = 5.0  # time limit for sending the rest of a closed socket's data


class _Socket(asyncio.Protocol):
    """One socket, until it is lost or disconnected."""

    def __init__(self, driver: AsyncioDriver, closed: asyncio.Future[None]) -> None:
        self.driver: AsyncioDriver | None = driver
        self.closed = closed
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(_FULL_BYTES)

    def data_received(self, data: bytes) -> None:
        if self.driver is not None:
            self.driver.core.on_data(data)

    def pause_writing(self) -> None:
        if self.driver is not None:
            self.driver.is_full = True

    def resume_writing(self) -> None:
        if self.driver is not None:
            self.driver.is_full = False
            self.driver.changed()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
        if self.driver is not None:
            driver = self.driver
            driver.disconnect()
            reason = describe_failure(exc) if isinstance(exc, OSError) else "closed by the broker"
            driver.core.on_lost(reason)


class AsyncioDriver:
    """The driver for an asyncio event loop; see `connection.Driver`.

    Args:
        core: the connection that it serves.

    Attributes:
        core: the connection that it serves.
        is_full: see `Driver`.
    """

    def __init__(self, core: ConnectionCore) -> None:
        self.core = core
        self.is_full = False
        self._loop = asyncio.get_running_loop()
        self._socket: _Socket | None = None
        self._waiting: set[asyncio.Future[None]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing: set[asyncio.Future[None]] = set()
        self._write_handle: asyncio.Handle | None = None
        self._beat_handle: asyncio.TimerHandle | None = None

    def now(self) -> float:
        """See `Driver`."""
        return self._loop.time()

    # ---- waiting ----

    async def wait(self, is_ready: Callable[[], bool], deadline: float | None = None) -> bool:
        """See `Driver`."""
        while not is_ready():
            change = self._loop.create_future()
            self._waiting.add(change)
            try:
                async with asyncio.timeout_at(deadline):
                    await change
            except TimeoutError:
                return is_ready()
            finally:
                self._waiting.discard(change)
        return True

    def changed(self) -> None:
        """See `Driver`."""
        for change in self._waiting:
            if not change.done():
                change.set_result(None)

    async def sleep(self, seconds: float) -> None:
        """See `Driver`."""
        await asyncio.sleep(seconds)

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """See `Driver`."""
        task = self._loop.create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self) -> None:
        """Cancel the background tasks, and wait until they have ended and all sockets are closed."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._closing, return_exceptions=True)

    # ---- the socket ----

    async def connect(self, endpoint: Endpoint, deadline: float, *, nodelay: bool, tls: ssl.SSLContext | None) -> None:
        """See `Driver`. `nodelay` is ignored: asyncio always sets TCP_NODELAY."""
        del nodelay
        closed = self._loop.create_future()
        try:
            async with asyncio.timeout_at(deadline):
                _, found = await self._loop.create_connection(
                    lambda: _Socket(self, closed),
                    endpoint.host,
                    endpoint.port,
                    ssl=tls,
                    server_hostname=None if tls is None else endpoint.host,
                )
        except OSError as error:
            raise ConnectError(f"{endpoint}: {describe_failure(error)}") from None
        self._socket = found
        self._closing.add(closed)
        closed.add_done_callback(self._closing.discard)

    def disconnect(self) -> None:
        """See `Driver`."""
        self._write()
        self.is_full = False
        self.beat_every(0)
        found, self._socket = self._socket, None
        if found is not None and found.transport is not None:
            found.driver = None
            is_unsent = bool(found.transport.get_write_buffer_size())  # a transport with TLS forgets it
            found.transport.close()
            if is_unsent:
                self._loop.call_later(_LAST_SECONDS, found.transport.abort)

    def write_soon(self) -> None:
        """See `Driver`."""
        if self._write_handle is None:
            self._write_handle = self._loop.call_soon(self._write)

    def _write(self) -> None:
        if self._write_handle is not None:
            self._write_handle.cancel()
            self._write_handle = None
        if self._socket is not None and self._socket.transport is not None:
            output = self.core.take_output()
            if output and not self._socket.transport.is_closing():
                self._socket.transport.write(output)

    # ---- heartbeats ----

    def beat_every(self, seconds: float) -> None:
        """See `Driver`."""
        if self._beat_handle is not None:
            self._beat_handle.cancel()
            self._beat_handle = None
        if seconds:
            self._beat_handle = self._loop.call_later(seconds, self._beat, seconds)

    def _beat(self, seconds: float) -> None:
        self._beat_handle = self._loop.call_later(seconds, self._beat, seconds)
        self.core.on_beat()


# ---- the interface ----


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
        self._senders: dict[SenderCore, Sender] = {}
        self._receivers: dict[ReceiverCore, Receiver] = {}

    async def sender(self, address: str, *, capacity: int = SENDER_CAPACITY) -> Sender:
        """Create a sender. See `blocking.Session.sender`."""
        core = await self._core.sender(address, capacity)
        sender = self._senders[core] = Sender(self, core)
        return sender

    async def receiver(self, address: str, *, capacity: int | None = None) -> Receiver:
        """Create a receiver. See `blocking.Session.receiver`."""
        core = await self._core.receiver(address, capacity)
        receiver = self._receivers[core] = Receiver(self, core)
        return receiver

    def get_sender(self, name: str) -> Sender:
        """The sender with this name. See `blocking.Session.get_sender`."""
        return named(self._senders.values(), name)

    def get_receiver(self, name: str) -> Receiver:
        """The receiver with this name. See `blocking.Session.get_receiver`."""
        return named(self._receivers.values(), name)

    async def next_receiver(self, timeout: float | None = None) -> Receiver:
        """Wait for a receiver with a message. See `blocking.Session.next_receiver`."""
        deadline = None if timeout is None else self._core.driver.now() + timeout
        core = await self._core.next_receiver(deadline)
        if core is None:
            raise Empty("no receiver has a message")
        return self._receivers[core]

    async def acknowledge(self, message: Message | None = None, *, up_to: bool = False, sync: bool = True) -> None:
        """Accept a message, or all fetched messages. See `blocking.Session.acknowledge`."""
        await self._settle(message, Outcome.ACCEPT, sync=sync, up_to=up_to)

    async def release(self, message: Message | None = None, *, sync: bool = True) -> None:
        """Return a message, or all fetched messages, to the queue, marked as redelivered."""
        await self._settle(message, Outcome.RELEASE, sync=sync)

    async def reject(self, message: Message | None = None, *, sync: bool = True) -> None:
        """Reject a message, or all fetched messages: the broker drops or reroutes them."""
        await self._settle(message, Outcome.REJECT, sync=sync)

    async def _settle(self, message: Message | None, outcome: Outcome, *, sync: bool, up_to: bool = False) -> None:
        token = self._core.settle(message, outcome, up_to=up_to)
        if sync:
            await self._core.wait_confirmed(token)

    async def invoke(self, command: str, /, **values: Any) -> Mapping[str, Any]:
        """Send any command of AMQP 0-10, such as "queue.declare", and wait until the broker has completed it."""
        return await self._core.command(command, values)

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
        """Maximum number of messages that the broker has not completed. It may be set."""
        return self._core.capacity

    @capacity.setter
    def capacity(self, capacity: int) -> None:
        self._core.set_capacity(capacity)

    @property
    def name(self) -> str:
        """The name of its queue or exchange."""
        return self._core.target.name

    async def send(self, message: Message | Any, *, sync: bool = True, timeout: float | None = None) -> None:
        """Send a message. See `blocking.Sender.send`."""
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
        self.session._senders.pop(self._core, None)
        await self._core.close()


class Receiver:
    """Receives messages from one address. See `blocking.Receiver`."""

    def __init__(self, session: Session, core: ReceiverCore) -> None:
        self.session = session
        self._core = core

    @property
    def capacity(self) -> int:
        """Number of messages to prefetch. It may be set; messages that have come stay."""
        return self._core.capacity

    @capacity.setter
    def capacity(self, capacity: int) -> None:
        self._core.set_capacity(capacity)

    @property
    def name(self) -> str:
        """The name of its queue or exchange."""
        return self._core.target.name

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

    def unsettled(self) -> int:
        """Number of messages that were acknowledged, released or rejected, without the broker's confirmation yet."""
        return self._core.session.unsettled_of(self._core)

    async def close(self) -> None:
        """Close the receiver; prefetched messages return to their queue."""
        self.session._receivers.pop(self._core, None)
        await self._core.close()
