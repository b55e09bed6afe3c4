"""`drain`: receive messages from addresses, compatible with the example program of the Qpid project.

Exit codes: 0 the end was reached (the number of messages, or the timeout), 1 failed, 2 invalid command line, 130
Ctrl-C: printed messages are acknowledged.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import Any, Final

import click

from qstore import __version__
from qstore.broker.client import Connection, Empty, Message, Receiver, Session
from qstore.tools.console.broker import EXIT_CODES, BrokerOptions, broker_options_named, main_of
from qstore.tools.console.command import EXIT_INTERRUPTED, JSON, SETTINGS
from qstore.tools.console.rows import print_json
from qstore.tools.messaging import (
    Interruption,
    PrintFormatError,
    formatted,
    message_json,
    reconnect_options,
    reconnecting,
    run_messaging,
)

PROGRAM: Final = "drain"
_CAPACITY: Final = 100

_EPILOG = f"""
\b
Examples:
drain orders                                   all messages now on the queue
drain -t 10 -c 5 orders                        five messages, with a timeout of 10 seconds
drain -f 'amq.topic/usa.#' 'orders; {{mode: browse}}'
drain -p '%(M.subject)s: %(M.content)s' orders
drain -p '%(M.properties[color])s' orders
drain --json orders | jq .content

\b
{EXIT_CODES}
"""


@click.command(PROGRAM, epilog=_EPILOG, context_settings=SETTINGS)
@click.argument("addresses", nargs=-1, required=True, metavar="ADDRESS...")
@broker_options_named("--broker-timeout")
@reconnect_options
@click.option("-c", "--count", "most", type=click.IntRange(0), default=0, metavar="N",
              help="Stop after N messages; 0 for no limit.")  # fmt: skip
@click.option("-f", "--forever", is_flag=True, help="Wait for messages without a timeout.")
@click.option("-t", "--timeout", type=click.FloatRange(0), default=0.0, show_default=True, metavar="SECONDS",
              help="Stop after this time without a message.")  # fmt: skip
@click.option("-p", "--print", "pattern", default="%(M)s", show_default=True, metavar="FORMAT",
              help="Format of a message: M, M.content, M.subject, M.properties[NAME] and so on.")  # fmt: skip
@JSON
@click.version_option(__version__, prog_name=PROGRAM)
@click.pass_context
def command(context: click.Context, /, **values: Any) -> None:
    """Receive messages from addresses, and print them."""
    broker = BrokerOptions.take(values)
    try:
        formatted(Message(""), values["pattern"])
    except PrintFormatError as error:
        raise click.UsageError(str(error)) from None
    context.exit(run_messaging(PROGRAM, lambda: _receive(broker, values), str))


def _receive(broker: BrokerOptions, values: dict[str, Any]) -> int:
    interruption = Interruption()
    with Connection(broker.url, **reconnecting(broker, values)) as connection, interruption.handling():
        session = connection.session()
        receivers = [session.receiver(address, capacity=_CAPACITY) for address in values["addresses"]]
        timeout = None if values["forever"] else values["timeout"]
        number = 0
        while not interruption.is_requested:
            message = _next(session, receivers, interruption, timeout)
            if message is None:
                break
            if values["as_json"]:
                print_json([message_json(message)])
            else:
                click.echo(formatted(message, values["pattern"]))
            session.acknowledge(message, sync=False)
            number += 1
            if number == values["most"]:
                break
        sys.stdout.flush()
        session.sync()
    return EXIT_INTERRUPTED if interruption.is_requested else 0


def _next(
    session: Session, receivers: Sequence[Receiver], interruption: Interruption, timeout: float | None
) -> Message | None:
    """The next message of any receiver; None after the timeout or Ctrl-C."""
    try:
        # Waiting takes no message, so interrupting it loses none.
        with interruption.waiting():
            return session.next_receiver(timeout).fetch(0)
    except KeyboardInterrupt:
        return None
    except Empty:
        for receiver in receivers:  # fetching makes sure that the broker has none, whatever the timeout
            with contextlib.suppress(Empty):
                return receiver.fetch(0)
    return None


main = main_of(PROGRAM, command)

if __name__ == "__main__":
    main()
