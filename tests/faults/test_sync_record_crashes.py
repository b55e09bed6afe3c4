"""`rhm/SYNCED` under crashes: a store that records all the time is killed at each call that changes the disk.

No bound is ever ahead of what is found afterwards: that would be reported as damage, for which `StoreLife` looks.
Bounds that are written before their time are found out. `tests/support/profiles.py` says which histories are run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import ClassVar
from unittest.mock import patch

import pytest

import qstore.store.live.growth as growth
from qstore.formats.rhm.close_record import SyncedJournal
from qstore.store.live.queue_journal import QueueJournal
from qstore.store.recovery import close_record
from qstore.store.recovery.close_record import SyncRecorder
from tests.faults.simulator import BrokenPromiseError
from tests.faults.store_simulation import GrowingLife, StoreCrashes, StoreLife, tiny_rid_blocks
from tests.support.profiles import seeds_of_the_day


@pytest.fixture(autouse=True)
def eager() -> Iterator[None]:
    """A record at each look."""
    with (
        tiny_rid_blocks(),
        patch.object(close_record, "INTERVAL_SECONDS", 0.0),
        patch.object(close_record, "_SOON_SECONDS", 0.0),
        patch.object(close_record, "_PORTION", 2),
    ):
        yield


class RecordingLife(StoreLife):
    """A store whose owner looks after it all the time."""

    looks: ClassVar = True


class GrowingRecordingLife(GrowingLife):
    """Likewise, with journals that grow."""

    looks: ClassVar = True


@pytest.mark.parametrize("part", range(2))
def test_no_bound_is_ahead_of_the_disk(part: int) -> None:
    crashes = StoreCrashes(share=0.3, life_class=RecordingLife)
    for seed in seeds_of_the_day(2)[part::2]:
        crashes.run(seed)
    assert crashes.kill_points > 50


def test_no_bound_is_ahead_of_journals_that_grow_and_shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "_IDLE_LOOKS", 0)
    crashes = StoreCrashes(share=0.08, life_class=GrowingRecordingLife)
    for seed in seeds_of_the_day(1):
        crashes.run(seed, steps=90)
    assert crashes.kill_points > 50


def _appended(journal: QueueJournal) -> SyncedJournal | None:
    """The flush that is under way, or to come, counts as synced."""
    found = _sound(journal)
    return None if found is None else found._replace(flush=max(found.flush, journal.writer.last_dirty))


_sound = close_record._synced_journal


def _resumed(self: SyncRecorder) -> None:
    """What only the header of a torn flush's file names counts as synced."""
    self._last = self._batch(), []
    entries = [_sound(each) for each in self._everything()]
    synced = {each.queue_id: each.writer.synced for each in self._everything()}
    found = [each._replace(flush=synced[each.queue_id]) for each in entries if each is not None]
    close_record.write_synced(self._directory, self._store_id, self._batch(), found)


def _batch_before(self: SyncRecorder) -> None:
    """The next change of the catalogue counts as made."""
    batch = self._batch
    self._batch = lambda: batch() + 1
    try:
        _sound_look(self)
    finally:
        self._batch = batch


_sound_look = SyncRecorder.look


@pytest.mark.parametrize(
    "broken",
    [
        patch.object(close_record, "_synced_journal", _appended),
        patch.object(SyncRecorder, "record", _resumed),
        patch.object(SyncRecorder, "look", _batch_before),
    ],
    ids=["flush under way", "flush of a header", "change to come"],
)
def test_a_bound_that_is_written_too_early_is_detected(broken: AbstractContextManager[object]) -> None:
    with broken, pytest.raises(BrokenPromiseError):
        run_all(range(300, 340))


def run_all(seeds: range) -> None:
    for seed in seeds:
        StoreCrashes(share=0.5, life_class=RecordingLife).run(seed)
