"""Messages that expire at the head of a queue, without consumers: one timer for all queues."""

from __future__ import annotations

from typing import Any

import pytest

from qstore.broker.model.queues import expiry
from qstore.formats.amqp_0_9_1.properties import Properties
from qstore.formats.values import typed_map
from tests.broker.protocols.basic_client import PERSISTENT, BasicClient
from tests.broker.protocols.world import Clockwork
from tests.support.compiled import replaces

TO_DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


@pytest.fixture
def world() -> Clockwork:
    return Clockwork()


@pytest.fixture
def client(world: Clockwork) -> BasicClient:
    return BasicClient(world).open()


def declare(client: BasicClient, queue: str, **arguments: Any) -> None:
    named = {name.replace("_", "-"): value for name, value in arguments.items()}
    assert client.call("queue.declare", queue=queue, arguments=named).name == "queue.declare-ok"


def test_messages_leave_when_they_expire(world: Clockwork, client: BasicClient) -> None:
    declare(client, "q", x_message_ttl=1000)
    for wait in (0.25, 0.5, 3.0):
        client.publish("q", b"x", Properties())
        world.wait(wait)
    assert world.count("q") == 0
    client.publish("q", b"x", Properties())
    world.wait(0.999)
    assert world.count("q") == 1
    assert world.wait(0.003) == 1
    assert world.count("q") == 0
    assert world.broker.default_host.queues["q"].totals.expired == 4


def prioritized(priority: int, milliseconds: int) -> Properties:
    return Properties(priority=priority, expiration=str(milliseconds))


@pytest.mark.parametrize("dead", [{}, TO_DEAD])
def test_expired_head_leaves_by_priority(world: Clockwork, client: BasicClient, dead: dict[str, Any]) -> None:
    """The head is what is next for a consumer, not what is oldest."""
    declare(client, "dead")
    declare(client, "q", **dead, x_max_priority=5)
    client.publish("q", b"slow", prioritized(1, 20_000))
    client.publish("q", b"fast", prioritized(4, 300))
    world.wait(0.302)
    assert (world.count("q"), world.count("dead")) == (1, bool(dead))
    world.wait(19.7)
    assert (world.count("q"), world.count("dead")) == (0, 2 * bool(dead))


def test_expired_heads_of_lower_priorities_leave_too(world: Clockwork, client: BasicClient) -> None:
    declare(client, "q", x_max_priority=5)
    client.publish("q", b"slow", prioritized(4, 20_000))
    client.publish("q", b"fast", prioritized(1, 300))
    client.publish("q", b"behind", prioritized(1, 200))
    world.wait(0.302)
    assert world.count("q") == 1


def test_expired_head_of_a_fair_queue_leaves(world: Clockwork, client: BasicClient) -> None:
    named = {"qpid.priorities": 10, "qpid.fairshare": 3}
    assert client.call("queue.declare", queue="q", arguments=named).name == "queue.declare-ok"
    client.publish("q", b"slow", prioritized(9, 20_000))
    client.publish("q", b"fast", prioritized(0, 300))
    world.wait(0.302)
    assert world.count("q") == 1


def test_expired_head_of_each_group_leaves(world: Clockwork, client: BasicClient) -> None:
    named = {"qpid.group_header_key": "group", "qpid.shared_msg_group": 1}
    assert client.call("queue.declare", queue="q", arguments=named).name == "queue.declare-ok"
    for group, milliseconds in (("a", 20_000), ("b", 300), ("b", 200)):
        headers = typed_map({"group": group})
        client.publish("q", b"x", Properties(headers=headers, expiration=str(milliseconds)))
    world.wait(0.302)
    assert world.count("q") == 1


def test_expired_messages_go_to_the_dead_letter_exchange(world: Clockwork, client: BasicClient) -> None:
    declare(client, "dead")
    declare(client, "q", **TO_DEAD, x_message_ttl=20)
    client.publish("q", b"x", Properties())
    world.wait(0.022)
    assert (world.count("q"), world.count("dead")) == (0, 1)


def test_a_time_of_0_is_over_at_once(world: Clockwork, client: BasicClient) -> None:
    declare(client, "q", x_message_ttl=0)
    client.publish("q", b"x", Properties())
    world.wait(0.012)
    assert world.count("q") == 0


@pytest.mark.parametrize("of_message", [False, True])
def test_a_consumer_that_waits_gets_a_message_without_time_from_the_disk_too(
    world: Clockwork, client: BasicClient, of_message: bool
) -> None:
    declare(client, "q", **({} if of_message else {"x_message_ttl": 0}))
    queue = world.broker.default_host.queues["q"]
    world._keep(queue)
    queue.durable = True
    properties = PERSISTENT._replace(expiration="0" if of_message else None)
    client.call("basic.consume", queue="q", consumer_tag="c", no_ack=True)
    client.publish("q", b"x", properties)
    world.wait(0.05)
    world.store.end_flush()
    world.run()
    assert [each.body for each in client.take("basic.deliver")] == [b"x"]
    client.call("basic.cancel", consumer_tag="c")
    client.publish("q", b"too late", properties)
    world.wait(0.05)
    world.store.end_flush()
    world.wait(0.06)
    assert world.count("q") == 0


def test_the_head_decides(world: Clockwork, client: BasicClient) -> None:
    """As in RabbitMQ, a message that expires earlier than one before it stays until that one is gone."""
    declare(client, "q")
    client.publish("q", b"long", Properties(expiration="1000"))
    client.publish("q", b"short", Properties(expiration="10"))
    world.wait(0.5)
    assert world.count("q") == 2
    client.call("basic.get", queue="q", no_ack=True)
    world.wait(0.002)
    assert world.count("q") == 0


@pytest.mark.parametrize(("settle", "expired"), [("basic.ack", 2), ("basic.nack", 4)])
def test_messages_behind_those_that_a_consumer_has(
    world: Clockwork, client: BasicClient, settle: str, expired: int
) -> None:
    declare(client, "q", x_message_ttl=1000)
    client.method("basic.qos", prefetch_count=2)
    client.call("basic.consume", queue="q", consumer_tag="c")
    for _ in range(4):
        client.publish("q", b"x", Properties())
    world.wait(2)
    assert world.count("q") == 2
    client.call("basic.cancel", consumer_tag="c")
    client.method(settle, delivery_tag=0, multiple=True, **({"requeue": True} if settle == "basic.nack" else {}))
    world.wait(0.002)
    assert world.count("q") == 0
    assert world.broker.default_host.queues["q"].totals.expired == expired


def test_a_purge_leaves_another_head(world: Clockwork, client: BasicClient) -> None:
    declare(client, "q")
    client.publish("q", b"for ever", Properties())
    client.publish("q", b"short", Properties(expiration="10"))
    world.wait(1)
    assert world.count("q") == 2
    world.broker.default_host.queues["q"].purge(1)
    world.broker.tick.schedule()
    world.wait(0.002)
    assert world.count("q") == 0


def test_priority_queues(world: Clockwork, client: BasicClient) -> None:
    declare(client, "q", **{"qpid.priorities": 10, "x-message-ttl": 1000})
    for priority in (0, 5, 9, 1):
        client.publish("q", b"x", Properties(priority=priority))
        world.wait(0.1)
    client.call("basic.get", queue="q", no_ack=True)
    world.wait(0.75)
    assert world.count("q") == 1
    world.wait(0.2)
    assert world.count("q") == 0


def test_one_timer_serves_all_queues(world: Clockwork, client: BasicClient) -> None:
    for number in range(20):
        declare(client, f"q{number}", x_message_ttl=1000 + number)
        for _ in range(5):
            client.publish(f"q{number}", b"x", Properties())
    world.run()
    assert len(world.timers) == 1
    assert world.wait(2) <= 20
    assert len(world.broker.expiries) == 0
    assert sum(world.count(f"q{number}") for number in range(20)) == 0


@replaces
def test_very_many_leave_in_portions(world: Clockwork, client: BasicClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "MAX_AT_ONCE", 10)
    declare(client, "q", x_message_ttl=1000)
    for _ in range(35):
        client.publish("q", b"x", Properties())
    world.wait(1.0005)
    assert world.count("q") == 25
    assert world.wait(0.1) == 3
    assert world.count("q") == 0


def test_a_deleted_queue_is_forgotten(world: Clockwork, client: BasicClient) -> None:
    for _ in range(200):
        declare(client, "q", x_message_ttl=100_000)
        client.publish("q", b"x", Properties())
        client.call("queue.delete", queue="q")
    assert len(world.broker.expiries) == 0
    assert len(world.broker.expiries._heap) < 100
    world.wait(200)


def test_heads_that_expire_ever_earlier_take_no_memory(world: Clockwork, client: BasicClient) -> None:
    declare(client, "q")
    for number in range(500):
        client.publish("q", b"x", Properties(expiration=str(1_000_000 - number)))
    world.run()
    for _ in range(500):
        client.call("basic.get", queue="q", no_ack=True)
    assert len(world.broker.expiries._heap) < 100


def test_a_clock_that_is_set_is_noticed(world: Clockwork, client: BasicClient) -> None:
    declare(client, "q", x_message_ttl=3_600_000)
    client.publish("q", b"x", Properties())
    world.run()
    world.timers = [(when - world.now, call) for when, call in world.timers]
    world.now += 7200
    world.timers = [(world.now + wait, call) for wait, call in world.timers]
    world.wait(61)
    assert world.count("q") == 0


def test_nothing_expires_when_the_broker_ends(world: Clockwork, client: BasicClient) -> None:
    declare(client, "q", x_message_ttl=10)
    client.publish("q", b"x", Properties())
    world.run()
    world.broker.expiries.stop()
    world.wait(1)
    assert world.count("q") == 1


def test_queues_without_it_have_no_timer(world: Clockwork, client: BasicClient) -> None:
    declare(client, "q")
    client.publish("q", b"x", Properties())
    world.run()
    assert world.timers == []
