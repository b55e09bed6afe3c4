"""The pace of a backup beside a running broker: it takes what the machine has left, and little if that is nothing.

Its threads alternate between work and pauses, so that on average they occupy so many processors:

    quota     between a small one, which the machine can always spare, and a large one
    up        while more of the processors is idle than the reserve; at most twice as much at a time
    down      at once, to what leaves the reserve idle

What counts is the time from the beginning to the end of the work on a chunk, waits for the disk included, because a
disk that is busy with a backup's writes makes the broker wait as well. Waiting for a processor does not count: the
threads stand back there (`Effort.niceness`), and would else come to nothing on a busy machine. Standing back alone is
not enough: with full speed a saturated broker on two processors kept 0.54 to 0.66 of its rate.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple, Protocol

RESERVE: Final = 0.4  # share of the machine's processors that stays idle, if it is
MIN_SHARE: Final = 1 / 16  # of the machine, for the backup
MAX_QUOTA: Final = 1.0  # processors: more would be of little use for a disk
LOOK_SECONDS: Final = 0.2  # between looks at the machine, which counts in hundredths of a second
MAX_PAUSE: Final = 2.0  # seconds
_SCHEDULED: Final = Path("/proc/thread-self/schedstat")
_STATISTICS: Final = Path("/proc/stat")
_IDLE: Final = 3  # of the numbers in the first line of /proc/stat, see proc(5)
_SEVERAL: Final = 8  # numbers there that are counted; those of guests are part of others


class Usage(NamedTuple):
    """How long the processors of the machine were idle since it started, and all of their time, in any unit."""

    idle: float
    total: float


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

    def usage(self) -> Usage | None:
        """What the processors did; None if the machine does not tell."""


class LinuxMachine:
    """The machine that this process runs on."""

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

    def usage(self) -> Usage | None:
        """The first line of /proc/stat. Waiting for a disk does not count as idle."""
        try:
            with _STATISTICS.open("rb") as file:
                numbers = [int(number) for number in file.readline().split()[1 : 1 + _SEVERAL]]
            return Usage(numbers[_IDLE], sum(numbers))
        except (OSError, ValueError, IndexError):
            return None


class Begun(NamedTuple):
    """When a thread has begun to work on a chunk, and the seconds that it had occupied the machine by then."""

    at: float
    spent: float


class Pace:
    """The pace of several threads.

    Args:
        machine: the machine.
        is_local: whether what the threads wait for is a disk of this machine, and not somebody else's.
        processors: how many it has; 0 for those that there are.

    Attributes:
        quota: processors that they may occupy now.
    """

    def __init__(self, machine: Machine, *, is_local: bool = True, processors: int = 0) -> None:
        self._machine, self._is_local = machine, is_local
        self._processors = processors or os.cpu_count() or 1
        self._least = min(MAX_QUOTA, self._processors * MIN_SHARE)
        self.quota = self._least
        self._lock = Lock()
        self._next = self._looked_at = machine.now()
        self._usage = machine.usage()

    def wait(self) -> None:
        """Wait until the next piece of work may begin."""
        with self._lock:
            pause = self._next - self._machine.now()
        if pause > 0:
            self._machine.sleep(pause)

    def begin(self) -> Begun:
        """The calling thread begins to work on a chunk."""
        return Begun(self._machine.now(), self._spent())

    def end(self, begun: Begun) -> None:
        """It has done that."""
        occupied = max(0.0, self._spent() - begun.spent)
        now = self._machine.now()
        with self._lock:
            self._look(now)
            self._next = min(max(self._next, begun.at) + occupied / self.quota, now + MAX_PAUSE)

    def _spent(self) -> float:
        """Seconds that the calling thread has occupied the machine, from any moment on."""
        if self._is_local:
            return self._machine.now() - self._machine.waited()
        return self._machine.worked()

    def _look(self, now: float) -> None:
        """Adapt the quota from time to time."""
        if now - self._looked_at < LOOK_SECONDS:
            return
        before, after = self._usage, self._machine.usage()
        self._looked_at, self._usage = now, after
        if before is None or after is None or after.total <= before.total:
            return
        idle = (after.idle - before.idle) / (after.total - before.total)
        wanted = self.quota + (idle - RESERVE) * self._processors
        self.quota = max(self._least, min(wanted, 2 * self.quota, MAX_QUOTA))
