"""Which of a publisher's numbers are done, and which still wait: the completion ledger.

A peer numbers what it asks for, from 0 up: commands of AMQP 0-10, messages in confirm mode of 0-9-1, deliveries of
1.0. Every number comes to be done once:

    plain                 when the tick in which it came is worked off (`settle`). Nothing is kept or called for it
    held                  when what was written for it in that tick is on the disk: `settle` returns the runs of such
                          numbers, and whoever flushes them releases them
    postponed             when whoever postponed it releases it
    held for all before   a barrier: when every number below it is done, whatever was released before that

A number whose flush fails is never released, so it is never done, and nor is a barrier above it: what becomes of it is
the protocol's matter (0-10 ends the session, 0-9-1 answers with basic.nack).

What is done is a set of numbers, as runs (`Done`). 0-10 completions, 0-9-1 confirms and 1.0 dispositions are three ways
to print it: `session.completed` with ranges, `basic.ack` with `multiple` for all below and one for each above, one
disposition for each run.

No I/O and no clock: numbers go in and come out.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from operator import itemgetter
from typing import TypeAlias

Runs: TypeAlias = list[list[int]]
"""First and last number of each run, both included, going up."""

_first, _last = itemgetter(0), itemgetter(1)


class Done:
    """The numbers that are done: nearly always all below one, and apart from it a few runs above.

    Args:
        below: where the numbers begin.

    Attributes:
        below: all below this are done.
        beyond: the runs above it, first and last number included; they go up and do not touch.
    """

    __slots__ = ("below", "beyond")

    def __init__(self, below: int = 0) -> None:
        self.below = below
        self.beyond: list[tuple[int, int]] = []

    def add(self, first: int, last: int) -> None:
        """The numbers `first` to `last` are done; those that were done before change nothing."""
        if first <= self.below and not self.beyond:
            self.below = max(self.below, last + 1)
            return
        beyond = self.beyond
        begin = bisect_left(beyond, first - 1, key=_last)  # from here on they touch it, up to `end`
        end = bisect_right(beyond, last + 1, lo=begin, key=_first)
        if begin < end:
            first, last = min(first, beyond[begin][0]), max(last, beyond[end - 1][1])
        beyond[begin:end] = [(first, last)]
        if beyond[0][0] <= self.below:
            self.below = max(self.below, beyond.pop(0)[1] + 1)


class CompletionLedger:
    """The numbers of one publisher.

    Args:
        begin: the first of them.

    Attributes:
        done: those that are done.
        settled: all below this are done, or wait.
    """

    __slots__ = ("_barriers", "_held", "_postponed", "done", "settled")

    def __init__(self, begin: int = 0) -> None:
        self.done = Done(begin)
        self.settled = begin
        self._held: Runs = []  # since the last `settle`
        self._postponed: list[int] = []  # likewise
        self._barriers: deque[int] = deque()

    def hold(self, number: int) -> None:
        """The number waits for the flush of this tick. To be said before any later number is held."""
        held = self._held
        if held and held[-1][1] == number - 1:
            held[-1][1] = number
        else:
            held.append([number, number])

    def postpone(self, number: int) -> None:
        """As `hold`, but `settle` does not return it: whoever postpones it releases it."""
        self._postponed.append(number)

    def hold_for_all_before(self, number: int) -> None:
        """The number is done when all below it are. To be said before any later number is held."""
        self.hold(number)
        self._barriers.append(number)

    def settle(self, end: int) -> Runs:
        """All numbers below `end` have come: those that do not wait are done. Returns the runs that are held."""
        if end <= self.settled:
            return []
        held, self._held = self._held, []
        at, done = self.settled, self.done
        waiting = held
        if self._postponed:
            waiting = sorted(held + [[number, number] for number in self._postponed])
            self._postponed.clear()
        for first, last in waiting:
            if at < first:
                done.add(at, first - 1)
            at = max(at, last + 1)
        if at < end:
            done.add(at, end - 1)
        self.settled = end
        if self._barriers:
            self._pass_barriers()
        return held

    def release(self, runs: Runs) -> None:
        """What these waited for has happened. Barriers among them still wait for all below them."""
        for first, last in runs:
            if self._barriers:
                self._release_around_barriers(first, last)
            else:
                self.done.add(first, last)
        if self._barriers:
            self._pass_barriers()

    def _release_around_barriers(self, first: int, last: int) -> None:
        at = first
        for barrier in self._barriers:
            if at <= barrier <= last:
                if at < barrier:
                    self.done.add(at, barrier - 1)
                at = barrier + 1
        if at <= last:
            self.done.add(at, last)

    def _pass_barriers(self) -> None:
        barriers, done = self._barriers, self.done
        while barriers and barriers[0] <= done.below:
            barrier = barriers.popleft()
            done.add(barrier, barrier)
