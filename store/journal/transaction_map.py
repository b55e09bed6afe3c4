"""The transactions that a journal leaves open: xid → what was enqueued and dequeued under it.

A commit or an abort closes an xid; what is open at the end of the journal is for the transaction prepared list to
decide (formats/rhm/README.md, 5.3 and 6.2). Operations are kept in packed arrays: a transaction of a million
messages costs 25 bytes for each.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import compress
from typing import NamedTuple

from formats.rhm.records import MOVED


class Operation(NamedTuple):
    """One operation of a transaction.

    Attributes:
        rid: of an enqueue, its rid; of a dequeue, the rid of the enqueue that it removes.
        place: where the record stands in the journal's stream.
        flags: the record's flags.
        is_enqueue: an enqueue, or a dequeue.
    """

    rid: int
    place: int
    flags: int
    is_enqueue: bool


class Transaction:
    """The operations under one xid, in the order in which they were written."""

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
        """One more operation. A record that was moved (version 2) stands for its earlier copy, if that is here."""
        self._rids.append(rid)
        self._places.append(place)
        self._flags.append(flags)
        self._kinds.append(is_enqueue)
        if flags & MOVED:
            self._has_copies = True

    def _drop_earlier_copies(self) -> None:
        """Drop what was moved later. Done once, when asked: a giant transaction may be copied whole.

        Two records with one id of which the later was not moved are no copies, and both stay.
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
        """The open transaction with that xid, begun now if there was none."""
        transaction = self._open.get(xid)
        if transaction is None:
            transaction = self._open[xid] = Transaction(xid)
        return transaction

    def close(self, xid: bytes) -> Transaction | None:
        """Take a transaction out, since it was committed or aborted; None if it was not open."""
        return self._open.pop(xid, None)
