"""Log lines that any peer can cause, bounded: a flood of failed logins must not fill the disk that the log is on.

So many lines of one kind are written in a period. Those beyond are written at level debug, counted, and told as a
number when the period is over.
"""

from __future__ import annotations

from typing import Final

from broker.log.logs import CategoryLog

MAX_LINES: Final = 20
PERIOD_SECONDS: Final = 60.0


class LogBudget:
    """The lines of one kind.

    Args:
        log: where they go.
        level: their level.
        what: what they are, in the plural.
    """

    def __init__(self, log: CategoryLog, level: int, what: str) -> None:
        self._log, self._level, self._what = log, level, what
        self._began = 0.0
        self._written = self._left_out = 0

    def write(self, now: float, text: str, *arguments: object) -> None:
        """Write a line, if there is room for it.

        Args:
            now: seconds of a clock that does not go back.
            text: what it says, as for `CategoryLog.log`.
            *arguments: likewise.
        """
        self.tick(now)
        if not self._written:
            self._began = now
        if self._written < MAX_LINES:
            self._written += 1
            self._log.log(self._level, text, *arguments)
        else:
            self._left_out += 1
            self._log.debug(text, *arguments)

    def tick(self, now: float) -> None:
        """Some time has gone by: at the end of a period, say how many lines were left out."""
        if self._written and now - self._began >= PERIOD_SECONDS:
            left_out, self._written, self._left_out = self._left_out, 0, 0
            if left_out:
                text = "%d more %s within %.0f seconds; debug+ shows each of them"
                self._log.log(self._level, text, left_out, self._what, now - self._began)
