"""What all commands of this package share: exit codes, and how a console script begins and gives up."""

from __future__ import annotations

import io
import os
import signal
import sys
from importlib.metadata import PackageNotFoundError, version
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
