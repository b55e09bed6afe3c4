"""`qpid-printevents`: print the events of brokers, compatible with the command of the Qpid project.

Exit codes: 0 what was asked for is printed, 1 failed, 2 invalid command line, 130 Ctrl-C.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

import click

from qstore import __version__
from qstore.broker.client import ConnectionFailedError, MessagingError
from qstore.broker.management.console import AgentInfo, AnswerError, Event, aio
from qstore.formats.named_tuple import NamedTuple
from qstore.tools.console.amounts import plain, shown
from qstore.tools.console.broker import EXIT_CODES, BrokerOptions, broker_options, main_of
from qstore.tools.console.command import EXIT_FAILED, JSON, SETTINGS, os_error_text, say
from qstore.tools.console.rows import print_json
from qstore.tools.console.syslog import SYSLOG, system_log


class Happened(NamedTuple):
    """What is printed on one line.

    Attributes:
        timestamp: when, in nanoseconds since 1970.
        severity: 0 (emergency) to 7 (debug).
        package, name: of the class of events.
        values: its arguments.
        broker: where it comes from.
        kind: of the JSON object: event, heartbeat, connected, disconnected.
        agent: the agent's name; empty if there is none.
    """

    timestamp: int
    severity: int
    package: str
    name: str
    values: Mapping[str, Any]
    broker: str
    kind: str
    agent: str = ""

    def line(self, *, has_broker: bool) -> str:
        """As a line; with the broker, if there are several."""
        return f"{time.ctime(self.timestamp / 1e9)} {self.text(has_broker=has_broker)}"

    def text(self, *, has_broker: bool) -> str:
        """The line without its time."""
        severity = _WORDS[self.severity] if 0 <= self.severity < len(_WORDS) else str(self.severity)
        values = {**self.values, "broker": self.broker} if has_broker else self.values
        words = [f"{shown(name)}={_quoted(shown(value))}" for name, value in values.items()]
        return " ".join([f"{severity:<5} {shown(self.package)}:{shown(self.name)}", *words])

    def as_json(self) -> dict[str, Any]:
        """As JSON."""
        return {**self._asdict(), "values": plain(dict(self.values))}


PROGRAM: Final = "qpid-printevents"

_EPILOG = f"""
\b
Examples:
qpid-printevents                                of the broker on this host, until Ctrl-C
qpid-printevents host-1:5672 user/password@host-2:5672
qpid-printevents --json | jq 'select(.name == "queueThresholdExceeded")'
qpid-printevents --agent-heartbeats --count 100
qpid-printevents --syslog local0

\b
{EXIT_CODES}
"""


@click.command(PROGRAM, epilog=_EPILOG, context_settings=SETTINGS)
@click.argument("addresses", nargs=-1, metavar="[URL]...")
@broker_options
@click.option("--heartbeats", is_flag=True, help="Accepted for compatibility: connections always have heartbeats.")
@click.option("--agent-heartbeats", is_flag=True, help="Also print the heartbeats of agents.")
@click.option("-n", "--count", "most", type=click.IntRange(0), default=0, metavar="N",
              help="Stop after N events; 0 for no limit.")  # fmt: skip
@click.option("--duration", type=click.FloatRange(0), metavar="SECONDS", help="Stop after this time.")
@SYSLOG
@JSON
@click.version_option(__version__, prog_name=PROGRAM)
@click.pass_context
def command(context: click.Context, /, **values: Any) -> None:
    """Print the events of brokers as they happen.

    URL is a broker, as with -b; there may be several. A lost connection is opened again.
    """
    broker = BrokerOptions.take(values)
    brokers = [broker.at(url) for url in values["addresses"]] or [broker]
    shown = 0

    def show(happened: Happened) -> bool:
        nonlocal shown
        if log is not None:
            log.write(happened.severity, happened.text(has_broker=len(brokers) > 1))
        elif values["as_json"]:
            print_json([happened.as_json()])
        else:
            click.echo(happened.line(has_broker=len(brokers) > 1))
        sys.stdout.flush()
        shown += happened.kind in ("event", "heartbeat")
        return bool(values["most"]) and shown >= values["most"]

    code = 0
    try:
        log = system_log(context, PROGRAM, values["facility"])
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
    except BrokenPipeError:
        raise
    except OSError as error:
        say(PROGRAM, os_error_text(error))
        code = EXIT_FAILED
    context.exit(code)


# ---- several brokers at the same time ----
#
# A broker that cannot be reached at the beginning is an error. A connection that is lost later is opened again, at
# intervals that double up to `_LONGEST` seconds.

_FIRST, _LONGEST = 1.0, 30.0

Show = Callable[[Happened], bool]
"""Prints it. Returns whether enough is printed."""


async def watch(
    brokers: Sequence[BrokerOptions],
    show: Show,
    complain: Callable[[str], None],
    *,
    has_heartbeats: bool,
    seconds: float | None,
) -> None:
    """Show the events of brokers, until enough is shown or the time is over.

    Args:
        brokers: the brokers.
        show: shows each event.
        complain: called for events that cannot be read.
        has_heartbeats: whether heartbeats are shown, too.
        seconds: time limit; None for none.

    Raises:
        MessagingError: a broker cannot be reached, or has no management.
    """
    tasks = [asyncio.ensure_future(_watch_one(each, show, complain, has_heartbeats=has_heartbeats)) for each in brokers]
    try:
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


async def _watch_one(
    broker: BrokerOptions, show: Show, complain: Callable[[str], None], *, has_heartbeats: bool
) -> None:
    """Show the events of one broker until enough is shown."""
    has_connected, pause = False, _FIRST
    while True:
        try:
            async with aio.Console(broker.url, timeout=broker.timeout, **broker.connection) as console:
                has_connected, pause = True, _FIRST
                if await _follow(console, broker.url, show, complain, has_heartbeats=has_heartbeats):
                    return
        except ConnectionFailedError as error:
            if not has_connected:
                raise
            if pause == _FIRST and show(of_connection(broker.url, is_open=False, reason=str(error))):
                return
        await asyncio.sleep(pause)
        pause = min(_LONGEST, pause * 2)


async def _follow(
    console: aio.Console, url: str, show: Show, complain: Callable[[str], None], *, has_heartbeats: bool
) -> bool:
    """Show what comes on one connection. Returns whether enough is shown, else the connection is lost."""
    if show(of_connection(url, is_open=True)):
        return True
    while True:
        try:
            async with aclosing(console.indications(heartbeats=has_heartbeats)) as indications:
                async for each in indications:
                    if isinstance(each, AgentInfo):
                        is_enough = show(of_heartbeat(each, url))
                    else:
                        is_enough = isinstance(each, Event) and show(of_event(each, url))
                    if is_enough:
                        return True
        except AnswerError as error:
            complain(f"{url}: an indication that cannot be read: {error}")


# ---- lines and JSON ----

_OWN: Final = "qpid-printevents"


_NOTICE: Final = 5


_WORDS: Final = ("EMER", "ALERT", "CRIT", "ERROR", "WARN", "NOTIC", "INFO", "DEBUG")


def _quoted(text: str) -> str:
    return f"'{text}'" if " " in text and not text.startswith(("{", "[")) else text


def of_event(event: Event, broker: str) -> Happened:
    """An event."""
    package, name = event.schema_id.package, event.schema_id.name
    return Happened(event.timestamp, event.severity, package, name, event.values, broker, "event", event.agent)


def of_heartbeat(agent: AgentInfo, broker: str) -> Happened:
    """A heartbeat of an agent."""
    values = {"agent": agent.name, "interval": agent.heartbeat_interval}
    return Happened(agent.timestamp, _NOTICE, _OWN, "agentHeartbeat", values, broker, "heartbeat", agent.name)


def of_connection(broker: str, *, is_open: bool, reason: str = "") -> Happened:
    """A connection that was opened, or lost."""
    values = {"broker": broker} | ({"reason": reason} if reason else {})
    name, kind = ("brokerConnected", "connected") if is_open else ("brokerDisconnected", "disconnected")
    return Happened(time.time_ns(), _NOTICE, _OWN, name, values, broker, kind)


main = main_of(PROGRAM, command)

if __name__ == "__main__":
    main()
