"""The guide `broker/MIGRATING.md`: queues of Debian's RabbitMQ move to this broker and back, while both serve."""

from __future__ import annotations

import threading

import pika
import pytest

from tests.support.rabbitmq import RabbitMQ, one_rabbitmq
from tests.support.running_broker import BrokerMaker, RunningBroker, make_broker, one_broker
from tests.system.shovels import (
    channel_to,
    delete_shovel,
    depth,
    drain,
    fill,
    managing,
    set_shovel,
    shovels,
    wait_for_state,
    wait_until,
)

__all__ = ["make_broker"]

rabbit = pytest.fixture(one_rabbitmq, scope="module")
broker = pytest.fixture(one_broker, scope="module")

BODIES = [b"%d" % number for number in range(500)]


def uri(rabbit: RabbitMQ) -> str:
    return f"amqp://guest:guest@127.0.0.1:{rabbit.port}/%2F"


class Publisher(threading.Thread):
    """Publishes numbers with confirms until it is stopped."""

    def __init__(self, port: int, queue: str, first: int) -> None:
        super().__init__()
        self._port, self._queue, self.next, self._is_over = port, queue, first, threading.Event()

    def run(self) -> None:
        with channel_to(self._port) as channel:
            channel.confirm_delivery()
            while not self._is_over.wait(0.001):
                channel.basic_publish("", self._queue, b"%d" % self.next, pika.BasicProperties(delivery_mode=2))
                self.next += 1

    def end(self) -> int:
        self._is_over.set()
        self.join()
        return self.next


def test_a_queue_moves_to_this_broker_and_back_while_both_serve(rabbit: RabbitMQ, broker: RunningBroker) -> None:
    fill(rabbit.port, "orders", BODIES)
    fill(broker.port, "orders", [])
    with managing(broker.port) as console:
        publisher = Publisher(rabbit.port, "orders", len(BODIES))
        publisher.start()
        set_shovel(
            console, "from-rabbit", src_uri=uri(rabbit), src_queue="orders", dest_uri="amqp://", dest_queue="orders",
            ack_mode="on-confirm",
        )  # fmt: skip
        wait_for_state(console, "from-rabbit", "running")
        wait_until(lambda: depth(broker.port, "orders") > len(BODIES), "messages of the publisher come, too")
        last = publisher.end()
        wait_until(lambda: depth(broker.port, "orders") == last, "all have moved")
        wait_until(lambda: not shovels(console)["from-rabbit"]["pending"], "all are acknowledged")
        publisher = Publisher(broker.port, "orders", last)  # it has moved
        publisher.start()
        delete_shovel(console, "from-rabbit")
        with channel_to(rabbit.port) as channel:
            found = channel.queue_declare("orders", durable=True).method
        assert (found.message_count, found.consumer_count) == (0, 0)
        last = publisher.end()
        set_shovel(
            console, "to-rabbit", src_uri="amqp://", src_queue="orders", dest_uri=uri(rabbit), dest_queue="orders",
            src_delete_after="queue-length",
        )  # fmt: skip
        wait_until(lambda: "to-rabbit" not in shovels(console), "the shovel has moved all and is deleted")
    assert depth(broker.port, "orders") == 0
    found = drain(rabbit.port, "orders")
    assert [int(body) for _, _, body in found] == list(range(last))
    assert {properties.delivery_mode for _, properties, _ in found} == {2}


def test_nothing_is_lost_when_this_broker_is_killed_meanwhile(rabbit: RabbitMQ, make_broker: BrokerMaker) -> None:
    broker = make_broker().start()
    fill(rabbit.port, "killed", [*BODIES] * 4)
    with managing(broker.port) as console:
        set_shovel(
            console, "s", src_uri=uri(rabbit), src_queue="killed", dest_uri="amqp://", dest_queue="killed",
            src_prefetch_count=50, reconnect_delay=0.1,
        )  # fmt: skip
        wait_until(lambda: shovels(console)["s"]["forwarded"] > 50, "some have moved")
    broker.kill()
    broker.start()
    with managing(broker.port) as console:
        wait_for_state(console, "s", "running")
        wait_until(
            lambda: not shovels(console)["s"]["pending"] and depth(rabbit.port, "killed") == 0, "the rest has moved"
        )
    numbers = [int(body) for _, _, body in drain(broker.port, "killed")]
    assert set(numbers) == set(range(len(BODIES)))
    assert len(BODIES) * 4 <= len(numbers) <= len(BODIES) * 4 + 50


def test_properties_and_headers_come_through_rabbitmq_and_back(rabbit: RabbitMQ, broker: RunningBroker) -> None:
    properties = pika.BasicProperties(
        content_type="text/plain", content_encoding="gzip", headers={"a": 1, "b": [True, {"c": None}], "d": "x" * 300},
        delivery_mode=2, priority=3, correlation_id="c", reply_to="r", message_id="m", timestamp=5, type="t",
        app_id="app",
    )  # fmt: skip
    fill(broker.port, "round", [b"body"], properties)
    with managing(broker.port) as console:
        set_shovel(
            console, "out", src_uri="amqp://", src_queue="round", dest_uri=uri(rabbit), dest_queue="round",
            dest_add_forward_headers=True,
        )  # fmt: skip
        set_shovel(
            console, "home", src_uri=uri(rabbit), src_queue="round", dest_uri="amqp://", dest_queue="home",
            dest_add_forward_headers=True,
        )  # fmt: skip
        wait_until(lambda: shovels(console)["home"]["forwarded"] == 1, "the message came back")
        wait_until(lambda: depth(broker.port, "home") == 1, "it is on its queue")
        ((_, found, body),) = drain(broker.port, "home")
        for name in ("out", "home"):
            delete_shovel(console, name)
    assert body == b"body"
    headers = found.headers
    assert [each["shovel-name"] for each in headers.pop("x-shovelled")] == ["home", "out"]
    assert headers == properties.headers
    for name in ("content_type", "content_encoding", "delivery_mode", "priority", "correlation_id", "reply_to",
                 "message_id", "timestamp", "type", "app_id"):  # fmt: skip
        assert getattr(found, name) == getattr(properties, name), name


def test_a_wrong_password_is_reported_and_not_shown(rabbit: RabbitMQ, broker: RunningBroker) -> None:
    with managing(broker.port) as console:
        set_shovel(
            console, "wrong", src_uri=f"amqp://guest:hidden-word@127.0.0.1:{rabbit.port}", src_queue="q",
            dest_uri="amqp://", dest_queue="q",
        )  # fmt: skip
        status = wait_for_state(console, "wrong", "terminated")
        assert "ACCESS_REFUSED" in status["reason"]
        assert "hidden-word" not in str(status)
        delete_shovel(console, "wrong")
    assert "hidden-word" not in broker.log_text()
