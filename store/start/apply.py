"""Starts a store: the plan (`plan`) is applied, journal by journal, and each journal is resumed.

The order is qpidd's (formats/broker_records/README.md, 4.6): the prepared list first, then each queue's journal,
resolved through it. Transactions that are open but not in doubt are completed: one that was decided, or local and
prepared, is committed or aborted in each journal that still has it open, and forgotten in the prepared list when that
is synced; one that was never prepared is aborted.

A damaged journal is rebuilt from its readable content, and the damaged one is moved to `quarantine`; or the store is
refused (option on-damage), before anything is changed.

    closed = read_closing(environment.disk, directory.root, directory.read_mark())
    plan = plan_start(environment.disk, directory, list(catalogue.queues()), *closed)
    started = apply_start(environment, directory, catalogue, parameters, plan, log=log)
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Callable, Iterable

import qstore.store.log_lines as log_lines
from qstore.formats.broker_records.topology import Queue
from qstore.formats.catalogue import QueueEntry
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.jinf import DEFAULT_BASE_NAME, TPL_BASE_NAME, JournalInfo
from qstore.formats.wording import plural, printable
from qstore.store.catalogue.catalogue import Catalogue
from qstore.store.catalogue.store_directory import StoreDirectory
from qstore.store.damage import Damage
from qstore.store.environment import Environment
from qstore.store.errors import StoreDamagedError, StoreError
from qstore.store.journal.directory import DELETED
from qstore.store.journal.recovery import Outcome
from qstore.store.journal.write.growth import settle_ring
from qstore.store.journal.write.storage import (
    create_journal,
    mark_deleted,
    name_journals,
    remove_journal,
    unmark_deleted,
    withdraw_journal,
)
from qstore.store.journal.write.version_2_writer import NotResumableError, state_of
from qstore.store.key_value import CatalogueError
from qstore.store.live.growth import MAX_REMOVED
from qstore.store.live.queue_journal import TPL_NAME, QueueJournal, journal_info, resume_journal
from qstore.store.log_lines import Level, LogLine
from qstore.store.parameters import OnDamage, StoreParameters
from qstore.store.recovery.journal_content import described
from qstore.store.recovery.journal_recovery import RecoveredJournal, StartProgress
from qstore.store.recovery.prepared import PreparedTransaction
from qstore.store.start.plan import (
    Need,
    PlannedJournal,
    PlannedQueue,
    StartPlan,
    plan_prepared_list,
    read_if_any,
)
from qstore.store.start.started import StartedQueue, StartedStore
from qstore.store.unfinished import MAKING, NEW_LIST, Unfinished

Log = Callable[[LogLine], None]


def apply_start(
    environment: Environment,
    directory: StoreDirectory,
    catalogue: Catalogue,
    parameters: StoreParameters,
    plan: StartPlan,
    *,
    log: Log,
    progress: StartProgress | None = None,
) -> StartedStore:
    """Apply the plan, and resume the journals.

    Args:
        environment: disk, clock and so on.
        directory: the store's.
        catalogue: its catalogue.
        parameters: the store's options.
        plan: the plan, made from the present state. Its files are closed if it cannot be applied.
        log: receives log lines.
        progress: reports how far it is.

    Raises:
        StoreDamagedError: something is damaged, and the option on-damage is set to refuse the store.
        StoreError: a journal cannot be built.
        CatalogueError: the catalogue cannot be written.
        OSError: the disk fails.
    """
    with contextlib.ExitStack() as opened:
        opened.callback(plan.close)
        start = _Start(environment, directory, catalogue, parameters, plan, log, opened, progress or StartProgress())
        started = start.apply()
        opened.pop_all()
    return started


class _Start:
    """One plan being applied."""

    def __init__(
        self,
        environment: Environment,
        directory: StoreDirectory,
        catalogue: Catalogue,
        parameters: StoreParameters,
        plan: StartPlan,
        log: Log,
        opened: contextlib.ExitStack,
        progress: StartProgress,
    ) -> None:
        self._environment, self._directory, self._catalogue = environment, directory, catalogue
        self._disk = environment.disk
        self._parameters, self._plan, self._closing = parameters, plan, plan.closing
        self._log, self._progress = log, progress
        self._opened = opened  # closes everything opened so far if the start fails
        self._damage: list[Damage] = []
        self._remains: list[str] = []
        self._highest_rid = 0

    def apply(self) -> StartedStore:
        """Apply everything, in an order that permits a crash at any step."""
        plan = self._plan
        if self._parameters.on_damage is OnDamage.REFUSE:
            self._found_all(plan.all_damage)  # before any change: a refused store is not changed
        if not plan.was_clean:
            self._sync_moves()
        self._found_all(plan.damage)
        prepared_list, transactions = self._take_up_prepared_list(plan.prepared_list)
        outcomes = {transaction.xid: transaction.outcome for transaction in transactions}
        queues = []
        for number, each in enumerate(plan.queues, 1):
            self._progress.preparing(number, len(plan.queues), each.record.name)
            queues.append(self._take_up_queue(each, outcomes))
        self._clear_leftovers()
        for queue in plan.lost:
            self._catalogue.create_queue(queue.entry)
            queues.append(self._take_up_queue(queue, outcomes))
        has_replaced = any(each.journal.need is Need.MAKE for each in plan.queues)
        return StartedStore(
            prepared_list, transactions, queues, self._damage, self._highest_rid, has_replaced, self._remains
        )

    def _sync_moves(self) -> None:
        """Sync the directories in which an earlier process may have removed or moved names."""
        for name in ("orphans", "quarantine", "jrnl"):
            path = self._directory.part(name)
            if self._disk.is_directory(path):
                self._disk.sync_directory(path)

    # ---- the prepared list ----

    def _take_up_prepared_list(self, planned: PlannedJournal) -> tuple[QueueJournal, list[PreparedTransaction]]:
        path = planned.path
        if planned.need is Need.FINISH:
            self._finish_prepared_list()
            planned = plan_prepared_list(self._disk, self._directory, self._closing)
        if planned.found is None:
            self._found_all(planned.damage)
            self._make_journal(path, self._tpl_info(self._parameters.tpl_geometry, None))
            walked = self._walked_anew(path, TPL_NAME)
        elif planned.need is Need.REBUILD:
            walked = self._rebuild_prepared_list(self._read(planned.found))
        else:
            walked = self._read(planned.found)
        with contextlib.closing(walked.journal):
            prepared = walked.prepared()
            journal = self._taken_up(walked, self._parameters.tpl_write_cache_bytes)
        return journal, prepared

    def _rebuild_prepared_list(self, walked: RecoveredJournal) -> RecoveredJournal:
        """Rebuild the list, and quarantine the damaged one. If there is only a `tpl.new`, that is complete."""
        path = self._directory.prepared_list
        info = self._tpl_info(walked.journal.files.geometry, walked.journal.info)
        new = self._directory.part(NEW_LIST)
        self._rebuild(new, walked, info)
        try:
            self._disk.sync_directory(self._directory.root)
            self._directory.set_aside(path, "quarantine")
        except OSError:
            if self._disk.is_directory(path):
                self._remove_made(new)
            raise
        self._finish_prepared_list()
        return self._walked_anew(path, TPL_NAME)

    def _finish_prepared_list(self) -> None:
        path = self._directory.prepared_list
        self._disk.rename(self._directory.part(NEW_LIST), path)
        self._disk.sync_directory(self._directory.root)

    # ---- queues ----

    def _take_up_queue(self, planned: PlannedQueue, outcomes: dict[bytes, Outcome]) -> StartedQueue:
        entry, record = planned.entry, planned.record
        self._log_mst(log_lines.mst_recovery_start(record.name))
        entry, walked = self._ready(planned)
        info = walked.journal.info
        if info is not None and (info.is_unnamed or walked.journal.is_named_apart):
            walked.journal.info = info._replace(queue_name=record.name, queue_record=entry.record)
            name_journals(self._disk, {walked.journal.path: (record.name, entry.record)})
        journal = self._taken_up(walked, self._parameters.write_cache_bytes)
        walked.recovery.resolve(outcomes)
        queue = StartedQueue(entry.queue_id, record, journal, walked.journal, walked.recovery)
        self._log(log_lines.queue_recovered(record.name, queue.messages, queue.in_doubt))
        self._log_mst(log_lines.mst_recovered(record.name, queue.messages))
        self._log_mst(log_lines.mst_recovery_complete(record.name))
        return queue

    def _ready(self, planned: PlannedQueue) -> tuple[QueueEntry, RecoveredJournal]:
        """The queue's entry after replacements, and its sound journal."""
        entry, record, found = planned.entry, planned.record, planned.journal.found
        if found is not None:
            self._read(found)
            return self._rebuild_queue(entry, record, found) if planned.journal.need is Need.REBUILD else (entry, found)
        if planned.journal.need is Need.REPLACE:
            entry = self._replace_withdrawn(entry, record)
        else:
            self._found_all(planned.journal.damage)
            self._make_journal(planned.journal.path, self._queue_info(entry, record.name, self._parameters.geometry))
        return entry, self._walked_anew(self._directory.journal(entry.journal_id), record.name)

    def _moved(self, entry: QueueEntry) -> QueueEntry:
        """The queue's entry with another journal, whose directory is still to be created."""
        return self._catalogue.moved_journal(entry, self._directory.has_journal)

    def _replace_withdrawn(self, entry: QueueEntry, record: Queue) -> QueueEntry:
        """Give the queue another, empty journal; the old one keeps its mark until the catalogue has the new one."""
        old, moved = self._directory.journal(entry.journal_id), self._moved(entry)
        self._log(LogLine(Level.NOTICE, Unfinished.WITHDRAWN_JOURNAL.notice(old)))
        path = self._directory.journal(moved.journal_id)
        self._make_journal(path, self._queue_info(moved, record.name, self._parameters.geometry))
        try:
            self._catalogue.replace_queue(moved)
        except CatalogueError:
            with contextlib.suppress(OSError):  # the next start uses one of them and removes the other
                withdraw_journal(self._disk, path, DEFAULT_BASE_NAME)
            raise
        remove_journal(self._disk, old)
        self._disk.sync_directory(posixpath.dirname(old))
        return moved

    def _rebuild_queue(
        self, entry: QueueEntry, record: Queue, walked: RecoveredJournal
    ) -> tuple[QueueEntry, RecoveredJournal]:
        """Rebuild the journal, switch to it in one batch, and quarantine the damaged one."""
        moved = self._moved(entry)
        path = self._directory.journal(moved.journal_id)
        self._rebuild(path, walked, self._queue_info(moved, record.name, walked.journal.files.geometry))
        try:
            mark_deleted(self._disk, path)  # until it is in the catalogue, its content is not needed
            self._disk.sync_directory(posixpath.dirname(path))
        except OSError:
            self._remove_made(path)
            raise
        self._catalogue.replace_queue(moved)
        unmark_deleted(self._disk, path)
        self._directory.set_aside(walked.journal.path, "quarantine")
        return moved, self._walked_anew(path, record.name)

    def _clear_leftovers(self) -> None:
        """Deal with journals that are not in the catalogue."""
        parent, disk, found = self._directory.part("jrnl"), self._disk, self._plan.leftovers
        self._have_directory(parent)
        self._highest_rid = max(self._highest_rid, found.highest_rid)
        self._found_all(found.damage)
        for path in found.kept:
            unmark_deleted(disk, path)
        for path in found.removed:
            names = disk.names(path)
            if DELETED in names and len(names) > MAX_REMOVED:
                self._remains.append(path)
            else:
                remove_journal(disk, path)
        if found.removed:
            disk.sync_directory(parent)
        for aside in found.aside:
            path, what = aside.damage.file, aside.damage.what
            target = self._directory.set_aside(path, aside.parent)
            text = f"{path}: {what}; it was moved to {target}: run qstore-check {self._directory.path}"
            self._log(LogLine(Level.WARNING if aside.damage.costs else Level.NOTICE, printable(text)))

    # ---- one journal ----

    def _read(self, found: RecoveredJournal) -> RecoveredJournal:
        """Note the record ids of a journal that was read."""
        self._highest_rid = max(self._highest_rid, found.recovery.highest_rid)
        return found

    def _walked_anew(self, path: str, name: str) -> RecoveredJournal:
        """Read a sound journal that was created here."""
        walked = read_if_any(self._disk, path, name, self._closing)
        assert walked is not None
        self._opened.callback(walked.journal.close)
        return self._read(walked)

    def _taken_up(self, walked: RecoveredJournal, bound: int) -> QueueJournal:
        reader = walked.journal
        assert reader.info is not None
        try:
            state = state_of(reader, walked.recovery, walked.end)
        except NotResumableError as error:
            raise StoreDamagedError(f"{error}; run qstore-check {self._directory.path}") from error
        geometry = reader.files.geometry
        settle_ring(self._disk, reader.path, reader.info)
        journal = resume_journal(self._environment, reader.path, reader.info, geometry, state, bound=bound)
        self._opened.callback(journal.close)
        if state.flush and not self._plan.was_clean:
            journal.storage.sync_end(state.position)
        return journal

    def _make_journal(self, path: str, info: JournalInfo) -> None:
        """Create an empty journal where there is none; anything already there is not a journal.

        It gets its name when it is complete: the next start would take a partial one for a damaged journal.
        """
        parent, making = posixpath.dirname(path), path + MAKING
        self._have_directory(parent)
        if self._disk.is_directory(making):
            remove_journal(self._disk, making)
        self._directory.clear_for_directory(making)
        create_journal(self._disk, making, info)
        try:
            if self._disk.is_directory(path):
                self._directory.set_aside(path, "quarantine")
            self._directory.clear_for_directory(path)
            self._disk.rename(making, path)
            self._disk.sync_directory(parent)
        except (OSError, StoreError):  # the next start would find the named parts, and never report the missing ones
            self._remove_made(making if self._disk.is_directory(making) else path)
            raise

    def _remove_made(self, path: str) -> None:
        """Free the space of a journal that is not in use yet, since the start failed."""
        with contextlib.suppress(OSError):
            remove_journal(self._disk, path)

    def _have_directory(self, path: str) -> None:
        if not self._disk.is_directory(path):
            self._directory.clear_for_directory(path)
            self._disk.make_directory(path)
            self._disk.sync_directory(posixpath.dirname(path))

    def _rebuild(self, path: str, walked: RecoveredJournal, info: JournalInfo) -> None:
        """Rebuild a damaged journal from its readable content. The remains of an earlier attempt are removed."""
        self._found_all(walked.damage)
        self._progress.rebuilding(walked.journal.path)
        if self._disk.is_directory(path):
            remove_journal(self._disk, path)
        from qstore.store.builders.journal_copy import rebuild  # 3 ms of other starts (tests.bench.bench_start)

        built = rebuild(self._environment, path, info, walked.journal, walked.recovery, seal=True)
        walked.journal.close()
        size = described(built.info.geometry)
        text = f"{walked.journal.path}: rebuilt with {plural(built.messages, 'message')}, {size}"
        self._log(LogLine(Level.WARNING, text + (f"; {built.unreadable} unreadable" if built.unreadable else "")))

    def _queue_info(self, entry: QueueEntry, name: str, geometry: Geometry) -> JournalInfo:
        return journal_info(
            self._environment,
            name,
            geometry,
            self._parameters.flush_alignment,
            queue_id=entry.queue_id,
            incarnation=entry.incarnation,
            record=entry.record,
        )

    def _tpl_info(self, geometry: Geometry, before: JournalInfo | None) -> JournalInfo:
        """The info file of a prepared list that replaces another, `before`, if that is known."""
        known = [self._closing.list_incarnation(), 0 if before is None else before.incarnation]
        return journal_info(
            self._environment,
            TPL_NAME,
            geometry,
            self._parameters.flush_alignment,
            incarnation=max(known) + 1,
            base_name=TPL_BASE_NAME,
        )

    # ---- reporting ----

    def _found_all(self, damages: Iterable[Damage]) -> None:
        """Note damage, or refuse the store because of it."""
        for damage in damages:
            text = f"{damage.where}: {damage.what}: {damage.consequence}"
            if self._parameters.on_damage is OnDamage.REFUSE:
                raise StoreDamagedError(f"{text}; the store is not opened (on-damage is refuse): run qstore-check")
            self._damage.append(damage)
            self._log(LogLine(Level.CRITICAL, text))

    def _log_mst(self, line: LogLine) -> None:
        if self._parameters.mst_log:
            self._log(line)
