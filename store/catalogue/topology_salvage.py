"""Rebuilds a catalogue from the remains if neither it nor its second copy can be trusted.

The decodable entries of the better of the two are kept, and every journal with a readable info file restores its queue:
the info file holds the queue's whole record. Exchanges, bindings and other objects are stored nowhere else.

A queue that was deleted has its mark in its journal's directory, or no directory any more, so it does not reappear.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple
from uuid import UUID

from qstore.formats.broker_records.errors import BrokerRecordError
from qstore.formats.broker_records.topology import decode_queue
from qstore.formats.catalogue import (
    FORMAT_VERSION,
    NUMBERED_KINDS,
    BindingEntry,
    CatalogueFormatError,
    Census,
    Entry,
    ExchangeEntry,
    GeneralEntry,
    Kind,
    Meta,
    NextId,
    QueueEntry,
    RidReservation,
    decode,
    encode,
)
from qstore.formats.rhm.errors import RhmError
from qstore.formats.rhm.jinf import DEFAULT_BASE_NAME, MAX_JINF_SIZE, JournalInfo, decode_jinf
from qstore.store.catalogue.store_directory import StoreDirectory
from qstore.store.catalogue.topology_copy import Judgement, shown
from qstore.store.disk import Disk, read_whole
from qstore.store.journal.directory import DELETED, INFO_SUFFIX

MAX_ID: Final = 1 << 62
"""Ids from a damaged file are accepted below this one: higher ones must remain."""


class FoundJournal(NamedTuple):
    """A journal's directory in a store, and the content of its info file."""

    journal_id: int
    info: JournalInfo

    @property
    def entry(self) -> QueueEntry:
        """Its queue, as an entry of the catalogue."""
        return QueueEntry(self.info.queue_id, self.journal_id, self.info.incarnation, self.info.queue_record)

    @property
    def is_legal(self) -> bool:
        """Whether a catalogue can have that entry."""
        try:
            decode_queue(self.info.queue_record)
        except BrokerRecordError:
            return False
        return 0 < self.info.queue_id < MAX_ID and 0 < self.journal_id < MAX_ID


def read_info(disk: Disk, directory: str) -> JournalInfo | None:
    """The info file of a queue's journal of version 2; None if it is missing or unreadable."""
    try:
        path = posixpath.join(directory, DEFAULT_BASE_NAME + INFO_SUFFIX)
        info = decode_jinf(read_whole(disk, path, MAX_JINF_SIZE + 1))
    except (OSError, RhmError):
        return None
    return info if info.version == 2 else None


def find_journals(disk: Disk, directory: StoreDirectory) -> Iterator[FoundJournal]:
    """The journals of queues that were not deleted, by the names of their directories."""
    parent = directory.part("jrnl")
    for name in disk.names(parent) if disk.is_directory(parent) else ():
        path = posixpath.join(parent, name)
        if name.isdecimal() and disk.is_directory(path) and DELETED not in disk.names(path):
            info = read_info(disk, path)
            if info is not None:
                yield FoundJournal(int(name), info)


def salvaged(
    disk: Disk, directory: StoreDirectory, store_id: UUID, judgement: Judgement
) -> tuple[dict[bytes, bytes], str]:
    """The entries of the rebuilt catalogue, and a text about what was restored and lost."""
    salvage = _Salvage(disk, directory, judgement)
    return salvage.encoded(store_id), salvage.told


class _Salvage:
    def __init__(self, disk: Disk, directory: StoreDirectory, judgement: Judgement) -> None:
        self._disk, self._directory, self._judgement = disk, directory, judgement
        self._queues: dict[int, QueueEntry] = {}
        self._exchanges: dict[int, ExchangeEntry] = {}
        self._bindings: list[BindingEntry] = []
        self._general: dict[int, GeneralEntry] = {}
        self._next = dict.fromkeys(NUMBERED_KINDS, 1)
        self._rids = RidReservation(0)
        self._gone: list[str] = []
        for key, value in judgement.entries.items():
            with contextlib.suppress(CatalogueFormatError, BrokerRecordError):
                self._take(decode(key, value))
        self._from_catalogue = len(self._queues)
        self._add_journals()
        known = [each for each in self._bindings if each.queue_id in self._queues]
        self._bindings = [each for each in known if each.exchange_id in self._exchanges]

    def _take(self, entry: Entry) -> None:
        if isinstance(entry, QueueEntry):
            name, path = decode_queue(entry.record).name, self._directory.journal(entry.journal_id)
            if self._disk.is_directory(path) and DELETED not in self._disk.names(path):
                self._queues[entry.queue_id] = entry
            else:
                self._gone.append(f'"{name}"')
        elif isinstance(entry, ExchangeEntry):
            self._exchanges[entry.exchange_id] = entry
        elif isinstance(entry, BindingEntry):
            self._bindings.append(entry)
        elif isinstance(entry, GeneralEntry):
            self._general[entry.general_id] = entry
        elif isinstance(entry, NextId):
            self._next[entry.kind] = entry.next_id
        elif isinstance(entry, RidReservation):
            self._rids = entry

    def _add_journals(self) -> None:
        """Add the journals' own queues; of several journals of one queue the newest is used."""
        names = {decode_queue(each.record).name: each.queue_id for each in self._queues.values()}
        for found in find_journals(self._disk, self._directory):
            known = self._queues.get(found.info.queue_id)
            name = found.info.queue_name
            is_taken = names.setdefault(name, found.info.queue_id) != found.info.queue_id
            if found.is_legal and not is_taken and (known is None or known.incarnation < found.info.incarnation):
                self._queues[found.info.queue_id] = found.entry

    def encoded(self, store_id: UUID) -> dict[bytes, bytes]:
        """All entries, with a census and the next ids."""
        numbered: dict[Kind, list[tuple[int, Entry]]] = {
            Kind.QUEUE: [(max(each.queue_id, each.journal_id), each) for each in self._queues.values()],
            Kind.EXCHANGE: list(self._exchanges.items()),
            Kind.BINDING: [(each.sequence, each) for each in self._bindings],
            Kind.GENERAL: list(self._general.items()),
        }
        counts = Counter({kind: len(entries) for kind, entries in numbered.items()})
        census = Census(self._judgement.batch + 1, *(counts[kind] for kind in NUMBERED_KINDS))
        entries: list[Entry] = [Meta(FORMAT_VERSION, store_id), census, self._rids]
        for kind, each in numbered.items():
            highest = max((number for number, _ in each), default=0)
            entries.append(NextId(kind, max(self._next[kind], highest + 1)))
            entries.extend(entry for _, entry in each)
        return dict(map(encode, entries))

    @property
    def told(self) -> str:
        """What was restored, and what was not, as text."""
        why = "it is missing" if self._judgement.copy_is_missing else self._judgement.copy_problem
        gone = f"; without a journal, and so considered deleted: {shown(self._gone)}" if self._gone else ""
        of_journals = len(self._queues) - self._from_catalogue
        return (
            f"its second copy is unusable: {why}; rebuilt with {len(self._queues)} queues, {of_journals} of them from "
            f"their journals alone, and the {len(self._exchanges)} exchanges and {len(self._bindings)} bindings that "
            f"were readable{gone}: all other exchanges, bindings and links are lost and must be declared again"
        )
