"""The processors of the machine: how many there are for this process, and how many of them have nothing to do.

Those that this process is kept off do not count, by taskset(1) or a control group (cpuset). A control group may have a
quota of processor time (`cpu.max` in version 2; `cpu.cfs_quota_us` and `cpuacct.usage` in version 1), as containers
often do: then what is left of the quota counts, if that is less than what is idle.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Collection, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Final, NamedTuple, Protocol

_SCHEDULED: Final = Path("/proc/thread-self/schedstat")
_STATISTICS: Final = Path("/proc/stat")
_GROUPS: Final = Path("/proc/self/cgroup")
_GROUP_ROOT: Final = Path("/sys/fs/cgroup")
_IDLE: Final = 3  # of the numbers in the first line of /proc/stat, see proc(5)
_SEVERAL: Final = 8  # numbers there that are counted; those of guests are part of others
_MAX_FILE: Final = 4096  # bytes of a control group's file that are read


class Machine(Protocol):
    """What a pace must know of the machine."""

    def now(self) -> float:
        """Seconds."""

    def sleep(self, seconds: float) -> None:
        """Wait."""

    def worked(self) -> float:
        """Seconds of processor time of this thread."""

    def waited(self) -> float:
        """Seconds that this thread has waited for a processor."""

    def processors(self) -> float:
        """How many this process may occupy."""

    def idle(self) -> float | None:
        """How many of them had nothing to do since the last call; None if the machine does not tell."""


class Quota(NamedTuple):
    """What a control group may use of the processors.

    Attributes:
        processors: how many.
        used: the file with what it has used.
        unit: seconds that its number counts in.
    """

    processors: float
    used: Path
    unit: float

    def seconds(self) -> float | None:
        """Processor time that it has used; None if that cannot be read."""
        text = _text(self.used)
        number = text.partition("usage_usec")[2] if self.used.name == "cpu.stat" else text
        try:
            return int(number.split()[0]) * self.unit
        except (ValueError, IndexError):
            return None


class _Counted(NamedTuple):
    """What was counted at a time: idle time and all time of the machine, in any unit; seconds used of the quota."""

    at: float
    machine: tuple[int, int] | None
    used: float | None


class LinuxMachine:
    """The machine that this process runs on."""

    def __init__(self) -> None:
        self._allowed = os.sched_getaffinity(0)
        self._count = float(len(self._allowed))
        self._quota = min(_quotas(), default=None)
        self._last = self._counted()

    def now(self) -> float:
        """Seconds."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def worked(self) -> float:
        """Seconds of processor time of this thread."""
        return time.thread_time()

    def waited(self) -> float:
        """The second number of /proc/thread-self/schedstat; 0 if the kernel has none."""
        try:
            return int(_SCHEDULED.read_bytes().split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            return 0.0

    def processors(self) -> float:
        """Those of the machine, or of the quota."""
        return self._count if self._quota is None else min(self._count, self._quota.processors)

    def idle(self) -> float | None:
        """From /proc/stat, where waiting for a disk does not count as idle, and from the quota."""
        before, after = self._last, self._counted()
        if after.at <= before.at:
            return None
        self._last = after
        found = math.inf
        if before.machine and after.machine and after.machine[1] > before.machine[1]:
            idle, total = (new - old for old, new in zip(before.machine, after.machine, strict=True))
            found = self._count * max(0, idle) / total
        if self._quota is not None and before.used is not None and after.used is not None:
            used = (after.used - before.used) / (after.at - before.at)
            found = min(found, max(0.0, self._quota.processors - used))
        return found if found < math.inf else None

    def _counted(self) -> _Counted:
        used = None if self._quota is None else self._quota.seconds()
        return _Counted(self.now(), _machine_time(self._allowed), used)


def _machine_time(processors: Collection[int]) -> tuple[int, int] | None:
    """Of these processors; of all, if the kernel does not tell of each one by its number, as in some containers."""
    wanted = {b"cpu%d" % number for number in processors}
    try:
        with _STATISTICS.open("rb") as file:
            total, *each = (line.split() for line in takewhile(lambda line: line.startswith(b"cpu"), file))
        lines = [line for line in each if line[0] in wanted]
        numbers = [_numbers(line) for line in (lines if len(lines) == len(wanted) else [total])]
        return sum(line[_IDLE] for line in numbers), sum(map(sum, numbers))
    except (OSError, ValueError, IndexError):
        return None


def _numbers(line: Sequence[bytes]) -> list[int]:
    return [int(number) for number in line[1 : 1 + _SEVERAL]]


def _quotas() -> Iterator[Quota]:
    """Those of this process's control groups, and of the groups around them."""
    for line in _text(_GROUPS).splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            root = _GROUP_ROOT
        elif "cpu" in controllers.split(","):
            root = _GROUP_ROOT / "cpu"
        else:
            continue
        group = root / path.lstrip("/")
        for each in (group, *group.parents):
            if not each.is_relative_to(root):
                break
            found = _of_version_1(each) if controllers else _of_version_2(each)
            if found is not None:
                yield found


def _of_version_2(group: Path) -> Quota | None:
    """`cpu.max`: microseconds of processor time in a period, and the period; "max" for no limit."""
    numbers = _text(group / "cpu.max").split()
    if len(numbers) != 2 or not all(number.isdigit() and int(number) for number in numbers):
        return None
    return Quota(int(numbers[0]) / int(numbers[1]), group / "cpu.stat", 1e-6)


def _of_version_1(group: Path) -> Quota | None:
    """The same in two files; -1 for no limit. What was used is in the group of the same path below `cpuacct`."""
    numbers = _text(group / "cpu.cfs_quota_us").strip(), _text(group / "cpu.cfs_period_us").strip()
    if not all(number.isdigit() and int(number) for number in numbers):
        return None
    accounted = _GROUP_ROOT / "cpuacct" / group.relative_to(_GROUP_ROOT / "cpu")
    return Quota(int(numbers[0]) / int(numbers[1]), accounted / "cpuacct.usage", 1e-9)


def _text(path: Path) -> str:
    """What a file of the kernel has; nothing if it is not there."""
    try:
        with path.open("rb") as file:
            return file.read(_MAX_FILE).decode("ascii", "replace")
    except OSError:
        return ""
