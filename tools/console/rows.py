"""Tables for people: framed on a terminal, plain aligned columns elsewhere.

There are three ways to fit rows to a width, because the commands differ in which columns may be omitted:

    print_table    unstyled cells; if the terminal is too narrow, optional columns are left out
    print_grid     styled cells; long ones are folded, and rows may have their own lines above and below
    print_objects  any number of columns; those that do not fit the terminal are printed on lines below their row

Plain columns of `print_table` are as wide as their widest cells. Objects in plain columns are printed one at a time, in
columns of fixed minimum widths (`aligned`, `below`), so that a dump of millions of them streams.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, BinaryIO, Final, Literal, NamedTuple, TypeVar

from orjson import OPT_APPEND_NEWLINE, dumps
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

from qstore.broker.management.console import Data
from qstore.formats.wording import plural
from qstore.tools.console.amounts import plain
from qstore.tools.console.text import escape_name, escape_names, printable

MAX_SHOWN: Final = 200  # rows or lines of one kind in a report; --json shows all
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


# ---- JSON lines ----

_BATCH_BYTES = 1 << 18  # bytes buffered before a write

# A name that contains a literal `\x` must be escaped; in JSON text its backslash is doubled. Most lines have no
# backslash, and a single byte is found much faster than a string.
_BACKSLASH = 0x5C
_SUSPECT = b"\\\\x"


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

    def show(self, fields: dict[str, Any]) -> None:
        """Print one object."""
        try:
            line = dumps(fields, option=OPT_APPEND_NEWLINE)
            if _BACKSLASH in line and _SUSPECT in line:
                line = escaped_line(fields)
        except TypeError:
            line = escaped_line(fields)
        self._gathered += line
        if len(self._gathered) >= _BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the buffered lines."""
        self._stream.write(self._gathered)
        self._stream.flush()
        self._gathered = bytearray()


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


# ---- tables in the format of qpid's tools ----
#
# A table has the format of qpid's tools, on which scripts rely, unless it is on a terminal: a title, column headings, a
# rule, and rows in columns. On a terminal it is fitted to the width: columns that may be spared are left out.

_Row = TypeVar("_Row")
_LISTING_GAP: Final = "  "
_FRAMED_ROWS: Final = 500
"""More rows are not framed, since that takes long."""


def print_listing(
    title: str, columns: Sequence[Column], rows: Sequence[Sequence[str]], *, indent: str = _LISTING_GAP, rule: int = 2
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
    length = sum(ruled) + len(_LISTING_GAP) * (len(chosen) - 1)
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
    return indent + _LISTING_GAP.join(parts).rstrip()


def _fitted(columns: Sequence[Column], widths: Sequence[int], room: int) -> list[int]:
    """The columns that fit a width: those that may be spared are left out from the last one on."""
    chosen = list(range(len(columns)))
    for index in reversed(range(len(columns))):
        if sum(widths[each] for each in chosen) + len(_LISTING_GAP) * len(chosen) <= room:
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


# ---- tables of objects of several kinds ----
#
# Consecutive objects of one kind form a table. At most one screenful is buffered, so that a dump of millions of records
# streams. Control characters are escaped, because message bodies and names are untrusted.

_TABLE_ROWS: Final = 100  # rows per table on a terminal
_PREVIEW: Final = 60  # characters of a body or a set of headers
_UUID_NAME: Final = re.compile(r"[0-9a-f-]{36}\.jrnl")


def _field(name: str) -> Callable[[Mapping[str, Any]], str]:
    def cell(fields: Mapping[str, Any]) -> str:
        value = fields.get(name)
        return "" if value is None else printable(value if isinstance(value, str) else str(value))

    return cell


def _number(name: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda fields: "" if fields.get(name) is None else f"{fields[name]:,}"


def _hex(name: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda fields: "" if fields.get(name) is None else f"0x{fields[name]:x}"


def _pairs(name: str) -> Callable[[Mapping[str, Any]], str]:
    def cell(fields: Mapping[str, Any]) -> str:
        value = fields.get(name)
        if value is None:
            return "?"
        return printable(" ".join(f"{key}={entry}" for key, entry in value.items()), _PREVIEW)

    return cell


def _yes(name: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda fields: "yes" if fields.get(name) else "no"


def _share(name: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda fields: "" if fields.get(name) is None else f"{100 * fields[name]:.1f}%"


def _in_doubt(fields: Mapping[str, Any]) -> str:
    enqueues, dequeues = fields.get("in_doubt_enqueues"), fields.get("in_doubt_dequeues")
    return "" if enqueues is None or dequeues is None else f"{enqueues + dequeues:,}"


def _flags(fields: Mapping[str, Any]) -> str:
    return ",".join(fields["flags"])


def _file(fields: Mapping[str, Any]) -> str:
    name = printable(str(fields["file"]).rpartition("/")[2])
    # A linearstore's files are named by UUIDs; their first characters are enough to identify them.
    return f"{name[:8]}…{name[-5:]}" if _UUID_NAME.fullmatch(name) else name


def _body(fields: Mapping[str, Any]) -> str:
    for name, prefix in (("body", ""), ("body_hex", "hex:"), ("body_base64", "base64:"), ("body_file", "file:")):
        if name in fields:
            limit = None if name == "body_file" else _PREVIEW
            return printable(prefix + fields[name], limit)
    return ""


def _content(fields: Mapping[str, Any]) -> str:
    """A record's content, in one cell."""
    if "dequeued_rid" in fields:
        return f"of 0x{fields['dequeued_rid']:x}"
    if "prepared" in fields:
        return f"prepared, {fields['prepared']}"
    if "blocks" in fields:
        return plural(fields["blocks"], "block")
    message = fields.get("message")
    if message is None:
        return ""
    where = f"{message['exchange'] or ''}/{message['routing_key'] or ''}"
    return f"{printable(where)}  {plural(message['body_length'], 'byte')}  {_body(message)}".rstrip()


COLUMNS: Final[dict[str, tuple[Column, ...]]] = {
    "exchange": (
        Column("exchange", 24, _field("name")),
        Column("type", 8, _field("type")),
        Column("durable", 7, _yes("durable")),
        Column("alternate", 16, _field("alternate_exchange")),
        Column("arguments", 0, _pairs("arguments"), long=True),
    ),
    "queue": (
        Column("queue", 24, _field("name")),
        Column("messages", 10, _number("messages"), number=True),
        Column("alternate", 16, _field("alternate_exchange")),
        Column("arguments", 0, _pairs("arguments"), long=True),
    ),
    "binding": (
        Column("bound exchange", 24, _field("exchange")),
        Column("queue", 24, _field("queue")),
        Column("key", 16, _field("key")),
        Column("arguments", 0, _pairs("arguments"), long=True),
    ),
    "exchange_binding": (
        Column("source exchange", 24, _field("source")),
        Column("destination exchange", 24, _field("destination")),
        Column("key", 16, _field("key")),
        Column("arguments", 0, _pairs("arguments"), long=True),
    ),
    "link": (
        Column("link", 24, _field("name")),
        Column("host", 24, _field("host")),
        Column("port", 6, _field("port"), number=True),
        Column("transport", 9, _field("transport")),
        Column("mechanism", 10, _field("mechanism")),
        Column("user", 0, _field("user"), long=True),
    ),
    "bridge": (
        Column("bridge", 24, _field("name")),
        Column("link", 24, _field("link")),
        Column("source", 16, _field("source")),
        Column("destination", 16, _field("destination")),
        Column("key", 0, _field("key"), long=True),
    ),
    "object": (
        Column("object", 24, _field("name")),
        Column("type", 16, _field("type")),
        Column("properties", 0, _pairs("properties"), long=True),
    ),
    "message": (
        Column("queue", 20, _field("queue")),
        Column("rid", 10, _hex("rid")),
        Column("state", 16, _field("state")),
        Column("exchange", 14, _field("exchange")),
        Column("routing key", 14, _field("routing_key")),
        Column("message id", 36, _field("message_id"), whole=True),
        Column("bytes", 8, _number("body_length"), number=True),
        Column("headers", 24, _pairs("headers"), long=True),
        Column("body", 0, _body, long=True),
        Column("xid", 0, _field("xid"), apart=True),
    ),
    "journal": (
        Column("journal of", 24, _field("queue")),
        Column("files", 5, _number("files"), number=True),
        Column("file size", 10, _number("file_size"), number=True),
        Column("messages", 10, _number("outstanding"), number=True),
        Column("in doubt", 8, _in_doubt, number=True),
        Column("fill", 6, _share("fill"), number=True),
        Column("damage", 6, _number("damage"), number=True),
        Column("path", 0, _field("path"), long=True),
    ),
    "transaction": (
        Column("state", 10, _field("state")),
        Column("type", 5, _field("type")),
        Column("format", 6, _field("format"), number=True),
        Column("global id", 24, _field("global_id"), whole=True),
        Column("branch id", 24, _field("branch_id"), whole=True),
        Column("enqueues", 8, _number("enqueues"), number=True),
        Column("dequeues", 8, _number("dequeues"), number=True),
        Column("xid", 0, _field("xid"), whole=True),
    ),
    "record": (
        Column("queue", 16, _field("queue")),
        Column("type", 7, _field("type")),
        Column("rid", 10, _hex("rid")),
        Column("file", 21, _file),
        Column("offset", 10, _hex("offset")),
        Column("size", 8, _number("size"), number=True),
        Column("flush", 8, _field("flush"), number=True),
        Column("check", 7, _field("checksum")),
        Column("flags", 13, _flags),
        Column("content", 40, _content, long=True),
        Column("xid", 0, _field("xid"), whole=True),
    ),
    "damage": (
        Column("damaged file", 40, _field("file"), whole=True),
        Column("offset", 10, _hex("offset")),
        Column("rid", 10, _hex("rid")),
        Column("what is wrong", 40, _field("what"), whole=True),
        Column("consequence", 0, _field("consequence"), whole=True),
    ),
}


class Tables:
    """Prints objects as tables.

    Args:
        console: the output; whether it is a terminal decides the form.
        fits: whether plain columns are as wide as their widest cells. All rows of a table are then buffered.
    """

    max_body: int | None = 4 * _PREVIEW  # bytes: only a preview is shown

    def __init__(self, console: Console, *, fits: bool = False) -> None:
        self._console, self._fits = console, fits
        self._framed = console.is_terminal
        self._kind = ""
        self._rows: list[list[str]] = []

    def show(self, fields: dict[str, Any]) -> None:
        """Print one object."""
        kind = fields["kind"]
        if kind != self._kind:
            self.flush()
            if self._kind and not self._framed:
                print_line(self._console)
            self._kind = kind
            if not self._framed and not self._fits:
                self._print_titles(COLUMNS[kind])
        cells = [column.cell(fields) for column in COLUMNS[kind]]
        if not self._framed and not self._fits:
            self._print_row(cells, COLUMNS[kind])
            return
        self._rows.append(cells)
        if self._framed and len(self._rows) >= _TABLE_ROWS:
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
            columns = fitted(COLUMNS[self._kind], self._rows)
            self._print_titles(columns)
            for cells in self._rows:
                self._print_row(cells, columns)
            self._rows = []
        if self._rows:
            style = "bold red" if self._kind == "damage" else "bold"
            print_objects(self._console, COLUMNS[self._kind], self._rows, title_style=style)
            self._rows = []
        self._console.file.flush()


_PLAIN_WIDTH: Final = 160  # columns if standard output is not a terminal


def plain_console() -> Console:
    """Standard output; if it is not a terminal, as wide as the report needs."""
    console = Console()
    return console if console.is_terminal else Console(width=_PLAIN_WIDTH)


def print_some(console: Console, lines: Sequence[str], what: str) -> None:
    """Print lines, at most `MAX_SHOWN` of them, and the number of the others; `what` names them in the plural."""
    for line in lines[:MAX_SHOWN]:
        print_wrapped(console, line)
    print_rest(console, len(lines), what)


def print_rest(console: Console, count: int, what: str) -> None:
    """Print how many of `count` rows or lines were left out, if any."""
    if count > MAX_SHOWN:
        console.print(Text(f"… and {count - MAX_SHOWN:,} more {what}; --json shows all"), soft_wrap=True)
