"""Selectors of bindings and of consumers of AMQP 0-9-1 on a broker that runs, and is killed."""

from __future__ import annotations

from typing import Any

import pika

from tests.support.processes import PATIENCE_SECONDS
from tests.support.running_broker import BrokerMaker, make_broker
from tests.system.shovels import channel_to, drain

__all__ = ["make_broker"]

IS_RED = {"x-filter-jms-selector": "colour = 'red'"}


def publish(port: int, exchange: str, key: str) -> None:
    with channel_to(port) as channel:
        channel.confirm_delivery()
        for colour in ("red", "blue", "red"):
            properties = pika.BasicProperties(delivery_mode=2, headers={"colour": colour})
            channel.basic_publish(exchange, key, colour.encode(), properties)


def consumed(port: int, **arguments: Any) -> list[bytes]:
    """What a consumer gets until it is closed."""
    found: list[bytes] = []
    given = {name.replace("_", "-"): value for name, value in arguments.items()} | {"x-filter-auto-close": True}
    with channel_to(port) as channel:
        channel.add_on_cancel_callback(lambda _frame: channel.stop_consuming())
        for _, _, body in channel.consume("all", auto_ack=True, arguments=given, inactivity_timeout=PATIENCE_SECONDS):
            assert body is not None, "the consumer was not closed"
            found.append(body)
    return found


def test_selectors_of_bindings_and_consumers_over_a_kill(make_broker: BrokerMaker) -> None:
    broker = make_broker().start()
    with channel_to(broker.port) as channel:
        for queue, arguments in (("red", IS_RED), ("all", {})):
            channel.queue_declare(queue, durable=True)
            channel.queue_bind(queue, "amq.topic", "a.#", arguments)
    publish(broker.port, "amq.topic", "a.b")
    broker.kill()
    broker.start()
    publish(broker.port, "amq.topic", "a.b")
    assert [body for _, _, body in drain(broker.port, "red")] == [b"red"] * 4
    assert consumed(broker.port, x_filter_no_consume=True) == [b"red", b"blue", b"red"] * 2
    assert consumed(broker.port, x_filter_jms_selector="colour = 'red'") == [b"red"] * 4
    assert consumed(broker.port) == [b"blue"] * 2
    assert broker.stop() == 0
