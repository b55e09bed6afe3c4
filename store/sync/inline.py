"""The driver that syncs in the caller: for tools, and for simulated disks without descriptors."""

from __future__ import annotations

import os
from collections.abc import Sequence

from qstore.store.disk import WritableFile
from qstore.store.sync.driver import Completion, FileWrite, SyncDriverError, sync_all


class InlineSync:
    """A `SyncDriver` that syncs within `submit`."""

    __slots__ = ("_closed", "_done")

    def __init__(self) -> None:
        self._done: list[Completion] = []
        self._closed = False

    @property
    def takes_writes(self) -> bool:
        """Always False."""
        return False

    def submit(self, ticket: int, files: Sequence[WritableFile], writes: Sequence[FileWrite] = ()) -> None:
        """Sync all of `files` now."""
        assert not writes
        if self._closed:
            raise SyncDriverError("the sync driver is closed: nothing can be synced")
        self._done.append((ticket, sync_all(files)))

    def fileno(self) -> int:
        """Always -1."""
        return -1

    def completed(self, timeout: float | None = 0.0) -> list[Completion]:
        """The tickets submitted since the last call; never waits."""
        del timeout
        done, self._done = self._done, []
        return done

    def describe(self) -> str:
        """This process, as log text."""
        return f"process {os.getpid()}"

    @property
    def is_stopped(self) -> bool:
        """Always False: the caller itself is running."""
        return False

    def kill(self, reason: str) -> None:
        """Do nothing: the caller is not waiting for the disk."""
        del reason

    def successor(self) -> InlineSync:
        """A new inline driver."""
        return InlineSync()

    def close(self) -> None:
        """Refuse further files."""
        self._closed = True
        self._done.clear()
