"""Cost of durability: messages and transactions appended to the journals of a real store, and synced.

    python -m tests.bench.bench_journal [--directory PATH] [--rounds N] [--driver NAME] [--quick]

The floor of each throughput is measured in turns with it, in the same process and on the same file system: the same
bytes written with `os.pwrite` in pieces of 128 KiB, each followed by `fdatasync`. Of several rounds the one with the
lowest ratio counts, in time by the clock, since waiting for the disk is the point. Latency is that of one enqueue, from
the call to the callback, on an event loop that is idle, and on one that is saturated with other work.

Disks and machines differ: read the ratios, on the disk that will hold the store.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles

import click
from rich.console import Console
from rich.table import Table

from qstore.formats.broker_records.topology import Queue
from qstore.formats.rhm.geometry import BLOCK_SIZE, Geometry
from qstore.formats.rhm.headers import data_crc, record_blocks
from qstore.formats.rhm.jinf import DEFAULT_BASE_NAME, JournalInfo
from qstore.store.builders.journal_build import JournalBuild
from qstore.store.environment import system_environment, tool_environment
from qstore.store.journal.directory import open_journal
from qstore.store.journal.recovery import JournalRecovery
from qstore.store.journal.write.flushes import PLAIN_MESSAGE, RecordBuffer
from qstore.store.journal.write.storage import create_journal
from qstore.store.live.message_store import MessageStore
from qstore.store.live.queue_journal import QueueJournal
from qstore.store.log_lines import LogLine
from qstore.store.parameters import parse_parameters

_PIECE = 128 << 10
_LARGE = Geometry.from_pages(8, 512)  # 256 MiB
_SMALL = Geometry.from_pages(4, 8)  # 2 MiB: for a thousand of them
_GOALS = {100: (6.0, 400_000), 1024: (3.5, 150_000), 4096: (2.0, None)}


@contextmanager
def _store(directory: Path, driver: str) -> Iterator[MessageStore]:
    path = Path(tempfile.mkdtemp(prefix="qstore-bench-", dir=directory))
    parameters, _ = parse_parameters({"sync": driver})
    store = MessageStore.open(system_environment(), str(path / "store"), parameters, "0.1.0", log=_ignore)
    try:
        yield store
    finally:
        store.close()
        shutil.rmtree(path)


def _ignore(_: LogLine) -> None:
    """Log lines are not looked at."""


def _queue(store: MessageStore, name: str, geometry: Geometry) -> QueueJournal:
    made: list[QueueJournal] = []

    def done(journal: QueueJournal | None, error: Exception | None) -> None:
        if journal is None:
            raise error or AssertionError
        made.append(journal)

    store.changes.create_queue(Queue(name), geometry, done)
    while not made:
        store.collect(0.001)
    return made[0]


def _wait(store: MessageStore, journals: Sequence[QueueJournal]) -> None:
    """Until everything is on the disk."""
    errors: list[Exception | None] = []
    store.flush(journals, errors.append)
    while not errors:
        store.collect(None)
    if errors[0] is not None:
        raise errors[0]


def _floor(directory: Path, size: int) -> float:
    """The seconds that plain writes and syncs of these bytes take."""
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        descriptor = file.fileno()
        os.posix_fallocate(descriptor, 0, size + _PIECE)
        os.fsync(descriptor)
        piece = os.urandom(_PIECE)
        began = time.perf_counter()
        for offset in range(0, size, _PIECE):
            os.pwrite(descriptor, piece, offset)
            os.fdatasync(descriptor)
        return time.perf_counter() - began


# ---- throughput ----


def _enqueue(store: MessageStore, journals: Sequence[QueueJournal], count: int, data: tuple[bytes, ...]) -> None:
    """`count` messages in each journal, in batches of about 64 KiB, as an event loop that reads sockets would."""
    size = sum(map(len, data))
    crc = data_crc(data)
    batch = max(1, (64 << 10) // size // len(journals))
    enqueue, start, collect = store.append.enqueue, store.start, store.collect
    for begin in range(0, count, batch):
        for journal in journals:
            for _ in range(min(batch, count - begin)):
                enqueue(journal, data, size, crc)
        start()
        collect()
    _wait(store, journals)


def _pairs(store: MessageStore, journal: QueueJournal, count: int, data: tuple[bytes, ...]) -> None:
    """`count` messages enqueued, and each dequeued a batch later."""
    size = sum(map(len, data))
    crc = data_crc(data)
    waiting: list[int] = []
    for begin in range(0, count, 64):
        batch = [store.append.enqueue(journal, data, size, crc) for _ in range(min(64, count - begin))]
        for rid in waiting:
            store.append.dequeue(journal, rid)
        waiting = batch
        store.start()
        store.collect()
    for rid in waiting:
        store.append.dequeue(journal, rid)
    _wait(store, [journal])


def _transactions(store: MessageStore, journals: Sequence[QueueJournal], count: int, data: tuple[bytes, ...]) -> None:
    """`count` transactions of one message in each journal and the removal of an earlier one; 32 under way at a time."""
    size = sum(map(len, data))
    crc = data_crc(data)
    under_way = 0
    earlier: list[list[int]] = []

    def done(error: Exception | None) -> None:
        nonlocal under_way
        assert error is None
        under_way -= 1

    for _ in range(count):
        while under_way >= 32:
            store.collect(None)
        dequeues = list(zip(journals, earlier.pop(0), strict=True)) if len(earlier) > 64 else []
        enqueues = [(journal, [(data, size, crc)]) for journal in journals]
        under_way += 1
        earlier.append(store.transactions.commit(enqueues, dequeues, done))
        store.start()
        store.collect()
    while under_way:
        store.collect(None)


def _best(rounds: int, measure: Callable[[], tuple[float, float]]) -> tuple[float, float]:
    """Seconds of the work and of its floor, of the round with the lowest ratio."""
    return min((measure() for _ in range(rounds)), key=lambda times: times[0] / times[1])


def _timed(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _throughput(directory: Path, driver: str, rounds: int, scale: float, table: Table) -> None:
    for size, (goal, rate) in _GOALS.items():
        data = (b"h" * (size // 4), b"b" * (size - size // 4))
        count = int(min(300_000, (96 << 20) // size) * scale)
        written = count * record_blocks(size) * BLOCK_SIZE

        def measure(data: tuple[bytes, ...] = data, count: int = count, written: int = written) -> tuple[float, float]:
            with _store(directory, driver) as store:
                journal = _queue(store, "bench", _LARGE)
                took = _timed(lambda: _enqueue(store, [journal], count, data))
            return took, _floor(directory, written)

        took, floor = _best(rounds, measure)
        goals = f"{goal} ×" + (f", {rate:,}/s" if rate else "")
        table.add_row(f"enqueue {size} B", f"{count / took:,.0f}/s", f"{took / floor:.2f} ×", goals)
    data = (b"h" * 256, b"b" * 768)
    count = int(60_000 * scale)
    with _store(directory, driver) as store:
        journal = _queue(store, "bench", _LARGE)
        took = _timed(lambda: _pairs(store, journal, count, data))
        floor = _floor(directory, count * (record_blocks(1024) + 1) * BLOCK_SIZE)
    table.add_row("enqueue + dequeue, 1 KiB", f"{count / took:,.0f}/s", f"{took / floor:.2f} ×", "")


def _many(directory: Path, driver: str, scale: float, table: Table) -> None:
    data = (b"h" * 25, b"b" * 75)
    rates: dict[int, float] = {}
    for number in (1, 10, 100, 1000):
        each = int(max(600, 60_000 // number) * min(scale, 1.0)) if number > 1 else int(60_000 * scale)
        with _store(directory, driver) as store:
            geometry = _LARGE if number <= 10 else _SMALL
            journals = [_queue(store, f"q{index}", geometry) for index in range(number)]
            took = _timed(lambda s=store, j=journals, n=each: _enqueue_spread(s, j, n, data))  # type: ignore[misc]
            rates[number] = number * each / took
        ratio = rates[number] / rates[1]
        goal = "0.4 × one" if number == 1000 else ""
        table.add_row(f"{number:,} journals, 100 B", f"{rates[number]:,.0f}/s", f"{ratio:.2f} × one", goal)


def _enqueue_spread(store: MessageStore, journals: Sequence[QueueJournal], count: int, data: tuple[bytes, ...]) -> None:
    """`count` messages in each journal, 64 at a time, all journals in turns."""
    size = sum(map(len, data))
    crc = data_crc(data)
    for begin in range(0, count, 64):
        for journal in journals:
            for _ in range(min(64, count - begin)):
                store.append.enqueue(journal, data, size, crc)
            store.start()
        store.collect()
    _wait(store, journals)


def _transaction_rates(directory: Path, driver: str, scale: float, table: Table) -> None:
    data = (b"h" * 256, b"b" * 768)
    for number in (1, 3):
        count = int(6_000 * scale)
        with _store(directory, driver) as store:
            journals = [_queue(store, f"q{index}", _LARGE) for index in range(number)]
            took = _timed(lambda s=store, j=journals, n=count: _transactions(s, j, n, data))  # type: ignore[misc]
        floor = _floor(directory, count * number * (record_blocks(1024, 24) + 2) * BLOCK_SIZE)
        what = f"transactions over {number} queue{'s' if number > 1 else ''}, 32 under way"
        table.add_row(what, f"{count / took:,.0f}/s", f"{took / floor:.2f} ×", "")


def _creation(directory: Path, driver: str, table: Table) -> None:
    with _store(directory, driver) as store:
        geometry = store.parameters.geometry
        times = [_timed(lambda n=number: _queue(store, f"q{n}", geometry)) for number in range(40)]  # type: ignore[misc]
    table.add_row("making a journal of default size", f"{median(times) * 1000:.1f} ms", "", "15 ms")


# ---- latency ----


async def _latencies(
    store: MessageStore,
    journal: QueueJournal,
    count: int,
    *,
    is_idle: bool = False,
    between: Callable[[], object] = int,
) -> list[float]:
    """Seconds from an enqueue to its callback, one after the other, with something in `between`.

    An event loop with nothing else to do says so (`is_idle`), and the store waits for the disk itself.
    """
    loop = asyncio.get_running_loop()
    data = (b"x" * 1024,)
    crc = data_crc(data)
    descriptor = store.fileno()
    if descriptor >= 0:
        loop.add_reader(descriptor, store.collect)
    found = []
    for _ in range(count):
        between()
        waiter: asyncio.Future[None] = loop.create_future()
        began = time.perf_counter()
        store.append.enqueue(journal, data, 1024, crc)
        store.flush((journal,), lambda error, waiter=waiter: waiter.set_result(None), is_idle=is_idle)  # type: ignore[misc]
        if descriptor < 0:
            store.collect()
        await waiter
        found.append(time.perf_counter() - began)
    if descriptor >= 0:
        loop.remove_reader(descriptor)
    return found


async def _saturated(store: MessageStore, journal: QueueJournal, count: int) -> list[float]:
    """The same while each turn of the loop does 100 µs of other work and a send and a receive."""
    loop = asyncio.get_running_loop()
    left, right = socket.socketpair()
    busy = True

    def turn() -> None:
        until = time.perf_counter() + 100e-6
        while time.perf_counter() < until:
            pass
        left.send(b"x" * 64)
        right.recv(64)
        if busy:
            loop.call_soon(turn)

    loop.call_soon(turn)
    await asyncio.sleep(0.2)
    found = await _latencies(store, journal, count)
    busy = False
    await asyncio.sleep(0)
    left.close()
    right.close()
    return found


class _Bare:
    """Writes of the same size as the record, each followed by an `fdatasync`."""

    def __init__(self, directory: Path) -> None:
        self._file = tempfile.NamedTemporaryFile(dir=directory)  # noqa: SIM115 (as long as this)
        os.posix_fallocate(self._file.fileno(), 0, 1 << 20)
        os.fsync(self._file.fileno())
        self._content = os.urandom(1536)
        self.times: list[float] = []

    def write(self) -> None:
        began = time.perf_counter()
        os.pwrite(self._file.fileno(), self._content, len(self.times) * 1536 % (1 << 20))
        os.fdatasync(self._file.fileno())
        self.times.append(time.perf_counter() - began)

    def close(self) -> float:
        """The median."""
        self._file.close()
        return median(self.times)


def _latency(directory: Path, driver: str, scale: float, table: Table) -> None:
    count = int(1000 * scale)
    with _store(directory, driver) as store:
        journal = _queue(store, "bench", _LARGE)
        asyncio.run(_latencies(store, journal, 100))
        for what, is_idle, goal in (("one enqueue, idle loop", True, "1.5 ×"), ("the same, by the driver", False, "")):
            bare = _Bare(directory)
            idle = median(asyncio.run(_latencies(store, journal, count, is_idle=is_idle, between=bare.write)))
            table.add_row(what, f"{idle * 1e6:.0f} µs", f"{idle / bare.close():.2f} ×", goal)
        busy = asyncio.run(_saturated(store, journal, count))
    p99 = quantiles(busy, n=100)[98]
    table.add_row(
        "one enqueue, saturated loop", f"p50 {median(busy) * 1e3:.2f} ms", f"p99 {p99 * 1e3:.2f} ms", "p99 2 ms"
    )


def _encoding(table: Table) -> None:
    """A record of two parts, in the two ways to write its header, and with its parts in a tuple or in a list."""
    parts, salt, count = (bytes(40), bytes(300)), bytes(8), 20_000
    crc = data_crc(parts)
    for one_by_one in (True, False):
        for kind in (tuple, list):

            def work(given: Sequence[bytes] = kind(parts), one_by_one: bool = one_by_one) -> None:
                records = RecordBuffer(is_compiled=one_by_one)
                for rid in range(count):
                    records.append(PLAIN_MESSAGE, rid, b"", 7, 340, given, 340, crc, salt, 12)
                    if not rid & 127:
                        records.take()

            took = min(_processor_time(work) for _ in range(5)) / count
            how = "field by field" if one_by_one else "by struct"
            table.add_row(f"encoding a record {how}, parts in a {kind.__name__}", f"{took * 1e9:.0f} ns", "", "")


def _walking(directory: Path, table: Table) -> None:
    """The walk of a recovery over a journal of messages of 100 bytes."""
    environment, count = tool_environment(), 150_000
    path = tempfile.mkdtemp(prefix="qstore-bench-", dir=directory) + "/journal"
    try:
        info = JournalInfo(2, "q", DEFAULT_BASE_NAME, _LARGE, flush_alignment=512, creation_headers=True)
        create_journal(environment.disk, path, info)
        build, data = JournalBuild(environment, path, info), bytes(100)
        crc = data_crc((data,))
        for rid in range(1, count + 1):
            build.enqueue(rid, data, crc)
        build.finish()
        journal = open_journal(environment.disk, path)
        took = min(_processor_time(lambda: journal.walk(JournalRecovery())) for _ in range(5)) / count
        table.add_row("walking a record, 100 B", f"{took * 1e9:.0f} ns", "", "")
    finally:
        shutil.rmtree(Path(path).parent)


def _processor_time(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


@click.command()
@click.option("--directory", type=click.Path(path_type=Path), default=Path(tempfile.gettempdir()), show_default=True,
              help="Where to measure: on the disk that will hold the store.")  # fmt: skip
@click.option("--rounds", default=3, show_default=True, help="The best of so many counts.")
@click.option(
    "--driver", default="auto", show_default=True, help="Who waits for the disk: auto, process, thread, inline."
)
@click.option("--quick", is_flag=True, help="A tenth of everything, to see that it works.")
def main(directory: Path, rounds: int, driver: str, quick: bool) -> None:
    """Print what durability costs."""
    scale = 0.1 if quick else 1.0
    table = Table(title=f"Python {sys.version.split()[0]}, {os.cpu_count()} cores, sync by {driver}")
    for column in ("what", "rate", "to the floor", "goal"):
        table.add_column(column)
    _throughput(directory, driver, rounds, scale, table)
    _transaction_rates(directory, driver, scale, table)
    _many(directory, driver, scale, table)
    _creation(directory, driver, table)
    _latency(directory, driver, scale, table)
    _encoding(table)
    _walking(directory, table)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
