"""Parsing and formatting numbers of bytes."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

from qstore.formats.wording import plural

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
