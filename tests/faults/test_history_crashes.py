"""The history of an exchange when the power fails: what was confirmed is in it, and on its queues, in order."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from qstore.broker.model.exchanges.history import History
from qstore.broker.model.message import Message
from qstore.broker.model.queues.queue import Queue
from qstore.formats.amqp_0_10.commands import encode_command
from qstore.formats.amqp_0_10.structs import DELIVERY_PROPERTIES, encode_struct
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.values import typed_map
from tests.faults.broker_process import BrokerProcess
from tests.faults.simulated_disk import SimulatedDisk
from tests.faults.test_displacement_crashes import MESSAGES, Publisher
from tests.support.compiled import replaces
from tests.support.profiles import seeds_of_the_day

pytestmark = pytest.mark.usefixtures("quiet_logs", "tiny_pages")

ROOMY = Geometry(12, 8192)
LENGTH = 5


class Historian(Publisher):
    """A client that publishes persistent messages to an exchange with a history."""

    def publish(self) -> None:
        header = encode_struct(DELIVERY_PROPERTIES, {"delivery_mode": 2, "routing_key": "k"})
        payload = encode_command("message.transfer", accept_mode=1, destination="recent")
        number = self.send_payload(payload, header, b"%d" % self.published)
        if self._in_transactions:
            number = self.send("tx.commit")
        self._command_of.append(number)
        self.published += 1
        self.wire.carry()


def on(process: BrokerProcess, name: str) -> list[int]:
    queue = process.broker.default_host.queues.get(name)
    return [] if queue is None else [int(body) for body in process.bodies(queue)]


def kept_after(seed: int) -> tuple[list[int], list[int], int, int]:
    """The power fails while messages are published.

    Returns the history and the queue after the next start, and how many messages were stored, and published.
    """
    chance, disk = random.Random(seed), SimulatedDisk(seed)
    process = BrokerProcess(disk, random.Random(seed), lambda: 1.7e9, lambda: None, pages=seed % 2 == 1)
    try:
        publisher = crashed(disk, process, chance)
        return *kept_by_the_next_start(disk, seed), publisher.stored, publisher.published
    finally:
        process.discard()


def kept_by_the_next_start(disk: SimulatedDisk, seed: int) -> tuple[list[int], list[int]]:
    process = BrokerProcess(disk, random.Random(seed), lambda: 1.7e9, lambda: None, pages=seed % 2 == 1)
    try:
        process.store.geometry = ROOMY
        process.settle()
        history = process.broker.default_host.exchanges["recent"].sent
        assert isinstance(history, History)
        assert history.queue is process.broker.default_host.queues["amq.history.recent"]
        return on(process, "amq.history.recent"), on(process, "q")
    finally:
        process.discard()


def crashed(disk: SimulatedDisk, process: BrokerProcess, chance: random.Random) -> Historian:
    process.store.geometry = ROOMY
    publisher = Historian(process, in_transactions=chance.random() < 0.3)
    publisher.send("queue.declare", queue="q", durable=True)
    arguments = typed_map({"x-recent-history-length": LENGTH})
    publisher.send("exchange.declare", exchange="recent", type="x-recent-history", durable=True, arguments=arguments)
    publisher.send("exchange.bind", queue="q", exchange="recent", binding_key="")
    publisher.wire.carry()
    process.settle()
    steps: list[Callable[[], Any]] = [publisher.publish, publisher.publish, process.tick, process.collect]
    end = chance.randrange(2, MESSAGES)
    while publisher.published < end:
        chance.choice(steps)()
    for _ in range(chance.randrange(8)):
        chance.choice(steps[2:])()
    disk.crash(power_loss=True)
    return publisher


def check_all(seeds: Iterable[int]) -> int:
    """Check the history after each seed. Returns how many messages were stored in all."""
    count = 0
    for seed in seeds:
        history, queue, stored, published = kept_after(seed)
        assert queue == sorted(queue)
        assert set(range(stored)) <= set(queue) <= set(range(published))
        assert len(history) <= LENGTH
        assert history == sorted(history)
        assert not stored or (history and history[-1] >= stored - 1), "a confirmed message is missing"
        assert set(range(max(0, history[-1] + 1 - LENGTH), stored)) <= set(history) if history else not stored
        count += stored
    return count


def test_the_history_has_what_was_confirmed() -> None:
    check_all(seeds_of_the_day(20))


def test_messages_were_confirmed() -> None:
    assert check_all(range(10)) > 20


@replaces
def test_a_history_that_keeps_nothing_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets(_self: History, _message: Message, queues: Sequence[Queue]) -> Sequence[Queue]:
        return queues

    monkeypatch.setattr(History, "keeping", forgets)
    with pytest.raises(AssertionError):
        check_all(range(20))
