"""Decides whether a record may be written to a version-2 journal, by the rules of `space`.

Most plain records need no check. `ends` calculates the end of the stretch in the current file to which enqueues and
dequeues may be appended unconditionally; a record that would pass it uses the other methods, the slow path. Each of
them accepts a record, or raises:

    JournalFullError    there is no room, and none will be until messages are dequeued
    JournalPinnedError  there is none but by breaking a pin, and the journal can grow
    JournalBusyError    there will be room after the write batch is flushed; compaction was told how much is needed
"""

from __future__ import annotations

from typing import Final

from qstore.formats.rhm.geometry import BLOCK_SIZE, PAGE_SIZE
from qstore.store.journal.write.compaction import Compactor
from qstore.store.journal.write.flushes import FlushQueue
from qstore.store.journal.write.live_records import LiveRecords
from qstore.store.journal.write.space import MAX_BLOCKS, RingSpace
from qstore.store.journal.write.step import (
    JournalBusyError,
    JournalFullError,
    JournalPinnedError,
    RecordTooLongError,
    ThresholdError,
    over_threshold,
)
from qstore.store.journal.write.write_batch import WriteBatch

#: A result of `Admission.ends`: no plain record may be appended without a check.
NOWHERE: Final = (-1, -1)


class Admission:
    """Decides which records one journal accepts.

    Args:
        title: the journal's name in errors.
        batch, flushes, space, records, compactor: the journal's.
    """

    __slots__ = ("_batch", "_compactor", "_flushes", "_records", "_space", "_title")

    def __init__(
        self,
        title: str,
        batch: WriteBatch,
        flushes: FlushQueue,
        space: RingSpace,
        records: LiveRecords,
        compactor: Compactor,
    ) -> None:
        self._title, self._batch, self._flushes = title, batch, flushes
        self._space, self._records, self._compactor = space, records, compactor

    def threshold(self, blocks: int, count: int, largest: int, outcome: int) -> None:
        """Check the first rule of `space` for `count` messages of `blocks` in all, and for their outcome."""
        if largest > MAX_BLOCKS:
            raise RecordTooLongError(f"{self._title}: a record of {largest} blocks is more than {MAX_BLOCKS}")
        if blocks + count + outcome > self._records.room:
            raise self._over_threshold()

    def kept(self, blocks: int, count: int, outcome: int, largest: int, escorts: int) -> None:
        """Check the other rules for `blocks` that stay: `count` messages, and dequeues of `escorts` blocks."""
        space, records, position = self._space, self._records, self._batch.position
        kept = blocks + space.reserve if count else blocks
        messages, outcomes = records.messages + count, records.outcomes + outcome
        longest, escorts = max(records.largest, largest), records.escorts + escorts
        while not space.drains(free := space.free(position) - kept, messages, outcomes):
            wanted = space.compaction_needs(longest, escorts)
            if not space.compacts(records.blocks + kept, longest, escorts):
                wanted = space.draining_needs(messages, outcomes)
            if free >= wanted:
                break
            if not self._break_pins():
                raise self._busy(kept + wanted) if self._can_progress() else self._over_threshold()
        records.largest = longest

    def removal(self, blocks: int = 1) -> None:
        """Check the room for a dequeue or an outcome: enqueues leave it free, though perhaps only after compaction."""
        space, records, position = self._space, self._records, self._batch.position
        half = space.margin // 2
        needs = space.compaction_needs(records.largest, records.escorts)
        while (free := space.free(position)) < needs - half:
            if space.drains(free + half, records.messages, records.outcomes):
                return
            if self._break_pins():
                continue
            if self._can_progress():
                raise self._busy(min(needs, space.draining_needs(records.messages, records.outcomes)))
            if free < blocks:
                raise JournalFullError(f"Journal full on {self._title}.")
            return

    def _break_pins(self) -> bool:
        """Break the pins that are in the way. Returns whether there is more room. Raises JournalPinnedError."""
        space, synced = self._space, self._flushes.synced_place
        if space.spares_pins and space.is_held_by_pins(synced):
            raise JournalPinnedError(f"{self._title}: no room until a snapshot is released, or there are more files")
        return space.break_pins(synced)

    def _can_progress(self) -> bool:
        return not self._batch.records.is_empty or not self._flushes.is_empty or self._compactor.can_copy()

    def _busy(self, wanted: int) -> JournalBusyError:
        self._compactor.wait_for(wanted)
        return JournalBusyError(f"{self._title}: no room until the write batch is flushed")

    def _over_threshold(self) -> ThresholdError:
        return over_threshold(self._title, self._space.files, self._space.file * BLOCK_SIZE // PAGE_SIZE)

    def ends(self) -> tuple[int, int]:
        """How far plain records may be appended without a check: within the current file, unconditionally.

        Returns:
            The log offset that the end of an enqueue may not pass, and the one before which a dequeue must begin; -1
            for none.
        """
        space, records, position, file_end = self._space, self._records, self._batch.position, self._batch.file_end
        rest = file_end - position
        free, messages = space.free(position), records.messages
        if space.drains(free - space.reserve - rest, messages + rest, records.outcomes):
            return file_end, file_end
        end = space.end - space.compaction_needs(records.largest, records.escorts) - space.flush
        if space.compacts(records.blocks + rest + space.reserve, records.largest, records.escorts):
            return min(file_end, end - space.reserve), min(file_end, end + space.margin // 2)
        return -1, file_end if space.drains(free, messages, records.outcomes) else -1
