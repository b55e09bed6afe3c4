"""Places the records of a version-2 journal, gathers them into flushes, and hands the flushes out in steps.

This half of the writer knows bytes, places, files and flushes; what is live, and what may be written at all, is the
other half's (`version_2_writer`). Records get their place, their file's salt and their flush's number when they are
appended; they are joined and cut into writes when their flush begins. While one flush is on its way to the disk, the
next one gathers. The rules of flushes that readers rely on are in `formats.rhm`:

    padding    a flush ends at a multiple of the alignment in its file, or at the file's end
    last       its last record is flagged
    restart    the first flush of a journal that is taken up again is a single filler, and its number 65,536 higher
    seal       so is the last one of a clean close, with the number that is due

Places count blocks through the endless stream of all laps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from formats.checksum import extend_crc32c
from formats.rhm.file_header import SLOT_SIZE, SLOTS, FileHeader, encode_header_slot
from formats.rhm.geometry import BLOCK_SIZE, DATA_OFFSET, FILE_HEADER_SIZE, Geometry
from formats.rhm.headers import BLOCK_SHIFT, FIXED_SIZE, FLAGS_SHIFT, HEADER_2, PADDINGS, RESTART_GAP, ROUND_UP, word
from formats.rhm.records import LAST_OF_FLUSH, PADDING, SALT, SEAL, TAIL, TAIL_SIZE, Kind
from store.journal.flushes import Flush, steps
from store.journal.step import JournalFailedError, Step

_FILLER: Final = word(Kind.FILLER, 2)
_LAST: Final = LAST_OF_FLUSH << FLAGS_SHIFT


class Identity:
    """Whose journal it is: what each file header says of it.

    Attributes:
        title: names the journal in errors: `queue "orders"`.
        queue_id: the number of its queue.
        incarnation: how often the journal of that queue was built anew.
    """

    __slots__ = ("incarnation", "queue_id", "title")

    def __init__(self, title: str, queue_id: int, incarnation: int) -> None:
        self.title, self.queue_id, self.incarnation = title, queue_id, incarnation


class Gathering:
    """The flushes of one journal, from the first record appended to the last step synced.

    Args:
        identity: whose journal it is.
        geometry: number and size of the files.
        alignment: bytes to which flushes are padded.
        page: bytes of one write.
        position: place where the next record goes: where the journal ended.
        flush: number of the last flush that is on the disk; 0 for none.
        is_sealed: whether that was the seal of a clean close.
        salts: file, counted over all laps -> its salt, of the files that are there.
        slots: number of a file -> the place that its header has in its sector, of files that have one.
        salt: gives 64 random bits.
        clock: gives the time as nanoseconds since the epoch.

    Attributes:
        gathering: number of the flush that gathers.
        synced: number of the last flush that is on the disk.
        last_flush: the same; of a journal that was taken up and not written to, that of its last record.
        failure: the error after which the journal takes no records; None if there is none.
    """

    __slots__ = (
        "_alignment",
        "_clock",
        "_closed",
        "_file",
        "_file_end",
        "_files",
        "_flush_number",
        "_headers",
        "_in_flight",
        "_index",
        "_is_sealed",
        "_last",
        "_new_salt",
        "_page",
        "_pieces",
        "_position",
        "_removed",
        "_salt",
        "_salts",
        "_slots",
        "_start",
        "_steps",
        "_takes_up",
        "_under_way",
        "failure",
        "gathering",
        "identity",
        "last_flush",
        "synced",
    )

    def __init__(
        self,
        identity: Identity,
        geometry: Geometry,
        *,
        alignment: int,
        page: int,
        position: int,
        flush: int,
        is_sealed: bool,
        salts: dict[int, int],
        slots: dict[int, int],
        salt: Callable[[], int],
        clock: Callable[[], int],
    ) -> None:
        self.identity = identity
        self._files, self._file = geometry.files, geometry.data_size // BLOCK_SIZE
        self._alignment, self._page = alignment // BLOCK_SIZE, page
        self._new_salt, self._clock = salt, clock
        self.failure: JournalFailedError | None = None
        self.synced = self.last_flush = flush
        self.gathering = flush + 1
        self._takes_up, self._is_sealed = flush > 0, is_sealed
        self._position = self._start = position
        self._index = (position - 1) // self._file  # the file that the position is in, or at the end of
        self._file_end = (self._index + 1) * self._file
        self._salts = salts
        self._salt = SALT.pack(salts.get(self._index, 0))
        self._flush_number = self.gathering & 0xFFFFFFFF
        self._pieces: list[bytes] = []
        self._last = 0  # where in the pieces the last record begins
        self._headers: dict[int, tuple[int, bytes]] = {}
        self._slots = slots
        self._removed: list[int] = []
        self._closed: deque[Flush] = deque()
        self._in_flight: Flush | None = None
        self._steps: deque[Step] = deque()
        self._under_way = False

    # ---- what is unsynced ----

    @property
    def unsynced(self) -> int:
        """Bytes that were appended and are not yet known to be on the disk."""
        start = self._closed[0].start if self._closed else self._start
        if self._in_flight is not None:
            start = self._in_flight.start
        return (self._position - start) * BLOCK_SIZE

    @property
    def is_dirty(self) -> bool:
        """Whether there is anything that is not synced."""
        return bool(self._pieces or self._closed or self._in_flight)

    @property
    def last_dirty(self) -> int:
        """Number of the last flush that is not synced; if there is none, of one that is."""
        if self._pieces:
            return self.gathering
        if self._closed:
            return self._closed[-1].number
        return self.synced if self._in_flight is None else self._in_flight.number

    def salt_at(self, place: int) -> int:
        """The salt of the file in which `place` lies."""
        return self._salts[place // self._file]

    @property
    def is_under_way(self) -> bool:
        """Whether a step was handed out that is not yet synced."""
        return self._under_way

    @property
    def unsynced_place(self) -> int:
        """Where what is not synced begins."""
        if self._in_flight is not None:
            return self._in_flight.start
        return self._closed[0].start if self._closed else self._start

    # ---- records ----

    def _append(
        self, kind: int, rid: int, xid: bytes, datum: int, parts: Sequence[bytes] = (), size: int = 0, crc: int = 0
    ) -> int:
        """Append any record, with its flags in `kind`, and enter the files that it reaches. Returns its place."""
        blocks = (ROUND_UP + len(xid) + size) >> BLOCK_SHIFT
        if self._position == self._file_end:
            self._enter(0)
        place = self._position
        head = HEADER_2.pack(kind, rid, len(xid), self._flush_number, datum)
        pieces = self._pieces
        self._last = len(pieces)
        pieces.append(head)
        if xid:
            pieces.append(xid)
        pieces += parts
        crc = extend_crc32c(crc, xid + head + self._salt)
        pieces.append(TAIL.pack(crc, rid) + PADDINGS[(blocks << BLOCK_SHIFT) - FIXED_SIZE - len(xid) - size])
        self._advance(blocks)
        return place

    def _fill(self, blocks: int, flags: int) -> None:
        """Append a filler over so many blocks of the present file."""
        head = HEADER_2.pack(_FILLER | flags << FLAGS_SHIFT, 0, 0, self._flush_number, blocks)
        self._last = len(self._pieces)
        self._pieces.append(head)
        self._pieces.append(TAIL.pack(extend_crc32c(0, head + self._salt), 0))
        self._pieces.append(PADDING * (blocks * BLOCK_SIZE - FIXED_SIZE))
        self._advance(blocks)

    def _advance(self, blocks: int) -> None:
        self._position += blocks
        while self._position > self._file_end:
            self._enter(self._position - self._file_end)

    def _enter(self, rest: int) -> None:
        """Make the header of the next file, in which the record that reaches it has so many blocks still to come."""
        self._index += 1
        self._file_end += self._file
        offset = 0 if rest >= self._file else DATA_OFFSET + rest * BLOCK_SIZE
        salt = self._new_salt()
        self._salts[self._index] = salt
        seconds, nanoseconds = divmod(self._clock(), 1_000_000_000)
        lap, number = divmod(self._index, self._files)
        slot = self._slots.get(number)
        self._slots[number] = 0 if slot is None else (slot + 1) % SLOTS
        header = FileHeader(
            2,
            lap & 1,
            number,
            offset,
            seconds,
            nanoseconds,
            first_flush=self.gathering,
            salt=salt,
            queue_id=self.identity.queue_id,
            incarnation=self.identity.incarnation,
            flush_alignment=self._alignment * BLOCK_SIZE,
        )
        self._headers[self._index] = (self._slots[number] * SLOT_SIZE, encode_header_slot(header))
        self._salt = SALT.pack(salt)

    # ---- flushes ----

    def _take_up(self, flags: int = 0) -> None:
        """Before the first record of a journal that was there already: a flush of one filler, far ahead in number."""
        if not self._takes_up:
            return
        self._takes_up = self._is_sealed = False
        self.gathering += RESTART_GAP - 1
        self._flush_number = self.gathering & 0xFFFFFFFF
        self._fill_alone(flags)

    def _fill_alone(self, flags: int) -> None:
        """A flush of a single filler up to the next multiple of the alignment."""
        if self._position == self._file_end:
            self._enter(0)
        room = self._file_end - self._position
        self._fill(min(self._to_alignment() or self._alignment, room), flags)
        self._close_flush()

    def _to_alignment(self) -> int:
        """Blocks from the position to the next multiple of the alignment in the file, or to the file's end."""
        room = self._file_end - self._position
        offset = self._file + FILE_HEADER_SIZE // BLOCK_SIZE - room
        return min(-offset % self._alignment, room)

    def seal(self) -> bool:
        """Close the journal cleanly: a last flush that says so. Nothing is appended after it.

        A journal that was never written to needs none, nor does one that has one and was not written to since.

        Returns:
            Whether the journal is sealed once that is flushed; if not, it has failed or is full to the last block.
        """
        is_new = self.gathering == 1 and not self._pieces
        if self.failure is None and (is_new or (self._takes_up and self._is_sealed)):
            return True
        if self.failure is not None or not self._has_room():
            return False
        if self._takes_up:
            self._take_up(SEAL)
        else:
            if self._pieces:
                self._close_flush()
            self._fill_alone(SEAL)
        self._is_sealed = True
        return True

    def _close_flush(self) -> None:
        """Pad what is gathered, flag its last record, and begin to gather the next flush."""
        if blocks := self._to_alignment():
            self._fill(blocks, 0)
        self._flag_last()
        content = b"".join(self._pieces)
        assert len(content) == (self._position - self._start) * BLOCK_SIZE
        self._closed.append(Flush(self.gathering, self._start, self._position, content, self._headers, self._removed))
        self._pieces, self._headers, self._removed = [], {}, []
        self._start = self._position
        self.gathering += 1
        self._flush_number = self.gathering & 0xFFFFFFFF

    def _flag_last(self) -> None:
        """Rewrite the last record with its flag: header and checksum."""
        record = b"".join(self._pieces[self._last :])
        word, rid, xid_size, flush, datum = HEADER_2.unpack_from(record)
        head = HEADER_2.pack(word | _LAST, rid, xid_size, flush, datum)
        data_size = datum if word & 0xFFFFFFFF == Kind.ENQUEUE else 0
        data = HEADER_2.size + xid_size
        tail = data + data_size
        crc = extend_crc32c(0, record[data:tail])
        place = self._position - (len(record) >> BLOCK_SHIFT)
        salt = SALT.pack(self._salts[place // self._file])
        crc = extend_crc32c(crc, record[HEADER_2.size : data] + head + salt)
        self._pieces[self._last :] = (
            head,
            record[HEADER_2.size : tail],
            TAIL.pack(crc, rid),
            record[tail + TAIL_SIZE :],
        )

    # ---- steps ----

    def next_flush(self) -> Step | None:
        """The next step; None if nothing waits to be written, or a step is under way."""
        if self._under_way or self.failure is not None:
            return None
        if self._in_flight is None:
            if not self._is_sealed and not self._before_flush():
                return None
            if not self._closed:
                if not self._pieces:
                    return None
                self._close_flush()
            self._in_flight = self._closed.popleft()
            self._steps = deque(steps(self._in_flight, self._files, self._file, self._page))
        self._under_way = True
        return self._steps.popleft()

    def flushed(self) -> None:
        """All of the step is written and synced."""
        flush = self._in_flight
        assert self._under_way
        assert flush is not None
        self._under_way = False
        if self._steps or self.failure is not None:
            return
        self._in_flight = None
        self.synced = self.last_flush = flush.number
        self._after_flush(flush)

    def failed(self, error: OSError) -> None:
        """A write or a sync of the step failed: nothing may be assumed about what reached the disk."""
        where = f" of {error.filename}" if error.filename else ""
        self._fail(f"a write or sync{where} failed: {error.strerror or error}", error)

    def _fail(self, what: str, cause: OSError | None = None) -> None:
        self._under_way = False
        if self.failure is None:
            text = f"{self.identity.title}: {what}; the journal takes no more records until the store is opened again"
            self.failure = JournalFailedError(text)
            self.failure.__cause__ = cause
            self._stop()

    # ---- for the other half ----

    def _has_room(self) -> bool:
        """Whether a flush of one filler fits in the ring."""
        return True

    def _before_flush(self) -> bool:
        """A flush is about to be taken: the last moment to append to it. False if the journal has failed."""
        return True

    def _after_flush(self, flush: Flush) -> None:
        """A flush is on the disk."""

    def _stop(self) -> None:
        """The journal has failed."""
