"""Throughput and latency, in lines as those of qpidd's own commands.

    qpid-send       tp(m/s)
    qpid-receive    tp(m/s)   l-min   l-max   l-avg      separated by tabs; latencies in milliseconds

A rate counts from the first message, over all there were. Latency is now less the message's "ts" (nanoseconds since
1970), so it is right only where both clocks are.
"""

from __future__ import annotations

import time
from collections.abc import Callable

TIMESTAMP = "ts"


class Throughput:
    """Counts messages.

    Args:
        clock: seconds.
    """

    heading = "tp(m/s)"

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.messages = 0
        self._began = 0.0

    def add(self, timestamp: object = None) -> None:
        """One more message, with its "ts" if it has one."""
        del timestamp
        if not self.messages:
            self._began = self._clock()
        self.messages += 1

    def line(self) -> str:
        """What there is to be told so far."""
        if not self.messages:
            return "0"
        return f"{self.messages / max(self._clock() - self._began, 1e-9):.0f}"


class ThroughputAndLatency(Throughput):
    """Counts messages and looks at how old they are.

    Args:
        clock: seconds.
        now: nanoseconds since 1970.
    """

    heading = "tp(m/s)\tl-min\tl-max\tl-avg"

    def __init__(self, clock: Callable[[], float] = time.monotonic, now: Callable[[], int] = time.time_ns) -> None:
        super().__init__(clock)
        self._now = now
        self._least = self._most = self._total = 0.0
        self._samples = 0

    def add(self, timestamp: object = None) -> None:
        """One more message, with its "ts" if it has one."""
        super().add()
        if not isinstance(timestamp, int):
            return
        latency = (self._now() - timestamp) / 1e6
        self._least = min(self._least, latency) if self._samples else latency
        self._most = max(self._most, latency) if self._samples else latency
        self._total += latency
        self._samples += 1

    def line(self) -> str:
        """What there is to be told so far."""
        if not self._samples:
            return super().line()
        average = self._total / self._samples
        return "\t".join([super().line(), *(f"{each:.2f}" for each in (self._least, self._most, average))])


class Reporter:
    """Shows a statistic every so often and at the end, under one heading.

    Args:
        statistic: what is counted.
        show: takes a line.
        every: messages between two reports, 0 for none.
        is_total: report at the end.
        has_heading: show the heading.
    """

    def __init__(
        self, statistic: Throughput, show: Callable[[str], None], *, every: int, is_total: bool, has_heading: bool
    ) -> None:
        self._statistic, self._show = statistic, show
        self._every, self._is_total, self._has_heading = every, is_total, has_heading
        self.is_wanted = bool(every) or is_total

    def add(self, timestamp: object = None) -> None:
        """One more message."""
        self._statistic.add(timestamp)
        if self._every and self._statistic.messages % self._every == 0:
            self._report()

    def finish(self) -> None:
        """There are no more."""
        if self._is_total:
            self._report()

    def _report(self) -> None:
        if self._has_heading:
            self._show(self._statistic.heading)
            self._has_heading = False
        self._show(self._statistic.line())


class Pace:
    """Keeps to a rate.

    Args:
        rate: messages a second, 0 for as fast as it goes.
        clock: seconds.
        sleep: lets time pass.
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
        """Wait until `done` messages are not too many for the time that has gone by."""
        if self._rate:
            ahead = self._began + done / self._rate - self._clock()
            if ahead > 0:
                self._sleep(ahead)
