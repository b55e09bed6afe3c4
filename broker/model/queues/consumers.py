"""The consumers of one queue, and which message is offered to which of them.

    takers      acquire messages. Those that are ready form a ring, and are offered messages round-robin
    browsers    only read messages. Each has its own cursor, and sees every message once

A taker that declines a message only for the moment is offered it again. A message that all ready takers can never take
is passed over (`PassedOver`): the queue's cursor stays after it. Consumers of one kind can take the same messages; a
taker that becomes ready is first offered those that its kind has not seen yet.

A message that is acquired or expired when a browser's cursor reaches it is not shown; a message that becomes available
again before the cursor is not shown again.

Where takers have ranks, a ranking decides. `Consumers.waiting`, the ring that a queue offers messages to, has only
those of the first rank; the ranking keeps the other ready ones. A queue without such consumers has no ranking.

    Priorities      those of the highest priority, in turn; the next ones while none of these is ready
    SingleActive    one alone, as long as it exists. Then the one of the highest priority, the oldest of several, takes
                    over, whether it is ready or not

A taker of priority FOREMOST takes a single message for a client that polls (basic.get). It is never the active one.

Where the next message depends on the consumer (`priority`, `groups`), the order of the queue offers messages itself
(`PerConsumerOrder`).

Source: RabbitMQ, "Consumer Priorities" and "Consumers" (single active consumer).
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from qstore.broker.model.errors import ModelError
from qstore.broker.model.queues.entry import ACQUIRED, AVAILABLE, END, GONE, RUN, Entry
from qstore.broker.model.queues.fifo import Fifo
from qstore.broker.model.run import MessageRun, RunEntry

if TYPE_CHECKING:
    from qstore.broker.model.message import Message

REFUSED: Final = 0  # it cannot take this message now, and is not ready until it wakes the queue
TAKEN: Final = 1  # it took the message, and is ready for more
TAKEN_LAST: Final = 2  # it took the message, and is not ready until it wakes the queue
NOT_FOR_ME: Final = 3  # it can never take this message, but is ready for the next; other kinds may take this one

FOREMOST: Final = 1 << 64
"""Above every priority that a protocol can express."""

MAX_DECLINED: Final = 250
"""Messages that consumers decline in one go: 250 evaluations of selectors take 1 to 3 ms."""

MAX_PASSED: Final = 100
"""Entries that are passed in the search for an available one."""

MAX_SPARE_KINDS: Final = 16
"""Kinds that an order remembers beyond those of the queue's consumers: each costs time for every message."""

_MAX_KINDS: Final = 256  # remembered for messages passed over, beyond those of the queue's consumers
_MAX_SPARE_POSITIONS: Final = 64  # of taken messages, beyond the number of messages passed over


class Consumer(Protocol):
    """A consumer of a queue.

    Attributes:
        acquires: whether it is a taker; otherwise it is a browser.
        cursor: the next entry for a browser; maintained by the queue.
        is_waiting: whether it is ready for messages; maintained by the queue.
    """

    acquires: bool
    cursor: Entry
    is_waiting: bool

    @property
    def kind(self) -> Hashable:
        """Equal for consumers that can take the same messages: if one of them declines a message, all would."""

    @property
    def has_credit(self) -> bool:
        """Whether it can take a message now."""

    def deliver(self, entry: Entry) -> int:
        """Offer the message of `entry`. Returns REFUSED, TAKEN, TAKEN_LAST or NOT_FOR_ME."""

    def room_for(self, run: MessageRun) -> int:
        """The number of messages of a run that it can take now without a choice; 0 if they must be offered singly."""

    def deliver_run(self, run: RunEntry) -> int:
        """Take messages of a run, which it now holds: no more than it has `room_for`. Returns TAKEN or TAKEN_LAST."""

    def queue_deleted(self) -> None:
        """The queue was deleted."""

    def fail(self, error: Exception) -> None:
        """End it, with its session where the protocol has no other way, and tell the client why."""


_NO_TAKERS: Final[deque[Consumer]] = deque()  # shared by queues without takers: each deque takes 760 bytes


class Consumers:
    """The consumers of one queue.

    Args:
        is_single_active: whether one taker at a time gets messages.

    Attributes:
        takers: consumers that acquire messages.
        browsers: consumers that only read them.
        waiting: the ring of ready takers; the first is offered the next message. The same object from the first taker
            on.
        ranking: decides which ready takers are in the ring; None if all are.
        declined: messages declined for good since the queue set this to 0, counted for each consumer.
        taken: messages that the last `offer_backlog` has acquired.
        left: how many more messages may be delivered in this tick.
        browsed_to: the first position that no browser has passed.
        hidden: entries that browsers are not shown; None if there never are any.
        has_backlog: whether a ready taker may not have been offered all messages that were passed over.
    """

    __slots__ = (
        "_passed_over", "browsed_to", "browsers", "declined", "has_backlog", "hidden", "left", "ranking", "taken",
        "takers", "waiting",
    )  # fmt: skip

    def __init__(self, *, is_single_active: bool = False) -> None:
        self.takers: list[Consumer] = []
        self.browsers: list[Consumer] = []
        self.waiting = deque() if is_single_active else _NO_TAKERS
        self.ranking: Ranking | None = SingleActive(self.waiting) if is_single_active else None
        self.browsed_to = 0
        self._passed_over = PassedOver()
        self.hidden: Collection[Entry] | None = None
        self.has_backlog = False
        self.declined = self.taken = self.left = 0

    def __len__(self) -> int:
        return len(self.takers) + len(self.browsers)

    def with_priorities(self) -> dict[Consumer, int]:
        """All consumers, with their priorities; a single active consumer is the first."""
        takers = self.takers if self.ranking is None else sorted(self.takers, key=self.ranking.is_behind)
        return {each: self._priority(each) for each in (*takers, *self.browsers)}

    def _priority(self, consumer: Consumer) -> int:
        return 0 if self.ranking is None or not consumer.acquires else self.ranking.priority(consumer)

    @property
    def has_credit(self) -> bool:
        """Whether a taker can take a message now."""
        ranking = self.ranking
        return any(each.has_credit and (ranking is None or ranking.may_take(each)) for each in self.takers)

    def has_credit_above(self, priority: int) -> bool:
        """Whether a taker of a higher priority than this one can take a message now."""
        ranking = self.ranking
        return any(
            each.has_credit and (ranking is None or (ranking.may_take(each) and ranking.priority(each) > priority))
            for each in self.takers
        )

    def add(self, consumer: Consumer, first: Entry, priority: int = 0) -> None:
        """Add a consumer, which is not ready yet.

        Args:
            consumer: the consumer.
            first: the queue's first entry.
            priority: a taker's; those of a higher one are served first. FOREMOST for a taker of one message,
                regardless of the active consumer.
        """
        consumer.is_waiting = False
        if consumer.acquires:
            if self.waiting is _NO_TAKERS:
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
        """Remove a consumer. Returns whether another ready one may take messages now that could not before."""
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
            del consumer.cursor  # it would keep the message alive as long as the session references the consumer
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
        """Remove a ready taker, which no longer waits for messages, from the ring."""
        if self.ranking is None:
            self.waiting.remove(consumer)
        else:
            self.ranking.unready(consumer)
        consumer.is_waiting = False

    def rings(self) -> list[deque[Consumer]]:
        """The ready takers that may take messages, as rings: one ring in turn, the first ring first."""
        return [self.waiting] if self.ranking is None else [self.waiting, *self.ranking.behind()]

    def turn(self, takers: dict[Consumer, None]) -> None:
        """Move takers that got messages and are still ready to the ends of their rings, in this order."""
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
        is_taken = result == TAKEN_LAST or _ask(waiting, others, entry, declined)
        if ranking is not None:
            is_taken = is_taken or any(_ask(ring, len(ring), entry, declined) for ring in ranking.behind())
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
        """Offer ready takers, in turn, the messages passed over that their kinds have not been offered.

        Args:
            clock: seconds since 1970.
            drop_expired: removes an entry that has expired.
            awaits: whether the message of an entry is being read back; None if all are in memory.

        Returns:
            Whether all were offered; otherwise later messages must wait.
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

    def show(
        self,
        limit: int,
        clock: Callable[[], float],
        awaits: Callable[[Entry], bool] | None,
        unfold: Callable[[RunEntry], Entry],
    ) -> None:
        """Show browsers the entries that they have not seen, up to the position `limit`, while they accept them.

        Those being read back (`awaits`) come later. `unfold` makes single entries of a run.
        """
        for number, browser in enumerate(list(self.browsers), 1):
            while browser.is_waiting and self.declined < MAX_DECLINED and self.left > 0:
                entry = browser.cursor
                if isinstance(entry, RunEntry) and entry.state == RUN:
                    entry = unfold(entry)
                if entry.state >= END or entry.position >= limit:
                    break
                is_shown = entry.state == AVAILABLE and (self.hidden is None or entry not in self.hidden)
                if is_shown and not (0 < entry.message.expires_at <= clock()):
                    if awaits is not None and awaits(entry):
                        break
                    result = browser.deliver(entry)
                    self.left -= 1
                    if result == REFUSED:
                        browser.is_waiting = False
                        break
                    if result == NOT_FOR_ME:
                        self.declined += 1
                    elif result != TAKEN:
                        browser.is_waiting = False
                browser.cursor = entry.next if entry.state != GONE else browser.cursor
            self.browsed_to = max(self.browsed_to, browser.cursor.position)
            if self.left <= 0:  # those behind it are first the next time
                self.browsers[:] = [*self.browsers[number:], *self.browsers[:number]]
                break

    def acquired(self, entry: Entry) -> None:
        """Note that an entry was acquired without being offered."""
        if self._passed_over.entries:
            self._passed_over.discard(entry)

    def put_back(self, entry: Entry) -> bool:
        """Note a released entry. Returns whether it counts as passed over, and is offered to all ready takers."""
        if not self._passed_over.put_back(entry):
            return False
        self.has_backlog = True
        return True

    def removed(self, entry: Entry, following: Entry) -> None:
        """Move browsers' cursors from a removed or unfolded entry to the following one, or the first."""
        for browser in self.browsers:
            if browser.cursor is entry:
                browser.cursor = following


def _ask(ring: deque[Consumer], count: int, entry: Entry, declined: set[Hashable]) -> bool:
    """Offer an entry to ready takers in turn. Returns whether one has taken it.

    Args:
        ring: the takers. Those that have taken or declined the entry go to its end; others that do not wait for more
            leave it.
        count: the most that are offered it.
        entry: the entry.
        declined: kinds that can never take it; those that decline it now are added.
    """
    for _ in range(count):
        consumer = ring[0]
        result = NOT_FOR_ME if consumer.kind in declined else consumer.deliver(entry)
        if result == TAKEN_LAST and not consumer.is_waiting:
            return True  # its session has ended meanwhile: the message could not be dequeued
        if result in (TAKEN, NOT_FOR_ME):
            ring.rotate(-1)
        else:
            ring.popleft()
            consumer.is_waiting = False
        if result in (TAKEN, TAKEN_LAST):
            return True
        if result == NOT_FOR_ME:
            declined.add(consumer.kind)
    return False


class PassedOver:
    """The messages passed over on one queue: none of the consumers that they were offered to can ever take them.

    Each message is offered once to each kind of consumers, however often the queue is dispatched, and a kind's unseen
    messages are found without a walk over the rest:

        positions   of all messages passed over, ascending; those of taken messages stay until there are too many
        seen        kind -> the position before which it has declined all of them
        again       kind -> positions before that one which were released since: they are offered to all kinds again

    A message that is taken by a consumer, or acquired otherwise, is no longer passed over.

    Attributes:
        entries: position -> entry. Read-only; always the same dictionary.
    """

    __slots__ = ("_again", "_positions", "_seen", "entries")

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self._positions: list[int] = []
        self._seen: dict[Hashable, int] = {}
        self._again: dict[Hashable, list[int]] = {}

    def add(self, entry: Entry, kinds: Iterable[Hashable]) -> None:
        """Add an entry that the queue's cursor passes over, after all others; `kinds` have declined it."""
        position, positions, seen = entry.position, self._positions, self._seen
        before = positions[-1] if positions else 0
        assert before < position
        self.entries[position] = entry
        positions.append(position)
        for kind in kinds:
            if not before or seen.get(kind, 0) > before:  # it was offered all before
                seen[kind] = position + 1

    def discard(self, entry: Entry) -> None:
        """Remove an acquired entry, if it was passed over."""
        if self.entries.pop(entry.position, None) is None:
            return
        if not self.entries:
            self._positions.clear()
            self._seen.clear()
            self._again.clear()
        elif len(self._positions) > 2 * len(self.entries) + _MAX_SPARE_POSITIONS:
            self._positions = sorted(self.entries)

    def put_back(self, entry: Entry) -> bool:
        """Note a released entry. Returns whether it is passed over again; if not, it is after the others."""
        position, positions = entry.position, self._positions
        if not positions or position > positions[-1]:
            return False
        self.entries[position] = entry
        place = bisect_left(positions, position)
        if positions[place] != position:
            positions.insert(place, position)
        for kind, seen in self._seen.items():
            if seen > position:
                again = self._again.setdefault(kind, [])
                place = bisect_left(again, position)
                if place == len(again) or again[place] != position:
                    insort(again, position)
        return True

    # ---- a kind's unseen entries ----

    def has_more_for(self, kind: Hashable) -> bool:
        """Whether some of them may not have been offered to the kind."""
        positions = self._positions
        return bool(positions) and (self._seen.get(kind, 0) <= positions[-1] or bool(self._again.get(kind)))

    def first_for(self, kind: Hashable) -> Entry | None:
        """The first entry not offered to the kind yet; None if there is none. `answered` advances to the next."""
        entries, positions, seen = self.entries, self._positions, self._seen.get(kind, 0)
        again = self._again.get(kind)
        while again and again[0] not in entries:
            again.pop(0)
        count, place = len(positions), bisect_left(positions, seen)
        while place < count and positions[place] not in entries:
            place += 1
        if place < count:
            self._seen[kind] = position = positions[place]
        elif positions:
            self._seen[kind] = positions[-1] + 1
        if again and (place == count or again[0] < position):
            return entries[again[0]]
        return entries[position] if place < count else None

    def answered(self, kind: Hashable, entry: Entry) -> None:
        """Note that the kind has declined or taken the entry of `first_for`."""
        again = self._again.get(kind)
        if again and again[0] == entry.position:
            again.pop(0)
        elif self._positions:
            self._seen[kind] = entry.position + 1

    def forget_kinds(self, kinds: set[Hashable]) -> None:
        """Forget kinds without consumers, if they are many; `kinds` are those of all consumers."""
        for kind in self._seen.keys() - kinds:
            del self._seen[kind]
            self._again.pop(kind, None)

    @property
    def has_spare_kinds(self) -> bool:
        """Whether enough kinds are cached that unused ones should be dropped."""
        return len(self._seen) > _MAX_KINDS


class Ranking:
    """Ranks the takers of one queue.

    Args:
        waiting: the ring of those that are offered messages.
    """

    __slots__ = ("_waiting",)

    def __init__(self, waiting: deque[Consumer]) -> None:
        self._waiting = waiting

    @abstractmethod
    def add(self, consumer: Consumer, priority: int) -> None:
        """Add a taker, which is not ready yet."""

    @abstractmethod
    def remove(self, consumer: Consumer) -> bool:
        """Remove a taker that is not ready. Returns whether another may take messages now that could not before."""

    @abstractmethod
    def priority(self, consumer: Consumer) -> int:
        """The priority of a taker."""

    @abstractmethod
    def ready(self, consumer: Consumer) -> None:
        """Put a ready taker into the ring, or keep it until its turn."""

    @abstractmethod
    def unready(self, consumer: Consumer) -> None:
        """Remove a taker that is no longer ready, wherever it is."""

    @abstractmethod
    def may_take(self, consumer: Consumer) -> bool:
        """Whether a taker may take messages."""

    def is_behind(self, consumer: Consumer) -> bool:
        """Whether none can."""
        return not self.may_take(consumer)

    @abstractmethod
    def refill(self) -> None:
        """If the ring is empty, fill it with those next in rank."""

    def behind(self) -> list[deque[Consumer]]:
        """The other ready takers that may take messages, as rings; the highest rank first."""
        return []


class Priorities(Ranking):
    """Takers with priorities, usually 0.

    While the ring is empty, no other taker is ready, either (`refill`).
    """

    __slots__ = ("_behind", "_given", "_top")

    def __init__(self, waiting: deque[Consumer]) -> None:
        super().__init__(waiting)
        self._given: dict[Consumer, int] = {}  # those that are not 0
        self._top = 0  # the priority of all in the ring
        self._behind: dict[int, deque[Consumer]] = {}  # lower priority -> ready takers

    @property
    def is_needed(self) -> bool:
        """Whether any taker has another priority than 0."""
        return bool(self._given)

    def add(self, consumer: Consumer, priority: int) -> None:
        if priority:
            self._given[consumer] = priority

    def remove(self, consumer: Consumer) -> bool:
        self._given.pop(consumer, None)
        return False

    def priority(self, consumer: Consumer) -> int:
        return self._given.get(consumer, 0)

    def may_take(self, consumer: Consumer) -> bool:  # noqa: ARG002 – each may
        return True

    def ready(self, consumer: Consumer) -> None:
        waiting, priority = self._waiting, self.priority(consumer)
        if waiting and priority < self._top:
            self._behind.setdefault(priority, deque()).append(consumer)
            return
        if waiting and priority > self._top:
            self._behind[self._top] = deque(waiting)
            waiting.clear()
        self._top = priority
        waiting.append(consumer)

    def unready(self, consumer: Consumer) -> None:
        priority = self.priority(consumer)
        if priority == self._top:
            self._waiting.remove(consumer)
            self.refill()
            return
        ring = self._behind[priority]
        ring.remove(consumer)
        if not ring:
            del self._behind[priority]

    def refill(self) -> None:
        while not self._waiting and self._behind:  # a ring may have become empty (`_ask`)
            self._top = max(self._behind)
            self._waiting.extend(self._behind.pop(self._top))

    def behind(self) -> list[deque[Consumer]]:
        return [self._behind[priority] for priority in sorted(self._behind, reverse=True)]


class SingleActive(Ranking):
    """Takers with a single active one.

    Attributes:
        active: the active one; None if there is none.
    """

    __slots__ = ("_registered", "active")

    def __init__(self, waiting: deque[Consumer]) -> None:
        super().__init__(waiting)
        self.active: Consumer | None = None
        self._registered: dict[Consumer, int] = {}  # taker -> priority, in order of arrival

    def add(self, consumer: Consumer, priority: int) -> None:
        if priority == FOREMOST:
            return
        self._registered[consumer] = priority
        if self.active is None:
            self.active = consumer

    def remove(self, consumer: Consumer) -> bool:
        self._registered.pop(consumer, None)
        if consumer is not self.active:
            return False
        self.active = max(self._registered, key=self._registered.__getitem__, default=None)
        if self.active is None or not self.active.is_waiting:
            return False
        self._waiting.append(self.active)
        return True

    def priority(self, consumer: Consumer) -> int:
        return self._registered.get(consumer, FOREMOST)

    def may_take(self, consumer: Consumer) -> bool:
        return consumer is self.active or consumer not in self._registered

    def refill(self) -> None:
        """Nothing to do: no other taker gets messages before the active one has gone."""

    def ready(self, consumer: Consumer) -> None:
        if self.may_take(consumer):
            self._waiting.append(consumer)

    def unready(self, consumer: Consumer) -> None:
        if self.may_take(consumer):
            self._waiting.remove(consumer)


class PerConsumerOrder(Fifo):
    """An order that decides for each consumer which message is next; its entries are of a subclass of `Entry`.

    Ready consumers are served in turn, those of a higher rank first. Each is offered the message that the order finds
    for it, and if it declines that one for good, the next. A consumer without a message keeps its place among the ready
    ones (`Consumers.rings`); those that get messages go to the end, in order of the last of these.

    Args:
        end: the end entry.
    """

    __slots__ = ("_has_expiring",)

    def __init__(self, end: Entry) -> None:
        super().__init__()
        self._has_expiring = False
        self._end = self.cursor = end
        self._head.next, end.previous = end, self._head

    def link(self, message: Message, rid: int, end: Entry) -> Entry:
        """Append an available entry for a message: the end entry, which is followed by a new one, `end`."""
        entry = self._end
        end.previous = entry
        entry.next = end
        entry.message = message
        entry.rid = rid
        entry.state = AVAILABLE
        self._end = end
        if message.expires_at:
            self._has_expiring = True
        return entry

    @abstractmethod
    def heads(self) -> Sequence[Entry]:
        """As `Fifo.heads`: available ones, unless very many entries before them are unavailable.

        None as long as no message with an expiry has arrived: this is called after each `distribute`.
        """

    @abstractmethod
    def next_for(self, consumer: Consumer, limit: int, consumers: Consumers) -> Entry | None:
        """The available entry to offer to a consumer; None if it can have none before the position `limit`.

        Args:
            consumer: one of those that are ready.
            limit: as above.
            consumers: all consumers of the queue.
        """

    def offered(self, entry: Entry, consumer: Consumer) -> None:
        """Note that the entry of `next_for` is about to be delivered; it may be released or removed meanwhile."""

    def took(self, entry: Entry) -> None:
        """Note that the consumer has taken the entry of `next_for`."""

    def refused(self, entry: Entry) -> None:
        """Note that the consumer has not taken the entry of `next_for`, which stays available."""

    @abstractmethod
    def declined(self, entry: Entry, consumer: Consumer) -> None:
        """Note that the consumer can never take the available entry of `next_for`."""

    def has_more(self) -> bool:
        """Whether there may be messages, new since the last call, for consumers that found none."""
        return False

    def distribute(
        self,
        consumers: Consumers,
        limit: int,
        clock: Callable[[], float],
        drop_expired: Callable[[Entry], object],
        awaits: Callable[[Entry], bool] | None,
    ) -> None:
        """Deliver while there are messages for ready consumers, until too many are declined (`MAX_DECLINED`).

        Args:
            consumers: the queue's consumers. Their `taken` is set, and their `declined` increased.
            limit: nothing is delivered from this position on.
            clock: seconds since 1970.
            drop_expired: removes an entry that has expired.
            awaits: whether the message of an entry is being read back; None if all are in memory.
        """
        consumers.taken = 0
        takers: dict[Consumer, None] = {}
        rings = [list(ring) for ring in consumers.rings()]
        turn = deque(rings.pop(0))
        try:
            while consumers.declined < MAX_DECLINED and consumers.taken < consumers.left:
                if not turn:
                    if self.has_more():
                        rings = [list(ring) for ring in consumers.rings()]
                    if not rings:
                        break
                    turn.extend(rings.pop(0))
                    continue
                consumer = turn.popleft()
                entry = self.next_for(consumer, limit, consumers) if consumer.is_waiting else None
                if entry is None:
                    continue
                if 0 < entry.message.expires_at <= clock():
                    drop_expired(entry)
                    turn.appendleft(consumer)
                    continue
                if awaits is not None and awaits(entry):
                    break
                result = self._offer(entry, consumer, consumers)
                if result == NOT_FOR_ME:
                    turn.appendleft(consumer)
                elif result != REFUSED:
                    takers.pop(consumer, None)
                    takers[consumer] = None
                    if result == TAKEN:
                        turn.append(consumer)
        finally:
            if takers:
                consumers.turn(takers)

    def _offer(self, entry: Entry, consumer: Consumer, consumers: Consumers) -> int:
        """Offer a message to a consumer. Returns as `Consumer.deliver` does."""
        entry.state = ACQUIRED
        consumers.taken += 1  # before the call: an error may be raised after the delivery
        self.offered(entry, consumer)
        result = consumer.deliver(entry)
        if result in (TAKEN, TAKEN_LAST):
            self.took(entry)
        else:
            entry.state = AVAILABLE
            consumers.taken -= 1
            if result == NOT_FOR_ME:
                consumers.declined += 1
                self.declined(entry, consumer)
            self.refused(entry)
        if result in (REFUSED, TAKEN_LAST) and consumer.is_waiting:
            consumers.unready(consumer)
        return result
