"""Kills whole stores at each call that changes the disk: see `CrashMatrix`."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from qstore.store.sync.driver import SyncDriver
from tests.faults.simulated_disk import Call, Killed, SimulatedDisk
from tests.faults.store_harness import StoreLife, journal_of
from tests.faults.store_model import BrokenPromiseError, Model


@dataclass(slots=True)
class CrashMatrix:
    """Kills stores, and looks at what is left.

    A run works with one store for some lives. Before a call that changes the disk it leaves the path: the process is
    killed there, by SIGKILL or power loss, and others that open what is left are killed in turn, while they open it or
    a little later, up to three times. Then the store has to work on and to close cleanly. All of that happens on a copy
    of the disk; the run itself goes on.

    Attributes:
        share: of the calls, how many are kill points.
        life_class: the life of one process with the store.
        driver: makes the sync drivers of the runs, if they are special ones; those that are killed have usual ones.
        kill_points: how many processes were killed.
        counts: what happened.
    """

    share: float = 1.0
    life_class: type[StoreLife] = StoreLife
    driver: Callable[[random.Random, SimulatedDisk], SyncDriver] | None = None
    kill_points: int = 0
    counts: dict[str, int] = field(default_factory=dict)

    def run(self, seed: int, lives: int = 3, steps: int = 60) -> None:
        """One store, from its making on. Raises BrokenPromiseError."""
        rng = random.Random(seed)
        disk, model = SimulatedDisk(seed), Model()
        for _ in range(lives):
            state = _State(model)
            disk.watch = partial(self._visit, state, rng)
            state.is_closed = model.is_closed
            driver = None if self.driver is None else partial(self.driver, rng, disk)
            life = state.life = self.life_class(disk, model, rng, must_be_clean=model.is_closed, driver=driver)
            life.work(rng.randint(steps // 2, steps))
            life.close()
            self._count(life)
            model = life.model
            disk.watch = None
            disk.crash(power_loss=rng.random() < 0.5)

    def _count(self, life: StoreLife) -> None:
        relocated = sum(journal_of(queue).writer.compactor.copied for queue in life.queues())
        counts = {"refused": life.refused, "relocated": relocated, "answered": life.answered, "grown": life.grown}
        counts["compressed"], counts["large"] = life.compressed, life.ended_large
        for name, count in counts.items():
            self.counts[name] = self.counts.get(name, 0) + count

    def _visit(self, state: _State, rng: random.Random, call: Call) -> None:
        chance = random.Random(rng.getrandbits(64))
        if chance.random() >= self.share:
            return
        model = state.model if state.life is None else state.life.model
        if state.life is not None:
            state.life.highest()
        power_loss = chance.random() < 0.7
        self.kill_points += 1
        disk = call.killed(chance.getrandbits(32), power_loss=power_loss)
        try:
            self._survive(disk, model, chance)
        except BrokenPromiseError as error:
            error.add_note(f"killed in call {call.number}, {call.name} {call.path}, power loss: {power_loss}")
            raise

    def _survive(self, disk: SimulatedDisk, model: Model, rng: random.Random) -> None:
        must_be_clean = False
        for _ in range(rng.choice((0, 0, 1, 1, 2))):
            disk.kill_at = rng.randrange(60)
            life = None
            try:
                life = self.life_class(disk, model, rng, must_be_clean=must_be_clean)
                model, must_be_clean = life.model, False
                life.work(rng.randint(0, 12))
                life.highest()
                if rng.random() < 0.3:
                    life.close()
                    must_be_clean = True
            except Killed:
                self.kill_points += 1
                must_be_clean = False
                if life is not None:
                    life.highest()
            disk.crash(power_loss=rng.random() < 0.5)
        life = self.life_class(disk, model, rng, must_be_clean=must_be_clean)
        if rng.random() < 0.3:
            life.work(rng.randint(0, 10))
            life.quiesce()
            life.close()
            disk.crash(power_loss=True)
            self.life_class(disk, life.model, rng, must_be_clean=True)


@dataclass(slots=True)
class _State:
    """Where a run is: what may be found, or the life that knows."""

    model: Model
    life: StoreLife | None = None
    is_closed: bool = False
