"""A client of AMQP 1.0 in a `World`: the other end of a connection, as bytes."""

from __future__ import annotations

from typing import Any

from qstore.broker.model.queues.queue import Queue
from qstore.broker.protocols.amqp_1_0.connection import Amqp10Connections, ServerConnection
from qstore.broker.protocols.machine import Peer
from qstore.broker.security.authentication import PeerSecurity
from qstore.formats.amqp_1_0.composites import Composite
from qstore.formats.amqp_1_0.frames import AMQP_HEADER
from tests.broker.protocols.world import Host, World
from tests.support.sections_peer import RECEIVER, SENDER, Delivered, FrameWire, Received, address, content


class LinksClient(FrameWire):
    """A client.

    Attributes:
        machine: the broker's end.
        sent: messages sent in each session, by channel.
    """

    def __init__(self, world: World, *, refusal: str = "", is_local: bool = True) -> None:
        super().__init__()
        self.world, self.host = world, Host(world)
        shared = getattr(world, "links_connections", None) or Amqp10Connections(world.broker, world.authentication)
        shared.now = lambda: world.now
        world.links_connections = shared  # type: ignore[attr-defined]
        self.machine: ServerConnection = shared.connect(self.host, Peer("127.0.0.1:7", PeerSecurity(is_local), refusal))
        world.machines.append(self.machine)  # type: ignore[arg-type]
        self.sent: dict[int, int] = {}

    # ---- sending ----

    def send(self, data: bytes) -> None:
        self.machine.receive(data)

    def do(self, name: str, channel: int = 0, /, **fields: Any) -> None:
        self.send(self.encode(name, channel, **fields))

    def call(self, name: str, channel: int = 0, /, **fields: Any) -> Received:
        """Send a performative, and return the last thing that came after the broker has come to rest."""
        self.do(name, channel, **fields)
        self.sync()
        return self.received[-1]

    def publish(self, body: bytes = b"x", handle: int = 0, channel: int = 0, **options: Any) -> int:
        """Send a message; returns its delivery-id."""
        message = options.pop("message", None)
        if message is None:
            keys = ("durable", "header", "message_id", "subject", "to", "user_id", "absolute_expiry_time")
            message = content(body, **{key: options.pop(key) for key in keys if key in options})
        number = self.sent.get(channel, 0)
        self.sent[channel] = number + 1
        for frame in self.transfers(handle, number, message, channel=channel, **options):
            self.send(frame)
        return number

    def credit(self, count: int, handle: int = 0, channel: int = 0, *, seen: int = 0, **fields: Any) -> None:
        """Give credit on a link, counted from the deliveries that were seen."""
        self.do(
            "flow", channel, next_incoming_id=fields.pop("next_incoming_id", 0),
            incoming_window=fields.pop("incoming_window", 2_000_000), next_outgoing_id=0, outgoing_window=1000,
            handle=handle, delivery_count=seen, link_credit=count, **fields,
        )  # fmt: skip

    def settle(self, state: Composite | None, first: int, last: int | None = None, *, settled: bool = True) -> None:
        self.do("disposition", 0, role=RECEIVER, first=first, last=last, settled=settled, state=state)

    # ---- receiving ----

    def sync(self) -> None:
        """Let the broker come to rest, and read what it has sent."""
        self.world.run()
        self.feed(bytes(self.host.output))
        self.host.output.clear()

    def take(self, *names: str) -> list[Received]:
        """Remove and return what came of these performatives, or everything."""
        self.sync()
        found = [each for each in self.received if not names or each.name in names]
        self.received = [each for each in self.received if each not in found]
        return found

    def messages(self) -> list[Delivered]:
        self.sync()
        return self.deliveries()

    def outcomes(self) -> list[tuple[int, int, str]]:
        """First and last number, and the outcome, of the dispositions that came."""
        return [
            (each.fields["first"], each.fields.get("last", each.fields["first"]), each.fields["state"].name)
            for each in self.take("disposition")
        ]

    def error(self, name: str) -> str:
        """The condition of the one performative of that name that came."""
        (found,) = self.take(name)
        error = found.fields.get("error")
        return "" if error is None else str(error.fields["condition"])

    # ---- opening ----

    def start(self, **fields: Any) -> LinksClient:
        """Open the connection without SASL."""
        self.send(AMQP_HEADER)
        self.do("open", **{"container_id": "test", "max_frame_size": self.max_frame, **fields})
        return self

    def open(self, *channels: int, **fields: Any) -> LinksClient:
        """Open the connection, and sessions: one on channel 0 if none is given."""
        self.start(**fields)
        for channel in channels or (0,):
            self.do("begin", channel, next_outgoing_id=0, incoming_window=2_000_000, outgoing_window=1000)
        self.sync()
        assert [each.name for each in self.received] == ["open", *["begin"] * len(channels or (0,))], self.received
        self.received.clear()
        return self

    def attach(
        self, node: str | None, handle: int = 0, *, receives: bool = False, channel: int = 0, **fields: Any
    ) -> list[Received]:
        """Attach a link. Returns what came."""
        own = {"address": None if node is None else address(node), **fields.pop("terminus", {})}
        ends = {"source": Composite("source", own if receives else {})}
        ends["target"] = Composite("target", {} if receives else own)
        if not receives:
            fields.setdefault("initial_delivery_count", 0)
        self.do(
            "attach", channel,
            **{"name": f"link-{handle}", "handle": handle, "role": RECEIVER if receives else SENDER, **ends, **fields},
        )  # fmt: skip
        return self.take("attach", "detach", "flow", "end", "close")

    def sender(self, node: str | None, handle: int = 0, **fields: Any) -> LinksClient:
        came = self.attach(node, handle, **fields)
        assert [each.name for each in came] == ["attach", "flow"], came
        return self

    def receiver(self, node: str, handle: int = 0, *, credit: int = 100, **fields: Any) -> LinksClient:
        came = self.attach(node, handle, receives=True, **fields)
        assert [each.name for each in came] == ["attach"], came
        if credit:
            self.credit(credit, handle, fields.get("channel", 0))
        return self


def make_queue(world: World, name: str = "q", **values: Any) -> Queue:
    """A queue, declared by a client of AMQP 0-10."""
    client = world.open_client(name=f"maker of {name}".encode())
    client.declare(name, **values)
    client.sync()
    return world.broker.default_host.queues[name]
