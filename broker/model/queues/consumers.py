"""The consumers of one queue.

    takers      acquire messages. Those that are ready form a ring, and are offered messages round-robin
    browsers    only read messages. Each has its own cursor, and sees every message once

Where some takers have priorities, or one alone is active, a `ranking` decides which are asked.

A taker that declines a message only for the moment is offered it again. A message that all ready takers can never take
is passed over (`passed_over`). A taker that becomes ready is offered those first that its kind was not asked for.

A message that is acquired or expired when a browser's cursor reaches it is not shown; a message that becomes available
again before the cursor is not shown again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Final

from qstore.broker.model.errors import ModelError
from qstore.broker.model.queues.consumer import NOT_FOR_ME, REFUSED, TAKEN, TAKEN_LAST, Consumer
from qstore.broker.model.queues.entry import ACQUIRED, AVAILABLE, END, GONE, Entry
from qstore.broker.model.queues.passed_over import PassedOver
from qstore.broker.model.queues.ranking import FOREMOST, Priorities, Ranking, SingleActive, ask

MAX_DECLINED: Final = 250
"""Messages that consumers decline in one go: so many evaluations of selectors take 1 to 3 ms."""


_NOBODY: Final[deque[Consumer]] = deque()  # of queues that have no takers yet: each deque takes 760 bytes


class Consumers:
    """The consumers of one queue.

    Args:
        is_single_active: whether one taker at a time gets messages.

    Attributes:
        takers: consumers that acquire messages.
        browsers: consumers that only read them.
        waiting: the ring of ready takers; the first is offered the next message. Always the same object once there was
            a taker.
        ranking: decides which ready takers are in the ring; None if all are.
        declined: messages declined for good since the queue has set this to 0, counted for each that declined.
        taken: messages that the last `offer_backlog` has acquired.
        browsed_to: the first position that no browser has passed.
        has_backlog: whether a ready taker may not have been asked for all messages that were passed over.
    """

    __slots__ = (
        "_passed_over", "browsed_to", "browsers", "declined", "has_backlog", "ranking", "taken", "takers", "waiting"
    )  # fmt: skip

    def __init__(self, *, is_single_active: bool = False) -> None:
        self.takers: list[Consumer] = []
        self.browsers: list[Consumer] = []
        self.waiting = deque() if is_single_active else _NOBODY
        self.ranking: Ranking | None = SingleActive(self.waiting) if is_single_active else None
        self.browsed_to = 0
        self._passed_over = PassedOver()
        self.has_backlog = False
        self.declined = self.taken = 0

    def __len__(self) -> int:
        return len(self.takers) + len(self.browsers)

    def with_priorities(self) -> dict[Consumer, int]:
        """All consumers, with their priorities; of takers of which one is active, that one is the first."""
        takers = self.takers if self.ranking is None else sorted(self.takers, key=self.ranking.is_behind)
        return {each: self._priority(each) for each in (*takers, *self.browsers)}

    def _priority(self, consumer: Consumer) -> int:
        return 0 if self.ranking is None or not consumer.acquires else self.ranking.priority(consumer)

    @property
    def has_credit(self) -> bool:
        """Whether a taker can take a message now."""
        ranking = self.ranking
        return any(each.has_credit and (ranking is None or ranking.may_take(each)) for each in self.takers)

    def add(self, consumer: Consumer, first: Entry, priority: int = 0) -> None:
        """Add a consumer, which is not ready yet.

        Args:
            consumer: the consumer.
            first: the queue's first entry.
            priority: of a taker: those of a higher one are asked before it; FOREMOST for one that takes one message,
                regardless of the active consumer.
        """
        consumer.is_waiting = False
        if consumer.acquires:
            if self.waiting is _NOBODY:
                self.waiting = deque()
            self.takers.append(consumer)
            if priority not in (0, FOREMOST) and self.ranking is None:
                self.ranking = Priorities(self.waiting)
            if self.ranking is not None:
                self.ranking.add(consumer, priority)
        else:
            consumer.cursor = first
            self.browsers.append(consumer)

    def remove(self, consumer: Consumer) -> bool:
        """Remove a consumer. Returns whether another one, which was ready, may be asked now that could not before."""
        has_successor = False
        if consumer.acquires:
            self.takers.remove(consumer)
            if consumer.is_waiting:
                self.unready(consumer)
            if self.ranking is not None:
                has_successor = self._unrank(consumer, self.ranking)
            if self._passed_over.has_spare_kinds:
                self._passed_over.forget_kinds({each.kind for each in self.takers})
        else:
            self.browsers.remove(consumer)
            del consumer.cursor  # it would keep the message alive as long as the session keeps the consumer
        consumer.is_waiting = False
        return has_successor

    def _unrank(self, consumer: Consumer, ranking: Ranking) -> bool:
        """Remove a taker from the ranking. Returns as `remove`."""
        has_successor = ranking.remove(consumer)
        if has_successor:
            self.has_backlog = self.has_backlog or bool(self._passed_over.entries)
        elif isinstance(ranking, Priorities) and not ranking.is_needed:
            self.ranking = None
        return has_successor

    def wake(self, consumer: Consumer) -> None:
        """Mark a consumer as ready."""
        consumer.is_waiting = True
        if consumer.acquires:
            if self.ranking is None:
                self.waiting.append(consumer)
            else:
                self.ranking.ready(consumer)
            self.has_backlog = self.has_backlog or bool(self._passed_over.entries)

    def unready(self, consumer: Consumer) -> None:
        """A ready taker does not wait for messages any more."""
        if self.ranking is None:
            self.waiting.remove(consumer)
        else:
            self.ranking.unready(consumer)
        consumer.is_waiting = False

    def rings(self) -> list[deque[Consumer]]:
        """The ready takers that may be asked, in rings: those of one ring in turn, those of the first ring first."""
        return [self.waiting] if self.ranking is None else [self.waiting, *self.ranking.behind()]

    def turn(self, takers: dict[Consumer, None]) -> None:
        """These were given messages: put those that are still ready at the ends of their rings, in this order."""
        for ring in self.rings():
            there = set(ring)
            others = [each for each in ring if each not in takers]
            ring.clear()
            ring.extend(others)
            ring.extend(each for each in takers if each in there)

    # ---- messages ----

    def offer(self, entry: Entry, result: int) -> bool:
        """Offer an entry to the ready takers in turn. Returns whether one has taken it.

        If none has, and some are still ready, it is passed over.

        Args:
            entry: the entry.
            result: the answer of the first taker (`Consumer.deliver`): all but TAKEN.
        """
        waiting, ranking = self.waiting, self.ranking
        first, others = waiting[0], len(waiting) - 1
        declined: set[Hashable] = set()
        if result == NOT_FOR_ME:
            waiting.rotate(-1)
            declined.add(first.kind)
        else:
            waiting.popleft()
            first.is_waiting = False
        is_taken = result == TAKEN_LAST or ask(waiting, others, entry, declined)
        if ranking is not None:
            is_taken = is_taken or any(ask(ring, len(ring), entry, declined) for ring in ranking.behind())
            ranking.refill()
        self.declined += len(declined)
        if not is_taken and waiting:
            self._passed_over.add(entry, declined)
        return is_taken

    def offer_backlog(
        self,
        clock: Callable[[], float],
        drop_expired: Callable[[Entry], object],
        awaits: Callable[[Entry], bool] | None,
    ) -> bool:
        """Offer ready takers, in turn, the messages passed over that their kinds were not asked for.

        Args:
            clock: seconds since 1970.
            drop_expired: removes an entry that has expired.
            awaits: whether the message of an entry is being read back; None if all are in memory.

        Returns:
            Whether that was all; otherwise messages that follow must wait.
        """
        self.has_backlog, self.taken = False, 0
        return all(self._offer_backlog(list(ring), clock, drop_expired, awaits) for ring in self.rings())

    def _offer_backlog(
        self,
        ring: list[Consumer],
        clock: Callable[[], float],
        drop_expired: Callable[[Entry], object],
        awaits: Callable[[Entry], bool] | None,
    ) -> bool:
        """As `offer_backlog`, for the takers of one ring."""
        passed_over = self._passed_over
        backlog = deque(each for each in ring if passed_over.has_more_for(each.kind))
        while backlog:
            if self.declined >= MAX_DECLINED:
                self.has_backlog = True
                return False
            consumer = backlog.popleft()
            entry = passed_over.first_for(consumer.kind) if consumer.is_waiting else None
            if entry is None:
                continue
            if 0 < entry.message.expires_at <= clock():
                drop_expired(entry)
                backlog.appendleft(consumer)
                continue
            if awaits is not None and awaits(entry):
                self.has_backlog = True
                return False
            result = self._offer_passed_over(consumer, entry)
            if result == TAKEN:
                backlog.append(consumer)
            elif result == NOT_FOR_ME:
                backlog.appendleft(consumer)
        return True

    def _offer_passed_over(self, consumer: Consumer, entry: Entry) -> int:
        """Offer one of them. Returns as `Consumer.deliver` does."""
        passed_over = self._passed_over
        entry.state = ACQUIRED
        try:
            result = consumer.deliver(entry)
        except ModelError:  # it was delivered, but its dequeue cannot be written
            passed_over.discard(entry)
            self.taken += 1
            self.has_backlog = True
            raise
        if result in (TAKEN, TAKEN_LAST):
            self.taken += 1
            if entry.state != AVAILABLE:  # otherwise its session ended meanwhile, and it was put back
                passed_over.answered(consumer.kind, entry)
                passed_over.discard(entry)
        else:
            entry.state = AVAILABLE
            if result == NOT_FOR_ME:
                passed_over.answered(consumer.kind, entry)
                self.declined += 1
        if result in (REFUSED, TAKEN_LAST) and consumer.is_waiting:
            self.unready(consumer)
        return result

    def show(self, limit: int, clock: Callable[[], float], awaits: Callable[[Entry], bool] | None) -> None:
        """Show browsers the entries they have not seen, up to the position `limit`, while they accept them.

        Those whose message `awaits` says is being read back come later.
        """
        for browser in list(self.browsers):
            while browser.is_waiting and self.declined < MAX_DECLINED:
                entry = browser.cursor
                if entry.state >= END or entry.position >= limit:
                    break
                if entry.state == AVAILABLE and not (0 < entry.message.expires_at <= clock()):
                    if awaits is not None and awaits(entry):
                        break
                    result = browser.deliver(entry)
                    if result == REFUSED:
                        browser.is_waiting = False
                        break
                    if result == NOT_FOR_ME:
                        self.declined += 1
                    elif result != TAKEN:
                        browser.is_waiting = False
                browser.cursor = entry.next if entry.state != GONE else browser.cursor
            self.browsed_to = max(self.browsed_to, browser.cursor.position)

    def acquired(self, entry: Entry) -> None:
        """An entry was acquired without being offered."""
        if self._passed_over.entries:
            self._passed_over.discard(entry)

    def put_back(self, entry: Entry) -> bool:
        """An entry was released. Returns whether it counts as passed over, and is offered to all that are ready."""
        if not self._passed_over.put_back(entry):
            return False
        self.has_backlog = True
        return True

    def removed(self, entry: Entry, following: Entry) -> None:
        """An entry was removed, or unfolded: browsers whose cursor is on it move to the following one, or the first."""
        for browser in self.browsers:
            if browser.cursor is entry:
                browser.cursor = following
