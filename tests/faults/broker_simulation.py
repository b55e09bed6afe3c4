"""A broker's life on a simulated disk, with clients that do what chance says, beside a model of what they may expect.

A `BrokerLife` is one process's: it starts, a client looks at all queues, what it sees is held against the model, and
then there is work under a seed. `BrokerCrashes` kills it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final

from qstore.broker.model.run import RunEntry
from qstore.formats.values import typed_map
from tests.faults.broker_clients import BasicSession, Done, ModelSession, OneSession, Watcher
from tests.faults.broker_links_client import LinksSession, body_of
from tests.faults.broker_model import ExchangeModel, Found, Model, QueueModel, after, check
from tests.faults.broker_process import BrokerProcess, Wire
from tests.faults.simulated_disk import Call, SimulatedDisk
from tests.faults.simulator import Simulator

DURABLE: Final = ("q0", "q1", "q2")
_WITH_RUNS: Final = ("q0", "q2")  # q1 has priorities
WITH_PRIORITIES: Final = "q1"
NEWS, DIRECT, DEAD = "news", "direct", "dead"
_PUBLISHERS, _CONSUMERS, _TRANSACTIONAL = 2, 3, 1
_MAX_QUEUES: Final = 7
_MAX_WAITING: Final = 60  # messages, with which publishers wait for consumers


class Peer:
    """A client: a connection, and the session that it has now; of a protocol."""

    def __init__(self, name: str, *, publishes: bool, consumes: bool, transactional: bool, protocol: str) -> None:
        self.name, self.publishes, self.consumes, self.is_transactional = name, publishes, consumes, transactional
        self.protocol = protocol
        self.connection: OneSession
        self.session: ModelSession | BasicSession | LinksSession
        self.wire: Wire

    def ask(self, name: str, done: Done, **values: Any) -> None:
        """As `ModelSession.ask`; the manager speaks AMQP 0-10."""
        assert isinstance(self.session, ModelSession)
        self.session.ask(name, done, **values)


class BrokerLife:
    """One process, its clients, and what they expect.

    Args:
        disk: where its store is.
        model: what was expected of the process before.
        rng: decides everything.
        order: name of a queue -> its messages when that process ended.
        must_be_clean: that process was stopped, not killed.
        pages: as of `BrokerProcess`.
        basic: whether some of the clients speak AMQP 0-9-1.
        links: whether most of the others speak AMQP 1.0.
        early: whether some of the queues deliver messages before their records are on the disk.
        uniform: whether publishers send many messages that differ only in their bodies, one after another.
        mixed: whether they send these to several queues in turns.

    Attributes:
        runs: how often messages were on a queue as a run after a step, if they are `uniform`.

    Raises:
        BrokenPromiseError: something is not as it may be.
        Killed: while it started.
    """

    def __init__(
        self,
        disk: SimulatedDisk,
        model: Model,
        rng: random.Random,
        order: dict[str, list[int]] | None = None,
        *,
        must_be_clean: bool = False,
        pages: bool = False,
        basic: bool = False,
        links: bool = False,
        early: bool = False,
        uniform: bool = False,
        mixed: bool = False,
    ) -> None:
        self.disk, self.rng, self._is_basic, self._is_early, self._is_uniform = disk, rng, basic, early, uniform
        self._is_mixed, self._has_links = mixed, links
        self.runs = 0
        self.model = model
        self._is_looked_at = False
        self.is_stopped = False
        self.peers: list[Peer] = []
        self.process = BrokerProcess(
            disk, rng, lambda: self.model.now, self._turned, must_be_clean=must_be_clean, pages=pages
        )
        try:
            found = self._look()
            check(model, found, order or {})
            self.model, self._is_looked_at = after(model, found), True
        except BaseException:
            self.process.discard()
            raise

    def _turned(self) -> None:
        if self._is_looked_at:
            self.model.end_turn(_has_ended)

    def _look(self) -> Found:
        """What a client sees that looks at all queues."""
        broker = self.process.broker
        names = sorted(broker.default_host.queues)
        watcher = Watcher(names)
        wire = self.process.connect(OneSession(watcher))
        self.process.settle()
        self.process.cut(wire)
        alternates = {
            name: "" if queue.alternate is None else queue.alternate.name
            for name, queue in broker.default_host.queues.items()
        }
        exchanges = {name for name in broker.default_host.exchanges if name and not name.startswith("amq.")}
        bindings = {
            (exchange.name, binding.queue.name, binding.key)
            for exchange in broker.default_host.exchanges.values()
            for binding in exchange.bindings
        }
        return Found(self.process.store.was_clean, watcher.seen, alternates, exchanges, bindings)

    def order(self) -> dict[str, list[int]]:
        """The messages on each queue, in order."""
        return {
            name: [_number(body) for body in self.process.bodies(queue)]
            for name, queue in self.process.broker.default_host.queues.items()
        }

    def promises(self) -> tuple[Model, dict[str, list[int]] | None]:
        """What clients may expect of the next life, and the order of the messages, if it was not stopped."""
        return self.model, None if self.is_stopped else self.order()

    # ---- the clients ----

    def begin(self) -> None:
        """Have what stories need: exchanges, queues, clients."""
        manager = self._join("manager", publishes=False, consumes=False)
        for number in range(_PUBLISHERS):
            self._join(f"publisher-{number}", publishes=True, consumes=False, is_basic=number == 0)
        for number in range(_TRANSACTIONAL):
            basic = self._is_basic and self.rng.random() < 0.5
            self._join(f"transactional-{number}", publishes=True, consumes=True, transactional=True, is_basic=basic)
        self.process.settle()
        for name, kind in ((NEWS, "fanout"), (DIRECT, "direct"), (DEAD, "fanout")):
            if name not in self.model.exchanges:
                self._declare_exchange(manager, name, kind)
        self.process.settle()
        self._declare_queue(manager, "dead-letters", durable=True, alternate=None)
        self._bind(manager, DEAD, "dead-letters", "")
        for number, name in enumerate(DURABLE):
            self._declare_queue(manager, name, durable=True, alternate=DEAD if number == 0 else None)
        self._declare_queue(manager, f"transient-{self.model.unique()}", durable=False, alternate=None)
        self.process.settle()
        for name in DURABLE:
            self._bind(manager, NEWS, name, "")
            self._bind(manager, DIRECT, name, f"key-{name}")
        self._bind(manager, NEWS, next(name for name in self.model.queues if name.startswith("transient")), "")
        self.process.settle()
        for number in range(_CONSUMERS):
            self._join(f"consumer-{number}", publishes=False, consumes=True, is_basic=number != 1)

    def _join(
        self, name: str, *, publishes: bool, consumes: bool, transactional: bool = False, is_basic: bool = False
    ) -> Peer:
        protocol = "0-9-1" if is_basic and self._is_basic else "0-10"
        if self._has_links and (publishes or consumes) and self.rng.random() < 0.7:
            protocol = "1.0"
        peer = Peer(name, publishes=publishes, consumes=consumes, transactional=transactional, protocol=protocol)
        self.peers.append(peer)
        self._connect(peer)
        return peer

    def _queues(self, peer: Peer) -> list[QueueModel]:
        sound = [queue for queue in self.model.queues.values() if queue.is_sound]
        return self.rng.sample(sound, min(len(sound), self.rng.choice((1, 2, 3)))) if peer.consumes else []

    def _credit(self) -> int:
        return self.rng.choice((3, 8, 20, 60) if self._is_uniform else (1, 2, 5, 20))

    def _session(self, peer: Peer) -> ModelSession:
        queues, name = self._queues(peer), f"{peer.name}-{self.model.unique()}"
        credit = self._credit()
        transactional = peer.is_transactional
        return ModelSession(self.model, name, peer.name, queues, credit=credit, transactional=transactional)

    def _connect(self, peer: Peer) -> None:
        if peer.protocol != "0-10":
            credit, transactional = self._credit(), peer.is_transactional
            kind = BasicSession if peer.protocol == "0-9-1" else LinksSession
            session = kind(self.model, peer.name, self._queues(peer), credit=credit, transactional=transactional)
            peer.session, peer.wire = session, self.process.connect(session, peer.protocol)
            return
        peer.session = self._session(peer)
        peer.connection = OneSession(peer.session)
        peer.wire = self.process.connect(peer.connection)

    # ---- work ----

    def work(self, steps: int) -> None:
        """Some steps, by chance."""
        if not self.peers:
            self.begin()
        deeds = [
            (self.publish, 20),
            (self.settle_some, 24),
            (self.end_transaction, 6),
            (self.change_topology, 6),
            (self.purge, 1),
            (self.leave, 1),
            (self.come_back, 6),
            (self.pass_time, 2),
            (self.carry, 40),
            (self.process.tick, 30),
            (self.process.collect, 24),
            (self.process.settle, 1),
        ]
        for deed in self.rng.choices([deed for deed, _ in deeds], [weight for _, weight in deeds], k=steps):
            deed()
            self.process.check()
            if self._is_uniform:
                queues = self.process.broker.default_host.queues.values()
                self.runs += any(isinstance(part, RunEntry) for queue in queues for part in queue.order.parts())

    def _ready(self, *, publishes: bool = False, consumes: bool = False) -> Peer | None:
        """One of the clients that can do that; the manager, if that is nothing."""
        kind = (publishes, consumes)
        peers = [each for each in self.peers if each.session.is_ready and self._can(each, *kind)]
        return self.rng.choice(peers) if peers else None

    def _can(self, peer: Peer, publishes: bool, consumes: bool) -> bool:
        if not publishes and not consumes:
            return not peer.publishes and not peer.consumes and not peer.session.waiting
        return (publishes and peer.publishes) or (consumes and peer.consumes)

    def carry(self) -> None:
        """Some of what a client has sent comes over."""
        wire = self.rng.choice([peer.wire for peer in self.peers])
        wire.carry(self.rng.choice((None, None, self.rng.randint(1, 400))))

    def publish(self) -> None:
        """Some messages."""
        peer = self._ready(publishes=True)
        if peer is None or sum(len(queue.copies) for queue in self.model.queues.values()) > _MAX_WAITING * 4:
            return
        if self._is_uniform and not peer.is_transactional:
            self._publish_alike(peer)
            return
        for _ in range(self.rng.choice((1, 1, 2, 5))):
            exchange, key = self._address()
            if exchange is None and key not in self.model.queues:
                continue
            ttl = self.rng.choice((0.5, 3.0)) if self.rng.random() < 0.05 else None
            transaction = peer.session.transaction if peer.is_transactional else None
            persistent = self.rng.random() < 0.85
            message = self.model.publish(
                peer.name, exchange, key, persistent=persistent, ttl=ttl, transaction=transaction
            )
            peer.session.publish(message)

    def _publish_alike(self, peer: Peer) -> None:
        """Many messages that differ only in their bodies, most often to one queue."""
        exchange, key = self._address()
        if exchange is not None and exchange.name == NEWS and self.rng.random() < 0.8:
            exchange, key = self.model.exchanges[DIRECT], f"key-{self.rng.choice(DURABLE)}"
        if exchange is None and key not in self.model.queues:
            return
        persistent = self.rng.random() < 0.85
        addresses = [(exchange, key)]
        if self._is_mixed:
            addresses = [(None, name) for name in _WITH_RUNS if name in self.model.queues]
            if self.rng.random() < 0.3:  # with several keys to the same queues
                addresses = [(self.model.exchanges[NEWS], key) for key in ("", "a", "another")]
        for number in range(self.rng.choice((3, 8, 15, 30)) * len(addresses)):
            exchange, key = addresses[number % len(addresses)]
            message = self.model.publish(
                peer.name, exchange, key, persistent=persistent, ttl=None, transaction=None, is_uniform=True
            )
            peer.session.publish(message)

    def _address(self) -> tuple[ExchangeModel | None, str]:
        sound = [queue.name for queue in self.model.queues.values() if queue.is_sound and queue.name != "dead-letters"]
        chance = self.rng.random()
        if chance < 0.4 or not sound:
            return self.model.exchanges[NEWS], ""
        name = self.rng.choice(sound)
        return (None, name) if chance < 0.7 else (self.model.exchanges[DIRECT], f"key-{name}")

    def settle_some(self) -> None:
        """A consumer accepts, releases or rejects some of what it has."""
        peer = self._ready(consumes=True)
        if peer is None:
            return
        session = peer.session
        held = sorted(session.held)
        if held:
            first = self.rng.randrange(len(held)) if self.rng.random() < 0.4 else 0
            numbers = held[first : first + self.rng.randint(1, len(held))]
            if self.rng.random() < 0.2:
                numbers = self.rng.sample(numbers, self.rng.randint(1, len(numbers)))
            chance = self.rng.random()
            if chance < 0.55 or (session.is_transactional and chance > 0.85):
                session.accept(numbers)
            elif chance < 0.85:
                session.give_back(numbers, is_marked=self.rng.random() < 0.5)
            else:
                session.reject(numbers)
        session.complete()

    def end_transaction(self) -> None:
        """A commit, or a rollback."""
        for peer in self.peers:
            if peer.is_transactional and peer.session.is_ready:
                if self.rng.random() < 0.8:
                    peer.session.commit()
                else:
                    peer.session.rollback()

    def purge(self) -> None:
        """All that waits in a queue goes."""
        peer = self._ready()
        queues = [queue for queue in self.model.queues.values() if queue.is_sound]
        if peer is not None and queues and self.rng.random() < 0.5:
            queue = self.rng.choice(queues)
            purge = self.model.purge(queue)
            peer.ask("queue.purge", lambda: self.model.purged(queue, purge), queue=queue.name)

    def leave(self) -> None:
        """A client's connection is lost."""
        peer = self.rng.choice(self.peers)
        if self.rng.random() < 0.5:
            self.process.cut(peer.wire)
            peer.session.end()
            self._connect(peer)

    def come_back(self) -> None:
        """A client whose session has ended, or consumes nothing that is there, takes another."""
        for peer in self.peers:
            if peer.session.has_ended and peer.protocol != "0-10":
                self.process.cut(peer.wire)
                self._connect(peer)
            elif peer.session.has_ended:
                peer.session = peer.connection.session = self._session(peer)
                peer.session.transport = peer.connection
                peer.connection.attach(peer.session)

    def pass_time(self) -> None:
        """Some time goes by, and the broker looks for what has expired."""
        self.model.now += self.rng.choice((0.1, 0.7, 2.5))
        if self.rng.random() < 0.5:
            self.process.broker.expire()
        else:
            self.process.ring()

    # ---- topology ----

    def change_topology(self) -> None:
        """The manager has a queue, an exchange or a binding made or deleted."""
        manager = self._ready()
        if manager is None:
            return
        extra = [each for each in self.model.queues.values() if each.name.startswith("extra") and each.is_sound]
        chance = self.rng.random()
        if chance < 0.4 and len(self.model.queues) < _MAX_QUEUES:
            name = f"extra-{self.model.unique()}"
            self._declare_queue(manager, name, durable=self.rng.random() < 0.8, alternate=self.rng.choice((None, DEAD)))
        elif chance < 0.65 and extra:
            queue = self.rng.choice(extra)
            exchange = self.rng.choice((NEWS, DIRECT))
            if (exchange, queue.name, f"key-{queue.name}") not in self.model.bindings:
                self._bind(manager, exchange, queue.name, f"key-{queue.name}")
        elif chance < 0.72:
            self._unbind(manager)
        elif extra:
            self._delete_queue(manager, self.rng.choice(extra))

    def _declare_exchange(self, manager: Peer, name: str, kind: str) -> None:
        exchange = self.model.exchanges[name] = ExchangeModel(name, kind)
        done = partial(setattr, exchange, "is_certain", True)
        manager.ask("exchange.declare", done, exchange=name, type=kind, durable=True)

    def _declare_queue(self, manager: Peer, name: str, *, durable: bool, alternate: str | None) -> None:
        if name in self.model.queues:
            return
        dead = None if alternate is None else self.model.exchanges[alternate]
        is_early = self._is_early and self.rng.random() < 0.7
        queue = self.model.queues[name] = QueueModel(name, durable, dead, name == WITH_PRIORITIES, is_early)
        done = partial(setattr, queue, "is_certain", True)
        arguments: dict[str, int] = {"qpid.priorities": 10} if queue.has_priorities else {}
        if is_early:
            arguments["qpid.deliver_before_sync"] = 1
        manager.ask(
            "queue.declare",
            done,
            queue=name,
            durable=durable,
            alternate_exchange=alternate,
            arguments=typed_map(arguments),
        )

    def _bind(self, manager: Peer, exchange_name: str, queue_name: str, key: str) -> None:
        if (exchange_name, queue_name, key) in self.model.bindings:
            return
        binding = self.model.bind(self.model.exchanges[exchange_name], self.model.queues[queue_name], key)
        done = partial(setattr, binding, "is_certain", True)
        manager.ask("exchange.bind", done, exchange=exchange_name, queue=queue_name, binding_key=key)

    def _unbind(self, manager: Peer) -> None:
        bindings = [each for each in self.model.bindings.values() if each.is_sound and "extra" in each.queue.name]
        if bindings:
            binding = self.rng.choice(bindings)
            binding.is_leaving = True
            exchange, queue, key = binding.exchange.name, binding.queue.name, binding.key

            def done() -> None:
                self.model.bindings.pop((exchange, queue, key), None)

            manager.ask("exchange.unbind", done, exchange=exchange, queue=queue, binding_key=key)

    def _delete_queue(self, manager: Peer, queue: QueueModel) -> None:
        if not self.model.may_be_deleted(queue):
            return
        moves = self.model.delete(queue)
        manager.ask("queue.delete", lambda: self.model.deleted(queue, moves), queue=queue.name)

    # ---- the end ----

    def stop(self) -> bool:
        """SIGTERM, after all that clients have sent has come over."""
        for peer in self.peers:
            peer.wire.carry()
        reached = [peer.session for peer in self.peers if not peer.wire.is_busy and not peer.session.has_ended]
        assert self.process.stop(), "a stop that is not clean"
        for session in reached:
            for copies in session.accepts.values() if not session.has_failed else ():
                self.model.gone(copies)
        for peer in self.peers:
            peer.session.end()
        self.is_stopped = True
        return True

    def discard(self) -> None:
        """The process is gone."""
        self.process.discard()


def _number(body: bytes) -> int:
    """The number of a message as a queue has it."""
    content = body if body[0] else body_of(body)  # sections begin with a zero
    return int(content.partition(b":")[0])


def _has_ended(session: object) -> bool:
    assert isinstance(session, ModelSession | BasicSession | LinksSession)
    return session.has_ended


# ---- crashes ----


@dataclass(kw_only=True)
class BrokerCrashes(Simulator):
    """Brokers that are killed, and stopped.

    Attributes:
        pages: whether the brokers let messages go out of memory (`BrokerProcess`).
        basic: whether some clients speak AMQP 0-9-1, beside others of 0-10 on the same queues.
        links: whether some speak AMQP 1.0.
        early: whether some queues deliver messages before their records are on the disk.
        uniform: whether publishers send messages that become runs.
        mixed: whether these go to several queues in turns.

    Counted are `stops`; `delivered`, the messages that came to clients; `unpromised`, those of them that were not
    promised by then, on queues that deliver early; `away`, those that were out of memory; `runs` (`BrokerLife`);
    `runs read`, those that were read back.
    """

    pages: bool = False
    basic: bool = False
    links: bool = False
    early: bool = False
    uniform: bool = False
    mixed: bool = False

    steps: ClassVar = 190
    stops: ClassVar = 0.5
    steps_again: ClassVar = 40

    def is_chosen(self, call: Call, rng: random.Random) -> bool:
        """The catalogue's calls, which are few, are all kill points, if any is."""
        return super().is_chosen(call, rng) or (call.name == "batch" and self.share > 0)

    def start(
        self,
        disk: SimulatedDisk,
        promises: tuple[Model, dict[str, list[int]] | None] | None,
        rng: random.Random,
        *,
        must_be_clean: bool,
    ) -> BrokerLife:
        model, order = promises or (Model(), None)
        names = ("pages", "basic", "links", "early", "uniform", "mixed")
        kind = {name: getattr(self, name) for name in names}
        return BrokerLife(disk, model, rng, order, must_be_clean=must_be_clean, **kind)

    def seen(self, life: BrokerLife) -> None:
        self.counts["stops"] += life.is_stopped
        self.counts["delivered"] += life.model.deliveries
        self.counts["unpromised"] += life.model.early
        self.counts["away"] += len(life.process.store.away)
        self.counts["runs"] += life.runs
        self.counts["runs read"] += life.process.store.runs_read
