"""The program of the helper process: receives open files over a socket, syncs them, and answers.

It is run by its path, `python -I -S helper.py DESCRIPTOR`, and imports little, so that it starts in milliseconds and
takes 3.3 MiB of memory; with `socket`, `threading` and `typing` it took 5.1. The descriptor is one end of a pair of
SOCK_SEQPACKET sockets, which preserve message boundaries:

| message | content (little endian) |
|---|---|
| greeting, once, from the helper | `GREETING` |
| request | for each file a job number u64; with it, as SCM_RIGHTS, their descriptors in the same order |
| request without a file | one job number; no descriptor. Its answer is EBADF |
| answer, one for each request | for each file its job number u64 and an errno u32, 0 if it is synced |

Several threads wait for requests, and each handles one at a time; so requests are synced in parallel, and a request
that finds an idle thread is not handed on. A request of many files on one ext4 is synced by one `syncfs`, which sends
the disk one flush instead of one for each file, and writes other dirty data on that file system too. Then every file's
own error is checked, because `syncfs` reports an error to one open file only. Other file systems are not synced this
way: not all of them guarantee to flush the disk's cache then.

A file is closed before its answer is sent. The process ends at the socket's end of file: when its parent closes it, or
dies. It starts with SIGINT, SIGTERM and SIGHUP blocked, since it must run as long as its parent writes.
"""

from __future__ import annotations

import _socket
import _thread
import array
import errno
import os
import struct
import sys

TYPE_CHECKING = False  # `typing` is among what is not imported
if TYPE_CHECKING:
    import ctypes
    from collections.abc import Sequence
    from typing import Final

GREETING: Final = b"qstore-sync 1"
JOB: Final = struct.Struct("<Q")
ANSWER: Final = struct.Struct("<QI")
MAX_FILES: Final = 253
"""Maximum descriptors in one request: SCM_MAX_FD of Linux."""
THREADS: Final = 16
"""Maximum number of concurrent requests."""
_STACK_BYTES: Final = 512 << 10
"""Of a thread, which calls little: the usual 8 MiB count under `ulimit -v`."""

SYNCFS_FILES: Final = 16
"""Above this number of files on one file system one `syncfs` is faster (tests/bench/bench_sync.py)."""
_SYNCFS_KERNEL: Final = (5, 8)
"""Before this version of Linux `syncfs` does not report write-back errors."""
_SYNCFS_KINDS: Final = frozenset({"ext4"})
"""File systems whose `syncfs` ends with a flush of the disk's cache, as `fdatasync` does."""
_WAIT_BEFORE: Final = 1
"""SYNC_FILE_RANGE_WAIT_BEFORE (sync_file_range(2)): wait for write-back in progress, and report the file's error."""


def sync_file(descriptor: int) -> int:
    """Sync one file; returns the errno, 0 if it is synced."""
    try:
        os.fdatasync(descriptor)
    except OSError as error:
        return error.errno or 1
    return 0


def file_system_kind(device: int) -> str:
    """The type of the file system on a device (`st_dev`): "ext4"; "" if unknown."""
    number = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:  # noqa: PTH123
        for line in mounts:
            # 36 35 98:0 /root /mount/point options optional… - ext4 source options (proc_pid_mountinfo(5))
            before, _, after = line.partition(" - ")
            if before.split(" ", 3)[2] == number:
                return after.split(" ", 1)[0]
    return ""


class FileSystemSync:
    """Syncs many files by one `syncfs`. Loaded on demand: most requests are of one file."""

    def __init__(self) -> None:
        import ctypes

        self._get_errno = ctypes.get_errno
        self._libc: ctypes.CDLL | None = None
        release = os.uname().release.split("-")[0].split(".")
        if tuple(int(part) for part in release[:2]) >= _SYNCFS_KERNEL:
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._libc.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]

    def sync(self, descriptors: Sequence[int]) -> list[int] | None:
        """Sync files; returns an errno for each. None if it is impossible or failed: sync each file separately."""
        libc = self._libc
        devices = {os.fstat(descriptor).st_dev for descriptor in descriptors}
        if libc is None or len(devices) != 1 or file_system_kind(devices.pop()) not in _SYNCFS_KINDS:
            return None
        if libc.syncfs(descriptors[0]) != 0:
            return None
        return [self._own_error(libc, descriptor) for descriptor in descriptors]

    def _own_error(self, libc: ctypes.CDLL, descriptor: int) -> int:
        return self._get_errno() if libc.sync_file_range(descriptor, 0, 0, _WAIT_BEFORE) != 0 else 0


class Helper:
    """The helper's side of the socket."""

    def __init__(self, connection: _socket.socket) -> None:
        self._connection = connection
        self._lock = _thread.allocate_lock()
        self._file_system_sync: FileSystemSync | None = None

    def serve(self) -> None:
        """Serve requests until the parent ends or closes the socket. Ends the process."""
        try:
            while jobs_and_files := self._receive():
                jobs, descriptors = jobs_and_files
                try:
                    errors = self.sync(descriptors)
                finally:
                    for descriptor in descriptors:
                        os.close(descriptor)
                self._connection.send(b"".join(map(ANSWER.pack, jobs, errors or [errno.EBADF])))
        except (BrokenPipeError, ConnectionResetError):
            os._exit(0)
        except BaseException as error:  # A partly working helper would be silent: end, so that the parent notices.
            print(f"sync helper: {error!r}", file=sys.stderr, flush=True)  # noqa: T201
            os._exit(1)
        os._exit(0)

    def _receive(self) -> tuple[list[int], Sequence[int]] | None:
        """The next request; None at the end."""
        descriptors = array.array("i")
        room = _socket.CMSG_SPACE(MAX_FILES * descriptors.itemsize)
        content, ancillary, flags, _ = self._connection.recvmsg(MAX_FILES * JOB.size, room, _socket.MSG_CMSG_CLOEXEC)
        if not content:
            return None
        for level, kind, data in ancillary:
            if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS):
                descriptors.frombytes(data)
        jobs = [job for (job,) in JOB.iter_unpack(content)]
        if flags & (_socket.MSG_CTRUNC | _socket.MSG_TRUNC) or len(jobs) != (len(descriptors) or 1):
            raise ValueError(f"{len(descriptors):,} files received for {len(jobs)} jobs: raise the limit on open files")
        return jobs, descriptors

    def sync(self, descriptors: Sequence[int]) -> list[int]:
        """Sync files; returns an errno for each."""
        if len(descriptors) > SYNCFS_FILES:
            with self._lock:
                self._file_system_sync = self._file_system_sync or FileSystemSync()
            errors = self._file_system_sync.sync(descriptors)
            if errors is not None:
                return errors
            return self._sync_side_by_side(descriptors)
        return [sync_file(descriptor) for descriptor in descriptors]

    def _sync_side_by_side(self, descriptors: Sequence[int]) -> list[int]:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(THREADS) as pool:
            return list(pool.map(sync_file, descriptors))


def main() -> None:
    """Serve the socket whose descriptor is the only argument."""
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    connection = _socket.socket(fileno=descriptor)
    helper = Helper(connection)
    _thread.stack_size(_STACK_BYTES)
    for _ in range(THREADS - 1):
        _thread.start_new_thread(helper.serve, ())
    try:
        connection.send(GREETING)
    except (BrokenPipeError, ConnectionResetError):  # the parent has ended meanwhile
        return
    helper.serve()


if __name__ == "__main__":
    main()
