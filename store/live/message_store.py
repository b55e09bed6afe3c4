"""The store: one catalogue, one journal for each durable queue, and the prepared list.

Only opening and closing wait for the disk. Messages and transactions are appended or refused at once,
and the caller's callback is called when they are synced; changes of the catalogue are made off the event loop
(`topology_changes`) and also call back. Callbacks come from `collect`, which an event loop calls when `fileno` is
readable, and a tool at any time; or from `start` and `flush`, for work that is complete by then. `start` begins to
flush the appended records: call it once per batch.

A later failure is passed to the callback as an exception; None means success. A journal whose disk fails accepts
nothing more until the store is reopened, and all of its waiters receive the error.

    store = MessageStore.open(system_environment(), path, parameters, version, log=log)
    for queue in store.recovered_queues: ... store.messages(queue) ...
    store.end_recovery()
    rid = store.append.enqueue(journal, parts, size, crc)
    store.flush([journal], done)
    ... store.collect() ...
    store.close()

**Metrics** are management's view of a store and its journals. The names are those of the schema (package
org.apache.qpid.legacystore), in snake case. Everything is counted in plain integers where it happens, and read here on
demand. The journal's counters:

    outstanding_aios         flushes under way
    free_file_count          room without live records, in files
    available_file_count     room that messages may still fill, below the threshold, in files
    write_wait_failures      records that waited for the disk, since the write cache was full
    write_busy_failures      records for which room had to be made, or that were refused for lack of room
    read_record_count        messages read back
    read_busy_failures       reads that waited for the disk, since not all of the data was in the page cache
    write_page_cache_depth   unsynced pages of the write cache
    read_page_cache_depth    0: there are no read pages, a message is read directly
"""

from __future__ import annotations

import contextlib
import select
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Self
from uuid import UUID

from mypy_extensions import mypyc_attr

import qstore.store.log_lines as log_lines
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.geometry import BLOCK_SIZE, FILE_HEADER_SIZE, PAGE_SIZE
from qstore.formats.wording import printable
from qstore.store.catalogue.catalogue import Catalogue
from qstore.store.catalogue.opening import CatalogueOpening, MirroredKeyValue
from qstore.store.catalogue.store_directory import Found, StoreDirectory
from qstore.store.catalogue.topology import TakenNames, Topology, catalogue_topology
from qstore.store.damage import Damage
from qstore.store.disk import GuardedDisk
from qstore.store.environment import Environment
from qstore.store.errors import StoreDamagedError, StoreError, advice, disk_advice
from qstore.store.key_value import CatalogueError, KeyValue, WatchedKeyValue
from qstore.store.live.appender import Appender, Compression, RecordIds
from qstore.store.live.commit import LATENCIES, SIZES, Flusher, fill_ahead
from qstore.store.live.delivered import delivered_runs, read_delivered, remove_delivered, write_delivered
from qstore.store.live.growth import Expansion, HeldDirectories
from qstore.store.live.journal_stock import JournalStock
from qstore.store.live.queue_journal import Done, QueueJournal
from qstore.store.live.reading import Alike, Decode, Decoded, Read, RunsRead, read_messages, read_runs, will_read
from qstore.store.live.returns import Returns
from qstore.store.live.snapshot import Shared, SharedSnapshots, Snapshots, Taken
from qstore.store.live.topology_changes import Changes
from qstore.store.live.transactions import Transactions
from qstore.store.log_lines import Level, LogLine
from qstore.store.parameters import OnDamage, StoreParameters
from qstore.store.recovery.close_record import (
    Closing,
    SyncRecorder,
    closed_journal,
    read_closing,
    remove_close_record,
    write_close_record,
)
from qstore.store.recovery.index import Indexes, IndexRecorder
from qstore.store.recovery.journal_recovery import ReportProgress, StartProgress, no_report
from qstore.store.start.apply import apply_start
from qstore.store.start.plan import plan_start
from qstore.store.start.started import IndexPortion, RecoveredMessage, StartedQueue, StartedStore
from qstore.store.sync import SyncDriverError
from qstore.store.sync.supervision import StartingDriver
from qstore.store.unfinished import CONVERTED

_RESTORED: Final = "and start with --on-damage quarantine to restore what can be saved"
CLASS_NAME: Final = "qstore.MessageStore"  # the store type in MST-1001


@mypyc_attr(allow_interpreted_subclasses=True)
class MessageStore:
    """A store opened by `open`.

    Attributes:
        directory: where it is.
        parameters: the options.
        store_id: the store's unique id.
        was_clean: whether it had been closed cleanly.
        topology: queues, exchanges, bindings and so on, as found on disk.
        recovered_queues: the queues as found on disk, until `end_recovery`.
        journals: queue id -> journal.
        prepared_list: the prepared list's journal.
        append: appends and removes messages.
        transactions: local and distributed transactions.
        changes: creates and deletes queues, exchanges, bindings and so on.
    """

    def __init__(
        self,
        environment: Environment,
        directory: StoreDirectory,
        parameters: StoreParameters,
        log: Callable[[LogLine], None],
    ) -> None:
        """Do nothing yet: use `open` to get a usable store."""
        self._environment, self.parameters, self._log = environment, parameters, log
        self.directory = directory
        self._progress = StartProgress()
        self._opened = contextlib.ExitStack()
        self._poller: select.epoll | None = None
        self._is_astray = False

    @classmethod
    def open(
        cls,
        environment: Environment,
        path: str,
        parameters: StoreParameters,
        software_version: str,
        *,
        log: Callable[[LogLine], None],
        progress: ReportProgress = no_report,
    ) -> Self:
        """Open a store, and recover its content.

        Args:
            environment: disk, clock and so on.
            path: the store directory. A new store is created there if none exists; qpidd's is converted.
            parameters: the options.
            software_version: recorded in the STORE file.
            log: receives log lines.
            progress: called repeatedly with the progress.

        Raises:
            StoreLockedError: another process has locked it.
            StoreDamagedError: it is damaged, and the options forbid opening it as it is.
            StoreError: it cannot be opened.
        """
        store = cls(environment, StoreDirectory(environment, path, software_version), parameters, log)
        store._progress = StartProgress(progress)
        store._open()
        return store

    # ---- opening ----

    def _open(self) -> None:
        """Lock the directory and recover its content; everything is closed again if that fails."""
        path = self.directory.path
        self._lock = self.directory.lock()
        self._opened.callback(self._lock.release)
        self._environment = self._environment._replace(disk=GuardedDisk(self._environment.disk, self._lock))
        self.directory = self.directory.on(self._environment)
        try:
            self._recover()
        except BaseException as error:
            self._opened.close()
            if isinstance(error, OSError):
                where = error.filename or path
                text = f"the store cannot be opened: {error.strerror or error}{advice(error)}"
                raise StoreError(f"{where}: {text}") from error
            if isinstance(error, CatalogueError):
                hint = f"{disk_advice()}; qstore-check {path} shows whether the catalogue is damaged"
                raise StoreError(f"{error}; {hint}") from error
            if isinstance(error, SyncDriverError):
                raise StoreError(str(error)) from error
            raise

    def _recover(self) -> None:
        directory, log = self.directory, self._log
        self._log_mst(log_lines.mst_created(CLASS_NAME))
        self._log_mst(log_lines.mst_location(directory.path))
        environment, name = self._environment, self.parameters.sync
        driver = StartingDriver(environment.make_background(), lambda: environment.make_driver(name))
        self._opened.callback(driver.close)
        if self._environment.disk.is_directory(directory.below(CONVERTED)):
            from qstore.store.repair.conversion import mark_converted  # as below

            mark_converted(self._environment, directory)
        directory.finish_interrupted()
        if self.parameters.truncate:
            directory.discard()
            log(log_lines.store_truncated(directory.path))
        found = directory.look()
        if found is Found.VERSION_1:
            from qstore.store.repair.conversion import convert  # 14 ms of a start (tests.bench.bench_start)

            convert(self._environment, directory, self.parameters, log, self._progress)
        elif found is Found.NOTHING:
            directory.create(self.parameters.tpl_geometry, self.parameters.flush_alignment)
        mark = directory.read_mark()
        self.store_id, self.was_clean = mark.store_id, mark.clean_close
        closed = read_closing(environment.disk, directory.root, mark)
        catalogue, mirrored = self._open_catalogue(closed[0])
        topology, batch = catalogue_topology(catalogue, directory.catalogue, is_checked=True), catalogue.batch()
        self._report_duplicates(topology)  # a refused store is not changed
        self._log_mst(log_lines.mst_recovery_start())
        self._delivered = read_delivered(self._environment.disk, directory, self.store_id, was_clean=self.was_clean)
        started = self._started(catalogue, closed, topology)
        if catalogue.batch() != batch:
            topology = catalogue_topology(catalogue, directory.catalogue, is_checked=True)
        self.topology: Topology = topology
        self._take_over(started, catalogue, mirrored, driver)
        self._log_mst(log_lines.mst_recovery_complete())
        log(log_lines.store_initialized(directory.path))
        for line in (*log_lines.transactions_in_doubt(directory.path, self.transactions.in_doubt), *self._sizes()):
            log(line)

    def _started(self, catalogue: Catalogue, closed: tuple[Closing, list[Damage]], topology: Topology) -> StartedStore:
        """Recover the store's content: plan what each journal needs, and then apply the plan."""
        progress = self._progress
        disk, directory = self._environment.disk, self.directory
        indexes = Indexes(disk, directory, self.store_id, is_used=self.parameters.on_damage is not OnDamage.REFUSE)
        # In a topology with duplicates, queues have other names than in their records.
        records = {} if topology.duplicates else {number: each.record for number, each in topology.queues.items()}
        plan = plan_start(disk, directory, list(catalogue.queues()), *closed, progress, indexes, records)
        return apply_start(
            self._environment, self.directory, catalogue, self.parameters, plan, log=self._log, progress=progress
        )

    def _sizes(self) -> tuple[LogLine, ...]:
        of = self.parameters
        page, pages = of.page_bytes, of.write_cache_bytes // of.page_bytes
        tpl_page, tpl_pages = of.tpl_page_bytes, of.tpl_write_cache_bytes // of.tpl_page_bytes
        return (
            *log_lines.journal_sizes(of.geometry.files, of.geometry.data_size // PAGE_SIZE, page // 1024, pages),
            *log_lines.tpl_sizes(of.tpl_num_jfiles, of.tpl_jfile_size_pgs, tpl_page // 1024, tpl_pages),
        )

    def _open_catalogue(self, closing: Closing) -> tuple[Catalogue, MirroredKeyValue]:
        path, refusal = self.directory.path, None
        if self.parameters.on_damage is OnDamage.REFUSE:
            refusal = f"the store is not opened, because on-damage is refuse: see qstore-check {path}, {_RESTORED}"
        opening = CatalogueOpening(
            self._environment, self.directory, self.store_id, self._log, refusal=refusal, least=closing.batch
        )
        key_value = WatchedKeyValue(opening.open(), self._log)
        self._opened.callback(self._close_catalogue, key_value)
        assert opening.mirrored is not None
        return Catalogue(key_value), opening.mirrored

    def _report_duplicates(self, topology: Topology) -> None:
        """Report objects with duplicate names, which earlier versions of the store permitted."""
        for each in topology.duplicates:
            found = each.damage(self.directory.catalogue)
            text = f"{found.file}: {printable(found.what)}: {printable(found.consequence)}"
            if self.parameters.on_damage is OnDamage.REFUSE:
                raise StoreDamagedError(f"{text}; the store is not opened, because on-damage is refuse")
            self._log(LogLine(Level.CRITICAL, f"{text}; delete one of them when its messages are no longer needed"))

    def _take_over(
        self, started: StartedStore, catalogue: Catalogue, mirrored: MirroredKeyValue, driver: StartingDriver
    ) -> None:
        """Mark the store as in use, and not clean, after everything was read and synced."""
        for path in self.directory.directories:
            self._lock.watch(path)
        self._journals_opened(started)
        self._background = self._environment.make_background()
        self._returns = Returns(
            self._environment.disk, self.directory, self.store_id, self.journals, self._background, self._log
        )
        self._opened.callback(self._returns.let_go)
        self._opened.callback(self._background.close)
        self._synced = SyncRecorder(
            self.directory, self.store_id, lambda: mirrored.batch, self.journals, self.prepared_list,
            self._background, self._log,
        )  # fmt: skip
        self._synced.begin(is_needed=started.has_replaced)
        self.directory.has_hosts = self.topology.has_hosts
        self.directory.mark(self.store_id, clean=False)
        if started.has_replaced:
            remove_close_record(self._environment.disk, self.directory)
        remove_delivered(self._environment.disk, self.directory)
        self._reads = self._environment.make_background()
        self._opened.callback(self._reads.close)
        disk, log = self._environment.disk, self._log
        flusher = self._flusher = Flusher(driver.take(), log, self._environment.monotonic)
        flusher.moved, flusher.fill = self._driver_moved, self.fill_ahead
        self._opened.callback(flusher.close)
        self._ids = self._record_ids(started, catalogue)
        held = HeldDirectories(disk, log, self._environment.monotonic, started.remains)
        self._expansion = Expansion(disk, self.directory.path, self.parameters, self._background, flusher, held, log)
        compression = Compression()
        for queue in started.queues:
            self._expansion.adopt(queue.journal, queue.record.arguments)
            queue.journal.compression = compression.of(queue.record.arguments)
        self.append = Appender(self._ids, flusher, self._expansion, log)
        process = UUID(int=self._environment.random_bits(128), version=4)
        self.transactions = Transactions(self.append, flusher, self.prepared_list, process)
        self.transactions.complete(started.transactions, list(self.journals.values()))
        self._returns.read(was_clean=self.was_clean)
        stock = self._stock = JournalStock(
            self._environment, self.directory, self.parameters, catalogue, self._background, log
        )
        self.changes = Changes(
            self._environment, stock, self.parameters, catalogue, TakenNames(self.topology),
            self.directory.admit_hosts, self._lock.is_in_place, self._background, flusher,
            self._expansion, compression, self.journals, held, self._returns, log,
        )  # fmt: skip
        self._snapshots = Snapshots(
            disk, self.directory, catalogue, self._background, flusher,
            self.journals, self.prepared_list, held, stock.name_all,
        )  # fmt: skip
        self._indexes = IndexRecorder(
            disk, self.directory, self.store_id, self.journals, lambda: self._ids.next - 1, self._background, log
        )
        self._indexes.begin({each.queue_id: each.indexed_to for each in started.queues})
        self._shared = SharedSnapshots(self._environment, self.directory, self._snapshots, self._background)

    def _record_ids(self, started: StartedStore, catalogue: Catalogue) -> RecordIds:
        reserved = catalogue.rid_high_water()
        if started.highest_rid >= max(reserved, 1):
            text = (
                f"{self.directory.catalogue}: record id 0x{started.highest_rid:x} is in use, but ids are reserved only "
                f"up to 0x{reserved:x}: the catalogue has lost its last changes; new ids continue above"
            )
            self._log(LogLine(Level.CRITICAL, text))
        self._log(log_lines.highest_record_id(started.highest_rid))
        return RecordIds(catalogue, self._background, self._cannot_reserve, started.highest_rid)

    def _journals_opened(self, started: StartedStore) -> None:
        self.recovered_queues = started.queues
        for queue in started.queues:
            queue.record = self.topology.queues[queue.queue_id].record
        self.prepared_list = started.prepared_list
        self.journals: dict[int, QueueJournal] = {queue.queue_id: queue.journal for queue in started.queues}
        self._opened.callback(self._close_journals)

    def _close_journals(self) -> None:
        self.end_recovery()
        for journal in (*self.journals.values(), self.prepared_list):
            journal.writer.close()
            journal.close()

    def _cannot_reserve(self, error: Exception) -> None:
        self._log(LogLine(Level.CRITICAL, f"record ids cannot be reserved: {error}"))

    def _log_mst(self, line: LogLine) -> None:
        if self.parameters.mst_log:
            self._log(line)

    # ---- recovery ----

    def messages(self, queue: StartedQueue) -> Iterator[RecoveredMessage]:
        """The messages of a recovered queue, in order. Read them before anything is appended to it."""
        return queue.read(lambda rid: self._delivered.holds(queue.queue_id, rid), self._log)

    def index(self, queue: StartedQueue) -> Iterator[IndexPortion] | None:
        """The places of a recovered queue's messages, in order; None if they are few, so that `messages` reads them."""
        return queue.index(lambda rids: self._delivered.among(queue.queue_id, rids), self._log)

    def returns(self, queue: StartedQueue) -> Mapping[int, int]:
        """Record ids of a recovered queue's messages that are known to have returned to it, and how often."""
        return self._returns.of(queue.queue_id)

    def returned(self, journal: QueueJournal, rid: int, count: int | None) -> None:
        """Note how often a message has returned to its queue, None if it has left that.

        It is written soon, and synced when the store is closed.
        """
        self._returns.note(journal.queue_id, rid, count)

    def delivered(self, queue: StartedQueue) -> Iterator[int]:
        """Record ids of a recovered queue's messages that may have been delivered before; reads no messages."""
        for rid in queue.rids():
            if self._delivered.holds(queue.queue_id, rid):
                yield rid

    def end_recovery(self) -> None:
        """End the reading of recovered messages: close the readers."""
        for queue in self.recovered_queues:
            queue.close()
        self.recovered_queues = []
        self._returns.forget_releases()

    # ---- operation ----

    def on_refusal(self, refused: Callable[[str, bool], None]) -> None:
        """Have `refused(name, is_full)` called when a journal refuses records; again only after it has accepted one."""
        self.append.refused = refused

    def start(self, *, is_idle: bool = False) -> None:
        """Begin to flush everything that was appended; a caller that `is_idle` may wait for the disk here."""
        self._flusher.start_all(is_idle=is_idle)

    def when_synced(self, journals: Iterable[QueueJournal], done: Done, *, is_urgent: bool = True) -> None:
        """Call `done` when everything appended to `journals` so far is synced, or cannot be.

        If it `is_urgent`, they are written at the next `drained`. Otherwise their records ride on a flush of others, or
        are written some milliseconds later.
        """
        self._flusher.when_synced(journals, done, is_urgent=is_urgent)

    def drained(self, *, is_idle: bool = False, is_urgent: bool = False) -> None:
        """The event loop has processed the input that was there: begin to write what is due.

        Args:
            is_idle: the loop has nothing else to do, and may wait for the disk here.
            is_urgent: all who wait so far wait urgently from now on.
        """
        if is_urgent:
            self._flusher.hurry()
        self._flusher.start(is_idle=is_idle)

    def flush(self, journals: Iterable[QueueJournal], done: Done, *, is_idle: bool = False) -> None:
        """`when_synced`, and then `drained`: for callers without an event loop."""
        self._flusher.when_synced(journals, done)
        self._flusher.start(is_idle=is_idle)

    def fill_ahead(self) -> None:
        """Prepare files for the next small flushes (`commit`), if an idle caller has waited for one without that.

        An event loop that watches the store (`is_watched`) is made to call it.
        """
        journal = self._flusher.synced_now
        if journal is not None:
            self._flusher.synced_now = None
            fill_ahead(journal, self._environment.disk, self._background)

    def purge(self, journal: QueueJournal, rids: Iterable[int], done: Done) -> None:
        """Remove messages of a queue, and call `done` when that is synced."""
        for rid in rids:
            self.append.dequeue(journal, rid)
        self.flush((journal,), done)

    def read(self, journal: QueueJournal, rids: Sequence[int], decode: Decode[Decoded], done: Read[Decoded]) -> None:
        """Read and decode messages, and call `done` with the result: at once, if no wait is needed."""
        read_messages(journal, rids, self._reads, decode, done)

    def read_runs(
        self,
        journal: QueueJournal,
        rids: Sequence[int],
        decode: Decode[Decoded],
        alike: Alike[Decoded],
        done: RunsRead[Decoded],
    ) -> None:
        """As `read`, with consecutive messages that differ only in their bodies as runs: the first, and the bodies."""
        read_runs(journal, rids, self._reads, decode, alike, done)

    def will_read(self, journal: QueueJournal, rids: Sequence[int]) -> None:
        """Have the system read ahead messages that will be read soon."""
        will_read(journal, rids)

    def put_away(self, journal: QueueJournal, rids: Sequence[int]) -> None:
        """Keep only a compact index of messages that are out of the broker's memory; ids ascend."""
        journal.writer.records.put_away(rids)

    def snapshot(self, checkpoint: str, done: Taken) -> None:
        """Take a snapshot of the whole store, with everything appended so far, to copy or follow it.

        Args:
            checkpoint: a directory that does not exist, for a copy of the catalogue; it is removed with the snapshot.
            done: called with the snapshot, which must be released, or with the error.
        """
        self._snapshots.take(checkpoint, done)

    def share_snapshot(self, done: Shared) -> None:
        """Take a snapshot that another process reads; `done` gets it, and must have it released later, or the error."""
        self._shared.take(done)

    def collect(self, timeout: float | None = 0.0, *, begins: bool = True) -> None:
        """Process completed disk work, and call the callbacks.

        Args:
            timeout: seconds to wait for a completion, if anything is under way; None for no limit.
            begins: whether to begin to write what is due; if not, `drained` must follow.
        """
        self._background.collect()
        self._reads.collect()
        is_busy = timeout != 0.0 and (self._background.is_busy or self._reads.is_busy)
        if is_busy and self.fileno() >= 0 and self._poller is not None:
            self._poller.poll(timeout)
            timeout = 0.0
        self._flusher.collect(timeout, begins=begins)
        self._background.collect()
        self._reads.collect()
        if begins:
            self._flusher.start()

    def is_watched(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        """An event loop watches it, which can be made to call a function in its next iteration, or later."""
        self._flusher.in_next_iteration, self._flusher.call_later = call_soon, call_later

    def fileno(self) -> int:
        """A descriptor that is readable when `collect` has work; -1 if there is none, or the store is closed."""
        if self._poller is None:
            sources = (self._flusher, self._background, self._reads)
            descriptors = [each.fileno() for each in sources if each.fileno() >= 0]
            if not descriptors:
                return -1
            self._poller = select.epoll()
            self._opened.callback(self._poller.close)
            for descriptor in descriptors:
                self._poller.register(descriptor, select.EPOLLIN)
        return -1 if self._poller.closed else self._poller.fileno()

    def _driver_moved(self, old: int, new: int) -> None:
        """Handle the replacement of a dead driver by another or none: its descriptor would stay readable."""
        if self._poller is not None and old >= 0:
            self._poller.unregister(old)
            if new >= 0:
                self._poller.register(new, select.EPOLLIN)

    @property
    def failure(self) -> Exception | None:
        """Why nothing is synced any more; None if syncing works, even if single journals have failed."""
        return self._flusher.failure

    def look(self) -> None:
        """Check that the disk makes progress, give back unneeded files, and record how far the store is synced.

        Call it about every second.
        """
        self._flusher.look()
        if not self._is_in_place():
            return
        self._expansion.look()
        self._stock.look(self._flusher.synced)
        self._synced.look()
        self._indexes.look()

    def will_close(self) -> None:
        """Put a time limit on all waiting from now on. Thread-safe; `close` does it too."""
        self._flusher.supervision.is_closing = True

    @property
    def progress(self) -> int:
        """Number of completed disk operations. Thread-safe."""
        return self._flusher.synced + self._background.finished + self._reads.finished

    # ---- closing ----

    def close(self, delivered: Mapping[int, Iterable[int]] | None = None) -> bool:
        """Finish the work under way, seal every journal, and close the store.

        Args:
            delivered: queue id -> record ids of the messages delivered so far, to be marked as redelivered.

        Returns:
            Whether the store is marked clean. It is not if a journal has failed, or the directory was moved.
        """
        self.will_close()
        is_clean = False
        try:
            if not self._is_in_place():
                self._finish()
                return False
            self._snapshots.close()
            self._returns.will_close()
            self._expansion.will_close()
            self._stock.will_close()
            self._finish()
            is_clean = self._seal()
            if is_clean:
                self._indexes.record()
                self._returns.close()
                write_delivered(self.directory, self.store_id, delivered_runs(delivered or {}, self.journals))
                journals = (self.prepared_list, *self.journals.values())
                write_close_record(self.directory, self.store_id, map(closed_journal, journals))
                self._synced.record()
                self.directory.mark(self.store_id, clean=True, close_record=True)
        except OSError as error:
            self._log(LogLine(Level.CRITICAL, f"the store cannot be closed cleanly: {error}"))
            is_clean = False
        finally:
            is_clean = self._let_go() and is_clean
        self._log_mst(log_lines.mst_closed())
        return is_clean

    def _is_in_place(self) -> bool:
        """Whether the store is still at its path: what is there otherwise must not be changed. If not, log that once.

        Files that are open are written where they are now; all else is found by its path.
        """
        is_astray = not self._lock.is_in_place()
        if is_astray and not self._is_astray:
            self._log(log_lines.store_moved(self.directory.path))
        self._is_astray = is_astray
        return not is_astray

    def _close_catalogue(self, key_value: KeyValue) -> None:
        """Close it, unless the store has been moved: RocksDB would write and remove files at the path."""
        if self._is_in_place():
            key_value.close()
        else:  # not even when it is freed, which must not happen then
            import ctypes  # rarely needed

            ctypes.pythonapi.Py_IncRef(ctypes.py_object(key_value))

    def _let_go(self) -> bool:
        """Close everything that is open. Returns whether that succeeded."""
        try:
            self._opened.close()
        except CatalogueError as error:
            self._log(LogLine(Level.CRITICAL, f"the store was not closed cleanly: {error}"))
            return False
        return True

    def _finish(self) -> None:
        """Wait until nothing is under way any more, including work begun by callbacks."""
        everything = (*self.journals.values(), self.prepared_list)
        while True:
            self._background.wait()
            self._reads.wait()
            self.collect()
            self.transactions.finish()
            self._flusher.drain(everything)
            self.collect()
            self.transactions.finish()
            if self._flusher.is_idle and not self._background.is_busy and not self._reads.is_busy:
                return
            everything = (*self.journals.values(), self.prepared_list)

    def _seal(self) -> bool:
        everything = (*self.journals.values(), self.prepared_list)
        sealed = [journal.writer.seal() for journal in everything]
        self._flusher.drain(everything)
        failed = [journal for journal in everything if journal.writer.failure is not None]
        if failed:
            what = f"{len(failed)} of its {len(everything)} journals failed; the first: {failed[0].writer.failure}"
            self._log(LogLine(Level.CRITICAL, f"the store was not closed cleanly: {what}"))
        elif not all(sealed):
            what = f"{sealed.count(False)} of its {len(everything)} journals have no room to record that"
            self._log(LogLine(Level.CRITICAL, f"the store was not closed cleanly: {what}"))
        return all(sealed) and not failed

    def flush_metrics(self) -> Mapping[str, Any]:
        """What was flushed: numbers, and counts by upper bound of latency (nanoseconds) and size (bytes)."""
        counts = self._flusher.counts
        return {
            "flushes": counts.number,
            "nanoseconds": counts.nanoseconds,
            "size": counts.size,
            "latencies": _by_bound(LATENCIES, counts.latencies),
            "sizes": _by_bound(SIZES, counts.sizes),
        }

    def disk_metrics(self) -> Mapping[str, Any]:
        """The disk of the store: bytes `free`, `total`, `kept` (disk-free-limit), and what has failed.

        `free` is -1 if it is unknown; `failure` says why nothing is synced any more.
        """
        free, total = self._expansion.space() or (-1, 0)
        failure = self._flusher.failure
        return {
            "free": free,
            "total": total,
            "kept": total * self.parameters.disk_free_limit // 100,
            "failure": "" if failure is None else str(failure),
        }

    def __enter__(self) -> MessageStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class StoreMetrics(NamedTuple):
    """The class Store. Sizes are bytes, except `default_data_file_size`, which counts pages of 64 KiB."""

    location: str
    default_initial_file_count: int
    default_data_file_size: int
    tpl_is_initialized: bool
    tpl_directory: str
    tpl_write_page_size: int
    tpl_write_pages: int
    tpl_initial_file_count: int
    tpl_data_file_size: int
    tpl_current_file_count: int
    tpl_transaction_depth: int
    tpl_txn_prepares: int
    tpl_txn_commits: int
    tpl_txn_aborts: int
    tpl_outstanding_aios: int


class JournalMetrics(NamedTuple):
    """The class Journal. Sizes are bytes; enqueues and dequeues include those of transactions."""

    name: str
    directory: str
    base_file_name: str
    write_page_size: int
    write_pages: int
    read_page_size: int
    read_pages: int
    initial_file_count: int
    auto_expand: bool
    current_file_count: int
    max_file_count: int
    data_file_size: int
    record_depth: int
    enqueues: int
    dequeues: int
    txn: int
    txn_enqueues: int
    txn_dequeues: int
    txn_commits: int
    txn_aborts: int
    outstanding_aios: int
    free_file_count: int
    available_file_count: int
    write_wait_failures: int
    write_busy_failures: int
    read_record_count: int
    read_busy_failures: int
    write_page_cache_depth: int
    read_page_cache_depth: int


MAX_DRAWN: Final = 1024
"""Files of a journal that `journal_files` shows, from the oldest on."""


def journal_files(journal: QueueJournal) -> dict[str, Any]:
    """Which files of a queue's journal hold live records, and what holds the oldest one.

    `live` has the number of live records in each file, in the order of the ring from the oldest file on, `files` the
    number of each file, `used` how many of them the journal may not overwrite. `held_by` says why the oldest file is
    kept: `message`, `transaction` (that enqueues or dequeues it), `snapshot`, `unsynced` (a removal that is not on the
    disk yet) or nothing.
    """
    writer = journal.writer
    space, records = writer.space, writer.records
    first, count = space.oldest, min(space.files, MAX_DRAWN)
    oldest = records.oldest()
    rid, place = (0, -1) if oldest is None else oldest
    held_by = ""
    if space.is_pinned and (place < 0 or place // space.file > first):
        held_by = "snapshot"
    elif place >= 0 and place // space.file == first:
        held_by = "transaction" if records.is_locked(rid) else "message"
    elif space.held_in(first):
        held_by = "unsynced"
    return {
        "files": [writer.ring.number(index) for index in range(first, first + count)],
        "live": [space.held_in(index) for index in range(first, first + count)],
        "used": writer.batch.position // space.file - first + 1,
        "rid": rid,
        "file": -1 if place < 0 else writer.ring.number(place // space.file),
        "offset": -1 if place < 0 else FILE_HEADER_SIZE + place % space.file * BLOCK_SIZE,
        "held_by": held_by,
    }


def store_metrics(store: MessageStore) -> StoreMetrics:
    """The metrics of an open store."""
    parameters, prepared_list, transactions = store.parameters, store.prepared_list, store.transactions
    geometry = prepared_list.geometry
    return StoreMetrics(
        location=store.directory.path,
        default_initial_file_count=parameters.geometry.files,
        default_data_file_size=parameters.geometry.data_size // PAGE_SIZE,
        tpl_is_initialized=prepared_list.writer.synced > 0,
        tpl_directory=prepared_list.directory,
        tpl_write_page_size=parameters.tpl_page_bytes,
        tpl_write_pages=parameters.tpl_write_cache_bytes // parameters.tpl_page_bytes,
        tpl_initial_file_count=geometry.files,
        tpl_data_file_size=geometry.data_size,
        tpl_current_file_count=geometry.files,
        tpl_transaction_depth=prepared_list.open_transactions,
        tpl_txn_prepares=transactions.prepares,
        tpl_txn_commits=transactions.commits,
        tpl_txn_aborts=transactions.aborts,
        tpl_outstanding_aios=prepared_list.outstanding_flushes,
    )


def _by_bound(bounds: Sequence[int], counts: Sequence[int]) -> dict[str, int]:
    return dict(zip((*map(str, bounds), "inf"), counts, strict=True))


def journal_metrics(store: MessageStore, journal: QueueJournal) -> JournalMetrics:
    """The metrics of one queue's journal."""
    parameters, geometry, records = store.parameters, journal.geometry, journal.writer.records
    blocks = geometry.data_size // BLOCK_SIZE
    return JournalMetrics(
        name=journal.name,
        directory=journal.directory,
        base_file_name=journal.base_name,
        write_page_size=parameters.page_bytes,
        write_pages=parameters.write_cache_bytes // parameters.page_bytes,
        read_page_size=0,
        read_pages=0,
        initial_file_count=journal.initial_files,
        auto_expand=journal.max_files > 0,
        current_file_count=geometry.files,
        max_file_count=max(journal.max_files, geometry.files),
        data_file_size=geometry.data_size,
        record_depth=journal.depth,
        enqueues=journal.enqueues + journal.transaction_enqueues,
        dequeues=journal.dequeues + journal.transaction_dequeues,
        txn=journal.open_transactions,
        txn_enqueues=journal.transaction_enqueues,
        txn_dequeues=journal.transaction_dequeues,
        txn_commits=journal.commits,
        txn_aborts=journal.aborts,
        outstanding_aios=journal.outstanding_flushes,
        free_file_count=max(0, geometry.files - -(-records.blocks // blocks)),
        available_file_count=max(0, records.room) // blocks,
        write_wait_failures=journal.waits,
        write_busy_failures=journal.shortages,
        read_record_count=journal.reads,
        read_busy_failures=journal.slow_reads,
        write_page_cache_depth=-(-journal.unsynced // parameters.page_bytes),
        read_page_cache_depth=0,
    )
