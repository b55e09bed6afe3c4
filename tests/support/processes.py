"""Processes: looked at from outside, waited for, stopped."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

PATIENCE_SECONDS: Final = 120.0
"""No test waits longer for what must happen: 3 s on a quiet machine are 30 s at a load of ten per processor."""


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


def state_of(pid: int) -> str:
    """The letter for what its first thread does: R runs, S waits (`man proc_pid_stat`)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def memory_of(pid: int, kind: str) -> int:
    """Bytes of memory of a process, by its name in `man proc_pid_status`: VmHWM is the most that it ever held."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) << 10
    raise AssertionError(f"process {pid} has no memory")


class Signalled(Protocol):
    """A process that was started, as `subprocess.Popen`."""

    pid: int

    def send_signal(self, number: int, /) -> None:
        """Send it a signal."""


def send_when_it_waits(process: Signalled, number: signal.Signals) -> None:
    """Send a signal to a process that is about to wait for input, or for others, once it does.

    Between a prompt and the call that waits it would notice the signal only when something else has ended the wait.
    """
    assert comes(lambda: state_of(process.pid) == "S")
    process.send_signal(number)


def is_running(pid: int) -> bool:
    """Whether the process is there; one that has ended (Z), or is just being reaped (X), is not.

    The first thread of a killed process may end before the others, which hold its files and locks until they end.
    """
    try:
        return state_of(pid) not in "ZX" or sum(1 for _ in Path(f"/proc/{pid}/task").iterdir()) > 1
    except (FileNotFoundError, ProcessLookupError):
        return False


def goes(pid: int) -> bool:
    """Whether the process ends."""
    return comes(lambda: not is_running(pid))


def comes(condition: Callable[[], bool]) -> bool:
    """Whether this becomes true."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def stop_process(pid: int) -> None:
    """Send SIGSTOP, and return when it has come to every thread: until then the others go on."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while any(_state(task) not in "TtZX" for task in Path(f"/proc/{pid}/task").iterdir()):
        assert time.monotonic() < deadline, f"process {pid} does not stop"
        time.sleep(0.001)


def _state(task: Path) -> str:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"
