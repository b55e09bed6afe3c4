"""A stretch of a journal -> the records that begin in it, slice by slice.

The walk over a journal (`store.journal.reader`) distinguishes records from remains of an older lap, of a torn flush, or
in a message's body. A stretch in the middle is walked as the walk over the whole journal would pass it: from shortly
before its beginning, at `JournalRecords.entry`, up to the first good record after its end. Damage between two good
records belongs to the stretch of the first of them. So the stretches of a journal, however it is split, together
contain each record and each damaged place once.

Version 2 and the linearstore have checksums that guarantee this for any damage. Version 1 has none: its undamaged
journals are read correctly too, unless a message of more than a megabyte contains journal records and a stretch begins
in it; after damage, a stretch may include records that the walk over the whole would skip as an old lap's, or the
reverse. A journal of default size is not split, unless by `split_bytes`.

A slice is a few megabytes, so memory is bounded whatever the stretch's size. The walk has checked the slice's records
and returns their positions; `batches` decodes them from the slice's bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from qstore.store.damage import Damage
from qstore.store.journal.journal import Journal
from qstore.store.journal.reader import MAX_DESCRIBED, Gap, JournalEnd, JournalReader, records_of
from qstore.store.journal.records import JournalRecords, RecordHeader
from qstore.store.recovery.close_record import Closing

SLICE: Final = 4 << 20  # bytes of a journal per slice
_MAX_DAMAGE: Final = 4096  # of one slice that are reported


@dataclass(slots=True)
class Slice:
    """Some good records, and the damage between them.

    Attributes:
        begin, end: positions of the first record, and of the first after the slice.
        places: positions of the records, ascending.
        xids: position -> transaction id, for those that have one.
        damage: the damage found, and how many bytes of the journal it covers, if known.
    """

    begin: int
    end: int
    places: list[int] = field(default_factory=list)
    xids: dict[int, bytes] = field(default_factory=dict)
    damage: list[tuple[Damage, int | None]] = field(default_factory=list)


class _Collecting:
    """A `RecordSink` that collects positions."""

    __slots__ = ("damage", "places", "xids")

    def __init__(self) -> None:
        self.places: list[int] = []
        self.xids: dict[int, bytes] = {}
        self.damage: list[Damage] = []

    def enqueue(self, rid: int, place: int, blocks: int = 0) -> None:  # noqa: ARG002
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
        """Damage that the walk skipped."""
        if len(self.damage) < _MAX_DAMAGE:
            self.damage.append(damage)


class _Discarding:
    """A `RecordSink` that discards everything: damage before a stretch is reported by the previous one."""

    def enqueue(self, rid: int, place: int, blocks: int = 0) -> None:
        """A message."""

    def dequeue(self, _rid: int, _dequeued_rid: int, _place: int) -> None:
        """A dequeue."""

    def record(self, _header: RecordHeader, _place: int, _xid: bytes) -> None:
        """Any other record."""

    def damaged(self, _damage: Damage) -> None:
        """Damage that the walk skipped."""


def slices(journal: Journal, begin: int, end: int, closing: Closing, *, fillers: bool = False) -> Iterator[Slice]:
    """The records that begin at or after `begin` and before `end`, and the damage after each of them.

    Args:
        journal: the journal.
        begin: a position in the journal's stream, at a block.
        end: the position after the stretch.
        closing: the journal's content when its store was closed.
        fillers: whether fillers are included.

    Raises:
        OSError: a file cannot be opened.
    """
    sink = _Collecting()
    records = records_of(journal.files, journal.stream)
    reader = JournalReader(journal.stream, records)
    bounds = range(begin, end)
    place = _enter(reader, records, bounds, sink)
    reported = 0
    while place is not None:
        first, after = place, reader.go_on(place, min(place + SLICE, max(end, place)), sink, every_record=fillers)
        if isinstance(after, JournalEnd):
            sink.damage.extend(closing.contradicted(journal, after, None))
        place = None if isinstance(after, JournalEnd) or after >= end else after
        gaps = list(islice(reader.gaps, reported, MAX_DESCRIBED))
        reported += len(gaps)
        damage = [*_with_sizes(journal, sink.damage, gaps), *_unreadable(journal, bounds)]
        yield Slice(first, after.place if isinstance(after, JournalEnd) else after, sink.places, sink.xids, damage)
        sink.places, sink.xids, sink.damage = [], {}, []
    rest = _unreadable(journal, bounds)
    if rest:
        yield Slice(begin, begin, damage=rest)


def _enter(reader: JournalReader, records: JournalRecords, bounds: range, sink: _Collecting) -> int | None:
    """The first record of a stretch; None if none begins in it."""
    if bounds.start == 0:
        return reader.begin(sink)
    found = records.first_good(bounds.start, bounds.stop)
    if found is None:
        return None
    passing = _Discarding()
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
    """Unreadable sectors in the stretch; the rest of them is reported by other stretches."""
    stream = journal.stream
    starts = {
        file.path: index * stream.data_size - stream.geometry.header_size for index, file in enumerate(stream.files)
    }
    return [(each, None) for each in stream.unreadable() if starts[each.file] + (each.offset or 0) in bounds]
