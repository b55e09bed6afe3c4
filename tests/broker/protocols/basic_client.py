"""A client of AMQP 0-9-1 in a `World`: the other end of a connection, as bytes."""

from __future__ import annotations

from typing import Any, NamedTuple

from qstore.broker.protocols.amqp_0_9_1.connection import Amqp091Connections, ServerConnection
from qstore.broker.protocols.amqp_0_9_1.message import MAX_FRAME
from qstore.broker.protocols.machine import Peer
from qstore.broker.security.authentication import Link
from qstore.formats.amqp_0_9_1.frames import (
    BODY,
    FRAME_MIN_SIZE,
    HEADER,
    HEARTBEAT,
    METHOD,
    OVERHEAD,
    PROTOCOL_HEADER,
    decode_frame,
    encode_content,
    encode_frame,
)
from qstore.formats.amqp_0_9_1.methods import decode_method, encode_method
from qstore.formats.amqp_0_9_1.properties import Properties, decode_header, encode_header
from qstore.formats.values import TypedMap, typed_map
from tests.broker.protocols.world import Host, World

CAPABILITIES = {"consumer_cancel_notify": True, "connection.blocked": True, "authentication_failure_close": True}
PERSISTENT = Properties(delivery_mode=2)


class Received(NamedTuple):
    """A method that came, with its content if it has any."""

    channel: int
    name: str
    values: dict[str, Any]
    properties: Properties | None = None
    body: bytes = b""


class BasicClient:
    """A client.

    Attributes:
        machine: the broker's end.
        received: what came, in order.
        heartbeats: how many came.
    """

    def __init__(
        self,
        world: World,
        *,
        capabilities: dict[str, bool] | None = None,
        product: str = "test",
        refusal: str = "",
    ) -> None:
        self.world, self.host = world, Host(world)
        shared = getattr(world, "basic_connections", None) or Amqp091Connections(world.broker, world.authentication)
        shared.now = lambda: world.now
        world.basic_connections = shared  # type: ignore[attr-defined]
        peer = Peer("127.0.0.1:5", Link(is_local=True), refusal)
        self.machine: ServerConnection = shared.connect(self.host, peer)
        world.machines.append(self.machine)  # type: ignore[arg-type]
        self.received: list[Received] = []
        self.heartbeats = 0
        self.max_frame = FRAME_MIN_SIZE
        self._capabilities, self._product = CAPABILITIES if capabilities is None else capabilities, product
        self._partial: dict[int, tuple[Received, int]] = {}

    # ---- sending ----

    def send(self, data: bytes) -> None:
        self.machine.receive(data)

    def method(self, name: str, channel: int = 1, /, **values: Any) -> None:
        values = {key: typed_map(value) if isinstance(value, dict) else value for key, value in values.items()}
        self.send(encode_frame(METHOD, channel, encode_method(name, **values)))

    def call(self, name: str, channel: int = 1, /, **values: Any) -> Received:
        """Send a method, and return the last thing that came on that channel after the broker has come to rest."""
        self.method(name, channel, **values)
        self.sync()
        return self.last(channel)

    def message(
        self, routing_key: str = "q", body: bytes = b"x", properties: Properties = PERSISTENT, **values: Any
    ) -> bytes:
        """The frames of a message on channel 1, or `channel`."""
        channel = values.pop("channel", 1)
        payload = encode_method("basic.publish", routing_key=routing_key, **values)
        return b"".join(encode_content(channel, payload, encode_header(len(body), properties), body, self.max_frame))

    def publish(
        self, routing_key: str = "q", body: bytes = b"x", properties: Properties = PERSISTENT, **values: Any
    ) -> None:
        self.send(self.message(routing_key, body, properties, **values))

    # ---- receiving ----

    def sync(self) -> None:
        """Let the broker come to rest, and read what it has sent."""
        self.world.run()
        data, at = bytes(self.host.output), 0
        while (frame := decode_frame(data, at, MAX_FRAME)) is not None:
            at += OVERHEAD + len(frame.payload)
            self._take(frame.type, frame.channel, frame.payload)
        del self.host.output[:at]

    def _take(self, kind: int, channel: int, payload: bytes) -> None:
        if kind == HEARTBEAT:
            self.heartbeats += 1
        elif kind == METHOD:
            assert channel not in self._partial, "a method within content"
            method, values = decode_method(payload)
            found = Received(channel, method.name, values)
            if method.has_content:
                self._partial[channel] = found, -1
            else:
                self.received.append(found)
        else:
            assert kind in (HEADER, BODY)
            begun, size = self._partial[channel]
            if kind == HEADER:
                size, properties = decode_header(payload)
                begun = begun._replace(properties=properties)
            else:
                begun = begun._replace(body=begun.body + payload)
            self._partial[channel] = begun, size
            if len(begun.body) == size:
                del self._partial[channel]
                self.received.append(begun)

    def last(self, channel: int = 1) -> Received:
        return [each for each in self.received if each.channel == channel][-1]

    def take(self, *names: str) -> list[Received]:
        """Remove and return what came of these methods, or everything."""
        self.sync()
        found = [each for each in self.received if not names or each.name in names]
        self.received = [each for each in self.received if each not in found]
        return found

    # ---- opening ----

    def open(self, *channels: int, heartbeat: int = 0, frame_max: int = FRAME_MIN_SIZE) -> BasicClient:
        """Open the connection, and channels: number 1 if none is given."""
        self.start()
        self.method("connection.tune-ok", 0, channel_max=100, frame_max=frame_max, heartbeat=heartbeat)
        self.max_frame = frame_max or MAX_FRAME
        opened = self.call("connection.open", 0, virtual_host="/")
        assert opened.name == "connection.open-ok", opened
        for channel in channels or (1,):
            assert self.call("channel.open", channel).name == "channel.open-ok"
        self.received.clear()
        return self

    def start(self, mechanism: str = "ANONYMOUS", response: bytes = b"") -> None:
        self.send(PROTOCOL_HEADER)
        properties: TypedMap = typed_map({"product": self._product, "capabilities": self._capabilities})
        self.method(
            "connection.start-ok", 0, client_properties=properties, mechanism=mechanism, response=response,
            locale="en_US",
        )  # fmt: skip
        self.sync()
