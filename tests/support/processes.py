"""Processes, looked at from outside."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

PATIENCE_SECONDS: Final = 30.0
"""No test waits longer for what must happen."""


def children_of(pid: int) -> list[int]:
    """The processes that a process has started."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            if parent == pid:
                found.append(int(entry.name))
    return found


def is_running(pid: int) -> bool:
    """Whether the process is there; one that has ended (Z), or is just being reaped (X), is not.

    The first thread of a killed process may end before the others, which hold its files and locks until they end.
    """
    process = Path(f"/proc/{pid}")
    try:
        state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        return state not in "ZX" or sum(1 for _ in (process / "task").iterdir()) > 1
    except (FileNotFoundError, ProcessLookupError):
        return False


def goes(pid: int) -> bool:
    """Whether the process ends."""
    end = time.monotonic() + PATIENCE_SECONDS
    while is_running(pid) and time.monotonic() < end:
        time.sleep(0.005)
    return not is_running(pid)
