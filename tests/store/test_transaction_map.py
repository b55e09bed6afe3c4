"""The open transactions of a journal."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.records import COMMIT_DECISION, MOVED, OVERWRITE_INDICATOR
from qstore.store.disk import OsDisk
from qstore.store.journal.directory import open_journal, open_line
from qstore.store.journal.journal import Journal
from qstore.store.journal.recovery import JournalRecovery, Operation, Outcome, TransactionMap
from qstore.store.recovery.journal_recovery import contradictions
from qstore.store.recovery.prepared import PreparedTransaction, prepared_transactions
from tests.support.compiled import replaces
from tests.support.journal_builder import JournalBuilder
from tests.support.linear_builder import LinearBuilder


def test_operations_are_kept_in_order() -> None:
    transactions = TransactionMap()
    transactions.of(b"a").append(7, 128, OVERWRITE_INDICATOR, is_enqueue=True)
    transactions.of(b"b").append(1, 256, 0, is_enqueue=True)
    transactions.of(b"a").append(3, 384, 0x10, is_enqueue=False)
    assert len(transactions) == 2
    assert [transaction.xid for transaction in transactions] == [b"a", b"b"]
    first = transactions.of(b"a")
    assert list(first) == [Operation(7, 128, 1, True), Operation(3, 384, 0x10, False)]
    assert (first.enqueues, first.dequeues) == (1, 1)
    assert b"a" in transactions
    assert b"c" not in transactions


def test_closing_takes_it_out() -> None:
    transactions = TransactionMap()
    transactions.of(b"a").append(7, 128, 0, is_enqueue=True)
    closed = transactions.close(b"a")
    assert closed is not None
    assert list(closed) == [Operation(7, 128, 0, True)]
    assert transactions.close(b"a") is None
    assert len(transactions) == 0
    assert list(transactions.of(b"a")) == []  # the same xid used again begins anew


def test_a_moved_record_stands_for_its_earlier_copy() -> None:
    transaction = TransactionMap().of(b"a")
    transaction.append(7, 128, 0, is_enqueue=True)
    transaction.append(7, 256, 0, is_enqueue=False)
    transaction.append(8, 384, 0, is_enqueue=True)
    transaction.append(7, 1280, MOVED, is_enqueue=True)
    transaction.append(7, 1408, MOVED, is_enqueue=False)
    assert list(transaction) == [
        Operation(8, 384, 0, True),
        Operation(7, 1280, MOVED, True),
        Operation(7, 1408, MOVED, False),
    ]
    assert (transaction.enqueues, transaction.dequeues) == (2, 1)
    transaction.append(7, 2560, MOVED, is_enqueue=True)  # and moved again
    assert (transaction.enqueues, transaction.dequeues) == (2, 1)
    assert max(operation.place for operation in transaction) == 2560


def test_a_moved_record_whose_earlier_copy_is_gone() -> None:
    transaction = TransactionMap().of(b"a")
    transaction.append(7, 1280, MOVED, is_enqueue=True)
    assert list(transaction) == [Operation(7, 1280, MOVED, True)]


@replaces
def test_memory() -> None:
    """25 bytes or so for each operation of a giant transaction."""
    transaction = TransactionMap().of(b"a")
    for rid in range(100_000):
        transaction.append(rid, rid * 128, 0, is_enqueue=True)
    parts = [getattr(transaction, name) for name in transaction.__slots__]
    assert sum(sys.getsizeof(part) for part in parts) <= 25 * 100_000


def test_moving_a_giant_transaction_takes_linear_time() -> None:
    """Every record of it is relocated, half of them with their earlier copies overwritten."""
    transaction = TransactionMap().of(b"a")
    begun = time.process_time()
    for rid in range(50_000):
        transaction.append(rid, rid * 128, 0, is_enqueue=True)
    for rid in range(25_000, 75_000):
        transaction.append(rid, 10**9 + rid * 128, MOVED, is_enqueue=True)
    assert transaction.enqueues == 75_000
    assert sum(1 for _ in transaction) == 75_000
    assert time.process_time() - begun < 2


# ---- open transactions of the prepared list (formats/rhm/README.md, 6.2) ----


XID = b"\x06\x04xid"
ENQUEUE, DEQUEUE = True, False


def resolve(operations: Sequence[tuple[bool, int, int]], *, two_phase: bool) -> list[PreparedTransaction]:
    """Operations are (is enqueue, rid of the enqueue, flags)."""
    transactions = TransactionMap()
    kinds = {}
    for index, (is_enqueue, rid, flags) in enumerate(operations):
        place = index * 128
        transactions.of(XID).append(rid, place, flags, is_enqueue=is_enqueue)
        if is_enqueue:
            kinds[place] = two_phase
    return prepared_transactions(transactions, kinds)


@pytest.mark.parametrize(
    ("two_phase", "operations", "outcome"),
    [
        (True, [(ENQUEUE, 5, 0)], Outcome.IN_DOUBT),
        (False, [(ENQUEUE, 5, 0)], Outcome.COMMITTING),
        (True, [(ENQUEUE, 5, 0), (DEQUEUE, 5, COMMIT_DECISION)], Outcome.COMMITTING),
        (False, [(ENQUEUE, 5, 0), (DEQUEUE, 5, COMMIT_DECISION)], Outcome.COMMITTING),
        (True, [(ENQUEUE, 5, 0), (DEQUEUE, 5, 0)], Outcome.ABORTING),
        (False, [(ENQUEUE, 5, 0), (DEQUEUE, 5, 0)], Outcome.ABORTING),
        # Other bits of the dequeue's flags, the overwrite indicator for one, decide nothing.
        (True, [(ENQUEUE, 5, 1), (DEQUEUE, 5, 1)], Outcome.ABORTING),
    ],
)
def test_resolution(two_phase: bool, operations: list[tuple[bool, int, int]], outcome: Outcome) -> None:
    assert resolve(operations, two_phase=two_phase) == [PreparedTransaction(XID, 5, two_phase, outcome)]


@pytest.mark.parametrize(("flags", "outcome"), [(COMMIT_DECISION, Outcome.COMMITTING), (0, Outcome.ABORTING)])
def test_only_the_decision_is_left(flags: int, outcome: Outcome) -> None:
    assert resolve([(DEQUEUE, 5, flags)], two_phase=False) == [PreparedTransaction(XID, None, None, outcome)]


def test_an_xid_used_again_is_undecided_again() -> None:
    operations = [(ENQUEUE, 5, 0), (DEQUEUE, 5, COMMIT_DECISION), (ENQUEUE, 9, 0)]
    assert resolve(operations, two_phase=True) == [PreparedTransaction(XID, 9, True, Outcome.IN_DOUBT)]


@pytest.mark.parametrize("two_phase", [True, False])
@pytest.mark.parametrize(("flags", "outcome"), [(COMMIT_DECISION, Outcome.COMMITTING), (0, Outcome.ABORTING)])
@pytest.mark.parametrize(
    "shape",
    [
        # The prepared record is relocated, the decision after it; a crash may come between the two, and the file that
        # held the first copy of the prepared record may be overwritten.
        [(ENQUEUE, 0), (DEQUEUE, 0), (ENQUEUE, MOVED)],
        [(ENQUEUE, 0), (DEQUEUE, 0), (ENQUEUE, MOVED), (DEQUEUE, MOVED)],
        [(DEQUEUE, 0), (ENQUEUE, MOVED)],
        [(DEQUEUE, 0), (ENQUEUE, MOVED), (DEQUEUE, MOVED)],
    ],
)
def test_relocation_does_not_undo_a_decision(
    two_phase: bool, flags: int, outcome: Outcome, shape: list[tuple[bool, int]]
) -> None:
    operations = [(is_enqueue, 5, moved | (0 if is_enqueue else flags)) for is_enqueue, moved in shape]
    assert resolve(operations, two_phase=two_phase) == [PreparedTransaction(XID, 5, two_phase, outcome)]


def test_transactions_keep_their_order() -> None:
    transactions = TransactionMap()
    for index, xid in enumerate([b"c", b"a", b"b"]):
        transactions.of(xid).append(index, index * 128, 0, is_enqueue=True)
    prepared = prepared_transactions(transactions, {0: True, 128: False, 256: True})
    assert [(transaction.xid, transaction.two_phase) for transaction in prepared] == [
        (b"c", True),
        (b"a", False),
        (b"b", True),
    ]
    assert prepared_transactions(TransactionMap(), {}) == []


# ---- contradictions among the records of a journal, in transactions that are still open ----


XID_A, OTHER_XID = b"one", b"two"
#: What is enqueued under one id: in which transactions, b"" for none.
TWICE: Final = [
    (XID_A, XID_A),
    (b"", XID_A),
    (XID_A, b""),
    (XID_A, OTHER_XID),
]


def found_in(journal: Journal) -> list[tuple[int | None, str]]:
    """Record ids and texts of the contradictions; there is no other damage."""
    recovery = JournalRecovery()
    end = journal.walk(recovery)
    assert [*journal.damage, *recovery.damage] == []
    found = contradictions(journal, recovery, end)
    journal.close()
    return [(damage.rid, damage.what) for damage in found]


def ring(builder: JournalBuilder, path: Path) -> Journal:
    """The journal that was built."""
    builder.flush()
    builder.write_to(path)
    return open_journal(OsDisk(), str(path))


@pytest.mark.parametrize("xids", TWICE)
@pytest.mark.parametrize("version", [1, 2])
def test_an_id_enqueued_twice_in_a_ring(tmp_path: Path, version: int, xids: tuple[bytes, bytes]) -> None:
    builder = JournalBuilder(version, Geometry(4, 4096))
    first = builder.enqueue(b"first", xid=xids[0]).header.rid
    builder.enqueue(b"second", rid=first, xid=xids[1])
    builder.enqueue(b"third", xid=XID_A)
    assert found_in(ring(builder, tmp_path / "q")) == [(first, "duplicate record id: it is already enqueued")]


@pytest.mark.parametrize("xids", TWICE)
def test_an_id_enqueued_twice_in_a_line(tmp_path: Path, xids: tuple[bytes, bytes]) -> None:
    builder = LinearBuilder(queue_name="q")
    builder.enqueue(7, b"first", xids[0])
    builder.enqueue(7, b"second", xids[1])
    path = builder.write_plain(tmp_path / "q")
    assert found_in(open_line(OsDisk(), str(path), None, {}, follow_links=True)) == [
        (7, "duplicate record id: it is already enqueued")
    ]


def test_a_copy_is_not_enqueued_twice(tmp_path: Path) -> None:
    """A record that was moved, and beside it one whose id is used again."""
    builder = JournalBuilder(2, Geometry(4, 4096))
    moved = builder.enqueue(b"moved", xid=XID_A).header.rid
    twice = builder.enqueue(b"twice", xid=XID_A).header.rid
    builder.enqueue(b"moved", rid=moved, xid=XID_A, flags=MOVED)
    builder.enqueue(b"again", rid=twice, xid=XID_A)
    assert found_in(ring(builder, tmp_path / "q")) == [(twice, "duplicate record id: it is already enqueued")]


def test_contradictions_beyond_the_limit_are_only_counted(tmp_path: Path) -> None:
    builder = JournalBuilder(2, Geometry(4, 1 << 20))
    rids = [builder.enqueue(b"", xid=XID_A).header.rid for _ in range(1200)]
    for rid in rids:
        builder.enqueue(b"", rid=rid, xid=XID_A)
    found = found_in(ring(builder, tmp_path / "q"))
    assert len(found) == 1001
    assert found[-1] == (None, "200 more records with duplicate record ids")
