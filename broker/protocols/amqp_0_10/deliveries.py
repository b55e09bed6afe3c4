"""What a session has delivered, and what has become of it.

    unsettled    messages that the client has acquired, by the number of their transfer: until it accepts, releases or
                 rejects them, or the session ends
    looked at    messages that it was only shown, which it may still acquire
    runs         transfers that the client has not completed, in order, for the credit that comes back

Source: AMQP 0-10, class message, and session.completed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from broker.model.queues.entry import Entry
from broker.protocols.amqp_0_10.sequence import merge_ranges, unwrap_ranges
from broker.protocols.amqp_0_10.subscription import Subscription

MOST_RANGES: Final = 0xFFFF // 8  # in one sequence-set: its size is 16 bits wide
MOST_LOOKED_AT: Final = 65_536  # of one session; one that looks on for ever, and accepts nothing, forgets the oldest


class Delivery(NamedTuple):
    """A message that was delivered."""

    subscription: Subscription
    entry: Entry


class _Run:
    """Transfers of one subscription, of one size, one after the other."""

    __slots__ = ("epoch", "first", "last", "size", "subscription")

    def __init__(self, number: int, subscription: Subscription, size: int, epoch: int) -> None:
        self.first = self.last = number
        self.subscription, self.size, self.epoch = subscription, size, epoch


class Deliveries:
    """The deliveries of one session.

    Attributes:
        unsettled: number of the transfer -> what the client has acquired, and not settled.
        looked_at: number of the transfer -> what it was shown.
    """

    __slots__ = ("_accepted", "_runs", "looked_at", "unsettled")

    def __init__(self) -> None:
        self.unsettled: dict[int, Delivery] = {}
        self.looked_at: dict[int, Delivery] = {}
        self._accepted: set[int] = set()  # numbers among the unsettled, to be settled at commit
        self._runs: deque[_Run] = deque()

    def add(self, number: int, subscription: Subscription, entry: Entry, size: int) -> None:
        """A message was sent."""
        if not subscription.acquires:
            self.looked_at[number] = Delivery(subscription, entry)
            if len(self.looked_at) > MOST_LOOKED_AT:
                del self.looked_at[next(iter(self.looked_at))]
        elif subscription.is_accepting:
            self.unsettled[number] = Delivery(subscription, entry)
        if not subscription.is_windowed and subscription.acquires:
            return
        runs = self._runs
        if runs:
            run = runs[-1]
            if (
                run.last == number - 1
                and run.subscription is subscription
                and run.size == size
                and run.epoch == subscription.epoch
            ):
                run.last = number
                return
        runs.append(_Run(number, subscription, size, subscription.epoch))

    # ---- what the client completes ----

    def completed(self, ranges: Iterable[tuple[int, int]]) -> None:
        """The client has completed these transfers, in merged ranges: credit comes back."""
        runs = self._runs
        before: list[_Run] = []
        for first, last in ranges:
            while runs and runs[0].first <= last:
                run = runs.popleft()
                if run.first < first:
                    before.append(self._cut(run, first))
                    if before[-1] is run:
                        continue
                end = min(run.last, last)
                self._run_completed(run, end)
                if end < run.last:
                    run.first = end + 1
                    runs.appendleft(run)
        runs.extendleft(reversed(before))

    @staticmethod
    def _cut(run: _Run, number: int) -> _Run:
        """What of a run comes before `number`: the run itself, if it is all of it."""
        if run.last < number:
            return run
        before = _Run(run.first, run.subscription, run.size, run.epoch)
        before.last = number - 1
        run.first = number
        return before

    def _run_completed(self, run: _Run, last: int) -> None:
        count = last - run.first + 1
        subscription = run.subscription
        subscription.take_back(count, count * run.size, run.epoch)
        if not subscription.acquires and not subscription.is_accepting:
            for number in range(run.first, last + 1):
                self.looked_at.pop(number, None)

    # ---- what the client settles ----

    def settle(self, ranges: Iterable[tuple[int, int]] | None, near: int) -> Iterator[Delivery]:
        """Take what the client settles; what it was only shown is forgotten.

        Args:
            ranges: of transfers, as they came.
            near: the number of the next transfer.
        """
        wanted = merge_ranges(unwrap_ranges(ranges or (), near))
        unsettled = self.unsettled
        for number in _numbers(wanted, unsettled):
            self._accepted.discard(number)
            yield unsettled.pop(number)
        if self.looked_at:
            for number in _numbers(wanted, self.looked_at):
                del self.looked_at[number]

    def accept_at_commit(self, ranges: Iterable[tuple[int, int]] | None, near: int) -> Iterator[Delivery]:
        """What the client accepts in a transaction, and what stays unsettled until that is committed."""
        for number in _numbers(merge_ranges(unwrap_ranges(ranges or (), near)), self.unsettled):
            if number not in self._accepted:
                self._accepted.add(number)
                yield self.unsettled[number]

    def commit(self) -> dict[int, Delivery]:
        """Take what was accepted in the transaction, by number."""
        accepted, self._accepted = self._accepted, set()
        return {number: self.unsettled.pop(number) for number in accepted}

    def roll_back(self) -> None:
        """What was accepted in the transaction was not."""
        self._accepted.clear()

    def acquire(self, ranges: Iterable[tuple[int, int]] | None, near: int) -> list[tuple[int, int]]:
        """Acquire messages that were shown. Returns the ranges of those that nobody else had."""
        acquired: list[tuple[int, int]] = []
        for number in _numbers(merge_ranges(unwrap_ranges(ranges or (), near)), self.looked_at):
            if len(acquired) == MOST_RANGES:  # what is not acquired now can be asked for again
                break
            delivery = self.looked_at[number]
            queue = delivery.subscription.queue
            if queue.is_deleted or not queue.acquire(delivery.entry):
                continue
            self.unsettled[number] = self.looked_at.pop(number)
            if acquired and acquired[-1][1] == number - 1:
                acquired[-1] = (acquired[-1][0], number)
            else:
                acquired.append((number, number))
        return acquired

    def take_all(self) -> list[Delivery]:
        """Take all that is unsettled, and forget the rest."""
        deliveries = list(self.unsettled.values())
        self.unsettled = {}
        self.looked_at.clear()
        self._accepted.clear()
        self._runs.clear()
        return deliveries


def _numbers(ranges: list[tuple[int, int]], among: dict[int, Delivery]) -> list[int]:
    """The numbers of merged ranges that are in `among`, going up.

    A peer may name any range: so what is shorter is gone through, the ranges or what there is.
    """
    if sum(last - first + 1 for first, last in ranges) <= len(among):
        return [number for first, last in ranges for number in range(first, last + 1) if number in among]
    numbers = sorted(among)
    found: list[int] = []
    for first, last in ranges:
        found += numbers[bisect_left(numbers, first) : bisect_right(numbers, last)]
    return found
