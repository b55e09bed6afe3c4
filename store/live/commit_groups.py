"""Local transactions over the same journals that share their flushes: in the store they are one transaction.

Each appends its records under the xid of the group that is open for its journals. The group stays open as long as the
write batches in which its first records are: so all its records are in one flush of each journal, and the syncs that
the first one waits for are those of all. Then one record in the prepared list commits all of them, and one in each
journal says so; a crash before leaves none of them.
"""

from __future__ import annotations

from collections.abc import Iterable

from qstore.store.live.queue_journal import Done, QueueJournal


class CommitGroup:
    """Transactions with one xid.

    Args:
        xid: theirs.
        journals: those of each of them; their records come next.

    Attributes:
        xid, journals: as above.
        waiting: for each of them, what is called when its outcome is known.
    """

    __slots__ = ("_batches", "journals", "waiting", "xid")

    def __init__(self, xid: bytes, journals: list[QueueJournal]) -> None:
        self.xid, self.journals = xid, journals
        self.waiting: list[Done] = []
        self._batches = [journal.writer.batch_number for journal in journals]

    @property
    def is_open(self) -> bool:
        """Whether the records of one more transaction would be in the same flushes."""
        return self._batches == [journal.writer.batch_number for journal in self.journals]


class CommitGroups:
    """The group of each set of journals to which transactions may be added."""

    __slots__ = ("_groups",)

    def __init__(self) -> None:
        self._groups: dict[frozenset[QueueJournal], CommitGroup] = {}

    def open(self, xid: bytes, journals: Iterable[QueueJournal]) -> CommitGroup:
        """The group for a transaction over these journals, which is appended next: the open one, or a new one."""
        key = frozenset(journals)
        group = self._groups.get(key)
        if group is None or not group.is_open:
            group = self._groups[key] = CommitGroup(xid, list(key))
        return group

    def close(self, group: CommitGroup) -> None:
        """The syncs of a group are over."""
        key = frozenset(group.journals)
        if self._groups.get(key) is group:
            del self._groups[key]
