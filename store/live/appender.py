"""Appends records to the journals of a store: gives them their ids, makes room, and holds back who is too fast.

This is the path of every durable message. What is appended is on its way to the disk only when the flusher starts,
which whoever appends does once for a batch.

A journal may have `bound` bytes that are not synced: the pages of its write cache. One that gets more is written and
waited for, there and then, so that memory stays bounded whatever its caller does; a broker looks at `gathered` and
stops reading before it comes to that. A journal that is short of room (JournalBusyError) is likewise flushed and waited
for while it copies old records forward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import store.log_lines as log_lines
from formats.rhm.geometry import BLOCK_SIZE
from formats.rhm.headers import FIXED_SIZE
from store.journal.write.step import JournalBusyError, JournalFullError, ThresholdError
from store.live.flusher import Flusher
from store.live.queue_journal import QueueJournal
from store.live.rids import RecordIds
from store.log_lines import LogLine

MOST_AROUND_DATA: Final = FIXED_SIZE + BLOCK_SIZE - 1  # bytes of a record besides data and xid: header, tail, padding
_MOST_TURNS: Final = 10_000  # of making room; each frees a file or copies some pages


class Appender:
    """Appends records to journals.

    Args:
        ids: gives record ids.
        flusher: brings the journals onto the disk.
        log: takes lines for the log.
    """

    __slots__ = ("_dirty", "_flusher", "_ids", "_log")

    def __init__(self, ids: RecordIds, flusher: Flusher, log: Callable[[LogLine], None]) -> None:
        self._ids, self._flusher, self._log = ids, flusher, log
        self._dirty = flusher.dirty

    # ---- records outside of transactions ----

    def enqueue(self, journal: QueueJournal, parts: Sequence[bytes], size: int, crc: int) -> int:
        """Append a message.

        Args:
            journal: that of its queue.
            parts: its data.
            size: bytes of all parts.
            crc: their `data_crc`.

        Returns:
            Its record id.

        Raises:
            JournalFullError, JournalFailedError: nothing was appended. CatalogueError: likewise; no ids are left.
        """
        ids = self._ids
        rid = ids.next
        if rid >= ids.limit:
            ids.more()
            rid = ids.next
        ids.next = rid + 1
        try:
            journal.writer.enqueue(rid, parts, size, crc)
        except (JournalBusyError, JournalFullError):
            self.with_room(journal, lambda: journal.writer.enqueue(rid, parts, size, crc))
        except MemoryError:
            raise journal.out_of_memory() from None
        self._dirty[journal] = None
        journal.enqueues += 1
        journal.gathered += size + MOST_AROUND_DATA
        if journal.gathered > journal.bound:
            self._hold_back(journal)
        return rid

    def enqueue_all(self, journals: Sequence[QueueJournal], parts: Sequence[bytes], size: int, crc: int) -> list[int]:
        """Append a message to several queues, or to none of them. Otherwise as `enqueue`."""
        self.admit_all([(journal, partial(journal.writer.admit_enqueue, size)) for journal in journals])
        rids = [self._ids.take() for _ in journals]
        for journal, rid in zip(journals, rids, strict=True):
            try:
                journal.writer.enqueue(rid, parts, size, crc)
            except MemoryError:
                raise journal.out_of_memory() from None
            self._dirty[journal] = None
            journal.enqueues += 1
            journal.gathered += size + MOST_AROUND_DATA
        for journal in journals:
            if journal.gathered > journal.bound:
                self._hold_back(journal)
        return rids

    def dequeue(self, journal: QueueJournal, target: int) -> None:
        """Append the removal of a message.

        Raises:
            JournalError: there is no such message, or a transaction holds it. Or as `enqueue`.
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
            self.with_room(journal, lambda: journal.writer.dequeue(rid, target))
        except MemoryError:
            raise journal.out_of_memory() from None
        self._dirty[journal] = None
        journal.dequeues += 1
        journal.gathered += BLOCK_SIZE
        if journal.gathered > journal.bound:
            self._hold_back(journal)

    # ---- room ----

    def take_id(self) -> int:
        """A record id."""
        return self._ids.take()

    def touched(self, journal: QueueJournal, size: int = BLOCK_SIZE) -> None:
        """Something was appended to `journal` by somebody else: `size` bytes."""
        self._dirty[journal] = None
        journal.gathered += size
        if journal.gathered > journal.bound:
            self._hold_back(journal)

    def with_room(self, journal: QueueJournal, append: Callable[[], None]) -> None:
        """Do `append`, and if it finds no room, once there is some. Raises what it raises."""
        for _ in range(_MOST_TURNS):
            try:
                append()
                return
            except JournalBusyError:
                self._flusher.drain((journal,))
            except JournalFullError as error:
                self._tell_refusal(journal, error)
                raise
        raise JournalFullError(f'queue "{journal.name}": making room came to no end')

    def admit_all(self, admissions: Sequence[tuple[QueueJournal, Callable[[], None]]]) -> None:
        """Do each of the checks, so that all of them hold at one moment. Raises what they raise.

        A journal that is waited for goes on with what it has to do, and so do the others; then each is asked again.
        """
        for _ in range(_MOST_TURNS):
            for journal, admit in admissions:
                try:
                    admit()
                except JournalBusyError:
                    self._flusher.drain((journal,))
                    break
                except JournalFullError as error:
                    self._tell_refusal(journal, error)
                    raise
            else:
                return
        raise JournalFullError(f'queue "{admissions[0][0].name}": making room came to no end')

    def _tell_refusal(self, journal: QueueJournal, error: JournalFullError) -> None:
        """Log that a journal is full: once, until it has taken something again."""
        taken = journal.enqueues + journal.transaction_enqueues
        if journal.refused_at == taken:
            return
        journal.refused_at = taken
        is_full = not isinstance(error, ThresholdError)
        self._log(log_lines.journal_full(journal.name) if is_full else log_lines.threshold_exceeded(journal.name))

    def _hold_back(self, journal: QueueJournal) -> None:
        if journal.writer.unsynced > journal.bound:
            self._flusher.hold_back(journal)
        journal.gathered = journal.writer.unsynced
