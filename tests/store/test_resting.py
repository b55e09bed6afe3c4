"""The compact index of records whose messages are out of the broker's memory, against a dictionary."""

from __future__ import annotations

import tracemalloc
from array import array
from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from qstore.store.journal.write import live_records
from qstore.store.journal.write.live_records import MAX_CHUNK, RestingRecords, parts_of
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
        rids = array("Q", accumulate(steps, initial=self.highest() + 1))
        packed = array("Q", [place + number << SIZE_BITS | 3 for number in range(len(rids))])
        self.known.update(zip(rids, packed, strict=True))
        self.resting.extend(rids, packed)

    @rule(parts=st.lists(st.tuples(st.integers(1, 80), st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=5))
    def extend_in_runs(self, parts: list[tuple[int, int, int]]) -> None:
        """Records in rows, with gaps between their ids and their places."""
        rids, packed = array("Q"), array("Q")
        rid, place = self.highest(), 100
        for count, skipped, hole in parts:
            rid, place = rid + skipped, place + hole
            rids.extend(range(rid + 1, rid + 1 + count))
            packed.extend(place + 2 * number << SIZE_BITS | 2 for number in range(count))
            rid, place = rid + count, place + 2 * count
        self.known.update(zip(rids, packed, strict=True))
        self.resting.extend_in_runs(rids, packed)

    @rule(gap=st.integers(0, 3), count=st.integers(1, 40), place=st.integers(0, 1000), blocks=st.integers(1, 3))
    def add_run(self, gap: int, count: int, place: int, blocks: int) -> None:
        """After all others; if `gap` is 0, the next one of the last run, if that is the last."""
        last = self.highest()
        if not gap and last in self.known:
            place, blocks = (self.known[last] >> SIZE_BITS) + 2, 2
        first = last + max(gap, 1)
        packed = [place + number * blocks << SIZE_BITS | blocks for number in range(count)]
        assert self.resting.add_run(first, count, place, blocks)
        self.known.update(zip(range(first, first + count), packed, strict=True))

    def highest(self) -> int:
        """The highest record id that is remembered, even if it has left."""
        chunks = self.resting._chunks
        return max(200, live_records._last_of(chunks[-1])) if chunks else 200

    @rule(which=st.integers(0, 1000), back=st.integers(0, 2))
    def add_run_before_others(self, which: int, back: int) -> None:
        rids = sorted(self.known)
        if rids:
            assert not self.resting.add_run(max(rids[which % len(rids)] - back, 1), 3, 0, 1)

    @rule(which=st.integers(0, 1000), count=st.integers(1, 40))
    def take_run(self, which: int, count: int) -> None:
        """As many as are in a row, of equal blocks; one at least."""
        rids = sorted(self.known)
        rid = rids[which % len(rids)] if rids else 1
        several, packed = self.resting.take_run(rid, count)
        assert several <= count
        assert (several > 0) is (rid in self.known)
        blocks = packed & ((1 << SIZE_BITS) - 1)
        for number in range(several):
            assert self.known.pop(rid + number) == packed + (number * blocks << SIZE_BITS)

    @rule(count=st.integers(16, 100), cuts=st.lists(st.integers(0, 98), min_size=1, max_size=30), moves=st.booleans())
    def cut_a_run(self, count: int, cuts: list[int], moves: bool) -> None:
        """Some leave a new run, or are elsewhere, in any order."""
        first = self.highest() + 2
        assert self.resting.add_run(first, count, 500, 1)
        self.known.update((first + number, 500 + number << SIZE_BITS | 1) for number in range(count))
        for number, cut in enumerate(cuts):
            rid = first + cut
            if rid not in self.known:
                assert not self.resting.take(rid)
            elif moves:
                self.known[rid] = 1500 + number << SIZE_BITS | 1
                self.resting.set(rid, self.known[rid])
            else:
                assert self.resting.take(rid) == self.known.pop(rid)

    @rule(first=st.integers(0, 220), steps=st.lists(st.integers(1, 3), max_size=30), is_known=st.booleans())
    def look_up(self, first: int, steps: list[int], is_known: bool) -> None:
        rids = [rid for rid in accumulate(steps, initial=first) if not is_known or rid in self.known]
        assert list(self.resting.get_all(rids)) == [self.known.get(rid, 0) for rid in rids]

    @rule(which=st.integers(0, 1000), back=st.integers(0, 2), count=st.integers(0, 60))
    def look_up_range(self, which: int, back: int, count: int) -> None:
        known = sorted(self.known) or [5]
        rids = range(known[which % len(known)] - back, known[which % len(known)] - back + count)
        wanted = [self.known.get(rid, 0) for rid in rids]
        assert list(self.resting.get_all(rids)) == wanted
        if self.resting.has_run(rids):
            steps = {after - before for before, after in pairwise(wanted)}
            assert 0 not in wanted
            assert len(steps) <= 1

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

    @rule(which=st.integers(0, 1000), count=st.integers(1, 60), place=st.integers(0, 2000), blocks=st.integers(1, 3))
    def copy_forward(self, which: int, count: int, place: int, blocks: int) -> None:
        """One after the other, as compaction does it."""
        rids = sorted(self.known)
        at = which % max(len(rids), 1)
        for number, rid in enumerate(rids[at : at + count]):
            self.known[rid] = (place + number * blocks) << SIZE_BITS | blocks
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
        portions = [(list(rids), list(packed)) for rids, packed in self.resting.portions()]
        found = [each for rids, packed in portions for each in zip(rids, packed, strict=True)]
        assert found == sorted(self.known.items())
        for rid in [*range(1, 300, 7), *self.known]:
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


def test_runs_take_memory_for_each_run_not_for_each_record() -> None:
    resting = RestingRecords()
    for number in range(100):
        assert resting.add_run(1 + 1001 * number, 1000, 10_000 * number, 9)
    assert (len(resting), len(resting._chunks)) == (100_000, 100)
    for number in range(100):
        first = 1 + 1001 * number
        assert resting.take_run(first, 400) == (400, 10_000 * number << SIZE_BITS | 9)
        assert resting.take_run(first + 400, 9999) == (600, 10_000 * number + 400 * 9 << SIZE_BITS | 9)
    assert (len(resting), resting._chunks) == (0, [])


def test_runs_that_follow_one_another_are_one() -> None:
    resting = RestingRecords()
    for number in range(100):
        assert resting.add_run(1 + 20 * number, 20, 7 + 40 * number, 2)
    assert (len(resting), len(resting._chunks)) == (2000, 1)


def test_runs_of_any_length_take_at_most_32_bytes_a_message() -> None:
    for count in (2, 3, 4, 5, 6, 8, 100):
        tracemalloc.start()
        resting = RestingRecords()
        for number in range(20_000 // count):
            assert resting.add_run(1 + number * (count + 1), count, 1_000_000 + 20 * count * number, 9)
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert size <= 32 * len(resting), count


ROWS = st.lists(st.tuples(st.integers(1, 70), st.sampled_from((0, 0, 1)), st.sampled_from((0, 0, 1))), max_size=6)


@given(ROWS, st.lists(st.integers(0, 300), max_size=3))
def test_long_runs_are_found_among_other_records(rows: list[tuple[int, int, int]], moved: list[int]) -> None:
    rids, packed = array("Q"), array("Q")
    rid = place = 0
    for number, (count, skipped, hole) in enumerate(rows):
        rid, place, blocks = rid + 1 + skipped, place + hole, 1 + number % 2
        rids.extend(range(rid, rid + count))
        packed.extend(place + each * blocks << SIZE_BITS | blocks for each in range(count))
        rid, place = rid + count - 1, place + count * blocks
    for number in moved:  # by compaction
        if number < len(packed):
            packed[number] += 1000 << SIZE_BITS
    follows = [
        after == rid + 1 and there == here + ((here & 0xFFFFFF) << SIZE_BITS)
        for (rid, after), (here, there) in zip(pairwise(rids), pairwise(packed), strict=True)
    ]
    parts, next_begin = list(parts_of(rids, packed)), 0
    for begin, end, is_run in parts:
        assert begin == next_begin < end
        next_begin = end
        if is_run:
            assert end - begin >= 32
            assert all(follows[begin : end - 1])
        else:
            assert "1" * 31 not in "".join(str(int(each)) for each in follows[begin : end - 1])
    assert next_begin == len(rids)
    assert not any(first[2] is second[2] is False for first, second in pairwise(parts))


def test_runs_found_among_single_records_take_at_most_sixteen_bytes_a_message() -> None:
    rids, packed = array("Q"), array("Q")
    for number in range(300):  # the shortest that are found, each with a single record after it
        rids.extend(range(1 + 40 * number, 34 + 40 * number))
        packed.extend(1000 * number + 3 * each << SIZE_BITS | 3 for each in range(32))
        packed.append(1000 * number + 500 << SIZE_BITS | 3)
    tracemalloc.start()
    resting = RestingRecords()
    resting.extend_in_runs(rids, packed)
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert size <= 16 * len(resting)
    assert resting.take_run(1, 40) == (32, 3)


def test_empty_runs_leave_the_list() -> None:
    """Whichever end they are at; and the next record after them is found at once."""
    for is_reversed in (False, True):
        resting = RestingRecords()
        firsts = [1 + 11 * number for number in range(1000)]
        for first in firsts:
            assert resting.add_run(first, 10, 20 * first, 2)
        for number, first in enumerate(reversed(firsts) if is_reversed else firsts, 1):
            assert resting.take_run(first, 10) == (10, 20 * first << SIZE_BITS | 2)
            assert not resting.take(first)
            assert not resting.take(first + 10)
            assert len(resting) == 10 * (1000 - number)
            assert len(resting._chunks) <= max(2 * (1000 - number) + 2, 20)
        assert resting._chunks == []


def test_copies_of_a_run_are_a_run() -> None:
    """As compaction makes them: in order, with a gap in the log between two flushes."""
    resting = RestingRecords()
    assert resting.add_run(1, 1000, 0, 3)
    for number in range(600):
        resting.set(1 + number, (5000 + 3 * number + number // 200) << SIZE_BITS | 3)
    assert (len(resting), len(resting._chunks)) == (1000, 4)
    assert [resting.get(rid) for rid in (1, 200, 201, 600, 601)] == [
        place << SIZE_BITS | 3 for place in (5000, 5597, 5601, 6799, 1800)
    ]


def test_a_long_run_from_which_single_records_leave_takes_sixteen_bytes_a_record() -> None:
    resting, count = RestingRecords(), 10 * MAX_CHUNK
    assert resting.add_run(1, count, 0, 1)
    for rid in range(2, count, 2):
        assert resting.take(rid) == rid - 1 << SIZE_BITS | 1
    assert len(resting._chunks) == 10
    assert [rid for rids, _ in resting.portions() for rid in rids] == [*range(1, count, 2), count]
