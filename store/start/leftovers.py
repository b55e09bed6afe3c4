"""The journals in a store that are not in its catalogue: what each is, and what to do with it.

    what it is                                               recognized by                      action
    -------------------------------------------------------  ---------------------------------  ---------------------
    of a deleted queue, or an interrupted resize before its  the mark of a deletion             it is removed
    switch
    of a queue that was being created                        nothing was ever written to it:    it is removed
                                                             only a queue of the catalogue
                                                             gets records
    another journal of a queue in the catalogue: a resize    its queue's number, and another    it is moved aside; to
    or a rebuild was interrupted before or after its         incarnation                        the quarantine if it is
    switch, and the queue's own journal has the same content                                    damaged
    of a queue that the catalogue lost                       a number that no queue has         damage: the queue is
                                                                                                recreated
    a journal that is unreadable or unidentifiable           none of these                      damage: it is moved
    aside
    not a journal                                            no file of it is a journal's       it is moved aside

A deleted queue never reappears: its mark is synced before the catalogue's batch, and is removed last. A recreated queue
has the record in its journal's info file; if that is unreadable, or another queue has the name, it is called
`lost.found.<id>`, after the journal's directory.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from qstore.formats.broker_records.errors import BrokerRecordError
from qstore.formats.broker_records.topology import Queue, decode_queue, encode_queue
from qstore.formats.catalogue import QueueEntry
from qstore.formats.rhm.geometry import FILE_HEADER_SIZE
from qstore.formats.zeros import is_zero
from qstore.store.catalogue.topology import LOST_AND_FOUND
from qstore.store.catalogue.topology_salvage import MAX_ID
from qstore.store.damage import Damage, DamageKind, Effect
from qstore.store.disk import Disk
from qstore.store.journal.directory import DATA_SUFFIX, DELETED, journal_base_names
from qstore.store.journal.journal import Journal
from qstore.store.journal.ring.files import RingFile, owner_of
from qstore.store.recovery.journal_recovery import RecoveredJournal
from qstore.store.unfinished import KEPT


class LostQueue(NamedTuple):
    """A queue that only its journal knows.

    Attributes:
        entry: its new entry in the catalogue.
        damage: the loss.
        renamed: why its journal must be rebuilt under another name; None if it need not be.
    """

    entry: QueueEntry
    damage: Damage
    renamed: Damage | None


class Aside(NamedTuple):
    """A directory to be moved aside.

    Attributes:
        damage: its kind, and whether it may hold messages that exist nowhere else.
        parent: the directory, next to that of the journals, to which it is moved.
    """

    damage: Damage
    parent: str = "orphans"


@dataclass(slots=True)
class Leftovers:
    """Planned actions, by directory.

    Attributes:
        kept: journals of known queues whose deletion did not happen: their mark is removed.
        removed: directories whose content is not needed.
        aside: directories to be moved aside.
        lost: queues to be recreated.
        highest_rid: the highest record id in any of these journals.
    """

    kept: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    aside: list[Aside] = field(default_factory=list)
    lost: list[LostQueue] = field(default_factory=list)
    highest_rid: int = 0

    @property
    def damage(self) -> Iterator[Damage]:
        """The damage among all of this."""
        yield from (each.damage for each in self.lost)
        yield from (each.damage for each in self.aside if each.damage.costs)


def find_leftovers(
    disk: Disk,
    parent: str,
    queues: Collection[QueueEntry],
    replaced: Collection[int],
    handled: Collection[str],
    walk: Callable[[str, str], RecoveredJournal | None],
) -> Leftovers:
    """Examine every journal in the directory `parent` that none of `queues` has. Nothing is changed.

    Args:
        disk: reads them.
        parent: the directory of all journals.
        queues: the catalogue's.
        replaced: the numbers of those that get another journal, of the next incarnation: it replaces earlier ones of
            theirs, and an existing one of the next incarnation was built by an interrupted start.
        handled: names of directories that the queues' own plan deals with.
        walk: reads the journal in a directory, under a name; returns None if there is none.

    Raises:
        OSError: a directory cannot be read.
    """
    return _Search(disk, queues, replaced, handled, walk).all(parent)


class _Search:
    def __init__(
        self,
        disk: Disk,
        queues: Collection[QueueEntry],
        replaced: Collection[int],
        handled: Collection[str],
        walk: Callable[[str, str], RecoveredJournal | None],
    ) -> None:
        self._disk, self._handled, self._walk = disk, handled, walk
        self._journals = {str(entry.journal_id) for entry in queues}
        self._names = {entry.queue_id: decode_queue(entry.record).name for entry in queues}
        self._incarnations = {entry.queue_id: entry.incarnation for entry in queues if entry.queue_id not in replaced}
        self._taken = set(self._names.values())
        self._found = Leftovers()

    def all(self, parent: str) -> Leftovers:
        """Examine every directory in `parent`."""
        for name in self._disk.names(parent):
            path = posixpath.join(parent, name)
            if name not in self._handled and self._disk.is_directory(path):
                self._one(path, name)
        return self._found

    def _one(self, path: str, name: str) -> None:
        found, names = self._found, self._disk.names(path)
        is_deleted = DELETED in names
        if name in self._journals:
            if is_deleted:
                found.kept.append(path)
            return
        paths = [posixpath.join(path, each) for each in names]
        is_flat = not any(self._disk.is_directory(each) for each in paths)
        if is_deleted:
            found.removed.append(path)
            return
        walked = self._walk(path, LOST_AND_FOUND + name) if journal_base_names(names) else None
        if walked is None:
            self._unreadable(path, names, is_flat=is_flat)
            return
        walked.journal.close()
        recovery = walked.recovery
        found.highest_rid = max(found.highest_rid, recovery.highest_rid)
        is_empty = not walked.damage and not len(recovery.messages) and not len(recovery.transactions)
        if walked.flush and _identity(walked.journal)[0] not in self._names:
            is_empty = False
        if is_flat and (walked.journal.is_remnant or is_empty):
            found.removed.append(path)
            return
        self._with_content(path, name, walked)

    def _unreadable(self, path: str, names: list[str], *, is_flat: bool) -> None:
        """A directory that cannot be opened as a journal: just allocated, not a journal, or completely damaged."""
        if not names or (journal_base_names(names) and is_flat and self._is_blank(path, names)):
            self._found.removed.append(path)
        elif journal_base_names(names):
            self._found.aside.append(Aside(Damage(path, None, None, DamageKind.UNKNOWN_JOURNAL_UNREADABLE)))
        else:
            self._found.aside.append(Aside(Damage(path, None, None, DamageKind.DIRECTORY_WITHOUT_JOURNAL)))

    def _is_blank(self, directory: str, names: list[str]) -> bool:
        """Whether a journal's files were only allocated."""
        paths = [posixpath.join(directory, name) for name in names if name.endswith(DATA_SUFFIX)]
        return all(self._has_no_header(path) for path in paths)

    def _has_no_header(self, path: str) -> bool:
        file = self._disk.open(path)
        try:
            return is_zero(file.read(0, FILE_HEADER_SIZE))
        finally:
            file.close()

    def _with_content(self, path: str, name: str, walked: RecoveredJournal) -> None:
        queue_id, incarnation = _identity(walked.journal)
        messages, transactions = len(walked.recovery.messages), len(walked.recovery.transactions) or None
        if queue_id in self._names:
            is_loss = incarnation == self._incarnations.get(queue_id)
            effect = Effect.KEPT_IN_ORPHANS if is_loss else Effect.NOT_MISSED
            queue, kind = self._names[queue_id], DamageKind.JOURNAL_NOT_IN_USE
            damage = Damage(path, None, None, kind, effect, queue=queue, messages=messages, transactions=transactions)
            replaced = "quarantine" if walked.damage else KEPT
            self._found.aside.append(Aside(damage, "orphans" if is_loss else replaced))
        elif name.isdecimal() and 0 < int(name) < MAX_ID and 0 < queue_id < MAX_ID:
            self._lost(path, name, walked, queue_id, incarnation)
        else:
            kind = DamageKind.UNKNOWN_JOURNAL
            damage = Damage(path, None, None, kind, messages=messages, transactions=transactions)
            self._found.aside.append(Aside(damage))

    def _lost(self, path: str, name: str, walked: RecoveredJournal, queue_id: int, incarnation: int) -> None:
        journal, recovery = walked.journal, walked.recovery
        queue, renamed = _record(journal), None
        if queue is None:
            queue = Queue(self._free_name(name))
            renamed = Damage(path, None, None, DamageKind.UNKNOWN_QUEUE_UNNAMED, renamed=queue.name)
        elif queue.name in self._taken:
            kind, taken = DamageKind.UNKNOWN_QUEUE_NAME_TAKEN, queue.name
            queue = replace(queue, name=self._free_name(name))
            renamed = Damage(path, None, None, kind, queue=taken, renamed=queue.name)
        messages, transactions = len(recovery.messages), len(recovery.transactions) or None
        kind, title = DamageKind.UNKNOWN_QUEUE, journal.name
        lost = Damage(path, None, None, kind, queue=title, messages=messages, transactions=transactions)
        self._taken.add(queue.name)
        self._names[queue_id], self._incarnations[queue_id] = queue.name, incarnation
        entry = QueueEntry(queue_id, int(name), incarnation, encode_queue(queue))
        self._found.lost.append(LostQueue(entry, lost, renamed))

    def _free_name(self, name: str) -> str:
        wanted, count = LOST_AND_FOUND + name, 1
        while wanted in self._taken:
            count += 1
            wanted = f"{LOST_AND_FOUND}{name}-{count}"
        return wanted


def _identity(journal: Journal) -> tuple[int, int]:
    """The number of a journal's queue and its incarnation, from its files or else its info file; 0 if unknown."""
    for file in journal.files.files:
        if isinstance(file, RingFile) and file.header is not None:
            return owner_of(file.header)
    return (0, 0) if journal.info is None else (journal.info.queue_id, journal.info.incarnation)


def _record(journal: Journal) -> Queue | None:
    if journal.info is None:
        return None
    try:
        return decode_queue(journal.info.queue_record)
    except BrokerRecordError:
        return None
