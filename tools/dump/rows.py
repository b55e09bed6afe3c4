"""A table with lines of their own above and below its rows, for what would be cut or left out on a narrow terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

_HEAD_LINES = 2  # titles, and the rule below them
_INDENT = "    "


def print_rows(
    console: Console, table: Table, above: Sequence[Text | None], below: Sequence[Sequence[str]], *, has_rule: bool
) -> None:
    """Print a table, each row between its own lines.

    Args:
        console: where to.
        table: its rows take one line each, and it has no edge.
        above: what stands above each row; None for nothing.
        below: what stands below each row, indented.
        has_rule: a rule is below the titles.
    """
    lines = console.render_lines(table, pad=False)
    head = _HEAD_LINES if has_rule else _HEAD_LINES - 1
    for line in lines[:head]:
        console.print(Segments([*line, Segment.line()]), end="")
    for line, over, under in zip(lines[head:], above, below, strict=True):
        if over is not None:
            console.print(over, soft_wrap=True)
        console.print(Segments([*line, Segment.line()]), end="")
        for each in under:
            console.print(Text(_INDENT + each), soft_wrap=True)
