"""What all commands of this package share: exit codes, and how a console script begins and gives up."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from tools.console.text import printable

EXIT_DAMAGE: Final = 1
EXIT_UNUSABLE: Final = 2
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # on which a command ends
_EXIT_SIGNAL: Final = 128  # and the signal's number, as a shell has it
EXIT_INTERRUPTED: Final = _EXIT_SIGNAL + signal.SIGINT


class TerminatedError(KeyboardInterrupt):
    """SIGTERM or SIGHUP: what a command has begun is ended in the same way as by Ctrl-C.

    Attributes:
        number: the signal's.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


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


def no_advice(_error: OSError) -> str:
    """Nothing to add."""
    return ""


@contextmanager
def failing(program: str, *failures: type[Exception], advise: Callable[[OSError], str] = no_advice) -> Iterator[None]:
    """End the command with one line where its work is not possible; silently where who reads its output went away.

    Args:
        program: the command's name.
        failures: the errors, besides OSError, that make it impossible; their texts tell why.
        advise: what to add to the reason of an OSError.
    """
    try:
        yield
    except failures as error:
        fail(program, str(error))
    except BrokenPipeError:
        raise
    except OSError as error:
        # Reading always names its file; what has no name is what was written to.
        fail(program, f"{error.filename or 'standard output'}: {error.strerror or error}{advise(error)}")


class PathName(click.Path):
    """A path on the command line, which names something: an empty one, as from a variable that is not set, does not."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path as it was given."""
        if not os.fspath(value):
            self.fail("the path is empty; name a file or directory", param, ctx)
        return super().convert(value, param, ctx)


def run(program: str, command: click.Command) -> NoReturn:
    """Run a console script: a reader that goes away (`| head`) ends it silently, as other Unix commands.

    SIGINT (Ctrl-C), SIGTERM and SIGHUP end it with one line and the exit code that a shell gives them (130, 143, 129):
    1 would mean that damage was found. What has to be cleaned up first is told by the exception KeyboardInterrupt.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, _terminated)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as `nohup` has it
        signal.signal(signal.SIGHUP, _terminated)
    if sys.stdout is None:
        fail(program, "standard output is closed")
    # What a terminal's character set lacks is shown as an escape.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = command.main(prog_name=program, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort as error:
        cause = error.__cause__ or error.__context__  # the latter at a prompt
        if isinstance(cause, KeyboardInterrupt):
            _interrupted(program, cause)
        click.echo("Aborted!", err=True)
        sys.exit(1)
    except KeyboardInterrupt as error:
        _interrupted(program, error)
    sys.exit(code if isinstance(code, int) else 0)


@contextmanager
def private_files() -> Iterator[None]:
    """What is made meanwhile is nobody else's: RocksDB goes by the umask."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def signals_wait() -> Iterator[None]:
    """The signals that end a command are handled when the block is over: for processes that are being started in it.

    One that is interrupted between its fork and the moment from which it is known would be left alone.
    """
    came: list[int] = []

    def note(number: int, _frame: object) -> None:
        came.append(number)

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    changed = {number: handler for number, handler in before.items() if callable(handler)}
    try:
        for number in changed:
            signal.signal(number, note)
        yield
    finally:
        for number, handler in changed.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def _terminated(number: int, _frame: object) -> NoReturn:
    raise TerminatedError(number)


def _interrupted(program: str, error: KeyboardInterrupt) -> NoReturn:
    """Say that a command was interrupted, with the notes that were added to `error`: what is left of its work."""
    number = error.number if isinstance(error, TerminatedError) else signal.SIGINT
    text = "; ".join(("interrupted", *getattr(error, "__notes__", ())))
    click.echo(f"{program}: {printable(text)}", err=True)
    sys.exit(_EXIT_SIGNAL + number)


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
