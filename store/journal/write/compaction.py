"""Compaction of a version-2 journal: live records of the oldest file are copied to the end, which frees the file.

A message is copied with the flag "moved", followed, if an open transaction would dequeue it, by that dequeue. A copy
has the record id of its original and the message's current state: without an xid if the transaction is committed. To be
copied, a message is read back and verified; if it cannot be read, the journal fails, and the error names the message.

    in passing      each flush carries some copies, from when free space gets short until the oldest file is empty
    full pass       while a record waits for room, flushes are made only for copies, until there is enough room or every
                    file was the oldest once; if that does not free enough, it is not repeated before a dequeue

Prefix safety: the ring is overwritten from its oldest file on, so at any time some prefix of the stream is missing. No
message reappears because of that, since every record precedes its removal: an enqueue precedes the dequeue, a
transaction's records precede the commit, and the copy of a message precedes the copy of its transactional dequeue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from qstore.formats.checksum import extend_crc32c
from qstore.formats.errors import RhmError
from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.rhm.headers import record_blocks, word
from qstore.formats.rhm.records import COMMIT_DECISION, COMPRESSED, MOVED, Kind, decode_record
from qstore.store.journal.write.flushes import FlushQueue, WriteBatch
from qstore.store.journal.write.live_records import LiveRecords
from qstore.store.journal.write.space import SIZE_BITS, SIZE_MASK, RingSpace

_ENQUEUE: Final = word(Kind.ENQUEUE, 2, MOVED)
_COMPRESSED: Final = word(Kind.ENQUEUE, 2, MOVED | COMPRESSED)
_DEQUEUE: Final = word(Kind.DEQUEUE, 2, MOVED)
_DEQUEUE_TO_COMMIT: Final = word(Kind.DEQUEUE, 2, MOVED | COMMIT_DECISION)
_MIN_PAGES: Final = 4  # minimum copied by one flush
_MAX_PAGE: Final = 1 << 20  # bytes of a page that count: what is copied must have room in the ring
MAX_COPIED_BLOCKS: Final = 8192  # copied by a flush made only for copies: 1 MiB


def blocks_in_passing(page: int) -> int:
    """Minimum blocks that a flush copies if pages of `page` bytes are written."""
    return _MIN_PAGES * min(page, _MAX_PAGE) // BLOCK_SIZE


class Compactor:
    """Copies the oldest file's live records forward.

    Args:
        batch: receives the copies.
        flushes: the flushes that are synced or under way, which can be read back.
        space: the held files, and the free space.
        records: the live records.
        read: reads bytes of the stream: (block, number of bytes).
        in_passing: minimum blocks that a flush copies.
        chunk: blocks copied by a flush made only for copies.

    Attributes:
        copied: messages copied so far.
    """

    __slots__ = (
        "_batch",
        "_chunk",
        "_counted_at",
        "_counted_live",
        "_flushes",
        "_in_passing",
        "_next_held",
        "_oldest",
        "_overtaken",
        "_pass_end",
        "_read",
        "_records",
        "_space",
        "_spent",
        "_to_copy",
        "_to_copy_blocks",
        "_wanted",
        "copied",
    )

    def __init__(
        self,
        batch: WriteBatch,
        flushes: FlushQueue,
        space: RingSpace,
        records: LiveRecords,
        read: Callable[[int, int], bytes],
        *,
        in_passing: int,
        chunk: int,
    ) -> None:
        self._batch, self._flushes, self._space, self._records = batch, flushes, space, records
        self._read, self._in_passing, self._chunk = read, in_passing, chunk
        self.copied = 0
        self._wanted = 0  # free blocks that a record waits for
        self._pass_end = 0  # a full pass ends when this file is the oldest
        self._spent = 0  # live blocks when a full pass did not free enough
        self._oldest = -1  # the file that `_to_copy` is about
        self._next_held = -1  # the first file after it that holds live records
        self._to_copy: deque[int] = deque()
        self._to_copy_blocks = 0
        self._counted_at = self._counted_live = 0  # the position, and the live blocks, when these were counted
        live = records.live
        # After a crash between the copies of a message and of its dequeue, the former follows the original dequeue.
        self._overtaken = [
            target
            for transaction in records.transactions.values()
            for target, escort in transaction.dequeues.items()
            if live[escort] < (records.where(target) or 0)
        ]

    # ---- when ----

    def wait_for(self, wanted: int) -> None:
        """Make flushes, even only for copies, until `wanted` blocks are free, or for one full pass."""
        if not self._wanted:
            self._pass_end = self._batch.position // self._space.file
        self._wanted = max(self._wanted, wanted)

    def before_flush(self) -> bool:
        """Copy the records that the next flush should carry, before it is taken. Returns whether there were any.

        Raises:
            RhmError, OSError: a record to be copied cannot be read. The journal must fail.
        """
        batch = self._batch
        if self._wanted:
            budget = self._chunk
        elif not batch.records.is_empty and self._runs_short():
            budget = max(self._in_passing, 2 * (batch.position - batch.start))
        else:
            return False
        return self._copy_oldest(budget)

    def after_flush(self) -> None:
        """Update the state after a flush is synced, and the records that it removed are released."""
        if not self._wanted:
            return
        if self._space.free(self._batch.position) >= self._wanted:
            self._wanted = 0
        elif self._space.oldest > self._pass_end:
            self._wanted, self._spent = 0, self._records.blocks

    def after_restart(self) -> None:
        """Copy the dequeues that a crash left before the copies of their messages."""
        for target in self._overtaken:
            self._copy_escort(target)
        self._overtaken.clear()

    def _runs_short(self) -> bool:
        """Whether compaction should begin, before a record has to wait for it.

        Not if it might not complete: a half-copied file would only use up room for dequeues.
        """
        space, records = self._space, self._records
        free = space.free(self._batch.position)
        needs = space.compaction_needs(records.largest, records.escorts)
        return (
            needs - space.margin <= free < needs + space.file // 2
            and not space.drains(free - space.file, records.messages, records.outcomes)
            and space.compacts(records.blocks, records.largest, records.escorts)
        )

    def can_copy(self) -> bool:
        """Whether the oldest file's live records can be copied to the end, and freeing the file that way is useful."""
        if self._batch.needs_restart or self._space.oldest >= self._flushes.synced_place // self._space.file:
            return False
        if 0 < self._spent <= self._records.blocks:
            return False
        self._spent = 0
        self._records.remove_all_left()
        self._list_oldest()
        if self._is_worthwhile(self._to_copy_blocks):
            return True
        # Some may have been removed since they were counted, but no more blocks than all that were. Counting takes
        # long, and is asked for again and again while a record waits for room.
        removed = self._counted_live + self._batch.position - self._counted_at - self._records.blocks
        if removed <= 0 or not self._is_worthwhile(max(0, self._to_copy_blocks - removed)):
            return False
        self._count()
        return self._is_worthwhile(self._to_copy_blocks)

    def _is_worthwhile(self, blocks: int) -> bool:
        """Whether copying that many blocks is useful, and frees the oldest file."""
        space, records = self._space, self._records
        padding = (blocks // self._chunk + 2) * space.flush
        gains = (self._next_held - space.oldest) * space.file - blocks > padding
        compacts = gains or space.compacts(records.blocks, records.largest, records.escorts)
        return compacts and blocks + padding <= space.free(self._batch.position) + space.flush

    # ---- what ----

    def _list_oldest(self) -> None:
        """List the records in the oldest file, in log order. Those in `live` are in that order."""
        space, live = self._space, self._records.live
        if self._oldest == space.oldest:
            return
        self._oldest = space.oldest
        end = (self._oldest + 1) * space.file
        self._to_copy.clear()
        self._next_held = self._flushes.synced_place // space.file
        for rid, packed in live.items():
            if packed >> SIZE_BITS >= end:
                self._next_held = min(self._next_held, (packed >> SIZE_BITS) // space.file)
                break
            self._to_copy.append(rid)
        if self._records.resting:
            found, following = self._records.resting.before(end)
            if found:
                found += [(live[rid] >> SIZE_BITS, rid) for rid in self._to_copy]
                self._to_copy = deque(rid for _, rid in sorted(found))
            if following >= 0:
                self._next_held = min(self._next_held, following // space.file)
        self._count()

    def _count(self) -> None:
        """Count the blocks to be copied out of the oldest file."""
        self._to_copy_blocks = sum(map(self._blocks_copied, self._to_copy))
        self._counted_at, self._counted_live = self._batch.position, self._records.blocks

    def _blocks_copied(self, rid: int) -> int:
        """Blocks written when a record is copied out of the oldest file; 0 if it is no longer there."""
        if not self._is_in_oldest(rid):
            return 0
        packed, escort = self._records.where(rid), self._records.escort_of(rid)
        assert packed is not None
        return (packed & SIZE_MASK) + (0 if escort is None else self._records.live[escort] & SIZE_MASK)

    def _is_in_oldest(self, rid: int) -> bool:
        packed = self._records.where(rid)
        return packed is not None and (packed >> SIZE_BITS) // self._space.file == self._space.oldest

    # ---- copies ----

    def _copy_oldest(self, budget: int) -> bool:
        """Copy up to `budget` blocks of the oldest file's live records to the end."""
        if not self.can_copy():
            return False
        batch = self._batch
        end = batch.position + budget
        while self._to_copy and batch.position < end:
            rid = self._to_copy.popleft()
            self._to_copy_blocks -= min(self._to_copy_blocks, self._blocks_copied(rid))
            if self._is_in_oldest(rid):
                self._copy(rid)
                self._copy_escort(rid)
        return True

    def _copy(self, rid: int) -> None:
        """Copy one live message to the end, with its dequeue if it has one."""
        records = self._records
        packed = records.where(rid)
        assert packed is not None
        place, blocks = packed >> SIZE_BITS, packed & SIZE_MASK
        salt = self._batch.salts[place // self._space.file]
        header, xid, data = decode_record(self._read(place, blocks * BLOCK_SIZE), salt=salt)
        if header.rid != rid or header.kind is not Kind.ENQUEUE:
            raise RhmError(f"{header.kind.label} record 0x{header.rid:x} found instead of message 0x{rid:x}")
        if not records.is_enqueued_by(xid, rid):
            xid = b""  # the transaction is committed
        size = len(data)
        first = _COMPRESSED if header.flags & COMPRESSED else _ENQUEUE
        new = self._batch.append(first, rid, xid, size, (data,), size, extend_crc32c(0, data))
        records.moved(rid, new, record_blocks(size, len(xid)))
        self.copied += 1

    def _copy_escort(self, target: int) -> None:
        """Copy the dequeue of a message that was copied, if an open transaction has dequeued it."""
        records = self._records
        escort = records.escort_of(target)
        if escort is None:
            return
        xid = records.locked[target]
        commits = escort in records.transactions[xid].commit_decisions
        new = self._batch.append(_DEQUEUE_TO_COMMIT if commits else _DEQUEUE, escort, xid, target)
        records.moved(escort, new, record_blocks(0, len(xid)))
