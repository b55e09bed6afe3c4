"""Transactions over the journals of several queues, and the prepared list that holds them together.

    journals touched    what is written                                                     commit point
    ------------------  ------------------------------------------------------------------  ------------------------
    one                 its records and the commit, in one flush                            that flush
    several             records in all journals; when they are synced, an enqueue in the    the prepared list's
                        prepared list; when that is, commits in all journals; when they     enqueue
                        are, a dequeue and a commit in the prepared list
    distributed         prepare: records, then the prepared list's enqueue. commit or       the prepared list's
                        abort: its dequeue, which says which; when that is synced, commits  dequeue
                        or aborts in all journals; when they are, its own commit

Room is checked in all journals before anything is written in one. Whatever is cut short by a crash is completed at the
next start (`start`, formats page, section 8.3): what the prepared list does not know is aborted.

A journal that fails before the commit point has its transaction aborted in the others. When the prepared list fails,
nobody can say whether the commit point is on the disk: the transaction stays open until the next start, which can.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from formats.checksum import extend_crc32c
from store.appender import Appender
from store.errors import StoreError
from store.flusher import Flusher
from store.journal.recovery import Outcome
from store.prepared import PreparedTransaction
from store.queue_journal import Done, QueueJournal

_LOCAL, _DISTRIBUTED = b"\0", b"\1"
_XID: Final = struct.Struct(">8sQQ")  # 24 bytes, as qpidd's local ones
_XID_NAME: Final = b"qstore-l"


class Enqueue(NamedTuple):
    """A message that a transaction enqueues: see `Appender.enqueue`."""

    journal: QueueJournal
    parts: Sequence[bytes]
    size: int
    crc: int


class Dequeue(NamedTuple):
    """A message that a transaction dequeues."""

    journal: QueueJournal
    rid: int


@dataclass(slots=True)
class _Prepared:
    """A transaction that the prepared list holds.

    Attributes:
        rid: record id of its enqueue there.
        journals: those in which it is open.
    """

    rid: int
    journals: list[QueueJournal]


class Transactions:
    """The transactions of one store.

    Args:
        appender: gives record ids and makes room.
        flusher: says when something is synced.
        prepared_list: the prepared list's journal.
        run: a random number of 64 bits, part of the ids of local transactions.

    Attributes:
        prepares, commits, aborts: how many were written to the prepared list.
    """

    def __init__(self, appender: Appender, flusher: Flusher, prepared_list: QueueJournal, run: int) -> None:
        self._appender, self._flusher, self._list = appender, flusher, prepared_list
        self._run = run
        self._count = 0
        self._prepared: dict[bytes, _Prepared] = {}
        self.prepares = self.commits = self.aborts = 0

    @property
    def in_doubt(self) -> list[bytes]:
        """The distributed transactions that are prepared and wait for their outcome."""
        return list(self._prepared)

    # ---- local ----

    def commit(self, enqueues: Sequence[Enqueue], dequeues: Sequence[Dequeue], done: Done) -> list[int]:
        """Do all of this or nothing.

        Args:
            enqueues: the messages that come.
            dequeues: the messages that go.
            done: called when it is committed on the disk; with an error when it is not, or nobody can say.

        Returns:
            The record ids of the messages enqueued.

        Raises:
            JournalFullError: it does not fit; JournalError: a message cannot be dequeued. Nothing was written.
        """
        self._count += 1
        xid = _XID.pack(_XID_NAME, self._run, self._count)
        journals, rids = self._write(xid, enqueues, dequeues)
        if len(journals) <= 1:
            for journal in journals:
                self._outcome(xid, journal, commits=True)
            self._flusher.when_synced(journals, done)
        else:
            self._flusher.when_synced(journals, lambda error: self._written(xid, _LOCAL, journals, done, error))
        return rids

    # ---- distributed ----

    def prepare(self, xid: bytes, enqueues: Sequence[Enqueue], dequeues: Sequence[Dequeue], done: Done) -> list[int]:
        """Write a branch, so that it can be committed or aborted whatever happens; then as `commit`.

        Raises:
            StoreError: there is a branch of that xid already. Or as `commit`.
        """
        if xid in self._prepared or xid in self._list.writer.transactions:
            raise StoreError(f"transaction {xid.hex()} is prepared already")
        journals, rids = self._write(xid, enqueues, dequeues)
        self._flusher.when_synced(journals, lambda error: self._written(xid, _DISTRIBUTED, journals, done, error))
        return rids

    def commit_prepared(self, xid: bytes, done: Done) -> None:
        """Commit a branch that is prepared; `done` is called when that is on the disk. Raises StoreError."""
        self._decide(xid, done, commits=True)

    def abort_prepared(self, xid: bytes, done: Done) -> None:
        """Abort a branch that is prepared; `done` is called when that is on the disk. Raises StoreError."""
        self._decide(xid, done, commits=False)

    def _decide(self, xid: bytes, done: Done, *, commits: bool) -> None:
        prepared = self._prepared.pop(xid, None)
        if prepared is None:
            raise StoreError(f"transaction {xid.hex()} is not prepared")
        self._write_decision(xid, prepared.rid, commits=commits)

        def decided(error: Exception | None) -> None:
            done(error)
            if error is None:
                self._end(xid, prepared.journals, commits=commits)

        self._flusher.when_synced((self._list,), decided)

    # ---- at start ----

    def complete(self, found: Iterable[PreparedTransaction], journals: Sequence[QueueJournal]) -> None:
        """Bring what was open when the store was left to its end, and wait until that is on the disk.

        Args:
            found: what the prepared list holds.
            journals: those of all queues.
        """
        held = {transaction.xid: transaction for transaction in found}
        for journal in journals:
            for xid in list(journal.writer.transactions):
                transaction = held.get(xid)
                outcome = Outcome.UNPREPARED if transaction is None else transaction.outcome
                if outcome is Outcome.IN_DOUBT:
                    assert transaction is not None
                    assert transaction.rid is not None
                    self._prepared.setdefault(xid, _Prepared(transaction.rid, [])).journals.append(journal)
                else:
                    self._outcome(xid, journal, commits=outcome is Outcome.COMMITTING)
        self._flusher.drain(journals)
        for xid, transaction in held.items():
            if transaction.outcome is Outcome.IN_DOUBT:
                assert transaction.rid is not None
                self._prepared.setdefault(xid, _Prepared(transaction.rid, []))
            elif all(journal.writer.failure is None for journal in journals):
                self._forget(xid, commits=transaction.outcome is Outcome.COMMITTING)
        self._flusher.drain((self._list,))

    # ---- steps ----

    def _write(
        self, xid: bytes, enqueues: Sequence[Enqueue], dequeues: Sequence[Dequeue]
    ) -> tuple[list[QueueJournal], list[int]]:
        """Write the records, once it is sure that all of them fit. Returns the journals, and the messages' ids."""
        sizes: dict[QueueJournal, list[int]] = {}
        counts: dict[QueueJournal, int] = {}
        for enqueue in enqueues:
            sizes.setdefault(enqueue.journal, []).append(enqueue.size)
        for dequeue in dequeues:
            dequeue.journal.writer.check_dequeue(dequeue.rid)
            counts[dequeue.journal] = counts.get(dequeue.journal, 0) + 1
        journals = list(dict.fromkeys((*sizes, *counts)))
        for journal in journals:
            self._admit(xid, journal, sizes.get(journal, []), counts.get(journal, 0))
        rids = []
        for journal, parts, size, crc in enqueues:
            rid = self._appender.take_id()
            journal.writer.enqueue_in(xid, rid, parts, size, crc)
            journal.transaction_enqueues += 1
            rids.append(rid)
        for journal, target in dequeues:
            journal.writer.dequeue_in(xid, self._appender.take_id(), target)
            journal.transaction_dequeues += 1
        for journal in journals:
            self._appender.touched(journal)
        return journals, rids

    def _admit(self, xid: bytes, journal: QueueJournal, sizes: Sequence[int], dequeues: int) -> None:
        self._appender.with_room(journal, lambda: journal.writer.admit_transaction(xid, sizes, dequeues))

    def _written(
        self, xid: bytes, kind: bytes, journals: list[QueueJournal], done: Done, error: Exception | None
    ) -> None:
        """The records are synced in all journals, or not."""
        if error is not None:
            for journal in journals:
                if journal.writer.failure is None:
                    self._outcome(xid, journal, commits=False)
            self._flusher.start()
            done(error)
            return
        writer, rid = self._list.writer, self._appender.take_id()
        crc = extend_crc32c(0, kind)
        try:
            self._appender.with_room(self._list, lambda: writer.enqueue_in(xid, rid, (kind,), len(kind), crc))
        except Exception as refusal:
            self._written(xid, kind, journals, done, refusal)
            return
        self.prepares += 1
        self._appender.touched(self._list)
        self._flusher.when_synced((self._list,), lambda failure: self._listed(xid, kind, rid, journals, done, failure))
        self._flusher.start()

    def _listed(
        self, xid: bytes, kind: bytes, rid: int, journals: list[QueueJournal], done: Done, error: Exception | None
    ) -> None:
        """The prepared list's enqueue is synced, or not."""
        if error is None and kind == _DISTRIBUTED:
            self._prepared[xid] = _Prepared(rid, journals)
        done(error)
        if error is None and kind == _LOCAL:
            self._end(xid, journals, commits=True)

    def _end(self, xid: bytes, journals: list[QueueJournal], *, commits: bool) -> None:
        """The commit point is on the disk: say so in all journals, and then forget the transaction."""
        for journal in journals:
            if journal.writer.failure is None:
                self._outcome(xid, journal, commits=commits)

        def ended(error: Exception | None) -> None:
            if error is None and self._list.writer.failure is None:
                self._forget(xid, commits=commits)
                self._flusher.start()

        self._flusher.when_synced(journals, ended)
        self._flusher.start()

    def _outcome(self, xid: bytes, journal: QueueJournal, *, commits: bool) -> None:
        writer, rid = journal.writer, self._appender.take_id()
        end: Callable[[bytes, int], None] = writer.commit if commits else writer.abort
        self._appender.with_room(journal, lambda: end(xid, rid))
        self._appender.touched(journal)
        if commits:
            journal.commits += 1
        else:
            journal.aborts += 1

    def _write_decision(self, xid: bytes, target: int, *, commits: bool) -> None:
        writer, rid = self._list.writer, self._appender.take_id()
        self._appender.with_room(self._list, lambda: writer.dequeue_in(xid, rid, target, commit_decision=commits))
        self._appender.touched(self._list)

    def _forget(self, xid: bytes, *, commits: bool) -> None:
        """Every journal has the outcome: close the transaction in the prepared list."""
        writer = self._list.writer
        if xid not in writer.transactions:
            return
        transaction = writer.transactions[xid]
        for target in transaction.enqueues:
            if target not in transaction.dequeues:
                self._write_decision(xid, target, commits=commits)
        self._outcome(xid, self._list, commits=commits)
        if commits:
            self.commits += 1
        else:
            self.aborts += 1
