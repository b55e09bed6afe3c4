"""Writes a version-2 journal: a state machine that never waits for a disk.

    enqueue, dequeue, commit, abort    a record is added to the write batch, or refused as a whole
    next_flush() -> step               writes and syncs to do now; one step is under way at a time
    flushed()                          the step is synced; with a flush's last step `synced` advances
    failed(error)                      the outcome is unknown; the journal accepts nothing more

The writer consists of parts, each of which knows only those above it:

    batch        `flushes`         the records of the next flush: bytes, log offsets, files
    flushes      `flushes`         the closed flushes, written to disk step by step
    space        `space`           the held files of the ring, and the rules for accepting records
    records      `live_records`    live records, open transactions, and their size
    compactor    `compaction`      copies the oldest live records forward, so that the ring does not fill up

A record is admitted by the rules of `space`, appended to the batch, and noted in the records. If it is refused, the
error says whether to wait:

    JournalFullError    there is no room, and none will be until messages are dequeued
    JournalPinnedError  there is room only if a pin is broken, but the journal can grow
    JournalBusyError    there will be room after the write batch is flushed; compaction knows how much is needed

Most plain records need no check. They take a fast path: they are appended inline, as long as they end before a log
offset up to which every one is admitted. That offset is recalculated (`_set_ends`) when anything that it depends on
changes. A record that would pass it takes the slow path. A run of messages, and dequeues of messages with
consecutive record ids, are appended at once, as far as the fast path goes; a record at its end is one by itself.

A flush is closed when the previous one is synced; meanwhile records collect in the batch. It may carry copies of old
records, and none is issued that would overwrite anything live.

`state_of` converts a recovered journal to the state in which `open_writer` resumes it. Recovery counts bytes from the
beginning of the oldest file; the writer counts blocks through the endless stream of all laps. The lap number matters
only for the overwrite indicator: its parity.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final

from qstore.formats.errors import RhmError
from qstore.formats.kernels import place_records
from qstore.formats.kernels.bodies import Bodies, SizeField
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.geometry import BLOCK_SIZE, PAGE_SIZE, Geometry
from qstore.formats.rhm.headers import BLOCK_SHIFT, FIXED_SIZE, ROUND_UP, data_crc, record_blocks, word
from qstore.formats.rhm.records import COMMIT_DECISION, MAX_HEADER_SIZE, TAIL_SIZE, Kind, RecordHeader, decode_header
from qstore.store.errors import (
    JournalBusyError,
    JournalError,
    JournalFailedError,
    JournalFullError,
    JournalPinnedError,
    RecordTooLongError,
    ThresholdError,
)
from qstore.store.journal.journal import Journal
from qstore.store.journal.reader import JournalEnd
from qstore.store.journal.recovery import JournalRecovery
from qstore.store.journal.ring.files import Ring, RingFile
from qstore.store.journal.write.compaction import MAX_COPIED_BLOCKS, Compactor, blocks_in_passing
from qstore.store.journal.write.flushes import (
    PLAIN_MESSAGE,
    Flush,
    FlushQueue,
    JournalOwner,
    MessageData,
    Step,
    WriteBatch,
    transaction_blocks,
)
from qstore.store.journal.write.growth import RingGrowth
from qstore.store.journal.write.live_records import (
    MAX_CHUNK,
    LiveRecords,
    OpenTransaction,
    RestingRecords,
    runs_of,
)
from qstore.store.journal.write.space import MAX_BLOCKS, SIZE_BITS, SIZE_MASK, Cut, FileRing, RingSpace, over_threshold

_DEQUEUE: Final = word(Kind.DEQUEUE, 2)
_DEQUEUE_TO_COMMIT: Final = word(Kind.DEQUEUE, 2, COMMIT_DECISION)
_COMMIT: Final = word(Kind.COMMIT, 2)
_ABORT: Final = word(Kind.ABORT, 2)
_DEQUEUE_PADDING: Final = BLOCK_SIZE - FIXED_SIZE

_MIN_DEQUEUES: Final = 8  # least messages to be dequeued at once: fewer are as fast one by one (`bench_runs`)
_SHORT: Final = 256  # a record has at most this fraction (1/256) of a file: its length counts on an empty journal, too,
# so that one like it takes the fast path: 27 of 380 calls for a lone message (`bench_walk`)
_NOWHERE: Final = -1  # as an end of the fast path: every record takes the slow one


class WriterState(NamedTuple):
    """The content of a journal when its writer resumes it.

    Attributes:
        position: block of the endless stream where it ended; 0 for a new one.
        flush: the highest flush number found anywhere in it; 0 for a new one.
        last_flush: number of its last complete flush: lower, if later ones were torn, or left only file headers; 0 if
            it has no record but fillers.
        is_sealed: whether that was the seal of a clean close.
        salts: file, counted over all laps -> its salt.
        slots: file number -> the slot of its header in its sector.
        live: record id -> log offset and blocks, packed, of every live record in log order, including those of open
            transactions and their dequeues.
        transactions: xid -> the open transaction.
        wasted: number of files after the current one that a torn flush had entered.
        origin: the first file of the ring in the lap of the current one, counted over all laps.
        lap: the overwrite indicator of that lap.
        resting: live records that are not in `live`; None for none.
    """

    position: int
    flush: int
    last_flush: int
    is_sealed: bool
    salts: dict[int, int]
    slots: dict[int, int]
    live: dict[int, int]
    transactions: dict[bytes, OpenTransaction]
    wasted: int = 0
    origin: int = 0
    lap: int = 0
    resting: RestingRecords | None = None


def new_state() -> WriterState:
    """The state of a newly created journal."""
    return WriterState(0, 0, 0, False, {}, {}, {}, {})


class Version2Writer:
    """The writer of one journal; `open_writer` creates it.

    Args:
        owner: the owner of the journal.
        ring, batch, flushes, space, records, compactor: its parts.
        last_flush: number of the journal's last complete flush.
        wasted: number of files after the current one that a torn flush had entered.

    Attributes:
        owner, ring, batch, flushes, space, records, compactor: as above.
        growth: changes the ring; `ring_changed` must follow each of its calls.
        live: record id -> log offset and blocks, packed, of all live records that do not rest, in log order: that of
            `records`.
        transactions: xid -> open transaction: that of `records`.
        last_flush: number of the last synced flush; of a resumed journal that was not written to, of its last complete
            one.
        failure: the error after which the journal accepts no records; None if there is none.
    """

    __slots__ = (
        "_dequeue_end",
        "_enqueue_end",
        "_locked",
        "_pending",
        "batch",
        "compactor",
        "failure",
        "flushes",
        "growth",
        "last_flush",
        "live",
        "owner",
        "records",
        "ring",
        "space",
        "transactions",
    )

    def __init__(
        self,
        owner: JournalOwner,
        ring: FileRing,
        batch: WriteBatch,
        flushes: FlushQueue,
        space: RingSpace,
        records: LiveRecords,
        compactor: Compactor,
        *,
        last_flush: int = 0,
        wasted: int = 0,
    ) -> None:
        self.owner, self.ring, self.batch, self.flushes = owner, ring, batch, flushes
        self.space, self.records, self.compactor = space, records, compactor
        self.live, self.transactions = records.live, records.transactions
        self._locked, self._pending = records.locked, records.pending
        self.last_flush = last_flush
        self.failure: JournalFailedError | None = None
        self.growth = RingGrowth(ring, batch, flushes, space, records, wasted)
        self._enqueue_end = self._dequeue_end = _NOWHERE  # the first record takes the slow path

    # ---- plain records: the hot path ----

    def enqueue(self, rid: int, parts: Sequence[bytes], size: int, crc: int, first: int = PLAIN_MESSAGE) -> None:
        """Append a message outside of any transaction.

        Args:
            rid: a record id never used before.
            parts: the message's data, in parts.
            size: bytes of all parts.
            crc: their `data_crc`.
            first: the first word of the record's header.

        Raises:
            JournalFullError, JournalBusyError, JournalFailedError: nothing was appended.
        """
        blocks = (size + ROUND_UP) >> BLOCK_SHIFT
        batch, records = self.batch, self.records
        padding = (blocks << BLOCK_SHIFT) - size - FIXED_SIZE
        place = batch.position
        end = place + blocks
        if end > self._enqueue_end or blocks >= records.room or blocks > records.largest:
            self._admit(blocks, 1, blocks)
            place = batch.begin_record()
            batch.records.append(first, rid, b"", batch.low_number, size, parts, size, crc, batch.salt, padding)
            batch.end_record(blocks)
            records.enqueued(rid, place, blocks)
            self._set_ends()
            return
        batch.records.append(first, rid, b"", batch.low_number, size, parts, size, crc, batch.salt, padding)
        batch.position = end
        batch.placed += 1
        self.live[rid] = place << SIZE_BITS | blocks
        records.room -= blocks + 1

    def dequeue(self, rid: int, target: int) -> None:
        """Append the removal of the message `target`, outside of any transaction.

        Raises:
            JournalError: the message does not exist, or a transaction holds it. Otherwise as `enqueue`.
        """
        records, batch = self.records, self.batch
        if self.transactions:
            pending = self._pending  # usually those of messages before this one
            if target in self._locked or (pending and target < pending[-1] and bisect_right(pending, target) & 1):
                raise self._not_to_dequeue(target)
        if batch.position >= self._dequeue_end:
            if records.where(target) is None:
                raise self._not_to_dequeue(target)
            self._make_ready()
            self._check_removal()
            batch.append(_DEQUEUE, rid, b"", target)
            records.dequeued(target)
            self._set_ends()
            return
        packed = self.live.pop(target, 0) or records.resting.take(target)
        if not packed:
            raise self._not_to_dequeue(target)
        batch.records.append(_DEQUEUE, rid, b"", batch.low_number, target, (), 0, 0, batch.salt, _DEQUEUE_PADDING)
        batch.position += 1
        batch.removed.append(packed)
        records.room += (packed & SIZE_MASK) + 1

    # ---- runs of plain records ----

    def enqueue_run(
        self, rid: int, head: bytes, field: SizeField | None, bodies: Bodies, first: int, count: int
    ) -> int:
        """Append messages of a run outside of any transaction: as many as the fast path takes, or one.

        Args:
            rid: the record id of the first; those of the others follow. None of them was ever used before.
            head: the bytes before the body in each message's data.
            field: the field in them that gives the size of the body; None if they are the same for all.
            bodies: the bodies.
            first: the number of the first of them.
            count: number of messages; at least 1.

        Returns:
            How many were appended; 1 or more.

        Raises:
            JournalFullError, JournalBusyError, JournalFailedError: nothing was appended.
        """
        batch, records = self.batch, self.records
        place, blocks = batch.position, _blocks_of_each(len(head), bodies)
        packed: array[int] | None = None
        if blocks:
            fits = min(count, (self._enqueue_end - place) // blocks, records.room // (blocks + 1))
            fits = fits if blocks <= records.largest else 0
            end, last = place + fits * blocks, blocks
        else:
            packed = self._places(len(head), bodies, first, count)
            fits, last = len(packed), packed[-1] & SIZE_MASK if packed else 0
            end = (packed[-1] >> SIZE_BITS) + last if packed else place
        if fits <= 1:
            head, body = bodies.message(head, field, first)
            self.enqueue(rid, (head, body), len(head) + len(body), data_crc((head, body)))
            return 1
        batch.records.append_run(rid, batch.low_number, head, field, bodies, first, fits, end - place, last, batch.salt)
        batch.position = end
        batch.placed += fits
        if packed is None:
            records.enqueued_run(rid, fits, place, blocks)
        else:
            records.enqueued_several(rid, packed, end - place)
        return fits

    def taken_of_run(self, head_size: int, bodies: Bodies, count: int) -> int:
        """How many of the first `count` messages the fast path takes; `enqueue_run` appends as many, if it is not 0."""
        records, blocks = self.records, _blocks_of_each(head_size, bodies)
        if not blocks:
            return len(self._places(head_size, bodies, 0, count))
        if blocks > records.largest:
            return 0
        return max(0, min(count, (self._enqueue_end - self.batch.position) // blocks, records.room // (blocks + 1)))

    def admitted_of_run(self, head_size: int, bodies: Bodies, count: int) -> int:
        """How many of the first `count` messages calls of `enqueue_run` append, one after the other, for sure.

        They may go on in files after the current one: each call ends there, or appends the one message between two.
        """
        taken = self.taken_of_run(head_size, bodies, count)
        if taken == count or self.failure is not None or self.batch.needs_restart:
            return taken
        space, records = self.space, self.records
        largest = (head_size + bodies.largest + ROUND_UP) >> BLOCK_SHIFT
        if largest > MAX_BLOCKS:
            return taken
        free = space.free(self.batch.position) - space.reserve
        fits = (free - space.draining_needs(records.messages, records.outcomes)) // (largest + space.flush)
        return max(taken, min(count, fits, records.room // (largest + 1)))

    def _places(self, head_size: int, bodies: Bodies, first: int, count: int) -> array[int]:
        """The packed places of as many messages of a run as the fast path takes."""
        place = self.batch.position
        end, room, largest = max(self._enqueue_end, place), self.records.room, self.records.largest
        packed = array("Q")
        packed.frombytes(
            place_records(bodies.starts, bodies.gap, first, count, head_size, place, end, room, largest, SIZE_BITS)
        )
        return packed

    def dequeue_run(self, rid: int, target: int, count: int) -> int:
        """Append the removals of messages with consecutive record ids: as many as the fast path takes, or one.

        Args:
            rid: the record id of the first removal; those of the others follow.
            target: the first message.
            count: number of messages; at least 1.

        Returns:
            How many were appended; 1 or more. It is less than `count` also if a message does not exist, or is locked.

        Raises:
            JournalError: the first message does not exist, or a transaction holds it. Otherwise as `enqueue_run`.
        """
        batch = self.batch
        fits = min(count, self._dequeue_end - batch.position)
        if self.transactions:
            fits = min(fits, self.records.unlocked(target, fits))
        if fits < _MIN_DEQUEUES:
            self.dequeue(rid, target)
            return 1
        fits = self.records.dequeued_run(target, fits)
        if not fits:
            raise self._not_to_dequeue(target)
        batch.records.append_dequeues(rid, batch.low_number, target, fits, batch.salt)
        batch.position += fits
        return fits

    # ---- transactions ----

    def append_committed(
        self, xid: bytes, rids: list[int], messages: list[MessageData], targets: list[int], firsts: list[int]
    ) -> int:
        """Append a whole transaction with its commit at once, if it fits before the end of the fast path.

        Args:
            xid: the transaction, which is not open.
            rids: new record ids: of its enqueues, of its dequeues, and of its commit.
            messages: the messages that it enqueues.
            targets: the messages that it dequeues, after `check_dequeue`: no message twice.
            firsts: the first word of each message's header; empty if all are PLAIN_MESSAGE.

        Returns:
            The blocks that were appended. If 0, nothing was: append its records after `admit_transaction`.
        """
        batch, records = self.batch, self.records
        blocks, largest = transaction_blocks(xid, messages)
        end = batch.position + blocks + record_blocks(0, len(xid)) * (len(targets) + 1)
        if end > self._enqueue_end or blocks + len(messages) > records.room or largest > records.largest:
            return 0
        begin = batch.position
        places = batch.append_transaction(xid, rids, messages, targets, firsts, commits=True)
        records.replaced(rids, places, targets)
        return batch.position - begin

    def enqueue_in(self, xid: bytes, rid: int, parts: Sequence[bytes], size: int, crc: int) -> None:
        """Append a message that the transaction `xid` enqueues, and begin the transaction if it is not open."""
        blocks = record_blocks(size, len(xid))
        self._admit(blocks, 1, blocks, self.records.new_outcome(xid))
        self.records.enqueued(rid, self.batch.append(PLAIN_MESSAGE, rid, xid, size, parts, size, crc), blocks, xid)
        self._set_ends()

    def dequeue_in(self, xid: bytes, rid: int, target: int, *, commit_decision: bool = False) -> None:
        """Append the removal of `target` by the transaction `xid`, and lock the message.

        Args:
            xid: the transaction, which begins now if it is not open.
            rid: a record id never used before.
            target: the message.
            commit_decision: in the transaction prepared list: the decision is to commit.
        """
        self.check_dequeue(target, xid)
        blocks = record_blocks(0, len(xid))
        self._make_ready()
        self._check_kept(blocks, 0, self.records.new_outcome(xid), blocks, blocks)
        place = self.batch.append(_DEQUEUE_TO_COMMIT if commit_decision else _DEQUEUE, rid, xid, target)
        transaction = self.records.escorted(rid, target, place, blocks, xid)
        if commit_decision:
            transaction.commit_decisions.add(rid)
        self._set_ends()

    def check_dequeue(self, target: int, xid: bytes = b"") -> None:
        """Raise JournalError unless `target` may be dequeued by `xid`, or outside of transactions if that is empty."""
        if not self.records.may_dequeue(target, xid):
            raise self._not_to_dequeue(target)

    def _not_to_dequeue(self, target: int) -> JournalError:
        title = self.owner.title
        if self.records.is_locked(target):
            return JournalError(f"{title}: record 0x{target:x} is locked by an open transaction")
        return JournalError(f"{title}: record 0x{target:x} does not exist and cannot be dequeued")

    def commit(self, xid: bytes, rid: int, *, removes: bool = True) -> None:
        """Append the commit of the open transaction `xid`: messages it dequeued are removed, those it enqueued stay.

        Args:
            xid: the transaction.
            rid: a record id never used before.
            removes: if False, `remove_left` removes those messages, which are many.
        """
        self._admit_outcome(xid)
        self.batch.append(_COMMIT, rid, xid, 0)
        if removes:
            self.records.committed(xid)
        else:
            self.records.committed_later(xid)
        self._set_ends()

    def remove_left(self, count: int) -> bool:
        """Remove `count` of the messages that committed transactions have dequeued. Returns whether there are more."""
        records = self.records
        if self.failure is not None or not records.left:
            return False
        is_synced = records.left[0][0] <= self.flushes.synced
        removed = records.remove_left(count)
        if is_synced:
            self._release(removed)
        else:
            self.batch.removed += removed
        return bool(records.left)

    def undo(self, xid: bytes, count: int) -> bool:
        """Undo `count` operations of an open transaction, all of them synced, whose abort comes next.

        A crash leaves it without a commit, even if records of it are overwritten meanwhile.

        Returns:
            Whether there are more.
        """
        transaction = self.transactions.get(xid)
        if self.failure is not None or transaction is None:
            return False
        self._release(self.records.undo(xid, count))
        return transaction.size > 0

    def _release(self, removed: list[int]) -> None:
        """Release synced records, packed, that are no longer needed."""
        self.space.release(removed)
        if self.space.reclaim(self.flushes.synced_place):
            self.batch.forget_files(self.space.oldest)
        self._set_ends()

    def abort(self, xid: bytes, rid: int) -> None:
        """Append the abort of the open transaction `xid`: messages it enqueued are removed, those it dequeued stay."""
        self._admit_outcome(xid)
        self.batch.append(_ABORT, rid, xid, 0)
        self.records.aborted(xid)
        self._set_ends()

    # ---- admission ----

    def admit_enqueue(self, size: int) -> None:
        """Check that a message of `size` bytes fits, before it is written to any of its queues. Raises as `enqueue`."""
        blocks = record_blocks(size)
        self._admit(blocks, 1, blocks)

    def admit_transaction(self, xid: bytes, sizes: Sequence[int], dequeues: int) -> None:
        """Check that all records of a transaction and its outcome fit, before any of them is written anywhere.

        Args:
            xid: the transaction; if it is open, there is already room for its outcome.
            sizes: bytes of data of each message that it enqueues.
            dequeues: number of messages that it dequeues.

        Raises:
            JournalFullError, JournalBusyError, JournalFailedError: they do not fit, or not at the moment.
        """
        enqueues = [record_blocks(size, len(xid)) for size in sizes]
        dequeue = record_blocks(0, len(xid))
        blocks, largest = sum(enqueues) + dequeues * dequeue, max(enqueues, default=dequeue)
        outcome = self.records.new_outcome(xid)
        if enqueues:
            self._admit(blocks, len(enqueues), largest, outcome, dequeues * dequeue)
        else:
            self._make_ready()
            self._check_kept(blocks, 0, outcome, largest, blocks)

    def has_room_at_once(self, xid: bytes, messages: list[MessageData]) -> bool:
        """Whether a transaction that enqueues these messages, one or more, needs no `admit_transaction`."""
        return self.records.have_room_before(self._enqueue_end, xid, messages)

    def append_admitted(
        self, xid: bytes, rids: list[int], messages: list[MessageData], targets: list[int], firsts: list[int]
    ) -> int:
        """Append the operations of an admitted transaction, which is then open. Returns the number of blocks.

        Args:
            xid: the transaction.
            rids: new record ids: of its enqueues, ascending, and of its dequeues.
            messages: the messages that it enqueues.
            targets: the messages that it dequeues, after `check_dequeue`: no message twice.
            firsts: as in `append_committed`.
        """
        batch, records, begin = self.batch, self.records, self.batch.position
        size_of_xid, count = len(xid), len(messages)
        escort_blocks = record_blocks(0, size_of_xid)
        needed = transaction_blocks(xid, messages)[0] + escort_blocks * len(targets)
        if batch.position + needed <= batch.file_end:
            places = batch.append_transaction(xid, rids, messages, targets, firsts, commits=False)
            records.opened(xid, rids, places, targets, escort_blocks)
            self._set_ends()
            return batch.position - begin
        append = batch.append
        for number, (parts, size, crc) in enumerate(messages):
            rid, first = rids[number], firsts[number] if firsts else PLAIN_MESSAGE
            place = append(first, rid, xid, size, parts, size, crc)
            records.enqueued(rid, place, record_blocks(size, size_of_xid), xid)
        for rid, target in zip(rids[count:], targets, strict=False):
            records.escorted(rid, target, append(_DEQUEUE, rid, xid, target), escort_blocks, xid)
        self._set_ends()
        return batch.position - begin

    def _admit(self, blocks: int, count: int, largest: int, outcome: int = 0, escorts: int = 0) -> None:
        """Admit `count` messages, with the dequeues of their transaction. Raises as `enqueue`."""
        if self.failure is not None:
            raise JournalFailedError(str(self.failure))
        self._check_threshold(blocks, count, largest, outcome)
        self._make_ready()
        self._check_kept(blocks, count, outcome, largest, escorts)

    def _admit_outcome(self, xid: bytes) -> None:
        if xid not in self.transactions:
            raise JournalError(f"{self.owner.title}: no transaction {xid.hex()} is open")
        self._make_ready()
        self._check_removal(record_blocks(0, len(xid)))

    def _make_ready(self) -> None:
        """Append the records that must precede the first one after a restart, before a record on the slow path."""
        if self.failure is not None:
            raise JournalFailedError(str(self.failure))
        if self.space.free(self.batch.position) < 0:
            raise JournalFullError(f"Journal full on {self.owner.title}.")
        if self.batch.needs_restart:
            self._add(self.batch.restart())
            self.compactor.after_restart()

    def _check_threshold(self, blocks: int, count: int, largest: int, outcome: int) -> None:
        """Check the first rule of `space` for `count` messages of `blocks` in total, and for their outcome."""
        if largest > MAX_BLOCKS:
            raise RecordTooLongError(f"{self.owner.title}: a record of {largest} blocks is more than {MAX_BLOCKS}")
        if blocks + count + outcome > self.records.room:
            raise self._over_threshold()

    def _check_kept(self, blocks: int, count: int, outcome: int, largest: int, escorts: int) -> None:
        """Check the other rules for `blocks` that stay: `count` messages, and dequeues of `escorts` blocks."""
        space, records, position = self.space, self.records, self.batch.position
        kept = blocks + space.reserve if count else blocks
        messages, outcomes = records.messages + count, records.outcomes + outcome
        longest, escorts = max(records.largest, largest), records.escorts + escorts
        while not space.drains(free := space.free(position) - kept, messages, outcomes):
            wanted = space.compaction_needs(longest, escorts)
            if not space.compacts(records.blocks + kept, longest, escorts):
                wanted = space.draining_needs(messages, outcomes)
            if free >= wanted:
                break
            if not self._break_blocking_pins():
                raise self._busy(kept + wanted) if self._can_progress() else self._over_threshold()
        records.largest = longest

    def _check_removal(self, blocks: int = 1) -> None:
        """Check that there is room for a dequeue or an outcome: enqueues leave it, perhaps only after compaction."""
        space, records, position = self.space, self.records, self.batch.position
        half = space.margin // 2
        needs = space.compaction_needs(records.largest, records.escorts)
        while (free := space.free(position)) < needs - half:
            if space.drains(free + half, records.messages, records.outcomes):
                return
            if self._break_blocking_pins():
                continue
            if self._can_progress():
                raise self._busy(min(needs, space.draining_needs(records.messages, records.outcomes)))
            if free < blocks:
                raise JournalFullError(f"Journal full on {self.owner.title}.")
            return

    def _break_blocking_pins(self) -> bool:
        """Break the pins that are in the way. Returns whether there is more room. Raises JournalPinnedError."""
        space, synced = self.space, self.flushes.synced_place
        if space.spares_pins and space.is_held_by_pins(synced):
            raise JournalPinnedError(
                f"{self.owner.title}: no room until a snapshot is released, or there are more files"
            )
        return space.break_pins(synced)

    def _can_progress(self) -> bool:
        return not self.batch.records.is_empty or not self.flushes.is_empty or self.compactor.can_copy()

    def _busy(self, wanted: int) -> JournalBusyError:
        self.compactor.wait_for(wanted)
        return JournalBusyError(f"{self.owner.title}: no room until the write batch is flushed")

    def _over_threshold(self) -> ThresholdError:
        return over_threshold(self.owner.title, self.space.files, self.space.file * BLOCK_SIZE // PAGE_SIZE)

    def _set_ends(self) -> None:
        """Recalculate how far plain records may be appended without any check: at most to the end of the current file.

        Call this after the position, the end of the ring or the live records changed on the slow path. Before the first
        record after a restart there is no fast path: the restart's filler must precede it.
        """
        if self.batch.needs_restart:
            return
        space, records, position, file_end = self.space, self.records, self.batch.position, self.batch.file_end
        rest = file_end - position
        free, messages = space.free(position), records.messages
        if space.drains(free - space.reserve - rest, messages + rest, records.outcomes):
            self._enqueue_end = self._dequeue_end = file_end
            return
        end = space.end - space.compaction_needs(records.largest, records.escorts) - space.flush
        if space.compacts(records.blocks + rest + space.reserve, records.largest, records.escorts):
            self._enqueue_end = min(file_end, end - space.reserve)
            self._dequeue_end = min(file_end, end + space.margin // 2)
            return
        self._enqueue_end = _NOWHERE
        self._dequeue_end = file_end if space.drains(free, messages, records.outcomes) else _NOWHERE

    def ring_changed(self) -> None:
        """Adjust to a change of the ring, which has begun or ended (`growth`)."""
        if self.failure is None:
            self._set_ends()

    # ---- unsynced data ----

    @property
    def batch_number(self) -> int:
        """Number of the flush of the current batch."""
        return self.batch.number

    @property
    def synced(self) -> int:
        """Number of the last synced flush; 0 for none."""
        return self.flushes.synced

    @property
    def unsynced(self) -> int:
        """Bytes appended and not known to be on the disk."""
        return (self.batch.position - self.flushes.synced_place) * BLOCK_SIZE

    @property
    def unsynced_place(self) -> int:
        """Log offset where unsynced data begins."""
        return self.flushes.synced_place

    def unsynced_part(self, place: int, blocks: int) -> bytes:
        """The bytes of a record that may not be on the disk yet, such as a copy; empty if it is."""
        if place < self.flushes.synced_place:
            return b""
        batch, size = self.batch, blocks * BLOCK_SIZE
        if place >= batch.start:
            return batch.records.part((place - batch.start) * BLOCK_SIZE, size)
        flush = self.flushes.holding(place)
        return flush.part((place - flush.start) * BLOCK_SIZE, size)

    @property
    def is_dirty(self) -> bool:
        """Whether anything is unsynced."""
        return not self.batch.records.is_empty or not self.flushes.is_empty

    @property
    def last_dirty(self) -> int:
        """Number of the last unsynced flush; if there is none, of a synced one."""
        return self.flushes.last if self.batch.records.is_empty else self.batch.number

    @property
    def is_under_way(self) -> bool:
        """Whether a step was issued that is not yet synced."""
        return self.flushes.is_under_way

    @property
    def is_half_flushed(self) -> bool:
        """Whether a flush that was begun or closed has further steps."""
        return not self.flushes.is_empty

    def salt_at(self, place: int) -> int:
        """The salt of the file that contains `place`."""
        return self.batch.salts[place // self.space.file]

    def cut(self) -> Cut:
        """The part of the journal that is on the disk now, pinned."""
        space, end = self.space, self.flushes.synced_place
        space.reclaim(end)
        used = (end - 1) // space.file + 1
        entered = {self.ring.number(index) for index in range(used)} if space.oldest == 0 else set()
        is_whole = space.oldest == 0 and entered.issuperset(self.batch.slots)
        return Cut(space.oldest, end, self.flushes.synced, is_whole, self.ring.copy(), space.pin())

    def break_pins(self) -> None:
        """Allow files that snapshots hold to be overwritten: the journal cannot grow."""
        self.space.break_pins(self.flushes.synced_place)
        self._set_ends()

    # ---- steps ----

    def next_flush(self) -> Step | None:
        """Issue the next step; None if nothing is to be written, or a step is under way."""
        batch, flushes = self.batch, self.flushes
        if flushes.is_under_way or self.failure is not None:
            return None
        if flushes.in_flight is None:
            try:
                if not batch.is_sealed and self.compactor.before_flush():
                    self._set_ends()
            except (RhmError, OSError) as error:
                self._fail(f"a record cannot be read for compaction: {error}")
                return None
            if flushes.is_empty and not batch.records.is_empty:
                self._add(batch.close())
        return flushes.next_step()

    def flushed(self) -> None:
        """The step is written and synced."""
        flush = self.flushes.step_synced()
        if flush is None:
            return
        self.last_flush = flush.number
        space = self.space
        if flush.placed:
            space.hold_placed(flush.placed)
        if flush.removed:
            space.release(flush.removed)
        if flush.released:
            space.release_counted(flush.released)
        if space.reclaim(flush.end):
            self.batch.forget_files(space.oldest)
        self.batch.records.free()
        if not self.live and not self.records.resting:
            self.records.largest = min(self.records.largest, max(1, (space.file - 1) // _SHORT))
        self.compactor.after_flush()
        self._set_ends()

    def failed(self, error: OSError) -> None:
        """A write or a sync of the step failed: it is unknown what reached the disk."""
        where = f" of {error.filename}" if error.filename else ""
        self._fail(f"a write or sync{where} failed: {error.strerror or error}", error)

    def close(self) -> None:
        """Refuse everything from now on: another process may open the journal next."""
        self._fail("the store is closed")

    def seal(self) -> bool:
        """Close the journal cleanly with a last flush, the seal. Nothing is appended after it.

        A journal that was never written to needs none, nor does one that was not written to since its last seal.

        Returns:
            Whether the journal is sealed once that is flushed; False if it has failed or is full to the last block.
        """
        if self.failure is None and not self.batch.needs_seal:
            return True
        if self.failure is not None or self.space.free(self.batch.position) < 0:
            return False
        self.records.remove_all_left()
        for flush in self.batch.seal():
            self._add(flush)
        return True

    def _add(self, flush: Flush) -> None:
        assert flush.end <= self.space.end, "flush would overwrite a live record"
        self.flushes.add(flush)

    def _fail(self, what: str, cause: OSError | None = None) -> None:
        self.flushes.step_lost()
        if self.failure is None:
            text = f"{self.owner.title}: {what}; the journal accepts no more records until the store is opened again"
            self.failure = JournalFailedError(text)
            self.failure.__cause__ = cause
            self._enqueue_end = self._dequeue_end = _NOWHERE


def open_writer(
    owner: JournalOwner,
    geometry: Geometry,
    ring: FileRing | None = None,
    *,
    alignment: int,
    page: int,
    state: WriterState,
    read: Callable[[int, int], bytes],
    salt: Callable[[], int],
    clock: Callable[[], int],
) -> Version2Writer:
    """Create the writer of one journal.

    Args:
        owner: the owner of the journal.
        geometry: number and size of the files.
        ring: their order, which changes when the journal grows; 0, 1, 2 and so on by default.
        alignment: bytes to which flushes are padded.
        page: maximum bytes of one write.
        state: the existing content. The writer owns it from now on.
        read: reads bytes of the stream: (block, number of bytes). Used for compaction.
        salt: returns 64 random bits.
        clock: returns nanoseconds since the epoch.
    """
    ring = FileRing(range(geometry.files)) if ring is None else ring
    batch = WriteBatch(
        owner,
        geometry,
        ring,
        alignment=alignment,
        position=state.position,
        flush=state.flush,
        is_sealed=state.is_sealed,
        salts=state.salts,
        slots=state.slots,
        salt=salt,
        clock=clock,
    )
    in_passing = blocks_in_passing(page)
    chunk = max(min(geometry.data_size // BLOCK_SIZE, MAX_COPIED_BLOCKS), in_passing)
    flushes = FlushQueue(geometry, ring, page=page, synced=state.flush, place=state.position)
    space = RingSpace(geometry, alignment, chunk)
    records = LiveRecords(batch, space, state.live, state.transactions, state.resting)
    compactor = Compactor(batch, flushes, space, records, read, in_passing=in_passing, chunk=chunk)
    return Version2Writer(
        owner, ring, batch, flushes, space, records, compactor, last_flush=state.last_flush, wasted=state.wasted
    )


# ---- resuming a recovered journal ----

#: A journal with more messages is resumed with all of them resting, so that memory is bounded.
MAX_AWAKE: Final = 4096


class NotResumableError(Exception):
    """A journal whose files are too damaged to continue writing."""


def state_of(journal: Journal, recovery: JournalRecovery, end: JournalEnd | None) -> WriterState:
    """The state of `journal`, its open transactions not yet resolved.

    Args:
        journal: the journal, open for reading.
        recovery: the result of a walk over all of it.
        end: where the walk ended; None if nothing was ever written.

    Raises:
        NotResumableError: a file's header is lost.
        OSError: it cannot be read.
    """
    files = [file for file in journal.files.files if isinstance(file, RingFile)]
    if end is None or not files:
        return new_state()
    file_blocks = journal.files.geometry.data_size // BLOCK_SIZE
    ring = journal.files
    assert isinstance(ring, Ring)
    indexed = recovery.indexed
    first, salts = _laps(files, ring, None if indexed is None else indexed.base // file_blocks)
    base = first * file_blocks
    if indexed is not None:
        for rid in indexed.moved:
            entry = indexed.get(rid)
            if entry is not None:
                packed = base + entry.place // BLOCK_SIZE << SIZE_BITS | _blocks(journal, entry.place)
                if packed != indexed.resting.get(rid):
                    indexed.resting.set(rid, packed)
        indexed.moved.clear()

    resting: RestingRecords | None = None
    kept: list[tuple[int, int, int]] = []  # log offset, record id, blocks
    if len(recovery.messages) > MAX_AWAKE:
        resting = _resting(journal, recovery, base)
    else:
        kept = [(place, rid, _blocks(journal, place)) for rid, place, _ in recovery.messages.in_place_order()]
    transactions = _transactions(journal, recovery, kept, resting)
    live = {rid: base + place // BLOCK_SIZE << SIZE_BITS | blocks for place, rid, blocks in sorted(kept)}
    entered = [*files, *ring.wasted, *ring.free]
    slots = {file.number: file.header.slot for file in entered if file.header is not None}
    # A file may have been entered repeatedly by restarts that left nothing else. Of its two headers the one with the
    # higher flush number counts, so the next header's must be higher than any existing one.
    flush = max(end.flush, *(file.header.first_flush for file in files if file.header is not None))
    # In a journal without records, the end has the number of a file header, which may be lost in the next crash.
    records = recovery.enqueues + recovery.dequeues + recovery.commits + recovery.aborts
    has_record = end.sealed or records > 0 or indexed is not None
    last_flush = end.flush - end.is_cut if has_record else 0
    is_sealed = end.sealed and not end.torn
    position = base + end.place // BLOCK_SIZE
    last = files[-1]
    assert last.header is not None
    origin, lap = first + len(files) - 1 - ring.place(last), last.header.overwrite_indicator
    return WriterState(
        position, flush, last_flush, is_sealed, salts, slots, live, transactions, len(ring.wasted), origin, lap, resting
    )


def _transactions(
    journal: Journal, recovery: JournalRecovery, kept: list[tuple[int, int, int]], resting: RestingRecords | None
) -> dict[bytes, OpenTransaction]:
    """The open transactions. Their records are added to `kept`; messages that they dequeue are in it, or rest."""
    known = {rid for _, rid, _ in kept} if len(recovery.transactions) else set()
    transactions: dict[bytes, OpenTransaction] = {}
    holders: dict[int, OpenTransaction] = {}
    replaced: set[int] = set()  # dequeues
    for transaction in recovery.transactions:
        opened = transactions[transaction.xid] = OpenTransaction(transaction.xid)
        enqueues = [operation for operation in transaction if operation.is_enqueue]
        kept += [(operation.place, operation.rid, _blocks(journal, operation.place)) for operation in enqueues]
        opened.enqueues = runs_of(operation.rid for operation in enqueues)
        known.update(operation.rid for operation in enqueues)
        for operation in transaction:
            target = operation.rid
            if operation.is_enqueue or not (target in known or (resting is not None and resting.get(target))):
                continue
            header = _header(journal, operation.place)
            before = holders.get(target)
            if before is not None:  # a transaction dropped without an abort; the later one counts
                replaced.add(before.dequeues.pop(target))
            holders[target] = opened
            opened.dequeues[target] = header.rid
            if header.flags & COMMIT_DECISION:
                opened.commit_decisions.add(header.rid)
            kept.append((operation.place, header.rid, header.size // BLOCK_SIZE))
    if replaced:
        kept[:] = [entry for entry in kept if entry[1] not in replaced]
    return transactions


def _resting(journal: Journal, recovery: JournalRecovery, base: int) -> RestingRecords:
    """The messages of a journal, except those that open transactions enqueue.

    Reads only sizes that the walk has not kept.
    """
    resting = RestingRecords() if recovery.indexed is None else recovery.indexed.resting.copy()
    for rids, places, blocks in recovery.messages.portions(MAX_CHUNK):
        packed = array("Q")
        for number, place in enumerate(places):
            size = blocks[number] or _blocks(journal, place)
            packed.append(base + place // BLOCK_SIZE << SIZE_BITS | size)
        resting.extend_in_runs(rids, packed)
    return resting


def _laps(files: list[RingFile], ring: Ring, first: int | None = None) -> tuple[int, dict[int, int]]:
    """The oldest file, counted over all laps, unless that is known; and the salts of all files."""
    salts = {}
    for position, file in enumerate(files):
        if file.header is None:
            raise NotResumableError(f"{file.path}: the file's header is lost")
        if first is None:
            first = file.header.overwrite_indicator * ring.geometry.files + ring.place(file)
        salts[first + position] = file.header.salt
    assert first is not None
    return first, salts


def _blocks_of_each(head_size: int, bodies: Bodies) -> int:
    """The blocks of a record with each of these bodies; 0 if that is not the same for all."""
    blocks = (head_size + bodies.largest + ROUND_UP) >> BLOCK_SHIFT
    return blocks if bodies.is_even or blocks == (head_size + bodies.smallest + ROUND_UP) >> BLOCK_SHIFT else 0


def _blocks(journal: Journal, place: int) -> int:
    """Blocks of the enqueue record at `place`."""
    data, size = journal.data_of_enqueue(place)
    return (data - place + size + TAIL_SIZE + BLOCK_SIZE - 1) // BLOCK_SIZE


def _header(journal: Journal, place: int) -> RecordHeader:
    return decode_header(journal.stream.read(place, MAX_HEADER_SIZE))
