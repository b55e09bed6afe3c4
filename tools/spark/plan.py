"""From inputs to partitions: which stretch of which journal is read where.

Only file headers are read here. A journal's files, in the order in which they were written, are one stream of bytes
(`store.journal.stream`); it is cut at the ends of files, and a file that is larger than `split_bytes` into equal parts.
Small files, and small stores, share a partition. What belongs to no stretch, damage that was found already, is a
stretch without bytes.

A stretch carries what the headers say, so that whoever reads it opens only the files in which it lies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from formats.rhm.geometry import BLOCK_SIZE
from store.damage import Damage
from store.disk import Disk
from store.inspect.layout import StoreKind, UnusableInputError
from store.inspect.opening import OpenedJournals, open_journals
from store.journal.directory import NotAJournalError
from store.journal.format import JournalFormat
from store.journal.journal import Journal
from store.journal.line.files import Line
from store.journal.ring.files import Ring
from store.recovery.close_record import Closing, closing_of
from tools.spark.inputs import Input, layout_of
from tools.spark.inputs import opened as opened_store

MOST_BYTES: Final = 128 << 20  # of a partition
_LEAST_BYTES: Final = 32 << 20  # of a partition, where nothing else is asked for
_PARTITIONS: Final = 8  # that a large amount of data makes at least
_OPENING: Final = 1 << 20  # bytes that could be read while a journal is opened


@dataclass(frozen=True, slots=True)
class JournalPart:
    """What is known of a journal that is read in stretches.

    Attributes:
        source: the store in which it lies.
        name: its queue's name.
        path, base_name: of its directory, and of its files.
        files: its files in order.
        is_prepared_list: whether it is the store's transaction prepared list.
        closing: what it held when the store was closed.
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
        """Bytes of its stream."""
        return len(self.files.files) * self.files.geometry.data_size

    def open(self, disk: Disk) -> Journal:
        """The journal itself."""
        return Journal(disk, self.name, self.path, self.base_name, None, self.files, [])


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of a journal.

    Attributes:
        source: the store in which it lies.
        journal: the journal; None for damage of the store itself.
        begin, end: places in its stream: records that begin there belong to the stretch.
        damage: what was found when headers were read, for the stretch that is to tell it.
    """

    source: Input
    journal: JournalPart | None
    begin: int
    end: int
    damage: tuple[Damage, ...] = ()


def stretches(inputs: Iterable[Input], queues: frozenset[str] | None, split_bytes: int | None) -> list[Stretch]:
    """The stretches of all inputs that are stores. What is no store is left out: the table `files` tells it.

    Args:
        inputs: where to look.
        queues: only those; None for all.
        split_bytes: bytes of a stretch, at most; None to choose by the amount of data.

    Raises:
        UnusableInputError: nothing at all is a store.
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
        raise UnusableInputError(f"nothing here is a store: {reasons[0]}{more}")
    most = split_bytes or chosen_split(sum(stretch.end for stretch in found))
    return [part for stretch in found for part in _split(stretch, most)]


def chosen_split(size: int) -> int:
    """Bytes of a stretch where `size` bytes are to be read."""
    return max(_LEAST_BYTES, min(MOST_BYTES, size // _PARTITIONS))


def partitions(found: Iterable[Stretch], split_bytes: int | None) -> list[tuple[Stretch, ...]]:
    """Stretches put together, so that none of the partitions is very small."""
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
    """A whole journal each, and the store's own damage. Raises as `find_layout` and `open_journals`."""
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
    """Paths of what a kill left of work on journals. The catalogue is asked only if there may be some."""
    may_be = [each.is_being_deleted or (each.files.format is None and each.damage) for each in opened.journals]
    numbers = [each.info.queue_id for each in opened.journals if each.info is not None]
    if kind is not StoreKind.VERSION_2 or not (any(may_be) or len(set(numbers)) < len(numbers)):
        return frozenset()
    with opened_store(source) as store:
        return frozenset(store.unfinished())


def _named(opened: OpenedJournals, kind: StoreKind) -> list[Journal]:
    """The journals that were named; of a single journal's store the prepared list is not one of them."""
    if opened.prepared_list is None or (kind in (StoreKind.JOURNAL, StoreKind.FILE) and opened.journals):
        return opened.journals
    return [opened.prepared_list, *opened.journals]


def _without_unused(journal: Journal) -> Ring | Line:
    """The files without what is wrong with them, which is sent only once."""
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
    """Where stretches begin and end: between files, or within those that are larger than a stretch may be."""
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
