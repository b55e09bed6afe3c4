"""The index of a journal's messages against a plain dict, and its memory."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from qstore.store.journal import recovery
from qstore.store.journal.recovery import LIVE, LOCKED, PENDING, EnqueueMap, Entry
from tests.support.profiles import examples, today

STATES = st.sampled_from([LIVE, LOCKED, PENDING])
RIDS = st.integers(0, 60)


class EnqueueMapMachine(RuleBasedStateMachine):
    """The map with thresholds so low that it merges and sweeps all the time."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.index = EnqueueMap()
        self.model: dict[int, tuple[int, int]] = {}
        self.blocks: dict[int, int] = {}  # place -> blocks of the record there
        self.duplicates: list[Entry] = []
        self.highest = 0
        self.place = 0
        self.next_rid = 0

    @initialize(sweep_at=st.integers(0, 8), merge_at=st.integers(1, 8))
    def set_thresholds(self, sweep_at: int, merge_at: int) -> None:
        self.patch.setattr(recovery, "_SWEEP_AT", sweep_at)
        self.patch.setattr(recovery, "_MERGE_AT", merge_at)

    def teardown(self) -> None:
        self.patch.undo()

    def _add(self, rid: int, state: int) -> None:
        self.place += 128
        if state == LIVE and self.place % 3:
            self.blocks[self.place] = self.place // 128
            self.index.add_live(rid, self.place, self.blocks[self.place])
        else:
            self.index.add(rid, self.place, state)
        self.highest = max(self.highest, rid)
        if rid in self.model:
            self.duplicates.append(Entry(rid, self.place, state))
        else:
            self.model[rid] = (self.place, state)
        self.next_rid = max(self.next_rid, rid + 1)

    @rule(count=st.integers(1, 6), step=st.integers(1, 3))
    def add_ascending(self, count: int, step: int) -> None:
        for _ in range(count):
            self._add(self.next_rid + step - 1, LIVE)

    @rule(rid=RIDS, state=STATES)
    def add_anywhere(self, rid: int, state: int) -> None:
        self._add(rid, state)

    @rule(rid=RIDS)
    def remove_anywhere(self, rid: int) -> None:
        assert self.index.remove(rid) == (self.model.pop(rid, None) is not None)

    @rule(count=st.integers(1, 8))
    def remove_oldest(self, count: int) -> None:
        for rid in sorted(self.model)[:count]:
            assert self.index.remove(rid)
            del self.model[rid]

    @rule(rid=RIDS, state=STATES)
    def set_state(self, rid: int, state: int) -> None:
        assert self.index.set_state(rid, state) == (rid in self.model)
        if rid in self.model:
            self.model[rid] = (self.model[rid][0], state)

    @rule(rid=RIDS)
    def move(self, rid: int) -> None:
        self.place += 128
        self.index.move(rid, self.place)
        self.highest = max(self.highest, rid)
        self.model[rid] = (self.place, self.model.get(rid, (0, LIVE))[1])
        self.next_rid = max(self.next_rid, rid + 1)

    @rule()
    def look_in_order(self) -> None:
        entries = [Entry(rid, *value) for rid, value in self.model.items()]
        assert list(self.index.in_rid_order()) == sorted(entries)
        assert list(self.index.in_place_order()) == sorted(entries, key=lambda entry: entry.place)
        portions = list(self.index.portions(3))
        assert [rid for rids, _, _ in portions for rid in rids] == sorted(self.model)
        for _, places, blocks in portions:
            for place, size in zip(places, blocks, strict=True):
                assert size in (0, self.blocks.get(place, 0))

    @invariant()
    def agrees(self) -> None:
        assert len(self.index) == len(self.model)
        assert self.index.duplicates == self.duplicates
        assert self.index.highest_rid == self.highest
        for state in (LIVE, LOCKED, PENDING):
            assert self.index.count(state) == sum(1 for _, other in self.model.values() if other == state)
        for rid in range(62):
            value = self.model.get(rid)
            assert self.index.get(rid) == (None if value is None else Entry(rid, *value))


EnqueueMapMachine.TestCase.settings = examples(60, stateful_step_count=40)
TestEnqueueMap = EnqueueMapMachine.TestCase


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "_SORT_PART", 7)


def test_place_order_over_many_parts(small_parts: None) -> None:
    index = EnqueueMap()
    rids = list(range(100))
    random.Random(3).shuffle(rids)
    for place, rid in enumerate(rids):
        index.add(rid, place)
    assert [rid for rid, _, _ in index.in_place_order()] == rids


def ascending(count: int) -> list[int]:
    return list(range(1, count + 1))


def stirred(count: int) -> list[int]:
    """Concurrent publishers: each rid up to 50 places from where it belongs."""
    rng = random.Random(1)
    return sorted(range(1, count + 1), key=lambda rid: rid + rng.randrange(50))


def shuffled(count: int) -> list[int]:
    rids = list(range(1, count + 1))
    random.Random(1).shuffle(rids)
    return rids


def transaction_at_the_end(count: int) -> list[int]:
    """A giant transaction that is committed after everything else: its rids all come late."""
    return [*range(2, count + 1, 2), *range(1, count, 2)]


@pytest.mark.parametrize(
    ("order", "count"),
    today([(ascending, 200_000), (stirred, 50_000), (shuffled, 50_000), (transaction_at_the_end, 50_000)], 2),
)
def test_memory_per_record(order: Callable[[int], list[int]], count: int) -> None:
    """At most 48 bytes for each outstanding record, at any moment, whatever the order."""
    rids = order(count)
    tracemalloc.start()
    try:
        index = EnqueueMap()
        for place, rid in enumerate(rids):
            index.add(rid, place)
        size, _ = tracemalloc.get_traced_memory()
        counted = index.memory
        assert sum(1 for _ in index.in_rid_order()) == count
        places = (place for _, place, _ in index.in_place_order())
        assert all(place == expected for expected, place in enumerate(places))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size <= peak <= 48 * count
    assert 0.5 < counted / size < 2  # what it says of itself is the truth


def test_memory_is_bounded_by_the_outstanding_records() -> None:
    """A million messages that came and went leave nothing behind."""
    index = EnqueueMap()
    for rid in range(1_000_000):
        index.add(rid, rid)
        if rid >= 100:
            assert index.remove(rid - 100)
    assert len(index) == 100
    assert index.memory < 1_000_000


def test_nothing_is_left_when_it_is_cleared() -> None:
    """A start has handed its messages on."""
    index = EnqueueMap()
    for rid in (*range(1, 50_000, 2), 40_000, 2):
        index.add_live(rid, rid * 128)
    index.clear()
    assert (len(index), index.added, index.highest_rid) == (0, 25_002, 49_999)
    assert index.memory < 1000
    assert list(index.in_rid_order()) == []
    index.add_live(50_001, 0)
    assert [rid for rid, _, _ in index.in_rid_order()] == [50_001]


def test_sizes_of_short_records_are_kept() -> None:
    """Until the record is moved; those of late and of long records are not kept."""
    index = EnqueueMap()
    for rid, blocks in ((1, 1), (2, 255), (4, 256), (5, 7), (3, 9), (6, 8)):
        index.add_live(rid, rid * 128, blocks)
    index.move(5, 9999)
    assert index.remove(1)
    parts = [tuple(map(list, part)) for part in index.portions(4)]
    assert parts == [([2, 3, 4, 5], [256, 384, 512, 9999], [255, 0, 0, 0]), ([6], [768], [8])]


def test_places_need_all_64_bits() -> None:
    index = EnqueueMap()
    index.add(2**64 - 1, 2**63)
    index.add(0, 2**64 - 1)
    assert list(index.in_rid_order()) == [Entry(0, 2**64 - 1, LIVE), Entry(2**64 - 1, 2**63, LIVE)]
    assert index.highest_rid == 2**64 - 1
