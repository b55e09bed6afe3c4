"""`qstore-console`: RabbitMQ's management API and Prometheus metrics for a broker, in a process of its own.

Exit codes: 0 after SIGTERM or SIGINT, 1 it has failed, 2 invalid command line or unusable files.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sqlite3
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from qstore import __version__
from qstore.broker.client import MessagingError
from qstore.broker.client.options import Destination
from qstore.tools.console.broker import BrokerOptions, broker_options, main_of
from qstore.tools.console.command import EXIT_FAILED, SETTINGS, fail, say

if TYPE_CHECKING:
    from qstore.tools.web.server import Server, ServerSettings

PROGRAM: Final = "qstore-console"
DEFAULT_PORT: Final = 15672
_MAX_SECRET: Final = 4096
_PARENT_SECONDS: Final = 1.0

_EPILOG = """
\b
Examples:
qstore-console                                    http://127.0.0.1:15672 for the broker on this host
qstore-console -b broker1:5672 --credentials-file /etc/qstore/console.secret
qstore-console --store /var/lib/qpidd             a stopped or crashed store; the address to open is printed
qstore-console --listen 0.0.0.0:15671 --tls-cert server.pem --tls-key server.key
curl -u guest:guest http://127.0.0.1:15672/api/overview

\b
The credentials file has one line, USER:PASSWORD, and only its owner may read it (mode 0600). It is the user who
reads the broker's objects; users of the API log in with their own names and passwords, and act as themselves.

\b
Exit codes: 0 ended by a signal, 1 failed, 2 invalid command line or unusable files.
"""


def parse_listen(text: str) -> tuple[str, int]:
    """Address and port of `[ADDRESS:]PORT` or `ADDRESS`. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon:
        host, port = ("", text) if text.isdecimal() else (text, str(DEFAULT_PORT))
    if text.startswith("[") and text.endswith("]"):
        host, port = text, str(DEFAULT_PORT)
    if not (port.isascii() and port.isdecimal()) or int(port) > 0xFFFF:
        raise ValueError(f"{text!r} is not ADDRESS:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


class Listen(click.ParamType[tuple[str, int]]):
    """Type of the option: where to listen."""

    name = "ADDRESS:PORT"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        """Parse it."""
        if isinstance(value, tuple):
            return value
        try:
            return parse_listen(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def read_credentials(path: Path) -> tuple[str, str]:
    """User and password from a file.

    Raises:
        ValueError: it has something else, or others may read it.
        OSError: it cannot be read.
    """
    with path.open(encoding="utf-8") as file:
        is_given = str(path.parent) == os.environ.get("CREDENTIALS_DIRECTORY")  # by systemd, with an access list
        if not is_given and os.fstat(file.fileno()).st_mode & 0o077:
            raise ValueError(f"{path}: other users may read it: chmod 600 {path}")
        user, colon, password = file.read(_MAX_SECRET).strip("\r\n").partition(":")
    if not colon or not user or "\n" in password:
        raise ValueError(f"{path}: must have one line USER:PASSWORD")
    return user, password


def default_history() -> Path:
    """Where the history is kept unless an option says it."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "qstore"


@click.command(PROGRAM, epilog=_EPILOG, context_settings=SETTINGS)
@click.option(
    "--listen",
    type=Listen(),
    default=f"127.0.0.1:{DEFAULT_PORT}",
    show_default=True,
    help="What to listen on; port 0 chooses a free one, which is printed.",
)
@click.option("--tls-cert", metavar="FILE", help="TLS: the server's certificate and its chain, in PEM format.")
@click.option("--tls-key", metavar="FILE", help="TLS: its private key, if it is in a file of its own.")
@click.option(
    "--credentials-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    envvar="QSTORE_CONSOLE_CREDENTIALS",
    help="File with the USER:PASSWORD of the console at the broker. [default: anonymous, or as in the URL]",
)
@click.option(
    "--history-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where the history of rates is kept. [default: ~/.local/state/qstore]",
)
@click.option("--no-history", is_flag=True, help="Keep the history in memory only.")
@click.option(
    "--sample-interval",
    type=click.FloatRange(1, 3600),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two samples of the broker's objects.",
)
@click.option(
    "--cors-origin",
    multiple=True,
    metavar="ORIGIN",
    help="Server whose pages may use the API, as https://host:port. Repeatable.",
)
@click.option(
    "--open-metrics/--closed-metrics",
    default=None,
    help="Serve /metrics without login. [default: it needs none on a loopback address]",
)
@click.option("--insecure-listen", is_flag=True, help="Allow an address other than loopback without TLS.")
@click.option(
    "--store",
    type=click.Path(path_type=Path, exists=True),
    metavar="PATH",
    help="Show this store on disk instead of a broker: stopped, crashed or backed up. It is only read.",
)
@click.option("--parent", type=int, hidden=True, help="End when this process has ended.")
@broker_options
@click.version_option(__version__, prog_name=PROGRAM)
@click.pass_context
def command(context: click.Context, /, **values: Any) -> None:
    """Serve the HTTP API of a broker: RabbitMQ's management API, and metrics for Prometheus.

    Users log in with their names and passwords at the broker, whose access rules decide what they may do.
    """
    try:
        from qstore.tools.web.server import ServerSettings
    except ImportError as error:
        fail(PROGRAM, f"{error.name} is not installed: pip install 'qstore[console]'")
    parent = values.pop("parent")
    address, port = values.pop("listen")
    certificate, key = values.pop("tls_cert"), values.pop("tls_key")
    credentials, interval = values.pop("credentials_file"), values.pop("sample_interval")
    history, in_memory = values.pop("history_dir"), values.pop("no_history")
    insecure = values.pop("insecure_listen")
    settings = ServerSettings(
        address=address, port=port, certificate=certificate, key=key,
        cors_origins=values.pop("cors_origin"), open_metrics=values.pop("open_metrics"),
    )  # fmt: skip
    store = values.pop("store")
    options = BrokerOptions.take(values)
    if certificate is None and not insecure and not _is_private(address):
        text = f"{address} is reachable from other machines, and passwords would be sent in clear text"
        raise click.UsageError(f"{text}: give --tls-cert, or --insecure-listen behind a proxy with TLS.")
    named: tuple[str, str] | None = None
    if credentials is not None:
        try:
            named = read_credentials(credentials)
        except (ValueError, UnicodeDecodeError) as error:
            fail(PROGRAM, str(error))
        except OSError as error:
            fail(PROGRAM, f"{credentials}: {error.strerror}")
    place = None if in_memory else (history or default_history())
    logging.basicConfig(stream=sys.stderr, format=f"{PROGRAM}: %(message)s", level=logging.WARNING)

    def make() -> Server:
        return make_server(options, named, settings, place, interval)

    def make_stored() -> Server:
        return make_stored_server(store, settings)

    context.exit(asyncio.run(_serve(make if store is None else make_stored, parent)))


def _is_private(address: str) -> bool:
    from qstore.tools.web.server import is_loopback

    return is_loopback(address)


async def _serve(
    make: Callable[[], Server],
    parent: int | None,
) -> int:
    """Serve until a signal arrives. Returns the exit code."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))  # a broker that starts it blocks them
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        server = make()
        await server.start()
    except (MessagingError, OSError, ssl.SSLError, sqlite3.Error) as error:
        say(PROGRAM, str(error))
        return EXIT_FAILED
    try:
        click.echo(server.port)
        sys.stdout.flush()
        if server.entrance:
            say(PROGRAM, f"open {server.entrance}")
        while parent is None or os.getppid() == parent:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if parent is None else _PARENT_SECONDS):
                    await stop.wait()
                    break
    finally:
        await server.close()
    return 0


def make_server(
    options: BrokerOptions,
    named: tuple[str, str] | None,
    settings: ServerSettings,
    history: Path | None,
    interval: float,
) -> Server:
    """The server for a broker.

    Raises:
        MessagingError: the URL or an option is not valid.
        OSError, sqlite3.Error: the history cannot be kept there.
    """
    from qstore.tools.web.amqp import Place
    from qstore.tools.web.browser import PAGE_ROUTES, BrowserLogins
    from qstore.tools.web.collector import Collector, History
    from qstore.tools.web.logins import Logins
    from qstore.tools.web.resources import Api
    from qstore.tools.web.server import Server, is_loopback

    destination = Destination(options.url, options.connection)
    endpoint = destination.endpoints[0]
    # What visitors use, too, has no user: one whom the broker admits without a login has not the rights of this one.
    shared = {name: value for name, value in destination.values.items() if name not in ("username", "password")}
    own = dict(shared)
    user = named or (None if destination.username is None else (destination.username, destination.password or ""))
    if user is not None:
        own |= {"username": user[0], "password": user[1]}
    bare = ",".join(f"{'ssl' if each.is_encrypted else 'tcp'}:{each}" for each in destination.endpoints)
    file = None if history is None else history / f"console-{endpoint.host}-{endpoint.port}.db".replace("/", "_")
    collector = Collector(bare, own, History(file), interval=interval)
    logins = Logins(Place(endpoint, destination.options), bare, shared, admits_anonymous=is_loopback(settings.address))
    api = Api(collector, logins, str(endpoint), [], BrowserLogins(), PAGE_ROUTES)
    return Server(api, logins, settings)


def make_stored_server(path: Path, settings: ServerSettings) -> Server:
    """The server for a store on disk."""
    from qstore.tools.web.server import Server
    from qstore.tools.web.stored import StoredApi, TokenLogins

    logins = TokenLogins()
    return Server(StoredApi(path.absolute(), logins), logins, settings, logins.token)


main: Callable[[], None] = main_of(PROGRAM, command)

if __name__ == "__main__":
    main()
