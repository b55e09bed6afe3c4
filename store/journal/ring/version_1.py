"""The records of a version-1 journal, qpidd's legacystore.

It has neither checksums nor flush numbers. A record is good if its tail matches it and its overwrite indicator is that
of its file; a plain dequeue has no tail, so after a break its padding is checked. When the search after a break meets
an old record, it skips it as a whole, so that nothing in its body is considered; nor is the body of the broken record
itself, if the chain continues after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from qstore.formats.rhm.file_header import FIRST_RECORD_OFFSETS
from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.rhm.headers import HEADER_1, MAGIC_MASK, word
from qstore.formats.rhm.records import (
    COMMIT_DECISION,
    EXTERNAL,
    MAGIC_PREFIX,
    MAX_HEADER_SIZE,
    OVERWRITE_INDICATOR,
    TAIL,
    TAIL_SIZE,
    TRANSIENT,
    Kind,
    RecordHeader,
    decode_header,
    decode_tail,
    version_1_check,
)
from qstore.store.journal.records import MIN_WINDOW, JournalRecords, RecordSink, Verdict
from qstore.store.journal.records import RecordHeader as AnyRecordHeader
from qstore.store.journal.ring.order import RingFile
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

    def tells_first_record(self, index: int) -> bool:
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
