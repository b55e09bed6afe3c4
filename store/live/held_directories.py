"""The journal directories of deleted queues: removed at once, or when no snapshot needs them any more.

A snapshot of the store names journals whose queues may be deleted before it is copied. While it is held, directories
stay; they are removed when the last snapshot is released. All of this happens in the background, in order of the
catalogue's changes: so a queue whose directory is removed before a hold is not in the catalogue copy made after it.

After a crash such a directory is missing in the catalogue, as after a crash in the middle of a deletion.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable

from qstore.store.journal.write.storage import remove_journal
from qstore.store.log_lines import Level, LogLine
from qstore.store.writable_disk import WritableDisk


class HeldDirectories:
    """Removes directories, except while they are held.

    Args:
        disk: where they are.
        log: receives log lines.
    """

    __slots__ = ("_disk", "_holders", "_log", "_waiting")

    def __init__(self, disk: WritableDisk, log: Callable[[LogLine], None]) -> None:
        self._disk, self._log = disk, log
        self._holders = 0
        self._waiting: list[str] = []

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
            remove_journal(self._disk, directory)
            self._disk.sync_directory(posixpath.dirname(directory))
        except OSError as error:
            text = f"{directory}: the journal of a deleted queue cannot be removed: {error.strerror}"
            self._log(LogLine(Level.WARNING, text))
