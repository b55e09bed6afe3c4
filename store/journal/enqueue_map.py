"""The index of the messages in a journal: record id → log offset, in packed arrays.

Record ids arrive almost in ascending order: they are taken from one counter, and only transactions and concurrent
publishers reorder them slightly. So the index consists of four parallel arrays sorted by rid (18 bytes a record), to
which ascending rids are appended; late ones are collected in a small dict and merged in when it grows. Dequeues from a
queue are mostly in order too, so the search for a rid first looks right after the last one found. Removed entries are
swept when they outnumber the live ones.

The fourth array has the blocks of records that are short and were passed with their size; 0 for all others. It saves a
start from reading all records once more.

States: a record is GONE, LIVE, LOCKED (dequeued by a transaction that is still open) or PENDING (enqueued by one).
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, MutableSequence, Sequence
from itertools import compress, islice
from operator import lt
from typing import Final, NamedTuple

GONE: Final = 0
LIVE: Final = 1
LOCKED: Final = 2
PENDING: Final = 3

MAX_KNOWN: Final = 255  # blocks of a record that are kept
MAX_DUPLICATES: Final = 1000  # a sound journal has none; a forged one may have any number
_SWEEP_AT: Final = 4096  # removed entries before a sweep is considered
_MERGE_AT: Final = 1024  # minimum of late rids to merge
_SORT_PART: Final = 1 << 12  # entries sorted at once


class Entry(NamedTuple):
    """One record in the index: its id, its log offset, its state."""

    rid: int
    place: int
    state: int


class EnqueueMap:
    """Record id → (log offset, state) for one journal."""

    __slots__ = (
        "_blocks",
        "_gone",
        "_hint",
        "_last",
        "_late",
        "_places",
        "_rids",
        "_states",
        "_swept",
        "duplicate_count",
        "duplicates",
    )

    def __init__(self) -> None:
        self._rids = array("Q")
        self._places = array("Q")
        self._states = bytearray()
        self._blocks = bytearray()
        self._last = -1  # highest rid in the arrays
        self._late: dict[int, tuple[int, int]] = {}
        self._gone = 0
        self._swept = 0  # removed, and no longer in the arrays
        self._hint = 0
        self.duplicates: list[Entry] = []  # the first `MAX_DUPLICATES`
        self.duplicate_count = 0

    def __len__(self) -> int:
        """Number of records that are not gone."""
        return len(self._rids) - self._gone + len(self._late)

    @property
    def highest_rid(self) -> int:
        """The highest rid ever added; 0 if none."""
        return max(self._last, 0)

    @property
    def added(self) -> int:
        """Number of records ever added."""
        return len(self._rids) + len(self._late) + self._swept

    @property
    def memory(self) -> int:
        """Bytes used by the index: arrays and late entries."""
        arrays = self._rids.__sizeof__() + self._places.__sizeof__() + 2 * self._states.__sizeof__()
        return arrays + self._late.__sizeof__() + 200 * len(self._late)

    # ---- changes ----

    def add(self, rid: int, place: int, state: int = LIVE) -> None:
        """Add an enqueued record. A duplicate is ignored and noted in `duplicates`."""
        if rid > self._last:
            self._rids.append(rid)
            self._places.append(place)
            self._states.append(state)
            self._blocks.append(0)
            self._last = rid
        else:
            self._add_late(rid, place, state)

    def add_live(self, rid: int, place: int, blocks: int = 0) -> None:
        """As `add`, of a live record that takes so many blocks; 0 if unknown."""
        if rid > self._last:
            self._rids.append(rid)
            self._places.append(place)
            self._states.append(LIVE)
            self._blocks.append(blocks if blocks <= MAX_KNOWN else 0)
            self._last = rid
        else:
            self._add_late(rid, place, LIVE)

    def _add_late(self, rid: int, place: int, state: int) -> None:
        index = self._find(rid)
        if rid in self._late or (index >= 0 and self._states[index] != GONE):
            self.duplicate_count += 1
            if len(self.duplicates) < MAX_DUPLICATES:
                self.duplicates.append(Entry(rid, place, state))
        elif index >= 0:
            self._places[index] = place
            self._states[index] = state
            self._blocks[index] = 0
            self._gone -= 1
            self._swept += 1  # the earlier record with this id
        else:
            self._late[rid] = (place, state)
            if len(self._late) >= max(_MERGE_AT, len(self._rids) >> 4):
                self._merge()

    def clear(self) -> None:
        """Forget all records, and free their memory."""
        self._swept += len(self._rids) + len(self._late)
        self._rids, self._places = array("Q"), array("Q")
        self._states, self._blocks = bytearray(), bytearray()
        self._late.clear()
        self._gone = self._hint = 0

    def move(self, rid: int, place: int) -> None:
        """Set the log offset of a record that was copied forward. A record that is not in the map is added."""
        index = self._find(rid)
        if rid in self._late:
            self._late[rid] = (place, self._late[rid][1])
        elif index >= 0 and self._states[index] != GONE:
            self._places[index] = place
            self._blocks[index] = 0
        else:
            self.add(rid, place)

    def remove(self, rid: int) -> bool:
        """Remove a dequeued record. Returns False if it is not in the map."""
        hint = self._hint
        try:
            if self._rids[hint] == rid and self._states[hint]:
                self._states[hint] = GONE
                self._hint = hint + 1
                self._gone += 1
                if self._gone > _SWEEP_AT and self._gone * 2 > len(self._rids):
                    self._sweep()
                return True
        except IndexError:
            pass
        return self._remove_anywhere(rid)

    def _remove_anywhere(self, rid: int) -> bool:
        if self._late.pop(rid, None) is not None:
            self._swept += 1
            return True
        index = self._find(rid)
        if index < 0 or self._states[index] == GONE:
            return False
        self._states[index] = GONE
        self._hint = index + 1
        self._gone += 1
        if self._gone > _SWEEP_AT and self._gone * 2 > len(self._rids):
            self._sweep()
        return True

    def set_state(self, rid: int, state: int) -> bool:
        """Lock or unlock a record. Returns False if it is not in the map."""
        if rid in self._late:
            self._late[rid] = (self._late[rid][0], state)
            return True
        index = self._find(rid)
        if index < 0 or self._states[index] == GONE:
            return False
        self._states[index] = state
        return True

    # ---- queries ----

    def get(self, rid: int) -> Entry | None:
        """The record with that id, unless it is gone."""
        if rid in self._late:
            return Entry(rid, *self._late[rid])
        index = self._find(rid)
        if index < 0 or self._states[index] == GONE:
            return None
        return Entry(rid, self._places[index], self._states[index])

    def was_removed(self, rid: int) -> bool:
        """Whether a record with that id is known to be gone; most removed ids are forgotten by sweeps."""
        index = self._find(rid)
        return index >= 0 and self._states[index] == GONE and rid not in self._late

    def count(self, state: int) -> int:
        """Number of records in a state other than GONE."""
        return self._states.count(state) + sum(1 for _, other in self._late.values() if other == state)

    def in_rid_order(self) -> Iterator[tuple[int, int, int]]:
        """Rid, log offset and state of the records that are not gone, by rid."""
        self._consolidate()
        return zip(self._rids, self._places, self._states, strict=True)

    def in_place_order(self) -> Iterator[tuple[int, int, int]]:
        """Rid, log offset and state of the records that are not gone, in journal order."""
        self._consolidate()
        rids, places, states = self._rids, self._places, self._states
        if all(map(lt, places, islice(places, 1, None))):
            return zip(rids, places, states, strict=True)
        # Sorted in packed parts: one list of all entries would need more memory than the index itself.
        parts = []
        for start in range(0, len(places), _SORT_PART):
            part = range(start, min(start + _SORT_PART, len(places)))
            parts.append(array("Q", sorted(part, key=places.__getitem__)))
        return self._entries_at(heapq.merge(*parts, key=places.__getitem__))

    def _entries_at(self, order: Iterable[int]) -> Iterator[tuple[int, int, int]]:
        rids, places, states = self._rids, self._places, self._states
        for index in order:
            yield rids[index], places[index], states[index]

    def portions(self, count: int) -> Iterator[tuple[array[int], array[int], bytearray]]:
        """Rids, log offsets and blocks, 0 for unknown, of the records that are not gone, by rid, `count` at a time."""
        self._consolidate()
        for begin in range(0, len(self._rids), count):
            part = slice(begin, begin + count)
            yield self._rids[part], self._places[part], self._blocks[part]

    # ---- upkeep ----

    def _find(self, rid: int) -> int:
        index = bisect_left(self._rids, rid)
        return index if index < len(self._rids) and self._rids[index] == rid else -1

    def _consolidate(self) -> None:
        if self._late:
            self._merge()
        if self._gone:
            self._sweep()

    def _sweep(self) -> None:
        states = self._states
        self._rids = array("Q", compress(self._rids, states))
        self._places = array("Q", compress(self._places, states))
        self._blocks = bytearray(compress(self._blocks, states))
        self._states = bytearray(compress(states, states))
        self._swept += self._gone
        self._gone = 0
        self._hint = 0

    def _merge(self) -> None:
        late = sorted(self._late.items())
        waiting = [value for _, value in late]
        before = [bisect_left(self._rids, rid) for rid, _ in late]
        self._late.clear()
        _splice(self._rids, before, [rid for rid, _ in late])
        _splice(self._places, before, [place for place, _ in waiting])
        _splice(self._states, before, [state for _, state in waiting])
        _splice(self._blocks, before, [0] * len(waiting))
        self._last = max(self._last, self._rids[-1])
        self._hint = 0


def _splice(column: MutableSequence[int], before: Sequence[int], values: Sequence[int]) -> None:
    """Insert each of `values` into `column` before the ascending index that `before` gives for it."""
    spliced = column[:0]
    taken = 0
    for index, value in zip(before, values, strict=True):
        if index > taken:
            spliced += column[taken:index]
            taken = index
        spliced.append(value)
    spliced += column[taken:]
    column[:] = spliced
