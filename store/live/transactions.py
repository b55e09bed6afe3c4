"""Transactions over the journals of several queues, and the prepared list that ties them together.

    journals touched    records written                                                     commit point
    ------------------  ------------------------------------------------------------------  ------------------------
    one                 its records and the commit, in one flush                            that flush
    several             records in all journals; when they are synced, an enqueue in the    the prepared list's
                        prepared list; when that is, commits in all journals; when they     enqueue
                        are, a dequeue and a commit in the prepared list. Those that share
                        their flushes share all of this (`commit_groups`)
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
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from functools import partial
from uuid import UUID

from qstore.formats.broker_records.xids import encode_local_xid
from qstore.formats.checksum import extend_crc32c
from qstore.formats.rhm.geometry import BLOCK_SIZE, PAGE_SIZE
from qstore.store.errors import JournalError, JournalFailedError, JournalFullError, StoreError
from qstore.store.journal.recovery import Outcome
from qstore.store.journal.write.flushes import MessageData
from qstore.store.journal.write.space import twice
from qstore.store.key_value import CatalogueError
from qstore.store.live.appender import Appender
from qstore.store.live.commit_groups import CommitGroup, CommitGroups
from qstore.store.live.flusher import Flusher
from qstore.store.live.queue_journal import Done, QueueJournal
from qstore.store.live.transaction_parts import Dequeue, Enqueue, Parts, admit, append, collect
from qstore.store.recovery.prepared import LOCAL, PreparedTransaction, prepare_data


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
        user: whose it is; empty if that is not known.
        commits: its outcome, once decided.
    """

    __slots__ = ("commits", "journals", "rid", "stage", "user")

    def __init__(self, stage: _Stage, rid: int, journals: list[QueueJournal], user: str) -> None:
        self.stage, self.rid, self.journals, self.user = stage, rid, journals, user
        self.commits = False


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
        self._process = process.bytes
        self._count = 0
        self._branches: dict[bytes, _Branch] = {}
        self._groups = CommitGroups()
        self.prepares = self.commits = self.aborts = 0

    @property
    def in_doubt(self) -> list[bytes]:
        """The distributed transactions that are prepared and undecided."""
        return [xid for xid, branch in self._branches.items() if branch.stage is _Stage.PREPARED]

    def user_of(self, xid: bytes) -> str:
        """The user who has prepared a distributed transaction in doubt; empty if that is not known."""
        return self._branches[xid].user

    # ---- local ----

    def commit(self, enqueues: Sequence[Enqueue], dequeues: Sequence[Dequeue], done: Done) -> list[int]:
        """Do all operations or none.

        Args:
            enqueues: the messages to enqueue.
            dequeues: the messages to dequeue.
            done: called when the commit is synced; or with an error if it failed or its outcome is unknown.

        Returns:
            The record ids of the messages enqueued, in order.

        Raises:
            JournalFullError: it does not fit; JournalError: a message cannot be dequeued. Nothing was written.
        """
        self._count += 1
        xid = encode_local_xid(self._count, self._process)
        count, ids = self._take_ids(enqueues, dequeues)
        if len(enqueues) == 1 and not dequeues and enqueues[0][0].compression is None:  # saves collecting
            journal, messages = enqueues[0]
            if self._is_committed_in_one_go(xid, journal, ids, messages, [], []):
                self._flusher.when_synced((journal,), done)
                return ids[:count]
        parts = collect(enqueues, dequeues, ids)
        if len(parts) > 1:
            self._commit_in_group(xid, parts, done)
            return ids[:count]
        for journal, part in parts.items():
            part.check_targets(journal)
            if not self._is_committed_in_one_go(xid, journal, ids, part.messages, part.targets, part.firsts):
                admit(self._appender, xid, parts)
                append(self._appender, xid, parts)
                self._outcome(xid, journal, ids[-1], commits=True)
                journal.committers += 1
        self._flusher.when_synced(parts, done)
        return ids[:count]

    def _take_ids(self, enqueues: Sequence[Enqueue], dequeues: Sequence[Dequeue]) -> tuple[int, list[int]]:
        """The number of messages that are enqueued; and record ids for these, for the dequeues, and for an outcome."""
        count = 0
        for _, messages in enqueues:
            count += len(messages)
        return count, self._appender.take_ids(count + len(dequeues) + 1)

    def _is_committed_in_one_go(
        self,
        xid: bytes,
        journal: QueueJournal,
        ids: list[int],
        messages: list[MessageData],
        targets: list[int],
        firsts: list[int],
    ) -> bool:
        """Append a whole transaction of one journal with its commit. Returns False if it has to wait for room."""
        try:
            blocks = journal.writer.append_committed(xid, ids, messages, targets, firsts)
        except MemoryError:
            raise journal.out_of_memory() from None
        if not blocks:
            return False
        journal.transaction_enqueues += len(messages)
        journal.transaction_dequeues += len(targets)
        journal.commits += 1
        journal.committers += 1
        self._appender.touched(journal, blocks * BLOCK_SIZE)
        return True

    def _commit_in_group(self, xid: bytes, parts: Parts, done: Done) -> None:
        """Append a transaction of several journals to the group that is open for them. Raises as `commit`."""
        self._check_list()
        admit(self._appender, xid, parts)
        group = self._groups.open(xid, parts)
        append(self._appender, group.xid, parts)
        group.waiting.append(done)
        if len(group.waiting) > 1:
            self._flusher.has_gathered(group.journals)
        else:
            self._flusher.when_gathered(group.journals, lambda error: self._group_written(group, error))

    def _group_written(self, group: CommitGroup, error: Exception | None) -> None:
        self._groups.close(group)
        waiting = group.waiting

        def done(failure: Exception | None) -> None:
            self._flusher.call_soon(waiting, failure)

        self._written(group.xid, None, group.journals, done, error, count=len(waiting))

    # ---- distributed ----

    def prepare(
        self, xid: bytes, enqueues: Sequence[Enqueue], dequeues: Sequence[Dequeue], done: Done, user: str = ""
    ) -> list[int]:
        """Write a branch of a user, so that it can be committed or aborted in any event; otherwise as `commit`.

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
        self._check_list()
        count, ids = self._take_ids(enqueues, dequeues)
        parts = collect(enqueues, dequeues, ids)
        admit(self._appender, xid, parts)
        append(self._appender, xid, parts)
        journals = list(parts)
        branch = self._branches[xid] = _Branch(_Stage.PREPARING, 0, journals, user)
        wait = self._flusher.when_gathered if len(journals) > 1 else self._flusher.when_synced
        wait(journals, lambda error: self._written(xid, branch, journals, done, error))
        return ids[:count]

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
                self._branches[xid] = _Branch(_Stage.PREPARED, transaction.rid, [], transaction.user)
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

    def _check_list(self) -> None:
        if self._list.writer.failure is not None:
            raise JournalFailedError(str(self._list.writer.failure))

    def _written(
        self,
        xid: bytes,
        branch: _Branch | None,
        journals: list[QueueJournal],
        done: Done,
        error: Exception | None,
        *,
        count: int = 1,
    ) -> None:
        """The records are synced in all journals, or failed; `count` local transactions have no `branch`."""
        writer, data = self._list.writer, LOCAL if branch is None else prepare_data(branch.user)
        crc = extend_crc32c(0, data)
        if error is None:
            try:
                rid = self._appender.take_id()
                self._appender.with_room(self._list, lambda: writer.enqueue_in(xid, rid, (data,), len(data), crc))
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
        self._flusher.has_listed(count)

        def listed(failure: Exception | None) -> None:
            self._flusher.has_delisted(count)
            self._listed(xid, branch, journals, done, failure)

        self._flusher.when_synced((self._list,), listed)
        self._flusher.start()

    def _listed(
        self, xid: bytes, branch: _Branch | None, journals: list[QueueJournal], done: Done, error: Exception | None
    ) -> None:
        """The prepared list's enqueue is synced, or its state is unknown."""
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
        for target in transaction.enqueued():
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
