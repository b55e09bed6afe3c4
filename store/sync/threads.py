"""Syncs within the process: by its threads, or by the caller.

**`ThreadSync`** is used where no process can be started. `fdatasync` releases the interpreter lock, so several files
are synced in parallel. But a thread that returns from the disk must acquire that lock before it can report, and against
a busy event loop it may wait for many switch intervals: `HelperProcessSync` avoids that. Completions wait in a list
under a lock; an eventfd is readable exactly while the list is not empty.

**`InlineSync`** syncs in the caller: for tools, and for simulated disks without descriptors.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import Final

from qstore.store.disk import WritableFile
from qstore.store.sync.driver import Completion, FileWrite, SyncDriverError, sync_all

THREADS: Final = 16
"""Maximum tickets synced in parallel; threads are started on demand."""
CLOSE_SECONDS: Final = 5.0
"""Seconds that `close` waits for threads that are syncing; then they are abandoned."""

_Job = tuple[int, Sequence[WritableFile]]


class ThreadSync:
    """A `SyncDriver` whose threads wait for the disk.

    Raises:
        SyncDriverError: this process may not open more files.
    """

    __slots__ = ("_closed", "_death", "_done", "_jobs", "_lock", "_outstanding", "_poll", "_ready", "_threads")

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._done: list[Completion] = []
        self._death: str | None = None
        self._closed = False
        self._outstanding = 0
        self._threads: list[threading.Thread] = []
        try:
            self._ready = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        except OSError as error:
            raise SyncDriverError(f"cannot start sync threads: {error.strerror}") from error
        self._poll = select.poll()
        self._poll.register(self._ready, select.POLLIN)

    @property
    def takes_writes(self) -> bool:
        """Always False."""
        return False

    def submit(self, ticket: int, files: Sequence[WritableFile], writes: Sequence[FileWrite] = ()) -> None:
        """Hand the files to a thread."""
        assert not writes
        self._check()
        self._outstanding += 1
        if len(self._threads) < min(self._outstanding, THREADS):
            self._start_thread()
        self._jobs.put((ticket, files))

    def fileno(self) -> int:
        """The eventfd."""
        return self._ready

    def completed(self, timeout: float | None = 0.0) -> list[Completion]:
        """The tickets that the threads have finished."""
        if not self._closed and self._outstanding and timeout != 0.0:
            self._poll.poll(None if timeout is None else timeout * 1000)
        with self._lock:
            done, self._done = self._done, []
            if done and self._death is None:
                os.eventfd_read(self._ready)
        self._outstanding -= len(done)
        if not done:
            self._check()
        return done

    def describe(self) -> str:
        """The number of threads, as log text."""
        return f"the {len(self._threads)} sync threads of process {os.getpid()}"

    @property
    def is_stopped(self) -> bool:
        """Always False: the caller is of the same process."""
        return False

    def kill(self, reason: str) -> None:
        """Abandon the threads: a thread cannot be killed."""
        self._die(f"{self.describe()}: {reason}")

    def successor(self) -> ThreadSync:
        """A driver with new threads."""
        return ThreadSync()

    def close(self) -> None:
        """End the threads, each after its current ticket, and wait for them unless the driver is dead."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(Empty):
            while True:
                self._jobs.get_nowait()
        for _ in self._threads:
            self._jobs.put(None)
        end = time.monotonic() + (CLOSE_SECONDS if self._death is None else 0.0)
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        with self._lock:  # a thread that is still syncing must find it closed, not reused for another file
            os.close(self._ready)
            self._ready = -1

    def _check(self) -> None:
        if self._closed:
            raise SyncDriverError("the sync driver is closed: nothing can be synced")
        if self._death is not None:
            raise SyncDriverError(self._death)

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._work, name=f"sync-{len(self._threads)}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            if not self._threads:
                self._death = f"cannot start a thread to sync files ({error}): raise the limit on threads and restart"
                raise SyncDriverError(self._death) from error
            return
        self._threads.append(thread)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            ticket, files = job
            try:
                error = sync_all(files)
            except BaseException as fault:  # Otherwise the ticket would never be returned.
                self._die(f"a sync thread ended with {fault!r}")
                return
            with self._lock:
                self._done.append((ticket, error))
                if len(self._done) == 1 and self._death is None and self._ready >= 0:
                    os.eventfd_write(self._ready, 1)

    def _die(self, reason: str) -> None:
        with self._lock:
            if self._death is None:
                self._death = reason
                if self._ready >= 0:
                    os.eventfd_write(self._ready, 1)


class InlineSync:
    """A `SyncDriver` that syncs within `submit`."""

    __slots__ = ("_closed", "_done")

    def __init__(self) -> None:
        self._done: list[Completion] = []
        self._closed = False

    @property
    def takes_writes(self) -> bool:
        """Always False."""
        return False

    def submit(self, ticket: int, files: Sequence[WritableFile], writes: Sequence[FileWrite] = ()) -> None:
        """Sync all of `files` now."""
        assert not writes
        if self._closed:
            raise SyncDriverError("the sync driver is closed: nothing can be synced")
        self._done.append((ticket, sync_all(files)))

    def fileno(self) -> int:
        """Always -1."""
        return -1

    def completed(self, timeout: float | None = 0.0) -> list[Completion]:
        """The tickets submitted since the last call; never waits."""
        del timeout
        done, self._done = self._done, []
        return done

    def describe(self) -> str:
        """This process, as log text."""
        return f"process {os.getpid()}"

    @property
    def is_stopped(self) -> bool:
        """Always False: the caller itself is running."""
        return False

    def kill(self, reason: str) -> None:
        """Do nothing: the caller is not waiting for the disk."""
        del reason

    def successor(self) -> InlineSync:
        """A new inline driver."""
        return InlineSync()

    def close(self) -> None:
        """Refuse further files."""
        self._closed = True
        self._done.clear()
