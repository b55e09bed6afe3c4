"""The options of both commands, and the value types of the original commands' options."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from qstore.broker.client import Connection, MessagingError
from qstore.broker.client.address import Value, word_value
from qstore.tools.console.broker_options import OptionMap, security_options
from qstore.tools.console.text import printable

EXIT_FAILED: Final = 1

_WORDS: Final = {
    "yes": True,
    "true": True,
    "1": True,
    "on": True,
    "no": False,
    "false": False,
    "0": False,
    "off": False,
}
_Function = TypeVar("_Function", bound=Callable[..., Any])


class YesNo(click.ParamType[bool]):
    """Type of an option: yes or no."""

    name = "yes|no"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        """Convert a word to a boolean."""
        if isinstance(value, bool):
            return value
        if str(value).lower() not in _WORDS:
            self.fail(f"{value!r} is neither yes nor no", param, ctx)
        return _WORDS[str(value).lower()]


class NameValue(click.ParamType[tuple[str, Any]]):
    """Type of an option: NAME=VALUE, where VALUE is a number, a boolean or text."""

    name = "NAME=VALUE"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        """Convert to name and value."""
        if isinstance(value, tuple):
            return value
        name, equals, word = str(value).partition("=")
        if not equals or not name:
            self.fail(f"{value!r} is not NAME=VALUE", param, ctx)
        return name, word_value(word)


class Timeout(click.ParamType[float]):
    """Type of an option: seconds, or "forever"."""

    name = "SECONDS|forever"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Convert to seconds; "forever" is infinity."""
        if str(value).lower() in ("forever", "infinite"):
            return float("inf")
        try:
            seconds = float(str(value))
        except ValueError:
            self.fail(f'{value!r} is neither a number of seconds nor "forever"', param, ctx)
        if not seconds >= 0:
            self.fail(f"{value} is not a number of seconds, 0 or more", param, ctx)
        return seconds


def yes_no(name: str, *, default: bool, text: str) -> Callable[[_Function], _Function]:
    """An option with the value yes or no; without a value it means yes."""
    shown = "yes" if default else "no"
    return click.option(
        name, type=YesNo(), default=default, is_flag=False, flag_value="yes", help=f"{text}  [default: {shown}]"
    )


def count(*names: str, default: int, text: str) -> Callable[[_Function], _Function]:
    """An option with a number, 0 or more."""
    return click.option(
        *names, type=click.IntRange(0, (1 << 31) - 1), default=default, show_default=True, metavar="N", help=text
    )


def shared_options(function: _Function) -> _Function:
    """Add the options of both commands to a command."""
    options: tuple[Callable[[_Function], _Function], ...] = (
        click.option("-b", "--broker", "url", default="127.0.0.1", show_default=True, metavar="URL",
                     help="URL of the broker: [user/password@]host[:port], or several separated by commas."),
        click.option("-a", "--address", metavar="ADDRESS", help="Address in the syntax of the Qpid Messaging API."),
        click.option("--connection-options", type=OptionMap(), default=dict,
                     help="Connection options, such as {reconnect: true}."),
        security_options,
        click.option("--rollback-frequency", type=click.IntRange(0), default=0, metavar="N",
                     help="Roll back every Nth transaction."),
        click.option("--failover-updates", is_flag=True, help="Accepted for compatibility, and ignored."),
        click.option("--report-total", is_flag=True, help="Report throughput at the end."),
        count("--report-every", default=0, text="Report throughput every N messages; 0 for never."),
        yes_no("--report-header", default=True, text="Print a heading above the reports."),
    )  # fmt: skip
    for option in reversed(options):
        function = option(function)
    return function


def connect(url: str, options: dict[str, Value]) -> Connection:
    """Open a connection.

    Raises:
        MessagingError: it cannot be opened.
    """
    return Connection.establish(url, **options)


def run_messaging(program: str, work: Callable[[], int], summary: Callable[[], str]) -> int:
    """Run a command. An error is printed as one line, and makes the exit code EXIT_FAILED.

    Args:
        program: the command's name.
        work: runs the command, and returns the exit code.
        summary: text for standard error at the end, also after an error; empty for none.
    """
    try:
        code = work()
        sys.stdout.flush()
    except MessagingError as error:
        click.echo(f"{program}: {printable(str(error))}", err=True)
        code = EXIT_FAILED
    except BrokenPipeError:
        raise
    except OSError as error:
        text = f"{error.filename or 'standard input or output'}: {error.strerror or error}"
        click.echo(f"{program}: {printable(text)}", err=True)
        code = EXIT_FAILED
    finally:
        if text := summary():
            click.echo(f"{program}: {printable(text)}", err=True)
    return code
