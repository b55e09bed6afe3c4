"""The compact index of records whose messages are out of the broker's memory, against a dictionary."""

from __future__ import annotations

from array import array
from itertools import accumulate

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from qstore.store.journal.write.live_records import MAX_CHUNK, RestingRecords
from qstore.store.journal.write.space import SIZE_BITS
from tests.support.profiles import examples


class RestingMachine(RuleBasedStateMachine):
    """Runs of ascending ids come, single ones go or move."""

    def __init__(self) -> None:
        super().__init__()
        self.resting = RestingRecords()
        self.known: dict[int, int] = {}

    @rule(first=st.integers(1, 200), steps=st.lists(st.integers(1, 4), max_size=20), place=st.integers(0, 1000))
    def add(self, first: int, steps: list[int], place: int) -> None:
        rids = [first]
        for step in steps:
            rids.append(rids[-1] + step)
        packed = [place + number << SIZE_BITS | 1 for number in range(len(rids))]
        known = [rid in self.known for rid in rids]
        if any(known):
            return
        taken = self.resting.add(rids, packed)
        assert 0 <= taken <= len(rids)
        assert taken or self.known
        self.known.update(zip(rids[:taken], packed[:taken], strict=True))

    @rule(steps=st.lists(st.integers(1, 3), min_size=1, max_size=20), place=st.integers(0, 1000))
    def extend(self, steps: list[int], place: int) -> None:
        rids = array("Q", accumulate(steps, initial=max(self.known, default=200) + 1))
        packed = array("Q", [place + number << SIZE_BITS | 3 for number in range(len(rids))])
        self.known.update(zip(rids, packed, strict=True))
        self.resting.extend(rids, packed)

    @rule(first=st.integers(0, 220), steps=st.lists(st.integers(1, 3), max_size=30), is_known=st.booleans())
    def look_up(self, first: int, steps: list[int], is_known: bool) -> None:
        rids = [rid for rid in accumulate(steps, initial=first) if not is_known or rid in self.known]
        assert list(self.resting.get_all(rids)) == [self.known.get(rid, 0) for rid in rids]

    @rule(which=st.integers(0, 1000), count=st.integers(1, 10))
    def pop(self, which: int, count: int) -> None:
        rids = sorted(self.known)
        at = which % max(len(rids), 1)
        for rid in rids[at : at + count]:
            assert self.resting.pop(rid) == self.known.pop(rid)

    @rule(which=st.integers(0, 1000), place=st.integers(0, 2000))
    def move(self, which: int, place: int) -> None:
        rids = sorted(self.known)
        if rids:
            rid = rids[which % len(rids)]
            self.known[rid] = place << SIZE_BITS | 2
            self.resting.set(rid, self.known[rid])

    @rule(end=st.integers(0, 2000))
    def look_before(self, end: int) -> None:
        found, following = self.resting.before(end)
        places = {rid: packed >> SIZE_BITS for rid, packed in self.known.items()}
        assert sorted(found) == sorted((place, rid) for rid, place in places.items() if place < end)
        later = [place for place in places.values() if place >= end]
        assert (following < 0) is (not later)
        assert not later or end <= following <= min(later)

    @invariant()
    def all_are_found(self) -> None:
        assert len(self.resting) == len(self.known)
        assert sorted(self.resting.values()) == sorted(self.known.values())
        for rid in range(1, 300, 7):
            assert self.resting.get(rid) == self.known.get(rid)


TestRestingMachine = RestingMachine.TestCase
TestRestingMachine.settings = examples(60, stateful_step_count=40)


def test_sixteen_bytes_a_record() -> None:
    resting, count = RestingRecords(), 10 * MAX_CHUNK
    for first in range(1, count, 512):
        rids = list(range(first, min(first + 512, count + 1)))
        assert resting.add(rids, [rid << SIZE_BITS | 9 for rid in rids]) == len(rids)
    chunks = resting._chunks
    size = sum(chunk.rids.__sizeof__() + chunk.packed.__sizeof__() + 200 for chunk in chunks)
    assert (len(resting), len(chunks)) == (count, 10)
    assert size <= 18 * count
    for rid in range(1, count + 1):
        assert resting.pop(rid) == rid << SIZE_BITS | 9
    assert (len(resting), resting._chunks) == (0, [])
