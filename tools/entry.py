"""What all commands of this package share: exit codes, and how a console script begins and gives up."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, NoReturn

import click

from tools.dump.tables import printable

EXIT_DAMAGE: Final = 1
EXIT_UNUSABLE: Final = 2


def distribution_version() -> str:
    """The version of the installed package."""
    try:
        return version("qstore")
    except PackageNotFoundError:
        return "unknown"


def fail(program: str, text: str) -> NoReturn:
    """Say why a command gives up, and end it with `EXIT_UNUSABLE`."""
    click.echo(f"{program}: {printable(text)}", err=True)
    if sys.__stdout__ is not None and sys.stdout is sys.__stdout__:
        # What is still buffered could not be written either, and Python would say so again as it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno())
    sys.exit(EXIT_UNUSABLE)


def run(program: str, command: click.Command) -> None:
    """Run a console script: a reader that goes away (`| head`) ends it silently, as other Unix commands."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if sys.stdout is None:
        fail(program, "standard output is closed")
    # What a terminal's character set lacks is shown as an escape.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    command(prog_name=program)


def run_drop_in(work: Callable[[Sequence[str]], int]) -> NoReturn:
    """Run a console script that stands for one of qpidd's own: names go out as bytes, and nothing is said of a pipe.

    Args:
        work: takes the arguments and writes to `sys.stdout` and `sys.stderr`; returns the exit code.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by who called; the exit code still tells
            stream = Path(os.devnull).open("w")  # noqa: SIM115 (until the process ends)
            setattr(sys, name, stream)
        # Names are bytes: what cannot be decoded goes out as it came in.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")
    code = work(sys.argv[1:])
    try:
        sys.stdout.flush()
    except OSError:
        # What is still buffered cannot be written, and Python would say so again as it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
