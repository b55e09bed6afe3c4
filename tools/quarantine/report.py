"""A quarantine as text: the list of its entries, one entry with its analysis, the result of an injection."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from qstore.formats.quarantine_index import Injection, QuarantineEntry
from qstore.formats.wording import plural
from qstore.tools.console.tables import Column, print_grid, print_wrapped
from qstore.tools.console.text import printable
from qstore.tools.quarantine.injection import Injected, injected_before
from qstore.tools.quarantine.objects import Object

MAX_ROWS: Final = 500  # of one table; a long list has several

_PREVIEW: Final = 300  # characters of a body
_MAX_HEADERS: Final = 40
_HEX_ROW: Final = 16
_COLUMNS: Final = (
    Column("ENTRY", number=True),
    Column("QUEUE", folds=True),
    Column("RECORD", number=True),
    Column("BYTES", number=True),
    Column("WHERE", folds=True),
    Column("INJECTED"),
    Column("WHAT", folds=True),
)


class EntryTables:
    """Prints entries as tables of limited length.

    Args:
        console: the output.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rows: list[tuple[str | Text, ...]] = []

    def show(self, entry: QuarantineEntry, problem: str | None) -> None:
        """Print one entry."""
        name = entry.file.rpartition("/")[2]
        self._rows.append(
            (
                str(entry.number),
                Text(printable(entry.queue)),
                "?" if entry.rid is None else f"0x{entry.rid:x}",
                f"{entry.size:,}",
                Text(f"{printable(name)} at 0x{entry.offset:x}"),
                _injected(entry.injected),
                Text(printable(entry.what)) if problem is None else Text(printable(problem), style="bold red"),
            )
        )
        if len(self._rows) >= MAX_ROWS:
            self.flush()

    def flush(self) -> None:
        """Print the buffered rows."""
        if self._rows:
            print_grid(self._console, _COLUMNS, self._rows)
            self._rows = []


def _injected(injection: Injection | None) -> Text:
    if injection is None:
        return Text("-")
    return Text("yes") if injection.is_known else Text("?", style="bold red")


def show_entry(console: Console, entry: QuarantineEntry, problem: str | None) -> None:
    """Print one entry, without its content."""
    rid = "" if entry.rid is None else f", record 0x{entry.rid:x}"
    _line(console, f"entry {entry.number}: queue {printable(entry.queue)}{rid}", "bold")
    _line(console, f"  {entry.size:,} bytes of {printable(entry.file)} at 0x{entry.offset:x}")
    _line(console, f"  {printable(entry.what)}")
    if entry.injected is not None:
        _line(console, f"  {printable(injected_before(entry.injected))}", "yellow")
    if problem is not None:
        _line(console, f"  {printable(problem)}", "bold red")


def show_record(console: Console, fields: Object) -> None:
    """Print a record found in an entry, and the message in it."""
    rid = "" if fields["rid"] is None else f" 0x{fields['rid']:x}"
    proved = "intact" if fields["proved"] else "not intact"
    _line(console, f"  at 0x{fields['offset']:x}: {fields['type']} record{rid}, {fields['format']}, {proved}", "bold")
    if "dequeued_rid" in fields:
        _line(console, f"    removes record 0x{fields['dequeued_rid']:x}")
    for problem in fields["problems"]:
        _line(console, f"    but {printable(problem)}", "yellow")
    if "message" in fields:
        _show_message(console, fields["message"])
    if fields["injectable"] == "no":
        _line(console, f"    cannot be injected: {printable(fields['refusal'])}", "red")
    else:
        forced = " with --force" if fields["injectable"] == "forced" else ""
        _line(console, f"    can be injected{forced}", "green")


def _show_message(console: Console, message: dict[str, Any]) -> None:
    for name in ("exchange", "routing_key", "message_id", "delivery_mode", "priority"):
        if message[name] not in (None, ""):
            _line(console, f"    {name.replace('_', ' '):14} {printable(str(message[name]))}")
    for name, value in message["properties"].items():
        if value is not None:
            _line(console, f"    {name.replace('_', ' '):14} {printable(str(value), _PREVIEW)}")
    headers = list(message["headers"].items())
    for name, value in headers[:_MAX_HEADERS]:
        _line(console, f"    header         {printable(f'{name}={value}', _PREVIEW)}")
    if len(headers) > _MAX_HEADERS:
        _line(console, f"    … and {len(headers) - _MAX_HEADERS} more headers; --json shows all")
    body = message.get("body", "")
    shown = f"base64:{message['body_base64']}" if "body_base64" in message else body
    _line(console, f"    {message['body_length']:,} bytes of body  {printable(shown, _PREVIEW)}".rstrip())


def hex_lines(chunks: Iterable[bytes]) -> Iterable[str]:
    """Bytes as lines of sixteen: offset, hex, text."""
    at, rest = 0, b""
    for chunk in chunks:
        piece = rest + chunk
        whole = len(piece) - len(piece) % _HEX_ROW
        for start in range(0, whole, _HEX_ROW):
            yield _hex_line(at + start, piece[start : start + _HEX_ROW])
        at, rest = at + whole, piece[whole:]
    if rest:
        yield _hex_line(at, rest)


def _hex_line(at: int, row: bytes) -> str:
    text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
    return f"{at:08x}  {row.hex(' '):{3 * _HEX_ROW - 1}}  {text}"


def show_injected(console: Console, result: Injected) -> None:
    """Print the result for an entry that was to be injected."""
    name = f"entry {result.entry.number}"
    if result.failure is not None:
        _line(console, f"{name}: not injected: {printable(result.failure)}", "red")
    else:
        rids = ", ".join(f"0x{rid:x}" for rid in (result.rids[:1] if len(result.rids) > 1 else result.rids))
        count = plural(len(result.rids), "message")
        upwards = " and those after it" if len(result.rids) > 1 else ""
        _line(
            console, f"{name}: {count} at the end of queue {printable(result.queue)}, record {rids}{upwards}", "green"
        )
    for problem in result.problems:
        _line(console, f"    {printable(problem)}", "yellow")


def _line(console: Console, text: str, style: str = "") -> None:
    print_wrapped(console, text, style=style)
