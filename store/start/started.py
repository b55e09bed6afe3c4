"""What a start has made of a store: journals that take records, and the messages that they held."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from formats.broker_records.wiring import Queue
from store.damage import Damage
from store.journal.enqueue_map import LIVE
from store.journal.journal import Journal
from store.journal.recovery import JournalRecovery
from store.live.queue_journal import QueueJournal
from store.recovery.prepared import PreparedTransaction


class RecoveredMessage(NamedTuple):
    """A message that the store kept.

    Attributes:
        rid: its record id: queue order is the order of these.
        data: as it was enqueued.
        state: LIVE; or LOCKED or PENDING, if a transaction in doubt would dequeue or enqueue it.
        xid: that transaction; None where there is none.
        redelivered: whether it may have been delivered before.
    """

    rid: int
    data: bytes
    state: int
    xid: bytes | None
    redelivered: bool


@dataclass(slots=True)
class StartedQueue:
    """A queue that was recovered.

    Attributes:
        queue_id: its number.
        record: its record.
        journal: its journal, taken up.
    """

    queue_id: int
    record: Queue
    journal: QueueJournal
    _reader: Journal
    _recovery: JournalRecovery

    @property
    def messages(self) -> int:
        """Messages that consumers will be offered."""
        return self._recovery.messages.count(LIVE)

    @property
    def in_doubt(self) -> int:
        """Messages that wait for a transaction in doubt."""
        return len(self._recovery.messages) - self.messages

    def read(self, is_redelivered: Callable[[int], bool]) -> Iterator[RecoveredMessage]:
        """The messages, by record id. To be read before anything is appended to the journal."""
        reader, journal = self._reader, self.journal
        for rid, place, state, xid in self._recovery.outstanding(reader.format):
            # Where records were copied forward, to make room for outcomes, what the walk read may be overwritten.
            moved = journal.writer.compactor.copied > 0
            data = journal.load(rid) if moved else reader.stream.read(*reader.data_of_enqueue(place))
            yield RecoveredMessage(rid, data, state, xid, is_redelivered(rid))

    def close(self) -> None:
        """The messages are read: let the reader go."""
        self._reader.close()


@dataclass(frozen=True, slots=True)
class StartedStore:
    """A store whose journals are taken up.

    Attributes:
        prepared_list: the prepared list's journal.
        transactions: what the prepared list holds.
        queues: the queues: the catalogue's by number, then those that only their journals knew.
        damage: what was found damaged.
        highest_rid: the highest record id that any journal has.
    """

    prepared_list: QueueJournal
    transactions: list[PreparedTransaction]
    queues: list[StartedQueue]
    damage: list[Damage]
    highest_rid: int
