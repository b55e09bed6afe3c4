"""The live records of messages that the broker does not have in memory, in packed arrays: 16 bytes each.

They are kept in chunks of ascending record ids. Records of one queue go out of memory in that order, nearly always, so
almost every one is appended to the last chunk or begins a new one between two others; what does not fit is not taken.
A record leaves when it is removed: its place in the arrays is then empty, until the whole chunk is.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import compress
from typing import Final

from qstore.store.journal.write.space import SIZE_BITS

MAX_CHUNK: Final = 4096


class _Chunk:
    """Some records.

    Attributes:
        rids: their ids, ascending.
        packed: log offset and blocks of each (`space`); 0 for one that has left.
        left: how many have not.
        oldest: no record of the chunk is before this log offset.
    """

    __slots__ = ("left", "oldest", "packed", "rids")

    def __init__(self) -> None:
        self.rids, self.packed = array("Q"), array("Q")
        self.left, self.oldest = 0, 0

    def append(self, rid: int, packed: int) -> None:
        """Append a record."""
        place = packed >> SIZE_BITS
        self.oldest = min(self.oldest, place) if self.rids else place
        self.rids.append(rid)
        self.packed.append(packed)
        self.left += 1


class RestingRecords:
    """The resting records of one journal."""

    __slots__ = ("_chunks", "_count", "_firsts", "_next_chunk", "_next_index")

    def __init__(self) -> None:
        self._chunks: list[_Chunk] = []
        self._firsts: list[int] = []  # the first record id of each chunk
        self._count = 0
        self._next_chunk = self._next_index = 0  # chunk and index after the record that has left last

    def __len__(self) -> int:
        return self._count

    def values(self) -> Iterator[int]:
        """Log offset and blocks, packed, of all records."""
        for chunk in self._chunks:
            yield from filter(None, chunk.packed)

    def portions(self) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
        """Ids, and log offsets and blocks, packed, of the records, by id."""
        for chunk in self._chunks:
            if chunk.left == len(chunk.rids):
                yield chunk.rids, chunk.packed
            else:
                yield array("Q", compress(chunk.rids, chunk.packed)), array("Q", filter(None, chunk.packed))

    def extend(self, rids: array[int], packed: array[int]) -> None:
        """Add at most `MAX_CHUNK` records whose ids are ascending, and higher than all others."""
        chunk = _Chunk()
        chunk.rids, chunk.packed, chunk.left = rids, packed, len(rids)
        chunk.oldest = min(packed) >> SIZE_BITS
        self._chunks.append(chunk)
        self._firsts.append(rids[0])
        self._count += chunk.left

    def add(self, rids: Sequence[int], packed: Sequence[int]) -> int:
        """Add records with ascending ids. Returns how many, from the first, were taken."""
        chunks, count = self._chunks, len(rids)
        at = bisect_right(self._firsts, rids[0])
        if at and chunks[at - 1].rids[-1] >= rids[0]:
            return 0
        if at < len(chunks):
            count = bisect_left(rids, self._firsts[at])
        chunk = chunks[at - 1] if at else None
        for number in range(count):
            if chunk is None or len(chunk.rids) >= MAX_CHUNK:
                chunk = _Chunk()
                chunks.insert(at, chunk)
                self._firsts.insert(at, rids[number])
                at += 1
            chunk.append(rids[number], packed[number])
        self._count += count
        return count

    def get(self, rid: int) -> int | None:
        """Log offset and blocks, packed, of a record; None if it does not rest here."""
        number, index = self._find(rid)
        return self._chunks[number].packed[index] if number >= 0 else None

    def get_all(self, rids: Sequence[int]) -> Sequence[int]:
        """As `get`, of many records; 0 for each that does not rest here. Ids that rest one after the other are fast."""
        found = array("Q")
        count, at = len(rids), 0
        wanted = rids if isinstance(rids, array) else array("Q", rids)
        while at < count:
            number, index = self._place_of(wanted[at])
            if number >= 0:
                chunk = self._chunks[number]
                several = min(count - at, len(chunk.rids) - index)
                while several > 1 and chunk.rids[index : index + several] != wanted[at : at + several]:
                    several //= 2
                found += chunk.packed[index : index + several]
                at += several
            else:
                found.append(0)
                at += 1
        return found

    def pop(self, rid: int) -> int:
        """As `get`; the record leaves. Raises KeyError if it does not rest here."""
        packed = self.take(rid)
        if not packed:
            raise KeyError(rid)
        return packed

    def take(self, rid: int) -> int:
        """As `pop`, but 0 if it does not rest here."""
        number, index, packed = self._next_chunk, self._next_index, 0
        chunks = self._chunks
        if number < len(chunks) and index < len(chunks[number].rids) and chunks[number].rids[index] == rid:
            packed = chunks[number].packed[index]
        if not packed:
            number, index = self._place_of(rid)
            if number >= 0:
                packed = chunks[number].packed[index]
            if not packed:
                return 0
        chunk = chunks[number]
        chunk.packed[index] = 0
        chunk.left -= 1
        self._count -= 1
        self._next_chunk, self._next_index = number, index + 1
        if not chunk.left:
            del chunks[number], self._firsts[number]
            self._next_index = 0
        return packed

    def set(self, rid: int, packed: int) -> None:
        """A record that rests here is elsewhere now."""
        number, index = self._find(rid)
        chunk = self._chunks[number]
        chunk.packed[index] = packed
        chunk.oldest = min(chunk.oldest, packed >> SIZE_BITS)

    def before(self, end: int) -> tuple[list[tuple[int, int]], int]:
        """Log offset and id of each record that begins before the log offset `end`; and where the next may begin.

        None begins between `end` and the latter, which is -1 if there is no other record.
        """
        found: list[tuple[int, int]] = []
        following = -1
        for chunk in self._chunks:
            nearest = chunk.oldest
            if nearest < end:
                nearest = -1
                oldest = -1
                for rid, packed in zip(chunk.rids, chunk.packed, strict=True):
                    if packed:
                        place = packed >> SIZE_BITS
                        if place < end:
                            found.append((place, rid))
                        elif nearest < 0 or place < nearest:
                            nearest = place
                        if oldest < 0 or place < oldest:
                            oldest = place
                chunk.oldest = oldest
            if nearest >= 0 and (following < 0 or nearest < following):
                following = nearest
        return found, following

    def _find(self, rid: int) -> tuple[int, int]:
        """Chunk and index of a record; -1 and 0 if it does not rest here."""
        number, index = self._place_of(rid)
        return (number, index) if number >= 0 and self._chunks[number].packed[index] else (-1, 0)

    def _place_of(self, rid: int) -> tuple[int, int]:
        """As `_find`, also of a record that has left."""
        number = bisect_right(self._firsts, rid) - 1
        if number >= 0:
            rids = self._chunks[number].rids
            index = bisect_left(rids, rid)
            if index < len(rids) and rids[index] == rid:
                return number, index
        return -1, 0
