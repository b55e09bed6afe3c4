"""Whether a broker has the store open that contains a journal in qpidd's format.

Such a journal is at `<data-dir>/rhm/...`, in a linearstore at `<data-dir>/qls/...`. A broker locks `<data-dir>/lock`
while it runs: qpidd with lockf(3), qstore's with flock(2). If the store is not in the data directory, a running broker
cannot be detected.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from qstore.store.errors import StoreLockedError

_ROOTS: Final = ("rhm", "qls")
_LOCK: Final = "lock"


@contextmanager
def without_broker(directory: str) -> Iterator[None]:
    """Keep brokers out while the block runs.

    Args:
        directory: the journal's directory, or another one below `rhm` or `qls`.

    Raises:
        StoreLockedError: a broker has the store open.
        OSError: the lock cannot be examined.
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
            raise StoreLockedError(f"{path}: a broker has the store open; stop it first") from None
        yield
    finally:
        os.close(descriptor)


def _lock_path(directory: str) -> str | None:
    for above in Path(directory).resolve().parents:
        if above.name in _ROOTS:
            path = above.parent / _LOCK
            return str(path) if path.is_file() else None
    return None
