"""Numbers, times and values of objects, as text."""

from __future__ import annotations

import time
import uuid
from typing import Any, Final

from qstore.broker.client.address import format_value
from qstore.broker.management.console.values import key_of
from qstore.tools.console.text import printable

_SUFFIXES: Final = ("", "k", "m", "g", "t")
_LIMITS: Final = (1_000, 999_500, 999_500_000, 999_500_000_000)
"""From each of them on, the next suffix is shown."""
_NANOSECONDS: Final = 1_000_000_000


def compact(value: Any) -> str:
    """A number in at most four digits: 999, 1.23k, 12.3m."""
    if not isinstance(value, int) or isinstance(value, bool):
        return shown(value)
    step = 0
    while step < len(_LIMITS) and abs(value) >= _LIMITS[step]:
        step += 1
    if not step:
        return str(value)
    scaled = value / 1000**step
    decimals = 2 if abs(scaled) < 9.995 else 1 if abs(scaled) < 99.95 else 0
    return f"{scaled:.{decimals}f}{_SUFFIXES[step]}"


def full(value: Any) -> str:
    """A number with separators: 1,234,567."""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else shown(value)


def duration(nanoseconds: Any) -> str:
    """A duration: 3d 4h 5m 6s; the largest unit first, without leading zeros."""
    if not isinstance(nanoseconds, int):
        return shown(nanoseconds)
    seconds = max(0, nanoseconds) // _NANOSECONDS
    parts = ((seconds // 86_400, "d"), (seconds // 3600 % 24, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s"))
    first = next((index for index, (number, _) in enumerate(parts) if number), 3)
    return " ".join(f"{number}{unit}" for number, unit in parts[first:])


def clock(nanoseconds: int, *, is_long: bool = False) -> str:
    """A time of day, or with the date; `-` for none."""
    if not nanoseconds:
        return "-"
    seconds = time.localtime(nanoseconds / _NANOSECONDS)
    return time.strftime("%Y-%m-%d %H:%M:%S" if is_long else "%H:%M:%S", seconds)


def shown(value: Any) -> str:
    """Any value on one line: a reference by the key of its object, maps and lists in the syntax of addresses."""
    if value is None:
        return ""
    if isinstance(value, dict) and value.keys() <= {"_object_name", "_agent_name", "_agent_epoch"} and value:
        return printable(reference(value))
    if isinstance(value, (dict, list)):
        return printable(format_value(plain(value)))
    if isinstance(value, bytes):
        return printable(value.decode("utf-8", "surrogateescape"))
    return printable(str(value))


def reference(value: Any) -> str:
    """The key of the object to which a value refers; empty if it refers to none."""
    name = value.get("_object_name") if isinstance(value, dict) else None
    return key_of(name) if isinstance(name, str) else ""


def plain(value: Any) -> Any:
    """A value as JSON can carry it."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return value if value is None or isinstance(value, (bool, int, float, str)) else _text(value)


def _text(value: object) -> str:
    return str(value) if isinstance(value, uuid.UUID) else printable(str(value))
