"""The whole store, killed at every call: see `store_matrix`.

Two histories with some 300 kill points each belong to every run, and each day has others: see
`tests/support/profiles.py`. `QSTORE_SOAK_SEEDS=1000 pytest -m soak` has some 500,000.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

import pytest

import qstore.store.live.growth as growth
import qstore.store.live.transactions as transactions
from tests.faults.broken_stores import BROKEN, BROKEN_LARGE
from tests.faults.store_harness import CompressingLife, GrowingLife, LargeLife
from tests.faults.store_matrix import CrashMatrix
from tests.faults.store_model import BrokenPromiseError
from tests.faults.store_simulation import tiny_rid_blocks
from tests.support.compiled import replaces
from tests.support.profiles import is_nightly, seeds_of_the_day

SOAK_SEEDS = int(os.environ.get("QSTORE_SOAK_SEEDS", "0"))  # each has some 500 kill points
SEEDS_FOR_BROKEN = range(340, 440)
FINDS: Final = {
    "journal removed before its queue": 343,
    "list before the records": 344,
    "list after the commits": 363,
    "forgotten before the outcomes": 351,
    "a group that stays open": 372,
}
"""The seed that finds it, where that is not the first one. It is tried first: others follow when it no longer does."""


@pytest.fixture(autouse=True)
def tiny_blocks() -> Iterator[None]:
    with tiny_rid_blocks():
        yield


@pytest.mark.parametrize("part", range(2))
def test_promises_hold_under_every_crash(part: int) -> None:
    matrix = CrashMatrix(share=0.5)
    for seed in seeds_of_the_day(2)[part::2]:
        matrix.run(seed)
    assert matrix.kill_points > 50
    assert matrix.counts["answered"] > 0 or not is_nightly()


@pytest.mark.parametrize("part", range(2))
def test_promises_hold_with_journals_that_grow(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "_IDLE_LOOKS", 0)
    matrix = CrashMatrix(share=0.08, life_class=GrowingLife)
    for seed in seeds_of_the_day(2)[part::2]:
        matrix.run(seed, steps=120)
    assert matrix.kill_points > 50
    assert matrix.counts["grown"] > 0


def test_promises_hold_with_queues_that_compress() -> None:
    matrix = CrashMatrix(share=0.15, life_class=CompressingLife)
    for seed in seeds_of_the_day(2):
        matrix.run(seed, steps=90)
    assert matrix.kill_points > 50
    assert matrix.counts["compressed"] > 0


@replaces
@pytest.mark.parametrize("part", range(2))
def test_large_transactions_are_whole_under_every_crash(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "OUTCOME_STEP", 1)
    matrix = CrashMatrix(share=0.3, life_class=LargeLife)
    for seed in seeds_of_the_day(2)[part::2]:
        matrix.run(seed, steps=200)
    assert matrix.kill_points > 50
    assert matrix.counts["large"] > 0


@replaces
@pytest.mark.soak
@pytest.mark.parametrize("seed", range(300_000, 300_000 + SOAK_SEEDS))
def test_large_transactions_are_whole_for_hours(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "OUTCOME_STEP", 1)
    matrix = CrashMatrix(life_class=LargeLife)
    matrix.run(seed, steps=120)
    assert matrix.kill_points


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(200_000, 200_000 + SOAK_SEEDS))
def test_journals_that_grow_for_hours(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "_IDLE_LOOKS", 0)
    matrix = CrashMatrix(life_class=GrowingLife)
    matrix.run(seed, steps=120)
    assert matrix.kill_points


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100_000, 100_000 + SOAK_SEEDS))
def test_promises_hold_for_hours(seed: int) -> None:
    matrix = CrashMatrix()
    matrix.run(seed)
    assert matrix.kill_points


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_store_is_found_out(name: str) -> None:
    with BROKEN[name](), pytest.raises(BrokenPromiseError):
        run_all(CrashMatrix(share=0.5), [FINDS.get(name, SEEDS_FOR_BROKEN[0]), *SEEDS_FOR_BROKEN])


@replaces
@pytest.mark.parametrize("name", BROKEN_LARGE)
def test_a_store_that_is_broken_where_large_transactions_are_written_is_found_out(name: str) -> None:
    with BROKEN_LARGE[name](), pytest.raises(BrokenPromiseError):
        run_all(CrashMatrix(share=0.5, life_class=LargeLife), [FINDS.get(name, SEEDS_FOR_BROKEN[0]), *SEEDS_FOR_BROKEN])


def run_all(matrix: CrashMatrix, seeds: list[int]) -> None:
    for seed in seeds:
        matrix.run(seed)
