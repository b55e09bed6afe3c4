"""The whole store, killed at every call: see `store_simulation`.

Two histories with some 300 kill points each belong to every run, and each day has others: see
`tests/support/profiles.py`. `QSTORE_SOAK_SEEDS=1000 pytest -m soak` has some 500,000.
"""

from __future__ import annotations

import os
from typing import Any, Final
from unittest.mock import patch

import pytest

import qstore.store.live.commit as commit
import qstore.store.live.growth as growth
import qstore.store.live.returns as returns
import qstore.store.live.transactions as transactions
from qstore.formats.kernels.bodies import Bodies, SizeField
from qstore.store.disk import read_whole
from qstore.store.errors import StoreError
from qstore.store.journal.write.growth import make_ring_changes
from qstore.store.journal.write.version_2_writer import Version2Writer
from tests.faults.broken_stores import BROKEN, BROKEN_LARGE
from tests.faults.simulated_disk import SimulatedDisk
from tests.faults.simulator import BrokenPromiseError, Planted
from tests.faults.store_simulation import (
    CompressingLife,
    FanningLife,
    GrowingLife,
    LargeLife,
    ReturningLife,
    RunningLife,
    StoreCrashes,
    StoreLife,
    TransactingLife,
)
from tests.support.compiled import replaces
from tests.support.profiles import is_nightly, seeds_of_the_day

pytestmark = pytest.mark.usefixtures("tiny_blocks")

SOAK_SEEDS = int(os.environ.get("QSTORE_SOAK_SEEDS", "0"))  # each has some 500 kill points
SEEDS_FOR_BROKEN: Final = range(340, 440)
OPEN_GROUP: Final = "a group that stays open"  # of transactions over the same queues
PLANTED: Final = Planted(
    BROKEN,
    lambda name: StoreCrashes(share=0.5, life_class=TransactingLife if name == OPEN_GROUP else StoreLife),
    SEEDS_FOR_BROKEN,
    {
        OPEN_GROUP: 341,
        "xid again before it is forgotten": 346,
        "highest flush recorded": 346,
        "journal removed before its queue": 342,
        "commit before the records of others": 341,
        "list after the commits": 341,
    },
)
PLANTED_LARGE: Final = Planted(
    BROKEN_LARGE, lambda _: StoreCrashes(share=0.5, life_class=LargeLife), SEEDS_FOR_BROKEN, {}
)


@pytest.mark.core
@pytest.mark.parametrize("part", range(2))
def test_promises_hold_under_every_crash(part: int) -> None:
    crashes = StoreCrashes(share=0.5)
    for seed in seeds_of_the_day(2)[part::2]:
        crashes.run(seed)
    assert crashes.kill_points > 50
    assert crashes.counts["answered"] > 0 or not is_nightly()


@pytest.mark.parametrize("part", range(2))
def test_promises_hold_with_journals_that_grow(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "_IDLE_LOOKS", 0)
    crashes = StoreCrashes(share=0.08, life_class=GrowingLife)
    for seed in seeds_of_the_day(2)[part::2]:
        crashes.run(seed, steps=90)
    assert crashes.kill_points > 50
    assert crashes.counts["grown"] > 0


def _make_unsynced(*changes: Any) -> list[Exception | None]:
    """The new files of a ring are not synced."""
    with patch.object(SimulatedDisk, "sync_each", lambda _, groups: [None] * len(groups)):
        return make_ring_changes(*changes)


@replaces
def test_files_added_to_a_ring_that_are_not_synced_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "make_ring_changes", _make_unsynced)
    crashes = StoreCrashes(share=0.2, life_class=GrowingLife)
    with pytest.raises((BrokenPromiseError, StoreError)):
        crashes.run_all(SEEDS_FOR_BROKEN)


@pytest.mark.core
@pytest.mark.parametrize("part", range(2))
def test_promises_hold_for_each_message_of_a_run(part: int) -> None:
    crashes = StoreCrashes(share=0.3, life_class=RunningLife)
    for seed in seeds_of_the_day(2)[part::2]:
        crashes.run(seed, steps=70)
    assert crashes.kill_points > 50
    assert crashes.counts["in runs"] > 0


def test_promises_hold_for_runs_to_several_queues() -> None:
    crashes = StoreCrashes(share=0.1, life_class=FanningLife)
    for seed in seeds_of_the_day(4):
        crashes.run(seed, steps=70)
    assert crashes.kill_points > 50
    assert crashes.counts["to several"] > 0


@replaces
def test_a_run_that_one_of_several_queues_has_less_of_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Version2Writer, "enqueue_run", _without_the_last)
    crashes = StoreCrashes(share=0.1, life_class=FanningLife)
    with pytest.raises(BrokenPromiseError):
        crashes.run_all(SEEDS_FOR_BROKEN)


_enqueue_run: Final = Version2Writer.enqueue_run


def _without_the_last(
    self: Version2Writer, rid: int, head: bytes, field: SizeField | None, bodies: Bodies, first: int, count: int
) -> int:
    """Some journals get a message less than they say."""
    less = rid % 3 == 0 and first == 0 and count > 2
    done = _enqueue_run(self, rid, head, field, bodies, first, count - less)
    return count if less and done == count - 1 else done


@replaces
def test_returns_are_known_of_the_right_messages_after_every_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(returns, "_SPARE", 256)
    crashes = StoreCrashes(share=0.03, life_class=ReturningLife)
    for seed in seeds_of_the_day(12):
        crashes.run(seed)
    assert crashes.kill_points > 20
    assert crashes.counts["counted"] > 0


@replaces
def test_returns_of_messages_that_are_gone_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(returns, "_SPARE", 256)
    monkeypatch.setattr(returns.Returns, "read", _read_all)
    crashes = StoreCrashes(share=0.1, life_class=ReturningLife)
    with pytest.raises(BrokenPromiseError, match="returns of"):
        crashes.run_all(SEEDS_FOR_BROKEN)


def _read_all(self: Any, **_: bool) -> None:
    path = self._directory.part(returns.NAME)
    content = read_whole(self._disk, path, 1 << 20) if self._disk.is_file(path) else b""
    self._end = len(content) // 32 * 32
    for queue_id, first, count, number in returns._decoded(content, self._store_id):
        for rid in range(first, first + count):
            self._set(queue_id, rid, number)


def test_promises_hold_with_queues_that_compress() -> None:
    crashes = StoreCrashes(share=0.15, life_class=CompressingLife)
    for seed in seeds_of_the_day(2):
        crashes.run(seed, steps=70)
    assert crashes.kill_points > 50
    assert crashes.counts["compressed"] > 0


@replaces
@pytest.mark.parametrize("part", range(2))
def test_large_transactions_are_whole_under_every_crash(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "OUTCOME_STEP", 1)
    monkeypatch.setattr(transactions, "JOURNALS_STEP", 1)
    monkeypatch.setattr(commit, "FLUSHES_AT_ONCE", 2)
    crashes = StoreCrashes(share=0.3, life_class=LargeLife)
    for seed in seeds_of_the_day(2)[part::2]:
        crashes.run(seed, steps=150)
    assert crashes.kill_points > 50
    assert crashes.counts["large"] > 0


@replaces
@pytest.mark.soak
@pytest.mark.parametrize("seed", range(300_000, 300_000 + SOAK_SEEDS))
def test_large_transactions_are_whole_for_hours(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "OUTCOME_STEP", 1)
    monkeypatch.setattr(transactions, "JOURNALS_STEP", 1)
    monkeypatch.setattr(commit, "FLUSHES_AT_ONCE", 2)
    crashes = StoreCrashes(life_class=LargeLife)
    crashes.run(seed, steps=120)
    assert crashes.kill_points


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(200_000, 200_000 + SOAK_SEEDS))
def test_journals_that_grow_for_hours(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "_IDLE_LOOKS", 0)
    crashes = StoreCrashes(life_class=GrowingLife)
    crashes.run(seed, steps=90)
    assert crashes.kill_points


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(400_000, 400_000 + SOAK_SEEDS))
def test_promises_hold_for_each_message_of_a_run_for_hours(seed: int) -> None:
    crashes = StoreCrashes(life_class=RunningLife)
    crashes.run(seed)
    assert crashes.kill_points


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100_000, 100_000 + SOAK_SEEDS))
def test_promises_hold_for_hours(seed: int) -> None:
    crashes = StoreCrashes()
    crashes.run(seed)
    assert crashes.kill_points


@pytest.mark.parametrize("name", PLANTED.bugs)
def test_a_broken_store_is_detected(name: str) -> None:
    assert PLANTED.is_found(name)


@replaces
@pytest.mark.parametrize("name", PLANTED_LARGE.bugs)
def test_a_store_with_broken_large_transactions_is_detected(name: str) -> None:
    assert PLANTED_LARGE.is_found(name)
