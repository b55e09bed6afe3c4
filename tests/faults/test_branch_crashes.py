"""Distributed transactions, from the client to the disk and back: see `branch_simulation`.

`tests/support/profiles.py` says which histories are run. `QSTORE_SOAK_SEEDS=1000 pytest -m soak` has
thousands.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final
from unittest.mock import patch

import pytest

from qstore.broker.model.message import Message
from qstore.broker.model.queues.entry import Entry
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.recovery import Recovery
from qstore.broker.model.store_protocol import RecoveredMessage
from qstore.broker.model.transactions.branch import Branch, Done, Status
from qstore.broker.model.transactions.effects import Effects
from qstore.store.live.transactions import Transactions
from tests.faults.branch_simulation import BranchCrashes
from tests.faults.broker_process import tiny_turns
from tests.faults.simulator import Planted
from tests.support.compiled import replaces
from tests.support.profiles import seeds_of_the_day

pytestmark = pytest.mark.usefixtures("quiet_logs", "tiny_blocks", "tiny_pages")

SOAK_SEEDS = int(os.environ.get("QSTORE_SOAK_SEEDS", "0"))


@pytest.mark.core
def test_branches_are_whole_and_kept_whenever_broker_or_manager_die() -> None:
    crashes = BranchCrashes(share=0.15)
    for seed in seeds_of_the_day(4):
        crashes.pages = seed % 2 == 1
        crashes.run(seed)
    assert crashes.kill_points > 50
    assert crashes.counts["in doubt"] > 0
    assert crashes.counts["ended"] > 0


@replaces
def test_large_branches_are_whole_and_kept_whenever_broker_or_manager_die() -> None:
    crashes = BranchCrashes(share=0.15)
    with tiny_turns():
        for seed in seeds_of_the_day(2):
            crashes.pages = seed % 2 == 1
            crashes.run(seed)
    assert crashes.kill_points > 20
    assert crashes.counts["ended"] > 0


@replaces
def test_large_branches_are_whole_and_kept_when_a_disk_fails_in_the_middle() -> None:
    crashes = BranchCrashes()
    with tiny_turns():
        for seed in seeds_of_the_day(8):
            crashes.pages = seed % 2 == 1
            crashes.run_failing(seed)


def test_branches_are_whole_and_kept_when_a_disk_fails_in_the_middle() -> None:
    crashes = BranchCrashes()
    seeds, noticed = seeds_of_the_day(16), 0
    for seed in seeds:
        crashes.pages = seed % 2 == 1
        noticed += crashes.run_failing(seed)
    assert noticed >= len(seeds) // 2


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(200_000, 200_000 + SOAK_SEEDS))
def test_branches_are_whole_and_kept_for_hours(seed: int) -> None:
    crashes = BranchCrashes(pages=seed % 2 == 1)
    crashes.run(seed)
    assert crashes.kill_points


@replaces
@pytest.mark.soak
@pytest.mark.parametrize("seed", range(300_000, 300_000 + SOAK_SEEDS))
def test_large_branches_are_whole_and_kept_for_hours(seed: int) -> None:
    crashes = BranchCrashes(pages=seed % 2 == 1)
    with tiny_turns():
        crashes.run(seed)
    assert crashes.kill_points


# ---- brokers that break a promise are found out ----

_sound_prepare, _sound_commit, _sound_hold = Branch.prepare, Branch.commit, Recovery._hold


def _prepared_at_once(self: Branch, done: Done) -> None:
    """Prepare is answered before it is on the disk."""
    _sound_prepare(self, lambda *_: None)
    done(Status.OK, None)


def _committed_at_once(self: Branch, done: Done, *, one_phase: bool) -> None:
    """Commit is answered before it is on the disk."""
    _sound_commit(self, lambda *_: None, one_phase=one_phase)
    done(Status.OK, None)


def _held_as_live(self: Recovery, queue: Queue, message: Message, stored: RecoveredMessage) -> None:
    """Messages of branches in doubt are delivered after a start."""
    queue.enter(message, stored.rid)


def _not_locked(self: Queue, entry: Entry) -> None:
    """A recovered message that a branch removes is available."""


def _nothing_undone(self: Effects, *, releases: bool, leaves_stored: bool = False) -> Iterator[None]:
    """A branch that is rolled back keeps what it has."""
    return iter(())


def _one_after_the_other(
    self: Transactions, xid: bytes, enqueues: Any, dequeues: Any, done: Any, user: str
) -> list[int]:
    """A branch in several queues is prepared in each of them apart."""
    rids = _sound_store_prepare(self, xid, enqueues, dequeues[:1], done, user)
    for journal, rid in dequeues[1:]:
        self._appender.dequeue(journal, rid)
    return rids


_sound_store_prepare = Transactions.prepare

BROKEN: Final[dict[str, Callable[[], Any]]] = {
    "prepare answered before the sync": partial(patch.object, Branch, "prepare", _prepared_at_once),
    "commit answered before the sync": partial(patch.object, Branch, "commit", _committed_at_once),
    "in doubt and delivered": partial(patch.object, Recovery, "_hold", _held_as_live),
    "in doubt and not locked": partial(patch.object, Queue, "lock", _not_locked),
    "not given back": partial(patch.object, Effects, "undo", _nothing_undone),
    "partly outside of the branch": partial(patch.object, Transactions, "prepare", _one_after_the_other),
}


PLANTED: Final = Planted(BROKEN, lambda _: BranchCrashes(share=0.15), range(500, 530), {})


@pytest.mark.parametrize("name", PLANTED.bugs)
def test_a_broken_broker_is_detected(name: str) -> None:
    assert PLANTED.is_found(name)
