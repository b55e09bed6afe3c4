"""Ring and last value queues when the power fails: exactly the promised messages are there.

A publisher has been told that a message is stored. The next start finds it, or a newer one that displaces it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from qstore.broker.model.queues.entry import Entry
from qstore.broker.model.queues.limits import Ring
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.router import Router
from qstore.formats.amqp_0_10.commands import decode_command, encode_command
from qstore.formats.amqp_0_10.structs import DELIVERY_PROPERTIES, MESSAGE_PROPERTIES, encode_struct
from qstore.formats.values import typed_map
from tests.faults.broker_clients import OneSession, Watcher
from tests.faults.broker_process import BrokerProcess, Wire
from tests.faults.simulated_disk import SimulatedDisk
from tests.support.compiled import ClientSession, replaces
from tests.support.profiles import seeds_of_the_day

pytestmark = pytest.mark.usefixtures("quiet_logs", "tiny_pages")

SIZE = 4
KEYS = 3
RING = {"qpid.max_count": SIZE, "qpid.policy_type": "ring"}
RING_BY_PRIORITY = {**RING, "qpid.priorities": 10}
LAST_VALUES = {"qpid.last_value_queue_key": "key"}
MESSAGES = 24
Check = Callable[[list[int], int, int], None]


def started(disk: SimulatedDisk, seed: int) -> BrokerProcess:
    """A broker, of every other seed one whose messages go out of memory."""
    return BrokerProcess(disk, random.Random(seed), lambda: 1_700_000_000.0, lambda: None, pages=seed % 2 == 1)


def priority_of(number: int) -> int:
    """Of a message."""
    return number * 7 % 10


class Publisher(ClientSession):
    """A client that publishes numbered messages, and knows which of them are stored."""

    def __init__(self, process: BrokerProcess, *, in_transactions: bool) -> None:
        super().__init__(b"publisher", 0, None)
        self._in_transactions = in_transactions
        self._command_of: list[int] = []  # whose completion says that a message is stored
        self._done: set[int] = set()
        self.published = 0
        self.wire: Wire = process.connect(OneSession(self))
        process.settle()
        if in_transactions:
            self.send("tx.select")

    def on_command(self, payload: bytes, header: bytes | None, body: bytes | None) -> None:
        raise AssertionError(decode_command(payload))

    def on_peer_completed(self, first: int, last: int) -> None:
        self._done.update(range(first, last + 1))

    def publish(self) -> None:
        properties = encode_struct(
            MESSAGE_PROPERTIES, {"application_headers": typed_map({"key": self.published % KEYS})}
        )
        delivery = {"delivery_mode": 2, "routing_key": "q", "priority": priority_of(self.published)}
        header = encode_struct(DELIVERY_PROPERTIES, delivery) + properties
        number = self.send_payload(encode_command("message.transfer", accept_mode=1), header, b"%d" % self.published)
        if self._in_transactions:
            number = self.send("tx.commit")
        self._command_of.append(number)
        self.published += 1
        self.wire.carry()

    @property
    def stored(self) -> int:
        """How many messages are stored, as far as the client knows: all before that one."""
        flags = [number in self._done for number in self._command_of]
        return flags.index(False) if False in flags else len(flags)


def left_after(seed: int, arguments: dict[str, Any], *, in_transactions: bool = False) -> tuple[list[int], int, int]:
    """The power fails at some moment. Returns what the next start finds, how many were stored, and published."""
    chance, disk = random.Random(seed), SimulatedDisk(seed)
    process = started(disk, seed)
    publisher = Publisher(process, in_transactions=in_transactions)
    publisher.send("queue.declare", queue="q", durable=True, arguments=typed_map(arguments))
    publisher.wire.carry()
    process.settle()
    work(process, publisher, chance)
    stored, published = publisher.stored, publisher.published
    disk.crash(power_loss=True)
    (found,) = found_after(disk, seed, "q")
    process.discard()
    return found, stored, published


def work(process: BrokerProcess, publisher: Publisher, chance: random.Random) -> None:
    """Publish some messages, and stop at some moment."""
    end = chance.randrange(2, MESSAGES)
    while publisher.published < end:
        chance.choice([publisher.publish, publisher.publish, process.tick, process.collect])()
    for _ in range(chance.randrange(4)):
        chance.choice([process.tick, process.collect])()


def found_after(disk: SimulatedDisk, seed: int, *queues: str) -> list[list[int]]:
    """What the next start finds on queues, and delivers to browsers, in order."""
    process = started(disk, seed)
    watcher = Watcher(list(queues))
    wire = process.connect(OneSession(watcher))
    process.settle()
    process.cut(wire)
    process.discard()
    return [[int(each.body) for each in watcher.seen[queue]] for queue in queues]


def check_ring(found: list[int], stored: int, published: int) -> None:
    end = found[-1] + 1 if found else 0
    assert stored <= end <= published
    assert found == list(range(max(0, end - SIZE), end))


def check_ring_by_priority(found: list[int], stored: int, published: int) -> None:
    """The crash was after one of those messages that the publisher does not know to be stored, or the last it knows."""
    left = []
    for end in range(stored, published + 1):
        best = sorted(range(end), key=lambda number: (priority_of(number), number))[-SIZE:]
        left.append(sorted(best))
    assert found in left


def check_last_values(found: list[int], stored: int, published: int) -> None:
    end = found[-1] + 1 if found else 0
    assert stored <= end <= published
    assert found == list(range(max(0, end - KEYS), end))


@pytest.mark.parametrize("in_transactions", [False, True], ids=["plain", "transactions"])
@pytest.mark.parametrize(
    ("arguments", "check"),
    [(RING, check_ring), (RING_BY_PRIORITY, check_ring_by_priority), (LAST_VALUES, check_last_values)],
    ids=["ring", "ring by priority", "last value"],
)
def test_the_newest_are_there(arguments: dict[str, Any], check: Check, in_transactions: bool) -> None:
    lost = 0
    for seed in seeds_of_the_day(20):
        found, stored, published = left_after(seed, arguments, in_transactions=in_transactions)
        check(found, stored, published)
        lost += published - len(found)
    assert lost


def _displaced_first(self: Ring, queue: Queue, _most: int) -> bool:
    """Room is made for one more message than there is."""
    while self._limit.is_exceeded(queue.message_count + 1, queue.message_bytes):
        first = queue.order.first_to_discard()
        if first is None or not self.displace(queue, first):
            break
    return False


def _never(_self: Ring, _queue: Queue, _most: int) -> bool:
    """Nothing is displaced."""
    return False


@replaces
@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [(Ring, "_displaces", _displaced_first), (Ring, "_displaces", _never)],
)
def test_a_broken_ring_is_detected(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, broken: object) -> None:
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(AssertionError):
        run_all(range(10))


# ---- a ring with an alternate exchange ----


def kept_after(seed: int, *, in_transactions: bool = False) -> tuple[list[int], list[int], int]:
    """What the ring and the queue behind its alternate exchange have, and how many messages were stored."""
    chance, disk = random.Random(seed), SimulatedDisk(seed)
    process = started(disk, seed)
    publisher = Publisher(process, in_transactions=in_transactions)
    publisher.send("exchange.declare", exchange="others", type="fanout", durable=True)
    publisher.send("queue.declare", queue="moved", durable=True)
    publisher.send("exchange.bind", queue="moved", exchange="others", binding_key="")
    arguments = typed_map(RING)
    publisher.send("queue.declare", queue="q", durable=True, alternate_exchange="others", arguments=arguments)
    publisher.wire.carry()
    process.settle()
    work(process, publisher, chance)
    stored = publisher.stored
    disk.crash(power_loss=True)
    ring, moved = found_after(disk, seed, "q", "moved")
    process.discard()
    return ring, moved, stored


def check_moved(seeds: Iterable[int], *, in_transactions: bool = False) -> int:
    """Check that the ring has the newest messages, and that all others were moved. Returns how many were."""
    count = 0
    for seed in seeds:
        ring, moved, stored = kept_after(seed, in_transactions=in_transactions)
        assert len(ring) <= SIZE
        assert ring == list(range(ring[0], ring[0] + len(ring))) if ring else not stored
        assert set(range(stored)) <= {*ring, *moved}
        assert set(range(ring[0] if ring else 0)) <= set(moved)  # and perhaps some that nobody was told are stored
        count += len(moved)
    return count


@pytest.mark.parametrize("in_transactions", [False, True], ids=["plain", "transactions"])
def test_stored_message_is_on_the_ring_or_was_moved(in_transactions: bool) -> None:
    assert check_moved(seeds_of_the_day(20), in_transactions=in_transactions)


@replaces
def test_a_ring_that_discards_instead_of_moving_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def both_at_once(self: Router, queue: Queue, entry: Entry) -> bool:
        assert queue.alternate is not None
        message = entry.message.whole()
        self.put(message, self.route(message, queue.alternate).queues)
        queue.dequeue(entry)
        return True

    monkeypatch.setattr(Router, "divert", both_at_once)
    with pytest.raises(AssertionError):
        check_moved(range(200))


def run_all(seeds: Iterable[int]) -> None:
    for seed in seeds:
        check_ring(*left_after(seed, RING))
