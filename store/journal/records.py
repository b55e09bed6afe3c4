"""What stands at the places of a journal: the part of reading that all formats share.

A `JournalRecords` says of one place whether a good record stands there or what is wrong, takes runs of plain records,
which most are, in one go, and finds the next good record after a break in the chain of records. Each format has its
own: `version_1`, `version_2`, `linear`.

After a break, candidates are the blocks that begin with the format's magic. A file's header names the first record in
it, so each further file is entered there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import ClassVar, Final, NamedTuple, Protocol, TypeAlias

import formats.qls.records as qls
import formats.rhm.records as rhm
from formats.errors import FormatError
from formats.rhm.geometry import BLOCK_SIZE
from formats.rhm.records import Kind, is_padding
from store.damage import Damage
from store.journal.stream import JournalStream

MAX_XID_SIZE: Final = 1 << 20  # bytes: a DTX xid has at most 520, a local one 24; more is no record
LEAST_WINDOW: Final = 8192  # bytes ahead that make looking into the window worthwhile
RUN_UP: Final = 1 << 20  # bytes, at first, that a walk begins before a place in the middle, to be right there

#: A record's header, of whichever format.
RecordHeader: TypeAlias = rhm.RecordHeader | qls.RecordHeader


class RecordSink(Protocol):
    """Takes what a walk finds, in the order in which it was written."""

    def enqueue(self, rid: int, place: int) -> None:
        """A persistent message outside of any transaction."""

    def dequeue(self, rid: int, dequeued_rid: int, place: int) -> None:
        """A dequeue outside of any transaction."""

    def record(self, header: RecordHeader, place: int, xid: bytes) -> None:
        """Any other record: transactional, transient, moved; and all, fillers too, where every record is asked for."""

    def damaged(self, damage: Damage) -> None:
        """Damage that the walk met and passed."""


class Verdict(NamedTuple):
    """What stands at a place.

    Attributes:
        header: the record's header, where one can be read.
        problem: what is wrong; None for a good record of the present lap.
        stale: the record is whole, but of an older lap (version 1), an older flush (version 2), or the file's former
            life (linear).
        xid: of a good record, its transaction id.
        fails_checksum: whether the problem is a checksum that does not match.
    """

    header: RecordHeader | None
    problem: str | None
    stale: bool = False
    xid: bytes = b""
    fails_checksum: bool = False


class EndState(NamedTuple):
    """How a journal ends, as far as its format can tell.

    Attributes:
        torn: whether a flush is incomplete.
        sealed: version 2: whether the journal was closed cleanly.
        flush: version 2: number of the last flush read.
    """

    torn: bool = False
    sealed: bool = False
    flush: int = 0


class JournalRecords(ABC):
    """The records of one journal.

    Attributes:
        magic: the first three bytes of every record.
        max_header_size: bytes of the longest record header.
        first_record_field: where in a file's header the first record offset stands.
        usual_flags: flags that a plain record may have.
        known_flags: kind -> the flags that mean something; empty where a checksum covers them all.
        continued: places of records within which a linearstore's writer had to wait; they are good.
        notices: one line each: what was met and is no damage.
    """

    magic: ClassVar[bytes]
    max_header_size: ClassVar[int]
    first_record_field: ClassVar[int]
    usual_flags: ClassVar[int] = 0
    known_flags: ClassVar[Mapping[Kind, int]] = {}

    def __init__(self, stream: JournalStream) -> None:
        self._stream = stream
        self._last_place = -1  # of the last record taken that is no filler
        self.continued: set[int] = set()
        self.notices: list[str] = []

    # ---- one record ----

    def examine(self, place: int) -> Verdict:
        """What stands at `place`."""
        try:
            header = self._decode_header(self._stream.read(place, self.max_header_size))
        except FormatError as error:
            return Verdict(None, error.what)
        return self.verify(place, header)

    def verify(self, place: int, header: RecordHeader) -> Verdict:
        """Whether the record that `header` begins at `place` is good."""
        stranger = self._stranger(header, place)
        if stranger is not None:
            return stranger
        if header.xid_size > MAX_XID_SIZE:
            return Verdict(header, f"{header.kind.label} record with an xid of {header.xid_size} bytes")
        if header.size > self._stream.size - place:
            return Verdict(header, f"{header.kind.label} record of {header.size} bytes runs past the journal's end")
        if not self._stream.is_backed(place, header.tail_offset):
            return Verdict(header, f"{header.kind.label} record of {header.size} bytes runs past the end of a file")
        return self._check(header, place)

    def _stranger(self, _header: RecordHeader, _place: int) -> Verdict | None:
        """The verdict on a record that its header alone shows to be no record of this life of its file."""
        return None

    @abstractmethod
    def _decode_header(self, buffer: bytes) -> RecordHeader:
        """The header at the start of `buffer`. Raises FormatError."""

    @abstractmethod
    def _check(self, header: RecordHeader, place: int) -> Verdict:
        """Whether the record that `header` begins is good; its sizes are within bounds."""

    def can_verify(self, _place: int) -> bool:
        """Whether records at `place` can be told from others: not so if what a file's header holds for it is lost."""
        return True

    def taken(self, header: RecordHeader, place: int) -> None:
        """A good record was read; the walk goes on behind it."""
        if header.kind is not Kind.FILLER:
            self._last_place = place

    def file_entered(self, place: int) -> None:  # noqa: B027  # for formats whose file headers name a record
        """The chain of records arrives at `place`, the first record header in a file, or where that would be."""

    def missing_before(self, _place: int) -> tuple[int, int] | None:
        """The flush before `place`, the first record header in a file, and its own, if others are missing between."""
        return None

    def tells_first_record(self, _index: int) -> bool:
        """Whether a good record that `search` finds at the beginning of a file is one, whatever the header says."""
        return True

    # ---- runs of plain records ----

    @abstractmethod
    def run(self, place: int, file_end: int, sink: RecordSink) -> int:
        """Take plain records from `place` on: the hot part of recovery.

        Plain are enqueues and dequeues outside of any transaction. The run stops at the first record that is anything
        else, or not whole in the stream's window, or not good; `examine` then says what it is.

        Args:
            place: where the first record header stands.
            file_end: where the present file ends; headers beyond are not looked at.
            sink: its `enqueue` and `dequeue` are called.

        Returns:
            The place of the first record that was not taken.
        """

    # ---- breaks ----

    @abstractmethod
    def search(self, place: int, end: int | None = None) -> int | None:
        """The first good record at or after `place`, and before `end` if that is given; None if there is none."""

    def first_good(self, place: int, end: int) -> int | None:
        """The first block from `place` on, before `end`, that looks like a good record or filler, if it is due or not.

        Whether it is one, only a walk that comes by can tell (`entry`).
        """
        for candidate in self._candidates(place, end):
            if JournalRecords.examine(self, candidate).problem is None:
                return candidate
        return None

    def entry(self, found: int) -> int | None:
        """Where a walk enters the journal so that it comes to `found` as one from the beginning would.

        Args:
            found: what `first_good` gave.

        Returns:
            Where the record stands with which the walk begins; None: only at the journal's beginning.
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
        """The first good record after what broke the chain at `place`; None if there is none.

        Args:
            place: where something stands that is no good record.
            likely: where the next record stands if only the broken record's tail is bad. It is looked for there first,
                so that nothing in that record's body is taken for a record.
        """
        if likely is not None and self._goes_on_at(likely):
            return likely
        return self.search(place)  # from the place itself: an old record there is passed over whole

    @abstractmethod
    def begins_record(self, place: int, verdict: Verdict) -> bool:
        """Whether what broke the chain is a record that was being written, and not what an older lap left behind."""

    def end_state(self) -> EndState:
        """How the journal ends behind the last record that was taken."""
        return EndState()

    # ---- for the formats' own use ----

    def _compare_header_rid(self, place: int, told: int) -> None:
        """Note a file header that names another record than the one that was written when the header was.

        That is the first one in the file, or the one that goes on in it. After a crash it may be neither: the record
        was torn, and another one written in its place. qpidd's resize tool names the next one.
        """
        file, offset = self._stream.locate(place)
        at_hand = [place] if offset == self._stream.geometry.header_size else [place, self._last_place]
        headers = [self._header(at) for at in at_hand if at >= 0]
        rids = [header.rid for header in headers if header is not None and header.kind is not Kind.FILLER]
        if rids and told not in rids:
            self.notices.append(
                f"{file.path}: file header names record 0x{told:x}; the file begins with 0x{rids[0]:x}; "
                "nothing is read from that field"
            )

    def _goes_on_at(self, place: int) -> bool:
        """Whether there is a good record at `place`, perhaps after the fillers that end a flush."""
        sector = self._stream.geometry.header_size  # in both geometries one sector
        for at in range(place, min(place + sector, self._stream.size), BLOCK_SIZE):
            verdict = self.examine(at)
            if verdict.header is None or verdict.problem is not None:
                return False
            if verdict.header.kind is not Kind.FILLER:
                return self._plausible(verdict.header, at)
        return False

    def _plausible(self, header: RecordHeader, place: int) -> bool:
        """A plain dequeue may have no tail, so its padding must do."""
        return header.has_tail or is_padding(self._stream.read(place, BLOCK_SIZE)[header.header_size :])

    def _header(self, place: int) -> RecordHeader | None:
        try:
            return self._decode_header(self._stream.read(place, BLOCK_SIZE))
        except FormatError:
            return None

    def _candidates(self, place: int, stop: int | None = None) -> Iterator[int]:
        """The blocks from `place` on, up to `stop` if that is given, that begin with the magic."""
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
                place = file_end  # cut short or missing: an info file may claim any size
                continue
            window, at = stream.window(place, BLOCK_SIZE)
            base = place - at
            end = min(len(window), min(file_end, stop) - base)
            found = window.find(self.magic, at, end)
            while found >= 0:
                if not (base + found) % BLOCK_SIZE:
                    yield base + found
                found = window.find(self.magic, found + 1, end)
            place = base + end

    def _first_in(self, begin: int) -> int:
        """Where the search enters the file that begins at `begin`; its end, if no record begins in it."""
        if begin >= self._stream.size:
            return begin
        file, _ = self._stream.locate(begin)
        first = file.first_record(self._stream.geometry)
        if first is not None:
            return begin + first
        return begin + self._stream.data_size if file.begins_no_record(self._stream.geometry) else begin
