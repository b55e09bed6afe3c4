"""Selectors of bindings, and of consumers of AMQP 0-9-1; consumers that only read, or end when there is nothing."""

from __future__ import annotations

from typing import Any

import pytest

from qstore.broker.model.exchanges.matching import MAX_STEPS
from qstore.broker.model.topology import topology
from qstore.formats.amqp_0_9_1.properties import Properties
from qstore.formats.values import typed_map
from tests.broker.protocols.basic_client import BasicClient
from tests.broker.protocols.world import World
from tests.support.compiled import replaces

RED, BLUE = Properties(headers=typed_map({"colour": "red"})), Properties(headers=typed_map({"colour": "blue"}))
IS_RED, IS_BLUE = "colour = 'red'", "colour = 'blue'"


@pytest.fixture
def client(world: World) -> BasicClient:
    client = BasicClient(world).open(1, 2, 3)
    for name in "abc":
        client.call("queue.declare", queue=name)
    client.take()
    return client


def on(world: World, name: str) -> list[bytes]:
    return [bytes(entry.message.whole().body) for entry in world.broker.default_host.queues[name].entries()]


def bind(client: BasicClient, exchange: str, queue: str, key: str, selector: str = "", channel: int = 1) -> str:
    arguments = {"x-filter-jms-selector": selector} if selector else {}
    answer = client.call("queue.bind", channel, queue=queue, exchange=exchange, routing_key=key, arguments=arguments)
    return "" if answer.name == "queue.bind-ok" else str(answer.values["reply_text"])


def send(client: BasicClient, exchange: str, key: str) -> None:
    for properties, body in ((RED, b"red"), (BLUE, b"blue"), (Properties(), b"none")):
        client.publish(key, body, properties, exchange=exchange)
    client.sync()


# ---- bindings ----


@pytest.mark.parametrize("exchange", ["amq.direct", "amq.topic", "amq.fanout"])
def test_a_binding_counts_for_messages_that_its_selector_matches(
    world: World, client: BasicClient, exchange: str
) -> None:
    bind(client, exchange, "a", "k", IS_RED)
    bind(client, exchange, "b", "k")
    send(client, exchange, "k")
    assert (on(world, "a"), on(world, "b")) == ([b"red"], [b"red", b"blue", b"none"])
    matched = {
        each.queue.name: each.messages_matched for each in world.broker.default_host.exchanges[exchange].bindings
    }
    assert matched == {"a": 1, "b": 3}


def test_criteria_and_a_selector_must_both_match(world: World, client: BasicClient) -> None:
    given = {"x-match": "all", "colour": "red", "x-filter-jms-selector": "kind = 't'"}
    client.call("queue.bind", queue="a", exchange="amq.match", routing_key="", arguments=given)
    for kind in ("t", "u"):
        for colour in ("red", "blue"):
            headers = typed_map({"colour": colour, "kind": kind})
            client.publish("", f"{colour} {kind}".encode(), Properties(headers=headers), exchange="amq.match")
    client.sync()
    assert on(world, "a") == [b"red t"]


def test_one_of_several_bindings_of_a_queue_is_enough_and_it_gets_a_message_once(
    world: World, client: BasicClient
) -> None:
    for number, (key, selector) in enumerate(
        (("a.*", IS_RED), ("*.b", IS_BLUE), ("#", "colour IS NULL"), ("a.#", IS_RED))
    ):
        assert bind(client, "amq.topic", "a", key, selector) == "", number
    send(client, "amq.topic", "a.b")
    send(client, "amq.topic", "x")
    assert on(world, "a") == [b"red", b"blue", b"none", b"none"]


def test_messages_read_together_are_selected_together(world: World, client: BasicClient) -> None:
    bind(client, "amq.direct", "a", "k", IS_RED)
    client.send(b"".join(client.message("k", b"%d" % number, RED, exchange="amq.direct") for number in range(50)))
    client.send(b"".join(client.message("k", b"%d" % number, BLUE, exchange="amq.direct") for number in range(50)))
    client.sync()
    assert on(world, "a") == [b"%d" % number for number in range(50)]


def test_without_selectors_an_exchange_routes_by_key_again(world: World, client: BasicClient) -> None:
    exchange = world.broker.default_host.exchanges["amq.direct"]
    bind(client, "amq.direct", "a", "k")
    assert exchange.routes_by_key
    bind(client, "amq.direct", "b", "k", IS_RED)
    assert not exchange.routes_by_key
    client.call("queue.unbind", queue="b", exchange="amq.direct", routing_key="k")
    assert exchange.routes_by_key
    bind(client, "amq.direct", "c", "k", IS_RED)
    client.call("queue.delete", queue="c")
    assert exchange.routes_by_key
    send(client, "amq.direct", "k")
    assert (on(world, "a"), on(world, "b")) == ([b"red", b"blue", b"none"], [])


def test_selectors_end_at_the_most_steps_for_a_message_and_not_after_all_of_them(
    world: World, client: BasicClient
) -> None:
    selector = " or ".join(["b like '%x%y%z%'"] * 100)
    for name in map(str, range(100)):
        client.call("queue.declare", queue=name)
        bind(client, "amq.direct", name, "k", selector)
    exchange = world.broker.default_host.exchanges["amq.direct"]
    client.publish("k", b"x", Properties(headers=typed_map({"b": "xyxyxyxyxy" * 20})), exchange="amq.direct")
    client.sync()
    assert "the selectors take more than 20,000 steps" in str(client.take("channel.close")[0].values["reply_text"])
    assert MAX_STEPS < exchange.steps < 1.2 * MAX_STEPS


def test_the_exchanges_are_looked_through_for_the_first_selector_alone(
    client: BasicClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[object] = []
    monkeypatch.setattr(topology, "refresh", looks.append)
    for name in "abc":
        bind(client, "amq.topic", name, "k", IS_RED)
    assert len(looks) == 1


def test_another_selector_for_the_same_key_is_refused(world: World, client: BasicClient) -> None:
    assert bind(client, "amq.topic", "a", "k", IS_RED) == ""
    assert bind(client, "amq.topic", "a", "k", IS_RED) == ""
    assert "another selector" in bind(client, "amq.topic", "a", "k", IS_BLUE)
    assert "another selector" in bind(client, "amq.topic", "a", "k", "", 2)
    assert "not a selector" in bind(client, "amq.topic", "b", "k", "colour =", 3)
    send(BasicClient(world).open(), "amq.topic", "k")
    assert on(world, "a") == [b"red"]


@pytest.mark.parametrize("kind", ["x-random", "x-consistent-hash", "x-modulus-hash"])
def test_exchanges_that_choose_a_queue_have_no_selectors(client: BasicClient, kind: str) -> None:
    client.call("exchange.declare", exchange="x", type=kind)
    assert "have no selectors" in bind(client, "x", "a", "1", IS_RED)


def test_bindings_between_exchanges_have_no_selectors_and_see_those_of_others(
    world: World, client: BasicClient
) -> None:
    client.call("exchange.declare", exchange="x", type="fanout")
    client.call("exchange.bind", destination="x", source="amq.topic", routing_key="k")
    bind(client, "x", "a", "", IS_RED)
    send(client, "amq.topic", "k")
    assert on(world, "a") == [b"red"]
    client.call("queue.unbind", queue="a", exchange="x", routing_key="")
    bind(client, "x", "a", "")
    send(client, "amq.topic", "k")
    assert on(world, "a") == [b"red", b"red", b"blue", b"none"]
    given = {"x-filter-jms-selector": IS_RED}
    answer = client.call("exchange.bind", destination="x", source="amq.topic", routing_key="l", arguments=given)
    assert "have no selectors" in str(answer.values["reply_text"])


def test_unselected_messages_go_to_the_alternate_exchange_or_come_back(world: World, client: BasicClient) -> None:
    client.call("exchange.declare", exchange="x", type="direct", arguments={"alternate-exchange": "amq.fanout"})
    bind(client, "x", "a", "k", IS_RED)
    bind(client, "amq.fanout", "b", "")
    send(client, "x", "k")
    assert (on(world, "a"), on(world, "b")) == ([b"red"], [b"blue", b"none"])
    client.call("queue.unbind", queue="b", exchange="amq.fanout", routing_key="")
    client.publish("k", b"back", BLUE, exchange="x", mandatory=True)
    assert [each.body for each in client.take("basic.return")] == [b"back"]


def test_selectors_that_take_too_long_are_an_error(world: World) -> None:
    client = BasicClient(world).open(frame_max=65_536)
    selector = " OR ".join(["colour LIKE '%a%b%c%'"] * 200)
    for number in range(30):
        client.call("queue.declare", queue=f"q{number}")
        bind(client, "amq.direct", f"q{number}", "k", selector)
    client.publish("k", b"x", Properties(headers=typed_map({"colour": "ab" * 2000})), exchange="amq.direct")
    assert "selectors take more than" in str(client.take("channel.close")[0].values["reply_text"])


def test_bindings_of_0_10_have_selectors(world: World) -> None:
    client = world.open_client()
    for name, selector in (("a", IS_RED), ("b", IS_BLUE)):
        client.declare(name)
        arguments = typed_map({"x-filter-jms-selector": selector})
        client.command("exchange.bind", queue=name, exchange="amq.topic", binding_key="k", arguments=arguments)
    other = BasicClient(world).open()
    send(other, "amq.topic", "k")
    assert (on(world, "a"), on(world, "b")) == ([b"red"], [b"blue"])


# ---- consumers of AMQP 0-9-1 ----


def consume(client: BasicClient, tag: str, channel: int = 1, /, no_ack: bool = True, **arguments: Any) -> None:
    given = {name.replace("_", "-"): value for name, value in arguments.items()}
    client.method("basic.consume", channel, queue="a", consumer_tag=tag, no_ack=no_ack, arguments=given)
    client.sync()


def got(client: BasicClient) -> list[tuple[str, bytes]]:
    return [(str(each.values["consumer_tag"]), bytes(each.body)) for each in client.take("basic.deliver")]


def test_consumers_of_0_9_1_have_selectors(world: World, client: BasicClient) -> None:
    consume(client, "red", x_filter_jms_selector=IS_RED)
    consume(client, "blue", x_apache_selector=IS_BLUE)
    for _ in range(2):
        send(client, "", "a")
    assert sorted(got(client)) == [("blue", b"blue")] * 2 + [("red", b"red")] * 2
    assert on(world, "a") == [b"none"] * 2
    consume(client, "all")
    assert got(client) == [("all", b"none")] * 2


def test_a_selector_holds_with_prefetch_acknowledgements_and_priorities(world: World, client: BasicClient) -> None:
    client.call("basic.qos", prefetch_count=1)
    consume(client, "red", no_ack=False, x_filter_jms_selector=IS_RED, x_priority=5)
    consume(client, "any", 2, no_ack=False, x_priority=1)
    for _ in range(2):
        send(client, "", "a")
    first = client.take("basic.deliver")
    assert sorted(
        (each.values["consumer_tag"], each.body) for each in first if each.values["consumer_tag"] == "red"
    ) == [("red", b"red")]
    client.method("basic.ack", delivery_tag=1)
    again = got(client)
    assert ("red", b"red") in again or ("any", b"red") in [
        (str(each.values["consumer_tag"]), each.body) for each in first
    ]


@pytest.mark.parametrize("protocol", ["0-9-1", "0-10"])
def test_a_consumer_that_does_not_consume_leaves_messages(world: World, client: BasicClient, protocol: str) -> None:
    send(client, "", "a")
    if protocol == "0-9-1":
        consume(client, "reads", no_ack=False, x_filter_no_consume=True)
        assert got(client) == [("reads", b"red"), ("reads", b"blue"), ("reads", b"none")]
        client.method("basic.ack", delivery_tag=3, multiple=True)
        client.sync()
    else:
        modern = world.open_client()
        given = typed_map({"x-filter-no-consume": True})
        modern.command("message.subscribe", queue="a", destination="d", accept_mode=1, acquire_mode=0, arguments=given)
        for unit in (0, 1):
            modern.command("message.flow", destination="d", unit=unit, value=0xFFFFFFFF)
        modern.sync()
        assert modern.take() == [b"red", b"blue", b"none"]
    assert on(world, "a") == [b"red", b"blue", b"none"]


@pytest.mark.parametrize("no_ack", [True, False])
@pytest.mark.parametrize("browses", [True, False])
def test_a_consumer_closes_when_there_is_nothing_for_it(
    world: World, client: BasicClient, no_ack: bool, browses: bool
) -> None:
    for _ in range(3):
        send(client, "", "a")
    consume(client, "once", no_ack=no_ack, x_filter_auto_close=True, x_filter_no_consume=browses)
    came = client.take()
    assert [each.name for each in came] == ["basic.consume-ok", *["basic.deliver"] * 9, "basic.cancel"]
    assert world.broker.default_host.queues["a"].consumer_count == 0
    assert len(on(world, "a")) == (9 if browses or not no_ack else 0)


def test_one_that_closes_waits_for_credit_for_what_is_left(world: World, client: BasicClient) -> None:
    for _ in range(2):
        send(client, "", "a")
    client.call("basic.qos", prefetch_count=2)
    consume(client, "once", no_ack=False, x_filter_auto_close=True, x_filter_jms_selector="colour IS NOT NULL")
    for expected in ([b"red", b"blue"], [b"red", b"blue"]):
        came = client.take()
        assert [each.body for each in came if each.name == "basic.deliver"] == expected
        assert "basic.cancel" not in [each.name for each in came]
        client.method("basic.ack", delivery_tag=0, multiple=True)
    assert [each.name for each in client.take()] == ["basic.cancel"]
    assert on(world, "a") == [b"none"] * 2


@replaces
def test_many_that_close_at_once_do_so_in_turns(
    world: World, client: BasicClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qstore.broker.protocols.amqp_0_9_1.channel.ENDED_AT_ONCE", 3)
    client.call("queue.declare", queue="none")
    client.call("basic.qos", prefetch_count=1, **{"global": True})
    client.publish("a", b"x")
    consume(client, "one", no_ack=False)
    for number in range(10):
        arguments = typed_map({"x-filter-auto-close": True})
        client.method("basic.consume", queue="none", consumer_tag=f"{number}", arguments=arguments)
    assert not client.take("basic.cancel")
    client.method("basic.ack", delivery_tag=0, multiple=True)
    world.broker.tick.end()
    assert 7 <= world.broker.default_host.queues["none"].consumer_count < 10
    assert len(client.take("basic.cancel")) == 10


def test_persistent_messages_that_wait_for_the_disk_are_not_missed(world: World) -> None:
    client = BasicClient(world).open()
    client.call("queue.declare", queue="a", durable=True)
    client.send(
        b"".join(client.message("a", b"%d" % number) for number in range(20))
        + client.encode("basic.consume", 1, queue="a", no_ack=True, arguments={"x-filter-auto-close": True})
    )
    came = client.take()
    assert [each.name for each in came].count("basic.deliver") == 20
    assert came[-1].name == "basic.cancel"


def test_a_client_that_knows_no_basic_cancel_gets_the_answer_of_the_java_broker(world: World) -> None:
    client = BasicClient(world, capabilities={}).open()
    client.call("queue.declare", queue="a")
    consume(client, "once", x_filter_auto_close=True)
    assert [each.name for each in client.take("basic.cancel", "basic.cancel-ok")] == ["basic.cancel-ok"]
