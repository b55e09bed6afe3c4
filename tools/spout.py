"""`spout`: send messages to an address, compatible with the example program of the Qpid project.

Exit codes: 0 all messages were sent and completed by the broker, 1 failed, 2 invalid command line.
"""

from __future__ import annotations

import time
import uuid
from itertools import count
from typing import Any, Final

import click

from qstore import __version__
from qstore.broker.client import Connection, Message
from qstore.tools.console.broker import EXIT_CODES, BrokerOptions, broker_options_named, main_of
from qstore.tools.console.command import JSON, SETTINGS
from qstore.tools.console.rows import print_json
from qstore.tools.messaging import (
    NameValue,
    StallWatch,
    described,
    message_json,
    reconnect_options,
    reconnecting,
    run_messaging,
)

PROGRAM: Final = "spout"

_EPILOG = f"""
\b
Examples:
spout orders hello world
spout 'orders; {{create: always}}' -c 10 -d
spout amq.topic -S usa.news -P color=red -M key=value
spout orders -c 0 -t 60                     for a minute
spout -b user/password@host:5672 -r orders hello

\b
{EXIT_CODES}
"""


@click.command(PROGRAM, epilog=_EPILOG, context_settings=SETTINGS)
@click.argument("address")
@click.argument("words", nargs=-1, metavar="[CONTENT]...")
@broker_options_named("--broker-timeout")
@reconnect_options
@click.option("-c", "--count", "most", type=click.IntRange(0), default=1, show_default=True, metavar="N",
              help="Stop after N messages; 0 for no limit.")  # fmt: skip
@click.option("-d", "--durable", is_flag=True, help="Send durable messages.")
@click.option("-t", "--timeout", type=click.FloatRange(0), metavar="SECONDS", help="Stop after this time.")
@click.option("-I", "--id", "identity", metavar="ID", help="First part of the property spout-id.  [default: a UUID]")
@click.option("-S", "--subject", metavar="TEXT", help="Subject of the messages.")
@click.option("-R", "--reply-to", metavar="ADDRESS", help="Address for replies.")
@click.option("-P", "--property", "properties", type=NameValue(), multiple=True, help="Property of all messages.")
@click.option("-M", "--map", "--entry", "entries", type=NameValue(), multiple=True,
              help="Entry of a map, which is sent as content.")  # fmt: skip
@click.option("--content", metavar="TEXT", help="Content of the messages, instead of words after the address.")
@JSON
@click.version_option(__version__, prog_name=PROGRAM)
@click.pass_context
def command(context: click.Context, /, **values: Any) -> None:
    """Send messages to an address, and print them."""
    broker = BrokerOptions.take(values)
    context.exit(run_messaging(PROGRAM, lambda: _send(broker, values), str))


def _send(broker: BrokerOptions, values: dict[str, Any]) -> int:
    words = values["words"] or ([values["content"]] if values["content"] is not None else [])
    content = dict(values["entries"]) or " ".join(words) or None
    identity = values["identity"] or str(uuid.uuid4())
    connection = Connection(broker.url, **reconnecting(broker, values))
    with connection, StallWatch(PROGRAM, connection) as stalls:
        sender = stalls.add(connection.session().sender(values["address"]))
        began = time.monotonic()
        for number in count():
            if values["most"] and number == values["most"]:
                break
            if values["timeout"] is not None and time.monotonic() - began >= values["timeout"]:
                break
            message = Message(
                content,
                subject=values["subject"],
                reply_to=values["reply_to"],
                durable=values["durable"],
                properties={"spout-id": f"{identity}:{number}", **dict(values["properties"])},
            )
            sender.send(message, sync=False)
            if values["as_json"]:
                print_json([message_json(message)])
            else:
                click.echo(described(message))
        sender.sync(broker.timeout)
    return 0


main = main_of(PROGRAM, command)

if __name__ == "__main__":
    main()
