"""Axes: the position of a value, and the round values at the ticks.

Ticks are at round values: 1, 2 or 5 times a power of ten for counts, powers of two for bytes, whole seconds, minutes,
hours or days for times. There are at most about `MAX_STEPS` of them.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from math import ceil, floor, log10
from typing import Final, NamedTuple

from qstore.tools.report.text import duration, short, short_size

MAX_STEPS: Final = 5  # steps between the ticks of an axis
_DAY: Final = 86400
_MIN: Final = 1e-12  # shorter durations count as zero
#: Seconds between ticks, and the format of a tick.
_TIME_STEPS: Final = (
    *((step, "%H:%M:%S") for step in (1, 2, 5, 10, 15, 30)),
    *((step * 60, "%H:%M") for step in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720)),
    *((step * _DAY, "%Y-%m-%d") for step in (1, 2, 7, 14, 30, 60, 91, 182)),
    *((step * 365 * _DAY, "%Y-%m-%d") for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)),
)


_MIN_WHOLE: Final = 10  # seconds: from here on, steps are those of a clock
#: Ticks of a logarithmic time axis, in seconds.
_SHORT_WAITS: Final = (1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
_LONG_WAITS: Final = (60.0, 600.0, 3600.0, 36_000.0, *(_DAY * 10.0**power * 4 for power in range(14)))


class Tick(NamedTuple):
    """A value on an axis, and its label."""

    value: float
    label: str


class Scale(NamedTuple):
    """An axis from `low` to `high`, drawn from `start` to `stop`.

    Attributes:
        low, high: the values at its ends, `low` less than `high`.
        start, stop: their coordinates; `stop` may be less (upwards).
        ticks: from `low` to `high`.
        is_log: whether the axis is logarithmic.
    """

    low: float
    high: float
    start: float
    stop: float
    ticks: tuple[Tick, ...]
    is_log: bool = False

    def at(self, value: float) -> float:
        """Coordinate of a value."""
        if self.is_log:
            part = (log10(value) - log10(self.low)) / (log10(self.high) - log10(self.low))
        else:
            part = (value - self.low) / (self.high - self.low)
        return self.start + part * (self.stop - self.start)


def round_step(span: float, *, minimum: float = 0.0) -> float:
    """The step (1, 2 or 5 times a power of ten, at least `minimum`) that gives at most `MAX_STEPS` parts of `span`."""
    if span < _MIN:
        return minimum or 1.0
    power = 10.0 ** floor(log10(span / MAX_STEPS))
    step = next((factor * power for factor in (1, 2, 5) if span / (factor * power) <= MAX_STEPS), 10 * power)
    return max(step, minimum)


def binary_step(span: float) -> float:
    """The power of two that divides `span` into at most `MAX_STEPS` parts."""
    step = 1.0
    while span / step > MAX_STEPS:
        step *= 2
    return step


def upward(
    most: float, start: float, stop: float, label: Callable[[float], str] = short, minimum: float = 1.0
) -> Scale:
    """An axis from 0 to a round value of at least `most`."""
    step = binary_step(most) if label is short_size else round_step(most, minimum=minimum)
    steps = max(ceil(most / step), 1)
    ticks = tuple(Tick(index * step, label(index * step)) for index in range(steps + 1))
    return Scale(0, steps * step, start, stop, ticks)


def waiting(longest: float, start: float, stop: float) -> Scale:
    """An axis of durations in seconds, from 0 to a round value of at least `longest`."""
    whole = (float(entry[0]) for entry in _TIME_STEPS if entry[0] >= _MIN_WHOLE and longest / entry[0] <= MAX_STEPS)
    # Below a minute, and beyond thousands of years, which only forged times reach, decimal steps are enough.
    step = next(whole, 0.0) if longest > _MIN_WHOLE * MAX_STEPS else 0.0
    step = step or round_step(longest)
    steps = max(ceil(longest / step), 1)
    ticks = tuple(Tick(index * step, duration(index * step)) for index in range(steps + 1))
    return Scale(0, steps * step, start, stop, ticks)


def positions(low: float, high: float, start: float, stop: float) -> Scale:
    """An axis of positions in a journal, in bytes."""
    step = binary_step(high - low)
    ticks = tuple(Tick(value, short_size(value)) for value in _multiples(low, high, step))
    return Scale(low, high, start, stop, ticks)


def times(low: float, high: float, start: float, stop: float) -> Scale:
    """An axis of times in seconds since 1970."""
    step, form = next((entry for entry in _TIME_STEPS if (high - low) / entry[0] <= MAX_STEPS), _TIME_STEPS[-1])
    ticks = tuple(
        Tick(value, datetime.fromtimestamp(value, UTC).strftime(form)) for value in _multiples(low, high, step)
    )
    return Scale(low, high, start, stop, ticks)


def _multiples(low: float, high: float, step: float) -> list[float]:
    return [index * step for index in range(ceil(low / step), floor(high / step) + 1)]


def waiting_powers(low: float, high: float, start: float, stop: float) -> Scale:
    """A logarithmic axis of durations in seconds around `low` to `high`, both positive, in steps of about ten."""
    return _log_axis([*_SHORT_WAITS, *_LONG_WAITS], low, high, start, stop, duration)


def powers(low: float, high: float, start: float, stop: float, label: Callable[[float], str]) -> Scale:
    """A logarithmic axis around `low` to `high`, from 1 on: in factors of ten, for bytes of 32."""
    factor = 32.0 if label is short_size else 10.0
    values = [factor**power for power in range(ceil(log10(max(high, 1))) + 2)]
    return _log_axis(values, low, high, start, stop, label)


def _log_axis(
    values: list[float], low: float, high: float, start: float, stop: float, label: Callable[[float], str]
) -> Scale:
    first = max((index for index, value in enumerate(values) if value <= low), default=0)
    last = next((index for index, value in enumerate(values) if value >= high and index > first), len(values) - 1)
    ticks = tuple(Tick(value, label(value)) for value in values[first : last + 1])
    return Scale(min(values[first], low), max(values[last], high), start, stop, ticks, is_log=True)
