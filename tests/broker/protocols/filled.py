"""A queue with messages, and what is left on it."""

from __future__ import annotations

from qstore.broker.settings import BrokerSettings
from tests.broker.protocols.world import Client, World


def filled(*bodies: bytes, queue_limit_bytes: int = 0) -> Client:
    """A client and a queue `q` with these messages."""
    client = World(BrokerSettings(auth=False, queue_limit_bytes=queue_limit_bytes)).open_client()
    client.declare("q")
    client.publish("q", *bodies)
    client.sync()
    return client


def numbered(count: int) -> list[bytes]:
    return [b"%03d" % number for number in range(count)]


def completed(client: Client, *ranges: tuple[int, int]) -> None:
    client.control("session.completed", on=1, commands=ranges, timely_reply=False)
    client.sync()


def left(client: Client, queue: str = "q") -> list[bytes]:
    return [entry.message.body for entry in client.world.broker.default_host.queues[queue].available()]
