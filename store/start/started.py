"""The result of a start: journals that accept records, and the recovered messages."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import qstore.store.log_lines as log_lines
from qstore.formats.broker_records.topology import Queue
from qstore.formats.errors import RhmError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.compressed import Decompressor
from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.rhm.records import COMPRESSED
from qstore.store.damage import Damage
from qstore.store.errors import JournalError
from qstore.store.journal.journal import Journal
from qstore.store.journal.recovery import LIVE, JournalRecovery
from qstore.store.journal.write.live_records import MAX_CHUNK, RestingRecords
from qstore.store.journal.write.space import SIZE_MASK, blocks_of
from qstore.store.live.queue_journal import QueueJournal
from qstore.store.log_lines import LogLine
from qstore.store.recovery.prepared import PreparedTransaction

_NOT_THERE: Final = "its record is damaged, which only the next start can deal with, since it reads the whole journal"


class RecoveredMessage:
    """A recovered message.

    Attributes:
        rid: its record id: the queue's order is that of the record ids.
        data: its data as it was enqueued.
        state: LIVE; or LOCKED or PENDING, if a transaction in doubt would dequeue or enqueue it.
        xid: that transaction; None if there is none.
        redelivered: whether it may have been delivered before.
    """

    __slots__ = ("data", "redelivered", "rid", "state", "xid")

    def __init__(self, rid: int, data: bytes, state: int, xid: bytes | None, redelivered: bool) -> None:
        self.rid, self.data, self.state, self.xid, self.redelivered = rid, data, state, xid, redelivered


class IndexPortion(NamedTuple):
    """Consecutive recovered messages, which were not read; and one that was, since a transaction in doubt holds it.

    Attributes:
        rids: record ids of those that were not read; may be empty.
        sizes: bytes of their records on the disk.
        redelivered: those of them that may have been delivered before, by number from 0.
        held: the message that follows them, if it is held; None if it is not, or cannot be read.
    """

    rids: Sequence[int]
    sizes: Sequence[int]
    redelivered: Sequence[int]
    held: RecoveredMessage | None = None


class StartedQueue:
    """A queue that was recovered.

    Args:
        queue_id: its number.
        record: its record.
        journal: its journal, resumed.
        reader: reads that journal.
        recovery: its content.

    Attributes:
        queue_id, record, journal: as above.
    """

    __slots__ = ("_reader", "_recovery", "journal", "queue_id", "record")

    def __init__(
        self, queue_id: int, record: Queue, journal: QueueJournal, reader: Journal, recovery: JournalRecovery
    ) -> None:
        self.queue_id, self.record, self.journal = queue_id, record, journal
        self._reader, self._recovery = reader, recovery

    @property
    def messages(self) -> int:
        """Number of messages to be offered to consumers."""
        return self._recovery.messages.count(LIVE)

    @property
    def indexed_to(self) -> int | None:
        """Log offset up to which its journal was recovered from an index; None if all of it was read."""
        indexed = self._recovery.indexed
        return None if indexed is None else indexed.place

    @property
    def in_doubt(self) -> int:
        """Number of messages that wait for a transaction in doubt."""
        return len(self._recovery.messages) - self.messages

    def read(self, is_redelivered: Callable[[int], bool], log: Callable[[LogLine], None]) -> Iterator[RecoveredMessage]:
        """The messages, by record id. Read them before anything is appended to the journal.

        Args:
            is_redelivered: whether the message with that record id may have been delivered before.
            log: receives a line for each message that is omitted, because its compressed content is damaged.
        """
        for rid, place, state, xid in self._recovery.outstanding(self._reader.format):
            data = self._data(rid, place, log)
            if data is not None:
                yield RecoveredMessage(rid, data, state, xid, is_redelivered(rid))

    def _data(self, rid: int, place: int, log: Callable[[LogLine], None]) -> bytes | None:
        """The data of a message; None if it is damaged, which is logged."""
        reader, journal = self._reader, self.journal
        try:
            if not journal.writer.compactor.copied:
                if self._recovery.indexed is not None and not reader.holds(rid, place):
                    journal.is_doubtful = True
                    log(log_lines.content_damaged(journal.name, rid, _NOT_THERE))
                    return None
                return reader.small_data(place) or reader.message_data(place)
            header, data = journal.stored(rid)  # copied to make room for outcomes; the original may be overwritten
            return Decompressor().restore(data) if header.flags & COMPRESSED else data
        except JournalError as error:
            log(log_lines.content_damaged(journal.name, rid, str(error)))
            return None
        except RhmError as damage:
            log(log_lines.content_damaged(journal.name, rid, damage.what))
            return None

    def rids(self) -> Iterator[int]:
        """The record ids of its messages, in order; none is read."""
        for rid, _, _, _ in self._recovery.outstanding(self._reader.format):
            yield rid

    def index(
        self, redelivered: Callable[[Sequence[int]], Sequence[int]], log: Callable[[LogLine], None]
    ) -> Iterator[IndexPortion] | None:
        """Where the messages are; only those are read that transactions in doubt hold. None if they are few.

        The content found in the journal is dropped then: the index of the journal's writer has the same.

        Args:
            redelivered: which of the messages with these record ids may have been delivered, by number from 0.
            log: as of `read`.
        """
        records = self.journal.writer.records
        if not records.resting:
            return None
        apart: dict[int, tuple[int, int, bytes | None]] = {}  # messages that do not rest, or are held
        for rid in records.live:
            found = self._recovery.messages.get(rid)
            if found is not None:  # otherwise it is a dequeue
                apart[rid] = found.place, found.state, None
        apart |= {rid: (place, state, xid) for rid, place, state, xid in self._recovery.held()}
        self._recovery.messages.clear()
        return self._portions(redelivered, log, apart)

    def _portions(
        self,
        redelivered: Callable[[Sequence[int]], Sequence[int]],
        log: Callable[[LogLine], None],
        apart: Mapping[int, tuple[int, int, bytes | None]],
    ) -> Iterator[IndexPortion]:
        """The resting records, by record id, with the single messages between them."""
        others = deque(sorted(apart))
        for rids, blocks in _joined(self.journal.writer.records.resting):
            begin = 0
            while others and others[0] <= rids[-1]:
                rid = others.popleft()
                end = bisect_left(rids, rid)
                yield from self._cut(rids[begin:end], blocks[begin:end], redelivered, log, rid, apart[rid])
                begin = end + (rids[end] == rid)
            yield from self._cut(rids[begin:], blocks[begin:], redelivered, log)
        for rid in others:
            yield from self._cut((), (), redelivered, log, rid, apart[rid])

    def _cut(
        self,
        rids: Sequence[int],
        blocks: Sequence[int],
        redelivered: Callable[[Sequence[int]], Sequence[int]],
        log: Callable[[LogLine], None],
        rid: int = 0,
        apart: tuple[int, int, bytes | None] = (0, LIVE, None),
    ) -> Iterator[IndexPortion]:
        """A part of the resting records, and the message `rid` after it, if one is given."""
        sizes: Sequence[int] = ()
        if rids:
            is_equal = isinstance(rids, range) or (isinstance(blocks, bytes) and blocks.count(blocks[0]) == len(blocks))
            sizes = [blocks[0] * BLOCK_SIZE] * len(blocks) if is_equal else [each * BLOCK_SIZE for each in blocks]
        place, state, xid = apart
        if rid and state != LIVE:
            data, marked = self._data(rid, place, log), bool(redelivered((rid,)))
            held = None if data is None else RecoveredMessage(rid, data, state, xid, marked)
            yield IndexPortion(rids, sizes, redelivered(rids), held)
            return
        if rids:
            yield IndexPortion(rids, sizes, redelivered(rids))
        if rid:
            size = (self.journal.writer.records.live[rid] & SIZE_MASK) * BLOCK_SIZE
            yield IndexPortion((rid,), (size,), redelivered((rid,)))

    def close(self) -> None:
        """Close the reader: the messages are read."""
        self._reader.close()


def _joined(resting: RestingRecords) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Ids and blocks of the resting records, by id; ids in a range have the same number of blocks.

    Runs whose ids follow one another are one. A flush ends each run, for its end is padded, and often after some dozen
    messages: joined, the rest of a start takes less than half the time for them (`tests.bench.bench_start`).
    """
    first = end = size = 0
    for rids, packed in resting.portions():
        if isinstance(rids, range):
            if rids.start == end and packed[0] & SIZE_MASK == size and end - first < MAX_CHUNK:
                end = rids.stop
                continue
            if first < end:
                yield range(first, end), [size] * (end - first)
            first, end, size = rids.start, rids.stop, packed[0] & SIZE_MASK
            continue
        if first < end:
            yield range(first, end), [size] * (end - first)
            first = end = 0
        yield rids, blocks_of(packed)
    if first < end:
        yield range(first, end), [size] * (end - first)


class StartedStore(NamedTuple):
    """A store whose journals are resumed.

    Attributes:
        prepared_list: the prepared list's journal.
        transactions: the transactions in the prepared list.
        queues: the queues: the catalogue's by number, then those that only their journals knew.
        damage: the damage found.
        highest_rid: the highest record id in any journal.
        has_replaced: whether an empty journal was created in place of a lost one of a queue: the record of that,
            but for SYNCED, is no longer true.
        remains: directories of deleted queues' journals, with many files, that are still to be removed.
    """

    prepared_list: QueueJournal
    transactions: list[PreparedTransaction]
    queues: list[StartedQueue]
    damage: list[Damage]
    highest_rid: int
    has_replaced: bool
    remains: list[str]
