"""Running a management command: its console, its errors in one line, its exit codes.

Exit codes: 0 fine, 1 failed (no connection, the broker has refused), 2 invalid command line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import click

from qstore.broker.client import MessagingError
from qstore.broker.management.console import Console
from qstore.tools.console.broker_options import BrokerOptions
from qstore.tools.console.text import printable
from qstore.tools.entry import run

EXIT_FAILED = 1

EXIT_CODES = "Exit codes: 0 fine, 1 failed, 2 invalid command line."


def run_on_console(program: str, options: BrokerOptions, work: Callable[[Console], None]) -> int:
    """Run a command on a console, and return its exit code. An error is printed in one line."""
    try:
        with Console(options.url, timeout=options.timeout, **options.connection) as console:
            work(console)
            sys.stdout.flush()
    except MessagingError as error:
        say(program, str(error))
        return EXIT_FAILED
    except BrokenPipeError:
        raise
    except OSError as error:
        say(program, f"{error.filename or 'standard output'}: {error.strerror or error}")
        return EXIT_FAILED
    return 0


def say(program: str, text: str) -> None:
    """Print a line on standard error."""
    click.echo(f"{program}: {printable(text)}", err=True)


def main_of(program: str, command: click.Command) -> Callable[[], None]:
    """The console script of a command."""

    def main() -> None:
        """The console script."""
        run(program, command)

    return main
