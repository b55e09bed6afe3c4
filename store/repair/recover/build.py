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
"""

from __future__ import annotations

import contextlib
import errno
import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol
from uuid import UUID

from qstore.formats.broker_records.topology import Binding, Bridge, Exchange, GeneralObject, Link
from qstore.store.builders.store_build import BuiltQueue, QueueToBuild, StoreBuild
from qstore.store.builders.version_1_build import JournalPlaces, Version1Build, highest_kept_rid
from qstore.store.catalogue.catalogue import Catalogue
from qstore.store.catalogue.store_directory import LOCK, StoreDirectory, remove_tree
from qstore.store.damage import Damage
from qstore.store.disk import Disk, DiskLock, WritableDisk
from qstore.store.environment import Environment
from qstore.store.errors import StoreError, disk_advice
from qstore.store.inspect.layout import UnusableInputError
from qstore.store.inspect.offline import open_store
from qstore.store.key_value import CatalogueError
from qstore.store.parameters import StoreParameters
from qstore.store.repair.quarantine import QuarantineWriter
from qstore.store.repair.recover.plan import OrphanPolicy, RecoveryPlan
from qstore.store.repair.recover.salvage import Salvage, keep_aside
from qstore.store.repair.recover.verify import verify
from qstore.store.unfinished import DISCARDED, NEW, RECOVERED, RECOVERING, recovery_damage

#: Called with the name of each stage, and the number of bytes that it will read.
Stage = Callable[[str, int], None]

_ROOT: Final = "rhm"
_BUILDING: Final = ".recovering"
_QUARANTINE: Final = "quarantine"
_STARTED: Final = frozenset((_ROOT, NEW, DISCARDED, _QUARANTINE))
_MARKS: Final = frozenset((RECOVERING, RECOVERED))
_OURS: Final = _STARTED | _MARKS | {LOCK}


class _Build(Protocol):
    """A store being built, of either version."""

    def prepared_list(self, prepared: Mapping[bytes, str]) -> None: ...

    def queue(self, queue: QueueToBuild) -> None: ...

    def exchange(self, number: int, exchange: Exchange) -> None: ...

    def binding(self, exchange_id: int, binding: Binding) -> None: ...

    def general(self, number: int, general: Link | Bridge | GeneralObject) -> None: ...


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
            build = StoreBuild(environment, new, parameters, Catalogue.create(key_value, store_id), self, beside=True)
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

    def _fill(self, build: _Build) -> None:
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
