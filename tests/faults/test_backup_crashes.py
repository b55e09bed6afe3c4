"""Backups and restores that are killed at every call: the store is untouched, backups are whole, and a second run
finishes.

`tests/support/profiles.py` says which calls are tried.
"""

from __future__ import annotations

import contextlib
import errno
import random
from collections import Counter
from collections.abc import Callable, Iterator
from unittest.mock import patch

import pytest

from qstore.store.backup.create import StoreBackup
from qstore.store.backup.repository import (
    DiskRepository,
    backup_names,
    check_mark,
    keep_latest,
    known_chunks,
    read_manifest,
    verify_chunks,
)
from qstore.store.backup.restore import restore
from qstore.store.backup.sources import stopped_store
from qstore.store.errors import StoreError
from qstore.store.repair.stopped_store import reported_errors
from tests.faults.simulated_disk import Call, SimulatedDisk
from tests.faults.store_simulation import PATH, TinyParameters, simulated_environment, tiny_rid_blocks
from tests.faults.test_import_crashes import base, run
from tests.support.profiles import today

PLACE, TARGET = "/backups", "/restored"
CHUNK = 2048


@pytest.fixture(autouse=True)
def tiny() -> Iterator[None]:
    modules = ("create", "repository", "restore")
    with contextlib.ExitStack() as patched:
        patched.enter_context(tiny_rid_blocks())
        patched.enter_context(patch("qstore.store.importing.store_import.StoreParameters", TinyParameters))
        for name in modules:
            patched.enter_context(patch(f"qstore.store.backup.{name}.CHUNK_SIZE", CHUNK))
        yield


class Backup:
    """Works on one disk."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk, self.repository = disk, DiskRepository(disk, PLACE)

    def make(self, seed: int, *, keep: int | None = None) -> str:
        lock = self.repository.lock()
        try:
            environment = simulated_environment(self.disk, random.Random(seed))
            with reported_errors(PATH), stopped_store(environment, self.disk, PATH) as source:
                result = StoreBackup(environment, self.repository, "test").run(source, verify=bool(seed % 2))
            if keep is not None:
                keep_latest(self.repository, PATH, keep)
        finally:
            lock.release()
        return result.manifest.id

    def names(self) -> list[str]:
        return backup_names(self.repository)

    def check(self) -> None:
        """Every backup that is there is whole."""
        for name in self.names():
            verify_chunks(self.repository, read_manifest(self.repository, name), lambda _: None)

    def restore(self, name: str) -> None:
        restore(self.disk, self.repository, read_manifest(self.repository, name), TARGET)


def tree(disk: SimulatedDisk, path: str) -> dict[str, bytes]:
    """All files below a directory, without locks."""
    found: dict[str, bytes] = {}
    for name in disk.names(path):
        below = f"{path}/{name}"
        if disk.is_directory(below):
            found |= {f"{name}/{each}": content for each, content in tree(disk, below).items()}
        elif not name.endswith("lock"):
            file = disk.open(below)
            found[name] = file.read(0, file.size)
            file.close()
    return found


def killed_at_each(disk: SimulatedDisk, count: int, work: Callable[[SimulatedDisk], object]) -> Iterator[SimulatedDisk]:
    """What the next process finds, for `count` of the calls."""
    rehearsal = disk.copy(1)
    rehearsal.calls = 0
    work(rehearsal)
    chosen, found = set(today(range(rehearsal.calls), count)), list[SimulatedDisk]()
    before = disk.calls

    def visit(call: Call) -> None:
        for power_loss in (False, True) if call.number - before in chosen else ():
            found.append(call.killed(call.number, power_loss=power_loss))

    disk.watch = visit
    work(disk)
    disk.watch = None
    assert found
    yield from found


def test_a_backup_that_is_killed() -> None:
    disk = base(clean=True)
    first = Backup(disk).make(1)
    run(disk, 3, second=True)
    disk.sync_directory(f"{PATH}/rhm")
    store, seen = tree(disk, PATH), Counter[str]()
    for killed in killed_at_each(disk, 5, lambda disk: Backup(disk).make(2)):
        assert tree(killed, PATH) == store
        backup = Backup(killed)
        names = backup.names()
        assert names[0] == first or first in names
        seen["new" if len(names) > 1 else "old"] += 1
        backup.check()
        name = backup.make(5)
        backup.check()
        assert len(backup.names()) == len(names) + 1
        backup.restore(name)
        assert tree(killed, TARGET) == store
    assert seen["old"] + seen["new"] > 5, seen


def test_backups_that_are_removed() -> None:
    disk = base(clean=True)
    backup = Backup(disk)
    backup.make(1)
    run(disk, 3, second=True)
    latest = backup.make(2)
    store = tree(disk, PATH)
    for killed in killed_at_each(disk, 5, lambda disk: keep_latest(DiskRepository(disk, PLACE), PATH, 1)):
        after = Backup(killed)
        after.check()
        assert latest in after.names()
        keep_latest(after.repository, PATH, 1)
        assert after.names() == [latest]
        manifest = read_manifest(after.repository, latest)
        assert known_chunks(after.repository) == manifest.chunks
        after.restore(latest)
        assert tree(killed, TARGET) == store


def test_a_restore_that_is_killed() -> None:
    disk = base(clean=True)
    name = Backup(disk).make(1)
    store, seen = tree(disk, PATH), Counter[str]()
    for killed in killed_at_each(disk, 8, lambda disk: Backup(disk).restore(name)):
        is_there = killed.is_directory(TARGET) and bool(killed.names(TARGET))
        seen["there" if is_there else "not there"] += 1
        if is_there:
            assert {key: value for key, value in tree(killed, TARGET).items() if key != "RESTORING"} == store
        if not is_there or killed.is_file(f"{TARGET}/RESTORING"):
            Backup(killed).restore(name)
        assert tree(killed, TARGET) == store
        assert not killed.is_directory(TARGET + ".restoring")
    assert seen["there"] + seen["not there"] > 10, seen


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failing_call_is_reported(code: int) -> None:
    original = base(clean=True)
    name = Backup(original).make(1)
    store, told = tree(original, PATH), 0
    for number in today(range(60), 6):
        for work in ("backup", "restore"):
            disk = original.copy(number)
            disk.fail_at = {number: code}
            try:
                Backup(disk).make(2) if work == "backup" else Backup(disk).restore(name)
            except (StoreError, OSError) as error:
                told += "\n" not in str(error)
            disk.fail_at = {}
            disk.crash(power_loss=bool(number % 2))
            backup = Backup(disk)
            check_mark(backup.repository)
            backup.check()
            assert tree(disk, PATH) == store
            if not disk.is_file(f"{TARGET}/rhm/STORE") or disk.is_file(f"{TARGET}/RESTORING"):
                backup.restore(name)
            assert tree(disk, TARGET) == store
    assert told > 3
