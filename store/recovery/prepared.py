"""The transaction prepared list (TPL): which open transactions are in doubt, and which are decided.

The TPL is a journal like any other. A prepared transaction has an enqueue in it, whose data is one byte: 0 local, 1
distributed (two-phase). The decision is a dequeue of that enqueue, flagged for a commit. When every queue's journal has
its own commit or abort record, the TPL gets one too, and the transaction is forgotten (formats/rhm/README.md, 6.1). So
the open transactions in the TPL determine the outcome of those open in the queues (6.2 there):

    enqueue only, distributed    in doubt
    enqueue only, local          commit: being prepared was the promise
    enqueue, dequeue             commit if the dequeue is flagged, else abort
    not in the TPL               abort: never prepared
"""

from __future__ import annotations

from typing import Final, NamedTuple

from qstore.formats.rhm.records import COMMIT_DECISION
from qstore.store.journal.journal import Journal
from qstore.store.journal.recovery import JournalRecovery, Outcome
from qstore.store.journal.transaction_map import TransactionMap

LOCAL: Final = b"\0"  # the data of a prepare record
DISTRIBUTED: Final = b"\1"


class PreparedTransaction(NamedTuple):
    """A transaction that is open in the TPL.

    Attributes:
        xid: its id.
        rid: rid of the TPL's enqueue record; None if only the dequeue is left of it.
        two_phase: distributed, or local; None if only the dequeue is left of it, which does not show that.
        outcome: how recovery resolves it.
    """

    xid: bytes
    rid: int | None
    two_phase: bool | None
    outcome: Outcome


def prepared_transactions(open_transactions: TransactionMap, two_phase: dict[int, bool]) -> list[PreparedTransaction]:
    """The TPL's open transactions and their outcomes.

    Args:
        open_transactions: the transactions open after the walk over the TPL.
        two_phase: log offset of each open enqueue -> whether its data byte is that of a distributed one.
    """
    prepared = []
    for transaction in open_transactions:
        rid: int | None = None
        distributed: bool | None = None
        decisions: dict[int, bool] = {}
        for operation in transaction:
            if operation.is_enqueue:
                # A reused xid: the later prepare counts, and an earlier decision does not apply to it.
                rid, distributed = operation.rid, two_phase[operation.place]
            else:
                decisions[operation.rid] = bool(operation.flags & COMMIT_DECISION)
        decision = next(reversed(decisions.values()), None) if rid is None else decisions.get(rid)
        if decision is None:
            outcome = Outcome.IN_DOUBT if distributed else Outcome.COMMITTING
        else:
            outcome = Outcome.COMMITTING if decision else Outcome.ABORTING
        prepared.append(PreparedTransaction(transaction.xid, rid, distributed, outcome))
    return prepared


def prepared_in(journal: Journal, recovery: JournalRecovery) -> list[PreparedTransaction]:
    """The open transactions of a TPL, and their outcomes.

    Args:
        journal: the TPL's.
        recovery: the result of a walk over it; nothing of it is resolved.

    Raises:
        OSError: it cannot be read.
    """
    two_phase = {
        operation.place: is_two_phase(journal, operation.place)
        for transaction in recovery.transactions
        for operation in transaction
        if operation.is_enqueue
    }
    return prepared_transactions(recovery.transactions, two_phase)


def is_two_phase(journal: Journal, place: int) -> bool:
    """Whether the TPL's enqueue record at `place` is that of a distributed transaction. Raises OSError."""
    at, size = journal.data_of_enqueue(place)
    return journal.stream.read(at, min(size, len(LOCAL))) not in (b"", LOCAL)
