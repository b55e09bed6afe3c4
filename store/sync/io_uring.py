"""The driver with io_uring: threads of the kernel write and sync. The broker's default where the system has it.

The event loop hands over a step's writes and syncs by one system call, and does not even copy the bytes to the page
cache. The kernel's threads need no interpreter, so a step is on the disk, and its completion in the event loop, sooner
than by a helper process. They are threads of this process: when it is killed, they end before its lock on the store is
released, so nothing is written after that.

**A step** is a chain of requests: its writes, one after the other, and then the syncs of its files. A write that is not
done completely is continued, and the rest of the chain follows it. After a failed write nothing is synced; after a
failed sync the other files are. A write has a result only if it is not done, and then none follows; every sync has one,
because for the kernel a sync that fails is no failed request: those linked to it continue, and it would be silent.

Most steps of small messages are one write that is all there is to sync. That is one request: a write that ends when it
is on the disk (pwritev2(2)). It takes 67 µs of processor time a message instead of 72 (`bench_confirms`, queues-20).

**Many files** at once are synced in parallel by as many threads of the kernel, which starts them when others wait for
the disk: `MAX_CHAINS` are all that a store has under way, unless it waits for many journals. Where a sync takes 10 ms,
32 busy journals have 1,900 steps a second, and 740 if 16 of them wait for the others. While that many are under way,
more are written by their owner, and wait for one of these to end. A helper process syncs many files by one `syncfs`.
It takes 4 MiB of memory and some 20 ms to start, so that it is started when more than `MAX_WAITING` steps wait and some
have been waiting for as long as that. Meanwhile all go on as before. Once it has started, it gets those that wait and
all that come while the kernel has enough. Where no process can be started, nothing but its gain is lost.

**End.** The bytes of a chain are kept until it has ended, for the kernel reads them. When a helper that has started
dies, so does this driver; its successor begins when the chains have ended: their writes must not overtake those of the
successor.

**The queues of io_uring.** Requests are entries of 64 bytes in a memory that is shared with the kernel, which copies
them when they are submitted; results are entries of 16 bytes in another, which the kernel's threads append at any time.
Both are rings: heads and tails count entries and are taken modulo their sizes, which are powers of two. The descriptor
is readable while results wait.

| request | bytes | | result | bytes |
|---|---|---|---|---|
| opcode, flags, priority | u8 u8 u16 | | tag | u64 |
| descriptor | s32 | | result: what the system call would return, or a negative errno | s32 |
| offset in the file | u64 | | flags | u32 |
| address, length | u64 u32 | | | |
| flags of the operation | u32 | | | |
| tag, which is returned | u64 | | | |
| nothing here | 24 zero bytes | | | |

A tail that is read before the entries below it needs no memory barrier on x86-64, whose loads are not reordered; other
processors need one that Python does not have. And before Linux 5.17 a request that succeeds cannot be silent.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import mmap
import os
import platform
import select
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from mypy_extensions import mypyc_attr

from qstore.store.disk import WritableFile
from qstore.store.sync.driver import Completion, FileWrite, SyncDriver, SyncDriverError, file_error
from qstore.store.sync.helper import SYNCFS_FILES
from qstore.store.sync.process import HelperProcessSync
from qstore.store.sync.threads import ThreadSync

MAX_CHAINS: Final = 64
"""Maximum steps in the kernel's hands: `FLUSHES_AT_ONCE` of `store.live.commit`."""
MAX_WAITING: Final = SYNCFS_FILES
"""Up to so many steps that wait are no work for a helper, which would sync each file by itself, too."""
HELPED_AFTER: Final = 0.02
"""Seconds for which steps have been waiting when a helper is started: as long as that takes."""
RETRY_SECONDS: Final = 60.0
"""Seconds from a start of a helper that fails to the next."""
_LOOK_EVERY: Final = 32
"""Calls of `completed` after which the helper is looked at, even if each had results of the kernel: it may be dead."""
DRAIN_SECONDS: Final = 5.0
"""Seconds that `close` and `successor` wait for chains to end."""

_RING_SIZE: Final = 32
"""Requests that are submitted at once; a longer chain continues when these have ended."""
_MAX_PIECES: Final = 1024
"""Of one write: UIO_MAXIOV of Linux."""
_INDEX_BITS: Final = 8
"""Of a request's tag, which has its chain's number above its place in the submission."""


class _Chain:
    """A step: its ticket, its requests that have not ended, and its first error.

    A request is a write; the sync of a file has no pieces. Much of the time of a small flush goes into making a chain
    and submitting it, so that this makes few objects and calls: 56,000 instructions a step of one write instead of
    68,000 (callgrind).
    """

    __slots__ = ("_own", "awaited", "descriptors", "error", "memory", "requests", "submitted", "ticket")

    def __init__(
        self, ticket: int, files: Sequence[WritableFile], numbers: Sequence[int], writes: Sequence[FileWrite]
    ) -> None:
        self.ticket = ticket
        # Of its own: the kernel looks a file up by its number, when a request's turn comes.
        self.descriptors: dict[WritableFile, int] = {}
        self._own: list[int] = []
        for index, file in enumerate(files):
            number = numbers[index]
            if number < 0:  # not open: the kernel has nothing to do, and `has_ended` tells
                self.descriptors[file] = number
                continue
            try:
                number = os.dup(number)
                self._own.append(number)
            except OSError:  # too many are open: the owner keeps it open, unless its journal fails
                pass
            self.descriptors[file] = number
        self.requests: list[FileWrite] = []
        for write in writes:
            if len(write.pieces) <= _MAX_PIECES:
                self.requests.append(write)
            else:
                self.requests += _divided(write)
        if len(self.requests) != 1 or not self.requests[0].is_all:
            for file in files:
                self.requests.append(FileWrite(file, 0, (), 0))
        self.submitted = self.awaited = 0  # requests, and those of them that have a result if all goes well
        self.error: OSError | None = None
        self.memory: list[ctypes.Array[ctypes.c_char]] = []  # the kernel reads it until they have ended

    def close(self) -> None:
        """Close the descriptors."""
        for number in self._own:
            os.close(number)

    def has_ended(self, index: int, result: int) -> bool:
        """A request has a result. Returns whether all that were submitted have ended: `requests` are the rest then."""
        request = self.requests[index]
        if request.pieces:
            self._wrote(index, result)
            return True
        failure = -result if self.descriptors[request.file] >= 0 else errno.EBADF
        if failure:
            self.error = self.error or file_error(failure, request.file)
        self.awaited -= 1
        if not self.awaited:
            del self.requests[: self.submitted]
        return not self.awaited

    def _wrote(self, index: int, result: int) -> None:
        """A write has failed, is incomplete, or is the last of those submitted; the later ones were cancelled."""
        request = self.requests[index]
        if result <= 0:
            self.error = file_error(-result or errno.EIO, request.file)
            self.requests.clear()
            return
        del self.requests[: index + 1]
        if result < request.size:
            rest = b"".join(request.pieces)[result:]
            self.requests.insert(
                0, FileWrite(request.file, request.offset + result, (rest,), len(rest), is_all=request.is_all)
            )


def _divided(write: FileWrite) -> Iterator[FileWrite]:
    """A write of very many pieces as several."""
    offset = write.offset
    for at in range(0, len(write.pieces), _MAX_PIECES):
        some = write.pieces[at : at + _MAX_PIECES]
        size = sum(map(len, some))
        yield FileWrite(write.file, offset, some, size)
        offset += size


_ABANDONED: Final[list[_Chain]] = []
"""Chains that had not ended when their driver was closed: their memory stays."""


class IoUringSync:
    """A `SyncDriver` whose writes and syncs are done by the kernel.

    Raises:
        SyncDriverError: there is no io_uring.
    """

    __slots__ = (
        "_address", "_chains", "_death", "_epoll", "_has_ended", "_has_helper", "_helped", "_helper", "_is_refused",
        "_not_before", "_numbers", "_pointer", "_ring", "_unlooked", "_waiting", "_waits_since",
    )  # fmt: skip

    def __init__(self) -> None:
        try:
            self._ring = KernelRing(_RING_SIZE, MAX_CHAINS * _RING_SIZE)
        except OSError as error:
            raise SyncDriverError(f"io_uring is not available: {error.strerror}") from error
        try:
            self._epoll = select.epoll()
        except OSError as error:
            self._ring.close()
            raise SyncDriverError(f"io_uring is not available: {error.strerror}") from error
        self._epoll.register(self._ring.fileno(), select.EPOLLIN)
        self._helper: HelperProcessSync | None = None
        self._has_helper = False  # whether it has started
        self._not_before = 0.0  # the time before which none is started
        self._helped: set[int] = set()  # tickets at the helper
        self._waiting: deque[tuple[int, Sequence[WritableFile]]] = deque()  # steps; none while chains may begin
        self._waits_since = 0.0  # the time since when there are any
        self._chains: dict[int, _Chain] = {}
        self._numbers = itertools.count()
        self._has_ended = False  # whether the last call of `completed` had results of the kernel
        self._unlooked = 0  # calls of it since the helper was looked at
        self._death: str | None = None
        self._is_refused = False  # whether the kernel has refused requests
        self._pointer = ctypes.c_char_p()  # to the bytes whose address is needed
        self._address = ctypes.c_uint64.from_buffer(self._pointer)

    @property
    def takes_writes(self) -> bool:
        """Whether fewer steps than MAX_CHAINS are under way."""
        return len(self._chains) < MAX_CHAINS

    def submit(self, ticket: int, files: Sequence[WritableFile], writes: Sequence[FileWrite] = ()) -> None:
        """Submit the step to the kernel; or the files to the helper, if there are too many."""
        self._check()
        if writes or self.takes_writes:
            numbers = [file.fileno() for file in files]
            self._continue(_Chain(ticket, files, numbers, () if -1 in numbers else writes))
        elif self._has_helper:
            self._help(ticket, files)
        else:
            if not self._waiting:
                self._waits_since = time.monotonic()
            self._waiting.append((ticket, files))

    def _help(self, ticket: int, files: Sequence[WritableFile]) -> None:
        assert self._helper is not None
        self._helped.add(ticket)
        self._helper.submit(ticket, files)

    def _continue(self, chain: _Chain) -> None:
        """Submit the chain's next requests."""
        number, ring, pointer = next(self._numbers) << _INDEX_BITS, self._ring, self._pointer
        self._chains[number] = chain
        if chain.memory:
            chain.memory.clear()
        requests, descriptors = chain.requests, chain.descriptors
        count = chain.submitted = min(len(requests), ring.size)
        awaited, tag, last = 0, number, number + count - 1
        for request in requests[:count]:
            descriptor, pieces = descriptors[request.file], request.pieces
            if not pieces:
                flags = IN_THREAD if tag == last else LINK_IN_THREAD
                if descriptor >= 0:
                    ring.add(SYNC, flags, descriptor, 0, 0, 0, SYNC_DATA, tag)
                else:
                    ring.add(NOTHING, flags, descriptor, 0, 0, 0, 0, tag)
                awaited += 1
            else:
                flags = IN_THREAD if tag == last else SILENT_LINK_IN_THREAD
                syncs = WRITE_SYNCED if request.is_all else 0
                if len(pieces) == 1:
                    pointer.value = pieces[0]
                    ring.add(WRITE, flags, descriptor, request.offset, self._address.value, request.size, syncs, tag)
                else:
                    table = self._table(chain, pieces)
                    ring.add(WRITE_PIECES, flags, descriptor, request.offset, table, len(pieces), syncs, tag)
            tag += 1
        chain.awaited = awaited
        pointer.value = b""  # it keeps the last bytes in memory; None would not let them go
        try:
            ring.submit()
        except OSError as error:
            if not isinstance(error, IncompleteError):
                self._chains.pop(number).close()
            self._is_refused = True
            self._die(reason := f"io_uring fails: {error.strerror}")
            raise SyncDriverError(reason) from error

    def _table(self, chain: _Chain, pieces: Sequence[bytes]) -> int:
        """The address of a table of the pieces' addresses and lengths."""
        pointer, address = self._pointer, self._address
        words: list[int] = []
        for piece in pieces:
            pointer.value = piece
            words += (address.value, len(piece))
        table = ctypes.create_string_buffer(struct.pack(f"<{len(words)}Q", *words))
        chain.memory.append(table)
        return ctypes.addressof(table)

    def fileno(self) -> int:
        """A descriptor that is readable while results of the kernel or answers of the helper wait; -1 if closed."""
        return -1 if self._epoll.closed else self._epoll.fileno()

    def completed(self, timeout: float | None = 0.0) -> list[Completion]:
        """The tickets whose steps have ended."""
        self._check()
        self._unlooked += 1
        if self._unlooked >= _LOOK_EVERY and (answered := self._answered()):
            return answered
        done = self._ended()
        if done or (timeout == 0.0 and (self._helper is None or (self._has_ended and not self._helped))):
            self._has_ended = bool(done)  # the helper is looked at in a call before which the kernel had ended nothing
            return done
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            if not done:
                done = self._answered()
            left = None if end is None else max(0.0, end - time.monotonic())
            if done or left == 0.0 or not (self._chains or self._helped):
                return done
            self._epoll.poll(left)
            done = self._ended()

    def _answered(self) -> list[Completion]:
        """Process the helper's answers, or its start. Raises SyncDriverError: it is dead."""
        self._unlooked = 0
        if self._helper is None:
            return []
        if not self._has_helper:
            self._look_at_start(self._helper)
            return []
        done = self._helper.completed()
        self._helped.difference_update(ticket for ticket, _ in done)
        return done

    def _start_helper(self, now: float) -> None:
        """Start a helper, without waiting for it. If it cannot be started, the kernel goes on alone."""
        self._not_before = now + RETRY_SECONDS
        with contextlib.suppress(SyncDriverError):
            self._helper = HelperProcessSync(waits=False)
            self._epoll.register(self._helper.fileno(), select.EPOLLIN)

    def _look_at_start(self, helper: HelperProcessSync) -> None:
        """Hand what waits over to the helper, if it has started; forget it, if it has failed to."""
        try:
            self._has_helper = helper.has_started()
        except SyncDriverError:
            self._helper = None
        while self._has_helper and self._waiting:
            self._help(*self._waiting.popleft())

    def _ended(self) -> list[Completion]:
        """Process the kernel's results."""
        done: list[Completion] = []
        for chain in self._take_ended():
            if chain.requests:
                self._continue(chain)
            else:
                chain.close()
                done.append((chain.ticket, chain.error))
        if self._waiting:
            self._begin_waiting()
        return done

    def _begin_waiting(self) -> None:
        """Submit steps that wait to the kernel, as far as it has ended others."""
        while self._waiting and self.takes_writes:
            ticket, files = self._waiting.popleft()
            self._continue(_Chain(ticket, files, [file.fileno() for file in files], ()))
        if len(self._waiting) > MAX_WAITING and self._helper is None:
            now = time.monotonic()
            if now >= max(self._not_before, self._waits_since + HELPED_AFTER):
                self._start_helper(now)

    def _take_ended(self) -> list[_Chain]:
        """The chains of which the kernel has ended all that was submitted: they are no longer in its hands."""
        ended = []
        for tag, result in self._ring.results():
            number = tag >> _INDEX_BITS << _INDEX_BITS
            chain = self._chains.get(number)
            if chain is not None and chain.has_ended(tag - number, result):
                ended.append(self._chains.pop(number))
        return ended

    def describe(self) -> str:
        """That it is io_uring, and the helper, if one has started."""
        return f"io_uring and {self._helper.describe()}" if self._helper and self._has_helper else "io_uring"

    @property
    def is_stopped(self) -> bool:
        """Whether the helper was sent SIGSTOP."""
        return self._helper is not None and self._has_helper and self._helper.is_stopped

    def kill(self, reason: str) -> None:
        """Give up, and kill the helper, if there is one."""
        if self._death is None:
            self._die(f"{self.describe()} {reason}")

    def _die(self, reason: str) -> None:
        """Declare this driver dead."""
        self._death = reason
        if self._helper is not None:
            self._helper.kill("is not needed any more")
        self._epoll.modify(self._ring.fileno(), select.EPOLLOUT)  # readable: there is always room for requests

    def successor(self) -> SyncDriver:
        """Another driver, when the kernel has ended its work for this one.

        If the kernel has refused requests, or has no io_uring any more, it is a helper process alone; or threads, where
        no process can be started.
        """
        if not self._drain():
            raise SyncDriverError(
                f"the kernel has not ended {len(self._chains)} writes within {DRAIN_SECONDS:g} seconds"
            )
        makers: list[Callable[[], SyncDriver]] = [IoUringSync, HelperProcessSync]
        for make in makers[self._is_refused :]:
            with contextlib.suppress(SyncDriverError):
                return make()
        return ThreadSync()

    def close(self) -> None:
        """End: wait for the kernel, but not for ever."""
        if self._epoll.closed:
            return
        self._death = self._death or "the sync driver is closed: nothing can be synced"
        if not self._drain():
            _ABANDONED.extend(self._chains.values())
        self._chains.clear()
        self._waiting.clear()
        self._epoll.close()
        self._ring.close()
        if self._helper is not None:
            self._helper.close()

    def _drain(self) -> bool:
        """Wait for the chains to end as they are. Returns False if they did not."""
        end = time.monotonic() + DRAIN_SECONDS
        poll = select.poll()
        poll.register(self._ring.fileno(), select.POLLIN)
        while self._chains and (left := end - time.monotonic()) > 0:
            poll.poll(left * 1000)
            for chain in self._take_ended():
                chain.close()
        return not self._chains

    def _check(self) -> None:
        if self._death is not None:
            raise SyncDriverError(self._death)


MACHINE: Final = "x86_64"
"""The processor on which this works (`platform.machine`)."""

LINK: Final = 1 << 2
"""Flag of a request: the next one begins when it has succeeded, and is cancelled, silently, if it has failed."""
IN_THREAD: Final = 1 << 4
"""Flag of a request: the kernel need not try whether it can be done without waiting."""
SILENT: Final = 1 << 6
"""Flag of a request: it has a result only if it fails."""
LINK_IN_THREAD: Final = LINK | IN_THREAD
SILENT_LINK_IN_THREAD: Final = LINK | SILENT | IN_THREAD

NOTHING: Final = 0
"""Opcode: does nothing, and succeeds."""
WRITE_PIECES: Final = 2
"""Opcode: `pwritev`; address and length are those of an array of iovec."""
SYNC: Final = 3
"""Opcode: `fsync`, or `fdatasync` with the flag SYNC_DATA of the operation."""
WRITE: Final = 23
"""Opcode: `pwrite`."""
SYNC_DATA: Final = 1
WRITE_SYNCED: Final = 2
"""Flag of a write (RWF_DSYNC): it ends when its bytes are on the disk, or with the error of their sync."""

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


@mypyc_attr(native_class=False)
class IncompleteError(OSError):
    """The kernel has accepted a part of the requests."""


class KernelRing:
    """An io_uring.

    Args:
        size: maximum requests in one submission; a power of two.
        results: maximum results that wait; likewise. More requests than that must not be under way.

    Attributes:
        size: as above.

    Raises:
        OSError: the system has none, or does not allow it, or too old a one.
    """

    __slots__ = ("_descriptor", "_entered", "_head", "_mapped", "_places", "_requests", "_results", "_tail", "size")

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
        self.size = size

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
        """Add a request to the next submission, which has `size` of them at most.

        Args:
            operation: its opcode.
            flags: LINK, IN_THREAD, SILENT.
            descriptor: of the file.
            offset: bytes from the file's start.
            address: of the bytes, which must not change until it has ended.
            length: their number.
            more: flags of the operation.
            tag: returned with the result; 64 bits.
        """
        at = (self._tail & self._places.last_request) * _REQUEST_SIZE
        _REQUEST.pack_into(self._requests, at, operation, flags, 0, descriptor, offset, address, length, more, tag)
        self._tail += 1

    def submit(self) -> None:
        """Submit the added requests.

        Raises:
            IncompleteError: the kernel has accepted a part of it, and nothing more may be submitted.
            OSError: none was accepted, and the added requests are discarded.
        """
        count = self._tail - self._entered
        self._mapped[self._places.tail] = self._tail & _WORD
        try:
            accepted = _enter(self._descriptor, count)
        except OSError:
            self._mapped[self._places.tail] = self._entered & _WORD
            self._tail = self._entered
            raise
        if accepted != count:
            raise IncompleteError(errno.EAGAIN, f"io_uring accepted {accepted} of {count} requests")
        self._entered = self._tail

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
