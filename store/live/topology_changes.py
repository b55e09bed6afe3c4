"""Changes to a store's topology: queues, exchanges, bindings, links and bridges.

They are made off the event loop, in order of request; the caller's callback receives the result or the error. A second
queue, exchange or general object with the same name is refused with `NameTakenError`.

Changes that wait for the one under way are made together (`Background.run_together`):

    1  each is added to one batch of the catalogue. A change that is refused, or fails, is left out
           create_queue    a journal that is on the disk, with its directory, from the stock or made now
           delete_queue    pending work was finished; the journal's directory is marked. If nothing was written to it,
                           and only the copy of its info file names it, its name is taken out (`journal_stock`)
    2  the marks of journals are synced
    3  the batch is written to the catalogue, and to its second copy: two syncs. This is the commit point of all of
       them. Meanwhile the names in copies of info files are synced
    4  the callers get their results; journals without a name go back into the stock; then the directories of other
       deleted queues are removed, large ones gradually, and not while a snapshot holds them (`growth`)

If 2 or 3 fails, none of them is made: each caller receives the error.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import qstore.store.log_lines as log_lines
from qstore.formats.broker_records.topology import (
    Binding,
    Bridge,
    Exchange,
    GeneralObject,
    Link,
    Queue,
    encode_binding,
    encode_exchange,
    encode_general,
    encode_queue,
    names_a_host,
)
from qstore.formats.catalogue import BindingEntry, ExchangeEntry, GeneralEntry, Kind, QueueEntry
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.jinf import JournalInfo
from qstore.formats.wording import printable
from qstore.store.catalogue.catalogue import Catalogue
from qstore.store.catalogue.topology import Record, TakenNames
from qstore.store.disk import MOVED, WritableFile
from qstore.store.environment import Background, Environment
from qstore.store.errors import NameTakenError, StoreError, disk_advice
from qstore.store.journal.write.storage import (
    add_deletion_mark,
    remove_journal,
    unmark_deleted,
    withdraw_journal,
)
from qstore.store.journal.write.version_2_writer import new_state
from qstore.store.key_value import CatalogueError
from qstore.store.live.appender import Compression
from qstore.store.live.commit import Flusher
from qstore.store.live.growth import Expansion, HeldDirectories
from qstore.store.live.journal_stock import JournalStock
from qstore.store.live.queue_journal import QueueJournal, resume_journal
from qstore.store.live.returns import Returns
from qstore.store.log_lines import LogLine, Outage
from qstore.store.parameters import StoreParameters

_Made = TypeVar("_Made")

#: Called with the result of a change, or with None and the error.
Changed: TypeAlias = Callable[[_Made | None, Exception | None], None]


class _Added(NamedTuple):
    """A change that is part of a batch.

    Attributes:
        result: for the caller, once the batch is on the disk.
        keep: called then, in the background, with whether `file` is synced: if not, its disk has failed.
        undo: called if the batch fails, likewise.
        marked: a directory that got a mark, which must be synced before the batch; empty for none.
        file: one that is synced while the batch is written, and closed; None for none.
    """

    result: Any = None
    keep: Callable[[bool], None] = lambda _: None
    undo: Callable[[], None] = lambda: None
    marked: str = ""
    file: WritableFile | None = None


#: Adds a change to the batch that is being gathered.
_Change: TypeAlias = Callable[[], _Added]


class Changes:
    """Makes the changes of one store.

    Args:
        environment: disk, clock and so on.
        stock: has journals for new queues.
        parameters: the store's options.
        catalogue: the store's. Used only by the background thread from now on.
        names: the names taken in the catalogue; likewise.
        admit_hosts: called in the background before a virtual host, or an object of one, is stored.
        background: runs the changes.
        flusher: flushes journals.
        expansion: grows journals.
        compression: compresses their messages.
        journals: queue id -> journal; updated here.
        held: removes the directories of deleted queues.
        returns: forgets their messages.
        log: receives log lines.
    """

    def __init__(
        self,
        environment: Environment,
        stock: JournalStock,
        parameters: StoreParameters,
        catalogue: Catalogue,
        names: TakenNames,
        admit_hosts: Callable[[], None],
        is_in_place: Callable[[], bool],
        background: Background,
        flusher: Flusher,
        expansion: Expansion,
        compression: Compression,
        journals: dict[int, QueueJournal],
        held: HeldDirectories,
        returns: Returns,
        log: Callable[[LogLine], None],
    ) -> None:
        self._environment, self._stock, self._parameters = environment, stock, parameters
        self._catalogue, self._background, self._flusher = catalogue, background, flusher
        self._expansion, self._compression = expansion, compression
        self._journals, self._log = journals, log
        self._names, self._admit_hosts, self._is_in_place = names, admit_hosts, is_in_place
        self._leaving: dict[str, QueueJournal] = {}  # queues to be deleted, waiting for their last flush
        self._held, self._returns = held, returns
        what = "queue journals cannot be created or removed"
        self._outage = Outage(what, "queue journals can be created or removed again", log)

    # ---- queues ----

    def create_queue(self, record: Queue, geometry: Geometry, done: Changed[QueueJournal]) -> None:
        """Create a durable queue with an empty journal."""
        encoded, disk = encode_queue(record), self._environment.disk

        def add() -> _Added:
            self._names.check(record)
            self._admit((record,))
            path, info, file = self._stock.take(record, geometry)
            number = info.queue_id
            try:
                self._catalogue.create_queue(QueueEntry(number, number, 1, encoded))
            except CatalogueError:
                if file is not None:
                    file.close()
                self._stock.forget(path)
                with contextlib.suppress(OSError):  # the next start removes the rest
                    remove_journal(disk, path)
                raise
            self._names.add(Kind.QUEUE, number, record)

            def undo() -> None:
                self._stock.forget(path)
                with contextlib.suppress(OSError):  # the next start removes the rest
                    withdraw_journal(disk, path, info.base_name)

            def keep(is_synced: bool) -> None:
                if file is not None and not is_synced:
                    self._stock.keep_name(path)

            return _Added((path, info), keep, undo, file=file)

        def made(result: tuple[str, JournalInfo]) -> None:
            path, info = result
            bound = self._parameters.write_cache_bytes
            journal = resume_journal(self._environment, path, info, geometry, new_state(), bound=bound)
            self._expansion.adopt(journal, record.arguments)
            journal.compression = self._compression.of(record.arguments)
            self._journals[info.queue_id] = journal
            self._outage.worked()
            self._log(log_lines.journal_created(record.name))
            done(journal, None)

        def run(_: Exception | None = None) -> None:
            self._run(f'queue "{printable(record.name)}" cannot be created', add, made, done)

        leaving = self._leaving.get(record.name)
        if leaving is None:
            run()
        else:  # a queue with this name is deleted first
            self._flusher.when_synced((leaving,), run)
            self._flusher.start()

    def delete_queue(self, journal: QueueJournal, done: Changed[None]) -> None:
        """Delete a queue with its messages and all bindings to it. Nothing more may be appended to it."""
        disk, directory = self._environment.disk, journal.directory

        def add() -> _Added:
            file, marked = None, ""
            if journal.is_blank and self._stock.is_unnamed(directory):
                file = self._stock.reclaim(directory)
            if file is None:
                marked = directory
                add_deletion_mark(disk, directory)

            def undo() -> None:
                if marked:
                    unmark_deleted(disk, directory)
                else:
                    self._stock.keep_name(directory)

            def keep(is_synced: bool) -> None:
                if marked or not is_synced or not self._stock.reuse(directory):
                    self._stock.forget(directory)
                    self._held.add(directory)

            try:
                self._catalogue.delete_queue(journal.queue_id)
            except CatalogueError:
                if file is not None:
                    file.close()
                undo()
                raise
            self._names.remove(Kind.QUEUE, journal.queue_id)
            return _Added(None, keep, undo, marked, file)

        def deleted(_: None) -> None:
            self._journals.pop(journal.queue_id, None)
            self._returns.forget(journal.queue_id)
            self._outage.worked()
            journal.delete()
            self._flusher.forget(journal)
            self._background.run(self._held.remove_due, lambda _: None, lambda _: None)
            done(None, None)

        def refused(_: None, error: Exception | None) -> None:
            journal.is_leaving = False
            done(None, error)

        def finished(_: Exception | None) -> None:
            self._leaving.pop(journal.name, None)
            journal.is_leaving = True
            self._run(f'queue "{printable(journal.name)}" cannot be deleted', add, deleted, refused)

        self._leaving[journal.name] = journal
        self._flusher.when_synced((journal,), finished)
        self._flusher.start()

    # ---- exchanges, bindings, general objects ----

    def create_exchange(self, record: Exchange, done: Changed[int]) -> None:
        """Create a durable exchange; `done` receives its number."""

        def create(number: int) -> None:
            self._catalogue.create_exchange(ExchangeEntry(number, encode_exchange(record)))

        change = self._named(Kind.EXCHANGE, record, create)
        self._change(f'exchange "{printable(record.name)}" cannot be created', change, done)

    def delete_exchange(self, number: int, done: Changed[None]) -> None:
        """Delete an exchange and all of its bindings."""
        self.delete_exchange_with(number, (), done)

    def delete_exchange_with(self, number: int, general: Sequence[int], done: Changed[None]) -> None:
        """Delete an exchange, all of its bindings, and other objects by number, in one batch."""

        def add() -> _Added:
            self._catalogue.delete_exchange(number, general)
            self._names.remove(Kind.EXCHANGE, number)
            for each in general:
                self._names.remove(Kind.GENERAL, each)
            return _Added()

        self._change("exchange cannot be deleted", add, done)

    def create_binding(self, exchange_id: int, record: Binding, done: Changed[BindingEntry]) -> None:
        """Bind a queue to an exchange; `done` receives the argument for `delete_binding`."""

        def add() -> _Added:
            number = self._catalogue.take_id(Kind.BINDING)
            entry = BindingEntry(exchange_id, record.queue_id, number, encode_binding(record))
            self._catalogue.create_binding(entry)
            return _Added(entry)

        self._change(f'binding of queue "{printable(record.queue_name)}" cannot be created', add, done)

    def delete_binding(self, binding: BindingEntry, done: Changed[None]) -> None:
        """Delete one binding."""

        def add() -> _Added:
            self._catalogue.delete_binding(binding)
            return _Added()

        self._change("binding cannot be deleted", add, done)

    def create_general(self, record: Link | Bridge | GeneralObject, done: Changed[int]) -> None:
        """Store a link, a bridge or another object; `done` receives its number."""

        def create(number: int) -> None:
            self._catalogue.create_general(GeneralEntry(number, encode_general(record)))

        self._change(f"{record.kind} cannot be stored", self._named(Kind.GENERAL, record, create), done)

    def delete_general(self, number: int, done: Changed[None]) -> None:
        """Delete a link, a bridge or another object."""

        def add() -> _Added:
            self._catalogue.delete_general(number)
            self._names.remove(Kind.GENERAL, number)
            return _Added()

        self._change("object cannot be deleted", add, done)

    def change_general(self, puts: Sequence[GeneralObject], deletes: Sequence[int], done: Changed[list[int]]) -> None:
        """Store objects, each in place of that with its kind and name, and delete others, all in one batch.

        `done` receives the numbers of the stored ones, whose names differ. If a number to be deleted does not
        exist, that is an error, and nothing is changed.
        """
        encoded = [(record, encode_general(record)) for record in puts]

        def add() -> _Added:
            self._catalogue.check_general(deletes)  # all that can fail comes before the first change of the batch
            self._admit(puts)
            held = [self._names.holder(record) for record, _ in encoded]
            numbers = [number or self._catalogue.take_id(Kind.GENERAL) for number in held]
            for number, known, (record, content) in zip(numbers, held, encoded, strict=True):
                if known:
                    self._catalogue.replace_general(GeneralEntry(number, content))
                else:
                    self._catalogue.create_general(GeneralEntry(number, content))
                    self._names.add(Kind.GENERAL, number, record)
            for number in deletes:
                self._catalogue.delete_general(number)
                self._names.remove(Kind.GENERAL, number)
            return _Added(numbers)

        self._change("configuration cannot be stored", add, done)

    def _named(self, kind: Kind, record: Record, create: Callable[[int], None]) -> _Change:
        """A change that creates an object with a unique name by `create`, which receives its number."""

        def add() -> _Added:
            self._names.check(record)
            self._admit((record,))
            number = self._catalogue.take_id(kind)
            create(number)
            self._names.add(kind, number, record)
            return _Added(number)

        return add

    # ---- in the background ----

    def _admit(self, records: Sequence[Record]) -> None:
        """Objects of virtual hosts are stored in a store only that says so. Raises StoreError, OSError."""
        if any(map(names_a_host, records)):
            self._admit_hosts()

    def _change(self, what: str, add: _Change, done: Changed[_Made]) -> None:
        def made(result: _Made) -> None:
            done(result, None)

        self._run(what, add, made, done)

    def _run(
        self,
        what: str,
        add: _Change,
        made: Callable[[_Made], None],
        done: Callable[[None, Exception], None],
    ) -> None:
        def failed(error: Exception) -> None:
            if isinstance(error, OSError):
                where = f"{error.filename}: " if error.filename else ""
                self._outage.failed(f"{where}{error.strerror or error}", disk_advice(error))
            done(None, _as_store_error(what, error))

        self._background.run_together(self._make, add, made, failed)

    def _make(self, changes: Sequence[_Change]) -> list[Any]:
        """Make changes together, in one batch of the catalogue. Returns the result or the error of each."""
        if not self._is_in_place():  # journals, which have paths, would be made or removed in what is there now
            return [OSError(errno.ESTALE, MOVED)] * len(changes)
        results: list[Any] = []
        added: dict[int, _Added] = {}
        self._catalogue.begin()
        for number, add in enumerate(changes):
            try:
                change = added[number] = add()
                results.append(change.result)
            except Exception as error:  # of any kind: it is the caller's, and the others continue
                results.append(error)
        disk, files = self._environment.disk, [each.file for each in added.values() if each.file is not None]
        try:
            disk.sync_all((), [each.marked for each in added.values() if each.marked])
            failure = disk.sync_during(files, self._catalogue.commit)
        except (OSError, CatalogueError) as error:
            self._catalogue.abandon()
            self._names.undo()
            for number, change in added.items():
                results[number] = self._undone(change, error)
        else:
            self._names.keep()
            for change in added.values():
                change.keep(failure is None)
        finally:
            for file in files:
                file.close()
        return results

    @staticmethod
    def _undone(change: _Added, error: Exception) -> Exception:
        """Undo a change whose batch has failed. Returns the error."""
        try:
            change.undo()
        except OSError as further:
            return further
        return error


def _as_store_error(what: str, error: Exception) -> Exception:
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        advice = "; free some space, or choose a smaller journal" if error.errno == errno.ENOSPC else ""
        return StoreError(f"{what}: {where}{error.strerror}{advice}")
    if isinstance(error, CatalogueError | NameTakenError):
        return (NameTakenError if isinstance(error, NameTakenError) else StoreError)(f"{what}: {error}")
    return error
