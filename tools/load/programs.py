"""What the Qpid project's test programs share: options for the broker, and numbers as they print them.

They are `qpid-perftest`, `qpid-latency-test`, `qpid-txtest`, `lvqtest`, `qpid-topic-listener` and
`qpid-topic-publisher`, which speak AMQP 0-10.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from qstore.broker.client import Connection, MessagingError, Session
from qstore.broker.client.options import AMQP_0_10
from qstore.formats.named_tuple import NamedTuple
from qstore.tools.console.broker import CONNECTION_OPTIONS, security_options, take_security, timeout_option
from qstore.tools.console.command import EXIT_FAILED, say
from qstore.tools.load.protocols import Broker
from qstore.tools.messaging import yes_no

__all__ = ["PROGRAM_SETTINGS", "BrokerAddress", "number", "printed", "program_options", "yes_no"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

PROGRAM_SETTINGS: Final = {"help_option_names": ["--help"]}
"""`-h` is the host."""


def number(*names: str, text: str, default: int = 0, least: int = 0) -> Callable[[_Function], _Function]:
    """An option with a number."""
    return click.option(*names, type=click.IntRange(least), default=default, show_default=True, metavar="N", help=text)


class BrokerAddress(NamedTuple):
    """The broker that a program talks to.

    Attributes:
        url: its URL.
        options: connection options.
    """

    url: str
    options: dict[str, Any]

    @classmethod
    def take(cls, values: dict[str, Any]) -> BrokerAddress:
        """Take the options of `program_options` out of a command's values. Raises click.UsageError."""
        url, port = values.pop("url"), values.pop("port")
        options = {"connect_timeout": values.pop("timeout"), **take_security(values)}
        for name in ("virtual_host", "username", "password"):
            if (value := values.pop(name)) is not None:
                options[name] = value
        if (mechanism := values.pop("mechanism")) is not None:
            options["sasl_mechanisms"] = mechanism
        options["tcp_nodelay"] = values.pop("tcp_nodelay")
        client = values.pop("client")
        if client is not None:
            options["client_properties"] = {"clientName": client}
        options |= values.pop("connection_options")
        found = cls(url if port is None else f"{url}:{port}", options)
        try:
            found.load_broker()
        except MessagingError as error:
            raise click.UsageError(str(error)) from None
        return found

    def load_broker(self) -> Broker:
        """For the load generator. Raises UrlError."""
        return Broker(self.url, AMQP_0_10, self.options)

    def connect(self) -> Connection:
        """Open a connection. Raises ConnectError."""
        return Connection.establish(self.url, **self.options)

    def run(self, context: click.Context, program: str, work: Callable[[Session], None], *, commits: bool) -> None:
        """Do what a program does in one session; `commits`: in transactions. A failure ends it in one line."""
        try:
            with self.connect() as connection:
                session = connection.session(transactional=commits)
                work(session)
                session.close()
        except MessagingError as error:
            say(program, str(error))
            context.exit(EXIT_FAILED)


def program_options(function: _Function) -> _Function:
    """Add the options for the broker."""
    for option in reversed((
        click.option("-b", "--broker", "-h", "--host", "url", default="localhost", show_default=True, metavar="URL",
                     help="URL of the broker: [user/password@]host[:port], or several separated by commas."),
        click.option("-p", "--port", type=click.IntRange(1, 0xFFFF), metavar="PORT", help="Port of the broker."),
        click.option("-v", "--virtualhost", "virtual_host", metavar="NAME", help="Virtual host."),
        click.option("-n", "--clientname", "client", metavar="NAME", help="Name of the client, for the broker."),
        click.option("--username", metavar="NAME", help="User to log in as."),
        click.option("--password", metavar="TEXT", help="Password of the user."),
        click.option("--mechanism", metavar="MECH", help="The same as --sasl-mechanism."),
        yes_no("--tcp-nodelay", default=True, text="Send small segments without delay."),
        timeout_option("--timeout"),
        security_options,
        CONNECTION_OPTIONS,
    )):  # fmt: skip
        function = option(function)
    return function


def printed(value: float) -> str:
    """A number with six significant digits, as these programs print them."""
    return f"{value:g}"
