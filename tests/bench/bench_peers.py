"""This broker against another one, measured with that one's own client programs.

    python -m tests.bench.bench_peers --clients DIR --peer "COMMAND ..." [--broker "COMMAND ..."] [--rounds N]
                                      [--only TEXT] [--directory PATH] [--json]

DIR contains the programs qpid-perftest, qpid-latency-test, qpid-send and qpid-receive of Qpid C++. COMMAND starts a
broker with its store; it is given `--port 0 --data-dir PATH --auth no`, and has to print its port. Both need journals
that hold what a consumer is behind, such as `--num-jfiles 32 --jfile-size-pgs 64`: a publisher that is refused ends
qpid-perftest only by its time limit. Libraries are found as usual, for example by LD_LIBRARY_PATH.

In each round every row is measured with both brokers, one after the other, each on a new data directory; which one
comes first alternates. The table has the medians, the range of the ratios of each round, and processor time for each
message: that of the broker with its children, which includes the sync helper.

    publish     qpid-perftest: one publisher and one consumer, 1 KiB messages; the publisher's rate
    tx          the same in transactions of 100
    sync        the same, each message confirmed before the next
    latency     qpid-latency-test: 1,000 durable messages a second; mean and maximum of the time from sender to receiver
    restart     100,000 durable messages of 1 KiB, kill -9: from the start of the broker until it prints its port
    receive     qpid-receive of these messages
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import click
import orjson
from rich.console import Console
from rich.table import Table

from tests.support.processes import children_of

_OURS: Final = f"{sys.executable} -m qstore.broker.process.qpidd --load-module store"
_ROOT: Final = Path(__file__).parents[2]
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PATIENCE_SECONDS: Final = 120.0
_BACKLOG: Final = 100_000  # messages of the rows restart and receive
_ADDRESS: Final = (
    "bench; {create: always, node: {durable: True, x-declare: {arguments: "
    "{'qpid.file_count': 64, 'qpid.file_size': 48, 'qpid.max_size': 0, 'qpid.max_count': 0}}}}"
)


class Result(NamedTuple):
    """What one run of a row has measured.

    Attributes:
        value: the row's value, in its unit.
        cpu_us: the broker's processor time for each message in microseconds; None if it is not measured.
        note: a further value, such as a maximum; empty if there is none.
    """

    value: float
    cpu_us: float | None = None
    note: str = ""


class Broker:
    """A running broker.

    Args:
        command: starts it.
        directory: its data directory.
    """

    def __init__(self, command: Sequence[str], directory: Path) -> None:
        began = time.perf_counter()
        self._process = subprocess.Popen(
            [*command, "--port", "0", "--data-dir", str(directory), "--auth", "no"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=_ROOT,
        )
        assert self._process.stdout is not None
        printed = self._process.stdout.readline().strip()
        if not printed.isdigit():
            raise click.ClickException(f"{shlex.join(command)}: printed no port")
        self.seconds = time.perf_counter() - began
        self.port = int(printed)

    def cpu_seconds(self) -> float:
        """Processor time of the broker and its children so far."""
        ticks = 0
        for pid in (self._process.pid, *children_of(self._process.pid)):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / _TICKS

    def peak_mib(self) -> float:
        """The most memory that the broker has had resident."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send the broker a signal that ends it."""
        self._process.send_signal(number)
        self._process.communicate()


class Bench:
    """Measures the rows with one broker.

    Args:
        command: starts the broker.
        clients: the folder of the client programs.
        directory: where data directories are created.
    """

    def __init__(self, command: str, clients: Path, directory: Path) -> None:
        self._command, self._clients, self._directory = shlex.split(command), clients, directory

    @contextmanager
    def _broker(self) -> Iterator[Broker]:
        with tempfile.TemporaryDirectory(prefix="qstore-peers-", dir=self._directory) as name:
            broker = Broker(self._command, Path(name))
            try:
                yield broker
            finally:
                broker.end()

    def _client(self, program: str, *options: str) -> str:
        command = [str(self._clients / program), *options]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            raise click.ClickException(f"{shlex.join(command)}: has not ended in {_PATIENCE_SECONDS:g} s") from None
        if done.returncode:
            raise click.ClickException(f"{program} {shlex.join(options)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def publish(self, count: int, *options: str) -> Result:
        """One row of qpid-perftest."""
        with self._broker() as broker:
            port = ("--broker", "127.0.0.1", "-p", str(broker.port))
            self._client("qpid-perftest", *port, "--count", "1000", "--size", "1024", *options, "-s")  # warm-up
            before = broker.cpu_seconds()
            printed = self._client("qpid-perftest", *port, "--count", str(count), "--size", "1024", *options, "-s")
            return Result(float(printed.split()[0]), (broker.cpu_seconds() - before) / count * 1e6)

    def latency(self, seconds: int) -> Result:
        """The row of qpid-latency-test."""
        with self._broker() as broker:
            options = ("--rate", "1000", "--durable", "yes", "--time", str(seconds), "--csv")
            before = broker.cpu_seconds()
            printed = self._client("qpid-latency-test", "--broker", "127.0.0.1", "-p", str(broker.port), *options)
            cpu = (broker.cpu_seconds() - before) / (1000 * seconds) * 1e6
            _, _, most, mean = printed.split()[-1].split(",")
            return Result(float(mean), cpu, f"max {float(most):.1f}")

    def _backlog(self, directory: Path) -> None:
        broker = Broker(self._command, directory)
        try:
            options = ("--messages", str(_BACKLOG), "--content-size", "1024", "--durable", "yes")
            self._client("qpid-send", "-b", f"127.0.0.1:{broker.port}", "-a", _ADDRESS, *options)
        finally:
            broker.end(signal.SIGKILL)

    def restart(self) -> Result:
        """The row restart."""
        with tempfile.TemporaryDirectory(prefix="qstore-peers-", dir=self._directory) as name:
            self._backlog(Path(name))
            broker = Broker(self._command, Path(name))
            cpu, note = broker.cpu_seconds(), f"{broker.peak_mib():.0f} MiB"
            broker.end()
            return Result(broker.seconds, cpu / _BACKLOG * 1e6, note)

    def receive(self) -> Result:
        """The row receive."""
        with tempfile.TemporaryDirectory(prefix="qstore-peers-", dir=self._directory) as name:
            self._backlog(Path(name))
            broker = Broker(self._command, Path(name))
            try:
                options = ("--messages", str(_BACKLOG), "--print-content", "no")
                before, began = broker.cpu_seconds(), time.perf_counter()
                self._client("qpid-receive", "-b", f"127.0.0.1:{broker.port}", "-a", "bench", *options)
                took = time.perf_counter() - began
                return Result(_BACKLOG / took, (broker.cpu_seconds() - before) / _BACKLOG * 1e6)
            finally:
                broker.end()


class Row(NamedTuple):
    """A row of the table.

    Attributes:
        name: its name.
        unit: of its values.
        goal: the required ratio to the other broker: a minimum for rates, a maximum for times.
        measure: runs it.
    """

    name: str
    unit: str
    goal: str
    measure: Callable[[Bench], Result]


ROWS: Final = (
    Row("publish durable", "messages/s", "≥ 1.5", lambda bench: bench.publish(100_000, "--durable", "yes")),
    Row("publish transient", "messages/s", "≥ 1.2", lambda bench: bench.publish(200_000)),
    Row("tx durable", "messages/s", "≥ 1.2", lambda bench: bench.publish(50_000, "--durable", "yes", "--tx", "100")),
    Row(
        "sync durable", "messages/s", "≥ 1.0",
        lambda bench: bench.publish(5_000, "--durable", "yes", "--sync-publish", "yes"),
    ),
    Row("latency, mean", "ms", "≤ 1.5", lambda bench: bench.latency(4)),
    Row("restart", "s", "≤ 0.7", Bench.restart),
    Row("receive", "messages/s", "≥ 1.5", Bench.receive),
)  # fmt: skip


def _middle(results: Sequence[Result]) -> str:
    """The median of the values, with processor time and note of that run."""
    middle = sorted(results)[len(results) // 2]
    value = median(result.value for result in results)
    cpu = "" if middle.cpu_us is None else f"{middle.cpu_us:.1f} µs"
    more = ", ".join(filter(None, (cpu, middle.note)))
    return f"{value:,.0f}" + f" ({more})" if value >= 100 else f"{value:,.3f} ({more})"


def _show(console: Console, measured: dict[str, list[tuple[Result, Result]]]) -> None:
    table = Table(title="medians; in parentheses the broker's processor time for each message")
    for column in ("", "unit", "peer", "ours", "ours / peer", "goal"):
        table.add_column(column)
    for row in ROWS:
        if pairs := measured.get(row.name):
            ratios = sorted(ours.value / peer.value for ours, peer in pairs)
            ours, peer = _middle([pair[0] for pair in pairs]), _middle([pair[1] for pair in pairs])
            spread = f"{median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
            table.add_row(row.name, row.unit, peer, ours, spread, row.goal)
    console.print(table)


@click.command()
@click.option("--clients", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--peer", required=True, help="Command that starts the other broker.")
@click.option("--broker", default=_OURS, help="Command that starts this broker; the one of this checkout by default.")
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--only", default="", help="Rows whose name contains this text.")
@click.option("--directory", type=click.Path(file_okay=False, path_type=Path), default=Path(tempfile.gettempdir()))
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each run of a row.")
def main(clients: Path, peer: str, broker: str, rounds: int, only: str, directory: Path, as_json: bool) -> None:
    """Measure this broker against another one."""
    console = Console(width=140, quiet=as_json)
    console.print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.2f}")
    benches = Bench(broker, clients, directory), Bench(peer, clients, directory)
    measured: dict[str, list[tuple[Result, Result]]] = {}
    for number in range(rounds):
        for row in ROWS:
            if only not in row.name:
                continue
            pair = [row.measure(each) for each in (benches if number % 2 else benches[::-1])]
            ours, theirs = pair if number % 2 else pair[::-1]
            measured.setdefault(row.name, []).append((ours, theirs))
            console.print(f"round {number + 1}, {row.name}: {ours.value:,.3f}, peer {theirs.value:,.3f}", style="dim")
            if as_json:
                print(orjson.dumps({"row": row.name, "ours": ours._asdict(), "peer": theirs._asdict()}).decode())
    _show(console, measured)
    console.print(f"load {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main()
