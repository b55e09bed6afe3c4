"""A client of AMQP 0-9-1 in a `World`: the other end of a connection, as bytes."""

from __future__ import annotations

from typing import Any

from qstore.broker.protocols.amqp_0_9_1.connection import (
    Amqp08Connection,
    Amqp08PublishedConnection,
    Amqp09Connection,
    Amqp091Connections,
    ServerConnection,
)
from qstore.broker.protocols.machine import Peer
from qstore.broker.security.authentication import PeerSecurity
from qstore.formats.amqp_0_9_1.frames import FRAME_MIN_SIZE
from qstore.formats.amqp_0_9_1.methods import AMQP_0_9_1, Version
from qstore.formats.amqp_0_9_1.properties import Properties
from qstore.formats.values import TypedMap, typed_map
from tests.broker.protocols.world import Host, World
from tests.support.basic_peer import MAX_FRAME, PERSISTENT, BasicWire, Received

CAPABILITIES = {"consumer_cancel_notify": True, "connection.blocked": True, "authentication_failure_close": True}
_ENDS: dict[bytes, type[ServerConnection]] = {
    each.protocol_header: each
    for each in (ServerConnection, Amqp09Connection, Amqp08Connection, Amqp08PublishedConnection)
}


class BasicClient(BasicWire):
    """A client.

    Attributes:
        machine: the broker's end.
    """

    def __init__(
        self,
        world: World,
        *,
        capabilities: dict[str, bool] | None = None,
        product: str = "test",
        refusal: str = "",
        version: Version = AMQP_0_9_1,
    ) -> None:
        super().__init__(version)
        self.world, self.host = world, Host(world)
        shared = getattr(world, "basic_connections", None) or Amqp091Connections(world.broker, world.authentication)
        shared.now = lambda: world.now
        world.basic_connections = shared  # type: ignore[attr-defined]
        peer = Peer("127.0.0.1:5", PeerSecurity(is_local=True), refusal)
        self.machine: ServerConnection = _ENDS[version.header](self.host, shared, peer)
        world.machines.append(self.machine)  # type: ignore[arg-type]
        self._capabilities, self._product = CAPABILITIES if capabilities is None else capabilities, product

    # ---- sending ----

    def send(self, data: bytes) -> None:
        self.machine.receive(data)

    def method(self, name: str, channel: int = 1, /, **values: Any) -> None:
        self.send(self.encode(name, channel, **values))

    def call(self, name: str, channel: int = 1, /, **values: Any) -> Received:
        """Send a method, and return the last thing that came on that channel after the broker has come to rest."""
        self.method(name, channel, **values)
        self.sync()
        return self.last(channel)

    def publish(
        self, routing_key: str = "q", body: bytes = b"x", properties: Properties = PERSISTENT, **values: Any
    ) -> None:
        self.send(self.message(routing_key, body, properties, **values))

    # ---- receiving ----

    def sync(self) -> None:
        """Let the broker come to rest, and read what it has sent."""
        self.world.run()
        self.feed(bytes(self.host.output))
        self.host.output.clear()

    def last(self, channel: int = 1) -> Received:
        return [each for each in self.received if each.channel == channel][-1]

    def take(self, *names: str) -> list[Received]:
        """Remove and return what came of these methods, or everything."""
        self.sync()
        found = [each for each in self.received if not names or each.name in names]
        self.received = [each for each in self.received if each not in found]
        return found

    # ---- opening ----

    def open(self, *channels: int, heartbeat: int = 0, frame_max: int = FRAME_MIN_SIZE, host: str = "/") -> BasicClient:
        """Open the connection, and channels: number 1 if none is given."""
        self.start()
        self.method("connection.tune-ok", 0, channel_max=100, frame_max=frame_max, heartbeat=heartbeat)
        self.max_frame = frame_max or MAX_FRAME
        opened = self.call("connection.open", 0, virtual_host=host)
        assert opened.name == "connection.open-ok", opened
        for channel in channels or (1,):
            assert self.call("channel.open", channel).name == "channel.open-ok"
        self.received.clear()
        return self

    def start(self, mechanism: str = "ANONYMOUS", response: bytes = b"") -> None:
        self.send(self.version.header)
        properties: TypedMap = typed_map({"product": self._product, "capabilities": self._capabilities})
        self.method(
            "connection.start-ok", 0, client_properties=properties, mechanism=mechanism, response=response,
            locale="en_US",
        )  # fmt: skip
        self.sync()
