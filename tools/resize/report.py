"""The report of `qstore-resize`: a line for each journal, as a table or as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from rich.console import Console

from qstore.formats.rhm.geometry import PAGE_SIZE, Geometry
from qstore.formats.wording import plural
from qstore.store.repair.resize_plan import JournalPlan
from qstore.tools.console.tables import Column, print_line, print_table
from qstore.tools.console.text import printable
from qstore.tools.size.amounts import human
from qstore.tools.size.formula import number, pages

Object = dict[str, Any]

_COLUMNS = (
    Column("journal", folds=True),
    Column("messages", number=True),
    Column("open tx", number=True, spare=True),
    Column("live", number=True, spare=True),
    Column("now"),
    Column("new"),
    Column("capacity", number=True, spare=True),
    Column("result"),
)


#: A queue's name -> a smaller recommended geometry that was not applied.
Left = Mapping[str, Geometry]


def result_of(plan: JournalPlan, kept: Mapping[str, str] | None, left: Left) -> str:
    """The result for a journal; `kept` is None if nothing was done."""
    if not plan.fits:
        return "too-small"
    if not plan.is_change:
        return "would-shrink" if plan.name in left else "unchanged"
    return "planned" if kept is None else "resized"


# ---- JSON ----


def plan_object(plan: JournalPlan, kept: Mapping[str, str] | None, left: Left) -> Object:
    """One journal as a JSON object."""
    smaller = left.get(plan.name)
    return {
        "kind": "journal",
        "role": "prepared-list" if plan.entry is None else "queue",
        "queue": plan.name,
        "messages": plan.messages,
        "open_transactions": plan.transactions,
        "live_bytes": plan.live_bytes,
        "before": _geometry_object(plan.before),
        "after": _geometry_object(plan.after),
        "result": result_of(plan, kept, left),
        "recommended_smaller": None if smaller is None else _geometry_object(smaller),
        "would_fit": [_geometry_object(geometry) for geometry in plan.would_fit],
        "kept": None if kept is None else kept.get(plan.name),
    }


def discarded_object(path: str) -> Object:
    """An old journal that was removed."""
    return {"kind": "discarded", "file": path}


def summary_object(
    plans: Sequence[JournalPlan], kept: Mapping[str, str] | None, discarded: Sequence[str], left: Left
) -> Object:
    """The totals."""
    results = [result_of(plan, kept, left) for plan in plans]
    names = ("resized", "planned", "unchanged", "would-shrink", "too-small")
    counts = {name.replace("-", "_"): results.count(name) for name in names}
    return {"kind": "summary", **counts, "discarded": len(discarded)}


def _geometry_object(geometry: Geometry) -> Object:
    return {
        "num_jfiles": geometry.files,
        "jfile_size_pgs": number(Fraction(geometry.data_size, PAGE_SIZE)),
        "capacity": geometry.capacity,
    }


# ---- text ----


def print_plans(console: Console, plans: Sequence[JournalPlan], kept: Mapping[str, str] | None, left: Left) -> None:
    """A line for each journal, then those that do not fit, those not shrunk, and where the old ones are."""
    if not plans:
        return
    print_table(console, _COLUMNS, [_row(plan, kept, left) for plan in plans])
    for plan in plans:
        if not plan.fits:
            print_line(console, too_small_text(plan))
        elif plan.name in left:
            what = f"{_cell(left[plan.name])} is enough for the present messages"
            print_line(
                console,
                f"{printable(plan.name)}: not changed from {_cell(plan.before)}; {what}: use --shrink to apply that",
            )
    for path in (kept or {}).values():
        print_line(console, f"The old journal is preserved in {printable(path)} until --discard-old.")


def too_small_text(plan: JournalPlan) -> str:
    """What does not fit, and which sizes would be large enough."""
    choices = [f"--num-jfiles {each.files} --jfile-size-pgs {_pages(each)}" for each in plan.would_fit]
    advice = " or ".join(choices) if choices else "none; consume some messages first"
    return (
        f"{printable(plan.name)}: {plural(plan.messages, 'message')} and "
        f"{plural(plan.transactions, 'open transaction')}, {human(plan.live_bytes)}, do not fit into "
        f"{_cell(plan.after)}; large enough: {advice}"
    )


def _row(plan: JournalPlan, kept: Mapping[str, str] | None, left: Left) -> list[str]:
    return [
        printable(plan.name),
        f"{plan.messages:,}",
        f"{plan.transactions:,}",
        human(plan.live_bytes),
        _cell(plan.before),
        _cell(plan.after),
        human(plan.after.capacity),
        result_of(plan, kept, left).replace("-", " "),
    ]


def _pages(geometry: Geometry) -> str:
    return str(number(Fraction(geometry.data_size, PAGE_SIZE)))


def _cell(geometry: Geometry) -> str:
    return f"{geometry.files} x {pages(number(Fraction(geometry.data_size, PAGE_SIZE)))}"
