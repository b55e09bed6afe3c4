"""The journal of one queue in a store that runs: its writer, its files, and what waits for it to be synced.

The prepared list is one too. Counters are those of the management schema's class Journal; they are plain integers, and
whoever is asked for them reads them.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from formats.rhm.errors import RhmError
from formats.rhm.geometry import BLOCK_SIZE, Geometry
from formats.rhm.records import decode_record
from store.journal.write.space import SIZE_BITS, SIZE_MASK
from store.journal.write.step import JournalError, JournalFailedError, Step
from store.journal.write.storage import JournalStorage
from store.journal.write.version_2_writer import Version2Writer
from store.writable_disk import WritableFile

#: Called once, when what it waits for is on the disk, or with the error because of which it never will be.
Done = Callable[[Exception | None], None]

TPL_NAME: Final = "TplStore"


class Barrier:
    """Waits until several journals have synced what had been appended to them when it was raised."""

    __slots__ = ("_done", "_error", "_waiting")

    def __init__(self, done: Done, waiting: int) -> None:
        self._done = done
        self._waiting = waiting
        self._error: Exception | None = None

    def reached(self, error: Exception | None) -> Done | None:
        """One of the journals is there. Returns what to call with `error`, if it was the last."""
        self._waiting -= 1
        self._error = self._error or error
        return self._done if self._waiting == 0 else None

    @property
    def error(self) -> Exception | None:
        """The first error."""
        return self._error


class QueueJournal:
    """The journal of one durable queue.

    Args:
        queue_id: the queue's number.
        name: the queue's name.
        directory: the journal's directory.
        base_name: what its files' names begin with.
        geometry: number and size of the files.
        writer: its writer.
        storage: its files.
        bound: bytes that it may have unsynced: the pages of its write cache.

    Attributes:
        queue_id, name, directory, geometry, bound: as above.
        writer: what appends records. The store does, so that it knows which journals are to be flushed.
        enqueues, dequeues: records outside of transactions.
        transaction_enqueues, transaction_dequeues, commits, aborts: records of transactions.
        is_leaving: the queue is being deleted: its files may be gone at any time, and that is no failure of the disk.
        is_deleted: the queue is gone: nothing is written any more, and whoever waits need not.
        refused_at: how many messages had been taken when it was last logged that no more are; -1 if never.
        gathered: bytes of data that were appended since it was last seen to that they do not get too many.
    """

    __slots__ = (
        "_step",
        "_waiting",
        "aborts",
        "base_name",
        "bound",
        "commits",
        "dequeues",
        "directory",
        "enqueues",
        "gathered",
        "geometry",
        "is_deleted",
        "is_leaving",
        "name",
        "queue_id",
        "refused_at",
        "storage",
        "transaction_dequeues",
        "transaction_enqueues",
        "writer",
    )

    def __init__(
        self,
        queue_id: int,
        name: str,
        directory: str,
        base_name: str,
        geometry: Geometry,
        writer: Version2Writer,
        storage: JournalStorage,
        bound: int,
    ) -> None:
        self.queue_id, self.name, self.directory, self.base_name = queue_id, name, directory, base_name
        self.geometry = geometry
        self.writer = writer
        self.storage = storage
        self.bound = bound
        self.enqueues = self.dequeues = 0
        self.transaction_enqueues = self.transaction_dequeues = self.commits = self.aborts = 0
        self.gathered = 0
        self.refused_at = -1
        self.is_deleted = self.is_leaving = False
        self._waiting: deque[tuple[int, Barrier]] = deque()
        self._step: Step | None = None  # the last one, which may be under way

    # ---- management ----

    @property
    def depth(self) -> int:
        """Messages that are enqueued, those of open transactions included."""
        return len(self.writer.live) - sum(len(each.dequeues) for each in self.writer.transactions.values())

    @property
    def open_transactions(self) -> int:
        """Transactions that are open in this journal."""
        return len(self.writer.transactions)

    @property
    def unsynced(self) -> int:
        """Bytes that were appended and are not on the disk."""
        return self.writer.unsynced

    @property
    def outstanding_flushes(self) -> int:
        """Flushes that are on their way to the disk: 0 or 1."""
        return int(self.writer.is_under_way)

    # ---- messages ----

    def load(self, rid: int) -> bytes:
        """The data of a message that is on the disk, verified.

        Raises:
            JournalError: there is no such message, it is not written yet, or what is there is damaged.
            OSError: it cannot be read.
        """
        packed = self.writer.live.get(rid)
        if packed is None:
            raise JournalError(f'queue "{self.name}": there is no record 0x{rid:x}')
        place, blocks = packed >> SIZE_BITS, packed & SIZE_MASK
        if place + blocks > self.writer.unsynced_place:
            raise JournalError(f'queue "{self.name}": record 0x{rid:x} is not on the disk yet')
        salt = self.writer.salt_at(place)
        try:
            header, _, data = decode_record(self.storage.read(place, blocks * BLOCK_SIZE), salt=salt)
        except RhmError as error:
            raise JournalError(f'queue "{self.name}": record 0x{rid:x} is damaged: {error.what}') from None
        if header.rid != rid:
            raise JournalError(f'queue "{self.name}": record 0x{header.rid:x} stands where 0x{rid:x} should')
        return data

    # ---- flushes ----

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing to wait for: all is on the disk, or nothing more will be."""
        return self.is_deleted or self.writer.failure is not None or not self.writer.is_dirty

    def begin(self) -> Sequence[WritableFile]:
        """Write the next step. Returns the files that are to be synced; none if there is nothing to do now."""
        try:
            step = None if self.is_deleted else self.writer.next_flush()
            if step is None:
                return ()
            self._step = step
            return self.storage.write(step)
        except OSError as error:
            self.writer.failed(error)
        except MemoryError:
            self.out_of_memory()
        return ()

    def begin_again(self) -> Sequence[WritableFile]:
        """Write the step that is under way once more, to files that are opened anew: nobody knows what became of it.

        Returns:
            The files that are to be synced; none if the queue is gone, or the step cannot be written.
        """
        assert self._step is not None
        if self.is_deleted:
            self.finish(None)
            return ()
        try:
            self.storage.reopen(self._step)
            return self.storage.write(self._step)
        except OSError as error:
            self.writer.failed(error)
        except MemoryError:
            self.out_of_memory()
        return ()

    def finish(self, error: OSError | None) -> None:
        """The files are synced, or not."""
        self._step = None
        try:
            if error is not None:
                self.writer.failed(error)
            else:
                self.writer.flushed()
                self.storage.trim()
        except MemoryError:
            self.out_of_memory()
        if self.is_deleted:
            self.storage.close()

    def out_of_memory(self) -> JournalFailedError:
        """The system refused memory while the writer was at work, whose state is unknown now: the journal has failed.

        Returns:
            What whoever asked for something is told.
        """
        if self.writer.failure is None:
            self.writer.failed(OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)))
        return JournalFailedError(str(self.writer.failure))

    def wait(self, barrier: Barrier) -> bool:
        """Let `barrier` wait for all that was appended so far. False if there is nothing to wait for."""
        writer = self.writer
        if self.is_deleted or (writer.failure is None and not writer.is_dirty):
            return False
        self._waiting.append((writer.last_dirty, barrier))
        return True

    def reached(self) -> list[tuple[Barrier, Exception | None]]:
        """The barriers whose flush is synced, or never will be."""
        writer, waiting = self.writer, self._waiting
        if self.is_deleted or writer.failure is not None:
            error = None if self.is_deleted else writer.failure
            found: list[tuple[Barrier, Exception | None]] = [(barrier, error) for _, barrier in waiting]
            waiting.clear()
            return found
        found = []
        while waiting and waiting[0][0] <= writer.synced:
            found.append((waiting.popleft()[1], None))
        return found

    def delete(self) -> None:
        """The queue is gone, and so are the files, but for those that are being synced."""
        self.is_deleted = True
        if not self.writer.is_under_way:
            self.storage.close()

    def close(self) -> None:
        """Let the files go. Nothing may be under way."""
        self.storage.close()
