"""Objects as tables for people: framed and coloured on a terminal, plain aligned columns elsewhere.

Objects of one kind that follow each other form a table. Nothing is gathered beyond one screenful, so that a dump of
millions of records streams. Control characters are shown, never sent: a message's body or a queue's name may come
from anyone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from formats.wording import plural
from tools.dump.rows import print_rows
from tools.names import escape_name

_BATCH: Final = 100  # rows of one table on a terminal
_PREVIEW: Final = 60  # characters of a body or a set of headers
_LEAST_CELL: Final = 8  # characters to which a cell may be cut before its column is left out
_GAP: Final = 3  # spaces between columns
_EDGES: Final = 2  # spaces beside the table
_UUID_NAME: Final = re.compile(r"[0-9a-f-]{36}\.jrnl")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class Column(NamedTuple):
    """A column.

    Attributes:
        title: what stands above it.
        width: characters in plain output, at least.
        cell: how a cell follows from an object.
        number: whether it is a number.
        long: whether cells may be long: on a narrow terminal they are cut, before columns are left out.
        whole: whether cells mean nothing when they are cut, as ids and places.
        apart: whether a cell stands on a line of its own below its row, always.

    What a terminal has no room for stands on lines of their own below the row, and so does what is `whole` and would
    be cut.
    """

    title: str
    width: int
    cell: Callable[[Mapping[str, Any]], str]
    number: bool = False
    long: bool = False
    whole: bool = False
    apart: bool = False


def printable(text: str, limit: int | None = None) -> str:
    """Text without control characters and lone surrogates, cut to `limit` characters."""
    if limit is not None and len(text) > limit:
        text = text[: limit - 1] + "…"
    return _CONTROL.sub(_show_control, escape_name(text))


def _show_control(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _field(name: str) -> Callable[[Mapping[str, Any]], str]:
    def cell(fields: Mapping[str, Any]) -> str:
        value = fields.get(name)
        return "" if value is None else printable(value if isinstance(value, str) else str(value))

    return cell


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


def _flags(fields: Mapping[str, Any]) -> str:
    return ",".join(fields["flags"])


def _file(fields: Mapping[str, Any]) -> str:
    name = printable(str(fields["file"]).rpartition("/")[2])
    # A linearstore's files are called by UUIDs, of which the beginning tells enough.
    return f"{name[:8]}…{name[-5:]}" if _UUID_NAME.fullmatch(name) else name


def _body(fields: Mapping[str, Any]) -> str:
    for name, prefix in (("body", ""), ("body_hex", "hex:"), ("body_base64", "base64:"), ("body_file", "file:")):
        if name in fields:
            limit = None if name == "body_file" else _PREVIEW
            return printable(prefix + fields[name], limit)
    return ""


def _content(fields: Mapping[str, Any]) -> str:
    """What a record is about, in one cell."""
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
        Column("messages", 10, _field("messages"), number=True),
        Column("alternate", 16, _field("alternate_exchange")),
        Column("arguments", 0, _pairs("arguments"), long=True),
    ),
    "binding": (
        Column("bound exchange", 24, _field("exchange")),
        Column("queue", 24, _field("queue")),
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
        Column("bytes", 8, _field("body_length"), number=True),
        Column("headers", 24, _pairs("headers"), long=True),
        Column("body", 0, _body, long=True),
        Column("xid", 0, _field("xid"), apart=True),
    ),
    "transaction": (
        Column("state", 10, _field("state")),
        Column("type", 5, _field("type")),
        Column("format", 6, _field("format"), number=True),
        Column("global id", 24, _field("global_id"), whole=True),
        Column("branch id", 24, _field("branch_id"), whole=True),
        Column("enqueues", 8, _field("enqueues"), number=True),
        Column("dequeues", 8, _field("dequeues"), number=True),
        Column("xid", 0, _field("xid"), whole=True),
    ),
    "record": (
        Column("queue", 16, _field("queue")),
        Column("type", 7, _field("type")),
        Column("rid", 10, _hex("rid")),
        Column("file", 21, _file),
        Column("offset", 10, _hex("offset")),
        Column("size", 8, _field("size"), number=True),
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
        console: where to; whether it is a terminal decides the form.
    """

    most_of_body: int | None = 4 * _PREVIEW  # bytes: a preview is all that is shown

    def __init__(self, console: Console) -> None:
        self._console = console
        self._framed = console.is_terminal
        self._kind = ""
        self._rows: list[list[str]] = []

    def show(self, fields: dict[str, Any]) -> None:
        """Print one object."""
        kind = fields["kind"]
        if kind != self._kind:
            self.flush()
            if self._kind and not self._framed:
                self._line("")
            self._kind = kind
            if not self._framed:
                self._line(_aligned([column.title.upper() for column in COLUMNS[kind]], COLUMNS[kind]))
        cells = [column.cell(fields) for column in COLUMNS[kind]]
        if not self._framed:
            self._line(_aligned(cells, COLUMNS[kind]))
            for each in _below(cells, COLUMNS[kind], [not column.apart for column in COLUMNS[kind]]):
                self._line(f"    {each}")
            return
        self._rows.append(cells)
        if len(self._rows) >= _BATCH:
            self.flush()

    def flush(self) -> None:
        """Print what was gathered."""
        if self._rows:
            _print_framed(self._console, COLUMNS[self._kind], self._rows, damaged=self._kind == "damage")
            self._rows = []
        self._console.file.flush()

    def _line(self, text: str) -> None:
        self._console.file.write(text + "\n")


def _aligned(cells: list[str], columns: tuple[Column, ...]) -> str:
    parts = []
    for cell, column in zip(cells, columns, strict=True):
        if not column.apart:
            padding = " " * (column.width - cell_len(cell))
            parts.append(padding + cell if column.number else cell + padding)
    return "  ".join(parts).rstrip()


def _below(cells: list[str], columns: tuple[Column, ...], shown: Sequence[bool]) -> list[str]:
    """Lines for the cells that do not stand in their row: one for each that is to be seen whole, one for the others."""
    rest = [(column, cell) for cell, column, here in zip(cells, columns, shown, strict=True) if cell and not here]
    own = [f"{column.title}: {cell}" for column, cell in rest if column.whole or column.apart]
    others = "  ".join(f"{column.title}: {cell}" for column, cell in rest if not (column.whole or column.apart))
    return [others, *own] if others else own


def _print_framed(console: Console, columns: tuple[Column, ...], rows: list[list[str]], *, damaged: bool) -> None:
    natural = [_natural_width(column, index, rows) for index, column in enumerate(columns)]
    widths = _fitted(natural, columns, console.width)
    table = Table(box=box.SIMPLE_HEAD, header_style="bold red" if damaged else "bold", show_edge=False)
    for column, width in zip(columns, widths, strict=True):
        if width:
            justify: Literal["left", "right"] = "right" if column.number else "left"
            table.add_column(column.title, justify=justify, no_wrap=True, overflow="ellipsis", width=width)
    if not table.columns:
        for row in rows:
            for line in _below(row, columns, [False] * len(columns)):
                console.print(Text(line), soft_wrap=True)
        return
    for row in rows:
        table.add_row(*(Text(cell) for cell, width in zip(row, widths, strict=True) if width))
    below = [_below(row, columns, [width > 0 for width in widths]) for row in rows]
    print_rows(console, table, [None] * len(rows), below, has_rule=True)
    console.print()


def _natural_width(column: Column, index: int, rows: list[list[str]]) -> int:
    """Cells that the widest entry of a column takes; 0 for a column in which nothing stands."""
    widest = max(cell_len(row[index]) for row in rows)
    return max(widest, cell_len(column.title)) if widest and not column.apart else 0


def _fitted(widths: list[int], columns: tuple[Column, ...], room: int) -> list[int]:
    """Widths that fit a terminal: first what may be long is cut, then columns are left out from the last on."""
    fitted = list(widths)

    def excess() -> int:
        shown = [width for width in fitted if width]
        return sum(shown) + _GAP * (len(shown) - 1) + _EDGES - room

    for index in reversed(range(len(columns))):
        if columns[index].long and fitted[index] > _LEAST_CELL:
            fitted[index] = max(fitted[index] - max(excess(), 0), _LEAST_CELL)
    for index in reversed(range(0 if columns[0].whole else 1, len(columns))):
        if excess() > 0:
            fitted[index] = 0
    for index in reversed(range(len(columns))):  # there is room again for what was cut more than was needed
        if columns[index].long and 0 < fitted[index] < widths[index]:
            fitted[index] = min(widths[index], fitted[index] + max(-excess(), 0))
    return fitted
