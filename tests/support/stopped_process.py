"""A process that stands still: no thread of it does anything more, however busy the machine is."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

_SECONDS = 30.0


def stop_process(pid: int) -> None:
    """Send SIGSTOP, and return when it has come to every thread: until then the others go on."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + _SECONDS
    while any(_state(task) not in "TtZX" for task in Path(f"/proc/{pid}/task").iterdir()):
        assert time.monotonic() < deadline, f"process {pid} does not stop"
        time.sleep(0.001)


def _state(task: Path) -> str:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"
