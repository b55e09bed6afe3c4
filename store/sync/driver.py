"""What a sync driver is: who waits for the disk, so that whoever writes does not have to.

A write ends in the page cache and takes microseconds; making it durable takes a turn of the disk. The owner of the
files writes, submits the files under a ticket, goes on with other work, and gets the ticket back when all of them are
synced. Tickets come back in any order, each once. A file may be closed only after its tickets came back.

A sync that failed is the ticket's error, and the driver goes on with the others. A driver that cannot go on is dead:
from then on `submit` and `completed` raise, and `fileno` stays readable, so that an event loop notices. Then a
successor takes its place (`supervision`); of what was outstanding nothing may be believed (`Flusher`).

A driver belongs to one thread: the one that submits also collects.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from store.writable_disk import WritableFile

Completion = tuple[int, OSError | None]
"""A ticket, and the error if one of its files could not be synced."""


class SyncDriverError(Exception):
    """The driver is dead: what was submitted and has not come back may or may not be durable. The text says how."""


class SyncDriver(Protocol):
    """Who waits for the disk."""

    def submit(self, ticket: int, files: Sequence[WritableFile]) -> None:
        """Have all of `files` synced; `completed` gives `ticket` back when that is done. Never waits for the disk.

        `InlineSync` alone does wait. Every file is tried, also after one that failed.

        Raises:
            SyncDriverError: the driver is dead.
        """

    def fileno(self) -> int:
        """A descriptor that is readable while completions wait; -1 where they are there as soon as submitted."""

    def completed(self, timeout: float | None = 0.0) -> list[Completion]:
        """The tickets done since the last call, each with the first error among its files.

        Waits up to `timeout` seconds (None: as long as it takes) for at least one, if any is outstanding.

        Raises:
            SyncDriverError: the driver is dead. Completions that came before its death are given first.
        """

    def describe(self) -> str:
        """Who waits for the disk, and in which state, for the log: `sync helper process 4711 (stopped)`."""

    @property
    def is_stopped(self) -> bool:
        """Whether it does not run at all, because somebody stopped it (SIGSTOP): waiting for it is no use."""

    def kill(self, reason: str) -> None:
        """Give up on it: it is dead from now on. Waits for nothing but, for a moment, the end of a process.

        Args:
            reason: what its errors say from now on.
        """

    def successor(self) -> SyncDriver:
        """A new driver of the same kind, to take the place of this one, which is dead.

        Raises:
            SyncDriverError: none can be started.
        """

    def close(self) -> None:
        """Let everything go. Tickets that are outstanding do not come back. Twice is allowed.

        It waits, for a bounded time, for what is at a sync; not at all for a driver that is dead.
        """


def sync_all(files: Sequence[WritableFile]) -> OSError | None:
    """Sync each of the files; the first error."""
    first: OSError | None = None
    for file in files:
        try:
            file.sync()
        except OSError as error:
            first = first or error
    return first


def file_error(number: int, file: WritableFile) -> OSError:
    """The error `number` (an errno) of a sync of `file`, with its path where the system still knows it."""
    try:
        path = str(Path(f"/proc/self/fd/{file.fileno()}").readlink())
    except OSError:
        return OSError(number, os.strerror(number))
    return OSError(number, os.strerror(number), path)
