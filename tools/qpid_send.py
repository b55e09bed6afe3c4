"""`qpid-send`: send messages to an address, compatible with the command of the Qpid project.

Exit codes: 0 all messages were sent and completed by the broker, 1 error, 2 invalid command line.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from itertools import islice
from typing import Any

import click

from qstore import __version__
from qstore.broker.client import Message, Sender, Session
from qstore.formats.wording import plural
from qstore.tools.console.broker import take_security
from qstore.tools.console.command import SETTINGS, run
from qstore.tools.messaging import (
    END_OF_STREAM,
    Contents,
    Headers,
    NameValue,
    Pace,
    Reporter,
    StallWatch,
    Throughput,
    connect,
    count,
    groups,
    run_messaging,
    shared_options,
    yes_no,
)

_EPILOG = """
\b
Examples:
qpid-send -a 'orders; {create: always}' --content-string hello
qpid-send -a orders -m 100000 --content-size 1024 --durable yes --report-total
qpid-send -a amq.topic/usa.news -P color=red --ttl 5000 --content-string news
qpid-send -a orders -m 1000 --tx 10 --rollback-frequency 5
qpid-send -b user/password@host:5672 -a orders --content-stdin < lines
qpid-send -a orders --connection-options '{reconnect: true, heartbeat: 10}' -m 0 --rate 100

If the broker confirms no message for 5 seconds, standard error says what the command waits for.

\b
Exit codes: 0 all messages were sent and completed by the broker, 1 error, 2 invalid command line.
"""


@dataclass(frozen=True, slots=True)
class SendOptions:
    """The command line; the names are those of the options."""

    url: str
    address: str
    connection_options: dict[str, Any]
    messages: int | None
    id: str | None
    reply_to: str | None
    send_eos: int
    durable: bool
    ttl: int
    priority: int
    properties: tuple[tuple[str, Any], ...]
    correlation_id: str | None
    user_id: str | None
    content_string: str | None
    content_size: int
    content_map: tuple[tuple[str, Any], ...]
    content_stdin: bool
    capacity: int
    tx: int
    rollback_frequency: int
    failover_updates: bool
    sequence: bool
    timestamp: bool
    group_key: str | None
    group_prefix: str
    group_size: int
    group_randomize_size: bool
    group_interleave: int
    rate: float
    report_total: bool
    report_every: int
    report_header: bool


@click.command("qpid-send", epilog=_EPILOG, context_settings=SETTINGS)
@shared_options
@click.option(
    "-m", "--messages", type=click.IntRange(0), metavar="N",
    help="Stop after N messages; 0 for no limit.  [default: 1, with --content-stdin: no limit]",
)  # fmt: skip
@click.option("-i", "--id", metavar="UUID", help="Message id of all messages.")
@click.option("--reply-to", metavar="ADDRESS", help="Address for replies.")
@count("--send-eos", default=0, text='Send N messages "eos" (end of stream) at the end, at which receivers stop.')
@yes_no("--durable", default=False, text="Send durable messages.")
@count("--ttl", default=0, text="Time to live of the messages, in milliseconds; 0 for no limit.")
@click.option("--priority", type=click.IntRange(0, 255), default=0, help="Priority; higher ones are delivered first.")
@click.option("-P", "--property", "properties", type=NameValue(), multiple=True, help="Property of all messages.")
@click.option("--correlation-id", metavar="ID", help="Correlation id of all messages.")
@click.option("--user-id", metavar="USER", help="User id of all messages.")
@click.option("--content-string", metavar="TEXT", help="Content of all messages.")
@count("--content-size", default=0, text="Send generated content of N bytes.")
@click.option("-M", "--content-map", type=NameValue(), multiple=True, help="Entry of a map to send as content.")
@click.option("--content-stdin", is_flag=True, help="Send each line of standard input as a message.")
@count("--capacity", default=1000, text="Maximum number of messages that the broker has not completed.")
@count("--tx", default=0, text="Commit a transaction every N messages; 0 for no transactions.")
@yes_no("--sequence", default=True, text='Add the property "sn": the sequence number.')
@yes_no("--timestamp", default=True, text='Add the property "ts": nanoseconds since 1970.')
@click.option("--group-key", metavar="NAME", help="Add the property NAME: the group name.")
@click.option(
    "--group-prefix", default="GROUP-", show_default=True, metavar="TEXT", help="Group names are TEXT and a number."
)
@click.option("--group-size", type=click.IntRange(1), default=10, show_default=True, help="Messages per group.")
@yes_no("--group-randomize-size", default=False, text="Use random group sizes up to --group-size.")
@click.option(
    "--group-interleave",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of groups whose messages alternate.",
)
@click.option(
    "--rate",
    "--send-rate",
    type=click.FloatRange(0),
    default=0,
    metavar="N",
    help="Maximum messages per second; 0 for no limit.",
)
@click.version_option(__version__, prog_name="qpid-send")
@click.pass_context
def command(context: click.Context, /, **values: Any) -> None:
    """Send messages to an address."""
    if not values["address"]:
        raise click.UsageError("missing address: give one with -a")
    values["connection_options"] = take_security(values) | values["connection_options"]
    options = SendOptions(**values)
    outcome = _Outcome()
    context.exit(run_messaging("qpid-send", lambda: _send(options, outcome), outcome.summary))


class _Outcome:
    """The outcome of the messages.

    Attributes:
        sender: the sender; None before it is created.
        sent: number of messages sent.
        committed: number of these in committed transactions; None without transactions.
        rolled_back: number of these in transactions rolled back on request.
        is_complete: whether all messages are sent and completed.
    """

    def __init__(self) -> None:
        self.sender: Sender | None = None
        self.sent = self.rolled_back = 0
        self.committed: int | None = None
        self.is_complete = False

    def summary(self) -> str:
        """The state of the messages after an error, for the user; empty if all are completed."""
        if self.is_complete or self.sender is None:
            return ""
        sent = plural(self.sent, "message")
        if self.committed is not None:
            rest = f", {self.rolled_back:,} rolled back on request" if self.rolled_back else ""
            return f"{sent} sent, {self.committed:,} committed{rest}"
        if not self.sender.is_reliable:
            return f"{sent} sent; the address is unreliable, so none are confirmed"
        confirmed = self.sent - self.sender.unsettled()
        return f"{sent} sent, {confirmed:,} confirmed by the broker; it may have received others"


def _send(options: SendOptions, outcome: _Outcome) -> int:
    reporter = Reporter(
        Throughput(),
        click.echo,
        every=options.report_every,
        is_total=options.report_total,
        has_heading=options.report_header,
    )
    with connect(options.url, options.connection_options, failover_updates=options.failover_updates) as connection:
        session = connection.session(transactional=bool(options.tx))
        sender = outcome.sender = session.sender(options.address, capacity=options.capacity)
        with StallWatch("qpid-send", connection) as stalls:
            stalls.add(sender)
            _Work(options, session, sender, reporter, outcome).run()
            sender.sync()
        outcome.is_complete = True
        reporter.finish()
    return 0


class _Work:
    """Sends the messages, in transactions if requested."""

    def __init__(
        self, options: SendOptions, session: Session, sender: Sender, reporter: Reporter, outcome: _Outcome
    ) -> None:
        self._options, self._session, self._sender, self._reporter = options, session, sender, reporter
        self._outcome = outcome
        if options.tx:
            outcome.committed = 0
        names = None
        if options.group_key is not None:
            names = groups(
                options.group_prefix,
                options.group_size,
                options.group_interleave,
                randomize=options.group_randomize_size,
                choose=random.Random(),  # noqa: S311 (sizes, not secrets)
            )
        self._headers = Headers(
            dict(options.properties),
            has_sequence=options.sequence,
            has_timestamp=options.timestamp,
            group_key=options.group_key,
            group_names=names,
        )
        self._open = 0  # messages in the current transaction
        self._transactions = 0

    def run(self) -> None:
        """Send all messages."""
        options = self._options
        contents = Contents(
            sys.stdin if options.content_stdin else None,
            options.content_size,
            dict(options.content_map),
            options.content_string,
        )
        limit = options.messages if options.messages is not None else 0 if options.content_stdin else 1
        pace = Pace(options.rate)
        for content in islice(contents, limit or None):
            pace.keep(self._outcome.sent)
            self._send(content)
        for _ in range(options.send_eos):
            self._send(END_OF_STREAM)
        if self._open:
            self._end_transaction()

    def _send(self, content: Any) -> None:
        options = self._options
        message = Message(
            content,
            reply_to=options.reply_to,
            properties=self._headers.next(),
            durable=options.durable,
            ttl=options.ttl / 1000 or None,
            priority=options.priority or None,
            id=options.id,
            correlation_id=options.correlation_id,
            user_id=options.user_id,
        )
        self._sender.send(message, sync=False)
        self._outcome.sent += 1
        if self._reporter.is_wanted:
            self._reporter.add()
        if options.tx:
            self._open += 1
            if self._open == options.tx:
                self._end_transaction()

    def _end_transaction(self) -> None:
        self._transactions += 1
        frequency = self._options.rollback_frequency
        outcome = self._outcome
        if frequency and self._transactions % frequency == 0:
            self._session.rollback()
            outcome.rolled_back += self._open
        else:
            self._session.commit()
            outcome.committed = (outcome.committed or 0) + self._open
        self._open = 0


def main() -> None:
    """The console script."""
    run("qpid-send", command)


if __name__ == "__main__":
    main()
