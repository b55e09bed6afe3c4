"""The records of a journal: the part of reading that all formats share.

A `JournalRecords` states for one log offset whether a good record is there or what is wrong, reads runs of plain
records, the vast majority, in one go, and finds the next good record after a break in the chain. Each format has its
own subclass (`ring.records`, `line.records`).

After a break, candidates are the blocks that begin with the format's magic. A file's header names the first record in
it, so each further file is entered there.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import ClassVar, Final, Protocol, TypeAlias

import qstore.formats.qls.records as qls
import qstore.formats.rhm.records as rhm
from qstore.formats.errors import FormatError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.rhm.records import Kind, is_padding
from qstore.formats.zeros import is_zero
from qstore.store.damage import Damage
from qstore.store.journal.stream import JournalStream

MAX_XID_SIZE: Final = 1 << 20  # bytes: a DTX xid has at most 520, a local one 24; a larger size is not that of a record
MIN_WINDOW: Final = 8192  # least bytes ahead for which using the window pays off
_PIECE: Final = 1 << 12  # bytes; pieces of zeros only need not be searched
RUN_UP: Final = 1 << 20  # initial distance in bytes by which a walk starts before an interior log offset

#: A record's header, of any format.
RecordHeader: TypeAlias = rhm.RecordHeader | qls.RecordHeader


class RecordSink(Protocol):
    """Receives the results of a walk, in order of writing."""

    def enqueue(self, rid: int, place: int, blocks: int = 0) -> None:
        """A persistent message outside of any transaction, whose record has `blocks` blocks; 0 if unknown."""

    def dequeue(self, rid: int, dequeued_rid: int, place: int) -> None:
        """A dequeue outside of any transaction."""

    def record(self, header: RecordHeader, place: int, xid: bytes) -> None:
        """Any other record: transactional, transient or moved; or all, fillers included, on request."""

    def damaged(self, damage: Damage) -> None:
        """Damage that the walk found and skipped."""


class Verdict(NamedTuple):
    """The result of examining one log offset.

    Attributes:
        header: the record's header, if readable.
        problem: what is wrong; None for a good record of the current lap.
        stale: the record is complete, but of an older lap (version 1), an older flush (version 2), or the file's
            previous use (linear).
        xid: transaction id of a good record.
        fails_checksum: whether the problem is a checksum mismatch.
    """

    header: RecordHeader | None
    problem: str | None
    stale: bool = False
    xid: bytes = b""
    fails_checksum: bool = False


class EndState(NamedTuple):
    """The end of a journal, as far as its format shows.

    Attributes:
        torn: whether a flush is incomplete.
        sealed: version 2: whether the journal was closed cleanly.
        flush: version 2: number of the last flush read.
        has_rest: version 2: whether records of a flush follow whose beginning is missing.
    """

    torn: bool = False
    sealed: bool = False
    flush: int = 0
    has_rest: bool = False


class JournalRecords:
    """The records of one journal.

    Attributes:
        magic: the first three bytes of every record.
        max_header_size: bytes of the longest record header.
        first_record_field: offset of the first record offset in a file header.
        usual_flags: flags that a plain record may have.
        known_flags: kind -> its defined flags; empty where a checksum covers them all.
        continued: log offsets of records within which a linearstore's writer had to wait; they are good.
        notices: one line each about things that are not damage.
    """

    magic: ClassVar[bytes]
    max_header_size: ClassVar[int]
    first_record_field: ClassVar[int]
    usual_flags: ClassVar[int] = 0
    known_flags: ClassVar[Mapping[Kind, int]] = {}

    def __init__(self, stream: JournalStream) -> None:
        self._stream = stream
        self._last_place = -1  # of the last record taken, fillers excluded
        self.continued: set[int] = set()
        self.notices: list[str] = []

    # ---- one record ----

    def examine(self, place: int) -> Verdict:
        """Examine the record at `place`."""
        try:
            header = self._decode_header(self._stream.read(place, self.max_header_size))
        except FormatError as error:
            return Verdict(None, error.what)
        return self.verify(place, header)

    def verify(self, place: int, header: RecordHeader) -> Verdict:
        """Check the record whose header is at `place`."""
        stranger = self._stranger(header, place)
        if stranger is not None:
            return stranger
        if header.xid_size > MAX_XID_SIZE:
            return Verdict(header, f"{header.kind.label} record with an xid of {header.xid_size:,} bytes")
        if header.size > self._stream.size - place:
            return Verdict(header, f"{header.kind.label} record of {header.size:,} bytes runs past the journal's end")
        if not self._stream.is_backed(place, header.tail_offset):
            return Verdict(header, f"{header.kind.label} record of {header.size:,} bytes runs past the end of a file")
        return self._check(header, place)

    def _stranger(self, _header: RecordHeader, _place: int) -> Verdict | None:
        """The verdict on a record whose header shows that it is from the file's previous use; None for others."""
        return None

    @abstractmethod
    def _decode_header(self, buffer: bytes) -> RecordHeader:
        """The header at the start of `buffer`. Raises FormatError."""

    @abstractmethod
    def _check(self, header: RecordHeader, place: int) -> Verdict:
        """Check the record that `header` begins; its sizes are within bounds."""

    def can_verify(self, _place: int) -> bool:
        """Whether records at `place` can be verified: not if the required data in the file's header is lost."""
        return True

    def taken(self, header: RecordHeader, place: int) -> None:
        """Note that a good record was read; the walk continues after it."""
        if header.kind is not Kind.FILLER:
            self._last_place = place

    def file_entered(self, place: int) -> None:  # for formats whose file headers name a record
        """Note that the record chain reaches `place`, the first record header in a file, or its expected place."""

    def missing_before(self, _place: int) -> tuple[int, int] | None:
        """The flushes before and at `place`, the first record header in a file, if flushes between them are missing."""
        return None

    def may_precede_first_record(self, _index: int) -> bool:
        """Whether a good record that `search` finds at the beginning of a file counts, whatever the header states."""
        return True

    # ---- runs of plain records ----

    @abstractmethod
    def run(self, place: int, file_end: int, sink: RecordSink) -> int:
        """Read plain records from `place` on: the hot part of recovery.

        Plain records are enqueues and dequeues outside of any transaction. The run stops at the first record that is
        not plain, not complete in the stream's window, or not good; `examine` then shows which.

        Args:
            place: log offset of the first record header.
            file_end: log offset where the current file ends; headers after it are not read.
            sink: its `enqueue` and `dequeue` are called.

        Returns:
            The log offset of the first record that was not read.
        """

    # ---- breaks ----

    @abstractmethod
    def search(self, place: int, end: int | None = None) -> int | None:
        """The first good record at or after `place`, and before `end` if that is given; None if there is none."""

    def first_good(self, place: int, end: int) -> int | None:
        """The first block from `place` on, before `end`, that looks like a good record or filler, expected or not.

        Only a walk that reaches it can confirm that (`entry`).
        """
        for candidate in self._candidates(place, end):
            if JournalRecords.examine(self, candidate).problem is None:
                return candidate
        return None

    def entry(self, found: int) -> int | None:
        """Where a walk must start to reach `found` in the same state as a walk from the beginning.

        Args:
            found: the result of `first_good`.

        Returns:
            Log offset of the first record of that walk; None: only the journal's beginning will do.
        """
        begin = found - found % self._stream.data_size
        first = self._stream.locate(found)[0].first_record(self._stream.geometry)
        if first is not None and found - RUN_UP <= begin + first <= found:
            return begin + first
        span = RUN_UP
        while found > span:
            entered = self.search(found - span, found + BLOCK_SIZE)
            if entered is not None:
                return entered
            span *= 4
        return None

    def after_break(self, place: int, likely: int | None) -> int | None:
        """The first good record after the break in the chain at `place`; None if there is none.

        Args:
            place: log offset of something that is not a good record.
            likely: log offset of the next record if only the broken record's tail is bad. It is tried first, so that
                nothing in that record's body is taken for a record.
        """
        if likely is not None and self._continues_at(likely):
            return likely
        return self.search(place)  # from `place` itself: an old record there is skipped as a whole

    @abstractmethod
    def begins_record(self, place: int, verdict: Verdict) -> bool:
        """Whether the chain was broken by a record being written, and not by the remains of an older lap."""

    def end_state(self) -> EndState:
        """How the journal ends after the last record read."""
        return EndState()

    # ---- for subclasses ----

    def _compare_header_rid(self, place: int, recorded: int) -> None:
        """Note a file header that names another record than the one written together with the header.

        That is the first one in the file, or the one that continues into it. After a crash it may be neither: the
        record was torn, and another one was written over it. qpidd's resize tool names the next one.
        """
        file, offset = self._stream.locate(place)
        at_hand = [place] if offset == self._stream.geometry.header_size else [place, self._last_place]
        headers = [self._header(at) for at in at_hand if at >= 0]
        rids = [header.rid for header in headers if header is not None and header.kind is not Kind.FILLER]
        if rids and recorded not in rids:
            self.notices.append(
                f"{file.path}: file header names record 0x{recorded:x}; the file begins with 0x{rids[0]:x}; "
                "that field is ignored"
            )

    def _continues_at(self, place: int) -> bool:
        """Whether there is a good record at `place`, perhaps after the fillers at the end of a flush."""
        sector = self._stream.geometry.header_size  # in both geometries one sector
        for at in range(place, min(place + sector, self._stream.size), BLOCK_SIZE):
            verdict = self.examine(at)
            if verdict.header is None or verdict.problem is not None:
                return False
            if verdict.header.kind is not Kind.FILLER:
                return self._plausible(verdict.header, at)
        return False

    def _plausible(self, header: RecordHeader, place: int) -> bool:
        """Whether the padding looks right: a plain dequeue may have no tail to check."""
        return header.has_tail or is_padding(self._stream.read(place, BLOCK_SIZE)[header.header_size :])

    def _header(self, place: int) -> RecordHeader | None:
        try:
            return self._decode_header(self._stream.read(place, BLOCK_SIZE))
        except FormatError:
            return None

    def _candidates(self, place: int, stop: int | None = None) -> Iterator[int]:
        """The blocks from `place` on, up to `stop` if given, that begin with the magic."""
        stream = self._stream
        stop = stream.size if stop is None else min(stop, stream.size)
        file_end = place - place % stream.data_size + stream.data_size
        while place < stop:
            if place >= file_end:
                place = self._first_in(file_end)
                file_end += stream.data_size
                continue
            file, offset = stream.locate(place)
            if offset >= file.size:
                place = file_end  # cut short or missing: an info file may state any size
                continue
            window, at = stream.window(place, BLOCK_SIZE)
            base = place - at
            end = min(len(window), min(file_end, stop) - base)
            place = base + end
            while at < end:
                piece = min(end, at + _PIECE - (base + at) % BLOCK_SIZE)
                if not is_zero(window, at, piece):
                    found = window.find(self.magic, at, piece)
                    while found >= 0:
                        if not (base + found) % BLOCK_SIZE:
                            yield base + found
                        found = window.find(self.magic, found + 1, piece)
                at = piece

    def _first_in(self, begin: int) -> int:
        """Log offset where the search enters the file that begins at `begin`; its end if no record begins in it."""
        if begin >= self._stream.size:
            return begin
        file, _ = self._stream.locate(begin)
        first = file.first_record(self._stream.geometry)
        if first is not None:
            return begin + first
        return begin + self._stream.data_size if file.begins_no_record(self._stream.geometry) else begin
