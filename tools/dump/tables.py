"""Objects as tables for people: framed and coloured on a terminal, plain aligned columns elsewhere.

Consecutive objects of one kind form a table. At most one screenful is buffered, so that a dump of millions of records
streams. Control characters are escaped, because message bodies and names are untrusted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rich.console import Console

from qstore.formats.wording import plural
from qstore.tools.console.tables import Column, aligned, below, fitted, print_line, print_objects
from qstore.tools.console.text import printable

_BATCH: Final = 100  # rows per table on a terminal
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
        if self._framed and len(self._rows) >= _BATCH:
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
