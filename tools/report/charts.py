"""The plots of a queue: its depth, message sizes, waiting times, and how full its journal became."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Final

from qstore.formats.wording import plural
from qstore.tools.console.amounts import human
from qstore.tools.report.content import MAX_AT, Axis, DepthPoint, DepthSeries, SizeBin, Sizing, Waits, WaitUnit
from qstore.tools.report.markup import Markup, join, tag
from qstore.tools.report.plots import AREA, bands, bar, columns_axis, dot, meter, picture, rows_axis, steps, words
from qstore.tools.report.scales import Scale, Tick, positions, powers, times, upward, waiting, waiting_powers
from qstore.tools.report.text import count, day, duration, moment, share, short, short_size

_BANDS: Final = 60  # points along a plot with a tooltip
_LOG_FROM: Final = 50  # times the median: if the longest wait is at least this, the axis is logarithmic
_NEARBY: Final = 1e-6  # of a position: width of the axis around a single one
_WIDEST: Final = 48.0  # a bar, in the units of a plot
_MIN: Final = 1e-9  # of the longest wait: smaller values are drawn at the left end


def _figure(title: str, drawing: Markup) -> Markup:
    return tag("figure", tag("figcaption", title), drawing)


# ---------------------------------------------------------------------------------------------- depth


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


# ---------------------------------------------------------------------------------------------- sizes


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


# ---------------------------------------------------------------------------------------------- waits


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
        low = max(waits.p50, waits.longest * _MIN)
        if in_seconds:
            return waiting_powers(low, waits.longest, AREA.left, AREA.right)
        return powers(low, waits.longest, AREA.left, AREA.right, label)
    if in_seconds:
        return waiting(waits.longest, AREA.left, AREA.right)
    return upward(waits.longest, AREA.left, AREA.right, label)


# ---------------------------------------------------------------------------------------------- fill level


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
