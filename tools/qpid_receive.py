"""`qpid-receive`: receive messages from an address, compatible with the command of the Qpid project.

Exit codes: 0 the end was reached (the number of messages, the timeout, or "eos"), 1 error, 2 invalid command line, 130
Ctrl-C: printed messages are acknowledged. At the end the number of messages received is printed on standard error.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from qstore import __version__
from qstore.broker.client import Empty, LinkError, Message, MessagingError, Receiver, Sender, Session
from qstore.broker.client.address import format_value
from qstore.formats.wording import plural
from qstore.tools.console.broker import take_security
from qstore.tools.console.command import EXIT_INTERRUPTED, SETTINGS, run, say
from qstore.tools.messaging import (
    END_OF_STREAM,
    SEQUENCE,
    TIMESTAMP,
    Interruption,
    Pace,
    Reporter,
    StallWatch,
    ThroughputAndLatency,
    Timeout,
    connect,
    count,
    run_messaging,
    shared_options,
    yes_no,
)

_EPILOG = """
\b
Examples:
qpid-receive -a orders                            all messages now on the queue
qpid-receive -a orders -t 10 -m 5                 five messages, with a timeout of 10 seconds
qpid-receive -a 'orders; {mode: browse}' --print-headers yes
qpid-receive -a 'amq.topic/usa.#' -f              all messages, until interrupted
qpid-receive -a orders --print-content no --report-total
qpid-receive -a orders -f --tx 10 --connection-options '{reconnect: true}' --ignore-duplicates

\b
At the end the number of messages received is printed on standard error.
Exit codes: 0 the end was reached, 1 error, 2 invalid command line, 130 Ctrl-C (printed messages are acknowledged).
"""


@dataclass(frozen=True, slots=True)
class ReceiveOptions:
    """The command line; the names are those of the options."""

    url: str
    address: str
    connection_options: dict[str, Any]
    timeout: float
    forever: bool
    messages: int
    ignore_duplicates: bool
    verify_sequence: bool
    check_redelivered: bool
    capacity: int
    ack_frequency: int
    tx: int
    rollback_frequency: int
    print_content: bool
    print_headers: bool
    failover_updates: bool
    rate: float
    ready_address: str | None
    report_total: bool
    report_every: int
    report_header: bool


@click.command("qpid-receive", epilog=_EPILOG, context_settings=SETTINGS)
@shared_options
@click.option(
    "-t", "--timeout", type=Timeout(), default=0.0, help="Stop after this time without a message.  [default: 0]"
)
@click.option("-f", "--forever", is_flag=True, help="Wait for messages without a timeout.")
@count("-m", "--messages", default=0, text="Stop after N messages; 0 for no limit.")
@click.option("--ignore-duplicates", is_flag=True, help='Ignore duplicates, by the property "sn".')
@click.option("--verify-sequence", is_flag=True, help='Fail if the property "sn" does not increase by one.')
@click.option(
    "--check-redelivered",
    is_flag=True,
    help="With --ignore-duplicates: fail if a duplicate is not marked as redelivered.",
)
@count("--capacity", default=1000, text="Number of messages to prefetch; 0 for none.")
@count("--ack-frequency", default=100, text="Acknowledge every N messages; 0 for never.")
@count("--tx", default=0, text="Commit a transaction every N messages; 0 for no transactions.")
@yes_no("--print-content", default=True, text="Print contents.")
@yes_no("--print-headers", default=False, text="Print headers and properties.")
@click.option(
    "--rate",
    "--receive-rate",
    type=click.FloatRange(0),
    default=0,
    metavar="N",
    help="Maximum messages per second; 0 for no limit.",
)
@click.option("--ready-address", metavar="ADDRESS", help="Send a message to this address when ready to receive.")
@click.version_option(__version__, prog_name="qpid-receive")
@click.pass_context
def command(context: click.Context, /, **values: Any) -> None:
    """Receive messages from an address.

    A message with a reply-to address is also sent to that address.
    """
    if not values["address"]:
        raise click.UsageError("missing address: give one with -a")
    values["connection_options"] = take_security(values) | values["connection_options"]
    options = ReceiveOptions(**values)
    outcome = _Outcome()
    context.exit(run_messaging("qpid-receive", lambda: _receive(options, outcome), outcome.summary))


class _Outcome:
    """The outcome of the messages.

    Attributes:
        has_begun: whether the receiver is created.
        fetched: number of messages received.
        rolled_back: number of these in transactions rolled back on request.
        settled: number of these acknowledged or committed; None if none are acknowledged.
        is_complete: whether all are acknowledged that should be.
    """

    def __init__(self) -> None:
        self.has_begun = self.is_complete = False
        self.fetched = self.rolled_back = 0
        self.settled: int | None = 0

    def summary(self) -> str:
        """The number of messages received, and their state, for the user."""
        if not self.has_begun:
            return ""
        text = f"{plural(self.fetched, 'message')} received"
        if self.rolled_back:
            text += f", {self.rolled_back:,} rolled back on request"
        if self.settled is None:
            return text + ", none acknowledged"
        rest = self.fetched - self.rolled_back - self.settled
        return text if self.is_complete or not rest else f"{text}; the last {rest:,} may be redelivered"


def _receive(options: ReceiveOptions, outcome: _Outcome) -> int:
    reporter = Reporter(
        ThroughputAndLatency(),
        _show,
        every=options.report_every,
        is_total=options.report_total,
        has_heading=options.report_header,
    )
    interruption = Interruption()
    connection = connect(options.url, options.connection_options, failover_updates=options.failover_updates)
    with connection, interruption.handling(), StallWatch("qpid-receive", connection) as stalls:
        session = connection.session(transactional=bool(options.tx))
        receiver = session.receiver(options.address, capacity=options.capacity)
        if options.ready_address is not None:
            stalls.add(connection.session().sender(options.ready_address)).send(Message())
        outcome.has_begun = True
        _Work(options, session, receiver, reporter, outcome, interruption, stalls).run()
        reporter.finish()
    return EXIT_INTERRUPTED if interruption.is_requested else 0


def _show(line: str) -> None:
    sys.stdout.buffer.write(line.encode("utf-8", "backslashreplace") + b"\n")


class _Work:
    """Receives the messages, in transactions if requested."""

    def __init__(
        self,
        options: ReceiveOptions,
        session: Session,
        receiver: Receiver,
        reporter: Reporter,
        outcome: _Outcome,
        interruption: Interruption,
        stalls: StallWatch,
    ) -> None:
        self._outcome, self._interruption, self._stalls = outcome, interruption, stalls
        self._options, self._session, self._receiver, self._reporter = options, session, receiver, reporter
        is_endless = options.forever or math.isinf(options.timeout)
        self._timeout = None if is_endless else options.timeout
        self._tracker = SequenceTracker()
        self._senders: dict[str, Sender | None] = {}  # None: the address cannot be used
        self._count = self._transactions = 0
        self._acknowledges = bool(options.tx or options.ack_frequency)
        if not self._acknowledges:
            outcome.settled = None

    def run(self) -> None:
        """Receive all messages."""
        options, outcome = self._options, self._outcome
        pace = Pace(options.rate)
        batch = options.tx or options.ack_frequency
        is_over = False
        while not is_over and not self._interruption.is_requested:
            pace.keep(outcome.fetched)
            message = self._fetch()
            if message is None:
                break
            outcome.fetched += 1
            if self._reporter.is_wanted:
                self._reporter.add(message.properties.get(TIMESTAMP))
            is_over = self._take(message)
            if batch and outcome.fetched % batch == 0:
                self._settle(sync=False)
        if self._acknowledges:
            self._settle(sync=True)
        outcome.is_complete = True

    def _settle(self, *, sync: bool) -> None:
        """Acknowledge the messages received so far, or end their transaction. They are printed before that."""
        sys.stdout.buffer.flush()
        outcome = self._outcome
        if self._options.tx:
            self._end_transaction()
            return
        self._session.acknowledge(sync=sync)
        if sync:
            self._session.sync()  # including earlier acknowledgements
            outcome.settled = outcome.fetched

    def _fetch(self) -> Message | None:
        """The next message; None after the timeout or Ctrl-C."""
        while True:
            if not self._receiver.available():
                sys.stdout.buffer.flush()
                try:
                    # This takes no message, so interrupting it loses none.
                    with self._interruption.waiting(), contextlib.suppress(Empty):
                        self._session.next_receiver(self._timeout)
                except KeyboardInterrupt:
                    return None
            try:
                return self._receiver.fetch(0)
            except Empty:
                if self._timeout is not None:
                    return None

    def _take(self, message: Message) -> bool:
        """Check and print a message. Returns whether it is the last."""
        options = self._options
        if options.verify_sequence:
            self._tracker.check_next(message)
        elif options.ignore_duplicates and self._tracker.is_duplicate(message):
            if options.check_redelivered and not message.redelivered:
                raise SequenceError("a duplicate message is not marked as redelivered")
            return False
        if message.body == END_OF_STREAM.encode():
            return True
        self._count += 1
        if options.print_headers:
            for line in header_lines(message):
                _show(line)
        if options.print_content:
            sys.stdout.buffer.write(content_bytes(message) + b"\n")
        if message.reply_to is not None:
            self._reply(message)
        return self._count == options.messages

    def _reply(self, message: Message) -> None:
        address = message.reply_to
        assert address is not None
        if address not in self._senders:
            try:
                self._senders[address] = self._stalls.add(self._session.sender(address))
            except LinkError as error:
                self._senders[address] = None
                say("qpid-receive", f"cannot reply to {address}: {error}")
        sender = self._senders[address]
        if sender is not None:
            message.reply_to = None
            sender.send(message, sync=False)

    def _end_transaction(self) -> None:
        self._session.acknowledge(sync=False)
        self._transactions += 1
        outcome = self._outcome
        done = (outcome.settled or 0) + outcome.rolled_back
        frequency = self._options.rollback_frequency
        if frequency and self._transactions % frequency == 0:
            self._session.rollback()
            outcome.rolled_back += outcome.fetched - done
        else:
            self._session.commit()
            outcome.settled = outcome.fetched - outcome.rolled_back


# ---- received messages ----


class SequenceError(MessagingError):
    """A message is out of sequence, missing or duplicated."""


class SequenceTracker:
    """Checks the property "sn" of messages, which a sender counts up from 1."""

    def __init__(self) -> None:
        self._last = 0

    def is_duplicate(self, message: Message) -> bool:
        """Whether a message with this sequence number or a higher one was received before.

        Raises:
            SequenceError: it has no sequence number.
        """
        number = self._number(message)
        if number <= self._last:
            return True
        self._last = number
        return False

    def check_next(self, message: Message) -> None:
        """Check that a message has the next sequence number.

        Raises:
            SequenceError: it has another number, or none.
        """
        number = self._number(message)
        if number != self._last + 1:
            raise SequenceError(f"message out of sequence: received {number}, expected {self._last + 1}")
        self._last = number

    def _number(self, message: Message) -> int:
        number = message.properties.get(SEQUENCE)
        if not isinstance(number, int):
            raise SequenceError(f'a message has no sequence number in the property "{SEQUENCE}"')
        return number


def header_lines(message: Message) -> Iterator[str]:
    """A message's headers and properties as lines, with an empty line at the end."""
    named: list[tuple[str, Any]] = [
        ("Subject", message.subject),
        ("ReplyTo", message.reply_to),
        ("MessageId", message.id),
        ("CorrelationId", message.correlation_id),
        ("UserId", message.user_id),
        ("TTL", None if message.ttl is None else round(message.ttl * 1000)),
        ("Priority", message.priority),
        ("ContentType", message.content_type),
        ("Durable", "true" if message.durable else None),
        ("Redelivered", "true" if message.redelivered else None),
    ]
    for name, value in named:
        if value:
            yield f"{name}: {value}"
    yield f"Properties: {format_value(message.properties)}"
    yield ""


def content_bytes(message: Message) -> bytes:
    """A message's content as printed: text and bytes unchanged, maps and lists in the syntax of addresses."""
    content = message.content
    if isinstance(content, (dict, list)):
        return format_value(content).encode("utf-8", "surrogateescape")
    return message.body


def main() -> None:
    """The console script."""
    run("qpid-receive", command)


if __name__ == "__main__":
    main()
