"""Reads many messages of a queue back from its journal, without making the event loop wait for the disk.

Neighbouring records are read together, as one span. Spans that the system has in its page cache are read at once;
otherwise a thread reads all of them, each from a file of its own. Meanwhile compaction may move a record, and its old
place may be overwritten: so every record is verified, and one that is not what it should be is read again by itself,
from where it is by then. Only that last attempt tells whether it is damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from qstore.formats.checksum import extend_crc32c
from qstore.formats.rhm.compressed import Decompressor
from qstore.formats.rhm.errors import RhmError
from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.rhm.headers import FLAGS_SHIFT, HEADER_2, MAGIC_MASK
from qstore.formats.rhm.records import COMPRESSED, TAIL, TAIL_SIZE, Kind, version_2_check
from qstore.store.background import Background
from qstore.store.journal.write.space import SIZE_BITS, SIZE_MASK
from qstore.store.journal.write.step import JournalError
from qstore.store.live.queue_journal import QueueJournal

#: The data of each message, or why it cannot be read.
MessageData: TypeAlias = "list[bytes | Exception]"

MAX_SPAN: Final = 2 << 20  # bytes of a span, unless a single record is longer
_MAX_HOLE: Final = 64 << 10  # bytes between two records of a span that are read and dropped
_HEADER: Final = HEADER_2.size


class Wanted(NamedTuple):
    """A record to be read.

    Attributes:
        number: its place in the result.
        rid: its id.
        place, blocks: where it is.
        salt: of its file.
    """

    number: int
    rid: int
    place: int
    blocks: int
    salt: int


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
    found: list[bytes | Exception | None] = [None] * len(rids)
    contents = [_cached(journal, span) for span in spans]
    journal.reads += len(rids)
    if None not in contents:
        _take(spans, contents, found)
        done(_complete(journal, rids, found))
        return
    journal.slow_reads += 1
    work = journal.storage.reader([_extent(span) for span in spans])

    def read(contents: Sequence[bytes | None]) -> None:
        _take(spans, contents, found)
        done(_complete(journal, rids, found))

    background.run(work, read, lambda _error: read([None] * len(spans)))


def will_read(journal: QueueJournal, rids: Sequence[int]) -> None:
    """Have the system read these messages into its page cache."""
    for span in _spans(journal, rids):
        journal.storage.read_ahead(*_extent(span))


def _spans(journal: QueueJournal, rids: Sequence[int]) -> list[list[Wanted]]:
    """The records that are on the disk, neighbours together."""
    writer = journal.writer
    where, salt_at, synced = writer.records.where, writer.salt_at, writer.unsynced_place
    wanted = []
    for number, rid in enumerate(rids):
        packed = where(rid)
        if packed is not None and packed >> SIZE_BITS < synced:
            place = packed >> SIZE_BITS
            wanted.append(Wanted(number, rid, place, packed & SIZE_MASK, salt_at(place)))
    wanted.sort(key=lambda each: each.place)
    spans: list[list[Wanted]] = []
    end = limit = 0
    for each in wanted:
        if not spans or (each.place - end) * BLOCK_SIZE > _MAX_HOLE or each.place + each.blocks > limit:
            spans.append([])
            limit = each.place + max(each.blocks, MAX_SPAN // BLOCK_SIZE)
        spans[-1].append(each)
        end = each.place + each.blocks
    return spans


def _extent(span: Sequence[Wanted]) -> tuple[int, int]:
    """Log offset and bytes of a span."""
    first, last = span[0].place, span[-1].place + span[-1].blocks
    return first, (last - first) * BLOCK_SIZE


def _cached(journal: QueueJournal, span: Sequence[Wanted]) -> bytes | None:
    try:
        return journal.storage.read_cached(*_extent(span))
    except OSError:
        return b""  # its records are read one by one


def _take(
    spans: Sequence[Sequence[Wanted]], contents: Sequence[bytes | None], found: list[bytes | Exception | None]
) -> None:
    """Take the good records out of what was read."""
    decompressor = Decompressor()
    for span, content in zip(spans, contents, strict=True):
        if content:
            start = span[0].place
            for each in span:
                found[each.number] = _data(content, (each.place - start) * BLOCK_SIZE, each, decompressor)


def _data(content: bytes, at: int, wanted: Wanted, decompressor: Decompressor) -> bytes | None:
    """The data of a message; None if the record is not the one that should be there."""
    end = at + wanted.blocks * BLOCK_SIZE
    if end > len(content):
        return None
    first, rid, xid_size, _, size = HEADER_2.unpack_from(content, at)
    start = at + _HEADER + xid_size
    tail = start + size
    if first & MAGIC_MASK != Kind.ENQUEUE or rid != wanted.rid or tail + TAIL_SIZE > end:
        return None
    data = content[start:tail]
    check = version_2_check(
        content[at : at + _HEADER], content[at + _HEADER : start], extend_crc32c(0, data), wanted.salt
    )
    if TAIL.unpack_from(content, tail)[0] != check:
        return None
    if first >> FLAGS_SHIFT & COMPRESSED:
        try:
            return decompressor.restore(data)
        except RhmError:
            return None  # the last attempt tells why
    return data


def _complete(journal: QueueJournal, rids: Sequence[int], found: Sequence[bytes | Exception | None]) -> MessageData:
    """Read by itself what is still missing."""
    return [_alone(journal, rid) if each is None else each for rid, each in zip(rids, found, strict=True)]


def _alone(journal: QueueJournal, rid: int) -> bytes | Exception:
    try:
        return journal.load(rid)
    except (JournalError, OSError) as error:
        return error
