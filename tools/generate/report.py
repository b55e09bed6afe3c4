"""The report of `qstore-generate`: a table of stores, and a line with the totals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from qstore.formats.wording import plural
from qstore.tools.console.tables import Column, print_grid
from qstore.tools.generate.make import Fields
from qstore.tools.size.amounts import human

_MAX_SHOWN: Final = 100  # stores; --json shows all
_JOURNALS: Final = Column("BYTES OF JOURNALS", cell=lambda store: human(store["journal_bytes"]), number=True)


def _number(title: str, name: str) -> Column:
    return Column(title, cell=lambda store: f"{store[name]:,}", number=True)


def _in_doubt(store: Mapping[str, Any]) -> str:
    return f"{store['in_doubt_enqueues'] + store['in_doubt_dequeues']:,}"


_MADE: Final = (
    _number("QUEUES", "queues"),
    _number("SENT", "sent"),
    _number("DEQUEUED", "taken"),
    _number("OUTSTANDING", "outstanding"),
    Column("IN DOUBT", cell=_in_doubt, number=True),
    _number("DAMAGE", "damage"),
    _number("TORN", "torn"),
    _JOURNALS,
)
_PLANNED: Final = (
    _number("QUEUES", "queues"),
    _number("MESSAGES (APPROX.)", "expected_messages"),
    _number("DAMAGE (MAX.)", "damage"),
    _JOURNALS,
)


def show_made(console: Console, directory: str, stores: Sequence[Fields], seconds: float) -> None:
    """Print what was created."""
    _show_table(console, _MADE, stores)
    size = sum(store["journal_bytes"] for store in stores)
    rate = f"{human(int(size / seconds))}/s" if seconds > 0 else "immediately"
    _sum(console, stores, f"{human(size)} of journals in {directory} in {seconds:.1f} s ({rate})")


def show_planned(console: Console, stores: Sequence[Fields]) -> None:
    """Print what would be created."""
    _show_table(console, _PLANNED, stores)
    size = sum(store["journal_bytes"] for store in stores)
    _sum(console, stores, f"{size:,} bytes of journals ({human(size)}), nothing written")


def _sum(console: Console, stores: Sequence[Fields], rest: str) -> None:
    more = len(stores) - _MAX_SHOWN
    if more > 0:
        console.print(f"… and {more:,} more; --json shows all")
    console.print(Text(f"{plural(len(stores), 'store')}, {rest}"))


def _show_table(console: Console, columns: Sequence[Column], stores: Sequence[Fields]) -> None:
    rows = [[store["name"], *(column.cell(store) for column in columns)] for store in stores[:_MAX_SHOWN]]
    print_grid(console, (Column("STORE"), *columns), rows)
