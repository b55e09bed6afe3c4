"""A store whose journals are resized, killed at every call: the next start has the old or the new journal, whole.

`tests/support/profiles.py` says which calls are tried.
"""

from __future__ import annotations

import contextlib
import errno
import random
from collections import Counter
from collections.abc import Callable

import pytest

from qstore.formats.rhm.geometry import Geometry
from qstore.store.errors import StoreError
from qstore.store.journal.directory import DELETED
from qstore.store.repair.resize import StoreResize, _Built
from qstore.store.unfinished import KEPT
from tests.faults.full_disk import assert_reported, moments, sizes
from tests.faults.simulated_disk import Call, Killed, SimulatedDisk, takes, takes_or_keeps
from tests.faults.simulator import BrokenPromiseError
from tests.faults.snapshot_life import SnapshotLife, begin_again, frozen
from tests.faults.store_simulation import PATH, Model, StoreLife, names_in, simulated_environment
from tests.support.profiles import is_due, is_nightly, today

pytestmark = pytest.mark.usefixtures("tiny_blocks")

SIZES = (Geometry(5, 8192), Geometry(4, 16384), Geometry(7, 6144))
SMALLER = (Geometry(4, 2048), Geometry(5, 2048))


class Left:
    """A store that was left, cleanly or not, and what it holds."""

    def __init__(self, seed: int) -> None:
        life = begin_again(seed, 60 + seed % 5 * 40, seed % 3)
        self.clean = seed % 2 == 0
        if self.clean:
            life.quiesce()
            life.close()
        life.highest()
        self.disk, self.model, self.rng = life.disk, life.model, random.Random(seed)
        if seed % 4 < 3:
            self.disk.crash(power_loss=seed % 4 == 1)
        else:
            self.disk.held.clear()

    def look(self, disk: SimulatedDisk, orphans: int = 0) -> SnapshotLife:
        """Start the store: it is as it must be."""
        model: Model = frozen(self.model)
        model.left += orphans
        return SnapshotLife(disk, model, random.Random(self.rng.random()), must_be_clean=self.clean, faults=True)


def resize(disk: SimulatedDisk, seed: int, sizes: tuple[Geometry, ...] = SIZES) -> dict[str, Geometry]:
    """Resize everything that can be. Returns what was planned: name -> geometry."""
    rng = random.Random(seed)
    with StoreResize(simulated_environment(disk, rng), PATH, "test") as held:
        plans = held.plan(held.queues, lambda *_: rng.choice(sizes), prepared_list=bool(seed % 3))
        plans = [plan for plan in plans if plan.fits]
        held.resize(plans)
    return {plan.name: plan.after for plan in plans if plan.is_change}


def geometries(life: StoreLife) -> dict[str, Geometry]:
    journals = [*life.store.journals.values(), life.store.prepared_list]
    return {journal.name: journal.geometry for journal in journals}


def test_without_a_crash() -> None:
    seen: Counter[str] = Counter()
    for seed in today(range(60), 20):
        left = Left(seed)
        done = resize(left.disk, seed, SIZES if seed % 4 else SMALLER)
        left.disk.crash(power_loss=bool(seed % 2))
        life = left.look(left.disk)
        now = geometries(life)
        assert done.items() <= now.items()
        assert len(names_in(life.store, KEPT)) == len(done)
        assert not names_in(life.store, "orphans") or left.model.orphans or left.model.left or not left.clean
        seen["resized"] += len(done)
        seen["branches"] += bool(left.model.branches)
        seen["messages"] += sum(len(queue.content) for queue in life.model.queues.values())
        seen["list"] += "TplStore" in done
        life.work(30)
        life.quiesce()
        life.close()
    assert min(seen.values()) > 0, seen
    assert seen["messages"] > 50, seen


@pytest.mark.parametrize("part", range(4))
def test_a_crash_at_every_call(part: int) -> None:
    seen = kill_everywhere(range(part, 12, 4), is_due(15))
    assert seen["calls"] > 200, seen
    assert seen["old"] > 10, seen
    assert seen["new"] > 5, seen


def kill_everywhere(seeds: range, due: Callable[[], bool]) -> Counter[str]:
    """Kill a resize at each call that is due, twice."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        left = Left(seed)
        before = geometries(left.look(left.disk.copy(seed)))
        planned: dict[str, Geometry] = resize(left.disk.copy(seed), seed)

        def visit(call: Call, left=left, before=before, planned=planned, seed=seed) -> None:  # type: ignore[no-untyped-def]
            for power_loss in (False, True) if due() else ():
                disk = call.killed(call.number, power_loss=power_loss)
                again = call.number % 3 == 0
                if again:
                    kill_again(disk, seed, left.rng)
                life = left.look(disk, orphans=1 + again)
                now = geometries(life)
                for name, geometry in now.items():
                    assert geometry in (before[name], planned.get(name)) or again
                    seen["old" if geometry == before[name] else "new"] += 1
                seen["orphans"] += len(names_in(life.store, "orphans"))
                if call.number % 5 == 0:
                    life.work(5)
                    life.quiesce()
                    life.close()

        left.disk.watch = visit
        resize(left.disk, seed)
        left.disk.watch = None
        seen["calls"] += left.disk.calls
    return seen


def kill_again(disk: SimulatedDisk, seed: int, rng: random.Random) -> None:
    """Resize once more, and kill that too, or not."""
    disk.kill_at = rng.randrange(200)
    with contextlib.suppress(Killed):
        resize(disk, seed)
    disk.crash(power_loss=rng.random() < 0.5)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failing_call_is_reported_and_loses_nothing(code: int) -> None:
    seen: Counter[str] = Counter()
    for seed in (4, 5, 6):
        left = Left(seed)
        count = count_of_calls(left, seed)
        for number in today(range(count), 25):
            disk = left.disk.copy(number)
            disk.fail_at = {number: code}
            try:
                resize(disk, seed)
            except StoreError as error:
                seen["told"] += "\n" not in str(error)
            else:
                seen["passed"] += 1
            disk.fail_at = {}
            assert not disk.held
            disk.crash(power_loss=bool(number % 2))
            left.look(disk, orphans=1)
    assert seen["told"] > 20, seen


def count_of_calls(left: Left, seed: int) -> int:
    disk = left.disk.copy(seed)
    resize(disk, seed)
    return disk.calls


def test_resize_that_does_not_fit_changes_nothing() -> None:
    refused = 0
    for seed in today(range(40), 8):
        left = Left(seed)
        environment = simulated_environment(left.disk, left.rng)
        with StoreResize(environment, PATH, "test") as held:
            calls = left.disk.calls
            plans = held.plan(held.queues, lambda *_: Geometry(2, 512))
            assert left.disk.calls == calls
            for plan in plans:
                refused += not plan.fits
                assert plan.fits or all(larger.capacity > plan.after.capacity for larger in plan.would_fit)
            held.resize(held.plan(held.queues, lambda name, before: before))
            assert left.disk.calls == calls
        left.disk.crash(power_loss=True)
        left.look(left.disk)
    assert refused > 0


@pytest.mark.parametrize("broken", ["lazy", "early"])
def test_a_resize_that_is_broken_is_detected(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests can fail: names that are not synced before the catalogue has them; old journals that go too early."""
    sync, switch = SimulatedDisk.sync_directory, StoreResize._switch

    def lazy(self: SimulatedDisk, path: str) -> None:
        if not path.endswith(("/jrnl", "/resized.new")):
            sync(self, path)

    def early(self: StoreResize, built: _Built) -> str:
        old = built.plan.source.journal.path
        self._disk.remove(f"{old}/{self._disk.names(old)[0]}")
        return switch(self, built)

    if broken == "lazy":
        monkeypatch.setattr(SimulatedDisk, "sync_directory", lazy)
    else:
        monkeypatch.setattr(StoreResize, "_switch", early)
    with pytest.raises((BrokenPromiseError, StoreError)):
        kill_everywhere(range(12), lambda: True)


# ---- A store whose disk runs full at any call of a resize: what was allocated is given back, and nothing is lost ----
# `tests/support/profiles.py` says which calls are tried.


JOURNALS = f"{PATH}/rhm/jrnl"


def outcome(left: Left, disk: SimulatedDisk) -> str:
    """What a failed resize left: nothing; marks without journals; or journals that have changed places, or may have."""
    before, now = sizes(left.disk, PATH), sizes(disk, PATH)
    if now == before:
        return "unchanged"
    more = {path: size for path, size in now.items() if before.get(path) != size}
    return "marks" if before.items() <= now.items() and not any(more.values()) else "begun"


def marked(disk: SimulatedDisk) -> list[str]:
    """The journals that are marked as deleted, and still have files."""
    names = {name: disk.names(f"{JOURNALS}/{name}") for name in disk.names(JOURNALS)}
    return [name for name, found in names.items() if DELETED in found and len(found) > 1]


@pytest.mark.parametrize("seed", [4, 7])
@pytest.mark.parametrize("needs_room", [takes, takes_or_keeps])
def test_a_resize_on_a_disk_that_runs_full(needs_room: Callable[[str], bool], seed: int) -> None:
    seen: Counter[str] = Counter()
    left = Left(seed)
    old = geometries(left.look(left.disk.copy(seed)))
    planned = resize(left.disk.copy(seed), seed)
    for number in moments(left.disk.copy(seed), lambda disk: resize(disk, seed), days=10):
        disk = left.disk.copy(number)
        disk.needs_room, disk.full_from = needs_room, number
        try:
            resize(disk, seed)
        except StoreError as error:
            reported = assert_reported(error, PATH)
        else:
            break
        found = outcome(left, disk)
        assert found != "begun" or "had been switched before" in reported
        seen[found] += 1
        assert not disk.held
        assert len(marked(disk)) <= 1
        disk.full_from = None
        disk.crash(power_loss=bool(number % 2))
        if number % 3:
            resize(disk, seed)
            disk.crash(power_loss=True)
        life = left.look(disk, orphans=1)
        assert names_in(life.store, "orphans") == [] or left.model.left
        now = geometries(life)
        assert all(number % 3 or size in (old[name], planned.get(name)) for name, size in now.items())
    assert seen["unchanged"] > 0, seen
    assert needs_room is takes_or_keeps or not seen["marks"], seen
    if is_nightly():
        assert seen["unchanged"] > 100, seen
        assert seen["begun"] > 10, seen
        assert bool(seen["marks"]) is (needs_room is takes_or_keeps), seen
