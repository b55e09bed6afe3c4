"""The directory of a version-2 store: what is in it, how it comes to be, and how it is marked.

    <store-dir>/rhm.lock         held while a process has the store
                rhm/STORE        format, store id, clean mark (`formats.rhm.store_file`); replaced as a whole
                    CLOSED       what each journal held at the last clean close (`close_record`); likewise
                    catalogue/   the catalogue
                    topology     a second copy of what is in the catalogue (`formats.topology`)
                    jrnl/<id>/   the queues' journals
                    tpl/         the prepared list's
                    orphans/     journals that no queue has, kept aside
                    quarantine/  journals and catalogues that were found damaged, kept as they were
                rhm.new/         a store that is being built: its STORE file is written last
                rhm.version-1/   the store of qpidd that was converted
                rhm.discarded/   a store that was truncated, until it is removed
                RECOVERING       qstore-recover builds the store; see `unfinished`

A store is built in `rhm.new` and gets its name when it is whole. So whatever moment a crash comes at, `settle` finds
either the old store, or the new one whole, or nothing but a beginning, which it removes.
"""

from __future__ import annotations

import contextlib
import errno
import posixpath
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import Final
from uuid import UUID

import store.log_lines as log_lines
import store.outage as outage
from formats.rhm import store_file
from formats.rhm.geometry import Geometry
from formats.rhm.jinf import TPL_BASE_NAME
from formats.topology import encode_snapshot
from store.catalogue.catalogue import Catalogue
from store.catalogue.topology import NAME as TOPOLOGY
from store.catalogue.topology import batch_of
from store.disk import read_whole
from store.environment import Environment
from store.errors import StoreError, StoreLockedError, advice
from store.journal.write.storage import create_journal
from store.key_value import CatalogueError, KeyValue
from store.live.queue_journal import TPL_NAME
from store.live.taking_up import journal_info
from store.unfinished import CONVERTED, DISCARDED, LIST, NEW, ROOT, STORE, Unfinished, unfinished_stores
from store.writable_disk import DiskLock, WritableDisk, write_new

LOCK: Final = "rhm.lock"
_LEAST_ROOM: Final = 1 << 16  # bytes for records behind the snapshot in a new topology file; at least as much again
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Found(Enum):
    """What a store directory holds."""

    NOTHING = auto()
    VERSION_2 = auto()
    VERSION_1 = auto()


class StoreDirectory:
    """The directory of one store.

    Args:
        environment: disk, clock and so on.
        path: the store directory.
        software_version: goes into the STORE file.

    Attributes:
        path: as above.
        root: the directory of the store itself, `rhm`.
    """

    def __init__(self, environment: Environment, path: str, software_version: str) -> None:
        self._environment = environment
        self._disk: WritableDisk = environment.disk
        self._software_version = software_version
        self.path = path
        self.root = self.below(ROOT)

    def below(self, *names: str) -> str:
        """A path below the store directory."""
        return posixpath.join(self.path, *names)

    def part(self, name: str) -> str:
        """The path of something in the store's own directory."""
        return posixpath.join(self.root, name)

    def journal(self, journal_id: int) -> str:
        """The directory of a queue's journal."""
        return posixpath.join(self.root, "jrnl", str(journal_id))

    def has_journal(self, journal_id: int) -> bool:
        """Whether the directory of a queue's journal is there."""
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
    def _salvage_advice(self) -> str:
        """What to do about a store that cannot be opened because its own files are damaged."""
        seen = f"see what is there with qstore-check {self.path}"
        return f"{seen}, and make a sound store of it with qstore-recover {self.path} DEST"

    @property
    def _parent(self) -> str:
        return posixpath.dirname(self.path.rstrip("/")) or "."

    # ---- taking it ----

    def lock(self) -> DiskLock:
        """Make the directory if there is none, and take it.

        Raises:
            StoreLockedError: another process has it.
            StoreError: it cannot be made or written to.
        """
        try:
            if not self._disk.is_directory(self.path):
                self._disk.make_directory(self.path)
                self._disk.sync_directory(self._parent)
            return self._disk.lock(self.below(LOCK))
        except BlockingIOError:
            raise StoreLockedError(log_lines.directory_locked().text) from None
        except FileExistsError:
            raise StoreError(f"{self.path}: the store directory cannot be used: it is no directory") from None
        except OSError as error:
            text = f"the store directory cannot be used: {error.strerror}{advice(error)}"
            raise StoreError(f"{self.path}: {text}") from error

    def settle(self) -> None:
        """Finish, or undo, what a crash cut short.

        Raises:
            StoreError: a recovery was building it, and has not come to its end.
            OSError: the disk does not do it.
        """
        self._refuse_unfinished()
        self._disk.sync_directory(self.path)  # a crash may have come between a rename and this
        names = self._disk.names(self.path)
        if ROOT not in names:
            with contextlib.suppress(PermissionError):  # likewise, where it was made for this store
                self._disk.sync_directory(self._parent)
        for path, state in unfinished_stores(self._disk, self.path).items():
            if state is Unfinished.NEW_STORE:
                self._disk.sync_directory(path)  # its STORE file may be nowhere but in memory
                self._disk.rename(path, self.root)
                self._disk.sync_directory(self.path)
            elif state is Unfinished.BUILT_RECOVERY:  # from here on the store is in use
                self._disk.remove(path)
                self._disk.sync_directory(self.path)
            else:
                remove_tree(self._disk, path)

    def _refuse_unfinished(self) -> None:
        for path, state in unfinished_stores(self._disk, self.path).items():
            if state is Unfinished.BEGUN_RECOVERY:
                raise StoreError(state.notice(path))

    def look(self) -> Found:
        """What there is.

        Raises:
            StoreError: a store of a newer version, a linearstore, the beginning of a recovery, or something else that
                cannot be opened.
        """
        self._refuse_unfinished()
        if not self._disk.is_directory(self.root):
            if ROOT in self._disk.names(self.path):
                raise StoreError(f"{self.root}: this is no store, it is no directory; move it elsewhere first")
            if self._disk.is_directory(self.below("qls")):
                raise StoreError(
                    f"{self.path}: this is a linearstore; qstore-recover makes a store of it and leaves it as it is"
                )
            return Found.NOTHING
        names = self._disk.names(self.root)
        if not names:
            return Found.NOTHING
        if STORE in names:
            self.read_mark()
            return Found.VERSION_2
        if "catalogue" in names or TOPOLOGY in names:
            raise StoreError(f"{self.root}: there is no STORE file; {self._salvage_advice}")
        if "dat" in names or "jrnl" in names or "tpl" in names:
            return Found.VERSION_1
        raise StoreError(f"{self.root}: this is no store: there is neither a STORE file nor a dat directory")

    # ---- making it ----

    @property
    def in_the_making(self) -> StoreDirectory:
        """The same store while it is built, in `rhm.new`."""
        new = StoreDirectory(self._environment, self.path, self._software_version)
        new.root = self.below(NEW)
        return new

    def create(self, tpl_geometry: Geometry, alignment: int) -> None:
        """Make an empty store.

        Raises:
            StoreError: it cannot be made; nothing is left of it.
        """
        try:
            new = self.begin_new(tpl_geometry, alignment)
            self.finish_new(new, UUID(int=self._environment.random_bits(128), version=4))
        except StoreError:
            with contextlib.suppress(OSError):  # what cannot be removed now is removed by the next start
                remove_tree(self._disk, self.below(NEW))
            raise

    def begin_new(self, tpl_geometry: Geometry, alignment: int) -> StoreDirectory:
        """Make the parts of a store in `rhm.new`, but for the catalogue and the STORE file."""
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
        """Make the catalogue of the store in `rhm.new`, with its second copy, if it has none; mark it, and name it."""
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
            raise StoreError(f"{error}; {outage.advice()}") from error

    def _cannot_make(self, error: OSError) -> StoreError:
        told = "; make room and start again" if error.errno == errno.ENOSPC else advice(error)
        return StoreError(f"{error.filename or self.path}: a store cannot be made here: {error.strerror}{told}")

    def set_converted_aside(self) -> str:
        """Give the version-1 store another name. Returns its path."""
        target = self.below(CONVERTED)
        if self._disk.is_directory(target):
            raise StoreError(f"{target}: there is a converted store already; move it elsewhere first")
        self._disk.rename(self.root, target)
        self._disk.sync_directory(self.path)
        return target

    def discard(self) -> None:
        """Remove the store, whatever it is."""
        if self._disk.is_directory(self.root):
            self._disk.rename(self.root, self.below(DISCARDED))
            self._disk.sync_directory(self.path)
            remove_tree(self._disk, self.below(DISCARDED))

    def write_topology(self, store_id: UUID, key_value: KeyValue) -> int:
        """Write a new second copy of the catalogue on `key_value`, in place of the old one.

        Returns:
            The offset in it at which the record of the next batch goes.

        Raises:
            OSError: it cannot be written; the old one is there still, or the new one whole.
            CatalogueError: the map cannot be read.
        """
        entries = dict(key_value.items(b""))
        content = encode_snapshot(store_id, batch_of(entries), entries)
        self.replace(TOPOLOGY, content + bytes(max(_LEAST_ROOM, len(content))))
        return len(content)

    # ---- the mark ----

    def read_mark(self) -> store_file.StoreFile:
        """What the STORE file says. Raises StoreError."""
        path = posixpath.join(self.root, STORE)
        try:
            return store_file.decode(read_whole(self._disk, path, store_file.MAX_SIZE + 1))
        except store_file.StoreFileError as error:
            raise StoreError(f"{path}: {error}; {self._salvage_advice}") from error
        except OSError as error:
            raise StoreError(f"{path}: cannot be read: {error.strerror}{advice(error)}") from error

    def mark(self, store_id: UUID, *, clean: bool, close_record: bool = False) -> None:
        """Say whether the store is closed cleanly, with a record of what journals hold. Raises OSError."""
        marked_at = _EPOCH + timedelta(microseconds=self._environment.clock() // 1000)
        version = self._software_version
        content = store_file.encode(store_file.StoreFile(store_id, clean, marked_at, version, close_record))
        self.replace(STORE, content)

    def replace(self, name: str, content: bytes) -> None:
        """Write a small file in the store's directory, whole or not at all. Raises OSError."""
        new = posixpath.join(self.root, name + ".new")
        if self._disk.is_file(new):
            self._disk.remove(new)
        try:
            write_new(self._disk, new, content)
            self._disk.rename(new, posixpath.join(self.root, name))
        except OSError:
            with contextlib.suppress(OSError):  # what cannot be removed now is when this file is next replaced
                self._disk.remove(new)
            raise
        self._disk.sync_directory(self.root)

    # ---- journals that are kept aside ----

    def set_aside(self, directory: str, kind: str) -> str:
        """Move a journal's directory into `orphans` or `quarantine`. Returns its new path. Raises OSError."""
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
    """Remove a directory and all that is in it. Raises OSError."""
    for name in disk.names(path):
        below = posixpath.join(path, name)
        if disk.link_target(below) is None and disk.is_directory(below):
            remove_tree(disk, below)
        else:
            disk.remove(below)
    disk.remove_directory(path)
