"""Sets of command numbers, against sets of ints."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.model.completion import Done
from qstore.broker.protocols.amqp_0_10.session import (
    Completed,
    merge_ranges,
    unwrap,
    unwrap_completed,
    unwrap_ranges,
    wrap,
    wrap_ranges,
)

BITS = 1 << 32
NUMBERS = st.integers(min_value=0, max_value=40)
RANGES = st.tuples(NUMBERS, NUMBERS).map(lambda pair: (min(pair), max(pair)))


@given(near=st.integers(0, 1 << 40), distance=st.integers(-(1 << 31), (1 << 31) - 1))
def test_a_number_is_found_again_wherever_the_counter_is(near: int, distance: int) -> None:
    number = near + distance
    assert unwrap(wrap(number), near) == number


@given(near=st.integers(0, 1 << 40), number=st.integers(0, BITS - 1))
def test_unwrap_finds_the_nearest_number(near: int, number: int) -> None:
    found = unwrap(number, near)
    assert found % BITS == number
    assert -(1 << 31) <= found - near < 1 << 31


def test_ranges_across_the_wrap() -> None:
    near = 3 * BITS + 5
    assert wrap_ranges([(near - 10, near + 1)]) == ((BITS - 5, 6),)
    assert unwrap_ranges(((BITS - 5, 6),), near) == [(near - 10, near + 1)]


def test_a_range_that_ends_before_it_begins_is_left_out() -> None:
    assert unwrap_ranges(((5, 3), (7, 7)), 4) == [(7, 7)]


def test_completed_ranges_may_span_more_than_half_the_numbers() -> None:
    near = 3_000_000_000
    assert unwrap_completed(((0, near - 1),), near) == [(0, near - 1)]
    assert unwrap_completed(((near - 2, near - 1),), near) == [(near - 2, near - 1)]


@given(st.lists(st.one_of(RANGES, st.lists(RANGES, max_size=3)), max_size=30))
def test_only_ranges_known_to_the_peer_are_omitted(
    steps: list[tuple[int, int] | list[tuple[int, int]]],
) -> None:
    done, model, known = Done(), set[int](), set[int]()
    completed = Completed(done)
    for step in steps:
        if isinstance(step, tuple):
            done.add(*step)
            model.update(range(step[0], step[1] + 1))
        else:
            completed.peer_knows(step)
            known.update(number for first, last in step for number in range(first, last + 1))
        reported = {number for first, last in completed.ranges() for number in range(first, last + 1)}
        assert reported <= model
        assert model - reported <= known


def test_known_completions_are_not_sent_again() -> None:
    done = Done()
    completed = Completed(done)
    done.add(0, 9)
    completed.peer_knows([(0, 4)])
    assert completed.ranges() == [(5, 9)]
    completed.peer_knows([(0, 20)])
    assert completed.ranges() == []


def test_completed_ranges_begin_with_the_stream() -> None:
    done = Done(100)
    completed = Completed(done)
    assert completed.ranges() == []
    done.add(100, 101)
    assert completed.ranges() == [(100, 101)]


def test_reply_is_requested_after_many_commands_or_a_gap() -> None:
    done = Done()
    completed = Completed(done)
    done.add(0, 0xFFFF)
    assert not completed.wants_reply
    done.add(0x10000, 0x10000)
    assert completed.wants_reply
    completed.peer_knows([(0, 0x10000)])
    assert not completed.wants_reply
    done.add(0x10002, 0x10002)
    assert completed.wants_reply


def test_one_range_is_never_half_of_all_numbers() -> None:
    done = Done()
    completed = Completed(done)
    done.add(0, BITS)
    assert completed.ranges() == [(BITS - (BITS >> 1) + 2, BITS)]


@given(st.lists(RANGES, max_size=30))
def test_merged_ranges_have_the_same_numbers_and_go_up(ranges: list[tuple[int, int]]) -> None:
    merged = merge_ranges(ranges)
    numbers = [number for first, last in merged for number in range(first, last + 1)]
    assert numbers == sorted({number for first, last in ranges for number in range(first, last + 1)})
    assert all(last + 1 < first for (_, last), (first, _) in pairwise(merged))
