"""Federated exchanges and queues between brokers that run, and with Debian's RabbitMQ in both directions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pika
import pytest

from qstore.broker.management.console.blocking import Console
from tests.support.rabbitmq import RabbitMQ, one_rabbitmq
from tests.support.running_broker import BrokerMaker, RunningBroker, make_broker, one_broker
from tests.system.shovels import PERSISTENT, channel_to, depth, drain, fill, managing, wait_until

__all__ = ["make_broker"]

broker = pytest.fixture(one_broker, scope="module")


@pytest.fixture(scope="module")
def rabbit() -> Iterator[RabbitMQ]:
    yield from one_rabbitmq("rabbitmq_federation")


def uri(port: int) -> str:
    return f"amqp://guest:guest@127.0.0.1:{port}"


def set_upstream(console: Console, name: str, **value: Any) -> None:
    given = {key.replace("_", "-"): each for key, each in value.items()}
    properties = {"vhost": "/", "component": "federation-upstream", "value": json.dumps(given)}
    console.call("broker", "create", {"type": "parameter", "name": name, "properties": properties, "strict": True})


def set_policy(console: Console, name: str, pattern: str, apply_to: str, **definition: Any) -> None:
    given = {key.replace("_", "-"): each for key, each in definition.items()}
    properties = {"vhost": "/", "pattern": pattern, "apply-to": apply_to, "definition": given}
    console.call("broker", "create", {"type": "policy", "name": name, "properties": properties, "strict": True})


def links(console: Console) -> dict[str, dict[str, Any]]:
    """Name of the exchange or queue -> values of its link."""
    return {str(each.get("name")): dict(each.values) for each in console.query("federationLink")}


def wait_until_it_runs(console: Console, name: str) -> None:
    def look() -> bool:
        return links(console).get(name, {}).get("state") == "running"

    wait_until(look, f"{name} is federated: {links(console)}")


def rabbit_federates(rabbit: RabbitMQ, port: int, name: str, apply_to: str) -> None:
    """Federate an exchange or queue of RabbitMQ, and wait until its link runs."""
    value = json.dumps({"uri": uri(port), "reconnect-delay": 1})
    rabbit.ctl("set_parameter", "federation-upstream", name, value)
    policy = json.dumps({"federation-upstream": name})
    rabbit.ctl("set_policy", "--apply-to", apply_to, name, f"^{name}$", policy)

    def look() -> bool:
        expression = "rabbit_federation_status:status()."
        return "running" in rabbit.ctl("eval", expression).stdout

    wait_until(look, "RabbitMQ's link runs")


def bound(port: int, exchange: str, queue: str, key: str) -> None:
    with channel_to(port) as channel:
        channel.exchange_declare(exchange, "topic", durable=True)
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, exchange, key)


def publish(port: int, exchange: str, key: str, *bodies: bytes) -> None:
    with channel_to(port) as channel:
        channel.confirm_delivery()
        for body in bodies:
            channel.basic_publish(exchange, key, body, PERSISTENT)


def test_an_exchange_has_messages_of_rabbitmq(rabbit: RabbitMQ, broker: RunningBroker) -> None:
    bound(broker.port, "news", "readers", "a.#")
    with managing(broker.port) as console:
        set_upstream(console, "rabbit", uri=uri(rabbit.port), reconnect_delay=0.5)
        set_policy(console, "news", "^news$", "exchanges", federation_upstream="rabbit")
        wait_until_it_runs(console, "news")
        publish(rabbit.port, "news", "a.b", b"one")
        publish(rabbit.port, "news", "b.b", b"unwanted")
        wait_until(lambda: depth(broker.port, "readers") == 1, "the message comes")
        with channel_to(broker.port) as channel:
            channel.queue_bind("readers", "news", "b.*")

        def later() -> int:
            publish(rabbit.port, "news", "b.b", b"two")
            return depth(broker.port, "readers") > 1

        wait_until(later, "the new binding is there")
    (method, properties, body), *others = drain(broker.port, "readers")
    assert (method.exchange, method.routing_key, body) == ("news", "a.b", b"one")
    assert {each for _, _, each in others} == {b"two"}
    (hop,) = properties.headers["x-received-from"]
    assert hop["exchange"] == "news"
    assert hop["cluster-name"].startswith("qstore-")


def test_rabbitmq_has_messages_of_an_exchange_here(rabbit: RabbitMQ, broker: RunningBroker) -> None:
    bound(broker.port, "events", "unused", "none")
    bound(rabbit.port, "events", "far", "a.#")
    rabbit_federates(rabbit, broker.port, "events", "exchanges")
    publish(broker.port, "events", "a.b", b"one", b"two")
    publish(broker.port, "events", "b.b", b"unwanted")
    wait_until(lambda: depth(rabbit.port, "far") == 2, "the messages come")
    (_, properties, body), _ = drain(rabbit.port, "far")
    assert (body, properties.headers["x-received-from"][0]["exchange"]) == (b"one", "events")


def test_exchanges_that_are_federated_both_ways_do_not_loop(rabbit: RabbitMQ, broker: RunningBroker) -> None:
    bound(broker.port, "both", "here", "#")
    bound(rabbit.port, "both", "there", "#")
    rabbit_federates(rabbit, broker.port, "both", "exchanges")
    with managing(broker.port) as console:
        set_upstream(console, "rabbit", uri=uri(rabbit.port), reconnect_delay=0.5, max_hops=5)
        set_policy(console, "both", "^both$", "exchanges", federation_upstream="rabbit")
        wait_until_it_runs(console, "both")
    publish(broker.port, "both", "k", b"ours")
    publish(rabbit.port, "both", "k", b"theirs")
    for port, queue in ((broker.port, "here"), (rabbit.port, "there")):
        wait_until(lambda port=port, queue=queue: depth(port, queue) >= 2, "both come")
    publish(rabbit.port, "both", "k", b"last")
    wait_until(lambda: depth(broker.port, "here") >= 3, "the last one comes")
    assert sorted(body for _, _, body in drain(broker.port, "here")) == [b"last", b"ours", b"theirs"]
    assert sorted(body for _, _, body in drain(rabbit.port, "there")) == [b"last", b"ours", b"theirs"]


@pytest.mark.parametrize("is_ours", [True, False])
def test_messages_of_a_queue_move_to_where_the_consumer_is(
    rabbit: RabbitMQ, broker: RunningBroker, is_ours: bool
) -> None:
    name = f"work-{is_ours}"
    upstream, downstream = (rabbit.port, broker.port) if is_ours else (broker.port, rabbit.port)
    fill(upstream, name, [b"%d" % number for number in range(50)])
    fill(downstream, name, [])
    if is_ours:
        with managing(broker.port) as console:
            set_upstream(console, "rabbit", uri=uri(rabbit.port), reconnect_delay=0.5)
            set_policy(console, name, f"^{name}$", "queues", federation_upstream="rabbit")
            wait_until_it_runs(console, name)
    else:
        rabbit_federates(rabbit, broker.port, name, "queues")
    assert depth(upstream, name) == 50
    found: list[bytes] = []
    with channel_to(downstream) as channel:
        for method, properties, body in channel.consume(name, inactivity_timeout=10):
            assert method is not None, found
            assert properties.headers["x-received-from"]
            found.append(body)
            channel.basic_ack(method.delivery_tag)
            if len(found) == 50:
                break
    assert found == [b"%d" % number for number in range(50)]
    wait_until(lambda: depth(upstream, name) == 0, "all are acknowledged")


def test_nothing_is_lost_when_either_broker_is_killed(make_broker: BrokerMaker) -> None:
    upstream, downstream = make_broker().start(), make_broker().start()
    for each in (upstream, downstream):
        bound(each.port, "kept", f"on-{each.port}", "#")
    with managing(downstream.port) as console:
        set_upstream(console, "up", uri=uri(upstream.port), reconnect_delay=0.2, prefetch_count=50)
        set_policy(console, "kept", "^kept$", "exchanges", federation_upstream="up")
        wait_until_it_runs(console, "kept")
    queue = f"on-{downstream.port}"
    for number in range(4):
        bodies = [b"%d" % each for each in range(number * 200, number * 200 + 200)]
        publish(upstream.port, "kept", "k", *bodies)
        killed = (upstream, downstream)[number % 2]
        killed.kill()
        killed.launch("--port", str(killed.port))
        wait_until(lambda killed=killed: _answers(killed.port), "it is there again")
    with managing(downstream.port) as console:
        wait_until(lambda: links(console)["kept"]["state"] == "running", "the link runs again")
    wait_until(lambda: depth(downstream.port, queue) >= 800, "all come")
    found = [int(body) for _, _, body in drain(downstream.port, queue)]
    assert set(found) == set(range(800))
    assert len(found) < 1_200


def _answers(port: int) -> bool:
    try:
        with channel_to(port):
            return True
    except (pika.exceptions.AMQPError, OSError):
        return False
