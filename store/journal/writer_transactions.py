"""The transactions that are open in a journal that is written."""

from __future__ import annotations

from dataclasses import dataclass, field


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
