"""Compares the second copy of the catalogue with the catalogue: which of them to use, and the losses of the other.

`formats.topology_copy` has its layout; `opening` writes it, and opens a store by this judgement; the offline readers do
the same without writing. A batch goes to the catalogue first, then to the copy, both synced, and
only then is it acknowledged. So after a crash they are equal, or the copy is one batch behind:

    catalogue                  copy                      verdict, and the entries that are used
    -------------------------  ------------------------  ---------------------------------------------------------
    sound                      the same                  SOUND      the catalogue's
    sound                      one batch behind          STALE      the catalogue's; a crash between the two
    sound                      further behind, damaged,  COPY_LOST  the catalogue's; the copy is unusable
                               of another store, none
    sound, fewer batches       sound                     RESTORE    the copy's; the catalogue went back in time
    sound, as many batches     sound, other entries      RESTORE    the copy's, which is a log without gaps
    damaged, unreadable, none  sound                     RESTORE    the copy's
    damaged, unreadable, none  not sound                 SALVAGE    the readable part of the one with more batches;
    sound, fewer batches       damaged, with readable               the queues' own journals provide the rest
                               later ones
    sound, too few batches     not sound, or too few

"Too few batches": both are known to have had a later one, because the store has recorded that (SYNCED, see
`recovery.close_record`). A catalogue or a copy that ends before it has lost something, or was replaced by an older one.

A torn tail of the copy is not damage: its batch was not acknowledged. It is damage if the batch is one of those that
are known to have been synced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum, auto
from typing import Final
from uuid import UUID

from qstore.formats.broker_records.topology import decode_binding, decode_exchange, decode_queue
from qstore.formats.catalogue import (
    BindingEntry,
    CatalogueFormatError,
    Census,
    ExchangeEntry,
    GeneralEntry,
    Kind,
    QueueEntry,
    decode,
)
from qstore.formats.errors import BrokerRecordError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.topology_copy import Tail, TopologyCopy, TopologyFormatError, decode_topology
from qstore.store.catalogue.catalogue import Catalogue, CatalogueDamage
from qstore.store.disk import Disk, read_whole
from qstore.store.key_value import CatalogueError, KeyValue, MapDamage

NAME: Final = "topology"
MAX_SIZE: Final = 1 << 30
"""Maximum bytes read of a copy: millions of queues."""

_MAX_NAMED: Final = 20


class MemoryMap:
    """A `KeyValue` that is a dict: the entries of a copy, readable as a catalogue."""

    def __init__(self, entries: Mapping[bytes, bytes]) -> None:
        self._entries = dict(entries)
        self.damage: tuple[MapDamage, ...] = ()

    def get(self, key: bytes) -> bytes | None:
        """The value at `key`; None if there is none."""
        return self._entries.get(key)

    def items(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys that start with `prefix`, with their values, in key order."""
        return iter(sorted((key, value) for key, value in self._entries.items() if key.startswith(prefix)))

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Refused: this map is read-only."""
        raise CatalogueError(f"{len(changes)} changes refused: the copy is read-only")

    def checkpoint(self, directory: str) -> None:
        """Refused: this map is read-only."""
        raise CatalogueError(f"{directory}: a read-only copy cannot be copied")

    def close(self) -> None:
        """Do nothing: no resources are held."""


class CatalogueView(NamedTuple):
    """The readable content of a catalogue.

    Attributes:
        batch: number of batches written, according to the census; 0 if that is unreadable.
        entries: key -> value, as stored, including those that cannot be decoded.
        damage: the defects found; empty if it is sound.
    """

    batch: int
    entries: dict[bytes, bytes]
    damage: tuple[CatalogueDamage, ...]


class CopyView(NamedTuple):
    """The readable content of the second copy.

    Attributes:
        content: its content; None if there is none, or it is completely unusable.
        problem: why it is not sound, in one line; empty if it is.
        is_missing: there is no such file, as in a store created by older software.
        least: number of a batch that it is known to have had; 0 if unknown.
    """

    content: TopologyCopy | None
    problem: str
    is_missing: bool = False
    least: int = 0

    @property
    def is_torn(self) -> bool:
        """Whether a crash tore its last record, so that nothing may be appended to it."""
        return self.content is not None and self.content.tail is Tail.TORN


class Verdict(Enum):
    """Which of the two is used: see the table above."""

    SOUND = auto()
    STALE = auto()
    COPY_LOST = auto()
    RESTORE = auto()
    SALVAGE = auto()


class Judgement(NamedTuple):
    """The result of comparing a catalogue and its copy.

    Attributes:
        verdict: which of them is used.
        entries: the entries to use: key -> value; after SALVAGE only the readable ones.
        batch: the number of the last batch in them.
        damage: the defects of the catalogue.
        copy_problem: why the copy is unusable, in one line; empty if it is usable.
        copy_is_missing: there is no copy, as in a store created by older software.
        copy_is_damaged: it is unusable, and neither a crash nor older software explains that.
        may_lack_last: after RESTORE: the last change may be missing: its record is torn, or the catalogue was ahead.
    """

    verdict: Verdict
    entries: dict[bytes, bytes]
    batch: int
    damage: tuple[CatalogueDamage, ...]
    copy_problem: str
    copy_is_missing: bool
    copy_is_damaged: bool = False
    may_lack_last: bool = False


# ---------------------------------------------------------------------------------------------------------------


def view_catalogue(key_value: KeyValue) -> CatalogueView:
    """Read all of a catalogue. Unreadable parts are damage."""
    entries: dict[bytes, bytes] = {}
    try:
        entries.update(key_value.items(b""))
        damage = tuple(Catalogue(MemoryMap(entries)).check())
    except CatalogueError as error:
        damage = (CatalogueDamage("", str(error), error.file),)
    return CatalogueView(batch_of(entries), entries, damage)


def view_copy(
    disk: Disk, path: str, store_id: UUID | None, least: int = 0, sound: Mapping[bytes, bytes] | None = None
) -> CopyView:
    """Read the second copy at `path`.

    Args:
        disk: reads it.
        path: the file.
        store_id: the store's id; None if unknown.
        least: number of a batch that it is known to have had; 0 if unknown.
        sound: entries that were checked: if the copy has the same, they are not checked again.
    """
    try:
        content = decode_topology(read_whole(disk, path, MAX_SIZE))
    except FileNotFoundError:
        return CopyView(None, "the file is missing", is_missing=True, least=least)
    except OSError as error:
        return CopyView(None, f"cannot be read: {error.strerror}", least=least)
    except TopologyFormatError as error:
        return CopyView(None, str(error), least=least)
    if store_id not in (None, content.store_id):
        return CopyView(None, f"it belongs to another store, {content.store_id}", least=least)
    return CopyView(content, _problem(content, least, sound), least=least)


def _problem(content: TopologyCopy, least: int, sound: Mapping[bytes, bytes] | None) -> str:
    """Why a copy is not sound; empty if it is."""
    after = f"change {content.batch}" if content.batch else "its beginning"
    if content.tail is Tail.DAMAGED:
        return f"damaged after {after}, at offset {content.end}: later changes cannot be read"
    if content.batch < least and content.tail is Tail.TORN:
        return f"damaged after {after}, at offset {content.end}: change {least} cannot be read"
    if content.batch < least:
        return f"it went back in time: it ends with {after}, but it had change {least}"
    if content.entries == sound:
        return ""
    return next((damage.what for damage in Catalogue(MemoryMap(content.entries)).check()), "")


def batch_of(entries: Mapping[bytes, bytes]) -> int:
    """Number of batches in a catalogue with these entries; 0 if its census is unreadable."""
    value = entries.get(Kind.CENSUS.prefix)
    try:
        census = None if value is None else decode(Kind.CENSUS.prefix, value)
    except CatalogueFormatError:
        return 0
    return census.batch if isinstance(census, Census) else 0


def judge(catalogue: CatalogueView, copy: CopyView) -> Judgement:
    """Decide which of the two is used, by the table above."""
    content, least = copy.content, copy.least
    is_damaged = bool(copy.problem) and not copy.is_missing
    damage = catalogue.damage
    if not damage and content is not None and content.last_batch > catalogue.batch:
        ends = f"it ends with change {catalogue.batch}, its second copy with change {content.last_batch}"
        damage = (CatalogueDamage("", f"the catalogue went back in time: {ends}"),)
    elif not damage and catalogue.batch < least:
        ends = f"it ends with change {catalogue.batch}, but it had change {least}"
        damage = (CatalogueDamage("", f"the catalogue went back in time: {ends}"),)
    elif not damage and content is not None and not copy.problem and content.batch == catalogue.batch:
        if content.entries == catalogue.entries:
            verdict = Verdict.STALE if copy.is_torn else Verdict.SOUND
            return Judgement(verdict, catalogue.entries, catalogue.batch, (), "", copy_is_missing=False)
        what = f"the catalogue's entries differ from those of its second copy after the same change, {catalogue.batch}"
        damage = (CatalogueDamage("", what),)
    if damage:
        if content is not None and not copy.problem:
            may_lack = copy.is_torn or catalogue.batch > content.batch
            return Judgement(
                Verdict.RESTORE,
                content.entries,
                content.batch,
                damage,
                "",
                copy_is_missing=False,
                may_lack_last=may_lack,
            )
        best = catalogue.entries
        if content is not None and (content.batch > catalogue.batch or not catalogue.entries):
            best = content.entries
        batch = max(catalogue.batch, least, 0 if content is None else content.last_batch)
        return Judgement(Verdict.SALVAGE, best, batch, damage, copy.problem, copy.is_missing, is_damaged)
    problem = copy.problem
    if content is not None and not problem:
        missing = catalogue.batch - content.batch
        if missing == 1:
            return Judgement(Verdict.STALE, catalogue.entries, catalogue.batch, (), "", copy_is_missing=False)
        problem = f"the last {missing} changes of the catalogue are missing from it"
    return Judgement(Verdict.COPY_LOST, catalogue.entries, catalogue.batch, (), problem, copy.is_missing, is_damaged)


# ---------------------------------------------------------------------------------------------------------------


def differences(old: Mapping[bytes, bytes], new: Mapping[bytes, bytes]) -> tuple[list[str], list[str]]:
    """The entries missing or different in `old`, and those that `new` no longer has. Described for people."""
    lost = [key for key in new if old.get(key) != new[key]]
    gone = [key for key in old if key not in new]
    return [_named(key, new) for key in sorted(lost) if _is_named(key)], [
        _named(key, old) for key in sorted(gone) if _is_named(key)
    ]


def shown(names: list[str]) -> str:
    """The first names, and the number of the others, as text."""
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more


def _is_named(key: bytes) -> bool:
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
