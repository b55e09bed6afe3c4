"""Backups of a running store on a simulated disk: what is restored is the store at the cut, whatever goes on meanwhile.

`tests/support/profiles.py` says which cases are run.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from unittest.mock import patch

import pytest

from qstore.store.backup.create import BackupResult, StoreBackup
from qstore.store.backup.repository import MANIFEST, DiskRepository, backup_names, read_manifest, verify_chunks
from qstore.store.backup.restore import restore
from qstore.store.backup.sources import OvertakenError, RunningSource
from qstore.store.live.snapshot import SharedSnapshot
from qstore.store.unfinished import SNAPSHOTS
from tests.faults.simulated_disk import Call, SimulatedDisk
from tests.faults.snapshot_life import BACKUP, SnapshotLife, begin, begin_again, check_copy, check_source, settle
from tests.faults.store_simulation import PATH, Model, TinyParameters, simulated_environment, tiny_rid_blocks
from tests.support.profiles import is_due, today

PLACE = "/backups"
CHUNK = 2048


@pytest.fixture(autouse=True)
def tiny() -> Iterator[None]:
    with contextlib.ExitStack() as patched:
        patched.enter_context(tiny_rid_blocks())
        for name in ("create", "repository", "restore"):
            patched.enter_context(patch(f"qstore.store.backup.{name}.CHUNK_SIZE", CHUNK))
        yield


def back_up(life: SnapshotLife, *, attempts: int = 1, between: Callable[[], object] = lambda: None) -> BackupResult:
    """A backup of the store, while `between` happens at each of its steps."""
    repository = DiskRepository(life.disk, PLACE)
    lock = repository.lock()
    first: set[int] = set()
    backup = StoreBackup(simulated_environment(life.disk, life.rng), repository, "test")
    try:
        for number in range(attempts):
            shared = life.share(life.rng.randint(0, 3))
            source = RunningSource(
                life.disk, PATH, shared.name, partial(copied, shared, between), shared.release, first
            )
            try:
                return backup.run(source, verify=life.rng.random() < 0.2)
            except OvertakenError as error:
                first |= error.queue_ids
                if number == attempts - 1:
                    raise
            finally:
                shared.release()
    finally:
        lock.release()
    raise AssertionError


def copied(shared: SharedSnapshot, between: Callable[[], object], numbers: Sequence[int]) -> Sequence[int]:
    between()
    return shared.copied(numbers)


def restored(disk: SimulatedDisk, name: str) -> None:
    repository = DiskRepository(disk, PLACE)
    restore(disk, repository, read_manifest(repository, name), BACKUP)


def check_restored(disk: SimulatedDisk, model: Model) -> None:
    """The simulated catalogue has no files, and so it is restored from its second copy."""
    check_copy(disk, model, told_of="the file CURRENT is missing: it is restored from its second copy")


@pytest.mark.parametrize("grows", [False, True])
def test_a_backup_is_the_store_at_the_cut_while_work_continues(grows: bool) -> None:
    """Journals that can grow do that, and are never overtaken; only the prepared list is."""
    seen: Counter[str] = Counter()
    with contextlib.ExitStack() as patched:
        patched.enter_context(patch("qstore.store.backup.sources._MAX_UNREPORTED_SECONDS", -1))
        patched.enter_context(patch.object(SnapshotLife, "parameters", TinyParameters(auto_expand=grows)))
        for seed in today(range(120), 8):
            life = begin_again(seed, seed % 5 * 60, max(0, seed % 8 - 4))
            for _ in range(1 + seed % 3):
                try:
                    steps = seed % 4 * (4 if grows else 2)
                    result = back_up(life, between=lambda life=life, steps=steps: life.work(steps))
                except OvertakenError as error:
                    seen["overtaken"] += error.queue_ids != {0}
                    continue
                disk = life.disk.copy(seed)
                disk.crash(power_loss=True)
                restored(disk, result.manifest.id)
                check_restored(disk, life.at_cut)
                seen["made"] += 1
                seen["incremental"] += result.manifest.based_on is not None
                life.work(20 + seed % 2 * 60)
            seen["grown"] += any(each.geometry.files > each.initial_files for each in life.store.journals.values())
            life.quiesce()
            life.close()
            assert not life.disk.is_directory(f"{PATH}/{SNAPSHOTS}")
            check_source(life.disk, life.model, must_be_clean=True)
    assert min(seen[name] for name in ("made", *(("incremental", "grown") if grows else ("overtaken",)))) >= 1, seen
    assert not grows or not seen["overtaken"]


def test_a_crash_at_any_call_leaves_the_store_and_whole_backups() -> None:
    found: Counter[str] = Counter()
    due = is_due(3)
    whole: set[SnapshotLife] = set()  # those whose second backup has its manifest: few calls follow, so all are visited

    def visit(call: Call, life: SnapshotLife, at_cut: Model | None) -> None:
        if call.name == "rename" and MANIFEST in call.path:
            whole.add(life)
        for power_loss in (False, True) if due() or life in whole else ():
            disk = call.killed(life.rng.getrandbits(32), power_loss=power_loss)
            repository = DiskRepository(disk, PLACE)
            found["left"] += disk.is_directory(f"{PATH}/{SNAPSHOTS}")
            if found.total() % 5 == 0:
                check_source(disk, life.model)
                assert not disk.is_directory(f"{PATH}/{SNAPSHOTS}")
                found["source"] += 1
            for name in backup_names(repository):
                manifest = read_manifest(repository, name)
                verify_chunks(repository, manifest, lambda _: None)
                if at_cut is not None and name == backup_names(repository)[-1] and name != names[0]:
                    restored(disk, name)
                    check_restored(disk, at_cut)
                    found["new"] += 1
            found["visited"] += 1

    for seed in today(range(6), 2):
        life = begin(seed, 100)
        life.quiesce()
        names = [back_up(life, attempts=5).manifest.id]
        life.work(20)
        life.quiesce()
        life.disk.watch = lambda call, life=life: visit(call, life, getattr(life, "at_cut", None))
        back_up(life, attempts=5)
        life.disk.watch = None
        settle(life)
        life.close()
    assert min(found[name] for name in ("left", "source", "new", "visited")) >= 1, found


def test_overtaken_journal_is_read_first_at_the_next_attempt() -> None:
    """A journal of fixed size wraps around while another one is read: the next attempt begins with it."""
    again = 0
    for seed in today(range(20), 6):
        life = begin(seed, 80)
        chance = random.Random(seed)
        with contextlib.suppress(OvertakenError):
            again += life_with_attempts(life, chance)
        life.quiesce()
        life.close()
    assert again


def life_with_attempts(life: SnapshotLife, chance: random.Random) -> int:
    """Whether a backup was made after another attempt."""
    busy = iter([60, *[0] * 10_000])
    taken = life.store.share_snapshot
    calls: list[object] = []

    def counting(done: object) -> None:
        calls.append(done)
        taken(done)  # type: ignore[arg-type]

    with patch.object(life.store, "share_snapshot", counting):
        result = back_up(life, attempts=4, between=lambda: life.work(next(busy) * chance.randint(1, 3)))
    restored(life.disk, result.manifest.id)
    check_restored(life.disk, life.at_cut)
    return len(calls) > 1
