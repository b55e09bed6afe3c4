"""`qpid-queue-stats`: depth and rates of queues, at intervals, compatible with the command of the Qpid project.

Exit codes: 0 the reports that were asked for are printed, 1 failed, 2 invalid command line, 130 Ctrl-C.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Final

import click

from qstore import __version__
from qstore.broker.management.console import Console
from qstore.formats.named_tuple import NamedTuple
from qstore.tools.console.broker import EXIT_CODES, BrokerOptions, broker_options, main_of, run_on_console
from qstore.tools.console.command import JSON, SETTINGS
from qstore.tools.console.rows import print_json
from qstore.tools.console.syslog import INFO, SYSLOG, system_log
from qstore.tools.console.text import printable

PROGRAM: Final = "qpid-queue-stats"

_EPILOG = f"""
\b
Examples:
qpid-queue-stats                          all queues, every 10 seconds, until Ctrl-C
qpid-queue-stats -f 'orders,news-.*' -i 1
qpid-queue-stats --active -n 1 -i 5       one report over 5 seconds
qpid-queue-stats --syslog local0
qpid-queue-stats --json -a user/password@host:5672

\b
{EXIT_CODES}
"""


def _patterns(_context: click.Context, _parameter: click.Parameter, text: str) -> list[re.Pattern[str]]:
    try:
        return read_patterns(text)
    except re.error as error:
        raise click.BadParameter(f"{text!r} is no regular expression: {error}") from None


@click.command(PROGRAM, epilog=_EPILOG, context_settings=SETTINGS)
@broker_options
@click.option("-f", "--filter", "patterns", default="", metavar="NAMES", callback=_patterns,
              help="Names of queues, or regular expressions for their beginnings, separated by commas.")  # fmt: skip
@click.option("-i", "--interval", type=click.FloatRange(0, min_open=True), default=10.0, show_default=True,
              metavar="SECONDS", help="Seconds between two reports.")  # fmt: skip
@click.option("-n", "--count", "reports", type=click.IntRange(0), default=0, metavar="N",
              help="Stop after N reports; 0 for no limit.")  # fmt: skip
@click.option("--active", is_flag=True, help="Only queues that have messages, or had in the interval.")
@SYSLOG
@JSON
@click.version_option(__version__, prog_name=PROGRAM)
@click.pass_context
def command(context: click.Context, /, **values: Any) -> None:
    """Print how many messages queues hold, and their rates of enqueues and dequeues."""
    broker = BrokerOptions.take(values)

    def work(console: Console) -> None:
        log = system_log(context, PROGRAM, values["facility"])
        if log is None and not values["as_json"]:
            for line in heading():
                click.echo(line)
        before = take_sample(console, time.monotonic(), values["patterns"])
        for number in count(1):
            time.sleep(values["interval"])
            after = take_sample(console, time.monotonic(), values["patterns"])
            found = [each for each in rates(before, after) if each.is_active or not values["active"]]
            if log is not None:
                for each in found:
                    log.write(INFO, each.words())
            elif values["as_json"]:
                print_json(each.as_json() for each in found)
            else:
                click.echo("".join(f"{printable(each.line())}\n" for each in found), nl=False)
            before = after
            if number == values["reports"]:
                return

    context.exit(run_on_console(PROGRAM, broker, work))


# ---- rates: what was enqueued and dequeued a second between two samples ----

#: Headings and widths of the table; numbers are right-aligned.
_WIDTHS: Final = (("Queue Name", 42), ("Sec", 8), ("Depth", 12), ("Enq Rate", 13), ("Deq Rate", 13))


class Counts(NamedTuple):
    """A queue at one time: its messages, and how many it has had in and out."""

    depth: int
    enqueued: int
    dequeued: int


class Sample(NamedTuple):
    """All queues at one time, in seconds."""

    time: float
    queues: Mapping[str, Counts]


class Rates(NamedTuple):
    """A queue between two samples.

    Attributes:
        queue: its name.
        seconds: between them.
        depth: its messages at the end.
        enqueues, dequeues: a second.
    """

    queue: str
    seconds: float
    depth: int
    enqueues: float
    dequeues: float

    @property
    def is_active(self) -> bool:
        """Whether anything happened."""
        return bool(self.depth or self.enqueues or self.dequeues)

    def line(self) -> str:
        """A row of the table."""
        cells = (f"{self.seconds:.2f}", str(self.depth), f"{self.enqueues:.2f}", f"{self.dequeues:.2f}")
        return _row((self.queue, *cells))

    def words(self) -> str:
        """The same as a line without columns."""
        return f"{self.queue}: depth {self.depth}, {self.enqueues:.2f} enqueues/s, {self.dequeues:.2f} dequeues/s"

    def as_json(self) -> dict[str, Any]:
        """The same as JSON."""
        return {"kind": "rates", **self._asdict()}


def _row(cells: Sequence[str]) -> str:
    (_, first), *widths = _WIDTHS
    return f"{cells[0]:<{first}}" + "".join(
        f"{cell:>{width}}" for cell, (_, width) in zip(cells[1:], widths, strict=True)
    )


def heading() -> Iterator[str]:
    """The lines above the table."""
    yield _row([title for title, _ in _WIDTHS])
    yield "=" * sum(width for _, width in _WIDTHS)


def read_patterns(text: str) -> list[re.Pattern[str]]:
    """Names or regular expressions, separated by commas. Raises re.error for an invalid one."""
    return [re.compile(part.strip()) for part in text.split(",") if part.strip()]


def take_sample(console: Console, now: float, patterns: Sequence[re.Pattern[str]]) -> Sample:
    """The queues whose names one of the patterns matches from their beginning; all without patterns."""
    queues = {}
    for each in console.query("queue"):
        name = str(each.get("name"))
        if not patterns or any(pattern.match(name) for pattern in patterns):
            numbers = (each.get(key, 0) for key in ("msgDepth", "msgTotalEnqueues", "msgTotalDequeues"))
            queues[name] = Counts(*(number if isinstance(number, int) else 0 for number in numbers))
    return Sample(now, queues)


def rates(before: Sample, after: Sample) -> Iterable[Rates]:
    """What the queues did that are in both samples; not those that were recreated between them."""
    seconds = after.time - before.time
    for name, counts in after.queues.items():
        earlier = before.queues.get(name)
        if earlier is None or counts.enqueued < earlier.enqueued or counts.dequeued < earlier.dequeued or seconds <= 0:
            continue
        enqueues, dequeues = counts.enqueued - earlier.enqueued, counts.dequeued - earlier.dequeued
        yield Rates(name, round(seconds, 3), counts.depth, enqueues / seconds, dequeues / seconds)


main = main_of(PROGRAM, command)

if __name__ == "__main__":
    main()
