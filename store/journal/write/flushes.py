"""A version-2 writer's output to the disk: the write batch, closed flushes, and the steps that write them.

    RecordBuffer    the bytes of the batch: records, encoded one after another
    WriteBatch      the records of the next flush, with log offsets, files and flush number; `close` makes a `Flush`
    FlushQueue      the closed flushes, cut into steps
    Step            writes, and the files to sync after them: the next work for the owner of a writer

A record gets its log offset, its file's salt and its flush's number when it is appended. Log offsets count blocks
through the endless stream of all laps. When a record reaches into the next file, that file's header is made. The writer
has decided before which records are live, and whether one may be written at all. Readers rely on these rules for
flushes (`formats.rhm`):

    padding    a flush ends at a multiple of the alignment in its file, or at the file's end
    last       its last record is flagged
    restart    the first flush of a resumed journal is a single filler, and its number 65,536 higher
    seal       the last flush of a clean close is a single filler, with the next number

A flush is the bytes of its records, contiguous, from the log offset where it starts. It is one step; but a file's
header must be synced before any data goes into that file, so each file that the flush enters adds a step:

    step 1    the rest of the current file, and the header of the next
    step 2    the data for that file, and the header of the file after it, and so on

A flush that begins with a new file has only that file's header in its first step.

A writer does no I/O. Its owner asks it for the next step, does the writes in order, syncs each file named in the step,
and calls `flushed`; or `failed`, after which the writer accepts nothing more. One step is under way at a time. The
writer of version 1 requests the same steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

from librt.strings import BytesWriter, write_i32_le, write_i64_le
from mypy_extensions import u8

from qstore.formats.checksum import extend_crc32c
from qstore.formats.kernels import encode_dequeues, encode_records
from qstore.formats.kernels.bodies import Bodies, SizeField
from qstore.formats.rhm.file_header import SLOT_SIZE, FileHeader, encode_header_slot, other_slot
from qstore.formats.rhm.geometry import BLOCK_SIZE, DATA_OFFSET, FILE_HEADER_SIZE, Geometry
from qstore.formats.rhm.headers import (
    BLOCK_SHIFT,
    FIXED_SIZE,
    FLAGS_SHIFT,
    HEADER_2,
    PADDINGS,
    RESTART_GAP,
    ROUND_UP,
    RecordChecksums,
    word,
)
from qstore.formats.rhm.records import COMPRESSED, LAST_OF_FLUSH, PADDING, SALT, SEAL, TAIL, Kind
from qstore.store.journal.write.space import FileRing

# ---- steps ----


class Pieces:
    """Bytes in many pieces, which are written one after the other, without being joined.

    Attributes:
        pieces: the pieces.
        size: bytes of all of them.
    """

    __slots__ = ("pieces", "size")

    def __init__(self, pieces: list[bytes], size: int) -> None:
        self.pieces, self.size = pieces, size

    def __len__(self) -> int:
        return self.size

    def __bytes__(self) -> bytes:
        return b"".join(self.pieces)


def part_of(pieces: Sequence[bytes], offset: int, size: int) -> bytes:
    """A part of bytes in many pieces, of which only those that have it are copied."""
    parts: list[bytes] = []
    for piece in pieces:
        if offset >= len(piece):
            offset -= len(piece)
            continue
        parts.append(piece[offset : offset + size])
        offset, size = 0, size - len(parts[-1])
        if size <= 0:
            break
    return parts[0] if len(parts) == 1 else b"".join(parts)


class Write:
    """Bytes for one file of the journal.

    Attributes:
        file: the file's number in the ring.
        offset: bytes from the file's start.
        content: the bytes to write.
    """

    __slots__ = ("content", "file", "offset")

    def __init__(self, file: int, offset: int, content: bytes | memoryview | Pieces) -> None:
        self.file, self.offset, self.content = file, offset, content


class Step:
    """Writes to do in order, and files to sync then.

    Attributes:
        writes: the writes; none is longer than the write cache.
        files: numbers of the files to sync when all is written.
    """

    __slots__ = ("files", "writes")

    def __init__(self, writes: Sequence[Write], files: tuple[int, ...]) -> None:
        self.writes, self.files = writes, files


# ---- the bytes of the batch ----

_LONG: Final = 8 * 1024  # bytes of data that are not copied
_LONG_RUN: Final = _LONG // BLOCK_SIZE  # blocks: the records of such a run, except the last, are not copied
_FULL: Final = 64 * 1024  # a buffer with this many bytes is emptied before the next record
_EMBEDDED: Final = 256  # bytes that a BytesWriter has room for without an allocation

_HEADER_SIZE: Final = HEADER_2.size
_XID_SIZE_OFFSET: Final = 16
_DATUM_OFFSET: Final = 24
_FLAG_OFFSET: Final = FLAGS_SHIFT // 8 + 1  # of the byte that has the flag
_FLAG: Final = LAST_OF_FLUSH >> 8
assert (HEADER_2.format, TAIL.format) == ("<QQIIQ", "<IQ")

_IS_COMPILED: Final = not __file__.endswith(".py")

_SIGN: Final = 1 << 31
_MAX_SMALL: Final = (1 << 62) - 1
_PADDING: Final = PADDING  # compiled, this is a C variable

_COVERED: Final = _HEADER_SIZE + SALT.size
_FLAG_IN_CRC: Final = extend_crc32c(0, bytes(_COVERED)) ^ extend_crc32c(
    0, bytes(_FLAG_OFFSET) + bytes([_FLAG]) + bytes(_COVERED - _FLAG_OFFSET - 1)
)


class RecordBuffer:
    """The bytes of one flush's records.

    Short records are encoded into one buffer, field by field; long data is kept as received, between two pieces of the
    buffer, and is not copied before it is written. The fields are those of HEADER_2 and TAIL (`formats.rhm`).

    The last record of a flush is flagged when the flush is closed. A record's CRC covers its data, xid, header and salt
    in this order. CRCs are linear, and the flag has the same distance from the end of these bytes in every record, so
    the flag changes each CRC by the same bits.

    Args:
        is_compiled: whether the fields are written one by one. That takes 0.20 µs a record instead of 0.59 with
            `struct` in compiled code, and 1.9 instead of 0.84 in pure Python (`bench_journal`, encoding a record).

    Attributes:
        is_empty: whether there are no records.
        last_rid: the record id of the last record, which is not flagged yet; 0 for a filler.
    """

    __slots__ = (
        "_checksums",
        "_head",
        "_is_compiled",
        "_is_large",
        "_last",
        "_pieces",
        "_writer",
        "is_empty",
        "last_rid",
    )

    def __init__(self, *, is_compiled: bool = _IS_COMPILED) -> None:
        self._is_compiled = is_compiled
        self._writer, self._checksums = BytesWriter(), RecordChecksums()
        self._pieces: list[bytes] = []  # the bytes before the content of the writer
        self._last = 0  # offset in the writer of the last record
        self._head = -1  # index of the piece with the last record's header, if that record is long
        self._is_large = False
        self.is_empty = True
        self.last_rid = 0

    def append(
        self,
        first: int,
        rid: int,
        xid: bytes,
        flush: int,
        datum: int,
        parts: Sequence[bytes],
        size: int,
        crc: int,
        salt: bytes,
        padding: int,
    ) -> None:
        """Append a record.

        Args:
            first: the first word of its header: kind, version and flags.
            rid: its record id.
            xid: its transaction's id; empty for none.
            flush: the low half of its flush's number.
            datum: the last field of its header.
            parts: its data.
            size: bytes of all parts.
            crc: their `data_crc`.
            salt: the salt of the file in which it begins.
            padding: bytes of padding.
        """
        writer, xid_size = self._writer, len(xid)
        self.is_empty, self.last_rid = False, rid
        if size >= _LONG or len(writer) >= _FULL:
            self._spill()
        self._last, self._head = len(writer), -1
        if self._is_compiled:
            check = self._checksums.check(first, rid, xid, flush, datum, crc, salt)
            if rid > _MAX_SMALL or datum > _MAX_SMALL:
                rid, datum = _as_signed(rid), _as_signed(datum)
            write_i64_le(writer, first)
            write_i64_le(writer, rid)
            write_i32_le(writer, xid_size)
            write_i32_le(writer, (flush ^ _SIGN) - _SIGN)
            write_i64_le(writer, datum)
            if xid_size:
                writer.write(xid)
        else:
            head = HEADER_2.pack(first, rid, xid_size, flush, datum)
            check = extend_crc32c(crc, xid + head + salt)
            writer.write(head + xid)
        if size >= _LONG:
            self._head = len(self._pieces)
            self._spill()
            self._pieces += parts
        elif isinstance(parts, tuple):  # compiled, its loop saves 0.03 of 0.23 µs a record (`bench_journal`)
            in_tuple: tuple[bytes, ...] = parts
            for part in in_tuple:
                writer.write(part)
        else:
            for part in parts:
                writer.write(part)
        after = PADDINGS[padding] if padding < BLOCK_SIZE else _PADDING * padding
        if self._is_compiled:
            write_i32_le(writer, (check ^ _SIGN) - _SIGN)
            write_i64_le(writer, rid)
            writer.write(after)
        else:
            writer.write(TAIL.pack(check, rid) + after)

    def append_run(
        self,
        rid: int,
        flush: int,
        head: bytes,
        field: SizeField | None,
        bodies: Bodies,
        first: int,
        count: int,
        blocks: int,
        last: int,
        salt: bytes,
    ) -> None:
        """Append the records of a run of messages, outside of transactions: `encode_records` explains the arguments.

        The records have `blocks` blocks, the last one `last`. `flush` is the low half of the flush's number.
        """
        data, at, starts, gap = bodies.data, bodies.at, bodies.starts, bodies.gap
        if blocks >= _LONG_RUN:
            several = count - 1
            self._append_piece(
                encode_records(PLAIN_MESSAGE, rid, flush, head, field, data, at, starts, gap, first, several, salt)
            )
            rid, first, count = rid + several, first + several, 1
        records = encode_records(PLAIN_MESSAGE, rid, flush, head, field, data, at, starts, gap, first, count, salt)
        self._append_records(records, len(records) - last * BLOCK_SIZE, rid + count - 1)

    def append_dequeues(self, rid: int, flush: int, target: int, count: int, salt: bytes) -> None:
        """Append the dequeues of messages with consecutive record ids: `encode_dequeues` explains the arguments."""
        if count >= _LONG_RUN:
            count -= 1
            self._append_piece(encode_dequeues(_DEQUEUE, rid, flush, target, count, salt))
            rid, target, count = rid + count, target + count, 1
        records = encode_dequeues(_DEQUEUE, rid, flush, target, count, salt)
        self._append_records(records, len(records) - BLOCK_SIZE, rid + count - 1)

    def _append_records(self, records: bytes, last: int, rid: int) -> None:
        """Append encoded records; `last` is the offset of the last one, and `rid` its id."""
        self.is_empty, self.last_rid = False, rid
        if len(self._writer) >= _FULL:
            self._spill()
        self._last, self._head = len(self._writer) + last, -1
        self._writer.write(records)

    def _append_piece(self, records: bytes) -> None:
        """Append many encoded records without copying them; others follow, since these cannot be flagged."""
        self._spill()
        self._pieces.append(records)

    def _spill(self) -> None:
        """Empty the writer."""
        writer = self._writer
        if len(writer):
            self._pieces.append(writer.getvalue())
            writer.truncate(0)
            self._is_large = True

    def flag_last(self) -> None:
        """Flag the last record as the last of its flush."""
        writer, begin, tail = self._writer, self._last, 0
        if self._head >= 0:  # its tail begins the writer
            head = bytearray(self._pieces[self._head])
            head[_FLAG_OFFSET] |= _FLAG
            self._pieces[self._head] = bytes(head)
        else:
            tail = begin + _HEADER_SIZE + self._field(begin + _XID_SIZE_OFFSET, 4)
            if self._field(begin, 4) == Kind.ENQUEUE:
                tail += self._field(begin + _DATUM_OFFSET, 8)
            writer[begin + _FLAG_OFFSET] |= _FLAG
        crc = self._field(tail, 4) ^ _FLAG_IN_CRC
        for at in range(4):
            writer[tail + at] = u8(crc >> 8 * at & 0xFF)

    def _field(self, begin: int, size: int) -> int:
        """An integer in the writer."""
        writer, value = self._writer, 0
        for at in range(size):
            value |= int(writer[begin + at]) << 8 * at
        return value

    def part(self, offset: int, size: int) -> bytes:
        """A part of the bytes of all records so far."""
        part = part_of(self._pieces, offset, size)
        if len(part) == size:
            return part
        begin = max(0, offset - sum(map(len, self._pieces)))
        return part + self._writer.getvalue()[begin : begin + size - len(part)]

    def take(self) -> list[bytes]:
        """Remove and return the bytes of all records, in pieces."""
        pieces, writer = self._pieces, self._writer
        if len(writer) > _EMBEDDED:
            self._is_large = True
        pieces.append(writer.getvalue())
        writer.truncate(0)
        self._pieces, self.is_empty = [], True
        return pieces

    def free(self) -> None:
        """Free the memory of the empty buffer: the journal may be idle."""
        if self._is_large and self.is_empty:
            self._writer, self._is_large = BytesWriter(), False


def _as_signed(value: int) -> int:
    """The signed 64-bit integer with the same bits."""
    return value - (1 << 64) if value >> 63 else value


# ---- the batch ----

#: A message to be enqueued: its data in parts, their total size in bytes, their `data_crc`, and the first word of the
#: record's header: PLAIN_MESSAGE or COMPRESSED_MESSAGE.
StoredMessage: TypeAlias = tuple[Sequence[bytes], int, int, int]

#: A message as received: the first three of these.
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


class Flush:
    """A flush that is closed and not yet synced.

    Attributes:
        number: its number, 64 bits.
        start: log offset, in blocks of the endless stream, where it begins.
        end: log offset after it.
        pieces: its bytes.
        headers: file, counted over all laps -> log offset and header of each file that it enters.
        placed: file, counted over all laps -> number of messages in it that `RingSpace` does not count yet.
        removed: the live records, packed, that are released when it is synced.
        released: the same for records of runs: file, counted over all laps -> number of records that touch it.
    """

    __slots__ = ("end", "headers", "number", "pieces", "placed", "released", "removed", "start")

    def __init__(
        self,
        number: int,
        start: int,
        end: int,
        pieces: list[bytes],
        headers: dict[int, tuple[int, bytes]],
        placed: dict[int, int],
        removed: list[int],
        released: dict[int, int],
    ) -> None:
        self.number, self.start, self.end, self.pieces = number, start, end, pieces
        self.headers, self.placed, self.removed, self.released = headers, placed, removed, released

    @property
    def content(self) -> bytes:
        """Its bytes, joined."""
        content = b"".join(self.pieces)
        assert len(content) == (self.end - self.start) * BLOCK_SIZE
        return content

    def part(self, offset: int, size: int) -> bytes:
        """A part of its bytes."""
        return part_of(self.pieces, offset, size)


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
        salts: file, counted over all laps -> its salt, of the existing files. Owned by the batch from now on.
        slots: file number -> the slot of its header in its sector, of files that have one. Likewise owned.
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
        last_rid: of the last record that is no filler in the flushes before; 0 if this process has made none.
        last_number, last_start: number and log offset of the flush that contains it.
        records: its bytes.
        removed: records, packed, that are released when it is synced.
        released: the same for records of runs: file, counted over all laps -> number of records that touch it.
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
        "last_number",
        "last_rid",
        "last_start",
        "low_number",
        "needs_restart",
        "number",
        "placed",
        "position",
        "records",
        "released",
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
        self.position = self.start = self.last_start = position
        self.last_rid = self.last_number = 0
        self.index = (position - 1) // self._file
        self.file_end = (self.index + 1) * self._file
        self.salts, self.slots = salts, slots
        self.salt = SALT.pack(salts.get(self.index, 0))
        self.number = flush + 1
        self.low_number = self.number & _LOW
        self.records = RecordBuffer()
        self.removed: list[int] = []
        self.released: dict[int, int] = {}
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
        """Enter the files that a record of `blocks` blocks reaches, which was appended to `records`."""
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
            commits: whether its commit follows. If not, its dequeues are counted in `placed` too, since they are kept.

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
        rid = self.records.last_rid
        if rid:
            self.last_rid, self.last_number, self.last_start = rid, self.number, self.start
        if blocks := self._to_alignment():
            self._fill(blocks, LAST_OF_FLUSH)
        else:
            self.records.flag_last()
        if self.placed:
            self._count_placed()
        pieces = self.records.take()
        flush = Flush(
            self.number, self.start, self.position, pieces, self._headers, self._placed, self.removed, self.released
        )
        self._headers, self._placed, self.removed, self.released = {}, {}, [], {}
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
    for _parts, size, _crc in messages:  # typed separately: a shared name would have to hold objects
        needed = (around + size) >> BLOCK_SHIFT
        blocks += needed
        if needed > largest:
            largest = needed
    return blocks, largest


# ---- closed flushes ----


class FlushQueue:
    """The closed flushes that are not yet synced. One step is under way at a time.

    Args:
        geometry: the size of the files.
        ring: their order.
        page: maximum bytes of one write.
        synced: number of the last synced flush; 0 for none.
        place: log offset where it ends.

    Attributes:
        synced: number of the last synced flush.
        synced_place: log offset where it ends, and unsynced data begins.
        in_flight: the flush whose steps are being issued; None between flushes.
        is_under_way: whether a step was issued that is not yet synced.
    """

    __slots__ = (
        "_file",
        "_page",
        "_ring",
        "_steps",
        "_waiting",
        "in_flight",
        "is_under_way",
        "synced",
        "synced_place",
    )

    def __init__(self, geometry: Geometry, ring: FileRing, *, page: int, synced: int, place: int) -> None:
        self._ring, self._file, self._page = ring, geometry.data_size // BLOCK_SIZE, page
        self.synced, self.synced_place = synced, place
        self.in_flight: Flush | None = None
        self.is_under_way = False
        self._waiting: deque[Flush] = deque()
        self._steps: deque[Step] = deque()

    @property
    def is_empty(self) -> bool:
        """Whether every closed flush is synced."""
        return self.in_flight is None and not self._waiting

    @property
    def last(self) -> int:
        """Number of the last closed flush."""
        if self._waiting:
            return self._waiting[-1].number
        return self.synced if self.in_flight is None else self.in_flight.number

    def add(self, flush: Flush) -> None:
        """Add a closed flush."""
        self._waiting.append(flush)

    def holding(self, place: int) -> Flush:
        """The flush that contains a log offset, which is not synced."""
        closed = self._waiting if self.in_flight is None else (self.in_flight, *self._waiting)
        return next(flush for flush in closed if place < flush.end)

    def next_step(self) -> Step | None:
        """Issue the next step; None if there is none, or one is under way."""
        if self.is_under_way:
            return None
        if self.in_flight is None:
            if not self._waiting:
                return None
            flush = self.in_flight = self._waiting.popleft()
            self.is_under_way = True
            step = whole_step(flush, self._ring, self._file, self._page)
            if step is not None:
                return step
            self._steps = deque(steps(flush, self._ring, self._file, self._page))
        self.is_under_way = True
        return self._steps.popleft()

    def step_synced(self) -> Flush | None:
        """Note that the step under way is synced. Returns its flush, if it was the flush's last step."""
        flush = self.in_flight
        assert self.is_under_way
        assert flush is not None
        self.is_under_way = False
        if self._steps:
            return None
        self.in_flight = None
        self.synced, self.synced_place = flush.number, flush.end
        return flush

    def step_lost(self) -> None:
        """Forget the step under way, if any: its outcome is unknown."""
        self.is_under_way = False


def whole_step(flush: Flush, ring: FileRing, file_blocks: int, page: int) -> Step | None:
    """The only step of a flush that is one write within a file, as nearly all small ones are; None of others.

    Args:
        flush: the flush to write.
        ring: the order of the files.
        file_blocks: blocks of data area in each.
        page: maximum bytes of one write.
    """
    size = (flush.end - flush.start) * BLOCK_SIZE
    index, block = divmod(flush.start, file_blocks)
    if size > page or not block or (flush.end - 1) // file_blocks != index:
        return None
    number, pieces = ring.number(index), flush.pieces
    content = pieces[0] if len(pieces) == 1 else Pieces(pieces, size)
    return Step((Write(number, DATA_OFFSET + block * BLOCK_SIZE, content),), (number,))


def steps(flush: Flush, ring: FileRing, file_blocks: int, page: int) -> Iterator[Step]:
    """The steps of any flush. Arguments as of `whole_step`."""
    writes: list[Write] = []
    touched: dict[int, None] = {}
    content, at, place = memoryview(flush.content), 0, flush.start
    while place < flush.end:
        index, block = divmod(place, file_blocks)
        number = ring.number(index)
        header = flush.headers.get(index) if block == 0 else None
        if header is not None:
            writes.append(Write(number, header[0], header[1]))
            touched[number] = None
            yield Step(tuple(writes), tuple(touched))
            writes, touched = [], {}
        end = min(flush.end, (index + 1) * file_blocks)
        stop = at + (end - place) * BLOCK_SIZE
        offset = DATA_OFFSET + block * BLOCK_SIZE
        while at < stop:
            count = min(page, stop - at)
            writes.append(Write(number, offset, content[at : at + count]))
            at += count
            offset += count
        touched[number] = None
        place = end
    yield Step(tuple(writes), tuple(touched))
