"""Chooses the sync driver, starts it, and replaces one that dies.

The broker starts it while the store is recovered (`StartingDriver`): a helper process takes as long as some ten
thousand records.

    the driver                                       action
    -----------------------------------------------  ----------------------------------------------------------------
    is dead                                          a successor is started; the flusher repeats the steps under way
    has died MAX_DEATHS times with files to sync,    nothing is synced any more: the store has failed, and the broker
    without syncing anything in between              ends
    has died MAX_DEATHS_AT_ONCE times in a short     the same
    time
    cannot be started in START_ATTEMPTS attempts     the same
    has synced nothing for a while                   a warning names the driver: the disk may be slow
    and is stopped (SIGSTOP), or the store is being  it is killed
    closed

While the store is being closed, only one successor is tried. So closing takes a bounded time whatever happens to the
disk and the driver. Every event is one line in the log.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from qstore.store.log_lines import Level, LogLine
from qstore.store.sync.driver import SyncDriver, SyncDriverError
from qstore.store.sync.io_uring import IoUringSync
from qstore.store.sync.process import HelperProcessSync
from qstore.store.sync.threads import InlineSync, ThreadSync

if TYPE_CHECKING:
    from qstore.store.environment import Background

AUTO: Final = "auto"
_DRIVERS: Final[dict[str, Callable[[], SyncDriver]]] = {
    "io-uring": IoUringSync,
    "process": HelperProcessSync,
    "thread": ThreadSync,
    "inline": InlineSync,
}
SYNC_DRIVERS: Final = (AUTO, *_DRIVERS)
"""The values accepted by `choose_sync_driver`."""


def choose_sync_driver(name: str = AUTO) -> SyncDriver:
    """Start the named driver; `auto` is the first of io_uring, a helper process and threads that can be started.

    Raises:
        SyncDriverError: io_uring or the helper process, requested by name, cannot be started.
        ValueError: the name is unknown.
    """
    if name == AUTO:
        for start in (IoUringSync, HelperProcessSync):
            with contextlib.suppress(SyncDriverError):
                return start()
        return ThreadSync()
    if name not in _DRIVERS:
        raise ValueError(f"sync driver {name!r} is unknown: choose one of {', '.join(SYNC_DRIVERS)}")
    return _DRIVERS[name]()


class StartingDriver:
    """A sync driver that is being started.

    Args:
        background: starts it. It is closed when the driver is taken.
        make: makes it, and waits until it has started.
    """

    __slots__ = ("_background", "_errors", "_is_taken", "_started")

    def __init__(self, background: Background, make: Callable[[], SyncDriver]) -> None:
        self._background, self._is_taken = background, False
        self._started: list[SyncDriver] = []
        self._errors: list[Exception] = []
        background.run(make, self._started.append, self._errors.append)

    def take(self) -> SyncDriver:
        """The driver, which the caller closes. Re-raises the errors of `make`."""
        self._is_taken = True
        self._finish()
        if self._errors:
            raise self._errors[0]
        return self._started.pop()

    def close(self) -> None:
        """Close the driver, unless it was taken."""
        if not self._is_taken:
            self._finish()
            for driver in self._started:
                driver.close()

    def _finish(self) -> None:
        self._background.wait()
        self._background.collect()
        self._background.close()


MAX_DEATHS: Final = 5
"""Deaths with files to sync and nothing synced in between: another driver would die for the same reason."""
MAX_DEATHS_AT_ONCE: Final = 12
"""Deaths of any kind within `_AT_ONCE_SECONDS`."""
_AT_ONCE_SECONDS: Final = 10.0
START_ATTEMPTS: Final = 3
_PAUSE_SECONDS: Final = 0.1
"""Seconds between attempts: the system may be out of processes or memory for a moment."""
SLOW_SECONDS: Final = 5.0
"""Seconds without any sync before a warning; the next warnings follow at doubled intervals."""
_REGULAR_SECONDS: Final = 3.0
"""Maximum seconds between regular checks; after a longer gap the waiting time is unknown."""
PATIENCE_SECONDS: Final = 10.0
"""Seconds to wait for a driver that is stopped, or while the store is being closed."""


class Supervision:
    """Supervises the sync drivers of one store, which has one at a time.

    Args:
        log: receives log lines.
        clock: returns seconds.

    Attributes:
        is_closing: the store is being closed, so that all waiting must be bounded. Another thread may set it.
    """

    def __init__(self, log: Callable[[LogLine], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock = log, clock
        self.is_closing = False
        self._deaths: deque[float] = deque(maxlen=MAX_DEATHS_AT_ONCE)
        self._fruitless = 0  # deaths with files to sync since the last successful sync
        self._synced_at_death = -1
        self._synced = -1  # as of the last check
        self._since = self._looked = 0.0
        self._next_line = SLOW_SECONDS

    # ---- death ----

    def replace(self, dead: SyncDriver, death: SyncDriverError, journals: int, synced: int) -> SyncDriver:
        """Start a successor for a dead driver.

        Args:
            dead: the driver.
            death: the cause of its death.
            journals: number of journals with files to sync.
            synced: number of tickets that all drivers have returned so far.

        Raises:
            SyncDriverError: none can be started, or no more are to be tried. That is logged.
        """
        self._count_death(journals, synced)
        text = f"{death}; {_journals(journals)} waiting for it"
        try:
            self._check_deaths()
            again = ", and the pending data is written and synced again" if journals else ""
            self._log(LogLine(Level.CRITICAL, f"{text}: starting another{again}"))
            successor = self._start(dead)
        except SyncDriverError as error:
            why = f"{text}; {error}: nothing can be synced any more"
            advice = "acknowledged messages are kept; unacknowledged ones may be lost"
            self._log(LogLine(Level.CRITICAL, f"{why}, and the store accepts nothing until it is reopened; {advice}"))
            raise SyncDriverError(why) from error
        self._log(LogLine(Level.NOTICE, f"{successor.describe()} started"))
        return successor

    def _count_death(self, journals: int, synced: int) -> None:
        self._deaths.append(self._clock())
        if synced != self._synced_at_death:
            self._fruitless = 0
        self._synced_at_death = synced
        self._fruitless += journals > 0

    def _check_deaths(self) -> None:
        if self._fruitless >= (2 if self.is_closing else MAX_DEATHS):
            raise SyncDriverError(f"{self._fruitless} drivers in a row have died without syncing anything")
        if len(self._deaths) == MAX_DEATHS_AT_ONCE and self._deaths[-1] - self._deaths[0] < _AT_ONCE_SECONDS:
            raise SyncDriverError(f"{len(self._deaths)} drivers have died within {_AT_ONCE_SECONDS:g} seconds")

    def _start(self, dead: SyncDriver) -> SyncDriver:
        for left in reversed(range(START_ATTEMPTS)):
            try:
                return dead.successor()
            except SyncDriverError as error:
                if not left:
                    raise SyncDriverError(f"none can be started in {START_ATTEMPTS} attempts ({error})") from error
                time.sleep(_PAUSE_SECONDS)
        raise AssertionError("unreachable")

    # ---- hangs ----

    def look(self, driver: SyncDriver, journals: int, synced: int) -> None:
        """Check that the driver makes progress, and kill it if waiting is useless. Call it about every second.

        Args:
            driver: the driver.
            journals: number of journals with files to sync.
            synced: number of tickets that all drivers have returned so far.
        """
        now = self._clock()
        was_looked_at = now - self._looked < _REGULAR_SECONDS  # otherwise the waiting time is unknown
        self._looked = now
        if not journals or synced != self._synced or not was_looked_at:
            if self._next_line > SLOW_SECONDS:
                self._log(LogLine(Level.NOTICE, f"{driver.describe()} is syncing again"))
            self._synced, self._since, self._next_line = synced, now, SLOW_SECONDS
            return
        waited = now - self._since
        if waited >= self._next_line:
            self._next_line *= 2
            closing = "closing the store: " if self.is_closing else ""
            what = f"{closing}waiting for {driver.describe()} to sync {_journals(journals)}"
            text = f"{what}; it has synced nothing for {waited:.0f} seconds: check whether the disk is slow"
            self._log(LogLine(Level.WARNING, text))
        if waited >= PATIENCE_SECONDS and (self.is_closing or driver.is_stopped):
            self._synced, self._next_line = -1, SLOW_SECONDS  # the next driver is timed anew
            driver.kill(f"has synced nothing for {waited:.0f} seconds")


def _journals(count: int) -> str:
    return f"{count or 'no'} journal{'' if count == 1 else 's'}"
