"""Cost of small durable messages whose publishers wait for each confirm, of this checkout and another one, in turns.

    python -m tests.bench.bench_confirms [--against CHECKOUT] [--seconds S] [--rounds N] [LOAD ...]

    alone        one publisher sends the next message when it has its confirm
    alone-20     twenty do, to one queue
    queues-20    twenty do, each to a queue of its own
    consumed     as `alone`, and another client takes the messages and acknowledges each
    paced        one publisher sends 1,000 messages a second
    paced-taken  likewise, and another client takes and acknowledges them

The clients speak AMQP 0-9-1 and do as little as they can: their frames are made before. Told are messages a second,
microseconds of the broker's processor time for each, with all its threads and what it has started, and how long a
message took to its confirm: median and 99th percentile, in microseconds; medians of the rounds. Each round has an empty
data directory. A checkout may be a compiled one (`.ci/compiled`).
"""

from __future__ import annotations

import selectors
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import click

from tests.bench.basic_frames import ACK, QUEUE, delivery_size, pack_ack, percentiles
from tests.bench.bench_pairs import processor_ns
from tests.support.basic_peer import BasicPeer
from tests.support.forked import ROOT
from tests.support.running_broker import RunningBroker

_BODY: Final = b"x" * 16
_RECEIVE: Final = 1 << 16
_RATE: Final = 1000  # messages a second
_WARM_UP: Final = 0.5  # seconds
_PATIENCE_SECONDS: Final = 30.0


class Load(NamedTuple):
    """Clients: how many publish, whether one consumes, and messages a second of each; 0 for one after the other.

    All publish to one queue, unless they have `own_queues`.
    """

    publishers: int
    consumes: bool = False
    rate: int = 0
    own_queues: bool = False


LOADS: Final = {
    "alone": Load(1),
    "alone-20": Load(20),
    "queues-20": Load(20, own_queues=True),
    "consumed": Load(1, consumes=True),
    "paced": Load(1, rate=_RATE),
    "paced-taken": Load(1, consumes=True, rate=_RATE),
}


class Publisher:
    """Publishes on a connection in confirm mode.

    Attributes:
        took: the seconds from when each message was due to its confirm.
    """

    def __init__(self, port: int, queue: str = QUEUE) -> None:
        self.peer = BasicPeer(port)
        self.peer.call("confirm.select")
        self.peer.call("queue.declare", queue=queue, durable=True)
        self._frames = self.peer.message(queue, _BODY)
        self._unconfirmed: deque[float] = deque()  # when each was due
        self.took: list[float] = []

    def publish(self, due: float) -> None:
        """Publish one message."""
        assert self.peer.socket.send(self._frames) == len(self._frames)
        self._unconfirmed.append(due)

    def read(self) -> None:
        """Take the confirms that are there: whole frames, since each is sent with one call."""
        data = self.peer.socket.recv(_RECEIVE)
        now = time.perf_counter()
        assert data, "the broker has hung up"
        for frame in ACK.iter_unpack(data):
            while len(self.took) < frame[5]:  # its tag: the broker confirms in order
                self.took.append(now - self._unconfirmed.popleft())

    @property
    def is_done(self) -> bool:
        """Whether all is confirmed."""
        return not self._unconfirmed


class Consumer:
    """Takes messages and acknowledges each."""

    def __init__(self, port: int) -> None:
        self.peer = BasicPeer(port)
        self.peer.call("basic.qos", prefetch_count=1000)
        self.peer.call("basic.consume", queue=QUEUE, consumer_tag="c")
        self._stride, self._bytes, self._count = delivery_size(len(_BODY)), 0, 0

    def read(self) -> None:
        """Take the deliveries that are there."""
        data = self.peer.socket.recv(_RECEIVE)
        assert data, "the broker has hung up"
        self._bytes += len(data)
        while self._count < self._bytes // self._stride:
            self._count += 1
            self.peer.socket.send(pack_ack(self._count, multiple=False))


class Clients:
    """The clients of a load, which share one thread."""

    def __init__(self, port: int, load: Load) -> None:
        self._load, self._until = load, 0.0
        self.publishers = [
            Publisher(port, f"{QUEUE}-{number}" if load.own_queues else QUEUE) for number in range(load.publishers)
        ]
        self._all: list[Publisher | Consumer] = [*self.publishers, *([Consumer(port)] if load.consumes else [])]
        self._selector = selectors.SelectSelector()  # others wait for whole milliseconds
        for client in self._all:
            self._selector.register(client.peer.socket, selectors.EVENT_READ, client)

    def run(self, seconds: float) -> None:
        """Publish for a while, and wait for the last confirms."""
        begin = time.perf_counter()
        if self._load.rate:
            for number in range(int(seconds * self._load.rate)):
                due = begin + number / self._load.rate
                while (pause := due - time.perf_counter()) > 0.0:
                    self._turn(pause)
                self.publishers[0].publish(due)
        else:
            for publisher in self.publishers:
                publisher.publish(begin)
            self._until = begin + seconds
        end = begin + seconds + _PATIENCE_SECONDS
        while not all(publisher.is_done for publisher in self.publishers):
            assert time.perf_counter() < end, "confirms have not come"
            self._turn(_PATIENCE_SECONDS)

    def _turn(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            client = key.data
            assert isinstance(client, Publisher | Consumer)
            client.read()
            if isinstance(client, Publisher) and client.is_done and (now := time.perf_counter()) < self._until:
                client.publish(now)

    def close(self) -> None:
        """Hang up."""
        self._selector.close()
        for client in self._all:
            client.peer.socket.close()


class Measured(NamedTuple):
    """Messages a second; microseconds: of processor time a message, and median and 99th percentile to its confirm."""

    rate: float
    cpu: float
    median: float
    slow: float


def measure(broker: RunningBroker, load: Load, seconds: float) -> Measured:
    """Run a load on a broker that was just started."""
    clients = Clients(broker.port, load)
    clients.run(_WARM_UP)
    before = [len(publisher.took) for publisher in clients.publishers]
    began, cpu = time.perf_counter(), processor_ns(broker.pid)
    clients.run(seconds)
    lasted, cpu = time.perf_counter() - began, processor_ns(broker.pid) - cpu
    took = [
        each for publisher, skipped in zip(clients.publishers, before, strict=True) for each in publisher.took[skipped:]
    ]
    clients.close()
    middle, slow, _ = percentiles(took)
    return Measured(len(took) / lasted, cpu / 1000 / len(took), middle * 1e6, slow * 1e6)


def one_round(checkout: Path, load: Load, seconds: float, options: Sequence[str], directory: Path | None) -> Measured:
    """Measure a load on a new broker of a checkout."""
    with tempfile.TemporaryDirectory(dir=directory, prefix="qstore-bench-") as name:
        broker = RunningBroker(Path(name), *options)
        broker.runner, broker.environment = ("-P",), {"PYTHONPATH": str(checkout)}
        try:
            return measure(broker.start(), load, seconds)
        finally:
            broker.close()


@click.command(help=__doc__)
@click.argument("loads", nargs=-1, type=click.Choice(list(LOADS)))
@click.option("--against", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Another checkout.")
@click.option("--seconds", default=3.0, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--options", default="", help="Options of the brokers.")
@click.option("--directory", type=click.Path(exists=True, file_okay=False, path_type=Path), help="For the stores.")
def main(
    loads: tuple[str, ...], against: Path | None, seconds: float, rounds: int, options: str, directory: Path | None
) -> None:
    """Measure the brokers of this checkout and another one in turns."""
    checkouts = [ROOT] if against is None else [against.resolve(), ROOT]
    for name in loads or LOADS:
        results: dict[Path, list[Measured]] = {checkout: [] for checkout in checkouts}
        for number in range(rounds):
            for checkout in checkouts if number % 2 else reversed(checkouts):
                results[checkout].append(one_round(checkout, LOADS[name], seconds, options.split(), directory))
        reported = []
        for checkout in checkouts:
            rate, cpu, middle, slow = (median(values) for values in zip(*results[checkout], strict=True))
            reported.append(f"{rate:7,.0f}/s {cpu:7,.1f} µs, {middle:6,.0f} {slow:6,.0f} µs")
        click.echo(f"{name:12s} {'   now '.join(reported)}")


if __name__ == "__main__":
    main()
