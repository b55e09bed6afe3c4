"""The directory of a version-2 store: its content, its creation, and its marks.

    <store-dir>/rhm.lock         locked while a process has the store open
                rhm/STORE        format, store id, clean mark (`formats.rhm.store_file`); replaced as a whole
                    CLOSED       the content of each journal at the last clean close (`close_record`); likewise
                    SYNCED       how far the catalogue and each journal are known to be synced; likewise
                    catalogue/   the catalogue
                    topology     a second copy of the catalogue's content (`formats.topology_copy`)
                    jrnl/<id>/   the queues' journals
                    tpl/         the prepared list's journal
                    orphans/     journals that no queue has, moved aside
                    quarantine/  damaged journals and catalogues, unchanged
                rhm.new/         a store being built: its STORE file is written last
                rhm.version-1/   the store of qpidd that was converted
                rhm.discarded/   a store that was truncated, until it is removed
                rhm.snapshots/   snapshots that other processes read, until they are released (`shared_snapshot`)
                RECOVERING       qstore-recover is building the store; see `unfinished`

A store is built in `rhm.new` and renamed when it is complete. So after a crash at any moment, `finish_interrupted`
finds either the old store, or the complete new one, or only an incomplete one, which it removes.
"""

from __future__ import annotations

import contextlib
import posixpath
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import Final
from uuid import UUID

import qstore.store.log_lines as log_lines
from qstore.formats.rhm import store_file
from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.jinf import TPL_BASE_NAME
from qstore.formats.topology_copy import encode_snapshot
from qstore.store.catalogue.catalogue import Catalogue
from qstore.store.catalogue.topology_copy import NAME as TOPOLOGY
from qstore.store.catalogue.topology_copy import batch_of
from qstore.store.disk import DiskLock, WritableDisk, read_whole, write_new
from qstore.store.environment import Environment
from qstore.store.errors import StoreError, StoreLockedError, advice, disk_advice
from qstore.store.journal.write.storage import create_journal
from qstore.store.key_value import CatalogueError, KeyValue
from qstore.store.live.queue_journal import TPL_NAME, journal_info
from qstore.store.unfinished import (
    CONVERTED,
    DISCARDED,
    LIST,
    NEW,
    ROOT,
    SNAPSHOTS,
    STORE,
    Unfinished,
    unfinished_stores,
)

LOCK: Final = "rhm.lock"
MIN_ROOM: Final = 1 << 16  # minimum bytes for records after the snapshot in a new topology file
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Found(Enum):
    """The content of a store directory."""

    NOTHING = auto()
    VERSION_2 = auto()
    VERSION_1 = auto()


class StoreDirectory:
    """The directory of one store.

    Args:
        environment: disk, clock and so on.
        path: the store directory.
        software_version: recorded in the STORE file.

    Attributes:
        path: as above.
        root: the directory of the store itself, `rhm`.
        has_hosts: whether the STORE file says that there may be virtual hosts other than "/".
    """

    def __init__(self, environment: Environment, path: str, software_version: str) -> None:
        self._environment = environment
        self._disk: WritableDisk = environment.disk
        self._software_version = software_version
        self.path = path
        self.root = self.below(ROOT)
        self.has_hosts = False

    def on(self, environment: Environment) -> StoreDirectory:
        """The same directory, in another environment."""
        return StoreDirectory(environment, self.path, self._software_version)

    def below(self, *names: str) -> str:
        """A path below the store directory."""
        return posixpath.join(self.path, *names)

    def part(self, name: str) -> str:
        """The path of a part of the store itself."""
        return posixpath.join(self.root, name)

    def journal(self, journal_id: int) -> str:
        """The directory of a queue's journal."""
        return posixpath.join(self.root, "jrnl", str(journal_id))

    def has_journal(self, journal_id: int) -> bool:
        """Whether the directory of a queue's journal exists."""
        return self._disk.is_directory(self.journal(journal_id))

    @property
    def catalogue(self) -> str:
        """The catalogue's directory."""
        return posixpath.join(self.root, "catalogue")

    @property
    def prepared_list(self) -> str:
        """The directory of the prepared list's journal."""
        return posixpath.join(self.root, LIST)

    @property
    def directories(self) -> list[str]:
        """The directories of the store itself that exist from its start to its stop."""
        found = (self.root, self.catalogue, self.part("jrnl"), self.prepared_list)
        return [path for path in found if self._disk.is_directory(path)]

    @property
    def _salvage_advice(self) -> str:
        """Advice about a store that cannot be opened because its own files are damaged."""
        seen = f"inspect it with qstore-check {self.path}"
        return f"{seen}, and recover a sound store from it with qstore-recover {self.path} DEST"

    @property
    def _parent(self) -> str:
        return posixpath.dirname(self.path.rstrip("/")) or "."

    # ---- locking ----

    def lock(self) -> DiskLock:
        """Create the directory if it is missing, and lock it.

        Raises:
            StoreLockedError: another process has locked it.
            StoreError: it cannot be created or written to.
        """
        try:
            if not self._disk.is_directory(self.path):
                self._disk.make_directory(self.path)
                self._disk.sync_directory(self._parent)
            return self._disk.lock(self.below(LOCK))
        except BlockingIOError:
            raise StoreLockedError(log_lines.directory_locked().text) from None
        except FileExistsError:
            raise StoreError(f"{self.path}: the store directory cannot be used: it is not a directory") from None
        except OSError as error:
            where, hint = self.path, advice(error)
            if error.filename == self.below(LOCK) and not hint:
                where, hint = self.below(LOCK), "; it is not the lock of a store: remove it, or move it elsewhere"
            text = f"the store directory cannot be used: {error.strerror}{hint}"
            raise StoreError(f"{where}: {text}") from error

    def finish_interrupted(self) -> None:
        """Finish, or undo, work that a crash interrupted.

        Raises:
            StoreError: it is an incomplete recovery.
            OSError: the disk fails.
        """
        self._refuse_unfinished()
        self._disk.sync_directory(self.path)  # in case of a crash between a rename and its sync
        names = self._disk.names(self.path)
        if ROOT not in names:
            with contextlib.suppress(PermissionError):  # likewise, if it was created for this store
                self._disk.sync_directory(self._parent)
        if SNAPSHOTS in names:
            remove_tree(self._disk, self.below(SNAPSHOTS))
        for path, state in unfinished_stores(self._disk, self.path).items():
            if state is Unfinished.NEW_STORE:
                self._disk.sync_directory(path)  # its STORE file may be unsynced
                self._disk.rename(path, self.root)
                self._disk.sync_directory(self.path)
            elif state is Unfinished.BUILT_RECOVERY:  # the store is in use from now on
                self._disk.remove(path)
                self._disk.sync_directory(self.path)
            else:
                remove_tree(self._disk, path)

    def _refuse_unfinished(self) -> None:
        for path, state in unfinished_stores(self._disk, self.path).items():
            if state is Unfinished.BEGUN_RECOVERY:
                raise StoreError(state.notice(path))

    def look(self) -> Found:
        """Determine the content of the directory.

        Raises:
            StoreError: a store of a newer version, a linearstore, an incomplete recovery, or something else that
                cannot be opened.
        """
        self._refuse_unfinished()
        if not self._disk.is_directory(self.root):
            if ROOT in self._disk.names(self.path):
                raise StoreError(f"{self.root}: this is not a store, but a file; move it elsewhere first")
            if self._disk.is_directory(self.below("qls")):
                raise StoreError(
                    f"{self.path}: this is a linearstore; qstore-recover creates a store from it without changing it"
                )
            return Found.NOTHING
        names = self._disk.names(self.root)
        if not names:
            return Found.NOTHING
        if STORE in names:
            self.read_mark()
            return Found.VERSION_2
        if "catalogue" in names or TOPOLOGY in names:
            raise StoreError(f"{self.root}: the STORE file is missing; {self._salvage_advice}")
        if "dat" in names or "jrnl" in names or "tpl" in names:
            return Found.VERSION_1
        raise StoreError(f"{self.root}: this is not a store: it has neither a STORE file nor a dat directory")

    # ---- creation ----

    @property
    def in_the_making(self) -> StoreDirectory:
        """The same store while it is being built, in `rhm.new`."""
        new = StoreDirectory(self._environment, self.path, self._software_version)
        new.root = self.below(NEW)
        return new

    def create(self, tpl_geometry: Geometry, alignment: int) -> None:
        """Create an empty store.

        Raises:
            StoreError: it cannot be created; nothing is left of it.
        """
        try:
            new = self.begin_new(tpl_geometry, alignment)
            self.finish_new(new, UUID(int=self._environment.random_bits(128), version=4))
        except StoreError:
            with contextlib.suppress(OSError):  # the next start removes the rest
                remove_tree(self._disk, self.below(NEW))
            raise

    def begin_new(self, tpl_geometry: Geometry, alignment: int) -> StoreDirectory:
        """Create the parts of a store in `rhm.new`, except the catalogue and the STORE file."""
        new, disk = self.in_the_making, self._disk
        try:
            disk.make_directory(new.root)
            disk.make_directory(posixpath.join(new.root, "jrnl"))
            info = journal_info(self._environment, TPL_NAME, tpl_geometry, alignment, base_name=TPL_BASE_NAME)
            create_journal(disk, new.prepared_list, info)
        except OSError as error:
            raise self._cannot_make(error) from error
        return new

    def finish_new(self, new: StoreDirectory, store_id: UUID) -> None:
        """Create the catalogue of the store in `rhm.new` and its second copy, if missing; mark and rename the store."""
        disk = self._disk
        try:
            if not disk.is_directory(new.catalogue):
                key_value = self._environment.open_key_value(new.catalogue, create=True)
                try:
                    Catalogue.create(key_value, store_id)
                    new.write_topology(store_id, key_value)
                finally:
                    key_value.close()
            disk.sync_directory(posixpath.join(new.root, "jrnl"))
            disk.sync_directory(new.root)
            disk.sync_directory(self.path)
            new.mark(store_id, clean=False)
            if disk.is_directory(self.root) and not disk.names(self.root):
                disk.remove_directory(self.root)
            disk.rename(new.root, self.root)
            disk.sync_directory(self.path)
        except OSError as error:
            raise self._cannot_make(error) from error
        except CatalogueError as error:
            raise StoreError(f"{error}; {disk_advice()}") from error

    def _cannot_make(self, error: OSError) -> StoreError:
        text = f"a store cannot be created here: {error.strerror}{advice(error)}"
        return StoreError(f"{error.filename or self.path}: {text}")

    def set_converted_aside(self) -> str:
        """Rename the version-1 store. Returns its path."""
        target = self.below(CONVERTED)
        if self._disk.is_directory(target):
            raise StoreError(f"{target}: a converted store already exists; move it elsewhere first")
        self._disk.rename(self.root, target)
        self._disk.sync_directory(self.path)
        return target

    def discard(self) -> None:
        """Remove the store, of any kind."""
        if self._disk.is_directory(self.root):
            self._disk.rename(self.root, self.below(DISCARDED))
            self._disk.sync_directory(self.path)
            remove_tree(self._disk, self.below(DISCARDED))

    def write_topology(self, store_id: UUID, key_value: KeyValue) -> int:
        """Replace the second copy of the catalogue on `key_value`.

        Returns:
            The offset in it of the record of the next batch.

        Raises:
            OSError: it cannot be written; the old one still exists, or the new one completely.
            CatalogueError: the map cannot be read.
        """
        entries = dict(key_value.items(b""))
        content = encode_snapshot(store_id, batch_of(entries), entries)
        self.replace(TOPOLOGY, content + bytes(max(MIN_ROOM, len(content))))
        return len(content)

    # ---- the mark ----

    def read_mark(self) -> store_file.StoreFile:
        """The content of the STORE file. Raises StoreError."""
        path = posixpath.join(self.root, STORE)
        try:
            mark = store_file.decode(read_whole(self._disk, path, store_file.MAX_SIZE + 1))
        except store_file.StoreFileError as error:
            raise StoreError(f"{path}: {error}; {self._salvage_advice}") from error
        except OSError as error:
            hint = advice(error) or f"; {self._salvage_advice}"
            raise StoreError(f"{path}: cannot be read: {error.strerror}{hint}") from error
        self.has_hosts = mark.has_hosts
        return mark

    def mark(self, store_id: UUID, *, clean: bool, close_record: bool = False) -> None:
        """Mark whether the store is closed cleanly, and whether there is a record of that. Raises OSError."""
        marked_at = EPOCH + timedelta(microseconds=self._environment.clock() // 1000)
        version = self._software_version
        mark = store_file.StoreFile(store_id, clean, marked_at, version, close_record, self.has_hosts)
        self.replace(STORE, store_file.encode(mark))

    def admit_hosts(self) -> None:
        """Mark that there may be virtual hosts other than "/", before one is stored. Raises StoreError, OSError."""
        if not self.has_hosts:
            mark = self.read_mark()
            self.replace(STORE, store_file.encode(mark._replace(has_hosts=True)))
            self.has_hosts = True

    def replace(self, name: str, content: bytes) -> None:
        """Write a small file in the store's directory atomically; a directory in its place is kept. Raises OSError."""
        new, path = self.part(name + ".new"), self.part(name)
        if name + ".new" in self._disk.names(self.root):  # of an interrupted attempt
            self.clear(new)
        try:
            write_new(self._disk, new, content)
            if self._disk.is_directory(path):
                self.clear(path)
            self._disk.rename(new, path)
        except OSError:
            with contextlib.suppress(OSError):  # the rest is removed when this file is next replaced
                self._disk.remove(new)
            raise
        self._disk.sync_directory(self.root)

    # ---- quarantine ----

    def clear(self, path: str) -> None:
        """Make way for a file at `path`: a file or a link there is removed, a directory quarantined. Raises OSError."""
        if self._disk.is_directory(path) and self._disk.link_target(path) is None:
            self.set_aside(path, "quarantine")
        else:
            self._disk.remove(path)

    def clear_for_directory(self, path: str) -> None:
        """Make way for a directory at `path`: anything else there is quarantined.

        Raises:
            StoreError: it is a link that leads nowhere.
            OSError: it cannot be moved.
        """
        parent, name = posixpath.split(path)
        if name not in self._disk.names(parent) or self._disk.is_directory(path):
            return
        target = self._disk.link_target(path)
        if target is not None:
            text = f"is a symbolic link to {target}, which is not a directory: mount the disk that holds it"
            raise StoreError(f"{path}: {text}, or remove the link: what was there counts as lost then")
        self.set_aside(path, "quarantine")

    def set_aside(self, directory: str, kind: str) -> str:
        """Move a directory, or a file, into `orphans` or `quarantine`. Returns its new path. Raises OSError."""
        parent = posixpath.join(self.root, kind)
        if not self._disk.is_directory(parent):
            self._disk.make_directory(parent)
            self._disk.sync_directory(self.root)
        taken = set(self._disk.names(parent))
        name = posixpath.basename(directory)
        number = next(number for number in range(len(taken) + 1) if f"{name}-{number}" not in taken)
        target = posixpath.join(parent, f"{name}-{number}")
        self._disk.rename(directory, target)
        self._disk.sync_directory(parent)
        self._disk.sync_directory(posixpath.dirname(directory))
        return target


def remove_tree(disk: WritableDisk, path: str) -> None:
    """Remove a directory and all of its content, or a file or a link. Raises OSError."""
    if disk.link_target(path) is not None or not disk.is_directory(path):
        disk.remove(path)
        return
    for name in disk.names(path):
        remove_tree(disk, posixpath.join(path, name))
    disk.remove_directory(path)
