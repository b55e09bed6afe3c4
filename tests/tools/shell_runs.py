"""`qstore-shell` as tests run it, and small stores for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from qstore.tools.qstore_shell import command
from tests.tools.interchange_runs import bring, write_lines
from tests.tools.test_interchange import simple_lines

Line = dict[str, Any]


def shell(where: object, *commands: str, options: tuple[str, ...] = (), stdin: str | None = None) -> Result:
    """However it ends."""
    given = [part for each in commands for part in ("-c", each)]
    result = CliRunner().invoke(command, [str(where), *options, *given], input=stdin)
    assert "Traceback" not in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def text(where: object, *commands: str, options: tuple[str, ...] = ()) -> str:
    """What it prints, where it is fine."""
    result = shell(where, *commands, options=options)
    assert result.exit_code == 0, result.output
    return result.stdout


def objects(where: object, *commands: str, options: tuple[str, ...] = ()) -> list[Line]:
    """Its JSON objects."""
    return [json.loads(line) for line in text(where, *commands, options=("--json", *options)).splitlines()]


def fails(where: object, *commands: str, options: tuple[str, ...] = (), code: int = 1) -> str:
    """The line with which it fails."""
    result = shell(where, *commands, options=options)
    assert result.exit_code == code, result.output
    lines = [line for line in result.stderr.splitlines() if not line.startswith("notice:")]
    assert len(lines) == 1, lines
    return lines[0]


def made(path: Path, count: int = 6) -> Path:
    """A store with the queues `orders`, which has messages with a header n, and `old`."""
    lines = simple_lines(count, "orders")
    lines.insert(1, {"kind": "queue", "name": "old"})
    lines.insert(3, {"kind": "exchange", "name": "market", "type": "topic"})
    lines.insert(4, {"kind": "binding", "exchange": "market", "queue": "orders", "key": "eu.#"})
    for line in lines:
        if line["kind"] == "message" and line["body"] == "1":
            line["redelivered"] = True
    file = write_lines(path.with_suffix(".jsonl"), lines)
    assert bring(file, path, "--edited", "-q").exit_code == 0
    return path


def bodies(where: object, queue: str) -> list[str]:
    """The bodies of a queue's messages."""
    return [line["body"] for line in objects(where, f"dump {queue}")]
