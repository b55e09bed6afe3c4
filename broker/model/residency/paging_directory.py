"""The directory with the paging files of a broker: `<data directory>/paging`, or that of --paging-dir.

    <number>.run/           one process's; the number is higher than that of any directory that existed before
        <number>.pages      the messages of one queue

The files are useless to another process, and never synced. A process that stops removes its own, as many as it can in a
short time; the next process gradually removes the rest, or those of a crashed process, while it serves clients
(`Removal`). The number of open files is limited; the least recently used one is closed for another one.

A share of the disk stays free. If that is reached, or the disk fails, messages stay in memory, where the broker's
ceiling applies (`memory`); one log line reports the beginning, another the end of this.
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
from typing import TYPE_CHECKING, Any, Final, Protocol

from qstore.broker.log.logs import LogBudget, log_of
from qstore.formats.errors import BrokerRecordError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.page_file import Extent, PayloadCompressor

if TYPE_CHECKING:
    from qstore.broker.model.message import Message, RestoreMessage


_LOG: Final = log_of("Broker")

SUFFIX: Final = ".pages"
RUN_SUFFIX: Final = ".run"
FREE_SHARE: Final = 20  # a twentieth of the disk stays free, as for journals by default
MAX_OPEN: Final = 128
QUIET_SECONDS: Final = 5.0
"""Seconds without failure after which trouble is over: near a limit, some messages can be written and others cannot."""
STOP_SECONDS: Final = 2.0
"""Seconds that a stopping process removes files, plus the time of the last portion."""

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
        """As `read`, if all of it is in the page cache; None otherwise."""

    def read_ahead(self, offset: int, length: int) -> None:
        """Suggest that the system read a part of the file into its page cache."""

    def write(self, offset: int, content: bytes) -> None:
        """Write all of `content` at `offset`; if this fails, a part may have been written."""

    def truncate(self, size: int) -> None:
        """Truncate the file."""

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
        """Free and total bytes of the disk with the directory `path`."""


class Run(Protocol):
    """Runs blocking work in a thread."""

    def __call__(self, work: Callable[[], Any], done: Callable[[Any], None], /) -> None:
        """Call `done` in the event loop with the result of `work`, which never raises."""


def run_here(work: Callable[[], Any], done: Callable[[Any], None]) -> None:
    """A `Run` that does the work at once."""
    done(work())


class OpenFile:
    """A paging file on the disk, and its descriptor while it is open.

    Args:
        path: its path.

    Attributes:
        path: as above.
        file: the open file; None while it is closed.
        readers: number of threads reading it, for which it must stay open.
        is_removed: whether it is to be closed and removed after the last reader.
    """

    __slots__ = ("file", "is_removed", "path", "readers")

    def __init__(self, path: str, file: PagingFile) -> None:
        self.path = path
        self.file: PagingFile | None = file
        self.readers = 0
        self.is_removed = False


class Trouble:
    """A repeated failure, which is over when it has not occurred for a while."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = 0.0  # time of the last failure; 0.0 for none

    def has_come(self, now: float) -> bool:
        """Note a failure. Returns whether it is the first."""
        last, self._last = self._last, now
        return not last

    def is_over(self, clock: Callable[[], float]) -> bool:
        """Note a success. Returns whether this ends a failure."""
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
        random_bits: returns the given number of random bits.
        max_open: maximum number of open files.
        clock: seconds.

    Attributes:
        path, run, random_bits: as above.
        restore: decodes a stored message.
        cached: the last extent read, with its file and its place.
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
        self._open: dict[OpenFile, None] = {}  # the least recently used one first
        self._trouble = Trouble()

    def prepare(self) -> None:
        """Create the directory of this process; leftovers of others are removed later. Raises OSError."""
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
            if name.endswith(SUFFIX):  # earlier versions had all files in this directory
                self._removal.add(posixpath.join(path, name))

    def look(self) -> None:
        """Begin to remove some files. Call this about every half second."""
        if self._removal.is_waiting:
            is_short = False
            with contextlib.suppress(OSError):
                is_short = self._is_short(2)
            self._removal.look(hurries=is_short)

    def close(self) -> None:
        """Remove all files, as far as possible in a short time; the next process removes the rest."""
        for each in list(self._open):
            self._close(each)
        if self._own:
            self._removal.add_directory(self._own)
            self._own = ""
        if self._removal.finish(self._clock, STOP_SECONDS):
            _LOG.notice("%s: some paging files are left, which the next start removes", self.path)

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
        """Close a file, and remove it in a later call of `look`, outside of the event loop."""
        file.is_removed = True
        if not file.readers:
            self._close(file)
            self._removal.add(file.path)

    def has_read(self, file: OpenFile) -> None:
        """Note that a thread has finished reading it."""
        file.readers -= 1
        if file.is_removed:
            self.remove(file)

    # ---- a disk that is full or fails ----

    def check_room(self, size: int) -> None:
        """Raise OSError if too little would be free on the disk after `size` more bytes."""
        if self._is_short(1, size):
            self._removal.look(hurries=True)
            raise OSError(0, f"less than {100 // FREE_SHARE} % of the disk is free", self.path)

    def _is_short(self, shares: int, size: int = 0) -> bool:
        """Whether less than `shares` times the reserved share would be free after `size` more bytes."""
        free, total = self._disk.space(self.path)
        return free - size < shares * total // FREE_SHARE

    def failed(self, queue: str, problem: str, is_limit_of: Trouble | None = None) -> None:
        """Note that messages of a queue cannot be written: logged at the first failure, its own limit separately."""
        if (is_limit_of or self._trouble).has_come(self._clock()):
            text = 'Messages of queue "%s" cannot be paged out, and stay in memory while there is room: %s'
            _LOG.error(text, queue, problem)

    def worked(self, queue: str, limit: Trouble) -> None:
        """Note that messages of a queue were written: logged if that ends a failure."""
        if self._trouble.is_over(self._clock):
            _LOG.notice("%s: messages are paged out again", self.path)
        if limit.is_over(self._clock):
            _LOG.notice('Messages of queue "%s" are paged out again: its paging file has room', queue)

    def unreadable(self, queue: str, count: int, page: int, problem: str) -> None:
        """Log, within limits, that messages of a queue cannot be read back."""
        text = 'Queue "%s": messages that were paged out cannot be read back, and are not delivered (%d, page %d): %s'
        self._unreadable.write(time.monotonic(), text, queue, count, page, problem)

    @property
    def compressor(self) -> PayloadCompressor:
        """Compresses messages of queues that are declared so."""
        if self._compressor is None:
            self._compressor = PayloadCompressor()
        return self._compressor


class _Removable(NamedTuple):
    """A file or a directory to be removed.

    Attributes:
        path: its path.
        is_directory: whether it is a directory; `is_empty`: whether that has no paging files any more.
    """

    path: str
    is_directory: bool = False
    is_empty: bool = False


class Removal:
    """Removes paging files: a few at a time, outside of the event loop; the rest is left to the next process.

    A disk that is notified of freed blocks (mounted with `discard`) stalls all other syncs when many are freed at once.
    So each call of `look` removes at most 64 files and 128 MiB; a longer file is truncated piece by piece. If there are
    very many files it removes a sixteenth of them, so that their number does not grow for ever; if the disk is short of
    room, 1024 files and 2 GiB.

    Args:
        disk: where it is.
        suffix: the suffix of paging files; other files are left alone.
        run: runs blocking work.
    """

    __slots__ = ("_bytes_left", "_disk", "_files_left", "_removing", "_run", "_suffix", "_waiting")

    def __init__(self, disk: PagingDisk, suffix: str, run: Run) -> None:
        self._disk, self._suffix, self._run = disk, suffix, run
        self._waiting: deque[_Removable] = deque()
        self._removing: list[_Removable] = []  # by a thread, now
        self._files_left, self._bytes_left = MAX_FILES, MAX_BYTES  # until the next call of `look`

    @property
    def is_waiting(self) -> bool:
        """Whether anything is to be removed."""
        return bool(self._waiting)

    def add(self, path: str) -> None:
        """Remove a file that is not open: at once, unless many are waiting."""
        self._waiting.append(_Removable(path))
        self._remove_more()

    def add_directory(self, path: str) -> None:
        """Remove a directory with paging files."""
        self._waiting.append(_Removable(path, is_directory=True))

    def look(self, *, hurries: bool = False) -> None:
        """Begin to remove some more, or many more if it `hurries`, after half a second has passed."""
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

    def _take(self, most: int) -> list[_Removable]:
        return [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]

    def _removed(self, result: tuple[list[_Removable], int]) -> None:
        self._removing = []
        left, self._bytes_left = result
        self._waiting.extendleft(reversed(left))
        self._remove_more()

    def finish(self, clock: Callable[[], float], seconds: float) -> bool:
        """Remove for `seconds`, once no thread does. Returns whether anything is left."""
        waiting, end = self._waiting, clock() + seconds
        waiting.extendleft(reversed(self._removing))  # a thread may have removed them, with its callback pending
        while waiting and clock() < end:
            left, _ = self._remove(self._take(MAX_FILES), MAX_BYTES)
            waiting.extendleft(reversed(left))
        return bool(waiting)

    # ---- in a thread ----

    def _remove(self, chosen: list[_Removable], most: int) -> tuple[list[_Removable], int]:
        """Remove at most `most` bytes. Returns the files left or found, and the number of bytes left to remove."""
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

    def _content(self, directory: str) -> list[_Removable]:
        """The paging files of a directory, and the directory after them."""
        try:
            names = self._disk.names(directory)
        except OSError:
            return []
        files = [_Removable(posixpath.join(directory, name)) for name in names if name.endswith(self._suffix)]
        return [*files, _Removable(directory, is_directory=True, is_empty=True)]

    def _cut(self, path: str, size: int) -> None:
        with contextlib.closing(self._disk.open_writable(path)) as file:
            file.truncate(size)


def cannot_restore(_data: bytes, _begin: int = 0, _end: int = -1, /) -> Message:
    """The `RestoreMessage` of a broker without protocols: raises BrokerRecordError."""
    raise BrokerRecordError("no protocol is configured to decode messages", 0)


def _run_number(name: str) -> int:
    """The number in the name of a process's directory; 0 for other names."""
    number = name.removesuffix(RUN_SUFFIX)
    return int(number) if number != name and number.isdecimal() and number.isascii() and len(number) < 19 else 0


def _random_bits(count: int) -> int:
    return int.from_bytes(os.urandom(count // 8), "little")
