"""Enqueued records, open transactions, and record counts, by the rules of the original.

    transient enqueue         is counted, and otherwise ignored, with a transaction id or without
    enqueue                   goes into the map of enqueued records; if it already is in the map: an error
    enqueue, transactional    is pending in its transaction
    dequeue                   removes the record from the map, locked or not; not in the map: a warning
    dequeue, transactional    is pending in its transaction, and locks the record; not in the map: a warning, except in
                              the prepared list, where that is normal
    commit                    applies the pending operations, in order
    abort                     discards the pending operations
    commit, abort             of an unknown transaction: a warning

A file's number of enqueued records includes pending ones. Both maps hold places, not records: 18 bytes for each that
remains.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from qstore.formats.qls.records import RecordHeader
from qstore.formats.rhm.records import COMMIT_DECISION, TRANSIENT, Kind
from qstore.store.journal.enqueue_map import EnqueueMap
from qstore.tools.store_chk.maps import ENQUEUE, Transactions, Xid, xid_key
from qstore.tools.store_chk.text import Read

# Properties of each operation of a transaction, in addition to its place, rid and type.
WARNED: Final = 2  # its record was not in the map
DECIDED_COMMIT: Final = 4  # a dequeue in the prepared list: the decision is commit


@dataclass(slots=True)
class Counts:
    """Number of records of each kind.

    Attributes:
        records: all, including a torn one at the end.
        transient, fillers: of these kinds.
        enqueues, dequeues: transactional or not, without the transient ones.
        transactional_enqueues, transactional_dequeues: of these, with a transaction id.
        commits, aborts: ends of transactions.
    """

    records: int = 0
    transient: int = 0
    fillers: int = 0
    enqueues: int = 0
    dequeues: int = 0
    transactional_enqueues: int = 0
    transactional_dequeues: int = 0
    commits: int = 0
    aborts: int = 0

    @property
    def transactional(self) -> int:
        """Records of transactions: operations and ends."""
        return self.operations + self.commits + self.aborts

    @property
    def operations(self) -> int:
        """Enqueues and dequeues of transactions."""
        return self.transactional_enqueues + self.transactional_dequeues


class Maps:
    """The state of a journal after the applied records.

    Args:
        files: number of the journal's files.
        file_index: returns the index of the file that contains a place.
        is_prepared_list: whether the journal is the transaction prepared list.

    Attributes:
        counts: of the records.
        enqueued: rid → place of the records that were enqueued and not dequeued.
        in_file: number of enqueued and pending records that begin in each file.
        transactions: the open ones, in the order of their first records.
    """

    def __init__(self, files: int, file_index: Callable[[int], int], *, is_prepared_list: bool = False) -> None:
        self.counts = Counts()
        self.enqueued = EnqueueMap()
        self.in_file = array("q", bytes(8 * files))
        self.transactions = Transactions()
        self._file_index = file_index
        self._is_prepared_list = is_prepared_list

    def locked(self) -> set[int]:
        """The rids of the records that open transactions dequeue."""
        return {
            rid
            for transaction in self.transactions.values()
            for _, rid, marks in transaction.operations()
            if not marks & ENQUEUE
        }

    def apply(self, header: RecordHeader, place: int, xid: Read) -> bool:
        """Apply a valid record at `place`, whose transaction id `xid` reads; False if it contradicts earlier ones."""
        counts = self.counts
        match header.kind:
            case Kind.ENQUEUE:
                if header.flags & TRANSIENT:
                    counts.transient += 1
                    return True
                counts.enqueues += 1
                self.in_file[self._file_index(place)] += 1
                if not header.xid_size:
                    self._enqueue(header.rid, place)
                    return True
                counts.transactional_enqueues += 1
                self.transactions.wait(xid_key(xid, header.xid_size), place, header.rid, ENQUEUE)
                return True
            case Kind.DEQUEUE:
                counts.dequeues += 1
                if not header.xid_size:
                    return self.dequeue(header.dequeued_rid)
                counts.transactional_dequeues += 1
                found = self._is_prepared_list or self.enqueued.get(header.dequeued_rid) is not None
                decision = DECIDED_COMMIT if header.flags & COMMIT_DECISION else 0
                marks = decision | (0 if found else WARNED)
                self.transactions.wait(xid_key(xid, header.xid_size), place, header.dequeued_rid, marks)
                return found
            case Kind.COMMIT:
                counts.commits += 1
                return self.commit(xid_key(xid, header.xid_size))
            case _:
                counts.aborts += 1
                return self.abort(xid_key(xid, header.xid_size))

    def commit(self, xid: Xid) -> bool:
        """Commit a transaction; False if it is not open."""
        transaction = self.transactions.pop(xid, None)
        if transaction is None:
            return False
        for place, rid, marks in transaction.operations():
            if marks & ENQUEUE:
                self._enqueue(rid, place)
            else:
                self.dequeue(rid)
        return True

    def abort(self, xid: Xid) -> bool:
        """Abort a transaction; False if it is not open."""
        transaction = self.transactions.pop(xid, None)
        if transaction is None:
            return False
        for place, _, marks in transaction.operations():
            if marks & ENQUEUE:
                self.in_file[self._file_index(place)] -= 1
        return True

    def dequeue(self, rid: int) -> bool:
        """Remove an enqueued record from the map; False if it is not in the map."""
        entry = self.enqueued.get(rid)
        if entry is None:
            return False
        self.enqueued.remove(rid)
        self.in_file[self._file_index(entry.place)] -= 1
        return True

    def _enqueue(self, rid: int, place: int) -> None:
        before = self.enqueued.duplicate_count
        self.enqueued.add(rid, place)
        if self.enqueued.duplicate_count != before:  # the first one wins
            self.in_file[self._file_index(place)] -= 1


def decision_of(marks: Sequence[int]) -> bool | None:
    """The decision in the prepared list about a transaction with these operations; None if there is none."""
    dequeues = [mark for mark in marks if not mark & ENQUEUE]
    return all(mark & DECIDED_COMMIT for mark in dequeues) if dequeues else None
