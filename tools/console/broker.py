"""How commands reach a broker: the options for its address, time limits, SASL and TLS; and running on its console.

    option                       connection option of the client
    ---------------------------  ------------------------------------------
    -b, --broker                 the URL
    --sasl-mechanism             sasl_mechanisms
    --sasl-service-name          sasl_service
    --ssl-certificate            ssl_certfile
    --ssl-key                    ssl_keyfile
    --ssl-trust, --ssl-trustfile ssl_trustfile
    --ssl-skip-hostname-check    ssl_skip_hostname_check
    --connection-options         any of them, as {name: value}
    -t, --timeout                connect_timeout, and the limit of each answer

Those that are not given are left to the client. `BrokerOptions.take` takes all of them from a command's values.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from qstore.broker.client import MessagingError
from qstore.broker.client.address import parse_map
from qstore.broker.management.console import Console, Data
from qstore.formats.named_tuple import NamedTuple
from qstore.tools.console.amounts import plain
from qstore.tools.console.command import EXIT_FAILED, os_error_text, run, say

_Function = TypeVar("_Function", bound=Callable[..., Any])
_DEFAULT_TIMEOUT: Final = 10.0
_HEARTBEAT: Final = 10
"""Seconds between heartbeats, so that a broker that is gone is noticed while a command waits."""

_SECURITY: Final[tuple[tuple[str, str, str, str], ...]] = (
    ("--sasl-mechanism", "MECH", "sasl_mechanisms",
     "SASL mechanisms that may be used, such as PLAIN or ANONYMOUS.  [default: the most secure one]"),
    ("--sasl-service-name", "NAME", "sasl_service", "Name of the service for SASL."),
    ("--ssl-certificate", "FILE", "ssl_certfile", "TLS: the client's certificate, in PEM format."),
    ("--ssl-key", "FILE", "ssl_keyfile", "TLS: the certificate's private key, in PEM format."),
    ("--ssl-trust --ssl-trustfile", "FILE", "ssl_trustfile", "TLS: certificates of trusted authorities, in PEM."),
)  # fmt: skip
_SKIP_HOSTNAME: Final = "ssl_skip_hostname_check"


_SCHEMES: Final = ("amqp://", "amqps://")
_match_scheme: Final = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE).match
_match_address: Final = re.compile(
    r"(?:(amqps?):)?((?:[^@\s./][^@\s]*@)?)((?:[\w.-]+|\[[0-9a-fA-F:.%]+\]):\d{1,5})"  # scheme, user, place
).fullmatch


class BrokerUrl(NamedTuple):
    """The URL of a broker where a command also takes a path.

    Attributes:
        text: as given, for the client.
    """

    text: str

    @property
    def shown(self) -> str:
        """The URL without user and password."""
        scheme, _, rest = self.text.partition("://")
        return f"{scheme}://{rest.rpartition('@')[2]}"


def broker_url(text: str) -> BrokerUrl | None:
    """What a command takes that works on a store or on a broker: the broker's URL, or None if it is a path.

    Raises:
        click.UsageError: it is the address of a broker without `amqp://`, or another URL.
    """
    if text.startswith(_SCHEMES):
        return BrokerUrl(text)
    if Path(text).exists():
        return None
    if _match_scheme(text):
        raise click.UsageError(f"{text}: not the URL of a broker: give amqp://HOST:PORT, or amqps://HOST:PORT for TLS.")
    found = _match_address(text)
    if found is not None:
        scheme, user, place = found[1] or "amqp", "USER/PASSWORD@" if found[2] else "", found[3]
        advice = f"for the broker at this address give {scheme}://{user}{place}, for a directory begin with ./"
        raise click.UsageError(f"{place}: no such directory; {advice}.")
    return None


class OptionMap(click.ParamType[dict[str, Any]]):
    """Type of an option: a map in the syntax of addresses, {name: value, ...}."""

    name = "{NAME:VALUE,...}"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        """Parse the map."""
        if isinstance(value, dict):
            return value
        try:
            return parse_map(str(value))
        except MessagingError as error:
            self.fail(str(error), param, ctx)


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """How to reach a broker.

    Attributes:
        url: its URL.
        connection: connection options.
        timeout: seconds that connecting and each answer may take.
    """

    url: str
    connection: dict[str, Any]
    timeout: float

    @classmethod
    def take(cls, values: dict[str, Any]) -> BrokerOptions:
        """Take the options of `broker_options` out of a command's values."""
        take_ha_admin(values)
        timeout = values.pop("broker_timeout")
        found = {"connect_timeout": timeout, "heartbeat": _HEARTBEAT, **take_security(values)}
        return cls(values.pop("url"), found | values.pop("connection_options"), timeout)

    def at(self, url: str) -> BrokerOptions:
        """The same for another broker."""
        return BrokerOptions(url, self.connection, self.timeout)


HA_ADMIN: Final = click.option(
    "--ha-admin", is_flag=True, help="Connect to a backup broker of a cluster; ignored with a line: there is none."
)


def take_ha_admin(values: dict[str, Any]) -> None:
    """Take the option `HA_ADMIN` out of a command's values."""
    if values.pop("ha_admin"):
        say(str(click.get_current_context().info_name), "--ha-admin is ignored: no broker is the backup of another one")


def take_security(values: dict[str, Any]) -> dict[str, Any]:
    """Take the options of `security_options` out of a command's values, as connection options."""
    found = {name: values.pop(name) for _, _, name, _ in _SECURITY}
    if values.pop(_SKIP_HOSTNAME):
        found[_SKIP_HOSTNAME] = True
    return {name: value for name, value in found.items() if value is not None}


CONNECTION_OPTIONS: Final = click.option(
    "--connection-options", type=OptionMap(), default=dict,
    help="Connection options, such as {virtual_host: x, heartbeat: 5}.",
)  # fmt: skip


def timeout_option(*names: str, default: float = _DEFAULT_TIMEOUT) -> Callable[[_Function], _Function]:
    """The time limit of commands that reach a broker."""
    return click.option(
        *names, type=click.FloatRange(0, min_open=True), metavar="SECONDS", default=default, show_default=True,
        help="Time limit for connecting to a broker, and for each of its answers.",
    )  # fmt: skip


def security_options(function: _Function) -> _Function:
    """Add the options of SASL and TLS to a command."""
    function = click.option(
        "--ssl-skip-hostname-check", _SKIP_HOSTNAME, is_flag=True, help="TLS: accept a certificate of another host."
    )(function)
    for flags, metavar, name, text in reversed(_SECURITY):
        function = click.option(*flags.split(), name, metavar=metavar, help=text)(function)
    return function


def broker_options(function: _Function) -> _Function:
    """Add all options to a command."""
    return broker_options_named("-t", "--timeout")(function)


def broker_options_named(*timeout_flags: str) -> Callable[[_Function], _Function]:
    """Likewise, for a command for which the time limit has these names."""
    options: tuple[Callable[[_Function], _Function], ...] = (
        click.option("-b", "--broker", "-a", "--broker-addr", "--broker-address", "url", default="localhost",
                     show_default=True, metavar="URL",
                     help="URL of the broker: [user/password@]host[:port], or several separated by commas."),
        timeout_option(*timeout_flags, "broker_timeout"),
        security_options,
        HA_ADMIN,
        CONNECTION_OPTIONS,
    )  # fmt: skip

    def add(function: _Function) -> _Function:
        for option in reversed(options):
            function = option(function)
        return function

    return add


# ---- running a management command ----
#
# Exit codes: 0 fine, 1 failed (no connection, the broker has refused), 2 invalid command line.

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
        say(program, os_error_text(error))
        return EXIT_FAILED
    return 0


def main_of(program: str, command: click.Command) -> Callable[[], None]:
    """The console script of a command."""

    def main() -> None:
        """The console script."""
        run(program, command)

    return main


def json_object(data: Data) -> dict[str, Any]:
    """An object as JSON: its class, its identity, and its values with their names in the schema."""
    found: dict[str, Any] = {"kind": data.class_name}
    if data.object_id is not None:
        found["object"] = data.object_id.name
    found |= plain(data.values)
    return found
