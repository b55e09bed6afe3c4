"""`qstore-perf`: generate load for a broker, and measure it; over AMQP 0-9-1, 0-10 and 1.0.

Its scenarios are those of RabbitMQ's PerfTest and of `lavinmqperf`, whose short options it has. It works with every
broker of these protocols, so that two brokers can be measured by the same means.

Exit codes: 0 measured, 1 failed (no connection, messages that were refused, not confirmed or not routed), 2 invalid
command line, 130 Ctrl-C, after the summary.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from qstore import __version__
from qstore.broker.client.errors import MessagingError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.wording import plural
from qstore.tools.console.amounts import human
from qstore.tools.console.broker import CONNECTION_OPTIONS, security_options, take_security, timeout_option
from qstore.tools.console.command import EXIT_FAILED, JSON, QUIET, SETTINGS, examples, run, say
from qstore.tools.console.rows import print_json
from qstore.tools.load import churn, counts, throughput
from qstore.tools.load.channel import Queue, Style
from qstore.tools.load.clients import STAMP
from qstore.tools.load.latencies import picture, summary
from qstore.tools.load.loop import Loop, close_all
from qstore.tools.load.protocols import AMQP_0_9_1, PROTOCOLS, Broker
from qstore.tools.load.throughput import Interval, Load

PROGRAM: Final = "qstore-perf"
_Function = TypeVar("_Function", bound=Callable[..., Any])
_LATENCY_RATE: Final = 1000.0
_LATENCY_SECONDS: Final = 10.0
_CHURN_SECONDS: Final = 5.0
_MAX_QUEUES: Final = 100_000

_EPILOG: Final = """
\b
Examples:
qstore-perf throughput -z 10 -c 1000 -a 100 -p -s 1024
qstore-perf latency --rate 1000 -z 30
qstore-perf throughput --protocol amqp1.0 -x 4 -y 4 -z 10
qstore-perf queue-churn -z 5
qstore-perf connection-count -x 5000 --broker-pid 1234
qstore-perf throughput -b amqp://guest:guest@rabbitmq/%2f -z 10 --json

\b
Exit codes: 0 measured; 1 failed: no connection, messages refused, unconfirmed or unroutable; 2 invalid command line;
130 after Ctrl-C, which ends a measurement with its summary.
"""


@click.group(PROGRAM, epilog=_EPILOG, context_settings=SETTINGS)
@click.version_option(__version__, prog_name=PROGRAM)
def command() -> None:
    """Generate load for a broker, and measure it."""


# ---- options ----


class Sizes(click.ParamType[tuple[int, ...]]):
    """Type of an option: numbers of bytes, separated by commas."""

    name = "BYTES[,BYTES...]"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Convert to numbers."""
        if isinstance(value, tuple):
            return value
        try:
            found = tuple(int(word) for word in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not a number of bytes, or several separated by commas", param, ctx)
        if min(found) < 0:
            self.fail(f"{min(found)} is not a size", param, ctx)
        return found


class JsonMap(click.ParamType[dict[str, Any]]):
    """Type of an option: a JSON object."""

    name = "JSON"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        """Convert to a map."""
        if isinstance(value, dict):
            return value
        try:
            found = json.loads(str(value))
        except ValueError as error:
            self.fail(f"not JSON: {error}", param, ctx)
        if not isinstance(found, dict):
            self.fail(f"{value} is not a JSON object", param, ctx)
        return found


def _count(*names: str, text: str, default: int | None = None, least: int = 0) -> Callable[[_Function], _Function]:
    return click.option(*names, type=click.IntRange(least), default=default, show_default=default is not None,
                        metavar="N", help=text)  # fmt: skip


def _seconds(*names: str, text: str, default: float | None = None) -> Callable[[_Function], _Function]:
    return click.option(*names, type=click.FloatRange(0), default=default, show_default=default is not None,
                        metavar="SECONDS", help=text)  # fmt: skip


def _rate(*names: str, text: str) -> Callable[[_Function], _Function]:
    return click.option(*names, type=click.FloatRange(0), default=0, metavar="N", help=f"{text} 0 for no limit.")


def _with(*options: Callable[[_Function], _Function]) -> Callable[[_Function], _Function]:
    def add(function: _Function) -> _Function:
        for option in reversed(options):
            function = option(function)
        return function

    return add


_BROKER: Final = _with(
    click.option("-b", "--broker", "--uri", "url", default="localhost", show_default=True, metavar="URL",
                 help="URL of the broker: [user/password@]host[:port], or several separated by commas."),
    click.option("--protocol", type=click.Choice(list(PROTOCOLS)), default=AMQP_0_9_1, show_default=True,
                 help="Protocol."),
    timeout_option("--timeout"),
    security_options,
    CONNECTION_OPTIONS,
    click.option("--broker-pid", type=click.IntRange(1), metavar="PID",
                 help="Report the processor time and memory of this process, with those that it has started."),
    JSON,
    QUIET,
)  # fmt: skip

_CLIENTS: Final = _with(
    _count("-x", "--publishers", "--producers", default=1, text="Publishers, each with a connection of its own."),
    _count("-y", "--consumers", default=1, text="Consumers, each with a connection of its own."),
    click.option("-s", "--size", "sizes", type=Sizes(), default=(16,),
                 help="Size of the bodies; several sizes are used in turns.  [default: 16]"),
    click.option("-p", "--persistent", is_flag=True, help="Persistent messages."),
    _count("-c", "--confirm", "window", default=0,
           text="Messages of a publisher that are not confirmed, at most; 0 for no confirms."),
    _count("-a", "--ack", "--multi-ack-every", "acknowledge", default=0,
           text="A consumer acknowledges every N messages; 0: they need no acknowledgement."),
    _count("-P", "--prefetch", "--qos", default=1000,
           text="Messages of a consumer that are not acknowledged, at most; 0 for no limit."),
    _rate("-R", "--consumer-rate", text="Messages a second of each consumer, at most."),
    _count("-t", "--transaction", default=0, text="Publish in transactions of N messages; 0 for none."),
    _count("-T", "--consumer-transaction", default=0, text="Acknowledge in transactions of N messages; 0 for none."),
    _count("-C", "--pmessages", "publish_limit", least=1, text="Publish N messages in all."),
    _count("-D", "--cmessages", "consume_limit", least=1, text="Consume N messages in all."),
    _seconds("--warm-up", default=0.0, text="Time at the beginning that is not measured."),
    click.option("-u", "--queue", default="perf-test", show_default=True, metavar="NAME", help="Queue."),
    click.option("--queue-pattern", metavar="PATTERN",
                 help="Several queues: % stands for a number. Publishers use them in turns, a consumer one of them."),
    click.option("--queue-pattern-from", "first", type=click.IntRange(0), default=1, show_default=True, metavar="N"),
    click.option("--queue-pattern-to", "last", type=click.IntRange(0), default=1, show_default=True, metavar="N"),
    click.option("-e", "--exchange", default="", metavar="NAME",
                 help="Exchange to publish to, to which the queues are bound.  [default: the default exchange]"),
    click.option("-k", "--routing-key", "key", metavar="KEY", help="Routing key.  [default: names of queues]"),
    click.option("--predeclared", is_flag=True, help="Queues and bindings are there: declare none."),
    click.option("--transient", is_flag=True, help="Declare queues that are not durable."),
    click.option("--queue-args", type=JsonMap(), default=dict, help="Arguments of the queues."),
    click.option("--delete-queues", "deletes", is_flag=True, help="Delete the queues at the end."),
    click.option("--headers", type=JsonMap(), default=dict, help="Headers of the messages."),
    click.option("--priority", type=click.IntRange(0, 255), metavar="N", help="Priority of the messages."),
    click.option("--random-bodies", "is_random", is_flag=True, help="Random bodies, 64 of each publisher."),
    _count("--processes", least=1, text="Processes of the load generator.  [default: as many as processors]"),
    click.option("--wall-clock", "is_wall", is_flag=True,
                 help="Latencies by the time of the day, if publishers are on another machine than consumers."),
)  # fmt: skip


class _Process:
    """A broker's process, with those that it has started; `pid` None for none."""

    def __init__(self, pid: int | None) -> None:
        self._pid = pid
        self._marks: dict[str, float] = {}

    def mark(self, name: str) -> None:
        """Note the processor time at a moment."""
        if self._pid is not None:
            self._marks[name] = sum(_processor_seconds(pid) for pid in _family(self._pid))

    def numbers(self, messages: int) -> dict[str, Any]:
        """What it has used between the marks, and its memory."""
        if self._pid is None or len(self._marks) < 2:
            return {}
        seconds = self._marks["end"] - self._marks["begin"]
        per_message = {"broker_us_per_message": round(seconds * 1e6 / messages, 3)} if messages else {}
        return {"broker_processor_seconds": round(seconds, 3), **per_message, **self.memory()}

    def memory(self) -> dict[str, Any]:
        """Its memory now."""
        return {} if self._pid is None else {"broker_memory": sum(_memory(pid) for pid in _family(self._pid))}


def _family(pid: int) -> list[int]:
    """A process, and those that it has started."""
    found = [pid]
    for each in found:
        for path in Path(f"/proc/{each}/task").glob("*/children"):
            try:
                found += map(int, path.read_text().split())
            except OSError:
                continue
    return found


def _processor_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(pid: int) -> int:
    """Bytes of a process that no other one shares, and its part of those that are shared."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


class _Common(NamedTuple):
    """The options that all scenarios have."""

    broker: Broker
    process: _Process
    as_json: bool
    is_quiet: bool

    @classmethod
    def take(cls, values: dict[str, Any]) -> _Common:
        """Take them out of a command's values."""
        options = {
            "connect_timeout": values.pop("timeout"),
            **take_security(values),
            **values.pop("connection_options"),
        }
        pid = values.pop("broker_pid")
        if pid is not None and not Path(f"/proc/{pid}").exists():
            raise click.UsageError(f"--broker-pid: there is no process {pid}")
        try:
            broker = Broker(values.pop("url"), values.pop("protocol"), options)
        except MessagingError as error:
            raise click.UsageError(str(error)) from None
        return cls(broker, _Process(pid), values.pop("as_json"), values.pop("quiet"))


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)


def _ended(error: MessagingError | None, interruption: BaseException | None) -> int:
    """Say what has ended a scenario, and return the exit code."""
    if error is not None:
        say(PROGRAM, str(error))
        return EXIT_FAILED
    if interruption is not None:
        sys.stdout.flush()
        raise interruption
    return 0


# ---- publishers and consumers ----


@command.command("throughput", epilog=examples(
    "qstore-perf throughput -z 10                                     transient messages, as fast as possible",
    "qstore-perf throughput -z 10 -p -s 1024 -c 1000 -a 100           durable, with confirms and acknowledgements",
    "qstore-perf throughput -y 0 -C 1000000 -c 1000 -p                fill a queue",
    "qstore-perf throughput -x 0 -D 1000000 -a 100                    and empty it",
    "qstore-perf throughput -x 20 -y 20 --queue-pattern q-% --queue-pattern-to 20 -z 10",
    "qstore-perf throughput -x 1 -y 20 -e amq.fanout -k '' --queue-pattern f-% --queue-pattern-to 20 -z 10",
))  # fmt: skip
@_BROKER
@_CLIENTS
@_rate("-r", "--rate", text="Messages a second of each publisher, at most.")
@_seconds("-z", "--time", "seconds", text="How long.  [default: until the limits of messages, or Ctrl-C]")
@click.option("-l", "--measure-latency", "has_latency", is_flag=True, help="Measure the time from publish to delivery.")
@click.pass_context
def throughput_command(context: click.Context, /, **values: Any) -> None:
    """Publish and consume, and report messages a second.

    The queues are declared, durable, also for publishers alone. Consumers begin before publishers.
    """
    context.exit(_run(values, kind="throughput"))


@command.command(epilog=examples(
    "qstore-perf latency",
    "qstore-perf latency --rate 10000 -p -s 1024 -c 1000 -a 1 -z 60",
))  # fmt: skip
@_BROKER
@_CLIENTS
@click.option("-r", "--rate", type=click.FloatRange(0, min_open=True), default=_LATENCY_RATE, show_default=True,
              metavar="N", help="Messages a second of each publisher.")  # fmt: skip
@_seconds("-z", "--time", "seconds", default=_LATENCY_SECONDS, text="How long.")
@click.pass_context
def latency(context: click.Context, /, **values: Any) -> None:
    """Publish at a rate, and report how long messages take, with a picture of the distribution.

    The time of a message begins when it is due: one that is sent late, because broker or machine are busy, is late.
    """
    context.exit(_run(values | {"has_latency": True}, kind="latency"))


def _run(values: dict[str, Any], *, kind: str) -> int:
    common = _Common.take(values)
    deletes = values.pop("deletes")
    load = _load(values)
    try:
        throughput.set_up(common.broker, load)
    except MessagingError as error:
        say(PROGRAM, str(error))
        return EXIT_FAILED

    def report(interval: Interval) -> None:
        if common.as_json:
            print_json([{"kind": "interval", **_numbers(load, interval)}])
        else:
            click.echo(_line(load, interval))

    result = throughput.run(
        common.broker, load, (lambda _: None) if common.is_quiet else report, marks=common.process.mark
    )
    total = result.total
    problems = []
    if total is not None:
        messages = max(total.published, total.consumed)
        found = {"kind": kind, **_numbers(load, total), **common.process.numbers(messages)}
        if common.as_json:
            print_json([found])
        else:
            _print(_summary(load, total, found))
        problems = list(_problems(load, total, result.unconfirmed))
    sys.stdout.flush()
    for problem in problems:
        say(PROGRAM, problem)
    code = _ended(result.error, None)
    if deletes and result.error is None:
        try:
            throughput.delete_queues(common.broker, load.queues)
        except MessagingError as error:
            code = _ended(error, None)
    return max(_ended(None, result.interruption), code, EXIT_FAILED if problems else 0)


def _load(values: dict[str, Any]) -> Load:
    """The load that the options describe. Raises click.UsageError."""
    publishers, consumers = values["publishers"], values["consumers"]
    if not publishers and not consumers:
        raise click.UsageError("there is neither a publisher nor a consumer")
    if not publishers and values["publish_limit"]:
        raise click.UsageError("--pmessages needs a publisher")
    if not consumers and values["consume_limit"]:
        raise click.UsageError("--cmessages needs a consumer")
    if values["has_latency"] and min(values["sizes"]) < STAMP.size:
        raise click.UsageError(f"latencies need messages of {STAMP.size} bytes or more: their first bytes are a time")
    if values["prefetch"] and values["acknowledge"] > values["prefetch"]:
        raise click.UsageError(f"--ack {values['acknowledge']} is never reached with --prefetch {values['prefetch']}")
    if values["consumer_transaction"] and not values["acknowledge"]:
        raise click.UsageError("--consumer-transaction needs acknowledgements: give --ack")
    most = publishers + consumers
    return Load(
        publishers=publishers, consumers=consumers, queues=_queues(values), exchange=values["exchange"],
        key=values["key"], is_declared=values["predeclared"],
        queue=Queue("", durable=not values["transient"], arguments=values["queue_args"]), sizes=values["sizes"],
        style=Style(values["persistent"], values["headers"], values["priority"]), is_random=values["is_random"],
        window=values["window"], acknowledge=values["acknowledge"], prefetch=values["prefetch"], rate=values["rate"],
        consumer_rate=values["consumer_rate"], transaction=values["transaction"],
        consumer_transaction=values["consumer_transaction"], publish_limit=values["publish_limit"],
        consume_limit=values["consume_limit"], seconds=values["seconds"], warm_up=values["warm_up"],
        has_latency=values["has_latency"], is_wall=values["is_wall"],
        processes=min(values["processes"] or os.cpu_count() or 1, most),
    )  # fmt: skip


def _queues(values: dict[str, Any]) -> list[str]:
    pattern, first, last = values["queue_pattern"], values["first"], values["last"]
    if pattern is None:
        return [values["queue"]]
    if "%" not in pattern:
        raise click.UsageError("--queue-pattern has no %, which stands for the number of a queue")
    if not first <= last:
        raise click.UsageError("--queue-pattern-from is greater than --queue-pattern-to")
    if last - first >= _MAX_QUEUES:
        raise click.UsageError(f"more than {_MAX_QUEUES:,} queues")
    return [pattern.replace("%", str(number)) for number in range(first, last + 1)]


def _numbers(load: Load, interval: Interval) -> dict[str, Any]:
    """An interval as JSON."""
    found: dict[str, Any] = {
        "elapsed_seconds": round(interval.seconds, 3), "at_seconds": round(interval.at, 3),
        "published": interval.published, "consumed": interval.consumed,
        "publish_rate": round(interval.publish_rate), "consume_rate": round(interval.consume_rate),
    }  # fmt: skip
    if load.window:
        found |= {"confirmed": interval.confirmed, "refused": interval.refused}
    if interval.returned:
        found["returned"] = interval.returned
    if load.has_latency:
        found |= {**summary(interval.latencies), "not_measured": interval.others}
    return found | {"generator_processor_seconds": round(interval.processor_seconds, 3)}


def _line(load: Load, interval: Interval) -> str:
    """An interval in one line."""
    parts = [f"{interval.at:6.1f} s"]
    if load.publishers:
        parts.append(f"published {interval.publish_rate:>11,.0f}/s")
    if load.window:
        parts.append(f"confirmed {interval.confirmed / max(interval.seconds, 1e-9):>11,.0f}/s")
    if load.consumers:
        parts.append(f"consumed {interval.consume_rate:>11,.0f}/s")
    found = summary(interval.latencies)
    if found:
        names = ("min", "median", "p95", "p99", "max")
        values = "/".join(f"{found[f'latency_{name}_ms']:.3f}" for name in names)
        parts.append(f"ms min/median/95/99/max {values}")
    return "  ".join(parts)


def _summary(load: Load, total: Interval, found: dict[str, Any]) -> Iterable[str]:
    if load.publishers:
        yield f"published  {total.published:>13,} in {total.seconds:.1f} s   {total.publish_rate:>11,.0f}/s"
    if load.consumers:
        yield f"consumed   {total.consumed:>13,} in {total.seconds:.1f} s   {total.consume_rate:>11,.0f}/s"
    if "broker_processor_seconds" in found:
        yield f"broker     {_broker_text(found)}"
    yield from _latency_lines(total.latencies, total.others)


def _broker_text(found: dict[str, Any]) -> str:
    """What the broker's process has used."""
    each = found.get("broker_us_per_message")
    text = f"{found['broker_processor_seconds']:.2f} s of processor time"
    return f"{text}{'' if each is None else f', {each:.2f} µs for each'}; {human(found['broker_memory'])} of memory"


_COLUMNS: Final = (
    ("min", "min"), ("median", "median"), ("p75", "75 %"), ("p90", "90 %"), ("p95", "95 %"), ("p99", "99 %"),
    ("p999", "99.9 %"), ("max", "max"), ("mean", "mean"),
)  # fmt: skip


def _latency_lines(latencies: Any, others: int = 0) -> Iterable[str]:
    found = summary(latencies)
    if not found:
        return
    yield ""
    yield f"latency in ms, of {plural(found['latency_count'], 'time')}" + (
        f"; {plural(others, 'message')} of other runs not measured" if others else ""
    )
    yield "".join(f"{title:>9}" for _, title in _COLUMNS)
    yield "".join(f"{found[f'latency_{name}_ms']:>9.3f}" for name, _ in _COLUMNS)
    yield ""
    yield from picture(latencies)


def _problems(load: Load, total: Interval, unconfirmed: int) -> Iterable[str]:
    """What makes a measurement one of something else."""
    if total.refused:
        yield f"the broker has refused {plural(total.refused, 'message')}"
    if unconfirmed:
        yield f"the broker has not confirmed {plural(unconfirmed, 'message')}"
    if total.returned:
        target = f"exchange {load.exchange!r}" if load.exchange else "default exchange"
        yield f"messages to the {target} were unroutable: no queue was bound for their key"


# ---- churn ----


def _churn_command(name: str, kind: str, text: str, *, has_durable: bool = False, has_exchange: bool = False) -> None:
    """Add a scenario of churn."""

    @click.pass_context
    def scenario(context: click.Context, /, **values: Any) -> None:
        context.exit(_churn(kind, name, values))

    options = [
        _BROKER,
        _count("-x", "--clients", default=1, least=1, text="Clients that do it at the same time."),
        _seconds("-z", "--time", "seconds", text=f"How long.  [default: {_CHURN_SECONDS:g}, without --count]"),
        _count("-C", "--count", "limit", least=1, text="How often in all."),
    ]
    if has_durable:
        options.append(click.option("-d", "--durable", is_flag=True, help="The queue is durable."))
    if has_exchange:
        options.append(click.option("-e", "--exchange", default="amq.direct", show_default=True, metavar="NAME",
                                    help="Exchange to which the queue is bound."))  # fmt: skip
    scenario.__doc__ = text
    epilog = examples(f"qstore-perf {name}", f"qstore-perf {name} -x 10 -C 10000 --json")
    command.command(name, epilog=epilog)(_with(*options)(scenario))


for _name, _kind, _text, _more in (
    ("connection-churn", "connection", "Open and close connections, each with a channel.", {}),
    ("channel-churn", "channel", "Open and close channels (sessions of AMQP 0-10 and 1.0).", {}),
    ("queue-churn", "queue", "Declare and delete queues.", {"has_durable": True}),
    ("bind-churn", "binding", "Bind and unbind a queue.", {"has_durable": True, "has_exchange": True}),
    ("consumer-churn", "consumer", "Begin and end consumers.", {"has_durable": True}),
):
    _churn_command(_name, _kind, _text, **_more)


def _churn(kind: str, name: str, values: dict[str, Any]) -> int:
    common = _Common.take(values)
    seconds = values["seconds"]
    if seconds is None and values["limit"] is None:
        seconds = _CHURN_SECONDS

    def report(done: int, took: float) -> None:
        if common.as_json:
            print_json([{"kind": "interval", "operations": done, "elapsed_seconds": round(took, 3)}])
        else:
            click.echo(f"{done / took:>11,.0f}/s")

    counts.raise_file_limit()
    common.process.mark("begin")
    churning = churn.Churn(
        common.broker, exchange=values.get("exchange", "amq.direct"), durable=values.get("durable", False)
    )
    result = churning.run(
        kind, clients=values["clients"], seconds=seconds, limit=values["limit"],
        report=(lambda *_: None) if common.is_quiet else report,
    )  # fmt: skip
    common.process.mark("end")
    rate = result.operations / max(result.seconds, 1e-9)
    found = {
        "kind": name, "operations": result.operations, "elapsed_seconds": round(result.seconds, 3),
        "rate": round(rate, 1), **summary(result.latencies), **common.process.numbers(result.operations),
    }  # fmt: skip
    if common.as_json:
        print_json([found])
    else:
        click.echo(f"{name}: {result.operations:,} in {result.seconds:.1f} s   {rate:,.0f}/s")
        if "broker_memory" in found:
            click.echo(f"broker: {_broker_text(found)}")
        _print(_latency_lines(result.latencies))
    return _ended(result.error, result.interruption)


# ---- counts ----


@command.command("connection-count", epilog=examples(
    "qstore-perf connection-count -x 1000",
    "qstore-perf connection-count -x 5000 --channels 2 --consumers-each 1 --hold 60 --broker-pid 1234",
))  # fmt: skip
@_BROKER
@_count("-x", "--count", "most", default=100, least=1, text="Connections.")
@_count("-c", "--channels", default=1, text="Channels of each connection (sessions of AMQP 0-10 and 1.0).")
@_count("--consumers-each", "consumers", default=0, text="Consumers of each connection, one on a channel at most.")
@click.option("-u", "--queue", default="connection-count", show_default=True, metavar="NAME", help="Their queue.")
@_seconds("--hold", default=0.0, text="How long the connections are kept.")
@click.pass_context
def connection_count(context: click.Context, /, **values: Any) -> None:
    """Open many connections and keep them, and report how fast they are opened, and the broker's memory."""
    common = _Common.take(values)
    if values["consumers"] > values["channels"]:
        raise click.UsageError("there are more consumers than channels of a connection")
    allowed = counts.raise_file_limit()
    if values["most"] + 50 > allowed:
        raise click.UsageError(
            f"{values['most']:,} connections, but only {allowed:,} open files are allowed (ulimit -n)"
        )
    before = common.process.memory()
    if values["consumers"]:
        try:
            throughput.set_up(common.broker, Load(queues=[values["queue"]], queue=Queue("", durable=False)))
        except MessagingError as error:
            context.exit(_ended(error, None))
    connections = counts.Connections(common.broker, values["channels"], values["consumers"], values["queue"])
    shown: dict[str, Any] = {}

    def hold() -> float:
        shown.update(common.process.memory())
        return float(values["hold"])

    result = connections.run(values["most"], _counted(common, "connection"), hold)
    _show_count(common, "connection-count", "connection", result, before, shown)
    context.exit(_ended(result.error, result.interruption))


@command.command("queue-count", epilog=examples(
    "qstore-perf queue-count -n 1000",
    "qstore-perf queue-count -n 10000 --durable --keep-queues --broker-pid 1234",
))  # fmt: skip
@_BROKER
@_count("-n", "--count", "most", default=100, least=1, text="Queues.")
@click.option("-d", "--durable", is_flag=True, help="Durable queues, instead of exclusive ones.")
@click.option(
    "-u", "--queue", default="queue-count", show_default=True, metavar="NAME", help="Beginning of their names."
)
@click.option("--queue-args", type=JsonMap(), default=dict, help="Arguments of the queues.")
@click.option("--keep-queues", "keep", is_flag=True, help="Do not delete durable queues at the end.")
@click.pass_context
def queue_count(context: click.Context, /, **values: Any) -> None:
    """Declare many queues, and report how fast that is, and the broker's memory."""
    common = _Common.take(values)
    durable = values["durable"]
    before = common.process.memory()
    queues = counts.Queues(
        common.broker, Queue(values["queue"], durable=durable, exclusive=not durable, arguments=values["queue_args"])
    )
    loop = Loop()
    try:
        (channel,) = throughput.open_channels(loop, common.broker, 1)
        result = queues.run(loop, channel, values["most"], _counted(common, "queue"))
        _show_count(common, "queue-count", "queue", result, before, common.process.memory())
        close_all(loop, [channel.line], 2.0)
        code = _ended(result.error, None)
        if durable and not values["keep"]:
            try:
                queues.delete()
            except MessagingError as error:
                code = code or _ended(error, None)
        code = _ended(None, result.interruption) or code
    except MessagingError as error:
        code = _ended(error, None)
    finally:
        loop.close()
    context.exit(code)


def _counted(common: _Common, what: str) -> counts.Report:
    def report(made: int, seconds: float) -> None:
        if not common.is_quiet and not common.as_json:
            click.echo(f"{plural(made, what):>20}   the last ones in {seconds * 1000:.0f} ms")

    return report


def _show_count(
    common: _Common, kind: str, what: str, result: counts.CountResult, before: dict[str, Any], after: dict[str, Any]
) -> None:
    rate = result.made / max(result.seconds, 1e-9)
    found: dict[str, Any] = {
        "kind": kind, f"{what}s": result.made, "elapsed_seconds": round(result.seconds, 3), "rate": round(rate, 1),
    }  # fmt: skip
    if before and after:
        grown = after["broker_memory"] - before["broker_memory"]
        found |= {**after, "broker_memory_each": grown // max(result.made, 1)}
    if common.as_json:
        print_json([found])
        return
    click.echo(f"{plural(result.made, what)} in {result.seconds:.1f} s   {rate:,.0f}/s")
    if "broker_memory_each" in found:
        click.echo(f"broker: {human(found['broker_memory'])}, {human(max(0, found['broker_memory_each']))} for each")


def main() -> None:
    """The console script."""
    run(PROGRAM, command)


if __name__ == "__main__":
    main()
