"""Walks the records of one journal from the oldest to the end, and distinguishes a torn tail from interior damage.

At each log offset there is either a *good* record of the current lap (as each format's `JournalRecords` defines it),
which is passed to the sink, or the chain is *broken*. After a break the rest of the journal is searched for a good
record of the current lap:

    none                  the end of the journal: space never written, remains of an older lap, or a record that the
                          crash tore. All normal; the walk stops.
    one                   interior damage: reported, and the walk continues there.
    only of the flush     version 2: the flush was torn, and a torn flush was never acknowledged: the rest of it is
    that broke            dropped.
    one of a later flush  version 2: interior damage, since a flush is written only after the previous one was synced:
                          reported, and the walk continues at the first good record, even if of the broken flush.

Version 1 has neither flush numbers nor checksums, so a message whose body holds journal records can mislead the search
after a break (never the walk itself), unless the next record is where the broken one's header states.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import Any, Final

from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.file_header import FIRST_FLUSH_OFFSET
from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.rhm.records import Kind
from qstore.store.damage import Damage, DamageKind, Effect
from qstore.store.journal.files import JournalFile, JournalFormat
from qstore.store.journal.line.files import Line, LinearFile
from qstore.store.journal.line.records import LinearRecords
from qstore.store.journal.records import JournalRecords, RecordHeader, RecordSink, Verdict
from qstore.store.journal.ring.files import Ring, RingFile
from qstore.store.journal.ring.records import Version1Records, Version2Records
from qstore.store.journal.stream import JournalStream

MAX_DESCRIBED: Final = 1000
_NOT_DESCRIBED: Final = "one of very many breaks in the chain of records"


class Gap(NamedTuple):
    """A stretch of a journal without a valid record.

    Attributes:
        place: log offset where it begins.
        end: log offset where it ends: that of a valid record.
        rid: record id of the record at its beginning, if known.
        what: what is wrong there.
    """

    place: int
    end: int
    rid: int | None
    what: str


class Gaps:
    """The skipped stretches, in order.

    The first ones are stored with all details, the rest, which only a forged journal has, only as log offsets.
    """

    __slots__ = ("_described", "_places")

    def __init__(self) -> None:
        self._described: list[Gap] = []
        self._places = array("Q")

    def __len__(self) -> int:
        return len(self._described) + len(self._places) // 2

    def __iter__(self) -> Iterator[Gap]:
        yield from self._described
        for index in range(0, len(self._places), 2):
            yield Gap(self._places[index], self._places[index + 1], None, _NOT_DESCRIBED)

    def add(self, gap: Gap) -> None:
        """Add a stretch."""
        if len(self._described) < MAX_DESCRIBED:
            self._described.append(gap)
        else:
            self._places.extend((gap.place, gap.end))


class JournalEnd(NamedTuple):
    """Where and why a walk stopped.

    Attributes:
        place: log offset where the next record would be.
        what: why no record follows there.
        torn: whether there is a partial record or flush.
        rid: the torn record's id, if its header is readable.
        sealed: version 2: whether the journal was closed cleanly.
        flush: version 2: number of the last flush read.
        is_cut: version 2: whether that flush is incomplete.
    """

    place: int
    what: str
    torn: bool
    rid: int | None
    sealed: bool
    flush: int
    is_cut: bool = False


MAX_BREAKS: Final = 1000  # breaks listed; a forged journal may have any number
_FLAGS_OFFSET: Final = 6  # in the headers of all formats


def records_of(files: Ring | Line, stream: JournalStream) -> JournalRecords:
    """The records of a journal whose format is known."""
    line = [file for file in files.files if isinstance(file, LinearFile)]
    ring = [file for file in files.files if isinstance(file, RingFile)]
    if files.format is JournalFormat.LINEAR:
        return LinearRecords(stream, line)
    return Version1Records(stream, ring) if files.format is JournalFormat.VERSION_1 else Version2Records(stream, ring)


class JournalReader:
    """One walk over a journal's records.

    Args:
        stream: the journal's bytes.
        records: decodes and checks the journal's records.
        progress: called at the beginning of each file with its log offset.

    Attributes:
        gaps: the stretches that the walk skipped.
    """

    def __init__(
        self, stream: JournalStream, records: JournalRecords, progress: Callable[[int], None] | None = None
    ) -> None:
        self._stream, self._progress = stream, progress
        self._records = records
        self._breaks = 0
        self.gaps = Gaps()

    def walk(self, sink: RecordSink, *, every_record: bool = False) -> JournalEnd:
        """Pass each record to `sink` until the journal ends.

        Args:
            sink: receives the records.
            every_record: pass all of them to `sink.record`, fillers included, and none to `enqueue` and `dequeue`.
        """
        end = self.go_on(self.begin(sink), self._stream.size, sink, every_record=every_record)
        assert isinstance(end, JournalEnd)  # no record begins where the journal's stream ends
        return end

    def go_on(self, place: int, stop: int, sink: RecordSink, *, every_record: bool = False) -> int | JournalEnd:
        """Continue the walk from `place` to the first good record at or after `stop`.

        This permits walking a journal piece by piece; each piece has the records that precede a break in the chain.

        Args:
            place: log offset where a record is due: the result of `begin`, of the last call, or of
                `JournalRecords.entry`.
            stop: log offset where to pause.
            sink: receives the records.
            every_record: as in `walk`.

        Returns:
            The log offset of that record, which was not passed on, or the journal's end, if it comes first.
        """
        file_end = self._file_end(place)
        while place < self._stream.size:
            if place >= file_end:
                if self._progress is not None:
                    self._progress(place)
                place = self._check_first_record(place, sink)
                file_end = self._file_end(place)
            if not every_record and place < stop:
                after = self._records.run(place, min(file_end, stop), sink)
                if after > place:
                    place = after
                    continue
            verdict = self._records.examine(place)
            if verdict.problem is None and verdict.header is not None:
                if place >= stop:
                    return place
                header = self._without_unknown_flags(verdict.header, place, sink)
                self._take(header, place, verdict.xid, sink, every_record=every_record)
                place += verdict.header.size
                continue
            resumed = self._records.after_break(place, self._claimed_end(place, verdict))
            if resumed is None:
                return self._end(place, verdict)
            self._report_break(place, resumed, verdict, sink)
            place = resumed
            file_end = self._file_end(place)
        state = self._records.end_state()
        what = "the last file is full"
        return JournalEnd(self._stream.size, what, state.torn, None, state.sealed, state.flush, state.torn)

    def _file_end(self, place: int) -> int:
        return place - place % self._stream.data_size + self._stream.data_size

    # ---- the beginning, and the first record according to each file header ----

    def begin(self, sink: RecordSink) -> int:
        """The first record header. Files in which none begins are skipped: no older record can be complete."""
        stream = self._stream
        for index, file in enumerate(stream.files):
            begin = index * stream.data_size
            first = file.first_record(stream.geometry)
            if first is not None:
                return self._first_in(index, begin, begin + first, sink)
            if file.begins_no_record(stream.geometry):
                found = self._records.search(begin) if self._records.may_precede_first_record(index) else None
                if found is None or found >= begin + stream.data_size:
                    continue
                self._report_first(file, found, None, sink)
                return found
            if file.first_record_offset is not None:
                kind, field = DamageKind.FIRST_RECORD_OUTSIDE, self._records.first_record_field
                sink.damaged(Damage(file.path, field, None, kind, recorded=file.first_record_offset))
            found = self._records.search(begin)
            if found:
                self.gaps.add(Gap(begin, found, None, "no record is known to begin here"))
            return begin if found is None else found
        return stream.size

    def _first_in(self, index: int, begin: int, recorded: int, sink: RecordSink) -> int:
        """The first record of the oldest file, whose header states `recorded`; no earlier record leads to it."""
        if recorded == begin:
            self._records.file_entered(begin)
            return begin
        searched = self._records.may_precede_first_record(index) or self._records.examine(recorded).problem is not None
        found = self._records.search(begin) if searched else None
        if found is None or found >= recorded:
            return recorded
        offset = recorded - begin + self._stream.geometry.header_size
        self._report_first(self._stream.files[index], found, offset, sink)
        return found

    def _report_first(self, file: JournalFile[Any], found: int, recorded: int | None, sink: RecordSink) -> None:
        """Report a record before the offset that the file header states; None if it states that none begins there."""
        field, offset = self._records.first_record_field, self._stream.locate(found)[1]
        if recorded is None:
            sink.damaged(Damage(file.path, field, None, DamageKind.FIRST_RECORD_NOT_TOLD, found=offset))
        else:
            sink.damaged(
                Damage(file.path, field, None, DamageKind.FIRST_RECORD_BEFORE, recorded=recorded, found=offset)
            )

    def _check_first_record(self, place: int, sink: RecordSink) -> int:
        """Check a file header against the record chain that enters the file at `place`; returns where it continues."""
        file, offset = self._stream.locate(place)
        recorded = file.first_record_offset
        gap = file.gap_before()
        if gap is not None and recorded is not None and recorded != offset and file.first_record(self._stream.geometry):
            sink.damaged(gap)  # the file begins with the rest of a lost record
            return place - offset + recorded
        verdict = self._records.examine(place)
        if recorded is None or verdict.header is None or verdict.problem is not None:
            return place
        if verdict.header.kind is Kind.FILLER and not verdict.header.has_tail:
            return place  # without checksums, fillers may be of any age and lead anywhere
        missing = self._records.missing_before(place)
        if missing is not None:
            before, _ = self._stream.locate(place - self._stream.data_size)
            kind, (last, first) = DamageKind.FLUSHES_MISSING, missing
            sink.damaged(Damage(before.path, FIRST_FLUSH_OFFSET, None, kind, last=last, first=first))
        self._records.file_entered(place)
        if recorded != offset:
            kind, field = DamageKind.FIRST_RECORD_ELSEWHERE, self._records.first_record_field
            sink.damaged(Damage(file.path, field, None, kind, recorded=recorded, found=offset))
        return place

    # ---- good records ----

    def _without_unknown_flags(self, header: RecordHeader, place: int, sink: RecordSink) -> RecordHeader:
        unknown = header.flags & ~self._records.known_flags.get(header.kind, header.flags)
        if not unknown:
            return header
        file, offset = self._stream.locate(place)
        kind, record = DamageKind.RECORD_FLAGS, header.kind.label
        sink.damaged(Damage(file.path, offset + _FLAGS_OFFSET, header.rid, kind, record=record, flags=unknown))
        return header._replace(flags=header.flags & ~unknown)

    def _take(self, header: RecordHeader, place: int, xid: bytes, sink: RecordSink, *, every_record: bool) -> None:
        self._records.taken(header, place)
        if every_record:
            sink.record(header, place, xid)
        elif header.kind is Kind.FILLER:
            return
        elif header.xid_size or header.flags & ~self._records.usual_flags:
            sink.record(header, place, xid)
        elif header.kind is Kind.ENQUEUE:
            sink.enqueue(header.rid, place)
        else:
            sink.dequeue(header.rid, header.dequeued_rid, place)

    # ---- breaks ----

    def _claimed_end(self, place: int, verdict: Verdict) -> int | None:
        """Log offset of the next record if only the tail of a bad record is wrong."""
        if verdict.header is None or verdict.stale:
            return None
        end = place + verdict.header.size
        first, last = (at // self._stream.data_size + 1 for at in (place, min(end, self._stream.size) - 1))
        if any(file.gap_before() is not None for file in self._stream.files[first:last]):
            return None  # it continued in a lost file
        return end

    def _report_break(self, place: int, resumed: int, verdict: Verdict, sink: RecordSink) -> None:
        """Report that the chain is broken at `place` and continues at `resumed`."""
        data_size = self._stream.data_size
        rid = verdict.header.rid if verdict.header is not None and not verdict.stale else None
        self.gaps.add(Gap(place, resumed, rid, verdict.problem or "no record"))
        for file in self._stream.files[place // data_size + 1 : resumed // data_size + 1]:
            gap = file.gap_before()
            if gap is not None:
                sink.damaged(gap)
        if self._is_reported(place):
            return
        self._breaks += 1
        if self._breaks <= MAX_BREAKS:
            sink.damaged(self._gap(place, resumed, verdict))
        elif self._breaks == MAX_BREAKS + 1:
            file, offset = self._stream.locate(place)
            sink.damaged(Damage(file.path, offset, None, DamageKind.MORE_BREAKS, breaks=MAX_BREAKS))

    def _is_reported(self, place: int) -> bool:
        """Whether `place` is in a file already reported as missing, cut short, or not verifiable."""
        file, offset = self._stream.locate(place)
        return offset >= file.size or not self._records.can_verify(place)

    def _gap(self, place: int, resumed: int, verdict: Verdict) -> Damage:
        file, offset = self._stream.locate(place)
        next_file, next_offset = self._stream.locate(resumed)
        end_file = None if next_file is file else next_file.number
        rid = verdict.header.rid if verdict.header is not None and not verdict.stale else None
        blocks = (resumed - place) // BLOCK_SIZE
        kind = DamageKind.RECORD_CHECKSUM if verdict.fails_checksum else DamageKind.RECORD_BROKEN
        return Damage(
            file.path,
            offset,
            rid,
            kind,
            Effect.BLOCK_SKIPPED if blocks == 1 else Effect.BLOCKS_SKIPPED,
            problem=verdict.problem or "no record",
            blocks=blocks,
            end=next_offset,
            end_file=end_file,
        )

    def _end(self, place: int, verdict: Verdict) -> JournalEnd:
        state = self._records.end_state()
        begun = self._records.begins_record(place, verdict)
        rid = verdict.header.rid if begun and verdict.header is not None else None
        torn = begun or state.torn or state.has_rest
        sealed = state.sealed and not state.torn  # old content may look like the beginning of a record
        what = verdict.problem or "no record"
        if state.has_rest:
            what += ", and after it records of the same flush"
        return JournalEnd(place, what, torn, rid, sealed, state.flush, state.torn)
