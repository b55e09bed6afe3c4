"""Two brokers that differ in options, in pairs: processor time for each message of one, and of the other.

    python -m tests.bench.bench_pairs [--options "--mgmt-enable yes"] [--against "--mgmt-enable no"]

Both brokers run at the same time; a burst of messages goes through one, then through the other, and the next pair
begins with the other. A message of a burst is published, confirmed, consumed and accepted. The kernel counts the
processor time of a broker and its helper in nanoseconds (`/proc/PID/task/*/schedstat`), so that bursts can be short:
what else the machine does then hits both. Between rounds the brokers are started again, since processes of the same
program differ by some percent.

The figure is the median over all pairs, with an interval that contains the true median with 95 % probability whatever
the distribution (binomial order statistics), and the medians of the rounds.
"""

from __future__ import annotations

import os
import platform
import selectors
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import comb
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import click

from tests.bench.load_generator import CHUNK, Consumer, Publisher, connect
from tests.support.processes import children_of
from tests.support.running_broker import RunningBroker

_FIXED: Final = ("--num-jfiles", "16", "--jfile-size-pgs", "64")
_WARM_UP: Final = 3  # bursts
_TICK_SECONDS: Final = 0.002


class Load(NamedTuple):
    """What a burst is."""

    size: int
    durable: bool
    messages: int
    window: int


class Estimate(NamedTuple):
    """A median, and its 95 % interval."""

    median: float
    low: float
    high: float


def estimate(values: Sequence[float]) -> Estimate:
    """The median of the population that the values are from."""
    ordered, count = sorted(values), len(values)
    below, rank = 0.0, 0  # the probability that so many, or fewer, are below the median
    while below + comb(count, rank) / 2**count <= 0.025:
        below += comb(count, rank) / 2**count
        rank += 1
    at = max(rank - 1, 0)
    return Estimate(median(ordered), ordered[at], ordered[count - 1 - at])


def processor_ns(pid: int) -> int:
    """Processor time of a broker and what it has started, in nanoseconds."""
    total = 0
    for each in (pid, *children_of(pid)):
        for task in Path(f"/proc/{each}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
    return total


class Side:
    """One broker, with a publisher and a consumer."""

    def __init__(self, broker: RunningBroker, load: Load) -> None:
        self._broker, self._load = broker, load
        publishers, consumers = connect(broker.port, 1, load.size, load.durable, load.window)
        self._publisher: Publisher = publishers[0]
        self._consumer: Consumer = consumers[0]
        self._selector = selectors.DefaultSelector()
        for link in (self._publisher, self._consumer):
            link.socket.setblocking(False)
            self._selector.register(link.socket, selectors.EVENT_READ, link)

    def burst(self) -> float:
        """Send a burst, and wait until all of it was confirmed and consumed. Microseconds for each message."""
        publisher, consumer = self._publisher, self._consumer
        before, wanted = processor_ns(self._broker.pid), consumer.count + self._load.messages
        publisher.end = publisher.sent + self._load.messages
        while consumer.count < wanted or publisher.completed < publisher.end:
            publisher.write()
            consumer.write()
            for key, _ in self._selector.select(_TICK_SECONDS):
                key.data.read()
        consumer.write()
        return (processor_ns(self._broker.pid) - before) / 1000 / self._load.messages


@contextmanager
def sides(directory: Path, options: Sequence[Sequence[str]], load: Load) -> Iterator[list[Side]]:
    """Brokers on empty data directories, warmed up."""
    with ExitStack() as opened:
        found = []
        for each in options:
            name = opened.enter_context(tempfile.TemporaryDirectory(prefix="qstore-bench-", dir=directory))
            broker = RunningBroker(Path(name), *_FIXED, *each)
            opened.callback(broker.close)
            found.append(Side(broker.start(), load))
        for _ in range(_WARM_UP):
            for side in found:
                side.burst()
        yield found


def one_round(both: Sequence[Side], pairs: int) -> list[tuple[float, float]]:
    """Pairs of bursts: microseconds for each message, of the first side and of the second."""
    first, second = both
    found = []
    for number in range(pairs):
        if number % 2:
            of_second = second.burst()
            found.append((first.burst(), of_second))
        else:
            found.append((first.burst(), second.burst()))
    return found


@click.command()
@click.option("--options", default="--mgmt-enable yes", show_default=True, help="Of the one broker.")
@click.option("--against", default="--mgmt-enable no", show_default=True, help="Of the other one.")
@click.option("--size", default=100, show_default=True, help="Bytes of a message's body.")
@click.option("--durable", is_flag=True, help="Durable queues and messages.")
@click.option("--messages", default=20_000, show_default=True, help="In one burst.")
@click.option("--window", default=1000, show_default=True, help="Unconfirmed messages, and the consumer's credit.")
@click.option("--pairs", default=20, show_default=True, help="In one round.")
@click.option("--rounds", default=4, show_default=True, help="Each with new brokers.")
@click.option("--directory", type=click.Path(file_okay=False, path_type=Path), default=Path(tempfile.gettempdir()))
def main(
    options: str,
    against: str,
    size: int,
    durable: bool,
    messages: int,
    window: int,
    pairs: int,
    rounds: int,
    directory: Path,
) -> None:
    """Print the ratio of processor time for each message: --options to --against."""
    load = Load(size, durable, messages // CHUNK * CHUNK, window)
    each_round = []
    for _ in range(rounds):
        with sides(directory, (shlex.split(options), shlex.split(against)), load) as both:
            each_round.append(one_round(both, pairs))
    of_rounds = [median(one / other for one, other in found) for found in each_round]
    found = [pair for each in each_round for pair in each]
    ratio = estimate([one / other for one, other in found])
    print(
        f"{'durable' if durable else 'transient'} {size} B, {len(found)} pairs of {load.messages:,} messages, "
        f"Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}"
    )
    print(f"  {options}: {median(one for one, _ in found):.3f} us a message")
    print(f"  {against}: {median(other for _, other in found):.3f} us a message")
    print(f"  ratio {ratio.median:.4f} ({ratio.low:.4f} to {ratio.high:.4f})")
    print(f"  by round: {', '.join(f'{each:.4f}' for each in of_rounds)}")


if __name__ == "__main__":
    main()
