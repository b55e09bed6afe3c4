"""Small tables for people: framed on a terminal, plain aligned columns elsewhere.

All rows are known before the first is printed, so that each column is as wide as its widest cell. On a terminal that
is too narrow, columns that can be spared are left out, from the last on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

_GAP: Final = "  "
_FRAMED_GAP: Final = 3
_EDGES: Final = 2  # spaces beside a framed table


class Column(NamedTuple):
    """A column.

    Attributes:
        title: what stands above it.
        number: whether its cells are numbers.
        spare: whether it may be left out on a narrow terminal.
        folds: whether its cells may be broken into lines there.
    """

    title: str
    number: bool = False
    spare: bool = False
    folds: bool = False


def print_table(console: Console, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print rows of cells under their columns' titles."""
    if not console.is_terminal:
        titles = [column.title.upper() for column in columns]
        _print_aligned(console, columns, [titles, *rows])
        return
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    shown = _shown(columns, rows, console.width)
    for index in shown:
        column = columns[index]
        justify: Literal["left", "right"] = "right" if column.number else "left"
        table.add_column(column.title, justify=justify, overflow="fold", no_wrap=not column.folds)
    for row in rows:
        table.add_row(*(Text(row[index]) for index in shown))
    console.print(table)


def print_steps(console: Console, steps: Sequence[tuple[str, str]]) -> None:
    """Print what something is and how much it is, line by line."""
    _print_aligned(console, (Column(""), Column("")), steps)


def print_line(console: Console, text: str = "") -> None:
    """Print one line as it is."""
    console.file.write(text + "\n")


def _shown(columns: Sequence[Column], rows: Sequence[Sequence[str]], room: int) -> list[int]:
    """The columns that fit a terminal."""
    widths = [
        max(cell_len(cell) for cell in (column.title, *(row[index] for row in rows)))
        for index, column in enumerate(columns)
    ]
    shown = list(range(len(columns)))
    for index in reversed(range(len(columns))):
        if sum(widths[shown_index] for shown_index in shown) + _FRAMED_GAP * (len(shown) - 1) + _EDGES <= room:
            break
        if columns[index].spare:
            shown.remove(index)
    return shown


def _print_aligned(console: Console, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(cell_len(row[index]) for row in rows) for index in range(len(columns))]
    for row in rows:
        cells = []
        for cell, width, column in zip(row, widths, columns, strict=True):
            padding = " " * (width - cell_len(cell))
            cells.append(padding + cell if column.number else cell + padding)
        print_line(console, _GAP.join(cells).rstrip())
