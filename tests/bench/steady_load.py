"""Load for a broker that reports all the time what its clients see: acknowledgements, and their latency.

    python -m tests.bench.steady_load PORT FILE --queues 2 --size 1024 --offered 20000

Publishers and consumers are those of `load_generator`. Every tenth of a second a line is added to FILE, a JSON array:
the monotonic time, how many messages were acknowledged so far, and the milliseconds that each piece of a hundred
messages took from being sent to its acknowledgement since the line before. It ends when it is killed.
"""

from __future__ import annotations

import selectors
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from statistics import quantiles
from typing import BinaryIO, Final, NamedTuple

import click
import orjson

from tests.bench.load_generator import CHUNK, Publisher, connect

_TICK_SECONDS: Final = 0.002
_LINE_SECONDS: Final = 0.1
_MAX_BEHIND: Final = 20 * CHUNK
"""Messages that are sent later if the broker is too slow for what is offered; more are not made up for."""


class Noticed(NamedTuple):
    """What the clients noticed for a while.

    Attributes:
        rate: acknowledged messages a second.
        median, slow, longest: milliseconds to an acknowledgement: of half of the pieces, 99 %, all.
    """

    rate: float
    median: float
    slow: float
    longest: float


def noticed(file: Path, began: float, ended: float) -> Noticed:
    """What a file of lines says about a while."""
    lines = [orjson.loads(line) for line in file.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    chosen = [line for line in lines if began <= line[0] <= ended]
    latencies = sorted(latency for line in chosen[1:] for latency in line[2]) or [0.0, 0.0]
    hundredths = quantiles(latencies, n=100)
    rate = (chosen[-1][1] - chosen[0][1]) / (chosen[-1][0] - chosen[0][0])
    return Noticed(rate, hundredths[49], hundredths[98], latencies[-1])


class _Timed:
    """Times the pieces of one publisher."""

    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher
        self._first = self._seen = publisher.sent
        self._sent: deque[tuple[int, float]] = deque()

    def offer(self, count: float) -> None:
        """So many messages may have been sent since the beginning. More than a few that were not are left out."""
        end = self._first + int(count)
        if end - self.publisher.sent > _MAX_BEHIND:
            self._first -= end - self.publisher.sent - _MAX_BEHIND
        self.publisher.end = self._first + int(count)

    def take(self, now: float) -> Iterable[float]:
        """The milliseconds of the pieces that were acknowledged since the last call."""
        if self.publisher.sent > self._seen:
            self._seen = self.publisher.sent
            self._sent.append((self._seen, now))
        while self._sent and self._sent[0][0] <= self.publisher.completed:
            yield (now - self._sent.popleft()[1]) * 1000


def drive(port: int, file: BinaryIO, queues: int, size: int, offered: int, window: int) -> None:
    """Publish and consume for ever."""
    publishers, consumers = connect(port, queues, size, True, window)
    timed = [_Timed(publisher) for publisher in publishers]
    base = sum(publisher.completed for publisher in publishers)
    selector = selectors.DefaultSelector()
    links = [*publishers, *consumers]
    for link in links:
        link.socket.setblocking(False)
        selector.register(link.socket, selectors.EVENT_READ, link)
    began = said = time.monotonic()
    latencies: list[float] = []
    while True:
        now = time.monotonic()
        for each in timed if offered else ():
            each.offer(offered / queues * (now - began))
        for link in links:
            link.write()
        for each in timed:
            latencies += each.take(now)
        for key, _ in selector.select(_TICK_SECONDS):
            key.data.read()
        if now - said > _LINE_SECONDS:
            completed = sum(publisher.completed for publisher in publishers) - base
            file.write(orjson.dumps([now, completed, latencies]) + b"\n")
            file.flush()
            said, latencies = now, []


@click.command()
@click.argument("port", type=int)
@click.argument("file", type=click.File("wb"))
@click.option("--queues", default=2, show_default=True, help="Durable queues, each with a publisher and a consumer.")
@click.option("--size", default=1024, show_default=True, help="Bytes of a message's body.")
@click.option("--offered", default=0, help="Messages a second, of all publishers; 0 for as many as the broker takes.")
@click.option("--window", default=1000, show_default=True, help="Unconfirmed messages, and the consumers' credit.")
def main(port: int, file: BinaryIO, queues: int, size: int, offered: int, window: int) -> None:
    """Publish and consume until the end."""
    drive(port, file, queues, size, offered, window)


if __name__ == "__main__":
    main()
