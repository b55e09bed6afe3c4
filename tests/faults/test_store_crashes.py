"""The whole store, killed at every call: see `store_harness`.

Sixteen tests of 340 kill points each belong to every run. `QSTORE_SOAK_SEEDS=1000 pytest -m soak` has some 500,000.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.faults.broken_stores import BROKEN
from tests.faults.store_harness import CrashMatrix, tiny_rid_blocks
from tests.faults.store_model import BrokenPromiseError

KILL_POINTS = 340  # of each of the tests
SOAK_SEEDS = int(os.environ.get("QSTORE_SOAK_SEEDS", "0"))  # each has some 500 kill points
SEEDS_FOR_BROKEN = 12


@pytest.fixture(autouse=True)
def tiny_blocks() -> Iterator[None]:
    with tiny_rid_blocks():
        yield


@pytest.mark.parametrize("number", range(16))
def test_what_was_promised_is_kept_under_every_crash(number: int) -> None:
    matrix = CrashMatrix(share=0.5)
    seed = number * 1000
    while matrix.kill_points < KILL_POINTS:
        matrix.run(seed)
        seed += 1
    assert matrix.counts["answered"] > 0


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100_000, 100_000 + SOAK_SEEDS))
def test_what_was_promised_is_kept_for_hours(seed: int) -> None:
    matrix = CrashMatrix()
    matrix.run(seed)
    assert matrix.kill_points


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_store_is_found_out(name: str) -> None:
    with BROKEN[name](), pytest.raises(BrokenPromiseError):
        run_all(CrashMatrix(share=0.5), range(SEEDS_FOR_BROKEN))


# Until `store.journal.recovery` forgets what dequeues of a branch had no target when that branch is over.
@pytest.mark.xfail(raises=BrokenPromiseError, strict=True)
def test_a_branch_may_have_the_xid_of_one_that_is_over() -> None:
    run_all(CrashMatrix(share=0.5, reuses_xids=True), range(3))


def run_all(matrix: CrashMatrix, seeds: range) -> None:
    for seed in seeds:
        matrix.run(seed)
