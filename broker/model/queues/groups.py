"""Message groups: a header of each message names its group, and one consumer at a time gets messages of a group.

    head <-> A <-> A <-> B <-> A <-> C <-> end      all entries, linked in order of arrival (`fifo`)

    group A    end <-> A <-> A <-> A <-> end        the same entries, a ring for each group
                             ^ cursor               no entry before it is for its kind of consumers
    group B    end <-> B <-> end
    group C    end <-> C <-> end

A group belongs to the consumer that got a message of it, or has acquired one by its number, until none of the group is
outstanding: every message that the consumer got was dequeued or released. Messages accepted in a transaction are
outstanding until it is committed, rejected ones until they have moved. Meanwhile the owner may get more of the group,
and other consumers get nothing of it. Browsers see all messages.

Free groups are in a pool, ordered by their first messages. There is one pool for each kind of consumers, because a
message that one kind declines is left to the others and does not hold up later ones of its group. A group that belongs
to a consumer is in that consumer's own pool. A consumer gets the oldest message of both pools, so messages of groups
that belong to others cost nothing, however many they are. When a message of a group is released, the later ones of the
group are offered to each kind once more.

Positions number the arrivals: a barrier holds back later messages of all groups, not earlier ones. A
restart of the broker frees all groups.

A group's name is compared as text. Messages without the header, or with an empty one, are in the default group.

Sources: Qpid C++ Broker Book, 1.11; qpidd, MessageGroupManager.cpp (behaviour).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Final

from qstore.broker.model.queues.barriers import NO_LIMIT
from qstore.broker.model.queues.consumers import MAX_PASSED, MAX_SPARE_KINDS, PerConsumerOrder
from qstore.broker.model.queues.entry import AVAILABLE, END, Entry

if TYPE_CHECKING:
    from qstore.broker.model.message import Message
    from qstore.broker.model.queues.consumers import Consumer, Consumers

DEFAULT_GROUP: Final = "qpid.no-group"
_MAX_STALE: Final = 64  # stale items in a heap, beyond the number of current ones


class GroupEntry(Entry):
    """An entry that is also linked with those of its group.

    Attributes:
        group: its group.
        is_outstanding: whether the owner of the group has it.
        older, newer: its neighbours in the group.
    """

    __slots__ = ("group", "is_outstanding", "newer", "older")
    __deletable__ = ("group", "newer", "older")  # mypyc must know what `del` removes

    group: Group
    is_outstanding: bool
    newer: GroupEntry
    older: GroupEntry


def _end_entry(position: int) -> GroupEntry:
    entry = GroupEntry()
    entry.position, entry.rid, entry.state, entry.is_redelivered = position, 0, END, False
    entry.is_outstanding = False
    return entry


class Group:
    """The entries of one group, and its owner.

    Args:
        name: its name.

    Attributes:
        name: as above.
        end: closes the ring of its entries; it is after all positions.
        owner: the consumer it belongs to; None if it is free.
        outstanding: how many messages its owner has.
        size: how many messages it has.
        cursors: kind -> the first entry that may be available and was not declined by the kind; absent for a kind that
            was not offered any.
    """

    __slots__ = ("cursors", "end", "name", "outstanding", "owner", "size")

    def __init__(self, name: str) -> None:
        self.name = name
        self.end = _end_entry(NO_LIMIT)
        self.end.older = self.end.newer = self.end
        self.owner: Consumer | None = None
        self.outstanding = self.size = 0
        self.cursors: dict[Hashable, GroupEntry] = {}

    @property
    def is_empty(self) -> bool:
        """Whether it has no entries."""
        return self.end.newer is self.end

    def first_for(self, kind: Hashable) -> GroupEntry:
        """The first entry that may have to be offered to a kind of consumers; the end if there is none."""
        return self.cursors.get(kind, self.end.newer)

    def next_for(self, kind: Hashable, limit: int) -> GroupEntry:
        """Move the kind's cursor to the next available entry, or to the first one from the position `limit` on."""
        entry = self.cursors.get(kind, self.end.newer)
        while entry.position < limit and entry.state != AVAILABLE:
            entry = entry.newer
        self.cursors[kind] = entry
        return entry

    def append(self, entry: GroupEntry) -> None:
        """Append an entry later than all others."""
        end = self.end
        last = end.older
        entry.older, entry.newer = last, end
        last.newer = end.older = entry
        self.size += 1
        for kind, cursor in self.cursors.items():
            if cursor is end:
                self.cursors[kind] = entry

    def put_back(self, entry: GroupEntry) -> None:
        """Move cursors back to an entry that is available again, if they are past it."""
        for kind, cursor in self.cursors.items():
            if entry.position < cursor.position:
                self.cursors[kind] = entry

    def remove(self, entry: GroupEntry) -> None:
        """Remove an entry."""
        older, newer = entry.older, entry.newer
        older.newer, newer.older = newer, older
        self.size -= 1
        for kind, cursor in self.cursors.items():
            if cursor is entry:
                self.cursors[kind] = newer
        del entry.group, entry.older, entry.newer  # references to the entry would keep the whole group alive

    def dissolve(self) -> None:
        """Break the reference cycle of the ring: the group or its queue is gone."""
        self.cursors.clear()
        end = self.end
        entry = end.newer
        while entry is not end:
            following = entry.newer
            del entry.group, entry.older, entry.newer
            entry = following
        del end.older, end.newer


class Pool:
    """Groups whose messages a consumer may get, ordered by where it would find them.

    Positions are those at which the search begins; the first message may be later in the group. Stale items stay in the
    heap until they are the first, or too many.

    Args:
        kind: the kind of the consumers.
        owner: the consumer to which the groups belong; None if they are free.

    Attributes:
        kind, owner: as above.
        size: how many groups belong to the owner.
    """

    __slots__ = ("_heap", "_positions", "kind", "owner", "size")

    def __init__(self, kind: Hashable, owner: Consumer | None = None) -> None:
        self.kind, self.owner, self.size = kind, owner, 0
        self._heap: list[tuple[int, Group]] = []  # no two groups have the same position
        self._positions: dict[Group, int] = {}

    def add(self, group: Group) -> bool:
        """Add a group if it may have a message for this kind, or correct its position. Returns whether it did."""
        position, before = group.first_for(self.kind).position, self._positions.get(group)
        if position == NO_LIMIT or (before is not None and before <= position):
            return False
        if len(self._heap) > 2 * len(self._positions) + _MAX_STALE:
            self._heap = [(each, other) for other, each in self._positions.items()]
            heapify(self._heap)
        heappush(self._heap, (position, group))  # first: after a MemoryError here, it is not counted either
        self._positions[group] = position
        return True

    def discard(self, group: Group) -> None:
        """Remove a group."""
        self._positions.pop(group, None)

    def first(self, limit: int) -> GroupEntry | None:
        """The first message of all groups; None if there is none before the position `limit`."""
        heap, positions = self._heap, self._positions
        while heap:
            position, group = heap[0]
            if positions.get(group) != position:
                heappop(heap)
            elif group.owner is not self.owner:
                heappop(heap)
                del positions[group]
            elif position >= limit:
                return None
            else:
                entry = group.next_for(self.kind, limit)
                if entry.position == position:
                    return entry
                if entry.state == END:
                    heappop(heap)
                    del positions[group]
                else:
                    positions[group] = entry.position
                    heapreplace(heap, (entry.position, group))
        return None


class GroupOrder(PerConsumerOrder):
    """The entries of one queue, and the consumers that may get them.

    Args:
        header: the name of the header with the group's name.
        default: the name of the default group.

    Attributes:
        header: as above.
    """

    __slots__ = ("_default", "_free", "_groups", "_has_freed", "_own", "header")

    def __init__(self, header: str, default: str = DEFAULT_GROUP) -> None:
        super().__init__(_end_entry(1))
        self.header, self._default = header, default
        self._groups: dict[str, Group] = {}
        self._free: dict[Hashable, Pool] = {}  # kind -> free groups
        self._own: dict[Consumer, Pool] = {}  # owner -> its groups
        self._has_freed = False  # whether a free group was added to a pool since the last reset

    def __del__(self) -> None:
        for group in self._groups.values():
            group.dissolve()
        super().__del__()

    @property
    def groups(self) -> list[Group]:
        """All groups."""
        return list(self._groups.values())

    # ---- entries ----

    def append(self, message: Message, rid: int) -> Entry:
        """Append an available entry for a message.

        Raises:
            MemoryError: no message was added.
        """
        name = message.header_text(self.header) or self._default
        end = _end_entry(self._end.position + 1)
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = Group(name)
        entry = self.link(message, rid, end)
        assert isinstance(entry, GroupEntry)
        entry.group = group
        group.append(entry)
        try:
            self._add_to_pools(group)
        except MemoryError:
            self._unlink_last(entry)
            raise
        return entry

    def _unlink_last(self, entry: GroupEntry) -> None:
        """Undo `append`: the entry is the end again, and keeps the message until it gets another."""
        group = entry.group
        group.remove(entry)
        self._end = entry
        entry.state = END
        del entry.next
        if group.is_empty:
            self._dissolve(group)

    def put_back(self, entry: Entry) -> None:
        """An entry is available again."""
        assert isinstance(entry, GroupEntry)
        group = entry.group
        group.put_back(entry)
        if entry.is_outstanding:
            self._return(entry)
        else:
            self._add_to_pools(group)

    def remove(self, entry: Entry) -> Entry:
        """Remove an entry. Returns the one that followed it on the queue."""
        assert isinstance(entry, GroupEntry)
        group = entry.group
        is_outstanding = entry.is_outstanding
        group.remove(entry)
        if is_outstanding:
            entry.is_outstanding = False
            self._has_returned(group)
        if group.is_empty:
            self._dissolve(group)
        return super().remove(entry)

    def _dissolve(self, group: Group) -> None:
        """Remove a group without entries, and so without owner."""
        for pool in self._free.values():
            pool.discard(group)
        del self._groups[group.name]
        group.dissolve()

    def heads(self) -> Sequence[Entry]:
        """As `PerConsumerOrder.heads`: the first of each group."""
        found: dict[Group, Entry] = {}
        entry = self.first
        for _ in range(MAX_PASSED if self._has_expiring else 0):
            if entry.state >= END:
                break
            assert isinstance(entry, GroupEntry)
            if entry.state == AVAILABLE:
                found.setdefault(entry.group, entry)
            entry = entry.next
        return list(found.values())

    # ---- owners ----

    def claim(self, entry: Entry, consumer: Consumer | None) -> bool:
        """Make an available entry outstanding to a consumer, if it may have it; None to acquire it for no consumer."""
        assert isinstance(entry, GroupEntry)
        if consumer is None:
            return True
        if entry.group.owner not in (None, consumer):
            return False
        self._give(entry, consumer)
        return True

    def _give(self, entry: GroupEntry, consumer: Consumer) -> None:
        group = entry.group
        entry.is_outstanding = True
        group.outstanding += 1
        if group.owner is None:
            group.owner = consumer
            pool = self._own.get(consumer)
            if pool is None:
                pool = self._own[consumer] = Pool(consumer.kind, consumer)
            pool.size += 1
            pool.add(group)

    def _return(self, entry: GroupEntry) -> None:
        entry.is_outstanding = False
        self._has_returned(entry.group)

    def _has_returned(self, group: Group) -> None:
        """Count one message less for the owner of a group, which becomes free with the last one."""
        group.outstanding -= 1
        owner = group.owner
        assert owner is not None
        if not group.outstanding:
            pool = self._own[owner]
            pool.discard(group)
            pool.size -= 1
            if not pool.size:
                del self._own[owner]
            group.owner = None
        self._add_to_pools(group)

    def _add_to_pools(self, group: Group) -> None:
        """Add a group to the pools: it is free, or has another available message."""
        if group.owner is not None:
            self._own[group.owner].add(group)
            return
        for pool in self._free.values():
            self._has_freed = pool.add(group) or self._has_freed

    # ---- delivery ----

    def next_for(self, consumer: Consumer, limit: int, consumers: Consumers) -> Entry | None:
        """The first entry that a consumer may have before the position `limit`; None if there is none."""
        free = self._free.get(consumer.kind)
        if free is None:
            free = self._add_kind(consumer.kind, consumers)
        entry = free.first(limit)
        pool = self._own.get(consumer)
        own = None if pool is None else pool.first(limit)
        return own if entry is None or (own is not None and own.position < entry.position) else entry

    def offered(self, entry: Entry, consumer: Consumer) -> None:
        """Assign the group to the consumer that the entry is about to be delivered to."""
        assert isinstance(entry, GroupEntry)
        self._give(entry, consumer)

    def declined(self, entry: Entry, consumer: Consumer) -> None:
        """Pass over an entry that the consumer can never take: its kind is offered the later ones."""
        assert isinstance(entry, GroupEntry)
        entry.group.cursors[consumer.kind] = entry.newer

    def refused(self, entry: Entry) -> None:
        """Take back an entry that the consumer has not taken."""
        assert isinstance(entry, GroupEntry)
        self._return(entry)

    def has_more(self) -> bool:
        """Whether a group was freed since the last call."""
        has_freed, self._has_freed = self._has_freed, False
        return has_freed

    def _add_kind(self, kind: Hashable, consumers: Consumers) -> Pool:
        """Create the pool of a kind, for its first consumer."""
        kinds = {each.kind for each in consumers.takers}
        if len(self._free) >= len(kinds) + MAX_SPARE_KINDS:
            for spare in self._free.keys() - kinds:
                del self._free[spare]
                for group in self._groups.values():
                    group.cursors.pop(spare, None)
        pool = self._free[kind] = Pool(kind)
        for group in self._groups.values():
            pool.add(group)
        return pool
