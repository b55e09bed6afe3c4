"""The streams of one broker: what a restart needs to know of them, and their retention.

Two kinds of configuration records (`configuration`), which are deleted with their stream:

    qstore.stream            virtual host, queue: marks, record ids with their offsets and times
    qstore.stream-consumer   virtual host, queue, name: the offset of the consumers of that name

**Offsets** are not stored with the messages: a restart counts them, from the first mark on. So a mark of the first
message that stays is on the disk before any message before it is dequeued, and no mark is stored before its message is.
A kill at any moment leaves a stream that begins at that mark, or before it: never one with a gap, and each message
keeps its offset. Messages that damage has taken leave a gap up to the next mark.

**Times** are those of segments. Marks are also stored every `MARKS_EVERY` seconds, while messages arrive; after a
crash, messages after the last mark count as having arrived between it and the start: retention keeps them longer rather
than shorter, and a time may find earlier messages.

**Offsets of names** are stored twice a second: after a crash a consumer may get again what it had accepted in the last
half second. A name that had a consumer then counts as used at the start.

`look` is called about twice a second. Marks are one change of the configuration; then come the offsets of names, some
at a time. What cannot be stored is tried again at the next look.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from itertools import islice
from logging import ERROR
from typing import TYPE_CHECKING, Final

from qstore.broker.log.logs import LogBudget, log_of
from qstore.broker.model.configuration import Record, Values
from qstore.broker.model.errors import ModelError
from qstore.broker.model.queues.stream import Stream, Tracked
from qstore.broker.model.queues.stream_log import Mark
from qstore.formats.broker_records.topology import (
    STREAM_CONSUMER_KIND,
    STREAM_KIND,
    STREAM_MARKS,
    StreamMark,
    decode_marks,
    encode_marks,
)

if TYPE_CHECKING:
    from qstore.broker.model.configuration import Configuration
    from qstore.broker.model.queues.queue import Queue

_LOG: Final = log_of("Model")

MARKS_EVERY: Final = 60.0
"""Seconds between two times that the marks of a stream with new messages are stored."""

MAX_MARKS: Final = 256

MAX_NAMES_TOGETHER: Final = 50_000
"""Names of consumers whose offsets all streams keep together: half of the records that a configuration has."""

STORED_AT_ONCE: Final = 500
"""Offsets of names that are stored in one change: 5 ms of the event loop."""

_OFFSET: Final = "offset"
_USED_AT: Final = "used-at"


class _Known:
    """What is stored of a stream: its end at the last time, and when that was."""

    __slots__ = ("end", "marked_at")

    def __init__(self, marked_at: float) -> None:
        self.end, self.marked_at = -1, marked_at


class _Plan:
    """What is to be stored.

    Attributes:
        gone: records to be deleted.
        marks: the marks of streams, as they are stored.
        drops: streams, and the offsets before which messages leave once the marks are stored.
        named: streams with names whose offsets have changed, and these names.
    """

    __slots__ = ("drops", "gone", "marks", "named")

    def __init__(self) -> None:
        self.gone: list[Record] = []
        self.marks: dict[Stream, Values] = {}
        self.drops: list[tuple[Stream, int]] = []
        self.named: list[tuple[Stream, str, Tracked]] = []

    def __bool__(self) -> bool:
        return bool(self.gone or self.marks or self.drops or self.named)


class Streams:
    """The streams of one broker.

    Args:
        configuration: stores the records.
        clock: seconds since 1970.
        monotonic: seconds of a monotonic clock.
    """

    def __init__(
        self, configuration: Configuration, clock: Callable[[], float], monotonic: Callable[[], float]
    ) -> None:
        self._configuration, self._clock, self._monotonic = configuration, clock, monotonic
        self._streams: dict[Stream, _Known] = {}
        self._is_storing = False
        self._orphans: dict[Record, None] = {}  # of queues and names that are gone
        self._failures = LogBudget(_LOG, ERROR, "attempts to store the offsets of streams that have failed")

    def made(self, stream: Stream) -> None:
        """A stream was declared or recovered."""
        self._streams[stream] = _Known(self._monotonic())
        stream.may_track = self._may_track

    def _may_track(self) -> bool:
        return sum(len(stream.tracked) for stream in self._streams) < MAX_NAMES_TOGETHER

    def recovered(self, find: Callable[[str, str], Queue | None]) -> None:
        """All queues are recovered: give the messages of streams their offsets, and names theirs.

        Args:
            find: returns the queue of a virtual host with a name.
        """
        now = self._clock()
        for stream in self._streams:
            stored = self._configuration.get(Record(STREAM_KIND, (stream.host, stream.name)))
            stream.log.restore(_marks_of(stored or {}), now)
        for kind, parts in ((STREAM_KIND, 2), (STREAM_CONSUMER_KIND, 3)):
            for name, values in self._configuration.of(kind).items():
                queue = find(name[0], name[1]) if len(name) == parts else None
                if not isinstance(queue, Stream):
                    self._orphans[Record(kind, name)] = None
                elif kind == STREAM_CONSUMER_KIND:
                    offset, used_at = (values.get(key) for key in (_OFFSET, _USED_AT))
                    if isinstance(offset, int) and isinstance(used_at, int):
                        begin = min(max(0, offset), queue.log.end)
                        queue.tracked[name[2]] = Tracked(begin, used_at / 1000 or now, is_known=True)

    def look(self) -> Coroutine[object, object, None] | None:
        """Look after all streams; call it about twice a second. Returns work that stores something; None for none."""
        if self._is_storing:
            return None
        plan = _Plan()
        for stream, known in list(self._streams.items()):
            if stream.is_gone:
                del self._streams[stream]
                self._orphans.update(dict.fromkeys(_records_of(stream)))
            elif not stream.is_deleted:
                name = stream.host, stream.name
                self._orphans.update({Record(STREAM_CONSUMER_KIND, (*name, each)): None for each in stream.forgotten})
                stream.forgotten.clear()
                self._look_at(stream, known, plan)
        if self._orphans:
            plan.gone = self._still_orphans()
        if not plan:
            return None
        self._is_storing = True
        return self._store(plan)

    def _still_orphans(self) -> list[Record]:
        """Those whose stream or name was not declared again."""
        found = {(stream.host, stream.name): stream for stream in self._streams if not stream.is_gone}
        for record in list(self._orphans):
            stream = found.get((record.name[0], record.name[1])) if len(record.name) > 1 else None
            if stream is not None and (record.kind == STREAM_KIND or record.name[-1] in stream.tracked):
                del self._orphans[record]
        return list(self._orphans)

    def _look_at(self, stream: Stream, known: _Known, plan: _Plan) -> None:
        plan.named += [(stream, name, tracked) for name, tracked in stream.tracked.items() if tracked.is_changed]
        log = stream.log
        end = log.begin if stream.is_dropping else stream.to_drop()
        is_old = log.end != known.end and self._monotonic() >= known.marked_at + MARKS_EVERY
        if end > log.begin:
            plan.drops.append((stream, end))
        if end > log.begin or is_old:
            self._mark(stream, known, plan, end)

    def _mark(self, stream: Stream, known: _Known, plan: _Plan, end: int) -> None:
        """Have the marks of the messages from an offset on stored."""
        known.end, known.marked_at = stream.log.end, self._monotonic()
        first = max(end, stream.kept_from)  # a mark before it would be one of a message that may leave soon
        marks = stream.log.marks(MAX_MARKS, first, stream.synced)
        if marks:  # otherwise no message is there, and those that are stored say which offset is next
            plan.marks[stream] = {STREAM_MARKS: _text_of(marks)}

    async def _store(self, plan: _Plan) -> None:
        def stored() -> None:
            for stream, end in plan.drops:
                if not stream.is_deleted and not stream.is_dropping:
                    stream.begin_drop(end)

        configuration = self._configuration
        try:
            for begin in range(0, len(plan.gone), STORED_AT_ONCE):
                await configuration.change({}, plan.gone[begin : begin + STORED_AT_ONCE])
                for record in plan.gone[begin : begin + STORED_AT_ONCE]:
                    self._orphans.pop(record, None)
            marks = {  # another stream may be in place of one that was deleted meanwhile
                Record(STREAM_KIND, (stream.host, stream.name)): values
                for stream, values in plan.marks.items()
                if not stream.is_deleted
            }
            if marks or plan.drops:
                await configuration.change(marks, then=stored)
            named = iter(plan.named)
            while portion := list(islice(named, STORED_AT_ONCE)):
                await self._store_offsets(portion)
        except ModelError as error:
            self._failures.write(self._monotonic(), "Offsets of streams cannot be stored; trying again: %s", error)
            for stream in plan.marks.keys() & self._streams.keys():
                self._streams[stream].end = -1
        finally:
            self._is_storing = False

    async def _store_offsets(self, named: list[tuple[Stream, str, Tracked]]) -> None:
        """Store the offsets of some names. Raises ModelError; then they are stored the next time."""
        puts: dict[Record, Values] = {}
        for stream, name, tracked in named:
            if not stream.is_deleted and stream.tracked.get(name) is tracked:
                puts[Record(STREAM_CONSUMER_KIND, (stream.host, stream.name, name))] = _values_of(tracked)
                tracked.is_changed = False
        try:
            await self._configuration.change(puts)
        except ModelError:
            for _, _, tracked in named:
                tracked.is_changed = True
            raise

    async def forget(self, host: str, name: str) -> None:
        """Delete what is stored of an earlier stream, in whose place another one is to be declared.

        Raises:
            InternalError: the store cannot delete it.
        """
        found = [record for record in self._orphans if record.name[:2] == (host, name)]
        for stream in self._streams:
            if stream.is_gone and (stream.host, stream.name) == (host, name):
                found += _records_of(stream)
        if found:
            await self._configuration.change({}, found)

    async def finish(self) -> None:
        """Store what is not stored yet. Called before the store is closed."""
        plan = _Plan()
        for stream, known in self._streams.items():
            if not stream.is_deleted:
                self._look_at(stream, known, plan)
                if stream.log.end != known.end:
                    self._mark(stream, known, plan, stream.log.begin)
        plan.drops.clear()
        if plan:
            await self._store(plan)


def _records_of(stream: Stream) -> list[Record]:
    """All that may be stored of a stream."""
    name = stream.host, stream.name
    names = (*stream.tracked, *stream.forgotten)
    return [Record(STREAM_KIND, name), *(Record(STREAM_CONSUMER_KIND, (*name, each)) for each in names)]


def _values_of(tracked: Tracked) -> Values:
    return {_OFFSET: tracked.offset, _USED_AT: 0 if tracked.readers else int(tracked.used_at * 1000)}


def _text_of(marks: list[Mark]) -> str:
    return encode_marks(StreamMark(mark.rid, mark.offset, int(mark.time * 1000)) for mark in marks)


def _marks_of(values: Values) -> list[Mark]:
    return [Mark(mark.rid, mark.offset, mark.time / 1000) for mark in decode_marks(values.get(STREAM_MARKS))]
