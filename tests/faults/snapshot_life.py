"""A store on a simulated disk that takes snapshots, and what their copies may hold."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Final, TypeVar

from qstore.store.live.message_store import MessageStore
from qstore.store.live.snapshot import Describe, SharedSnapshot, Snapshot, Taken, copy_snapshot
from qstore.store.log_lines import Level, LogLine
from tests.faults.simulated_disk import SimulatedDisk
from tests.faults.store_simulation import Model, StoreLife, TinyParameters, look, simulated_environment

CHECKPOINT, BACKUP = "/checkpoint", "/backup"
MAX_TURNS: Final = 3000
_Some = TypeVar("_Some", Snapshot, SharedSnapshot)


class SnapshotLife(StoreLife):
    """A life that takes snapshots.

    Attributes:
        at_cut: what the copy of the last one may hold.
    """

    at_cut: Model

    def take(self, steps: int = 0, path: str = CHECKPOINT) -> Snapshot:
        """Take a snapshot. Work goes on until it is there, and for `steps` steps more."""
        return self._taken(lambda got: self.store.snapshot(path, got), steps)

    def share(self, steps: int = 0) -> SharedSnapshot:
        """Likewise, one that another process could read."""
        return self._taken(self.store.share_snapshot, steps)

    def _taken(self, begin: Callable[[Callable[[_Some | None, Exception | None], None]], None], steps: int) -> _Some:
        taken: list[_Some] = []

        def got(snapshot: _Some | None, error: Exception | None) -> None:
            assert error is None
            assert snapshot is not None
            taken.append(snapshot)

        snapshots = self.store._snapshots
        cut = type(snapshots)._cut

        def noting(checkpoint: str, done: Taken, describe: Describe | None) -> None:
            self.highest()
            self.at_cut = frozen(self.model)
            cut(snapshots, checkpoint, done, describe)

        snapshots._cut = noting  # type: ignore[method-assign]
        begin(got)
        for _ in range(MAX_TURNS):
            if taken:
                break
            if self.rng.random() < 0.5:
                self.work(1)
            self.store.start()
            self.store.collect(None)
        self.work(steps)
        return taken[0]


def frozen(model: Model) -> Model:
    """The same, whatever becomes of it."""
    journals = {id(queue.journal): queue.journal for queue in model.queues.values()}
    for branch in model.branches:
        journals.update({id(queue.journal): queue.journal for queue in branch.work})
    return copy.deepcopy(model, dict(journals))


def begin(seed: int, steps: int) -> SnapshotLife:
    """A life that has had some work."""
    rng = random.Random(seed)
    # The prepared list is so tiny that it may refuse a transaction, which counts as a fault.
    life = SnapshotLife(SimulatedDisk(seed), Model(), rng, faults=True)
    life.work(steps)
    return life


def begin_again(seed: int, steps: int, lives: int) -> SnapshotLife:
    """One that follows others, which crashed or were closed; the last one may have no work of its own."""
    life = begin(seed, steps)
    for number in range(lives):
        clean = life.rng.random() < 0.4
        if clean:
            life.quiesce()
            life.close()
        life.highest()
        life.disk.crash(power_loss=life.rng.random() < 0.7)
        life = SnapshotLife(life.disk, life.model, life.rng, must_be_clean=clean, faults=True)
        life.work(0 if number == lives - 1 and life.rng.random() < 0.4 else life.rng.randint(0, steps))
    return life


def copy_it(life: SnapshotLife, snapshot: Snapshot) -> None:
    """Copy it beside the store."""
    copy_snapshot(simulated_environment(life.disk, life.rng), snapshot, BACKUP)


def settle(life: SnapshotLife) -> None:
    """Until nothing is under way."""
    life.quiesce()
    life.store._background.wait()
    life.store.collect()


def check_copy(disk: SimulatedDisk, model: Model, *, told_of: str = "nothing") -> None:
    """A copy is there, and holds what it may; nothing is reported but of `told_of`."""
    lines: list[LogLine] = []
    environment = simulated_environment(disk, random.Random(1))
    store = MessageStore.open(environment, BACKUP, TinyParameters(), "test", log=lines.append)
    model.check(look(store), must_be_clean=False)
    reported = [line.text for line in lines if line.level in (Level.CRITICAL, Level.WARNING)]
    assert [text for text in reported if told_of not in text] == []
    assert store._ids.next > model.highest_rid
    assert store.close()


def check_source(disk: SimulatedDisk, model: Model, *, must_be_clean: bool = False) -> None:
    """The store itself is as it should be, and nothing of a snapshot hinders it."""
    life = StoreLife(disk, frozen(model), random.Random(1), must_be_clean=must_be_clean, faults=True)
    life.work(5)
    life.quiesce()
    life.close()
