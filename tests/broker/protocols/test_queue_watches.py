"""Old last value queues, slow consumers, alerts for single messages, and limits and defaults of queues."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qstore.broker.model.errors import PreconditionFailedError
from qstore.broker.model.events import Event, QueueConsumerTooSlow, QueueMessageTooLarge, QueueMessageTooOld
from qstore.broker.model.policies import Policy
from qstore.broker.model.queues.arguments import check_type, read_arguments
from qstore.broker.model.queues.patrol import FAILED_AT_ONCE, MAX_SAMPLES, TOO_SLOW
from qstore.broker.settings import BrokerSettings
from qstore.formats.amqp_0_9_1.properties import Properties
from qstore.formats.values import TypedMap, typed_map
from tests.broker.protocols.basic_client import BasicClient
from tests.broker.protocols.links_client import LinksClient
from tests.broker.protocols.world import Client, World, header


class Heard:
    """A listener that keeps the events of the patrol."""

    def __init__(self, world: World) -> None:
        self.events: list[Event] = []
        world.broker.events.listen(self)

    def __call__(self, event: Event) -> None:
        if isinstance(event, QueueConsumerTooSlow | QueueMessageTooLarge | QueueMessageTooOld):
            self.events.append(event)

    def take(self) -> list[Event]:
        found, self.events = self.events, []
        return found


def declare(client: BasicClient, name: str = "q", /, durable: bool = False, **arguments: Any) -> str:
    given = {f"qpid.{each}": value for each, value in arguments.items()}
    answer = client.call("queue.declare", queue=name, durable=durable, arguments=given)
    return "" if answer.name == "queue.declare-ok" else str(answer.values["reply_text"])


def on(world: World, name: str = "q") -> list[bytes]:
    return [bytes(entry.message.whole().body) for entry in world.broker.default_host.queues[name].entries()]


def patrol(world: World, seconds: float = 1.0) -> None:
    """Let time pass, and have the queues looked at."""
    world.now += seconds
    world.broker.tick.turns.do(world.broker.patrol, world.broker.patrol.look())
    world.run()


# ---- old last value queues ----


def put(client: Client, queue: str, body: bytes, headers: TypedMap, **delivery: Any) -> None:
    """Publish a message with application headers."""
    given = header({"application_headers": headers}, routing_key=queue, **delivery)
    client.command("message.transfer", header=given, body=body, destination="")


def write(client: Client, round_: str) -> None:
    """As `lvqtest --mode write`."""
    for key in ("key1", "key2", "key3", "key1", "last"):
        headers = typed_map({"qpid.LVQ_key": key})
        body = b"last" if key == "last" else f"{key}.{round_}".encode()
        put(client, "q", body, headers)
    client.sync()


def browse(world: World, name: str) -> list[str]:
    return _taken(world, name, acquire_mode=1, accept_mode=1)


def _taken(world: World, name: str, **modes: int) -> list[str]:
    client = world.open_client(name=name.encode())
    client.command("message.subscribe", queue="q", destination="d", **modes)
    for unit in (0, 1):
        client.command("message.flow", destination="d", unit=unit, value=0xFFFFFFFF)
    found = [body.decode() for body in client.take()]
    client.command("message.cancel", destination="d")
    client.sync()
    return found


def values(*rounds: str) -> list[str]:
    return [each for round_ in rounds for each in (f"key1.{round_}", f"key2.{round_}", f"key3.{round_}", "last")]


def test_lvq_keeps_the_place_of_what_is_replaced_as_the_guide_shows_it(world: World) -> None:
    """Qpid wiki, "LVQ": the example of LVQ."""
    client = world.open_client()
    client.declare("q", arguments=typed_map({"qpid.last_value_queue": 1}))
    write(client, "f3180")
    assert browse(world, "one") == values("f3180")
    write(client, "c7fa0")
    assert browse(world, "two") == values("c7fa0")
    assert _taken(world, "three", acquire_mode=0, accept_mode=1) == values("f3180", "c7fa0")


def test_lvq_no_browse_replaces_browsed_messages_in_place(world: World) -> None:
    """Likewise, that of LVQ_NO_BROWSE."""
    client = world.open_client()
    client.declare("q", arguments=typed_map({"qpid.last_value_queue_no_browse": 1}))
    write(client, "b390")
    write(client, "b440")
    assert browse(world, "one") == browse(world, "two") == values("b440")
    write(client, "83e0")
    assert _taken(world, "three", acquire_mode=0, accept_mode=1) == values("83e0")
    assert world.broker.default_host.queues["q"].message_count == 0


def test_the_new_last_value_queue_puts_a_message_at_the_end(world: World) -> None:
    client = world.open_client()
    client.declare("q", arguments=typed_map({"qpid.last_value_queue_key": "qpid.LVQ_key"}))
    write(client, "1")
    assert on(world) == [b"key2.1", b"key3.1", b"key1.1", b"last"]


def test_what_is_replaced_in_place_is_offered_again_to_those_who_had_declined_it(world: World) -> None:
    client = world.open_client()
    client.declare("q", arguments=typed_map({"qpid.last_value_queue": 1}))
    given = typed_map({"x-apache-selector": "wanted = 'yes'"})
    client.command("message.subscribe", queue="q", destination="d", accept_mode=1, acquire_mode=0, arguments=given)
    for unit in (0, 1):
        client.command("message.flow", destination="d", unit=unit, value=0xFFFFFFFF)
    for wanted, body in (("no", b"1"), ("no", b"2"), ("yes", b"3")):
        headers = typed_map({"qpid.LVQ_key": "k", "wanted": wanted})
        put(client, "q", body, headers)
        client.sync()
    assert client.take() == [b"3"]
    queue = world.broker.default_host.queues["q"]
    assert (queue.message_count, queue.totals.replaced) == (0, 2)


def test_a_selector_looks_at_what_has_taken_the_place_of_a_refused_message(world: World) -> None:
    client = world.open_client()
    client.declare("q", arguments=typed_map({"qpid.last_value_queue": 1}))
    given = typed_map({"x-apache-selector": "wanted = 'yes'"})
    client.command("message.subscribe", queue="q", destination="d", accept_mode=1, acquire_mode=0, arguments=given)
    client.command("message.flow", destination="d", unit=0, value=10)
    client.command("message.flow", destination="d", unit=1, value=1)  # too few bytes: the message is refused
    for wanted in ("yes", "no"):
        put(client, "q", wanted.encode(), typed_map({"qpid.LVQ_key": "k", "wanted": wanted}))
        client.sync()
    client.command("message.flow", destination="d", unit=1, value=10_000)
    assert (client.take(), on(world)) == ([], [b"no"])


@pytest.mark.parametrize(
    "given",
    [
        {"qpid.max_consumers": 1},
        {"qpid.slow_consumer_policy": "cycle", "qpid.slow_consumer_count": 1},
        {"qpid.alert_message_size": 1},
        {"qpid.alert_message_age": 1},
    ],
)
def test_a_stream_refuses_what_it_does_not_have(given: dict[str, Any]) -> None:
    parsed = read_arguments(typed_map({"x-queue-type": "stream"} | given))
    with pytest.raises(PreconditionFailedError, match="a stream cannot be"):
        check_type("s", parsed, durable=True, exclusive=False, auto_delete=False, is_server_named=False)


def test_stored_last_values_go_to_the_end_where_they_are_after_a_restart(world: World) -> None:
    queue = world.durable_queue("q")
    assert queue.journal is not None
    client = world.open_client()
    client.declare("d", durable=True, arguments=typed_map({"qpid.last_value_queue": 1}))
    for key in ("a", "b", "a"):
        headers = typed_map({"qpid.LVQ_key": key})
        put(client, "d", key.encode(), headers, delivery_mode=2)
    client.sync()
    assert len(on(world, "d")) == 2


# ---- slow consumers ----


SLOW = {"slow_consumer_policy": "disconnect", "slow_consumer_count": 5}


def test_a_slow_consumer_of_0_9_1_loses_its_channel_and_not_its_connection(world: World) -> None:
    heard, client = Heard(world), BasicClient(world).open(1, 2)
    assert declare(client, **SLOW) == ""
    client.call("basic.qos", prefetch_count=1)
    client.call("basic.consume", queue="q", no_ack=False)
    for number in range(5):
        client.publish("q", b"%d" % number)
    client.sync()
    patrol(world)
    assert heard.take() == []
    client.publish("q", b"5")
    client.sync()
    patrol(world)
    closed = client.take("channel.close")[0]
    assert (closed.values["reply_code"], str(closed.values["reply_text"]).endswith(TOO_SLOW)) == (506, True)
    assert [each[:3] for each in heard.take()] == [("q", "disconnect", 6)]
    patrol(world)
    assert heard.take() == []
    assert client.call("queue.declare", 2, queue="q", passive=True).values["message_count"] == 6


def test_a_slow_consumer_of_0_10_loses_its_session_with_resource_limit_exceeded(world: World) -> None:
    declare(BasicClient(world).open(), **SLOW)
    client = world.open_client()
    client.command("message.subscribe", queue="q", destination="d", accept_mode=0, acquire_mode=0)
    for _ in range(6):
        client.publish("q", b"x")
    client.sync()
    patrol(world)
    client.sync()
    (failed,) = client.exceptions
    assert (failed["error_code"], failed["description"]) == (506, TOO_SLOW)


def test_a_slow_consumer_of_1_0_loses_its_link(world: World) -> None:
    basic = BasicClient(world).open()
    declare(basic, **SLOW)
    links = LinksClient(world).open()
    links.receiver("q", credit=1)
    for _ in range(7):
        basic.publish("q")
    basic.sync()
    patrol(world)
    links.sync()
    assert links.error("detach") == "amqp:resource-limit-exceeded"


@pytest.mark.parametrize(("durable", "also", "is_left"), [(False, 0, False), (True, 0, True), (True, 1, False)])
def test_the_policy_delete_deletes_queues_that_are_not_durable(
    world: World, durable: bool, also: int, is_left: bool
) -> None:
    world.broker.patrol.delete = lambda queue: deleted.append(queue.name)
    deleted: list[str] = []
    client = BasicClient(world).open()
    given = {"slow_consumer_policy": "delete", "slow_consumer_size": 100, "slow_consumer_delete_durable": also}
    assert declare(client, durable=durable, **given) == ""
    client.call("basic.qos", prefetch_count=1)
    client.call("basic.consume", queue="q")
    for _ in range(3):
        client.publish("q", b"x" * 100)
    client.sync()
    patrol(world)
    assert (deleted == [], [each.values["reply_code"] for each in client.take("channel.close")]) == (is_left, [506])


def test_the_policy_cycle_removes_the_oldest_messages_without_consumers_too(world: World) -> None:
    heard, client = Heard(world), BasicClient(world).open()
    declare(client, slow_consumer_policy="cycle", slow_consumer_count=100)
    for number in range(1000):
        client.publish("q", b"%d" % number)
    client.sync()
    patrol(world)
    assert on(world) == [b"%d" % number for number in range(900, 1000)]
    assert [type(each) for each in heard.take()] == [QueueConsumerTooSlow]
    declare(client, "old", slow_consumer_policy="cycle", slow_consumer_age=10_000)
    for number in range(30):
        client.publish("old", b"%d" % number)
        client.sync()
        patrol(world)
    assert [int(body) for body in on(world, "old")] == list(range(20, 30))


def test_the_policy_cycle_removes_no_more_than_it_must_while_it_takes_several_turns(world: World) -> None:
    heard, client = Heard(world), BasicClient(world).open()
    declare(client, slow_consumer_policy="cycle", slow_consumer_count=100)
    for number in range(1000):
        client.publish("q", b"%d" % number)
    client.sync()
    for _ in range(2):  # the second time, the work of the first one is not done
        world.now += 1
        world.broker.tick.turns.do(world.broker.patrol, world.broker.patrol.look())
    world.run()
    assert on(world) == [b"%d" % number for number in range(900, 1000)]
    assert len(heard.take()) == 1


def test_the_policy_cycle_removes_no_newer_messages_for_an_old_one_that_is_held(world: World) -> None:
    heard, client = Heard(world), BasicClient(world).open()
    declare(client, slow_consumer_policy="cycle", slow_consumer_age=10_000)
    client.publish("q", b"held")
    for _ in range(20):
        client.publish("q", b"done")
    client.sync()
    client.call("basic.get", queue="q")
    client.call("queue.purge", queue="q")
    patrol(world)
    for _ in range(5):
        patrol(world, 3)
        client.publish("q", b"new")
        client.sync()
    assert on(world) == [b"held", *[b"new"] * 5]
    assert heard.take() == []
    patrol(world, 9)
    assert on(world) == [b"held", b"new", b"new"]
    assert len(heard.take()) == 1


def slow_consumers(world: World) -> tuple[BasicClient, list[str]]:
    """Three turns of slow consumers, of whom the first turn is told so, and the queues that the policy deletes."""
    world.broker.patrol.delete = lambda queue: deleted.append(queue.name)
    deleted: list[str] = []
    channels = range(1, 3 * FAILED_AT_ONCE + 1)
    client = BasicClient(world).open(*channels)
    declare(client, **SLOW | {"slow_consumer_policy": "delete"})
    for channel in channels:
        client.call("basic.qos", channel, prefetch_count=1)
        client.call("basic.consume", channel, queue="q")
    for _ in range(3 * FAILED_AT_ONCE + 10):
        client.publish("q", b"x")
    client.sync()
    world.now += 1
    world.broker.tick.turns.do(world.broker.patrol, world.broker.patrol.look())
    assert (world.broker.default_host.queues["q"].consumer_count, deleted) == (2 * FAILED_AT_ONCE, [])
    return client, deleted


def test_many_slow_consumers_are_told_in_turns(world: World) -> None:
    _, deleted = slow_consumers(world)
    queue = world.broker.default_host.queues["q"]
    world.run()
    assert (queue.consumer_count, deleted) == (0, ["q"])


def test_a_queue_that_gets_the_name_of_a_slow_one_meanwhile_is_not_deleted(world: World) -> None:
    other = BasicClient(world).open()
    _, deleted = slow_consumers(world)
    slow = world.broker.default_host.queues["q"]
    later = world.soon[:]  # the turns that are left come after what the other client does
    world.soon.clear()
    other.method("queue.delete", queue="q")
    world.run()
    other.method("queue.declare", queue="q")
    world.run()
    world.soon.extend(later)
    world.run()
    assert (slow.is_deleted, world.broker.default_host.queues["q"] is slow, deleted) == (True, False, [])


def test_no_consumer_is_not_slow(world: World) -> None:
    heard, client = Heard(world), BasicClient(world).open()
    declare(client, **SLOW)
    for _ in range(10):
        client.publish("q")
    client.sync()
    patrol(world)
    assert (heard.take(), len(on(world))) == ([], 10)


@pytest.mark.parametrize(
    "arguments",
    [
        {"slow_consumer_policy": "warn", "slow_consumer_count": 1},
        {"slow_consumer_policy": "cycle"},
        {"slow_consumer_count": 1},
        {"slow_consumer_policy": "cycle", "slow_consumer_age": "soon"},
    ],
)
def test_slow_consumer_arguments_are_checked(world: World, arguments: dict[str, Any]) -> None:
    assert "qpid.slow_consumer" in declare(BasicClient(world).open(), **arguments)


# ---- alerts ----


def test_a_large_message_raises_an_alert(world: World) -> None:
    heard, client = Heard(world), BasicClient(world).open()
    declare(client, alert_message_size=1000, alert_repeat_gap=60)
    client.publish("q", b"x" * 900)
    for _ in range(3):
        client.publish("q", b"x" * 2000)
    client.sync()
    (alert,) = heard.take()
    assert isinstance(alert, QueueMessageTooLarge)
    assert (alert.queue, alert.threshold, 2000 < alert.bytes < 2100) == ("q", 1000, True)
    world.now += 61
    client.publish("q", b"x" * 2000)
    client.sync()
    assert len(heard.take()) == 1


@pytest.mark.parametrize("argument", ["qpid.alert_message_age", "x-qpid-maximum-message-age"])
def test_an_old_message_raises_an_alert(world: World, argument: str) -> None:
    heard, client = Heard(world), BasicClient(world).open()
    given = {argument: 60_000, "qpid.alert_repeat_gap": 30}
    client.call("queue.declare", queue="q", arguments=given)
    for _ in range(3):
        client.publish("q", b"x")
        client.sync()
        patrol(world, 10)
    patrol(world, 20)
    assert heard.take() == []
    for _ in range(7):
        patrol(world, 10)
    alerts = heard.take()
    assert [(each[0], 60_000 < each[1] < 110_000, each[2]) for each in alerts] == [("q", True, 3), ("q", True, 3)]
    client.call("queue.purge", queue="q")
    client.publish("q", b"new")
    client.sync()
    patrol(world, 40)
    assert heard.take() == []


def test_a_message_that_stays_takes_no_more_memory_with_time(world: World) -> None:
    heard, client = Heard(world), BasicClient(world).open()
    declare(client, alert_message_age=60_000, alert_repeat_gap=10**6)
    client.publish("q", b"x")
    client.sync()
    for _ in range(1000):
        patrol(world, 2)
    (watched,) = world.broker.patrol._watched.values()
    assert len(watched._samples) <= MAX_SAMPLES
    assert watched.age(world.now) == pytest.approx(2000, abs=3)
    client.publish("q", b"y")
    client.sync()
    client.call("basic.get", queue="q", no_ack=True)
    for _ in range(25):
        patrol(world, 2)
    assert watched.age(world.now) == pytest.approx(50, abs=5)
    assert len(heard.take()) == 1


def test_queues_that_ask_for_nothing_are_not_on_patrol(world: World) -> None:
    client = BasicClient(world).open()
    declare(client, alert_count=5)
    assert len(world.broker.patrol) == 0
    declare(client, "r", alert_message_age=5)
    assert len(world.broker.patrol) == 1
    client.call("queue.delete", queue="r")
    patrol(world)
    assert len(world.broker.patrol) == 0


# ---- limits and defaults ----


def test_a_queue_has_a_maximum_of_consumers_by_itself_or_by_a_policy(world: World) -> None:
    client = BasicClient(world).open(1, 2, 3)
    declare(client, max_consumers=1)
    client.call("queue.declare", queue="template.x")
    definition = {"max-consumers": 2}
    policy = Policy("/", "p", "^template\\.", "queues", 0, definition)
    asyncio.run(world.broker.policies.set(policy))
    for queue, most in (("q", 1), ("template.x", 2)):
        for number in range(most):
            assert client.call("basic.consume", queue=queue, consumer_tag=f"{queue}{number}").name == "basic.consume-ok"
    assert "limit of its consumers, 1" in str(client.call("basic.consume", 2, queue="q").values["reply_text"])
    assert "limit of its consumers, 2" in str(client.call("basic.consume", 3, queue="template.x").values["reply_text"])
    modern = world.open_client()
    modern.command("message.subscribe", queue="q", destination="d", accept_mode=0, acquire_mode=0)
    modern.sync()
    assert modern.exceptions[0]["error_code"] == 506
    client.call("basic.cancel", consumer_tag="q0")
    assert BasicClient(world).open().call("basic.consume", queue="q").name == "basic.consume-ok"


@pytest.mark.parametrize("policy", ["reject", "flow_to_disk"])
def test_durable_queues_have_the_default_policy(policy: str) -> None:
    world = World(BrokerSettings(default_queue_policy=policy))
    factory, arguments = world.broker.queue_factory, typed_map({"qpid.max_count": 2})
    assert factory.read("q", arguments, durable=True).policy == policy
    assert factory.read("q", arguments, durable=False).policy == "reject"
    assert factory.read("q", typed_map({}), durable=True).policy == "reject"
    given = typed_map({"qpid.max_count": 2, "qpid.policy_type": "ring"})
    assert factory.read("q", given, durable=True).policy == "ring"
    assert factory.read("q", typed_map({"x-max-length": 2}), durable=True).policy == "ring"


def test_with_strict_durability_what_is_durable_cannot_depend_on_what_is_not() -> None:
    world = World(BrokerSettings(strict_durability=True))
    client = BasicClient(world).open(*range(1, 8))
    client.call("exchange.declare", exchange="t", type="topic")
    client.call("exchange.declare", exchange="d", type="topic", durable=True)
    client.call("queue.declare", queue="dq", durable=True)
    client.call("queue.declare", queue="tq")
    refusals = (
        ("queue.bind", {"queue": "dq", "exchange": "t", "routing_key": "k"}),
        ("exchange.bind", {"destination": "d", "source": "t", "routing_key": "k"}),
        ("exchange.declare", {"exchange": "e", "type": "topic", "durable": True,
                              "arguments": {"alternate-exchange": "t"}}),
    )  # fmt: skip
    for number, (method, given) in enumerate(refusals, 2):
        assert "strict-durability" in str(client.call(method, number, **given).values["reply_text"])
    modern = world.open_client()
    modern.command("queue.declare", queue="aq", durable=True, alternate_exchange="t")
    modern.sync()
    assert "strict-durability" in modern.exceptions[0]["description"]
    for queue, exchange in (("dq", "d"), ("tq", "t"), ("tq", "d"), ("dq", "amq.topic")):
        answer = client.call("queue.bind", queue=queue, exchange=exchange, routing_key="k")
        assert answer.name == "queue.bind-ok"
    plain = World()
    client = BasicClient(plain).open()
    client.call("exchange.declare", exchange="t", type="topic")
    client.call("queue.declare", queue="dq", durable=True)
    assert client.call("queue.bind", queue="dq", exchange="t", routing_key="k").name == "queue.bind-ok"


def test_properties_are_not_needed_for_a_last_value_queue(world: World) -> None:
    client = BasicClient(world).open()
    declare(client, last_value_queue=1)
    client.publish("q", b"1", Properties())
    client.publish("q", b"2", Properties())
    client.sync()
    assert on(world) == [b"1", b"2"]
