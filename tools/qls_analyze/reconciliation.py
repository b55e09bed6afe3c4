"""The outcome of the open transactions in qpidd's recovery (formats/qls/README.md, 5).

A transaction that is open in the prepared list was prepared; a dequeue there is the decision. Without one the
transaction is committed: a restarted linearstore commits every prepared one. One that is not in the list is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from qstore.tools.qls_analyze.journal import Journal
from qstore.tools.qls_analyze.maps import decision_of
from qstore.tools.store_chk.maps import Xid

# Decision in the prepared list -> its text there, and in the queues.
_IN_LIST: Final = {
    None: "[Prepared, neither committed nor aborted - assuming commit]",
    True: "[Prepared, but interrupted during commit phase]",
    False: "[Prepared, but interrupted during abort phase]",
}
_IN_QUEUE: Final = {
    None: "Assuming commit after prepare",
    True: "Completing interrupted commit operation",
    False: "Completing interrupted abort operation",
}
_IGNORED: Final = "Ignoring, not in prepared transaction list"


def reconciliation_lines(prepared_list: Journal | None, queues: Iterable[Journal]) -> Iterator[str]:
    """The report; nothing is changed.

    Raises:
        WalkError: a journal is being written to.
        OSError: a file cannot be read.
    """
    prepared = prepared_list.maps.transactions if prepared_list is not None else {}
    texts = [prepared_list.transaction_text(open_one) for open_one in prepared.values()] if prepared_list else []
    yield "Transaction reconciliation report:"
    yield "=================================="
    yield f"Transaction Prepared List (TPL) contains {len(prepared)} open transaction(s):"
    for text, transaction in zip(texts, prepared.values(), strict=True):
        yield f"  {text} {_IN_LIST[decision_of(transaction.marks)]}"
    yield ""
    yield "Open transactions found in queues:"
    yield "----------------------------------"
    for queue in queues:
        transactions = queue.maps.transactions
        if transactions:
            yield f"{queue.name} contains {len(transactions)} open transaction(s):"
        for xid, transaction in transactions.items():
            known = prepared.get(xid)
            outcome = _IGNORED if known is None else _IN_QUEUE[decision_of(known.marks)]
            yield f"  {queue.transaction_text(transaction)} - {outcome}"
    yield ""
    if texts:
        yield "Creating commit records for the following prepared transactions in TPL:"
        yield from (f"  {text}" for text in texts)
        yield ""


def resolve(prepared_list: Journal | None, queues: Iterable[Journal]) -> None:
    """Commit or abort everything that is open, as the report says; afterwards the prepared list is empty."""
    decisions: dict[Xid, bool] = {}
    if prepared_list is not None:
        for xid, transaction in list(prepared_list.maps.transactions.items()):
            decisions[xid] = decision_of(transaction.marks) is not False
            prepared_list.maps.commit(xid)
            prepared_list.maps.dequeue(transaction.rids[0])
    for queue in queues:
        for xid in list(queue.maps.transactions):
            if decisions.get(xid, False):
                queue.maps.commit(xid)
            else:
                queue.maps.abort(xid)
        queue.check_duplicates()
