"""Open transactions of the prepared list (formats/rhm/README.md, 6.2)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from qstore.formats.rhm.records import COMMIT_DECISION, MOVED
from qstore.store.journal.recovery import Outcome, TransactionMap
from qstore.store.recovery.prepared import PreparedTransaction, prepared_transactions

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
