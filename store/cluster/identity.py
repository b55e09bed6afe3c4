"""The store's identity: which cluster a broker's store belongs to, and whether a cluster may start from it.

In a cluster whose members all have stores, each store is a replica of one state (MRG 2 Messaging User Guide, 7.5; Qpid
wiki, "Persistent Cluster Restart Design Note"). Each has two UUIDs: the cluster-id, the same for all members as long as
the cluster exists, and the shutdown-id, of one clean shut-down of all of them. They determine the state:

    state   cluster-id  shutdown-id   meaning
    ------  ----------  ------------  --------------------------------------------------------------------
    empty   none        -             not used before
    dirty   set         none          may be outdated: its broker is, or was, one of several
    clean   set         set           up to date: all members stopped together, or this was the last one

qpidd stores them next to the store, not in it, so that a store's directory can be replaced by a backup:

    <data-dir>/cluster/store.status     two lines, the cluster-id and the shutdown-id, as UUIDs in their usual form of
                                        36 characters; all zeros for none. A missing file counts as zeros
               cluster/cluster.uuid     older qpidd had a file for each id; they are read if there is no
               cluster/shutdown.uuid    store.status, and never written
               rhm/ or qls/             the store: version 2 or qpidd's legacystore; qpidd's linearstore
               _cluster.bak.<nnnn>/rhm  discarded stores: four hexadecimal digits (as in qpidd),
                                        from 0001, the highest the newest; with a status with the cluster-id

This layout is used for all three kinds of stores, so that tools, scripts and qpidd itself find what they expect.

**Two marks.** The STORE file of version 2 (`store_directory`) has a separate mark, and the two are independent. That
one concerns this store alone: its journals end with a seal, and nothing has to be recovered. A clean mark here concerns
the cluster: no other replica is newer. A member that is stopped while others continue is closed cleanly, but dirty; the
last survivor that crashes was not closed cleanly, but is clean: its recovered content is the starting point for all.
Marking here never touches the store. And a broker that runs alone never reads this mark: outside a cluster a dirty
store is opened and recovered like any other, never discarded. (So a mark does not show changes to a store outside its
cluster: starting one member alone, and then the cluster from several clean stores, starts from unequal ones.)

**Invariants**, whenever the process is killed or the power fails: the status is the complete old or new one (a new file
is written, synced and renamed, and the directory synced). A store is complete, under its own name or in a backup. A
status is "clean" only if there is a store: before a store is set aside, its mark is cleared. A cluster that started
from a clean mark without a store would start empty. A store is moved to its backup by one rename, which is assumed to
be on the disk in both directories or in neither until one of them is synced, the backup's first.

Writers hold the store's lock (`StoreDirectory.lock`), as does a broker that has it open.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
from enum import StrEnum
from typing import Final
from uuid import UUID

from qstore.formats.named_tuple import NamedTuple
from qstore.store.catalogue.store_directory import StoreDirectory
from qstore.store.disk import Disk, read_whole
from qstore.store.environment import Environment
from qstore.store.errors import StoreError
from qstore.store.repair.conversion import mark_converted

STATUS: Final = "cluster/store.status"
STORE_ROOTS: Final = ("rhm", "qls")
_DIRECTORY, _FILE = posixpath.split(STATUS)
_OLD_CLUSTER_ID, _OLD_SHUTDOWN_ID = "cluster.uuid", "shutdown.uuid"
_MAX_SIZE: Final = 4096
_NULL: Final = UUID(int=0)
_UUID = re.compile(rb"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_BACKUP = re.compile(r"_cluster\.bak\.([0-9a-f]{4})")
_LAST_BACKUP: Final = 0xFFFF


class IdentityError(StoreError):
    """The status file cannot be read, or the requested change would make it wrong."""


class State(StrEnum):
    """The state of a store in its cluster."""

    EMPTY = "empty"
    DIRTY = "dirty"
    CLEAN = "clean"


class ClusterIds(NamedTuple):
    """The two ids.

    Attributes:
        cluster_id: of the cluster; None if the store never was in one.
        shutdown_id: of the clean shut-down; None if there was none since it was last in use.
    """

    cluster_id: UUID | None
    shutdown_id: UUID | None

    @property
    def state(self) -> State:
        """The state that they determine; without a cluster-id a shutdown-id means nothing."""
        if self.cluster_id is None:
            return State.EMPTY
        return State.DIRTY if self.shutdown_id is None else State.CLEAN


NOBODY: Final = ClusterIds(None, None)
"""The ids of a store that never was in a cluster."""


class Backup(NamedTuple):
    """A discarded store.

    Attributes:
        number: higher for newer backups.
        path: the directory that contains its `rhm` or `qls`.
        has_store: whether it contains one; a crash may have prevented that.
    """

    number: int
    path: str
    has_store: bool


# ---- the file ----


def encode(identity: ClusterIds) -> bytes:
    """The content of the status file for `identity`."""
    return "".join(f"{_NULL if each is None else each}\n" for each in identity).encode()


def decode(content: bytes) -> ClusterIds:
    """Decode the content of a status file. Raises IdentityError."""
    words = content.split()
    if len(content) > _MAX_SIZE or len(words) != 2 or not all(map(_UUID.fullmatch, words)):
        raise IdentityError("damaged: it must hold two UUIDs, the cluster-id and the shutdown-id")
    cluster_id, shutdown_id = (UUID(word.decode()) for word in words)
    return ClusterIds(cluster_id if cluster_id != _NULL else None, shutdown_id if shutdown_id != _NULL else None)


# ---- reading ----


def read_identity(disk: Disk, path: str) -> ClusterIds:
    """The identity of the store in the data directory `path`.

    Raises:
        IdentityError: the file is damaged or cannot be read.
    """
    status = posixpath.join(path, STATUS)
    try:
        if disk.is_file(status):
            return decode(_read(disk, status))
        if _FILE in _names(disk, posixpath.join(path, _DIRECTORY)):
            raise IdentityError("it is not a regular file")
        status = posixpath.join(path, _DIRECTORY, _OLD_CLUSTER_ID)
        if not disk.is_file(status):
            return NOBODY
        shutdown = posixpath.join(path, _DIRECTORY, _OLD_SHUTDOWN_ID)
        second = _read(disk, shutdown) if disk.is_file(shutdown) else str(_NULL).encode()
        return decode(_read(disk, status) + b"\n" + second)
    except IdentityError as error:
        raise IdentityError(f"{status}: {error}") from None
    except OSError as error:
        raise IdentityError(f"{error.filename or status}: cannot be read: {error.strerror or error}") from error


def _read(disk: Disk, path: str) -> bytes:
    return read_whole(disk, path, _MAX_SIZE + 1)


def _names(disk: Disk, path: str) -> list[str]:
    return disk.names(path) if disk.is_directory(path) else []


def stores_in(disk: Disk, path: str) -> list[str]:
    """The members of `STORE_ROOTS` that exist in a directory and are not empty. Raises OSError."""
    return [name for name in STORE_ROOTS if _names(disk, posixpath.join(path, name))]


def backups_in(disk: Disk, path: str) -> list[Backup]:
    """The discarded stores in a data directory, the newest last. Raises OSError."""
    found = []
    for name in disk.names(path):
        match = _BACKUP.fullmatch(name)
        below = posixpath.join(path, name)
        if match is not None and disk.is_directory(below):
            found.append(Backup(int(match[1], 16), below, bool(stores_in(disk, below))))
    return sorted(found)


# ---- changing ----


class StoreIdentity:
    """The identity of the store in a data directory, for changes.

    Args:
        environment: disk and random bits.
        path: the data directory; it exists, and its store's lock is held.
    """

    def __init__(self, environment: Environment, path: str) -> None:
        self._environment, self._disk = environment, environment.disk
        self._directory = StoreDirectory(environment, path, "")
        self._directory.root = self._directory.below(_DIRECTORY)
        self.path = path

    def read(self) -> ClusterIds:
        """The current ids. Raises IdentityError."""
        return read_identity(self._disk, self.path)

    def new_id(self) -> UUID:
        """A random UUID."""
        return UUID(int=self._environment.random_bits(128), version=4)

    def finish_interrupted(self) -> None:
        """Finish work that a crash interrupted, as every start does, before anything is changed. Raises OSError."""
        directory = StoreDirectory(self._environment, self.path, "")
        self._finish_backup()
        mark_converted(self._environment, directory)
        directory.finish_interrupted()

    def mark_dirty(self, cluster_id: UUID) -> None:
        """Mark the store as one of several in this cluster: others may be newer from now on. Raises IdentityError."""
        self._write(ClusterIds(cluster_id, None))

    def mark_clean(self, shutdown_id: UUID, cluster_id: UUID | None = None) -> ClusterIds:
        """Mark the store as up to date: it is the last one, or all stopped together.

        Args:
            shutdown_id: the same for all that stop together, otherwise a new one.
            cluster_id: the cluster's; None for the present one.

        Raises:
            IdentityError: there is no store, or no cluster that it belongs to; or the status cannot be written.
        """
        self._write(ClusterIds(self.cluster_to_mark(cluster_id), shutdown_id))
        return self.read()

    def cluster_to_mark(self, cluster_id: UUID | None) -> UUID:
        """The cluster for which the store may be marked clean: `cluster_id`, or its own. Raises as `mark_clean`."""
        cluster_id = self.read().cluster_id if cluster_id is None else cluster_id
        if cluster_id is None:
            raise IdentityError(
                f"{self.path}: the cluster of this store is unknown, and outside a cluster it needs no mark; "
                "pass --cluster-id UUID, or --cluster-id new to start a cluster from it"
            )
        if not self._stores():
            raise IdentityError(
                f"{self.path}: there is no store (neither rhm nor qls), and a cluster that starts from it would be "
                "empty; move the latest backup into place first"
            )
        return cluster_id

    def discard(self, cluster_id: UUID | None = None) -> str | None:
        """Set the store aside as the newest backup. Its mark is cleared first.

        Args:
            cluster_id: of the running cluster that the broker joins: the status is then dirty; otherwise empty.

        Returns:
            The backup's directory; None if there was no store, and only the status was changed.

        Raises:
            IdentityError: it failed; the store is then complete in its old place, or in the backup.
        """
        stores = self._stores()
        try:
            backup = self._place_for_backup(stores) if stores else None
            self._write(ClusterIds(cluster_id, None))
            if backup is not None:
                self._move(stores, backup)
        except OSError as error:
            raise _cannot(error, self.path, "the store cannot be set aside") from error
        return backup

    def _move(self, stores: list[str], backup: str) -> None:
        """Move the stores to `backup`, or back: after a failed sync nothing is certain. Raises OSError."""
        try:
            for name in stores:
                self._disk.rename(self._directory.below(name), posixpath.join(backup, name))
            self._disk.sync_directory(backup)
            self._disk.sync_directory(self.path)
        except OSError:
            with contextlib.suppress(OSError):
                for name in stores_in(self._disk, backup):
                    self._disk.rename(posixpath.join(backup, name), self._directory.below(name))
                self._disk.sync_directory(self.path)
                self._disk.sync_directory(backup)
            raise

    def _stores(self) -> list[str]:
        try:
            return stores_in(self._disk, self.path)
        except OSError as error:
            raise _cannot(error, self.path, "cannot be examined") from error

    def _place_for_backup(self, stores: list[str]) -> str:
        """A new backup's directory, with the cluster-id in it; or the newest if a crash left it without a store."""
        for name in stores:
            target = self._disk.link_target(self._directory.below(name))
            if target is not None and not target.startswith("/"):
                raise IdentityError(
                    f"{self._directory.below(name)}: a link to {target}, which would point elsewhere from a backup; "
                    "make it an absolute one first"
                )
        backups = backups_in(self._disk, self.path)
        if backups and not backups[-1].has_store:
            path = backups[-1].path
        else:
            number = backups[-1].number + 1 if backups else 1
            if number > _LAST_BACKUP:
                raise IdentityError(f"{backups[-1].path}: this is the highest number; move the backups elsewhere first")
            path = self._directory.below(f"_cluster.bak.{number:04x}")
            self._disk.make_directory(path)
        try:
            cluster_id = self.read().cluster_id
        except IdentityError:  # a damaged status is discarded
            cluster_id = None
        if cluster_id is not None:
            StoreIdentity(self._environment, path).mark_dirty(cluster_id)
        return path

    def _write(self, identity: ClusterIds) -> None:
        try:
            self._finish_backup()
            if not self._disk.is_directory(self._directory.root):
                self._disk.make_directory(self._directory.root)
                self._disk.sync_directory(self.path)
            self._directory.replace(_FILE, encode(identity))
        except OSError as error:
            raise _cannot(error, posixpath.join(self.path, STATUS), "cannot be written") from error

    def _finish_backup(self) -> None:
        """Sync moves, also those of a killed process: first the directory that received a name, then the other one."""
        for backup in backups_in(self._disk, self.path)[-1:]:
            self._disk.sync_directory(backup.path)
        self._disk.sync_directory(self.path)


def _cannot(error: OSError, path: str, what: str) -> IdentityError:
    return IdentityError(f"{error.filename or path}: {what}: {error.strerror or error}")
