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

Nothing waits for the records after the commit point: they ride on the next flush of each journal.

**Room** is checked in all journals before anything is written to any. A transaction interrupted by a crash is completed
at the next start (`complete`; formats/rhm/README.md, 6.2): if the prepared list does not have it, it is aborted.

**Groups.** Local transactions over the same journals that share their flushes are one transaction in the store. Each
appends its records under the xid of the open group of its journals. A group stays open as long as the write batches
with its first records: so all its records are in one flush of each journal, and all of its transactions wait for the
same syncs. Then one record in the prepared list commits all of them, and one in each journal follows; a crash before
leaves none of them.

**Large transactions** (`begin_large`) are appended in portions, so that no step takes long, whatever their size. Their
records spread over many flushes, between those of others, and take effect at the commit point, which is the same as
above: with one journal it is the flush of the commit, which follows all its records there. Nothing else differs on
disk. The outcome is written in steps, too: to some journals at a time (`JOURNALS_STEP`), and its changes to the
writers' index are made for some operations at a time (`OUTCOME_STEP`): a commit removes messages after its sync, an
abort undoes operations before its record. Either is reported when that is done, since others may dequeue the messages
then.

**Failures.** If a journal fails before the commit point, its transaction is aborted in the others. If the prepared list
fails, it is unknown whether the commit point is on the disk: the transaction stays open until the next start, which
decides it. So does one whose outcome a journal can no longer accept.

The xid of a branch may be reused after the branch is committed or aborted, but not before it is forgotten: otherwise
the old entry in the prepared list would be taken for the new branch's outcome, and its remains in a failed journal for
a part of the new branch.
"""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto
from functools import partial
from typing import Final, TypeAlias
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
from qstore.store.live.commit import Flusher
from qstore.store.live.queue_journal import Done, QueueJournal
from qstore.store.recovery.prepared import LOCAL, PreparedTransaction, prepare_data

#: Messages that a transaction enqueues: a journal, and for each message the arguments of `Appender.enqueue`.
Enqueue: TypeAlias = tuple[QueueJournal, list[MessageData]]

#: A message to be dequeued by a transaction: journal and record id.
Dequeue: TypeAlias = tuple[QueueJournal, int]


class Part:
    """The operations of a transaction in one journal.

    Attributes:
        messages: the messages that it enqueues, as stored.
        firsts: the first word of each message's record header; empty if all are PLAIN_MESSAGE.
        targets: the messages that it dequeues.
        rids: record ids of its enqueues, and then of its dequeues.
    """

    __slots__ = ("firsts", "messages", "rids", "targets")

    def __init__(self) -> None:
        self.messages: list[MessageData] = []
        self.firsts: list[int] = []
        self.targets: list[int] = []
        self.rids: list[int] = []

    def add(self, journal: QueueJournal, messages: list[MessageData], rids: list[int]) -> None:
        """Add messages to enqueue, and their record ids. The part may keep the list of messages."""
        compression = journal.compression
        if compression is not None:
            stored = [compression.stored(parts, size, crc) for parts, size, crc in messages]
            messages = [(parts, size, crc) for parts, size, crc, _ in stored]
            self.firsts += [first for _, _, _, first in stored]
        self.messages = [*self.messages, *messages] if self.messages else messages
        self.rids = [*self.rids, *rids] if self.rids else rids

    def check_targets(self, journal: QueueJournal) -> None:
        """Raise JournalError if a message to dequeue does not exist, or occurs twice."""
        targets = self.targets
        if not targets:
            return
        for target in targets:
            journal.writer.check_dequeue(target)
        if len(set(targets)) != len(targets):
            twice = Counter(targets).most_common(1)[0][0]
            raise JournalError(f'queue "{journal.name}": record 0x{twice:x} is dequeued twice in one transaction')


Parts: TypeAlias = dict[QueueJournal, Part]


def collect(enqueues: Sequence[Enqueue], dequeues: Sequence[Dequeue], ids: list[int]) -> Parts:
    """The parts of a transaction. `ids` has an id for each enqueue and dequeue, in this order."""
    parts: Parts = {}
    at = 0
    for journal, messages in enqueues:
        part = parts.get(journal)
        if part is None:
            part = parts[journal] = Part()
        end = at + len(messages)
        part.add(journal, messages, ids[at:end])
        at = end
    for journal, target in dequeues:
        part = parts.get(journal)
        if part is None:
            part = parts[journal] = Part()
        part.targets.append(target)
        part.rids.append(ids[at])
        at += 1
    return parts


def admit(appender: Appender, xid: bytes, parts: Parts) -> None:
    """Make room in all journals for all records of a transaction and its outcome.

    Args:
        appender: makes room.
        xid: the id of the transaction, or a placeholder of the same length.
        parts: its operations.

    Raises:
        JournalFullError: it does not fit; JournalError: a message cannot be dequeued.
    """
    if _has_room_at_once(xid, parts):
        return
    for journal, part in parts.items():
        part.check_targets(journal)
    admissions = []
    for journal, part in parts.items():
        sizes = [size for _, size, _ in part.messages]
        admissions.append((journal, partial(journal.writer.admit_transaction, xid, sizes, len(part.targets))))
    appender.admit_all(admissions)


def _has_room_at_once(xid: bytes, parts: Parts) -> bool:
    """Whether a transaction only enqueues, and all journals have room without a further check: the usual case."""
    for journal, part in parts.items():
        if part.targets or not journal.writer.has_room_at_once(xid, part.messages):
            return False
    return True


def append(appender: Appender, xid: bytes, parts: Parts) -> None:
    """Append a transaction's operations to each journal, right after `admit`. No journal is flushed in between.

    Raises:
        JournalFailedError: memory ran out, and a journal has failed.
    """
    appended: list[tuple[QueueJournal, int]] = []
    for journal, part in parts.items():
        try:
            blocks = journal.writer.append_admitted(xid, part.rids, part.messages, part.targets, part.firsts)
        except MemoryError:
            raise journal.out_of_memory() from None
        journal.transaction_enqueues += len(part.messages)
        journal.transaction_dequeues += len(part.targets)
        appended.append((journal, blocks * BLOCK_SIZE))
    for journal, size in appended:
        appender.touched(journal, size)


class CommitGroup:
    """Transactions with one xid.

    Args:
        xid: their xid.
        journals: the journals of each of them, to which their records are appended next.

    Attributes:
        xid, journals: as above.
        waiting: for each of them, the function called when its outcome is known.
    """

    __slots__ = ("_batches", "journals", "waiting", "xid")

    def __init__(self, xid: bytes, journals: list[QueueJournal]) -> None:
        self.xid, self.journals = xid, journals
        self.waiting: list[Done] = []
        self._batches = [journal.writer.batch_number for journal in journals]

    @property
    def is_open(self) -> bool:
        """Whether the records of another transaction would be in the same flushes."""
        return self._batches == [journal.writer.batch_number for journal in self.journals]


OUTCOME_STEP: Final = 2000
"""Operations whose outcome is applied to a journal's index at once: about a millisecond in pure Python."""

JOURNALS_STEP: Final = 100
"""Journals that an outcome is written to at once: 30 to 40 µs each in pure Python."""


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
        user: its user; empty if unknown.
        commits: its outcome, once decided.
    """

    __slots__ = ("commits", "journals", "rid", "stage", "user")

    def __init__(self, stage: _Stage, rid: int, journals: list[QueueJournal], user: str) -> None:
        self.stage, self.rid, self.journals, self.user = stage, rid, journals, user
        self.commits = False


class LargeTransaction:
    """A transaction that is appended in portions.

    Attributes:
        xid: its id.
        branch: of a distributed one; None for a local one.
        journals: those that it was appended to.
        unwritten: those of them that had unwritten records when that was last checked.
    """

    __slots__ = ("branch", "journals", "unwritten", "xid")

    def __init__(self, xid: bytes, branch: _Branch | None) -> None:
        self.xid, self.branch = xid, branch
        self.journals: dict[QueueJournal, None] = {}
        self.unwritten: dict[QueueJournal, None] = {}


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
        self._groups: dict[frozenset[QueueJournal], CommitGroup] = {}  # of each set of journals, the last one
        self._steps: deque[tuple[Iterator[None], Callable[[], None]]] = deque()  # work -> then
        self._is_stepping = False
        self.prepares = self.commits = self.aborts = 0

    @property
    def in_doubt(self) -> list[bytes]:
        """The distributed transactions that are prepared and undecided."""
        return [xid for xid, branch in self._branches.items() if branch.stage is _Stage.PREPARED]

    def user_of(self, xid: bytes) -> str:
        """The user who prepared a distributed transaction in doubt; empty if unknown."""
        return self._branches[xid].user

    # ---- local ----

    def commit(self, enqueues: Sequence[Enqueue], dequeues: Sequence[Dequeue], done: Done) -> list[int]:
        """Commit all operations or none.

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
        """Append a transaction over several journals to their open group. Raises as `commit`."""
        self._check_list()
        admit(self._appender, xid, parts)
        key = frozenset(parts)
        group = self._groups.get(key)
        if group is None or not group.is_open:
            group = self._groups[key] = CommitGroup(xid, list(key))
        append(self._appender, group.xid, parts)
        group.waiting.append(done)
        if len(group.waiting) > 1:
            self._flusher.has_gathered(group.journals)
        else:
            self._flusher.when_gathered(group.journals, lambda error: self._group_written(group, error))

    def _group_written(self, group: CommitGroup, error: Exception | None) -> None:
        key = frozenset(group.journals)
        if self._groups.get(key) is group:
            del self._groups[key]
        waiting = group.waiting

        def done(failure: Exception | None) -> None:
            self._flusher.call_soon(waiting, failure)

        self._written(group.xid, None, group.journals, done, error, count=len(waiting))

    # ---- distributed ----

    def prepare(
        self, xid: bytes, enqueues: Sequence[Enqueue], dequeues: Sequence[Dequeue], done: Done, user: str = ""
    ) -> list[int]:
        """Write a branch of a user, which can then be committed or aborted even after a crash; otherwise as `commit`.

        Raises:
            StoreError: a branch with that xid exists already. Otherwise as `commit`.
        """
        self._check_xid(xid)
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

    def _check_xid(self, xid: bytes) -> None:
        """Raise StoreError unless a branch may have this xid."""
        before = self._branches.get(xid)
        if before is not None and before.stage is _Stage.ENDING:
            self._forget_now(xid, before)
        if not xid:
            raise StoreError("a distributed transaction needs an id")
        if xid in self._branches:
            is_over = self._branches[xid].stage is _Stage.ENDING
            what = "existed before, in a journal that has failed" if is_over else "is already prepared"
            raise StoreError(f"transaction {xid.hex()} {what}")

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
                self._end(xid, branch.journals, branch, partial(done, None), commits=commits)
            else:
                done(error)

        self._flusher.when_synced((self._list,), decided)

    # ---- large ----

    def begin_large(self, xid: bytes = b"", user: str = "") -> LargeTransaction:
        """Begin a transaction that is appended in portions: a local one, or the branch `xid` of a user.

        Raises:
            StoreError: a branch with that xid exists already. JournalFailedError: the prepared list has failed.
        """
        if not xid:
            self._count += 1
            return LargeTransaction(encode_local_xid(self._count, self._process), None)
        self._check_xid(xid)
        self._check_list()
        branch = self._branches[xid] = _Branch(_Stage.PREPARING, 0, [], user)
        return LargeTransaction(xid, branch)

    def append_portion(
        self, large: LargeTransaction, enqueues: Sequence[Enqueue], dequeues: Sequence[Dequeue]
    ) -> list[int]:
        """Append all of this to a large transaction, or none of it; then the transaction must be aborted.

        Returns:
            The record ids of the messages enqueued, in order.

        Raises:
            As `commit`.
        """
        count = sum([len(messages) for _, messages in enqueues])
        ids = self._appender.take_ids(count + len(dequeues))
        parts = collect(enqueues, dequeues, ids)
        admit(self._appender, large.xid, parts)
        large.journals.update(dict.fromkeys(parts))
        large.unwritten.update(dict.fromkeys(parts))
        append(self._appender, large.xid, parts)
        return ids[:count]

    def when_written(self, large: LargeTransaction, then: Callable[[], None]) -> None:
        """Begin to write the appended portion, and call `then` when the next may be appended, perhaps at once.

        A large transaction takes half of a journal's limit of unsynced bytes; the other half is for others.
        """
        journals = [journal for journal in large.unwritten if journal.writer.is_dirty]
        large.unwritten = dict.fromkeys(journals)
        has_room = not any(journal.unsynced * 2 > journal.bound for journal in journals)
        self._flusher.when_synced(journals, _ignore if has_room else lambda _: then())
        self._flusher.start()
        if has_room:
            then()

    def end_large(self, large: LargeTransaction, done: Done) -> None:
        """Commit a local transaction, or prepare a branch; `done` is called as in `commit` and `prepare`.

        Raises:
            JournalFailedError: a journal has failed; it must be aborted.
        """
        xid, branch, journals = large.xid, large.branch, list(large.journals)
        for journal in journals:
            if journal.writer.failure is not None and not journal.is_deleted:
                raise JournalFailedError(str(journal.writer.failure))
        if branch is None and len(journals) <= 1:
            for journal in journals:
                if not journal.is_deleted:
                    self._outcome(xid, journal, self._appender.take_id(), commits=True)
                    journal.committers += 1

            def committed(error: Exception | None) -> None:
                if error is None:
                    self._remove_left(journals)
                done(error)

            self._flusher.when_synced(journals, committed)
            return
        self._check_list()
        if branch is not None:
            branch.journals = journals
        self._flusher.when_synced(journals, lambda error: self._written(xid, branch, journals, done, error))

    def abort_large(self, large: LargeTransaction, done: Callable[[], None]) -> None:
        """Undo a large transaction, and call `done` when others may dequeue the messages."""
        xid, branch, journals = large.xid, large.branch, list(large.journals)
        if branch is not None:
            branch.stage, branch.journals = _Stage.ENDING, journals
        self._flusher.when_synced(journals, lambda _: self._end(xid, journals, branch, done, commits=False))
        self._flusher.start()

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
        if not held and not any(journal.writer.transactions for journal in journals):
            return  # draining all journals would take a start 25 µs for each (`bench_start`)
        for xid, transaction in held.items():
            if transaction.outcome is Outcome.IN_DOUBT:
                assert transaction.rid is not None
                self._branches[xid] = _Branch(_Stage.PREPARED, transaction.rid, [], transaction.user)
        try:
            for journal in journals:
                outcomes: dict[bytes, bool] = {}  # xid -> whether it is committed
                for xid in journal.writer.transactions:
                    if xid in self._branches:
                        self._branches[xid].journals.append(journal)
                    else:
                        outcomes[xid] = xid in held and held[xid].outcome is Outcome.COMMITTING
                self._complete_in(journal, outcomes)
            self._drain(journals)
            self._remove_left(journals)
            for xid, transaction in held.items():
                if xid not in self._branches:
                    self._forget(xid, commits=transaction.outcome is Outcome.COMMITTING)
            self._drain((self._list,))
        except JournalError as error:
            raise StoreError(f"transactions left open cannot be completed: {error}") from error

    def _complete_in(self, journal: QueueJournal, outcomes: Mapping[bytes, bool]) -> None:
        """Write the outcomes of transactions that were left open in a journal: xid -> whether it is committed.

        Those to be aborted are undone first, as ever: if they were being undone before a crash, others may have used
        the room of their records, and of the aborts.
        """
        for xid, commits in outcomes.items():
            if not commits:
                journal.writer.undo(xid, _size_of(journal, xid))
        for xid, commits in outcomes.items():
            self._outcome(xid, journal, self._appender.take_id(), commits=commits)

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
        """Continue after the records are synced or failed in all journals; `count` local ones have no `branch`."""
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
            self._end(xid, journals, branch, partial(done, error), commits=False)
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
        """Continue after the prepared list's enqueue is synced, or its state is unknown."""
        if error is not None:
            done(error)
        elif branch is None:
            self._end(xid, journals, None, partial(done, None), commits=True)
        else:
            branch.stage = _Stage.PREPARED
            done(None)

    def _end(
        self,
        xid: bytes,
        journals: list[QueueJournal],
        branch: _Branch | None,
        then: Callable[[], None],
        *,
        commits: bool,
    ) -> None:
        """After the commit point's sync, write the outcome to all journals, call `then`, and forget the transaction."""
        is_small = len(journals) <= JOURNALS_STEP
        if is_small and (commits or all(_size_of(journal, xid) <= OUTCOME_STEP for journal in journals)):
            is_said = self._outcomes(xid, journals, commits=commits)
            self._forget_when_synced(xid, journals, branch, is_said, commits=commits)
            then()
            return
        said: list[bool] = []

        def written() -> None:
            self._forget_when_synced(xid, journals, branch, all(said), commits=commits)
            then()

        self._do_in_steps(self._outcomes_in_steps(xid, journals, said, commits=commits), written)

    def _outcomes_in_steps(
        self, xid: bytes, journals: list[QueueJournal], said: list[bool], *, commits: bool
    ) -> Iterator[None]:
        """As `_outcomes`, in steps; what it returns for each is added to `said`."""
        if not commits:
            yield from _undo(xid, journals)
        for begin in range(0, len(journals), JOURNALS_STEP):
            said.append(self._outcomes(xid, journals[begin : begin + JOURNALS_STEP], commits=commits))
            yield

    def _forget_when_synced(
        self, xid: bytes, journals: list[QueueJournal], branch: _Branch | None, is_said: bool, *, commits: bool
    ) -> None:
        """Forget the transaction when its outcome is synced in all journals, if all have it (`is_said`)."""

        def ended(error: Exception | None) -> None:
            if commits:
                self._remove_left(journals)
            if error is None and is_said and (branch is None or self._branches.get(xid) is branch):
                with contextlib.suppress(JournalError, CatalogueError):  # otherwise the next start forgets it
                    self._forget(xid, commits=commits)
                    self._flusher.when_synced((self._list,), partial(self._forgotten, xid, branch), is_urgent=False)

        self._flusher.when_synced(journals, ended, is_urgent=False)

    def _remove_left(self, journals: Sequence[QueueJournal]) -> None:
        if any(journal.writer.records.left for journal in journals):
            self._do_in_steps(_removal(journals), lambda: None)

    def _do_in_steps(self, work: Iterator[None], then: Callable[[], None]) -> None:
        """Do work, one step in each iteration of the event loop, after earlier work; at once without a loop."""
        self._steps.append((work, then))
        if not self._is_stepping:
            self._do_step()

    def _do_step(self) -> None:
        self._is_stepping = True
        goes_on = False
        try:
            while self._steps and not self._flusher.is_closed and not goes_on:
                work, then = self._steps[0]
                for _ in work:
                    if self._flusher.in_next_iteration is not None:
                        self._flusher.in_next_iteration(self._do_step)
                        goes_on = True
                        break
                else:
                    self._steps.popleft()
                    then()
        finally:
            self._is_stepping = goes_on

    def finish(self) -> None:
        """Do all steps that are left, at the close of the store: the event loop does no more of them."""
        while self._steps:
            work, then = self._steps.popleft()
            for _ in work:
                pass
            then()

    def _forgotten(self, xid: bytes, branch: _Branch | None, error: Exception | None) -> None:
        """Finish a transaction: the prepared list is synced without it, or has failed."""
        if error is None and self._branches.get(xid) is branch:
            self._branches.pop(xid, None)

    def _forget_now(self, xid: bytes, branch: _Branch) -> None:
        """Wait until a finished branch is forgotten, since its xid is reused. Raises as `prepare`."""
        self._flusher.drain(branch.journals)
        for journal in branch.journals:
            while journal.writer.remove_left(OUTCOME_STEP):
                pass
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
        writer = journal.writer
        if commits:
            removes = _size_of(journal, xid) <= OUTCOME_STEP
            self._appender.with_room(journal, lambda: writer.commit(xid, rid, removes=removes))
        else:
            self._appender.with_room(journal, lambda: writer.abort(xid, rid))
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


def _size_of(journal: QueueJournal, xid: bytes) -> int:
    """Number of operations of an open transaction in a journal."""
    transaction = journal.writer.transactions.get(xid)
    return 0 if transaction is None else transaction.size


def _undo(xid: bytes, journals: Iterable[QueueJournal]) -> Iterator[None]:
    """Undo the operations of an open transaction in some journals, in steps. All of them are synced."""
    for number, journal in enumerate(journals):
        if number and not number % JOURNALS_STEP:
            yield
        try:
            while not journal.is_deleted and journal.writer.undo(xid, OUTCOME_STEP):
                yield
        except MemoryError:
            journal.out_of_memory()


def _removal(journals: Iterable[QueueJournal]) -> Iterator[None]:
    """Remove the messages that committed transactions have dequeued in some journals, in steps."""
    for number, journal in enumerate(journals):
        if number and not number % JOURNALS_STEP:
            yield
        try:
            while not journal.is_deleted and journal.writer.remove_left(OUTCOME_STEP):
                yield
        except MemoryError:
            journal.out_of_memory()


def _ignore(_error: Exception | None) -> None:
    """Nothing to do: nothing waits for this sync."""


def _prepared_list_full(prepared_list: QueueJournal) -> JournalFullError:
    size = twice(prepared_list.geometry.files, prepared_list.geometry.data_size // PAGE_SIZE)
    return JournalFullError(
        f"The transaction prepared list is full: {prepared_list.open_transactions} transactions are in it. Commit or "
        f"roll back those in doubt; or stop the broker and enlarge the list: qstore-resize DATA-DIR --tpl {size}"
    )
