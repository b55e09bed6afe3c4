"""The plots of a queue: its depth, message sizes, waiting times, and how full its journal became.

Ticks of axes are at round values: 1, 2 or 5 times a power of ten for counts, powers of two for bytes, whole seconds,
minutes, hours or days for times. There are at most about `MAX_STEPS` of them.

A plot is inline SVG, an image of `WIDTH` × `HEIGHT` that the page scales to its column. Colours come from the style
sheet, by class, so that light, dark and print need no second image. The meaning of an element is in its `title`, which
browsers show as a tooltip; `aria-label` describes the whole plot in words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from math import ceil, floor, log10
from typing import Final

from qstore.formats.named_tuple import NamedTuple
from qstore.formats.wording import plural
from qstore.tools.console.amounts import human
from qstore.tools.report.content import MAX_AT, Axis, DepthPoint, DepthSeries, SizeBin, Sizing, Waits, WaitUnit
from qstore.tools.report.markup import Markup, count, day, duration, join, moment, share, short, short_size, tag

# ---- axes ----

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


# ---- elements ----

WIDTH: Final = 400
HEIGHT: Final = 220
_LEFT: Final = 52
_RIGHT: Final = WIDTH - 12
_TOP: Final = 20
_BOTTOM: Final = HEIGHT - 42
_LETTER: Final = 6.6  # width of a character of a label, at 11 pixels
_GAP: Final = 10  # between two labels
_RADIUS: Final = 3  # radius of a bar's upper corners
METER_HEIGHT: Final = 30


class Area(NamedTuple):
    """The plotting area; y grows downwards."""

    left: float
    right: float
    top: float
    bottom: float


AREA: Final = Area(_LEFT, _RIGHT, _TOP, _BOTTOM)


def picture(description: str, *marks: str, height: int = HEIGHT) -> Markup:
    """A plot of the given elements; `description` describes it in words."""
    box = f"0 0 {WIDTH} {height}"
    return tag("svg", *marks, viewBox=box, role="img", aria_label=description)


def words(text: str, x: float, y: float, *, anchor: str = "middle", class_: str = "tick") -> Markup:
    """A line of text."""
    return tag("text", text, x=float(x), y=float(y), text_anchor=anchor, class_=class_)


def rows_axis(scale: Scale, area: Area = AREA) -> Markup:
    """The axis on the left, with a grid line for each tick."""
    lines = []
    for value, label in scale.ticks:
        y = scale.at(value)
        kind = "base" if value == scale.low else "grid"
        lines.append(tag("line", x1=area.left, x2=area.right, y1=y, y2=y, class_=kind))
        lines.append(words(label, area.left - 8, y + 4, anchor="end"))
    return join(lines)


def columns_axis(scale: Scale, title: str, area: Area = AREA, *, grid: bool = False) -> Markup:
    """The axis at the bottom; if labels would overlap, only every second, third … tick has one."""
    parts = [words(title, (area.left + area.right) / 2, area.bottom + 36, class_="axis")]
    widest = max((len(tick.label) for tick in scale.ticks), default=0) * _LETTER
    places = [scale.at(tick.value) for tick in scale.ticks]
    apart = min((right - left for left, right in pairwise(places)), default=float(WIDTH))
    every = ceil((widest + _GAP) / apart)
    for index, (x, (_, label)) in enumerate(zip(places, scale.ticks, strict=True)):
        if grid:
            parts.append(tag("line", x1=x, x2=x, y1=area.top, y2=area.bottom, class_="grid"))
        parts.append(tag("line", x1=x, x2=x, y1=area.bottom, y2=area.bottom + 4, class_="base"))
        if index % every == 0:
            parts.append(words(label, min(x, WIDTH - len(label) * _LETTER / 2), area.bottom + 17))
    return join(parts)


def steps(points: Sequence[tuple[float, float]], end: float, base: float) -> Markup:
    """A step line through the points, the last one up to `end`, and the area between it and `base`."""
    parts = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for x, y in points[1:]:
        parts.append(f"H{x:.1f}V{y:.1f}")
    line = "".join(parts) + f"H{end:.1f}"
    area = f"{line}V{base:.1f}H{points[0][0]:.1f}Z"
    return join((tag("path", d=area, class_="area"), tag("path", d=line, class_="line")))


def bands(places: Iterable[tuple[float, float, str]], area: Area = AREA) -> Markup:
    """Invisible columns from x to x with tooltips."""
    return join(
        tag("rect", tag("title", text), x=left, y=area.top, width=max(right - left, 0.5),
            height=area.bottom - area.top, class_="band")
        for left, right, text in places
    )  # fmt: skip


def bar(left: float, right: float, top: float, bottom: float, text: str) -> Markup:
    """A bar on `bottom` with rounded upper corners."""
    radius = min(_RADIUS, (right - left) / 2, bottom - top)
    path = (
        f"M{left:.1f} {bottom:.1f}V{top + radius:.1f}Q{left:.1f} {top:.1f} {left + radius:.1f} {top:.1f}"
        f"H{right - radius:.1f}Q{right:.1f} {top:.1f} {right:.1f} {top + radius:.1f}V{bottom:.1f}Z"
    )
    return tag("path", tag("title", text), d=path, class_="bar")


def dot(x: float, y: float, text: str, radius: float = 5.0) -> Markup:
    """A dot."""
    return tag("circle", tag("title", text), cx=x, cy=y, r=radius, class_="dot")


def meter(fill: float, limit: float, state: str, description: str) -> Markup:
    """A share on a scale from 0 to 1, with a line at the limit. More than 1 fills the scale.

    Args:
        fill: the share.
        limit: position of the line.
        state: the class that sets the colour.
        description: describes it in words.
    """
    length, mark = WIDTH * min(fill, 1.0), WIDTH * limit
    return picture(
        description,
        tag("rect", x=0, y=6, width=WIDTH, height=12, rx=6, class_="track"),
        tag("rect", x=0, y=6, width=length, height=12, rx=min(6.0, length / 2), class_=f"fill {state}"),
        tag("line", x1=mark, x2=mark, y1=0, y2=24, class_="limit"),
        tag("title", description),
        height=METER_HEIGHT,
    )


# ---- plots ----

_BANDS: Final = 60  # points along a plot with a tooltip
_LOG_FROM: Final = 50  # times the median: if the longest wait is at least this, the axis is logarithmic
_NEARBY: Final = 1e-6  # of a position: width of the axis around a single one
_WIDEST: Final = 48.0  # a bar, in the units of a plot
_LEAST: Final = 1e-9  # of the longest wait: smaller values are drawn at the left end


def _figure(title: str, drawing: Markup) -> Markup:
    return tag("figure", tag("figcaption", title), drawing)


# ---- depth ----


def depth_chart(series: DepthSeries) -> Markup:
    """Messages on the queue, over time or over the bytes that were written."""
    points = series.points
    if not points:
        return _figure("Depth", missing("the depth of the queue is unknown"))
    across = _along(series)
    up = upward(max(point.depth for point in points), AREA.bottom, AREA.top)
    peak = max(points, key=lambda point: point.depth)
    drawn = [(across.at(at), up.at(depth)) for at, depth in points]
    end = across.at(across.high)
    description = (
        f"Depth over {series.axis.value}: {plural(peak.depth, 'message')} at most, "
        f"{plural(points[-1].depth, 'message')} at the end"
    )
    return _figure(
        "Depth",
        picture(
            description,
            rows_axis(up),
            columns_axis(across, _along_title(series, across)),
            steps(drawn, end, AREA.bottom),
            _peak(across.at(peak.at), up.at(peak.depth), peak.depth),
            bands(_depth_bands(series, across)),
        ),
    )


def _along(series: DepthSeries) -> Scale:
    """The axis of a series: the last bucket is assumed to be as wide as the average of the others."""
    first, last = float(series.points[0].at), float(series.points[-1].at)
    end = min(last + (last - first) / max(len(series.points) - 1, 1), MAX_AT[series.axis.value])
    if end <= first:
        # One point, or positions so large that they differ by less than floating point can show: use a non-empty axis.
        first, end = max(first - max(1.0, first * _NEARBY), 0.0), max(end, 1.0)
    place = times if series.axis is Axis.TIME else positions
    return place(first, end, AREA.left, AREA.right)


def _along_title(series: DepthSeries, across: Scale) -> str:
    if series.axis is Axis.POSITION:
        return "position in the journal: bytes written"
    first, last = day(across.low), day(across.high)
    return f"time (UTC), {first}" if first == last else f"time (UTC), {first} to {last}"


def _peak(x: float, y: float, depth: int) -> Markup:
    """The maximum, marked and labelled on the side that has room."""
    text = f"peak {count(depth)}"
    anchor = "start" if x < (AREA.left + AREA.right) / 2 else "end"
    return join((dot(x, y, text, radius=3.5), words(text, x, y - 8, anchor=anchor, class_="value")))


def _depth_bands(series: DepthSeries, across: Scale) -> list[tuple[float, float, str]]:
    points = series.points
    size = ceil(len(points) / _BANDS)
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    ends = [*(group[0].at for group in groups[1:]), across.high]
    return [
        (across.at(group[0].at), across.at(end), _band_text(series.axis, group, end))
        for group, end in zip(groups, ends, strict=True)
    ]


def _band_text(axis: Axis, group: Sequence[DepthPoint], end: float) -> str:
    place = moment if axis is Axis.TIME else short_size
    deepest = plural(max(point.depth for point in group), "message")
    return f"{place(group[0].at)} to {place(end)}: {deepest} at most"


# ---- sizes ----


def size_chart(bins: tuple[SizeBin, ...]) -> Markup:
    """Number of messages by size; all bars have the same width, whatever the width of their bins.

    Messages that all have the same size need no plot.
    """
    total = sum(entry.messages for entry in bins)
    if not total:
        return _figure("Message sizes", missing("no message was measured"))
    if len(bins) == 1 and bins[0].high == bins[0].low + 1:
        of = "the only message" if total == 1 else f"each of {plural(total, 'message')}"
        return _figure("Message sizes", tag("p", tag("strong", human(bins[0].low)), of, class_="single"))
    up = upward(max(entry.messages for entry in bins), AREA.bottom, AREA.top)
    width = (AREA.right - AREA.left) / len(bins)
    edges = [*(short_size(entry.low) for entry in bins), short_size(bins[-1].high)]
    across = Scale(0, len(bins), AREA.left, AREA.right, tuple(Tick(index, label) for index, label in enumerate(edges)))
    margin = max(1.0, (width - _WIDEST) / 2)
    bars = [
        bar(AREA.left + index * width + margin, AREA.left + (index + 1) * width - margin, up.at(entry.messages),
            AREA.bottom, _bin_text(entry, total))
        for index, entry in enumerate(bins) if entry.messages
    ]  # fmt: skip
    most = max(bins, key=lambda entry: entry.messages)
    description = f"Message sizes: {plural(total, 'message')}; most in one bin: {_bin_text(most, total)}"
    return _figure(
        "Message sizes", picture(description, rows_axis(up), columns_axis(across, "size of a message"), *bars)
    )


def _bin_text(entry: SizeBin, total: int) -> str:
    messages = plural(entry.messages, "message")
    return f"{short_size(entry.low)} to below {short_size(entry.high)}: {messages} ({share(entry.messages / total)})"


# ---- waits ----


def wait_text(value: float, unit: WaitUnit) -> str:
    """A wait with its unit, abbreviated."""
    if unit is WaitUnit.SECONDS:
        return duration(value)
    return short_size(value) if unit is WaitUnit.BYTES else short(value)


def wait_chart(waits: Waits | None) -> Markup:
    """Percentiles of the wait from enqueue to dequeue, in seconds or the unit in which it was measured."""
    if waits is None:
        return _figure("Waits", missing("no message was both enqueued and dequeued in this journal"))
    rows = (("p50", waits.p50), ("p90", waits.p90), ("p99", waits.p99), ("max", waits.longest))
    across = _wait_axis(waits)
    gap = (AREA.bottom - AREA.top) / len(rows)
    left = across.at(across.low)
    marks = []
    for index, (name, value) in enumerate(rows):
        x, y = across.at(max(value, across.low)), AREA.top + gap * (index + 0.5)
        text = wait_text(value, waits.unit)
        inside = x > (AREA.left + AREA.right) / 2
        marks += [
            words(name, AREA.left - 8, y + 4, anchor="end"),
            tag("line", x1=left, x2=x, y1=y, y2=y, class_="stem"),
            dot(x, y, f"{name}: {text}"),
            words(text, x - 10 if inside else x + 10, y - 7 if inside else y + 4,
                  anchor="end" if inside else "start", class_="value"),
        ]  # fmt: skip
    listed = ", ".join(f"{name} {wait_text(value, waits.unit)}" for name, value in rows)
    description = f"Waits of {plural(waits.count, 'message')} in {waits.unit.value}: {listed}"
    title = ("time" if waits.unit is WaitUnit.SECONDS else waits.unit.value) + (", log scale" if across.is_log else "")
    caption = f"Waits of {plural(waits.count, 'dequeued message', 'dequeued messages')}"
    return _figure(caption, picture(description, columns_axis(across, title, grid=True), *marks))


def _wait_axis(waits: Waits) -> Scale:
    label = short_size if waits.unit is WaitUnit.BYTES else short
    in_seconds = waits.unit is WaitUnit.SECONDS
    if waits.p50 > 0 and waits.longest > waits.p50 * _LOG_FROM:
        low = max(waits.p50, waits.longest * _LEAST)
        if in_seconds:
            return waiting_powers(low, waits.longest, AREA.left, AREA.right)
        return powers(low, waits.longest, AREA.left, AREA.right, label)
    if in_seconds:
        return waiting(waits.longest, AREA.left, AREA.right)
    return upward(waits.longest, AREA.left, AREA.right, label)


# ---- fill ---- level


def fill_meter(sizing: Sizing, fill: float, *, near: bool) -> Markup:
    """How full the journal became, and where it refuses enqueues."""
    state = "reached" if fill >= 1 else "near" if near else "calm"
    description = (
        f"{share(fill)} of the limit was in use at the peak; the limit is {share(sizing.limit)} of the journal"
    )
    return meter(fill * sizing.limit, sizing.limit, state, description)


def missing(why: str) -> Markup:
    """The text in place of a plot that cannot be drawn."""
    return tag("p", why, class_="missing")
