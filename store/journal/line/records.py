"""The records of a linearstore journal.

A record is good if it carries the serial of the file in which it begins and its checksum matches; a plain dequeue has
no checksum, so after a break its padding is checked. Records left from a file's previous use have another serial, and
so does any record in a message's body.

qpidd takes the first bad record for the journal's end and drops everything after it, even large records that its own
writer produced while waiting for free cache pages (formats/qls/README.md, 6). Here such records are good, and noted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Final
from zlib import adler32

from qstore.formats.qls.file_header import FIRST_RECORD_OFFSET
from qstore.formats.qls.records import (
    HEADER,
    MAGIC_PREFIX,
    MAGICS,
    MAX_HEADER_SIZE,
    SECTOR_SIZE,
    TAIL,
    TAIL_SIZE,
    RecordHeader,
    Tail,
    combined_adler32,
    decode_header,
    decode_tail,
    word,
)
from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.rhm.headers import MAGIC_MASK
from qstore.formats.rhm.records import COMMIT_DECISION, EXTERNAL, TRANSIENT, Kind
from qstore.store.journal.line.files import LinearFile
from qstore.store.journal.records import MIN_WINDOW, JournalRecords, RecordSink, Verdict
from qstore.store.journal.records import RecordHeader as AnyRecordHeader
from qstore.store.journal.stream import JournalStream

_CHUNK: Final = 1 << 20  # bytes checksummed at a time
_WORK: Final = 8  # a walk checksums at most this many times the journal's size ...
_CHEAP_RECORD: Final = 4096  # ... and after that only records of at most this size

_ENQUEUE: Final = word(Kind.ENQUEUE)
_DEQUEUE: Final = word(Kind.DEQUEUE)
_FILLER: Final = MAGICS[Kind.FILLER]
_ENQUEUE_TAIL: Final = MAGICS[Kind.ENQUEUE] ^ 0xFFFFFFFF


class LinearRecords(JournalRecords):
    """The records of one linearstore journal."""

    magic: ClassVar[bytes] = MAGIC_PREFIX
    max_header_size: ClassVar[int] = MAX_HEADER_SIZE
    first_record_field: ClassVar[int] = FIRST_RECORD_OFFSET
    known_flags: ClassVar[Mapping[Kind, int]] = {
        Kind.ENQUEUE: TRANSIENT | EXTERNAL,
        Kind.DEQUEUE: COMMIT_DECISION,
        Kind.COMMIT: 0,
        Kind.ABORT: 0,
    }

    def __init__(self, stream: JournalStream, files: list[LinearFile]) -> None:
        super().__init__(stream)
        self._files = files
        self._bytes_checked = 0
        self._most_checked = _WORK * sum(max(file.size, 0) for file in files)

    # ---- one record ----

    def _decode_header(self, buffer: bytes) -> RecordHeader:
        return decode_header(buffer)

    def _stranger(self, header: AnyRecordHeader, place: int) -> Verdict | None:
        assert isinstance(header, RecordHeader)
        serial = self._files[self._stream.index(place)].serial
        if header.kind is Kind.FILLER or header.serial == serial:
            return None
        if serial is None:
            return Verdict(header, "cannot be verified: the file's header, which holds the serial, is lost")
        what = f"{header.kind.label} record with serial 0x{header.serial:x}, its file has 0x{serial:x}"
        return Verdict(header, what, stale=True)

    def _check(self, header: AnyRecordHeader, place: int) -> Verdict:
        assert isinstance(header, RecordHeader)
        if header.kind is Kind.FILLER:
            return Verdict(header, None)
        if header.has_tail:
            bad = self._bad_tail(header, place)
            if bad is not None:
                return bad
        return Verdict(header, None, xid=self._stream.read(place + header.header_size, header.xid_size))

    def _bad_tail(self, header: RecordHeader, place: int) -> Verdict | None:
        """The verdict on a record whose tail, or whose checksum in the tail, is wrong; None if both are right."""
        if self._bytes_checked > self._most_checked and header.size > _CHEAP_RECORD:
            what = f"{header.kind.label} record is not verified: the limit of repeated checksumming is reached"
            return Verdict(header, what)
        tail_place = place + header.tail_offset
        tail = decode_tail(self._stream.read_aside(tail_place, TAIL_SIZE))
        if not tail.goes_with(header):
            return Verdict(header, f"{header.kind.label} record without its tail")
        checksum = 1
        for chunk in self._chunks(place, tail_place):
            checksum = adler32(chunk, checksum)
        if tail.checksum == checksum and tail.serial == header.serial:
            return None
        if self._was_continued(header, tail, place, checksum):
            self.continued.add(place)
            return None
        return Verdict(header, f"{header.kind.label} record fails its checksum", fails_checksum=True)

    def _was_continued(self, header: RecordHeader, tail: Tail, place: int, checksum: int) -> bool:
        """Whether the tail is from a writer that had to wait within the record, at the end of a sector."""
        end = place + header.tail_offset
        first, last = self._stream.index(place), self._stream.index(end)
        serials = {file.serial for file in self._files[first : last + 1]}
        if tail.serial not in serials:
            return False
        running, at = 1, place
        for chunk in self._chunks(place, end):
            view = memoryview(chunk)
            while view:
                count = min(SECTOR_SIZE - at % SECTOR_SIZE, len(view))
                running = adler32(view[:count], running)
                view, at = view[count:], at + count
                if at % SECTOR_SIZE == 0 and combined_adler32(running, tail.checksum, end - at) == checksum:
                    return True
        return False

    def _chunks(self, place: int, end: int) -> Iterator[bytes]:
        self._bytes_checked += end - place
        for chunk_place in range(place, end, _CHUNK):
            yield self._stream.read(chunk_place, min(_CHUNK, end - chunk_place))

    def begins_record(self, _place: int, verdict: Verdict) -> bool:
        """Whether the broken record carries the file's serial."""
        header = verdict.header
        return header is not None and header.kind is not Kind.FILLER and not verdict.stale

    def file_entered(self, place: int) -> None:
        """Compare the record that the file's header names."""
        file = self._files[place // self._stream.data_size]
        if file.header is not None:
            self._compare_header_rid(place, file.header.rid)
        if file.missing is not None:
            self.notices.append(
                f"{file.path}: {file.missing.what} before it, but the records continue: qpidd skips file numbers when "
                "it restarts after a crash within a large record"
            )

    # ---- runs of plain records ----

    def run(self, place: int, file_end: int, sink: RecordSink) -> int:
        """Read plain records from `place` on."""
        serial = self._files[place // self._stream.data_size].serial
        if serial is None:
            return place
        window, at = self._stream.window(place, MIN_WINDOW)
        base = place - at
        length = len(window)
        stop = min(file_end - base, length - MAX_HEADER_SIZE + 1)
        enqueue, dequeue = sink.enqueue, sink.dequeue
        header_size, unpack_header, unpack_tail, checksum = HEADER.size, HEADER.unpack_from, TAIL.unpack_from, adler32
        last = self._last_place - base
        while at < stop:
            head, record_serial, rid, first, second = unpack_header(window, at)
            if head == _ENQUEUE and not first:
                tail = at + header_size + second
                after = (tail + TAIL_SIZE + BLOCK_SIZE - 1) & -BLOCK_SIZE
                if after > length or record_serial != serial:
                    break
                if unpack_tail(window, tail) != (_ENQUEUE_TAIL, checksum(window[at:tail]), serial, rid):
                    break
                enqueue(rid, base + at)
                last, at = at, after
            elif head & MAGIC_MASK == _FILLER:
                at += BLOCK_SIZE
            elif head == _DEQUEUE and not second and record_serial == serial:
                dequeue(rid, first, base + at)
                last, at = at, at + BLOCK_SIZE
            else:
                break
        self._last_place = base + last
        return base + at

    # ---- breaks ----

    def after_break(self, place: int, likely: int | None) -> int | None:
        """The first good record after the break in the chain at `place`.

        Records of this file that lie within the claimed length of the broken one, but are newer than the last good one,
        are not part of its body: its length is wrong. A body may hold a copy of this very file, but only an older one.
        """
        found = self.search(place)
        if found is None or likely is None or found >= likely or self._is_newer(found):
            return found
        return super().after_break(place, likely)

    def _is_newer(self, place: int) -> bool:
        """Whether the record at `place` was written after the last record read: ids only increase."""
        last = self._header(self._last_place) if self._last_place >= 0 else None
        header = self._header(place)
        return last is None or (header is not None and header.rid > last.rid)

    def search(self, place: int, end: int | None = None) -> int | None:
        """The first good record at or after `place`. Only candidates with the file's own serial are checked."""
        for candidate in self._candidates(place, end):
            header = self._header(candidate)
            if header is None or header.kind is Kind.FILLER or not self._plausible(header, candidate):
                continue
            if self.examine(candidate).problem is None:
                return candidate
        return None
