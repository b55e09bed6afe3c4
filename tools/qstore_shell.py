"""`qstore-shell`: examine and change the messages of a stopped store, or of a running broker.

Exit codes: 0 fine, 1 a command has failed, 2 the store, the broker or the command line is unusable.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from qstore import __version__
from qstore.broker.client.errors import ConnectionFailedError
from qstore.store.errors import advice
from qstore.tools.console.broker import (
    CONNECTION_OPTIONS,
    BrokerOptions,
    broker_url,
    security_options,
    take_security,
    timeout_option,
)
from qstore.tools.console.command import (
    EXIT_FAILED,
    JSON,
    SETTINGS,
    YES,
    PathName,
    failing,
    log_printer,
    private_files,
    run,
)
from qstore.tools.console.shell import run_lines, run_terminal
from qstore.tools.store_shell.broker import BrokerPlace
from qstore.tools.store_shell.commands import FAILURES, PROGRAM, Settings, Shell
from qstore.tools.store_shell.place import Place, ShellError
from qstore.tools.store_shell.store import StorePlace

_HEARTBEAT: Final = 10

_EPILOG: Final = """
\b
Examples:
qstore-shell /var/lib/qstore                                 type help
qstore-shell /var/lib/qstore -c 'list queues; show orders'
qstore-shell /var/lib/qpidd --json -c 'dump orders' | jq .body
qstore-shell /var/lib/qstore -c "move orders to late where age > 60"
qstore-shell /var/lib/qstore --yes -c 'purge test; delete orders 0x10..0x1f'
qstore-shell /var/lib/qstore -f cleanup.txt                  a script: a command on each line
qstore-shell amqp://guest/guest@localhost -c 'list all'      a running broker

\b
STORE is a store of qstore, or of qpidd (legacystore, linearstore), on which no broker is running; the shell locks it
while it is open. qpidd's can be read; to change one, convert it with qstore-recover. Every change is shown before it
is made, takes effect as a whole, and is on the disk when the prompt is back; moves and removals of very many messages
take effect in portions. What cannot be undone must be confirmed, unless --yes is given.

\b
Exit codes: 0 fine, 1 a command has failed (the ones after it are not carried out), 2 the store, the broker or the
command line is unusable.
"""


@click.command(PROGRAM, epilog=_EPILOG, context_settings=SETTINGS)
@click.argument("where", required=False, metavar="[STORE|URL]", type=PathName(readable=False))
@click.option("-c", "--command", "lines", multiple=True, metavar="COMMANDS", help="Run these commands, then exit.")
@click.option(
    "-f", "--file", "script", metavar="FILE", type=PathName(), help="Run the commands in this file, then exit."
)
@JSON
@YES
@click.option("--pager/--no-pager", "pages", default=True, help="Page long output on a terminal, with PAGER.")
@security_options
@CONNECTION_OPTIONS
@timeout_option("-t", "--timeout")
@click.version_option(__version__, prog_name=PROGRAM)
@click.pass_context
def command(context: click.Context, /, **values: Any) -> None:
    """Examine and change the messages of a store, or of a running broker: amqp://[user/password@]host[:port].

    Commands are typed, piped, or given with -c or -f. help lists them.
    """
    timeout, security = values["timeout"], take_security(values)
    connection = {"connect_timeout": timeout, "heartbeat": _HEARTBEAT, **security, **values["connection_options"]}

    def open_place(where: str) -> Place:
        try:
            broker = broker_url(where)
        except click.UsageError as error:
            raise ShellError(error.message) from None
        if broker is not None:
            return BrokerPlace(BrokerOptions(broker.text, connection, timeout), broker.shown)
        return StorePlace(where, log_printer(PROGRAM))

    _take_any_input()
    shell = Shell(open_place, Settings(values["as_json"], values["yes"], values["pages"]))
    is_fine = True
    try:
        with failing(PROGRAM, *FAILURES, advise=advice), private_files():
            if values["where"] is not None:
                shell.open(values["where"])
        with failing(PROGRAM, ConnectionFailedError), private_files():
            if not values["lines"] and values["script"] is None and sys.stdin.isatty():
                run_terminal(shell)
            else:
                is_fine = run_lines(shell, _lines(values["lines"], values["script"]), stops=True)
    finally:
        shell.close()
    context.exit(0 if is_fine else EXIT_FAILED)


def _take_any_input() -> None:
    """Names are bytes; and standard input that is closed has nothing."""
    if sys.stdin is None:
        sys.stdin = Path(os.devnull).open()  # noqa: SIM115 (until the process ends)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")


def _lines(given: tuple[str, ...], script: str | None) -> Iterator[str]:
    yield from given
    if script is not None:
        yield from Path(script).read_text(errors="surrogateescape").splitlines()
    elif not given:
        yield from sys.stdin


def main() -> None:
    """Console script entry point."""
    run(PROGRAM, command)


if __name__ == "__main__":
    main()
