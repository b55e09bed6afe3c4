"""The whole broker, killed at calls that change the disk, and stopped: see `broker_simulation`.

Four histories with some 80 kill points each belong to every run, other ones each day: see `tests/support/profiles.py`.
In every other history messages go out of memory as soon as they can, and come back.
`QSTORE_SOAK_SEEDS=1000 pytest -m soak` has some 400,000.
"""

from __future__ import annotations

import os
from typing import Final
from unittest.mock import Mock, patch

import pytest

from qstore.broker.protocols.amqp_0_9_1 import connection
from qstore.broker.protocols.amqp_0_9_1.gathering import publish_mixed
from qstore.store.errors import JournalError, StoreError
from tests.faults.broken_brokers import (
    BROKEN,
    BROKEN_BASIC,
    BROKEN_LINKS,
    BROKEN_LINKS_RUNS,
    BROKEN_PAGING,
    BROKEN_RUNS,
    BROKEN_RUNS_READ,
    BROKEN_SORTING,
)
from tests.faults.broker_process import tiny_portions, tiny_turns
from tests.faults.broker_simulation import BrokerCrashes
from tests.faults.simulator import BrokenPromiseError, Planted
from tests.support.compiled import is_compiled, replaces
from tests.support.profiles import seeds_of_the_day

pytestmark = pytest.mark.usefixtures("quiet_logs", "tiny_blocks", "tiny_pages")

SOAK_SEEDS = int(os.environ.get("QSTORE_SOAK_SEEDS", "0"))  # each has some 400 kill points
SEEDS_FOR_BROKEN: Final = range(300, 360)
PLANTED: Final = Planted(
    BROKEN,
    lambda _: BrokerCrashes(share=0.15),
    SEEDS_FOR_BROKEN,
    {
        "commands completed with an earlier flush": 303,
        "accept completed while its record lingers": 301,
        "accepts of several queues completed with the first": 336,
        "offered with an earlier flush": 301,
        "commit completed before the sync": 301,
        "completed by an idle loop that does not sync": 311,
        "deletion completed before the store has it": 309,
        "moved before the destination is synced": 306,
    },
)
PLANTED_PAGING: Final = Planted(
    BROKEN_PAGING,
    lambda _: BrokerCrashes(share=0.05, pages=True),
    SEEDS_FOR_BROKEN,
    {"compaction without what is out": 335},
    (BrokenPromiseError, StoreError),  # a journal without compaction may have no room left for a start
)
PLANTED_BASIC: Final = Planted(BROKEN_BASIC, lambda _: BrokerCrashes(share=0.02, basic=True), SEEDS_FOR_BROKEN, {})
PLANTED_LINKS: Final = Planted(
    BROKEN_LINKS,
    lambda _: BrokerCrashes(share=0.05, links=True),
    SEEDS_FOR_BROKEN,
    {"discharged before the disk": 307},
)


PLANTED_LINKS_RUNS: Final = Planted(
    BROKEN_LINKS_RUNS,
    lambda _: BrokerCrashes(share=0.02, links=True, pages=True, uniform=True),
    SEEDS_FOR_BROKEN,
    {
        "delivery-ids of the next ones": 319,
        "marks of a run left out": 310,
        "held by another number": 316,
        "accepted without its last": 324,
    },
)


PLANTED_RUNS: Final = Planted(
    BROKEN_RUNS,
    lambda _: BrokerCrashes(share=0.05, basic=True, uniform=True),
    SEEDS_FOR_BROKEN,
    {
        "one more dequeued than settled": 309,
        "the first of those settled not dequeued": 302,
        "a message lost between two slices": 303,
        "completed before the sync": 301,
        "held messages available": 302,
    },
)


PLANTED_SORTING: Final = Planted(
    BROKEN_SORTING,
    lambda _: BrokerCrashes(share=0.15, basic=True, uniform=True, mixed=True),
    SEEDS_FOR_BROKEN,
    {},
)


@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.core)])
def test_promises_hold_whenever_the_broker_dies(part: int) -> None:
    crashes = BrokerCrashes(share=0.15, pages=part == 1)
    for seed in seeds_of_the_day(4)[part::2]:
        crashes.run(seed)
    assert crashes.kill_points > 20
    assert crashes.counts["delivered"] > 0
    assert is_compiled or not crashes.pages or crashes.counts["away"] > 20


def test_promises_to_0_9_1_clients_hold() -> None:
    """Confirms, acknowledgements and tx beside clients of 0-10 on the same queues."""
    crashes = BrokerCrashes(share=0.08, basic=True)
    for seed in seeds_of_the_day(1):
        crashes.run(seed)
    assert crashes.kill_points > 10
    assert crashes.counts["delivered"] > 0


@pytest.mark.core
def test_promises_to_1_0_clients_hold() -> None:
    """Outcomes in both directions, transactions of several messages, links that end with their queues."""
    crashes = BrokerCrashes(share=0.08, links=True)
    for seed in seeds_of_the_day(2):
        crashes.pages = crashes.basic = crashes.uniform = seed % 2 == 1
        crashes.run(seed)
    assert crashes.kill_points > 20
    assert crashes.counts["delivered"] > 0


PLANTED_RUNS_READ: Final = Planted(
    BROKEN_RUNS_READ,
    lambda _: BrokerCrashes(share=0.02, pages=True, uniform=True),
    SEEDS_FOR_BROKEN,
    {
        "bodies of the messages after them": 301,
        "a run without its last message": 308,
        "runs over what is not alike": 301,
        "records of the messages after them": 301,
        "marks of a run forgotten": 301,
    },
    (BrokenPromiseError, JournalError),  # a record may have been removed that a stretch has
)


@pytest.mark.core
def test_promises_hold_for_messages_that_are_handled_as_runs() -> None:
    crashes = BrokerCrashes(share=0.1, uniform=True)
    for seed in seeds_of_the_day(2):
        crashes.basic, crashes.pages = seed % 2 == 0, seed % 3 == 0
        crashes.run(seed)
    assert crashes.kill_points > 20
    assert crashes.counts["delivered"] > 0
    assert crashes.counts["runs"] > 20


@replaces
def test_promises_hold_for_runs_that_are_read_back() -> None:
    crashes = BrokerCrashes(share=0.1, uniform=True)
    with tiny_portions(12, rest=0):
        for seed in seeds_of_the_day(4):
            crashes.basic, crashes.pages = seed % 2 == 0, seed % 3 == 0  # the others rest in the journal
            crashes.run(seed)
    assert crashes.kill_points > 20
    assert crashes.counts["runs read"] > 5


@replaces
def test_promises_hold_for_messages_that_are_sorted_into_runs() -> None:
    """A 0-9-1 publisher sends them to several queues in turns: its confirms count them as they were sent."""
    crashes = BrokerCrashes(share=0.1, basic=True, uniform=True, mixed=True)
    with patch.object(connection, "publish_mixed", Mock(wraps=publish_mixed)) as mixed:
        for seed in seeds_of_the_day(2):
            crashes.pages = seed % 2 == 0
            crashes.run(seed)
    assert crashes.kill_points > 20
    assert crashes.counts["delivered"] > 0
    assert mixed.call_count > 5


@replaces
def test_large_transactions_are_whole_whenever_the_broker_dies() -> None:
    """They are written, and take effect, a message at a time, and others publish and accept in between."""
    crashes = BrokerCrashes(share=0.15)
    with tiny_turns():
        for seed in seeds_of_the_day(2):
            crashes.pages = crashes.basic = crashes.uniform = seed % 2 == 1
            crashes.run(seed)
    assert crashes.kill_points > 20
    assert crashes.counts["delivered"] > 0


def test_promises_hold_where_messages_are_delivered_before_the_sync() -> None:
    """They may be lost with the broker; what was completed or confirmed, and what was accepted, is as on any queue."""
    crashes = BrokerCrashes(share=0.08, early=True)
    for seed in (*seeds_of_the_day(1), 5_000):  # whatever the day, there are messages that nobody was promised
        crashes.pages = crashes.basic = seed % 2 == 1
        crashes.run(seed)
    assert crashes.kill_points > 20
    assert crashes.counts["unpromised"] > 0


def test_a_stopped_broker_keeps_all_messages_and_marks_delivered_ones() -> None:
    crashes = BrokerCrashes(share=0.0)
    for seed in seeds_of_the_day(10):
        crashes.pages = seed % 2 == 1
        crashes.run(seed, lives=3, steps=110)
    assert crashes.counts["stops"] > 0


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100_000, 100_000 + SOAK_SEEDS))
def test_promises_hold_for_hours(seed: int) -> None:
    crashes = BrokerCrashes(
        pages=seed % 2 == 1,
        basic=seed % 3 == 0,
        links=seed % 4 < 2,
        early=seed % 5 == 0,
        uniform=seed % 7 in (0, 1, 2),
        mixed=seed % 9 in (0, 1, 2),
    )
    crashes.run(seed)
    assert crashes.kill_points


@replaces
@pytest.mark.soak
@pytest.mark.parametrize("seed", range(200_000, 200_000 + SOAK_SEEDS))
def test_large_transactions_are_whole_for_hours(seed: int) -> None:
    crashes = BrokerCrashes(
        pages=seed % 2 == 1, basic=seed % 3 == 0, links=seed % 4 < 2, early=seed % 5 == 0, uniform=seed % 7 < 3
    )
    with tiny_turns():
        crashes.run(seed)
    assert crashes.kill_points


@replaces
@pytest.mark.parametrize("name", PLANTED.bugs)
def test_a_broken_broker_is_detected(name: str) -> None:
    assert PLANTED.is_found(name)


@replaces
@pytest.mark.parametrize("name", PLANTED_LINKS_RUNS.bugs)
def test_a_broker_with_broken_runs_of_1_0_is_detected(name: str) -> None:
    assert PLANTED_LINKS_RUNS.is_found(name)


@replaces
@pytest.mark.parametrize("name", PLANTED_PAGING.bugs)
def test_a_broker_with_broken_paging_is_detected(name: str) -> None:
    assert PLANTED_PAGING.is_found(name)


@replaces
@pytest.mark.parametrize("name", PLANTED_RUNS.bugs)
def test_a_broker_with_broken_runs_is_found_out(name: str) -> None:
    assert PLANTED_RUNS.is_found(name)


@replaces
@pytest.mark.parametrize("name", PLANTED_RUNS_READ.bugs)
def test_a_broker_that_reads_runs_wrongly_is_found_out(name: str) -> None:
    assert PLANTED_RUNS_READ.is_found(name)


@replaces
def test_compaction_that_leaves_out_resting_messages_is_found_out() -> None:
    broken, found = BROKEN_PAGING["compaction without what is out"], pytest.raises(BrokenPromiseError, match="gave up")
    with tiny_portions(12, rest=0), broken(), found:
        BrokerCrashes(share=0.02, uniform=True).run_all((301, *SEEDS_FOR_BROKEN))


@replaces
@pytest.mark.parametrize("name", PLANTED_SORTING.bugs)
def test_a_broker_with_broken_sorting_is_detected(name: str) -> None:
    assert PLANTED_SORTING.is_found(name)


@replaces
@pytest.mark.parametrize("name", PLANTED_BASIC.bugs)
def test_a_broker_that_is_broken_for_0_9_1_is_detected(name: str) -> None:
    assert PLANTED_BASIC.is_found(name)


@replaces
@pytest.mark.parametrize("name", PLANTED_LINKS.bugs)
def test_a_broker_that_is_broken_for_1_0_is_detected(name: str) -> None:
    assert PLANTED_LINKS.is_found(name)
