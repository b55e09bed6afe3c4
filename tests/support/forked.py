"""Python processes that start at once: forked by a server that has imported everything, and otherwise as any other.

`Forked` stands in for `subprocess.Popen`, and `run` for `subprocess.run`, where a command is Python with `-m MODULE` or
`-c CODE` in which nothing hangs on how Python itself starts.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from tests.support.fork_server import ROOT

_Stream = int | IO[Any] | None


class _Server:
    """The server of this process."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "tests.support.fork_server", str(theirs.fileno())]
            self._process = subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        atexit.register(self.close)

    def ask(self, request: dict[str, Any], descriptors: Sequence[int]) -> None:
        socket.send_fds(self._socket, [json.dumps(request).encode()], list(descriptors))

    def close(self) -> None:
        self._socket.close()
        self._process.wait()

    def processor_seconds(self) -> float:
        """The processor time of this server and of the processes that it forked and that have ended."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


@cache
def _server_of(process: int) -> _Server:
    """The server of a process: one that was forked does not use its parent's."""
    del process
    return _Server()


def processor_seconds() -> float:
    """The processor time of this process and of all that it started and that have ended."""
    return sum(os.times()[:4]) + (
        _server_of(os.getpid()).processor_seconds() if _server_of.cache_info().currsize else 0
    )


class Forked:
    """A process; as `subprocess.Popen`.

    Args:
        command: Python's, with `-m MODULE …` or `-c CODE …`.
        stdin, stdout, stderr: None, a descriptor, a file, or one of the constants of `subprocess`.
        cwd: the working directory; the project's by default.
        env: all its variables; this process's by default.
        text: whether the pipes are text.
        start_new_session: whether it gets one.

    Attributes:
        args: the command line.
        pid: the process id.
        stdin, stdout, stderr: this end of the pipes.
        returncode: how it has ended, once that was asked for.
    """

    def __init__(
        self,
        command: Sequence[str | bytes | os.PathLike[str]],
        *,
        stdin: _Stream = None,
        stdout: _Stream = None,
        stderr: _Stream = None,
        cwd: str | os.PathLike[str] = ROOT,
        env: Mapping[str, str] | None = None,
        text: bool = False,
        start_new_session: bool = False,
    ) -> None:
        self.args = [os.fsdecode(each) for each in command]
        assert (self.args[0], self.args[1] in ("-m", "-c")) == (sys.executable, True), self.args
        self.returncode: int | None = None
        self._readers: list[_Reader | None] = []
        if stderr == subprocess.STDOUT:
            raise ValueError("standard error has a pipe of its own")
        opened = [_pipe_or_file(number, stream) for number, stream in enumerate((stdin, stdout, stderr))]
        suffix = "" if text else "b"
        self.stdin, self.stdout, self.stderr = (
            None if ours is None else open(ours, ("r" if number else "w") + suffix)  # noqa: SIM115
            for number, (_, ours, _) in enumerate(opened)
        )
        self._status, told = os.pipe()
        request = {
            "arguments": self.args[1:],
            "directory": os.path.abspath(cwd),
            "environment": dict(os.environ if env is None else env),
            "limits": resource.getrlimit(resource.RLIMIT_NOFILE),
            "is_leader": start_new_session,
        }
        _server_of(os.getpid()).ask(request, [*(theirs for theirs, _, _ in opened), told])
        for each in (*(theirs for theirs, _, is_own in opened if is_own), told):
            os.close(each)
        self._told = b""
        while b"\n" not in self._told:
            self._hear()
        self.pid = int(self._told.partition(b"\n")[0])

    def _hear(self) -> None:
        more = os.read(self._status, 64)
        assert more, "the fork server has ended"
        self._told += more

    def poll(self) -> int | None:
        """How it has ended; None if it has not."""
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """How it ends. Raises subprocess.TimeoutExpired."""
        status = self._ended(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return status

    def _ended(self, seconds: float | None) -> int | None:
        if self.returncode is None and self._has_ended(seconds):
            while self._told.count(b"\n") < 2:
                self._hear()
            os.close(self._status)
            self.returncode = int(self._told.split()[1])
        return self.returncode

    def _has_ended(self, seconds: float | None) -> bool:
        ready = select.poll()  # its number may be more than `select` takes
        ready.register(self._status, select.POLLIN)
        return bool(ready.poll(None if seconds is None else seconds * 1000))

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it has not ended. It may have, though its status is not known yet."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, given: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        """Write all that is given, read all that it writes, and wait for its end. Raises subprocess.TimeoutExpired."""
        end = None if timeout is None else time.monotonic() + timeout
        if not self._readers:
            self._readers = [
                None if pipe is None or pipe.closed else _Reader(pipe) for pipe in (self.stdout, self.stderr)
            ]
        if self.stdin is not None:
            with contextlib.suppress(BrokenPipeError), self.stdin:
                if given:
                    self.stdin.write(given)
        for reader in filter(None, self._readers):
            reader.join(_left(end))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        self.wait(_left(end))
        output, errors = (reader and reader.found for reader in self._readers)
        return output, errors

    def __enter__(self) -> Forked:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe in filter(None, (self.stdin, self.stdout, self.stderr)):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        self.wait()


class _Reader(threading.Thread):
    """Reads a pipe to its end.

    Attributes:
        found: what came.
    """

    def __init__(self, pipe: IO[Any]) -> None:
        super().__init__(daemon=True)
        self._pipe = pipe
        self.found: Any = None
        self.start()

    def run(self) -> None:
        with self._pipe:
            self.found = self._pipe.read()


def _left(end: float | None) -> float | None:
    return None if end is None else max(0.0, end - time.monotonic())


def _pipe_or_file(number: int, stream: _Stream) -> tuple[int, int | None, bool]:
    """A stream of the new process: its descriptor, this end of it, and whether the former is closed here afterwards."""
    if stream == subprocess.PIPE:
        reading, writing = os.pipe()
        return (reading, writing, True) if number == 0 else (writing, reading, True)
    if stream == subprocess.DEVNULL:
        return os.open(os.devnull, os.O_RDWR), None, True
    if stream is None:
        return number, None, False
    return (stream if isinstance(stream, int) else stream.fileno()), None, False


def run(
    command: Sequence[str | bytes | os.PathLike[str]],
    *,
    given: Any = None,
    capture_output: bool = False,
    check: bool = False,
    timeout: float | None = None,
    **more: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a process to its end; as `subprocess.run`, with `given` for its standard input.

    Raises:
        subprocess.TimeoutExpired: it took longer; it is killed.
        subprocess.CalledProcessError: `check`, and it failed.
    """
    if given is not None:
        more["stdin"] = subprocess.PIPE
    if capture_output:
        more |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = Forked(command, **more)
    try:
        output, errors = process.communicate(given, timeout)
    except BaseException:
        process.kill()
        process.wait()
        raise
    done = subprocess.CompletedProcess(process.args, process.wait(), output, errors)
    if check:
        done.check_returncode()
    return done
