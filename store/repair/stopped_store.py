"""A store of version 2 that is not running, locked by a tool that changes its journals: resizing, importing.

The parts that both need: the lock, the catalogue, the record of the closing, and the directory of new journals
(`resized.new`), whose content no reader takes for a part of the store; the remains of an interrupted run in it are
removed here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final

from qstore.formats.broker_records.topology import decode_queue
from qstore.formats.catalogue import QueueEntry
from qstore.formats.errors import BrokerRecordError
from qstore.formats.rhm.close_record import ClosedJournal, SyncedJournal
from qstore.formats.rhm.geometry import MAX_FILES, Geometry
from qstore.formats.rhm.jinf import JournalInfo
from qstore.store.catalogue.catalogue import Catalogue
from qstore.store.catalogue.opening import CatalogueOpening
from qstore.store.catalogue.store_directory import LOCK, Found, StoreDirectory, remove_tree
from qstore.store.environment import Environment
from qstore.store.errors import StoreDamagedError, StoreError, StoreLockedError, advice
from qstore.store.key_value import CatalogueError
from qstore.store.log_lines import LogLine
from qstore.store.recovery.close_record import read_closing, write_close_record, write_synced
from qstore.store.unfinished import NEW, NEW_LIST

BUILDING: Final = "resized.new"


@contextlib.contextmanager
def reported_errors(path: str) -> Iterator[None]:
    """Convert errors of the system or the catalogue to a StoreError about the store at `path`."""
    try:
        yield
    except CatalogueError as error:
        raise StoreError(str(error)) from error
    except OSError as error:
        raise StoreError(f"{error.filename or path}: {error.strerror or error}{advice(error)}") from error


class StoppedStore(AbstractContextManager["StoppedStore"]):
    """A locked store of version 2.

    Args:
        environment: disk, clock and so on.
        path: the store directory.
        software_version: of this program.
        version_1: the alternative for qpidd's store, for the error.
        read_only: nothing will be written; `environment` opens the catalogue read-only.
        log: receives warnings.

    Attributes:
        directory: where it is.
        mark: the content of its STORE file.
        closing: the record of its closing.
        catalogue: its catalogue.
        entries: its queues by name, in order of their ids.

    Raises:
        StoreLockedError: a broker has locked it.
        StoreDamagedError: its catalogue is damaged.
        StoreError: it is not a store of version 2, or cannot be read.
    """

    def __init__(
        self,
        environment: Environment,
        path: str,
        software_version: str,
        *,
        version_1: str,
        read_only: bool = False,
        log: Callable[[LogLine], None] = lambda _: None,
    ) -> None:
        self._environment, self._disk = environment, environment.disk
        self._log, self._version_1 = log, version_1
        self.directory = StoreDirectory(environment, path, software_version)
        self._opened = contextlib.ExitStack()
        try:
            with self.errors():
                self._take(read_only=read_only)
        except BaseException:
            self._opened.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    def _take(self, *, read_only: bool) -> None:
        directory, disk = self.directory, self._disk
        if not disk.is_directory(directory.path):
            raise StoreError(f"{directory.path}: no such directory")
        self._check_version(is_finished=False)  # before anything is created in a foreign directory
        if not read_only or disk.is_file(directory.below(LOCK)):
            try:
                self._opened.callback(directory.lock().release)
            except StoreLockedError:
                text = "another process has locked the store: stop the broker first"
                raise StoreLockedError(f"{directory.path}: {text}") from None
        if not read_only:
            directory.finish_interrupted()
        self._check_version(is_finished=True)
        self.mark = mark = directory.read_mark()
        self.closing, found = read_closing(disk, directory.root, mark)
        if found:
            raise StoreDamagedError(f"{found[0].file}: {found[0].what}; run qstore-check {directory.path}")
        if not read_only:
            self._clear()
        refusal = f"starting the broker restores it, unless on-damage is refuse; run qstore-check {directory.path}"
        least = self.closing.batch
        opening = CatalogueOpening(self._environment, directory, mark.store_id, self._log, refusal=refusal, least=least)
        key_value = opening.open(read_only=read_only)
        self._opened.callback(key_value.close)
        self._mirrored = opening.mirrored
        self.catalogue = Catalogue(key_value)
        self.entries = {self._name(entry): entry for entry in self.catalogue.queues()}

    def _check_version(self, *, is_finished: bool) -> None:
        """Raise StoreError unless there is a store of version 2, or one that `finish_interrupted` completes."""
        directory = self.directory
        found = directory.look()
        if found is Found.VERSION_1:
            raise StoreError(f"{directory.path}: this is qpidd's store (version 1): {self._version_1}")
        if found is Found.NOTHING and (is_finished or not self._disk.is_directory(directory.below(NEW))):
            raise StoreError(f"{directory.path}: no store here")

    def _name(self, entry: QueueEntry) -> str:
        try:
            return decode_queue(entry.record).name
        except BrokerRecordError as error:
            raise StoreDamagedError(f"{self.directory.catalogue}: queue {entry.queue_id}: {error.what}") from error

    def _clear(self) -> None:
        """Finish, or remove, the remains of an interrupted run."""
        directory, disk = self.directory, self._disk
        building, tpl, new = directory.part(BUILDING), directory.prepared_list, directory.part(NEW_LIST)
        if disk.is_directory(building):
            remove_tree(disk, building)
        if disk.is_directory(new):
            if disk.is_directory(tpl):
                remove_tree(disk, new)
            else:
                disk.rename(new, tpl)
        disk.sync_directory(directory.root)

    def record(self, built: Collection[ClosedJournal]) -> None:
        """Record new journals, which are sealed and in the catalogue, beside the others. Raises OSError."""
        assert self._mirrored is not None
        mark, closing = self.mark, self.closing
        if mark.close_record:  # until now it has no entries for them
            journals = {each.queue_id: each for each in closing.journals.values()}
            journals.update((each.queue_id, each) for each in built)
            write_close_record(self.directory, mark.store_id, journals.values())
        synced = {each.queue_id: each for each in closing.synced.values()}
        for each in built:
            synced[each.queue_id] = SyncedJournal(each.queue_id, each.journal_id, each.incarnation, each.flush)
        write_synced(self.directory, mark.store_id, self._mirrored.batch, synced.values())

    def errors(self) -> AbstractContextManager[None]:
        """Convert errors of the system or the catalogue to one line."""
        return reported_errors(self.directory.path)

    def info_of(self, info: JournalInfo, geometry: Geometry) -> JournalInfo:
        """The info file of a journal that is built anew from the one with `info`, before it grows again."""
        seconds, nanoseconds = divmod(self._environment.clock(), 1_000_000_000)
        return info._replace(
            geometry=geometry,
            seconds=seconds,
            nanoseconds=nanoseconds,
            creation_headers=True,
            ring=(),
            spare=(),
            initial_files=MAX_FILES if geometry.files > MAX_FILES else 0,  # it has grown
        )
