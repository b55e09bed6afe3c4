"""Changes to a store's topology: queues, exchanges, bindings, links and bridges.

Each is one synced batch of the catalogue, made off the event loop, in order of request; the caller's callback receives
the result or the error. A second queue, exchange or general object with the same name is refused with `NameTakenError`.

    create_queue    the journal is built and synced, with its directory; then the catalogue's batch is the commit point
    delete_queue    pending work is finished, the journal is marked; the batch (the queue and its bindings) is the
                    commit point; then the journal's directory is removed, gradually if it is large, and not while a
                    snapshot holds it (`growth`)
    all others      the batch alone
"""

from __future__ import annotations

import contextlib
import errno
import posixpath
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

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
)
from qstore.formats.catalogue import BindingEntry, ExchangeEntry, GeneralEntry, Kind, QueueEntry
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.jinf import JournalInfo
from qstore.formats.wording import printable
from qstore.store.catalogue.catalogue import Catalogue
from qstore.store.catalogue.store_directory import StoreDirectory
from qstore.store.catalogue.topology import Record, TakenNames
from qstore.store.environment import Background, Environment
from qstore.store.errors import NameTakenError, StoreError, disk_advice
from qstore.store.journal.write.storage import (
    create_journal,
    mark_deleted,
    remove_journal,
    unmark_deleted,
    withdraw_journal,
)
from qstore.store.journal.write.version_2_writer import new_state
from qstore.store.key_value import CatalogueError
from qstore.store.live.appender import Compression
from qstore.store.live.commit import Flusher
from qstore.store.live.growth import Expansion, HeldDirectories
from qstore.store.live.queue_journal import QueueJournal, journal_info, resume_journal
from qstore.store.log_lines import LogLine, Outage
from qstore.store.parameters import StoreParameters

_Made = TypeVar("_Made")

#: Called with the result of a change, or with None and the error.
Changed: TypeAlias = Callable[[_Made | None, Exception | None], None]


class Changes:
    """Makes the changes of one store.

    Args:
        environment: disk, clock and so on.
        directory: the store's.
        parameters: the store's options.
        catalogue: the store's. Used only by the background thread from now on.
        names: the names taken in the catalogue; likewise.
        background: runs the changes.
        flusher: flushes journals.
        expansion: grows journals.
        compression: compresses their messages.
        journals: queue id -> journal; updated here.
        held: removes the directories of deleted queues.
        log: receives log lines.
    """

    def __init__(
        self,
        environment: Environment,
        directory: StoreDirectory,
        parameters: StoreParameters,
        catalogue: Catalogue,
        names: TakenNames,
        background: Background,
        flusher: Flusher,
        expansion: Expansion,
        compression: Compression,
        journals: dict[int, QueueJournal],
        held: HeldDirectories,
        log: Callable[[LogLine], None],
    ) -> None:
        self._environment, self._directory, self._parameters = environment, directory, parameters
        self._catalogue, self._background, self._flusher = catalogue, background, flusher
        self._expansion, self._compression = expansion, compression
        self._journals, self._log = journals, log
        self._names = names
        self._leaving: dict[str, QueueJournal] = {}  # queues to be deleted, waiting for their last flush
        self._held = held
        what = "queue journals cannot be created or removed"
        self._outage = Outage(what, "queue journals can be created or removed again", log)

    # ---- queues ----

    def create_queue(self, record: Queue, geometry: Geometry, done: Changed[QueueJournal]) -> None:
        """Create a durable queue with an empty journal."""
        encoded = encode_queue(record)

        def work() -> tuple[str, JournalInfo]:
            self._names.check(record)
            number = self._catalogue.take_id(Kind.QUEUE)
            alignment = self._parameters.flush_alignment
            info = journal_info(
                self._environment, record.name, geometry, alignment, queue_id=number, incarnation=1, record=encoded
            )
            path = self._directory.journal(number)
            self._make_journal(path, info)
            try:
                self._catalogue.create_queue(QueueEntry(number, number, 1, encoded))
            except CatalogueError:
                with contextlib.suppress(OSError):  # the next start removes the rest
                    withdraw_journal(self._environment.disk, path, info.base_name)
                raise
            self._names.add(Kind.QUEUE, number, record)
            return path, info

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
            self._run(f'queue "{printable(record.name)}" cannot be created', work, made, done)

        leaving = self._leaving.get(record.name)
        if leaving is None:
            run()
        else:  # a queue with this name is deleted first
            self._flusher.when_synced((leaving,), run)
            self._flusher.start()

    def _make_journal(self, path: str, info: JournalInfo) -> None:
        disk = self._environment.disk
        try:
            create_journal(disk, path, info)
            disk.sync_directory(posixpath.dirname(path))
        except OSError:
            with contextlib.suppress(OSError):  # the next start removes the rest
                remove_journal(disk, path)
            raise

    def delete_queue(self, journal: QueueJournal, done: Changed[None]) -> None:
        """Delete a queue with its messages and all bindings to it. Nothing more may be appended to it."""

        def work() -> None:
            mark_deleted(self._environment.disk, journal.directory)
            try:
                self._catalogue.delete_queue(journal.queue_id)
            except CatalogueError:
                unmark_deleted(self._environment.disk, journal.directory)
                raise
            self._names.remove(Kind.QUEUE, journal.queue_id)
            self._held.remove(journal.directory)

        def deleted(_: None) -> None:
            self._journals.pop(journal.queue_id, None)
            self._outage.worked()
            journal.delete()
            self._flusher.forget(journal)
            done(None, None)

        def refused(_: None, error: Exception | None) -> None:
            journal.is_leaving = False
            done(None, error)

        def finished(_: Exception | None) -> None:
            self._leaving.pop(journal.name, None)
            journal.is_leaving = True
            self._run(f'queue "{printable(journal.name)}" cannot be deleted', work, deleted, refused)

        self._leaving[journal.name] = journal
        self._flusher.when_synced((journal,), finished)
        self._flusher.start()

    # ---- exchanges, bindings, general objects ----

    def create_exchange(self, record: Exchange, done: Changed[int]) -> None:
        """Create a durable exchange; `done` receives its number."""

        def create(number: int) -> None:
            self._catalogue.create_exchange(ExchangeEntry(number, encode_exchange(record)))

        work = self._named(Kind.EXCHANGE, record, create)
        self._change(f'exchange "{printable(record.name)}" cannot be created', work, done)

    def delete_exchange(self, number: int, done: Changed[None]) -> None:
        """Delete an exchange and all of its bindings."""
        self.delete_exchange_with(number, (), done)

    def delete_exchange_with(self, number: int, general: Sequence[int], done: Changed[None]) -> None:
        """Delete an exchange, all of its bindings, and other objects by number, in one batch."""

        def work() -> None:
            self._catalogue.delete_exchange(number, general)
            self._names.remove(Kind.EXCHANGE, number)
            for each in general:
                self._names.remove(Kind.GENERAL, each)

        self._change("exchange cannot be deleted", work, done)

    def create_binding(self, exchange_id: int, record: Binding, done: Changed[BindingEntry]) -> None:
        """Bind a queue to an exchange; `done` receives the argument for `delete_binding`."""

        def work() -> BindingEntry:
            number = self._catalogue.take_id(Kind.BINDING)
            entry = BindingEntry(exchange_id, record.queue_id, number, encode_binding(record))
            self._catalogue.create_binding(entry)
            return entry

        self._change(f'binding of queue "{printable(record.queue_name)}" cannot be created', work, done)

    def delete_binding(self, binding: BindingEntry, done: Changed[None]) -> None:
        """Delete one binding."""
        self._change("binding cannot be deleted", lambda: self._catalogue.delete_binding(binding), done)

    def create_general(self, record: Link | Bridge | GeneralObject, done: Changed[int]) -> None:
        """Store a link, a bridge or another object; `done` receives its number."""

        def create(number: int) -> None:
            self._catalogue.create_general(GeneralEntry(number, encode_general(record)))

        self._change(f"{record.kind} cannot be stored", self._named(Kind.GENERAL, record, create), done)

    def delete_general(self, number: int, done: Changed[None]) -> None:
        """Delete a link, a bridge or another object."""

        def work() -> None:
            self._catalogue.delete_general(number)
            self._names.remove(Kind.GENERAL, number)

        self._change("object cannot be deleted", work, done)

    def _named(self, kind: Kind, record: Record, create: Callable[[int], None]) -> Callable[[], int]:
        """Work that creates an object with a unique name by `create`, which receives its number."""

        def work() -> int:
            self._names.check(record)
            number = self._catalogue.take_id(kind)
            create(number)
            self._names.add(kind, number, record)
            return number

        return work

    # ---- in the background ----

    def _change(self, what: str, work: Callable[[], _Made], done: Changed[_Made]) -> None:
        self._run(what, work, lambda made: done(made, None), done)

    def _run(
        self,
        what: str,
        work: Callable[[], _Made],
        made: Callable[[_Made], None],
        done: Callable[[None, Exception], None],
    ) -> None:
        def failed(error: Exception) -> None:
            if isinstance(error, OSError):
                where = f"{error.filename}: " if error.filename else ""
                self._outage.failed(f"{where}{error.strerror or error}", disk_advice(error))
            done(None, _as_store_error(what, error))

        self._background.run(work, made, failed)


def _as_store_error(what: str, error: Exception) -> Exception:
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        advice = "; free some space, or choose a smaller journal" if error.errno == errno.ENOSPC else ""
        return StoreError(f"{what}: {where}{error.strerror}{advice}")
    if isinstance(error, CatalogueError | NameTakenError):
        return (NameTakenError if isinstance(error, NameTakenError) else StoreError)(f"{what}: {error}")
    return error
