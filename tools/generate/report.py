"""A fleet for people: a table of its stores, and a line in sum; and a bar while it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from tools.generate.make import Fields
from tools.size.amounts import human

_MOST_SHOWN: Final = 100  # stores; --json shows all
#: Title of a column, and what it shows of a store.
_Columns = Sequence[tuple[str, Callable[[Fields], str]]]


def _number(name: str) -> Callable[[Fields], str]:
    return lambda store: f"{store[name]:,}"


_MADE: Final[_Columns] = (
    ("QUEUES", _number("queues")),
    ("SENT", _number("sent")),
    ("TAKEN", _number("taken")),
    ("OUTSTANDING", _number("outstanding")),
    ("IN DOUBT", lambda store: f"{store['in_doubt_enqueues'] + store['in_doubt_dequeues']:,}"),
    ("DAMAGE", _number("damage")),
    ("TORN", _number("torn")),
    ("BYTES OF JOURNALS", lambda store: human(store["journal_bytes"])),
)
_PLANNED: Final[_Columns] = (
    ("QUEUES", _number("queues")),
    ("MESSAGES, ABOUT", _number("expected_messages")),
    ("DAMAGE, AT MOST", _number("damage")),
    ("BYTES OF JOURNALS", lambda store: human(store["journal_bytes"])),
)


def show_made(console: Console, directory: str, stores: Sequence[Fields], seconds: float) -> None:
    """Print what was made."""
    console.print(_table(_MADE, stores, plain=not console.is_terminal))
    size = sum(store["journal_bytes"] for store in stores)
    rate = f"{human(int(size / seconds))}/s" if seconds > 0 else "at once"
    _sum(console, stores, f"{human(size)} of journals in {directory} in {seconds:.1f} s ({rate})")


def show_planned(console: Console, stores: Sequence[Fields]) -> None:
    """Print what would be made."""
    console.print(_table(_PLANNED, stores, plain=not console.is_terminal))
    size = sum(store["journal_bytes"] for store in stores)
    _sum(console, stores, f"{size:,} bytes of journals ({human(size)}), nothing written")


def _sum(console: Console, stores: Sequence[Fields], rest: str) -> None:
    more = len(stores) - _MOST_SHOWN
    if more > 0:
        console.print(f"… and {more:,} more; --json shows all")
    console.print(Text(f"{len(stores):,} {'store' if len(stores) == 1 else 'stores'}, {rest}"))


def _table(columns: _Columns, stores: Sequence[Fields], *, plain: bool) -> Table:
    table = Table(box=None if plain else box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("STORE", no_wrap=True)
    for title, _ in columns:
        table.add_column(title, justify="right", no_wrap=True)
    for store in stores[:_MOST_SHOWN]:
        table.add_row(store["name"], *(show(store) for _, show in columns))
    return table


@contextmanager
def writing_progress(total: int) -> Iterator[Callable[[int], None]]:
    """What is told how many bytes were made, and moves a bar, on standard error where that is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    text = TextColumn("{task.description}")
    columns: tuple[Any, ...] = (text, BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("writing stores", total=total)
        yield lambda count: bar.advance(task, count)
