"""`qpid-topic-publisher`: publish batches to `qpid-topic-listener`s, and measure them; of the Qpid project.

The publisher sends batches to a topic, and then asks for reports; each listener says on the response queue how many
messages it has received, and how long that took. At the end the publisher asks the listeners to end. A header says
what a message is. With `--statusqueue` the listeners say there that they are ready, and the publisher waits for them.

Exit codes: 0 all batches were reported, 1 failed, 2 invalid command line, 130 Ctrl-C.
"""

from __future__ import annotations

import sys
import time
from typing import Any, Final

import click

from qstore import __version__
from qstore.broker.client import Message, Session
from qstore.broker.client.address import queue_address
from qstore.tools.console.command import run
from qstore.tools.load.programs import PROGRAM_SETTINGS, BrokerAddress, number, program_options, yes_no

PROGRAM: Final = "qpid-topic-publisher"
TOPIC: Final = "amq.topic/topic_control; {node: {type: topic}}"
RESPONSES: Final = "response"
TYPE: Final = "TYPE"
REPORT: Final = "REPORT_REQUEST"
TERMINATION: Final = "TERMINATION_REQUEST"

_EPILOG: Final = """
\b
Examples:
qpid-topic-listener & qpid-topic-publisher --messages 10000 --size 256
qpid-topic-publisher --subscribers 4 --batches 10 --delay 1

\b
Exit codes: 0 all batches were reported, 1 failed, 2 invalid command line.
"""


@click.command(PROGRAM, epilog=_EPILOG, context_settings=PROGRAM_SETTINGS)
@program_options
@number("--messages", default=1000, text="Messages of a batch.")
@number("--subscribers", default=1, text="Listeners whose reports are waited for.")
@number("--ack", text="Acknowledge N reports at once; 0: all of a batch.")
@yes_no("--transactional", text="Publish each batch in a transaction.")
@yes_no("--durable", text="Durable messages.")
@number("--batches", default=1, least=1, text="Batches.")
@number("--delay", text="Seconds between two batches.")
@number("--size", default=256, text="Size of the messages, in bytes.")
@click.option("--statusqueue", metavar="NAME", help="Queue on which listeners say that they are ready.")
@click.option("--verbose", is_flag=True, help="Also print the reports.")
@click.version_option(__version__, prog_name=PROGRAM)
@click.pass_context
def command(context: click.Context, /, **values: Any) -> None:
    """Publish batches of messages to a topic, and print how long they take to all listeners."""
    address = BrokerAddress.take(values)
    address.run(context, PROGRAM, lambda session: _publish_all(session, values), commits=values["transactional"])


def _publish_all(session: Session, values: dict[str, Any]) -> None:
    if values["statusqueue"] is not None:
        ready = session.receiver(created(values["statusqueue"]))
        for _ in range(values["subscribers"]):
            ready.fetch()
            session.acknowledge()
        commit(session, values)
    publisher, batches, times = _Publisher(session, values), values["batches"], []
    for number_of in range(1, batches + 1):
        if number_of > 1 and values["delay"]:
            time.sleep(values["delay"])
        times.append(publisher.publish())
        click.echo(f"Completed {number_of} of {batches} in {times[-1]}ms")
        sys.stdout.flush()
    publisher.terminate()
    if batches > 1:
        average = sum(times) // batches
        click.echo(f"{batches} batches completed. avg={average}, max={max(times)}, min={min(times)}")


def created(queue: str) -> str:
    """The address of a queue that is created if need be."""
    return queue_address(queue, {"create": "always"})


def commit(session: Session, values: dict[str, Any]) -> None:
    """Commit, with `--transactional`."""
    if values["transactional"]:
        session.commit()


class _Publisher:
    """Publishes batches."""

    def __init__(self, session: Session, values: dict[str, Any]) -> None:
        self._session, self._values = session, values
        self._reports = session.receiver(created(RESPONSES), capacity=max(1, values["subscribers"]))
        self._topic = session.sender(TOPIC)

    def publish(self) -> int:
        """Publish a batch, and wait for the reports. Returns the milliseconds that it took."""
        values, began = self._values, time.monotonic()
        message = Message(b"X" * values["size"], durable=values["durable"])
        for _ in range(values["messages"]):
            self._topic.send(message, sync=False)
        self._ask(REPORT)
        for left in range(values["subscribers"] - 1, -1, -1):
            report = self._reports.fetch()
            if values["verbose"]:
                click.echo(f"Received report: {report.content} ({left} remaining.)")
            if not left or (values["ack"] and not left % values["ack"]):
                self._session.acknowledge()
        commit(self._session, values)
        return int((time.monotonic() - began) * 1000)

    def terminate(self) -> None:
        """Ask the listeners to end."""
        self._ask(TERMINATION)

    def _ask(self, what: str) -> None:
        self._topic.send(Message("", properties={TYPE: what}))
        commit(self._session, self._values)


def main() -> None:
    """The console script."""
    run(PROGRAM, command)


if __name__ == "__main__":
    main()
