"""Regions of a journal that cannot be read: runs of sectors, joined."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from qstore.formats.rhm.geometry import SECTOR_SIZE
from qstore.store.journal.stream import BadRegions

SECTORS = 40


@given(st.lists(st.tuples(st.integers(0, SECTORS * SECTOR_SIZE - 1), st.integers(1, 4000)), max_size=20))
def test_as_a_set_of_sectors(regions: list[tuple[int, int]]) -> None:
    bad, expected = BadRegions(), set[int]()
    for begin, size in regions:
        bad.add(1, begin, begin + size, "why")
        expected.update(range(begin // SECTOR_SIZE, -(-(begin + size) // SECTOR_SIZE)))
    assert bool(bad) == bool(expected)
    told = [each for run in bad.take_new() for each in range(run.begin // SECTOR_SIZE, run.end // SECTOR_SIZE)]
    assert told == sorted(expected)
    assert list(bad.take_new()) == []
    for sector in range(SECTORS + 10):
        assert bad.touches(1, sector * SECTOR_SIZE, (sector + 1) * SECTOR_SIZE) == (sector in expected)
    assert not bad.touches(2, 0, SECTORS * SECTOR_SIZE)
