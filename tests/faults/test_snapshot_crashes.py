"""Snapshots on a simulated disk: the copy is the store as it was at the cut, whatever goes on, fails or crashes."""

from __future__ import annotations

import contextlib
import copy
import errno
import random
from collections import Counter
from typing import Final

import pytest

from formats.rhm.geometry import Geometry
from store.errors import StoreError
from store.journal.relocating import Cut
from store.journal.step import JournalFullError, Step
from store.log_lines import Level, LogLine
from store.message_store import MessageStore
from store.snapshot import Snapshot, Taken
from store.snapshot_copy import copy_snapshot
from store.store_directory import Found, StoreDirectory
from tests.faults.journal_harness import JournalLife, make
from tests.faults.journal_matrix import CrashMatrix, Shape
from tests.faults.simulated_disk import Call, Killed, SimulatedDisk
from tests.faults.store_harness import (
    StoreLife,
    TinyParameters,
    look,
    simulated_environment,
    tiny_rid_blocks,
)
from tests.faults.store_model import Model

CHECKPOINT, BACKUP = "/checkpoint", "/backup"
MOST_TURNS: Final = 3000


class SnapshotLife(StoreLife):
    """A life that takes snapshots.

    Attributes:
        at_cut: what the copy of the last one may hold.
    """

    at_cut: Model

    def take(self, steps: int = 0, path: str = CHECKPOINT) -> Snapshot:
        """Take a snapshot. Until it is there, and for so many steps more, work goes on."""
        taken: list[Snapshot] = []

        def got(snapshot: Snapshot | None, error: Exception | None) -> None:
            assert error is None
            assert snapshot is not None
            taken.append(snapshot)

        snapshots = self.store._snapshots
        cut = type(snapshots)._cut

        def noting(checkpoint: str, done: Taken) -> None:
            self.highest()
            self.at_cut = frozen(self.model)
            cut(snapshots, checkpoint, done)

        snapshots._cut = noting  # type: ignore[method-assign]
        self.store.snapshot(path, got)
        for _ in range(MOST_TURNS):
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


def begin(seed: int, steps: int, *, capacity: int = 1 << 40) -> SnapshotLife:
    """A life that has had some work."""
    rng = random.Random(seed)
    # The prepared list is so tiny that it may refuse a transaction, which counts as a fault.
    life = SnapshotLife(SimulatedDisk(seed, capacity=capacity), Model(), rng, faults=True)
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


def check_copy(disk: SimulatedDisk, model: Model) -> None:
    """A copy is there, and holds what it may."""
    lines: list[LogLine] = []
    environment = simulated_environment(disk, random.Random(1))
    store = MessageStore(environment, BACKUP, TinyParameters(), "test", log=lines.append)
    model.check(look(store), must_be_clean=False)
    assert [line.text for line in lines if line.level in (Level.CRITICAL, Level.WARNING)] == []
    assert store._ids.next > model.highest_rid
    assert store.close()


def check_source(disk: SimulatedDisk, model: Model, *, must_be_clean: bool = False) -> None:
    """The store itself is as it should be, and nothing of a snapshot hinders it."""
    life = StoreLife(disk, frozen(model), random.Random(1), must_be_clean=must_be_clean, faults=True)
    life.work(5)
    life.quiesce()
    life.close()


def test_a_copy_is_the_store_at_the_cut_while_work_goes_on() -> None:
    seen: Counter[str] = Counter()
    with tiny_rid_blocks():
        for seed in range(160):
            life = begin_again(seed, seed % 5 * 60, max(0, seed % 8 - 4))
            snapshot = life.take(seed % 3 * 15)
            if seed % 4 == 3:
                life.quiesce()
            if snapshot.overtaken:
                with pytest.raises(StoreError, match="ran short of room before it was copied"):
                    copy_it(life, snapshot)
                assert life.disk.names("/") == ["checkpoint", "store"]
                seen["overtaken"] += 1
            else:
                copy_it(life, snapshot)
                backup = life.disk.copy(seed)
                if seed % 2:
                    backup.crash(power_loss=True)
                check_copy(backup, life.at_cut)
                note(seen, life, snapshot)
            snapshot.release()
            life.work(20)
            life.quiesce()
            life.close()
            assert {type(error) for error in life.errors} <= {JournalFullError}
            assert not life.disk.is_directory(CHECKPOINT)
            check_source(life.disk, life.model, must_be_clean=True)
    missed = [
        name
        for name in (
            "copied",
            "overtaken",
            "nothing live",
            "laps",
            "dead files",
            "whole",
            "in doubt",
            "new",
            "relocated",
        )
        if seen[name] < 2
    ]
    assert not missed, seen


def note(seen: Counter[str], life: SnapshotLife, snapshot: Snapshot) -> None:
    """What was copied."""
    seen["copied"] += 1
    seen["in doubt"] += bool(life.at_cut.branches)
    for journal in snapshot.all_journals:
        if journal.cut is None:
            seen["new"] += 1
            continue
        seen["nothing live"] += journal.cut.end > 0 and not journal.size
        seen["laps"] += journal.cut.end * 128 > journal.geometry.capacity
        seen["whole"] += journal.cut.is_whole and bool(journal.size)
        numbers = range(journal.geometry.files)
        files = [file for file in map(journal.file_at, numbers) if file is not None]
        seen["dead files"] += bool(journal.size) and any(not journal.bytes_in(file) for file in files)
    seen["relocated"] += any(journal.writer.relocated for journal in life.store.journals.values())


def test_a_second_copy_and_a_second_snapshot() -> None:
    with tiny_rid_blocks():
        for seed in range(10):
            life = begin(seed, 60)
            first = life.take()
            before = life.at_cut
            second = life.take(3, "/checkpoint-2")
            if first.overtaken or second.overtaken:
                continue
            copy_it(life, second)
            check_copy(life.disk, life.at_cut)
            second.release()
            second.release()
            settle(life)
            assert "checkpoint-2" not in life.disk.names("/")
            for name in ("one", "two"):
                copy_snapshot(simulated_environment(life.disk, life.rng), first, f"/{name}")
                life.disk.rename(BACKUP, f"/{name}-aside")
                life.disk.rename(f"/{name}", BACKUP)
                check_copy(life.disk, before)
            life.close()
            with pytest.raises(StoreError, match="/three: the snapshot was let go before it was copied"):
                copy_snapshot(simulated_environment(life.disk, life.rng), first, "/three")


def test_a_crash_at_any_call_leaves_the_store_and_a_whole_copy_or_none() -> None:
    found: Counter[Found] = Counter()

    def visit(call: Call, life: SnapshotLife, at_cut: Model | None) -> None:
        life.highest()
        for power_loss in (False, True):
            disk = call.killed(life.rng.getrandbits(32), power_loss=power_loss)
            kind = found_in(disk)
            found[kind] += 1
            if kind is Found.VERSION_2:
                assert at_cut is not None
                check_copy(disk, at_cut)
            if found.total() % 5 == 0:
                check_source(disk, life.model)

    with tiny_rid_blocks():
        for seed in range(12):
            life = begin(seed, 60)
            life.quiesce()
            life.disk.watch = lambda call, life=life: visit(call, life, None)  # type: ignore[misc]
            snapshot = life.take()
            life.disk.watch = lambda call, life=life: visit(call, life, life.at_cut)  # type: ignore[misc]
            if not snapshot.overtaken:
                copy_it(life, snapshot)
            snapshot.release()
            life.store.collect()
            life.disk.watch = None
            life.close()
    assert found[Found.VERSION_2] > 50
    assert found[Found.NOTHING] > 1000


def found_in(disk: SimulatedDisk) -> Found:
    """What is at the copy's place, after what a start does first."""
    if not disk.is_directory(BACKUP):
        return Found.NOTHING
    directory = StoreDirectory(simulated_environment(disk, random.Random(1)), BACKUP, "test")
    lock = directory.lock()
    directory.settle()
    lock.release()
    return directory.look()


def test_a_copy_goes_where_a_crash_left_a_beginning() -> None:
    found = set()
    with tiny_rid_blocks():
        for seed in range(60):
            life = begin(seed % 3, 60)
            life.quiesce()
            calls = life.disk.calls
            life.take()
            life.disk.kill_at = calls + 5 + seed * 4
            with contextlib.suppress(Killed):
                copy_it(life, life.take(0, "/checkpoint-2"))
            life.disk.crash(power_loss=bool(seed % 2))
            again = SnapshotLife(life.disk, life.model, life.rng)
            for name in ("/checkpoint", "/checkpoint-2"):
                remove(life.disk, name)
            whole = found_in(life.disk) is Found.VERSION_2
            found.add(whole)
            snapshot = again.take()
            if whole:
                with pytest.raises(StoreError, match=r"/backup: there is something already \(rhm\)"):
                    copy_it(again, snapshot)
                check_copy(life.disk, life.at_cut)
            else:
                copy_it(again, snapshot)
                check_copy(life.disk, again.at_cut)
    assert found == {False, True}


def remove(disk: SimulatedDisk, path: str) -> None:
    """A checkpoint's directory."""
    for each in (path, path + ".tmp"):
        if disk.is_directory(each):
            for name in disk.names(each):
                disk.remove(f"{each}/{name}")
            disk.remove_directory(each)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("exists", [False, True])
def test_a_call_that_fails_leaves_nothing_of_the_copy(code: int, exists: bool) -> None:
    with tiny_rid_blocks():
        life = begin(3, 60)
        snapshot = life.take()
        life.quiesce()
        assert not snapshot.overtaken
        if exists:
            life.disk.make_directory(BACKUP)
        life.disk.log = []
        copy_snapshot(simulated_environment(life.disk, life.rng), snapshot, "/first")
        calls, life.disk.log = life.disk.log, None
        before = life.disk.names("/")
        for number, call in enumerate(calls[exists * 2 :]):
            start = life.disk.calls
            life.disk.fail_at = {start + number: code}
            with pytest.raises(
                StoreError,
                match=r"^/(backup.*)?: .* cannot be .*: (No space left|Input/output error)",
            ) as caught:
                copy_it(life, snapshot)
            assert "\n" not in str(caught.value)
            assert life.disk.names("/") == before, (number, call)
            assert not exists or life.disk.names(BACKUP) == [], (number, call)
            assert not snapshot.is_released
        life.disk.fail_at = {}
        copy_it(life, snapshot)
        check_copy(life.disk, life.at_cut)
        life.close()
        check_source(life.disk, life.model, must_be_clean=True)


def test_a_full_disk_leaves_nothing_of_the_copy() -> None:
    with tiny_rid_blocks():
        life = begin(4, 60)
        snapshot = life.take()
        life.quiesce()
        life.disk.tree.capacity = life.disk.tree.used + 10_000
        with pytest.raises(StoreError, match="No space left on device; make room"):
            copy_it(life, snapshot)
        assert life.disk.names("/") == ["checkpoint", "store"]
        assert life.disk.tree.used <= life.disk.tree.capacity
        life.close()
        check_source(life.disk, life.model, must_be_clean=True)


def test_a_bad_sector_is_told() -> None:
    with tiny_rid_blocks():
        life = begin(5, 60)
        life.quiesce()
        snapshot = life.take()
        journal = next(each for each in snapshot.journals if each.size)
        assert journal.cut is not None
        for sector in (0, 1):
            life.disk.read_fails = {(journal.path_of(journal.cut.first), sector)}
            with pytest.raises(StoreError, match="jdat: the snapshot cannot be copied: Input/output error"):
                copy_it(life, snapshot)
            assert life.disk.names("/") == ["checkpoint", "store"]


@pytest.mark.parametrize("is_full", [False, True])
def test_a_snapshot_that_cannot_be_taken_leaves_nothing(is_full: bool) -> None:
    """The disk is full, or there is something where the catalogue's copy should go."""
    with tiny_rid_blocks():
        life = begin(6, 60)
        life.quiesce()
        errors: list[Exception | None] = []
        for _ in range(20):
            if is_full:
                life.disk.fail_at = {life.disk.calls: errno.ENOSPC}
            else:
                life.disk.make_directory(CHECKPOINT)
            life.store.snapshot(CHECKPOINT, lambda snapshot, error: errors.append(error))
            for _ in range(100):
                life.store.collect(None)
            if not is_full:
                life.disk.remove_directory(CHECKPOINT)
            life.disk.fail_at = {}
        text = "No space left on device" if is_full else "there is something already"
        assert [str(error) for error in errors if text not in str(error)] == []
        assert len(errors) == 20
        assert all(str(error).startswith("a snapshot cannot be taken: ") for error in errors)
        assert CHECKPOINT not in life.disk.names("/")
        pins = [pin for journal in life.store.journals.values() for pin in journal.writer._space._pins]
        assert not any(pin.holds for pin in pins)
        life.delete_queue()
        life.quiesce()
        life.close()
        check_source(life.disk, life.model, must_be_clean=True)


def test_no_snapshot_of_a_store_in_which_a_journal_failed() -> None:
    with tiny_rid_blocks():
        life = begin(7, 60)
        life.quiesce()
        life.faults = True
        queue = life.queues()[0]
        errors: list[Exception | None] = []
        life.disk.fail_at = dict.fromkeys(range(life.disk.calls, life.disk.calls + 3), errno.EIO)
        while queue.journal is not None and queue.journal.writer.failure is None:
            life.enqueue()
            life.store.start()
            life.store.collect(None)
        life.store.snapshot(CHECKPOINT, lambda snapshot, error: errors.append(error))
        for _ in range(100):
            life.store.collect(None)
        assert len(errors) == 1
        assert "a snapshot cannot be taken: " in str(errors[0])
        assert "takes no more records" in str(errors[0])


# ---- pins ----


class PinningLife(JournalLife):
    """Pins the journal at random, and looks whether what is pinned stays as it is."""

    def __init__(self, disk: SimulatedDisk, seed: int = 0) -> None:
        super().__init__(disk, seed)
        self.chance = random.Random(seed)
        self.pinned: list[tuple[Cut, bytes]] = []

    def begin(self) -> Step | None:
        self.look()
        step = super().begin()
        self.look()
        return step

    def finish(self) -> None:
        super().finish()
        self.look()
        if self.chance.random() < 0.15 and len(self.pinned) < 3:
            cut = self.writer.cut()
            self.pinned.append((cut, self._read(cut)))
            self.counts["pinned"] += 1
        elif self.pinned and self.chance.random() < 0.05:
            self.pinned.pop(self.chance.randrange(len(self.pinned)))[0].pin.holds = False

    def look(self) -> None:
        """Compare."""
        for cut, content in list(self.pinned):
            if not cut.pin.holds:
                self.pinned.remove((cut, content))
                self.counts["broken"] += 1
            else:
                assert self._read(cut) == content, f"{cut}: overwritten though it was pinned"

    def _read(self, cut: Cut) -> bytes:
        start = cut.first * self.geometry.data_size // 128
        return self.storage.read(start, (cut.end - start) * 128) if cut.end > start else b""


def matrix(name: str, shape: Shape, life: type[JournalLife], share: float) -> CrashMatrix:
    made = CrashMatrix(shape, life_class=life, share=share, continued=0.02)
    for seed in range(8):
        made.run(seed, 250)
    return made


@pytest.mark.parametrize(
    "shape",
    [Shape(4, 16, 300, "any"), Shape(4, 64, 1200, "stuck"), Shape(8, 16, 4000, "last"), Shape(3, 48, 700, "any", 0.6)],
)
def test_pinned_files_stay_until_the_pin_is_broken_and_crashes_change_nothing(shape: Shape) -> None:
    seen = matrix("pinned", shape, PinningLife, 0.05).counts
    assert seen["pinned"] > 50
    assert seen["broken"] > 20
    assert seen["laps"] > 5
    assert seen["kills"] > 100


@pytest.mark.parametrize("order", ["first", "any", "stuck"])
def test_a_pin_never_has_a_removal_refused(order: str) -> None:
    refused: Counter[str] = Counter()
    pinned = broken = 0
    for life_class in (JournalLife, PinningLife):
        for seed in range(12):
            life = traffic(life_class, seed, order)
            pinned += life.counts["pinned"]
            broken += life.counts["broken"]
            for kind, count in life.refused.items():
                refused[f"{life_class.__name__} {kind}"] += count
    assert pinned > 100
    assert broken > 50
    assert [kind for kind in refused if "dequeue" in kind or "commit" in kind or "abort" in kind] == []
    assert refused["PinningLife enqueue"] <= refused["JournalLife enqueue"] * 1.1 + 20, refused


def traffic(life_class: type[JournalLife], seed: int, order: str) -> JournalLife:
    """A ring at its threshold, round and round."""
    disk, rng = SimulatedDisk(seed), random.Random(seed)
    make(disk, Geometry(8, 64 * 512))
    life = life_class(disk, seed)
    rid = 0
    for _ in range(1500):
        rid += 1
        filled = life.enqueue(rid, rng.randbytes(rng.randint(0, 900))) and rng.random() < 0.6
        free = life.free
        if free and not filled:
            rid += 1
            life.dequeue(
                rid, free[{"first": 0, "any": rng.randrange(len(free)), "stuck": min(1, len(free) - 1)}[order]]
            )
        if rng.random() < 0.2:
            life.drain()
    return life
