"""`lvqtest`: show how old last value queues work, as the Qpid project's program does.

Exit codes: 0 fine, 1 failed, 2 invalid command line.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import click

from qstore import __version__
from qstore.broker.client import Empty, Message, Session
from qstore.broker.client.address import queue_address
from qstore.formats.values import typed_map
from qstore.tools.console.command import run
from qstore.tools.load.programs import PROGRAM_SETTINGS, BrokerAddress, program_options

PROGRAM: Final = "lvqtest"
_KEY: Final = "qpid.LVQ_key"

_EPILOG: Final = """
\b
Examples:
lvqtest --mode create_lvq
lvqtest --mode write && lvqtest --mode browse
lvqtest --mode consume

\b
Exit codes: 0 fine, 1 failed, 2 invalid command line.
"""


def _create(argument: str) -> Callable[[Session, str], None]:
    def create(session: Session, queue: str) -> None:
        session.invoke("queue.declare", queue=queue, arguments=typed_map({argument: 1}))

    return create


def _write(session: Session, queue: str) -> None:
    """Write messages with three keys, of which one comes twice, and a last one."""
    sender = session.sender(queue_address(queue))
    for key in ("key1", "key2", "key3", "key1", "last"):
        text = key if key == "last" else f"{key}.{os.getpid():#x}"
        click.echo(f"Sending Data: {key}={text}")
        sender.send(Message(text, properties={_KEY: key}))


def _read(*, browses: bool) -> Callable[[Session, str], None]:
    def read(session: Session, queue: str) -> None:
        receiver = session.receiver(queue_address(queue, {"mode": "browse"} if browses else None))
        try:
            while True:
                click.echo(f"Receiving Data:{receiver.fetch(timeout=0).content}")
        except Empty:
            session.acknowledge()

    return read


_MODES: Final = {
    "create_lvq": _create("qpid.last_value_queue"),
    "create_lvq_no_browse": _create("qpid.last_value_queue_no_browse"),
    "write": _write,
    "browse": _read(browses=True),
    "consume": _read(browses=False),
}


@click.command(PROGRAM, epilog=_EPILOG, context_settings=PROGRAM_SETTINGS)
@program_options
@click.option("--mode", type=click.Choice(tuple(_MODES)), default="browse", show_default=True, help="What to do.")
@click.option("--queue", default="LVQtester", show_default=True, metavar="NAME", help="The queue.")
@click.version_option(__version__, prog_name=PROGRAM)
@click.pass_context
def command(context: click.Context, /, **values: Any) -> None:
    """Create a last value queue, write to it, browse and consume it."""
    address = BrokerAddress.take(values)
    address.run(context, PROGRAM, lambda session: _MODES[values["mode"]](session, values["queue"]), commits=False)


def main() -> None:
    """The console script."""
    run(PROGRAM, command)


if __name__ == "__main__":
    main()
