"""`qpid-latency-test`: measure the latency of a broker, compatible with the Qpid project's program, over AMQP 0-10.

Exit codes: 0 measured, 1 failed, 2 invalid command line, 130 Ctrl-C, after the result so far.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Final

import click

from qstore import __version__
from qstore.broker.client import MessagingError
from qstore.tools.console.command import EXIT_FAILED, run, say
from qstore.tools.load import throughput
from qstore.tools.load.channel import Queue, Route, Style
from qstore.tools.load.clients import STAMP
from qstore.tools.load.latencies import summary
from qstore.tools.load.programs import PROGRAM_SETTINGS, BrokerAddress, number, printed, program_options, yes_no
from qstore.tools.load.throughput import Interval, Load

PROGRAM: Final = "qpid-latency-test"
_WINDOW: Final = 1000

_EPILOG: Final = """
\b
Examples:
qpid-latency-test
qpid-latency-test --rate 1000 --time-limit 10
qpid-latency-test --rate 1000 --durable yes --size 1024 --csv
qpid-latency-test --rate 500 --concurrent-tests 4 --cumulative

\b
Messages come back to the program that has sent them. Times are in milliseconds.
With --csv a line has: rate, least, greatest and average latency.

\b
Exit codes: 0 measured, 1 failed, 2 invalid command line.
"""


@click.command(PROGRAM, epilog=_EPILOG, context_settings=PROGRAM_SETTINGS)
@program_options
@number("--size", default=8, least=STAMP.size, text="Size of the messages, in bytes.")
@number(
    "--concurrent-tests",
    "--concurrentTests",
    default=1,
    least=1,
    text="Tests at the same time, each with a publisher, a queue and a subscriber.",
)
@click.option(
    "--queue-base-name",
    "--queue",
    "base_name",
    default="latency-test",
    show_default=True,
    metavar="NAME",
    help="Beginning of the names of the queues.",
)
@number("--count", default=1000, least=1, text="Messages of each test, if there is no rate.")
@number("--rate", text="Messages a second of each test; 0: --count messages as fast as possible.")
@yes_no("--sync", text="Publish a message when the one before is confirmed.")
@number("--report-frequency", default=1000, least=1, text="Milliseconds between two reports, with --rate.")
@number("--time-limit", text="Seconds of a test with --rate; 0: until Ctrl-C.")
@number("--prefetch", default=100, text="Messages that are not acknowledged, at most; 0: none needs it.")
@number("--ack", text="Acknowledge N messages at once; 0: half of --prefetch.")
@yes_no("--durable", text="Durable messages, and queues.")
@click.option("--csv", "is_csv", is_flag=True, help="Print numbers, separated by commas.")
@click.option("--cumulative", is_flag=True, help="Print numbers, separated by commas, of all messages so far.")
@click.version_option(__version__, prog_name=PROGRAM)
@click.pass_context
def command(context: click.Context, /, **values: Any) -> None:
    """Measure how long messages take to a broker and back."""
    address = BrokerAddress.take(values)
    if values["prefetch"] and values["ack"] > values["prefetch"]:
        raise click.UsageError(f"--ack {values['ack']} is never reached with --prefetch {values['prefetch']}")
    load = _load(values)
    broker = address.load_broker()
    try:
        with throughput.one_channel(broker) as (loop, channel):
            for name in load.queues:
                queue = Queue(name, durable=values["durable"])
                throughput.call(loop, f"the queue {name!r}", channel.declare_queue, queue)
                throughput.call(loop, f"the queue {name!r}", channel.purge_queue, name)
        so_far = Report(values)
        result = throughput.run(broker, load, so_far.add, interval=values["report_frequency"] / 1000)
        if result.total is not None and not values["rate"]:
            so_far.add(result.total)
        elif result.total is not None and not (values["is_csv"] or values["cumulative"]):
            click.echo("")
            so_far.show(result.total)
        if result.error is not None:
            raise result.error
        throughput.delete_queues(broker, load.queues)
        if result.total is not None and result.total.refused:
            raise MessagingError(f"the broker has refused {result.total.refused:,} messages")
    except MessagingError as error:
        say(PROGRAM, str(error))
        context.exit(EXIT_FAILED)
    sys.stdout.flush()
    if result.interruption is not None:
        raise result.interruption


def _load(values: dict[str, Any]) -> Load:
    tests, rate, prefetch = values["concurrent_tests"], values["rate"], values["prefetch"]
    queues = [f"{values['base_name']}-{each}" for each in range(1, tests + 1)]
    count = None if rate else values["count"] * tests
    acknowledge = (values["ack"] or max(1, prefetch // 2)) if prefetch else 0
    return Load(
        publishers=tests, consumers=tests, queues=queues, routes=[Route("", name) for name in queues],
        is_declared=True, sizes=(values["size"],), style=Style(values["durable"]),
        window=1 if values["sync"] else _WINDOW, acknowledge=acknowledge,
        prefetch=prefetch, rate=rate, publish_limit=count, consume_limit=count,
        seconds=values["time_limit"] or None if rate else None, has_latency=True,
        processes=min(os.cpu_count() or 1, 2 * tests),
    )  # fmt: skip


class Report:
    """Prints latencies."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values
        self._all: list[int] = []
        self._messages, self._seconds = 0, 0.0

    def add(self, interval: Interval) -> None:
        """Print an interval; with `--cumulative`, it with those before."""
        if self._values["cumulative"]:
            self._messages, self._seconds = self._messages + interval.consumed, self._seconds + interval.seconds
            before = self._all or [0] * len(interval.latencies)
            self._all = [old + new for old, new in zip(before, interval.latencies, strict=True)]
            interval = interval._replace(latencies=self._all, consumed=self._messages, seconds=self._seconds)
        self.show(interval)

    def show(self, interval: Interval) -> None:
        """Print latencies."""
        found = summary(interval.latencies)
        numbers = [printed(found.get(f"latency_{name}_ms", 0.0)) for name in ("min", "max", "mean")]
        if self._values["is_csv"] or self._values["cumulative"]:
            click.echo(",".join([printed(interval.consume_rate), *numbers]))
        else:
            least, greatest, average = numbers
            click.echo(f"Latency(ms): min={least}, max={greatest}, avg={average}")
        sys.stdout.flush()


def main() -> None:
    """The console script."""
    run(PROGRAM, command)


if __name__ == "__main__":
    main()
