"""Writes a version-1 journal, that of qpidd's legacystore: for tests, and to give a store back to qpidd.

    enqueue, dequeue, commit, abort    a record is laid in the flush that gathers, or refused whole
    next_flush() -> step               what to write and to sync now; one step is under way at a time
    flushed()                          the step is on the disk; with a flush's last step `synced` moves on
    failed(error)                      nothing may be assumed; the journal takes nothing more

Where records go is in `version_1_ring`; here is what is enqueued, and what is taken
(formats/rhm/README.md, 3.3, 3.5 and 3.6).

Each file counts the messages whose enqueue records begin in it and that are not dequeued, those of open transactions
included. A file is entered again only when its count is zero. Two rules follow from that:

    threshold   an enqueue is refused if it, and after it a reserve of 20 % of the ring or one file, whichever is more,
                would come to a file whose count is not zero, or round to the present file
    full        any record is refused that would enter such a file

Nothing here is compacted: a message that stays can bring a journal to where it takes not even dequeues, as it does in
qpidd. qpidd writes a record first and rotates to the next file afterwards, so the operation that it refuses as "full"
may be on the disk; here nothing is written of what is refused. A record id that is enqueued twice, which qpidd notices
after it wrote the record, is refused likewise.

A transaction's dequeue locks its message until the commit or the abort. Transient messages count and can be dequeued
as others; recovery ignores them. Transactions that were never prepared are dropped by recovery, and as in qpidd no
record says so.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Final

from formats.rhm.geometry import BLOCK_SIZE, PAGE_SIZE, Geometry
from formats.rhm.records import COMMIT_DECISION, EXTERNAL, TRANSIENT, Kind, RecordHeader
from store.journal.journal import Journal
from store.journal.reader import JournalEnd
from store.journal.recovery import JournalRecovery
from store.journal.ring.order import RingFile
from store.journal.write.step import JournalError, JournalFailedError, JournalFullError, Step, over_threshold
from store.journal.write.threshold import THRESHOLD_PERCENT
from store.journal.write.version_1_ring import Version1Ring

_PERCENT: Final = 100


@dataclass(slots=True)
class OpenTransaction:
    """What an open transaction did in one journal.

    Attributes:
        enqueues: record ids of the messages that it would enqueue.
        dequeues: record ids of the messages that it would dequeue; they are locked.
    """

    enqueues: set[int] = field(default_factory=set)
    dequeues: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Version1State:
    """What a journal holds when it is taken up; nothing, if it is new. The writer takes the dicts over.

    Attributes:
        position: block of the endless stream of all laps where it ended. Which lap that is does not matter beyond its
            parity, which is the overwrite indicator.
        enqueued: record id -> number of the file in which the enqueue record begins, of every message that is there,
            those that open transactions enqueue included.
        transactions: xid -> the open transaction.
    """

    position: int = 0
    enqueued: dict[int, int] = field(default_factory=dict)
    transactions: dict[bytes, OpenTransaction] = field(default_factory=dict)


class Version1Writer:
    """The writer of one journal.

    Args:
        name: the journal's id, for errors: the queue's name, or "TplStore".
        geometry: number and size of the files.
        page: bytes of one write at most: the page of the write cache.
        clock: gives the time as nanoseconds since the epoch, for the file headers.
        state: what there is already.

    Attributes:
        failure: the error after which the journal takes no records; None if there is none.
    """

    __slots__ = (
        "_counts",
        "_enqueued",
        "_geometry",
        "_holders",
        "_name",
        "_reserve",
        "_ring",
        "_transactions",
        "failure",
    )

    def __init__(
        self,
        name: str,
        geometry: Geometry,
        *,
        page: int,
        clock: Callable[[], int],
        state: Version1State | None = None,
    ) -> None:
        state = Version1State() if state is None else state
        self._name, self._geometry = name, geometry
        self._ring = Version1Ring(geometry, page=page, clock=clock, position=state.position)
        self._enqueued = state.enqueued
        self._transactions = state.transactions
        self._counts = [0] * geometry.files
        for file in state.enqueued.values():
            self._counts[file] += 1
        self._holders: dict[int, bytes] = {}  # message -> transaction that enqueues or dequeues it
        for xid, transaction in state.transactions.items():
            self._holders.update(dict.fromkeys(transaction.enqueues | transaction.dequeues, xid))
        self._reserve = reserve_blocks(geometry)
        self.failure: JournalFailedError | None = None

    # ---- what is there ----

    @property
    def position(self) -> int:
        """Block of the endless stream of all laps where the next record goes."""
        return self._ring.position

    @property
    def counts(self) -> tuple[int, ...]:
        """For each file, the messages that hold it back."""
        return tuple(self._counts)

    @property
    def gathering(self) -> int:
        """Number of the flush that gathers, from 1."""
        return self._ring.gathering

    @property
    def synced(self) -> int:
        """Number of the last flush that is on the disk; 0 for none."""
        return self._ring.synced

    @property
    def is_dirty(self) -> bool:
        """Whether there is anything that is not synced: a journal that is taken up may begin with fillers to write."""
        return self._ring.is_dirty

    @property
    def unsynced(self) -> int:
        """Bytes that were appended and are not known to be on the disk."""
        return self._ring.unsynced

    # ---- records ----

    def enqueue(
        self, rid: int, data: Sequence[bytes], *, xid: bytes = b"", transient: bool = False, external_size: int = 0
    ) -> None:
        """Append a message.

        Args:
            rid: its record id.
            data: its data, in parts.
            xid: the transaction that enqueues it; none by default.
            transient: recovery is to ignore it.
            external_size: where the data are kept elsewhere, their size in bytes; `data` is empty then.

        Raises:
            JournalFullError: there is no room, by the threshold or at all.
            JournalFailedError: the journal failed before.
            JournalError: the record id is enqueued already. Nothing was appended in any case.
        """
        self._check_usable()
        if rid in self._enqueued:
            raise self._error(f"record 0x{rid:x} is enqueued already")
        flags = (TRANSIENT if transient else 0) | (EXTERNAL if external_size else 0)
        size = external_size or sum(map(len, data))
        header = RecordHeader(Kind.ENQUEUE, 1, flags, rid, len(xid), size)
        self._check_enterable(1)
        self._check_threshold(header.size // BLOCK_SIZE)
        file = self._append(header, xid, data)
        self._enqueued[rid] = file
        self._counts[file] += 1
        if xid:
            self._open(xid).enqueues.add(rid)
            self._holders[rid] = xid

    def dequeue(self, rid: int, dequeued_rid: int, *, xid: bytes = b"", commit_decision: bool = False) -> None:
        """Append the removal of a message; in a transaction it is locked until that ends.

        Args:
            rid: the record's own id.
            dequeued_rid: the message.
            xid: the transaction that removes it; none by default.
            commit_decision: in the transaction prepared list: the decision is to commit.

        Raises:
            JournalFullError: the next file still holds messages.
            JournalFailedError: the journal failed before.
            JournalError: there is no such message, or it is locked. Nothing was appended in any case.
        """
        self._check_usable()
        self._check_dequeue(dequeued_rid, xid)
        flags = COMMIT_DECISION if commit_decision else 0
        self._append(RecordHeader(Kind.DEQUEUE, 1, flags, rid, len(xid), dequeued_rid=dequeued_rid), xid)
        if xid:
            self._open(xid).dequeues.add(dequeued_rid)
            self._holders[dequeued_rid] = xid
        else:
            self._remove(dequeued_rid)

    def commit(self, rid: int, xid: bytes) -> None:
        """Append the commit of an open transaction: what it dequeued is gone, what it enqueued is there.

        Raises:
            JournalError: no such transaction is open. Or as `dequeue`.
        """
        for message in self._end(Kind.COMMIT, rid, xid).dequeues:
            self._remove(message)

    def abort(self, rid: int, xid: bytes) -> None:
        """Append the abort of an open transaction: what it enqueued is gone, what it dequeued is there.

        Raises:
            JournalError: no such transaction is open. Or as `dequeue`.
        """
        for message in self._end(Kind.ABORT, rid, xid).enqueues:
            self._remove(message)

    def _append(self, header: RecordHeader, xid: bytes, data: Sequence[bytes] = ()) -> int:
        self._check_enterable(header.size // BLOCK_SIZE)
        return self._ring.append(header, xid, data)

    def _remove(self, rid: int) -> None:
        self._counts[self._enqueued.pop(rid)] -= 1

    # ---- transactions ----

    def _open(self, xid: bytes) -> OpenTransaction:
        return self._transactions.setdefault(xid, OpenTransaction())

    def _end(self, kind: Kind, rid: int, xid: bytes) -> OpenTransaction:
        self._check_usable()
        if xid not in self._transactions:
            raise self._error(f"no transaction {xid.hex()} is open")
        self._append(RecordHeader(kind, 1, 0, rid, len(xid)), xid)
        transaction = self._transactions.pop(xid)
        for message in transaction.enqueues | transaction.dequeues:
            self._holders.pop(message, None)
        return transaction

    def _check_dequeue(self, rid: int, xid: bytes) -> None:
        """A message is there if it is enqueued, or by the same transaction; and free if no transaction dequeues it."""
        holder = self._holders.get(rid)
        is_pending = holder is not None and rid in self._transactions[holder].enqueues
        if rid not in self._enqueued or (is_pending and holder != xid):
            raise self._error(f"there is no record 0x{rid:x} to dequeue")
        if holder is not None and rid in self._transactions[holder].dequeues:
            raise self._error(f"record 0x{rid:x} is locked by transaction {holder.hex()}")

    # ---- what is taken ----

    def _check_usable(self) -> None:
        if self.failure is not None:
            raise JournalFailedError(str(self.failure))

    def _check_enterable(self, blocks: int) -> None:
        """A record of so many blocks enters no file that holds messages, and none that it began in itself."""
        files = self._geometry.files
        entered = self._ring.entered_by(blocks)
        overlaps = entered and entered[-1] - self._ring.file >= files
        if overlaps or any(self._counts[index % files] for index in entered):
            raise JournalFullError(f'Journal full on queue "{self._name}".')

    def _check_threshold(self, blocks: int) -> None:
        """An enqueue of so many blocks leaves the reserve free."""
        files, file_blocks = self._geometry.files, self._ring.file_blocks
        present, used = divmod(self._ring.position, file_blocks)
        reached = (used + blocks + self._reserve - 1) // file_blocks
        if reached >= files or any(self._counts[(present + ahead) % files] for ahead in range(1, reached + 1)):
            raise over_threshold(f'queue "{self._name}"', files, self._geometry.data_size // PAGE_SIZE)

    def _error(self, what: str) -> JournalError:
        return JournalError(f'queue "{self._name}": {what}')

    # ---- steps ----

    def next_flush(self) -> Step | None:
        """The next step; None if nothing waits to be written, or a step is under way, or the journal failed."""
        return self._ring.next_flush()

    def flushed(self) -> None:
        """All of the step is written and synced."""
        if self.failure is None:
            self._ring.flushed()

    def failed(self, error: OSError) -> None:
        """A write or a sync of the step failed: nothing may be assumed about what reached the disk."""
        if self.failure is None:
            where = f" of {error.filename}" if error.filename else ""
            self.failure = JournalFailedError(
                f'queue "{self._name}": a write or sync{where} failed: {error.strerror or error}; '
                "the journal takes no more records until the store is opened again"
            )
            self._ring.drop()


def reserve_blocks(geometry: Geometry) -> int:
    """Blocks that enqueues leave free: 20 % of the ring, rounded up, at least one file (formats/rhm/README.md, 3.5)."""
    blocks = geometry.capacity // BLOCK_SIZE
    return max(-(-blocks * (_PERCENT - THRESHOLD_PERCENT) // _PERCENT), geometry.data_size // BLOCK_SIZE)


def state_of(
    journal: Journal, recovery: JournalRecovery, end: JournalEnd | None, prepared: Container[bytes] | None = None
) -> Version1State:
    """The state in which a writer takes up a journal that was read.

    Args:
        journal: the journal.
        recovery: what a walk over all of it found, its transactions not yet resolved.
        end: where the walk ended; None if nothing was ever written.
        prepared: the transactions that the prepared list has; the others are dropped. None drops none, as is right for
            the prepared list itself.

    Raises:
        JournalError: a file's header is lost, or the journal is of another format.
    """
    if end is None:
        return Version1State()
    geometry = journal.files.geometry
    base = _first_file(journal) * geometry.data_size
    enqueued = {rid: _number(base + place, geometry) for rid, place, _ in recovery.messages.in_place_order()}
    transactions: dict[bytes, OpenTransaction] = {}
    holders: dict[int, OpenTransaction] = {}
    for transaction in recovery.transactions:
        if prepared is not None and transaction.xid not in prepared:
            continue
        opened = transactions[transaction.xid] = OpenTransaction()
        for operation in transaction:
            if not operation.is_enqueue:
                if operation.rid in holders:  # a lock that was dropped without a record: the later one counts
                    holders[operation.rid].dequeues.discard(operation.rid)
                if operation.rid in enqueued:
                    holders[operation.rid] = opened
                    opened.dequeues.add(operation.rid)
            elif operation.rid not in enqueued:
                enqueued[operation.rid] = _number(base + operation.place, geometry)
                opened.enqueues.add(operation.rid)
    return Version1State((base + end.place) // BLOCK_SIZE, enqueued, transactions)


def _number(place: int, geometry: Geometry) -> int:
    """The number of the file that a byte of the endless stream is in."""
    return place // geometry.data_size % geometry.files


def _first_file(journal: Journal) -> int:
    """The oldest file, counted over all laps."""
    files = [file for file in journal.files.files if isinstance(file, RingFile)]
    for file in files:
        if file.header is None or file.header.version != 1:
            raise JournalError(f"{file.path}: no header of version 1; the journal cannot be written to")
    header = files[0].header
    assert header is not None
    return header.overwrite_indicator * journal.files.geometry.files + header.file_number
