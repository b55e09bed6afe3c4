"""Two brokers with a link, both of which are killed, over a network that delays and cuts: nothing acknowledged is lost.

The brokers are whole but for their stores: a disk keeps what was flushed, and of the rest as much as the seed says, in
the order in which it was written. A queue route with acknowledgements takes messages from a queue of one broker to a
queue of the other, pulled or pushed. At each step the seed chooses what happens:

    publish       a client publishes some messages at the source
    flush         the oldest flush of a disk ends
    carry         what one broker has written to the link arrives at the other, all of it or the first part
    run           a broker does what it has to do
    time          the timers are due: a lost link is connected again
    cut           the link breaks, with what is under way
    kill          a broker is killed, and starts again with what its disk has

In the end everything is repaired. Then each message whose publisher was told that it is safe is at the destination, at
least once, and nothing else.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from qstore.broker.federation.federation import Federation
from qstore.broker.settings import BrokerSettings
from tests.broker.federation.linked import Linked, Wire
from tests.broker.protocols.world import SlowStore, World

_QUEUES = ("outbox", "inbox")


class Disk(SlowStore):
    """Knows which records are flushed."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies: dict[int, bytes] = {}
        self.synced = (0, 0)

    def when_synced(self, journals: Iterable[object], done: Any, *, is_urgent: bool = True) -> None:
        written = len(self.enqueued), len(self.dequeued)

        def ended(error: Exception | None) -> None:
            self.synced = max(self.synced[0], written[0]), max(self.synced[1], written[1])
            done(error)

        super().when_synced(journals, ended, is_urgent=is_urgent)


class FederationCrashes:
    """One history.

    Args:
        seed: chooses what happens.
        is_push: whether the source has made the route.

    Attributes:
        kills, cuts: how many there were.
        confirmed: messages whose publisher was told that they are safe.
    """

    def __init__(self, seed: int, *, is_push: bool) -> None:
        self._random, self._is_push = random.Random(seed), is_push
        self._linked = Linked("source", "destination")
        self.kills = self.cuts = self._published = 0
        self.confirmed: set[bytes] = set()
        self._all: set[bytes] = set()
        self._sent: dict[int, bytes] = {}  # by the publisher that there is now
        self._clients: dict[int, Any] = {}
        for index in (0, 1):
            self._furnish(index, ())
        self._connect()

    # ---- what happens ----

    def run(self, steps: int = 300) -> None:
        """The history, and what must hold in the end."""
        actions = {
            self._publish: 4, self._flush: 8, self._carry: 12, self._run: 10, self._time: 2, self._cut: 1,
            self._kill: 1,
        }  # fmt: skip
        for _ in range(steps):
            (action,) = self._random.choices(list(actions), list(actions.values()))
            action()
            self._note_confirmed()
        self._repair()
        found = set(self._on(1))
        lost = self.confirmed - found
        assert not lost, f"{len(lost)} of {len(self.confirmed)} messages are lost"
        assert found <= self._all, "a message has come that nobody has published"

    def _publish(self) -> None:
        client = self._clients[0]
        for _ in range(self._random.randint(1, 5)):
            body = b"message %d" % self._published
            self._published += 1
            self._all.add(body)
            self._sent[client.publish("outbox", body, delivery_mode=2)[0]] = body

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

    def _wire(self) -> Wire | None:
        wires = [wire for wire in self._linked.wires if not wire.is_cut]
        return wires[-1] if wires else None

    def _carry(self) -> None:
        wire = self._wire()
        if wire is None:
            return
        host, machine = self._random.choice(
            ((wire.near_host, wire.far_machine), (wire.far_host, wire.near_machine))
        )  # fmt: skip
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
        wire = self._wire()
        if wire is not None:
            self.cuts += 1
            wire.cut()

    def _kill(self) -> None:
        self.kills += 1
        index = self._random.randrange(2)
        old = self._linked.worlds[index]
        disk = old.store
        assert isinstance(disk, Disk)
        enqueued = self._random.randint(disk.synced[0], len(disk.enqueued))
        dequeued = self._random.randint(disk.synced[1], len(disk.dequeued))
        kept = list(range(1, enqueued + 1))
        for rid in disk.dequeued[:dequeued]:
            if rid in kept:
                kept.remove(rid)
        survivors = [disk.bodies[rid] for rid in kept]
        for wire in self._linked.wires:
            if not wire.is_cut:
                wire.cut()
        self._linked.wires.clear()
        old.drop_work()
        self._linked.timers = [(world, function) for world, function in self._linked.timers if world is not old]
        self._linked.worlds[index] = World(BrokerSettings(auth=False, federation_tag=_QUEUES[index]))
        self._furnish(index, survivors)
        world = self._linked.worlds[index]
        self._linked.federations[index] = Federation(
            world.broker, world.connections, self._linked._network(world), self._linked._later(world)
        )
        if index == (0 if self._is_push else 1):
            self._connect()

    def _repair(self) -> None:
        for _ in range(8):
            self._linked.sync()
            self._linked.pass_time()
        self._linked.sync()
        assert self._on(0) == [], "messages stay at the source"

    # ---- brokers ----

    def _furnish(self, index: int, survivors: Iterable[bytes]) -> None:
        """Give a broker its queue, and the messages that its disk has."""
        world = self._linked.worlds[index]
        world.store = disk = Disk()
        enqueue = disk.enqueue

        def remembered(journal: object, parts: Any, size: int, crc: int, /) -> int:
            rid = enqueue(journal, parts, size, crc)
            disk.bodies[rid] = b"".join(bytes(part) for part in parts).rpartition(b"message ")[2]
            disk.bodies[rid] = b"message " + disk.bodies[rid]
            return rid

        disk.enqueue = remembered  # type: ignore[method-assign]
        world.durable_queue(_QUEUES[index])
        client = world.open_client()
        if index:
            client.command("exchange.bind", queue="inbox", exchange="amq.fanout")
            world.run()
        for body in survivors:
            client.publish(_QUEUES[index], body, delivery_mode=2)
        world.run()
        while disk.flushes:
            disk.end_flush()
            world.run()
        self._clients[index] = world.open_client(name=b"publisher")
        if not index:
            self._sent = {}

    def _connect(self) -> None:
        near, far = (0, 1) if self._is_push else (1, 0)
        self._linked.bridge(
            near, far, "outbox", "amq.fanout", source_is_queue=True, source_is_local=self._is_push, sync=3
        )

    def _on(self, index: int) -> list[bytes]:
        queue = self._linked.worlds[index].broker.default_host.queues[_QUEUES[index]]
        return [bytes(entry.message.whole().body) for entry in queue.entries()]
