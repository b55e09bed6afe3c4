"""Further routing keys in the headers CC and BCC: where a message goes, and what its consumers see of them."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from qstore.broker.model.errors import InvalidArgumentError
from qstore.broker.model.message import MAX_KEYS, Handling, selected_keys
from qstore.broker.protocols.amqp_0_9_1.message import BasicMessage, with_keys
from qstore.broker.protocols.stored_messages import restore_message
from qstore.formats.amqp_0_9_1.methods import encode_routed
from qstore.formats.amqp_0_9_1.properties import Properties, encode_header
from qstore.formats.values import typed_map
from tests.broker.protocols.basic_client import BasicClient
from tests.broker.protocols.test_basic_dead_letters import NACK, client, got, headers_of, plain, totals
from tests.broker.protocols.world import World

__all__ = ("client",)  # a fixture


def keyed(**headers: Any) -> Properties:
    return Properties(headers=typed_map({"own": 1, **headers}))


@pytest.fixture
def queues(client: BasicClient) -> BasicClient:
    for name in ("a", "b", "c"):
        client.call("queue.declare", queue=name)
    return client


def test_each_queue_gets_the_message_once(world: World, queues: BasicClient) -> None:
    queues.publish("a", b"to all", keyed(CC=["b", "a", "nobody"], BCC=["c", "b"]))
    assert [totals(world, name).messages for name in "abc"] == [1, 1, 1]
    for name in "abc":
        found = got(queues, name)
        assert (found.body, found.values["routing_key"]) == (b"to all", "a")
        assert headers_of(found) == {"own": 1, "CC": ["b", "a", "nobody"]}


def test_consumers_do_not_see_bcc(queues: BasicClient) -> None:
    queues.call("basic.consume", queue="b", consumer_tag="t", no_ack=True)
    queues.publish("a", b"x", keyed(BCC=["b"]))
    assert headers_of(queues.take("basic.deliver")[0]) == {"own": 1}


@pytest.mark.parametrize("kind", ["direct", "topic", "fanout", "headers"])
@pytest.mark.parametrize("is_chained", [False, True])
def test_every_type_of_exchange(world: World, queues: BasicClient, kind: str, is_chained: bool) -> None:
    queues.call("exchange.declare", exchange="x", type=kind)
    source = "x"
    if is_chained:
        source = "source"
        queues.call("exchange.declare", exchange=source, type="fanout")
        queues.call("exchange.bind", destination="x", source=source)
    arguments = {"own": 1} if kind == "headers" else {}
    for name in "ab":
        queues.call("queue.bind", queue=name, exchange="x", routing_key=f"key.{name}", arguments=arguments)
    queues.publish("key.a", b"x", keyed(CC=["key.b"], BCC=["key.a"]), exchange=source)
    assert [totals(world, name).messages for name in "abc"] == [1, 1, 0]
    exchange = world.broker.default_host.exchanges[source].counts
    assert exchange.messages_routed == 2


def test_a_mandatory_message_is_returned_only_if_no_key_has_a_queue(world: World, queues: BasicClient) -> None:
    queues.publish("nobody", b"1", keyed(CC=["b"]), mandatory=True)
    assert (queues.take("basic.return"), totals(world, "b").messages) == ([], 1)
    queues.publish("nobody", b"2", keyed(CC=["else"], BCC=["other"]), mandatory=True)
    (returned,) = queues.take("basic.return")
    assert (returned.values["reply_code"], returned.values["routing_key"]) == (312, "nobody")
    assert headers_of(returned) == {"own": 1, "CC": ["else"]}


def test_alternate_exchange_gets_messages_no_key_routes(world: World, queues: BasicClient) -> None:
    queues.call("exchange.declare", exchange="other", type="direct")
    queues.call("queue.bind", queue="c", exchange="other", routing_key="second")
    queues.call("exchange.declare", exchange="x", type="direct", arguments={"alternate-exchange": "other"})
    queues.publish("first", b"1", keyed(CC=["second"]), exchange="x")
    assert totals(world, "c").messages == 1
    queues.call("queue.bind", queue="a", exchange="x", routing_key="second")
    queues.publish("first", b"2", keyed(CC=["second"]), exchange="x")
    assert [totals(world, name).messages for name in "ac"] == [1, 1]


def test_in_a_transaction(world: World, queues: BasicClient) -> None:
    queues.call("tx.select")
    queues.publish("a", b"x", keyed(CC=["b"], BCC=["c"]))
    assert totals(world, "b").messages == 0
    queues.call("tx.commit")
    assert [totals(world, name).messages for name in "abc"] == [1, 1, 1]


@pytest.mark.parametrize("name", ["CC", "BCC"])
@pytest.mark.parametrize("value", ["b", 1, True, {"b": 1}])
def test_sender_keys_that_are_no_list_close_the_channel(queues: BasicClient, name: str, value: Any) -> None:
    queues.publish("a", b"x", keyed(**{name: value}))
    (closed,) = queues.take("channel.close")
    assert closed.values["reply_code"] == 406
    assert closed.values["reply_text"].startswith(f"PRECONDITION_FAILED - invalid message: header '{name}' ")


def test_there_is_a_limit_of_them() -> None:
    keys = ["b"] * MAX_KEYS
    assert selected_keys(typed_map({"CC": keys}), "CC") == tuple(keys)
    with pytest.raises(InvalidArgumentError, match="'CC' has more than 1000 keys"):
        selected_keys(typed_map({"CC": [*keys, "b"]}), "CC")


def test_elements_that_are_no_texts_do_not_count(world: World, queues: BasicClient) -> None:
    queues.publish("a", b"x", keyed(CC=[1, "b", None, ["c"]]))
    assert [totals(world, name).messages for name in "abc"] == [1, 1, 0]


def test_headers_that_only_look_like_them(world: World, queues: BasicClient) -> None:
    queues.publish("a", b"CC", Properties(headers=typed_map({"ACCESS": ["b"], "cc": ["b"], "n": {"CC": ["b"]}})))
    queues.publish("a", b"CC", Properties(message_id="CC"))
    assert [totals(world, name).messages for name in "abc"] == [2, 0, 0]


def test_dead_letters_are_routed_by_all_keys(world: World, queues: BasicClient) -> None:
    queues.call("exchange.declare", exchange="dlx", type="direct")
    for name in ("b", "c"):
        queues.call("queue.bind", queue=name, exchange="dlx", routing_key=f"to-{name}")
    queues.call("queue.declare", queue="q", arguments={"x-dead-letter-exchange": "dlx"})
    queues.publish("q", b"x", keyed(CC=["to-b"], BCC=["to-c"]))
    queues.call("basic.get", queue="q")
    queues.method("basic.nack", **NACK)
    found = [got(queues, name) for name in "bc"]
    for each in found:
        headers = headers_of(each)
        assert (headers["CC"], "BCC" in headers) == (["to-b"], False)
        assert headers["x-death"][0]["routing-keys"] == ["q", "to-b"]


def test_a_key_for_dead_letters_replaces_them_all(world: World, queues: BasicClient) -> None:
    to = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    queues.call("queue.declare", queue="q", arguments=to)
    queues.publish("q", b"x", keyed(CC=["b"], BCC=["c"]))
    for name in "bc":
        got(queues, name)
    queues.call("basic.get", queue="q")
    queues.method("basic.nack", **NACK)
    headers = headers_of(got(queues, "dead"))
    assert not {"CC", "BCC"} & set(headers)
    assert headers["x-death"][0]["routing-keys"] == ["q", "b"]
    assert [totals(world, name).messages for name in "bc"] == [0, 0]


def test_a_stored_message_keeps_its_keys() -> None:
    """And its consumers do not see BCC after a restart, either."""
    header = encode_header(1, keyed(CC=["b"], BCC=["c"]))
    routed = encode_routed("", "a")
    first = with_keys(BasicMessage(header, b"x", "", "a", routed, True, Handling(priority=0), 0.0))
    again = restore_message(b"".join(first.stored_form()[0]))
    for each in (first, again, again.expiring_at(5.0), again.with_headers({})):
        assert isinstance(each, BasicMessage)
        assert [other.routing_key for other in each.under_further_keys()] == ["b", "c"]
        assert plain(each.headers()) == {"own": 1, "CC": ["b"]}
    damaged = encode_header(1, keyed(CC="b"))
    stored = BasicMessage(damaged, b"x", "", "a", routed, True, Handling(priority=0), 0.0).stored_form()
    assert restore_message(b"".join(stored[0])).under_further_keys() == ()


def test_its_size_is_that_of_all_its_headers() -> None:
    """What consumers do not see counts against the limits of a queue and of memory as well; and keys take no more."""
    header = encode_header(1, keyed(CC=["b"], BCC=[f"{number:>0100}" for number in range(MAX_KEYS)]))
    whole = BasicMessage(header, b"x", "", "a", encode_routed("", "a"), True, Handling(priority=0), 0.0)
    tracemalloc.start()
    message = with_keys(whole)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    again = restore_message(b"".join(message.stored_form()[0]))
    assert [each.size for each in (message, message.expiring_at(5.0), again)] == [len(header) + 1] * 3
    assert len(message.header) < 100
    assert held < 10_000
