"""Reads many messages of a queue back from its journal, without making the event loop wait for the disk.

Neighbouring records are read together, as one span. If all spans are in the system's page cache, they are read at once;
otherwise a thread reads them, through file descriptors of its own. Meanwhile compaction may move a record, and its old
place may be overwritten: so every record is verified, and one that does not match is read again separately, from its
place at that time. Only this last attempt shows whether it is damaged. The caller's decoder gets the span and the
message's bounds in it, so that a message is copied once.

Consecutive messages that differ only in their bodies are verified, and their bodies copied, by one call for all of them
(`formats.kernels`), if the caller wants runs: it decodes the first of them, and tells what the others have in common
with it. A record that is damaged, has moved, or is not alike ends a run, and is read as above.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import islice
from operator import gt
from typing import Final, Generic, TypeAlias, TypeVar, cast

from qstore.formats.checksum import extend_crc32c
from qstore.formats.errors import BrokerRecordError, RhmError
from qstore.formats.kernels import read_records
from qstore.formats.kernels.bodies import Bodies, SizeField
from qstore.formats.rhm.compressed import Decompressor
from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.rhm.headers import FLAGS_SHIFT, HEADER_2, MAGIC_MASK
from qstore.formats.rhm.records import COMPRESSED, SALT, TAIL, TAIL_SIZE, Kind
from qstore.store.environment import Background
from qstore.store.errors import JournalError
from qstore.store.journal.write.space import SIZE_BITS, SIZE_MASK
from qstore.store.live.queue_journal import QueueJournal

Decoded = TypeVar("Decoded")

#: Decodes the bytes from one index to another as a message; raises BrokerRecordError.
Decode: TypeAlias = Callable[[bytes, int, int], Decoded]

#: Gets each decoded message, or the error for which it cannot be read.
Read: TypeAlias = Callable[[list[Decoded | Exception]], None]

#: Of a decoded message, and the bytes from one index to another that it was decoded from: the bytes before its body in
#: the data of messages that differ from it only in their bodies, the field in them that gives the size of the body, if
#: there is one, and the size of the largest that is wanted; None if there are no such messages.
Alike: TypeAlias = Callable[[Decoded, bytes, int, int], tuple[bytes, SizeField | None, int] | None]

#: As `Read`, with the first message of each run and the bodies of all of its messages in the place of these.
RunsRead: TypeAlias = Callable[[list[Decoded | Exception | tuple[Decoded, Bodies]]], None]

MAX_SPAN: Final = 2 << 20  # bytes of a span, unless a single record is longer
_MAX_HOLE: Final = (64 << 10) // BLOCK_SIZE  # unneeded blocks between two records of a span
_MAX_SPAN_BLOCKS: Final = MAX_SPAN // BLOCK_SIZE
_HEADER: Final = HEADER_2.size
_ENQUEUE: Final = int(Kind.ENQUEUE)
_RUN_MASK: Final = MAGIC_MASK | COMPRESSED << FLAGS_SHIFT  # what matters of the first word of a run's records
_MIN_RUN: Final = 4  # messages
_MOST_SKIPPED: Final = 63  # messages that begin no run, if several before them have not


_Found: TypeAlias = "list[Decoded | Exception | tuple[Decoded, Bodies] | None]"


class Span:
    """Records that are read together: consecutive ones in the order of their places.

    Attributes:
        first, last: indices in that order: of the first record, and after the last one.
        salt: the salt of their file.
        start, end: log offsets of the first record, and after the last one.
    """

    __slots__ = ("end", "first", "last", "salt", "start")

    def __init__(self, first: int, start: int, salt: bytes) -> None:
        self.first = self.last = first
        self.start = self.end = start
        self.salt = salt

    @property
    def extent(self) -> tuple[int, int]:
        """Log offset and bytes."""
        return self.start, (self.end - self.start) * BLOCK_SIZE


class Wanted:
    """Messages to read, and their places.

    Nearly always these are one span, or one of each file, which are found without looking at each of them, and so is
    the place of the records of a run: this takes no time, and the other way half a microsecond for each message.
    Nothing depends on it: what is not where it should be is found out when it is verified, and is read separately.

    Attributes:
        rids: their record ids.
        places: log offset and blocks of each, packed; 0 for one that is missing.
        order: their indices, in the order of their places.
        spans: those on the disk, with neighbours in one file joined.
        are_adjacent: whether each record follows the one before it, in the order of the ids.
    """

    __slots__ = ("are_adjacent", "order", "places", "rids", "spans")

    def __init__(self, journal: QueueJournal, rids: Sequence[int]) -> None:
        self.rids, self.places = rids, journal.writer.records.where_all(rids)
        self.are_adjacent = False
        self.order: Sequence[int] = range(len(rids))
        spans = self._spans_of_files(journal)
        if spans is not None:
            self.spans = spans
            return
        places = self.places
        if any(map(gt, places, islice(places, 1, None))):  # compaction has moved some
            self.order = sorted(self.order, key=places.__getitem__)
        self.spans = self._spans(journal)

    def consecutive(self, index: int, end: int) -> int:
        """How many, from an index in the order of places up to another, have record ids that follow one another."""
        order, rids = self.order, self.rids
        first = order[index]
        most = min(end - index, len(rids) - first)
        if isinstance(order, range) and rids[first + most - 1] - rids[first] == most - 1:
            return most  # ids ascend
        count = 1
        while count < most and order[index + count] == first + count and rids[first + count] == rids[first] + count:
            count += 1
        return count

    def _spans_of_files(self, journal: QueueJournal) -> list[Span] | None:
        """One span for each file, if the records in it are near each other; None if that is not known."""
        writer, places = journal.writer, self.places
        count = len(places)
        if not count or not places[0] or not places[-1] or places[-1] >> SIZE_BITS >= writer.unsynced_place:
            return None
        file, first, holes = writer.space.file, 0, 0
        spans: list[Span] = []
        while first < count:
            start = places[first] >> SIZE_BITS
            after = bisect_left(places, (start // file + 1) * file << SIZE_BITS, first)
            last = places[after - 1] if after > first else 0
            end = (last >> SIZE_BITS) + (last & SIZE_MASK)
            if not places[first] or not 0 < end - start <= _MAX_SPAN_BLOCKS:
                return None  # one is missing, or compaction has moved some
            if isinstance(places, range):
                holes = end - start - (after - first) * (last & SIZE_MASK)
            else:
                holes = end - start - (sum(places[first:after]) & SIZE_MASK)  # of so few blocks, the sum fits
            if not 0 <= holes <= _MAX_HOLE:
                return None
            span = Span(first, start, SALT.pack(writer.salt_at(start)))
            span.last, span.end = after, end
            spans.append(span)
            first = after
        self.are_adjacent = not holes and len(spans) == 1
        return spans

    def _spans(self, journal: QueueJournal) -> list[Span]:
        writer, places = journal.writer, self.places
        file, synced = writer.space.file, writer.unsynced_place
        spans: list[Span] = []
        span = Span(0, 0, b"")
        limit = file_end = span_end = 0  # the span's next record must end by `limit`, and begin before `file_end`
        for index, number in enumerate(self.order):
            packed = places[number]
            place = packed >> SIZE_BITS
            if not packed or place >= synced:
                file_end = 0  # the next one begins another span
                continue
            end = place + (packed & SIZE_MASK)
            if place >= file_end or end > limit or place - span_end > _MAX_HOLE:
                span.last, span.end = index, span_end
                span = Span(index, place, SALT.pack(writer.salt_at(place)))
                spans.append(span)
                file_end = (place // file + 1) * file
                limit = max(end, place + _MAX_SPAN_BLOCKS)
            span_end = end
            span.last, span.end = index + 1, end
        return spans


class _Reading(Generic[Decoded]):
    """Messages that are being read.

    Args:
        journal: the journal of their queue.
        rids: the messages.
        decode: decodes a message.
        alike: what messages of a run have in common; None if no runs are wanted.
        done: gets what was read.
    """

    def __init__(
        self,
        journal: QueueJournal,
        rids: Sequence[int],
        decode: Decode[Decoded],
        alike: Alike[Decoded] | None,
        done: RunsRead[Decoded],
    ) -> None:
        self._journal, self._decode, self._alike, self._done = journal, decode, alike, done
        self._wanted = Wanted(journal, rids)
        self._found: _Found[Decoded] = [None] * len(self._wanted.rids)
        self._decompressor = Decompressor()
        self._places = b""  # of the messages in the order of their places, for the kernel, unless they are adjacent

    def begin(self, background: Background) -> None:
        """Read them now, if all are in the page cache, or have a thread read them."""
        journal, spans = self._journal, self._wanted.spans
        contents = [_cached(journal, span) for span in spans]
        journal.reads += len(self._wanted.rids)
        if None not in contents:
            self._read(contents)
            return
        journal.slow_reads += 1
        work = journal.storage.reader([span.extent for span in spans])
        background.run(work, self._read, self._not_read)

    def _read(self, contents: Sequence[bytes | None]) -> None:
        """Handle spans that were read, as far as they could be."""
        for span, content in zip(self._wanted.spans, contents, strict=True):
            if content:
                self._take(span, content.ljust(span.extent[1], b"\0"))
        self._complete()

    def _not_read(self, _error: Exception) -> None:
        """Handle the failure of a thread."""
        self._complete()

    def _take(self, span: Span, content: bytes) -> None:
        """Decode the valid records of one span: those that are in their places, with the right checksums."""
        alike_of, wanted = self._alike, self._wanted
        index = untried = span.first
        skipped = 0
        while index < span.last:
            decoded = self._single(span, content, index)
            if decoded is not None and alike_of is not None and index >= untried and decoded[1] is content:
                most = wanted.consecutive(index, span.last)
                alike = alike_of(*decoded) if most >= _MIN_RUN else None
                if alike is not None:
                    count = self._run(span, content, index, most, decoded[0], alike)
                    if count >= _MIN_RUN:
                        index += count
                        skipped = 0
                        continue
                    untried = index + max(count, 1) + skipped  # where all differ, few are tried
                    skipped = min(2 * skipped + 1, _MOST_SKIPPED)
            index += 1

    def _single(self, span: Span, content: bytes, index: int) -> tuple[Decoded, bytes, int, int] | None:
        """Decode one record. Returns the message and what it was decoded from; None if that failed."""
        number = self._wanted.order[index]
        rid, at = self._wanted.rids[number], ((self._wanted.places[number] >> SIZE_BITS) - span.start) * BLOCK_SIZE
        if not 0 <= at <= len(content) - _HEADER:
            return None
        first: int
        xid_size: int
        size: int
        first, found_rid, xid_size, _, size = HEADER_2.unpack_from(content, at)
        begin = at + _HEADER + xid_size
        tail = begin + size
        if found_rid != rid or tail > len(content) - TAIL_SIZE or first & MAGIC_MASK != _ENQUEUE:
            return None
        head = content[at:begin]
        if xid_size:
            head = head[_HEADER:] + head[:_HEADER]
        crc = extend_crc32c(extend_crc32c(0, content[begin:tail]), head + span.salt)
        if TAIL.unpack_from(content, tail) != (crc, rid):
            return None
        data = content
        try:
            if first >> FLAGS_SHIFT & COMPRESSED:
                data = self._decompressor.restore(content[begin:tail])
                begin, tail = 0, len(data)
            message = self._decode(data, begin, tail)
        except RhmError:
            return None  # the last attempt shows why
        except BrokerRecordError as error:
            self._found[number] = error
            return None
        self._found[number] = message
        return message, data, begin, tail

    def _run(
        self,
        span: Span,
        content: bytes,
        index: int,
        most: int,
        message: Decoded,
        alike: tuple[bytes, SizeField | None, int],
    ) -> int:
        """Note the run that begins with a message, if it is long enough. Returns how many it has, up to `most`."""
        wanted = self._wanted
        number = wanted.order[index]
        first = index
        if wanted.are_adjacent:
            first = (wanted.places[number] >> SIZE_BITS) - span.start
        elif not self._places:
            places = wanted.places
            if not isinstance(wanted.order, range):
                places = [places[each] for each in wanted.order]
            self._places = (places if isinstance(places, array) else array("Q", places)).tobytes()
        head, field, largest = alike
        data, starts, smallest, biggest = read_records(
            content, span.start, self._places, SIZE_BITS, first, most, wanted.rids[number], _RUN_MASK, _ENQUEUE, head,
            field, largest, span.salt,
        )  # fmt: skip
        if not starts:
            return 0
        bodies = Bodies(data, 0, starts, 1, smallest, biggest)
        if bodies.count >= _MIN_RUN:
            self._found[number] = message, bodies
        return bodies.count

    def _complete(self) -> None:
        """Read each missing message separately, and pass all of them on."""
        rids, found = self._wanted.rids, self._found
        passed: list[Decoded | Exception | tuple[Decoded, Bodies]] = []
        number = 0
        while number < len(found):
            each = found[number]
            if each is None:
                passed.append(self._alone(rids[number]))
            else:
                passed.append(each)
                if self._alike is not None and isinstance(each, tuple):
                    number += each[1].count - 1
            number += 1
        self._done(passed)

    def _alone(self, rid: int) -> Decoded | Exception:
        try:
            data = self._journal.load(rid)
            return self._decode(data, 0, len(data))
        except (JournalError, OSError, BrokerRecordError) as error:
            return error


def read_messages(
    journal: QueueJournal,
    rids: Sequence[int],
    background: Background,
    decode: Decode[Decoded],
    done: Read[Decoded],
) -> None:
    """Read messages, and call `done` with the result: at once, if all of them are in the page cache.

    Args:
        journal: the journal of their queue.
        rids: the messages.
        background: reads spans that are not in memory.
        decode: decodes a message.
        done: gets each message, or the error: JournalError, OSError or BrokerRecordError.
    """
    _Reading(journal, rids, decode, None, cast("RunsRead[Decoded]", done)).begin(background)


def read_runs(
    journal: QueueJournal,
    rids: Sequence[int],
    background: Background,
    decode: Decode[Decoded],
    alike: Alike[Decoded],
    done: RunsRead[Decoded],
) -> None:
    """As `read_messages`, with consecutive messages that are alike as runs."""
    _Reading(journal, rids, decode, alike, done).begin(background)


def as_bytes(content: bytes, begin: int, end: int) -> bytes:
    """The `Decode` that returns the bytes themselves."""
    return content[begin:end]


def will_read(journal: QueueJournal, rids: Sequence[int]) -> None:
    """Have the system read these messages into its page cache."""
    for span in Wanted(journal, rids).spans:
        journal.storage.read_ahead(*span.extent)


def _cached(journal: QueueJournal, span: Span) -> bytes | None:
    try:
        return journal.storage.read_cached(*span.extent)
    except OSError:
        return b""  # its records are read one by one
