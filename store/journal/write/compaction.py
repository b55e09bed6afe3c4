"""Compaction of a version-2 journal: live records of the oldest file are copied to the end, which frees the file.

A message is copied with the flag "moved", and behind it, if an open transaction would dequeue it, that dequeue. A copy
has the record id of its original, and is written as the message is by then: one whose transaction is committed belongs
to none any more. A message is read back for that, and verified; a journal in which one cannot be read fails, and says
which.

    in passing      each flush takes some copies along, from when free space gets short until the oldest file is empty
    full turn       where a record waits for room, flushes are made for nothing else, until there is enough or every
                    file was the oldest once; if that did not bring enough, not again before something is dequeued

Prefix safety: the ring is overwritten from its oldest file on, so at any time some beginning of the stream is missing.
Nothing comes back to life by that, because what removes a record always stands behind it: a dequeue behind the
enqueue, a commit behind the transaction's records, and the copy of a transactional dequeue behind that of its message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from formats.checksum import extend_crc32c
from formats.rhm.errors import RhmError
from formats.rhm.geometry import BLOCK_SIZE
from formats.rhm.headers import record_blocks, word
from formats.rhm.records import COMMIT_DECISION, MOVED, Kind, decode_record
from store.journal.write.flushes import FlushQueue
from store.journal.write.live_records import LiveRecords
from store.journal.write.space import SIZE_BITS, SIZE_MASK, RingSpace
from store.journal.write.write_batch import WriteBatch

_ENQUEUE: Final = word(Kind.ENQUEUE, 2, MOVED)
_DEQUEUE: Final = word(Kind.DEQUEUE, 2, MOVED)
_DEQUEUE_TO_COMMIT: Final = word(Kind.DEQUEUE, 2, MOVED | COMMIT_DECISION)
_MIN_PAGES: Final = 4  # copied by one flush, at least
MAX_COPIED_BLOCKS: Final = 8192  # copied by a flush that is made for nothing else: 1 MiB


def blocks_in_passing(page: int) -> int:
    """Blocks that a flush copies at least, where pages of so many bytes are written."""
    return _MIN_PAGES * page // BLOCK_SIZE


class Compactor:
    """Copies the oldest file's live records forward.

    Args:
        batch: takes the copies.
        flushes: knows what is on the disk, and can be read back.
        space: what is held, and how much is free.
        records: what is live.
        read: gives bytes of the stream: (block, number of bytes).
        in_passing: blocks that a flush copies at least.
        chunk: blocks that one copies that is made for nothing else.

    Attributes:
        copied: messages that were copied so far.
    """

    __slots__ = (
        "_batch",
        "_chunk",
        "_flushes",
        "_in_passing",
        "_next_held",
        "_oldest",
        "_overtaken",
        "_read",
        "_records",
        "_space",
        "_spent",
        "_to_copy",
        "_to_copy_blocks",
        "_turn_end",
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
        self._wanted = 0  # free blocks that somebody waits for
        self._turn_end = 0  # until this file is the oldest, when a full turn is made
        self._spent = 0  # live blocks with which a full turn did not bring what was wanted
        self._oldest = (
            self._next_held
        ) = -1  # the file that `_to_copy` is about, and the first with live records after it
        self._to_copy: deque[int] = deque()
        self._to_copy_blocks = 0
        live = records.live
        # A crash can come between the copy of a message and that of its dequeue: it is locked and stands behind that.
        self._overtaken = [
            target
            for transaction in records.transactions.values()
            for target, escort in transaction.dequeues.items()
            if live[escort] < live[target]
        ]

    # ---- when ----

    def wait_for(self, wanted: int) -> None:
        """Flushes are made, for nothing but copies too, until so many blocks are free, or for one full turn."""
        if not self._wanted:
            self._turn_end = self._batch.position // self._space.file
        self._wanted = max(self._wanted, wanted)

    def before_flush(self) -> bool:
        """A flush is about to be taken: copy what it should take along. Returns whether that was anything.

        Raises:
            RhmError, OSError: a record that has to be copied cannot be read. The journal is of no use any more.
        """
        batch = self._batch
        if self._wanted:
            budget = self._chunk
        elif batch.pieces and self._runs_short():
            budget = max(self._in_passing, 2 * (batch.position - batch.start))
        else:
            return False
        return self._copy_oldest(budget)

    def after_flush(self) -> None:
        """A flush is on the disk, and what it removed is let go of."""
        if not self._wanted:
            return
        if self._space.free(self._batch.position) >= self._wanted:
            self._wanted = 0
        elif self._space.oldest > self._turn_end:
            self._wanted, self._spent = 0, self._records.blocks

    def after_restart(self) -> None:
        """Copy the dequeues that a crash left before the copies of their messages."""
        for target in self._overtaken:
            self._copy_escort(target)
        self._overtaken.clear()

    def _runs_short(self) -> bool:
        """Whether compaction had better begin, so that nobody has to wait for it.

        Not where it is not sure to go through: half a file copied would only take the room of dequeues.
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
        """Whether the oldest file's live records can be copied to the end, and it makes sense to free the file so."""
        if self._batch.needs_restart or self._space.oldest >= self._flushes.synced_place // self._space.file:
            return False
        if 0 < self._spent <= self._records.blocks:
            return False
        self._spent = 0
        self._list_oldest()
        if self._is_worthwhile():
            return True
        self._to_copy_blocks = sum(map(self._blocks_copied, self._to_copy))  # some are no longer live
        return self._is_worthwhile()

    def _is_worthwhile(self) -> bool:
        space, records, blocks = self._space, self._records, self._to_copy_blocks
        padding = (blocks // self._chunk + 2) * space.flush
        gains = (self._next_held - space.oldest) * space.file - blocks > padding
        compacts = gains or space.compacts(records.blocks, records.largest, records.escorts)
        return compacts and blocks + padding <= space.free(self._batch.position) + space.flush

    # ---- what ----

    def _list_oldest(self) -> None:
        """List what is in the oldest file. The records in `live` are in order of place."""
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
        self._to_copy_blocks = sum(map(self._blocks_copied, self._to_copy))

    def _blocks_copied(self, rid: int) -> int:
        """Blocks that are written when a record is copied out of the oldest file; 0 if it is not there any more."""
        if not self._is_in_oldest(rid):
            return 0
        live, escort = self._records.live, self._records.escort_of(rid)
        return (live[rid] & SIZE_MASK) + (0 if escort is None else live[escort] & SIZE_MASK)

    def _is_in_oldest(self, rid: int) -> bool:
        packed = self._records.live.get(rid)
        return packed is not None and (packed >> SIZE_BITS) // self._space.file == self._space.oldest

    # ---- copies ----

    def _copy_oldest(self, budget: int) -> bool:
        """Copy so many blocks of the oldest file's live records to the end, or all that are left."""
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
        """Copy one live message to the end. A dequeue goes with its message."""
        records = self._records
        place, blocks = records.live[rid] >> SIZE_BITS, records.live[rid] & SIZE_MASK
        salt = self._batch.salts[place // self._space.file]
        header, xid, data = decode_record(self._read(place, blocks * BLOCK_SIZE), salt=salt)
        if header.rid != rid or header.kind is not Kind.ENQUEUE:
            raise RhmError(f"{header.kind.label} record 0x{header.rid:x} where message 0x{rid:x} should be")
        if xid not in records.transactions or rid not in records.transactions[xid].enqueues:
            xid = b""  # the transaction is committed
        size = len(data)
        new = self._batch.append(_ENQUEUE, rid, xid, size, (data,), size, extend_crc32c(0, data))
        records.moved(rid, new, record_blocks(size, len(xid)))
        self.copied += 1

    def _copy_escort(self, target: int) -> None:
        """Copy the dequeue of a message that was copied, if an open transaction has one."""
        records = self._records
        escort = records.escort_of(target)
        if escort is None:
            return
        xid = records.locked[target]
        commits = escort in records.transactions[xid].commit_decisions
        new = self._batch.append(_DEQUEUE_TO_COMMIT if commits else _DEQUEUE, escort, xid, target)
        records.moved(escort, new, record_blocks(0, len(xid)))
