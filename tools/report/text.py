"""Numbers with units, for people."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from qstore.tools.console.amounts import human
from qstore.tools.metrics import percent

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
