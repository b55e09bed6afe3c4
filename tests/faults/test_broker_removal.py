"""Races in a broker: a queue that is deleted while a client settles its messages, and shutdown.

Each test goes through the moments one by one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest

from qstore.broker.model import settlement
from qstore.broker.model.exchanges.route import Alternate
from qstore.broker.model.queues.entry import ACQUIRED, MOVING, Entry
from qstore.broker.model.queues.queue import Deletion, Queue
from qstore.broker.model.router import Router
from qstore.formats.amqp_0_10.codes import ErrorCode
from qstore.formats.amqp_0_10.commands import decode_command, encode_command
from qstore.formats.amqp_0_10.structs import DELIVERY_PROPERTIES, encode_struct
from tests.faults.broker_clients import OneSession, Watcher, subscribe
from tests.faults.broker_model import Seen
from tests.faults.broker_process import BrokerProcess, Wire
from tests.faults.simulated_disk import SimulatedDisk
from tests.support.compiled import ClientSession, replaces
from tests.support.profiles import today

pytestmark = pytest.mark.usefixtures("quiet_logs")

MOMENTS = range(14)
MOVES = (4, 8, 10, 12, 14, 18)  # seeds with which disk and catalogue are slow
Start = Callable[[SimulatedDisk, int], BrokerProcess]
Done = Callable[[Exception | None], None]
BODY = b"1:content"
_sound_move, _sound_dequeue = Router.move, Queue.dequeue


class Peer(ClientSession):
    """A client that remembers the answers."""

    def __init__(self, process: BrokerProcess, name: str) -> None:
        super().__init__(name.encode(), 0, None)
        self.deliveries: list[int] = []
        self.done: set[int] = set()  # commands
        self.errors: list[int] = []
        self.wire: Wire = process.connect(OneSession(self))
        process.settle()

    def on_command(self, payload: bytes, header: bytes | None, body: bytes | None) -> None:
        number = self.begin_command()
        command, _, values = decode_command(payload)
        if command.name == "message.transfer":
            self.deliveries.append(number)
        else:
            self.errors.append(values["error_code"])

    def on_peer_completed(self, first: int, last: int) -> None:
        self.done.update(range(first, last + 1))

    def publish(self, key: str) -> None:
        header = encode_struct(DELIVERY_PROPERTIES, {"delivery_mode": 2, "routing_key": key})
        self.send_payload(encode_command("message.transfer", accept_mode=1), header, BODY)

    def ask(self, name: str, **values: Any) -> None:
        self.send(name, **values)
        self.wire.carry()


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[BrokerProcess] = []

    def start(disk: SimulatedDisk, seed: int) -> BrokerProcess:
        process = BrokerProcess(disk, random.Random(seed), lambda: 1_700_000_000.0, lambda: None)
        started.append(process)
        return process

    yield start
    for process in started:
        process.discard()


def look(process: BrokerProcess) -> dict[str, list[Seen]]:
    watcher = Watcher(sorted(process.broker.default_host.queues))
    wire = process.connect(OneSession(watcher))
    process.settle()
    process.cut(wire)
    return watcher.seen


def with_dead_letters(process: BrokerProcess) -> Peer:
    """A client that has made a queue whose rejected messages go to another one, and put one message on it."""
    peer = Peer(process, "manager")
    peer.ask("exchange.declare", exchange="dead", type="fanout", durable=True)
    peer.ask("queue.declare", queue="dead-letters", durable=True)
    peer.ask("exchange.bind", exchange="dead", queue="dead-letters", binding_key="")
    peer.ask("queue.declare", queue="orders", durable=True, alternate_exchange="dead")
    peer.publish("orders")
    process.settle()
    return peer


@pytest.mark.parametrize(("moment", "seed"), today([*product(MOMENTS, range(4))], 28))
def test_a_message_that_is_rejected_while_its_queue_goes_is_moved_once(start: Start, moment: int, seed: int) -> None:
    process = start(SimulatedDisk(seed), seed)
    manager, consumer = with_dead_letters(process), Peer(process, "consumer")
    subscribe(consumer, "orders", acquire_mode=0, credit=10)
    process.settle()
    assert consumer.deliveries == [0]
    manager.ask("queue.delete", queue="orders")
    for _ in range(moment):
        process.tick()
        process.collect()
    consumer.ask("message.reject", transfers=((0, 0),))
    process.settle()
    assert [each.body for each in look(process)["dead-letters"]] == [BODY]
    assert set(consumer.errors) <= {ErrorCode.RESOURCE_DELETED}


@pytest.mark.parametrize(("moment", "seed"), today([*product(MOMENTS, range(4))], 28))
def test_a_commit_during_a_deletion_succeeds(start: Start, moment: int, seed: int) -> None:
    process = start(SimulatedDisk(seed), seed)
    manager, consumer = with_dead_letters(process), Peer(process, "consumer")
    consumer.ask("tx.select")
    subscribe(consumer, "orders", acquire_mode=0, credit=10)
    process.settle()
    consumer.ask("message.accept", transfers=((0, 0),))
    manager.ask("queue.delete", queue="orders")
    for _ in range(moment):
        process.tick()
        process.collect()
    consumer.ask("tx.commit")
    process.settle()
    assert set(consumer.errors) <= {ErrorCode.RESOURCE_DELETED}
    assert manager.errors == []
    assert len(look(process)["dead-letters"]) <= 1


@pytest.mark.parametrize("command", ["message.accept", "message.reject"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_message_settled_while_its_queue_is_deleted_does_not_come_back(start: Start, moment: int, command: str) -> None:
    """Nor what is rejected: the broker is killed as soon as it has completed the command."""
    disk = killed_after_settling(start, moment, command)
    assert disk is None or not look(start(disk, moment)).get("orders")


def killed_after_settling(start: Start, moment: int, command: str) -> SimulatedDisk | None:
    """The disk of a broker that is killed once the command is completed; None if its session ends before that."""
    disk = SimulatedDisk(moment)
    process = start(disk, moment)
    manager, consumer = Peer(process, "manager"), Peer(process, "consumer")
    manager.ask("queue.declare", queue="orders", durable=True)
    manager.publish("orders")
    process.settle()
    subscribe(consumer, "orders", acquire_mode=0, credit=10)
    process.settle()
    assert consumer.deliveries == [0]
    manager.ask("queue.delete", queue="orders")
    for _ in range(moment):
        process.tick()
        if moment % 2:
            process.collect()
    return killed_when_done(process, disk, consumer, command)


@pytest.mark.parametrize(("moment", "command"), today([*product(MOMENTS, ["message.accept", "message.reject"])], 14))
def test_message_moved_by_a_queue_deletion_does_not_come_back(start: Start, moment: int, command: str) -> None:
    for seed in MOVES:
        disk = killed_while_it_moves(start, moment, seed, command)
        assert disk is None or not look(start(disk, seed)).get("orders")


def killed_while_it_moves(start: Start, moment: int, seed: int, command: str) -> SimulatedDisk | None:
    """As `killed_after_settling`, with an alternate exchange."""
    disk, chance = SimulatedDisk(seed), random.Random(seed)
    process = start(disk, seed)
    manager, consumer = with_dead_letters(process), Peer(process, "consumer")
    subscribe(consumer, "orders", acquire_mode=0, credit=10)
    process.settle()
    manager.ask("queue.delete", queue="orders")
    for _ in range(moment):
        step = process.tick if chance.random() < 0.6 else process.collect
        step()
    return killed_when_done(process, disk, consumer, command)


def killed_when_done(process: BrokerProcess, disk: SimulatedDisk, consumer: Peer, command: str) -> SimulatedDisk | None:
    number = consumer.send(command, transfers=((0, 0),))
    consumer.wire.carry()
    while number not in consumer.done and not consumer.errors:
        process.tick()
        if number not in consumer.done:
            process.collect()
    if number not in consumer.done:
        return None
    disk.crash(power_loss=True)
    return disk


def _moved_at_once(self: Router, queue: Queue, entry: Entry, exchange: Alternate, done: Done) -> None:
    """What is rejected while it moves is taken for gone."""
    if entry.state == ACQUIRED:
        _sound_move(self, queue, entry, exchange, done)
    else:
        done(None)


def _dequeue_unless_gone(self: Queue, entry: Entry) -> bool:
    """What is accepted once it has moved is taken for gone, whether that is synced or not."""
    return entry.state in (ACQUIRED, MOVING) and _sound_dequeue(self, entry)


def _gone_with_its_queue(self: Deletion, entry: Entry, done: Done) -> None:
    """What was rejected before the store began to delete its queue is taken for gone."""
    done(None)


@replaces
@pytest.mark.parametrize(
    ("owner", "name", "broken", "command"),
    [
        (Router, "move", _moved_at_once, "message.reject"),
        (Queue, "dequeue", _dequeue_unless_gone, "message.accept"),
        (Deletion, "dequeue", _gone_with_its_queue, "message.reject"),
    ],
)
def test_a_broker_that_does_not_wait_for_a_move_is_detected(
    start: Start, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, broken: object, command: str
) -> None:
    monkeypatch.setattr(owner, name, broken)
    for moment in MOMENTS:
        for seed in MOVES:
            disk = killed_while_it_moves(start, moment, seed, command)
            if disk is not None and look(start(disk, seed)).get("orders"):
                return
    raise AssertionError("nothing came back")


@replaces
def test_a_broker_that_does_not_wait_for_the_deletion_is_detected(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settlement, "_deletion_of", lambda _queue, _entry: None)
    left = [disk for moment in MOMENTS if (disk := killed_after_settling(start, moment, "message.accept"))]
    assert any(look(start(disk, 0)).get("orders") for disk in left)


@pytest.mark.parametrize("seed", range(8))
def test_message_synced_during_shutdown_is_neither_delivered_nor_marked(start: Start, seed: int) -> None:
    disk = SimulatedDisk(seed)
    process = start(disk, seed)
    peer = Peer(process, "peer")
    peer.ask("queue.declare", queue="orders", durable=True)
    subscribe(peer, "orders", acquire_mode=0, credit=10)
    process.settle()
    peer.publish("orders")
    peer.wire.carry()
    assert process.stop()
    disk.crash(power_loss=True)
    again = start(disk, seed)
    assert look(again)["orders"] == [Seen(1, BODY, is_marked=bool(peer.deliveries))]
