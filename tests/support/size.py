"""`qstore-size` as tests run it, in this process."""

from __future__ import annotations

import os
from typing import Any

from click.testing import CliRunner

from qstore.tools.qstore_size import command
from tests.support.dump import Dump


def size(*arguments: str | os.PathLike[str]) -> Dump:
    """Run the command in this process. An exception that it lets out is raised here."""
    result = CliRunner().invoke(command, [os.fspath(argument) for argument in arguments], catch_exceptions=False)
    return Dump(result.exit_code, result.stdout_bytes, result.stderr_bytes)


def sizing(*arguments: str) -> dict[str, Any]:
    """The one object of a calculation."""
    shown = size(*arguments, "--json")
    assert (shown.code, shown.err) == (0, b"")
    (line,) = shown.lines()
    return line


def queues(*arguments: str | os.PathLike[str]) -> dict[str, dict[str, Any]]:
    """Queue name → its object."""
    shown = size("--from", *arguments, "--json")
    assert shown.code == 0
    return {line["queue"]: line for line in shown.lines("queue_size")}
