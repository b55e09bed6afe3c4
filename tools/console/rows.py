"""Rows of values: tables for people, JSON lines for programs.

A command has objects, each a mapping of names to values with a `kind`, and shows all of them one way or the other:

    print_json, JsonLines   one object a line, as it is; names are escaped so that they can be converted back
    a table                 columns, declared once for a kind of object: a heading, what the cell has of the object,
                            the alignment, and what may happen to it on a narrow terminal (`Column`)

Tables are framed on a terminal and plain aligned columns elsewhere. There are four, because commands differ in what may
be lost on a narrow terminal, and whether scripts rely on the plain form:

    print_table     columns that may be spared are left out
    print_grid      cells are styled, and folded; a row may have lines of its own above and below
    print_listing   as `print_table`; the plain form is that of qpid's tools: a title, headings, a rule, rows
    Tables          objects of several kinds, as they come: on a terminal in batches, elsewhere one at a time in columns
                    of fixed minimum widths, so that a dump of millions streams; what does not fit is below its row

A report shows at most `MAX_SHOWN` rows or lines of one kind (`print_some`, `print_rest`); `--json` shows all.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, BinaryIO, Final, Literal, Protocol, TypeAlias

from orjson import OPT_APPEND_NEWLINE, dumps
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

from qstore.formats.broker_records.topology import DEFAULT_HOST, HOST_SEPARATOR, split_name
from qstore.formats.named_tuple import NamedTuple
from qstore.tools.console.text import escape_name, escape_names, printable, sentence

MAX_SHOWN: Final = 200
_GAP: Final = "  "
_FRAMED_GAP: Final = 3
_EDGES: Final = 2  # spaces beside a framed table
_MIN_CELL: Final = 8  # a cell may be cut to this many characters before its column is left out
_INDENT: Final = "    "
_HANG: Final = 8
_MIN_LINE: Final = 20
_PLAIN_WIDTH: Final = 160  # characters of a report that is not on a terminal
_BATCH_BYTES: Final = 1 << 18  # bytes of JSON lines buffered before a write
_BATCH_ROWS: Final = 100  # rows per table of objects on a terminal
_FRAMED_ROWS: Final = 500  # more rows of a listing are not framed, since that takes long
_PREVIEW: Final = 60  # characters of a set of values in a cell

#: What is shown: a `kind`, and values by name.
Object: TypeAlias = dict[str, Any]
#: Derives a cell from an object: text, or in a grid also a `Text`.
Cell: TypeAlias = Callable[[Any], Any]


# ---- columns ----


class Column(NamedTuple):
    """A column.

    Attributes:
        title: the column's heading.
        cell: derives the cell from an object; None if a row is a sequence of cells.
        width: minimum width in characters, in a grid and in the plain form of `Tables`.
        number: whether it is a number (right-aligned).
        spare: whether it may be left out on a narrow terminal.
        folds: whether its cells may be wrapped there.
        long: in `Tables`: cells may be long; on a narrow terminal they are cut before columns are left out.
        whole: in `Tables`: cells are useless when cut, such as ids and places.
        apart: in `Tables`: a cell is always printed on its own line below its row.
    """

    title: str
    cell: Cell | None = None
    width: int = 0
    number: bool = False
    spare: bool = False
    folds: bool = False
    long: bool = False
    whole: bool = False
    apart: bool = False


def field(name: str) -> Cell:
    """A value as text, escaped; empty if there is none."""

    def cell(fields: Mapping[str, Any]) -> str:
        value = fields.get(name)
        return "" if value is None else printable(value if isinstance(value, str) else str(value))

    return cell


def number(name: str) -> Cell:
    """A number with separators; empty if there is none."""
    return lambda fields: "" if fields.get(name) is None else f"{fields[name]:,}"


def hexadecimal(name: str) -> Cell:
    """A number as `0x…`; empty if there is none."""
    return lambda fields: "" if fields.get(name) is None else f"0x{fields[name]:x}"


def yes(name: str) -> Cell:
    """Yes or no."""
    return lambda fields: "yes" if fields.get(name) else "no"


def share(name: str) -> Cell:
    """A share as a percentage; empty if there is none."""
    return lambda fields: "" if fields.get(name) is None else f"{100 * fields[name]:.1f}%"


def pairs(name: str) -> Cell:
    """The beginning of a set of values as NAME=VALUE; `?` if it is not known."""

    def cell(fields: Mapping[str, Any]) -> str:
        value = fields.get(name)
        if value is None:
            return "?"
        return printable(" ".join(f"{key}={entry}" for key, entry in value.items()), _PREVIEW)

    return cell


def cells_of(columns: Sequence[Column], row: Any) -> list[Any]:
    """The cells of an object, or of a sequence of cells."""
    return [row[index] if column.cell is None else column.cell(row) for index, column in enumerate(columns)]


class Output(Protocol):
    """Where objects are shown.

    Attributes:
        max_body: how many bytes of a message's body are used; None for all.
    """

    max_body: int | None

    def show(self, fields: Object) -> None:
        """Print one object."""

    def flush(self) -> None:
        """Print what is buffered."""


# ---- JSON lines ----

# A name that contains a literal `\x` must be escaped; in JSON text its backslash is doubled. Most lines have no
# backslash, and a single byte is found much faster than a string.
_BACKSLASH = 0x5C
_SUSPECT = b"\\\\x"
_SEPARATOR = b"\\u001f"


class JsonLines:
    """Prints objects as JSON lines.

    Args:
        stream: the output.
    """

    max_body: int | None = None

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        # One bytearray, because keeping the lines as separate objects costs the allocator four times as much as
        # creating them.
        self._gathered = bytearray()

    def show(self, fields: Object) -> None:
        """Print one object."""
        try:
            line = dumps(fields, option=OPT_APPEND_NEWLINE)
            if _BACKSLASH in line:
                if _SEPARATOR in line:
                    fields = with_vhost(fields)
                    line = dumps(fields, option=OPT_APPEND_NEWLINE)
                if _SUSPECT in line:
                    line = escaped_line(fields)
        except TypeError:
            line = escaped_line(with_vhost(fields))
        self._gathered += line
        if len(self._gathered) >= _BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the buffered lines."""
        self._stream.write(self._gathered)
        self._stream.flush()
        self._gathered = bytearray()


_FULL_NAMES: Final = (
    "name", "queue", "exchange", "source", "destination", "alternate_exchange", "altExchange", "queueRef",
    "exchangeRef", "destinationRef",
)  # fmt: skip
"""Fields of JSON objects with names of queues and exchanges, which are in virtual hosts."""


def with_vhost(fields: Object) -> Object:
    """An object whose names have their virtual host in a field of its own, `vhost`; without it they are of "/"."""
    found: dict[str, Any] = {}
    for key in _FULL_NAMES:
        value = fields.get(key)
        if isinstance(value, str) and HOST_SEPARATOR in value:
            host, found[key] = split_name(value)
            if host != DEFAULT_HOST:
                found.setdefault("vhost", host)
    return {**fields, **found} if found else fields


# Fields that contain names.
_NAMES = frozenset(
    {
        "name",
        "queue",
        "exchange",
        "routing_key",
        "key",
        "stored_key",
        "alternate_exchange",
        "link",
        "source",
        "destination",
        "file",
    }
)

# Fields that contain nested objects with names in them.
_OBJECTS = frozenset({"message", "properties", "reply_to"})


def escaped_line(fields: dict[str, Any]) -> bytes:
    """The line with all names escaped."""
    return dumps(escape_fields(fields), option=OPT_APPEND_NEWLINE)


def escape_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """The object with all names escaped."""
    plain: dict[str, Any] = {}
    for key, value in fields.items():
        if key in _OBJECTS and isinstance(value, dict):
            plain[key] = escape_fields(value)
        else:
            named = key in _NAMES and isinstance(value, str)
            plain[escape_name(key)] = escape_name(value) if named else escape_names(value)
    return plain


def print_json(objects: Iterable[Object]) -> None:
    """Print one JSON object per line."""
    lines = JsonLines(sys.stdout.buffer)
    for each in objects:
        lines.show(each)
    lines.flush()


# ---- lines ----


def plain_console() -> Console:
    """Standard output; if it is not a terminal, as wide as the report needs."""
    console = Console()
    return console if console.is_terminal else Console(width=_PLAIN_WIDTH)


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
    print_wrapped(Console(stderr=True, highlight=False), f"{kind}: {sentence(text)}")


def print_some(console: Console, lines: Sequence[str], what: str) -> None:
    """Print lines, at most `MAX_SHOWN` of them, and the number of the others; `what` names them in the plural."""
    for line in lines[:MAX_SHOWN]:
        print_wrapped(console, line)
    print_rest(console, len(lines), what)


def print_rest(console: Console, count: int, what: str) -> None:
    """Print how many of `count` rows or lines were left out, if any."""
    if count > MAX_SHOWN:
        console.print(Text(f"… and {count - MAX_SHOWN:,} more {what}; --json shows all"), soft_wrap=True)


# ---- tables ----


def print_table(console: Console, columns: Sequence[Column], rows: Sequence[Any]) -> None:
    """Print objects, or rows of cells, below headings, which are in capitals unless the output is a terminal."""
    rows = [cells_of(columns, row) for row in rows]
    if not console.is_terminal:
        titles = [column.title.upper() for column in columns]
        _print_fitted(console, columns, [titles, *rows])
        return
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    shown = _spared(columns, _widths(columns, rows), console.width, _FRAMED_GAP)
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


def _spared(columns: Sequence[Column], widths: Sequence[int], room: int, gap: int) -> list[int]:
    """The columns that fit a terminal: those that may be spared are left out from the last one on."""
    shown = list(range(len(columns)))
    for index in reversed(range(len(columns))):
        if _total([widths[each] for each in shown], gap) <= room:
            break
        if columns[index].spare:
            shown.remove(index)
    return shown


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[int]:
    return [
        max(cell_len(cell) for cell in (column.title, *(row[index] for row in rows)))
        for index, column in enumerate(columns)
    ]


def _total(widths: Sequence[int], gap: int) -> int:
    return sum(widths) + gap * (len(widths) - 1) + _EDGES


def _print_fitted(console: Console, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    widths = _widths(columns, rows)
    fitted = [column._replace(width=width) for column, width in zip(columns, widths, strict=True)]
    for row in rows:
        print_line(console, aligned(row, fitted))


def print_grid(
    console: Console,
    columns: Sequence[Column],
    rows: Sequence[Any],
    lines: tuple[Sequence[Text | None], Sequence[Sequence[str]]] | None = None,
) -> None:
    """Print objects, or rows of cells; on a narrow terminal, numbers are cut and columns that fold are wrapped.

    Args:
        console: the output.
        columns: only title, cell, width, number and folds are used.
        rows: the objects; a cell that is not a `Text` may contain markup.
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
        table.add_row(*cells_of(columns, row))
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


def print_listing(
    title: str, columns: Sequence[Column], rows: Sequence[Any], *, indent: str = _GAP, rule: int = 2
) -> None:
    """Print objects, or rows of cells, below a title, in the format of qpid's tools, on which scripts rely.

    Args:
        title: may be empty.
        columns: only title, cell, number, spare and folds count. If the last one folds, the rule is not as wide as its
            cells.
        rows: the objects.
        indent: in front of each line that is not on a terminal.
        rule: by how much the rule is longer than the headings.
    """
    console = Console(highlight=False)
    if title:
        print_line(console, title)
    if console.is_terminal and len(rows) <= _FRAMED_ROWS:
        print_table(console, columns, rows)
        return
    rows = [cells_of(columns, row) for row in rows]
    widths = _widths(columns, rows)
    chosen = list(range(len(columns)))
    if console.is_terminal:
        chosen = _spared(columns, widths, console.width, len(_GAP))
    shown = [columns[index]._replace(width=widths[index]) for index in chosen]
    ruled = [column.width for column in shown[:-1]] + [len(shown[-1].title) if shown[-1].folds else shown[-1].width]
    lines = [
        indent + aligned([column.title for column in shown], shown),
        indent + "=" * (sum(ruled) + len(_GAP) * (len(shown) - 1) + rule),
        *(indent + aligned([row[index] for index in chosen], shown) for row in rows),
    ]
    console.file.write("\n".join(lines) + "\n")


# ---- objects of several kinds ----


class Tables:
    """Prints objects of several kinds; consecutive ones of one kind form a table.

    Args:
        columns: kind -> its columns.
        console: the output; whether it is a terminal decides the form.
        fits: whether plain columns are as wide as their widest cells. All rows of a table are then buffered.
    """

    max_body: int | None = 4 * _PREVIEW  # bytes: only a preview is shown

    def __init__(self, columns: Mapping[str, Sequence[Column]], console: Console, *, fits: bool = False) -> None:
        self._columns, self._console, self._fits = columns, console, fits
        self._framed = console.is_terminal
        self._kind = ""
        self._rows: list[list[str]] = []

    def show(self, fields: Object) -> None:
        """Print one object."""
        kind = fields["kind"]
        if kind != self._kind:
            self.flush()
            if self._kind and not self._framed:
                print_line(self._console)
            self._kind = kind
            if not self._framed and not self._fits:
                self._print_titles(self._columns[kind])
        cells = cells_of(self._columns[kind], fields)
        if not self._framed and not self._fits:
            self._print_row(cells, self._columns[kind])
            return
        self._rows.append(cells)
        if self._framed and len(self._rows) >= _BATCH_ROWS:
            self.flush()

    def _print_titles(self, columns: Sequence[Column]) -> None:
        print_line(self._console, aligned([column.title.upper() for column in columns], columns))

    def _print_row(self, cells: Sequence[str], columns: Sequence[Column]) -> None:
        print_line(self._console, aligned(cells, columns))
        for each in below(cells, columns, [not column.apart for column in columns]):
            print_line(self._console, f"    {each}")

    def flush(self) -> None:
        """Print the buffered rows."""
        if self._rows and not self._framed:
            columns = fitted(self._columns[self._kind], self._rows)
            self._print_titles(columns)
            for cells in self._rows:
                self._print_row(cells, columns)
            self._rows = []
        if self._rows:
            style = "bold red" if self._kind == "damage" else "bold"
            print_objects(self._console, self._columns[self._kind], self._rows, title_style=style)
            self._rows = []
        self._console.file.flush()


def aligned(cells: Sequence[str], columns: Sequence[Column]) -> str:
    """One plain line of the cells of an object, except those printed on lines of their own."""
    parts = []
    for cell, column in zip(cells, columns, strict=True):
        if not column.apart:
            padding = " " * (column.width - (len(cell) if cell.isascii() else cell_len(cell)))
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
        return _total([width for width in fitted if width], _FRAMED_GAP) - room

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
