"""The loop of the shell: lines from a terminal, with history and completion, from a pipe, or from the command line."""

from __future__ import annotations

import contextlib
import os
import readline
import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import click

from qstore.broker.client import MessagingError
from qstore.broker.client.errors import ConnectionFailedError
from qstore.tools.management.running import say
from qstore.tools.shell.commands import Shell, completions

PROGRAM: Final = "qpid-tool"
_PROMPT: Final = "qpid: "
_MOST_HISTORY: Final = 1000


def run_lines(shell: Shell, lines: Iterable[str]) -> bool:
    """Carry out commands until one of them is quit. Returns whether all of them succeeded.

    Raises:
        ConnectionFailedError: the connection has failed.
    """
    is_fine = True
    for line in lines:
        try:
            shell.run(line)
            sys.stdout.flush()
        except ConnectionFailedError:
            raise
        except MessagingError as error:
            say(PROGRAM, str(error))
            is_fine = False
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            click.echo()
        if shell.has_ended:
            break
    return is_fine


def run_terminal(shell: Shell) -> None:
    """Carry out what a person types. Raises ConnectionFailedError if the connection has failed."""
    click.echo("Management Tool for QPID")
    with _history(), _completion(shell):
        run_lines(shell, _typed())
    click.echo("Exiting...")


def _typed() -> Iterator[str]:
    while True:
        try:
            yield input(_PROMPT)
        except EOFError:
            click.echo()
            return
        except KeyboardInterrupt:
            click.echo()


@contextlib.contextmanager
def _history() -> Iterator[None]:
    """Keeps what was typed in a file that only its user can read."""
    state = os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()
    path = Path(state, "qstore", "qpid-tool.history")
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(_MOST_HISTORY)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600)
            readline.write_history_file(path)


@contextlib.contextmanager
def _completion(shell: Shell) -> Iterator[None]:
    found: list[str] = []

    def complete(word: str, index: int) -> str | None:
        if index == 0:
            line = readline.get_line_buffer()[: readline.get_begidx()]
            with contextlib.suppress(ValueError):
                found[:] = completions(shell, shlex.split(line), word)
        return f"{found[index]} " if index < len(found) else None

    before = readline.get_completer()
    readline.set_completer(complete)
    readline.set_completer_delims(" \t")
    readline.parse_and_bind("tab: complete")
    try:
        yield
    finally:
        readline.set_completer(before)
