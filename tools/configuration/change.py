"""What `qpid-config` changes: objects of the broker, bindings, its log, and that it runs at all."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from qstore.broker.client import ConnectionFailedError
from qstore.broker.client.address import word_value
from qstore.broker.management.console import Console, NoObjectError
from qstore.tools.management.amounts import shown

_MATCHES: Final = ("all", "any")
_ACL: Final = "org.apache.qpid.acl"


def create(console: Console, kind: str, name: str, properties: Mapping[str, Any]) -> None:
    """Create an object of any type."""
    console.call("broker", "create", type=kind, name=name, properties=dict(properties), strict=False)


def delete(console: Console, kind: str, name: str, options: Mapping[str, Any]) -> None:
    """Delete an object of any type."""
    console.call("broker", "delete", type=kind, name=name, options=dict(options))


def bind(console: Console, exchange: str, queue: str, rest: Sequence[str], query_file: str | None) -> None:
    """Bind a queue to an exchange.

    Args:
        console: the console.
        exchange: its name.
        queue: its name.
        rest: the key, and for a headers exchange `all` or `any` and NAME=VALUE.
        query_file: for an XML exchange: a file with an XQuery; `-` is standard input.

    Raises:
        UsageError: the exchange is of another type than `rest` and `query_file` are for.
    """
    try:
        kind = console.find(f"exchange:{exchange}").get("type")
    except NoObjectError:
        kind = None  # the broker tells
    key, *conditions = rest or [""]
    if kind == "headers" and key in _MATCHES and conditions and "=" in conditions[0]:
        key, conditions = "", [key, *conditions]
    arguments: dict[str, Any] = {}
    if kind == "xml" or query_file is not None:
        if kind != "xml" or query_file is None:
            raise click.UsageError("a binding to an XML exchange has an XQuery, by -f, and no other has")
        arguments["xquery"] = _read(query_file)
    if kind == "headers":
        arguments |= _header_conditions(conditions)
    elif conditions:
        raise click.UsageError(f"only a binding to a headers exchange has conditions: {' '.join(conditions)}")
    create(console, "binding", f"{exchange}/{queue}/{key}", arguments)


def _header_conditions(words: Sequence[str]) -> dict[str, Any]:
    match, *pairs = words or ["all"]
    if match not in _MATCHES:
        raise click.UsageError(f"a binding to a headers exchange is for all or any of its conditions, not {match!r}")
    found: dict[str, Any] = {"x-match": match}
    for pair in " ".join(pairs).replace(",", " ").split():
        name, equals, word = pair.partition("=")
        if not equals or not name:
            raise click.UsageError(f"the condition {pair!r} is not NAME=VALUE")
        found[name] = word_value(word)
    return found


def _read(path: str) -> str:
    return sys.stdin.read() if path == "-" else Path(path).read_text()


def unbind(console: Console, exchange: str, queue: str, key: str) -> None:
    """Remove a binding."""
    delete(console, "binding", f"{exchange}/{queue}/{key}", {})


def show_log_levels(console: Console) -> None:
    """Print which messages the broker logs."""
    click.echo(f"Log level: {shown(console.call('broker', 'getLogLevel').get('level'))}")


def set_log_levels(console: Console, levels: str) -> None:
    """Change which messages the broker logs."""
    console.call("broker", "setLogLevel", level=levels)


def reload_acl(console: Console) -> None:
    """Have the access rules read again. Raises NoObjectError if the broker has none."""
    for acl in console.query("acl", package=_ACL):
        console.call(acl, "reloadACLFile")
        return
    raise NoObjectError("the broker has no access rules (ACL)")


def shut_down(console: Console) -> None:
    """Have the broker end, which ends the connection."""
    with contextlib.suppress(ConnectionFailedError):
        console.call("broker", "shutdown")
