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
from itertools import islice
from typing import Final

from qstore.broker.model.queues.entry import Entry
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.settlement import AT_ONCE, drained
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

    __slots__ = ("_accepted", "_browsed_in_order", "_runs", "browsed", "unsettled")

    def __init__(self) -> None:
        self.unsettled: dict[int, Delivery] = {}
        self.browsed: dict[int, Delivery] = {}
        self._browsed_in_order: deque[int] = deque()  # with some that are gone
        self._accepted: set[int] = set()  # keys of `unsettled`, to be settled at commit
        self._runs: deque[_Run] = deque()

    def add(self, number: int, subscription: Subscription, entry: Entry, size: int) -> None:
        """Record a delivery."""
        if not subscription.acquires:
            self.browsed[number] = Delivery(subscription, entry)
            self._browsed_in_order.append(number)
            if len(self._browsed_in_order) > MAX_BROWSED:
                self._forget_oldest()
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

    def _forget_oldest(self) -> None:
        """Forget browsed deliveries beyond the limit. Finding the first of a dictionary is slow after deletions."""
        order, browsed = self._browsed_in_order, self.browsed
        while order and (len(browsed) > MAX_BROWSED or order[0] not in browsed):
            browsed.pop(order.popleft(), None)
        if len(order) > 2 * MAX_BROWSED:  # many behind the oldest are gone
            self._browsed_in_order = deque(browsed)

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
        """Remove settled deliveries, and return their queues and entries, one by one; browsed ones are forgotten.

        Args:
            ranges: of transfers, as received.
            near: the number of the next transfer.
        """
        wanted = merge_ranges(unwrap_ranges(ranges or (), near))
        unsettled, accepted = self.unsettled, self._accepted
        for number in _numbers(wanted, unsettled, near):
            if accepted:
                accepted.discard(number)
            delivery = unsettled.pop(number)
            yield delivery.subscription.queue, delivery.entry
        if self.browsed:
            for number in list(_numbers(wanted, self.browsed, near)):
                del self.browsed[number]

    def accept_at_commit(self, ranges: Iterable[tuple[int, int]] | None, near: int) -> Iterator[tuple[Queue, Entry]]:
        """Queues and entries of deliveries accepted in a transaction; they stay unsettled until the commit."""
        for number in _numbers(merge_ranges(unwrap_ranges(ranges or (), near)), self.unsettled, near):
            if number not in self._accepted:
                self._accepted.add(number)
                delivery = self.unsettled[number]
                yield delivery.subscription.queue, delivery.entry

    def are_more(self, count: int, ranges: Iterable[tuple[int, int]] | None, near: int) -> bool:
        """Whether more deliveries than that may be settled with these ranges."""
        if len(self.unsettled) <= count:
            return False
        return sum(last - first + 1 for first, last in unwrap_ranges(ranges or (), near)) > count

    def commit(self) -> dict[int, Delivery]:
        """Remove and return the deliveries accepted in the transaction, by number."""
        accepted, self._accepted = self._accepted, set()
        return {number: self.unsettled.pop(number) for number in accepted}

    def commit_in_turns(self) -> Iterator[None]:
        """Forget the deliveries accepted in the transaction, which are many."""
        accepted, self._accepted = self._accepted, set()
        numbers = iter(accepted)
        while portion := list(islice(numbers, AT_ONCE)):
            for number in portion:
                self.unsettled.pop(number, None)
            yield

    def roll_back(self) -> None:
        """Forget which deliveries were accepted in the transaction."""
        self._accepted.clear()

    def acquire(
        self, ranges: Iterable[tuple[int, int]] | None, near: int, acquired: list[tuple[int, int]]
    ) -> Iterator[None]:
        """Acquire browsed messages, as work in turns; the ranges of those that could be acquired go into a list.

        Messages of a browse-only queue, and of one that is exclusive to another session, can only be browsed.
        """
        numbers = _numbers(merge_ranges(unwrap_ranges(ranges or (), near)), self.browsed, near)
        while portion := list(islice(numbers, AT_ONCE)):
            for number in portion:
                if len(acquired) == MAX_RANGES:  # the client can ask for the rest again
                    return
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
            yield

    def take_all(self) -> Iterator[tuple[Queue, Entry]]:
        """Remove all deliveries, and return the queues and entries of those that are unsettled."""
        unsettled, self.unsettled = self.unsettled, {}
        self.browsed.clear()
        self._browsed_in_order.clear()
        self._accepted.clear()
        self._runs.clear()
        for delivery in drained(unsettled):
            yield delivery.subscription.queue, delivery.entry


def _numbers(ranges: list[tuple[int, int]], among: dict[int, Delivery], end: int) -> Iterator[int]:
    """The numbers in merged ranges that are in `among`, ascending and below `end`, one after the other.

    A peer may send any range, so the shorter of the two is walked: the ranges or `among`.
    """
    if sum(last - first + 1 for first, last in ranges) <= len(among):
        for first, last in ranges:
            for number in range(first, min(last + 1, end)):
                if number in among:
                    yield number
        return
    numbers = sorted(among)
    for first, last in ranges:
        for number in islice(numbers, bisect_left(numbers, first), bisect_right(numbers, last)):
            if number in among:
                yield number
