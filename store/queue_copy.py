"""Copies a queue of a store of version 1 into a journal of version 2: messages in order, and what is in doubt.

Each record gets a new record id. The order in which recovery has the messages becomes that of the ids; a message that a
transaction in doubt would enqueue has its place among them. What such a transaction would dequeue follows at the end.

Version 1 has no checksums, so a message is left out where the system cannot read a part of it: zeros would pass for it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final

from store.damage import Damage
from store.disk import Disk
from store.journal.enqueue_map import LIVE, LOCKED
from store.journal.journal import Journal
from store.journal.recovery import JournalRecovery
from store.journal_build import JournalBuild, JournalContent
from store.offline import RecoveredQueue
from store.rids import RecordIds

_PIECE: Final = 1 << 20  # bytes read at a time


class QueueCopy:
    """The copy of what recovery keeps of one queue's journal.

    Args:
        disk: where the journal is.
        queue: the queue.
        journal: its journal.
        recovery: what recovery keeps of it, resolved.
        rids: gives record ids.
        found: is told of damage.

    Attributes:
        messages: how many were copied by `into`.
    """

    def __init__(
        self,
        disk: Disk,
        queue: RecoveredQueue,
        journal: Journal,
        recovery: JournalRecovery,
        rids: RecordIds,
        found: Callable[[Damage], None],
    ) -> None:
        self.messages = 0
        self._disk = disk
        self._has_bad_sectors = bool(recovery.damage)  # perhaps
        self._queue, self._journal, self._rids, self._found = queue, journal, rids, found
        # What stays open are the transactions in doubt.
        self._enqueued_by = {
            operation.rid: transaction.xid
            for transaction in recovery.transactions
            for operation in transaction
            if operation.is_enqueue
        }

    def _enqueuer(self, rid: int, state: int) -> bytes:
        """The transaction in doubt that would enqueue a message; empty if it is enqueued."""
        return b"" if state == LIVE else self._enqueued_by.get(rid, b"")

    def content(self) -> JournalContent:
        """How much there is."""
        content = JournalContent()
        xids = set()
        for rid, place, state, xid in self._queue.outstanding():
            content.message(self._journal.data_of_enqueue(place)[1], len(self._enqueuer(rid, state)))
            if state == LOCKED and xid is not None:
                content.removal(len(xid))
            xids.add(xid)
        for xid in xids - {None}:
            content.transaction(len(xid or b""))
        return content

    def into(self, build: JournalBuild) -> None:
        """Copy everything: the messages in order, then what is to remove some of them."""
        journal, self.messages = self._journal, 0
        locked: dict[bytes, array[int]] = {}
        for rid, place, state, xid in self._queue.outstanding():
            at, size = journal.data_of_enqueue(place)
            parts = list(journal.data_chunks(at, size))
            for damage in journal.stream.unreadable():
                self._has_bad_sectors = True
                self._found(damage._replace(consequence="messages in it are left out"))
            if self._has_bad_sectors and not self._is_readable(rid, at, size):
                continue
            new = self._rids.take()
            build.message(new, parts, self._enqueuer(rid, state))
            self.messages += 1
            if state == LOCKED and xid is not None:
                locked.setdefault(xid, array("Q")).append(new)
        for xid, targets in locked.items():
            for target in targets:
                build.removal(xid, self._rids.take(), target)

    def _is_readable(self, rid: int, place: int, size: int) -> bool:
        """Whether the system reads every byte of a message. What else it cannot read nearby is no matter."""
        stream = self._journal.stream
        end = place + size
        while place < end:
            file, offset = stream.locate(place)
            count = min(end - place, stream.data_size - place % stream.data_size, _PIECE)
            try:
                opened = self._disk.open(file.path)
                try:
                    opened.read(offset, count)
                finally:
                    opened.close()
            except OSError as error:
                what = f"a part of the message cannot be read: {error.strerror}"
                self._found(Damage(file.path, offset, rid, what, "the message is left out"))
                return False
            place += count
        return True
