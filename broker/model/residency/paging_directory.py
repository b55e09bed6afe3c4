"""The directory with the paging files of a broker: `<data directory>/paging`, or that of --paging-dir.

    <number>.run/           of one process; the number is higher than that of any other directory that is there
        <number>.pages      the messages of one queue

The files are worthless to another process, and never synced. A stop removes its own, as many as it can in a short
while; what it leaves, or a crash, the next process removes little by little (`Removal`), while it is working already.
The number of open files is limited; the least recently used one is closed for another one.

A share of the disk stays free. If that is reached, or the disk fails, messages stay in memory, where the broker's
ceiling applies (`memory`): one line says so in the log, and another when it is over.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from logging import ERROR
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from qstore.broker.log.logs import LogBudget, log_of
from qstore.formats.errors import BrokerRecordError
from qstore.formats.page_file import Extent, PayloadCompressor

if TYPE_CHECKING:
    from qstore.broker.model.message import Message, RestoreMessage


_LOG: Final = log_of("Broker")

SUFFIX: Final = ".pages"
RUN_SUFFIX: Final = ".run"
FREE_SHARE: Final = 20  # a twentieth of the disk stays free, as for journals by default
MAX_OPEN: Final = 128
QUIET_SECONDS: Final = 5.0
"""Without a failure for so long, one is over: near a limit some messages can go out, and others cannot."""
STOP_SECONDS: Final = 2.0
"""How long a stop removes files; it takes as much longer as the last portion of them does."""

MAX_FILES: Final = 64
MAX_BYTES: Final = 128 << 20
HURRIED_FILES: Final = 1024
HURRIED_BYTES: Final = 2 << 30
_SHARE: Final = 16


class PagingFile(Protocol):
    """An open paging file. Every method may raise OSError."""

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`; fewer only at the end of the file."""

    def read_cached(self, offset: int, length: int) -> bytes | None:
        """As `read`, if the system has all of it in memory; None if it would have to wait for the disk."""

    def read_ahead(self, offset: int, length: int) -> None:
        """Have the system read a part of the file into memory; it need not."""

    def write(self, offset: int, content: bytes) -> None:
        """Write all of `content` at `offset`; a part may have been written if that fails."""

    def truncate(self, size: int) -> None:
        """Cut the file off."""

    def close(self) -> None:
        """Close the descriptor. May be called twice."""


class PagingDisk(Protocol):
    """A disk with paging files. Every method may raise OSError."""

    def create(self, path: str, size: int) -> PagingFile:
        """Create a file of `size` zero bytes, mode 0600. Raises FileExistsError."""

    def open_writable(self, path: str) -> PagingFile:
        """Open a file for reading and writing."""

    def names(self, directory: str) -> list[str]:
        """The names in a directory."""

    def is_directory(self, path: str) -> bool:
        """Whether `path` is a directory."""

    def make_directory(self, path: str) -> None:
        """Create a directory, mode 0700."""

    def size_of(self, path: str) -> int:
        """The size of a file, in bytes."""

    def remove(self, path: str) -> None:
        """Remove a file."""

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""

    def space(self, path: str) -> tuple[int, int]:
        """Bytes that are free on the disk of the directory `path`, and in all."""


class Run(Protocol):
    """Runs blocking work in a thread."""

    def __call__(self, work: Callable[[], Any], done: Callable[[Any], None], /) -> None:
        """Call `done` in the event loop with the result of `work`, which never raises."""


def run_here(work: Callable[[], Any], done: Callable[[Any], None]) -> None:
    """A `Run` that does the work at once."""
    done(work())


class OpenFile:
    """A paging file on the disk, and its descriptor while that is open.

    Args:
        path: its path.

    Attributes:
        path: as above.
        file: the open file; None while it is closed.
        readers: threads that are reading it: it must stay open.
        is_removed: it is to be closed and removed when nobody reads it any more.
    """

    __slots__ = ("file", "is_removed", "path", "readers")

    def __init__(self, path: str, file: PagingFile) -> None:
        self.path = path
        self.file: PagingFile | None = file
        self.readers = 0
        self.is_removed = False


class Trouble:
    """Something that fails again and again: it is over when it has not for a while."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = 0.0  # when it has failed; 0.0 for never

    def has_come(self, now: float) -> bool:
        """It has failed. Returns whether that is new."""
        last, self._last = self._last, now
        return not last

    def is_over(self, clock: Callable[[], float]) -> bool:
        """It has worked. Returns whether it had failed, and that is over now."""
        if not self._last or clock() - self._last < QUIET_SECONDS:
            return False
        self._last = 0.0
        return True


class PagingDirectory:
    """The directory of one broker.

    Args:
        disk: where it is.
        path: its path.
        run: runs blocking work.
        random_bits: returns that many random bits.
        max_open: how many files are open at the same time.
        clock: seconds.

    Attributes:
        path, run, random_bits: as above.
        restore: decodes a stored message.
        cached: what was read last: by whom, where, and the extent there.
    """

    def __init__(
        self,
        disk: PagingDisk,
        path: str,
        run: Run = run_here,
        random_bits: Callable[[int], int] | None = None,
        max_open: int = MAX_OPEN,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path, self.run = path, run
        self.random_bits = random_bits or _random_bits
        self.restore: RestoreMessage = cannot_restore
        self.cached: tuple[object, int, Extent] | None = None
        self._compressor: PayloadCompressor | None = None
        self._unreadable = LogBudget(_LOG, ERROR, "parts of paging files that cannot be read back")
        self._disk, self._max_open, self._clock = disk, max_open, clock
        self._removal = Removal(disk, SUFFIX, run)
        self._own = ""  # the directory of this process
        self._serial = 0
        self._open: dict[OpenFile, None] = {}  # the one used longest ago first
        self._trouble = Trouble()

    def prepare(self) -> None:
        """Make the directory of this process; what others have left goes later. Raises OSError."""
        disk, path = self._disk, self.path
        if not disk.is_directory(path):
            disk.make_directory(path)
        names = disk.names(path)
        former = [name for name in names if _run_number(name)]
        own = posixpath.join(path, f"{max(map(_run_number, former), default=0) + 1}{RUN_SUFFIX}")
        disk.make_directory(own)
        self._own = own
        for name in former:
            self._removal.add_directory(posixpath.join(path, name))
        for name in names:
            if name.endswith(SUFFIX):  # earlier versions had all files here
                self._removal.add(posixpath.join(path, name))

    def look(self) -> None:
        """Begin to remove some of what is to be removed. To be called about every half second."""
        if self._removal.is_waiting:
            is_short = False
            with contextlib.suppress(OSError):
                is_short = self._is_short(2)
            self._removal.look(hurries=is_short)

    def close(self) -> None:
        """Remove all files, as far as that is possible in a short while: the next process removes the others."""
        for each in list(self._open):
            self._close(each)
        if self._own:
            self._removal.add_directory(self._own)
            self._own = ""
        if self._removal.finish(self._clock, STOP_SECONDS):
            _LOG.notice("%s: paging files are left, and the next start removes them", self.path)

    # ---- files ----

    def create(self) -> OpenFile:
        """A new, empty file. Raises OSError."""
        self._serial += 1
        path = posixpath.join(self._own, f"{self._serial}{SUFFIX}")
        made = OpenFile(path, self._disk.create(path, 0))
        self._note_used(made)
        return made

    def opened(self, file: OpenFile) -> PagingFile:
        """Its open file. Raises OSError."""
        if file.file is None:
            file.file = self._disk.open_writable(file.path)
        self._note_used(file)
        return file.file

    def _note_used(self, file: OpenFile) -> None:
        self._open.pop(file, None)
        self._open[file] = None
        if len(self._open) > self._max_open:
            oldest = next((each for each in self._open if not each.readers and each is not file), None)
            if oldest is not None:
                self._close(oldest)

    def _close(self, file: OpenFile) -> None:
        self._open.pop(file, None)
        if file.file is not None:
            file.file.close()
            file.file = None

    def remove(self, file: OpenFile) -> None:
        """Close a file, and remove it in one of the next looks, outside of the event loop."""
        file.is_removed = True
        if not file.readers:
            self._close(file)
            self._removal.add(file.path)

    def has_read(self, file: OpenFile) -> None:
        """A thread has read it."""
        file.readers -= 1
        if file.is_removed:
            self.remove(file)

    # ---- a disk that is full or fails ----

    def check_room(self, size: int) -> None:
        """Raise OSError if the disk would have too little left after `size` more bytes."""
        if self._is_short(1, size):
            self._removal.look(hurries=True)
            raise OSError(0, f"less than {100 // FREE_SHARE} % of the disk are free", self.path)

    def _is_short(self, shares: int, size: int = 0) -> bool:
        """Whether less than `shares` times the share that stays free would be left after `size` more bytes."""
        free, total = self._disk.space(self.path)
        return free - size < shares * total // FREE_SHARE

    def failed(self, queue: str, problem: str, is_limit_of: Trouble | None = None) -> None:
        """Messages of a queue cannot go out: logged when it begins; its own limit apart from the disk's trouble."""
        if (is_limit_of or self._trouble).has_come(self._clock()):
            text = 'Messages of queue "%s" cannot be paged out, and stay in memory as long as that has room: %s'
            _LOG.error(text, queue, problem)

    def worked(self, queue: str, limit: Trouble) -> None:
        """Messages of a queue have gone out: logged if they could not before, and that is over."""
        if self._trouble.is_over(self._clock):
            _LOG.notice("%s: messages are paged out again", self.path)
        if limit.is_over(self._clock):
            _LOG.notice('Messages of queue "%s" are paged out again: its paging file has room', queue)

    def unreadable(self, queue: str, count: int, page: int, problem: str) -> None:
        """Messages of a queue cannot be read back: logged, within limits."""
        text = 'Queue "%s": messages that were paged out cannot be read back, and are not delivered (%d, page %d): %s'
        self._unreadable.write(time.monotonic(), text, queue, count, page, problem)

    @property
    def compressor(self) -> PayloadCompressor:
        """Compresses messages of queues for which that is asked."""
        if self._compressor is None:
            self._compressor = PayloadCompressor()
        return self._compressor


class _Doomed(NamedTuple):
    """A file that is to be removed, or a directory.

    Attributes:
        path: its path.
        is_directory: a directory; `is_empty`: without paging files by now.
    """

    path: str
    is_directory: bool = False
    is_empty: bool = False


class Removal:
    """Removes paging files: few at a time, outside of the event loop. What stays is left to the next process.

    A disk that is notified of freed blocks (mounted with `discard`) stalls the syncs of everything else when they are
    many at once. So each look removes 64 files and 128 MiB at most; a longer file is cut off piece by piece. Of
    very many files it removes a sixteenth, so that their number does not grow for ever; if the disk is short of room,
    1024 and 2 GiB.

    Args:
        disk: where it is.
        suffix: of the names of paging files; other files are left alone.
        run: runs blocking work.
    """

    __slots__ = ("_bytes_left", "_disk", "_files_left", "_removing", "_run", "_suffix", "_waiting")

    def __init__(self, disk: PagingDisk, suffix: str, run: Run) -> None:
        self._disk, self._suffix, self._run = disk, suffix, run
        self._waiting: deque[_Doomed] = deque()
        self._removing: list[_Doomed] = []  # by a thread, now
        self._files_left, self._bytes_left = MAX_FILES, MAX_BYTES  # until the next look

    @property
    def is_waiting(self) -> bool:
        """Whether anything is to be removed."""
        return bool(self._waiting)

    def add(self, path: str) -> None:
        """A file that is not open: it goes at once, unless many do."""
        self._waiting.append(_Doomed(path))
        self._remove_more()

    def add_directory(self, path: str) -> None:
        """A directory with paging files."""
        self._waiting.append(_Doomed(path, is_directory=True))

    def look(self, *, hurries: bool = False) -> None:
        """Half a second has passed: begin to remove some more, or many more if it `hurries`."""
        self._files_left, self._bytes_left = HURRIED_FILES, HURRIED_BYTES
        if not hurries:
            self._files_left = min(max(MAX_FILES, len(self._waiting) // _SHARE), HURRIED_FILES)
            self._bytes_left = MAX_BYTES
        self._remove_more()

    def _remove_more(self) -> None:
        if self._waiting and not self._removing and self._files_left and self._bytes_left:
            self._removing = self._take(self._files_left)
            self._files_left -= len(self._removing)
            self._run(partial(self._remove, self._removing, self._bytes_left), self._removed)

    def _take(self, most: int) -> list[_Doomed]:
        return [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]

    def _removed(self, result: tuple[list[_Doomed], int]) -> None:
        self._removing = []
        left, self._bytes_left = result
        self._waiting.extendleft(reversed(left))
        self._remove_more()

    def finish(self, clock: Callable[[], float], seconds: float) -> bool:
        """Remove for that long, when no thread does any more. Returns whether anything is left."""
        waiting, end = self._waiting, clock() + seconds
        waiting.extendleft(reversed(self._removing))  # a thread may have removed it, without its callback
        while waiting and clock() < end:
            left, _ = self._remove(self._take(MAX_FILES), MAX_BYTES)
            waiting.extendleft(reversed(left))
        return bool(waiting)

    # ---- in a thread ----

    def _remove(self, chosen: list[_Doomed], most: int) -> tuple[list[_Doomed], int]:
        """Remove at most `most` bytes. Returns what is left of it, or was found in it, and how many more may go."""
        for number, each in enumerate(chosen):
            if each.is_directory and not each.is_empty:
                return [*self._content(each.path), *chosen[number + 1 :]], most
            with contextlib.suppress(OSError):
                if each.is_empty:
                    self._disk.remove_directory(each.path)
                elif (size := self._disk.size_of(each.path)) > most:
                    self._cut(each.path, size - most)
                    return chosen[number:], 0
                else:
                    self._disk.remove(each.path)
                    most -= size
        return [], most

    def _content(self, directory: str) -> list[_Doomed]:
        """The paging files of a directory, and the directory after them."""
        try:
            names = self._disk.names(directory)
        except OSError:
            return []
        files = [_Doomed(posixpath.join(directory, name)) for name in names if name.endswith(self._suffix)]
        return [*files, _Doomed(directory, is_directory=True, is_empty=True)]

    def _cut(self, path: str, size: int) -> None:
        with contextlib.closing(self._disk.open_writable(path)) as file:
            file.truncate(size)


def cannot_restore(_data: bytes, _begin: int = 0, _end: int = -1, /) -> Message:
    """The `RestoreMessage` of a broker without protocols."""
    raise BrokerRecordError("no protocol is known that messages could be decoded for", 0)


def _run_number(name: str) -> int:
    """The number in the name of a process's directory; 0 for other names."""
    number = name.removesuffix(RUN_SUFFIX)
    return int(number) if number != name and number.isdecimal() and number.isascii() and len(number) < 19 else 0


def _random_bits(count: int) -> int:
    return int.from_bytes(os.urandom(count // 8), "little")
