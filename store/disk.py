"""The only seam to the operating system: everything that reads or writes a store takes a `Disk` or a `WritableDisk`.

Production passes `OsDisk` or `OsWritableDisk`; tests may pass a simulated disk that tears writes, loses data and flips
bits. Readers write nothing and open files read-only, so a read-only tree works as well as any other.

Nothing is durable before it is synced: a file's bytes by `sync` of the file, a name in a directory (created, renamed or
removed) by `sync_directory` of that directory. Operations are acknowledged after both. A failed write may have written
a part of its data. A failed sync leaves the outcome unknown and is not retried: the kernel has dropped the pages, and
the next sync would succeed without them.

Files are created with mode 0600 and directories with 0700, whatever the umask. Paths are `str`; names that are not
UTF-8 carry surrogate escapes, as from `os.fsdecode`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Protocol, Self, TypeAlias

# ---- the seam ----


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
        """A value that changes when the file at `path` is written to or replaced. Empty if that is unknown."""


class WritableFile(ReadableFile, Protocol):
    """An open file that is read and written by position.

    Attributes:
        filled: up to there, `fill_ahead` has nothing to do.
    """

    filled: int

    def read_cached(self, offset: int, length: int) -> bytes | None:
        """As `read`, if the system has all of it in memory; None if it would have to wait for the disk."""

    def read_ahead(self, offset: int, length: int) -> None:
        """Have the system read a part of the file into memory; it need not."""

    def fileno(self) -> int:
        """The open descriptor, for syncing it elsewhere; -1 if the disk has none."""

    def write(self, offset: int, content: bytes | memoryview) -> None:
        """Write all of `content` at `offset` to the page cache. Raises OSError; a part may have been written then."""

    def write_all(self, offset: int, pieces: Sequence[bytes], size: int) -> None:
        """As `write`, of many pieces, one after the other; `size` is how many bytes they are."""

    def write_synced(self, offset: int, pieces: Sequence[bytes | memoryview], size: int) -> None:
        """As `write_all`, and make these bytes durable. Others that wait for a sync of the file still do.

        Raises OSError; it is then unknown which of them are written, and durable.
        """

    def fill_ahead(self, offset: int) -> bool:
        """Prepare the part of the file after `offset` for small writes, each synced. Its content does not change.

        Returns:
            Whether anything was written, so that the next sync takes longer.
        """

    def sync(self) -> None:
        """Make everything written so far durable. Raises OSError; it is then unknown which of it is durable."""


#: Files whose content is to be made durable, and directories whose names are.
SyncGroup: TypeAlias = tuple[Sequence[WritableFile], Sequence[str]]

MOVED: Final = "the store directory, or one in it, was moved, replaced or removed"


class DiskLock(Protocol):
    """A lock that this process holds."""

    def watch(self, directory: str) -> None:
        """Have `is_in_place` check another directory, too. Raises OSError: it cannot be opened."""

    def is_in_place(self) -> bool:
        """Whether the directory of the locked file, and those to `watch`, are still the ones at their paths.

        False once one of them has been moved, replaced or removed.
        """

    def release(self) -> None:
        """Release the lock; may be called twice. The system releases it too when the process ends for any reason."""


class WritableDisk(Disk, Protocol):
    """The operating system calls that a running store needs. Every method may raise OSError."""

    def create(self, path: str, size: int) -> WritableFile:
        """Create a file of `size` zero bytes, with its space allocated. Raises FileExistsError.

        If there is no room, nothing remains or, at worst, a partially allocated file.
        """

    def open_writable(self, path: str) -> WritableFile:
        """Open the regular file at `path` for reading and writing."""

    def make_directory(self, path: str) -> None:
        """Create a directory. Raises FileExistsError."""

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory; an existing file `target` is replaced. Atomic, not durable."""

    def make_link(self, path: str, target: str) -> None:
        """Create a symbolic link. Raises FileExistsError."""

    def remove(self, path: str) -> None:
        """Remove a file."""

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""

    def sync_directory(self, path: str) -> None:
        """Make the current names in a directory durable."""

    def sync_all(self, files: Sequence[WritableFile], directories: Sequence[str] = ()) -> None:
        """Make everything written to these files, and the names in these directories, durable."""

    def sync_each(self, groups: Sequence[SyncGroup]) -> list[OSError | None]:
        """As `sync_all`, of several groups at the same time. Returns the error of each; the others are durable."""

    def sync_during(self, files: Sequence[WritableFile], work: Callable[[], None]) -> OSError | None:
        """Do some work, and meanwhile make everything written to these files durable.

        Returns:
            The error of the syncs, if any. What `work` raises is raised, once they have ended.
        """

    def lock(self, path: str) -> DiskLock:
        """Take the lock on the file at `path`, which is created if missing. Raises BlockingIOError if it is held."""

    def space(self, path: str) -> tuple[int, int]:
        """Bytes that are free for this process on the disk of the directory `path`, and bytes that it has in all."""


class GuardedDisk:
    """A disk on which no path is changed, or opened for writing, unless the directories of a lock are in place.

    Args:
        disk: the disk.
        lock: the lock.
    """

    __slots__ = ("_disk", "_lock")

    def __init__(self, disk: WritableDisk, lock: DiskLock) -> None:
        self._disk, self._lock = disk, lock

    def _guarded(self, path: str) -> WritableDisk:
        if not self._lock.is_in_place():
            raise OSError(errno.ESTALE, MOVED, path)
        return self._disk

    def create(self, path: str, size: int) -> WritableFile:
        """Create a file of `size` zero bytes, with its space allocated."""
        return self._guarded(path).create(path, size)

    def open_writable(self, path: str) -> WritableFile:
        """Open the regular file at `path` for reading and writing."""
        return self._guarded(path).open_writable(path)

    def make_directory(self, path: str) -> None:
        """Create a directory."""
        self._guarded(path).make_directory(path)

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory."""
        self._guarded(target).rename(source, target)

    def make_link(self, path: str, target: str) -> None:
        """Create a symbolic link."""
        self._guarded(path).make_link(path, target)

    def remove(self, path: str) -> None:
        """Remove a file."""
        self._guarded(path).remove(path)

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        self._guarded(path).remove_directory(path)

    # ---- what changes nothing ----

    def open(self, path: str) -> ReadableFile:
        """Open the regular file at `path` for reading."""
        return self._disk.open(path)

    def names(self, directory: str) -> list[str]:
        """The names in a directory, sorted."""
        return self._disk.names(directory)

    def is_directory(self, path: str) -> bool:
        """Whether `path` is a directory."""
        return self._disk.is_directory(path)

    def is_file(self, path: str) -> bool:
        """Whether `path` is a regular file."""
        return self._disk.is_file(path)

    def real_path(self, path: str) -> str:
        """The absolute form of `path`, links followed."""
        return self._disk.real_path(path)

    def link_target(self, path: str) -> str | None:
        """The unresolved target of the symbolic link at `path`; None if it is not a link."""
        return self._disk.link_target(path)

    def version(self, path: str) -> str:
        """A value that changes when the file at `path` is written to or replaced."""
        return self._disk.version(path)

    def sync_directory(self, path: str) -> None:
        """Make the current names in a directory durable."""
        self._disk.sync_directory(path)

    def sync_all(self, files: Sequence[WritableFile], directories: Sequence[str] = ()) -> None:
        """Make files and directories durable."""
        self._disk.sync_all(files, directories)

    def sync_each(self, groups: Sequence[SyncGroup]) -> list[OSError | None]:
        """Make several groups of files and directories durable."""
        return self._disk.sync_each(groups)

    def sync_during(self, files: Sequence[WritableFile], work: Callable[[], None]) -> OSError | None:
        """Do some work, and meanwhile make everything written to these files durable."""
        return self._disk.sync_during(files, work)

    def lock(self, path: str) -> DiskLock:
        """Take the lock on the file at `path`."""
        return self._disk.lock(path)

    def space(self, path: str) -> tuple[int, int]:
        """Bytes that are free on the disk of the directory `path`, and in all."""
        return self._disk.space(path)


def read_whole(disk: Disk, path: str, limit: int) -> bytes:
    """At most the first `limit` bytes of a small file."""
    file = disk.open(path)
    try:
        return file.read(0, min(file.size, limit))
    finally:
        file.close()


def write_new(disk: WritableDisk, path: str, content: bytes) -> None:
    """Create a file with `content`, synced except for its name. Raises OSError."""
    with contextlib.closing(disk.create(path, len(content))) as file:
        file.write(0, content)
        file.sync()


# ---- the operating system: reading ----

# Linux's ioctl for the extents of a file (linux/fiemap.h): a head with the range, flags and room, and then the extents,
# of which each has its offset in the file, its offset on the disk, its length, two reserved fields, flags, and more of
# these.
_FIEMAP: Final = 0xC020660B
_EXTENTS: Final = struct.Struct("=QQIIII")
_EXTENT: Final = struct.Struct("=QQQQQIIII")
_MAX_EXTENTS: Final = 16  # of one call
_EXTENTS_BYTES: Final = _EXTENTS.size + _MAX_EXTENTS * _EXTENT.size
_SYNC_FIRST: Final = 1
_UNWRITTEN: Final = 0x800  # allocated, but never written: read as zeros


class OsFile:
    """A `ReadableFile` on the operating system."""

    __slots__ = ("_descriptor", "_path", "_size")

    def __init__(self, path: str, flags: int = os.O_RDONLY, descriptor: int = -1) -> None:
        # O_NONBLOCK: opening a stray FIFO in a store must fail below, not wait for a writer.
        self._path = path
        self._descriptor = descriptor if descriptor >= 0 else os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)
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

    def will_be_sampled(self) -> None:
        """Prepare for few reads that are far apart: the system need not read ahead."""
        try:
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        except OSError:  # not `contextlib.suppress`: for each file of a start, that takes longer than the call
            return

    def data_from(self, offset: int) -> int:
        """Where the file may have data, at `offset` or after it; the size if there is none: zeros would be read.

        `SEEK_DATA` finds what is in the page cache, too, even if that was only read and never written: by a copy of the
        file, for instance. So the extents decide whether it was written.
        """
        try:
            found = os.lseek(self._descriptor, offset, os.SEEK_DATA)
        except OSError as error:
            return self._size if error.errno == errno.ENXIO else offset
        return self._written_from(found)

    def _written_from(self, offset: int) -> int:
        """The first byte, at `offset` or after it, of an extent that was written to; the size if there is none.

        `offset` itself if that is not known. What another process has written and not synced is written to the disk
        first (`FIEMAP_FLAG_SYNC`): its extents would count as unwritten until then.
        """
        if sys.platform != "linux":
            return offset
        begin, request = offset, bytearray(_EXTENTS_BYTES)
        while begin < self._size:
            _EXTENTS.pack_into(request, 0, begin, self._size - begin, _SYNC_FIRST, 0, _MAX_EXTENTS, 0)
            try:
                fcntl.ioctl(self._descriptor, _FIEMAP, request)
            except OSError:
                return offset
            end, count = begin, _EXTENTS.unpack_from(request)[3]
            for number in range(count):
                extent = _EXTENT.unpack_from(request, _EXTENTS.size + number * _EXTENT.size)
                start, length, flags = int(extent[0]), int(extent[2]), int(extent[5])
                if not flags & _UNWRITTEN:
                    return min(max(start, offset), self._size)
                end = start + length
            if count < _MAX_EXTENTS:
                return self._size
            if end <= begin:
                return offset
            begin = end
        return self._size

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
        return sorted(os.listdir(directory))  # noqa: PTH208 – half of pathlib's time (bench_tricks)

    def is_directory(self, path: str) -> bool:
        """Whether `path` is a directory."""
        return stat.S_ISDIR(_mode(path))

    def is_file(self, path: str) -> bool:
        """Whether `path` is a regular file."""
        return stat.S_ISREG(_mode(path))

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


def _mode(path: str) -> int:
    """The type and permissions of the file at `path`; 0 if nothing is. Raises OSError if that cannot be found out."""
    try:
        return os.stat(path).st_mode  # noqa: PTH116 – as in `OsDisk.names`
    except ValueError:  # no file can have that name
        return 0
    except OSError as error:
        if error.errno in _MISSING:
            return 0
        raise


_MISSING: Final = (errno.ENOENT, errno.ENOTDIR, errno.EBADF, errno.ELOOP)


# ---- the operating system: writing ----

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700

_MIN_FILL: Final = 16 * 1024  # bytes of zeros that `fill_ahead` writes at once: as many as the file has, within limits
_MAX_FILL: Final = 256 * 1024
_SYNC_THREADS: Final = 8  # of `sync_each`, and of `sync_during`, which syncs more files by one
_MAX_PIECES: Final = 1024  # of one system call: UIO_MAXIOV of Linux
_BUFFER_BYTES: Final = 512 * 1024  # a journal file of default size
_SMALL_PIECE: Final = 1024  # bytes: pieces that are not longer on average are joined: the system takes longer for each
_ZEROS: Final = memoryview(bytes(_MAX_FILL))
_NO_FLAGS: Final = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)  # the system does not know a flag (preadv2, pwritev2)


class OsWritableFile(OsFile):
    """A `WritableFile` on the operating system."""

    __slots__ = ("_buffer", "filled")

    def __init__(
        self, path: str, flags: int = os.O_RDWR, buffer: bytearray | None = None, descriptor: int = -1
    ) -> None:
        super().__init__(path, flags, descriptor)
        self._buffer = buffer  # for `read_cached`, shared with others
        self.filled = 0

    def fileno(self) -> int:
        """The open descriptor."""
        return self._descriptor

    def write(self, offset: int, content: bytes | memoryview) -> None:
        """Write all of `content` at `offset`."""
        try:
            done = os.pwrite(self._descriptor, content, offset)
            while done < len(content):
                done += os.pwrite(self._descriptor, memoryview(content)[done:], offset + done)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._path) from error
        if content:
            self._size = max(self._size, offset + len(content))

    def write_all(self, offset: int, pieces: Sequence[bytes], size: int) -> None:
        """As `write`, of many pieces."""
        done, are_small = 0, size <= len(pieces) * _SMALL_PIECE
        try:
            for at in range(0, len(pieces), _MAX_PIECES):
                some = pieces[at : at + _MAX_PIECES]
                if are_small:
                    done += os.pwrite(self._descriptor, b"".join(some), offset + done)
                else:
                    done += os.pwritev(self._descriptor, some, offset + done)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._path) from error
        if done == size:
            self._size = max(self._size, offset + size)
        else:  # a part was not written at once: the rest may be in the wrong place
            content = b"".join(pieces)
            assert len(content) == size
            self.write(offset, content)

    def write_synced(self, offset: int, pieces: Sequence[bytes | memoryview], size: int) -> None:
        """As `write_all`, and make these bytes durable: with one system call, if they are few pieces."""
        done = 0
        if len(pieces) <= _MAX_PIECES:
            try:
                done = os.pwritev(self._descriptor, pieces, offset, os.RWF_DSYNC)
            except OSError as error:
                if error.errno not in _NO_FLAGS:
                    raise OSError(error.errno, error.strerror, self._path) from error
        if done == size:
            if self._size < offset + size:
                self._size = offset + size
        else:
            self.write(offset, b"".join(pieces))
            self.sync()

    def read_cached(self, offset: int, length: int) -> bytes | None:
        """As `read`, if the page cache has all of it; None otherwise, or if the file system does not know."""
        shared = self._buffer
        buffer = memoryview(bytearray(length) if shared is None or length > len(shared) else shared)[:length]
        try:
            got = os.preadv(self._descriptor, [buffer], offset, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno == errno.EAGAIN or error.errno in _NO_FLAGS:
                return None
            raise OSError(error.errno, error.strerror, self._path) from error
        return bytes(buffer) if got == length else None

    def read_ahead(self, offset: int, length: int) -> None:
        """Have the system read a part of the file into its page cache."""
        with contextlib.suppress(OSError):
            os.posix_fadvise(self._descriptor, offset, length, os.POSIX_FADV_WILLNEED)

    def fill_ahead(self, offset: int) -> bool:
        """Write zeros over the next blocks that are allocated, but were never written.

        The first write to such a block changes the file's metadata, and the next sync waits for the file system's own
        journal as well. Zeros that are written for many small writes at once save that: they are part of the next sync.

        Only ranges without data in the file system are overwritten (`SEEK_HOLE`), by the zeros that they would be read
        as. This part of the file must have no other writer at the same time.
        """
        if offset < self.filled:
            return False
        end = (offset + min(max(offset, _MIN_FILL), _MAX_FILL)) // _MIN_FILL * _MIN_FILL
        end = min(end, self._size)
        try:
            hole = os.lseek(self._descriptor, offset, os.SEEK_HOLE)
            is_hole = hole < end
            if is_hole:
                end = min(end, self._next_data(hole))
                os.pwrite(self._descriptor, _ZEROS[: end - hole], hole)
            self.filled = max(hole, end)
        except OSError:  # the blocks stay as they are; a disk that fails reports it to the next write or sync
            self.filled = self._size
            return False
        return is_hole

    def _next_data(self, hole: int) -> int:
        """Where the data after a hole begins; the file's end if there is none."""
        try:
            return os.lseek(self._descriptor, hole, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return self._size

    def sync(self) -> None:
        """Make everything written so far durable."""
        if self._descriptor < 0:  # Python raises its own error for -1 here, unlike in pread and pwrite
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._path)
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._path) from error


def _make_private(path: str, flags: int) -> int:
    """The descriptor of a new file with mode 0600, whatever the umask. Raises FileExistsError."""
    descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, FILE_MODE)
    try:
        os.fchmod(descriptor, FILE_MODE)
    except OSError as error:
        os.close(descriptor)
        raise OSError(error.errno, error.strerror, path) from error
    return descriptor


class OsLock:
    """A `DiskLock` on the operating system."""

    __slots__ = ("_descriptor", "_watched")

    def __init__(self, path: str) -> None:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK
        self._watched: dict[str, int] = {}  # path of a directory -> its descriptor
        try:
            self._descriptor = _make_private(path, flags)
        except FileExistsError:
            self._descriptor = os.open(path, flags)
        try:
            if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.watch(os.path.dirname(path) or ".")  # noqa: PTH120 – as in `OsDisk.names`
        except OSError as error:
            self.release()
            raise OSError(error.errno, error.strerror, path) from error

    def watch(self, directory: str) -> None:
        """Have `is_in_place` look after a directory. While it is open, no other one has its inode's number."""
        self._watched[directory] = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def is_in_place(self) -> bool:
        """Whether the directories are still the ones at their paths; so they count too if that cannot be found out."""
        try:
            return all(
                os.path.samestat(os.fstat(descriptor), os.stat(path))  # noqa: PTH116 – as in `names`
                for path, descriptor in self._watched.items()
            )
        except OSError as error:
            return error.errno not in _MISSING

    def release(self) -> None:
        """Release the lock."""
        for descriptor in (*self._watched.values(), self._descriptor):
            if descriptor >= 0:
                os.close(descriptor)
        self._watched.clear()
        self._descriptor = -1


class OsWritableDisk(OsDisk):
    """The `WritableDisk` on the operating system. Its files read cached data through one buffer: in one thread."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def create(self, path: str, size: int) -> OsWritableFile:
        """Create a file of `size` zero bytes, with its space allocated."""
        descriptor = _make_private(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if size:
                os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            os.close(descriptor)
            with contextlib.suppress(OSError):  # give the allocated space back to a full disk
                Path(path).unlink()
            raise OSError(error.errno, error.strerror, path) from error
        return OsWritableFile(path, buffer=self._shared_buffer(), descriptor=descriptor)

    def open_writable(self, path: str) -> OsWritableFile:
        """Open the regular file at `path` for reading and writing."""
        return OsWritableFile(path, buffer=self._shared_buffer())

    def _shared_buffer(self) -> bytearray:
        if not self._buffer:
            self._buffer = bytearray(_BUFFER_BYTES)
        return self._buffer

    def make_directory(self, path: str) -> None:
        """Create a directory."""
        Path(path).mkdir(DIRECTORY_MODE)
        Path(path).chmod(DIRECTORY_MODE)

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory."""
        Path(source).rename(target)

    def make_link(self, path: str, target: str) -> None:
        """Create a symbolic link."""
        Path(path).symlink_to(target)

    def remove(self, path: str) -> None:
        """Remove a file."""
        Path(path).unlink()

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        Path(path).rmdir()

    def sync_directory(self, path: str) -> None:
        """Make the current names in a directory durable."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from error
        finally:
            os.close(descriptor)

    def sync_all(self, files: Sequence[WritableFile], directories: Sequence[str] = ()) -> None:
        """Make files and directories durable: many of them at once, where the file system can do that."""
        errors = self._sync_at_once([(files, directories)])
        if errors is not None:
            if errors[0] is not None:
                raise errors[0]
            return
        for file in files:
            file.sync()
        for directory in directories:
            self.sync_directory(directory)

    def sync_each(self, groups: Sequence[SyncGroup]) -> list[OSError | None]:
        """As `sync_all`, of several groups: at once, where the file system can do that, else by some threads."""
        errors = self._sync_at_once(groups)
        if errors is not None:
            return errors
        results: list[OSError | None] = [None] * len(groups)
        jobs: deque[tuple[int, Callable[[], None]]] = deque()
        for number, (files, directories) in enumerate(groups):
            jobs += [(number, file.sync) for file in files]
            jobs += [(number, partial(self.sync_directory, directory)) for directory in directories]

        def sync() -> None:
            while True:
                try:
                    number, job = jobs.popleft()
                except IndexError:
                    return
                try:
                    job()
                except OSError as error:
                    results[number] = error
                except MemoryError:
                    results[number] = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

        threads: list[threading.Thread] = []
        for _ in range(min(len(jobs), _SYNC_THREADS) - 1):
            thread = threading.Thread(target=sync, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system allows no more threads
                break
            threads.append(thread)
        sync()
        for thread in threads:
            thread.join()
        return results

    def sync_during(self, files: Sequence[WritableFile], work: Callable[[], None]) -> OSError | None:
        """Do some work, and meanwhile make everything written to these files durable.

        Each file has a thread: syncs at the same time share the flush of the disk's cache. A thread costs 0.1 ms, which
        is more than a sync of the fastest disks, and far less than one of most.
        """
        if not files:
            work()
            return None
        errors: list[OSError] = []

        def sync(some: Sequence[WritableFile]) -> None:
            try:
                self.sync_all(some)
            except OSError as error:
                errors.append(error)

        groups = [files] if len(files) > _SYNC_THREADS else [(file,) for file in files]
        threads: list[threading.Thread] = []
        for group in groups:
            thread = threading.Thread(target=sync, args=(group,), daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system allows no more threads
                sync(group)
            else:
                threads.append(thread)
        try:
            work()
        finally:
            for thread in threads:
                thread.join()
        return errors[0] if errors else None

    def _sync_at_once(self, groups: Sequence[SyncGroup]) -> list[OSError | None] | None:
        """Sync all with one system call. Returns the error of each group; None if each file is to be synced by itself.

        A file's own error is told to it only once: a sync of the file would succeed after that.
        """
        count = sum(len(files) + len(directories) for files, directories in groups)
        if count <= 1:
            return None
        from qstore.store.sync.helper import SYNCFS_FILES, FileSystemSync  # most processes never need it

        if count <= SYNCFS_FILES:
            return None
        results: list[OSError | None] = [None] * len(groups)
        asked: list[tuple[int, int]] = []  # descriptor, number of its group
        with contextlib.ExitStack() as opened:
            for number, (files, directories) in enumerate(groups):
                asked += [(file.fileno(), number) for file in files]
                for directory in directories:
                    try:
                        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                    except OSError as error:
                        results[number] = error
                    else:
                        opened.callback(os.close, descriptor)
                        asked.append((descriptor, number))
            codes = FileSystemSync().sync([descriptor for descriptor, _ in asked])
        if codes is None:
            return None
        for (_, number), code in zip(asked, codes, strict=True):
            if code:
                results[number] = OSError(code, os.strerror(code))
        return results

    def lock(self, path: str) -> OsLock:
        """Take the lock on the file at `path`."""
        return OsLock(path)

    def space(self, path: str) -> tuple[int, int]:
        """Bytes that are free on the disk of the directory `path`, and in all."""
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
