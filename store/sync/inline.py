"""The driver that waits itself: for tools, and for simulated disks, whose files have no descriptor to hand over."""

from __future__ import annotations

import os
from collections.abc import Sequence

from store.sync.driver import Completion, SyncDriverError, sync_all
from store.writable_disk import WritableFile


class InlineSync:
    """A `SyncDriver` that syncs within `submit`."""

    __slots__ = ("_closed", "_done")

    def __init__(self) -> None:
        self._done: list[Completion] = []
        self._closed = False

    def submit(self, ticket: int, files: Sequence[WritableFile]) -> None:
        """Sync all of `files` now."""
        if self._closed:
            raise SyncDriverError("the sync driver is closed: nothing can be synced")
        self._done.append((ticket, sync_all(files)))

    def fileno(self) -> int:
        """None: -1."""
        return -1

    def completed(self, timeout: float | None = 0.0) -> list[Completion]:
        """What was submitted since the last call; there is never anything to wait for."""
        del timeout
        done, self._done = self._done, []
        return done

    def describe(self) -> str:
        """This process."""
        return f"process {os.getpid()}"

    @property
    def is_stopped(self) -> bool:
        """Never: whoever asks runs."""
        return False

    def kill(self, reason: str) -> None:
        """There is nobody to kill: whoever asks is not waiting for the disk."""
        del reason

    def successor(self) -> InlineSync:
        """Another one."""
        return InlineSync()

    def close(self) -> None:
        """Take no more."""
        self._closed = True
        self._done.clear()
