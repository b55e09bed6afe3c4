"""The broker on the network: listeners, sockets, timers, the store's descriptor.

Everything happens in one event loop. A socket's bytes go to its connection, which is a machine without I/O; what that
has to send is written at the end of the turn. Who is too fast is stopped by not reading his socket:

    a client that does not read what it is sent      nothing is read from it until it does
    who sends more than is taken at once             is not read until others have had their turn
    publishers that are faster than the disk         are not read until their records are on the disk
    a session whose command takes time               its connection is not read until it is done
    publishers, while memory is short (`memory`)     are read once a second, until consumers have taken enough
"""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import math
import socket
import time
import traceback
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from broker.log.budget import LogBudget
from broker.log.logs import WARNING, log_of
from broker.model.broker import Broker
from broker.model.errors import InternalError, ModelError, ResourceLimitExceededError
from broker.model.memory import State
from broker.network.backpressure import Pressure
from broker.network.socket_connection import SocketConnection
from broker.protocols.table import Protocols
from broker.security.authentication import Authentication
from broker.security.mechanisms import Failure, PasswordCheck, Success
from broker.security.users import Users
from broker.settings import BrokerSettings

_LOG: Final = log_of("Network")

_TICK: Final = 0.5  # seconds between looks at heartbeats and timeouts
_IDLE_GAP: Final = 0.000_2  # seconds without work after which the loop counts as idle
_GC_THRESHOLD: Final = 50_000  # new objects between collections: messages make many, and no cycles
_CLOSE_SECONDS: Final = 2.0  # for clients to answer connection.close
_PUBLISHER_HOLD: Final = 1.0  # seconds that a publisher is not read at a time while memory is short


class Server:
    """The listeners of a broker, and its connections.

    Args:
        broker: the model, recovered.
        settings: its limits.

    Attributes:
        failed: called with what has failed when the broker has to end: its store, which can sync nothing any more, or
            the event loop, which ran out of memory.
        connections: those that there are.
        refused: those that are one too many, until they are told so.
        too_many: lines about them.
        foreign_clients: lines about clients of protocols that the broker does not speak.
        held_publishers: those that are not read since memory is short, and since when.
    """

    def __init__(self, broker: Broker, settings: BrokerSettings) -> None:
        self.broker, self.settings = broker, settings
        self.failed: Callable[[str], None] = _LOG.critical
        users = None if settings.user_file is None else Users(settings.user_file)
        self.authentication = Authentication(is_on=settings.auth, realm=settings.realm, users=users)
        self.loop = asyncio.get_running_loop()
        self.protocols = Protocols(broker, self.authentication)
        self.connections: dict[SocketConnection, None] = {}
        self.refused: dict[SocketConnection, None] = {}
        self.too_many = LogBudget(_LOG, WARNING, "clients beyond the limit of connections")
        self.foreign_clients = LogBudget(log_of("Protocol"), WARNING, "clients of other protocols")
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._password_checks = ThreadPoolExecutor(self.settings.password_checks, "password-check")
        self._ticker: asyncio.TimerHandle | None = None
        self._next_purge = time.monotonic() + (settings.queue_purge_seconds or math.inf)
        self._last_work = 0.0
        self._is_first = False
        self.pressure = Pressure(broker.turn, self.loop.call_soon)
        self.held_publishers: dict[SocketConnection, float] = {}
        broker.turn.is_idle = self._is_idle
        broker.turn.interrupted = lambda: self.failed("The event loop ran out of memory")
        broker.memory.changed = self._memory_changed
        broker.unfinished_bytes = lambda: self.protocols.unfinished_bytes
        self.loop.set_exception_handler(self._log_defect)

    # ---- listening ----

    async def listen(self) -> list[int]:
        """Listen on every interface. Returns the ports, one for each address.

        Raises:
            OSError: an address cannot be had.
        """
        port = self.settings.port
        ports: list[int] = []
        for interface in self.settings.interfaces:
            try:
                server = await self.loop.create_server(
                    lambda: SocketConnection(self), interface, port, backlog=self.settings.backlog
                )
            except OSError as error:
                if ports and _is_absent(error):
                    _LOG.info("Not listening on %s: %s", interface, error)
                    continue  # a host without IPv6
                await self._close_listeners()
                raise
            self._servers.append(server)
            ports.extend(each.getsockname()[1] for each in server.sockets)
            port = port or ports[0]
        self._log_listening()
        self._watch_store()
        await self.broker.wiring.keep_standard_exchanges()
        self._tick()
        gc.set_threshold(_GC_THRESHOLD, 50, 100)
        gc.collect()
        gc.freeze()
        return ports

    def _log_listening(self) -> None:
        """Say where, a line for each port. The words up to the port are qpidd's."""
        addresses: dict[int, list[str]] = {}
        for name in (each.getsockname() for server in self._servers for each in server.sockets):
            addresses.setdefault(name[1], []).append(name[0])
        for port, hosts in addresses.items():
            is_loopback = all(ipaddress.ip_address(host).is_loopback for host in hosts)
            only = "; the loopback interface only, see --interface" if is_loopback else ""
            _LOG.notice("Listening on TCP/TCP6 port %d (%s%s)", port, ", ".join(hosts), only)

    def _watch_store(self) -> None:
        store = self.broker.store
        if store is not None and store.fileno() >= 0:
            self.loop.add_reader(store.fileno(), self._collect)

    def _collect(self) -> None:
        """The disk has done something."""
        assert self.broker.store is not None
        self.broker.store.collect()
        self.broker.turn.end()
        self._last_work = time.perf_counter()

    def _look_after_store(self) -> None:
        store = self.broker.store
        if store is not None:
            store.look()
            if store.failure is not None:
                self.failed("The store has failed")

    async def _close_listeners(self) -> None:
        for server in self._servers:
            server.close()
        self._servers.clear()

    # ---- the turn ----

    def work_begins(self) -> None:
        """A socket has brought something."""
        now = time.perf_counter()
        self._is_first = now - self._last_work > _IDLE_GAP
        self._last_work = now

    def _is_idle(self) -> bool:
        """Whether nothing else was to be done just before, so that the disk may be waited for here."""
        self._last_work = time.perf_counter()
        return self._is_first and not self.broker.turn.flushes_under_way > 1

    # ---- time ----

    def _tick(self) -> None:
        now = time.monotonic()
        self._look_after_store()
        for connection in list(self.connections):
            connection.tick(now)
        self.protocols.tick(now)
        self.too_many.tick(now)
        self.foreign_clients.tick(now)
        for queue in self.broker.idle_queues.take_due():
            self.run(self.broker.wiring.delete_if_unused(queue), _nobody_waits)
        self.pressure.forget()
        if self.broker.memory.state is not State.AMPLE:
            self._look_at_memory(now)
        if now >= self._next_purge:
            self._next_purge = now + self.settings.queue_purge_seconds
            self.broker.expire()
        self._ticker = self.loop.call_later(_TICK, self._tick)

    # ---- memory ----

    def _memory_changed(self) -> None:
        """Memory is short, or ample again."""
        is_short = self.broker.memory.state is not State.AMPLE
        for connection in self.connections:
            connection.watch_memory(is_short=is_short)
        if not is_short:
            self._release_publishers(math.inf)

    def _look_at_memory(self, now: float) -> None:
        self.broker.memory.count()
        self._release_publishers(now - _PUBLISHER_HOLD)

    def _release_publishers(self, since: float) -> None:
        """Go on with the publishers that have not been read since then."""
        for connection in [each for each, began in self.held_publishers.items() if began <= since]:
            del self.held_publishers[connection]
            connection.go_on_reading(self.broker.memory)
            self.loop.call_soon(connection.catch_up)

    # ---- for connections ----

    def run(self, work: Coroutine[Any, Any, None], done: Callable[[ModelError | None], None]) -> None:
        """Run what takes time."""
        task = self.loop.create_task(self._run(work, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, work: Coroutine[Any, Any, None], done: Callable[[ModelError | None], None]) -> None:
        error: ModelError | None = None
        try:
            await work
        except ModelError as failed:
            error = failed.with_traceback(None)  # which would hold this frame, and it the error
        except MemoryError:
            self.broker.memory.exhausted("A command")
            error = ResourceLimitExceededError("the broker is out of memory")
        except Exception as failed:
            _LOG.exception("A command has failed")
            error = InternalError(f"{type(failed).__name__}: {failed}")
        done(error)

    def check_password(self, check: PasswordCheck, done: Callable[[Success | Failure], None]) -> None:
        """Check a password beside the event loop, only so many at a time."""
        future = self.loop.run_in_executor(self._password_checks, check.run)
        future.add_done_callback(lambda each: done(each.result()))

    def _log_defect(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An unhandled exception: a defect, which is logged, and the broker goes on."""
        error = context.get("exception")
        if isinstance(error, MemoryError):
            self.broker.memory.exhausted(str(context.get("message")))
            return
        trace = "".join(traceback.format_exception(error)) if isinstance(error, BaseException) else ""
        _LOG.error("%s\n%s", context.get("message"), trace)

    # ---- the end ----

    async def close(self) -> None:
        """Stop listening, close every connection, and wait until it is done."""
        await self._close_listeners()
        for connection in list(self.connections):
            connection.shut_down()
        self.broker.turn.end()
        deadline = self.loop.time() + _CLOSE_SECONDS
        while self.connections and self.loop.time() < deadline:
            await asyncio.sleep(0.01)
        for connection in [*self.connections, *self.refused]:
            connection.abort()
        while self.connections or self.refused:
            await asyncio.sleep(0)  # they are lost in the loop's next turn, and may have work to do then
        self.protocols.close()
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self.broker.wiring.finish()
        self.broker.turn.end()
        if self._ticker is not None:
            self._ticker.cancel()
        store = self.broker.store
        if store is not None and store.fileno() >= 0:
            self.loop.remove_reader(store.fileno())
        self._password_checks.shutdown(wait=False, cancel_futures=True)


def _nobody_waits(_error: ModelError | None) -> None:
    """What was done was asked for by no client."""


def _is_absent(error: OSError) -> bool:
    return isinstance(error, socket.gaierror) or error.errno in (97, 99)  # no such family, address not available
