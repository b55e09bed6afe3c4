"""The result of a start: journals that accept records, and the recovered messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import qstore.store.log_lines as log_lines
from qstore.formats.broker_records.topology import Queue
from qstore.formats.rhm.compressed import Decompressor
from qstore.formats.rhm.errors import RhmError
from qstore.formats.rhm.geometry import BLOCK_SIZE
from qstore.formats.rhm.records import COMPRESSED
from qstore.store.damage import Damage
from qstore.store.journal.enqueue_map import LIVE
from qstore.store.journal.journal import Journal
from qstore.store.journal.recovery import JournalRecovery
from qstore.store.journal.write.space import SIZE_MASK
from qstore.store.live.queue_journal import QueueJournal
from qstore.store.log_lines import LogLine
from qstore.store.recovery.prepared import PreparedTransaction


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
    """Consecutive recovered messages, which were not read.

    Attributes:
        rids: their record ids.
        sizes: bytes of their records on the disk.
        redelivered: those that may have been delivered before, by number from 0.
    """

    rids: Sequence[int]
    sizes: Sequence[int]
    redelivered: Sequence[int]


class StartedQueue:
    """A queue that was recovered.

    Args:
        queue_id: its number.
        record: its record.
        journal: its journal, resumed.
        reader: reads that journal.
        recovery: what was found in it.

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
    def in_doubt(self) -> int:
        """Number of messages that wait for a transaction in doubt."""
        return len(self._recovery.messages) - self.messages

    def read(self, is_redelivered: Callable[[int], bool], log: Callable[[LogLine], None]) -> Iterator[RecoveredMessage]:
        """The messages, by record id. Read them before anything is appended to the journal.

        Args:
            is_redelivered: whether the message with that record id may have been delivered before.
            log: receives a line for each message that is omitted, because its compressed content is damaged.
        """
        reader, journal = self._reader, self.journal
        small_data, compactor = reader.small_data, journal.writer.compactor
        for rid, place, state, xid in self._recovery.outstanding(reader.format):
            try:
                if compactor.copied:  # to make room for outcomes; the originals may be overwritten
                    header, data = journal.stored(rid)
                    data = Decompressor().restore(data) if header.flags & COMPRESSED else data
                else:
                    data = small_data(place) or reader.message_data(place)
            except RhmError as error:
                log(log_lines.content_damaged(journal.name, rid, error.what))
                continue
            yield RecoveredMessage(rid, data, state, xid, is_redelivered(rid))

    def rids(self) -> Iterator[int]:
        """The record ids of its messages, in order; none is read."""
        for rid, _, _, _ in self._recovery.outstanding(self._reader.format):
            yield rid

    def index(self, redelivered: Callable[[Sequence[int]], Sequence[int]]) -> Iterator[IndexPortion] | None:
        """Where the messages are; none is read. None if they are few, or transactions hold some.

        What was found in the journal is forgotten then: the index of the journal's writer has the same.

        Args:
            redelivered: which of the messages with these record ids may have been delivered, by number from 0.
        """
        records = self.journal.writer.records
        if self.in_doubt or records.live or not records.resting:
            return None
        self._recovery.messages.clear()
        return map(partial(_portion, redelivered), records.resting.portions())

    def close(self) -> None:
        """Close the reader: the messages are read."""
        self._reader.close()


def _portion(
    redelivered: Callable[[Sequence[int]], Sequence[int]], records: tuple[Sequence[int], Sequence[int]]
) -> IndexPortion:
    rids, packed = records
    return IndexPortion(rids, [(each & SIZE_MASK) * BLOCK_SIZE for each in packed], redelivered(rids))


class StartedStore(NamedTuple):
    """A store whose journals are resumed.

    Attributes:
        prepared_list: the prepared list's journal.
        transactions: the transactions in the prepared list.
        queues: the queues: the catalogue's by number, then those that only their journals knew.
        damage: the damage found.
        highest_rid: the highest record id in any journal.
        remains: directories of deleted queues' journals, with many files, that are still to be removed.
    """

    prepared_list: QueueJournal
    transactions: list[PreparedTransaction]
    queues: list[StartedQueue]
    damage: list[Damage]
    highest_rid: int
    remains: list[str]
