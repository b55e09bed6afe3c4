"""A limit for the memory of a broker: a control group if this process may make one, or its address space.

A control group (version 1) counts what the process holds and what the system's page cache holds of its files, so what
does not fit is read from the disk. A limit of the address space counts addresses, used or not.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_ROOT: Final = Path("/sys/fs/cgroup/memory")
_PATIENCE_SECONDS: Final = 5.0


class MemoryLimit:
    """A limit.

    Args:
        limit: bytes.
        group: the control group; None for a limit of the address space.

    Attributes:
        kind: what it is, in words.
    """

    def __init__(self, limit: int, group: Path | None) -> None:
        self._limit, self._group = limit, group
        self.kind = "address space" if group is None else "control group"

    def program(self, *command: str) -> tuple[str, ...]:
        """The command, limited."""
        if self._group is None:
            return ("prlimit", f"--as={self._limit}", *command)
        return ("sh", "-c", f'echo $$ > {self._group}/cgroup.procs && exec "$@"', "sh", *command)

    @property
    def kills(self) -> int:
        """How many processes the system has ended because they had too much."""
        if self._group is None:
            return 0
        for line in (self._group / "memory.oom_control").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
        return 0


@contextlib.contextmanager
def memory_limit(limit: int) -> Iterator[MemoryLimit]:
    """A memory limit for the processes that are started while it exists."""
    group = _ROOT / f"qstore-bench-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(limit))
    except OSError:
        _remove(group)
        yield MemoryLimit(limit, None)
        return
    try:
        yield MemoryLimit(limit, group)
    finally:
        _remove(group)


def _remove(group: Path) -> None:
    """A group goes when its last process has gone."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while group.exists():
        try:
            group.rmdir()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
