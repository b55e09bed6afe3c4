"""The log of a stream: its messages in segments, of which those that were read last are in memory.

    segment <- segment <- ... <- open segment     each up to 512 consecutive messages; new messages go to the last one
    first                         end              offsets: the numbers of messages, consecutive and never used again

The content of all messages is in the journal. A segment knows the record ids of its messages, as a range if they are
consecutive, and when they arrived: an offset or a time is found by bisection. Its *parts*, runs and single messages as
they came or were read back, are in memory only while they are used: all consumers of a stream share them. `StreamCache`
discards those of all streams that were not used for the longest time.

Memory, without parts: 8 bytes a message, or nearly none where record ids are consecutive, and some 300 for a segment. A
segment ends with its time (`SPAN`) only as long as there are few segments in proportion to the messages, so that slow
streams do not have a segment for each of them.

The log is also the order of its queue (`fifo`), to which it offers nothing: a stream delivers from the log.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from qstore.broker.model.errors import InvalidArgumentError
from qstore.broker.model.memory import MESSAGE_OVERHEAD
from qstore.broker.model.queues.entry import AVAILABLE, Entry
from qstore.broker.model.queues.fifo import Fifo
from qstore.broker.model.run import MessageRun, RunEntry, read_run
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import INT64, TypedValue

if TYPE_CHECKING:
    from collections.abc import Callable

    from qstore.broker.model.message import Message
    from qstore.broker.model.residency.sources import LoadedRuns

MAX_MESSAGES: Final = 512
"""Messages of a segment: reading them back takes 1 to 4 ms of the event loop."""

MAX_BYTES: Final = 1 << 20
"""A segment of this size gets no more messages."""

SPAN: Final = 1.0
"""Seconds after which a segment gets no more messages, as far as `_is_dense` allows that."""

_FREE_SEGMENTS: Final = 1024
_MESSAGES_EACH: Final = 64  # messages for each further segment

OFFSET: Final = "x-stream-offset"
"""The header of a delivered message with its offset."""

FILTER_VALUE: Final = "x-stream-filter-value"
"""The header with a message's filter value."""

MAX_VALUES: Final = 32
"""Filter values that a segment remembers: with more of them it may have any."""

_first = attrgetter("first")
_pack_offset: Final = struct.Struct(">Q").pack
_SENTINELS: Final = (0x0101_0101_0101_0101, 0x0202_0202_0202_0202)  # all bytes of these differ
_NUMBER_BYTES: Final = 8


def with_sentinel(message: Message) -> Message:
    """The template of a run of `Part.numbered` with another offset, whose bytes all differ from those that it has.

    Raises:
        InvalidArgumentError: its headers cannot be changed.
    """
    return message.with_headers({OFFSET: TypedValue(INT64, _SENTINELS[1])})


def place_of_number(one: bytes, other: bytes) -> int:
    """Where two headers that differ only in their offsets, of which no byte is the same, have these; negative if not.

    An offset has eight bytes, big endian, in the encoding of any protocol, unless that shortens small ones.
    """
    places = [at for at, byte in enumerate(one) if byte != other[at]] if len(one) == len(other) else []
    return places[0] if len(places) == _NUMBER_BYTES == places[-1] - places[0] + 1 else -1


class Part:
    """Consecutive messages of a segment: some of a run, or a single one.

    Args:
        message: the single message; None if it cannot be read, or the part is of a run.
        run: the run; None for a single message.
        start: the number in the run of the first of the messages.
        count: their number.

    Attributes:
        message, run, start, count: as above.
    """

    __slots__ = ("_numbered", "_value", "count", "message", "number_at", "run", "start")

    def __init__(self, message: Message | None, run: MessageRun | None = None, start: int = 0, count: int = 1) -> None:
        self.message, self.run, self.start, self.count = message, run, start, count
        self._numbered: MessageRun | None = None
        self.number_at = -1
        self._value: str | None = ""  # unknown

    @property
    def memory(self) -> int:
        """Bytes of memory that its messages take: of a run, its share of the buffer."""
        if self.run is not None:
            bodies = self.run.bodies
            return len(bodies.data) * self.count // bodies.count + MESSAGE_OVERHEAD
        return MESSAGE_OVERHEAD if self.message is None else self.message.size + MESSAGE_OVERHEAD

    @property
    def value(self) -> str | None:
        """The filter value of its messages, which all have the same headers; None if they have none."""
        if self._value == "":
            found = self.run.template if self.run is not None else self.message
            self._value = None if found is None else (found.header_text(FILTER_VALUE) or None)
        return self._value

    def single(self, number: int, offset: int) -> Message | None:
        """One of its messages, with its offset in a header; None if it cannot be read."""
        run = self.numbered()
        if run is not None and self.number_at >= 0:
            message: Message | None = run.message(self.start + number)
            assert message is not None
            message.patch(self.number_at, _pack_offset(offset))
            return message
        message = self.message if self.run is None else self.run.message(self.start + number)
        if message is None:
            return None
        try:
            return message.with_number(OFFSET, offset)
        except InvalidArgumentError:  # its headers cannot be decoded
            return message

    def numbered(self) -> MessageRun | None:
        """The run with room for an offset in the header of its messages; None if the part is a single message.

        The first eight bytes that differ between two such headers, `number_at`, are the offset: big endian, in the
        encoding of any protocol. It is negative if the headers cannot be changed.
        """
        if self._numbered is None and self.run is not None:
            self._numbered = self._with_room(self.run)
        return self._numbered

    def _with_room(self, run: MessageRun) -> MessageRun:
        first = run.message(self.start)
        try:
            one, other = (first.with_headers({OFFSET: TypedValue(INT64, each)}) for each in _SENTINELS)
        except InvalidArgumentError:
            return run
        numbered = read_run(one, run.bodies, self.start)
        place = place_of_number(numbered.template.header_bytes, other.header_bytes)
        if place < 0:
            return run
        self.number_at = place
        return numbered


class Segment:
    """Consecutive messages of a stream.

    Args:
        first: the offset of the first.
        time: not later than the arrival of the first, in seconds since 1970.

    Attributes:
        first, time: as above.
        until: not earlier than the arrival of the last.
        rids: the record ids of its messages, ascending.
        size: bytes of their headers and contents.
        parts: its messages; None if they are not in memory.
        values: the filter values among them, None for those without; unknown, if this is None.
        is_fetched: whether it is being read back.
        is_closed: whether it gets no more messages.
        is_kept: whether the store's index of its records is compact.
    """

    __slots__ = (
        "_starts", "first", "is_closed", "is_fetched", "is_kept", "parts", "rids", "size", "time", "until", "values",
    )  # fmt: skip

    def __init__(self, first: int, time: float) -> None:
        self.first, self.time, self.until = first, time, time
        self.rids: array[int] | range = array("Q")
        self.size = 0
        self.parts: list[Part] | None = []
        self._starts = array("I")  # for each part the messages before it
        self.values: frozenset[str | None] | None = frozenset()
        self.is_fetched = self.is_closed = self.is_kept = False

    @property
    def count(self) -> int:
        """Number of messages."""
        return len(self.rids)

    @property
    def end(self) -> int:
        """The offset after the last."""
        return self.first + len(self.rids)

    @property
    def memory(self) -> int:
        """Bytes of memory that the messages in memory take."""
        return sum(part.memory for part in self.parts or ())

    def add(self, part: Part, rid: int, size: int, now: float) -> None:
        """Append messages, with consecutive record ids from `rid` on."""
        assert self.parts is not None
        assert not isinstance(self.rids, range)
        self._starts.append(len(self.rids))
        self.parts.append(part)
        if part.count == 1:
            self.rids.append(rid)
        else:
            self.rids.extend(range(rid, rid + part.count))
        self.size += size
        self.until = now

    def close(self) -> None:
        """End it: it gets no more messages."""
        rids = self.rids
        if rids and rids[-1] - rids[0] == len(rids) - 1:
            self.rids = range(rids[0], rids[-1] + 1)
        self.is_closed = True

    def fill(self, loaded: LoadedRuns) -> None:
        """Its messages were read back."""
        parts: list[Part] = []
        starts = array("I")
        number = 0
        for each in loaded:
            starts.append(number)
            part = Part(None, each, 0, each.count) if isinstance(each, MessageRun) else Part(each)
            parts.append(part)
            number += part.count
        self.parts, self._starts = parts, starts

    def drop_parts(self) -> None:
        """Keep its messages in the journal only."""
        self.parts, self._starts = None, array("I")

    def at(self, offset: int) -> tuple[Part, int]:
        """The part with the message of an offset, and the message's number in it."""
        assert self.parts is not None
        number = offset - self.first
        at = bisect_right(self._starts, number) - 1
        return self.parts[at], number - self._starts[at]

    def matches(self, wanted: frozenset[str | None]) -> bool:
        """Whether it may have messages with one of these filter values.

        The values are looked for once, when the segment is closed and in memory.
        """
        if self.values == frozenset():
            if not self.is_closed or self.parts is None:
                return True
            found = frozenset(part.value for part in self.parts)
            self.values = found if len(found) <= MAX_VALUES else None
        return self.values is None or not self.values.isdisjoint(wanted)

    def cut(self, count: int) -> None:
        """Its first messages have left the stream."""
        size = self.size * count // len(self.rids)
        self.first += count
        self.rids = self.rids[count:]
        self.size -= size
        if self.parts is not None:
            self.drop_parts()


class StreamCache:
    """The segments of all streams of a broker that are in memory and can be read back.

    Args:
        max_bytes: what they may take together.
    """

    __slots__ = ("_max_bytes", "_segments", "size")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._segments: dict[Segment, tuple[StreamLog, int]] = {}  # those used last are last; with their memory
        self.size = 0

    def use(self, segment: Segment, log: StreamLog) -> None:
        """A closed segment in memory was used."""
        segments = self._segments
        known = segments.pop(segment, None)
        if known is None:
            known = log, segment.memory
            self.size += known[1]
            log.cached += known[1]
        segments[segment] = known
        while self.size > self._max_bytes and len(segments) > 1:
            self.forget(next(iter(segments)))

    def forget(self, segment: Segment) -> None:
        """Discard a segment's messages, which may be in memory."""
        known = self._segments.pop(segment, None)
        if known is not None:
            log, memory = known
            self.size -= memory
            log.cached -= memory
            segment.drop_parts()


class Mark(NamedTuple):
    """A message of a stream: its record id, its offset, and when it arrived or later, in seconds since 1970."""

    rid: int
    offset: int
    time: float


class StreamLog(Fifo):
    """The messages of one stream.

    Args:
        clock: seconds since 1970.
        segment_bytes: a segment of this size gets no more messages.

    Attributes:
        segments: by offset; those that were dropped from the front are no longer here.
        end: the offset of the next message.
        cached: bytes of segments in the cache.
        segment_bytes: as above.
    """

    __slots__ = ("_clock", "cached", "end", "segment_bytes", "segments")

    def __init__(self, clock: Callable[[], float], segment_bytes: int = MAX_BYTES) -> None:
        super().__init__()
        self._clock, self.segment_bytes = clock, segment_bytes
        self.segments: list[Segment] = []
        self.end = self.cached = 0

    @property
    def begin(self) -> int:
        """The first offset; that of the next message if there is none."""
        return self.segments[0].first if self.segments else self.end

    # ---- as the order of a queue ----

    @property
    def next_position(self) -> int:
        """As `Fifo.next_position`: positions are offsets from 1."""
        return self.end + 1

    def append(self, message: Message, rid: int) -> Entry:
        """As `Fifo.append`."""
        entry = Entry()
        entry.message, entry.rid, entry.state, entry.is_redelivered = message, rid, AVAILABLE, False
        entry.position = self.end + 1
        now = self._clock()
        self._open(now).add(Part(message), rid, message.size, now)
        self.end += 1
        return entry

    def append_run(self, run: RunEntry) -> None:
        """As `Fifo.append_run`."""
        now, done = self._clock(), 0
        run.keep_only_own()
        while done < run.count:
            segment = self._open(now)
            count = min(run.count - done, MAX_MESSAGES - segment.count)
            each = run.run.largest or 1
            count = max(1, min(count, -(-(self.segment_bytes - segment.size) // each)))
            start = run.first + done
            segment.add(Part(None, run.run, start, count), run.rid + done, run.run.size(start, count), now)
            done += count
            self.end += count

    def split(self, run: RunEntry, count: int) -> RunEntry:
        """As `Fifo.split`: a run that a consumer holds is in no list."""
        return run.split(count, run.state)

    # ---- segments ----

    def _open(self, now: float) -> Segment:
        """The segment for the next message."""
        segments = self.segments
        if segments:
            last = segments[-1]
            is_over = last.count >= MAX_MESSAGES or last.size >= self.segment_bytes
            if not last.is_closed and not is_over and (now < last.time + SPAN or self._is_dense):
                return last
            if not last.is_closed:
                last.close()
        segment = Segment(self.end, now)
        segments.append(segment)
        return segment

    @property
    def _is_dense(self) -> bool:
        """Whether there are too many segments to end one because of the time."""
        segments = self.segments
        return len(segments) > _FREE_SEGMENTS + (self.end - segments[0].first) // _MESSAGES_EACH

    def at(self, offset: int) -> Segment:
        """The segment with the message of an offset."""
        segments = self.segments
        last = segments[-1]
        return last if offset >= last.first else segments[bisect_right(segments, offset, key=_first) - 1]

    def since(self, last: Entry | None, position: int) -> Iterator[Entry]:  # noqa: ARG002
        """As `Fifo.since`: nothing can be acquired."""
        return iter(())

    def offset_at(self, time: float) -> int:
        """The offset from which on messages have arrived at that time or later; earlier ones may be among them."""
        segments = self.segments
        low, high = 0, len(segments)
        while low < high:  # the first segment whose last message may have arrived at that time
            middle = (low + high) // 2
            if segments[middle].until < time:
                low = middle + 1
            else:
                high = middle
        return segments[low].first if low < len(segments) else self.end

    def dropped_by(self, max_bytes: int, size: int, oldest: float) -> int:
        """The offset before which segments are beyond the limits; the last one never is.

        Args:
            max_bytes: the limit of bytes; 0 for none.
            size: the bytes of all messages.
            oldest: the time before which messages are too old.
        """
        for segment in self.segments[:-1]:
            is_beyond = max_bytes and size > max_bytes
            if not is_beyond and segment.until >= oldest:
                return segment.first
            size -= segment.size
        return self.segments[-1].first if self.segments else self.end

    # ---- recovery ----

    def recover(self, rids: Sequence[int], sizes: Sequence[int]) -> None:
        """Append messages that recovery has found in the journal and not read."""
        if self.segments and not self.segments[-1].is_closed:
            self.segments[-1].close()
        begin = size = 0
        for number, each in enumerate(sizes):
            size += each
            if number + 1 - begin == MAX_MESSAGES or size >= self.segment_bytes or number + 1 == len(sizes):
                segment = _unread(array("Q", rids[begin : number + 1]), size)
                segment.first = self.end
                self.segments.append(segment)
                self.end = segment.end
                begin, size = number + 1, 0

    def restore(self, marks: Sequence[Mark], now: float) -> None:
        """Give recovered messages the offsets and times that they had.

        Messages between two marks are counted; if some are lost there, the offsets after the second mark are as they
        were.

        Args:
            marks: what is known about some of them, by record id.
            now: when none of them arrived later.
        """
        segments, by_rid = self.segments, [mark.rid for mark in marks]
        if not segments:
            self.end = marks[-1].offset if marks else self.end
            return
        self.segments = []
        known = bisect_right(by_rid, segments[0].rids[0])
        if known:
            offset, time = marks[known - 1].offset, marks[known - 1].time
        else:
            offset, time = (max(0, marks[0].offset - self._count_before(segments, marks[0].rid)) if marks else 0), 0.0
        for segment in segments:
            last = bisect_right(by_rid, segment.rids[-1])
            for each in _split_at(segment, by_rid[known:last]):
                while known < len(marks) and marks[known].rid <= each.rids[0]:
                    offset, time = max(offset, marks[known].offset), marks[known].time
                    known += 1
                each.first, each.time = offset, time
                each.until = marks[known].time if known < len(marks) else now
                offset = each.end
                self.segments.append(each)
        self.end = max(offset, marks[-1].offset) if marks else offset

    @staticmethod
    def _count_before(segments: Iterable[Segment], rid: int) -> int:
        count = 0
        for segment in segments:
            if segment.rids[-1] >= rid:
                return count + bisect_right(segment.rids, rid - 1)
            count += segment.count
        return count

    def marks(self, most: int, first: int, end: int) -> list[Mark]:
        """At most that many marks, evenly spread, and that of the last segment.

        Args:
            most: how many.
            first: of the segments from this offset on.
            end: that begin before this one: a mark of a message that a crash takes would be a gap.
        """
        segments = [segment for segment in self.segments if first <= segment.first < end and segment.count]
        step = max(1, -(-len(segments) // max(1, most - 1)))
        chosen = segments[::step]
        if segments and chosen[-1] is not segments[-1]:
            chosen.append(segments[-1])
        return [Mark(segment.rids[0], segment.first, segment.time) for segment in chosen]


def _split_at(segment: Segment, rids: Sequence[int]) -> list[Segment]:
    """The segment, split before the messages with these record ids: ascending, none after its last one."""
    places = sorted({bisect_right(segment.rids, rid - 1) for rid in rids} - {0})
    if not places or segment.parts is not None:
        return [segment]
    return [
        _unread(array("Q", segment.rids[begin:end]), segment.size * (end - begin) // segment.count)
        for begin, end in zip([0, *places], [*places, segment.count], strict=True)
    ]


def _unread(rids: array[int], size: int) -> Segment:
    """A closed segment of messages that are in the journal only."""
    segment = Segment(0, 0.0)
    segment.rids, segment.size, segment.is_kept = rids, size, True
    segment.close()
    segment.drop_parts()
    return segment
