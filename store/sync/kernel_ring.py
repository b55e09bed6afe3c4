"""The queues of io_uring: requests to the kernel that its own threads process, and their results (io_uring(7)).

Requests are entries of 64 bytes in a memory that is shared with the kernel, which copies them when they are submitted;
results are entries of 16 bytes in another, which the kernel's threads append at any time. Both are rings: heads and
tails count entries and are taken modulo their sizes, which are powers of two. The descriptor is readable while results
wait.

| request | bytes | | result | bytes |
|---|---|---|---|---|
| opcode, flags, priority | u8 u8 u16 | | tag | u64 |
| descriptor | s32 | | result: what the system call would return, or a negative errno | s32 |
| offset in the file | u64 | | flags | u32 |
| address, length | u64 u32 | | | |
| flags of the operation | u32 | | | |
| tag, which comes back | u64 | | | |
| nothing here | 24 zero bytes | | | |

A tail that is read before the entries below it needs no memory barrier on x86-64, whose loads are not reordered; other
processors need one that Python does not have. And before Linux 5.17 a request that succeeds cannot be silent.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import struct
import time
from typing import Final

MACHINE: Final = "x86_64"
"""The processor on which this works (`platform.machine`)."""

LINK: Final = 1 << 2
"""Flag of a request: the next one begins when it has succeeded, and is cancelled, silently, if it has failed."""
IN_THREAD: Final = 1 << 4
"""Flag of a request: the kernel need not try whether it can be done without waiting."""
SILENT: Final = 1 << 6
"""Flag of a request: it has a result only if it fails."""

WRITE_PIECES: Final = 2
"""Opcode: `pwritev`; address and length are those of an array of iovec."""
SYNC: Final = 3
"""Opcode: `fsync`, or `fdatasync` with the flag SYNC_DATA of the operation."""
WRITE: Final = 23
"""Opcode: `pwrite`."""
SYNC_DATA: Final = 1

_SETUP, _ENTER = 425, 426  # numbers of the system calls, the same on all processors
_PARAMETERS: Final = struct.Struct("<4x4x4x4x4xI16x" + 2 * "10I")  # features, and the offsets of both rings
_WANTED: Final = struct.Struct("<4xII")  # results, and flags
_CHOSEN_RESULTS: Final = 1 << 3
_REQUEST: Final = struct.Struct("<BBHiQQIIQ")
_REQUEST_SIZE: Final = 64
_RESULT: Final = struct.Struct("<QiI")
_REQUESTS_OFFSET: Final = 0x10000000  # of the requests, for mmap
_MAP_POPULATE: Final = 0x8000
_WORD: Final = 0xFFFFFFFF
_ATTEMPTS: Final = 100
_PAUSE_SECONDS: Final = 0.001
"""Between attempts: the kernel may be out of memory for a moment."""

_NEEDED: Final = {
    "one mapping": 1 << 0,
    "no results are dropped": 1 << 1,
    "requests are copied": 1 << 2,
    "threads of this process": 1 << 9,
    "silent requests": 1 << 11,
}


class IncompleteError(OSError):
    """The kernel has accepted a part of the requests."""


class KernelRing:
    """An io_uring.

    Args:
        size: maximum requests in one submission; a power of two.
        results: maximum results that wait; likewise. More requests than that must not be under way.

    Attributes:
        room: requests that may still be added before the next submission.

    Raises:
        OSError: the system has none, or does not allow it, or too old a one.
    """

    __slots__ = ("_descriptor", "_entered", "_head", "_mapped", "_places", "_requests", "_results", "_tail", "room")

    def __init__(self, size: int, results: int) -> None:
        if platform.machine() != MACHINE:
            raise OSError(errno.ENOSYS, f"io_uring is used on {MACHINE} only")
        parameters = ctypes.create_string_buffer(_PARAMETERS.size)
        _WANTED.pack_into(parameters, 0, results, _CHOSEN_RESULTS)
        self._descriptor = _call(_SETUP, size, parameters)
        try:
            features, *offsets = _PARAMETERS.unpack(parameters)
            missing = [what for what, bit in _NEEDED.items() if not features & bit]
            if missing:
                raise OSError(errno.ENOSYS, f"io_uring of this kernel is too old: {', '.join(missing)}")
            self._map(parameters, offsets)
        except BaseException:
            os.close(self._descriptor)
            raise
        self._tail = self._entered = self._head = 0
        self.room = size

    def _map(self, parameters: ctypes.Array[ctypes.c_char], offsets: list[int]) -> None:
        size, results = struct.unpack_from("<II", parameters)
        self._places = _Places(offsets, size, results)
        flags = mmap.MAP_SHARED | _MAP_POPULATE
        shared = mmap.mmap(self._descriptor, self._places.end, flags=flags)
        self._requests = mmap.mmap(self._descriptor, size * _REQUEST_SIZE, flags=flags, offset=_REQUESTS_OFFSET)
        self._results, self._mapped = shared, memoryview(shared).cast("I")
        for number in range(size):  # the places of the requests in the order of submission: always the same
            self._mapped[self._places.order + number] = number

    def fileno(self) -> int:
        """The descriptor."""
        return self._descriptor

    def add(
        self,
        operation: int,
        flags: int,
        descriptor: int,
        offset: int,
        address: int,
        length: int,
        more: int,
        tag: int,
    ) -> None:
        """Add a request to the next submission. There is `room` for it.

        Args:
            operation: its opcode.
            flags: LINK, IN_THREAD, SILENT.
            descriptor: of the file.
            offset: bytes from the file's start.
            address: of the bytes, which must not change until it has ended.
            length: how many they are.
            more: flags of the operation.
            tag: comes back with the result; 64 bits.
        """
        at = (self._tail & self._places.last_request) * _REQUEST_SIZE
        _REQUEST.pack_into(self._requests, at, operation, flags, 0, descriptor, offset, address, length, more, tag)
        self._tail += 1
        self.room -= 1

    def submit(self) -> None:
        """Submit what was added.

        Raises:
            IncompleteError: the kernel has accepted a part of it, and nothing more may be submitted.
            OSError: it has accepted nothing, and what was added is forgotten.
        """
        count = self._tail - self._entered
        self._mapped[self._places.tail] = self._tail & _WORD
        try:
            accepted = _enter(self._descriptor, count)
        except OSError:
            self._mapped[self._places.tail] = self._entered & _WORD
            self._tail = self._entered
            self.room += count
            raise
        if accepted != count:
            raise IncompleteError(errno.EAGAIN, f"io_uring accepted {accepted} of {count} requests")
        self._entered = self._tail
        self.room += count

    def results(self) -> list[tuple[int, int]]:
        """The results since the last call, each with its request's tag."""
        places, mapped = self._places, self._mapped
        end = mapped[places.results_tail]
        found = []
        while self._head != end:
            tag, result, _ = _RESULT.unpack_from(
                self._results, places.results + (self._head & places.last_result) * _RESULT.size
            )
            found.append((tag, result))
            self._head = (self._head + 1) & _WORD
        mapped[places.results_head] = end
        return found

    def close(self) -> None:
        """Close the descriptor; requests in progress are cancelled some time later. May be called twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self._mapped.release()
            self._results.close()
            self._requests.close()


class _Places:
    """Where the parts of the shared memory are: in words of 32 bits, but for the results, which are at a byte."""

    __slots__ = ("end", "last_request", "last_result", "order", "results", "results_head", "results_tail", "tail")

    def __init__(self, offsets: list[int], size: int, results: int) -> None:
        # head, tail, mask, entries, flags, dropped, order; head, tail, mask, entries, overflow, results: io_uring.h
        requested, answered = offsets[:10], offsets[10:]
        self.tail, self.order = requested[1] // 4, requested[6] // 4
        self.results_head, self.results_tail, self.results = answered[0] // 4, answered[1] // 4, answered[5]
        self.last_request, self.last_result = size - 1, results - 1
        self.end = max(requested[6] + 4 * size, answered[5] + _RESULT.size * results)


_SYSTEM: Final = ctypes.CDLL(None, use_errno=True).syscall
_SYSTEM.restype = ctypes.c_long


def _call(number: int, *arguments: int | ctypes.Array[ctypes.c_char] | None) -> int:
    """A system call. Raises OSError."""
    result: int = _SYSTEM(number, *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _enter(descriptor: int, count: int) -> int:
    """Submit requests. Returns how many were accepted. Raises OSError."""
    for _ in range(_ATTEMPTS):
        try:
            return _call(_ENTER, descriptor, count, 0, 0, None, 0)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.ENOMEM):
                raise
            refusal = error
        time.sleep(_PAUSE_SECONDS)
    raise refusal
