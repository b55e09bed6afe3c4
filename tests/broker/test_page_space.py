"""The free pages of a paging file: none is given out twice, and the end goes back as far as it can."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.model.residency.page_file import PageSpace

LIMIT = 40


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9), st.integers(0, 100)), max_size=60))
def test_against_a_set_of_pages(steps: list[tuple[bool, int, int]]) -> None:
    space, taken = PageSpace(LIMIT), list[range]()
    for takes, count, which in steps:
        used = {page for run in taken for page in run}
        if takes:
            first = space.take(count)
            free = "".join("x" if page in used else "." for page in range(LIMIT))
            assert (first is None) is ("." * count not in free)
            if first is not None:
                assert used.isdisjoint(range(first, first + count))
                taken.append(range(first, first + count))
        elif taken:
            run = taken.pop(which % len(taken))
            space.give_back(run.start, len(run))
        used = {page for run in taken for page in run}
        assert (space.used, space.end) == (len(used), max(used, default=-1) + 1)


def test_the_lowest_run_is_taken() -> None:
    space = PageSpace(1 << 20)
    assert [space.take(count) for count in (2, 1, 2, 1)] == [0, 2, 3, 5]
    space.give_back(3, 2)
    space.give_back(0, 2)
    assert [space.take(count) for count in (3, 1, 1, 2)] == [6, 0, 1, 3]
