"""What a version-2 journal holds when its writer takes it up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(slots=True)
class OpenTransaction:
    """What an open transaction did in one journal.

    Attributes:
        xid: its id.
        enqueues: record ids of the messages that it would enqueue.
        dequeues: message that it would dequeue -> record id of the dequeue.
        commit_decisions: in the transaction prepared list, those dequeues that say that it commits.
    """

    xid: bytes
    enqueues: dict[int, None] = field(default_factory=dict)
    dequeues: dict[int, int] = field(default_factory=dict)
    commit_decisions: set[int] = field(default_factory=set)


class WriterState(NamedTuple):
    """What a journal holds when it is taken up.

    Attributes:
        position: block of the endless stream where it ended; 0 for a new one.
        flush: the highest number of a flush that anything is left of; 0 for a new one.
        last_flush: number of the flush of its last record: lower, if of later ones only file headers are left.
        is_sealed: whether that was the seal of a clean close.
        salts: file, counted over all laps -> its salt.
        slots: number of a file -> the place that its header has in its sector.
        live: record id -> place and blocks, packed, of every live record in order of place, those of open transactions
            and their dequeues included.
        transactions: xid -> the open transaction.
    """

    position: int
    flush: int
    last_flush: int
    is_sealed: bool
    salts: dict[int, int]
    slots: dict[int, int]
    live: dict[int, int]
    transactions: dict[bytes, OpenTransaction]


def new_state() -> WriterState:
    """That of a journal that was just made."""
    return WriterState(0, 0, 0, False, {}, {}, {}, {})
