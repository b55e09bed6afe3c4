"""Helpers of tests of full disks: when they are full, their files with sizes, and the errors that a user sees."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Final

from tests.faults.simulated_disk import SimulatedDisk
from tests.support.profiles import today

FULL: Final = os.strerror(errno.ENOSPC)
_LOCK: Final = "rhm.lock"


def moments(disk: SimulatedDisk, run: Callable[[SimulatedDisk], object], days: int) -> list[int]:
    """From which of the calls that `run` makes on `disk` on it is full: today's, of all those of so many days."""
    begun = disk.calls
    run(disk)
    calls = range(disk.calls - begun)
    return today(calls, -(-len(calls) // days))


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


def assert_reported(error: Exception, path: str) -> str:
    """One line: where, what is wrong, and what to do. Returns it."""
    text = str(error)
    assert "\n" not in text
    assert path in text, text
    assert FULL in text, text
    assert "free some space" in text or "check whether the disk is full" in text, text
    return text
