"""The enqueue threshold against the algorithm that qpidd follows (formats/rhm/README.md, 3.5), file by file."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.formats.rhm.geometry import BLOCK_SIZE, Geometry
from qstore.store.journal.files import JournalFormat
from qstore.store.journal.write.space import Threshold, depth_held, enqueue_limit, threshold

V1, V2, LINEAR = JournalFormat.VERSION_1, JournalFormat.VERSION_2, JournalFormat.LINEAR
PAGE = Geometry.from_pages(4, 1)  # files of 512 blocks


def accepts(geometry: Geometry, counts: list[int], current: int, submitted: int, blocks: int) -> bool:
    """Whether qpidd takes an enqueue, step by step.

    Args:
        geometry: of the ring.
        counts: enqueued records in each file.
        current: the file that is written.
        submitted: blocks written in it.
        blocks: of the new record.
    """
    in_file = geometry.data_size // BLOCK_SIZE
    reserve = max(-(-in_file * geometry.files * 20 // 100), in_file)
    forward = submitted + blocks + reserve
    index, in_use, overwrite = current, False, False
    while forward > 0 and not (index != current and counts[index] > 0):
        forward -= min(forward, in_file)
        if forward > 0:
            index = (index + 1) % geometry.files
            overwrite |= index == current
        in_use |= counts[index] > 0
    return not ((index != current and in_use) or overwrite)


def version_1(geometry: Geometry, oldest: int | None, end: int) -> Threshold:
    found = threshold(geometry, V1, oldest=oldest, end=end, live=0, live_bytes=0)
    assert found is not None
    return found


# ---- limits ----


def test_limits() -> None:
    default = Geometry.from_pages(8, 24)
    assert enqueue_limit(default, V2) == 10_066_329
    assert enqueue_limit(default, V1) == 12_582_912 - 19_661 * BLOCK_SIZE  # 20 %, rounded up to blocks
    assert enqueue_limit(PAGE, V1) == 3 * 65_536  # 20 % of four files is less than one file
    assert enqueue_limit(default, LINEAR) is None
    assert threshold(default, LINEAR, oldest=0, end=1 << 20, live=1, live_bytes=1 << 20) is None


def test_near_and_reached() -> None:
    assert not Threshold(1000, 799).is_near
    assert Threshold(1000, 800).is_near
    assert not Threshold(1000, 872).is_reached
    assert Threshold(1000, 873).is_reached  # not even one block is left
    assert Threshold(1000, 5000).room == 0
    assert Threshold(0, 0).is_near
    assert Threshold(0, 0).is_reached


# ---- version 1 ----


def test_the_example_takes_exactly_1536_messages() -> None:
    accepted = 0
    counts = [0] * 4
    while accepted < 2048:
        current, submitted = divmod(accepted, 512)
        room = version_1(PAGE, 0 if accepted else None, accepted * BLOCK_SIZE).room
        # Between sectors the writer goes on with fillers, which only take room.
        if accepted % 4 == 0:
            assert room == (1536 - accepted) * BLOCK_SIZE
            assert accepts(PAGE, counts, current, submitted, 1) == (room >= BLOCK_SIZE)
        if not accepts(PAGE, counts, current, submitted, 1):
            break
        counts[current] += 1
        accepted += 1
    assert accepted == 1536


@pytest.mark.parametrize(
    ("messages", "near", "reached"), [(1228, False, False), (1232, True, False), (1536, True, True)]
)
def test_near_and_at_the_example_s_threshold(messages: int, near: bool, reached: bool) -> None:
    found = version_1(PAGE, 0, messages * BLOCK_SIZE)
    assert (found.limit, found.used) == (1536 * BLOCK_SIZE, messages * BLOCK_SIZE)
    assert (found.is_near, found.is_reached) == (near, reached)


def test_one_old_message_holds_back_its_whole_file() -> None:
    end = 3 * 65_536 + 512
    assert version_1(PAGE, 65_536, end) == version_1(PAGE, 2 * 65_536 - 128, end)
    assert version_1(PAGE, 2 * 65_536, end).used == 65_536 + 512


def test_the_writer_continues_at_a_sector_s_end() -> None:
    assert version_1(PAGE, 0, 128).used == 512
    assert version_1(PAGE, 0, 512).used == 512


def test_a_full_ring() -> None:
    """The end lies where the oldest file begins, and that file has live records: nothing more can be written."""
    assert version_1(PAGE, 100 * 128, 4 * 65_536).room == 0
    assert version_1(PAGE, 65_536, 4 * 65_536).used == 3 * 65_536


def test_empty_ring_uses_only_the_present_file() -> None:
    assert version_1(PAGE, None, 0).used == 0
    assert version_1(PAGE, None, 65_536 + 1024).used == 1024
    assert version_1(PAGE, None, 65_536).used == 0


@st.composite
def rings(draw: st.DrawFn) -> tuple[Geometry, list[bool], int, int]:
    """A ring after some laps: its geometry, which files hold live records, the file that is written, blocks in it."""
    geometry = Geometry(draw(st.integers(2, 9)), draw(st.integers(1, 8)) * 512)
    live = draw(st.lists(st.booleans(), min_size=geometry.files, max_size=geometry.files))
    current = draw(st.integers(0, geometry.files - 1))
    submitted = draw(st.integers(1, geometry.data_size // 512)) * 4
    return geometry, live, current, submitted


@given(rings(), st.integers(1, 200))
def test_room_matches_the_algorithm(ring: tuple[Geometry, list[bool], int, int], blocks: int) -> None:
    """The stream begins with the file after the present one, which is the oldest, and ends in the present one."""
    geometry, live, current, submitted = ring
    counts = [int(flag) for flag in live]
    in_order = [(current + 1 + step) % geometry.files for step in range(geometry.files)]
    oldest = next((place * geometry.data_size for place, number in enumerate(in_order) if live[number]), None)
    end = (geometry.files - 1) * geometry.data_size + submitted * BLOCK_SIZE
    if submitted * BLOCK_SIZE == geometry.data_size and not live[in_order[0]]:
        # The file is full, and the next can be entered: the writer has done so.
        current, submitted = in_order[0], 0
    accepted = accepts(geometry, counts, current, submitted, blocks)
    assert accepted == (version_1(geometry, oldest, end).room >= blocks * BLOCK_SIZE)


# ---- version 2 ----


def test_version_2_counts_live_blocks_and_their_dequeues_wherever_they_stand() -> None:
    for oldest, end in ((0, 1 << 18), (65_536, 70_000), (None, 0)):
        found = threshold(PAGE, V2, oldest=oldest, end=end, live=10, live_bytes=5120)
        assert found == Threshold(4 * 65_536 * 80 // 100, 5120 + 10 * BLOCK_SIZE)


def test_version_2_takes_messages_up_to_the_limit() -> None:
    limit = enqueue_limit(PAGE, V2)
    assert limit == 209_715
    held = depth_held(PAGE, V2, record=Fraction(384), per_message=Fraction(384))
    assert held == 409
    assert held * (384 + 128) <= limit < (held + 1) * (384 + 128)


# ---- how many messages a ring holds ----


@given(st.integers(2, 12), st.integers(1, 6), st.integers(1, 40), st.data())
def test_version_1_takes_at_least_the_depth_that_is_reported(
    files: int, sectors: int, blocks: int, data: st.DataObject
) -> None:
    """From wherever the writer stands in an empty ring."""
    geometry = Geometry(files, sectors * 512)
    held = depth_held(geometry, V1, record=Fraction(blocks * 128), per_message=Fraction(blocks * 128))
    assert held is not None
    in_file = sectors * 4
    start = data.draw(st.integers(0, in_file - 1), label="start")
    counts = [0] * files
    position = start
    for _ in range(held):
        current, submitted = divmod(position, in_file)
        assert accepts(geometry, counts, current % files, submitted, blocks)
        counts[current % files] += 1
        position += blocks
    assert depth_held(geometry, LINEAR, record=Fraction(1), per_message=Fraction(1)) is None
