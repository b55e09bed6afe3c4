"""The transactions that a journal leaves open: xid → the enqueues and dequeues under it.

A commit or an abort closes an xid; those open at the end of the journal are resolved through the transaction prepared
list (formats/rhm/README.md, 5.3 and 6.2). Operations are stored in packed arrays: each message of a large transaction
costs 25 bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import compress
from typing import NamedTuple

from qstore.formats.rhm.records import MOVED


class Operation(NamedTuple):
    """One operation of a transaction.

    Attributes:
        rid: of an enqueue, its rid; of a dequeue, the rid of the enqueue that it removes.
        place: log offset of the record.
        flags: the record's flags.
        is_enqueue: whether it is an enqueue, and not a dequeue.
    """

    rid: int
    place: int
    flags: int
    is_enqueue: bool


class Transaction:
    """The operations under one xid, in order of writing."""

    __slots__ = ("_flags", "_has_copies", "_kinds", "_places", "_rids", "xid")

    def __init__(self, xid: bytes) -> None:
        self.xid = xid
        self._rids = array("Q")
        self._places = array("Q")
        self._flags = array("H")
        self._kinds = bytearray()
        self._has_copies = False

    def __iter__(self) -> Iterator[Operation]:
        self._drop_earlier_copies()
        for rid, place, flags, kind in zip(self._rids, self._places, self._flags, self._kinds, strict=True):
            yield Operation(rid, place, flags, bool(kind))

    @property
    def enqueues(self) -> int:
        """Number of enqueues."""
        self._drop_earlier_copies()
        return self._kinds.count(1)

    @property
    def dequeues(self) -> int:
        """Number of dequeues."""
        self._drop_earlier_copies()
        return self._kinds.count(0)

    def append(self, rid: int, place: int, flags: int, *, is_enqueue: bool) -> None:
        """Add an operation. A record that was moved (version 2) replaces its earlier copy, if that is here."""
        self._rids.append(rid)
        self._places.append(place)
        self._flags.append(flags)
        self._kinds.append(is_enqueue)
        if flags & MOVED:
            self._has_copies = True

    def _drop_earlier_copies(self) -> None:
        """Drop the earlier copies of moved records. Done once, on demand: a huge transaction may be copied as a whole.

        Two records with one id of which the later was not moved are not copies, and both are kept.
        """
        if not self._has_copies:
            return
        self._has_copies = False
        entries = enumerate(zip(self._rids, self._kinds, self._flags, strict=True))
        last = {(rid, kind): index for index, (rid, kind, flags) in entries if flags & MOVED}
        keys = enumerate(zip(self._rids, self._kinds, strict=True))
        keep = bytearray(index >= last.get(key, 0) for index, key in keys)
        if all(keep):
            return
        self._rids = array("Q", compress(self._rids, keep))
        self._places = array("Q", compress(self._places, keep))
        self._flags = array("H", compress(self._flags, keep))
        self._kinds = bytearray(compress(self._kinds, keep))


class TransactionMap:
    """The open transactions of one journal, in the order in which they began."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: dict[bytes, Transaction] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Transaction]:
        return iter(self._open.values())

    def __contains__(self, xid: object) -> bool:
        return xid in self._open

    def of(self, xid: bytes) -> Transaction:
        """The open transaction with that xid, which begins now if there was none."""
        transaction = self._open.get(xid)
        if transaction is None:
            transaction = self._open[xid] = Transaction(xid)
        return transaction

    def close(self, xid: bytes) -> Transaction | None:
        """Remove and return a transaction that was committed or aborted; None if it was not open."""
        return self._open.pop(xid, None)
