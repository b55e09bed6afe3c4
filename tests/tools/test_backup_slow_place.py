"""Backups of running stores to a distant place: the broker learns in time that its snapshot is still needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import qstore.store.backup.sources as running
from qstore.broker.management.objects.backup import LEASE_SECONDS
from qstore.store.backup.create import StoreBackup
from qstore.store.backup.repository import DiskRepository
from qstore.store.disk import OsDisk, OsWritableDisk
from qstore.store.environment import tool_environment
from qstore.store.live.snapshot import SharedSnapshot
from tests.support.opened_store import Calls, OpenedStore, message

_SLOW_SECONDS = 2.0


class Clock:
    """Time passes only while the place is asked for something."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


class _SlowRepository(DiskRepository):
    """Takes its time for each answer."""

    clock: Clock

    def names(self, folder: str) -> list[str]:
        self.clock.now += _SLOW_SECONDS
        return super().names(folder)

    def get(self, name: str, limit: int) -> bytes:
        self.clock.now += _SLOW_SECONDS
        return super().get(name, limit)


def test_backup_to_a_place_that_lists_its_files_slowly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, clock = OpenedStore(tool_environment(), tmp_path / "store"), Clock()
    journal = opened.make_queue("q")
    place = _SlowRepository(OsWritableDisk(), str(tmp_path / "place"))
    place.clock = clock
    monkeypatch.setattr(running, "time", clock)
    for number in range(20):
        opened.enqueue(journal, message(f"{number}".encode()))
        opened.flush(journal)
        back_up(opened, place, clock)
    assert len(list((tmp_path / "place" / "chunks").iterdir())) > LEASE_SECONDS / _SLOW_SECONDS
    opened.store.close()


def back_up(opened: OpenedStore, place: DiskRepository, clock: Clock) -> None:
    taken = Calls()
    opened.store.share_snapshot(taken)
    opened.wait(taken)
    shared, error = taken[0]
    assert error is None
    assert isinstance(shared, SharedSnapshot)
    until = clock.now + LEASE_SECONDS

    def copied(queue_ids: Sequence[int]) -> list[int]:
        nonlocal until
        assert clock.now < until, "the broker has released the snapshot"
        until = clock.now + LEASE_SECONDS
        return shared.copied(queue_ids)

    lock = place.lock()
    try:
        source = running.RunningSource(OsDisk(), str(shared.directory), shared.name, copied, shared.release)
        StoreBackup(tool_environment(), place, "test").run(source)
    finally:
        lock.release()
