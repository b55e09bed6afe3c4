"""The repository of backups that a command's argument names: a directory, or a URL that fsspec knows."""

from __future__ import annotations

import os
import posixpath
from typing import Any, Final

from qstore.store.backup.repository import MAX_UNSYNCED, DiskRepository, Repository
from qstore.store.disk import WritableDisk
from qstore.store.errors import StoreError

_WORKERS = 4  # threads that compress and write


def is_local(place: str) -> bool:
    """Whether it is a directory."""
    return "://" not in place


def open_repository(disk: WritableDisk, place: str, max_unsynced: int = MAX_UNSYNCED) -> Repository:
    """The repository, which syncs after this many bytes. Raises StoreError."""
    return DiskRepository(disk, place, max_unsynced) if is_local(place) else RemoteRepository(place)


def workers() -> int:
    """The threads for a backup on this machine."""
    return min(_WORKERS, len(os.sched_getaffinity(0)))


# ---- places at URLs ----
#
# Such places write an object whole or not at all, and have no locks: run one backup to a URL at a time. Needs fsspec,
# and its driver for the protocol (`pip install 'qstore[remote]'`, `pip install s3fs`).

_FLAT: Final = frozenset(("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "memory"))
"""Protocols of places without directories: to create one there would create a bucket."""


def _protocols(files: Any) -> tuple[str, ...]:
    """The names of a driver's protocols, which it has as one text or as several."""
    found = files.protocol
    return (found,) if isinstance(found, str) else tuple(found)


class _NoLock:
    """The lock of a place that has none."""

    def watch(self, directory: str) -> None:
        """Nothing is locked that could be moved."""

    def is_in_place(self) -> bool:
        """Nothing is locked that could be moved."""
        return True

    def release(self) -> None:
        """Do nothing."""


class RemoteRepository:
    """A repository at a URL.

    Args:
        url: the URL.

    Attributes:
        path: as above.

    Raises:
        StoreError: fsspec, or its driver, is missing, or does not know the URL.
    """

    def __init__(self, url: str) -> None:
        self.path = url
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            raise StoreError(f"{url}: backups to URLs need fsspec: pip install 'qstore[remote]'") from None
        try:
            self._files, self._root = url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise StoreError(f"{url}: {error}") from None
        self._is_flat = not _FLAT.isdisjoint(_protocols(self._files))

    def lock(self) -> _NoLock:
        """There are no locks."""
        return _NoLock()

    def put(self, name: str, content: bytes) -> None:
        """Write an object."""
        path = posixpath.join(self._root, name)
        if not self._is_flat:
            self._call(self._files.makedirs, posixpath.dirname(path), exist_ok=True)
        self._call(self._files.pipe_file, path, content)

    def get(self, name: str, limit: int) -> bytes:
        """An object."""
        content: bytes = self._call(self._files.cat_file, posixpath.join(self._root, name), start=0, end=limit)
        return content

    def names(self, folder: str) -> list[str]:
        """The names of the objects in a folder."""
        self._files.invalidate_cache()
        try:
            found = self._call(self._files.ls, posixpath.join(self._root, folder).rstrip("/"), detail=False)
        except FileNotFoundError:
            return []
        return sorted(posixpath.basename(str(path).rstrip("/")) for path in found)

    def remove(self, name: str) -> None:
        """Remove an object."""
        self._call(self._files.rm_file, posixpath.join(self._root, name))

    def sync(self) -> None:
        """Everything is durable when it is written."""

    def _call(self, function: Any, *arguments: Any, **more: Any) -> Any:
        """Call a driver, whose errors may be of any kind."""
        try:
            return function(*arguments, **more)
        except OSError as error:
            if error.filename is None:
                error.filename = self.path
            raise
        except Exception as error:
            lines = str(error).splitlines()
            raise StoreError(f"{self.path}: {lines[0] if lines else type(error).__name__}") from error
