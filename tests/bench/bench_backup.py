"""How fast `qstore-backup` is against a plain copy, in how much memory; and what a broker notices of it.

    python -m tests.bench.bench_backup copy [--gib 1.5] [--rounds 3]
    python -m tests.bench.bench_backup load [--gib 1.5] [--rounds 3] [--offered 20000] [--option=--full-speed]
    python -m tests.bench.bench_backup hold [--queues 1000]

`copy` backs up a stopped store to a new repository. The reference reads every file and writes and syncs as many bytes,
in pieces of 1 MiB. Bodies are half random bytes, half the same text. The page cache holds the source for both.
`load` has publishers and consumers work as fast as they can, or at a rate (--offered), and compares what is
acknowledged during a full backup with what is before and after it; and how long that takes.
`hold` publishes one message after the other to one of many queues, and looks for the longest time to a completion while
snapshots are taken and released, without copying anything; and what each costs. Declaring the queues takes the longest.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import click

from qstore.broker.client import Connection, Message
from qstore.broker.management.console import Console
from qstore.formats.rhm.geometry import Geometry
from qstore.store.environment import tool_environment
from tests.bench.bench_recover import copy_bytes
from tests.bench.steady_load import Noticed, noticed
from tests.support.opened_store import OpenedStore
from tests.support.processes import children_of
from tests.support.running_broker import RunningBroker, cpu_seconds

ROOT: Final = Path(__file__).parents[2]
_BODY: Final = 16 << 10
_HOLD_SECONDS: Final = 10.0
_WARM_UP_SECONDS: Final = 2.0
_LINE_SECONDS: Final = 0.2  # until the load's next line is there
_MAX_PAUSE_SECONDS: Final = 10.0
_FILE_PAGES: Final = 1024  # 64 MiB
_RUNNER: Final = """
import atexit, sys
def tell():
    with open("/proc/self/status") as status:
        print(*(line.split()[1] for line in status if line.startswith("VmHWM")), file=sys.stderr)
atexit.register(tell)
from qstore.tools.qstore_backup import main
main()
"""


def back_up(*arguments: object) -> tuple[float, int, dict[str, Any]]:
    """Run the command: seconds, KiB of memory at most, its report."""
    began = time.monotonic()
    command = [sys.executable, "-c", _RUNNER, *map(str, arguments), "--json"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, text=True)
    assert finished.returncode == 0, finished.stderr
    return time.monotonic() - began, int(finished.stderr.split()[-1]), json.loads(finished.stdout)


def fill(path: Path, gib: float) -> None:
    """A store with one large queue."""
    chance, text = random.Random(1), b"all work and no play makes a dull store, " * 200
    pool = chance.randbytes(4 << 20)
    count = int(gib * (1 << 30) / _BODY)
    files = max(4, int(gib * 1.3 * (1 << 30) / (_FILE_PAGES << 16)) + 2)
    opened = OpenedStore(tool_environment(), path)
    journal = opened.make_queue("large", geometry=Geometry.from_pages(files, _FILE_PAGES))
    for number in range(count):
        at = chance.randrange(len(pool) - _BODY)
        opened.enqueue(journal, pool[at : at + _BODY // 2] + text[: _BODY // 2 - 8] + number.to_bytes(8, "big"))
        if number % 256 == 0:
            opened.flush(journal)
    opened.flush(journal)
    opened.store.close()


def bench_copy(directory: Path, gib: float, rounds: int) -> None:
    """A backup against a copy."""
    source, target = directory / "source", directory / "target"
    fill(source, gib)
    copies, runs = [], []
    for _ in range(rounds):
        for work in (lambda: copy_bytes(source, target), lambda: runs.append(back_up(source, target))):
            shutil.rmtree(target, ignore_errors=True)
            os.sync()
            began = time.monotonic()
            work()
            copies.append(time.monotonic() - began)
    took, reference = min(each[0] for each in runs), min(copies[::2])
    report = runs[-1][2]
    print(
        f"{report['bytes'] / (1 << 30):.2f} GiB: backup {took:.1f} s, copy {reference:.1f} s: "
        f"{reference / took:.2f} × its speed (goal 0.7); {report['written_bytes'] / (1 << 30):.2f} GiB written; "
        f"{max(each[1] for each in runs) / 1024:.0f} MiB of memory at most (goal 150)"
    )


@contextmanager
def loaded(broker: RunningBroker, file: Path, offered: int) -> Iterator[None]:
    """Publishers and consumers, as fast as they can or at a rate, until the end; they write to the file."""
    command = [sys.executable, "-m", "tests.bench.steady_load", str(broker.port), str(file), "--offered", str(offered)]
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            time.sleep(_WARM_UP_SECONDS)
            yield
            assert process.poll() is None, "the load has ended"
        finally:
            process.kill()


class Window(NamedTuple):
    """What a broker did for a while.

    Attributes:
        clients: what its clients noticed.
        cost: microseconds of processor time for each acknowledged message, of the broker and its helpers.
    """

    clients: Noticed
    cost: float


def window(broker: RunningBroker, file: Path, work: Callable[[], object]) -> Window:
    """What the broker does during some work."""

    def used() -> float:
        return sum(cpu_seconds(pid) for pid in (broker.pid, *children_of(broker.pid)))

    began, before = time.monotonic(), used()
    work()
    ended, cost = time.monotonic(), used() - before
    time.sleep(_LINE_SECONDS)
    clients = noticed(file, began, ended)
    return Window(clients, cost / (clients.rate * (ended - began)) * 1e6)


def bench_load(directory: Path, gib: float, rounds: int, options: Sequence[str], offered: int) -> None:
    """A broker under load: before, during and after each backup."""
    broker = RunningBroker(directory / "broker", "--default-queue-limit", "0").start()
    try:
        fill_broker(broker, gib)
        took: list[float] = []
        ratios: list[float] = []
        with loaded(broker, file := directory / "load", offered):
            place = directory / "place"

            def run() -> None:
                took.append(back_up(f"amqp://127.0.0.1:{broker.port}", place, *options)[0])

            def pause() -> None:
                time.sleep(min(_MAX_PAUSE_SECONDS, median(took)) if took else _MAX_PAUSE_SECONDS / 2)

            before = window(broker, file, pause)
            for _ in range(rounds):
                during = window(broker, file, run)
                shutil.rmtree(place)
                after = window(broker, file, pause)
                ratios.append(2 * during.clients.rate / (before.clients.rate + after.clients.rate))
                for name, each in ("before", before), ("during", during), ("after", after):
                    print(f"{name}: {describe(each)}")
                print(f"the backup took {took[-1]:.1f} s; {ratios[-1]:.2f} × the rate before and after it", flush=True)
                before = after
        print(f"{median(ratios):.2f} × in the middle ({min(ratios):.2f} to {max(ratios):.2f}; goal 0.9)")
    finally:
        broker.close()


def describe(each: Window) -> str:
    """A window in words."""
    rate, middle, slow, longest = each.clients
    latency = f"{middle:.1f} ms to an acknowledgement, 99 % {slow:.1f}, the longest {longest:.0f}"
    return f"{rate:,.0f} messages/s at {each.cost:.1f} us of processor time; {latency}"


def fill_broker(broker: RunningBroker, gib: float) -> None:
    """A queue with so much content, half of it random."""
    chance, text = random.Random(1), b"all work and no play makes a dull store, " * 200
    pool = chance.randbytes(4 << 20)
    arguments = "'qpid.file_count': 8, 'qpid.file_size': 1024"
    node = f"node: {{durable: true, x-declare: {{arguments: {{{arguments}}}}}}}"
    with Connection(f"127.0.0.1:{broker.port}") as connection:
        sender = connection.session().sender(f"kept; {{create: always, {node}}}")
        for _ in range(int(gib * (1 << 30) / _BODY)):
            at = chance.randrange(len(pool) - _BODY)
            sender.send(Message(pool[at : at + _BODY // 2] + text[: _BODY // 2], durable=True), sync=False)
        sender.session.sync()


def bench_hold(directory: Path, queues: int) -> None:
    """How long publishers wait for a snapshot, and what it costs."""
    broker = RunningBroker(directory / "broker", "--num-jfiles", "4", "--jfile-size-pgs", "1").start()
    try:
        with Connection(f"127.0.0.1:{broker.port}") as connection:
            session = connection.session()
            for number in range(queues):
                session.invoke("queue.declare", queue=f"q{number}", durable=True)
        began, used = time.monotonic(), broker.cpu_seconds()
        with snapshots(broker, 0.0) as taken:
            time.sleep(_HOLD_SECONDS / 2)
        cost = (broker.cpu_seconds() - used) / max(1, taken[0])
        print(
            f"{taken[0]} snapshots in {time.monotonic() - began:.1f} s: {cost * 1e3:.1f} ms of processor time for each"
        )
        for pause in (None, 0.05):
            with snapshots(broker, pause) as taken:
                waits = sorted(published(broker, _HOLD_SECONDS), reverse=True)
            print(
                f"{queues:,} queues, {taken[0]} snapshots: {len(waits):,} messages one after the other, "
                f"median {median(waits) * 1e3:.2f} ms, the longest {[round(each * 1e3, 1) for each in waits[:5]]} ms"
                f"{' (goal 50)' if taken[0] else ''}"
            )
    finally:
        broker.close()


@contextmanager
def snapshots(broker: RunningBroker, pause: float | None) -> Iterator[list[int]]:
    """Take and release snapshots meanwhile, with pauses of this many seconds; None for no snapshots."""
    stop, taken = threading.Event(), [0]

    def take() -> None:
        with Console(f"127.0.0.1:{broker.port}") as console:
            (agent,) = console.query("backup", package="qstore")
            while pause is not None and not stop.is_set():
                number = console.call(agent, "begin")["snapshot"]
                console.call(agent, "end", snapshot=number)
                taken[0] += 1
                time.sleep(pause)

    thread = threading.Thread(target=take)
    thread.start()
    try:
        yield taken
    finally:
        stop.set()
        thread.join()


def published(broker: RunningBroker, seconds: float) -> list[float]:
    """The time to the completion of each message."""
    waits = []
    with Connection(f"127.0.0.1:{broker.port}") as connection:
        sender = connection.session().sender("q0")
        message, end = Message("x" * 1000, durable=True), time.monotonic() + seconds
        while (began := time.monotonic()) < end:
            sender.send(message)
            waits.append(time.monotonic() - began)
    return waits


@click.command()
@click.argument("what", type=click.Choice(["copy", "load", "hold"]))
@click.option("--gib", default=1.5, show_default=True, help="Size of the store, for copy and load.")
@click.option("--rounds", default=3, show_default=True, help="How often: the fastest counts for copy, pairs for load.")
@click.option("--option", "options", multiple=True, help="An option of the command, for load.")
@click.option("--offered", default=0, help="Messages a second, for load; 0 for as many as the broker takes.")
@click.option("--queues", default=1000, show_default=True, help="How many durable queues, for hold.")
@click.option("--directory", type=click.Path(path_type=Path), help="Where the stores are made.  [default: TMPDIR]")
def main(
    what: str, gib: float, rounds: int, options: tuple[str, ...], offered: int, queues: int, directory: Path | None
) -> None:
    """Print what backups cost."""
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, wall-clock time")
    with tempfile.TemporaryDirectory(prefix="qstore-bench-", dir=directory) as name:
        if what == "copy":
            bench_copy(Path(name), gib, rounds)
        elif what == "load":
            bench_load(Path(name), gib, rounds, options, offered)
        else:
            bench_hold(Path(name), queues)


if __name__ == "__main__":
    main()
