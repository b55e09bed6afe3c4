"""Opens the catalogue of a store, with its second copy; restores a catalogue that is damaged, lost or out of date.

The action depends on `topology_copy.judge`:

    verdict    action
    ---------  ---------------------------------------------------------------------------------------------------
    SOUND      both are used
    STALE      the copy is rewritten without a log line: normal after a crash
    COPY_LOST  likewise, with a critical line, or refused; with a warning if a store of older software has no copy
    RESTORE    refused, or the catalogue is rebuilt from the copy
    SALVAGE    refused, or the catalogue is rebuilt from the readable parts of both, and from the journals' info files

A catalogue is built next to the old one and read back before the two are switched:

    step                                                       a start after a crash in or after this step
    ---------------------------------------------------------  -------------------------------------------------------
    1. log the damage and the losses                           logs them again
    2. build `catalogue.new`, read it back                     removes it, and starts over
    3. move `catalogue` into `quarantine`, if it exists;       finds `catalogue.new` alone, renames it, and moves a
       after SALVAGE the copy, too                             damaged copy
    4. rename `catalogue.new` to `catalogue`                   is complete. If the catalogue had been removed before, a
                                                               crash in step 2 leaves `catalogue.new` alone, too: it
                                                               is removed if it is incomplete

Salvage keeps the decodable entries of the better of the two, and every journal with a readable info file restores its
queue: the info file holds the queue's whole record. Exchanges, bindings and other objects are stored nowhere else. A
queue that was deleted has its mark in its journal's directory, or no directory any more, so it does not reappear.

From then on each batch is in the map and in the copy before `MirroredKeyValue.write` returns:

    write, in this order                                    a crash after it leaves
    ------------------------------------------------------  -----------------------------------------------------
    1. the batch is written to the map and synced           the copy one batch behind; nothing was acknowledged
    2. its record is appended to the copy and synced        both
    or 2. a new copy is written, synced, renamed in place   the old copy, one batch behind; or both

The second way is used when the room in the file is used up, and after a failure of the copy's file: the result of a
failed sync is never trusted. While the copy cannot be written, no further change is made: it is never more than one
batch behind.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final
from uuid import UUID

from qstore.formats.broker_records.topology import decode_queue
from qstore.formats.catalogue import (
    FORMAT_VERSION,
    NUMBERED_KINDS,
    BindingEntry,
    CatalogueFormatError,
    Census,
    Entry,
    ExchangeEntry,
    GeneralEntry,
    Kind,
    Meta,
    NextId,
    QueueEntry,
    RidReservation,
    decode,
    encode,
)
from qstore.formats.errors import BrokerRecordError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.jinf import JournalInfo
from qstore.formats.topology_copy import encode_batch
from qstore.formats.wording import plural, printable
from qstore.store.catalogue.catalogue import Catalogue, CatalogueDamage
from qstore.store.catalogue.store_directory import StoreDirectory, remove_tree
from qstore.store.catalogue.topology_copy import (
    NAME,
    CatalogueView,
    Judgement,
    Verdict,
    batch_of,
    differences,
    judge,
    shown,
    view_catalogue,
    view_copy,
)
from qstore.store.disk import Disk, WritableDisk, WritableFile
from qstore.store.environment import Environment
from qstore.store.errors import StoreDamagedError, StoreError, advice
from qstore.store.journal.directory import DELETED, read_info
from qstore.store.key_value import CatalogueDamagedError, CatalogueError, KeyValue, MapDamage
from qstore.store.log_lines import Level, LogLine
from qstore.store.unfinished import CATALOGUE, NEW_CATALOGUE

# ---- both maps together ----


class MirroredKeyValue:
    """A `KeyValue` with a second copy.

    Args:
        key_value: the catalogue's map, which has a census; closed with this.
        disk: the disk with the copy.
        directory: the store's.
        store_id: the store's unique id.
        log: receives log lines.

    Attributes:
        batch: number of the last batch that both have; may be read in any thread.
    """

    __slots__ = ("_directory", "_disk", "_end", "_file", "_key_value", "_log", "_store_id", "batch")

    def __init__(
        self,
        key_value: KeyValue,
        disk: WritableDisk,
        directory: StoreDirectory,
        store_id: UUID,
        log: Callable[[LogLine], None],
    ) -> None:
        self._key_value, self._disk, self._directory = key_value, disk, directory
        self._store_id, self._log = store_id, log
        self._file: WritableFile | None = None
        self._end = self.batch = 0

    # ---- the copy ----

    def resume(self, end: int, batch: int) -> None:
        """Continue an existing copy, equal to the map, after its last record, that of `batch`. Raises OSError."""
        self._file = self._disk.open_writable(posixpath.join(self._directory.root, NAME))
        self._end = end
        self._file.sync()  # a killed process may have left its last record unsynced
        self.batch = batch

    def renew(self) -> None:
        """Write a new copy of the whole map. Raises OSError, CatalogueError."""
        self._drop()
        self._end = self._directory.write_topology(self._store_id, self._key_value)
        self.batch = batch_of(dict(self._key_value.items(Kind.CENSUS.prefix)))
        self._file = self._disk.open_writable(posixpath.join(self._directory.root, NAME))

    def _keep(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Write a batch that is in the map to the copy too. Raises OSError, CatalogueError."""
        file = self._file
        if file is not None:
            record = encode_batch(self._store_id, _batch(changes), changes)
            if self._end + len(record) <= file.size:
                try:
                    file.write(self._end, record)
                    file.sync()
                except OSError:
                    self._drop()
                    raise
                self._end += len(record)
                self.batch = _batch(changes)
                return
        self.renew()

    def _drop(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    # ---- the map ----

    @property
    def damage(self) -> tuple[MapDamage, ...]:
        """Damage that was found and skipped when the map was opened."""
        return self._key_value.damage

    def get(self, key: bytes) -> bytes | None:
        """The value at `key`; None if there is none."""
        return self._key_value.get(key)

    def items(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys that start with `prefix`, with their values, in key order, as of the time of this call."""
        return self._key_value.items(prefix)

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Change the map and its copy: all or nothing, and durable on return."""
        if self._file is None:
            try:
                self.renew()
            except OSError as error:
                raise CatalogueError(self._failure(error)) from error
        self._key_value.write(changes)
        try:
            self._keep(changes)
        except (OSError, CatalogueError) as error:
            hint = advice(error) if isinstance(error, OSError) else ""
            text = f"{self._failure(error)}{hint}; queues, exchanges and bindings cannot be changed until it is"
            self._log(LogLine(Level.CRITICAL, text))

    def _failure(self, error: OSError | CatalogueError) -> str:
        path = posixpath.join(self._directory.root, NAME)
        cause = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        return f"{path}: the second copy of the topology cannot be written: {cause}"

    def checkpoint(self, directory: str) -> None:
        """Copy the map into a new directory, without the second copy."""
        self._key_value.checkpoint(directory)

    def close(self) -> None:
        """Close both. May be called twice."""
        self._drop()
        self._key_value.close()


def _batch(changes: Mapping[bytes, bytes | None]) -> int:
    """The number of a batch, from its census."""
    return batch_of({key: value for key, value in changes.items() if value is not None})


# ---- salvage ----

MAX_ID: Final = 1 << 62
"""Ids from a damaged file are accepted below this one: higher ones must remain."""


class FoundJournal(NamedTuple):
    """A journal's directory in a store, and the content of its info file."""

    journal_id: int
    info: JournalInfo

    @property
    def entry(self) -> QueueEntry:
        """Its queue, as an entry of the catalogue."""
        return QueueEntry(self.info.queue_id, self.journal_id, self.info.incarnation, self.info.queue_record)

    @property
    def is_legal(self) -> bool:
        """Whether a catalogue can have that entry."""
        try:
            decode_queue(self.info.queue_record)
        except BrokerRecordError:
            return False
        return 0 < self.info.queue_id < MAX_ID and 0 < self.journal_id < MAX_ID


def find_journals(disk: Disk, directory: StoreDirectory) -> Iterator[FoundJournal]:
    """The journals of queues that were not deleted, by the names of their directories."""
    parent = directory.part("jrnl")
    for name in disk.names(parent) if disk.is_directory(parent) else ():
        path = posixpath.join(parent, name)
        if name.isdecimal() and disk.is_directory(path) and DELETED not in disk.names(path):
            info = read_info(disk, path)
            if info is not None:
                yield FoundJournal(int(name), info)


def salvaged(
    disk: Disk, directory: StoreDirectory, store_id: UUID, judgement: Judgement
) -> tuple[dict[bytes, bytes], str]:
    """The entries of the rebuilt catalogue, and a text about restored and lost ones."""
    salvage = _Salvage(disk, directory, judgement)
    return salvage.encoded(store_id), salvage.summary


class _Salvage:
    def __init__(self, disk: Disk, directory: StoreDirectory, judgement: Judgement) -> None:
        self._disk, self._directory, self._judgement = disk, directory, judgement
        self._queues: dict[int, QueueEntry] = {}
        self._exchanges: dict[int, ExchangeEntry] = {}
        self._bindings: list[BindingEntry] = []
        self._general: dict[int, GeneralEntry] = {}
        self._next = dict.fromkeys(NUMBERED_KINDS, 1)
        self._rids = RidReservation(0)
        self._gone: list[str] = []
        for key, value in judgement.entries.items():
            with contextlib.suppress(CatalogueFormatError, BrokerRecordError):
                self._take(decode(key, value))
        self._from_catalogue = len(self._queues)
        self._add_journals()
        known = [each for each in self._bindings if each.queue_id in self._queues]
        self._bindings = [each for each in known if each.exchange_id in self._exchanges]

    def _take(self, entry: Entry) -> None:
        if isinstance(entry, QueueEntry):
            name, path = decode_queue(entry.record).name, self._directory.journal(entry.journal_id)
            if self._disk.is_directory(path) and DELETED not in self._disk.names(path):
                self._queues[entry.queue_id] = entry
            else:
                self._gone.append(f'"{name}"')
        elif isinstance(entry, ExchangeEntry):
            self._exchanges[entry.exchange_id] = entry
        elif isinstance(entry, BindingEntry):
            self._bindings.append(entry)
        elif isinstance(entry, GeneralEntry):
            self._general[entry.general_id] = entry
        elif isinstance(entry, NextId):
            self._next[entry.kind] = entry.next_id
        elif isinstance(entry, RidReservation):
            self._rids = entry

    def _add_journals(self) -> None:
        """Add the journals' own queues; of several journals of one queue the newest is used."""
        names = {decode_queue(each.record).name: each.queue_id for each in self._queues.values()}
        for found in find_journals(self._disk, self._directory):
            known = self._queues.get(found.info.queue_id)
            name = found.info.queue_name
            is_taken = names.setdefault(name, found.info.queue_id) != found.info.queue_id
            if found.is_legal and not is_taken and (known is None or known.incarnation < found.info.incarnation):
                self._queues[found.info.queue_id] = found.entry

    def encoded(self, store_id: UUID) -> dict[bytes, bytes]:
        """All entries, with a census and the next ids."""
        numbered: dict[Kind, list[tuple[int, Entry]]] = {
            Kind.QUEUE: [(max(each.queue_id, each.journal_id), each) for each in self._queues.values()],
            Kind.EXCHANGE: list(self._exchanges.items()),
            Kind.BINDING: [(each.sequence, each) for each in self._bindings],
            Kind.GENERAL: list(self._general.items()),
        }
        counts = Counter({kind: len(entries) for kind, entries in numbered.items()})
        census = Census(self._judgement.batch + 1, *(counts[kind] for kind in NUMBERED_KINDS))
        entries: list[Entry] = [Meta(FORMAT_VERSION, store_id), census, self._rids]
        for kind, each in numbered.items():
            highest = max((number for number, _ in each), default=0)
            entries.append(NextId(kind, max(self._next[kind], highest + 1)))
            entries.extend(entry for _, entry in each)
        return dict(map(encode, entries))

    @property
    def summary(self) -> str:
        """The restored entries, and the lost ones, as text."""
        why = "it is missing" if self._judgement.copy_is_missing else self._judgement.copy_problem
        gone = f"; without a journal, and so considered deleted: {shown(self._gone)}" if self._gone else ""
        of_journals = len(self._queues) - self._from_catalogue
        queues, exchanges = plural(len(self._queues), "queue"), plural(len(self._exchanges), "exchange")
        return (
            f"its second copy is unusable: {why}; rebuilt with {queues}, {of_journals:,} of them from their journals "
            f"alone, and with {exchanges} and {plural(len(self._bindings), 'binding')}, which were readable{gone}: all "
            "other exchanges, bindings and links are lost and must be declared again"
        )


# ---- opening ----

Log = Callable[[LogLine], None]


class CatalogueOpening:
    """Opens the catalogue of one store, which is locked and without interrupted work.

    Args:
        environment: disk, clock and so on.
        directory: the store's.
        store_id: the store's unique id, from its STORE file.
        log: receives log lines.
        refusal: why a damaged catalogue is not restored, for the error; None to restore it.
        least: number of a batch that the catalogue and its copy are known to have had; 0 if unknown.

    Attributes:
        mirrored: the result of `open`, unless it was read-only.
    """

    def __init__(
        self,
        environment: Environment,
        directory: StoreDirectory,
        store_id: UUID,
        log: Log,
        *,
        refusal: str | None,
        least: int,
    ) -> None:
        self._environment, self._disk = environment, environment.disk
        self._directory, self._store_id = directory, store_id
        self._log, self._refusal, self._least = log, refusal, least
        self.mirrored: MirroredKeyValue | None = None
        self._key_value: KeyValue | None = None
        self._has_switched = False

    def open(self, *, read_only: bool = False) -> KeyValue:
        """The catalogue's map, sound and with its copy; with `read_only` without a copy, and nothing is written.

        Raises:
            StoreDamagedError: it is damaged, and must not be restored.
            StoreError: it belongs to another store.
            CatalogueError: it cannot be opened, though it is not damaged.
            OSError: the copy cannot be written, or the catalogue cannot be restored.
        """
        try:
            if not read_only:
                self._finish_switch()
            return self._opened(read_only=read_only)
        except BaseException:
            self._close()
            raise

    def _opened(self, *, read_only: bool) -> KeyValue:
        view = self._view()
        sound = None if view.damage else view.entries
        copy = view_copy(self._disk, self._directory.part(NAME), self._store_id, self._least, sound)
        judgement = judge(view, copy)
        if judgement.verdict in (Verdict.RESTORE, Verdict.SALVAGE):
            if self._refusal is not None:
                raise StoreDamagedError(f"{self._directory.catalogue}: {judgement.damage[0]}; {self._refusal}")
            self._close()
            self._restore(judgement, view)
        elif judgement.verdict is Verdict.COPY_LOST and not read_only:
            self._report_lost_copy(judgement)
            is_directory = self._disk.is_directory(self._directory.part(NAME))  # no file can replace it
            if is_directory or (self._has_switched and not judgement.copy_is_missing):
                self._set_aside(self._directory.part(NAME))
        assert self._key_value is not None
        if read_only:
            return self._key_value
        mirrored = MirroredKeyValue(self._key_value, self._disk, self._directory, self._store_id, self._log)
        self._key_value = self.mirrored = mirrored
        if judgement.verdict in (Verdict.SOUND, Verdict.RESTORE) and copy.content is not None and not copy.is_torn:
            mirrored.resume(copy.content.end, copy.content.batch)
        else:
            mirrored.renew()
        return mirrored

    def _view(self) -> CatalogueView:
        """Open the map, and read it. Raises StoreError if it belongs to another store."""
        path = self._directory.catalogue
        try:
            self._key_value = self._environment.open_key_value(path, create=False)
        except CatalogueDamagedError as error:
            what = error.problem(path) if self._is_there else "the catalogue is missing"
            return CatalogueView(0, {}, (CatalogueDamage("", what, error.file),))
        view = view_catalogue(self._key_value)
        meta = None if view.damage else Catalogue(self._key_value).meta()
        if meta is not None and meta.store_id != self._store_id:
            raise StoreError(
                f"{path}: the catalogue is that of another store, {meta.store_id}; restore the one of this store, "
                f"{self._store_id}, or move it elsewhere: it is then restored from its second copy"
            )
        return view

    @property
    def _is_there(self) -> bool:
        """Whether there is a catalogue, or something in its place."""
        return CATALOGUE in self._disk.names(self._directory.root)

    def _close(self) -> None:
        if self._key_value is not None:
            with contextlib.suppress(CatalogueError):  # closing a damaged database may fail too
                self._key_value.close()
            self._key_value = None

    def _report_lost_copy(self, judgement: Judgement) -> None:
        text = f"{self._directory.part(NAME)}: the second copy of the catalogue is unusable: {judgement.copy_problem}"
        if judgement.copy_is_damaged and self._refusal is not None:
            raise StoreDamagedError(f"{printable(text)}; {self._refusal}")
        if judgement.copy_is_missing and not judgement.copy_is_damaged:
            text += ", as in a store created by older software"
        level = Level.CRITICAL if judgement.copy_is_damaged else Level.WARNING
        self._log(LogLine(level, printable(f"{text}; the catalogue is sound, and the copy is rewritten")))

    # ---- restoring ----

    def _finish_switch(self) -> None:
        """Rename a catalogue that an earlier start has built to replace a damaged one.

        If the damaged one had been removed by hand, the new one may be incomplete.
        """
        new, path = self._directory.part(NEW_CATALOGUE), self._directory.catalogue
        if self._is_there or not self._disk.is_directory(new):
            return
        if self._is_whole(new):
            self._disk.rename(new, path)
            self._has_switched = True
        else:
            remove_tree(self._disk, new)
        self._disk.sync_directory(self._directory.root)

    def _is_whole(self, path: str) -> bool:
        try:
            built = self._environment.open_key_value(path, create=False)
        except CatalogueDamagedError:
            return False
        try:
            return not view_catalogue(built).damage
        finally:
            built.close()

    def _restore(self, judgement: Judgement, view: CatalogueView) -> None:
        """Rebuild the catalogue next to the old one, switch the two, and open it."""
        directory, disk, path = self._directory, self._disk, self._directory.catalogue
        entries, summary = judgement.entries, ""
        if judgement.verdict is Verdict.SALVAGE:
            entries, summary = salvaged(disk, directory, self._store_id, judgement)
        self._tell(judgement, view, entries, summary)  # after the switch a start has nothing to report
        new = directory.part(NEW_CATALOGUE)
        if NEW_CATALOGUE in disk.names(directory.root):
            remove_tree(disk, new)
        try:
            self._build(new, entries)
            if self._is_there:
                self._set_aside(path)
        except BaseException:
            if self._is_there:
                with contextlib.suppress(OSError):  # the next start repeats it
                    remove_tree(disk, new)
            raise
        copy = directory.part(NAME)
        if judgement.verdict is Verdict.SALVAGE and (disk.is_file(copy) or disk.is_directory(copy)):
            self._set_aside(copy)
        disk.rename(new, path)
        disk.sync_directory(directory.root)
        self._key_value = self._environment.open_key_value(path, create=False)

    def _build(self, path: str, entries: Mapping[bytes, bytes]) -> None:
        """Build a database with these entries, durable except for its name, and read back. Raises StoreError."""
        built = self._environment.open_key_value(path, create=True)
        try:
            built.write(entries)
        finally:
            built.close()
        built = self._environment.open_key_value(path, create=False)
        try:
            view = view_catalogue(built)
        finally:
            built.close()
        if view.damage or view.entries != entries:
            what = str(view.damage[0]) if view.damage else "its entries differ from those written"
            raise StoreError(f"{path}: the rebuilt catalogue is not sound: {what}; the disk may be failing")

    def _set_aside(self, path: str) -> None:
        kept = self._directory.set_aside(path, "quarantine")
        self._log(LogLine(Level.NOTICE, f"{path}: the damaged one was moved to {kept}"))

    def _tell(self, judgement: Judgement, view: CatalogueView, entries: Mapping[bytes, bytes], summary: str) -> None:
        path = self._directory.catalogue
        lost, gone = differences(view.entries, entries)
        where = f"{path}: {judgement.damage[0]}"
        if judgement.verdict is Verdict.SALVAGE:
            self._log(LogLine(Level.CRITICAL, printable(f"{where}; {summary}")))
            return
        restored = f"it is restored from its second copy, {self._directory.part(NAME)}"
        restored += ", which may lack the last change" if judgement.may_lack_last else ", and nothing is lost"
        missing = f"; restored: {shown(lost)}" if lost else ""
        deleted = f"; deleted again: {shown(gone)}" if gone else ""
        self._log(LogLine(Level.CRITICAL, printable(f"{where}: {restored}{missing}{deleted}")))
