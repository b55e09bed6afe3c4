"""Content of a journal that a new one is to take: the same before transactions are resolved and afterwards."""

from __future__ import annotations

import pytest

from qstore.formats.rhm.geometry import Geometry
from qstore.formats.rhm.headers import record_blocks
from qstore.formats.rhm.jinf import TPL_BASE_NAME
from qstore.formats.rhm.records import COMMIT_DECISION
from qstore.store.journal.recovery import Outcome
from qstore.store.recovery.close_record import Closing
from qstore.store.recovery.journal_content import JournalContent, content_of
from qstore.store.recovery.journal_recovery import RecoveredJournal, recover_directory
from tests.support.journal_builder import DIRECTORY, JournalBuilder

XID, OTHER = b"transaction", b"another"
RING = Geometry(4, 8192)


def recovered(builder: JournalBuilder) -> RecoveredJournal:
    builder.flush()
    return recover_directory(builder.disk(), DIRECTORY, "orders", Closing(is_clean=False))


def branch() -> JournalBuilder:
    """Two messages, one of which a branch dequeues; it enqueues two, one of which it dequeues, and misses one."""
    builder = JournalBuilder(2, RING)
    first = builder.enqueue(b"m" * 300).header.rid
    builder.enqueue(b"m" * 400)
    own = builder.enqueue(b"m" * 500, xid=XID).header.rid
    builder.enqueue(b"m" * 600, xid=XID)
    builder.dequeue(first, xid=XID)
    builder.dequeue(own, xid=XID)
    builder.dequeue(99_999, xid=XID)
    return builder


@pytest.mark.parametrize("is_resolved", [False, True])
def test_a_branch_in_doubt_counts_once(*, is_resolved: bool) -> None:
    found = recovered(branch())
    if is_resolved:
        found.recovery.resolve({XID: Outcome.IN_DOUBT})
    expected = JournalContent()
    for size in (300, 400):
        expected.message(size)
    expected.transaction(len(XID))
    for size in (500, 600):
        expected.message(size, len(XID))
    expected.removal(len(XID))
    expected.removal(len(XID))
    assert content_of(found.journal, found.recovery) == expected


def test_resolved_transaction_counts_by_its_outcome() -> None:
    found = recovered(branch())
    found.recovery.resolve({XID: Outcome.COMMITTING})
    expected = JournalContent()
    for size in (400, 600):
        expected.message(size)
    assert content_of(found.journal, found.recovery) == expected


def test_a_transaction_that_has_nothing_left_counts_for_nothing() -> None:
    builder = JournalBuilder(2, RING)
    builder.dequeue(99_999, xid=OTHER)
    found = recovered(builder)
    assert content_of(found.journal, found.recovery) == JournalContent()


def test_a_decision_without_its_prepare_record_gets_one() -> None:
    builder = JournalBuilder(2, RING, queue_name="TplStore", base_name=TPL_BASE_NAME)
    prepare = builder.enqueue(b"\1", xid=XID).header.rid
    builder.dequeue(prepare, xid=XID, flags=COMMIT_DECISION)
    builder.dequeue(99_999, xid=OTHER, flags=COMMIT_DECISION)
    found = recovered(builder)
    content = content_of(found.journal, found.recovery, is_prepared_list=True)
    assert (content.messages, content.transactions) == (2, 2)
    assert content.removal_blocks == record_blocks(0, len(XID)) + record_blocks(0, len(OTHER))
