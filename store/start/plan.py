"""What a start must do with each journal of a store: a plan, which is made without changing anything.

    need       found                                          action of `start`
    ---------  ---------------------------------------------  ---------------------------------------------------------
    TAKE_UP    a sound journal                                it is resumed where it ends
    REBUILD    a damaged journal                              rebuilt from its readable content; the old one is
                                                              quarantined
    MAKE       none, or one that cannot be opened             damage; an empty one is created
    REPLACE    a withdrawn journal: its queue was refused,    the queue gets an empty one under another number; this one
               but is in the catalogue nevertheless           is removed
    FINISH     only the prepared list's successor, which is   it gets its name, and its need is determined then
               complete

Actions for journals that are not in the catalogue are planned in `leftovers`. All damage is known from the plan, so a
store that is to be refused is not changed. One need is determined later: the prepared list's successor is read when it
has its name, since the files of a journal that was read are reopened by their paths.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from qstore.formats.broker_records.errors import BrokerRecordError
from qstore.formats.broker_records.topology import Queue, decode_queue
from qstore.formats.catalogue import QueueEntry
from qstore.store.catalogue.store_directory import StoreDirectory
from qstore.store.damage import Damage, DamageKind
from qstore.store.disk import Disk
from qstore.store.errors import StoreDamagedError
from qstore.store.journal.directory import NotAJournalError
from qstore.store.journal.write.storage import is_withdrawn
from qstore.store.live.queue_journal import TPL_NAME
from qstore.store.recovery.close_record import Closing
from qstore.store.recovery.journal_recovery import RecoveredJournal, recover_directory
from qstore.store.recovery.progress import StartProgress
from qstore.store.start.leftovers import Leftovers, find_leftovers
from qstore.store.unfinished import MAKING, Unfinished, unfinished_list


class Need(Enum):
    """What a journal needs before it can accept records."""

    TAKE_UP = "take up"
    REBUILD = "rebuild"
    MAKE = "make"
    REPLACE = "replace"
    FINISH = "finish"


@dataclass(frozen=True, slots=True)
class PlannedJournal:
    """A journal, and its need.

    Attributes:
        path: its directory.
        name: the queue's, or "TplStore".
        need: what it needs.
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


@dataclass(frozen=True, slots=True)
class PlannedQueue:
    """A queue of the catalogue.

    Attributes:
        entry: its entry in the catalogue.
        record: its record.
        journal: its journal.
    """

    entry: QueueEntry
    record: Queue
    journal: PlannedJournal


@dataclass(frozen=True, slots=True)
class StartPlan:
    """The actions of a start.

    Attributes:
        was_clean: whether the store had been closed cleanly.
        closing: how it was closed.
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
) -> StartPlan:
    """Read every journal of a locked store, and determine its need. Nothing is changed.

    Args:
        disk: reads the store.
        directory: the store's.
        entries: the queues in its catalogue, by number.
        closing: how it was closed.
        damage: the damage to that information.
        progress: is told how far it is.

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
            queues.append(plan_queue(disk, directory, entry, closing, progress=progress))
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
    handled = {posixpath.basename(each.journal.path) for each in queues if each.journal.need is not Need.TAKE_UP}
    if Need.MAKE in needs.values() or Need.REPLACE in needs.values():
        # A journal that a start began to create is created again under the same number, which is not known yet.
        handled.update(name for name in disk.names(parent) if name.endswith(MAKING))

    def walk(path: str, name: str) -> RecoveredJournal | None:
        return read_if_any(disk, path, name, closing)

    return find_leftovers(disk, parent, [queue.entry for queue in queues], replaced, handled, walk)


def plan_prepared_list(disk: Disk, directory: StoreDirectory, closing: Closing) -> PlannedJournal:
    """Determine the need of the prepared list. Raises OSError."""
    path = directory.prepared_list
    if unfinished_list(disk, directory.root) is Unfinished.NEW_LIST:
        return PlannedJournal(path, TPL_NAME, Need.FINISH)
    return _planned(disk, path, TPL_NAME, closing, Damage(path, None, None, DamageKind.PREPARED_LIST_MISSING))


def plan_queue(
    disk: Disk,
    directory: StoreDirectory,
    entry: QueueEntry,
    closing: Closing,
    renamed: Damage | None = None,
    progress: StartProgress | None = None,
) -> PlannedQueue:
    """Determine the need of a queue's journal.

    Args:
        disk: reads the store.
        directory: the store's.
        entry: its entry in the catalogue, or its future one.
        closing: how the store was closed.
        renamed: why the journal must be rebuilt under another name; None if it need not be.
        progress: is told how far it is.

    Raises:
        StoreDamagedError: the queue's record cannot be decoded.
        OSError: the journal cannot be read.
    """
    try:
        record = decode_queue(entry.record)
    except BrokerRecordError as error:
        raise StoreDamagedError(f"{directory.catalogue}: queue {entry.queue_id}: {error.what}") from error
    path = directory.journal(entry.journal_id)
    if is_withdrawn(disk, path):
        return PlannedQueue(entry, record, PlannedJournal(path, record.name, Need.REPLACE))
    missing = Damage(path, None, None, DamageKind.QUEUE_WITHOUT_JOURNAL, queue=record.name)
    journal = _planned(disk, path, record.name, closing, missing, () if renamed is None else (renamed,), progress)
    return PlannedQueue(entry, record, journal)


def read_if_any(
    disk: Disk, path: str, name: str, closing: Closing, progress: StartProgress | None = None
) -> RecoveredJournal | None:
    """Read the journal in a directory; None if there is none. Raises OSError."""
    if not disk.is_directory(path):
        return None
    try:
        return recover_directory(disk, path, name, closing, progress)
    except NotAJournalError:
        return None


def _planned(
    disk: Disk,
    path: str,
    name: str,
    closing: Closing,
    missing: Damage,
    besides: Sequence[Damage] = (),
    progress: StartProgress | None = None,
) -> PlannedJournal:
    found = read_if_any(disk, path, name, closing, progress)
    if found is None:
        return PlannedJournal(path, name, Need.MAKE, missing=missing)
    found.damage.extend(besides)
    return PlannedJournal(path, name, Need.REBUILD if found.damage else Need.TAKE_UP, found)
