"""Walks the records of one journal from the oldest to the end, and tells a torn tail from interior damage.

At each place there is either a *good* record of the present lap (what that is, each format's `JournalRecords` says),
which is handed to the sink, or the chain is *broken*. After a break the rest of the journal is searched for a good
record of the present lap:

    none                  the end of the journal: space never written, the remains of an older lap, or a record that
                          the crash tore. All normal; the walk stops.
    one                   interior damage: reported, and the walk goes on there.
    only of the flush     version 2: the flush was torn, and a torn flush was acknowledged to nobody: the rest of it
    that broke            is dropped.
    one of a later flush  version 2: interior damage, since a flush is written only after the one before it was synced:
                          reported, and the walk goes on at the first good record, be it of the flush that broke.

Version 1 has neither flush numbers nor checksums; there a message whose body holds journal records can mislead the
search after a break (never the walk itself), unless the next record stands where the broken one's header says.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from formats.rhm.file_header import FIRST_FLUSH_OFFSET
from formats.rhm.geometry import BLOCK_SIZE
from formats.rhm.records import Kind
from store.damage import Damage
from store.damage_effects import Effect
from store.damage_kinds import DamageKind
from store.journal.files import JournalFile
from store.journal.format import JournalFormat
from store.journal.gaps import Gap, Gaps
from store.journal.line.file import LinearFile
from store.journal.line.files import Line
from store.journal.line.records import LinearRecords
from store.journal.records import JournalRecords, RecordHeader, RecordSink, Verdict
from store.journal.ring.files import Ring
from store.journal.ring.order import RingFile
from store.journal.ring.version_1 import Version1Records
from store.journal.ring.version_2 import Version2Records
from store.journal.stream import JournalStream


class JournalEnd(NamedTuple):
    """Where and why a walk stopped.

    Attributes:
        place: where the next record would be.
        what: why nothing more follows there.
        torn: whether a record, or a flush, stands there in part.
        rid: the torn record's id, if its header can be read.
        sealed: version 2: whether the journal was closed cleanly.
        flush: version 2: number of the last flush read.
    """

    place: int
    what: str
    torn: bool
    rid: int | None
    sealed: bool
    flush: int


MAX_BREAKS: Final = 1000  # that are listed; a forged journal may have any number
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
        records: what stands in them.

    Attributes:
        gaps: what the walk skipped.
    """

    def __init__(self, stream: JournalStream, records: JournalRecords) -> None:
        self._stream = stream
        self._records = records
        self._breaks = 0
        self.gaps = Gaps()

    def walk(self, sink: RecordSink, *, every_record: bool = False) -> JournalEnd:
        """Hand each record to `sink` until the journal ends.

        Args:
            sink: takes the records.
            every_record: hand all of them to `sink.record`, fillers included, and none to `enqueue` and `dequeue`.
        """
        end = self.go_on(self.begin(sink), self._stream.size, sink, every_record=every_record)
        assert isinstance(end, JournalEnd)  # no record begins where the journal's stream ends
        return end

    def go_on(self, place: int, stop: int, sink: RecordSink, *, every_record: bool = False) -> int | JournalEnd:
        """Walk on from `place` to the first good record at or after `stop`.

        So a journal can be walked over piece by piece, and every piece has what breaks the chain behind its records.

        Args:
            place: where a record is due: what `begin`, or the last call, gave, or `JournalRecords.entry`.
            stop: where to pause.
            sink: takes the records.
            every_record: as `walk`.

        Returns:
            The place of that record, which was not taken, or the journal's end, if it comes before that.
        """
        file_end = self._file_end(place)
        while place < self._stream.size:
            if place >= file_end:
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
            self._tell_break(place, resumed, verdict, sink)
            place = resumed
            file_end = self._file_end(place)
        state = self._records.end_state()
        return JournalEnd(self._stream.size, "the last file is full", state.torn, None, state.sealed, state.flush)

    def _file_end(self, place: int) -> int:
        return place - place % self._stream.data_size + self._stream.data_size

    # ---- where the walk begins, and what each file's header says about it ----

    def begin(self, sink: RecordSink) -> int:
        """The first record header. A file in which none begins is passed over: nothing older can be whole."""
        stream = self._stream
        for index, file in enumerate(stream.files):
            begin = index * stream.data_size
            first = file.first_record(stream.geometry)
            if first is not None:
                return self._first_in(index, begin, begin + first, sink)
            if file.begins_no_record(stream.geometry):
                found = self._records.search(begin) if self._records.tells_first_record(index) else None
                if found is None or found >= begin + stream.data_size:
                    continue
                self._tell_first(file, found, None, sink)
                return found
            if file.first_record_offset is not None:
                kind, field = DamageKind.FIRST_RECORD_OUTSIDE, self._records.first_record_field
                sink.damaged(Damage(file.path, field, None, kind, told=file.first_record_offset))
            found = self._records.search(begin)
            if found:
                self.gaps.add(Gap(begin, found, None, "no record is known to begin here"))
            return begin if found is None else found
        return stream.size

    def _first_in(self, index: int, begin: int, told: int, sink: RecordSink) -> int:
        """The first record of the oldest file, whose header says that it is at `told`; nothing else leads there."""
        if told == begin:
            self._records.file_entered(begin)
            return begin
        searched = self._records.tells_first_record(index) or self._records.examine(told).problem is not None
        found = self._records.search(begin) if searched else None
        if found is None or found >= told:
            return told
        offset = told - begin + self._stream.geometry.header_size
        self._tell_first(self._stream.files[index], found, offset, sink)
        return found

    def _tell_first(self, file: JournalFile[Any], found: int, told: int | None, sink: RecordSink) -> None:
        """A record begins in a file before the offset that the header tells; None where it tells of no record."""
        field, offset = self._records.first_record_field, self._stream.locate(found)[1]
        if told is None:
            sink.damaged(Damage(file.path, field, None, DamageKind.FIRST_RECORD_NOT_TOLD, found=offset))
        else:
            sink.damaged(Damage(file.path, field, None, DamageKind.FIRST_RECORD_BEFORE, told=told, found=offset))

    def _check_first_record(self, place: int, sink: RecordSink) -> int:
        """The chain of records arrives at `place` in another file, whose header must agree; where the chain goes on."""
        file, offset = self._stream.locate(place)
        told = file.first_record_offset
        gap = file.gap_before()
        if gap is not None and told is not None and told != offset and file.first_record(self._stream.geometry):
            sink.damaged(gap)  # what begins the file goes on from one that is lost
            return place - offset + told
        verdict = self._records.examine(place)
        if told is None or verdict.header is None or verdict.problem is not None:
            return place
        if verdict.header.kind is Kind.FILLER and not verdict.header.has_tail:
            return place  # fillers of versions without checksums may be of any age, and lead anywhere
        missing = self._records.missing_before(place)
        if missing is not None:
            before, _ = self._stream.locate(place - self._stream.data_size)
            kind, (last, first) = DamageKind.FLUSHES_MISSING, missing
            sink.damaged(Damage(before.path, FIRST_FLUSH_OFFSET, None, kind, last=last, first=first))
        self._records.file_entered(place)
        if told != offset:
            kind, field = DamageKind.FIRST_RECORD_ELSEWHERE, self._records.first_record_field
            sink.damaged(Damage(file.path, field, None, kind, told=told, found=offset))
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
        """Where the next record stands if all that is wrong with a bad record is its tail."""
        if verdict.header is None or verdict.stale:
            return None
        end = place + verdict.header.size
        first, last = (at // self._stream.data_size + 1 for at in (place, min(end, self._stream.size) - 1))
        if any(file.gap_before() is not None for file in self._stream.files[first:last]):
            return None  # it went on in a file that is lost
        return end

    def _tell_break(self, place: int, resumed: int, verdict: Verdict, sink: RecordSink) -> None:
        """The chain is broken at `place` and goes on at `resumed`."""
        data_size = self._stream.data_size
        rid = verdict.header.rid if verdict.header is not None and not verdict.stale else None
        self.gaps.add(Gap(place, resumed, rid, verdict.problem or "no record"))
        for file in self._stream.files[place // data_size + 1 : resumed // data_size + 1]:
            gap = file.gap_before()
            if gap is not None:
                sink.damaged(gap)
        if self._is_told_already(place):
            return
        self._breaks += 1
        if self._breaks <= MAX_BREAKS:
            sink.damaged(self._gap(place, resumed, verdict))
        elif self._breaks == MAX_BREAKS + 1:
            file, offset = self._stream.locate(place)
            sink.damaged(Damage(file.path, offset, None, DamageKind.MORE_BREAKS, breaks=MAX_BREAKS))

    def _is_told_already(self, place: int) -> bool:
        """Whether a file that is missing, cut short, or not to be verified should hold the place."""
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
        torn = begun or state.torn
        sealed = state.sealed and not state.torn  # what was there before may look like a record that was begun
        return JournalEnd(place, verdict.problem or "no record", torn, rid, sealed, state.flush)
