"""`qstore-dump` and `qstore-size` as tests run them: in this process, or as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import click
from click.testing import CliRunner

from qstore.tools import qstore_dump, qstore_size
from tests.support import forked
from tests.support.forked import ROOT
from tests.support.processes import PATIENCE_SECONDS

COMMAND: Final = (sys.executable, "-m", "qstore.tools.qstore_dump")

#: Every form of output.
MODES: Final = [
    [*mode, *json_option]
    for mode in ([], ["--outstanding"], ["--transactions"], ["--topology"])
    for json_option in ([], ["--json"])
]
mode_id = "+".join

Line = dict[str, Any]


@dataclass(frozen=True)
class Dump:
    """What one run gave.

    Attributes:
        code: exit code.
        out, err: what it wrote, as bytes.
    """

    code: int
    out: bytes
    err: bytes

    @property
    def text(self) -> str:
        """Standard output."""
        return self.out.decode()

    @property
    def errors(self) -> str:
        """Standard error."""
        return self.err.decode()

    def lines(self, kind: str | None = None) -> list[Line]:
        """The JSON objects on standard output, those of one kind only if asked."""
        return [line for line in self._lines if kind in (None, line["kind"])]

    @cached_property
    def _lines(self) -> list[Line]:
        return [json.loads(line) for line in self.out.splitlines()]

    def messages(self, queue: str, *states: str) -> list[Line]:
        """The message lines of one queue, in order; only those in `states`, if any is given."""
        return [
            line for line in self.lines("message") if line["queue"] == queue and (not states or line["state"] in states)
        ]

    def assert_no_traceback(self) -> None:
        """Every outcome was reported in one of the command's three ways."""
        assert b"Traceback" not in self.out + self.err, self.errors
        assert self.code in (0, 1, 2), f"exit code {self.code}: {self.errors}"


def dump(*arguments: str | os.PathLike[str]) -> Dump:
    """Run `qstore-dump` in this process. An exception that it lets out is raised here."""
    return _invoke(qstore_dump.command, arguments)


def _invoke(command: click.Command, arguments: Sequence[str | os.PathLike[str]]) -> Dump:
    result = CliRunner().invoke(command, [os.fspath(argument) for argument in arguments], catch_exceptions=False)
    return Dump(result.exit_code, result.stdout_bytes, result.stderr_bytes)


def run_dump(
    *arguments: str | bytes | os.PathLike[str],
    before: Sequence[str] = (),
    environment: dict[str, str] | None = None,
) -> Dump:
    """Run the command as a process of its own, its streams captured.

    Args:
        arguments: as on a command line.
        before: a command that runs the command, such as `setpriv` with its options.
        environment: variables to set.
    """
    variables = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **(environment or {})}
    run = subprocess.run if before or environment else forked.run
    finished = run(
        [*before, *COMMAND, *arguments],
        cwd=ROOT,
        env=variables,
        capture_output=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    return Dump(finished.returncode, finished.stdout, finished.stderr)


def size(*arguments: str | os.PathLike[str]) -> Dump:
    """Run `qstore-size` in this process. An exception that it lets out is raised here."""
    return _invoke(qstore_size.command, arguments)


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
