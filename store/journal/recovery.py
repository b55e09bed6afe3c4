"""What a journal leaves behind: its outstanding messages, and its open transactions.

A `JournalRecovery` takes a walk's records into an enqueue map and a transaction map (formats/rhm/README.md, 5.3):

    enqueue                    into the map
    enqueue under an xid       remembered under the xid
    dequeue                    out of the map, even if locked; an unknown rid is nothing to remove
    dequeue under an xid       its target is locked, if it is in the map; remembered under the xid
    commit                     the xid's enqueues enter the map, then its dequeues leave it
    abort                      the xid's enqueues are forgotten, its dequeues' targets unlocked
    enqueue flagged transient  nothing
    anything flagged moved     the later copy takes the place of the earlier (version 2)

What is still open then is resolved through the transaction prepared list (6.2 of that page; `prepared`). Nothing here
reads a file or a clock.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from formats.rhm.records import MOVED, TRANSIENT, Kind
from store.damage import Damage
from store.journal.enqueue_map import LIVE, LOCKED, MAX_DUPLICATES, PENDING, EnqueueMap, Entry
from store.journal.format import JournalFormat
from store.journal.records import RecordHeader
from store.journal.transaction_map import Transaction, TransactionMap

MAX_UNFOUNDED: Final = 1000  # kept; a forged journal may have any number


class Outcome(Enum):
    """What recovery does with an open transaction."""

    IN_DOUBT = "in-doubt"  # prepared and undecided: kept, locked, for the transaction manager to decide
    COMMITTING = "committing"  # decided, or local and prepared: rolled forward
    ABORTING = "aborting"  # decided: rolled back
    UNPREPARED = "unprepared"  # never prepared: dropped


class OpenTransaction(NamedTuple):
    """A transaction that a journal left open, and what became of it there."""

    xid: bytes
    outcome: Outcome
    enqueues: int
    dequeues: int


#: A message that recovery keeps: record id; where its enqueue record stands in the journal's stream; LIVE, LOCKED (a
#: branch in doubt would dequeue it) or PENDING (a branch in doubt would enqueue it); the branch in doubt, if any.
OutstandingRecord: TypeAlias = tuple[int, int, int, bytes | None]


class Unfounded(NamedTuple):
    """A record about something that the journal does not hold: a message never enqueued, or a transaction not open.

    Where the journal's beginning is overwritten, most of these are normal: what they are about was there.

    Attributes:
        kind: a dequeue, a commit or an abort.
        place: where it stands in the journal's stream.
        rid: its own record id.
        dequeued_rid: of a dequeue, the message that it removes; of one in a transaction, `rid` is that too.
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
    """A `RecordSink` that keeps what a journal leaves behind.

    Attributes:
        messages: the index of what is enqueued.
        transactions: what is still open.
        left_open: the transactions that were open at the journal's end, once they are resolved.
        unprepared: those among them that were never prepared, with their records.
        damage: damage that the walk met, in order.
        unfounded: the first records that are about nothing that is there; `unfounded_count` counts all.
        transient_places: where the enqueues stand that recovery ignores; `transients` counts them.
        dequeues, commits, aborts: how many records of each kind there are; `enqueues` are counted too.
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
        self._other_enqueues = 0  # not straight into the index
        self._indexed_later = 0  # what transactions put into it
        self._highest_rid = 0  # of the records that are no plain enqueues
        self._in_doubt: dict[int, bytes] = {}
        self._targetless: list[Unfounded] = []  # transactions' dequeues of what was not enqueued, or in the same one
        #: Called for each plain enqueue: straight into the index.
        self.enqueue = self.messages.add

    def dequeue(self, rid: int, dequeued_rid: int, place: int) -> None:
        """A plain dequeue."""
        if rid > self._highest_rid:
            self._highest_rid = rid
        self.dequeues += 1
        if not self.messages.remove(dequeued_rid):
            again = self.messages.was_removed(dequeued_rid)
            self._note_unfounded(Unfounded(Kind.DEQUEUE, place, rid, dequeued_rid, b"", again))

    def record(self, header: RecordHeader, place: int, xid: bytes) -> None:
        """A record that is not plain."""
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
        """Damage that the walk met."""
        self.damage.append(damage)

    @property
    def highest_rid(self) -> int:
        """The highest record id met; 0 if none."""
        return max(self._highest_rid, self.messages.highest_rid)

    @property
    def transients(self) -> int:
        """How many enqueues recovery ignores."""
        return len(self.transient_places)

    @property
    def enqueues(self) -> int:
        """How many enqueue records there are."""
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
        """A transaction's dequeue removed nothing. One whose message was there, and went another way, is no matter.

        That happens where an xid is used again after a restart, which dropped what was open under it.
        """
        for record in self._targetless:
            if (record.rid, record.xid) == (rid, xid):
                self._note_unfounded(record)

    def _commit(self, xid: bytes) -> bool:
        """Apply a transaction. False: it was not open."""
        transaction = self.transactions.close(xid)
        if transaction is None:
            return False
        # Enqueues first, wherever they stand: one that was copied forward follows the dequeue of the same transaction.
        for operation in transaction:
            if operation.is_enqueue:
                self._indexed_later += 1
                self.messages.add(operation.rid, operation.place)
        for operation in transaction:
            if not operation.is_enqueue and not self.messages.remove(operation.rid):
                self._note_targetless(operation.rid, xid)
        return True

    def _abort(self, xid: bytes) -> bool:
        """Undo a transaction. False: it was not open."""
        transaction = self.transactions.close(xid)
        if transaction is None:
            return False
        for operation in transaction:
            if not operation.is_enqueue:
                self.messages.set_state(operation.rid, LIVE)
        return True

    # ---- the end ----

    def open_duplicates(self) -> tuple[list[Entry], int]:
        """Messages that open transactions enqueue though their ids are enqueued already: the first, and how many."""
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
        """Dequeues, in transactions that are still open, of messages that were not there."""
        wanted: dict[bytes, set[int]] = {}
        for record in self._targetless:
            if record.xid in self.transactions:
                wanted.setdefault(record.xid, set()).add(record.rid)
        for xid, rids in wanted.items():
            operations = list(self.transactions.of(xid))
            rids.intersection_update(each.rid for each in operations if not each.is_enqueue)  # not one before it
            rids.difference_update(each.rid for each in operations if each.is_enqueue)
        return (record for record in self._targetless if record.rid in wanted.get(record.xid, ()))

    def resolve(self, outcomes: Mapping[bytes, Outcome]) -> list[OpenTransaction]:
        """Apply the transaction prepared list's outcomes; what it does not name was never prepared.

        Returns:
            The transactions that this journal had left open.
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
        # What is dropped lets its locks go first: qpidd leaves no record of a dropped transaction, and the message may
        # have been dequeued again by one that stays.
        for transaction, outcome in staying:
            if outcome is Outcome.COMMITTING:
                self._commit(transaction.xid)
            else:
                self._keep_in_doubt(transaction)
        self.left_open = resolved
        return resolved

    def _keep_in_doubt(self, transaction: Transaction) -> None:
        """Enqueues enter the map as pending; one that the same branch also dequeues counts as locked."""
        for operation in transaction:
            if operation.is_enqueue:
                self._indexed_later += 1
                self.messages.add(operation.rid, operation.place, PENDING)
                self._in_doubt[operation.rid] = transaction.xid
        for operation in transaction:
            if not operation.is_enqueue and self.messages.set_state(operation.rid, LOCKED):
                self._in_doubt[operation.rid] = transaction.xid

    def outstanding(self, journal_format: JournalFormat) -> Iterator[OutstandingRecord]:
        """The messages that recovery keeps, in the order that the format keeps: of the journal, or of record ids."""
        by_rid = journal_format.keeps_rid_order
        entries = self.messages.in_rid_order() if by_rid else self.messages.in_place_order()
        in_doubt = self._in_doubt
        return ((rid, place, state, in_doubt.get(rid) if in_doubt else None) for rid, place, state in entries)
