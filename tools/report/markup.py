"""HTML that is escaped by type, and numbers with units, for people.

`tag` creates an element. Text in it, and in its attributes, is made visible and escaped unless it is `Markup`, which
only the functions here and the page's own assets create. So no name from a store can become a tag.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import takewhile
from typing import Final

from qstore.tools.console.amounts import human
from qstore.tools.console.text import visible
from qstore.tools.metrics import percent

_VOID: Final = frozenset({"meta", "input"})
_OWN: Final = frozenset({"d", "content"})


class Markup(str):
    """Text that is already HTML."""

    __slots__ = ()


def escape(text: str) -> Markup:
    """The text as HTML; `Markup` is returned unchanged."""
    return text if isinstance(text, Markup) else Markup(html.escape(visible(text)))


def tag(name: str, /, *children: str, **attributes: str | float | bool | None) -> Markup:
    """An element.

    Args:
        name: its name.
        children: its content.
        attributes: `class_` is class, `data_value` data-value. True is an attribute without a value; with False or
            None it is omitted.
    """
    opening = name + "".join(
        _attribute(key, value) for key, value in attributes.items() if value is not None and value is not False
    )
    if name in _VOID:
        return Markup(f"<{opening}>")
    return Markup(f"<{opening}>{''.join(map(escape, children))}</{name}>")


def _attribute(key: str, value: str | float | bool) -> str:
    key = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {key}"
    # Coordinates: a tenth of a pixel is enough, and integers are written as such.
    text = f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
    # Generated values may have any length: a plot's path, the policy.
    return f' {key}="{html.escape(text if key in _OWN else visible(text))}"'


def join(parts: Iterable[str]) -> Markup:
    """Concatenate elements."""
    return Markup("".join(map(escape, parts)))


def name_of(text: str, **attributes: str) -> Markup:
    """A name from a store, isolated so that its writing direction does not affect the surrounding text."""
    return tag("bdi", text or "(no name)", **attributes)


def short_names(paths: Iterable[str]) -> dict[str, str]:
    """Of several paths those parts that follow the directory that they share; empty if there are fewer than two."""
    every = sorted(set(paths))
    if len(every) < 2:
        return {}
    parts = [path.split("/")[:-1] for path in every]
    shared = sum(1 for _ in takewhile(lambda each: len(set(each)) == 1, zip(*parts, strict=False)))
    return {path: "/".join(path.split("/")[shared:]) for path in every}


def store_name(path: str, tails: Mapping[str, str]) -> Markup:
    """A store's path; the part that tells it from the other stores is emphasized."""
    tail = tails.get(path, path)
    directory = path[: len(path) - len(tail)]
    if not directory or not tail:
        return name_of(path)
    return join((name_of(directory, class_="quiet"), tag("strong", name_of(tail))))


# ---- numbers with units, for people ----

_PREFIXES: Final = ("", "k", "M", "G", "T", "P", "E")
_DURATIONS: Final = ((86400, "d"), (3600, "h"), (60, "min"))


def count(number: int) -> str:
    """A whole number with thousands separators: `12,345`."""
    return f"{number:,}"


def short(number: float) -> str:
    """A number with about three digits, for the ticks of an axis: `0.25`, `950`, `1.5k`, `20M`."""
    scaled, power = float(number), 0
    while scaled >= 999.5 and power < len(_PREFIXES) - 1:
        scaled /= 1000
        power += 1
    return f"{scaled:.3g}{_PREFIXES[power]}"


def short_size(size: float) -> str:
    """Bytes with about three digits: `0`, `512 B`, `1.5 KiB`, `64 MiB`."""
    if size == 0:
        return "0"
    number, unit = human(round(size)).split(" ")
    return f"{float(number):.4g} {'B' if unit == 'bytes' else unit}"


def duration(seconds: float) -> str:
    """A duration: `0 s`, `250 µs`, `12 ms`, `4.5 s`, `3 min 20 s`, `2 d 3 h`."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} µs" if seconds else "0 s"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    whole, parts = round(seconds), []
    for size, name in _DURATIONS:
        if whole >= size:
            parts.append(f"{whole // size:,} {name}")
            whole %= size
    if whole:
        parts.append(f"{whole} s")
    return " ".join(parts[:2])


def share(value: float) -> str:
    """A share as a percentage, as in all tools: `63.0%`, `0.4%`."""
    return percent(value)


def rate(per_second: float) -> str:
    """A rate: `1,250/s`, `3.4/s`, `0.02/s`."""
    if 0 < per_second < 0.01:
        return "< 0.01/s"
    return f"{per_second:,.0f}/s" if per_second >= 9.95 else f"{per_second:.2g}/s"


def size_rate(per_second: float) -> str:
    """A rate in bytes per second: `1.50 MiB/s`."""
    return "< 1 byte/s" if 0 < per_second < 1 else f"{human(round(per_second))}/s"


def moment(seconds: float) -> str:
    """A time in seconds since 1970, formatted in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def day(seconds: float) -> str:
    """The UTC date of a time in seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")
