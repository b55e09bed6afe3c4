"""A message for many queues is put on them in turns: a portion of the queues in each iteration of the event loop."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from qstore.broker.model.dead_letters import MAX_REFUSALS, deaths_of
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.router import MAX_AT_ONCE
from qstore.formats.amqp_0_9_1.properties import Properties
from qstore.formats.amqp_0_10.codes import ErrorCode
from qstore.formats.plain import plain_map
from tests.broker.protocols.basic_client import BasicClient
from tests.broker.protocols.world import Client, World

COUNT = 3 * MAX_AT_ONCE + 10
TRANSIENT = Properties(delivery_mode=1)


@pytest.fixture
def world() -> World:
    return World()


def bound(world: World, count: int = COUNT) -> list[Queue]:
    """Queues bound to amq.fanout."""
    client = BasicClient(world).open()
    for number in range(count):
        client.call("queue.declare", queue=f"q{number}")
        client.call("queue.bind", queue=f"q{number}", exchange="amq.fanout")
    return [world.broker.default_host.queues[f"q{number}"] for number in range(count)]


def most_in_a_turn(world: World, queues: list[Queue], begin: Callable[[], object]) -> int:
    """Do something, and let the loop come to rest. Returns how many queues get a message in one iteration, at most."""
    step, before, most = begin, sum(queue.messages_enqueued for queue in queues), 0
    while True:
        step()
        now = sum(queue.messages_enqueued for queue in queues)
        most, before = max(most, now - before), now
        if not world.soon:
            return most
        step = world.soon.pop(0)


def bodies(queue: Queue) -> list[object]:
    return [entry.message.body for entry in queue.available()]


def test_a_turn_puts_a_message_of_0_9_1_on_a_portion_of_the_queues(world: World) -> None:
    queues, client = bound(world), BasicClient(world).open()
    client.call("confirm.select")
    client.received.clear()
    most = most_in_a_turn(world, queues, lambda: client.publish("", b"x", TRANSIENT, exchange="amq.fanout"))
    assert all(bodies(queue) == [b"x"] for queue in queues)
    assert most <= MAX_AT_ONCE
    assert client.take("basic.ack")


def test_a_turn_puts_a_message_of_0_10_on_a_portion_of_the_queues(world: World) -> None:
    queues, client = bound(world), world.open_client()
    most = most_in_a_turn(world, queues, lambda: client.publish("", b"x", exchange="amq.fanout", delivery_mode=1))
    assert all(bodies(queue) == [b"x"] for queue in queues)
    assert most <= MAX_AT_ONCE


def publish_basic(world: World) -> Callable[[str, bytes], object]:
    client = BasicClient(world).open()

    def publish(exchange: str, body: bytes) -> None:
        client.publish("" if exchange else f"q{COUNT - 1}", body, TRANSIENT, exchange=exchange)

    return publish


def publish_0_10(world: World) -> Callable[[str, bytes], object]:
    client: Client = world.open_client()
    return lambda exchange, body: client.publish(
        "" if exchange else f"q{COUNT - 1}", body, exchange=exchange, delivery_mode=1
    )


@pytest.mark.parametrize("publisher", [publish_basic, publish_0_10])
def test_later_messages_of_the_publisher_do_not_overtake(
    world: World, publisher: Callable[[World], Callable[[str, bytes], object]]
) -> None:
    queues, publish = bound(world), publisher(world)
    publish("amq.fanout", b"1")
    publish("", b"2")
    publish("amq.fanout", b"3")
    publish("", b"4")
    assert bodies(queues[-1]) == [], "the first message is still on its way"
    world.run()
    assert bodies(queues[-1]) == [b"1", b"2", b"3", b"4"]
    assert bodies(queues[0]) == [b"1", b"3"]


def test_other_clients_publish_in_between(world: World) -> None:
    queues, publish, other = bound(world), publish_basic(world), publish_0_10(world)
    publish("amq.fanout", b"1")
    other("", b"2")
    assert bodies(queues[-1]) == [b"2"]
    world.run()
    assert bodies(queues[-1]) == [b"2", b"1"]


def full(world: World, number: int) -> None:
    """Replace a queue by one that is full."""
    client = BasicClient(world).open()
    client.call("queue.delete", queue=f"q{number}")
    client.call("queue.declare", queue=f"q{number}", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    client.call("queue.bind", queue=f"q{number}", exchange="amq.fanout")
    client.publish(f"q{number}", b"0", TRANSIENT)
    client.sync()


def test_a_message_for_which_one_queue_is_full_is_on_none_and_refused(world: World) -> None:
    queues = bound(world)
    full(world, COUNT - 1)
    client = BasicClient(world).open()
    client.call("confirm.select")
    client.received.clear()
    client.publish("", b"x", TRANSIENT, exchange="amq.fanout")
    world.run()
    assert client.take("basic.nack")
    assert all(bodies(queue) == [] for queue in queues[:-1])
    client.publish("q0", b"y", TRANSIENT)
    world.run()
    assert bodies(queues[0]) == [b"y"], "the connection is read again"


def test_a_message_is_refused_if_a_queue_becomes_full_meanwhile(world: World) -> None:
    queues = bound(world)
    full(world, COUNT - 1)
    last, other = world.broker.default_host.queues[f"q{COUNT - 1}"], publish_0_10(world)
    last.purge()
    client = BasicClient(world).open()
    client.call("confirm.select")
    client.received.clear()
    client.publish("", b"x", TRANSIENT, exchange="amq.fanout")
    other("", b"y")
    world.run()
    assert client.take("basic.nack")
    assert bodies(last) == [b"y"]
    assert bodies(queues[0]) == [b"x"]


def test_without_confirms_the_channel_is_closed_then(world: World) -> None:
    bound(world)
    client = BasicClient(world).open()
    client.call("queue.declare", queue="small", arguments={"qpid.max_count": 1, "qpid.policy_type": "reject"})
    client.call("queue.bind", queue="small", exchange="amq.fanout")
    client.publish("small", b"0", TRANSIENT)
    client.publish("", b"x", TRANSIENT, exchange="amq.fanout")
    world.run()
    assert client.take("channel.close")


def test_over_0_10_the_session_ends_then(world: World) -> None:
    queues = bound(world)
    full(world, COUNT - 1)
    world.broker.default_host.queues[f"q{COUNT - 1}"].purge()
    client, other = world.open_client(), publish_basic(world)
    client.publish("", b"x", exchange="amq.fanout", delivery_mode=1)
    other("", b"y")
    assert client.failure() == (ErrorCode.RESOURCE_LIMIT_EXCEEDED, 0)
    assert bodies(queues[0]) == [b"x"]


def test_a_queue_that_is_deleted_meanwhile_gets_nothing(world: World) -> None:
    queues, publish, client = bound(world), publish_basic(world), BasicClient(world).open()
    publish("amq.fanout", b"1")
    client.method("queue.delete", queue=f"q{COUNT - 1}")
    world.run()
    assert bodies(queues[0]) == [b"1"]
    assert bodies(queues[-2]) == [b"1"]
    assert f"q{COUNT - 1}" not in world.broker.default_host.queues


def test_a_connection_that_is_lost_meanwhile_leaves_its_message(world: World) -> None:
    queues, client = bound(world), BasicClient(world).open()
    client.publish("", b"x", TRANSIENT, exchange="amq.fanout")
    client.machine.dismantle()
    world.run()
    assert all(bodies(queue) == [b"x"] for queue in queues)
    assert not world.broker.tick.turns


@pytest.mark.parametrize("is_dead_letter", [True, False])
def test_a_rejected_message_leaves_its_queue_when_all_queues_have_it(world: World, is_dead_letter: bool) -> None:
    queues, client = bound(world), BasicClient(world).open()
    client.call(
        "queue.declare", queue="q", arguments={"x-dead-letter-exchange": "amq.fanout"} if is_dead_letter else {}
    )
    if not is_dead_letter:
        world.broker.default_host.queues["q"].alternate = world.broker.default_host.exchanges["amq.fanout"]
    client.method("basic.consume", queue="q", consumer_tag="c")
    for body in (b"1", b"2"):
        client.publish("q", body, TRANSIENT)
    client.sync()
    source = world.broker.default_host.queues["q"]
    reject = lambda: client.method("basic.nack", delivery_tag=0, multiple=True, requeue=False)  # noqa: E731
    most = most_in_a_turn(world, queues, reject)
    assert most <= MAX_AT_ONCE
    assert all(bodies(queue) == [b"1", b"2"] for queue in queues)
    assert source.message_count == 0


def reject_dead(world: World, client: BasicClient, other: Callable[[str, bytes], object]) -> None:
    """A rejected message goes to all queues, in turns; meanwhile another is published to them."""
    client.call("queue.declare", queue="q", arguments={"x-dead-letter-exchange": "amq.fanout"})
    client.publish("q", b"x", TRANSIENT)
    client.method("basic.consume", queue="q", consumer_tag="c")
    client.sync()
    client.method("basic.reject", delivery_tag=1, requeue=False)
    other("", b"y")
    world.run()


def test_a_dead_message_for_which_a_queue_becomes_full_meanwhile_is_dropped(world: World) -> None:
    queues = bound(world)
    full(world, COUNT - 1)
    world.broker.default_host.queues[f"q{COUNT - 1}"].purge()
    client, other = BasicClient(world).open(), publish_0_10(world)
    reject_dead(world, client, other)
    assert bodies(queues[0]) == [b"x"]
    assert world.broker.default_host.queues["q"].message_count == 0


@pytest.mark.parametrize("is_there", [True, False])
def test_a_full_queue_that_is_declared_so_sends_a_dead_message_on_in_a_later_turn_too(
    world: World, is_there: bool
) -> None:
    queues = bound(world, COUNT - 1)
    client, other = BasicClient(world).open(), publish_0_10(world)
    client.call("exchange.declare", exchange="next", type="fanout")
    client.call("queue.declare", queue="further")
    client.call("queue.bind", queue="further", exchange="next")
    last = f"q{COUNT - 1}"
    full_goes_on = {"x-overflow": "reject-publish-dlx", "x-dead-letter-exchange": "next" if is_there else "nowhere"}
    client.call("queue.declare", queue=last, arguments={"x-max-length": 1} | full_goes_on)
    client.call("queue.bind", queue=last, exchange="amq.fanout")
    reject_dead(world, client, other)
    assert bodies(queues[0]) == [b"x"]
    assert bodies(world.broker.default_host.queues[last]) == [b"y"]
    assert world.broker.default_host.queues["q"].message_count == 0
    further = [entry.message for entry in world.broker.default_host.queues["further"].available()]
    assert [message.body for message in further] == ([b"x"] if is_there else [])
    for message in further:
        deaths = deaths_of(message.headers())
        assert [plain_map(death)["reason"] for death in deaths] == ["maxlen", "rejected"]


def test_at_least_once_a_dead_message_stays_if_a_full_queue_sends_it_nowhere_in_a_later_turn(world: World) -> None:
    bound(world, COUNT - 1)
    client, other = BasicClient(world).open(), publish_0_10(world)
    last, name = f"q{COUNT - 1}", "q"
    full_goes_on = {"x-max-length": 1, "x-overflow": "reject-publish-dlx", "x-dead-letter-exchange": "nowhere"}
    client.call("queue.declare", queue=last, arguments=full_goes_on)
    client.call("queue.bind", queue=last, exchange="amq.fanout")
    kept = {
        "x-queue-type": "quorum", "x-overflow": "reject-publish", "x-dead-letter-strategy": "at-least-once",
        "x-dead-letter-exchange": "amq.fanout",
    }  # fmt: skip
    client.call("queue.declare", queue=name, durable=True, arguments=kept)
    client.publish(name, b"x", TRANSIENT)
    client.method("basic.consume", queue=name, consumer_tag="c")
    client.sync()
    client.method("basic.reject", delivery_tag=1, requeue=False)
    other("", b"y")
    world.run()
    assert bodies(world.broker.default_host.queues[last]) == [b"y"]
    assert world.broker.default_host.queues[name].message_count == 1


def test_a_dead_message_is_sent_on_in_later_turns_only_so_often(world: World) -> None:
    """Each of two full queues sends it back to the exchange that leads to both."""
    queues = bound(world, COUNT - 1)
    client, other = BasicClient(world).open(), publish_0_10(world)
    last = f"q{COUNT - 1}"
    back = {"x-max-length": 1, "x-overflow": "reject-publish-dlx", "x-dead-letter-exchange": "amq.fanout"}
    client.call("queue.declare", queue=last, arguments=back)
    client.call("queue.bind", queue=last, exchange="amq.fanout")
    reject_dead(world, client, other)
    assert world.broker.default_host.queues["q"].message_count == 0
    assert not world.broker.tick.turns
    assert 1 <= len(bodies(queues[0])) <= MAX_REFUSALS
