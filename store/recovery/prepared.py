"""The transaction prepared list (TPL): which open transactions are in doubt, and which are decided.

The TPL is a journal like any other. A prepared transaction has an enqueue in it, whose data is one byte: 0 local, 1
distributed (two-phase). In version 2, the name of its user may follow that of a distributed one. The decision is a
dequeue of that enqueue, flagged for a commit. When every queue's journal has its own commit or abort record, the TPL
gets one too, and the transaction is forgotten (formats/rhm/README.md, 6.1). So the open transactions in the TPL
determine the outcome of those open in the queues (6.2 there):

    enqueue only, distributed    in doubt
    enqueue only, local          commit: being prepared was the promise
    enqueue, dequeue             commit if the dequeue is flagged, else abort
    not in the TPL               abort: never prepared
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from qstore.formats.named_tuple import NamedTuple
from qstore.formats.rhm.records import COMMIT_DECISION
from qstore.store.journal.journal import Journal
from qstore.store.journal.recovery import JournalRecovery, Outcome, TransactionMap

LOCAL: Final = b"\0"  # the data of a prepare record
DISTRIBUTED: Final = b"\1"
MAX_USER: Final = 512
"""Bytes of a user's name in UTF-8; a longer one is not stored."""
_NOBODY: Final[Mapping[int, str]] = {}


class PreparedTransaction(NamedTuple):
    """A transaction that is open in the TPL.

    Attributes:
        xid: its id.
        rid: rid of the TPL's enqueue record; None if only the dequeue is left of it.
        two_phase: distributed, or local; None if only the dequeue is left of it, which does not show that.
        outcome: how recovery resolves it.
        user: whose it is, if it is distributed; empty if that is not known.
    """

    xid: bytes
    rid: int | None
    two_phase: bool | None
    outcome: Outcome
    user: str = ""


def prepared_transactions(
    open_transactions: TransactionMap, two_phase: Mapping[int, bool], users: Mapping[int, str] = _NOBODY
) -> list[PreparedTransaction]:
    """The TPL's open transactions and their outcomes.

    Args:
        open_transactions: the transactions open after the walk over the TPL.
        two_phase: log offset of each open enqueue -> whether its data byte is that of a distributed one.
        users: likewise -> the name of its user.
    """
    prepared = []
    for transaction in open_transactions:
        rid: int | None = None
        user = ""
        distributed: bool | None = None
        decisions: dict[int, bool] = {}
        for operation in transaction:
            if operation.is_enqueue:
                # A reused xid: the later prepare counts, and an earlier decision does not apply to it.
                rid, distributed = operation.rid, two_phase[operation.place]
                user = users.get(operation.place, "")
            else:
                decisions[operation.rid] = bool(operation.flags & COMMIT_DECISION)
        decision = next(reversed(decisions.values()), None) if rid is None else decisions.get(rid)
        if decision is None:
            outcome = Outcome.IN_DOUBT if distributed else Outcome.COMMITTING
        else:
            outcome = Outcome.COMMITTING if decision else Outcome.ABORTING
        prepared.append(PreparedTransaction(transaction.xid, rid, distributed, outcome, user))
    return prepared


def prepared_in(journal: Journal, recovery: JournalRecovery) -> list[PreparedTransaction]:
    """The open transactions of a TPL, and their outcomes.

    Args:
        journal: the TPL's.
        recovery: the result of a walk over it; nothing of it is resolved.

    Raises:
        OSError: it cannot be read.
    """
    two_phase: dict[int, bool] = {}
    users: dict[int, str] = {}
    for transaction in recovery.transactions:
        for operation in transaction:
            if operation.is_enqueue:
                place = operation.place
                two_phase[place] = is_two_phase(journal, place)
                if two_phase[place]:
                    users[place] = _user_of(journal, place)
    return prepared_transactions(recovery.transactions, two_phase, users)


def is_two_phase(journal: Journal, place: int) -> bool:
    """Whether the TPL's enqueue record at `place` is that of a distributed transaction. Raises OSError."""
    at, size = journal.data_of_enqueue(place)
    return journal.stream.read(at, min(size, len(LOCAL))) not in (b"", LOCAL)


def prepare_data(user: str) -> bytes:
    """The data of the prepare record of a user's distributed transaction."""
    name = user.encode("utf-8", "surrogateescape")
    return DISTRIBUTED + name if len(name) <= MAX_USER else DISTRIBUTED


def _user_of(journal: Journal, place: int) -> str:
    """The name of the user in the prepare record at `place`; empty without one. Raises OSError."""
    at, size = journal.data_of_enqueue(place)
    if not len(DISTRIBUTED) < size <= len(DISTRIBUTED) + MAX_USER:
        return ""
    return journal.stream.read(at, size)[len(DISTRIBUTED) :].decode("utf-8", "surrogateescape")
