"""Dead-letter exchanges when the power fails: a message that was stored is on its queue, or where it goes, or on both.

Messages die in three ways: a full ring displaces them, their time is over, a consumer rejects them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from qstore.broker.model.dead_letters import DeadLetters, QueueDeadLetter
from qstore.broker.model.queues.entry import Entry
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.settlement import AT_ONCE
from qstore.formats.amqp_0_10.commands import decode_command
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.values import typed_map
from tests.faults.broker_clients import UNLIMITED, OneSession, subscribe
from tests.faults.broker_process import BrokerProcess
from tests.faults.simulated_disk import SimulatedDisk
from tests.faults.test_displacement_crashes import MESSAGES, Publisher, found_after
from tests.support.compiled import ClientSession, replaces
from tests.support.profiles import seeds_of_the_day

pytestmark = pytest.mark.usefixtures("quiet_logs", "tiny_pages")

TO_DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
HOW = {"maxlen": {"x-max-length": 4}, "expired": {"x-message-ttl": 1000}, "rejected": {}}
START = 1_700_000_000.0
ROOMY = Geometry(12, 8192)
"""Messages without room are dropped."""


class Rejecter(ClientSession):
    """A client that rejects every message."""

    def __init__(self) -> None:
        super().__init__(b"rejecter", 0, None)

    def on_attached(self) -> None:
        subscribe(self, "q", acquire_mode=0, credit=UNLIMITED)

    def on_command(self, payload: bytes, header: bytes | None, body: bytes | None) -> None:
        number = self.begin_command()
        assert decode_command(payload)[0].name == "message.transfer"
        self.send("message.reject", transfers=((number, number),))


def left_after(reason: str, seed: int) -> tuple[list[int], list[int], int, int]:
    """What the next start finds on the queue, and behind its dead-letter exchange; how many were stored, and sent."""
    chance, disk, now = random.Random(seed), SimulatedDisk(seed), [START]
    process = BrokerProcess(disk, random.Random(seed), lambda: now[0], lambda: None, pages=seed % 2 == 1)
    process.store.geometry = ROOMY
    publisher = Publisher(process, in_transactions=seed % 5 == 0)
    publisher.send("queue.declare", queue="dead", durable=True)
    publisher.send("queue.declare", queue="q", durable=True, arguments=typed_map({**TO_DEAD, **HOW[reason]}))
    publisher.wire.carry()
    process.settle()
    steps: list[Callable[[], Any]] = [publisher.publish, publisher.publish, process.tick, process.collect]
    if reason == "expired":
        steps += [lambda: now.__setitem__(0, now[0] + 0.4), process.broker.expire, process.ring]
    elif reason == "rejected":
        steps.append(process.connect(OneSession(Rejecter())).carry)
    end = chance.randrange(2, MESSAGES)
    while publisher.published < end:
        chance.choice(steps)()
    for _ in range(chance.randrange(6)):
        chance.choice(steps[2:])()
    stored, published = publisher.stored, publisher.published
    disk.crash(power_loss=True)
    kept, dead = found_after(disk, seed, "q", "dead")
    process.discard()
    return kept, dead, stored, published


class RejecterOfAll(ClientSession):
    """A client that takes a number of messages, and rejects them all with one command, in turns of the event loop."""

    def __init__(self, count: int) -> None:
        super().__init__(b"rejecter", 0, None)
        self._count, self._taken, self.number = count, 0, -1
        self.is_done = False

    def on_attached(self) -> None:
        subscribe(self, "q", acquire_mode=0, credit=UNLIMITED)

    def on_command(self, payload: bytes, header: bytes | None, body: bytes | None) -> None:
        self.begin_command()
        self._taken += 1
        if self._taken == self._count:
            self.number = self.send("message.reject", transfers=((0, self._count - 1),))

    def on_peer_completed(self, first: int, last: int) -> None:
        self.is_done = self.is_done or first <= self.number <= last


def rejected_until(seed: int) -> tuple[list[int], list[int], int, bool]:
    """The power fails while many messages are rejected: what is where, how many there were, and if it was done."""
    chance, disk, count = random.Random(seed), SimulatedDisk(seed), AT_ONCE + chance_of(seed)
    process = BrokerProcess(disk, random.Random(seed), lambda: START, lambda: None)
    process.store.geometry = Geometry(12, 1 << 20)
    publisher = Publisher(process, in_transactions=False)
    publisher.send("queue.declare", queue="dead", durable=True)
    publisher.send("queue.declare", queue="q", durable=True, arguments=typed_map(TO_DEAD))
    for _ in range(count):
        publisher.publish()
    process.settle()
    assert publisher.stored == count
    rejecter = RejecterOfAll(count)
    wire = process.connect(OneSession(rejecter))
    while rejecter.number < 0:
        wire.carry()
        process.tick()
        process.collect()
    for _ in range(chance.randrange(40)):
        chance.choice([process.tick, process.tick, process.collect, wire.carry])()
    is_done = rejecter.is_done
    disk.crash(power_loss=True)
    kept, dead = found_after(disk, 0, "q", "dead")
    process.discard()
    return kept, dead, count, is_done


def chance_of(seed: int) -> int:
    """More messages than are rejected in one turn."""
    return 100 + seed % 7 * 50


@pytest.mark.parametrize("seed", seeds_of_the_day(4))
def test_messages_rejected_in_turns_are_at_one_place_or_both(seed: int) -> None:
    kept, dead, count, is_done = rejected_until(seed)
    assert {*kept, *dead} == set(range(count))
    assert kept == sorted(kept)
    if is_done:
        assert not kept


def check_all(reason: str, seeds: Iterable[int]) -> int:
    """Check that nothing is lost, and nothing comes out of nowhere. Returns how many messages were moved."""
    count = 0
    for seed in seeds:
        kept, dead, stored, published = left_after(reason, seed)
        assert len(set(kept)) == len(kept)
        assert {*kept, *dead} <= set(range(published))
        assert set(range(stored)) <= {*kept, *dead}
        count += len(dead)
    return count


@pytest.mark.parametrize("reason", HOW)
def test_stored_message_is_on_its_queue_or_was_moved(reason: str) -> None:
    check_all(reason, seeds_of_the_day(10))


@pytest.mark.parametrize("reason", HOW)
def test_messages_were_moved(reason: str) -> None:
    assert check_all(reason, range(10)) > 20


@replaces
def test_a_move_that_does_not_wait_for_the_disk_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(
        self: DeadLetters, queue: Queue, entry: Entry, _reason: str, to: QueueDeadLetter, done: Callable[[None], None]
    ) -> None:
        exchange = self._exchanges[to.exchange]
        dead = entry.message.whole().readdressed(exchange.name, to.routing_key or "", {})
        self._router.put(dead, self._router.route(dead, exchange).queues)
        queue.dequeue(entry)
        done(None)

    monkeypatch.setattr(DeadLetters, "move", at_once)
    with pytest.raises(AssertionError):
        check_all("rejected", range(300))
