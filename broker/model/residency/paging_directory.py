"""The directory with the paging files of a broker: `<data directory>/paging`, or that of --paging-dir.

    <number>.run/           of one process; the number is higher than that of any other directory that is there
        <number>.pages      the messages of one queue

The files are worthless to another process, and never synced. A stop removes its own, as many as it can in a short
while; what it leaves, or a crash, the next process removes little by little (`removal`), while it is working already.
At most so many files are open; the one that was used longest ago is closed for another one.

A share of the disk stays free. If that is reached, or the disk fails, messages stay in memory, where the broker's
ceiling applies (`memory`): one line says so in the log, and another when it is over.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import time
from collections.abc import Callable
from logging import ERROR
from typing import TYPE_CHECKING, Final

from qstore.broker.log.budget import LogBudget
from qstore.broker.log.logs import log_of
from qstore.broker.model.residency.paging_disk import PagingDisk, PagingFile
from qstore.broker.model.residency.removal import Removal, Run, run_here
from qstore.formats.broker_records.errors import BrokerRecordError
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
        random_bits: returns so many random bits.
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
        """Whether so many times the share that stays free would not be free after `size` more bytes."""
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


def cannot_restore(_data: bytes, _begin: int = 0, _end: int = -1, /) -> Message:
    """The `RestoreMessage` of a broker that was not told of any protocol."""
    raise BrokerRecordError("no protocol is known that messages could be decoded for", 0)


def _run_number(name: str) -> int:
    """The number in the name of a process's directory; 0 if it is none."""
    number = name.removesuffix(RUN_SUFFIX)
    return int(number) if number != name and number.isdecimal() and number.isascii() and len(number) < 19 else 0


def _random_bits(count: int) -> int:
    return int.from_bytes(os.urandom(count // 8), "little")
