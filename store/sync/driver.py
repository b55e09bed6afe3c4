"""The protocol of sync drivers, which wait for the disk in place of the writer.

A write ends in the page cache and takes microseconds; making it durable takes a rotation of the disk. The owner of the
files writes, or leaves that to a driver that takes writes, submits the files under a ticket, continues with other work,
and gets the ticket back when all of them are synced. Tickets are returned in any order, each once. A file may be closed
only after its tickets were returned.

A failed sync is reported as the ticket's error, and the driver continues with the others. A driver that cannot continue
is dead: from then on `submit` and `completed` raise, and `fileno` stays readable, so that an event loop notices. Then a
successor replaces it (`supervision`); the outcome of all outstanding tickets is unknown (`Flusher`).

A driver belongs to one thread: the one that submits also collects.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from qstore.store.disk import WritableFile

Completion = tuple[int, OSError | None]
"""A ticket, and the error if one of its files could not be synced."""


class FileWrite:
    """A write that a driver is to do.

    Attributes:
        file: the file.
        offset: bytes from its start.
        pieces: the bytes to write, one piece after the other.
        size: their number, one or more.
        is_all: whether nothing else in the file waits for its sync: then that need only cover these bytes.
    """

    __slots__ = ("file", "is_all", "offset", "pieces", "size")

    def __init__(
        self, file: WritableFile, offset: int, pieces: Sequence[bytes], size: int, *, is_all: bool = False
    ) -> None:
        self.file, self.offset, self.pieces, self.size, self.is_all = file, offset, pieces, size, is_all


class SyncDriverError(Exception):
    """The driver is dead: tickets that were not returned may or may not be durable. The text states how it died."""


class SyncDriver(Protocol):
    """Waits for the disk."""

    @property
    def takes_writes(self) -> bool:
        """Whether `submit` may be given writes now."""

    def submit(self, ticket: int, files: Sequence[WritableFile], writes: Sequence[FileWrite] = ()) -> None:
        """Do the writes and sync all of `files`; `completed` returns `ticket` when that is done.

        Never waits for the disk; only `InlineSync` does. Every file is tried, even after one that failed, unless a
        write failed.

        Args:
            ticket: of the caller's choice, not outstanding.
            files: the files, one or more.
            writes: writes to some of them, done in order before any sync; only if the driver takes writes. Their bytes
                must not change until the ticket is returned.

        Raises:
            SyncDriverError: the driver is dead.
        """

    def fileno(self) -> int:
        """A descriptor that is readable while completions wait.

        -1 if they are available as soon as submitted, and after `close`.
        """

    def completed(self, timeout: float | None = 0.0) -> list[Completion]:
        """The tickets done since the last call, each with the first error among its files.

        Waits up to `timeout` seconds (None: no limit) for at least one, if any is outstanding.

        Raises:
            SyncDriverError: the driver is dead. Completions from before its death are returned first.
        """

    def describe(self) -> str:
        """The driver and its state, for the log: `sync helper process 4711 (stopped)`."""

    @property
    def is_stopped(self) -> bool:
        """Whether it is stopped (SIGSTOP), so that waiting for it is useless."""

    def kill(self, reason: str) -> None:
        """Declare the driver dead. At most waits briefly for the end of a process.

        Args:
            reason: the text of its errors from now on.
        """

    def successor(self) -> SyncDriver:
        """Start a new driver of the same kind, to replace this dead one.

        Raises:
            SyncDriverError: none can be started.
        """

    def close(self) -> None:
        """Release everything. Outstanding tickets are not returned. May be called twice.

        Waits, for a bounded time, for syncs in progress; not at all for a dead driver.
        """


def sync_all(files: Sequence[WritableFile]) -> OSError | None:
    """Sync each of the files; returns the first error."""
    first: OSError | None = None
    for file in files:
        try:
            file.sync()
        except OSError as error:
            first = first or error
    return first


def file_error(number: int, file: WritableFile) -> OSError:
    """The error `number` (an errno) of a sync of `file`, with its path if the system still has it."""
    try:
        path = str(Path(f"/proc/self/fd/{file.fileno()}").readlink())
    except OSError:
        return OSError(number, os.strerror(number))
    return OSError(number, os.strerror(number), path)
