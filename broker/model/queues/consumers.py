"""The consumers of one queue.

    takers      take messages. Those that can take one stand in a ring, and are offered one each in turn
    browsers    look on, and take none. Each has a cursor of its own, and sees every message once

A taker is offered a message again only if it could not take it for the moment. What it can never take is passed over
(`passed_over`) when all that stand in the ring have declined it.

What somebody has acquired, or has expired, when a browser's cursor comes to it is not shown; what comes back behind the
cursor is not shown again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Final

from broker.model.queues.consumer import NOT_FOR_ME, REFUSED, TAKEN, TAKEN_LAST, Consumer
from broker.model.queues.entry import AVAILABLE, END, GONE, Entry
from broker.model.queues.passed_over import PassedOver

_NOBODY: Final[frozenset[Hashable]] = frozenset()


class Consumers:
    """The consumers of one queue.

    Attributes:
        takers: those who take messages.
        browsers: those who look on.
        waiting: the ring of takers that can take a message; the first is the next that is offered one.
        declined: entry -> kinds of takers that have declined it; empty nearly always. To be read only.
    """

    __slots__ = ("_passed_over", "browsers", "declined", "takers", "waiting")

    def __init__(self) -> None:
        self.takers: list[Consumer] = []
        self.browsers: list[Consumer] = []
        self.waiting: deque[Consumer] = deque()
        self._passed_over = PassedOver()
        self.declined = self._passed_over.declined

    def __len__(self) -> int:
        return len(self.takers) + len(self.browsers)

    def add(self, consumer: Consumer, first: Entry) -> None:
        """There is one more, which does not wait yet; `first` is the queue's first entry."""
        consumer.is_waiting = False
        if consumer.acquires:
            self.takers.append(consumer)
        else:
            consumer.cursor = first
            self.browsers.append(consumer)

    def remove(self, consumer: Consumer) -> None:
        """One is gone."""
        if consumer.acquires:
            self.takers.remove(consumer)
            if consumer.is_waiting:
                self.waiting.remove(consumer)
        else:
            self.browsers.remove(consumer)
            del consumer.cursor  # or it would keep the message there for as long as its session knows it
        consumer.is_waiting = False

    def wake(self, consumer: Consumer) -> Entry | None:
        """One can take messages. Returns the first that was passed over, and that it has to be offered."""
        consumer.is_waiting = True
        if not consumer.acquires:
            return None
        self.waiting.append(consumer)
        return self._passed_over.first_for(consumer.kind) if self.declined else None

    # ---- messages ----

    def offer(self, entry: Entry, result: int | None) -> bool:
        """Offer an entry to those that wait, one after the other. Whether one has taken it.

        If none has, and some still wait, it is passed over.

        Args:
            entry: the entry.
            result: what the first of them has answered (`Consumer.deliver`); None if it was not asked yet.
        """
        waiting = self.waiting
        before = declined = self.declined.get(entry, _NOBODY)
        for _ in range(len(waiting)):
            consumer = waiting[0]
            if result is None:
                result = NOT_FOR_ME if consumer.kind in declined else consumer.deliver(entry)
            if result in (TAKEN, NOT_FOR_ME):
                waiting.rotate(-1)
            else:
                waiting.popleft()
                consumer.is_waiting = False
            if result in (TAKEN, TAKEN_LAST):
                break
            if result == NOT_FOR_ME:
                declined |= {consumer.kind}
            result = None
        else:
            if waiting:
                self._passed_over.add(entry, declined)
            return False
        if before:
            self._passed_over.discard(entry)
        return True

    def show(self, limit: int, clock: Callable[[], float]) -> None:
        """Show browsers what they have not seen, up to the position `limit`, for as long as they take it."""
        for browser in list(self.browsers):
            while browser.is_waiting:
                entry = browser.cursor
                if entry.state == END or entry.position >= limit:
                    break
                if entry.state == AVAILABLE and not (0 < entry.message.expires_at <= clock()):
                    result = browser.deliver(entry)
                    if result == REFUSED:
                        browser.is_waiting = False
                        break
                    if result not in (TAKEN, NOT_FOR_ME):
                        browser.is_waiting = False
                browser.cursor = entry.next if entry.state != GONE else browser.cursor

    def acquired(self, entry: Entry) -> None:
        """Somebody has an entry that was not offered."""
        if self.declined:
            self._passed_over.discard(entry)

    def removed(self, entry: Entry, following: Entry) -> None:
        """An entry is gone: browsers that had come to it go on with the one that followed it."""
        for browser in self.browsers:
            if browser.cursor is entry:
                browser.cursor = following
