"""Objects as tables or JSON lines, and the content of messages as text."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import click

from qstore.tools.console.json_lines import JsonLines
from qstore.tools.console.text import printable
from qstore.tools.dump.tables import Tables
from qstore.tools.store_shell.paging import output_console

_ROW: Final = 16  # bytes of a line in hexadecimal
_HEADER_FIELDS: Final = ("exchange", "routing_key", "message_id", "delivery_mode", "priority", "xid")


def show_objects(objects: Iterable[dict[str, Any]], *, is_json: bool, fits: bool = False) -> int:
    """Print objects; returns their number. With `fits`, columns are as wide as needed, and all rows buffered."""
    output = JsonLines(sys.stdout.buffer) if is_json else Tables(output_console(), fits=fits)
    count = 0
    for each in objects:
        output.show(each)
        count += 1
    output.flush()
    return count


def show_content(message: Mapping[str, Any], *, headers: bool, body: bool, is_hex: bool) -> None:
    """Print a message: a title, its header, its body."""
    rid = "" if message["rid"] is None else f" record 0x{message['rid']:x}"
    marks = [*([message["state"]] if message["state"] != "outstanding" else [])]
    marks += ["redelivered"] if message["redelivered"] else []
    told = f" ({', '.join(marks)})" if marks else ""
    click.echo(f"--- {printable(message['queue'])}{rid}{told}, {message['body_length']:,} bytes")
    if headers:
        for name, value in _header_lines(message):
            click.echo(f"{name}: {value}")
    if headers and body:
        click.echo()
    if body:
        for line in _body_lines(message, is_hex=is_hex):
            click.echo(line)


def _header_lines(message: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    named = {name: message[name] for name in _HEADER_FIELDS}
    for name, value in {**named, **message["properties"]}.items():
        if value is not None and value != "":
            yield name, printable(str(value))
    for name, value in message["headers"].items():
        kind = message["header_types"].get(name)
        told = "" if kind is None else f" ({printable(str(kind))})"
        yield f"header {printable(name)}", printable(str(value)) + told


def _body_lines(message: Mapping[str, Any], *, is_hex: bool) -> Iterator[str]:
    text = message.get("body")
    if text is not None and not is_hex:
        yield from (printable(line) for line in text.split("\n"))
        return
    body = base64.b64decode(message["body_base64"]) if text is None else text.encode("utf-8", "surrogatepass")
    for at in range(0, len(body), _ROW):
        row = body[at : at + _ROW]
        shown = "".join(chr(each) if 0x20 <= each < 0x7F else "." for each in row)
        yield f"{at:08x}  {row.hex(' '):<{3 * _ROW - 1}}  |{shown}|"
