"""The whole broker, killed at calls that change the disk, and stopped: see `broker_matrix`.

Four histories with some 80 kill points each belong to every run, other ones each day: see `tests/support/profiles.py`.
In every other history messages go out of memory as soon as they can, and come back.
`QSTORE_SOAK_SEEDS=1000 pytest -m soak` has some 400,000.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Final

import pytest

from tests.faults.broken_brokers import BROKEN, BROKEN_BASIC, BROKEN_PAGING
from tests.faults.broker_matrix import BrokerMatrix
from tests.faults.broker_process import tiny_portions, tiny_turns
from tests.faults.store_model import BrokenPromiseError
from tests.faults.store_simulation import tiny_rid_blocks
from tests.support.compiled import is_compiled, replaces
from tests.support.profiles import seeds_of_the_day

SOAK_SEEDS = int(os.environ.get("QSTORE_SOAK_SEEDS", "0"))  # each has some 400 kill points
SEEDS_FOR_BROKEN = range(300, 360)
FINDS: Final = {
    "transfer to several queues completed before the sync": 306,
    "accept completed before the sync": 320,
    "commands completed before the sync": 305,
    "commands completed with an earlier flush": 301,
    "offered with an earlier flush": 313,
    "moved before the destination is synced": 304,
    "transaction in single records": 303,
    "commit completed before the sync": 304,
    "released to the end": 303,
    "released without a mark": 303,
    "delivered messages not saved": 303,
    "all saved as delivered": 303,
    "another message of the paging file": 303,
    "not dispatched when it was read ahead": 306,
    "deletion completed before the store has it": 314,
    "compaction without what is out": 416,
    "confirmed before the sync": 320,
    "acknowledged in memory only": 304,
    "given back without a mark": 321,
}
"""The seed that finds it, where that is not the first one. It is tried first: others follow when it no longer does."""


@pytest.fixture(autouse=True)
def tiny_blocks() -> Iterator[None]:
    with tiny_rid_blocks(), tiny_portions():
        yield


@pytest.fixture(autouse=True)
def quiet_logs() -> Iterator[None]:
    """What the broker logs of sessions that fail, as some are meant to."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("part", range(2))
def test_promises_hold_whenever_the_broker_dies(part: int) -> None:
    matrix = BrokerMatrix(share=0.15, pages=part == 1)
    for seed in seeds_of_the_day(4)[part::2]:
        matrix.run(seed)
    assert matrix.kill_points > 20
    assert matrix.delivered > 0
    assert is_compiled or not matrix.pages or matrix.away > 20


def test_promises_to_0_9_1_clients_hold() -> None:
    """Confirms, acknowledgements and tx beside clients of 0-10 on the same queues."""
    matrix = BrokerMatrix(share=0.08, basic=True)
    for seed in seeds_of_the_day(1):
        matrix.run(seed)
    assert matrix.kill_points > 10
    assert matrix.delivered > 0


@replaces
def test_large_transactions_are_whole_whenever_the_broker_dies() -> None:
    """They are written, and take effect, a message at a time, and others publish and accept in between."""
    matrix = BrokerMatrix(share=0.15)
    with tiny_turns():
        for seed in seeds_of_the_day(2):
            matrix.pages = matrix.basic = seed % 2 == 1
            matrix.run(seed)
    assert matrix.kill_points > 20
    assert matrix.delivered > 0


def test_promises_hold_where_messages_are_delivered_before_the_sync() -> None:
    """They may be lost with the broker; what was completed or confirmed, and what was accepted, is as on any queue."""
    matrix = BrokerMatrix(share=0.08, early=True)
    for seed in (*seeds_of_the_day(1), 5_000):  # whatever the day, there are messages that nobody was promised
        matrix.pages = matrix.basic = seed % 2 == 1
        matrix.run(seed)
    assert matrix.kill_points > 20
    assert matrix.unpromised > 0


def test_a_broker_that_is_stopped_keeps_everything_and_marks_what_was_delivered() -> None:
    matrix = BrokerMatrix(share=0.0)
    for seed in seeds_of_the_day(10):
        matrix.pages = seed % 2 == 1
        matrix.run(seed, lives=3, steps=150)
    assert matrix.stops > 0


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100_000, 100_000 + SOAK_SEEDS))
def test_promises_hold_for_hours(seed: int) -> None:
    matrix = BrokerMatrix(pages=seed % 2 == 1, basic=seed % 3 == 0, early=seed % 5 == 0)
    matrix.run(seed)
    assert matrix.kill_points


@replaces
@pytest.mark.soak
@pytest.mark.parametrize("seed", range(200_000, 200_000 + SOAK_SEEDS))
def test_large_transactions_are_whole_for_hours(seed: int) -> None:
    matrix = BrokerMatrix(pages=seed % 2 == 1, basic=seed % 3 == 0, early=seed % 5 == 0)
    with tiny_turns():
        matrix.run(seed)
    assert matrix.kill_points


@replaces
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_broker_is_found_out(name: str) -> None:
    matrix = BrokerMatrix(share=0.15)
    with BROKEN[name](), pytest.raises(BrokenPromiseError):
        run_all(matrix, [FINDS.get(name, SEEDS_FOR_BROKEN[0]), *SEEDS_FOR_BROKEN])


@replaces
@pytest.mark.parametrize("name", BROKEN_PAGING)
def test_a_broker_that_is_broken_where_messages_go_out_is_found_out(name: str) -> None:
    matrix = BrokerMatrix(share=0.05, pages=True)
    with BROKEN_PAGING[name](), pytest.raises(BrokenPromiseError):
        run_all(matrix, [FINDS.get(name, SEEDS_FOR_BROKEN[0]), *SEEDS_FOR_BROKEN])


@replaces
@pytest.mark.parametrize("name", BROKEN_BASIC)
def test_a_broker_that_is_broken_for_clients_of_0_9_1_is_found_out(name: str) -> None:
    matrix = BrokerMatrix(share=0.02, basic=True)
    with BROKEN_BASIC[name](), pytest.raises(BrokenPromiseError):
        run_all(matrix, [FINDS.get(name, SEEDS_FOR_BROKEN[0]), *SEEDS_FOR_BROKEN])


def run_all(matrix: BrokerMatrix, seeds: list[int]) -> None:
    for seed in seeds:
        matrix.run(seed)
