"""Which part of which journal is read where, and the records that begin in it.

Planning reads only file headers. A journal's files, in the order in which they were written, are one stream of bytes
(`store.journal.stream`); it is split at the ends of files, and a file that is larger than `split_bytes` into equal
parts. Small files, and small stores, share a partition. Damage that was already found is a stretch without bytes. A
stretch contains the decoded headers, so that its reader opens only the files that it covers.

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
and returns their positions; `records` decodes them from the slice's bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Final

from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.store.damage import Damage
from qstore.store.disk import Disk
from qstore.store.inspect.layout import StoreKind, UnusableInputError
from qstore.store.inspect.offline import OpenedJournals, open_journals
from qstore.store.journal.directory import NotAJournalError
from qstore.store.journal.files import JournalFormat
from qstore.store.journal.journal import Journal
from qstore.store.journal.line.files import Line
from qstore.store.journal.reader import MAX_DESCRIBED, Gap, JournalEnd, JournalReader, records_of
from qstore.store.journal.records import JournalRecords, RecordHeader
from qstore.store.journal.recovery import JournalRecovery
from qstore.store.journal.ring.files import Ring
from qstore.store.recovery.close_record import Closing, closing_of
from qstore.tools.spark.inputs import Input, layout_of
from qstore.tools.spark.inputs import opened as opened_store

MAX_BYTES: Final = 128 << 20  # of a partition
_MIN_BYTES: Final = 32 << 20  # of a partition, by default
_PARTITIONS: Final = 8  # number of partitions into which a large amount of data is split at least
_OPENING: Final = 1 << 20  # bytes that could be read in the time in which a journal is opened


@dataclass(frozen=True, slots=True)
class JournalPart:
    """Description of a journal that is read in stretches.

    Attributes:
        source: the store that contains it.
        name: its queue's name.
        path, base_name: of its directory, and of its files.
        files: its files in order.
        is_prepared_list: whether it is the store's transaction prepared list.
        closing: its content when the store was closed.
    """

    source: Input
    name: str
    path: str
    base_name: str
    files: Ring | Line
    is_prepared_list: bool
    closing: Closing

    @property
    def size(self) -> int:
        """Size of its stream in bytes."""
        return len(self.files.files) * self.files.geometry.data_size

    def open(self, disk: Disk) -> Journal:
        """Open the journal."""
        return Journal(disk, self.name, self.path, self.base_name, None, self.files, [])


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of a journal.

    Attributes:
        source: the store that contains it.
        journal: the journal; None for damage of the store itself.
        begin, end: positions in its stream: records that begin there belong to the stretch.
        damage: damage found in headers, for the one stretch that reports it.
    """

    source: Input
    journal: JournalPart | None
    begin: int
    end: int
    damage: tuple[Damage, ...] = ()


def stretches(inputs: Iterable[Input], queues: frozenset[str] | None, split_bytes: int | None) -> list[Stretch]:
    """The stretches of all inputs that are stores. Other inputs are left out: the table `files` reports them.

    Args:
        inputs: the inputs.
        queues: only those; None for all.
        split_bytes: largest size of a stretch; None to choose by the amount of data.

    Raises:
        UnusableInputError: no input is a store.
    """
    found: list[Stretch] = []
    reasons: list[str] = []
    usable = False
    for source in inputs:
        try:
            found += _of_store(source, queues)
            usable = True
        except (UnusableInputError, NotAJournalError) as error:
            reasons.append(str(error))
        except OSError as error:
            reasons.append(f"{error.filename or source.path}: {error.strerror or error}")
    if not usable:
        raise _no_store(reasons)
    most = split_bytes or chosen_split(sum(stretch.end for stretch in found))
    return [part for stretch in found for part in _split(stretch, most)]


def check_usable(inputs: Iterable[Input]) -> None:
    """Check that there is a store among the inputs.

    Raises:
        UnusableInputError: there is none.
    """
    reasons: list[str] = []
    for source in inputs:
        try:
            opened = open_journals(*layout_of(source))
        except (UnusableInputError, NotAJournalError) as error:
            reasons.append(str(error))
        except OSError as error:
            reasons.append(f"{error.filename or source.path}: {error.strerror or error}")
        else:
            for journal in (*opened.journals, *([] if opened.prepared_list is None else [opened.prepared_list])):
                journal.close()
            return
    raise _no_store(reasons)


def _no_store(reasons: list[str]) -> UnusableInputError:
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return UnusableInputError(f"no input is a store: {reasons[0]}{more}")


def chosen_split(size: int) -> int:
    """Size of a stretch for an input of `size` bytes."""
    return max(_MIN_BYTES, min(MAX_BYTES, size // _PARTITIONS))


def partitions(found: Iterable[Stretch], split_bytes: int | None) -> list[tuple[Stretch, ...]]:
    """Stretches grouped so that no partition is very small."""
    every = list(found)
    most = split_bytes or chosen_split(sum(stretch.end - stretch.begin for stretch in every))
    packed: list[tuple[Stretch, ...]] = []
    present: list[Stretch] = []
    held = 0
    for stretch in every:
        cost = stretch.end - stretch.begin + _OPENING
        if present and held + cost > most + _OPENING:
            packed.append(tuple(present))
            present, held = [], 0
        present.append(stretch)
        held += cost
    if present:
        packed.append(tuple(present))
    return packed


def _of_store(source: Input, queues: frozenset[str] | None) -> Iterator[Stretch]:
    """Each journal as a whole, and the store's own damage. Raises as `find_layout` and `open_journals`."""
    disk, layout = layout_of(source)
    opened = open_journals(disk, layout)
    damage = (*layout.damage, *opened.damage)
    if damage and queues is None:
        yield Stretch(source, None, 0, 0, damage)
    remnants, closing = _remnants(source, layout.kind, opened), closing_of(disk, layout)
    for journal in _named(opened, layout.kind):
        if (queues is None or journal.name in queues) and journal.path not in remnants:
            is_prepared_list = journal is opened.prepared_list
            files = _without_unused(journal)
            about = closing.about(journal)
            part = JournalPart(source, journal.name, journal.path, journal.base_name, files, is_prepared_list, about)
            if files.format is None or not part.size:
                unread = (*journal.damage, *about.contradicted(journal, None, None))
                yield Stretch(source, part, 0, 0, unread)
            else:
                yield Stretch(source, part, 0, part.size, tuple(journal.damage))
        journal.close()


def _remnants(source: Input, kind: StoreKind, opened: OpenedJournals) -> frozenset[str]:
    """Paths of remnants of interrupted work on journals. The catalogue is opened only if there may be some."""
    may_be = [each.is_being_deleted or (each.files.format is None and each.damage) for each in opened.journals]
    numbers = [each.info.queue_id for each in opened.journals if each.info is not None]
    if kind is not StoreKind.VERSION_2 or not (any(may_be) or len(set(numbers)) < len(numbers)):
        return frozenset()
    with opened_store(source) as store:
        return frozenset(store.unfinished())


def _named(opened: OpenedJournals, kind: StoreKind) -> list[Journal]:
    """The journals of the named queues; for a single journal the store's prepared list is not included."""
    if opened.prepared_list is None or (kind in (StoreKind.JOURNAL, StoreKind.FILE) and opened.journals):
        return opened.journals
    return [opened.prepared_list, *opened.journals]


def _without_unused(journal: Journal) -> Ring | Line:
    """The files without their damage, which is sent only once."""
    files = journal.files
    if isinstance(files, Ring):
        return Ring(files.format, files.geometry, files.files, [])
    return Line(files.format, files.geometry, files.files, [])


def _split(stretch: Stretch, most: int) -> Iterator[Stretch]:
    if stretch.journal is None or not stretch.end:
        yield stretch
        return
    cuts = list(_cuts(stretch.journal.files, most))
    damage = stretch.damage
    for begin, end in pairwise(cuts):
        yield Stretch(stretch.source, stretch.journal, begin, end, damage)
        damage = ()


def _cuts(files: Ring | Line, most: int) -> Iterator[int]:
    """Boundaries of stretches: between files, or within those that are larger than a stretch may be."""
    size = files.geometry.data_size
    count = len(files.files)
    yield 0
    if size <= most:
        yield from range(most // size * size, count * size, most // size * size)
    else:
        parts = -(-size // max(most, BLOCK_SIZE))
        step = -(-size // parts // BLOCK_SIZE) * BLOCK_SIZE
        for file in range(count):
            yield from range(file * size + step, (file + 1) * size, step)
            if file + 1 < count:
                yield (file + 1) * size
    yield count * size


def format_label(files: Ring | Line) -> str:
    """The name of a journal's format."""
    return (files.format or JournalFormat.VERSION_1).label


# ---- the records of a stretch ----

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


class _Recovering(_Collecting):
    """The same, and recovery gets the records, too."""

    __slots__ = ("_dequeue", "_enqueue", "_record")

    def __init__(self, recovery: JournalRecovery) -> None:
        super().__init__()
        self._enqueue, self._dequeue, self._record = recovery.enqueue, recovery.dequeue, recovery.record

    def enqueue(self, rid: int, place: int, blocks: int = 0) -> None:
        """A message."""
        self.places.append(place)
        self._enqueue(rid, place, blocks)

    def dequeue(self, rid: int, dequeued_rid: int, place: int) -> None:
        """A dequeue."""
        self.places.append(place)
        self._dequeue(rid, dequeued_rid, place)

    def record(self, header: RecordHeader, place: int, xid: bytes) -> None:
        """Any other record."""
        self.places.append(place)
        if xid:
            self.xids[place] = xid
        self._record(header, place, xid)


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


def slices(
    journal: Journal,
    begin: int,
    end: int,
    closing: Closing,
    *,
    fillers: bool = False,
    recovery: JournalRecovery | None = None,
) -> Iterator[Slice]:
    """The records that begin at or after `begin` and before `end`, and the damage after each of them.

    Args:
        journal: the journal.
        begin: a position in the journal's stream, at a block.
        end: the position after the stretch.
        closing: the journal's content when its store was closed.
        fillers: whether fillers are included.
        recovery: of the whole journal: gets its records, too.

    Raises:
        OSError: a file cannot be opened.
    """
    sink = _Collecting() if recovery is None else _Recovering(recovery)
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
