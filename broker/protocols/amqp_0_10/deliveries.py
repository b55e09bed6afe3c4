"""The deliveries of a session, and their settlement.

    unsettled    messages that the client has acquired, by the number of their transfer: until it accepts, releases or
                 rejects them, or the session ends
    browsed      messages delivered without acquiring them, which the client may still acquire
    runs         transfers that the client has not completed, in order, for returning credit

Source: AMQP 0-10, class message, and session.completed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

from qstore.broker.model.queues.entry import Entry
from qstore.broker.model.queues.queue import Queue
from qstore.broker.protocols.amqp_0_10.sequence import merge_ranges, unwrap_ranges
from qstore.broker.protocols.amqp_0_10.subscription import Subscription

MAX_RANGES: Final = 0xFFFF // 8  # in one sequence-set: its size is 16 bits wide
MAX_BROWSED: Final = 65_536  # browsed deliveries of one session; beyond it, the oldest is forgotten


class Delivery:
    """A message that was delivered.

    Args:
        subscription, entry: to which subscription, and the message's entry on its queue.

    Attributes:
        subscription, entry: as above.
    """

    __slots__ = ("entry", "subscription")

    def __init__(self, subscription: Subscription, entry: Entry) -> None:
        self.subscription, self.entry = subscription, entry


class _Run:
    """Consecutive transfers of one subscription, all of one size."""

    __slots__ = ("epoch", "first", "last", "size", "subscription")

    def __init__(self, number: int, subscription: Subscription, size: int, epoch: int) -> None:
        self.first = self.last = number
        self.subscription, self.size, self.epoch = subscription, size, epoch


class Deliveries:
    """The deliveries of one session.

    Attributes:
        unsettled: number of the transfer -> acquired and unsettled delivery.
        browsed: number of the transfer -> browsed delivery.
    """

    __slots__ = ("_accepted", "_runs", "browsed", "unsettled")

    def __init__(self) -> None:
        self.unsettled: dict[int, Delivery] = {}
        self.browsed: dict[int, Delivery] = {}
        self._accepted: set[int] = set()  # keys of `unsettled`, to be settled at commit
        self._runs: deque[_Run] = deque()

    def add(self, number: int, subscription: Subscription, entry: Entry, size: int) -> None:
        """Record a delivery."""
        if not subscription.acquires:
            self.browsed[number] = Delivery(subscription, entry)
            if len(self.browsed) > MAX_BROWSED:
                del self.browsed[next(iter(self.browsed))]
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

    # ---- completion by the client ----

    def completed(self, ranges: Iterable[tuple[int, int]]) -> None:
        """The client has completed these transfers, in merged ranges: return their credit."""
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
        """Split off the part of a run before `number`: the run itself, if that is all of it."""
        if run.last < number:
            return run
        before = _Run(run.first, run.subscription, run.size, run.epoch)
        before.last = number - 1
        run.first = number
        return before

    def _run_completed(self, run: _Run, last: int) -> None:
        count = last - run.first + 1
        subscription = run.subscription
        subscription.return_credit(count, count * run.size, run.epoch)
        if not subscription.acquires and not subscription.is_accepting:
            for number in range(run.first, last + 1):
                self.browsed.pop(number, None)

    # ---- settlement by the client ----

    def settle(self, ranges: Iterable[tuple[int, int]] | None, near: int) -> Iterator[tuple[Queue, Entry]]:
        """Remove settled deliveries, and return their queues and entries; browsed ones are forgotten.

        Args:
            ranges: of transfers, as received.
            near: the number of the next transfer.
        """
        wanted = merge_ranges(unwrap_ranges(ranges or (), near))
        unsettled, accepted = self.unsettled, self._accepted
        for number in _numbers(wanted, unsettled):
            if accepted:
                accepted.discard(number)
            delivery = unsettled.pop(number)
            yield delivery.subscription.queue, delivery.entry
        if self.browsed:
            for number in _numbers(wanted, self.browsed):
                del self.browsed[number]

    def accept_at_commit(self, ranges: Iterable[tuple[int, int]] | None, near: int) -> Iterator[tuple[Queue, Entry]]:
        """Queues and entries of deliveries accepted in a transaction; they stay unsettled until the commit."""
        for number in _numbers(merge_ranges(unwrap_ranges(ranges or (), near)), self.unsettled):
            if number not in self._accepted:
                self._accepted.add(number)
                delivery = self.unsettled[number]
                yield delivery.subscription.queue, delivery.entry

    def commit(self) -> dict[int, Delivery]:
        """Remove and return the deliveries accepted in the transaction, by number."""
        accepted, self._accepted = self._accepted, set()
        return {number: self.unsettled.pop(number) for number in accepted}

    def roll_back(self) -> None:
        """Forget which deliveries were accepted in the transaction."""
        self._accepted.clear()

    def acquire(self, ranges: Iterable[tuple[int, int]] | None, near: int) -> list[tuple[int, int]]:
        """Acquire browsed messages. Returns the ranges of those that could be acquired.

        Messages of a browse-only queue, and of one that is exclusive to another session, can only be browsed.
        """
        acquired: list[tuple[int, int]] = []
        for number in _numbers(merge_ranges(unwrap_ranges(ranges or (), near)), self.browsed):
            if len(acquired) == MAX_RANGES:  # the client can ask for the rest again
                break
            delivery = self.browsed[number]
            queue, owner = delivery.subscription.queue, delivery.subscription.queue.owner
            if queue.is_browse_only or (owner is not None and owner is not delivery.subscription.session):
                continue
            if queue.is_deleted or not queue.acquire(delivery.entry, consumer=delivery.subscription):
                continue
            self.unsettled[number] = self.browsed.pop(number)
            if acquired and acquired[-1][1] == number - 1:
                acquired[-1] = (acquired[-1][0], number)
            else:
                acquired.append((number, number))
        return acquired

    def take_all(self) -> list[Delivery]:
        """Remove and return all unsettled deliveries, and forget the rest."""
        deliveries = list(self.unsettled.values())
        self.unsettled = {}
        self.browsed.clear()
        self._accepted.clear()
        self._runs.clear()
        return deliveries


def _numbers(ranges: list[tuple[int, int]], among: dict[int, Delivery]) -> list[int]:
    """The numbers in merged ranges that are in `among`, ascending.

    A peer may send any range, so the shorter of the two is walked: the ranges or `among`.
    """
    if sum(last - first + 1 for first, last in ranges) <= len(among):
        return [number for first, last in ranges for number in range(first, last + 1) if number in among]
    numbers = sorted(among)
    found: list[int] = []
    for first, last in ranges:
        found += numbers[bisect_left(numbers, first) : bisect_right(numbers, last)]
    return found
