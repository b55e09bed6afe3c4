"""Latencies as counts: buckets, percentiles, the picture."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.tools.load.latencies import BUCKETS, bounds_of, bucket_of, percentile, picture, summary


def counted(*milliseconds: float) -> list[int]:
    counts = [0] * BUCKETS
    for each in milliseconds:
        counts[bucket_of(int(each * 1e6))] += 1
    return counts


@given(st.integers(0, 10**16))
def test_a_latency_lies_within_its_bucket(nanoseconds: int) -> None:
    low, high = bounds_of(bucket_of(nanoseconds))
    assert low <= nanoseconds // 1000 / 1000 < high
    assert high - low <= max(0.001, low / 60) + 1e-9


def test_buckets_follow_each_other() -> None:
    bounds = [bounds_of(bucket) for bucket in range(BUCKETS)]
    assert all(one[1] == other[0] for one, other in pairwise(bounds))


@pytest.mark.parametrize("nanoseconds", [-5, 1 << 62])
def test_impossible_latencies_count_as_the_least_or_the_most(nanoseconds: int) -> None:
    assert bucket_of(nanoseconds) in (0, BUCKETS - 1)


def test_percentiles() -> None:
    counts = counted(*range(1, 101))
    for share in (50, 75, 99):
        assert percentile(counts, share) == pytest.approx(share, rel=0.02)
    assert percentile([0] * BUCKETS, 50) == 0


def test_a_summary_has_all_that_is_told() -> None:
    found = summary(counted(1, 1, 1, 100))
    assert found["latency_count"] == 4
    assert found["latency_median_ms"] == pytest.approx(1, rel=0.02)
    assert found["latency_p99_ms"] == pytest.approx(100, rel=0.02)
    assert found["latency_max_ms"] == pytest.approx(100, rel=0.02)
    assert found["latency_mean_ms"] == pytest.approx(103 / 4, rel=0.02)
    assert summary([0] * BUCKETS) == {}


def test_a_picture_has_each_latency_once() -> None:
    lines = list(picture(counted(*[0.5] * 90, *[7.0] * 9, 300.0)))
    assert 3 <= len(lines) <= 12
    assert "█" * 40 in lines[0]
    assert "90.0 %" in lines[0]
    assert lines[-1].endswith("100.00 %")
    assert sum(line.count("█") > 0 or "▏" in line or "▎" in line or "▌" in line for line in lines) >= 1
    assert list(picture([0] * BUCKETS)) == []
