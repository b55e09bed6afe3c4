"""Tables for people: framed on a terminal, plain aligned columns elsewhere.

There are three ways to fit rows to a width, because the commands differ in which columns may be omitted:

    print_table    unstyled cells; if the terminal is too narrow, optional columns are left out
    print_grid     styled cells; long ones are folded, and rows may have their own lines above and below
    print_objects  any number of columns; those that do not fit the terminal are printed on lines below their row

Plain columns of `print_table` are as wide as their widest cells. Objects in plain columns are printed one at a time, in
columns of fixed minimum widths (`aligned`, `below`), so that a dump of millions of them streams.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

from qstore.tools.console.text import printable

_GAP: Final = "  "
_FRAMED_GAP: Final = 3
_EDGES: Final = 2  # spaces beside a framed table
_MIN_CELL: Final = 8  # a cell may be cut to this many characters before its column is left out
_INDENT: Final = "    "
_HANG: Final = 8
_MIN_LINE: Final = 20


def _nothing(_fields: Mapping[str, Any]) -> str:
    return ""


class Column(NamedTuple):
    """A column.

    Attributes:
        title: the column's heading.
        width: minimum width in characters, in a grid and in the plain output of objects.
        cell: derives a cell from an object; unused if rows are given.
        number: whether it is a number (right-aligned).
        spare: whether it may be left out on a narrow terminal.
        folds: whether its cells may be wrapped there.
        long: for objects: cells may be long; on a narrow terminal they are cut before columns are left out.
        whole: for objects: cells are useless when cut, such as ids and places.
        apart: for objects: a cell is always printed on its own line below its row.
    """

    title: str
    width: int = 0
    cell: Callable[[Mapping[str, Any]], str] = _nothing
    number: bool = False
    spare: bool = False
    folds: bool = False
    long: bool = False
    whole: bool = False
    apart: bool = False


def print_line(console: Console, text: str = "") -> None:
    """Print one line without markup, highlighting or wrapping."""
    console.file.write(text + "\n")


def print_wrapped(console: Console, text: Text | str, *, style: str = "", hang: int = _HANG) -> None:
    """Print text; on a terminal in lines that break between words only, so that paths and names stay whole.

    Args:
        console: the output.
        text: without markup.
        style: of a plain text.
        hang: how far the lines after the first one are indented.
    """
    if isinstance(text, str):
        text = Text(text, style=style)
    if not console.is_terminal or text.cell_len <= console.width:
        console.print(text, soft_wrap=True)
        return
    plain, begin, pad = text.plain, 0, 0
    first_word = len(plain) - len(plain.lstrip(" "))
    while begin < len(plain):
        end = _line_end(plain, max(begin, first_word), begin + max(_MIN_LINE, console.width - pad))
        console.print(Text(" " * pad).append_text(text[begin:end]), soft_wrap=True)
        begin, pad = end + 1, first_word + hang


def _line_end(plain: str, begin: int, limit: int) -> int:
    """Where a line ends that begins with a word: at a space up to the limit, or else at the next one."""
    if len(plain) <= limit:
        return len(plain)
    space = plain.rfind(" ", begin, limit + 1)
    if space < 0:
        space = plain.find(" ", limit)
    return len(plain) if space < 0 else space


def note(kind: str, text: str) -> None:
    """Print a notice or a damage on standard error."""
    print_wrapped(Console(stderr=True, highlight=False), f"{kind}: {printable(text)}")


# ---- unstyled cells ----


def print_table(console: Console, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print rows of cells under their columns' titles, which are in capitals unless the output is a terminal."""
    if not console.is_terminal:
        titles = [column.title.upper() for column in columns]
        _print_fitted(console, columns, [titles, *rows])
        return
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    shown = _spared(columns, rows, console.width)
    for index in shown:
        column = columns[index]
        table.add_column(column.title, justify=_justify(column), overflow="fold", no_wrap=not column.folds)
    for row in rows:
        table.add_row(*(Text(row[index]) for index in shown))
    console.print(table)


def print_steps(console: Console, steps: Sequence[tuple[str, str]]) -> None:
    """Print name and value pairs, one per line."""
    _print_fitted(console, (Column(""), Column("")), steps)


def _justify(column: Column) -> Literal["left", "right"]:
    return "right" if column.number else "left"


def _spared(columns: Sequence[Column], rows: Sequence[Sequence[str]], room: int) -> list[int]:
    """The columns that fit the terminal."""
    widths = _widths(columns, rows)
    shown = list(range(len(columns)))
    for index in reversed(range(len(columns))):
        if _framed_width([widths[each] for each in shown]) <= room:
            break
        if columns[index].spare:
            shown.remove(index)
    return shown


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[int]:
    return [
        max(cell_len(cell) for cell in (column.title, *(row[index] for row in rows)))
        for index, column in enumerate(columns)
    ]


def _framed_width(widths: Sequence[int]) -> int:
    return sum(widths) + _FRAMED_GAP * (len(widths) - 1) + _EDGES


def _print_fitted(console: Console, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    widths = _widths(columns, rows)
    fitted = [column._replace(width=width) for column, width in zip(columns, widths, strict=True)]
    for row in rows:
        print_line(console, aligned(row, fitted))


# ---- styled cells ----


def print_grid(
    console: Console,
    columns: Sequence[Column],
    rows: Sequence[Sequence[str | Text]],
    lines: tuple[Sequence[Text | None], Sequence[Sequence[str]]] | None = None,
) -> None:
    """Print rows of cells; if the terminal is too narrow, numbers are cut and columns that fold are wrapped.

    Args:
        console: the output.
        columns: only title, width, number and folds are used.
        rows: the cells; a plain one may contain markup.
        lines: lines above and below each row. With these, each row takes one line.
    """
    table = Table(
        box=box.SIMPLE_HEAD if console.is_terminal else None, padding=(0, 1), pad_edge=False, show_edge=lines is None
    )
    for column in columns:
        overflow: Literal["fold", "ellipsis"] = "fold" if column.folds else "ellipsis"
        table.add_column(
            column.title,
            justify=_justify(column),
            overflow=overflow,
            no_wrap=not column.folds,
            min_width=column.width or None,
        )
    for row in rows:
        table.add_row(*row)
    if lines is None:
        console.print(table)
    else:
        _print_rows(console, table, *lines)


def _print_rows(console: Console, table: Table, above: Sequence[Text | None], below: Sequence[Sequence[str]]) -> None:
    """Print a borderless table of one-line rows, each row between its own lines."""
    rendered = console.render_lines(table, pad=False)
    titles, *rows = rendered
    console.print(Segments([*titles, Segment.line()]), end="")
    if table.box is not None:
        rule, *rows = rows
        widest = max((len(_INDENT) + cell_len(line) for under in below for line in under), default=0)
        length = max(Segment.get_line_length(rule), min(widest, console.width))
        print_line(console, table.box.head_row_horizontal * length)
    for line, over, under in zip(rows, above, below, strict=True):
        if over is not None:
            print_wrapped(console, over)
        console.print(Segments([*line, Segment.line()]), end="")
        for each in under:
            print_wrapped(console, _INDENT + each, hang=len(_INDENT))


# ---- objects ----


def aligned(cells: Sequence[str], columns: Sequence[Column]) -> str:
    """One plain line of the cells of an object, except those printed on lines of their own."""
    parts = []
    for cell, column in zip(cells, columns, strict=True):
        if not column.apart:
            padding = " " * (column.width - cell_len(cell))
            parts.append(padding + cell if column.number else cell + padding)
    return _GAP.join(parts).rstrip()


def fitted(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[Column]:
    """The columns, wide enough for all cells of these objects."""
    wide = zip(columns, _widths(columns, rows), strict=True)
    return [column._replace(width=max(column.width, width)) for column, width in wide]


def below(cells: Sequence[str], columns: Sequence[Column], shown: Sequence[bool]) -> list[str]:
    """Lines for the cells that are not in the row: one for each that must not be cut, one for all others."""
    rest = [(column, cell) for cell, column, here in zip(cells, columns, shown, strict=True) if cell and not here]
    own = [f"{column.title}: {cell}" for column, cell in rest if column.whole or column.apart]
    others = _GAP.join(f"{column.title}: {cell}" for column, cell in rest if not (column.whole or column.apart))
    return [others, *own] if others else own


def print_objects(
    console: Console, columns: Sequence[Column], rows: Sequence[Sequence[str]], *, title_style: str
) -> None:
    """Print the cells of objects on a terminal; empty columns are left out."""
    natural = [_natural_width(column, [row[index] for row in rows]) for index, column in enumerate(columns)]
    widths = _cut(natural, columns, console.width)
    table = Table(box=box.SIMPLE_HEAD, header_style=title_style, show_edge=False)
    for column, width in zip(columns, widths, strict=True):
        if width:
            table.add_column(column.title, justify=_justify(column), no_wrap=True, overflow="ellipsis", width=width)
    if not table.columns:
        for row in rows:
            for line in below(row, columns, [False] * len(columns)):
                print_wrapped(console, line)
        return
    for row in rows:
        table.add_row(*(Text(cell) for cell, width in zip(row, widths, strict=True) if width))
    lines = [below(row, columns, [width > 0 for width in widths]) for row in rows]
    _print_rows(console, table, [None] * len(rows), lines)
    console.print()


def _natural_width(column: Column, cells: Sequence[str]) -> int:
    """Width of the widest cell of a column in characters; 0 for an empty column."""
    widest = max(map(cell_len, cells))
    return max(widest, cell_len(column.title)) if widest and not column.apart else 0


def _cut(widths: Sequence[int], columns: Sequence[Column], room: int) -> list[int]:
    """Widths that fit a terminal: long cells are cut first, then columns are left out from the last one on."""
    fitted = list(widths)

    def excess() -> int:
        return _framed_width([width for width in fitted if width]) - room

    for index in reversed(range(len(columns))):
        if columns[index].long and fitted[index] > _MIN_CELL:
            fitted[index] = max(fitted[index] - max(excess(), 0), _MIN_CELL)
    for index in reversed(range(0 if columns[0].whole else 1, len(columns))):
        if excess() > 0:
            fitted[index] = 0
    for index in reversed(range(len(columns))):  # give back the width that was cut more than needed
        if columns[index].long and 0 < fitted[index] < widths[index]:
            fitted[index] = min(widths[index], fitted[index] + max(-excess(), 0))
    return fitted
