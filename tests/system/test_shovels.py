"""Shovels between brokers that run, and from one to itself."""

from __future__ import annotations

from collections.abc import Iterator

import pika
import pytest

from qstore.broker.management.console import AgentError
from qstore.broker.management.console.blocking import Console
from tests.support.running_broker import BrokerMaker, RunningBroker, make_broker, one_broker
from tests.system.shovels import (
    PERSISTENT,
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

one = pytest.fixture(one_broker, scope="module")
other = pytest.fixture(one_broker, scope="module")

BODIES = [b"%d" % number for number in range(200)]
LOCAL = "amqp:///%2F"


@pytest.fixture
def console(one: RunningBroker) -> Iterator[Console]:
    with managing(one.port) as console:
        yield console
        for name in shovels(console):
            delete_shovel(console, name)


def remote(broker: RunningBroker) -> str:
    return f"amqp://guest:guest@127.0.0.1:{broker.port}"


@pytest.mark.parametrize("mode", ["on-confirm", "on-publish", "no-ack"])
@pytest.mark.parametrize("direction", ["out", "in", "within"])
def test_a_shovel_moves_all_messages_in_order(
    one: RunningBroker, other: RunningBroker, console: Console, mode: str, direction: str
) -> None:
    places = {"out": (one, other), "in": (other, one), "within": (one, one)}
    source, destination = places[direction]
    name = f"{mode}-{direction}"
    fill(source.port, f"from-{name}", BODIES)
    uris = {one: LOCAL, other: remote(other)}
    set_shovel(
        console, name, src_uri=uris[source], src_queue=f"from-{name}", dest_uri=uris[destination],
        dest_queue=f"to-{name}", ack_mode=mode,
    )  # fmt: skip
    status = wait_for_state(console, name, "running")
    assert "guest" not in str(status)
    wait_until(lambda: depth(destination.port, f"to-{name}") == len(BODIES), "all messages have moved")
    wait_until(lambda: not shovels(console)[name]["pending"], "all are acknowledged")
    assert depth(source.port, f"from-{name}") == 0
    fill(source.port, f"from-{name}", [b"more"])
    wait_until(lambda: depth(destination.port, f"to-{name}") == len(BODIES) + 1, "later messages move, too")
    found = drain(destination.port, f"to-{name}")
    assert [body for _, _, body in found] == [*BODIES, b"more"]
    assert {properties.delivery_mode for _, properties, _ in found} == {2}
    assert shovels(console)[name]["forwarded"] == len(BODIES) + 1
    delete_shovel(console, name)
    assert name not in shovels(console)
    fill(source.port, f"from-{name}", [b"stays"])
    assert depth(source.port, f"from-{name}") == 1


@pytest.mark.parametrize(("after", "moved"), [("queue-length", 200), (7, 7)])
@pytest.mark.parametrize("mode", ["on-confirm", "on-publish"])
def test_a_shovel_is_deleted_after_a_number_of_messages(
    one: RunningBroker, other: RunningBroker, console: Console, after: object, moved: int, mode: str
) -> None:
    queue = f"ends-{after}-{mode}"
    fill(one.port, queue, BODIES)
    set_shovel(
        console, "ends", src_uri=LOCAL, src_queue=queue, dest_uri=remote(other), dest_queue=queue, ack_mode=mode,
        src_delete_after=after,
    )  # fmt: skip
    wait_until(lambda: "ends" not in shovels(console), "the shovel is deleted")
    assert [body for _, _, body in drain(other.port, queue)] == BODIES[:moved]
    wait_until(lambda: depth(one.port, queue) == len(BODIES) - moved, "the others are left")
    assert [body for _, _, body in drain(one.port, queue)] == BODIES[moved:]


def test_a_shovel_from_a_stream_goes_on_where_it_was(
    one: RunningBroker, other: RunningBroker, console: Console
) -> None:
    """The stream keeps the offset under the name that the shovel's consumer has, and keeps its messages."""
    with channel_to(other.port) as channel:
        channel.queue_declare("history", durable=True, arguments={"x-queue-type": "stream"})
        channel.confirm_delivery()
        for body in BODIES[:150]:
            channel.basic_publish("", "history", body, PERSISTENT)
    arguments = {"x-stream-offset": "first", "x-stream-consumer-name": "to-one"}
    given = {
        "src_uri": remote(other), "src_queue": "history", "src_queue_args": {"x-queue-type": "stream"},
        "src_consumer_args": arguments, "dest_uri": LOCAL, "dest_queue": "copied",
    }  # fmt: skip
    set_shovel(console, "history", **given)
    wait_until(lambda: depth(one.port, "copied") == 150, "all messages are copied")
    wait_until(lambda: not shovels(console)["history"]["pending"], "all are acknowledged")
    delete_shovel(console, "history")
    with channel_to(other.port) as channel:
        channel.confirm_delivery()
        for body in BODIES[150:]:
            channel.basic_publish("", "history", body, PERSISTENT)
    set_shovel(console, "history", **given)
    wait_until(lambda: depth(one.port, "copied") == len(BODIES), "the others are copied")
    assert [body for _, _, body in drain(one.port, "copied")] == BODIES
    assert depth(other.port, "history") == len(BODIES)


def test_a_shovel_from_a_stream_must_acknowledge(one: RunningBroker, other: RunningBroker, console: Console) -> None:
    with channel_to(one.port) as channel:
        channel.queue_declare("strict", durable=True, arguments={"x-queue-type": "stream"})
    set_shovel(
        console, "strict", src_uri=LOCAL, src_queue="strict", src_queue_args={"x-queue-type": "stream"},
        dest_uri=remote(other), dest_queue="q", ack_mode="no-ack",
    )  # fmt: skip
    status = wait_for_state(console, "strict", "terminated")
    assert "stream" in str(status), status


def test_attempts_that_fail_leave_no_connections_and_the_broker_can_be_stopped(
    make_broker: BrokerMaker, one: RunningBroker
) -> None:
    """The source is connected when the destination refuses; its attempt is then aborted at once."""
    broker = make_broker()
    broker.start()
    with managing(broker.port) as console:
        for number in range(5):
            set_shovel(
                console, f"refused{number}", src_uri=remote(one), src_queue="any", dest_uri="amqp://127.0.0.1:1",
                dest_queue="any", reconnect_delay=1,
            )  # fmt: skip
        for number in range(5):
            wait_for_state(console, f"refused{number}", "terminated")
    with managing(one.port) as console:
        wait_until(lambda: len(list(console.query("connection"))) == 1, "the aborted connections are closed")
    assert broker.stop() == 0


def test_a_shovel_of_an_empty_queue_is_deleted_at_once(one: RunningBroker, console: Console) -> None:
    fill(one.port, "empty", [])
    set_shovel(
        console, "empty", src_uri=LOCAL, src_queue="empty", dest_uri=LOCAL, dest_queue="q", delete_after="queue-length"
    )
    wait_until(lambda: "empty" not in shovels(console), "the shovel is deleted")


def test_messages_of_an_exchange_go_to_another_with_headers_and_properties(
    one: RunningBroker, other: RunningBroker, console: Console
) -> None:
    with channel_to(other.port) as channel:
        channel.exchange_declare("events", "topic", durable=True)
        channel.queue_declare("audit", durable=True)
        channel.queue_bind("audit", "events", "#")
    set_shovel(
        console, "events", src_uri=LOCAL, src_exchange="amq.topic", src_exchange_key="a.#", dest_uri=remote(other),
        dest_exchange="events", dest_add_forward_headers=True, add_timestamp_header=True,
        dest_publish_properties={"app_id": "shovel", "delivery_mode": 2},
    )  # fmt: skip
    wait_for_state(console, "events", "running")
    with channel_to(one.port) as channel:
        for key in ("a.b", "b", "a.c"):
            properties = pika.BasicProperties(headers={"own": 1}, message_id="m")
            channel.basic_publish("amq.topic", key, key.encode(), properties)
    wait_until(lambda: depth(other.port, "audit") == 2, "two messages match")
    found = drain(other.port, "audit")
    assert [(method.routing_key, body) for method, _, body in found] == [("a.b", b"a.b"), ("a.c", b"a.c")]
    properties = found[0][1]
    assert (properties.app_id, properties.delivery_mode, properties.message_id) == ("shovel", 2, "m")
    (header,) = properties.headers["x-shovelled"]
    assert properties.headers["own"] == 1
    assert properties.headers["x-shovelled-timestamp"] > 1_000_000_000
    assert header["src-exchange"] == "amq.topic"
    assert header["src-exchange-key"] == "a.#"
    assert header["dest-exchange"] == "events"
    assert header["shovel-name"] == "events"
    assert header["src-uri"] == "amqp://"
    assert "guest" not in header["dest-uri"]


def test_a_list_of_uris_is_tried_in_order(one: RunningBroker, other: RunningBroker, console: Console) -> None:
    fill(one.port, "listed", BODIES[:3])
    uris = ["amqp://127.0.0.1:1", "amqp://nobody:wrong@127.0.0.1:1/nowhere", remote(other)]
    set_shovel(console, "listed", src_uri=LOCAL, src_queue="listed", dest_uri=uris, dest_queue="listed")
    wait_until(lambda: depth(one.port, "listed") == 0, "the third URI works")
    wait_until(lambda: len(drain(other.port, "listed")) == 3, "all have moved")


def test_a_shovel_whose_broker_is_away_says_why_and_comes_back(
    make_broker: BrokerMaker, one: RunningBroker, console: Console
) -> None:
    away = make_broker().start()
    fill(one.port, "waits", BODIES[:5])
    away.stop()
    uri = f"amqp://u:secret-password@127.0.0.1:{away.port}"
    set_shovel(
        console, "waits", src_uri=LOCAL, src_queue="waits", dest_uri=uri, dest_queue="waits", reconnect_delay=0.2
    )
    status = wait_for_state(console, "waits", "terminated")
    assert "Connection refused" in status["reason"]
    assert f"amqp://127.0.0.1:{away.port}" in status["reason"]
    away.launch("--port", str(away.port))
    wait_until(lambda: shovels(console)["waits"]["forwarded"] == 5, "the messages have moved")
    assert len(drain(away.port, "waits")) == 5
    assert "secret-password" not in one.log_text()
    assert "secret-password" not in str(shovels(console))


def test_a_queue_that_is_full_makes_messages_wait_at_the_source(
    one: RunningBroker, other: RunningBroker, console: Console
) -> None:
    with channel_to(other.port) as channel:
        channel.queue_declare("small", durable=True, arguments={"x-max-length": 10, "x-overflow": "reject-publish"})
    fill(one.port, "big", BODIES)
    set_shovel(
        console, "full", src_uri=LOCAL, src_queue="big", dest_uri=remote(other), dest_queue="small",
        reconnect_delay=0.2, src_prefetch_count=20,
    )  # fmt: skip
    found: list[bytes] = []

    def has_all() -> bool:
        found.extend(body for _, _, body in drain(other.port, "small"))
        return len(found) >= len(BODIES)

    wait_until(has_all, "the queue is filled again and again")
    assert sorted(found, key=int) == BODIES
    assert depth(one.port, "big") == 0


def test_a_deleted_destination_loses_nothing(one: RunningBroker, other: RunningBroker, console: Console) -> None:
    set_shovel(
        console, "gone", src_uri=LOCAL, src_queue="gone", dest_uri=remote(other), dest_queue="gone",
        reconnect_delay=0.2,
    )  # fmt: skip
    wait_for_state(console, "gone", "running")
    with channel_to(other.port) as channel:
        channel.queue_delete("gone")
    fill(one.port, "gone", BODIES)
    wait_until(lambda: shovels(console)["gone"]["failures"] > 0, "the shovel notices")
    wait_until(lambda: shovels(console)["gone"]["pending"] == 0 and depth(one.port, "gone") == 0, "all have moved")
    assert [body for _, _, body in drain(other.port, "gone")] == BODIES


def test_large_and_empty_messages_move_unchanged(one: RunningBroker, other: RunningBroker, console: Console) -> None:
    bodies = [b"", b"x" * 3_000_000, b"y" * 200_000, b"z"] * 3
    fill(one.port, "large", bodies, PERSISTENT)
    set_shovel(console, "large", src_uri=LOCAL, src_queue="large", dest_uri=remote(other), dest_queue="large")
    wait_until(lambda: depth(one.port, "large") == 0, "all have moved")
    wait_until(lambda: depth(other.port, "large") == len(bodies), "all are there")
    assert [body for _, _, body in drain(other.port, "large")] == bodies


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({}, "'src-uri' not found"),
        ({"src_uri": LOCAL}, "'dest-uri' not found"),
        ({"src_uri": LOCAL, "dest_uri": LOCAL}, "Must specify"),
        ({"src_uri": "http://x", "dest_uri": LOCAL, "src_queue": "q"}, "amqp://"),
        ({"src_uri": "amqp://u:secret@h:port", "dest_uri": LOCAL, "src_queue": "q"}, "not a valid URI"),
        ({"src_uri": LOCAL, "dest_uri": LOCAL, "src_queue": "q", "src_exchange": "e"}, "Cannot specify"),
        ({"src_uri": LOCAL, "dest_uri": LOCAL, "src_queue": "q", "ack_mode": "maybe"}, "on-confirm"),
        ({"src_uri": LOCAL, "dest_uri": LOCAL, "src_queue": "q", "color": "red"}, "has no key"),
        ({"src_uri": LOCAL, "dest_uri": LOCAL, "src_queue": "q", "publish_properties": {"color": 1}}, "no property"),
        (
            {"src_uri": LOCAL, "dest_uri": LOCAL, "src_queue": "q", "ack_mode": "no-ack", "delete_after": 5},
            "Cannot specify 'no-ack'",
        ),
        ({"src_uri": "amqp://h?cacertfile=/etc/shadow", "dest_uri": LOCAL, "src_queue": "q"}, "--ssl-ca"),
    ],
)
def test_a_shovel_that_is_not_valid_is_refused(console: Console, value: dict[str, object], text: str) -> None:
    with pytest.raises(AgentError) as refused:
        set_shovel(console, "wrong", **value)
    assert text in str(refused.value)
    assert "secret" not in str(refused.value)
    assert "wrong" not in shovels(console)


def test_shovels_are_there_again_after_a_restart(make_broker: BrokerMaker) -> None:
    broker = make_broker().start()
    fill(broker.port, "a", BODIES)
    with managing(broker.port) as console:
        set_shovel(console, "kept", src_uri=LOCAL, src_queue="a", dest_uri=LOCAL, dest_queue="b")
        wait_for_state(console, "kept", "running")
        wait_until(lambda: depth(broker.port, "b") == len(BODIES), "all have moved")
    broker.restart()
    with managing(broker.port) as console:
        wait_for_state(console, "kept", "running")
    fill(broker.port, "a", [b"later"])
    found: list[bytes] = []

    def has_come() -> bool:
        found.extend(body for _, _, body in drain(broker.port, "b"))
        return b"later" in found

    wait_until(has_come, "the shovel works")
    # What was not acknowledged at the source when the broker stopped has come twice.
    assert set(found) == {*BODIES, b"later"}
    assert broker.stop() == 0
