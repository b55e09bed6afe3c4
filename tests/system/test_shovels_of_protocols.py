"""Shovels whose ends speak AMQP 0-10, 0-9-1 and 1.0, between brokers that run, and are killed."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from qstore.broker.client import Connection, Message
from tests.support.processes import PATIENCE_SECONDS
from tests.support.running_broker import BrokerMaker, RunningBroker, make_broker
from tests.system.shovels import depth, drain, fill, managing, set_shovel, shovels, wait_for_state, wait_until

__all__ = ["make_broker"]

PROTOCOLS: Final = ("amqp010", "amqp091", "amqp10")
KILLS: Final = 5
BODIES: Final = [b"%d" % number for number in range(2000)]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningBroker, RunningBroker]]:
    made = [RunningBroker(tmp_path_factory.mktemp(name)) for name in ("source", "destination")]
    for each in made:
        each.start()
    yield made[0], made[1]
    for each in made:
        each.close()


def ends(source: str, destination: str, src: str, dest: str, **more: Any) -> dict[str, Any]:
    """The keys of a shovel from one queue to another, by the protocols of its ends."""
    given: dict[str, Any] = {"src_protocol": source, "dest_protocol": destination, "reconnect_delay": 0.1, **more}
    given["src_address" if source == "amqp10" else "src_queue"] = src
    given["dest_address" if destination == "amqp10" else "dest_queue"] = dest
    return given


@contextmanager
def client(broker: RunningBroker, protocol: str = "amqp1.0") -> Iterator[Any]:
    with Connection(f"127.0.0.1:{broker.port}", protocol=protocol) as connection:
        yield connection.session()


def declare(broker: RunningBroker, *queues: str) -> None:
    with client(broker, "amqp0-10") as session:
        for queue in queues:
            session.invoke("queue.declare", queue=queue, durable=True)


@pytest.mark.parametrize("destination", PROTOCOLS)
@pytest.mark.parametrize("source", PROTOCOLS)
def test_messages_keep_what_they_have(
    brokers: tuple[RunningBroker, RunningBroker], source: str, destination: str
) -> None:
    near, far = brokers
    queue = f"{source}-{destination}"
    declare(near, queue)
    declare(far, queue)
    messages = [
        Message(content, durable=True, subject="s", properties={"n": 5, "text": "ä"}, priority=7, correlation_id="c")
        for content in ("text", b"\0\xff", {"a": [1, "b"]}, [1, 2], "x" * 300_000)
    ]
    with client(near, "amqp0-10") as session:
        sender = session.sender(queue)
        for message in messages:
            sender.send(message)
    with managing(near.port) as console:
        uris = {"src_uri": "amqp://", "dest_uri": f"amqp://127.0.0.1:{far.port}"}
        set_shovel(console, queue, **uris, **ends(source, destination, queue, queue))
        status = wait_for_state(console, queue, "running")
        assert not status["reason"]
    with client(far, "amqp0-10") as session:
        receiver = session.receiver(queue, capacity=10)
        for message in messages:
            found = receiver.fetch(timeout=PATIENCE_SECONDS)
            assert found.content == message.content
            assert (found.subject, found.correlation_id, found.priority, found.durable) == ("s", "c", 7, True)
            assert (found.properties["n"], found.properties["text"]) == (5, "ä")
        session.acknowledge()
    wait_until(lambda: not depth(near.port, queue), "the source is empty")


@pytest.mark.parametrize("mode", ["on-confirm", "on-publish", "no-ack"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_shovel_is_deleted_after_a_number_of_messages(
    brokers: tuple[RunningBroker, RunningBroker], protocol: str, mode: str
) -> None:
    near, far = brokers
    queue = f"after-{protocol}-{mode}"
    fill(near.port, queue, BODIES[:50])
    declare(far, queue)
    after = None if mode == "no-ack" else 30
    with managing(near.port) as console:
        more = {"ack_mode": mode} | ({} if after is None else {"src_delete_after": after})
        uris = {"src_uri": f"amqp://127.0.0.1:{near.port}", "dest_uri": f"amqp://127.0.0.1:{far.port}"}
        set_shovel(console, queue, **uris, **ends(protocol, protocol, queue, queue, **more))
        if after is None:
            wait_until(lambda: depth(far.port, queue) == 50, "all have moved")
        else:
            wait_until(lambda: queue not in shovels(console), "it is gone")
    assert [body for _, _, body in drain(far.port, queue)] == BODIES[: after or 50]
    wait_until(lambda: depth(near.port, queue) == 50 - (after or 50), "the rest is there")


def test_an_exchange_over_0_10_is_a_source(brokers: tuple[RunningBroker, RunningBroker]) -> None:
    near, far = brokers
    declare(far, "news")
    with managing(near.port) as console:
        set_shovel(
            console, "news", src_uri="amqp://", src_protocol="amqp010", src_exchange="amq.topic",
            src_exchange_key="news.#", dest_uri=f"amqp://127.0.0.1:{far.port}", dest_protocol="amqp010",
            dest_exchange="amq.direct", dest_exchange_key="k",
        )  # fmt: skip
        wait_for_state(console, "news", "running")
    with client(far, "amqp0-10") as session:
        session.invoke("exchange.bind", queue="news", exchange="amq.direct", binding_key="k")
    with client(near) as session:
        session.sender("amq.topic").send(Message("x", subject="news.today"))
    wait_until(lambda: depth(far.port, "news") == 1, "it has come")


def test_sections_of_1_0_are_set(brokers: tuple[RunningBroker, RunningBroker]) -> None:
    near, far = brokers
    fill(near.port, "sections", [b"x"])
    declare(far, "sections")
    with managing(near.port) as console:
        set_shovel(
            console, "sections", src_uri="amqp://", src_queue="sections", dest_uri=f"amqp://127.0.0.1:{far.port}",
            dest_protocol="amqp10", dest_address="/queues/sections", dest_properties={"subject": "s", "group-id": "g"},
            dest_application_properties={"colour": "red"}, dest_message_annotations={"x-opt-mine": "m"},
            dest_add_forward_headers=True, dest_add_timestamp_header=True,
        )  # fmt: skip
    with client(far) as session:
        found = session.receiver("sections").fetch(timeout=PATIENCE_SECONDS)
        session.acknowledge()
    assert (found.content, found.subject) == (b"x", "s")
    properties = found.properties
    assert (properties["colour"], properties["x-opt-mine"], properties["x-amqp-group-id"]) == ("red", "m", "g")
    assert (properties["shovel-type"], properties["shovel-name"]) == ("dynamic", "sections")
    assert properties["x-shovelled-timestamp"] > 1_700_000_000


@pytest.mark.parametrize("protocol", ["amqp010", "amqp10"])
def test_a_place_that_is_not_there_is_told(brokers: tuple[RunningBroker, RunningBroker], protocol: str) -> None:
    near, far = brokers
    fill(near.port, "a", [])
    with managing(near.port) as console:
        more = {"dest_address": "nowhere"} if protocol == "amqp10" else {"dest_exchange": "nowhere"}
        set_shovel(
            console, f"lost-{protocol}", src_uri="amqp://", src_queue="a", dest_uri=f"amqp://127.0.0.1:{far.port}",
            dest_protocol=protocol, reconnect_delay=0, **more,
        )  # fmt: skip
        assert "nowhere" in wait_for_state(console, f"lost-{protocol}", "terminated")["reason"]


KILLED: Final = [("amqp10", "amqp10"), ("amqp010", "amqp010"), ("amqp10", "amqp010"), ("amqp010", "amqp10")]


@pytest.mark.parametrize(("source", "destination"), KILLED)
def test_nothing_is_lost_when_either_broker_is_killed(make_broker: BrokerMaker, source: str, destination: str) -> None:
    chance = random.Random(7)
    near, far = make_broker().start(), make_broker().start()
    ports = {near: near.port, far: far.port}
    declare(far, "b")
    fill(ports[near], "a", [])
    with managing(near.port) as console:
        uris = {"src_uri": "amqp://", "dest_uri": f"amqp://127.0.0.1:{far.port}"}
        set_shovel(console, "s", **uris, **ends(source, destination, "a", "b", src_prefetch_count=100))
    for kill in range(KILLS):
        begin, end = kill * len(BODIES) // KILLS, (kill + 1) * len(BODIES) // KILLS
        filling = threading.Thread(target=fill, args=(ports[near], "a", BODIES[begin:end]))
        filling.start()
        filling.join()
        victim = chance.choice((near, far))
        victim.kill()
        victim.launch("--port", str(ports[victim]))
        wait_until(lambda victim=victim: _answers(ports[victim]), "it is back")  # type: ignore[misc]

    def is_done() -> bool:
        with managing(ports[near]) as console:
            found = shovels(console).get("s", {})
        return found.get("state") == "running" and not found["pending"] and not depth(ports[near], "a")

    wait_until(is_done, "all have moved")
    numbers = [int(body) for _, _, body in drain(ports[far], "b")]
    assert set(numbers) == set(range(len(BODIES)))
    first = list(dict.fromkeys(numbers))
    assert first == sorted(first), "messages come in order the first time"


def _answers(port: int) -> bool:
    try:
        with managing(port) as console:
            shovels(console)
    except Exception:
        return False
    return True
