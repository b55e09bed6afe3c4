"""Two brokers with a link, both of which are killed, over a network that delays, cuts and reorders between connections.

The brokers are whole but for their stores: a disk keeps what was flushed, and of the rest as much of each journal as
the seed says, in the order in which it was written. A queue route with acknowledgements takes messages from one broker
to the other, pulled or pushed. At each step the seed chooses what happens:

    publish       a client publishes some messages at the source
    flush         the oldest flush of a disk ends
    carry         what one broker has written to the link arrives at the other, all of it or the first part
    run           a broker does what it has to do
    time          the timers are due: a lost link is connected again
    cut           the link breaks, with what is under way
    give up       the broker that has made the link gives it up, and connects again; what it has written on the old
                  connection is still under way, and arrives before, between or after what it writes on the new one
    kill          a broker is killed, and starts again with what its disk has

In the end everything is repaired. `FederationCrashes` moves messages from a queue to another one: each message whose
publisher was told that it is safe is at the destination, at least once, and nothing else. `ReplicationCrashes` has a
replicated queue, whose messages a client consumes: the other broker's has the same messages in the same order; none
that is safe is missing, and none is there whose consumer was told that it is gone.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from qstore.broker.federation.federation import Federation
from qstore.broker.model.queues.arguments import read_arguments
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.replication.source import prepare_replication, register_listener
from qstore.broker.protocols.amqp_0_10.message import new_transfer
from qstore.broker.protocols.connection import Phase
from qstore.broker.protocols.stored_messages import restore_message
from qstore.broker.settings import BrokerSettings
from qstore.formats.values import EMPTY_MAP, TypedMap, typed_map
from tests.broker.federation.linked import Linked, Wire
from tests.broker.protocols.world import Client, SlowStore, World

_NAMES = ("source", "destination")
_LATE = 6  # how much rarer something arrives on a connection that was given up
_GENERATION = "qpid.queue_event_generation"


class Journal(NamedTuple):
    """The journal of one queue, as the store's; what is in it is on its disk."""

    queue_id: int
    disk: Disk

    def load(self, rid: int) -> bytes:
        """The data of a message."""
        return self.disk.load(rid)


class Disk(SlowStore):
    """Knows which records of which journal are flushed.

    Args:
        before: the disk of the process that was killed; None for an empty one.
        rng: how much of what was not flushed is there.

    Attributes:
        live: the number of a queue -> the record ids of its messages when the process starts.
    """

    was_clean = False

    def __init__(self, before: Disk | None = None, rng: random.Random | None = None) -> None:
        super().__init__()
        self._log: list[tuple[int, int, bool]] = []  # queue, record id, and whether it was enqueued
        self._synced = 0  # records of the log
        self._last = 0  # the last record id on the disk when the process started
        self.live: dict[int, list[int]] = {}
        if before is not None and rng is not None:
            self._recover(before, rng)

    def _recover(self, before: Disk, rng: random.Random) -> None:
        last = before._last
        for queue in sorted({queue for queue, _, _ in before._log}):
            kept = [
                (rid, is_enqueued, place < before._synced)
                for place, (of, rid, is_enqueued) in enumerate(before._log)
                if of == queue
            ]
            synced = sum(is_synced for _, _, is_synced in kept)
            live: dict[int, None] = {}
            for rid, is_enqueued, _ in kept[: rng.randint(synced, len(kept))]:
                last = max(last, rid)
                if is_enqueued:
                    live[rid] = None
                else:
                    live.pop(rid, None)
            self.live[queue] = list(live)
        self._last, self.enqueued = last, before.enqueued[:last]
        self._log = [(queue, rid, True) for queue, rids in self.live.items() for rid in rids]
        self._synced = len(self._log)

    def enqueue(self, journal: Any, parts: Any, size: int, crc: int, /) -> int:
        rid = super().enqueue(journal, parts, size, crc)
        self._log.append((journal.queue_id, rid, True))
        return rid

    def dequeue(self, journal: Any, target: int, /) -> None:
        super().dequeue(journal, target)
        self._log.append((journal.queue_id, target, False))

    def when_synced(self, journals: Iterable[object], done: Any, *, is_urgent: bool = True) -> None:
        written = len(self._log)

        def ended(error: Exception | None) -> None:
            self._synced = max(self._synced, written)
            done(error)

        super().when_synced(journals, ended, is_urgent=is_urgent)


class TwoBrokers:
    """One history of two brokers; the first one is the source.

    Args:
        seed: chooses what happens.
        is_push: whether the source has made the route.

    Attributes:
        kills, cuts: how many there were.
        confirmed: messages whose publisher was told that they are safe.
    """

    queue: str
    """The queue at the source that clients publish to."""

    def __init__(self, seed: int, *, is_push: bool) -> None:
        self._random, self._is_push = random.Random(seed), is_push
        self._linked = Linked(*_NAMES)
        self.kills = self.cuts = self._published = 0
        self.confirmed: set[bytes] = set()
        self._all: list[bytes] = []
        self._sent: dict[int, bytes] = {}  # by the publisher that there is now
        self._clients: dict[int, Client] = {}
        for index in (0, 1):
            self._start(index, None)
        self._connect()

    # ---- what differs ----

    def _settings(self, index: int) -> BrokerSettings:
        return BrokerSettings(auth=False, federation_tag=_NAMES[index])

    def _furnish(self, index: int, disk: Disk) -> None:
        """Give a broker its queues, with what its disk has."""
        raise NotImplementedError

    def _connect(self) -> None:
        """Make the route."""
        raise NotImplementedError

    def _check(self) -> None:
        """What must hold in the end."""
        raise NotImplementedError

    def _actions(self) -> Mapping[Callable[[], None], int]:
        """What can happen, and how often in comparison."""
        return {
            self._publish: 4, self._flush: 8, self._carry: 16, self._run: 10, self._time: 2, self._cut: 1,
            self._give_up: 1, self._kill: 1,
        }  # fmt: skip

    # ---- what happens ----

    def run(self, steps: int = 300) -> None:
        """The history, and what must hold in the end."""
        actions = self._actions()
        for _ in range(steps):
            (action,) = self._random.choices(list(actions), list(actions.values()))
            action()
            self._note_confirmed()
        for _ in range(8):
            self._linked.sync()
            self._linked.pass_time()
        self._linked.sync()
        self._check()

    def _publish(self) -> None:
        client = self._clients[0]
        for _ in range(self._random.randint(1, 5)):
            body = b"message %d" % self._published
            self._published += 1
            self._all.append(body)
            self._sent[client.publish(self.queue, body, delivery_mode=2)[0]] = body

    def _note_confirmed(self) -> None:
        client = self._clients[0]
        client.read()
        self.confirmed.update(self._sent[number] for number in client.completed if number in self._sent)

    def _flush(self) -> None:
        store = self._linked.worlds[self._random.randrange(2)].store
        if store.flushes:
            store.end_flush()

    def _run(self) -> None:
        self._linked.worlds[self._random.randrange(2)].run()

    def _wire(self, *, is_half_open: bool = False) -> Wire | None:
        wires = [wire for wire in self._linked.wires if not wire.is_cut and wire.is_half_open is is_half_open]
        return self._random.choice(wires) if wires else None

    def _carry(self) -> None:
        wire = self._wire(is_half_open=not self._random.randrange(_LATE))
        if wire is None:
            return
        ends = [(wire.near_host, wire.far_machine), (wire.far_host, wire.near_machine)]
        host, machine = ends[0] if wire.is_half_open else self._random.choice(ends)
        if host.output:
            size = self._random.choice((len(host.output), self._random.randint(1, len(host.output))))
            data = bytes(host.output[:size])
            del host.output[:size]
            machine.receive(data)

    def _time(self) -> None:
        timers, self._linked.timers = self._linked.timers, []
        for _, function in timers:
            function()

    def _cut(self) -> None:
        wire = self._wire(is_half_open=bool(self._random.randrange(2)))
        if wire is not None:
            self.cuts += 1
            wire.cut()

    def _give_up(self) -> None:
        wire = self._wire()
        if wire is None or wire.near_machine.phase is not Phase.OPEN:
            return
        self._linked.worlds[0 if self._is_push else 1].run()
        wire.give_up()
        self._time()
        for _ in range(self._random.randint(0, 12)):  # the next connection may be faster than the rest of this one
            for world in self._linked.worlds:
                world.run()
            for each in self._linked.wires:
                if not each.is_half_open:
                    each.carry()

    def _kill(self) -> None:
        self.kills += 1
        index = self._random.randrange(2)
        old = self._linked.worlds[index]
        for wire in self._linked.wires:
            wire.near_host.output.clear()
            wire.cut()
        self._linked.wires.clear()
        self._linked.timers = [(world, function) for world, function in self._linked.timers if world is not old]
        self._start(index, old)
        world = self._linked.worlds[index]
        self._linked.federations[index] = Federation(
            world.broker, world.connections, self._linked._network(world), self._linked._later(world)
        )
        if index == (0 if self._is_push else 1):
            self._connect()

    # ---- brokers ----

    def _start(self, index: int, before: World | None) -> None:
        """Start a broker, with what the disk of its last process has."""
        disk, old = Disk(), None
        if before is not None:
            before.drop_work()
            assert isinstance(before.store, Disk)
            disk, old = Disk(before.store, self._random), before.broker.configuration
            self._linked.worlds[index] = World(self._settings(index))
        world = self._linked.worlds[index]
        if old is not None:
            world.broker.configuration._records |= old._records
        world.store = disk
        self._furnish(index, disk)
        world.run()
        self._clients[index] = world.open_client(name=b"client")
        if not index:
            self._sent = {}

    def _queue(self, index: int, number: int, name: str, arguments: TypedMap = EMPTY_MAP) -> Queue:
        """Make a durable queue, with what its journal on the disk has."""
        world = self._linked.worlds[index]
        disk: Any = world.store
        journal = Journal(number, disk)
        queue = world.broker.queue_factory.make(
            world.broker.default_host, name, durable=True, auto_delete=False, arguments=arguments,
            parsed=read_arguments(arguments),
        )  # fmt: skip
        queue.store, queue.journal, queue._append = disk, journal, disk
        world.broker.store = world.broker.tick._store = world.broker.router._store = disk
        world.broker.default_host.queues[name] = queue
        for rid in disk.live.get(number, ()):
            queue.enter(restore_message(disk.enqueued[rid - 1]), rid)
        return queue

    def _on(self, index: int, name: str) -> list[bytes]:
        queue = self._linked.worlds[index].broker.default_host.queues[name]
        return [bytes(entry.message.whole().body) for entry in queue.entries()]


class FederationCrashes(TwoBrokers):
    """Messages move from a queue to another one."""

    queue = "outbox"

    def _furnish(self, index: int, disk: Disk) -> None:
        world = self._linked.worlds[index]
        name = ("outbox", "inbox")[index]
        queue = self._queue(index, 1, name)
        queue.end_recovery()
        if index:
            world.open_client().command("exchange.bind", queue="inbox", exchange="amq.fanout")

    def _connect(self) -> None:
        near, far = (0, 1) if self._is_push else (1, 0)
        self._linked.bridge(
            near, far, "outbox", "amq.fanout", source_is_queue=True, source_is_local=self._is_push, sync=3
        )

    def _check(self) -> None:
        assert self._on(0, "outbox") == [], "messages stay at the source"
        found = set(self._on(1, "inbox"))
        lost = self.confirmed - found
        assert not lost, f"{len(lost)} of {len(self.confirmed)} messages are lost"
        assert found <= set(self._all), "a message has come that nobody has published"


class ReplicationCrashes(TwoBrokers):
    """A replicated queue, whose messages a client consumes.

    Attributes:
        consumed: messages whose consumer was told that they are gone.
    """

    queue = "orders"

    def __init__(self, seed: int, *, is_push: bool) -> None:
        self.consumed: set[bytes] = set()
        self._taken: set[bytes] = set()  # perhaps gone
        self._accepted: dict[int, list[bytes]] = {}  # by the consumer that there is now
        super().__init__(seed, is_push=is_push)

    def _settings(self, index: int) -> BrokerSettings:
        events = None if index else "events"
        return BrokerSettings(auth=False, federation_tag=_NAMES[index], replication_queue=events)

    def _actions(self) -> Mapping[Callable[[], None], int]:
        return {**super()._actions(), self._consume: 3}

    def _furnish(self, index: int, disk: Disk) -> None:
        world = self._linked.worlds[index]
        world.broker.settings = self._settings(index)
        if index:
            self._queue(index, 1, "orders").end_recovery()
            asyncio.run(world.broker.default_host.topology.declare_exchange("replication", "replication"))
            return
        register_listener(world.broker, new_transfer, lambda work: world.work.append((work, lambda _error: None)))
        queues = [self._queue(0, 2, "events"), self._queue(0, 1, "orders", typed_map({_GENERATION: 2}))]
        for queue in queues:
            queue.end_recovery()
        asyncio.run(prepare_replication(world.broker))

    def _start(self, index: int, before: World | None) -> None:
        super()._start(index, before)
        if not index:
            self._accepted = {}
            client = self._clients[0]
            client.subscribe("orders", messages=0)

    def _consume(self) -> None:
        """Take and accept some messages, as far as the broker has sent them."""
        client = self._clients[0]
        client.flow("orders", 0, self._random.randint(1, 3))
        client.read()
        taken, client.deliveries = client.deliveries, []
        if taken:
            ranges = [(each.number, each.number) for each in taken]
            bodies = [each.body for each in taken]
            self._taken.update(bodies)
            self._accepted[client.command("message.accept", transfers=ranges)] = bodies

    def _note_confirmed(self) -> None:
        super()._note_confirmed()
        for number in self._clients[0].completed:
            self.consumed.update(self._accepted.pop(number, ()))

    def _connect(self) -> None:
        near, far = (0, 1) if self._is_push else (1, 0)
        self._linked.bridge(
            near, far, "events", "replication", source_is_queue=True, source_is_local=self._is_push, sync=3
        )

    def _check(self) -> None:
        source, copy = self._on(0, "orders"), self._on(1, "orders")
        lost = self.confirmed - self._taken - set(source)
        assert not lost, f"{len(lost)} of {len(self.confirmed)} messages are lost"
        back = self.consumed & set(source)
        assert not back, f"{len(back)} messages are there again"
        missing, more = set(source) - set(copy), set(copy) - set(source)
        assert not missing, f"{len(missing)} of {len(source)} messages have no copy"
        assert not more, f"there are {len(more)} copies of messages that are gone"
        assert len(copy) == len(set(copy)), "a message has several copies"
        assert copy == source, "the copies are in another order"
