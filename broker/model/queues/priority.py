"""Priority order: messages of higher levels first, and those of one level in order of arrival.

    head <-> entry <-> entry <-> entry <-> entry <-> end      all entries, linked in order of arrival (`fifo`)

    level 1    head <-> entry <-> entry <-> end               the same entries, linked once more for each level
    level 0    head <-> entry <-> entry <-> end

Consumers of one kind can take the same messages (`Consumer.kind`). Each kind has a reader for each level: a FIFO's
cursor, and the entries before it that were released since. So each message is offered to each kind once, and once more
after it was released, however many others the kind has declined.

Positions number the arrivals: a barrier holds back later messages of all levels, not earlier ones.
Browsers follow the order of arrival, too.

Levels are given to priorities in one of two ways:

    qpid.priorities   the ten priorities of AMQP 0-10 are mapped to n levels: the middle ones are distinct; lower and
                      higher ones share the lowest and the highest level
    x-max-priority    each priority from 0 to the maximum is a level; higher ones have the maximum's

The highest level is always first, unless the queue has limits for its levels (`FairShare`).

Sources: AMQP 0-10, class message, rule priority-level-implementation; MRG 2 Messaging User Guide, 3 (priority queuing);
qpidd, PriorityQueue.cpp (behaviour: a purge begins with the lowest level); RabbitMQ, "Priority Queue Support".
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from qstore.broker.model.queues.barriers import NO_LIMIT
from qstore.broker.model.queues.consumers import MAX_PASSED, MAX_SPARE_KINDS, PerConsumerOrder
from qstore.broker.model.queues.entry import ACQUIRED, AVAILABLE, END, GONE, Entry

if TYPE_CHECKING:
    from qstore.broker.model.message import Message
    from qstore.broker.model.queues.consumers import Consumer, Consumers


MAX_LEVELS: Final = 10  # of qpid.priorities: one for each priority
_MAX_STALE: Final = 64  # stale positions in a heap, beyond the number of current ones


def level_of_priority(priority: int, levels: int) -> int:
    """The level, from 0, of a message's priority on a queue with `levels` levels."""
    lowest = 5 - (levels + 1) // 2
    return min(max(priority - lowest, 0), levels - 1)


class LevelEntry(Entry):
    """An entry that is also linked with those of its level.

    Attributes:
        level: the number of its level.
        older, newer: its neighbours there.
    """

    __slots__ = ("level", "newer", "older")
    __deletable__ = ("newer", "older")  # mypyc must know what `del` removes

    level: int
    newer: LevelEntry
    older: LevelEntry


def _entry_without_message(position: int, state: int) -> LevelEntry:
    entry = LevelEntry()
    entry.position, entry.rid, entry.state, entry.is_redelivered = position, 0, state, False
    return entry


class Level:
    """The entries of one level.

    Attributes:
        number: counted from 0, the lowest.
        head, end: before and after all entries, and all positions.
    """

    __slots__ = ("end", "head", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.head, self.end = _entry_without_message(0, GONE), _entry_without_message(NO_LIMIT, END)
        self.head.newer, self.end.older = self.end, self.head

    def __iter__(self) -> Iterator[LevelEntry]:
        """All entries, in order; the one yielded last may be removed during iteration."""
        entry = self.head.newer
        while entry.state != END:
            following = entry.newer
            yield entry
            entry = following

    def append(self, entry: LevelEntry) -> None:
        """Append an entry that is later than all others."""
        last = self.end.older
        entry.level, entry.older, entry.newer = self.number, last, self.end
        last.newer = self.end.older = entry

    def dissolve(self) -> None:
        """Break the reference cycles of the links: the queue is gone."""
        for entry in self:
            del entry.older, entry.newer
        del self.head.newer, self.end.older


class LevelReader:
    """The entries of one level that one kind of consumers has not been offered yet.

    Args:
        level: the level.
    """

    __slots__ = ("_cursor", "_positions", "_released")

    def __init__(self, level: Level) -> None:
        self._cursor = level.head  # the last entry that the kind has declined, or that was not available
        self._released: dict[int, LevelEntry] = {}  # position -> entry, up to the cursor
        self._positions: list[int] = []  # of these, and of some removed ones; a heap

    def next_available(self, limit: int) -> LevelEntry | None:
        """The next available entry; None if there is none before the position `limit`."""
        positions = self._positions
        while positions:
            released = self._released.get(positions[0])
            if released is not None and released.state == AVAILABLE:
                return released if released.position < limit else None
            self._released.pop(heappop(positions), None)
        cursor = self._cursor
        entry = cursor.newer
        while entry.position < limit and entry.state != AVAILABLE:
            cursor, entry = entry, entry.newer
        self._cursor = cursor
        return entry if entry.position < limit else None

    def pass_over(self, entry: LevelEntry) -> None:
        """Pass over the entry of `next_available`, which the kind has declined."""
        if self._released.pop(entry.position, None) is None:
            self._cursor = entry

    def put_back(self, entry: LevelEntry) -> None:
        """Note a released entry, to be offered again."""
        position, released, positions = entry.position, self._released, self._positions
        if position > self._cursor.position or position in released:
            return
        if len(positions) > 2 * len(released) + _MAX_STALE:
            positions[:] = sorted(released)
        released[position] = entry
        heappush(positions, position)

    def remove(self, entry: LevelEntry) -> None:
        """Forget an entry that leaves the queue."""
        if entry is self._cursor:
            self._cursor = entry.older
        if self._released:
            self._released.pop(entry.position, None)


class FairShare:
    """Fair share: how many messages of a level are delivered before the levels below it get their turn.

    A round visits the levels from the highest to the lowest. A level's turn ends when it has delivered the number of
    messages that is its limit, or has no more; without a limit it lasts until the level is empty. After the lowest
    level, or when nothing is left to deliver, the next round begins at the highest. A message that arrives in a round
    waits for its level's turn, even if the level is higher than the current one.

    Source: qpidd, Fairshare.cpp (behaviour), which does not restart at the highest level when nothing is left.

    Args:
        limits: for each level, from the lowest, the messages of one turn; 0 for no limit.
    """

    __slots__ = ("_count", "_level", "_limits", "_sequences")

    def __init__(self, limits: Sequence[int]) -> None:
        self._limits = list(limits)
        top = len(self._limits) - 1
        self._sequences = [
            [*range(start, -1, -1), *range(top, start, -1)] for start in range(top + 1)
        ]  # order of levels, by the level that it begins at
        self._level, self._count = top, 0  # the current level, and its messages in this turn

    def sequence(self) -> list[int]:
        """All levels, in the order of the search for the next message."""
        level, limit = self._level, self._limits[self._level]
        if limit and self._count >= limit:
            level = level - 1 if level else len(self._limits) - 1
        return self._sequences[level]

    def took(self, level: int) -> None:
        """Note that the next message is of this level, the first of the sequence that has one."""
        limit = self._limits[level]
        if level != self._level or (limit and self._count >= limit):  # another turn, if no other level has messages
            self._level, self._count = level, 0
        self._count += 1

    def restart(self) -> None:
        """Begin a new round: nothing is left to deliver."""
        self._level, self._count = len(self._limits) - 1, 0


class PriorityOrder(PerConsumerOrder):
    """The entries of one queue.

    Args:
        levels: how many levels it has: from 2 to 10, or to 256 if `is_capped`.
        limits: fair share: for each level, from the lowest, how many messages are delivered before lower levels get
            their turn; 0 for no limit. Empty: the highest level is always first.
        is_capped: whether each priority is a level, and those above count as the highest (x-max-priority).
    """

    __slots__ = ("_finished", "_level_of", "_levels", "_occupied", "_readers", "_share")

    def __init__(self, levels: int, limits: Sequence[int] = (), *, is_capped: bool = False) -> None:
        super().__init__(_entry_without_message(1, END))
        self._levels = [Level(number) for number in range(levels)]
        if is_capped:
            self._level_of = self._levels
        else:
            self._level_of = [self._levels[level_of_priority(priority, levels)] for priority in range(MAX_LEVELS)]
        self._occupied = 0  # bit set of the levels with entries
        self._share = FairShare(limits) if any(limits) else None
        self._readers: dict[Hashable, list[LevelReader]] = {}  # kind -> for each level
        self._finished: set[Hashable] = set()  # kinds for which this `distribute` has found nothing more

    def __del__(self) -> None:
        for level in self._levels:
            level.dissolve()
        super().__del__()

    # ---- entries ----

    def append(self, message: Message, rid: int) -> Entry:
        """Append an available entry for a message.

        Raises:
            MemoryError: nothing was changed: all allocations come first.
        """
        level_of = self._level_of
        level = level_of[min(message.handling.priority, len(level_of) - 1)]
        entry = self.link(message, rid, _entry_without_message(self._end.position + 1, END))
        assert isinstance(entry, LevelEntry)
        level.append(entry)
        self._occupied |= 1 << level.number
        return entry

    def put_back(self, entry: Entry) -> None:
        """Note an entry that is available again: it is offered to each kind once more."""
        assert isinstance(entry, LevelEntry)
        for readers in self._readers.values():
            readers[entry.level].put_back(entry)

    def remove(self, entry: Entry) -> Entry:
        """Remove an entry. Returns the one that followed it on the queue."""
        assert isinstance(entry, LevelEntry)
        for readers in self._readers.values():
            readers[entry.level].remove(entry)
        older, newer = entry.older, entry.newer
        older.newer, newer.older = newer, older
        del entry.older, entry.newer
        if older.state == GONE and newer.state == END:  # the head and the end of the level
            self._occupied &= ~(1 << entry.level)
        return super().remove(entry)

    def after(self, entry: Entry) -> Entry:
        """As `Fifo.after`: of the same level."""
        assert isinstance(entry, LevelEntry)
        return entry.newer

    def heads(self) -> Sequence[Entry]:
        """As `PerConsumerOrder.heads`: the first of each level."""
        found: list[Entry] = []
        occupied = self._occupied if self._has_expiring else 0
        while occupied:
            lowest = occupied & -occupied
            occupied ^= lowest
            entry = self._levels[lowest.bit_length() - 1].head.newer
            for _ in range(MAX_PASSED):
                if entry.state == AVAILABLE:
                    found.append(entry)
                    break
                if entry.state >= END:
                    break
                entry = entry.newer
        return found

    def by_turn(self, entries: list[Entry]) -> Iterable[list[Entry]]:
        """As `Fifo.by_turn`: those of each level."""
        levels: dict[int, list[Entry]] = {}
        for entry in entries:
            assert isinstance(entry, LevelEntry)
            levels.setdefault(entry.level, []).append(entry)
        return levels.values()

    def first_to_discard(self) -> Entry | None:
        """The oldest message of the lowest level that is available or held by a consumer; None if there is none."""
        occupied = self._occupied
        while occupied:
            lowest = occupied & -occupied
            occupied ^= lowest
            for entry in self._levels[lowest.bit_length() - 1]:
                if entry.state in (AVAILABLE, ACQUIRED):
                    return entry
        return None

    def to_purge(self) -> Iterator[Entry]:
        """All entries, those of lower levels first; the one yielded last may be removed during iteration."""
        for level in self._levels:
            yield from level

    # ---- delivery ----

    def distribute(
        self,
        consumers: Consumers,
        limit: int,
        clock: Callable[[], float],
        drop_expired: Callable[[Entry], object],
        awaits: Callable[[Entry], bool] | None,
    ) -> None:
        self._finished.clear()
        super().distribute(consumers, limit, clock, drop_expired, awaits)
        if self._share is not None and not self._has_more(limit):
            self._share.restart()

    def next_for(self, consumer: Consumer, limit: int, consumers: Consumers) -> Entry | None:
        kind = consumer.kind
        if kind in self._finished:
            return None
        readers = self._readers.get(kind) or self._add_kind(kind, consumers)
        entry = self._highest(readers, limit) if self._share is None else self._in_turn(readers, limit, self._share)
        if entry is None:
            self._finished.add(kind)
        return entry

    def _highest(self, readers: list[LevelReader], limit: int) -> LevelEntry | None:
        """The next entry of the highest level that has one."""
        occupied = self._occupied
        while occupied:
            number = occupied.bit_length() - 1
            entry = readers[number].next_available(limit)
            if entry is not None:
                return entry
            occupied ^= 1 << number
        return None

    @staticmethod
    def _in_turn(readers: list[LevelReader], limit: int, share: FairShare) -> LevelEntry | None:
        """The next entry of the level whose turn it is, or of the first after it that has one."""
        for number in share.sequence():
            entry = readers[number].next_available(limit)
            if entry is not None:
                return entry
        return None

    def took(self, entry: Entry) -> None:
        if self._share is not None:
            assert isinstance(entry, LevelEntry)
            self._share.took(entry.level)

    def declined(self, entry: Entry, consumer: Consumer) -> None:
        assert isinstance(entry, LevelEntry)
        self._readers[consumer.kind][entry.level].pass_over(entry)

    def _has_more(self, limit: int) -> bool:
        """Whether a message before the position `limit` has not been offered to some kind."""
        return any(reader.next_available(limit) is not None for readers in self._readers.values() for reader in readers)

    def _add_kind(self, kind: Hashable, consumers: Consumers) -> list[LevelReader]:
        """Create the readers of a kind, for its first consumer."""
        kinds = {each.kind for each in consumers.takers}
        if len(self._readers) >= len(kinds) + MAX_SPARE_KINDS:
            for spare in self._readers.keys() - kinds:
                del self._readers[spare]
        readers = self._readers[kind] = [LevelReader(level) for level in self._levels]
        return readers
