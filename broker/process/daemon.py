"""The broker as a daemon: started with `--daemon`, looked for with `--check`, ended with `--quit`.

The process that a person starts forks, and waits until its child says over a pipe that it is ready and on which port,
or that it cannot start and why: `+5672`, or `-Cannot lock …`. A child that ends without a word has said so, too. Only
then does the parent end, so that `qpidd --daemon && qpid-send …` works, and an error is not only in a log.

The daemon holds `PID-DIR/qpidd.PORT.pid`. What runs in the foreground holds only its data directory's lock. Both are
looked at here.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from broker.process.data_dir import user_directory
from broker.process.pid_file import PidFile, holder_of

DAEMON_PID_DIRECTORY: Final = "/var/run/qpidd"
_MAX_REPORT: Final = 4096


class DaemonError(Exception):
    """The daemon cannot be started or ended. The text is one line for a person."""


class Started(NamedTuple):
    """What the parent has learned.

    Attributes:
        process: the daemon's.
        port: on which it listens.
    """

    process: int
    port: int


class Child:
    """The daemon's end of the pipe.

    Args:
        descriptor: of the pipe.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def ready(self, port: int) -> None:
        """The broker listens on `port`."""
        self._report(b"+%d" % port)

    def failed(self, text: str) -> None:
        """The broker cannot start."""
        self._report(b"-" + text.encode(errors="backslashreplace")[: _MAX_REPORT - 1])

    def _report(self, report: bytes) -> None:
        try:
            os.write(self._descriptor, report)
        except BrokenPipeError:
            pass  # the parent has waited long enough, or was ended: the daemon goes on
        finally:
            os.close(self._descriptor)


def fork(wait_seconds: float) -> Started | Child:
    """Become two processes. The parent returns when the daemon is ready, the child at once, detached.

    Raises:
        DaemonError: in the parent: the daemon cannot start, or is not ready in time; then it is told to end.
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


def _detach(kept: int) -> None:
    """Leave the terminal, and every file that was handed down but `kept`.

    The working directory stays: paths may be relative to it.
    """
    os.setsid()
    for descriptor in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if descriptor > 2 and descriptor != kept:
            with contextlib.suppress(OSError):  # that of the list itself is closed already
                os.close(descriptor)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    os.close(nothing)


def _wait_for(process: int, reading: int, seconds: float) -> Started:
    if not select.select([reading], [], [], seconds)[0]:
        os.kill(process, signal.SIGTERM)
        raise DaemonError(f"not ready within {seconds:g} s, and told to end; give it more time with --wait")
    report = os.read(reading, _MAX_REPORT)
    if report.startswith(b"+"):
        return Started(process, int(report[1:]))
    if report.startswith(b"-"):
        raise DaemonError(report[1:].decode(errors="replace"))
    _, status = os.waitpid(process, 0)
    raise DaemonError(f"ended before it was ready, with status {os.waitstatus_to_exitcode(status)}; see its log")


# ---- finding it ----


def pid_directories() -> tuple[str, ...]:
    """Where a daemon's pid file may be if nobody says, the likeliest first: root's, then a person's own."""
    own = user_directory()
    return (DAEMON_PID_DIRECTORY, own) if os.geteuid() == 0 else (own, DAEMON_PID_DIRECTORY)


def pid_path(directory: str, port: int) -> str:
    """The pid file of the daemon that listens on a port."""
    return str(Path(directory, f"qpidd.{port}.pid"))


def hold_pid_file(directory: str, port: int) -> PidFile:
    """Make the directory, if there is none, and take the pid file. Raises DaemonError."""
    path = pid_path(directory, port)
    try:
        Path(path).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        return PidFile(path)
    except BlockingIOError:
        raise DaemonError(f"Cannot lock {path}: Resource temporarily unavailable; see --check") from None
    except OSError as error:
        raise DaemonError(
            f"{error.filename or path}: {error.strerror}; give another directory with --pid-dir"
        ) from error


def find(paths: Iterable[str]) -> int | None:
    """The process that holds one of these files; None if there is none. Raises DaemonError."""
    for path in paths:
        try:
            holder = holder_of(path)
        except OSError as error:
            raise DaemonError(f"{path}: cannot be looked at: {error.strerror}") from error
        if holder is not None:
            return holder
    return None


def end(process: int, wait_seconds: float) -> None:
    """Tell a broker to end, and wait until it has. Raises DaemonError."""
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return
    except OSError as error:
        raise DaemonError(f"process {process} cannot be ended: {error.strerror}") from error
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        if not select.select([descriptor], [], [], wait_seconds)[0]:
            raise DaemonError(f"process {process} has not ended within {wait_seconds:g} s; give it more with --wait")
    except ProcessLookupError:
        pass  # it has ended by itself
    except PermissionError:
        raise DaemonError(f"process {process} belongs to another user, and cannot be ended") from None
    finally:
        os.close(descriptor)
