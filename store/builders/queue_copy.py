"""Copies a queue of any store into a new journal: messages in order, and what is in doubt.

In a journal of version 2 each record gets a new record id. The order in which recovery has the messages becomes that of
the ids; a message that a transaction in doubt would enqueue has its place among them. What such a transaction would
dequeue follows at the end. In one of version 1, whose order is that of its records, messages may keep their ids.

What is copied gets a checksum of its own, so it is verified once more where the old journal has one; and a message is
left out where the system cannot read a part of it: zeros would pass for it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from formats.checksum import extend_crc32c
from formats.rhm.headers import data_crc
from store.damage import Damage
from store.damage_kinds import DamageKind
from store.journal.enqueue_map import LIVE, LOCKED
from store.journal.format import JournalFormat
from store.journal.journal import Journal
from store.journal.recovery import JournalRecovery

#: Called with damage that costs a message, and where its record begins and ends in the journal's stream.
LeftOut: TypeAlias = Callable[[Damage, int, int], None]


class CopyTarget(Protocol):
    """A journal that is built."""

    def enqueue(self, rid: int, data: bytes, crc: int) -> None:
        """A message outside of any transaction; `crc` is the `data_crc` of it."""

    def message(self, rid: int, parts: Sequence[bytes], xid: bytes = b"") -> None:
        """A message, enqueued by the open transaction `xid` if there is one."""

    def removal(self, xid: bytes, rid: int, target: int) -> None:
        """The dequeue of the message `target`, which is there, by the open transaction `xid`."""


class NewRecordIds(Protocol):
    """Where new record ids come from."""

    def take(self) -> int:
        """A record id that was never used."""


def _enqueuers(recovery: JournalRecovery) -> dict[int, bytes]:
    """Record id -> the transaction in doubt that would enqueue the message."""
    return {
        operation.rid: transaction.xid
        for transaction in recovery.transactions
        for operation in transaction
        if operation.is_enqueue
    }


class QueueCopy:
    """The copy of what recovery keeps of one journal.

    Args:
        journal: the journal.
        recovery: what recovery keeps of it, resolved.
        rids: gives record ids.
        left_out: is told of messages that cannot be copied.
        keep_rids: whether messages keep their record ids.

    Attributes:
        messages: how many were copied by `into`.
        in_doubt: how many of them wait for a transaction.
    """

    def __init__(
        self,
        journal: Journal,
        recovery: JournalRecovery,
        rids: NewRecordIds,
        left_out: LeftOut,
        *,
        keep_rids: bool = False,
    ) -> None:
        self.messages = self.in_doubt = 0
        self._keep_rids = keep_rids
        self._journal, self._recovery, self._rids, self._left_out = journal, recovery, rids, left_out
        self._is_verified = journal.format is JournalFormat.VERSION_2
        # What stays open are the transactions in doubt.
        self._enqueued_by = _enqueuers(recovery)

    def into(self, build: CopyTarget) -> None:
        """Copy everything: the messages in order, then what is to remove some of them."""
        self.messages = self.in_doubt = 0
        journal, stream, take = self._journal, self._journal.stream, self._rids.take
        is_verified, keep_rids = self._is_verified, self._keep_rids
        locked: dict[bytes, array[int]] = {}
        for rid, place, state, xid in self._recovery.outstanding(journal.format):
            data = journal.small_data(place) if state == LIVE else None
            if data is not None and not stream.has_unreadable:
                crc = extend_crc32c(0, data)
                if not is_verified or journal.verifies(place, crc):
                    build.enqueue(rid if keep_rids else take(), data, crc)
                    self.messages += 1
                    continue
            new = self._copy(build, rid, place, b"" if state == LIVE else self._enqueued_by.get(rid, b""))
            self.in_doubt += new > 0 and xid is not None
            if new and state == LOCKED and xid is not None:
                locked.setdefault(xid, array("Q")).append(new)
        for xid, targets in locked.items():
            for target in targets:
                build.removal(xid, take(), target)

    def _copy(self, build: CopyTarget, rid: int, place: int, xid: bytes) -> int:
        """Copy one message, whatever it is like. Returns its new record id; 0 if it was left out."""
        journal, stream = self._journal, self._journal.stream
        at, size = journal.data_of_enqueue(place)
        parts = list(journal.data_chunks(at, size))
        problem = None
        if stream.has_unreadable and not stream.is_readable(place, at + size - place):
            problem = DamageKind.MESSAGE_UNREADABLE
        elif self._is_verified and not journal.verifies(place, data_crc(parts)):
            problem = DamageKind.MESSAGE_CHANGED
        if problem is not None:
            file, offset = stream.locate(place)
            self._left_out(Damage(file.path, offset, rid, problem), place, at + size)
            return 0
        new = rid if self._keep_rids else self._rids.take()
        build.message(new, parts, xid)
        self.messages += 1
        return new
