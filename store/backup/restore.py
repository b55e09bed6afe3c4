"""Restores a backup: the store appears under its name when every byte of it is written, verified and synced.

    DEST.restoring/             everything is written here, under a lock
                   RESTORING    the id of the backup; created first
                   rhm.partial/ the store, or qls.partial; renamed to `rhm` or `qls` when it is complete
    DEST                        the same directory, after one more rename; then the mark is removed

After a kill the same command continues: chunks that are there already, with the right bytes, are not read from the
backup again. A directory DEST.restoring without the mark, or with that of another backup, is not touched.

Files and directories are readable only by the user who restores them, whatever they were.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from typing import Final

from qstore.store.backup.repository import CHUNK_SIZE, BackupFile, Manifest, Repository, plain_chunk, sizes_of
from qstore.store.disk import WritableDisk, WritableFile, read_whole, write_new
from qstore.store.errors import StoreError
from qstore.store.repair.stopped_store import reported_errors

_BUILDING: Final = ".restoring"
_MARK: Final = "RESTORING"
_LOCK: Final = "restore.lock"
_PARTIAL: Final = ".partial"
_MAX_MARK: Final = 4096

Advance = Callable[[int], None]


def restore(
    disk: WritableDisk, repository: Repository, manifest: Manifest, destination: str, advance: Advance = lambda _: None
) -> None:
    """Restore a backup.

    Args:
        disk: where it goes.
        repository: the backups.
        manifest: the backup.
        destination: the store directory, which must not exist, or be empty.
        advance: receives numbers of bytes.

    Raises:
        StoreError: it cannot be restored; DEST does not exist, or is unchanged.
    """
    with reported_errors(destination):
        _Restore(disk, repository, manifest, destination.rstrip("/"), advance).run()


class _Restore:
    """One restore."""

    def __init__(
        self, disk: WritableDisk, repository: Repository, manifest: Manifest, destination: str, advance: Advance
    ) -> None:
        self._disk, self._repository, self._manifest = disk, repository, manifest
        self._destination, self._advance = destination, advance
        self._building = destination + _BUILDING

    def run(self) -> None:
        """Do all steps."""
        disk, destination, building, root = self._disk, self._destination, self._building, self._manifest.root
        if self._is_done():
            return
        self._check_destination()
        self._check_room()
        self._begin()
        lock = disk.lock(posixpath.join(building, _LOCK))
        try:
            if not disk.is_directory(posixpath.join(building, root)):
                partial = posixpath.join(building, root + _PARTIAL)
                self._write(partial)
                disk.rename(partial, posixpath.join(building, root))
                disk.sync_directory(building)
        finally:
            lock.release()
        disk.remove(posixpath.join(building, _LOCK))
        if disk.is_directory(destination):
            disk.remove_directory(destination)
        disk.rename(building, destination)
        disk.sync_directory(posixpath.dirname(destination) or ".")
        disk.remove(posixpath.join(destination, _MARK))
        disk.sync_directory(destination)

    def _is_done(self) -> bool:
        """Whether an earlier run was killed after its last rename: then only the mark is left to be removed."""
        mark = posixpath.join(self._destination, _MARK)
        if not self._disk.is_file(mark) or self._marked(self._destination) != self._manifest.id:
            return False
        self._disk.remove(mark)
        self._disk.sync_directory(self._destination)
        return True

    def _marked(self, directory: str) -> str:
        content = read_whole(self._disk, posixpath.join(directory, _MARK), _MAX_MARK)
        return content.decode("ascii", "replace").strip()

    def _check_destination(self) -> None:
        disk, destination = self._disk, self._destination
        parent = posixpath.dirname(destination) or "."
        if not disk.is_directory(parent):
            raise StoreError(f"{parent}: no such directory; create it first")
        if disk.link_target(destination) is not None or disk.is_file(destination):
            raise StoreError(f"{destination}: exists; choose a directory that does not exist")
        if disk.is_directory(destination) and disk.names(destination):
            raise StoreError(f"{destination}: is not empty; choose a new or empty directory")
        if disk.link_target(self._building) is not None:
            raise StoreError(f"{self._building}: is a symbolic link; remove it, or choose another destination")

    def _check_room(self) -> None:
        """Check that the store fits on the disk."""
        free, _ = self._disk.space(posixpath.dirname(self._destination) or ".")
        if self._manifest.size > free and not self._disk.is_directory(self._building):
            text = f"{self._manifest.size:,} bytes are needed, and {free:,} are free"
            raise StoreError(f"{self._destination}: {text}; make room, or choose a directory on another disk")

    def _begin(self) -> None:
        """Create the directory with its mark, or find that of an earlier run."""
        disk, building, root = self._disk, self._building, self._manifest.root
        if not disk.is_directory(building):
            disk.make_directory(building)
            disk.sync_directory(posixpath.dirname(building) or ".")
        names = {*disk.names(building)} - {_LOCK, _MARK + _PARTIAL}
        if _MARK not in names and not names:
            partial = posixpath.join(building, _MARK + _PARTIAL)
            if disk.is_file(partial):
                disk.remove(partial)
            write_new(disk, partial, self._manifest.id.encode() + b"\n")
            disk.rename(partial, posixpath.join(building, _MARK))
            disk.sync_directory(building)
            return
        if not names <= {_MARK, root, root + _PARTIAL}:
            raise StoreError(f"{building}: contains other files; move them, or choose another destination")
        if _MARK not in names or self._marked(building) != self._manifest.id:
            text = "contains the remains of another restore; remove it, or choose another destination"
            raise StoreError(f"{building}: {text}")

    # ---- the tree ----

    def _write(self, top: str) -> None:
        """Write everything below `top`, and sync it."""
        disk, manifest = self._disk, self._manifest
        directories = [top, *(posixpath.join(top, path) for path in manifest.directories)]
        for path in directories:
            if not disk.is_directory(path):
                disk.make_directory(path)
        for file in manifest.files:
            self._file(posixpath.join(top, file.path), file)
        for file in manifest.files:  # after all were written: together that takes hardly longer than one
            with contextlib.closing(disk.open_writable(posixpath.join(top, file.path))) as written:
                written.sync()
        parent = disk.real_path(posixpath.dirname(self._destination) or ".")
        final = posixpath.join(parent, posixpath.basename(self._destination), manifest.root)
        for link in manifest.links:
            path, target = posixpath.join(top, link.path), posixpath.join(final, link.target)
            if disk.link_target(path) is None:
                disk.make_link(path, target)
        for path in reversed(directories):
            disk.sync_directory(path)
        disk.sync_directory(posixpath.dirname(top))

    def _file(self, path: str, wanted: BackupFile) -> None:
        disk, is_there = self._disk, False
        if disk.is_file(path):
            with contextlib.closing(disk.open(path)) as found:
                is_there = found.size == wanted.size
            if not is_there:
                disk.remove(path)
        with contextlib.closing(disk.open_writable(path) if is_there else disk.create(path, wanted.size)) as file:
            for number, size in enumerate(sizes_of(wanted.size, len(wanted.chunks))):
                self._chunk(file, number * CHUNK_SIZE, size, wanted.chunks[number], is_new=not is_there)

    def _chunk(self, file: WritableFile, offset: int, size: int, digest: str, *, is_new: bool) -> None:
        has_it = digest == _of_zeros(size) if is_new else sha256(file.read(offset, size)).hexdigest() == digest
        if not has_it:
            file.write(offset, plain_chunk(self._repository, digest, size))
        self._advance(size)


@lru_cache(maxsize=4)
def _of_zeros(size: int) -> str:
    """The id of a chunk of zeros."""
    return sha256(bytes(size)).hexdigest()
