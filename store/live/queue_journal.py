"""The journal of one queue in a running store: its writer, its files, and the waiters for its syncs.

The prepared list has one, too. The counters are those of the management schema's class Journal: plain integers, read on
demand.

`resume_journal` opens an existing journal, `journal_info` describes a new one.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from qstore.formats.errors import RhmError
from qstore.formats.rhm.compressed import Decompressor
from qstore.formats.rhm.geometry import BLOCK_SIZE, DATA_OFFSET, Geometry
from qstore.formats.rhm.jinf import DEFAULT_BASE_NAME, JournalInfo
from qstore.formats.rhm.records import COMPRESSED, RecordHeader, decode_record
from qstore.formats.wording import printable
from qstore.store.disk import WritableFile
from qstore.store.environment import Environment
from qstore.store.errors import JournalError, JournalFailedError
from qstore.store.journal.write.flushes import JournalOwner, Step
from qstore.store.journal.write.space import SIZE_BITS, SIZE_MASK, FileRing
from qstore.store.journal.write.storage import JournalStorage
from qstore.store.journal.write.version_2_writer import Version2Writer, WriterState, open_writer
from qstore.store.sync.driver import FileWrite

if TYPE_CHECKING:
    from qstore.store.live.appender import Compression

#: Called once: with None when the awaited data is synced, or with the error that prevents it.
Done = Callable[[Exception | None], None]

TPL_NAME: Final = "TplStore"


class SyncBarrier:
    """Waits until several journals have synced everything appended to them before it was created.

    Attributes:
        done: the callback.
        error: the first error; None if there is none.
    """

    __slots__ = ("_waiting", "done", "error")

    def __init__(self, done: Done, waiting: int) -> None:
        self.done = done
        self._waiting = waiting
        self.error: Exception | None = None

    def reached(self, error: Exception | None) -> bool:
        """Note that one of the journals is synced. Returns whether it was the last: `done` is to be called."""
        self._waiting -= 1
        self.error = self.error or error
        return self._waiting == 0


class QueueJournal:
    """The journal of one durable queue.

    Args:
        queue_id: the queue's number.
        name: the queue's name.
        directory: the journal's directory.
        base_name: the common prefix of its files' names.
        geometry: number and size of the files.
        writer: its writer.
        storage: its files.
        bound: maximum unsynced bytes: the pages of its write cache.
        initial_files: number of files that it was created with.

    Attributes:
        queue_id, name, directory, geometry, bound, initial_files: as above. The geometry changes when the ring does.
        compression: compresses its messages; None for uncompressed messages.
        max_files: the most files that it may grow to; 0 if its size is fixed.
        low_room: `runs_low` is called when fewer blocks are left below the threshold or, while a snapshot pins files,
            are free; -1 for never.
        runs_low: called with the journal.
        writer: appends records. Used only by the store, which thus knows which journals to flush.
        enqueues, dequeues: number of records outside of transactions.
        transaction_enqueues, transaction_dequeues, commits, aborts: number of records of transactions.
        is_tight: little room is left, and the disk has no room for more files.
        is_doubtful: a record could not be read back as it should be: its index is not to be used any more.
        is_leaving: the queue is being deleted: its files may disappear at any time, which is not a disk failure.
        is_deleted: the queue was deleted: nothing is written any more, and there are no waiters.
        refused_at: number of messages accepted when it was last logged as full; -1 if never.
        gathered: bytes of data appended since backpressure was last applied.
        waits, shortages: records that had to wait for the disk, and records for which room had to be made.
        reads, slow_reads: messages read, and reads that had to wait for the disk.
        committers: transactions that the next flush commits.
        answered: transactions that the last flush committed.
    """

    __slots__ = (
        "_step",
        "_waiting",
        "_wanted",
        "aborts",
        "answered",
        "base_name",
        "bound",
        "commits",
        "committers",
        "compression",
        "dequeues",
        "directory",
        "enqueues",
        "gathered",
        "geometry",
        "initial_files",
        "is_deleted",
        "is_doubtful",
        "is_leaving",
        "is_tight",
        "low_room",
        "max_files",
        "name",
        "queue_id",
        "reads",
        "refused_at",
        "runs_low",
        "shortages",
        "slow_reads",
        "storage",
        "transaction_dequeues",
        "transaction_enqueues",
        "waits",
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
        initial_files: int = 0,
    ) -> None:
        self.queue_id, self.name, self.directory, self.base_name = queue_id, name, directory, base_name
        self.geometry = geometry
        self.writer = writer
        self.storage = storage
        self.bound = bound
        self.initial_files = initial_files or geometry.files
        self.compression: Compression | None = None
        self.max_files, self.low_room = 0, -1
        self.runs_low: Callable[[QueueJournal], None] = lambda _: None
        self.enqueues = self.dequeues = 0
        self.transaction_enqueues = self.transaction_dequeues = self.commits = self.aborts = 0
        self.committers = self.answered = 0
        self.gathered = 0
        self.waits = self.shortages = self.reads = self.slow_reads = 0
        self.refused_at = -1
        self.is_deleted = self.is_doubtful = self.is_leaving = self.is_tight = False
        self._waiting: deque[tuple[int, SyncBarrier]] = deque()  # the number of the flush that each waits for
        self._wanted = -1  # the flush that the last urgent one waits for
        self._step: Step | None = None  # the last step, which may be under way

    # ---- management ----

    @property
    def depth(self) -> int:
        """Number of enqueued messages, including those of open transactions."""
        return self.writer.records.messages

    @property
    def open_transactions(self) -> int:
        """Number of open transactions in this journal."""
        return len(self.writer.transactions)

    @property
    def unsynced(self) -> int:
        """Bytes appended that are not synced, but will be: none after a failure, or of a deleted queue."""
        return 0 if self.is_deleted or self.writer.failure is not None else self.writer.unsynced

    @property
    def outstanding_flushes(self) -> int:
        """Flushes under way: 0 or 1."""
        return int(self.writer.is_under_way)

    # ---- messages ----

    def load(self, rid: int) -> bytes:
        """The data of a message, verified, as it was enqueued. Raises as `stored`."""
        header, data = self.stored(rid)
        if not header.flags & COMPRESSED:
            return data
        try:
            return Decompressor().restore(data)
        except RhmError as error:
            raise JournalError(f'queue "{self.name}": record 0x{rid:x} is damaged: {error.what}') from None

    def stored(self, rid: int) -> tuple[RecordHeader, bytes]:
        """The record of a message, verified: its header, and its data as stored.

        Raises:
            JournalError: the message does not exist, or is damaged.
            OSError: it cannot be read.
        """
        packed = self.writer.records.where(rid)
        if packed is None:
            raise JournalError(f'queue "{self.name}": record 0x{rid:x} does not exist')
        place, blocks = packed >> SIZE_BITS, packed & SIZE_MASK
        salt = self.writer.salt_at(place)
        try:
            record = self.writer.unsynced_part(place, blocks) or self.storage.read(place, blocks * BLOCK_SIZE)
            header, _, data = decode_record(record, salt=salt)
        except RhmError as error:
            self.is_doubtful = True
            raise JournalError(f'queue "{self.name}": record 0x{rid:x} is damaged: {error.what}') from None
        if header.rid != rid:
            self.is_doubtful = True
            raise JournalError(f'queue "{self.name}": record 0x{header.rid:x} found instead of 0x{rid:x}')
        return header, data

    # ---- flushes ----

    @property
    def is_blank(self) -> bool:
        """Whether nothing was ever written to it."""
        writer = self.writer
        return writer.failure is None and not writer.is_dirty and not writer.last_dirty

    @property
    def is_drained(self) -> bool:
        """Whether there is nothing to wait for: everything is synced, or nothing more will be."""
        return self.is_deleted or self.writer.failure is not None or not self.writer.is_dirty

    @property
    def is_due(self) -> bool:
        """Whether the next step is due at once: it has urgent waiters, or a flush has further steps."""
        writer = self.writer
        return writer.is_dirty and (self._wanted > writer.synced or writer.is_half_flushed)

    def begin(self, later: list[FileWrite] | None = None) -> Sequence[WritableFile]:
        """Write the next step. Returns the files to sync; none if there is nothing to do now.

        A small step also prepares the blocks for later ones, within its sync.

        Args:
            later: if given, gets the writes, which then are not done here.
        """
        step = self.next_step()
        if step is None:
            return ()
        try:
            files = self.storage.write(step, later)
            is_filled = bool(self.storage.fill_ahead())
            if later is not None and len(later) == 1 and later[0].offset >= DATA_OFFSET and not is_filled:
                later[0].is_all = True  # a killed process may have left a file's header unsynced
            return files
        except OSError as error:
            self.writer.failed(error)
        except MemoryError:
            self.out_of_memory()
        return ()

    def next_step(self) -> Step | None:
        """Take the next step, which `do_now` does, and then `finish` ends; None if there is nothing to do now."""
        writer = self.writer
        goes_on, step = writer.is_half_flushed, None
        try:
            step = None if self.is_deleted else writer.next_flush()
        except MemoryError:
            self.out_of_memory()
        if step is not None:
            self._step = step
            if not goes_on:
                self.answered, self.committers = self.committers, 0
        return step

    def do_now(self, step: Step) -> OSError | None:
        """Write a step, and wait until it is synced. Returns the error for `finish`."""
        try:
            self.storage.write_synced(step)
        except OSError as error:
            return error
        except MemoryError:
            self.out_of_memory()
        return None

    def begin_again(self) -> Sequence[WritableFile]:
        """Write the step under way once more, to reopened files: the outcome of the first attempt is unknown.

        Returns:
            The files to sync; none if the queue was deleted, or the step cannot be written.
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
        """Finish the step: its files were synced, or failed with `error`."""
        self._step = None
        try:
            if error is not None:
                self.writer.failed(error)
            elif self.writer.failure is None:  # it may have failed elsewhere, while the step was under way
                self.writer.flushed()
                self.storage.trim()
                writer = self.writer
                if writer.records.room < self.low_room or (
                    writer.space.pins and writer.space.free(writer.batch.position) < self.low_room
                ):
                    self.runs_low(self)
                elif self.is_tight:
                    self.is_tight = False
        except MemoryError:
            self.out_of_memory()
        if self.is_deleted:
            self.storage.close()

    def out_of_memory(self) -> JournalFailedError:
        """Fail the journal because memory ran out inside the writer, whose state is unknown now.

        Returns:
            The error for the caller.
        """
        if self.writer.failure is None:
            self.writer.failed(OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)))
        return JournalFailedError(str(self.writer.failure))

    def wait(self, barrier: SyncBarrier, *, is_urgent: bool = True) -> bool:
        """Add `barrier` as a waiter for everything appended so far. Returns False if there is nothing to wait for."""
        writer = self.writer
        if self.is_deleted or (writer.failure is None and not writer.is_dirty):
            return False
        last = writer.last_dirty
        self._waiting.append((last, barrier))
        if is_urgent:
            self._wanted = last
        return True

    @property
    def has_patient_waiters(self) -> bool:
        """Whether a callback waits for a flush that no urgent one needs."""
        return bool(self._waiting) and self._waiting[-1][0] > self._wanted

    def hurry(self) -> None:
        """Everything appended so far is due as if an urgent callback waited for it."""
        if self.writer.is_dirty:
            self._wanted = self.writer.last_dirty

    def release(self, due: deque[tuple[Done, Exception | None]]) -> None:
        """Release the waiters whose flush is synced, or never will be: add the callbacks that are `due` then."""
        writer, waiting = self.writer, self._waiting
        is_over = self.is_deleted or writer.failure is not None
        error = None if self.is_deleted else writer.failure
        while waiting:
            flush, barrier = waiting[0]
            if flush > writer.synced and not is_over:
                break
            waiting.popleft()
            if barrier.reached(error):
                due.append((barrier.done, barrier.error))

    def delete(self) -> None:
        """Close the files of a deleted queue, except for those being synced."""
        self.is_deleted, self.is_tight = True, False
        if not self.writer.is_under_way:
            self.storage.close()

    def close(self) -> None:
        """Close the files. Nothing may be under way."""
        self.storage.close()


def journal_info(
    environment: Environment,
    name: str,
    geometry: Geometry,
    alignment: int,
    *,
    queue_id: int = 0,
    incarnation: int = 0,
    record: bytes = b"",
    base_name: str = DEFAULT_BASE_NAME,
) -> JournalInfo:
    """The info file of a new journal."""
    seconds, nanoseconds = divmod(environment.clock(), 1_000_000_000)
    return JournalInfo(
        2,
        name,
        base_name,
        geometry,
        seconds=seconds,
        nanoseconds=nanoseconds,
        queue_id=queue_id,
        incarnation=incarnation,
        queue_record=record,
        flush_alignment=alignment,
        creation_headers=True,
    )


def resume_journal(
    environment: Environment,
    directory: str,
    info: JournalInfo,
    geometry: Geometry,
    state: WriterState,
    *,
    bound: int,
) -> QueueJournal:
    """Resume an existing journal, ready to accept records.

    Args:
        environment: disk, clock and so on.
        directory: the journal's.
        info: the content of its info file.
        geometry: number and size of its files.
        state: its content.
        bound: maximum unsynced bytes, and maximum bytes of a write: larger writes get larger folios in the page cache.
    """
    ring = FileRing(info.numbers_of(geometry.files), state.origin, state.lap)
    storage = JournalStorage(environment.disk, directory, info.base_name, geometry, ring)
    title = f'queue "{printable(info.queue_name)}"'
    writer = open_writer(
        JournalOwner(title, info.queue_id, info.incarnation),
        geometry,
        ring,
        alignment=info.flush_alignment,
        page=bound,
        state=state,
        read=storage.read,
        salt=lambda: environment.random_bits(64),
        clock=environment.clock,
    )
    return QueueJournal(
        info.queue_id,
        info.queue_name,
        directory,
        info.base_name,
        geometry,
        writer,
        storage,
        bound,
        info.initial_files,
    )
