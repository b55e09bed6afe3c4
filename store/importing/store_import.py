"""Imports topology and messages into a store that is not running: all of it becomes effective in one batch.

As when journals are resized (`repair/resize`), nothing is changed in place: a queue that gets messages gets a new
journal, with its own content and then the new messages.

    step                                                            the next start, after a crash in or after this step
    --------------------------------------------------------------  ----------------------------------------------------
    1. read the source into the spool, plan                         ignores `resized.new`; so does it in step 2
    2. build all new journals in `resized.new`, read them back,
       mark them as "deleted"
    3. move them into jrnl under new ids                            removes those that are marked
    4. note which messages were delivered before                    likewise: these messages do not exist
    5. branches in doubt: switch the prepared list                  likewise, and has these branches, without messages
    6. the catalogue's batch: queues, exchanges, bindings, other    has everything; it removes the marks, and moves the
       objects, the journals, the ledger's entry                    old journals aside
    7. remove the marks, the old journals, the old list             has everything

A store that did not exist before is created empty in step 1, and opened and closed cleanly after step 7: so its
messages keep their delivery state. `ImportSwitch` does steps 2 to 7.
"""

from __future__ import annotations

import contextlib
import posixpath
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import TracebackType
from typing import Final

from qstore.formats.broker_records.topology import (
    decode_exchange,
    decode_queue,
    encode_binding,
    encode_exchange,
    encode_general,
    encode_queue,
    names_a_host,
)
from qstore.formats.catalogue import BindingEntry, ExchangeEntry, GeneralEntry, Kind, QueueEntry
from qstore.formats.checksum import extend_crc32c
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.close_record import ClosedJournal
from qstore.formats.rhm.jinf import JournalInfo
from qstore.formats.wording import plural, printable
from qstore.store.builders.journal_build import JournalBuild, build_journal
from qstore.store.builders.journal_copy import JournalCopy
from qstore.store.catalogue.catalogue import Catalogue
from qstore.store.catalogue.store_directory import LOCK, Found, StoreDirectory, remove_tree
from qstore.store.environment import Environment
from qstore.store.errors import StoreDamagedError, StoreError, advice, disk_advice
from qstore.store.importing.intake import Intake, QueueIntake
from qstore.store.importing.plan import (
    ImportPlan,
    PastImport,
    PlannedQueue,
    find_import,
    general_objects,
    geometry_for,
    ledger_entry,
    make_plan,
)
from qstore.store.journal.recovery import LOCKED, PENDING
from qstore.store.journal.write.storage import mark_deleted, remove_journal, unmark_deleted
from qstore.store.key_value import CatalogueError
from qstore.store.live.delivered import add_delivered
from qstore.store.live.message_store import MessageStore
from qstore.store.live.queue_journal import TPL_NAME, journal_info
from qstore.store.log_lines import LogLine
from qstore.store.parameters import OnDamage, StoreParameters
from qstore.store.recovery.journal_content import JournalContent, content_of
from qstore.store.recovery.journal_recovery import RecoveredJournal
from qstore.store.recovery.prepared import DISTRIBUTED
from qstore.store.repair.resize import read_journal
from qstore.store.repair.stopped_store import BUILDING, StoppedStore, reported_errors
from qstore.store.unfinished import KEPT, NEW_LIST, Unfinished, unfinished_list


def new_entries(
    catalogue: Catalogue,
    known: Mapping[str, QueueEntry],
    created: Iterable[QueueEntry],
    plan: ImportPlan,
    past: PastImport,
) -> list[ExchangeEntry | BindingEntry | GeneralEntry]:
    """The entries, with ids that are taken.

    Args:
        catalogue: the store's.
        known: its queues by name.
        created: the import's new queues.
        plan: the import.
        past: its entry in the ledger.

    Raises:
        CatalogueError: the catalogue cannot be read.
    """
    entries: list[ExchangeEntry | BindingEntry | GeneralEntry] = []
    exchanges: dict[str, int] = {}
    for entry in catalogue.exchanges():
        exchanges.setdefault(decode_exchange(entry.record).name, entry.exchange_id)
    for exchange in plan.exchanges:
        number = exchanges[exchange.name] = catalogue.take_id(Kind.EXCHANGE)
        entries.append(ExchangeEntry(number, encode_exchange(exchange)))
    queues = {name: entry.queue_id for name, entry in known.items()}
    queues.update((decode_queue(entry.record).name, entry.queue_id) for entry in created)
    for name, binding in plan.bindings:
        queue_id = queues[binding.queue_name]
        record = encode_binding(replace(binding, queue_id=queue_id))
        entries.append(BindingEntry(exchanges[name], queue_id, catalogue.take_id(Kind.BINDING), record))
    entries.extend(
        GeneralEntry(catalogue.take_id(Kind.GENERAL), encode_general(general))
        for general in (*plan.general, ledger_entry(past))
    )
    return entries


# ---- steps 2 to 7: building the journals, and making the import effective ----

#: Called with the name of each step, and the bytes of messages that it copies.
Stage = Callable[[str, int], None]


class _Built(NamedTuple):
    """A new journal.

    Attributes:
        name: its queue's, or "TplStore".
        path: where it was built.
        entry: its queue's entry in the catalogue, with this journal; None for the prepared list.
        old: path of the journal that it replaces; None for a new queue's.
        closed: its entry for the record of the store's clean close.
    """

    name: str
    path: str
    entry: QueueEntry | None
    old: str | None
    closed: ClosedJournal


class _Poured(NamedTuple):
    """The requirements of a new journal.

    Attributes:
        content: its content, counted.
        messages, transactions: their numbers.
    """

    content: JournalContent
    messages: int
    transactions: int


class ImportSwitch:
    """One import that is applied.

    Args:
        environment: disk, clock and so on.
        store: the store.
        parameters: the size of new journals.
        intake: the messages.
        plan: the plan.
        stage: receives progress.
    """

    def __init__(
        self,
        environment: Environment,
        store: StoppedStore,
        parameters: StoreParameters,
        intake: Intake,
        plan: ImportPlan,
        stage: Stage,
    ) -> None:
        self._environment, self._disk = environment, environment.disk
        self._store, self._directory, self._parameters = store, store.directory, parameters
        self._intake, self._plan, self._stage = intake, plan, stage
        highest = [queue.intake.rids[-1] for queue in plan.queues.values() if queue.intake.rids]
        kept = max(highest, default=0) if plan.keeps_rids else 0
        self._next_rid = max(store.catalogue.rid_high_water(), kept + 1)
        self._delivered: dict[int, array[int]] = {}

    def take(self) -> int:
        """A new record id; it is reserved before any record with it is effective."""
        self._next_rid += 1
        return self._next_rid - 1

    def run(self, past: PastImport) -> Mapping[int, array[int]]:
        """Import everything.

        Args:
            past: for the ledger.

        Returns:
            Queue id -> imported messages that may have been delivered before.

        Raises:
            StoreError, CatalogueError, OSError: it failed before anything was changed.
        """
        plan = self._plan
        named = (*plan.exchanges, *plan.general, *(queue.record for queue in plan.queues.values()))
        if any(map(names_a_host, named)):
            self._store.directory.admit_hosts()
        self._stage("building journals", self._intake.size)
        built: list[_Built] = []
        try:
            for name, queue in plan.queues.items():
                built.append(self._queue(name, queue))
            lists = [self._prepared_list()] if plan.in_doubt else []
            self._place([*built, *lists])
        except BaseException:
            self._discard_built(built)
            raise
        try:
            kept = self._effect(built, lists, past)
        except (OSError, CatalogueError) as error:
            raise self._half_done(error) from error
        self._clean_up(built, lists, kept)
        return self._delivered

    # ---- building ----

    def _queue(self, name: str, queue: PlannedQueue) -> _Built:
        """Build a queue's journal."""
        catalogue, directory, entry = self._store.catalogue, self._directory, queue.entry
        if entry is None:
            number = catalogue.take_id(Kind.QUEUE)
            while directory.has_journal(number):
                number = catalogue.take_id(Kind.QUEUE)
            moved = QueueEntry(number, number, 1, encode_queue(queue.record))
            info = journal_info(
                self._environment,
                name,
                geometry_for(queue.record, self._parameters),
                self._parameters.flush_alignment,
                queue_id=number,
            )
            source = None
        else:
            moved = catalogue.moved_journal(entry, directory.has_journal)
            source = read_journal(self._disk, directory.journal(entry.journal_id), name, self._store.closing)
            self._check_branches(name, queue.intake, source)
            info = self._info(source)
        info = info._replace(incarnation=moved.incarnation, queue_name=name, queue_record=moved.record)
        path = posixpath.join(directory.part(BUILDING), str(moved.journal_id))
        self._delivered[moved.queue_id] = delivered = array("Q")
        poured = _poured(source, queue.intake.content, queue.intake.messages, len(queue.intake.xids))
        flush = self._build(path, info, source, poured, lambda build: self._pour(build, queue.intake, delivered))
        closed = ClosedJournal(moved.queue_id, moved.journal_id, moved.incarnation, flush, poured.messages)
        return _Built(name, path, moved, None if source is None else source.journal.path, closed)

    def _prepared_list(self) -> _Built:
        """Build the prepared list, with the branches in doubt."""
        old = self._directory.prepared_list
        source = read_journal(self._disk, old, TPL_NAME, self._store.closing)
        known = {transaction.xid for transaction in source.recovery.transactions}
        xids = [xid for xid in self._plan.in_doubt if xid not in known]
        content = JournalContent()
        for xid in xids:
            content.transaction(len(xid))
            content.message(len(DISTRIBUTED), len(xid))
        info = self._info(source)
        info = info._replace(incarnation=info.incarnation + 1)
        poured = _poured(source, content, len(xids), len(xids), is_prepared_list=True)

        def fill(build: JournalBuild) -> None:
            for xid in xids:
                build.message(self.take(), (DISTRIBUTED,), xid)

        path = posixpath.join(self._directory.part(BUILDING), posixpath.basename(old))
        flush = self._build(path, info, source, poured, fill)
        return _Built(TPL_NAME, path, None, old, ClosedJournal(0, 0, info.incarnation, flush, poured.messages))

    def _info(self, source: RecoveredJournal) -> JournalInfo:
        assert source.journal.info is not None  # it is damage if there is none
        return self._store.info_of(source.journal.info, source.journal.files.geometry)

    def _check_branches(self, name: str, intake: QueueIntake, source: RecoveredJournal) -> None:
        for transaction in source.recovery.transactions:
            if transaction.xid in intake.xids:
                text = f"transaction {transaction.xid.hex()} is in the store already: resolve it first"
                raise StoreError(f'queue "{printable(name)}": {text}; nothing was changed')

    def _build(
        self,
        path: str,
        info: JournalInfo,
        source: RecoveredJournal | None,
        poured: _Poured,
        fill: Callable[[JournalBuild], None],
    ) -> int:
        """Build a journal, and read it back. Returns the number of its last flush."""
        copy = None
        if source is not None:
            is_list = info.queue_name == TPL_NAME and not info.queue_id
            copy = JournalCopy(source.journal, source.recovery, lambda *_: None, is_prepared_list=is_list)

        def fill_all(build: JournalBuild) -> None:
            if copy is not None:
                copy.into(build)
            fill(build)

        build_journal(self._environment, path, info, poured.content, fill_all, seal=True)
        if source is not None:
            source.journal.close()
        walked = read_journal(self._disk, path, info.queue_name, self._store.closing)
        walked.journal.close()
        found = walked.messages, len(walked.recovery.transactions)
        if (copy is not None and copy.left_out) or found != (poured.messages, poured.transactions):
            text = f"of {plural(poured.messages, 'message')} {found[0]:,} were found in the new journal"
            raise StoreDamagedError(f'queue "{printable(info.queue_name)}": {text}; nothing was changed')
        return walked.flush

    def _pour(self, build: JournalBuild, intake: QueueIntake, delivered: array[int]) -> None:
        """Write the imported messages of a queue."""
        del delivered[:]
        removals = []
        for message in self._intake.spooled(intake):
            rid, data = message.rid if self._plan.keeps_rids else self.take(), message.data
            if message.state == PENDING:
                build.message(rid, (data,), message.xid)
            else:
                build.enqueue(rid, data, extend_crc32c(0, data))
            if message.state == LOCKED:
                removals.append((message.xid, rid))
            if message.is_redelivered:
                delivered.append(rid)
        for xid, rid in removals:
            build.removal(xid, self.take(), rid)

    # ---- the switch ----

    def _place(self, built: Sequence[_Built]) -> None:
        """Move all new journals to their final directories, marked."""
        directory, disk = self._directory, self._disk
        for each in built:
            if each.entry is not None:
                mark_deleted(disk, each.path)
        for each in built:
            disk.rename(each.path, self._place_of(each))
        for path in (directory.part("jrnl"), directory.root, directory.part(BUILDING)):
            disk.sync_directory(path)

    def _place_of(self, built: _Built) -> str:
        entry = built.entry
        return self._directory.part(NEW_LIST) if entry is None else self._directory.journal(entry.journal_id)

    def _discard_built(self, built: Sequence[_Built]) -> None:
        """Remove new journals, as far as the disk permits: the next start or import repeats it."""
        directory, disk = self._directory, self._disk
        for each in built:
            with contextlib.suppress(OSError):
                if disk.is_directory(self._place_of(each)):
                    remove_journal(disk, self._place_of(each))
        with contextlib.suppress(OSError):
            if unfinished_list(disk, directory.root) is Unfinished.UNUSED_LIST:
                remove_tree(disk, directory.part(NEW_LIST))

    def _effect(self, built: Sequence[_Built], lists: Sequence[_Built], past: PastImport) -> list[str]:
        """Do steps 4 to 6. Returns the paths of old prepared lists. Raises OSError, CatalogueError."""
        store, directory = self._store, self._directory
        if store.mark.clean_close and any(self._delivered.values()):
            add_delivered(self._disk, directory, store.mark.store_id, self._delivered)
        kept = []
        for _ in lists:
            store.catalogue.reserve_rids(self._next_rid - 1)  # the list has some of them before the batch does that
            kept.append(directory.set_aside(directory.prepared_list, KEPT))
            self._disk.rename(directory.part(NEW_LIST), directory.prepared_list)
            self._disk.sync_directory(directory.root)
        replaced = [each.entry for each in built if each.old is not None and each.entry is not None]
        new = [each.entry for each in built if each.old is None and each.entry is not None]
        more = new_entries(store.catalogue, store.entries, new, self._plan, past)
        store.catalogue.import_all(replaced, [*new, *more], self._next_rid - 1)
        return kept

    def _half_done(self, error: OSError | CatalogueError) -> StoreError:
        """The error of an import that failed when it was about to become effective."""
        text, hint, where = str(error), f"; {disk_advice()}", self._directory.path
        if isinstance(error, OSError):
            text, hint, where = error.strerror or text, advice(error), error.filename or where
        rest = "repeat the import: its ledger records whether it took place"
        return StoreError(f"{where}: {text}{hint}; {rest}")

    def _clean_up(self, built: Sequence[_Built], lists: Sequence[_Built], kept: Sequence[str]) -> None:
        """Remove the marks and the files no longer needed; the next start does the same. Raises OSError."""
        directory, disk = self._directory, self._disk
        for each in built:
            unmark_deleted(disk, self._place_of(each))
        for each in built:
            if each.old is not None:
                mark_deleted(disk, each.old)
                remove_journal(disk, each.old)
        disk.sync_directory(directory.part("jrnl"))
        for path in kept:
            remove_tree(disk, path)
        if kept and not disk.names(directory.part(KEPT)):
            disk.remove_directory(directory.part(KEPT))
        self._store.record([each.closed for each in (*built, *lists)])


def _poured(
    source: RecoveredJournal | None,
    more: JournalContent,
    messages: int,
    transactions: int,
    *,
    is_prepared_list: bool = False,
) -> _Poured:
    """The content of a journal, if there is one, with some more."""
    if source is None:
        return _Poured(more, messages, transactions)
    content = content_of(source.journal, source.recovery, is_prepared_list=is_prepared_list)
    content.add(more)
    return _Poured(content, source.messages + messages, len(source.recovery.transactions) + transactions)


# ---- the import ----

_SPOOL: Final = "spool"
_VERSION_1: Final = "convert it first, with qpidd --load-module store or with qstore-recover"


class StoreImport(AbstractContextManager["StoreImport"]):
    """An import into a locked store of version 2, or into one that is created.

    Args:
        environment: disk, clock and so on.
        path: the store directory.
        software_version: of this program.
        dry_run: only `plan` will be called: nothing is written, and `environment` opens the catalogue read-only.
        log: receives warnings.

    Attributes:
        intake: gathers the data to import.

    Raises:
        StoreLockedError, StoreDamagedError, StoreError: as `StoppedStore`; or the store cannot be created.
    """

    def __init__(
        self,
        environment: Environment,
        path: str,
        software_version: str,
        *,
        dry_run: bool = False,
        log: Callable[[LogLine], None] = lambda _: None,
    ) -> None:
        self._environment, self._disk, self._log = environment, environment.disk, log
        self._directory, self._version = StoreDirectory(environment, path, software_version), software_version
        self._parameters = StoreParameters(on_damage=OnDamage.REFUSE)
        self._opened = contextlib.ExitStack()
        self._store: StoppedStore | None = None
        self._is_created = self._had_directory = self._is_applied = False
        try:
            with reported_errors(path):
                self._open(dry_run=dry_run)
        except BaseException:
            self._opened.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()
        if self._is_created and not self._is_applied:
            with contextlib.suppress(OSError, StoreError):  # an empty store does not harm the next run
                self._remove()

    def _finds_nothing(self) -> bool:
        """Whether there is no store, and one can be created. Raises StoreError, OSError."""
        path, disk = self._directory.path, self._disk
        if disk.is_directory(path):
            return self._directory.look() is Found.NOTHING
        parent = posixpath.dirname(path.rstrip("/")) or "."
        if not disk.is_directory(parent):
            raise StoreError(f"{parent}: no such directory; create it first")
        return True

    def _open(self, *, dry_run: bool) -> None:
        if self._finds_nothing():
            if dry_run:
                self.intake = Intake(None)
                return
            self._create()
        path, version = self._directory.path, self._version
        self._store = store = StoppedStore(
            self._environment, path, version, version_1=_VERSION_1, read_only=dry_run, log=self._log
        )
        self._opened.push(store)
        spool = None
        if not dry_run:
            building = store.directory.part(BUILDING)
            self._disk.make_directory(building)
            self._opened.callback(self._discard, building)
            spool = self._disk.create(posixpath.join(building, _SPOOL), 0)
            self._opened.callback(spool.close)
        self.intake = Intake(spool)

    def _create(self) -> None:
        """Create an empty store. Raises StoreError, OSError."""
        directory = self._directory
        self._had_directory = self._disk.is_directory(directory.path)
        lock = directory.lock()
        try:
            directory.finish_interrupted()
            if directory.look() is Found.NOTHING:
                directory.create(self._parameters.tpl_geometry, self._parameters.flush_alignment)
                self._is_created = True
        finally:
            lock.release()

    def _remove(self) -> None:
        """Remove the empty store that was created for an import that did not take place. Raises StoreError, OSError."""
        directory, disk = self._directory, self._disk
        lock = directory.lock()
        try:
            directory.discard()
        finally:
            lock.release()
        disk.remove(directory.below(LOCK))
        if not self._had_directory:
            disk.remove_directory(directory.path)

    def _discard(self, building: str) -> None:
        with contextlib.suppress(OSError):  # the next run repeats it
            if self._disk.is_directory(building):
                remove_tree(self._disk, building)

    # ---- planning ----

    def past(self, identity: str) -> PastImport | None:
        """The import with that id, if it took place. Raises StoreError."""
        if self._store is None:
            return None
        with self._store.errors():
            return find_import(general_objects(self._store.catalogue), identity)

    def plan(self) -> ImportPlan:
        """Plan the import of the gathered data. Raises StoreError: it cannot be imported."""
        if self._store is None:
            return make_plan(self.intake, None, {})
        with self._store.errors():
            return make_plan(self.intake, self._store.catalogue, self._store.entries)

    # ---- applying ----

    def apply(self, plan: ImportPlan, identity: str, stage: Stage = lambda *_: None) -> None:
        """Import everything: durable on return.

        Args:
            plan: the plan.
            identity: for the ledger; no import in the store has the same.
            stage: receives progress.

        Raises:
            StoreError: it failed; the text states whether anything was changed.
        """
        store = self._store
        assert store is not None
        past = PastImport(identity, self._environment.clock() // 1_000_000_000, plan.messages)
        with store.errors():
            is_new = store.catalogue.rid_high_water() == 0  # it was never opened
            switch = ImportSwitch(self._environment, store, self._parameters, self.intake, plan, stage)
            delivered = switch.run(past)
            self._is_applied = True
            self._opened.close()
            if is_new:
                path, parameters = self._directory.path, self._parameters
                opened = MessageStore.open(self._environment, path, parameters, self._version, log=lambda _: None)
                opened.end_recovery()
                opened.close(delivered)
