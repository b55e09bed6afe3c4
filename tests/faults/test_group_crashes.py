"""Message groups when the power fails: what is stored comes back in the order of each group, for one consumer each."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

import pytest

from qstore.broker.model.queues.groups import Group, GroupEntry, GroupOrder
from qstore.formats.amqp_0_10.commands import decode_command, encode_command
from qstore.formats.amqp_0_10.structs import DELIVERY_PROPERTIES, MESSAGE_PROPERTIES, encode_struct
from qstore.formats.values import typed_map
from tests.faults.broker_clients import UNLIMITED, OneSession, ranges_of, read_delivery, subscribe
from tests.faults.broker_process import BrokerProcess, Wire
from tests.faults.simulated_disk import SimulatedDisk
from tests.support.compiled import ClientSession, replaces
from tests.support.profiles import seeds_of_the_day

pytestmark = pytest.mark.usefixtures("quiet_logs", "tiny_pages")

ARGUMENTS: Final = {"qpid.group_header_key": "group", "qpid.shared_msg_group": 1}
GROUPS: Final = 3
MESSAGES: Final = 30
CONSUMERS: Final = 2


def group_of(number: int) -> int:
    """Of a message."""
    return number * 5 % GROUPS if number % 4 else 0


class World:
    """What a publisher and consumers know, over all lives of the broker.

    Attributes:
        published: how many messages there are.
        stored: those that the publisher knows to be stored.
        accepting, accepted: those that a consumer has accepted, and are on their way out, if they have not come back;
            and those of which it knows that they are gone.
        held: message -> the consumer that has it.
    """

    def __init__(self) -> None:
        self.published = 0
        self.stored: set[int] = set()
        self.accepting: set[int] = set()
        self.accepted: set[int] = set()
        self.held: dict[int, Client] = {}

    def delivered(self, client: Client, number: int) -> None:
        """Check that the consumer may have the message now."""
        assert number not in self.accepted
        assert number not in self.held
        group = group_of(number)
        assert all(holder is client for other, holder in self.held.items() if group_of(other) == group)
        before = {other for other in self.stored if other < number and group_of(other) == group}
        assert before <= self.accepting | self.held.keys()
        assert not any(other > number and group_of(other) == group for other in self.held)
        self.accepting.discard(number)  # in a former life, which came to nothing
        self.held[number] = client


class Client(ClientSession):
    """Publishes, or consumes."""

    def __init__(self, world: World, process: BrokerProcess, name: str) -> None:
        super().__init__(name.encode(), 0, None)
        self._world = world
        self._waiting: dict[int, tuple[set[int], int]] = {}  # command -> where the message goes when it is completed
        self.held: dict[int, int] = {}  # number of the transfer -> message
        self.wire: Wire = process.connect(OneSession(self))
        process.settle()

    def on_command(self, payload: bytes, header: bytes | None, body: bytes | None) -> None:
        number = self.begin_command()
        command, _, values = decode_command(payload)
        assert command.name == "message.transfer", values
        message = read_delivery(header or b"", body or b"").number
        self.held[number] = message
        self._world.delivered(self, message)

    def on_peer_completed(self, first: int, last: int) -> None:
        for number in [each for each in self._waiting if first <= each <= last]:
            where, message = self._waiting.pop(number)
            where.add(message)

    def consume(self, credit: int) -> None:
        """Subscribe, for at most `credit` messages."""
        subscribe(self, "q", acquire_mode=0, credit=credit)
        self.wire.carry()

    def publish(self) -> None:
        """Publish the next message."""
        message = self._world.published
        self._world.published += 1
        headers = typed_map({"group": f"group-{group_of(message)}"})
        header = encode_struct(DELIVERY_PROPERTIES, {"delivery_mode": 2, "routing_key": "q"})
        header += encode_struct(MESSAGE_PROPERTIES, {"application_headers": headers})
        number = self.send_payload(encode_command("message.transfer", accept_mode=1), header, b"%d:" % message)
        self._waiting[number] = self._world.stored, message
        self.wire.carry()

    def settle_one(self, chance: random.Random) -> None:
        """Accept or release a message that it has, if it has any: of its group the first, so that the order is kept."""
        if not self.held:
            return
        group = group_of(chance.choice(list(self.held.values())))
        transfer, message = next(pair for pair in self.held.items() if group_of(pair[1]) == group)
        transfers = ranges_of([transfer])
        del self.held[transfer], self._world.held[message]
        if chance.random() < 0.7:
            self._world.accepting.add(message)
            number = self.send("message.accept", transfers=transfers)
            self._waiting[number] = self._world.accepted, message
        else:
            rest = [pair for pair in self.held.items() if group_of(pair[1]) == group]
            for each, other in rest:
                del self.held[each], self._world.held[other]
            self.send("message.release", transfers=ranges_of([transfer, *(each for each, _ in rest)]))
        self.wire.carry()


def live(seed: int) -> int:
    """Some lives of a broker; each ends by a power failure, the last one by a consumer that takes all there is.

    Returns:
        How many messages came back.
    """
    chance, disk, world = random.Random(seed), SimulatedDisk(seed), World()
    returned = 0
    for number in range(3):
        with started(disk, seed + 2 * number) as process:
            live_once(world, process, chance, declares=not number)
            returned += len(world.held)
        disk.crash(power_loss=True)
        world.held.clear()
    with started(disk, seed) as process:
        take_all(world, process)
    assert world.stored <= world.accepting
    return returned


@contextmanager
def started(disk: SimulatedDisk, seed: int) -> Iterator[BrokerProcess]:
    """A broker on a disk."""
    process = BrokerProcess(disk, random.Random(seed), lambda: 1_700_000_000.0, lambda: None, pages=seed % 2 == 1)
    try:
        yield process
    finally:
        process.discard()


def live_once(world: World, process: BrokerProcess, chance: random.Random, *, declares: bool) -> None:
    """Publish and consume, up to some moment."""
    publisher = Client(world, process, "publisher")
    if declares:
        publisher.send("queue.declare", queue="q", durable=True, arguments=typed_map(ARGUMENTS))
        publisher.wire.carry()
        process.settle()
    consumers = [Client(world, process, f"consumer {number}") for number in range(CONSUMERS)]
    for consumer in consumers:
        consumer.consume(8)
    for _ in range(chance.randrange(2, MESSAGES)):
        settle_one = partial(chance.choice(consumers).settle_one, chance)
        chance.choice([publisher.publish, process.tick, process.collect, settle_one])()


def take_all(world: World, process: BrokerProcess) -> None:
    """Accept one message after the other until all are accepted."""
    last = Client(world, process, "last")
    last.consume(UNLIMITED)
    process.settle()
    while last.held:
        transfer, message = next(iter(last.held.items()))
        del last.held[transfer], world.held[message]
        world.accepting.add(message)
        last.send("message.accept", transfers=ranges_of([transfer]))
        last.wire.carry()
        process.settle()


def test_groups_keep_their_order_and_their_consumer() -> None:
    assert run_all(seeds_of_the_day(20))


def run_all(seeds: Iterable[int]) -> int:
    return sum(live(seed) for seed in seeds)


def _freed_too_early(self: GroupOrder, group: Group) -> None:
    """The group is free once its owner has settled any of its messages."""
    group.outstanding -= 1
    owner = group.owner
    if owner is not None:
        pool = self._own[owner]
        pool.discard(group)
        pool.size -= 1
        group.owner = None
    self._add_to_pools(group)


def _passed(group: Group, entry: GroupEntry) -> None:
    """What is released is behind the cursors, and stays there."""


@replaces
@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [(GroupOrder, "_has_returned", _freed_too_early), (Group, "put_back", _passed)],
    ids=["freed too early", "order"],
)
def test_broken_groups_are_detected(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, broken: Callable[..., None]
) -> None:
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(AssertionError):
        run_all(range(40))
