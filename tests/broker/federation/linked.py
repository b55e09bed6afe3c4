"""Brokers that are linked in memory: what one sends, the other gets when the test says so, and a link can be cut."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from qstore.broker.federation.bridge import BridgeSettings
from qstore.broker.federation.federation import Federation, LinkSettings
from qstore.broker.federation.link import Remote, RemoteLogin
from qstore.broker.model.caller import BROKER
from qstore.broker.protocols.amqp_0_10.server_connection import ServerConnection
from qstore.broker.protocols.machine import Host as HostProtocol
from qstore.broker.protocols.machine import Machine, Peer
from qstore.broker.security.authentication import PeerSecurity
from qstore.broker.settings import BrokerSettings
from tests.broker.protocols.world import Host, World


class Wire:
    """A connection between two brokers.

    Attributes:
        is_cut: whether both ends have heard that it is lost.
        is_half_open: whether only the near end has.
    """

    def __init__(self, near: World, far: World, make: Callable[[HostProtocol], Machine], lost: Any) -> None:
        self.lost, self.is_cut, self.is_half_open = lost, False, False
        self.near, self.far = near, far
        self.near_host, self.far_host = Host(near), Host(far)
        machine: Any = make(self.near_host)
        self.near_machine: ServerConnection = machine
        self.far_machine = ServerConnection(self.far_host, far.connections, Peer("near:1", PeerSecurity(True)))
        near.machines.append(self.near_machine)
        far.machines.append(self.far_machine)

    def carry(self) -> bool:
        """What was written arrives. Whether there was anything."""
        if self.is_cut:
            return False
        if self.is_half_open:
            return self._end_half_open()
        is_busy = False
        ends = ((self.near_host, self.far_machine), (self.far_host, self.near_machine))
        for host, machine in ends:
            if host.output:
                data, is_busy = bytes(host.output), True
                host.output.clear()
                machine.receive(data)
        if self.near_host.is_closed or self.far_host.is_closed:
            self.cut()
        return is_busy

    def cut(self) -> None:
        """The connection is lost at both ends, with what is under way."""
        if self.is_half_open:
            self._end_half_open()
        elif not self.is_cut:
            self.is_cut = True
            for machine in (self.near_machine, self.far_machine):
                machine.dismantle()
            self.lost(self.near_machine.end_reason or "Connection reset by peer")

    def give_up(self) -> None:
        """The near end gives the connection up; what it has written is still under way, and arrives at some time."""
        if not self.is_cut and not self.is_half_open:
            self.is_half_open = True
            self.near_machine.dismantle()
            self.lost("Connection timed out")

    def _end_half_open(self) -> bool:
        self.is_cut, self.is_half_open = True, False
        if self.near_host.output and not self.far_host.is_closed:
            self.far_machine.receive(bytes(self.near_host.output))
        self.far_machine.dismantle()
        return True

    def abort(self) -> None:
        """As `Attempt.abort`."""
        self.lost = lambda _reason: None
        self.near_machine.force_close("the link is closed")


class Linked:
    """A network of brokers.

    Args:
        names: their names in the federation; the ports are 1, 2, and so on.
    """

    def __init__(self, *names: str, **settings: Any) -> None:
        self.wires: list[Wire] = []
        self.worlds = [World(BrokerSettings(auth=False, federation_tag=name, **settings)) for name in names]
        self.timers: list[tuple[World, Callable[[], None]]] = []
        self.federations = [Federation(world.broker, world.connections, self._network(world), self._later(world))
                            for world in self.worlds]  # fmt: skip

    def _network(self, near: World) -> Any:
        class Network:
            @staticmethod
            def connect(remote: Remote, make: Any, lost: Any) -> Wire:
                wire = Wire(near, self.worlds[remote.port - 1], make, lost)
                self.wires.append(wire)
                return wire

        return Network()

    def _later(self, world: World) -> Any:
        class Timer:
            def cancel(self) -> None:
                """Not needed here."""

        def call_later(_seconds: float, function: Callable[[], None]) -> Timer:
            self.timers.append((world, function))
            return Timer()

        return call_later

    def rest(self) -> None:
        """Until nothing is left to do but what waits for disks and timers."""
        for _ in range(1_000):
            for world in self.worlds:
                world.run()
            moved = [wire.carry() for wire in self.wires]
            if not any(moved):
                return
        raise AssertionError("the brokers never come to rest")

    def sync(self) -> None:
        """All disks are done, and what follows from it."""
        self.rest()
        while any(world.store.flushes for world in self.worlds):
            for world in self.worlds:
                while world.store.flushes:
                    world.store.end_flush()
            self.rest()

    def pass_time(self) -> None:
        """All timers are due."""
        timers, self.timers = self.timers, []
        for _, function in timers:
            function()
        self.rest()

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        result = asyncio.run(work)
        self.rest()
        return result

    def link(self, near: int, far: int) -> str:
        """Link two brokers, by index. Returns the link's name."""
        name = f"link-{near}-{far}"
        federation = self.federations[near]
        if name not in federation.links:
            settings = LinkSettings(name, Remote("here", far + 1), login=RemoteLogin("ANONYMOUS"))
            self.do(federation.create_link(settings, BROKER))
        return name

    def bridge(self, near: int, far: int, source: str, destination: str, key: str = "", **more: Any) -> str:
        """Make a bridge on the link of two brokers. Returns its name."""
        link = self.link(near, far)
        name = f"{link}-{source}-{destination}-{key}"
        settings = BridgeSettings(name, link, False, source, destination, key, **more)
        self.do(self.federations[near].create_bridge(settings, BROKER))
        return name
