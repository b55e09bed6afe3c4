"""Writes a version-2 journal: a state machine that never waits for a disk.

    enqueue, dequeue, commit, abort    a record is placed in the flush that gathers, or refused whole
    next_flush() -> step               what to write and to sync now; one step is under way at a time
    flushed()                          the step is on the disk; with a flush's last step `synced` moves on
    failed(error)                      nothing may be assumed; the journal takes nothing more

How records become flushes is in `gathering`; here is what is live, what is taken (the rules are in `space`), and the
relocation of the oldest file's live records, which are copied to the end so that the file becomes free.

Prefix safety: the ring is overwritten from its oldest file on, so at any time some beginning of the stream is missing.
Nothing comes back to life by that, because what removes a record always stands behind it: a dequeue behind the
enqueue, a commit behind the transaction's records, and a locked record that is relocated takes its transactional
dequeue along.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from formats.checksum import extend_crc32c
from formats.rhm.errors import RhmError
from formats.rhm.geometry import BLOCK_SIZE, Geometry
from formats.rhm.records import COMMIT_DECISION, MOVED, TAIL, Kind, decode_record
from store.journal.flushes import Flush
from store.journal.gathering import BLOCK_SHIFT, FIXED, FLAGS_SHIFT, HEADER, PADDINGS, ROUND_UP, Gathering, Identity
from store.journal.space import MAX_BLOCKS, SIZE_BITS, SIZE_MASK, RingSpace
from store.journal.step import JournalBusyError, JournalError, JournalFullError
from store.journal.writer_transactions import OpenTransaction

_ENQUEUE: Final = Kind.ENQUEUE | 2 << 32
_DEQUEUE: Final = Kind.DEQUEUE | 2 << 32
_COMMIT: Final = Kind.COMMIT | 2 << 32
_ABORT: Final = Kind.ABORT | 2 << 32
_MOVED: Final = MOVED << FLAGS_SHIFT
_DECISION: Final = COMMIT_DECISION << FLAGS_SHIFT
_DEQUEUE_PADDING: Final = PADDINGS[BLOCK_SIZE - FIXED]
_PAGES_RELOCATED: Final = 4  # by one flush, at least


class WriterState(NamedTuple):
    """What a journal holds when it is taken up.

    Attributes:
        position: block of the endless stream where it ended; 0 for a new one.
        flush: number of its last flush; 0 for a new one.
        is_sealed: whether that was the seal of a clean close.
        salts: file, counted over all laps -> its salt.
        slots: number of a file -> the place that its header has in its sector.
        live: record id -> place and blocks, packed, of every live record in order of place, those of open transactions
            and their dequeues included.
        transactions: xid -> the open transaction.
    """

    position: int
    flush: int
    is_sealed: bool
    salts: dict[int, int]
    slots: dict[int, int]
    live: dict[int, int]
    transactions: dict[bytes, OpenTransaction]


def new_state() -> WriterState:
    """That of a journal that was just made."""
    return WriterState(0, 0, False, {}, {}, {}, {})


def data_crc(parts: Iterable[bytes]) -> int:
    """The checksum of a message's data, computed once for all the journals that get it."""
    crc = 0
    for part in parts:
        crc = extend_crc32c(crc, part)
    return crc


def record_blocks(size: int, xid_size: int = 0) -> int:
    """Blocks of a record with `size` bytes of data."""
    return (ROUND_UP + xid_size + size) >> BLOCK_SHIFT


class Version2Writer(Gathering):
    """The writer of one journal.

    Args:
        identity: whose journal it is.
        geometry: number and size of the files.
        alignment: bytes to which flushes are padded.
        page: bytes of one write.
        state: what there is already. The writer takes it over.
        read: gives bytes of the stream: (block, number of bytes). Used to relocate.
        salt: gives 64 random bits.
        clock: gives the time as nanoseconds since the epoch.

    Attributes:
        live: record id -> place and blocks, packed, of what is kept, in order of place.
        transactions: xid -> the open transaction.
        relocated: records that were copied forward so far.
    """

    __slots__ = (
        "_chunk",
        "_dequeue_end",
        "_enqueue_end",
        "_is_pressed",
        "_live_blocks",
        "_locked",
        "_moving",
        "_moving_file",
        "_new_in_file",
        "_outcomes",
        "_read",
        "_room",
        "_space",
        "_undequeued",
        "live",
        "relocated",
        "transactions",
    )

    def __init__(
        self,
        identity: Identity,
        geometry: Geometry,
        *,
        alignment: int,
        page: int,
        state: WriterState,
        read: Callable[[int, int], bytes],
        salt: Callable[[], int],
        clock: Callable[[], int],
    ) -> None:
        super().__init__(
            identity,
            geometry,
            alignment=alignment,
            page=page,
            position=state.position,
            flush=state.flush,
            is_sealed=state.is_sealed,
            salts=state.salts,
            slots=state.slots,
            salt=salt,
            clock=clock,
        )
        self._read = read
        self._chunk = _PAGES_RELOCATED * page // BLOCK_SIZE
        self._space = RingSpace(geometry, alignment, self._chunk)
        self.live = state.live
        self.transactions = state.transactions
        self.relocated = 0
        self._new_in_file = 0  # live records in the present file that `_space` does not know of yet
        self._is_pressed = False  # somebody waits for room
        self._moving: deque[int] = deque()
        self._moving_file = -1
        self._locked: dict[int, bytes] = {}
        self._live_blocks = self._undequeued = self._outcomes = 0
        self._room = self._space.threshold
        self._count_state()
        self._enqueue_end = self._dequeue_end = -1  # the first record takes the long way

    def _count_state(self) -> None:
        space = self._space
        for packed in self.live.values():
            space.hold(packed >> SIZE_BITS, packed & SIZE_MASK)
            space.largest = max(space.largest, packed & SIZE_MASK)
            self._live_blocks += packed & SIZE_MASK
        self._undequeued = len(self.live)
        for transaction in self.transactions.values():
            self._undequeued -= len(transaction.dequeues)
            self._outcomes += self._outcome_blocks(transaction.xid)
            self._locked.update(dict.fromkeys((*transaction.dequeues, *transaction.enqueues), transaction.xid))
        self._room -= self._live_blocks + self._undequeued + self._outcomes
        oldest = min((packed >> SIZE_BITS for packed in self.live.values()), default=self._position)
        space.oldest = min(oldest, self._position) // self._file

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
            self._append_kept(_ENQUEUE, rid, b"", parts, size, crc)
            return
        pieces = self._pieces
        self._last = len(pieces)
        head = HEADER.pack(_ENQUEUE, rid, 0, self._flush_number, size)
        pieces.append(head)
        pieces += parts
        crc = extend_crc32c(crc, head + self._salt)
        pieces.append(TAIL.pack(crc, rid) + PADDINGS[(blocks << BLOCK_SHIFT) - size - FIXED])
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
            self._append(_DEQUEUE, rid, b"", target)
            self._drop(target, dequeues=1)
            self._set_ends()
            return
        pieces = self._pieces
        self._last = len(pieces)
        head = HEADER.pack(_DEQUEUE, rid, 0, self._flush_number, target)
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
        self._append_kept(_ENQUEUE, rid, xid, parts, size, crc)

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
        self._admit_kept(blocks, 0, 0 if xid in self.transactions else self._outcome_blocks(xid), blocks)
        self._begin(xid).dequeues[target] = rid
        self._locked[target] = xid
        kind = _DEQUEUE
        if commit_decision:
            kind |= _DECISION
            self.transactions[xid].commit_decisions.add(rid)
        self._keep(rid, blocks, self._append(kind, rid, xid, target))
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
            self._drop(dequeue, dequeues=0)
        self._set_ends()

    def abort(self, xid: bytes, rid: int) -> None:
        """Append the abort of the open transaction `xid`: what it enqueued is gone, what it dequeued stays."""
        transaction = self._end(xid)
        self._append(_ABORT, rid, xid, 0)
        for dequeue in transaction.dequeues.values():
            self._drop(dequeue, dequeues=0)
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
        self._admit_removal()
        transaction = self.transactions.pop(xid)
        self._outcomes -= self._outcome_blocks(xid)
        self._room += self._outcome_blocks(xid)
        for target in (*transaction.dequeues, *transaction.enqueues):
            self._locked.pop(target, None)
        return transaction

    def _outcome_blocks(self, xid: bytes) -> int:
        """Blocks that a transaction's commit or abort needs, in a flush of its own."""
        return record_blocks(0, len(xid)) + self._space.flush

    def _append_kept(self, kind: int, rid: int, xid: bytes, parts: Sequence[bytes], size: int, crc: int) -> None:
        place = self._append(kind, rid, xid, size, parts, size, crc)
        self._keep(rid, record_blocks(size, len(xid)), place)
        self._undequeued += 1
        self._room -= 1
        self._set_ends()

    def _keep(self, rid: int, blocks: int, place: int) -> None:
        self.live[rid] = place << SIZE_BITS | blocks
        self._space.hold(place, blocks)
        self._live_blocks += blocks
        self._room -= blocks

    def _drop(self, rid: int, dequeues: int) -> None:
        """A record is no longer live once what is appended now is synced; it needs no dequeue any more."""
        packed = self.live.pop(rid)
        self._removed.append(packed)
        self._undequeued -= dequeues
        self._live_blocks -= packed & SIZE_MASK
        self._room += (packed & SIZE_MASK) + dequeues

    # ---- what is taken ----

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
            self._admit_enqueues(blocks, len(enqueues), largest, self._outcome_blocks(xid))
        else:
            self._admit_kept(blocks, 0, self._outcome_blocks(xid), largest)

    def _admit_enqueues(self, blocks: int, count: int, largest: int, outcome: int = 0) -> None:
        """The first rule of `space`, then the others. Raises as `enqueue`."""
        if self.failure is not None:
            raise self.failure
        if largest > MAX_BLOCKS:
            raise JournalFullError(f"{self.identity.title}: a record of {largest} blocks is more than {MAX_BLOCKS}")
        if blocks + count + outcome > self._room:
            raise self._over_threshold()
        self._admit_kept(blocks, count, outcome, largest)

    def _over_threshold(self) -> JournalFullError:
        return JournalFullError(f"Enqueue capacity threshold exceeded on {self.identity.title}.")

    def _admit_kept(self, blocks: int, count: int, outcome: int, largest: int) -> None:
        """The second and third rule: room for `blocks` that stay, of `count` messages."""
        self._make_ready()
        space = self._space
        free = self._free() - blocks
        outcomes = self._outcomes + outcome
        if not space.drains(free, self._undequeued + count, outcomes):
            largest = max(space.largest, largest)
            if not space.compacts(self._live_blocks + blocks + outcomes, largest):
                raise self._over_threshold()
            if free < space.compaction_needs(largest):
                raise self._busy() if self._can_progress() else self._over_threshold()
        space.largest = max(space.largest, largest)

    def _admit_removal(self) -> None:
        """Room for a dequeue or an outcome: there is some by the rules that enqueues keep, perhaps after compaction."""
        self._make_ready()
        space = self._space
        free = self._free()
        half = space.margin // 2
        if free < space.compaction_needs(space.largest) - half and not space.drains(
            free + half, self._undequeued, self._outcomes
        ):
            if self._can_progress():
                raise self._busy()
            if free < half:
                raise JournalFullError(f"Journal full on {self.identity.title}.")

    def _make_ready(self) -> None:
        if self.failure is not None:
            raise self.failure
        self._take_up()

    def _free(self) -> int:
        """Free blocks behind the position, the padding of this flush and what may still be removed not counted."""
        return self._space.end - self._position - self._space.flush

    def _can_progress(self) -> bool:
        return self.is_dirty or self._can_relocate()

    def _busy(self) -> JournalBusyError:
        self._is_pressed = True
        return JournalBusyError(f"{self.identity.title}: no room before what was gathered is flushed")

    def _set_ends(self) -> None:
        """Up to where plain records may be appended without asking: within the file, whatever they are."""
        space = self._space
        rest = self._file_end - self._position
        free = self._free()
        if space.drains(free - rest, self._undequeued + rest, self._outcomes):
            self._enqueue_end = self._dequeue_end = self._file_end
            return
        end = space.end - space.compaction_needs(space.largest) - space.flush
        if space.compacts(self._live_blocks + rest + self._outcomes, space.largest):
            self._enqueue_end = min(self._file_end, end)
            self._dequeue_end = min(self._file_end, end + space.margin // 2)
            return
        self._enqueue_end = -1
        drains = space.drains(free, self._undequeued, self._outcomes)
        self._dequeue_end = self._file_end if drains else -1

    # ---- flushes ----

    def _enter(self, rest: int) -> None:
        self._settle_new()
        assert self._index + 1 < self._space.oldest + self._files, "the ring would overwrite a live record"
        super()._enter(rest)

    def _close_flush(self) -> None:
        self._settle_new()
        super()._close_flush()

    def _settle_new(self) -> None:
        if self._new_in_file:
            self._space.hold_in(self._index, self._new_in_file)
            self._new_in_file = 0

    def _after_flush(self, flush: Flush) -> None:
        space = self._space
        space.release(flush.removed)
        space.settle(self.unsynced_place)
        for index in [index for index in self._salts if index < min(space.oldest, self._index)]:
            del self._salts[index]
        if not self.live:
            space.largest = 1
        if self._free() >= space.compaction_needs(space.largest):
            self._is_pressed = False
        self._set_ends()

    def _stop(self) -> None:
        self._enqueue_end = self._dequeue_end = -1

    # ---- relocation ----

    def _before_flush(self) -> bool:
        space, free = self._space, self._free()
        if not self._is_pressed and (
            free >= space.compaction_needs(space.largest) + self._file // 2
            or space.drains(free - self._file, self._undequeued, self._outcomes)
        ):
            return True
        try:
            self._relocate(max(self._chunk, 2 * (self._position - self._start)))
        except (RhmError, OSError) as error:
            self._fail(f"a record that has to be copied forward cannot be read: {error}")
            return False
        return True

    def _can_relocate(self) -> bool:
        """Whether the oldest file's live records can be copied to the end, and the file be freed by that."""
        if self._takes_up or self._space.oldest >= self.unsynced_place // self._file:
            return False
        self._find_moving()
        blocks = sum(self.live[rid] & SIZE_MASK for rid in self._moving if self._is_in_oldest(rid))
        flushes = blocks // self._chunk + 2
        gains = self._file - blocks > flushes * self._space.flush
        compacts = self._space.compacts(self._live_blocks + self._outcomes, self._space.largest)
        return (gains or compacts) and blocks + flushes * self._space.flush <= self._free()

    def _find_moving(self) -> None:
        """List what is in the oldest file. The records in `live` are in order of place."""
        if self._moving_file == self._space.oldest:
            return
        self._moving_file = self._space.oldest
        end = (self._moving_file + 1) * self._file
        self._moving.clear()
        for rid, packed in self.live.items():
            if packed >> SIZE_BITS >= end:
                break
            self._moving.append(rid)

    def _is_in_oldest(self, rid: int) -> bool:
        return rid in self.live and (self.live[rid] >> SIZE_BITS) // self._file == self._space.oldest

    def _relocate(self, budget: int) -> None:
        """Copy so many blocks of the oldest file's live records to the end, or all that are left."""
        if not self._can_relocate():
            return
        end = self._position + budget
        while self._moving and self._position < end:
            rid = self._moving.popleft()
            if self._is_in_oldest(rid):
                self._copy(rid)
                self._copy_dequeue(rid)
        self._set_ends()

    def _copy(self, rid: int) -> None:
        """Copy one live message to the end. A dequeue goes with its message."""
        packed = self.live[rid]
        place, blocks = packed >> SIZE_BITS, packed & SIZE_MASK
        salt = self._salts[place // self._file]
        header, xid, data = decode_record(self._read(place, blocks * BLOCK_SIZE), salt=salt)
        if header.rid != rid or header.kind is not Kind.ENQUEUE:
            raise RhmError(f"{header.kind.label} record 0x{header.rid:x} where message 0x{rid:x} should be")
        if xid not in self.transactions or rid not in self.transactions[xid].enqueues:
            xid = b""  # the transaction is committed
        new = self._append(_ENQUEUE | _MOVED, rid, xid, len(data), (data,), len(data), extend_crc32c(0, data))
        self._move(rid, new, record_blocks(len(data), len(xid)))
        self.relocated += 1

    def _copy_dequeue(self, target: int) -> None:
        """Copy the dequeue of a message that was copied, if an open transaction has one."""
        xid = self._locked.get(target)
        if xid is None or target not in self.transactions[xid].dequeues:
            return
        transaction = self.transactions[xid]
        rid = transaction.dequeues[target]
        flags = MOVED | (COMMIT_DECISION if rid in transaction.commit_decisions else 0)
        new = self._append(_DEQUEUE | flags << FLAGS_SHIFT, rid, xid, target)
        self._move(rid, new, record_blocks(0, len(xid)))

    def _move(self, rid: int, place: int, blocks: int) -> None:
        packed = self.live.pop(rid)
        self._removed.append(packed)
        self.live[rid] = place << SIZE_BITS | blocks
        self._space.hold(place, blocks)
        self._live_blocks += blocks - (packed & SIZE_MASK)
        self._room += (packed & SIZE_MASK) - blocks
