"""The repository that a command's argument names: a directory, or a URL that fsspec knows."""

from __future__ import annotations

import os

from qstore.store.backup.repository import MAX_UNSYNCED, DiskRepository, Repository
from qstore.store.writable_disk import WritableDisk
from qstore.tools.backup.remote import RemoteRepository

_WORKERS = 4  # threads that compress and write


def is_local(place: str) -> bool:
    """Whether it is a directory."""
    return "://" not in place


def open_repository(disk: WritableDisk, place: str, max_unsynced: int = MAX_UNSYNCED) -> Repository:
    """The repository, which syncs so many bytes together. Raises StoreError."""
    return DiskRepository(disk, place, max_unsynced) if is_local(place) else RemoteRepository(place)


def workers() -> int:
    """The threads for a backup on this machine."""
    return min(_WORKERS, len(os.sched_getaffinity(0)))
