"""Channels of AMQP 0-9-1: topology, publishing, delivery and settlement, and the codes of misuse."""

from __future__ import annotations

from typing import Any

import pytest

from qstore.broker.protocols.amqp_0_9_1.channel import MAX_UNACKNOWLEDGED
from qstore.broker.protocols.stored_messages import restore_message
from qstore.broker.settings import BrokerSettings
from qstore.formats.amqp_0_9_1.properties import Properties
from qstore.formats.values import typed_map
from tests.broker.protocols.basic_client import PERSISTENT, BasicClient
from tests.broker.protocols.world import World, header

TRANSIENT = Properties()


@pytest.fixture
def client(world: World) -> BasicClient:
    return BasicClient(world).open()


def failed(client: BasicClient, name: str, **values: Any) -> tuple[str, int, str]:
    """What is closed because of a method, with which code and text."""
    client.method(name, 1, **values)
    client.sync()
    closed = client.received[-1]
    assert closed.name in ("channel.close", "connection.close"), client.received
    return closed.name, closed.values["reply_code"], closed.values["reply_text"]


def bodies(client: BasicClient) -> list[bytes]:
    return [each.body for each in client.take("basic.deliver")]


def test_a_message_is_published_and_consumed(client: BasicClient) -> None:
    declared = client.call("queue.declare", queue="q")
    assert declared.values == {"queue": "q", "message_count": 0, "consumer_count": 0}
    assert client.call("basic.consume", queue="q", consumer_tag="c").values == {"consumer_tag": "c"}
    properties = Properties(content_type="text/plain", correlation_id="7", delivery_mode=1)
    client.publish("q", b"hello", properties)
    (delivery,) = client.take("basic.deliver")
    assert delivery.body == b"hello"
    assert delivery.properties == properties
    assert delivery.values == {
        "consumer_tag": "c", "delivery_tag": 1, "redelivered": False, "exchange": "", "routing_key": "q"
    }  # fmt: skip
    queue = client.world.broker.default_host.queues["q"]
    assert queue.message_count == 1
    client.method("basic.ack", delivery_tag=1)
    assert queue.message_count == 0


@pytest.mark.parametrize("size", [0, 1, 4088, 4089, 10_000, 300_000])
def test_bodies_of_any_size(client: BasicClient, size: int) -> None:
    client.call("queue.declare", queue="q")
    client.call("basic.consume", queue="q", no_ack=True)
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    client.publish("q", body, TRANSIENT)
    client.publish("q", b"next", TRANSIENT)
    assert bodies(client) == [body, b"next"]


def test_messages_in_pieces_of_any_size(client: BasicClient) -> None:
    client.call("queue.declare", queue="q")
    client.call("basic.consume", queue="q", no_ack=True)
    sizes = [3, 3, 3, 3, 0, 3, 3, 5000, 5000, 5000, 3]
    data = b"".join(client.message("q", bytes([65 + n]) * size, TRANSIENT) for n, size in enumerate(sizes))
    for step in (1, 7, 100, len(data)):
        for at in range(0, len(data), step):
            client.send(data[at : at + step])
        assert [len(body) for body in bodies(client)] == sizes


def test_declared_queues_must_agree(client: BasicClient) -> None:
    client.call("queue.declare", queue="q", auto_delete=True, arguments={"qpid.max_count": 5})
    assert client.call("queue.declare", queue="q", passive=True).name == "queue.declare-ok"
    declared = {"queue": "q", "auto_delete": True, "arguments": {"qpid.max_count": 5}}
    assert client.call("queue.declare", **declared).name == "queue.declare-ok"
    differences: list[tuple[dict[str, Any], int, str]] = [
        (
            {"auto_delete": False},
            406,
            "inequivalent arg 'auto_delete' for queue 'q' in vhost '/': received 'false' but",
        ),
        (
            {"durable": True},
            406,
            "inequivalent arg 'durable' for queue 'q' in vhost '/': received 'true' but current is",
        ),
        ({"exclusive": True}, 405, "cannot obtain exclusive access to locked queue 'q' in vhost '/'"),
        ({"arguments": {}}, 406, "inequivalent arg 'qpid.max_count' for queue 'q' in vhost '/': received none but"),
    ]
    for changed, expected, text in differences:
        name, code, told = failed(client, "queue.declare", **{**declared, **changed})
        assert (name, code) == ("channel.close", expected)
        assert text in told
        client.method("channel.close-ok")
        client.call("channel.open")


def test_the_type_of_a_queue_is_refused_before_the_arguments_that_only_it_has(client: BasicClient) -> None:
    for arguments, told in (
        (
            {"x-max-age": "7D", "x-queue-type": "streams"},
            "argument 'x-queue-type' with value 'streams' is not supported: it is 'classic', 'quorum' or 'stream'",
        ),
        ({"x-delivery-limit": 20}, "invalid arg 'x-delivery-limit' for queue 'x': only x-queue-type 'quorum' counts"),
    ):
        assert told in failed(client, "queue.declare", queue="x", arguments=arguments)[2]
        client.method("channel.close-ok")
        client.call("channel.open")


@pytest.mark.parametrize(
    ("declared", "again", "difference"),
    [
        (100, "100", "received the value '100' of type longstr but current is the value '100' of type long"),
        ("100", 100, "received the value '100' of type long but current is the value '100' of type longstr"),
        (1, 1.0, ""),
        (1, True, "received 'true' but current is '1'"),
        ("true", True, "received the value 'true' of type bool but current is the value 'true' of type longstr"),
        (100, 200, "received '200' but current is '100'"),
    ],
)
def test_values_that_look_alike_are_reported_with_their_types(
    client: BasicClient, declared: Any, again: Any, difference: str
) -> None:
    client.call("queue.declare", queue="q", arguments={"note": declared})
    if not difference:
        assert client.call("queue.declare", queue="q", arguments={"note": again}).name == "queue.declare-ok"
        return
    _, code, told = failed(client, "queue.declare", queue="q", arguments={"note": again})
    assert code == 406
    assert told.endswith(f"inequivalent arg 'note' for queue 'q' in vhost '/': {difference}")


def test_only_its_connection_can_declare_an_exclusive_queue(world: World, client: BasicClient) -> None:
    client.call("queue.declare", queue="mine", exclusive=True)
    for passive in (False, True):
        other = BasicClient(world).open()
        assert failed(other, "queue.declare", queue="mine", passive=passive)[:2] == ("channel.close", 405)


def test_nor_is_it_declared_again_without_exclusive(client: BasicClient) -> None:
    client.call("queue.declare", queue="mine", exclusive=True)
    for values in ({"exclusive": True}, {"passive": True}):
        assert client.call("queue.declare", queue="mine", **values).name == "queue.declare-ok"
    assert failed(client, "queue.declare", queue="mine")[:2] == ("channel.close", 405)


@pytest.mark.parametrize("name", ["x-message-ttl", "x-expires"])
def test_times_may_have_up_to_ten_years(client: BasicClient, name: str) -> None:
    years = 10 * 365 * 24 * 3600 * 1000
    assert client.call("queue.declare", queue="old", arguments={name: years}).name == "queue.declare-ok"
    assert failed(client, "queue.declare", queue="older", arguments={name: years + 1})[:2] == ("channel.close", 406)


@pytest.mark.parametrize(
    ("name", "value", "is_valid"),
    [
        ("x-queue-mode", "lazy", True), ("x-queue-mode", "default", True), ("x-queue-mode", "eager", False),
        ("x-queue-version", 2, True), ("x-queue-version", 9, False), ("x-queue-master-locator", "min-masters", True),
        ("x-queue-leader-locator", "client-local", True), ("x-queue-leader-locator", 1, False),
        ("x-ha-policy", "all", True), ("x-ha-policy-params", "node", True),
    ],
)  # fmt: skip
def test_arguments_of_placement_are_checked_and_have_no_effect(
    client: BasicClient, name: str, value: Any, is_valid: bool
) -> None:
    if is_valid:
        assert client.call("queue.declare", queue="q", arguments={name: value}).name == "queue.declare-ok"
    else:
        assert failed(client, "queue.declare", queue="q", arguments={name: value})[:2] == ("channel.close", 406)


@pytest.mark.parametrize(
    ("method", "values", "text"),
    [
        ("queue.declare", {"queue": "q", "passive": True}, "no queue 'q' in vhost '/'"),
        ("queue.declare", {"passive": True}, "no queue '' in vhost '/'"),
        ("exchange.declare", {"exchange": "x", "passive": True}, "no exchange 'x' in vhost '/'"),
        ("queue.bind", {"queue": "q", "exchange": "amq.direct"}, "no queue 'q' in vhost '/'"),
        ("basic.consume", {"queue": "q"}, "no queue 'q' in vhost '/'"),
    ],
)
def test_not_found_error_is_worded_as_by_rabbitmq(
    client: BasicClient, method: str, values: dict[str, Any], text: str
) -> None:
    assert failed(client, method, **values) == ("channel.close", 404, f"NOT_FOUND - {text}")


def test_the_headers_exchange_has_two_names(client: BasicClient) -> None:
    client.call("queue.declare", queue="h")
    declared = {"exchange": "amq.headers", "type": "headers", "durable": True}
    assert client.call("exchange.declare", **declared).name == "exchange.declare-ok"
    client.call("queue.bind", queue="h", exchange="amq.headers", arguments={"x-match": "all", "a": 1})
    for exchange in ("amq.headers", "amq.match"):
        client.publish("k", b"x", Properties(headers=typed_map({"a": 1})), exchange=exchange)
        found = client.call("basic.get", queue="h", no_ack=True)
        assert (found.name, found.values["exchange"]) == ("basic.get-ok", exchange)
    client.publish("k", b"x", exchange="amq.headers", mandatory=True)
    assert client.take("basic.return")[0].values["exchange"] == "amq.headers"
    client.call("queue.unbind", queue="h", exchange="amq.match", arguments={"x-match": "all", "a": 1})
    client.publish("k", b"x", Properties(headers=typed_map({"a": 1})), exchange="amq.headers")
    assert client.call("basic.get", queue="h").name == "basic.get-empty"


def test_the_headers_exchange_as_dead_letter_and_alternate_exchange(client: BasicClient) -> None:
    client.call("queue.declare", queue="dead")
    client.call("queue.bind", queue="dead", exchange="amq.headers", arguments={"x-match": "any", "a": 1})
    for name in ("amq.headers", "amq.match"):  # the second declaration is of what there is
        arguments = {"x-dead-letter-exchange": name, "x-max-length": 1}
        assert client.call("queue.declare", queue="short", arguments=arguments).name == "queue.declare-ok"
        declared = {"exchange": "source", "type": "fanout", "arguments": {"alternate-exchange": name}}
        assert client.call("exchange.declare", **declared).name == "exchange.declare-ok"
    for body in (b"1", b"2"):
        client.publish("short", body, Properties(headers=typed_map({"a": 1})))
    client.publish("", b"3", Properties(headers=typed_map({"a": 1})), exchange="source")
    assert [client.call("basic.get", queue="dead", no_ack=True).body for _ in range(2)] == [b"1", b"3"]


def test_bindings_with_one_key_and_different_headers(world: World, client: BasicClient) -> None:
    """To a headers exchange: each is a binding, and each is unbound with its own arguments, in any order."""

    def count(*values: int) -> list[int]:
        for value in values:
            client.publish("", b"x", Properties(headers=typed_map({"a": value})), exchange="amq.headers")
        client.sync()
        return [client.call("queue.purge", queue="h").values["message_count"]]

    def change(method: str, value: int) -> None:
        arguments = {"x-match": "all", "a": value}
        changed = client.call(method, queue="h", exchange="amq.headers", routing_key="", arguments=arguments)
        assert changed.name == f"{method}-ok"

    client.call("queue.declare", queue="h")
    for value in (1, 2, 2, 3):
        change("queue.bind", value)
    assert world.broker.default_host.exchanges["amq.match"].binding_count.value == 3
    assert count(1, 2, 3, 4) == [3]
    change("queue.unbind", 1)
    change("queue.bind", 2)
    assert count(1, 2, 3) == [2]
    for value in (9, 2, 3):
        change("queue.unbind", value)
    assert count(1, 2, 3) == [0]
    assert world.broker.default_host.exchanges["amq.match"].binding_count.value == 0


def test_such_bindings_of_several_clients_at_once(world: World, client: BasicClient) -> None:
    """Each finds the key free, and its binding comes about in turn."""
    client.call("queue.declare", queue="h")
    clients = [client, *(BasicClient(world).open() for _ in range(2))]
    for value, each in enumerate(clients):
        arguments = {"x-match": "all", "a": value}
        each.method("queue.bind", queue="h", exchange="amq.headers", routing_key="", arguments=arguments)
    for each in clients:
        each.sync()
        assert each.last(1).name == "queue.bind-ok"
    assert world.broker.default_host.exchanges["amq.match"].binding_count.value == 3


def test_declared_exchanges_must_agree(client: BasicClient) -> None:
    assert client.call("exchange.declare", exchange="e", type="topic").name == "exchange.declare-ok"
    assert client.call("exchange.declare", exchange="e", type="topic").name == "exchange.declare-ok"
    assert client.call("exchange.declare", exchange="e", passive=True).name == "exchange.declare-ok"
    assert failed(client, "exchange.declare", exchange="e", type="direct")[:2] == ("channel.close", 406)


def test_the_broker_names_queues(client: BasicClient) -> None:
    names = {client.call("queue.declare").values["queue"] for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith("amq.gen-") for name in names)
    name = client.call("queue.declare").values["queue"]
    client.call("queue.bind", exchange="amq.fanout")
    client.publish("", b"x", TRANSIENT, exchange="amq.fanout")
    assert client.call("basic.get").body == b"x"
    assert client.call("queue.declare", queue=name).name == "queue.declare-ok"


NEW = {"exchange": "e", "type": "direct"}
MISUSE = [
    ("queue.declare", {"queue": "amq.q"}, "channel", 403),
    ("queue.declare", {"queue": "none", "passive": True}, "channel", 404),
    ("queue.declare", {"queue": "x", "arguments": {"x-unknown": 1}}, "channel", 406),
    ("queue.declare", {"queue": "x", "arguments": {"x-queue-type": "quorum"}}, "channel", 406),
    ("queue.declare", {"queue": "x", "durable": True, "arguments": {"x-queue-type": "stream"}}, "channel", 406),
    ("queue.declare", {"queue": "x", "arguments": {"qpid.max_count": "many"}}, "channel", 406),
    ("queue.bind", {"queue": "none", "exchange": "amq.direct"}, "channel", 404),
    ("queue.bind", {"queue": "q", "exchange": "none"}, "channel", 404),
    ("queue.bind", {"queue": "q"}, "channel", 403),
    ("queue.bind", {"exchange": "amq.direct"}, "channel", 404),
    ("queue.purge", {"queue": "none"}, "channel", 404),
    ("exchange.declare", {"exchange": "e", "type": "nothing"}, "channel", 406),
    ("exchange.declare", {"exchange": "", "type": "direct"}, "channel", 403),
    ("exchange.declare", {"exchange": "amq.new", "type": "direct"}, "channel", 403),
    ("exchange.declare", {"exchange": "none", "passive": True}, "channel", 404),
    ("exchange.declare", {**NEW, "arguments": {"alternate-exchange": 1}}, "channel", 406),
    ("exchange.declare", {**NEW, "arguments": {"alternate-exchange": "x" * 256}}, "channel", 406),
    ("exchange.declare", {**NEW, "arguments": {"alternate-exchange": "a\0b"}}, "channel", 406),
    ("exchange.delete", {"exchange": "amq.direct"}, "channel", 403),
    ("exchange.delete", {"exchange": ""}, "channel", 403),
    ("basic.consume", {"queue": "none"}, "channel", 404),
    ("basic.consume", {"queue": "q", "arguments": {"x-stream-offset": "first"}}, "channel", 406),
    ("basic.get", {"queue": "none"}, "channel", 404),
    ("basic.qos", {"prefetch_size": 1}, "connection", 540),
    ("basic.ack", {"delivery_tag": 1}, "channel", 406),
    ("basic.ack", {"delivery_tag": 1, "multiple": True}, "channel", 406),
    ("basic.nack", {"delivery_tag": 1}, "channel", 406),
    ("basic.reject", {"delivery_tag": 1}, "channel", 406),
    ("basic.recover", {"requeue": False}, "connection", 540),
    ("tx.commit", {}, "channel", 406),
    ("tx.rollback", {}, "channel", 406),
    ("channel.open", {}, "connection", 504),
    ("basic.deliver", {}, "connection", 503),
    ("connection.close", {}, "connection", 503),
]  # fmt: skip


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        ({}, "non-durable"),
        ({"durable": True, "exclusive": True}, "exclusive"),
        ({"durable": True, "auto_delete": True}, "auto-delete"),
        ({"durable": True, "queue": ""}, "server-named"),
        ({"durable": True, "arguments": {"x-max-priority": 5}}, "with priorities"),
        ({"durable": True, "arguments": {"qpid.last_value_queue_key": "k"}}, "a last value queue"),
    ],
)
def test_unsupported_arguments_of_quorum_queues_are_refused(
    client: BasicClient, declared: dict[str, Any], why: str
) -> None:
    arguments = {"x-queue-type": "quorum", **declared.get("arguments", {})}
    name, code, text = failed(client, "queue.declare", **{"queue": "x", **declared, "arguments": arguments})
    assert (name, code) == ("channel.close", 406)
    assert f"a quorum queue cannot be {why}" in text


def test_a_quorum_queue_counts_returns_and_dead_letters_beyond_its_limit(client: BasicClient) -> None:
    client.call("queue.declare", queue="dead")
    arguments = {
        "x-queue-type": "quorum", "x-delivery-limit": 2, "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "dead",
    }  # fmt: skip
    client.call("queue.declare", queue="x", durable=True, arguments=arguments)
    client.publish("x", b"poison")
    counts = []
    for _ in range(3):
        found = client.call("basic.get", queue="x")
        headers = found.properties.headers
        counts.append(None if headers is None else headers.get("x-delivery-count").value)
        client.method("basic.nack", delivery_tag=found.values["delivery_tag"], requeue=True)
        client.sync()
    assert counts == [None, 1, 2]
    assert client.call("basic.get", queue="x").name == "basic.get-empty"
    dead = client.call("basic.get", queue="dead")
    (death,) = dead.properties.headers.get("x-death").value
    assert death.value.get("reason").value == "delivery_limit"


@pytest.mark.parametrize(("name", "values", "what", "code"), MISUSE, ids=[f"{each[0]} {each[1]}" for each in MISUSE])
def test_misuse(world: World, name: str, values: dict[str, Any], what: str, code: int) -> None:
    client = BasicClient(world).open()
    BasicClient(world).open().call("queue.declare", queue="q")
    closed, found, text = failed(client, name, **values)
    assert (closed, found) == (f"{what}.close", code), text
    last = client.received[-1].values
    class_id = {"channel": 20, "connection": 10, "exchange": 40, "queue": 50, "basic": 60, "tx": 90}
    assert last["class_id"] == class_id[name.partition(".")[0]]
    assert not client.host.is_closed
    if what == "channel":
        assert failed(client, "queue.purge", queue="q") == (closed, found, text), "a closing channel ignores everything"
        client.method("channel.close-ok")
        assert client.call("channel.open").name == "channel.open-ok"


def test_a_closing_channel_is_opened_again_only_after_it_was_closed(client: BasicClient) -> None:
    """A client that omits channel.close-ok gets an error instead of waiting forever."""
    assert failed(client, "queue.purge", queue="none")[1] == 404
    client.method("channel.open")
    client.sync()
    closed = client.last(0)
    assert (closed.name, closed.values["reply_code"]) == ("connection.close", 504)


def test_deleting_a_missing_object_succeeds(client: BasicClient) -> None:
    client.call("queue.declare", queue="q")
    assert client.call("queue.delete", queue="none").values == {"message_count": 0}
    assert client.call("exchange.delete", exchange="none").name == "exchange.delete-ok"
    assert client.call("queue.unbind", queue="q", exchange="amq.direct", routing_key="k").name == "queue.unbind-ok"


def test_conditions_of_deleting(client: BasicClient) -> None:
    client.call("queue.declare", queue="q")
    client.publish("q", b"x", TRANSIENT)
    assert failed(client, "queue.delete", queue="q", if_empty=True)[1] == 406
    client.method("channel.close-ok")
    client.call("channel.open")
    client.call("basic.consume", queue="q")
    assert failed(client, "queue.delete", queue="q", if_unused=True)[1] == 406
    client.method("channel.close-ok")
    client.call("channel.open")
    assert client.call("queue.delete", queue="q").values == {"message_count": 1}


def test_messages_that_are_held_do_not_keep_a_queue_from_being_deleted_if_empty(client: BasicClient) -> None:
    client.call("queue.declare", queue="q")
    client.publish("q", b"held", TRANSIENT)
    client.publish("q", b"ready", TRANSIENT)
    assert client.call("basic.get", queue="q").body == b"held"
    assert failed(client, "queue.delete", queue="q", if_empty=True)[1:] == (
        406, 'PRECONDITION_FAILED - queue "q" is not empty: it has 1 message'
    )  # fmt: skip
    client.method("channel.close-ok")
    client.call("channel.open")
    for _ in range(2):
        held = client.call("basic.get", queue="q")
    assert client.call("queue.delete", queue="q", if_empty=True).values == {"message_count": 0}
    client.method("basic.ack", delivery_tag=held.values["delivery_tag"], multiple=True)
    assert client.call("queue.declare", queue="q").values["message_count"] == 0


def test_publishing_to_nowhere(client: BasicClient) -> None:
    client.publish("nowhere", b"x", TRANSIENT)
    client.publish("nowhere", b"back", TRANSIENT, mandatory=True)
    (returned,) = client.take("basic.return")
    assert returned.values == {"reply_code": 312, "reply_text": "NO_ROUTE", "exchange": "", "routing_key": "nowhere"}
    assert returned.body == b"back"
    client.publish("k", b"x", TRANSIENT, exchange="none")
    client.sync()
    assert client.last().values["reply_code"] == 404


@pytest.mark.parametrize("exchange", ["", "none"])
def test_immediate_is_not_implemented_as_in_rabbitmq(client: BasicClient, exchange: str) -> None:
    client.call("queue.declare", queue="q")
    client.call("basic.consume", queue="q")
    for body in (b"now", bytes(10_000)):
        client.publish("q", body, TRANSIENT, exchange=exchange, immediate=True)
    (closed,) = client.take("connection.close", "basic.deliver", "basic.return")
    assert (closed.values["reply_code"], closed.values["reply_text"]) == (540, "NOT_IMPLEMENTED - immediate=true")
    assert (closed.values["class_id"], closed.values["method_id"]) == (60, 40)


def test_an_internal_exchange_gets_nothing_from_clients(client: BasicClient) -> None:
    client.call("exchange.declare", exchange="inner", type="fanout", internal=True)
    assert client.call("exchange.declare", exchange="inner", type="fanout", internal=True).name == "exchange.declare-ok"
    client.publish("", b"x", TRANSIENT, exchange="inner")
    client.sync()
    assert client.last().values["reply_code"] == 403


def test_alternate_exchange_gets_unroutable_messages(client: BasicClient) -> None:
    client.call("queue.declare", queue="q")
    client.call("queue.bind", queue="q", exchange="amq.fanout")
    client.call("exchange.declare", exchange="e", type="direct", arguments={"alternate-exchange": "amq.fanout"})
    client.publish("k", b"x", TRANSIENT, exchange="e", mandatory=True)
    assert client.call("basic.get", queue="q").body == b"x"
    assert not client.take("basic.return")


def test_alternate_exchanges_are_asked_one_after_the_other(client: BasicClient) -> None:
    client.call("queue.declare", queue="found")
    client.call("queue.bind", queue="found", exchange="amq.fanout")
    for name, alternate in (("c", "amq.fanout"), ("b", "c"), ("a", "b")):
        arguments = {"alternate-exchange": alternate}
        client.call("exchange.declare", exchange=name, type="direct", arguments=arguments)
    client.publish("k", b"x", TRANSIENT, exchange="a", mandatory=True)
    assert client.call("basic.get", queue="found", no_ack=True).body == b"x"
    client.call("queue.unbind", queue="found", exchange="amq.fanout")
    client.publish("k", b"y", TRANSIENT, exchange="a", mandatory=True)
    client.sync()
    assert (client.last().name, client.last().values["reply_code"]) == ("basic.return", 312)


def test_headers_bindings(client: BasicClient) -> None:
    client.call("queue.declare", queue="q")
    client.call("queue.bind", queue="q", exchange="amq.match", arguments={"kind": "a"})
    for kind in ("a", "b"):
        headers = typed_map({"kind": kind})
        client.publish("", kind.encode(), Properties(headers=headers), exchange="amq.match")
    assert client.call("basic.get", queue="q").body == b"a"
    assert client.call("basic.get", queue="q").name == "basic.get-empty"


def test_an_exclusive_queue_belongs_to_its_connection(world: World, client: BasicClient) -> None:
    client.call("queue.declare", queue="mine", exclusive=True, durable=True)
    assert not world.broker.default_host.queues["mine"].durable
    assert client.call("queue.declare", queue="mine", exclusive=True, durable=True).name == "queue.declare-ok"
    other = BasicClient(world).open(1, 2)
    for name in ("basic.consume", "queue.declare", "queue.purge", "queue.delete", "basic.get"):
        assert failed(other, name, queue="mine")[:2] == ("channel.close", 405)
        other.method("channel.close-ok")
        other.call("channel.open")
    client.method("connection.close", 0, reply_code=200)
    assert "mine" in world.broker.default_host.queues
    client.sync()
    assert client.received[-1].name == "connection.close-ok"
    assert "mine" not in world.broker.default_host.queues


def test_an_exclusive_queue_ends_with_a_connection_that_is_lost(world: World, client: BasicClient) -> None:
    client.call("queue.declare", queue="mine", exclusive=True)
    client.machine.dismantle()
    world.run()
    assert "mine" not in world.broker.default_host.queues


def test_an_auto_delete_queue_ends_with_its_last_consumer(world: World, client: BasicClient) -> None:
    client.call("queue.declare", queue="q", auto_delete=True)
    client.call("basic.get", queue="q")
    assert "q" in world.broker.default_host.queues
    client.call("basic.consume", queue="q", consumer_tag="a")
    client.call("basic.consume", queue="q", consumer_tag="b")
    client.call("basic.cancel", consumer_tag="a")
    assert "q" in world.broker.default_host.queues
    client.call("channel.close")
    assert "q" not in world.broker.default_host.queues


def test_consumers_are_cancelled_when_their_queue_is_deleted(world: World) -> None:
    told, untold = BasicClient(world).open(), BasicClient(world, capabilities={}).open()
    told.call("queue.declare", queue="q")
    for each in (told, untold):
        each.call("basic.consume", queue="q", consumer_tag="c")
        each.received.clear()
    BasicClient(world).open().call("queue.delete", queue="q")
    assert [each.values for each in told.take("basic.cancel")] == [{"consumer_tag": "c", "nowait": True}]
    assert not untold.take()
    assert told.call("basic.cancel", consumer_tag="c").name == "basic.cancel-ok"


def test_exclusive_consumers(world: World, client: BasicClient) -> None:
    client.call("queue.declare", queue="q")
    client.call("basic.consume", queue="q", exclusive=True)
    other = BasicClient(world).open()
    assert failed(other, "basic.consume", queue="q")[1] == 403
    assert BasicClient(world).open().call("basic.get", queue="q").name == "basic.get-empty"  # as RabbitMQ


def test_a_consumer_tag_is_used_once(client: BasicClient) -> None:
    client.call("queue.declare", queue="q")
    client.call("basic.consume", queue="q", consumer_tag="c")
    assert failed(client, "basic.consume", queue="q", consumer_tag="c")[:2] == ("connection.close", 530)


def test_prefetch_of_a_consumer(client: BasicClient) -> None:
    client.call("queue.declare", queue="q")
    client.call("basic.qos", prefetch_count=2)
    client.call("basic.consume", queue="q", consumer_tag="c")
    for number in range(5):
        client.publish("q", b"%d" % number, TRANSIENT)
    assert bodies(client) == [b"0", b"1"]
    client.method("basic.ack", delivery_tag=1)
    assert bodies(client) == [b"2"]
    client.method("basic.ack", delivery_tag=3, multiple=True)
    assert bodies(client) == [b"3", b"4"]


@pytest.mark.parametrize(("product", "is_adjusting"), [("py-amqp", True), ("test", False), ("pika", False)])
def test_prefetch_of_running_consumers_is_changed_by_py_amqp_alone(
    world: World, product: str, is_adjusting: bool
) -> None:
    client = BasicClient(world, product=product).open()
    for name in ("q", "other"):
        client.call("queue.declare", queue=name)
    client.call("basic.qos", prefetch_count=1)
    client.call("basic.consume", queue="q")
    client.call("basic.consume", queue="other", no_ack=True)
    for number in range(5):
        client.publish("q", b"%d" % number, TRANSIENT)
    assert bodies(client) == [b"0"]
    client.call("basic.qos", prefetch_count=3)
    assert bodies(client) == ([b"1", b"2"] if is_adjusting else [])
    client.publish("other", b"free", TRANSIENT)
    assert bodies(client) == [b"free"]


def test_lowered_prefetch_count_is_reached_by_acknowledging(world: World) -> None:
    client = BasicClient(world, product="py-amqp").open()
    client.call("queue.declare", queue="q")
    client.call("basic.qos", prefetch_count=4)
    client.call("basic.consume", queue="q")
    for number in range(8):
        client.publish("q", b"%d" % number, TRANSIENT)
    assert len(bodies(client)) == 4
    client.call("basic.qos", prefetch_count=2)
    client.method("basic.ack", delivery_tag=2, multiple=True)
    assert bodies(client) == []
    client.method("basic.ack", delivery_tag=3)
    assert bodies(client) == [b"4"]
    client.call("basic.qos", prefetch_count=0)
    assert bodies(client) == [b"5", b"6", b"7"]
    client.call("basic.qos", prefetch_count=1)
    client.method("basic.nack", delivery_tag=0, multiple=True, requeue=True)
    assert bodies(client) == [b"3"]


@pytest.mark.parametrize(
    ("method", "values"),
    [
        ("basic.qos", {"prefetch_count": 1}), ("basic.qos", {"prefetch_count": 1, "global": True}),
        ("channel.flow", {"active": False}),
    ],
)  # fmt: skip
def test_methods_that_touch_many_consumers_take_turns(world: World, method: str, values: dict[str, Any]) -> None:
    """A client that sends a hundred of them at once does not hold the event loop for as long as all take."""
    client = BasicClient(world, product="py-amqp").open()
    client.call("queue.declare", queue="q")
    for number in range(200):
        client.method("basic.consume", queue="q", consumer_tag=f"{number}", nowait=True)
    client.method(method, **values)
    client.method(method, **values)
    assert client.machine.is_paused
    assert len(world.work) == 1
    assert [each.name for each in client.take(f"{method}-ok")] == [f"{method}-ok"] * 2


def test_prefetch_of_a_channel(client: BasicClient) -> None:
    client.call("queue.declare", queue="q")
    client.call("basic.qos", prefetch_count=3, **{"global": True})
    client.call("basic.consume", queue="q", consumer_tag="a")
    client.call("basic.consume", queue="q", consumer_tag="b")
    for number in range(6):
        client.publish("q", b"%d" % number, TRANSIENT)
    assert sorted(bodies(client)) == [b"0", b"1", b"2"]
    client.method("basic.nack", delivery_tag=2, requeue=False)
    assert bodies(client) == [b"3"]
    client.call("basic.qos", prefetch_count=0, **{"global": True})
    assert sorted(bodies(client)) == [b"4", b"5"]


def test_unacknowledged_messages_have_a_limit(client: BasicClient) -> None:
    channel = client.machine.channels[1]
    assert channel.credit == MAX_UNACKNOWLEDGED
    channel.credit = 3
    client.call("queue.declare", queue="q")
    client.call("basic.consume", queue="q")
    for number in range(5):
        client.publish("q", b"%d" % number, TRANSIENT)
    assert bodies(client) == [b"0", b"1", b"2"]
    client.method("basic.ack", delivery_tag=0, multiple=True)
    assert bodies(client) == [b"3", b"4"]


def test_messages_that_are_given_back_come_again(client: BasicClient) -> None:
    client.call("queue.declare", queue="q")
    client.call("basic.qos", prefetch_count=2)
    client.call("basic.consume", queue="q", consumer_tag="c")
    for number in range(3):
        client.publish("q", b"%d" % number, TRANSIENT)
    assert bodies(client) == [b"0", b"1"]
    client.method("basic.reject", delivery_tag=1, requeue=True)
    again = client.take("basic.deliver")
    assert [(each.body, each.values["redelivered"], each.values["delivery_tag"]) for each in again] == [(b"0", True, 3)]
    client.method("basic.recover", requeue=True)
    again = client.take("basic.deliver")
    assert [(each.body, each.values["redelivered"]) for each in again] == [(b"0", True), (b"1", True)]
    client.call("channel.close")
    client.call("channel.open")
    (first, second, third) = (client.call("basic.get", queue="q") for _ in range(3))
    assert [first.body, second.body, third.body] == [b"0", b"1", b"2"]
    assert [first.values["redelivered"], third.values["redelivered"]] == [True, False]
    assert [each.values["message_count"] for each in (first, second, third)] == [2, 1, 0]


def test_rejected_messages_go_to_the_alternate_exchange(world: World, client: BasicClient) -> None:
    client.call("queue.declare", queue="dead")
    client.call("queue.bind", queue="dead", exchange="amq.fanout")
    client.call("queue.declare", queue="q")
    world.broker.default_host.queues["q"].alternate = world.broker.default_host.exchanges["amq.fanout"]
    client.publish("q", b"x", TRANSIENT)
    got = client.call("basic.get", queue="q")
    client.method("basic.nack", delivery_tag=got.values["delivery_tag"])
    assert client.call("basic.get", queue="dead").body == b"x"


def test_a_channel_that_does_not_flow_gets_nothing(client: BasicClient) -> None:
    client.call("queue.declare", queue="q")
    client.call("basic.consume", queue="q", no_ack=True)
    assert client.call("channel.flow", active=False).values == {"active": False}
    client.publish("q", b"x", TRANSIENT)
    assert bodies(client) == []
    client.call("channel.flow", active=True)
    assert bodies(client) == [b"x"]


def test_no_local(world: World, client: BasicClient) -> None:
    client.call("queue.declare", queue="q")
    client.call("basic.consume", queue="q", no_ack=True, no_local=True)
    client.publish("q", b"own", TRANSIENT)
    other = BasicClient(world).open()
    other.publish("q", b"other's", TRANSIENT)
    world.run()
    assert bodies(client) == [b"other's"]
    assert other.call("basic.get", queue="q").body == b"own"


def test_a_message_that_expires(world: World, client: BasicClient) -> None:
    client.call("queue.declare", queue="q")
    client.publish("q", b"short", Properties(expiration="1000"))
    client.publish("q", b"long", Properties(expiration="3000"))
    world.now += 2
    assert client.call("basic.get", queue="q").body == b"long"
    client.call("basic.consume", queue="q", no_ack=True)
    client.publish("q", b"at once", Properties(expiration="0"))
    assert bodies(client) == [b"at once"]
    client.publish("q", b"x", Properties(expiration="soon"))
    client.sync()
    assert client.last().values["reply_code"] == 406


def test_messages_beyond_the_limit(world: World) -> None:
    client = BasicClient(World(BrokerSettings(auth=False, max_message_bytes=10_000))).open(1, 2)
    client.call("queue.declare", queue="q")
    client.publish("q", bytes(10_001), TRANSIENT)
    client.publish("q", b"x", TRANSIENT)
    client.publish("q", b"still works", TRANSIENT, channel=2)
    client.sync()
    assert client.last().values["reply_code"] == 406
    assert "10001 bytes" in client.last().values["reply_text"]
    assert client.call("basic.get", 2, queue="q").body == b"still works"


@pytest.mark.parametrize("is_whole", [True, False])
def test_frames_in_flight_of_a_closing_channel_are_ignored(client: BasicClient, is_whole: bool) -> None:
    client.call("queue.declare", queue="q")
    client.method("queue.purge", queue="none")
    message = client.message("q", bytes(9000) if not is_whole else b"x")
    client.send(message * 3)
    client.method("basic.ack", delivery_tag=9)
    client.method("channel.close-ok")
    assert client.call("channel.open").name == "channel.open-ok"
    assert client.call("queue.declare", queue="q", passive=True).values["message_count"] == 0
    client.send(message)
    assert client.call("queue.declare", queue="q", passive=True).values["message_count"] == 1


def test_purging(client: BasicClient) -> None:
    client.call("queue.declare", queue="q")
    for _ in range(3):
        client.publish("q", b"x", TRANSIENT)
    assert client.call("queue.purge", queue="q").values == {"message_count": 3}
    assert client.call("basic.get", queue="q").name == "basic.get-empty"


def test_methods_without_an_answer(client: BasicClient) -> None:
    client.method("exchange.declare", exchange="e", type="fanout", nowait=True)
    client.method("queue.declare", queue="q", nowait=True)
    client.method("queue.bind", queue="q", exchange="e", nowait=True)
    client.method("basic.consume", queue="q", consumer_tag="c", nowait=True)
    client.publish("", b"x", TRANSIENT, exchange="e")
    assert [each.name for each in client.take()] == ["basic.deliver"]
    client.method("basic.cancel", consumer_tag="c", nowait=True)
    client.method("queue.purge", queue="q", nowait=True)
    client.method("queue.delete", queue="q", nowait=True)
    client.method("exchange.delete", exchange="e", nowait=True)
    assert client.take() == []


def test_a_large_message_does_not_break_the_order_of_a_channel(client: BasicClient) -> None:
    client.call("queue.declare", queue="q")
    client.call("basic.consume", queue="q", no_ack=True)
    client.received.clear()
    client.publish("q", bytes(3_000_000), TRANSIENT)
    client.world.run()
    client.method("basic.qos", prefetch_count=1)
    client.publish("q", b"next", TRANSIENT)
    found = client.take()
    assert {each.name for each in found} == {"basic.deliver", "basic.qos-ok"}
    assert sorted(len(each.body) for each in found if each.name == "basic.deliver") == [4, 3_000_000]


def test_a_channel_closed_within_a_large_message_can_be_opened_again(client: BasicClient) -> None:
    client.call("queue.declare", queue="q")
    client.call("basic.consume", queue="q")
    client.publish("q", bytes(3_000_000), PERSISTENT)
    client.method("channel.close")
    client.sync()
    assert client.last().name == "channel.close-ok"
    assert client.call("channel.open").name == "channel.open-ok"
    assert client.call("queue.declare", queue="q", passive=True).values["message_count"] == 1


def test_messages_expire_on_a_queue_with_a_ttl(world: World, client: BasicClient) -> None:
    client.call("queue.declare", queue="t", arguments={"x-message-ttl": 1000})
    client.call("queue.declare", queue="q")
    for queue in ("t", "q"):
        client.call("queue.bind", queue=queue, exchange="amq.fanout")
    client.publish("", b"both", TRANSIENT, exchange="amq.fanout")
    client.publish("t", b"own", Properties(expiration="100"))
    client.call("tx.select")
    client.publish("t", b"tx", TRANSIENT)
    client.call("tx.commit")
    world.now += 0.5
    assert client.call("basic.get", queue="t").body == b"both"
    world.now += 0.6
    assert client.call("basic.get", queue="t").name == "basic.get-empty"
    assert client.call("basic.get", queue="q").body == b"both"


def test_a_message_of_0_10_expires_on_it_as_well(world: World) -> None:
    old = world.open_client()
    BasicClient(world).open().call("queue.declare", queue="t", arguments={"x-message-ttl": 1000})
    old.command("message.transfer", header=header(routing_key="t"), body=b"x")
    world.run()
    (entry,) = world.broker.default_host.queues["t"].entries()
    assert entry.message.expires_at == world.now + 1
    restored = restore_message(b"".join(entry.message.stored_form()[0]))
    assert world.now < restored.expires_at <= world.now + 2


def test_unused_queue_expires(world: World, client: BasicClient) -> None:
    def is_there() -> bool:
        for queue in world.broker.default_host.idle_queues.take_due():
            world.work.append((world.broker.default_host.topology.delete_if_unused(queue), lambda _: None))
        world.run()
        return "e" in world.broker.default_host.queues

    client.call("queue.declare", queue="e", arguments={"x-expires": 1000})
    world.now += 0.9
    assert client.call("basic.get", queue="e").name == "basic.get-empty"
    world.now += 0.9
    assert is_there()
    client.call("basic.consume", queue="e", consumer_tag="c")
    world.now += 5
    assert is_there()
    client.call("basic.cancel", consumer_tag="c")
    world.now += 0.9
    assert is_there()
    client.call("queue.declare", queue="e", arguments={"x-expires": 1000})
    world.now += 0.9
    assert is_there()
    world.now += 0.2
    assert not is_there()


def test_the_oldest_messages_leave_a_queue_at_its_length(client: BasicClient) -> None:
    client.call("queue.declare", queue="l", arguments={"x-max-length": 2})
    for number in range(4):
        client.publish("l", b"%d" % number, TRANSIENT)
    assert [client.call("basic.get", queue="l").body for _ in range(2)] == [b"2", b"3"]


def test_or_the_newest_are_refused(client: BasicClient) -> None:
    arguments = {"x-max-length-bytes": 100, "x-overflow": "reject-publish"}
    client.call("queue.declare", queue="l", arguments=arguments)
    assert client.call("queue.declare", queue="l", arguments=arguments).name == "queue.declare-ok"
    client.call("confirm.select")
    client.publish("l", bytes(60), TRANSIENT)
    client.publish("l", bytes(60), TRANSIENT)
    assert sorted(each.name for each in client.take("basic.ack", "basic.nack")) == ["basic.ack", "basic.nack"]


def test_rejected_publish_is_silent_without_confirms(client: BasicClient) -> None:
    client.call("queue.declare", queue="l", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    for number in range(3):
        client.publish("l", b"%d" % number)
    assert client.call("basic.get", queue="l").body == b"0"
    assert client.call("basic.get", queue="l").name == "basic.get-empty"


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-message-ttl": -1}, {"x-message-ttl": "soon"}, {"x-expires": 0}, {"x-max-length": 0}, {"x-max-length": -1},
        {"x-max-length": "0"}, {"x-max-length-bytes": b"00"}, {"x-max-length": ""},
        {"x-max-length": 1, "qpid.max_count": 1}, {"x-overflow": "reject"},
        {"x-max-length": 1, "qpid.policy_type": "ring"},
    ],
)  # fmt: skip
def test_arguments_that_are_not_valid(client: BasicClient, arguments: dict[str, Any]) -> None:
    assert failed(client, "queue.declare", queue="l", arguments=arguments)[:2] == ("channel.close", 406)


def test_timestamps_that_are_switched_on_later_are_those_of_messages_like_earlier_ones_too(client: BasicClient) -> None:
    client.call("queue.declare", queue="q")
    client.call("basic.consume", queue="q", no_ack=True)
    for is_on in (False, True, False):
        client.machine.set_timestamps(is_on=is_on)
        client.publish("q")
        client.send(b"".join(client.message("q") for _ in range(8)))  # which may be a run
        stamps = [each.properties is not None and each.properties.timestamp for each in client.take("basic.deliver")]
        assert stamps == [int(client.world.now) if is_on else None] * 9
