"""What is done when a sync driver dies, or does not answer.

    the driver                                       what is done
    -----------------------------------------------  ----------------------------------------------------------------
    is dead                                          a successor is started; the flusher has it sync what was under way
    has died MAX_DEATHS times with files to sync,    nothing is synced any more: the store has failed, and whoever uses
    and has synced nothing in between                it ends
    has died MAX_DEATHS_AT_ONCE times in a short     the same
    while
    cannot be started in START_ATTEMPTS attempts     the same
    has synced nothing for a while                   a warning says whom the store is waiting for: a disk may be slow
    and is stopped (SIGSTOP), or the store is being  it is killed, so it is dead
    closed

While the store is being closed, one successor is all that is tried. So closing takes a bounded time whatever the disk
and the driver do. Every event is one line in the log.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

from store.log_lines import Level, LogLine
from store.sync.driver import SyncDriver, SyncDriverError

MAX_DEATHS: Final = 5
"""Deaths with files to sync and not one synced in between: the next one would die of the same."""
MAX_DEATHS_AT_ONCE: Final = 12
"""Deaths of any kind within `_AT_ONCE_SECONDS`."""
_AT_ONCE_SECONDS: Final = 10.0
START_ATTEMPTS: Final = 3
_PAUSE_SECONDS: Final = 0.1
"""Between attempts: the system may have been out of processes or memory for a moment."""
SLOW_SECONDS: Final = 5.0
"""So long without anything synced is told; then again after twice the time, and so on."""
_REGULAR_SECONDS: Final = 3.0
"""Looks that are further apart are no regular ones: nobody knows what came in between."""
PATIENCE_SECONDS: Final = 10.0
"""So long is waited for a driver that is stopped, or while the store is being closed."""


class Supervision:
    """Looks after the sync drivers of one store, which has one at a time.

    Args:
        log: takes lines for the log.
        clock: gives seconds.

    Attributes:
        is_closing: the store is being closed, so that nothing may be waited for without a bound. Another thread may
            set it.
    """

    def __init__(self, log: Callable[[LogLine], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock = log, clock
        self.is_closing = False
        self._deaths: deque[float] = deque(maxlen=MAX_DEATHS_AT_ONCE)
        self._fruitless = 0  # deaths with files to sync, since something was synced
        self._synced_at_death = -1
        self._synced = -1  # as of the last look
        self._since = self._looked = 0.0
        self._next_line = SLOW_SECONDS

    # ---- death ----

    def replace(self, dead: SyncDriver, death: SyncDriverError, journals: int, synced: int) -> SyncDriver:
        """A successor for a driver that has died.

        Args:
            dead: the driver.
            death: how it died.
            journals: how many have files that it was to sync.
            synced: how many tickets have come back from all drivers so far.

        Raises:
            SyncDriverError: there is none, and none is to be tried any more. That is logged.
        """
        self._count_death(journals, synced)
        text = f"{death}; {_journals(journals)} waited for it"
        try:
            self._check_deaths()
            again = ", and what waited is written and synced again" if journals else ""
            self._log(LogLine(Level.CRITICAL, f"{text}: another is started{again}"))
            successor = self._start(dead)
        except SyncDriverError as error:
            why = f"{text}; {error}: nothing can be synced any more"
            advice = "all that was acknowledged is kept; what was not may be lost"
            self._log(LogLine(Level.CRITICAL, f"{why}, and the store takes nothing until it is opened again; {advice}"))
            raise SyncDriverError(why) from error
        self._log(LogLine(Level.NOTICE, f"{successor.describe()} was started"))
        return successor

    def _count_death(self, journals: int, synced: int) -> None:
        self._deaths.append(self._clock())
        if synced != self._synced_at_death:
            self._fruitless = 0
        self._synced_at_death = synced
        self._fruitless += journals > 0

    def _check_deaths(self) -> None:
        if self._fruitless >= (2 if self.is_closing else MAX_DEATHS):
            raise SyncDriverError(f"that is the {self._fruitless}th in a row that has synced nothing")
        if len(self._deaths) == MAX_DEATHS_AT_ONCE and self._deaths[-1] - self._deaths[0] < _AT_ONCE_SECONDS:
            raise SyncDriverError(f"that is the {len(self._deaths)}th within {_AT_ONCE_SECONDS:g} seconds")

    def _start(self, dead: SyncDriver) -> SyncDriver:
        for left in reversed(range(START_ATTEMPTS)):
            try:
                return dead.successor()
            except SyncDriverError as error:
                if not left:
                    raise SyncDriverError(f"no other can be started in {START_ATTEMPTS} attempts ({error})") from error
                time.sleep(_PAUSE_SECONDS)
        raise AssertionError("unreachable")

    # ---- silence ----

    def look(self, driver: SyncDriver, journals: int, synced: int) -> None:
        """See whether the driver does anything, and kill it if it is no use to wait. To be called about every second.

        Args:
            driver: the driver.
            journals: how many have files that it is to sync.
            synced: how many tickets have come back from all drivers so far.
        """
        now = self._clock()
        was_looked_at = now - self._looked < _REGULAR_SECONDS  # else nobody knows since when
        self._looked = now
        if not journals or synced != self._synced or not was_looked_at:
            if self._next_line > SLOW_SECONDS:
                self._log(LogLine(Level.NOTICE, f"{driver.describe()} has synced something again"))
            self._synced, self._since, self._next_line = synced, now, SLOW_SECONDS
            return
        waited = now - self._since
        if waited >= self._next_line:
            self._next_line *= 2
            closing = "closing the store: " if self.is_closing else ""
            what = f"{closing}waiting for {driver.describe()} to sync {_journals(journals)}"
            text = f"{what}; it has synced nothing for {waited:.0f} seconds: see whether the disk is slow"
            self._log(LogLine(Level.WARNING, text))
        if waited >= PATIENCE_SECONDS and (self.is_closing or driver.is_stopped):
            self._synced, self._next_line = -1, SLOW_SECONDS  # the next one has its own time
            driver.kill(f"has synced nothing for {waited:.0f} seconds")


def _journals(count: int) -> str:
    return f"{count or 'no'} journal{'' if count == 1 else 's'}"
