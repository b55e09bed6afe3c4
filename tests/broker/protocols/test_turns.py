"""Operations on thousands of messages are done in turns: how much one iteration of the event loop does is counted here,
not timed. Others are served in between, nothing overtakes, and what is promised is promised for all of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from qstore.broker.model.exchanges.exchange import Exchange
from qstore.broker.model.exchanges.matching import MAX_STEPS
from qstore.broker.model.queues.expiry import MAX_AT_ONCE as EXPIRED_AT_ONCE
from qstore.broker.model.queues.expiry import expire_heads
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.settlement import AT_ONCE, MOVED_AT_ONCE
from qstore.broker.model.tick import MAX_DELIVERIES
from qstore.broker.model.topology.deletion import DELETED_AT_ONCE
from qstore.broker.protocols.assembly import FRAMES_PER_LOOK, LONG_HEADER, MAX_SECONDS
from qstore.broker.protocols.consumer import DROPPED_AT_ONCE
from qstore.broker.protocols.output import COST_OF_CONVERSION, ROOM
from qstore.formats.amqp_0_9_1.frames import METHOD, encode_frame
from qstore.formats.amqp_0_9_1.methods import encode_method
from qstore.formats.amqp_0_9_1.properties import Properties
from qstore.formats.amqp_0_10.codes import CloseCode, ErrorCode
from qstore.formats.amqp_0_10.commands import encode_command
from qstore.formats.amqp_0_10.frames import encode_command_frames
from qstore.formats.amqp_1_0.composites import Composite
from qstore.formats.values import MAX_VALUES, TypedMap, typed_map
from tests.broker.protocols.basic_client import BasicClient
from tests.broker.protocols.links_client import LinksClient
from tests.broker.protocols.world import Client, World, header
from tests.support.sections_peer import ACCEPTED, REJECTED, RELEASED

COUNT = 3 * AT_ONCE + 500
TO_DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
TRANSIENT = Properties(delivery_mode=1)


def depths(world: World) -> dict[str, tuple[int, int]]:
    """For each queue, its messages, and those that are not acquired."""
    return {
        name: (queue.message_count, queue.available_count) for name, queue in world.broker.default_host.queues.items()
    }


def turns_of(world: World, begin: Callable[[], object]) -> list[int]:
    """Do something, and let the loop come to rest: by how much each iteration changes the queues."""
    changes: list[int] = []
    before = depths(world)
    step: Callable[[], object] = begin
    while True:
        step()
        now = depths(world)
        both = before.keys() & now.keys()
        changes.append(max((abs(now[name][at] - before[name][at]) for name in both for at in (0, 1)), default=0))
        before = now
        if not world.soon:
            return changes
        step = world.soon.pop(0)


def filled(world: World, *, transactional: bool = False, count: int = COUNT, **arguments: Any) -> BasicClient:
    """A client of 0-9-1 that holds all messages of the queue q, and another queue for those that die."""
    client = BasicClient(world).open()
    client.call("queue.declare", queue="dead")
    client.call("queue.declare", queue="q", arguments=arguments)
    for number in range(count):
        client.publish("q", b"%d" % number, TRANSIENT)
    client.sync()
    if transactional:
        client.call("tx.select")
    client.method("basic.consume", queue="q", consumer_tag="c")
    client.sync()
    assert depths(world)["q"] == (count, 0)
    client.received.clear()
    return client


def stop(client: BasicClient) -> None:
    """Get no more messages."""
    client.call("basic.cancel", consumer_tag="c")
    client.received.clear()


def lose(client: BasicClient) -> None:
    """The connection is lost."""
    client.machine.dismantle()


def commit_of(client: BasicClient, name: str, **values: Any) -> None:
    client.method(name, delivery_tag=0, multiple=True, **values)
    client.method("tx.commit")


HELD: dict[str, tuple[Callable[[BasicClient], None], tuple[int, int]]] = {
    "ack": (lambda client: client.method("basic.ack", delivery_tag=0, multiple=True), (0, 0)),
    "ack up to a tag": (lambda client: client.method("basic.ack", delivery_tag=COUNT - 1, multiple=True), (1, 0)),
    "drop": (lambda client: client.method("basic.nack", delivery_tag=0, multiple=True, requeue=False), (0, 0)),
    "requeue": (lambda client: client.method("basic.nack", multiple=True, requeue=True), (COUNT, COUNT)),
    "recover": (lambda client: client.method("basic.recover", requeue=True), (COUNT, COUNT)),
    "close": (lambda client: client.method("channel.close"), (COUNT, COUNT)),
    "loss": (lose, (COUNT, COUNT)),
}


@pytest.mark.parametrize("name", HELD)
def test_one_turn_settles_a_portion(world: World, name: str) -> None:
    client = filled(world)
    stop(client)
    act, left = HELD[name]
    changes = turns_of(world, lambda: act(client))
    assert depths(world)["q"] == left
    assert max(changes) <= AT_ONCE
    assert not world.broker.tick.turns


@pytest.mark.parametrize("is_large", [False, True])
def test_one_turn_moves_a_portion_to_the_dead_letter_exchange(world: World, is_large: bool) -> None:
    count = COUNT if is_large else MOVED_AT_ONCE + 50
    client = filled(world, count=count, **TO_DEAD)
    work = lambda: client.method("basic.nack", delivery_tag=0, multiple=True, requeue=False)  # noqa: E731
    changes = turns_of(world, work)
    assert depths(world) == {"q": (0, 0), "dead": (count, count)}
    assert max(changes) <= MOVED_AT_ONCE
    bodies = [entry.message.body for entry in world.broker.default_host.queues["dead"].available()]
    assert bodies == [b"%d" % number for number in range(count)]


@pytest.mark.parametrize(
    ("values", "dead", "most"),
    [
        ({"name": "basic.ack"}, 0, AT_ONCE),
        ({"name": "basic.nack", "requeue": False}, COUNT, MOVED_AT_ONCE),
        ({"name": "basic.nack", "requeue": True}, 0, AT_ONCE),
    ],
)
def test_work_after_a_commit_is_done_in_turns(world: World, values: dict[str, Any], dead: int, most: int) -> None:
    client = filled(world, transactional=True, **TO_DEAD)
    stop(client)
    changes = turns_of(world, lambda: commit_of(client, **values))
    assert depths(world)["dead"] == (dead, dead)
    assert max(changes) <= most
    assert [each.name for each in client.take()] == ["tx.commit-ok"]


def test_a_rollback_makes_all_unacknowledged_again(world: World) -> None:
    client = filled(world, transactional=True)
    client.method("basic.nack", delivery_tag=10, multiple=True, requeue=True)
    client.method("basic.ack", delivery_tag=0, multiple=True)
    client.method("tx.rollback")
    assert [each.name for each in client.take()] == ["tx.rollback-ok"]
    channel = client.machine.channels[1]
    assert list(channel.unsettled) == list(range(1, COUNT + 1))
    client.method("basic.ack", delivery_tag=COUNT, multiple=True)
    client.method("tx.commit")
    client.sync()
    assert depths(world)["q"] == (0, 0)


def test_another_client_is_served_in_between(world: World) -> None:
    client, other = filled(world, **TO_DEAD), BasicClient(world).open()
    other.call("queue.declare", queue="other")
    other.call("confirm.select")
    other.received.clear()
    client.method("basic.nack", delivery_tag=0, multiple=True, requeue=False)
    assert depths(world)["dead"][0] <= MOVED_AT_ONCE
    other.publish("other", b"hello", TRANSIENT)
    for _ in range(3):
        world.soon.pop(0)()
    assert b"hello" in bytes(other.host.output) or world.broker.default_host.queues["other"].message_count == 1
    assert depths(world)["dead"][0] <= 3 * MOVED_AT_ONCE
    assert [each.name for each in other.take()] == ["basic.ack"]


def test_later_methods_of_the_connection_wait(world: World) -> None:
    client = filled(world, **TO_DEAD)
    client.method("basic.nack", delivery_tag=0, multiple=True, requeue=False)
    client.method("queue.declare", queue="dead", passive=True)
    (answer,) = client.take()
    assert (answer.name, answer.values["message_count"]) == ("queue.declare-ok", COUNT)


@pytest.mark.parametrize("name", ["requeue", "recover", "close", "loss"])
def test_nothing_overtakes_messages_that_return_in_turns(world: World, name: str) -> None:
    client, other = filled(world), BasicClient(world).open()
    stop(client)
    for number in range(COUNT, COUNT + 100):
        other.publish("q", b"%d" % number, TRANSIENT)
    other.sync()
    act, _ = HELD[name]
    act(client)
    other.method("basic.consume", queue="q", consumer_tag="o", no_ack=True)
    assert depths(world)["q"][1] <= AT_ONCE + 100, "the messages are still returning"
    bodies = [each.body for each in other.take("basic.deliver")]
    assert bodies == [b"%d" % number for number in range(COUNT + 100)]


def test_get_waits_for_messages_that_return(world: World) -> None:
    client, other = filled(world), BasicClient(world).open()
    stop(client)
    other.publish("q", b"later", TRANSIENT)
    other.sync()
    client.method("basic.nack", multiple=True, requeue=True)
    for number in range(3):
        other.method("basic.get", queue="q", no_ack=True)
        assert other.take("basic.get-ok")[0].body == b"%d" % number


def test_an_acknowledgement_is_finished_without_its_client(world: World) -> None:
    client = filled(world)
    client.method("basic.ack", delivery_tag=COUNT - 10, multiple=True)
    assert depths(world)["q"][0] > 10
    lose(client)
    world.run()
    assert depths(world)["q"] == (10, 10)


def test_a_queue_that_is_deleted_meanwhile_takes_its_messages_along(world: World) -> None:
    client, other = filled(world, **TO_DEAD), BasicClient(world).open()
    client.method("basic.nack", delivery_tag=0, multiple=True, requeue=False)
    other.method("queue.delete", queue="q")
    world._do(*world.work.pop())
    world.run()
    dead = depths(world)["dead"][0]
    assert "q" not in world.broker.default_host.queues
    assert dead < COUNT
    assert not world.broker.tick.turns
    client.method("queue.declare", queue="dead", passive=True)
    assert [each.name for each in client.take("queue.declare-ok")] == ["queue.declare-ok"]


def test_an_unknown_tag_closes_the_channel_at_once(world: World) -> None:
    client = filled(world)
    client.method("basic.ack", delivery_tag=COUNT + 1, multiple=True)
    assert client.take("channel.close")[0].values["reply_code"] == 406
    assert depths(world)["q"] == (COUNT, COUNT)


@pytest.mark.parametrize("arguments", [{}, {"x-max-priority": 5}])
def test_one_turn_purges_a_portion(world: World, arguments: dict[str, Any]) -> None:
    client = BasicClient(world).open()
    client.call("queue.declare", queue="q", arguments=arguments)
    for number in range(COUNT):
        client.publish("q", b"%d" % number, Properties(delivery_mode=1, priority=number % 5))
    client.sync()
    changes = turns_of(world, lambda: client.method("queue.purge", queue="q"))
    assert max(changes) <= AT_ONCE
    assert client.take("queue.purge-ok")[0].values["message_count"] == COUNT
    assert depths(world)["q"] == (0, 0)


@pytest.mark.parametrize("arguments", [{}, {"x-max-priority": 5}, TO_DEAD])
@pytest.mark.parametrize("has_consumer", [True, False])
def test_one_turn_drops_a_portion_of_the_expired_messages(
    world: World, arguments: dict[str, Any], has_consumer: bool
) -> None:
    client = BasicClient(world).open()
    client.call("queue.declare", queue="dead")
    client.call("queue.declare", queue="q", arguments=arguments)
    for _ in range(COUNT):
        client.publish("q", b"x", Properties(delivery_mode=1, expiration="1000"))
    client.sync()
    world.now += 2.0
    if has_consumer:
        changes = turns_of(world, lambda: client.method("basic.consume", queue="q", consumer_tag="c"))
    else:
        changes = turns_of(world, world.broker.expire)
    assert depths(world)["q"] == (0, 0)
    assert max(changes) <= AT_ONCE
    assert world.broker.default_host.queues["q"].totals.expired == COUNT


# ---- AMQP 0-10 ----


def holding(world: World, queue: Queue | None = None, *, name: bytes = b"session", persistent: bool = False) -> Client:
    """A client of 0-10 that holds all messages of the queue q."""
    client = world.open_client(name=name)
    if queue is None:
        client.declare("q")
    for number in range(COUNT):
        client.command("message.transfer", header=header(routing_key="q", delivery_mode=2 if persistent else 1),
                       body=b"%d" % number)  # fmt: skip
    client.sync()
    while world.store.flushes:
        world.store.end_flush()
        world.run()
    client.subscribe("q")
    assert depths(world)["q"] == (COUNT, 0)
    return client


ALL = ((0, COUNT - 1),)


def done(client: Client) -> set[int]:
    """The numbers of completed commands."""
    client.sync()
    return client.completed


@pytest.mark.parametrize(
    ("command", "left"), [("message.accept", (0, 0)), ("message.release", (COUNT, COUNT)), ("message.reject", (0, 0))]
)
def test_a_range_is_settled_in_turns_and_then_completed(world: World, command: str, left: tuple[int, int]) -> None:
    client = holding(world)
    client.command("message.stop", destination="q")
    client.sync()
    number = client.sent[1]
    changes = turns_of(world, lambda: client.command(command, transfers=ALL))
    assert max(changes) <= AT_ONCE
    assert depths(world)["q"] == left
    client.sync()
    assert number in done(client)


def test_a_range_is_rejected_into_a_dead_letter_exchange_in_turns(world: World) -> None:
    client = world.open_client()
    client.declare("dead")
    client.declare("q", arguments=typed_map(TO_DEAD))
    client.publish("q", *(b"%d" % number for number in range(300)), delivery_mode=1)
    client.subscribe("q")
    number = client.sent[1]
    changes = turns_of(world, lambda: client.command("message.reject", transfers=((0, 299),)))
    assert max(changes) <= MOVED_AT_ONCE
    assert depths(world) == {"q": (0, 0), "dead": (300, 300)}
    assert number in done(client)


def test_a_range_is_completed_when_all_of_it_is_on_the_disk(world: World) -> None:
    queue = world.durable_queue("q")
    client = holding(world, queue, persistent=True)
    number = client.sent[1]
    client.command("message.accept", transfers=ALL)
    world.run()
    flushes = 0
    while world.store.flushes:
        client.sync()
        assert number not in done(client)
        world.store.end_flush()
        world.run()
        flushes += 1
    client.sync()
    assert number in done(client)
    assert len(world.store.dequeued) == COUNT
    assert flushes > 1


def test_a_large_transaction_has_no_effect_before_it_is_on_the_disk(world: World) -> None:
    """Then all of it has, in turns."""
    queue = world.durable_queue("q")
    world.durable_queue("other")
    client = holding(world, queue, persistent=True)
    client.command("tx.select")
    client.command("message.accept", transfers=ALL)
    client.publish("other", b"new", delivery_mode=2)
    number = client.sent[1]
    client.command("tx.commit")
    world.run()
    assert depths(world) == {"q": (COUNT, 0), "other": (1, 0)}
    assert sorted(world.store.dequeued) == list(range(1, COUNT + 1))
    client.sync()
    assert number not in done(client)
    changes = turns_of(world, world.store.end_flush)
    while world.store.flushes:
        world.store.end_flush()
        world.run()
    client.sync()
    assert number in done(client)
    assert max(changes) <= AT_ONCE
    assert depths(world) == {"q": (0, 0), "other": (1, 1)}


def test_a_large_commit_is_completed_though_its_connection_is_lost(world: World) -> None:
    queue = world.durable_queue("q")
    client = world.open_client(name=b"session")
    client.command("tx.select")
    for number in range(COUNT):
        client.publish("q", b"%d" % number, delivery_mode=2)
    world.run()
    client.command("tx.commit")
    while not queue.message_count:
        world.soon.pop(0)()
    assert 0 < queue.message_count < COUNT
    client.machine.dismantle()
    world.run()
    assert (queue.message_count, queue.available_count) == (COUNT, 0)
    while world.store.flushes:
        world.store.end_flush()
        world.run()
    assert [entry.message.body for entry in queue.entries()] == [b"%d" % number for number in range(COUNT)]
    assert queue.available_count == COUNT


def test_a_large_commit_that_is_refused_closes_the_channel_and_gives_back(world: World) -> None:
    client = filled(world, transactional=True)
    queue = world.broker.default_host.queues["q"]
    other = BasicClient(world).open()
    limited = {"x-max-length": 1000, "x-overflow": "reject-publish"}
    other.call("queue.declare", queue="small", arguments=limited)
    client.method("basic.ack", delivery_tag=0, multiple=True)
    for number in range(COUNT):
        client.publish("small", b"%d" % number, TRANSIENT)
    client.method("tx.commit")
    client.sync()
    assert "channel.close" in [each.name for each in client.received]
    assert depths(world)["small"] == (0, 0)
    assert (queue.message_count, queue.available_count) == (COUNT, COUNT)


def test_a_session_that_ends_gives_back_in_turns(world: World) -> None:
    client = holding(world)
    changes = turns_of(world, client.machine.dismantle)
    assert max(changes) <= AT_ONCE
    assert depths(world)["q"] == (COUNT, COUNT)


def test_transfers_that_come_meanwhile_are_not_part_of_a_range(world: World) -> None:
    """A range may name transfers that were not sent when it was received."""
    client, other = holding(world), BasicClient(world).open()
    client.command("message.accept", transfers=((0, 10 * COUNT),))
    for number in range(10):
        other.publish("q", b"later %d" % number, TRANSIENT)
    world.run()
    assert depths(world)["q"] == (10, 0)
    assert len(client.machine.sessions[1].deliveries.unsettled) == 10


# ---- the topology ----


def test_bindings_of_a_deleted_queue_go_in_portions(world: World) -> None:
    most = 0
    broker = world.broker

    async def story() -> None:
        nonlocal most
        queue = await broker.default_host.topology.declare_queue("q")
        exchange = broker.default_host.exchanges["amq.direct"]
        for number in range(COUNT):
            exchange.bind(queue, f"{number}")
        for work in (broker.default_host.topology.delete_queue("q"),):
            task = asyncio.get_running_loop().create_task(work)
            before = count(exchange)
            while not task.done():
                await asyncio.sleep(0)
                now = count(exchange)
                most, before = max(most, before - now), now
            await task
        assert count(exchange) == 0

    asyncio.run(story())
    assert 0 < most <= AT_ONCE


def count(exchange: Exchange) -> int:
    return sum(1 for _ in exchange.bindings)


def test_work_of_several_owners_shares_the_turns(world: World) -> None:
    turns, log = world.broker.tick.turns, list[str]()

    def work(name: str, portions: int) -> Iterator[None]:
        for number in range(portions):
            log.append(f"{name}{number}")
            yield
        log.append(f"{name} done")

    assert not turns.do("a", work("a", 3))
    assert not turns.do("b", work("b", 1))
    assert not turns.do("a", work("next", 1))
    turns.after("a", lambda: log.append("after a"))
    turns.after("c", lambda: log.append("after c"))
    assert turns.do("c", work("c", 0))
    while world.soon:
        before = turns.portions
        world.soon.pop(0)()
        assert turns.portions <= before + 1
    assert log == [
        "a0", "b0", "after c", "c done", "a1", "b done", "a2", "a done", "next0", "next done", "after a"
    ]  # fmt: skip
    assert not turns


def test_work_that_fails_is_over(world: World) -> None:
    turns = world.broker.tick.turns

    def failing() -> Iterator[None]:
        yield
        raise ZeroDivisionError

    assert not turns.do("a", failing())
    done: list[str] = []
    turns.after("a", lambda: done.append("after"))
    with pytest.raises(ZeroDivisionError):
        world.run()
    world.run()
    assert done == ["after"]
    assert not turns


# ---- the input of one read ----


class Looks:
    """A clock that goes on with each look at it.

    Attributes:
        count: how many looks there were.
    """

    def __init__(self, seconds: float) -> None:
        self.count, self._seconds = 0, seconds

    def __call__(self) -> float:
        self.count += 1
        return self.count * self._seconds


DEAR = MAX_SECONDS * 0.4
"""Seconds between two looks at the clock, so that three commands use up the time."""


def steps_of(machine: Any, data: bytes, count: Callable[[], int]) -> list[int]:
    """Receive data, and resume as often as it takes. Returns by how much each step has changed the count."""
    before = count()
    machine.receive(data)
    steps = [count() - before]
    while machine.is_behind:
        before = count()
        machine.resume()
        steps.append(count() - before)
    return steps


def declared(world: World) -> tuple[BasicClient, Queue]:
    client = BasicClient(world).open()
    client.call("queue.declare", queue="q")
    client.call("queue.bind", queue="q", exchange="amq.topic", routing_key="#")
    return client, world.broker.default_host.queues["q"]


def test_a_read_of_0_9_1_is_processed_in_turns_of_limited_time(world: World) -> None:
    client, queue = declared(world)
    before = client.machine.counts.frames_received
    client.machine._assembler.clock = Looks(DEAR)
    data = b"".join(client.message(f"key.{number}", b"%d" % number, exchange="amq.topic") for number in range(20))
    assert steps_of(client.machine, data, lambda: queue.message_count) == [3, 3, 3, 3, 3, 3, 2]
    assert [entry.message.body for entry in queue.available()] == [b"%d" % number for number in range(20)]
    assert client.machine.counts.messages_received == 20
    assert client.machine.counts.frames_received - before == 60


def test_a_read_of_0_10_is_processed_in_turns_of_limited_time(world: World) -> None:
    client = world.open_client()
    client.declare("q")
    queue = world.broker.default_host.queues["q"]
    world.broker.default_host.exchanges["amq.topic"].bind(queue, "#")
    before = client.machine.counts.frames_received
    client.machine._assembler.clock = Looks(DEAR)
    payload = encode_command("message.transfer", destination="amq.topic")
    data = b"".join(
        b"".join(encode_command_frames(1, payload, header(routing_key=f"key.{number}"), b"%d" % number, 65535))
        for number in range(10, 30)
    )
    assert steps_of(client.machine, data, lambda: queue.message_count) == [3, 3, 3, 3, 3, 3, 2]
    assert [entry.message.body for entry in queue.available()] == [b"%d" % number for number in range(10, 30)]
    assert client.machine.counts.frames_received - before == 60


@pytest.mark.parametrize("name", ["basic.qos", "basic.nack", "basic.consume"])
def test_methods_off_the_hot_path_are_timed_one_by_one(world: World, name: str) -> None:
    client, _ = declared(world)
    client.machine._assembler.clock = Looks(DEAR)
    values = {
        "basic.qos": [{"prefetch_count": number} for number in range(9)],
        "basic.nack": [{"delivery_tag": 0, "multiple": True}] * 9,
        "basic.consume": [{"queue": "q", "consumer_tag": f"{number}"} for number in range(9)],
    }[name]
    data = b"".join(encode_frame(METHOD, 1, encode_method(name, **each)) for each in values)
    assert steps_of(client.machine, data, lambda: client.machine.counts.frames_received) == [3, 3, 3]


def test_messages_with_long_headers_are_timed_one_by_one(world: World) -> None:
    client, queue = declared(world)
    client.machine._assembler.clock = Looks(DEAR)
    client.call("queue.bind", queue="q", exchange="amq.match", arguments={"x-match": "any", "text": None})
    unlike = [Properties(headers=typed_map({"text": "x" * LONG_HEADER, "number": number})) for number in range(9)]
    data = b"".join(client.message("q", b"x", properties, exchange="amq.match") for properties in unlike)
    assert max(steps_of(client.machine, data, lambda: queue.message_count)) == 3


def test_messages_that_are_alike_cost_few_looks_at_the_clock(world: World) -> None:
    client, queue = declared(world)
    clock = client.machine._assembler.clock = Looks(0.0)
    client.send(client.message("q", b"x") * 100)
    assert queue.message_count == 100
    assert clock.count <= 100 // FRAMES_PER_LOOK + 4


def unlike(client: BasicClient) -> list[bytes]:
    """Messages that are not handled as a run."""
    return [client.message("q", b"x", Properties(content_type="x" * number)) for number in range(1, 10)]


def test_a_sign_of_life_processes_nothing(world: World) -> None:
    client, queue = declared(world)
    client.machine._assembler.clock = Looks(DEAR)
    client.send(b"".join(unlike(client)))
    for _ in range(2):
        client.machine.receive(b"")
        assert client.machine.is_behind
        assert queue.message_count == 3


def test_an_error_within_a_read_that_is_cut_closes_the_channel_once(world: World) -> None:
    client, queue = declared(world)
    client.machine._assembler.clock = Looks(DEAR)
    good = [client.message("q", b"x" * number) for number in range(1, 6)]
    bad = client.message("q", b"y", exchange="none")
    steps_of(client.machine, b"".join([*good, bad, *good]), lambda: queue.message_count)
    client.sync()
    assert [each.name for each in client.take("channel.close")] == ["channel.close"]
    assert queue.message_count == 5
    client.method("channel.close-ok")
    client.call("channel.open")
    client.publish("q")
    assert queue.message_count == 6


def test_lost_connection_drops_unprocessed_input(world: World) -> None:
    client, queue = declared(world)
    client.machine._assembler.clock = Looks(DEAR)
    client.send(b"".join(unlike(client)))
    client.machine.dismantle()
    client.machine.resume()
    assert queue.message_count == 3
    assert not client.machine.is_behind


# ---- routing that takes too many steps ----

DEAR_KEY = ".".join(["a"] * 100)


def hostile(world: World) -> Queue:
    """Bind a queue so that messages with this key take too many steps."""
    queue = world.broker.default_host.queues["q"]
    for number in range(2_000):
        words = [word for at in range(11) for word in ("#" if number >> at & 1 else "*", "a")]
        world.broker.default_host.exchanges["amq.topic"].bind(queue, ".".join(words))
    return queue


@pytest.mark.parametrize("mandatory", [False, True])
@pytest.mark.parametrize("is_transaction", [False, True])
def test_a_message_that_takes_too_many_steps_closes_the_channel(
    world: World, is_transaction: bool, mandatory: bool
) -> None:
    client = BasicClient(world).open()
    client.call("queue.declare", queue="q")
    queue = hostile(world)
    if is_transaction:
        client.call("tx.select")
    client.publish(DEAR_KEY, exchange="amq.topic", mandatory=mandatory)
    client.sync()
    closed = client.last()
    assert (closed.name, closed.values["reply_code"]) == ("channel.close", 406)
    assert 'exchange "amq.topic": matching routing key "a.a' in closed.values["reply_text"]
    assert queue.message_count == 0


def test_with_confirms_it_is_refused_and_others_are_not(world: World) -> None:
    client = BasicClient(world).open()
    client.call("queue.declare", queue="q")
    client.call("queue.bind", queue="q", exchange="amq.topic", routing_key="b")
    client.call("confirm.select")
    queue = hostile(world)
    client.received.clear()
    client.publish(DEAR_KEY, exchange="amq.topic", properties=TRANSIENT)
    client.publish("b", exchange="amq.topic", properties=TRANSIENT)
    client.sync()
    assert sorted((each.name, each.values["delivery_tag"]) for each in client.received) == [
        ("basic.ack", 2), ("basic.nack", 1)
    ]  # fmt: skip
    assert queue.message_count == 1


def test_over_0_10_it_ends_the_session(world: World) -> None:
    client = world.open_client()
    client.declare("q")
    queue = hostile(world)
    (number,) = client.publish(DEAR_KEY, b"x", exchange="amq.topic")
    assert client.failure() == (ErrorCode.RESOURCE_LIMIT_EXCEEDED, number)
    assert queue.message_count == 0


def test_a_dead_message_that_takes_too_many_steps_stays(world: World) -> None:
    client = BasicClient(world).open()
    client.call("queue.declare", queue="q")
    dear = {"x-dead-letter-exchange": "amq.topic", "x-dead-letter-routing-key": DEAR_KEY}
    client.call("queue.declare", queue="source", arguments=dear)
    queue = hostile(world)
    client.publish("source", properties=TRANSIENT)
    client.call("basic.get", queue="source")
    client.method("basic.reject", delivery_tag=1, requeue=False)
    client.sync()
    assert (client.last().name, client.last().values["reply_code"]) == ("channel.close", 406)
    assert (depths(world)["source"], queue.message_count) == ((1, 1), 0)


def test_dead_messages_that_take_many_steps_leave_a_ring_in_small_portions(world: World) -> None:
    client = BasicClient(world).open()
    client.call("queue.declare", queue="q")
    ring: dict[str, Any] = {"x-max-length-bytes": 10_000, "x-overflow": "drop-head"}
    dear = {"x-dead-letter-exchange": "amq.topic", "x-dead-letter-routing-key": DEAR_KEY}
    client.call("queue.declare", queue="source", arguments=ring | dear)
    hostile(world)
    source, exchange = world.broker.default_host.queues["source"], world.broker.default_host.exchanges["amq.topic"]
    for _ in range(100):
        client.publish("source", b"x" * 20, properties=TRANSIENT)
    client.sync()
    assert (source.message_count, exchange.steps) == (100, 0)
    client.publish("source", b"x" * 9_800, properties=TRANSIENT)
    most = exchange.steps
    while world.soon:
        before = exchange.steps
        world.soon.pop(0)()
        most = max(most, exchange.steps - before)
    assert source.message_count < 10
    assert 0 < most <= 5 * MAX_STEPS


@pytest.mark.parametrize("is_offered", [False, True])
def test_dead_messages_that_take_many_steps_expire_in_small_portions(world: World, is_offered: bool) -> None:
    client = BasicClient(world).open()
    client.call("queue.declare", queue="q")
    dear = {"x-dead-letter-exchange": "amq.topic", "x-dead-letter-routing-key": DEAR_KEY}
    client.call("queue.declare", queue="source", arguments=dear)
    hostile(world)
    source, exchange = world.broker.default_host.queues["source"], world.broker.default_host.exchanges["amq.topic"]
    for _ in range(100):
        client.publish("source", properties=TRANSIENT._replace(expiration="1000"))
    client.sync()
    now = source._clock()
    source._clock = lambda: now + 5.0
    most, before = 0, exchange.steps
    if is_offered:
        client.method("basic.consume", queue="source")
    else:
        source.mark_ready()
        assert expire_heads(source, now + 5.0)[1] < 2 * EXPIRED_AT_ONCE
    most = max(most, exchange.steps - before)
    while world.soon:
        before = exchange.steps
        world.soon.pop(0)()
        most = max(most, exchange.steps - before)
    if is_offered:
        assert source.message_count == 0
    assert 0 < most <= 4 * MAX_STEPS


# ---- many consumers and queues ----

MANY = 1_200


def most_per_turn(world: World, count: Callable[[], int], begin: Callable[[], object]) -> int:
    """Do something, and let the loop come to rest. Returns by how much a number changes in one iteration, at most."""
    step, before, most = begin, count(), 0
    while True:
        step()
        now = count()
        most, before = max(most, abs(now - before)), now
        if not world.soon:
            return most
        step = world.soon.pop(0)


def test_many_consumers_of_a_lost_connection_are_dropped_in_turns(world: World) -> None:
    client = BasicClient(world).open()
    client.call("queue.declare", queue="q")
    for number in range(MANY):
        client.method("basic.consume", queue="q", consumer_tag=f"c{number}")
    client.sync()
    queue, other = world.broker.default_host.queues["q"], BasicClient(world).open()
    assert most_per_turn(world, lambda: queue.consumer_count, lambda: lose(client)) <= DROPPED_AT_ONCE
    assert queue.consumer_count == 0
    other.publish("q", b"x", TRANSIENT)
    world.run()
    assert depths(world)["q"] == (1, 1)


def test_consumers_that_wait_to_be_dropped_get_nothing(world: World) -> None:
    client = BasicClient(world).open()
    client.call("queue.declare", queue="q")
    for number in range(MANY):
        client.method("basic.consume", queue="q", consumer_tag=f"c{number}")
    client.sync()
    other = BasicClient(world).open()
    client.method("channel.close")
    for _ in range(MANY):
        other.publish("q", b"x", TRANSIENT)
    world.run()
    assert depths(world)["q"] == (MANY, MANY)
    assert client.take("channel.close-ok")
    assert not client.take("basic.deliver")


def test_many_subscriptions_and_exclusive_queues_of_a_session_end_in_turns(world: World) -> None:
    client = world.open_client()
    client.declare("q")
    for number in range(MANY):
        client.command("message.subscribe", queue="q", destination=f"d{number}", accept_mode=0, acquire_mode=0)
        client.command("queue.declare", queue=f"x{number}", exclusive=True, auto_delete=True)
        client.sync()
    queue, queues = world.broker.default_host.queues["q"], world.broker.default_host.queues
    assert (queue.consumer_count, len(queues)) == (MANY, MANY + 1)
    count = lambda: queue.consumer_count + len(queues)  # noqa: E731
    assert most_per_turn(world, count, client.machine.closed) <= DROPPED_AT_ONCE
    assert queue.consumer_count == 0
    world.run()
    assert list(queues) == ["q"]


def test_consumers_of_a_deleted_queue_are_notified_once(world: World) -> None:
    client, other = BasicClient(world).open(), BasicClient(world).open()
    client.call("queue.declare", queue="q")
    client.call("queue.declare", queue="again")
    for number in range(MANY):
        client.method("basic.consume", queue="q", consumer_tag=f"c{number}")
    client.sync()
    client.received.clear()
    last = f"c{MANY - 1}"
    other.method("queue.delete", queue="q")
    client.method("basic.cancel", consumer_tag=last)
    client.method("basic.consume", queue="again", consumer_tag=last)
    world.run()
    cancelled = [each.values["consumer_tag"] for each in client.take("basic.cancel")]
    assert len(cancelled) == len(set(cancelled))
    other.publish("again", b"x", TRANSIENT)
    assert [each.values["consumer_tag"] for each in client.take("basic.deliver")] == [last]


@pytest.mark.parametrize("is_0_10", [False, True])
def test_auto_delete_queues_of_dropped_consumers_are_deleted_in_turns(world: World, is_0_10: bool) -> None:
    end: Callable[[], object]
    if is_0_10:
        client = world.open_client()
        for number in range(MANY):
            client.declare(f"q{number}", auto_delete=True)
            client.command("message.subscribe", queue=f"q{number}", destination=f"d{number}")
            client.sync()
        end = client.machine.closed
    else:
        basic = BasicClient(world).open()
        for number in range(MANY):
            basic.method("queue.declare", queue=f"q{number}", auto_delete=True)
            basic.method("basic.consume", queue=f"q{number}", consumer_tag=f"c{number}")
        basic.sync()
        end = lambda: lose(basic)  # noqa: E731
    queues = world.broker.default_host.queues
    held = list(queues.values())
    assert len(held) == MANY
    assert most_per_turn(world, lambda: sum(queue.consumer_count for queue in held), end) <= DELETED_AT_ONCE
    world.run()
    assert not queues


# ---- very many values ----

TOO_MANY = typed_map({"list": [None] * MAX_VALUES})  # and the list itself
MOST = typed_map({"list": [None] * (MAX_VALUES - 1)})


def test_a_message_with_too_many_headers_closes_the_channel(world: World) -> None:
    client = BasicClient(world).open(frame_max=65_536)
    client.call("queue.declare", queue="q")
    client.publish("q", properties=Properties(headers=MOST))
    client.publish("q", properties=Properties(headers=TOO_MANY))
    client.sync()
    closed = client.last()
    assert (closed.name, closed.values["reply_code"]) == ("channel.close", 406)
    assert "more than 4,096 headers" in closed.values["reply_text"]
    assert depths(world) == {"q": (1, 1)}


def test_arguments_with_too_many_values_close_the_connection(world: World) -> None:
    client = BasicClient(world).open(frame_max=65_536)
    client.call("queue.declare", queue="q", arguments=MOST)
    assert list(world.broker.default_host.queues) == ["q"]
    client.method("queue.declare", queue="other", arguments=TOO_MANY)
    client.sync()
    closed = client.last(0)
    assert (closed.name, closed.values["reply_code"]) == ("connection.close", 501)
    assert "more than 4,096 values" in closed.values["reply_text"]


def test_a_message_of_0_10_with_too_many_headers_ends_the_session(world: World) -> None:
    client = world.open_client()
    client.declare("q")
    transfer(client, MOST)
    client.sync()
    assert depths(world) == {"q": (1, 1)}
    transfer(client, TOO_MANY)
    assert client.failure()[0] == ErrorCode.RESOURCE_LIMIT_EXCEEDED
    assert depths(world) == {"q": (1, 1)}


def transfer(client: Client, headers: TypedMap) -> None:
    client.command("message.transfer", header=header({"application_headers": headers}, routing_key="q"), body=b"x")


def test_arguments_of_0_10_with_too_many_values_close_the_connection(world: World) -> None:
    client = world.open_client()
    client.declare("q", arguments=MOST)
    assert "q" in world.broker.default_host.queues
    client.command("queue.declare", queue="other", arguments=TOO_MANY)
    assert client.close_code() == CloseCode.FRAMING_ERROR


# ---- delivery ----


def mixed(world: World, count: int) -> Queue:
    """A queue with messages that are not handled as runs."""
    client = BasicClient(world).open()
    client.call("queue.declare", queue="q")
    data = [client.message("q", b"x", Properties(content_type="x" * number)) for number in (1, 2)]
    client.send(b"".join(data) * (count // 2))
    client.sync()
    return world.broker.default_host.queues["q"]


def delivered_in_turns(world: World, begin: Callable[[], object], sent: Callable[[], int]) -> list[int]:
    """Do something, and let the loop come to rest: how many messages each iteration delivers."""
    found, before, step = list[int](), sent(), begin
    while True:
        step()
        now = sent()
        found.append(now - before)
        before = now
        if not world.soon:
            return [each for each in found if each]
        step = world.soon.pop(0)


@pytest.mark.parametrize("browse", [False, True])
def test_a_tick_delivers_a_limited_number_of_messages_to_all_consumers_together(world: World, browse: bool) -> None:
    count = 800 if browse else 3 * MAX_DELIVERIES
    queue = mixed(world, count)
    clients = [
        BasicClient(world).open() if not browse else world.open_client(name=b"%d" % number)
        for number in range(20 if browse else 6)
    ]
    machines: list[Any] = [client.machine for client in clients]

    def begin() -> None:
        for client in clients:
            if isinstance(client, BasicClient):
                client.method("basic.consume", queue="q", consumer_tag="c", no_ack=True)
            else:
                client.command("message.subscribe", queue="q", destination="d", accept_mode=1, acquire_mode=1)
                for unit in (0, 1):
                    client.command("message.flow", destination="d", unit=unit, value=0xFFFFFFFF)

    changes = delivered_in_turns(world, begin, lambda: sum(each.counts.messages_sent for each in machines))
    assert max(changes) <= MAX_DELIVERIES
    assert sum(changes) == (20 * count if browse else count)
    assert queue.message_count == (count if browse else 0)
    if browse:
        assert {each.counts.messages_sent for each in machines} == {count}


def test_consumers_of_many_deep_queues_are_served_in_turn(world: World) -> None:
    publisher = BasicClient(world).open()
    names = [f"q{number}" for number in range(4)]
    for name in names:
        publisher.call("queue.declare", queue=name)
        data = [publisher.message(name, b"x", Properties(content_type="x" * number)) for number in (1, 2)]
        publisher.send(b"".join(data) * MAX_DELIVERIES)
    publisher.sync()
    clients = [BasicClient(world).open() for _ in names]
    machines: list[Any] = [client.machine for client in clients]
    served: list[int] = []

    def begin() -> None:
        for client, name in zip(clients, names, strict=True):
            client.method("basic.consume", queue=name, consumer_tag="c", no_ack=True)

    def sent() -> int:
        counts = [each.counts.messages_sent for each in machines]
        served.append(sum(each > 0 for each in counts))
        return sum(counts)

    changes = delivered_in_turns(world, begin, sent)
    assert max(changes) <= MAX_DELIVERIES
    assert sum(changes) == 8 * MAX_DELIVERIES
    assert 4 in served[: len(served) // 2], "a queue waits until others are empty"


def test_few_messages_of_another_protocol_are_converted_in_a_turn(world: World) -> None:
    count = 2_000
    mixed(world, count)
    client = world.open_client()
    machine: Any = client.machine

    def begin() -> None:
        client.command("message.subscribe", queue="q", destination="d", accept_mode=1, acquire_mode=1)
        for unit in (0, 1):
            client.command("message.flow", destination="d", unit=unit, value=0xFFFFFFFF)

    changes = delivered_in_turns(world, begin, lambda: machine.counts.messages_sent)
    assert sum(changes) == count
    assert max(changes) <= ROOM // COST_OF_CONVERSION + 1


# ---- messages with very long headers, which are dear to change ----


def long_messages(world: World, count: int, **arguments: Any) -> BasicClient:
    """A client of 0-9-1 that has published messages with long headers to the queue q; no two are alike."""
    client = BasicClient(world).open(frame_max=65_536)
    client.call("queue.declare", queue="dead")
    client.call("queue.declare", queue="q", arguments=TO_DEAD | arguments)
    headers = typed_map({f"{number:x}": number for number in range(3_000)})
    for number in range(count):
        properties = Properties(
            delivery_mode=1, headers=headers, message_id=str(number), expiration=arguments.get("expiration")
        )
        client.publish("q", b"x", properties)
    client.sync()
    return client


def test_messages_with_long_headers_are_rejected_one_by_one_into_a_dead_letter_exchange(world: World) -> None:
    client = long_messages(world, 20)
    client.method("basic.consume", queue="q", consumer_tag="c")
    client.sync()
    nack = lambda: client.method("basic.nack", delivery_tag=0, multiple=True, requeue=False)  # noqa: E731
    assert max(turns_of(world, nack)) == 1
    assert (depths(world)["q"], depths(world)["dead"]) == ((0, 0), (20, 20))


def test_a_queue_that_is_deleted_while_messages_leave_it_in_turns_keeps_none_of_them(world: World) -> None:
    client = long_messages(world, 5)
    client.method("basic.consume", queue="q", consumer_tag="c")
    client.sync()
    client.method("basic.nack", delivery_tag=0, multiple=True, requeue=False)
    client.method("queue.delete", queue="q")
    client.sync()
    assert "q" not in depths(world)
    assert 1 <= depths(world)["dead"][0] <= 5
    client.method("queue.declare", queue="q")
    client.sync()
    assert depths(world)["q"] == (0, 0)


def test_messages_with_long_headers_that_return_too_often_leave_one_by_one(world: World) -> None:
    client = long_messages(world, 20)
    queue = world.broker.default_host.queues["q"]
    queue.delivery_limit = 0
    client.method("basic.consume", queue="q", consumer_tag="c")
    client.sync()
    stop(client)
    nack = lambda: client.method("basic.nack", delivery_tag=0, multiple=True, requeue=True)  # noqa: E731
    assert max(turns_of(world, nack)) == 1
    assert depths(world)["dead"] == (20, 20)


def test_messages_with_long_headers_expire_one_by_one_into_a_dead_letter_exchange(world: World) -> None:
    client = long_messages(world, 5)
    client.call("queue.declare", queue="p", arguments=TO_DEAD | {"x-max-priority": 9})
    headers = typed_map({f"{number:x}": number for number in range(3_000)})
    for priority in range(10):
        client.publish("p", b"x", Properties(headers=headers, priority=priority, expiration="1000", delivery_mode=1))
    client.sync()
    world.now += 60
    queue = world.broker.default_host.queues["p"]
    while queue.message_count:
        before = queue.message_count
        _, spent = expire_heads(queue, world.now)
        assert queue.message_count == before - 1
        assert spent >= EXPIRED_AT_ONCE
        world.run()


# ---- AMQP 1.0 ----


def linked(world: World, links: int = 1) -> LinksClient:
    """A client of 1.0 with links from the queue q, of which the first holds all messages."""
    publisher = BasicClient(world).open()
    publisher.call("queue.declare", queue="q")
    for number in range(COUNT):
        publisher.publish("q", b"%d" % number, TRANSIENT)
    publisher.sync()
    client = LinksClient(world).open()
    for handle in range(links):
        client.receiver("q", handle, credit=COUNT if handle == 0 else 0)
    assert len(client.messages()) == COUNT
    return client


@pytest.mark.parametrize("state", [RELEASED, ACCEPTED, REJECTED])
def test_what_is_settled_in_very_many_parts_is_reported_in_turns(world: World, state: Composite) -> None:
    client = linked(world)
    for number in range(0, COUNT, 2):
        client.settle(ACCEPTED, number)
    client.credit(0, seen=COUNT)
    client.take()
    sent: list[int] = []

    def begin() -> None:
        client.settle(state, 0, COUNT, settled=False)

    step: Callable[[], object] = begin
    while True:
        step()
        client.feed(bytes(client.host.output))
        client.host.output.clear()
        sent.append(len(client.received))
        client.received.clear()
        if not world.soon:
            break
        step = world.soon.pop(0)
    assert sum(sent) == COUNT // 2
    assert max(sent) <= AT_ONCE


class Unread(dict[Any, Any]):
    """What is not walked."""

    def __iter__(self) -> Any:
        raise AssertionError("what other links have was looked at")

    def items(self) -> Any:
        return iter(self)


def test_a_link_without_deliveries_is_detached_whatever_others_hold(world: World) -> None:
    client = linked(world, 3)
    session = client.machine.all_sessions[0]
    session.unsettled = Unread(session.unsettled)
    client.credit(2, 1)
    client.do("detach", handle=1, closed=True)
    client.sync()
    assert (len(session.unsettled), sorted(session.links)) == (COUNT, [0, 2])
    client.do("detach", handle=0, closed=True)
    client.sync()
    assert not session.unsettled
    assert depths(world)["q"] == (COUNT, COUNT)


def test_links_that_are_drained_wait_for_the_window_without_being_looked_at(world: World) -> None:
    client = linked(world, 4)
    session = client.machine.all_sessions[0]
    client.credit(5, 1, incoming_window=0, drain=True)
    session._drains = Unread(session._drains)
    for handle in (2, 3):
        client.credit(5, handle, incoming_window=0, drain=True)
    session._drains = {link: None for link in session.links.values() if link.is_draining}
    assert len(session._drains) == 3
    client.take()
    client.do("flow", next_incoming_id=COUNT, incoming_window=100, next_outgoing_id=0, outgoing_window=9)
    drained = [each.fields["handle"] for each in client.take("flow")]
    assert drained == [1, 2, 3]


def test_many_dynamic_nodes_end_in_turns(world: World) -> None:
    client = LinksClient(world).open()
    count = 5 * DELETED_AT_ONCE
    for handle in range(count):
        client.sender(None, handle, terminus={"dynamic": True})
    queues = world.broker.default_host.queues
    assert len(queues) == count
    client.do("end")
    begun = [len(world.work)]
    while world.soon:
        before = len(world.work)
        world.soon.pop(0)()
        begun.append(len(world.work) - before)
    assert sum(begun) == count
    assert max(begun) <= DELETED_AT_ONCE
    world.run()
    assert not queues


def test_a_message_of_another_protocol_takes_the_room_of_its_conversion(world: World) -> None:
    client = LinksClient(world)
    publisher = BasicClient(world).open()
    publisher.call("queue.declare", queue="q")
    for _ in range(1_000):
        publisher.publish("q", b"x", TRANSIENT)
    publisher.sync()
    client.open().receiver("q", credit=0)
    client.credit(1_000)
    assert max(turns_of(world, lambda: None)) <= ROOM // COST_OF_CONVERSION + 1
    assert len(client.messages()) == 1_000
