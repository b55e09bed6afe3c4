"""The repository that a command's argument names: a directory, or a URL that fsspec knows."""

from __future__ import annotations

import os

from qstore.store.backup.repository import DiskRepository, Repository
from qstore.store.writable_disk import WritableDisk
from qstore.tools.backup.remote import RemoteRepository

_WORKERS = 4  # threads that compress and write


def open_repository(disk: WritableDisk, place: str) -> Repository:
    """The repository. Raises StoreError."""
    return RemoteRepository(place) if "://" in place else DiskRepository(disk, place)


def workers() -> int:
    """The threads for a backup on this machine."""
    return min(_WORKERS, len(os.sched_getaffinity(0)))
