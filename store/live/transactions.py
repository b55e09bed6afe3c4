"""Transactions over the journals of several queues, and the prepared list that ties them together.

    journals touched    records written                                                     commit point
    ------------------  ------------------------------------------------------------------  ------------------------
    one                 its records and the commit, in one flush                            that flush
    several             records in all journals; when they are synced, an enqueue in the    the prepared list's
                        prepared list; when that is, commits in all journals; when they     enqueue
                        are, a dequeue and a commit in the prepared list
    distributed         prepare: records, then the prepared list's enqueue. commit or       the prepared list's
                        abort: its dequeue, flagged for commit; when that is synced,        dequeue
                        commits or aborts in all journals; when they are, its own commit

Nobody waits for what follows the commit point: it rides on the next flush of each journal.

Room is checked in all journals before anything is written to any. A transaction interrupted by a crash is completed at
the next start (`start`; formats/rhm/README.md, 6.2): if the prepared list does not have it, it is aborted.

If a journal fails before the commit point, its transaction is aborted in the others. If the prepared list fails, it is
unknown whether the commit point is on the disk: the transaction stays open until the next start, which can tell. So
does one whose outcome a journal cannot accept any more.

The xid of a branch may be reused when the branch is committed or aborted, but not before it is forgotten: the old entry
in the prepared list would be taken for the new branch's outcome, and the remains in a journal that has failed for a
part of the new branch.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from functools import partial
from typing import TypeAlias
from uuid import UUID

from qstore.formats.broker_records.xids import encode_local_xid
from qstore.formats.checksum import extend_crc32c
from qstore.formats.rhm.geometry import PAGE_SIZE
from qstore.store.errors import StoreError
from qstore.store.journal.recovery import Outcome
from qstore.store.journal.write.step import JournalError, JournalFailedError, JournalFullError, twice
from qstore.store.journal.write.write_batch import PLAIN_MESSAGE, StoredMessage
from qstore.store.key_value import CatalogueError
from qstore.store.live.appender import MAX_AROUND_DATA, Appender
from qstore.store.live.flusher import Flusher
from qstore.store.live.queue_journal import Done, QueueJournal
from qstore.store.recovery.prepared import DISTRIBUTED, LOCAL, PreparedTransaction

#: A message to be enqueued by a transaction: journal, and the arguments of `Appender.enqueue`.
Enqueue: TypeAlias = tuple[QueueJournal, Sequence[bytes], int, int]

#: A message to be dequeued by a transaction: journal and record id.
Dequeue: TypeAlias = tuple[QueueJournal, int]


class _Stage(Enum):
    """The progress of a branch."""

    PREPARING = auto()  # its records, or its prepare record, are not synced yet
    PREPARED = auto()
    DECIDED = auto()  # the decision is not synced yet
    ENDING = auto()  # the decision is synced, or it was never prepared; to be forgotten


class _Branch:
    """A distributed transaction in the prepared list, or about to be added to it.

    Attributes:
        stage: its progress.
        rid: record id of its enqueue in the prepared list; 0 before there is one.
        journals: the journals in which it is open.
        commits: its outcome, once decided.
    """

    __slots__ = ("commits", "journals", "rid", "stage")

    def __init__(self, stage: _Stage, rid: int, journals: list[QueueJournal]) -> None:
        self.stage, self.rid, self.journals = stage, rid, journals
        self.commits = False


class _Part:
    """What a transaction does in one journal; `rids` are those of its enqueues, and then of its dequeues."""

    __slots__ = ("messages", "rids", "sizes", "targets")

    def __init__(self) -> None:
        self.rids: list[int] = []
        self.messages: list[StoredMessage] = []
        self.sizes: list[int] = []
        self.targets: list[int] = []


class Transactions:
    """The transactions of one store.

    Args:
        appender: assigns record ids and makes room.
        flusher: reports syncs.
        prepared_list: the prepared list's journal.
        process: a random number, part of the ids of local transactions.

    Attributes:
        prepares, commits, aborts: number of these written to the prepared list.
    """

    def __init__(self, appender: Appender, flusher: Flusher, prepared_list: QueueJournal, process: UUID) -> None:
        self._appender, self._flusher, self._list = appender, flusher, prepared_list
        self._process = process
        self._count = 0
        self._branches: dict[bytes, _Branch] = {}
        self.prepares = self.commits = self.aborts = 0

    @property
    def in_doubt(self) -> list[bytes]:
        """The distributed transactions that are prepared and undecided."""
        return [xid for xid, branch in self._branches.items() if branch.stage is _Stage.PREPARED]

    # ---- local ----

    def commit(self, enqueues: Sequence[Enqueue], dequeues: Sequence[Dequeue], done: Done) -> list[int]:
        """Do all operations or none.

        Args:
            enqueues: the messages to enqueue.
            dequeues: the messages to dequeue.
            done: called when the commit is synced; or with an error if it failed or its outcome is unknown.

        Returns:
            The record ids of the messages enqueued.

        Raises:
            JournalFullError: it does not fit; JournalError: a message cannot be dequeued. Nothing was written.
        """
        self._count += 1
        xid = encode_local_xid(self._count, self._process)
        journal = _only_journal(enqueues, dequeues)
        if journal is not None:
            in_one_go = self._commit_in_one_go(xid, journal, enqueues, dequeues)
            if in_one_go is not None:
                self._flusher.when_synced((journal,), done)
                return in_one_go
        journals, rids, last = self._write(xid, enqueues, dequeues, listed=False)
        if len(journals) <= 1:
            for journal in journals:
                self._outcome(xid, journal, last, commits=True)
            self._flusher.when_synced(journals, done)
        else:
            self._flusher.when_gathered(journals, lambda error: self._written(xid, None, journals, done, error))
        return rids

    def _commit_in_one_go(
        self, xid: bytes, journal: QueueJournal, enqueues: Sequence[Enqueue], dequeues: Sequence[Dequeue]
    ) -> list[int] | None:
        """Append a whole transaction of one journal. Returns its messages' record ids; None if it has to wait for room.

        Raises:
            JournalError: as `commit`.
        """
        messages = _stored(journal, enqueues)
        targets = [target for _, target in dequeues]
        _check_distinct(journal, targets)
        take_id = self._appender.take_id
        rids = [take_id() for _ in range(len(messages) + len(targets) + 1)]
        try:
            if not journal.writer.append_committed(xid, rids, messages, targets):
                return None
        except MemoryError:
            raise journal.out_of_memory() from None
        journal.transaction_enqueues += len(messages)
        journal.transaction_dequeues += len(targets)
        journal.commits += 1
        size = 0
        for _, size_of_data, _, _ in messages:
            size += size_of_data
        self._appender.touched(journal, size + MAX_AROUND_DATA * len(rids))
        return rids[: len(messages)]

    # ---- distributed ----

    def prepare(self, xid: bytes, enqueues: Sequence[Enqueue], dequeues: Sequence[Dequeue], done: Done) -> list[int]:
        """Write a branch, so that it can be committed or aborted in any event; otherwise as `commit`.

        Raises:
            StoreError: a branch with that xid exists already. Otherwise as `commit`.
        """
        before = self._branches.get(xid)
        if before is not None and before.stage is _Stage.ENDING:
            self._forget_now(xid, before)
        if not xid:
            raise StoreError("a distributed transaction needs an id")
        if xid in self._branches:
            is_over = self._branches[xid].stage is _Stage.ENDING
            what = "existed before, in a journal that has failed" if is_over else "is already prepared"
            raise StoreError(f"transaction {xid.hex()} {what}")
        journals, rids, _ = self._write(xid, enqueues, dequeues, listed=True)
        branch = self._branches[xid] = _Branch(_Stage.PREPARING, 0, journals)
        wait = self._flusher.when_gathered if len(journals) > 1 else self._flusher.when_synced
        wait(journals, lambda error: self._written(xid, branch, journals, done, error))
        return rids

    def commit_prepared(self, xid: bytes, done: Done) -> None:
        """Commit a prepared branch; `done` is called when that is synced. Raises StoreError."""
        self._decide(xid, done, commits=True)

    def abort_prepared(self, xid: bytes, done: Done) -> None:
        """Abort a prepared branch; `done` is called when that is synced. Raises StoreError."""
        self._decide(xid, done, commits=False)

    def _decide(self, xid: bytes, done: Done, *, commits: bool) -> None:
        branch = self._branches.get(xid)
        if branch is None or branch.stage is not _Stage.PREPARED:
            raise StoreError(f"transaction {xid.hex()} is not prepared")
        self._write_decision(xid, branch.rid, commits=commits)
        branch.stage, branch.commits = _Stage.DECIDED, commits

        def decided(error: Exception | None) -> None:
            if error is None:
                branch.stage = _Stage.ENDING
                self._end(xid, branch.journals, branch, commits=commits)
            done(error)

        self._flusher.when_synced((self._list,), decided)

    # ---- at start ----

    def complete(self, found: Iterable[PreparedTransaction], journals: Sequence[QueueJournal]) -> None:
        """Complete the transactions that were open when the store was last in use, and wait until that is synced.

        Args:
            found: the transactions in the prepared list.
            journals: those of all queues.

        Raises:
            StoreError: a journal cannot be written.
        """
        held = {transaction.xid: transaction for transaction in found}
        for xid, transaction in held.items():
            if transaction.outcome is Outcome.IN_DOUBT:
                assert transaction.rid is not None
                self._branches[xid] = _Branch(_Stage.PREPARED, transaction.rid, [])
        try:
            for journal in journals:
                for xid in list(journal.writer.transactions):
                    if xid in self._branches:
                        self._branches[xid].journals.append(journal)
                    else:
                        commits = xid in held and held[xid].outcome is Outcome.COMMITTING
                        self._outcome(xid, journal, self._appender.take_id(), commits=commits)
            self._drain(journals)
            for xid, transaction in held.items():
                if xid not in self._branches:
                    self._forget(xid, commits=transaction.outcome is Outcome.COMMITTING)
            self._drain((self._list,))
        except JournalError as error:
            raise StoreError(f"transactions left open cannot be completed: {error}") from error

    def _drain(self, journals: Sequence[QueueJournal]) -> None:
        self._flusher.drain(journals)
        for journal in journals:
            if journal.writer.failure is not None:
                raise JournalFailedError(str(journal.writer.failure))

    # ---- steps ----

    def _write(
        self, xid: bytes, enqueues: Sequence[Enqueue], dequeues: Sequence[Dequeue], *, listed: bool
    ) -> tuple[list[QueueJournal], list[int], int]:
        """Write the records, after checking that all of them fit.

        Args:
            xid: the transaction.
            enqueues: its messages to enqueue.
            dequeues: its messages to dequeue.
            listed: whether the prepared list is needed, even if there is only one journal.

        Returns:
            The journals; the messages' ids; and one more id, for an outcome.
        """
        parts: dict[QueueJournal, _Part] = {}
        ids = [self._appender.take_id() for _ in range(len(enqueues) + len(dequeues) + 1)]
        number = 0
        for journal, data, size, crc in enqueues:
            part = parts.get(journal)
            if part is None:
                part = parts[journal] = _Part()
            part.rids.append(ids[number])
            compression = journal.compression
            message = (data, size, crc, PLAIN_MESSAGE) if compression is None else compression.stored(data, size, crc)
            part.messages.append(message)
            part.sizes.append(message[1])
            number += 1
        for journal, target in dequeues:
            journal.writer.check_dequeue(target)
            part = parts.get(journal)
            if part is None:
                part = parts[journal] = _Part()
            part.rids.append(ids[number])
            part.targets.append(target)
            number += 1
        for journal, part in parts.items():
            _check_distinct(journal, part.targets)
        journals = list(parts)
        if (listed or len(journals) > 1) and self._list.writer.failure is not None:
            raise JournalFailedError(str(self._list.writer.failure))
        self._appender.admit_all(
            [
                (journal, partial(journal.writer.admit_transaction, xid, part.sizes, len(part.targets)))
                for journal, part in parts.items()
            ]
        )
        for journal, part in parts.items():
            try:
                journal.writer.append_admitted(xid, part.rids, part.messages, part.targets)
            except MemoryError:
                raise journal.out_of_memory() from None
            journal.transaction_enqueues += len(part.messages)
            journal.transaction_dequeues += len(part.targets)
            self._appender.touched(journal, sum(part.sizes) + MAX_AROUND_DATA * len(part.rids))
        return journals, ids[: len(enqueues)], ids[-1]

    def _written(
        self, xid: bytes, branch: _Branch | None, journals: list[QueueJournal], done: Done, error: Exception | None
    ) -> None:
        """The records are synced in all journals, or failed. Local transactions have no `branch`."""
        writer, kind = self._list.writer, LOCAL if branch is None else DISTRIBUTED
        crc = extend_crc32c(0, kind)
        if error is None:
            try:
                rid = self._appender.take_id()
                self._appender.with_room(self._list, lambda: writer.enqueue_in(xid, rid, (kind,), len(kind), crc))
            except JournalFullError:
                error = _prepared_list_full(self._list)
            except (JournalError, CatalogueError) as refusal:
                error = refusal
        if error is not None:
            if branch is not None:
                branch.stage = _Stage.ENDING
            self._end(xid, journals, branch, commits=False)
            done(error)
            return
        self.prepares += 1
        self._appender.touched(self._list)
        if branch is not None:
            branch.rid = rid
        self._flusher.has_listed()
        self._flusher.when_synced((self._list,), lambda failure: self._listed(xid, branch, journals, done, failure))
        self._flusher.start()

    def _listed(
        self, xid: bytes, branch: _Branch | None, journals: list[QueueJournal], done: Done, error: Exception | None
    ) -> None:
        """The prepared list's enqueue is synced, or its state is unknown."""
        self._flusher.has_delisted()
        if error is None:
            if branch is None:
                self._end(xid, journals, None, commits=True)
            else:
                branch.stage = _Stage.PREPARED
        done(error)

    def _end(self, xid: bytes, journals: list[QueueJournal], branch: _Branch | None, *, commits: bool) -> None:
        """The commit point is synced: write the outcome to all journals, and then forget the transaction."""
        is_said = self._outcomes(xid, journals, commits=commits)

        def ended(error: Exception | None) -> None:
            if error is None and is_said and (branch is None or self._branches.get(xid) is branch):
                with contextlib.suppress(JournalError, CatalogueError):  # otherwise the next start forgets it
                    self._forget(xid, commits=commits)
                    self._flusher.when_synced((self._list,), partial(self._forgotten, xid, branch), is_urgent=False)

        self._flusher.when_synced(journals, ended, is_urgent=False)

    def _forgotten(self, xid: bytes, branch: _Branch | None, error: Exception | None) -> None:
        """The prepared list is synced without the transaction, or has failed."""
        if error is None and self._branches.get(xid) is branch:
            self._branches.pop(xid, None)

    def _forget_now(self, xid: bytes, branch: _Branch) -> None:
        """Wait until a finished branch is forgotten, since its xid is reused. Raises as `prepare`."""
        self._flusher.drain(branch.journals)
        has_outcome = [each.writer.failure is None and xid not in each.writer.transactions for each in branch.journals]
        if all(has_it or each.is_deleted for has_it, each in zip(has_outcome, branch.journals, strict=True)):
            self._forget(xid, commits=branch.commits)
            self._drain((self._list,))
            del self._branches[xid]

    def _outcomes(self, xid: bytes, journals: Iterable[QueueJournal], *, commits: bool) -> bool:
        """Write the outcome to all journals. Returns False if one cannot accept it and must wait for the next start."""
        is_said = True
        for journal in journals:
            if not journal.is_deleted:
                try:
                    self._outcome(xid, journal, self._appender.take_id(), commits=commits)
                except (JournalError, CatalogueError):
                    is_said = False
        return is_said

    def _outcome(self, xid: bytes, journal: QueueJournal, rid: int, *, commits: bool) -> None:
        end: Callable[[bytes, int], None] = journal.writer.commit if commits else journal.writer.abort
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
        """Close the transaction in the prepared list: every journal has the outcome."""
        writer = self._list.writer
        if xid not in writer.transactions:
            return
        transaction = writer.transactions[xid]
        for target in transaction.enqueues:
            if target not in transaction.dequeues:
                self._write_decision(xid, target, commits=commits)
        self._outcome(xid, self._list, self._appender.take_id(), commits=commits)
        if commits:
            self.commits += 1
        else:
            self.aborts += 1


def _prepared_list_full(prepared_list: QueueJournal) -> JournalFullError:
    size = twice(prepared_list.geometry.files, prepared_list.geometry.data_size // PAGE_SIZE)
    return JournalFullError(
        f"The transaction prepared list is full: {prepared_list.open_transactions} transactions are in it. Commit or "
        f"roll back those in doubt; or stop the broker and enlarge the list: qstore-resize DATA-DIR --tpl {size}"
    )


def _only_journal(enqueues: Sequence[Enqueue], dequeues: Sequence[Dequeue]) -> QueueJournal | None:
    """The journal of all of these; None if there is none, or there are several."""
    only: QueueJournal | None = None
    for journal, _, _, _ in enqueues:
        if only is None:
            only = journal
        elif journal is not only:
            return None
    for journal, _ in dequeues:
        if only is None:
            only = journal
        elif journal is not only:
            return None
    return only


def _stored(journal: QueueJournal, enqueues: Sequence[Enqueue]) -> list[StoredMessage]:
    """Messages in the form in which their journal stores them."""
    compression = journal.compression
    if compression is None:
        return [(parts, size, crc, PLAIN_MESSAGE) for _, parts, size, crc in enqueues]
    return [compression.stored(parts, size, crc) for _, parts, size, crc in enqueues]


def _check_distinct(journal: QueueJournal, targets: Sequence[int]) -> None:
    """Raise JournalError if a transaction dequeues a message twice."""
    if len(set(targets)) != len(targets):
        twice = Counter(targets).most_common(1)[0][0]
        raise JournalError(f'queue "{journal.name}": record 0x{twice:x} is dequeued twice in one transaction')
