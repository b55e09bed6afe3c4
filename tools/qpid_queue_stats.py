"""`qpid-queue-stats`: depth and rates of queues, at intervals, compatible with the command of the Qpid project.

Exit codes: 0 the reports that were asked for are printed, 1 failed, 2 invalid command line, 130 Ctrl-C.
"""

from __future__ import annotations

import re
import time
from itertools import count
from typing import Any, Final

import click

from qstore import __version__
from qstore.broker.management.console import Console
from qstore.tools.console.broker_options import BrokerOptions, broker_options
from qstore.tools.console.text import printable
from qstore.tools.management.listing import print_json
from qstore.tools.management.running import EXIT_CODES, main_of, run_on_console
from qstore.tools.statistics.rates import heading, rates, read_patterns, take_sample

PROGRAM: Final = "qpid-queue-stats"

_EPILOG = f"""
\b
Examples:
qpid-queue-stats                          all queues, every 10 seconds, until Ctrl-C
qpid-queue-stats -f 'orders,news-.*' -i 1
qpid-queue-stats --active -n 1 -i 5       one report over 5 seconds
qpid-queue-stats --json -a user/password@host:5672

\b
{EXIT_CODES}
"""


def _patterns(_context: click.Context, _parameter: click.Parameter, text: str) -> list[re.Pattern[str]]:
    try:
        return read_patterns(text)
    except re.error as error:
        raise click.BadParameter(f"{text!r} is no regular expression: {error}") from None


@click.command(PROGRAM, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@broker_options
@click.option("-f", "--filter", "patterns", default="", metavar="NAMES", callback=_patterns,
              help="Names of queues, or regular expressions for their beginnings, separated by commas.")  # fmt: skip
@click.option("-i", "--interval", type=click.FloatRange(0, min_open=True), default=10.0, show_default=True,
              metavar="SECONDS", help="Seconds between two reports.")  # fmt: skip
@click.option("-n", "--count", "reports", type=click.IntRange(0), default=0, metavar="N",
              help="Stop after N reports; 0 for no limit.")  # fmt: skip
@click.option("--active", is_flag=True, help="Only queues that have messages, or had in the interval.")
@click.option("--json", "is_json", is_flag=True, help="Print a JSON object a line.")
@click.version_option(__version__, prog_name=PROGRAM)
@click.pass_context
def command(context: click.Context, /, **values: Any) -> None:
    """Print how many messages queues have, and how many they take in and give out a second."""
    broker = BrokerOptions.take(values)

    def work(console: Console) -> None:
        if not values["is_json"]:
            for line in heading():
                click.echo(line)
        before = take_sample(console, time.monotonic(), values["patterns"])
        for number in count(1):
            time.sleep(values["interval"])
            after = take_sample(console, time.monotonic(), values["patterns"])
            found = [each for each in rates(before, after) if each.is_active or not values["active"]]
            if values["is_json"]:
                print_json(each.as_json() for each in found)
            else:
                click.echo("".join(f"{printable(each.line())}\n" for each in found), nl=False)
            before = after
            if number == values["reports"]:
                return

    context.exit(run_on_console(PROGRAM, broker, work))


main = main_of(PROGRAM, command)

if __name__ == "__main__":
    main()
