"""The write batch of a version-2 journal: the records for its next flush.

It handles bytes, log offsets, files and flush numbers. Which records are live, and whether a record may be written at
all, is decided before (`admission`); closed flushes go to `flushes`.

A record gets its log offset, its file's salt and its flush's number when it is appended; records are joined when their
flush is closed. When a record reaches into the next file, that file's header is made. The rules of flushes that readers
rely on are in `formats.rhm`:

    padding    a flush ends at a multiple of the alignment in its file, or at the file's end
    last       its last record is flagged
    restart    the first flush of a resumed journal is a single filler, and its number 65,536 higher
    seal       so is the last flush of a clean close, but with the next number

Log offsets count blocks through the endless stream of all laps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from qstore.formats.rhm.file_header import SLOT_SIZE, FileHeader, encode_header_slot, other_slot
from qstore.formats.rhm.geometry import BLOCK_SIZE, DATA_OFFSET, FILE_HEADER_SIZE, Geometry
from qstore.formats.rhm.headers import (
    BLOCK_SHIFT,
    FIXED_SIZE,
    FLAGS_SHIFT,
    RESTART_GAP,
    ROUND_UP,
    word,
)
from qstore.formats.rhm.records import COMPRESSED, LAST_OF_FLUSH, SALT, SEAL, Kind
from qstore.store.journal.write.file_ring import FileRing
from qstore.store.journal.write.flushes import Flush
from qstore.store.journal.write.record_buffer import RecordBuffer

#: A message to be enqueued: its data in parts, how many bytes they are, their `data_crc`, and the first word of the
#: record's header: PLAIN_MESSAGE or COMPRESSED_MESSAGE.
StoredMessage: TypeAlias = tuple[Sequence[bytes], int, int, int]

#: As it comes: the first three of these.
MessageData: TypeAlias = tuple[Sequence[bytes], int, int]

PLAIN_MESSAGE: Final = word(Kind.ENQUEUE, 2)
COMPRESSED_MESSAGE: Final = word(Kind.ENQUEUE, 2, COMPRESSED)

_DEQUEUE: Final = word(Kind.DEQUEUE, 2)
_COMMIT: Final = word(Kind.COMMIT, 2)
_FILLER: Final = word(Kind.FILLER, 2)
_LAST: Final = LAST_OF_FLUSH << FLAGS_SHIFT
_LOW: Final = 0xFFFFFFFF  # a record stores the low half of its flush's number


class JournalOwner:
    """The owner of a journal, as each file header names it.

    Attributes:
        title: the journal's name in errors: `queue "orders"`.
        queue_id: the number of its queue.
        incarnation: number of times that the journal of that queue was rebuilt.
    """

    __slots__ = ("incarnation", "queue_id", "title")

    def __init__(self, title: str, queue_id: int, incarnation: int) -> None:
        self.title, self.queue_id, self.incarnation = title, queue_id, incarnation


class WriteBatch:
    """The records for the next flush of one journal.

    A writer appends plain records that fit into the current file to `records` itself, and updates `position` and
    `placed`; messages that need not fit, between `begin_record` and `end_record`. `append` handles all others.

    Args:
        owner: the journal's owner.
        geometry: the size of the files.
        ring: their order.
        alignment: bytes to which flushes are padded.
        position: log offset of the next record: where the journal ended.
        flush: number of the last synced flush; 0 for none.
        is_sealed: whether that was the seal of a clean close.
        salts: file, counted over all laps -> its salt, of the existing files. The batch takes it over.
        slots: file number -> the slot of its header in its sector, of files that have one. It is taken over too.
        salt: returns 64 random bits.
        clock: returns nanoseconds since the epoch.

    Attributes:
        position: log offset of the next record.
        index: the current file, counted over all laps: the one that contains the position, or ends at it.
        file_end: log offset where it ends.
        salt: its salt, as bytes.
        number: number of the next flush.
        low_number: its low half, which each record stores.
        start: log offset where it begins.
        records: its bytes.
        removed: records, packed, that are released when it is synced.
        placed: messages that the writer appended directly to the current file; `Flush.placed` has them by file.
        needs_restart: whether the journal is resumed and nothing was appended yet.
        is_sealed: whether the last flush is a seal.
        salts, slots: as above.
    """

    __slots__ = (
        "_alignment",
        "_clock",
        "_file",
        "_headers",
        "_identity",
        "_new_salt",
        "_placed",
        "_ring",
        "file_end",
        "index",
        "is_sealed",
        "low_number",
        "needs_restart",
        "number",
        "placed",
        "position",
        "records",
        "removed",
        "salt",
        "salts",
        "slots",
        "start",
    )

    def __init__(
        self,
        owner: JournalOwner,
        geometry: Geometry,
        ring: FileRing,
        *,
        alignment: int,
        position: int,
        flush: int,
        is_sealed: bool,
        salts: dict[int, int],
        slots: dict[int, int],
        salt: Callable[[], int],
        clock: Callable[[], int],
    ) -> None:
        self._identity = owner
        self._ring, self._file = ring, geometry.data_size // BLOCK_SIZE
        self._alignment = alignment // BLOCK_SIZE
        self._new_salt, self._clock = salt, clock
        self.needs_restart, self.is_sealed = flush > 0, is_sealed
        self.position = self.start = position
        self.index = (position - 1) // self._file
        self.file_end = (self.index + 1) * self._file
        self.salts, self.slots = salts, slots
        self.salt = SALT.pack(salts.get(self.index, 0))
        self.number = flush + 1
        self.low_number = self.number & _LOW
        self.records = RecordBuffer()
        self.removed: list[int] = []
        self.placed = 0
        self._placed: dict[int, int] = {}
        self._headers: dict[int, tuple[int, bytes]] = {}

    # ---- records ----

    def append(
        self, kind: int, rid: int, xid: bytes, datum: int, parts: Sequence[bytes] = (), size: int = 0, crc: int = 0
    ) -> int:
        """Append any record, and enter the files that it reaches.

        Args:
            kind: the first word of its header: kind, version and flags.
            rid: its record id.
            xid: its transaction's id; empty for none.
            datum: the last field of its header.
            parts: its data.
            size: bytes of all parts.
            crc: their `data_crc`.

        Returns:
            Its log offset.
        """
        blocks = (ROUND_UP + len(xid) + size) >> BLOCK_SHIFT
        place = self.begin_record()
        padding = (blocks << BLOCK_SHIFT) - FIXED_SIZE - len(xid) - size
        self.records.append(kind, rid, xid, self.low_number, datum, parts, size, crc, self.salt, padding)
        self.end_record(blocks)
        return place

    def begin_record(self) -> int:
        """Enter the next file if the current one is full. Returns the log offset of the record that follows."""
        if self.position == self.file_end:
            self._enter(0)
        return self.position

    def end_record(self, blocks: int) -> None:
        """A record of so many blocks was appended to `records`: enter the files that it reaches."""
        self.position += blocks
        while self.position > self.file_end:
            self._enter(self.position - self.file_end)

    def append_transaction(
        self,
        xid: bytes,
        rids: list[int],
        messages: list[MessageData],
        targets: list[int],
        firsts: list[int],
        *,
        commits: bool,
    ) -> list[int]:
        """Append all records of a transaction; they fit in the current file.

        Args:
            xid: the transaction.
            rids: record ids of its enqueues, of its dequeues, and of its commit, if it `commits`.
            messages: the messages that it enqueues.
            targets: the messages that it dequeues.
            firsts: the first word of each message's header; empty if all are PLAIN_MESSAGE.
            commits: whether its commit follows. If not, its dequeues are counted in `placed` too: they are kept.

        Returns:
            The log offsets of the messages, and of the end of the last.
        """
        records, low_number, place = self.records, self.low_number, self.position
        size_of_xid, number, first = len(xid), 0, PLAIN_MESSAGE
        salt, around = self.salt, ROUND_UP + size_of_xid
        places = [place]
        for parts, size, crc in messages:
            if firsts:
                first = firsts[number]
            blocks = (around + size) >> BLOCK_SHIFT
            padding = (blocks << BLOCK_SHIFT) - FIXED_SIZE - size_of_xid - size
            records.append(first, rids[number], xid, low_number, size, parts, size, crc, salt, padding)
            number += 1
            place += blocks
            places.append(place)
        blocks = around >> BLOCK_SHIFT
        padding = (blocks << BLOCK_SHIFT) - FIXED_SIZE - size_of_xid
        for target in targets:
            records.append(_DEQUEUE, rids[number], xid, low_number, target, (), 0, 0, salt, padding)
            number += 1
        self.placed += len(messages)
        self.position = place + blocks * len(targets)
        if commits:
            records.append(_COMMIT, rids[number], xid, low_number, 0, (), 0, 0, salt, padding)
            self.position += blocks
        else:
            self.placed += len(targets)
        return places

    def _fill(self, blocks: int, flags: int) -> None:
        """Append a filler of `blocks` blocks in the current file."""
        first, padding = _FILLER | flags << FLAGS_SHIFT, blocks * BLOCK_SIZE - FIXED_SIZE
        self.records.append(first, 0, b"", self.low_number, blocks, (), 0, 0, self.salt, padding)
        self.end_record(blocks)

    def _enter(self, rest: int) -> None:
        """Make the header of the next file; the record that reaches it has `rest` blocks still to come."""
        if self.placed:
            self._count_placed()
        self.index += 1
        self.file_end += self._file
        offset = 0 if rest >= self._file else DATA_OFFSET + rest * BLOCK_SIZE
        salt = self._new_salt()
        self.salts[self.index] = salt
        seconds, nanoseconds = divmod(self._clock(), 1_000_000_000)
        number = self._ring.number(self.index)
        slot = self.slots.get(number)
        self.slots[number] = 0 if slot is None else other_slot(slot)
        header = FileHeader(
            2,
            self._ring.indicator(self.index),
            number,
            offset,
            seconds,
            nanoseconds,
            first_flush=self.number,
            salt=salt,
            queue_id=self._identity.queue_id,
            incarnation=self._identity.incarnation,
            flush_alignment=self._alignment * BLOCK_SIZE,
        )
        self._headers[self.index] = (self.slots[number] * SLOT_SIZE, encode_header_slot(header))
        self.salt = SALT.pack(salt)

    def _count_placed(self) -> None:
        self._placed[self.index] = self.placed
        self.placed = 0

    def forget_files(self, before: int) -> None:
        """Forget the salts of files before `before`: they are free and are not read again. The current one is kept."""
        salts, before = self.salts, min(before, self.index)
        for index in [index for index in salts if index < before]:
            del salts[index]

    # ---- flushes ----

    def close(self) -> Flush:
        """Pad the batch, flag its last record, and begin the next one."""
        if blocks := self._to_alignment():
            self._fill(blocks, LAST_OF_FLUSH)
        else:
            self.records.flag_last()
        if self.placed:
            self._count_placed()
        pieces = self.records.take()
        flush = Flush(self.number, self.start, self.position, pieces, self._headers, self._placed, self.removed)
        self._headers, self._placed, self.removed = {}, {}, []
        self.start = self.position
        self.number += 1
        self.low_number = self.number & _LOW
        return flush

    def restart(self, flags: int = 0) -> Flush:
        """The flush that precedes the first record of a resumed journal: one filler, with a much higher number."""
        assert self.needs_restart
        self.needs_restart = self.is_sealed = False
        self.number += RESTART_GAP - 1
        self.low_number = self.number & _LOW
        return self._filler_flush(flags)

    @property
    def needs_seal(self) -> bool:
        """Whether a clean close must write a seal: not if nothing was ever written, nor since the last seal."""
        is_new = self.number == 1 and self.records.is_empty
        return not (is_new or (self.needs_restart and self.is_sealed))

    def seal(self) -> list[Flush]:
        """The current batch, if any, and the flush of one filler that states that the journal was closed cleanly."""
        if self.needs_restart:
            flushes = [self.restart(SEAL)]
        else:
            flushes = [] if self.records.is_empty else [self.close()]
            flushes.append(self._filler_flush(SEAL))
        self.is_sealed = True
        return flushes

    def _filler_flush(self, flags: int) -> Flush:
        """A flush of a single filler up to the next multiple of the alignment."""
        if self.position == self.file_end:
            self._enter(0)
        room = self.file_end - self.position
        self._fill(min(self._to_alignment() or self._alignment, room), flags)
        return self.close()

    def _to_alignment(self) -> int:
        """Blocks from the position to the next multiple of the alignment in the file, or to the file's end."""
        room = self.file_end - self.position
        offset = self._file + FILE_HEADER_SIZE // BLOCK_SIZE - room
        return min(-offset % self._alignment, room)


def transaction_blocks(xid: bytes, messages: list[MessageData]) -> tuple[int, int]:
    """Blocks of all the records of messages that a transaction enqueues, and of the longest."""
    blocks = largest = 0
    around = ROUND_UP + len(xid)
    for _parts, size, _crc in messages:  # names of their own: one for both would have to hold objects
        needed = (around + size) >> BLOCK_SHIFT
        blocks += needed
        if needed > largest:
            largest = needed
    return blocks, largest
