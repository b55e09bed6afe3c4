"""What a start finds in a store, and what each of its journals needs: a plan, which is made without changing anything.

    need       what was found                                 what `start` does
    ---------  ---------------------------------------------  ---------------------------------------------------------
    TAKE_UP    a journal that is sound                        it is taken up where it ends
    REBUILD    a journal that is damaged                      what can be read is built anew; the old one is quarantined
    MAKE       none, or what cannot be opened as one          damage; an empty one is made
    REPLACE    a journal that was withdrawn: its queue was    the queue gets an empty one under another number; this one
               refused, and is in the catalogue all the same  is removed
    FINISH     only the prepared list's successor, which is   it gets its name, and what it needs is found out then
               whole

What becomes of journals that the catalogue does not know is planned in `leftovers`. All damage is known from the plan,
so a store that is to be refused for it stays as it is. One thing is found out later: the prepared list's successor is
read when it has its name, since the files of a journal that was read are opened again by their paths.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from formats.broker_records.errors import BrokerRecordError
from formats.broker_records.wiring import Queue, decode_queue
from formats.catalogue import QueueEntry
from formats.rhm.store_file import StoreFile
from store.catalogue.store_directory import StoreDirectory
from store.damage import Damage
from store.damage_kinds import DamageKind
from store.disk import Disk
from store.errors import StoreDamagedError
from store.journal.directory import NotAJournalError
from store.journal.write.storage import is_withdrawn
from store.live.queue_journal import TPL_NAME
from store.recovery.close_record import Closing, read_closing
from store.recovery.journal_recovery import RecoveredJournal, recover_directory
from store.start.leftovers import Leftovers, find_leftovers
from store.unfinished import MAKING, Unfinished, unfinished_list


class Need(Enum):
    """What a journal needs before it can take records."""

    TAKE_UP = "take up"
    REBUILD = "rebuild"
    MAKE = "make"
    REPLACE = "replace"
    FINISH = "finish"


@dataclass(frozen=True, slots=True)
class PlannedJournal:
    """A journal, and what it needs.

    Attributes:
        path: its directory.
        name: the queue's, or "TplStore".
        need: what it needs.
        found: what was read, for those that are taken up or rebuilt, open for reading; else None.
        missing: the damage that its loss is, for those that are made.
    """

    path: str
    name: str
    need: Need
    found: RecoveredJournal | None = None
    missing: Damage | None = None

    def close(self) -> None:
        """Let its files go. Twice is allowed."""
        if self.found is not None:
            self.found.journal.close()

    @property
    def damage(self) -> Sequence[Damage]:
        """What is wrong with it."""
        if self.found is not None:
            return self.found.damage
        return () if self.missing is None else (self.missing,)


@dataclass(frozen=True, slots=True)
class PlannedQueue:
    """A queue of the catalogue.

    Attributes:
        entry: what the catalogue has.
        record: its record.
        journal: its journal.
    """

    entry: QueueEntry
    record: Queue
    journal: PlannedJournal


@dataclass(frozen=True, slots=True)
class StartPlan:
    """What a start is to do.

    Attributes:
        was_clean: whether the store had been closed cleanly.
        closing: how it was closed.
        damage: what is wrong with the store besides its journals.
        prepared_list: the prepared list.
        queues: the queues, by number.
        leftovers: the journals that the catalogue does not know.
        lost: of these, the queues that are made again.
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
        """Everything that is damaged, in the order in which it is told."""
        yield from self.damage
        yield from self.prepared_list.damage
        for queue in self.queues:
            yield from queue.journal.damage
        yield from self.leftovers.damage
        for queue in self.lost:
            yield from queue.journal.damage

    def close(self) -> None:
        """Let all files go. Twice is allowed."""
        self.prepared_list.close()
        for queue in (*self.queues, *self.lost):
            queue.journal.close()


def plan_start(disk: Disk, directory: StoreDirectory, entries: Sequence[QueueEntry], mark: StoreFile) -> StartPlan:
    """Read every journal of a store that nobody else has, and tell what it needs. Nothing is changed.

    Args:
        disk: where the store is.
        directory: the store's.
        entries: the queues that its catalogue has, by number.
        mark: what its STORE file says.

    Returns:
        The plan. The journals that were read are open; `StartPlan.close` closes them.

    Raises:
        StoreDamagedError: a queue's record in the catalogue cannot be decoded.
        OSError: something cannot be read.
    """
    closing, damage = read_closing(disk, directory.root, mark)
    damage.extend(closing.lost_queues(directory.catalogue, {entry.queue_id for entry in entries}))
    with contextlib.ExitStack() as opened:
        prepared_list = plan_prepared_list(disk, directory, closing)
        opened.callback(prepared_list.close)
        queues = []
        for entry in entries:
            queues.append(plan_queue(disk, directory, entry, closing))
            opened.callback(queues[-1].journal.close)
        leftovers = _plan_leftovers(disk, directory, queues, closing)
        lost = []
        for each in leftovers.lost:
            lost.append(plan_queue(disk, directory, each.entry, closing, each.renamed))
            opened.callback(lost[-1].journal.close)
        opened.pop_all()
    return StartPlan(mark.clean_close, closing, tuple(damage), prepared_list, tuple(queues), leftovers, tuple(lost))


def _plan_leftovers(
    disk: Disk, directory: StoreDirectory, queues: Sequence[PlannedQueue], closing: Closing
) -> Leftovers:
    """What becomes of the journals that none of `queues` has. Raises OSError."""
    parent = directory.part("jrnl")
    if not disk.is_directory(parent):
        return Leftovers()
    needs = {queue.entry.queue_id: queue.journal.need for queue in queues}
    replaced = {number for number, need in needs.items() if need in (Need.REBUILD, Need.REPLACE)}
    settled = {posixpath.basename(each.journal.path) for each in queues if each.journal.need is not Need.TAKE_UP}
    if Need.MAKE in needs.values() or Need.REPLACE in needs.values():
        # One that a start began to make is made anew under the same number, which is not known before it is taken.
        settled.update(name for name in disk.names(parent) if name.endswith(MAKING))

    def walk(path: str, name: str) -> RecoveredJournal | None:
        return read_if_any(disk, path, name, closing)

    return find_leftovers(disk, parent, [queue.entry for queue in queues], replaced, settled, walk)


def plan_prepared_list(disk: Disk, directory: StoreDirectory, closing: Closing) -> PlannedJournal:
    """What the prepared list needs. Raises OSError."""
    path = directory.prepared_list
    if unfinished_list(disk, directory.root) is Unfinished.NEW_LIST:
        return PlannedJournal(path, TPL_NAME, Need.FINISH)
    return _planned(disk, path, TPL_NAME, closing, Damage(path, None, None, DamageKind.PREPARED_LIST_MISSING))


def plan_queue(
    disk: Disk, directory: StoreDirectory, entry: QueueEntry, closing: Closing, renamed: Damage | None = None
) -> PlannedQueue:
    """What a queue's journal needs.

    Args:
        disk: where the store is.
        directory: the store's.
        entry: what the catalogue has, or is to have.
        closing: how the store was closed.
        renamed: why the journal has to be built anew under another name; None if it has not.

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
    journal = _planned(disk, path, record.name, closing, missing, () if renamed is None else (renamed,))
    return PlannedQueue(entry, record, journal)


def read_if_any(disk: Disk, path: str, name: str, closing: Closing) -> RecoveredJournal | None:
    """Read the journal in a directory; None if there is none. Raises OSError."""
    if not disk.is_directory(path):
        return None
    try:
        return recover_directory(disk, path, name, closing)
    except NotAJournalError:
        return None


def _planned(
    disk: Disk, path: str, name: str, closing: Closing, missing: Damage, besides: Sequence[Damage] = ()
) -> PlannedJournal:
    found = read_if_any(disk, path, name, closing)
    if found is None:
        return PlannedJournal(path, name, Need.MAKE, missing=missing)
    found.damage.extend(besides)
    return PlannedJournal(path, name, Need.REBUILD if found.damage else Need.TAKE_UP, found)
