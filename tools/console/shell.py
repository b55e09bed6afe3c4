"""The loop of a shell, run by `qpid-tool` and `qstore-shell`: where lines come from, and where long output goes.

Lines come from a terminal, with history and completion, from a pipe, or from the command line; a `CommandShell` runs
them by its table of commands, and says which of its errors end it. Long output on a terminal goes through a pager.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import readline
import shlex
import shutil
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

import click
from rich.console import Console

from qstore.formats.named_tuple import NamedTuple
from qstore.tools.console.command import TerminatedError, say
from qstore.tools.console.rows import Column, print_json, print_table

_MOST_HISTORY: Final = 1000
_SECRET: Final = re.compile(r"://.*@")  # a URL with a user, and perhaps a password


class ShellCommand(NamedTuple):
    """A command of a shell.

    Attributes:
        syntax: what may follow its name.
        help: what it does.
        work: does it, with the shell and what follows the name.
        more: further lines of its help.
        example: one line.
        has_where: whether a selector may follow.
        is_long: whether its output may be long, and goes through the pager.
    """

    syntax: str
    help: str
    work: Callable[[Any, Any], None]
    more: tuple[str, ...] = ()
    example: str = ""
    has_where: bool = False
    is_long: bool = False


class CommandShell(ABC):
    """A shell: a table of commands, and what they share.

    Args:
        as_json: whether to print JSON lines.

    Attributes:
        program: the command's name, for errors and the file of its history.
        banner: printed when it starts on a terminal.
        farewell: printed when it ends there; empty for nothing.
        failures: the errors of a command: printed in one line.
        fatal: those of them that end the shell.
        word_error: the one about the words of a command.
        has_ended: whether `quit` was given.
    """

    program: str
    banner: str
    farewell = ""
    failures: tuple[type[Exception], ...]
    fatal: tuple[type[Exception], ...]
    word_error: type[Exception]

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self.has_ended = False

    @property
    @abstractmethod
    def commands(self) -> Mapping[str, ShellCommand]:
        """Name -> command."""

    @property
    @abstractmethod
    def prompt(self) -> str:
        """What is shown in front of a line."""

    @abstractmethod
    def run(self, line: str) -> None:
        """Run what a line says. Raises one of `failures`."""

    @abstractmethod
    def completions(self, before: Sequence[str], word: str) -> Iterable[str]:
        """How a word may be completed, after those before it on its line."""

    def command(self, name: str) -> ShellCommand:
        """The command of this name, in any case. Raises `word_error`."""
        found = self.commands.get(name.lower())
        if found is None:
            raise self.word_error(f"unknown command {name!r}; help lists the commands")
        return found

    def usage_error(self, name: str, question: str) -> Exception:
        """The error for words that are not those of the command `name`."""
        return self.word_error(f"{question} Usage: {name} {self.commands[name].syntax}")

    # ---- commands that every shell has ----

    def show_help(self, words: Sequence[str]) -> None:
        """Print the commands, or one of them."""
        names = [word.lower() for word in words[:1]]
        found = [self.command(name) for name in names]
        if self._as_json:
            print_json(self._command_object(name) for name in names or self.commands)
        elif not found:
            self.print_commands()
        else:
            click.echo(f"{found[0].help}.\nUsage: {names[0]} {found[0].syntax}".rstrip())
            for each in found[0].more:
                click.echo(f"  {each}")
            if found[0].example:
                click.echo(f"Example: {found[0].example}")

    def print_commands(self) -> None:
        """Print the commands and what they do."""
        click.echo("Available Commands")
        rows = [(name, each.help) for name, each in self.commands.items()]
        print_table(Console(highlight=False), (Column("Command"), Column("Description", folds=True)), rows)
        click.echo("help COMMAND shows what may follow it.")

    def _command_object(self, name: str) -> dict[str, Any]:
        found = self.commands[name]
        return {"kind": "command", "name": name, "syntax": found.syntax, "help": found.help, "more": list(found.more),
                "example": found.example or None}  # fmt: skip

    def end(self) -> None:
        """End the shell."""
        self.has_ended = True


def run_lines(shell: CommandShell, lines: Iterable[str], *, stops: bool = False) -> bool:
    """Carry out commands until one of them ends the shell. Returns whether all of them succeeded.

    Args:
        shell: carries them out.
        lines: the commands.
        stops: whether to end at the first one that fails.

    Raises:
        Exception: a fatal error of the shell.
    """
    is_fine = True
    for line in lines:
        try:
            shell.run(line)
            sys.stdout.flush()
        except shell.fatal:
            raise
        except shell.failures as error:
            say(shell.program, str(error))
            is_fine = False
            if stops:
                break
        except TerminatedError:
            raise
        except KeyboardInterrupt as interruption:
            if not sys.stdin.isatty():
                raise
            click.echo()
            for note in getattr(interruption, "__notes__", ()):
                say(shell.program, note)
        if shell.has_ended:
            break
    return is_fine


def run_terminal(shell: CommandShell) -> None:
    """Carry out what a person types. Raises as `run_lines`."""
    click.echo(shell.banner)
    with _history(shell.program), _completion(shell):
        run_lines(shell, _typed(shell))
    if shell.farewell:
        click.echo(shell.farewell)


def ask(question: str) -> str:
    """What a person answers; empty at the end of input. It is not kept in the history."""
    try:
        return _input(question, lambda _: False)
    except EOFError:
        click.echo()
        return ""


def _typed(shell: CommandShell) -> Iterator[str]:
    while True:
        try:
            yield _input(shell.prompt, lambda line: _SECRET.search(line) is None)
        except EOFError:
            click.echo()
            return
        except TerminatedError:
            raise
        except KeyboardInterrupt:
            click.echo()


def _input(prompt: str, is_kept: Callable[[str], bool]) -> str:
    """A line that is typed; it goes into the history if `is_kept` says so."""
    before = readline.get_current_history_length()
    line = input(prompt)
    if readline.get_current_history_length() > before and not is_kept(line):
        readline.remove_history_item(before)
    return line


@contextlib.contextmanager
def _history(program: str) -> Iterator[None]:
    """Keeps what was typed in a file that only its user can read."""
    state = os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()
    path = Path(state, "qstore", f"{program}.history")
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
def _completion(shell: CommandShell) -> Iterator[None]:
    found: list[str] = []

    def complete(word: str, index: int) -> str | None:
        if index == 0:
            line = readline.get_line_buffer()[: readline.get_begidx()]
            with contextlib.suppress(ValueError):
                found[:] = shell.completions(shlex.split(line), word)
        return f"{found[index]} " if index < len(found) else None

    before = readline.get_completer()
    readline.set_completer(complete)
    readline.set_completer_delims(" \t")
    readline.parse_and_bind("tab: complete")
    try:
        yield
    finally:
        readline.set_completer(before)


# ---- long output ----

_DEFAULT: Final = ("less", "-FRX")  # ends by itself if everything fits the screen


class _PagerInput(io.TextIOWrapper):
    """The pager's standard input, with the width of the terminal on which it shows the text.

    Args:
        stream: the pipe.
        columns: the width in characters.
        has_colours: whether the pager is known to pass them on.
    """

    def __init__(self, stream: IO[bytes], columns: int, *, has_colours: bool) -> None:
        super().__init__(stream, errors="backslashreplace", write_through=True)
        self.columns, self.has_colours = columns, has_colours


def output_console() -> Console:
    """A console for standard output; within `paged` it is formatted for the terminal that the pager fills."""
    stream = sys.stdout
    if not isinstance(stream, _PagerInput):
        return Console(highlight=False)
    return Console(
        file=stream, force_terminal=True, width=stream.columns, no_color=not stream.has_colours, highlight=False
    )


@contextlib.contextmanager
def paged(*, is_wanted: bool) -> Iterator[None]:
    """Standard output of the block goes to the user's pager (PAGER, or less), if it is a terminal.

    Args:
        is_wanted: False for none.
    """
    command = _pager() if is_wanted and sys.stdout.isatty() and sys.stdin.isatty() else None
    if command is None:
        yield
        return
    sys.stdout.flush()
    before, broken = sys.stdout, signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a pager may end before the output
    with subprocess.Popen(command, stdin=subprocess.PIPE) as pager:  # noqa: S603 (the user's own choice)
        assert pager.stdin is not None
        columns = shutil.get_terminal_size().columns
        stream = _PagerInput(pager.stdin, columns, has_colours=command == list(_DEFAULT))
        sys.stdout = stream
        try:
            yield
        except BrokenPipeError:  # the user has seen enough
            pass
        finally:
            sys.stdout = before
            with contextlib.suppress(OSError):
                stream.close()
            while pager.poll() is None:
                with contextlib.suppress(KeyboardInterrupt):  # the pager has its own use for Ctrl-C
                    pager.wait()
            signal.signal(signal.SIGPIPE, broken)


def _pager() -> list[str] | None:
    chosen = os.environ.get("PAGER")
    try:
        command = list(_DEFAULT) if chosen is None else shlex.split(chosen)
    except ValueError:
        return None
    return command if command and command != ["cat"] and shutil.which(command[0]) else None
