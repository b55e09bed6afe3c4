"""Throughput of the broker over AMQP 0-9-1, beside RabbitMQ: durable messages with confirms; and their latency.

    python -m tests.bench.bench_basic [--directory PATH] [--seconds S] [--rounds N] [--json]

One durable queue, 1 KiB persistent messages in confirm mode with a window of 1,000, one publisher, one consumer that
acknowledges (`qstore-perf`, the same for both brokers); and at 1,000 and 10,000 messages a second the time from when a
message was due to its delivery. The processor time is that of the broker with the processes that it has started. Both
brokers are measured in turns, each on an empty data directory of the same file system, so that what the machine does
otherwise counts for both; which one comes first alternates. Told are the medians of the rounds, and of the ratios in
each round, with their range.

RabbitMQ is measured if `rabbitmq-server` is on the machine: it is started as this user on free loopback ports, with its
own data directory, node name and epmd, and stopped by its process id.

RabbitMQ delivers a message while it is written to the disk. qstore does so with `--deliver-before-sync`: it is measured
with and without that option.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import click
import orjson
from rich.console import Console
from rich.table import Table

from tests.support.processes import children_of
from tests.support.running_broker import ROOT, RunningBroker, cpu_seconds

_OPTIONS: Final = ("--num-jfiles", "16", "--jfile-size-pgs", "64")
_RATES: Final = (1_000, 10_000)
_GOAL: Final = 60_000
_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 30.0
_SERVERS: Final = ("/usr/lib/rabbitmq/bin/rabbitmq-server",)  # of Debian: the one on the path changes the user


class Server(NamedTuple):
    """A broker that runs: its port, and the process whose time is taken."""

    port: int
    pid: int


Start = Callable[[Path], AbstractContextManager[Server]]


class Row(NamedTuple):
    """Medians of one broker: messages a second, µs of processor time for each, percentiles at each rate in ms."""

    name: str
    rate: float
    broker_us: float
    latencies: dict[int, list[float]]


@contextmanager
def _qstore(directory: Path, *options: str) -> Iterator[Server]:
    broker = RunningBroker(directory, *_OPTIONS, *options)
    try:
        broker.start()
        yield Server(broker.port, broker.pid)
    finally:
        broker.close()


# ---- RabbitMQ ----


def rabbitmq_server() -> str | None:
    """The program; None if it is not installed."""
    return next((path for path in _SERVERS if os.access(path, os.X_OK)), None) or shutil.which("rabbitmq-server")


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@contextmanager
def _rabbitmq(directory: Path) -> Iterator[Server]:
    program, epmd = rabbitmq_server(), shutil.which("epmd")
    if program is None or epmd is None:
        raise click.ClickException("rabbitmq-server or epmd is not on this machine")
    port, epmd_port, home = _free_port(), str(_free_port()), directory / "home"
    home.mkdir()
    (directory / "plugins").write_text("[].")
    environment = {
        **os.environ,
        "HOME": str(home),
        "ERL_EPMD_PORT": epmd_port,
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"bench{os.getpid()}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(_free_port()),
        "RABBITMQ_MNESIA_BASE": str(directory / "data"),
        "RABBITMQ_LOG_BASE": str(directory / "log"),
        "RABBITMQ_PID_FILE": str(directory / "pid"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
        "RABBITMQ_CONFIG_FILE": str(directory / "none"),
    }
    quiet = subprocess.DEVNULL
    names = subprocess.Popen([epmd, "-port", epmd_port, "-address", "127.0.0.1"], stdout=quiet, stderr=quiet)
    try:
        with (directory / "said").open("wb") as said:
            server = subprocess.Popen([program], env=environment, stdout=said, stderr=said, cwd=directory)
        try:
            _wait_for(port, server, directory / "said")
            yield Server(port, _beam(server.pid))
        finally:
            _stop(server, directory / "pid")
    finally:
        names.kill()
        names.wait()


def _wait_for(port: int, server: subprocess.Popen[bytes], said: Path) -> None:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end and server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise click.ClickException(f"RabbitMQ does not start: {said.read_text(errors='replace')[-2000:]}")


def _beam(pid: int) -> int:
    """The process of Erlang: that of a shell script, or below it the one that has used most."""
    below = [pid]
    for each in below:
        below += children_of(each)
    return max(below, key=cpu_seconds)


def _stop(server: subprocess.Popen[bytes], pid_file: Path) -> None:
    """Stop the node, by the process id that it has written, or that of its script."""
    try:
        os.kill(int(pid_file.read_text()), signal.SIGTERM)
    except (OSError, ValueError):
        server.terminate()
    try:
        server.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.kill(_beam(server.pid), signal.SIGKILL)
        server.kill()
        server.wait()


# ---- measuring ----


def _load(server: Server, scenario: str, seconds: float, *options: str) -> dict[str, Any]:
    command = [
        sys.executable, "-m", "qstore.tools.qstore_perf", scenario, "-b", f"amqp://guest:guest@127.0.0.1:{server.port}",
        "-u", "bench", "--delete-queues", "-p", "-s", "1024", "-c", "1000", "-a", "100", "-P", "1000", "--warm-up", "1",
        "-z", str(seconds), "--broker-pid", str(server.pid), "--processes", "1", "--json", "-q", *options,
    ]  # fmt: skip
    said = subprocess.run(command, stdout=subprocess.PIPE, cwd=ROOT, check=True).stdout
    result: dict[str, Any] = orjson.loads(said)
    return result


def _measure(name: str, start: Start, directory: Path, seconds: float) -> Row:
    with tempfile.TemporaryDirectory(prefix="qstore-bench-", dir=directory) as place, start(Path(place)) as server:
        result = _load(server, "throughput", seconds)
        latencies = {}
        for rate in _RATES:
            found = _load(server, "latency", seconds, "--rate", str(rate))
            latencies[rate] = [found[f"latency_{name}_ms"] for name in ("median", "p99", "p999")]
    microseconds = result["broker_processor_seconds"] / max(1, result["consumed"]) * 1e6
    return Row(name, result["consumed"] / result["elapsed_seconds"], microseconds, latencies)


def _medians(rows: list[Row]) -> Row:
    latencies = {
        rate: [median(values) for values in zip(*(row.latencies[rate] for row in rows), strict=True)] for rate in _RATES
    }
    return Row(rows[0].name, median(row.rate for row in rows), median(row.broker_us for row in rows), latencies)


def _ratio(ours: list[float], theirs: list[float]) -> str:
    """The median of the ratios in each round, and their range."""
    ratios = sorted(own / other for own, other in zip(ours, theirs, strict=True))
    return f"{median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"


def _compare(console: Console, own: list[Row], other: list[Row]) -> None:
    console.print(f"{own[0].name} / {other[0].name}, goals: rate at least 2, p99 at most 1", highlight=False)
    console.print(f"    rate {_ratio([row.rate for row in own], [row.rate for row in other])}")
    for rate in _RATES:
        ours, theirs = ([row.latencies[rate][1] for row in rows] for rows in (own, other))
        console.print(f"    p99 at {rate:,}/s {_ratio(ours, theirs)}")


def _show(console: Console, rows: list[Row]) -> None:
    table = Table(title="1 KiB, durable, confirmed, window 1,000; ms from due to delivered: p50 / p99 / p99.9")
    for column in ("", "messages/s", "µs each", *(f"at {rate:,}/s" for rate in _RATES)):
        table.add_column(column, justify="right")
    for row in rows:
        times = (" / ".join(f"{value:.2f}" for value in row.latencies[rate]) for rate in _RATES)
        table.add_row(row.name, f"{row.rate:,.0f}", f"{row.broker_us:.1f}", *times)
    console.print(table)
    console.print(f"goal {_GOAL:,} messages/s: {rows[0].rate / _GOAL:.2f} of it")


@click.command()
@click.option("--directory", type=click.Path(file_okay=False, path_type=Path), default=Path(tempfile.gettempdir()))
@click.option("--seconds", default=5.0, show_default=True, help="How long each figure is measured.")
@click.option("--rounds", default=1, show_default=True, help="How often, in turns.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def main(directory: Path, seconds: float, rounds: int, as_json: bool) -> None:
    """Print what the broker moves over AMQP 0-9-1."""
    console = Console(width=120, quiet=as_json)
    brokers: dict[str, Start] = {
        "qstore": _qstore,
        "qstore before sync": lambda place: _qstore(place, "--deliver-before-sync", "yes"),
    }
    if rabbitmq_server() is None:
        click.echo("RabbitMQ is not installed (no rabbitmq-server on this machine): only qstore is measured", err=True)
    else:
        brokers["RabbitMQ"] = _rabbitmq
    measured: dict[str, list[Row]] = {name: [] for name in brokers}
    for number in range(rounds):
        for name in brokers if number % 2 == 0 else reversed(brokers):
            measured[name].append(_measure(name, brokers[name], directory, seconds))
    rows = [_medians(each) for each in measured.values()]
    _show(console, rows)
    other = measured.pop("RabbitMQ", [])
    for own in measured.values() if other else ():
        _compare(console, own, other)
    if as_json:
        for row in rows:
            print(orjson.dumps(row._asdict(), option=orjson.OPT_NON_STR_KEYS).decode())


if __name__ == "__main__":
    main()
