"""The broker as a daemon: started with `--daemon`, found with `--check`, ended with `--quit`.

The parent process forks and waits until the child reports over a pipe that it is ready, with its port, or that it
cannot start, with the reason: `+5672`, or `-Cannot lock …`. A pipe closed without a report means that the child has
failed. Only then does the parent exit, so that `qpidd --daemon && qpid-send …` works, and an error is not only logged.

The daemon holds `PID-DIR/qpidd.PORT.pid`. A broker in the foreground holds only the lock of its data directory.
`--check` and `--quit` look at both.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from qstore.broker.process.held_files import PidFile, holder_of, user_directory
from qstore.formats.named_tuple import NamedTuple

DAEMON_PID_DIRECTORY: Final = "/var/run/qpidd"
_MAX_REPORT: Final = 4096


class DaemonError(Exception):
    """The daemon cannot be started or ended. The text is one line for the user."""


class Started(NamedTuple):
    """A daemon that has started, as reported to the parent.

    Attributes:
        process: the daemon's process id.
        port: the port on which it listens.
    """

    process: int
    port: int


class Child:
    """The daemon's end of the pipe.

    Args:
        descriptor: the pipe's file descriptor, for writing.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def ready(self, port: int) -> None:
        """Report that the broker is listening on `port`."""
        self._report(b"+%d" % port)

    def failed(self, text: str) -> None:
        """Report that the broker cannot start, and why."""
        self._report(b"-" + text.encode(errors="backslashreplace")[: _MAX_REPORT - 1])

    def _report(self, report: bytes) -> None:
        try:
            os.write(self._descriptor, report)
        except BrokenPipeError:
            pass  # the parent has timed out or was killed: the daemon continues
        finally:
            os.close(self._descriptor)


def fork(wait_seconds: float) -> Started | Child:
    """Fork. The call returns in the parent when the daemon is ready, and in the detached child at once.

    Raises:
        DaemonError: in the parent: the daemon cannot start, or was not ready in time and has been sent SIGTERM.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    process = os.fork()
    if process:
        os.close(writing)
        try:
            return _wait_for(process, reading, wait_seconds)
        finally:
            os.close(reading)
    os.close(reading)
    _detach(writing)
    return Child(writing)


def _detach(pipe: int) -> None:
    """Detach from the terminal, and close all inherited descriptors except `pipe`.

    The working directory is not changed, since paths may be relative to it.
    """
    os.setsid()
    for descriptor in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if descriptor > 2 and descriptor != pipe:
            with contextlib.suppress(OSError):  # the listing's own descriptor is already closed
                os.close(descriptor)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    os.close(nothing)


def _wait_for(process: int, reading: int, seconds: float) -> Started:
    if not select.select([reading], [], [], seconds)[0]:
        os.kill(process, signal.SIGTERM)
        raise DaemonError(f"not ready within {seconds:g} s; it has been sent SIGTERM; increase the time with --wait")
    report = os.read(reading, _MAX_REPORT)
    if report.startswith(b"+"):
        return Started(process, int(report[1:]))
    if report.startswith(b"-"):
        raise DaemonError(report[1:].decode(errors="replace"))
    _, status = os.waitpid(process, 0)
    raise DaemonError(f"exited before it was ready, with status {os.waitstatus_to_exitcode(status)}; see its log")


# ---- finding and ending a daemon ----


def pid_directories() -> tuple[str, ...]:
    """The default directories for pid files, the current user's own first."""
    own = user_directory()
    return (DAEMON_PID_DIRECTORY, own) if os.geteuid() == 0 else (own, DAEMON_PID_DIRECTORY)


def pid_path(directory: str, port: int) -> str:
    """The path of the pid file of the daemon that listens on `port`."""
    return str(Path(directory, f"qpidd.{port}.pid"))


def hold_pid_file(directory: str, port: int) -> PidFile:
    """Create the directory, if it does not exist, and lock the pid file. Raises DaemonError."""
    path = pid_path(directory, port)
    try:
        Path(path).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        return PidFile(path)
    except BlockingIOError:
        raise DaemonError(f"Cannot lock {path}: Resource temporarily unavailable; see --check") from None
    except OSError as error:
        raise DaemonError(
            f"{error.filename or path}: {error.strerror}; choose another directory with --pid-dir"
        ) from error


def find(paths: Iterable[str]) -> int | None:
    """The id of the process that holds one of these files; None if none does. Raises DaemonError."""
    for path in paths:
        try:
            holder = holder_of(path)
        except OSError as error:
            raise DaemonError(f"{path}: cannot be read: {error.strerror}") from error
        if holder is not None:
            return holder
    return None


def end(process: int, wait_seconds: float) -> None:
    """Send SIGTERM to a broker, and wait until it has ended. Raises DaemonError."""
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return
    except OSError as error:
        raise DaemonError(f"process {process} cannot be ended: {error.strerror}") from error
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        if not select.select([descriptor], [], [], wait_seconds)[0]:
            raise DaemonError(
                f"process {process} has not ended within {wait_seconds:g} s; increase the time with --wait"
            )
    except ProcessLookupError:
        pass  # it has ended in the meantime
    except PermissionError:
        raise DaemonError(f"process {process} belongs to another user and cannot be ended") from None
    finally:
        os.close(descriptor)
