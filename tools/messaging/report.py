"""Throughput and latency reports, in the format of the original commands.

    qpid-send       tp(m/s)
    qpid-receive    tp(m/s)   l-min   l-max   l-avg      separated by tabs; latencies in milliseconds

Throughput is the average since the first message. Latency is the current time minus the message's "ts" (nanoseconds
since 1970), so it is correct only if both clocks are synchronized.
"""

from __future__ import annotations

import time
from collections.abc import Callable

TIMESTAMP = "ts"


class Throughput:
    """Counts messages.

    Args:
        clock: monotonic clock, in seconds.
    """

    heading = "tp(m/s)"

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.messages = 0
        self._began = 0.0

    def add(self, timestamp: object = None) -> None:
        """Count a message, with its "ts" if it has one."""
        del timestamp
        if not self.messages:
            self._began = self._clock()
        self.messages += 1

    def line(self) -> str:
        """The current report line."""
        if not self.messages:
            return "0"
        return f"{self.messages / max(self._clock() - self._began, 1e-9):.0f}"


class ThroughputAndLatency(Throughput):
    """Counts messages and measures their latency.

    Args:
        clock: monotonic clock, in seconds.
        now: current time, in nanoseconds since 1970.
    """

    heading = "tp(m/s)\tl-min\tl-max\tl-avg"

    def __init__(self, clock: Callable[[], float] = time.monotonic, now: Callable[[], int] = time.time_ns) -> None:
        super().__init__(clock)
        self._now = now
        self._min = self._max = self._total = 0.0
        self._samples = 0

    def add(self, timestamp: object = None) -> None:
        """Count a message, with its "ts" if it has one."""
        super().add()
        if not isinstance(timestamp, int):
            return
        latency = (self._now() - timestamp) / 1e6
        self._min = min(self._min, latency) if self._samples else latency
        self._max = max(self._max, latency) if self._samples else latency
        self._total += latency
        self._samples += 1

    def line(self) -> str:
        """The current report line."""
        if not self._samples:
            return super().line()
        average = self._total / self._samples
        return "\t".join([super().line(), *(f"{each:.2f}" for each in (self._min, self._max, average))])


class Reporter:
    """Prints reports at intervals and at the end, under one heading.

    Args:
        statistic: the statistic to report.
        show: prints a line.
        every: messages between two reports; 0 for none.
        is_total: whether to report at the end.
        has_heading: whether to print the heading.
    """

    def __init__(
        self, statistic: Throughput, show: Callable[[str], None], *, every: int, is_total: bool, has_heading: bool
    ) -> None:
        self._statistic, self._show = statistic, show
        self._every, self._is_total, self._has_heading = every, is_total, has_heading
        self.is_wanted = bool(every) or is_total

    def add(self, timestamp: object = None) -> None:
        """Count a message, with its "ts" if it has one."""
        self._statistic.add(timestamp)
        if self._every and self._statistic.messages % self._every == 0:
            self._report()

    def finish(self) -> None:
        """Print the final report, if wanted."""
        if self._is_total:
            self._report()

    def _report(self) -> None:
        if self._has_heading:
            self._show(self._statistic.heading)
            self._has_heading = False
        self._show(self._statistic.line())


class Pace:
    """Limits the rate of messages.

    Args:
        rate: messages per second; 0 for no limit.
        clock: monotonic clock, in seconds.
        sleep: sleeps for a number of seconds.
    """

    def __init__(
        self,
        rate: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate, self._clock, self._sleep = rate, clock, sleep
        self._began = clock()

    def keep(self, done: int) -> None:
        """Sleep until `done` messages do not exceed the rate."""
        if self._rate:
            ahead = self._began + done / self._rate - self._clock()
            if ahead > 0:
                self._sleep(ahead)
