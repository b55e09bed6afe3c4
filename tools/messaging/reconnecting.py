"""The options of `spout` and `drain` for connections that are lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from qstore.tools.console.broker_options import BrokerOptions

_Function = TypeVar("_Function", bound=Callable[..., Any])


def reconnect_options(function: _Function) -> _Function:
    """Add them to a command."""
    options: tuple[Callable[[_Function], _Function], ...] = (
        click.option("-r", "--reconnect", is_flag=True, help="Connect again when the connection is lost."),
        click.option("-i", "--reconnect-interval", type=click.FloatRange(0), metavar="SECONDS",
                     help="Seconds between two attempts."),
        click.option("-l", "--reconnect-limit", type=click.IntRange(0), metavar="N",
                     help="Give up after so many attempts."),
        click.option("-v", "--verbose", is_flag=True, help="Accepted for compatibility, and ignored."),
    )  # fmt: skip
    for option in reversed(options):
        function = option(function)
    return function


def reconnecting(broker: BrokerOptions, values: dict[str, Any]) -> dict[str, Any]:
    """The connection options of a command, with these."""
    chosen = {name: values[name] for name in ("reconnect_interval", "reconnect_limit") if values[name] is not None}
    return {**({"reconnect": True} if values["reconnect"] else {}), **chosen, **broker.connection}
