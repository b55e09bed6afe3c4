"""The only seam to the operating system: everything that reads a store takes a `Disk`.

Production passes `OsDisk`; tests may pass a simulated disk that tears writes, loses data and flips bits. This is the
reading half of the seam; `writable_disk` is the other. Nothing here writes, and files are opened read-only, so a
read-only tree works as well as any other.

Paths are `str`; names that are not UTF-8 carry surrogate escapes, as from `os.fsdecode`.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Protocol, Self


class ReadableFile(Protocol):
    """An open file that is read by position."""

    @property
    def size(self) -> int:
        """Bytes in the file when it was opened."""

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`; fewer only at the end of the file. Raises OSError."""

    def close(self) -> None:
        """Close the descriptor. May be called twice."""


class Disk(Protocol):
    """The operating system calls that a reader of stores needs. Every method may raise OSError."""

    def open(self, path: str) -> ReadableFile:
        """Open the regular file at `path` for reading."""

    def names(self, directory: str) -> list[str]:
        """The names in a directory, sorted."""

    def is_directory(self, path: str) -> bool:
        """Whether `path` is a directory, links followed; False if it does not exist."""

    def is_file(self, path: str) -> bool:
        """Whether `path` is a regular file, links followed; False if it does not exist."""

    def real_path(self, path: str) -> str:
        """The absolute form of `path`, links followed."""

    def link_target(self, path: str) -> str | None:
        """The unresolved target of the symbolic link at `path`; None if it is not a link."""

    def version(self, path: str) -> str:
        """What changes when the file at `path` is written to, or replaced by another one. Empty if that is unknown."""


class OsFile:
    """A `ReadableFile` on the operating system."""

    __slots__ = ("_descriptor", "_path", "_size")

    def __init__(self, path: str, flags: int = os.O_RDONLY) -> None:
        # O_NONBLOCK: opening a stray FIFO in a store must fail below, not wait for a writer.
        self._path = path
        self._descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise OSError(errno.EINVAL, "not a regular file", path)
        self._size = status.st_size

    @property
    def size(self) -> int:
        """Bytes in the file when it was opened."""
        return self._size

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`; fewer only at the end of the file."""
        try:
            chunk = os.pread(self._descriptor, length, offset)
            if len(chunk) == length or not chunk:
                return chunk
            parts = [chunk]
            got = len(chunk)
            while got < length and (chunk := os.pread(self._descriptor, length - got, offset + got)):
                parts.append(chunk)
                got += len(chunk)
        except OSError as error:  # a read error does not carry the file name
            raise OSError(error.errno, error.strerror, self._path) from error
        return b"".join(parts)

    def is_unwritten(self, offset: int) -> bool:
        """Whether the file system knows that nothing was written from `offset` on: all of it would be read as zeros."""
        try:
            os.lseek(self._descriptor, offset, os.SEEK_DATA)
        except OSError as error:
            return error.errno == errno.ENXIO
        return False

    def close(self) -> None:
        """Close the descriptor."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class OsDisk:
    """The `Disk` on the operating system."""

    __slots__ = ()

    def open(self, path: str) -> OsFile:
        """Open the regular file at `path` for reading."""
        return OsFile(path)

    def names(self, directory: str) -> list[str]:
        """The names in a directory, sorted."""
        return sorted(entry.name for entry in Path(directory).iterdir())

    def is_directory(self, path: str) -> bool:
        """Whether `path` is a directory."""
        return Path(path).is_dir()

    def is_file(self, path: str) -> bool:
        """Whether `path` is a regular file."""
        return Path(path).is_file()

    def real_path(self, path: str) -> str:
        """The absolute form of `path`, links followed."""
        return os.path.realpath(path)  # `Path.resolve` raises RuntimeError for a link that leads back to itself

    def link_target(self, path: str) -> str | None:
        """The unresolved target of the symbolic link at `path`."""
        return str(Path(path).readlink()) if Path(path).is_symlink() else None

    def version(self, path: str) -> str:
        """The number of the file's inode, and when that was changed, which no program can set."""
        try:
            status = Path(path).stat()
        except OSError:
            return ""
        return f"{status.st_ino}-{status.st_ctime_ns}"


def read_whole(disk: Disk, path: str, limit: int) -> bytes:
    """At most the first `limit` bytes of a small file."""
    file = disk.open(path)
    try:
        return file.read(0, min(file.size, limit))
    finally:
        file.close()
