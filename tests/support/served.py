"""A broker that listens, on the test's own event loop: what it does inside can be looked at while clients talk to it.

Clients are blocking ones (`raw_peer`), each in a thread: `await client(function)`. The store is a real one, whose disk
can be held back.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from qstore.broker.model.broker import Broker
from qstore.broker.network.server import Server
from qstore.broker.network.socket_connection import SocketConnection
from qstore.broker.protocols.stored_messages import restore_message
from qstore.broker.settings import BrokerSettings
from qstore.store.disk import WritableFile
from qstore.store.environment import system_environment
from qstore.store.module import PluggedStore
from qstore.store.parameters import StoreParameters
from qstore.store.sync.driver import Completion, FileWrite, SyncDriver, SyncDriverError, sync_all
from tests.support.processes import PATIENCE_SECONDS
from tests.support.raw_peer import RawConnection

SETTINGS: Final = BrokerSettings(port=0, interfaces=("127.0.0.1",), auth=False)
MAX_CLIENTS: Final = 32
"""Clients that can be busy at the same time."""
_Found = TypeVar("_Found")


class HeldDriver:
    """A sync driver whose disk does nothing while it is held.

    Attributes:
        is_held: whether nothing is synced.
        failing: names of files (a part is enough) whose sync fails.
        has_stopped_loop: whether the loop waited for the disk while it was held.
    """

    def __init__(self) -> None:
        self.is_held = False
        self.failing: list[str] = []
        self.has_stopped_loop = False
        self._steps = 0  # that are synced while it is held
        self._waiting: list[tuple[int, Sequence[WritableFile]]] = []
        self._event = os.eventfd(0, os.EFD_NONBLOCK)

    @property
    def takes_writes(self) -> bool:
        return False

    def submit(self, ticket: int, files: Sequence[WritableFile], writes: Sequence[FileWrite] = ()) -> None:
        assert not writes
        self._waiting.append((ticket, files))
        self._ring()

    def _ring(self) -> None:
        if self._waiting and (self._steps or not self.is_held):
            os.eventfd_write(self._event, 1)

    def let_go(self) -> None:
        """The disk works again."""
        self.is_held = False
        self._ring()

    def do_step(self) -> None:
        """While it is held, the disk does one step."""
        self._steps = 1
        self._ring()

    def describe(self) -> str:
        return "the driver that is held"

    @property
    def is_stopped(self) -> bool:
        return False

    def kill(self, reason: str) -> None:
        raise AssertionError(reason)

    def successor(self) -> SyncDriver:
        raise SyncDriverError("there is no other")

    def fileno(self) -> int:
        return self._event

    def completed(self, timeout: float | None = 0.0) -> list[Completion]:
        if self.is_held and timeout != 0.0:
            self.has_stopped_loop = True
            raise AssertionError("the event loop waits for the disk")
        with suppress(BlockingIOError):
            os.eventfd_read(self._event)
        count = self._steps if self.is_held else len(self._waiting)
        waiting, self._waiting = self._waiting[:count], self._waiting[count:]
        self._steps = max(0, self._steps - len(waiting))
        return [(ticket, self._sync(files)) for ticket, files in waiting]

    def _sync(self, files: Sequence[WritableFile]) -> OSError | None:
        for file in files:
            name = os.readlink(f"/proc/self/fd/{file.fileno()}")
            if any(part in name for part in self.failing):
                return OSError(5, "Input/output error", name)
        return sync_all(files)

    def close(self) -> None:
        if self._event >= 0:
            os.close(self._event)
            self._event = -1


class Served:
    """A broker that listens.

    Attributes:
        server, broker, port: what is running.
        driver: of its store, if it has one.
    """

    def __init__(self, server: Server, port: int, driver: HeldDriver) -> None:
        self.server, self.broker, self.port, self.driver = server, server.broker, port, driver

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until something is so."""
        loop = asyncio.get_running_loop()
        end = loop.time() + PATIENCE_SECONDS
        while not is_so():
            assert loop.time() < end, "it does not come to be"
            await asyncio.sleep(0.002)

    def connection_of(self, client: RawConnection) -> SocketConnection:
        """The broker's end of a client's socket."""
        name = client.socket.getsockname()
        for connection in self.server.clients.connections:
            assert isinstance(connection, SocketConnection)
            transport: Any = connection._transport
            if transport.get_extra_info("peername") == name:
                return connection
        raise AssertionError("no such client")


async def client(function: Callable[..., _Found], *arguments: Any, **named: Any) -> _Found:
    """What a client does, beside the event loop."""
    return await asyncio.to_thread(function, *arguments, **named)


@asynccontextmanager
async def served(
    path: Path | None = None, make_driver: Callable[[], HeldDriver] = HeldDriver, **changed: Any
) -> AsyncIterator[Served]:
    """A broker, with a store if there is a `path`, until the end; `changed` are settings."""
    thresholds = gc.get_threshold()
    loop, driver = asyncio.get_running_loop(), make_driver()
    loop.set_default_executor(ThreadPoolExecutor(MAX_CLIENTS))
    settings = SETTINGS._replace(**changed)
    store: Any = None
    if path is not None:
        environment = system_environment()._replace(make_driver=lambda _: driver)
        store = PluggedStore.open(environment, str(path), StoreParameters(), "0", log=lambda line: None)
    broker = Broker(settings, store, loop.call_soon)
    broker.recover(restore_message)
    server = Server(broker, settings)
    # or the disk would be waited for within the loop, past the driver
    broker.tick.is_idle = lambda _waiting, _flushes: False
    gc.freeze()  # listening collects garbage: what all tests before have left in memory is not looked at
    try:
        (port,) = await server.listen()
        defects: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: defects.append(context))
        yield Served(server, port, driver)
        assert not driver.has_stopped_loop, "the event loop waits for the disk"
        assert not defects, defects
    finally:
        driver.failing.clear()
        driver.let_go()
        await server.close()
        broker.close()
        driver.close()
        gc.set_threshold(*thresholds)
        gc.unfreeze()
