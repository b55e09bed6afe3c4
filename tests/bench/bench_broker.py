"""Throughput of the broker: messages published, consumed and accepted over real sockets, for another process.

    python -m tests.bench.bench_broker [--directory PATH] [--seconds S] [--only TEXT] [--json] [--profile]

Each line is one broker on an empty data directory: 100 bytes or 1 KiB, transient or durable, 1 or 8 queues, a window of
1,000 unconfirmed messages for each publisher. A message counts when it was delivered to a consumer, which accepts all
that it gets; what is durable was synced before. The broker's processor time is told for each message, that of its
helper, which waits for the disk, apart. Beside each figure are two references of the same run: an echo server on the
same event loop that only sends the same bytes back (the generator sends and receives them once), and for durable
messages a bare append of the same bytes with an `fdatasync` every 100 messages.

Latency is the time from sending a durable message to its completion, one at a time: alone, and while another generator
saturates the broker with transient messages; beside it a bare write and `fdatasync`.

Machines are noisy and small: with two processors, the broker, its helper and two generators share them. Read the
ratios. What the generator itself can do, it shows against a server that keeps nothing (`sink`, the first line).
"""

from __future__ import annotations

import os
import platform
import pstats
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final, NamedTuple

import click
import orjson
from rich.console import Console
from rich.table import Table

from tests.support.running_broker import ROOT, RunningBroker

_OPTIONS: Final = ("--num-jfiles", "16", "--jfile-size-pgs", "64")  # 64 MiB a queue: laps come, the threshold does not
_GOALS: Final = {(1024, True, 1): 40_000, (100, False, 1): 55_000}
_OVERHEAD: Final = 100
"""Bytes around a message's body: frames on the wire, a header in the journal."""
_SYNC_EVERY: Final = 100
_PROFILED_LINES: Final = 45


class Scenario(NamedTuple):
    """One line."""

    size: int
    durable: bool
    queues: int

    @property
    def name(self) -> str:
        """As --only looks for it."""
        return (
            f"{'durable' if self.durable else 'transient'} {self.size} B, {self.queues} queue{'s'[: self.queues > 1]}"
        )

    @property
    def options(self) -> list[str]:
        """For the generator."""
        durable = ["--durable"] if self.durable else []
        return ["--queues", str(self.queues), "--size", str(self.size), *durable]


class Row(NamedTuple):
    """The metrics of one scenario; microseconds are processor time for each message."""

    name: str
    messages_a_second: float
    goal: int | None  # what is required
    broker_us: float
    helper_us: float
    generator_us: float
    broker_load: float
    of_echo: float
    of_disk: float | None


class Generator:
    """A load generator in its own process; `result` waits for what it measured."""

    def __init__(self, port: int, seconds: float, pid: int, options: Sequence[str]) -> None:
        command = [sys.executable, "-m", "tests.bench.load_generator", str(port), "--seconds", str(seconds)]
        command += ["--broker-pid", str(pid), *options]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)

    def result(self) -> dict[str, Any]:
        said, _ = self._process.communicate()
        if self._process.returncode:
            raise click.ClickException("the load generator has failed")
        result: dict[str, Any] = orjson.loads(said)
        return result


@contextmanager
def _reference(kind: str) -> Iterator[tuple[int, int]]:
    """A reference server; its port and process id."""
    command = [sys.executable, "-m", "tests.bench.load_reference", kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline()), process.pid
        finally:
            process.kill()


@contextmanager
def _broker(directory: Path, runner: Sequence[str] = ()) -> Iterator[RunningBroker]:
    """A broker on an empty data directory."""
    with tempfile.TemporaryDirectory(prefix="qstore-bench-", dir=directory) as name:
        broker = RunningBroker(Path(name), *_OPTIONS)
        broker.runner = tuple(runner)
        try:
            yield broker.start()
        finally:
            broker.close()


def _rate(result: dict[str, Any]) -> float:
    return float(result["messages"] / result["seconds"])


def _echo_rate(scenario: Scenario, seconds: float) -> float:
    """Messages a second through a server that sends their bytes back."""
    with _reference("echo") as (port, pid):
        return _rate(Generator(port, seconds, pid, ["--echo", *scenario.options]).result())


def _disk_rate(directory: Path, size: int, seconds: float) -> float:
    """Messages a second of bare appends with an `fdatasync` every hundred."""
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        piece = os.urandom((size + _OVERHEAD) * _SYNC_EVERY)
        length = 64 << 20
        os.posix_fallocate(file.fileno(), 0, length)
        os.fsync(file.fileno())
        count, began = 0, time.perf_counter()
        while (took := time.perf_counter() - began) < seconds:
            os.pwrite(file.fileno(), piece, count * len(piece) % (length - len(piece)))
            os.fdatasync(file.fileno())
            count += 1
        return count * _SYNC_EVERY / took


def _measure(scenario: Scenario, directory: Path, seconds: float) -> Row:
    echo = _echo_rate(scenario, min(seconds, 2.0))
    disk = _disk_rate(directory, scenario.size, min(seconds, 2.0)) if scenario.durable else None
    with _broker(directory) as broker:
        result = Generator(broker.port, seconds, broker.pid, scenario.options).result()
    rate = _rate(result)
    broker_us, helper_us, generator_us = (
        result[f"{who}_cpu"] / max(1, result["messages"]) * 1e6 for who in ("broker", "helper", "generator")
    )
    load = result["broker_cpu"] / result["seconds"]
    of_disk = None if disk is None else rate / disk
    goal = _GOALS.get(scenario)
    return Row(scenario.name, rate, goal, broker_us, helper_us, generator_us, load, rate / echo, of_disk)


def _sink(seconds: float) -> float:
    """Messages a second that the generator itself can do."""
    with _reference("sink") as (port, pid):
        return _rate(Generator(port, seconds, pid, []).result())


# ---- latency ----


def _bare_latency(directory: Path, size: int) -> list[float]:
    """Median and 99th percentile of a write and `fdatasync`, in milliseconds."""
    took = []
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        os.posix_fallocate(file.fileno(), 0, 4 << 20)
        os.fsync(file.fileno())
        for number in range(2_000):
            began = time.perf_counter()
            os.pwrite(file.fileno(), os.urandom(size + _OVERHEAD), number * 2048)
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - began) * 1000)
    return [median(took), quantiles(took, n=100)[98]]


def _latency(directory: Path, seconds: float, *, saturated: bool) -> list[float]:
    """Median and 99th percentile from a durable message's sending to its completion, in milliseconds."""
    with _broker(directory) as broker:
        load = Generator(broker.port, seconds + 2.0, broker.pid, ["--size", "100"]) if saturated else None
        time.sleep(2.0 if saturated else 0.0)
        options = ["--latency", "--size", "1024"]
        latencies: list[float] = Generator(broker.port, seconds, broker.pid, options).result()["latencies"]
        if load is not None:
            load.result()
        return latencies


# ---- the report ----


def _show(console: Console, rows: Sequence[Row]) -> None:
    table = Table(title="published, consumed, accepted; broker, helper, generator: µs of processor time each message")
    table.add_column()
    for column in ("messages/s", "goal", "broker", "helper", "generator", "broker load", "of echo", "of disk"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row.name,
            f"{row.messages_a_second:,.0f}",
            "" if row.goal is None else f"{row.goal:,}",
            *(f"{value:.2f}" for value in (row.broker_us, row.helper_us, row.generator_us)),
            f"{row.broker_load:.0%}",
            f"{row.of_echo:.3f}",
            "" if row.of_disk is None else f"{row.of_disk:.2f}",
        )
    console.print(table)


def _profile(console: Console, scenario: Scenario, directory: Path, seconds: float) -> None:
    """Where the broker's time goes."""
    with tempfile.NamedTemporaryFile(suffix=".prof") as file:
        with _broker(directory, ("-m", "cProfile", "-o", file.name)) as broker:
            result = Generator(broker.port, seconds, broker.pid, scenario.options).result()
            broker.stop()
        console.print(f"\n{scenario.name}, profiled: {_rate(result):,.0f} messages/s")
        pstats.Stats(file.name).sort_stats("tottime").print_stats(_PROFILED_LINES)


def _machine() -> str:
    load = ", ".join(f"{each:.2f}" for each in os.getloadavg())
    return f"Python {platform.python_version()}, {os.cpu_count()} processors, load {load}"


@click.command()
@click.option("--directory", type=click.Path(file_okay=False, path_type=Path), default=Path(tempfile.gettempdir()))
@click.option("--seconds", default=5.0, show_default=True, help="How long each line is measured.")
@click.option("--only", default="", help="Lines whose name holds this text, as 'durable 1024 B, 1 queue'.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.option("--profile", is_flag=True, help="Run the broker under cProfile and print what takes longest.")
def main(directory: Path, seconds: float, only: str, as_json: bool, profile: bool) -> None:
    """Print what the broker moves."""
    console = Console(width=140, quiet=as_json)
    console.print(_machine())
    lines = product((100, 1024), (False, True), (1, 8))
    scenarios = [scenario for scenario in map(Scenario._make, lines) if only in scenario.name]
    if profile:
        for scenario in scenarios:
            _profile(console, scenario, directory, seconds)
        return
    sink = _sink(min(seconds, 2.0))
    console.print(f"the generator alone, against a server that keeps nothing: {sink:,.0f} messages/s")
    rows = [_measure(scenario, directory, seconds) for scenario in scenarios]
    _show(console, rows)
    latencies: dict[str, list[float]] = {}
    if only in "latency":
        latencies = {
            "bare write and fdatasync": _bare_latency(directory, 1024),
            "alone": _latency(directory, seconds, saturated=False),
            "under a saturating transient load": _latency(directory, seconds, saturated=True),
        }
    for name, (half, most) in latencies.items():
        console.print(f"latency of a durable message of 1 KiB, {name}: p50 {half:.2f} ms, p99 {most:.2f} ms")
    console.print(_machine())
    if as_json:
        for row in rows:
            print(orjson.dumps(row._asdict()).decode())
        print(orjson.dumps({"generator": sink, "latency": latencies, "machine": _machine()}).decode())


if __name__ == "__main__":
    main()
