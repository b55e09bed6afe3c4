"""Objects as tables for people: framed and coloured on a terminal, plain aligned columns elsewhere.

Objects of one kind that follow each other form a table. Nothing is gathered beyond one screenful, so that a dump of
millions of records streams. Control characters are shown, never sent: a message's body or a queue's name may come
from anyone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tools.names import escape_name

_BATCH: Final = 100  # rows of one table on a terminal
_PREVIEW: Final = 60  # characters of a body or a set of headers
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class Column(NamedTuple):
    """A column: its title, its width in plain output, how a cell follows from an object, and whether it is a number."""

    title: str
    width: int
    cell: Callable[[Mapping[str, Any]], str]
    number: bool = False


def printable(text: str, limit: int | None = None) -> str:
    """Text without control characters and lone surrogates, cut to `limit` characters."""
    if limit is not None and len(text) > limit:
        text = text[: limit - 1] + "…"
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", escape_name(text))


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
    return printable(str(fields["file"]).rpartition("/")[2])


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
        return f"{fields['blocks']} block{'' if fields['blocks'] == 1 else 's'}"
    message = fields.get("message")
    if message is None:
        return ""
    where = f"{message['exchange'] or ''}/{message['routing_key'] or ''}"
    return f"{printable(where)}  {message['body_length']} bytes  {_body(message)}".rstrip()


COLUMNS: Final[dict[str, tuple[Column, ...]]] = {
    "exchange": (
        Column("exchange", 24, _field("name")),
        Column("type", 8, _field("type")),
        Column("durable", 7, _yes("durable")),
        Column("alternate", 16, _field("alternate_exchange")),
        Column("arguments", 0, _pairs("arguments")),
    ),
    "queue": (
        Column("queue", 24, _field("name")),
        Column("messages", 10, _field("messages"), number=True),
        Column("alternate", 16, _field("alternate_exchange")),
        Column("arguments", 0, _pairs("arguments")),
    ),
    "binding": (
        Column("bound exchange", 24, _field("exchange")),
        Column("queue", 24, _field("queue")),
        Column("key", 16, _field("key")),
        Column("arguments", 0, _pairs("arguments")),
    ),
    "link": (
        Column("link", 24, _field("name")),
        Column("host", 24, _field("host")),
        Column("port", 6, _field("port"), number=True),
        Column("transport", 9, _field("transport")),
        Column("mechanism", 10, _field("mechanism")),
        Column("user", 0, _field("user")),
    ),
    "bridge": (
        Column("bridge", 24, _field("name")),
        Column("link", 24, _field("link")),
        Column("source", 16, _field("source")),
        Column("destination", 16, _field("destination")),
        Column("key", 0, _field("key")),
    ),
    "object": (
        Column("object", 24, _field("name")),
        Column("type", 16, _field("type")),
        Column("properties", 0, _pairs("properties")),
    ),
    "message": (
        Column("queue", 20, _field("queue")),
        Column("rid", 10, _hex("rid")),
        Column("state", 16, _field("state")),
        Column("exchange", 14, _field("exchange")),
        Column("routing key", 14, _field("routing_key")),
        Column("message id", 36, _field("message_id")),
        Column("bytes", 8, _field("body_length"), number=True),
        Column("headers", 24, _pairs("headers")),
        Column("body", 0, _body),
    ),
    "transaction": (
        Column("state", 10, _field("state")),
        Column("type", 5, _field("type")),
        Column("format", 6, _field("format"), number=True),
        Column("global id", 24, _field("global_id")),
        Column("branch id", 24, _field("branch_id")),
        Column("enqueues", 8, _field("enqueues"), number=True),
        Column("dequeues", 8, _field("dequeues"), number=True),
        Column("xid", 0, _field("xid")),
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
        Column("content", 40, _content),
        Column("xid", 0, _field("xid")),
    ),
    "damage": (
        Column("damaged file", 40, _field("file")),
        Column("offset", 10, _hex("offset")),
        Column("rid", 10, _hex("rid")),
        Column("what is wrong", 40, _field("what")),
        Column("consequence", 0, _field("consequence")),
    ),
}


class Tables:
    """Prints objects as tables.

    Args:
        console: where to; whether it is a terminal decides the form.
    """

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
            return
        self._rows.append(cells)
        if len(self._rows) >= _BATCH:
            self.flush()

    def flush(self) -> None:
        """Print what was gathered."""
        if self._rows:
            self._console.print(_framed(COLUMNS[self._kind], self._rows, damaged=self._kind == "damage"))
            self._rows = []
        self._console.file.flush()

    def _line(self, text: str) -> None:
        self._console.file.write(text + "\n")


def _aligned(cells: list[str], columns: tuple[Column, ...]) -> str:
    parts = []
    for cell, column in zip(cells, columns, strict=True):
        parts.append(cell.rjust(column.width) if column.number else cell.ljust(column.width))
    return "  ".join(parts).rstrip()


def _framed(columns: tuple[Column, ...], rows: list[list[str]], *, damaged: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold red" if damaged else "bold")
    for index, column in enumerate(columns):
        if any(row[index] for row in rows):
            table.add_column(column.title, justify="right" if column.number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(row[index]) for index in range(len(columns)) if any(other[index] for other in rows)))
    return table
