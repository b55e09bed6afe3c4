"""The actions of a start on each journal of a store: a plan, which is made without changing anything.

    need       found                                          action of `start`
    ---------  ---------------------------------------------  ---------------------------------------------------------
    RESUME     a sound journal                                it is resumed where it ends
    REBUILD    a damaged journal                              rebuilt from its readable content; the old one is
                                                              quarantined
    MAKE       none, or one that cannot be opened             damage; an empty one is created
    REPLACE    a withdrawn journal: its queue was refused,    the queue gets an empty one under another number; this one
               but is in the catalogue nevertheless           is removed
    FINISH     only the prepared list's successor, which is   it gets its name, and its need is determined then
               complete

All damage is known from the plan, so a store that is to be refused is not changed. One need is determined later: the
prepared list's successor is read when it has its name, since the files of a journal that was read are reopened by their
paths.

The leftovers are the journals that are not in the catalogue:

    state                                                    recognized by                      action
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

import contextlib
import posixpath
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from qstore.formats.broker_records.topology import Queue, decode_queue, encode_queue
from qstore.formats.catalogue import QueueEntry
from qstore.formats.errors import BrokerRecordError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.geometry import FILE_HEADER_SIZE
from qstore.formats.zeros import is_zero
from qstore.store.catalogue.opening import MAX_ID
from qstore.store.catalogue.store_directory import StoreDirectory
from qstore.store.catalogue.topology import LOST_AND_FOUND
from qstore.store.damage import Damage, DamageKind, Effect
from qstore.store.disk import Disk
from qstore.store.errors import StoreDamagedError
from qstore.store.journal.directory import COPY_SUFFIX, DATA_SUFFIX, DELETED, NotAJournalError, journal_base_names
from qstore.store.journal.journal import Journal
from qstore.store.journal.ring.files import RingFile, owner_of
from qstore.store.journal.write.storage import are_of_withdrawn
from qstore.store.live.queue_journal import TPL_NAME
from qstore.store.recovery.close_record import Closing
from qstore.store.recovery.index import Indexes, JournalIndex
from qstore.store.recovery.journal_recovery import RecoveredJournal, StartProgress, recover_directory
from qstore.store.unfinished import KEPT, MAKING, Unfinished, unfinished_list

# ---- the leftovers ----


class LostQueue(NamedTuple):
    """A queue that is only in its journal.

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
    names: Mapping[int, str],
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
        names: the queues' names, by number.

    Raises:
        OSError: a directory cannot be read.
    """
    return _Search(disk, queues, replaced, handled, walk, names).all(parent)


class _Search:
    def __init__(
        self,
        disk: Disk,
        queues: Collection[QueueEntry],
        replaced: Collection[int],
        handled: Collection[str],
        walk: Callable[[str, str], RecoveredJournal | None],
        names: Mapping[int, str],
    ) -> None:
        self._disk, self._handled, self._walk = disk, handled, walk
        self._journals = {str(entry.journal_id) for entry in queues}
        self._names = dict(names)
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
        files = [name for name in names if not name.endswith(COPY_SUFFIX)]  # only these have a journal's content
        if is_flat and (not files or (journal_base_names(files) and self._is_blank(path, files))):
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


# ---- the plan ----


class Need(Enum):
    """The steps that a journal needs before it can accept records."""

    RESUME = "resume"
    REBUILD = "rebuild"
    MAKE = "make"
    REPLACE = "replace"
    FINISH = "finish"


class PlannedJournal(NamedTuple):
    """A journal, and its need.

    Attributes:
        path: its directory.
        name: the queue's, or "TplStore".
        need: its steps.
        found: the recovered journal, open for reading, if it is to be resumed or rebuilt; else None.
        missing: the damage to report if it is lost and to be created.
    """

    path: str
    name: str
    need: Need
    found: RecoveredJournal | None = None
    missing: Damage | None = None

    def close(self) -> None:
        """Close its files. May be called twice."""
        if self.found is not None:
            self.found.journal.close()

    @property
    def damage(self) -> Sequence[Damage]:
        """The damage found in it."""
        if self.found is not None:
            return self.found.damage
        return () if self.missing is None else (self.missing,)


class PlannedQueue(NamedTuple):
    """A queue of the catalogue.

    Attributes:
        entry: its entry in the catalogue.
        record: its record.
        journal: its journal.
    """

    entry: QueueEntry
    record: Queue
    journal: PlannedJournal


class StartPlan(NamedTuple):
    """The actions of a start.

    Attributes:
        was_clean: whether the store had been closed cleanly.
        closing: the record of its closing.
        damage: damage to the store outside of its journals.
        prepared_list: the prepared list.
        queues: the queues, by number.
        leftovers: the journals that are not in the catalogue.
        lost: of these, the queues to be recreated.
    """

    was_clean: bool
    closing: Closing
    damage: tuple[Damage, ...]
    prepared_list: PlannedJournal
    queues: tuple[PlannedQueue, ...]
    leftovers: Leftovers
    lost: tuple[PlannedQueue, ...]

    @property
    def all_damage(self) -> Iterator[Damage]:
        """All damage, in the order in which it is reported."""
        yield from self.damage
        yield from self.prepared_list.damage
        for queue in self.queues:
            yield from queue.journal.damage
        yield from self.leftovers.damage
        for queue in self.lost:
            yield from queue.journal.damage

    def close(self) -> None:
        """Close all files. May be called twice."""
        self.prepared_list.close()
        for queue in (*self.queues, *self.lost):
            queue.journal.close()


def plan_start(
    disk: Disk,
    directory: StoreDirectory,
    entries: Sequence[QueueEntry],
    closing: Closing,
    damage: Sequence[Damage],
    progress: StartProgress | None = None,
    indexes: Indexes | None = None,
    records: Mapping[int, Queue] | None = None,
) -> StartPlan:
    """Read every journal of a locked store, and determine its need. Nothing is changed.

    Args:
        disk: reads the store.
        directory: the store's.
        entries: the queues in its catalogue, by number.
        closing: the record of its closing.
        damage: the damage to that information.
        progress: reports how far it is.
        indexes: those of the journals; they are not used if it is None.
        records: the records of the entries that were decoded already, by number.

    Returns:
        The plan. The journals that were read are open; `StartPlan.close` closes them.

    Raises:
        StoreDamagedError: a queue's record in the catalogue cannot be decoded.
        OSError: something cannot be read.
    """
    lost_queues = closing.lost_queues(directory.catalogue, {entry.queue_id for entry in entries})
    damage = (*damage, *lost_queues)
    with contextlib.ExitStack() as opened:
        prepared_list = plan_prepared_list(disk, directory, closing)
        opened.callback(prepared_list.close)
        queues = []
        if progress is not None:
            progress.journals = len(entries)
        for entry in entries:
            if progress is not None:
                progress.begin()
            record = None if records is None else records.get(entry.queue_id)
            queues.append(plan_queue(disk, directory, entry, closing, None, progress, indexes, record))
            opened.callback(queues[-1].journal.close)
        leftovers = _plan_leftovers(disk, directory, queues, closing)
        lost = []
        for each in leftovers.lost:
            lost.append(plan_queue(disk, directory, each.entry, closing, each.renamed))
            opened.callback(lost[-1].journal.close)
        opened.pop_all()
    return StartPlan(closing.is_clean, closing, damage, prepared_list, tuple(queues), leftovers, tuple(lost))


def _plan_leftovers(
    disk: Disk, directory: StoreDirectory, queues: Sequence[PlannedQueue], closing: Closing
) -> Leftovers:
    """Plan the journals that none of `queues` has. Raises OSError."""
    parent = directory.part("jrnl")
    if not disk.is_directory(parent):
        return Leftovers()
    needs = {queue.entry.queue_id: queue.journal.need for queue in queues}
    replaced = {number for number, need in needs.items() if need in (Need.REBUILD, Need.REPLACE)}
    handled = {posixpath.basename(each.journal.path) for each in queues if not _is_marked(each.journal)}
    if Need.MAKE in needs.values() or Need.REPLACE in needs.values():
        # A journal that a start began to create is created again under the same number, which is not known yet.
        handled.update(name for name in disk.names(parent) if name.endswith(MAKING))

    def walk(path: str, name: str) -> RecoveredJournal | None:
        return read_if_any(disk, path, name, closing)

    names = {queue.entry.queue_id: queue.record.name for queue in queues}
    return find_leftovers(disk, parent, [queue.entry for queue in queues], replaced, handled, walk, names)


def _is_marked(journal: PlannedJournal) -> bool:
    """Whether it will be resumed, but has the mark of a deletion, which is to be removed."""
    return journal.need is Need.RESUME and journal.found is not None and journal.found.journal.is_being_deleted


def plan_prepared_list(disk: Disk, directory: StoreDirectory, closing: Closing) -> PlannedJournal:
    """Determine the need of the prepared list. Raises OSError."""
    path = directory.prepared_list
    if unfinished_list(disk, directory.root) is Unfinished.NEW_LIST:
        return PlannedJournal(path, TPL_NAME, Need.FINISH)
    found = read_if_any(disk, path, TPL_NAME, closing)
    return _planned(path, TPL_NAME, found, Damage(path, None, None, DamageKind.PREPARED_LIST_MISSING))


def plan_queue(
    disk: Disk,
    directory: StoreDirectory,
    entry: QueueEntry,
    closing: Closing,
    renamed: Damage | None = None,
    progress: StartProgress | None = None,
    indexes: Indexes | None = None,
    record: Queue | None = None,
) -> PlannedQueue:
    """Determine the need of a queue's journal.

    Args:
        disk: reads the store.
        directory: the store's.
        entry: its entry in the catalogue, or its future one.
        closing: the record of its closing.
        renamed: why the journal must be rebuilt under another name; None if it need not be.
        progress: reports how far it is.
        indexes: as of `plan_start`.
        record: the entry's record; it is decoded if it is None.

    Raises:
        StoreDamagedError: the queue's record cannot be decoded.
        OSError: the journal cannot be read.
    """
    try:
        record = decode_queue(entry.record) if record is None else record
    except BrokerRecordError as error:
        raise StoreDamagedError(f"{directory.catalogue}: queue {entry.queue_id}: {error.what}") from error
    path = directory.journal(entry.journal_id)
    names = _names_in(disk, path)
    if names is not None and are_of_withdrawn(names):
        return PlannedQueue(entry, record, PlannedJournal(path, record.name, Need.REPLACE))
    missing = Damage(path, None, None, DamageKind.QUEUE_WITHOUT_JOURNAL, queue=record.name)
    found = None
    if names is not None:
        index = None if indexes is None else indexes.of(entry.queue_id, entry.journal_id)
        found = _recovered(disk, path, record.name, closing, names, progress, index)
    journal = _planned(path, record.name, found, missing, () if renamed is None else (renamed,))
    return PlannedQueue(entry, record, journal)


def read_if_any(disk: Disk, path: str, name: str, closing: Closing) -> RecoveredJournal | None:
    """Read the journal in a directory; None if there is none. Raises OSError."""
    names = _names_in(disk, path)
    return None if names is None else _recovered(disk, path, name, closing, names)


def _names_in(disk: Disk, path: str) -> list[str] | None:
    """The names in a directory; None if there is none. Raises OSError."""
    try:
        return disk.names(path)
    except OSError:
        if disk.is_directory(path):
            raise
        return None


def _recovered(
    disk: Disk,
    path: str,
    name: str,
    closing: Closing,
    names: Sequence[str],
    progress: StartProgress | None = None,
    index: JournalIndex | None = None,
) -> RecoveredJournal | None:
    try:
        return recover_directory(disk, path, name, closing, progress, names, index)
    except NotAJournalError:
        return None


def _planned(
    path: str, name: str, found: RecoveredJournal | None, missing: Damage, besides: Sequence[Damage] = ()
) -> PlannedJournal:
    if found is None:
        return PlannedJournal(path, name, Need.MAKE, missing=missing)
    found.damage.extend(besides)
    return PlannedJournal(path, name, Need.REBUILD if found.damage else Need.RESUME, found)
