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

from threading import Lock
from typing import Final, NamedTuple

from qstore.store.backup.processors import Machine

RESERVE: Final = 0.4  # share of the machine's processors that stays idle, if it is
MIN_SHARE: Final = 1 / 16  # of the machine, for the backup
MAX_QUOTA: Final = 1.0  # processors: more would be of little use for a disk
LOOK_SECONDS: Final = 0.2  # between looks at the machine, which counts in hundredths of a second
MAX_PAUSE: Final = 2.0  # seconds


class Begun(NamedTuple):
    """When a thread has begun to work on a chunk, and the seconds that it had occupied the machine by then."""

    at: float
    spent: float


class Pace:
    """The pace of several threads.

    Args:
        machine: the machine.
        is_local: whether the threads wait for a disk of this machine, not for a remote service.

    Attributes:
        quota: processors that they may occupy now.
    """

    def __init__(self, machine: Machine, *, is_local: bool = True) -> None:
        self._machine, self._is_local = machine, is_local
        self._processors = machine.processors()
        self._least = min(MAX_QUOTA, self._processors * MIN_SHARE)
        self.quota = self._least
        self._lock = Lock()
        self._next = self._looked_at = machine.now()

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
        self._looked_at, idle = now, self._machine.idle()
        if idle is None:
            return
        wanted = self.quota + idle - RESERVE * self._processors
        self.quota = max(self._least, min(wanted, 2 * self.quota, MAX_QUOTA))
