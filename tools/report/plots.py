"""Drawing elements of plots, as inline SVG: a frame with two axes, steps, bars, dots, a meter.

A plot is an image of `WIDTH` × `HEIGHT` that the page scales to its column. Colours come from the style sheet, by
class, so that light, dark and print need no second image. The meaning of an element is in its `title`, which browsers
show as a tooltip; `aria-label` describes the whole plot in words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import ceil
from typing import Final, NamedTuple

from qstore.tools.report.markup import Markup, join, tag
from qstore.tools.report.scales import Scale

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
