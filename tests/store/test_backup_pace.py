"""The pace of a backup beside a running broker: idle processors, niceness, and limits."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

import qstore.store.backup.create as chunks
import qstore.store.backup.create as processors
from qstore.store.backup.create import MAX_PAUSE, MAX_QUOTA, RESERVE, Begun, ChunkWriter, Effort, LinuxMachine, Pace
from qstore.store.backup.repository import CHUNK_SIZE, DiskRepository
from qstore.store.backup.sources import Read, SourceFile
from qstore.store.disk import OsWritableDisk

PROCESSORS: Final = 4
CHUNK_SECONDS: Final = 0.01


class SimulatedMachine:
    """Others occupy so much of its processors; a thread waits for one for as long as it works, and sleeps exactly.

    Args:
        others: processors that are busy with something else.
        tells: whether it tells what its processors do.
        processors: how many it has.
    """

    def __init__(self, others: float, *, tells: bool = True, processors: int = PROCESSORS) -> None:
        self.others, self._tells, self._processors = others, tells, processors
        self.time = self.processor = self.queued = self._idle = self._looked_at = 0.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self._pass(seconds, 0.0)

    def worked(self) -> float:
        return self.processor

    def waited(self) -> float:
        return self.queued

    def processors(self) -> float:
        return self._processors

    def idle(self) -> float | None:
        seconds, idle = self.time - self._looked_at, self._idle
        self._looked_at, self._idle = self.time, 0.0
        return idle / seconds if self._tells and seconds else None

    def work(self, seconds: float, *, queued: float = 0.0, disk: float = 0.0) -> None:
        """Work on a chunk, after a wait for a processor, and wait for the disk."""
        self._pass(seconds, 1.0)
        self._pass(queued + disk, 0.0)
        self.processor += seconds
        self.queued += queued

    def _pass(self, seconds: float, own: float) -> None:
        self.time += seconds
        self._idle += seconds * max(0.0, self._processors - self.others - own)


def share(
    machine: SimulatedMachine, pace: Pace, seconds: float = 20.0, *, queued: float = 0.0, disk: float = 0.0
) -> float:
    """Processors that one thread occupies after a while, the disk's waits included."""
    spent, since = 0.0, machine.time
    while machine.time < since + seconds:
        pace.wait()
        begun = pace.begin()
        machine.work(CHUNK_SECONDS, queued=queued, disk=disk)
        pace.end(begun)
        if machine.time > since + seconds / 2:
            spent += CHUNK_SECONDS + disk
    return spent / (seconds / 2)


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        (4.0, 1 / 4),  # a sixteenth of the machine
        (3.5, 1 / 4),
        (2.0, 0.4),  # the reserve stays idle
        (1.0, 1.0),
        (0.0, 1.0),
    ],
)
def test_backup_takes_the_idle_share(others: float, expected: float) -> None:
    machine = SimulatedMachine(others)
    assert share(machine, Pace(machine)) == pytest.approx(expected, rel=0.1)


def test_it_gives_way_at_once_and_takes_more_step_by_step() -> None:
    machine = SimulatedMachine(0.0)
    pace = Pace(machine)
    share(machine, pace)
    assert pace.quota == MAX_QUOTA
    machine.others = PROCESSORS
    share(machine, pace, 0.5)
    assert pace.quota == PROCESSORS / 16
    machine.others = 0.0
    share(machine, pace, 0.25)
    assert pace.quota <= 2 * PROCESSORS / 16


def test_waits_for_the_disk_count_and_for_a_processor_do_not() -> None:
    """Waits for a local disk do, those for a processor do not; nor do waits for another machine."""
    for is_local, expected in ((True, 1 / 4), (False, 1 / 4 * 3)):
        machine = SimulatedMachine(PROCESSORS)
        pace = Pace(machine, is_local=is_local)
        assert share(machine, pace, disk=2 * CHUNK_SECONDS) == pytest.approx(expected, rel=0.1)
    machine = SimulatedMachine(PROCESSORS)
    taken = share(machine, Pace(machine), queued=2 * CHUNK_SECONDS)
    assert taken == pytest.approx(1 / 4, rel=0.1)


def test_a_disk_that_stops_for_a_while_does_not_stop_the_backup_for_long() -> None:
    machine = SimulatedMachine(PROCESSORS)
    pace = Pace(machine)
    begun = pace.begin()
    machine.work(0.01, disk=60.0)
    pace.end(begun)
    began = machine.time
    pace.wait()
    assert machine.time - began == pytest.approx(MAX_PAUSE, rel=0.01)


def test_a_machine_that_does_not_tell() -> None:
    machine = SimulatedMachine(0.0, tells=False)
    assert share(machine, Pace(machine)) == pytest.approx(1 / 4, rel=0.1)


def test_small_machines_have_a_quota_too() -> None:
    assert 0 < Pace(SimulatedMachine(0.0, processors=1)).quota < RESERVE


class _Counted(Pace):
    """Notes which threads work, and how often."""

    def __init__(self) -> None:
        super().__init__(SimulatedMachine(0.0))
        self.waits: list[int] = []
        self.ends = 0

    def wait(self) -> None:
        self.waits.append(threading.get_ident())

    def end(self, begun: Begun) -> None:
        super().end(begun)
        self.ends += 1


def test_the_threads_keep_it_for_each_chunk(tmp_path: Path) -> None:
    pace = _Counted()
    place = DiskRepository(OsWritableDisk(), str(tmp_path / "place"), 1)
    lock = place.lock()
    with ChunkWriter(place, set(), Effort(2, pace=pace), lambda _: None) as writer:
        writer.write(SourceFile("file", 3 * CHUNK_SIZE, opened), [])
        writer.finish()
    lock.release()
    assert (len(pace.waits), pace.ends) == (3, 3)
    assert threading.get_ident() not in pace.waits
    assert len(list((tmp_path / "place" / "chunks").glob("*/*"))) == 3


# ---- processors of a backup, with and without control groups ----


COUNT: Final = 8


class Kernel:
    """Files as those of a Linux kernel, and its time.

    Args:
        directory: has them.
    """

    def __init__(self, directory: Path) -> None:
        self.directory, self.time = directory, 100.0
        self._busy = self._idle = 0

    def write(self, name: str, text: str) -> None:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def passes(self, seconds: float, *, idle: float) -> None:
        """Time passes while `idle` processors are idle."""
        self.time += seconds
        self._busy += round(100 * seconds * (COUNT - idle))
        self._idle += round(100 * seconds * idle)
        self.write("stat", f"cpu  {self._busy} 0 0 {self._idle} 0 0 0 0 0 0\ncpu0 1 2 3 4\n")


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Kernel:
    found = Kernel(tmp_path)
    monkeypatch.setattr(processors, "_STATISTICS", tmp_path / "stat")
    monkeypatch.setattr(processors, "_SCHEDULED", tmp_path / "schedstat")
    monkeypatch.setattr(processors, "_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(processors, "_GROUP_ROOT", tmp_path / "groups")
    monkeypatch.setattr(processors.os, "sched_getaffinity", lambda _pid: set(range(COUNT)))
    monkeypatch.setattr(LinuxMachine, "now", lambda _self: found.time)
    found.passes(10, idle=COUNT)
    return found


def test_without_control_groups(kernel: Kernel) -> None:
    machine = LinuxMachine()
    assert machine.processors() == COUNT
    kernel.passes(2, idle=1.5)
    assert machine.idle() == pytest.approx(1.5)
    kernel.passes(1, idle=7)
    assert machine.idle() == pytest.approx(7)
    assert machine.idle() is None, "no time has passed"


def test_only_the_processors_of_this_process_count(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of eight: the idle ones of others are of no use to it."""

    def lines(*idle: int) -> str:
        each = [f"cpu{number} {1000 - at} 0 0 {at} 0 0 0 0 0 0" for number, at in enumerate(idle)]
        return "\n".join(
            [f"cpu  {1000 * len(idle) - sum(idle)} 0 0 {sum(idle)} 0 0 0 0 0 0", *each, "intr 7", "cpu9 1"]
        )

    monkeypatch.setattr(processors.os, "sched_getaffinity", lambda _pid: {1, 6})
    kernel.write("stat", lines(*[0] * COUNT).replace("1000", "0"))
    machine = LinuxMachine()
    assert machine.processors() == 2
    kernel.time += 10
    kernel.write("stat", lines(1000, 100, 1000, 1000, 1000, 1000, 400, 1000))
    assert machine.idle() == pytest.approx(0.5)


def test_a_quota_of_version_2(kernel: Kernel) -> None:
    """The narrowest of those around the process counts."""
    kernel.write("cgroup", "0::/outer/inner\n")
    kernel.write("groups/outer/cpu.max", "200000 100000\n")
    kernel.write("groups/outer/inner/cpu.max", "max 100000\n")
    kernel.write("groups/outer/cpu.stat", "usage_usec 5000000\nuser_usec 1\n")
    machine = LinuxMachine()
    assert machine.processors() == 2
    kernel.passes(10, idle=6)
    kernel.write("groups/outer/cpu.stat", "usage_usec 20000000\nuser_usec 1\n")
    assert machine.idle() == pytest.approx(0.5)
    kernel.passes(10, idle=0.25)
    assert machine.idle() == pytest.approx(0.25), "the machine is busier than the quota tells"
    kernel.passes(10, idle=6)
    kernel.write("groups/outer/cpu.stat", "usage_usec 90000000\n")
    assert machine.idle() == 0


def test_a_quota_of_version_1(kernel: Kernel) -> None:
    kernel.write("cgroup", "3:cpuset:/\n2:cpu,cpuacct:/job\n1:memory:/job\n")
    kernel.write("groups/cpu/cpu.cfs_quota_us", "-1\n")
    kernel.write("groups/cpu/cpu.cfs_period_us", "100000\n")
    kernel.write("groups/cpu/job/cpu.cfs_quota_us", "150000\n")
    kernel.write("groups/cpu/job/cpu.cfs_period_us", "100000\n")
    kernel.write("groups/cpuacct/job/cpuacct.usage", "1000000000\n")
    machine = LinuxMachine()
    assert machine.processors() == 1.5
    kernel.passes(4, idle=6)
    kernel.write("groups/cpuacct/job/cpuacct.usage", "3000000000\n")
    assert machine.idle() == pytest.approx(1.0)


@pytest.mark.parametrize("text", ["", "0 100000", "100000 0", "100000", "many 100000", "max"])
def test_no_quota(kernel: Kernel, text: str) -> None:
    kernel.write("cgroup", "0::/\n")
    kernel.write("groups/cpu.max", text)
    assert LinuxMachine().processors() == COUNT


def test_a_group_whose_use_cannot_be_read(kernel: Kernel) -> None:
    kernel.write("cgroup", "0::/\n")
    kernel.write("groups/cpu.max", "100000 100000\n")
    machine = LinuxMachine()
    kernel.passes(1, idle=3)
    assert machine.idle() == pytest.approx(3)


def test_without_these_files(kernel: Kernel) -> None:
    (kernel.directory / "stat").write_text("cpu nothing\n")
    machine = LinuxMachine()
    kernel.time += 1
    assert (machine.idle(), machine.waited()) == (None, 0.0)
    kernel.write("schedstat", "7\n")
    assert machine.waited() == 0.0
    (kernel.directory / "stat").unlink()
    assert machine.idle() is None


def test_this_machine() -> None:
    machine = LinuxMachine()
    worked, waited = machine.worked(), machine.waited()
    end = time.thread_time() + 0.02
    while time.thread_time() < end:
        pass
    assert machine.worked() - worked >= 0.02
    assert machine.waited() >= waited >= 0
    assert 0 < machine.processors() <= 4096
    while (idle := machine.idle()) is None:
        time.sleep(0.01)
    assert 0 <= idle <= machine.processors()


# ---- limits of a backup's effort: niceness, and a limit of what it reads in a second ----


def niceness() -> int:
    """That of this thread."""
    return os.getpriority(os.PRIO_PROCESS, 0)


class _Repository(DiskRepository):
    """Notes the niceness of the threads that write."""

    def __init__(self, path: Path) -> None:
        super().__init__(OsWritableDisk(), str(path))
        self.found: set[int] = set()

    def put(self, name: str, content: bytes) -> None:
        self.found.add(niceness())
        super().put(name, content)


@contextmanager
def opened() -> Iterator[Read]:
    """A file in which no chunk is as another one."""
    yield lambda _, length: os.urandom(1024) + bytes(length - 1024)


class _Clock:
    """Time passes only in sleeps."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def write(place: _Repository, effort: Effort, count: int) -> tuple[int, int]:
    """Write a file of `count` chunks. Returns how often `alive` was called, and the bytes that were new."""
    calls = 0

    def alive() -> None:
        nonlocal calls
        calls += 1

    lock = place.lock()
    try:
        with ChunkWriter(place, set(), effort, lambda _: None) as writer:
            writer.alive = alive
            writer.write(SourceFile("file", count * CHUNK_SIZE, opened), [])
            writer.finish()
            return calls, writer.new
    finally:
        lock.release()


@pytest.mark.parametrize("wanted", [0, 7, 19])
def test_the_threads_stand_back(tmp_path: Path, wanted: int) -> None:
    place, before = _Repository(tmp_path / "place"), niceness()
    assert write(place, Effort(2, wanted), 3)[1] == 3 * CHUNK_SIZE
    assert place.found == {max(before, wanted)}
    assert niceness() == before


def test_no_more_is_read_in_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock()
    monkeypatch.setattr(chunks, "time", clock)
    write(_Repository(tmp_path / "place"), Effort(2), 3)
    assert clock.now == 0
    calls, _ = write(_Repository(tmp_path / "slow"), Effort(2, 0, CHUNK_SIZE // 20), 3)
    assert clock.now == pytest.approx(60)
    assert calls >= 12  # the broker releases a snapshot of which it hears nothing for 30 seconds
