"""A drop-in for one of qpidd's commands, as tests run it in this process."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass


@dataclass(frozen=True)
class DropInRun:
    """What one run gave: exit code, standard output, standard error."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """The lines of standard output."""
        return self.out.splitlines()


def outcome(run: Callable[[Sequence[str]], int], arguments: Sequence[str | os.PathLike[str]]) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command. An exception that it lets out is raised here."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = run([os.fspath(argument) for argument in arguments])
        except SystemExit as end:
            code = int(end.code or 0)
    return code, out.getvalue(), err.getvalue()
