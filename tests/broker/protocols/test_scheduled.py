"""Scheduled delivery: which messages wait, for how long, and what becomes of them then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from qstore.broker.model.authorization import Action, ObjectType, Publishing
from qstore.broker.model.message import LargeContent
from qstore.broker.model.policies import Policy
from qstore.broker.model.queues.due import WAITING
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.residency.references import Reference
from qstore.broker.model.schedule import EXPIRES, MAX_TIME, PUBLISHER, Schedule
from qstore.broker.protocols.amqp_0_9_1.message import BasicMessage
from qstore.broker.protocols.amqp_1_0.message import SectionMessage, mentions_delivery
from qstore.broker.protocols.stored_messages import restore_message
from qstore.formats.amqp_0_9_1.properties import Properties
from qstore.formats.amqp_1_0.composites import Composite
from qstore.formats.amqp_1_0.sections import (
    MESSAGE_ANNOTATIONS,
    VALUE,
    encode_section,
    section_value,
    split_sections,
)
from qstore.formats.amqp_1_0.values import Value, plain_key
from qstore.formats.plain import plain_map
from qstore.formats.values import typed_map
from tests.broker.protocols.basic_client import BasicClient, Received
from tests.broker.protocols.links_client import LinksClient, make_queue
from tests.broker.protocols.test_links_transactions import attach as attach_control
from tests.broker.protocols.test_links_transactions import command, declare
from tests.broker.protocols.world import World, header
from tests.support.sections_peer import address, content

DELAYED = {"exchange": "later", "type": "x-delayed-message", "durable": True}
START = 1_000_000.0


@pytest.fixture
def client(world: World) -> BasicClient:
    client = BasicClient(world).open()
    client.call("queue.declare", queue="q")
    client.call("exchange.declare", **DELAYED, arguments={"x-delayed-type": "direct"})
    client.call("queue.bind", queue="q", exchange="later", routing_key="k")
    client.take()
    return client


def schedule(world: World) -> Schedule:
    return world.broker.default_host.schedule


def waiting(world: World) -> int:
    queue = schedule(world).queue
    return -1 if queue is None else queue.message_count


def wait(world: World, seconds: float) -> None:
    """Let time pass, and deliver what is due."""
    world.now += seconds
    schedule(world).deliver()
    world.run()


def delayed(milliseconds: Any, **values: Any) -> Properties:
    return Properties(delivery_mode=2, headers=typed_map({"x-delay": milliseconds}), **values)


def got(client: BasicClient, queue: str = "q") -> Received | None:
    found = client.call("basic.get", queue=queue, no_ack=True)
    return found if found.name == "basic.get-ok" else None


def headers_of(message: Received | None) -> dict[str, Any]:
    assert message is not None
    assert message.properties is not None
    return {} if message.properties.headers is None else plain_map(message.properties.headers)


# ---- exchanges of type x-delayed-message ----


def test_a_message_with_a_delay_waits(world: World, client: BasicClient) -> None:
    client.publish("k", b"later", delayed(5000), exchange="later")
    client.sync()
    assert (waiting(world), got(client)) == (1, None)
    wait(world, 4.9)
    assert got(client) is None
    wait(world, 0.2)
    found = got(client)
    assert (headers_of(found), waiting(world)) == ({"x-delay": -5000}, 0)
    assert found is not None
    assert (found.body, found.values["exchange"], found.values["routing_key"]) == (b"later", "later", "k")


@pytest.mark.parametrize("delay", [0, -5000, "5000", True, 2.5])
def test_other_values_delay_nothing(world: World, client: BasicClient, delay: object) -> None:
    client.publish("k", b"now", delayed(delay), exchange="later")
    client.publish("k", b"plain", exchange="later")
    client.sync()
    assert headers_of(got(client)) == {"x-delay": delay}
    assert (headers_of(got(client)), waiting(world)) == ({}, 0)


def test_messages_are_delivered_by_time_and_then_in_order(world: World, client: BasicClient) -> None:
    for delay, body in ((300, b"d"), (100, b"a"), (200, b"b"), (200, b"c")):
        client.publish("k", body, delayed(delay), exchange="later")
    client.sync()
    wait(world, 0.25)
    bodies = [found.body for found in iter(lambda: got(client), None)]
    wait(world, 1)
    last = got(client)
    assert last is not None
    assert (bodies, last.body) == ([b"a", b"b", b"c"], b"d")


@pytest.mark.parametrize(
    ("kind", "key", "arguments"),
    [("direct", "k", {}), ("topic", "*.b", {}), ("fanout", "", {}), ("headers", "", {"x-match": "all", "own": 1})],
)
def test_it_routes_as_its_type(
    world: World, client: BasicClient, kind: str, key: str, arguments: dict[str, Any]
) -> None:
    client.call("exchange.declare", **{**DELAYED, "exchange": "x"}, arguments={"x-delayed-type": kind})
    client.call("queue.bind", queue="q", exchange="x", routing_key=key, arguments=arguments)
    own = Properties(headers=typed_map({"x-delay": 10, "own": 1}))
    for routing_key in ("k", "a.b", "other"):
        client.publish(routing_key, routing_key.encode(), own, exchange="x")
    client.sync()
    assert waiting(world) == 3
    wait(world, 1)
    bodies = [found.body for found in iter(lambda: got(client), None)]
    everything = [b"k", b"a.b", b"other"]
    assert bodies == {"direct": [b"k"], "topic": [b"a.b"]}.get(kind, everything)


def test_bindings_count_when_it_is_delivered(world: World, client: BasicClient) -> None:
    client.publish("k", b"x", delayed(100), exchange="later")
    client.publish("new", b"y", delayed(100), exchange="later")
    client.call("queue.unbind", queue="q", exchange="later", routing_key="k")
    client.call("queue.bind", queue="q", exchange="later", routing_key="new")
    wait(world, 1)
    found = got(client)
    assert found is not None
    assert (found.body, got(client), waiting(world)) == (b"y", None, 0)


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("x-consistent-hash", {}), ("x-consistent-hash", {"hash-header": "h"}), ("x-modulus-hash", {}),
        ("x-random", {}), ("x-local-random", {}),
    ],
)  # fmt: skip
def test_it_divides_as_the_types_of_plug_ins_when_messages_are_due(
    world: World, client: BasicClient, kind: str, arguments: dict[str, Any]
) -> None:
    types = {"x-delayed-type": kind, **arguments}
    client.call("exchange.declare", **{**DELAYED, "exchange": "x"}, arguments=types)
    queues = ("q", "r", "s")
    for name in queues:
        client.call("queue.declare", queue=name)
        client.call("queue.bind", queue=name, exchange="x", routing_key="1")
    for number in range(60):
        headers = typed_map({"x-delay": 1000, "h": number})
        client.publish(f"{number}", b"x", Properties(delivery_mode=2, headers=headers), exchange="x")
    client.sync()
    assert waiting(world) == 60
    wait(world, 2)
    found = [world.broker.default_host.queues[name].message_count for name in queues]
    assert (sum(found), min(found) > 0, waiting(world)) == (60, True, 0)
    refused = client.call("exchange.bind", destination="x", source="amq.topic", routing_key="1")
    assert (refused.name, refused.values["reply_code"]) == ("channel.close", 406)


def test_an_argument_of_another_type_is_ignored(world: World, client: BasicClient) -> None:
    """As by RabbitMQ, whose client for Python is tested so."""
    arguments = {"x-delayed-type": "direct", "hash-header": "h"}
    declared = client.call("exchange.declare", exchange="x", type="x-local-random", arguments=arguments)
    assert declared.name == "exchange.declare-ok"
    assert world.broker.default_host.exchanges["x"].type_name == "x-local-random"
    declared = client.call("exchange.declare", **{**DELAYED, "exchange": "y"}, arguments=arguments)
    assert declared.name == "exchange.declare-ok"


@pytest.mark.parametrize(
    "arguments",
    [
        {}, {"x-delayed-type": 5}, {"x-delayed-type": "x-delayed-message"}, {"x-delayed-type": "xml"},
        {"x-delayed-type": "x-recent-history"}, {"x-delayed-type": "replication"}, {"x-delayed-type": "none"},
        {"x-delayed-type": "x-consistent-hash", "hash-header": "a", "hash-property": "message_id"},
    ],
)  # fmt: skip
def test_a_type_is_needed(world: World, client: BasicClient, arguments: dict[str, Any]) -> None:
    closed = client.call("exchange.declare", **{**DELAYED, "exchange": "x"}, arguments=arguments)
    assert (closed.name, closed.values["reply_code"]) == ("channel.close", 406)
    assert ("hash-header" if "hash-header" in arguments else "x-delayed-type") in closed.values["reply_text"]
    assert "x" not in world.broker.default_host.exchanges


def test_it_is_declared_again_and_passively(client: BasicClient) -> None:
    again = client.call("exchange.declare", **DELAYED, arguments={"x-delayed-type": "direct"})
    assert again.name == "exchange.declare-ok"
    assert client.call("exchange.declare", exchange="later", passive=True).name == "exchange.declare-ok"
    other = client.call("exchange.declare", **DELAYED, arguments={"x-delayed-type": "topic"})
    assert (other.name, other.values["reply_code"]) == ("channel.close", 406)


def test_a_mandatory_message_that_waits_is_not_returned(world: World, client: BasicClient) -> None:
    client.call("confirm.select")
    client.take()
    client.publish("nowhere", b"a", delayed(100), exchange="later", mandatory=True)
    client.publish("nowhere", b"b", exchange="later", mandatory=True)
    assert [each.body for each in client.take("basic.return")] == [b"b"]
    wait(world, 1)
    assert (client.take("basic.return"), waiting(world)) == ([], 0)


def test_a_message_without_a_queue_goes_to_the_alternate_exchange_when_it_is_due(
    world: World, client: BasicClient
) -> None:
    arguments = {"x-delayed-type": "direct", "alternate-exchange": "amq.fanout"}
    client.call("exchange.declare", **{**DELAYED, "exchange": "x"}, arguments=arguments)
    client.call("queue.bind", queue="q", exchange="amq.fanout", routing_key="")
    client.publish("nowhere", b"a", delayed(100), exchange="x")
    client.sync()
    assert got(client) is None
    wait(world, 1)
    assert headers_of(got(client)) == {"x-delay": -100}


def test_transactions_schedule_at_their_commit(world: World, client: BasicClient) -> None:
    client.call("tx.select")
    for mandatory in (False, True):
        client.publish("k", b"x", delayed(100), exchange="later", mandatory=mandatory)
    client.sync()
    assert waiting(world) == 0
    client.take()
    client.call("tx.rollback")
    client.publish("k", b"y", delayed(100), exchange="later", mandatory=True)
    assert client.call("tx.commit").name == "tx.commit-ok"
    assert (waiting(world), client.take("basic.return")) == (1, [])
    wait(world, 1)
    found = got(client)
    assert found is not None
    assert (found.body, got(client)) == (b"y", None)


def test_time_to_live_begins_at_the_delivery(world: World, client: BasicClient) -> None:
    client.publish("k", b"a", delayed(5000, expiration="1000"), exchange="later")
    client.sync()
    wait(world, 5)
    queue = world.broker.default_host.queues["q"]
    (entry,) = queue.entries()
    assert entry.message.expires_at == pytest.approx(START + 6)
    found = got(client)
    assert headers_of(found) == {"x-delay": -5000}
    assert found is not None
    assert found.properties is not None
    assert found.properties.expiration == "1000"


def test_a_message_is_numbered_and_kept_by_its_exchange_when_it_is_delivered(world: World, client: BasicClient) -> None:
    arguments = {"x-delayed-type": "fanout", "qpid.msg_sequence": 1, "qpid.ive": 1}
    client.call("exchange.declare", **{**DELAYED, "exchange": "x"}, arguments=arguments)
    client.call("queue.bind", queue="q", exchange="x", routing_key="")
    client.publish("k", b"later", delayed(100), exchange="x")
    client.publish("k", b"now", exchange="x")
    client.sync()
    wait(world, 1)
    assert headers_of(got(client)) == {"qpid.msg_sequence": 0}
    assert headers_of(got(client)) == {"x-delay": -100, "qpid.msg_sequence": 1}
    client.call("queue.declare", queue="other")
    client.call("queue.bind", queue="other", exchange="x", routing_key="")
    found = got(client, "other")
    assert found is not None
    assert found.body == b"later"


def test_keys_in_cc_and_bcc_count_when_it_is_delivered(world: World, client: BasicClient) -> None:
    client.call("queue.declare", queue="p")
    client.call("queue.bind", queue="p", exchange="later", routing_key="secret")
    keys = Properties(headers=typed_map({"x-delay": 50, "CC": ["k"], "BCC": ["secret"]}))
    client.publish("none", b"x", keys, exchange="later")
    client.sync()
    wait(world, 1)
    assert headers_of(got(client)) == headers_of(got(client, "p")) == {"x-delay": -50, "CC": ["k"]}


def test_0_10_publishes_there_too(world: World, client: BasicClient) -> None:
    other = world.open_client()
    head = header({"application_headers": typed_map({"x-delay": 2000})}, routing_key="k", delivery_mode=2, ttl=500)
    other.command("message.transfer", destination="later", header=head, body=b"x")
    other.sync()
    assert waiting(world) == 1
    wait(world, 2)
    other.subscribe("q")
    (found,) = other.deliveries
    assert "expiration" in found.properties
    message = next(iter(world.broker.default_host.queues["q"].entries())).message
    assert plain_map(message.headers()) == {"x-delay": -2000}
    assert message.expires_at == pytest.approx(START + 2.5, abs=0.01)


def test_exchanges_are_not_bound_to_it(client: BasicClient) -> None:
    closed = client.call("exchange.bind", destination="amq.fanout", source="later", routing_key="")
    assert (closed.name, closed.values["reply_code"]) == ("channel.close", 406)


# ---- the queue of waiting messages ----


def test_no_client_reaches_the_waiting_messages(world: World, client: BasicClient) -> None:
    client.publish("k", b"x", delayed(100), exchange="later")
    client.publish(WAITING, b"not scheduled", delayed(100))
    client.sync()
    assert waiting(world) == 1
    for name, values in (
        ("basic.get", {"queue": WAITING}),
        ("basic.consume", {"queue": WAITING}),
        ("queue.purge", {"queue": WAITING}),
        ("queue.delete", {"queue": WAITING}),
        ("queue.declare", {"queue": WAITING, "durable": True}),
        ("queue.bind", {"queue": WAITING, "exchange": "amq.fanout", "routing_key": ""}),
    ):
        closed = client.call(name, **values)
        assert (closed.name, closed.values["reply_code"]) == ("channel.close", 405), name
        client.method("channel.close-ok")
        client.call("channel.open")
    assert waiting(world) == 1


def test_no_key_leads_to_the_waiting_messages(world: World, client: BasicClient) -> None:
    client.call("confirm.select")
    client.take()
    client.publish(WAITING, b"a", delayed(100), mandatory=True)
    client.publish("q", b"b", Properties(headers=typed_map({"CC": [WAITING], "x-delay": 100})))
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": WAITING, "x-message-ttl": 0}
    client.call("queue.declare", queue="dead", arguments=arguments)
    client.publish("dead", b"c", delayed(100))
    client.sync()
    assert [each.body for each in client.take("basic.return")] == [b"a"]
    world.now += 1
    world.broker.expire()
    world.run()
    found = got(client)
    assert found is not None
    assert (found.body, got(client), waiting(world)) == (b"b", None, 0)


def test_no_client_can_make_such_a_queue() -> None:
    fresh = World()
    closed = BasicClient(fresh).open().call("queue.declare", queue=WAITING)
    assert (closed.values["reply_code"], schedule(fresh).queue) == (403, None)


def test_policies_and_the_purge_of_expired_messages_leave_it_alone(world: World, client: BasicClient) -> None:
    policy = Policy("/", "all", ".*", "queues", 0, {"max-length": 1, "message-ttl": 1})
    asyncio.run(world.broker.policies.set(policy))
    for _ in range(2):
        client.publish("k", b"x", delayed(100), exchange="later")
    client.sync()
    world.now += 5
    world.broker.expire()
    world.run()
    assert waiting(world) == 2


def test_a_message_without_its_exchange_is_dropped_and_logged(
    world: World, client: BasicClient, caplog: pytest.LogCaptureFixture
) -> None:
    client.publish("k", b"x", delayed(100), exchange="later")
    client.publish("k", b"y", delayed(100), exchange="later")
    client.call("exchange.delete", exchange="later")
    wait(world, 1)
    assert waiting(world) == 0
    (line,) = [each.getMessage() for each in caplog.records if "dropped" in each.getMessage()]
    assert 'exchange "later" does not exist any more' in line


@pytest.mark.parametrize("step", [0, 3 * 3600, -3 * 3600])
def test_a_full_queue_is_tried_again_and_holds_up_no_other(world: World, client: BasicClient, step: int) -> None:
    """Nor do the attempts wait for the time of day, which may be set meanwhile."""
    client.call("queue.declare", queue="full", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    client.call("queue.bind", queue="full", exchange="later", routing_key="f")
    client.publish("full", b"first")
    for body in (b"a", b"b"):
        client.publish("f", body, delayed(100), exchange="later")
    client.publish("k", b"other", delayed(200), exchange="later")
    client.sync()
    wait(world, 0.3)
    found = got(client)
    assert found is not None
    assert (found.body, waiting(world)) == (b"other", 2)
    assert got(client, "full") is not None
    world.stepped += step
    wait(world, 0.5)
    assert got(client, "full") is None  # not yet
    wait(world, 0.6)
    found = got(client, "full")
    assert found is not None
    assert (found.body, waiting(world)) == (b"a", 1)
    wait(world, 1.9)
    assert got(client, "full") is None
    wait(world, 0.2)
    found = got(client, "full")
    assert found is not None
    assert (found.body, waiting(world)) == (b"b", 0)


class Bars:
    """Lets everybody publish everything but what it is told."""

    def __init__(self) -> None:
        self.barred: set[tuple[str, str, str]] = set()
        self.asked: list[tuple[str, str, str]] = []

    checks_publish = True

    def allows(self, _caller: Any, _action: Action, _kind: ObjectType, _name: str, _properties: Any) -> bool:
        return True

    def publishing(self, caller: Any, exchange: str, key: str) -> Publishing:
        self.asked.append((caller.user, exchange, key))
        return Publishing.REFUSED if self.asked[-1] in self.barred else Publishing.ONCE

    def allows_forwarding(self, _caller: Any, _exchange: str, _pattern: str) -> bool:
        return True


def test_its_publisher_needs_the_permission_when_it_is_delivered(
    world: World, client: BasicClient, caplog: pytest.LogCaptureFixture
) -> None:
    bars = world.broker.authorization.authorizer = Bars()
    user = client.machine.user
    forged = typed_map({"x-delay": 100, PUBLISHER: "admin@QPID", EXPIRES: 5})
    client.publish("k", b"x", Properties(headers=forged), exchange="later")
    client.publish("k", b"y", delayed(300), exchange="later")
    client.method("channel.close", reply_code=200, reply_text="", class_id=0, method_id=0)
    client.sync()
    bars.asked.clear()
    wait(world, 0.2)
    bars.barred.add((user, "later", "k"))
    wait(world, 1)
    assert bars.asked == [(user, "later", "k")] * 2
    assert [each.message.body for each in world.broker.default_host.queues["q"].entries()] == [b"x"]
    assert waiting(world) == 0
    assert any(f"{user} is not allowed to publish" in each.getMessage() for each in caplog.records)
    client.call("channel.open")
    assert headers_of(got(client)) == {"x-delay": -100}  # what a client has forged is gone


def test_many_are_delivered_in_turns(world: World, client: BasicClient) -> None:
    for number in range(250):
        client.publish("k", b"%d" % number, delayed(10), exchange="later")
    client.sync()
    world.now += 1
    schedule(world).deliver()
    counts = []
    while world.soon:
        world.soon.pop(0)()
        counts.append(waiting(world))
    steps = [before - after for before, after in zip([250, *counts], counts, strict=False)]
    assert (counts[-1], max(steps)) == (0, 100)


def test_a_timer_rings_when_the_first_is_due() -> None:
    calls: list[tuple[float, Callable[[], None]]] = []
    world = World()
    schedule(world)._call_later = lambda delay, work: calls.append((delay, work))
    client = BasicClient(world).open()
    client.call("queue.declare", queue="q")
    client.call("exchange.declare", **DELAYED, arguments={"x-delayed-type": "fanout"})
    client.call("queue.bind", queue="q", exchange="later", routing_key="")
    for delay in (500_000, 20_000, 30_000):
        client.publish("k", b"x", delayed(delay), exchange="later")
    client.sync()
    assert [round(delay, 3) for delay, _ in calls] == [60, 20]
    world.now += 20
    calls[0][1]()  # another timer was started since
    world.run()
    assert got(client) is None
    calls.pop()[1]()
    world.run()
    assert got(client) is not None
    assert round(calls[-1][0], 3) == 10
    world.stepped = 10  # the time of day was set
    calls.pop()[1]()
    world.run()
    assert (got(client) is not None, round(calls[-1][0], 3)) == (True, 60)
    world.broker.stop_timers()
    world.stepped += 1000
    calls.pop()[1]()
    world.run()
    assert (waiting(world), calls[1:]) == (1, [])


def test_each_virtual_host_has_its_own(world: World) -> None:
    asyncio.run(world.broker.virtual_hosts.create("other"))
    client = LinksClient(world).open(hostname="vhost:other")
    host = world.broker.hosts["other"]
    client.call("attach", name="l", handle=0, role=False, target=Composite("target", {"address": address("amq.topic")}))
    client.publish(message=scheduled(("x-opt-delivery-delay", "ulong", 100)))
    client.sync()
    assert schedule(world).queue is None
    assert host.schedule.queue is not None
    assert host.schedule.queue.message_count == 1
    asyncio.run(world.broker.virtual_hosts.delete("other"))
    host.schedule.deliver()
    world.run()
    assert host.schedule.queue is None


# ---- on the disk ----


def store_waiting(world: World) -> Queue:
    """The queue of waiting messages, on the disk that waits."""
    queue = schedule(world).queue
    assert queue is not None
    world._keep(queue)
    return queue


def test_a_waiting_message_is_confirmed_when_it_is_on_the_disk(world: World, client: BasicClient) -> None:
    store_waiting(world)
    client.call("confirm.select")
    client.take()
    client.publish("k", b"x", delayed(5000, expiration="1000"), exchange="later")
    client.sync()
    assert client.take("basic.ack") == []
    world.store.end_flush()
    assert len(client.take("basic.ack")) == 1
    stored = restore_message(world.store.enqueued[0])
    assert isinstance(stored, BasicMessage)
    assert (stored.expires_at, stored.exchange, stored.routing_key) == (START + 5, "later", "k")
    assert plain_map(stored.headers()) == {
        "x-delay": 5000, EXPIRES: int((START + 6) * 1000), PUBLISHER: client.machine.user,
    }  # fmt: skip


def test_a_due_message_leaves_when_it_is_on_the_disk_at_its_destination(world: World, client: BasicClient) -> None:
    store_waiting(world)
    world.durable_queue("d")
    client.call("queue.bind", queue="d", exchange="later", routing_key="k")
    client.publish("k", b"x", delayed(100), exchange="later")
    client.sync()
    world.store.end_flush()
    wait(world, 1)
    assert (len(world.store.enqueued), world.store.dequeued, waiting(world)) == (2, [], 1)
    world.store.end_flush()
    world.run()
    assert (world.store.dequeued, waiting(world)) == ([1], 0)


def test_after_a_failed_flush_it_waits_and_is_tried_again(world: World, client: BasicClient) -> None:
    queue = store_waiting(world)
    world.durable_queue("d")
    client.call("queue.bind", queue="d", exchange="later", routing_key="k")
    client.publish("k", b"x", delayed(100), exchange="later")
    client.sync()
    world.store.end_flush()
    wait(world, 1)
    world.store.end_flush(world.store.FailedError("the disk"))
    world.run()
    assert (world.store.dequeued, queue.available_count) == ([], 1)
    wait(world, 1.1)
    world.store.end_flush()
    world.run()
    assert (world.store.dequeued, waiting(world)) == ([1], 0)


def test_a_message_that_cannot_be_dropped_is_tried_again(world: World, client: BasicClient) -> None:
    bars = world.broker.authorization.authorizer = Bars()
    store_waiting(world)
    for delay in (100, 5000):
        client.publish("k", b"%d" % delay, delayed(delay), exchange="later")
    client.sync()
    world.store.end_flush()
    bars.barred.add((client.machine.user, "later", "k"))
    world.store.failing = world.store.FailedError("the disk")
    wait(world, 1)
    assert waiting(world) == 2
    world.store.failing = None
    wait(world, 1.1)
    assert (waiting(world), world.store.dequeued) == (1, [1])


def test_what_is_recovered_is_due_at_the_same_time(world: World, client: BasicClient) -> None:
    store_waiting(world)
    for delay in (9000, 100):
        client.publish("k", b"%d" % delay, delayed(delay), exchange="later")
    client.sync()
    after = World()
    other = BasicClient(after).open()
    other.call("queue.declare", queue="q")
    other.call("exchange.declare", **DELAYED, arguments={"x-delayed-type": "direct"})
    other.call("queue.bind", queue="q", exchange="later", routing_key="k")
    queue = schedule(after).queue
    assert queue is not None
    for rid, data in enumerate(world.store.enqueued, 1):
        queue.enter(restore_message(data), rid)
    after._keep(queue)
    queue.end_recovery()
    wait(after, 1)
    found = got(other)
    assert headers_of(found) == {"x-delay": -100}
    wait(after, 7.9)
    assert got(other) is None
    wait(after, 0.2)
    assert headers_of(got(other)) == {"x-delay": -9000}
    assert after.store.dequeued == [2, 1]


def test_messages_out_of_memory_are_read_when_they_are_due(world: World, client: BasicClient) -> None:
    queue = store_waiting(world)
    store: Any = world.store
    paged = world.paged_queue("other")
    assert paged.residency is not None
    residency = queue.residency = type(paged.residency)(paged.residency._stored, None, 1 << 40, has_stretches=True)
    residency.attach(queue, queue._consumers, queue._barriers)
    for number in range(100):
        client.publish("k", b"%d" % number * 5000, delayed(1000 - number), exchange="later")
    client.sync()
    while store.flushes:
        store.end_flush()
        world.run()
    residency.relieve(1 << 30, is_urgent=True)
    assert sum(isinstance(entry.message, Reference) for entry in queue.entries()) > 50
    wait(world, 2)
    while store.flushes:
        store.end_flush()
        world.run()
    bodies = [found.body for found in iter(lambda: got(client), None)]
    assert bodies == [b"%d" % number * 5000 for number in reversed(range(100))]


# ---- annotations of AMQP 1.0 ----


def scheduled(*annotations: tuple[str, str, Any], body: bytes = b"x", **options: Any) -> bytes:
    """A message with annotations: the name, type and value of each."""
    pairs = tuple((Value("symbol", name), Value(kind, value)) for name, kind, value in annotations)
    plain = content(body, **options)
    at = split_sections(plain).header[1]
    return plain[:at] + encode_section(MESSAGE_ANNOTATIONS, Value("map", pairs)) + plain[at:]


@pytest.fixture
def links(world: World) -> LinksClient:
    make_queue(world)
    client = LinksClient(world).open()
    client.call("attach", name="l", handle=0, role=False, target=Composite("target", {"address": address("q")}))
    source = Composite("source", {"address": address("q")})
    client.call("attach", name="r", handle=1, role=True, source=source, snd_settle_mode=1)
    client.credit(1000, 1)
    client.take()
    return client


def test_the_annotations_delay_a_message_to_a_queue(world: World, links: LinksClient) -> None:
    at = int((START + 3) * 1000)
    links.publish(message=scheduled(("x-opt-delivery-delay", "ulong", 2000), body=b"delay"))
    links.publish(message=scheduled(("x-opt-delivery-time", "long", at), body=b"time"))
    links.publish(message=scheduled(("x-opt-delivery-time", "timestamp", at + 1000), body=b"timestamp"))
    links.publish(
        message=scheduled(("x-opt-delivery-time", "long", 5), ("x-opt-delivery-delay", "int", 9), body=b"past")
    )
    assert links.outcomes() == [(0, 3, "accepted")]
    bodies = []
    for _ in range(5):
        bodies.append([each.body[-9:] for each in links.messages()])
        wait(world, 1)
    assert [[body[-5:] for body in each] for each in bodies] == [
        [b"\x04past"], [], [b"delay"], [b"\x04time"], [b"stamp"],
    ]  # fmt: skip
    assert waiting(world) == 0


def test_annotations_stay_and_the_publisher_is_not_shown(world: World, links: LinksClient) -> None:
    links.publish(
        message=scheduled(("x-opt-delivery-delay", "ulong", 20), ("x-opt-own", "int", 1), header={"ttl": 9000})
    )
    links.sync()
    queue = schedule(world).queue
    assert queue is not None
    (entry,) = queue.entries()
    assert {PUBLISHER, EXPIRES} < set(entry.message.headers())
    wait(world, 1)
    (found,) = links.messages()
    sections = split_sections(found.content)
    names = {plain_key(key) for key, _ in section_value(found.content, sections.annotations).value}
    assert names == {"x-opt-delivery-delay", "x-opt-own"}
    assert found.header["ttl"] == 8000


def test_an_annotation_that_is_not_a_number_is_refused(world: World, links: LinksClient) -> None:
    links.publish(message=scheduled(("x-opt-delivery-time", "string", "soon")))
    links.publish(message=scheduled(("x-opt-delivery-time", "boolean", True)))
    links.publish(message=scheduled(("x-opt-delivery-time", "null", None)))
    dispositions = links.take("disposition")
    assert [each.fields["state"].name for each in dispositions] == ["rejected", "rejected", "accepted"]
    assert "not a number" in dispositions[0].fields["state"].fields["error"].fields["description"]


def test_far_times_are_possible(world: World, links: LinksClient) -> None:
    links.publish(message=scheduled(("x-opt-delivery-time", "ulong", (1 << 64) - 1)))
    links.sync()
    assert (waiting(world), schedule(world).due_times.first) == (1, MAX_TIME / 1000)


def test_the_schedule_is_made_before_the_message_is_numbered(world: World, links: LinksClient) -> None:
    assert schedule(world).queue is None
    for number in range(3):
        links.publish(message=scheduled(("x-opt-delivery-delay", "ulong", 20), body=b"%d" % number))
        links.publish(b"now")
    assert links.outcomes() == [(0, 5, "accepted")]
    assert (waiting(world), len(links.messages())) == (3, 3)


def test_a_schedule_that_cannot_be_made_refuses_the_message(world: World, links: LinksClient) -> None:
    world.broker.default_host.topology.max_queues = 1
    links.publish(message=scheduled(("x-opt-delivery-delay", "ulong", 20)))
    links.publish(b"now")
    assert [name for _, _, name in links.outcomes()] == ["rejected", "accepted"]
    assert schedule(world).queue is None


def test_a_transaction_schedules_at_its_discharge(world: World, links: LinksClient) -> None:
    attach_control(links, 2)
    txn_id = declare(links, handle=2)
    state = Composite("transactional-state", {"txn_id": txn_id})
    links.publish(message=scheduled(("x-opt-delivery-delay", "ulong", 20)), state=state)
    links.sync()
    assert waiting(world) == 0
    command(links, "discharge", handle=2, txn_id=txn_id, fail=False)
    links.sync()
    assert waiting(world) == 1


def test_a_scheduled_message_in_a_stopped_session_is_not_lost(world: World, links: LinksClient) -> None:
    links.publish(message=scheduled(("x-opt-delivery-delay", "ulong", 20)))
    links.sync()
    links.call("end")
    wait(world, 1)
    assert world.broker.default_host.queues["q"].message_count == 1


def test_large_messages_are_looked_at_by_their_beginning() -> None:
    message = scheduled(("x-opt-delivery-delay", "ulong", 20), body=bytes(200_000))
    assert mentions_delivery(message)
    assert not mentions_delivery(content(b"x"))


@pytest.mark.parametrize("size", [0, 200_000])
def test_a_body_that_mentions_a_delivery_time_schedules_nothing(world: World, links: LinksClient, size: int) -> None:
    body = b"x-opt-delivery-delay" + bytes(size)
    links.publish(body=body)
    links.publish(message=encode_section(VALUE, Value("string", "x-opt-delivery-time")))
    links.publish(message=b"\x00\x53\x72 x-opt-delivery-time")
    links.sync()
    assert [each[2] for each in links.outcomes()] == ["accepted", "rejected"]
    assert schedule(world).queue is None
    assert not mentions_delivery(LargeContent((content(body)[:9], content(body)[9:]), len(content(body))))


def test_the_broker_offers_delayed_delivery(world: World) -> None:
    (opened,) = LinksClient(world).start().take()
    assert "DELAYED_DELIVERY" in opened.fields["offered_capabilities"]


def test_reading_back_a_message_of_1_0_keeps_its_time(world: World, links: LinksClient) -> None:
    links.publish(message=scheduled(("x-opt-delivery-delay", "ulong", 20)))
    links.sync()
    store_waiting(world)
    links.publish(message=scheduled(("x-opt-delivery-delay", "ulong", 4000)))
    links.sync()
    stored = restore_message(world.store.enqueued[0])
    assert isinstance(stored, SectionMessage)
    assert (stored.expires_at, stored.routing_key) == (START + 4, "q")
