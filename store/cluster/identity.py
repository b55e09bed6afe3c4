"""Which cluster a broker's store belongs to, and whether a cluster may start from it: the store's identity.

In a cluster whose members all have stores, each store is a replica of one state (MRG 2 Messaging User Guide, 7.5;
Qpid wiki, "Persistent Cluster Restart Design Note"). Two UUIDs go with each: the cluster-id, the same for all members
as long as the cluster exists, and the shutdown-id, of one clean shut-down of all of them. They give the state:

    state   cluster-id  shutdown-id   what it means
    ------  ----------  ------------  --------------------------------------------------------------------
    empty   none        -             not used before
    dirty   set         none          may be behind the others: its broker is, or was, one of several
    clean   set         set           as it was when all stopped, or the last one had it alone

qpidd keeps them beside the store, not in it, so that a store's directory can be replaced by a backup:

    <data-dir>/cluster/store.status     two lines, the cluster-id and the shutdown-id, as UUIDs in their usual form of
                                        36 characters; all zeros where there is none. A missing file counts as zeros
               cluster/cluster.uuid     older qpidd had a file for each id; they are read where there is no
               cluster/shutdown.uuid    store.status, and never written
               rhm/ or qls/             the store: version 2 or qpidd's legacystore; qpidd's linearstore
               _cluster.bak.<nnnn>/rhm  stores that were discarded: four hexadecimal digits (as in qpidd),
                                        from 0001, the highest the newest; beside it a status with the cluster-id

This is kept for all three kinds of stores, so that tools, scripts and qpidd itself find what they know.

**Two marks.** The STORE file of version 2 (`store_directory`) has a mark of its own, and the two are independent. That
one is of this store alone: its journals end with a seal, and nothing has to be recovered. A clean one here is of the
cluster: no other replica knows more. A member that is stopped while others go on is closed cleanly, and dirty; the last
survivor that crashes was not closed cleanly, and is clean: what it has is recovered, and is what all begin with.
Marking here never touches the store. And a broker that runs alone never looks here: outside a cluster a dirty store is
opened and recovered like any other, never discarded. (So a mark does not tell what was done to a store without its
cluster: who starts one member alone, and then the cluster from several clean stores, starts from unequal ones.)

**What holds at every moment**, whenever the process is killed or the power fails: the status is the old or the new one,
whole (a new file is written, synced and renamed, and the directory synced). A store is whole, under its own name or in
a backup. A status says "clean" only where there is a store: before one is set aside, its mark goes. A cluster that
began with a clean mark on nothing would begin with nothing. A store is moved to its backup by one rename, which is
taken to be on the disk in both directories or in neither until one of them is synced, the backup's first.

Who writes holds the store's lock (`StoreDirectory.lock`), as a broker does that has it open.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
from enum import StrEnum
from typing import Final, NamedTuple
from uuid import UUID

from store.catalogue.store_directory import StoreDirectory
from store.disk import Disk, read_whole
from store.environment import Environment
from store.errors import StoreError
from store.repair.conversion import mark_converted

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
    """The status file cannot be read, or what was asked would make it say what is not so."""


class State(StrEnum):
    """What a store is to its cluster."""

    EMPTY = "empty"
    DIRTY = "dirty"
    CLEAN = "clean"


class Identity(NamedTuple):
    """The two ids.

    Attributes:
        cluster_id: of the cluster; None if the store never was in one.
        shutdown_id: of the clean shut-down; None if there was none since it was last in use.
    """

    cluster_id: UUID | None
    shutdown_id: UUID | None

    @property
    def state(self) -> State:
        """The state that they give; without a cluster-id a shutdown-id means nothing."""
        if self.cluster_id is None:
            return State.EMPTY
        return State.DIRTY if self.shutdown_id is None else State.CLEAN


NOBODY: Final = Identity(None, None)
"""That of a store which never was in a cluster."""


class Backup(NamedTuple):
    """A store that was discarded.

    Attributes:
        number: the higher, the newer.
        path: the directory that holds its `rhm` or `qls`.
        has_store: whether it does; a crash may have come before.
    """

    number: int
    path: str
    has_store: bool


# ---- the file ----


def encode(identity: Identity) -> bytes:
    """The status file that says `identity`."""
    return "".join(f"{_NULL if each is None else each}\n" for each in identity).encode()


def decode(content: bytes) -> Identity:
    """What the status file `content` says. Raises IdentityError."""
    words = content.split()
    if len(content) > _MAX_SIZE or len(words) != 2 or not all(map(_UUID.fullmatch, words)):
        raise IdentityError("it is damaged: it should hold two UUIDs, the cluster-id and the shutdown-id")
    cluster_id, shutdown_id = (UUID(word.decode()) for word in words)
    return Identity(cluster_id if cluster_id != _NULL else None, shutdown_id if shutdown_id != _NULL else None)


# ---- reading ----


def read_identity(disk: Disk, path: str) -> Identity:
    """The identity of the store in the data directory `path`.

    Raises:
        IdentityError: what is there is damaged or cannot be read.
    """
    status = posixpath.join(path, STATUS)
    try:
        if disk.is_file(status):
            return decode(_read(disk, status))
        if _FILE in _names(disk, posixpath.join(path, _DIRECTORY)):
            raise IdentityError("it is no regular file")
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
    """Which of `STORE_ROOTS` are in a directory, and hold something. Raises OSError."""
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
    """The identity of the store in a data directory, to be changed.

    Args:
        environment: disk and random bits.
        path: the data directory; it exists, and its store's lock is held.
    """

    def __init__(self, environment: Environment, path: str) -> None:
        self._environment, self._disk = environment, environment.disk
        self._directory = StoreDirectory(environment, path, "")
        self._directory.root = self._directory.below(_DIRECTORY)
        self.path = path

    def read(self) -> Identity:
        """What it is. Raises IdentityError."""
        return read_identity(self._disk, self.path)

    def new_id(self) -> UUID:
        """A random UUID."""
        return UUID(int=self._environment.random_bits(128), version=4)

    def settle(self) -> None:
        """Finish what a crash cut short, as every start does, before anything is changed. Raises OSError."""
        directory = StoreDirectory(self._environment, self.path, "")
        self._settle_backup()
        mark_converted(self._environment, directory)
        directory.settle()

    def mark_dirty(self, cluster_id: UUID) -> None:
        """Its broker is one of several in this cluster: from here on others may know more. Raises IdentityError."""
        self._write(Identity(cluster_id, None))

    def mark_clean(self, shutdown_id: UUID, cluster_id: UUID | None = None) -> Identity:
        """No other store knows more: it is the last one, or all stopped together.

        Args:
            shutdown_id: the same for all that stop together, otherwise a new one.
            cluster_id: that of the cluster; None for the one that it has.

        Raises:
            IdentityError: there is no store to begin with, or no cluster that it belongs to; or it cannot be written.
        """
        self._write(Identity(self.cluster_to_mark(cluster_id), shutdown_id))
        return self.read()

    def cluster_to_mark(self, cluster_id: UUID | None) -> UUID:
        """The cluster that the store may be marked clean for: `cluster_id`, or its own. Raises as `mark_clean`."""
        cluster_id = self.read().cluster_id if cluster_id is None else cluster_id
        if cluster_id is None:
            raise IdentityError(
                f"{self.path}: it is not said which cluster this store belongs to, and outside one it needs no mark; "
                "say --cluster-id UUID, or --cluster-id new to begin a cluster with it"
            )
        if not self._stores():
            raise IdentityError(
                f"{self.path}: there is no store (neither rhm nor qls), and a cluster that starts from it would be "
                "empty; move the latest backup into place first"
            )
        return cluster_id

    def discard(self, cluster_id: UUID | None = None) -> str | None:
        """Set the store aside as the newest backup. The mark goes first.

        Args:
            cluster_id: of the running cluster that the broker joins: the status is dirty then; otherwise empty.

        Returns:
            The backup's directory; None if there was no store, and the status alone was changed.

        Raises:
            IdentityError: it cannot be done; the store is then where it was, or in the backup, whole.
        """
        stores = self._stores()
        try:
            backup = self._place_for_backup(stores) if stores else None
            self._write(Identity(cluster_id, None))
            if backup is not None:
                self._move(stores, backup)
        except OSError as error:
            raise _cannot(error, self.path, "the store cannot be set aside") from error
        return backup

    def _move(self, stores: list[str], backup: str) -> None:
        """Move the stores to `backup`, or back: a sync that failed leaves nothing certain. Raises OSError."""
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
            raise _cannot(error, self.path, "cannot be looked at") from error

    def _place_for_backup(self, stores: list[str]) -> str:
        """A new backup's directory, with the cluster-id in it; or the newest if a crash left it without a store."""
        for name in stores:
            target = self._disk.link_target(self._directory.below(name))
            if target is not None and not target.startswith("/"):
                raise IdentityError(
                    f"{self._directory.below(name)}: a link to {target}, which would lead elsewhere from a backup; "
                    "make it an absolute one first"
                )
        backups = backups_in(self._disk, self.path)
        if backups and not backups[-1].has_store:
            path = backups[-1].path
        else:
            number = backups[-1].number + 1 if backups else 1
            if number > _LAST_BACKUP:
                raise IdentityError(f"{backups[-1].path}: there is no higher number; move the backups elsewhere first")
            path = self._directory.below(f"_cluster.bak.{number:04x}")
            self._disk.make_directory(path)
        try:
            cluster_id = self.read().cluster_id
        except IdentityError:  # what is damaged says nothing, and goes
            cluster_id = None
        if cluster_id is not None:
            StoreIdentity(self._environment, path).mark_dirty(cluster_id)
        return path

    def _write(self, identity: Identity) -> None:
        try:
            self._settle_backup()
            if not self._disk.is_directory(self._directory.root):
                self._disk.make_directory(self._directory.root)
                self._disk.sync_directory(self.path)
            self._directory.replace(_FILE, encode(identity))
        except OSError as error:
            raise _cannot(error, posixpath.join(self.path, STATUS), "cannot be written") from error

    def _settle_backup(self) -> None:
        """Make what was moved durable, now or by a process that was killed: where it is before where it no more is."""
        for backup in backups_in(self._disk, self.path)[-1:]:
            self._disk.sync_directory(backup.path)
        self._disk.sync_directory(self.path)


def _cannot(error: OSError, path: str, what: str) -> IdentityError:
    return IdentityError(f"{error.filename or path}: {what}: {error.strerror or error}")
