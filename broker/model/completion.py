"""The completion ledger: which of a publisher's numbers are done, and which still wait.

A peer numbers its requests from 0 up: commands in AMQP 0-10, messages in confirm mode of 0-9-1, deliveries in 1.0.
Every number is completed once:

    plain                 when the tick in which it arrived has been processed (`complete_below`); needs no state
    held                  when the records written for it in that tick are on the disk: `complete_below` returns the
                          runs of these numbers, and the caller that flushes them calls `complete`
    postponed             when the code that postponed it calls `complete`
    held for all before   a barrier: when every number below it is done, even if `complete` is called earlier

A number whose flush fails is never completed, nor is a barrier above it. The protocol decides what follows: 0-10 ends
the session, 0-9-1 answers with basic.nack.

The numbers that are done form a set of runs (`Done`). 0-10 completions, 0-9-1 confirms and 1.0 dispositions are three
encodings of it: `session.completed` with ranges, `basic.ack` with `multiple` for all below and one for each above, one
disposition for each run.

No I/O and no clock: numbers in, numbers out.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from operator import itemgetter
from typing import TypeAlias

Runs: TypeAlias = list[list[int]]
"""First and last number of each run, both inclusive, in ascending order."""

_first, _last = itemgetter(0), itemgetter(1)


class Done:
    """The numbers that are done: usually all below some number, plus a few runs above it.

    Args:
        below: the first number.

    Attributes:
        below: all below this are done.
        beyond: the runs above it, first and last number inclusive; ascending, and not adjacent.
    """

    __slots__ = ("below", "beyond")

    def __init__(self, below: int = 0) -> None:
        self.below = below
        self.beyond: list[tuple[int, int]] = []

    def add(self, first: int, last: int) -> None:
        """Mark `first` to `last` as done; numbers already done are ignored."""
        if first <= self.below and not self.beyond:
            self.below = max(self.below, last + 1)
            return
        beyond = self.beyond
        begin = bisect_left(beyond, first - 1, key=_last)  # the runs from here to `end` touch the new one
        end = bisect_right(beyond, last + 1, lo=begin, key=_first)
        if begin < end:
            first, last = min(first, beyond[begin][0]), max(last, beyond[end - 1][1])
        beyond[begin:end] = [(first, last)]
        if beyond[0][0] <= self.below:
            self.below = max(self.below, beyond.pop(0)[1] + 1)

    def count_below(self, end: int) -> int:
        """How many of the numbers from 0 to `end` - 1 are done."""
        return min(self.below, end) + sum(min(last + 1, end) - min(first, end) for first, last in self.beyond)

    def missing(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """The runs between `first` and `last` that are not done."""
        at = max(first, self.below)
        for begin, end in self.beyond:
            if begin > last:
                break
            if at < begin:
                yield at, begin - 1
            at = max(at, end + 1)
        if at <= last:
            yield at, last


class CompletionLedger:
    """The numbers of one publisher.

    Args:
        begin: the first number.

    Attributes:
        done: the numbers that are done.
        processed: all below this are done or waiting.
    """

    __slots__ = ("_barriers", "_held", "_postponed", "done", "processed")

    def __init__(self, begin: int = 0) -> None:
        self.done = Done(begin)
        self.processed = begin
        self._held: Runs = []  # since the last `complete_below`
        self._postponed: list[int] = []  # likewise
        self._barriers: deque[int] = deque()

    def hold(self, number: int) -> None:
        """Hold the number until the flush of this tick. Call it before any later number is held."""
        held = self._held
        if held and held[-1][1] == number - 1:
            held[-1][1] = number
        else:
            held.append([number, number])

    def hold_run(self, first: int, last: int) -> None:
        """As `hold`, for all numbers from `first` to `last`."""
        held = self._held
        if held and held[-1][1] == first - 1:
            held[-1][1] = last
        else:
            held.append([first, last])

    def postpone(self, number: int) -> None:
        """As `hold`, but `complete_below` does not return it: the caller completes it later."""
        self._postponed.append(number)

    def hold_for_all_before(self, number: int) -> None:
        """Hold the number until all numbers below it are done. Call it before any later number is held."""
        self.hold(number)
        self._barriers.append(number)

    def complete_below(self, end: int) -> Runs:
        """Complete all numbers below `end` that do not wait. Returns the runs that are held."""
        if end <= self.processed:
            return []
        held, self._held = self._held, []
        at, done = self.processed, self.done
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
        self.processed = end
        if self._barriers:
            self._pass_barriers()
        return held

    def complete(self, runs: Runs) -> None:
        """Complete numbers that waited. Barriers among them still wait for all numbers below them."""
        for first, last in runs:
            if self._barriers:
                self._complete_around_barriers(first, last)
            else:
                self.done.add(first, last)
        if self._barriers:
            self._pass_barriers()

    def _complete_around_barriers(self, first: int, last: int) -> None:
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
