"""All messages that a journal still has, in the order in which the queue delivers: those that were dequeued too.

A ring keeps what it has not overwritten yet. Messages of transactions count if their commit is in the journal, or if
recovery keeps them. A record that compaction has moved counts once.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from qstore.formats.rhm.records import TRANSIENT, Kind
from qstore.store.damage import Damage
from qstore.store.inspect.offline import OfflineStore, RecoveredQueue
from qstore.store.journal.enqueue_map import PENDING
from qstore.store.journal.format import JournalFormat
from qstore.store.journal.journal import Journal
from qstore.store.journal.records import RecordHeader


class _Enqueues:
    """A `RecordSink` that collects the messages of a journal."""

    def __init__(self) -> None:
        self.rids, self.places = array("Q"), array("Q")
        self._open: dict[bytes, list[tuple[int, int]]] = {}

    def enqueue(self, rid: int, place: int, blocks: int = 0) -> None:  # noqa: ARG002
        """A message outside of any transaction."""
        self.rids.append(rid)
        self.places.append(place)

    def dequeue(self, rid: int, dequeued_rid: int, place: int) -> None:
        """A message that was delivered remains one."""

    def record(self, header: RecordHeader, place: int, xid: bytes) -> None:
        """A record of a transaction, or one that was moved."""
        if header.kind is Kind.ENQUEUE and not header.flags & TRANSIENT:
            if xid:
                self._open.setdefault(xid, []).append((header.rid, place))
            else:
                self.enqueue(header.rid, place)
        elif header.kind is Kind.COMMIT:
            for each in self._open.pop(xid, ()):
                self.enqueue(*each)
        elif header.kind is Kind.ABORT:
            self._open.pop(xid, None)

    def damaged(self, damage: Damage) -> None:
        """Recovery has reported it."""


def history(store: OfflineStore, queue: RecoveredQueue, journal: Journal) -> Iterator[tuple[int, int]]:
    """Record id and log offset of each message, in the queue's order."""
    enqueues = _Enqueues()
    store.walk(journal, enqueues)
    for rid, place, state, _ in queue.outstanding():
        if state != PENDING:
            enqueues.enqueue(rid, place)
    by_rid = dict(zip(enqueues.rids, enqueues.places, strict=True))
    if journal.format is JournalFormat.VERSION_2:
        yield from sorted(by_rid.items())
    else:  # qpidd's queues deliver in the order of the journal
        yield from sorted(by_rid.items(), key=lambda each: each[1])
