"""`qpid-printevents`: print the events of brokers, compatible with the command of the Qpid project.

Exit codes: 0 what was asked for is printed, 1 failed, 2 invalid command line, 130 Ctrl-C.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import Any, Final

import click

from qstore import __version__
from qstore.broker.client import MessagingError
from qstore.tools.console.broker_options import BrokerOptions, broker_options
from qstore.tools.events.lines import Happened
from qstore.tools.events.watching import watch
from qstore.tools.management.listing import print_json
from qstore.tools.management.running import EXIT_CODES, EXIT_FAILED, main_of, say

PROGRAM: Final = "qpid-printevents"

_EPILOG = f"""
\b
Examples:
qpid-printevents                                of the broker on this host, until Ctrl-C
qpid-printevents host-1:5672 user/password@host-2:5672
qpid-printevents --json | jq 'select(.name == "queueThresholdExceeded")'
qpid-printevents --agent-heartbeats --count 100

\b
{EXIT_CODES}
"""


@click.command(PROGRAM, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("addresses", nargs=-1, metavar="[URL]...")
@broker_options
@click.option("--heartbeats", is_flag=True, help="Accepted for compatibility: connections always have heartbeats.")
@click.option("--agent-heartbeats", is_flag=True, help="Print the heartbeats of agents, too.")
@click.option("-n", "--count", "most", type=click.IntRange(0), default=0, metavar="N",
              help="Stop after N events; 0 for no limit.")  # fmt: skip
@click.option("--duration", type=click.FloatRange(0), metavar="SECONDS", help="Stop after this time.")
@click.option("--json", "is_json", is_flag=True, help="Print a JSON object a line.")
@click.version_option(__version__, prog_name=PROGRAM)
@click.pass_context
def command(context: click.Context, /, **values: Any) -> None:
    """Print the events of brokers as they happen.

    URL is a broker, as with -b; there may be several. A connection that is lost is opened again.
    """
    broker = BrokerOptions.take(values)
    brokers = [broker.at(url) for url in values["addresses"]] or [broker]
    shown = 0

    def show(happened: Happened) -> bool:
        nonlocal shown
        if values["is_json"]:
            print_json([happened.as_json()])
        else:
            click.echo(happened.line(has_broker=len(brokers) > 1))
        sys.stdout.flush()
        shown += happened.kind in ("event", "heartbeat")
        return bool(values["most"]) and shown >= values["most"]

    code = 0
    try:
        with contextlib.closing(asyncio.Runner()) as runner:
            runner.run(
                watch(
                    brokers,
                    show,
                    lambda text: say(PROGRAM, text),
                    has_heartbeats=values["agent_heartbeats"],
                    seconds=values["duration"],
                )
            )
    except MessagingError as error:
        say(PROGRAM, str(error))
        code = EXIT_FAILED
    context.exit(code)


main = main_of(PROGRAM, command)

if __name__ == "__main__":
    main()
