"""The consumers of one queue.

    takers      acquire messages. Those that are ready form a ring, and are offered messages round-robin
    browsers    only read messages. Each has its own cursor, and sees every message once

A taker that declines a message only for the moment is offered it again. A message that all ready takers can never take
is passed over (`passed_over`).

A message that is acquired or expired when a browser's cursor reaches it is not shown; a message that becomes available
again before the cursor is not shown again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Final

from qstore.broker.model.queues.consumer import NOT_FOR_ME, REFUSED, TAKEN, TAKEN_LAST, Consumer
from qstore.broker.model.queues.entry import AVAILABLE, END, GONE, Entry
from qstore.broker.model.queues.passed_over import PassedOver

_NO_KINDS: Final[frozenset[Hashable]] = frozenset()


class Consumers:
    """The consumers of one queue.

    Attributes:
        takers: consumers that acquire messages.
        browsers: consumers that only read them.
        waiting: the ring of ready takers; the first is offered the next message.
        declined: entry -> kinds of takers that have declined it; usually empty. Read-only.
        browsed_to: the first position that no browser has passed.
    """

    __slots__ = ("_passed_over", "browsed_to", "browsers", "declined", "takers", "waiting")

    def __init__(self) -> None:
        self.takers: list[Consumer] = []
        self.browsers: list[Consumer] = []
        self.waiting: deque[Consumer] = deque()
        self.browsed_to = 0
        self._passed_over = PassedOver()
        self.declined = self._passed_over.declined

    def __len__(self) -> int:
        return len(self.takers) + len(self.browsers)

    def add(self, consumer: Consumer, first: Entry) -> None:
        """Add a consumer, which is not ready yet; `first` is the queue's first entry."""
        consumer.is_waiting = False
        if consumer.acquires:
            self.takers.append(consumer)
        else:
            consumer.cursor = first
            self.browsers.append(consumer)

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer."""
        if consumer.acquires:
            self.takers.remove(consumer)
            if consumer.is_waiting:
                self.waiting.remove(consumer)
        else:
            self.browsers.remove(consumer)
            del consumer.cursor  # it would keep the message alive as long as the session keeps the consumer
        consumer.is_waiting = False

    def wake(self, consumer: Consumer) -> Entry | None:
        """Mark a consumer as ready. Returns the first passed-over entry that must be offered to it."""
        consumer.is_waiting = True
        if not consumer.acquires:
            return None
        self.waiting.append(consumer)
        return self._passed_over.first_for(consumer.kind) if self.declined else None

    # ---- messages ----

    def offer(self, entry: Entry, result: int | None) -> bool:
        """Offer an entry to the ready takers in turn. Returns whether one has taken it.

        If none has, and some are still ready, it is passed over.

        Args:
            entry: the entry.
            result: the answer of the first taker (`Consumer.deliver`); None if it was not asked yet.
        """
        waiting = self.waiting
        before = declined = self.declined.get(entry, _NO_KINDS)
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
        """Show browsers the entries they have not seen, up to the position `limit`, while they accept them."""
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
            self.browsed_to = max(self.browsed_to, browser.cursor.position)

    def acquired(self, entry: Entry) -> None:
        """An entry was acquired without being offered."""
        if self.declined:
            self._passed_over.discard(entry)

    def removed(self, entry: Entry, following: Entry) -> None:
        """An entry was removed: browsers whose cursor is on it move to the following one."""
        for browser in self.browsers:
            if browser.cursor is entry:
                browser.cursor = following
