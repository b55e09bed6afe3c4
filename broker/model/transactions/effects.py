"""The effects of a transaction on queues, from when its records are written until its outcome is known.

    published message    it has its place on the queue, but cannot be delivered          UNCOMMITTED
    accepted message     it keeps its place, and its consumer can no longer settle it    LEAVING

Then they are completed (published messages may be delivered, accepted ones are removed) or undone (the reverse). If the
outcome is unknown until the next start, messages that are stored stay as they are. Effects on a queue that was deleted
meanwhile are gone with it.
"""

from __future__ import annotations

from qstore.broker.model.queues.entry import ACQUIRED, AVAILABLE, Entry
from qstore.broker.model.queues.queue import Queue


class Effects:
    """The effects of one transaction.

    Attributes:
        published: for each queue the messages that it has put there.
        accepted: the messages that it removes from queues.
    """

    __slots__ = ("accepted", "published")

    def __init__(self) -> None:
        self.published: dict[Queue, list[Entry]] = {}
        self.accepted: list[tuple[Queue, Entry]] = []

    def complete(self, *, is_late: bool = False) -> None:
        """The transaction is committed; `is_late` if later messages may have been delivered already."""
        for queue, entries in self.published.items():
            if not queue.is_gone:
                queue.commit(entries)
                if is_late:
                    for entry in entries:
                        if entry.state == AVAILABLE:
                            queue.put_back(entry)
        for queue, entry in self.accepted:
            if not queue.is_gone:
                queue.counters.txn_dequeued(entry.message.size)
                queue.remove(entry)

    def undo(self, *, releases: bool) -> None:
        """The transaction has had no effect: accepted messages are available again, or only acquired again."""
        for queue, entries in self.published.items():
            for entry in entries:
                if not queue.is_gone:
                    queue.withdraw(entry)
        for queue, entry in self.accepted:
            if not queue.is_gone:
                entry.state = ACQUIRED
                if releases:
                    queue.release(entry, is_redelivered=True)

    def leave(self) -> None:
        """The outcome is unknown: undo only what is not stored."""
        self.published = {
            queue: [entry for entry in entries if not entry.rid] for queue, entries in self.published.items()
        }
        self.accepted = [(queue, entry) for queue, entry in self.accepted if not entry.rid]
        self.undo(releases=True)
