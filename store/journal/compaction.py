"""What is live in a version-2 journal that is written, and its relocation.

The oldest file's live records are copied to the end, so that the file becomes free: a message with the flag "moved",
and behind it, if an open transaction would dequeue it, that dequeue. A copy has the record id of its original, and is
written as the message is by then: one whose transaction is committed belongs to none any more. A message is read back
for that, and verified; a journal in which one cannot be read fails, and says which.

Relocation is done by the way: each flush copies some, from when the free space gets short until the oldest file is
empty. Where somebody waits for room, flushes are made for nothing else.

Prefix safety: the ring is overwritten from its oldest file on, so at any time some beginning of the stream is missing.
Nothing comes back to life by that, because what removes a record always stands behind it: a dequeue behind the
enqueue, a commit behind the transaction's records, and the copy of a transactional dequeue behind that of its message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from formats.checksum import extend_crc32c
from formats.rhm.errors import RhmError
from formats.rhm.geometry import BLOCK_SIZE, Geometry
from formats.rhm.headers import FLAGS_SHIFT, record_blocks, word
from formats.rhm.records import COMMIT_DECISION, MOVED, Kind, decode_record
from store.journal.flushes import Flush
from store.journal.space import SIZE_BITS, SIZE_MASK, Pin, RingSpace
from store.journal.write_batch import Gathering, Identity
from store.journal.writer_state import WriterState

ENQUEUE: Final = word(Kind.ENQUEUE, 2)
DEQUEUE: Final = word(Kind.DEQUEUE, 2)
_MOVED: Final = MOVED << FLAGS_SHIFT
_PAGES_RELOCATED: Final = 4  # by one flush, at least
BLOCKS_RELOCATED: Final = 8192  # by a flush that is made for nothing else, at most: 1 MiB


class Cut(NamedTuple):
    """What of a journal is on the disk at one moment.

    Attributes:
        first: the oldest file that holds anything live, counted over all laps.
        end: the place where the last flush ends.
        flush: its number.
        is_whole: whether nothing was ever overwritten, and no file beyond the end was ever entered.
        pin: keeps `first`, and all after it, from being overwritten.
    """

    first: int
    end: int
    flush: int
    is_whole: bool
    pin: Pin


class Relocating(Gathering):
    """The live records of one journal, and the flushes that carry them on.

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
        "_by_the_way",
        "_chunk",
        "_escorts",
        "_live_blocks",
        "_locked",
        "_moving",
        "_moving_blocks",
        "_moving_file",
        "_new_in_file",
        "_next_held",
        "_outcomes",
        "_overtaken",
        "_read",
        "_room",
        "_space",
        "_spent",
        "_turn_end",
        "_undequeued",
        "_wanted",
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
        self.last_flush = state.last_flush
        self._read = read
        self._by_the_way = _PAGES_RELOCATED * page // BLOCK_SIZE
        self._chunk = max(min(self._file, BLOCKS_RELOCATED), self._by_the_way)
        self._space = RingSpace(geometry, alignment, self._chunk)
        self.live = state.live
        self.transactions = state.transactions
        self.relocated = 0
        self._new_in_file = 0  # live records in the present file that `_space` does not know of yet
        self._wanted = 0  # free blocks that somebody waits for
        self._turn_end = 0  # until this file is the oldest, when a full turn of compaction is made
        self._spent = 0  # live blocks with which a full turn did not bring what was wanted
        self._moving: deque[int] = deque()
        self._moving_blocks = 0
        self._moving_file = self._next_held = -1
        self._locked: dict[int, bytes] = {}
        self._overtaken: list[int] = []  # locked messages that stand behind their dequeue
        self._live_blocks = self._undequeued = self._outcomes = self._escorts = 0
        self._room = self._space.threshold
        self._count_state()

    def _count_state(self) -> None:
        space = self._space
        space.hold_all(self.live.values())
        sizes = [packed & SIZE_MASK for packed in self.live.values()]
        space.largest = max(sizes, default=1)
        self._live_blocks = sum(sizes)
        self._undequeued = len(self.live)
        for transaction in self.transactions.values():
            self._undequeued -= len(transaction.dequeues)
            self._outcomes += self._outcome_blocks(transaction.xid)
            self._escorts += sum(self.live[rid] & SIZE_MASK for rid in transaction.dequeues.values())
            self._locked.update(dict.fromkeys((*transaction.dequeues, *transaction.enqueues), transaction.xid))
            # A crash can come between the copy of a message and that of its dequeue.
            self._overtaken += [
                target for target, rid in transaction.dequeues.items() if self.live[rid] < self.live[target]
            ]
        self._room -= self._live_blocks + self._undequeued + self._outcomes
        oldest = min((packed >> SIZE_BITS for packed in self.live.values()), default=self._position)
        space.oldest = min(oldest, self._position) // self._file

    def _outcome_blocks(self, xid: bytes) -> int:
        """Blocks that a transaction's commit or abort needs, in a flush of its own."""
        return record_blocks(0, len(xid)) + self._space.flush

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

    def _drop_dequeue(self, rid: int) -> None:
        """The same of a transaction's dequeue."""
        self._escorts -= self.live[rid] & SIZE_MASK
        self._drop(rid, dequeues=0)

    # ---- flushes ----

    def cut(self) -> Cut:
        """What is on the disk now, pinned."""
        space, end = self._space, self.unsynced_place
        space.settle(end)
        used = (end - 1) // self._file + 1
        is_whole = space.oldest == 0 and all(number < used for number in self._slots)
        return Cut(space.oldest, end, self.synced, is_whole, space.pin())

    def _has_room(self) -> bool:
        return self._position + self._space.flush <= self._space.end

    def _free(self) -> int:
        """Free blocks behind the position, the padding of this flush and what may still be removed not counted."""
        return self._space.end - self._position - self._space.flush

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
        if self._free() >= self._wanted:
            self._wanted = 0
        elif space.oldest > self._turn_end:
            self._wanted, self._spent = 0, self._live_blocks
        self._set_ends()

    def _set_ends(self) -> None:
        """The position, the end of the ring or what is live has changed."""

    # ---- relocation ----

    def _wait_for(self, wanted: int) -> None:
        """Flushes are made, for nothing but relocation too, until so many blocks are free, or for one full turn."""
        if not self._wanted:
            self._turn_end = self._position // self._file
        self._wanted = max(self._wanted, wanted)

    def _before_flush(self) -> bool:
        if self._wanted:
            budget = self._chunk
        elif self._pieces and self._runs_short():
            budget = max(self._by_the_way, 2 * (self._position - self._start))
        else:
            return True
        try:
            self._relocate(budget)
        except (RhmError, OSError) as error:
            self._fail(f"a record that has to be copied forward cannot be read: {error}")
            return False
        return True

    def _runs_short(self) -> bool:
        """Whether compaction had better begin, so that nobody has to wait for it.

        Not where it is not sure to go through: half a file copied would only take the room of dequeues.
        """
        space, free = self._space, self._free()
        needs = space.compaction_needs(space.largest, self._escorts)
        return (
            needs - space.margin <= free < needs + self._file // 2
            and not space.drains(free - self._file, self._undequeued, self._outcomes)
            and space.compacts(self._live_blocks, space.largest, self._escorts)
        )

    def _can_relocate(self) -> bool:
        """Whether the oldest file's live records can be copied to the end, and it makes sense to free the file so."""
        if self._takes_up or self._space.oldest >= self.unsynced_place // self._file:
            return False
        if 0 < self._spent <= self._live_blocks:
            return False
        self._spent = 0
        self._find_moving()
        if self._is_worth_moving():
            return True
        self._moving_blocks = sum(self._blocks_moved(rid) for rid in self._moving)  # some are no longer live
        return self._is_worth_moving()

    def _is_worth_moving(self) -> bool:
        space, blocks = self._space, self._moving_blocks
        padding = (blocks // self._chunk + 2) * space.flush
        gains = (self._next_held - space.oldest) * self._file - blocks > padding
        compacts = gains or space.compacts(self._live_blocks, space.largest, self._escorts)
        return compacts and blocks + padding <= self._free() + space.flush

    def _find_moving(self) -> None:
        """List what is in the oldest file. The records in `live` are in order of place."""
        if self._moving_file == self._space.oldest:
            return
        self._moving_file = self._space.oldest
        end = (self._moving_file + 1) * self._file
        self._moving.clear()
        self._next_held = self.unsynced_place // self._file
        for rid, packed in self.live.items():
            if packed >> SIZE_BITS >= end:
                self._next_held = min(self._next_held, (packed >> SIZE_BITS) // self._file)
                break
            self._moving.append(rid)
        self._moving_blocks = sum(self._blocks_moved(rid) for rid in self._moving)

    def _blocks_moved(self, rid: int) -> int:
        """Blocks that are written when a record is moved out of the oldest file; 0 if it is not there any more."""
        if not self._is_in_oldest(rid):
            return 0
        xid = self._locked.get(rid)
        dequeue = None if xid is None else self.transactions[xid].dequeues.get(rid)
        return (self.live[rid] & SIZE_MASK) + (0 if dequeue is None else self.live[dequeue] & SIZE_MASK)

    def _is_in_oldest(self, rid: int) -> bool:
        return rid in self.live and (self.live[rid] >> SIZE_BITS) // self._file == self._space.oldest

    def _relocate(self, budget: int) -> None:
        """Copy so many blocks of the oldest file's live records to the end, or all that are left."""
        if not self._can_relocate():
            return
        end = self._position + budget
        while self._moving and self._position < end:
            rid = self._moving.popleft()
            self._moving_blocks -= min(self._moving_blocks, self._blocks_moved(rid))
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
        new = self._append(ENQUEUE | _MOVED, rid, xid, len(data), (data,), len(data), extend_crc32c(0, data))
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
        new = self._append(DEQUEUE | flags << FLAGS_SHIFT, rid, xid, target)
        self._move(rid, new, record_blocks(0, len(xid)))

    def _move(self, rid: int, place: int, blocks: int) -> None:
        packed = self.live.pop(rid)
        self._removed.append(packed)
        self.live[rid] = place << SIZE_BITS | blocks
        self._space.hold(place, blocks)
        self._live_blocks += blocks - (packed & SIZE_MASK)
        self._room += (packed & SIZE_MASK) - blocks
