"""Removes paging files: few at a time, outside of the event loop.

A disk that is told of the blocks that become free (mounted with `discard`) stops the syncs of everything else when that
is much at once. So each look removes 64 files and 128 MiB at most; a longer file is cut off piece by piece. Of very
many files it removes a sixteenth, so that they do not become ever more; if the disk is short of room, 1024 and 2 GiB.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from qstore.broker.model.residency.paging_disk import PagingDisk

MAX_FILES: Final = 64
MAX_BYTES: Final = 128 << 20
HURRIED_FILES: Final = 1024
HURRIED_BYTES: Final = 2 << 30
_SHARE: Final = 16


class Run(Protocol):
    """Runs blocking work in a thread."""

    def __call__(self, work: Callable[[], Any], done: Callable[[Any], None], /) -> None:
        """Call `done` in the event loop with the result of `work`, which never raises."""


def run_here(work: Callable[[], Any], done: Callable[[Any], None]) -> None:
    """A `Run` that does the work at once."""
    done(work())


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
    """What is to be removed. What the disk does not remove is left to the next process.

    Args:
        disk: where it is.
        suffix: of the names of paging files: others are nobody's business here.
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
        """A file, which nobody has open: it goes at once, unless many do."""
        self._waiting.append(_Doomed(path))
        self._go_on()

    def add_directory(self, path: str) -> None:
        """A directory with paging files."""
        self._waiting.append(_Doomed(path, is_directory=True))

    def look(self, *, hurries: bool = False) -> None:
        """Half a second has passed: begin to remove some more, or many more if it `hurries`."""
        self._files_left, self._bytes_left = HURRIED_FILES, HURRIED_BYTES
        if not hurries:
            self._files_left = min(max(MAX_FILES, len(self._waiting) // _SHARE), HURRIED_FILES)
            self._bytes_left = MAX_BYTES
        self._go_on()

    def _go_on(self) -> None:
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
        self._go_on()

    def finish(self, clock: Callable[[], float], seconds: float) -> bool:
        """Remove for so many seconds, while no thread does any more. Returns whether anything is left."""
        waiting, end = self._waiting, clock() + seconds
        waiting.extendleft(reversed(self._removing))  # a thread may have removed it, and nobody was told
        while waiting and clock() < end:
            left, _ = self._remove(self._take(MAX_FILES), MAX_BYTES)
            waiting.extendleft(reversed(left))
        return bool(waiting)

    # ---- in a thread ----

    def _remove(self, chosen: list[_Doomed], most: int) -> tuple[list[_Doomed], int]:
        """Remove at most so many bytes. Returns what is left of it, or was found in it, and how many more may go."""
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
