"""The commands of class tx: a session's local transactions, one after the other.

    select      from now on, publishing and accepting take effect at commit
    commit      commits all of it, or nothing; the command is completed when that is on the disk. The next one begins
    rollback    discards all of it. The next one begins

Each function takes the session, the command's number and its fields. Transactions are defined in `transactions.local`.

Source: AMQP 0-10, class tx.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from qstore.broker.model.errors import IllegalStateError, ModelError
from qstore.broker.model.transactions.local import LocalTransaction
from qstore.broker.protocols.amqp_0_10.server_session import ServerSession

_Values = dict[str, Any]


def _select(session: ServerSession, _number: int, _values: _Values) -> None:
    if session.transaction is not None or session.branches is not None:
        raise IllegalStateError("the session is already transactional")
    session.transaction = _begin(session)


def _commit(session: ServerSession, number: int, _values: _Values) -> None:
    transaction = _end(session)
    session.ledger.postpone(number)
    accepted = session.deliveries.commit()

    def done(error: ModelError | None) -> None:
        session.is_committing = False
        if error is not None:
            session.fail([[number, number]], error)
        else:
            session.txn_commits += 1
            session.completed_later(number)

    session.is_committing = True
    try:
        transaction.commit(done)
    except ModelError:
        session.is_committing = False
        session.deliveries.unsettled.update(accepted)
        session.txn_rejects += 1
        raise


def _rollback(session: ServerSession, _number: int, _values: _Values) -> None:
    _end(session)
    session.deliveries.roll_back()
    session.txn_rejects += 1


def _begin(session: ServerSession) -> LocalTransaction:
    session.txn_starts += 1
    return session.broker.begin_transaction(session.broker.settings.transaction_bytes)


def _end(session: ServerSession) -> LocalTransaction:
    """End the open transaction and return it; begin the next one."""
    transaction = session.transaction
    if transaction is None or session.branches is not None:
        raise IllegalStateError("Session has not been selected for use with transactions")
    session.broker.end_transaction(transaction)
    session.transaction = _begin(session)
    return transaction


#: Command -> function.
TRANSACTION_COMMANDS: Final[dict[str, Callable[[ServerSession, int, _Values], None]]] = {
    "tx.select": _select,
    "tx.commit": _commit,
    "tx.rollback": _rollback,
}
