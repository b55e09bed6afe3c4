"""Reads many messages of a queue back from its journal, without making the event loop wait for the disk.

Neighbouring records are read together, as one span. If all spans are in the system's page cache, they are read at once;
otherwise a thread reads them, through file descriptors of its own. Meanwhile compaction may move a record, and its old
place may be overwritten: so every record is verified, and one that does not match is read again separately, from its
place at that time. Only this last attempt shows whether it is damaged. The caller's decoder gets the span and the
message's bounds in it, so that a message is copied once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeAlias, TypeVar, cast

from qstore.formats.checksum import extend_crc32c
from qstore.formats.errors import BrokerRecordError, RhmError
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

MAX_SPAN: Final = 2 << 20  # bytes of a span, unless a single record is longer
_MAX_HOLE: Final = (64 << 10) // BLOCK_SIZE  # unneeded blocks between two records of a span
_MAX_SPAN_BLOCKS: Final = MAX_SPAN // BLOCK_SIZE
_HEADER: Final = HEADER_2.size
_ENQUEUE: Final = int(Kind.ENQUEUE)


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

    Attributes:
        rids: their record ids.
        places: log offset and blocks of each, packed; 0 for one that is missing.
        order: their indices, in the order of their places.
        spans: those on the disk, with neighbours in one file joined.
    """

    __slots__ = ("order", "places", "rids", "spans")

    def __init__(self, journal: QueueJournal, rids: Sequence[int]) -> None:
        self.rids, self.places = list(rids), list(journal.writer.records.where_all(rids))
        self.order = list(range(len(self.places)))
        if self.places != sorted(self.places):  # compaction has moved some
            self.order.sort(key=self.places.__getitem__)
        self.spans = self._spans(journal)

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
    wanted = Wanted(journal, rids)
    contents = [_cached(journal, span) for span in wanted.spans]
    journal.reads += len(rids)
    if None not in contents:
        _read(journal, wanted, decode, done, contents)
        return
    journal.slow_reads += 1
    work = journal.storage.reader([span.extent for span in wanted.spans])
    not_read = partial(_not_read, journal, wanted, decode, done)
    background.run(work, partial(_read, journal, wanted, decode, done), not_read)


def as_bytes(content: bytes, begin: int, end: int) -> bytes:
    """The `Decode` that returns the bytes themselves."""
    return content[begin:end]


def _read(
    journal: QueueJournal,
    wanted: Wanted,
    decode: Decode[Decoded],
    done: Read[Decoded],
    contents: Sequence[bytes | None],
) -> None:
    """Handle spans that a thread has read, as far as it could."""
    found: list[Decoded | Exception | None] = [None] * len(wanted.rids)
    decompressor = Decompressor()
    for span, content in zip(wanted.spans, contents, strict=True):
        if content:
            _take_span(wanted, span, content.ljust(span.extent[1], b"\0"), decode, found, decompressor)
    done(_complete(journal, wanted, decode, found))


def _not_read(
    journal: QueueJournal,
    wanted: Wanted,
    decode: Decode[Decoded],
    done: Read[Decoded],
    _error: Exception,
) -> None:
    """Handle the failure of a thread."""
    done(_complete(journal, wanted, decode, [None] * len(wanted.rids)))


def will_read(journal: QueueJournal, rids: Sequence[int]) -> None:
    """Have the system read these messages into its page cache."""
    for span in Wanted(journal, rids).spans:
        journal.storage.read_ahead(*span.extent)


def _cached(journal: QueueJournal, span: Span) -> bytes | None:
    try:
        return journal.storage.read_cached(*span.extent)
    except OSError:
        return b""  # its records are read one by one


def _take_span(
    wanted: Wanted,
    span: Span,
    content: bytes,
    decode: Decode[Decoded],
    found: list[Decoded | Exception | None],
    decompressor: Decompressor,
) -> None:
    """Decode the valid records of one span: those that are in their places, with the right checksums."""
    unpack_header, unpack_tail, extend = HEADER_2.unpack_from, TAIL.unpack_from, extend_crc32c
    rids, places, order = wanted.rids, wanted.places, wanted.order
    start, salt, last = span.start, span.salt, len(content) - TAIL_SIZE
    for index in range(span.first, span.last):
        number = order[index]
        rid, at = rids[number], ((places[number] >> SIZE_BITS) - start) * BLOCK_SIZE
        first: int
        xid_size: int
        size: int
        first, found_rid, xid_size, _, size = unpack_header(content, at)
        begin = at + _HEADER + xid_size
        tail = begin + size
        if found_rid != rid or tail > last or first & MAGIC_MASK != _ENQUEUE:
            continue
        head = content[at:begin]
        if xid_size:
            head = head[_HEADER:] + head[:_HEADER]
        if unpack_tail(content, tail) != (extend(extend(0, content[begin:tail]), head + salt), rid):
            continue
        try:
            if first >> FLAGS_SHIFT & COMPRESSED:
                data = decompressor.restore(content[begin:tail])
                found[number] = decode(data, 0, len(data))
            else:
                found[number] = decode(content, begin, tail)
        except RhmError:
            continue  # the last attempt shows why
        except BrokerRecordError as error:
            found[number] = error


def _complete(
    journal: QueueJournal,
    wanted: Wanted,
    decode: Decode[Decoded],
    found: list[Decoded | Exception | None],
) -> list[Decoded | Exception]:
    """Read each missing message separately."""
    if None not in found:
        return cast("list[Decoded | Exception]", found)
    rids = wanted.rids
    return [_alone(journal, rids[number], decode) if each is None else each for number, each in enumerate(found)]


def _alone(journal: QueueJournal, rid: int, decode: Decode[Decoded]) -> Decoded | Exception:
    try:
        data = journal.load(rid)
        return decode(data, 0, len(data))
    except (JournalError, OSError, BrokerRecordError) as error:
        return error
