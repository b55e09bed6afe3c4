"""The commands of class dtx: branches of distributed transactions.

    select         the session may work for branches
    start, end     what the session publishes and accepts in between is work of the branch (`session_branches`)
    prepare        the branch is in the store, and can be committed or rolled back whatever happens
    commit         it is committed; with one-phase, it need not be prepared
    rollback       it is rolled back
    recover        the xids of the branches that are prepared
    set-timeout, get-timeout    the time after which a branch is rolled back unless it is prepared
    forget         not implemented: the broker never completes a branch heuristically

Any session of the branch's user may prepare, commit and roll it back, and set its timeout; other users need rules
(`transactions.distributed`). These commands are completed when their
effect is on the disk; the result is sent before that. Branches are defined in `transactions.branch`. The status
xa-rdonly is never used, as by qpidd.

Flags that exclude each other, and commands for which select is missing, fail with command-invalid, as in qpidd; the
specification has not-allowed for the flags.

Sources: AMQP 0-10, class dtx; Apache Qpid C++, SessionAdapter.cpp (command-invalid).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from qstore.broker.model.errors import (
    CommandInvalidError,
    IllegalArgumentError,
    IllegalStateError,
    ModelError,
)
from qstore.broker.model.transactions.branch import Branch, Done, Status
from qstore.broker.protocols.amqp_0_10.server_session import ServerSession
from qstore.broker.protocols.amqp_0_10.session_branches import SessionBranches
from qstore.formats.amqp_0_10.codes import XaStatus
from qstore.formats.amqp_0_10.commands import encode_result
from qstore.formats.broker_records.xids import decode_xid, encode_dtx_xid
from qstore.formats.values import TYPES, TypedArray

_Values = dict[str, Any]

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
    """Send the result, after the session has begun or ended to work for a branch."""
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
    """Prepare, commit or roll back; the result is sent, and the command completed, when that is done."""
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
DISTRIBUTED_COMMANDS: Final[dict[str, Callable[[ServerSession, int, _Values], None]]] = {
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
