"""The state that a journal's records lead to: its outstanding messages, and its open transactions.

A `JournalRecovery` applies a walk's records to an enqueue map and a transaction map (formats/rhm/README.md, 5.3):

    enqueue                    added to the map
    enqueue under an xid       stored under the xid
    dequeue                    removed from the map, even if locked; an unknown rid is ignored
    dequeue under an xid       its target is locked, if it is in the map; stored under the xid
    commit                     the xid's enqueues are added to the map, then its dequeues are removed
    abort                      the xid's enqueues are dropped, its dequeues' targets unlocked
    enqueue flagged transient  ignored
    anything flagged moved     the later copy replaces the earlier one (version 2)

Transactions that are still open at the end are resolved through the transaction prepared list (6.2 of that page;
`prepared`). Nothing here reads a file or a clock.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from qstore.formats.rhm.records import MOVED, TRANSIENT, Kind
from qstore.store.damage import Damage
from qstore.store.journal.enqueue_map import LIVE, LOCKED, MAX_DUPLICATES, PENDING, EnqueueMap, Entry
from qstore.store.journal.format import JournalFormat
from qstore.store.journal.records import RecordHeader
from qstore.store.journal.transaction_map import Transaction, TransactionMap

MAX_UNFOUNDED: Final = 1000  # stored; a forged journal may have any number


class Outcome(Enum):
    """How recovery resolves an open transaction."""

    IN_DOUBT = "in-doubt"  # prepared and undecided: kept, locked, for the transaction manager to decide
    COMMITTING = "committing"  # decided, or local and prepared: rolled forward
    ABORTING = "aborting"  # decided: rolled back
    UNPREPARED = "unprepared"  # never prepared: dropped


class OpenTransaction(NamedTuple):
    """A transaction that a journal left open, and its outcome there."""

    xid: bytes
    outcome: Outcome
    enqueues: int
    dequeues: int


#: A message that recovery keeps: record id; log offset of its enqueue record; LIVE, LOCKED (a
#: branch in doubt would dequeue it) or PENDING (a branch in doubt would enqueue it); the branch in doubt, if any.
OutstandingRecord: TypeAlias = tuple[int, int, int, bytes | None]


class Unfounded(NamedTuple):
    """A record that refers to something missing: a message never enqueued, or a transaction not open.

    If the journal's beginning was overwritten, most of these are normal: they refer to overwritten records.

    Attributes:
        kind: a dequeue, a commit or an abort.
        place: its log offset.
        rid: its own record id.
        dequeued_rid: of a dequeue, the message that it removes (in a transaction, `rid` is that too).
        xid: of the others, the transaction.
        again: of a plain dequeue, whether the message is known to have been dequeued before.
    """

    kind: Kind
    place: int
    rid: int
    dequeued_rid: int
    xid: bytes
    again: bool = False


class JournalRecovery:
    """A `RecordSink` that builds the recovered state of a journal.

    Attributes:
        messages: the index of enqueued messages.
        transactions: the open transactions.
        left_open: the transactions that were open at the journal's end, once they are resolved.
        unprepared: those among them that were never prepared, with their records.
        damage: damage that the walk found, in order.
        unfounded: the first records that refer to something missing; `unfounded_count` counts all.
        transient_places: log offsets of the enqueues that recovery ignores; `transients` counts them.
        dequeues, commits, aborts: number of records of each kind; `enqueues` are counted too.
    """

    def __init__(self) -> None:
        self.messages = EnqueueMap()
        self.transactions = TransactionMap()
        self.left_open: list[OpenTransaction] = []
        self.unprepared: list[Transaction] = []
        self.damage: list[Damage] = []
        self.unfounded: list[Unfounded] = []
        self.unfounded_count = 0
        self.transient_places = array("Q")
        self.dequeues = self.commits = self.aborts = 0
        self._other_enqueues = 0  # not added directly to the index
        self._indexed_later = 0  # added by transactions
        self._highest_rid = 0  # of all records but plain enqueues
        self._in_doubt: dict[int, bytes] = {}
        self._targetless: list[Unfounded] = []  # transactions' dequeues of messages that were not enqueued before
        #: Called for each plain enqueue: adds it directly to the index.
        self.enqueue = self.messages.add_live

    def dequeue(self, rid: int, dequeued_rid: int, place: int) -> None:
        """A plain dequeue."""
        if rid > self._highest_rid:
            self._highest_rid = rid
        self.dequeues += 1
        if not self.messages.remove(dequeued_rid):
            again = self.messages.was_removed(dequeued_rid)
            self._note_unfounded(Unfounded(Kind.DEQUEUE, place, rid, dequeued_rid, b"", again))

    def record(self, header: RecordHeader, place: int, xid: bytes) -> None:
        """Any record that is not plain."""
        self._highest_rid = max(self._highest_rid, header.rid)
        if header.kind is Kind.ENQUEUE:
            self._enqueue(header, place, xid)
        elif header.kind is Kind.DEQUEUE:
            self._dequeue(header, place, xid)
        elif header.kind is Kind.COMMIT:
            self.commits += 1
            if not self._commit(xid):
                self._note_unfounded(Unfounded(header.kind, place, header.rid, 0, xid))
        elif header.kind is Kind.ABORT:
            self.aborts += 1
            if not self._abort(xid):
                self._note_unfounded(Unfounded(header.kind, place, header.rid, 0, xid))

    def damaged(self, damage: Damage) -> None:
        """Damage that the walk found."""
        self.damage.append(damage)

    @property
    def highest_rid(self) -> int:
        """The highest record id read; 0 if none."""
        return max(self._highest_rid, self.messages.highest_rid)

    @property
    def transients(self) -> int:
        """Number of enqueues that recovery ignores."""
        return len(self.transient_places)

    @property
    def enqueues(self) -> int:
        """Number of enqueue records."""
        return self.messages.added + self.messages.duplicate_count - self._indexed_later + self._other_enqueues

    # ---- records ----

    def _enqueue(self, header: RecordHeader, place: int, xid: bytes) -> None:
        if header.flags & TRANSIENT:
            self.transient_places.append(place)
            self._other_enqueues += 1
        elif xid:
            self._other_enqueues += 1
            self.transactions.of(xid).append(header.rid, place, header.flags, is_enqueue=True)
        elif header.flags & MOVED:
            self._other_enqueues += 0 if self.messages.get(header.rid) is None else 1
            self.messages.move(header.rid, place)
        else:
            self.messages.add(header.rid, place)

    def _dequeue(self, header: RecordHeader, place: int, xid: bytes) -> None:
        if not xid:
            self.dequeue(header.rid, header.dequeued_rid, place)
            return
        self.dequeues += 1
        if not self.messages.set_state(header.dequeued_rid, LOCKED) and len(self._targetless) < MAX_UNFOUNDED:
            self._targetless.append(Unfounded(Kind.DEQUEUE, place, header.dequeued_rid, header.dequeued_rid, xid))
        self.transactions.of(xid).append(header.dequeued_rid, place, header.flags, is_enqueue=False)

    def _note_unfounded(self, record: Unfounded) -> None:
        self.unfounded_count += 1
        if len(self.unfounded) < MAX_UNFOUNDED:
            self.unfounded.append(record)

    def _note_targetless(self, rid: int, xid: bytes) -> None:
        """Note a transaction's dequeue that removed nothing, unless its message existed and was removed otherwise.

        That happens if an xid is reused after a restart, which dropped what was open under it.
        """
        for record in self._targetless:
            if (record.rid, record.xid) == (rid, xid):
                self._note_unfounded(record)

    def _commit(self, xid: bytes) -> bool:
        """Apply a transaction. Returns False if it was not open."""
        transaction = self.transactions.close(xid)
        if transaction is None:
            return False
        # Enqueues first, whatever their order: one that was copied forward follows the dequeue of the same transaction.
        for operation in transaction:
            if operation.is_enqueue:
                self._indexed_later += 1
                self.messages.add(operation.rid, operation.place)
        for operation in transaction:
            if not operation.is_enqueue and not self.messages.remove(operation.rid):
                self._note_targetless(operation.rid, xid)
        return True

    def _abort(self, xid: bytes) -> bool:
        """Undo a transaction. Returns False if it was not open."""
        transaction = self.transactions.close(xid)
        if transaction is None:
            return False
        for operation in transaction:
            if not operation.is_enqueue:
                self.messages.set_state(operation.rid, LIVE)
        return True

    # ---- the end ----

    def open_duplicates(self) -> tuple[list[Entry], int]:
        """Messages that open transactions enqueue with ids already enqueued: the first ones, and their number."""
        known, duplicates, count = EnqueueMap(), [], 0
        for transaction in self.transactions:
            for operation in transaction:
                if not operation.is_enqueue:
                    continue
                if self.messages.get(operation.rid) is None:
                    known.add(operation.rid, operation.place)
                    continue
                count += 1
                if count <= MAX_DUPLICATES:
                    duplicates.append(Entry(operation.rid, operation.place, PENDING))
        return duplicates + known.duplicates, count + known.duplicate_count

    def open_without_target(self) -> Iterator[Unfounded]:
        """Dequeues of missing messages in transactions that are still open."""
        wanted: dict[bytes, set[int]] = {}
        for record in self._targetless:
            if record.xid in self.transactions:
                wanted.setdefault(record.xid, set()).add(record.rid)
        for xid, rids in wanted.items():
            operations = list(self.transactions.of(xid))
            rids.intersection_update(each.rid for each in operations if not each.is_enqueue)  # not before it
            rids.difference_update(each.rid for each in operations if each.is_enqueue)
        return filter(lambda record: record.rid in wanted.get(record.xid, ()), self._targetless)

    def resolve(self, outcomes: Mapping[bytes, Outcome]) -> list[OpenTransaction]:
        """Apply the transaction prepared list's outcomes; transactions that it does not name were never prepared.

        Returns:
            The transactions that were open at the end of this journal.
        """
        resolved = []
        staying = []
        for transaction in list(self.transactions):
            outcome = outcomes.get(transaction.xid, Outcome.UNPREPARED)
            resolved.append(OpenTransaction(transaction.xid, outcome, transaction.enqueues, transaction.dequeues))
            if outcome in (Outcome.COMMITTING, Outcome.IN_DOUBT):
                staying.append((transaction, outcome))
                continue
            self._abort(transaction.xid)
            if outcome is Outcome.UNPREPARED:
                self.unprepared.append(transaction)
        # Locks of dropped transactions are removed first: qpidd writes no record of a dropped transaction, and the
        # message may have been dequeued again by one that remains.
        for transaction, outcome in staying:
            if outcome is Outcome.COMMITTING:
                self._commit(transaction.xid)
            else:
                self._keep_in_doubt(transaction)
        self.left_open = resolved
        return resolved

    def _keep_in_doubt(self, transaction: Transaction) -> None:
        """Add enqueues to the map as pending; one that the same branch also dequeues counts as locked."""
        for operation in transaction:
            if operation.is_enqueue:
                self._indexed_later += 1
                self.messages.add(operation.rid, operation.place, PENDING)
                self._in_doubt[operation.rid] = transaction.xid
        for operation in transaction:
            if not operation.is_enqueue and self.messages.set_state(operation.rid, LOCKED):
                self._in_doubt[operation.rid] = transaction.xid

    def held(self) -> Iterator[OutstandingRecord]:
        """The messages that branches in doubt hold, once the transactions are resolved."""
        for rid, xid in self._in_doubt.items():
            found = self.messages.get(rid)
            if found is not None:
                yield rid, found.place, found.state, xid

    def outstanding(self, journal_format: JournalFormat) -> Iterator[OutstandingRecord]:
        """The messages that recovery keeps, in the format's order: by log offset, or by record id."""
        by_rid = journal_format.keeps_rid_order
        entries = self.messages.in_rid_order() if by_rid else self.messages.in_place_order()
        in_doubt = self._in_doubt
        for rid, place, state in entries:
            yield rid, place, state, in_doubt.get(rid) if in_doubt else None
