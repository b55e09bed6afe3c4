"""Rate limits for log lines that any peer can cause: a flood of failed logins must not fill the log's disk.

In each period so many lines of one kind are logged, and the number of further ones at its end. `LogBudget` is for lines
of the log: it logs MAX_LINES at their level, and further ones at level debug.
"""

from __future__ import annotations

from typing import Final

from qstore.broker.log.logs import CategoryLog

MAX_LINES: Final = 20
PERIOD_SECONDS: Final = 60.0


class LineLimit:
    """The rate limit of one kind of lines.

    Args:
        max_lines: lines in a period.
    """

    def __init__(self, max_lines: int) -> None:
        self._max_lines = max_lines
        self._began = 0.0
        self._written = self._left_out = 0

    def admits(self, now: float) -> bool:
        """Whether one more line may be written. `now` is the time of a monotonic clock, in seconds, here and below."""
        if not self._written:
            self._began = now
        if self._written < self._max_lines:
            self._written += 1
            return True
        self._left_out += 1
        return False

    def ended(self, now: float, period: float = PERIOD_SECONDS) -> tuple[int, float]:
        """End the period if it is over. Returns how many lines were left out, and in how many seconds; 0 if none."""
        took = now - self._began
        if not self._written or took < period:
            return 0, 0.0
        left_out, self._written, self._left_out = self._left_out, 0, 0
        return left_out, took


class LogBudget:
    """The rate limit of one kind of lines.

    Args:
        log: the log to write to.
        level: the level of the lines.
        what: what the lines report, in the plural, such as "failed logins".
    """

    def __init__(self, log: CategoryLog, level: int, what: str) -> None:
        self._log, self._level, self._what = log, level, what
        self._limit = LineLimit(MAX_LINES)

    def write(self, now: float, text: str, *arguments: object) -> None:
        """Log a line, at level debug if the limit of the period is reached.

        Args:
            now: the time of a monotonic clock, in seconds.
            text: the text, as for `CategoryLog.log`.
            *arguments: its arguments.
        """
        self.on_timer(now)
        if self._limit.admits(now):
            self._log.log(self._level, text, *arguments)
        else:
            self._log.debug(text, *arguments)

    def on_timer(self, now: float) -> None:
        """End the period if it is over, and log the number of suppressed lines."""
        left_out, seconds = self._limit.ended(now)
        if left_out:
            text = "%d more %s within %.0f seconds; log level debug+ shows each of them"
            self._log.log(self._level, text, left_out, self._what, seconds)
