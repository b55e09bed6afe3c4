"""`qpid-topic-listener`: receive what `qpid-topic-publisher` sends, and report how long it took; of the Qpid project.

Exit codes: 0 the publisher has ended the test, 1 failed, 2 invalid command line, 130 Ctrl-C.
"""

from __future__ import annotations

import sys
import time
from typing import Any, Final

import click

from qstore import __version__
from qstore.broker.client import Message, Session
from qstore.tools.console.command import run
from qstore.tools.load.programs import PROGRAM_SETTINGS, BrokerAddress, number, program_options, yes_no
from qstore.tools.qpid_topic_publisher import REPORT, RESPONSES, TERMINATION, TOPIC, TYPE, commit, created

PROGRAM: Final = "qpid-topic-listener"
_PREFETCH: Final = 1000
_TOLD: Final = 1000
_READY: Final = "topic_listener: ready"

_EPILOG: Final = """
\b
Examples:
qpid-topic-listener & qpid-topic-publisher
qpid-topic-listener --transactional yes --ack 100

\b
Exit codes: 0 the publisher has ended the test, 1 failed, 2 invalid command line.
"""


@click.command(PROGRAM, epilog=_EPILOG, context_settings=PROGRAM_SETTINGS)
@program_options
@number("--ack", text="Acknowledge N messages at once; 0: none needs it.")
@yes_no("--transactional", text="Acknowledge and report in transactions.")
@yes_no("--durable", text="A durable queue for the messages.")
@number("--prefetch", text="Messages that are fetched before they are processed, at most; 0: 1,000.")
@click.option("--statusqueue", metavar="NAME", help="Queue on which listeners say that they are ready.")
@click.version_option(__version__, prog_name=PROGRAM)
@click.pass_context
def command(context: click.Context, /, **values: Any) -> None:
    """Receive messages of a topic, and report how many came, and how long it took."""
    address = BrokerAddress.take(values)
    address.run(context, PROGRAM, lambda session: _listen(session, values), commits=values["transactional"])


def _listen(session: Session, values: dict[str, Any]) -> None:
    every = values["ack"] or (1 if values["transactional"] else 0)
    reliability = "at-least-once" if every else "unreliable"
    link = f"reliability: {reliability}, x-declare: {{durable: {values['durable']}, auto-delete: true}}"
    capacity = max(values["prefetch"] or _PREFETCH, every)
    receiver = session.receiver(f"{TOPIC[:-1]}, link: {{{link}}}}}", capacity=capacity)
    responses = session.sender(created(RESPONSES))
    if values["statusqueue"] is not None:
        session.sender(created(values["statusqueue"])).send(_READY)
        commit(session, values)
    click.echo("topic_listener: listening...")
    sys.stdout.flush()
    count, unsettled, began = 0, 0, 0.0
    while True:
        message = receiver.fetch()
        kind = message.properties.get(TYPE)
        began = began if count or kind is not None else time.monotonic()
        unsettled += 1
        if every and (unsettled == every or kind is not None):
            session.acknowledge(sync=False)
            unsettled = 0
            commit(session, values)
        if kind == TERMINATION:
            return
        if kind == REPORT:
            milliseconds = int((time.monotonic() - began) * 1000) if count else 0
            click.echo("Batch ended: sending report.")
            responses.send(Message(f"Received {count} messages in {milliseconds} ms."))
            commit(session, values)
            count = 0
        else:
            count += 1
            if count % _TOLD == 0:
                click.echo(f"Received {count} messages.")
        sys.stdout.flush()


def main() -> None:
    """The console script."""
    run(PROGRAM, command)


if __name__ == "__main__":
    main()
