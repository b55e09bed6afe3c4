"""How many processors there are for a backup, and how many are idle, with control groups or without."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import pytest

import qstore.store.backup.create as processors
from qstore.store.backup.create import LinuxMachine

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
