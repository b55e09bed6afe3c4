"""The broker on the network: listeners, sockets, timers, the store's descriptor.

Everything runs in one event loop. A socket's bytes go to its connection, a state machine without I/O, and the machine's
output is written at the end of the tick. Backpressure: the broker stops reading a socket

    of a client that does not read its data          until it does
    with more data than is processed at once         until other connections have been processed
    of a publisher that outruns the disk             until enough of its records are synced
    of a session with a slow command                 until the command is done
    of a publisher while memory is short (`memory`)  for a second at a time, until consumers have freed enough
"""

from __future__ import annotations

import asyncio
import gc
import math
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.federation.federation import Federation
from qstore.broker.federation.interlinks import Interlinks
from qstore.broker.federation.shovel import Shovels
from qstore.broker.federation.upstreams import Upstreams
from qstore.broker.log.logs import log_of
from qstore.broker.log.sinks import Logging
from qstore.broker.log.status_log import StatusLog
from qstore.broker.management.agent import Agent
from qstore.broker.management.identity import Identity
from qstore.broker.management.managed_broker import ManagedBroker
from qstore.broker.management.periodic_log import PeriodicLog
from qstore.broker.model.broker import Broker
from qstore.broker.model.errors import InternalError, ModelError, ResourceLimitExceededError
from qstore.broker.model.exchanges.failover import KnownHosts
from qstore.broker.model.heap import Heap
from qstore.broker.model.memory import MemoryCeiling
from qstore.broker.model.topology.deletion import DELETED_AT_ONCE
from qstore.broker.model.virtual_host import VirtualHost
from qstore.broker.network.clients import Clients
from qstore.broker.network.direct import DirectConnections, Peers
from qstore.broker.network.listeners import Listeners
from qstore.broker.network.login_checks import LoginChecks
from qstore.broker.network.outgoing import OutgoingConnections
from qstore.broker.network.socket_connection import Accepts, SocketConnection
from qstore.broker.protocols.amqp_0_10.message import new_transfer
from qstore.broker.protocols.amqp_1_0.message import new_sections
from qstore.broker.protocols.table import Protocols
from qstore.broker.security.authentication import Authentication, options_of
from qstore.broker.security.tls import ServerContexts
from qstore.broker.security.users.user_file import Users
from qstore.broker.settings import BrokerSettings

if TYPE_CHECKING:
    from qstore.broker.model.queues.queue import Queue

_LOG: Final = log_of("Network")

_TIMER_SECONDS: Final = 0.5  # seconds between checks of heartbeats and timeouts
_GC_THRESHOLD: Final = 25_000  # new objects between collections, which take some 10 ms then: messages are many objects
_CLOSE_SECONDS: Final = 2.0  # for clients to answer connection.close
_ABORT_SECONDS: Final = 5.0  # for the event loop to end connections that are aborted, which takes one iteration


class Server:
    """The listeners and connections of a broker.

    Args:
        broker: the model, recovered.
        settings: its limits.
        version: of this software.
        log: which lines the log shows; None if that cannot be changed.
        status: the operational log; None if there is none.

    Raises:
        TlsConfigurationError: the certificate cannot be used.

    Attributes:
        shut_down: ends the broker, on behalf of management.
        failed: called with a description of a failure that ends the broker: the store can no longer sync, or the event
            loop ran out of memory.
        beat: called each half second: the event loop runs.
        authentication: the authentication policy.
        protocols: the supported protocols.
        clients: the connected clients.
        work: slow work for the clients.
        outgoing: connects links to other brokers.
        federation: these links, and the routes over them.
        known_hosts: the addresses that are announced to clients.
        direct: connects the broker to itself.
        shovels: the shovels.
        interlinks: the domains, and the links of AMQP 1.0 through them.
        upstreams: the links of federated exchanges and queues.
        agent: the management agent; None without management.
        listeners: the listening sockets.
    """

    def __init__(
        self,
        broker: Broker,
        settings: BrokerSettings,
        version: str = "",
        log: Logging | None = None,
        status: StatusLog | None = None,
    ) -> None:
        self.broker, self.settings, self._status = broker, settings, status
        self.failed: Callable[[str], None] = _LOG.critical
        self.shut_down: Callable[[], None] = lambda: None
        self.beat: Callable[[], None] = lambda: None
        users = None if settings.user_file is None else Users(settings.user_file)
        self.authentication = Authentication(options_of(settings), users)
        self.loop = asyncio.get_running_loop()
        self.protocols = Protocols(broker, self.authentication)
        self.clients = Clients(broker, settings, self.protocols, self.loop)
        self.work = Work(self.loop, broker.memory, settings)
        self.outgoing = OutgoingConnections(self.clients, self.work)
        self.direct = DirectConnections(self.clients, self.work)
        peers = Peers(self.outgoing, self.direct)
        self.shovels = Shovels(broker, peers, self.loop.call_soon, self.loop.call_later, self.work.run)
        self.upstreams = Upstreams(broker, peers, self.loop.call_soon, self.loop.call_later)
        self.interlinks = Interlinks(self.shovels)
        self.protocols.lead_to(self.interlinks)
        self.listeners = Listeners(self.loop, broker.memory, settings.interfaces, settings.backlog)
        self.federation = Federation(broker, self.protocols.links, self.outgoing, self.loop.call_later)
        self.known_hosts = KnownHosts(broker, new_transfer)
        self.agent: Agent | None = None
        self._statistics: list[PeriodicLog] = []
        identity = Identity.of(settings.data_directory)
        if settings.federation_tag is None:
            broker.federation_tag = str(identity.instance)
        if settings.management:
            managed = ManagedBroker(
                broker, identity, version, ports=lambda: self.listeners.ports,
                machines=self.clients.machines, shut_down=lambda: self.shut_down(), log=log, security=self,
                status=status, detached=self.protocols.detached_sessions, shovels=self.shovels,
                upstreams=self.upstreams,
            )  # fmt: skip
            managed.federation, managed.interlinks = self.federation, self.interlinks
            self.agent = Agent(managed, new_transfer, new_sections, self.work.run)
            run = lambda work: self.work.run(work, _ignore_result)  # noqa: E731
            self._statistics = [PeriodicLog(managed, each, run) for each in settings.log_statistics]
        self._tls = None if settings.tls is None else ServerContexts(settings.tls)
        self._timer: asyncio.TimerHandle | None = None
        self._heap = Heap()
        self._next_purge = time.monotonic() + (settings.queue_purge_seconds or math.inf)
        broker.tick.is_idle = self.clients.busy_poll.is_idle
        broker.tick.ended, broker.tick.worked = self.clients.busy_poll.ends, self.clients.busy_poll.worked
        broker.tick.interrupted = lambda: self.failed("The event loop ran out of memory")
        broker.memory.changed = self.clients.memory_changed
        broker.authorization.changed = self.clients.rules_changed
        broker.self_destruct = self._self_destruct
        broker.patrol.delete = lambda queue: self._self_destruct(broker.hosts[queue.host], queue.name)
        broker.virtual_hosts.end_connections = self._end_connections
        broker.unfinished_bytes = lambda: self.protocols.unfinished_bytes
        self.loop.set_exception_handler(self._log_defect)

    # ---- listening ----

    async def listen(self) -> list[int]:
        """Listen on every interface. Returns the ports, one for each address.

        Raises:
            OSError: an address cannot be used.
        """
        port, tls = self.settings.port, self.settings.tls
        is_shared = tls is not None and tls.port == port
        await self._listen_on(port, Accepts(plain=True, tls=self._tls if is_shared else None))
        if tls is not None and not is_shared:
            await self._listen_on(tls.port, Accepts(plain=False, tls=self._tls))
        self._watch_store()
        await self.broker.virtual_hosts.start()
        self.federation.start()
        self._on_timer()
        self.shovels.start()
        self.upstreams.start()
        self.interlinks.start()
        gc.set_threshold(_GC_THRESHOLD, 100, 100)
        gc.freeze()
        gc.enable()
        return self.listeners.ports

    async def _listen_on(self, port: int, accepts: Accepts) -> None:
        await self.listeners.listen(port, accepts, lambda: SocketConnection(self.clients, self.work, accepts))

    def reload_security(self) -> list[str]:
        """Read the certificate and the keytab again, for new connections. Returns warnings, one line each.

        Raises:
            TlsConfigurationError: a file cannot be used; the previous certificate stays in use.
        """
        self.authentication.reload()
        if self._tls is None:
            return []
        self._tls.reload()
        return self._tls.warnings()

    @property
    def certificate_expires(self) -> float:
        """When the broker's certificate expires, in seconds since 1970; 0 without TLS, or if that is unknown."""
        return 0.0 if self._tls is None else self._tls.expires_at

    def _watch_store(self) -> None:
        store = self.broker.store
        if store is not None:
            store.is_watched(self.loop.call_soon, self.loop.call_later)
            if store.fileno() >= 0:
                self.loop.add_reader(store.fileno(), self.broker.tick.collect)

    def _check_store(self) -> None:
        store = self.broker.store
        if store is not None:
            store.look()
            if store.failure is not None:
                self.failed("The store has failed")

    # ---- time ----

    def _on_timer(self) -> None:
        try:  # before all else: whatever fails, there is a next time
            self._timer = self.loop.call_later(_TIMER_SECONDS, self._on_timer)
        except MemoryError:
            self.broker.memory.exhausted("The timer")
            self.broker.tick.interrupted()
        self.beat()
        self._check(time.monotonic())

    def _delete_idle(self, host: VirtualHost, queues: list[Queue]) -> Iterator[None]:
        """Begin to delete queues whose timeout is over, in turns."""
        for begin in range(0, len(queues), DELETED_AT_ONCE):
            for queue in queues[begin : begin + DELETED_AT_ONCE]:
                self.work.run(host.topology.delete_if_unused(queue), _ignore_result)
            yield

    def _check(self, now: float) -> None:
        self.broker.tick.schedule()  # again, if the event loop had no memory for it
        self._check_store()
        self.clients.on_timer(now)
        self.listeners.look()
        self.broker.log_stopped_queues()
        if len(self.broker.patrol) and not self.broker.tick.turns.has(self.broker.patrol):
            self.broker.tick.turns.do(self.broker.patrol, self.broker.patrol.look())
        if (storing := self.broker.streams.look()) is not None:
            self.work.run(storing, _ignore_result)
        self.protocols.on_timer(now)
        self.work.logins.on_timer(now)
        for host in self.broker.hosts.values():
            self.broker.tick.turns.do(host.idle_queues, self._delete_idle(host, host.idle_queues.take_due()))
        if self.agent is not None:
            self.agent.on_timer()
            for each in self._statistics:
                each.on_timer()
        if self._status is not None:
            self._status.write_left_out()
        self._heap.look()
        if self.broker.queue_factory.paging is not None:
            self.broker.queue_factory.paging.look()
        if now >= self._next_purge:
            self._next_purge = now + self.settings.queue_purge_seconds
            self.broker.expire()

    def _self_destruct(self, host: VirtualHost, queue: str) -> None:
        self.work.run(host.topology.self_destruct(queue), _ignore_result)

    async def _end_connections(self, host: VirtualHost) -> None:
        """Close the connections of a virtual host that is being deleted, and end its detached sessions."""
        deadline = self.loop.time() + _CLOSE_SECONDS
        while found := [each for each in self.clients.connections if each.is_of(host)]:
            is_late = self.loop.time() > deadline
            for connection in found:
                if is_late:
                    connection.abort()
                else:
                    connection.leave_host()
            await asyncio.sleep(0.01)
        for detached in self.protocols.detached_sessions():
            if detached.session.vhost == host.name:
                detached.end()

    # ---- unhandled exceptions and shutdown ----

    def _log_defect(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log an unhandled exception, which is a defect; the broker continues."""
        error = context.get("exception")
        if isinstance(error, MemoryError):
            self.listeners.may_be_stuck = True
            self.broker.memory.exhausted(str(context.get("message")))
            return
        trace = "".join(traceback.format_exception(error)) if isinstance(error, BaseException) else ""
        _LOG.error("%s\n%s", context.get("message"), trace)

    async def close(self) -> None:
        """Stop listening, close every connection, and wait until all are closed.

        A connection that does not end, which is a defect, is logged and left: the store is closed all the same.
        """
        self.listeners.close()
        self.federation.close()
        self.shovels.close()
        self.upstreams.close()
        self.interlinks.close()
        connections, refused = self.clients.connections, self.clients.refused
        for connection in list(connections):
            connection.shut_down()
        self.broker.tick.end()
        deadline = self.loop.time() + _CLOSE_SECONDS
        while connections and self.loop.time() < deadline:
            await asyncio.sleep(0.01)
        deadline = self.loop.time() + _ABORT_SECONDS
        while (connections or refused) and self.loop.time() < deadline:
            for connection in [*connections, *refused]:
                connection.abort()
            await asyncio.sleep(0)  # `connection_lost` runs in the next iteration, and may start more work
        for connection in [*connections, *refused]:
            _leave(connection)
        self.protocols.close()
        while self.broker.tick.turns:  # requests of clients before they were disconnected
            await asyncio.sleep(0)
        await self.work.finish()
        await self.broker.finish()
        self.broker.tick.end()
        if self._timer is not None:
            self._timer.cancel()
        self.broker.stop_timers()
        store = self.broker.store
        if store is not None and store.fileno() >= 0:
            self.loop.remove_reader(store.fileno())
        self.work.close()
        if self._status is not None:
            self._status.write_left_out(period=0.0)


def _leave(connection: SocketConnection) -> None:
    """Do what the end of a connection does, since the event loop does not tell it."""
    _LOG.error("Client %s: the connection has not ended: it is given up", connection.address)
    try:
        connection.connection_lost(None)
    except Exception:
        _LOG.exception("Client %s: what it held is not released", connection.address)


def _ignore_result(_error: ModelError | None) -> None:
    """Ignore the result: no client waits for it."""


# ---- slow commands ----


class Work:
    """Slow work outside the event loop's ticks: commands that change the topology run as tasks, logins are checked.

    Args:
        loop: the event loop.
        memory: gets reports of failed allocations.
        settings: the limits of password checks.

    Attributes:
        logins: checks the passwords of clients.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, memory: MemoryCeiling, settings: BrokerSettings) -> None:
        self._loop, self._memory = loop, memory
        self._tasks: set[asyncio.Task[None]] = set()
        self.logins = LoginChecks(loop, settings)

    def run(self, work: Coroutine[Any, Any, None], done: Callable[[ModelError | None], None]) -> None:
        """Run a coroutine as a task, and call `done` with its error, or None."""
        task = self._loop.create_task(self._run(work, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, work: Coroutine[Any, Any, None], done: Callable[[ModelError | None], None]) -> None:
        error: ModelError | None = None
        try:
            await work
        except ModelError as failed:
            error = failed.with_traceback(None)  # avoids a reference cycle of traceback, frame and error
        except MemoryError:
            self._memory.exhausted("A command")
            error = ResourceLimitExceededError("the broker is out of memory")
        except Exception as failed:
            _LOG.exception("Unhandled exception in a command")
            error = InternalError(f"{type(failed).__name__}: {failed}")
        done(error)

    @property
    def is_under_way(self) -> bool:
        """Whether any task is running."""
        return bool(self._tasks)

    async def finish(self) -> None:
        """Wait for all tasks."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def close(self) -> None:
        """Cancel the waiting password checks, and accept no more."""
        self.logins.close()
