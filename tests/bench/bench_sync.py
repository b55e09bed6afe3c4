"""Cost of waiting for the disk, by driver.

    python -m tests.bench.bench_sync [--directory PATH] [--rounds N] [--uvloop]

Three tables. The first two are the latency of one synced write of 4 KiB as an event loop sees it, from the write to the
callback: on a loop that has nothing else to do, and on one that is saturated (every turn 100 µs of Python and a send
and a receive on a socket pair). The reference is a bare `pwrite` and `fdatasync` of the same bytes, without a loop; on
the idle loop it takes turns with the driver, write by write, so that both meet the same disk. The third table is the
rate with many dirty files at once, against `fdatasync` of one after the other.

Disks and machines differ: read the ratios, and run it on the disk that will hold the store. Other busy
processes delay a driver's helper by some milliseconds each time; the last line says whether there were any.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import socket
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import click

from qstore.store.disk import OsWritableDisk, WritableFile
from qstore.store.sync import SyncDriver, choose_sync_driver

_PAGE = os.urandom(4096)
_FILE_SIZE = 1 << 20
Run = Callable[[Coroutine[Any, Any, list[float]]], list[float]]
_DRIVERS = ("io-uring", "process", "thread", "inline")
_COUNTS = (1, 16, 100, 1000)
_WARM_UP = 100
_LIMIT_SECONDS = 4.0
"""No part of a table takes longer: a disk may be slow, or a driver starve."""


def _bare(file: WritableFile, number: int) -> float:
    """Seconds of a bare write and sync."""
    began = time.perf_counter()
    os.pwrite(file.fileno(), _PAGE, number * 4096 % _FILE_SIZE)
    os.fdatasync(file.fileno())
    return time.perf_counter() - began


class Latency:
    """One write after the other through a driver, on a running loop."""

    def __init__(self, driver: SyncDriver, file: WritableFile) -> None:
        self._driver = driver
        self._file = file
        self._waiter: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        if driver.fileno() >= 0:
            self._loop.add_reader(driver.fileno(), self._completed)

    def _completed(self) -> None:
        for _, error in self._driver.completed():
            assert error is None
            assert self._waiter is not None
            self._ended = time.perf_counter()
            self._waiter.set_result(None)

    async def write(self, number: int) -> float:
        """Seconds from the write to the callback."""
        self._waiter = self._loop.create_future()
        began = time.perf_counter()
        self._file.write(number * 4096 % _FILE_SIZE, _PAGE)
        self._driver.submit(number, [self._file])
        if self._driver.fileno() < 0:
            self._completed()
        await self._waiter
        return self._ended - began

    def close(self) -> None:
        if self._driver.fileno() >= 0:
            self._loop.remove_reader(self._driver.fileno())
        self._driver.close()


class Saturation:
    """Work that keeps a loop busy: in each turn 100 µs of Python, a send and a receive."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._near, self._far = socket.socketpair()
        self._next = self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        end = time.perf_counter() + 100e-6
        while time.perf_counter() < end:
            pass
        self._near.send(b"x" * 64)
        self._far.recv(64)
        self._next = self._loop.call_soon(self._turn)

    def close(self) -> None:
        self._next.cancel()
        self._near.close()
        self._far.close()


async def idle_latency(name: str, file: WritableFile, count: int, bare: list[float]) -> list[float]:
    """Seconds of each write through the driver on the idle loop; into `bare` those of the bare writes between them."""
    latency = Latency(choose_sync_driver(name), file)
    driven = []
    end = time.perf_counter() + _LIMIT_SECONDS
    for number in range(count):
        bare.append(_bare(file, number))
        # A loop at rest: without this the driver would be measured straight from a busy processor.
        await asyncio.sleep(0.0005)
        driven.append(await latency.write(number))
        await asyncio.sleep(0.0005)
        if time.perf_counter() > end:
            break
    latency.close()
    return driven


async def saturated_latency(name: str, file: WritableFile, count: int) -> list[float]:
    """Seconds of each write through the driver on the saturated loop, without the first ones.

    When a loop that was at rest becomes busy, the helper may share its processor for some 50 ms, until the system moves
    one of them; each of the dozen writes of that time takes about 4 ms (Linux 6.18, 250 ticks a second).
    """
    latency = Latency(choose_sync_driver(name), file)
    saturation = Saturation()
    driven = []
    end = time.perf_counter() + _LIMIT_SECONDS
    for number in range(_WARM_UP + count):
        driven.append(await latency.write(number))
        if time.perf_counter() > end:
            break
    saturation.close()
    latency.close()
    return driven[min(_WARM_UP, len(driven) // 2) :]


def _rate(files: list[WritableFile], sync_files: Callable[[list[WritableFile]], None], rounds: int) -> float:
    """Files synced in a second, each with one dirty page; the best round."""
    best = 0.0
    for turn in range(rounds):
        for file in files:
            file.write(turn * 4096 % _FILE_SIZE, _PAGE)
        began = time.perf_counter()
        sync_files(files)
        best = max(best, len(files) / (time.perf_counter() - began))
    return best


def driver_rate(name: str, files: list[WritableFile], rounds: int) -> float:
    """Files synced in a second through a driver, each with a ticket of its own."""
    driver = choose_sync_driver(name)

    def sync_files(files: list[WritableFile]) -> None:
        for ticket, file in enumerate(files):
            driver.submit(ticket, [file])
        left = len(files)
        while left:
            done = driver.completed(None)
            assert all(error is None for _, error in done)
            left -= len(done)

    rate = _rate(files, sync_files, rounds)
    driver.close()
    return rate


def _spread(seconds: list[float]) -> str:
    p99 = quantiles(seconds, n=100)[98]
    return f"p50 {median(seconds) * 1e6:7.0f} µs, p99 {p99 * 1e6:7.0f} µs"


class Neighbours:
    """How much of the machine everybody else uses meanwhile: a driver's p99 is worth little where that is much."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._before = self._others()

    @staticmethod
    def _others() -> float:
        """Seconds of processor time that all the others have used since the machine's start."""
        user, nice, system = (int(ticks) for ticks in Path("/proc/stat").read_text().split()[1:4])
        return (user + nice + system) / os.sysconf("SC_CLK_TCK") - sum(os.times()[:4])

    def show(self) -> None:
        share = (self._others() - self._before) / (time.perf_counter() - self._began)
        print(f"meanwhile others used {max(0.0, share):.2f} of {os.cpu_count()} processors")


def _show_latency(run: Run, file: WritableFile, count: int) -> None:
    print("one synced write of 4 KiB, idle loop (goal for a broker's driver: 1.5 × bare)")
    for name in _DRIVERS:
        bare: list[float] = []
        driven = run(idle_latency(name, file, count, bare))
        print(f"  {name:8} {_spread(driven)}; bare {_spread(bare)}: {median(driven) / median(bare):.2f} × bare")
    print("the same on a saturated loop (goal: p99 2,000 µs)")
    for name in _DRIVERS:
        driven = run(saturated_latency(name, file, count))
        bare = [_bare(file, number) for number in range(count)]
        print(f"  {name:8} {_spread(driven)}: {median(driven) / median(bare):.2f} × bare")


def _show_rates(files: list[WritableFile], rounds: int) -> None:
    def one_by_one(files: list[WritableFile]) -> None:
        for file in files:
            os.fdatasync(file.fileno())

    print("dirty files at once: synced files a second")
    for count in _COUNTS:
        bare = _rate(files[:count], one_by_one, rounds)
        rates = ((name, driver_rate(name, files[:count], rounds)) for name in _DRIVERS)
        row = ", ".join(f"{name} {rate:8,.0f} ({rate / bare:.2f} ×)" for name, rate in rates)
        print(f"  {count:5,} files: {row}; bare {bare:8,.0f}")


@click.command()
@click.option("--directory", default="/var/tmp", show_default=True, help="On the disk that is to be measured.")
@click.option("--writes", default=1000, show_default=True, help="Writes for each latency.")
@click.option("--rounds", default=5, show_default=True, help="Rounds for each rate; the best counts.")
@click.option("--uvloop", "with_uvloop", is_flag=True, help="Run the loops under uvloop.")
def main(directory: str, writes: int, rounds: int, with_uvloop: bool) -> None:
    """Measure the sync drivers."""
    run: Run = importlib.import_module("uvloop").run if with_uvloop else asyncio.run
    disk = OsWritableDisk()
    neighbours = Neighbours()
    with tempfile.TemporaryDirectory(prefix="qstore-bench-", dir=directory) as name:
        files: list[WritableFile] = []
        for number in range(max(_COUNTS)):
            path = str(Path(name, f"{number:04}"))
            files.append(disk.create(path, _FILE_SIZE))
            os.pwrite(files[-1].fileno(), bytes(_FILE_SIZE if number == 0 else rounds * 4096), 0)
        os.sync()
        _show_latency(run, files[0], writes)
        _show_rates(files, rounds)
        for file in files:
            file.close()
    neighbours.show()


if __name__ == "__main__":
    main()
