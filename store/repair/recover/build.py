"""Builds the planned store next to its destination, and renames it when it is complete.

    DEST.recovering/             everything is built here, under a lock
                    RECOVERING   a mark: the content is incomplete. It is renamed to RECOVERED after verification
                    rhm/         the store
                    quarantine/  data that could not be saved, if there is any
    DEST                         the same directory, in the end: after one rename; then the mark is removed

So after a crash at any moment the name DEST has nothing, or everything. The remains next to it have one of the marks,
which are created first and removed last (`unfinished` describes their meaning to others); the next recovery to that
destination removes them. A directory without a mark is foreign: a start that uses a RECOVERED store removes the mark.
The source is only read.

Data that could not be saved, the stretches of journals without a good record and single messages, are kept raw in the
quarantine (`store.repair.quarantine`). Of an orphan that is moved aside all files are copied, into

    quarantine/orphans/<number>-<name>/

where <name> is that of the journal's directory, with every special character replaced.

Verification checks that the new store reads back as planned. It is opened by the reader that all tools use, which
verifies every checksum, and compared with the plan.
"""

from __future__ import annotations

import contextlib
import errno
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from qstore.formats.broker_records.topology import Binding, encode_binding, marks_of
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.geometry import BLOCK_SIZE, padded
from qstore.formats.rhm.records import TAIL_SIZE
from qstore.formats.wording import plural
from qstore.store.builders.store_build import BuiltQueue, QueueToBuild, StoreBuild
from qstore.store.builders.version_1_build import JournalPlaces, Version1Build, highest_kept_rid
from qstore.store.catalogue.catalogue import Catalogue
from qstore.store.catalogue.store_directory import LOCK, StoreDirectory, remove_tree
from qstore.store.damage import Damage
from qstore.store.disk import Disk, DiskLock, WritableDisk
from qstore.store.environment import Environment
from qstore.store.errors import StoreError, disk_advice
from qstore.store.inspect.layout import UnusableInputError
from qstore.store.inspect.offline import OfflineStore, RecoveredQueue, RecoveredStore, open_store
from qstore.store.journal.directory import INFO_SUFFIX
from qstore.store.journal.journal import Journal
from qstore.store.journal.recovery import Outcome
from qstore.store.journal.ring.files import RingFile
from qstore.store.key_value import CatalogueError
from qstore.store.parameters import StoreParameters
from qstore.store.repair.quarantine import QuarantineWriter
from qstore.store.repair.recover.plan import Orphan, OrphanPolicy, RecoveryPlan
from qstore.store.unfinished import DISCARDED, NEW, RECOVERED, RECOVERING, recovery_damage

# ---- salvage ----

_CHUNK: Final = 1 << 20
_MAX_NAME: Final = 80
_MAX_LISTED: Final = 1000  # maximum stretches of one journal in the report; the quarantine's index has all


class Stretch(NamedTuple):
    """A stretch of a journal that is kept raw.

    Attributes:
        file, offset: where it begins.
        size: bytes that exist: a missing file has none.
        rid: record id of the record at its beginning, if known.
        what: its defect.
        number: its number in the quarantine; None if it is not there.
    """

    file: str
    offset: int
    size: int
    rid: int | None
    what: str
    number: int | None = None


class Salvage:
    """Keeps data that could not be saved.

    Args:
        writer: the quarantine; None if only the plan is shown.

    Attributes:
        stretches: path of a journal -> its first stretches that were kept.
        entries: total number of stretches.
    """

    def __init__(self, writer: QuarantineWriter | None) -> None:
        self._writer = writer
        self.stretches: dict[str, list[Stretch]] = {}
        self.entries = 0

    def keep(self, queue: str, journal: Journal, place: int, end: int, rid: int | None, what: str) -> None:
        """Keep the bytes from `place` to `end` of a journal's stream, if any exist. Raises OSError."""
        stretches = self.stretches.setdefault(journal.path, [])
        size = sum(length for _, length in _pieces(journal, place, end))
        if not size:
            return
        file, offset = journal.stream.locate(place)
        number = None
        if self._writer is not None:
            salt = file.header.salt if isinstance(file, RingFile) and file.header is not None else None
            chunks = (journal.stream.read(at, length) for at, length in _pieces(journal, place, end))
            number = self._writer.add(queue, file.path, offset, chunks, what, rid, salt=salt)
        self.entries += 1
        if len(stretches) < _MAX_LISTED:
            stretches.append(Stretch(file.path, offset, size, rid, what, number))

    def keep_record(self, queue: str, journal: Journal, place: int, rid: int, what: str) -> None:
        """Keep the enqueue record at `place`. Raises OSError."""
        at, size = journal.data_of_enqueue(place)
        self.keep(queue, journal, place, place + padded(at + size + TAIL_SIZE - place), rid, what)

    def gaps(self, recovered: RecoveredStore) -> None:
        """Keep the stretches that the walks over all journals skipped. Raises OSError."""
        for queue in _all(recovered):
            if queue.journal is not None:
                for gap in queue.journal.gaps:
                    self.keep(queue.name, queue.journal, gap.place, gap.end, gap.rid, gap.what)

    def unprepared(self, plan: RecoveryPlan) -> None:
        """Keep the messages of transactions that were never prepared. Raises OSError."""
        for orphan in plan.orphans:
            journal = orphan.found.journal
            if orphan.transaction is None or journal is None:
                continue
            for operation in orphan.transaction:
                if operation.is_enqueue:
                    what = f"enqueued by the transaction {orphan.transaction.xid.hex()}, which was never prepared"
                    self.keep_record(orphan.found.name, journal, operation.place, operation.rid, what)


def _all(recovered: RecoveredStore) -> Iterator[RecoveredQueue]:
    if recovered.prepared_list is not None:
        yield recovered.prepared_list
    yield from recovered.queues
    yield from recovered.orphans


def _pieces(journal: Journal, place: int, end: int) -> Iterator[tuple[int, int]]:
    """The existing parts of a stretch: log offset and length of each."""
    stream = journal.stream
    end = min(end, stream.size)
    while place < end:
        file, offset = stream.locate(place)
        in_file = min(end - place, stream.data_size - place % stream.data_size)
        there = max(min(in_file, file.size - offset), 0)
        if there:
            length = min(there, _CHUNK)
            yield place, length
            place += length if length < there else in_file
            continue
        place += in_file
    assert place % BLOCK_SIZE == 0 or place >= end


def keep_aside(disk: WritableDisk, source: Disk, orphans: list[Orphan], quarantine: str) -> None:
    """Copy the journals that no queue has. Raises OSError."""
    journals = [each.found.journal for each in orphans if each.transaction is None and each.found.journal is not None]
    if not journals:
        return
    parent = posixpath.join(quarantine, "orphans")
    for path in (quarantine, parent):
        if not disk.is_directory(path):
            disk.make_directory(path)
    for number, journal in enumerate(journals, 1):
        directory = posixpath.join(parent, f"{number:06d}-{_harmless(posixpath.basename(journal.path))}")
        disk.make_directory(directory)
        paths = [file.path for file in journal.files.files if file.size >= 0]
        paths.append(posixpath.join(journal.path, journal.base_name + INFO_SUFFIX))
        for path in paths:
            if source.is_file(path) and source.link_target(path) is None:
                _copy(disk, source, path, posixpath.join(directory, _harmless(posixpath.basename(path))))
        disk.sync_directory(directory)
    for path in (parent, quarantine):
        disk.sync_directory(path)


def _copy(disk: WritableDisk, source: Disk, path: str, target: str) -> None:
    """Copy a file; unreadable parts become zeros."""
    old = source.open(path)
    try:
        new = disk.create(target, 0)
        try:
            for offset in range(0, old.size, _CHUNK):
                length = min(_CHUNK, old.size - offset)
                try:
                    content = old.read(offset, length)
                except OSError:
                    content = bytes(length)
                new.write(offset, content)
            new.sync()
        finally:
            new.close()
    finally:
        old.close()


def _harmless(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[-_MAX_NAME:].lstrip(".") or "_"


# ---- verification ----


def verify(path: str, plan: RecoveryPlan, built: Mapping[str, BuiltQueue], opened: OfflineStore) -> None:
    """Read the new store at `path`, which is `opened`, and compare it with the plan.

    Raises:
        StoreError: it differs from the plan.
        OSError: it cannot be read.
    """
    recovered = opened.recover()
    difference = next((text for text in _differences(plan, built, opened, recovered) if text), None)
    if difference is not None:
        raise StoreError(f"{path}: the new store does not read back as written: {difference}; it was removed")


def _differences(
    plan: RecoveryPlan, built: Mapping[str, BuiltQueue], opened: OfflineStore, recovered: RecoveredStore
) -> list[str]:
    found = [f"{each.file}: {each.what}" for each in opened.damage]
    names = {queue.name: queue for queue in recovered.queues}
    if names.keys() != built.keys():
        found.append(f"{plural(len(names), 'queue')} instead of {len(built)}")
        return found
    for name, result in built.items():
        queue = names[name]
        total = 0 if queue.recovery is None else len(queue.recovery.messages)
        if (total, total - queue.deliverable) != (result.messages, result.in_doubt):
            found.append(f'queue "{name}" has {plural(total, "message")} instead of {result.messages}')
    in_doubt = sorted(each.xid for each in recovered.transactions if each.outcome is Outcome.IN_DOUBT)
    if in_doubt != sorted(plan.in_doubt) or len(recovered.transactions) != len(in_doubt):
        found.append(f"{plural(len(in_doubt), 'transaction')} in doubt instead of {len(plan.in_doubt)}")
    topology = opened.topology
    if topology is None:
        found.append("the catalogue is missing")
        return found
    bindings = ((each.exchange.name, each.record) for each in topology.bindings)
    planned_bindings = ((plan.exchanges[number].name, binding) for number, binding in plan.bindings)
    for what, seen, planned in (
        ("exchanges", len(topology.exchanges), len(plan.exchanges)),
        ("bindings", _different(bindings), _different(planned_bindings)),
        ("other objects", len(topology.general), len(plan.general)),
    ):
        if seen != planned:
            found.append(f"{seen} {what} instead of {planned}")
    if Counter(each.record.name for each in topology.queues.values()) != Counter(built.keys()):
        found.append("the catalogue has different queues")
    return found


def _different(bindings: Iterable[tuple[str, Binding]]) -> int:
    """Number of bindings, each with its exchange: version 1 cannot have duplicates."""
    return len({(exchange, encode_binding(binding)) for exchange, binding in bindings})


# ---- building ----

#: Called with the name of each stage, and the number of bytes that it will read.
Stage = Callable[[str, int], None]

_ROOT: Final = "rhm"
_BUILDING: Final = ".recovering"
_QUARANTINE: Final = "quarantine"
_STARTED: Final = frozenset((_ROOT, NEW, DISCARDED, _QUARANTINE))
_MARKS: Final = frozenset((RECOVERING, RECOVERED))
_OURS: Final = _STARTED | _MARKS | {LOCK}


@dataclass(slots=True)
class Recovery:
    """The result of a recovery, or of its plan.

    Attributes:
        plan: the plan.
        salvage: the data that could not be saved.
        built: name of a queue -> its result; empty for a plan.
        damage: all damage, that of the plan and that found when messages were copied.
    """

    plan: RecoveryPlan
    salvage: Salvage
    built: dict[str, BuiltQueue] = field(default_factory=dict)
    damage: list[Damage] = field(default_factory=list)

    @property
    def lost(self) -> int:
        """Number of damages that cost something."""
        plan = self.plan
        # The content of a lost catalogue is unknown; its loss is already counted as damage.
        bindings = sum(each.exchange is not None for each in plan.lost_bindings)
        return sum(damage.costs for damage in self.damage) + len(plan.lost_exchanges) + bindings

    @property
    def is_complete(self) -> bool:
        """Whether nothing was lost and nothing is in quarantine."""
        return not self.lost and not self.salvage.entries


def check_destination(disk: Disk, source: str, destination: str) -> None:
    """Check that a store can be built at `destination`, next to `source`.

    Raises:
        StoreError: something exists there, or it is within the source.
        OSError: it cannot be examined.
    """
    parent = posixpath.dirname(destination.rstrip("/")) or "."
    if not disk.is_directory(parent):
        raise StoreError(f"{parent}: no such directory; create it first")
    if disk.link_target(destination.rstrip("/")) is not None:
        raise StoreError(f"{destination}: is a symbolic link; pass the directory itself")
    if disk.is_file(destination):
        raise StoreError(f"{destination}: is a file; choose a directory that does not exist")
    if disk.is_directory(destination) and disk.names(destination):
        raise StoreError(f"{destination}: is not empty; choose a new or empty directory")
    real = posixpath.join(disk.real_path(parent), posixpath.basename(destination.rstrip("/")))
    above = store_of(disk.real_path(source))
    if posixpath.commonpath((real, above)) == above:
        raise StoreError(f"{destination}: is within {above}, which is never written to; choose another directory")
    if posixpath.commonpath((real + _BUILDING, above)) == real + _BUILDING:
        raise StoreError(
            f"{destination}: would be built in {real + _BUILDING}, where the source is, which is never written to; "
            "choose another directory"
        )


def store_of(path: str) -> str:
    """The store directory that contains `path`, a real path, as a part of a store; otherwise `path` itself."""
    parts = path.split("/")
    inner = [index for index, part in enumerate(parts) if part in ("rhm", "qls")]
    return "/".join(parts[: inner[-1]]) or "/" if inner else path


def check_version_1(plan: RecoveryPlan) -> None:
    """Check that a store of version 1 can have the queues of `plan`. Raises StoreError."""
    places = JournalPlaces()
    for planned in plan.queues:
        places.take(planned.name)


def recover_into(
    environment: Environment,
    source: Disk,
    plan: RecoveryPlan,
    destination: str,
    *,
    version: int,
    orphans: OrphanPolicy,
    parameters: StoreParameters,
    software_version: str,
    stage: Stage,
) -> Recovery:
    """Build the planned store, and rename it to `destination`, for which `check_destination` was called.

    Args:
        environment: disk, clock and so on, of the new store.
        source: the disk with the old store.
        plan: the plan.
        destination: the new store's directory.
        version: of the new store; for 1 `check_version_1` was called.
        orphans: how to treat orphans.
        parameters: of the new store.
        software_version: recorded in the STORE file.
        stage: receives progress.

    Raises:
        StoreError: it failed; nothing is left of the new store.
    """
    destination = destination.rstrip("/")
    work = _Work(environment, source, plan, destination, version, orphans, parameters, software_version, stage)
    try:
        return work.all()
    except OSError as error:
        advice = "; free some space, or choose a directory on another disk" if error.errno == errno.ENOSPC else ""
        where = error.filename or destination
        raise StoreError(f"{where}: the store cannot be built: {error.strerror or error}{advice}") from error
    except CatalogueError as error:
        raise StoreError(f"{destination}: the store cannot be built: {error}; {disk_advice()}") from error


class _Work:
    """One recovery."""

    def __init__(
        self,
        environment: Environment,
        source: Disk,
        plan: RecoveryPlan,
        destination: str,
        version: int,
        orphans: OrphanPolicy,
        parameters: StoreParameters,
        software_version: str,
        stage: Stage,
    ) -> None:
        self._environment, self._source, self._destination = environment, source, destination
        self._disk: WritableDisk = environment.disk
        self._version = version
        self._orphans, self._parameters, self._stage = orphans, parameters, stage
        self._directory = StoreDirectory(environment, destination + _BUILDING, software_version)
        self._quarantine = posixpath.join(self._directory.path, _QUARANTINE)
        self._writer = QuarantineWriter(self._disk, self._quarantine)
        self._recovery = Recovery(plan, Salvage(self._writer), damage=list(plan.damage))

    def all(self) -> Recovery:
        """Do all steps."""
        lock = self._begin()
        try:
            if self._version == 1:
                self._build_version_1()
            else:
                self._build_version_2()
            self._salvage()
            self._verify()
            self._finish(lock)
        except BaseException:
            with contextlib.suppress(OSError):  # the rest is marked
                self._remove(self._directory.path)
            raise
        finally:
            lock.release()
        return self._recovery

    def _begin(self) -> DiskLock:
        """Lock the directory for building, and remove the remains of an earlier recovery."""
        path = self._directory.path
        if self._disk.link_target(path) is not None:
            raise StoreError(f"{path}: is a symbolic link; remove it, or choose another destination")
        strange = [name for name in self._names(path) if name not in _OURS]
        if strange:
            raise StoreError(f"{path}: contains other files ({strange[0]}); move them, or choose another destination")
        lock: DiskLock | None = None
        try:
            lock = self._directory.lock()
            self._mark_begun(path)
            self._disk.sync_directory(path)
            self._empty(path)
            self._disk.sync_directory(path)
        except BaseException:
            if lock is not None:
                with contextlib.suppress(OSError):
                    self._remove_emptied(path)
                lock.release()
            elif not self._names(path):  # it was created, and nothing else
                with contextlib.suppress(OSError):
                    self._disk.remove_directory(path)
            raise
        return lock

    def _names(self, path: str) -> list[str]:
        return self._disk.names(path) if self._disk.is_directory(path) else []

    def _mark_begun(self, path: str) -> None:
        """Mark the content as incomplete, before anything is changed. StoreError if the directory is foreign."""
        disk = self._disk
        names, mark = set(self._names(path)), posixpath.join(path, RECOVERING)
        if RECOVERED in names:
            disk.rename(posixpath.join(path, RECOVERED), mark)
        elif RECOVERING not in names:
            if names & _STARTED:
                text = "contains a store that is in use, or that another version of this software was building"
                raise StoreError(f"{path}: {text}; move it elsewhere, or remove it if it is not used")
            disk.create(mark, 0).close()

    def _empty(self, path: str) -> None:
        """Remove the remains of a recovery."""
        for name in self._names(path):
            if name not in (LOCK, RECOVERING):
                remove_tree(self._disk, posixpath.join(path, name))

    def _remove(self, path: str) -> None:
        """Remove everything; the mark last, even on a disk that no longer syncs. Raises OSError."""
        if not self._disk.is_directory(path):
            return  # it was renamed
        for step in (self._mark_begun, self._empty):
            step(path)
            with contextlib.suppress(OSError):
                self._disk.sync_directory(path)
        self._remove_emptied(path)

    def _remove_emptied(self, path: str) -> None:
        """Remove the mark, the lock and the directory, if it contains nothing else. Raises OSError."""
        names = self._names(path)
        if names and _STARTED.isdisjoint(names):
            for name in sorted(names):  # the mark, then the lock
                self._disk.remove(posixpath.join(path, name))
            self._disk.remove_directory(path)

    def _build_version_2(self) -> None:
        environment, directory = self._environment, self._directory
        store_id = UUID(int=environment.random_bits(128), version=4)
        parameters = self._parameters
        new = directory.begin_new(parameters.tpl_geometry, parameters.flush_alignment)
        key_value = environment.open_key_value(new.catalogue, create=True)
        try:
            marked = frozenset(mark.rid for each in self._recovery.plan.general.values() for mark in marks_of(each))
            catalogue = Catalogue.create(key_value, store_id)
            build = StoreBuild(environment, new, parameters, catalogue, self, beside=True, marked=marked)
            self._fill(build)
            new.write_topology(store_id, key_value)
        finally:
            key_value.close()
        directory.finish_new(new, store_id)

    def _build_version_1(self) -> None:
        plan = self._recovery.plan
        sources = [each.queue.source for each in plan.queues if each.queue.source is not None]
        build = Version1Build(
            self._environment,
            self._directory.path,
            self._parameters,
            self,
            destination=self._disk.real_path(self._destination),
            highest_rid=highest_kept_rid(sources),
        )
        self._fill(build)
        build.finish()
        plan.notices.extend(build.notices)

    def _fill(self, build: StoreBuild | Version1Build) -> None:
        """Write everything into the new store."""
        plan = self._recovery.plan
        users = {each.xid: each.user for each in plan.transactions}
        build.prepared_list({xid: users.get(xid, "") for xid in plan.in_doubt})
        for number, exchange in plan.exchanges.items():
            build.exchange(number, exchange)
        sizes = [0 if each.queue.source is None else each.queue.source.journal.stream.size for each in plan.queues]
        self._stage("copying messages", sum(sizes))
        for planned in plan.queues:
            build.queue(planned.queue)
            if planned.queue.source is not None:
                planned.queue.source.journal.close()
        for number, binding in plan.bindings:
            build.binding(number, binding)
        for number, general in plan.general.items():
            build.general(number, general)

    def left_out(self, queue: QueueToBuild, damage: Damage, place: int, end: int) -> None:
        """A message could not be copied."""
        assert queue.source is not None
        self._recovery.damage.append(damage)
        journal, what = queue.source.journal, damage.what
        if damage.rid is not None:
            self._recovery.salvage.keep_record(queue.record.name, journal, place, damage.rid, what)
        else:
            self._recovery.salvage.keep(queue.record.name, journal, place, end, None, what)

    def built(self, queue: QueueToBuild, result: BuiltQueue) -> None:
        """A queue was built."""
        self._recovery.built[queue.record.name] = result

    def _salvage(self) -> None:
        plan, salvage = self._recovery.plan, self._recovery.salvage
        salvage.gaps(plan.recovered)
        if self._orphans is OrphanPolicy.ASIDE:
            salvage.unprepared(plan)
            keep_aside(self._disk, self._source, plan.orphans, self._quarantine)
        self._writer.close()

    def _verify(self) -> None:
        path = self._directory.path
        try:
            opened = open_store(self._source, path)
        except UnusableInputError as error:
            raise StoreError(str(error)) from error
        try:
            opened.damage.remove(recovery_damage(posixpath.join(self._disk.real_path(path), RECOVERING)))
            self._stage("verifying", opened.size)
            verify(path, self._recovery.plan, self._recovery.built, opened)
        finally:
            opened.close()

    def _finish(self, lock: DiskLock) -> None:
        """Mark the store as complete, and rename it."""
        disk, path = self._disk, self._directory.path
        disk.sync_directory(path)  # all names in it are synced before the final mark
        disk.rename(posixpath.join(path, RECOVERING), posixpath.join(path, RECOVERED))
        disk.sync_directory(path)
        lock.release()
        disk.remove(posixpath.join(path, LOCK))
        disk.sync_directory(path)
        disk.rename(path, self._destination)
        try:
            disk.sync_directory(posixpath.dirname(self._destination) or ".")
        except OSError:
            with contextlib.suppress(OSError):  # a store that may be lost at the next power failure must not be used
                self._remove(self._destination)
            raise
        with contextlib.suppress(OSError):  # the store can be used with the mark: a start removes it
            disk.remove(posixpath.join(self._destination, RECOVERED))
            disk.sync_directory(self._destination)
