"""The clients of a server: the open connections, those refused at the connection limit, and those not being read.

**Backpressure** that affects all clients is here: by the disk (`Pressure`: publishers that outrun the disk are not
read until it has caught up, and only rarely if it is nearly full) and by memory (while memory is short, each publisher
is read once a second, until consumers have freed enough).

**Half-open connections**, whose TLS handshake, protocol header, login and connection.open are under way, take places
of the limit of connections (`--max-connections`). When it is reached, a newcomer gets the place of one of them: the
oldest of the host that has the most. So silent connections displace only other silent ones, first those of the same
host; open connections are never affected. A host is an IPv4 address, or an IPv6 network: a client with one address
there has 2 ** 64 of them (RFC 4291, 2.5.1).
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Set
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.log.logs import WARNING, LogBudget, log_of
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.broker import Broker
from qstore.broker.model.caller import Publisher
from qstore.broker.model.errors import UnauthorizedError
from qstore.broker.model.memory import State
from qstore.broker.model.store_protocol import Store
from qstore.broker.network.busy_poll import BusyPoll
from qstore.broker.network.host_names import HostNames
from qstore.broker.protocols.machine import Machine
from qstore.broker.protocols.table import Protocols
from qstore.broker.settings import BrokerSettings

if TYPE_CHECKING:
    from qstore.broker.network.socket_connection import SocketConnection

_LOG: Final = log_of("Network")

_PUBLISHER_HOLD: Final = 1.0  # seconds between reads of a publisher while memory is short


class Clients:
    """All clients, and their shared state.

    Args:
        broker: the model.
        settings: its limits.
        protocols: the supported protocols.
        loop: the event loop.

    Attributes:
        broker, settings, protocols, loop: as above.
        tick, memory: the broker's.
        connections: the connections, except for refused ones.
        half_open: those of them that are not open yet.
        refused: connections beyond the limit, until they have been sent the refusal.
        too_many: log lines about refused connections.
        foreign: log lines about clients of unsupported protocols, and failed TLS handshakes.
        held_publishers: publishers that are not read because memory is short -> since when.
        pressure: stops publishers that outrun the disk.
        busy_poll: keeps the event loop awake between a client's messages, and knows whether it is idle.
        host_names: looks up the names of hosts for the firewall.
    """

    def __init__(
        self, broker: Broker, settings: BrokerSettings, protocols: Protocols, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.broker, self.settings, self.protocols, self.loop = broker, settings, protocols, loop
        self.tick, self.memory = broker.tick, broker.memory
        self.connections: dict[SocketConnection, None] = {}
        self.half_open: HalfOpen = HalfOpen()
        self.refused: dict[SocketConnection, None] = {}
        self.held_publishers: dict[SocketConnection, float] = {}
        self.too_many = LogBudget(_LOG, WARNING, "clients beyond the limit of connections")
        self.foreign = LogBudget(log_of("Protocol"), WARNING, "clients of other protocols")
        self.pressure = Pressure(broker.store, loop.call_soon)
        self.busy_poll = BusyPoll(loop.call_soon)
        self.host_names = HostNames(loop)

    # ---- who may connect ----

    def admits(self, host: str, address: str) -> bool:
        """Whether the rules for all users let this host connect. No reason is sent: it may not be a client at all.

        If the firewall needs the name of the host (`needs_name`), it decides later (`admits_named`).
        """
        firewall = self.broker.authorization.firewall
        if firewall is not None and not firewall.needs_name(host) and not self.admits_named(host, "", address):
            return False
        try:
            self.broker.authorization.check(Publisher(address), Action.CREATE, ObjectType.CONNECTION, "", host=host)
        except UnauthorizedError:
            self.broker.quotas.denied("", address)
            text = "Client %s: disconnected: the ACL denies connections from its host"
            self.too_many.write(time.monotonic(), text, address)
            return False
        return True

    def needs_name(self, host: str) -> bool:
        """Whether the firewall needs the name of a host."""
        firewall = self.broker.authorization.firewall
        return firewall is not None and firewall.needs_name(host)

    def admits_named(self, host: str, name: str, address: str) -> bool:
        """Whether the firewall lets a host connect whose name is known; empty for none."""
        firewall = self.broker.authorization.firewall
        if firewall is None or firewall.admits_somewhere(host, name):
            return True
        self.broker.quotas.denied("", address)
        text = "Client %s (%s): disconnected: the firewall denies connections from its host"
        self.too_many.write(time.monotonic(), text, address, name or "no name is known")
        return False

    def refusal(self, host: str, address: str) -> str:
        """Why a client is refused; empty if it is not, and then the connection is counted for its host."""
        limit, per_host = self.settings.max_connections, self.broker.quotas.per_host
        if len(self.connections) >= limit and not self._displace_half_open():
            text = "Client max connection count limit exceeded: %d; %s is refused"
            self.too_many.write(time.monotonic(), text, limit, address)
            self.broker.quotas.denied("", address)
            return "the broker's limit of connections is reached"
        if not self.broker.quotas.arrive(host):
            text = "Client max per-host connection count limit exceeded: %d; %s is refused"
            self.too_many.write(time.monotonic(), text, per_host, address)
            self.broker.quotas.denied("", address)
            return "the limit of connections of this client's host is reached"
        return ""

    def _displace_half_open(self) -> bool:
        """Make room at the limit of connections: disconnect one that is not open yet. Whether there is one."""
        displaced = self.half_open.take()
        if displaced is None:
            return False
        self.connections.pop(displaced, None)
        text = "Client %s: disconnected before its connection was open: the limit of connections (%d) is reached"
        self.too_many.write(time.monotonic(), text, displaced.address, self.settings.max_connections)
        displaced.abort()
        return True

    def machines(self) -> list[Machine]:
        """The machines of all open connections."""
        machines = (each.machine for each in self.connections if each.is_listed)
        return [each for each in machines if each is not None and not each.is_negotiating]

    # ---- time and memory ----

    def on_timer(self, now: float) -> None:
        """Check timeouts and memory; called at intervals with the time of a monotonic clock, in seconds."""
        for connection in list(self.connections):
            connection.on_timer(now)
        self.too_many.on_timer(now)
        self.foreign.on_timer(now)
        self.pressure.on_timer()
        if self.broker.memory.state is not State.AMPLE:
            self.broker.memory.count()
            self._resume_publishers(now - _PUBLISHER_HOLD)

    def memory_changed(self) -> None:
        """Memory has become short, or ample again: notify the connections, and resume publishers if it is ample."""
        is_short = self.broker.memory.state is not State.AMPLE
        for connection in self.connections:
            connection.watch_memory(is_short=is_short)
        if not is_short:
            self._resume_publishers(math.inf)

    def rules_changed(self) -> None:
        """The authorizer has other rules: notify the connections."""
        for connection in self.connections:
            connection.watch_rules()

    def _resume_publishers(self, since: float) -> None:
        """Resume the publishers that have not been read since then."""
        for connection in [each for each, began in self.held_publishers.items() if began <= since]:
            self.loop.call_soon(connection.catch_up)
            connection.resume_reading(self.broker.memory)
            del self.held_publishers[connection]


# ---- backpressure by the disk ----

_TIGHT: Final = "tight"  # a reason for not reading

MAX_UNSYNCED: Final = 2
"""Of a journal's limit of unsynced bytes, connections that write to it are read up to this fraction (1/2)."""
MIN_WATCHED: Final = 16
"""Likewise, its flushes are watched above this fraction (1/16): fewer bytes than one read of a fast publisher."""


class Pressure:
    """Stops and resumes the connections that write to journals.

    At its limit of unsynced bytes a journal blocks the whole broker. So above half of the limit, all connections that
    have recently written to the journal are stopped, until it is not more than half any more. Input is read and
    processed while a flush is on the disk, so that neither waits for the other: each flush is watched, but for small
    ones (`MAX_UNSYNCED`, `MIN_WATCHED`).

    A journal is tight if it is nearly full, and the disk has no room for it to grow. Its publishers are read only once
    in an interval of the timer, so that consumers can catch up before messages are refused.

    Args:
        store: the store that has the journals; None without one.
        call_soon: schedules a function for the next iteration of the event loop.
    """

    def __init__(self, store: Store | None, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._store, self._call_soon = store, call_soon
        self._writers: dict[
            Any, dict[SocketConnection, None]
        ] = {}  # journal -> connections that have recently written to it
        self._full: dict[Any, None] = {}
        self._watched: set[Any] = set()  # journals whose next flush is watched
        self._tight: dict[Any, int] = {}  # journals that are tight -> messages enqueued so far
        self._held: dict[SocketConnection, None] = {}  # their publishers that are not read
        self._notified: dict[
            SocketConnection, set[Any]
        ] = {}  # publishers notified that the disk is short -> for which journals

    def after(self, connection: SocketConnection, journals: dict[Any, bool]) -> None:
        """A connection has written to `journals`: stop the writers of each journal with too many unsynced bytes."""
        for journal in journals:
            writers = self._writers.get(journal)
            if writers is None:
                writers = self._writers[journal] = {}
            writers[connection] = None
            unsynced: int = journal.unsynced
            bound: int = journal.bound
            if self._full and journal in self._full:
                connection.stop_reading(journal)
            elif unsynced > bound // MAX_UNSYNCED:
                self._full[journal] = None
                for each in writers:
                    each.stop_reading(journal)
            if unsynced > bound // MIN_WATCHED and journal not in self._watched:
                self._watch(journal)
            if journal.is_tight:
                self._hold_publisher(connection, journal)

    def _hold_publisher(self, connection: SocketConnection, journal: Any) -> None:
        """A connection has written to a tight journal: stop it if it has published."""
        enqueued = journal.enqueues + journal.transaction_enqueues
        if self._tight.get(journal) != enqueued:
            self._tight[journal] = enqueued
            self._held[connection] = None
            connection.stop_reading(_TIGHT)
            if connection not in self._notified:
                self._notified[connection] = set()
                connection.watch_disk(is_short=True)
            self._notified[connection].add(journal)

    def tight_journals(self, most: int) -> list[str]:
        """Names of journals whose publishers are held back, because the disk has no room for them to grow."""
        return [journal.name for journal in list(self._tight)[:most] if journal.is_tight]

    def holds(self, reasons: Set[object]) -> bool:
        """Whether one of the reasons for not reading is a journal's backlog, or that one is tight."""
        return _TIGHT in reasons or any(journal in reasons for journal in self._full)

    def _watch(self, journal: Any) -> None:
        assert self._store is not None
        self._watched.add(journal)
        self._store.when_synced((journal,), partial(self._synced, journal))

    def _synced(self, journal: Any, _error: Exception | None) -> None:
        """What was unsynced when the journal was watched is synced, or never will be."""
        self._watched.discard(journal)
        unsynced = journal.unsynced
        if unsynced > journal.bound // MIN_WATCHED:
            self._watch(journal)  # the flush that begins now
        if journal in self._full and unsynced <= journal.bound // MAX_UNSYNCED:
            self._resume(journal)

    def _resume(self, journal: Any) -> None:
        """Resume the connections that were stopped for a journal."""
        del self._full[journal]
        for connection in self._writers.pop(journal, ()):
            connection.resume_reading(journal)
            self._call_soon(connection.catch_up)  # deferred, since a tick may be ending now

    def on_timer(self) -> None:
        """Called at intervals: forget the recent writers of journals that are not full, and resume publishers."""
        self._tight = {journal: enqueued for journal, enqueued in self._tight.items() if journal.is_tight}
        for connection in list(self._held):
            self._call_soon(connection.catch_up)
            connection.resume_reading(_TIGHT)
            del self._held[connection]
        for connection, journals in list(self._notified.items()):
            if self._tight.keys().isdisjoint(journals):
                del self._notified[connection]
                connection.watch_disk(is_short=False)
        self._writers = {journal: writers for journal, writers in self._writers.items() if journal in self._full}

    def forget(self, connection: SocketConnection) -> None:
        """A connection is closed."""
        self._notified.pop(connection, None)
        self._held.pop(connection, None)


# ---- connections that are not open yet ----

_PREFIX: Final = 64  # bits of an address of IPv6 that are not the client's to choose


def network_of(address: str) -> str:
    """The host that an IP address belongs to; anything else is a host of its own."""
    if ":" not in address:
        return address
    try:
        parsed = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    if parsed.is_loopback:
        return address
    return str(ipaddress.IPv6Network((parsed, _PREFIX), strict=False))


class HalfOpen:
    """The half-open connections, by host, oldest first. Each step takes the same time, however many there are.

    Those that were opened are removed at the next interval of the timer, or when one of them would be taken.
    """

    def __init__(self) -> None:
        # OrderedDict finds its first key at once, too, after many were removed before it.
        self._hosts: dict[str, OrderedDict[SocketConnection, None]] = {}
        self._with: list[OrderedDict[str, None]] = [OrderedDict()]  # number of connections -> hosts that have as many

    def add(self, host: str, connection: SocketConnection) -> None:
        """A connection was accepted."""
        connections = self._hosts.setdefault(host, OrderedDict())
        self._move(host, len(connections), len(connections) + 1)
        connections[connection] = None

    def remove(self, host: str, connection: SocketConnection) -> None:
        """A connection is open, or closed; no error if it was removed before."""
        connections = self._hosts.get(host)
        if connections is not None and connection in connections:
            del connections[connection]
            self._move(host, len(connections) + 1, len(connections))
            if not connections:
                del self._hosts[host]

    def _move(self, host: str, before: int, now: int) -> None:
        self._with[before].pop(host, None)
        if now == len(self._with):
            self._with.append(OrderedDict())
        if now:
            self._with[now][host] = None
        while len(self._with) > 1 and not self._with[-1]:
            self._with.pop()

    def take(self) -> SocketConnection | None:
        """Take the oldest one of the host that has the most; None if there are none."""
        while self._hosts:
            host = next(iter(self._with[-1]))
            connection = next(iter(self._hosts[host]))
            self.remove(host, connection)
            if connection.is_half_open:
                return connection
        return None
