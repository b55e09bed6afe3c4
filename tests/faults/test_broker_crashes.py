"""The whole broker, killed at calls that change the disk, and stopped: see `broker_matrix`.

Ten tests of 100 kill points each belong to every run. `QSTORE_SOAK_SEEDS=1000 pytest -m soak` has some 400,000.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

from tests.faults.broken_brokers import BROKEN
from tests.faults.broker_matrix import BrokerMatrix
from tests.faults.store_model import BrokenPromiseError
from tests.faults.store_simulation import tiny_rid_blocks

KILL_POINTS = 100  # of each of the tests
SOAK_SEEDS = int(os.environ.get("QSTORE_SOAK_SEEDS", "0"))  # each has some 400 kill points
SEEDS_FOR_BROKEN = range(300, 360)


@pytest.fixture(autouse=True)
def tiny_blocks() -> Iterator[None]:
    with tiny_rid_blocks():
        yield


@pytest.fixture(autouse=True)
def quiet_logs() -> Iterator[None]:
    """What the broker logs of sessions that fail, as some are meant to."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("number", range(10))
def test_what_was_promised_is_kept_whenever_the_broker_dies(number: int) -> None:
    matrix = BrokerMatrix(share=0.15)
    seed = number * 1000
    while matrix.kill_points < KILL_POINTS:
        matrix.run(seed)
        seed += 1
    assert matrix.delivered > 0


def test_a_broker_that_is_stopped_keeps_everything_and_marks_what_was_delivered() -> None:
    matrix = BrokerMatrix(share=0.0)
    for seed in range(40):
        matrix.run(seed, lives=3, steps=150)
    assert matrix.stops > 40


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100_000, 100_000 + SOAK_SEEDS))
def test_what_was_promised_is_kept_for_hours(seed: int) -> None:
    matrix = BrokerMatrix()
    matrix.run(seed)
    assert matrix.kill_points


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_broker_is_found_out(name: str) -> None:
    matrix = BrokerMatrix(share=0.15)
    with BROKEN[name](), pytest.raises(BrokenPromiseError):
        run_all(matrix, SEEDS_FOR_BROKEN)


def run_all(matrix: BrokerMatrix, seeds: range) -> None:
    for seed in seeds:
        matrix.run(seed)
