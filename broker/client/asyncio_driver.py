"""The driver for an asyncio event loop: see `driver`. It must be called from the loop's thread only."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, Final, cast

from qstore.broker.client.driver import Events
from qstore.broker.client.errors import ConnectError
from qstore.broker.client.threaded import describe_failure
from qstore.broker.client.url import Endpoint

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
            self.driver.events.on_data(data)

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
            driver.events.on_lost(reason)


class AsyncioDriver:
    """See `driver.Driver`.

    Args:
        events: the core.

    Attributes:
        events: the core.
        is_full: see `Driver`.
    """

    def __init__(self, events: Events) -> None:
        self.events = events
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
            output = self.events.take_output()
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
        self.events.on_beat()
