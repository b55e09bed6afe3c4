"""The client's end of AMQP 0-9-1, wired to the broker's in memory, and what its owner hears."""

from __future__ import annotations

from typing import Any

from qstore.broker.model.message import Content
from qstore.broker.protocols.amqp_0_9_1.client_connection import (
    Answer,
    ClientChannel,
    ClientConnection,
    Delivered,
    Values,
    decode_deliver,
)
from qstore.broker.protocols.amqp_0_9_1.connection import Amqp091Connections
from qstore.broker.protocols.amqp_0_9_1.errors import CodedError, HardError
from qstore.broker.protocols.machine import Peer
from qstore.broker.security.authentication import PeerSecurity
from qstore.broker.security.sasl.exchange import ClientMechanism
from qstore.broker.security.sasl.simple import AnonymousClient
from tests.broker.protocols.world import Host, World


def choose_anonymous(_offered: tuple[str, ...]) -> ClientMechanism:
    return AnonymousClient()


class Heard:
    """The owner of a connection, and of its channels: keeps what it hears."""

    def __init__(self) -> None:
        self.is_open = False
        self.closed: list[HardError | None] = []
        self.channels_closed: list[CodedError | None] = []
        self.blocked: list[str] = []
        self.deliveries: list[tuple[Delivered, bytes, bytes]] = []
        self.confirmed: list[tuple[int, int, bool]] = []
        self.returned: list[tuple[Values, bytes]] = []
        self.cancelled: list[str] = []
        self.answers: list[tuple[Values, CodedError | None]] = []

    def on_open(self) -> None:
        self.is_open = True

    def on_closed(self, error: HardError | None) -> None:
        self.closed.append(error)

    def on_blocked(self, reason: str) -> None:
        self.blocked.append(reason)

    def has_output(self) -> None:
        pass

    def on_delivery(self, payload: bytes, header: bytes, body: Content) -> None:
        self.deliveries.append((decode_deliver(payload), header, bytes(body)))

    def on_confirmed(self, first: int, last: int, *, is_accepted: bool) -> None:
        self.confirmed.append((first, last, is_accepted))

    def on_returned(self, values: Values, header: bytes, body: Content) -> None:
        self.returned.append((values, bytes(body)))

    def on_cancelled(self, consumer_tag: str) -> None:
        self.cancelled.append(consumer_tag)

    def on_channel_closed(self, error: CodedError | None) -> None:
        self.channels_closed.append(error)

    @property
    def answer(self) -> Answer:
        """Keeps an answer."""
        return lambda values, error: self.answers.append((values, error))


class Pair:
    """A client and a broker.

    Attributes:
        client, machine: the two ends.
        heard: what the client's owner has heard.
    """

    def __init__(self, world: World, choose: Any = choose_anonymous, **options: Any) -> None:
        self.world, self.heard, self.host = world, Heard(), Host(world)
        shared = getattr(world, "basic_connections", None) or Amqp091Connections(world.broker, world.authentication)
        shared.now = lambda: world.now
        world.basic_connections = shared  # type: ignore[attr-defined]
        self.machine = shared.connect(self.host, Peer("127.0.0.1:5", PeerSecurity(is_local=True)))
        world.machines.append(self.machine)
        self.client = ClientConnection(self.heard, choose, max_message_bytes=1 << 20, **options)

    def run(self) -> None:
        """Carry bytes in both directions until both ends have come to rest."""
        while True:
            data = self.client.take_output()
            if data and not self.host.is_closed:
                self.machine.receive(data)
            self.world.run()
            for check, done in self.host.checks:
                done(check.run())
            is_at_rest = not data and not self.host.output and not self.host.checks
            self.host.checks.clear()
            received = bytes(self.host.output)
            self.host.output.clear()
            self.client.receive(received)
            if self.host.is_closed:
                self.client.lost("closed by the broker")
            if is_at_rest:
                return

    def open(self) -> Pair:
        self.run()
        assert self.heard.is_open, self.heard.closed
        return self

    def channel(self) -> ClientChannel:
        return self.client.open_channel(self.heard)

    def answer(self) -> Values:
        """The values of the last answer, after both ends have come to rest."""
        self.run()
        values, error = self.heard.answers.pop()
        assert error is None, error
        return values
