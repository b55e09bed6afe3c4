"""How long a durable message takes to its confirm and its delivery, beside one `fdatasync` of the same disk.

    python -m tests.bench.bench_latency [--rate 1000] [--messages 2000] [--rounds 3] [--options "…"] [--json]

One client publishes 1 KiB persistent messages over AMQP 0-9-1 in confirm mode, one at a time or at a rate; alone, or
beside one that consumes and acknowledges each of them. Before each line a file on the same disk is written to and
synced as often, at the same pace: that is what no broker can be faster than. A message counts from when it was due.
The goal is a median of that `fdatasync` and 0.15 ms, with and without a consumer: nothing but its own sync may make a
message wait.

Told are milliseconds: of each round the median and the 99th percentile, and of these the median of all rounds.
"""

from __future__ import annotations

import os
import selectors
import shlex
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import click
import orjson
from rich.console import Console
from rich.table import Table

from tests.bench.basic_frames import ACK, QUEUE, declare, delivery_size, pack_ack, percentiles
from tests.support.basic_peer import BasicPeer
from tests.support.running_broker import RunningBroker

_OPTIONS: Final = ("--num-jfiles", "16", "--jfile-size-pgs", "64")
_SIZE: Final = 1024
_AROUND: Final = 100  # bytes of a record around the body
_RECEIVE: Final = 1 << 16
_GOAL_MS: Final = 0.15
_WARM_UP: Final = 200  # messages
_PATIENCE_SECONDS: Final = 5.0


class Line(NamedTuple):
    """What is measured: messages a second, 0 for one at a time; and whether they are consumed."""

    rate: int
    consumes: bool

    @property
    def name(self) -> str:
        """As the table shows it."""
        return f"{f'{self.rate:,}/s' if self.rate else 'one at a time'}, {'consumed' if self.consumes else 'alone'}"


class Row(NamedTuple):
    """Median and 99th percentile of each; a delivery's are 0 if there is no consumer."""

    sync: list[float]
    confirm: list[float]
    delivery: list[float]


class Client:
    """Publishes, and perhaps consumes.

    Attributes:
        confirms, deliveries: the seconds that each took, in order.
    """

    def __init__(self, port: int, consumes: bool) -> None:
        self._sending = BasicPeer(port)
        declare(self._sending)
        self._sending.call("confirm.select")
        self._taking: BasicPeer | None = None
        if consumes:
            self._taking = BasicPeer(port)
            self._taking.call("basic.qos", prefetch_count=1000)
            self._taking.call("basic.consume", queue=QUEUE, consumer_tag="c")
        self._selector = selectors.SelectSelector()  # others wait for whole milliseconds
        for peer in filter(None, (self._sending, self._taking)):
            peer.socket.setblocking(False)
            self._selector.register(peer.socket, selectors.EVENT_READ, peer)
        self._frames = self._sending.message(QUEUE, b"x" * _SIZE)
        self._stride = delivery_size(_SIZE)
        self._unconfirmed: deque[float] = deque()  # when each was due
        self._undelivered: deque[float] = deque()
        self._left = b""
        self._bytes = 0
        self.confirms: list[float] = []
        self.deliveries: list[float] = []

    def publish(self, due: float) -> None:
        """Publish one message."""
        assert self._sending.socket.send(self._frames) == len(self._frames)
        self._unconfirmed.append(due)
        if self._taking is not None:
            self._undelivered.append(due)

    @property
    def is_done(self) -> bool:
        """Whether all that was published has come through."""
        return not self._unconfirmed and not self._undelivered

    def wait(self, seconds: float) -> None:
        """Take what comes, for a while or until something has come."""
        for key, _ in self._selector.select(seconds):
            data = key.data.socket.recv(_RECEIVE)
            assert data, "the broker has hung up"
            now = time.perf_counter()
            if key.data is self._sending:
                self._confirmed(data, now)
            else:
                self._delivered(data, now)

    def _confirmed(self, data: bytes, now: float) -> None:
        data = self._left + data
        whole = len(data) // ACK.size * ACK.size
        for frame in ACK.iter_unpack(data[:whole]):
            while len(self.confirms) < frame[5]:  # its tag: the broker confirms in order
                self.confirms.append(now - self._unconfirmed.popleft())
        self._left = data[whole:]

    def _delivered(self, data: bytes, now: float) -> None:
        assert self._taking is not None
        self._bytes += len(data)
        while len(self.deliveries) < self._bytes // self._stride:
            self.deliveries.append(now - self._undelivered.popleft())
            self._taking.socket.send(pack_ack(len(self.deliveries), multiple=False))

    def close(self) -> None:
        """Hang up."""
        self._selector.close()
        for peer in filter(None, (self._sending, self._taking)):
            peer.socket.close()


def _paced(rate: int, count: int) -> Iterator[float]:
    """When each of so many messages is due; the first ones are not counted."""
    begin = time.perf_counter()
    for number in range(count + _WARM_UP):
        yield begin + number / rate if rate else time.perf_counter()


def _summary(seconds: list[float]) -> list[float]:
    return [each * 1000 for each in percentiles(seconds[_WARM_UP:])[:2]] if seconds else [0.0, 0.0]


def _sync(directory: Path, rate: int, count: int) -> list[float]:
    """A write and an `fdatasync` for each message, by a process that does nothing else."""
    took = []
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        os.pwrite(file.fileno(), bytes(4 << 20), 0)
        os.fsync(file.fileno())
        piece = os.urandom(_SIZE + _AROUND)
        for number, due in enumerate(_paced(rate, count)):
            time.sleep(max(0.0, due - time.perf_counter()))
            began = time.perf_counter()
            os.pwrite(file.fileno(), piece, number % 2000 * 2048)
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - began)
    return _summary(took)


def _measure(port: int, line: Line, count: int, directory: Path) -> Row:
    sync = _sync(directory, line.rate, count)
    client = Client(port, line.consumes)
    for due in _paced(line.rate, count):
        while (pause := due - time.perf_counter()) > 0.0:
            client.wait(pause)
        client.publish(due)
        while not line.rate and not client.is_done:
            client.wait(_PATIENCE_SECONDS)
    end = time.perf_counter() + _PATIENCE_SECONDS
    while not client.is_done:
        assert time.perf_counter() < end, "messages have not come"
        client.wait(_PATIENCE_SECONDS)
    client.close()
    return Row(sync, _summary(client.confirms), _summary(client.deliveries))


@contextmanager
def _broker(directory: Path, options: str) -> Iterator[RunningBroker]:
    with tempfile.TemporaryDirectory(prefix="qstore-bench-", dir=directory) as name:
        broker = RunningBroker(Path(name), *_OPTIONS, *shlex.split(options))
        try:
            yield broker.start()
        finally:
            broker.close()


def _middle(rows: list[Row]) -> Row:
    return Row(*([median(each) for each in zip(*column, strict=True)] for column in zip(*rows, strict=True)))


def _show(rows: dict[Line, Row]) -> None:
    table = Table(title="milliseconds: median and 99th percentile")
    table.add_column()
    for column in ("fdatasync", "to the confirm", "to the delivery", "over fdatasync", "goal"):
        table.add_column(column, justify="right")
    for line, row in rows.items():
        shown = (f"{each[0]:.3f}  {each[1]:.3f}" if each[0] else "-" for each in row)
        over = max(row.confirm[0], row.delivery[0]) - row.sync[0]
        table.add_row(line.name, *shown, f"{over:.3f}", f"{_GOAL_MS:.3f}")
    Console(width=110).print(table)


@click.command(help=__doc__)
@click.option("--directory", type=click.Path(path_type=Path), default=Path(tempfile.gettempdir()), show_default=True)
@click.option("--rate", default=1000, show_default=True, help="Messages a second.")
@click.option("--messages", default=2000, show_default=True, help="In each line of a round.")
@click.option("--rounds", default=3, show_default=True, help="Each with a new broker.")
@click.option("--options", default="", help="Of the broker.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def main(directory: Path, rate: int, messages: int, rounds: int, options: str, as_json: bool) -> None:
    """Measure."""
    lines = [Line(pace, consumes) for pace in (0, rate) for consumes in (False, True)]
    found: dict[Line, list[Row]] = {line: [] for line in lines}
    for _ in range(rounds):
        with _broker(directory, options) as broker:
            for line in lines:
                found[line].append(_measure(broker.port, line, messages, directory))
    rows = {line: _middle(each) for line, each in found.items()}
    if as_json:
        for line, row in rows.items():
            click.echo(orjson.dumps({"name": line.name, **row._asdict()}))
    else:
        _show(rows)


if __name__ == "__main__":
    main()
