"""The driver with a helper process: the broker's default where the system has no io_uring.

A thread of the broker itself would have to acquire the interpreter lock before it can report that a file is synced, and
while the event loop is busy that takes many switch intervals. Another process has its own lock. It receives the open
files over a socket pair (SCM_RIGHTS), waits for the disk, and answers; see `helper` for the messages. A file is sent
with each request and closed before its answer: that costs microseconds, and the helper never holds a removed file.

**Requests.** While few are under way, each file is a separate request, and the helper syncs them in parallel. When all
its threads are busy, files are queued here, and sent when an answer arrives: few of them one by one, many of them in
large requests, which the helper may sync by `syncfs`. So many dirty files are one group commit without a timer. Sending
never waits: files that the socket does not accept are queued too.

**End.** The helper lives as long as the socket: it ends by itself when this process closes it, or dies. When the helper
dies, or sends an invalid answer, the socket is shut down, `fileno` is readable, `submit` and `completed` raise, and
`successor` starts another helper.
"""

from __future__ import annotations

import array
import contextlib
import errno
import itertools
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from qstore.store.disk import WritableFile
from qstore.store.sync import helper
from qstore.store.sync.driver import Completion, FileWrite, SyncDriverError, file_error

START_SECONDS: Final = 10.0
"""Seconds within which a helper must send its greeting; it takes about 20 ms."""
CLOSE_SECONDS: Final = 5.0
"""Seconds that `close` waits for a helper that is syncing, before it is killed."""
DEATH_SECONDS: Final = 1.0
"""Seconds that a helper whose socket is shut down may take to end, before it is killed."""

_FEW: Final = 16
"""Up to this number, queued files are still sent one by one."""
_MAX_FILES_SENT: Final = 2 * helper.MAX_FILES
"""Maximum files at the helper: with its own they stay below 1,024, the usual limit on a process's open files."""
_HANDLED_BY_PARENT: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that terminate this process, and that may reach the helper too: it must outlive the remaining writes."""
_LITTLE_MEMORY: Final = {"MALLOC_ARENA_MAX": "1"}
"""glibc reserves 64 MiB of addresses for each thread otherwise, which is too much under `ulimit -v`."""
_MAX_ANSWER: Final = helper.MAX_FILES * helper.ANSWER.size
_STATES: Final = (("T", " (stopped)"), ("t", " (being traced)"), ("D", " (waiting for the disk)"))
"""States of a thread (proc_pid_stat(5)) that explain why nothing is synced; the first match counts."""
_FOR_NOW: Final = (errno.EAGAIN, errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM)
"""The socket is full, or the system is overloaded: retried when an answer arrives."""


class _Ticket:
    """An outstanding ticket: the number of its outstanding files, and the first error."""

    __slots__ = ("error", "number", "remaining")

    def __init__(self, number: int, remaining: int) -> None:
        self.number = number
        self.remaining = remaining
        self.error: OSError | None = None


_Job = tuple[_Ticket, WritableFile]
"""A file of a ticket."""


class HelperProcessSync:
    """A `SyncDriver` whose helper process waits for the disk.

    Args:
        waits: until the helper has started. If not, nothing may be submitted before `has_started`.

    Raises:
        SyncDriverError: no helper can be started.
    """

    def __init__(self, *, waits: bool = True) -> None:
        self._jobs: dict[int, _Job] = {}
        """Files at the helper, by job number."""
        self._requests = 0
        """Unanswered requests."""
        self._waiting: deque[_Job] = deque()
        self._max_sent = min(_MAX_FILES_SENT, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        self._next_job = 0
        self._death: str | None = None
        try:
            self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            raise SyncDriverError(f"cannot start a sync helper: {error.strerror}") from error
        with theirs:
            self._process = self._start(theirs)
        self._poll = select.poll()
        self._poll.register(self._connection, select.POLLIN)
        self._connection.setblocking(False)
        self._has_started = False
        self._end_of_start = time.monotonic() + START_SECONDS
        while waits and not self.has_started(START_SECONDS):
            pass

    @property
    def pid(self) -> int:
        """The helper's process id."""
        return self._process.pid

    @property
    def takes_writes(self) -> bool:
        """Always False."""
        return False

    def submit(self, ticket: int, files: Sequence[WritableFile], writes: Sequence[FileWrite] = ()) -> None:
        """Send the files to the helper, or queue them until it has a thread for them."""
        assert not writes
        self._check()
        outstanding = _Ticket(ticket, len(files))
        self._waiting.extend((outstanding, file) for file in files)
        self._send_waiting()
        self._check()

    def fileno(self) -> int:
        """The socket."""
        return self._connection.fileno()

    def completed(self, timeout: float | None = 0.0) -> list[Completion]:
        """The tickets whose files the helper has answered."""
        self._check()
        done: list[Completion] = []
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            self._receive_answers(done)
            self._send_waiting()
            if done:
                return done
            self._check()
            left = None if end is None else max(0.0, end - time.monotonic())
            if left == 0.0 or not self._jobs:
                return done
            self._poll.poll(None if left is None else left * 1000)

    def describe(self) -> str:
        """The helper's process id and its state, if that is of interest."""
        states = _thread_states(self.pid)
        doing = next((text for state, text in _STATES if state in states), "")
        return f"sync helper process {self.pid}{doing}"

    @property
    def is_stopped(self) -> bool:
        """Whether the helper was sent SIGSTOP."""
        return "T" in _thread_states(self.pid)

    def kill(self, reason: str) -> None:
        """Kill the helper process."""
        if self._death is None:
            self._process.kill()
            self._die(reason)

    def successor(self) -> HelperProcessSync:
        """A driver with a new helper."""
        return HelperProcessSync()

    def close(self) -> None:
        """End the helper after the syncs in progress. One that is stopped, dead or still starting is killed."""
        if self._connection.fileno() < 0:
            return
        is_working = self._death is None and self._has_started and not self.is_stopped
        patience = CLOSE_SECONDS if is_working else 0.0
        self._connection.close()
        self._death = "the sync driver is closed: nothing can be synced"
        self._jobs.clear()
        self._waiting.clear()
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # one blocked in the kernel ends when the disk answers
                self._process.wait(DEATH_SECONDS)

    def _start(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-I", "-S", helper.__file__, str(theirs.fileno())]
        # A child inherits blocked signals, and the helper leaves them blocked.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED_BY_PARENT)
        try:
            return subprocess.Popen(  # noqa: S603 - the store's own program
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                cwd="/",
                env={**os.environ, **_LITTLE_MEMORY},
            )
        except OSError as error:
            self._connection.close()
            reason = f"{sys.executable}: cannot start a sync helper: {error.strerror}"
            raise SyncDriverError(reason) from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def has_started(self, timeout: float = 0.0) -> bool:
        """Whether the helper has sent its greeting, for which this waits up to `timeout` seconds.

        Raises:
            SyncDriverError: it has sent something else or ended, or START_SECONDS are over. It is closed.
        """
        if self._has_started:
            return True
        greeting, is_late = b"", False
        if self._poll.poll(timeout * 1000):
            try:
                greeting = self._connection.recv(len(helper.GREETING) + 1)
            except OSError as error:
                greeting = str(error).encode()
        elif time.monotonic() < self._end_of_start:
            return False
        else:
            is_late = True
            self._process.kill()
        self._has_started = greeting == helper.GREETING
        if not self._has_started:
            what = f"sent nothing for {START_SECONDS:g} seconds" if is_late else repr(greeting) if greeting else ""
            self._die(f"did not start: {what}" if what else "did not start")
            reason = self._death
            self.close()
            raise SyncDriverError(reason)
        return True

    def _check(self) -> None:
        if self._death is not None:
            raise SyncDriverError(self._death)

    def _die(self, what: str) -> None:
        """Declare the helper dead. The socket is shut down, so that `fileno` is readable."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        try:
            ended = _ended(self._process.wait(DEATH_SECONDS))
        except subprocess.TimeoutExpired:
            self._process.kill()
            ended = "it was still running and was killed"
        self._death = f"sync helper process {self._process.pid} {what} ({ended})"

    def _send_waiting(self) -> None:
        """Send queued files, as far as the helper has threads for them and the socket accepts them."""
        while self._waiting and self._requests < helper.THREADS and self._death is None:
            room = self._max_sent - len(self._jobs)
            count = 1 if len(self._waiting) <= _FEW else min(len(self._waiting), helper.MAX_FILES, room)
            if room <= 0 or not self._send(count):
                return

    def _send(self, count: int, *, with_files: bool = True) -> bool:
        """Send the first `count` queued files, or fewer if one is not open. Returns False if the socket is full.

        A file that is not open becomes a request without a file: it is answered like all others.
        """
        waiting = itertools.islice(self._waiting, count)
        descriptors = array.array("i", [file.fileno() for _, file in waiting] if with_files else [])
        numbers = range(self._next_job, self._next_job + count)
        content = b"".join(map(helper.JOB.pack, numbers))
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)
        try:
            self._connection.sendmsg([content], [rights], socket.MSG_NOSIGNAL)
        except OSError as error:
            if error.errno == errno.EBADF and with_files:
                return self._send(max(1, count // 2), with_files=count > 1)
            if error.errno not in _FOR_NOW or not self._requests:
                self._die(f"is not reachable: {error.strerror}")
            return False
        for number in numbers:
            self._jobs[number] = self._waiting.popleft()
        self._next_job = numbers.stop
        self._requests += 1
        return True

    def _receive_answers(self, done: list[Completion]) -> None:
        """Process the helper's answers, and append the completed tickets."""
        while True:
            try:
                answer = self._connection.recv(_MAX_ANSWER)
            except BlockingIOError:
                return
            except OSError as error:
                self._die(f"is not reachable: {error.strerror}")
                return
            if not answer:
                self._die("ended")
                return
            if not self._take_answer(answer, done):
                self._die(f"sent an invalid answer, {answer[:32].hex()}")
                return
            if done and not self._requests:
                return

    def _take_answer(self, answer: bytes, done: list[Completion]) -> bool:
        """Process one answer. Returns False if it is invalid."""
        if len(answer) % helper.ANSWER.size or not self._requests:
            return False
        self._requests -= 1
        for number, failure in helper.ANSWER.iter_unpack(answer):
            job = self._jobs.pop(number, None)
            if job is None:
                return False
            ticket, file = job
            if failure:
                ticket.error = ticket.error or file_error(failure, file)
            ticket.remaining -= 1
            if not ticket.remaining:
                done.append((ticket.number, ticket.error))
        return True


def _thread_states(pid: int) -> set[str]:
    """The states of a process's threads, one letter each; empty if it has ended."""
    states: set[str] = set()
    with contextlib.suppress(OSError):  # they may end meanwhile
        for task in Path(f"/proc/{pid}/task").iterdir():
            states.add((task / "stat").read_text().rpartition(")")[2].split()[0])
    return states


def _ended(status: int) -> str:
    """The end of a process, for the log."""
    return f"killed by signal {-status}" if status < 0 else f"exit status {status}"
