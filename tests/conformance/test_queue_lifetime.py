"""Auto-delete queues: when they are deleted, with or without a delay, and what becomes of their messages."""

from __future__ import annotations

from typing import Any

import pytest

from qstore.formats.amqp_0_10.codes import ErrorCode
from tests.broker.protocols.world import MESSAGES, World
from tests.conformance.queue_clients import BESIDE, arguments, bodies, clients, pass_time
from tests.support.raw_peer import RawPeer
from tests.support.served import client, served

ALL = ((0, 1000),)
TIMED = arguments({"qpid.auto_delete_timeout": 30})


@pytest.mark.parametrize("durable", [False, True])
def test_a_shared_one_goes_with_its_last_consumer_and_not_before_there_was_one(durable: bool) -> None:
    world, here, there = clients()
    here.declare("q", auto_delete=True, durable=durable)
    here.control("session.detach", on=1, name=b"owner")
    pass_time(world, 3600)
    assert "q" in world.broker.default_host.queues
    here.subscribe("q", on=BESIDE)
    there.subscribe("q", acquire_mode=1)
    here.command("message.cancel", on=BESIDE, destination="q")
    here.sync()
    assert "q" in world.broker.default_host.queues  # a browser still uses it
    there.machine.closed()
    world.run()
    assert "q" not in world.broker.default_host.queues


def test_an_exclusive_one_goes_with_its_session_and_not_with_its_last_consumer() -> None:
    world, here, _there = clients()
    here.declare("q", auto_delete=True, exclusive=True)
    here.subscribe("q")
    here.command("message.cancel", destination="q")
    here.sync()
    assert "q" in world.broker.default_host.queues
    here.control("session.detach", on=1, name=b"owner")
    here.sync()
    assert "q" not in world.broker.default_host.queues


def test_one_that_was_made_exclusive_later_goes_with_its_session() -> None:
    world, here, there = clients()
    here.declare("q", auto_delete=True)
    there.declare("q", exclusive=True)
    there.control("session.detach", on=1, name=b"there")
    there.sync()
    assert "q" not in world.broker.default_host.queues


@pytest.mark.parametrize("durable", [False, True])
def test_remaining_and_acquired_messages_go_to_the_alternate_exchange(durable: bool) -> None:
    world, here, there = clients()
    there.declare("dead")
    there.command("exchange.bind", queue="dead", exchange="amq.fanout", binding_key="")
    here.declare("q", auto_delete=True, durable=durable, alternate_exchange="amq.fanout")
    here.publish("q", b"1", b"2", b"3", b"4")
    here.subscribe("q", messages=3)
    assert here.take() == [b"1", b"2", b"3"]
    here.command("message.accept", transfers=((1, 1),))
    here.machine.closed()
    world.run()
    assert "q" not in world.broker.default_host.queues
    assert bodies(world, "dead") == [b"1", b"3", b"4"]


def test_a_queue_whose_messages_find_no_room_is_kept_and_usable() -> None:
    world, here, there = clients()
    there.declare("dead", arguments=arguments({"qpid.max_count": 1}))
    there.command("exchange.bind", queue="dead", exchange="amq.fanout", binding_key="")
    here.declare("q", auto_delete=True, exclusive=True, alternate_exchange="amq.fanout")
    here.publish("q", b"1", b"2")
    here.machine.closed()
    world.run()
    assert bodies(world, "dead") == [b"1"]
    assert bodies(world, "q") == [b"2"]
    there.command("queue.purge", queue="dead")
    there.subscribe("q", messages=0)
    there.command("message.cancel", destination="q")
    there.sync()
    assert "q" not in world.broker.default_host.queues
    assert bodies(world, "dead") == [b"2"]


def test_rejected_messages_are_never_offered_again() -> None:
    world, here, there = clients()
    there.declare("dead")
    there.command("exchange.bind", queue="dead", exchange="amq.fanout", binding_key="")
    here.declare("q", alternate_exchange="amq.fanout")
    here.declare("plain")
    for queue in ("q", "plain"):
        here.publish(queue, b"1", b"2")
        here.subscribe(queue)
    assert len(here.take()) == 4
    here.command("message.reject", transfers=ALL)
    here.sync()
    assert [world.broker.default_host.queues[name].message_count for name in ("q", "plain")] == [0, 0]
    assert bodies(world, "dead") == [b"1", b"2"]


@pytest.mark.parametrize("exclusive", [False, True])
def test_messages_that_expire_go_nowhere(exclusive: bool) -> None:
    world, here, there = clients()
    there.declare("dead")
    there.command("exchange.bind", queue="dead", exchange="amq.fanout", binding_key="")
    here.declare("q", exclusive=exclusive, alternate_exchange="amq.fanout")
    here.publish("q", b"short", ttl=1000)
    here.publish("q", b"long")
    here.sync()
    world.now += 2
    assert world.broker.expire() == 1
    here.command("queue.delete", queue="q")
    here.sync()
    assert bodies(world, "dead") == [b"long"]


# ---- those that stay for a while ----


def leave(world: World, kind: str, **values: Any) -> None:
    """Declare a queue that stays for a while, use it, and leave it."""
    client = world.open_client(name=b"leaver")
    client.declare("q", auto_delete=True, exclusive=kind == "exclusive", arguments=TIMED, **values)
    if kind == "shared":
        client.subscribe("q")
    client.machine.closed()
    world.run()


@pytest.mark.parametrize("kind", ["exclusive", "shared"])
@pytest.mark.parametrize("durable", [False, True])
def test_it_goes_when_its_time_is_over(kind: str, durable: bool) -> None:
    world = World()
    leave(world, kind, durable=durable)
    pass_time(world, 29)
    assert world.open_client().call("queue.query", queue="q")["queue"] == "q"
    pass_time(world, 2)
    assert not world.open_client(name=b"other").call("queue.query", queue="q")["queue"]
    assert len(world.broker.default_host.idle_queues) == 0


def test_an_unused_shared_queue_has_no_deadline() -> None:
    world, here, _there = clients()
    here.declare("q", auto_delete=True, arguments=TIMED)
    here.machine.closed()
    pass_time(world, 1000)
    assert "q" in world.broker.default_host.queues


def test_its_deadline_starts_when_the_last_consumer_leaves() -> None:
    world, here, there = clients()
    here.declare("q", auto_delete=True, arguments=TIMED)
    for user in (here, there):
        user.subscribe("q")
    here.machine.closed()
    world.run()
    assert len(world.broker.default_host.idle_queues) == 0
    there.machine.closed()
    world.run()
    assert world.broker.default_host.queues["q"] in world.broker.default_host.idle_queues


@pytest.mark.parametrize("kind", ["exclusive", "shared"])
@pytest.mark.parametrize("use", ["own", "consume", "browse"])
def test_it_stays_while_it_is_used_and_its_time_restarts(kind: str, use: str) -> None:
    world = World()
    leave(world, kind)
    pass_time(world, 20)
    user = world.open_client()
    if use == "own":
        user.declare("q", exclusive=True)
    else:
        user.subscribe("q", acquire_mode=int(use == "browse"))
    pass_time(world, 100)
    assert "q" in world.broker.default_host.queues
    user.machine.closed()
    pass_time(world, 29)
    assert "q" in world.broker.default_host.queues
    pass_time(world, 2)
    assert "q" not in world.broker.default_host.queues


def test_one_that_is_deleted_has_no_time_left() -> None:
    world = World()
    leave(world, "exclusive")
    other = world.open_client()
    other.command("queue.delete", queue="q")
    other.declare("q", auto_delete=True)
    assert len(world.broker.default_host.idle_queues) == 0
    pass_time(world, 100)
    assert "q" in world.broker.default_host.queues  # another one of that name


def test_used_and_left_again_between_its_time_and_its_end() -> None:
    """The server has found that its time is over; before it deletes the queue, its time begins again."""
    world = World()
    leave(world, "shared")
    world.now += 31
    (queue,) = world.broker.default_host.idle_queues.take_due()
    removal = world.broker.default_host.topology.delete_if_unused(queue)
    user = world.open_client()
    user.subscribe("q")
    user.machine.closed()
    world.run()
    assert queue in world.broker.default_host.idle_queues
    world.work.append((removal, lambda _: None))
    world.run()
    assert "q" in world.broker.default_host.queues
    pass_time(world, 31)
    assert "q" not in world.broker.default_host.queues


def test_without_auto_delete_the_time_means_nothing() -> None:
    world, here, _there = clients()
    here.declare("q", exclusive=True, arguments=TIMED)
    here.machine.closed()
    pass_time(world, 100)
    assert "q" in world.broker.default_host.queues


async def test_the_server_checks_due_deadlines() -> None:
    async with served() as found:
        queues = found.broker.default_host.queues
        for name, seconds in (("long", 3600), ("short", 1)):
            peer = await client(RawPeer, found.port)
            values = arguments({"qpid.auto_delete_timeout": seconds})
            declare = {"queue": name, "exclusive": True, "auto_delete": True, "arguments": values}
            number = await client(peer.send_command, "queue.declare", **declare)
            await client(peer.wait_for, number)
            await client(peer.end)
        await found.until(lambda: "short" not in queues)
        assert [*queues] == ["long"]
        assert queues["long"] in found.broker.default_host.idle_queues


def test_arguments_that_cannot_be_meant_make_no_queue() -> None:
    world = World()
    for number, values in enumerate(
        ({"qpid.max_count": -1}, {"qpid.max_size": "foo"}, {"qpid.policy_type": "?"}, {"qpid.auto_delete_timeout": -3})
    ):
        client = world.open_client(name=b"%d" % number)
        client.command("queue.declare", queue="q", arguments=arguments(values))
        assert client.failure()[0] == ErrorCode.INVALID_ARGUMENT
        assert "q" not in world.broker.default_host.queues


# ---- qpid.lifetime-policy, qpid.browse-only ----


@pytest.mark.parametrize(
    ("policy", "auto_delete", "is_kept"),
    [("manual", True, True), ("delete-if-unused", False, False), (b"delete-if-unused", False, False)],
)
def test_the_lifetime_policy_counts_more_than_auto_delete(policy: object, auto_delete: bool, is_kept: bool) -> None:
    world, here, _there = clients()
    here.declare("q", auto_delete=auto_delete, arguments=arguments({"qpid.lifetime-policy": policy}))
    assert here.call("queue.query", queue="q")["auto_delete"] is (not is_kept)
    here.subscribe("q")
    here.command("message.cancel", destination="q")
    here.sync()
    assert ("q" in world.broker.default_host.queues) is is_kept


def test_an_unused_queue_is_kept_until_it_is_empty() -> None:
    world, here, there = clients()
    here.declare("q", arguments=arguments({"qpid.lifetime-policy": "delete-if-unused-and-empty"}))
    here.subscribe("q", messages=1)
    there.publish("q", b"1", b"2")
    assert here.take() == [b"1"]
    here.command("message.cancel", destination="q")
    here.sync()
    for _ in range(3):
        pass_time(world, 1)
        assert "q" in world.broker.default_host.queues
    there.command("queue.purge", queue="q")
    there.sync()
    pass_time(world, 1)
    assert "q" in world.broker.default_host.queues  # a session has still one of its messages
    here.command("message.accept", transfers=((0, 9),))
    here.sync()
    pass_time(world, 1)
    assert "q" not in world.broker.default_host.queues
    assert len(world.broker.default_host.idle_queues) == 0


def test_an_empty_one_goes_at_once() -> None:
    world, here, _there = clients()
    here.declare("q", arguments=arguments({"qpid.lifetime-policy": "delete-if-unused-and-empty"}))
    here.subscribe("q")
    here.command("message.cancel", destination="q")
    here.sync()
    assert "q" not in world.broker.default_host.queues


def test_one_that_is_used_again_is_kept() -> None:
    world, here, there = clients()
    here.declare("q", arguments=arguments({"qpid.lifetime-policy": "delete-if-unused-and-empty"}))
    there.publish("q", b"1")
    here.subscribe("q", messages=0)
    here.command("message.cancel", destination="q")
    here.sync()
    there.subscribe("q")
    there.command("message.accept", transfers=((0, 9),))
    there.sync()
    pass_time(world, 1)
    assert "q" in world.broker.default_host.queues
    there.command("message.cancel", destination="q")
    there.sync()
    assert "q" not in world.broker.default_host.queues


def test_a_queue_that_is_only_browsed() -> None:
    """Consumers that would acquire its messages browse them instead, as in qpidd."""
    world, here, there = clients()
    here.declare("q", arguments=arguments({"qpid.browse-only": 1}))
    here.publish("q", b"1", b"2")
    here.subscribe("q")
    there.subscribe("q")
    assert here.take() == there.take() == [b"1", b"2"]
    assert world.broker.default_host.queues["q"].message_count == 2


# ---- alternate exchanges in a circle ----


def test_a_rejected_message_that_comes_back_to_its_queue_is_one_message() -> None:
    world, here, _there = clients()
    here.declare("q", alternate_exchange="amq.fanout")
    here.command("exchange.bind", queue="q", exchange="amq.fanout", binding_key="")
    here.publish("q", b"1", b"2")
    here.subscribe("q", messages=2)
    assert here.take() == [b"1", b"2"]
    for _ in range(3):
        here.command("message.reject", transfers=((0, 99),))
        here.flow("q", MESSAGES, 2)
        assert here.take() == [b"1", b"2"]
    here.command("message.accept", transfers=((0, 99),))
    here.sync()
    assert world.broker.default_host.queues["q"].is_empty


@pytest.mark.parametrize("durable", [False, True])
def test_queues_that_are_each_other_s_alternate_can_be_deleted(durable: bool) -> None:
    world, here, _there = clients()
    for name in ("a", "b"):
        here.declare(name, durable=durable, alternate_exchange="amq.fanout")
        here.command("exchange.bind", queue=name, exchange="amq.fanout", binding_key="")
    here.publish("a", b"1", b"2")
    here.publish("b", b"3")
    here.command("queue.delete", queue="a")
    here.sync()
    assert bodies(world, "b") == [b"3", b"1", b"2"]
    here.command("queue.delete", queue="b")
    here.sync()
    assert here.exceptions == []
    assert not world.broker.default_host.queues
