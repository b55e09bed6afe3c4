"""Consequences of losing each file of the linearstore of `planted_stores`, and its links."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Final

from tests.support.planted_damage import OUTSTANDING, SKIPPED, UNPREPARED, Finding, Original, Planted, Spot, back, lost

LOST_FILE: Final = "records in it are lost"
Changes = dict[str, str | None]
ORDERS_0: Final[Changes] = lost("third", "fourth", "sixth", "local put", "branch put")
ORDERS_1: Final[Changes] = {
    **lost("decided put", "closing put", "ninth", "tenth", "open"),
    **back("fifth", "seventh", "eighth"),
    "fourth": OUTSTANDING,
}
NO_LIST: Final[Changes] = {
    **lost("branch put", "decided put"),
    **back("fourth", "fifth"),
    "branch": UNPREPARED,
    "decided": UNPREPARED,
}
#: What is lost with each file of `bills`; `bill 36` goes on from the second in the third.
BILLS: Final[dict[int, Changes]] = {
    17: lost("bill 34"),
    18: lost("bill 35", "bill 36"),
    19: lost("bill 36", "bill 37"),
    20: {**lost("bill 38", "bill 39"), **back("bill 33")},
}
DIRECTORY: Final = "qls/jrnl2/c.q2"


def link(original: Original, journal: str, number: int) -> str:
    """The link to a file, below the store directory."""
    directory = {"orders": "qls/jrnl2/c.q1", "bills": DIRECTORY, "prepared": "qls/tpl2"}[journal]
    return f"{directory}/{PurePosixPath(original.files[journal][number]).name}"


def remove(journal: str, number: int) -> Callable[[Planted], None]:
    return lambda planted: planted.remove(planted.original.files[journal][number])


def unlink(journal: str, number: int) -> Callable[[Planted], None]:
    return lambda planted: planted.remove(link(planted.original, journal, number))


def remove_with_link(journal: str, number: int) -> Callable[[Planted], None]:
    def do(planted: Planted) -> None:
        unlink(journal, number)(planted)
        remove(journal, number)(planted)

    return do


def gap(number: int) -> list[Finding]:
    """What is said of the files around one that is lost."""
    missing = Finding(Spot(DIRECTORY, None), f"file {number + 1} is missing", LOST_FILE)
    cut_off = Finding("bill 36", "enqueue record without its tail", SKIPPED)
    return {18: [missing], 19: [missing, cut_off]}.get(number, [])
