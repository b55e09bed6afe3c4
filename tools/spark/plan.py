"""From inputs to partitions: which stretch of which journal is read where.

Only file headers are read here. A journal's files, in the order in which they were written, are one stream of bytes
(`store.journal.stream`); it is split at the ends of files, and a file that is larger than `split_bytes` into equal
parts. Small files, and small stores, share a partition. Damage that was already found is a stretch without bytes.

A stretch contains the decoded headers, so that its reader opens only the files that it covers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
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
        more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
        raise UnusableInputError(f"no input is a store: {reasons[0]}{more}")
    most = split_bytes or chosen_split(sum(stretch.end for stretch in found))
    return [part for stretch in found for part in _split(stretch, most)]


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
