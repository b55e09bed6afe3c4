"""The records of the two ring formats: how good ones are recognized, and where the chain continues after a break.

Version 1 (qpidd's legacystore) has neither checksums nor flush numbers. A record is good if its tail matches it and its
overwrite indicator is that of its file; a plain dequeue has no tail, so after a break its padding is checked. When the
search after a break meets an old record, it skips it as a whole, so that nothing in its body is considered; nor is the
body of the broken record itself, if the chain continues after it.

Version 2 (qstore's own): a record is good if its checksum, with the salt of the file in which it begins, matches, and
its flush number is due: that of the previous record; after the last record of a flush the next number; or after a
restart a much higher one. If the number decreases, the record is an old one; if it is too high, the record was written
to the wrong offset. The broken flush is known, because the last record of a flush is flagged: after such a record it is
the next one, otherwise the current one. A record after the break counts only if one of a later flush follows, which was
written after the broken flush had been synced completely.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from qstore.formats.checksum import extend_crc32c
from qstore.formats.rhm.file_header import FIRST_RECORD_OFFSETS
from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.rhm.headers import (
    FLAGS_SHIFT,
    FLUSH,
    FLUSH_OFFSET,
    HEADER_1,
    HEADER_2,
    MAGIC_MASK,
    RESTART_GAP,
    word,
)
from qstore.formats.rhm.records import (
    COMMIT_DECISION,
    COMPRESSED,
    EXTERNAL,
    LAST_OF_FLUSH,
    MAGIC_PREFIX,
    MAX_HEADER_SIZE,
    OVERWRITE_INDICATOR,
    SALT,
    SEAL,
    TAIL,
    TAIL_SIZE,
    TRANSIENT,
    Kind,
    RecordHeader,
    decode_header,
    decode_tail,
    version_1_check,
    version_2_check,
)
from qstore.store.journal.records import MIN_WINDOW, RUN_UP, EndState, JournalRecords, RecordSink, Verdict
from qstore.store.journal.records import RecordHeader as AnyRecordHeader
from qstore.store.journal.ring.files import RingFile
from qstore.store.journal.stream import JournalStream


def _ignore_enqueue(_rid: int, _place: int) -> None:
    """Ignore old records."""


def _ignore_dequeue(_rid: int, _dequeued_rid: int, _place: int) -> None:
    """Ignore old records."""


class Version1Records(JournalRecords):
    """The records of one version-1 journal."""

    magic: ClassVar[bytes] = MAGIC_PREFIX
    max_header_size: ClassVar[int] = MAX_HEADER_SIZE
    first_record_field: ClassVar[int] = FIRST_RECORD_OFFSETS[1]
    usual_flags: ClassVar[int] = OVERWRITE_INDICATOR
    known_flags: ClassVar[Mapping[Kind, int]] = {
        Kind.ENQUEUE: OVERWRITE_INDICATOR | TRANSIENT | EXTERNAL,
        Kind.DEQUEUE: OVERWRITE_INDICATOR | COMMIT_DECISION,
        Kind.COMMIT: OVERWRITE_INDICATOR,
        Kind.ABORT: OVERWRITE_INDICATOR,
    }

    def __init__(self, stream: JournalStream, files: list[RingFile]) -> None:
        super().__init__(stream)
        self._files = files

    def _indicator(self, place: int) -> int | None:
        return self._files[place // self._stream.data_size].overwrite_indicator

    # ---- one record ----

    def _decode_header(self, buffer: bytes) -> RecordHeader:
        return decode_header(buffer)

    def _check(self, header: AnyRecordHeader, place: int) -> Verdict:
        assert isinstance(header, RecordHeader)
        if header.version != 1:
            return Verdict(None, f"record of version {header.version} in a journal of version 1")
        if header.kind is Kind.FILLER:
            return Verdict(header, None)
        if header.has_tail:
            check, rid = decode_tail(self._stream.read_aside(place + header.tail_offset, TAIL_SIZE), 0)
            if check != version_1_check(header.kind) or rid != header.rid:
                return Verdict(header, f"{header.kind.label} record without its tail")
        indicator = self._indicator(place)
        if indicator is not None and header.flags & OVERWRITE_INDICATOR != indicator:
            return Verdict(header, f"{header.kind.label} record of another lap", stale=True)
        return Verdict(header, None, xid=self._stream.read(place + header.header_size, header.xid_size))

    def begins_record(self, place: int, verdict: Verdict) -> bool:
        """Whether the broken record has the overwrite indicator of the current lap."""
        if verdict.header is None or verdict.stale:
            return False
        indicator = self._indicator(place)
        return indicator is None or verdict.header.flags & OVERWRITE_INDICATOR == indicator

    def file_entered(self, place: int) -> None:
        """Compare the record that the file's header names."""
        header = self._files[place // self._stream.data_size].header
        if header is not None:
            self._compare_header_rid(place, header.rid)

    def may_precede_first_record(self, index: int) -> bool:
        """Only in the very first file, written once: otherwise the end of an overwritten message may be there."""
        return self._files[index].number == 0 and len(self._files) < self._stream.geometry.files

    # ---- runs of plain records ----

    def run(self, place: int, file_end: int, sink: RecordSink) -> int:
        """Read plain records from `place` on."""
        indicator = self._indicator(place)
        return place if indicator is None else self._run(place, file_end, indicator, sink.enqueue, sink.dequeue)

    def _run(
        self,
        place: int,
        file_end: int,
        indicator: int,
        enqueue: Callable[[int, int], None],
        dequeue: Callable[[int, int, int], None],
    ) -> int:
        window, at = self._stream.window(place, MIN_WINDOW)
        base = place - at
        length = len(window)
        stop = min(file_end - base, length - MAX_HEADER_SIZE + 1)
        enqueue_head = word(Kind.ENQUEUE, 1, indicator)
        dequeue_head = word(Kind.DEQUEUE, 1, indicator)
        filler, enqueue_check = int(Kind.FILLER), version_1_check(Kind.ENQUEUE)
        header_size, unpack_header, unpack_tail = HEADER_1.size, HEADER_1.unpack_from, TAIL.unpack_from
        last = self._last_place - base
        while at < stop:
            head, rid, first, second = unpack_header(window, at)
            if head == enqueue_head and not first:
                tail = at + header_size + second
                after = (tail + TAIL_SIZE + BLOCK_SIZE - 1) & -BLOCK_SIZE
                if after > length or unpack_tail(window, tail) != (enqueue_check, rid):
                    break
                enqueue(rid, base + at)
                last, at = at, after
            elif head == dequeue_head and not second:
                dequeue(rid, first, base + at)
                last, at = at, at + BLOCK_SIZE
            elif head & MAGIC_MASK == filler:
                at += BLOCK_SIZE
            else:
                break
        self._last_place = base + last
        return base + at

    # ---- breaks ----

    def search(self, place: int, end: int | None = None) -> int | None:
        """The first good record at or after `place`; old records are skipped as a whole."""
        after_old = place
        for candidate in self._candidates(place, end):
            if candidate < after_old:
                continue
            header = self._header(candidate)
            if header is None or header.kind is Kind.FILLER or not self._plausible(header, candidate):
                continue
            verdict = self.examine(candidate)
            if verdict.problem is None:
                return candidate
            if verdict.stale:
                after_old = self._after_old_records(candidate, header)
        return None

    def _after_old_records(self, place: int, header: AnyRecordHeader) -> int:
        file_end = (place // self._stream.data_size + 1) * self._stream.data_size
        indicator = self._indicator(place)
        assert indicator is not None  # otherwise no record could be old
        after = place + header.size
        if after >= file_end:
            return after
        last_place = self._last_place
        place = self._run(after, file_end, indicator ^ 1, _ignore_enqueue, _ignore_dequeue)
        self._last_place = last_place
        return place


# ---- version 2 ----

_HEADER: Final = HEADER_2.size
_LAST: Final = LAST_OF_FLUSH << FLAGS_SHIFT
_USUAL: Final = (LAST_OF_FLUSH | COMPRESSED) << FLAGS_SHIFT
_ENQUEUE: Final = word(Kind.ENQUEUE, 2)
_DEQUEUE: Final = word(Kind.DEQUEUE, 2)

_CHUNK: Final = 1 << 20  # bytes of data checksummed at a time
_WORK: Final = 8  # a walk checksums at most this many times the journal's size ...
_CHEAP_RECORD: Final = 4096  # ... and after that only records of at most this size


@dataclass(slots=True)
class FlushState:
    """The flush that the walk has reached.

    Attributes:
        number: flush number of the last good record, 64 bits.
        complete: whether that record was flagged as the last of its flush.
        sealed: whether it was the seal of a clean close.
        begun: whether there was a good record; before that, `number` is that of the oldest file's header.
    """

    number: int = 0
    complete: bool = False
    sealed: bool = False
    begun: bool = False

    def expand(self, low: int) -> int:
        """The 64-bit flush number whose low 32 bits are `low`: the one nearest to the current number."""
        step = (low - self.number) & 0xFFFFFFFF
        return self.number + step if step < 0x80000000 else self.number + step - 0x100000000

    def advance(self, header: RecordHeader) -> None:
        """Note a good record."""
        self.number = self.expand(header.flush)
        self.complete = bool(header.flags & LAST_OF_FLUSH)
        self.sealed = header.kind is Kind.FILLER and bool(header.flags & SEAL)
        self.begun = True

    def is_due(self, header: RecordHeader) -> bool:
        """Whether a record of its flush, which is not lower, may follow the last good one."""
        number = self.expand(header.flush)
        restarted = header.kind is Kind.FILLER and number - self.number >= RESTART_GAP
        return not self.begun or number == self.next_to_break or restarted

    @property
    def next_to_break(self) -> int:
        """The flush to which a bad record after the last good one belongs."""
        return self.number + 1 if self.complete else self.number


class Version2Records(JournalRecords):
    """The records of one version-2 journal."""

    magic: ClassVar[bytes] = MAGIC_PREFIX
    max_header_size: ClassVar[int] = MAX_HEADER_SIZE
    first_record_field: ClassVar[int] = FIRST_RECORD_OFFSETS[2]
    usual_flags: ClassVar[int] = LAST_OF_FLUSH | COMPRESSED

    def __init__(self, stream: JournalStream, files: list[RingFile]) -> None:
        super().__init__(stream)
        self._files = files
        self._found_rest = self._has_rest = False  # by the last search; after the last break
        self._bytes_checked = 0
        self._most_checked = _WORK * sum(max(file.size, 0) for file in files)
        headers = [file.header for file in files if file.header is not None]
        self._flush = FlushState(headers[0].first_flush if headers else 0)

    def resume(self, flush: int) -> None:
        """The walk begins where that flush begins."""
        self._flush = FlushState(flush - 1, complete=True)

    # ---- one record ----

    def examine(self, place: int) -> Verdict:
        """Examine the record at `place`, where the next record after the last good one is due."""
        verdict = super().examine(place)
        header = verdict.header
        if verdict.problem is not None or not isinstance(header, RecordHeader) or self._flush.is_due(header):
            return verdict
        number, due = self._flush.expand(header.flush), self._flush.next_to_break
        if self._begins_file(place, number):
            return verdict
        return Verdict(header, f"{header.kind.label} record of flush {number}, expected flush {due}")

    def _begins_file(self, place: int, number: int) -> bool:
        """Whether the file header confirms that a record of flush `number` at `place` is the file's first and due."""
        index, offset = divmod(place, self._stream.data_size)
        header = self._files[index].header
        if header is None or header.first_record_offset != offset + self._stream.geometry.header_size:
            return False
        return number - header.first_flush in (0, 1)  # the flush that wrote the header, or the next one

    def missing_before(self, place: int) -> tuple[int, int] | None:
        """The flushes of the last record and of the first one in a file, if there should be flushes between them."""
        header = self._header(place)
        if not isinstance(header, RecordHeader) or self._flush.is_due(header):
            return None
        return self._flush.number, self._flush.expand(header.flush)

    def _decode_header(self, buffer: bytes) -> RecordHeader:
        return decode_header(buffer)

    def _check(self, header: AnyRecordHeader, place: int) -> Verdict:
        assert isinstance(header, RecordHeader)
        if header.version != 2:
            return Verdict(None, f"record of version {header.version} in a journal of version 2")
        file = self._files[place // self._stream.data_size]
        if file.header is None:
            return Verdict(header, "cannot be verified: the file's header, which holds the salt, is lost")
        check, rid = decode_tail(self._stream.read_aside(place + header.tail_offset, TAIL_SIZE), 0)
        if rid != header.rid:
            return Verdict(header, f"{header.kind.label} record without its tail")
        if self._bytes_checked > self._most_checked and header.size > _CHEAP_RECORD:
            what = f"{header.kind.label} record is not verified: the limit of repeated checksumming is reached"
            return Verdict(header, what)
        head = self._stream.read(place, header.header_size)
        xid = self._stream.read(place + header.header_size, header.xid_size)
        crc = self._data_crc(place + header.header_size + header.xid_size, header.stored_size)
        if check != version_2_check(head, xid, crc, file.header.salt):
            return Verdict(header, f"{header.kind.label} record fails its checksum", fails_checksum=True)
        if self._flush.expand(header.flush) < self._flush.number:
            return Verdict(header, f"{header.kind.label} record of an older flush", stale=True)
        return Verdict(header, None, xid=xid)

    def _data_crc(self, place: int, size: int) -> int:
        self._bytes_checked += size
        crc = 0
        for chunk_place in range(place, place + size, _CHUNK):
            crc = extend_crc32c(crc, self._stream.read(chunk_place, min(_CHUNK, place + size - chunk_place)))
        return crc

    def taken(self, header: AnyRecordHeader, place: int) -> None:
        """Note that a good record was read: its flush is the current one."""
        super().taken(header, place)
        assert isinstance(header, RecordHeader)
        self._flush.advance(header)

    # ---- runs of plain records ----

    def run(self, place: int, file_end: int, sink: RecordSink) -> int:
        """Read plain records from `place` on, and advance the current flush."""
        header = self._files[place // self._stream.data_size].header
        if header is None:
            return place
        window, at = self._stream.window(place, MIN_WINDOW)
        base = place - at
        length = len(window)
        stop = min(file_end - base, length - MAX_HEADER_SIZE + 1)
        enqueue, dequeue, flush = sink.enqueue, sink.dequeue, self._flush
        salt = SALT.pack(header.salt)
        unpack_header, unpack_tail, extend = HEADER_2.unpack_from, TAIL.unpack_from, extend_crc32c
        number, complete, last_head = flush.number, int(flush.complete), 0
        due = (number + complete) & 0xFFFFFFFF
        head: int  # compiled, a walk takes 0.84 µs a record with these types, 1.0 without (`bench_journal`, walking)
        rid: int
        xid_size: int
        record_flush: int
        datum: int
        while at < stop:
            head, rid, xid_size, record_flush, datum = unpack_header(window, at)
            kind = head & ~_USUAL
            data = tail = at + _HEADER
            if kind == _ENQUEUE:
                tail += datum
            elif kind != _DEQUEUE:
                break
            after = (tail + TAIL_SIZE + BLOCK_SIZE - 1) & -BLOCK_SIZE
            if xid_size or after > length:
                break
            crc = extend(extend(0, window[data:tail]), window[at:data] + salt)
            if unpack_tail(window, tail) != (crc, rid):
                break
            if record_flush != due:
                break
            number += complete
            complete = 1 if head & _LAST else 0
            due = (number + complete) & 0xFFFFFFFF
            if kind == _ENQUEUE:
                enqueue(rid, base + at, (after - at) // BLOCK_SIZE)
            else:
                dequeue(rid, datum, base + at)
            last_head = head
            at = after
        if last_head:
            flush.number, flush.complete, flush.sealed, flush.begun = number, bool(complete), False, True
        return base + at

    # ---- breaks, and the end ----

    def after_break(self, place: int, _likely: int | None) -> int | None:
        """The first good record after the break in the chain at `place`: checksums confirm it at any offset."""
        found = self.search(place + BLOCK_SIZE)
        if found is not None:
            (low,) = FLUSH.unpack(self._stream.read(found + FLUSH_OFFSET, FLUSH.size))
            self._flush.number, self._flush.complete = self._flush.expand(low), False  # due now in any case
        self._has_rest = found is None and self._found_rest
        return found

    def search(self, place: int, end: int | None = None) -> int | None:
        """The first good record at or after `place` that can be trusted (see the module's docstring)."""
        broken = self._flush.next_to_break
        rest_of_broken: int | None = None
        self._found_rest = False
        for candidate in self._candidates(place, end):
            (low,) = FLUSH.unpack(self._stream.read(candidate + FLUSH_OFFSET, FLUSH.size))
            number = self._flush.expand(low)
            if number < broken or (number == broken and rest_of_broken is not None):
                continue
            header = self._header(candidate)
            if header is None:
                continue
            if super().examine(candidate).problem is not None:
                continue
            if number > broken:
                return candidate if rest_of_broken is None else rest_of_broken
            rest_of_broken, self._found_rest = candidate, True
        return None

    def entry(self, found: int) -> int | None:
        """The first record of the flush of `found`: from there the walk itself distinguishes torn, old and damaged.

        The remains of a torn flush after the journal's end have lost their beginning to the flush written over it. So
        the flush found to begin before them is a later one, and the walk ends before it reaches `found`.
        """
        span = RUN_UP
        while found > span:
            begun = self._flush_begun(found - span, found)
            if begun is not None:
                (low,) = FLUSH.unpack(self._stream.read(begun + FLUSH_OFFSET, FLUSH.size))
                self._flush = FlushState(self._flush.expand(low))
                return begun
            span *= 4
        return None

    def _flush_begun(self, place: int, found: int) -> int | None:
        """The last record from `place` to `found` that begins a flush; None if there is none."""
        begun: int | None = None
        chained = False  # whether a record leads to `place`
        last_flush: int | None = None  # its flush, if it is the last record of it
        while place <= found:
            header = self._header(place) if chained else None
            if not isinstance(header, RecordHeader) or header.version != 2 or place + header.size > self._stream.size:
                next_place = self.first_good(place, found + BLOCK_SIZE)
                if next_place is None:
                    break
                place, chained, last_flush = next_place, True, None
                continue
            matters = last_flush is not None or header.flags & LAST_OF_FLUSH
            is_good = matters and super().examine(place).problem is None
            if is_good and last_flush is not None and 0 < (header.flush - last_flush) & 0xFFFFFFFF < 0x80000000:
                begun = place
            last_flush = header.flush if is_good and header.flags & LAST_OF_FLUSH else None
            place += header.size
        return begun

    def can_verify(self, place: int) -> bool:
        """Whether the salt of the file that contains `place` is known."""
        return self._files[place // self._stream.data_size].header is not None

    def begins_record(self, place: int, verdict: Verdict) -> bool:
        """Whether the broken record is of a later flush than the last good one."""
        header = verdict.header
        if verdict.stale or not isinstance(header, RecordHeader) or not self.can_verify(place):
            return False
        return self._flush.expand(header.flush) > self._flush.number

    def end_state(self) -> EndState:
        """A flush without its last record is torn."""
        return EndState(not self._flush.complete, self._flush.sealed, self._flush.number, self._has_rest)
