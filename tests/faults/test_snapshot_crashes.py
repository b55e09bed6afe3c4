"""Snapshots on a simulated disk: the copy is the store as it was at the cut, whatever goes on, fails or crashes.

`tests/support/profiles.py` says which cases are run.
"""

from __future__ import annotations

import contextlib
import errno
import random
from collections import Counter

import pytest

from qstore.store.catalogue.store_directory import Found, StoreDirectory
from qstore.store.errors import JournalFullError, StoreError
from qstore.store.live.snapshot import Snapshot, copy_snapshot
from tests.faults.simulated_disk import Call, Killed, SimulatedDisk
from tests.faults.snapshot_life import (
    BACKUP,
    CHECKPOINT,
    SnapshotLife,
    begin,
    begin_again,
    check_copy,
    check_source,
    copy_it,
    settle,
)
from tests.faults.store_simulation import Model, simulated_environment, tiny_rid_blocks
from tests.support.profiles import is_due, today


def test_a_copy_is_the_store_at_the_cut_while_work_continues() -> None:
    seen: Counter[str] = Counter()
    with tiny_rid_blocks():
        for seed in today(range(160), 40):
            life = begin_again(seed, seed % 5 * 60, max(0, seed % 8 - 4))
            make_rare(seed % 5, life)
            snapshot = life.take(seed % 3 * 15)
            if seed % 4 == 3:
                life.quiesce()
            if snapshot.overtaken:
                with pytest.raises(StoreError, match="ran short of room and was overwritten before it was copied"):
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
        if seen[name] < 1
    ]
    assert not missed, seen


def make_rare(which: int, life: SnapshotLife) -> None:
    """Bring about what chance seldom does: a journal without live messages, or a queue that is being created."""
    if which == 1:
        for _ in range(10):
            life.purge()
        life.quiesce()
    elif which == 2:
        life.create_queue()


def note(seen: Counter[str], life: SnapshotLife, snapshot: Snapshot) -> None:
    """Content of the copy."""
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
    seen["relocated"] += any(journal.writer.compactor.copied for journal in life.store.journals.values())


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
            with pytest.raises(StoreError, match="/three: the snapshot was released before it was copied"):
                copy_snapshot(simulated_environment(life.disk, life.rng), first, "/three")


def test_a_crash_at_any_call_leaves_the_store_and_a_whole_copy_or_none() -> None:
    found: Counter[Found] = Counter()
    due = is_due(2)

    def visit(call: Call, life: SnapshotLife, at_cut: Model | None) -> None:
        life.highest()
        for power_loss in (False, True) if due() else ():
            disk = call.killed(life.rng.getrandbits(32), power_loss=power_loss)
            kind = found_in(disk)
            found[kind] += 1
            if kind is Found.VERSION_2:
                assert at_cut is not None
                check_copy(disk, at_cut)
            if found.total() % 5 == 0:
                check_source(disk, life.model)

    with tiny_rid_blocks():
        for seed in today(range(12), 3):
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
    assert found[Found.VERSION_2] > 5
    assert found[Found.NOTHING] > 100


def found_in(disk: SimulatedDisk) -> Found:
    """What is at the copy's place, after what a start does first."""
    if not disk.is_directory(BACKUP):
        return Found.NOTHING
    directory = StoreDirectory(simulated_environment(disk, random.Random(1)), BACKUP, "test")
    lock = directory.lock()
    directory.finish_interrupted()
    lock.release()
    return directory.look()


def test_a_copy_goes_where_a_crash_left_a_beginning() -> None:
    found = set()
    with tiny_rid_blocks():
        for seed in today(range(60), 20):
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
                with pytest.raises(StoreError, match=r"/backup: is not empty \(rhm\)"):
                    copy_it(again, snapshot)
                check_copy(life.disk, life.at_cut)
            else:
                copy_one(again, snapshot)
                check_copy(life.disk, again.at_cut)
    assert found == {False, True}


def copy_one(life: SnapshotLife, snapshot: Snapshot) -> None:
    """Copy a snapshot, or another one, when there is less traffic, if a journal was too short of room for it."""
    for _ in range(5):
        try:
            copy_it(life, snapshot)
        except StoreError as error:
            if "ran short of room and was overwritten before it was copied" not in str(error):
                raise
        else:
            return
        settle(life)
        remove(life.disk, "/checkpoint")
        snapshot = life.take(0)
    raise AssertionError("no snapshot can be copied")


def remove(disk: SimulatedDisk, path: str) -> None:
    """A checkpoint's directory."""
    for each in (path, path + ".tmp"):
        if disk.is_directory(each):
            for name in disk.names(each):
                disk.remove(f"{each}/{name}")
            disk.remove_directory(each)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("exists", [False, True])
def test_a_failing_call_leaves_nothing_of_the_copy(code: int, exists: bool) -> None:
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
        for number, call in today(list(enumerate(calls[exists * 2 :])), 25):
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
        with pytest.raises(StoreError, match="No space left on device; free some space"):
            copy_it(life, snapshot)
        assert life.disk.names("/") == ["checkpoint", "store"]
        assert life.disk.tree.used <= life.disk.tree.capacity
        life.close()
        check_source(life.disk, life.model, must_be_clean=True)


def test_a_bad_sector_is_reported() -> None:
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
        text = "No space left on device" if is_full else "already exists"
        assert [str(error) for error in errors if text not in str(error)] == []
        assert len(errors) == 20
        assert all(str(error).startswith("a snapshot cannot be taken: ") for error in errors)
        assert CHECKPOINT not in life.disk.names("/")
        pins = [pin for journal in life.store.journals.values() for pin in journal.writer.space.pins]
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
        errors: list[Exception | None] = []
        journals = life.store.journals.values()
        for _ in range(1000):
            life.disk.fail_at = dict.fromkeys(range(life.disk.calls, life.disk.calls + 3), errno.EIO)
            life.enqueue()
            life.store.start()
            life.store.collect(None)
            if any(journal.writer.failure is not None for journal in journals):
                break
        assert any(journal.writer.failure is not None for journal in journals)
        life.disk.fail_at = {}
        life.store.snapshot(CHECKPOINT, lambda snapshot, error: errors.append(error))
        for _ in range(100):
            life.store.collect(None)
        assert len(errors) == 1
        assert not life.disk.is_directory(CHECKPOINT)
        assert "a snapshot cannot be taken: " in str(errors[0])
        assert "accepts no more records" in str(errors[0])
