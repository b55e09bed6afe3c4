"""The journals' directories of deleted queues: removed at once, or when nobody reads them any more.

A snapshot of the store names journals whose queues may be deleted before it is copied. While it is held, directories
stay; they go when the last one is let go. All of this is done in the background, in the order of the catalogue's
changes: so whatever is removed before a hold is not in the catalogue's copy that is made after it.

After a crash such a directory is one that the catalogue does not know, as after a crash in the middle of a deletion.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable

from store.journal.write.storage import remove_journal
from store.log_lines import Level, LogLine
from store.writable_disk import WritableDisk


class HeldDirectories:
    """Removes directories, but not while they are held.

    Args:
        disk: where they are.
        log: takes lines for the log.
    """

    __slots__ = ("_disk", "_holders", "_log", "_waiting")

    def __init__(self, disk: WritableDisk, log: Callable[[LogLine], None]) -> None:
        self._disk, self._log = disk, log
        self._holders = 0
        self._waiting: list[str] = []

    def hold(self) -> None:
        """Whatever is to be removed from now on stays until `let_go`."""
        self._holders += 1

    def let_go(self) -> None:
        """One who holds does so no more."""
        self._holders -= 1
        if not self._holders:
            waiting, self._waiting = self._waiting, []
            for directory in waiting:
                self._remove(directory)

    def remove(self, directory: str) -> None:
        """Remove a journal's directory, now or later. What goes wrong is logged."""
        if self._holders:
            self._waiting.append(directory)
        else:
            self._remove(directory)

    def _remove(self, directory: str) -> None:
        try:
            remove_journal(self._disk, directory)
            self._disk.sync_directory(posixpath.dirname(directory))
        except OSError as error:
            text = f"{directory}: the journal of a deleted queue cannot be removed: {error.strerror}"
            self._log(LogLine(Level.WARNING, text))
