"""Appends records to the journals of a store: assigns record ids, makes room, and applies backpressure.

This is the path of every durable message. Appended records are written to disk only when the flusher starts, which the
caller does once per batch.

A journal may have `bound` unsynced bytes: the pages of its write cache. Beyond that, it is written and synced
immediately, while the caller waits, so that memory stays bounded; a broker checks `gathered` and stops reading before
that happens. A journal that is short of room (JournalBusyError) is likewise flushed, while the caller waits and
compaction copies old records forward. One that is full (JournalFullError) gets more files, if it may have them.

**Runs** (`enqueue_run`, `dequeue_run`) are appended as far as possible at once: up to the end of a file of the ring or
of a block of record ids, or until the bound is exceeded; the caller appends the rest in further calls. The records, and
the times at which they are written, are the same as for single messages.

**Record ids** are unique in the whole store, and never reused. They are reserved in the catalogue in blocks, synced
before the first id of a block is used; after a restart counting continues after the last reserved block. The next block
is reserved when half of the current one is used up, so that appending never waits for the catalogue.

**Compression**, for queues declared with `qpid.compress`, precedes appending. A message is compressed if that saves at
least one block of its record; small ones rarely do, and are not tried.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import qstore.store.log_lines as log_lines
from qstore.formats.kernels.bodies import Bodies, SizeField
from qstore.formats.rhm.compressed import Compressor
from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.rhm.headers import FIXED_SIZE, data_crc, record_blocks
from qstore.formats.values import TypedMap
from qstore.store.catalogue.catalogue import Catalogue
from qstore.store.environment import Background
from qstore.store.errors import (
    JournalBusyError,
    JournalFullError,
    JournalPinnedError,
    RecordTooLongError,
    ThresholdError,
)
from qstore.store.journal.write.flushes import COMPRESSED_MESSAGE, PLAIN_MESSAGE, StoredMessage
from qstore.store.journal.write.space import threshold_error
from qstore.store.live.commit import Flusher
from qstore.store.live.growth import Expansion
from qstore.store.live.queue_journal import QueueJournal
from qstore.store.log_lines import LogLine
from qstore.store.parameters import ParameterError, queue_compresses

MAX_AROUND_DATA: Final = FIXED_SIZE + BLOCK_SIZE - 1  # bytes of a record besides data and xid: header, tail, padding
_MAX_ROUNDS: Final = 10_000  # attempts to make room; each frees a file or copies some pages


class Appender:
    """Appends records to journals.

    Args:
        ids: source of record ids.
        flusher: writes the journals to disk.
        expansion: grows them.
        log: receives log lines.

    Attributes:
        refused: called when a journal begins to refuse records, with its name and whether it is full.
    """

    __slots__ = ("_dirty", "_expansion", "_flusher", "_ids", "_log", "refused")

    def __init__(self, ids: RecordIds, flusher: Flusher, expansion: Expansion, log: Callable[[LogLine], None]) -> None:
        self._ids, self._flusher, self._expansion, self._log = ids, flusher, expansion, log
        self._dirty = flusher.dirty
        self.refused: Callable[[str, bool], None] = lambda _name, _is_full: None

    # ---- records outside of transactions ----

    def enqueue(self, journal: QueueJournal, parts: Sequence[bytes], size: int, crc: int) -> int:
        """Append a message.

        Args:
            journal: the journal of its queue.
            parts: its data, in parts.
            size: bytes of all parts.
            crc: their `data_crc`.

        Returns:
            Its record id.

        Raises:
            JournalFullError, JournalFailedError: nothing was appended. CatalogueError: likewise, for lack of ids.
        """
        ids = self._ids
        rid = ids.next
        if rid >= ids.limit:
            ids.more()
            rid = ids.next
        ids.next = rid + 1
        first = PLAIN_MESSAGE
        if journal.compression is not None:
            parts, size, crc, first = journal.compression.stored(parts, size, crc)
        try:
            journal.writer.enqueue(rid, parts, size, crc, first)
        except (JournalBusyError, JournalFullError):
            self.with_room(journal, partial(journal.writer.enqueue, rid, parts, size, crc, first))
        except MemoryError:
            raise journal.out_of_memory() from None
        self._dirty[journal] = None
        journal.enqueues += 1
        journal.gathered += size + MAX_AROUND_DATA
        if journal.gathered > journal.bound:
            self._hold_back(journal)
        return rid

    def enqueue_run(
        self,
        journal: QueueJournal,
        head: bytes,
        field: SizeField | None,
        bodies: Bodies,
        first: int,
        count: int,
    ) -> tuple[int, int]:
        """Append messages of a run, in order: as many as can be appended at once, or one.

        Args:
            journal: the journal of their queue.
            head: the bytes before the body in each message's data.
            field: the field in them that gives the size of the body; None if they are the same for all.
            bodies: the bodies.
            first: the number of the first of them.
            count: number of messages; at least 1.

        Returns:
            The record id of the first, and the number appended, at least 1; their record ids are consecutive.

        Raises:
            ValueError: there are no such messages. Otherwise as `enqueue`.
        """
        _check_run(bodies, first, count)
        ids = self._ids
        rid = ids.next
        if rid >= ids.limit:
            ids.more()
            rid = ids.next
        around = len(head) + MAX_AROUND_DATA
        count = min(count, ids.limit - rid, (journal.bound - journal.gathered) // (around + bodies.largest) + 1)
        if count <= 1 or journal.compression is not None:
            parts = bodies.message(head, field, first)
            return self.enqueue(journal, parts, len(parts[0]) + len(parts[1]), data_crc(parts)), 1
        ids.next = rid + 1
        try:
            count = journal.writer.enqueue_run(rid, head, field, bodies, first, count)
            ids.next = rid + count
        except (JournalBusyError, JournalFullError):
            parts, count = bodies.message(head, field, first), 1
            size, crc = len(parts[0]) + len(parts[1]), data_crc(parts)
            self.with_room(journal, partial(journal.writer.enqueue, rid, parts, size, crc, PLAIN_MESSAGE))
        except MemoryError:
            raise journal.out_of_memory() from None
        self._dirty[journal] = None
        journal.enqueues += count
        journal.gathered += count * around + bodies.size(first, count)
        if journal.gathered > journal.bound:
            self._hold_back(journal)
        return rid, count

    def enqueue_run_to_all(
        self,
        journals: Sequence[QueueJournal],
        head: bytes,
        field: SizeField | None,
        bodies: Bodies,
        count: int,
        least: int,
    ) -> tuple[list[int], int]:
        """Append messages of a run to several queues: to each the same ones, as many as all can take at once.

        Args:
            journals: the journals of the queues.
            head: the bytes before the body in each message's data.
            field: the field in them that gives the size of the body; None if they are the same for all.
            bodies: the bodies.
            count: number of messages, from the first on; at least 1.
            least: fewer are not appended.

        Returns:
            The record id of the first message in each journal, and the number appended. None was if a journal must
            make room or compress, or record ids must be reserved, before so few.

        Raises:
            ValueError: there are no such messages.
        """
        _check_run(bodies, 0, count)
        ids, head_size, around = self._ids, len(head), len(head) + MAX_AROUND_DATA
        count = min(count, (ids.limit - ids.next) // len(journals))
        largest = around + bodies.largest
        for journal in journals:
            if journal.gathered + count * largest > journal.bound:
                journal.gathered = journal.writer.unsynced
                count = min(count, (journal.bound - journal.gathered) // largest)
            if count >= least and journal.compression is None:
                count = journal.writer.admitted_of_run(head_size, bodies, count)
            if count < least or journal.compression is not None:
                return [], 0
        bytes_appended = count * around + bodies.size(0, count)
        rids: list[int] = []
        for journal in journals:
            rid, appended = ids.next, 0
            try:
                while appended < count:
                    appended += journal.writer.enqueue_run(
                        rid + appended, head, field, bodies, appended, count - appended
                    )
            except MemoryError:
                raise journal.out_of_memory() from None
            ids.next = rid + count
            rids.append(rid)
            self._dirty[journal] = None
            journal.enqueues += count
            journal.gathered += bytes_appended
        return rids, count

    def enqueue_all(self, journals: Sequence[QueueJournal], parts: Sequence[bytes], size: int, crc: int) -> list[int]:
        """Append a message to several queues, or to none of them. Otherwise as `enqueue`."""
        stored = _stored(journals, parts, size, crc)
        self.admit_all(
            [
                (journal, partial(journal.writer.admit_enqueue, message[1]))
                for journal, message in zip(journals, stored, strict=True)
            ]
        )
        rids = [self._ids.take() for _ in journals]
        for journal, rid, message in zip(journals, rids, stored, strict=True):
            parts, size, crc, first = message
            try:
                journal.writer.enqueue(rid, parts, size, crc, first)
            except MemoryError:
                raise journal.out_of_memory() from None
            self._dirty[journal] = None
            journal.enqueues += 1
            journal.gathered += size + MAX_AROUND_DATA
        for journal in journals:
            if journal.gathered > journal.bound:
                self._hold_back(journal)
        return rids

    def dequeue(self, journal: QueueJournal, target: int) -> None:
        """Append the removal of a message.

        Raises:
            JournalError: the message does not exist, or a transaction holds it. Otherwise as `enqueue`.
        """
        ids = self._ids
        rid = ids.next
        if rid >= ids.limit:
            ids.more()
            rid = ids.next
        ids.next = rid + 1
        try:
            journal.writer.dequeue(rid, target)
        except (JournalBusyError, JournalFullError):
            self.with_room(journal, partial(journal.writer.dequeue, rid, target))
        except MemoryError:
            raise journal.out_of_memory() from None
        self._dirty[journal] = None
        journal.dequeues += 1
        journal.gathered += BLOCK_SIZE
        if journal.gathered > journal.bound:
            self._hold_back(journal)

    def dequeue_run(self, journal: QueueJournal, target: int, count: int) -> int:
        """Append the removals of messages with consecutive record ids: as many as possible at once, or one.

        Args:
            journal: the journal of their queue.
            target: the first message.
            count: number of messages; at least 1.

        Returns:
            The number removed, from the first one on; at least 1.

        Raises:
            JournalError: the first message does not exist, or a transaction holds it. Otherwise as `enqueue`.
        """
        if count < 1:
            raise ValueError(f"no messages to remove: {count}")
        ids = self._ids
        rid = ids.next
        if rid >= ids.limit:
            ids.more()
            rid = ids.next
        count = min(count, ids.limit - rid, (journal.bound - journal.gathered) // BLOCK_SIZE + 1)
        if count <= 1:
            self.dequeue(journal, target)
            return 1
        ids.next = rid + 1
        try:
            count = journal.writer.dequeue_run(rid, target, count)
            ids.next = rid + count
        except (JournalBusyError, JournalFullError):
            self.with_room(journal, partial(journal.writer.dequeue, rid, target))
            count = 1
        except MemoryError:
            raise journal.out_of_memory() from None
        self._dirty[journal] = None
        journal.dequeues += count
        journal.gathered += count * BLOCK_SIZE
        if journal.gathered > journal.bound:
            self._hold_back(journal)
        return count

    # ---- room ----

    def take_id(self) -> int:
        """A new record id."""
        return self._ids.take()

    def take_ids(self, count: int) -> list[int]:
        """`count` new record ids, in ascending order."""
        return self._ids.take_all(count)

    def touched(self, journal: QueueJournal, size: int = BLOCK_SIZE) -> None:
        """Note that the caller appended `size` bytes to `journal` itself."""
        self._dirty[journal] = None
        journal.gathered += size
        if journal.gathered > journal.bound:
            self._hold_back(journal)

    def with_room(self, journal: QueueJournal, append: Callable[[], None]) -> None:
        """Call `append`, after making room if necessary. Passes on its exceptions."""
        for attempt in range(_MAX_ROUNDS):
            try:
                append()
                return
            except JournalBusyError:
                journal.shortages += attempt == 0
                self._flusher.drain((journal,))
            except JournalFullError as error:
                journal.shortages += attempt == 0
                refusal = self._refusal(journal, error)
                if refusal:
                    raise threshold_error(journal.writer.owner.title, refusal) from None
                if refusal is not None:
                    raise
        raise JournalFullError(f'queue "{journal.name}": gave up making room')

    def admit_all(self, admissions: Sequence[tuple[QueueJournal, Callable[[], None]]]) -> None:
        """Repeat the checks until all of them hold at the same moment. Passes on their exceptions.

        While one journal makes room, it and the others continue their work; then each is checked again.
        """
        for _ in range(_MAX_ROUNDS):
            for journal, admit in admissions:
                try:
                    admit()
                except JournalBusyError:
                    journal.shortages += 1
                    self._flusher.drain((journal,))
                    break
                except JournalFullError as error:
                    journal.shortages += 1
                    refusal = self._refusal(journal, error)
                    if refusal:
                        raise threshold_error(journal.writer.owner.title, refusal) from None
                    if refusal is not None:
                        raise
                    break
            else:
                return
        raise JournalFullError(f'queue "{admissions[0][0].name}": gave up making room')

    def _refusal(self, journal: QueueJournal, error: JournalFullError) -> str | None:
        """Make room by adding files. Returns None if there is more room; or why not, empty if the error says it."""
        if isinstance(error, JournalPinnedError):
            if self._expansion.make_room(journal) is not None:
                journal.writer.break_pins()
            return None
        reason = "" if isinstance(error, RecordTooLongError) else self._expansion.make_room(journal)
        if reason is not None:
            self._report_refusal(journal, error)
        return reason

    def _report_refusal(self, journal: QueueJournal, error: JournalFullError) -> None:
        """Log and report that a journal is full: once, until it accepts something again."""
        taken = journal.enqueues + journal.transaction_enqueues
        if journal.refused_at == taken:
            return
        journal.refused_at = taken
        is_full = not isinstance(error, ThresholdError)
        self._log(log_lines.journal_full(journal.name) if is_full else log_lines.threshold_exceeded(journal.name))
        self.refused(journal.name, is_full)

    def _hold_back(self, journal: QueueJournal) -> None:
        if journal.writer.unsynced > journal.bound:
            journal.waits += 1
            self._flusher.hold_back(journal)
        journal.gathered = journal.writer.unsynced


def _check_run(bodies: Bodies, first: int, count: int) -> None:
    if not 0 <= first < first + count <= bodies.count:
        raise ValueError(f"no run of {count} messages from number {first} of {bodies.count} on")


def _stored(journals: Sequence[QueueJournal], parts: Sequence[bytes], size: int, crc: int) -> list[StoredMessage]:
    """A message as each of several journals stores it; compressed at most once."""
    plain: StoredMessage = (parts, size, crc, PLAIN_MESSAGE)
    compression = next((journal.compression for journal in journals if journal.compression is not None), None)
    if compression is None:
        return [plain] * len(journals)
    compressed = compression.stored(parts, size, crc)
    return [plain if journal.compression is None else compressed for journal in journals]


class RecordIds:
    """A source of record ids.

    Args:
        catalogue: stores the reserved blocks.
        background: runs the reservations.
        failed: called if a block cannot be reserved.
        highest: the highest record id in any journal; ids continue above it, even if fewer were reserved.

    Attributes:
        next: the next record id.
        limit: the first id that may not be used without `more`.
    """

    __slots__ = ("_background", "_blocks", "_catalogue", "_failed", "_is_asked", "_reserved", "limit", "next")

    def __init__(
        self, catalogue: Catalogue, background: Background, failed: Callable[[Exception], None], highest: int = 0
    ) -> None:
        self._catalogue, self._background, self._failed = catalogue, background, failed
        self._blocks: deque[range] = deque()  # reserved, but not in use yet
        block = catalogue.reserve_rids(highest)
        self.next = max(block.start, 1)  # 0 is not a valid record id
        self._reserved = block.stop
        self._is_asked = False
        self.limit = self._middle()

    def take(self) -> int:
        """Take a record id. Raises CatalogueError if none is left and none can be reserved."""
        rid = self.next
        if rid >= self.limit:
            self.more()
            rid = self.next
        self.next = rid + 1
        return rid

    def take_all(self, count: int) -> list[int]:
        """Take several record ids, in ascending order. Raises as `take`."""
        first = self.next
        if first + count <= self.limit:
            self.next = first + count
            return list(range(first, first + count))
        return [self.take() for _ in range(count)]

    def more(self) -> None:
        """Extend the limit, which is reached. Raises CatalogueError as `take`."""
        if self.next < self._reserved:
            if not self._is_asked:
                self._is_asked = True
                self._background.run(self._reserve, lambda _: self._take_over(), self._failed)
            self.limit = self._reserved
            return
        self._background.wait()  # no callbacks are called here: appenders do not expect them
        if not self._blocks:
            self._reserve()
        self._take_over()

    def _reserve(self) -> None:
        self._blocks.append(self._catalogue.reserve_rids())

    def _take_over(self) -> None:
        if not self._blocks:
            return  # already done by a caller that could not wait
        block = self._blocks.popleft()
        # Ids are contiguous unless another process has reserved some, which then stay unused.
        if self.next >= self._reserved:
            self.next = max(self.next, block.start)
        self._reserved = block.stop
        self._is_asked = False
        self.limit = self._middle()

    def _middle(self) -> int:
        return self.next + (self._reserved - self.next) // 2


MIN_SIZE: Final = 2 * BLOCK_SIZE  # least bytes of data, header included, for which compression may pay off


class Compression:
    """Compresses the messages of a store."""

    __slots__ = ("_compressor",)

    def __init__(self) -> None:
        self._compressor = Compressor()

    def of(self, arguments: TypedMap) -> Compression | None:
        """This object, if a queue's arguments say that its messages are compressed; else None."""
        try:
            return self if queue_compresses({name: typed.value for name, typed in arguments.entries}) else None
        except ParameterError:  # written by other software
            return None

    def stored(self, parts: Sequence[bytes], size: int, crc: int) -> StoredMessage:
        """A message in its stored form.

        Args:
            parts: its data, in parts.
            size: bytes of all parts.
            crc: their `data_crc`.
        """
        if size >= MIN_SIZE:
            data = self._compressor.compress(b"".join(parts))
            if data is not None and record_blocks(len(data)) < record_blocks(size):
                return (data,), len(data), data_crc((data,)), COMPRESSED_MESSAGE
        return parts, size, crc, PLAIN_MESSAGE
