"""`qpid-perftest`: measure the throughput of a broker, compatible with the Qpid project's program, over AMQP 0-10.

It runs in one process, or in several that talk by four queues of the broker:

    sub_ready      each subscriber says "ready"
    pub_start      each publisher waits for "start"
    pub_done       each publisher says how many messages a second it has published
    sub_done       each subscriber says how many it has received
    sub_iteration  each subscriber waits for "next" before another iteration

Exit codes: 0 measured, 1 failed, 2 invalid command line, 130 Ctrl-C.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import click

from qstore import __version__
from qstore.broker.client import Connection, Message, MessagingError, Session
from qstore.tools.console.command import EXIT_FAILED, run, say
from qstore.tools.load import throughput
from qstore.tools.load.channel import Queue, Route, Style
from qstore.tools.load.clients import STAMP
from qstore.tools.load.programs import (
    PROGRAM_SETTINGS,
    BrokerAddress,
    number,
    printed,
    program_options,
    yes_no,
)
from qstore.tools.load.throughput import Load, Result

PROGRAM: Final = "qpid-perftest"
_EXCHANGES: Final = {"shared": "", "fanout": "amq.fanout", "topic": "amq.topic"}
_WINDOW: Final = 1000
_KEPT_SECONDS: Final = 60

_EPILOG: Final = """
\b
Examples:
qpid-perftest --count 100000 --size 1024
qpid-perftest --durable yes --npubs 2 --nsubs 2 --qt 4 --summary
qpid-perftest --mode topic --qt 10 --sub-ack 100
qpid-perftest --setup && (qpid-perftest --subscribe & qpid-perftest --publish & qpid-perftest --control)

\b
One process: none of --setup, --publish, --subscribe and --control. Several: first --setup; then at the same time
--publish (--npubs times), --subscribe (--nsubs times) and --control, all with the same other options.
The summary has four numbers: published and received messages a second, of each client; transfers (both) a second of
all; megabytes a second.

\b
Exit codes: 0 measured, 1 failed, 2 invalid command line.
"""


@dataclass(frozen=True)
class Plan:
    """A test.

    Attributes:
        values: the values of the options.
        address: the broker.
        count: messages of each publisher, adjusted.
        topics: numbers of queues or topics.
    """

    values: dict[str, Any]
    address: BrokerAddress
    count: int
    topics: int

    @property
    def exchange(self) -> str:
        """Where publishers send; empty for the default exchange."""
        return _EXCHANGES[self.values["mode"]]

    @property
    def keys(self) -> list[str]:
        """The names of queues, or topics."""
        return [f"{self.values['base_name']}{each}" for each in range(self.topics)]

    @property
    def publishers(self) -> int:
        """How many there are in all."""
        return int(self.values["npubs"]) * self.topics

    @property
    def subscribers(self) -> int:
        """How many there are in all."""
        return int(self.values["nsubs"]) * self.topics

    @property
    def quota(self) -> int:
        """Messages of each subscriber."""
        values = self.values
        if not values["nsubs"]:
            return 0
        share = values["nsubs"] if values["mode"] == "shared" else 1
        return int(values["npubs"]) * self.count // share

    @property
    def transfers(self) -> int:
        """Messages published and received."""
        return self.publishers * self.count + self.subscribers * self.quota

    def control_queue(self, name: str) -> str:
        """The name of a queue by which processes talk."""
        return f"{self.values['base_name']}_{name}"

    def load(self, publishers: int, subscriptions: Sequence[str], *, processes: int = 0) -> Load:
        """The load of some publishers, spread over queues or topics, and of a subscriber for each queue."""
        values = self.values
        publish_transaction = values["pub_tx"] or values["tx"]
        consume_transaction = values["sub_tx"] or values["tx"]
        window = (1 if values["sync_publish"] else _WINDOW) if values["pub_confirm"] or values["sync_publish"] else 0
        most = max(1, publishers + len(subscriptions))
        return Load(
            publishers=publishers, consumers=len(subscriptions), queues=subscriptions or ("",), is_declared=True,
            routes=[Route(self.exchange, key) for key in self.keys], sizes=(values["size"],),
            style=Style(values["durable"], {f"hdr{each}": f"hdr{each}" for each in range(values["headers"])}),
            is_unique=values["unique_data"], window=window,
            acknowledge=min(values["sub_ack"] or consume_transaction, self.quota), prefetch=0,
            rate=1000 / values["interval_pub"] if values["interval_pub"] else 0.0,
            consumer_rate=1000 / values["interval_sub"] if values["interval_sub"] else 0.0,
            transaction=publish_transaction, consumer_transaction=consume_transaction,
            publish_limit=publishers * self.count if publishers else None, quota=self.quota if subscriptions else 0,
            processes=min(processes or os.cpu_count() or 1, most),
        )  # fmt: skip


# ---- the command ----


@click.command(PROGRAM, epilog=_EPILOG, context_settings=PROGRAM_SETTINGS)
@program_options
@click.option("--setup", is_flag=True, help="Create the queues.")
@click.option("--control", is_flag=True, help="Start the publishers, wait for all, and print the report.")
@click.option("--publish", is_flag=True, help="Publish messages.")
@click.option("--subscribe", is_flag=True, help="Receive messages.")
@click.option(
    "--mode",
    type=click.Choice(tuple(_EXCHANGES)),
    default="shared",
    show_default=True,
    help="shared: --qt queues with --npubs publishers and --nsubs subscribers each; fanout: --npubs and"
    " --nsubs at a fanout exchange; topic: --qt topics with --npubs and --nsubs each.",
)
@number("--npubs", default=1, text="Publishers.")
@number("--count", default=500_000, least=1, text="Messages of each publisher.")
@number("--size", default=1024, text="Size of the messages, in bytes.")
@number("--headers", text="Headers of each message.")
@yes_no("--pub-confirm", default=True, text="Publishers wait until their messages are confirmed.")
@yes_no("--durable", text="Durable messages, and queues.")
@yes_no("--unique-data", text="Each message begins with its number.")
@yes_no("--sync-publish", text="Publish a message when the one before is confirmed.")
@number("--nsubs", default=1, text="Subscribers.")
@number("--sub-ack", text="Subscribers acknowledge N messages at once; 0: none.")
@number("--qt", default=1, least=1, text="Queues or topics.")
@number("--iterations", default=1, least=1, text="How often the test is done.")
@click.option("-s", "--summary", is_flag=True, help="One line of numbers.")
@number("--queue-max-count", "--queue_max_count", text="Limit of the queues, in messages; 0 for none.")
@number("--queue-max-size", "--queue_max_size", text="Limit of the queues, in bytes; 0 for none.")
@click.option(
    "--base-name",
    default="qpid-perftest",
    show_default=True,
    metavar="NAME",
    help="Beginning of the names of queues or topics.",
)
@yes_no("--queue-durable", text="Durable queues, also for messages that are not.")
@number("--interval-sub", "--interval_sub", text="Milliseconds between two messages that are received.")
@number("--interval-pub", "--interval_pub", text="Milliseconds between two messages that are published.")
@number("--tx", text="Publish and receive in transactions of N messages; 0 for none.")
@number("--pub-tx", text="Publish in transactions of N messages; 0: as --tx.")
@number("--sub-tx", text="Receive in transactions of N messages; 0: as --tx.")
@click.version_option(__version__, prog_name=PROGRAM)
@click.pass_context
def command(context: click.Context, /, **values: Any) -> None:
    """Measure how many messages a second a broker takes and delivers."""
    plan = _plan(values)
    steps = [name for name in ("setup", "publish", "subscribe", "control") if values[name]]
    try:
        if not steps:
            _single_process(plan)
        elif len(steps) > 1 and steps != ["setup", "control"]:
            raise click.UsageError("give one of --setup, --publish, --subscribe and --control to each process")
        for step in steps:
            _STEPS[step](plan)
    except MessagingError as error:
        say(PROGRAM, str(error))
        context.exit(EXIT_FAILED)


def _plan(values: dict[str, Any]) -> Plan:
    address = BrokerAddress.take(values)
    if not values["npubs"] and not values["nsubs"]:
        raise click.UsageError("there is neither a publisher nor a subscriber")
    if values["nsubs"] and not values["npubs"]:
        raise click.UsageError("--nsubs needs --npubs: subscribers share what is published")
    if values["unique_data"] and values["size"] < STAMP.size:
        raise click.UsageError(f"--unique-data needs messages of {STAMP.size} bytes or more")
    count, topics = values["count"], values["qt"]
    if values["mode"] == "shared" and values["nsubs"] and count % values["nsubs"]:
        count += values["nsubs"] - count % values["nsubs"]
        say(PROGRAM, f"--count is {count}, the next multiple of --nsubs")
    if values["mode"] == "fanout" and topics != 1:
        say(PROGRAM, "--qt has no meaning in the mode fanout")
        topics = 1
    return Plan(values, address, count, topics)


# ---- queues ----


def _set_up(plan: Plan) -> None:
    """Create the queues, and empty them."""
    values = plan.values
    limits = {"qpid.max_count": values["queue_max_count"], "qpid.max_size": values["queue_max_size"]}
    settings = {name: limit for name, limit in limits.items() if limit}
    queues = [Queue(plan.control_queue(name), durable=False)
              for name in ("pub_start", "pub_done", "sub_ready", "sub_done", "sub_iteration")]  # fmt: skip
    if values["mode"] == "shared":
        durable = values["durable"] or values["queue_durable"]
        queues += [Queue(key, durable=durable, arguments=settings) for key in plan.keys]
    with throughput.one_channel(plan.address.load_broker()) as (loop, channel):
        for queue in queues:
            throughput.call(loop, f"the queue {queue.name!r}", channel.declare_queue, queue)
            throughput.call(loop, f"the queue {queue.name!r}", channel.purge_queue, queue.name)


@contextmanager
def _subscriptions(plan: Plan, each: int) -> Iterator[list[str]]:
    """The queues that so many subscribers of each queue or topic read."""
    if plan.values["mode"] == "shared":
        yield [key for key in plan.keys for _ in range(each)]
        return
    names = {f"{key}_{uuid.uuid4()}": key for key in plan.keys for _ in range(each)}
    with throughput.one_channel(plan.address.load_broker()) as (loop, channel):
        for name, key in names.items():
            queue = Queue(name, plan.values["durable"], auto_delete=True,
                          arguments={"qpid.auto_delete_timeout": _KEPT_SECONDS})  # fmt: skip
            throughput.call(loop, "a queue", channel.declare_queue, queue)
            throughput.call(loop, "a binding", channel.bind, name, plan.exchange, key)
    try:
        yield list(names)
    finally:
        throughput.delete_queues(plan.address.load_broker(), list(names))


# ---- one process ----


def _single_process(plan: Plan) -> None:
    report = Report(plan)
    _set_up(plan)
    with _subscriptions(plan, plan.values["nsubs"]) as subscriptions:
        load = plan.load(plan.publishers, subscriptions)
        for _ in range(plan.values["iterations"]):
            result = _measure(plan, load)
            publish_rates = [plan.count / seconds for seconds in result.publisher_seconds]
            subscribe_rates = [plan.quota / seconds for seconds in result.consumer_seconds]
            report.add(publish_rates, subscribe_rates, max(*result.publisher_seconds, *result.consumer_seconds, 0.0))
    report.end()


def _measure(plan: Plan, load: Load) -> Result:
    """Do one iteration. Raises MessagingError: it has not come to its end."""
    result = throughput.run(plan.address.load_broker(), load)
    if result.interruption is not None:
        raise result.interruption
    if result.error is not None:
        raise result.error
    total = result.total
    if total is not None and total.refused:
        raise MessagingError(f"the broker has refused {total.refused:,} messages")
    if len(result.publisher_seconds) < load.publishers or len(result.consumer_seconds) < load.consumers:
        raise MessagingError("the test has ended before all messages were published and received")
    return result


# ---- several processes ----


@contextmanager
def _control(plan: Plan) -> Iterator[tuple[Connection, Session]]:
    connection = plan.address.connect()
    try:
        yield connection, connection.session()
        connection.close()
    except BaseException:
        connection.close(0)
        raise


def _say(session: Session, queue: str, text: str, times: int = 1) -> None:
    sender = session.sender(queue)
    for _ in range(times):
        sender.send(Message(text))
    sender.close()


def _hear(session: Session, queue: str, times: int) -> Iterator[str]:
    """What others say, so many of them."""
    receiver = session.receiver(queue)
    for _ in range(times):
        message = receiver.fetch()
        session.acknowledge()
        yield str(message.content)
    receiver.close()


def _expect(heard: Iterator[str], expected: str) -> None:
    for text in heard:
        if text != expected:
            raise MessagingError(f"another process has said {text!r} instead of {expected!r}")


def _publish(plan: Plan) -> None:
    """A publisher for each queue or topic."""
    load = plan.load(plan.topics, (), processes=1)
    with _control(plan) as (_, session):
        for _ in range(plan.values["iterations"]):
            _expect(_hear(session, plan.control_queue("pub_start"), plan.topics), "start")
            result = _measure(plan, load)
            for seconds in result.publisher_seconds:
                _say(session, plan.control_queue("pub_done"), printed(plan.count / seconds))


def _subscribe(plan: Plan) -> None:
    """A subscriber for each queue or topic."""
    with _control(plan) as (_, session), _subscriptions(plan, 1) as subscriptions:
        load = plan.load(0, subscriptions, processes=1)
        for iteration in range(plan.values["iterations"]):
            if iteration:
                _expect(_hear(session, plan.control_queue("sub_iteration"), plan.topics), "next")
            else:
                _say(session, plan.control_queue("sub_ready"), "ready", plan.topics)
            result = _measure(plan, load)
            for seconds in result.consumer_seconds:
                _say(session, plan.control_queue("sub_done"), printed(plan.quota / seconds))


def _control_all(plan: Plan) -> None:
    """Start all, and print the report."""
    is_short = plan.values["summary"]
    report = Report(plan)

    def heard(session: Session, name: str, times: int) -> list[str]:
        queue = plan.control_queue(name)
        if not is_short:
            click.echo(f"Processing {times} messages from {queue} ", nl=False)
        found = []
        for text in _hear(session, queue, times):
            found.append(text)
            if not is_short:
                click.echo(".", nl=False)
                sys.stdout.flush()
        if not is_short:
            click.echo(" done.")
        return found

    def say_all(session: Session, name: str, text: str, times: int) -> None:
        queue = plan.control_queue(name)
        if not is_short:
            click.echo(f"Sending {text} {times} times to {queue}")
        _say(session, queue, text, times)

    with _control(plan) as (_, session):
        _expect(iter(heard(session, "sub_ready", plan.subscribers)), "ready")
        for iteration in range(plan.values["iterations"]):
            began = time.monotonic()
            say_all(session, "pub_start", "start", plan.publishers)
            if iteration:
                say_all(session, "sub_iteration", "next", plan.subscribers)
            publish_rates = _rates(heard(session, "pub_done", plan.publishers))
            subscribe_rates = _rates(heard(session, "sub_done", plan.subscribers))
            report.add(publish_rates, subscribe_rates, time.monotonic() - began)
    report.end()


def _rates(texts: Sequence[str]) -> list[float]:
    try:
        return [float(text) for text in texts]
    except ValueError:
        raise MessagingError(f"a process has reported {texts!r} instead of rates") from None


_STEPS: Final = {"setup": _set_up, "publish": _publish, "subscribe": _subscribe, "control": _control_all}


# ---- the report ----


class Report:
    """Prints the iterations, and their averages at the end."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._rows: list[tuple[float, float, float, float]] = []

    def add(self, publish_rates: Sequence[float], subscribe_rates: Sequence[float], seconds: float) -> None:
        """Print an iteration."""
        plan, size = self._plan, self._plan.values["size"]
        transfer_rate = plan.transfers / max(seconds, 1e-9)
        megabytes = transfer_rate * size / (1 << 20)
        row = (_mean(publish_rates), _mean(subscribe_rates), transfer_rate, megabytes)
        self._rows.append(row)
        if plan.values["summary"]:
            click.echo("\t".join(map(printed, row)))
        else:
            click.echo(f"\nTotal {plan.transfers} transfers of {size} bytes in {printed(seconds)} seconds.")
            for title, rates in (("Publish transfers/sec:    ", publish_rates),
                                 ("Subscribe transfers/sec:  ", subscribe_rates)):  # fmt: skip
                click.echo(f"\n{title}")
                for rate in rates:
                    click.echo(printed(rate))
                click.echo(f"Average: {printed(_mean(rates))}{_deviation(rates)}")
            click.echo(f"\nTotal transfers/sec:      {printed(transfer_rate)}")
            click.echo(f"Total Mbytes/sec: {printed(megabytes)}")
        sys.stdout.flush()

    def end(self) -> None:
        """Print the averages, if there were several iterations."""
        if len(self._rows) > 1:
            click.echo("Averages: ")
            click.echo("\t".join(printed(statistics.fmean(column)) for column in zip(*self._rows, strict=True)))


def _mean(rates: Sequence[float]) -> float:
    return statistics.fmean(rates) if rates else 0.0


def _deviation(rates: Sequence[float]) -> str:
    return f" (std.dev. {printed(statistics.stdev(rates))})" if len(rates) > 1 else ""


def main() -> None:
    """The console script."""
    run(PROGRAM, command)


if __name__ == "__main__":
    main()
