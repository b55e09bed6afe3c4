"""Finding the next good record after a break in the chain of records.

Candidates are the blocks that begin with a journal magic. A file's header names the first record in it, so each
further file is entered there. In version 2 the checksum with the file's salt decides. Version 1 has less to go by: the
magic, the tail, the overwrite indicator, and of a plain dequeue (which has no tail) the padding; and an old record,
where one is met, is passed over whole, so that what lies in its body is not looked at. Nor is what lies in the body of
the broken record itself, where the chain goes on behind it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from formats.rhm.errors import RhmError
from formats.rhm.geometry import BLOCK_SIZE, SECTOR_SIZE
from formats.rhm.records import Kind, RecordHeader, decode_header, is_padding
from store.journal.examine import Examiner
from store.journal.runs import run_version_1
from store.journal.stream import JournalStream

_WORK: Final = 8  # a search checksums at most so many times the journal's size ...
_CHEAP_RECORD: Final = 4096  # ... and after that only records of at most so many bytes
_FLUSH: Final = struct.Struct("<I")
_FLUSH_OFFSET: Final = 20


def _ignore(_rid: int, _place: int) -> None:
    """Old records are stepped over, and nothing is made of them."""


class Resynchroniser:
    """Searches one journal for good records of the present lap.

    Args:
        stream: the journal's bytes.
        version: 1 or 2.
        examiner: verifies a candidate.
    """

    def __init__(self, stream: JournalStream, version: int, examiner: Examiner) -> None:
        self._stream = stream
        self._version = version
        self._examiner = examiner

    def search(self, place: int) -> int | None:
        """The first good record at or after `place`; None if there is none.

        In version 2 one of the flush that broke counts only if one of a later flush follows: that one was written
        after the broken flush had been synced whole.
        """
        return self._search_version_1(place) if self._version == 1 else self._search_version_2(place)

    def after_break(self, place: int, likely: int | None) -> int | None:
        """The first good record after what broke the chain at `place`; None if there is none.

        Args:
            place: where something stands that is no good record.
            likely: where the next record stands if only the broken record's tail is bad. Version 1 looks there first,
                so that nothing in that record's body is taken for a record.
        """
        if self._version == 2:
            return self._search_version_2(place + BLOCK_SIZE)
        if likely is not None and self._goes_on_at(likely):
            return likely
        return self._search_version_1(place)  # from the place itself: an old record there is passed over whole

    def _search_version_1(self, place: int) -> int | None:
        after_old = place
        for candidate in self._candidates(place):
            if candidate < after_old:
                continue
            header = self._header(candidate)
            if header is None or header.kind is Kind.FILLER or not self._plausible(header, candidate):
                continue
            verdict = self._examiner.examine(candidate)
            if verdict.problem is None:
                return candidate
            if verdict.stale:
                after_old = self._after_old_records(candidate, header)
        return None

    def _goes_on_at(self, place: int) -> bool:
        """Whether there is a good record at `place`, perhaps after the fillers that end a flush."""
        for at in range(place, min(place + SECTOR_SIZE, self._stream.size), BLOCK_SIZE):
            verdict = self._examiner.examine(at)
            if verdict.header is None or verdict.problem is not None:
                return False
            if verdict.header.kind is not Kind.FILLER:
                return self._plausible(verdict.header, at)
        return False

    def _after_old_records(self, place: int, header: RecordHeader) -> int:
        index = place // self._stream.data_size
        file_end = (index + 1) * self._stream.data_size
        indicator = self._stream.files[index].overwrite_indicator
        assert indicator is not None  # else no record could be called old
        after = place + header.size
        if after >= file_end:
            return after
        return run_version_1(self._stream, after, file_end, indicator ^ 1, _ignore, _ignore)

    def _plausible(self, header: RecordHeader, place: int) -> bool:
        """A plain dequeue has no tail, so its padding must do."""
        return header.has_tail or is_padding(self._stream.read(place, BLOCK_SIZE)[header.header_size :])

    def _search_version_2(self, place: int) -> int | None:
        flush = self._examiner.flush
        broken = flush.next_to_break
        budget = self._examiner.bytes_checked + _WORK * self._stream.size
        rest_of_broken: int | None = None
        for candidate in self._candidates(place):
            (low,) = _FLUSH.unpack(self._stream.read(candidate + _FLUSH_OFFSET, _FLUSH.size))
            number = flush.expand(low)
            if number < broken or (number == broken and rest_of_broken is not None):
                continue
            header = self._header(candidate)
            if header is None or (self._examiner.bytes_checked > budget and header.size > _CHEAP_RECORD):
                continue
            if self._examiner.examine(candidate).problem is not None:
                continue
            if number > broken:
                return candidate if rest_of_broken is None else rest_of_broken
            rest_of_broken = candidate
        return None

    def _header(self, place: int) -> RecordHeader | None:
        try:
            return decode_header(self._stream.read(place, BLOCK_SIZE))
        except RhmError:
            return None

    def _candidates(self, place: int) -> Iterator[int]:
        """The blocks from `place` on that begin with a magic."""
        stream = self._stream
        file_end = place - place % stream.data_size + stream.data_size
        while place < stream.size:
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
            end = min(len(window), file_end - base)
            found = window.find(b"RHM", at, end)
            while found >= 0:
                if not (base + found) % BLOCK_SIZE:
                    yield base + found
                found = window.find(b"RHM", found + 1, end)
            place = base + end

    def _first_in(self, begin: int) -> int:
        """Where the search enters the file that begins at `begin`; its end, if no record begins in it."""
        if begin >= self._stream.size:
            return begin
        file, _ = self._stream.locate(begin)
        first = file.first_record(self._stream.data_size)
        if first is not None:
            return begin + first
        return begin + self._stream.data_size if file.begins_no_record(self._stream.data_size) else begin
