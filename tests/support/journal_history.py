"""A journal's life, made up at random and written by `JournalBuilder`, with a model of what it leaves behind.

The writer's rule holds: a file is entered only when it holds no record that is enqueued, or enqueued by an open
transaction, nor in version 2 one that was so before the present flush, whose dequeue or later copy is not synced yet.
What would break the rule is left out; in version 2 the oldest records may be relocated first.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import strategies as st

from qstore.formats.rhm.geometry import Geometry, padded
from qstore.formats.rhm.records import MOVED, TRANSIENT, Kind
from qstore.store.damage import Damage
from qstore.store.journal.directory import open_journal
from qstore.store.journal.reader import JournalEnd
from qstore.store.journal.recovery import JournalRecovery, Outcome
from tests.support.journal_builder import DIRECTORY, JournalBuilder, PlacedRecord
from tests.support.memory_disk import MemoryDisk

# One step of a history: what to do, and a number that says on what, how large, under which xid.
Step = tuple[str, int]
ACTIONS = (
    "enqueue", "enqueue", "enqueue", "dequeue", "dequeue", "oldest", "oldest", "large", "transient", "enqueue in",
    "enqueue in", "dequeue in", "dequeue in", "commit", "abort", "flush", "flush", "flush", "restart", "seal", "move",
    "drain",
)  # fmt: skip
STEPS = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 999)), min_size=5, max_size=60)


def long_steps(seed: int, count: int = 400) -> list[Step]:
    """Steps for many laps round the ring."""
    rng = random.Random(seed)
    return [(rng.choice(ACTIONS), rng.randrange(1000)) for _ in range(count)]


GEOMETRIES = st.builds(Geometry, st.integers(2, 5), st.sampled_from([512, 1024, 1536, 2048]))


@dataclass
class OpenTransaction:
    """What one xid did so far: rid → position of its enqueues, and the rids that it dequeues."""

    enqueues: dict[int, int] = field(default_factory=dict)
    dequeues: list[int] = field(default_factory=list)


class History:
    """Runs steps.

    Attributes:
        builder: the journal.
        live: rid → position of what is enqueued.
        open: xid → what is open.
        states: what `live` was after each record of the flush that is being gathered; the first is before all of them.
    """

    def __init__(self, builder: JournalBuilder) -> None:
        self.builder = builder
        self.live: dict[int, int] = {}
        self.open: dict[bytes, OpenTransaction] = {}
        self.states: list[dict[int, int]] = [{}]
        self._next_xid = 0
        self._synced: set[int] = set()

    def run(self, steps: Iterable[Step]) -> None:
        for action, number in steps:
            self.step(action, number)

    def step(self, action: str, number: int) -> None:
        method = getattr(self, "_" + action.replace(" ", "_"))
        method(number)

    def flush(self) -> None:
        self.builder.flush()
        self.states = [dict(self.live)]
        self._synced = set(self._needed())

    def fits(self, size: int) -> bool:
        """Whether a record of `size` bytes, and the fillers after it, enter no file that is needed."""
        files, data_size = self.builder.geometry.files, self.builder.geometry.data_size
        if (self.builder.position + size - 1) // data_size - self.builder.flush_start // data_size >= files:
            self.flush()  # a flush never comes round to itself
        last = (self.builder.position + size - 1) // data_size
        needed = [*self._needed(), *(self._synced if self.builder.version == 2 else ())]
        blocked = {position // data_size for position in needed}
        lost = {index for index in blocked if index + files <= last}
        return not lost and size <= self.builder.geometry.capacity - data_size

    def _admits(self, size: int) -> bool:
        """Whether an enqueue fits, and after it the dequeues that would empty the journal."""
        pending = sum(len(transaction.enqueues) + 1 for transaction in self.open.values())
        return self.fits(size + 128 * (len(self.live) + 2 * pending + 2))

    def _needed(self) -> Iterable[int]:
        yield from self.live.values()
        for transaction in self.open.values():
            yield from transaction.enqueues.values()

    # ---- steps ----

    def _body(self, number: int) -> bytes:
        return (b"%03d-" % number) * (number * number % 60)

    def _enqueue(self, number: int) -> None:
        self._put(self._body(number))

    def _large(self, number: int) -> None:
        self._put(b"L" * (self.builder.geometry.data_size * (number % 5) // 2 + number % 128))

    def _put(self, data: bytes) -> None:
        if self._admits(padded(44 + len(data))):
            placed = self.builder.enqueue(data)
            self.live[placed.header.rid] = placed.position
            self._done()

    def _transient(self, number: int) -> None:
        data = self._body(number)
        if self._admits(padded(44 + len(data))):
            self.builder.enqueue(data, flags=TRANSIENT)
            self._done()

    def _unlocked(self) -> list[int]:
        locked = {rid for transaction in self.open.values() for rid in transaction.dequeues}
        return [rid for rid in self.live if rid not in locked]

    def _dequeue(self, number: int) -> None:
        candidates = self._unlocked()
        if candidates and self.fits(128):
            rid = candidates[number % len(candidates)]
            self.builder.dequeue(rid)
            del self.live[rid]
            self._done()

    def _oldest(self, number: int) -> None:
        self._dequeue(0)

    def _drain(self, number: int) -> None:
        """Consumers keep up: transactions end, and few messages stay."""
        while self.open and self.fits(128):
            self._commit(number)
        while len(self.live) > number % 4 and self.fits(128):
            self._dequeue(0)
        self.flush()

    def _transaction(self, number: int) -> bytes:
        """One of at most three open xids."""
        if len(self.open) <= number % 3:
            self._next_xid += 1
            self.open[b"xid-%d" % self._next_xid] = OpenTransaction()
        return list(self.open)[number % len(self.open)]

    def _enqueue_in(self, number: int) -> None:
        data = self._body(number)
        if self._admits(padded(64 + len(data))):
            xid = self._transaction(number)
            placed = self.builder.enqueue(data, xid=xid)
            self.open[xid].enqueues[placed.header.rid] = placed.position
            self._done()

    def _dequeue_in(self, number: int) -> None:
        if not self.fits(128):
            return
        xid = self._transaction(number)
        transaction = self.open[xid]
        own = [rid for rid in transaction.enqueues if rid not in transaction.dequeues]
        candidates = self._unlocked() + own
        if candidates:
            rid = candidates[number % len(candidates)]
            self.builder.dequeue(rid, xid=xid)
            transaction.dequeues.append(rid)
            self._done()

    def _commit(self, number: int) -> None:
        if self.open and self.fits(128):
            xid = list(self.open)[number % len(self.open)]
            self.builder.commit(xid)
            transaction = self.open.pop(xid)
            self.live |= transaction.enqueues
            for rid in transaction.dequeues:
                del self.live[rid]
            self._done()

    def _abort(self, number: int) -> None:
        if self.open and self.fits(128):
            xid = list(self.open)[number % len(self.open)]
            self.builder.abort(xid)
            del self.open[xid]
            self._done()

    def _flush(self, number: int) -> None:
        self.flush()

    def _restart(self, number: int) -> None:
        """Open transactions are dropped, since the prepared list knows none of them; no record says so."""
        self.flush()
        if self.fits(self.builder.geometry.data_size):
            self.open.clear()
            self.builder.restart()

    def _seal(self, number: int) -> None:
        if self.fits(self.builder.geometry.data_size):
            self.flush()
            self.builder.seal()

    def _move(self, number: int) -> None:
        """Version 2: the oldest plain record is relocated."""
        unlocked = self._unlocked()
        if self.builder.version == 1 or not unlocked:
            return
        rid = min(unlocked, key=self.live.__getitem__)
        data = b"moved %d" % rid
        if self._admits(padded(44 + len(data))):
            self.live[rid] = self.builder.enqueue(data, rid=rid, flags=MOVED).position
            self._done()

    def _done(self) -> None:
        self.states.append(dict(self.live))


class Recovered(NamedTuple):
    """What recovery makes of a journal: the messages in order, the end, and what was wrong."""

    places: list[tuple[int, int, int]]  # rid, file number, offset
    end: JournalEnd | None
    damage: list[Damage]
    disk: MemoryDisk


def recover(disk: MemoryDisk, outcomes: Mapping[bytes, Outcome] | None = None) -> Recovered:
    """Open the journal in `DIRECTORY` and recover it."""
    journal = open_journal(disk, DIRECTORY)
    recovery = JournalRecovery()
    end = journal.walk(recovery)
    recovery.resolve(outcomes or {})
    places = []
    for rid, place, _, _ in recovery.outstanding(journal.format):
        file, offset = journal.stream.locate(place)
        places.append((rid, file.number, offset))
    journal.close()
    assert disk.open_now == 0
    assert disk.max_open <= 2
    return Recovered(places, end, journal.damage + recovery.damage, disk)


def rids(recovered: Recovered) -> list[int]:
    """The rids of what was found, in order."""
    return [rid for rid, _, _ in recovered.places]


def end_of(recovered: Recovered) -> JournalEnd:
    """Where and why the walk ended."""
    assert recovered.end is not None
    return recovered.end


def expected_places(builder: JournalBuilder, live: Mapping[int, int]) -> list[tuple[int, int, int]]:
    """What `Recovered.places` should be: in journal order in version 1, in rid order in version 2."""
    order = sorted(live.items(), key=lambda item: item[1] if builder.version == 1 else item[0])
    return [(rid, *builder.place(position)) for rid, position in order]


def surviving(builder: JournalBuilder) -> list[PlacedRecord]:
    """The records, in order, whose file was not entered again since."""
    data_size, files = builder.geometry.data_size, builder.geometry.files
    newest = (builder.position - 1) // data_size
    return [record for record in builder.records if record.position // data_size > newest - files]


def readable(builder: JournalBuilder, lost: Callable[[PlacedRecord], bool]) -> list[PlacedRecord]:
    """The surviving records without the lost ones.

    In version 2 a break after which no record of a later flush follows is a torn flush, and the end of the journal.
    """
    records = surviving(builder)
    good = [record for record in records if not lost(record)]
    if builder.version == 1:
        return good
    taken: list[PlacedRecord] = []
    last_of_flush = {record.flush: record for record in records}
    for record in records:
        if not lost(record):
            taken.append(record)
            continue
        previous = taken[-1] if taken else None
        broken = 0
        if previous is not None:
            broken = previous.flush + (last_of_flush[previous.flush] is previous)
        if not any(other.position > record.position and other.flush > broken for other in good):
            break
    return taken


def replay(records: Iterable[PlacedRecord]) -> dict[int, int]:
    """Rid → position of what those records, in order, leave enqueued; open transactions count as aborted."""
    live: dict[int, int] = {}
    pending: dict[bytes, list[PlacedRecord]] = {}
    for record in records:
        header, xid = record.header, record.xid
        if header.kind is Kind.FILLER or (header.kind is Kind.ENQUEUE and header.flags & TRANSIENT):
            continue
        if header.kind is Kind.ABORT:
            pending.pop(xid, None)
        elif header.kind is Kind.COMMIT:
            for part in pending.pop(xid, []):
                _apply(live, part)
        elif xid:
            pending.setdefault(xid, []).append(record)
        else:
            _apply(live, record)
    return live


def _apply(live: dict[int, int], record: PlacedRecord) -> None:
    if record.header.kind is Kind.ENQUEUE:
        live[record.header.rid] = record.position
    else:
        live.pop(record.header.dequeued_rid, None)
