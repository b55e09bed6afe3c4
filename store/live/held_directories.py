"""The journal directories of deleted queues: removed at once, unless they have many files, or a snapshot needs them.

The journal of a deep queue has thousands of files. Those go few at a time (`spare_files`), since all at once would stop
the syncs of everything else, and hold up all changes of the catalogue. Until then the mark of the deletion is there:
what a kill leaves, the next start takes over.

A snapshot of the store names journals whose queues may be deleted before it is copied. While it is held, directories
stay; they are removed when the last snapshot is released. All of this happens in the background, in order of the
catalogue's changes: so a queue whose directory is removed before a hold is not in the catalogue copy made after it.

After a crash such a directory is missing in the catalogue, as after a crash in the middle of a deletion.
"""

from __future__ import annotations

import posixpath
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from qstore.store.disk import WritableDisk
from qstore.store.journal.directory import DELETED
from qstore.store.journal.write.storage import remove_journal
from qstore.store.log_lines import Level, LogLine

MAX_REMOVED: Final = 64
"""Files that are removed at once: hundreds stop the syncs of all others for some 450 ms on a disk with `discard`."""

CLOSE_NS: Final = 2_000_000_000  # that the removal takes when a store is closed


class HeldDirectories:
    """Removes directories, except while they are held. All but `has_long` is for the background's thread.

    Args:
        disk: where they are.
        log: receives log lines.
        clock: returns nanoseconds.
        remains: directories of which the removal was begun by an earlier process.
    """

    __slots__ = ("_clock", "_disk", "_holders", "_log", "_long", "_names", "_waiting")

    def __init__(
        self, disk: WritableDisk, log: Callable[[LogLine], None], clock: Callable[[], int], remains: Iterable[str] = ()
    ) -> None:
        self._disk, self._log, self._clock = disk, log, clock
        self._holders = 0
        self._waiting: list[str] = []
        self._long = deque(remains)  # those that are removed little by little
        self._names: list[str] = []  # what is to be removed of the first

    @property
    def has_long(self) -> bool:
        """Whether there are journals to be removed little by little. Thread-safe."""
        return bool(self._long)

    def hold(self) -> None:
        """Keep all directories to be removed from now on until `let_go`."""
        self._holders += 1

    def let_go(self) -> None:
        """End one hold."""
        self._holders -= 1
        if not self._holders:
            waiting, self._waiting = self._waiting, []
            for directory in waiting:
                self._remove(directory)

    def remove(self, directory: str) -> None:
        """Remove a journal's directory, now or later. Errors are logged."""
        if self._holders:
            self._waiting.append(directory)
        else:
            self._remove(directory)

    def _remove(self, directory: str) -> None:
        try:
            if len(self._disk.names(directory)) > MAX_REMOVED:
                self._long.append(directory)
                return
            remove_journal(self._disk, directory)
            self._disk.sync_directory(posixpath.dirname(directory))
        except OSError as error:
            self._failed(directory, error)

    def remove_some(self, most: int) -> None:
        """Remove files of long journals, at most so many."""
        while most > 0 and self._long:
            directory = self._long[0]
            try:
                most -= self._remove_part(directory, most)
            except OSError as error:
                self._failed(directory, error)
                self._end()

    def remove_for_a_while(self) -> None:
        """The store is about to be closed: what this does not remove, the next start takes over."""
        end = self._clock() + CLOSE_NS
        while self._long and self._clock() < end:
            self.remove_some(MAX_REMOVED)

    def _remove_part(self, directory: str, most: int) -> int:
        """Remove files of the first. Returns how many were chosen."""
        if not self._names:
            self._names = [name for name in self._disk.names(directory) if name != DELETED]
        chosen = self._names[-most:]
        for name in chosen:
            self._disk.remove(posixpath.join(directory, name))
        del self._names[-most:]
        if not self._names:
            self._end()
            remove_journal(self._disk, directory)  # the mark
            self._disk.sync_directory(posixpath.dirname(directory))
        return max(len(chosen), 1)

    def _end(self) -> None:
        self._long.popleft()
        self._names = []

    def _failed(self, directory: str, error: OSError) -> None:
        text = f"{directory}: the journal of a deleted queue cannot be removed: {error.strerror}"
        self._log(LogLine(Level.WARNING, text))
