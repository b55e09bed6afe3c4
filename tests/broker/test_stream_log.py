"""The log of a stream: segments, times, retention, and the offsets of recovered messages."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.model.memory import MESSAGE_OVERHEAD
from qstore.broker.model.queues.stream_log import MAX_MESSAGES, SPAN, Mark, StreamCache, StreamLog
from tests.broker.wired_broker import PlainMessage


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def filled(batches: Sequence[tuple[int, float]], first_rid: int = 1, step: int = 1) -> tuple[StreamLog, Clock]:
    """A log with so many messages after each of these seconds."""
    clock = Clock()
    log, rid = StreamLog(clock), first_rid
    for count, after in batches:
        clock.now += after
        for _ in range(count):
            log.append(PlainMessage("q", b"x" * 10), rid)
            rid += step
    return log, clock


def offsets(log: StreamLog) -> dict[int, int]:
    return {rid: segment.first + number for segment in log.segments for number, rid in enumerate(segment.rids)}


def recovered(rids: Sequence[int], marks: Sequence[Mark], now: float = 5000.0) -> StreamLog:
    log = StreamLog(Clock())
    log.recover(rids, [10] * len(rids))
    log.restore(marks, now)
    return log


def test_segments_end_by_number_size_and_time() -> None:
    log, clock = filled([(MAX_MESSAGES + 5, 0), (3, SPAN / 2), (2, SPAN)])
    assert [segment.count for segment in log.segments] == [MAX_MESSAGES, 8, 2]
    clock.now += 1
    log.segment_bytes = 25
    for rid in range(5000, 5007):
        log.append(PlainMessage("q", b"x" * 10), rid)
    assert [segment.count for segment in log.segments[2:]] == [2, 3, 3, 1]
    assert [(segment.first, segment.end) for segment in log.segments[:2]] == [(0, 512), (512, 520)]


def test_a_slow_stream_has_few_segments() -> None:
    log, _ = filled([(1, 10.0)] * 5000)
    assert len(log.segments) < 1024 + 5000 // 64 + 2
    assert log.end == 5000
    assert sum(segment.count for segment in log.segments) == 5000


@pytest.mark.parametrize(("time", "offset"), [(0, 0), (1010, 0), (1011, 3), (1020, 3), (1020.5, 5), (9999, 5)])
def test_a_time_is_found_by_segments(time: float, offset: int) -> None:
    log, _ = filled([(3, 10), (2, 10)])
    assert log.offset_at(time) == offset


@pytest.mark.parametrize(
    ("max_bytes", "oldest", "end"),
    [
        (0, 0.0, 0),
        (60, 0.0, 0),
        (59, 0.0, 3),
        (30, 0.0, 3),
        (1, 0.0, 5),
        (0, 1010.5, 3),
        (0, 9999.0, 5),
        (59, 1020.5, 5),
    ],
)
def test_segments_beyond_the_limits_leave_but_the_last(max_bytes: int, oldest: float, end: int) -> None:
    log, _ = filled([(3, 10), (2, 10), (1, 10)])
    assert log.dropped_by(max_bytes, 60, oldest) == end


# ---- recovery ----


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=60, unique=True),
    st.integers(0, 59),
    st.integers(1, 10),
    st.data(),
)
def test_recovered_messages_have_their_offsets_again(
    gaps: list[int], dropped: int, most: int, data: st.DataObject
) -> None:
    """Whatever prefix has left, if a mark of the first message that stays was stored before, and perhaps later ones."""
    rids, rid = [], 0
    for gap in gaps:
        rid += gap
        rids.append(rid)
    dropped = min(dropped, len(rids) - 1)
    kept = data.draw(st.integers(0, dropped), label="really dropped")  # a kill during retention
    numbers = sorted({dropped, *data.draw(st.lists(st.integers(dropped, len(rids) - 1), max_size=most))})
    log = recovered(rids[kept:], [Mark(rids[number], number, 100.0 + number) for number in numbers])
    assert offsets(log) == {rid: number for number, rid in enumerate(rids) if number >= kept}
    assert log.end == len(rids)


def test_a_stream_without_a_record_begins_at_0() -> None:
    assert offsets(recovered([5, 9, 12], [])) == {5: 0, 9: 1, 12: 2}


def test_messages_after_a_mark_keep_their_offsets_when_others_are_lost() -> None:
    marks = [Mark(10, 0, 1.0), Mark(20, 10, 2.0)]
    log = recovered([10, 11, 13, 20, 21], marks)  # seven are gone
    assert offsets(log) == {10: 0, 11: 1, 13: 2, 20: 10, 21: 11}
    assert recovered([], marks).end == 10
    assert offsets(recovered([30], marks)) == {30: 10}


def test_recovered_times_are_bounds() -> None:
    rids = list(range(1, 2001))
    marks = [Mark(1, 0, 100.0), Mark(601, 600, 200.0)]
    log = recovered(rids, marks, 900.0)
    for segment in log.segments:
        assert segment.time == (100.0 if segment.end <= 600 else 200.0)
        assert segment.until == (200.0 if segment.end <= 600 else 900.0)
    assert log.offset_at(150.0) == 0
    assert log.offset_at(201.0) == 600


def test_marks_are_spread_and_begin_where_they_are_asked_to() -> None:
    log, _ = filled([(2, 5.0)] * 100, step=3)
    marks = log.marks(10, 50, 199)
    assert len(marks) <= 11
    assert (marks[0].offset, marks[-1].offset) == (50, 198)
    assert [mark.rid for mark in marks] == [1 + 3 * mark.offset for mark in marks]
    again = recovered([1 + 3 * number for number in range(50, 200)], marks)
    assert offsets(again) == {1 + 3 * number: number for number in range(50, 200)}


# ---- memory ----


def test_the_cache_discards_what_was_not_used_for_the_longest_time() -> None:
    log, _ = filled([(10, 2.0)] * 5)
    for segment in log.segments[:-1]:
        segment.close()
    each = log.segments[0].memory
    assert each == 10 * (10 + MESSAGE_OVERHEAD)
    cache = StreamCache(each * 5 // 2)
    first, second, third, fourth, _ = log.segments
    cache.use(first, log)
    cache.use(second, log)
    cache.use(first, log)
    cache.use(third, log)
    assert second.parts is None
    assert first.parts is not None
    assert (cache.size, log.cached) == (2 * each, 2 * each)
    cache.forget(first)
    cache.forget(fourth)
    assert (first.parts, cache.size, log.cached) == (None, each, each)
    assert fourth.parts is not None


def test_consecutive_record_ids_take_no_memory() -> None:
    log, _ = filled([(600, 0)])
    assert isinstance(log.segments[0].rids, range)
    assert not isinstance(log.segments[1].rids, range)
