"""Copies what recovery keeps of a journal, of any format, into a journal that is built: the one way of all who do so.

    messages    in the order that recovery has them in; one that an open transaction enqueues has its place among them
    removals    what open transactions dequeue, at the end

Open are the transactions in doubt; or, where nothing was resolved yet, all that the walk found open. A removal is kept
if its message is. If several transactions have one, earlier ones were dropped without a record of that, and the latest
counts; `resumption` has the same rule.

Whether records keep their ids is the caller's to say. In version 2 the order of the ids is that of the queue; in
version 1 a message has one id on all of its queues, and the order is that of the journal.

What is copied gets a checksum of its own, so it is verified once more where the old journal has one; and a message is
left out where the system cannot read a part of it: zeros would pass for it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias

from formats.checksum import extend_crc32c
from formats.rhm.errors import RhmError
from formats.rhm.headers import data_crc
from formats.rhm.records import COMMIT_DECISION, MAX_HEADER_SIZE, decode_header
from store.builders.journal_build import JournalBuild
from store.damage import Damage
from store.damage_kinds import DamageKind
from store.journal.enqueue_map import LIVE, PENDING
from store.journal.format import JournalFormat
from store.journal.journal import Journal
from store.journal.recovery import JournalRecovery, OutstandingRecord
from store.journal.transaction_map import Operation
from store.recovery.prepared import DISTRIBUTED

#: Called with damage that costs a message, and where its record begins and ends in the journal's stream.
LeftOut: TypeAlias = Callable[[Damage, int, int], None]


class NewRecordIds(Protocol):
    """Where new record ids come from."""

    def take(self) -> int:
        """A record id that was never used."""


class JournalCopy:
    """The copy of what recovery keeps of one journal.

    Args:
        journal: the journal.
        recovery: what recovery keeps of it.
        left_out: is told of messages that cannot be copied.
        message_rids: gives messages their record ids; None: they keep theirs.
        removal_rids: gives removals theirs; None: they keep theirs, and messages do.
        is_prepared_list: whether a decision whose prepare record is lost gets one again: it was a promise.

    Attributes:
        messages: how many were copied by `into`.
        in_doubt: how many of them wait for a transaction.
        left_out: how many could not be copied.
    """

    def __init__(
        self,
        journal: Journal,
        recovery: JournalRecovery,
        left_out: LeftOut,
        *,
        message_rids: NewRecordIds | None = None,
        removal_rids: NewRecordIds | None = None,
        is_prepared_list: bool = False,
    ) -> None:
        self._journal, self._recovery, self._tell_left_out = journal, recovery, left_out
        self._message_rids, self._removal_rids = message_rids, removal_rids
        self._is_prepared_list = is_prepared_list
        self._is_verified = journal.format is JournalFormat.VERSION_2
        self._begin()

    @property
    def transactions(self) -> int:
        """How many transactions are open in what was copied."""
        return len(self._xids)

    def into(self, build: JournalBuild) -> None:
        """Copy everything. Raises as `JournalBuild.record` does, or OSError if the old journal cannot be read."""
        self._begin()
        entries = self._entries()
        self._find_targets()
        journal, stream, targets = self._journal, self._journal.stream, self._targets
        is_verified, take = self._is_verified, None if self._message_rids is None else self._message_rids.take
        for rid, place, state, _ in entries:
            data = journal.small_data(place) if state == LIVE and rid not in targets else None
            if data is not None and not stream.has_unreadable:
                crc = extend_crc32c(0, data)
                if not is_verified or journal.verifies(place, crc):
                    build.enqueue(rid if take is None else take(), data, crc)
                    self.messages += 1
                    continue
            self._copy(build, rid, place)
        for transaction in self._recovery.transactions:
            for operation in transaction:
                if not operation.is_enqueue and targets.get(operation.rid) == operation.place:
                    self._copy_removal(build, transaction.xid, operation)

    def _begin(self) -> None:
        self.messages = self.in_doubt = self.left_out = 0
        self._enqueuers: dict[int, bytes] = {}  # message -> the open transaction that enqueues it
        self._targets: dict[int, int] = {}  # message -> place of the removal that counts
        self._copied: dict[int, int] = {}  # such a message -> its new record id
        self._xids: set[bytes] = set()
        self._used: set[int] = set()  # by removals that keep their ids

    def _entries(self) -> Iterable[OutstandingRecord]:
        """The messages in order, those of open transactions included."""
        found, own = self._recovery.messages, []
        for transaction in self._recovery.transactions:
            for rid, place, _, is_enqueue in transaction:
                if not is_enqueue:
                    continue
                known = found.get(rid)
                if known is None and rid not in self._enqueuers:
                    own.append((rid, place, PENDING, transaction.xid))
                elif known is None or known.place != place:
                    continue  # only a damaged journal has two messages with one id
                self._enqueuers[rid] = transaction.xid
        entries = self._recovery.outstanding(self._journal.format)
        return heapq.merge(entries, sorted(own)) if own else entries

    def _find_targets(self) -> None:
        for transaction in self._recovery.transactions:
            for rid, place, _, is_enqueue in transaction:
                if not is_enqueue and self._enqueuers.get(rid, transaction.xid) == transaction.xid:
                    self._targets[rid] = place

    def _copy(self, build: JournalBuild, rid: int, place: int) -> None:
        """Copy one message, whatever it is like, or leave it out."""
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
            self.left_out += 1
            self._tell_left_out(Damage(file.path, offset, rid, problem), place, at + size)
            return
        new = rid if self._message_rids is None else self._message_rids.take()
        self._message(build, new, parts, self._enqueuers.get(rid, b""))
        if rid in self._targets:
            self._copied[rid] = new
        self.in_doubt += rid in self._targets or rid in self._enqueuers

    def _message(self, build: JournalBuild, rid: int, parts: list[bytes], xid: bytes) -> None:
        build.message(rid, parts, xid)
        self.messages += 1
        if xid:
            self._xids.add(xid)

    def _copy_removal(self, build: JournalBuild, xid: bytes, operation: Operation) -> None:
        target = self._copied.get(operation.rid)
        if target is None and not self._is_prepared_list:
            return
        try:
            rid = self._removal_rid(operation)
        except RhmError:
            return  # it cannot be read a second time
        if target is None:
            target = operation.rid
            self._used.add(target)
            self._message(build, target, [DISTRIBUTED], xid)
        if rid is not None:
            build.removal(xid, rid, target, commit_decision=bool(operation.flags & COMMIT_DECISION))
            self._xids.add(xid)

    def _removal_rid(self, operation: Operation) -> int | None:
        """The record id of a removal; None if something else has the one that it would keep, in a damaged journal."""
        if self._removal_rids is not None:
            return self._removal_rids.take()
        rid = decode_header(self._journal.stream.read(operation.place, MAX_HEADER_SIZE)).rid
        if rid in self._used or rid in self._enqueuers or self._recovery.messages.get(rid) is not None:
            return None
        self._used.add(rid)
        return rid
