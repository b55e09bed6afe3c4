"""Enqueued records and open transactions, by the rules of the original.

    enqueue                   goes into the map; if it already is in the map: an error
    enqueue, transactional    is pending in its transaction
    dequeue                   removes the record from the map; not in the map: a warning; locked: an error
    dequeue, transactional    locks the record, in the map or pending in any transaction; locked already: an
                              error; not found: ignored. Is pending in its transaction
    commit                    applies the pending operations, in order: enqueues go into the map and stay locked if they
                              are; dequeues remove locked records (not locked: an error, not found: a warning)
    abort                     discards the pending operations; its dequeues unlock: not locked, or not found: an error
    commit, abort             of an unknown transaction: a warning

Both maps hold places, not records: 18 bytes for each that remains.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

from qstore.formats.rhm.records import Kind
from qstore.store.journal.enqueue_map import LIVE, LOCKED, PENDING, EnqueueMap
from qstore.tools.store_chk.errors import CheckError
from qstore.tools.store_chk.text import Read, xid_text
from qstore.tools.store_chk.walk import Record

_WHOLE_XID: Final = 128  # bytes: a transaction id up to that size is stored as a whole
_XID_ENDS: Final = 1 << 15  # bytes at either end that identify a larger one: a forged one may have gigabytes

ENQUEUE: Final = 1  # marks an enqueue among the records of a transaction

#: The size of a transaction id, and itself or a digest of it.
Xid: TypeAlias = tuple[int, bytes]


class OpenTransaction(NamedTuple):
    """The pending operations of one transaction, in journal order: three arrays of the same length.

    Attributes:
        places: where the records are.
        rids: of an enqueue, its own; of a dequeue, the one that it removes.
        marks: ENQUEUE, combined with other properties of a record.
    """

    places: array[int]
    rids: array[int]
    marks: bytearray

    def operations(self) -> Iterator[tuple[int, int, int]]:
        """Place, rid and marks of each record."""
        return zip(*self, strict=True)


class Transactions(dict[Xid, OpenTransaction]):
    """The open transactions, in the order of their first records."""

    def wait(self, xid: Xid, place: int, rid: int, marks: int) -> None:
        """Add a pending operation to its transaction."""
        transaction = self.get(xid)
        if transaction is None:
            transaction = self[xid] = OpenTransaction(array("Q"), array("Q"), bytearray())
        transaction.places.append(place)
        transaction.rids.append(rid)
        transaction.marks.append(marks)


def xid_key(read: Read, size: int) -> Xid:
    """Identifies a transaction id in few bytes, however large it is."""
    if size <= _WHOLE_XID:
        return size, read(0, size)
    head = read(0, min(size, _XID_ENDS))
    return size, hashlib.sha256(head + read(max(size - _XID_ENDS, 0), min(size, _XID_ENDS))).digest()


class Maps:
    """The state of a journal after the applied records.

    Attributes:
        enqueued: rid → place of the records that were enqueued and not dequeued, LIVE or LOCKED.
        transactions: the open ones, in the order of their first records.
    """

    def __init__(self) -> None:
        self.enqueued = EnqueueMap()
        self.transactions = Transactions()
        self._waiting = EnqueueMap()  # transactional enqueues, PENDING or LOCKED

    def apply(self, record: Record, xid: Read) -> str:
        """Apply a record, whose transaction id `xid` reads; returns a warning, empty for none.

        Raises:
            CheckError: the record contradicts earlier ones.
        """
        header = record.header
        match header.kind:
            case Kind.ENQUEUE if header.xid_size:
                self.transactions.wait(xid_key(xid, header.xid_size), record.place, header.rid, ENQUEUE)
                self._waiting.add(header.rid, record.place, PENDING)
            case Kind.ENQUEUE:
                self._enqueue(header.rid, record.place, LIVE)
            case Kind.DEQUEUE if header.xid_size:
                self._lock(header.dequeued_rid)
                self.transactions.wait(xid_key(xid, header.xid_size), record.place, header.dequeued_rid, 0)
            case Kind.DEQUEUE:
                return self._dequeue(header.dequeued_rid)
            case Kind.COMMIT | Kind.ABORT:
                transaction = self.transactions.pop(xid_key(xid, header.xid_size), None)
                if transaction is None:
                    return f"WARNING: {xid_text(xid, header.xid_size)} not found in transaction map"
                return self._commit(transaction) if header.kind is Kind.COMMIT else self._abort(transaction)
        return ""

    def _enqueue(self, rid: int, place: int, state: int) -> None:
        if self.enqueued.get(rid) is not None:
            raise CheckError(f"Adding duplicate record to EnqMap: rid=0x{rid:x}")
        self.enqueued.add(rid, place, state)

    def _dequeue(self, rid: int) -> str:
        entry = self.enqueued.get(rid)
        if entry is None:
            return f"ERROR: Deleting non-existent rid from EnqMap: rid=0x{rid:x}"
        if entry.state == LOCKED:
            raise CheckError(f"Deleting locked record from EnqMap: rid=0x{rid:x}")
        self.enqueued.remove(rid)
        return ""

    def _lock(self, rid: int) -> None:
        entries = self.enqueued if self.enqueued.get(rid) is not None else self._waiting
        entry = entries.get(rid)
        if entry is None:
            return
        if entry.state == LOCKED:
            raise CheckError(f"Locking record which is already locked in EnqMap: rid=0x{rid:x}")
        entries.set_state(rid, LOCKED)

    def _is_locked(self, rid: int) -> bool:
        """Whether the record is in the map. Raises CheckError if it is and is not locked."""
        entry = self.enqueued.get(rid)
        if entry is None:
            return False
        if entry.state != LOCKED:
            raise CheckError(f"Unlocking record which is not locked in EnqMap: rid=0x{rid:x}")
        return True

    def _commit(self, transaction: OpenTransaction) -> str:
        missing = []
        for place, rid, is_enqueue in transaction.operations():
            if is_enqueue:
                entry = self._waiting.get(rid)
                self._waiting.remove(rid)
                self._enqueue(rid, place, LOCKED if entry is not None and entry.state == LOCKED else LIVE)
            elif self._is_locked(rid):
                self.enqueued.remove(rid)
            else:
                missing.append(f"0x{rid:x}")
        return f"WARNING: transactional dequeues not found in enqueue map; rids={missing}" if missing else ""

    def _abort(self, transaction: OpenTransaction) -> str:
        own = {rid for _, rid, is_enqueue in transaction.operations() if is_enqueue}
        for _, rid, is_enqueue in transaction.operations():
            if is_enqueue:
                self._waiting.remove(rid)
            elif self._is_locked(rid):
                self.enqueued.set_state(rid, LIVE)
            elif rid not in own:
                raise CheckError(f"Operation on non-existent record: operation=unlock; rid=0x{rid:x}")
        return ""
