"""Scheduled delivery when the power fails: what was stored arrives, when it is due and not before.

A message waits, or is where its exchange routes it, or both: then it arrives twice.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest

from qstore.broker.model.exchanges.exchange import Put
from qstore.broker.model.message import Message
from qstore.broker.model.queues.due import WAITING, DueTimes
from qstore.broker.model.queues.entry import Entry
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.schedule import Schedule
from qstore.formats.amqp_0_10.commands import encode_command
from qstore.formats.amqp_0_10.structs import DELIVERY_PROPERTIES, MESSAGE_PROPERTIES, encode_struct
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.values import typed_map
from tests.faults.broker_clients import OneSession, Watcher
from tests.faults.broker_process import BrokerProcess
from tests.faults.simulated_disk import SimulatedDisk
from tests.faults.test_displacement_crashes import MESSAGES, Publisher
from tests.support.compiled import replaces
from tests.support.profiles import seeds_of_the_day

pytestmark = pytest.mark.usefixtures("quiet_logs", "tiny_pages")

START = 1_700_000_000.0
ROOMY = Geometry(12, 8192)
LONGEST = 4000  # milliseconds


class Scheduler(Publisher):
    """A client that publishes messages with delays. `due`: when each is due."""

    def __init__(self, process: BrokerProcess, chance: random.Random, *, in_transactions: bool) -> None:
        super().__init__(process, in_transactions=in_transactions)
        self._process, self._chance = process, chance
        self.due: list[float] = []

    def publish(self) -> None:
        delay = self._chance.randrange(LONGEST)
        self.due.append(self._process.clock() + delay / 1000)
        headers = encode_struct(MESSAGE_PROPERTIES, {"application_headers": typed_map({"x-delay": delay})})
        header = encode_struct(DELIVERY_PROPERTIES, {"delivery_mode": 2, "routing_key": "k"}) + headers
        payload = encode_command("message.transfer", accept_mode=1, destination="later")
        number = self.send_payload(payload, header, b"%d" % self.published)
        if self._in_transactions:
            number = self.send("tx.commit")
        self._command_of.append(number)
        self.published += 1
        self.wire.carry()


def on(process: BrokerProcess, name: str) -> list[int]:
    """The numbers of the messages on a queue."""
    queue = process.broker.default_host.queues.get(name)
    return [] if queue is None else [int(body) for body in process.bodies(queue)]


def arrived_after(seed: int) -> tuple[list[int], int, int, int]:
    """The power fails; the next start delivers what is due.

    Returns what arrived in the end, how many messages were stored, how many published, and how many had waited.
    """
    chance, disk, now = random.Random(seed), SimulatedDisk(seed), [START]
    process = BrokerProcess(disk, random.Random(seed), lambda: now[0], lambda: None, pages=seed % 2 == 1)
    try:
        publisher, waited = crashed(disk, process, chance, now)
        arrived = delivered_by_the_next_start(disk, seed, now, publisher.due)
    finally:
        process.discard()
    return arrived, publisher.stored, publisher.published, waited


def crashed(
    disk: SimulatedDisk, process: BrokerProcess, chance: random.Random, now: list[float]
) -> tuple[Scheduler, int]:
    """The power fails while messages are published and delivered. Returns their publisher, and how many waited."""
    process.store.geometry = ROOMY
    publisher = Scheduler(process, chance, in_transactions=chance.random() < 0.2)
    publisher.send("queue.declare", queue="q", durable=True)
    arguments = typed_map({"x-delayed-type": "fanout"})
    publisher.send("exchange.declare", exchange="later", type="x-delayed-message", durable=True, arguments=arguments)
    publisher.send("exchange.bind", queue="q", exchange="later", binding_key="")
    publisher.wire.carry()
    process.settle()
    steps: list[Callable[[], Any]] = [publisher.publish, publisher.publish, process.tick, process.collect]
    steps += [lambda: now.__setitem__(0, now[0] + 0.5), process.ring]
    end = chance.randrange(2, MESSAGES)
    while publisher.published < end:
        chance.choice(steps)()
        assert all(publisher.due[number] <= now[0] + 0.001 for number in on(process, "q"))
    for _ in range(chance.randrange(8)):
        chance.choice(steps[2:])()
    waited = len(on(process, WAITING))
    disk.crash(power_loss=True)
    return publisher, waited


def delivered_by_the_next_start(disk: SimulatedDisk, seed: int, now: list[float], due: list[float]) -> list[int]:
    process = BrokerProcess(disk, random.Random(seed), lambda: now[0], lambda: None, pages=seed % 2 == 1)
    try:
        return delivered_by(process, now, due)
    finally:
        process.discard()


def delivered_by(process: BrokerProcess, now: list[float], due: list[float]) -> list[int]:
    """What a browser gets when everything that waits was due; nothing arrives before it is."""
    process.store.geometry = ROOMY
    before = set(on(process, "q"))
    for _ in range(20):  # its times are stored in whole seconds
        process.ring()
        process.settle()
        assert all(due[number] <= now[0] + 0.001 for number in set(on(process, "q")) - before)
        now[0] += 0.3
    process.ring()
    process.settle()
    assert on(process, WAITING) == []
    watcher = Watcher(["q"])
    wire = process.connect(OneSession(watcher))
    process.settle()
    process.cut(wire)
    return [int(each.body) for each in watcher.seen["q"]]


def check_all(seeds: Iterable[int]) -> int:
    """Check that nothing is lost, and nothing comes out of nowhere. Returns how many messages were waiting."""
    count = 0
    for seed in seeds:
        arrived, stored, published, waited = arrived_after(seed)
        assert set(arrived) <= set(range(published))
        assert set(range(stored)) <= set(arrived)
        count += waited
    return count


def test_what_was_stored_arrives_when_it_is_due() -> None:
    check_all(seeds_of_the_day(20))


def test_messages_were_waiting() -> None:
    assert check_all(range(10)) > 20


def _confirmed_at_once(self: Schedule, message: Message, put: Put, authorization: object) -> bool:
    put(*self.placed(message))
    return False


def _moved_at_once(self: Schedule, queue: Queue, entry: Entry) -> int:
    """It leaves before it is on the disk at its destination."""
    if queue.acquire(entry, is_consumed=False):
        message = entry.message.whole()
        self._router.put(message, self._router.route(message, self._exchanges[message.exchange]).queues)
        queue.dequeue(entry)
    return 1


def _forgotten(_self: DueTimes, _queue: Queue) -> None:
    """Messages of an earlier life are never due."""


def _delivered_early(self: DueTimes, entry: Entry, due: float, add: Callable[..., None]) -> None:
    add(self, entry, due - 1)


@replaces
@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (Schedule, "receive", _confirmed_at_once),
        (Schedule, "_deliver", _moved_at_once),
        (DueTimes, "recovered", _forgotten),
        (DueTimes, "add", lambda self, entry, due, add=DueTimes.add: _delivered_early(self, entry, due, partial(add))),
    ],
    ids=["confirmed at once", "moved at once", "forgotten", "early"],
)
def test_a_broken_schedule_is_detected(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, broken: object) -> None:
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(AssertionError):
        check_all(range(60))
