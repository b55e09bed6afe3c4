"""What tests of full disks look at: what files there are and how large, and what a user is told."""

from __future__ import annotations

import errno
import os
from typing import Final

from tests.faults.simulated_disk import SimulatedDisk

FULL: Final = os.strerror(errno.ENOSPC)
_LOCK: Final = "rhm.lock"


def sizes(disk: SimulatedDisk, path: str) -> dict[str, int]:
    """Files and directories below a directory, by path, with their sizes, 0 for directories; without the lock file."""
    found: dict[str, int] = {}
    for name in disk.names(path):
        below = f"{path}/{name}"
        if disk.is_directory(below):
            found[f"{below}/"] = 0
            found.update(sizes(disk, below))
        elif name != _LOCK:
            file = disk.open(below)
            found[below] = file.size
            file.close()
    return found


def assert_told(error: Exception, path: str) -> str:
    """One line: where, what is wrong, and what to do. Returns it."""
    text = str(error)
    assert "\n" not in text
    assert path in text, text
    assert FULL in text, text
    assert "make room" in text or "see whether the disk is full" in text, text
    return text
