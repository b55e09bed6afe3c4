"""Dead letters and AMQP 1.0: the annotation x-opt-deaths, and the header x-death of the other protocols."""

from __future__ import annotations

from typing import Any

import pytest

from qstore.formats.amqp_0_9_1.properties import Properties
from qstore.formats.amqp_1_0.composites import encode_composite
from qstore.formats.amqp_1_0.sections import (
    APPLICATION_PROPERTIES,
    MESSAGE_ANNOTATIONS,
    data_section,
    encode_section,
    section_value,
    split_sections,
)
from qstore.formats.amqp_1_0.values import Value
from qstore.formats.plain import plain_map
from qstore.formats.values import typed_map
from tests.broker.protocols.basic_client import BasicClient
from tests.broker.protocols.links_client import LinksClient
from tests.broker.protocols.world import World
from tests.support.sections_peer import REJECTED, Delivered

TO_DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
NACK = {"delivery_tag": 0, "multiple": True, "requeue": False}
START = 1_000_000


@pytest.fixture
def basic(world: World) -> BasicClient:
    client = BasicClient(world).open()
    client.call("queue.declare", queue="dead")
    client.call("queue.declare", queue="live", arguments=TO_DEAD)
    return client


def annotations_of(found: Delivered) -> dict[str, Value]:
    bounds = split_sections(found.content).annotations
    pairs = section_value(found.content, bounds).value if bounds[1] else ()
    assert all(key.type_name == "symbol" for key, _ in pairs)
    return {key.value: value for key, value in pairs}


def deaths_of(found: Delivered) -> list[dict[str, Value]]:
    array = annotations_of(found)["x-opt-deaths"]
    assert array.type_name == "array"
    assert {each.type_name for each in array.value} == {"map"}
    assert {key.type_name for each in array.value for key, _ in each.value} == {"symbol"}
    return [{key.value: value for key, value in each.value} for each in array.value]


def read_one(world: World, queue: str) -> Delivered:
    """The next message of a queue, for a client of AMQP 1.0."""
    (found,) = LinksClient(world).open().receiver(queue, credit=1, snd_settle_mode=1).messages()
    return found


def get(basic: BasicClient, queue: str) -> dict[str, Any]:
    """The headers of the next message of a queue, for a client of AMQP 0-9-1."""
    found = basic.call("basic.get", queue=queue, no_ack=True)
    assert found.properties is not None
    assert found.properties.headers is not None
    return plain_map(found.properties.headers)


def reject_one(client: LinksClient, queue: str, handle: int) -> None:
    client.receiver(queue, handle, credit=1)
    (found,) = client.messages()
    client.settle(REJECTED, found.id)
    client.sync()


def string(text: str) -> Value:
    return Value("string", text)


def first_death(**changes: Value) -> dict[str, Value]:
    return {
        "queue": string("live"),
        "reason": Value("symbol", "rejected"),
        "count": Value("ulong", 1),
        "first-time": Value("timestamp", 1000 * START),
        "last-time": Value("timestamp", 1000 * START),
        "exchange": string(""),
        "routing-keys": Value("array", (string("live"),)),
        **changes,
    }


NAMED = {
    f"x-{which}-death-{name}": text
    for which in ("first", "last")
    for name, text in (("queue", "live"), ("reason", "rejected"), ("exchange", ""))
}


def test_a_message_of_1_0_has_its_deaths_as_rabbitmq_writes_them(world: World, basic: BasicClient) -> None:
    client = LinksClient(world).open().sender("live")
    client.publish(b"x", header={"ttl": 5000})
    reject_one(client, "live", 1)
    found = read_one(world, "dead")
    assert deaths_of(found) == [first_death(ttl=Value("uint", 5000))]
    assert {name: value.value for name, value in annotations_of(found).items() if name != "x-opt-deaths"} == NAMED
    assert "x-death" not in annotations_of(found)


def test_deaths_at_one_place_are_counted_with_the_first_and_the_last_time(world: World, basic: BasicClient) -> None:
    client = LinksClient(world).open().sender("live")
    client.publish(b"x")
    for handle in (1, 2):
        reject_one(client, "live", handle)
        (found,) = client.receiver("dead", 10 + handle, credit=1).messages()
        world.now += 7
        client.publish(handle=0, message=found.content)
    reject_one(client, "live", 3)
    times = {"first-time": Value("timestamp", 1000 * START), "last-time": Value("timestamp", 1000 * (START + 14))}
    assert deaths_of(read_one(world, "dead")) == [first_death(count=Value("ulong", 3), **times)]


def test_a_client_of_0_9_1_gets_x_death(world: World, basic: BasicClient) -> None:
    client = LinksClient(world).open().sender("live")
    client.publish(b"x", header={"ttl": 5000})
    reject_one(client, "live", 1)
    death = {
        "queue": "live", "reason": "rejected", "count": 1, "time": START, "exchange": "", "routing-keys": ["live"],
        "original-expiration": "5000",
    }  # fmt: skip
    assert get(basic, "dead") == {"x-death": [death], **NAMED}


def test_a_client_of_1_0_gets_the_deaths_of_a_message_of_0_9_1(world: World, basic: BasicClient) -> None:
    basic.publish("live", b"x", Properties(expiration="5000", headers=typed_map({"own": 1})))
    basic.call("basic.get", queue="live")
    basic.method("basic.nack", **NACK)
    basic.sync()
    found = read_one(world, "dead")
    assert deaths_of(found) == [first_death(ttl=Value("uint", 5000))]
    annotations = annotations_of(found)
    assert {name: annotations[name].value for name in NAMED} == NAMED
    bounds = split_sections(found.content).application
    assert [key.value for key, _ in section_value(found.content, bounds).value] == ["own"]


@pytest.mark.parametrize("protocol", ["0-9-1", "1.0"])
def test_a_message_dies_under_both_protocols_in_turn(world: World, basic: BasicClient, protocol: str) -> None:
    """Its deaths and the times of the last ones stay exact, whichever protocol it was sent with."""
    back = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "live", "x-message-ttl": 1000}
    basic.call("queue.declare", queue="wait", arguments=back)
    to_wait = {**TO_DEAD, "x-dead-letter-routing-key": "wait"}
    basic.call("queue.delete", queue="live")
    basic.call("queue.declare", queue="live", arguments=to_wait)
    client = LinksClient(world).open().sender("live")
    if protocol == "1.0":
        client.publish(b"x")
    else:
        basic.publish("live", b"x")
    for handle in (1, 2):
        if handle == 1:
            reject_one(client, "live", handle)
        else:
            basic.call("basic.get", queue="live")
            basic.method("basic.nack", **NACK)
            basic.sync()
        world.now += 2
        world.broker.default_host.queues["wait"].expire()
        world.run()
    client.receiver("live", 5, credit=1)
    (found,) = client.messages()
    expired, rejected = deaths_of(found)
    assert (expired["queue"].value, expired["reason"].value, expired["count"].value) == ("wait", "expired", 2)
    assert (expired["first-time"].value, expired["last-time"].value) == (1000 * (START + 2), 1000 * (START + 4))
    assert (rejected["first-time"].value, rejected["last-time"].value) == (1000 * START, 1000 * (START + 2))
    client.do("detach", handle=5, closed=True)
    client.sync()
    headers = get(basic, "live")
    assert [(each["time"], each["last-time"]) for each in headers["x-death"]] == [
        (START + 2, START + 4), (START, START + 2)
    ]  # fmt: skip


def test_an_automatic_cycle_ends_whatever_the_sender_has_set(world: World, basic: BasicClient) -> None:
    """An application property x-death does not hide that the message has died."""
    to_each_other = {
        name: {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": other, "x-message-ttl": 1000}
        for name, other in (("a", "b"), ("b", "a"))
    }
    for name, arguments in to_each_other.items():
        basic.call("queue.declare", queue=name, arguments=arguments)
    pairs = ((string("x-death"), string("none")),)
    message = encode_composite("header", {}) + encode_section(APPLICATION_PROPERTIES, Value("map", pairs))
    LinksClient(world).open().sender("a").publish(message=message + data_section(1) + b"x")
    world.run()
    for name in ("a", "b", "a", "b"):
        world.now += 2
        world.broker.default_host.queues[name].expire()
        world.run()
    assert [world.broker.default_host.queues[name].message_count for name in ("a", "b")] == [0, 0]


def test_other_annotations_keep_their_types_when_a_message_dies(world: World, basic: BasicClient) -> None:
    pairs = (
        (Value("symbol", "x-opt-s"), Value("symbol", "s")),
        (Value("symbol", "x-opt-t"), Value("timestamp", 1_234)),
        (Value("symbol", "x-opt-deaths"), string("mine")),
    )
    message = encode_composite("header", {}) + encode_section(MESSAGE_ANNOTATIONS, Value("map", pairs))
    client = LinksClient(world).open().sender("live")
    client.publish(message=message + data_section(1) + b"x")
    reject_one(client, "live", 1)
    found = read_one(world, "dead")
    annotations = annotations_of(found)
    assert (annotations["x-opt-s"], annotations["x-opt-t"]) == (pairs[0][1], pairs[1][1])
    assert deaths_of(found) == [first_death()]


def test_malformed_entries_of_clients_are_kept(world: World, basic: BasicClient) -> None:
    entries = [{"count": -1, "reason": "\xe9", "time": "now", "routing-keys": [], "original-expiration": "soon"}]
    basic.publish("dead", b"x", Properties(headers=typed_map({"x-death": entries})))
    basic.publish("dead", b"y", Properties(headers=typed_map({"x-death": [1]})))
    client = LinksClient(world).open().receiver("dead", credit=2)
    first, second = client.messages()
    assert {name: value.value for name, value in deaths_of(first)[0].items()} == {
        "count": -1, "reason": "\xe9", "time": "now", "last-time": "now", "routing-keys": (),
        "original-expiration": "soon",
    }  # fmt: skip
    assert annotations_of(second)["x-death"].type_name == "list"
