"""How commands run: exit codes, signals, errors in one line, and the options that several of them have.

0          fine
1          damage or losses were found; of commands that talk to a broker, and of Apache's: it has failed
2          the input or the command line is unusable
128 + n    ended by the signal n, as a shell reports it: 130 after Ctrl-C
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import click

from qstore.store.log_lines import Level, LogLine
from qstore.tools.console.text import sentence

EXIT_DAMAGE: Final = 1
EXIT_FAILED: Final = 1
EXIT_UNUSABLE: Final = 2
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # terminated by a signal in this set
_EXIT_SIGNAL: Final = 128  # plus the signal number, as a shell reports it
_OUTPUT_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
EXIT_INTERRUPTED: Final = _EXIT_SIGNAL + signal.SIGINT


# ---- errors ----


def say(program: str, text: str) -> None:
    """Print a line on standard error."""
    click.echo(f"{program}: {sentence(text)}", err=True)


def log_printer(program: str) -> Callable[[LogLine], None]:
    """Print the warnings and critical messages of the store's log on standard error."""

    def show(line: LogLine) -> None:
        if line.level in (Level.WARNING, Level.CRITICAL):
            say(program, line.text)

    return show


def os_error_text(error: OSError, advise: Callable[[OSError], str] = lambda _: "") -> str:
    """An error of the system in one line, with advice.

    Errors of reading always name the file, so an error without a name is one of writing the output.
    """
    return f"{error.filename or 'standard output'}: {error.strerror or error}{advise(error)}"


def fail(program: str, text: str) -> NoReturn:
    """Print the reason on standard error and exit with `EXIT_UNUSABLE`."""
    say(program, text)
    _drop_output()
    sys.exit(EXIT_UNUSABLE)


def _drop_output() -> None:
    """Drop buffered output, which could not be written either: Python would report that again at exit."""
    if sys.__stdout__ is not None and sys.stdout is sys.__stdout__:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno())


@contextmanager
def failing(
    program: str, *failures: type[Exception], advise: Callable[[OSError], str] = lambda _: ""
) -> Iterator[None]:
    """Turn expected errors into one line on standard error and an exit code; a closed pipe ends the command silently.

    Args:
        program: the command's name.
        failures: exception types, in addition to OSError, whose text explains why the command cannot continue.
        advise: returns advice to append to the text of an OSError.
    """
    try:
        yield
    except failures as error:
        fail(program, str(error))
    except BrokenPipeError:
        raise
    except OSError as error:
        fail(program, os_error_text(error, advise))


# ---- options that several commands have ----

SETTINGS: Final = {"help_option_names": ["-h", "--help"]}


def examples(*lines: str) -> str:
    """The end of a subcommand's help."""
    return "\b\nExamples:\n" + "\n".join(lines)


JSON: Final = click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line instead of text.")
QUIET: Final = click.option("-q", "--quiet", is_flag=True, help="Print only what needs attention, and errors.")
DRY_RUN: Final = click.option("--dry-run", is_flag=True, help="Show what would be done; write nothing.")
YES: Final = click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
AGAIN: Final = click.option("--again", is_flag=True, help="Do it although it was done before.")
QUEUES: Final = click.option("--queue", "queues", multiple=True, metavar="NAME", help="Only this queue. Repeatable.")
BROKER_RATE: Final = click.option(
    "--rate", type=click.FloatRange(0), default=0, metavar="N", help="Into a broker: at most N messages a second."
)


class PathName(click.Path):
    """A path on the command line. The empty string, as from an unset variable, is rejected."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path unchanged."""
        if not os.fspath(value):
            self.fail("the path is empty; name a file or directory", param, ctx)
        return super().convert(value, param, ctx)


# ---- running ----


def run(program: str, command: click.Command) -> NoReturn:
    """Run a console script. A closed output pipe (`| head`) ends it silently, as with other Unix commands.

    Output that cannot be written, as on a full disk, ends it with one line and `EXIT_FAILED`.

    SIGINT (Ctrl-C), SIGTERM and SIGHUP end it with one line and the exit code that a shell reports (130, 143, 129),
    because exit code 1 would mean that damage was found. Cleanup code sees the signal as the exception
    KeyboardInterrupt.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, _terminated)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as `nohup` does
        signal.signal(signal.SIGHUP, _terminated)
    if sys.stdout is None:
        fail(program, "standard output is closed")
    # Characters that the terminal's encoding lacks are shown as escapes.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = command.main(prog_name=program, standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.UsageError as error:
        fail(program, _usage_text(program, error))
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort as error:
        cause = error.__cause__ or error.__context__  # click.Abort is raised at a prompt
        if isinstance(cause, KeyboardInterrupt):
            _interrupted(program, cause)
        say(program, "aborted")
        sys.exit(EXIT_FAILED)
    except KeyboardInterrupt as error:
        _interrupted(program, error)
    except OSError as error:
        if error.filename is not None or error.errno not in _OUTPUT_ERRORS:
            raise
        say(program, os_error_text(error))
        _drop_output()
        sys.exit(EXIT_FAILED)
    sys.exit(code if isinstance(code, int) else 0)


def _usage_text(program: str, error: click.UsageError) -> str:
    text = error.format_message().rstrip(".")
    if text[1:2].islower():
        text = text[0].lower() + text[1:]
    path = program if error.ctx is None else error.ctx.command_path
    return f"{text}{' See' if text.endswith('?') else '; see'} {path} --help"


# ---- signals and files ----


class TerminatedError(KeyboardInterrupt):
    """SIGTERM or SIGHUP was received; a command cleans up in the same way as after Ctrl-C.

    Attributes:
        number: the signal number.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def pipe_signal_waits() -> Iterator[None]:
    """Defer SIGPIPE to the end of the block, so that the block can first remove what it shows on the terminal."""
    before = signal.getsignal(signal.SIGPIPE)
    is_default = before is signal.SIG_DFL and threading.current_thread() is threading.main_thread()
    if is_default:
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        yield
    except BrokenPipeError:
        if is_default:
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            signal.raise_signal(signal.SIGPIPE)
        raise
    finally:
        if is_default:
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)


@contextmanager
def private_files() -> Iterator[None]:
    """Files that are created in this block are private to the user; the umask is set because RocksDB follows it."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def signals_wait() -> Iterator[list[int]]:
    """Defer the signals that end a command until the end of the block. Yields the list of those that have come.

    It is for what must not be left in the middle: a signal between the fork of a child process and the moment when the
    child is registered would leave that child running; one within a step of a store's writer would leave it undone.
    """
    came: list[int] = []

    def note(number: int, _frame: object) -> None:
        came.append(number)

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    changed = {number: handler for number, handler in before.items() if callable(handler)}
    try:
        for number in changed:
            signal.signal(number, note)
        yield came
    finally:
        for number, handler in changed.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def _terminated(number: int, _frame: object) -> NoReturn:
    raise TerminatedError(number)


def _interrupted(program: str, error: KeyboardInterrupt) -> NoReturn:
    """Report the interruption with the notes that were added to `error`: the unfinished work that remains on disk."""
    number = error.number if isinstance(error, TerminatedError) else signal.SIGINT
    text = "; ".join(("interrupted", *getattr(error, "__notes__", ())))
    say(program, text)
    sys.exit(_EXIT_SIGNAL + number)
