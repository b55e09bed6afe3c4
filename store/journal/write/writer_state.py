"""The content of a version-2 journal when its writer resumes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from qstore.store.journal.write.record_runs import rids_in
from qstore.store.journal.write.resting import RestingRecords


class OpenTransaction:
    """The operations of an open transaction in one journal: none yet.

    Args:
        xid: its id.

    Attributes:
        xid: as above.
        enqueues: runs of the messages that it would enqueue (`record_runs`).
        dequeues: message that it would dequeue -> record id of the dequeue.
        commit_decisions: in the transaction prepared list, those dequeues that decide to commit.
    """

    __slots__ = ("commit_decisions", "dequeues", "enqueues", "xid")

    def __init__(self, xid: bytes) -> None:
        self.xid = xid
        self.enqueues: list[int] = []
        self.dequeues: dict[int, int] = {}
        self.commit_decisions: set[int] = set()

    def enqueued(self) -> Iterator[int]:
        """Record ids of the messages that it would enqueue, ascending."""
        return rids_in(self.enqueues)


class WriterState(NamedTuple):
    """The content of a journal when its writer resumes it.

    Attributes:
        position: block of the endless stream where it ended; 0 for a new one.
        flush: the highest flush number found anywhere in it; 0 for a new one.
        last_flush: number of its last complete flush: lower, if later ones were torn, or left only file headers; 0 if
            it has no record but fillers.
        is_sealed: whether that was the seal of a clean close.
        salts: file, counted over all laps -> its salt.
        slots: file number -> the slot of its header in its sector.
        live: record id -> log offset and blocks, packed, of every live record in log order, those of open transactions
            and their dequeues included.
        transactions: xid -> the open transaction.
        wasted: number of files after the current one that a torn flush had entered.
        origin: the first file of the ring in the lap of the current one, counted over all laps.
        lap: the overwrite indicator of that lap.
        resting: live records that are not in `live`; None for none.
    """

    position: int
    flush: int
    last_flush: int
    is_sealed: bool
    salts: dict[int, int]
    slots: dict[int, int]
    live: dict[int, int]
    transactions: dict[bytes, OpenTransaction]
    wasted: int = 0
    origin: int = 0
    lap: int = 0
    resting: RestingRecords | None = None


def new_state() -> WriterState:
    """The state of a newly created journal."""
    return WriterState(0, 0, 0, False, {}, {}, {}, {})
