"""A message for many queues when the power fails: it is confirmed only when all of them have it on the disk.

The queues get it in turns, here one queue in each. Messages for one of them that the same publisher sends in between do
not overtake it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from qstore.broker.model import router
from qstore.broker.model.message import Message
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.router import Fanout, Router
from qstore.formats.amqp_0_10.commands import encode_command
from qstore.formats.amqp_0_10.structs import DELIVERY_PROPERTIES, encode_struct
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.values import typed_map
from tests.faults.broker_clients import OneSession
from tests.faults.broker_process import BrokerProcess
from tests.faults.simulated_disk import SimulatedDisk
from tests.faults.test_dead_letter_crashes import Rejecter
from tests.faults.test_displacement_crashes import Publisher, found_after
from tests.support.compiled import replaces
from tests.support.profiles import seeds_of_the_day

QUEUES = [f"q{number}" for number in range(5)]
ROOMY = Geometry(12, 1 << 20)


pytestmark = pytest.mark.usefixtures("quiet_logs")


@pytest.fixture(autouse=True)
def one_queue_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "MAX_AT_ONCE", 1)
    monkeypatch.setattr(router, "MAX_CHECKED", 2)


def is_for_one(number: int) -> bool:
    """Whether a message goes to the last queue only."""
    return number % 3 == 2


class FanoutPublisher(Publisher):
    """Publishes to all queues, and every third message to the last one only."""

    def publish(self) -> None:
        number = self.published
        exchange, key = ("", QUEUES[-1]) if is_for_one(number) else ("amq.fanout", "")
        header = encode_struct(DELIVERY_PROPERTIES, {"delivery_mode": 2, "routing_key": key})
        payload = encode_command("message.transfer", destination=exchange, accept_mode=1)
        self._command_of.append(self.send_payload(payload, header, b"%d" % number))
        self.published += 1
        self.wire.carry()


def started(seed: int) -> tuple[SimulatedDisk, BrokerProcess, FanoutPublisher]:
    """A broker with the queues, and a publisher."""
    disk = SimulatedDisk(seed)
    process = BrokerProcess(disk, random.Random(seed), lambda: 1_700_000_000.0, lambda: None)
    process.store.geometry = ROOMY
    publisher = FanoutPublisher(process, in_transactions=False)
    for name in QUEUES:
        publisher.send("queue.declare", queue=name, durable=True)
        publisher.send("exchange.bind", queue=name, exchange="amq.fanout", binding_key="")
    publisher.wire.carry()
    process.settle()
    return disk, process, publisher


def check(disk: SimulatedDisk, process: BrokerProcess, stored: int, published: int) -> int:
    """The power fails: check what is found. Returns how many messages are on some queues, but not on all."""
    disk.crash(power_loss=True)
    found = found_after(disk, 0, *QUEUES)
    process.discard()
    for name, numbers in zip(QUEUES, found, strict=True):
        assert numbers == sorted(set(numbers)), "a message has overtaken another one"
        wanted = {number for number in range(stored) if name == QUEUES[-1] or not is_for_one(number)}
        assert wanted <= set(numbers) <= set(range(published))
    everywhere, somewhere = set.intersection(*map(set, found)), set.union(*map(set, found))
    return len([number for number in somewhere - everywhere if not is_for_one(number)])


def crash_after(steps: int) -> int:
    """Publish two messages to all, one to the last queue, and stop after `steps` steps of the event loop."""
    disk, process, publisher = started(steps)
    for _ in range(3):
        publisher.publish()
    for number in range(steps):
        publisher.wire.carry()
        (process.tick if number % 2 else process.collect)()
    return check(disk, process, publisher.stored, publisher.published)


def crash_after_each(end: int) -> list[int]:
    return [crash_after(steps) for steps in range(end)]


def test_a_confirmed_message_is_on_all_queues_wherever_the_power_fails() -> None:
    in_between = crash_after_each(60)
    assert sum(in_between) > 0, "no crash was in the middle of a message"
    assert in_between[-1] == 0


def crash_by_chance(seed: int) -> None:
    chance = random.Random(seed)
    disk, process, publisher = started(seed)
    end = chance.randrange(2, 12)
    while publisher.published < end:
        chance.choice([publisher.publish, process.tick, process.collect, publisher.wire.carry])()
    for _ in range(chance.randrange(40)):
        chance.choice([process.tick, process.collect, publisher.wire.carry])()
    check(disk, process, publisher.stored, publisher.published)


@pytest.mark.parametrize("seed", seeds_of_the_day(15))
def test_messages_to_all_and_to_one_keep_their_order(seed: int) -> None:
    crash_by_chance(seed)


def test_all_messages_are_confirmed_and_on_their_queues() -> None:
    disk, process, publisher = started(1)
    for _ in range(9):
        publisher.publish()
    process.settle()
    assert publisher.stored == 9
    assert check(disk, process, 9, 9) == 0


@replaces
def test_a_confirm_before_the_last_queue_has_the_message_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    fan_out = Router._fan_out

    def early(self: Router, message: Message, queues: Sequence[Queue]) -> Fanout:
        fanout = fan_out(self, message, queues)
        fanout.end(None)
        return fanout

    monkeypatch.setattr(Router, "_fan_out", early)
    with pytest.raises(AssertionError):
        crash_after_each(60)


@pytest.mark.parametrize("seed", seeds_of_the_day(10))
def test_a_dead_message_is_on_its_queue_or_on_all_others(seed: int) -> None:
    chance = random.Random(seed)
    disk, process, publisher = started(seed)
    arguments = typed_map({"x-dead-letter-exchange": "amq.fanout"})
    publisher.send("queue.declare", queue="q", durable=True, arguments=arguments)
    for number in range(4):
        header = encode_struct(DELIVERY_PROPERTIES, {"delivery_mode": 2, "routing_key": "q"})
        publisher.send_payload(encode_command("message.transfer", accept_mode=1), header, b"%d" % number)
    publisher.wire.carry()
    process.settle()
    rejecter = process.connect(OneSession(Rejecter()))
    for _ in range(chance.randrange(80)):
        chance.choice([rejecter.carry, process.tick, process.collect])()
    disk.crash(power_loss=True)
    kept, *dead = found_after(disk, 0, "q", *QUEUES)
    process.discard()
    for numbers in dead:
        assert {*kept, *numbers} == set(range(4))
        assert numbers == sorted(set(numbers))
