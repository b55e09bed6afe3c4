"""A stream: a queue whose messages stay when they are consumed, until its retention drops the oldest ones.

    publish     every message is stored, also a transient one, and gets the next offset, from 0
    consume     each consumer has a position of its own, and gets all messages from there on, with their offsets
    settle      returns credit. Nothing is dequeued, and nothing is delivered again to the same consumer
    retain      the oldest segments are dequeued: those beyond `x-max-length-bytes`, or older than `x-max-age`

The messages are in a `StreamLog`; `model/streams` keeps what a restart needs to know.

**Where a consumer begins** (`x-stream-offset`): "first", "last" (the last message), "next" (the default), an offset, a
time, or a time ago such as "5m". What is not there any more is left out.

**Names.** A consumer with a name (`x-stream-consumer-name`, or its tag with `x-stream-automatic-offset-tracking`) has
its offset kept: of the messages that it was offered, all before it are accepted. The next consumer of that name begins
there, whatever its `x-stream-offset` says. Of several with one name one is active, the one that came first; when it
ends, the next one continues from that offset. A stream with a single active consumer treats all of its consumers as if
they had one name, whose offset it does not keep.

What a name was not offered yet can be dropped: then it continues with the first message that there is. If the stream
has `x-stream-keep-unread`, retention drops nothing from a name's offset on while a consumer of that name exists, or has
existed within that time.

**Filters** (`x-stream-filter`): a consumer gets only messages whose header `x-stream-filter-value` has one of these
values; with `x-stream-match-unfiltered` also those without that header. Every message is checked, and a segment without
any of the values is not read.

Sources: RabbitMQ, "Streams", "Stream Filtering" and "Offset Tracking"; LavinMQ, "Streams".
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from logging import ERROR
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.log.logs import LogBudget, log_of
from qstore.broker.model.arguments import PRIORITIES, as_text, is_set, plain, shown
from qstore.broker.model.completion import Done
from qstore.broker.model.errors import InternalError, InvalidArgumentError, ResourceLimitExceededError
from qstore.broker.model.memory import MESSAGE_OVERHEAD
from qstore.broker.model.queues.arguments import read_interval
from qstore.broker.model.queues.barriers import NO_LIMIT
from qstore.broker.model.queues.consumers import NOT_FOR_ME, REFUSED, TAKEN
from qstore.broker.model.queues.entry import ACQUIRED, GONE, HELD, MOVING, Entry
from qstore.broker.model.queues.queue import Queue
from qstore.broker.model.queues.stream_log import Part, Segment, StreamCache, StreamLog
from qstore.broker.model.residency.sources import JournalSource
from qstore.broker.model.run import MAX_BODY, MIN_RUN, KeyedRun, MessageRun, RunEntry
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import EMPTY_MAP, STR16, Family, TypedArray, TypedMap, TypedValue, is_utf8

if TYPE_CHECKING:
    from collections.abc import Callable

    from qstore.broker.model.message import Message, RestoreMessage
    from qstore.broker.model.queues.consumers import Consumer
    from qstore.broker.model.residency.sources import LoadedRuns
    from qstore.broker.model.store_protocol import Store
    from qstore.broker.model.tick import Tick

_LOG: Final = log_of("Model")

START: Final = "x-stream-offset"
FILTER: Final = "x-stream-filter"
MATCH_UNFILTERED: Final = "x-stream-match-unfiltered"
NAME: Final = "x-stream-consumer-name"
TRACKING: Final = "x-stream-automatic-offset-tracking"

FIRST: Final = "first"
LAST: Final = "last"
NEXT: Final = "next"

OF_CONSUMERS: Final = (START, FILTER, MATCH_UNFILTERED, NAME, TRACKING)
"""The arguments of consumers of streams."""

MAX_NAMES: Final = 1_000
"""Names of consumers whose offsets a stream keeps."""

MAX_NAME: Final = 255
"""Characters of such a name."""

MAX_GAPS: Final = 32_768
"""Messages that the consumers of a name have not accepted, before others that they have: the largest prefetch count
does not need more. Acceptances after so many gaps are forgotten, and the next consumer of the name gets them again."""

MAX_FILTERS: Final = 100

PASSED_AT_ONCE: Final = 250
"""Single messages, or parts of segments, that are passed in one turn without being delivered."""

_MAX_OFFSET: Final = (1 << 62) - 1


def check_not_of_streams(queue: Queue, arguments: TypedMap) -> None:
    """Raise InvalidArgumentError for an argument that only consumers of streams have, if the queue is none."""
    if isinstance(queue, Stream):
        return
    for name in OF_CONSUMERS:
        if name in arguments:
            raise InvalidArgumentError(f"{name} is for consumers of streams, and queue '{queue.name}' is none")


def idle_of_stream(stream: Stream, arguments: TypedMap, tag: str) -> dict[str, str]:
    """The arguments of a consumer of a stream that have no effect beside the others, and why."""
    given, reading, found = plain(arguments), read_consumer(arguments, tag), {}
    if is_set(given.get(MATCH_UNFILTERED)) and reading.wanted is None:
        found[MATCH_UNFILTERED] = f"without {FILTER} it gets all messages"
    if is_set(given.get(TRACKING)) and reading.name != tag:
        found[TRACKING] = f"{NAME} is given, too, and counts"
    if not reading.name and not stream.is_single_active:
        ranks = (name for name in PRIORITIES if name in given)
        found |= dict.fromkeys(ranks, "each consumer of a stream gets all messages, unless one of them is active")
    return found


class Begin(NamedTuple):
    """Where a consumer begins.

    Attributes:
        kind: FIRST, LAST or NEXT; empty for an offset or a time.
        offset: the offset; -1 for none.
        time: seconds since 1970; with `is_ago`, before now.
        is_ago: as above.
    """

    kind: str = ""
    offset: int = -1
    time: float = 0.0
    is_ago: bool = False


class Reading(NamedTuple):
    """The arguments of a consumer.

    Attributes:
        begin: where it begins.
        name: its name; empty for none.
        wanted: the filter values of the messages that it gets, None for those without; None for all messages.
    """

    begin: Begin
    name: str
    wanted: frozenset[str | None] | None


def read_begin(typed: TypedValue | None) -> Begin:
    """Where a consumer with this value of x-stream-offset begins. Raises InvalidArgumentError."""
    if typed is None:
        return Begin(NEXT)
    value = as_text(typed.value)
    if value is None:
        return Begin(FIRST)  # as in LavinMQ
    if value in (FIRST, LAST, NEXT):
        return Begin(str(value))
    if isinstance(value, str):
        try:
            return Begin(time=read_interval(START, value), is_ago=True)
        except InvalidArgumentError:
            text = f"{START} is {shown(value)}, not first, last, next, an offset, a time or an interval"
            raise InvalidArgumentError(text) from None
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return Begin(time=value) if typed.type.family is Family.TIME else Begin(offset=min(value, _MAX_OFFSET))
    raise InvalidArgumentError(f"{START} is {shown(value)}, not first, last, next, an offset, a time or an interval")


def read_consumer(arguments: TypedMap, tag: str) -> Reading:
    """The arguments of a consumer of a stream. Raises InvalidArgumentError."""
    typed = arguments.get(NAME)
    name = "" if typed is None else as_text(typed.value)
    tracking = arguments.get(TRACKING)
    is_named = typed is not None
    if not name and tracking is not None and is_set(as_text(tracking.value)):
        name, is_named = tag, True
    if is_named and not (isinstance(name, str) and 0 < len(name) <= MAX_NAME and is_utf8(name)):
        raise InvalidArgumentError(f"{NAME} is {shown(name)}, not a name of at most {MAX_NAME} characters")
    return Reading(read_begin(arguments.get(START)), str(name), _wanted(arguments))


def of_a_route(arguments: TypedMap, route: str) -> TypedMap:
    """The arguments of a consumer that is a route to another broker, which cannot give any itself.

    A route moves all messages of an ordinary queue: so it begins with the first one of a stream, and its offset is kept
    under its name.

    Args:
        arguments: what it gives.
        route: its name, which is the same when it connects again.
    """
    given = {START: FIRST, NAME: route[:MAX_NAME]}
    added = ((name, TypedValue(STR16, value)) for name, value in given.items() if name not in arguments)
    return TypedMap((*arguments.entries, *added))


def _wanted(arguments: TypedMap) -> frozenset[str | None] | None:
    typed = arguments.get(FILTER)
    if typed is None:
        return None
    value = as_text(typed.value)
    values: list[object]
    if isinstance(value, TypedArray):
        values = [as_text(each) for each in value.values]
    elif isinstance(value, tuple):
        values = [as_text(each.value) for each in value if isinstance(each, TypedValue)]
    else:
        values = [value]
    if not 0 < len(values) <= MAX_FILTERS or not all(isinstance(each, str) and each for each in values):
        raise InvalidArgumentError(f"{FILTER} is {shown(value)}, not a text or a list of at most {MAX_FILTERS} of them")
    wanted: set[str | None] = {str(each) for each in values}
    unfiltered = arguments.get(MATCH_UNFILTERED)
    if unfiltered is not None and is_set(as_text(unfiltered.value)):
        wanted.add(None)
    return frozenset(wanted)


class Retention(NamedTuple):
    """What a stream keeps.

    Attributes:
        max_bytes: bytes of headers and contents; 0 for no limit.
        max_age: seconds; 0 for no limit.
        keep_unread: seconds that messages are kept for a name after its last consumer; 0 not to keep them.
        segment_bytes: a segment of this size gets no more messages.
    """

    max_bytes: int = 0
    max_age: float = 0.0
    keep_unread: float = 0.0
    segment_bytes: int = 1 << 20


KEEPS_ALL: Final = Retention()


class Tracked:
    """What consumers of one name have accepted.

    Args:
        offset: all messages before it, of those that they were offered.
        used_at: when the last of them ended, in seconds since 1970.

    Attributes:
        done: the accepted offsets.
        used_at: as above; of no meaning while there are readers.
        readers: those of that name, in the order in which they came.
        is_changed: whether it is to be stored.
        is_known: whether any consumer of that name has begun.
    """

    __slots__ = ("done", "is_changed", "is_known", "readers", "used_at")

    def __init__(self, offset: int, used_at: float, *, is_known: bool) -> None:
        self.done, self.used_at, self.is_known = Done(offset), used_at, is_known
        self.is_changed = False
        self.readers: dict[Reader, None] = {}

    @property
    def offset(self) -> int:
        """All messages before this offset are accepted, of those that were offered."""
        return self.done.below

    def passed(self, first: int, count: int) -> None:
        """Messages were accepted, or are not for this name."""
        done, before = self.done, self.done.below
        done.add(first, first + count - 1)
        if len(done.beyond) > MAX_GAPS:
            done.beyond.pop()
        if done.below != before:
            self.is_changed = True

    def left(self, reader: Reader, now: float) -> None:
        """A reader has ended: what it has accepted beyond a message that it has not, the next one gets again."""
        del self.readers[reader]
        self.done.beyond.clear()
        if not self.readers:
            self.used_at, self.is_changed = now, True


class Reader:
    """A consumer's place in the stream.

    Args:
        consumer: the consumer.
        reading: its arguments.
        tracked: what those with its name have accepted; None without a name.
        next_offset: the offset of its next message.

    Attributes:
        consumer, reading, tracked, next_offset: as above.
        is_active: whether it gets messages.
        numbers_runs: whether it writes the offsets into the messages of a run (`StreamRun`), and so may get runs.
        priority: of those that wait to become active the highest is first.
    """

    __slots__ = ("consumer", "is_active", "next_offset", "numbers_runs", "priority", "reading", "tracked")

    def __init__(self, consumer: Consumer, reading: Reading, tracked: Tracked | None, next_offset: int) -> None:
        self.consumer, self.reading, self.tracked, self.next_offset = consumer, reading, tracked, next_offset
        self.is_active, self.priority = True, 0
        self.numbers_runs = consumer.acquires and bool(getattr(consumer, "numbers_runs", False))

    def skip(self, count: int) -> None:
        """Pass messages that it does not get."""
        if self.tracked is not None:
            self.tracked.passed(self.next_offset, count)
        self.next_offset += count

    def settled(self, first: int, count: int) -> None:
        """It has accepted messages."""
        if self.tracked is not None:
            self.tracked.passed(first, count)


class StreamEntry(Entry):
    """A message that a reader was offered.

    Attributes:
        reader: the reader.
    """

    __slots__ = ("reader",)

    reader: Reader


class StreamRun(RunEntry):
    """Messages of a run that a reader was offered: their position is that of the first one's offset, from 1.

    Args:
        run: the run.
        first: the number in it of the first of the messages.
        count: their number.
        position: as above.
        reader: the reader.
        number_at: where in the header of the run's messages their offset is, 8 bytes, big endian; negative for nowhere.

    Attributes:
        reader, number_at: as above.
    """

    __slots__ = ("number_at", "reader")

    def __init__(self, run: MessageRun, first: int, count: int, position: int, reader: Reader, number_at: int) -> None:
        super().__init__(run, first, count, position, 0, HELD)
        self.reader, self.number_at = reader, number_at

    def single(self, number: int, state: int) -> Entry:
        """As `RunEntry.single`."""
        entry = StreamEntry()
        entry.message = self.run.message(self.first + number)
        entry.position, entry.rid, entry.state, entry.is_redelivered = self.position + number, 0, state, False
        entry.reader = self.reader
        return entry

    def split(self, count: int, state: int) -> RunEntry:
        """As `RunEntry.split`."""
        front = StreamRun(self.run, self.first, count, self.position, self.reader, self.number_at)
        front.state = state
        self.skip(count)
        return front


class Stream(Queue):
    """A stream.

    Args:
        name, tick, arguments, store, journal, clock: as for `Queue`; it is durable, and has a store.
        restore: decodes stored messages.
        cache: the messages of all streams that are in memory.
        retention: what it keeps.
        is_single_active: whether one consumer at a time gets messages.

    Attributes:
        log: its messages.
        retention: as above.
        tracked: name of consumers -> what they have accepted.
        forgotten: names that were forgotten, whose offsets may still be stored.
        may_track: whether all streams together may keep the offset of one more name.
        readers: consumer -> its place.
        is_dropping: whether its oldest messages are being dequeued.
        kept_from: the offset before which messages are being dequeued, or were; 0 for none.
    """

    __slots__ = (
        "_cache", "_failures", "_group", "_ready", "_source", "_waiting", "forgotten", "is_dropping", "kept_from",
        "log", "may_track", "readers", "retention", "tracked",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        tick: Tick,
        *,
        store: Store,
        journal: Any,
        restore: RestoreMessage,
        cache: StreamCache,
        clock: Callable[[], float],
        arguments: TypedMap = EMPTY_MAP,
        retention: Retention = KEEPS_ALL,
        is_single_active: bool = False,
    ) -> None:
        self.log = StreamLog(clock, retention.segment_bytes)
        super().__init__(
            name, tick, durable=True, arguments=arguments, store=store, journal=journal, order=self.log, clock=clock
        )
        self.is_single_active = is_single_active
        self._cache, self.retention = cache, retention
        self._source = JournalSource(store, journal, name, restore)
        self.tracked: dict[str, Tracked] = {}
        self.forgotten: dict[str, None] = {}
        self.may_track: Callable[[], bool] = lambda: True
        self.readers: dict[Consumer, Reader] = {}
        self._ready: dict[Reader, None] = {}  # those that can take messages
        self._waiting = 0  # segments that are being read back
        self._group = Tracked(0, 0.0, is_known=False)  # of all consumers, if one of them is active at a time
        self.is_dropping = False
        self.kept_from = 0
        self._failures = LogBudget(_LOG, ERROR, f'attempts to drop messages of stream "{name}" that have failed')

    # ---- admit, enqueue ----

    def stores(self, message: Message) -> bool:  # noqa: ARG002
        """As `Queue.stores`: it stores all messages."""
        return True

    def publish(self, message: Message) -> bool:
        """As `Queue.publish`."""
        entry = self.add_held(message, self._record(message))
        watch = self.watch
        if self.messages_enqueued > watch.count_mark or self.bytes_enqueued > watch.bytes_mark:
            watch.risen(self, entry)
        return True

    def takes_run(self, run: MessageRun) -> bool:
        """As `Queue.takes_run`: its log has runs of one routing key."""
        return not isinstance(run, KeyedRun) and super().takes_run(run)

    def put_run(self, run: MessageRun) -> int:
        """As `Queue.put_run`."""
        return self._store_run(run)

    def add(self, message: Message, rid: int) -> Entry:
        """As `Queue.add`; a message that is not in the journal yet is appended to it."""
        return super().add(message, rid) if rid else self.add_held(message, self._record(message))

    @property
    def takes_index(self) -> bool:
        """As `Residency.takes_index`."""
        return True

    def recover(self, rids: Sequence[int], sizes: Sequence[int], redelivered: Sequence[int]) -> None:  # noqa: ARG002
        """Append messages that recovery has found in the journal and not read."""
        self.log.recover(rids, sizes)
        self.messages_enqueued += len(rids)
        self.bytes_enqueued += sum(sizes)

    def measure(self, rid: int, stored: int) -> int:
        """As `Residency.measure`."""
        message = self._source.load([rid])[0]
        return 0 if message is None else stored - message.size

    @property
    def memory(self) -> int:
        """As `Queue.memory`."""
        log = self.log
        last = log.segments[-1] if log.segments else None
        if last is None or last.is_kept:
            return log.cached
        return log.cached + last.size + MESSAGE_OVERHEAD * len(last.parts or ())

    # ---- consumers ----

    def add_consumer(self, consumer: Consumer, priority: int = 0) -> None:
        """As `Queue.add_consumer`. Raises InvalidArgumentError, ResourceLimitExceededError."""
        arguments, tag = getattr(consumer, "arguments", EMPTY_MAP), getattr(consumer, "destination", "")
        reading = read_consumer(arguments, tag)
        tracked = self._tracked(reading)
        begin = self._begin(reading.begin)
        if tracked is not None:
            if not tracked.is_known:
                tracked.done, tracked.is_known, tracked.is_changed = Done(begin), True, True
            begin = tracked.offset
            tracked.is_changed = tracked.is_changed or not tracked.readers
        reader = Reader(consumer, reading, tracked, begin)
        reader.priority = priority
        reader.is_active = not any(each.is_active for each in self._grouped(reader))
        if tracked is not None:
            tracked.readers[reader] = None
        self.readers[consumer] = reader
        self._consumers.add(consumer, self.order.first)
        self.consumer_marks.set(self.consumer_count)

    def _tracked(self, reading: Reading) -> Tracked | None:
        if self.is_single_active and not reading.name:
            return self._group
        if not reading.name:
            return None
        tracked = self.tracked.get(reading.name)
        if tracked is None:
            if len(self.tracked) >= MAX_NAMES:
                text = f'stream "{self.name}" keeps the offsets of {MAX_NAMES:,} names; this is the maximum'
                raise ResourceLimitExceededError(text)
            if not self.may_track():
                raise ResourceLimitExceededError("all streams keep the offsets of too many names together")
            tracked = self.tracked[reading.name] = Tracked(0, self._clock(), is_known=False)
        return tracked

    def _grouped(self, reader: Reader) -> Collection[Reader]:
        """The readers of which one is active at a time, with this one."""
        if self.is_single_active:
            return self.readers.values()
        return () if reader.tracked is None else reader.tracked.readers

    def _begin(self, begin: Begin) -> int:
        log = self.log
        first = max(log.begin, self.kept_from) if self.is_dropping else log.begin
        if begin.kind == NEXT:
            return log.end
        if begin.kind == LAST:
            return max(first, log.end - 1)
        if begin.offset >= 0:
            return min(max(begin.offset, first), log.end)
        if begin.kind == FIRST:
            return first
        return max(first, log.offset_at(self._clock() - begin.time if begin.is_ago else begin.time))

    def remove_consumer(self, consumer: Consumer) -> None:
        """As `Queue.remove_consumer`: the next one of its name becomes active."""
        reader = self.readers.pop(consumer, None)
        if reader is not None:
            self._ready.pop(reader, None)
            consumer.is_waiting = False
            if reader.tracked is not None:
                reader.tracked.left(reader, self._clock())
            if reader.is_active:
                self._succeed(reader)
            if not self.readers:
                self._group = Tracked(0, 0.0, is_known=False)
        super().remove_consumer(consumer)

    @property
    def single_active(self) -> Consumer | None:
        """As `Queue.single_active`."""
        active = (each for each, reader in self.readers.items() if reader.is_active)
        return next(active, None) if self.is_single_active else None

    def is_active(self, consumer: Consumer) -> bool:
        """As `Queue.is_active`: of the consumers with one name, too, one gets messages at a time."""
        reader = self.readers.get(consumer)
        return reader is None or reader.is_active

    def _succeed(self, former: Reader) -> None:
        """Activate the reader of the highest priority, the oldest of several, in place of one that has ended."""
        grouped = self._grouped(former)
        if not grouped:
            return
        successor = max(grouped, key=lambda each: each.priority)
        successor.is_active = True
        if successor.tracked is not None:
            successor.next_offset = max(successor.tracked.offset, self.log.begin)
        if successor.consumer.is_waiting:
            self._ready[successor] = None
            self.mark_ready()

    def wake(self, consumer: Consumer) -> None:
        """As `Queue.wake`."""
        reader = self.readers.get(consumer)
        if reader is None or consumer.is_waiting:
            return
        consumer.is_waiting = True
        if reader.is_active:
            self._ready[reader] = None
            self.mark_ready()

    def has_taker(self) -> bool:
        """As `Queue.has_taker`."""
        self.dispatch()
        return any(reader.consumer.is_waiting for reader in self._ready)

    def has_idle_taker(self) -> bool:
        """As `Queue.has_idle_taker`."""
        return False

    # ---- deliver ----

    def dispatch(self) -> None:
        """As `Queue.dispatch`: offer each reader what comes next for it, in turn."""
        self.marks.arrived(self)
        tick, limit = self._tick, self._barriers.limit
        end = self.log.end if limit == NO_LIMIT else min(self.log.end, limit - 1)
        self._keep_closed(end)
        for reader in list(self._ready):
            if tick.deliveries <= 0:
                break
            del self._ready[reader]  # those that were served are last the next time
            self._ready[reader] = None
            tick.deliveries -= self._feed(reader, end)
            if not reader.consumer.is_waiting:
                self._ready.pop(reader, None)
        if tick.deliveries <= 0 or any(
            reader.next_offset < end and not self._is_fetching(reader) for reader in self._ready
        ):
            tick.ready.pop(self, None)
            tick.dispatch_later(self)

    @property
    def is_unfinished(self) -> bool:
        """As `Queue.is_unfinished`."""
        return self._waiting > 0 or self in self._tick.ready

    def _is_fetching(self, reader: Reader) -> bool:
        return self.log.at(reader.next_offset).is_fetched

    def _keep_closed(self, end: int) -> None:
        """Have the store index the records of closed segments compactly, and the cache keep their messages."""
        segments = self.log.segments
        at = len(segments)
        while at and not segments[at - 1].is_kept:
            at -= 1
        for segment in segments[at:]:
            if not segment.is_closed or segment.end > end:
                break
            self._source.keep_stored(segment.rids)
            segment.is_kept = True
            if segment.parts is not None:
                self._cache.use(segment, self.log)

    def _feed(self, reader: Reader, end: int) -> int:
        """Offer a reader messages while it takes them, up to the offset `end`. Returns how many it has passed."""
        tick, log, consumer, wanted = self._tick, self.log, reader.consumer, reader.reading.wanted
        passed = 0
        while consumer.is_waiting and tick.deliveries > 0 and passed < PASSED_AT_ONCE:
            offset = reader.next_offset
            if offset < log.begin:
                reader.skip(log.begin - offset)
                continue
            if offset >= end:
                return passed
            segment = log.at(offset)
            if wanted is not None and not segment.matches(wanted):
                reader.skip(segment.end - offset)
                passed += 1
                continue
            if segment.parts is None and not self._has_fetched(segment):
                return passed
            if segment.is_kept:
                self._cache.use(segment, log)
            part, number = segment.at(offset)
            count = min(part.count - number, end - offset)
            if wanted is not None and part.value not in wanted:
                reader.skip(count)
                passed += 1
            elif not self._offer_run(reader, part, number, count):
                passed += self._offer(reader, part, number)
        return passed

    def _offer_run(self, reader: Reader, part: Part, number: int, count: int) -> bool:
        """Offer a reader messages of a run together. Returns whether it has taken any."""
        if count < MIN_RUN or not reader.numbers_runs:
            return False
        run = part.numbered()
        if run is None:
            return False
        count = min(count, reader.consumer.room_for(run))
        if count < MIN_RUN:
            return False
        offset = reader.next_offset
        held = StreamRun(run, part.start + number, count, offset + 1, reader, part.number_at)
        reader.next_offset = offset + count
        self._tick.deliveries -= 1 + count // 16  # a message of a run takes a sixteenth of the time
        if reader.consumer.deliver_run(held) != TAKEN:
            reader.consumer.is_waiting = False
        return True

    def _offer(self, reader: Reader, part: Part, number: int) -> int:
        """Offer a reader a single message. Returns 1 if it does not get it, else 0."""
        consumer, offset = reader.consumer, reader.next_offset
        message = part.single(number, offset)
        if message is None:
            reader.skip(1)
            return 1
        entry = StreamEntry()
        entry.message, entry.reader = message, reader
        entry.position, entry.rid, entry.state, entry.is_redelivered = offset + 1, 0, ACQUIRED, False
        result = consumer.deliver(entry)
        if result == NOT_FOR_ME:
            reader.skip(1)
            return 1
        if result == REFUSED:
            consumer.is_waiting = False
            return 0
        self._tick.deliveries -= 1
        reader.next_offset = offset + 1
        if not consumer.acquires:  # a browser accepts nothing
            reader.settled(offset, 1)
        if result != TAKEN:
            consumer.is_waiting = False
        return 0

    def _has_fetched(self, segment: Segment) -> bool:
        """Read a segment back. Returns whether that is done."""
        if segment.is_fetched:
            return False
        segment.is_fetched = True
        self._waiting += 1
        self._source.fetch_runs(segment.rids, MAX_BODY, partial(self._fetched, segment, segment.first))
        if segment.parts is not None:
            return True
        segments = self.log.segments
        following = self.log.at(segment.end) if segment.end < self.log.end else None
        if following is not None and following.parts is None and segments:
            self._source.will_need(following.rids)
        return False

    def _fetched(self, segment: Segment, first: int, loaded: LoadedRuns) -> None:
        segment.is_fetched = False
        self._waiting -= 1
        if self.is_deleted or segment.end <= self.log.begin:
            return
        if segment.first == first:  # otherwise it was cut meanwhile
            segment.fill(loaded)
            self._cache.use(segment, self.log)
        self._tick.deliveries -= len(loaded)  # to read a single message back takes as long as to deliver it
        self.mark_ready()

    # ---- settle ----

    def acquire(self, entry: Entry, *, consumer: Consumer | None = None, is_consumed: bool = True) -> bool:  # noqa: ARG002
        """As `Queue.acquire`: none can be."""
        return False

    def dequeue(self, entry: Entry) -> bool:
        """As `Queue.dequeue`: the message stays, and its reader has accepted it."""
        self.accepted(entry)
        return False

    def accepted(self, entry: Entry) -> None:
        """The reader of a message has accepted it."""
        if entry.state in (ACQUIRED, MOVING) and isinstance(entry, StreamEntry):
            entry.state = GONE
            entry.reader.settled(entry.position - 1, 1)

    def dequeue_run(self, run: RunEntry, count: int) -> bool:
        """As `Queue.dequeue_run`, likewise."""
        if isinstance(run, StreamRun):
            run.reader.settled(run.position - 1, count)
        if count < run.count:
            run.skip(count)
        else:
            run.count, run.state = 0, GONE
        return False

    def unfold_run(self, run: RunEntry) -> list[Entry]:
        """As `Queue.unfold_run`."""
        if run.state == HELD:
            run.entries = [run.single(number, ACQUIRED) for number in range(run.count)]
            run.state = GONE
        return run.entries or []

    def change(self, entry: Entry, changes: Mapping[str, TypedValue]) -> None:
        """As `Queue.change`: messages of a stream do not change."""

    def release(self, entry: Entry, *, is_redelivered: bool, was_delivered: bool = True) -> None:  # noqa: ARG002
        """As `Queue.release`: the message is not delivered again to this consumer, and was not accepted."""
        if entry.state == ACQUIRED:
            entry.state = GONE

    def returns_from(self, release: object, position: int) -> None:
        """As `Queue.returns_from`: nothing returns."""

    # ---- retain ----

    @property
    def synced(self) -> int:
        """The offset before which all messages are on the disk."""
        return min(self.log.end, self._unsynced.limit - 1)

    def forget_name(self, name: str) -> None:
        """Forget the offset of a name that no consumer has."""
        tracked = self.tracked.get(name)
        if tracked is not None and not tracked.readers:
            del self.tracked[name]
            self.forgotten[name] = None

    def retain(self, retention: Retention) -> None:
        """Keep something else from now on."""
        self.retention, self.log.segment_bytes = retention, retention.segment_bytes

    def to_drop(self) -> int:
        """The offset before which messages are beyond the limits, and kept for nobody."""
        now, retention, log = self._clock(), self.retention, self.log
        if not retention.max_bytes and not retention.max_age:
            return log.begin
        oldest = now - retention.max_age if retention.max_age else 0.0
        end = log.dropped_by(retention.max_bytes, self.message_bytes, oldest)
        if retention.keep_unread:
            for tracked in self.tracked.values():
                if tracked.readers or tracked.used_at + retention.keep_unread > now:
                    end = min(end, tracked.offset)
        end = min(end, self.synced - 1)  # the mark of the first that stays must be one of a message on the disk
        if end <= log.begin:
            return log.begin
        return log.at(end).first if end < log.end else log.segments[-1].first

    def begin_drop(self, end: int) -> None:
        """Begin to dequeue the segments before an offset, those of one in each turn, if nobody has come for them."""
        end = min(end, self.to_drop())
        if end <= self.log.begin:
            return
        self.is_dropping, self.kept_from = True, end
        self.do_in_turns(self._drop(end))

    def _drop(self, end: int) -> Iterator[None]:
        log = self.log
        try:
            while len(log.segments) > 1 and log.segments[0].end <= end and not self.is_deleted:
                self._drop_first(log.segments[0])
                self._tick.schedule()
                yield
        except InternalError as error:
            text = 'Stream "%s": its oldest messages cannot be dequeued; trying again: %s'
            self._failures.write(time.monotonic(), text, self.name, error)
        finally:
            self.is_dropping = False

    def _drop_first(self, segment: Segment) -> None:
        assert self._append is not None
        assert self.store is not None
        rids, dropped = segment.rids, 0
        try:
            while dropped < len(rids):
                count = 1
                while dropped + count < len(rids) and rids[dropped + count] == rids[dropped] + count:
                    count += 1
                dropped += self._append.dequeue_run(self.journal, rids[dropped], count)
        except self.store.errors as error:
            raise InternalError(str(error)) from error
        finally:
            if dropped:
                self._tick.journals[self.journal] = True
                self._dropped(segment, dropped)

    def _dropped(self, segment: Segment, count: int) -> None:
        before = segment.size
        self._cache.forget(segment)
        if count == len(segment.rids):
            del self.log.segments[0]
            size = before
        else:
            segment.cut(count)
            size = before - segment.size
        self.messages_dequeued += count
        self.bytes_dequeued += size
        self._acquired += count
        self.counters.internal_acquires += count
        if self.watch.is_high:
            self.watch.sunk(self)

    # ---- deletion ----

    def end_deletion(self) -> list[Consumer]:
        """As `Queue.end_deletion`."""
        for segment in self.log.segments:
            self._cache.forget(segment)
        self._source.close()
        return super().end_deletion()
