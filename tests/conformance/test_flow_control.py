"""Flow control by queue depth, as clients see it: which transfers are not completed, and when they are."""

from __future__ import annotations

from typing import Any

import pytest

from qstore.broker.management.objects.queue import QUEUE_CLASS
from qstore.broker.settings import BrokerSettings
from qstore.formats.amqp_0_10.codes import ErrorCode
from tests.broker.protocols.world import Client, World
from tests.conformance.queue_clients import Clients, arguments, bodies, clients
from tests.support.management_console import statistics

STOP, RESUME = 3, 2


def declare(client: Client, name: str = "q", stop: int = STOP, resume: int = RESUME, **values: Any) -> None:
    flow = arguments({"qpid.flow_stop_count": stop, "qpid.flow_resume_count": resume})
    client.declare(name, arguments=flow, **values)


@pytest.fixture
def found() -> Clients:
    found = clients()
    declare(found.here)
    return found


def drain(client: Client, queue: str = "q", count: int = 1, **named: Any) -> None:
    """Take messages off a queue."""
    client.subscribe(queue, to="drain", messages=count, accept_mode=1, **named)
    client.command("message.cancel", destination="drain")
    client.sync()


def publish(client: Client, count: int, key: str = "q", **delivery: Any) -> list[int]:
    numbers = client.publish(key, *(b"%d" % number for number in range(count)), **delivery)
    client.sync()
    return numbers


def waiting(client: Client, numbers: list[int]) -> list[int]:
    """Those that are not completed."""
    client.sync()
    return [number for number in numbers if number not in client.completed]


def test_transfers_wait_from_above_the_stop_threshold_to_below_the_resume_threshold(found: Clients) -> None:
    world, here, there = found
    numbers = publish(here, 5)
    assert waiting(here, numbers) == numbers[3:]
    assert bodies(world, "q") == [b"0", b"1", b"2", b"3", b"4"]
    reported = statistics(QUEUE_CLASS, world.broker.default_host.queues["q"])
    assert (reported["flowStopped"], reported["flowStoppedCount"]) == (True, 1)
    drain(there, count=3)
    assert waiting(here, numbers) == numbers[3:]
    drain(there)
    assert waiting(here, numbers) == []
    reported = statistics(QUEUE_CLASS, world.broker.default_host.queues["q"])
    assert (reported["flowStopped"], reported["flowStoppedCount"]) == (False, 1)
    publish(here, 3)
    assert statistics(QUEUE_CLASS, world.broker.default_host.queues["q"])["flowStoppedCount"] == 2


def test_the_example_of_two_senders() -> None:
    """Two senders have capacities of 50 and 15, and the threshold is 100: the queue gets 165 messages."""
    world, here, there = clients()
    declare(here, stop=100, resume=80)
    sent: dict[str, list[int]] = {"here": [], "there": []}
    for _ in range(200):
        for client, name, capacity in ((here, "here", 50), (there, "there", 15)):
            if len(waiting(client, sent[name])) < capacity:
                sent[name] += publish(client, 1)
    assert len(bodies(world, "q")) == 165
    assert (len(waiting(here, sent["here"])), len(waiting(there, sent["there"]))) == (50, 15)


def test_the_example_of_10000_bytes() -> None:
    settings = BrokerSettings(auth=False, queue_limit_bytes=0, flow_stop_percent=90, flow_resume_percent=75)
    world, here, there = clients(World(settings))
    here.declare("q", arguments=arguments({"qpid.max_size": 10_000}))
    (first,) = publish(here, 1)
    size = world.broker.default_host.queues["q"].message_bytes
    rest = here.publish("q", *[b"0"] * (9000 // size - 1))
    assert waiting(here, [first, *rest]) == []
    (last,) = publish(here, 1)
    assert world.broker.default_host.queues["q"].message_bytes > 9000
    assert waiting(here, [last]) == [last]
    while world.broker.default_host.queues["q"].message_bytes >= 7500:
        assert waiting(here, [last]) == [last]
        drain(there)
    assert waiting(here, [last]) == []
    assert world.broker.default_host.queues["q"].message_bytes == (7499 // size) * size


def test_other_commands_and_other_queues_do_not_wait(found: Clients) -> None:
    _world, here, there = found
    held = publish(here, 4)[-1]
    here.declare("free")
    (free,) = publish(here, 1, "free")
    assert here.call("queue.query", queue="q")["message_count"] == 4
    assert waiting(here, [held, free]) == [held]
    assert waiting(there, publish(there, 1, "free")) == []


def test_a_sync_waits_with_them(found: Clients) -> None:
    _world, here, there = found
    publish(here, 4)
    sync = here.command("execution.sync")
    assert waiting(here, [sync]) == [sync]
    drain(there, count=3)
    assert waiting(here, [sync]) == []


def test_several_queues(found: Clients) -> None:
    """It waits for all of them."""
    world, here, there = found
    for name in ("r", "s"):
        declare(here, name)
    for name in ("q", "r", "s"):
        here.command("exchange.bind", queue=name, exchange="amq.fanout", binding_key="")
    publish(here, 3, "q")
    publish(here, 3, "r")
    (number,) = publish(here, 1, exchange="amq.fanout")
    assert [world.broker.default_host.queues[name].message_count for name in ("q", "r", "s")] == [4, 4, 1]
    drain(there, "q", 3)
    assert waiting(here, [number]) == [number]
    drain(there, "r", 3)
    assert waiting(here, [number]) == []


def test_a_message_that_has_left_the_queue_waits_no_more(found: Clients) -> None:
    world, here, there = found
    numbers = publish(here, 4)
    publish(there, 10)
    drain(there, count=4)
    assert world.broker.default_host.queues["q"].watch.is_stopped
    assert waiting(here, numbers) == []


def test_purging_lets_them_go(found: Clients) -> None:
    _world, here, there = found
    numbers = publish(here, 5)
    there.command("queue.purge", queue="q")
    there.sync()
    assert waiting(here, numbers) == []


def test_deleting_lets_them_go(found: Clients) -> None:
    _world, here, there = found
    numbers = publish(here, 5)
    there.command("queue.delete", queue="q")
    there.sync()
    assert waiting(here, numbers) == []


def test_messages_that_move_from_a_deleted_queue_wait_for_nothing(found: Clients) -> None:
    """Neither the transfer, whose message has left its queue, nor the next one to a queue with room."""
    world, here, there = found
    here.declare("free")
    declare(here, "old", alternate_exchange="amq.fanout")
    here.command("exchange.bind", queue="q", exchange="amq.fanout", binding_key="")
    numbers = publish(here, 4, "old")
    there.command("queue.delete", queue="old")
    there.sync()
    assert world.broker.default_host.queues["q"].message_count == 4
    assert waiting(here, numbers) == []
    assert waiting(here, publish(here, 1, "free")) == []
    assert not world.broker.router.stops


def test_a_session_that_has_ended_is_forgotten(found: Clients) -> None:
    world, here, there = found
    publish(there, 5)
    session = there.session(b"there")
    there.control("session.detach", on=1, name=b"there")
    there.sync()
    flow = world.broker.default_host.queues["q"].watch.flow
    assert flow is not None
    assert session._held_messages is None
    drain(here, count=4)
    assert not flow.is_stopped


def test_a_resumed_session_is_notified() -> None:
    world, here, there = clients(timeout=100)
    declare(there)
    numbers = publish(here, 5)
    assert waiting(here, numbers) == numbers[3:]
    here.machine.closed()
    world.run()
    drain(there, count=4)
    again = world.open_client(name=None)
    again.attach(b"owner", point=here.sent[1])
    assert set(numbers) <= again.completed


@pytest.mark.parametrize("ends", ["tx.commit", "tx.rollback"])
def test_transactions_do_not_wait(found: Clients, ends: str) -> None:
    """Neither their transfers nor their commits: the client may have to commit what makes room."""
    world, here, there = found
    publish(there, 5)
    here.command("tx.select")
    here.subscribe("q", messages=5)
    numbers = publish(here, 2)
    assert waiting(here, numbers) == []
    here.command("message.accept", transfers=((0, 4),))
    sync = here.command("execution.sync")
    end = here.command(ends)
    assert waiting(here, [sync, end]) == []
    assert world.broker.default_host.queues["q"].message_count == (2 if ends == "tx.commit" else 5)


def test_a_commit_can_stop_a_queue(found: Clients) -> None:
    world, here, there = found
    here.command("tx.select")
    numbers = publish(here, 4)
    commit = here.command("tx.commit")
    assert waiting(here, [*numbers, commit]) == []
    assert world.broker.default_host.queues["q"].watch.is_stopped
    held = publish(there, 1)
    assert waiting(there, held) == held


def test_an_immediate_message(found: Clients) -> None:
    _world, here, there = found
    there.subscribe("q")
    publish(here, 4)
    held = publish(here, 1, immediate=True)
    assert waiting(here, held) == held
    assert len(there.take()) == 5


class TestDurable:
    """Transfers that wait for the disk as well."""

    def test_both(self) -> None:
        world, here, there = clients()
        queue = world.durable_queue("d")
        assert queue.watch.flow is not None
        queue.watch.flow.thresholds = queue.watch.flow.thresholds._replace(stop_count=1, resume_count=1)
        queue.watch.update(queue)
        queue.watch.count_mark = 0
        first, second = publish(here, 2, "d", delivery_mode=2)
        assert waiting(here, [first, second]) == [first, second]
        world.store.end_flush()
        assert waiting(here, [first, second]) == [second]
        drain(there, "d", 1)
        drain(there, "d", 1)
        assert waiting(here, [second]) == []

    def test_off_before_the_disk(self) -> None:
        world, here, _there = clients()
        queue = world.durable_queue("d")
        assert queue.watch.flow is not None
        queue.watch.flow.thresholds = queue.watch.flow.thresholds._replace(stop_count=1, resume_count=1)
        queue.watch.count_mark = 0
        numbers = publish(here, 2, "d", delivery_mode=2)
        queue.watch.release()
        assert waiting(here, numbers) == numbers
        world.store.end_flush()
        assert waiting(here, numbers) == []

    def test_the_disk_fails(self) -> None:
        world, here, _there = clients()
        queue = world.durable_queue("d")
        assert queue.watch.flow is not None
        queue.watch.flow.thresholds = queue.watch.flow.thresholds._replace(stop_count=1, resume_count=1)
        queue.watch.count_mark = 0
        numbers = publish(here, 2, "d", delivery_mode=2)
        world.store.end_flush(OSError(5, "the disk"))
        here.sync()
        assert waiting(here, numbers) == numbers
        assert here.failure()[0] == ErrorCode.INTERNAL_ERROR


@pytest.mark.parametrize(
    "given",
    [
        {"qpid.flow_stop_count": 5, "qpid.flow_resume_count": 6},
        {"qpid.max_count": 5, "qpid.flow_stop_count": 6},
        {"qpid.max_size": 100, "qpid.flow_resume_size": 81},
    ],
)
def test_contradictions_are_refused(given: dict[str, int]) -> None:
    world, here, _there = clients()
    here.command("queue.declare", queue="q", arguments=arguments(given))
    assert here.failure()[0] == ErrorCode.INVALID_ARGUMENT
    assert "q" not in world.broker.default_host.queues
