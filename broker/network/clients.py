"""The clients of a server: the open connections, those refused at the connection limit, and those not being read.

Backpressure that affects all clients is here as well: by the disk (`backpressure`) and by memory. While memory is
short, each publisher is read once a second, until consumers have freed enough.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import Final, Protocol

from qstore.broker.log.logs import WARNING, LogBudget, log_of
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.broker import Broker
from qstore.broker.model.caller import Publisher
from qstore.broker.model.errors import UnauthorizedError
from qstore.broker.model.memory import State
from qstore.broker.network.backpressure import Pressure, Reader
from qstore.broker.network.busy_poll import BusyPoll
from qstore.broker.network.half_open import HalfOpen
from qstore.broker.protocols.machine import Machine
from qstore.broker.protocols.table import Protocols
from qstore.broker.settings import BrokerSettings

_LOG: Final = log_of("Network")

_IDLE_GAP: Final = 0.000_04  # seconds without work after which the event loop counts as idle
_PUBLISHER_HOLD: Final = 1.0  # seconds between reads of a publisher while memory is short


class Client(Reader, Protocol):
    """One client's socket, as `Clients` and `Server` use it."""

    @property
    def machine(self) -> Machine | None:
        """The machine of its protocol; None before the client has said which one."""

    @property
    def address(self) -> str:
        """Address and port, for the log."""

    @property
    def is_half_open(self) -> bool:
        """Whether the connection is not open yet."""

    def on_timer(self, now: float) -> None:
        """Check timeouts; called at intervals with the time of a monotonic clock, in seconds."""

    def watch_memory(self, *, is_short: bool) -> None:
        """Memory has become short, or ample again."""

    def watch_rules(self) -> None:
        """The authorizer has other rules."""

    def shut_down(self) -> None:
        """Close the connection, since the broker is shutting down."""

    def abort(self) -> None:
        """Close the socket at once, without sending pending data."""


class Clients:
    """All clients, and their shared state.

    Args:
        broker: the model.
        settings: its limits.
        protocols: the supported protocols.
        loop: the event loop.

    Attributes:
        broker, settings, protocols, loop: as above.
        connections: the connections, except for refused ones.
        half_open: those of them that are not open yet.
        refused: connections beyond the limit, until they have been sent the refusal.
        too_many: log lines about refused connections.
        foreign: log lines about clients of unsupported protocols, and failed TLS handshakes.
        held_publishers: publishers that are not read because memory is short -> since when.
        pressure: stops publishers that outrun the disk.
        busy_poll: keeps the event loop awake between a client's messages.
    """

    def __init__(
        self, broker: Broker, settings: BrokerSettings, protocols: Protocols, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.broker, self.settings, self.protocols, self.loop = broker, settings, protocols, loop
        self.connections: dict[Client, None] = {}
        self.half_open: HalfOpen[Client] = HalfOpen()
        self.refused: dict[Client, None] = {}
        self.held_publishers: dict[Client, float] = {}
        self.too_many = LogBudget(_LOG, WARNING, "clients beyond the limit of connections")
        self.foreign = LogBudget(log_of("Protocol"), WARNING, "clients of other protocols")
        self.pressure = Pressure(broker.tick, loop.call_soon)
        self.busy_poll = BusyPoll(loop.call_soon)
        self._last_work = 0.0
        self._is_first = False

    # ---- whether the event loop is idle ----

    def work_begins(self) -> None:
        """A socket has received data."""
        now = time.perf_counter()
        self._is_first = now - self._last_work > _IDLE_GAP
        self._last_work = now
        self.busy_poll.begins(now)

    def worked(self) -> None:
        """The event loop has done some work."""
        self._last_work = time.perf_counter()

    # ---- who may connect ----

    def admits(self, host: str, address: str) -> bool:
        """Whether the rules for all users let this host connect. It is not told why: it may be no client at all."""
        try:
            self.broker.authorization.check(Publisher(address), Action.CREATE, ObjectType.CONNECTION, "", host=host)
        except UnauthorizedError:
            self.broker.quotas.denied("", address)
            text = "Client %s: disconnected: the ACL denies connections from its host"
            self.too_many.write(time.monotonic(), text, address)
            return False
        return True

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
        machines = (each.machine for each in self.connections)
        return [each for each in machines if each is not None and not each.is_negotiating]

    def is_idle(self) -> bool:
        """Whether the event loop was idle before the current work, so that it may block on the disk."""
        self.worked()
        return self._is_first and not self.broker.tick.flushes_under_way > 1

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
        """Memory has become short, or ample again: tell the connections, and resume publishers if it is ample."""
        is_short = self.broker.memory.state is not State.AMPLE
        for connection in self.connections:
            connection.watch_memory(is_short=is_short)
        if not is_short:
            self._resume_publishers(math.inf)

    def rules_changed(self) -> None:
        """The authorizer has other rules: tell the connections."""
        for connection in self.connections:
            connection.watch_rules()

    def _resume_publishers(self, since: float) -> None:
        """Resume the publishers that have not been read since then."""
        for connection in [each for each, began in self.held_publishers.items() if began <= since]:
            self.loop.call_soon(connection.catch_up)
            connection.resume_reading(self.broker.memory)
            del self.held_publishers[connection]
