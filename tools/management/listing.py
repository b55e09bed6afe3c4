"""Lists of objects: a table, or a JSON object a line.

A table has the format of qpid's tools, on which scripts rely, unless it is on a terminal: a title, column headings, a
rule, and rows in columns. On a terminal it is fitted to the width: columns that may be spared are left out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

from rich.cells import cell_len
from rich.console import Console

from qstore.broker.management.console import Data
from qstore.tools.console.json_lines import JsonLines
from qstore.tools.console.tables import Column, print_line, print_table
from qstore.tools.management.amounts import plain

_Row = TypeVar("_Row")
_GAP: Final = "  "
_FRAMED_ROWS: Final = 500
"""More rows are not framed, since that takes long."""


def print_listing(
    title: str, columns: Sequence[Column], rows: Sequence[Sequence[str]], *, indent: str = _GAP, rule: int = 2
) -> None:
    """Print a table under its title; an empty one is none.

    Args:
        title: may be empty.
        columns: only title, number, spare and folds count. If the last one folds, the rule is not as wide as its cells.
        rows: the cells.
        indent: in front of each line that is not on a terminal.
        rule: by how much the rule is longer than the headings.
    """
    console = Console(highlight=False)
    if title:
        print_line(console, title)
    if console.is_terminal and len(rows) <= _FRAMED_ROWS:
        print_table(console, columns, rows)
        return
    widths = [
        max([cell_len(column.title), *(cell_len(row[index]) for row in rows)]) for index, column in enumerate(columns)
    ]
    chosen = _fitted(columns, widths, console.width) if console.is_terminal else list(range(len(columns)))
    lines = [_line([column.title for column in columns], columns, widths, chosen, indent)]
    last = chosen[-1]
    ruled = [
        *(widths[index] for index in chosen[:-1]),
        len(columns[last].title) if columns[last].folds else widths[last],
    ]
    length = sum(ruled) + len(_GAP) * (len(chosen) - 1)
    lines.append(indent + "=" * (length + rule))
    lines += (_line(row, columns, widths, chosen, indent) for row in rows)
    console.file.write("\n".join(lines) + "\n")


def _line(
    cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int], chosen: Sequence[int], indent: str
) -> str:
    parts = []
    for index in chosen:
        cell = cells[index]
        padding = " " * (widths[index] - (len(cell) if cell.isascii() else cell_len(cell)))
        parts.append(padding + cell if columns[index].number else cell + padding)
    return indent + _GAP.join(parts).rstrip()


def _fitted(columns: Sequence[Column], widths: Sequence[int], room: int) -> list[int]:
    """The columns that fit a width: those that may be spared are left out from the last one on."""
    chosen = list(range(len(columns)))
    for index in reversed(range(len(columns))):
        if sum(widths[each] for each in chosen) + len(_GAP) * len(chosen) <= room:
            break
        if columns[index].spare:
            chosen.remove(index)
    return chosen


def print_json(objects: Iterable[dict[str, Any]]) -> None:
    """Print one JSON object a line."""
    lines = JsonLines(sys.stdout.buffer)
    for each in objects:
        lines.show(each)
    lines.flush()


def json_object(data: Data) -> dict[str, Any]:
    """An object as JSON: its class, its identity, and its values with their names in the schema."""
    found: dict[str, Any] = {"kind": data.class_name}
    if data.object_id is not None:
        found["object"] = data.object_id.name
    found |= plain(data.values)
    return found


def sorted_rows(
    columns: Sequence[Column],
    rows: Sequence[tuple[Sequence[Any], _Row]],
    by: str | None,
    *,
    is_increasing: bool,
    limit: int | None,
) -> list[_Row]:
    """Rows, sorted by a column and cut to a limit.

    Args:
        columns: the columns.
        rows: the values of each row, in the order of the columns, and the row.
        by: the title of a column, in any case; None: as they are.
        is_increasing: whether the smallest comes first.
        limit: number of rows; None for all.

    Raises:
        ValueError: there is no such column; the text is for the user.
    """
    if by is not None:
        titles = [column.title.lower() for column in columns]
        if by.lower() not in titles:
            raise ValueError(
                f"there is no column {by!r}; the columns are {', '.join(column.title for column in columns)}"
            )
        index = titles.index(by.lower())
        rows = sorted(rows, key=lambda row: _key(row[0][index]), reverse=not is_increasing)
    return [shown for _, shown in rows][:limit]


def _key(value: Any) -> tuple[int, float, str]:
    """Sorts numbers before texts, and what is not there first."""
    if value is None:
        return 0, 0.0, ""
    if isinstance(value, (int, float)):
        return 1, float(value), ""
    return 2, 0.0, str(value)
