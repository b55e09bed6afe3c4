"""Options that both commands have, and the kinds of values that those of qpidd's own commands take."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from broker.client import Connection, MessagingError
from broker.client.address import Value, parse_map, word_value
from tools.console.text import printable

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
    """yes or no."""

    name = "yes|no"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        """The truth of a word."""
        if isinstance(value, bool):
            return value
        if str(value).lower() not in _WORDS:
            self.fail(f"{value!r} is neither yes nor no", param, ctx)
        return _WORDS[str(value).lower()]


class NameValue(click.ParamType[tuple[str, Any]]):
    """NAME=VALUE: a number or a boolean where the value reads as one, else text."""

    name = "NAME=VALUE"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        """The name and its value."""
        if isinstance(value, tuple):
            return value
        name, equals, word = str(value).partition("=")
        if not equals or not name:
            self.fail(f"{value!r} is not NAME=VALUE", param, ctx)
        return name, word_value(word)


class OptionMap(click.ParamType[dict[str, Value]]):
    """A map as in an address: {name: value, ...}."""

    name = "{NAME:VALUE,...}"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Value]:
        """The map."""
        if isinstance(value, dict):
            return value
        try:
            return parse_map(str(value))
        except MessagingError as error:
            self.fail(str(error), param, ctx)


class Timeout(click.ParamType[float]):
    """Seconds, or "forever"."""

    name = "SECONDS|forever"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The seconds, infinity for "forever"."""
        if str(value).lower() in ("forever", "infinite"):
            return float("inf")
        try:
            seconds = float(str(value))
        except ValueError:
            self.fail(f'{value!r} is neither a number of seconds nor "forever"', param, ctx)
        if not seconds >= 0:
            self.fail(f"{value} seconds cannot be waited", param, ctx)
        return seconds


def yes_no(name: str, *, default: bool, text: str) -> Callable[[_Function], _Function]:
    """An option that takes yes or no; alone it means yes."""
    shown = "yes" if default else "no"
    return click.option(
        name, type=YesNo(), default=default, is_flag=False, flag_value="yes", help=f"{text}  [default: {shown}]"
    )


def count(*names: str, default: int, text: str) -> Callable[[_Function], _Function]:
    """An option that takes a number, 0 or more."""
    return click.option(
        *names, type=click.IntRange(0, (1 << 31) - 1), default=default, show_default=True, metavar="N", help=text
    )


def shared_options(function: _Function) -> _Function:
    """The options of both commands."""
    options: tuple[Callable[[_Function], _Function], ...] = (
        click.option("-b", "--broker", "url", default="127.0.0.1", show_default=True, metavar="URL",
                     help="Where the broker is: [user/password@]host[:port], several with commas."),
        click.option("-a", "--address", metavar="ADDRESS", help="The address, as in the Messaging API."),
        click.option("--connection-options", type=OptionMap(), default=dict, help="Such as {reconnect: true}."),
        click.option("--rollback-frequency", type=click.IntRange(0), default=0, metavar="N",
                     help="Roll back every Nth transaction."),
        click.option("--failover-updates", is_flag=True, help="Accepted, and means nothing."),
        click.option("--report-total", is_flag=True, help="Report what was done, and how fast, at the end."),
        count("--report-every", default=0, text="Report every N messages."),
        yes_no("--report-header", default=True, text="A line of headings above the reports."),
    )  # fmt: skip
    for option in reversed(options):
        function = option(function)
    return function


def connect(url: str, options: dict[str, Value]) -> Connection:
    """An open connection.

    Raises:
        MessagingError: there is none to be had.
    """
    return Connection.establish(url, **options)


def run_messaging(program: str, work: Callable[[], int], told: Callable[[], str]) -> int:
    """Do the command's work. What goes wrong is said in one line, and makes `EXIT_FAILED`.

    Args:
        program: the command's name.
        work: does it, and returns the exit code.
        told: what there is to say on standard error at the end, however that came; empty for nothing.
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
        if text := told():
            click.echo(f"{program}: {printable(text)}", err=True)
    return code
