"""A stretch of a journal -> the records that begin in it, slice by slice.

The walk over a journal (`store.journal.reader`) is what tells records from what an older lap, a torn flush or a
message's body holds. A stretch in the middle is walked over as the walk over the whole journal would come by: from a
little before its beginning, where `JournalRecords.entry` says, up to the first good record behind its end. What breaks
the chain of records between two good ones belongs to the stretch of the first of them. So the stretches of a journal,
however it is cut, have together each record and each damage once.

Version 2 and the linearstore have checksums by which that holds whatever is damaged. Version 1 has none: its undamaged
journals are read so too, unless a message of more than a megabyte holds journal records and a stretch begins in it;
behind damage, a stretch may keep records that the walk over the whole would pass over with an old lap's, or the
reverse. A journal that is not cut is read as ever, and one of default size is not, unless `split_bytes` says so.

A slice is a few megabytes, so memory is bounded whatever the stretch's size. The walk has checked the slice's records
and gives their places; `batches` takes them from the slice's bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from store.damage import Damage
from store.journal.gaps import MOST_DESCRIBED, Gap
from store.journal.journal import Journal
from store.journal.reader import JournalEnd, JournalReader, records_of
from store.journal.records import JournalRecords, RecordHeader
from store.recovery.close_record import Closing

SLICE: Final = 4 << 20  # bytes of a journal that are taken at a time
_MOST_DAMAGE: Final = 4096  # of one slice that is told


@dataclass(slots=True)
class Slice:
    """Some records, all of them good, and what was met between them.

    Attributes:
        begin, end: places of the first record, and of the first behind the slice.
        places: of the records, rising.
        xids: place -> transaction id, of those that have one.
        damage: what was met, and how many bytes of the journal it takes, where that is known.
    """

    begin: int
    end: int
    places: list[int] = field(default_factory=list)
    xids: dict[int, bytes] = field(default_factory=dict)
    damage: list[tuple[Damage, int | None]] = field(default_factory=list)


class _Taking:
    """A `RecordSink` that keeps places."""

    __slots__ = ("damage", "places", "xids")

    def __init__(self) -> None:
        self.places: list[int] = []
        self.xids: dict[int, bytes] = {}
        self.damage: list[Damage] = []

    def enqueue(self, _rid: int, place: int) -> None:
        """A message."""
        self.places.append(place)

    def dequeue(self, _rid: int, _dequeued_rid: int, place: int) -> None:
        """A dequeue."""
        self.places.append(place)

    def record(self, _header: RecordHeader, place: int, xid: bytes) -> None:
        """Any other record."""
        self.places.append(place)
        if xid:
            self.xids[place] = xid

    def damaged(self, damage: Damage) -> None:
        """What the walk passed."""
        if len(self.damage) < _MOST_DAMAGE:
            self.damage.append(damage)


class _Passing:
    """A `RecordSink` that keeps nothing: what leads to a stretch is told by the one before."""

    def enqueue(self, _rid: int, _place: int) -> None:
        """A message."""

    def dequeue(self, _rid: int, _dequeued_rid: int, _place: int) -> None:
        """A dequeue."""

    def record(self, _header: RecordHeader, _place: int, _xid: bytes) -> None:
        """Any other record."""

    def damaged(self, _damage: Damage) -> None:
        """What the walk passed."""


def slices(journal: Journal, begin: int, end: int, closing: Closing, *, fillers: bool = False) -> Iterator[Slice]:
    """The records that begin from `begin` on and before `end`, and what is damaged behind each of them.

    Args:
        journal: where they are.
        begin: a place in the journal's stream, at a block.
        end: the place behind the stretch.
        closing: what the journal held when its store was closed.
        fillers: whether fillers are records too.

    Raises:
        OSError: a file cannot be opened.
    """
    taking = _Taking()
    records = records_of(journal.files, journal.stream)
    reader = JournalReader(journal.stream, records)
    bounds = range(begin, end)
    place = _enter(reader, records, bounds, taking)
    told = 0
    while place is not None:
        first, after = place, reader.go_on(place, min(place + SLICE, max(end, place)), taking, every_record=fillers)
        if isinstance(after, JournalEnd):
            taking.damage.extend(closing.contradicted(journal, after, None))
        place = None if isinstance(after, JournalEnd) or after >= end else after
        gaps = list(islice(reader.gaps, told, MOST_DESCRIBED))
        told += len(gaps)
        damage = [*_with_sizes(journal, taking.damage, gaps), *_unreadable(journal, bounds)]
        yield Slice(first, after.place if isinstance(after, JournalEnd) else after, taking.places, taking.xids, damage)
        taking.places, taking.xids, taking.damage = [], {}, []
    rest = _unreadable(journal, bounds)
    if rest:
        yield Slice(begin, begin, damage=rest)


def _enter(reader: JournalReader, records: JournalRecords, bounds: range, sink: _Taking) -> int | None:
    """The first record of a stretch; None if none begins in it."""
    if bounds.start == 0:
        return reader.begin(sink)
    found = records.first_good(bounds.start, bounds.stop)
    if found is None:
        return None
    passing = _Passing()
    start = records.entry(found)
    place = reader.go_on(reader.begin(passing) if start is None else start, bounds.start, passing)
    return None if isinstance(place, JournalEnd) or place >= bounds.stop else place


def _with_sizes(journal: Journal, damage: list[Damage], gaps: list[Gap]) -> Iterator[tuple[Damage, int | None]]:
    sizes = {}
    for gap in gaps:
        file, offset = journal.stream.locate(gap.place)
        sizes[file.path, offset] = gap.end - gap.place
    for entry in damage:
        yield entry, None if entry.offset is None else sizes.get((entry.file, entry.offset))


def _unreadable(journal: Journal, bounds: range) -> list[tuple[Damage, int | None]]:
    """What the system could not read in the stretch; what lies beside it, others tell."""
    stream = journal.stream
    starts = {
        file.path: index * stream.data_size - stream.geometry.header_size for index, file in enumerate(stream.files)
    }
    return [(each, None) for each in stream.unreadable() if starts[each.file] + (each.offset or 0) in bounds]
