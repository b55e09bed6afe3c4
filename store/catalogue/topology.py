"""The second copy of the topology, held against the catalogue: which of them to believe, and what the other lost.

`formats.topology` says how the copy looks, `topology_log` keeps it, `catalogue_opening` opens a store by what is found
here, and the offline readers do the same without writing. A batch goes to the catalogue first, then to the copy, both
synced, and only then is it acknowledged. So a crash leaves them equal, or the copy one batch behind:

    catalogue                  copy                      what it means, and the entries that are believed
    -------------------------  ------------------------  ---------------------------------------------------------
    sound                      the same                  SOUND      the catalogue's
    sound                      one batch behind          STALE      the catalogue's; a crash came between the two
    sound                      further behind, damaged,  COPY_LOST  the catalogue's; the copy is of no use
                               of another store, none
    sound, fewer batches       sound                     RESTORE    the copy's; the catalogue went back in time
    sound, as many batches     sound, other entries      RESTORE    the copy's, which is a log without gaps
    damaged, unreadable, none  sound                     RESTORE    the copy's
    damaged, unreadable, none  not sound                 SALVAGE    what can be read of the one that knows more batches;
    sound, fewer batches       damaged, and later ones              the queues' own journals tell the rest
                               can be read in it

Tails of the copy that a crash tore off are no damage: their batch was not acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum, auto
from typing import Final, NamedTuple
from uuid import UUID

from formats.broker_records.errors import BrokerRecordError
from formats.broker_records.wiring import decode_binding, decode_exchange, decode_queue
from formats.catalogue import (
    BindingEntry,
    CatalogueFormatError,
    Census,
    ExchangeEntry,
    GeneralEntry,
    Kind,
    QueueEntry,
    decode,
)
from formats.topology import Tail, TopologyCopy, TopologyFormatError, decode_topology
from store.catalogue.catalogue import Catalogue, CatalogueDamage
from store.disk import Disk, read_whole
from store.key_value import CatalogueError, KeyValue, MapDamage

NAME: Final = "topology"
MAX_SIZE: Final = 1 << 30
"""Bytes of a copy that are read at most: millions of queues."""

_MOST_NAMED: Final = 20


class MemoryMap:
    """A `KeyValue` that is a dict: the entries of a copy, to be read as a catalogue."""

    def __init__(self, entries: Mapping[bytes, bytes]) -> None:
        self._entries = dict(entries)
        self.damage: tuple[MapDamage, ...] = ()

    def get(self, key: bytes) -> bytes | None:
        """The value at `key`, None where there is none."""
        return self._entries.get(key)

    def items(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys that start with `prefix`, with their values, in key order."""
        return iter(sorted((key, value) for key, value in self._entries.items() if key.startswith(prefix)))

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Refused: this is what a file holds, and only read."""
        raise CatalogueError(f"{len(changes)} changes cannot be made in a copy that is only read")

    def checkpoint(self, directory: str) -> None:
        """Refused, likewise."""
        raise CatalogueError(f"{directory}: a copy that is only read cannot be copied")

    def close(self) -> None:
        """Nothing is held."""


class CatalogueView(NamedTuple):
    """What can be read of a catalogue.

    Attributes:
        batch: how many batches were written, as the census says; 0 where it cannot be read.
        entries: key -> value, as they are stored, those that cannot be decoded too.
        damage: what is wrong with it; empty if it is sound.
    """

    batch: int
    entries: dict[bytes, bytes]
    damage: tuple[CatalogueDamage, ...]


class CopyView(NamedTuple):
    """What can be read of the second copy.

    Attributes:
        content: what it says; None if there is none, or it is of no use at all.
        problem: why it is not sound, in one line; empty if it is.
        is_missing: there is no such file, as in a store that older software made.
    """

    content: TopologyCopy | None
    problem: str
    is_missing: bool = False

    @property
    def is_torn(self) -> bool:
        """Whether a crash tore its last record, so that nothing may be appended to it."""
        return self.content is not None and self.content.tail is Tail.TORN


class Verdict(Enum):
    """Which of the two is believed: see the table above."""

    SOUND = auto()
    STALE = auto()
    COPY_LOST = auto()
    RESTORE = auto()
    SALVAGE = auto()


class Judgement(NamedTuple):
    """A catalogue and its copy, held against each other.

    Attributes:
        verdict: which of them is believed.
        entries: what is believed: key -> value; after SALVAGE only what can be read.
        batch: the number of the batch after which that was so.
        damage: what is wrong with the catalogue.
        copy_problem: why the copy is of no use, in one line; empty if it is.
        copy_is_missing: there is no copy, as in a store that older software made.
    """

    verdict: Verdict
    entries: dict[bytes, bytes]
    batch: int
    damage: tuple[CatalogueDamage, ...]
    copy_problem: str
    copy_is_missing: bool


# ---------------------------------------------------------------------------------------------------------------


def view_catalogue(key_value: KeyValue) -> CatalogueView:
    """Read all of a catalogue. What cannot be read of it is damage."""
    catalogue = Catalogue(key_value)
    entries: dict[bytes, bytes] = {}
    try:
        entries.update(key_value.items(b""))
        catalogue.check()
    except CatalogueError as error:
        damage = (CatalogueDamage("", str(error), error.file), *(each._replace(key="") for each in catalogue.damage))
    else:
        damage = tuple(catalogue.damage)
    return CatalogueView(batch_of(entries), entries, damage)


def view_copy(disk: Disk, path: str, store_id: UUID | None) -> CopyView:
    """Read the second copy at `path`; `store_id` is the store's, None where nothing tells it."""
    try:
        content = decode_topology(read_whole(disk, path, MAX_SIZE))
    except FileNotFoundError:
        return CopyView(None, "there is no such file", is_missing=True)
    except OSError as error:
        return CopyView(None, f"cannot be read: {error.strerror}")
    except TopologyFormatError as error:
        return CopyView(None, str(error))
    if store_id not in (None, content.store_id):
        return CopyView(None, f"this is the copy of another store, {content.store_id}")
    if content.tail is Tail.DAMAGED:
        after = f"batch {content.batch}" if content.batch else "its beginning"
        return CopyView(content, f"damaged after {after}, at offset {content.end}: later batches cannot be read")
    for damage in Catalogue(MemoryMap(content.entries)).check():
        return CopyView(content, damage.what)
    return CopyView(content, "")


def batch_of(entries: Mapping[bytes, bytes]) -> int:
    """How many batches a catalogue with these entries has had; 0 where its census cannot be read."""
    value = entries.get(Kind.CENSUS.prefix)
    try:
        census = None if value is None else decode(Kind.CENSUS.prefix, value)
    except CatalogueFormatError:
        return 0
    return census.batch if isinstance(census, Census) else 0


def judge(catalogue: CatalogueView, copy: CopyView) -> Judgement:
    """Which of the two is believed: the table above."""
    told = copy.content
    damage = catalogue.damage
    if not damage and told is not None and told.last_batch > catalogue.batch:
        ends = f"it ends with change {catalogue.batch}, its second copy with change {told.last_batch}"
        damage = (CatalogueDamage("", f"the catalogue went back in time: {ends}"),)
    elif not damage and told is not None and not copy.problem and told.batch == catalogue.batch:
        if told.entries == catalogue.entries:
            verdict = Verdict.STALE if copy.is_torn else Verdict.SOUND
            return Judgement(verdict, catalogue.entries, catalogue.batch, (), "", copy_is_missing=False)
        what = f"the catalogue has other entries than its second copy after the same change, {catalogue.batch}"
        damage = (CatalogueDamage("", what),)
    if damage:
        if told is not None and not copy.problem:
            return Judgement(Verdict.RESTORE, told.entries, told.batch, damage, "", copy_is_missing=False)
        best = catalogue.entries
        if told is not None and (told.batch > catalogue.batch or not catalogue.entries):
            best = told.entries
        batch = max(catalogue.batch, 0 if told is None else told.last_batch)
        return Judgement(Verdict.SALVAGE, best, batch, damage, copy.problem, copy.is_missing)
    problem = copy.problem
    if told is not None and not problem:
        missing = catalogue.batch - told.batch
        if missing == 1:
            return Judgement(Verdict.STALE, catalogue.entries, catalogue.batch, (), "", copy_is_missing=False)
        problem = f"the last {missing} changes of the catalogue are missing from it"
    return Judgement(Verdict.COPY_LOST, catalogue.entries, catalogue.batch, (), problem, copy.is_missing)


# ---------------------------------------------------------------------------------------------------------------


def differences(old: Mapping[bytes, bytes], new: Mapping[bytes, bytes]) -> tuple[list[str], list[str]]:
    """What `old` lacks, or has otherwise than `new`; and what it has that is no longer there. Named for people."""
    lost = [key for key in new if old.get(key) != new[key]]
    gone = [key for key in old if key not in new]
    return [_named(key, new) for key in sorted(lost) if _is_told(key)], [
        _named(key, old) for key in sorted(gone) if _is_told(key)
    ]


def shown(names: list[str]) -> str:
    """The first of some names, and how many more there are."""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _is_told(key: bytes) -> bool:
    return key[:1] in (Kind.QUEUE.prefix, Kind.EXCHANGE.prefix, Kind.BINDING.prefix, Kind.GENERAL.prefix)


def _named(key: bytes, entries: Mapping[bytes, bytes]) -> str:
    try:
        entry = decode(key, entries[key])
        if isinstance(entry, QueueEntry):
            return f'queue "{decode_queue(entry.record).name}"'
        if isinstance(entry, ExchangeEntry):
            return f'exchange "{decode_exchange(entry.record).name}"'
        if isinstance(entry, BindingEntry):
            binding = decode_binding(entry.record)
            return f'binding of queue "{binding.queue_name}" with key "{binding.key}"'
        if isinstance(entry, GeneralEntry):
            return f"object {entry.general_id}"
    except (CatalogueFormatError, BrokerRecordError):
        pass
    return f"entry {key.hex()}"
