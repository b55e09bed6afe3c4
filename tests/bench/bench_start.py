"""Cost of a start until the broker listens, in pairs: of this checkout, and of another one.

    python -m tests.bench.bench_start [--against CHECKOUT] [--only crashed] [--pairs 9] [--checkout build/compiled]

There are four stores, each in a copy for either side, which that side made itself: an empty one, one with many durable
queues that are empty, and one with many waiting messages, which was closed cleanly before each start, or killed. The
sides start in turns, and each begins every other pair. Processor time is that of the broker and its helpers, in
nanoseconds from `/proc/PID/task/*/schedstat`, when it has said its port.

Python writes what it has compiled to a folder of the bench, whatever the environment says: with
PYTHONDONTWRITEBYTECODE every start would compile all modules, which takes twice as long as the rest.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import click

from tests.bench.backlog import fill
from tests.bench.bench_pairs import processor_ns
from tests.support.raw_peer import RawPeer
from tests.support.running_broker import RunningBroker

ROOT: Final = Path(__file__).parents[2]
_PATIENCE_SECONDS: Final = 300.0
_NEED: Final = 3.0
"""Bytes on the disk for each byte of a body, with what its record and the ring's free part take."""
_FILE_BYTES: Final = 16 * 64 << 10


class Start(NamedTuple):
    """Seconds from the start of the process until it listens."""

    processor: float
    wall: float


class Side:
    """One checkout, with a store.

    Args:
        checkout: what is imported from.
        directory: of the data.
        compiled: where Python keeps what it has compiled.
        options: of the broker.
    """

    def __init__(self, checkout: Path, directory: Path, compiled: Path, *options: str) -> None:
        self._broker = RunningBroker(directory, "--mgmt-enable", "yes", *options)
        # -P: not what is in the working directory, but what PYTHONPATH says.
        self._broker.program = (sys.executable, "-P", "-m", "qstore.broker.process.qpidd")
        self._broker.environment = {
            "PYTHONPATH": str(checkout.resolve()),
            "PYTHONPYCACHEPREFIX": str(compiled),
            "PYTHONDONTWRITEBYTECODE": "",
        }

    def make(self, content: Callable[[int], None]) -> None:
        """Put something into the store."""
        self._broker.start()
        content(self._broker.port)
        assert self._broker.stop() == 0, self._broker.log_text()

    def start(self, *, is_killed: bool) -> Start:
        """Start it, and end it again as before the next start."""
        began = time.perf_counter()
        self._broker.launch()
        self._broker.wait_for_port(_PATIENCE_SECONDS)
        took = Start(processor_ns(self._broker.pid) / 1e9, time.perf_counter() - began)
        if is_killed:
            self._broker.kill()
        else:
            assert self._broker.stop() == 0, self._broker.log_text()
        return took

    def close(self) -> None:
        """Kill what is running."""
        self._broker.close()


def _declare(count: int) -> Callable[[int], None]:
    def declare(port: int) -> None:
        with RawPeer(port) as peer:
            for number in range(count):
                peer.declare(f"queue-{number}", durable=True)

    return declare


def _publish(count: int, size: int) -> Callable[[int], None]:
    def publish(port: int) -> None:
        with RawPeer(port) as peer:
            peer.declare("waiting", durable=True)
        fill(port, "waiting", count, size)

    return publish


def _measure(title: str, sides: list[Side], content: Callable[[int], None], pairs: int, *, is_killed: bool) -> None:
    """Print one line."""
    try:
        for side in sides:
            side.make(content)
            side.start(is_killed=is_killed)  # compiles the modules, and leaves the store as the next start finds it
        found: list[list[Start]] = [[] for _ in sides]
        for pair in range(pairs):
            for index in range(len(sides)) if pair % 2 else reversed(range(len(sides))):
                found[index].append(sides[index].start(is_killed=is_killed))
    finally:
        for side in sides:
            side.close()
    parts = []
    for starts in found:
        processor, wall = sorted(each.processor for each in starts), sorted(each.wall for each in starts)
        parts.append(f"{median(processor):.3f} s ({processor[0]:.3f} to {processor[-1]:.3f}; wall {median(wall):.3f})")
    if len(found) > 1:
        ratios = [ours.processor / theirs.processor for ours, theirs in zip(*found, strict=True)]
        parts.append(f"ratio {median(ratios):.2f}")
    print(f"{title}: {', against '.join(parts[:2])}{', ' + parts[2] if len(parts) > 2 else ''}", flush=True)


@click.command()
@click.option("--checkout", type=click.Path(path_type=Path), default=ROOT, help="What is measured.")
@click.option("--against", type=click.Path(path_type=Path), help="Another checkout, in turns with it.")
@click.option("--queues", default=1000, show_default=True, help="Durable queues without messages.")
@click.option("--messages", default=300_000, show_default=True, help="Waiting messages, on one queue.")
@click.option("--size", default=1024, show_default=True, help="Bytes of a body.")
@click.option("--pairs", default=9, show_default=True, help="Starts of each side.")
@click.option("--only", type=click.Choice(["empty", "queues", "clean", "crashed"]), help="One line only.")
@click.option("--directory", type=click.Path(path_type=Path), help="Where the stores are.  [default: TMPDIR]")
def main(
    checkout: Path,
    against: Path | None,
    queues: int,
    messages: int,
    size: int,
    pairs: int,
    only: str | None,
    directory: Path | None,
) -> None:
    """Print the medians of processor time, their ranges, and the medians of wall time."""
    files = max(4, int(messages * size * _NEED / _FILE_BYTES / 16))
    ring = ("--num-jfiles", "16", "--jfile-size-pgs", str(min(32768, 16 * files)), "--default-queue-limit", "0")
    lines: dict[str, tuple[str, Callable[[int], None], tuple[str, ...]]] = {
        "empty": ("an empty store", lambda _port: None, ()),
        "queues": (f"{queues:,} durable queues", _declare(queues), ()),
        "clean": (f"{messages:,} messages of {size} bytes, closed cleanly", _publish(messages, size), ring),
        "crashed": (f"{messages:,} messages of {size} bytes, killed", _publish(messages, size), ring),
    }
    for name, (title, content, options) in lines.items():
        if only not in (None, name):
            continue
        with tempfile.TemporaryDirectory(prefix="qstore-bench-", dir=directory) as made:
            compiled = Path(tempfile.gettempdir()) / "qstore-bench-compiled"
            checkouts = [checkout] if against is None else [checkout, against]
            sides = [
                Side(each, Path(made) / str(number), compiled / str(number), *options)
                for number, each in enumerate(checkouts)
            ]
            _measure(title, sides, content, pairs, is_killed=name == "crashed")


if __name__ == "__main__":
    main()
