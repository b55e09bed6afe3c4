"""The live records of a version-2 journal being written: their places, transactions and sizes.

A message is live from its enqueue until its removal is synced: a dequeue, or the outcome of the transaction that
dequeues it. The dequeue of an open transaction, its *escort*, is kept like a live record until the transaction ends,
and moves with its message.

Records of messages that the broker does not have in memory *rest*: they are in packed arrays of 16 bytes each
(`RestingRecords`) instead of the dictionary, which is in log order. The records of a run of messages rest from the
beginning: while their ids are consecutive and they are contiguous in the log, four numbers describe them all.

A run stores many consecutive record ids as two numbers: its first id and the one after its last. Runs are kept
ascending in one list. They do not overlap, but one may begin where another ends.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import chain, compress, repeat
from typing import Final

from qstore.formats.rhm.headers import record_blocks
from qstore.store.journal.write.flushes import (
    MessageData,
    WriteBatch,
    transaction_blocks,
)
from qstore.store.journal.write.space import SIZE_BITS, SIZE_MASK, RingSpace, blocks_of

# ---- runs of record ids ----


def runs_of(rids: Iterable[int]) -> list[int]:
    """The runs of some record ids, in any order."""
    runs: list[int] = []
    for rid in sorted(set(rids)):
        if runs and runs[-1] == rid:
            runs[-1] = rid + 1
        else:
            runs += (rid, rid + 1)
    return runs


def rids_in(runs: list[int]) -> Iterator[int]:
    """The record ids in some runs, ascending."""
    return chain.from_iterable(map(range, runs[::2], runs[1::2]))


def holds(runs: list[int], rid: int) -> bool:
    """Whether a record id is in one of the runs."""
    return bisect_right(runs, rid) & 1 == 1


def add_run(runs: list[int], first: int, end: int) -> None:
    """Add a run, usually after all others."""
    if runs and first < runs[-1]:
        at = bisect_right(runs, first)
        runs[at:at] = (first, end)
    else:
        runs.append(first)
        runs.append(end)


def remove_runs(runs: list[int], removed: list[int]) -> None:
    """Remove runs that were added as given, usually one after another."""
    count = len(removed)
    if not count:
        return
    at = bisect_right(runs, removed[0]) - 1
    if runs[at : at + count] == removed:
        del runs[at : at + count]
        return
    for number in range(0, count, 2):
        at = bisect_right(runs, removed[number]) - 1
        del runs[at : at + 2]


# ---- resting records ----

MAX_CHUNK: Final = 4096
_MIN_RUN: Final = 5  # least records for a `_Run`, which takes 146 bytes; 130 compiled
_MIN_FOUND: Final = 32  # the same where one is found among other records: with the chunk before it, it takes 450
_MIN_SWEPT: Final = 16  # empty runs that may stay in the list


class _Chunk:
    """Some records.

    Attributes:
        rids: their ids, ascending.
        packed: log offset and blocks of each (`space`); 0 for a removed one.
        left: number of records not removed.
        oldest: a lower bound of their log offsets.
        highest: the last of the records, packed, if none was removed or moved, and `oldest` is exact; else 0.
    """

    __slots__ = ("highest", "left", "oldest", "packed", "rids")

    def __init__(self) -> None:
        self.rids, self.packed = array("Q"), array("Q")
        self.left = self.oldest = self.highest = 0

    def append_all(self, rids: Iterable[int], packed: Iterable[int], count: int, place: int) -> None:
        """Append `count` records, none of them before the log offset `place`."""
        self.oldest = min(self.oldest, place) if self.rids else place
        self.rids.extend(rids)
        self.packed.extend(packed)
        self.left += count
        self.highest = 0


class _Run:
    """Records with consecutive ids and the same number of blocks, contiguous in the log.

    Attributes:
        first: the id of the first record.
        count: number of records.
        place: log offset of the first.
        blocks: blocks of each.
    """

    __slots__ = ("blocks", "count", "first", "place")

    def __init__(self, first: int, count: int, place: int, blocks: int) -> None:
        self.first, self.count, self.place, self.blocks = first, count, place, blocks

    def rids(self, index: int, count: int) -> range:
        """The ids of `count` records."""
        return range(self.first + index, self.first + index + count)

    def packed(self, index: int, count: int) -> range:
        """Log offset and blocks, packed, of `count` records."""
        step = self.blocks << SIZE_BITS
        first = (self.place << SIZE_BITS | self.blocks) + index * step
        return range(first, first + count * step, step)

    def packed_at(self, index: int) -> int:
        """Log offset and blocks, packed, of a record."""
        return (self.place + index * self.blocks) << SIZE_BITS | self.blocks

    def is_followed_by(self, rid: int, place: int, blocks: int) -> bool:
        """Whether a record can be the next of the run."""
        count = self.count
        return rid == self.first + count and blocks == self.blocks and place == self.place + count * blocks

    def shorten(self, count: int) -> None:
        """Remove the first records."""
        self.first += count
        self.count -= count
        self.place += count * self.blocks


def parts_of(rids: Sequence[int], packed: Sequence[int]) -> Iterator[tuple[int, int, bool]]:
    """Split records with ascending ids into runs, if these are long, and what is between them.

    Args:
        rids: their ids.
        packed: log offset and blocks of each.

    Returns:
        Of each part the index of its first record, that after its last, and whether it is a run.
    """
    done = begin = next_rid = next_packed = step = 0
    for index, (rid, each) in enumerate(zip(rids, packed, strict=True)):
        if rid != next_rid or each != next_packed:
            if index - begin >= _MIN_FOUND:
                if done < begin:
                    yield done, begin, False
                yield begin, index, True
                done = index
            begin, step = index, (each & SIZE_MASK) << SIZE_BITS
        next_rid, next_packed = rid + 1, each + step
    if len(rids) - begin < _MIN_FOUND:
        begin = len(rids)
    if done < begin:
        yield done, begin, False
    if begin < len(rids):
        yield begin, len(rids), True


class RestingRecords:
    """The resting records of one journal, in chunks and runs of ascending record ids.

    Messages of one queue leave memory nearly always in that order, so almost every record is appended to the last chunk
    or begins a new one between two others; one that fits nowhere is refused. The place of a removed record in the
    arrays is empty, until the whole chunk is.

    A run gets shorter when records leave at its ends. If one leaves in between, it and those around it become a chunk.
    Copies of its records, which are made from the first one on, are a run again. Empty runs stay in the list, and leave
    it together: the list may be long, and most records leave at its beginning.
    """

    __slots__ = ("_chunks", "_count", "_empty", "_firsts", "_next_chunk", "_next_index")

    def __init__(self) -> None:
        self._chunks: list[_Chunk | _Run] = []
        self._firsts: list[int] = []  # a lower bound of the record ids of each
        self._count = 0
        self._empty = 0  # runs that are
        self._next_chunk = self._next_index = 0  # chunk and index after the last removed record

    def __len__(self) -> int:
        return self._count

    def values(self) -> Iterator[int]:
        """Log offset and blocks, packed, of all records."""
        for chunk in self._chunks:
            if isinstance(chunk, _Run):
                yield from chunk.packed(0, chunk.count)
            else:
                yield from filter(None, chunk.packed)

    def portions(self) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
        """Ids, and packed log offsets and blocks, of the records, by id."""
        for chunk in self._chunks:
            if isinstance(chunk, _Run):
                if chunk.count:
                    yield chunk.rids(0, chunk.count), chunk.packed(0, chunk.count)
            elif chunk.left == len(chunk.rids):
                yield chunk.rids, chunk.packed
            else:
                yield array("Q", compress(chunk.rids, chunk.packed)), array("Q", filter(None, chunk.packed))

    def spans(self) -> Iterator[tuple[Sequence[int], int, int]]:
        """As the second half of `portions`, with what `RingSpace.hold_all` needs to know."""
        for chunk in self._chunks:
            if isinstance(chunk, _Run):
                if chunk.count:
                    yield chunk.packed(0, chunk.count), chunk.packed_at(0), chunk.packed_at(chunk.count - 1)
            elif chunk.highest:
                yield chunk.packed, chunk.oldest << SIZE_BITS, chunk.highest
            else:
                packed = array("Q", filter(None, chunk.packed))
                yield packed, min(packed), max(packed)

    def copy(self) -> RestingRecords:
        """The same records; changes of one are not in the other."""
        copied = RestingRecords()
        for chunk in self._chunks:
            if isinstance(chunk, _Run):
                if chunk.count:
                    copied.add_run(chunk.first, chunk.count, chunk.place, chunk.blocks)
            elif chunk.highest:
                copied.extend(chunk.rids[:], chunk.packed[:], chunk.oldest << SIZE_BITS, chunk.highest)
            else:
                copied.extend(array("Q", compress(chunk.rids, chunk.packed)), array("Q", filter(None, chunk.packed)))
        return copied

    # ---- adding ----

    def extend(self, rids: array[int], packed: array[int], lowest: int = 0, highest: int = 0) -> None:
        """Add at most `MAX_CHUNK` records whose ids are ascending, and higher than all others.

        Args:
            rids: their ids.
            packed: log offset and blocks of each.
            lowest: the first of these; 0 if unknown.
            highest: the last of these; 0 if unknown.
        """
        chunk = _Chunk()
        chunk.rids, chunk.packed, chunk.left = rids, packed, len(rids)
        chunk.oldest, chunk.highest = (lowest or min(packed)) >> SIZE_BITS, highest if lowest else 0
        self._insert(len(self._chunks), rids[0], chunk)
        self._count += chunk.left

    def extend_in_runs(self, rids: array[int], packed: array[int]) -> None:
        """As `extend`, with those as runs that can be. So their messages leave together, without a look at each."""
        for begin, end, is_run in parts_of(rids, packed):
            if is_run:
                self.add_run(rids[begin], end - begin, packed[begin] >> SIZE_BITS, packed[begin] & SIZE_MASK)
            else:
                self.extend(rids[begin:end], packed[begin:end])

    def add(self, rids: Sequence[int], packed: Sequence[int]) -> int:
        """Add records with ascending ids. Returns how many, from the first, were taken."""
        chunks, count = self._chunks, len(rids)
        at = bisect_right(self._firsts, rids[0])
        if at and _last_of(chunks[at - 1]) >= rids[0]:
            return 0
        if at < len(chunks):
            count = bisect_left(rids, self._firsts[at])
        chunk, done = chunks[at - 1] if at else None, 0
        while done < count:
            if not isinstance(chunk, _Chunk) or len(chunk.rids) >= MAX_CHUNK:
                chunk = _Chunk()
                self._insert(at, rids[done], chunk)
                at += 1
            end = min(count, done + MAX_CHUNK - len(chunk.rids))
            places = packed[done:end]
            chunk.append_all(rids[done:end], places, end - done, min(places) >> SIZE_BITS)
            done = end
        self._count += count
        return count

    def add_run(self, first: int, count: int, place: int, blocks: int) -> bool:
        """Add records as a `_Run`, if their ids are higher than all others. Returns whether they are."""
        chunks = self._chunks
        last = chunks[-1] if chunks else None
        if last is not None and _last_of(last) >= first:
            return False
        self._count += count
        if isinstance(last, _Run) and last.count and last.is_followed_by(first, place, blocks):
            last.count += count
            return True
        run = _Run(first, count, place, blocks)
        if count >= _MIN_RUN:
            self._insert(len(chunks), first, run)
            return True
        if not isinstance(last, _Chunk) or len(last.rids) + count > MAX_CHUNK:
            last = _Chunk()
            self._insert(len(chunks), first, last)
        last.append_all(run.rids(0, count), run.packed(0, count), count, place)
        return True

    def add_several(self, first: int, packed: array[int]) -> bool:
        """As `add_run`, of records of different sizes, each with its packed place."""
        chunks, count, done = self._chunks, len(packed), 0
        last = chunks[-1] if chunks else None
        if last is not None and _last_of(last) >= first:
            return False
        while done < count:
            if not isinstance(last, _Chunk) or len(last.rids) >= MAX_CHUNK:
                last = _Chunk()
                self._insert(len(chunks), first + done, last)
            several = min(count - done, MAX_CHUNK - len(last.rids))
            places = packed[done : done + several]
            last.append_all(range(first + done, first + done + several), places, several, places[0] >> SIZE_BITS)
            done += several
        self._count += count
        return True

    def _insert(self, at: int, first: int, chunk: _Chunk | _Run) -> None:
        self._chunks.insert(at, chunk)
        self._firsts.insert(at, first)

    # ---- places ----

    def get(self, rid: int) -> int | None:
        """Log offset and blocks, packed, of a record; None if it does not rest here."""
        number, index = self._place_of(rid)
        if number < 0:
            return None
        chunk = self._chunks[number]
        return chunk.packed_at(index) if isinstance(chunk, _Run) else chunk.packed[index] or None

    def get_all(self, rids: Sequence[int]) -> Sequence[int]:
        """As `get`, for many records; 0 for each that does not rest here. Fast for ids that rest consecutively.

        If the ids are a range that is in one run, the result is one, too.
        """
        if isinstance(rids, range) and (whole := self._in_run(rids)) is not None:
            return whole
        found = array("Q")
        count, at = len(rids), 0
        are_consecutive = isinstance(rids, range) and rids.step == 1
        wanted = rids if are_consecutive or isinstance(rids, array) else array("Q", rids)
        while at < count:
            number, index = self._place_of(wanted[at])
            if number >= 0:
                chunk = self._chunks[number]
                if isinstance(chunk, _Run):
                    several = min(count - at, chunk.count - index)
                    while (
                        several > 1
                        and not are_consecutive
                        and wanted[at : at + several] != array("Q", chunk.rids(index, several))
                    ):
                        several //= 2
                    found.extend(chunk.packed(index, several))
                else:
                    several = min(count - at, len(chunk.rids) - index)
                    while (
                        several > 1
                        and (
                            chunk.rids[index + several - 1] != wanted[at + several - 1]  # both ascend
                            if are_consecutive
                            else chunk.rids[index : index + several] != wanted[at : at + several]
                        )
                    ):
                        several //= 2
                    found += chunk.packed[index : index + several]
                at += several
            else:
                found.append(0)
                at += 1
        return found

    def _in_run(self, rids: range) -> range | None:
        """Log offset and blocks, packed, of records with consecutive ids that are part of one run; else None."""
        number, index = self._place_of(rids.start)
        chunk = self._chunks[number] if number >= 0 else None
        if isinstance(chunk, _Run) and rids.step == 1 and 0 < len(rids) <= chunk.count - index:
            return chunk.packed(index, len(rids))
        return None

    def has_run(self, rids: range) -> bool:
        """Whether records with consecutive ids are part of one run."""
        return self._in_run(rids) is not None

    def before(self, end: int) -> tuple[list[tuple[int, int]], int]:
        """Log offset and id of each record that begins before the log offset `end`; and where the next may begin.

        No record begins between `end` and the latter, which is -1 if there is no other record.
        """
        found: list[tuple[int, int]] = []
        following = -1
        for chunk in self._chunks:
            if isinstance(chunk, _Run):
                count = min(chunk.count, max(0, -((chunk.place - end) // chunk.blocks)))
                found += [(chunk.place + index * chunk.blocks, chunk.first + index) for index in range(count)]
                nearest = chunk.place + count * chunk.blocks if count < chunk.count else -1
            else:
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

    def _place_of(self, rid: int) -> tuple[int, int]:
        """Chunk and index of a record, which may be removed from its chunk; -1 and 0 if it does not rest here."""
        number = bisect_right(self._firsts, rid) - 1
        if number >= 0:
            chunk = self._chunks[number]
            if isinstance(chunk, _Run):
                index = rid - chunk.first
                if 0 <= index < chunk.count:
                    return number, index
            else:
                rids = chunk.rids
                index = bisect_left(rids, rid)
                if index < len(rids) and rids[index] == rid:
                    return number, index
        return -1, 0

    # ---- removing, moving ----

    def pop(self, rid: int) -> int:
        """Remove a record. Returns its log offset and blocks, packed. Raises KeyError if it does not rest here."""
        packed = self.take(rid)
        if not packed:
            raise KeyError(rid)
        return packed

    def take(self, rid: int) -> int:
        """As `pop`, but 0 if it does not rest here."""
        number, index, packed = self._next_chunk, self._next_index, 0
        chunks = self._chunks
        if number < len(chunks):
            chunk = chunks[number]
            if isinstance(chunk, _Run):
                if chunk.first == rid and chunk.count:
                    return self._take_first(number, chunk, 1)
            elif index < len(chunk.rids) and chunk.rids[index] == rid:
                packed = chunk.packed[index]
        if not packed:
            number, index = self._place_of(rid)
            if number < 0:
                return 0
            chunk = chunks[number]
            if isinstance(chunk, _Run):
                if not index:
                    return self._take_first(number, chunk, 1)
                if index + 1 == chunk.count:
                    return self._take_last(number, chunk, 1)
                number, index = self._unpacked(number, chunk, index)
        chunk = chunks[number]
        assert isinstance(chunk, _Chunk)
        packed = chunk.packed[index]
        if not packed:
            return 0
        chunk.packed[index] = chunk.highest = 0
        chunk.left -= 1
        self._count -= 1
        self._next_chunk, self._next_index = number, index + 1
        if not chunk.left:
            chunks[number] = _Run(self._firsts[number], 0, 0, 1)
            self._emptied(number)
        return packed

    def take_run(self, rid: int, count: int) -> tuple[int, int]:
        """Remove records with consecutive ids that are part of one run, or a single one that is not.

        Args:
            rid: the id of the first.
            count: the most to remove.

        Returns:
            How many have left, 0 if the first does not rest here; and log offset and blocks, packed, of the first.
        """
        number = self._next_chunk
        chunk = self._chunks[number] if number < len(self._chunks) else None
        index = 0
        if not isinstance(chunk, _Run) or chunk.first != rid or not chunk.count:
            number, index = self._place_of(rid)
            if number < 0:
                return 0, 0
            chunk = self._chunks[number]
        if isinstance(chunk, _Run):
            several = min(count, chunk.count - index)
            if not index:
                return several, self._take_first(number, chunk, several)
            if index + several == chunk.count:
                return several, self._take_last(number, chunk, several)
            if several >= _MIN_RUN:
                rest = index + several
                packed, place = chunk.packed_at(index), chunk.place + rest * chunk.blocks
                self._insert(
                    number + 1, chunk.first + rest, _Run(chunk.first + rest, chunk.count - rest, place, chunk.blocks)
                )
                chunk.count = index
                self._count -= several
                self._next_chunk, self._next_index = number + 1, 0
                return several, packed
        packed = self.take(rid)
        return (1, packed) if packed else (0, 0)

    def _take_first(self, number: int, run: _Run, count: int) -> int:
        """Remove the first records of a run. Returns log offset and blocks, packed, of the first."""
        packed = run.packed_at(0)
        self._next_chunk, self._next_index = number, 0
        self._count -= count
        run.shorten(count)
        self._firsts[number] = run.first  # also of an empty one: its records may be in the run before it now
        if not run.count:
            self._emptied(number)
        return packed

    def _emptied(self, number: int) -> None:
        """A run is empty: half of all may be."""
        self._next_chunk, self._next_index = number + 1, 0
        self._empty += 1
        if not self._count:
            self._chunks, self._firsts = [], []
            self._empty = self._next_chunk = 0
        elif self._empty > _MIN_SWEPT and 2 * self._empty > len(self._chunks):
            kept = [index for index, chunk in enumerate(self._chunks) if not isinstance(chunk, _Run) or chunk.count]
            self._chunks = [self._chunks[index] for index in kept]
            self._firsts = [self._firsts[index] for index in kept]
            self._empty = self._next_chunk = 0

    def _take_last(self, number: int, run: _Run, count: int) -> int:
        """Remove the last records of a run, but not all. Returns as `_take_first`."""
        run.count -= count
        self._count -= count
        self._next_chunk, self._next_index = number + 1, 0
        return run.packed_at(run.count)

    def _unpacked(self, number: int, run: _Run, index: int) -> tuple[int, int]:
        """Convert a record in a run and those around it to a chunk. Returns it, and the index of the record in it."""
        begin = index - index % MAX_CHUNK
        count = min(run.count - begin, MAX_CHUNK)
        place = run.place + begin * run.blocks
        chunk = _Chunk()
        chunk.append_all(run.rids(begin, count), run.packed(begin, count), count, place)
        rest = run.count - begin - count
        if rest:
            first = run.first + begin + count
            self._insert(number + 1, first, _Run(first, rest, place + count * run.blocks, run.blocks))
        if begin:
            run.count = begin
            number += 1
            self._insert(number, chunk.rids[0], chunk)
        else:
            self._chunks[number] = chunk
        return number, index - begin

    def set(self, rid: int, packed: int) -> None:
        """Set the place of a record that rests here."""
        number, index = self._place_of(rid)
        chunk = self._chunks[number]
        if isinstance(chunk, _Run):
            if not index:
                self._move_first(number, chunk, packed >> SIZE_BITS, packed & SIZE_MASK)
                return
            number, index = self._unpacked(number, chunk, index)
            chunk = self._chunks[number]
            assert isinstance(chunk, _Chunk)
        chunk.packed[index] = packed
        chunk.oldest, chunk.highest = min(chunk.oldest, packed >> SIZE_BITS), 0

    def _move_first(self, number: int, run: _Run, place: int, blocks: int) -> None:
        """Move the first record of a run, whose place has changed, to the run before it, or to a new one."""
        rid = run.first
        before = self._chunks[number - 1] if number else None
        if isinstance(before, _Run) and before.count and before.is_followed_by(rid, place, blocks):
            before.count += 1
            self._count += 1
            self._take_first(number, run, 1)
        elif run.count == 1:
            run.place, run.blocks = place, blocks
        else:
            self._count += 1
            self._take_first(number, run, 1)
            self._insert(number, rid, _Run(rid, 1, place, blocks))


def _last_of(chunk: _Chunk | _Run) -> int:
    """The highest record id."""
    return chunk.first + chunk.count - 1 if isinstance(chunk, _Run) else chunk.rids[-1]


# ---- all live records ----


class OpenTransaction:
    """The operations of an open transaction in one journal: none yet.

    Args:
        xid: its id.

    Attributes:
        xid: as above.
        enqueues: runs of the messages that it would enqueue.
        dequeues: message that it would dequeue -> record id of the dequeue.
        commit_decisions: in the transaction prepared list, those dequeues that decide to commit.
    """

    __slots__ = ("commit_decisions", "dequeues", "enqueues", "xid")

    def __init__(self, xid: bytes) -> None:
        self.xid = xid
        self.enqueues: list[int] = []
        self.dequeues: dict[int, int] = {}
        self.commit_decisions: set[int] = set()

    @property
    def size(self) -> int:
        """Number of its operations."""
        return sum(self.enqueues[1::2]) - sum(self.enqueues[::2]) + len(self.dequeues)

    def enqueued(self) -> Iterator[int]:
        """Record ids of the messages that it would enqueue, ascending."""
        return rids_in(self.enqueues)


class LiveRecords:
    """The live records of one journal.

    A writer that appends plain records directly updates `live` and `room` itself (`WriteBatch`).

    Args:
        batch: notes the records that are released when its flush is synced.
        space: notes the files that hold live records.
        live: record id -> log offset and blocks, packed, of every live record in log order. Owned from now on.
        transactions: xid -> open transaction. Owned from now on.
        resting: live records that rest; none by default. Owned from now on.

    Attributes:
        live, transactions, resting: as above.
        locked: message -> the open transaction that dequeues it.
        pending: runs of the messages that open transactions enqueue.
        room: blocks that enqueues may still fill by the threshold: the limit less the live blocks, one for each
            message, and the blocks that the outcomes of open transactions need.
        outcomes: blocks of these outcomes.
        escorts: blocks of the dequeues of open transactions.
        largest: blocks of the longest live record, or more.
        left: committed transactions whose dequeued messages are still to be removed, with the flush that commits each.
    """

    __slots__ = (
        "_batch",
        "_escort_count",
        "_space",
        "escorts",
        "largest",
        "left",
        "live",
        "locked",
        "outcomes",
        "pending",
        "resting",
        "room",
        "transactions",
    )

    def __init__(
        self,
        batch: WriteBatch,
        space: RingSpace,
        live: dict[int, int],
        transactions: dict[bytes, OpenTransaction],
        resting: RestingRecords | None = None,
    ) -> None:
        self._batch, self._space = batch, space
        self.live, self.transactions = live, transactions
        self.resting = RestingRecords() if resting is None else resting
        self.locked: dict[int, bytes] = {}
        self.left: deque[tuple[int, OpenTransaction]] = deque()
        self.outcomes = self.escorts = self._escort_count = 0
        for xid, transaction in transactions.items():
            self.outcomes += self.outcome_blocks(xid)
            self.escorts += sum(live[rid] & SIZE_MASK for rid in transaction.dequeues.values())
            self._escort_count += len(transaction.dequeues)
            self.locked.update(dict.fromkeys(transaction.dequeues, xid))
        self.pending = sorted(chain.from_iterable(each.enqueues for each in transactions.values()))
        self.largest, blocks, oldest = 1, 0, batch.position
        awake = array("Q", live.values())
        parts = [(awake, min(awake), max(awake))] if awake else []
        for records, lowest, highest in chain(parts, self.resting.spans()):
            sizes = (records[0] & SIZE_MASK,) if isinstance(records, range) else blocks_of(records)
            blocks += sizes[0] * len(records) if isinstance(records, range) else sum(sizes)
            self.largest = max(self.largest, max(sizes))
            oldest = min(oldest, lowest >> SIZE_BITS)
            space.hold_all(records, lowest, highest)
        self.room = space.threshold - blocks - self.messages - self.outcomes
        space.oldest = oldest // space.file

    # ---- queries ----

    def where(self, rid: int) -> int | None:
        """Log offset and blocks, packed, of a live record, resting or not; None if there is none."""
        packed = self.live.get(rid)
        return self.resting.get(rid) if packed is None else packed

    def rids(self) -> Iterator[int]:
        """The ids of all live records, ascending."""
        resting = chain.from_iterable(rids for rids, _ in self.resting.portions())
        return merge(resting, sorted(self.live)) if self.live else resting

    def where_all(self, rids: Sequence[int]) -> Sequence[int]:
        """As `where`, for many records, fast if they rest; 0 for each that is not live."""
        live = self.live
        found = self.resting.get_all(rids)
        if live and not all(found):
            return [packed or live.get(rid, 0) for rid, packed in zip(rids, found, strict=True)]
        return found

    def oldest(self) -> tuple[int, int] | None:
        """Id and log offset of the record that holds the oldest file; None without live records.

        It looks at the records of that file, and not at those after it.
        """
        found: list[tuple[int, int]] = []
        for rid, packed in self.live.items():
            found.append((packed >> SIZE_BITS, rid))
            break  # they are in log order
        if self.resting:
            resting, following = self.resting.before((self._space.oldest_held() + 1) * self._space.file)
            if not resting and following >= 0:
                resting, _ = self.resting.before((following // self._space.file + 1) * self._space.file)
            if resting:
                found.append(min(resting))
        if not found:
            return None
        place, rid = min(found)
        return rid, place

    @property
    def messages(self) -> int:
        """Messages that still need a dequeue, including those of open transactions."""
        return len(self.live) + len(self.resting) - self._escort_count

    @property
    def blocks(self) -> int:
        """Live blocks."""
        return self._space.threshold - self.room - self.messages - self.outcomes

    def outcome_blocks(self, xid: bytes) -> int:
        """Blocks that a transaction's commit or abort needs, in its own flush."""
        return record_blocks(0, len(xid)) + self._space.flush

    def new_outcome(self, xid: bytes) -> int:
        """The same for a new transaction; 0 for one that is open."""
        return 0 if xid in self.transactions else self.outcome_blocks(xid)

    def have_room_before(self, end: int, xid: bytes, messages: list[MessageData]) -> bool:
        """Whether a transaction may be appended up to a log offset without any further check of its room.

        Up to that offset there is room for a dequeue for each block. A message needs only one dequeue, so the blocks
        beyond each message's first must provide the room for the outcome.

        Args:
            end: plain messages up to this log offset need no check (`Version2Writer`).
            xid: the id of the transaction, or a placeholder of the same length.
            messages: the messages that it enqueues, one or more.
        """
        count, outcome = len(messages), self.outcome_blocks(xid)
        blocks, largest = transaction_blocks(xid, messages)
        return (
            self._batch.position + blocks <= end
            and blocks + count + outcome <= self.room
            and largest <= self.largest
            and outcome <= (blocks - count) * self._space.flush
        )

    def may_dequeue(self, target: int, xid: bytes) -> bool:
        """Whether the message exists, and may be dequeued by the transaction, or outside of any if `xid` is empty."""
        if target in self.locked:
            return False
        if holds(self.pending, target):
            return self.is_enqueued_by(xid, target)
        return self.where(target) is not None

    def is_locked(self, rid: int) -> bool:
        """Whether an open transaction enqueues or dequeues the message."""
        return rid in self.locked or holds(self.pending, rid)

    def unlocked(self, first: int, count: int) -> int:
        """How many of `count` messages with consecutive record ids precede the first that an open transaction holds."""
        pending, locked = self.pending, self.locked
        at = bisect_right(pending, first)
        if at & 1:
            return 0
        if at < len(pending):
            count = min(count, pending[at] - first)
        if locked:
            for number in range(count):
                if first + number in locked:
                    return number
        return count

    def is_enqueued_by(self, xid: bytes, rid: int) -> bool:
        """Whether the open transaction `xid` enqueues the message."""
        transaction = self.transactions.get(xid)
        return transaction is not None and holds(transaction.enqueues, rid)

    def escort_of(self, target: int) -> int | None:
        """Record id of the dequeue by which an open transaction would remove the message; None if there is none."""
        xid = self.locked.get(target)
        return None if xid is None else self.transactions[xid].dequeues.get(target)

    # ---- resting records ----

    def put_away(self, rids: Sequence[int]) -> None:
        """Make live records rest; ids ascend. Those of runs rest already."""
        live = self.live
        if not live or (isinstance(rids, range) and self.resting.has_run(rids)):
            return
        # The calls of `map` take a third of the time of loops, which would make an object of each number.
        packed = list(map(live.get, rids, repeat(0)))
        found: Sequence[int] = rids
        if 0 in packed:
            found, packed = list(compress(rids, packed)), list(filter(None, packed))
        if found:
            taken = self.resting.add(found, packed)
            deque(map(live.pop, found[:taken]), maxlen=0)

    # ---- changes ----

    def enqueued(self, rid: int, place: int, blocks: int, xid: bytes = b"") -> None:
        """Note an appended message; the transaction `xid`, if given, begins now if it is not open."""
        if xid:
            self._enqueues(self._begun(xid), rid, rid + 1)
        self._keep(rid, place, blocks)
        self.room -= 1

    def enqueued_run(self, rid: int, count: int, place: int, blocks: int) -> None:
        """Note a run of messages appended to the current file, outside of transactions.

        Args:
            rid: the record id of the first; those of the others follow.
            count: number of messages, which `WriteBatch.placed` has counted.
            place: log offset of the first.
            blocks: blocks of each.
        """
        if not self.resting.add_run(rid, count, place, blocks):
            for number in range(count):
                self.live[rid + number] = (place + number * blocks) << SIZE_BITS | blocks
        self.room -= count * (blocks + 1)

    def enqueued_several(self, rid: int, packed: array[int], blocks: int) -> None:
        """Note messages appended to the current file, one after another, outside of transactions.

        Args:
            rid: the record id of the first; those of the others follow.
            packed: log offset and blocks of each, packed (`space`); `WriteBatch.placed` has counted them.
            blocks: blocks of all.
        """
        if not self.resting.add_several(rid, packed):
            self.live.update(enumerate(packed, rid))
        self.room -= blocks + len(packed)

    def escorted(self, rid: int, target: int, place: int, blocks: int, xid: bytes) -> OpenTransaction:
        """Note an appended dequeue `rid` of the message `target` by a transaction. Returns the transaction."""
        transaction = self._begun(xid)
        transaction.dequeues[target] = rid
        self.locked[target] = xid
        self._keep(rid, place, blocks)
        self.escorts += blocks
        self._escort_count += 1
        return transaction

    def dequeued(self, target: int) -> None:
        """Note that a message was dequeued outside of any transaction."""
        self.room += self._drop(target) + 1

    def dequeued_run(self, target: int, count: int) -> int:
        """Note that messages with consecutive record ids from `target` on were dequeued outside of any transaction.

        Returns:
            How many: at most `count`, less if one does not exist.
        """
        live, resting, batch, space = self.live, self.resting, self._batch, self._space
        rid, end, room = target, target + count, 0
        while rid < end:
            packed = live.pop(rid, 0) if live else 0
            several = 1
            if not packed:
                several, packed = resting.take_run(rid, end - rid)
                if not several:
                    break
            blocks = packed & SIZE_MASK
            if several == 1:
                batch.removed.append(packed)
            else:
                space.count_run(batch.released, packed >> SIZE_BITS, blocks, several)
            room += several * (blocks + 1)
            rid += several
        self.room += room
        return rid - target

    def committed(self, xid: bytes) -> None:
        """Commit a transaction: the messages that it dequeued are removed."""
        transaction = self._ended(xid)
        self._batch.removed += self._without_dequeued(transaction, len(transaction.dequeues))

    def committed_later(self, xid: bytes) -> None:
        """Commit a transaction; `remove_left` removes the messages that it dequeued, which are many."""
        self.left.append((self._batch.number, self._ended(xid)))

    def remove_left(self, count: int) -> list[int]:
        """Remove up to `count` of the messages that the oldest transaction in `left` has dequeued.

        Returns:
            The records to release, packed.
        """
        transaction = self.left[0][1]
        removed = self._without_dequeued(transaction, count)
        if not transaction.dequeues:
            self.left.popleft()
        return removed

    def remove_all_left(self) -> None:
        """Remove all of them at once: compaction must not copy them."""
        while self.left:
            self._batch.removed += self.remove_left(len(self.left[0][1].dequeues))

    def aborted(self, xid: bytes) -> None:
        """Abort a transaction: the messages that it enqueued are removed."""
        transaction = self.transactions[xid]
        self._batch.removed += self._undone(transaction, transaction.size)
        self._ended(xid)

    def undo(self, xid: bytes, count: int) -> list[int]:
        """Undo up to `count` operations of an open transaction that will be aborted. Returns as `remove_left`."""
        return self._undone(self.transactions[xid], count)

    def _without_dequeued(self, transaction: OpenTransaction, count: int) -> list[int]:
        """Remove up to `count` messages that a committed transaction has dequeued. Returns their records, packed."""
        live, resting, locked, dequeues = self.live, self.resting, self.locked, transaction.dequeues
        removed: list[int] = []
        room = escorts = 0
        for _ in range(min(count, len(dequeues))):
            target, escort = dequeues.popitem()
            locked.pop(target, None)
            message = live.pop(target, 0) or resting.pop(target)
            dequeue = live.pop(escort)
            removed.append(message)
            removed.append(dequeue)
            escorts += dequeue & SIZE_MASK
            room += (message & SIZE_MASK) + 1
        self.room += room + escorts
        self.escorts -= escorts
        self._escort_count -= len(removed) // 2
        return removed

    def _undone(self, transaction: OpenTransaction, count: int) -> list[int]:
        """Undo up to `count` operations of a transaction. Returns their records, packed."""
        live, resting, locked, dequeues = self.live, self.resting, self.locked, transaction.dequeues
        removed: list[int] = []
        escorts = 0
        for _ in range(min(count, len(dequeues))):
            target, escort = dequeues.popitem()
            locked.pop(target, None)
            dequeue = live.pop(escort)
            removed.append(dequeue)
            escorts += dequeue & SIZE_MASK
        self.escorts -= escorts
        self._escort_count -= len(removed)
        room, count = escorts, count - len(removed)
        runs = transaction.enqueues
        while count > 0 and runs:
            first, end = runs[-2:]
            begin = max(first, end - count)
            for rid in range(begin, end):
                message = live.pop(rid, 0) or resting.pop(rid)
                removed.append(message)
                room += (message & SIZE_MASK) + 1
            remove_runs(self.pending, [first, end])
            del runs[-2:]
            if first < begin:
                runs += (first, begin)
                add_run(self.pending, first, begin)
            count -= end - begin
        self.room += room
        return removed

    def replaced(self, rids: list[int], places: list[int], targets: list[int]) -> None:
        """Note a whole transaction appended to the current file, with its commit (`WriteBatch.append_transaction`).

        Args:
            rids: begins with the ids of the messages that it enqueued.
            places: their log offsets, and that of the end of the last. `WriteBatch.placed` has their number.
            targets: the messages that it dequeued.
        """
        live, removed = self.live, self._batch.removed
        count = len(places) - 1
        for number in range(count):
            place = places[number]
            live[rids[number]] = place << SIZE_BITS | (places[number + 1] - place)
        room = self.room - (places[count] - places[0]) - count
        for target in targets:
            packed = live.pop(target, 0) or self.resting.pop(target)
            removed.append(packed)
            room += (packed & SIZE_MASK) + 1
        self.room = room

    def opened(self, xid: bytes, rids: list[int], places: list[int], targets: list[int], escort_blocks: int) -> None:
        """Note all records of a transaction but its outcome, which were appended to the current file together.

        Args:
            xid: the transaction, which begins now if it is not open.
            rids: the ids of the messages that it enqueued, ascending, and then of its dequeues.
            places: the messages' log offsets, and that of the end of the last. `WriteBatch.placed` has the number of
                all the records.
            targets: the messages that it dequeues.
            escort_blocks: blocks of each dequeue.
        """
        live, locked, transaction = self.live, self.locked, self._begun(xid)
        dequeues = transaction.dequeues
        count = len(places) - 1
        for number in range(count):
            place = places[number]
            live[rids[number]] = place << SIZE_BITS | (places[number + 1] - place)
        if count:
            first, end = rids[0], rids[count - 1] + 1
            if end - first == count:
                self._enqueues(transaction, first, end)
            else:
                for number in range(count):
                    self._enqueues(transaction, rids[number], rids[number] + 1)
        place = places[count]
        number = count
        for target in targets:
            rid = rids[number]
            number += 1
            live[rid] = place << SIZE_BITS | escort_blocks
            dequeues[target] = rid
            locked[target] = xid
            place += escort_blocks
        self.room -= place - places[0] + count
        self.escorts += escort_blocks * len(targets)
        self._escort_count += len(targets)

    def moved(self, rid: int, place: int, blocks: int) -> None:
        """Replace a live record by its copy, which was appended."""
        packed = self.resting.get(rid) if self.resting else None
        if packed is None:
            self.room += self._drop(rid)
            self._keep(rid, place, blocks)
            return
        self.resting.set(rid, place << SIZE_BITS | blocks)
        self._batch.removed.append(packed)
        self._space.hold(place, blocks)
        self.room += (packed & SIZE_MASK) - blocks

    def _begun(self, xid: bytes) -> OpenTransaction:
        transaction = self.transactions.get(xid)
        if transaction is None:
            transaction = self.transactions[xid] = OpenTransaction(xid)
            self.outcomes += self.outcome_blocks(xid)
            self.room -= self.outcome_blocks(xid)
        return transaction

    def _ended(self, xid: bytes) -> OpenTransaction:
        transaction = self.transactions.pop(xid)
        self.outcomes -= self.outcome_blocks(xid)
        self.room += self.outcome_blocks(xid)
        remove_runs(self.pending, transaction.enqueues)
        return transaction

    def _enqueues(self, transaction: OpenTransaction, first: int, end: int) -> None:
        """Note that an open transaction enqueues the messages from `first` up to, not including, `end`."""
        runs, pending = transaction.enqueues, self.pending
        if runs and runs[-1] == first and pending[-1] == first:
            runs[-1] = pending[-1] = end  # extends the last run of both
        else:
            add_run(runs, first, end)
            add_run(pending, first, end)

    def _keep(self, rid: int, place: int, blocks: int) -> None:
        self.live[rid] = place << SIZE_BITS | blocks
        self._space.hold(place, blocks)
        self.room -= blocks

    def _drop(self, rid: int) -> int:
        """Release a record once the current batch is synced. Returns its blocks."""
        packed = self.live.pop(rid, 0) or self.resting.pop(rid)
        self._batch.removed.append(packed)
        return packed & SIZE_MASK
