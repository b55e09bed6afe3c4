"""The axes of a report's plots, and its numbers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.tools.console.text import MAX_TEXT, visible
from qstore.tools.report.charts import Scale, positions, powers, times, upward, waiting, waiting_powers
from qstore.tools.report.content import MAX_AT, MAX_WAIT
from qstore.tools.report.markup import duration, rate, share, short, short_size, size_rate

COUNTS = st.integers(0, 1 << 63)
WAITS = st.floats(0, MAX_WAIT, allow_nan=False)
MINUTE, HOUR, DAY = 60, 3600, 86400


def labels(scale: Scale) -> list[str]:
    return [tick.label for tick in scale.ticks]


def check(scale: Scale, values: list[float], most: int = 6) -> None:
    """Ticks are few, in order and on the axis, and the values stand on it too."""
    assert len(scale.ticks) <= most
    low, high = sorted((scale.start, scale.stop))
    places = [scale.at(value) for value in (*values, *(tick.value for tick in scale.ticks))]
    assert all(low - 1e-6 <= place <= high + 1e-6 for place in places)
    assert all(left.value < right.value for left, right in pairwise(scale.ticks))


@given(COUNTS)
def test_counts_and_sizes_fit_on_their_axes(most: int) -> None:
    for label in (short, short_size):
        scale = upward(most, 200, 0, label)
        check(scale, [0, most])
        assert scale.ticks[0].value == 0
        assert scale.ticks[-1].value >= float(most)


@given(st.lists(st.integers(0, MAX_AT["position"] >> 11), min_size=2, max_size=2, unique=True))
def test_positions_fit_on_their_axis(ends: list[int]) -> None:
    low, high = sorted(ends)
    check(positions(low, high, 0, 100), [low, high])


@given(st.lists(st.integers(0, MAX_AT["time"]), min_size=2, max_size=2, unique=True))
def test_times_fit_on_their_axis(ends: list[int]) -> None:
    low, high = sorted(ends)
    check(times(low, high, 0, 100), [low, high])


@given(WAITS)
def test_waits_fit_on_their_axis(longest: float) -> None:
    check(waiting(longest, 0, 100), [0, longest])


@given(st.floats(1e-9, 1), st.floats(1e-5, MAX_WAIT))
def test_logarithmic_axes_hold_their_values(part: float, longest: float) -> None:
    low = longest * part
    check(waiting_powers(low, longest, 0, 100), [low, longest], most=20)
    check(powers(low, max(longest, 1), 0, 100, short), [low, longest], most=20)


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        (upward(0, 9, 0), ["0", "1"]),
        (upward(3, 9, 0), ["0", "1", "2", "3"]),
        (upward(41, 9, 0), ["0", "10", "20", "30", "40", "50"]),
        (upward(480_000, 9, 0), ["0", "100k", "200k", "300k", "400k", "500k"]),
        (upward(4096, 0, 9, short_size), ["0", "1 KiB", "2 KiB", "3 KiB", "4 KiB"]),
        (positions(0, 3 << 20, 0, 9), ["0", "1 MiB", "2 MiB", "3 MiB"]),
        (positions(5 << 20, 7 << 20, 0, 9), ["5 MiB", "5.5 MiB", "6 MiB", "6.5 MiB", "7 MiB"]),
        (times(0, 4, 0, 9), ["00:00:00", "00:00:01", "00:00:02", "00:00:03", "00:00:04"]),
        (times(0, 2 * HOUR, 0, 9), ["00:00", "00:30", "01:00", "01:30", "02:00"]),
        (times(0, 2 * DAY, 0, 9), ["00:00", "12:00", "00:00", "12:00", "00:00"]),
        (times(0, 3 * DAY, 0, 9), ["1970-01-01", "1970-01-02", "1970-01-03", "1970-01-04"]),
        (waiting(0.004, 0, 9), ["0 s", "1 ms", "2 ms", "3 ms", "4 ms"]),
        (waiting(200, 0, 9), ["0 s", "1 min", "2 min", "3 min", "4 min"]),
        (waiting_powers(2, 5000, 0, 9), ["1 s", "10 s", "1 min", "10 min", "1 h", "10 h"]),
        (powers(12, 48_000, 0, 9, short), ["10", "100", "1k", "10k", "100k"]),
        (powers(100, 10_000, 0, 9, short_size), ["32 B", "1 KiB", "32 KiB"]),
    ],
)
def test_ticks_stand_at_values_that_a_person_would_choose(scale: Scale, expected: list[str]) -> None:
    assert labels(scale) == expected


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (short(0), "0"), (short(0.25), "0.25"), (short(999), "999"), (short(999.9), "1k"), (short(1500), "1.5k"),
        (short(999_999), "1M"), (short_size(0), "0"), (short_size(512), "512 B"), (short_size(1536), "1.5 KiB"),
        (duration(0), "0 s"), (duration(25e-5), "250 µs"), (duration(0.0125), "12.5 ms"), (duration(4.5), "4.5 s"),
        (duration(200), "3 min 20 s"), (duration(3 * DAY + 5 * HOUR + 59), "3 d 5 h"), (duration(HOUR), "1 h"),
        (share(0), "0.0%"), (share(0.004), "0.4%"), (share(0.8), "80.0%"), (share(1.2), "120.0%"),
        (rate(0), "0/s"), (rate(0.001), "< 0.01/s"), (rate(3.42), "3.4/s"), (rate(99.7), "100/s"),
        (rate(1234), "1,234/s"), (size_rate(0), "0 bytes/s"), (size_rate(0.3), "< 1 byte/s"),
        (size_rate(1 << 20), "1.00 MiB/s"),
    ],
)  # fmt: skip
def test_numbers_have_their_units(shown: str, expected: str) -> None:
    assert shown == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("orders", "orders"), ("ø 日本", "ø 日本"), ("a\x07\x1b[31m\n", "a\\x07\\x1b[31m\\x0a"),
        ("\u202etxt\u2066", "\\u202etxt\\u2066"), ("\udcff", "\\xff"),
        ("\ud800", "\\ud800"), ("\U000e0041", "\\U000e0041"),
        ("x" * MAX_TEXT, "x" * MAX_TEXT), ("x" * 1234, "x" * MAX_TEXT + "… (1,234 characters)"),
    ],
)  # fmt: skip
def test_invisible_characters_are_made_visible(text: str, expected: str) -> None:
    assert visible(text) == expected


@given(st.text(st.characters(), max_size=2000))
def test_shown_text_is_printable_and_bounded(text: str) -> None:
    shown = visible(text)
    assert shown.isprintable()
    assert len(shown) <= 10 * MAX_TEXT + 30
