"""Exchanges as RabbitMQ's plug-ins have them, and those of type xml: what they route, over each protocol."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from qstore.broker.log.logs import INFO
from qstore.broker.model import xquery
from qstore.broker.model.arguments import DELAYED_TYPE, HASH_HEADER, HASH_PROPERTY, HISTORY_LENGTH
from qstore.broker.model.exchanges import dividing
from qstore.broker.model.exchanges.history import MAX_LENGTH
from qstore.broker.model.exchanges.plugged import Bound, PluggedExchange, Published
from qstore.broker.model.exchanges.types import exchange_type
from qstore.broker.model.run import RunEntry
from qstore.formats.amqp_0_9_1.properties import Properties
from qstore.formats.amqp_1_0.values import Described, Value
from qstore.formats.values import MAX_VALUES, typed_map
from tests.broker.exchange_parts import fake_queues, routed
from tests.broker.federation.linked import Linked
from tests.broker.protocols.basic_client import BasicClient
from tests.broker.protocols.links_client import LinksClient
from tests.broker.protocols.world import World
from tests.support.compiled import replaces

TOO_MANY_VALUES = b"\0\x53\x77\xd0%b%b" % ((MAX_VALUES + 4).to_bytes(4), MAX_VALUES.to_bytes(4)) + b"\x40" * MAX_VALUES
"""A message of AMQP 1.0: a list as its value."""


@pytest.fixture
def client(world: World) -> BasicClient:
    client = BasicClient(world).open()
    for name in "abc":
        client.call("queue.declare", queue=name, durable=True)
    client.take()
    return client


def declare(client: BasicClient, kind: str, name: str = "x", /, **arguments: Any) -> str:
    given = {each.replace("_", "-"): value for each, value in arguments.items()}
    answer = client.call("exchange.declare", exchange=name, type=kind, durable=True, arguments=given)
    return "" if answer.name == "exchange.declare-ok" else str(answer.values["reply_text"])


def bind(client: BasicClient, queue: str, key: str = "", /, **arguments: Any) -> str:
    answer = client.call("queue.bind", queue=queue, exchange="x", routing_key=key, arguments=arguments)
    return "" if answer.name == "queue.bind-ok" else str(answer.values["reply_text"])


def on(world: World, name: str) -> list[bytes]:
    found = world.broker.default_host.queues[name]
    return [bytes(entry.message.whole().body) for entry in found.entries()]


def keys_on(world: World, name: str) -> set[str]:
    return {entry.message.routing_key for entry in world.broker.default_host.queues[name].entries()}


def properties(**headers: Any) -> Properties:
    return Properties(delivery_mode=2, headers=typed_map(headers))


# ---- x-consistent-hash ----


def test_equal_keys_go_to_one_queue_and_weights_divide_them(world: World, client: BasicClient) -> None:
    assert declare(client, "x-consistent-hash") == ""
    assert [bind(client, "a", "1"), bind(client, "b", "3")] == ["", ""]
    for number in range(400):
        client.publish(f"key-{number}", b"1", exchange="x")
        client.publish(f"key-{number}", b"2", exchange="x")
    client.sync()
    counts = {name: len(on(world, name)) for name in "ab"}
    assert sum(counts.values()) == 800
    assert 140 <= counts["a"] <= 260
    assert not keys_on(world, "a") & keys_on(world, "b")


@pytest.mark.parametrize("key", ["", "0", "-1", "x", "1.5", "1000001", "\u0661"])
def test_a_weight_is_a_positive_integer(client: BasicClient, key: str) -> None:
    declare(client, "x-consistent-hash")
    assert "binding key must be" in bind(client, "a", key)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"hash_header": "h", "hash_property": "message_id"}, "mutually exclusive"),
        ({"hash_property": "app_id"}, "Unsupported property"),
        ({"hash_header": 5}, "hash-header"),
    ],
)
def test_what_an_exchange_may_hash(client: BasicClient, arguments: dict[str, Any], why: str) -> None:
    assert why in declare(client, "x-consistent-hash", **arguments)


@pytest.mark.parametrize(
    ("argument", "make"),
    [
        ({"hash_header": "h"}, lambda number: properties(h=number)),
        ({"hash_property": "message_id"}, lambda number: Properties(message_id=f"m{number}")),
        ({"hash_property": "correlation_id"}, lambda number: Properties(correlation_id=f"m{number}")),
        ({"hash_property": "timestamp"}, lambda number: Properties(timestamp=1_000_000 + number)),
    ],
    ids=["header", "message_id", "correlation_id", "timestamp"],
)
def test_a_header_or_a_property_can_count_instead_of_the_key(
    world: World, client: BasicClient, argument: dict[str, Any], make: Any
) -> None:
    assert declare(client, "x-consistent-hash", **argument) == ""
    for name in "ab":
        assert bind(client, name, "1") == ""
    for number in range(100):
        for key in ("one", "two"):
            client.publish(key, b"%d" % number, make(number), exchange="x")
    client.sync()
    found = {name: Counter(on(world, name)) for name in "ab"}
    assert set(found["a"].values()) == set(found["b"].values()) == {2}
    assert sum(map(len, found.values())) == 100
    for _ in range(5):
        client.publish("k", b"without", Properties(), exchange="x")
    client.sync()
    assert sorted(Counter(on(world, name))[b"without"] for name in "ab") == [0, 5]


def test_a_run_by_header_is_routed_at_once(world: World, client: BasicClient) -> None:
    declare(client, "x-consistent-hash", hash_header="h")
    bind(client, "a", "1")
    client.send(b"".join(client.message("k", b"x", properties(h=1), exchange="x") for _ in range(64)))
    client.sync()
    queue = world.broker.default_host.queues["a"]
    assert any(isinstance(part, RunEntry) for part in queue.order.parts())
    assert len(on(world, "a")) == 64


def test_a_queue_that_comes_or_goes_moves_only_its_share() -> None:
    exchange = exchange_type("x-consistent-hash")("x")
    queues = fake_queues("abcd")
    for queue in queues[:3]:
        exchange.bind(queue, "1")
    before = {number: routed(exchange, str(number)) for number in range(300)}
    exchange.bind(queues[3], "1")
    after = {number: routed(exchange, str(number)) for number in range(300)}
    moved = [number for number in before if before[number] != after[number]]
    assert {after[number] for number in moved} == {"d"}
    assert 40 <= len(moved) <= 110
    exchange.unbind(queues[3], "1")
    assert {number: routed(exchange, str(number)) for number in range(300)} == before


@replaces
def test_the_number_of_bindings_is_limited(client: BasicClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dividing, "MAX_BINDINGS", 1)
    declare(client, "x-consistent-hash")
    assert bind(client, "a", "1") == ""
    assert "maximum" in bind(client, "b", "1")


# ---- x-modulus-hash, x-random ----


def test_modulus_hash_divides_by_the_key_alone(world: World, client: BasicClient) -> None:
    declare(client, "x-modulus-hash")
    for name in "abc":
        bind(client, name, name)
        bind(client, name, "again")
    for number in range(150):
        client.publish(f"key-{number}", exchange="x")
        client.publish(f"key-{number}", exchange="x")
    client.sync()
    found = [keys_on(world, name) for name in "abc"]
    assert sum(map(len, found)) == len(set().union(*found)) == 150
    assert min(map(len, found)) > 30
    assert sum(len(on(world, name)) for name in "abc") == 300


def test_modulus_hash_numbers_the_queues_by_their_names_whatever_came_before() -> None:
    queues = fake_queues("cabd")
    exchange, fresh = exchange_type("x-modulus-hash")("x"), exchange_type("x-modulus-hash")("y")
    for queue in queues:
        exchange.bind(queue, "1")
        exchange.bind(queue, "2")
    for key in ("1", "2"):
        exchange.unbind(queues[3], key)
        exchange.unbind(queues[1], key)
    exchange.bind(queues[1], "1")
    exchange.unbind(queues[0], "1")
    for queue in sorted(queues[:3], key=lambda each: each.name):
        fresh.bind(queue, "1")
    keys = [f"key-{number}" for number in range(50)]
    assert [routed(exchange, key) for key in keys] == [routed(fresh, key) for key in keys]
    assert {name for key in keys for name in routed(exchange, key)} == {"a", "b", "c"}


@pytest.mark.parametrize("kind", ["x-random", "x-local-random"])
def test_random_takes_one_of_the_queues(world: World, client: BasicClient, kind: str) -> None:
    declare(client, kind)
    for name in "abc":
        bind(client, name, name)
    client.send(b"".join(client.message("k", b"%03d" % number, exchange="x") for number in range(300)))
    client.sync()
    found = [on(world, name) for name in "abc"]
    assert sorted(body for each in found for body in each) == [b"%03d" % number for number in range(300)]
    assert min(map(len, found)) > 60
    client.call("queue.unbind", queue="a", exchange="x", routing_key="a")
    client.send(b"".join(client.message("k", b"x", exchange="x") for _ in range(50)))
    client.sync()
    assert len(on(world, "a")) == len(found[0])


@pytest.mark.parametrize("kind", ["x-consistent-hash", "x-modulus-hash", "x-random", "xml"])
def test_they_can_be_bound_to_others_and_not_the_other_way_round(world: World, client: BasicClient, kind: str) -> None:
    declare(client, kind)
    given = {"xquery": "./a"} if kind == "xml" else {}
    bind(client, "a", "1", **given)
    client.call("exchange.declare", exchange="f", type="fanout")
    assert client.call("exchange.bind", destination="x", source="f", routing_key="").name == "exchange.bind-ok"
    for number in range(3):
        client.publish("1", b"<a>%d</a>" % number, exchange="f")
    client.publish("1", b"<b/>", exchange="f")
    client.sync()
    assert len(on(world, "a")) == (3 if kind == "xml" else 4)
    answer = client.call("exchange.bind", destination="f", source="x", routing_key="1")
    assert "other exchanges cannot be bound to it" in str(answer.values["reply_text"])


# ---- x-recent-history ----


def test_a_new_binding_gets_the_latest_messages_in_order(world: World, client: BasicClient) -> None:
    assert declare(client, "x-recent-history", x_recent_history_length=3) == ""
    bind(client, "a")
    for number in range(5):
        client.publish("k", b"%d" % number, exchange="x")
    client.publish("k", b"unkept", properties(**{"x-recent-history-no-store": True}), exchange="x")
    client.sync()
    assert on(world, "a") == [b"0", b"1", b"2", b"3", b"4", b"unkept"]
    bind(client, "b")
    client.publish("k", b"5", exchange="x")
    client.sync()
    assert on(world, "b") == [b"2", b"3", b"4", b"5"]
    bind(client, "b", "another key is the same binding")
    assert on(world, "b") == [b"2", b"3", b"4", b"5"]


def test_a_history_is_offered_in_turns_and_what_comes_meanwhile_is_neither_missed_nor_doubled(
    world: World, client: BasicClient
) -> None:
    declare(client, "x-recent-history", x_recent_history_length=500)
    sizes = [100_000] * 30 + [10] * 300
    for number, size in enumerate(sizes):
        client.publish("k", (b"%d " % number).ljust(size), exchange="x")
    client.sync()

    async def story() -> int:
        topology, turns = world.broker.default_host.topology, 0
        bound = asyncio.ensure_future(topology.bind("b", "x", ""))
        while not bound.done():
            await asyncio.sleep(0)
            turns += 1
            client.publish("k", b"%d " % (len(sizes) + turns - 1), exchange="x")
            world.run()
        return turns

    turns = asyncio.run(story())
    assert turns > 4
    assert [int(body) for body in on(world, "b")] == list(range(len(sizes) + turns))
    queue = world.broker.default_host.queues["b"]
    assert list(queue.bound_to) == [world.broker.default_host.exchanges["x"]]


def test_history_keeps_20_messages_and_what_no_queue_gets(world: World, client: BasicClient) -> None:
    declare(client, "x-recent-history")
    for number in range(30):
        client.publish("k", b"%02d" % number, exchange="x", mandatory=True)
    assert len(client.take("basic.return")) == 30
    bind(client, "a")
    assert on(world, "a") == [b"%02d" % number for number in range(10, 30)]


@pytest.mark.parametrize("length", [0, -1, MAX_LENGTH + 1, "3", True])
def test_the_length_of_a_history_is_checked(client: BasicClient, length: Any) -> None:
    assert HISTORY_LENGTH in declare(client, "x-recent-history", x_recent_history_length=length)


def test_a_transaction_is_in_the_history_when_it_is_committed(world: World, client: BasicClient) -> None:
    declare(client, "x-recent-history")
    client.call("tx.select")
    client.publish("k", b"rolled back", exchange="x")
    client.call("tx.rollback")
    client.publish("k", b"committed", exchange="x")
    bind(client, "a")
    assert on(world, "a") == []
    client.call("tx.commit")
    bind(client, "b")
    assert (on(world, "a"), on(world, "b")) == ([], [b"committed"])


def test_no_client_can_use_the_queue_of_a_history(world: World, client: BasicClient) -> None:
    declare(client, "x-recent-history")
    history = world.broker.default_host.queues["amq.history.x"]
    client.publish("amq.history.x", b"forged")
    client.sync()
    assert history.message_count == 0
    for number, (name, values) in enumerate(
        {
            "basic.get": {"queue": "amq.history.x"}, "queue.purge": {"queue": "amq.history.x"},
            "queue.delete": {"queue": "amq.history.x"}, "basic.consume": {"queue": "amq.history.x"},
            "queue.bind": {"queue": "amq.history.x", "exchange": "amq.topic", "routing_key": "#"},
            "queue.declare": {"queue": "amq.history.x", "durable": True},
        }.items(), 2,
    ):  # fmt: skip
        assert client.call("channel.open", number).name == "channel.open-ok"
        assert client.call(name, number, **values).name == "channel.close", name
    assert world.broker.default_host.queues["amq.history.x"] is history


def test_a_history_that_is_full_raises_no_alert(
    world: World, client: BasicClient, caplog: pytest.LogCaptureFixture
) -> None:
    declare(client, "x-recent-history", x_recent_history_length=5)
    for number in range(8):
        client.publish("k", b"%d" % number, exchange="x")
    client.sync()
    assert world.broker.default_host.queues["amq.history.x"].message_count == 5
    assert "alert" not in caplog.text


def test_the_history_ends_with_its_exchange(world: World, client: BasicClient) -> None:
    declare(client, "x-recent-history")
    client.publish("k", b"old", exchange="x")
    client.sync()
    client.call("exchange.delete", exchange="x")
    assert "amq.history.x" not in world.broker.default_host.queues
    declare(client, "x-recent-history")
    bind(client, "a")
    assert on(world, "a") == []
    assert "too long" in declare(client, "x-recent-history", "x" * 250)


def test_a_history_of_another_protocols_messages(world: World, client: BasicClient) -> None:
    declare(client, "x-recent-history")
    links = LinksClient(world).open()
    links.sender("/exchanges/x/k")
    links.publish(b"of 1.0")
    links.sync()
    modern = world.open_client()
    modern.publish("k", b"of 0-10", exchange="x")
    world.run()
    bind(client, "a")
    found = [client.call("basic.get", queue="a", no_ack=True).body for _ in range(2)]
    assert found == [b"of 1.0", b"of 0-10"]


# ---- xml ----


def test_xml_binding(world: World) -> None:
    """As `testXmlBinding` and `testXMLBindMultipleQueues` of qpidd, over AMQP 0-10."""
    client = world.open_client()
    client.command("exchange.declare", exchange="xml", type="xml")
    for name in ("blue", "red"):
        client.declare(name)
        query = {"xquery": f"./colour = '{name}'"}
        client.command("exchange.bind", queue=name, exchange="xml", binding_key="by-colour", arguments=typed_map(query))
    for name in ("blue", "red", "green"):
        client.publish("by-colour", b"<colour>%s</colour>" % name.encode(), exchange="xml")
        client.publish("another", b"<colour>%s</colour>" % name.encode(), exchange="xml")
    client.publish("by-colour", b"<>colour>blue</colour>", exchange="xml")
    client.sync()
    assert (on(world, "blue"), on(world, "red")) == ([b"<colour>blue</colour>"], [b"<colour>red</colour>"])
    assert client.exceptions == []
    assert client.call("exchange.bound", exchange="xml", queue="blue", binding_key="by-colour") is not None


def test_the_library_is_imported_outside_of_the_event_loop(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    library = xquery._library

    def noticing() -> Any:
        threads.append(threading.current_thread())
        return library()

    monkeypatch.setattr(xquery, "_library", noticing)
    client = BasicClient(world).open()
    assert declare(client, "xml") == ""
    assert threads
    assert threading.main_thread() not in threads


def test_a_query_is_read_once_for_all_bindings_that_have_it(
    world: World, client: BasicClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    query = xquery.Query

    def noticing(text: str) -> xquery.Query:
        read.append(text)
        return query(text)

    monkeypatch.setattr(xquery, "Query", noticing)
    declare(client, "xml")
    for name in "abc":
        assert bind(client, name, "k", xquery="./a = 'read once'") == ""
    assert read == ["./a = 'read once'"]


def test_a_bad_query_is_an_internal_error(world: World) -> None:
    """As `testXMLBadXQuery` of qpidd."""
    client = world.open_client()
    client.command("exchange.declare", exchange="xml", type="xml")
    client.declare("blue")
    for arguments in ({"xquery": "./colour $=! 'blue'"},):
        client.command("exchange.bind", queue="blue", exchange="xml", binding_key="k", arguments=typed_map(arguments))
    client.sync()
    assert (client.exceptions[0]["error_code"], "xquery" in client.exceptions[0]["description"]) == (541, True)


def test_headers_are_variables_and_a_query_without_paths_takes_any_content(world: World, client: BasicClient) -> None:
    declare(client, "xml")
    bind(client, "a", "k", xquery="declare variable $colour external; $colour = 'blue'")
    bind(client, "b", "k", xquery="declare variable $colour external; $colour = 'blue' and not(//none)")
    for colour in ("blue", "red"):
        client.publish("k", b"no XML", properties(colour=colour), exchange="x")
    client.sync()
    assert (len(on(world, "a")), len(on(world, "b"))) == (1, 0)
    assert "another query" in bind(client, "a", "k", xquery="true()")


def test_a_message_that_takes_too_long_is_refused_and_hurts_nobody(world: World, client: BasicClient) -> None:
    declare(client, "xml")
    bind(client, "a", "k", xquery="//b[//b[//b]]")
    client.call("confirm.select")
    client.publish("k", b"<a>" + b"<b/>" * 1500 + b"</a>", exchange="x")
    assert client.take("basic.nack", "basic.ack", "channel.close")[0].name in ("basic.nack", "channel.close")
    again = BasicClient(world).open()
    again.publish("k", b"<a><b/></a>", exchange="x")
    again.publish("k", b"<a/>", exchange="x")
    again.sync()
    assert on(world, "a") == [b"<a><b/></a>"]


def test_each_query_is_evaluated_once_and_the_content_parsed_once(
    world: World, client: BasicClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qstore.broker.model import xquery

    declare(client, "xml")
    for name in "abc":
        bind(client, name, "k", xquery="//x = 1")
    evaluated: list[str] = []
    matches = xquery.Query.matches
    monkeypatch.setattr(
        xquery.Query, "matches", lambda query, *rest: evaluated.append(query.text) or matches(query, *rest)
    )
    client.publish("k", b"<a><x>1</x></a>", exchange="x")
    client.sync()
    assert [len(on(world, name)) for name in "abc"] == [1, 1, 1]
    assert evaluated == ["//x = 1"]


def test_a_value_of_1_0_that_cannot_be_decoded_is_no_content(world: World, client: BasicClient) -> None:
    declare(client, "xml")
    bind(client, "a", "k", xquery="./a")
    bind(client, "b", "k", xquery="true()")
    links = LinksClient(world).open()
    links.sender("/exchanges/x/k")
    links.publish(message=TOO_MANY_VALUES)
    links.sync()
    found = world.broker.default_host.queues
    assert (found["a"].message_count, found["b"].message_count) == (0, 1)
    links.publish(b"<a/>")
    links.sync()
    assert found["a"].message_count == 1


def test_a_large_content_in_pieces_is_not_copied_for_nothing(world: World, client: BasicClient) -> None:
    declare(client, "xml")
    bind(client, "a", "k", xquery="contains(/a, 'y')")
    client.publish("k", b"<a>" + b"x" * 200_000 + b"y</a>", exchange="x")
    client.sync()
    assert len(on(world, "a")) == 1


def test_subscriptions_of_1_0_have_the_xquery_filter(world: World, client: BasicClient) -> None:
    declare(client, "xml")
    links = LinksClient(world).open()
    query = Value("", Described(Value("ulong", 0x0000468C00000005), Value("string", "//x = 1")))
    given = ((Value("symbol", "q"), query),)
    links.receiver("x/k", terminus={"filter": given})
    links.receiver("x/k", 1)
    for number in (1, 2):
        client.publish("k", b"<a><x>%d</x></a>" % number, exchange="x")
    client.sync()
    links.sync()
    found = [each.content.rpartition(b"Su")[2][2:] for each in links.messages()]
    assert sorted(found) == [b"<a><x>1</x></a>", b"<a><x>1</x></a>", b"<a><x>2</x></a>"]
    came = links.attach("amq.topic/k", 2, receives=True, terminus={"filter": given})
    assert [each.name for each in came] == ["attach", "detach"]


def test_dynamic_routes_announce_queries() -> None:
    """As `test_dynamic_headers_xml` and `test_dynamic_headers_unbind_xml` of qpidd's federation tests."""
    linked = Linked("near", "far")
    near, far = linked.worlds
    for world in linked.worlds:
        world.open_client(name=b"declares").command("exchange.declare", exchange="fed.xml", type="xml")
        world.run()
    client = near.open_client(name=b"binds")
    client.declare("before")
    client.command(
        "exchange.bind",
        queue="before",
        exchange="fed.xml",
        binding_key="key2",
        arguments=typed_map({"xquery": "true()"}),
    )
    linked.bridge(0, 1, "fed.xml", "fed.xml", dynamic=True)
    client.declare("fed1")
    client.command(
        "exchange.bind", queue="fed1", exchange="fed.xml", binding_key="key1", arguments=typed_map({"xquery": "//a"})
    )
    linked.rest()
    sender = far.open_client(name=b"sends")
    for number in range(3):
        sender.publish("key1", b"<a>%d</a>" % number, exchange="fed.xml")
        sender.publish("key2", b"Message %d" % number, exchange="fed.xml")
    sender.publish("key1", b"<b/>", exchange="fed.xml")
    linked.rest()
    assert on(near, "fed1") == [b"<a>0</a>", b"<a>1</a>", b"<a>2</a>"]
    assert on(near, "before") == [b"Message 0", b"Message 1", b"Message 2"]
    client.command("exchange.unbind", queue="fed1", exchange="fed.xml", binding_key="key1")
    linked.rest()
    assert [each.key for each in far.broker.default_host.exchanges["fed.xml"].bindings] == ["key2"]


# ---- all of them ----


@pytest.mark.parametrize("kind", ["x-consistent-hash", "x-modulus-hash", "x-random", "x-recent-history", "xml"])
def test_every_protocol_declares_them(world: World, kind: str) -> None:
    modern, basic, links = world.open_client(), BasicClient(world).open(), LinksClient(world).open()
    modern.command("exchange.declare", exchange="m", type=kind)
    modern.sync()
    assert modern.exceptions == []
    assert declare(basic, kind, "b") == ""
    more = ((Value("symbol", "exchange-type"), Value("string", kind)),)
    links.attach("l", terminus={"capabilities": ("create-on-demand", "topic"), "dynamic_node_properties": more})
    exchanges = world.broker.default_host.exchanges
    assert [exchanges[name].type_name for name in "mbl"] == [kind] * 3


def test_arguments_of_one_type_are_reported_for_others(client: BasicClient, caplog: pytest.LogCaptureFixture) -> None:
    """RabbitMQ's client for Python declares x-local-random with x-delayed-type."""
    caplog.set_level(INFO)
    for name in (HASH_HEADER, HASH_PROPERTY, HISTORY_LENGTH, DELAYED_TYPE):
        given = {name: "direct" if name == DELAYED_TYPE else "message_id" if "hash" in name else 5}
        answer = client.call("exchange.declare", exchange=f"y-{name}", type="topic", arguments=given)
        assert answer.name == "exchange.declare-ok"
        (line,) = [line for line in caplog.messages if name in line and "is ignored" in line]
        assert f'Exchange "y-{name}"' in line


def test_they_have_alternate_exchanges(world: World, client: BasicClient) -> None:
    for number, kind in enumerate(("x-consistent-hash", "x-modulus-hash", "x-random", "x-recent-history", "xml")):
        client.call(
            "exchange.declare", exchange=f"p{number}", type=kind, arguments={"alternate-exchange": "amq.fanout"}
        )
        client.call("queue.bind", queue="a", exchange="amq.fanout", routing_key="")
        client.publish("k", kind.encode(), exchange=f"p{number}")
    client.sync()
    assert len(on(world, "a")) == 5


# ---- other packages' types ----


class Sees:
    """Decides for an exchange: all bindings; keeps what it is shown."""

    def __init__(self) -> None:
        self.contents: list[bytes] = []
        self.bindings: list[Sequence[Bound]] = []

    def check(self, key: str, arguments: Mapping[str, object]) -> None:
        """Any."""

    def route(self, message: Published, bindings: Sequence[Bound]) -> Iterable[Bound]:
        """All."""
        self.contents.append(message.content)
        self.bindings.append(bindings)
        return bindings


def test_a_plug_in_sees_the_content_whatever_the_protocol_and_the_same_bindings_until_they_change(
    world: World, client: BasicClient
) -> None:
    sees = Sees()
    world.broker.default_host.exchanges["x"] = PluggedExchange("x-sees", sees, "x")
    bind(client, "a")
    client.publish("k", b"of 0-9-1", exchange="x")
    client.sync()
    links = LinksClient(world).open()
    links.sender("/exchanges/x/k")
    links.publish(b"of 1.0")
    links.publish(message=b"\0\x53\x77\xa1\4text")
    links.publish(message=TOO_MANY_VALUES)
    links.sync()
    assert sees.contents == [b"of 0-9-1", b"of 1.0", b"text", b""]
    assert all(each is sees.bindings[0] for each in sees.bindings)
    bind(client, "b")
    client.publish("k", b"", exchange="x")
    client.sync()
    assert [each.queue for each in sees.bindings[-1]] == ["a", "b"]
    assert [world.broker.default_host.queues[name].message_count for name in "ab"] == [5, 1]
