"""The journals in a store that its catalogue does not know: what each is, and what is to be done with it.

    what it is                                               how it is told                     what is done
    -------------------------------------------------------  ---------------------------------  ---------------------
    of a queue that was deleted, or a resize that was cut    the mark of a deletion             it is removed
    short before its switch
    of a queue that was being made                           nothing was ever written to it     it is removed
    another journal of a queue that the catalogue knows: a   its queue's number, and another    it is kept aside; in
    resize or a rebuild was cut short on either side of its  incarnation                        the quarantine if it is
    switch, and the queue's own journal holds the same                                          damaged
    of a queue that the catalogue lost                       a number that no queue has         damage: the queue is
                                                                                                made again
    a journal that cannot be read, or told from another      none of these                      damage: it is kept aside
    no journal at all                                        no file of it is a journal's       it is kept aside

A deleted queue never comes back: its mark is on the disk before the catalogue's batch, and is the last thing to go. The
queue that is made again has the record in its journal's info file; where that cannot be read, or another queue has the
name by now, it is called `lost.found.<id>`, after the journal's directory.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from formats.broker_records.errors import BrokerRecordError
from formats.broker_records.wiring import Queue, decode_queue, encode_queue
from formats.catalogue import QueueEntry
from formats.rhm.geometry import FILE_HEADER_SIZE
from store.catalogue.topology_salvage import MOST_ID
from store.catalogue.wiring import LOST_AND_FOUND
from store.damage import Damage
from store.damage_effects import Effect
from store.damage_kinds import DamageKind
from store.disk import Disk
from store.journal.directory import DATA_SUFFIX, DELETED, journal_base_names
from store.journal.journal import Journal
from store.journal.ring.identity import identity
from store.journal.ring.order import RingFile
from store.recovery.journal_recovery import RecoveredJournal
from store.unfinished import KEPT


class LostQueue(NamedTuple):
    """A queue that only its journal knows.

    Attributes:
        entry: what the catalogue is to have.
        damage: the loss, for people.
        renamed: why its journal has to be built anew under another name; None if it has not.
    """

    entry: QueueEntry
    damage: Damage
    renamed: Damage | None


class Aside(NamedTuple):
    """A directory that is kept aside.

    Attributes:
        damage: what it is, and whether it may hold messages that nothing else has.
        parent: the directory, beside those of the journals, in which it is kept.
    """

    damage: Damage
    parent: str = "orphans"


@dataclass(slots=True)
class Leftovers:
    """What is to be done, by directory.

    Attributes:
        kept: journals of known queues whose deletion did not happen: the mark is taken away.
        removed: what nobody misses.
        aside: what is kept aside.
        lost: queues that are made again.
        highest_rid: the highest record id in any of these journals.
    """

    kept: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    aside: list[Aside] = field(default_factory=list)
    lost: list[LostQueue] = field(default_factory=list)
    highest_rid: int = 0

    @property
    def damage(self) -> Iterator[Damage]:
        """What of all this is damage."""
        yield from (each.damage for each in self.lost)
        yield from (each.damage for each in self.aside if each.damage.costs)


def find_leftovers(
    disk: Disk,
    parent: str,
    queues: Collection[QueueEntry],
    replaced: Collection[int],
    settled: Collection[str],
    walk: Callable[[str, str], RecoveredJournal | None],
) -> Leftovers:
    """Look at every journal in the directory `parent` that `queues` do not have. Nothing is changed.

    Args:
        disk: where they are.
        parent: the directory of all journals.
        queues: the catalogue's.
        replaced: the numbers of those that get another journal, of the next incarnation: what an earlier one of theirs
            holds is replaced by that, and one of the next incarnation is what a killed start had built of it.
        settled: names of directories of which the queues' own plan disposes.
        walk: reads the journal in a directory, under a name; None where there is none.

    Raises:
        OSError: a directory cannot be read.
    """
    return _Search(disk, queues, replaced, settled, walk).all(parent)


class _Search:
    def __init__(
        self,
        disk: Disk,
        queues: Collection[QueueEntry],
        replaced: Collection[int],
        settled: Collection[str],
        walk: Callable[[str, str], RecoveredJournal | None],
    ) -> None:
        self._disk, self._settled, self._walk = disk, settled, walk
        self._journals = {str(entry.journal_id) for entry in queues}
        self._names = {entry.queue_id: decode_queue(entry.record).name for entry in queues}
        self._incarnations = {entry.queue_id: entry.incarnation for entry in queues if entry.queue_id not in replaced}
        self._taken = set(self._names.values())
        self._found = Leftovers()

    def all(self, parent: str) -> Leftovers:
        """Every directory in `parent`."""
        for name in self._disk.names(parent):
            path = posixpath.join(parent, name)
            if name not in self._settled and self._disk.is_directory(path):
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
        if is_flat and (walked.journal.is_remnant or is_empty):
            found.removed.append(path)
            return
        self._with_content(path, name, walked)

    def _unreadable(self, path: str, names: list[str], *, is_flat: bool) -> None:
        """What cannot be opened as a journal: its files were just allocated, or it is none, or all of it is damaged."""
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
            return not file.read(0, FILE_HEADER_SIZE).strip(b"\0")
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
        elif name.isdecimal() and 0 < int(name) < MOST_ID and 0 < queue_id < MOST_ID:
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
    """The number of a journal's queue and its incarnation: what its files say, or else its info file; 0 for nothing."""
    for file in journal.files.files:
        if isinstance(file, RingFile) and file.header is not None:
            return identity(file.header)
    return (0, 0) if journal.info is None else (journal.info.queue_id, journal.info.incarnation)


def _record(journal: Journal) -> Queue | None:
    if journal.info is None:
        return None
    try:
        return decode_queue(journal.info.queue_record)
    except BrokerRecordError:
        return None
