"""A store that is not running, read as recovery would read it, and never written to.

The order is qpidd's own (formats/broker_records/README.md, 4.6): the prepared list first, then each queue's journal,
resolved through it. Bodies stay on disk; only the index of each journal and the topology are kept in memory.

A queue in the catalogue has its journal; a journal without an entry in the catalogue is an orphan. If the catalogue is
lost or may be incomplete, each journal counts as a queue, named by its info file.

Next to the journals are the catalogue, or qpidd's Berkeley DB environment, and version 2's STORE file. A version-2
store always has both its catalogue and its STORE file. Of qpidd's stores only the journals may be available: then the
names of the queues are taken from them.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import UUID

from qstore.formats.broker_records.topology import Queue, decode_queue, split_name
from qstore.formats.errors import BrokerRecordError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm import store_file
from qstore.formats.rhm.jinf import TPL_BASE_NAME
from qstore.formats.wording import plural
from qstore.store.catalogue.berkeley import read_environment
from qstore.store.catalogue.catalogue import Catalogue, CatalogueDamage
from qstore.store.catalogue.topology import Topology, catalogue_topology, environment_topology
from qstore.store.catalogue.topology_copy import NAME as TOPOLOGY
from qstore.store.catalogue.topology_copy import (
    CatalogueView,
    CopyView,
    Judgement,
    MemoryMap,
    Verdict,
    differences,
    judge,
    shown,
    view_catalogue,
    view_copy,
)
from qstore.store.damage import Damage, DamageKind, Effect
from qstore.store.disk import Disk, read_whole
from qstore.store.inspect.layout import (
    JournalPlace,
    StoreKind,
    StoreLayout,
    UnusableInputError,
    find_layout,
    in_use_notice,
)
from qstore.store.journal.directory import (
    INFO_SUFFIX,
    PUSHED_DOWN,
    NotAJournalError,
    UnmadeJournalError,
    open_file,
    open_journal,
    open_line,
    open_linear_file,
)
from qstore.store.journal.files import JournalFormat
from qstore.store.journal.journal import Journal
from qstore.store.journal.line.files import FilePool, PooledFile, linear_file_names, queue_name_of, read_file_pool
from qstore.store.journal.reader import JournalEnd
from qstore.store.journal.records import RecordSink
from qstore.store.journal.recovery import LIVE, JournalRecovery, Outcome, OutstandingRecord
from qstore.store.journal.write.storage import is_withdrawn
from qstore.store.key_value import CatalogueDamagedError, CatalogueError, open_copy
from qstore.store.recovery.close_record import Closing, read_bounds, read_closing
from qstore.store.recovery.journal_recovery import RecoveredJournal, recover_journal, unlinked_head, walk_readable
from qstore.store.recovery.prepared import PreparedTransaction
from qstore.store.unfinished import Unfinished, unfinished_journals

# ---- opening the journals ----

TPL_NAME: Final = "TplStore"


@dataclass(slots=True)
class OpenedJournals:
    """The journals of a store.

    Attributes:
        prepared_list: the transaction prepared list's; None if there is none.
        journals: the queues'.
        orphans, quarantine: version 2: journals that were moved aside.
        pool: the files of a linearstore's partitions; None for the other stores.
        damage: the parts that could not be opened.
        notices: one line each for the user, about things that are not damage.
    """

    prepared_list: Journal | None = None
    journals: list[Journal] = field(default_factory=list)
    orphans: list[Journal] = field(default_factory=list)
    quarantine: list[Journal] = field(default_factory=list)
    pool: FilePool | None = None
    damage: list[Damage] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)


def open_journals(disk: Disk, layout: StoreLayout) -> OpenedJournals:
    """Open every journal of `layout`.

    Raises:
        NotAJournalError, OSError: the journal or file at the layout's own path cannot be opened.
    """
    return _Opening(disk, layout).all()


class _Opening:
    def __init__(self, disk: Disk, layout: StoreLayout) -> None:
        self._disk = disk
        self._layout = layout
        self._opened = OpenedJournals()
        self._taken: dict[str, PooledFile] = {}
        self._unlinked: dict[str, list[PooledFile]] = defaultdict(list)
        self._waiting: dict[str, list[PooledFile]] = defaultdict(list)
        self._queues = frozenset((TPL_NAME, *(place.name for place in layout.journals)))

    def all(self) -> OpenedJournals:
        layout, opened = self._layout, self._opened
        if layout.pools is not None:
            self._read_pool(layout.pools)
        if layout.kind is StoreKind.FILE:
            self._file(_open_single(self._disk, layout.path))
        if layout.prepared_list is not None and not self._disk.is_directory(layout.prepared_list):
            kind = DamageKind.PREPARED_LIST_NO_DIRECTORY
            opened.damage.append(Damage(layout.prepared_list, None, None, kind))
        elif layout.prepared_list is not None:
            opened.prepared_list = self._open(JournalPlace(layout.prepared_list, TPL_NAME), Effect.COUNT_AS_UNPREPARED)
        elif layout.kind is StoreKind.LINEAR and self._unlinked.get(TPL_NAME):
            opened.prepared_list = self._lost_directory("tpl2", TPL_NAME)
        for place in layout.journals:
            journal = self._open(place, Effect.MESSAGES_LOST)
            if journal is not None:
                self._file(journal)
        self._journals_without_directory()
        for path in layout.orphans:
            self._kept(path, opened.orphans, "a directory that no queue has, moved aside")
        for path in layout.quarantine:
            self._kept(path, opened.quarantine, "quarantined as damaged")
        return opened

    def _kept(self, path: str, journals: list[Journal], what: str) -> None:
        """A journal that was moved aside; an unreadable one is reported."""
        if self._disk.is_file(posixpath.join(path, "CURRENT")):
            text = f"{path}: a damaged catalogue that was restored; remove it when it is no longer needed"
            self._opened.notices.append(text)
            return
        try:
            journals.append(open_journal(self._disk, path, name=posixpath.basename(path)))
        except (NotAJournalError, OSError):
            text = f"{path}: {what}; it has no readable journal; remove it when it is no longer needed"
            self._opened.notices.append(text)

    def _file(self, journal: Journal) -> None:
        """A journal or file that was given directly may be the prepared list's; a queue may have its name."""
        alone = self._layout.kind in (StoreKind.JOURNAL, StoreKind.FILE)
        linear = journal.format is JournalFormat.LINEAR
        if alone and (journal.name == TPL_NAME if linear else journal.base_name == TPL_BASE_NAME):
            self._opened.prepared_list = journal
        else:
            self._opened.journals.append(journal)

    def _open(self, place: JournalPlace, effect: Effect) -> Journal | None:
        if self._layout.kind is StoreKind.VERSION_2 and is_withdrawn(self._disk, place.directory):
            return None  # recovery reports it, if the queue is in the catalogue
        try:
            journal = self._open_directory(place)
        except (NotAJournalError, OSError) as error:
            if place.directory == self._layout.path:
                raise
            is_queue = place.directory != self._layout.prepared_list  # which is created with the store
            if isinstance(error, UnmadeJournalError) and is_queue and self._layout.kind is StoreKind.VERSION_2:
                self._opened.notices.append(f"{error}: its creation was interrupted; the next start removes it")
                return None  # if it is in the catalogue, it is reported as missing
            self._opened.damage.append(_unreadable(place.directory, error, effect))
            return None
        self._opened.notices.extend(journal.notices)
        journal.notices.clear()
        return journal

    # ---- linearstore ----

    def _open_directory(self, place: JournalPlace) -> Journal:
        linear = self._layout.kind is StoreKind.LINEAR or self._layout.pools is not None
        if not linear and not linear_file_names(self._disk.names(place.directory)):
            journal = open_journal(self._disk, place.directory, name=place.name)
            if self._layout.kind is StoreKind.LEGACY and journal.format is JournalFormat.VERSION_1:
                _trust_directory(journal, place.name)
            return journal
        if self._layout.kind is StoreKind.LOOSE:
            return open_line(self._disk, place.directory, None, self._taken, follow_links=True)
        if self._layout.kind is not StoreKind.JOURNAL or place.directory != self._layout.path:
            unlinked = self._unlinked.pop(place.name, ())
            return open_line(
                self._disk, place.directory, place.name, self._taken, unlinked, self._queues,
                follow_links=False, waiting=self._waiting[place.name],
            )  # fmt: skip
        # A single journal: its directory may have been copied anywhere, so the name is taken from its files.
        journal = open_line(self._disk, place.directory, None, self._taken, follow_links=self._layout.pools is None)
        if not journal.files.files and journal.damage:
            raise NotAJournalError(f"{place.directory}: {journal.damage[0].what}; pass the whole store")
        return journal

    def _read_pool(self, root: str) -> None:
        pool = self._opened.pool = read_file_pool(self._disk, root)
        self._opened.damage.extend(pool.damage)
        self._taken = pool.taken
        if self._layout.kind is StoreKind.LINEAR:
            directories = [place.directory for place in self._layout.journals]
            if self._layout.prepared_list is not None:
                directories.append(self._layout.prepared_list)
            pool.linked.update(name for directory in directories for name in self._linked(directory))
            for name in sorted(pool.taken.keys() - pool.linked):
                queue = queue_name_of(self._disk, pool.taken[name].path)
                if queue is not None:
                    self._unlinked[queue].append(pool.taken[name])
            for file in pool.waiting:
                queue = queue_name_of(self._disk, file.path)
                if queue is not None:
                    self._waiting[queue].append(file)

    def _linked(self, directory: str) -> list[str]:
        try:
            return linear_file_names(self._disk.names(directory))
        except OSError:
            return []  # reported when the journal is opened

    def _journals_without_directory(self) -> None:
        """Files that no journal links, of queues without a directory."""
        for queue in sorted(self._unlinked):
            if queue != TPL_NAME and self._unlinked[queue]:
                self._opened.journals.append(self._lost_directory(posixpath.join("jrnl2", queue), queue))

    def _lost_directory(self, below: str, queue: str) -> Journal:
        assert self._layout.pools is not None
        directory = posixpath.join(self._layout.pools, below)
        unlinked = self._unlinked.pop(queue)
        journal = open_line(self._disk, directory, queue, self._taken, unlinked, self._queues, follow_links=False)
        self._opened.notices.extend(journal.notices)
        journal.notices.clear()
        return journal


def _unreadable(directory: str, error: NotAJournalError | OSError, effect: Effect) -> Damage:
    if isinstance(error, OSError):
        return Damage(directory, None, None, DamageKind.JOURNAL_UNREADABLE, effect, reason=error.strerror)
    return Damage(directory, None, None, DamageKind.JOURNAL_BROKEN, effect, problem=str(error))


def _trust_directory(journal: Journal, name: str) -> None:
    """In qpidd's store a directory has its queue's name, which counts; an info file with another name is damage.

    But resizing leaves the old journal in a subdirectory of the new one.
    """
    if journal.name != name and not name.startswith(journal.name + "/"):
        path = posixpath.join(journal.path, journal.base_name + INFO_SUFFIX)
        kind = DamageKind.INFO_FILE_QUEUE_NAME
        journal.damage.append(Damage(path, None, None, kind, recorded=journal.name, queue=name))
        journal.name = name


def _open_single(disk: Disk, path: str) -> Journal:
    """A single file, by its magic: of a ring or of a line."""
    opened = disk.open(path)
    try:
        linear = opened.read(0, 3) == b"QLS"
    finally:
        opened.close()
    return open_linear_file(disk, path) if linear else open_file(disk, path)


# ---- the files next to the journals ----

_LOG_FILE: Final = re.compile(r"log\.[0-9]{10}", re.ASCII)


@dataclass(slots=True)
class Surroundings:
    """The data read from these files.

    Attributes:
        topology: queues, exchanges and so on; None if there is no catalogue, or it is lost.
        rid_high_water: version 2: the first record id that the catalogue has not reserved; None if unknown.
        closing: version 2: how the store was closed.
        store_id: version 2: the store id in the catalogue; None if unknown.
        damage: the damage found.
        notices: one line each for the user, about things that are not damage.
    """

    topology: Topology | None = None
    rid_high_water: int | None = None
    closing: Closing = field(default_factory=lambda: Closing(is_clean=False))
    store_id: UUID | None = None
    damage: list[Damage] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)


def read_surroundings(disk: Disk, layout: StoreLayout, *, is_open: bool = False) -> Surroundings:
    """Read the files of `layout` next to its journals.

    Args:
        disk: reads it.
        layout: the locations of the parts.
        is_open: whether a process has the store open, which therefore cannot be closed cleanly yet.
    """
    found = Surroundings()
    if layout.environment is not None:
        _read_environment(disk, layout.environment, found)
    elif layout.kind in (StoreKind.LEGACY, StoreKind.LINEAR, StoreKind.LOOSE):
        found.notices.append(f"{layout.path}: no catalogue here; queue names are taken from the journals")
    if layout.kind is StoreKind.VERSION_2:
        _read_version_2(disk, layout, found, is_open=is_open)
    if found.topology is not None:
        found.damage.extend(found.topology.damage)
        found.damage.extend(each.damage(layout.catalogue or layout.path) for each in found.topology.duplicates)
        found.notices.extend(found.topology.notices)
    return found


def _read_environment(disk: Disk, directory: str, found: Surroundings) -> None:
    try:
        environment = read_environment(disk, directory)
        names = disk.names(directory)
    except OSError as error:
        kind, reason = DamageKind.ENVIRONMENT_UNREADABLE, error.strerror
        found.damage.append(Damage(directory, None, None, kind, reason=reason))
        return
    found.topology = environment_topology(environment, directory)
    for entry in environment.damage:
        if entry.is_healed:
            kind, effect = DamageKind.ENVIRONMENT_DAMAGED, Effect.READ_FROM_LOG
            found.damage.append(Damage(entry.file, entry.offset, None, kind, effect, problem=entry.what))
    if not any(_LOG_FILE.fullmatch(name) for name in names):
        found.topology.damage.append(Damage(directory, None, None, DamageKind.ENVIRONMENT_WITHOUT_LOG))


def _read_version_2(disk: Disk, layout: StoreLayout, found: Surroundings, *, is_open: bool) -> None:
    """Read the STORE file, and then the catalogue and its second copy, and compare them.

    The records of a store that is in use are read before the data that they are compared with.
    """
    mark = _read_store_file(disk, layout, found)
    of_catalogue = Surroundings()
    view = CatalogueView(0, {}, (CatalogueDamage("", "the catalogue is missing"),))
    if layout.catalogue is not None:
        view = _read_catalogue(layout.catalogue, of_catalogue)
    found.store_id = of_catalogue.store_id
    store_id = None if mark is None else _trusted_store_id(mark, layout, found, is_open=is_open)
    root = posixpath.dirname(layout.store_file or layout.topology_copy or layout.catalogue or layout.path)
    if mark is None and found.store_id is not None:
        found.closing, damage = read_bounds(disk, root, found.store_id)
        found.damage.extend(damage)
    if layout.catalogue is None:
        of_catalogue.damage.append(Damage(root, None, None, DamageKind.CATALOGUE_MISSING))
    least = found.closing.batch
    copy = CopyView(None, "the file is missing", is_missing=True, least=least)
    if layout.topology_copy is not None:
        copy = view_copy(disk, layout.topology_copy, store_id or found.store_id, least)
    judgement = judge(view, copy)
    if judgement.verdict is Verdict.RESTORE:
        of_catalogue = _restored(judgement, view, layout.catalogue or root)
    elif judgement.verdict is Verdict.SALVAGE and judgement.entries is not view.entries:
        _begun(judgement, layout.topology_copy or root, of_catalogue)
    elif judgement.verdict is Verdict.SALVAGE and not view.damage:
        _behind(judgement, layout.catalogue or root, of_catalogue)
    found.topology, found.rid_high_water = of_catalogue.topology, of_catalogue.rid_high_water
    found.damage[:0] = of_catalogue.damage
    if judgement.copy_problem and judgement.entries is view.entries:
        _report_copy(judgement, layout.topology_copy or posixpath.join(root, TOPOLOGY), found)


def _report_copy(judgement: Judgement, path: str, found: Surroundings) -> None:
    """Report a second copy that is unusable; one that older software did not write, or finish, is not damage."""
    if judgement.copy_is_damaged:
        kind = DamageKind.TOPOLOGY_COPY_UNUSABLE
        effect = Effect.COPY_USELESS if judgement.damage else Effect.COPY_REWRITTEN
        found.damage.append(Damage(path, None, None, kind, effect, problem=judgement.copy_problem))
        return
    text = f"{path}: the second copy of the catalogue is unusable: {judgement.copy_problem}"
    found.notices.append(text if judgement.damage else f"{text}; the next start rewrites it")


def _read_catalogue(directory: str, found: Surroundings) -> CatalogueView:
    """Read a catalogue. Raises UnusableInputError if the system refuses that."""
    try:
        key_value = open_copy(Path(directory))
    except CatalogueDamagedError as error:
        found.damage.append(_catalogue_unreadable(directory, error))
        return CatalogueView(0, {}, (CatalogueDamage("", error.problem(directory), error.file),))
    except CatalogueError as error:
        raise UnusableInputError(str(error)) from error
    try:
        view = view_catalogue(key_value)
        catalogue = Catalogue(key_value)
        found.topology = catalogue_topology(catalogue, directory)
        found.rid_high_water = _reserved(catalogue, directory, found.damage)
        meta = catalogue.meta()
        found.store_id = None if meta is None else meta.store_id
    except CatalogueError as error:
        found.damage.append(_catalogue_unreadable(directory, error))
    finally:
        key_value.close()
    return view


def _restored(judgement: Judgement, view: CatalogueView, path: str) -> Surroundings:
    """The content of the second copy; damage to the catalogue then costs nothing."""
    found = Surroundings()
    catalogue = Catalogue(MemoryMap(judgement.entries))
    found.topology = catalogue_topology(catalogue, path)
    found.rid_high_water = catalogue.rid_high_water()
    lost, gone = differences(view.entries, judgement.entries)
    missing = shown(lost) if lost and view.entries else None
    deleted = shown(gone) if gone else None
    kind = DamageKind.CATALOGUE_NOT_BELIEVED
    effect = Effect.COPY_TAKEN_UNCERTAIN if judgement.may_lack_last else Effect.COPY_TAKEN
    found.damage.extend(
        Damage(each.file or path, None, None, kind, effect, problem=str(each), missing=missing, gone=deleted)
        for each in judgement.damage
    )
    return found


def _behind(judgement: Judgement, path: str, found: Surroundings) -> None:
    """A catalogue that is sound, but went back in time, as did its second copy, or that is unusable."""
    if found.topology is not None:
        found.topology.complete = False
    kind = DamageKind.CATALOGUE_BEHIND
    found.damage.extend(Damage(path, None, None, kind, problem=str(each)) for each in judgement.damage)


def _begun(judgement: Judgement, path: str, found: Surroundings) -> None:
    """The readable beginning of a damaged second copy, if the catalogue has nothing, or less, that is readable."""
    found.topology = catalogue_topology(Catalogue(MemoryMap(judgement.entries)), path)
    found.topology.complete = False
    kind = DamageKind.CATALOGUE_COPY_DAMAGED
    found.damage.append(Damage(path, None, None, kind, problem=judgement.copy_problem))


def _catalogue_unreadable(directory: str, error: CatalogueError) -> Damage:
    """The damage of a catalogue that cannot be opened, or cannot be read to its end."""
    return Damage(error.file or directory, None, None, DamageKind.CATALOGUE_BROKEN, problem=error.problem(directory))


def _reserved(catalogue: Catalogue, directory: str, damage: list[Damage]) -> int | None:
    try:
        return catalogue.rid_high_water()
    except CatalogueError as error:
        damage.append(Damage(directory, None, None, DamageKind.CATALOGUE_RESERVATION, problem=str(error)))
        return None


def _read_store_file(disk: Disk, layout: StoreLayout, found: Surroundings) -> store_file.StoreFile | None:
    """Read the STORE file, and the records of the store's content. None if it cannot be read."""
    path = layout.store_file
    if path is None:
        root = posixpath.dirname(layout.catalogue or layout.topology_copy or layout.path)
        found.damage.append(Damage(root, None, None, DamageKind.STORE_FILE_MISSING))
        return None
    try:
        mark = store_file.decode(read_whole(disk, path, store_file.MAX_SIZE + 1))
    except (store_file.StoreFileError, OSError) as error:
        is_checksum = isinstance(error, store_file.StoreFileError) and error.fails_checksum
        kind = DamageKind.STORE_FILE_CHECKSUM if is_checksum else DamageKind.STORE_FILE_BROKEN
        what = f"cannot be read: {error.strerror or error}" if isinstance(error, OSError) else str(error)
        found.damage.append(Damage(path, None, None, kind, problem=what))
        return None
    found.closing, damage = read_closing(disk, posixpath.dirname(path), mark)
    found.damage.extend(damage)
    return mark


def _trusted_store_id(
    mark: store_file.StoreFile, layout: StoreLayout, found: Surroundings, *, is_open: bool
) -> UUID | None:
    """The id of the store in its STORE file; None if the catalogue is that of another store."""
    path = layout.store_file
    assert path is not None
    if found.store_id not in (None, mark.store_id):
        kind, recorded, own = DamageKind.STORE_FILE_OF_OTHER_STORE, str(mark.store_id), str(found.store_id)
        found.damage[:] = [Damage(path, None, None, kind, recorded=recorded, store=own)]
        found.closing = Closing(is_clean=False)
        return None
    if not mark.clean_close and not is_open:
        found.notices.append(f"{path}: the store was not closed cleanly")
    return mark.store_id


# ---- the store ----


class RecoveredQueue(NamedTuple):
    """A queue and the content that recovery keeps of its journal.

    Attributes:
        name: the queue's name.
        record: its record; None if it is in no catalogue.
        journal: its journal; None if it has none.
        recovery: the recovered index of the journal; None without a journal.
        end: where the journal ends; None if nothing was ever written.
    """

    name: str
    record: Queue | None
    journal: Journal | None
    recovery: JournalRecovery | None
    end: JournalEnd | None

    @property
    def deliverable(self) -> int:
        """Number of messages to be offered to consumers; those in doubt do not count."""
        return 0 if self.recovery is None else self.recovery.messages.count(LIVE)

    def outstanding(self) -> Iterator[OutstandingRecord]:
        """The messages that recovery keeps, in the queue's order."""
        if self.recovery is None or self.journal is None:
            return iter(())
        return self.recovery.outstanding(self.journal.format)


class RecoveredTransaction(NamedTuple):
    """A transaction that was open when the store was last in use.

    Attributes:
        xid: its id.
        outcome: how recovery resolves it.
        two_phase: distributed or local, according to the prepared list; None if unknown.
        enqueues, dequeues: its undecided records in the queues' journals; None if no journal was read.
        resolved_from: its outcome before a manual decision; None without one.
        user: the user that started it; empty if unknown.
    """

    xid: bytes
    outcome: Outcome
    two_phase: bool | None
    enqueues: int | None
    dequeues: int | None
    resolved_from: Outcome | None = None
    user: str = ""


class Decisions(NamedTuple):
    """Manual decisions about transactions that recovery itself leaves undecided.

    Attributes:
        outcomes: of single transactions, in doubt or never prepared: COMMITTING or ABORTING.
        in_doubt: of all others that are in doubt.
    """

    outcomes: Mapping[bytes, Outcome] = {}
    in_doubt: Outcome = Outcome.IN_DOUBT


_NO_DECISIONS: Final = Decisions()


class _OpenTransactions:
    """The open transactions of a whole store, and their outcomes.

    Args:
        prepared: those in the prepared list.
        decisions: manual decisions about undecided ones.
    """

    def __init__(self, prepared: list[PreparedTransaction], decisions: Decisions) -> None:
        self._found = {transaction.xid: transaction.outcome for transaction in prepared}
        self._two_phase = {transaction.xid: transaction.two_phase for transaction in prepared}
        self._users = {transaction.xid: transaction.user for transaction in prepared}
        self._order: dict[bytes, Outcome] = {}
        self._outcomes = dict(decisions.outcomes)
        for xid, outcome in self._found.items():
            decided = decisions.outcomes.get(xid, decisions.in_doubt)
            self._outcomes[xid] = self._order[xid] = decided if outcome is Outcome.IN_DOUBT else outcome
        self._enqueues: Counter[bytes] = Counter()
        self._dequeues: Counter[bytes] = Counter()

    def resolve(self, recovery: JournalRecovery) -> None:
        """Apply the outcomes to one journal's open transactions."""
        for transaction in recovery.resolve(self._outcomes):
            self._order.setdefault(transaction.xid, transaction.outcome)
            self._enqueues[transaction.xid] += transaction.enqueues
            self._dequeues[transaction.xid] += transaction.dequeues

    def all(self, *, counted: bool) -> list[RecoveredTransaction]:
        """The transactions; `counted`: whether any queue's journal was read."""
        return [
            RecoveredTransaction(
                xid,
                outcome,
                self._two_phase.get(xid),
                self._enqueues[xid] if counted else None,
                self._dequeues[xid] if counted else None,
                found if (found := self._found.get(xid, Outcome.UNPREPARED)) is not outcome else None,
                self._users.get(xid, ""),
            )
            for xid, outcome in self._order.items()
        ]


def _no_holder(_layout: StoreLayout) -> None:
    """Never find a holder."""


class OfflineStore:
    """A store, a journal or a journal file, opened for reading.

    Attributes:
        layout: the layout found at the path.
        topology: queues, exchanges and so on; None if only a journal was given, or the catalogue is lost.
        prepared_list: the transaction prepared list's journal; None if there is none.
        journals: the queues' journals.
        kept_aside: version 2: journals that no queue has, which a start of the broker has moved aside.
        rid_high_water: version 2: the first record id that the catalogue has not reserved; None if unknown.
        closing: version 2: how the store was closed.
        holder: the process that has the store open; None if none is known.
        pool: the files of a linearstore's partitions; None for the other stores.
        damage: the damage found so far.
        orphaned: the part of it about orphans, which recovery omits.
        notices: one line each for the user, about things that are not damage.
    """

    def __init__(self, disk: Disk, layout: StoreLayout, holder: int | None = None) -> None:
        self._disk, self.layout = disk, layout
        self.damage: list[Damage] = list(layout.damage)
        self.notices: list[str] = list(layout.notices)
        self.holder = holder
        if holder is not None:
            self.notices.append(in_use_notice(layout, holder))
        surroundings = read_surroundings(disk, layout, is_open=holder is not None)
        self.topology = surroundings.topology
        self.rid_high_water = surroundings.rid_high_water
        self.closing = surroundings.closing
        self.damage.extend(surroundings.damage)
        self.notices.extend(surroundings.notices)
        opened = open_journals(disk, layout)
        self.prepared_list = opened.prepared_list
        self.journals = opened.journals
        self.pool = opened.pool
        self.damage.extend(opened.damage)
        self.notices.extend(opened.notices)
        self._misses_prepared_list = self.closing.has_prepared_list and layout.prepared_list is None
        self.kept_aside = opened.orphans
        self._quarantine = opened.quarantine
        self._orphans: list[Journal] = []
        self.orphaned: list[Damage] = []

    def close(self) -> None:
        """Close all files."""
        for journal in (*self.all_journals(), *self.kept_aside, *self._quarantine):
            journal.close()

    def all_journals(self) -> list[Journal]:
        """The prepared list, if there is one, then the queues' journals."""
        return [*([self.prepared_list] if self.prepared_list is not None else []), *self.journals]

    def named_journals(self) -> list[Journal]:
        """The journals at the given path; for a single journal without the prepared list of its store."""
        if self.layout.kind in (StoreKind.JOURNAL, StoreKind.FILE) and self.journals:
            return self.journals
        return self.all_journals()

    def queue_names(self) -> set[str]:
        """The names of all queues, from the catalogue or a journal; and that of the prepared list."""
        names = {journal.name for journal in self.all_journals()}
        if self.topology is not None:
            names.update(queue.record.name for queue in self.topology.queues.values())
        return names

    @property
    def closed_cleanly(self) -> bool:
        """Version 2: whether the STORE file states a clean close."""
        return self.closing.is_clean

    @property
    def size(self) -> int:
        """Bytes in the used files of the journals."""
        return sum(journal.stream.size for journal in self.all_journals())

    def queues(self) -> list[tuple[str, Queue | None, Journal | None]]:
        """Each queue's name, record and journal, as recovery would match them, without walking the journals."""
        return list(self._match())

    def unfinished(self) -> dict[str, Unfinished]:
        """The journals, by path, left from interrupted work on the store: their content is not needed."""
        if self.layout.kind is not StoreKind.VERSION_2:
            return {}
        topology = self.topology
        if topology is None or not topology.complete or topology.damage:
            return unfinished_journals(self.journals, None)
        known = {str(queue.journal_id) for queue in topology.queues.values()}
        used = {each.path for each in self.journals if self._journal_key(each) in known}
        return unfinished_journals(self.journals, used)

    # ---- recovery ----

    def recover(self, decisions: Decisions = _NO_DECISIONS) -> RecoveredStore:
        """Walk every journal, resolve open transactions, and match queues and journals."""
        prepared_list, prepared = self._recover_prepared_list()
        open_now = _OpenTransactions(prepared, decisions)
        queues = []
        for name, record, journal in self._match():
            if journal is None:
                queues.append(RecoveredQueue(name, record, None, None, None))
                continue
            found = self._recover_journal(journal, open_now)
            queues.append(RecoveredQueue(name, record, journal, found.recovery, found.end))
        if self.topology is not None and self.topology.complete and not self.topology.damage:
            catalogue = self.layout.catalogue or self.layout.path
            self.damage.extend(self.closing.lost_queues(catalogue, self.topology.queues.keys()))
        self.notices.extend(self._unfinished_journals())
        orphans = [self._recover_orphan(each, open_now) for each in (*self._orphans, *self.kept_aside)]
        for journal in self._quarantine:
            self.notices.append(self._quarantined(journal))
        self.damage.extend(self._reserved_too_few(prepared_list, queues, orphans))
        transactions = open_now.all(counted=bool(self.journals))
        commits = sum(queue.recovery.commits for queue in queues if queue.recovery is not None)
        whole = self.layout.kind in (StoreKind.LEGACY, StoreKind.LINEAR, StoreKind.VERSION_2, StoreKind.LOOSE)
        if self._has_no_prepared_list() and whole and (commits or self._should_have_prepared_list(transactions)):
            self.damage.append(Damage(self.layout.path, None, None, DamageKind.PREPARED_LIST_NEEDED))
        elif commits and self._is_blank_legacy_list(prepared_list):
            path = self.layout.path if self.prepared_list is None else self.prepared_list.path
            self.damage.append(Damage(path, None, None, DamageKind.PREPARED_LIST_BLANK))
        elif self._misses_prepared_list:
            self.damage.append(Damage(self.layout.path, None, None, DamageKind.PREPARED_LIST_GONE))
        elif self.prepared_list is None and transactions:
            self.notices.append(
                f"{self.layout.path}: {plural(len(transactions), 'open transaction')} and no transaction prepared list "
                "was found; they are treated as never prepared"
            )
        return RecoveredStore(self, queues, transactions, prepared_list, orphans)

    def _reserved_too_few(
        self, prepared_list: RecoveredQueue | None, queues: list[RecoveredQueue], orphans: list[RecoveredQueue]
    ) -> Iterator[Damage]:
        """Version 2: record ids come from blocks reserved in the catalogue, so none can be beyond them."""
        reserved = self.rid_high_water
        if reserved is None or (self.topology is not None and self.topology.damage):
            return  # a damaged catalogue may have lost the reservation too
        everything = (*queues, *orphans) if prepared_list is None else (prepared_list, *queues, *orphans)
        highest = max((each.recovery.highest_rid for each in everything if each.recovery is not None), default=0)
        if highest and highest >= reserved:  # 0 is not a valid id: a new store has neither
            path, kind = self.layout.catalogue or "", DamageKind.RIDS_BEYOND_RESERVED
            yield Damage(path, None, highest, kind, highest=highest, reserved=reserved)

    def _has_no_prepared_list(self) -> bool:
        """Whether the list is missing. A linearstore's has at least one file, since the last is never given back."""
        journal = self.prepared_list
        if journal is None:
            return True
        return self.layout.kind is StoreKind.LINEAR and not journal.files.files and not journal.damage

    def _is_blank_legacy_list(self, prepared_list: RecoveredQueue | None) -> bool:
        """Whether a legacystore's list is all zeros. qpidd writes to it when it first commits a transaction.

        One that qpid-store-resize rebuilt, leaving the old one in `bak`, is blank if it was empty.
        """
        if self.layout.kind is not StoreKind.LEGACY or prepared_list is None or prepared_list.journal is None:
            return False
        if self._disk.is_directory(posixpath.join(prepared_list.journal.path, PUSHED_DOWN)):
            return False
        return prepared_list.end is None and not prepared_list.journal.damage

    def _should_have_prepared_list(self, transactions: list[RecoveredTransaction]) -> bool:
        """Whether there should be a list: version 2 creates it with the store, qpidd when one is first prepared.

        Journals without a store may have had one: their open transactions are not known to be unprepared.
        """
        return self.layout.kind in (StoreKind.VERSION_2, StoreKind.LOOSE) and bool(transactions)

    def _recover_journal(self, journal: Journal, open_now: _OpenTransactions | None) -> RecoveredJournal:
        """Walk a journal and, except for the prepared list itself, resolve its open transactions."""
        recovered = self._read(journal)
        self.damage.extend(recovered.damage)
        self.notices.extend(recovered.end_notices)
        if open_now is not None:
            open_now.resolve(recovered.recovery)
        damage, notices = unlinked_head(journal, recovered.recovery)
        self.damage.extend(damage)
        self.notices.extend(notices)
        return recovered

    def _read(self, journal: Journal) -> RecoveredJournal:
        """Walk a journal without reporting its damage yet."""
        recovered = recover_journal(journal, self.closing, if_readable=True)
        self.notices.extend(recovered.notices)
        return recovered

    def _recover_orphan(self, journal: Journal, open_now: _OpenTransactions) -> RecoveredQueue:
        """An orphan with messages is a loss; an empty one is not, and neither is a journal that was replaced."""
        recovered = self._recover_journal(journal, open_now)
        recovery = recovered.recovery
        count, queue = len(recovery.messages), self._replaced_by(journal)
        if queue is not None:
            text = f'unused second journal of queue "{queue}", with {plural(count, "message")}'
            self.notices.append(f"{journal.path}: {text}; remove it when it is no longer needed")
            recovery = JournalRecovery()
        elif count:
            own = Effect.ORPHAN_KEPT_ASIDE if journal in self.kept_aside else Effect.ORPHAN_NOT_KNOWN
            effect = own if self.layout.kind is StoreKind.VERSION_2 else Effect.ORPHAN_LEFT_OUT
            kind, name = DamageKind.ORPHANED_JOURNAL, journal.name
            damage = Damage(journal.path, None, None, kind, effect, queue=name, messages=count)
            self.orphaned.append(damage)
            self.damage.append(damage)
        elif self.layout.kind is StoreKind.VERSION_2 and recovered.flush and journal not in self.kept_aside:
            # Only a queue in the catalogue gets records, and a deleted one has its mark.
            self.damage.append(Damage(journal.path, None, None, DamageKind.EMPTY_QUEUE_GONE, queue=journal.name))
        else:
            what = f'journal of queue "{journal.name}", which is not in the catalogue'
            self.notices.append(f"{journal.path}: {what}; it is empty and omitted")
        return RecoveredQueue(journal.name, None, journal, recovery, recovered.end)

    def _replaced_by(self, journal: Journal) -> str | None:
        """The queue whose journal this was, or was to be, if it has another one; None if there is none."""
        if self.layout.kind is not StoreKind.VERSION_2 or self.topology is None or journal.info is None:
            return None
        queue, incarnation = self.topology.queues.get(journal.info.queue_id), journal.info.incarnation
        if queue is None:
            return None
        own = [each.info for each in self.journals if posixpath.basename(each.path) == str(queue.journal_id)]
        is_other = any(info is not None and info.incarnation != incarnation for info in own)
        return queue.record.name if is_other else None

    def _unfinished_journals(self) -> list[str]:
        """Describe the remains of interrupted work on journals, those in the same state and directory together.

        One replaced because of damage is reported as such.
        """
        found: dict[tuple[str, Unfinished], list[str]] = {}
        for path, state in self.unfinished().items():
            if state is Unfinished.REPLACED_JOURNAL:
                (journal,) = [each for each in self.journals if each.path == path]
                if self._read(journal).damage:
                    state = Unfinished.REPAIRED_JOURNAL
            found.setdefault((posixpath.dirname(path), state), []).append(posixpath.basename(path))
        return [
            state.notice(posixpath.join(directory, names[0]))
            if len(names) == 1
            else f"{directory}: {plural(len(names), 'journal')} ({_listed(names)}), each of them {state.value}"
            for (directory, state), names in found.items()
        ]

    def _quarantined(self, journal: Journal) -> str:
        """A reminder of a quarantined journal: its loss was reported when it was rebuilt."""
        recovery = JournalRecovery()
        self.walk(journal, recovery)
        return (
            f'{journal.path}: quarantined damaged journal of queue "{journal.name}"; '
            f"{plural(len(recovery.messages), 'message')} can be read from it, as from the journal built from it: "
            f"run qstore-recover {journal.path} DEST to see what was lost; remove it when it is no longer needed"
        )

    def walk(self, journal: Journal, sink: RecordSink, *, every_record: bool = False) -> JournalEnd | None:
        """As `walk_readable`; the journal's notices are added to the store's."""
        end = walk_readable(journal, sink, every_record=every_record)
        self.notices.extend(journal.notices)
        journal.notices.clear()
        return end

    def _recover_prepared_list(self) -> tuple[RecoveredQueue | None, list[PreparedTransaction]]:
        journal = self.prepared_list
        if journal is None:
            return None, []
        recovered = self._recover_journal(journal, None)
        queue = RecoveredQueue(journal.name, None, journal, recovered.recovery, recovered.end)
        return queue, recovered.prepared()

    # ---- queues and their journals ----

    def _match(self) -> Iterator[tuple[str, Queue | None, Journal | None]]:
        """Each queue with its journal; unmatched ones on either side are reported."""
        journals: dict[str, Journal] = {}
        unfinished = self.unfinished()
        for journal in self.journals:
            if journal.path in unfinished:
                continue
            first = journals.setdefault(self._journal_key(journal), journal)
            if journal.path.startswith(first.path + "/"):
                self.notices.append(f"{journal.path}: an older copy of the journal above it, left by resizing")
            elif first is not journal:
                self.damage.append(Damage(journal.path, None, None, DamageKind.SECOND_JOURNAL, queue=journal.name))
        topology = self.topology
        if topology is not None:
            for queue in topology.queues.values():
                key = split_name(queue.record.name)[1] if queue.journal_id is None else str(queue.journal_id)
                own = journals.pop(key, None)
                path = posixpath.join(posixpath.dirname(self.layout.catalogue or ""), "jrnl", key)
                if own is None and self.layout.catalogue is not None and is_withdrawn(self._disk, path):
                    self.notices.append(Unfinished.WITHDRAWN_JOURNAL.notice(path))
                elif own is not None and own.info is not None and (own.info.is_unnamed or own.is_named_apart):
                    own.name = queue.record.name
                    self.notices.append(Unfinished.UNNAMED_JOURNAL.notice(path))
                elif own is None and not self._is_out_of_reach(key):
                    kind, name = DamageKind.QUEUE_WITHOUT_JOURNAL, queue.record.name
                    self.damage.append(Damage(self.layout.path, None, None, kind, queue=name))
                yield queue.record.name, queue.record, own
        for journal in journals.values():
            if topology is None or not topology.complete or topology.damage:
                yield journal.name, self.record_in_info(journal), journal
            else:
                self._orphans.append(journal)

    def _is_out_of_reach(self, key: str) -> bool:
        """Whether a queue's journal may be in a directory that cannot be listed, which is already reported."""
        return any(posixpath.basename(damage.file) in (key, "jrnl") for damage in self.layout.damage)

    def _journal_key(self, journal: Journal) -> str:
        if self.layout.kind is StoreKind.VERSION_2 and self.topology is not None:
            return posixpath.basename(journal.path)
        return journal.name

    def record_in_info(self, journal: Journal) -> Queue | None:
        """The queue's record in the info file of a version-2 journal; None if there is none."""
        if journal.info is None or not journal.info.queue_record:
            return None
        try:
            return decode_queue(journal.info.queue_record)
        except BrokerRecordError as error:
            kind = DamageKind.INFO_FILE_QUEUE_RECORD
            self.damage.append(Damage(journal.path, None, None, kind, problem=error.what))
            return None


class RecoveredStore(NamedTuple):
    """The result of recovering a store.

    Attributes:
        store: the store; its `damage` and `notices` are complete now.
        queues: the queues, by id if a catalogue has them.
        transactions: the transactions that were open.
        prepared_list: the transaction prepared list; None if there is none.
        orphans: journals that should be in a catalogue and are not: recovery omits them. Those left from interrupted
            creations and deletions of queues are not among them.
    """

    store: OfflineStore
    queues: list[RecoveredQueue]
    transactions: list[RecoveredTransaction]
    prepared_list: RecoveredQueue | None
    orphans: list[RecoveredQueue]


def open_store(disk: Disk, path: str, find_holder: Callable[[StoreLayout], int | None] = _no_holder) -> OfflineStore:
    """Open a store, journal or file at `path`.

    Args:
        disk: reads it.
        path: as given by the user.
        find_holder: finds the process that has a store open, as `in_use.holder_of_store` does.

    Raises:
        UnusableInputError: nothing that can be read as a store.
        OSError: it cannot be read.
    """
    layout = find_layout(disk, path)
    try:
        return OfflineStore(disk, layout, find_holder(layout))
    except NotAJournalError as error:
        raise UnusableInputError(str(error)) from None


_LISTED: Final = 20  # names in one notice


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
    return f"{', '.join(names[:_LISTED])}{more}"
