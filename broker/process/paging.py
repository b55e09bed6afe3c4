"""Paging files of a broker process: the files on the operating system's disk, and their directory.

The directory is locked. Threads read there and remove files, so that the event loop does not wait for the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from qstore.broker.model.residency.paging_directory import PagingDirectory
from qstore.broker.process.held_files import PidFile
from qstore.formats.wording import printable

_FILE_MODE: Final = 0o600
_DIRECTORY_MODE: Final = 0o700
_BUFFER_BYTES: Final = 1 << 17  # of a group of messages, with its table
_WOULD_WAIT: Final = frozenset({errno.EAGAIN, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})


class OsPagingFile:
    """An open paging file.

    Args:
        path: its path.
        buffer: for a single read; it may be shared with others, but not between threads.
        flags: of `os.open`.
    """

    __slots__ = ("_buffer", "_descriptor")

    def __init__(self, path: str, buffer: bytearray, flags: int = 0) -> None:
        self._buffer = buffer
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, _FILE_MODE)

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`; fewer only at the end of the file."""
        content = os.pread(self._descriptor, length, offset)
        while len(content) < length and (
            more := os.pread(self._descriptor, length - len(content), offset + len(content))
        ):
            content += more
        return content

    def read_cached(self, offset: int, length: int) -> bytes | None:
        """As `read`, if the page cache has all of it; None otherwise, or if the file system cannot tell."""
        buffer = memoryview(self._buffer if length <= len(self._buffer) else bytearray(length))[:length]
        try:
            got = os.preadv(self._descriptor, [buffer], offset, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno in _WOULD_WAIT:
                return None
            raise
        return bytes(buffer) if got == length else None

    def read_ahead(self, offset: int, length: int) -> None:
        """Have the system read a part of the file into its page cache."""
        os.posix_fadvise(self._descriptor, offset, length, os.POSIX_FADV_WILLNEED)

    def write(self, offset: int, content: bytes) -> None:
        """Write all of `content` at `offset`."""
        done = os.pwrite(self._descriptor, content, offset)
        while done < len(content):
            done += os.pwrite(self._descriptor, memoryview(content)[done:], offset + done)

    def truncate(self, size: int) -> None:
        """Cut the file off."""
        os.ftruncate(self._descriptor, size)

    def close(self) -> None:
        """Close the descriptor."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class OsPagingDisk:
    """The disk of the system. Its files read into one shared buffer."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray(_BUFFER_BYTES)

    def create(self, path: str, size: int) -> OsPagingFile:
        """Create a file of `size` zero bytes, mode 0600 at most."""
        file = OsPagingFile(path, self._buffer, os.O_CREAT | os.O_EXCL)
        if not size:  # ext4 writes a file that was ever cut off to 0 bytes when it is closed: the event loop would wait
            return file
        try:
            file.truncate(size)
        except OSError:
            file.close()
            with contextlib.suppress(OSError):
                Path(path).unlink()
            raise
        return file

    def open_writable(self, path: str) -> OsPagingFile:
        """Open a file for reading and writing."""
        return OsPagingFile(path, self._buffer)

    def names(self, directory: str) -> list[str]:
        """The names in a directory."""
        return [each.name for each in Path(directory).iterdir()]

    def is_directory(self, path: str) -> bool:
        """Whether `path` is a directory."""
        return Path(path).is_dir()

    def make_directory(self, path: str) -> None:
        """Create a directory, mode 0700, with its parents."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).mkdir(_DIRECTORY_MODE)

    def size_of(self, path: str) -> int:
        """The size of a file, in bytes."""
        return os.lstat(path).st_size

    def remove(self, path: str) -> None:
        """Remove a file."""
        Path(path).unlink()

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        Path(path).rmdir()

    def space(self, path: str) -> tuple[int, int]:
        """Bytes that are free on the disk of the directory `path`, and in all."""
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize


# ---- the directory ----

NAME: Final = "paging"  # in the data directory
_LOCK: Final = "paging.lock"
_THREADS: Final = 2


class PagingError(Exception):
    """The directory cannot be used. The text is one line for the user."""


class Paging:
    """The directory, and the threads that work there.

    Args:
        path: the directory, created if it does not exist.
        loop: the event loop.

    Attributes:
        directory: the directory.

    Raises:
        PagingError: it cannot be used, or another broker uses it.
    """

    def __init__(self, path: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._threads = ThreadPoolExecutor(_THREADS, "paging")
        self.directory = PagingDirectory(OsPagingDisk(), path, self._run)
        shown = printable(path)
        try:
            Path(path).mkdir(0o700, parents=True, exist_ok=True)
            self._lock = PidFile(str(Path(path, _LOCK)))
        except BlockingIOError:
            raise PagingError(f"{shown}: another broker has its paging files there; see --paging-dir") from None
        except OSError as error:
            raise PagingError(f"{shown}: the paging directory cannot be used: {error.strerror}") from error
        try:
            self.directory.prepare()
        except OSError as error:
            self._lock.release(remove=True)
            raise PagingError(f"{shown}: the paging directory cannot be used: {error.strerror}") from error

    def _run(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        def finished(future: Future[Any]) -> None:
            if not future.cancelled() and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(done, future.result())

        self._threads.submit(work).add_done_callback(finished)

    def close(self) -> None:
        """Remove files, as long as that does not take long, and unlock the directory."""
        self._threads.shutdown(cancel_futures=True)
        if self._lock.is_in_place:  # otherwise another directory is there
            self.directory.close()
        self._lock.release(remove=True)
