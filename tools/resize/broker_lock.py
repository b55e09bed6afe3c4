"""Whether a broker has the store in which a journal of qpidd's lies.

Such a journal is at `<data-dir>/rhm/...`, and a broker holds `<data-dir>/lock` as long as it runs: qpidd with lockf(3),
this project's with flock(2). Where the store is not in the data directory nothing can be told.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from store.errors import StoreLockedError

_ROOT: Final = "rhm"
_LOCK: Final = "lock"


@contextmanager
def without_broker(directory: str) -> Iterator[None]:
    """Keep brokers out as long as this lasts.

    Args:
        directory: a journal's.

    Raises:
        StoreLockedError: a broker has the store.
        OSError: the lock cannot be looked at.
    """
    path = _lock_path(directory)
    if path is None:
        yield
        return
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise StoreLockedError(f"{path}: a broker has the store; stop it first") from None
        yield
    finally:
        os.close(descriptor)


def _lock_path(directory: str) -> str | None:
    for above in Path(directory).resolve().parents:
        if above.name == _ROOT:
            path = above.parent / _LOCK
            return str(path) if path.is_file() else None
    return None
