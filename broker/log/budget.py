"""Rate limit for log lines that any peer can cause: a flood of failed logins must not fill the log's disk.

In each period up to MAX_LINES lines of one kind are logged at their level. Further lines are logged at level debug, and
their number is logged at the end of the period.
"""

from __future__ import annotations

from typing import Final

from qstore.broker.log.logs import CategoryLog

MAX_LINES: Final = 20
PERIOD_SECONDS: Final = 60.0


class LogBudget:
    """The rate limit of one kind of lines.

    Args:
        log: the log to write to.
        level: the level of the lines.
        what: what the lines report, in the plural, such as "failed logins".
    """

    def __init__(self, log: CategoryLog, level: int, what: str) -> None:
        self._log, self._level, self._what = log, level, what
        self._began = 0.0
        self._written = self._left_out = 0

    def write(self, now: float, text: str, *arguments: object) -> None:
        """Log a line, at level debug if the limit of the period is reached.

        Args:
            now: the time of a monotonic clock, in seconds.
            text: the text, as for `CategoryLog.log`.
            *arguments: its arguments.
        """
        self.on_timer(now)
        if not self._written:
            self._began = now
        if self._written < MAX_LINES:
            self._written += 1
            self._log.log(self._level, text, *arguments)
        else:
            self._left_out += 1
            self._log.debug(text, *arguments)

    def on_timer(self, now: float) -> None:
        """End the period if it is over, and log the number of suppressed lines."""
        if self._written and now - self._began >= PERIOD_SECONDS:
            left_out, self._written, self._left_out = self._left_out, 0, 0
            if left_out:
                text = "%d more %s within %.0f seconds; log level debug+ shows each of them"
                self._log.log(self._level, text, left_out, self._what, now - self._began)
