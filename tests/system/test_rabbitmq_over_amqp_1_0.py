"""The client and shovels over AMQP 1.0 with a peer that is not ours: Debian's RabbitMQ with its plugin for AMQP 1.0."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from qstore.broker.client import Connection, Message
from tests.support.processes import PATIENCE_SECONDS
from tests.support.rabbitmq import RabbitMQ, one_rabbitmq
from tests.support.running_broker import RunningBroker, one_broker
from tests.system.shovels import depth, drain, fill, managing, set_shovel, wait_until

broker = pytest.fixture(one_broker, scope="module")


@pytest.fixture(scope="module")
def rabbitmq() -> Iterator[RabbitMQ]:
    yield from one_rabbitmq("rabbitmq_amqp1_0")


def test_the_client_speaks_to_rabbitmq(rabbitmq: RabbitMQ) -> None:
    fill(rabbitmq.port, "talk", [])
    options: dict[str, Any] = {"protocol": "amqp1.0", "username": "guest", "password": "guest"}
    with Connection(f"127.0.0.1:{rabbitmq.port}", **options) as connection:
        session = connection.session()
        sender = session.sender("'/amq/queue/talk'")
        for number in range(200):
            sender.send(Message(b"%d" % number, durable=True, properties={"n": number}), sync=False)
        sender.sync()
        receiver = session.receiver("'/amq/queue/talk'", capacity=20)
        found = [receiver.fetch(timeout=PATIENCE_SECONDS) for _ in range(200)]
        assert [(each.body, each.properties["n"]) for each in found] == [(b"%d" % n, n) for n in range(200)]
        session.acknowledge()
    wait_until(lambda: not depth(rabbitmq.port, "talk"), "all are acknowledged")


def test_a_shovel_over_amqp_1_0_drains_rabbitmq_and_fills_it_again(broker: RunningBroker, rabbitmq: RabbitMQ) -> None:
    bodies = [b"%d" % number for number in range(500)]
    fill(rabbitmq.port, "there", bodies)
    for port, queue in ((broker.port, "here"), (rabbitmq.port, "back")):
        fill(port, queue, [])
    uri = f"amqp://guest:guest@127.0.0.1:{rabbitmq.port}"
    with managing(broker.port) as console:
        set_shovel(
            console, "in", src_uri=uri, src_protocol="amqp10", src_address="/amq/queue/there", dest_uri="amqp://",
            dest_queue="here", src_prefetch_count=50,
        )  # fmt: skip
        set_shovel(
            console, "out", src_uri="amqp://", src_queue="here", dest_uri=uri, dest_protocol="amqp10",
            dest_address="/amq/queue/back", src_prefetch_count=50,
        )  # fmt: skip
        wait_until(lambda: depth(rabbitmq.port, "back") == len(bodies), "all are back")
    assert not depth(rabbitmq.port, "there")
    assert [body for _, _, body in drain(rabbitmq.port, "back")] == bodies
