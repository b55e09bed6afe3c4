"""Committed transactions a second, and syncs for each: local ones in one and in several queues, and distributed ones.

    python -m tests.bench.bench_transactions [--directory PATH] [--commits N] [--messages N] [--json]

A transaction publishes some messages of 1 KiB (ten by default), to one queue or in turn to two. Each session commits
its next one when the last is completed; a distributed one is prepared and committed in two round trips. Each line is
one broker on an empty data directory, with durable queues, and beside it the rate of the same transactions on transient
ones, and the broker's processor time for a message of both. "client" is that of this process, the only client: while it
is less than the broker's, the broker decides the rate. Syncs are counted in a run of its own, with strace if it is
installed, and with `--sync process`: those of io_uring are no system calls.

Machines are noisy: read the ratios.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import click
import orjson
from rich.console import Console
from rich.table import Table

from qstore.formats.amqp_0_10.frames import FRAME
from qstore.formats.amqp_0_10.structs import BranchId
from tests.support.processes import children_of
from tests.support.raw_peer import RawPeer, transfer_frames
from tests.support.running_broker import RunningBroker, cpu_seconds

_OPTIONS: Final = ("--num-jfiles", "64", "--jfile-size-pgs", "128", "--default-queue-limit", "0")
_SIZE: Final = 1024
_COMPLETED: Final = b"\x02\x0a"


class Scenario(NamedTuple):
    """One line."""

    kind: str
    queues: int
    sessions: int

    @property
    def name(self) -> str:
        """As the table shows it."""
        queues, sessions = (f"{count} {what}{'s'[: count > 1]}" for count, what in zip(self[1:], _THINGS, strict=True))
        return f"{self.kind}, {queues}, {sessions}"


_THINGS: Final = ("queue", "session")
_SCENARIOS: Final = tuple(
    Scenario(kind, queues, sessions)
    for sessions in (1, 32)
    for kind, queues in (("local", 1), ("local", 2), ("distributed", 1), ("distributed", 2))
)


class Row(NamedTuple):
    """The metrics of one scenario."""

    name: str
    commits_a_second: float
    of_transient: float
    broker_us: float  # processor time for each message
    transient_us: float
    client_us: float  # of this process
    syncs: float | None  # for each commit


class Client:
    """One session, and the bytes of its next transaction.

    Args:
        port: of the broker.
        number: of the session.
        scenario: what it does.
        messages: in a transaction.
        durable: whether the queues and messages are.
    """

    def __init__(self, port: int, number: int, scenario: Scenario, messages: int, *, durable: bool) -> None:
        self.peer = RawPeer(port)
        self.number, self.scenario, self.commits = number, scenario, 0
        self._transfers: list[bytes] = []
        for index in range(messages):
            queue = f"queue-{index % scenario.queues}"
            self.peer.declare(queue, durable=durable)
            self._transfers.append(
                transfer_frames(queue, os.urandom(_SIZE), channel=self.peer.channel, delivery_mode=2 if durable else 1)
            )
        self.peer.call("tx.select" if scenario.kind == "local" else "dtx.select")
        self.peer.socket.setblocking(False)
        self._buffer = b""
        self._wanted = 0
        self._is_prepared = False

    def begin(self) -> None:
        """Send a transaction: the commit too, if it is a local one."""
        peer = self.peer
        if self.scenario.kind == "local":
            data = b"".join(self._transfers) + peer.command_frames("tx.commit", sync=True)
            count = len(self._transfers) + 1
        else:
            xid = self._xid
            data = peer.command_frames("dtx.start", xid=xid) + b"".join(self._transfers)
            data += peer.command_frames("dtx.end", xid=xid) + peer.command_frames("dtx.prepare", sync=True, xid=xid)
            count = len(self._transfers) + 3
        self._send(data, count)

    @property
    def _xid(self) -> BranchId:
        return BranchId(1, b"%d" % self.number, b"%d" % self.commits)

    def _send(self, data: bytes, count: int) -> None:
        self.peer.sent += count
        self._wanted = self.peer.sent - 1
        self.peer.socket.setblocking(True)
        self.peer.socket.sendall(data)
        self.peer.socket.setblocking(False)

    def has_read(self) -> bool:
        """Read; whether a transaction is committed now."""
        data = self._buffer + self.peer.socket.recv(1 << 16)
        at, last = 0, -1
        while len(data) - at >= FRAME.size:
            size = int.from_bytes(data[at + 2 : at + 4], "big")
            if len(data) - at < size:
                break
            payload = data[at + FRAME.size : at + size]
            if payload[:2] == _COMPLETED:
                last = int.from_bytes(payload[-4:], "big")
            at += size
        self._buffer = data[at:]
        if last < self._wanted:
            return False
        if self.scenario.kind != "local" and not self._is_prepared:
            self._is_prepared = True
            self._send(self.peer.command_frames("dtx.commit", sync=True, xid=self._xid), 1)
            return False
        self._is_prepared = False
        self.commits += 1
        return True


def _run(port: int, scenario: Scenario, commits: int, messages: int, *, durable: bool) -> float:
    """The seconds that the commits take."""
    clients = [Client(port, number, scenario, messages, durable=durable) for number in range(scenario.sessions)]
    selector = selectors.DefaultSelector()
    for client in clients:
        selector.register(client.peer.socket, selectors.EVENT_READ, client)
    left, begun = commits, 0
    began = time.perf_counter()
    for client in clients:
        client.begin()
        begun += 1
    while left > 0:  # there may be more sessions than commits
        for key, _ in selector.select():
            if key.data.has_read():
                left -= 1
                if begun < commits:
                    begun += 1
                    key.data.begin()
    took = time.perf_counter() - began
    for client in clients:
        client.peer.close()
    return took


@contextmanager
def _broker(directory: Path, *options: str) -> Iterator[RunningBroker]:
    """A broker on an empty data directory, with further options."""
    with tempfile.TemporaryDirectory(prefix="qstore-bench-", dir=directory) as name:
        broker = RunningBroker(Path(name), *_OPTIONS, *options)
        try:
            yield broker.start()
        finally:
            broker.close()


def _syncs(directory: Path, scenario: Scenario, commits: int, messages: int) -> float | None:
    """Syncs for each commit."""
    strace = shutil.which("strace")
    if strace is None:
        return None
    with tempfile.NamedTemporaryFile() as trace, _broker(directory, "--sync", "process") as broker:
        _run(broker.port, scenario, scenario.sessions, messages, durable=True)  # makes the queues
        pids = [option for pid in (broker.pid, *children_of(broker.pid)) for option in ("-p", str(pid))]
        command = [strace, "-f", "-qq", "-e", "trace=fdatasync", "-o", trace.name, *pids]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as tracer:
            time.sleep(0.5)  # until it is attached
            _run(broker.port, scenario, commits, messages, durable=True)
            tracer.send_signal(signal.SIGINT)
        return trace.read().count(b"fdatasync(") / commits


def _measure(directory: Path, scenario: Scenario, commits: int, messages: int) -> Row:
    rates, broker_us, client_us = [], [], 0.0
    for durable in (True, False):
        with _broker(directory) as broker:
            _run(broker.port, scenario, scenario.sessions, messages, durable=durable)
            before, own = cpu_seconds(broker.pid), time.process_time()
            rates.append(commits / _run(broker.port, scenario, commits, messages, durable=durable))
            broker_us.append((cpu_seconds(broker.pid) - before) / commits / messages * 1e6)
            client_us = max(client_us, (time.process_time() - own) / commits / messages * 1e6)
    syncs = _syncs(directory, scenario, commits, messages)
    return Row(scenario.name, rates[0], rates[0] / rates[1], *broker_us, client_us, syncs)


@click.command(help=__doc__)
@click.option("--directory", type=click.Path(path_type=Path), default=Path(tempfile.gettempdir()), show_default=True)
@click.option("--commits", default=2000, show_default=True, help="Of each line.")
@click.option("--messages", default=10, show_default=True, help="In a transaction.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def main(directory: Path, commits: int, messages: int, as_json: bool) -> None:
    """Measure."""
    rows = [_measure(directory, scenario, commits, messages) for scenario in _SCENARIOS]
    if as_json:
        for row in rows:
            click.echo(orjson.dumps(row._asdict()))
        return
    table = Table(title=f"transactions of {messages} durable messages of 1 KiB")
    table.add_column()
    for column in ("commits/s", "of transient", "broker µs/message", "transient µs", "client µs", "syncs/commit"):
        table.add_column(column, justify="right")
    for row in rows:
        syncs = "-" if row.syncs is None else f"{row.syncs:.2f}"
        times = (f"{each:.1f}" for each in (row.broker_us, row.transient_us, row.client_us))
        table.add_row(row.name, f"{row.commits_a_second:,.0f}", f"{row.of_transient:.2f}", *times, syncs)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
