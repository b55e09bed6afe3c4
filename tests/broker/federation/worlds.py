"""Brokers without sockets that are connected in memory: for what one of them does as a client of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qstore.broker.federation.link import Remote
from qstore.broker.protocols.amqp_0_9_1.connection import Amqp091Connections
from qstore.broker.protocols.amqp_0_10.server_connection import Amqp010Connections
from qstore.broker.protocols.amqp_1_0.connection import Amqp10Connections
from qstore.broker.protocols.machine import Host as MachineHost
from qstore.broker.protocols.machine import Machine, Peer
from qstore.broker.security.authentication import PeerSecurity
from tests.broker.protocols.world import Host, SlowStore, World


class Timer:
    """A scheduled function."""

    def __init__(self, at: float, function: Callable[[], None]) -> None:
        self.at, self.function, self.is_cancelled = at, function, False

    def cancel(self) -> None:
        self.is_cancelled = True


class ClientHost:
    """The socket of a client's end."""

    def __init__(self) -> None:
        self.output = bytearray()
        self.is_closed = False
        self.resumptions = 0

    def run(self, work: Any, done: Any) -> None:
        raise NotImplementedError

    def check_password(self, check: Any, done: Any) -> None:
        raise NotImplementedError

    def resumed(self) -> None:
        """What was read goes on by itself."""
        self.resumptions += 1

    def write(self, data: bytes) -> None:
        self.output += data

    def close(self) -> None:
        self.is_closed = True


#: Protocol -> attribute of the world that keeps its connections, and what makes them.
_SERVERS: Any = {
    "AMQP 0-9-1": ("basic_connections", Amqp091Connections),
    "AMQP 1.0": ("links_connections", Amqp10Connections),
    "AMQP 0-10": ("connections", Amqp010Connections),
}


class Wire:
    """A connection: the attempt, and both ends."""

    def __init__(self, world: World, user: str, make: Callable[[MachineHost], Machine], lost: Callable[[str], None]):
        self.world, self._lost = world, lost
        self.server_host, self.client_host = Host(world), ClientHost()
        self.client = make(self.client_host)
        attribute, kind = _SERVERS[self.client.protocol]
        shared = getattr(world, attribute, None) or kind(world.broker, world.authentication)
        shared.now = lambda: world.now
        setattr(world, attribute, shared)
        self.server = shared.connect(
            self.server_host, Peer("127.0.0.1:5", PeerSecurity(is_local=True, internal_user=user))
        )
        world.machines.append(self.server)
        self.is_over = False

    def abort(self) -> None:
        self._end()

    def cut(self, reason: str) -> None:
        """The connection is lost."""
        if not self.is_over:
            self._end()
            self._lost(reason)

    def _end(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.server.dismantle()
            self.client.dismantle()

    def carry(self) -> bool:
        """Carry bytes in both directions. Whether there were any."""
        sent, received = bytes(self.client_host.output), bytes(self.server_host.output)
        self.client_host.output.clear()
        self.server_host.output.clear()
        if sent and not self.is_over:
            self.server.receive(sent)
        if received and not self.is_over:
            self.client.receive(received)
        while self.client.is_behind and not self.client.is_paused and not self.is_over:
            self.client.resume()  # on a busy machine it may have yielded
        if (self.server_host.is_closed or self.client_host.is_closed) and not self.server_host.output:
            self.cut("closed")
        return bool(sent or received)


class Worlds:
    """Brokers by their hosts; that of the host "" is the one which connects to the others.

    Attributes:
        own: the broker that connects.
        others: host -> broker; connections to hosts that are not here are refused.
        wires: all connections that were made.
        timers: what is scheduled.
    """

    def __init__(self, own: World, **others: World) -> None:
        self.own, self.others = own, others
        self.wires: list[Wire] = []
        self.timers: list[Timer] = []

    # ---- as a network ----

    def connect(self, remote: Remote, make: Callable[[MachineHost], Machine], lost: Callable[[str], None]) -> Any:
        world = self.others.get(remote.host)
        if world is None:
            self.own.soon.append(lambda: lost("Connection refused"))
            return ClientHost()
        return self._wire(world, "", make, lost)

    def connect_directly(self, user: str, make: Callable[[MachineHost], Machine], lost: Callable[[str], None]) -> Any:
        return self._wire(self.own, user, make, lost)

    def _wire(self, world: World, user: str, make: Callable[[MachineHost], Machine], lost: Any) -> Wire:
        self.wires.append(Wire(world, user, make, lost))
        return self.wires[-1]

    # ---- time ----

    def call_later(self, seconds: float, function: Callable[[], None]) -> Timer:
        self.timers.append(Timer(self.own.now + seconds, function))
        return self.timers[-1]

    def advance(self, seconds: float) -> None:
        self.own.now += seconds
        due = [each for each in self.timers if each.at <= self.own.now and not each.is_cancelled]
        self.timers = [each for each in self.timers if each.at > self.own.now]
        for each in due:
            each.function()

    def run(self, most: int = 1 << 30) -> None:
        """Until all brokers rest, or bytes were carried so many times."""
        while most > 0:
            for world in (self.own, *self.others.values()):
                world.run()
            moved = [wire.carry() for wire in list(self.wires) if not wire.is_over]
            if not any(moved):
                return
            most -= 1

    def cut(self, world: World) -> None:
        """All connections to a broker are lost."""
        for wire in list(self.wires):
            if wire.world is world:
                wire.cut("the connection was lost")


class KilledStore(SlowStore):
    """A disk that waits, and knows what would be left of it."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[tuple[int, int]] = []  # for each flush: how many records there were
        self.safe = 0

    def when_synced(self, journals: Any, done: Any, *, is_urgent: bool = True) -> None:
        count = len(self.enqueued)

        def synced(error: Exception | None) -> None:
            self.safe = max(self.safe, count)
            done(error)

        super().when_synced(journals, synced, is_urgent=is_urgent)
