"""Writes a version-1 journal, that of qpidd's legacystore: for tests, and to return a store to qpidd.

    enqueue, dequeue, commit, abort    a record is added to the write batch, or refused as a whole
    next_flush() -> step               writes and syncs to do now; one step is under way at a time
    flushed()                          the step is synced; with a flush's last step `synced` advances
    failed(error)                      the outcome is unknown; the journal accepts nothing more

`version_1_ring` lays out the records; this module tracks enqueued messages and decides which records are accepted
(formats/rhm/README.md, 3.3, 3.5 and 3.6).

Each file counts the messages whose enqueue records begin in it and that are not dequeued, those of open transactions
included. A file is entered again only when its count is zero. Two rules follow from that:

    threshold   an enqueue is refused if it, and after it a reserve of 20 % of the ring or one file, whichever is more,
                would reach a file whose count is not zero, or round to the current file
    full        any record is refused that would enter such a file

Nothing is compacted here: a message that stays can bring a journal to where it accepts not even dequeues, as in qpidd.
qpidd writes a record first and switches to the next file afterwards, so an operation that it refuses as "full" may be
on the disk; here nothing of a refused operation is written. A record id that is enqueued twice, which qpidd detects
after it wrote the record, is refused likewise.

A transaction's dequeue locks its message until the commit or the abort. Transient messages count and can be dequeued
like others; recovery ignores them. Recovery drops transactions that were never prepared, and as in qpidd no record
states that.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Final

from qstore.formats.rhm.geometry import BLOCK_SIZE, PAGE_SIZE, Geometry
from qstore.formats.rhm.records import COMMIT_DECISION, EXTERNAL, TRANSIENT, Kind, RecordHeader
from qstore.store.journal.journal import Journal
from qstore.store.journal.reader import JournalEnd
from qstore.store.journal.recovery import JournalRecovery
from qstore.store.journal.ring.order import RingFile
from qstore.store.journal.write.step import JournalError, JournalFailedError, JournalFullError, Step, over_threshold
from qstore.store.journal.write.threshold import THRESHOLD_PERCENT
from qstore.store.journal.write.version_1_ring import Version1Ring

_PERCENT: Final = 100


@dataclass(slots=True)
class OpenTransaction:
    """The operations of an open transaction in one journal.

    Attributes:
        enqueues: record ids of the messages that it would enqueue.
        dequeues: record ids of the messages that it would dequeue; they are locked.
    """

    enqueues: set[int] = field(default_factory=set)
    dequeues: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Version1State:
    """The content of a journal when its writer resumes it; empty if it is new. The writer takes the dicts over.

    Attributes:
        position: block of the endless stream of all laps where it ended. The lap number matters only for its parity,
            the overwrite indicator.
        enqueued: record id -> number of the file in which the enqueue record begins, of every existing message, those
            that open transactions enqueue included.
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
        page: maximum bytes of one write: the page of the write cache.
        clock: returns nanoseconds since the epoch, for the file headers.
        state: the existing content.

    Attributes:
        failure: the error after which the journal accepts no records; None if there is none.
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

    # ---- state ----

    @property
    def position(self) -> int:
        """Block of the endless stream of all laps where the next record goes."""
        return self._ring.position

    @property
    def counts(self) -> tuple[int, ...]:
        """For each file, the number of messages that prevent its reuse."""
        return tuple(self._counts)

    @property
    def batch_number(self) -> int:
        """Number of the flush of the current batch, from 1."""
        return self._ring.batch_number

    @property
    def synced(self) -> int:
        """Number of the last synced flush; 0 for none."""
        return self._ring.synced

    @property
    def is_dirty(self) -> bool:
        """Whether anything is unsynced: a resumed journal may begin with fillers to write."""
        return self._ring.is_dirty

    @property
    def unsynced(self) -> int:
        """Bytes appended and not known to be on the disk."""
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
            transient: recovery will ignore it.
            external_size: size in bytes of data stored elsewhere; `data` is empty then.

        Raises:
            JournalFullError: there is no room, by the threshold or at all.
            JournalFailedError: the journal failed earlier.
            JournalError: the record id is already enqueued. Nothing was appended in any case.
        """
        self._check_usable()
        if rid in self._enqueued:
            raise self._error(f"record 0x{rid:x} is already enqueued")
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
        """Append the removal of a message; in a transaction the message is locked until that ends.

        Args:
            rid: the record's own id.
            dequeued_rid: the message.
            xid: the transaction that removes it; none by default.
            commit_decision: in the transaction prepared list: the decision is to commit.

        Raises:
            JournalFullError: the next file still holds messages.
            JournalFailedError: the journal failed earlier.
            JournalError: the message does not exist, or is locked. Nothing was appended in any case.
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
        """Append the commit of an open transaction: messages it dequeued are removed, those it enqueued exist.

        Raises:
            JournalError: no such transaction is open. Otherwise as `dequeue`.
        """
        for message in self._end(Kind.COMMIT, rid, xid).dequeues:
            self._remove(message)

    def abort(self, rid: int, xid: bytes) -> None:
        """Append the abort of an open transaction: messages it enqueued are removed, those it dequeued are unlocked.

        Raises:
            JournalError: no such transaction is open. Otherwise as `dequeue`.
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
        """Check that a message is enqueued, perhaps by the same transaction, and that no transaction dequeues it."""
        holder = self._holders.get(rid)
        is_pending = holder is not None and rid in self._transactions[holder].enqueues
        if rid not in self._enqueued or (is_pending and holder != xid):
            raise self._error(f"there is no record 0x{rid:x} to dequeue")
        if holder is not None and rid in self._transactions[holder].dequeues:
            raise self._error(f"record 0x{rid:x} is locked by transaction {holder.hex()}")

    # ---- admission ----

    def _check_usable(self) -> None:
        if self.failure is not None:
            raise JournalFailedError(str(self.failure))

    def _check_enterable(self, blocks: int) -> None:
        """Check that a record of `blocks` blocks enters no file with messages, and none in which it begins itself."""
        files = self._geometry.files
        entered = self._ring.entered_by(blocks)
        overlaps = entered and entered[-1] - self._ring.file >= files
        if overlaps or any(self._counts[index % files] for index in entered):
            raise JournalFullError(f'Journal full on queue "{self._name}".')

    def _check_threshold(self, blocks: int) -> None:
        """Check that an enqueue of `blocks` blocks leaves the reserve free."""
        files, file_blocks = self._geometry.files, self._ring.file_blocks
        present, used = divmod(self._ring.position, file_blocks)
        reached = (used + blocks + self._reserve - 1) // file_blocks
        if reached >= files or any(self._counts[(present + ahead) % files] for ahead in range(1, reached + 1)):
            raise over_threshold(f'queue "{self._name}"', files, self._geometry.data_size // PAGE_SIZE)

    def _error(self, what: str) -> JournalError:
        return JournalError(f'queue "{self._name}": {what}')

    # ---- steps ----

    def next_flush(self) -> Step | None:
        """The next step; None if nothing is to be written, a step is under way, or the journal failed."""
        return self._ring.next_flush()

    def flushed(self) -> None:
        """The step is written and synced."""
        if self.failure is None:
            self._ring.flushed()

    def failed(self, error: OSError) -> None:
        """A write or a sync of the step failed: it is unknown what reached the disk."""
        if self.failure is None:
            where = f" of {error.filename}" if error.filename else ""
            self.failure = JournalFailedError(
                f'queue "{self._name}": a write or sync{where} failed: {error.strerror or error}; '
                "the journal accepts no more records until the store is opened again"
            )
            self._ring.drop()


def reserve_blocks(geometry: Geometry) -> int:
    """Blocks that enqueues leave free: 20 % of the ring, rounded up, at least one file (formats/rhm/README.md, 3.5)."""
    blocks = geometry.capacity // BLOCK_SIZE
    return max(-(-blocks * (_PERCENT - THRESHOLD_PERCENT) // _PERCENT), geometry.data_size // BLOCK_SIZE)


def state_of(
    journal: Journal, recovery: JournalRecovery, end: JournalEnd | None, prepared: Container[bytes] | None = None
) -> Version1State:
    """The state in which a writer resumes a recovered journal.

    Args:
        journal: the journal.
        recovery: the result of a walk over all of it, its transactions not yet resolved.
        end: where the walk ended; None if nothing was ever written.
        prepared: the transactions in the prepared list; the others are dropped. None drops none, as is right for
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
                if operation.rid in holders:  # a lock dropped without a record: the later one counts
                    holders[operation.rid].dequeues.discard(operation.rid)
                if operation.rid in enqueued:
                    holders[operation.rid] = opened
                    opened.dequeues.add(operation.rid)
            elif operation.rid not in enqueued:
                enqueued[operation.rid] = _number(base + operation.place, geometry)
                opened.enqueues.add(operation.rid)
    return Version1State((base + end.place) // BLOCK_SIZE, enqueued, transactions)


def _number(place: int, geometry: Geometry) -> int:
    """The number of the file that contains a byte of the endless stream."""
    return place // geometry.data_size % geometry.files


def _first_file(journal: Journal) -> int:
    """The oldest file, counted over all laps."""
    files = [file for file in journal.files.files if isinstance(file, RingFile)]
    for file in files:
        if file.header is None or file.header.version != 1:
            raise JournalError(f"{file.path}: version-1 header is missing; the journal cannot be written to")
    header = files[0].header
    assert header is not None
    return header.overwrite_indicator * journal.files.geometry.files + header.file_number
