"""Reads many messages of a queue back from its journal, without making the event loop wait for the disk.

Neighbouring records are read together, as one span. Spans that the system has in its page cache are read at once;
otherwise a thread reads all of them, each from a file of its own. Meanwhile compaction may move a record, and its old
place may be overwritten: so every record is verified, and one that is not what it should be is read again by itself,
from where it is by then. Only that last attempt tells whether it is damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeAlias, cast

from qstore.formats.checksum import extend_crc32c
from qstore.formats.rhm.compressed import Decompressor
from qstore.formats.rhm.errors import RhmError
from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.rhm.headers import FLAGS_SHIFT, HEADER_2, MAGIC_MASK
from qstore.formats.rhm.records import COMPRESSED, SALT, TAIL, TAIL_SIZE, Kind
from qstore.store.background import Background
from qstore.store.journal.write.space import SIZE_BITS, SIZE_MASK
from qstore.store.journal.write.step import JournalError
from qstore.store.live.queue_journal import QueueJournal

#: The data of each message, or why it cannot be read.
MessageData: TypeAlias = "list[bytes | Exception]"

MAX_SPAN: Final = 2 << 20  # bytes of a span, unless a single record is longer
_MAX_HOLE: Final = (64 << 10) // BLOCK_SIZE  # blocks between two records of a span that are read and dropped
_MAX_SPAN_BLOCKS: Final = MAX_SPAN // BLOCK_SIZE
_HEADER: Final = HEADER_2.size
_ENQUEUE: Final = int(Kind.ENQUEUE)


class Span:
    """Records that are read together.

    Attributes:
        numbers: their places in the result.
        rids: their ids.
        places: where they are: log offset and blocks, packed.
        salt: of their file.
        start, end: log offsets of the first, and after the last.
    """

    __slots__ = ("end", "numbers", "places", "rids", "salt", "start")

    def __init__(self, start: int, salt: bytes) -> None:
        self.start = self.end = start
        self.salt = salt
        self.numbers: list[int] = []
        self.rids: list[int] = []
        self.places: list[int] = []

    @property
    def extent(self) -> tuple[int, int]:
        """Log offset and bytes."""
        return self.start, (self.end - self.start) * BLOCK_SIZE


def read_messages(
    journal: QueueJournal, rids: Sequence[int], background: Background, done: Callable[[MessageData], None]
) -> None:
    """Read messages, and call `done` with the result: at once, if the system has all of them in memory.

    Args:
        journal: that of their queue.
        rids: the messages.
        background: reads what is not in memory.
        done: gets the data of each message, or the error: JournalError or OSError.
    """
    spans = _spans(journal, rids)
    contents = [_cached(journal, span) for span in spans]
    journal.reads += len(rids)
    if None not in contents:
        _read(journal, rids, spans, done, contents)
        return
    journal.slow_reads += 1
    work = journal.storage.reader([span.extent for span in spans])
    background.run(work, partial(_read, journal, rids, spans, done), partial(_not_read, journal, rids, done))


def _read(
    journal: QueueJournal,
    rids: Sequence[int],
    spans: Sequence[Span],
    done: Callable[[MessageData], None],
    contents: Sequence[bytes | None],
) -> None:
    """The thread has read the spans, as far as it could."""
    found: list[bytes | Exception | None] = [None] * len(rids)
    _take(spans, contents, found)
    done(_complete(journal, rids, found))


def _not_read(
    journal: QueueJournal, rids: Sequence[int], done: Callable[[MessageData], None], _error: Exception
) -> None:
    """The thread has failed."""
    done(_complete(journal, rids, [None] * len(rids)))


def will_read(journal: QueueJournal, rids: Sequence[int]) -> None:
    """Have the system read these messages into its page cache."""
    for span in _spans(journal, rids):
        journal.storage.read_ahead(*span.extent)


def _spans(journal: QueueJournal, rids: Sequence[int]) -> list[Span]:
    """The records that are on the disk, neighbours of one file together."""
    writer = journal.writer
    file, synced = writer.space.file, writer.unsynced_place
    where, ids = list(writer.records.where_all(rids)), list(rids)
    order = list(range(len(where)))
    if where != sorted(where):  # compaction has moved some
        order.sort(key=where.__getitem__)
    spans: list[Span] = []
    span = Span(0, b"")
    limit = file_end = 0  # the span's next record ends before the one, and begins before the other
    for number in order:
        packed = where[number]
        place = packed >> SIZE_BITS
        if not packed or place >= synced:
            continue
        end = place + (packed & SIZE_MASK)
        if place >= file_end or end > limit or place - span.end > _MAX_HOLE:
            span = Span(place, SALT.pack(writer.salt_at(place)))
            spans.append(span)
            file_end = (place // file + 1) * file
            limit = max(end, place + _MAX_SPAN_BLOCKS)
        span.numbers.append(number)
        span.rids.append(ids[number])
        span.places.append(place)
        span.end = end
    return spans


def _cached(journal: QueueJournal, span: Span) -> bytes | None:
    try:
        return journal.storage.read_cached(*span.extent)
    except OSError:
        return b""  # its records are read one by one


def _take(spans: Sequence[Span], contents: Sequence[bytes | None], found: list[bytes | Exception | None]) -> None:
    """Take the good records out of what was read."""
    decompressor = Decompressor()
    for span, content in zip(spans, contents, strict=True):
        if content:
            _take_span(span, content.ljust(span.extent[1], b"\0"), found, decompressor)


def _take_span(span: Span, content: bytes, found: list[bytes | Exception | None], decompressor: Decompressor) -> None:
    """Take the good records out of one span: those that are where they should be, with their checksums."""
    unpack_header, unpack_tail, extend = HEADER_2.unpack_from, TAIL.unpack_from, extend_crc32c
    numbers, rids, places = span.numbers, span.rids, span.places
    start, salt, last = span.start, span.salt, len(content) - TAIL_SIZE
    for index in range(len(numbers)):
        rid, at = rids[index], (places[index] - start) * BLOCK_SIZE
        first: int
        xid_size: int
        size: int
        first, found_rid, xid_size, _, size = unpack_header(content, at)
        begin = at + _HEADER + xid_size
        tail = begin + size
        if found_rid != rid or tail > last or first & MAGIC_MASK != _ENQUEUE:
            continue
        data, head = content[begin:tail], content[at:begin]
        if xid_size:
            head = head[_HEADER:] + head[:_HEADER]
        if unpack_tail(content, tail) != (extend(extend(0, data), head + salt), rid):
            continue
        if first >> FLAGS_SHIFT & COMPRESSED:
            try:
                data = decompressor.restore(data)
            except RhmError:
                continue  # the last attempt tells why
        found[numbers[index]] = data


def _complete(journal: QueueJournal, rids: Sequence[int], found: list[bytes | Exception | None]) -> MessageData:
    """Read by itself what is still missing."""
    if None not in found:
        return cast("MessageData", found)
    return [_alone(journal, rid) if each is None else each for rid, each in zip(rids, found, strict=True)]


def _alone(journal: QueueJournal, rid: int) -> bytes | Exception:
    try:
        return journal.load(rid)
    except (JournalError, OSError) as error:
        return error
