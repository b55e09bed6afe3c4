"""Reads files in chunks, and writes those that are new: several at a time, in threads, which do all of the work.

What costs time (reading, SHA-256, zstd, writing) is done outside of Python's lock. A file is open until its last chunk
was read; what follows from that is done in the order of the files, by the thread that has asked for it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from hashlib import sha256
from threading import Lock, get_native_id
from types import TracebackType
from typing import Any, Final, NamedTuple

from qstore.store.backup.pace import Pace
from qstore.store.backup.repository import CHUNK_SIZE, Repository, chunk_name, packed
from qstore.store.backup.source import Read, SourceFile, SourceJournal

_AHEAD: Final = 2  # chunks for each thread
_ALIVE_SECONDS: Final = 5.0


class Effort(NamedTuple):
    """How much of the machine a backup may take.

    Attributes:
        workers: threads that read, compress and write; 0 for none.
        niceness: of these threads, 0 to 19: how far they stand back for other processes. The system derives the
            priority of their reads and writes from it.
        max_rate: bytes that are read in a second, at most; 0 for no limit.
        pace: when they work and when they pause; None for no pauses.
    """

    workers: int = 0
    niceness: int = 0
    max_rate: int = 0
    pace: Pace | None = None


class _Done(NamedTuple):
    """A chunk: its id, its bytes, whether it was new, and then its compressed bytes."""

    digest: str
    size: int
    is_new: bool
    written: int


class _File(NamedTuple):
    """A file that is being read."""

    opened: ExitStack
    chunks: list[str]
    futures: deque[Future[_Done]]


class _Inline(Executor):
    """Does the work at once."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **more: Any) -> Future[Any]:
        """Call it."""
        future: Future[Any] = Future()
        future.set_result(function(*arguments, **more))
        return future


class ChunkWriter:
    """Writes the chunks of files to a repository.

    Args:
        repository: where they go.
        known: the ids of chunks that it has. They are updated.
        effort: what it may take.
        advance: receives the bytes of each chunk that was read.

    Attributes:
        written: bytes of new chunks, compressed.
        new, reused: bytes in new chunks, and in those that were there.
        was_read: called when all files of a part were read.
        alive: called at least every few seconds.
    """

    def __init__(self, repository: Repository, known: set[str], effort: Effort, advance: Callable[[int], None]) -> None:
        self._repository, self._known, self._advance = repository, known, advance
        workers, niceness, self._max_rate, self._pace = effort
        stand_back = (_stand_back, (niceness,)) if niceness else ()
        self._pool: Executor = ThreadPoolExecutor(workers, "", *stand_back) if workers else _Inline()
        self._most, self._lock = _AHEAD * workers, Lock()
        self._read, self._began = 0, time.monotonic()
        self._waiting: deque[_File | SourceJournal] = deque()
        self._under_way = 0
        self.written = self.new = self.reused = 0
        self.was_read: Callable[[SourceJournal], None] = lambda _: None
        self.alive: Callable[[], None] = lambda: None

    def __enter__(self) -> ChunkWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
        for each in self._waiting:
            if isinstance(each, _File):
                with contextlib.suppress(Exception):  # after an error: what is found about the files does not matter
                    each.opened.close()

    def write(self, file: SourceFile, chunks: list[str]) -> None:
        """Begin to write a file. `chunks` gets the ids of its chunks. Raises StoreError, OSError."""
        with ExitStack() as opened:
            read = opened.enter_context(file.open())
            made = _File(opened.pop_all(), chunks, deque())
        self._waiting.append(made)
        for offset in range(0, file.size, CHUNK_SIZE):
            self._settle(self._most)
            size = min(CHUNK_SIZE, file.size - offset)
            self._keep_pace(size)
            made.futures.append(self._pool.submit(self._paced, read, offset, size))
            self._under_way += 1
        self._settle(self._most)

    def _keep_pace(self, size: int) -> None:
        """Wait until so many bytes more do not exceed the rate."""
        self._read += size
        while self._max_rate and (ahead := self._began + self._read / self._max_rate - time.monotonic()) > 0:
            self.alive()
            time.sleep(min(ahead, _ALIVE_SECONDS))

    def end_of(self, part: SourceJournal) -> None:
        """The files that were passed to `write` since the last call are all of this part."""
        self._waiting.append(part)
        self._settle(self._most)

    def finish(self) -> None:
        """Wait until everything is written. Raises StoreError, OSError."""
        self._settle(-1)

    def _settle(self, most: int) -> None:
        """Do what follows from finished chunks, in order, and wait until at most `most` are under way."""
        self.alive()
        while self._waiting:
            first = self._waiting[0]
            if isinstance(first, SourceJournal):
                self._waiting.popleft()
                self.was_read(first)
            elif first.futures:
                future = first.futures[0]
                if not future.done():
                    if self._under_way <= most:
                        return
                    while not wait((future,), _ALIVE_SECONDS).done:
                        self.alive()
                first.futures.popleft()
                self._finished(first, future.result())
            elif len(self._waiting) > 1 or most < 0:
                self._waiting.popleft()
                first.opened.close()
            else:
                return  # more of its chunks may come

    def _finished(self, file: _File, done: _Done) -> None:
        self._under_way -= 1
        file.chunks.append(done.digest)
        self.written += done.written
        self.new += done.size if done.is_new else 0
        self.reused += 0 if done.is_new else done.size
        self._advance(done.size)

    def _paced(self, read: Read, offset: int, size: int) -> _Done:
        """As `_chunk`, after the pause that is due."""
        if self._pace is None:
            return self._chunk(read, offset, size)
        self._pace.wait()
        begun = self._pace.begin()
        try:
            return self._chunk(read, offset, size)
        finally:
            self._pace.end(begun)

    def _chunk(self, read: Read, offset: int, size: int) -> _Done:
        """Read a chunk, and write it if it is new. Called in a thread. Raises StoreError, OSError."""
        content = read(offset, size)
        digest = sha256(content).hexdigest()
        with self._lock:
            is_new = digest not in self._known
            self._known.add(digest)
        written = 0
        if is_new:
            compressed = packed(content)
            self._repository.put(chunk_name(digest), compressed)
            written = len(compressed)
        return _Done(digest, size, is_new, written)


def _stand_back(niceness: int) -> None:
    """Raise the niceness of this thread; what it has more than that, it keeps."""
    thread = get_native_id()
    os.setpriority(os.PRIO_PROCESS, thread, max(niceness, os.getpriority(os.PRIO_PROCESS, thread)))
