"""The state derived from a journal's records: its outstanding messages, and its open transactions.

A `JournalRecovery` applies a walk's records to an enqueue map and a transaction map (formats/rhm/README.md, 5.3):

    enqueue                    added to the map
    enqueue under an xid       stored under the xid
    dequeue                    removed from the map, even if locked; an unknown rid is ignored
    dequeue under an xid       its target is locked, if it is in the map; stored under the xid
    commit                     the xid's enqueues are added to the map, then its dequeues are removed
    abort                      the xid's enqueues are dropped, its dequeues' targets unlocked
    enqueue flagged transient  ignored
    anything flagged moved     the later copy replaces the earlier one (version 2)

Transactions that are still open at the end are resolved through the transaction prepared list (6.2 of that page;
`recovery.prepared`). Nothing here reads a file or a clock.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, MutableSequence, Sequence
from enum import Enum
from itertools import compress, islice
from operator import lt
from typing import Final, TypeAlias

from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.rhm.records import MOVED, TRANSIENT, Kind
from qstore.store.damage import Damage
from qstore.store.journal.files import JournalFormat
from qstore.store.journal.records import RecordHeader
from qstore.store.journal.write.live_records import RestingRecords
from qstore.store.journal.write.space import SIZE_BITS, SIZE_MASK

# ---- the enqueue map ----

GONE: Final = 0
LIVE: Final = 1
LOCKED: Final = 2
PENDING: Final = 3

MAX_KNOWN: Final = 255  # blocks: the size of longer records is not kept
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
    """Record id → (log offset, state) for one journal, in packed arrays.

    Record ids arrive almost in ascending order: they are taken from one counter, and only transactions and concurrent
    publishers reorder them slightly. So the index consists of four parallel arrays sorted by rid (18 bytes a record),
    to which ascending rids are appended; late ones are collected in a small dict and merged in when it grows. Dequeues
    from a queue are mostly in order too, so the search for a rid first tries the entry after the last one found.
    Removed entries are swept when they outnumber the live ones.

    The fourth array has the blocks of short records that were added with their size; 0 for all others. It saves a start
    from reading all records once more.

    A record is GONE, LIVE, LOCKED (dequeued by a transaction that is still open) or PENDING (enqueued by one).
    """

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
        """As `add`, for a live record of `blocks` blocks; 0 if unknown."""
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


class MessagesSinceIndex(EnqueueMap):
    """The messages of a journal of which an index was read (`store.recovery.index`), and then the records after it.

    Those of the index rest in its packed arrays, and are in `resting`; the others are in the map's own. The ids of the
    latter are higher, in every sound journal: otherwise the map is `odd`, and only a scan determines the content.

    Args:
        resting: the messages of the index; log offsets count blocks. They are changed.
        base: log offset, in blocks, that is the beginning of the journal's stream.
        highest_rid: the highest record id that was known to the index.
        place: log offset, in blocks, up to which it describes the journal.

    Attributes:
        resting, base, place: as above.
        moved: those of the index whose records were moved since: the copy of a transaction's record is shorter.
        is_odd: whether a record does not have a higher id.
    """

    __slots__ = ("_held", "base", "is_odd", "moved", "place", "resting")

    def __init__(self, resting: RestingRecords, base: int, highest_rid: int, place: int) -> None:
        super().__init__()
        self.resting, self.base, self.place = resting, base, place
        self.moved: set[int] = set()
        self.is_odd = False
        self._held: dict[int, int] = {}  # the states of those of the index that are not live
        self._last = highest_rid

    def __len__(self) -> int:
        return super().__len__() + len(self.resting)

    def _add_late(self, rid: int, place: int, state: int) -> None:
        self.is_odd = True
        super()._add_late(rid, place, state)

    def clear(self) -> None:
        """Forget all records, and free their memory."""
        super().clear()
        self.resting = RestingRecords()
        self.moved.clear()
        self._held.clear()

    def move(self, rid: int, place: int) -> None:
        """As `EnqueueMap.move`."""
        packed = self.resting.get(rid)
        if packed is None:
            super().move(rid, place)
        else:
            self.resting.set(rid, self.base + place // BLOCK_SIZE << SIZE_BITS | packed & SIZE_MASK)
            self.moved.add(rid)

    def remove(self, rid: int) -> bool:
        """As `EnqueueMap.remove`."""
        if self.resting.take(rid):
            self._held.pop(rid, None)
            self.moved.discard(rid)
            return True
        return super().remove(rid)

    def set_state(self, rid: int, state: int) -> bool:
        """As `EnqueueMap.set_state`."""
        if self.resting.get(rid) is None:
            return super().set_state(rid, state)
        if state == LIVE:
            self._held.pop(rid, None)
        else:
            self._held[rid] = state
        return True

    def get(self, rid: int) -> Entry | None:
        """As `EnqueueMap.get`."""
        packed = self.resting.get(rid)
        if packed is None:
            return super().get(rid)
        return Entry(rid, self._place_of(packed), self._held.get(rid, LIVE))

    def count(self, state: int) -> int:
        """As `EnqueueMap.count`."""
        held = list(self._held.values()).count(state) if state != LIVE else len(self.resting) - len(self._held)
        return super().count(state) + held

    def in_rid_order(self) -> Iterator[tuple[int, int, int]]:
        """As `EnqueueMap.in_rid_order`."""
        for rids, packed in self.resting.portions():
            for rid, each in zip(rids, packed, strict=True):
                yield rid, self._place_of(each), self._held.get(rid, LIVE)
        yield from super().in_rid_order()

    def in_place_order(self) -> Iterator[tuple[int, int, int]]:
        """As `EnqueueMap.in_place_order`."""
        return iter(sorted(self.in_rid_order(), key=_place_in))

    def are_there(self) -> bool:
        """Whether all messages of the index that are left are in files that are there."""
        return not self.resting.before(self.base)[0]

    def _place_of(self, packed: int) -> int:
        return ((packed >> SIZE_BITS) - self.base) * BLOCK_SIZE


def _place_in(entry: tuple[int, int, int]) -> int:
    return entry[1]


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


# ---- open transactions ----


class Operation(NamedTuple):
    """One operation of a transaction.

    Attributes:
        rid: an enqueue's rid; for a dequeue, the rid of the enqueue that it removes.
        place: log offset of the record.
        flags: the record's flags.
        is_enqueue: whether it is an enqueue, and not a dequeue.
    """

    rid: int
    place: int
    flags: int
    is_enqueue: bool


class Transaction:
    """The operations under one xid, in order of writing, in packed arrays: 25 bytes for each."""

    __slots__ = ("_flags", "_has_copies", "_kinds", "_places", "_rids", "xid")

    def __init__(self, xid: bytes) -> None:
        self.xid = xid
        self._rids = array("Q")
        self._places = array("Q")
        self._flags = array("H")
        self._kinds = bytearray()
        self._has_copies = False

    def __iter__(self) -> Iterator[Operation]:
        self._drop_earlier_copies()
        for rid, place, flags, kind in zip(self._rids, self._places, self._flags, self._kinds, strict=True):
            yield Operation(rid, place, flags, bool(kind))

    @property
    def enqueues(self) -> int:
        """Number of enqueues."""
        self._drop_earlier_copies()
        return self._kinds.count(1)

    @property
    def dequeues(self) -> int:
        """Number of dequeues."""
        self._drop_earlier_copies()
        return self._kinds.count(0)

    def append(self, rid: int, place: int, flags: int, *, is_enqueue: bool) -> None:
        """Add an operation. A record that was moved (version 2) replaces its earlier copy, if there is one."""
        self._rids.append(rid)
        self._places.append(place)
        self._flags.append(flags)
        self._kinds.append(is_enqueue)
        if flags & MOVED:
            self._has_copies = True

    def _drop_earlier_copies(self) -> None:
        """Drop the earlier copies of moved records: once, on demand, as a huge transaction may be copied as a whole.

        Two records with one id are not copies if the later was not moved: both are kept.
        """
        if not self._has_copies:
            return
        self._has_copies = False
        entries = enumerate(zip(self._rids, self._kinds, self._flags, strict=True))
        last = {(rid, kind): index for index, (rid, kind, flags) in entries if flags & MOVED}
        keys = enumerate(zip(self._rids, self._kinds, strict=True))
        keep = bytearray(index >= last.get(key, 0) for index, key in keys)
        if all(keep):
            return
        self._rids = array("Q", compress(self._rids, keep))
        self._places = array("Q", compress(self._places, keep))
        self._flags = array("H", compress(self._flags, keep))
        self._kinds = bytearray(compress(self._kinds, keep))


class TransactionMap:
    """The open transactions of one journal, in the order in which they began: a commit or an abort closes an xid."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: dict[bytes, Transaction] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Transaction]:
        return iter(self._open.values())

    def __contains__(self, xid: object) -> bool:
        return xid in self._open

    def of(self, xid: bytes) -> Transaction:
        """The open transaction with that xid; a new one if there was none."""
        transaction = self._open.get(xid)
        if transaction is None:
            transaction = self._open[xid] = Transaction(xid)
        return transaction

    def close(self, xid: bytes) -> Transaction | None:
        """Remove and return a transaction that was committed or aborted; None if it was not open."""
        return self._open.pop(xid, None)


# ---- recovery ----

MAX_UNFOUNDED: Final = 1000  # stored; a forged journal may have any number


class Outcome(Enum):
    """The resolution of an open transaction by recovery."""

    IN_DOUBT = "in-doubt"  # prepared and undecided: kept, locked, for the transaction manager to decide
    COMMITTING = "committing"  # decided, or local and prepared: rolled forward
    ABORTING = "aborting"  # decided: rolled back
    UNPREPARED = "unprepared"  # never prepared: dropped


class OpenTransaction(NamedTuple):
    """A transaction that a journal left open, and its outcome there."""

    xid: bytes
    outcome: Outcome
    enqueues: int
    dequeues: int


#: A message that recovery keeps: record id; log offset of its enqueue record; LIVE, LOCKED (a
#: branch in doubt would dequeue it) or PENDING (a branch in doubt would enqueue it); the branch in doubt, if any.
OutstandingRecord: TypeAlias = tuple[int, int, int, bytes | None]


class Unfounded(NamedTuple):
    """A record that refers to something missing: a message never enqueued, or a transaction not open.

    If the journal's beginning was overwritten, most of these are normal: they refer to overwritten records.

    Attributes:
        kind: a dequeue, a commit or an abort.
        place: its log offset.
        rid: its own record id.
        dequeued_rid: for a dequeue, the message that it removes (in a transaction, `rid` is the same).
        xid: for the others, the transaction.
        again: for a plain dequeue, whether the message is known to have been dequeued before.
    """

    kind: Kind
    place: int
    rid: int
    dequeued_rid: int
    xid: bytes
    again: bool = False


class JournalRecovery:
    """A `RecordSink` that builds the recovered state of a journal.

    Args:
        messages: those of an index, if only the records after it are walked.

    Attributes:
        messages: the index of enqueued messages.
        indexed: the same, as it was passed: the records of these messages were not read. None if there was no index.
        transactions: the open transactions.
        left_open: the transactions that were open at the journal's end, available once they are resolved.
        unprepared: those among them that were never prepared, with their records.
        damage: damage that the walk found, in order.
        unfounded: the first records that refer to something missing; `unfounded_count` counts all.
        transient_places: log offsets of the enqueues that recovery ignores; `transients` counts them.
        dequeues, commits, aborts: number of records of each kind; `enqueues` are counted too.
    """

    def __init__(self, messages: MessagesSinceIndex | None = None) -> None:
        self.messages = EnqueueMap() if messages is None else messages
        self.indexed = messages
        self.transactions = TransactionMap()
        self.left_open: list[OpenTransaction] = []
        self.unprepared: list[Transaction] = []
        self.damage: list[Damage] = []
        self.unfounded: list[Unfounded] = []
        self.unfounded_count = 0
        self.transient_places = array("Q")
        self.dequeues = self.commits = self.aborts = 0
        self._other_enqueues = 0  # not added directly to the index
        self._indexed_later = 0  # added by transactions
        self._highest_rid = 0  # of all records but plain enqueues
        self._in_doubt: dict[int, bytes] = {}
        self._targetless: list[Unfounded] = []  # transactions' dequeues of messages that were not enqueued before
        #: Called for each plain enqueue: adds it directly to the index.
        self.enqueue = self.messages.add_live

    def dequeue(self, rid: int, dequeued_rid: int, place: int) -> None:
        """A plain dequeue."""
        if rid > self._highest_rid:
            self._highest_rid = rid
        self.dequeues += 1
        if not self.messages.remove(dequeued_rid):
            again = self.messages.was_removed(dequeued_rid)
            self._note_unfounded(Unfounded(Kind.DEQUEUE, place, rid, dequeued_rid, b"", again))

    def record(self, header: RecordHeader, place: int, xid: bytes) -> None:
        """Any record that is not plain."""
        self._highest_rid = max(self._highest_rid, header.rid)
        if header.kind is Kind.ENQUEUE:
            self._enqueue(header, place, xid)
        elif header.kind is Kind.DEQUEUE:
            self._dequeue(header, place, xid)
        elif header.kind is Kind.COMMIT:
            self.commits += 1
            if not self._commit(xid):
                self._note_unfounded(Unfounded(header.kind, place, header.rid, 0, xid))
        elif header.kind is Kind.ABORT:
            self.aborts += 1
            if not self._abort(xid):
                self._note_unfounded(Unfounded(header.kind, place, header.rid, 0, xid))

    def damaged(self, damage: Damage) -> None:
        """Damage that the walk found."""
        self.damage.append(damage)

    @property
    def highest_rid(self) -> int:
        """The highest record id read; 0 if none."""
        return max(self._highest_rid, self.messages.highest_rid)

    @property
    def transients(self) -> int:
        """Number of enqueues that recovery ignores."""
        return len(self.transient_places)

    @property
    def enqueues(self) -> int:
        """Number of enqueue records."""
        return self.messages.added + self.messages.duplicate_count - self._indexed_later + self._other_enqueues

    # ---- records ----

    def _enqueue(self, header: RecordHeader, place: int, xid: bytes) -> None:
        if header.flags & TRANSIENT:
            self.transient_places.append(place)
            self._other_enqueues += 1
        elif xid:
            self._other_enqueues += 1
            self.transactions.of(xid).append(header.rid, place, header.flags, is_enqueue=True)
        elif header.flags & MOVED:
            self._other_enqueues += 0 if self.messages.get(header.rid) is None else 1
            self.messages.move(header.rid, place)
        else:
            self.messages.add(header.rid, place)

    def _dequeue(self, header: RecordHeader, place: int, xid: bytes) -> None:
        if not xid:
            self.dequeue(header.rid, header.dequeued_rid, place)
            return
        self.dequeues += 1
        if not self.messages.set_state(header.dequeued_rid, LOCKED) and len(self._targetless) < MAX_UNFOUNDED:
            self._targetless.append(Unfounded(Kind.DEQUEUE, place, header.dequeued_rid, header.dequeued_rid, xid))
        self.transactions.of(xid).append(header.dequeued_rid, place, header.flags, is_enqueue=False)

    def _note_unfounded(self, record: Unfounded) -> None:
        self.unfounded_count += 1
        if len(self.unfounded) < MAX_UNFOUNDED:
            self.unfounded.append(record)

    def _note_targetless(self, rid: int, xid: bytes) -> None:
        """Note a transaction's dequeue that removed nothing, unless its message existed and was removed by another.

        That happens if an xid is reused after a restart, which dropped the open transaction with that xid.
        """
        for record in self._targetless:
            if (record.rid, record.xid) == (rid, xid):
                self._note_unfounded(record)

    def _commit(self, xid: bytes) -> bool:
        """Apply a transaction. Returns False if it was not open."""
        transaction = self.transactions.close(xid)
        if transaction is None:
            return False
        # Enqueues first, whatever their order: one that was copied forward follows the dequeue of the same transaction.
        for operation in transaction:
            if operation.is_enqueue:
                self._indexed_later += 1
                self.messages.add(operation.rid, operation.place)
        for operation in transaction:
            if not operation.is_enqueue and not self.messages.remove(operation.rid):
                self._note_targetless(operation.rid, xid)
        return True

    def _abort(self, xid: bytes) -> bool:
        """Undo a transaction. Returns False if it was not open."""
        transaction = self.transactions.close(xid)
        if transaction is None:
            return False
        for operation in transaction:
            if not operation.is_enqueue:
                self.messages.set_state(operation.rid, LIVE)
        return True

    # ---- the end ----

    def open_duplicates(self) -> tuple[list[Entry], int]:
        """Messages that open transactions enqueue under ids already in use: the first ones, and their total number."""
        known, duplicates, count = EnqueueMap(), [], 0
        for transaction in self.transactions:
            for operation in transaction:
                if not operation.is_enqueue:
                    continue
                if self.messages.get(operation.rid) is None:
                    known.add(operation.rid, operation.place)
                    continue
                count += 1
                if count <= MAX_DUPLICATES:
                    duplicates.append(Entry(operation.rid, operation.place, PENDING))
        return duplicates + known.duplicates, count + known.duplicate_count

    def open_without_target(self) -> Iterator[Unfounded]:
        """Dequeues of missing messages in transactions that are still open."""
        wanted: dict[bytes, set[int]] = {}
        for record in self._targetless:
            if record.xid in self.transactions:
                wanted.setdefault(record.xid, set()).add(record.rid)
        for xid, rids in wanted.items():
            operations = list(self.transactions.of(xid))
            rids.intersection_update(each.rid for each in operations if not each.is_enqueue)  # not before it
            rids.difference_update(each.rid for each in operations if each.is_enqueue)
        return filter(lambda record: record.rid in wanted.get(record.xid, ()), self._targetless)

    def resolve(self, outcomes: Mapping[bytes, Outcome]) -> list[OpenTransaction]:
        """Apply the transaction prepared list's outcomes; transactions that it does not name were never prepared.

        Returns:
            The transactions that were open at the end of this journal.
        """
        resolved = []
        staying = []
        for transaction in list(self.transactions):
            outcome = outcomes.get(transaction.xid, Outcome.UNPREPARED)
            resolved.append(OpenTransaction(transaction.xid, outcome, transaction.enqueues, transaction.dequeues))
            if outcome in (Outcome.COMMITTING, Outcome.IN_DOUBT):
                staying.append((transaction, outcome))
                continue
            self._abort(transaction.xid)
            if outcome is Outcome.UNPREPARED:
                self.unprepared.append(transaction)
        # Locks of dropped transactions are removed first: qpidd writes no record of a dropped transaction, and the
        # message may have been dequeued again by one that remains.
        for transaction, outcome in staying:
            if outcome is Outcome.COMMITTING:
                self._commit(transaction.xid)
            else:
                self._keep_in_doubt(transaction)
        self.left_open = resolved
        return resolved

    def _keep_in_doubt(self, transaction: Transaction) -> None:
        """Add enqueues to the map as pending; one that the same branch also dequeues counts as locked."""
        for operation in transaction:
            if operation.is_enqueue:
                self._indexed_later += 1
                self.messages.add(operation.rid, operation.place, PENDING)
                self._in_doubt[operation.rid] = transaction.xid
        for operation in transaction:
            if not operation.is_enqueue and self.messages.set_state(operation.rid, LOCKED):
                self._in_doubt[operation.rid] = transaction.xid

    def held(self) -> Iterator[OutstandingRecord]:
        """The messages that branches in doubt hold, once the transactions are resolved."""
        for rid, xid in self._in_doubt.items():
            found = self.messages.get(rid)
            if found is not None:
                yield rid, found.place, found.state, xid

    def outstanding(self, journal_format: JournalFormat) -> Iterator[OutstandingRecord]:
        """The messages that recovery keeps, in the format's order: by log offset, or by record id."""
        by_rid = journal_format.keeps_rid_order
        entries = self.messages.in_rid_order() if by_rid else self.messages.in_place_order()
        in_doubt = self._in_doubt
        for rid, place, state in entries:
            yield rid, place, state, in_doubt.get(rid) if in_doubt else None
