"""Messages that none of the consumers they were offered to can ever take.

Consumers of one kind can take the same messages. The queue's cursor passes over a message that all ready kinds have
declined, and stays behind it; other kinds are offered it when they are ready. Each kind is asked once for each message,
however often the queue is dispatched, and what a kind was not asked for yet is found without a walk over the rest:

    positions   of all messages passed over, ascending; those that were taken stay until there are too many of them
    seen        kind -> the position before which it has declined all of them
    again       kind -> positions before that which were released since: these are offered to all kinds again

A message that is taken by a consumer, or acquired otherwise, is no longer passed over.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable
from typing import Final

from qstore.broker.model.queues.entry import Entry

_MAX_SPARE_KINDS: Final = 256  # remembered beyond those of the queue's consumers
_MAX_SPARE_POSITIONS: Final = 64  # of messages that were taken, beyond the number of those that were not


class PassedOver:
    """The messages that one queue has passed over.

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
        """The queue's cursor passes over an entry, which is after all others; `kinds` have declined it."""
        position, positions, seen = entry.position, self._positions, self._seen
        before = positions[-1] if positions else 0
        assert before < position
        self.entries[position] = entry
        positions.append(position)
        for kind in kinds:
            if not before or seen.get(kind, 0) > before:  # it was asked for all before
                seen[kind] = position + 1

    def discard(self, entry: Entry) -> None:
        """An entry is acquired: remove it, if it was passed over."""
        if self.entries.pop(entry.position, None) is None:
            return
        if not self.entries:
            self._positions.clear()
            self._seen.clear()
            self._again.clear()
        elif len(self._positions) > 2 * len(self.entries) + _MAX_SPARE_POSITIONS:
            self._positions = sorted(self.entries)

    def put_back(self, entry: Entry) -> bool:
        """An entry was released. Returns whether it is passed over again; if not, it is not before the others."""
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

    # ---- what a kind was not asked for ----

    def has_more_for(self, kind: Hashable) -> bool:
        """Whether the kind may not have been asked for some of them."""
        positions = self._positions
        return bool(positions) and (self._seen.get(kind, 0) <= positions[-1] or bool(self._again.get(kind)))

    def first_for(self, kind: Hashable) -> Entry | None:
        """The first entry that the kind was not asked for; None if there is none. `answered` removes it from these."""
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
        """The kind was asked for the entry of `first_for`, and has declined or taken it."""
        again = self._again.get(kind)
        if again and again[0] == entry.position:
            again.pop(0)
        elif self._positions:
            self._seen[kind] = entry.position + 1

    def forget_kinds(self, kinds: set[Hashable]) -> None:
        """Forget kinds of which there is no consumer, if they are many; `kinds` are those of all consumers."""
        for kind in self._seen.keys() - kinds:
            del self._seen[kind]
            self._again.pop(kind, None)

    @property
    def has_spare_kinds(self) -> bool:
        """Whether more kinds are remembered than should be without need."""
        return len(self._seen) > _MAX_SPARE_KINDS
