"""The store: one catalogue, one journal for each durable queue, and the prepared list.

Nothing here waits for the disk, but opening and closing. Messages and transactions are appended at once, or refused at
once, and are on the disk when whoever asked is called back; changes of the catalogue are made beside the event loop
(`changes`) and call back too. Callbacks come from `collect`, which an event loop calls when `fileno` is readable, and
a tool when it likes; or from `start` and `flush`, of what is on the disk by then. `start` sets off what was appended:
once for each batch.

What goes wrong later than at once comes as the callback's argument: an exception, or None. A journal whose disk fails
takes nothing more until the store is opened again, and says so to everybody who waits for it.

    store = MessageStore.open(system_environment(), path, parameters, version, log=log)
    for queue in store.recovered_queues: ... store.messages(queue) ...
    store.end_recovery()
    rid = store.append.enqueue(journal, parts, size, crc)
    store.flush([journal], done)
    ... store.collect() ...
    store.close()
"""

from __future__ import annotations

import contextlib
import select
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Self
from uuid import UUID

import store.log_lines as log_lines
import store.outage as outage
from formats.rhm.store_file import StoreFile
from formats.wording import printable
from store.catalogue.catalogue import Catalogue
from store.catalogue.names import TakenNames
from store.catalogue.opening import CatalogueOpening
from store.catalogue.store_directory import Found, StoreDirectory
from store.catalogue.wiring import Wiring, catalogue_wiring
from store.environment import Environment
from store.errors import StoreDamagedError, StoreError, advice
from store.key_value import CatalogueError
from store.live.appender import Appender
from store.live.changes import Changes
from store.live.delivered import read_delivered, remove_delivered, write_delivered
from store.live.flusher import Flusher
from store.live.queue_journal import Done, QueueJournal
from store.live.rids import RecordIds
from store.live.snapshot import Snapshots, Taken
from store.live.transactions import Transactions
from store.log_lines import Level, LogLine
from store.outage import WatchedKeyValue
from store.parameters import OnDamage, StoreParameters
from store.recovery.close_record import closed_journal, write_close_record
from store.repair.conversion import convert, mark_converted
from store.start.apply import apply_start
from store.start.plan import plan_start
from store.start.started import RecoveredMessage, StartedQueue, StartedStore
from store.sync import SyncDriverError

_RESTORED: Final = "and start with --on-damage quarantine to have what can be saved restored"
CLASS_NAME: Final = "qstore.MessageStore"  # what MST-1001 calls it


class MessageStore:
    """A store that `open` has opened.

    Attributes:
        directory: where it is.
        parameters: the options.
        store_id: its own name.
        was_clean: whether it had been closed cleanly.
        wiring: queues, exchanges, bindings and so on, as they were found.
        recovered_queues: the queues, as they were found, until `end_recovery`.
        journals: queue id -> journal.
        prepared_list: the prepared list's journal.
        append: appends and removes messages.
        transactions: local and distributed transactions.
        changes: makes and deletes queues, exchanges, bindings and so on.
    """

    def __init__(
        self,
        environment: Environment,
        directory: StoreDirectory,
        parameters: StoreParameters,
        log: Callable[[LogLine], None],
    ) -> None:
        """Nothing is done yet: it is `open` that gives a store that can be used."""
        self._environment, self.parameters, self._log = environment, parameters, log
        self.directory = directory
        self._opened = contextlib.ExitStack()
        self._poller: select.epoll | None = None

    @classmethod
    def open(
        cls,
        environment: Environment,
        path: str,
        parameters: StoreParameters,
        software_version: str,
        *,
        log: Callable[[LogLine], None],
    ) -> Self:
        """Open a store, and recover what it holds.

        Args:
            environment: disk, clock and so on.
            path: the store directory. A store is made there if there is none; qpidd's is converted.
            parameters: the options.
            software_version: goes into the STORE file.
            log: takes lines for the log.

        Raises:
            StoreLockedError: another process has it.
            StoreDamagedError: it is damaged, and may not be opened as it is.
            StoreError: it cannot be opened.
        """
        store = cls(environment, StoreDirectory(environment, path, software_version), parameters, log)
        store._open()
        return store

    # ---- opening ----

    def _open(self) -> None:
        """Take the directory and recover what is in it; everything is closed again if that cannot be done."""
        path = self.directory.path
        self._opened.callback(self.directory.lock().release)
        try:
            self._recover()
        except BaseException as error:
            self._opened.close()
            if isinstance(error, OSError):
                where = error.filename or path
                text = f"the store cannot be opened: {error.strerror or error}{advice(error)}"
                raise StoreError(f"{where}: {text}") from error
            if isinstance(error, CatalogueError):
                told = f"{outage.advice()}; qstore-check {path} says whether the catalogue is damaged"
                raise StoreError(f"{error}; {told}") from error
            if isinstance(error, SyncDriverError):
                raise StoreError(str(error)) from error
            raise

    def _recover(self) -> None:
        directory, log = self.directory, self._log
        self._log_mst(log_lines.mst_created(CLASS_NAME))
        self._log_mst(log_lines.mst_location(directory.path))
        mark_converted(self._environment, directory)
        directory.settle()
        if self.parameters.truncate:
            directory.discard()
            log(log_lines.store_truncated(directory.path))
        found = directory.look()
        if found is Found.VERSION_1:
            convert(self._environment, directory, self.parameters, log)
        elif found is Found.NOTHING:
            directory.create(self.parameters.tpl_geometry, self.parameters.flush_alignment)
        mark = directory.read_mark()
        self.store_id, self.was_clean = mark.store_id, mark.clean_close
        catalogue = self._open_catalogue()
        self._tell_duplicates(
            catalogue_wiring(catalogue, directory.catalogue)
        )  # a store that is refused stays as it is
        self._log_mst(log_lines.mst_recovery_start())
        self._delivered = read_delivered(self._environment.disk, directory, self.store_id, was_clean=self.was_clean)
        started = self._started(catalogue, mark)
        self.wiring: Wiring = catalogue_wiring(catalogue, directory.catalogue)
        self._take_over(started, catalogue)
        self._log_mst(log_lines.mst_recovery_complete())
        log(log_lines.store_initialized(directory.path))
        for line in (*log_lines.transactions_in_doubt(directory.path, self.transactions.in_doubt), *self._sizes()):
            log(line)

    def _started(self, catalogue: Catalogue, mark: StoreFile) -> StartedStore:
        """What the store holds, taken up: first it is planned what that needs, and then done."""
        plan = plan_start(self._environment.disk, self.directory, list(catalogue.queues()), mark)
        return apply_start(self._environment, self.directory, catalogue, self.parameters, plan, log=self._log)

    def _sizes(self) -> tuple[LogLine, ...]:
        of = self.parameters
        page, pages = of.page_bytes, of.write_cache_bytes // of.page_bytes
        tpl_page, tpl_pages = of.tpl_page_bytes, of.tpl_write_cache_bytes // of.tpl_page_bytes
        return (
            *log_lines.journal_sizes(of.num_jfiles, of.jfile_size_pgs, page // 1024, pages),
            *log_lines.tpl_sizes(of.tpl_num_jfiles, of.tpl_jfile_size_pgs, tpl_page // 1024, tpl_pages),
        )

    def _open_catalogue(self) -> Catalogue:
        path, refusal = self.directory.path, None
        if self.parameters.on_damage is OnDamage.REFUSE:
            refusal = f"the store is not opened, since on-damage is refuse: see qstore-check {path}, {_RESTORED}"
        opening = CatalogueOpening(self._environment, self.directory, self.store_id, self._log, refusal=refusal)
        key_value = WatchedKeyValue(opening.open(), self._log)
        self._opened.callback(key_value.close)
        return Catalogue(key_value)

    def _tell_duplicates(self, wiring: Wiring) -> None:
        """Say which objects have the name of another, which earlier versions of the store let happen."""
        for each in wiring.duplicates:
            found = each.damage(self.directory.catalogue)
            text = f"{found.file}: {printable(found.what)}: {printable(found.consequence)}"
            if self.parameters.on_damage is OnDamage.REFUSE:
                raise StoreDamagedError(f"{text}; the store is not opened, since on-damage is refuse")
            self._log(LogLine(Level.CRITICAL, f"{text}; delete one of them when its messages are no longer needed"))

    def _take_over(self, started: StartedStore, catalogue: Catalogue) -> None:
        """Everything was read: from here on the store is in use, and not clean."""
        self._journals_opened(started)
        self.directory.mark(self.store_id, clean=False)
        remove_delivered(self._environment.disk, self.directory)
        self._background = self._environment.make_background()
        self._opened.callback(self._background.close)
        self._flusher = Flusher(self._environment.make_driver(self.parameters.sync), self._log)
        self._flusher.moved = self._driver_moved
        self._opened.callback(self._flusher.close)
        self._ids = self._record_ids(started, catalogue)
        self.append = Appender(self._ids, self._flusher, self._log)
        process = UUID(int=self._environment.random_bits(128), version=4)
        self.transactions = Transactions(self.append, self._flusher, self.prepared_list, process)
        self.transactions.complete(started.transactions, list(self.journals.values()))
        self.changes = Changes(
            self._environment, self.directory, self.parameters, catalogue, TakenNames(self.wiring), self._background,
            self._flusher, self.journals, self._log,
        )  # fmt: skip
        self._snapshots = Snapshots(
            self._environment.disk, self.directory, catalogue, self._background, self._flusher,
            self.journals, self.prepared_list, self.changes.held,
        )  # fmt: skip

    def _record_ids(self, started: StartedStore, catalogue: Catalogue) -> RecordIds:
        reserved = catalogue.rid_high_water()
        if started.highest_rid >= max(reserved, 1):
            text = (
                f"{self.directory.catalogue}: record id 0x{started.highest_rid:x} is in use, and ids are reserved only "
                f"up to 0x{reserved:x}: the catalogue has lost its last changes; ids go on above"
            )
            self._log(LogLine(Level.CRITICAL, text))
        self._log(log_lines.highest_record_id(started.highest_rid))
        return RecordIds(catalogue, self._background, self._cannot_reserve, started.highest_rid)

    def _journals_opened(self, started: StartedStore) -> None:
        self.recovered_queues = started.queues
        for queue in started.queues:
            queue.record = self.wiring.queues[queue.queue_id].record
        self.prepared_list = started.prepared_list
        self.journals: dict[int, QueueJournal] = {queue.queue_id: queue.journal for queue in started.queues}
        self._opened.callback(self._close_journals)

    def _close_journals(self) -> None:
        self.end_recovery()
        for journal in (*self.journals.values(), self.prepared_list):
            journal.close()

    def _cannot_reserve(self, error: Exception) -> None:
        self._log(LogLine(Level.CRITICAL, f"no record ids can be reserved: {error}"))

    def _log_mst(self, line: LogLine) -> None:
        if self.parameters.mst_log:
            self._log(line)

    # ---- recovery ----

    def messages(self, queue: StartedQueue) -> Iterator[RecoveredMessage]:
        """The messages of a queue that was found, in its order. To be read before anything is appended to it."""
        return queue.read(lambda rid: self._delivered.holds(queue.queue_id, rid))

    def end_recovery(self) -> None:
        """All messages were read that will be: let the readers go."""
        for queue in self.recovered_queues:
            queue.close()
        self.recovered_queues = []

    # ---- at work ----

    def start(self, *, is_idle: bool = False) -> None:
        """Bring what was appended on its way to the disk.

        Args:
            is_idle: the caller has nothing else to do, so that the disk may be waited for here and now.
        """
        self._flusher.start(is_idle=is_idle)

    def flush(self, journals: Iterable[QueueJournal], done: Done, *, is_idle: bool = False) -> None:
        """Start, and call `done` when all that was appended to `journals` is on the disk, or cannot be."""
        self._flusher.when_synced(journals, done)
        self._flusher.start(is_idle=is_idle)

    def purge(self, journal: QueueJournal, rids: Iterable[int], done: Done) -> None:
        """Remove messages of a queue, and call `done` when that is on the disk."""
        for rid in rids:
            self.append.dequeue(journal, rid)
        self.flush((journal,), done)

    def snapshot(self, checkpoint: str, done: Taken) -> None:
        """Hold still the state of the whole store, with all that was appended so far, to be copied or followed.

        Args:
            checkpoint: a directory that does not exist, for a copy of the catalogue; it goes with the snapshot.
            done: called with the snapshot, which is to be released, or with the error.
        """
        self._snapshots.take(checkpoint, done)

    def collect(self, timeout: float | None = 0.0) -> None:
        """Go on with what the disk has done, and call back.

        Args:
            timeout: seconds to wait for something to happen, if anything is under way; None for as long as it takes.
        """
        self._background.collect()
        if timeout != 0.0 and self._background.is_busy and self.fileno() >= 0 and self._poller is not None:
            self._poller.poll(timeout)
            timeout = 0.0
        self._flusher.collect(timeout)
        self._background.collect()
        self._flusher.start()

    def fileno(self) -> int:
        """A descriptor that is readable when `collect` has something to do; -1 where there never is one."""
        if self._poller is None:
            descriptors = [each for each in (self._flusher.fileno(), self._background.fileno()) if each >= 0]
            if not descriptors:
                return -1
            self._poller = select.epoll()
            self._opened.callback(self._poller.close)
            for descriptor in descriptors:
                self._poller.register(descriptor, select.EPOLLIN)
        return self._poller.fileno()

    def _driver_moved(self, old: int, new: int) -> None:
        """Another driver, or none, has taken the place of one that is dead: its descriptor is readable for ever."""
        if self._poller is not None and old >= 0:
            self._poller.unregister(old)
            if new >= 0:
                self._poller.register(new, select.EPOLLIN)

    @property
    def failure(self) -> Exception | None:
        """Why nothing is synced any more; None if it is. Single journals may have failed all the same."""
        return self._flusher.failure

    def look(self) -> None:
        """See that the disk is not waited for in vain, and log it. To be called about every second."""
        self._flusher.look()

    def will_close(self) -> None:
        """From now on nothing is waited for without a bound. May be called by any thread; `close` does it too."""
        self._flusher.supervision.is_closing = True

    @property
    def progress(self) -> int:
        """How often the disk has done something. May be asked for by any thread."""
        return self._flusher.synced + self._background.finished

    # ---- closing ----

    def close(self, delivered: Mapping[int, Iterable[int]] | None = None) -> bool:
        """Finish what is under way, seal every journal, and let the store go.

        Args:
            delivered: queue id -> record ids of the messages that had been delivered, and come back as redelivered.

        Returns:
            Whether the store is marked clean. It is not if a journal has failed.
        """
        self.will_close()
        is_clean = False
        try:
            self._snapshots.close()
            self._finish()
            is_clean = self._seal()
            if is_clean:
                write_delivered(self.directory, self.store_id, delivered or {})
                journals = (self.prepared_list, *self.journals.values())
                write_close_record(self.directory, self.store_id, map(closed_journal, journals))
                self.directory.mark(self.store_id, clean=True, close_record=True)
        except OSError as error:
            self._log(LogLine(Level.CRITICAL, f"the store cannot be closed cleanly: {error}"))
            is_clean = False
        finally:
            is_clean = self._let_go() and is_clean
        self._log_mst(log_lines.mst_closed())
        return is_clean

    def _let_go(self) -> bool:
        """Close everything that is open. Whether that was possible."""
        try:
            self._opened.close()
        except CatalogueError as error:
            self._log(LogLine(Level.CRITICAL, f"the store is not closed cleanly: {error}"))
            return False
        return True

    def _finish(self) -> None:
        """Until nothing is under way any more, callbacks of callbacks included."""
        everything = (*self.journals.values(), self.prepared_list)
        while True:
            self._background.wait()
            self.collect()
            self._flusher.drain(everything)
            self.collect()
            if self._flusher.is_idle and not self._background.is_busy:
                return
            everything = (*self.journals.values(), self.prepared_list)

    def _seal(self) -> bool:
        everything = (*self.journals.values(), self.prepared_list)
        sealed = [journal.writer.seal() for journal in everything]
        self._flusher.drain(everything)
        failed = [journal for journal in everything if journal.writer.failure is not None]
        if failed:
            what = f"{len(failed)} of its {len(everything)} journals failed; the first: {failed[0].writer.failure}"
            self._log(LogLine(Level.CRITICAL, f"the store is not closed cleanly: {what}"))
        return all(sealed) and not failed

    def __enter__(self) -> MessageStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
