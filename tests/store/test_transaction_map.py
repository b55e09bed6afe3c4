"""The open transactions of a journal."""

from __future__ import annotations

import sys
import time

from qstore.formats.rhm.records import MOVED, OVERWRITE_INDICATOR
from qstore.store.journal.recovery import Operation, TransactionMap
from tests.support.compiled import replaces


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
