"""The whole store, killed at every call: see `store_matrix`.

Sixteen tests of 320 kill points each belong to every run. `QSTORE_SOAK_SEEDS=1000 pytest -m soak` has some 500,000.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.faults.broken_stores import BROKEN
from tests.faults.store_matrix import CrashMatrix
from tests.faults.store_model import BrokenPromiseError
from tests.faults.store_simulation import tiny_rid_blocks

KILL_POINTS = 320  # of each of the tests
SOAK_SEEDS = int(os.environ.get("QSTORE_SOAK_SEEDS", "0"))  # each has some 500 kill points
SEEDS_FOR_BROKEN = range(340, 440)


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
        run_all(CrashMatrix(share=0.5), SEEDS_FOR_BROKEN)


def run_all(matrix: CrashMatrix, seeds: range) -> None:
    for seed in seeds:
        matrix.run(seed)
