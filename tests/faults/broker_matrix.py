"""Kills whole brokers at each call that changes the disk: see `BrokerMatrix`."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import partial

from tests.faults.broker_harness import BrokerLife
from tests.faults.broker_model import Model
from tests.faults.simulated_disk import Call, Killed, SimulatedDisk


@dataclass(slots=True)
class BrokerMatrix:
    """Kills brokers, and looks at what is left.

    A run has one broker for some lives. Before a call that changes the disk the path forks: the process is killed
    there, by SIGKILL or power loss, on a copy of the disk; others that start with what is left are killed in turn,
    while they start or a little later; and one has to find all that was promised. The run itself goes on, and each of
    its lives ends with SIGTERM, or with a crash.

    Attributes:
        share: of the calls, how many are kill points; the catalogue's, which are few, all are, if any is.
        pages: whether the brokers let messages go out of memory (`BrokerProcess`).
        basic: whether some clients speak AMQP 0-9-1, beside others of 0-10 on the same queues.
        early: whether some queues deliver messages before their records are on the disk.
        kill_points, stops: how many processes were killed, and stopped.
        delivered: how many messages came to clients.
        unpromised: how many of them were not promised by then, on queues that deliver early.
        away: how many were out of memory, in brokers that did not end in a fork.
        failure: what was found in a fork.
    """

    share: float = 1.0
    pages: bool = False
    basic: bool = False
    early: bool = False
    kill_points: int = 0
    stops: int = 0
    delivered: int = 0
    unpromised: int = 0
    away: int = 0
    failure: BaseException | None = None
    _life: BrokerLife | None = field(default=None, repr=False)

    def run(self, seed: int, lives: int = 2, steps: int = 250) -> None:
        """One broker, from the making of its store on. Raises BrokenPromiseError."""
        rng = random.Random(seed)
        disk, model = SimulatedDisk(seed), Model()
        order: dict[str, list[int]] | None = None
        is_clean = False
        for _ in range(lives):
            self._life = None
            life = BrokerLife(disk, model, rng, order, must_be_clean=is_clean, **self._kind)
            self._life = life
            disk.watch = partial(self._visit, rng)
            try:
                life.begin()
                self._work(life, rng.randint(steps // 2, steps))
                is_clean = rng.random() < 0.5
                if is_clean:
                    life.stop()
                    self.stops += 1
                else:
                    order = life.order()
            finally:
                self._end(life)
            model = life.model
            self.delivered += model.deliveries
            self.unpromised += model.early
            self.away += len(life.process.store.away)
            order = None if is_clean else order
            disk.crash(power_loss=rng.random() < 0.5)
        BrokerLife(disk, model, rng, order, must_be_clean=is_clean, **self._kind).discard()

    @property
    def _kind(self) -> dict[str, bool]:
        return {"pages": self.pages, "basic": self.basic, "early": self.early}

    def _work(self, life: BrokerLife, steps: int) -> None:
        for _ in range(0, steps, 10):
            life.work(10)
            self._check()

    def _end(self, life: BrokerLife) -> None:
        life.disk.watch = None
        life.discard()
        self._check()

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _visit(self, rng: random.Random, call: Call) -> None:
        chance = random.Random(rng.getrandbits(64))
        is_chosen = chance.random() < self.share or (call.name == "batch" and self.share > 0)
        if not is_chosen or self.failure is not None:
            return
        assert self._life is not None
        life = self._life
        power_loss = chance.random() < 0.7
        self.kill_points += 1
        disk = call.killed(chance.getrandbits(32), power_loss=power_loss)
        try:
            self._survive(disk, life.model, life.order(), chance)
        except BaseException as error:  # or the broker that goes on would take it for its disk's
            error.add_note(f"killed in call {call.number}, {call.name} {call.path}, power loss: {power_loss}")
            self.failure = error

    def _survive(self, disk: SimulatedDisk, model: Model, order: dict[str, list[int]], rng: random.Random) -> None:
        for _ in range(rng.choice((0, 0, 0, 1))):
            disk.kill_at = rng.randrange(60)
            life = None
            try:
                life = BrokerLife(disk, model, rng, order, **self._kind)
                life.begin()
                life.work(rng.randint(0, 40))
            except Killed:
                self.kill_points += 1
            finally:
                if life is not None:
                    model, order = life.model, life.order()
                    life.discard()
            disk.crash(power_loss=rng.random() < 0.5)
        BrokerLife(disk, model, rng, order, **self._kind).discard()
