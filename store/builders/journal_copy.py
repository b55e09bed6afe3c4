"""Copies the content that recovery keeps of a journal, of any format, into a journal being built: used by all copying.

    messages    in the order of recovery; one that an open transaction enqueues has its place among them
    removals    the dequeues of open transactions, at the end

Open are the transactions in doubt; or, if nothing was resolved yet, all that the walk found open. A removal is kept if
its message is. If several transactions remove the same message, earlier ones were dropped without a record, and the
latest counts; `version_2_writer.state_of` has the same rule.

The caller decides whether records keep their ids. In version 2 the order of the ids is that of the queue; in version 1
a message has one id on all of its queues, and the order is that of the journal.

Copies get a new checksum, so each message is verified once more if the old journal has checksums. A message is omitted
if the system cannot read a part of it, since zeros would be copied in its place.

`rebuild` copies the readable content of a damaged journal of version 2, so that the queue can be used again. Record ids
are kept, and with them the order. The damaged journal itself is only read; the caller sets it aside.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias

from qstore.formats.checksum import extend_crc32c
from qstore.formats.errors import RhmError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.headers import data_crc
from qstore.formats.rhm.jinf import TPL_BASE_NAME, JournalInfo
from qstore.formats.rhm.records import COMMIT_DECISION, MAX_HEADER_SIZE, decode_header
from qstore.store.builders.journal_build import JournalBuild, build_journal
from qstore.store.damage import Damage, DamageKind, Effect
from qstore.store.environment import Environment
from qstore.store.journal.files import JournalFormat
from qstore.store.journal.journal import Journal
from qstore.store.journal.recovery import LIVE, PENDING, JournalRecovery, Operation, OutstandingRecord
from qstore.store.recovery.journal_content import content_of
from qstore.store.recovery.prepared import DISTRIBUTED

#: Called with the damage that loses a message, and the begin and end of its record in the journal's stream.
LeftOut: TypeAlias = Callable[[Damage, int, int], None]


class NewRecordIds(Protocol):
    """A source of new record ids."""

    def take(self) -> int:
        """A record id that was never used before."""


class JournalCopy:
    """A copy of the content that recovery keeps of one journal.

    Args:
        journal: the journal.
        recovery: the content that recovery keeps.
        left_out: called for each message that cannot be copied.
        message_rids: new record ids for messages; None: messages keep theirs.
        removal_rids: new record ids for removals; None: removals keep theirs, and so do messages.
        is_prepared_list: whether a decision whose prepare record is lost gets a new one, since it was promised.
        marked: record ids that other objects of the store refer to.

    Attributes:
        renamed: those of them whose messages were copied -> their new record ids.
        messages: number of messages copied by `into`.
        in_doubt: number of these that wait for a transaction.
        left_out: number of messages that could not be copied.
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
        marked: frozenset[int] = frozenset(),
    ) -> None:
        self._marked = marked
        self._journal, self._recovery, self._report_left_out = journal, recovery, left_out
        self._message_rids, self._removal_rids = message_rids, removal_rids
        self._is_prepared_list = is_prepared_list
        self._is_verified = journal.format is JournalFormat.VERSION_2
        self._begin()

    @property
    def transactions(self) -> int:
        """Number of open transactions in the copy."""
        return len(self._xids)

    def into(self, build: JournalBuild) -> None:
        """Copy everything. Raises as `JournalBuild.record`, or OSError if the old journal cannot be read."""
        self._begin()
        entries = self._entries()
        self._find_targets()
        journal, stream, targets, marked = self._journal, self._journal.stream, self._targets, self._marked
        is_verified, take = self._is_verified, None if self._message_rids is None else self._message_rids.take
        for rid, place, state, _ in entries:
            data = journal.small_data(place) if state == LIVE and rid not in targets else None
            if data is not None and not stream.has_unreadable:
                crc = extend_crc32c(0, data)
                if not is_verified or journal.verifies(place, crc):
                    new = rid if take is None else take()
                    build.enqueue(new, data, crc)
                    self.messages += 1
                    if rid in marked:
                        self.renamed[rid] = new
                    continue
            self._copy(build, rid, place)
        for transaction in self._recovery.transactions:
            for operation in transaction:
                if not operation.is_enqueue and targets.get(operation.rid) == operation.place:
                    self._copy_removal(build, transaction.xid, operation)

    def _begin(self) -> None:
        self.messages = self.in_doubt = self.left_out = 0
        self._enqueuers: dict[int, bytes] = {}  # message -> the open transaction that enqueues it
        self._targets: dict[int, int] = {}  # message -> place of the effective removal
        self._copied: dict[int, int] = {}  # such a message -> its new record id
        self._xids: set[bytes] = set()
        self._used: set[int] = set()  # by removals that keep their ids
        self.renamed: dict[int, int] = {}

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
                    continue  # only a damaged journal has two messages with the same id
                self._enqueuers[rid] = transaction.xid
        entries = self._recovery.outstanding(self._journal.format)
        return heapq.merge(entries, sorted(own)) if own else entries

    def _find_targets(self) -> None:
        for transaction in self._recovery.transactions:
            for rid, place, _, is_enqueue in transaction:
                if not is_enqueue and self._enqueuers.get(rid, transaction.xid) == transaction.xid:
                    self._targets[rid] = place

    def _copy(self, build: JournalBuild, rid: int, place: int) -> None:
        """Copy one message, of any kind, or omit it."""
        journal, stream = self._journal, self._journal.stream
        at, size = journal.data_of_enqueue(place)
        parts = list(journal.data_chunks(at, size))
        problem = None
        if stream.has_unreadable and not stream.is_readable(place, at + size - place):
            problem = DamageKind.MESSAGE_UNREADABLE
        elif self._is_verified and not journal.verifies(place, data_crc(parts)):
            problem = DamageKind.MESSAGE_CHANGED
        if problem is not None:
            self._leave_out(place, at + size, rid, problem)
            return
        is_compressed = journal.is_compressed(place)
        if is_compressed:
            try:
                restored = journal.message_data(place)
            except RhmError as error:
                self._leave_out(place, at + size, rid, DamageKind.CONTENT_DAMAGED, problem=error.what)
                return
            if build.version == 1:
                parts, is_compressed = [restored], False
        new = rid if self._message_rids is None else self._message_rids.take()
        self._message(build, new, parts, self._enqueuers.get(rid, b""), compressed=is_compressed)
        if rid in self._targets:
            self._copied[rid] = new
        if rid in self._marked:
            self.renamed[rid] = new
        self.in_doubt += rid in self._targets or rid in self._enqueuers

    def _leave_out(self, place: int, end: int, rid: int, kind: DamageKind, **details: str) -> None:
        file, offset = self._journal.stream.locate(place)
        self.left_out += 1
        self._report_left_out(Damage(file.path, offset, rid, kind, Effect.MESSAGE_LEFT_OUT, **details), place, end)

    def _message(
        self, build: JournalBuild, rid: int, parts: list[bytes], xid: bytes, *, compressed: bool = False
    ) -> None:
        build.message(rid, parts, xid, compressed=compressed)
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
            return  # the message could not be read again
        if target is None:
            target = operation.rid
            self._used.add(target)
            self._message(build, target, [DISTRIBUTED], xid)
        if rid is not None:
            build.removal(xid, rid, target, commit_decision=bool(operation.flags & COMMIT_DECISION))
            self._xids.add(xid)

    def _removal_rid(self, operation: Operation) -> int | None:
        """The record id of a removal; None if the id that it would keep is taken, in a damaged journal."""
        if self._removal_rids is not None:
            return self._removal_rids.take()
        rid = decode_header(self._journal.stream.read(operation.place, MAX_HEADER_SIZE)).rid
        if rid in self._used or rid in self._enqueuers or self._recovery.messages.get(rid) is not None:
            return None
        self._used.add(rid)
        return rid


class Rebuilt(NamedTuple):
    """The result of rebuilding a journal.

    Attributes:
        info: the new journal's info file; its geometry may be larger than requested.
        messages: number of messages, those of open transactions included.
        transactions: number of open transactions.
        unreadable: messages that were omitted because they could not be read again.
    """

    info: JournalInfo
    messages: int
    transactions: int
    unreadable: int


def rebuild(
    environment: Environment,
    directory: str,
    info: JournalInfo,
    journal: Journal,
    recovery: JournalRecovery,
    *,
    seal: bool = False,
) -> Rebuilt:
    """Build the readable content of a journal of version 2 into a new directory, keeping record ids and order.

    Args:
        environment: disk, clock and random numbers.
        directory: the new journal's, which is created and synced except for its own name.
        info: the requested journal; its geometry is enlarged if the content requires it.
        journal: the old journal.
        recovery: the result of a walk over all of it, its open transactions not yet resolved.
        seal: whether the new journal ends as after a clean close.

    Raises:
        StoreError: it does not fit into any journal.
        OSError: the new journal cannot be created or written, or a file of the old one cannot be read.
    """
    is_prepared_list = info.base_name == TPL_BASE_NAME
    copy = JournalCopy(journal, recovery, lambda *_: None, is_prepared_list=is_prepared_list)
    content = content_of(journal, recovery, is_prepared_list=is_prepared_list)
    built = build_journal(environment, directory, info, content, copy.into, seal=seal)
    return Rebuilt(built, copy.messages, copy.transactions, copy.left_out)
