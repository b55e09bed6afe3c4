"""Whether a record may be written to a version-2 journal: the rules of `space`, applied.

Most plain records need not ask. `_set_ends` works out up to which place in the present file enqueues and dequeues may
be appended, whatever they are, and is called when anything changes that it depends on; a record that would go beyond
takes the long way, through `_admit_kept` or `_admit_removal`.
"""

from __future__ import annotations

from collections.abc import Sequence

from formats.rhm.geometry import BLOCK_SIZE, PAGE_SIZE
from formats.rhm.headers import record_blocks
from store.journal.compaction import Relocating
from store.journal.space import MAX_BLOCKS
from store.journal.step import JournalBusyError, JournalFailedError, JournalFullError, ThresholdError, over_threshold


class Admission(Relocating):
    """The live records of one journal, and what may be added."""

    __slots__ = ("_dequeue_end", "_enqueue_end")

    _enqueue_end: int
    _dequeue_end: int

    def _count_state(self) -> None:
        super()._count_state()
        self._stop()  # the first record takes the long way

    def admit_enqueue(self, size: int) -> None:
        """Check that a message of `size` bytes fits, before it is written to any of its queues. Raises as `enqueue`."""
        blocks = record_blocks(size)
        self._admit_enqueues(blocks, 1, blocks)

    def admit_transaction(self, xid: bytes, sizes: Sequence[int], dequeues: int) -> None:
        """Check that all records of a transaction and its outcome fit, before any of them is written anywhere.

        Args:
            xid: the transaction, which is not open.
            sizes: bytes of data of each message that it enqueues.
            dequeues: how many messages it dequeues.

        Raises:
            JournalFullError, JournalBusyError, JournalFailedError: they do not fit, or not now.
        """
        enqueues = [record_blocks(size, len(xid)) for size in sizes]
        dequeue = record_blocks(0, len(xid))
        blocks = sum(enqueues) + dequeues * dequeue
        largest = max(enqueues, default=dequeue)
        if enqueues:
            self._admit_enqueues(blocks, len(enqueues), largest, self._outcome_blocks(xid), dequeues * dequeue)
        else:
            self._admit_kept(blocks, 0, self._outcome_blocks(xid), largest, blocks)

    def _admit_enqueues(self, blocks: int, count: int, largest: int, outcome: int = 0, escorts: int = 0) -> None:
        """The first rule of `space`, then the others. Raises as `enqueue`."""
        if self.failure is not None:
            raise JournalFailedError(str(self.failure))
        if largest > MAX_BLOCKS:
            raise ThresholdError(f"{self.identity.title}: a record of {largest} blocks is more than {MAX_BLOCKS}")
        if blocks + count + outcome > self._room:
            raise self._over_threshold()
        self._admit_kept(blocks, count, outcome, largest, escorts)

    def _over_threshold(self) -> ThresholdError:
        return over_threshold(self.identity.title, self._files, self._file * BLOCK_SIZE // PAGE_SIZE)

    def _admit_kept(self, blocks: int, count: int, outcome: int, largest: int, escorts: int) -> None:
        """The second and third rule: room for `blocks` that stay: `count` messages, dequeues of `escorts` blocks."""
        self._make_ready()
        space = self._space
        kept = blocks + space.reserve if count else blocks
        free = self._free() - kept
        messages, outcomes = self._undequeued + count, self._outcomes + outcome
        if not space.drains(free, messages, outcomes):
            largest, escorts = max(space.largest, largest), self._escorts + escorts
            wanted = space.compaction_needs(largest, escorts)
            if not space.compacts(self._live_blocks + kept, largest, escorts):
                wanted = space.draining_needs(messages, outcomes)
            if free < wanted:
                if space.break_pins(self.unsynced_place):
                    self._admit_kept(blocks, count, outcome, largest, escorts)
                    return
                raise self._busy(kept + wanted) if self._can_progress() else self._over_threshold()
        space.largest = max(space.largest, largest)

    def _admit_removal(self, blocks: int = 1) -> None:
        """Room for a dequeue or an outcome: there is some by the rules that enqueues keep, perhaps after compaction."""
        self._make_ready()
        space = self._space
        free = self._free()
        half = space.margin // 2
        needs = space.compaction_needs(space.largest, self._escorts)
        if free < needs - half and not space.drains(free + half, self._undequeued, self._outcomes):
            if space.break_pins(self.unsynced_place):
                self._admit_removal(blocks)
                return
            if self._can_progress():
                raise self._busy(min(needs, space.draining_needs(self._undequeued, self._outcomes)))
            if free < blocks:
                raise JournalFullError(f"Journal full on {self.identity.title}.")

    def _make_ready(self) -> None:
        if self.failure is not None:
            raise JournalFailedError(str(self.failure))
        if not self._has_room():
            raise JournalFullError(f"Journal full on {self.identity.title}.")
        self._take_up()
        while self._overtaken:
            self._copy_dequeue(self._overtaken.pop())

    def _can_progress(self) -> bool:
        return self.is_dirty or self._can_relocate()

    def _busy(self, wanted: int) -> JournalBusyError:
        self._wait_for(wanted)
        return JournalBusyError(f"{self.identity.title}: no room before what was gathered is flushed")

    def _set_ends(self) -> None:
        """Up to where plain records may be appended without asking: within the file, whatever they are."""
        space = self._space
        rest = self._file_end - self._position
        free = self._free()
        if space.drains(free - space.reserve - rest, self._undequeued + rest, self._outcomes):
            self._enqueue_end = self._dequeue_end = self._file_end
            return
        end = space.end - space.compaction_needs(space.largest, self._escorts) - space.flush
        if space.compacts(self._live_blocks + rest + space.reserve, space.largest, self._escorts):
            self._enqueue_end = min(self._file_end, end - space.reserve)
            self._dequeue_end = min(self._file_end, end + space.margin // 2)
            return
        self._enqueue_end = -1
        drains = space.drains(free, self._undequeued, self._outcomes)
        self._dequeue_end = self._file_end if drains else -1

    def _stop(self) -> None:
        self._enqueue_end = self._dequeue_end = -1
