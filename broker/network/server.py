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
from collections.abc import Callable
from typing import Any, Final

from broker.log.logs import log_of
from broker.model.broker import Broker
from broker.model.errors import ModelError
from broker.network.clients import Clients
from broker.network.socket_connection import SocketConnection
from broker.network.work import Work
from broker.protocols.table import Protocols
from broker.security.authentication import Authentication
from broker.security.users import Users
from broker.settings import BrokerSettings

_LOG: Final = log_of("Network")

_TICK: Final = 0.5  # seconds between looks at heartbeats and timeouts
_GC_THRESHOLD: Final = 50_000  # new objects between collections: messages make many, and no cycles
_CLOSE_SECONDS: Final = 2.0  # for clients to answer connection.close


class Server:
    """The listeners of a broker, and its connections.

    Args:
        broker: the model, recovered.
        settings: its limits.

    Attributes:
        failed: called with what has failed when the broker has to end: its store, which can sync nothing any more, or
            the event loop, which ran out of memory.
        authentication: how clients log in.
        protocols: what they may speak.
        clients: those that there are.
        work: what takes time for them.
    """

    def __init__(self, broker: Broker, settings: BrokerSettings) -> None:
        self.broker, self.settings = broker, settings
        self.failed: Callable[[str], None] = _LOG.critical
        users = None if settings.user_file is None else Users(settings.user_file)
        self.authentication = Authentication(is_on=settings.auth, realm=settings.realm, users=users)
        self.loop = asyncio.get_running_loop()
        self.protocols = Protocols(broker, self.authentication)
        self.clients = Clients(broker, settings, self.protocols, self.loop)
        self.work = Work(self.loop, broker.memory, settings.password_checks)
        self._servers: list[asyncio.Server] = []
        self._ticker: asyncio.TimerHandle | None = None
        self._next_purge = time.monotonic() + (settings.queue_purge_seconds or math.inf)
        broker.turn.is_idle = self.clients.is_idle
        broker.turn.interrupted = lambda: self.failed("The event loop ran out of memory")
        broker.memory.changed = self.clients.memory_changed
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
                    lambda: SocketConnection(self.clients, self.work), interface, port, backlog=self.settings.backlog
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
        self.clients.worked()

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

    # ---- time ----

    def _tick(self) -> None:
        now = time.monotonic()
        self._look_after_store()
        self.clients.tick(now)
        self.protocols.tick(now)
        for queue in self.broker.idle_queues.take_due():
            self.work.run(self.broker.wiring.delete_if_unused(queue), _nobody_waits)
        if now >= self._next_purge:
            self._next_purge = now + self.settings.queue_purge_seconds
            self.broker.expire()
        self._ticker = self.loop.call_later(_TICK, self._tick)

    # ---- the end ----

    def _log_defect(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An unhandled exception: a defect, which is logged, and the broker goes on."""
        error = context.get("exception")
        if isinstance(error, MemoryError):
            self.broker.memory.exhausted(str(context.get("message")))
            return
        trace = "".join(traceback.format_exception(error)) if isinstance(error, BaseException) else ""
        _LOG.error("%s\n%s", context.get("message"), trace)

    async def close(self) -> None:
        """Stop listening, close every connection, and wait until it is done."""
        await self._close_listeners()
        connections, refused = self.clients.connections, self.clients.refused
        for connection in list(connections):
            connection.shut_down()
        self.broker.turn.end()
        deadline = self.loop.time() + _CLOSE_SECONDS
        while connections and self.loop.time() < deadline:
            await asyncio.sleep(0.01)
        for connection in [*connections, *refused]:
            connection.abort()
        while connections or refused:
            await asyncio.sleep(0)  # they are lost in the loop's next turn, and may have work to do then
        self.protocols.close()
        await self.work.finish()
        await self.broker.wiring.finish()
        self.broker.turn.end()
        if self._ticker is not None:
            self._ticker.cancel()
        store = self.broker.store
        if store is not None and store.fileno() >= 0:
            self.loop.remove_reader(store.fileno())
        self.work.close()


def _nobody_waits(_error: ModelError | None) -> None:
    """What was done was asked for by no client."""


def _is_absent(error: OSError) -> bool:
    return isinstance(error, socket.gaierror) or error.errno in (97, 99)  # no such family, address not available
