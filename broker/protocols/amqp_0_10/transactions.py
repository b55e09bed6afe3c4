"""The commands of classes tx and dtx: local transactions, and branches of distributed ones.

Local transactions of a session, one after the other (`transactions.local`):

    select      from now on, publishing and accepting take effect at commit
    commit      commits all of it, or nothing; the command is completed when that is on the disk. Begins the next one
    rollback    discards all of it. Begins the next one

Distributed transactions (`transactions.branch`):

    select         the session may work for branches
    start, end     publishes and accepts of the session in between belong to the branch
    prepare        the branch is in the store, and can be committed or rolled back even after a crash
    commit         it is committed; with one-phase, it need not be prepared
    rollback       it is rolled back
    recover        returns the xids of prepared branches
    set-timeout, get-timeout    the time after which a branch is rolled back unless it is prepared
    forget         not implemented: the broker never completes a branch heuristically

A session is associated with branches (`SessionBranches`): with at most one current branch, and with suspended ones,
which can be resumed. When the session ends, all of them end as failed.

Any session of the branch's user may prepare, commit and roll it back, and set its timeout; other users need rules
(`transactions.distributed`). These commands are completed when their effect is on the disk; the result is sent before.
The status xa-rdonly is never used, as in qpidd. Flags that exclude each other, and commands without a preceding select,
fail with command-invalid, as in qpidd; for the flags the specification has not-allowed.

Each function takes the session, the command's number and its fields.

Sources: AMQP 0-10, classes tx and dtx; Apache Qpid C++, SessionAdapter.cpp (command-invalid).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from qstore.broker.model.errors import (
    CommandInvalidError,
    IllegalArgumentError,
    IllegalStateError,
    ModelError,
    NotAllowedError,
)
from qstore.broker.model.transactions.branch import Branch, Done, Status
from qstore.broker.model.transactions.distributed import DistributedTransactions
from qstore.broker.model.transactions.local import LocalTransaction
from qstore.formats.amqp_0_10.codes import XaStatus
from qstore.formats.amqp_0_10.commands import encode_result
from qstore.formats.broker_records.xids import decode_xid, encode_dtx_xid
from qstore.formats.values import TYPES, TypedArray

if TYPE_CHECKING:
    from qstore.broker.model.caller import Caller
    from qstore.broker.model.tick import Portion
    from qstore.broker.protocols.amqp_0_10.server_session import ServerSession


class SessionBranches:
    """The associations of one session.

    Args:
        distributed: the broker's branches.
        caller: the session.

    Attributes:
        current: the current branch; None if there is none.
    """

    __slots__ = ("_caller", "_distributed", "_suspended", "current")

    def __init__(self, distributed: DistributedTransactions, caller: Caller) -> None:
        self._distributed, self._caller = distributed, caller
        self.current: Branch | None = None
        self._suspended: dict[bytes, Branch] = {}

    @property
    def branches(self) -> list[Branch]:
        """Those with which it is associated."""
        current = () if self.current is None else (self.current,)
        return [*current, *self._suspended.values()]

    def start(self, xid: bytes) -> Status:
        """Begin a branch, and make it the current one.

        Raises:
            IllegalStateError: another one is current.
            NotAllowedError: the branch exists; UnauthorizedError: it exists and is another user's.
            ResourceLimitExceededError: there are too many.
        """
        self._check_free()
        self.current = self._distributed.start(xid, self._caller)
        return Status.OK

    def join(self, xid: bytes) -> Status:
        """Make an existing branch the current one. Returns OK, or why that was refused.

        Raises:
            IllegalStateError: another one is current, or this one is suspended or prepared.
            NotAllowedError: the branch does not exist; UnauthorizedError: it is another user's.
        """
        self._check_free()
        if xid in self._suspended:
            raise IllegalStateError(f"{self._suspended[xid].title} is suspended; it can be resumed")
        branch, status = self._distributed.join(xid, self._caller)
        if status is Status.OK:
            self.current = branch
        return status

    def resume(self, xid: bytes) -> Status:
        """Make a suspended branch the current one again. Returns OK, or the reason for which it can only be ended.

        Raises:
            IllegalStateError: another one is current.
            NotAllowedError: this one is not suspended.
        """
        self._check_free()
        branch = self._suspended.get(xid)
        if branch is None:
            raise NotAllowedError(f"the session has not suspended a branch with xid {xid.hex()}")
        status = self._distributed.status_of(branch)
        if status is Status.OK:
            self.current = self._suspended.pop(xid)
        return status

    def suspend(self, xid: bytes) -> Status:
        """Suspend the branch. Returns OK, or why it can no longer be committed: then the association has ended.

        Raises:
            IllegalStateError: it is not the current one.
        """
        branch = self._working_for(xid)
        if self._distributed.status_of(branch) is not Status.OK:
            return self.end(xid)
        self.current = None
        self._suspended[xid] = branch
        return Status.OK

    def end(self, xid: bytes, *, has_failed: bool = False) -> Status:
        """End the association with a branch. Returns OK, or why it can only be rolled back.

        Raises:
            IllegalStateError: the session is not associated with it.
        """
        branch = self._suspended.pop(xid, None)
        if branch is None:
            branch = self._working_for(xid)
            self.current = None
        return self._distributed.leave(branch, has_failed=has_failed)

    def close(self) -> None:
        """The session has ended."""
        branches = [*self._suspended, *(() if self.current is None else (self.current.xid,))]
        for xid in branches:
            self.end(xid, has_failed=True)

    def _working_for(self, xid: bytes) -> Branch:
        if self.current is None or self.current.xid != xid:
            raise IllegalStateError(f"the session is not associated with a branch with xid {xid.hex()}")
        return self.current

    def _check_free(self) -> None:
        if self.current is not None:
            raise IllegalStateError(f"the session is associated with {self.current.title}")


_Values = dict[str, Any]


def _select_local(session: ServerSession, _number: int, _values: _Values) -> None:
    if session.transaction is not None or session.branches is not None:
        raise IllegalStateError("the session is already transactional")
    session.transaction = _begin_local(session)


def _commit_local(session: ServerSession, number: int, _values: _Values) -> None:
    transaction = _end_local(session)
    is_large = transaction.is_large
    accepted = {} if is_large else session.deliveries.commit()

    def done(error: ModelError | None) -> None:
        session.is_committing = False
        if error is not None:
            session.fail([[number, number]], error)
        else:
            session.txn_commits += 1
            session.completed_later(number)

    session.is_committing = True
    if is_large:
        session.do_in_turns(number, _commit_in_turns(session, transaction, done))
        return
    session.ledger.postpone(number)
    try:
        transaction.commit(done)
    except ModelError:
        session.is_committing = False
        session.deliveries.unsettled.update(accepted)
        session.txn_rejects += 1
        transaction.count_end(is_committed=False)
        raise


def _commit_in_turns(
    session: ServerSession, transaction: LocalTransaction, done: Callable[[ModelError | None], None]
) -> Iterator[Portion]:
    """Commit a large transaction."""
    yield from session.deliveries.commit_in_turns()
    yield from transaction.commit_in_turns(done)


def _rollback_local(session: ServerSession, _number: int, _values: _Values) -> None:
    _end_local(session).count_end(is_committed=False)
    session.deliveries.roll_back()
    session.txn_rejects += 1


def _begin_local(session: ServerSession) -> LocalTransaction:
    session.txn_starts += 1
    return session.broker.begin_transaction(session.broker.settings.transaction_bytes)


def _end_local(session: ServerSession) -> LocalTransaction:
    """End the open transaction and return it; begin the next one."""
    transaction = session.transaction
    if transaction is None or session.branches is not None:
        raise IllegalStateError("Session has not been selected for use with transactions")
    session.broker.end_transaction(transaction)
    session.transaction = _begin_local(session)
    return transaction


_STATUS: Final[Mapping[Status, XaStatus]] = {
    Status.OK: XaStatus.XA_OK,
    Status.ROLLED_BACK: XaStatus.XA_RBROLLBACK,
    Status.TIMED_OUT: XaStatus.XA_RBTIMEOUT,
}

# ---- work ----


def _select(session: ServerSession, _number: int, _values: _Values) -> None:
    if session.branches is None:
        if session.transaction is not None:
            raise IllegalStateError("the session is selected for local transactions")
        session.branches = SessionBranches(session.broker.distributed, session)


def _start(session: ServerSession, number: int, values: _Values) -> None:
    branches = _selected(session)
    if values["join"] and values["resume"]:
        raise CommandInvalidError("join and resume exclude each other")
    xid = _xid_of(values)
    act = branches.join if values["join"] else branches.resume if values["resume"] else branches.start
    _send_status(session, number, act(xid))


def _end(session: ServerSession, number: int, values: _Values) -> None:
    branches = _selected(session)
    if values["fail"] and values["suspend"]:
        raise CommandInvalidError("fail and suspend exclude each other")
    xid = _xid_of(values)
    status = branches.suspend(xid) if values["suspend"] else branches.end(xid, has_failed=bool(values["fail"]))
    _send_status(session, number, status)


def _send_status(session: ServerSession, number: int, status: Status) -> None:
    """Send the result of a command that associates the session with a branch, or ends that."""
    assert session.branches is not None
    branch = session.branches.current
    session.transaction = None if branch is None else branch.work
    session.send_result(number, encode_result("xa-result", status=_STATUS[status]))


def _selected(session: ServerSession) -> SessionBranches:
    if session.branches is None:
        raise CommandInvalidError("the session has not been selected for distributed transactions")
    return session.branches


# ---- outcome ----


def _prepare(session: ServerSession, number: int, values: _Values) -> None:
    branch = session.broker.distributed.find(_xid_of(values), session)
    _finish(session, number, branch, branch.prepare)


def _commit(session: ServerSession, number: int, values: _Values) -> None:
    branch = session.broker.distributed.find(_xid_of(values), session)
    _finish(session, number, branch, partial(branch.commit, one_phase=bool(values["one_phase"])))


def _rollback(session: ServerSession, number: int, values: _Values) -> None:
    branch = session.broker.distributed.find(_xid_of(values), session)
    _finish(session, number, branch, branch.roll_back)


def _finish(session: ServerSession, number: int, branch: Branch, act: Callable[[Done], None]) -> None:
    """Prepare, commit or roll back; then send the result and complete the command."""
    session.ledger.postpone(number)

    def done(status: Status, error: ModelError | None) -> None:
        if session.is_failed:
            return
        if error is not None:
            session.fail([[number, number]], error)
        else:
            session.send_result(number, encode_result("xa-result", status=_STATUS[status]))
            session.completed_later(number)

    act(done)
    session.wait_for(branch)
    session.wait_for(branch.work)


def _recover(session: ServerSession, number: int, _values: _Values) -> None:
    xids = [xid for xid in session.broker.distributed.in_doubt_for(session) if decode_xid(xid).kind == "dtx"]
    in_doubt = TypedArray(TYPES["struct32"], tuple(xids))
    session.send_result(number, encode_result("dtx.recover", in_doubt=in_doubt))


def _forget(session: ServerSession, _number: int, values: _Values) -> None:
    session.broker.distributed.forget(_xid_of(values))


# ---- timeouts ----


def _get_timeout(session: ServerSession, number: int, values: _Values) -> None:
    branch = session.broker.distributed.find(_xid_of(values), session)
    session.send_result(number, encode_result("dtx.get-timeout", timeout=branch.timeout))


def _set_timeout(session: ServerSession, _number: int, values: _Values) -> None:
    session.broker.distributed.set_timeout(_xid_of(values), values["timeout"] or 0, session)


def _xid_of(values: _Values) -> bytes:
    """The xid of a command, as in records.

    Raises:
        IllegalArgumentError: it has none.
    """
    xid = values["xid"]
    if xid is None:
        raise IllegalArgumentError("No xid is given")
    return encode_dtx_xid(xid.format or 0, xid.global_id or b"", xid.branch_id or b"")


#: Command -> function.
TRANSACTION_COMMANDS: Final[dict[str, Callable[[ServerSession, int, _Values], None]]] = {
    "tx.select": _select_local,
    "tx.commit": _commit_local,
    "tx.rollback": _rollback_local,
    "dtx.select": _select,
    "dtx.start": _start,
    "dtx.end": _end,
    "dtx.prepare": _prepare,
    "dtx.commit": _commit,
    "dtx.rollback": _rollback,
    "dtx.recover": _recover,
    "dtx.forget": _forget,
    "dtx.get-timeout": _get_timeout,
    "dtx.set-timeout": _set_timeout,
}
