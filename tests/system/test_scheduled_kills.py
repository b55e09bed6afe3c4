"""Scheduled messages of real clients over kills of the broker: none is lost, and none comes before its time."""

from __future__ import annotations

import time

import pika
import pytest
from proton import Message, symbol
from proton.utils import BlockingConnection

from tests.support.processes import PATIENCE_SECONDS
from tests.support.running_broker import BrokerMaker, make_broker

__all__ = ["make_broker"]

DELAY: int = 3_000


def _received(port: int, count: int) -> list[tuple[bytes, float]]:
    """The bodies of messages of the queue, and when each came."""
    found: list[tuple[bytes, float]] = []
    end = time.monotonic() + PATIENCE_SECONDS
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
        channel = connection.channel()
        while len(found) < count:
            assert time.monotonic() < end, found
            method, _, body = channel.basic_get("q", auto_ack=True)
            if method is None:
                time.sleep(0.05)
            else:
                found.append((body, time.time()))
    return found


@pytest.mark.parametrize("protocol", ["0-9-1", "1.0"])
def test_scheduled_messages_survive_a_kill(make_broker: BrokerMaker, protocol: str) -> None:
    broker = make_broker().start()
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port)) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        if protocol == "0-9-1":
            channel.exchange_declare("later", "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"})
            channel.queue_bind("q", "later", "")
            channel.confirm_delivery()
            properties = pika.BasicProperties(delivery_mode=2, headers={"x-delay": DELAY})
            sent = time.time()
            for number in range(20):
                channel.basic_publish("later", "k", b"%02d" % number, properties)
    if protocol == "1.0":
        links = BlockingConnection(f"127.0.0.1:{broker.port}", timeout=PATIENCE_SECONDS)
        sender = links.create_sender("/queues/q")
        sent = time.time()
        for number in range(20):
            annotations = {symbol("x-opt-delivery-delay"): DELAY}
            message = Message(b"%02d" % number, inferred=True, durable=True, annotations=annotations)
            sender.send(message)
    broker.kill()
    broker.start()
    found = _received(broker.port, 20)
    assert [body for body, _ in found] == [b"%02d" % number for number in range(20)]
    assert all(came >= sent + DELAY / 1000 for _, came in found)
    assert broker.stop() == 0
