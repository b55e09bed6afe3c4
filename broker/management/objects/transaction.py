"""The class transaction: branches of distributed transactions, so that an operator can end those in doubt.

It is this broker's own: qpidd has none. A branch is named by its xid in hex. One that is in doubt waits for a
transaction manager that may never return; then an operator decides for it (a heuristic decision), with the promise
of the protocol's own command: the method returns when the outcome is on the disk. With access rules, users see their
own branches, and those of others by `ACCESS TRANSACTION`; to end another
user's branch takes `UPDATE TRANSACTION`, as for the commands dtx.commit and dtx.rollback.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from operator import attrgetter as of
from typing import TYPE_CHECKING, Final

from qstore.broker.management.schema import ClassName, ManagedClass, method, prop, stat
from qstore.broker.model.errors import IllegalStateError, ModelError
from qstore.broker.model.transactions.branch import Status

if TYPE_CHECKING:
    from qstore.broker.management.managed_broker import ManagedBroker
    from qstore.broker.management.request import Arguments
    from qstore.broker.management.schema import Results
    from qstore.broker.model.caller import Caller
    from qstore.broker.model.transactions.branch import Branch, Done


async def commit(managed: ManagedBroker, branch: Branch, _arguments: Arguments, caller: Caller) -> Results:
    """Commit a branch that is in doubt."""
    managed.broker.distributed.check_use(caller, branch)
    status = await _end(managed, partial(branch.commit, one_phase=False))
    if status is not Status.OK:
        raise IllegalStateError(f"{branch.title} was rolled back")
    return {}


async def roll_back(managed: ManagedBroker, branch: Branch, _arguments: Arguments, caller: Caller) -> Results:
    """Roll a branch back."""
    managed.broker.distributed.check_use(caller, branch)
    await _end(managed, branch.roll_back)
    return {}


async def _end(managed: ManagedBroker, act: Callable[[Done], None]) -> Status:
    """End a branch, and wait until that is on the disk."""
    ended: asyncio.Future[tuple[Status, ModelError | None]] = asyncio.get_running_loop().create_future()

    def done(status: Status, error: ModelError | None) -> None:
        if not ended.done():
            ended.set_result((status, error))

    act(done)
    managed.broker.tick.schedule()
    status, error = await ended
    if error is not None:
        raise error
    return status


def _objects(managed: ManagedBroker) -> Iterable[tuple[str, Branch]]:
    return [(xid.hex(), branch) for xid, branch in managed.broker.distributed.branches.items()]


def _find(managed: ManagedBroker, key: str) -> Branch | None:
    try:
        return managed.broker.distributed.branches.get(bytes.fromhex(key))
    except ValueError:
        return None


def _seen_by(managed: ManagedBroker, caller: Caller) -> Callable[[Branch], bool]:
    return managed.broker.distributed.seen_by(caller)


# fmt: off
TRANSACTION_CLASS: Final = ManagedClass(
    ClassName("qstore", "transaction"),
    properties=(
        prop("xid", "lstr", "RC index", lambda branch: branch.xid.hex(), "Id of the branch, in hex"),
        prop("user", "lstr", "RO", of("user"), "The user that started it; empty if unknown"),
        prop("timeout", "uint32", "RO", of("timeout"), "Time after which it is rolled back unless prepared", "second"),
    ),
    statistics=(
        stat("state", "sstr", lambda branch: branch.state.name, "PREPARED is in doubt"),
        stat("associations", "uint32", of("associations"), "Sessions that are associated with it", "session"),
    ),
    methods=(
        method("commit", "Commit a prepared branch, instead of its transaction manager", (), commit),
        method("rollback", "Roll a branch back, likewise", (), roll_back),
    ),
    objects=_objects, seen_by=_seen_by, find=_find,
)
# fmt: on
