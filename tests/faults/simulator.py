"""Kills whatever works on a simulated disk, at the calls that change it, and looks at what is left.

A history is a disk and some lives of a process, one after the other, under one seed. Before a call that changes the
disk the path forks: on a copy of the disk the process is killed there, by SIGKILL or by a power loss. Others that start
with what is left are killed in turn, while they start or while they work, and the last one has to find all that was
promised. The history itself goes on; each of its lives stops cleanly or crashes.

What lives there is said by a subclass of `Simulator`: a journal (`journal_simulation`), a store (`store_simulation`), a
broker (`broker_simulation`), a broker with distributed transactions (`branch_simulation`). The start of a life holds
what it finds against the promises of the one before, and raises `BrokenPromiseError`.

A seed replays exactly, as long as neither the code nor the workload changes. Tests that show that a bug planted on
purpose is found begin with a seed that finds it soon; `python -m tests.faults.find_seeds` looks for such seeds.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol

from tests.faults.simulated_disk import Call, Killed, SimulatedDisk

_SLICE = 10  # steps after which a history ends that has a finding in a fork


class BrokenPromiseError(BaseException):
    """Something is not as it may be. Not an `Exception`: a store reports those of its background as errors."""


def require(condition: bool, what: str) -> None:
    """Raise BrokenPromiseError unless that is so."""
    if not condition:
        raise BrokenPromiseError(what)


class Life(Protocol):
    """One process, from its start, which is over, to its end."""

    def work(self, steps: int) -> None:
        """Do something, by chance."""

    def promises(self) -> Any:
        """What the next life may find, if this one ends now."""

    def stop(self) -> bool:
        """End as on SIGTERM. Returns whether that was clean."""

    def discard(self) -> None:
        """The process is gone."""


@dataclass(kw_only=True)
class Simulator:
    """Histories of one kind, and what was seen in them.

    Attributes:
        share: of the calls that change the disk, how many are kill points.
        kill_points: how many processes were killed.
        counts: what else happened.
        failure: what was found in a fork.
        is_fork: whether it is in a fork that a process is started.
        row: how many crashes came one after the other, in the fork that was looked at last.
    """

    share: float = 1.0
    kill_points: int = field(default=0, init=False)
    counts: Counter[str] = field(default_factory=Counter, init=False)
    failure: BaseException | None = field(default=None, init=False)
    is_fork: bool = field(default=False, init=False)
    row: int = field(default=0, init=False)
    _life: Life | None = field(default=None, init=False, repr=False)
    _promises: Any = field(default=None, init=False, repr=False)

    lives: ClassVar[int] = 2
    """Lives of a history."""
    steps: ClassVar[int]
    """What each of them does."""
    stops: ClassVar[float]
    """How many of them end with a clean stop."""
    dies_at_start: ClassVar[bool] = True
    """Whether the calls of a start are kill points, too."""
    again: ClassVar[tuple[int, ...]] = (0, 0, 0, 1)
    """How many lives that follow a kill are killed in turn: one of these numbers."""
    steps_again: ClassVar[int] = 0
    """The most that such a life does before."""
    stops_again: ClassVar[float] = 0.0
    """How many of them stop cleanly, if they were not killed."""
    works_on: ClassVar[float] = 0.0
    """How many of the last ones have to work on, to stop, and to be found clean."""

    # ---- the workload ----

    def start(self, disk: SimulatedDisk, promises: Any, rng: random.Random, *, must_be_clean: bool) -> Life:
        """A new process. `promises`: those of the one before, None if it is the first one.

        Raises:
            BrokenPromiseError: something is not as it may be.
            Killed: while it started.
        """
        raise NotImplementedError

    def seen(self, life: Life) -> None:
        """A life of the history has ended: count what it has seen."""

    def visited(self, call: Call) -> None:
        """A process is killed in this call."""

    def is_chosen(self, call: Call, rng: random.Random) -> bool:
        """Whether a call is a kill point."""
        return rng.random() < self.share

    def lives_again(self, rng: random.Random) -> int:
        """How many lives that follow a kill are killed in turn."""
        return rng.choice(self.again)

    def disk(self, seed: int) -> SimulatedDisk:
        """The disk of a history."""
        return SimulatedDisk(seed)

    # ---- histories ----

    def run(self, seed: int, lives: int | None = None, steps: int | None = None) -> None:
        """One history. Raises BrokenPromiseError."""
        rng, disk = random.Random(seed), self.disk(seed)
        promises: Any = None
        is_clean = False
        for _ in range(lives or self.lives):
            promises, is_clean = self._live(disk, promises, rng, steps or self.steps, must_be_clean=is_clean)
            disk.crash(power_loss=rng.random() < 0.5)
        self.start(disk, promises, rng, must_be_clean=is_clean).discard()

    def run_all(self, seeds: Iterable[int]) -> None:
        """A history for each seed."""
        for seed in seeds:
            self.run(seed)

    def _live(
        self, disk: SimulatedDisk, promises: Any, rng: random.Random, steps: int, *, must_be_clean: bool
    ) -> tuple[Any, bool]:
        """One life of a history. Returns its promises, and whether it was stopped cleanly."""
        self._life, self._promises, self.failure = None, promises, None
        watch = partial(self._fork, rng)
        if self.dies_at_start:
            disk.watch = watch
        life = self._life = self.start(disk, promises, rng, must_be_clean=must_be_clean)
        try:
            disk.watch = watch
            for done in range(0, steps, _SLICE):
                life.work(min(_SLICE, steps - done))
                self._check()
            is_clean = rng.random() < self.stops and life.stop()
            promises = life.promises()
        finally:
            disk.watch = None
            life.discard()
            self._check()
        self.seen(life)
        return promises, is_clean

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure

    # ---- forks ----

    def _fork(self, rng: random.Random, call: Call) -> None:
        chance = random.Random(rng.getrandbits(64))
        if self.failure is not None or not self.is_chosen(call, chance):
            return
        promises = self._promises if self._life is None else self._life.promises()
        power_loss = chance.random() < 0.7
        self.kill_points += 1
        self.visited(call)
        disk = call.killed(chance.getrandbits(32), power_loss=power_loss)
        self.is_fork, self.row = True, 1
        try:
            self._survive(disk, promises, chance)
        except BaseException as error:  # kept: a broker that goes on would take it for an error of its disk
            error.add_note(f"killed in call {call.number}, {call.name} {call.path}, power loss: {power_loss}")
            error.add_note(f"crashes in a row: {self.row}")
            self.failure = error
        finally:
            self.is_fork = False

    def _survive(self, disk: SimulatedDisk, promises: Any, rng: random.Random) -> None:
        is_clean = False
        for _ in range(self.lives_again(rng)):
            disk.kill_at = rng.randrange(60)
            life: Life | None = None
            try:
                life = self.start(disk, promises, rng, must_be_clean=is_clean)
                is_clean = False
                life.work(rng.randint(0, self.steps_again))
                is_clean = rng.random() < self.stops_again and life.stop()
            except Killed:
                self.kill_points += 1
                is_clean = False
            finally:
                if life is not None:
                    promises = life.promises()
                    life.discard()
            disk.crash(power_loss=rng.random() < 0.5)
            self.row += 1
            self.counts[f"crashes in a row: {self.row}"] += 1
        life = self.start(disk, promises, rng, must_be_clean=is_clean)
        if rng.random() < self.works_on:
            life.work(rng.randint(0, _SLICE))
            is_clean = life.stop()
            promises = life.promises()
            life.discard()
            disk.crash(power_loss=True)
            life = self.start(disk, promises, rng, must_be_clean=is_clean)
        life.discard()


class Planted(NamedTuple):
    """Bugs planted on purpose, and the simulator that has to find them.

    Attributes:
        bugs: name -> the context in which the code has it.
        simulator: makes the simulator, for the bug of a name.
        seeds: those of the histories in which it is looked for.
        finds: name -> the seed that finds it soonest, if that is not the first one. It is tried before the others.
        errors: what it is to be found by.
    """

    bugs: Mapping[str, Callable[[], AbstractContextManager[object]]]
    simulator: Callable[[str], Simulator]
    seeds: range
    finds: Mapping[str, int]
    errors: tuple[type[BaseException], ...] = (BrokenPromiseError,)

    def is_found(self, name: str, seeds: Iterable[int] | None = None) -> bool:
        """Whether a bug is found in any history, or in those of the given seeds."""
        if seeds is None:
            seeds = (self.finds.get(name, self.seeds[0]), *self.seeds)
        with self.bugs[name]():
            try:
                self.simulator(name).run_all(seeds)
            except self.errors:
                return True
        return False
