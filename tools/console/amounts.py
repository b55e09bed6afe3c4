"""Sizes, numbers, times and values: as text for people, and read from a command line.

parse_amount, human, exact   bytes: 4K or 4KiB is 4096, 4KB is 4000; `9.16 MiB`; `9,600,000 bytes (9.16 MiB)`
compact, full, duration      counters and times of a broker's objects: `1.23k`, `1,230`, `3d 4h 5m 6s`
clock, shown, plain          points in time, any value in one line, any value as JSON
Moment                       an option that takes a point in time
"""

from __future__ import annotations

import re
import time
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

import click

from qstore.broker.client.address import format_value
from qstore.broker.management.console.values import key_of
from qstore.formats.wording import plural
from qstore.tools.console.text import printable

MAX_AMOUNT: Final = (1 << 63) - 1  # bytes: the largest possible file
_AMOUNT = re.compile(
    r"(?P<number>[0-9]{1,20}(?:\.[0-9]{1,6})?) ?(?:(?P<prefix>[kmgt])(?P<binary>i?)(?P<byte>b?)|b)?", re.IGNORECASE
)
_PREFIXES: Final = "kmgt"
_UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


def parse_amount(text: str) -> int:
    """Parse a number of bytes: 150, 4K or 4KiB (4096), 4KB (4000), 1.5M.

    Raises:
        ValueError: it is not such a number, not a whole number of bytes, or larger than a file can be.
    """
    found = _AMOUNT.fullmatch(text.strip())
    if found is None or (found["binary"] and not found["byte"]):
        raise ValueError(f"{text!r} is not a size; examples: 150, 4K, 4KiB (4096), 4KB (4000), 1.5M")
    unit = 1
    if found["prefix"]:
        # As in GNU's commands: K and KiB are binary, KB is decimal.
        base = 1000 if found["byte"] and not found["binary"] else 1024
        unit = base ** (_PREFIXES.index(found["prefix"].lower()) + 1)
    amount = Decimal(found["number"]) * unit
    if amount != int(amount):
        raise ValueError(f"{text!r} is not a whole number of bytes")
    if amount > MAX_AMOUNT:
        raise ValueError(f"{text!r} is larger than a file can be")
    return int(amount)


def parse_count(text: str) -> int:
    """Parse a decimal count.

    Raises:
        ValueError: it is not one.
    """
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None


def human(size: int) -> str:
    """Format bytes in the unit in which they have one to three integer digits: `384 bytes`, `9.16 MiB`."""
    if size < 1024:
        return f"{size} {'byte' if size == 1 else 'bytes'}"
    scaled, power = float(size), 0
    while scaled >= 1024 and power < len(_UNITS) - 1:
        scaled /= 1024
        power += 1
    return f"{scaled:.2f} {_UNITS[power]}"


def exact(size: int) -> str:
    """Format bytes exactly, and in a larger unit if there is one: `9,600,000 bytes (9.16 MiB)`."""
    plain = plural(size, "byte")
    return plain if size < 1024 else f"{plain} ({human(size)})"


# ---- values of a broker's objects ----

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


# ---- times ----


class Moment(click.ParamType[int]):
    """Type of an option: a time in ISO 8601, or seconds since 1970. Without a zone it is in UTC."""

    name = "TIME"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Seconds since 1970."""
        text = str(value)
        if text.isascii() and text.isdecimal():
            return int(text)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            self.fail(f"{text!r} is neither a time like 2026-11-24T12:00:00Z nor seconds since 1970", param, ctx)
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
