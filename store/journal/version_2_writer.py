"""Writes a version-2 journal: a state machine that never waits for a disk.

    enqueue, dequeue, commit, abort    a record is placed in the flush that gathers, or refused whole
    next_flush() -> step               what to write and to sync now; one step is under way at a time
    flushed()                          the step is on the disk; with a flush's last step `synced` moves on
    failed(error)                      nothing may be assumed; the journal takes nothing more

How records become flushes is in `write_batch`, what may be written in `admission` and `space`, and how the ring is kept
from filling up in `compaction`. The methods here are what a queue does, one record each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from formats.checksum import extend_crc32c
from formats.rhm.geometry import BLOCK_SIZE
from formats.rhm.headers import BLOCK_SHIFT, FIXED_SIZE, FLAGS_SHIFT, HEADER_2, PADDINGS, ROUND_UP, record_blocks, word
from formats.rhm.records import COMMIT_DECISION, TAIL, Kind
from store.journal.admission import Admission
from store.journal.compaction import DEQUEUE, ENQUEUE
from store.journal.space import SIZE_BITS, SIZE_MASK
from store.journal.step import JournalError
from store.journal.writer_state import OpenTransaction

_COMMIT: Final = word(Kind.COMMIT, 2)
_ABORT: Final = word(Kind.ABORT, 2)
_DECISION: Final = COMMIT_DECISION << FLAGS_SHIFT
_DEQUEUE_PADDING: Final = PADDINGS[BLOCK_SIZE - FIXED_SIZE]


class Version2Writer(Admission):
    """The writer of one journal; the arguments and attributes are those of `Relocating`."""

    __slots__ = ()

    # ---- plain records: the hot path ----

    def enqueue(self, rid: int, parts: Sequence[bytes], size: int, crc: int) -> None:
        """Append a message outside of any transaction.

        Args:
            rid: a record id never used before.
            parts: the message's data, in parts.
            size: bytes of all parts.
            crc: their `data_crc`.

        Raises:
            JournalFullError, JournalBusyError, JournalFailedError: nothing was appended.
        """
        blocks = (size + ROUND_UP) >> BLOCK_SHIFT
        place = self._position
        end = place + blocks
        if end > self._enqueue_end or blocks >= self._room or blocks > self._space.largest:
            self._admit_enqueues(blocks, 1, blocks)
            self._append_kept(ENQUEUE, rid, b"", parts, size, crc)
            return
        pieces = self._pieces
        self._last = len(pieces)
        head = HEADER_2.pack(ENQUEUE, rid, 0, self._flush_number, size)
        pieces.append(head)
        pieces += parts
        crc = extend_crc32c(crc, head + self._salt)
        pieces.append(TAIL.pack(crc, rid) + PADDINGS[(blocks << BLOCK_SHIFT) - size - FIXED_SIZE])
        self._position = end
        self.live[rid] = place << SIZE_BITS | blocks
        self._new_in_file += 1
        self._undequeued += 1
        self._live_blocks += blocks
        self._room -= blocks + 1

    def dequeue(self, rid: int, target: int) -> None:
        """Append the removal of the message `target`, outside of any transaction.

        Raises:
            JournalError: there is no such message, or a transaction holds it. Or as `enqueue`.
        """
        packed = self.live.get(target)
        if packed is None or (self._locked and target in self._locked):
            raise self._not_to_dequeue(target)
        if self._position >= self._dequeue_end:
            self._admit_removal()
            self._append(DEQUEUE, rid, b"", target)
            self._drop(target, dequeues=1)
            self._set_ends()
            return
        pieces = self._pieces
        self._last = len(pieces)
        head = HEADER_2.pack(DEQUEUE, rid, 0, self._flush_number, target)
        pieces.append(head)
        pieces.append(TAIL.pack(extend_crc32c(0, head + self._salt), rid) + _DEQUEUE_PADDING)
        self._position += 1
        del self.live[target]
        self._removed.append(packed)
        blocks = packed & SIZE_MASK
        self._undequeued -= 1
        self._live_blocks -= blocks
        self._room += blocks + 1

    # ---- transactions ----

    def enqueue_in(self, xid: bytes, rid: int, parts: Sequence[bytes], size: int, crc: int) -> None:
        """Append a message that the transaction `xid` enqueues, and begin the transaction if it is not open."""
        blocks = record_blocks(size, len(xid))
        self._admit_enqueues(blocks, 1, blocks, 0 if xid in self.transactions else self._outcome_blocks(xid))
        self._begin(xid).enqueues[rid] = None
        self._locked[rid] = xid
        self._append_kept(ENQUEUE, rid, xid, parts, size, crc)

    def dequeue_in(self, xid: bytes, rid: int, target: int, *, commit_decision: bool = False) -> None:
        """Append the removal of `target` that the transaction `xid` does, and lock the message.

        Args:
            xid: the transaction, which is begun if it is not open.
            rid: a record id never used before.
            target: the message.
            commit_decision: in the transaction prepared list: the decision is to commit.
        """
        self.check_dequeue(target, xid)
        blocks = record_blocks(0, len(xid))
        self._admit_kept(blocks, 0, 0 if xid in self.transactions else self._outcome_blocks(xid), blocks, blocks)
        self._begin(xid).dequeues[target] = rid
        self._locked[target] = xid
        kind = DEQUEUE
        if commit_decision:
            kind |= _DECISION
            self.transactions[xid].commit_decisions.add(rid)
        self._keep(rid, blocks, self._append(kind, rid, xid, target))
        self._escorts += blocks
        self._set_ends()

    def check_dequeue(self, target: int, xid: bytes = b"") -> None:
        """Raise JournalError unless `target` is a message that `xid`, or without it anybody, may dequeue."""
        holder = self._locked.get(target)
        own = holder == xid and holder is not None and target not in self.transactions[xid].dequeues
        if target not in self.live or (holder is not None and not own):
            raise self._not_to_dequeue(target)

    def _not_to_dequeue(self, target: int) -> JournalError:
        title = self.identity.title
        if target in self._locked:
            return JournalError(f"{title}: record 0x{target:x} is held by an open transaction")
        return JournalError(f"{title}: there is no record 0x{target:x} to dequeue")

    def commit(self, xid: bytes, rid: int) -> None:
        """Append the commit of the open transaction `xid`: what it dequeued is gone, what it enqueued stays."""
        transaction = self._end(xid)
        self._append(_COMMIT, rid, xid, 0)
        for target, dequeue in transaction.dequeues.items():
            self._drop(target, dequeues=1)
            self._drop_dequeue(dequeue)
        self._set_ends()

    def abort(self, xid: bytes, rid: int) -> None:
        """Append the abort of the open transaction `xid`: what it enqueued is gone, what it dequeued stays."""
        transaction = self._end(xid)
        self._append(_ABORT, rid, xid, 0)
        for dequeue in transaction.dequeues.values():
            self._drop_dequeue(dequeue)
        for enqueue in transaction.enqueues:
            self._drop(enqueue, dequeues=1)
        self._set_ends()

    def _begin(self, xid: bytes) -> OpenTransaction:
        transaction = self.transactions.get(xid)
        if transaction is None:
            transaction = self.transactions[xid] = OpenTransaction(xid)
            self._outcomes += self._outcome_blocks(xid)
            self._room -= self._outcome_blocks(xid)
        return transaction

    def _end(self, xid: bytes) -> OpenTransaction:
        if xid not in self.transactions:
            raise JournalError(f"{self.identity.title}: no transaction {xid.hex()} is open")
        self._admit_removal(record_blocks(0, len(xid)))
        transaction = self.transactions.pop(xid)
        self._outcomes -= self._outcome_blocks(xid)
        self._room += self._outcome_blocks(xid)
        for target in (*transaction.dequeues, *transaction.enqueues):
            self._locked.pop(target, None)
        return transaction

    def _append_kept(self, kind: int, rid: int, xid: bytes, parts: Sequence[bytes], size: int, crc: int) -> None:
        place = self._append(kind, rid, xid, size, parts, size, crc)
        self._keep(rid, record_blocks(size, len(xid)), place)
        self._undequeued += 1
        self._room -= 1
        self._set_ends()
