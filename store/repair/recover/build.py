"""Builds the store that a plan describes, beside its destination, and gives it its name when it is whole.

    DEST.recovering/             all is built here, under a lock
                    RECOVERING   a mark: what is here is not whole. It is called RECOVERED when all was verified
                    rhm/         the store
                    quarantine/  what could not be saved, if there is anything
    DEST                         the same directory, in the end: one rename; then the mark goes

So whatever moment a crash comes at, there is nothing under the name DEST, or all of it. What is left beside it has one
of the marks, the first that is made there and the last that is removed (`unfinished` says what they mean to others);
the next recovery to that place removes it. Without a mark it is somebody's: a start that takes what was RECOVERED into
use removes the mark. The source is only read.
"""

from __future__ import annotations

import contextlib
import errno
import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol
from uuid import UUID

import store.outage as outage
from formats.broker_records.wiring import Binding, Bridge, Exchange, GeneralObject, Link
from store.builders.store_build import BuiltQueue, QueueToBuild, StoreBuild
from store.builders.version_1_build import Version1Build, highest_kept_rid
from store.builders.version_1_journal import JournalPlaces
from store.catalogue.catalogue import Catalogue
from store.catalogue.store_directory import LOCK, StoreDirectory, remove_tree
from store.damage import Damage
from store.disk import Disk
from store.environment import Environment
from store.errors import StoreError
from store.inspect.layout import UnusableInputError
from store.inspect.offline import open_store
from store.key_value import CatalogueError
from store.parameters import StoreParameters
from store.repair.quarantine import QuarantineWriter
from store.repair.recover.plan import OrphanPolicy, Plan
from store.repair.recover.salvage import Salvage, keep_aside
from store.repair.recover.verify import verify
from store.unfinished import DISCARDED, NEW, RECOVERED, RECOVERING, recovery_damage
from store.writable_disk import DiskLock, WritableDisk

#: Told what begins now, and how many bytes will be read for it.
Stage = Callable[[str, int], None]

_ROOT: Final = "rhm"
_BUILDING: Final = ".recovering"
_QUARANTINE: Final = "quarantine"
_STARTED: Final = frozenset((_ROOT, NEW, DISCARDED, _QUARANTINE))
_MARKS: Final = frozenset((RECOVERING, RECOVERED))
_OURS: Final = _STARTED | _MARKS | {LOCK}


class _Build(Protocol):
    """A store that is built, of either version."""

    def prepared_list(self, xids: Sequence[bytes]) -> None: ...

    def queue(self, queue: QueueToBuild) -> None: ...

    def exchange(self, number: int, exchange: Exchange) -> None: ...

    def binding(self, exchange_id: int, binding: Binding) -> None: ...

    def general(self, number: int, general: Link | Bridge | GeneralObject) -> None: ...


@dataclass(slots=True)
class Recovery:
    """What came of a recovery, or of its plan.

    Attributes:
        plan: what was to be made.
        salvage: what could not be saved.
        built: name of a queue -> what was made; empty for a plan.
        damage: all damage, that of the plan and what showed when messages were copied.
    """

    plan: Plan
    salvage: Salvage
    built: dict[str, BuiltQueue] = field(default_factory=dict)
    damage: list[Damage] = field(default_factory=list)

    @property
    def lost(self) -> int:
        """How many damages cost something."""
        plan = self.plan
        # Of a catalogue that is lost nobody knows what was in it; that it is, is damage already.
        bindings = sum(each.exchange is not None for each in plan.lost_bindings)
        return sum(damage.costs for damage in self.damage) + len(plan.lost_exchanges) + bindings

    @property
    def is_complete(self) -> bool:
        """Whether nothing was lost and nothing is in quarantine."""
        return not self.lost and not self.salvage.entries


def check_destination(disk: Disk, source: str, destination: str) -> None:
    """Whether a store can be built at `destination`, beside `source`.

    Raises:
        StoreError: there is something, or it is within the source.
        OSError: it cannot be looked at.
    """
    parent = posixpath.dirname(destination.rstrip("/")) or "."
    if not disk.is_directory(parent):
        raise StoreError(f"{parent}: there is no such directory; make it first")
    if disk.link_target(destination.rstrip("/")) is not None:
        raise StoreError(f"{destination}: is a symbolic link; name the directory itself")
    if disk.is_file(destination):
        raise StoreError(f"{destination}: is a file; name a directory that does not exist")
    if disk.is_directory(destination) and disk.names(destination):
        raise StoreError(f"{destination}: is not empty; name a directory that does not exist, or is empty")
    real = posixpath.join(disk.real_path(parent), posixpath.basename(destination.rstrip("/")))
    above = store_of(disk.real_path(source))
    if posixpath.commonpath((real, above)) == above:
        raise StoreError(f"{destination}: is within {above}, which is never written to; name another directory")
    if posixpath.commonpath((real + _BUILDING, above)) == real + _BUILDING:
        raise StoreError(
            f"{destination}: is built in {real + _BUILDING}, where the source is, which is never written to; name "
            "another directory"
        )


def store_of(path: str) -> str:
    """The store directory in which `path`, a real path, is a part of a store; otherwise `path` itself."""
    parts = path.split("/")
    inner = [index for index, part in enumerate(parts) if part in ("rhm", "qls")]
    return "/".join(parts[: inner[-1]]) or "/" if inner else path


def check_version_1(plan: Plan) -> None:
    """Whether the queues of `plan` can be those of a store of version 1. Raises StoreError."""
    places = JournalPlaces()
    for planned in plan.queues:
        places.take(planned.name)


def recover_into(
    environment: Environment,
    source: Disk,
    plan: Plan,
    destination: str,
    *,
    version: int,
    orphans: OrphanPolicy,
    parameters: StoreParameters,
    software_version: str,
    stage: Stage,
) -> Recovery:
    """Build what `plan` describes, and give it the name `destination`, for which `check_destination` was asked.

    Args:
        environment: disk, clock and so on, of the new store.
        source: the disk from which the old store is read.
        plan: what is to be made.
        destination: the new store's directory.
        version: of the new store; for 1 `check_version_1` was asked.
        orphans: what becomes of what belongs to no queue.
        parameters: of the new store.
        software_version: goes into the STORE file.
        stage: told how it goes on.

    Raises:
        StoreError: it cannot be made; nothing is left of it.
    """
    destination = destination.rstrip("/")
    work = _Work(environment, source, plan, destination, version, orphans, parameters, software_version, stage)
    try:
        return work.all()
    except OSError as error:
        advice = "; make room, or name a directory on another disk" if error.errno == errno.ENOSPC else ""
        where = error.filename or destination
        raise StoreError(f"{where}: the store cannot be built: {error.strerror or error}{advice}") from error
    except CatalogueError as error:
        raise StoreError(f"{destination}: the store cannot be built: {error}; {outage.advice()}") from error


class _Work:
    """One recovery."""

    def __init__(
        self,
        environment: Environment,
        source: Disk,
        plan: Plan,
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
        """Everything."""
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
            with contextlib.suppress(OSError):  # what cannot be removed is marked
                self._remove(self._directory.path)
            raise
        finally:
            lock.release()
        return self._recovery

    def _begin(self) -> DiskLock:
        """Take the directory in which all is built, and remove what an earlier recovery left in it."""
        path = self._directory.path
        if self._disk.link_target(path) is not None:
            raise StoreError(f"{path}: is a symbolic link; remove it, or name another destination")
        strange = [name for name in self._names(path) if name not in _OURS]
        if strange:
            raise StoreError(f"{path}: there is something else ({strange[0]}); move it, or name another destination")
        lock = self._directory.lock()
        try:
            self._mark_begun(path)
            self._disk.sync_directory(path)
            self._empty(path)
            self._disk.sync_directory(path)
        except BaseException:
            with contextlib.suppress(OSError):
                self._remove_emptied(path)
            lock.release()
            raise
        return lock

    def _names(self, path: str) -> list[str]:
        return self._disk.names(path) if self._disk.is_directory(path) else []

    def _mark_begun(self, path: str) -> None:
        """Say that nothing there is whole, before anything is made or removed. StoreError where it is somebody's."""
        disk = self._disk
        names, mark = set(self._names(path)), posixpath.join(path, RECOVERING)
        if RECOVERED in names:
            disk.rename(posixpath.join(path, RECOVERED), mark)
        elif RECOVERING not in names:
            if names & _STARTED:
                text = "there is a store that is in use by now, or that another version of this software was building"
                raise StoreError(f"{path}: {text}; move it elsewhere, or remove it if nobody uses it")
            disk.create(mark, 0).close()

    def _empty(self, path: str) -> None:
        """Remove what a recovery left."""
        for name in self._names(path):
            if name not in (LOCK, RECOVERING):
                remove_tree(self._disk, posixpath.join(path, name))

    def _remove(self, path: str) -> None:
        """Remove all that was made; the mark last, even on a disk that syncs nothing any more. Raises OSError."""
        if not self._disk.is_directory(path):
            return  # it has its name
        for step in (self._mark_begun, self._empty):
            step(path)
            with contextlib.suppress(OSError):
                self._disk.sync_directory(path)
        self._remove_emptied(path)

    def _remove_emptied(self, path: str) -> None:
        """Remove the mark, the lock and the directory, if there is nothing else in it. Raises OSError."""
        names = self._names(path)
        if names and _STARTED.isdisjoint(names):
            for name in sorted(names):  # the mark, and then the lock
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
        """Put everything into the new store."""
        plan = self._recovery.plan
        build.prepared_list(plan.in_doubt)
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
        """Say that it is whole, and give it its name."""
        disk, path = self._disk, self._directory.path
        disk.sync_directory(path)  # all names in it are on the disk before the one that says so
        disk.rename(posixpath.join(path, RECOVERING), posixpath.join(path, RECOVERED))
        disk.sync_directory(path)
        lock.release()
        disk.remove(posixpath.join(path, LOCK))
        disk.sync_directory(path)
        disk.rename(path, self._destination)
        try:
            disk.sync_directory(posixpath.dirname(self._destination) or ".")
        except OSError:
            with contextlib.suppress(OSError):  # a store that may be gone at the next power loss is not to be used
                self._remove(self._destination)
            raise
        disk.remove(posixpath.join(self._destination, RECOVERED))
        disk.sync_directory(self._destination)
