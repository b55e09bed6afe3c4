"""Where tests keep their files: in memory, where there is enough of it; those of `tests/system` on a disk all the same.

Most of what tests write is looked at once and removed, and a disk takes half of the time. `TMPDIR` in the environment
names another place.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

MEMORY: Final = "/dev/shm"
DISK: Final = "/var/tmp"
NEEDED: Final = 4 << 30  # bytes, of which a run with four workers takes a part
_VARIABLE: Final = "TMPDIR"


def choose() -> None:
    """For this process, and for those that it starts."""
    if _VARIABLE not in os.environ and is_large_enough(MEMORY):
        os.environ[_VARIABLE] = MEMORY
        tempfile.tempdir = None


def is_large_enough(path: str) -> bool:
    """Whether tests can have all their files there, and run those that are programs."""
    try:
        found = os.statvfs(path)
    except OSError:
        return False
    is_free = found.f_bavail * found.f_frsize >= NEEDED
    return is_free and not found.f_flag & os.ST_NOEXEC and os.access(path, os.W_OK | os.X_OK)


@contextmanager
def directory_on_disk() -> Iterator[Path]:
    """A directory that is removed at the end; where `TMPDIR` says if tests keep nothing in memory."""
    is_in_memory = os.environ.get(_VARIABLE) == MEMORY
    with tempfile.TemporaryDirectory(prefix="qstore-test-", dir=DISK if is_in_memory else None) as name:
        yield Path(name)
