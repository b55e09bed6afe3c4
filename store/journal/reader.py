"""Walks the records of one journal from the oldest to the end, and tells a torn tail from interior damage.

At each place there is either a *good* record of the present lap (its tail matches it; in version 1 its overwrite
indicator is that of its file, in version 2 its flush number does not go back), which is handed to the sink, or the
chain is *broken*. After a break the rest of the journal is searched for a good record of the present lap:

    none                  the end of the journal: space never written, the remains of an older lap, or a record that
                          the crash tore. All normal; the walk stops.
    one (version 1)       interior damage: reported, and the walk goes on there.
    only of the flush     the flush was torn, and a torn flush was acknowledged to nobody: the rest of it is dropped.
    that broke (v. 2)
    one of a later flush  interior damage, since a flush is written only after the one before it was synced: reported,
    (version 2)           and the walk goes on at the first good record, be it of the flush that broke.

Which flush broke is known, because the last record of a flush is flagged: after such a record it is the next one,
otherwise the present one. The first flush after a restart is a single filler, which cannot be torn into parts.
Version 1 has neither flush numbers nor checksums; there a message whose body holds journal records can mislead the
search after a break (never the walk itself), unless the next record stands where the broken one's header says.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from formats.rhm.geometry import BLOCK_SIZE
from formats.rhm.records import LAST_OF_FLUSH, OVERWRITE_INDICATOR, Kind, RecordHeader
from store.damage import Damage
from store.journal.examine import Examiner, Verdict
from store.journal.resynchronise import Resynchroniser
from store.journal.ring import Ring
from store.journal.runs import run_version_1, run_version_2
from store.journal.stream import JournalStream


class RecordSink(Protocol):
    """Takes what a walk finds, in the order in which it was written."""

    def enqueue(self, rid: int, place: int) -> None:
        """A persistent message outside of any transaction."""

    def dequeue(self, rid: int, dequeued_rid: int) -> None:
        """A dequeue outside of any transaction."""

    def record(self, header: RecordHeader, place: int, xid: bytes) -> None:
        """Any other record: transactional, transient, moved; and all, fillers too, where every record is asked for."""

    def damaged(self, damage: Damage) -> None:
        """Damage that the walk met and passed."""


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


class JournalReader:
    """One walk over a journal's records.

    Args:
        stream: the journal's bytes.
        ring: its files in order; its version is known.
    """

    def __init__(self, stream: JournalStream, ring: Ring) -> None:
        assert ring.version in (1, 2)
        self._stream = stream
        self._version: int = ring.version
        self._examiner = Examiner(stream, ring.version)
        self._resynchroniser = Resynchroniser(stream, ring.version, self._examiner)

    def walk(self, sink: RecordSink, *, every_record: bool = False) -> JournalEnd:
        """Hand each record to `sink` until the journal ends.

        Args:
            sink: takes the records.
            every_record: hand all of them to `sink.record`, fillers included, and none to `enqueue` and `dequeue`.
        """
        place = self._start(sink)
        file_end = self._file_end(place)
        while place < self._stream.size:
            if place >= file_end:
                self._check_first_record(place, sink)
                file_end = self._file_end(place)
            if not every_record:
                after = self._run(place, file_end, sink)
                if after > place:
                    place = after
                    continue
            verdict = self._examiner.examine(place)
            if verdict.problem is None and verdict.header is not None:
                self._take(verdict.header, place, verdict.xid, sink, every_record=every_record)
                place += verdict.header.size
                continue
            resumed = self._resynchroniser.after_break(place, self._claimed_end(place, verdict))
            if resumed is None:
                return self._end(place, verdict)
            sink.damaged(self._gap(place, resumed, verdict))
            place = resumed
            file_end = self._file_end(place)
        return JournalEnd(
            self._stream.size,
            "the last file is full",
            torn=self._version == 2 and not self._examiner.flush.complete,
            rid=None,
            sealed=self._examiner.flush.sealed,
            flush=self._examiner.flush.number,
        )

    def _file_end(self, place: int) -> int:
        return place - place % self._stream.data_size + self._stream.data_size

    # ---- where the walk begins, and what each file's header says about it ----

    def _start(self, sink: RecordSink) -> int:
        """The first record header. A file in which none begins is passed over: nothing older can be whole."""
        stream = self._stream
        headers = [file.header for file in stream.files if file.header is not None]
        self._examiner.flush.number = headers[0].first_flush if headers else 0
        for index, file in enumerate(stream.files):
            begin = index * stream.data_size
            first = file.first_record(stream.data_size)
            if first is not None:
                return begin + first
            if file.begins_no_record(stream.data_size):
                continue
            if file.header is not None:
                what = f"first record offset 0x{file.header.first_record_offset:x} is not in the file"
                sink.damaged(Damage(file.path, 0, None, what, "the first record is searched for"))
            found = self._resynchroniser.search(begin)
            return begin if found is None else found
        return stream.size

    def _check_first_record(self, place: int, sink: RecordSink) -> None:
        """The chain of records arrives at `place` in another file, whose header must agree."""
        file, offset = self._stream.locate(place)
        if file.header is None or file.header.first_record_offset == offset:
            return
        if self._examiner.examine(place).problem is None:
            what = (
                f"file header says that the first record is at 0x{file.header.first_record_offset:x}; "
                f"it is at 0x{offset:x}"
            )
            sink.damaged(Damage(file.path, 0, None, what, "none: the records before it lead to the right place"))

    # ---- good records ----

    def _run(self, place: int, file_end: int, sink: RecordSink) -> int:
        if self._version == 2:
            flush = self._examiner.flush
            return run_version_2(self._stream, place, file_end, flush, sink.enqueue, sink.dequeue)
        indicator = self._stream.files[place // self._stream.data_size].overwrite_indicator
        if indicator is None:
            return place
        return run_version_1(self._stream, place, file_end, indicator, sink.enqueue, sink.dequeue)

    def _take(self, header: RecordHeader, place: int, xid: bytes, sink: RecordSink, *, every_record: bool) -> None:
        if self._version == 2:
            self._examiner.flush.advance(header)
        usual_flag = OVERWRITE_INDICATOR if self._version == 1 else LAST_OF_FLUSH
        if every_record:
            sink.record(header, place, xid)
        elif header.kind is Kind.FILLER:
            return
        elif header.xid_size or header.flags & ~usual_flag:
            sink.record(header, place, xid)
        elif header.kind is Kind.ENQUEUE:
            sink.enqueue(header.rid, place)
        else:
            sink.dequeue(header.rid, header.dequeued_rid)

    # ---- breaks ----

    def _claimed_end(self, place: int, verdict: Verdict) -> int | None:
        """Where the next record stands if all that is wrong with a bad record is its tail."""
        return None if verdict.header is None or verdict.stale else place + verdict.header.size

    def _gap(self, place: int, resumed: int, verdict: Verdict) -> Damage:
        file, offset = self._stream.locate(place)
        next_file, next_offset = self._stream.locate(resumed)
        where = "" if next_file is file else f" of file {next_file.number}"
        rid = verdict.header.rid if verdict.header is not None and not verdict.stale else None
        blocks = (resumed - place) // BLOCK_SIZE
        consequence = f"{blocks} blocks, up to 0x{next_offset:x}{where}, are skipped; the records after them are read"
        return Damage(file.path, offset, rid, verdict.problem or "no record", consequence)

    def _end(self, place: int, verdict: Verdict) -> JournalEnd:
        flush = self._examiner.flush
        torn = self._begins_record(place, verdict)
        rid = verdict.header.rid if torn and verdict.header is not None else None
        if self._version == 2:
            torn = torn or not flush.complete
        return JournalEnd(place, verdict.problem or "no record", torn, rid, flush.sealed and not torn, flush.number)

    def _begins_record(self, place: int, verdict: Verdict) -> bool:
        """Whether a bad record is one that was being written, and not what an older lap left behind."""
        header = verdict.header
        if header is None or verdict.stale:
            return False
        if self._version == 2:
            return self._examiner.flush.expand(header.flush) > self._examiner.flush.number
        indicator = self._stream.files[place // self._stream.data_size].overwrite_indicator
        return indicator is None or header.flags & OVERWRITE_INDICATOR == indicator
